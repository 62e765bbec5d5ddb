"""Derived schemas beside those of Spark's own to_avro: the same names and types, and each side reads what the other wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_kafka_sink.schemas.derivation import derive_schema
from spark_kafka_sink.sink.rows.arrow_types import arrow_type

pytestmark = pytest.mark.spark

TYPES = [
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary",
    "a boolean not null, b tinyint not null, e bigint not null, h string not null, i binary not null",
    "a date, b timestamp, c timestamp_ntz, d timestamp not null",
    "a decimal(1,0), b decimal(2,2), c decimal(9,4), d decimal(10,2) not null, e decimal(18,6), f decimal(38,38)",
    "a array<int>, b array<array<string>>, c map<string,bigint>, d map<string,array<decimal(5,1)>> not null",
    "a struct<x: int, y: struct<z: string, w: decimal(7,3)>>, b struct<x: struct<x: int>> not null",
    "a array<struct<b: int, c: array<struct<d: date>>>>, e map<string,struct<f: decimal(3,1)>>",
    "a struct<a: struct<a: struct<a: decimal(4,2)>>>, fixed decimal(4,2), b struct<fixed: decimal(4,2)>",
]


def of_spark(spark: SparkSession, type: StructType, name: str = "topLevelRecord", namespace: str = "") -> Any:
    """A Schema of Avro's Java library, as to_avro makes it."""
    jvm: Any = spark._jvm
    converters = getattr(getattr(jvm.org.apache.spark.sql.avro, "SchemaConverters$"), "MODULE$")
    java_type = spark._jsparkSession.parseDataType(type.json())
    return converters.toAvroType(java_type, False, name, namespace)


def derived(type: StructType, **names: str) -> str:
    text, problems = with_problems(type, **names)
    assert problems == []
    return text


def with_problems(type: StructType, **names: str) -> tuple[str, list[str]]:
    problems: list[str] = []
    sent_as = arrow_type(type, "value", problems)
    text, derivation_problems = derive_schema(sent_as, column_name="value", **names)
    return text, problems + derivation_problems


def as_spark_writes(schema: Any) -> Any:
    """Null last in unions, and no defaults."""
    if isinstance(schema, list):
        return [*map(as_spark_writes, schema[1:]), "null"] if schema[0] == "null" else list(map(as_spark_writes, schema))
    if isinstance(schema, dict):
        return {key: as_spark_writes(value) for key, value in schema.items() if key != "default"}
    return schema


def as_java_prints(spark: SparkSession, schema: Any) -> Any:
    """Avro's library leaves out what is the default, such as a namespace that is that of the record around."""
    return json.loads(parsed(spark, json.dumps(schema)).toString())


def parsed(spark: SparkSession, text: str) -> Any:
    jvm: Any = spark._jvm
    return getattr(jvm.org.apache.avro, "Schema$Parser")().parse(text)


@pytest.mark.parametrize("ddl", TYPES)
@pytest.mark.parametrize("names", [{}, {"name": "Order", "namespace": "com.acme"}], ids=["", "named"])
def test_names_and_types_are_those_of_to_avro(spark: SparkSession, ddl: str, names: dict[str, str]) -> None:
    type = StructType.fromDDL(ddl)
    mine = as_java_prints(spark, as_spark_writes(json.loads(derived(type, **names))))
    assert mine == json.loads(of_spark(spark, type, *names.values()).toString())


@pytest.mark.parametrize("ddl", TYPES)
def test_each_side_reads_what_the_other_wrote(spark: SparkSession, ddl: str) -> None:
    """So a subject that to_avro filled stays compatible, whatever its mode is."""
    type = StructType.fromDDL(ddl)
    mine, sparks = parsed(spark, derived(type)), of_spark(spark, type)
    check = spark._jvm.org.apache.avro.SchemaCompatibility.checkReaderWriterCompatibility
    assert [check(*each).getType().toString() for each in ((mine, sparks), (sparks, mine))] == ["COMPATIBLE"] * 2


def test_a_time_of_spark_is_a_time_in_micros(spark: SparkSession) -> None:
    assert spark.version
    type = StructType.fromDDL("a time(6) not null")
    (field,) = json.loads(derived(type))["fields"]
    assert field["type"] == {"type": "long", "logicalType": "time-micros"}


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("a interval day to second", "value.a is of the type interval, which Avro lacks"),
        ("a variant", "value.a is of the type variant, which Avro lacks"),
        ("a void", "value.a is of the type void, which Avro lacks"),
        ("a map<int,int>", "value.a is a map with keys of type int32"),
    ],
)
def test_types_that_avro_lacks_are_problems(spark: SparkSession, ddl: str, expected: str) -> None:
    assert spark.version
    _, (problem,) = with_problems(StructType.fromDDL(ddl))
    assert problem.startswith(expected)
