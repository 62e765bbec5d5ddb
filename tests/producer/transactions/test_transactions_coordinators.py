"""Requests to coordinators: found and found again, retried, and what each error of each of them does to the producer.

test_transaction_errors.py has the table of errors; here each effect is seen where a caller sees it.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    AuthorizationError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod, TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.producer.harness import TOPIC, partition_answer, produce_response, tp
from tests.producer.transactions.transaction_stage import GROUP, ID, OFFSETS, TransactionStage
from tests.producer.transactions.transactional_brokers import COORDINATOR_APIS

TWO = {tp(0): OffsetAndMetadata(1), tp(1): OffsetAndMetadata(2)}


@pytest.fixture
def fresh(version: int) -> TransactionStage:
    """Before init_transactions()."""
    return TransactionStage(version, initialized=False)


@pytest.fixture
def stage(version: int) -> TransactionStage:
    """Within a transaction."""
    made = TransactionStage(version)
    made.begin()
    return made


def held(stage: TransactionStage, api: ApiKey) -> ClientRequest:
    """The request in flight that waits for an answer."""
    stage.run_until(lambda: any(api == request.message.API_KEY for request in stage.in_flight))
    (waiting_request,) = [request for request in stage.in_flight if api == request.message.API_KEY]
    return waiting_request


# COORDINATORS ARE FOUND


def test_init_finds_the_coordinator_and_takes_the_identity_from_it(fresh: TransactionStage) -> None:
    fresh.call(CalledMethod.INIT)
    lookup_request, init_request = fresh.client.sent_requests
    assert isinstance(lookup_request.message, FindCoordinatorRequest)
    assert (lookup_request.message.key_type, lookup_request.message.coordinator_keys) == (KeyType.TRANSACTION, (ID,))
    assert init_request.node_id == fresh.cluster.node_of(KeyType.TRANSACTION, ID)
    assert fresh.manager.identity == (1000, 0)


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID], ids=lambda api: api.name)
def test_a_connection_that_is_lost_with_a_request_brings_it_again(fresh: TransactionStage, api: ApiKey) -> None:
    fresh.holds = {api}
    init = fresh.post(CalledMethod.INIT)
    request = held(fresh, api)
    fresh.disconnect(request.node_id)
    assert not init.is_done
    fresh.holds.clear()
    assert fresh.settle(init) is None
    assert len(fresh.requests_of(api)) == 2
    assert len(fresh.requests_of(ApiKey.FIND_COORDINATOR)) == 2


def test_a_coordinator_that_cannot_be_reached_is_looked_for_again(fresh: TransactionStage) -> None:
    coordinator = fresh.cluster.node_of(KeyType.TRANSACTION, ID)
    fresh.client.set_unreachable(coordinator, 300)
    init = fresh.post(CalledMethod.INIT)
    fresh.run(5)
    assert not init.is_done
    assert fresh.settle(init) is None
    assert len(fresh.requests_of(ApiKey.FIND_COORDINATOR)) > 1
    assert len(fresh.requests_of(ApiKey.INIT_PRODUCER_ID)) == 1


def test_a_node_that_says_it_is_not_the_coordinator_is_left_for_the_one_that_is(stage: TransactionStage) -> None:
    stage.write(b"a")
    stage.cluster.move(KeyType.TRANSACTION, ID, 4)
    stage.call(CalledMethod.COMMIT)
    ends = stage.requests_of(ApiKey.END_TXN)
    assert [request.node_id for request in ends][-1] == 4
    assert len(ends) == 2


def test_a_coordinator_is_looked_for_in_a_transaction_that_must_be_aborted_too() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    stage.send(b"a")
    request = held(stage, ApiKey.ADD_PARTITIONS_TO_TXN)
    stage.manager.become_abortable(KafkaError("refused"))
    stage.cluster.move(KeyType.TRANSACTION, ID, 4)
    stage.holds.clear()
    stage.answer(request)
    stage.run(3)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    stage.call(CalledMethod.ABORT)
    stage.begin()
    stage.write(b"b")
    assert stage.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)[-1].node_id == 4


def test_a_coordinator_that_is_not_available_yet_is_waited_for(fresh: TransactionStage) -> None:
    fresh.fail_next(ApiKey.FIND_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, times=3)
    started_ms = fresh.now_ms
    fresh.call(CalledMethod.INIT)
    assert fresh.now_ms - started_ms >= 3 * 80
    assert len(fresh.requests_of(ApiKey.FIND_COORDINATOR)) == 4


def test_a_coordinator_that_becomes_unknown_in_the_middle_is_no_fatal_error(stage: TransactionStage) -> None:
    """The coordinator loses its connection, and nobody knows it for a while."""
    stage.write(b"a")
    stage.client.disconnect(stage.cluster.node_of(KeyType.TRANSACTION, ID), stage.now_ms)
    stage.fail_next(ApiKey.END_TXN, Errors.NOT_COORDINATOR)
    stage.fail_next(ApiKey.FIND_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, times=2)
    stage.call(CalledMethod.COMMIT)
    assert stage.ended == ["committed", "committed"]


def test_a_throttled_coordinator_is_asked_when_its_time_is_over(fresh: TransactionStage) -> None:
    for node in range(5):
        fresh.client.throttle(node, 500)
    init = fresh.post(CalledMethod.INIT)
    fresh.run(3)
    assert fresh.client.sent_requests == []
    assert 0 < fresh.client.poll_timeouts_ms[-1] <= 500
    assert fresh.settle(init) is None


def test_a_throttled_coordinator_of_partitions_delays_nothing_but_them() -> None:
    """Neither does the Sender spin meanwhile."""
    stage = TransactionStage(1, leaders={TOPIC: (0, 0)})
    stage.begin()
    stage.write(b"a")
    coordinator = stage.cluster.node_of(KeyType.TRANSACTION, ID)
    stage.client.throttle(coordinator, 500)
    waiting = stage.send(b"b", partition=1)
    stage.write(b"c")
    assert not waiting.done()
    assert stage.client.poll_timeouts_ms[-1] > 0
    stage.clock.advance(500)
    stage.run(3)
    stage.acknowledge()
    assert waiting.done()


# ERRORS THAT PASS


@pytest.mark.parametrize(
    "error",
    [
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.REQUEST_TIMED_OUT,
        Errors.COORDINATOR_LOAD_IN_PROGRESS,
        Errors.CONCURRENT_TRANSACTIONS,
        Errors.COORDINATOR_NOT_AVAILABLE,
        Errors.NOT_COORDINATOR,
        Errors.NETWORK_EXCEPTION,
    ],
    ids=str,
)
def test_every_request_is_retried_after_an_error_that_passes(version: int, error: ErrorCode) -> None:
    stage = TransactionStage(version, initialized=False)
    for api in COORDINATOR_APIS:
        stage.fail_next(api, error, times=2)
    stage.call(CalledMethod.INIT)
    stage.begin()
    stage.append(b"a")
    for _ in range(100):
        stage.run()
        stage.clock.advance(10)
    stage.acknowledge_all()
    assert stage.settle(stage.post_offsets()) is None
    stage.call(CalledMethod.COMMIT)
    assert stage.ended == ["committed"] * 3
    assert len(stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)) == 3


def test_retries_back_off(stage: TransactionStage) -> None:
    stage.write(b"a")
    stage.fail_next(ApiKey.END_TXN, Errors.COORDINATOR_LOAD_IN_PROGRESS, times=5)
    started_ms = stage.now_ms
    stage.call(CalledMethod.COMMIT)
    assert 5 * 80 <= stage.now_ms - started_ms <= 5 * 130


def test_a_group_coordinator_that_is_away_delays_offsets_without_many_requests(stage: TransactionStage) -> None:
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.COORDINATOR_NOT_AVAILABLE, times=4)
    started_ms = stage.now_ms
    assert stage.settle(stage.post_offsets()) is None
    assert stage.now_ms - started_ms >= 4 * 80
    assert len(stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)) == 5


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(stage: TransactionStage) -> None:
    stage.write(b"a")
    stage.holds = {ApiKey.END_TXN}
    commit = stage.post(CalledMethod.COMMIT)
    stage.clock.advance(stage.config.request_timeout_ms + 1)
    stage.run()
    assert "connection to node" in stage.manager.delay_reason(commit)
    stage.holds.clear()
    assert stage.settle(commit) is None
    assert stage.ended == ["committed", "committed"]


# ERRORS THAT DO NOT


def add_partition(stage: TransactionStage) -> TransactionalCall:
    """A row for a new partition, and the commit that waits for it."""
    stage.append(b"a")
    return stage.post(CalledMethod.COMMIT)


def end(stage: TransactionStage) -> TransactionalCall:
    stage.write(b"a")
    return stage.post(CalledMethod.COMMIT)


ASKING = {
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partition,
    ApiKey.ADD_OFFSETS_TO_TXN: TransactionStage.post_offsets,
    ApiKey.TXN_OFFSET_COMMIT: TransactionStage.post_offsets,
    ApiKey.END_TXN: end,
}
CASES = [
    (api, error, kind)
    for kind, error, apis in [
        (ProducerFencedError, Errors.PRODUCER_FENCED, list(ASKING)),
        (ProducerFencedError, Errors.INVALID_PRODUCER_EPOCH, list(ASKING)),
        (FatalProducerError, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, list(ASKING)),
        (FatalProducerError, Errors.INVALID_TXN_STATE, list(ASKING)),
        (FatalProducerError, Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, [ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.TRANSACTION_ABORTABLE, list(ASKING)),
        (AbortableTransactionError, Errors.TOPIC_AUTHORIZATION_FAILED, [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.OPERATION_NOT_ATTEMPTED, [ApiKey.ADD_PARTITIONS_TO_TXN]),
        (AbortableTransactionError, Errors.UNKNOWN_SERVER_ERROR, [ApiKey.ADD_PARTITIONS_TO_TXN]),
        (AbortableTransactionError, Errors.GROUP_AUTHORIZATION_FAILED, [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.FENCED_INSTANCE_ID, [ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.UNKNOWN_MEMBER_ID, [ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.ILLEGAL_GENERATION, [ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.GROUP_ID_NOT_FOUND, [ApiKey.TXN_OFFSET_COMMIT]),
        (AbortableTransactionError, Errors.STALE_MEMBER_EPOCH, [ApiKey.TXN_OFFSET_COMMIT]),
        (FatalProducerError, Errors.UNKNOWN_SERVER_ERROR, [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN]),
    ]
    for api in apis
]


@pytest.mark.parametrize(("api", "error", "kind"), CASES, ids=lambda part: getattr(part, "name", getattr(part, "__name__", "")))
def test_an_error_that_does_not_pass_is_named_and_is_abortable_or_fatal(
    version: int, api: ApiKey, error: ErrorCode, kind: type[KafkaError]
) -> None:
    stage = TransactionStage(1 if api in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN) else version)
    stage.begin()
    stage.fail_next(api, error)
    call_error = stage.settle(ASKING[api](stage))
    assert type(call_error) is kind
    assert "another producer" in str(call_error) if kind is ProducerFencedError else call_error.condition == f"KAFKA_{error.name}"
    assert len(stage.requests_of(api)) == 1  # nothing is tried again
    again = stage.settle(stage.post(CalledMethod.COMMIT))
    assert type(again) is kind
    if kind is AbortableTransactionError:
        stage.call(CalledMethod.ABORT)
        stage.begin()
        stage.write(b"next")
        stage.call(CalledMethod.COMMIT)
        assert stage.ended[-1] == "committed"
    else:
        for call in CalledMethod:
            assert type(stage.settle(stage.post(call, OFFSETS, GROUP))) is kind
        before = len(stage.client.sent_requests)
        stage.run(20)
        assert len(stage.client.sent_requests) == before


@pytest.mark.parametrize("error", [Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH], ids=str)
def test_a_producer_that_is_fenced_at_init_says_so(fresh: TransactionStage, error: ErrorCode) -> None:
    fresh.fail_next(ApiKey.INIT_PRODUCER_ID, error)
    assert isinstance(fresh.settle(fresh.post(CalledMethod.INIT)), ProducerFencedError)
    for call in CalledMethod:
        assert isinstance(fresh.settle(fresh.post(call, OFFSETS, GROUP)), ProducerFencedError)


def test_rows_of_a_producer_that_is_fenced_fail_and_are_not_sent_again() -> None:
    stage = TransactionStage(1)
    stage.begin()
    delivery = stage.append(b"a")
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.PRODUCER_FENCED)
    stage.run(5)
    assert isinstance(delivery.error, ProducerFencedError)
    assert stage.sent_batches == []


def test_a_leader_that_says_another_producer_has_taken_over_is_understood(stage: TransactionStage) -> None:
    stage.append(b"a")
    stage.run_until(lambda: bool(stage.produced()))
    stage.client.respond(produce_response(partition_answer(0, Errors.PRODUCER_FENCED)), request=stage.produced()[0])
    stage.run()
    error = stage.settle(stage.post(CalledMethod.COMMIT))
    assert isinstance(error, ProducerFencedError)
    assert f"another producer with transactional id '{ID}'" in str(error)
    assert "transaction.timeout.ms=60000" in str(error)


@pytest.mark.parametrize("error", [Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.CLUSTER_AUTHORIZATION_FAILED], ids=str)
def test_a_denied_init_may_be_repeated(fresh: TransactionStage, error: ErrorCode) -> None:
    fresh.fail_next(ApiKey.INIT_PRODUCER_ID, error)
    assert isinstance(fresh.settle(fresh.post(CalledMethod.INIT)), AuthorizationError)
    fresh.call(CalledMethod.INIT)
    fresh.begin()
    fresh.write(b"a")
    fresh.call(CalledMethod.COMMIT)


@pytest.mark.parametrize("api", [ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR], ids=lambda api: api.name)
def test_an_init_with_an_abortable_error_ends_the_producer(fresh: TransactionStage, api: ApiKey) -> None:
    """The error was a defect of ours: KAFKA_INTERNAL_ERROR."""
    fresh.fail_next(api, Errors.TRANSACTION_ABORTABLE)
    error = fresh.settle(fresh.post(CalledMethod.INIT))
    assert isinstance(error, FatalProducerError)
    assert error.condition == "KAFKA_TRANSACTION_ABORTABLE"


@pytest.mark.parametrize("identity", [(-1, 0), (7, -1)], ids=["no id", "no epoch"])
def test_an_init_that_is_answered_without_an_identity_fails(fresh: TransactionStage, identity: tuple[int, int]) -> None:
    """The init succeeded, and rows waited for delivery.timeout.ms."""
    fresh.holds = {ApiKey.INIT_PRODUCER_ID}
    init = fresh.post(CalledMethod.INIT)
    fresh.run_until(lambda: bool(fresh.requests_of(ApiKey.INIT_PRODUCER_ID)))
    answer = InitProducerIdResponse(producer_id=identity[0], producer_epoch=identity[1])
    fresh.client.respond(answer, request=fresh.requests_of(ApiKey.INIT_PRODUCER_ID)[0])
    error = fresh.settle(init)
    assert isinstance(error, FatalProducerError)
    assert "no valid producer id" in str(error)


def test_an_epoch_with_an_abortable_error_ends_the_producer_after_its_transaction() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    stage.client.respond(produce_response(partition_answer(0, Errors.INVALID_RECORD)), request=stage.produced()[0])
    stage.run()
    stage.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTION_ABORTABLE)
    stage.call(CalledMethod.ABORT)
    assert stage.ended == ["aborted"]
    assert isinstance(stage.settle(stage.post(CalledMethod.BEGIN)), FatalProducerError)


def test_what_a_call_waits_for_can_be_told_while_the_sender_takes_the_last_call(fresh: TransactionStage) -> None:
    """The queue was looked at twice: a call that had run out of time raised IndexError."""

    class TakenMeanwhile(list[object]):
        def __bool__(self) -> bool:
            return True

    fresh.manager.requests._queue = TakenMeanwhile()
    call = TransactionalCall(CalledMethod.BEGIN, fresh.clock)
    assert "has not come to it yet" in fresh.manager.delay_reason(call)
    call.is_taken = True
    assert "batches are not acknowledged yet" in fresh.manager.delay_reason(call)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_epoch_that_is_denied_is_raised_by_the_next_begin_and_asked_for_by_init(when: str) -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    stage.client.respond(produce_response(partition_answer(0, Errors.INVALID_RECORD)), request=stage.produced()[0])
    stage.run()
    stage.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    stage.holds = {ApiKey.INIT_PRODUCER_ID}
    stage.call(CalledMethod.ABORT)
    if when == "before":
        begin = stage.post(CalledMethod.BEGIN)
        stage.run(3)
        assert not begin.is_done
        stage.holds.clear()
    else:
        stage.holds.clear()
        stage.run(3)
        begin = stage.post(CalledMethod.BEGIN)
    assert isinstance(stage.settle(begin), AuthorizationError)
    denied, illegal = stage.manager.refusal_of_call(CalledMethod.BEGIN), stage.manager.refusal_of_call(CalledMethod.COMMIT)
    assert isinstance(denied, AuthorizationError)
    assert "WRITE permission" in str(denied)
    assert isinstance(illegal, IllegalStateError)
    assert "before init_transactions()" in str(illegal)
    stage.call(CalledMethod.INIT)
    stage.begin()
    stage.write(b"c")
    stage.call(CalledMethod.COMMIT)
    assert stage.ended == ["aborted", "committed"]


def test_an_id_that_may_not_be_looked_for_ends_the_producer(fresh: TransactionStage) -> None:
    fresh.fail_next(ApiKey.FIND_COORDINATOR, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = fresh.settle(fresh.post(CalledMethod.INIT))
    assert isinstance(error, FatalProducerError)
    assert ID in str(error)


@pytest.mark.parametrize("error", [Errors.GROUP_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE], ids=str)
def test_a_group_that_may_not_be_looked_for_ends_the_transaction(stage: TransactionStage, error: ErrorCode) -> None:
    stage.fail_next(ApiKey.FIND_COORDINATOR, error)
    call_error = stage.settle(stage.post_offsets())
    assert isinstance(call_error, AbortableTransactionError)
    assert "group 'readers'" in str(call_error)
    stage.call(CalledMethod.ABORT)


@pytest.mark.parametrize(
    ("api", "newest"),
    [(ApiKey.FIND_COORDINATOR, 0), (ApiKey.INIT_PRODUCER_ID, -1)],
    ids=["FIND_COORDINATOR", "INIT_PRODUCER_ID"],
)
def test_a_broker_that_is_too_old_ends_the_producer(fresh: TransactionStage, api: ApiKey, newest: int) -> None:
    for node in range(5):
        fresh.client.set_api_versions(node, {api: (0, newest)})
    error = fresh.settle(fresh.post(CalledMethod.INIT))
    assert isinstance(error, FatalProducerError)
    assert error.condition == "KAFKA_UNSUPPORTED_VERSION"


def test_a_group_member_needs_a_broker_that_knows_members() -> None:
    """Without a member, old versions will do."""
    stage = TransactionStage(1)
    for node in range(5):
        stage.client.set_api_versions(node, {ApiKey.TXN_OFFSET_COMMIT: (0, 2)})
    stage.begin()
    assert stage.settle(stage.post_offsets()) is None
    error = stage.settle(stage.post_offsets(OFFSETS, ConsumerGroupMetadata("readers", 5, "member", "instance")))
    assert isinstance(error, FatalProducerError)


def test_a_denied_topic_is_named_and_the_others_are_not_blamed() -> None:
    stage = TransactionStage(1, leaders={"denied": (0,), "other": (0,)})
    stage.begin()
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    deliveries = [stage.append(b"a", topic=topic) for topic in ("denied", "other")]
    request = held(stage, ApiKey.ADD_PARTITIONS_TO_TXN)
    errors = {"denied": Errors.TOPIC_AUTHORIZATION_FAILED, "other": Errors.OPERATION_NOT_ATTEMPTED}
    results = (
        AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=(AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=error.number),),
        )
        for topic, error in reversed(errors.items())
    )
    stage.client.respond(AddPartitionsToTxnResponse(results_by_topic=tuple(results)), request=request)
    stage.run(2)
    commit_error = stage.settle(stage.post(CalledMethod.COMMIT))
    assert isinstance(commit_error, AbortableTransactionError)
    assert "denied-0" in str(commit_error)
    assert all(isinstance(delivery.error, TransactionAbortedError) for delivery in deliveries)
    stage.call(CalledMethod.ABORT)
    assert stage.ended == []


# OFFSETS


def test_partitions_whose_offsets_are_accepted_are_not_sent_again(stage: TransactionStage) -> None:
    stage.holds = {ApiKey.TXN_OFFSET_COMMIT}
    offsets = stage.post_offsets(TWO)
    first = held(stage, ApiKey.TXN_OFFSET_COMMIT)
    answers = (
        OffsetCommitResponsePartition(partition_index=0),
        OffsetCommitResponsePartition(partition_index=1, error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS.number),
    )
    stage.client.respond(
        TxnOffsetCommitResponse(topics=(OffsetCommitResponseTopic(name=TOPIC, partitions=answers),)), request=first
    )
    stage.run()
    assert not offsets.is_done
    stage.holds.clear()
    assert stage.settle(offsets) is None
    again = stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)[-1].message
    assert isinstance(again, TxnOffsetCommitRequest)
    assert [each.partition_index for topic in again.topics for each in topic.partitions] == [1]


def test_offsets_are_sent_when_the_group_is_part_of_the_transaction(stage: TransactionStage, version: int) -> None:
    before = len(stage.client.sent_requests)
    assert stage.settle(stage.post_offsets()) is None
    api_keys = [request.message.API_KEY for request in stage.client.sent_requests[before:]]
    adding = [ApiKey.ADD_OFFSETS_TO_TXN] if version == 1 else []
    assert api_keys == [*adding, ApiKey.FIND_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT]
    stage.call(CalledMethod.COMMIT)
    assert stage.cluster.offsets.committed("readers")[tp(0)].offset == 7


def test_a_transaction_of_offsets_alone_is_ended_though_adding_them_was_tried_twice() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.REQUEST_TIMED_OUT)
    stage.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.NOT_COORDINATOR)
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    assert stage.settle(stage.post_offsets()) is None
    stage.call(CalledMethod.ABORT)
    assert stage.ended == ["aborted"]


def test_one_request_to_a_coordinator_is_in_flight_at_most(stage: TransactionStage) -> None:
    """Java counts two as a defect: each may depend on the one before."""
    stage.holds = {ApiKey.FIND_COORDINATOR, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_PARTITIONS_TO_TXN}
    for group in ("first", "second"):
        stage.post_offsets(TWO, ConsumerGroupMetadata(group))
    stage.append(b"a")
    for _ in range(20):
        stage.run()
        coordinator_requests = [request for request in stage.in_flight if request.message.API_KEY != ApiKey.PRODUCE]
        assert len(coordinator_requests) <= 1
        for request in coordinator_requests:
            stage.answer(request)
    assert len(stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)) == 2


# OFFSETS THAT NOBODY WAITS FOR, BEHIND ROWS

LEADER, ELSEWHERE = 0, 3  # of partition 0; another node


@pytest.fixture
def beside_rows() -> TransactionStage:
    """Within a transaction of version 2, in which a row was sent and is not acknowledged."""
    made = TransactionStage(2)
    made.begin()
    made.send(b"a")
    assert len(made.produced()) == 1
    return made


def offsets_in_flight(stage: TransactionStage) -> list[ClientRequest]:
    return [request for request in stage.in_flight if isinstance(request.message, TxnOffsetCommitRequest)]


def test_offsets_behind_rows_are_sent_on_the_connection_that_carries_all_rows(beside_rows: TransactionStage) -> None:
    """The broker handles one after the other, so that the transaction is begun once; and nobody waits in between."""
    stage = beside_rows
    stage.cluster.move(KeyType.GROUP, GROUP.group_id, LEADER)
    stage.holds = {ApiKey.TXN_OFFSET_COMMIT}
    stage.post_offsets(must_follow_rows=True)
    stage.run(3)
    assert [request.node_id for request in (*stage.produced(), *offsets_in_flight(stage))] == [LEADER, LEADER]


def test_offsets_behind_rows_of_another_broker_wait_for_these(beside_rows: TransactionStage) -> None:
    """Two brokers at once would have the transaction begun twice: CONCURRENT_TRANSACTIONS, and a back-off."""
    stage = beside_rows
    stage.cluster.move(KeyType.GROUP, GROUP.group_id, ELSEWHERE)
    operation = stage.post_offsets(must_follow_rows=True)
    stage.run(3)
    assert not stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)
    lookups = [request for request in stage.requests_of(ApiKey.FIND_COORDINATOR) if GROUP.group_id in str(request.message)]
    assert len(lookups) == 1, "the coordinator is looked up meanwhile"
    stage.acknowledge()
    assert stage.settle(operation) is None
    assert len(stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)) == 1


def test_offsets_behind_rows_wait_for_rows_that_are_not_sent_yet(beside_rows: TransactionStage) -> None:
    stage = beside_rows
    stage.cluster.move(KeyType.GROUP, GROUP.group_id, LEADER)
    stage.send(b"b")  # the second batch of a partition waits for the first one, once per producer id
    assert stage.accumulator.has_queued_batches()
    operation = stage.post_offsets(must_follow_rows=True)
    stage.run(3)
    assert not stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)
    stage.acknowledge()
    assert stage.settle(operation) is None


def test_offsets_that_are_waited_for_do_not_wait_for_rows(beside_rows: TransactionStage) -> None:
    stage = beside_rows
    stage.cluster.move(KeyType.GROUP, GROUP.group_id, ELSEWHERE)
    assert stage.settle(stage.post_offsets()) is None
    assert len(stage.produced()) == 1


@pytest.mark.parametrize("end", [CalledMethod.PREPARE, CalledMethod.COMMIT])
def test_offsets_behind_rows_that_were_refused_fail_the_end(stage: TransactionStage, end: CalledMethod) -> None:
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.GROUP_AUTHORIZATION_FAILED)
    stage.send(b"a")
    stage.post_offsets(must_follow_rows=True)
    operation = stage.post(end)
    stage.acknowledge_all()
    error = stage.settle(operation)
    assert isinstance(error, AbortableTransactionError)
    assert "readers" in str(error.__cause__)


def test_a_transaction_is_prepared_when_its_offsets_behind_rows_are_there(stage: TransactionStage) -> None:
    stage.holds = {ApiKey.TXN_OFFSET_COMMIT}
    stage.write(b"a")
    stage.post_offsets(must_follow_rows=True)
    operation = stage.post(CalledMethod.PREPARE)
    stage.run(3)
    assert not operation.is_done
    stage.holds = set()
    assert stage.settle(operation) is None
