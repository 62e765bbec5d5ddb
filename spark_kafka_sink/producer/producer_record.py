"""One record on its way in, and what is known of it once it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(slots=True)
class ProducerRecord:
    """A record for `KafkaProducer.send`. Not to be changed once sent; not frozen, because that doubles the time to make one.

    Args:
        topic: where it goes.
        value, key: anything that the serializers take; None is null.
        partition: None leaves the choice to the partitioner.
        headers: (name, value) pairs in order; a value may be None.
        timestamp: milliseconds since 1970; None means the time of send.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 if the broker did not say (acks=0); `timestamp` is the broker's own where the topic
    keeps that (LogAppendTime), else the record's. Sizes are those of the serialized key and value, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int
