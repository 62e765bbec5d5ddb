"""The arguments of `send_offsets_to_transaction`: types of this package, and what consumers of other libraries return.

Besides OffsetAndMetadata and ConsumerGroupMetadata it takes confluent-kafka's list of TopicPartitions (`position`) and the bytes
of its `consumer_group_metadata()`, kafka-python's dict and `group_metadata()`, and an int as an offset. Objects are recognized by
their attributes, so that no consumer library has to be installed.
Law: values that no request can carry are refused here. On the Sender's thread, an error could not be raised to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.protocol.topic_partition import TopicPartition

# librdkafka's bytes: magic, generation, group id, member id, whether no instance id follows, instance id. A 0 byte ends a text.
_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")
_MEMBER_FIELDS = attrgetter("group_id", "generation_id", "member_id", "group_instance_id")
_NO_POSITION = -1001  # librdkafka's OFFSET_INVALID: nothing was read from the partition
_GROUP_RULE = (
    "group_metadata must be a ConsumerGroupMetadata, what consumer_group_metadata() of confluent-kafka's consumer returns, or"
    " group_metadata() of kafka-python's"
)
_OFFSETS_RULE = (
    "offsets must map a TopicPartition to an OffsetAndMetadata or an int, or be a list of objects with topic, partition and"
    " offset, as position() of confluent-kafka's consumer returns it"
)


class OffsetAndMetadata(NamedTuple):
    """A position of a consumer group in one partition, as `send_offsets_to_transaction` takes it.

    Args:
        offset: of the next record to read.
        metadata: any text, at most the broker's offset.metadata.max.bytes long.
        leader_epoch: of the record before, or -1 if it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """A member of a consumer group (KIP-447). Without a member, generation and member id keep their defaults. With generation and
    member id, the broker rejects offsets of a consumer that has lost its partitions meanwhile."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


NO_GROUP = ConsumerGroupMetadata("")


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets by partition, except where confluent-kafka has no position. Raises TypeError or ValueError."""
    offsets_by_partition = {}
    for key, position in _pairs(offsets):
        topic, partition = _topic_and_partition(key)
        topic_partition = TopicPartition(checked_text(topic, "a topic"), _checked_number(partition, "a partition", 0, 2**31))
        if getattr(key, "error", None) is not None:
            raise ValueError(f"the consumer has no position in {topic_partition}: {key.error}")
        offset, metadata = getattr(position, "offset", position), getattr(position, "metadata", None)
        leader_epoch = getattr(position, "leader_epoch", None)
        if offset == _NO_POSITION and position is key:
            continue
        offsets_by_partition[topic_partition] = OffsetAndMetadata(
            _checked_number(offset, f"the offset of {topic_partition}", 0, 2**63),
            checked_text("" if metadata is None else metadata, f"the metadata of {topic_partition}"),
            _checked_number(-1 if leader_epoch is None else leader_epoch, f"the leader epoch of {topic_partition}", -1, 2**31),
        )
    return offsets_by_partition


def _pairs(offsets: object) -> Iterator[tuple[Any, Any]]:
    """Pairs of an object that names a partition and one that has its offset. An object of confluent-kafka is both."""
    if isinstance(offsets, Mapping):
        yield from offsets.items()
    elif isinstance(offsets, Iterable) and not isinstance(offsets, str | bytes):
        yield from ((each, each) for each in offsets)
    else:
        raise TypeError(f"{_OFFSETS_RULE}, not a {type(offsets).__name__}")


def _topic_and_partition(key: Any) -> tuple[Any, Any]:
    if isinstance(key, tuple) and len(key) == 2:
        return key
    try:
        return key.topic, key.partition
    except AttributeError:
        raise TypeError(f"{_OFFSETS_RULE}; there is a {type(key).__name__}") from None


def checked_group(group: object) -> ConsumerGroupMetadata:
    """Return the group. Raises TypeError or ValueError."""
    if isinstance(group, bytes | bytearray | memoryview):
        group = _parse_librdkafka_group(bytes(group))
    try:
        group_id, generation_id, member_id, instance_id = _MEMBER_FIELDS(group)
    except AttributeError:
        raise TypeError(f"{_GROUP_RULE}, not {group!r}") from None
    member = ConsumerGroupMetadata(
        checked_text(group_id, "a group id"),
        _checked_number(generation_id, "a generation id", -1, 2**31),
        checked_text(member_id, "a member id"),
        None if instance_id is None else checked_text(instance_id, "a group instance id"),
    )
    if member.generation_id > 0 and not member.member_id:
        raise ValueError(f"generation {member.generation_id} of group {member.group_id!r} needs a member id")
    return member


def _parse_librdkafka_group(data: bytes) -> ConsumerGroupMetadata:
    try:
        magic, (generation_id,) = data[: len(_MAGIC)], _GENERATION.unpack_from(data, len(_MAGIC))
        group_id, member_id, rest = data[len(_MAGIC) + _GENERATION.size :].split(b"\0", 2)
        has_no_instance, instance_id, last_byte = rest[:1] == b"\1", rest[1:-1], rest[-1:]
        is_valid = magic == _MAGIC and (rest == b"\1" or (rest[:1] == b"\0" and last_byte == b"\0" and len(rest) > 1))
        group = ConsumerGroupMetadata(
            group_id.decode(), generation_id, member_id.decode(), None if has_no_instance else instance_id.decode()
        )
    except (ValueError, struct.error):
        is_valid = False
    if not is_valid:
        raise TypeError(
            f"{_GROUP_RULE}, not {data[:20]!r}…: these bytes are of another version of librdkafka, or of something else"
        )
    return group


def _checked_number(value: object, value_name: str, start: int, stop: int) -> int:
    number = whole_number(value, value_name)
    if not start <= number < stop:
        raise ValueError(f"{value_name} must be from {start} to {stop - 1}, not {number}")
    return number


def checked_text(value: object, value_name: str) -> str:
    """Return the text. Raises TypeError or ValueError, whose text names it `value_name`, if no request can carry it."""
    if not isinstance(value, str):
        raise TypeError(f"{value_name} must be a str, not {value!r} of type {type(value).__name__}")
    if len(value.encode("utf-8", "surrogatepass")) > 32_767 or any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError(f"{value_name} must be valid text of at most 32,767 bytes in UTF-8")
    return value
