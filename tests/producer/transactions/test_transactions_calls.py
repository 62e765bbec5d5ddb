"""The transactional methods as their callers see them: time-outs, calls that do not fit, offsets, and a closed producer.

Over real sockets against FakeBroker, for transactions of version 1 and of version 2.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.txn_requests.transactional_call import TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.producer.harness import tp
from tests.producer.transactions.transaction_stage import TransactionStage, caller_side_of
from tests.producer.transactions.transactional_brokers import GROUP, ID, WAIT_MS, producer_of, write

OFFSETS = {tp(0): OffsetAndMetadata(7)}
ALL_CALLS: dict[str, Callable[[KafkaProducer], object]] = {
    "init": KafkaProducer.init_transactions,
    "begin": KafkaProducer.begin_transaction,
    "send_offsets": lambda producer: producer.send_offsets_to_transaction(OFFSETS, GROUP),
    "prepare": KafkaProducer.prepare_transaction,
    "commit": KafkaProducer.commit_transaction,
    "abort": KafkaProducer.abort_transaction,
}


@contextmanager
def hurried(producer: KafkaProducer) -> Iterator[None]:
    """Calls that never end are given up soon. All others have the time that a busy machine takes."""
    calls = producer._caller_side
    assert calls is not None
    before, calls.max_block_ms = calls.max_block_ms, 100
    try:
        yield
    finally:
        calls.max_block_ms = before


def settled(producer: KafkaProducer) -> TransactionalCall:
    """The call that ran out of time, when it has ended."""
    assert producer._caller_side is not None
    operation = producer._caller_side._pending
    assert operation is not None
    assert operation.wait(WAIT_MS)
    return operation


def committed(broker: FakeBroker) -> list[bytes | None]:
    broker.transactions.write_markers()
    return broker.committed_values("single")


# TIME-OUTS


def test_an_end_that_timed_out_is_waited_for_by_the_same_call_and_refuses_others(
    broker: FakeBroker,
) -> None:
    for name, other in (("commit", "abort"), ("abort", "commit")):
        with producer_of(broker) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            write(producer, name.encode()).result(WAIT_MS)
            held = broker.hold_next(ApiKey.END_TXN)
            with hurried(producer), pytest.raises(TransactionTimeoutError, match=rf"{name}_transaction\(\) again"):
                ALL_CALLS[name](producer)
            for _ in range(2):  # while the call is under way, and when it has ended
                for refused in (other, "begin", "init", "send_offsets", "prepare"):
                    with pytest.raises(IllegalStateError, match=rf"{name}_transaction\(\)|while the transaction is being"):
                        ALL_CALLS[refused](producer)
                with pytest.raises(IllegalStateError, match="only within a transaction"):
                    write(producer, b"outside")
                held.set()
                settled(producer)
            ALL_CALLS[name](producer)
            with producer.transaction():
                write(producer, b"next")
    assert committed(broker) == [b"commit", b"next", b"next"]


def test_init_that_ran_out_of_time_is_waited_for_by_the_same_call(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        held = broker.hold_next(ApiKey.INIT_PRODUCER_ID)
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"InitProducerId|FindCoordinator"):
            producer.init_transactions()
        for refused in ("begin", "commit", "abort"):
            with pytest.raises(IllegalStateError, match=r"init_transactions\(\) timed out before"):
                ALL_CALLS[refused](producer)
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) timed out before for transactional\.id ''"):
            producer.init_transactions("another")
        held.set()
        settled(producer)
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) again"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="called once"):
            producer.init_transactions()
        with producer.transaction():
            write(producer, b"a")
    assert committed(broker) == [b"a"]


def test_another_id_that_ran_out_of_time_is_waited_for_by_the_same_call() -> None:
    """Each call was a new one: one that had timed out could still be carried out, after another."""
    stage = TransactionStage(2)
    callers = caller_side_of(stage, lambda: None)  # the Sender is busy
    with pytest.raises(TransactionTimeoutError, match=r"not come to it yet\. Call use_transactional_id\(\) again"):
        callers.use_id("b")
    with pytest.raises(IllegalStateError, match=r"use_transactional_id\(\) timed out before for transactional\.id 'b'"):
        callers.use_id("c")
    with pytest.raises(IllegalStateError, match=r"init_transactions\(\) is not possible now: use_transactional_id\(\) timed out"):
        callers.init()
    stage.run()
    callers.use_id("b")
    assert stage.manager.transactional_id == "b"
    caller_side_of(stage, stage.run).use_id("c")
    assert stage.manager.transactional_id == "c"


def test_init_keeps_within_its_time_while_nobody_answers() -> None:
    with FakeBroker(nodes=1) as broker:
        address = broker.bootstrap_servers
    producer = KafkaProducer({"bootstrap.servers": address, "transactional.id": ID, "max.block.ms": 100})
    text, calls = "", 0
    while "any broker" not in text and calls < 300:  # on a busy machine, the Sender has not yet looked for a coordinator
        with pytest.raises(TransactionTimeoutError, match=r"max\.block\.ms=100: ") as raised:
            producer.init_transactions()
        text, calls = str(raised.value), calls + 1
    assert "any broker" in text
    producer.close(0)


def text_of_time_out(producer: KafkaProducer, call: Callable[[KafkaProducer], object], expected: str) -> str:
    """The error of a call that is made again until its text has what is expected: a busy machine comes to it late."""
    text = ""
    for _ in range(300):
        with hurried(producer), pytest.raises(TransactionTimeoutError) as raised:
            call(producer)
        text = str(raised.value)
        if expected in text:
            return text
    raise AssertionError(text)


def test_a_call_that_runs_out_of_time_names_the_broker_that_cannot_be_reached(broker: FakeBroker) -> None:
    """A broker whose advertised name does not resolve: the error said only that FindCoordinator was not answered yet, where that
    of a row says why."""
    broker.hosts = dict.fromkeys(range(2), "no-such-host.invalid")
    producer = producer_of(broker)
    text = text_of_time_out(producer, KafkaProducer.init_transactions, "no-such-host.invalid")
    assert re.search(
        r"init_transactions\(\) has not ended within max\.block\.ms=100: FindCoordinator to any broker is not answered yet;"
        r" last trouble: no-such-host\.invalid:\d+: .+\. Call init_transactions\(\) again",
        text,
    ), text
    producer.close(0)


def test_a_commit_that_runs_out_of_time_names_the_brokers_that_cannot_be_reached(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    for node in range(2):
        broker.stop_node(node)
    text = text_of_time_out(producer, KafkaProducer.commit_transaction, "refused")
    assert re.search(
        r"is not answered yet; last trouble: .*127\.0\.0\.1:\d+: .*refused.*Call commit_transaction\(\) again", text
    ), text
    producer.close(0)


@pytest.mark.parametrize("error", [Errors.INVALID_TXN_STATE, Errors.TRANSACTION_ABORTABLE], ids=str)
def test_an_end_that_fails_after_its_time_is_raised_by_the_same_call(broker: FakeBroker, error: ErrorCode) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"a").result(WAIT_MS)
        release = threading.Event()
        broker.inject(Fault(ApiKey.END_TXN, error=error, release=release))
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"commit_transaction.* has not ended"):
            producer.commit_transaction()
        release.set()
        settled(producer)
        with pytest.raises(KafkaError, match=error.name) as raised:
            producer.commit_transaction()
        assert isinstance(raised.value, FatalProducerError if error == Errors.INVALID_TXN_STATE else AbortableTransactionError)


def test_after_a_commit_that_failed_late_the_transaction_can_be_aborted_at_once(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"lost").result(WAIT_MS)
        release = threading.Event()
        broker.inject(Fault(ApiKey.END_TXN, error=Errors.TRANSACTION_ABORTABLE, release=release))
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"commit_transaction.* has not ended"):
            producer.commit_transaction()
        release.set()
        settled(producer)
        producer.abort_transaction()
        with producer.transaction():
            write(producer, b"next")
    assert committed(broker) == [b"next"]


def test_a_transaction_that_waits_for_its_epoch_may_run_out_of_time() -> None:
    """In version 1; EndTxn raises it in version 2."""
    with FakeBroker(topics={"single": 1}, transaction_version=1) as broker, producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"lost").result(WAIT_MS)
        broker.fail_next(ApiKey.PRODUCE, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(BrokerError, match="KAFKA_OUT_OF_ORDER_SEQUENCE_NUMBER"):
            write(producer, b"refused").result(WAIT_MS)
        held = broker.hold_next(ApiKey.INIT_PRODUCER_ID)
        producer.abort_transaction()
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"begin_transaction\(\) again"):
            producer.begin_transaction()
        held.set()
        with producer.transaction():
            write(producer, b"next")
        assert committed(broker) == [b"next"]


def test_a_commit_whose_rows_take_too_long_is_waited_for_by_the_same_call(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        held = broker.hold_next(ApiKey.PRODUCE)
        delivery = write(producer, b"a")
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"not acknowledged yet|not answered yet"):
            producer.commit_transaction()
        held.set()
        settled(producer)
        producer.commit_transaction()
        assert delivery.done()
    assert committed(broker) == [b"a"]


# A BROKER THAT GOES DOWN


@pytest.mark.parametrize("of", ["coordinator", "leader"])
def test_a_broker_that_restarts_in_a_transaction_costs_nothing_but_time(broker: FakeBroker, of: str) -> None:
    coordinator = broker.coordinators.node_of(KeyType.TRANSACTION, ID)
    node = coordinator if of == "coordinator" else 1 - coordinator
    with producer_of(broker, reconnect_backoff_ms=10, reconnect_backoff_max_ms=50) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        columns = {"value": pa.array([b"a", b"b"]), "partition": pa.array([0, 1], pa.int32())}
        producer.send_columns("orders", **columns).result(WAIT_MS)
        broker.stop_node(node)
        delivery = producer.send_columns("orders", **columns)
        committing = threading.Thread(target=producer.commit_transaction, daemon=True)
        committing.start()
        broker.start_node(node)
        committing.join(30)
        assert not committing.is_alive()
        assert delivery.done()
    broker.transactions.write_markers()
    assert sorted(broker.committed_values("orders")) == [b"a", b"a", b"b", b"b"]


# OFFSETS


def test_after_offsets_that_ran_out_of_time_the_transaction_can_be_aborted(broker: FakeBroker) -> None:
    """The abort was refused; at the end of a `with` block the transaction stayed open, and nobody was told."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        held = broker.hold_next(ApiKey.TXN_OFFSET_COMMIT)

        def copy(until: ExitStack) -> None:
            with producer.transaction():
                write(producer, b"lost").result(WAIT_MS)
                until.enter_context(hurried(producer))  # the abort at the end of the block, too
                producer.send_offsets_to_transaction(OFFSETS, GROUP)

        with ExitStack() as until, pytest.raises(TransactionTimeoutError, match="abort"):
            copy(until)
        held.set()
        producer.abort_transaction()  # goes on with the one at the end of the block
        with producer.transaction():
            write(producer, b"next")
    assert committed(broker) == [b"next"]
    assert broker.offsets.committed("readers") == {}


def test_offsets_that_ran_out_of_time_are_sent_again_with_those_of_the_next_call(broker: FakeBroker) -> None:
    """The second call waited for the first one, and its own offsets were never sent."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        held = broker.hold_next(ApiKey.TXN_OFFSET_COMMIT)
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"send_offsets_to_transaction.* has not ended"):
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(1)}, GROUP)
        held.set()
        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(2), tp(1): OffsetAndMetadata(3)}, GROUP)
        producer.commit_transaction()
    broker.transactions.write_markers()
    assert {where.partition: each.offset for where, each in broker.offsets.committed("readers").items()} == {0: 2, 1: 3}


def test_a_commit_waits_for_offsets_that_ran_out_of_time(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        held = broker.hold_next(ApiKey.TXN_OFFSET_COMMIT)
        with hurried(producer), pytest.raises(TransactionTimeoutError, match=r"send_offsets_to_transaction.* has not ended"):
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
        held.set()
        producer.commit_transaction()
    broker.transactions.write_markers()
    assert broker.offsets.committed("readers")[tp(0)].offset == 7


def test_no_offsets_are_sent_where_there_are_none(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            for _ in range(2):
                producer.send_offsets_to_transaction({}, GROUP)
    assert broker.requests_of(ApiKey.TXN_OFFSET_COMMIT) == []
    assert broker.requests_of(ApiKey.END_TXN) == []


def test_the_member_of_the_group_is_named_with_its_offsets(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction(OFFSETS, ConsumerGroupMetadata("readers", 5, "member", "instance"))
    (request,) = broker.requests_of(ApiKey.TXN_OFFSET_COMMIT)
    message = request.message
    assert isinstance(message, TxnOffsetCommitRequest)
    assert (message.generation_id, message.member_id, message.group_instance_id) == (5, "member", "instance")


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        (None, TypeError, "group_metadata must be a ConsumerGroupMetadata, .*, not None"),
        ("readers", TypeError, "group_metadata must be a ConsumerGroupMetadata, .*, not 'readers'"),
        (ConsumerGroupMetadata("readers", 2), ValueError, "generation 2 of group 'readers' needs a member id"),
    ],
)
@pytest.mark.parametrize("offsets", [{}, OFFSETS], ids=["no offsets", "offsets"])
def test_a_group_that_cannot_be_meant_is_refused(
    broker: FakeBroker, offsets: Any, group: Any, error: type[Exception], message: str
) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            with pytest.raises(error, match=message):
                producer.send_offsets_to_transaction(offsets, group)
            write(producer, b"a")
    assert committed(broker) == [b"a"]


def test_offsets_of_a_topic_that_is_not_known_are_tried_again_with_a_word(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt topic waited for max.block.ms in silence."""
    broker.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.UNKNOWN_TOPIC_OR_PARTITION, times=2)
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
    (message,) = [record.getMessage() for record in caplog.records if "UNKNOWN_TOPIC" in record.getMessage()]
    assert message.startswith("! offset of orders-0 for group 'readers': UNKNOWN_TOPIC_OR_PARTITION")
    assert message.endswith("Trying again for max.block.ms: it may be created meanwhile")


@pytest.mark.parametrize("moves", [False, True], ids=["comes back", "moves"])
def test_a_group_coordinator_that_is_lost_in_the_middle_is_found_again(broker: FakeBroker, moves: bool) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
        node = broker.coordinators.node_of(KeyType.GROUP, "readers")
        broker.drop_connections(node)
        if moves:
            broker.move_coordinator(KeyType.GROUP, "readers", 1 - node)
        with producer.transaction():
            producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(8)}, GROUP)
    broker.transactions.write_markers()
    assert broker.offsets.committed("readers")[tp(0)].offset == 8


# PERMISSIONS


def test_an_id_that_is_denied_at_init_is_named_and_can_be_asked_for_again(broker: FakeBroker) -> None:
    for error in (Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        broker.fail_next(ApiKey.INIT_PRODUCER_ID, error)
        with producer_of(broker) as producer:
            with pytest.raises(AuthorizationError, match=ID) as raised:
                producer.init_transactions()
            assert raised.value.condition == f"KAFKA_{error.name}"
            with pytest.raises(IllegalStateError, match=r"before init_transactions\(\)"):
                producer.begin_transaction()
            producer.init_transactions()


def test_a_group_that_is_denied_is_named_wherever_it_is_asked_for(broker: FakeBroker, version: int) -> None:
    apis = [ApiKey.FIND_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT]
    if version == 1:
        apis.append(ApiKey.ADD_OFFSETS_TO_TXN)
    for api in apis:
        with producer_of(broker) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            broker.fail_next(api, Errors.GROUP_AUTHORIZATION_FAILED)
            with pytest.raises(AbortableTransactionError, match="'readers'") as raised:
                producer.send_offsets_to_transaction(OFFSETS, GROUP)
            assert raised.value.condition == "KAFKA_GROUP_AUTHORIZATION_FAILED"
            producer.abort_transaction()


# A CLOSED PRODUCER


@pytest.mark.parametrize("call", ALL_CALLS)
def test_a_closed_producer_refuses_every_call_at_once(broker: FakeBroker, call: str) -> None:
    """Each of them waited for max.block.ms, and told its caller to call again."""
    producer = producer_of(broker)
    producer.init_transactions()
    producer.close()
    with pytest.raises(ProducerClosedError):
        ALL_CALLS[call](producer)


def test_every_call_raises_what_has_ended_the_sender(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of(broker)
    producer.init_transactions()

    def end(*_: object) -> None:
        raise SystemExit("as planned")

    monkeypatch.setattr(producer._sender, "run_once", end)
    producer._sender._client.wakeup()
    producer._thread.join(30)
    for call in ALL_CALLS.values():
        with pytest.raises(KafkaError, match="as planned"):
            call(producer)
    producer.close()


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN])
def test_who_waits_for_a_coordinator_gets_an_error_when_the_producer_is_closed(broker: FakeBroker, api: ApiKey) -> None:
    producer = producer_of(broker)
    errors: list[KafkaError] = []
    name = {ApiKey.END_TXN: "commit", ApiKey.TXN_OFFSET_COMMIT: "send_offsets"}.get(api, "init")

    def call() -> None:
        try:
            ALL_CALLS[name](producer)
        except KafkaError as error:
            errors.append(error)

    if name != "init":
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"a").result(WAIT_MS)
    held = broker.hold_next(api)
    before = len(broker.requests_of(api))
    waiting = threading.Thread(target=call, daemon=True)
    waiting.start()
    broker.wait_until(lambda: len(broker.requests_of(api)) > before)
    producer.close(50)
    waiting.join(30)
    assert len(errors) == 1
    held.set()


@pytest.mark.timeout(20)
def test_closing_within_a_transaction_aborts_it_within_the_time_out(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"a").result(WAIT_MS)
    held = broker.hold_next(ApiKey.END_TXN)
    producer.close(100)
    held.set()
    assert committed(broker) == []


@pytest.mark.timeout(20)
def test_closing_within_a_transaction_that_brokers_know_nothing_of_takes_no_time(broker: FakeBroker) -> None:
    """No answer came that would have woken the Sender: it slept for up to a minute."""
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    producer.close()
    assert broker.requests_of(ApiKey.END_TXN) == []


def test_a_forced_close_leaves_the_transaction_to_the_successor(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.init_transactions()
    producer.begin_transaction()
    write(producer, b"lost").result(WAIT_MS)
    producer.close(0)
    assert broker.requests_of(ApiKey.END_TXN) == []
    with producer_of(broker) as successor:
        successor.init_transactions()
        with successor.transaction():
            write(successor, b"next")
    assert committed(broker) == [b"next"]


def test_a_producer_that_was_replaced_leaves_the_transaction_of_its_successor_alone(broker: FakeBroker) -> None:
    """Its abort was refused, and it asked for the next epoch: the coordinator aborted the transaction of the successor."""
    zombie = producer_of(broker)
    zombie.init_transactions()
    zombie.begin_transaction()
    with producer_of(broker) as successor:
        successor.init_transactions()
        with successor.transaction():
            write(successor, b"of the successor").result(WAIT_MS)
            late = write(zombie, b"late")
            # A leader does not say why it rejects.
            with pytest.raises((AbortableTransactionError, ProducerFencedError), match=r"has been started since|newer producer"):
                zombie.commit_transaction()
            with pytest.raises(ProducerFencedError):
                zombie.abort_transaction()
            assert late.error is not None
            zombie.close()
    assert committed(broker) == [b"of the successor"]


# SEVERAL THREADS


def test_while_a_call_is_under_way_other_calls_of_other_threads_are_refused_at_once(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"a").result(WAIT_MS)
        held = broker.hold_next(ApiKey.END_TXN)
        committing = threading.Thread(target=producer.commit_transaction, daemon=True)
        committing.start()
        broker.wait_until(lambda: bool(broker.requests_of(ApiKey.END_TXN)))
        for refused in ("init", "begin", "send_offsets", "prepare", "abort"):
            with pytest.raises(IllegalStateError, match="timed out before and is still in progress"):
                ALL_CALLS[refused](producer)
        held.set()
        committing.join(30)
        with producer.transaction():
            write(producer, b"b")
    assert committed(broker) == [b"a", b"b"]


def test_two_threads_that_commit_the_same_transaction_both_hear_of_its_end(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, b"a").result(WAIT_MS)
        held = broker.hold_next(ApiKey.END_TXN)
        threads = [threading.Thread(target=producer.commit_transaction, daemon=True) for _ in range(2)]
        threads[0].start()
        broker.wait_until(lambda: bool(broker.requests_of(ApiKey.END_TXN)))
        threads[1].start()
        held.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert len(broker.requests_of(ApiKey.END_TXN)) == 1
    assert committed(broker) == [b"a"]


def test_only_one_of_two_threads_that_begin_at_the_same_time_begins(broker: FakeBroker) -> None:
    """Both calls returned, and each thread took the transaction for its own."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        calls = producer._caller_side
        assert calls is not None
        is_let_on = threading.Event()
        hand_over = calls._queue_all_rows

        def slow_hand_over(*arguments: Any) -> None:
            is_let_on.wait(30)
            hand_over(*arguments)

        calls._queue_all_rows = slow_hand_over
        first = threading.Thread(target=producer.begin_transaction, daemon=True)
        first.start()
        broker.wait_until(lambda: bool(calls._begin_calls))
        with pytest.raises(IllegalStateError, match="another thread"):
            producer.begin_transaction()
        is_let_on.set()
        first.join(30)
        write(producer, b"a")
        producer.commit_transaction()
    assert committed(broker) == [b"a"]


def test_no_other_thread_ends_a_transaction_before_its_begin_has_returned(broker: FakeBroker) -> None:
    """begin_transaction() opened the door when the transaction was over: the rows went into the next one."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        calls = producer._caller_side
        assert calls is not None
        call = calls._post_and_wait

        def call_and_be_overtaken(*arguments: Any) -> TransactionalCall:
            operation = call(*arguments)
            with pytest.raises(IllegalStateError, match=r"call begin_transaction\(\) again"):
                producer.abort_transaction()
            return operation

        calls._post_and_wait = call_and_be_overtaken
        producer.begin_transaction()
        calls._post_and_wait = call
        write(producer, b"a")
        producer.commit_transaction()
    assert committed(broker) == [b"a"]


def test_after_an_abort_that_does_not_fit_the_next_transaction_accepts_rows(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="outside of a transaction"):
            producer.abort_transaction()
        with producer.transaction():
            write(producer, b"a")
    assert committed(broker) == [b"a"]


# THE BLOCK


def test_a_block_waits_for_the_abort_of_the_one_before_that_ran_out_of_time(broker: FakeBroker) -> None:
    """Each later block raised IllegalStateError, which a loop that goes on after a KafkaError took for one more aborted block."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        held = broker.hold_next(ApiKey.END_TXN)
        with hurried(producer), pytest.raises(KeyError), producer.transaction():  # noqa: PT012 - the block is tested
            write(producer, b"lost").result(WAIT_MS)
            raise KeyError("of the block")
        held.set()
        with producer.transaction():
            write(producer, b"next")
    assert committed(broker) == [b"next"]


def test_a_block_whose_commit_runs_out_of_time_leaves_the_commit_to_go_on(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.init_transactions()
        held = broker.hold_next(ApiKey.END_TXN)
        with (
            hurried(producer),
            pytest.raises(TransactionTimeoutError, match=r"commit_transaction.* has not ended"),
            producer.transaction(),
        ):
            write(producer, b"a").result(WAIT_MS)
        held.set()
        producer.commit_transaction()
    assert committed(broker) == [b"a"]
    assert [request.message.committed for request in broker.requests_of(ApiKey.END_TXN)] == [True]


def test_a_block_that_is_interrupted_while_it_commits_leaves_the_commit_to_go_on(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C."""
    with producer_of(broker) as producer:
        producer.init_transactions()
        with pytest.raises(KeyboardInterrupt), producer.transaction():  # noqa: PT012 - the block is tested
            write(producer, b"a")
            monkeypatch.setattr(TransactionalCall, "wait", _interrupted)
        monkeypatch.undo()
        producer.commit_transaction()
        with producer.transaction():
            write(producer, b"b")
    assert committed(broker) == [b"a", b"b"]


def _interrupted(*_: object) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ALL_CALLS)
def test_a_callback_that_calls_a_transactional_method_is_refused_at_once(broker: FakeBroker, call: str) -> None:
    """The call waited for its own thread, for max.block.ms."""
    raised: list[BaseException] = []
    with producer_of(broker) as producer:

        def calls_the_producer(*_: object) -> None:
            try:
                ALL_CALLS[call](producer)
            except BaseException as error:  # noqa: BLE001 - looked at below
                raised.append(error)

        producer.init_transactions()
        with producer.transaction():
            producer.send("single", b"a", callback=calls_the_producer)
    assert [type(error) for error in raised] == [IllegalStateError]
    assert "callback" in str(raised[0])
    assert committed(broker) == [b"a"]
