"""table_columns.py and table_batches.py: which tables and columns are taken, what they become, and what is said of others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import InvalidRecordError, KafkaError, SchemaError
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.tables.table_batches import next_batch, open_table
from spark_kafka_sink.producer.tables.table_columns import TableColumns
from spark_kafka_sink.producer.topic_rows import explicit_partitions, record_rows, split_by_topic

UUID = pa.uuid() if hasattr(pa, "uuid") else pa.binary(16)
MOMENT = datetime(2024, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)
MOMENT_MS = 1_704_164_645_678


def producer_columns(topic: str | None = "t", /, **columns: Any) -> ProducerColumns:
    """What is sent of a table of one batch."""
    batch = pa.record_batch({"value": pa.array(["v"] * len(next(iter(columns.values())))), **columns})
    return TableColumns.find(batch.schema, topic).producer_columns(batch)


def problem(schema: dict[str, pa.DataType], topic: str | None = "t") -> str:
    with pytest.raises(SchemaError) as raised:
        TableColumns.find(pa.schema(list(schema.items())), topic)
    return raised.value.message


# TABLES


class ArrowStream:
    """Of another library: it has nothing but the method."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Piece:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


BATCH = pa.record_batch({"value": ["a", "b"]})
TABLE = pa.Table.from_batches([BATCH, BATCH])


@pytest.mark.parametrize(
    "table",
    [TABLE, BATCH, TABLE.to_reader(), ArrowStream(TABLE), ArrowStream(BATCH), Piece(BATCH), BATCH.to_struct_array()],
    ids=["Table", "RecordBatch", "RecordBatchReader", "stream of a table", "stream of a batch", "array", "StructArray"],
)
def test_each_kind_of_table_is_read_batch_by_batch(table: Any) -> None:
    reader = open_table(table)
    batches = []
    while (batch := next_batch(reader)) is not None:
        batches.append(batch)
    assert batches
    assert all(each.equals(BATCH) for each in batches)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"value": ["a"]}, "Python type dict .* neither __arrow_c_stream__ nor __arrow_c_array__; pass a table of pyarrow"),
        ("orders", "Python type str "),
        (None, "Python type NoneType "),
        (pa.array([1]), "Python type Int64Array .*non-struct type"),
        (pa.chunked_array([[1]]), "Python type ChunkedArray .*non-struct type"),
        (pa.Table, "Python type type"),
    ],
    ids=["dict", "str", "None", "array", "chunked array", "class"],  # the repr of an array has its address
)
def test_what_is_no_table_is_named_with_what_to_pass(table: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        open_table(table)


@pytest.mark.parametrize("of_another_library", [False, True])
def test_what_a_source_raises_becomes_an_error_of_the_table(of_another_library: bool) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise ZeroDivisionError("no more rows")

    table = pa.RecordBatchReader.from_batches(BATCH.schema, batches())
    reader = open_table(ArrowStream(table) if of_another_library else table)
    assert next_batch(reader) == BATCH
    with pytest.raises(KafkaError, match=r"^\[KAFKA_TABLE_READ_FAILED\] the table cannot be read: .*no more rows") as raised:
        next_batch(reader)
    assert raised.value.__cause__ is not None


def test_an_interrupt_in_a_source_stays_an_interrupt() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise KeyboardInterrupt

    reader = open_table(pa.RecordBatchReader.from_batches(BATCH.schema, batches()))
    next_batch(reader)
    with pytest.raises(KeyboardInterrupt):
        next_batch(reader)


# TYPES THAT ARE TAKEN


TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
PAYLOADS = [*TEXTS, pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)]


def encoded(kind: pa.DataType) -> pa.DataType:
    return pa.dictionary(pa.int8(), kind)


def column(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """Of one of these types; a dictionary is made from its parts, which Arrow cannot do for views."""
    if not pa.types.is_dictionary(kind):
        return pa.array(cells, kind)
    entries = sorted({cell for cell in cells if cell is not None})
    codes = [None if cell is None else entries.index(cell) for cell in cells]
    return pa.DictionaryArray.from_arrays(pa.array(codes, kind.index_type), pa.array(entries, kind.value_type))


@pytest.mark.parametrize("kind", [*PAYLOADS, *map(encoded, PAYLOADS)], ids=str)
def test_keys_and_values_may_have_any_layout_of_text_and_bytes(kind: pa.DataType) -> None:
    cells = column(["a", None, "b", "a"] if "string" in str(kind) else [b"a", None, b"b", b"a"], kind)
    columns = record_rows(producer_columns(key=cells, value=cells), 4, 0)
    for payload in (columns.key, columns.value):
        assert pa.chunked_array([payload] if isinstance(payload, pa.Array) else payload).to_pylist() == [b"a", None, b"b", b"a"]


@pytest.mark.parametrize("kind", [*TEXTS, *map(encoded, TEXTS)], ids=str)
def test_topics_may_have_any_layout_of_text(kind: pa.DataType) -> None:
    columns = producer_columns(None, topic=column(["a", "b", "a"], kind))
    rows = split_by_topic(columns.topic, record_rows(columns, 3, 0), explicit_partitions(None, 3))
    assert {each.topic: each.positions.tolist() for each in rows} == {"a": [0, 2], "b": [1]}


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint8(), encoded(pa.int32())], ids=str)
def test_partitions_may_be_any_integers(kind: pa.DataType) -> None:
    columns = producer_columns(partition=column([3, None, 0], kind))
    assert explicit_partitions(columns.partition, 3).tolist() == [3, -1, 0]


ENTRIES = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []]
ENTRY = pa.struct([("key", pa.string()), ("value", pa.binary())])


def capitals(key: pa.DataType, value: pa.DataType, cell: Any) -> pa.Array:
    """The same in lists of structs of these types, whose fields are named in capitals and stand the other way round."""
    return pa.array(
        [[{"KEY": "h", "Value": cell}, {"KEY": "h", "Value": None}], None, []],
        pa.large_list(pa.struct([("Value", value), ("KEY", key)])),
    )


@pytest.mark.parametrize(
    "headers",
    [
        pa.array(ENTRIES, pa.list_(ENTRY)),
        pa.array(ENTRIES, pa.large_list(ENTRY)),
        pa.array(ENTRIES, pa.list_view(ENTRY)),
        pa.array([[("h", b"1"), ("h", None)], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array([[("h", "1"), ("h", None)], None, []], pa.map_(pa.string(), pa.string())),
        pa.array([[("h", "1"), ("h", None)], None, []], pa.map_(pa.string_view(), pa.string_view())),
        capitals(pa.large_string(), pa.large_binary(), b"1"),
        capitals(pa.string_view(), pa.binary_view(), b"1"),
        capitals(pa.string(), pa.string(), "1"),
        pa.concat_arrays([pa.array([None], pa.list_(ENTRY)), pa.array(ENTRIES, pa.list_(ENTRY))])[1:],
    ],
    ids=lambda headers: str(headers.type),
)
def test_headers_may_be_lists_or_maps_in_any_layout(headers: pa.Array) -> None:
    columns = record_rows(producer_columns(headers=headers), 3, 0)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [b"\x04\x02h\x021\x02h\x01", b"\x00", b"\x00"]


def test_headers_may_be_lists_of_a_fixed_size() -> None:
    """An Array of polars."""
    headers = pa.array([[{"key": "h", "value": b"1"}], None], pa.list_(ENTRY, 1))
    columns = record_rows(producer_columns(headers=headers), 2, 0)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [b"\x02\x02h\x021", b"\x00"]


def test_the_nulls_that_headers_of_a_fixed_size_hide_are_no_problem() -> None:
    """A null row of a list of a fixed size has entries all the same, which are null. Arrow was asked for another kind of list,
    and found nulls where the field `key` is not nullable."""
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    parts = [pa.array(["h", None]), pa.array([b"1", None])]
    entries = pa.StructArray.from_arrays(parts, fields=list(entry), mask=pa.array([False, True]))
    headers = pa.FixedSizeListArray.from_arrays(entries, type=pa.list_(entry, 1), mask=pa.array([False, True]))
    columns = record_rows(producer_columns(headers=headers), 2, 0)
    assert columns.headers is not None
    assert columns.headers.to_pylist() == [b"\x02\x02h\x021", b"\x00"]


@pytest.mark.parametrize("headers", [[[], []], [[], None], [None, None]])
def test_headers_of_which_no_row_has_any_may_have_no_type(headers: list[Any]) -> None:
    """pyarrow and pandas infer list<null>, or null."""
    assert record_rows(producer_columns(headers=pa.array(headers)), 2, 0).headers is None


def test_a_null_among_headers_is_a_header_without_a_key() -> None:
    with pytest.raises(InvalidRecordError, match="a header has no key"):
        record_rows(producer_columns(headers=pa.array([[None]])), 1, 0)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(("unit", "rest"), [("s", 678), ("ms", 0), ("us", 0), ("ns", 0)])
def test_a_timestamp_is_its_instant_in_milliseconds_whatever_its_unit(zone: str, unit: str, rest: int) -> None:
    stamps = pa.array([MOMENT, None], pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone), safe=False)
    assert producer_columns(timestamp=stamps).timestamp.to_pylist() == [MOMENT_MS - rest, None]


@pytest.mark.parametrize("kind", [pa.int64(), encoded(pa.int64())], ids=str)
def test_integers_are_milliseconds(kind: pa.DataType) -> None:
    assert producer_columns(timestamp=column([5, None], kind)).timestamp.to_pylist() == [5, None]


def test_seconds_that_are_no_milliseconds_are_an_error() -> None:
    """Such seconds went round: a cast without a check made a time before 1970 of them."""
    with pytest.raises(InvalidRecordError, match=r"column timestamp: .*out of bounds"):
        producer_columns(timestamp=pa.array([2**62], pa.timestamp("s", "UTC")))


@pytest.mark.parametrize("name", ["key", "value", "partition", "headers", "timestamp"])
def test_a_column_of_nothing_but_nulls_has_no_type_and_is_taken(name: str) -> None:
    columns = producer_columns(**{name: pa.nulls(2)})
    explicit_partitions(columns.partition, 2)
    assert record_rows(columns, 2, 7).timestamps == 7


def test_an_extension_type_counts_as_what_it_is_stored_as() -> None:
    keys = pa.array([b"0123456789abcdef"], pa.binary(16)).cast(UUID)
    assert producer_columns(key=keys).key.to_pylist() == [b"0123456789abcdef"]


def test_a_name_overrides_the_column_whatever_its_type() -> None:
    assert producer_columns("orders", topic=pa.array([1])).topic == "orders"


def test_keys_and_values_are_not_copied() -> None:
    batch = pa.record_batch({"key": ["k"], "value": ["v"]})
    columns = TableColumns.find(batch.schema, "t").producer_columns(batch)
    assert columns.key.buffers()[2].address == batch["key"].buffers()[2].address
    assert columns.value.chunk(0).buffers()[2].address == batch["value"].buffers()[2].address


def test_other_columns_are_ignored() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["a"]), pa.array([2])], ["id", "value", "offset"])
    assert TableColumns.find(batch.schema, "t").producer_columns(batch).value.to_pylist() == ["a"]


# WHAT IS SAID OF OTHERS


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("value", pa.int64(), "has type int64; it must be string or binary: cast it to string before sending"),
        (
            *("value", pa.struct([("a", pa.int8())])),
            "it must be string or binary: encode it before sending, for example as JSON, or set value.serializer=avro",
        ),
        (
            *("key", pa.list_(pa.string())),
            "it must be string or binary: encode it before sending, for example as JSON, or set key.serializer=avro",
        ),
        ("key", encoded(pa.int64()), "it must be string or binary: cast it to string"),
        ("topic", pa.binary(), "has type binary; it must be string: cast it to string before sending"),
        ("partition", pa.string(), "has type string; it must be int32: cast it to int32 before sending"),
        ("partition", pa.float64(), "In pandas, nulls make floats of integers: astype('Int32')"),
        ("partition", pa.bool_(), "it must be int32"),
        ("headers", pa.string(), "it must be list<struct<key: string, value: binary>> or map<string, binary>"),
        ("headers", pa.struct([("a", pa.binary())]), "a list of {'key': …, 'value': …} in each row"),
        ("headers", pa.list_(pa.struct([("key", pa.string())])), "it must be list<struct<key: string, value: binary>>"),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int8())])), "it must be list<struct<key: string,"),
        ("headers", pa.map_(pa.string(), pa.int8()), "or map<string, binary>"),
        ("timestamp", pa.timestamp("us"), "without a time zone it is no moment; name its zone: dt.tz_localize('UTC') in pandas"),
        ("timestamp", pa.date32(), "it must be a timestamp with a time zone, or int64 milliseconds since 1970: cast it"),
        ("timestamp", pa.float64(), "or leave it out: the time of sending counts then"),
    ],
    ids=str,
)
def test_the_error_of_a_wrong_type_says_what_it_must_be_and_how(name: str, kind: pa.DataType, words: str) -> None:
    message = problem({"topic": pa.string(), "value": pa.string()} | {name: kind}, None)
    assert message.startswith(f"column {name} has type {kind}; it must be ")
    assert words in message


def test_the_error_of_a_missing_column_names_the_columns_that_there_are() -> None:
    text = "there is no column value; nulls in it are tombstones, but it must be there. The table's columns are: "
    assert problem({"id": pa.int64(), "payload": pa.string()}) == f"{text}id, payload"
    assert problem({"VALUE": pa.string()}) == f"{text}VALUE. Did you mean 'VALUE'? Rename it to value"
    assert problem({}) == f"{text}none"
    no_topic = "no topic: pass its name as in send_table(name, table), or a table with the column topic."
    assert problem({"value": pa.string()}, None).startswith(no_topic)


@pytest.mark.parametrize(("name", "meant"), [("Key", "key"), ("header", "headers"), ("time_stamp", "timestamp")])
def test_a_column_that_is_probably_misspelt_is_an_error(name: str, meant: str) -> None:
    """The sink ignores it, as Spark's does: its rows have no key then."""
    message = problem({"value": pa.string(), name: pa.string()})
    assert message == f"column {name!r} is no part of a record; did you mean {meant}? Rename it, or leave it out of the table"


@pytest.mark.parametrize("name", ["event_timestamp", "position", "partition_date", "partition_id", "readers", "leaders"])
def test_a_column_that_is_about_something_else_is_left_out(name: str) -> None:
    assert TableColumns.find(pa.schema({"value": pa.string(), name: pa.string()}), "orders").mapping.key is None


def test_columns_of_a_topic_that_was_read_are_taken_as_they_are() -> None:
    """What Spark and others call the columns of a Kafka source: none is taken for a misspelt one."""
    names = {"offset": pa.int64(), "timestampType": pa.int32(), "timestamp": pa.int64(), "partition": pa.int32()}
    schema = pa.schema(list({"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), **names}.items()))
    assert TableColumns.find(schema, None).mapping.timestamp == 5


@pytest.mark.parametrize("name", ["value", "key", "headers", "topic"])
def test_two_columns_of_one_name_are_an_error(name: str) -> None:
    """The first one was sent, without a word, and the values of the other were lost."""
    schema = pa.schema([("value", pa.string()), ("topic", pa.string()), (name, pa.string()), (name, pa.string())])
    with pytest.raises(SchemaError, match=rf"[23] columns are called {name}, of which one can be sent: leave the others out"):
        TableColumns.find(schema, None)


def test_columns_that_no_row_needs_may_be_there_twice() -> None:
    schema = pa.schema([("value", pa.string()), *[(name, pa.string()) for name in ("topic", "topic", "id", "id")]])
    assert TableColumns.find(schema, "orders").mapping.topic == "orders"


def test_all_problems_are_one_error() -> None:
    message = problem({"value": pa.int8(), "keys": pa.string(), "partition": pa.string()}, None)
    assert message.startswith("4 things are wrong:")
    assert all(f"\n  - {each}" in message for each in ("no topic", "column 'keys'", "column value", "column partition"))
