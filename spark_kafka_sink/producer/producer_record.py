"""What callers pass in, a record or columns, and what they get back: where records were written."""

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


@dataclass(frozen=True, slots=True)
class ProducerColumns:
    """The arguments of one `KafkaProducer.send_columns`: a record per row. Interceptors get and return them.

    `dataclasses.replace(columns, value=…)` makes a changed copy. A column that is None is null in every row.
    """

    topic: str | pa.Array  # one name for all rows, or a column of strings
    value: pa.Array | None = None  # binary or string
    key: pa.Array | None = None  # binary or string
    partition: pa.Array | None = None  # int32; null leaves the choice to the partitioner
    headers: pa.Array | None = None  # list<struct<key: string, value: binary>> or map<string, binary>
    timestamp: pa.Array | None = None  # int64, milliseconds since 1970; null: now

    def columns(self) -> dict[str, pa.Array]:
        """The columns that are not None, by name; the topic too if it is a column."""
        everything = {name: getattr(self, name) for name in ("topic", "value", "key", "partition", "headers", "timestamp")}
        return {name: column for name, column in everything.items() if column is not None and not isinstance(column, str)}

    def check_types(self) -> None:
        """Raises SchemaError for an argument that is not a column. The type of a column is checked where it is read."""
        for name in ("value", "key", "partition", "headers", "timestamp", "topic"):
            column = getattr(self, name)
            if isinstance(column, pa.Array | pa.ChunkedArray) or (isinstance(column, str) if name == "topic" else column is None):
                continue
            what, one = ("topic", "a str, ") if name == "topic" else (f"column {name}", "")
            raise SchemaError(
                f"{what} has the Python type {type(column).__name__}; pass {one}a pyarrow.Array or a pyarrow.ChunkedArray"
            )

    @property
    def rows(self) -> int | None:
        """None without any column."""
        return next((len(column) for column in self.columns().values()), None)


def whole_number(value: object, what: str) -> int:
    """A Python or numpy int as an int. Raises TypeError for anything else: int() would turn 1.7, True and "1" into 1."""
    if type(value) is int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        return operator.index(value)
    raise TypeError(f"{what} must be an int or None, not {value!r} of type {type(value).__name__}")


class BatchMetadata(NamedTuple):
    """Where a run of rows of one call and one batch was written; for interceptors.

    `partition` is -1 for rows that failed before they had one. `base_offset` is -1 if it is unknown (the rows failed, or
    acks=0); the offsets of the rows are consecutive. `timestamp` is the broker's if the topic has LogAppendTime, else -1.
    """

    topic: str
    partition: int
    base_offset: int
    rows: int
    timestamp: int
