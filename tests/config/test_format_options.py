"""format_options.py: the formats of keys and values, which schema an option names, and what contradicts."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.format_options import (
    AVRO,
    ID,
    LATEST,
    TEXT,
    VERSION,
    SchemaReference,
    SchemaUse,
    all_uses,
    part_options,
)
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.sink_options import SinkOptions

URL = {"schema.registry.url": "http://localhost:8081"}
SEVERAL_LINES = '{\n  "type":\n    "string"\n}'


def check(**options: str) -> tuple[SinkOptions, list[str]]:
    """Names with double underscores for dots."""
    problems: list[str] = []
    spark_options = {"kafka.bootstrap.servers": "a:1", "topic": "t"} | {
        name.replace("__", "."): value for name, value in options.items()
    }
    return SinkOptions.read(spark_options, problems), problems


def with_registry(**options: str) -> tuple[SinkOptions, list[str]]:
    return check(schema__registry__url="http://localhost:8081", **options)


def test_without_a_format_keys_and_values_stay_as_they_are() -> None:
    options, problems = check()
    assert problems == []
    assert not options.has_format
    assert part_options(options, options.registry, "value") is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("latest", SchemaReference(LATEST)),
        (" LATEST ", SchemaReference(LATEST)),
        ("3", SchemaReference(VERSION, 3)),
        ("id:42", SchemaReference(ID, 42)),
        ("ID:0", SchemaReference(ID, 0)),
        ("id:2147483647", SchemaReference(ID, 2**31 - 1)),
        ('"string"', SchemaReference(TEXT, text='"string"')),
        (SEVERAL_LINES, SchemaReference(TEXT, text=SEVERAL_LINES)),
        ('// id\n {"type": /* 64 bits */ "long"} // end', SchemaReference(TEXT, text='{"type":   "long"}')),
    ],
)
def test_a_schema_is_latest_a_version_an_id_or_text(written: str, meant: SchemaReference) -> None:
    options, problems = with_registry(valueFormat="avro", valueSchema=written)
    assert problems == []
    assert options.value_schema == meant


NO_NUMBERS = ["9" * 12, "2147483648", "id:2147483648", "id:9999999999"]


@pytest.mark.parametrize(
    "written", ["newest", "0", "-1", "id:", "id:x", "string", "{", '{"type": ', "/* never", "// id", *NO_NUMBERS, "[" * 100_000]
)
def test_the_error_of_another_schema_says_what_it_may_be(written: str) -> None:
    _, problems = with_registry(valueFormat="avro", valueSchema=written)
    assert len(problems) == 1
    assert "it is latest, a version such as 3, an id such as id:42, or the text of an Avro schema in JSON" in problems[0]
    assert len(problems[0]) < 500


@pytest.mark.parametrize(
    ("written", "shown"), [("newest", "newest"), ("9999999999", "9999999999"), ("password=x", "[hidden]"), ("{", "[hidden]")]
)
def test_a_wrong_name_of_a_schema_is_shown_once(written: str, shown: str) -> None:
    _, problems = with_registry(valueFormat="avro", valueSchema=written)
    assert problems[0].startswith(f"Invalid value {shown} for configuration valueSchema: ")
    assert problems[0].count(written) == (shown == written)


@pytest.mark.parametrize("subject", [".", ".."])
def test_a_subject_of_dots_cannot_be_asked_for(subject: str) -> None:
    _, problems = with_registry(valueFormat="avro", valueSubject=subject)
    assert len(problems) == 1
    assert f"no registry can be asked for a subject {subject!r}" in problems[0]


def test_a_password_in_the_wrong_option_does_not_show() -> None:
    _, problems = with_registry(valueFormat="avro", valueSchema="password=hunter2")
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"valueFormat": "avro"}, "valueFormat=avro needs schema.registry.url, the address of the schema registry"),
        (
            {"valueFormat": "avro", "keyFormat": "avro"},
            "valueFormat=avro and keyFormat=avro need schema.registry.url, the address of the schema registry",
        ),
        ({"valueSchema": "latest"}, "valueSchema has no effect: set valueFormat=avro or valueFormat=framed"),
        (
            {"keySubject": "s", "keyRecordName": "r"},
            "keySubject and keyRecordName have no effect: set keyFormat=avro or keyFormat=framed",
        ),
        ({"truncateTimestamps": "true"}, "truncateTimestamps has no effect: set valueFormat=avro or keyFormat=avro"),
        (URL, "schema.registry.url has no effect: set valueFormat=avro, keyFormat=avro, or framed"),
        (
            {**URL, "valueFormat": "framed"},
            "valueFormat=framed needs valueSchema: latest, a version such as 3, or an id such as id:42",
        ),
        (
            {**URL, "valueFormat": "framed", "valueSchema": '"string"'},
            "valueSchema is the text of a schema, which valueFormat=framed would have to register",
        ),
        (
            {**URL, "valueFormat": "framed", "valueSchema": "3", "valueRecordName": "r"},
            "valueRecordName cannot be used with valueFormat=framed, which derives no schema",
        ),
        (
            {**URL, "valueFormat": "framed", "valueSchema": "3", "value.subject.name.strategy": "RecordNameStrategy"},
            "valueFormat=framed knows no record's name, which value.subject.name.strategy needs: set valueSubject",
        ),
        (
            {**URL, "valueFormat": "avro", "valueMessage": "0"},
            "valueMessage is for valueFormat=framed with a Protobuf schema",
        ),
        (
            {**URL, "valueFormat": "avro", "valueSchema": "3", "valueRecordName": "r"},
            "valueRecordName cannot be used with valueSchema, which has a name: remove one of the two",
        ),
        (
            {**URL, "valueFormat": "avro", "valueSchema": "3", "use.latest.version": "true"},
            "valueSchema=3 contradicts use.latest.version=true: remove one of the two",
        ),
        (
            {**URL, "valueFormat": "framed", "valueSchema": "3", "valueMessage": "a.B"},
            "Invalid value a.B for configuration valueMessage: it is the message's position in its file",
        ),
        (
            {**URL, "valueFormat": "avro", "kafka.schema.registry.url": "http://a"},
            "kafka.schema.registry.url: options of the schema registry have no kafka. before them: write schema.registry.url",
        ),
        ({**URL, "valueFormat": "json"}, "Invalid value json for configuration valueFormat"),
    ],
)
def test_what_contradicts_is_one_problem(options: dict[str, str], problem: str) -> None:
    _, problems = check(**options)
    assert len(problems) == 1
    assert problem in problems[0]


def test_use_latest_version_is_the_latest_schema_of_both() -> None:
    options, problems = with_registry(valueFormat="avro", keyFormat="framed", use__latest__version="true")
    assert problems == []
    both_parts = [part_options(options, options.registry, part) for part in ("key", "value")]
    assert [each and each.schema for each in both_parts] == [SchemaReference(LATEST)] * 2


def test_a_part_gets_its_own_options() -> None:
    options, problems = with_registry(
        valueFormat="AVRO", valueSubject="s", valueRecordName="r", valueRecordNamespace="a.b", truncateTimestamps="true"
    )
    assert problems == []
    value_options = part_options(options, options.registry, "value")
    assert value_options is not None
    assert (value_options.format, value_options.schema, value_options.subject) == (AVRO, None, "s")
    assert (value_options.record_name, value_options.record_namespace, value_options.truncates_timestamps) == ("r", "a.b", True)


def test_a_nested_message_is_a_path() -> None:
    options, problems = with_registry(valueFormat="framed", valueSchema="latest", valueMessage="1, 0")
    assert problems == []
    assert options.value_message == (1, 0)


def test_options_of_the_registry_are_wrapped_before_anything_reads_them() -> None:
    hidden = SinkOptions.conceal({"Schema.Registry.Url": "http://me:hunter2@a", "basic.auth.user.info": "me:hunter2"})
    assert "hunter2" not in repr(hidden)
    assert hidden["basic.auth.user.info"] == Secret("me:hunter2")


def test_a_misspelt_option_of_the_registry_names_the_nearest() -> None:
    _, problems = with_registry(valueFormat="avro", schema__registry__ulr="x")
    assert len(problems) == 1
    assert "Did you mean 'schema.registry.url'?" in problems[0]


def test_uses_of_a_schema_are_listed_once_and_in_order() -> None:
    first, second = SchemaUse("value", "t-value", 7, 3), SchemaUse("key", "", 1, None)
    assert all_uses([first, second, first]) == (second, first)
    assert [str(each) for each in (first, second, SchemaUse("key", "s", 4, None))] == [
        "t-value version 3 (id 7)",
        "schema 1",
        "s id 4",
    ]
