"""From Spark's type of a column to Arrow's, as Spark sends it to a task. Imported only when a column is to be encoded.

Comments of fields go along as Arrow's metadata, from where they become docs of a derived schema (schemas/derivation.py).
Law: a type that Avro lacks is a problem that names the field and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType

_ZONE = "UTC"  # Spark sends the session's zone, on which instants do not depend

_LEAVES: dict[str, Callable[[DataType], pa.DataType]] = {
    "BooleanType": lambda _: pa.bool_(),
    "ByteType": lambda _: pa.int8(),
    "ShortType": lambda _: pa.int16(),
    "IntegerType": lambda _: pa.int32(),
    "LongType": lambda _: pa.int64(),
    "FloatType": lambda _: pa.float32(),
    "DoubleType": lambda _: pa.float64(),
    "DecimalType": lambda kind: pa.decimal128(kind.precision, kind.scale),  # type: ignore[attr-defined]
    "StringType": lambda _: pa.string(),
    "VarcharType": lambda _: pa.string(),
    "CharType": lambda _: pa.string(),
    "BinaryType": lambda _: pa.binary(),
    "DateType": lambda _: pa.date32(),
    "TimestampType": lambda _: pa.timestamp("us", _ZONE),
    "TimestampNTZType": lambda _: pa.timestamp("us"),
    "TimeType": lambda _: pa.time64("ns"),
}

# What Avro lacks: its name, and what to write instead.
_LACKING = {
    "NullType": ("void", "it is always null; leave it out, or give it a type, as in CAST({0} AS STRING)"),
    "VariantType": ("variant", "write it as JSON, as in to_json({0})"),
    "DayTimeIntervalType": ("interval", "cast it, as in CAST({0} AS STRING)"),
    "YearMonthIntervalType": ("interval", "cast it, as in CAST({0} AS STRING)"),
    "CalendarIntervalType": ("interval", "cast it, as in CAST({0} AS STRING)"),
    "GeometryType": ("geometry", "write its bytes, as in ST_AsBinary({0})"),
    "GeographyType": ("geography", "write its bytes, as in ST_AsBinary({0})"),
}


def arrow_type(kind: DataType, path: str, problems: list[str]) -> pa.DataType:
    """The type in which Spark sends a column.

    Args:
        kind: Spark's type.
        path: the column, for problems.
        problems: gets what is wrong; if it gets anything, do not use the type.
    """
    if isinstance(kind, UserDefinedType):
        return arrow_type(kind.sqlType(), path, problems)
    if isinstance(kind, StructType):
        return pa.struct([_field(each, path, problems) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType, f"{path}[*]", problems), kind.containsNull))
    if isinstance(kind, MapType):
        key = pa.field("key", arrow_type(kind.keyType, f"{path}.key", problems), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(kind.valueType, f"{path}[*]", problems), kind.valueContainsNull))
    return _leaf(kind, path, problems)


def _field(field: StructField, path: str, problems: list[str]) -> pa.Field:
    comment = field.metadata.get("comment")
    metadata = {"comment": comment} if isinstance(comment, str) else None
    return pa.field(field.name, arrow_type(field.dataType, f"{path}.{field.name}", problems), field.nullable, metadata)


def _leaf(kind: DataType, path: str, problems: list[str]) -> pa.DataType:
    for each in type(kind).__mro__:
        if each.__name__ in _LEAVES and each.__module__ == types.__name__:
            return _LEAVES[each.__name__](kind)
    name, remedy = _LACKING.get(type(kind).__name__, (kind.simpleString(), "leave it out, or cast it to another type"))
    problems.append(f"{path} is of the type {name}, which Avro lacks: {remedy.format(path)}")
    return pa.string()  # a stand-in: what comes next has no second problem with this field
