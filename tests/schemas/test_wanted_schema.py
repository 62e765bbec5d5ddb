"""wanted_schema.py: which schema keys and values have, what is asked for it, and what keeps it from being used."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_kafka_sink.config.format_options import (
    AVRO,
    FRAMED,
    ID,
    LATEST,
    TEXT,
    VERSION,
    PartOptions,
    SchemaReference,
    SchemaUse,
)
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.schemas.avro_schema import PRIMITIVES
from spark_kafka_sink.schemas.known_schemas import KnownSchemas
from spark_kafka_sink.schemas.registry import RegisteredSchema
from spark_kafka_sink.schemas.registry_errors import INCOMPATIBLE, SCHEMA_NOT_FOUND, WRITE_RULE, RegistryError
from spark_kafka_sink.schemas.wanted_schema import WantedSchema, plan_schema
from tests.fakes.registry_config import registry_config
from tests.schemas.fake_registry import FakeRegistry

ROW = pa.struct([pa.field("id", pa.int64(), nullable=False)])
ROW_TEXT = '{"type":"record","name":"topLevelRecord","fields":[{"name":"id","type":"long"}]}'
WIDER_TEXT = ROW_TEXT.replace("}]}", '},{"name":"note","type":["null","string"],"default":null}]}')
OTHER_TEXT = ROW_TEXT.replace("topLevelRecord", "Other")
LATEST_SCHEMA, TEXT_SCHEMA = SchemaReference(LATEST), SchemaReference(TEXT, text=ROW_TEXT)


pytestmark = pytest.mark.usefixtures("process_that_knows_no_schema")


@pytest.fixture
def known_schemas(registry: FakeRegistry) -> Iterator[KnownSchemas]:
    with KnownSchemas(config(registry.url)) as schemas:
        yield schemas


def config(url: str = "http://localhost:1", **more: str) -> RegistryConfig:
    return registry_config({"schema.registry.url": url} | {key.replace("__", "."): each for key, each in more.items()})


def planned(type: pa.DataType = ROW, settings: RegistryConfig | None = None, **options: Any) -> WantedSchema:
    problems: list[str] = []
    wanted_schema = plan_schema(PartOptions(**{"part": "value", "format": AVRO} | options), type, settings or config(), problems)
    assert problems == []
    return wanted_schema


def problems_of(type: pa.DataType = ROW, settings: RegistryConfig | None = None, **options: Any) -> list[str]:
    problems: list[str] = []
    plan_schema(PartOptions(**{"part": "value", "format": AVRO} | options), type, settings or config(), problems)
    return problems


# THE SUBJECT


@pytest.mark.parametrize(
    ("strategy", "options", "subject", "needs_topic"),
    [
        ("TopicNameStrategy", {}, "t-value", True),
        ("RecordNameStrategy", {}, "topLevelRecord", False),
        ("TopicRecordNameStrategy", {}, "t-topLevelRecord", True),
        ("RecordNameStrategy", {"record_name": "Order", "record_namespace": "a.b"}, "a.b.Order", False),
        ("RecordNameStrategy", {"schema": SchemaReference(TEXT, text=OTHER_TEXT)}, "Other", False),
        ("TopicNameStrategy", {"subject": "s"}, "s", False),
        ("TopicNameStrategy", {"schema": SchemaReference(ID, 7)}, "", False),
        ("RecordNameStrategy", {"schema": SchemaReference(ID, 7), "type": pa.string()}, "", False),
    ],
)
def test_the_subject_is_named_by_option_or_strategy(
    strategy: str, options: dict[str, Any], subject: str, needs_topic: bool
) -> None:
    part = planned(settings=config(value__subject__name__strategy=strategy), **options)
    assert (part.subject_of("t"), part.needs_topic) == (subject, needs_topic)


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "the {part} is string: set {part}Subject, or write a struct"),
        (LATEST_SCHEMA, "the {part} is string: set {part}Subject, or write a struct"),
        (SchemaReference(TEXT, text='"string"'), "{part}Schema is none: set {part}Subject"),
    ],
)
def test_a_strategy_for_records_needs_a_record(schema: SchemaReference | None, message: str, part: str) -> None:
    settings = config(**{f"{part}__subject__name__strategy": "RecordNameStrategy"})
    (problem,) = problems_of(pa.string(), settings, part=part, schema=schema)
    assert problem.endswith(message.format(part=part))


# THE SCHEMA


def test_a_derived_schema_is_registered_by_register_and_not_by_look(registry: FakeRegistry, known_schemas: KnownSchemas) -> None:
    part, problems = planned(), []
    assert part.find_encoder(known_schemas, "t", problems) is None
    assert registry.texts("t-value") == []
    encoder = part.register(known_schemas, "t")
    assert registry.texts("t-value") == [ROW_TEXT]
    assert encoder.use == SchemaUse("value", "t-value", 1, 1)
    assert encoder.encode(pa.array([{"id": 1}, None], ROW)).values.to_pylist() == [b"\x00\x00\x00\x00\x01\x02", None]
    assert part.find_encoder(known_schemas, "t", problems) == encoder
    assert problems == []


@pytest.mark.parametrize(
    ("options", "settings", "remedy"),
    [
        (
            {"schema": LATEST_SCHEMA},
            {},
            "register a schema there first, or name another subject with valueSubject. Without valueSchema=latest, the schema is"
            " derived from the value's column, and registered",
        ),
        (
            {"schema": LATEST_SCHEMA, "part": "key", "is_of_producer": True},
            {"use__latest__version": "true"},
            "register a schema there first, or name another subject with key.subject. Without use.latest.version=true, the"
            " schema is derived from the key's column, and registered",
        ),
        (
            {"schema": SchemaReference(VERSION, 3)},
            {"auto__register__schemas": "false"},
            "register a schema there first, or name another subject with valueSubject",
        ),
        (
            {"schema": LATEST_SCHEMA, "format": FRAMED, "type": pa.string()},
            {},
            "register a schema there first, or name another subject with valueSubject",
        ),
        (
            {"schema": SchemaReference(VERSION, 3), "subject": "s"},
            {},
            "correct valueSchema; latest is the newest version",
        ),
        (
            {"schema": SchemaReference(ID, 42)},
            {},
            "correct valueSchema. If the id is of a context, valueSubject has to name it, as :.context:subject",
        ),
    ],
    ids=str,
)
def test_the_error_of_a_schema_that_is_not_there_says_what_to_do(
    registry: FakeRegistry, known_schemas: KnownSchemas, options: dict[str, Any], settings: dict[str, str], remedy: str
) -> None:
    """With `latest`, and no schema registered yet, the error had only the registry's words: Subject 't-value' not found."""
    registry.register("s", ROW_TEXT)
    with pytest.raises(RegistryError, match=r"404.*not found; ") as raised:
        planned(settings=config(registry.url, **settings), **options).find_encoder(known_schemas, "t", [])
    assert raised.value.condition.endswith("_NOT_FOUND")
    assert raised.value.message.endswith(f"not found; {remedy}")


FORBIDDEN_TEXT = (
    '{"type":"record","name":"hm-motor","namespace":"dev-01.shop","fields":[{"name":"speed rpm","type":"long"},'
    '{"name":"state","type":{"type":"enum","name":"1st","symbols":["on/off"]},"default":"on/off"}]}'
)
FORBIDDEN_ROW = pa.struct([pa.field("speed rpm", pa.int64(), nullable=False)])


@pytest.mark.parametrize("schema", [LATEST_SCHEMA, SchemaReference(VERSION, 1), SchemaReference(ID, 1)], ids=str)
def test_names_of_a_registered_schema_are_used_as_they_are(
    registry: FakeRegistry, known_schemas: KnownSchemas, schema: SchemaReference
) -> None:
    """Registries hold names that Avro forbids. Each write with such a schema was refused."""
    registry.register("t-value", FORBIDDEN_TEXT)
    encoder = planned(FORBIDDEN_ROW, schema=schema).find_or_register(known_schemas, "t")
    assert encoder.encode(pa.array([{"speed rpm": 1}], FORBIDDEN_ROW)).values.to_pylist() == [b"\x00\x00\x00\x00\x01\x02\x00"]


@pytest.mark.parametrize("registers", ["true", "false"])
def test_names_that_avro_forbids_are_not_registered(registry: FakeRegistry, known_schemas: KnownSchemas, registers: str) -> None:
    settings = config(registry.url, auto__register__schemas=registers)
    part = planned(FORBIDDEN_ROW, settings, schema=SchemaReference(TEXT, text=FORBIDDEN_TEXT))
    if registers == "true":
        problems: list[str] = []
        assert part.find_encoder(known_schemas, "t", problems) is None
        [problem] = problems
        assert problem.endswith(
            "the schema: namespace dev-01.shop must consist of letters, digits and _, and not begin with a"
            ' digit: "dev-01" (valueSchema)'
        )
        assert registry.texts("t-value") == []
    registry.register("t-value", FORBIDDEN_TEXT)  # as another client has, whose parser does not look at names
    assert part.find_or_register(known_schemas, "t").use.id == 1


class WrongRegistry:
    """Takes another schema for the one that it is asked for, as a cache between might."""

    def __init__(self, text: str) -> None:
        self._answer = RegisteredSchema(7, 3, "t-value", "AVRO", text, {}, None)

    def lookup(self, *_: str) -> RegisteredSchema:
        return self._answer

    find_or_register = lookup


@pytest.mark.parametrize("registers", ["true", "false"])
def test_what_is_written_is_what_the_registry_has_under_the_id(registers: str) -> None:
    """Rows were encoded by the own text, with the id of whatever the registry had answered: no reader could read them."""
    part = planned(settings=config(auto__register__schemas=registers))
    with pytest.raises(SchemaError, match=r"column value .* and the schema has string there; .* \(t-value version 3 \(id 7\)\)"):
        part.find_encoder(WrongRegistry('"string"'), "t", [])
    swapped = WIDER_TEXT.replace('{"name":"id","type":"long"},', "").replace("}]}", '},{"name":"id","type":"long"}]}')
    encoder = part.find_encoder(WrongRegistry(swapped), "t", [])
    assert encoder.encode(pa.array([{"id": 1}], ROW)).values.to_pylist() == [b"\x00\x00\x00\x00\x07\x00\x02"]


def test_what_a_task_gets_is_plain_data(registry: FakeRegistry, known_schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    encoder = planned().find_encoder(known_schemas, "t", [])
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy == encoder
    assert copy.encode(pa.array([{"id": 1}], ROW)).values.to_pylist() == [b"\x00\x00\x00\x00\x01\x02"]


def structs(depth: int) -> pa.DataType:
    nested = pa.int32()
    for _ in range(depth):
        nested = pa.struct([("x", nested)])
    return nested


@pytest.mark.parametrize(
    ("type", "message"),
    [
        (structs(65), "structs, arrays and maps may be 64 deep"),
        (structs(2_000), "structs, arrays and maps may be 64 deep"),
        (pa.struct([(f"f{number}", pa.int32()) for number in range(20_000)]), "more than 20,000 types"),
    ],
)
def test_a_derived_schema_that_cannot_be_used_is_a_problem_of_planning(type: pa.DataType, message: str) -> None:
    """Such a schema was registered, and then found to be none that rows can be encoded with."""
    (problem,) = problems_of(type)
    assert message in problem


def test_a_record_cannot_have_the_name_of_a_type_alone() -> None:
    (problem,) = problems_of(record_name="double")
    assert problem == "'double' cannot name an Avro record without a namespace: it is a type of Avro"
    assert problems_of(record_name="double", record_namespace="a") == []


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_a_struct_may_be_in_a_field_named_like_a_type(known_schemas: KnownSchemas, registry: FakeRegistry, name: str) -> None:
    """Spark's to_avro names the record after the field, and Java takes it: it was registered, and then refused."""
    type = pa.struct([(name, ROW), ("list", pa.list_(pa.struct([(name, ROW)])))])
    row = {name: {"id": 7}, "list": [{name: {"id": 8}}]}
    encoded = planned(type).find_or_register(known_schemas, "t").encode(pa.array([row], type)).values[0].as_py()
    (text,) = registry.texts("t-value")
    assert fastavro.schemaless_reader(io.BytesIO(encoded[5:]), json.loads(text), None) == row


def test_structs_as_deep_as_they_may_be_are_written(known_schemas: KnownSchemas) -> None:
    value: Any = 1
    for _ in range(64):
        value = {"x": value}
    type = structs(64)
    encoder = pickle.loads(pickle.dumps(planned(type).find_or_register(known_schemas, "t")))
    encoded = encoder.encode(pa.array([value], type))
    assert encoded.values.to_pylist() == [b"\x00\x00\x00\x00\x01" + b"\x02" * 65]


def test_a_schema_that_is_not_compatible_raises_before_anything_is_registered(
    registry: FakeRegistry, known_schemas: KnownSchemas
) -> None:
    registry.register("t-value", ROW_TEXT.replace('"long"', '"string"'))
    with pytest.raises(RegistryError) as raised:
        planned().find_encoder(known_schemas, "t", [])
    assert raised.value.condition == INCOMPATIBLE
    assert len(registry.texts("t-value")) == 1


@pytest.mark.parametrize("part", ["key", "value"])
def test_without_auto_register_the_schema_must_be_there(registry: FakeRegistry, part: str) -> None:
    settings = config(registry.url, auto__register__schemas="false")
    with KnownSchemas(settings) as schemas:
        wanted_schema = planned(settings=settings, part=part)
        with pytest.raises(RegistryError, match=f"or write {part}Schema=latest$") as raised:
            wanted_schema.find_encoder(schemas, "t", [])
        assert raised.value.condition == SCHEMA_NOT_FOUND
        registry.register(f"t-{part}", ROW_TEXT)
        encoder = wanted_schema.find_encoder(schemas, "t", [])
        assert encoder is not None
        assert encoder.use == SchemaUse(part, f"t-{part}", 1, 1)


@pytest.mark.parametrize(
    ("schema", "use"),
    [
        (LATEST_SCHEMA, SchemaUse("value", "t-value", 2, 2)),
        (SchemaReference(VERSION, 1), SchemaUse("value", "t-value", 1, 1)),
        (SchemaReference(ID, 1), SchemaUse("value", "", 1, None)),
    ],
)
def test_a_named_schema_is_taken_as_it_is(
    registry: FakeRegistry, known_schemas: KnownSchemas, schema: SchemaReference, use: SchemaUse
) -> None:
    registry.register("t-value", ROW_TEXT)
    registry.register("t-value", WIDER_TEXT)
    encoder = planned(schema=schema).find_or_register(known_schemas, "t")
    assert encoder.use == use
    encoded = b"\x02" if use.id == 1 else b"\x02\x00"  # the default of the wider one is null
    assert encoder.encode(pa.array([{"id": 1}], ROW)).values.to_pylist() == [b"\x00" + use.id.to_bytes(4, "big") + encoded]


def test_one_error_names_all_differences_and_the_schema(registry: FakeRegistry, known_schemas: KnownSchemas) -> None:
    registry.register("t-value", WIDER_TEXT)
    kind, problems = pa.struct([("id", pa.string()), ("more", pa.int64())]), []
    assert planned(kind, schema=LATEST_SCHEMA).find_encoder(known_schemas, "t", problems) is None
    assert len(problems) == 2
    assert all(problem.endswith("(t-value version 1 (id 1))") for problem in problems)
    with pytest.raises(SchemaError, match="more is no field"):
        planned(kind, schema=LATEST_SCHEMA).find_or_register(known_schemas, "t")


@pytest.mark.parametrize("part", ["key", "value"])
def test_given_text_is_compared_before_the_registry_is_asked(part: str) -> None:
    (problem,) = problems_of(pa.struct([("id", pa.string())]), part=part, schema=TEXT_SCHEMA)
    assert problem.endswith(f"({part}Schema)")
    (problem,) = problems_of(part=part, schema=SchemaReference(TEXT, text='{"type":"nothing"}'))
    assert problem.startswith(f"the schema of the {part} cannot be used: ")


def test_given_text_is_registered(registry: FakeRegistry, known_schemas: KnownSchemas) -> None:
    planned(schema=TEXT_SCHEMA).find_or_register(known_schemas, "t")
    assert registry.texts("t-value") == [ROW_TEXT]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_schema_of_another_type_is_a_problem(registry: FakeRegistry, known_schemas: KnownSchemas, part: str) -> None:
    registry.register(f"t-{part}", "message A {}", schemaType="PROTOBUF")
    problems: list[str] = []
    assert planned(part=part, schema=LATEST_SCHEMA).find_encoder(known_schemas, "t", problems) is None
    assert problems == [
        f"{part}Format=avro, but t-{part} version 1 (id 1) is PROTOBUF: encode the {part} before the write, and set"
        f" {part}Format=framed"
    ]


@pytest.mark.parametrize("options", [{}, {"schema": LATEST_SCHEMA}, {"schema": LATEST_SCHEMA, "format": FRAMED}])
def test_rules_for_writing_are_never_written_around(
    registry: FakeRegistry, known_schemas: KnownSchemas, options: dict[str, Any]
) -> None:
    rule = {"name": "hide", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD"}
    registry.register("t-value", ROW_TEXT, ruleSet={"domainRules": [rule]})
    with pytest.raises(RegistryError, match="hide") as raised:
        planned(**options).find_encoder(known_schemas, "t", [])
    assert raised.value.condition == WRITE_RULE


def test_a_repetition_takes_the_schema_of_the_first_time(registry: FakeRegistry, known_schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    registry.register("t-value", WIDER_TEXT)
    part = planned(schema=LATEST_SCHEMA)
    assert part.find_or_register(known_schemas, "t").use.id == 2
    assert part.encoder_of_id(known_schemas, 1, "t-value").encode(pa.array([{"id": 1}], ROW)).values.to_pylist() == [
        b"\x00\x00\x00\x00\x01\x02"
    ]


SWAPPED_ROW = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in ("count", "price")])
PRICE_FIRST = '{"type":"record","name":"Sale","fields":[{"name":"price","type":"long"},{"name":"count","type":"long"}]}'
COUNT_FIRST = '{"type":"record","name":"Sale","fields":[{"name":"count","type":"long"},{"name":"price","type":"long"}]}'


@pytest.mark.parametrize(
    ("schema", "subject"),
    [
        (SchemaReference(ID, 1), ":.staging:sales-value"),
        *(
            (schema, f"{context}sales-value")
            for schema in (SchemaReference(VERSION, 1), LATEST_SCHEMA, SchemaReference(TEXT, text=COUNT_FIRST))
            for context in (":.staging:", "")  # the registry finds a subject without a context in all of them
        ),
    ],
)
def test_rows_are_encoded_with_the_schema_of_the_subjects_context(
    registry: FakeRegistry, known_schemas: KnownSchemas, schema: SchemaReference, subject: str
) -> None:
    """`id:1` with `valueSubject=:.staging:sales-value` took the default context's schema 1, and readers in the context saw
    prices as counts, without an error. So did each repetition of an exactly-once write, which asks for an id."""
    registry.register("other-value", PRICE_FIRST)
    registry.register(":.staging:sales-value", COUNT_FIRST)
    wanted_schema, row = planned(SWAPPED_ROW, schema=schema, subject=subject), pa.array([{"count": 1, "price": 99}], SWAPPED_ROW)
    encoder = wanted_schema.find_or_register(known_schemas, "t")
    repeated = wanted_schema.encoder_of_id(known_schemas, encoder.use.id, encoder.use.subject)
    for each in (encoder, repeated):
        (octets,) = each.encode(row).values.to_pylist()
        assert fastavro.schemaless_reader(io.BytesIO(octets[5:]), json.loads(COUNT_FIRST), None) == {"count": 1, "price": 99}


# FRAMED


@pytest.mark.parametrize(
    ("schema_type", "message", "prefix"),
    [
        ("JSON", None, b"\x00\x00\x00\x00\x01"),
        ("PROTOBUF", None, b"\x00\x00\x00\x00\x01\x00"),
        ("PROTOBUF", (1, 0), b"\x00\x00\x00\x00\x01\x04\x02\x00"),
        ("AVRO", None, b"\x00\x00\x00\x00\x01"),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary()])
def test_framed_puts_the_frame_before_bytes(
    registry: FakeRegistry,
    known_schemas: KnownSchemas,
    schema_type: str,
    message: tuple[int, ...] | None,
    prefix: bytes,
    kind: pa.DataType,
) -> None:
    registry.register("t-value", '"string"', schemaType=schema_type)
    part = planned(kind, format=FRAMED, schema=LATEST_SCHEMA, message=message)
    assert part.text is None
    encoder = part.find_or_register(known_schemas, "t")
    column = pa.array(["x", None, "", "yz"], pa.string()).cast(kind)
    expected = [prefix + b"x", None, prefix, prefix + b"yz"]
    assert encoder.encode(column).values.to_pylist() == expected
    assert encoder.encode(pa.chunked_array([column.slice(1, 2), column.slice(3)])).values.to_pylist() == expected[1:]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_message_is_for_protobuf(registry: FakeRegistry, known_schemas: KnownSchemas, part: str) -> None:
    registry.register(f"t-{part}", "{}", schemaType="JSON")
    problems: list[str] = []
    wanted_schema = planned(pa.string(), part=part, format=FRAMED, schema=LATEST_SCHEMA, message=(1,))
    assert wanted_schema.find_encoder(known_schemas, "t", problems) is None
    assert problems == [f"{part}Message is for Protobuf: t-{part} version 1 (id 1) is JSON"]


# COLUMNS AS THEY ARRIVE


def test_another_time_zone_or_larger_offsets_are_what_was_planned(known_schemas: KnownSchemas) -> None:
    def kind(zone: str, text: pa.DataType) -> pa.DataType:
        items = pa.list_(pa.field("element", pa.struct([("at", pa.timestamp("us", zone))])))
        return pa.struct([("at", pa.timestamp("us", zone)), ("in", items), ("m", pa.map_(pa.string(), text)), ("s", text)])

    encoder = planned(kind("UTC", pa.string())).find_or_register(known_schemas, "t")
    rows = [{"at": 1, "in": [{"at": 2}, None], "m": [("k", "v")], "s": "x"}, None]
    expected = encoder.encode(pa.array(rows, kind("UTC", pa.string()))).values
    assert encoder.encode(pa.array(rows, kind("Europe/Berlin", pa.large_string()))).values == expected


def test_null_structs_with_fields_that_are_not_null_arrive_in_any_time_zone(known_schemas: KnownSchemas) -> None:
    """A left join with current_timestamp(), in a session whose time zone is Etc/UTC: the struct of the right side is null, and so
    is the field in it, which is NOT NULL. Such rows ended in KAFKA_INVALID_SCHEMA, "nulls in input cannot be viewed as
    non-nullable", as Arrow changed the zone of the whole column."""
    right = pa.struct([pa.field("id", pa.int32(), nullable=False)])

    def rows(zone: str) -> pa.Array:
        ids = pa.array([None, 7], pa.int32())  # Spark's own writer fills in a null, pa.array a zero
        structs = pa.StructArray.from_arrays([ids], fields=list(right), mask=pa.array([True, False]))
        times = pa.array([1, 2], pa.timestamp("us", zone))
        return pa.StructArray.from_arrays([times, structs], ["at", "right"])

    encoder = planned(rows("UTC").type).find_or_register(known_schemas, "t")
    expected = encoder.encode(rows("UTC"))
    assert expected.refused_rows == []
    for zone in ("Etc/UTC", "Europe/Berlin"):
        assert encoder.encode(rows(zone)).values == expected.values
        assert encoder.encode(pa.chunked_array([rows(zone)[:1], rows(zone)[1:]])).values == expected.values


def test_another_type_than_planned_is_an_error(known_schemas: KnownSchemas) -> None:
    encoder = planned().find_or_register(known_schemas, "t")
    with pytest.raises(SchemaError, match="the value was planned as struct"):
        encoder.encode(pa.array([{"other": "x"}]))


def test_a_registry_that_needs_a_record_name_says_so() -> None:
    part = planned(pa.string(), subject="s")
    assert part.subject_of("t") == "s"
    bare = WantedSchema(
        PartOptions("value", AVRO), pa.string(), '"string"', None, config(value__subject__name__strategy="RecordNameStrategy")
    )
    with pytest.raises(ConfigError, match="set valueSubject"):
        bare.subject_of("t")
