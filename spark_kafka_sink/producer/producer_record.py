"""A record, or columns of them, on the way in, and what is known of them once they are written."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import SchemaError


@dataclass(slots=True)
class ProducerRecord:
    """A record for `KafkaProducer.send`. Not to be changed once sent; not frozen, because that doubles the time to make one.

    Args:
        topic: where it goes.
        value, key: anything that the serializers take; None is null.
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
    """Where a record is. `offset` is -1 if the broker did not say (acks=0); `timestamp` is the broker's own where the topic
    keeps that (LogAppendTime), else the record's. Sizes are those of the serialized key and value, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True, slots=True)
class ProducerColumns:
    """The arguments of one `KafkaProducer.send_columns`: a record per row. Interceptors get and return them.

    `dataclasses.replace(columns, value=…)` makes changed ones. A column that is None is null in every row.
    """

    topic: str | pa.Array  # one name for all rows, or a column of strings
    value: pa.Array | None = None  # binary or string
    key: pa.Array | None = None  # binary or string
    partition: pa.Array | None = None  # int32; null leaves the choice to the partitioner
    headers: pa.Array | None = None  # list<struct<key: string, value: binary>> or map<string, binary>
    timestamp: pa.Array | None = None  # int64, milliseconds since 1970; null: now

    def columns(self) -> dict[str, pa.Array]:
        """The columns that there are, by name."""
        everything = {name: getattr(self, name) for name in ("topic", "value", "key", "partition", "headers", "timestamp")}
        return {name: column for name, column in everything.items() if column is not None and not isinstance(column, str)}

    def check_types(self) -> None:
        """Raises SchemaError: something is no column at all. What a column may hold is checked where it is read."""
        for name in ("value", "key", "partition", "headers", "timestamp", "topic"):
            column = getattr(self, name)
            if isinstance(column, pa.Array | pa.ChunkedArray) or (isinstance(column, str) if name == "topic" else column is None):
                continue
            what, one = ("topic", "a str, ") if name == "topic" else (f"column {name}", "")
            raise SchemaError(
                f"{what} is of the Python type {type(column).__name__}; pass {one}a pyarrow.Array or a pyarrow.ChunkedArray"
            )

    @property
    def rows(self) -> int | None:
        """None when there is no column to count."""
        return next((len(column) for column in self.columns().values()), None)


def whole_number(value: object, what: str) -> int:
    """An int of Python's or numpy's as an int. Raises TypeError for all else: int() would make 1 of 1.7, of True and of "1"."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        return operator.index(value)
    raise TypeError(f"{what} must be an int or None, not {value!r} of type {type(value).__name__}")


class BatchMetadata(NamedTuple):
    """Where a run of rows is that were sent together and went into one batch; what interceptors hear of.

    `partition` is -1 for rows that failed before they had one, `base_offset` -1 where it is unknown (they failed, or acks=0);
    the rows' offsets follow each other. `timestamp` is the broker's own where the topic keeps that (LogAppendTime), else -1.
    """

    topic: str
    partition: int
    base_offset: int
    rows: int
    timestamp: int
