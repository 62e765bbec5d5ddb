"""KafkaProducer.send_table: a stream is queued batch by batch, with one Delivery, and half a table is never committed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_kafka_sink
from spark_kafka_sink.errors import (
    AbortableTransactionError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaError,
)
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.tables.table_sender import TableSender
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import tp
from tests.producer.producers import give_up_soon
from tests.producer.transactions.transactional_brokers import producer_of

WAIT_MS = 30_000


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"orders": 4, "single": 1}) as cluster:
        yield cluster
        assert cluster.violations == []


def batch(*values: str, **columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.string()), **columns})


def stream(*batches: pa.RecordBatch | Exception) -> pa.RecordBatchReader:
    """Raises what is no batch."""

    def each() -> Iterator[pa.RecordBatch]:
        for batch_or_error in batches:
            if isinstance(batch_or_error, Exception):
                raise batch_or_error
            yield batch_or_error

    first = batches[0]
    assert not isinstance(first, Exception)
    return pa.RecordBatchReader.from_batches(first.schema, each())


# ONE DELIVERY


def test_all_batches_of_a_table_have_one_delivery(broker: FakeBroker, producer: KafkaProducer) -> None:
    delivery = producer.send_table("single", stream(batch("a", "b"), batch(), batch("c")))
    assert delivery.rows == 3
    producer.flush(WAIT_MS)
    assert delivery.result(0) is delivery
    assert (delivery.acknowledged, delivery.failed, delivery.done()) == (3, 0, True)
    written = delivery.offsets[tp(0, "single")]
    assert (written.first, written.last, written.rows) == (0, 2, 3)
    assert broker.values("single") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("table", [batch(), pa.Table.from_batches([], batch().schema)], ids=["no row", "no batch"])
def test_a_table_without_rows_is_delivered_at_once(broker: FakeBroker, producer: KafkaProducer, table: Any) -> None:
    assert producer.send_table("single", table).result(0).rows == 0
    assert broker.requests_of(ApiKey.PRODUCE) == []


def test_rows_that_fail_later_are_named_by_their_places_in_the_table(broker: FakeBroker, producer: KafkaProducer) -> None:
    """Each batch counted its rows from 0: the first of two batches was blamed for a row of the second."""
    broker.add_topic("small", 1, max_message_bytes=1_000)
    delivery = producer.send_table("small", stream(batch("a", "b", "c"), batch("d", "e" * 2_000)))
    producer.flush(WAIT_MS)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        delivery.result(0)
    assert np.concatenate([each.rows for each in delivery.failures]).tolist() == [4]
    assert (delivery.acknowledged, delivery.failed) == (4, 1)
    assert broker.values("small") == [b"a", b"b", b"c", b"d"]


def test_flush_waits_for_a_table_alone(producer: KafkaProducer) -> None:
    delivery = producer.send_table("single", batch("a"))
    producer.flush(WAIT_MS, until=delivery)
    assert delivery.done()


def test_every_part_of_a_record_comes_from_its_column(broker: FakeBroker, producer: KafkaProducer) -> None:
    headers = pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary()))
    table = batch("v", "w", topic=["orders", "single"], key=["k", None], partition=[3, None], timestamp=[5, 6], headers=headers)
    producer.send_table(None, table)
    producer.flush(WAIT_MS)
    (first,), (second,) = broker.records("orders", 3), broker.records("single")
    assert (first.key, first.value, first.timestamp, first.headers) == (b"k", b"v", 5, (("h", b"1"),))
    assert (second.key, second.value, second.timestamp, second.headers) == (None, b"w", 6, ())


def test_a_name_overrides_the_column_topic(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_table("single", batch("a", topic=["orders"]))
    producer.flush(WAIT_MS)
    assert (broker.values("single"), broker.values("orders")) == ([b"a"], [])


def test_serializers_are_for_single_records(broker: FakeBroker) -> None:
    """As for send_columns: a column is bytes already."""

    def refuse(value: object) -> bytes:
        raise AssertionError(value)

    with producer_of(broker, transactional_id=None, value_serializer=refuse, key_serializer=refuse) as producer:
        producer.send_table("single", batch("a", key=["k"]))
    assert broker.values("single") == [b"a"]


def test_interceptors_see_each_batch(broker: FakeBroker) -> None:
    class Doubles:
        row_counts: list[int] = []  # noqa: RUF012

        def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
            assert columns.value is not None
            self.row_counts.append(len(columns.value))
            return replace(columns, value=pc.binary_join_element_wise(columns.value, columns.value, ""))

    with producer_of(broker, transactional_id=None, interceptor_classes=[Doubles()]) as producer:
        delivery = producer.send_table("single", stream(batch("a", "b"), batch("c")))
    assert delivery.result(0).acknowledged == 3
    assert Doubles.row_counts == [2, 1]
    assert broker.values("single") == [b"aa", b"bb", b"cc"]


def test_a_partitioner_chooses_for_each_batch(broker: FakeBroker) -> None:
    class Last:
        def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> Any:  # noqa: ARG002
            return np.full(len(value), 3)

    with producer_of(broker, transactional_id=None, partitioner_class=Last()) as producer:
        producer.send_table("orders", stream(batch("a"), batch("b")))
    assert broker.values("orders", 3) == [b"a", b"b"]


def test_the_types_of_its_arguments_come_from_the_package() -> None:
    assert "ArrowTable" in spark_kafka_sink.__all__
    assert {"ArrowStreamExportable", "ArrowArrayExportable"} == {each.__name__ for each in spark_kafka_sink.ArrowTable.__args__}


# A STREAM IS NEVER IN MEMORY AS A WHOLE


class Source:
    """Batches of 100 KB, whose memory is watched."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.asked_for = self.alive = self.most_alive = 0

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(batch().schema, (self._make() for _ in range(self.batches)))

    def _make(self) -> pa.RecordBatch:
        self.asked_for += 1
        octets = np.full(100_000, ord("x"), np.uint8)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(octets, self._end)
        offsets = pa.py_buffer(np.arange(0, 100_001, 1_000, dtype=np.int32))
        return pa.RecordBatch.from_arrays(
            [pa.Array.from_buffers(pa.string(), 100, [None, offsets, pa.py_buffer(octets)])], ["value"]
        )

    def _end(self) -> None:
        self.alive -= 1


def test_a_batch_is_let_go_before_the_next_one_is_read(broker: FakeBroker, producer: KafkaProducer) -> None:
    source = Source(50)
    delivery = producer.send_table("single", source.reader())
    assert source.most_alive == 1
    producer.flush(WAIT_MS)
    assert delivery.result(0).rows == len(broker.values("single")) == 5_000
    assert source.alive == 0


def test_a_stream_waits_for_memory_instead_of_being_read(broker: FakeBroker) -> None:
    options = {"transactional_id": None, "buffer_memory": 300_000, "batch_size": 100_000, "max_block_ms": WAIT_MS}
    source = Source(20)
    with producer_of(broker, **options) as producer:
        producer.partitions_for("single")
        release = broker.hold_next(ApiKey.PRODUCE)
        thread = threading.Thread(target=producer.send_table, args=("single", source.reader()))
        thread.start()
        broker.wait_until(lambda: producer._pool.waiter_count() == 1)
        assert source.asked_for <= 5
        release.set()
        thread.join(WAIT_MS / 1000)
    assert source.asked_for == 20
    assert len(broker.values("single")) == 2_000


def test_a_stream_that_gets_no_memory_fails_and_says_how_far_it_came(broker: FakeBroker) -> None:
    options = {"transactional_id": None, "buffer_memory": 300_000, "batch_size": 100_000}
    source = Source(20)
    with producer_of(broker, **options) as producer:
        producer.send_table("single", batch("first"))
        producer.flush(WAIT_MS)
        give_up_soon(producer)
        release = broker.hold_next(ApiKey.PRODUCE)
        try:
            with pytest.raises(KafkaTimeoutError, match=r"batch that begins at row \d+; the rows before it are queued"):
                producer.send_table("single", source.reader())
        finally:
            release.set()
    assert source.asked_for < 6
    assert source.alive == 0


# ERRORS


@pytest.mark.parametrize(
    ("topic", "table", "kind", "words"),
    [
        ("single", {"value": ["a"]}, SchemaError, "table of the Python type dict cannot be read"),
        (5, batch("a"), SchemaError, "topic has the Python type int; pass a str, or None for the column topic"),
        (batch("a"), "single", SchemaError, "topic has the Python type RecordBatch"),
        (None, batch("a"), SchemaError, "no topic: pass its name"),
        ("single", batch("a", key=[1]), SchemaError, "column key has type int64"),
        (None, batch("a", "b", topic=["single", None]), InvalidRecordError, "row 1 of this table has a null topic: fill it in"),
        ("single", batch("a", partition=[-1]), InvalidRecordError, "Invalid partition: -1"),
        ("single", batch("a", timestamp=[-5]), InvalidRecordError, "row 0 of this table: timestamp -5 is negative"),
        ("single", batch("a", headers=[[{"key": None, "value": b""}]]), InvalidRecordError, "row 0 of this table: a header has"),
        ("single", batch("a", "b" * 2_000_000), RecordTooLargeError, "row 1 of this table, topic single"),
    ],
)  # fmt: skip
def test_bad_columns_raise_before_a_row_is_queued(
    broker: FakeBroker, producer: KafkaProducer, topic: Any, table: Any, kind: type[KafkaError], words: str
) -> None:
    with pytest.raises(kind, match=words) as raised:
        producer.send_table(topic, table)
    assert "are queued" not in raised.value.message
    producer.flush(WAIT_MS)
    assert broker.values("single") == []


LATER = r" \(in the table's batch that begins at row 2; the rows before it are queued, and are not taken back\)$"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (batch("c", topic=[None]), "row 2 of this table has a null topic: fill .*"),
        (batch("c" * 2_000_000, topic=["single"]), "row 2 of this table, topic single: .*"),
        (ZeroDivisionError("no more"), "the table cannot be read: no more"),
    ],
    ids=["null topic", "too large", "source"],
)
def test_an_error_of_a_later_batch_says_what_is_queued(broker: FakeBroker, producer: KafkaProducer, bad: Any, words: str) -> None:
    good = batch("a", "b", topic=["single", "single"])
    bad = bad if isinstance(bad, Exception) else bad.cast(good.schema)
    with pytest.raises(KafkaError, match=words + LATER):
        producer.send_table(None, stream(good, bad))
    producer.flush(WAIT_MS)
    assert broker.values("single") == [b"a", b"b"]
    producer.send_table(None, good)  # the producer goes on
    producer.flush(WAIT_MS)
    assert len(broker.values("single")) == 4


@pytest.mark.parametrize("raised", [MemoryError(), pa.ArrowMemoryError("malloc failed"), "numpy's"], ids=str)
def test_memory_that_runs_out_in_a_later_batch_says_what_is_queued(
    broker: FakeBroker, producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, raised: Any
) -> None:
    send_batch = TableSender._send_batch

    def fails_later(self: TableSender, hand_over: Any, columns: Any, delivery: Any) -> None:
        if delivery.rows and isinstance(raised, str):
            np.empty(2**56)
        if delivery.rows:
            raise raised
        send_batch(self, hand_over, columns, delivery)

    monkeypatch.setattr(TableSender, "_send_batch", fails_later)
    with pytest.raises(MemoryError, match="(out of memory|malloc failed|Unable to allocate .*)" + LATER):
        producer.send_table("single", stream(batch("a", "b"), batch("c")))
    producer.flush(WAIT_MS)
    assert broker.values("single") == [b"a", b"b"]


def test_a_producer_that_is_closed_meanwhile_reads_no_further(broker: FakeBroker) -> None:
    producer = producer_of(broker, transactional_id=None)
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            read.append(number)
            if number == 1:
                producer.close()
            yield batch("a")

    with pytest.raises(ProducerClosedError, match="the rows before it are queued"):
        producer.send_table("single", pa.RecordBatchReader.from_batches(batch().schema, batches()))
    assert read == [0, 1]
    with pytest.raises(ProducerClosedError):
        producer.send_table("single", batch("a"))


# TRANSACTIONS


@pytest.fixture
def transactional(broker: FakeBroker) -> Iterator[KafkaProducer]:
    with producer_of(broker) as made:
        made.init_transactions()
        yield made


def test_a_table_needs_a_transaction_and_is_not_read_without_one(transactional: KafkaProducer) -> None:
    source = Source(1)
    with pytest.raises(IllegalStateError, match="only within a transaction"):
        transactional.send_table("single", source.reader())
    assert source.asked_for == 0


def test_a_table_is_committed_as_a_whole(broker: FakeBroker, transactional: KafkaProducer) -> None:
    with transactional.transaction():
        delivery = transactional.send_table("single", stream(batch("a"), batch("b")))
    assert delivery.result(0).acknowledged == 2
    assert broker.committed_values("single") == [b"a", b"b"]


def test_half_a_table_is_not_committed(broker: FakeBroker, transactional: KafkaProducer) -> None:
    """Its rows are queued, and a caller who goes on after the error would commit them."""
    transactional.begin_transaction()
    with pytest.raises(KafkaError, match="KAFKA_TABLE_READ_FAILED"):
        transactional.send_table("single", stream(batch("a"), ZeroDivisionError()))
    with pytest.raises(AbortableTransactionError):
        transactional.commit_transaction()
    transactional.abort_transaction()
    with transactional.transaction():
        transactional.send_table("single", batch("b"))
    assert broker.committed_values("single") == [b"b"]


def test_a_table_of_which_no_row_was_queued_spoils_no_transaction(broker: FakeBroker, transactional: KafkaProducer) -> None:
    with transactional.transaction():
        transactional.send_table("single", batch("a"))
        with pytest.raises(InvalidRecordError):
            transactional.send_table("single", batch("b", timestamp=[-1]))
    assert broker.committed_values("single") == [b"a"]


def test_a_commit_of_another_thread_waits_for_the_whole_table(broker: FakeBroker, transactional: KafkaProducer) -> None:
    """A table is one call: batches after the commit would have been in no transaction."""
    commit = threading.Thread(target=transactional.commit_transaction)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch("a")
        commit.start()
        broker.wait_until(lambda: not transactional._caller_side._is_open)
        yield batch("b")

    transactional.begin_transaction()
    transactional.send_table("single", pa.RecordBatchReader.from_batches(batch().schema, batches()))
    commit.join(WAIT_MS / 1000)
    assert broker.committed_values("single") == [b"a", b"b"]


OTHERS = {
    "swapped": pa.record_batch({"value": pa.array([b"k"]), "key": pa.array([b"v"])}),
    "fewer": pa.record_batch({"key": pa.array([b"k"])}),
    "other types": pa.record_batch({"key": pa.array(["k"]), "value": pa.array([b"v"])}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_batch_with_other_columns_than_its_table_is_an_error(broker: FakeBroker, producer: KafkaProducer, name: str) -> None:
    """Columns are found by the table's schema: keys and values were written swapped, without a word."""
    first = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])})
    with pytest.raises(SchemaError, match=r"a batch has the columns .*batch that begins at row 1"):
        producer.send_table("single", pa.RecordBatchReader.from_batches(first.schema, iter([first, OTHERS[name]])))
    producer.send_table("single", first).result(WAIT_MS)
    assert broker.values("single") == [b"v", b"v"]


# INTERRUPTS; test_interrupts.py has every point


def interrupted_at(number: int, then: Callable[[], None] = lambda: None) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for each in range(3):
            if each == number:
                then()
                raise KeyboardInterrupt
            yield batch(str(each))

    return pa.RecordBatchReader.from_batches(batch().schema, batches())


def test_an_interrupt_before_the_first_row_changes_nothing(broker: FakeBroker, producer: KafkaProducer) -> None:
    with pytest.raises(KeyboardInterrupt):
        producer.send_table("single", interrupted_at(0))
    producer.send_table("single", batch("a")).result(WAIT_MS)
    assert broker.values("single") == [b"a"]


def test_an_interrupt_between_two_batches_ends_the_producer(producer: KafkaProducer) -> None:
    """Nobody knows how far it came: made again, the call would write rows twice."""
    with pytest.raises(KeyboardInterrupt):
        producer.send_table("single", interrupted_at(1))
    with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\]"):
        producer.send_table("single", batch("a"))
