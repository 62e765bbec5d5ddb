"""Whether data of one Avro schema can be read with another, as far as tests need it: for the fake registry.

Fields, defaults, promotions, unions, names. The texts of incompatibilities begin as Confluent's do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PROMOTIONS = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


class InvalidAvroSchemaError(ValueError):
    pass


def parse(text: str, references: dict[str, str] | None = None) -> Any:
    """The JSON of a schema, with its names resolved to the types that they stand for. Raises InvalidAvroSchemaError."""
    names: dict[str, Any] = {}
    for reference in (references or {}).values():
        _resolved(_json(reference), names, "")
    return _resolved(_json(text), names, "")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidAvroSchemaError(str(error)) from error


def _resolved(schema: Any, names: dict[str, Any], namespace: str) -> Any:
    if isinstance(schema, list):
        return [_resolved(branch, names, namespace) for branch in schema]
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return {"type": schema}
        for name in (schema, f"{namespace}.{schema}"):
            if name in names:
                return names[name]
        raise InvalidAvroSchemaError(f'"{schema}" is not a defined name')
    if not isinstance(schema, dict) or "type" not in schema:
        raise InvalidAvroSchemaError(f"No type: {json.dumps(schema)}")
    return _of_dict(schema, names, namespace)


def _of_dict(schema: dict[str, Any], names: dict[str, Any], namespace: str) -> Any:
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _resolved(kind, names, namespace)
    result = dict(schema)
    if kind in ("record", "enum", "fixed"):
        result["fullname"] = full_name(schema, namespace)
        names[result["fullname"]] = result
        inner = result["fullname"].rpartition(".")[0]
        if kind == "record":
            result["fields"] = [field | {"type": _resolved(field["type"], names, inner)} for field in schema["fields"]]
    elif kind == "array":
        result["items"] = _resolved(schema["items"], names, namespace)
    elif kind == "map":
        result["values"] = _resolved(schema["values"], names, namespace)
    elif kind not in PRIMITIVES:
        return _resolved(kind, names, namespace)
    return result


def full_name(schema: dict[str, Any], namespace: str) -> str:
    name, own = schema["name"], schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"


def incompatibilities(reader: Any, writer: Any, path: str = "") -> Iterator[str]:
    """Why `reader` cannot read what `writer` wrote; both are parsed."""
    if isinstance(writer, list):
        for branch in writer:
            yield from incompatibilities(reader, branch, path)
    elif isinstance(reader, list):
        if not any(not list(incompatibilities(branch, writer, path)) for branch in reader):
            lacks = f"reader union lacks writer type: {writer['type']}"
            yield f"{{errorType:'MISSING_UNION_BRANCH', description:'{lacks}', path: '{path}'}}"
    elif reader["type"] != writer["type"]:
        if (writer["type"], reader["type"]) not in PROMOTIONS:
            yield f"{{errorType:'TYPE_MISMATCH', description:'{reader['type']} cannot read {writer['type']}', path: '{path}'}}"
    else:
        yield from _of_the_same_kind(reader, writer, path)


def _of_the_same_kind(reader: Any, writer: Any, path: str) -> Iterator[str]:
    kind = reader["type"]
    if kind in ("record", "enum", "fixed") and reader["fullname"].rpartition(".")[2] != writer["fullname"].rpartition(".")[2]:
        yield f"{{errorType:'NAME_MISMATCH', description:'expected: {writer['fullname']}', path: '{path}/name'}}"
    elif kind == "record":
        written = {field["name"]: field for field in writer["fields"]}
        for number, field in enumerate(reader["fields"]):
            at = f"{path}/fields/{number}"
            if field["name"] in written:
                yield from incompatibilities(field["type"], written[field["name"]]["type"], at)
            elif "default" not in field:
                yield (
                    f"{{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field '{field['name']}' at path '{at}'"
                    f" in the new schema has no default value and is missing in the old schema', path: '{at}'}}"
                )
    elif kind == "fixed" and reader["size"] != writer["size"]:
        yield f"{{errorType:'FIXED_SIZE_MISMATCH', description:'expected: {writer['size']}', path: '{path}/size'}}"
    elif kind == "enum" and not set(writer["symbols"]) <= set(reader["symbols"]) and "default" not in reader:
        yield f"{{errorType:'MISSING_ENUM_SYMBOLS', description:'symbols are missing', path: '{path}/symbols'}}"
    elif kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        yield from incompatibilities(reader[inner], writer[inner], f"{path}/{inner}")


def violations(level: str, new: Any, earlier: list[Any]) -> list[str]:
    """What a compatibility level forbids of `new` beside the `earlier` schemas of a subject, the latest last."""
    problems: list[str] = []
    base = level.removesuffix("_TRANSITIVE")
    for old in earlier if level.endswith("_TRANSITIVE") else earlier[-1:]:
        if base in ("BACKWARD", "FULL"):
            problems += incompatibilities(new, old)
        if base in ("FORWARD", "FULL"):
            problems += incompatibilities(old, new)
    return problems
