"""How a derived Avro schema differs from a registered one, in words for an error.

Compares the texts as JSON; names of types are not looked up. If a text is no JSON, no differences are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_kafka_sink.config.format_options import parse_schema_json


def differences(derived_text: str, registered_text: str) -> list[str]:
    """A sentence for each field that one side lacks or has with another type, and for each record with another name or order."""
    try:
        return list(_type_differences(parse_schema_json(derived_text), parse_schema_json(registered_text), ""))
    except (ValueError, RecursionError):
        return []


def _type_differences(derived_type: Any, registered_type: Any, path: str) -> Iterator[str]:
    is_nullable, derived_value = _without_null(_innermost_type(derived_type))
    was_nullable, registered_value = _without_null(_innermost_type(registered_type))
    place, kind = path or "the whole", _kind(derived_value)
    if is_nullable != was_nullable:
        yield f"{place} {'may' if is_nullable else 'may not'} be null, and as registered {'may' if was_nullable else 'may not'}"
    elif kind == _kind(registered_value) == "record":
        yield from _record_differences(derived_value, registered_value, path)
    elif kind == _kind(registered_value) and kind in _INNER:
        yield from _type_differences(derived_value.get(_INNER[kind]), registered_value.get(_INNER[kind]), f"{path}[*]")
    elif _in_words(derived_value) != _in_words(registered_value):
        yield f"{place} is {_in_words(derived_value)}, registered as {_in_words(registered_value)}"


_INNER = {"array": "items", "map": "values"}


def _record_differences(derived_record: dict[str, Any], registered_record: dict[str, Any], path: str) -> Iterator[str]:
    if _full_name(derived_record) != _full_name(registered_record):
        yield f"{path or 'the record'} is named {_full_name(derived_record)}, registered as {_full_name(registered_record)}"
    derived_fields, registered_fields = _fields(derived_record), _fields(registered_record)
    prefix = f"{path}." if path else ""
    yield from (f"{prefix}{name} is new" for name in derived_fields if name not in registered_fields)
    yield from (f"{prefix}{name} is missing" for name in registered_fields if name not in derived_fields)
    common_names = [name for name in derived_fields if name in registered_fields]
    for name in common_names:
        yield from _type_differences(derived_fields[name], registered_fields[name], f"{prefix}{name}")
    if len(common_names) == len(derived_fields) == len(registered_fields) and common_names != list(registered_fields):
        yield f"{path or 'the record'} has its fields in another order than registered"


def _fields(record: dict[str, Any]) -> dict[str, Any]:
    fields = record.get("fields")
    objects = [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    return {str(field["name"]): field["type"] for field in objects if "name" in field and "type" in field}


def _innermost_type(schema: Any) -> Any:
    """A schema may be written as the type of another: {"type": {"type": "int"}}."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]
    return schema


def _without_null(schema: Any) -> tuple[bool, Any]:
    """Whether the schema is a union with null, and the schema without null; a union of several others stays a union."""
    if not isinstance(schema, list) or "null" not in schema:
        return False, schema
    others = [branch for branch in schema if branch != "null"]
    return True, _innermost_type(others[0]) if len(others) == 1 else others


def _kind(schema: Any) -> str:
    """The type of a schema that is a JSON object; empty for a name and for a union."""
    return str(schema.get("type")) if isinstance(schema, dict) else ""


def _full_name(schema: dict[str, Any]) -> str:
    name, namespace = str(schema.get("name")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _in_words(schema: Any) -> str:
    if isinstance(schema, list):
        return f"one of {', '.join(_in_words(_innermost_type(branch)) for branch in schema)}"
    if not isinstance(schema, dict):
        return str(schema)
    kind, logical = _kind(schema), schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema.get('precision')}, {schema.get('scale', 0)}) as {kind}"
    if logical is not None:
        return f"{logical} as {kind}"
    if kind in ("fixed", "enum"):
        return f"{kind} {_full_name(schema)}" + (f" of {schema['size']} bytes" if "size" in schema else "")
    return kind
