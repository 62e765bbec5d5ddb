"""What is checked of a record before it is queued: its partition, headers and timestamp, and its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.producer.producer_record import ProducerRecord, whole_number
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.records.record_batch import BATCH_HEADER_SIZE, MAX_RECORD_OVERHEAD

RECORD_OVERHEAD = BATCH_HEADER_SIZE + MAX_RECORD_OVERHEAD  # an upper bound of what a record takes beside key, value and headers
HEADERS = pa.map_(pa.string(), pa.binary())  # the type of a headers column that is made of records


class RecordDetails(NamedTuple):
    """What only few records have. The others need not carry it."""

    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


def checked_details(record: ProducerRecord) -> RecordDetails:
    """Partition, headers and timestamp of a record.

    Raises SerializationError for headers, TypeError for a number that is no int, ValueError for a number out of range.
    """
    partition, timestamp = record.partition, record.timestamp
    if partition is not None:
        partition = whole_number(partition, "partition")
        if not 0 <= partition < 2**31:
            raise ValueError(f"Invalid partition: {partition}. Partition number should always be non-negative or null.")
    if timestamp is not None:
        timestamp = whole_number(timestamp, "timestamp")
        if not 0 <= timestamp < 2**63:
            raise ValueError(f"Invalid timestamp: {timestamp}. Timestamp should always be non-negative or null.")
    return RecordDetails(partition, checked_headers(record.headers), timestamp)


def checked_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    """The same headers as a tuple. Raises SerializationError if a record cannot have them."""
    if headers is None:
        return ()
    pairs: tuple[Any, ...] = tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, Mapping) else (headers,)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SerializationError(f"headers must be (name, value) pairs, not {type(pair).__name__}")
        name, value = pair
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise SerializationError(
                f"a header must be a str and bytes or None, not {type(name).__name__} and {type(value).__name__}"
            )
    return pairs


def headers_bound(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """An upper bound of the bytes that headers take in a record: each length is a varint of at most five."""
    return sum(10 + len(name.encode()) + len(value or b"") for name, value in headers)


class SizeLimits:
    """How large a record may be, by max.request.size, or `largest_record` if that is more, and by buffer.memory."""

    def __init__(self, config: ProducerConfig, largest_record: int = 0) -> None:
        by_request = max(config.max_request_size, largest_record)
        self._limits = {"max.request.size": by_request, "buffer.memory": config.buffer_memory}
        self.largest_record = min(self._limits.values())

    def check(self, size_bytes: int, where: str) -> None:
        """Raises RecordTooLargeError, which begins with `where`."""
        for option, limit in self._limits.items():
            if size_bytes > limit:
                raise RecordTooLargeError(
                    f"{where}: the record is {size_bytes} bytes when serialized, which exceeds"
                    f" {option}={limit}; raise {option}"
                    + ("" if option == "buffer.memory" else " and the topic's max.message.bytes")
                )
