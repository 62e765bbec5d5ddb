"""Schemas that others have written: time and memory grow with the text alone, and names mean what they mean elsewhere.

A registry's schemas are parsed and resolved on the driver. `Shapes` draws them: names, namespaces, aliases, references and types
that are used again, long and many. The budget for time is CPU time, and several times what is needed: what it is to find was a
hundred times as slow. A run with other seeds is `tests/run schemas/test_hostile_schemas.py -m soak`.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.producer.avro.avro_rows import python_rows
from spark_kafka_sink.schemas.avro_schema import AvroArray, AvroMap, AvroRecord, AvroSchema, AvroUnion, parse_schema
from spark_kafka_sink.schemas.differences import differences
from spark_kafka_sink.schemas.resolution import resolve_column

BASE_MS, MS_PER_KB = 1_500, 3  # a text of some hundred characters may name types that consist of 20,000
BASE_BYTES, BYTES_PER_CHARACTER = 20_000_000, 60
MAX_ERROR_CHARACTERS = 200_000
OTHER_COLUMN = pa.struct([("id", pa.int64()), ("name", pa.string())])
OTHER_TEXT = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"name","type":"string"}]}'


def use(text: str, references: dict[str, str]) -> None:
    """All that is done with a schema before a row is encoded."""
    try:
        schema = parse_schema(text, references)
        type_of_objects = python_rows(schema, "value").type
    except SchemaError as error:
        require_short([str(error)])
    else:
        assert resolve_column(type_of_objects, schema, column_name="value", truncates_timestamps=False)[1] == []
        _, problems = resolve_column(OTHER_COLUMN, schema, column_name="value", truncates_timestamps=False)
        require_short(problems)
    differences(OTHER_TEXT, text)


def require_short(problems: list[str]) -> None:
    assert len("".join(problems)) <= MAX_ERROR_CHARACTERS


def require_within_budget(text: str, references: dict[str, str] | None = None) -> None:
    characters = len(text) + sum(map(len, (references or {}).values()))
    start_s = time.thread_time()
    use(text, references or {})
    used_ms = 1000 * (time.thread_time() - start_s)
    assert used_ms <= BASE_MS + MS_PER_KB * characters / 1000, f"{characters:,} characters took {used_ms:,.0f} ms"
    tracemalloc.start()
    try:
        use(text, references or {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes <= BASE_BYTES + BYTES_PER_CHARACTER * characters, f"{characters:,} characters took {peak_bytes:,} bytes"


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def fixed_fields(count: int) -> list[Any]:
    return [field(f"f{number}", {"type": "fixed", "name": f"F{number}", "size": 1}) for number in range(count)]


# KNOWN ONES


def namespace_of_many_parts() -> Any:
    """The namespace was split and checked for each type that inherits it: 71 KB took 25 s."""
    return record("R", *fixed_fields(800), namespace=".".join(["a"] * 10_000))


def long_namespace() -> Any:
    """Each type had the whole namespace in its name: 518 KB took 800 MB."""
    return record("R", *fixed_fields(3_000), namespace="a" * 300_000)


def many_aliases() -> Any:
    """Each alias of a type had the whole namespace too, though nobody reads them: 120 KB took 400 MB."""
    return record("R", namespace="a" * 20_000, aliases=["b"] * 20_000)


def long_names_of_records_around() -> Any:
    """Each field had the names of all records around it in the path that errors show: 690 KB took 1.8 GB."""
    inner = record("I", *(field(f"f{number}", "int") for number in range(3_000)))
    for number in range(30):
        inner = record(f"R{number}", field(f"{'n' * 20_000}{number}", inner))
    return inner


def many_fields() -> Any:
    """Each field was searched for among all columns, and each column's name counted: 577 KB took 3 s."""
    return record("R", *(field(f"f{number}", "int") for number in range(19_000)))


def equal_namespaces_written_apart() -> Any:
    """Equal namespaces of different types: a look-up compares them character by character, unless they are one object."""
    return record(
        "R",
        *fixed_fields(1),
        field("s", record("S", *([field("y", "F0")] * 1), namespace="a" * 200_000)),
        field("t", record("T", *(field(f"g{n}", "F0") for n in range(9_000)), namespace="a" * 200_000)),
        namespace="a" * 200_000,
    )


@pytest.mark.parametrize(
    "make",
    [
        namespace_of_many_parts,
        long_namespace,
        many_aliases,
        long_names_of_records_around,
        many_fields,
        equal_namespaces_written_apart,
    ],
)
def test_what_a_text_repeats_or_inherits_costs_nothing(make: Callable[[], Any]) -> None:
    require_within_budget(json.dumps(make(), separators=(",", ":")))


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 300_000 + "[]]",
        '["int",' + "{}," * 300_000 + "{}]",
        '{"type":"record","name":"R","fields":' + "[" + '{"name":"x"},' * 100_000 + "{}]}",
    ],
)
def test_json_that_is_no_schema_costs_no_more_than_its_text(text: str) -> None:
    require_within_budget(text)


# ANY


class Shapes:
    """Draws schemas by a seed, of some `max_characters` at most."""

    def __init__(self, seed: int, max_characters: int) -> None:
        self._random = random.Random(seed)
        self._characters_left = max_characters
        self._names: list[str] = []  # of the types so far, in full and simple

    def schema(self) -> tuple[str, dict[str, str]]:
        """A text, and the texts that it refers to."""
        references = {}
        for _ in range(self._random.choice([0, 0, 1, 3])):
            text = json.dumps(self._type(0))
            references[self._random.choice(self._names) if self._names else "R"] = text
        return json.dumps(self._type(0)), references

    def _number(self, characters_of_each: int) -> int:
        """How often to repeat something: large and small numbers alike."""
        limit = max(1, self._characters_left // (2 * characters_of_each))
        number = min(limit, int(10 ** self._random.uniform(0, len(str(limit)))))
        self._characters_left -= characters_of_each * number
        return number

    def _is_drawn(self, probability: float) -> bool:
        return self._random.random() < probability

    def _name(self) -> str:
        letter = self._random.choice("RST")
        return letter if self._is_drawn(0.1) else f"{letter * (self._number(1) if self._is_drawn(0.2) else 1)}{len(self._names)}"

    def _namespace(self) -> str:
        kinds = {"": 3, "a": 3, "a.b": 3, "long": 1, "of many parts": 1}
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        return {"long": "n" * self._number(1), "of many parts": ".".join("p" * self._number(2))}.get(kind, kind)

    def _declared(self) -> dict[str, Any]:
        """Name, namespace and aliases of a type."""
        name = self._name()
        declared: dict[str, Any] = {"name": name if self._is_drawn(0.8) else f"{self._namespace() or 'b'}.{name}"}
        if self._is_drawn(0.4):
            declared["namespace"] = self._namespace()
        if self._is_drawn(0.1):
            declared["aliases"] = [f"A{number}" for number in range(self._number(12))]
        return declared

    def _add_names(self, declared: dict[str, Any]) -> None:
        """From now on, types refer to this one: by its simple name, in full, and by a name that may be of another namespace."""
        simple_name = declared["name"].rpartition(".")[2]
        self._names += [simple_name, declared["name"], f"{declared.get('namespace', 'a')}.{simple_name}".strip(".")]

    def _type(self, depth: int) -> Any:
        self._characters_left -= 60
        kind = self._random.choice(["primitive", "name", "name", "record", "record", "enum", "fixed", "array", "map", "union"])
        if depth == 0:
            kind = "record"
        elif depth > 12 or self._characters_left < 0:
            kind = self._random.choice(["primitive", "name"])
        match kind:
            case "name" if self._names:
                return self._random.choice(self._names[-40:])
            case "record":
                declared = self._declared()
                schema = {"type": "record", **declared, "fields": list(self._fields(depth))}
                self._add_names(declared)
                return schema
            case "enum" | "fixed":
                declared = self._declared()
                self._add_names(declared)
                if kind == "fixed":
                    return {"type": "fixed", **declared, "size": self._random.randint(1, 10**6)}
                return {"type": "enum", **declared, "symbols": [f"S{each}" for each in range(self._number(12))]}
            case "array":
                return {"type": "array", "items": self._type(depth + 1)}
            case "map":
                return {"type": "map", "values": self._type(depth + 1)}
            case "union":
                branch = self._type(depth + 1)
                return ["null"] if isinstance(branch, list) or branch == "null" else ["null", branch]
        return self._random.choice(
            ["int", "long", "string", "bytes", "double", {"type": "long", "logicalType": "timestamp-micros"}]
        )

    def _fields(self, depth: int) -> Iterator[Any]:
        for number in range(self._random.randint(0, 4)):
            schema = self._type(depth + 1)
            yield field(f"{self._name()}_{number}", schema, **({"default": None} if isinstance(schema, list) else {}))
        if self._is_drawn(0.3):  # the same again, many times
            schema = self._random.choice([*self._names, "int"])
            yield from (field(f"again{number}", schema) for number in range(self._number(40 + len(schema))))


@pytest.mark.parametrize("seed", range(60))
def test_any_schema_is_within_the_budget(seed: int) -> None:
    require_within_budget(*Shapes(seed, 1_000_000).schema())


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_many_schemas_are_within_the_budget() -> None:
    for seed in range(1_000, 3_000):
        try:
            require_within_budget(*Shapes(seed, 1_000_000).schema())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# NAMES


def names_here(schema: AvroSchema) -> Any:
    """The schema's tree, with the full name of each type."""
    match schema:
        case AvroRecord():
            return [str(schema.name), {each.name: names_here(each.schema) for each in schema.fields}]
        case AvroArray():
            return [names_here(schema.items)]
        case AvroMap():
            return {"values": names_here(schema.values)}
        case AvroUnion():
            return tuple(map(names_here, schema.branches))
        case _:
            return str(getattr(schema, "name", "")) or getattr(schema, "type", "")


def names_in_fastavro(schema: Any, types: dict[str, Any]) -> Any:
    """The same of what fastavro's parse_schema returns, with the types that it knows by name."""
    if isinstance(schema, list):
        return tuple(names_in_fastavro(each, types) for each in schema)
    if isinstance(schema, str):
        return names_in_fastavro(types[schema], types) if schema in types else schema
    match schema["type"]:
        case "record":
            return [schema["name"], {each["name"]: names_in_fastavro(each["type"], types) for each in schema["fields"]}]
        case "array":
            return [names_in_fastavro(schema["items"], types)]
        case "map":
            return {"values": names_in_fastavro(schema["values"], types)}
        case kind:
            return schema.get("name", kind)


def test_names_mean_what_they_mean_to_fastavro() -> None:
    """Where a name stands in for its type, and in which namespace each type is, in schemas that both take. fastavro does not look
    for a name without a namespace, as Java and we do."""
    compared = 0
    for seed in range(2_000):
        text, _ = Shapes(seed, 2_000).schema()
        types: dict[str, Any] = {}
        try:
            ours = names_here(parse_schema(text))
            theirs = fastavro.parse_schema(json.loads(text), named_schemas=types)
        except (SchemaError, fastavro.schema.UnknownType):
            continue
        assert ours == names_in_fastavro(theirs, types), f"seed {seed}: {text}"
        compared += isinstance(ours, list)
    assert compared > 100
