"""Spark schemas without a Spark session: `schema(key="binary", value="string")`."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def headers(value: DataType) -> ArrayType:
    return ArrayType(StructType([StructField("key", StringType()), StructField("value", value)]))


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": headers(BinaryType()),
    "headers of strings": headers(StringType()),
    "map": MapType(StringType(), BinaryType()),
    "map of strings": MapType(StringType(), StringType()),
    "headers with capitals": ArrayType(StructType([StructField("KEY", StringType()), StructField("Value", BinaryType())])),
    "strings": ArrayType(StringType()),
}


def schema(**columns: str) -> StructType:
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns.items()])
