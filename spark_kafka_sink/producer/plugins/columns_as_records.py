"""Columns to ProducerRecords and back, for interceptors that take one record at a time: some microseconds per row.

Texts that are not UTF-8 come back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.producer.producer_record import ProducerColumns, ProducerRecord, checked_headers, whole_number
from spark_kafka_sink.producer.serializers import as_bytes
from spark_kafka_sink.records.arrays import bytes_array, header_array, int64_array, text_array
from spark_kafka_sink.records.columns import header_entries, texts
from spark_kafka_sink.records.layouts import plain_column


def records_of(columns: ProducerColumns, row_count: int) -> list[ProducerRecord]:
    """A record for each row. Text is str, but bytes throughout a column that has some which is not UTF-8; see `_cells`."""

    def cells(column: pa.Array | None) -> list[Any]:
        return [None] * row_count if column is None else _cells(column)

    topics = [columns.topic] * row_count if isinstance(columns.topic, str) else texts(columns.topic)
    headers = [()] * row_count if columns.headers is None else _header_pairs(columns.headers)
    others = map(cells, (columns.value, columns.key, columns.partition, columns.timestamp))
    return [
        ProducerRecord(topic, value, key, partition, pairs, timestamp)
        for topic, value, key, partition, timestamp, pairs in zip(topics, *others, headers, strict=True)
    ]


def _cells(column: pa.Array) -> list[Any]:
    """The column's values. If the column has text that is not UTF-8, that text is bytes."""
    column = plain_column(column)
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_decode_text(cell) for cell in _octets(column)]


def _decode_text(cell: bytes | None) -> str | bytes | None:
    try:
        return cell if cell is None else cell.decode()
    except UnicodeDecodeError:
        return cell


def _octets(column: pa.Array) -> list[Any]:
    return plain_column(column).cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _header_pairs(column: pa.Array) -> list[tuple[tuple[Any, bytes | None], ...]]:
    """The headers of each row. Keys that are not UTF-8 get surrogate escapes. Raises SchemaError if the column has no headers."""
    counts, keys, values = header_entries(column)
    names = [key if key is None else key.decode("utf-8", "surrogateescape") for key in _octets(keys)]
    pairs = list(zip(names, _octets(values), strict=True))
    return [tuple(pairs[stop - count : stop]) for count, stop in zip(counts, np.cumsum(counts), strict=True)]


def checked_record(result: object) -> ProducerRecord:
    """Raises TypeError unless an interceptor has returned a record."""
    if not isinstance(result, ProducerRecord):
        raise TypeError(f"returned {type(result).__name__}, not a ProducerRecord")
    return result


def copy_of(record: ProducerRecord) -> ProducerRecord:
    """A copy: an interceptor that fails half-way has then changed nothing. Takes a third of the time of dataclasses.replace."""
    return ProducerRecord(record.topic, record.value, record.key, record.partition, record.headers, record.timestamp)


def as_row(result: object) -> ProducerRecord:
    """What an interceptor has returned, with key and value as bytes. Raises when that is impossible."""
    record = checked_record(result)
    if not isinstance(record.topic, str | None):
        raise TypeError("returned a record whose topic is not a str")
    key, value, partition, timestamp = record.key, record.value, record.partition, record.timestamp
    return ProducerRecord(
        record.topic,
        value if value is None else as_bytes(value),
        key if key is None else as_bytes(key),
        partition if partition is None else whole_number(partition, "partition"),
        checked_headers(record.headers),
        timestamp if timestamp is None else whole_number(timestamp, "timestamp"),
    )


def to_utf8(cell: Any) -> Any:
    return cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell


def columns_of(records: Sequence[ProducerRecord]) -> ProducerColumns:
    """The records as columns: one topic if all have the same; None for a column other than `value` that no record has."""

    def column(name: str, array_of: Callable[[Sequence[Any]], pa.Array]) -> pa.Array | None:
        cells = [getattr(record, name) for record in records]
        return None if all(cell is None for cell in cells) else array_of(cells)

    topics = {record.topic for record in records}
    headers = [record.headers for record in records]
    return ProducerColumns(
        topics.pop() if len(topics) == 1 and None not in topics else text_array([record.topic for record in records]),
        value=bytes_array([record.value for record in records]),
        key=column("key", bytes_array),
        partition=column("partition", int64_array),
        headers=header_array(headers) if any(headers) else None,
        timestamp=column("timestamp", int64_array),
    )
