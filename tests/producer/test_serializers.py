"""Serializers: from values to Kafka's bytes, by the names that Kafka's users know."""

from __future__ import annotations

import math
import struct
from array import array
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.serializers import SerializationError, find_serializer, serialize

OPTION = "value.serializer"
LONGDOUBLE_IS_DOUBLE = np.finfo(np.longdouble).nmant == np.finfo(np.float64).nmant


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("string", "ä", "ä".encode()),
        ("bytes", b"\0\xff", b"\0\xff"),
        ("bytes", bytearray(b"ab"), b"ab"),
        ("bytes", memoryview(b"abc")[1:], b"bc"),
        (None, np.frombuffer(b"ab", np.uint8), b"ab"),
        ("short", -2, b"\xff\xfe"),
        ("integer", 1, b"\0\0\0\1"),
        ("long", 2**40, b"\0\0\1\0\0\0\0\0"),
        ("float", 1.0, b"\x3f\x80\0\0"),
        ("double", 1.0, b"\x3f\xf0\0\0\0\0\0\0"),
        ("org.apache.kafka.common.serialization.StringSerializer", "x", b"x"),
        ("org.apache.kafka.common.serialization.ByteArraySerializer", b"x", b"x"),
        ("org.apache.kafka.common.serialization.LongSerializer", 1, b"\0\0\0\0\0\0\0\1"),
        (None, "text", b"text"),
        (None, b"bytes", b"bytes"),
        ("os.fsencode", "path", b"path"),
    ],
)
def test_values_become_kafkas_bytes(name: str | None, value: Any, expected: bytes | None) -> None:
    assert serialize(find_serializer(OPTION, name), value, "value") == expected


def test_none_is_null_and_no_serializer_sees_it() -> None:
    def refuse(_: object) -> bytes:
        raise AssertionError("called")

    assert serialize(refuse, None, "key") is None


def test_a_callable_is_a_serializer() -> None:
    assert serialize(find_serializer(OPTION, lambda number: b"%d" % number), 5, "value") == b"5"


@pytest.mark.parametrize(
    ("name", "value"),
    [("string", b"bytes"), ("integer", 2**31), ("long", "1"), ("bytes", 5.0), (None, 5.0), ("short", 1.5)],
)
def test_a_value_of_the_wrong_type_is_refused_and_named(name: str | None, value: Any) -> None:
    with pytest.raises(SerializationError, match=f"value of type {type(value).__name__} cannot be serialized"):
        serialize(find_serializer(OPTION, name), value, "value")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("short", "integer", "long", "float", "double") for value in (True, np.True_)),
        *(("double", value) for value in (2**53 + 1, np.int64(2**53 + 1), Decimal("0.1"), Fraction(1, 3))),
        *(("float", value) for value in (2**24 + 1, Decimal("0.1"), np.int32(2**24 + 1))),
        pytest.param("double", np.longdouble(1) / 3, marks=pytest.mark.skipif(LONGDOUBLE_IS_DOUBLE, reason="no more digits")),
    ],
    ids=repr,
)
def test_a_number_that_would_become_another_one_is_refused(name: str, value: Any) -> None:
    """Python's struct packs True as 1, a Decimal as the nearest float, and an int of 54 bits without its lowest one."""
    with pytest.raises(SerializationError, match=f"value of type {type(value).__name__} cannot be serialized"):
        serialize(find_serializer(OPTION, name), value, "value")


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), np.float32(0.5), 2**24, np.int64(3), Decimal("0.5"), math.inf, math.nan])
def test_a_float_is_rounded_to_its_format_and_an_equal_number_is_one(value: Any) -> None:
    for name, packing in (("float", ">f"), ("double", ">d")):
        assert serialize(find_serializer(OPTION, name), value, "value") == struct.pack(packing, float(value))


MEMORY = [
    *(np.int64(5), np.float64(1.5), np.bool_(True), np.arange(2), array("i", [1])),
    *(np.datetime64("2024-01-01", "ns"), np.timedelta64(1, "s"), np.array([True])),
]


@pytest.mark.parametrize("name", ["bytes", None])
@pytest.mark.parametrize("value", MEMORY, ids=repr)
def test_numbers_with_a_buffer_are_not_written_as_their_memory(name: str | None, value: Any) -> None:
    """A key taken from a numpy array, as in key=ids[i], was written as the eight bytes of its memory, where 5 is refused."""
    with pytest.raises(SerializationError, match=f"value of type {type(value).__name__} cannot be serialized"):
        serialize(find_serializer(OPTION, name), value, "value")


def test_a_serializer_that_returns_no_bytes_is_refused() -> None:
    with pytest.raises(SerializationError, match="the serializer returned str, not bytes"):
        serialize(lambda _: "text", 1, "key")


@pytest.mark.parametrize("name", ["nothing", "no.such.module", "os.path.no_such_function", "os.path.sep"])
def test_a_serializer_that_cannot_be_found_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"value.serializer={name}"):
        find_serializer(OPTION, name)


def test_a_value_that_is_not_bytes_names_the_option_that_makes_it_so() -> None:
    """send("t", {"a": 1}) said "memoryview: a bytes-like object is required, not 'dict'"."""
    with pytest.raises(
        SerializationError, match=r"value of type dict cannot be serialized: pass bytes or str, or set key\.serializer"
    ):
        serialize(find_serializer("value.serializer", None), {"a": 1}, "value")
