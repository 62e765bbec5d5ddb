"""Scenarios of transactions, as single requests to a real broker or a fake one, and what was answered to each.

A scenario writes what it learns into a trace: names of errors, states, and epochs counted from the first one. What depends on
the moment does not appear: answers that mean "not yet" are waited out, unless a scenario asks for the first answer.
transaction_traces.json holds the traces of Apache Kafka, for each level of transaction.version; to record them anew:

    python -m tests.golden.transaction_scenarios
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.schema import Request
from tests.fakes.raw_client import RawClient
from tests.fakes.record_encoder import encode_batch

TRACES = Path(__file__).with_name("transaction_traces.json")
TOPIC = "t"
PARTITIONS = 8
PATIENCE_S = 20
PAUSE_S = 0.02
NOT_YET = {
    Errors.CONCURRENT_TRANSACTIONS,
    Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.NOT_COORDINATOR,  # while internal topics are created
    Errors.NOT_LEADER_OR_FOLLOWER,  # while partitions of a new topic begin
    Errors.NOT_ENOUGH_REPLICAS,  # what Produce up to version 11 is answered instead of CONCURRENT_TRANSACTIONS
}


class Client(Protocol):
    def ask(self, request: Request[Any], version: int) -> Any:
        """The answer to one request."""


@dataclass
class ScenarioProducer:
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    first_epoch: int | None = None
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(8), 0))  # of the current epoch


class Steps:
    """Requests to the one node of a cluster. Each method returns what it also writes to the trace.

    Args:
        stem: names of transactional ids and groups begin with it; where the same ones are kept depends on it.
        pass_time: more than a second goes by; transactions that are past their time-out will be aborted.
        v2: use the versions of transaction.version 2.
    """

    def __init__(self, client: Client, stem: str, *, pass_time: Callable[[], None], v2: bool) -> None:
        self.client = client
        self.topic = TOPIC
        self.pass_time = pass_time
        self.v2 = v2
        self.produce_version, self.end_version, self.txn_offset_version = (12, 5, 5) if v2 else (11, 4, 4)
        self.trace: list[list[Any]] = []
        self.names = (f"{stem}-{number}" for number in itertools.count())

    def note(self, what: str, learnt: object) -> None:
        self.trace.append([what, json.loads(json.dumps(str(learnt) if isinstance(learnt, ErrorCode) else learnt))])

    def _settled(self, ask: Callable[[], Any], error_of: Callable[[Any], int]) -> tuple[Any, ErrorCode]:
        """The first answer that is not "not yet"."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = ask()
            error = Errors.for_code(error_of(answer))
            if error not in NOT_YET or time.monotonic() > deadline:
                return answer, error
            time.sleep(PAUSE_S)  # the real broker's markers take their time

    # COORDINATORS

    def find(self, key_type: KeyType, key: str) -> None:
        request = FindCoordinatorRequest.for_keys(key_type, [key])
        for version in (1, 2, 3, 4, 5):
            _, error = self._settled(
                lambda version=version: self.client.ask(request, version).answer_for(key, version),
                lambda answer: answer.error_code,
            )
            self.note(f"FindCoordinator v{version}", error)

    def new_producer(self, *, timeout_ms: int = 60_000) -> ScenarioProducer:
        producer = ScenarioProducer(next(self.names))
        self.init(producer, timeout_ms=timeout_ms)
        producer.first_epoch = producer.epoch
        return producer

    def init(
        self,
        producer: ScenarioProducer,
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] = (-1, -1),
        version: int = 5,
        settle: bool = True,
    ) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=producer.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        if settle:
            answer, error = self._settled(lambda: self.client.ask(request, version), lambda answer: answer.error_code)
        else:
            answer = self.client.ask(request, version)
            error = Errors.for_code(answer.error_code)
        if not error:
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
            producer.sequences = dict.fromkeys(range(8), 0)
        self.note(f"InitProducerId v{version}", error)
        self.note("epoch", self._epoch(producer, producer.epoch))
        return error

    def _epoch(self, producer: ScenarioProducer, epoch: int) -> int:
        return epoch if producer.first_epoch is None else epoch - producer.first_epoch

    # WRITING

    def produce(
        self,
        producer: ScenarioProducer,
        partition: int = 0,
        *,
        epoch: int | None = None,
        producer_id: int | None = None,
        sequence: int | None = None,
        transactional: bool = True,
        names_id: bool = True,
        version: int | None = None,
    ) -> ErrorCode:
        used_epoch = producer.epoch if epoch is None else epoch
        first = producer.sequences[partition] if sequence is None else sequence
        batch = encode_batch(
            [b"v"],
            timestamp=int(time.time() * 1000),
            producer_id=producer.producer_id if producer_id is None else producer_id,
            producer_epoch=used_epoch,
            base_sequence=first,
            is_transactional=transactional,
        )
        data = PartitionProduceData(index=partition, records=[batch])
        request = ProduceRequest(
            transactional_id=producer.transactional_id if names_id else None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=(TopicProduceData(name=self.topic, partition_data=(data,)),),
        )
        version = self.produce_version if version is None else version
        _, error = self._settled(
            lambda: self.client.ask(request, version),
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        if not error and used_epoch == producer.epoch:
            producer.sequences[partition] = first + 1
        self.note(f"Produce v{version} in epoch {self._epoch(producer, used_epoch)}", error)
        return error

    def add_partitions(
        self, producer: ScenarioProducer, *partitions: int, epoch: int | None = None, version: int = 3
    ) -> list[str]:
        request = AddPartitionsToTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch if epoch is None else epoch,
            topics=(AddPartitionsToTxnTopic(name=self.topic, partitions=partitions),),
        )
        answer, _ = self._settled(
            lambda: self.client.ask(request, version),
            lambda answer: answer.results_by_topic[0].results_by_partition[0].partition_error_code,
        )
        parts = sorted(answer.results_by_topic[0].results_by_partition, key=lambda part: part.partition_index)
        errors = [str(Errors.for_code(part.partition_error_code)) for part in parts]
        self.note(f"AddPartitionsToTxn v{version}", errors)
        return errors

    def add_offsets(self, producer: ScenarioProducer, group: str, version: int = 4) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        _, error = self._settled(lambda: self.client.ask(request, version), lambda answer: answer.error_code)
        self.note(f"AddOffsetsToTxn v{version}", error)
        return error

    def commit_in_transaction(
        self,
        producer: ScenarioProducer,
        group: str,
        offset: int,
        *,
        topic: str | None = None,
        partition: int = 0,
        metadata: str = "m",
        epoch: int | None = None,
        version: int | None = None,
    ) -> ErrorCode:
        data = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch if epoch is None else epoch,
            topics=(TxnOffsetCommitRequestTopic(name=topic or self.topic, partitions=(data,)),),
        )
        version = self.txn_offset_version if version is None else version
        _, error = self._settled(
            lambda: self.client.ask(request, version), lambda answer: answer.topics[0].partitions[0].error_code
        )
        self.note(f"TxnOffsetCommit v{version}", error)
        return error

    def end(
        self,
        producer: ScenarioProducer,
        *,
        commit: bool,
        epoch: int | None = None,
        producer_id: int | None = None,
        version: int | None = None,
        adopt: bool = True,
    ) -> ErrorCode:
        used_epoch = producer.epoch if epoch is None else epoch
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id if producer_id is None else producer_id,
            producer_epoch=used_epoch,
            committed=commit,
        )
        version = self.end_version if version is None else version
        answer, error = self._settled(lambda: self.client.ask(request, version), lambda answer: answer.error_code)
        what = f"EndTxn v{version} {'commit' if commit else 'abort'} in epoch {self._epoch(producer, used_epoch)}"
        self.note(what, error)
        if not error and version >= 5:
            self.note("epoch handed out", self._epoch(producer, answer.producer_epoch))
            self.note("same producer id", answer.producer_id == producer.producer_id)
            if adopt:
                producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
                producer.sequences = dict.fromkeys(range(8), 0)
        return error

    # OFFSETS

    def commit_offset(
        self, group: str, offset: int, *, topic: str | None = None, metadata: str = "m", partition: int = 0, generation: int = -1
    ) -> ErrorCode:
        data = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=metadata)
        topics = (OffsetCommitRequestTopic(name=topic or self.topic, partitions=(data,)),)
        request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=generation, topics=topics)
        _, error = self._settled(lambda: self.client.ask(request, 9), lambda answer: answer.topics[0].partitions[0].error_code)
        self.note("OffsetCommit v9", error)
        return error

    def fetch_offsets(self, group: str, *, has_topics: bool, require_stable: bool = False, partition: int = 0) -> object:
        topics = (OffsetFetchRequestTopic(name=self.topic, partition_indexes=(partition,)),) if has_topics else None
        request = OffsetFetchRequest.for_groups({group: topics}, require_stable=require_stable)
        for version in (7, 9):
            answer, error = self._settled(
                lambda version=version: self.client.ask(request, version).answer_for(group, version),
                lambda answer: answer.error_code,
            )
            learnt = [
                (str(Errors.for_code(part.error_code)), part.partition_index, part.committed_offset, part.metadata)
                for each in answer.topics
                for part in each.partitions
            ]
            what = f"OffsetFetch v{version} {'named' if has_topics else 'all'}{' stable' if require_stable else ''}"
            self.note(what, (str(error), learnt))
        return learnt

    # LOOKING ON

    def describe(self, producer: ScenarioProducer) -> None:
        answer = self.client.ask(DescribeTransactionsRequest(transactional_ids=(producer.transactional_id,)), 0)
        (state,) = answer.transaction_states
        self.note("state", (str(Errors.for_code(state.error_code)), state.transaction_state, state.transaction_timeout_ms))
        self.note("state's epoch", self._epoch(producer, state.producer_epoch) if producer.epoch >= 0 else state.producer_epoch)
        topics = [("topic" if each.topic == self.topic else each.topic, sorted(each.partitions)) for each in state.topics]
        self.note("state's partitions", sorted(topics))
        self.note("has begun", state.transaction_start_time_ms > 0)

    def await_end(self, producer: ScenarioProducer) -> None:
        """Until all markers are written."""
        request = DescribeTransactionsRequest(transactional_ids=(producer.transactional_id,))
        deadline = time.monotonic() + PATIENCE_S
        while not self.client.ask(request, 0).transaction_states[0].transaction_state.startswith("Complete"):
            assert time.monotonic() < deadline, "the transaction does not end"
            time.sleep(PAUSE_S)

    def list_transactions(
        self, *producers: ScenarioProducer, states: tuple[str, ...] = (), pattern: str | None = None, duration: int = -1
    ) -> None:
        request = ListTransactionsRequest(state_filters=states, transactional_id_pattern=pattern, duration_filter=duration)
        version = 2 if pattern is not None else 1
        answer = self.client.ask(request, version)
        mine = [producer.transactional_id for producer in producers]
        state_by_id = {state.transactional_id: state.transaction_state for state in answer.transaction_states}
        learnt = [state_by_id.get(name, "-").replace("Prepare", "Complete") for name in mine]
        self.note(f"ListTransactions v{version} {states} {duration}", (learnt, answer.unknown_state_filters))


# SCENARIOS


def a_task_leaves_its_transaction_to_the_driver(steps: Steps) -> None:
    group = next(steps.names)
    steps.find(KeyType.TRANSACTION, next(steps.names))
    steps.find(KeyType.GROUP, group)
    producer = steps.new_producer()
    steps.describe(producer)
    first_epoch = producer.epoch
    if not steps.v2:
        steps.add_partitions(producer, 0, 1)
        steps.add_offsets(producer, group)
    for partition in (0, 1, 0):
        steps.produce(producer, partition)
    steps.commit_in_transaction(producer, group, 7)
    steps.describe(producer)
    steps.fetch_offsets(group, has_topics=False)
    steps.fetch_offsets(group, has_topics=False, require_stable=True)
    steps.fetch_offsets(group, has_topics=True)
    steps.fetch_offsets(group, has_topics=True, require_stable=True)
    steps.fetch_offsets(group, has_topics=True, require_stable=True, partition=5)
    steps.end(producer, commit=True, adopt=False)
    steps.end(producer, commit=True, adopt=False)
    steps.end(producer, commit=False, adopt=False)
    steps.fetch_offsets(group, has_topics=False)
    steps.fetch_offsets(group, has_topics=True, require_stable=True)
    steps.describe(producer)
    steps.list_transactions(producer)
    steps.produce(producer, sequence=2, epoch=first_epoch)
    steps.produce(producer, 3, sequence=0, epoch=first_epoch)
    steps.commit_in_transaction(producer, group, 8, epoch=first_epoch)
    steps.list_transactions(producer)
    steps.init(producer)
    steps.describe(producer)


def one_transaction_follows_another(steps: Steps) -> None:
    producer = steps.new_producer()
    for commit in (True, False, True):
        if not steps.v2:
            steps.add_partitions(producer, 0)
        steps.produce(producer)
        steps.produce(producer)
        steps.end(producer, commit=commit)
    steps.await_end(producer)  # while a marker is missing, the leader still takes what is written with Produce v11
    steps.produce(producer, sequence=5)
    steps.produce(producer, epoch=producer.epoch + 1, sequence=0)


def a_fenced_producer(steps: Steps) -> None:
    group = next(steps.names)
    old = steps.new_producer()
    if not steps.v2:
        steps.add_partitions(old, 0)
    steps.produce(old)
    new = ScenarioProducer(old.transactional_id, old.producer_id, old.epoch, old.first_epoch)
    steps.init(new, settle=False)
    steps.init(new)
    steps.describe(new)
    steps.end(old, commit=True)
    steps.end(old, commit=False)
    steps.produce(old)
    steps.produce(old, 2)
    steps.commit_in_transaction(old, group, 1)
    steps.add_partitions(old, 0)
    steps.add_partitions(old, 0, version=1)
    steps.end(old, commit=True, version=1)
    steps.init(old, expected=(old.producer_id, old.epoch))
    steps.init(old, expected=(old.producer_id, old.epoch), version=3)
    if not steps.v2:
        steps.add_partitions(new, 0)
    steps.produce(new)
    steps.end(new, commit=True)


def a_transaction_past_its_time_out(steps: Steps) -> None:
    producer = steps.new_producer(timeout_ms=1000)
    if not steps.v2:
        steps.add_partitions(producer, 0)
    steps.produce(producer)
    steps.pass_time()
    steps.await_end(producer)
    steps.describe(producer)
    steps.end(producer, commit=True)
    steps.produce(producer)
    steps.produce(producer, 2)
    steps.end(producer, commit=False)
    steps.init(producer, expected=(producer.producer_id, producer.epoch))
    steps.init(producer)


def requests_that_are_refused(steps: Steps) -> None:
    for timeout_ms in (0, -1, 900_001, 900_000):
        steps.init(ScenarioProducer(next(steps.names)), timeout_ms=timeout_ms)
    steps.init(ScenarioProducer(""))
    unknown = ScenarioProducer(next(steps.names), producer_id=123_456_789, epoch=0)
    steps.produce(unknown)
    steps.end(unknown, commit=True)
    steps.add_partitions(unknown, 0)
    steps.describe(unknown)
    producer = steps.new_producer()
    steps.end(producer, commit=True)
    steps.end(producer, commit=False)
    steps.end(producer, commit=True, producer_id=producer.producer_id + 1000)
    steps.end(producer, commit=True, epoch=producer.epoch + 5)
    steps.produce(producer, producer_id=producer.producer_id + 1000)
    steps.produce(producer, epoch=producer.epoch + 5)
    steps.produce(producer, sequence=3) if steps.v2 else None
    steps.produce(producer, names_id=False)
    steps.add_partitions(producer, 0, 99)
    steps.add_partitions(producer, 0)
    steps.produce(producer)
    steps.produce(producer, transactional=False)
    steps.produce(producer, 2, version=11)
    steps.produce(producer, 2, version=10)
    group = next(steps.names)
    steps.commit_in_transaction(producer, group, 1, version=4)
    steps.commit_in_transaction(producer, group, 1, version=3)
    steps.add_offsets(producer, group)
    steps.commit_in_transaction(producer, group, 1, metadata="x" * 5000)
    steps.commit_in_transaction(producer, group, 1, topic="no-such-topic")
    steps.commit_in_transaction(producer, group, 1, partition=99)
    steps.commit_in_transaction(producer, "", 1)
    steps.end(producer, commit=True)
    steps.fetch_offsets(group, has_topics=False)


def plain_offsets(steps: Steps) -> None:
    group = next(steps.names)
    steps.commit_offset(group, 3)
    steps.commit_offset(group, 4, metadata="x" * 4096)
    steps.commit_offset(group, 5, metadata="x" * 4097)
    steps.commit_offset(group, 6, topic="no-such-topic")
    steps.commit_offset(group, 7, partition=99)
    steps.commit_offset(group, 8, generation=1)
    steps.fetch_offsets(group, has_topics=False)
    steps.fetch_offsets(group, has_topics=True, require_stable=True)
    steps.fetch_offsets(next(steps.names), has_topics=False)
    steps.fetch_offsets(next(steps.names), has_topics=True)
    producer = steps.new_producer()
    if not steps.v2:
        steps.add_offsets(producer, group)
    steps.commit_in_transaction(producer, group, 9)
    steps.fetch_offsets(group, has_topics=False, require_stable=True)
    steps.fetch_offsets(group, has_topics=False)
    steps.commit_offset(group, 10)
    steps.end(producer, commit=True)
    steps.fetch_offsets(group, has_topics=False)


def continuing_with_the_same_identity(steps: Steps) -> None:
    producer = steps.new_producer()
    before = (producer.producer_id, producer.epoch)
    steps.init(producer, expected=before)
    steps.init(producer, expected=before)
    steps.init(producer, expected=(before[0], before[1] + 5))
    steps.init(producer, expected=(before[0] + 1000, before[1]))
    steps.init(producer, expected=(before[0], -1))
    steps.init(producer)
    steps.init(producer, expected=before)


def lists(steps: Steps) -> None:
    empty, ongoing, done = (steps.new_producer() for _ in range(3))
    for producer in (ongoing, done):
        if not steps.v2:
            steps.add_partitions(producer, 1)
        steps.produce(producer, 1)
    steps.end(done, commit=False)
    everyone = (empty, ongoing, done)
    steps.list_transactions(*everyone)
    steps.list_transactions(*everyone, states=("Ongoing",))
    steps.list_transactions(*everyone, states=("Empty", "Nonsense"))
    steps.pass_time()
    steps.list_transactions(*everyone, duration=0)
    steps.list_transactions(*everyone, duration=3_600_000)
    steps.list_transactions(*everyone, pattern=empty.transactional_id[:-1] + ".*")
    steps.list_transactions(*everyone, pattern=empty.transactional_id[:-2])
    steps.list_transactions(*everyone, pattern="")
    steps.end(ongoing, commit=True)


def requests_of_version_2_at_any_level(steps: Steps) -> None:
    """At level 0 a coordinator cannot log what they ask for. It is busy with it for ever."""
    empty, writer = steps.new_producer(), steps.new_producer()
    if not steps.end(empty, commit=False, version=5, adopt=False):
        steps.await_end(empty)
    if not steps.produce(writer, version=12):
        steps.end(writer, commit=True, version=5, adopt=False)
        steps.await_end(writer)
    for producer in (empty, writer):
        steps.describe(producer)
        for _ in range(2):
            steps.init(producer, settle=False)


SCENARIOS = (
    a_task_leaves_its_transaction_to_the_driver,
    one_transaction_follows_another,
    a_fenced_producer,
    a_transaction_past_its_time_out,
    requests_that_are_refused,
    plain_offsets,
    continuing_with_the_same_identity,
    lists,
    requests_of_version_2_at_any_level,
)
LEVELS = (0, 1, 2)


def run(scenario: Callable[[Steps], None], client: Client, *, pass_time: Callable[[], None], level: int) -> list[list[Any]]:
    steps = Steps(client, scenario.__name__, pass_time=pass_time, v2=level >= 2)
    scenario(steps)
    return steps.trace


def run_on_kafka(directory: Path, level: int) -> dict[str, list[list[Any]]]:
    """The trace of each scenario, by its name. Blocks for about half a minute."""
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500", "offsets.topic.num.partitions": "50"}
    feature = ("--feature", f"transaction.version={level}")
    with LocalKafka(directory, properties=properties, format_options=feature) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        with RawClient(cluster.bootstrap_servers) as client:
            return {
                scenario.__name__: run(scenario, client, pass_time=lambda: time.sleep(1.1), level=level) for scenario in SCENARIOS
            }


def record() -> None:
    traces = {}
    for level in LEVELS:
        with tempfile.TemporaryDirectory() as directory:
            traces[str(level)] = run_on_kafka(Path(directory), level)
    lines = [
        f'  "{level}": {{\n'
        + ",\n".join(
            f'    "{name}": [\n' + ",\n".join(f"      {json.dumps(step)}" for step in trace) + "\n    ]"
            for name, trace in by_name.items()
        )
        + "\n  }"
        for level, by_name in traces.items()
    ]
    TRACES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
