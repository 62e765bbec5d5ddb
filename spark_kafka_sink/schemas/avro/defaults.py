"""The bytes of a field's default, which is JSON by the rules of Avro's specification.

A default may use the defaults of the fields below it, once for each item of an array, and a union tries its branches. So a short
schema can ask for a lot of work, which MAX_STEPS limits.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

from spark_kafka_sink.errors import printable
from spark_kafka_sink.records.varint import encode_varint
from spark_kafka_sink.schemas.avro_schema import (
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroSchema,
    AvroUnion,
)

MAX_STEPS = 1_000_000  # this many take seconds; a schema of 20,000 types with a default each needs a tenth

_END_OF_BLOCKS = b"\0"
_MAX_INTEGERS = {"int": 2**31 - 1, "long": 2**63 - 1}
_STRUCT_FORMATS = {"float": "<f", "double": "<d"}
_STRING = AvroPrimitive("string")
_ITEMS_PER_STEP = 100  # so many characters of a string, or symbols of an enum, count as one step


def unwritable_default(path: str, error: Exception) -> str:
    """The sentence about a default that DefaultEncoder refused. `path`: of the field."""
    return f"the default of the schema's field {printable(path)} cannot be written: {error}"


class _TooMuchWorkError(ValueError):
    """All steps are used, so a union must not try its other branches."""


class _MisfitError(ValueError):
    """A value does not fit. Its text is made when it is shown, as each branch of a union may refuse a very long value."""

    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(value, reason)
        self._value = value
        self._reason = reason

    def __str__(self) -> str:
        return f"{printable(json.dumps(self._value), 60)} {self._reason}"


class DefaultEncoder:
    """Encodes all defaults of a schema. A step is a value, a branch that is tried, or a character of JSON that is read."""

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def encode(self, field: AvroField) -> bytes:
        """The bytes of the field's default, which must exist. Raises ValueError if it does not fit, or is too much work."""
        assert field.default is not None
        self._spend(len(field.default))
        return self._encode(field.schema, json.loads(field.default))

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _TooMuchWorkError(f"the defaults of the schema take more than {MAX_STEPS:,} steps to encode")

    def _encode(self, schema: AvroSchema, value: Any) -> bytes:
        self._spend(1 + len(value) // _ITEMS_PER_STEP if isinstance(value, str) else 1)
        match schema:
            case AvroPrimitive():
                return _encode_primitive(schema.type, value)
            case AvroUnion():
                return self._encode_union(schema, value)
            case AvroRecord() if isinstance(value, dict):
                return b"".join(self._encode_member(field, value) for field in schema.fields)
            case AvroEnum() if isinstance(value, str):
                return self._encode_enum(schema, value)
            case AvroFixed() if isinstance(value, str) and len(value) == schema.size:
                return _octets(value)
            case AvroArray() if isinstance(value, list):
                return _block([self._encode(schema.items, item) for item in value])
            case AvroMap() if isinstance(value, dict):
                return _block([self._encode(_STRING, key) + self._encode(schema.values, item) for key, item in value.items()])
            case _:
                raise _MisfitError(value, f"is no {schema}")

    def _encode_union(self, schema: AvroUnion, value: Any) -> bytes:
        """Encode the default by the first branch that it fits."""
        for number, branch in enumerate(schema.branches):
            try:
                return encode_varint(number) + self._encode(branch, value)
            except _TooMuchWorkError:
                raise
            except ValueError:
                continue
        raise _MisfitError(value, f"fits no branch of the {schema}")

    def _encode_enum(self, schema: AvroEnum, value: str) -> bytes:
        self._spend(len(schema.symbols) // _ITEMS_PER_STEP)
        if value not in schema.symbols:
            raise _MisfitError(value, f"is no {schema}")
        return encode_varint(schema.symbols.index(value))

    def _encode_member(self, field: AvroField, record: dict[str, Any]) -> bytes:
        if field.name in record:
            return self._encode(field.schema, record[field.name])
        if field.default is None:
            raise ValueError(f"it lacks field {printable(field.name)}")
        return self.encode(field)


def _encode_primitive(kind: str, value: Any) -> bytes:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return bytes([value])
        case "int" | "long" if is_number and -_MAX_INTEGERS[kind] - 1 <= value <= _MAX_INTEGERS[kind] and value == int(value):
            return encode_varint(int(value))
        case "float" | "double" if is_number:
            with suppress(OverflowError, struct.error):
                return struct.pack(_STRUCT_FORMATS[kind], value)
        case "string" if isinstance(value, str):
            return _with_length(value.encode())
        case "bytes" if isinstance(value, str):
            return _with_length(_octets(value))
    raise _MisfitError(value, f"is no {kind}")


def _octets(text: str) -> bytes:
    """The bytes that a text stands for: in JSON, they are the characters 0 … 255."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise _MisfitError(text, "has characters beyond 255, which are no bytes") from None


def _with_length(octets: bytes) -> bytes:
    return encode_varint(len(octets)) + octets


def _block(items: list[bytes]) -> bytes:
    return encode_varint(len(items)) + b"".join(items) + _END_OF_BLOCKS if items else _END_OF_BLOCKS
