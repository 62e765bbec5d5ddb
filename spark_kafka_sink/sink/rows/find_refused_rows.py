"""Finds the rows of a chunk that can never be written as they are, with one expression per column.

Usually good rows cost nothing: a chunk is checked only after the producer has refused it. It is checked beforehand if topics or
partitions of the task turned out to be unknown, or if the producer takes larger rows than the options allow. The checks are the
producer's own; each row counts for the first check that it fails. row_outcomes.py decides what happens to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.records.arrays import bools_of, nulls_of, numbers_of, scalar
from spark_kafka_sink.records.columns import header_entries, record_columns, texts
from spark_kafka_sink.records.layouts import take_rows
from spark_kafka_sink.records.record_batch import size_upper_bounds
from spark_kafka_sink.sink.rows.chunk import MAX_SHOWN_CHARACTERS
from spark_kafka_sink.sink.rows.row_outcomes import UnwritableRows
from spark_kafka_sink.sink.rows.spark_columns import NULL_TOPIC

RowMask = npt.NDArray[np.bool_]
_Refuse = Callable[[RowMask, str, str], None]  # refuses those of the rows that are not refused yet, by condition and text


def find_refused_rows(
    columns: Mapping[str, Any],
    size_limits: Mapping[str, int],
    partition_counts: Mapping[str, int],
    unknown_topics: Mapping[str, str] = MappingProxyType({}),
) -> list[UnwritableRows]:
    """The rows that the producer refuses, grouped by reason.

    Args:
        columns: the arguments of send_columns.
        size_limits: the options that limit a record's size, and their values in bytes.
        partition_counts: how many partitions topics have; the partition column is checked for these topics only.
        unknown_topics: topics that do not exist, and the error text for each.
    """
    row_count = len(columns["value"])
    is_good = np.ones(row_count, np.bool_)
    refused_rows: list[UnwritableRows] = []

    def refuse(mask: RowMask, condition: str, text: str) -> None:
        rows = np.flatnonzero(mask & is_good)
        if len(rows):
            refused_rows.append(UnwritableRows(condition, text, rows))
            is_good[rows] = False

    _check_topics(columns["topic"], unknown_topics, refuse)
    _check_partitions(columns["topic"], columns["partition"], partition_counts, row_count, refuse)
    if columns["timestamp"] is not None:
        is_negative = _is_negative(columns["timestamp"])
        refuse(is_negative, "KAFKA_INVALID_RECORD", "its timestamp is negative; it must be at least 0, or null")
    if columns["headers"] is not None:
        counts, keys, _ = header_entries(columns["headers"])
        rows_of_headers = np.repeat(np.arange(row_count), counts)
        lacks_key = np.zeros(row_count, np.bool_)
        lacks_key[rows_of_headers[nulls_of(keys)]] = True
        refuse(lacks_key, "KAFKA_INVALID_RECORD", "a header has no key; every header needs one: leave it out or name it")
    _check_sizes(columns, size_limits, is_good, refuse)
    return refused_rows


def _check_topics(topic: str | pa.Array, unknown_topics: Mapping[str, str], refuse: _Refuse) -> None:
    """Checks each distinct name once. A column that holds no topics at all may have as many names as rows."""
    if isinstance(topic, str):
        return
    refuse(nulls_of(topic), "KAFKA_NULL_TOPIC_IN_DATA", NULL_TOPIC)
    topics = topic.dictionary_encode()
    names: list[str] = texts(topics.dictionary)
    topic_numbers = numbers_of(topics.indices, at_null=len(names))
    invalid_names = [name for name in names if not is_topic_name(name)]
    text = f"no topic can have {_names_in_words(invalid_names, 'the name', 'names like')}: {TOPIC_NAME_RULE}"
    refuse(_is_among(invalid_names, names)[topic_numbers], "KAFKA_INVALID_TOPIC_EXCEPTION", text)
    unknown_names = [name for name in names if name in unknown_topics]
    further_names = f" (nor {_names_in_words(unknown_names[1:], 'topic', 'topics like')})" if len(unknown_names) > 1 else ""
    text = unknown_topics[unknown_names[0]] + further_names if unknown_names else ""
    refuse(_is_among(unknown_names, names)[topic_numbers], "KAFKA_UNKNOWN_TOPIC", text)


def _is_among(subset: Sequence[str], names: Sequence[str]) -> RowMask:
    """Whether each name is in `subset`; one more False at the end stands for rows without a topic."""
    members = set(subset)
    return np.array([*(name in members for name in names), False])


def _names_in_words(names: Sequence[str], one: str, several: str) -> str:
    return f"{one if len(names) == 1 else several} {', '.join(repr(name[:MAX_SHOWN_CHARACTERS]) for name in names[:3])}"


def _check_partitions(
    topic: str | pa.Array, partition: pa.Array | None, partition_counts: Mapping[str, int], row_count: int, refuse: _Refuse
) -> None:
    if partition is None:
        return
    is_negative = _is_negative(partition)
    values = np.unique(numbers_of(partition)[is_negative])
    partition_in_words = str(values[0]) if len(values) == 1 else "below 0"
    text = f"Invalid partition: {partition_in_words}. Partition number should always be non-negative or null."
    refuse(is_negative, "KAFKA_INVALID_PARTITION", text)
    for name, count in partition_counts.items():
        is_of_topic = np.full(row_count, topic == name) if isinstance(topic, str) else bools_of(pc.equal(topic, scalar(name)))
        is_beyond = is_of_topic & (numbers_of(partition, at_null=-1) >= count)
        refuse(is_beyond, "KAFKA_UNKNOWN_PARTITION", f"topic {name} has no such partition: it has {count}, 0 to {count - 1}")


def _check_sizes(columns: Mapping[str, Any], size_limits: Mapping[str, int], is_good: RowMask, refuse: _Refuse) -> None:
    rows = np.flatnonzero(is_good)
    if not len(rows):
        return
    value, key, headers = (columns[name] for name in ("value", "key", "headers"))
    if len(rows) < len(is_good):
        value, key, headers = (None if each is None else take_rows(each, rows) for each in (value, key, headers))
    bounds = size_upper_bounds(record_columns(value, key, headers, row_count=len(rows)))
    for option, limit in size_limits.items():
        is_too_large = np.zeros(len(is_good), np.bool_)
        is_too_large[rows[bounds > limit]] = True
        remedy = "" if option == "buffer.memory" else " and the topic's max.message.bytes"
        text = f"when serialized, the record exceeds {option}={limit}; raise {option}{remedy}"
        refuse(is_too_large, "KAFKA_RECORD_TOO_LARGE", text)


def _is_negative(column: pa.Array) -> RowMask:
    is_negative: RowMask = numbers_of(column, at_null=0) < 0
    return is_negative
