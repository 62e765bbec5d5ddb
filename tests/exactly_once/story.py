"""A story of exactly-once writes: a Setting and a list of moves of the built code, of Spark and of the brokers; how it is judged.

A move that does not fit the situation does nothing, so moves can be left out. At the end everything heals, all actors come to
their end, the latest version is repeated until it succeeds, and a next one is written. Then must hold:
    - rows of versions that were reported, or repeated, are visible exactly once; of a version that was given up without a
      decision none is visible, and never one twice
    - no partition stands still, no marker is pending, no transaction is open
and before the end:
    - when commit() returns, the transactions of all rows of its version are committed, once
    - a transaction that was gone when commit() began is not decided
Two live drivers never write different versions. Known limits, which are counted and not judged: two live drivers decide on one
version while control records are skipped; a repetition is cut off for longer than the time-out (the error says so).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.version_commit import Committed
from spark_kafka_sink.exactly_once.writes import AttemptResult, DriverTime, ReplayError, TaskReport
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.exactly_once.runs import TOPIC, open_transactions, visible_rows
from tests.exactly_once.story_actors import IDLE, NODES, Actor, StoryCluster, StoryRun, here
from tests.exactly_once.trace_replay import Died
from tests.fakes.fake_node import ReceivedRequest
from tests.fakes.transaction_coordinator import State

MOST_STEPS = 400  # of one actor: it waits for something that never comes
MOST_REPETITIONS = 6
TO_THE_END = MOST_STEPS
SAME_HOST = "host"
LIMITS = {  # words of errors, and the limit
    "its repetition was cut off": "a repetition was cut off",
}

Move = tuple[Any, ...]
Layout = tuple[tuple[str, ...], ...]  # the rows of each Spark partition


class StoryFailure(AssertionError):
    """What must hold does not."""


@dataclass(frozen=True)
class Setting:
    """What a story is told with. `layouts`: by version, one or two ways in which its rows are spread over Spark partitions."""

    seed: int
    transaction_version: int
    may_skip: bool
    has_ends: bool
    asks_brokers_first: bool
    layouts: tuple[tuple[Layout, ...], ...]


def new_setting(seed: int) -> Setting:
    random = Random(f"setting {seed}")
    layouts = []
    for version in range(random.randint(1, 3)):
        rows = [f"v{version}-{number}" + "x" * random.randint(0, 2) for number in range(random.randint(1, 5))]
        size = random.randint(1, 3)
        sizes = [size, random.choice((1, size, random.randint(1, 3)))]
        layouts.append(tuple(_spread(random, rows, each) for each in sizes[: random.choice((1, 2))]))
    layouts.append((_spread(random, ["last-0", "last-1"], 2),))  # the next write at the end
    return Setting(
        seed=seed,
        transaction_version=random.choice((1, 2, 2)),
        may_skip=random.random() < 0.6,
        has_ends=random.random() < 0.5,
        asks_brokers_first=random.random() < 0.9,
        layouts=tuple(layouts),
    )


def _spread(random: Random, rows: Sequence[str], size: int) -> Layout:
    partitions: list[list[str]] = [[] for _ in range(size)]
    for row in rows:
        random.choice(partitions).append(row)
    return tuple(map(tuple, partitions))


# WHAT THERE IS IN A STORY


@dataclass
class Life:
    """A life of the driver, with one version at a time. `process`: as the driver itself sees it."""

    number: int
    host: str
    process: StoryRun
    version: int
    layout: int
    planned_at: DriverTime
    is_alive: bool = True
    driver: Actor | None = None
    attempts: dict[int, list[Actor]] = field(default_factory=dict)  # by Spark partition
    reports: dict[int, TaskReport] = field(default_factory=dict)  # the first that came
    gone: list[str] = field(default_factory=list)  # transactions that were not open any more when commit() began


class Story:
    """One telling. `moves`: what happened so far, for another telling."""

    def __init__(self, setting: Setting, tell: Callable[[str], object] = lambda _: None) -> None:
        self.setting = setting
        self.moves: list[Move] = []
        self.counts: Counter[str] = Counter()
        self.limits: set[str] = set()
        self.tell = tell
        self.version = 0  # that is being written
        self.last_version = len(setting.layouts) - 1  # the one that is written at the end
        self.is_ending = False
        self.reported: set[int] = set()
        self.decided_by: dict[int, set[int]] = {}  # version → numbers of lives
        self.failed: set[int] = set()
        self.lives: list[Life] = []
        self.actors: dict[str, Actor] = {}
        self.cluster = StoryCluster(setting.seed, transaction_version=setting.transaction_version, may_skip=setting.may_skip)
        self.broker = self.cluster.broker
        self.cluster.on_request = self._note_request

    # MOVES

    def make(self, move: Move) -> None:
        """Record and make a move; one that does not fit does nothing."""
        self.moves.append(move)
        name, *arguments = move
        getattr(self, f"_{name}")(*arguments)
        self._notice()

    def _life(self, number: int) -> Life | None:
        return next((each for each in self.lives if each.number == number and each.is_alive), None)

    def _begin(self, layout: int, is_same_host: bool) -> None:
        """A driver begins with the version that is due; a live one is a zombie from now on."""
        if self.version == self.last_version and not self.is_ending:
            return
        number = len(self.lives)
        host = SAME_HOST if is_same_host else f"{SAME_HOST}-{number}"
        layout %= len(self.setting.layouts[self.version])
        process = self.cluster.run(host, self.setting.has_ends)
        self.lives.append(Life(number, host, process, self.version, layout, self.cluster.now(host)))
        self._say(f"driver {number} begins with version {self.version}: {self.rows_of(self.lives[-1])}")

    def rows_of(self, life: Life) -> Layout:
        return self.setting.layouts[life.version][life.layout]

    def _task(self, number: int, partition: int) -> None:
        life = self._life(number)
        if life is None or life.driver is not None or partition >= len(self.rows_of(life)) or partition in life.reports:
            return
        attempts = life.attempts.setdefault(partition, [])
        if sum(not each.is_over for each in attempts) >= 2 or len(attempts) >= 4:
            return
        attempt, version, rows, planned_at = len(attempts), life.version, self.rows_of(life)[partition], life.planned_at
        process = self.cluster.run(life.host)

        def work() -> TaskReport:
            task = process.story_task(version, partition, rows, attempt, planned_at)
            if self.setting.asks_brokers_first:
                task.producer.await_brokers(1_000)
            return task.run()

        attempts.append(self._actor(f"task {number}/{version}/{partition}/{attempt}", work))

    def _actor(self, name: str, work: Callable[[], object]) -> Actor:
        self._say(f"{name} begins")
        self.actors[name] = Actor(name, work)
        return self.actors[name]

    def _commit(self, number: int) -> None:
        life = self._life(number)
        if life is None or life.driver is not None or len(life.reports) < len(self.rows_of(life)):
            return
        reports = [life.reports[partition] for partition in sorted(life.reports)]
        life.gone = [each for report in reports if (each := self._gone(report))]

        def work() -> object:
            try:
                return life.process.commit_reports(reports)
            except KafkaError as error:
                self.tell(f"    commit() of driver {number} fails: {_shortened(error)}")
                life.process.abort()
                return error

        life.driver = self._actor(f"driver {number}/{life.version}", work)

    def _gone(self, report: TaskReport) -> str | None:
        if report.result is not AttemptResult.OPEN:
            return None
        entry = report.entry
        prepared = entry.prepared_transaction(self.lives[0].process.names, report.write.owner)
        each = self.broker.transactions.transactions[prepared.transactional_id]
        is_open = each.state is State.ONGOING and (each.producer_id, each.epoch) == (entry.producer_id, entry.producer_epoch)
        return None if is_open else prepared.transactional_id

    def _abort(self, number: int) -> None:
        """The write fails or is stopped before all tasks have reported."""
        life = self._life(number)
        if life is not None and life.driver is None:

            def work() -> object:
                life.process.abort()
                return KafkaError("stopped")

            life.driver = self._actor(f"driver {number}/{life.version}", work)

    def _next(self, number: int) -> None:
        """A driver goes on to the next version, when its own one is reported. Zombies of drivers have died by then."""
        life = self._life(number)
        is_done = life is not None and life.driver is not None and isinstance(life.driver.outcome, Committed)
        if life is None or not is_done or life.version != self.version - 1 or self.version == self.last_version:
            return
        self._kill_others(life)
        life.version, life.layout, life.planned_at = self.version, 0, self.cluster.now(life.host)
        life.driver, life.attempts, life.reports, life.gone = None, {}, {}, []
        self._say(f"driver {number} goes on to version {life.version}: {self.rows_of(life)}")

    def _kill_others(self, life: Life | None) -> None:
        for each in self.lives:
            if each is not life and each.is_alive and each.version < self.version:
                self._kill(each.number)

    def _give_up(self) -> None:
        """A version that has failed is never repeated; the next one follows."""
        is_left = self.version in self.failed and self.version not in self.reported
        if is_left and self.version < self.last_version and not any(each.is_alive for each in self.lives):
            self._say(f"version {self.version} is given up")
            self.counts["given up"] += 1
            self.version += 1

    def _step(self, name: str, count: int) -> None:
        actor = self.actors.get(name)
        for _ in range(count):
            if actor is None or actor.is_over:
                return
            self.counts["steps"] += 1
            if actor.at != IDLE:
                self.tell(f"    {name}: {actor.at}")
            actor.move()
        if count == TO_THE_END and actor is not None and not actor.is_over:
            raise StoryFailure(f"{name} does not come to an end: {actor.at}")

    def _die(self, name: str) -> None:
        actor = self.actors.get(name)
        if actor is not None and not actor.is_over:
            self._say(f"{name} dies before {actor.at}")
            self.counts["deaths"] += 1
            actor.die()

    def _kill(self, number: int) -> None:
        """A driver dies. Its tasks may go on."""
        life = self._life(number)
        if life is not None:
            life.is_alive = False
            self._say(f"driver {number} is dead")
            self.counts["deaths of drivers"] += 1
            if life.driver is not None and not life.driver.is_over:
                life.driver.die()

    # FAULTS

    def _time(self, ms: int) -> None:
        self.cluster.clock.advance(ms)
        ids = self.cluster.transactions.abort_timed_out()
        self.counts["time-outs"] += len(ids)
        self._say(f"{ms} ms pass" + (f"; time-outs of {ids}" if ids else ""))

    def _lose(self, api: ApiKey, is_answer: bool) -> None:
        self.broker.drop_next(api, after_append=is_answer)
        self.counts["lost"] += 1
        self._say(f"the next {'answer to' if is_answer else 'request'} {ApiKey(api).name} is lost")

    def _busy(self, api: ApiKey, is_carried_out: bool) -> None:
        self.broker.fail_next(api, Errors.NOT_COORDINATOR, after_append=is_carried_out)
        self._say(f"the next {ApiKey(api).name} is answered NOT_COORDINATOR{', and carried out' if is_carried_out else ''}")

    def _stop(self, node: int) -> None:
        if len(self.cluster.refused) < NODES - 1:
            self.cluster.stop_node(node)
            self.counts["restarts"] += 1
            self._say(f"node {node} stops")

    def _start(self, node: int) -> None:
        self.cluster.start_node(node)
        self._say(f"node {node} starts")

    def _lead(self, partition: int, node: int) -> None:
        self.broker.move_leader(TOPIC, partition, node)
        self._say(f"node {node} leads {TOPIC}-{partition}")

    def _coordinate(self, key: str, is_group: bool, node: int) -> None:
        self.broker.move_coordinator(KeyType.GROUP if is_group else KeyType.TRANSACTION, key, node)
        self._say(f"node {node} coordinates {key}")

    def _skip(self, topic: str, partition: int) -> None:
        if self.setting.may_skip:
            self.cluster.skipped.add(TopicPartition(topic, partition))
            self._say(f"control records of {topic}-{partition} are skipped")

    def _write(self) -> None:
        self.cluster.skipped.clear()
        self._say("control records are not skipped any more")

    def _hold(self) -> None:
        self.cluster.transactions.holds_markers = True
        self._say("control records are late")

    def _release(self, limit: int | None) -> None:
        self.cluster.transactions.write_markers(limit=limit)
        if limit is None:
            self.cluster.transactions.holds_markers = False
        self._say(f"{limit or 'all'} control records are written")

    # WHAT FOLLOWS FROM THEM

    def _say(self, words: str) -> None:
        self.tell(words)

    def _note_request(self, request: ReceivedRequest) -> None:
        """A decision is being written: by whom?"""
        message, actor = request.message, here.actor
        if not isinstance(message, OffsetCommitRequest) or not message.group_id.endswith("-decision") or actor is None:
            return
        (record,) = message.topics[0].partitions
        if not (record.committed_metadata or "").startswith("decided"):
            return
        number, version = int(actor.name.split()[1].split("/")[0]), record.committed_offset
        life = self.lives[number]
        if life.version != version:
            return
        if life.gone:
            raise StoryFailure(f"driver {number} decides on version {version}, though {life.gone} were gone before its commit()")
        others = {each for each in self.decided_by.get(version, set()) if self.lives[each].is_alive and each != number}
        if others and self.cluster.skipped.count:
            self.limits.add("two live drivers decide while control records are skipped")
        self.decided_by.setdefault(version, set()).add(number)

    def _notice(self) -> None:
        for life in self.lives:
            for partition, attempts in life.attempts.items():
                for actor in attempts:
                    if actor.is_over and isinstance(actor.outcome, TaskReport) and partition not in life.reports:
                        life.reports[partition] = actor.outcome
                        self._say(f"{actor.name} reports {actor.outcome.result.name}")
            if life.is_alive and life.driver is not None and life.driver.is_over:
                self._note_end(life, life.driver.outcome)

    def _note_end(self, life: Life, outcome: object) -> None:
        if isinstance(outcome, Committed):
            if life.version == self.version:
                self._say(f"driver {life.number}: version {life.version} is reported, {outcome.how.name}")
                self.counts["versions"] += 1
                self.reported.add(life.version)
                self._check_committed(life.version)
                self.version += 1
            return
        life.is_alive = False
        self.limits |= {limit for words, limit in LIMITS.items() if words in str(outcome)}
        if outcome is not Died:
            self._say(f"driver {life.number} has failed: {_shortened(outcome)}")
            self.counts["failures"] += 1
            self.failed.add(life.version)
            if isinstance(outcome, ReplayError) and len(self.setting.layouts[life.version]) == 1:
                raise StoryFailure(f"the same rows are taken for others: {outcome}")

    def expected(self, version: int) -> Counter[str]:
        return Counter(row for rows in self.setting.layouts[version][0] for row in rows)

    def _check_committed(self, version: int) -> None:
        if self.limits:
            return
        found: Counter[str] = Counter()
        for log in self.broker.topics[TOPIC].partitions:
            for batch in log.batches:
                first_open = log.transactions.first_offsets.get(batch.producer_id)
                is_open = first_open is not None and batch.base_offset >= first_open
                is_aborted = any(
                    each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
                    for each in log.transactions.aborted
                )
                if not is_open and not is_aborted:
                    found.update(record.value.decode() for record in batch.records if record.value is not None)
        expected = self.expected(version)
        seen = Counter({row: count for row, count in found.items() if row in expected})
        if seen != expected:
            raise StoryFailure(f"version {version} is reported, and committed are {dict(seen)} instead of {dict(expected)}")

    # THE END

    def end(self) -> None:
        """Everything heals, and is judged."""
        self._say("everything heals")
        self.is_ending = True
        with self.broker.lock:
            self.broker._faults.clear()
        for node in range(NODES):
            self.cluster.start_node(node)
        self.cluster.skipped.clear()
        self._release(None)
        for name in list(self.actors):
            self._step(name, TO_THE_END)
            self._notice()
        for life in self.lives:
            life.is_alive = False
        if self.version < self.last_version:
            self._repeat(MOST_REPETITIONS)
            if self.version < self.last_version and self.limits:
                return
        self.version = self.last_version
        self._repeat(2 if self.limits or self.counts["given up"] else 1)  # who finds a part of an earlier version lost fails once
        if not self.limits:
            self._judge()

    def _repeat(self, most: int) -> None:
        version, failures = self.version, []
        for number in range(most):
            self.counts["repetitions"] += 1
            self._say(f"repetition {number} of version {version}")
            self._begin(number % len(self.setting.layouts[version]), number % 2 == 0)
            life = self.lives[-1]
            for partition in range(len(self.rows_of(life))):
                self._task(life.number, partition)
                self._step(f"task {life.number}/{version}/{partition}/0", TO_THE_END)
                outcome = life.attempts[partition][0].outcome
                self._notice()
                if isinstance(outcome, KafkaError):
                    failures.append(outcome)
                    self._abort(life.number)
                    break
            self._commit(life.number)
            self._step(f"driver {life.number}/{version}", TO_THE_END)
            self._notice()
            life.is_alive = False
            if version in self.reported:
                return
            failures.append(life.driver.outcome if life.driver else None)
        if not self.limits:
            raise StoryFailure(
                f"version {version} is not committed by {most} repetitions: {[_shortened(each) for each in failures]}"
            )

    def _judge(self) -> None:
        standing = {
            partition: log.next_offset - end
            for partition, log in enumerate(self.broker.topics[TOPIC].partitions)
            if (end := self.broker.last_stable_offset(TOPIC, partition)) < log.next_offset
        }
        pending = [name for name, group in self.broker.offsets.groups.items() if any(group.pending.values())]
        problems = []
        if standing:
            problems.append(f"partitions stand still {standing}")
        if pending:
            problems.append(f"markers are pending {pending}")
        if open_ids := open_transactions(self.broker):
            problems.append(f"transactions are open {open_ids}")
        if self.broker.violations:
            problems.append(f"requests are wrong {self.broker.violations}")
        seen = Counter(visible_rows(self.broker))
        for version in range(len(self.setting.layouts)):
            expected = self.expected(version)
            found = Counter({row: seen[row] for row in expected if seen[row]})
            if version in self.reported and found != expected:
                problems.append(f"version {version} was reported, and readers see {dict(found)} instead of {dict(expected)}")
            elif max(found.values(), default=0) > 1:
                problems.append(f"version {version} was given up, and readers see {dict(found)}")
            elif found and version not in self.reported and version not in self.decided_by:
                problems.append(f"version {version} was given up and never decided, and readers see {dict(found)}")
        if problems:
            raise StoryFailure("; ".join(problems))

    def bury(self) -> None:
        for actor in self.actors.values():
            if not actor.is_over:
                with contextlib.suppress(BaseException):
                    actor.die()


def _shortened(error: object) -> str:
    return str(error)[:300]
