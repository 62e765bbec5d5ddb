"""What callers pass in (a record or columns), how it is checked, and what they get back: where records were written."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import InvalidRecordError, KafkaError, SchemaError
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.records.arrays import nulls_of
from spark_kafka_sink.records.columns import texts
from spark_kafka_sink.records.record_batch import BATCH_HEADER_BYTES, MAX_RECORD_OVERHEAD_BYTES


@dataclass(slots=True)
class ProducerRecord:
    """A record for `KafkaProducer.send`. Do not change it after that; it is not frozen because that doubles the time to make one.

    Args:
        topic: its name.
        value, key: anything that the serializers accept; None is null.
        partition: None leaves the choice to the partitioner.
        headers: (name, value) pairs in order; a value may be None.
        timestamp: milliseconds since 1970; None means the time of send.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 if the broker did not return it (acks=0). `timestamp` is the broker's if the
    topic has LogAppendTime, else the record's. Sizes are of the serialized key and value, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


Callback: TypeAlias = Callable[[RecordMetadata | None, KafkaError | None], None]


@dataclass(frozen=True, slots=True)
class ProducerColumns:
    """The arguments of one `KafkaProducer.send_columns`: a record per row. Interceptors get and return them.
    `dataclasses.replace(columns, value=…)` makes a changed copy. A column that is None is null in every row."""

    topic: str | pa.Array  # one name for all rows, or a column of strings
    value: pa.Array | None = None  # binary or string
    key: pa.Array | None = None  # binary or string
    partition: pa.Array | None = None  # int32; null leaves the choice to the partitioner
    headers: pa.Array | None = None  # list<struct<key: string, value: binary>> or map<string, binary>
    timestamp: pa.Array | None = None  # int64, milliseconds since 1970; null: now

    def columns(self) -> dict[str, pa.Array]:
        """The columns that are not None, by name; the topic too if it is a column."""
        all_columns = {name: getattr(self, name) for name in ("topic", "value", "key", "partition", "headers", "timestamp")}
        return {name: column for name, column in all_columns.items() if column is not None and not isinstance(column, str)}

    def check_types(self) -> None:
        """Raises SchemaError for an argument that is not a column. The type of a column is checked where it is read."""
        for name in ("value", "key", "partition", "headers", "timestamp", "topic"):
            column = getattr(self, name)
            if isinstance(column, pa.Array | pa.ChunkedArray) or (isinstance(column, str) if name == "topic" else column is None):
                continue
            subject, str_hint = ("topic", "a str, ") if name == "topic" else (f"column {name}", "")
            raise SchemaError(
                f"{subject} has the Python type {type(column).__name__}; pass {str_hint}a pyarrow.Array or a pyarrow.ChunkedArray"
            )

    def require_topics(self) -> None:
        """Raises InvalidRecordError for a null in the topic column: before interceptors see the rows, as in Java."""
        if not isinstance(self.topic, str) and self.topic.null_count:
            raise null_topic_error(int(np.argmax(nulls_of(self.topic))))

    @property
    def rows(self) -> int | None:
        """The number of rows; None if there is no column."""
        return next((len(column) for column in self.columns().values()), None)


def count_rows_by_topic(columns: ProducerColumns) -> Counter[str]:
    """How many rows each topic has; "" for rows without one."""
    if isinstance(columns.topic, str):
        return Counter({columns.topic: columns.rows or 0})
    return Counter(topic or "" for topic in texts(columns.topic))


class BatchMetadata(NamedTuple):
    """Where consecutive rows of one call and one batch were written; for interceptors.

    `partition` is -1 for rows that failed before they had one. `base_offset` is -1 if it is unknown (the rows failed, or
    acks=0); the offsets of the rows are consecutive. `timestamp` is the broker's if the topic has LogAppendTime, else -1.
    """

    topic: str
    partition: int
    base_offset: int
    rows: int
    timestamp: int


# THE ARGUMENTS OF KafkaProducer.send, which has two forms

_FIELDS = ("topic", "value", "key", "partition", "headers", "timestamp", "callback")
_USAGE = "use send(record, callback), or send(topic, value, key=…, partition=…, headers=…, timestamp=…, callback=…)"


def record_of_arguments(
    topic: object, value: object, callback: Callback | None, fields: dict[str, Any]
) -> tuple[ProducerRecord, Callback | None]:
    """The record and callback of send(topic, value, …). Raises TypeError when the arguments fit neither of its forms."""
    unknown_names = [name for name in fields if name not in _FIELDS]
    if unknown_names:
        raise TypeError(f"send() has no argument {', '.join(unknown_names)}; its arguments are {', '.join(_FIELDS)}; {_USAGE}")
    if isinstance(topic, ProducerRecord):
        raise _error_beside_a_record(value, callback, fields)
    if topic is not None and "topic" in fields:
        raise TypeError(f"send() has two topics; {_USAGE}")
    topic = fields.pop("topic", topic)
    if not isinstance(topic, str):
        raise TypeError(f"send() needs a ProducerRecord or the name of a topic first, not {type(topic).__name__}; {_USAGE}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}; {_USAGE}")
    return ProducerRecord(topic, value, **fields), callback


def _error_beside_a_record(value: object, callback: object, fields: Mapping[str, Any]) -> TypeError:
    if fields:
        return TypeError(f"{', '.join(fields)} cannot be given with a ProducerRecord, which has its own; {_USAGE}")
    if value is not None and callback is not None:
        return TypeError(f"send() has two arguments after a ProducerRecord; only a callback is allowed; {_USAGE}")
    argument = callback if value is None else value
    return TypeError(f"with a ProducerRecord send() takes only a callback, not {type(argument).__name__}; {_USAGE}")


# CHECKS: partition, headers and timestamp of a record, and its size

LONE_RECORD_OVERHEAD_BYTES = BATCH_HEADER_BYTES + MAX_RECORD_OVERHEAD_BYTES  # all but key, value and headers, at most


class RecordDetails(NamedTuple):
    """The fields of a record that only few have: partition, headers and timestamp."""

    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


def checked_details(record: ProducerRecord) -> RecordDetails:
    """Partition, headers and timestamp of a record. Raises SerializationError for headers, TypeError for a number that is no int,
    ValueError for a number out of range."""
    partition, timestamp = record.partition, record.timestamp
    if partition is not None:
        partition = whole_number(partition, "partition")
        if not 0 <= partition < 2**31:
            raise ValueError(f"Invalid partition: {partition}. Partition number should always be non-negative or null.")
    if timestamp is not None:
        timestamp = whole_number(timestamp, "timestamp")
        if not 0 <= timestamp < 2**63:
            raise ValueError(f"Invalid timestamp: {timestamp}. Timestamp should always be non-negative or null.")
    return RecordDetails(partition, checked_headers(record.headers), timestamp)


def whole_number(value: object, value_name: str) -> int:
    """A Python or numpy int as an int. Raises TypeError for anything else: int() would turn 1.7, True and "1" into 1."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        return operator.index(value)
    raise TypeError(f"{value_name} must be an int or None, not {value!r} of type {type(value).__name__}")


def checked_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    """The same headers as a tuple. Raises SerializationError if a record cannot have them."""
    if headers is None:
        return ()
    pairs: Iterable[Any] = headers if isinstance(headers, Iterable) and not isinstance(headers, Mapping) else (headers,)
    header_tuples = []
    try:
        pairs = list(pairs)
    except Exception as error:
        raise SerializationError(f"headers cannot be read: {type(pairs).__name__} raises {type(error).__name__}") from error
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SerializationError(f"headers must be (name, value) pairs, not {type(pair).__name__}")
        name, value = pair
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise SerializationError(
                f"a header must be a str and bytes or None, not {type(name).__name__} and {type(value).__name__}"
            )
        header_tuples.append((name, value))  # a list of two would fail in Arrow later, and all records gathered with it
    return tuple(header_tuples)


def max_headers_bytes(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """An upper bound of the bytes that headers take in a record: each length is a varint of at most five bytes.

    Raises SerializationError for a name that UTF-8 cannot encode.
    """
    try:
        return sum(10 + len(name.encode()) + len(value or b"") for name, value in headers)
    except UnicodeEncodeError as error:
        raise SerializationError(f"the name of a header cannot be encoded: {error.reason}") from None


def null_topic_error(row: int) -> InvalidRecordError:
    return InvalidRecordError(
        f"row {row} of this chunk has a null topic: fill it in, or name one topic for all rows",
        row=row,
        condition="KAFKA_NULL_TOPIC_IN_DATA",
    )
