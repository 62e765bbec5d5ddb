"""Columns of each type become what fastavro writes; rows that cannot be encoded are told apart."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.schemas import avro_encoder
from spark_kafka_sink.schemas.avro import encoding
from spark_kafka_sink.schemas.avro.values import rows_that_are_not_utf8
from tests.schemas.avro.rows import encoded, encoder_for, written_by_fastavro

UTC = dt.UTC
FLAT = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": ["boolean", "null"]},
    ],
}
FLAT_TYPE = pa.struct([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("paid", pa.bool_())])
FLAT_ROWS: list[Any] = [
    {"id": 1, "customer": "Zoë", "amount": 1.5, "paid": True},
    None,
    {"id": -(2**63), "customer": None, "amount": float("nan"), "paid": None},
    {"id": 2**63 - 1, "customer": "x" * 300, "amount": float("-inf"), "paid": False},
]


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def test_a_flat_struct_is_written_as_fastavro_does() -> None:
    column = pa.array(FLAT_ROWS, FLAT_TYPE)
    assert encoded(column, FLAT) == written_by_fastavro(FLAT_ROWS, FLAT)


def test_each_row_but_tombstones_begins_with_the_prefix() -> None:
    prefix = b"\0\0\0\0\x2a"
    expected = [row and prefix + row for row in written_by_fastavro(FLAT_ROWS, FLAT)]
    assert encoded(pa.array(FLAT_ROWS, FLAT_TYPE), FLAT, prefix) == expected


def test_a_pickled_encoder_writes_the_same() -> None:
    encoder = pickle.loads(pickle.dumps(encoder_for(FLAT_TYPE, FLAT)))
    assert encoder.encode(pa.array(FLAT_ROWS, FLAT_TYPE)).values.to_pylist() == written_by_fastavro(FLAT_ROWS, FLAT)


VALUES: list[tuple[pa.DataType, Any, list[Any]]] = [
    (pa.bool_(), "boolean", [True, False]),
    (pa.int8(), "int", [-128, 0, 127]),
    (pa.int32(), "int", [-(2**31), 2**31 - 1, 0]),
    (pa.int32(), "long", [-(2**31), 2**31 - 1, 0]),
    (pa.int64(), "long", [-(2**63), 2**63 - 1, -1, 63, 64, -64, -65, 2**55, 2**56]),
    (pa.uint64(), "long", [0, 2**63 - 1]),
    (pa.float32(), "float", [1.5, float("inf"), float("nan")]),
    (pa.float32(), "double", [1.5, float("-inf"), float("nan")]),
    (pa.float64(), "double", [0.1, -0.0, 5e-324]),
    (pa.string(), "string", ["", "Zoë", "x" * 1000]),
    (pa.large_string(), "string", ["", "Zoë", "x" * 1000]),
    (pa.string_view(), "string", ["", "Zoë", "x" * 1000]),
    (pa.dictionary(pa.int8(), pa.string()), "string", ["a", "b", "a"]),
    (pa.dictionary(pa.int8(), pa.int64()), "long", [5, 7, 5]),
    (pa.dictionary(pa.int8(), pa.binary()), "bytes", [b"a", b"\xff", b"a"]),
    (pa.binary(), "bytes", [b"", b"\xff" * 20]),
    (pa.binary(3), "bytes", [b"abc", b"def"]),
    (pa.binary(3), {"type": "fixed", "name": "F", "size": 3}, [b"abc", b"def"]),
    (pa.large_binary(), {"type": "fixed", "name": "F", "size": 3}, [b"abc", b"def"]),
    (pa.string(), {"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B", "A"]),
    (pa.dictionary(pa.int8(), pa.string()), {"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B", "A"]),
    (pa.date32(), logical("int", "date"), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    (pa.time64("us"), logical("long", "time-micros"), [dt.time(0, 0), dt.time(23, 59, 59, 999_999)]),
    (pa.time32("ms"), logical("int", "time-millis"), [dt.time(0, 0), dt.time(23, 59, 59, 999_000)]),
    (pa.timestamp("us", "UTC"), logical("long", "timestamp-micros"), [dt.datetime(1960, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("us", "UTC"), logical("long", "timestamp-millis"), [dt.datetime(1960, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)]),
    (pa.timestamp("us"), logical("long", "local-timestamp-micros"), [dt.datetime(2024, 2, 29, 1, 2, 3, 4)]),
    (
        pa.decimal128(5, 2),
        logical("bytes", "decimal", precision=7, scale=2),
        [Decimal("-1.29"), Decimal("327.68"), Decimal("0.00")],
    ),
    (pa.decimal32(5, 2), logical("bytes", "decimal", precision=7, scale=2), [Decimal("-1.29"), Decimal("999.99")]),
    (pa.decimal64(15, 2), logical("bytes", "decimal", precision=17, scale=2), [Decimal("-1.29"), Decimal("9999999999999.99")]),
    (pa.decimal128(30, 0), logical("bytes", "decimal", precision=30), [Decimal(2**63), Decimal(-(2**64)), Decimal(1)]),
    (pa.list_(pa.int64()), {"type": "array", "items": "long"}, [[], [1, 2, 3], [-1] * 100]),
    (pa.list_(pa.string()), {"type": "array", "items": ["null", "string"]}, [[None, "a"], []]),
    (pa.list_(pa.float32()), {"type": "array", "items": "float"}, [[1.5, -2.5], [], [0.25]]),
    (pa.list_(pa.float32()), {"type": "array", "items": ["null", "double"]}, [[1.5, -2.5], [], [0.25]]),
    (pa.list_(pa.float64()), {"type": "array", "items": ["double", "null"]}, [[1.5, None], [], [0.25]]),
    (pa.list_(pa.float64(), 2), {"type": "array", "items": ["double", "string"]}, [[1.5, 2.5], [0.25, -1.0]]),
]


@pytest.mark.parametrize(("type", "schema", "rows"), VALUES, ids=[f"{type}-{schema}"[:60] for type, schema, _ in VALUES])
def test_each_type_is_written_as_fastavro_does(type: pa.DataType, schema: Any, rows: list[Any]) -> None:
    assert encoded(pa.array(rows, type), schema) == written_by_fastavro(rows, schema)
    with_nulls = pa.array([None, *rows, None], type)
    assert encoded(with_nulls, schema) == [None, *written_by_fastavro(rows, schema), None]


@pytest.mark.parametrize(("type", "schema"), [(pa.string_view(), "string"), (pa.binary_view(), "bytes")])
def test_a_dictionary_may_have_views(type: pa.DataType, schema: str) -> None:
    """A table of polars has views. Arrow cannot take rows from views."""
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int32()), pa.array(["a", "b" * 20]).cast(type))
    assert encoded(column, schema) == [b"\x28" + b"b" * 20, None, b"\x02a"]


# REFUSED ROWS


def refused(column: pa.Array | pa.ChunkedArray, schema: Any, truncates_timestamps: bool = False) -> list[tuple[Any, ...]]:
    """(rows, field, reason) of those that are refused; the others are checked: written as if they were alone."""
    encoder = encoder_for(column.type, schema, truncates_timestamps)
    values, refused_rows = encoder.encode(column, b"\0")
    values.validate(full=True)
    bad = {int(row) for each in refused_rows for row in each.rows}
    good = [row for row in range(len(column)) if row not in bad]
    assert [values[row].as_py() for row in bad] == [None] * len(bad)
    alone = encoder.encode(column.take(pa.array(good, pa.int64())), b"\0")
    assert (alone.refused_rows, alone.values.to_pylist()) == ([], [values[row].as_py() for row in good])
    return [(each.rows.tolist(), each.field, each.reason) for each in refused_rows]


IS_NULL = "it is null, which the schema does not allow"


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": type} for name, type in fields]}


def test_a_null_where_none_may_be_refuses_its_row() -> None:
    type = pa.struct([("x", pa.int64()), ("y", pa.string())])
    column = pa.array([{"x": 1, "y": "a"}, {"x": None, "y": "b"}, None, {"x": 3, "y": None}, {"x": None, "y": None}], type)
    schema = record(("x", "long"), ("y", "string"))
    assert refused(column, schema) == [([1, 4], "x", IS_NULL), ([3], "y", IS_NULL)]


def test_a_null_deep_in_a_row_refuses_it_and_names_the_way() -> None:
    inner = pa.struct([("zip", pa.string())])
    type = pa.struct([("a", pa.struct([("city", pa.list_(inner)), ("by", pa.map_(pa.string(), pa.list_(pa.int8())))]))])
    rows = [
        {"a": {"city": [{"zip": "1"}, {"zip": None}, {"zip": None}], "by": []}},
        {"a": {"city": [], "by": [("k", [1]), ("l", [1, None])]}},
        {"a": {"city": [None], "by": [("k", None)]}},
        {"a": {"city": None, "by": []}},
        {"a": None},
        {"a": {"city": [{"zip": "1"}], "by": [("k", [])]}},
    ]
    city = {"type": "array", "items": record(("zip", "string"), name="City")}
    by = {"type": "map", "values": {"type": "array", "items": "int"}}
    schema = record(("a", record(("city", city), ("by", by), name="A")))
    assert refused(pa.array(rows, type), schema) == [
        ([4], "a", IS_NULL),
        ([3], "a.city", IS_NULL),
        ([2], "a.city[*]", IS_NULL),
        ([0], "a.city[*].zip", IS_NULL),
        ([1], "a.by[*][*]", IS_NULL),
    ]


def test_each_row_is_refused_once_for_the_first_reason() -> None:
    """Row 0 has two bad items, row 2 a null map besides its null item."""
    column = pa.array([{"x": [None, None], "y": 1}, {"x": [1], "y": 1}, {"x": [None], "y": None}])
    schema = record(("x", {"type": "array", "items": "long"}), ("y", "long"))
    assert refused(column, schema) == [([0, 2], "x[*]", IS_NULL)]


def test_what_a_null_hides_is_not_refused() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([None, 1]), pa.array(["B", "A"])], ["x", "e"], mask=pa.array([True, False]))
    schema = record(("x", "long"), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}))
    assert refused(hidden, schema) == []
    outer = pa.StructArray.from_arrays([hidden], ["inner"])
    assert refused(outer, record(("inner", ["null", schema]), name="Outer")) == []
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), hidden.field(0), mask=pa.array([True, False]))
    assert refused(lists, {"type": "array", "items": "long"}) == []


MILLIS = logical("long", "timestamp-millis")
BY_VALUE: list[tuple[pa.Array, Any, list[int], str]] = [
    (
        pa.array([b"1234", b"123", None, b"", b"12345"]),
        {"type": "fixed", "name": "F", "size": 4},
        [1, 3, 4],
        "it does not have the 4 bytes of the fixed",
    ),
    (pa.array([0, 2**63 - 1, None, 2**63, 2**64 - 1], pa.uint64()), "long", [3, 4], "it exceeds the largest long"),
    (
        pa.array([0, 1000, None, 1001, -1], pa.timestamp("us", "UTC")),
        MILLIS,
        [3, 4],
        "it is no whole number of milliseconds, the schema's unit",
    ),
    (
        pa.array([0, 1_000_000, None, 1], pa.timestamp("ns")),
        logical("long", "local-timestamp-micros"),
        [3],
        "it is no whole number of microseconds, the schema's unit",
    ),
    (
        pa.array([2**63 // 1000, -(2**63) // 1000 + 1, None, 2**63 // 1000 + 1, -(2**63)], pa.timestamp("ms", "UTC")),
        logical("long", "timestamp-micros"),
        [3, 4],
        "as a number of microseconds it exceeds 64 bits",
    ),
    (
        pa.array([0, 86_400_000, None, 1], pa.int64()).view(pa.date64()),
        logical("int", "date"),
        [3],
        "it is no whole number of days, the schema's unit",
    ),
    (
        pa.array([86_400_000 * (2**31 - 1), None, 86_400_000 * 2**31], pa.int64()).view(pa.date64()),
        logical("int", "date"),
        [2],
        "as a number of days it exceeds 32 bits",
    ),
    (
        pa.array(["123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000", None, "", "123e4567"]),
        logical("string", "uuid"),
        [3, 4],
        "it is no UUID in the form of 8-4-4-4-12 hexadecimal digits",
    ),
    (
        pa.array([b"a", b"\xff", None, "é".encode(), b"\xc3"]).cast(pa.binary()).view(pa.string()),
        "string",
        [1, 4],
        "its bytes are not UTF-8; cast it to binary, for a schema with bytes",
    ),
]


@pytest.mark.parametrize(("column", "schema", "rows", "reason"), BY_VALUE, ids=[reason[:40] for *_, reason in BY_VALUE])
def test_values_that_the_schema_cannot_hold_are_refused(column: pa.Array, schema: Any, rows: list[int], reason: str) -> None:
    assert refused(column, schema) == [(rows, "", reason)]
    below = pa.StructArray.from_arrays([column], ["x"])
    assert refused(below.slice(1), record(("x", ["null", schema]))) == [([row - 1 for row in rows], "x", reason)]


@pytest.mark.parametrize("octets", [b"\x80", b"\xc3", b"\xff", b"a\x80b"])
def test_a_single_byte_that_is_not_utf8_is_found(octets: bytes) -> None:
    column = pa.array([b"a", octets, b"b"], pa.binary()).view(pa.string())
    [(rows, _, _)] = refused(column, "string")
    assert rows == [1]


def is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


AT_BORDERS = [b"\0", b"A", b"\x7f", *(bytes([octet]) for octet in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF))]
AT_BORDERS += [bytes([octet]) for octet in (0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF)]
TEXTS = st.lists(st.sampled_from([*AT_BORDERS, "é".encode(), "€".encode(), "😀".encode()]), max_size=4).map(b"".join)


@given(rows=st.lists(TEXTS, min_size=2, max_size=12), start=st.integers(0, 1), is_large=st.booleans())
@example(rows=[b"\xec", b"", b"\x80"], start=0, is_large=False)
def test_the_rows_that_are_not_utf8_are_those_that_python_cannot_decode(rows: list[bytes], start: int, is_large: bool) -> None:
    column = pa.array(rows, pa.large_binary() if is_large else pa.binary()).slice(start)
    assert rows_that_are_not_utf8(column).tolist() == [not is_utf8(row) for row in rows[start:]]


def decimals_of(numbers: list[int | None], type: pa.DataType) -> pa.Array:
    """A column of these unscaled numbers, which may have more digits than the type has."""
    width = type.bit_width // 8
    octets = b"".join((number or 0).to_bytes(width, "little", signed=True) for number in numbers)
    is_valid = pa.array([number is not None for number in numbers]).buffers()[1]
    return pa.Array.from_buffers(type, len(numbers), [is_valid, pa.py_buffer(octets)])


@pytest.mark.parametrize("type", [pa.decimal128(4, 2), pa.decimal256(4, 2)])
@pytest.mark.parametrize("digits", [4, 18, 19, 20, 37])
@pytest.mark.parametrize("size", [None, 16, 17])
def test_a_decimal_with_more_digits_than_the_schemas_is_refused(type: pa.DataType, digits: int, size: int | None) -> None:
    """No Arrow library checks the digits of a decimal, so a column may have such values."""
    largest = 10**digits - 1
    column = decimals_of([largest, largest + 1, None, -largest, -largest - 1, 0, -1], type)
    schema = logical("bytes" if size is None else "fixed", "decimal", precision=digits, scale=2)
    schema |= {} if size is None else {"name": "F", "size": size}
    assert refused(column, schema) == [([1, 4], "", f"it has more than the {digits} digits of the schema's decimal")]
    written = encoder_for(type, schema).encode(column).values
    for row, number in ((0, largest), (3, -largest)):
        octets = written[row].as_py()[1 if size is None else 0 :]
        assert int.from_bytes(octets, "big", signed=True) == number


@pytest.mark.parametrize("bits", [7, 15, 23, 55, 63, 71, 127])
def test_the_lowest_number_of_some_bytes_needs_no_more_of_them(bits: int) -> None:
    """Java's BigInteger.toByteArray writes the same. fastavro writes a byte more, which a reader takes for the same number."""
    column = decimals_of([-(1 << bits), (1 << bits) - 1, 1 << bits], pa.decimal256(76, 0))
    written = encoded(column, logical("bytes", "decimal", precision=76))
    size = (bits + 1) // 8
    assert [row and len(row) - 1 for row in written] == [size, size, size + 1]


def test_an_option_cuts_off_what_is_finer_than_the_schemas_unit() -> None:
    """Towards the past, as to_avro."""
    column = pa.array([1999, -1, -1000, -1001], pa.timestamp("us", "UTC"))
    assert refused(column, MILLIS, truncates_timestamps=True) == []
    assert encoder_for(column.type, MILLIS, True).encode(column).values.to_pylist() == [b"\x02", b"\x01", b"\x01", b"\x03"]


@pytest.mark.parametrize("type", [logical("string", "uuid"), {"type": "fixed", "name": "F", "size": 4}])
def test_a_reason_has_nothing_of_the_row(type: Any) -> None:
    """But of enums: what is no symbol has to be known."""
    column = pa.array([{"x": "secret" if type["type"] == "string" else b"secret"}])
    [(_, field, reason)] = refused(column, record(("x", type)))
    assert "secret" not in field + reason


def test_all_rows_may_be_refused() -> None:
    assert refused(pa.array([{"x": None}] * 3, pa.struct([("x", pa.int64())])), record(("x", "long"))) == [
        ([0, 1, 2], "x", IS_NULL)
    ]


# MANY ROWS


def test_rows_are_where_they_are_over_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_BLOCK_ROWS", 3)
    monkeypatch.setattr(encoding, "MIN_BLOCK_ROWS", 1)
    numbers = [None if row % 7 == 5 else [row] * (row % 4) + [None] * (row % 11 == 10) for row in range(50)]
    whole = pa.array(numbers, pa.list_(pa.int32()))
    column = pa.chunked_array([whole[:10], whole[10:10], whole[10:37], whole[37:]])
    schema = {"type": "array", "items": "int"}
    assert refused(column, schema) == [([10, 21, 32, 43], "[*]", IS_NULL)]
    good = [row if row is None or None not in row else None for row in numbers]
    assert encoder_for(column.type, schema).encode(column).values.to_pylist() == written_by_fastavro(good, schema)


def test_what_is_no_symbol_is_named_with_the_symbols() -> None:
    """The reason was "it is none of the enum's symbols", of which nobody learnt which value, and which symbols."""
    schema = record(("e", ["null", {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}]))
    values = ["NEW", "LOST", None, "", "LOST", "new", "PAID", "x" * 100]
    column = pa.StructArray.from_arrays([pa.array(values)], ["e"])
    symbols = "is none of the enum's symbols: NEW, PAID"
    assert refused(column, schema) == [
        ([1, 4], "e", f"'LOST' {symbols}"),
        ([3], "e", f"'' {symbols}"),
        ([5], "e", f"'new' {symbols}"),
        ([7], "e", f"it {symbols}"),
    ]
    (shown,) = refused(column[7:], schema)
    assert shown[2] == f"'{'x' * 60}… (40 more characters)' {symbols}"


def test_what_a_null_hides_is_no_unknown_symbol() -> None:
    hidden = pa.StructArray.from_arrays([pa.array(["LOST", "NEW"])], ["e"], mask=pa.array([True, False]))
    schema = record(("e", {"type": "enum", "name": "E", "symbols": ["NEW"]}))
    assert refused(hidden, schema) == []


def test_null_structs_in_maps_are_written_though_their_fields_are_not_null() -> None:
    """Arrow was asked to see the map as a list, and found the null below a field that is not nullable."""
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False)])
    items = pa.StructArray.from_arrays([pa.array([None, 7], pa.int32())], fields=list(kind), mask=pa.array([True, False]))
    column = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), items)
    record = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    schema = {"type": "map", "values": ["null", record]}
    expected = written_by_fastavro([{"a": None}, {"b": {"id": 7}}], schema)
    assert encoded(column, schema) == expected
    assert encoded(column.slice(1), schema) == expected[1:]


@pytest.mark.parametrize("index_type", [pa.int8(), pa.int32()])
@pytest.mark.parametrize("is_nested", [False, True])
def test_pieces_of_dictionaries_that_differ_are_joined(index_type: pa.DataType, is_nested: bool) -> None:
    """Small pieces are joined before they are encoded. Arrow joins no dictionaries with a null among their entries, nor those
    that have more entries together than their indices can number; both ended in ArrowInvalid."""

    def piece(letter: str) -> pa.Array:
        entries = pa.array([*(f"{letter}{number}" for number in range(100)), None])
        column = pa.DictionaryArray.from_arrays(pa.array([0, 100, None], index_type), entries)
        return pa.StructArray.from_arrays([column], ["text"]) if is_nested else column

    text: Any = ["null", "string"]
    schema = {"type": "record", "name": "R", "fields": [{"name": "text", "type": text}]} if is_nested else text
    rows: list[Any] = ["x0", None, None, "y0", None, None]
    expected = written_by_fastavro([{"text": row} if is_nested else row for row in rows], schema)
    assert encoded(pa.chunked_array([piece("x"), piece("y")]), schema) == expected


def test_a_result_beyond_2_gib_is_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (avro_encoder, encoding):
        monkeypatch.setattr(module, "INT32_MAX", 20)
    column = pa.array(["x" * 10, None, "y" * 15])
    values = encoder_for(column.type, "string").encode(column, b"\0").values
    assert values.type == pa.large_binary()
    assert values.to_pylist() == [b"\0\x14" + b"x" * 10, None, b"\0\x1e" + b"y" * 15]


def counted_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the rows of each block that is encoded from now on."""
    blocks: list[int] = []
    encode_block = encoding._encode_block

    def counted(each: Any, block: pa.Array, *more: Any) -> Any:
        blocks.append(len(block))
        return encode_block(each, block, *more)

    monkeypatch.setattr(encoding, "_encode_block", counted)
    return blocks


def test_small_chunks_are_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's batches may have a few rows each, and a block costs as much as hundreds of them."""
    monkeypatch.setattr(avro_encoder, "MAX_BLOCK_ROWS", 100)
    blocks = counted_blocks(monkeypatch)
    rows = [str(row) if row % 3 else None for row in range(330)]
    chunks = [pa.array(rows[start : start + 30], pa.string()).dictionary_encode() for start in range(0, 300, 30)]
    column = pa.chunked_array([*chunks, pa.array(rows[300:], pa.string()).dictionary_encode()])
    assert encoded(column, "string") == written_by_fastavro(rows, "string")
    assert blocks == [90, 90, 90, 60]


def test_rows_of_many_bytes_are_encoded_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block needs meanwhile is bounded by its bytes, but for a few rows."""
    monkeypatch.setattr(encoding, "MAX_BLOCK_BYTES", 1 << 16)
    blocks: list[int] = []
    encode_block = encoding._encode_block
    monkeypatch.setattr(
        encoding, "_encode_block", lambda each, block, *more: blocks.append(len(block)) or encode_block(each, block, *more)
    )
    schema = {"type": "array", "items": "double"}
    for items in (1, 10, 1000):
        column = pa.array([[float(item) for item in range(items)]] * 2000, pa.list_(pa.float64()))
        assert len(encoder_for(column.type, schema).encode(column).values) == 2000
    assert blocks == [2000, *[780] * 2, 440, *[256] * 7, 208]
