"""Columns of each type become what fastavro writes; rows that cannot be encoded are told apart."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from tests.schemas.avro_rows import encoded, encoder_for, written_by_fastavro

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


def test_a_column_of_another_type_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"type int64 is encoded, and this one has type string"):
        encoder_for(pa.int64(), "long").encode(pa.array(["x"]))


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
    (pa.decimal128(30, 0), logical("bytes", "decimal", precision=30), [Decimal(2**63), Decimal(-(2**64)), Decimal(1)]),
    (pa.list_(pa.int64()), {"type": "array", "items": "long"}, [[], [1, 2, 3], [-1] * 100]),
    (pa.list_(pa.string()), {"type": "array", "items": ["null", "string"]}, [[None, "a"], []]),
]


@pytest.mark.parametrize(("type", "schema", "rows"), VALUES, ids=[f"{type}-{schema}"[:60] for type, schema, _ in VALUES])
def test_each_type_is_written_as_fastavro_does(type: pa.DataType, schema: Any, rows: list[Any]) -> None:
    assert encoded(pa.array(rows, type), schema) == written_by_fastavro(rows, schema)
    with_nulls = pa.array([None, *rows, None], type)
    assert encoded(with_nulls, schema) == [None, *written_by_fastavro(rows, schema), None]
