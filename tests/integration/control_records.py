"""Stories of exactly-once writes amid whose transactions a partition has no leader, and what readers see at their end.

Some versions of Kafka take a partition without a leader for deleted, and leave out its control record (KAFKA-20734): rows stay
open although their transaction is complete. A story stops the broker that leads one partition, at one moment of a write, and has
it come back. Then it looks: a write that was reported is seen once, at once and in every partition; nothing of a failed one is
seen; readers stand still nowhere; a write that fails next takes nothing away; and the next version works.
A story does not stop at the first thing that is wrong: it goes on, and `Outcome.faults` has all of them.
"""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from jobs.local_kafka import HOST, LocalKafka
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fault_proxy import ProxiedKafka, ProxyFault, Request
from tests.fakes.raw_client import RawClient
from tests.fakes.transaction_coordinator import INTERNAL_PARTITIONS, OFFSETS_TOPIC, internal_partition, offsets_partition
from tests.integration.exactly_once_world import BrokerWorld, Rows
from tests.integration.processes import until

OWNER = "q"
TOPIC_PARTITIONS, TASKS = 3, 3
NOT_VISIBLE = "KAFKA_EXACTLY_ONCE_NOT_VISIBLE"
SETTLING = logging.getLogger("spark_kafka_sink.exactly_once.settling")  # says "repeated" of each decision that it repeats

LIMIT_MS = 60_000  # of a write: longer than each absence of a broker
SHORT_LIMIT_MS = 8_000  # shorter than the absence; a broker stops in two or three seconds of it
LATER_S = 10.0
LEADERLESS_LIMIT_S = 30
AT_ONCE_S = 1.0  # in which brokers write the control records of attempts that came too late, behind a report
STILL_LIMIT_S = 20  # so long readers may stand still before they count as stuck
RUNS = 3  # that may be needed until one reports the version

# Each task has rows in each partition of its topic.
SPREAD = {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
# What a driver still asks for that dies as soon as it has asked for the end of its transactions.
DYING_WORDS = frozenset((ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.END_TXN))

_prefixes = itertools.count(1)


class Place(enum.Enum):
    """Whose partition has no leader. Everything else has three replicas."""

    ROWS = "rows"  # a partition of the topic
    MARKERS = "markers"  # the partition of __consumer_offsets with the markers of the first Spark partition


class Moment(enum.Enum):
    """When the broker stops."""

    ABORT = "before abort()"
    TASKS_END = "between the tasks' end and commit()"
    DECIDED = "in commit(), after the decision"
    END_TXN = "amid EndTxn"  # one transaction is ended before
    DEATH = "in commit(), after the decision, and the driver dies behind EndTxn"

    @property
    def end_txns_before(self) -> int:
        return int(self is Moment.END_TXN)


class Return(enum.Enum):
    """When the broker begins to come back."""

    AT_ONCE = "at once"
    LATER = f"after {LATER_S:.0f} s"
    AFTER_LIMIT = "after the limit"

    @property
    def after_s(self) -> float | None:
        """None: when the write has ended."""
        return {Return.AT_ONCE: 0.0, Return.LATER: LATER_S, Return.AFTER_LIMIT: None}[self]


def offsets_properties(place: Place) -> dict[str, str]:
    """Of brokers: INTERNAL_PARTITIONS partitions of __consumer_offsets, with one replica each for stories of markers."""
    replicas = {"offsets.topic.replication.factor": "1"} if place is Place.MARKERS else {}
    return {"offsets.topic.num.partitions": str(INTERNAL_PARTITIONS), **replicas}


# WHAT BROKERS SAY


def leaders(cluster: LocalKafka, topic: str) -> dict[int, set[int]]:
    """By partition, the leaders by the word of each broker that answers; -1 for none."""
    leader_ids: dict[int, set[int]] = {}
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
    for node_id in cluster.running():
        try:
            with RawClient(f"{HOST}:{cluster.nodes[node_id].port}") as client:
                partitions = client.ask(request, 9).topics[0].partitions
        except (OSError, EOFError):  # it is starting
            continue
        for partition in partitions:
            leader_ids.setdefault(partition.partition_index, set()).add(partition.leader_id)
    return leader_ids


def leader_of(cluster: LocalKafka, partition: TopicPartition) -> int:
    """Once all brokers name the same one."""

    def is_known() -> bool:
        leader_ids = leaders(cluster, partition.topic).get(partition.partition, set())
        return len(leader_ids) == 1 and -1 not in leader_ids

    until(is_known, LEADERLESS_LIMIT_S, f"{partition} has a leader")
    (leader,) = leaders(cluster, partition.topic)[partition.partition]
    return leader


def standing_still(cluster: LocalKafka, topics: Sequence[str]) -> dict[str, str]:
    """The partitions where the last stable offset is behind the high watermark, or that cannot say: where it is, or why not."""
    from confluent_kafka import IsolationLevel, KafkaException
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    partitions = {
        Partition(topic, partition): leader_ids for topic in topics for partition, leader_ids in leaders(cluster, topic).items()
    }
    reachable = [partition for partition, leader_ids in partitions.items() if -1 not in leader_ids]

    def last_offsets(level: Any) -> dict[Any, Any]:
        answers = admin.list_offsets({each: OffsetSpec.latest() for each in reachable}, isolation_level=level, request_timeout=5)
        wait(answers.values(), 10)
        return answers

    ends = last_offsets(IsolationLevel.READ_UNCOMMITTED)  # first: what is written meanwhile holds nobody back
    stable_ends = last_offsets(IsolationLevel.READ_COMMITTED)
    still = {f"{each.topic}-{each.partition}": "no leader" for each in partitions if each not in reachable}
    for each in reachable:
        name = f"{each.topic}-{each.partition}"
        try:
            end, stable = ends[each].result(0).offset, stable_ends[each].result(0).offset
        except KafkaException as error:
            still[name] = error.args[0].name()
        else:
            if stable < end:
                still[name] = f"at {stable} of {end}"
    return still


class Outage:
    """One broker that leads `partition` alone is away for a while. At the end of the block it is back."""

    def __init__(self, cluster: LocalKafka, partition: TopicPartition) -> None:
        self._cluster = cluster
        self.partition = partition
        self._node_id = leader_of(cluster, partition)
        self._ending = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._return: Future[None] | None = None
        self.has_begun = False

    def __enter__(self) -> Outage:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.shutdown()

    def begin(self, return_s: float | None) -> None:
        """Stop the broker, until all others say that the partition has no leader. It is started again in `return_s` seconds."""
        self.has_begun = True
        self._cluster.terminate(self._node_id)
        has_no_leader = lambda: leaders(self._cluster, self.partition.topic)[self.partition.partition] == {-1}  # noqa: E731
        until(has_no_leader, LEADERLESS_LIMIT_S, f"{self.partition} has no leader")
        if return_s is not None:
            self._return = self._thread.submit(self._come_back, return_s)

    def _come_back(self, return_s: float) -> None:
        self._ending.wait(return_s)
        self._cluster.restart(self._node_id)

    def end(self) -> None:
        """Wait until the broker is back and leads; start it, if nobody does."""
        if not self.has_begun:
            return
        if self._return is None:
            self._return = self._thread.submit(self._come_back, 0.0)
        self._return.result(180)
        leader_of(self._cluster, self.partition)


class OutageAtEndTxn:
    """What a proxy does: the outage begins as the driver's EndTxn is on its way, and the request waits until it has.

    Args:
        passing: so many EndTxn go through before.
        dies: after the first EndTxn, nothing else of the driver arrives.
    """

    def __init__(self, outage: Outage, return_s: float | None, passing: int, *, dies: bool) -> None:
        self._outage = outage
        self._return_s = return_s
        self._passing = passing
        self._dies = dies
        self._end_txn_count = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> ProxyFault | None:
        with self._lock:
            if request.api_key == ApiKey.END_TXN:
                self._end_txn_count += 1
                if self._end_txn_count > self._passing and not self._outage.has_begun:
                    self._outage.begin(self._return_s)
            elif self._dies and self._end_txn_count and request.api_key not in DYING_WORDS:
                return ProxyFault.DROP_BEFORE
        return None


@contextmanager
def repetitions() -> Iterator[list[str]]:
    """The lines that say that a decision was repeated."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING and "repeated" in record.getMessage():
                lines.append(record.getMessage())

    handler = Handler()
    SETTLING.addHandler(handler)
    try:
        yield lines
    finally:
        SETTLING.removeHandler(handler)


# STORIES


def rows(version: int, tasks: int = TASKS) -> Rows:
    return [[f"v{version}-{task}-{row}" for row in range(2 * TOPIC_PARTITIONS)] for task in range(tasks)]


@dataclass
class Outcome:
    """`ending` of the write that the outage hit."""

    ending: str = ""
    runs: int = 0  # that reported or failed, until the version was reported
    repeated: int = 0
    took_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.faults) or "each row once"
        return f"{self.ending}; runs {self.runs}; repeated {self.repeated}; {self.took_s:.0f} s: {verdict}"


class Storyteller:
    """Writes versions of one owner, and looks at what readers see.

    Args:
        login: options of the writing client, and of none else.
        address: of the listener for them.
    """

    def __init__(
        self,
        cluster: LocalKafka,
        stack: ExitStack,
        *,
        replicas: int = 3,
        prefix: str = "",
        address: str = "",
        marker_topic: str = "",
        login: Mapping[str, Any] | None = None,
    ) -> None:
        self.world = BrokerWorld(cluster, stack, partitions=TOPIC_PARTITIONS, replicas=replicas, prefix=prefix)
        self.outcome = Outcome()
        self._cluster = cluster
        self._address = address or cluster.bootstrap_servers
        self._marker_topic = marker_topic
        self._login = dict(login or {})
        self._written: Counter[str] = Counter()  # by versions that were reported
        self._runs = itertools.count(1)
        self._stood_still_before: set[str] = set()  # what other stories have left
        self._stood_still_before.update(self._standing())

    def run(self, name: str = "", *, limit_ms: int = LIMIT_MS, address: str = "") -> DriverRun:
        name = name or f"run{next(self._runs)}"
        how: dict[str, Any] = {"max.block.ms": limit_ms, **SPREAD, **self._login}
        return self.world.run(name, address or self._address, owner=OWNER, marker_topic=self._marker_topic, **how)

    def recover(self, version: int, runs: int = RUNS, *, looks: bool = True) -> None:
        """Write the version as fresh runs would, until one of them reports it; then look."""
        for _ in range(runs):
            run = self.run()
            self.outcome.runs += 1
            try:
                run.write_version(version, *rows(version))
            except KafkaError as error:
                self.outcome.ending += f", then {error.condition}"
                abort(run)
            else:
                return self.note_reported(version, looks=looks)
        self.outcome.faults.append(f"version {version} was not written by {runs} runs")

    def note_reported(self, version: int, outage: Outage | None = None, *, looks: bool = True) -> None:
        """Look at once, and again when an outage that lasts has ended."""
        self._written += Counter(itertools.chain(*rows(version)))
        if not looks:
            return
        if still := self._wait_while_standing(AT_ONCE_S, of_this_owner=True):
            self.outcome.faults.append(f"version {version} was reported before readers saw it in {where_text(still)}")
        if outage is not None:
            outage.end()
        self.look(f"after version {version} was reported")

    def look(self, when: str) -> None:
        """Readers see what was reported, and nothing else. They may stand still for STILL_LIMIT_S."""
        if still := self._wait_while_standing(STILL_LIMIT_S):
            self.outcome.faults.append(f"{when}, readers stand still in {where_text(still)}")
        self._compare(when, "readers wait for them" if still else "readers wait for nothing: they are lost")

    def look_for_none(self, when: str) -> None:
        """Readers see nothing of a failed write, wherever they stand."""
        self._compare(when)

    def _compare(self, when: str, if_lost: str = "") -> None:
        visible_rows = self.world.visible_counts()
        lost_rows, doubled = self._written - visible_rows, visible_rows - self._written
        if lost_rows and if_lost:
            self.outcome.faults.append(f"{when}, {lost_rows.total()} of {self._written.total()} rows are not seen, and {if_lost}")
        if doubled:
            again = sum(1 for row in doubled if self._written[row])
            what = "doubled" if again else "of a failed write"
            self.outcome.faults.append(f"{when}, {doubled.total()} rows too many are seen ({what})")

    def _wait_while_standing(self, limit_s: float, *, of_this_owner: bool = False) -> dict[str, str]:
        """`of_this_owner`: among the partitions of __consumer_offsets only those with its markers."""
        names = PrefixNames(self.world.prefix)
        numbers = {internal_partition(names.marker_group(OWNER, task)) for task in range(TASKS)}
        others = {f"{OFFSETS_TOPIC}-{number}" for number in range(INTERNAL_PARTITIONS) if number not in numbers}
        deadline = time.monotonic() + limit_s
        while True:
            still = {name: where for name, where in self._standing().items() if not (of_this_owner and name in others)}
            if not still or time.monotonic() > deadline:
                return still
            threading.Event().wait(0.2)

    def _standing(self) -> dict[str, str]:
        still = standing_still(self._cluster, [self.world.topic, OFFSETS_TOPIC])
        return {name: where for name, where in still.items() if name not in self._stood_still_before}

    def go_on(self) -> None:
        """The next version fails once, and is repeated."""
        failing = self.run()
        failing.reports(1, *rows(1))
        if problem := abort(failing):
            self.outcome.faults.append(f"abort() of version 1: {problem}")
        self.look_for_none("after the failed version 1")
        self.recover(1)


def abort(run: DriverRun) -> str:
    """Returns the condition of its error: Spark goes on whatever becomes of an abort()."""
    try:
        run.abort()
    except KafkaError as error:
        return error.condition
    return ""


def where_text(still: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({where})" for name, where in sorted(still.items()))


def partition_of(place: Place, world: BrokerWorld) -> TopicPartition:
    if place is Place.ROWS:
        return TopicPartition(world.topic, 0)
    return offsets_partition(PrefixNames(world.prefix).marker_group(OWNER, 0))


def prefix_beside(cluster: LocalKafka) -> str:
    """A prefix whose first marker group has another broker than what its owner reads and writes after the decision."""
    broker_ids = {partition: next(iter(each)) for partition, each in leaders(cluster, OFFSETS_TOPIC).items()}

    def broker_of(group: str) -> int:
        return broker_ids[internal_partition(group)]

    for number in _prefixes:
        names = PrefixNames(f"prefix-exactly-once-m{number}")
        broker = broker_of(names.marker_group(OWNER, 0))
        others = itertools.chain(
            (names.decision_group(OWNER), names.aborted_group, names.heartbeat_group(OWNER)),
            (names.marker_group(OWNER, task) for task in range(1, TASKS)),
        )
        if all(broker_of(group) != broker for group in others):
            return names.prefix
    raise AssertionError("no such prefix")


def make_offsets_topic(cluster: LocalKafka) -> None:
    """Brokers make it at the first question for a group."""
    with DriverRun(cluster.bootstrap_servers, OFFSETS_TOPIC, "first") as run:
        run.ledger.fetch_decision()
    until(lambda: len(leaders(cluster, OFFSETS_TOPIC)) == INTERNAL_PARTITIONS, 30, f"{OFFSETS_TOPIC} is there")


def tell(
    cluster: LocalKafka,
    place: Place,
    moment: Moment,
    back: Return,
    *,
    address: str = "",
    marker_topic: str = "",
    login: Mapping[str, Any] | None = None,
) -> Outcome:
    """The story of version 0, which the outage hits, and of version 1, which fails once. The moments after TASKS_END need a
    ProxiedKafka, and no login."""
    started = time.monotonic()
    with ExitStack() as stack:
        repeated = stack.enter_context(repetitions())
        prefix = prefix_beside(cluster) if place is Place.MARKERS else ""
        replicas = 1 if place is Place.ROWS else 3
        teller = Storyteller(
            cluster, stack, replicas=replicas, prefix=prefix, address=address, marker_topic=marker_topic, login=login
        )
        outage = stack.enter_context(Outage(cluster, partition_of(place, teller.world)))
        reports = teller.run("first").reports(0, *rows(0))
        hit(cluster, teller, reports, moment, back, outage)
        teller.go_on()
        outcome = teller.outcome
        outcome.repeated = len(repeated)
        outcome.took_s = time.monotonic() - started
        return outcome


def hit(
    cluster: LocalKafka,
    teller: Storyteller,
    reports: Sequence[TaskReport],
    moment: Moment,
    back: Return,
    outage: Outage,
) -> None:
    """Have the outage hit the end of version 0, until the version is reported."""
    outcome = teller.outcome
    limit_ms = SHORT_LIMIT_MS if back is Return.AFTER_LIMIT or moment is Moment.DEATH else LIMIT_MS
    if moment is Moment.ABORT:
        aborting = teller.run("first", limit_ms=limit_ms)
        outage.begin(back.after_s)
        outcome.ending = f"abort(): {abort(aborting) or 'done'}"
        outage.end()
        teller.look_for_none("after abort()")
        return teller.recover(0)
    if moment is Moment.TASKS_END:
        committer = teller.run("first", limit_ms=limit_ms)
        outage.begin(back.after_s)
    else:
        assert isinstance(cluster, ProxiedKafka)
        committer = teller.run("first", limit_ms=limit_ms, address=cluster.proxied_servers)
        decide = OutageAtEndTxn(outage, back.after_s, moment.end_txns_before, dies=moment is Moment.DEATH)
        for proxy in cluster.proxies.values():
            proxy.decide = decide
    try:
        error = commit(committer, reports)
    finally:
        if isinstance(cluster, ProxiedKafka):
            for proxy in cluster.proxies.values():
                proxy.disarm()
    assert outage.has_begun, "the outage has not hit the commit"
    is_dead = moment is Moment.DEATH
    outcome.ending = "commit(): the driver died" if is_dead else f"commit(): {error or 'reported'}"
    if error or is_dead:
        is_decided = moment is not Moment.TASKS_END or outage.partition.topic != OFFSETS_TOPIC  # else 6c reads no marker
        if back is not Return.AFTER_LIMIT and not is_dead:
            outcome.faults.append(f"commit() failed although the broker came back in time: {error}")
        elif error != NOT_VISIBLE and is_decided and not is_dead:
            outcome.faults.append(f"commit() failed with {error} instead of {NOT_VISIBLE}")
        outage.end()
        return teller.recover(0)
    teller.note_reported(0, outage)


def commit(run: DriverRun, reports: Sequence[TaskReport]) -> str:
    """Returns the condition of its error."""
    try:
        run.commit(reports)
    except KafkaError as error:
        return error.condition
    return ""
