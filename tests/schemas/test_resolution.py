"""Which Arrow type fits which schema; all that keeps them apart is told at once, with both sides in the words."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.producer.avro.avro_rows import python_rows
from spark_kafka_sink.schemas.avro import defaults
from spark_kafka_sink.schemas.avro_schema import parse_schema
from spark_kafka_sink.schemas.resolution import resolve_column
from tests.schemas.avro.rows import encoded, encoder_for, problems_of


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
DECIMAL = logical("bytes", "decimal", precision=10, scale=2)
UTC = pa.timestamp("us", "UTC")

DO_NOT_FIT: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), "int"),
    (pa.uint32(), "int"),
    (pa.int32(), "float"),
    (pa.int32(), "double"),
    (pa.float64(), "float"),
    (pa.float32(), "int"),
    (pa.bool_(), "int"),
    (pa.string(), "bytes"),
    (pa.binary(), "string"),
    (pa.binary(), ENUM),
    (pa.int32(), ENUM),
    (pa.string(), FIXED),
    (pa.binary(5), FIXED),
    (pa.int64(), logical("long", "timestamp-micros")),
    (pa.int32(), logical("int", "date")),
    (pa.date32(), "int"),
    (UTC, "long"),
    (UTC, logical("long", "local-timestamp-micros")),
    (pa.timestamp("us"), logical("long", "timestamp-micros")),
    (UTC, logical("int", "date")),
    (pa.time64("us"), logical("long", "timestamp-micros")),
    (pa.decimal128(10, 3), DECIMAL),
    (pa.decimal128(11, 2), DECIMAL),
    (pa.decimal128(10, 2), "bytes"),
    (pa.binary(), DECIMAL),
    (pa.int64(), DECIMAL),
    (pa.binary(), logical("string", "uuid")),
    (pa.list_(pa.int32()), {"type": "map", "values": "int"}),
    (pa.map_(pa.int32(), pa.int32()), {"type": "map", "values": "int"}),
    (pa.map_(pa.string(), pa.int32()), {"type": "array", "items": "int"}),
    (pa.struct([]), "string"),
    (pa.string(), record()),
    (pa.duration("us"), "long"),
    (pa.month_day_nano_interval(), "string"),
    (pa.int32(), "null"),
    (pa.null(), "int"),
]


@pytest.mark.parametrize(("type", "schema"), DO_NOT_FIT, ids=[f"{type}-{schema}"[:70] for type, schema in DO_NOT_FIT])
def test_a_type_that_does_not_fit_is_one_problem_with_both_sides(type: pa.DataType, schema: Any) -> None:
    [problem] = problems_of(type, schema)
    assert problem.startswith(f"column value has type {type}, and the schema has ")
    [below] = problems_of(
        pa.struct([("x", pa.list_(type))]), record(field("x", {"type": "array", "items": schema}), name="Outer")
    )
    assert below.startswith(f"column value.x[*] has type {type}, and the schema has ")


def test_problems_are_read_as_sentences() -> None:
    type = pa.struct([("id", pa.int64()), ("address", pa.struct([("zip", pa.string())])), ("Total", pa.float64())])
    address = record(field("zip", "int"), field("city", "string"), name="Address")
    schema = record(field("id", "int"), field("address", address), field("total", "double"))
    assert problems_of(type, schema) == [
        "column value.Total is no field of record R, which has id, address, total; leave the column out, or add a field with a"
        " default to the schema",
        "column value.id has type int64, and the schema has int there; cast the column to int, or change the schema",
        "column value.address.zip has type string, and the schema has int there; cast the column to int, or change the schema",
        "the schema's field address.city (string) needs a column, as it has no default; the columns are zip; add it, or give the"
        " field a default in the schema",
        "the schema's field total (double) needs a column, as it has no default; the columns are id, address, Total; rename"
        " Total to total, if it is meant",
    ]


@pytest.mark.parametrize(
    ("type", "schema", "remedy"),
    [
        (pa.int32(), "long", None),
        (pa.int64(), logical("long", "timestamp-millis"), "cast the column to timestamp,"),
        (UTC, logical("long", "local-timestamp-millis"), "cast the column to timestamp_ntz,"),
        (pa.int64(), DECIMAL, "cast the column to decimal(10,2),"),
        (pa.string(), FIXED, "cast the column to binary, with 4 bytes in each row"),
        (pa.int8(), ENUM, "cast the column to string"),
        (pa.int8(), "null", "leave the column out"),
        (pa.int8(), record(), "make the column a struct"),
        (pa.int8(), {"type": "array", "items": "int"}, "make the column an array"),
        (pa.int8(), {"type": "map", "values": "int"}, "make the column a map with string keys"),
    ],
)
def test_a_problem_names_the_remedy(type: pa.DataType, schema: Any, remedy: str | None) -> None:
    problems = problems_of(type, schema)
    assert [remedy in problem for problem in problems] == ([] if remedy is None else [True])


# RECORDS


def test_fields_are_found_by_name_in_any_order() -> None:
    column = pa.array([{"b": 1, "a": 2}], pa.struct([("b", pa.int32()), ("a", pa.int32())]))
    assert encoded(column, record(field("a", "int"), field("b", "int"))) == [b"\x04\x02"]


def test_a_column_that_is_there_twice_is_a_problem() -> None:
    type = pa.struct([("a", pa.int32()), ("a", pa.int32())])
    assert problems_of(type, record(field("a", "int"))) == ["column value.a is there several times; name the columns differently"]


def test_a_column_with_an_alias_for_name_is_shown_the_field() -> None:
    [extra, missing] = problems_of(pa.struct([("old", pa.int32())]), record(field("new", "int", aliases=["old"])))
    assert "column value.old is no field" in extra
    assert missing.endswith("rename old to new, if it is meant")


DEFAULTS: list[tuple[Any, Any, bytes]] = [
    ("null", None, b""),
    ("boolean", True, b"\x01"),
    ("int", -2, b"\x03"),
    ("long", 2**40, bytes.fromhex("808080808040")),
    ("float", 1.5, bytes.fromhex("0000c03f")),
    ("double", 2, bytes.fromhex("0000000000000040")),
    ("string", "é", b"\x04\xc3\xa9"),
    ("bytes", "\u00ff\u0000", b"\x04\xff\x00"),
    (["null", "int"], None, b"\x00"),
    (["null", "int"], 3, b"\x02\x06"),
    (["int", "string"], "x", b"\x02\x02x"),
    (ENUM, "A", b"\x00"),
    (FIXED, "\u00ffabc", b"\xffabc"),
    ({"type": "array", "items": "int"}, [], b"\x00"),
    ({"type": "array", "items": "int"}, [1, 2], b"\x04\x02\x04\x00"),
    ({"type": "map", "values": "int"}, {"k": 1}, b"\x02\x02k\x02\x00"),
    (record(field("x", "int"), field("y", "int", default=7), name="S"), {"x": 1}, b"\x02\x0e"),
    (record(field("x", "int", default=1), name="S"), {}, b"\x02"),
]


@pytest.mark.parametrize(("type", "default", "octets"), DEFAULTS, ids=range(len(DEFAULTS)))
def test_a_default_fills_a_field_without_a_column(type: Any, default: Any, octets: bytes) -> None:
    column = pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int32())]))
    schema = record(field("a", "int"), field("b", type, default=default))
    assert encoded(column, schema) == [b"\x02" + octets, None, b"\x04" + octets]


NO_DEFAULTS: list[tuple[Any, Any, str]] = [
    ("int", "3", '"3" is no int'),
    ("int", 2**31, "2147483648 is no int"),
    ("int", 1.5, "1.5 is no int"),
    ("int", True, "true is no int"),
    ("boolean", 1, "1 is no boolean"),
    ("long", 1e300, "1e+300 is no long"),
    ("float", 1e300, "1e+300 is no float"),
    ("double", 10**400, "is no double"),
    ("string", None, "null is no string"),
    ("bytes", "\u0100", "has characters beyond 255, which are no bytes"),
    ("string", "\ud800", "can't encode"),
    (FIXED, "abc", '"abc" is no fixed F of 4 bytes'),
    (ENUM, "B", '"B" is no enum E'),
    (["null", "int"], "x", '"x" fits no branch of the union of null, int'),
    ({"type": "array", "items": "int"}, [1, None], "null is no int"),
    (record(field("x", "int"), name="S"), {}, "it lacks field x"),
    (record(field("x", "int"), name="S"), [], "[] is no record S"),
]


@pytest.mark.parametrize(("type", "default", "reason"), NO_DEFAULTS, ids=range(len(NO_DEFAULTS)))
def test_a_default_that_does_not_fit_is_a_problem(type: Any, default: Any, reason: str) -> None:
    [problem] = problems_of(pa.struct([]), record(field("b", type, default=default)))
    assert problem.startswith("the default of the schema's field b cannot be written: ")
    assert reason in problem


def record_of(fields: int) -> dict[str, Any]:
    return record(*(field(f"a{number}", "int", default=1) for number in range(fields)), name="S")


TOO_MUCH_WORK = "cannot be written: the defaults of the schema take more than 1,000,000 steps to encode"


@pytest.mark.parametrize("kind", ["array", "union"])
def test_a_default_that_asks_for_hours_of_work_is_a_problem(kind: str) -> None:
    """A schema of 100 KB, with an array of 1,000 records of which each has 9,000 defaults, was encoded for a minute; one of
    4 MB would have been for a day."""
    items = {"type": "array", "items": record_of(9_000)}
    schema = record(field("b", items if kind == "array" else [items, "null"], default=[{}] * 1_000))
    [problem] = problems_of(pa.struct([]), schema)
    assert problem.endswith(TOO_MUCH_WORK)


def test_many_defaults_that_each_ask_for_seconds_of_work_are_a_problem() -> None:
    """The limit was for each default: 87 KB with 15 of them were planned for 24 s."""
    first = field("b0", {"type": "array", "items": record_of(1_000)}, default=[{}] * 300)
    others = [field(f"b{number}", {"type": "array", "items": "S"}, default=[{}] * 300) for number in range(1, 15)]
    schema = record(first, *others)
    problems = problems_of(pa.struct([]), schema)
    assert problems[0] == f"the default of the schema's field b1 {TOO_MUCH_WORK}"
    with pytest.raises(SchemaError, match=TOO_MUCH_WORK):
        python_rows(parse_schema(json.dumps(schema)), "value")


def test_branches_that_a_default_does_not_fit_are_work_too() -> None:
    """Each union in a branch is tried again for each branch around it: 2 to the power of their depth, for each item."""
    schema: Any = "string"
    default: Any = ""
    for depth in range(11):
        branch_names = [branch["name"] for branch in schema] if isinstance(schema, list) else schema
        first = record(field("f", schema), field("z", "int"), name=f"A{depth}")
        schema = [first, record(field("f", branch_names), name=f"B{depth}")]
        default = {"f": default}
    items = field("b", {"type": "array", "items": schema}, default=[default] * 300)
    [problem] = problems_of(pa.struct([]), record(items))
    assert problem.endswith(TOO_MUCH_WORK)


def test_a_long_default_that_many_branches_refuse_is_not_shown_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON of a megabyte was made 2,000 times, for an error that nobody sees."""
    branches = [{"type": "fixed", "name": f"F{number}", "size": number} for number in range(2_000)]
    schema = record(field("b", [*branches, {"type": "array", "items": "int"}], default=[1] * 300_000))
    shown: list[object] = []
    monkeypatch.setattr(defaults, "printable", lambda text, *_: shown.append(text) or str(text))
    assert problems_of(pa.struct([]), schema) == [f"the default of the schema's field b {TOO_MUCH_WORK}"]
    assert shown == ["b"]


def test_a_symbol_far_behind_in_an_enum_is_work_too() -> None:
    symbols = [f"S{number}" for number in range(100_000)]
    enum = {"type": "enum", "name": "E", "symbols": symbols}
    schema = record(field("b", {"type": "array", "items": enum}, default=symbols[-1:] * 10_000))
    [problem] = problems_of(pa.struct([]), schema)
    assert problem.endswith(TOO_MUCH_WORK)


def test_the_defaults_of_a_large_schema_are_no_problem() -> None:
    """6,000 fields, 20 deep: each record's default uses those of all below, and each is checked on its way to the top."""
    schema: Any = "int"
    default: Any = 1
    for depth in range(20):
        fields = [field(f"a{number}", ["null", "string"], default=None) for number in range(300)]
        schema = record(*fields, field("below", schema, default=default), name=f"R{depth}")
        default = {}
    assert problems_of(pa.struct([]), schema) == []
    assert python_rows(parse_schema(json.dumps(schema)), "value").take({})[0]["a0"] is None


def test_a_default_beyond_all_numbers_is_a_problem() -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "b", "type": "long", "default": 1e400}]}'
    _, problems = resolve_column(pa.struct([]), parse_schema(text), column_name="value", truncates_timestamps=False)
    assert problems == ["the default of the schema's field b cannot be written: Infinity is no long"]


# UNIONS


@pytest.mark.parametrize("schema", [["null", "long"], ["long", "null"]])
def test_null_may_stand_in_either_place_of_a_union(schema: Any) -> None:
    column = pa.array([{"x": None}, {"x": 1}], pa.struct([("x", pa.int64())]))
    null, value = (bytes([2 * schema.index(name)]) for name in ("null", "long"))
    assert encoded(column, record(field("x", schema))) == [null, value + b"\x02"]


def test_a_union_of_several_types_takes_the_one_that_fits() -> None:
    column = pa.array([{"x": "a"}, {"x": None}], pa.struct([("x", pa.string())]))
    assert encoded(column, record(field("x", ["int", "null", FIXED, "string"]))) == [b"\x06\x02a", b"\x02"]


@pytest.mark.parametrize(
    ("type", "branch"), [(pa.int32(), 2), (pa.int16(), 2), (pa.int64(), 0), (pa.float32(), 4), (pa.float64(), 1)]
)
def test_of_two_numbers_in_a_union_the_one_that_needs_no_widening_is_taken(type: pa.DataType, branch: int) -> None:
    column = pa.array([{"x": 1}], pa.struct([("x", type)]))
    [written] = encoded(column, record(field("x", ["long", "double", "int", "null", "float"])))
    assert written[0] == 2 * branch


@pytest.mark.parametrize(("type", "fits"), [(pa.float64(), "it fits none"), (pa.string(), "it fits string, enum E")])
def test_a_union_that_is_no_single_choice_is_a_problem(type: pa.DataType, fits: str) -> None:
    [problem] = problems_of(type, ["null", "int", "long", "string", ENUM])
    assert problem == (
        f"column value has type {type}, which must fit exactly one branch of the schema's union of null, int, long, string,"
        f" enum E; {fits}"
    )


def test_problems_inside_the_only_branch_besides_null_are_named_in_the_error() -> None:
    type = pa.struct([("x", pa.struct([("y", pa.int64())]))])
    [problem] = problems_of(type, record(field("x", ["null", record(field("y", "int"), name="S")])))
    assert problem.startswith("column value.x.y has type int64, and the schema has int there")


def test_a_column_of_nulls_fits_a_union_with_null() -> None:
    column = pa.array([{"x": None}], pa.struct([("x", pa.null())]))
    assert encoded(column, record(field("x", ["string", "null"]))) == [b"\x02"]


def test_rows_of_a_column_may_be_null_whatever_the_schema_says() -> None:
    for schema in ("long", ["null", "long"], ["long", "null"]):
        assert encoded(pa.array([None], pa.int64()), schema) == [None]


def test_a_dictionary_and_an_extension_resolve_as_their_values() -> None:
    uuid = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    dictionary = pa.dictionary(pa.int32(), pa.large_string())
    assert encoder_for(dictionary, "string").encoding == encoder_for(pa.large_string(), "string").encoding
    assert encoder_for(pa.uuid(), uuid).encoding == encoder_for(pa.binary(16), uuid).encoding
