"""Maps the columns of a DataFrame to the parts of a record, by the rules, names and messages of Spark's own Kafka sink.

    value      string or binary                          required; null is a tombstone
    key        string or binary                          null: no key
    topic      string                                    required unless the option `topic` is set, which overrides the column
    partition  int                                       null: the partitioner decides
    headers    array<struct<key:string,value:binary>>    order and duplicates are kept; or map<string,string or binary>
    timestamp  timestamp, or bigint in milliseconds      only with includeTimestamp=true; null: the time of sending

As in Spark's sink, names are matched exactly, the first of two equal names counts, and other columns are ignored.
The schema is checked once on the driver. The tasks get plain data: the positions of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from spark_kafka_sink.config.option import nearest_key
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.records.interleave import contiguous

NULL_TOPIC = (
    "The Kafka message data sent to the producer contains a null topic. Use the `topic` option for setting a default topic."
)
NO_TOPIC = "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
LISTED_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column that the sink knows: its name, and the types it may have, in words and as a check.

    `remedy` returns the SQL expression that converts another type to such a column, or None.
    """

    name: str
    types: tuple[str, ...]
    fits: Callable[[DataType], bool]
    remedy: Callable[[DataType], str | None]

    def problem(self, found: DataType) -> str:
        """Spark's message, then the expression to use instead."""
        words = (
            f"{self.name} attribute unsupported type {found.simpleString()}. {self.name} must be a(n) {' or '.join(self.types)}"
        )
        remedy = self.remedy(found)
        return words if remedy is None else f"{words}. Select {remedy} AS {self.name}"

    def missing(self, words: str, columns: list[str]) -> str:
        """`words`, then the DataFrame's columns, and the one that is probably meant."""
        if not columns:
            return f"{words}. The DataFrame has no columns"
        listed = ", ".join(columns[:LISTED_COLUMNS])
        more = f" and {len(columns) - LISTED_COLUMNS} more" if len(columns) > LISTED_COLUMNS else ""
        by_lower = {name.lower(): name for name in reversed(columns)}
        nearest = nearest_key(self.name, list(by_lower))
        hint = "" if nearest is None else f". Did you mean '{by_lower[nearest]}'? Select `{by_lower[nearest]}` AS {self.name}"
        return f"{words.removesuffix('.')}. The DataFrame's columns are: {listed}{more}{hint}"


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType | VarcharType | CharType)


def _is_payload(kind: DataType) -> bool:
    return _is_string(kind) or isinstance(kind, BinaryType)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _is_string(kind.keyType) and _is_payload(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name.lower(), field.dataType) for field in kind.elementType.fields]  # Spark ignores the case too
    return [name for name, _ in fields] == ["key", "value"] and _is_string(fields[0][1]) and isinstance(fields[1][1], BinaryType)


def _cast(name: str, target: str, nested: str | None = None) -> Callable[[DataType], str | None]:
    """A cast, or the expression `nested` for arrays, maps and structs."""

    def remedy(kind: DataType) -> str | None:
        return nested if isinstance(kind, ArrayType | MapType | StructType) else f"cast({name} AS {target})"

    return remedy


def _binary_headers(kind: DataType) -> str | None:
    """The expression for an array of structs whose values have another type."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return None
    if [field.name.lower() for field in kind.elementType.fields] != ["key", "value"]:
        return None
    parts = "'key', cast(h.key AS string), 'value', cast(cast(h.value AS string) AS binary)"
    return f"transform(headers, h -> named_struct({parts}))"


TOPIC = Attribute("topic", ("string",), _is_string, _cast("topic", "string"))
VALUE = Attribute("value", ("string", "binary"), _is_payload, _cast("value", "string", "to_json(value)"))
KEY = Attribute("key", ("string", "binary"), _is_payload, _cast("key", "string", "to_json(key)"))
PARTITION = Attribute("partition", ("int",), lambda kind: isinstance(kind, IntegerType), _cast("partition", "int"))
HEADERS = Attribute(
    "headers",
    ("array<struct<key:string,value:binary>>", "map<string,string>", "map<string,binary>"),
    _is_headers,
    _binary_headers,
)
TIMESTAMP = Attribute(
    "timestamp",
    ("timestamp", "bigint"),
    lambda kind: isinstance(kind, TimestampType | LongType),
    _cast("timestamp", "timestamp"),
)


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
    def check(
        cls, schema: StructType, options: SinkOptions, problems: list[str], *, topic_is_refused: bool = False
    ) -> RowMapping:
        """Find the columns of a DataFrame. Adds to `problems`; the result must not be used if there are any.

        `topic_is_refused`: the option `topic` is set, to a name that no topic can have, so a missing column is no problem.
        """

        def position(attribute: Attribute, missing: str | None = None) -> int | None:
            for index, column in enumerate(schema.fields):
                if column.name == attribute.name:
                    if not attribute.fits(column.dataType):
                        problems.append(attribute.problem(column.dataType))
                    return index
            if missing is not None:
                problems.append(attribute.missing(missing, schema.names))
            return None

        return cls(
            topic=options.topic if options.topic is not None else position(TOPIC, None if topic_is_refused else NO_TOPIC),
            value=position(VALUE, "Required attribute 'value' not found"),
            key=position(KEY),
            partition=position(PARTITION),
            headers=position(HEADERS),
            timestamp=position(TIMESTAMP, "Required attribute 'timestamp' not found: includeTimestamp=true asks for it")
            if options.include_timestamp
            else None,
        )

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
    """int64 milliseconds since 1970; microseconds are cut off. The instant does not depend on the timestamp's time zone."""
    if pa.types.is_int64(timestamp.type):
        return timestamp
    return timestamp.cast(pa.timestamp("ms", timestamp.type.tz), safe=False).cast(pa.int64())
