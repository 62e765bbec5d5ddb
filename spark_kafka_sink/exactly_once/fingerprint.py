"""The content of a Spark partition in 64 bits.

A fingerprint is the sum of one hash per row. It depends neither on the order of the rows, which a shuffle does not keep, nor on
how they are cut into Arrow batches. A task stores it with its marker (see `ledger.py`), and a repetition of the write compares.

    fields   key, value, and the headers as a record writes them, without their count; the length of a null is -1
    words    the bytes of all fields, one after the other, zeros up to a multiple of 8, as little-endian numbers of 8 bytes
    segment  sum of reverse(word * STEP) * f[i]                       i: 0 … 1,023, the place of the word in its segment
    content  segment 0 + finish(segment 1 + STEP) + finish(segment 2 + 2 * STEP) + … + (length 0 * l0 + length 1 * l1 + …)
    topic    finish(content) of the topic's name                      the same for an option as for a column
    row      finish(content + partition * p + topic * t)              partition: -2**63 for null; timestamps are left out

All numbers are taken modulo 2**64, and do not depend on the byte order of a machine. `reverse` reverses the 8 bytes of a number.
`finish` is the finisher of splitmix64, and STEP its step. Its first numbers, made odd, are the factors f, l, p and t, in order.

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
from spark_kafka_sink.records.arrays import INT32_MAX, bytes_array, numbers_of
from spark_kafka_sink.records.columns import Column, binary_column, join_headers, lengths_of
from spark_kafka_sink.records.interleave import InterleavedRows, Payload, data_buffer, interleave
from spark_kafka_sink.records.layouts import contiguous
from spark_kafka_sink.records.varint import Int64Column

Hashes64: TypeAlias = NDArray[np.uint64]

_WORD_BYTES = 8
_SEGMENT_WORDS = 1024
_STEP = 0x9E3779B97F4A7C15  # STEP above: 2**64 divided by the golden ratio
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
    row_count, fingerprint = _row_count(columns), np.uint64(0)
    for start in range(0, row_count, _SLICE_ROWS):
        stop = min(row_count, start + _SLICE_ROWS)
        hashes = _row_hashes({name: _slice_column(column, start, stop) for name, column in columns.items()}, stop - start)
        fingerprint = np.add.reduce([fingerprint, np.add.reduce(hashes)])
    return Content(row_count, int(fingerprint))


def _row_count(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items() if column is not None and not isinstance(column, str)}
    if not lengths:
        raise ValueError("there is no column whose rows could be counted")
    (first_name, row_count), *others = lengths.items()
    for name, length in others:
        if length != row_count:
            raise SchemaError(f"column {name} has {length} rows, and column {first_name} {row_count}; pass columns of one length")
    return row_count


def _slice_column(column: Any, start: int, stop: int) -> Any:
    return column if column is None or isinstance(column, str) else column.slice(start, stop - start)


# ROWS


def _row_hashes(columns: Mapping[str, Any], row_count: int) -> Hashes64:
    headers = join_headers(columns["headers"], row_count)
    key, value = (binary_column(name, columns[name]) for name in ("key", "value"))
    hashes = _content_hashes([key, value, None if headers is None else headers.headers], row_count)
    hashes += _partition_numbers(columns["partition"]) * _constants().partition
    hashes += _topic_hashes(columns["topic"]) * _constants().topic
    return _finish(hashes)


def _partition_numbers(column: Column) -> Hashes64:
    """The explicit partition of each row; one entry if no row has one."""
    if column is None or pa.types.is_null(column.type):
        return np.full(1, _NO_PARTITION, np.int64).view(np.uint64)
    if not pa.types.is_integer(column.type):
        raise SchemaError(f"column partition has type {column.type}; it must be int32")
    return numbers_of(column.cast(pa.int64()), at_null=_NO_PARTITION).view(np.uint64)


def _topic_hashes(topic: str | Column) -> Hashes64:
    """The hash of each row's topic; one entry for a constant topic."""
    if isinstance(topic, str):
        return np.full(1, _topic_hash(topic.encode()), np.uint64)
    topics = binary_column("topic", topic)
    if topics is None:
        return np.full(1, _topic_hash(None), np.uint64)
    indexed_topics = contiguous(topics).dictionary_encode()  # most often few topics: hash each of them once
    topic_count = len(indexed_topics.dictionary)
    by_index = np.append(_finish(_content_hashes([indexed_topics.dictionary], topic_count)), np.uint64(_topic_hash(None)))
    hashes: Hashes64 = by_index[numbers_of(indexed_topics.indices, at_null=topic_count)]
    return hashes


@functools.lru_cache(maxsize=1024)
def _topic_hash(name: bytes | None) -> int:
    return int(_finish(_content_hashes([bytes_array([name])], 1))[0])


def _finish(hashes: Hashes64) -> Hashes64:
    """Each bit of the result depends on each bit of the hash; different hashes stay different. Changes its argument."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


# BYTES


def _content_hashes(fields: Sequence[Column], row_count: int) -> Hashes64:
    """The bytes and lengths of up to three fields of each row. A field is binary; None is null in each row, or no headers."""
    hashes = np.zeros(row_count, np.uint64)
    sizes = np.zeros(row_count, np.int64)
    for name, field, length_factor in zip(_FIELDS, fields, _constants().lengths, strict=False):
        lengths = 0 if field is None and name == "headers" else lengths_of(field)
        hashes += np.atleast_1d(np.asarray(lengths, np.int64)).view(np.uint64) * length_factor
        sizes += np.maximum(lengths, 0)
    hashes += _segment_hashes([Payload.of(field) for field in fields if field is not None], sizes)
    return hashes


def _segment_hashes(fields: list[Payload], sizes: Int64Column) -> Hashes64:
    """The words of each row, hashed: the sum of its segments. `sizes`: the bytes of each row's fields together.

    Arrow copies the rows into one run of words, and their factors into another: the factors of a segment are a prefix of all.
    """
    filled_rows = np.flatnonzero(sizes)
    if len(filled_rows) == 0:
        return np.zeros(len(sizes), np.uint64)
    if len(filled_rows) < len(sizes):
        hashes = np.zeros(len(sizes), np.uint64)
        hashes[filled_rows] = _segment_hashes([field.at(filled_rows) for field in fields], sizes[filled_rows])
        return hashes
    word_counts = (sizes + (_WORD_BYTES - 1)) // _WORD_BYTES
    data = interleave([*fields, _constants().zeros.at(word_counts * _WORD_BYTES - sizes)], len(sizes))
    if word_counts.max() <= _SEGMENT_WORDS:
        return _segment_sums(data, word_counts, word_counts, np.arange(len(word_counts) + 1))
    segment_counts = -(-word_counts // _SEGMENT_WORDS)
    segment_bounds = np.append(0, np.cumsum(segment_counts))
    segment_words = np.full(segment_bounds[-1], _SEGMENT_WORDS, np.int64)
    segment_words[segment_bounds[1:] - 1] = word_counts - (segment_counts - 1) * _SEGMENT_WORDS
    sums = _segment_sums(data, word_counts, segment_words, segment_bounds)
    places = np.arange(len(sums)) - np.repeat(segment_bounds[:-1], segment_counts)
    is_later = places > 0
    sums[is_later] = _finish(sums[is_later] + places[is_later].view(np.uint64) * np.uint64(_STEP))
    return np.add.reduceat(sums, segment_bounds[:-1])


def _segment_sums(data: InterleavedRows, row_words: Int64Column, segment_words: Int64Column, bounds: Int64Column) -> Hashes64:
    """One number per segment, not finished. `row_words`, `segment_words`: how many words each has. Row i has the segments
    bounds[i] … bounds[i + 1] - 1."""
    factors = interleave([_constants().factors.at(segment_words)], len(segment_words))
    row_stops, segment_stops = np.cumsum(row_words), np.cumsum(segment_words)
    sums = np.empty(len(segment_words), np.uint64)
    for start, stop in _blocks(row_stops):
        segment_start, segment_stop = int(bounds[start]), int(bounds[stop])
        segment_starts = segment_stops[segment_start:segment_stop] - segment_words[segment_start:segment_stop]
        word_count = int(row_stops[stop - 1] - segment_starts[0])
        products = _words(data, start, stop, word_count)
        products *= np.uint64(_STEP)
        products.byteswap(inplace=True)
        products *= _words(factors, segment_start, segment_stop, word_count)
        np.add.reduceat(products, segment_starts - segment_starts[0], out=sums[segment_start:segment_stop])
    return sums


def _blocks(row_stops: Int64Column) -> Iterator[tuple[int, int]]:
    """Consecutive rows of up to _BLOCK_WORDS, or one larger row. `row_stops`: the words of all rows up to the end of each."""
    start = words_before = 0
    while start < len(row_stops):
        stop = max(start + 1, int(np.searchsorted(row_stops, words_before + _BLOCK_WORDS, side="right")))
        yield start, stop
        start, words_before = stop, int(row_stops[stop - 1])


def _words(rows: InterleavedRows, start: int, stop: int, word_count: int) -> Hashes64:
    """Rows start:stop as words, in memory that the caller may change."""
    written_rows = rows.write(start, stop, is_large=word_count * _WORD_BYTES > INT32_MAX, memory_pool=pa.default_memory_pool())
    return np.frombuffer(data_buffer(written_rows), "<u8", word_count)


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
