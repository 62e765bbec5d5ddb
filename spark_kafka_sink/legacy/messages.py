"""Messages of the old producer: KeyedMessage as the caller writes it, SerializedMessage as it is queued and sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.producer.producer_record import LONE_RECORD_OVERHEAD_BYTES


class _Missing:
    """The default of a required argument."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message for the old producer.

    Args:
        topic: name of the topic.
        key: determines the partition and is stored; None: no key.
        message: the value that is stored; None is a tombstone. Required. Without a key, write KeyedMessage("t", message="text").
        part_key: overrides the key when the partition is chosen, and is not stored.

    Raises:
        ValueError: the topic is None.
        TypeError: the topic is no str, or the message is missing.
    """

    topic: str
    key: Any = None
    message: Any = MISSING
    part_key: Any = None

    def __post_init__(self) -> None:
        if self.topic is None:
            raise ValueError("Topic cannot be null.")
        if not isinstance(self.topic, str):
            raise TypeError(f"the topic of a KeyedMessage is a str, not {type(self.topic).__name__}")
        if self.message is MISSING:
            raise TypeError('KeyedMessage has no message; write KeyedMessage("topic", message=…) where there is no key')

    @property
    def partition_key(self) -> Any:
        return self.key if self.part_key is None else self.part_key


@dataclass(frozen=True, slots=True)
class SerializedMessage:
    """A message, its key and value as bytes, and the time at which `send` was called."""

    original: KeyedMessage
    key: bytes | None
    value: bytes | None
    timestamp: int

    @property
    def size_bytes(self) -> int:
        return LONE_RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
