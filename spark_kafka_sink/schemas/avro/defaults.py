"""The bytes of a field's default: JSON by the rules of Avro's specification, one value at a time.

A default may use the defaults of the fields below it, once for each item of an array: a short schema can ask for a lot of work.
"""

from __future__ import annotations

import json
import struct
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

MAX_DEFAULT_CHARACTERS = 1_000_000  # of JSON, with the defaults of the fields below counted as often as they are used

_END_OF_BLOCKS = b"\0"
_LARGEST = {"int": 2**31 - 1, "long": 2**63 - 1}
_FORMATS = {"float": "<f", "double": "<d"}


def encode_default(field: AvroField) -> bytes:
    """The default of a field that has one. Raises ValueError if it does not fit the field's type, or is too large."""
    return _Encoder().field(field)


def unwritable(path: str, error: Exception) -> str:
    """The sentence about a default that `encode_default` refused. `path`: of the field."""
    return f"the default of the schema's field {printable(path)} cannot be written: {error}"


class _TooLargeError(ValueError):
    """No other branch of a union would help."""


class _Encoder:
    """Encodes one default. `_left`: how many characters may still be read."""

    def __init__(self) -> None:
        self._left = MAX_DEFAULT_CHARACTERS

    def field(self, field: AvroField) -> bytes:
        assert field.default is not None
        self._left -= len(field.default)
        if self._left < 0:
            raise _TooLargeError(f"with the defaults of fields below, it has more than {MAX_DEFAULT_CHARACTERS:,} characters")
        return self._encode(field.schema, json.loads(field.default))

    def _encode(self, schema: AvroSchema, value: Any) -> bytes:
        match schema:
            case AvroPrimitive():
                return _primitive(schema.type, value)
            case AvroUnion():
                return self._union(schema, value)
            case AvroRecord() if isinstance(value, dict):
                return b"".join(self._member(field, value) for field in schema.fields)
            case AvroEnum() if isinstance(value, str) and value in schema.symbols:
                return encode_varint(schema.symbols.index(value))
            case AvroFixed() if isinstance(value, str) and len(value) == schema.size:
                return _octets(value)
            case AvroArray() if isinstance(value, list):
                return _block([self._encode(schema.items, item) for item in value])
            case AvroMap() if isinstance(value, dict):
                return _block([_primitive("string", key) + self._encode(schema.values, item) for key, item in value.items()])
            case _:
                raise ValueError(f"{printable(json.dumps(value), 60)} is no {schema}")

    def _union(self, schema: AvroUnion, value: Any) -> bytes:
        """Encode the default by the first branch that it fits."""
        for number, branch in enumerate(schema.branches):
            try:
                return encode_varint(number) + self._encode(branch, value)
            except _TooLargeError:
                raise
            except ValueError:
                continue
        raise ValueError(f"{printable(json.dumps(value), 60)} fits no branch of the {schema}")

    def _member(self, field: AvroField, record: dict[str, Any]) -> bytes:
        if field.name in record:
            return self._encode(field.schema, record[field.name])
        if field.default is None:
            raise ValueError(f"it lacks field {printable(field.name)}")
        return self.field(field)


def _primitive(kind: str, value: Any) -> bytes:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return bytes([value])
        case "int" | "long" if is_number and -_LARGEST[kind] - 1 <= value <= _LARGEST[kind] and value == int(value):
            return encode_varint(int(value))
        case "float" | "double" if is_number:
            return _floating(kind, value)
        case "string" if isinstance(value, str):
            return _with_length(value.encode())
        case "bytes" if isinstance(value, str):
            return _with_length(_octets(value))
        case _:
            raise ValueError(f"{printable(json.dumps(value), 60)} is no {kind}")


def _floating(kind: str, value: float) -> bytes:
    try:
        return struct.pack(_FORMATS[kind], value)
    except (OverflowError, struct.error):
        raise ValueError(f"{printable(value, 60)} is no {kind}") from None


def _octets(text: str) -> bytes:
    """Bytes are written as the characters 0 … 255."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"{printable(json.dumps(text), 60)} has characters beyond 255, which are no bytes") from None


def _with_length(octets: bytes) -> bytes:
    return encode_varint(len(octets)) + octets


def _block(items: list[bytes]) -> bytes:
    return encode_varint(len(items)) + b"".join(items) + _END_OF_BLOCKS if items else _END_OF_BLOCKS
