"""Serializers of keys and values: functions that return bytes or None, found by name."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.errors import KafkaError

Serializer = Callable[[Any], bytes | None]


class SerializationError(KafkaError):
    """A key, a value or a header cannot be serialized."""

    condition = "KAFKA_SERIALIZATION_FAILED"


_BYTE_FORMATS = ("B", "b", "c")


def copy_bytes(value: Any) -> bytes:
    """The bytes of a bytes-like object. Raises TypeError for others with a buffer: a number of numpy would be its memory."""
    if isinstance(value, bytes):
        return value
    view = memoryview(value)
    if view.ndim != 1 or view.format not in _BYTE_FORMATS or isinstance(value, np.generic):  # numpy's times seem to be bytes
        raise TypeError(f"expected bytes, not {type(value).__name__}")
    return bytes(view)


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected str, not {type(value).__name__}")
    return value.encode("utf-8")


def _whole_number(packing: str) -> Serializer:
    pack = struct.Struct(packing).pack

    def serialize_number(value: Any) -> bytes:
        _refuse_truth_value(value)
        return pack(value)

    return serialize_number


def _float(packing: str) -> Serializer:
    """Rounds a float to the bits of the format. Refuses any other number, such as a large int or a Decimal, that would change."""
    form = struct.Struct(packing)

    def serialize_number(value: Any) -> bytes:
        _refuse_truth_value(value)
        octets = form.pack(value)
        number = operator.index(value) if hasattr(value, "__index__") else value  # numpy compares an int64 as a float
        if not isinstance(value, float) and number == number and form.unpack(octets)[0] != number:
            raise TypeError(f"as a float of {8 * form.size} bits, this {type(value).__name__} would be another number")
        return octets

    return serialize_number


def _refuse_truth_value(value: object) -> None:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"expected a number, not {type(value).__name__}")


BUILT_IN: dict[str, Serializer] = {
    "bytes": copy_bytes,
    "string": _string,
    "short": _whole_number(">h"),
    "integer": _whole_number(">i"),
    "long": _whole_number(">q"),
    "float": _float(">f"),
    "double": _float(">d"),
}
_JAVA_PACKAGE = "org.apache.kafka.common.serialization."
_JAVA_CLASSES = {f"{name.capitalize()}Serializer": name for name in BUILT_IN} | {"ByteArraySerializer": "bytes"}

AVRO_NAMES = ("avro", "io.confluent.kafka.serializers.KafkaAvroSerializer")


def is_avro(option_value: object) -> bool:
    """Whether `key.serializer` or `value.serializer` asks for Avro with a schema registry: see avro_serializers.py."""
    return isinstance(option_value, str) and option_value in AVRO_NAMES


def find_serializer(option: str, option_value: object) -> Serializer:
    """The serializer that `key.serializer` or `value.serializer` names.

    Args:
        option: for the error text.
        option_value: a callable; "bytes", "string", "short", "integer", "long", "float", "double" (Kafka's formats, big-endian);
            the Java class of one of these; or the dotted name of a callable. For None, and for the names of Avro, whose
            values AvroSerializers encodes, the result is as_bytes.

    Raises:
        ConfigError: it cannot be loaded, or is not callable.
    """
    if option_value is None or is_avro(option_value):
        return as_bytes
    if callable(option_value):
        return option_value
    name = str(option_value)
    name = _JAVA_CLASSES.get(name.removeprefix(_JAVA_PACKAGE), name)
    return BUILT_IN[name] if name in BUILT_IN else load_callable(option, name, built_in=BUILT_IN)


def as_bytes(value: Any) -> bytes:
    """The default serializer: bytes stay as they are, str becomes UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8")
    try:
        return copy_bytes(value)
    except TypeError as error:
        raise TypeError(
            "pass bytes or str, or set key.serializer or value.serializer, to a function that returns bytes or to avro"
        ) from error


def serialize(serializer: Serializer, value: Any, value_name: str) -> bytes | None:
    """`value` as bytes. None stays None without a call of the serializer. Raises SerializationError, which names `value_name`."""
    if value is None:
        return None
    try:
        data = serializer(value)
    except Exception as error:
        raise SerializationError(f"{value_name} of type {type(value).__name__} cannot be serialized: {error}") from error
    if data is not None and not isinstance(data, bytes):
        raise SerializationError(f"{value_name}: the serializer returned {type(data).__name__}, not bytes")
    return data
