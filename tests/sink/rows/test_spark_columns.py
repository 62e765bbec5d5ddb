"""spark_columns.py: the columns of a DataFrame, checked by Spark's rules and told in Spark's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, VarcharType, YearMonthIntervalType

from spark_kafka_sink.config import option
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.spark_columns import find_columns
from tests.sink.schemas import schema

HEADERS = "array<struct<key:string,value:binary>> or map<string,string> or map<string,binary>"


def check(columns: dict[str, str], **options: str) -> tuple[RowMapping, list[str]]:
    problems: list[str] = []
    checked = SinkOptions.read({"kafka.bootstrap.servers": "a:1", **options}, problems)
    assert problems == []
    return find_columns(schema(**columns), checked)


def test_every_attribute_is_found_wherever_it_stands() -> None:
    mapping, problems = check(
        {"headers": "headers", "extra": "int", "value": "binary", "partition": "int", "key": "string", "topic": "string"}
    )
    assert problems == []
    assert mapping == RowMapping(topic=5, value=2, key=4, partition=3, headers=0, timestamp=None)


def test_value_alone_is_enough_with_the_topic_option() -> None:
    mapping, problems = check({"value": "string"}, topic="orders")
    assert problems == []
    assert mapping == RowMapping(topic="orders", value=0, key=None, partition=None, headers=None, timestamp=None)


def test_the_topic_option_overrides_the_column_whatever_its_type() -> None:
    mapping, problems = check({"topic": "int", "value": "string"}, topic="orders")
    assert problems == []
    assert mapping.topic == "orders"


def test_names_are_matched_exactly_and_unknown_columns_ignored() -> None:
    mapping, problems = check({"Key": "int", "KEY": "int", "value": "string", "offset": "bigint", "timestamp": "int"}, topic="t")
    assert problems == []
    assert (mapping.key, mapping.timestamp) == (None, None)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns what the test has logged; nothing was logged before."""
    monkeypatch.setattr(option, "_logged_messages", set())
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        ("Key", "the DataFrame's column Key is ignored, as it is not called key: select `Key` AS key"),
        ("HEADERS", "the DataFrame's column HEADERS is ignored, as it is not called headers: select `HEADERS` AS headers"),
        ("Partition", "the DataFrame's column Partition is ignored, as it is not called partition: select `Partition` AS"),
        ("Topic", "the DataFrame's column Topic is ignored, as it is not called topic: the option topic decides"),
    ],
)
def test_a_column_whose_name_differs_in_case_is_told(column: str, remedy: str, logged: Callable[[], list[str]]) -> None:
    """`SELECT id AS Key` wrote all rows without a key, and nobody heard of it: Spark's SQL takes Key for key, its sink not."""
    assert check({column: "string", "value": "string"}, topic="t")[1] == []
    (text,) = logged()
    assert text.startswith(remedy)


def test_a_column_beside_the_one_of_the_right_name_is_not_told(logged: Callable[[], list[str]]) -> None:
    check({"Key": "string", "key": "string", "value": "string", "Timestamp": "string"}, topic="t")
    assert logged() == []


def test_the_second_of_two_equal_names_is_told(logged: Callable[[], list[str]]) -> None:
    fields = [StructField(name, StringType()) for name in ("value", "key", "key")]
    find_columns(StructType(fields), SinkOptions.read({"kafka.bootstrap.servers": "a:1", "topic": "t"}, []))
    assert logged() == ["the DataFrame has 2 columns key, of which the first is written: drop the others"]


def test_an_ignored_column_must_not_be_a_year_month_interval() -> None:
    """Spark passes all columns to the task, and it ended in KeyError: 21 where pyarrow read such a one."""
    interval = YearMonthIntervalType()
    fields = {"value": StringType(), "age": interval, "ages": ArrayType(interval), "topic": interval, "key": interval}
    options = SinkOptions.read({"kafka.bootstrap.servers": "a:1", "topic": "t"}, [])
    _, problems = find_columns(StructType([StructField(name, kind) for name, kind in fields.items()]), options)
    assert [each.partition(" has ")[0] for each in problems[1:]] == ["column age", "column topic"]
    assert problems[0].startswith("key attribute unsupported type interval year to month.")
    assert problems[1].endswith("Select cast(`age` AS string) AS `age`, or drop the column")


def test_the_first_of_two_equal_names_counts() -> None:
    schema = StructType([StructField("value", StringType()), StructField("value", StringType())])
    problems: list[str] = []
    options = SinkOptions.read({"kafka.bootstrap.servers": "a:1", "topic": "t"}, problems)
    mapping, problems = find_columns(schema, options)
    assert (mapping.value, problems) == (0, [])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"value": "string"},
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        ),
        ({"topic": "string"}, "Required attribute 'value' not found"),
        ({"topic": "int", "value": "string"}, "topic attribute unsupported type int. topic must be a(n) string"),
        ({"topic": "string", "value": "int"}, "value attribute unsupported type int. value must be a(n) string or binary"),
        (
            {"topic": "string", "value": "string", "key": "bigint"},
            "key attribute unsupported type bigint. key must be a(n) string or binary",
        ),
        (
            {"topic": "string", "value": "string", "partition": "string"},
            "partition attribute unsupported type string. partition must be a(n) int",
        ),
        (
            {"topic": "string", "value": "string", "partition": "bigint"},
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        (
            {"topic": "string", "value": "string", "headers": "headers of strings"},
            "headers attribute unsupported type array<struct<key:string,value:string>>. headers must be a(n) " + HEADERS,
        ),
        (
            {"topic": "string", "value": "string", "headers": "strings"},
            "headers attribute unsupported type array<string>. headers must be a(n) " + HEADERS,
        ),
    ],
)
def test_a_wrong_schema_is_an_error_in_sparks_words_which_come_first(columns: dict[str, str], expected: str) -> None:
    (problem,) = check(columns)[1]
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("column", "kind", "expression"),
    [
        ("value", "int", "cast(value AS string) AS value"),
        ("value", "strings", "to_json(value) AS value, or set valueFormat=avro"),
        ("key", "map", "to_json(key) AS key, or set keyFormat=avro"),
        ("key", "bigint", "cast(key AS string) AS key"),
        ("topic", "int", "cast(topic AS string) AS topic"),
        ("partition", "bigint", "cast(partition AS int) AS partition"),
        ("timestamp", "timestamp_ntz", "cast(timestamp AS timestamp) AS timestamp"),
        (
            "headers",
            "headers of strings",
            "transform(headers, h -> named_struct('key', cast(h.key AS string),"
            " 'value', cast(cast(h.value AS string) AS binary))) AS headers",
        ),
    ],
)
def test_the_error_of_a_wrong_type_has_the_expression_to_select(column: str, kind: str, expression: str) -> None:
    """The allowed types were listed, and the user had to find out how to get one."""
    _, problems = check({"topic": "string", "value": "string"} | {column: kind}, includeTimestamp=str(column == "timestamp"))
    assert len(problems) == 1
    assert problems[0].endswith(f". Select {expression}")


@pytest.mark.parametrize(("column", "kind"), [("partition", "strings"), ("topic", "map"), ("headers", "strings")])
def test_the_error_of_a_type_that_cannot_be_cast_has_no_expression(column: str, kind: str) -> None:
    _, problems = check({"topic": "string", "value": "string"} | {column: kind})
    assert "Select" not in problems[0]


def test_the_error_of_a_missing_column_names_all_columns_and_the_nearest() -> None:
    """Only "not found" was said, also to those who had written `Value` or `payload`."""
    _, problems = check({"id": "int", "VALUE": "string"}, topic="t")
    assert problems == [
        "Required attribute 'value' not found. The DataFrame's columns are: id, VALUE."
        " Did you mean 'VALUE'? Select `VALUE` AS value"
    ]
    _, problems = check({"id": "int", "payload": "string"}, topic="t")
    assert problems == ["Required attribute 'value' not found. The DataFrame's columns are: id, payload"]
    _, problems = check({"Topics": "string", "value": "string"})
    assert problems[0].endswith(
        "Use the topic option for setting a topic. The DataFrame's columns are: Topics, value."
        " Did you mean 'Topics'? Select `Topics` AS topic"
    )


def test_of_very_many_columns_the_first_are_listed() -> None:
    _, problems = check({f"c{number}": "int" for number in range(300)}, topic="t")
    assert problems[0].endswith("c18, c19 and 280 more")
    _, problems = check({}, topic="t")
    assert problems[0].endswith("The DataFrame has no columns")


@pytest.mark.parametrize("said", ["true", "false"])
def test_headers_are_written_whatever_include_headers_says(said: str) -> None:
    """Spark does the same: the option is for reading."""
    assert check({"value": "string", "headers": "headers"}, topic="t", includeHeaders=said)[0].headers == 1


@pytest.mark.parametrize("kind", ["map", "map of strings", "headers with capitals"])
def test_headers_may_also_be_maps_and_fields_named_in_any_case(kind: str) -> None:
    """Spark's own sink compares types without regard to case; maps it does not take."""
    mapping, problems = check({"value": "string", "headers": kind}, topic="t")
    assert (mapping.headers, problems) == (1, [])


def test_all_wrong_columns_are_problems_at_once() -> None:
    _, problems = check({"topic": "int", "value": "int", "key": "int", "partition": "string", "headers": "string"})
    assert len(problems) == 5


@pytest.mark.parametrize("kind", [StringType(), StringType("UTF8_LCASE"), VarcharType(5)])
def test_every_kind_of_string_is_a_string(kind: DataType) -> None:
    problems: list[str] = []
    options = SinkOptions.read({"kafka.bootstrap.servers": "a:1"}, problems)
    _, problems = find_columns(StructType([StructField(name, kind) for name in ("topic", "key", "value")]), options)
    assert problems == []


def test_a_timestamp_is_written_only_when_asked_for() -> None:
    columns = {"topic": "string", "value": "string", "timestamp": "timestamp"}
    assert check(columns)[0].timestamp is None
    assert check(columns, includeTimestamp="true")[0].timestamp == 2
    _, problems = check({"topic": "string", "value": "string"}, includeTimestamp="true")
    assert len(problems) == 1
    assert problems[0].startswith("Required attribute 'timestamp' not found: includeTimestamp=true asks for it.")
    _, problems = check({"topic": "string", "value": "string", "timestamp": "timestamp_ntz"}, includeTimestamp="true")
    assert len(problems) == 1
    expected = "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) timestamp or bigint"
    assert problems[0].startswith(expected)
