"""Any column of Arrow by any schema of Avro, for property tests: types, values, and what a column may hide.

A strategy draws a type of Arrow together with a schema of Avro and values. `with_garbage` puts anything into the slots of
nulls: a field that is not nullable may be null there, too, as Spark writes it. Some entries of dictionaries are null.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st


@dataclass(frozen=True)
class TypePair:
    """A type on both sides. Values are what Arrow and fastavro both take, but for maps: `for_fastavro` makes those."""

    type: pa.DataType
    schema: Any
    values: st.SearchStrategy[Any]
    for_fastavro: Callable[[Any], Any] = lambda value: value


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


# VALUES


def integers(bits: int) -> st.SearchStrategy[int]:
    half = 1 << (bits - 1)
    edges = st.sampled_from([0, -1, 63, 64, -64, -65, half - 1, -half])
    return edges | st.integers(-half, half - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Decimals without -128, -32768 …: fastavro writes a byte more than they need, Java does not."""
    needs_a_byte_more = {-(1 << bits) for bits in range(7, 256, 8)}
    edges = [10**digits - 1 for digits in range(precision + 1)] + [2**bits for bits in range(0, 63, 7) if 2**bits < 10**precision]
    numbers = st.sampled_from([*edges, *(-edge for edge in edges)]) | st.integers(1 - 10**precision, 10**precision - 1)
    return numbers.filter(lambda number: number not in needs_a_byte_more).map(
        lambda number: Decimal(number).scaleb(-scale, CONTEXT)
    )


CONTEXT = Context(prec=100)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["", "é" * 7, "x" * 12, "x" * 13, "y" * 70])
BYTES = st.binary(max_size=20)
DAYS = st.dates()
FLOATS = st.floats(width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0])
DOUBLES = st.floats() | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0])
TIMES = st.times()
INSTANTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))


def in_milliseconds(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def in_utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


def numbers() -> list[TypePair]:
    return [
        *(TypePair(type, "int", integers(bits)) for type, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32))),
        *(TypePair(type, "long", integers(bits)) for type, bits in ((pa.int8(), 8), (pa.int32(), 32), (pa.int64(), 64))),
        TypePair(pa.uint16(), "int", st.integers(0, 2**16 - 1)),
        TypePair(pa.uint32(), "long", st.integers(0, 2**32 - 1)),
        TypePair(pa.uint64(), "long", st.integers(0, 2**63 - 1)),
        TypePair(pa.float32(), "float", FLOATS),
        TypePair(pa.float32(), "double", FLOATS),
        TypePair(pa.float64(), "double", DOUBLES),
        TypePair(pa.bool_(), "boolean", st.booleans()),
    ]


def texts_and_bytes() -> list[TypePair]:
    strings = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())]
    symbols = ("A", "B", "größe", "A2", "a")
    enum = {"type": "enum", "name": "E", "symbols": symbols[:2] + symbols[3:]}
    enum_values = st.sampled_from(enum["symbols"])
    fixed = {"type": "fixed", "name": "F", "size": 16}
    of_16 = st.binary(min_size=16, max_size=16)
    return [
        *(TypePair(type, "string", TEXTS) for type in strings),
        *(TypePair(type, enum, enum_values) for type in strings),
        *(TypePair(type, "bytes", BYTES) for type in (pa.binary(), pa.large_binary(), pa.binary_view())),
        *(TypePair(type, fixed, of_16) for type in (pa.binary(), pa.binary(16))),
        TypePair(pa.binary(16), "bytes", of_16),
        TypePair(pa.string(), logical("string", "uuid"), st.uuids().map(str)),
    ]


def times() -> list[TypePair]:
    return [
        TypePair(pa.date32(), logical("int", "date"), DAYS),
        TypePair(pa.date64(), logical("int", "date"), DAYS),
        TypePair(pa.time64("us"), logical("long", "time-micros"), TIMES),
        TypePair(pa.time32("ms"), logical("long", "time-micros"), TIMES.map(in_milliseconds)),
        TypePair(pa.time64("us"), logical("int", "time-millis"), TIMES.map(in_milliseconds)),
        *(
            TypePair(pa.timestamp("us", zone), logical("long", "timestamp-micros"), INSTANTS.map(in_utc))
            for zone in ("UTC", "Etc/UTC", "America/New_York")
        ),
        TypePair(pa.timestamp("us", "UTC"), logical("long", "timestamp-millis"), INSTANTS.map(in_milliseconds).map(in_utc)),
        TypePair(pa.timestamp("us"), logical("long", "local-timestamp-micros"), INSTANTS),
        TypePair(pa.timestamp("us"), logical("long", "local-timestamp-millis"), INSTANTS.map(in_milliseconds)),
    ]


@st.composite
def decimal_cases(draw: st.DrawFn) -> TypePair:
    precision = draw(st.integers(1, 76))
    scale = draw(st.integers(0, min(precision, 10)))
    declared = draw(st.integers(precision, 76))
    type = pa.decimal256(precision, scale) if precision > 38 or draw(st.booleans()) else pa.decimal128(precision, scale)
    if draw(st.booleans()):
        return TypePair(type, logical("bytes", "decimal", precision=declared, scale=scale), decimals(precision, scale))
    size = draw(st.integers(32, 40)) if declared > 38 else draw(st.integers(16, 25))
    fixed = {"type": "fixed", "name": "D", "size": size, "logicalType": "decimal", "precision": declared, "scale": scale}
    return TypePair(type, fixed, decimals(precision, scale))


# COLUMNS IN COLUMNS


def nullable(case: TypePair, null_first: bool) -> TypePair:
    union = ["null", case.schema] if null_first else [case.schema, "null"]
    return TypePair(case.type, union, st.none() | case.values, lambda value: None if value is None else case.for_fastavro(value))


def as_field(name: str, case: TypePair) -> pa.Field:
    return pa.field(name, case.type, nullable=isinstance(case.schema, list))


def array(case: TypePair, type: pa.DataType, size: int | None = None) -> TypePair:
    schema = {"type": "array", "items": case.schema}
    values = st.lists(case.values, min_size=size or 0, max_size=4 if size is None else size)
    return TypePair(type, schema, values, lambda items: [case.for_fastavro(item) for item in items])


def map_of(case: TypePair, key_type: pa.DataType) -> TypePair:
    values = st.dictionaries(TEXTS, case.values, max_size=3).map(lambda entries: list(entries.items()))
    return TypePair(
        pa.map_(key_type, as_field("value", case)),
        {"type": "map", "values": case.schema},
        values,
        lambda entries: {key: case.for_fastavro(value) for key, value in entries},
    )


@st.composite
def structs(draw: st.DrawFn, depth: int) -> TypePair:
    cases = {f"f{number}": draw(any_case(depth)) for number in range(draw(st.integers(0, 4)))}
    fields: list[Any] = [{"name": name, "type": case.schema} for name, case in cases.items()]
    fields = draw(st.permutations([*fields, DEFAULTED] if draw(st.booleans()) else fields))
    schema = {"type": "record", "name": "R", "fields": fields}
    values = st.fixed_dictionaries({name: case.values for name, case in cases.items()})
    type = pa.struct([as_field(name, case) for name, case in cases.items()])
    return TypePair(type, schema, values, lambda row: {name: cases[name].for_fastavro(value) for name, value in row.items()})


@st.composite
def any_case(draw: st.DrawFn, depth: int) -> TypePair:
    """A case with columns in columns, up to `depth` deep."""
    match draw(st.sampled_from(["value", "decimal", *(["array", "sized array", "map", "struct", "struct"] if depth else [])])):
        case "value":
            case = draw(st.sampled_from(VALUES))
        case "decimal":
            case = draw(decimal_cases())
        case "array":
            inner = draw(any_case(depth - 1))
            kind = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]))
            case = array(inner, kind(as_field("item", inner)))
        case "sized array":
            inner, size = draw(any_case(depth - 1)), draw(st.integers(0, 3))
            case = array(inner, pa.list_(as_field("item", inner), size), size)
        case "map":
            case = map_of(draw(any_case(depth - 1)), draw(st.sampled_from([pa.string(), pa.large_string()])))
        case _:
            case = draw(structs(depth - 1))
    return nullable(case, draw(st.booleans())) if draw(st.booleans()) else case


DEFAULTED = {"name": "version", "type": "string", "default": "the first of all versions"}


def with_distinct_names(schema: Any, count: list[int]) -> Any:
    """Types drawn separately have the same names."""
    if isinstance(schema, list):
        return [with_distinct_names(branch, count) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: with_distinct_names(value, count) if key != "symbols" else value for key, value in schema.items()}
    if schema.get("type") in ("record", "enum", "fixed"):
        count[0] += 1
        renamed["name"] = f"{schema['name']}{count[0]}"
    return renamed


VALUES = [*numbers(), *texts_and_bytes(), *times()]

# GARBAGE UNDER NULLS


def with_garbage(column: pa.Array, source: random.Random) -> pa.Array:
    """The same values; what nulls hide are nulls, values of other rows, or any bytes. Dictionaries get entries that are null, and
    entries that no row has."""
    type, is_null = column.type, column.is_null()
    if pa.types.is_dictionary(type):
        return with_other_entries(column, source)
    is_view = pa.types.is_list_view(type) or pa.types.is_large_list_view(type)
    is_empty = pa.types.is_fixed_size_list(type) and type.list_size == 0  # pyarrow crashes when it makes one
    if len(column) == 0 or is_view or is_empty:
        return column
    filled = pa.concat_arrays(
        [column.slice(source.randrange(len(column)) if null else row, 1) for row, null in enumerate(is_null.to_pylist())]
    )
    if pa.types.is_struct(type):
        fields = [with_garbage(with_nulls(filled.field(place), is_null, source), source) for place in range(type.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(type), mask=is_null)
    if pa.types.is_fixed_size_list(type):
        items = with_nulls(filled.values, is_null.take(pa.array(np.repeat(np.arange(len(column)), type.list_size))), source)
        return pa.FixedSizeListArray.from_arrays(with_garbage(items, source), type=type, mask=is_null)
    if pa.types.is_map(type):
        return pa.MapArray.from_arrays(filled.offsets, filled.keys, with_garbage(filled.items, source), type, mask=is_null)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        kind = pa.ListArray if pa.types.is_list(type) else pa.LargeListArray
        return kind.from_arrays(filled.offsets, with_garbage(filled.values, source), type=type, mask=is_null)
    validity = pc.invert(is_null).buffers()[1]
    return pa.Array.from_buffers(type, len(column), [validity, *_with_any_bytes(filled, source)])


def with_nulls(column: pa.Array, may_be_null: pa.Array, source: random.Random) -> pa.Array:
    """Half of the columns are null in the rows that may be."""
    if pa.types.is_dictionary(column.type) or source.random() < 0.5:
        return column
    rows = enumerate(may_be_null.to_pylist())
    return pa.concat_arrays([pa.nulls(1, column.type) if null else column.slice(row, 1) for row, null in rows])


def with_other_entries(column: pa.DictionaryArray, source: random.Random) -> pa.Array:
    """The same values; an index, or its entry, is null. pa.array makes index 0 of what a null struct hides, without an entry."""
    entries = [f"no row has {source.random()}", None, *column.dictionary.to_pylist()]
    indices = [
        2 + index if index is not None and index < len(column.dictionary) else source.choice([None, 1])
        for index in column.indices.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(pa.array(indices, column.type.index_type), pa.array(entries, column.type.value_type))


def _with_any_bytes(column: pa.Array, source: random.Random) -> list[Any]:
    """The buffers after the first one, with any number in the slots of nulls."""
    _, values, *others = column.buffers()
    if not (pa.types.is_integer(column.type) or pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type)):
        return [values, *others]
    width = column.type.bit_width // 8
    octets = np.frombuffer(values, np.uint8).copy()
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        octets[row * width : (row + 1) * width] = list(source.randbytes(width))
    return [pa.py_buffer(octets)]
