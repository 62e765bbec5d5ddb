"""Checks the columns of a DataFrame, by the rules, names and messages of Spark's own Kafka sink.

The schema is checked once on the driver. The tasks get plain data: the positions of the columns (RowMapping).
Types are Spark's; which column is which part of a record is decided in row_mapping.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    YearMonthIntervalType,
)

from spark_kafka_sink.config.format_options import AVRO
from spark_kafka_sink.config.option import warn_once
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import printable
from spark_kafka_sink.records.row_mapping import RowMapping, nearest_column

NULL_TOPIC = (
    "The Kafka message data sent to the producer contains a null topic. Use the `topic` option for setting a default topic."
)
TOPIC_REQUIRED = "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
TIMESTAMP_REQUIRED = "Required attribute 'timestamp' not found: includeTimestamp=true asks for it"
MAX_LISTED_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column that the sink knows: its name, and the types it may have, in words and as a check. `remedy` returns the SQL
    expression that converts another type to such a column, or None. `has_format`: whether an option encodes other types."""

    name: str
    types: tuple[str, ...]
    fits: Callable[[DataType], bool]
    remedy: Callable[[DataType], str | None]
    has_format: bool = False

    def problem(self, kind: DataType) -> str:
        """Spark's message, then the expression to use instead."""
        words = (
            f"{self.name} attribute unsupported type {kind.simpleString()}. {self.name} must be a(n) {' or '.join(self.types)}"
        )
        remedy = self.remedy(kind)
        if remedy is None:
            return words
        with_format = f", or set {self.name}Format={AVRO}" if self.has_format and _is_nested(kind) else ""
        return f"{words}. Select {remedy} AS {self.name}{with_format}"


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType | VarcharType | CharType)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType | MapType | StructType)


_SPATIAL = ("GeometryType", "GeographyType")


def _holds_shape(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_shape(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_shape(kind.keyType) or _holds_shape(kind.valueType)
    if isinstance(kind, StructType):
        return any(_holds_shape(field.dataType) for field in kind.fields)
    return type(kind).__name__ in _SPATIAL


def _is_payload(kind: DataType) -> bool:
    return _is_string(kind) or isinstance(kind, BinaryType)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _is_string(kind.keyType) and _is_payload(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name.lower(), field.dataType) for field in kind.elementType.fields]  # Spark ignores the case too
    return [name for name, _ in fields] == ["key", "value"] and _is_string(fields[0][1]) and isinstance(fields[1][1], BinaryType)


_INTERVALS = ("DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType")
# By the type that is asked for: those that Spark does not cast to it. By name, as older versions of Spark have not all of them.
_NOT_CAST = {
    "string": _SPATIAL,
    "int": (*_SPATIAL, *_INTERVALS, "BinaryType", "DateType", "TimestampType", "TimestampNTZType", "VariantType"),
    "timestamp": (*_SPATIAL, *_INTERVALS, "BooleanType", "BinaryType", "VariantType"),
}


def _cast(name: str, target: str) -> Callable[[DataType], str | None]:
    """A cast, if Spark allows it."""

    def remedy(kind: DataType) -> str | None:
        return None if _is_nested(kind) or type(kind).__name__ in _NOT_CAST[target] else f"cast({name} AS {target})"

    return remedy


def _as_payload(name: str) -> Callable[[DataType], str | None]:
    """A cast to string; JSON for arrays, maps and structs, and WKB for shapes. No expression has JSON with shapes."""

    def remedy(kind: DataType) -> str | None:
        if _is_nested(kind):
            return None if _holds_shape(kind) else f"to_json({name})"
        return f"ST_AsBinary({name})" if _holds_shape(kind) else f"cast({name} AS string)"

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
VALUE = Attribute("value", ("string", "binary"), _is_payload, _as_payload("value"), has_format=True)
KEY = Attribute("key", ("string", "binary"), _is_payload, _as_payload("key"), has_format=True)
PARTITION = Attribute("partition", ("int",), lambda kind: isinstance(kind, IntegerType), _cast("partition", "int"))
HEADERS = Attribute(
    "headers",
    ("array<struct<key:string,value:binary>>", "map<string,string>", "map<string,binary>"),
    _is_headers,
    _binary_headers,
)
TIMESTAMP = Attribute(
    "timestamp", ("timestamp", "bigint"), lambda kind: isinstance(kind, TimestampType | LongType), _cast("timestamp", "timestamp")
)

ATTRIBUTES = (TOPIC, VALUE, KEY, PARTITION, HEADERS, TIMESTAMP)


def find_columns(schema: StructType, options: SinkOptions, *, is_topic_refused: bool = False) -> tuple[RowMapping, list[str]]:
    """Find the columns of a DataFrame, and what is wrong with them; if anything is, do not use the mapping.

    `is_topic_refused`: the option `topic` is set, to a name that no topic can have, so a missing column is no problem.
    """
    mapping = RowMapping.find(schema.names, options.topic, with_timestamp=options.include_timestamp)
    requirements = {"value": "Required attribute 'value' not found"}
    if not is_topic_refused:
        requirements["topic"] = TOPIC_REQUIRED
    if options.include_timestamp:
        requirements["timestamp"] = TIMESTAMP_REQUIRED

    def is_encoded(attribute: Attribute) -> bool:  # then its type is compared with a schema
        return attribute in (KEY, VALUE) and getattr(options, f"{attribute.name}_format") == AVRO

    _warn_of_ignored_columns(mapping, schema.names)
    problems = []
    for attribute in ATTRIBUTES:
        position = getattr(mapping, attribute.name)
        if isinstance(position, int) and not is_encoded(attribute) and not attribute.fits(schema.fields[position].dataType):
            problems.append(attribute.problem(schema.fields[position].dataType))
        elif position is None and attribute.name in requirements:
            problems.append(_missing_problem(attribute.name, requirements[attribute.name], schema.names))
    positions = [getattr(mapping, attribute.name) for attribute in ATTRIBUTES]
    for position, field in enumerate(schema.fields):
        if isinstance(field.dataType, YearMonthIntervalType) and position not in positions:  # Spark passes on all columns
            words = f"column {field.name} has the type {field.dataType.simpleString()}, which pyarrow cannot read"
            problems.append(f"{words}. Select cast(`{field.name}` AS string) AS `{field.name}`, or drop the column")
    return mapping, problems


def _warn_of_ignored_columns(mapping: RowMapping, columns: list[str]) -> None:
    """Spark's sink ignores them without a word, and SQL takes their names for the right ones."""
    for name in ("topic", "value", "key", "partition", "headers"):
        count = columns.count(name)
        if count > 1:
            warn_once("the DataFrame has %d columns %s, of which the first is written: drop the others", count, name)
        is_missing = getattr(mapping, name) is None
        if count or (is_missing and name in ("topic", "value")):  # an error, which names such a column
            continue
        for column in (each for each in columns if each.lower() == name):
            remedy = f"select `{column}` AS {name}" if is_missing else f"the option {name} decides"
            warn_once("the DataFrame's column %s is ignored, as it is not called %s: %s", printable(column), name, remedy)


def _missing_problem(name: str, words: str, columns: list[str]) -> str:
    """`words`, then the DataFrame's columns, and the one that is probably meant."""
    words = words.removesuffix(".")
    if not columns:
        return f"{words}. The DataFrame has no columns"
    names = ", ".join(columns[:MAX_LISTED_COLUMNS])
    more = f" and {len(columns) - MAX_LISTED_COLUMNS} more" if len(columns) > MAX_LISTED_COLUMNS else ""
    nearest = nearest_column(name, columns)
    hint = "" if nearest is None else f". Did you mean '{nearest}'? Select `{nearest}` AS {name}"
    return f"{words}. The DataFrame's columns are: {names}{more}{hint}"
