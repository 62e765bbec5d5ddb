"""A row that fails before it gets into a batch: its transaction cannot be committed without it.

Whoever sends hears of such a row by its future, which nobody has to look at. Where a call raises and has queued nothing, the
caller knows, and the transaction goes on.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    SchemaError,
    TransactionAbortedError,
)
from spark_kafka_sink.producer.accumulator import record_accumulator
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerColumns, ProducerRecord
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.fake_broker import FakeBroker
from tests.producer.plugins.sample_interceptors import Changing
from tests.producer.producers import await_answers, give_up_soon

WAIT_MS = 30_000
WAIT_S = 30.0


def open_producer(broker: FakeBroker, **options: Any) -> KafkaProducer:
    """Within a transaction that has a row."""
    defaults = {
        "bootstrap_servers": broker.bootstrap_servers,
        "transactional_id": "t",
        "retry_backoff_ms": 10,
        "linger_ms": 10_000,
    }
    producer = KafkaProducer({name.replace("_", "."): value for name, value in (defaults | options).items()})
    assert producer._caller_side is not None
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_columns("single", value=pa.array([b"with the lost one"]))
    return producer


def ends(producer: KafkaProducer, broker: FakeBroker, match: str) -> None:
    """The transaction cannot be committed, and the next one can."""
    with pytest.raises(AbortableTransactionError, match=match):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("single", b"next")
    broker.transactions.write_markers()
    assert broker.committed_values("single") == [b"next"]
    producer.close()


def goes_on(producer: KafkaProducer, broker: FakeBroker) -> None:
    producer.commit_transaction()
    broker.transactions.write_markers()
    assert broker.committed_values("single") == [b"with the lost one"]
    producer.close()


# SINGLE RECORDS


def test_a_record_that_is_too_large_makes_the_commit_fail(broker: FakeBroker) -> None:
    producer = open_producer(broker, max_request_size=1000)
    assert isinstance(producer.send("single", bytes(2000)).exception(0), RecordTooLargeError)
    ends(producer, broker, "max.request.size=1000")


def test_a_record_for_a_topic_that_there_is_not_makes_the_commit_fail(broker: FakeBroker) -> None:
    producer = open_producer(broker)
    await_answers(producer, "absent")
    give_up_soon(producer)
    assert isinstance(producer.send("absent", b"a").exception(0), KafkaTimeoutError)
    ends(producer, broker, "Topic absent not present")


def test_a_record_for_a_topic_that_there_cannot_be_makes_the_commit_fail(broker: FakeBroker) -> None:
    broker.add_topic("topic abc", 1).error = Errors.INVALID_TOPIC_EXCEPTION
    producer = open_producer(broker)
    error = producer.send("topic abc", b"a").exception(0)
    assert error is not None
    assert error.condition == "KAFKA_INVALID_TOPIC_EXCEPTION"
    ends(producer, broker, "topic abc")


def test_a_record_for_a_partition_that_there_is_not_makes_the_commit_fail(broker: FakeBroker) -> None:
    producer = open_producer(broker)
    await_answers(producer, "orders")
    give_up_soon(producer)
    assert producer.send(ProducerRecord("orders", b"a", partition=9)).exception(0) is not None
    ends(producer, broker, "9")


def test_a_record_that_there_is_no_memory_for_makes_the_commit_fail(broker: FakeBroker) -> None:
    producer = open_producer(broker, buffer_memory=65_536)
    release = broker.hold_next(ApiKey.PRODUCE)
    await_answers(producer, "orders")
    for _ in range(3):
        producer.send_columns("orders", value=pa.array([bytes(15_000)]), partition=pa.array([0], pa.int32()))
    give_up_soon(producer)
    future = producer.send("orders", bytes(30_000))
    release.set()
    assert isinstance(future.exception(WAIT_S), KafkaTimeoutError)
    ends(producer, broker, "buffer.memory")


def test_a_gathered_record_that_an_interceptor_spoils_makes_the_commit_fail(broker: FakeBroker) -> None:
    def enlarge(columns: ProducerColumns) -> ProducerColumns:
        return replace(columns, value=pa.array([bytes(2000)])) if columns.topic == "orders" else columns

    producer = open_producer(broker, max_request_size=1000, interceptor_classes=[Changing(enlarge)])
    future = producer.send("orders", b"a")
    with pytest.raises(AbortableTransactionError, match=r"max\.request\.size=1000"):
        producer.commit_transaction()
    assert isinstance(future.exception(0), RecordTooLargeError)
    producer.close()


def test_gathered_records_that_have_no_partition_make_the_commit_fail(broker: FakeBroker) -> None:
    def choose(topic: str, *_: object) -> object:
        if topic == "orders":
            raise ZeroDivisionError("as planned")
        return np.zeros(1, np.int32)

    producer = open_producer(broker, partitioner_class=choose)
    future = producer.send("orders", b"a")
    ends(producer, broker, "as planned")
    assert future.exception(0) is not None


def test_a_commit_that_cannot_encode_gathered_records_cannot_be_made_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """commit_transaction() failed while it encoded them, and called again it committed the others."""
    error = pa.ArrowCapacityError("too much")
    producer = open_producer(broker)
    future = producer.send("single", b"lost")

    def raises(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched, pytest.raises(pa.ArrowCapacityError, match="too much"):  # noqa: PT012 - only this commit fails
        patched.setattr(record_accumulator, "SortedSlice", raises)
        producer.commit_transaction()
    assert future.exception(WAIT_S) is not None
    ends(producer, broker, "cannot be encoded")


def test_the_first_row_that_fails_is_the_one_in_the_error(broker: FakeBroker) -> None:
    producer = open_producer(broker, max_request_size=1000)
    await_answers(producer, "absent")
    give_up_soon(producer, 1_000)
    producer.send("single", bytes(2000))
    # It waits for the topic while the Sender finds the first row too large; if it found that before, it does not wait.
    with pytest.raises((KafkaTimeoutError, AbortableTransactionError), match=r"KAFKA_UNKNOWN_TOPIC|KAFKA_RECORD_TOO_LARGE"):
        producer.send("absent", b"a").result(WAIT_S)
    ends(producer, broker, "max.request.size=1000")


# COLUMNS


def test_rows_of_a_call_that_ran_out_of_memory_on_its_way_make_the_commit_fail(broker: FakeBroker) -> None:
    """Some of its rows are in the transaction, the others are not."""
    producer = open_producer(broker, buffer_memory=65_536)
    await_answers(producer, "orders")
    release = broker.hold_next(ApiKey.PRODUCE)
    give_up_soon(producer)
    rows = pa.array([bytes(15_000)] * 20)
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        producer.send_columns("orders", value=rows, partition=pa.array([0] * 20, pa.int32()))
    release.set()
    ends(producer, broker, "buffer.memory")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"value": pa.array([bytes(2000), b"a"])}, RecordTooLargeError),
        ({"value": pa.array([1.5])}, SchemaError),
        ({"value": pa.array([b"a"]), "partition": pa.array([7], pa.int32())}, KafkaError),
    ],
    ids=["too large", "a wrong type", "no such partition"],
)
def test_a_call_that_raises_before_it_queues_a_row_leaves_the_transaction_as_it_was(
    broker: FakeBroker, columns: dict[str, pa.Array], error: type[KafkaError]
) -> None:
    producer = open_producer(broker, max_request_size=1000)
    await_answers(producer, "orders")
    give_up_soon(producer)
    with pytest.raises(error):
        producer.send_columns("orders", **columns)
    goes_on(producer, broker)


def test_a_record_that_cannot_be_serialized_leaves_the_transaction_as_it_was(broker: FakeBroker) -> None:
    producer = open_producer(broker, key_serializer="long")
    with pytest.raises(SerializationError):
        producer.send("single", b"a", key="one")
    goes_on(producer, broker)


# TWO TRANSACTIONS


class Waiting:
    """A partitioner for records that lets a caller wait between the gate and the queue."""

    def __init__(self) -> None:
        self.reached, self.release = threading.Event(), threading.Event()

    def partition(self, *record: Any) -> int:
        if record[3] == b"late":
            self.reached.set()
            assert self.release.wait(WAIT_S)
        return 0


def test_a_record_gathered_after_an_abort_is_not_part_of_the_next_transaction(broker: FakeBroker) -> None:
    """The record was part of it: a bundle begun between the abort's last look and the next begin waited there for linger.ms."""
    partitioner = Waiting()
    producer = open_producer(broker, partitioner_class=partitioner)
    futures: list[RecordFuture] = []
    late = threading.Thread(target=lambda: futures.append(producer.send("single", b"late")), daemon=True)
    late.start()
    assert partitioner.reached.wait(WAIT_S)
    producer.abort_transaction()
    beginning = threading.Thread(target=producer.begin_transaction, daemon=True)
    beginning.start()  # waits for the caller who still writes
    partitioner.release.set()
    late.join(WAIT_S)
    beginning.join(WAIT_S)
    producer.send_columns("single", value=pa.array([b"next"]))
    producer.commit_transaction()
    broker.transactions.write_markers()
    assert broker.committed_values("single") == [b"next"]
    assert isinstance(futures[0].exception(0), TransactionAbortedError)
    producer.close()


def test_records_gathered_before_a_commit_are_part_of_it_and_not_of_the_next_one(broker: FakeBroker) -> None:
    producer = open_producer(broker)
    for number in range(5):
        producer.send("orders", b"%d" % number)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("orders", b"lost")
        producer.abort_transaction()
        producer.begin_transaction()
    producer.commit_transaction()
    broker.transactions.write_markers()
    assert sorted(broker.committed_values("orders")) == [b"0", b"1", b"2", b"3", b"4"]
    producer.close()


def test_records_of_many_threads_are_in_the_transaction_in_which_they_were_accepted(broker: FakeBroker) -> None:
    """A bundle never straddles two transactions: what was accepted before a commit is committed, what fails was aborted."""
    producer = open_producer(broker, linger_ms=1)
    done = threading.Event()
    accepted: dict[bytes, RecordFuture] = {}

    def send(name: int) -> None:
        number = 0
        while not done.is_set():
            value = b"%d-%d" % (name, number)
            number += 1
            try:
                accepted[value] = producer.send("orders", value)
            except KafkaError:  # between two transactions
                done.wait(0.0005)

    threads = [threading.Thread(target=send, args=(name,), daemon=True) for name in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.begin_transaction()
    done.set()
    for thread in threads:
        thread.join(WAIT_S)
    producer.commit_transaction()
    producer.close()
    broker.transactions.write_markers()
    committed = broker.committed_values("orders")
    assert len(committed) == len(set(committed))
    failed = {value for value, future in accepted.items() if future.exception(0) is not None}
    assert not failed & set(committed)
    written = set(broker.values("orders"))
    assert set(accepted) - failed <= written
