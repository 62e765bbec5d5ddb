"""How transactions end: what a commit waits for, what an abort drops, what bumps the epoch, and what a close does.

The laws: EndTxn is not sent before every batch is settled; a transaction with a row that failed is never committed; after an
abort that ended well, the next transaction begins with sequences that no broker rejects.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    FatalProducerError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.producer import CLOSE_MARGIN_MS
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod, TransactionalCall
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import MAX_ABORTS_AMID_CONTROL_RECORDS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.produce import BatchIndexAndErrorMessage
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH
from tests.fakes.transaction_coordinator import State
from tests.producer.harness import TOPIC, partition_answer, produce_response
from tests.producer.transactions.transaction_stage import ID, TransactionStage

ENDS = [CalledMethod.COMMIT, CalledMethod.ABORT]


@pytest.fixture
def stage(version: int) -> TransactionStage:
    """Within a transaction, one row of which is written."""
    made = TransactionStage(version, request_timeout_ms=2000, delivery_timeout_ms=3000)
    made.begin()
    made.write(b"a")
    return made


def reject(stage: TransactionStage, error: ErrorCode, partition: int = 0, **more: object) -> None:
    stage.client.respond(produce_response(partition_answer(partition, error, **more)), request=stage.produced()[0])
    stage.run()


def goes_on(stage: TransactionStage) -> None:
    """The next transaction is committed, with sequences that brokers accept."""
    producer, sequence = stage.sent_batches[-1].identity[:2], stage.sent_batches[-1].identity[2]
    stage.begin()
    stage.write(b"next")
    stage.call(CalledMethod.COMMIT)
    assert stage.ended[-1] == "committed"
    assert stage.sent_batches[-1].identity[2] == (sequence + 1 if stage.sent_batches[-1].identity[:2] == producer else 0)


# WHAT A COMMIT WAITS FOR


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_the_end_is_not_sent_before_the_answers_of_all_batches(stage: TransactionStage, kind: CalledMethod) -> None:
    stage.send(b"b")
    end = stage.post(kind)
    stage.run(4)
    assert stage.ended == []
    stage.acknowledge()
    assert stage.settle(end) is None
    assert len(stage.ended) == 1


def test_a_commit_sends_partitions_rows_and_end_in_this_order(version: int) -> None:
    stage = TransactionStage(version, linger_ms=1000)
    stage.begin()
    before = len(stage.client.sent_requests)
    delivery = stage.append(b"a")
    commit = stage.post(CalledMethod.COMMIT)  # nothing lingers
    stage.run_until(lambda: bool(stage.produced()))
    assert not commit.is_done
    stage.acknowledge()
    assert delivery.done()
    assert stage.settle(commit) is None
    api_keys = [request.message.API_KEY for request in stage.client.sent_requests[before:]]
    assert api_keys == [*([ApiKey.ADD_PARTITIONS_TO_TXN] if version == 1 else []), ApiKey.PRODUCE, ApiKey.END_TXN]


def test_linger_ms_counts_again_in_the_next_transaction(version: int) -> None:
    stage = TransactionStage(version, linger_ms=1000)
    stage.begin()
    stage.append(b"a")
    commit = stage.post(CalledMethod.COMMIT)
    stage.run_until(lambda: bool(stage.produced()))
    stage.acknowledge()
    assert stage.settle(commit) is None
    stage.begin()
    stage.append(b"b")
    stage.clock.advance(990)
    stage.run(3)
    assert stage.produced() == []
    stage.clock.advance(10)
    stage.run(3)
    assert len(stage.produced()) == 1


def test_rows_in_flight_and_rows_that_wait_are_all_part_of_the_commit(stage: TransactionStage) -> None:
    first = stage.send(b"b")
    second = stage.append(b"c")
    commit = stage.post(CalledMethod.COMMIT)
    stage.acknowledge_all()
    assert first.done()
    assert second.done()
    assert stage.settle(commit) is None
    assert stage.ended == ["committed"]


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_no_end_is_asked_for_where_nothing_was_written(version: int, kind: CalledMethod) -> None:
    stage = TransactionStage(version)
    stage.begin()
    stage.call(kind)
    assert stage.ended == []
    assert stage.manager.state is SequencerState.READY


# WHAT AN ABORT DROPS


def test_an_abort_drops_rows_that_were_not_sent_and_asks_for_nothing(version: int) -> None:
    stage = TransactionStage(version, linger_ms=1000)
    stage.begin()
    delivery = stage.append(b"a")
    future = stage.gather(b"b")
    stage.call(CalledMethod.ABORT)
    assert isinstance(delivery.error, TransactionAbortedError)
    assert isinstance(future.exception(0), TransactionAbortedError)
    assert stage.sent_batches == []
    assert stage.ended == []
    assert stage.is_whole


def test_an_abort_asks_again_for_partitions_that_may_have_been_added() -> None:
    """The coordinator may have begun the transaction: it must hear of its end."""
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    delivery = stage.send(b"a")
    abort = stage.post(CalledMethod.ABORT)
    assert stage.settle(abort) is None
    assert isinstance(delivery.error, TransactionAbortedError)
    assert len(stage.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)) == 2
    assert stage.ended == ["aborted"]


def test_an_abort_waits_for_a_batch_that_is_being_retried(stage: TransactionStage) -> None:
    """The broker may have it: the transaction cannot end before that is known."""
    delivery = stage.send(b"b")
    reject(stage, Errors.REQUEST_TIMED_OUT)
    abort = stage.post(CalledMethod.ABORT)
    stage.back_off()
    stage.run(2)
    assert stage.ended == []
    stage.acknowledge()
    assert stage.settle(abort) is None
    assert delivery.error is None
    goes_on(stage)


# A ROW THAT FAILS


@pytest.mark.parametrize(
    "error",
    [
        Errors.TOPIC_AUTHORIZATION_FAILED,
        Errors.INVALID_RECORD,
        Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Errors.INVALID_TXN_STATE,
        Errors.TRANSACTION_ABORTABLE,
        Errors.INVALID_PRODUCER_EPOCH,
        Errors.UNKNOWN_SERVER_ERROR,
    ],
    ids=str,
)
def test_after_a_rejected_batch_a_transaction_can_be_aborted_only(stage: TransactionStage, error: ErrorCode) -> None:
    delivery = stage.send(b"b")
    commit = stage.post(CalledMethod.COMMIT)
    reject(stage, error)
    assert delivery.error is not None
    commit_error = stage.settle(commit)
    assert isinstance(commit_error, AbortableTransactionError)
    assert error.name in str(commit_error)
    assert stage.ended == []
    stage.call(CalledMethod.ABORT)
    assert stage.ended == ["aborted"]
    goes_on(stage)


def test_retries_that_are_used_up_make_a_transaction_abortable(version: int) -> None:
    stage = TransactionStage(version, retries=1)
    stage.begin()
    delivery = stage.send(b"a")
    for _ in range(2):
        stage.run_until(lambda: bool(stage.produced()))
        reject(stage, Errors.NOT_ENOUGH_REPLICAS)
        stage.back_off()
    assert delivery.error is not None
    assert isinstance(stage.settle(stage.post(CalledMethod.COMMIT)), AbortableTransactionError)
    stage.call(CalledMethod.ABORT)


def test_only_the_row_that_the_broker_blames_is_named_and_none_is_committed(stage: TransactionStage) -> None:
    """KIP-467 within a transaction."""
    delivery = stage.send(b"b", b"bad", b"c")
    blamed = (BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key"),)
    reject(stage, Errors.INVALID_RECORD, record_errors=blamed, error_message="one is bad")
    assert delivery.failed == 3
    assert delivery.error is not None
    assert "no key" in delivery.error.message
    assert isinstance(stage.settle(stage.post(CalledMethod.COMMIT)), AbortableTransactionError)
    stage.call(CalledMethod.ABORT)
    goes_on(stage)


def test_a_batch_that_was_split_is_committed_whole(version: int) -> None:
    stage = TransactionStage(version)
    stage.begin()
    stage.write(b"a")
    delivery = stage.send(b"b" * 5000, b"c" * 5000)
    reject(stage, Errors.MESSAGE_TOO_LARGE)
    commit = stage.post(CalledMethod.COMMIT)
    assert stage.ended == []
    stage.acknowledge_all()
    assert (delivery.done(), delivery.error) == (True, None)
    assert [sent_batch.identity[2] for sent_batch in stage.sent_batches] == [0, 1, 1, 2]
    assert all(sent_batch.batch.transactional for sent_batch in stage.sent_batches)
    assert stage.settle(commit) is None
    assert stage.is_whole


@pytest.mark.parametrize("partitions", [[0], [0, 1]], ids=["one batch", "two batches"])
def test_batches_that_expire_in_their_queue_drop_the_commit(version: int, partitions: list[int]) -> None:
    stage = TransactionStage(version, leaders={TOPIC: (0, 0)}, request_timeout_ms=2000, delivery_timeout_ms=3000)
    stage.begin()
    for partition in partitions:
        stage.write(b"a", partition=partition)
    stage.client.set_unreachable(0, 5000)
    deliveries = [stage.append(b"b", partition=partition) for partition in partitions]
    commit = stage.post(CalledMethod.COMMIT)
    stage.clock.advance(3000)
    error = stage.settle(commit)
    assert isinstance(error, AbortableTransactionError)
    assert isinstance(error.__cause__, KafkaTimeoutError)
    assert all(isinstance(delivery.error, KafkaTimeoutError) for delivery in deliveries)
    assert stage.manager.has_open_transaction
    stage.clock.advance(2000)
    stage.call(CalledMethod.ABORT)
    goes_on(stage)


def test_a_batch_that_expires_in_flight_delays_the_abort_until_its_answer_comes(stage: TransactionStage) -> None:
    delivery = stage.send(b"b")
    stage.clock.advance(1500)
    reject(stage, Errors.NOT_ENOUGH_REPLICAS)
    stage.back_off()
    stage.run()
    stage.clock.advance(1400)
    stage.run(2)
    assert isinstance(delivery.error, KafkaTimeoutError)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    abort = stage.post(CalledMethod.ABORT)
    stage.run(3)
    assert stage.ended == []
    reject(stage, Errors.INVALID_TXN_STATE)  # comes too late to say anything
    assert stage.settle(abort) is None
    goes_on(stage)


def test_a_batch_behind_one_that_expired_does_not_make_the_producer_fatal(stage: TransactionStage) -> None:
    first = stage.send(b"b")
    stage.clock.advance(1000)
    second = stage.send(b"c")
    reject(stage, Errors.NOT_LEADER_OR_FOLLOWER)
    stage.client.set_unreachable(0, 4000)
    stage.clock.advance(2000)
    stage.run(3)
    assert isinstance(first.error, KafkaTimeoutError)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    stage.clock.advance(2000)
    stage.run(3)
    assert second.error is not None
    stage.call(CalledMethod.ABORT)
    goes_on(stage)


# TROUBLE WHILE ABORTING


@pytest.mark.parametrize("error", [Errors.INVALID_RECORD, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER], ids=str)
def test_a_batch_that_fails_while_its_transaction_is_aborted_changes_nothing(stage: TransactionStage, error: ErrorCode) -> None:
    """In version 1 the producer waited for an epoch that it never asked for: no transaction could begin any more."""
    stage.send(b"b")
    abort = stage.post(CalledMethod.ABORT)
    reject(stage, error)
    assert stage.manager.state is SequencerState.ABORTING
    assert stage.settle(abort) is None
    assert stage.ended == ["aborted"]
    goes_on(stage)


@pytest.mark.parametrize(
    "error", [Errors.TOPIC_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE, Errors.UNKNOWN_PRODUCER_ID], ids=str
)
def test_partitions_that_are_refused_during_the_abort_change_nothing(error: ErrorCode) -> None:
    """Such a refusal ended the producer: only an error of EndTxn itself may."""
    stage = TransactionStage(1, leaders={TOPIC: (0, 0)})
    stage.begin()
    stage.write(b"a")
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    stage.send(b"b", partition=1)
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, error)
    abort = stage.post(CalledMethod.ABORT)
    stage.holds.clear()
    assert stage.settle(abort) is None
    assert stage.ended == ["aborted"]
    goes_on(stage)


@pytest.mark.parametrize("api", [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT], ids=lambda api: api.name)
def test_offsets_that_are_refused_while_the_transaction_is_aborted_change_nothing(api: ApiKey) -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.holds = {api}
    offsets = stage.post_offsets()
    stage.run(3)
    stage.fail_next(api, Errors.GROUP_AUTHORIZATION_FAILED)
    abort = stage.post(CalledMethod.ABORT)
    stage.holds.clear()
    assert stage.settle(abort) is None
    assert offsets.error is not None
    assert stage.ended == ([] if api is ApiKey.ADD_OFFSETS_TO_TXN else ["aborted"])
    assert stage.manager.state is SequencerState.READY


def test_a_fatal_error_while_the_transaction_is_aborted_ends_the_producer() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.holds = {ApiKey.ADD_OFFSETS_TO_TXN}
    stage.post_offsets()
    stage.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.UNKNOWN_SERVER_ERROR)
    abort = stage.post(CalledMethod.ABORT)
    stage.holds.clear()
    assert isinstance(stage.settle(abort), FatalProducerError)


def test_an_abort_does_not_wait_for_a_group_that_has_no_coordinator(version: int) -> None:
    """Offsets of a transaction that is aborted need not be committed: the abort waited for the group, if need be for ever."""
    stage = TransactionStage(version)
    stage.begin()
    stage.write(b"a")
    stage.fail_next(ApiKey.FIND_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, times=1000)
    offsets = stage.post_offsets()
    stage.run(5)
    abort = stage.post(CalledMethod.ABORT)
    assert stage.settle(abort) is None
    assert isinstance(offsets.error, TransactionAbortedError)
    assert stage.ended == ["aborted"]


def test_an_abort_that_would_have_to_be_aborted_is_fatal(stage: TransactionStage) -> None:
    """KIP-1050: after a commit the error can be aborted, after an abort nothing helps."""
    stage.fail_next(ApiKey.END_TXN, Errors.TRANSACTION_ABORTABLE, times=2)
    assert isinstance(stage.settle(stage.post(CalledMethod.COMMIT)), AbortableTransactionError)
    error = stage.settle(stage.post(CalledMethod.ABORT))
    assert isinstance(error, FatalProducerError)
    assert "TRANSACTION_ABORTABLE" in str(error)


def test_an_abort_that_finds_no_coordinator_for_an_abortable_reason_is_fatal(stage: TransactionStage) -> None:
    stage.holds = {ApiKey.END_TXN}
    abort = stage.post(CalledMethod.ABORT)
    stage.disconnect(stage.requests_of(ApiKey.END_TXN)[0].node_id)
    stage.fail_next(ApiKey.FIND_COORDINATOR, Errors.TRANSACTION_ABORTABLE)
    assert isinstance(stage.settle(abort), FatalProducerError)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "expired"])
@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_a_producer_that_is_said_to_be_unknown_asks_for_the_next_epoch(
    stage: TransactionStage, kind: CalledMethod, is_known: bool
) -> None:
    """The abort failed, and neither it nor anything else was possible any more: close() took minutes. The coordinator that knows
    the producer gives it an epoch. Where the id has expired, it gives another producer id, as if it had never been used: whether
    another producer has written under it meanwhile, nobody knows any more."""
    if not is_known:
        del stage.cluster.transactions.transactions[ID]
    else:
        stage.cluster.transactions.transactions[ID].state = State.COMPLETE_ABORT
    ends = [CalledMethod.COMMIT, CalledMethod.ABORT] if kind is CalledMethod.COMMIT else [CalledMethod.ABORT]
    stage.fail_next(ApiKey.END_TXN, Errors.UNKNOWN_PRODUCER_ID, times=len(ends))
    if kind is CalledMethod.COMMIT:
        commit_error = stage.settle(stage.post(CalledMethod.COMMIT))
        assert isinstance(commit_error, AbortableTransactionError)
        assert "UNKNOWN_PRODUCER_ID" in str(commit_error)
    error = stage.settle(stage.post(CalledMethod.ABORT))
    assert len(stage.requests_of(ApiKey.INIT_PRODUCER_ID)) == 2
    if is_known:
        assert error is None
        goes_on(stage)
    else:
        assert isinstance(error, FatalProducerError)
        assert error.condition == "KAFKA_INVALID_PRODUCER_ID_MAPPING"
        assert "producer id 1001 instead of 1000" in str(error)


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_an_end_that_finds_another_producer_or_none_under_its_id_is_fatal(stage: TransactionStage, kind: CalledMethod) -> None:
    stage.fail_next(ApiKey.END_TXN, Errors.INVALID_PRODUCER_ID_MAPPING)
    error = stage.settle(stage.post(kind))
    assert isinstance(error, FatalProducerError)
    assert error.condition == "KAFKA_INVALID_PRODUCER_ID_MAPPING"


@pytest.mark.parametrize("is_replaced", [False, True], ids=["forgotten", "replaced"])
def test_a_leader_whose_coordinator_does_not_know_the_producer_ends_it(is_replaced: bool) -> None:
    """In version 2 the leader asks the coordinator."""
    stage = TransactionStage(2)
    stage.begin()
    stage.write(b"a")
    transactions = stage.cluster.transactions.transactions
    if is_replaced:
        transactions[ID].producer_id += 1
    else:
        del transactions[ID]
    stage.send(b"b")
    reject(stage, Errors.INVALID_PRODUCER_ID_MAPPING)
    for kind in ENDS:
        error = stage.settle(stage.post(kind))
        assert isinstance(error, FatalProducerError)
        assert error.condition == "KAFKA_INVALID_PRODUCER_ID_MAPPING"
    assert stage.requests_of(ApiKey.END_TXN) == []


@pytest.mark.parametrize("error", [Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH], ids=str)
def test_a_producer_that_is_fenced_while_it_aborts_says_so(stage: TransactionStage, error: ErrorCode) -> None:
    stage.send(b"b")
    reject(stage, Errors.UNKNOWN_PRODUCER_ID, log_start_offset=0)
    stage.fail_next(ApiKey.END_TXN, error)
    assert isinstance(stage.settle(stage.post(CalledMethod.ABORT)), ProducerFencedError)
    assert len(stage.ended) == 1


def test_an_abort_amid_control_records_gives_up_before_close_does() -> None:
    """A coordinator that writes the last transaction's control records says the same as of a producer that was replaced."""

    class LongestJitter(Random):
        def uniform(self, a: float, b: float) -> float:  # noqa: ARG002
            return b

    stage = TransactionStage(2, retry_backoff_max_ms=1_000)
    stage.manager.requests._backoff = ExponentialBackoff(100, 1_000, LongestJitter())
    stage.begin()
    stage.send(b"a")
    reject(stage, Errors.INVALID_RECORD)
    stage.fail_next(ApiKey.END_TXN, Errors.PRODUCER_FENCED, times=MAX_ABORTS_AMID_CONTROL_RECORDS)
    started_ms = stage.now_ms
    abort = stage.post(CalledMethod.ABORT)
    while not abort.is_done:
        stage.clock.advance(10)
        stage.run()
    assert isinstance(abort.error, ProducerFencedError)
    assert len(stage.ended) == MAX_ABORTS_AMID_CONTROL_RECORDS
    assert 3_800 <= stage.now_ms - started_ms < 3_900 < CLOSE_MARGIN_MS


def test_a_move_that_no_state_allows_ends_the_producer(stage: TransactionStage) -> None:
    """A defect of ours: what the transaction contains is not known any more (KAFKA-14831)."""
    stage.call(CalledMethod.COMMIT)
    with pytest.raises(RuntimeError, match="ready cannot become"):
        stage.manager.become_abortable(KafkaError("a batch outside of a transaction"))
    error = stage.settle(stage.post(CalledMethod.BEGIN))
    assert isinstance(error, FatalProducerError)
    assert "ready cannot become" in str(error)


# THE EPOCH


def test_after_a_failed_batch_the_epoch_is_raised_with_the_abort(stage: TransactionStage, version: int) -> None:
    """By the coordinator with EndTxn in version 2, by a request of its own before that (KIP-360)."""
    stage.send(b"b")
    reject(stage, Errors.TOPIC_AUTHORIZATION_FAILED)
    before = len(stage.client.sent_requests)
    stage.call(CalledMethod.ABORT)
    stage.run_until(lambda: stage.manager.state is SequencerState.READY)
    api_keys = [request.message.API_KEY for request in stage.client.sent_requests[before:]]
    assert api_keys == [ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID][: 3 - version]
    assert stage.manager.identity.producer_epoch == 1
    goes_on(stage)


def test_a_transaction_takes_rows_when_its_begin_returns(stage: TransactionStage) -> None:
    """Rows that come late for an aborted transaction are refused until the next one begins. Its caller heard of that a moment
    too early, and could have its first row refused."""
    stage.send(b"b")
    reject(stage, Errors.TOPIC_AUTHORIZATION_FAILED)
    stage.call(CalledMethod.ABORT)
    with pytest.raises(KafkaError, match="aborted before this row was sent"):
        stage.accumulator.check_open()
    begin = CheckingCall(CalledMethod.BEGIN, stage.clock)
    begin.check = stage.accumulator.check_open
    stage.manager.calls.post(begin)
    assert stage.settle(begin) is None
    assert begin.is_settled


class CheckingCall(TransactionalCall):
    check: Callable[[], None]
    is_settled = False

    def settle(self, error: KafkaError | None = None) -> None:
        self.check()
        self.is_settled = True
        super().settle(error)


def test_a_transaction_does_not_begin_before_the_epoch_is_raised() -> None:
    """The abort is over: what becomes of the epoch says nothing of it."""
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    reject(stage, Errors.INVALID_RECORD)
    stage.holds = {ApiKey.INIT_PRODUCER_ID}
    stage.call(CalledMethod.ABORT)
    assert stage.ended == ["aborted"]
    begin = stage.post(CalledMethod.BEGIN)
    stage.run(5)
    assert not begin.is_done
    assert "InitProducerId" in stage.manager.delay_reason(begin)
    stage.holds.clear()
    assert stage.settle(begin) is None
    assert stage.manager.identity.producer_epoch == 1
    stage.write(b"c")
    stage.call(CalledMethod.COMMIT)


@pytest.mark.parametrize("error", [Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH], ids=str)
def test_a_producer_that_is_fenced_while_its_epoch_is_raised_says_so(error: ErrorCode) -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    reject(stage, Errors.INVALID_RECORD)
    stage.fail_next(ApiKey.INIT_PRODUCER_ID, error)
    stage.call(CalledMethod.ABORT)
    assert isinstance(stage.settle(stage.post(CalledMethod.BEGIN)), ProducerFencedError)


def test_partitions_refused_for_the_producer_raise_the_epoch_without_an_end() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.UNKNOWN_PRODUCER_ID)
    stage.send(b"a")
    stage.run(2)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    stage.call(CalledMethod.ABORT)
    assert stage.ended == []
    assert stage.manager.identity.producer_epoch == 1


def test_a_group_that_is_refused_for_the_producer_raises_the_epoch_with_the_abort() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.UNKNOWN_PRODUCER_ID)
    assert isinstance(stage.settle(stage.post_offsets()), AbortableTransactionError)
    stage.call(CalledMethod.ABORT)
    assert stage.ended == ["aborted"]
    stage.begin()
    assert stage.manager.identity.producer_epoch == 1


def test_a_coordinator_that_cannot_bump_epochs_makes_a_failed_batch_fatal() -> None:
    """Brokers before 2.5: the next transaction could not know its sequences."""
    stage = TransactionStage(1, initialized=False)
    for node in range(5):
        stage.client.set_api_versions(node, {ApiKey.INIT_PRODUCER_ID: (0, 1)})
    stage.call(CalledMethod.INIT)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    reject(stage, Errors.INVALID_RECORD)
    assert isinstance(stage.settle(stage.post(CalledMethod.COMMIT)), FatalProducerError)


def test_a_lost_connection_to_the_coordinator_makes_no_failed_batch_fatal() -> None:
    """Whether it can raise epochs is not known then; it is taken to."""
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    stage.client.disconnect(stage.requests_of(ApiKey.INIT_PRODUCER_ID)[0].node_id, stage.now_ms)
    reject(stage, Errors.INVALID_RECORD)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    stage.call(CalledMethod.ABORT)
    goes_on(stage)


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_in_version_2_each_end_brings_the_epoch_of_the_next_transaction(kind: CalledMethod) -> None:
    stage = TransactionStage(2)
    for epoch in range(3):
        assert stage.manager.identity.producer_epoch == epoch
        stage.begin()
        stage.write(b"a")
        stage.call(kind)


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_epochs_used_up_in_a_transaction_bring_a_new_producer_id_with_its_end(kind: CalledMethod) -> None:
    stage = TransactionStage(2)
    first_id = stage.manager.identity.producer_id
    stage.cluster.transactions.transactions[ID].epoch = MAX_EPOCH - 1
    stage.manager._adopt(stage.manager.identity._replace(producer_epoch=MAX_EPOCH - 1))
    stage.begin()
    stage.write(b"a")
    stage.call(kind)
    assert stage.manager.identity.producer_id != first_id
    assert stage.manager.identity.producer_epoch == 0
    stage.begin()
    stage.write(b"b")
    stage.call(CalledMethod.COMMIT)
    assert stage.sent_batches[-1].identity[1:] == (0, 0)


def test_the_last_epoch_of_all_is_not_used_for_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated abort can be answered with it. No end could raise it any more: the coordinator gives a new id instead."""
    stage = TransactionStage(2)
    first_id = stage.manager.identity.producer_id
    transaction = stage.cluster.transactions.transactions[ID]
    transaction.epoch = MAX_EPOCH - 1
    stage.manager._adopt(stage.manager.identity._replace(producer_epoch=MAX_EPOCH - 1))
    stage.begin()
    stage.write(b"a")
    stage.holds = {ApiKey.INIT_PRODUCER_ID}
    with monkeypatch.context() as patch:
        patch.setattr(type(transaction), "is_exhausted", False)
        stage.call(CalledMethod.ABORT)
    assert stage.manager.identity == (first_id, MAX_EPOCH)
    stage.holds.clear()
    stage.begin()
    assert stage.manager.identity.producer_id != first_id
    assert stage.manager.identity.producer_epoch == 0
    stage.write(b"b")
    stage.call(CalledMethod.COMMIT)


def test_epochs_used_up_in_version_1_bring_a_new_producer_id_after_an_error() -> None:
    stage = TransactionStage(1)
    first_id = stage.manager.identity.producer_id
    stage.cluster.transactions.transactions[ID].epoch = MAX_EPOCH - 1
    stage.manager._adopt(stage.manager.identity._replace(producer_epoch=MAX_EPOCH - 1))
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    reject(stage, Errors.INVALID_RECORD)
    stage.call(CalledMethod.ABORT)
    stage.begin()
    assert stage.manager.identity.producer_id != first_id
    stage.write(b"c")
    stage.call(CalledMethod.COMMIT)
    assert stage.sent_batches[-1].identity[1:] == (0, 0)


# VERSIONS


def produce_versions(stage: TransactionStage) -> list[int]:
    return [stage.client.version_of(request) for request in stage.requests_of(ApiKey.PRODUCE)]


def test_a_transaction_ends_in_the_version_in_which_it_began(version: int) -> None:
    """Brokers that are upgraded meanwhile: rows that are sent after the commit was asked for went out in the new version."""
    stage = TransactionStage(1, linger_ms=1000, leaders={TOPIC: (0, 0)})
    stage.begin()
    stage.append(b"a", partition=0)
    stage.client.set_features(2, transaction_version=2)
    stage.cluster.transactions.transaction_version = 2
    commit = stage.post(CalledMethod.COMMIT if version == 1 else CalledMethod.ABORT)
    if version == 1:
        stage.run_until(lambda: bool(stage.produced()))
        stage.acknowledge()
        assert produce_versions(stage)[-1] <= 11
        assert stage.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN) != []
    assert stage.settle(commit) is None
    assert all(stage.client.version_of(request) <= 4 for request in stage.requests_of(ApiKey.END_TXN))
    stage.begin()
    assert stage.manager.identity.producer_epoch == 1  # raised once, so that numbers of both versions never mix
    stage.append(b"b", partition=1)
    second = stage.post(CalledMethod.COMMIT)
    stage.run_until(lambda: bool(stage.produced()))
    stage.acknowledge()
    assert stage.settle(second) is None
    assert produce_versions(stage)[-1] >= 12
    assert stage.manager.identity.producer_epoch == 2
    assert stage.cluster.violations == []


def test_brokers_without_the_feature_are_spoken_to_in_version_1_at_any_api_version() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    assert stage.settle(stage.post_offsets()) is None
    stage.call(CalledMethod.COMMIT)
    assert produce_versions(stage) == [11]
    assert [stage.client.version_of(request) for request in stage.requests_of(ApiKey.TXN_OFFSET_COMMIT)] == [4]
    assert [stage.client.version_of(request) for request in stage.requests_of(ApiKey.END_TXN)] == [4]
