"""arrow_types.py: Spark's types as Spark sends them in Arrow, comments included, and a word for each that Avro lacks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from spark_kafka_sink.sink.rows.arrow_types import arrow_type

SCALARS = [
    *(types.BooleanType(), types.ByteType(), types.ShortType(), IntegerType(), LongType(), types.FloatType(), types.DoubleType()),
    *(types.DecimalType(38, 18), StringType(), types.BinaryType(), types.DateType(), types.TimestampType()),
    types.TimestampNTZType(),
]
NESTED = StructType(
    [
        StructField("a", ArrayType(LongType(), False), False),
        StructField("m", MapType(StringType(), StructType([StructField("x", IntegerType())]))),
    ]
)


@pytest.mark.parametrize("kind", [*SCALARS, NESTED, StringType("UTF8_LCASE")], ids=lambda kind: kind.simpleString()[:20])
def test_types_are_those_in_which_spark_sends_columns(kind: DataType) -> None:
    problems: list[str] = []
    assert arrow_type(kind, "value", problems) == to_arrow_type(kind, timezone="UTC")
    assert problems == []


@pytest.mark.parametrize("kind", [types.VarcharType(5), types.CharType(5)])
def test_strings_of_a_length_are_strings(kind: DataType) -> None:
    assert arrow_type(kind, "value", []) == pa.string()


def test_a_time_of_day_is_sent_in_nanoseconds() -> None:
    assert arrow_type(types.TimeType(), "value", []) == pa.time64("ns")


def test_comments_go_along() -> None:
    kind = StructType([StructField("a", LongType(), True, {"comment": "how many"}), StructField("b", LongType(), True, {"x": 1})])
    struct_type = arrow_type(kind, "value", [])
    assert [struct_type.field(name).metadata for name in ("a", "b")] == [{b"comment": b"how many"}, None]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (types.NullType(), "value.f[*] is of the type void, which Avro lacks: it is always null; leave it out"),
        (types.VariantType(), "value.f[*] is of the type variant, which Avro lacks: write it as JSON, as in to_json(value.f[*])"),
        (types.DayTimeIntervalType(), "value.f[*] is of the type interval, which Avro lacks: cast it, as in CAST("),
        (types.YearMonthIntervalType(), "value.f[*] is of the type interval, which Avro lacks: cast it, as in CAST("),
        (types.CalendarIntervalType(), "value.f[*] is of the type interval, which Avro lacks: cast it, as in CAST("),
        (types.GeometryType(4326), "value.f[*] is of the type geometry, which Avro lacks: write its bytes"),
    ],
)
def test_the_error_of_a_type_that_avro_lacks_names_its_place(kind: DataType, problem: str) -> None:
    problems: list[str] = []
    arrow_type(StructType([StructField("f", ArrayType(kind)), StructField("g", kind)]), "value", problems)
    assert len(problems) == 2
    assert problems[0].startswith(problem)
