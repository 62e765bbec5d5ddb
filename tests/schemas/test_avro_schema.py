"""Avro's schema language: names, references, logical types; text from anywhere is an error in words, and never more."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.schemas import avro_schema
from spark_kafka_sink.schemas.avro.defaults import DefaultEncoder
from spark_kafka_sink.schemas.avro_schema import (
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroName,
    AvroPrimitive,
    AvroRecord,
    AvroUnion,
    LogicalType,
    parse_schema,
)


def parsed(schema: Any, **references: Any) -> Any:
    return parse_schema(json.dumps(schema), {name: json.dumps(text) for name, text in references.items()})


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def refusal(text: str, *, checks_names: bool = False, **references: str) -> str:
    with pytest.raises(SchemaError) as caught:
        parse_schema(text, references, checks_names=checks_names)
    return caught.value.message


def test_a_schema_has_all_that_its_text_declares() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A", "aliases": ["Old"], "doc": "an enum"}
    schema = record(
        "R",
        field("i", "int", default=3, aliases=["j"], doc="a field"),
        field("e", enum),
        field("f", {"type": "fixed", "name": "other.F", "size": 4}),
        field("a", {"type": "array", "items": ["null", "string"]}, default=None),
        field("m", {"type": "map", "values": {"type": "bytes"}}),
        namespace="shop",
        aliases=["S", "far.away.T"],
        doc="a record",
    )
    assert parsed(schema) == AvroRecord(
        AvroName("shop", "R"),
        (
            AvroField("i", AvroPrimitive("int"), "3", ("j",)),
            AvroField("e", AvroEnum(AvroName("shop", "E"), ("A", "B"), "A")),
            AvroField("f", AvroFixed(AvroName("other", "F"), 4)),
            AvroField("a", AvroArray(AvroUnion((AvroPrimitive("null"), AvroPrimitive("string")))), "null"),
            AvroField("m", AvroMap(AvroPrimitive("bytes"))),
        ),
    )


def test_a_schema_can_be_pickled_and_hashed() -> None:
    schema = parsed(record("R", field("x", ["null", "long"], default=None), field("y", "string", default="z")))
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert hash(schema) == hash(pickle.loads(pickle.dumps(schema)))


# NAMES


@pytest.mark.parametrize(
    ("inner", "reference"),
    [
        (record("I"), "I"),
        (record("I"), "a.I"),
        (record("I", namespace="b"), "b.I"),
        (record("b.I", namespace="ignored"), "b.I"),
        (record("I", namespace=""), "I"),
    ],
)
def test_a_name_is_found_in_its_namespace(inner: Any, reference: str) -> None:
    outer = parsed(record("R", field("x", inner), field("y", reference), namespace="a"))
    assert outer.fields[1].schema == outer.fields[0].schema


def test_types_inside_a_type_inherit_its_namespace() -> None:
    outer = parsed(record("a.b.R", field("x", record("c.S", field("y", {"type": "fixed", "name": "F", "size": 1})))))
    assert outer.fields[0].schema.fields[0].schema.name == AvroName("c", "F")


def test_a_name_of_another_namespace_is_not_found() -> None:
    assert "type a.I is not declared" in refusal(json.dumps(record("a.R", field("x", record("b.I")), field("y", "I"))))


def test_letters_beyond_ascii_are_letters() -> None:
    assert parsed(record("Größe", field("straße", "int"))).fields[0].name == "straße"


FORBIDDEN_NAMES = [
    ('{"type": "record", "name": "1R", "fields": []}', "the name of a type must consist of letters"),
    ('{"type": "record", "name": "hm-motor", "fields": []}', "the name of a type must consist of letters"),
    ('{"type": "record", "name": "a..R", "fields": []}', "namespace a. must consist of letters"),
    ('{"type": "record", "name": "R\\n", "fields": []}', "the name of a type must consist of letters"),
    (
        '{"type": "record", "name": "R", "namespace": "dev-01.shop", "fields": []}',
        "namespace dev-01.shop must consist of letters",
    ),
    (
        '{"type": "record", "name": "R", "fields": [{"name": "x y", "type": "int"}]}',
        "the name of field 0 must consist of letters",
    ),
    ('{"type": "enum", "name": "E", "symbols": ["A-B"]}', "a symbol must consist of letters"),
]


@pytest.mark.parametrize(("text", "problem"), FORBIDDEN_NAMES, ids=range(len(FORBIDDEN_NAMES)))
def test_names_that_avro_forbids_are_an_error_only_where_they_would_be_registered(text: str, problem: str) -> None:
    """Registries hold such names: `dev-01.shop` and `hm-motor` are in use, and could not be written with."""
    parse_schema(text)
    assert problem in refusal(text, checks_names=True)


def test_types_with_forbidden_names_are_found_as_others_are() -> None:
    inner = record("hm-motor", field("x y", "int"))
    outer = parsed(record("dev-01.shop.R", field("a", inner), field("b", "hm-motor"), field("c", "dev-01.shop.hm-motor")))
    assert {str(each.schema.name) for each in outer.fields} == {"dev-01.shop.hm-motor"}
    assert outer.fields[0].schema.fields[0].name == "x y"


COMMENTED = """// Orders of the shop
{"type": "record", /* the "name" { */ "name": "R", // and "so on
 "fields": [{"name": "x", "type": "string", "default": "http://a /* no comment */ \\"//"}/**/]}
/* the end"""


def test_comments_are_ignored_as_in_java() -> None:
    assert parse_schema(COMMENTED).fields[0].default == '"http://a /* no comment */ \\"//"'
    assert "it is not JSON" in refusal('{"type": /"int"}')
    assert "it is not JSON" in refusal("/" * 100_000)


@pytest.mark.parametrize("text", ["/*" * 1_000_000, '"' + '\\"' * 1_000_000 + "\\", "//" * 1_000_000, '"//\\'])
def test_comments_that_do_not_end_are_read_once(text: str) -> None:
    assert "it is not JSON" in refusal(text)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1.5", "+2", "-.5e3", "7."])
def test_the_default_of_a_float_may_be_a_number_in_quotes(kind: str, text: str) -> None:
    """Java's client writes a default NaN in quotes, and its parser reads it so. "NaN" was no double."""
    schema = parsed(record("R", field("x", kind, default=text)))
    octets = DefaultEncoder().encode(schema.fields[0])
    assert struct.unpack("<f" if kind == "float" else "<d", octets) == pytest.approx((float(text),), nan_ok=True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("double", "nan"), ("double", "x"), ("double", "1_0"), ("double", ""), ("int", "1"), (["double", "null"], "NaN")],
)
def test_other_text_is_no_number(kind: Any, text: str) -> None:
    schema = parsed(record("R", field("x", kind, default=text)))
    with pytest.raises(ValueError, match=r"is no|fits no branch"):
        DefaultEncoder().encode(schema.fields[0])


def test_a_long_text_that_is_no_number_is_read_once() -> None:
    schema = parsed(record("R", field("x", "double", default="1" * 3_000_000 + "x")))
    assert len(schema.fields[0].default) == 3_000_003


def test_references_are_found_by_name_and_may_refer_on() -> None:
    schema = record("a.R", field("x", "B"), field("y", "c.C"))
    avro_record = parse_schema(
        json.dumps(schema), {"a.B": json.dumps(record("a.B", field("c", "c.C"))), "c.C": json.dumps(record("c.C"))}
    )
    assert avro_record.fields[1].schema == avro_record.fields[0].schema.fields[0].schema == AvroRecord(AvroName("c", "C"), ())


def test_a_type_inside_a_reference_is_found_too() -> None:
    avro_record = parsed(record("R", field("x", "Inner")), Outer=record("Outer", field("y", record("Inner"))))
    assert avro_record.fields[0].schema == AvroRecord(AvroName("", "Inner"), ())


@pytest.mark.parametrize("links", [{"N": None}, {"N": "M", "M": "N"}])
def test_a_schema_that_contains_itself_is_refused(links: dict[str, str | None]) -> None:
    references = {name: json.dumps(record(name, field("next", ["null", to or name]))) for name, to in links.items()}
    assert "record N contains itself, which a column cannot" in refusal(references.pop("N"), **references)


# LOGICAL TYPES


@pytest.mark.parametrize(
    ("type", "name"),
    [
        *(("int", name) for name in ("date", "time-millis")),
        *(("long", f"{kind}-{unit}") for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
        *(("long", "time-micros"), ("string", "uuid")),
    ],
)
def test_a_logical_type_is_kept(type: str, name: str) -> None:
    assert parsed({"type": type, "logicalType": name}) == AvroPrimitive(type, LogicalType(name))


@pytest.mark.parametrize(
    "attributes",
    [
        {"type": "long", "logicalType": "date"},
        {"type": "int", "logicalType": "timestamp-millis"},
        {"type": "string", "logicalType": "unheard-of"},
        {"type": "string", "logicalType": ["uuid"]},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": "9"},
        {"type": "bytes", "logicalType": "decimal", "precision": True},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1},
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10},
        {"type": "fixed", "name": "F", "size": 15, "logicalType": "uuid"},
        {"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"},
    ],
)
def test_a_logical_type_that_does_not_fit_is_ignored(attributes: dict[str, Any]) -> None:
    assert parsed(attributes).logical is None


@pytest.mark.parametrize(("size", "digits"), [(1, 2), (4, 9), (8, 18), (16, 38)])
def test_a_fixed_holds_decimals_of_so_many_digits(size: int, digits: int) -> None:
    fixed = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal"}
    assert parsed({**fixed, "precision": digits}).logical == LogicalType("decimal", digits)
    assert parsed({**fixed, "precision": digits + 1}).logical is None


# ERRORS

NOT_A_SCHEMA = [
    ("", "it is not JSON"),
    ("string", "it is not JSON"),
    ("3", "a type is a name, a list or an object, not 3"),
    ('{"type": {"type": "int"}}', '"type" must be a name here, not an object'),
    ('{"type": "record", "name": "R"}', '"fields" is missing'),
    ('{"type": "record", "fields": []}', '"name" is missing'),
    ('{"type": "record", "name": "R", "fields": {}}', '"fields" must be a list'),
    ('{"type": "record", "name": "R", "fields": [3]}', "field 0 must be an object"),
    ('{"type": "record", "name": "R", "fields": [{"name": "x"}]}', '"type" is missing'),
    ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', "the name of field 0 must be a text"),
    ('{"type": "record", "name": "R", "fields": [{"name": "", "type": "int"}]}', 'the name of field 0 must be a text: ""'),
    ('{"type": "fixed", "name": "a.", "size": 1}', "the name of a type must be a text"),
    ('{"type": "enum", "name": "E", "symbols": [7]}', "a symbol must be a text: 7"),
    ('{"type": "enum", "name": "E", "symbols": ["\\ud800"]}', "a symbol must be a text"),
    ('{"type": "record", "name": "R", "namespace": 3, "fields": []}', '"namespace" must be a string'),
    ('{"type": "fixed", "name": "int", "size": 1}', "int is a type of Avro"),
    ('{"type": "fixed", "name": "F", "size": -1}', 'the "size" of fixed F must be a number of bytes, not -1'),
    ('{"type": "fixed", "name": "F", "size": true}', "not true"),
    ('{"type": "enum", "name": "E", "symbols": []}', '"symbols" must be a list of names'),
    ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "there are several symbols A"),
    ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "the default of enum E is none of its symbols"),
    ('{"type": "array"}', '"items" is missing'),
    ('{"type": "map", "values": "nothing"}', "the schema, values: type nothing is not declared"),
    ("[]", "the union has no branch"),
    ('["int", ["null"]]', "the schema, branch 1: a union may not contain a union"),
    ('["int", {"type": "int", "logicalType": "date"}]', "there are several branches of type int"),
    ('[{"type": "map", "values": "int"}, {"type": "map", "values": "long"}]', "there are several branches of type map"),
    (
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "record", "name": "R", "fields": []}}]}',
        "the schema, field x: type R is declared more than once",
    ),
    (
        '[{"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2}]',
        "type F is declared more than once",
    ),
    ('{"type": "fixed", "name": "F", "size": 1, "x": NaN}', "NaN is no JSON"),
]


@pytest.mark.parametrize(("text", "problem"), NOT_A_SCHEMA, ids=range(len(NOT_A_SCHEMA)))
def test_text_that_is_no_schema_is_an_error_in_words(text: str, problem: str) -> None:
    assert problem in refusal(text)


def test_an_error_says_where() -> None:
    schema = record("R", field("x", {"type": "array", "items": ["null", record("S", field("y", "z"))]}))
    assert refusal(json.dumps(schema)) == (
        "the schema, field x, items, branch 1, field y: type z is not declared before it is used"
    )


def test_two_fields_of_one_name_are_an_error() -> None:
    assert "there are several fields x" in refusal(json.dumps(record("R", field("x", "int"), field("x", "long"))))


# LIMITS


def arrays(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


def test_types_may_be_nested_so_deep_and_no_deeper() -> None:
    parse_schema(arrays(avro_schema.MAX_DEPTH))
    assert "records, arrays and maps are nested more than 64 deep" in refusal(arrays(avro_schema.MAX_DEPTH + 1))


def test_unions_add_no_depth() -> None:
    nested: Any = "int"
    for number in range(avro_schema.MAX_DEPTH):
        nested = record(f"R{number}", field("x", ["null", nested]))
    parse_schema(json.dumps(nested))
    assert "more than 64 deep" in refusal(json.dumps({"type": "map", "values": nested}))


@pytest.mark.parametrize("text", ["[" * 200_000, arrays(100_000), '{"type":"record","name":"R","fields":' + "[" * 100_000])
def test_text_of_any_depth_is_an_error_and_not_a_crash(text: str) -> None:
    assert "nested" in refusal(text)


def test_references_count_for_the_depth() -> None:
    references = {f"A{number}": json.dumps(record(f"A{number}", field("x", f"A{number + 1}"))) for number in range(1000)}
    message = refusal('"A0"', **references)
    assert "nested more than 64 deep" in message
    assert len(message) < 500


def test_a_type_that_is_used_again_is_as_deep_as_where_it_was_declared() -> None:
    """Only the types around a declaration counted. A schema of 23 KB, in which each record has the one before it at its bottom,
    was 6 times as deep, and a RecursionError on the driver."""

    def chain(number: int, bottom: Any, depth: int) -> Any:
        for level in range(depth):
            bottom = record(f"C{number}_{level}", field("x", bottom))
        return bottom

    def schema_of(depth: int) -> str:
        links = [chain(number, f"C{number - 1}_{depth - 1}" if number else "int", depth) for number in range(3)]
        return json.dumps(record("R", *(field(f"f{number}", each) for number, each in enumerate(links))))

    parse_schema(schema_of(21))  # 1 + 3 * 21 deep
    assert "nested more than 64 deep" in refusal(schema_of(22))


def test_references_may_be_as_deep_as_other_types() -> None:
    """The types of a reference counted once where it was parsed and once where it was used, so 14 references in each other were
    "more than 20,000 types"."""
    references = {f"A{number}": json.dumps(record(f"A{number}", field("x", f"A{number + 1}"))) for number in range(63)}
    parse_schema('"A0"', references | {"A63": json.dumps(record("A63", field("x", "int")))})


def test_a_schema_that_doubles_with_each_name_is_refused() -> None:
    doubled = [record(f"T{n}", *(field(f"f{i}", f"T{n - 1}" if n else "int") for i in range(2))) for n in range(40)]
    outer = record("R", *(field(f"x{n}", each) for n, each in enumerate(doubled)))
    assert "the schema has more than 20,000 types" in refusal(json.dumps(outer))


def test_text_may_have_so_many_characters() -> None:
    assert "it has 4,000,001 characters; the limit is 4,000,000" in refusal(" " * 4_000_001)


def test_hostile_names_are_shown_on_one_short_line() -> None:
    message = refusal(json.dumps({"type": "x\n\u202e" * 10_000}))
    assert message.isprintable()
    assert len(message) < 1500
