"""Which column of a table is which part of a record: the names and rules of Spark's own Kafka sink.

    value      string or binary                          required; null is a tombstone
    key        string or binary                          null: no key
    topic      string                                    required unless one topic is named for all rows, which overrides it
    partition  int                                       null: the partitioner decides
    headers    array<struct<key:string,value:binary>>    order and duplicates are kept; or map<string,string or binary>
    timestamp  timestamp, or bigint in milliseconds      null: the time of sending

As in Spark's sink, names are matched exactly, the first of two equal names counts, and other columns are ignored.
A mapping is plain data. The caller that makes it checks the types of the columns, which are Spark's or Arrow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_kafka_sink.config.option import nearest_key
from spark_kafka_sink.records.layouts import contiguous

RECORD_FIELDS = ("topic", "value", "key", "partition", "headers", "timestamp")


def nearest_column(name: str, columns: Sequence[str]) -> str | None:
    """The column whose name is most like `name`, upper or lower case. None if no column is similar."""
    by_lower = {column.lower(): column for column in reversed(columns)}
    nearest = nearest_key(name, list(by_lower))
    return None if nearest is None else by_lower[nearest]


@dataclass(frozen=True, slots=True)
class RowMapping:
    """The position of each part of a record among the columns; None for a part without a column."""

    topic: str | int | None  # a str: the topic of all rows
    value: int | None
    key: int | None
    partition: int | None
    headers: int | None
    timestamp: int | None

    @classmethod
    def find(cls, columns: Sequence[str], topic: str | None, *, with_timestamp: bool) -> RowMapping:
        """Find the columns by their names. `topic`: of all rows; None: the column decides."""
        positions: dict[str, Any] = {name: columns.index(name) if name in columns else None for name in RECORD_FIELDS}
        if topic is not None:
            positions["topic"] = topic
        if not with_timestamp:
            positions["timestamp"] = None
        return cls(**positions)

    def columns(self, table: pa.Table) -> dict[str, Any]:
        """The arguments of `KafkaProducer.send_columns`. Values stay in pieces; the pieces of other columns are joined."""

        def column(position: int | None) -> pa.Array | None:
            return None if position is None else contiguous(table.column(position))

        timestamp = column(self.timestamp)
        return {
            "topic": self.topic if isinstance(self.topic, str) else column(self.topic),
            "value": None if self.value is None else table.column(self.value),
            "key": column(self.key),
            "partition": column(self.partition),
            "headers": column(self.headers),
            "timestamp": timestamp if timestamp is None else _milliseconds(timestamp),
        }


def _milliseconds(timestamp: pa.Array) -> pa.Array:
    """int64 milliseconds since 1970; microseconds are cut off. Columns that are no timestamps hold milliseconds already.

    The instant does not depend on the time zone. Raises pyarrow.ArrowInvalid for seconds that do not fit int64 as milliseconds.
    """
    if not pa.types.is_timestamp(timestamp.type):
        return timestamp
    is_exact = timestamp.type.unit == "s"
    return timestamp.cast(pa.timestamp("ms", timestamp.type.tz), safe=is_exact).cast(pa.int64())
