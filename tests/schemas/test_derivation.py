"""Derived schemas, against texts that Spark's to_avro gives for the same types, but for the order of unions and the defaults."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.schemas.avro_schema import parse_schema
from spark_kafka_sink.schemas.derivation import derive_schema
from spark_kafka_sink.schemas.resolution import resolve_column


def derived(type: pa.DataType, nullable: bool = False, **names: Any) -> Any:
    text, problems = derive_schema(type, is_nullable=nullable, column_name="value", **names)
    assert problems == []
    return json.loads(text)


def problems_of(type: pa.DataType, **names: Any) -> list[str]:
    return derive_schema(type, column_name="value", **names)[1]


def only_type(type: pa.DataType) -> Any:
    """The derived type of a field that is not null."""
    (field,) = derived(pa.struct([pa.field("f", type, nullable=False)]))["fields"]
    return field["type"]


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL_MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
TIME = {"type": "long", "logicalType": "time-micros"}
DATE = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.int16(), "int"),
        (pa.int32(), "int"),
        (pa.int64(), "long"),
        (pa.uint8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.float16(), "float"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(), "bytes"),
        (pa.large_binary(), "bytes"),
        (pa.binary_view(), "bytes"),
        (pa.binary(16), "bytes"),
        (pa.date32(), DATE),
        (pa.date64(), DATE),
        (pa.timestamp("us", "UTC"), MICROS),
        (pa.timestamp("us", "Europe/Berlin"), MICROS),
        (pa.timestamp("ms", "UTC"), MICROS),
        (pa.timestamp("us"), LOCAL_MICROS),
        (pa.timestamp("ns"), LOCAL_MICROS),
        (pa.time64("us"), TIME),
        (pa.time64("ns"), TIME),
        (pa.time32("ms"), TIME),
    ],
)
def test_a_type_has_the_schema_that_to_avro_gives_it(type: pa.DataType, expected: Any) -> None:
    assert only_type(type) == expected


@pytest.mark.parametrize(
    "type",
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.dictionary(pa.int32(), pa.string())),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
        *(pa.decimal128(5, 2), pa.decimal256(70, 3), pa.decimal128(38, 38)),
        *(pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2), pa.list_(pa.decimal128(4, 1))),
        *(pa.map_(pa.string(), pa.int32()), pa.map_(pa.large_string(), pa.list_(pa.date32())), pa.struct([])),
        pa.map_(pa.string(), pa.struct([("a", pa.decimal128(4, 1)), ("b", pa.struct([("a", pa.decimal128(4, 1))]))])),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_field", [False, True])
def test_a_derived_schema_takes_every_column_of_its_type(type: pa.DataType, is_field: bool) -> None:
    column = pa.struct([pa.field("f", type)]) if is_field else type
    text, problems = derive_schema(column, column_name="value")
    encoder, misfits = resolve_column(column, parse_schema(text), column_name="value", truncates_timestamps=False)
    assert problems == misfits == []
    assert encoder.encode(pa.nulls(2, column)).values.null_count == 2


def test_null_comes_first_in_a_union_and_is_the_default() -> None:
    schema = derived(pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)]))
    assert schema == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [{"name": "a", "type": ["null", "int"], "default": None}, {"name": "b", "type": "int"}],
    }


def test_nested_records_are_named_as_by_spark() -> None:
    """SchemaConverters names a record after its field, in a namespace of the records around it."""
    inner = pa.struct([pa.field("zip", pa.struct([pa.field("code", pa.string(), False)]), False)])
    schema = derived(
        pa.struct([pa.field("home", inner, False), pa.field("all", pa.list_(pa.field("item", inner, False)), False)]),
        name="Order",
        namespace="com.acme",
    )
    assert (schema["namespace"], schema["name"]) == ("com.acme", "Order")
    home, items = schema["fields"][0]["type"], schema["fields"][1]["type"]["items"]
    assert (home["namespace"], home["name"]) == ("com.acme.Order", "home")
    assert (items["namespace"], items["name"]) == ("com.acme.Order", "all")
    assert home["fields"][0]["type"] == {
        "type": "record",
        "name": "zip",
        "namespace": "com.acme.Order.home",
        "fields": [{"name": "code", "type": "string"}],
    }


@pytest.mark.parametrize(
    ("precision", "size"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (9, 4), (10, 5), (18, 8), (19, 9), (37, 16), (38, 16)]
)
def test_a_decimal_is_a_fixed_type_of_sparks_size_and_name(precision: int, size: int) -> None:
    assert only_type(pa.decimal128(precision, 1)) == {
        "type": "fixed",
        "name": "fixed",
        "namespace": "topLevelRecord.f",
        "size": size,
        "logicalType": "decimal",
        "precision": precision,
        "scale": 1,
    }


def test_decimals_of_arrow_that_spark_lacks_are_decimals_too() -> None:
    assert only_type(pa.decimal256(76, 2))["size"] == 32
    assert only_type(pa.decimal256(76, 2))["precision"] == 76


def test_arrays_and_maps_have_the_nullability_of_their_elements() -> None:
    assert only_type(pa.list_(pa.int64())) == {"type": "array", "items": ["null", "long"]}
    assert only_type(pa.large_list(pa.field("item", pa.int64(), False))) == {"type": "array", "items": "long"}
    assert only_type(pa.list_(pa.int64(), 3)) == {"type": "array", "items": ["null", "long"]}
    assert only_type(pa.map_(pa.string(), pa.list_(pa.string()))) == {
        "type": "map",
        "values": ["null", {"type": "array", "items": ["null", "string"]}],
    }


def test_a_column_that_is_no_struct_becomes_a_primitive_schema() -> None:
    assert derived(pa.string()) == "string"
    assert derived(pa.int64()) == "long"
    assert derived(pa.decimal128(5, 2))["namespace"] == "topLevelRecord"
    assert derived(pa.string(), nullable=True) == ["null", "string"]


def test_comments_become_docs() -> None:
    field = pa.field("amount", pa.int64(), metadata={"comment": "in cents — net"})
    assert derived(pa.struct([field]))["fields"][0]["doc"] == "in cents — net"


def test_the_same_type_has_the_same_text() -> None:
    """The text is what is registered: another text would be another version."""
    type = pa.struct([pa.field("a", pa.decimal128(4, 1), metadata={"comment": "ä"}), pa.field("b", pa.list_(pa.int8()), False)])
    assert derive_schema(type, column_name="value")[0] == (
        '{"type":"record","name":"topLevelRecord","fields":[{"name":"a","type":["null",{"type":"fixed","name":"fixed",'
        '"namespace":"topLevelRecord.a","size":2,"logicalType":"decimal","precision":4,"scale":1}],"default":null,"doc":"\\u00e4"},'
        '{"name":"b","type":{"type":"array","items":["null","int"]}}]}'
    )


# PROBLEMS


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.null(), r"value.f has the type null, which Avro lacks: .* CAST\(value.f AS STRING\)"),
        (pa.duration("us"), r"value.f has the type duration\[us\], which Avro lacks: cast it"),
        (pa.month_day_nano_interval(), "value.f has the type month_day_nano_interval, which Avro lacks: cast it"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "value.f has the type run_end_encoded.*run_end_decode"),
        (pa.uint64(), r"value.f has the type uint64.* decimal128\(20, 0\)"),
        (pa.map_(pa.int32(), pa.int32()), "value.f is a map with keys of type int32, but the keys of an Avro map are strings"),
        (pa.decimal128(3, -2), r"value.f is decimal128\(3, -2\).* CAST\(value.f AS DECIMAL\(5, 0\)\)"),
        (pa.decimal128(3, 5), r"value.f is decimal128\(3, 5\).* CAST\(value.f AS DECIMAL\(5, 5\)\)"),
        (pa.list_(pa.null()), r"value.f\[\*\] has the type null"),
        (pa.struct([("größe", pa.int32())]), r"value.f has a field 'größe', .* `größe` AS gr__e"),
        (pa.struct([("1st", pa.int32())]), "value.f has a field '1st', .* `1st` AS _1st"),
        (pa.struct([("a", pa.int32()), ("a", pa.int64())]), "value.f has more than one field 'a'"),
    ],
)
def test_what_avro_lacks_is_a_problem_with_column_and_cast(type: pa.DataType, expected: str) -> None:
    (problem,) = problems_of(pa.struct([pa.field("f", type)]))
    assert re.search(expected, problem), problem


def test_a_variant_is_a_problem_with_the_function_that_helps() -> None:
    variant = pa.struct(
        [
            pa.field("value", pa.binary(), False),
            pa.field("metadata", pa.binary(), False, metadata={"variant": "true"}),
        ]
    )
    (problem,) = problems_of(pa.struct([pa.field("f", variant)]))
    assert "value.f is a variant" in problem
    assert "to_json(value.f)" in problem


def test_all_problems_are_found_at_once() -> None:
    problems = problems_of(pa.struct([("a b", pa.null()), ("c", pa.duration("s"))]), name="1x", namespace="com..acme")
    assert len(problems) == 5


def test_names_of_columns_are_shown_escaped() -> None:
    """A line break, or a terminal's control sequence, came into the error and the log as it was."""
    evil = pa.struct([("a\nERROR \x1b[31m", pa.struct([("b\r", pa.null())]))])
    problems = problems_of(evil)
    assert len(problems) == 3
    assert all(problem.isprintable() for problem in problems)
