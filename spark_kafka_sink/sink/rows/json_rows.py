"""Rows as JSON, for those that cannot be encoded: a dead letter has to be read by a person, and sent again by a program.

Slow: makes one Python value per field. As in Spark's to_json, binary is base64, maps are objects, and
instants are in UTC. Decimals are strings, since readers of JSON round numbers. Null fields are kept: they may be what is wrong.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_kafka_sink.records.arrays import bytes_array
from spark_kafka_sink.records.layouts import contiguous


def json_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Each row as JSON, in a string column; null for a row that is null. Memory: some 100 bytes for each field of each row."""
    values = _values(contiguous(column))
    texts = [None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
    return bytes_array([None if text is None else text.encode("utf-8", "replace") for text in texts], pa.string())


def _values(column: pa.Array) -> list[Any]:
    """What json.dumps takes, for each row."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_map(kind):
        entries = zip(_values(column.keys), _values(column.items), strict=True)
        return _lists(column, list(entries), dict)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, _values(column.values), list)
    return _leaves(column)


def _structs(column: pa.StructArray) -> list[Any]:
    names = [column.type.field(position).name for position in range(column.type.num_fields)]
    fields = [_values(field) for field in column.flatten()]
    rows = zip(*fields, strict=True) if fields else [()] * len(column)
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for is_valid, row in zip(column.is_valid().to_pylist(), rows, strict=True)
    ]


def _lists(column: Any, items: list[Any], made_of: Callable[[list[Any]], Any]) -> list[Any]:
    """`items`: those of the whole array below, into which the offsets point."""
    slices = (items[start:stop] for start, stop in pairwise(column.offsets.to_pylist()))
    return [made_of(each) if is_valid else None for is_valid, each in zip(column.is_valid().to_pylist(), slices, strict=True)]


def _leaves(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else str(value) for value in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        octets = column.cast(pa.large_binary()).to_pylist()  # Spark's strings may be no UTF-8
        return [None if value is None else value.decode("utf-8", "replace") for value in octets]
    if pa.types.is_timestamp(kind):
        return _instants(column)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return list(column.to_pylist())
    return list(column.cast(pa.string()).to_pylist())  # dates, times, decimals


def _instants(column: pa.Array) -> list[Any]:
    """Instants as text; as a number if Arrow has no text for the year."""
    zone, unit = "Z" if column.type.tz is not None else "", column.type.unit
    texts = column.cast(pa.timestamp(unit)).cast(pa.string()).to_pylist()
    numbers = column.cast(pa.int64()).to_pylist()
    return [
        None if text is None else f"{number} {unit} since 1970" if text.startswith("<") else text.replace(" ", "T") + zone
        for text, number in zip(texts, numbers, strict=True)
    ]
