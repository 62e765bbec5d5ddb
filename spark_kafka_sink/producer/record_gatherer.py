"""Records that were sent one by one, gathered into columns: from there on they are rows like any others.

`send` only appends to a list. A topic's list becomes a chunk of columns when it holds a batch's worth of bytes, on the thread of
the caller who filled it; when linger.ms is over, on the Sender's; or at flush and close. Knows how to gather and how to tell
each record its fate; KafkaProducer knows how to encode a chunk.
Law: chunks of a topic are encoded one at a time in the order they were begun, so records keep their order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.delivery import UNKNOWN_OFFSET, Part
from spark_kafka_sink.producer.producer_record import RecordMetadata
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.record_batch import BATCH_HEADER_SIZE, MAX_RECORD_OVERHEAD

logger = logging.getLogger(__name__)

Callback = Callable[[RecordMetadata | None, KafkaError | None], None]

MIN_CHUNK_BYTES = 256 * 1024  # a chunk costs some 0.2 ms however small it is
_PENDING = -2  # in a column of offsets: neither acknowledged nor failed
_FAILED = -3


class GatheredRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int  # NO_PARTITION where the record does not say
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int
    callback: Callback | None


def new_gathered_record(fields: tuple[object, ...]) -> GatheredRecord:
    """As GatheredRecord(*fields), in a third of the time: one is made for every record sent."""
    return tuple.__new__(GatheredRecord, fields)


class RecordFuture:
    """What became of one record: a place in its chunk, so that a million of them cost little."""

    __slots__ = ("_chunk", "_index")

    def __init__(self, chunk: GatheredRecords, index: int) -> None:
        self._chunk = chunk
        self._index = index

    def done(self) -> bool:
        return self._chunk.is_settled(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Blocks until that is known, at most `timeout` seconds.

        Raises the record's error; KafkaTimeoutError when the time is over and nothing is known yet.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._chunk.metadata_of(self._index)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The record's error, or None once it is written. Blocks as `result` does."""
        self._chunk.await_settled(self._index, timeout)
        return self._chunk.error_of(self._index)


class GatheredRecords:
    """A chunk in the making, then the owner of its rows: the Sender reports to it, futures ask it."""

    def __init__(self, topic: str, created_ms: int, cluster: Cluster, clock: Clock) -> None:
        self.topic = topic
        self.created_ms = created_ms  # linger.ms and delivery.timeout.ms count from the first record
        self.cluster = cluster  # in which the topic is known
        self.records: list[GatheredRecord] = []
        self.size_bytes = 0
        self._clock = clock
        self._settled = threading.Condition()  # guards the columns below; notified whenever some row is settled
        self._offsets: npt.NDArray[np.int64] | None = None  # _PENDING, _FAILED, or what RecordMetadata says; None: all pending
        self._partitions = np.zeros(0, np.int32)
        self._append_times = np.zeros(0, np.int64)
        self._errors: dict[int, KafkaError] = {}
        self._has_callbacks = False

    def add(self, record: GatheredRecord, size_bytes: int) -> RecordFuture:
        self.records.append(record)
        self.size_bytes += size_bytes
        return RecordFuture(self, len(self.records) - 1)

    @cached_property
    def columns(self) -> RecordColumns:
        """The records as columns, once none is added any more."""
        return columns_of(self.records)

    def seal(self) -> None:
        """No record is added from here on."""
        count = len(self.records)
        with self._settled:
            self._partitions = np.full(count, -1, np.int32)
            self._append_times = np.full(count, -1, np.int64)
            self._offsets = np.full(count, _PENDING, np.int64)
            self._has_callbacks = any(record.callback is not None for record in self.records)

    # OUTCOMES: Sender thread, or a caller whose chunk could not be queued

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        rows = part.rows
        first = base_offset + part.first_delta
        with self._settled:
            assert self._offsets is not None
            self._offsets[rows] = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else np.arange(first, first + len(rows))
            self._partitions[rows] = part.topic_partition.partition
            self._append_times[rows] = log_append_time_ms
            self._settled.notify_all()
        self._call_back(rows, {})

    def fail(self, part: Part, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        at = {int(part.rows[index - part.first_delta]): each for index, each in record_errors.items() if _lies_in(part, index)}
        others = error
        if record_errors:
            others = KafkaError(
                f"{part.topic_partition}: the record itself is good, but it was part of a batch with invalid records",
                condition="KAFKA_BATCH_HAS_INVALID_RECORDS",
            )
        self._fail_rows(part.rows, dict.fromkeys(part.rows.tolist(), others) | at)

    def abandon(self, rows: npt.NDArray[np.int32], error: KafkaError) -> None:
        self._fail_rows(rows, dict.fromkeys(rows.tolist(), error))

    def abandon_all(self, error: KafkaError) -> None:
        self.abandon(np.arange(len(self.records), dtype=np.int32), error)

    def _fail_rows(self, rows: npt.NDArray[np.int32], errors: dict[int, KafkaError]) -> None:
        with self._settled:
            assert self._offsets is not None
            self._offsets[rows] = _FAILED
            self._errors.update(errors)
            self._settled.notify_all()
        self._call_back(rows, errors)

    def _call_back(self, rows: npt.NDArray[np.int32], errors: Mapping[int, KafkaError]) -> None:
        if not self._has_callbacks:
            return
        outcomes = repeat(None) if errors else self._metadata_of_rows(rows)
        for row, metadata in zip(rows.tolist(), outcomes, strict=False):
            callback = self.records[row].callback
            if callback is None:
                continue
            try:
                callback(metadata, errors.get(row))
            except Exception:
                logger.exception("! the callback of a record for %s raised", self.topic)

    def _metadata_of_rows(self, rows: npt.NDArray[np.int32]) -> Iterator[RecordMetadata]:
        """For acknowledged rows: columns first, so that little is left to do for each."""
        assert self._offsets is not None
        times = self._append_times[rows]
        times = np.where(times < 0, _rows_of(self.columns.timestamps, rows), times)
        sizes = (_rows_of(lengths, rows).tolist() for lengths in (self.columns.key_lengths, self.columns.value_lengths))
        fields = zip(repeat(self.topic), self._partitions[rows].tolist(), self._offsets[rows].tolist(), times.tolist(), *sizes)
        return map(RecordMetadata._make, fields)

    # ANSWERS: any thread

    def is_settled(self, row: int) -> bool:
        return self._offsets is not None and self._offsets[row] != _PENDING

    def await_settled(self, row: int, timeout_s: float | None) -> None:
        deadline_ms = None if timeout_s is None else self._clock.now_ms() + int(timeout_s * 1000)
        with self._settled:
            while not self.is_settled(row):
                remaining_ms = 3_600_000 if deadline_ms is None else deadline_ms - self._clock.now_ms()
                if remaining_ms <= 0:
                    raise KafkaTimeoutError(f"a record for {self.topic} is not acknowledged after {timeout_s} s")
                self._clock.wait(self._settled, remaining_ms)

    def error_of(self, row: int) -> KafkaError | None:
        return self._errors.get(row)

    def metadata_of(self, row: int) -> RecordMetadata:
        return next(self._metadata_of_rows(np.array([row], np.int32)))


def _rows_of(column: npt.NDArray[np.int64] | int, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    return column[rows] if isinstance(column, np.ndarray) else np.full(len(rows), column)


def _lies_in(part: Part, index: int) -> bool:
    return 0 <= index - part.first_delta < part.row_count


NewChunk = Callable[[str, int, Cluster, Clock], GatheredRecords]


def failed_record(
    topic: str, record: GatheredRecord, error: KafkaError, clock: Clock, new_chunk: NewChunk = GatheredRecords
) -> RecordFuture:
    """The future of a record that could not even be gathered; its callback has been called."""
    chunk = new_chunk(topic, 0, Cluster(), clock)
    future = chunk.add(record, 0)
    chunk.seal()
    chunk.abandon_all(error)
    return future


class _TopicRecords:
    def __init__(self) -> None:
        # Held while a chunk is encoded; the Sender takes it only if it is free. Reentrant: a callback that is told of a failure
        # meanwhile, on the same thread, may send again.
        self.encoding = threading.RLock()
        self.lock = threading.Lock()  # guards the chunk below and adding to it
        self.chunk: GatheredRecords | None = None


class RecordGatherer:
    """Args:
    chunk_bytes: how much makes a chunk.
    linger_ms: how long a chunk that is not full waits for more records.
    max_block_ms: how long a caller waits for another's chunk to be encoded.
    encode: queues a sealed chunk, whose records it settles if it fails; waits so long for memory, with None not at all.
    new_chunk: makes a chunk; interceptors have chunks of their own.
    """

    def __init__(
        self,
        chunk_bytes: int,
        linger_ms: int,
        max_block_ms: int,
        encode: Callable[[GatheredRecords, int | None], None],
        clock: Clock,
        new_chunk: NewChunk = GatheredRecords,
    ) -> None:
        self._new_chunk = new_chunk
        self._chunk_bytes = max(chunk_bytes, MIN_CHUNK_BYTES)
        self._linger_ms = linger_ms
        self._max_block_ms = max_block_ms
        self._encode = encode
        self._clock = clock
        self._topics: dict[str, _TopicRecords] = {}  # grows only
        self._closed = False

    def add(
        self, topic: str, record: GatheredRecord, size_bytes: int, cluster: Cluster, wake_sender: Callable[[], None]
    ) -> RecordFuture:
        """Take a record. Encodes the chunk if it is full, which blocks while memory is exhausted; errors go to the records."""
        records = self._topics.get(topic) or self._topics.setdefault(topic, _TopicRecords())
        with records.lock:
            if self._closed:
                raise ProducerClosedError("Cannot send: the producer is closed or being closed")
            chunk = records.chunk
            if chunk is None:
                chunk = records.chunk = self._new_chunk(topic, self._clock.now_ms(), cluster, self._clock)
            chunk.cluster = cluster
            future = chunk.add(record, size_bytes)
            is_first, is_full = len(chunk.records) == 1, chunk.size_bytes >= self._chunk_bytes
        if is_full:
            self._encode_topic(records, self._max_block_ms)
        elif is_first:
            wake_sender()  # so that it counts the linger
        return future

    def encode_all(self, max_block_ms: int) -> None:
        """Queue whatever is gathered, for flush and close. Blocks at most `max_block_ms` each time it needs memory."""
        for records in list(self._topics.values()):
            self._encode_topic(records, max_block_ms)

    def encode_topic(self, topic: str) -> None:
        """Queue what is gathered for a topic, so that what comes by other ways follows it. Raises KafkaTimeoutError."""
        records = self._topics.get(topic)
        if records is not None and not self._encode_topic(records, self._max_block_ms):
            raise KafkaTimeoutError(
                f"records sent to {topic} before still wait for buffer memory after max.block.ms={self._max_block_ms}",
                condition="KAFKA_BUFFER_EXHAUSTED",
            )

    def encode_lingered(self, now_ms: int, at_once: bool) -> int:
        """Sender: queue what has waited for linger.ms; returns how long nothing more will be due. Never waits."""
        delay_ms = NEVER_MS
        for records in list(self._topics.values()):
            chunk = records.chunk
            if chunk is None:
                continue
            remaining_ms = 0 if at_once else chunk.created_ms + self._linger_ms - now_ms
            if remaining_ms > 0:
                delay_ms = min(delay_ms, remaining_ms)
            elif not self._encode_topic(records, None):
                delay_ms = min(delay_ms, max(1, self._linger_ms))  # somebody is at it, and may not take what came last
        return delay_ms

    def close(self) -> None:
        """Refuse further records."""
        self._closed = True
        for records in list(self._topics.values()):
            with records.lock:  # whoever was adding has added
                continue

    def abort(self, error: KafkaError) -> None:
        """Fail what is gathered and not queued yet."""
        for records in list(self._topics.values()):
            chunk = self._take(records)
            if chunk is not None:
                chunk.abandon_all(error)

    def _encode_topic(self, records: _TopicRecords, max_block_ms: int | None) -> bool:
        """Queue a topic's chunk. False if another thread is queueing the one before, and time ran out for waiting."""
        if not records.encoding.acquire(timeout=0 if max_block_ms is None else max_block_ms / 1000):
            return False
        try:
            chunk = self._take(records)
            if chunk is not None:
                self._encode(chunk, max_block_ms)
            return True
        finally:
            records.encoding.release()

    def _take(self, records: _TopicRecords) -> GatheredRecords | None:
        with records.lock:
            chunk, records.chunk = records.chunk, None
        if chunk is not None:
            chunk.seal()
        return chunk


# FROM RECORDS TO COLUMNS

_HEADERS = pa.map_(pa.string(), pa.binary())


def columns_of(records: Sequence[GatheredRecord]) -> RecordColumns:
    keys, values, _, headers, timestamps, _ = zip(*records, strict=True)
    return record_columns(
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()) if any(key is not None for key in keys) else None,
        pa.array(headers, _HEADERS) if any(headers) else None,
        np.array(timestamps, np.int64),
    )


def checked_headers(headers: Sequence[tuple[str, bytes | None]]) -> Sequence[tuple[str, bytes | None]]:
    """The headers, if they are what a record can have. Raises SerializationError."""
    for name, value in headers:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise SerializationError(
                f"a header must be a str and bytes or None, not {type(name).__name__} and {type(value).__name__}"
            )
    return headers


RECORD_OVERHEAD = BATCH_HEADER_SIZE + MAX_RECORD_OVERHEAD


def headers_bound(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes that headers take in a record, at most: each length is a varint of up to five."""
    return sum(10 + len(name.encode()) + len(value or b"") for name, value in headers)
