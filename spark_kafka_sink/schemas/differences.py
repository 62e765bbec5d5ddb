"""How a derived Avro schema differs from a registered one, in words for an error.

Both are texts; nothing is resolved. A text that cannot be read has no differences to tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def differences(derived: str, registered: str) -> list[str]:
    """One sentence for each field that only one side has, or that has another type; at most one for each field."""
    try:
        return list(_of_types(json.loads(derived), json.loads(registered), ""))
    except (ValueError, RecursionError):
        return []


def _of_types(derived: Any, registered: Any, path: str) -> Iterator[str]:
    (is_nullable, mine), (was_nullable, theirs) = _without_null(derived), _without_null(registered)
    where = path or "the whole"
    if is_nullable != was_nullable:
        yield f"{where} {'may' if is_nullable else 'may not'} be null, and as registered {'may' if was_nullable else 'may not'}"
    elif _kind(mine) != _kind(theirs):
        yield f"{where} is {_in_words(mine)}, registered as {_in_words(theirs)}"
    elif _kind(mine) == "record":
        yield from _of_records(mine, theirs, path)
    elif _kind(mine) in ("array", "map"):
        inner = "items" if _kind(mine) == "array" else "values"
        yield from _of_types(mine.get(inner), theirs.get(inner), f"{path}[*]")
    elif _in_words(mine) != _in_words(theirs):
        yield f"{where} is {_in_words(mine)}, registered as {_in_words(theirs)}"


def _of_records(derived: dict[str, Any], registered: dict[str, Any], path: str) -> Iterator[str]:
    if _full_name(derived) != _full_name(registered):
        yield f"{path or 'the record'} is named {_full_name(derived)}, registered as {_full_name(registered)}"
    mine, theirs = _fields(derived), _fields(registered)
    at = f"{path}." if path else ""
    for name in [name for name in mine if name not in theirs]:
        yield f"{at}{name} is new"
    for name in [name for name in theirs if name not in mine]:
        yield f"{at}{name} is missing"
    common = [name for name in mine if name in theirs]
    for name in common:
        yield from _of_types(mine[name], theirs[name], f"{at}{name}")
    if not (mine.keys() ^ theirs.keys()) and common != list(theirs):
        yield f"{path or 'the record'} has its fields in another order than registered"


def _fields(record: dict[str, Any]) -> dict[str, Any]:
    return {
        str(field["name"]): field["type"] for field in record.get("fields", []) if isinstance(field, dict) and "type" in field
    }


def _without_null(schema: Any) -> tuple[bool, Any]:
    """Whether null is a branch of it, and the other branch; a union of several others stays as it is."""
    if not isinstance(schema, list) or "null" not in schema:
        return False, schema
    others = [branch for branch in schema if branch != "null"]
    return True, others[0] if len(others) == 1 else others


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema.get("type") if isinstance(schema, dict) else schema
    return kind if isinstance(kind, str) else _kind(kind)


def _full_name(schema: dict[str, Any]) -> str:
    name, namespace = str(schema.get("name")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _in_words(schema: Any) -> str:
    if isinstance(schema, list):
        return f"one of {', '.join(map(_in_words, schema))}"
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema.get('precision')}, {schema.get('scale', 0)}) as {_kind(schema)}"
    if logical is not None:
        return f"{logical} as {_kind(schema)}"
    if _kind(schema) in ("fixed", "enum"):
        return f"{_kind(schema)} {_full_name(schema)}" + (f" of {schema['size']} bytes" if "size" in schema else "")
    return _kind(schema)
