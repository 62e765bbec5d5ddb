"""Interceptors of a KafkaProducer, over sockets against FakeBroker: single records that pass them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import KafkaError, ProducerClosedError, SchemaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.producer_record import BatchMetadata, ProducerColumns, ProducerRecord, RecordMetadata
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.topic_rows import TopicRows
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, WAIT_S, binary
from tests.producer.plugins.sample_interceptors import Appends, AppendsToRecords, Changing, ChangingRecords, intercepted_producer

# SINGLE RECORDS


def test_a_record_passes_before_it_is_serialized(broker: FakeBroker) -> None:
    instance = AppendsToRecords("!")
    with intercepted_producer(broker, instance, value_serializer="string") as producer:
        future = producer.send(ProducerRecord("single", "a", key=b"k"))
        producer.flush(WAIT_MS)
        assert future.result(0).serialized_value_size == 2
    assert instance.inputs == [ProducerRecord("single", "a", key=b"k")]
    assert broker.values("single") == [b"a!"]
    assert instance.heard == [(future.result(0), None)]


def test_a_record_may_be_replaced_by_one_for_another_topic(broker: FakeBroker) -> None:
    with intercepted_producer(broker, ChangingRecords(lambda record: replace(record, topic="other", partition=1))) as producer:
        future = producer.send(ProducerRecord("gone", b"a"))
        producer.flush(WAIT_MS)
        assert future.result(0)[:2] == ("other", 1)


def test_an_interceptor_that_fails_for_a_record_is_passed_over(broker: FakeBroker) -> None:
    def spoil(record: ProducerRecord) -> None:
        record.value = b"half-way"

    with intercepted_producer(broker, AppendsToRecords("1"), ChangingRecords(spoil), AppendsToRecords("2")) as producer:
        producer.send(ProducerRecord("single", b"a"))
    assert broker.values("single") == [b"a12"]


def test_an_interceptor_of_columns_sees_gathered_records_and_hears_by_batch(broker: FakeBroker) -> None:
    instance = Appends("!")
    with intercepted_producer(broker, instance, linger_ms=10_000) as producer:
        futures = [
            producer.send(ProducerRecord("orders", b"%d" % number, key="k", partition=2, headers=[("h", None)], timestamp=number))
            for number in range(5)
        ]
        producer.flush(WAIT_MS)
        assert [future.result(0) for future in futures] == [RecordMetadata("orders", 2, n, n, 1, 2) for n in range(5)]
    (columns,) = instance.inputs
    assert columns.topic == "orders"
    assert [columns.key.to_pylist(), columns.partition.to_pylist(), columns.timestamp.to_pylist()] == [
        [b"k"] * 5,
        [2] * 5,
        [0, 1, 2, 3, 4],
    ]
    assert columns.headers.to_pylist() == [[("h", None)]] * 5
    assert broker.values("orders", 2) == [b"%d!" % number for number in range(5)]
    assert broker.records("orders", 2)[0].headers == (("h", None),)
    assert instance.heard == [(BatchMetadata("orders", 2, 0, 5, -1), None)]


def test_interceptors_hear_of_no_failure_after_a_success(broker: FakeBroker) -> None:
    """Ctrl-C when all records of a bundle were in batches: its call was not over, and at the end all of them failed again."""
    columns, records = Appends(), AppendsToRecords()
    producer = intercepted_producer(broker, columns, records, linger_ms=600_000, delivery_timeout_ms=700_000)
    futures = [producer.send(ProducerRecord("orders", b"a", partition=partition)) for partition in (0, 1, 1)]

    def finish(*_: object) -> None:
        producer._accumulator.flush(WAIT_MS)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordGatherer, "_finish_bundle", finish)
        with pytest.raises(KeyboardInterrupt):
            producer.flush(WAIT_MS)
    producer.close(WAIT_MS)
    assert [future.result(0).partition for future in futures] == [0, 1, 1]
    assert {metadata.partition: (metadata.rows, error) for metadata, error in columns.heard} == {0: (1, None), 1: (2, None)}
    assert [error for _, error in records.heard] == [None] * 3


def test_an_interceptor_with_methods_for_both_sees_a_record_once(broker: FakeBroker) -> None:
    both = type("Both", (Appends,), {"on_send": AppendsToRecords.on_send})("!")
    with intercepted_producer(broker, both) as producer:
        producer.send(ProducerRecord("single", b"a"))
        producer.flush(WAIT_MS)
        producer.send_columns("single", value=binary(b"b"))
    assert broker.values("single") == [b"a!", b"b!"]
    assert len(both.inputs) == 2


def test_the_topic_of_gathered_records_stays(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    with intercepted_producer(broker, Changing(lambda columns: replace(columns, topic="other")), Appends("!")) as producer:
        producer.send(ProducerRecord("single", b"a"))
    assert broker.values("single") == [b"a!"]
    assert "returned topic other for records that were gathered for single" in caplog.text


def test_a_gathered_record_that_an_interceptor_spoils_fails_alone(broker: FakeBroker) -> None:
    def change(columns: ProducerColumns) -> ProducerColumns:
        return replace(
            columns,
            value=binary(b"good", bytes(2000), b"b", b"c"),
            partition=pa.array([0, 0, 9, 1], pa.int32()),
        )

    listener = Appends()
    with intercepted_producer(broker, Changing(change), listener, max_request_size=1000, linger_ms=10_000) as producer:
        futures = [producer.send(ProducerRecord("other", b"x")) for _ in range(4)]
        producer.flush(WAIT_MS)
        conditions = [error.condition if error is not None else None for error in (future.exception(0) for future in futures)]
        assert conditions == [None, "KAFKA_RECORD_TOO_LARGE", "KAFKA_UNKNOWN_PARTITION", None]
        assert (futures[0].result(0).serialized_value_size, futures[3].result(0).partition) == (4, 1)
    assert (broker.values("other", 0), broker.values("other", 1)) == ([b"good"], [b"c"])
    assert sum(metadata.rows for metadata, _ in listener.heard) == 4


def test_each_callback_fires_once_when_plug_ins_spoil_gathered_records(broker: FakeBroker) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    heard: list[str] = []
    spoil = Changing(lambda columns: replace(columns, partition=pa.array([9, None], pa.int32())))
    with intercepted_producer(broker, spoil, partitioner_class=fail, linger_ms=10_000) as producer:
        for _ in range(2):
            producer.send(ProducerRecord("other", b"x"), lambda _, error: heard.append(error.condition))
        producer.flush(WAIT_MS)
    assert heard == ["KAFKA_UNKNOWN_PARTITION", "KAFKA_PARTITIONER_FAILED"]


def fail_for_want_of_memory(broker: FakeBroker, patched: type, name: str, failure: Any) -> list[str]:
    """What callbacks hear of three gathered records, the second of which an interceptor spoils. Nothing is counted twice."""
    heard: list[str] = []
    listener = Appends()
    spoil = Changing(lambda columns: replace(columns, partition=pa.array([None, 9, None], pa.int32())))
    with intercepted_producer(broker, spoil, listener, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        futures = [producer.send(ProducerRecord("other", b"x"), lambda _, error: heard.append(error.condition)) for _ in range(3)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patched, name, failure)
            producer.flush(WAIT_MS)
        assert all(future.done() for future in futures)
        assert producer.metrics()["record-error-total"] == 3
    assert sum(metadata.rows for metadata, _ in listener.heard) == 3
    return heard


def test_a_spoiled_record_is_counted_once_when_memory_ends_after_it(broker: FakeBroker) -> None:
    """The record had failed alone, and then failed, was counted and was reported once more with all others of its bundle."""
    assert fail_for_want_of_memory(broker, TopicRows, "take", Mock(side_effect=MemoryError)) == ["KAFKA_INVALID_RECORD"] * 3


def test_gathered_records_fail_when_memory_ends_as_their_callback_is_made(broker: FakeBroker) -> None:
    """Nobody heard of them again: they were in no batch, and the producer took them for failed."""
    expected = ["KAFKA_UNKNOWN_PARTITION", *["KAFKA_INVALID_RECORD"] * 2]
    no_callback = property(Mock(side_effect=MemoryError))
    assert fail_for_want_of_memory(broker, RecordBundle, "rows_callback", no_callback) == expected


def test_gathered_records_that_an_interceptor_makes_unwritable_fail_together(broker: FakeBroker) -> None:
    wrong = Changing(lambda columns: replace(columns, value=pa.array([1.5] * columns.rows)))
    with intercepted_producer(broker, wrong) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        producer.flush(WAIT_MS)
        assert isinstance(future.exception(0), SchemaError)


def test_callback_and_interceptors_hear_of_a_record_that_cannot_be_gathered(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    heard: list[KafkaError | None] = []
    with intercepted_producer(broker, columns, records, max_block_ms=50) as producer:
        future = producer.send(ProducerRecord("gone", b"a"), lambda _, error: heard.append(error))
    error = future.exception(0)
    assert heard == [error]
    assert columns.heard == [(BatchMetadata("gone", -1, -1, 1, -1), error)]
    assert records.heard == [(RecordMetadata("gone", -1, -1, -1, -1, -1), error)]


def test_interceptors_hear_the_partition_that_a_too_large_record_names(broker: FakeBroker) -> None:
    instance = AppendsToRecords()
    with intercepted_producer(broker, instance, max_request_size=100) as producer:
        producer.send(ProducerRecord("orders", bytes(200), partition=3))
    ((metadata, error),) = instance.heard
    assert metadata == RecordMetadata("orders", 3, -1, -1, -1, -1)
    assert isinstance(error, KafkaError)


def test_interceptors_hear_what_send_raises(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    with intercepted_producer(broker, columns, records, key_serializer="long") as producer:
        with pytest.raises(SerializationError) as raised:
            producer.send(ProducerRecord("single", b"a", key="one"))
        with pytest.raises(ValueError, match="Invalid partition"):
            producer.send(ProducerRecord("single", b"a", partition=-7))
    assert columns.heard[0] == (BatchMetadata("single", -1, -1, 1, -1), raised.value)
    assert [type(error) for _, error in records.heard] == [SerializationError, ValueError]


def test_interceptors_hear_of_records_that_a_forced_close_gives_up_and_then_close(broker: FakeBroker) -> None:
    class Listening(Appends):
        def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
            assert not self.closed
            super().on_batch_acknowledgement(metadata, error)

    instance = Listening()
    producer = intercepted_producer(broker, instance, linger_ms=600_000, delivery_timeout_ms=700_000)
    for number in range(3):
        producer.send(ProducerRecord("orders", b"a", partition=number % 2))
    producer.close(0)
    assert {metadata.partition: metadata.rows for metadata, _ in instance.heard} == {0: 2, 1: 1}
    assert {type(error) for _, error in instance.heard} == {ProducerClosedError}
    assert instance.closed == 1


def test_a_producer_closed_by_a_callback_closes_its_interceptors_once(broker: FakeBroker) -> None:
    instance = Appends()
    producer = intercepted_producer(broker, instance)
    producer.send(ProducerRecord("single", b"a"), lambda *_: producer.close())
    producer.flush(WAIT_MS)
    producer.close()
    assert instance.closed == 1
    assert len(instance.heard) == 1


def test_interceptors_hear_before_the_callback(broker: FakeBroker) -> None:
    order: list[str] = []

    class Listening:
        def on_acknowledgement(self, *_: object) -> None:
            order.append("interceptor")

    with intercepted_producer(broker, Listening()) as producer:
        producer.send(ProducerRecord("single", b"a"), lambda *_: order.append("callback"))
    assert order == ["interceptor", "callback"]


# RECORDS AND COLUMNS


def test_a_partitioner_sees_what_interceptors_leave(broker: FakeBroker) -> None:
    class ByValue:
        def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: bytes, cluster: Cluster) -> int:
            del topic, key, key_bytes, value, cluster
            return len(value_bytes)

    for kind in (Appends, AppendsToRecords):
        with intercepted_producer(broker, kind("22"), partitioner_class=ByValue()) as producer:
            assert producer.send(ProducerRecord("orders", b"1")).result(WAIT_S).partition == 3
            delivery = producer.send_columns("orders", value=binary(b"", b"1")).result(WAIT_MS)
            assert {part.partition for part in delivery.offsets} == {2, 3}


@pytest.mark.parametrize("kind", ["columns", "single"])
def test_rows_are_settled_although_an_interceptor_ends_the_senders_thread(broker: FakeBroker, kind: str) -> None:
    """Interceptors hear of rows first: with sys.exit() in one, the rows themselves never learnt that they were written."""

    class Leaving:
        def on_acknowledgement(self, *_: object) -> None:
            sys.exit("enough")

    with intercepted_producer(broker, Leaving()) as producer:
        if kind == "columns":
            assert producer.send_columns("single", value=binary(b"a")).result(WAIT_MS).acknowledged == 1
        else:
            assert producer.send(ProducerRecord("single", b"a")).result(WAIT_S).offset == 0


def test_interceptors_hear_once_of_each_of_many_rows_and_records(broker: FakeBroker) -> None:
    columns, records = Appends("!"), AppendsToRecords("?")
    rng = np.random.default_rng(7)
    with intercepted_producer(broker, columns, records, linger_ms=5, batch_size=500) as producer:
        for _ in range(20):
            producer.send_columns("orders", value=binary(*[b"v"] * int(rng.integers(1, 40))))
            for _ in range(int(rng.integers(1, 40))):
                producer.send(ProducerRecord("orders", b"v"))
    total = sum(len(broker.records("orders", partition)) for partition in range(4))
    assert sum(metadata.rows for metadata, error in columns.heard if error is None) == total == len(records.heard)
    offsets = {(metadata.partition, metadata.offset) for metadata, _ in records.heard}
    assert len(offsets) == total
    assert {record.value for partition in range(4) for record in broker.records("orders", partition)} == {b"v!?", b"v?!"}
