"""The fake coordinators where recorded traces (tests/golden/test_transaction_traces.py) cannot show them: what a test holds back,
what readers see, several nodes, faults, and the last epoch of a producer id.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource, ResourceType
from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_offsets import (
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
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
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.coordinators import Coordinators
from tests.fakes.fake_broker import DropConnection, FakeBroker, Fault
from tests.fakes.raw_client import DirectClient, RawClient
from tests.fakes.record_encoder import encode_batch
from tests.fakes.transaction_coordinator import LAST_EPOCH, State, internal_partition, offsets_partition

ID = "x"  # kept on node 0


class ManualProducer:
    """One transaction after the other, to be driven by hand."""

    def __init__(self, broker: FakeBroker, transactional_id: str = ID) -> None:
        self.client = DirectClient(broker)
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1
        assert not self.init()

    def init(self) -> ErrorCode:
        answer = self.client.ask(InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=1000), 5)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return Errors.for_code(answer.error_code)

    def send(self, *values: bytes, partition: int = 0, sequence: int = 0, transactional: bool = True) -> ErrorCode:
        batch = encode_batch(
            values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        return produce(self.client, batch, partition, self.transactional_id)

    def commit_offset(self, group: str, offset: int) -> ErrorCode:
        data = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(TxnOffsetCommitRequestTopic(name="t", partitions=(data,)),),
        )
        return Errors.for_code(self.client.ask(request, 5).topics[0].partitions[0].error_code)

    def end(self, *, commit: bool, version: int = 5) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return self.client.ask(request, version)

    def go_on(self, ended: EndTxnResponse) -> None:
        assert not ended.error_code
        self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch


def produce(client: DirectClient, batch: bytes, partition: int = 0, transactional_id: str | None = None) -> ErrorCode:
    data = TopicProduceData(name="t", partition_data=(PartitionProduceData(index=partition, records=[batch]),))
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1, topic_data=(data,))
    return Errors.for_code(client.ask(request, 12).responses[0].partition_responses[0].error_code)


def state_of(broker: FakeBroker, transactional_id: str = ID) -> State:
    return broker.transactions.transactions[transactional_id].state


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(topics={"t": 2})


# READERS


def test_readers_see_a_transaction_once_it_is_committed_and_never_when_aborted(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    producer.send(b"a", b"b")
    producer.send(b"c", partition=1)
    assert broker.values("t") == [b"a", b"b", b"c"]
    assert broker.committed_values("t") == []
    producer.go_on(producer.end(commit=True))
    assert broker.committed_values("t") == [b"a", b"b", b"c"]
    producer.send(b"d")
    producer.go_on(producer.end(commit=False))
    producer.send(b"e")
    producer.go_on(producer.end(commit=True))
    assert broker.committed_values("t", 0) == [b"a", b"b", b"e"]
    assert [record.offset for record in broker.committed_records("t", 0)] == [0, 1, 5]  # a marker takes an offset too


def test_an_open_transaction_holds_back_whatever_follows_it(broker: FakeBroker) -> None:
    first, second = ManualProducer(broker), ManualProducer(broker, "y")
    client = DirectClient(broker)
    assert not produce(client, encode_batch([b"before"]))
    first.send(b"first")
    second.send(b"second")
    assert not produce(client, encode_batch([b"plain"]))
    second.end(commit=True)
    assert broker.committed_values("t") == [b"before"]
    assert broker.last_stable_offset("t", 0) == 1
    first.end(commit=False)
    assert broker.committed_values("t") == [b"before", b"second", b"plain"]
    assert broker.last_stable_offset("t", 0) == 6


def test_markers_can_be_held_back_and_written_one_by_one(broker: FakeBroker) -> None:
    broker.transactions.holds_markers = True
    producer = ManualProducer(broker)
    producer.send(b"a")
    producer.send(b"b", partition=1)
    producer.commit_offset("g", 7)
    ended = producer.end(commit=True)
    assert (ended.error_code, ended.producer_epoch) == (0, 1)
    assert producer.end(commit=True).error_code == Errors.CONCURRENT_TRANSACTIONS.number
    assert producer.init() is Errors.CONCURRENT_TRANSACTIONS
    assert (state_of(broker), broker.committed_values("t")) == (State.PREPARE_COMMIT, [])
    broker.transactions.write_markers(limit=1)  # of the group's offsets: __consumer_offsets sorts before t
    assert [committed.offset for committed in broker.offsets.committed("g").values()] == [7]
    assert broker.committed_values("t") == []
    broker.transactions.write_markers(limit=1)
    assert broker.committed_values("t") == [b"a"]
    assert state_of(broker) is State.PREPARE_COMMIT
    broker.transactions.write_markers()
    assert broker.committed_values("t") == [b"a", b"b"]
    assert state_of(broker) is State.COMPLETE_COMMIT
    again = producer.end(commit=True)
    assert (again.error_code, again.producer_epoch) == (0, 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("version", "error_of_last_epoch"), [(4, Errors.PRODUCER_FENCED), (5, Errors.CONCURRENT_TRANSACTIONS)])
def test_until_all_markers_are_written_every_end_is_told_to_wait(
    broker: FakeBroker, commit: bool, version: int, error_of_last_epoch: ErrorCode
) -> None:
    """Whichever decision it has. An abort at the epoch of the commit, repeated until it is complete, then makes it an abort."""
    broker.transactions.holds_markers = True
    producer = ManualProducer(broker)
    producer.send(b"a")
    ended = producer.end(commit=True)
    assert producer.end(commit=commit, version=version).error_code == error_of_last_epoch.number
    producer.go_on(ended)
    assert producer.end(commit=commit, version=version).error_code == Errors.CONCURRENT_TRANSACTIONS.number
    assert state_of(broker) is State.PREPARE_COMMIT


def test_the_next_transaction_waits_for_the_markers_of_the_last(broker: FakeBroker) -> None:
    broker.transactions.holds_markers = True
    producer = ManualProducer(broker)
    producer.send(b"a")
    producer.go_on(producer.end(commit=True))
    assert producer.send(b"b", partition=1) is Errors.CONCURRENT_TRANSACTIONS
    assert producer.commit_offset("g", 1) is Errors.CONCURRENT_TRANSACTIONS
    broker.transactions.write_markers(ID)
    assert not producer.send(b"b", partition=1)
    assert not producer.commit_offset("g", 1)


def test_a_transaction_times_out_only_when_a_test_says_so(broker: FakeBroker) -> None:
    producer, other = ManualProducer(broker), ManualProducer(broker, "y")
    producer.send(b"a")
    broker.clock.advance(1000)
    other.send(b"b")
    assert broker.transactions.abort_timed_out() == []
    broker.clock.advance(1)
    assert broker.transactions.abort_timed_out() == [ID]
    assert (state_of(broker), state_of(broker, "y")) == (State.COMPLETE_ABORT, State.ONGOING)
    assert producer.end(commit=True).error_code == Errors.INVALID_TXN_STATE.number


def test_a_repeated_batch_is_recognised_within_its_transaction(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    assert not producer.send(b"a")
    assert not producer.send(b"a")
    assert not producer.send(b"b", sequence=1)
    producer.end(commit=True)
    assert broker.committed_values("t") == [b"a", b"b"]


def test_the_last_epoch_of_a_producer_id_is_followed_by_another_id(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    broker.transactions.transactions[ID].epoch = producer.epoch = LAST_EPOCH
    producer.send(b"a")
    old_id = producer.producer_id
    ended = producer.end(commit=True)
    assert (ended.producer_id != old_id, ended.producer_epoch) == (True, 0)
    again = producer.end(commit=True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, ended.producer_id, 0)
    producer.go_on(ended)
    producer.send(b"b")
    producer.end(commit=True)
    assert broker.committed_values("t") == [b"a", b"b"]


def test_the_producer_id_that_follows_waits_for_the_markers_of_the_old_one(broker: FakeBroker) -> None:
    broker.transactions.holds_markers = True
    producer = ManualProducer(broker)
    broker.transactions.transactions[ID].epoch = producer.epoch = LAST_EPOCH
    producer.send(b"a")
    producer.go_on(producer.end(commit=True))
    assert producer.send(b"b") is Errors.CONCURRENT_TRANSACTIONS
    assert producer.init() is Errors.CONCURRENT_TRANSACTIONS
    broker.transactions.write_markers()
    assert not producer.send(b"b")


def test_a_coordinator_of_kafka_4_0_fences_with_two_epochs(broker: FakeBroker) -> None:
    broker.transactions.fences_twice = True
    producer = ManualProducer(broker)
    producer.send(b"a")
    broker.clock.advance(1001)
    broker.transactions.abort_timed_out()
    assert producer.end(commit=False).error_code == Errors.PRODUCER_FENCED.number
    assert broker.transactions.transactions[ID].epoch == producer.epoch + 2


def test_a_new_start_in_the_last_epoch_gives_another_id(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    old_id = producer.producer_id
    broker.transactions.transactions[ID].epoch = LAST_EPOCH
    assert not producer.init()
    assert (producer.producer_id != old_id, producer.epoch) == (True, 0)


# SKIPPED MARKERS


def end_offset(broker: FakeBroker, isolation_level: IsolationLevel) -> int:
    topic = ListOffsetsTopic(name="t", partitions=(ListOffsetsPartition(partition_index=0),))
    answer = DirectClient(broker).ask(ListOffsetsRequest(isolation_level=isolation_level, topics=(topic,)), 6)
    return answer.topics[0].partitions[0].offset


def described_producers(broker: FakeBroker) -> list[tuple[int, int, int, int]]:
    """Producer id, epoch, last sequence and start of the open transaction."""
    request = DescribeProducersRequest(topics=(TopicRequest(name="t", partition_indexes=(0, 9)),))
    known_partition, unknown_partition = DirectClient(broker).ask(request, 0).topics[0].partitions
    assert unknown_partition.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number
    return [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
        for each in known_partition.active_producers
    ]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("next_commit", [True, False])
def test_where_a_marker_was_skipped_the_producers_next_one_decides(broker: FakeBroker, commit: bool, next_commit: bool) -> None:
    """KAFKA-20734: aborted rows are seen if it commits, committed ones are lost if it aborts."""
    producer, other = ManualProducer(broker), ManualProducer(broker, "other")
    producer.send(b"a", b"b")
    producer.send(b"c", partition=1)
    broker.transactions.skipped = {TopicPartition("t", 0)}
    producer.go_on(producer.end(commit=commit))
    broker.transactions.skipped = set()
    assert state_of(broker) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert described_producers(broker) == [(producer.producer_id, 0, 1, 0)]
    assert (end_offset(broker, IsolationLevel.READ_COMMITTED), end_offset(broker, IsolationLevel.READ_UNCOMMITTED)) == (0, 2)
    other.send(b"other")
    other.go_on(other.end(commit=True))
    assert broker.committed_values("t") == ([b"c"] if commit else [])
    assert not producer.send(b"d")
    producer.go_on(producer.end(commit=next_commit))
    assert broker.committed_values("t", 0) == ([b"a", b"b", b"other", b"d"] if next_commit else [b"other"])
    assert end_offset(broker, IsolationLevel.READ_COMMITTED) == end_offset(broker, IsolationLevel.READ_UNCOMMITTED) == 6
    assert {start for *_, start in described_producers(broker)} == {-1}


def test_a_transaction_that_times_out_is_skipped_too(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    producer.send(b"a")
    broker.transactions.skipped = {TopicPartition("t", 0)}
    broker.clock.advance(2000)
    assert broker.transactions.abort_timed_out() == [ID]
    assert state_of(broker) is State.COMPLETE_ABORT
    assert end_offset(broker, IsolationLevel.READ_COMMITTED) == 0


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_whose_marker_was_skipped_are_pending_until_the_next_one(broker: FakeBroker, commit: bool) -> None:
    producer = ManualProducer(broker)
    producer.commit_offset("g", 5)
    broker.transactions.skipped = {offsets_partition("g")}
    producer.go_on(producer.end(commit=True))
    broker.transactions.skipped = set()

    def fetch() -> tuple[int, int]:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
        request = OffsetFetchRequest.for_groups({"g": (topic,)}, require_stable=True)
        (partition,) = DirectClient(broker).ask(request, 9).groups[0].topics[0].partitions
        return partition.error_code, partition.committed_offset

    assert fetch() == (Errors.UNSTABLE_OFFSET_COMMIT.number, -1)
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
    )
    assert not DirectClient(broker).ask(request, 4).error_code
    producer.go_on(producer.end(commit=commit))
    assert fetch() == (0, 5 if commit else -1)


# SEVERAL NODES


def test_groups_and_ids_are_spread_as_kafka_spreads_them() -> None:
    # Math.abs of Java's hashCode, modulo 50; that of the last key is Integer.MIN_VALUE.
    keys = ("", "x", "my-transactional-id", "Grüße-日本", "polygenelubricants")
    assert [internal_partition(key) for key in keys] == [0, 20, 46, 3, 0]


def test_only_its_coordinator_answers_for_an_id_and_a_group() -> None:
    broker = FakeBroker(nodes=2, topics={"t": 1})
    for node in broker.nodes.values():
        node.is_running = True
    clients = [DirectClient(broker, node_id) for node_id in (0, 1)]
    response = clients[1].ask(FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, ["x", "y"]), 5)
    assert [(coordinator.key, coordinator.node_id) for coordinator in response.coordinators] == [("x", 0), ("y", 1)]
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1)
    assert clients[1].ask(init, 5).error_code == Errors.NOT_COORDINATOR.number
    assert clients[0].ask(init, 5).error_code == 0
    listings = [client.ask(ListTransactionsRequest(), 1).transaction_states for client in clients]
    assert [len(each) for each in listings] == [1, 0]
    broker.move_coordinator(KeyType.TRANSACTION, "x", 1)
    described = [client.ask(DescribeTransactionsRequest(transactional_ids=("x",)), 0) for client in clients]
    assert [each.transaction_states[0].error_code for each in described] == [Errors.NOT_COORDINATOR.number, 0]
    answer = clients[1].ask(init, 5)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    fetched = [client.ask(OffsetFetchRequest.for_groups({"x": None}), 9).answer_for("x", 9) for client in clients]
    assert [group and group.error_code for group in fetched] == [0, Errors.NOT_COORDINATOR.number]


def test_a_coordinator_that_is_down_cannot_be_found() -> None:
    broker = FakeBroker(topics={"t": 1})
    for version in (3, 4):
        answer = DirectClient(broker).ask(FindCoordinatorRequest.for_keys(KeyType.GROUP, ["g"]), version).answer_for("g", version)
        assert answer is not None
        assert answer.error_code == Errors.COORDINATOR_NOT_AVAILABLE.number


# FEATURES, CONFIGS, OFFSETS


@pytest.mark.parametrize(("level", "finalized"), [(0, {}), (1, {"transaction.version": 1}), (2, {"transaction.version": 2})])
def test_the_level_of_transactions_is_a_finalized_feature(level: int, finalized: dict[str, int]) -> None:
    broker = FakeBroker(transaction_version=level)
    answer = DirectClient(broker).ask(ApiVersionsRequest(), 4)
    assert {feature.name: feature.max_version_level for feature in answer.finalized_features} == finalized
    broker.set_transaction_version(2)
    later = DirectClient(broker).ask(ApiVersionsRequest(), 4)
    assert later.finalized_features_epoch == answer.finalized_features_epoch + 1
    assert [feature.max_version_level for feature in later.finalized_features] == [2]


def test_versions_of_level_2_below_it_are_a_violation() -> None:
    broker = FakeBroker(topics={"t": 1}, transaction_version=1)
    producer = ManualProducer(broker)
    producer.send(b"a")
    producer.commit_offset("g", 1)
    producer.end(commit=True)
    assert broker.violations == [
        "Produce v12 in a transaction although transaction.version is 1",
        "TxnOffsetCommit v5 although transaction.version is 1",
        "EndTxn v5 although transaction.version is 1",
    ]


def test_a_broker_describes_its_own_limits(broker: FakeBroker) -> None:
    broker.transactions.max_timeout_ms = 5000

    def ask(node: str, keys: Sequence[str] | None) -> tuple[int, dict[str, str | None]]:
        resource = DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name=node, configuration_keys=None if keys is None else tuple(keys)
        )
        (result,) = DirectClient(broker).ask(DescribeConfigsRequest(resources=(resource,)), 4).results
        return result.error_code, {config.name: config.value for config in result.configs}

    assert ask("0", ["transaction.max.timeout.ms", "nonsense"]) == (0, {"transaction.max.timeout.ms": "5000"})
    own = {"auto.create.topics.enable": "false", "transaction.max.timeout.ms": "5000", "offset.metadata.max.bytes": "4096"}
    assert ask("0", None) == (0, own)
    assert ask("1", None) == (Errors.INVALID_REQUEST.number, {})


def test_a_leader_describes_its_producers(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    producer.send(b"a", b"b")
    assert described_producers(broker) == [(producer.producer_id, 0, 1, 0)]
    producer.end(commit=True)
    assert described_producers(broker) == [(producer.producer_id, 1, -1, -1)]


def test_offsets_go_with_their_topic(broker: FakeBroker) -> None:
    data = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(group_id="g", topics=(OffsetCommitRequestTopic(name="t", partitions=(data,)),))
    assert DirectClient(broker).ask(request, 9).topics[0].partitions[0].error_code == 0
    assert list(broker.offsets.committed("g")) == [TopicPartition("t", 0)]
    broker.delete_topic("t")
    assert broker.offsets.committed("g") == {}


# FAULTS


def test_errors_take_the_place_of_what_is_done_or_only_of_the_answer(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    producer.send(b"a")
    broker.fail_next(ApiKey.END_TXN, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    assert producer.end(commit=True).error_code == Errors.COORDINATOR_LOAD_IN_PROGRESS.number
    assert state_of(broker) is State.ONGOING
    broker.fail_next(ApiKey.END_TXN, Errors.REQUEST_TIMED_OUT, after_append=True)
    assert producer.end(commit=True).error_code == Errors.REQUEST_TIMED_OUT.number
    assert state_of(broker) is State.COMPLETE_COMMIT


def test_an_answer_can_get_lost_before_or_after_the_transaction_ends(broker: FakeBroker) -> None:
    producer = ManualProducer(broker)
    producer.send(b"a")
    for after, state in ((False, State.ONGOING), (True, State.COMPLETE_COMMIT)):
        broker.drop_next(ApiKey.END_TXN, after_append=after)
        with pytest.raises(DropConnection):
            producer.end(commit=True)
        assert state_of(broker) is state


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (FindCoordinatorRequest.for_keys(KeyType.GROUP, ["g"]), 3),
        (FindCoordinatorRequest.for_keys(KeyType.GROUP, ["g"]), 5),
        (OffsetFetchRequest.for_groups({"g": None}), 7),
        (OffsetFetchRequest.for_groups({"g": None}), 9),
        (DescribeTransactionsRequest(transactional_ids=("x",)), 0),
        (ListTransactionsRequest(), 2),
    ],
)
def test_every_request_can_fail_and_be_throttled(broker: FakeBroker, request_: object, version: int) -> None:
    request: FindCoordinatorRequest = request_
    broker.inject(Fault(request.API_KEY, error=Errors.COORDINATOR_NOT_AVAILABLE, throttle_ms=9))
    answer = DirectClient(broker).ask(request, version)
    assert answer.throttle_time_ms == 9
    assert f"error_code={Errors.COORDINATOR_NOT_AVAILABLE.number}" in repr(answer)


# OTHER HOSTS OF THE COORDINATORS


def test_transactions_are_served_over_sockets() -> None:
    with FakeBroker(topics={"t": 1}) as broker, RawClient(broker.bootstrap_servers) as client:
        coordinator = client.ask(FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, [ID]), 5).answer_for(ID, 5)
        assert coordinator is not None
        assert f"{coordinator.host}:{coordinator.port}" == broker.bootstrap_servers
        answer = client.ask(InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1), 5)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)


def test_a_fake_without_sockets_keeps_the_logs_and_asks_before_it_writes() -> None:
    markers: list[tuple[TopicPartition, int, int, bool]] = []
    coordinators = Coordinators(ManualClock(), [1, 2], write_marker=lambda *marker: markers.append(marker))
    node_id = coordinators.node_of(KeyType.TRANSACTION, ID)
    init = coordinators.answer(InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1), 5, node_id)
    assert isinstance(init, InitProducerIdResponse)
    partition = TopicPartition("t", 3)
    assert not coordinators.batch_error(ID, 12, partition, init.producer_id, 0)
    assert coordinators.batch_error(ID, 12, partition, init.producer_id, 1) is Errors.INVALID_PRODUCER_EPOCH
    end = EndTxnRequest(transactional_id=ID, producer_id=init.producer_id, producer_epoch=0, committed=True)
    coordinators.answer(end, 5, node_id)
    assert markers == [(partition, init.producer_id, 1, True)]
