"""The content of a Spark partition in 64 bits.

A fingerprint is the sum of one hash per row. It depends neither on the order of the rows, which a shuffle does not keep, nor on
how they are cut into Arrow batches. A task stores it with its marker (see `ledger.py`), and a repetition of the write compares.

    row      finish(content + partition * p + topic * t)              partition: -2**63 for null; timestamps are left out
    topic    finish(content) of the topic's name                      the same for an option as for a column
    content  segment 0 + finish(segment 1 + STEP) + finish(segment 2 + 2 * STEP) … + length of each field * l0, l1, l2
    segment  sum of reverse(word * STEP) * f[i]                       i: 0 … 1,023, the place of the word in its segment
    words    the bytes of all fields, one after the other, zeros up to a multiple of 8, as little-endian numbers of 8 bytes
    fields   key, value, and the headers as a record writes them, without their count; the length of a null is -1

All numbers are taken modulo 2**64, and do not depend on the byte order of a machine. `reverse` reverses the 8 bytes of a number;
`finish` is the finisher of splitmix64, whose first numbers, made odd, are f, l, p and t.

Two different rows have one hash only by chance. A product carries each bit of a word upwards, and the reversal brings the upper
bits down. The second product, with a factor of the word's own place, carries them up again. All three steps are reversible,
so a row of which one word changes has another hash for certain. If several words change, their differences must cancel, each
multiplied by a factor of its own. `finish` keeps rows from cancelling each other. This is no protection against an adversary.

Law: the numbers never change. A task of a new release compares them with those that an older one stored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.exactly_once.writes import Content
from spark_kafka_sink.records.columns import Column, binary_column, join_headers, lengths_of
from spark_kafka_sink.records.interleave import INT32_MAX, InterleavedRows, Payload, contiguous, data_buffer, interleave
from spark_kafka_sink.records.varint import Int64Column

Hashes64: TypeAlias = NDArray[np.uint64]

_WORD_BYTES = 8
_SEGMENT_WORDS = 1024
_STEP = 0x9E3779B97F4A7C15  # of splitmix64: 2**64 divided by the golden ratio
_FIELDS = ("key", "value", "headers")
_NO_PARTITION = -(2**63)  # differs from every int32

# How much is hashed at a time; results do not depend on it.
_SLICE_ROWS = 32 * 1024  # about 140 bytes of views, lengths and hashes for each
_BLOCK_WORDS = 128 * 1024  # 1 MiB of rows and as much of factors: in a processor's cache


def content_of(columns: Mapping[str, Any]) -> Content:
    """The content of these rows. Never blocks. Takes up to 10 MiB, or twice the largest row, until it returns.

    Args:
        columns: topic, value, key, partition and headers, as RowMapping.columns returns them; others are ignored. Rows that
            cannot be written, with a null topic or header key, are hashed as well.

    Raises:
        SchemaError: a column has a type that the producer does not accept, or columns differ in length.
    """
    rows, fingerprint = _row_count(columns), np.uint64(0)
    for start in range(0, rows, _SLICE_ROWS):
        stop = min(rows, start + _SLICE_ROWS)
        hashes = _row_hashes({name: _sliced(column, start, stop) for name, column in columns.items()}, stop - start)
        fingerprint = np.add.reduce([fingerprint, np.add.reduce(hashes)])
    return Content(rows, int(fingerprint))


def _row_count(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items() if column is not None and not isinstance(column, str)}
    if not lengths:
        raise ValueError("there is no column whose rows could be counted")
    (first, rows), *others = lengths.items()
    for name, length in others:
        if length != rows:
            raise SchemaError(f"column {name} has {length} rows, and column {first} {rows}; pass columns of one length")
    return rows


def _sliced(column: Any, start: int, stop: int) -> Any:
    return column if column is None or isinstance(column, str) else column.slice(start, stop - start)


# ROWS
def _row_hashes(columns: Mapping[str, Any], rows: int) -> Hashes64:
    headers = join_headers(columns["headers"], rows)
    key, value = (binary_column(name, columns[name]) for name in ("key", "value"))
    hashes = _content([key, value, None if headers is None else headers.headers], rows)
    hashes += _partitions(columns["partition"]) * _constants().partition
    hashes += _topics(columns["topic"]) * _constants().topic
    return _finish(hashes)


def _partitions(column: Column) -> Hashes64:
    """The explicit partition of each row; one entry if no row has one."""
    if column is None or pa.types.is_null(column.type):
        return np.full(1, _NO_PARTITION, np.int64).view(np.uint64)
    if not pa.types.is_integer(column.type):
        raise SchemaError(f"column partition has type {column.type}; it must be int32")
    partitions = contiguous(column).cast(pa.int64()).fill_null(_NO_PARTITION)
    return partitions.to_numpy().view(np.uint64)  # type: ignore[no-any-return]


def _topics(topic: str | Column) -> Hashes64:
    """The hash of each row's topic; one entry for a constant topic."""
    if isinstance(topic, str):
        return np.full(1, _topic(topic.encode()), np.uint64)
    topics = binary_column("topic", topic)
    if topics is None:
        return np.full(1, _topic(None), np.uint64)
    encoded = contiguous(topics).dictionary_encode()  # most often few topics: hash each of them once
    names = len(encoded.dictionary)
    by_index = np.append(_finish(_content([encoded.dictionary], names)), np.uint64(_topic(None)))
    hashes: Hashes64 = by_index[encoded.indices.fill_null(names).to_numpy()]
    return hashes


@functools.lru_cache(maxsize=1024)
def _topic(name: bytes | None) -> int:
    return int(_finish(_content([pa.array([name], pa.binary())], 1))[0])


def _finish(hashes: Hashes64) -> Hashes64:
    """Each bit of the result depends on each bit of the hash; no two hashes have one result. Changes its argument."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


# BYTES
def _content(fields: Sequence[Column], rows: int) -> Hashes64:
    """The bytes and lengths of up to three fields of each row. A field is binary; None is null in each row, or no headers."""
    hashes = np.zeros(rows, np.uint64)
    sizes = np.zeros(rows, np.int64)
    for name, field, factor in zip(_FIELDS, fields, _constants().lengths, strict=False):
        lengths = 0 if field is None and name == "headers" else lengths_of(field)
        hashes += np.atleast_1d(np.asarray(lengths, np.int64)).view(np.uint64) * factor
        sizes += np.maximum(lengths, 0)
    hashes += _segments([Payload.of(field) for field in fields if field is not None], sizes)
    return hashes


def _segments(fields: list[Payload], sizes: Int64Column) -> Hashes64:
    """The words of each row, hashed: the sum of its segments. `sizes`: the bytes of each row's fields together.

    Arrow copies the rows into one run of words, and their factors into another: the factors of a segment are a prefix of all.
    """
    filled = np.flatnonzero(sizes)
    if len(filled) == 0:
        return np.zeros(len(sizes), np.uint64)
    if len(filled) < len(sizes):
        hashes = np.zeros(len(sizes), np.uint64)
        hashes[filled] = _segments([field.at(filled) for field in fields], sizes[filled])
        return hashes
    words = (sizes + (_WORD_BYTES - 1)) // _WORD_BYTES
    data = interleave([*fields, _constants().zeros.at(words * _WORD_BYTES - sizes)], len(sizes))
    if words.max() <= _SEGMENT_WORDS:
        return _segment_sums(data, words, words, np.arange(len(words) + 1))
    counts = -(-words // _SEGMENT_WORDS)
    bounds = np.append(0, np.cumsum(counts))
    of_segments = np.full(bounds[-1], _SEGMENT_WORDS, np.int64)
    of_segments[bounds[1:] - 1] = words - (counts - 1) * _SEGMENT_WORDS
    sums = _segment_sums(data, words, of_segments, bounds)
    places = np.arange(len(sums)) - np.repeat(bounds[:-1], counts)
    later = places > 0
    sums[later] = _finish(sums[later] + places[later].view(np.uint64) * np.uint64(_STEP))
    return np.add.reduceat(sums, bounds[:-1])


def _segment_sums(data: InterleavedRows, words: Int64Column, of_segments: Int64Column, bounds: Int64Column) -> Hashes64:
    """One number per segment, not finished. `words`: of each row; `of_segments`: words of each segment; segments bounds[i] …
    bounds[i + 1] - 1 belong to row i."""
    factors = interleave([_constants().factors.at(of_segments)], len(of_segments))
    row_ends, ends = np.cumsum(words), np.cumsum(of_segments)
    sums = np.empty(len(of_segments), np.uint64)
    for start, stop in _blocks(row_ends):
        first, end = int(bounds[start]), int(bounds[stop])
        starts = ends[first:end] - of_segments[first:end]
        count = int(row_ends[stop - 1] - starts[0])
        products = _words(data, start, stop, count)
        products *= np.uint64(_STEP)
        products.byteswap(inplace=True)
        products *= _words(factors, first, end, count)
        np.add.reduceat(products, starts - starts[0], out=sums[first:end])
    return sums


def _blocks(row_ends: Int64Column) -> Iterator[tuple[int, int]]:
    """Consecutive rows of up to _BLOCK_WORDS, or one larger row. `row_ends`: the words of all rows up to the end of each."""
    start = before = 0
    while start < len(row_ends):
        stop = max(start + 1, int(np.searchsorted(row_ends, before + _BLOCK_WORDS, side="right")))
        yield start, stop
        start, before = stop, int(row_ends[stop - 1])


def _words(rows: InterleavedRows, start: int, stop: int, count: int) -> Hashes64:
    """Rows start:stop as words, in memory that the caller may change."""
    written = rows.write(start, stop, count * _WORD_BYTES > INT32_MAX, pa.default_memory_pool())
    return np.frombuffer(data_buffer(written), "<u8", count)


# CONSTANTS


@dataclass(frozen=True, slots=True)
class _Constants:
    """The fixed numbers that words and fields are multiplied with."""

    factors: Payload  # entry i: the factors of the first i words of a segment
    zeros: Payload  # entry i: i bytes
    lengths: Hashes64  # a factor for each field
    partition: np.uint64
    topic: np.uint64


@functools.cache
def _constants() -> _Constants:
    numbers = _splitmix64(_SEGMENT_WORDS + len(_FIELDS) + 2) | np.uint64(1)
    lengths, (partition, topic) = np.split(numbers[_SEGMENT_WORDS:], [len(_FIELDS)])
    factors = Payload.prefixes(numbers[:_SEGMENT_WORDS].astype("<u8").tobytes(), _WORD_BYTES)
    return _Constants(factors, Payload.prefixes(bytes(_WORD_BYTES - 1)), lengths, partition, topic)


def _splitmix64(count: int) -> Hashes64:
    """The first numbers of splitmix64 with seed 0."""
    return _finish(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP))
