"""How fast a table becomes Avro: `python -m tests.benchmarks.avro_encoder_benchmark [--rows N] [--repeats N]`.

One core, no broker. The encoder and fastavro write the same bytes of the same table, which is checked first. fastavro takes
dicts: its time is given with `to_pylist()`, which makes them of the table, and without. Prints the fastest of all repeats,
which a busy machine disturbs least; ratios between the columns of one run tell more than the numbers of two machines.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from spark_kafka_sink.schemas.avro_schema import parse_schema
from spark_kafka_sink.schemas.resolution import resolve_column

PREFIX = b"\0\0\0\0\x2a"
_source = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    name: str
    rows: pa.StructArray
    schema: dict[str, Any]


def field(name: str, type: Any, is_nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": ["null", type] if is_nullable else type}


TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [field("street", "string"), field("city", "string"), field("zip", "int")],
}
ITEM = {"type": "record", "name": "Item", "fields": [field("sku", "string"), field("count", "int"), field("price", "double")]}


def with_nulls(column: pa.Array, share: float) -> pa.Array:
    return pa.compute.if_else(pa.array(_source.random(len(column)) >= share), column, pa.scalar(None, column.type))


def integers(rows: int, limit: int, type: pa.DataType | None = None) -> pa.Array:
    return pa.array(_source.integers(0, limit, rows), pa.int64()).cast(type or pa.int64())


def texts(rows: int, words: int, prefix: str) -> pa.Array:
    return pa.array([f"{prefix}{number}" for number in range(words)]).take(integers(rows, words))


def instants(rows: int) -> pa.Array:
    return pa.array(1_700_000_000_000_000 + _source.integers(0, 10**13, rows)).cast(pa.timestamp("us", "UTC"))


def amounts(rows: int) -> pa.Array:
    return integers(rows, 10**9).cast(pa.decimal128(19, 0)).view(pa.decimal128(12, 2))


def flat(rows: int, share: float) -> Case:
    columns = {
        "id": integers(rows, 10**9),
        "customer": with_nulls(texts(rows, 5000, "customer number "), share),
        "amount": with_nulls(pa.array(_source.random(rows)), share),
        "at": with_nulls(instants(rows), share),
        "count": with_nulls(integers(rows, 1000, pa.int32()), share),
        "paid": with_nulls(integers(rows, 2).cast(pa.bool_()), share),
    }
    types = ["long", "string", "double", TIMESTAMP, "int", "boolean"]
    fields = [field(name, type, name != "id") for name, type in zip(columns, types, strict=True)]
    struct = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return Case(f"6 flat fields, {share:.0%} null", struct, {"type": "record", "name": "Order", "fields": fields})


def struct_of(columns: dict[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def lists(rows: int, most: int, items: Callable[[int], pa.Array]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(_source.integers(0, most + 1, rows))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items(int(offsets[-1])))


def address(rows: int) -> pa.Array:
    cities = texts(rows, 300, "City of ")
    return struct_of({"street": texts(rows, 900, "Long Street "), "city": cities, "zip": integers(rows, 99_999, pa.int32())})


def items(rows: int) -> pa.Array:
    counts = integers(rows, 9, pa.int32())
    return struct_of({"sku": texts(rows, 900, "sku-"), "count": counts, "price": pa.array(_source.random(rows))})


def nested(rows: int) -> Case:
    """20 fields: 15 of one value, a struct, an array of structs, two arrays and a map."""
    labels = lists(rows, 3, lambda count: texts(count, 50, "label"))
    columns: dict[str, tuple[pa.Array, Any]] = {
        **{f"id{number}": (integers(rows, 10**6), "long") for number in range(3)},
        **{f"text{number}": (with_nulls(texts(rows, 5000, "some words "), 0.1), "string") for number in range(4)},
        **{f"count{number}": (with_nulls(integers(rows, 1000, pa.int32()), 0.1), "int") for number in range(3)},
        **{f"price{number}": (pa.array(_source.random(rows)), "double") for number in range(2)},
        "at": (instants(rows), TIMESTAMP),
        "amount": (amounts(rows), DECIMAL),
        "paid": (with_nulls(integers(rows, 2).cast(pa.bool_()), 0.1), "boolean"),
        "address": (address(rows), ADDRESS),
        "items": (lists(rows, 4, items), {"type": "array", "items": ITEM}),
        "labels": (labels, {"type": "array", "items": "string"}),
        "numbers": (lists(rows, 5, lambda count: integers(count, 10**5)), {"type": "array", "items": "long"}),
        "attributes": (attributes(rows), {"type": "map", "values": "string"}),
    }
    struct = struct_of({name: column for name, (column, _) in columns.items()})
    fields = [field(name, type) for name, (_, type) in columns.items()]
    return Case("20 fields with nesting", struct, {"type": "record", "name": "Order", "fields": fields})


def attributes(rows: int) -> pa.Array:
    """One or two entries in each row."""
    counts = _source.integers(1, 3, rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    first = np.repeat(offsets[:-1], counts)
    keys = pa.array(["color", "size"]).take(pa.array(np.arange(int(offsets[-1])) - first))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, texts(len(keys), 20, "value "))


# MEASURING


def by_columns(case: Case) -> Callable[[], list[bytes]]:
    parsed = parse_schema(json.dumps(case.schema))
    encoder, problems = resolve_column(case.rows.type, parsed, column_name="value", truncates_timestamps=False)
    assert not problems, problems
    return lambda: encoder.encode(case.rows, PREFIX).values


def by_rows(case: Case, rows: list[Any] | None) -> Callable[[], list[bytes]]:
    """With fastavro, of rows or of the table."""
    parsed = fastavro.parse_schema(case.schema)
    maps = [name for name, type in ((each.name, each.type) for each in case.rows.type) if pa.types.is_map(type)]

    def write() -> list[bytes]:
        return [_written(row, parsed) for row in (of_table(case, maps) if rows is None else rows)]

    return write


def of_table(case: Case, maps: list[str]) -> list[Any]:
    rows = case.rows.to_pylist(maps_as_pydicts="strict") if maps else case.rows.to_pylist()
    return rows


def _written(row: Any, parsed: Any) -> bytes:
    stream = io.BytesIO()
    stream.write(PREFIX)
    fastavro.schemaless_writer(stream, parsed, row)
    return stream.getvalue()


def fastest(function: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the fastest of so many calls."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=80_000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{'':26} {'encoder':>27} {'fastavro of the table':>27} {'of dicts':>18}")
    ours, theirs = f"{'rows/s':>11} {'CPU s/M':>8} {'MB/s':>6}", f"{'rows/s':>11} {'CPU s/M':>8} {'slower':>6}"
    print(f"{'':26} {ours} {theirs} {'CPU s/M':>11} {'slower':>6}")
    for case in (flat(arguments.rows, 0), flat(arguments.rows, 0.1), nested(arguments.rows)):
        report(case, arguments.repeats)


def report(case: Case, repeats: int) -> None:
    columns, table = by_columns(case), by_rows(case, None)
    size = sum(map(len, table()))
    assert columns().to_pylist() == table()
    rows = len(case.rows)
    ours = fastest(columns, repeats)
    theirs = fastest(table, max(2, repeats // 5))
    of_dicts = fastest(by_rows(case, case.rows.to_pylist(maps_as_pydicts="strict")), max(2, repeats // 5))
    print(
        f"{case.name:26} {rows / ours:11,.0f} {ours / rows * 1e6:8.2f} {size / ours / 1e6:6.0f}"
        f" {rows / theirs:11,.0f} {theirs / rows * 1e6:8.2f} {theirs / ours:5.1f}x"
        f" {of_dicts / rows * 1e6:11.2f} {of_dicts / ours:5.1f}x"
    )


if __name__ == "__main__":
    main()
