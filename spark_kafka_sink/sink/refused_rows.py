"""Which rows of a chunk can never be written as they are, found by column expressions; and one row put into words.

Asked only after the producer has refused a chunk, so that good rows pay nothing for it. The checks are the producer's own, one
by one; a row is told by the first that it fails. row_sender.py decides what becomes of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.records.columns import record_columns, texts
from spark_kafka_sink.records.record_batch import size_upper_bounds
from spark_kafka_sink.sink.row_mapping import NULL_TOPIC

KEY_PREFIX = 32  # bytes of a key that an error shows
NAME_PREFIX = 300  # characters of a topic's name

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that share a reason. The text goes with every one of them."""

    condition: str
    text: str
    rows: Rows


def find_refused_rows(
    columns: Mapping[str, Any],
    size_limits: Mapping[str, int],
    partition_counts: Mapping[str, int],
    unknown_topics: Mapping[str, str] = MappingProxyType({}),
) -> list[Refusal]:
    """The rows among the arguments of send_columns that the producer refuses, by reason.

    Args:
        size_limits: option and its value in bytes.
        partition_counts: of the topics where a partition column is to be compared with it.
        unknown_topics: those that brokers do not have, and that in words.
    """
    count = len(columns["value"])
    good = np.ones(count, np.bool_)
    refusals: list[Refusal] = []

    def refuse(mask: Mask, condition: str, text: str) -> None:
        rows = np.flatnonzero(mask & good)
        if len(rows):
            refusals.append(Refusal(condition, text, rows))
            good[rows] = False

    _check_topics(columns["topic"], unknown_topics, refuse)
    _check_partitions(columns["topic"], columns["partition"], partition_counts, count, refuse)
    if columns["timestamp"] is not None:
        negative = pc.less(columns["timestamp"], 0)
        refuse(_mask(negative), "KAFKA_INVALID_RECORD", "its timestamp is negative; it must be at least 0, or null")
    if columns["headers"] is not None:
        counts, keys, _ = header_entries(columns["headers"])
        rows_of_headers = np.repeat(np.arange(count), counts)
        mask = np.zeros(count, np.bool_)
        mask[rows_of_headers[_mask(keys.is_null())]] = True
        refuse(mask, "KAFKA_INVALID_RECORD", "a header has no key; every header needs one: leave it out or name it")
    _check_sizes(columns, size_limits, good, refuse)
    return refusals


def _check_topics(topic: str | pa.Array, unknown_topics: Mapping[str, str], refuse: Any) -> None:
    """By distinct names, of which a column that is no topic at all may have as many as rows."""
    if isinstance(topic, str):
        return
    refuse(_mask(topic.is_null()), "KAFKA_NULL_TOPIC_IN_DATA", NULL_TOPIC)
    encoded = topic.dictionary_encode()
    names: list[str] = texts(encoded.dictionary)
    codes = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    impossible = [name for name in names if not is_topic_name(name)]
    told = f"no topic can have {_named(impossible, 'the name', 'names like')}: {TOPIC_NAME_RULE}"
    refuse(_is_among(impossible, names)[codes], "KAFKA_INVALID_TOPIC_EXCEPTION", told)
    unknown = [name for name in names if name in unknown_topics]
    others = f" (nor {_named(unknown[1:], 'topic', 'topics like')})" if len(unknown) > 1 else ""
    told = unknown_topics[unknown[0]] + others if unknown else ""
    refuse(_is_among(unknown, names)[codes], "KAFKA_UNKNOWN_TOPIC", told)


def _is_among(chosen: Sequence[str], names: Sequence[str]) -> Mask:
    """Whether each name is chosen; a last False is for rows that have none."""
    found = set(chosen)
    return np.array([*(name in found for name in names), False])


def _named(names: Sequence[str], one: str, several: str) -> str:
    return f"{one if len(names) == 1 else several} {', '.join(repr(name[:NAME_PREFIX]) for name in names[:3])}"


def _check_partitions(
    topic: str | pa.Array, partition: pa.Array | None, partition_counts: Mapping[str, int], rows: int, refuse: Any
) -> None:
    if partition is None:
        return
    negative = _mask(pc.less(partition, 0))
    values = np.unique(partition.filter(pa.array(negative)).to_numpy(zero_copy_only=False))
    told = str(values[0]) if len(values) == 1 else "below 0"
    text = f"Invalid partition: {told}. Partition number should always be non-negative or null."
    refuse(negative, "KAFKA_INVALID_PARTITION", text)
    for name, known in partition_counts.items():
        of_topic = np.full(rows, topic == name) if isinstance(topic, str) else _mask(pc.equal(topic, name))
        beyond = of_topic & _mask(pc.greater_equal(partition, known))
        refuse(beyond, "KAFKA_UNKNOWN_PARTITION", f"topic {name} has no such partition: it has {known}, 0 to {known - 1}")


def _check_sizes(columns: Mapping[str, Any], size_limits: Mapping[str, int], good: Mask, refuse: Any) -> None:
    rows = np.flatnonzero(good)
    if not len(rows):
        return
    value, key, headers = (columns[name] for name in ("value", "key", "headers"))
    if len(rows) < len(good):
        value, key, headers = (None if each is None else each.take(pa.array(rows)) for each in (value, key, headers))
    bounds = size_upper_bounds(record_columns(value, key, headers, rows=len(rows)))
    for option, limit in size_limits.items():
        mask = np.zeros(len(good), np.bool_)
        mask[rows[bounds > limit]] = True
        remedy = "" if option == "buffer.memory" else " and the topic's max.message.bytes"
        text = f"when serialized, the record exceeds {option}={limit}; raise {option}{remedy}"
        refuse(mask, "KAFKA_RECORD_TOO_LARGE", text)


def _mask(values: pa.Array) -> Mask:
    mask: Mask = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


# ---- HEADERS


def header_entries(headers: pa.Array) -> tuple[Rows, pa.Array, pa.Array]:
    """How many headers each row has, and keys and values of all of them, one row after the other."""
    if pa.types.is_map(headers.type):
        entry = pa.struct([pa.field("key", headers.type.key_type), pa.field("value", headers.type.item_type)])
        headers = headers.cast(pa.list_(entry))
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    keys, values = headers.flatten().flatten()
    return counts, keys, values


def payload_bytes(columns: Mapping[str, Any]) -> Rows:
    """Bytes of key, value and headers of each row."""
    sizes = np.zeros(len(columns["value"]), np.int64)
    for name in ("key", "value"):
        if columns[name] is not None:
            sizes += _lengths(columns[name])
    if columns["headers"] is not None:
        counts, keys, values = header_entries(columns["headers"])
        before = np.concatenate([[0], np.cumsum(_lengths(keys) + _lengths(values))])
        ends = np.cumsum(counts)
        sizes += before[ends] - before[ends - counts]
    return sizes


def _lengths(payload: pa.Array) -> Rows:
    lengths: Rows = pc.binary_length(payload).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


# ---- WORDS


def row_in_words(columns: Mapping[str, Any], row: int, number: int, partition: int | None = None) -> str:
    """Which row it is, for an error: its number in the task's input, topic, partition, the key's first bytes, sizes."""
    topic = columns["topic"] if isinstance(columns["topic"], str) else texts(columns["topic"].slice(row, 1))[0]
    if partition is None and columns["partition"] is not None:
        partition = columns["partition"][row].as_py()
    parts = [f"topic {'null' if topic is None else topic[:NAME_PREFIX]}"]
    if partition is not None:
        parts.append(f"partition {partition}")
    parts += [_key_in_words(columns["key"], row), f"value of {_size_in_words(columns['value'], row)}"]
    if columns["headers"] is not None:
        counts, _, _ = header_entries(columns["headers"].slice(row, 1))
        parts.append(f"{counts[0]} headers")
    return f"row {number} of this task: " + ", ".join(parts)


def _key_in_words(keys: pa.Array | None, row: int) -> str:
    octets = None if keys is None else keys.slice(row, 1).cast(pa.large_binary())[0].as_py()  # a text may be no UTF-8
    if octets is None:
        return "no key"
    return f"key {octets[:KEY_PREFIX]!r}{'…' if len(octets) > KEY_PREFIX else ''} of {len(octets)} bytes"


def _size_in_words(column: pa.Array, row: int) -> str:
    size = pc.binary_length(column.slice(row, 1))[0].as_py()
    return "null" if size is None else f"{size} bytes"
