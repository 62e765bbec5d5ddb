"""A transactional KafkaProducer over real sockets against FakeBroker, whose coordinators answer as Apache Kafka's do.

Every claim holds for transactions of version 1 and of version 2 (KIP-890), unless the test says which. The fake reports as a
violation what a client must not send in a version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    BrokerError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import TxnOffsetCommitHandler
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State as TransactionState
from tests.producer.harness import tp
from tests.producer.transactions.transactional_brokers import GROUP, ID, WAIT_MS, cluster_of, producer_of, write


@pytest.fixture
def version_2() -> Iterator[FakeBroker]:
    with cluster_of(2) as cluster:
        yield cluster


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[TaskProducer]:
    with producer_of(broker) as made:
        made.init_transactions()
        yield made


def settle_markers(broker: FakeBroker) -> None:
    """The producer of the next transaction, or a reader, comes after the markers."""
    broker.transactions.write_markers()


# COMMIT AND ABORT


def test_rows_are_seen_when_their_transaction_is_committed_and_not_before(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"a", b"b").result(WAIT_MS)
    write(producer, b"c", topic="orders", partition=1).result(WAIT_MS)
    assert broker.committed_values("single") == broker.committed_values("orders") == []
    producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]
    assert broker.committed_values("orders") == [b"c"]


def test_the_time_that_callers_spend_in_each_call_is_counted(producer: KafkaProducer) -> None:
    with producer.transaction():
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
    producer.begin_transaction()
    producer.abort_transaction()
    metrics = producer.metrics()
    for call in ("init", "begin", "send-offsets", "commit", "abort"):
        assert metrics[f"txn-{call}-time-ns-total"] > 0


def test_rows_of_an_aborted_transaction_are_never_seen_and_the_next_one_is(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"lost").result(WAIT_MS)
    producer.abort_transaction()
    producer.begin_transaction()
    write(producer, b"kept").result(WAIT_MS)
    producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"kept"]
    assert broker.values("single") == [b"lost", b"kept"]


def test_many_transactions_follow_each_other(broker: FakeBroker, producer: KafkaProducer) -> None:
    for number in range(20):
        producer.begin_transaction()
        write(producer, b"%d" % number, topic="orders", partition=number % 2)
        write(producer, b"%d" % number)
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    settle_markers(broker)
    committed = [b"%d" % number for number in range(20) if number % 3]
    assert broker.committed_values("single") == committed
    assert sorted(broker.committed_values("orders")) == sorted(committed)


def test_a_commit_sends_what_lingers(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=20_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        delivery = write(producer, b"a")
        future = producer.send(ProducerRecord("single", b"b"))
        producer.commit_transaction()
        assert delivery.done()
        assert future.done()
    assert sorted(broker.committed_values("single")) == [b"a", b"b"]


def test_nothing_is_asked_of_the_coordinator_for_a_transaction_without_rows(broker: FakeBroker, producer: KafkaProducer) -> None:
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()
    assert broker.requests_of(ApiKey.END_TXN) == []


def write_and_raise(producer: KafkaProducer) -> None:
    with producer.transaction():
        write(producer, b"lost").result(WAIT_MS)
        raise ZeroDivisionError


def test_the_context_manager_commits_or_aborts_when_the_block_raises(broker: FakeBroker, producer: KafkaProducer) -> None:
    with producer.transaction():
        write(producer, b"kept")
    with pytest.raises(ZeroDivisionError):
        write_and_raise(producer)
    with producer.transaction():
        write(producer, b"kept too")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"kept", b"kept too"]


def test_rows_that_were_not_sent_fail_when_their_transaction_is_aborted(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=20_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        delivery, future = write(producer, b"a"), producer.send(ProducerRecord("single", b"b"))
        producer.abort_transaction()
        with pytest.raises(TransactionAbortedError, match="aborted before this row was sent"):
            delivery.result(WAIT_MS)
        with pytest.raises(TransactionAbortedError):
            future.result(30)
        assert broker.values("single") == []


def test_sequences_and_epoch_of_version_2_begin_anew_with_each_transaction(version_2: FakeBroker) -> None:
    with producer_of(version_2) as producer:
        producer.init_transactions()
        for value in (b"a", b"b"):
            with producer.transaction():
                write(producer, value).result(WAIT_MS)
    first, second = version_2.batches("single")
    assert first.is_transactional
    assert second.is_transactional
    assert first.base_sequence == second.base_sequence == 0
    assert second.producer_epoch == first.producer_epoch + 1
    assert version_2.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN) == []


# OFFSETS


def test_offsets_take_effect_with_the_commit(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"a")
    producer.send_offsets_to_transaction({tp(1): OffsetAndMetadata(7, "note")}, GROUP)
    assert broker.offsets.committed("readers") == {}
    producer.commit_transaction()
    settle_markers(broker)
    committed_offset = broker.offsets.committed("readers")[tp(1)]
    assert (committed_offset.offset, committed_offset.metadata) == (7, "note")


@pytest.mark.parametrize(
    ("where", "offset", "group", "message"),
    [
        (TopicPartition("orders", "0"), OffsetAndMetadata(1), GROUP, "a partition must be an int"),
        (TopicPartition("orders", -1), OffsetAndMetadata(1), GROUP, "a partition must be from 0 to"),
        (TopicPartition(0, 0), OffsetAndMetadata(1), GROUP, "a topic must be a str, not 0"),
        (tp(0), OffsetAndMetadata(-1), GROUP, "the offset of orders-0 must be from 0 to"),
        (tp(0), OffsetAndMetadata(1.5), GROUP, "the offset of orders-0 must be an int"),
        (tp(0), OffsetAndMetadata(1, 7), GROUP, "the metadata of orders-0 must be a str"),
        (tp(0), "1", GROUP, "the offset of orders-0 must be an int"),
        ("orders", 1, GROUP, "offsets must map a TopicPartition to .*; there is a str"),
        (tp(0), OffsetAndMetadata(1, "\ud800"), GROUP, "the metadata of orders-0 must be valid text"),
        (tp(0), OffsetAndMetadata(1, leader_epoch=2**31), GROUP, "the leader epoch of orders-0 must be from -1 to"),
        (tp(0), OffsetAndMetadata(1), ConsumerGroupMetadata(None), "a group id must be a str"),
        (tp(0), OffsetAndMetadata(1), ConsumerGroupMetadata("g", 2**31), "a generation id must be from -1 to"),
    ],
)
def test_offsets_that_no_request_can_carry_are_refused_and_the_transaction_goes_on(
    broker: FakeBroker, producer: KafkaProducer, where: Any, offset: Any, group: Any, message: str
) -> None:
    """The Sender's thread could not encode them, tried again for ever, and close() waited in vain."""
    producer.begin_transaction()
    with pytest.raises((TypeError, ValueError), match=message):
        producer.send_offsets_to_transaction({where: offset}, group)
    write(producer, b"a")
    producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]


@pytest.mark.parametrize("step", ["message", "succeed"])
def test_a_defect_in_a_coordinators_request_ends_the_producer_and_reaches_the_call(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before its answer it was in flight for ever, after it forgotten: the caller waited for max.block.ms, close() as long."""

    def defect(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    producer.begin_transaction()
    monkeypatch.setattr(TxnOffsetCommitHandler, step, defect)
    with pytest.raises(KafkaError, match=r"TxnOffsetCommit.*ZeroDivisionError.*a defect"):
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
    with pytest.raises(FatalProducerError, match="a defect"):
        producer.commit_transaction()


def test_offsets_that_are_not_waited_for_come_with_the_rows(broker: FakeBroker, producer: KafkaProducer) -> None:
    with producer.transaction():
        write(producer, b"a")
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]
    assert {where: each.offset for where, each in broker.offsets.committed("readers").items()} == {tp(0): 7}


def test_offsets_that_are_not_waited_for_fail_the_commit(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.GROUP_AUTHORIZATION_FAILED)
    producer.begin_transaction()
    write(producer, b"a")
    producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
    with pytest.raises(AbortableTransactionError, match="readers"):
        producer.commit_transaction()
    producer.abort_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == []


def offsets(broker: FakeBroker) -> dict[TopicPartition, int]:
    return {where: each.offset for where, each in broker.offsets.committed("readers").items()}


def test_the_commit_goes_behind_offsets_that_are_sent_again(broker: FakeBroker, producer: KafkaProducer) -> None:
    """Offsets that nobody waits for had the commit's priority, and lost their place with each retry: rows came without them."""
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    with producer.transaction():
        write(producer, b"a")
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
    settle_markers(broker)
    assert offsets(broker) == {tp(0): 7}


def test_the_commit_goes_behind_offsets_whose_connection_was_lost(broker: FakeBroker, producer: KafkaProducer) -> None:
    for api in (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT):
        broker.drop_next(api)
    with producer.transaction():
        write(producer, b"a")
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
    settle_markers(broker)
    assert (broker.committed_values("single"), offsets(broker)) == ([b"a"], {tp(0): 7})


@pytest.mark.parametrize("wait", [True, False])
def test_the_last_offsets_of_a_transaction_count(broker: FakeBroker, producer: KafkaProducer, wait: bool) -> None:
    """Those of a call that waits overtook earlier ones that nobody waited for, and so did later ones while these were retried."""
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    with producer.transaction():
        write(producer, b"a")
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(9)}, GROUP, wait=wait)
    settle_markers(broker)
    assert offsets(broker) == {tp(0): 9}


def test_who_waits_for_offsets_waits_for_no_lingering_rows_before_them(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=10 * WAIT_MS) as producer:
        producer.init_transactions()
        with producer.transaction():
            write(producer, b"a")
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP, wait=False)
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(9)}, GROUP)
    settle_markers(broker)
    assert offsets(broker) == {tp(0): 9}


def test_offsets_of_an_aborted_transaction_never_take_effect(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(7)}, GROUP)
    producer.abort_transaction()
    settle_markers(broker)
    assert broker.offsets.committed("readers") == {}


def test_a_transaction_may_hold_offsets_alone(broker: FakeBroker, producer: KafkaProducer) -> None:
    with producer.transaction():
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(3), tp(0, "single"): OffsetAndMetadata(4)}, GROUP)
    settle_markers(broker)
    assert {where: each.offset for where, each in broker.offsets.committed("readers").items()} == {
        tp(0): 3,
        tp(0, "single"): 4,
    }


@pytest.mark.parametrize(
    "error", [Errors.GROUP_AUTHORIZATION_FAILED, Errors.UNKNOWN_MEMBER_ID, Errors.ILLEGAL_GENERATION], ids=str
)
def test_offsets_that_a_group_refuses_make_the_transaction_abortable(
    broker: FakeBroker, producer: KafkaProducer, error: ErrorCode
) -> None:
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, error)
    with pytest.raises(AbortableTransactionError, match="readers"):
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
    with pytest.raises(AbortableTransactionError, match="cannot be committed"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        write(producer, b"b")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"b"]


# MISUSE


def test_calls_that_do_not_fit_the_state_raise_and_change_nothing(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(IllegalStateError, match=r"before init_transactions\(\)"):
                call()
        with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
            write(producer, b"outside")
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="outside of a transaction"):
            producer.init_transactions()
        with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
            producer.send(ProducerRecord("single", b"outside"))
        with pytest.raises(IllegalStateError, match="outside of a transaction"):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) or abort_transaction\(\) first"):
            producer.begin_transaction()
        write(producer, b"a")
        producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="outside of a transaction"):
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]


def test_a_producer_without_transactional_id_has_no_transactions(broker: FakeBroker) -> None:
    with producer_of(broker, transactional_id=None) as producer:
        for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
            with pytest.raises(IllegalStateError, match=r"transactional\.id"):
                call()


# COORDINATORS


def test_a_coordinator_that_moves_is_found_again(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    node = broker.coordinators.node_of(KeyType.TRANSACTION, ID)
    broker.move_coordinator(KeyType.TRANSACTION, ID, 1 - node)
    producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "api",
    [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN],
    ids=lambda api: api.name,
)
def test_a_connection_lost_before_or_after_a_request_was_carried_out_costs_nothing(
    broker: FakeBroker, api: ApiKey, after: bool
) -> None:
    broker.drop_next(api, after_append=after)
    with producer_of(broker) as producer:
        producer.init_transactions()
        for value in (b"a", b"b"):
            producer.begin_transaction()
            write(producer, value)
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
            producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]


@pytest.mark.parametrize(
    "error",
    [
        Errors.COORDINATOR_LOAD_IN_PROGRESS,
        Errors.COORDINATOR_NOT_AVAILABLE,
        Errors.NOT_COORDINATOR,
        Errors.CONCURRENT_TRANSACTIONS,
    ],
    ids=str,
)
@pytest.mark.parametrize("api", [ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN], ids=lambda api: api.name)
def test_errors_that_pass_are_retried(broker: FakeBroker, api: ApiKey, error: ErrorCode) -> None:
    broker.fail_next(api, error, times=3)
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            write(producer, b"a")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]


def test_the_next_transaction_waits_for_the_markers_of_the_one_before(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.transactions.holds_markers = True
    producer.begin_transaction()
    write(producer, b"a")
    producer.commit_transaction()
    producer.begin_transaction()
    second = write(producer, b"b")
    broker.transactions.holds_markers = False
    broker.transactions.write_markers()
    second.result(WAIT_MS)
    producer.commit_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]


# ANOTHER PRODUCER


def test_a_second_producer_with_the_same_id_fences_the_first(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"of the first").result(WAIT_MS)
    with producer_of(broker) as second:
        second.init_transactions()
        with pytest.raises(ProducerFencedError, match=f"another producer with transactional id '{ID}'"):
            producer.commit_transaction()
        for call in (producer.abort_transaction, producer.begin_transaction, lambda: write(producer, b"late")):
            with pytest.raises(ProducerFencedError):
                call()
        with second.transaction():
            write(second, b"of the second")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"of the second"]


def test_rows_of_a_fenced_producer_fail_and_nobody_hangs(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"of the first").result(WAIT_MS)
    with producer_of(broker) as second:
        second.init_transactions()
        with pytest.raises(BrokerError, match="KAFKA_INVALID_PRODUCER_EPOCH"):
            write(producer, b"late").result(WAIT_MS)
        with pytest.raises(AbortableTransactionError, match=r"cannot be committed: .*newer producer"):
            producer.commit_transaction()
        with pytest.raises(ProducerFencedError):
            producer.abort_transaction()
    settle_markers(broker)
    assert broker.committed_values("single") == []


def test_a_block_that_learns_from_its_abort_that_it_is_fenced_says_so(broker: FakeBroker, producer: KafkaProducer) -> None:
    """The block raised AbortableTransactionError, "then go on with the next one", and only the next ProducerFencedError."""
    with producer_of(broker) as second:
        second.init_transactions()
        with pytest.raises(ProducerFencedError), producer.transaction():
            write(producer, b"a")


def test_a_block_raises_the_programs_own_error_whatever_its_abort_meets(broker: FakeBroker, producer: KafkaProducer) -> None:
    with producer_of(broker) as second:
        second.init_transactions()
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012 - the block is tested
            write(producer, b"a")
            raise ZeroDivisionError


# ERRORS IN A TRANSACTION


def test_after_a_rejected_batch_the_transaction_can_only_be_aborted(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"before").result(WAIT_MS)
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        write(producer, b"bad").result(WAIT_MS)
    with pytest.raises(AbortableTransactionError, match=r"abort_transaction\(\)"):
        producer.commit_transaction()
    with pytest.raises(AbortableTransactionError, match="KAFKA_INVALID_RECORD"):
        write(producer, b"behind")
    producer.abort_transaction()
    with producer.transaction():
        write(producer, b"next").result(WAIT_MS)
    settle_markers(broker)
    assert broker.committed_values("single") == [b"next"]


def test_a_batch_that_expires_makes_its_transaction_abortable_and_the_next_is_whole(broker: FakeBroker) -> None:
    with producer_of(broker, request_timeout_ms=4_000, delivery_timeout_ms=5_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"before").result(WAIT_MS)
        held = broker.hold_next(ApiKey.PRODUCE, times=10)
        with pytest.raises(KafkaTimeoutError, match="KAFKA_DELIVERY_TIMEOUT"):
            write(producer, b"late").result(WAIT_MS)
        held.set()
        with pytest.raises(AbortableTransactionError, match="KAFKA_DELIVERY_TIMEOUT"):
            producer.commit_transaction()
        producer.abort_transaction()
        for value in (b"a", b"b"):
            with producer.transaction():
                write(producer, value)
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]


def test_a_transaction_that_timed_out_at_the_coordinator_is_lost_and_says_so(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    broker.clock.advance(10 * 60_000)
    assert broker.transactions.abort_timed_out() == [ID]
    with pytest.raises(FatalProducerError, match=r"KAFKA_PRODUCER_FENCED|KAFKA_INVALID_TXN_STATE"):
        producer.commit_transaction()
    assert broker.committed_values("single") == []


@pytest.mark.parametrize(
    ("api", "error"),
    [
        (ApiKey.INIT_PRODUCER_ID, Errors.INVALID_TRANSACTION_TIMEOUT),
        (ApiKey.FIND_COORDINATOR, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=str,
)
def test_what_no_retry_mends_is_fatal_and_named_in_the_error(broker: FakeBroker, api: ApiKey, error: ErrorCode) -> None:
    broker.fail_next(api, error)
    with producer_of(broker) as producer:
        with pytest.raises(FatalProducerError, match=ID) as raised:
            producer.init_transactions()
        assert raised.value.condition == f"KAFKA_{error.name}"
        with pytest.raises(FatalProducerError, match=f"KAFKA_{error.name}"):
            producer.begin_transaction()


def test_a_transaction_timeout_that_the_brokers_refuse_is_named_in_the_error(broker: FakeBroker) -> None:
    too_long_ms = broker.transactions.max_timeout_ms + 1
    message = rf"transaction\.timeout\.ms={too_long_ms}\b"
    with producer_of(broker, transaction_timeout_ms=too_long_ms) as producer, pytest.raises(FatalProducerError, match=message):
        producer.init_transactions()


def test_an_id_that_is_denied_can_be_asked_for_again_when_it_is_granted(broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with producer_of(broker) as producer:
        with pytest.raises(KafkaError, match=ID) as raised:
            producer.init_transactions()
        assert raised.value.condition == "KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        producer.init_transactions()
        with producer.transaction():
            write(producer, b"a")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a"]


# TIME


def test_a_call_that_times_out_is_waited_for_by_the_same_call(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"a").result(WAIT_MS)
        held = broker.hold_next(ApiKey.END_TXN)
        calls = producer._caller_side
        assert calls is not None
        calls.max_block_ms = 100  # what never ends is given up soon, and all else has the time that a busy machine takes
        with pytest.raises(TransactionTimeoutError, match=r"commit_transaction\(\) again"):
            producer.commit_transaction()
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) timed out before"):
            producer.abort_transaction()
        held.set()
        assert calls._pending is not None
        assert calls._pending.wait(WAIT_MS)
        calls.max_block_ms = WAIT_MS
        producer.commit_transaction()
        with producer.transaction():
            write(producer, b"b")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]


def test_epochs_that_are_used_up_bring_a_new_producer_id(version_2: FakeBroker) -> None:
    with producer_of(version_2) as producer:
        producer.init_transactions()
        manager = producer._sequencer
        assert manager is not None
        first_id = manager.identity.producer_id
        version_2.transactions.transactions[ID].epoch = MAX_EPOCH - 2
        manager._adopt(manager.identity._replace(producer_epoch=MAX_EPOCH - 2))
        for value in (b"a", b"b"):
            with producer.transaction():
                write(producer, value)
        assert manager.identity.producer_id != first_id
    assert version_2.committed_values("single") == [b"a", b"b"]


# ENDING


def test_closing_within_a_transaction_aborts_it(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    producer.close()
    settle_markers(broker)
    assert broker.committed_values("single") == []
    assert broker.last_stable_offset("single", 0) == 2  # the row and the marker


def test_whoever_waits_for_a_commit_gets_an_error_when_a_forced_close_ends_it(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    held = broker.hold_next(ApiKey.END_TXN)
    errors: list[KafkaError] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except KafkaError as error:
            errors.append(error)

    waiting = threading.Thread(target=commit, daemon=True)
    waiting.start()
    broker.wait_until(lambda: bool(broker.requests_of(ApiKey.END_TXN)))
    producer.close(0)
    waiting.join(30)
    held.set()
    assert len(errors) == 1


def test_a_prepared_transaction_is_left_open_for_somebody_else(broker: FakeBroker, version: int) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"a")
    prepared = producer.prepare_transaction()
    assert prepared.transactional_id == ID
    assert prepared.transaction_version == version
    with pytest.raises(IllegalStateError, match="only within a transaction"):
        write(producer, b"b")
    producer.close()
    assert broker.requests_of(ApiKey.END_TXN) == []
    assert broker.committed_values("single") == []
    assert broker.values("single") == [b"a"]


def test_a_prepared_transaction_can_be_committed_by_its_own_producer(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.begin_transaction()
    write(producer, b"a")
    producer.prepare_transaction()
    producer.commit_transaction()
    with producer.transaction():
        write(producer, b"b")
    settle_markers(broker)
    assert broker.committed_values("single") == [b"a", b"b"]


# ANOTHER TRANSACTIONAL ID


def in_two_calls(producer: KafkaProducer, transactional_id: str) -> None:
    producer.use_transactional_id(transactional_id)
    producer.init_transactions()


TAKING_AN_ID = pytest.mark.parametrize("take", [in_two_calls, KafkaProducer.init_transactions], ids=["two calls", "one call"])


@TAKING_AN_ID
def test_a_producer_goes_on_under_another_id_and_leaves_what_it_has_prepared_open(broker: FakeBroker, take: Any) -> None:
    with producer_of(broker) as producer:
        prepared = []
        for number in range(3):
            take(producer, f"copies-{number}")
            producer.begin_transaction()
            write(producer, b"%d" % number)
            producer.send_offsets_to_transaction({TopicPartition("single", 0): OffsetAndMetadata(number)}, GROUP)
            prepared.append(producer.prepare_transaction())
            assert producer.is_at_rest()
        connections = len(broker.requests_of(ApiKey.METADATA))
        assert connections <= 3  # it does not begin anew each time
        assert [each.transactional_id for each in prepared] == ["copies-0", "copies-1", "copies-2"]
        assert len({each.producer_id for each in prepared}) == 3
        assert broker.requests_of(ApiKey.END_TXN) == []
        assert broker.values("single") == [b"0", b"1", b"2"]
        # It goes back to an id that it had before, whose open transaction is aborted, as by any new producer.
        take(producer, "copies-1")
        with producer.transaction():
            write(producer, b"3")
    settle_markers(broker)
    states = {name: each.state for name, each in broker.transactions.transactions.items()}
    assert states == {
        "copies-0": TransactionState.ONGOING,
        "copies-1": TransactionState.COMPLETE_COMMIT,
        "copies-2": TransactionState.ONGOING,
    }


@TAKING_AN_ID
def test_within_a_transaction_of_its_own_a_producer_keeps_its_id(producer: TaskProducer, take: Any) -> None:
    producer.begin_transaction()
    write(producer, b"a")
    assert not producer.is_at_rest()
    with pytest.raises(IllegalStateError, match="within a transaction"):
        take(producer, "other")
    producer.commit_transaction()
    assert producer.is_at_rest()


@TAKING_AN_ID
def test_after_a_fatal_error_there_is_no_other_id(broker: FakeBroker, producer: TaskProducer, take: Any) -> None:
    with producer_of(broker) as other:
        other.init_transactions()
        with pytest.raises(ProducerFencedError), producer.transaction():  # and the abort finds out that it is fenced
            write(producer, b"a")
    assert not producer.is_at_rest()
    with pytest.raises(ProducerFencedError):
        take(producer, "other")


@pytest.mark.parametrize("writes", [True, False], ids=["rows", "offsets"])
def test_a_producer_that_was_replaced_does_not_come_back_when_its_id_has_expired(broker: FakeBroker, writes: bool) -> None:
    """A was replaced by B, and both rested until the coordinator had forgotten their id. A went on: it was told to abort, got a
    new identity with the abort as if nobody had ever replaced it, committed rows that B had written, and B was fenced."""

    def go_on(producer: KafkaProducer) -> None:
        if writes:
            write(producer, b"twice")
        else:
            producer.send_offsets_to_transaction({TopicPartition("single", 0): OffsetAndMetadata(1)}, GROUP)

    with producer_of(broker) as replaced, producer_of(broker) as successor:
        for producer, value in ((replaced, b"a"), (successor, b"b")):
            producer.init_transactions()
            with producer.transaction():
                write(producer, value)
        with broker.lock:
            del broker.transactions.transactions[ID]
        for producer in (replaced, successor, replaced):
            with pytest.raises(FatalProducerError, match="INVALID_PRODUCER_ID_MAPPING"), producer.transaction():
                go_on(producer)
    with producer_of(broker) as fresh:
        fresh.init_transactions()
        with fresh.transaction():
            write(fresh, b"c")
    assert broker.committed_values("single") == [b"a", b"b", b"c"]
    assert broker.offsets.committed("readers") == {}


@pytest.mark.parametrize("wrong", ["", 1, "x" * 40_000])
def test_an_id_that_no_request_can_carry_is_not_taken(producer: KafkaProducer, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"transactional\.id"):
        producer.init_transactions(wrong)
    with producer.transaction():
        write(producer, b"a")


@pytest.mark.parametrize("wrong", ["", None, 1, "x" * 40_000])
def test_an_id_that_no_request_can_carry_is_refused(producer: KafkaProducer, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"transactional\.id"):
        producer.use_transactional_id(wrong)
    with producer.transaction():
        write(producer, b"a")


# VERSIONS


def test_brokers_that_are_upgraded_between_two_transactions_bump_the_epoch_once() -> None:
    with FakeBroker(nodes=1, topics={"single": 1}, transaction_version=1) as broker:
        with producer_of(broker) as producer:
            producer.init_transactions()
            with producer.transaction():
                write(producer, b"a")
            broker.set_transaction_version(2)
            broker.drop_connections(0)  # features are learnt with a new connection
            for value in (b"b", b"c", b"d"):
                with producer.transaction():
                    write(producer, value)
        assert broker.committed_values("single") == [b"a", b"b", b"c", b"d"]
        assert broker.violations == []
        assert len(broker.requests_of(ApiKey.INIT_PRODUCER_ID)) == 2


def test_version_2_is_taken_up_only_when_the_coordinator_itself_has_told_it() -> None:
    """Brokers hear of a raised level one after the other. A coordinator that is behind, at level 0, cannot log what leaders ask
    of it for a transaction of version 2."""
    with FakeBroker(nodes=2, topics={"orders": 2}, transaction_version=0) as broker, producer_of(broker) as producer:
        coordinator = broker.coordinators.node_of(KeyType.TRANSACTION, ID)
        leaders = {partition.leader: index for index, partition in enumerate(broker.topics["orders"].partitions)}

        def end_versions(other_node: int) -> set[int]:
            """Of a few transactions, after a new connection to this node."""
            broker.drop_connections(other_node)
            done = len(broker.requests_of(ApiKey.END_TXN))
            for _ in range(3):
                with producer.transaction():
                    write(producer, b"a", topic="orders", partition=leaders[other_node])
            return {request.header.api_version for request in broker.requests_of(ApiKey.END_TXN)[done:]}

        producer.init_transactions()
        assert end_versions(1 - coordinator) == {4}
        broker.set_transaction_version(2)
        assert end_versions(1 - coordinator) == {4}
        assert end_versions(coordinator) == {4, 5}
        assert end_versions(1 - coordinator) == {5}
    assert broker.violations == []
