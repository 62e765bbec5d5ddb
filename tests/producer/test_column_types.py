"""What `send` and `send_columns` take, and what they refuse by name instead of making something else of it.

`partition=1.7` went to partition 1, a column of floats likewise, `timestamp=1.5` became 1, True became 1: rows went where nobody
had sent them, without a word. Topic columns with a null in their dictionary, or of bytes, ended in a TypeError from deep below;
one whose dictionary named a topic twice was sent out of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import InvalidRecordError, KafkaError, SchemaError
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.producer import Producer
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerColumns, ProducerRecord
from spark_kafka_sink.producer.serializers import SerializationError
from tests.fakes.fake_broker import FakeBroker

WAIT_MS = 30_000


# SINGLE RECORDS

NO_WHOLE_NUMBERS = [
    *(1.7, 1.0, True, np.bool_(True), np.float64(1.0)),
    *("1", b"1", Decimal("1"), Decimal("1.5"), datetime(2024, 1, 1), [1]),
]


@pytest.mark.parametrize("number", NO_WHOLE_NUMBERS, ids=repr)
@pytest.mark.parametrize("field", ["partition", "timestamp"])
def test_a_number_that_is_no_int_is_refused_at_send(broker: FakeBroker, producer: KafkaProducer, field: str, number: Any) -> None:
    good = producer.send(ProducerRecord("other", b"good"))
    with pytest.raises(TypeError, match=rf"{field} must be an int or None, not .* {type(number).__name__}"):
        producer.send(ProducerRecord("other", b"bad", **{field: number}))
    producer.flush(WAIT_MS)
    assert good.result(0).offset == 0
    assert broker.values("other") == [b"good"]


def test_ints_of_numpy_are_ints(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send(ProducerRecord("orders", b"a", partition=np.int32(3), timestamp=np.int64(77)))
    producer.flush(WAIT_MS)
    assert [record.timestamp for record in broker.records("orders", 3)] == [77]


def test_a_partition_beyond_int32_is_refused_at_once(producer: KafkaProducer) -> None:
    with pytest.raises(ValueError, match="Invalid partition: 2147483648"):
        producer.send(ProducerRecord("orders", b"a", partition=2**31))


@pytest.mark.parametrize("topic", [b"orders", 5, None])
def test_a_topic_that_is_no_str_is_refused_at_send(producer: KafkaProducer, topic: Any) -> None:
    with pytest.raises(TypeError, match=f"topic must be a str, not {type(topic).__name__}"):
        producer.send(ProducerRecord(topic, b"a"))


@pytest.mark.parametrize("headers", [{"name": b"value"}, [("name",)], ["ab"], [("name", b"value", 1)], [5], 5])
def test_headers_that_are_no_pairs_are_refused_at_send(producer: KafkaProducer, headers: Any) -> None:
    with pytest.raises(SerializationError, match=r"headers must be \(name, value\) pairs"):
        producer.send(ProducerRecord("orders", b"a", headers=headers))


def test_headers_whose_code_fails_are_refused_at_send(broker: FakeBroker, producer: KafkaProducer) -> None:
    def pairs() -> Iterator[tuple[str, bytes]]:
        yield "name", b"value"
        raise OSError("the file is gone")

    with pytest.raises(SerializationError, match="headers cannot be read: generator raises OSError") as raised:
        producer.send(ProducerRecord("orders", b"a", headers=pairs()))
    assert isinstance(raised.value.__cause__, OSError)
    producer.flush(WAIT_MS)
    assert broker.values("orders") == []


# COLUMNS

NO_PARTITIONS = {
    "float": pa.array([1.7, 2.0]),
    "whole floats": pa.array([1.0, 2.0]),
    "nulls of float": pa.array([None, None], pa.float64()),
    "bool": pa.array([True, False]),
    "string": pa.array(["1", "2"]),
    "decimal": pa.array([Decimal("1"), Decimal("2")]),
    "date": pa.array([1, 2], pa.date32()),
    "dictionary": pa.array(["1", "2"]).dictionary_encode(),
    "pieces": pa.chunked_array([pa.array([1.5]), pa.array([2.5])]),
}


@pytest.mark.parametrize("column", NO_PARTITIONS.values(), ids=NO_PARTITIONS)
def test_a_partition_column_that_is_not_of_integers_is_refused(broker: FakeBroker, producer: KafkaProducer, column: Any) -> None:
    with pytest.raises(SchemaError, match=r"column partition has type .*; it must be int32"):
        producer.send_columns("orders", value=pa.array([b"a", b"b"]), partition=column)
    producer.flush(WAIT_MS)
    assert broker.values("orders") == []


PARTITIONS = {
    "int8": pa.array([1, None, 2], pa.int8()),
    "uint64": pa.array([1, None, 2], pa.uint64()),
    "dictionary": pa.array([1, None, 2], pa.int64()).dictionary_encode(),
    "pieces of dictionary": pa.chunked_array([pa.array([1, None]).dictionary_encode(), pa.array([2]).dictionary_encode()]),
}


@pytest.mark.parametrize("column", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_column_of_any_integers_is_taken(broker: FakeBroker, producer: KafkaProducer, column: Any) -> None:
    producer.send_columns("orders", value=pa.array([b"a", b"b", b"c"]), partition=column).result(WAIT_MS)
    assert b"a" in broker.values("orders", 1)
    assert b"c" in broker.values("orders", 2)


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.string(), pa.decimal128(9, 2), pa.timestamp("us"), pa.int32()])
def test_a_timestamp_column_that_is_not_of_int64_is_refused(producer: KafkaProducer, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column timestamp has type .*; it must be int64"):
        producer.send_columns("orders", value=pa.array([b"a"]), timestamp=pa.nulls(1, kind))


@pytest.mark.parametrize("column", ["value", "key", "partition", "headers", "timestamp"])
@pytest.mark.parametrize("argument", [[b"a"], np.array([1.5]), 1.5, True, 3, b"a", "a"], ids=repr)
def test_what_is_no_column_is_refused(producer: KafkaProducer, column: str, argument: Any) -> None:
    columns: dict[str, Any] = {"value": pa.array([b"a"])} | {column: argument}
    with pytest.raises(
        SchemaError, match=rf"column {column} has the Python type {type(argument).__name__}; pass a pyarrow.Array"
    ):
        producer.send_columns("orders", **columns)


# THE TOPIC COLUMN


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.int64(), pa.list_(pa.string())])
@pytest.mark.parametrize("rows", [1, 0])
def test_a_topic_column_that_is_not_of_strings_is_refused(producer: KafkaProducer, kind: pa.DataType, rows: int) -> None:
    topic = pa.array({0: [], 1: {pa.int64(): [5], pa.list_(pa.string()): [["a"]]}.get(kind, [b"orders"])}[rows], kind)
    with pytest.raises(SchemaError, match=r"column topic has type .*; it must be string"):
        producer.send_columns(topic, value=pa.array([b"a"][:rows], pa.binary()))


def test_a_topic_column_of_encoded_bytes_is_refused(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match=r"column topic has type dictionary<values=binary.*; it must be string"):
        producer.send_columns(pa.array([b"orders"]).dictionary_encode(), value=pa.array([b"a"]))


@pytest.mark.parametrize("topic", [b"orders", 5, None, ["orders"]])
def test_a_topic_that_is_neither_str_nor_column_is_refused(producer: KafkaProducer, topic: Any) -> None:
    with pytest.raises(SchemaError, match=f"topic has the Python type {type(topic).__name__}"):
        producer.send_columns(topic, value=pa.array([b"a"]))


NULLS = {
    "in the dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["orders", None])),
    "in the indices": pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.array(["orders"])),
    "plain": pa.array(["orders", None, "orders"]),
    "null type": pa.chunked_array([pa.nulls(3)]),
}


@pytest.mark.parametrize("topic", NULLS.values(), ids=NULLS)
def test_a_null_topic_is_refused_wherever_it_stands(producer: KafkaProducer, topic: Any) -> None:
    with pytest.raises(InvalidRecordError, match=r"^\[KAFKA_NULL_TOPIC_IN_DATA\] row [01] of this chunk"):
        producer.send_columns(topic, value=pa.array([b"a", b"b", b"c"]))


def test_a_null_in_the_dictionary_that_no_row_has_is_of_no_matter(broker: FakeBroker, producer: KafkaProducer) -> None:
    topic = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["other", None]))
    producer.send_columns(topic, value=pa.array([b"a", b"b"])).result(WAIT_MS)
    assert broker.values("other") == [b"a", b"b"]


TWICE = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, 1, 0, 3]), pa.array(["other", "other", "orders", "other"]))
NAMES = ["other", "other", "orders", "other", "other", "other"]
TOPICS = {
    "named twice in a dictionary": TWICE,
    "slice of a dictionary": pa.concat_arrays([TWICE, TWICE])[6:],
    "dictionaries that differ": pa.chunked_array([pa.array(part).dictionary_encode() for part in (NAMES[:2], NAMES[2:])]),
    "string_view": pa.array(NAMES, pa.string_view()),
    "large_string": pa.array(NAMES, pa.large_string()),
    "dictionary of large_string": pa.array(NAMES, pa.large_string()).dictionary_encode(),
    "dictionary of string_view": pa.DictionaryArray.from_arrays(TWICE.indices, TWICE.dictionary.cast(pa.string_view())),
}


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_rows_of_a_topic_keep_their_order_whatever_the_column_is(broker: FakeBroker, producer: KafkaProducer, topic: Any) -> None:
    producer.send_columns(topic, value=pa.array([b"0", b"1", b"2", b"3", b"4", b"5"])).result(WAIT_MS)
    assert broker.values("other") == [b"0", b"1", b"3", b"4", b"5"]
    assert broker.values("orders") == [b"2"]


def categories(indices: list[int | None], entries: list[Any]) -> pa.Array:
    """As pandas makes them: int8 indices. More entries than two of these columns together can number, and a null among them."""
    kind = pa.array(entries).type
    unused_entries = [len(entries) + number if pa.types.is_integer(kind) else f"no row has {number}" for number in range(90)]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array([*entries, None, *unused_entries], kind))


def headers_of(keys: pa.Array, values: pa.Array) -> pa.Array:
    entries = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(range(len(keys) + 1), pa.int32()), entries)


def test_pieces_of_categories_that_differ_are_rows_as_others(broker: FakeBroker, producer: KafkaProducer) -> None:
    """Topic, partition and headers of a column in pieces ended in ArrowInvalid where the pieces' dictionaries differed: "Cannot
    yet unify dictionaries with nulls", or "requires a larger index type", as pandas' categories have int8. Keys and values went.
    """
    topic = pa.chunked_array([categories([0, 0], ["other"]), categories([1, 0], ["other", "orders"])])
    partition = pa.chunked_array([categories([0, 1], [0, 0]), categories([1, 0], [0, 2])])
    texts = [categories([0, 1], ["a", "b"]), categories([1, 0], ["c", "d"])]
    headers = pa.chunked_array([headers_of(each, each) for each in texts])
    value = pa.array([b"0", b"1", b"2", b"3"])
    producer.send_columns(topic, value=value, partition=partition, headers=headers).result(WAIT_MS)
    rows = {(topic, number): broker.records(topic, number) for topic, number in (("other", 0), ("orders", 2))}
    assert {place: [(each.value, each.headers) for each in records] for place, records in rows.items()} == {
        ("other", 0): [(b"0", (("a", b"a"),)), (b"1", (("b", b"b"),)), (b"3", (("c", b"c"),))],
        ("orders", 2): [(b"2", (("d", b"d"),))],
    }


# PLUG-INS: what they answer


class SetsPartition:
    def __init__(self, answer: object) -> None:
        self.answer: Any = answer

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return replace(record, partition=self.answer)


@pytest.mark.parametrize("answer", [1.7, True])
def test_a_partition_that_an_interceptor_makes_no_int_is_not_taken(
    broker: FakeBroker, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [SetsPartition(answer)]}
    with KafkaProducer(options) as producer:
        partition = pa.array([3], pa.int32())
        producer.send_columns("orders", value=pa.array([b"a"]), partition=partition).result(WAIT_MS)
        with pytest.raises(TypeError, match="partition must be an int"):
            producer.send(ProducerRecord("orders", b"b"))
    assert broker.values("orders", 3) == [b"a"]
    assert "partition must be an int" in caplog.text


class ReturnsColumns:
    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        return replace(columns, partition=np.array([1.5]))


def test_an_interceptor_that_returns_what_is_no_column_is_passed_over(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [ReturnsColumns()]}
    with KafkaProducer(options) as producer:
        producer.send_columns("other", value=pa.array([b"a"])).result(WAIT_MS)
    assert broker.values("other") == [b"a"]
    assert "column partition has the Python type ndarray" in caplog.text


class Answers:
    """A partitioner of single records."""

    def __init__(self, answer: object) -> None:
        self.answer: Any = answer

    def partition(self, *_: object) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [1.7, 1.0, True, "1", Decimal("1")], ids=repr)
def test_a_partitioners_answer_that_is_no_int_fails_the_rows(broker: FakeBroker, answer: object) -> None:
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "partitioner.class": Answers(answer)}) as producer:
        with pytest.raises(KafkaError, match="KAFKA_PARTITIONER_FAILED"):
            producer.send_columns("orders", value=pa.array([b"a"]))
        with pytest.raises(KafkaError, match="KAFKA_PARTITIONER_FAILED"):
            producer.send(ProducerRecord("orders", b"a"))
    assert broker.values("orders") == []


class OldPartitioner:
    def partition(self, _key: object, _count: int) -> Any:
        return 1.7


def test_an_old_partitioners_answer_that_is_no_int_fails_the_messages(broker: FakeBroker) -> None:
    options = {"metadata.broker.list": broker.bootstrap_servers, "serializer.class": "kafka.serializer.StringEncoder"}
    more = {"partitioner.class": OldPartitioner(), "message.send.max.retries": 0}
    with Producer(options | more) as producer, pytest.raises(KafkaError, match="must be an int"):
        producer.send(KeyedMessage("orders", "key", "m"))
    assert broker.values("orders") == []
