"""The old producer's choice of a partition for a key: Java's hashCode of the key object.

Keys go to the same partitions as with the Scala client (0.8.2 to 1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark_kafka_sink.config.dotted_names import load
from spark_kafka_sink.errors import ConfigError, InvalidRecordError

LegacyPartitioner = Callable[[Any, int], int]

_INT_MIN = -(2**31)


def java_hash_code(key: object, *, are_ints_longs: bool = False) -> int:
    """The result of hashCode() in Java for a Boolean, an Integer (a Long beyond 32 bits), a String, or the bytes of an array.

    Args:
        are_ints_longs: whether an int within 32 bits is a Long too, whose code differs if it is negative.

    Raises:
        InvalidRecordError: the key is of another type.
    """
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int) and -(2**63) <= key < 2**63:
        is_long = are_ints_longs or not _INT_MIN <= key < 2**31
        return _int32(key ^ (key % 2**64 >> 32)) if is_long else key
    if isinstance(key, str):
        units = key.encode("utf-16-be", "surrogatepass")
        return _polynomial(0, [high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True)])
    if isinstance(key, bytes | bytearray):
        return _polynomial(1, [byte - 256 if byte > 127 else byte for byte in key])
    raise InvalidRecordError(
        "kafka.producer.DefaultPartitioner supports keys of type str, bytes, bool and int up to 64 bits, not"
        f" {type(key).__name__}; set a part_key of one of these types, or set partitioner.class",
        condition="KAFKA_INVALID_PARTITION",
    )


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _polynomial(start: int, values: Sequence[int]) -> int:
    code = start
    for value in values:
        code = (31 * code + value) % 2**32
    return _int32(code)


def default_partition(key: object, partition_count: int, *, are_ints_longs: bool = False) -> int:
    """The partition that kafka.producer.DefaultPartitioner chooses; for bytes, kafka.producer.ByteArrayPartitioner."""
    code = java_hash_code(key, are_ints_longs=are_ints_longs)
    return 0 if code == _INT_MIN else abs(code) % partition_count


_BUILT_IN = ("kafka.producer.DefaultPartitioner", "kafka.producer.ByteArrayPartitioner")


def find_legacy_partitioner(option_value: object) -> LegacyPartitioner:
    """The function that `partitioner.class` names.

    Args:
        option_value: the name of one of Kafka's two old classes; a callable (key, partitions) -> partition; an object with such a
            method `partition`, or its class, which is instantiated without arguments; or the dotted name of any of these.

    Raises:
        ConfigError: it cannot be loaded, or is none of these.
    """
    if option_value in _BUILT_IN:
        return default_partition
    partitioner = load("partitioner.class", option_value, built_in=_BUILT_IN) if isinstance(option_value, str) else option_value
    if isinstance(partitioner, type) and hasattr(partitioner, "partition"):
        try:
            partitioner = partitioner()
        except Exception as error:
            raise ConfigError(f"partitioner.class={option_value} cannot be instantiated without arguments: {error!r}") from error
    method = getattr(partitioner, "partition", partitioner)
    if not callable(method) or isinstance(method, type):
        raise ConfigError(f"partitioner.class={option_value} is neither a callable (key, partitions) nor has a method partition")
    return method
