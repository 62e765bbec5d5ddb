"""differences.py: how two schemas differ, in words for an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.schemas.differences import differences


def record(*fields: tuple[str, Any], name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type} for field, type in fields], **more}


def differences_of(derived: Any, registered: Any) -> list[str]:
    return differences(json.dumps(derived), json.dumps(registered))


DATE = {"type": "int", "logicalType": "date"}
SMALL = {"type": "fixed", "name": "fixed", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 2}
LARGE = {"type": "bytes", "logicalType": "decimal", "precision": 12}
MD5 = {"type": "fixed", "name": "md5", "namespace": "com.acme", "size": 16}


@pytest.mark.parametrize(
    ("derived", "registered", "expected"),
    [
        ("int", "long", ["the whole is int, registered as long"]),
        ("int", ["null", "int"], ["the whole may not be null, and as registered may"]),
        (record(("a", "int")), record(("b", "int")), ["a is new", "b is missing"]),
        (record(("a", ["null", "int"])), record(("a", "int")), ["a may be null, and as registered may not"]),
        (record(("a", ["null", "int"])), record(("a", ["long", "null"])), ["a is int, registered as long"]),
        (record(("a", DATE)), record(("a", "int")), ["a is date as int, registered as int"]),
        (record(("a", SMALL)), record(("a", LARGE)), ["a is decimal(10, 2) as fixed, registered as decimal(12, 0) as bytes"]),
        (record(("a", "bytes")), record(("a", MD5)), ["a is bytes, registered as fixed com.acme.md5 of 16 bytes"]),
        (
            record(("a", record(("b", {"type": "array", "items": "int"})))),
            record(("a", record(("b", {"type": "array", "items": "string"})))),
            ["a.b[*] is int, registered as string"],
        ),
        (
            record(("m", {"type": "map", "values": record(("x", "int"))})),
            record(("m", {"type": "map", "values": record(("x", "int"), ("y", "int"))})),
            ["m[*].y is missing"],
        ),
        (record(("a", "int")), record(("a", "int"), namespace="com"), ["the record is named Order, registered as com.Order"]),
        (
            record(("a", "int"), ("b", "int")),
            record(("b", "int"), ("a", "int")),
            ["the record has its fields in another order than registered"],
        ),
        (record(("a", "int")), record(("a", ["int", "string"])), ["a is int, registered as one of int, string"]),
        (record(("a", "int")), record(("a", "com.Other")), ["a is int, registered as com.Other"]),
    ],
)
def test_differences_are_listed_by_field(derived: Any, registered: Any, expected: list[str]) -> None:
    assert differences_of(derived, registered) == expected


def test_the_order_of_a_union_and_defaults_are_no_difference() -> None:
    """Those of to_avro are the other way round, and have no defaults: the schemas are compatible."""
    with_default = record()
    with_default["fields"] = [{"name": "a", "type": ["null", "int"], "default": None, "doc": "x"}]
    assert differences_of(with_default, record(("a", ["int", "null"]))) == []


@pytest.mark.parametrize("text", ["", "syntax = 'proto3';", "[" * 100_000])
def test_what_is_no_json_has_no_differences(text: str) -> None:
    assert differences('"int"', text) == []


KEYS = st.sampled_from(["type", "name", "namespace", "fields", "items", "values", "logicalType", "size", "symbols", "precision"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["record", "array", "map", "fixed", "enum", "null", "int", ""])
)
ANY_JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(ANY_JSON, ANY_JSON)
def test_no_text_of_a_registry_makes_the_comparison_fail(derived: Any, registered: Any) -> None:
    assert all(isinstance(each, str) for each in differences_of(derived, registered))
    assert differences_of(derived, derived) == []
