"""Records that were sent one by one, gathered into columns: from there on they are rows like any others.

`send` only appends to a list. A topic's list becomes a chunk of columns when it holds a batch's worth of bytes, on the thread of
the caller who filled it; when linger.ms is over, on the Sender's; or at flush and close. Knows how to gather and how to tell
each record its fate; KafkaProducer knows how to encode a chunk.
Law: chunks of a topic are encoded one at a time in the order they were begun, so records keep their order.
Law: a record is gathered when buffer memory has been charged for its size bound. Whoever sends it waits for that, and nobody for
anything when the chunk is encoded: its charge covers that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import NEVER_MS, Clock, milliseconds, wait_seconds
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, closed_error, for_keeping, fresh_copy
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer import forks
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, Part
from spark_kafka_sink.producer.producer_record import ProducerRecord, RecordMetadata, whole_number
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_batch import BATCH_HEADER_SIZE, MAX_RECORD_OVERHEAD
from spark_kafka_sink.records.varint import Int64Column

logger = logging.getLogger(__name__)

Callback = Callable[[RecordMetadata | None, KafkaError | None], None]

MIN_CHUNK_BYTES = 512 * 1024  # a chunk costs some 0.2 ms however small it is; linger.ms bounds how long it is gathered
CHUNK_SHARE = 4  # but no chunk takes more of buffer.memory than a quarter
_NO_LIMIT = 2**62
_SEALED = -1
HEADERS = pa.map_(pa.string(), pa.binary())  # of records that were made one by one
_PENDING = -1  # in a column of indexes into a chunk's acknowledgements: neither acknowledged nor failed
_FAILED = -2


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
            raise fresh_copy(error)
        return self._chunk.metadata_of(self._index)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The record's error, or None once it is written. Blocks as `result` does."""
        self._chunk.await_settled(self._index, timeout)
        return self._chunk.error_of(self._index)


class RecordDetails(NamedTuple):
    """What few records say, so that the others need not carry it."""

    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


class _Acknowledgement(NamedTuple):
    part: Part
    base_offset: int
    log_append_time_ms: int


class GatheredPayload(NamedTuple):
    """One entry a record, as `record_columns` takes them."""

    value: pa.Array
    key: pa.Array | None
    headers: pa.Array | None
    timestamps: Int64Column


class GatheredRecords:
    """A chunk in the making, then the owner of its rows: the Sender reports to it, futures ask it.

    Columns from the start: lists that `append` fills, one entry a record, and dicts of what only some records have.
    """

    def __init__(self, topic: str, cluster: Cluster, clock: Clock) -> None:
        self.topic = topic
        self.created_ms = clock.now_ms()  # linger.ms and delivery.timeout.ms count from the first record
        self.cluster = cluster  # in which the topic is known
        self.memory = PoolMemory()  # a charge, for whoever has the chunk encoded
        self._lock = threading.Lock()  # guards what `add` fills
        self._room_bytes = _NO_LIMIT  # what `size_bytes` may come to, or _SEALED
        self.size_bytes = 0  # by the records' bounds
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.sent_s: list[float] = []  # when, in seconds since 1970: the timestamp of records that bring none
        self.details: dict[int, RecordDetails] = {}
        self.callbacks: list[Callback | None] = []
        self._clock = clock
        self._generation = forks.generation()
        self._settled = threading.Condition()  # guards the four below; notified whenever some row is settled
        self._acknowledgements: list[_Acknowledgement] = []
        self._looked_up = 0  # so many of them are in the column below: they are put there when a future asks
        self._fates: npt.NDArray[np.int32] | None = None  # int32[n]: _PENDING, _FAILED or an index; None: not sealed yet
        self._errors: dict[int, KafkaError] = {}
        self.columns: RecordColumns | None = None  # without payloads: for RecordMetadata

    def __len__(self) -> int:
        return len(self.callbacks) if self._fates is None else len(self._fates)

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        callback: Callback | None,
        size_bytes: int,
        details: RecordDetails | None = None,
    ) -> RecordFuture | None:
        """Take a record in; None if the chunk takes no more, or has no room before more memory is charged."""
        self._lock.acquire()  # not `with`, which takes twice as long
        try:
            size = self.size_bytes + size_bytes
            if size > self._room_bytes:
                return None
            callbacks = self.callbacks
            index = len(callbacks)
            self.values.append(value)
            self.keys.append(key)
            self.sent_s.append(self._clock.wall_s())
            if details is not None:
                self.details[index] = details
            self.size_bytes = size
            callbacks.append(callback)
            return RecordFuture(self, index)
        except BaseException:  # Ctrl-C in between: columns of different lengths would fail all the others too
            self._drop_half_a_record()
            raise
        finally:
            self._lock.release()

    def _drop_half_a_record(self) -> None:
        if self._room_bytes != _SEALED:
            columns: tuple[list[Any], ...] = (self.values, self.keys, self.sent_s, self.callbacks)
            rows = min(len(column) for column in columns)
            for column in columns:
                del column[rows:]
            self.details.pop(rows, None)

    def charge(self, memory: PoolMemory, block_size: int) -> None:
        """Take records for as much memory as this, and what it had before; nothing is left of `memory`."""
        with self._lock:
            self.memory.add(memory)
            self._room_bytes = self.memory.charged * block_size

    def missing_bytes(self, size_bytes: int) -> int:
        """How much has to be charged before a record of this size has room."""
        return max(0, self.size_bytes + size_bytes - self._room_bytes)

    def refuse_records(self) -> None:
        with self._lock:
            self._room_bytes = _SEALED

    def seal(self) -> None:
        """No record is added from here on, and the Sender may report."""
        self.refuse_records()
        rows = len(self)
        with self._settled:
            self._fates = np.full(rows, _PENDING, np.int32)
            if self.callbacks.count(None) == rows:
                self.callbacks = []

    def explicit_partitions(self, none: int) -> npt.NDArray[np.int32]:
        """int32[n]: what records say themselves, `none` where they do not."""
        partitions = np.full(len(self), none, np.int32)
        said = {row: each.partition for row, each in self.details.items() if each.partition is not None}
        partitions[list(said)] = list(said.values())
        return partitions

    def payload_columns(self) -> GatheredPayload:
        """What the records hold, as Arrow arrays."""
        timestamps = (np.array(self.sent_s) * 1000 + 0.0005).astype(
            np.int64
        )  # half of what a double leaves of a second's fraction
        given = {row: each.timestamp for row, each in self.details.items() if each.timestamp is not None}
        timestamps[list(given)] = list(given.values())
        rows, headers = len(self.values), None
        if any(each.headers for each in self.details.values()):
            none = RecordDetails()
            headers = pa.array([self.details.get(row, none).headers for row in range(rows)], HEADERS)
        keys = pa.array(self.keys, pa.binary()) if self.keys.count(None) < rows else None
        return GatheredPayload(pa.array(self.values, pa.binary()), keys, headers, timestamps)

    def become(self, columns: RecordColumns) -> None:
        """From here on the records are rows of these columns; what is kept here are sizes and timestamps, not the payloads."""
        self.columns = replace(columns, key=None, value=None, headers=None)
        self.values, self.keys, self.sent_s = [], [], []

    # OUTCOMES: Sender thread, or a caller whose chunk could not be queued

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        acknowledgement = _Acknowledgement(part, base_offset, log_append_time_ms)
        with self._settled:
            self._acknowledgements.append(acknowledgement)
            self._settled.notify_all()
        if self.callbacks:
            self._call_back(part.rows, self._metadata(acknowledgement), repeat(None))

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
        self._fail_rows(rows, dict.fromkeys(rows.tolist(), for_keeping(error)))

    def abandon_all(self, error: KafkaError) -> None:
        self.abandon(np.arange(len(self), dtype=np.int32), error)

    def _fail_rows(self, rows: npt.NDArray[np.int32], errors: dict[int, KafkaError]) -> None:
        with self._settled:
            assert self._fates is not None
            self._fates[rows] = _FAILED
            self._errors.update(errors)
            self._settled.notify_all()
        if self.callbacks:
            self._call_back(rows, repeat(None), map(errors.get, rows.tolist()))

    def _call_back(
        self, rows: npt.NDArray[np.int32], outcomes: Iterable[RecordMetadata | None], errors: Iterable[KafkaError | None]
    ) -> None:
        """Every record's, whatever one of them raises. What is no Exception, like SystemExit, is raised again at the end."""
        ended_by: BaseException | None = None
        callbacks = map(self.callbacks.__getitem__, rows.tolist())
        for callback, metadata, error in zip(callbacks, outcomes, errors, strict=False):
            if callback is None:
                continue
            try:
                callback(metadata, error)
            except Exception:
                logger.exception("! the callback of a record for %s raised", self.topic)
            except BaseException as raised:  # noqa: BLE001 - raised below
                ended_by = ended_by or raised
        if ended_by is not None:
            raise ended_by

    def _metadata(self, acknowledged: _Acknowledgement, start: int = 0) -> Iterator[RecordMetadata]:
        """Of a part's rows from `start` on: by columns, so that little is left to do for each. May go on behind the last."""
        assert self.columns is not None
        part, base_offset, log_append_time_ms = acknowledged
        rows = part.rows[start:]
        offsets = repeat(UNKNOWN_OFFSET) if base_offset == UNKNOWN_OFFSET else count(base_offset + part.first_delta + start)
        times = _rows_of(self.columns.timestamps if log_append_time_ms < 0 else log_append_time_ms, rows)
        sizes = (_rows_of(lengths, rows) for lengths in (self.columns.key_lengths, self.columns.value_lengths))
        return map(_new_metadata, zip(repeat(self.topic), repeat(part.topic_partition.partition), offsets, times, *sizes))

    # ANSWERS: any thread

    def is_settled(self, row: int) -> bool:
        return self._fate(row) != _PENDING

    def _fate(self, row: int) -> int:
        if forks.is_forked(self._generation):
            self._settled = threading.Condition()  # whoever held the lock does not live in this process
        with self._settled:
            if self._fates is None:
                return _PENDING
            for index in range(self._looked_up, len(self._acknowledgements)):
                self._fates[self._acknowledgements[index].part.rows] = index
            self._looked_up = len(self._acknowledgements)
            return int(self._fates[row])

    def await_settled(self, row: int, timeout_s: float | None) -> None:
        if forks.is_forked(self._generation) and not self.is_settled(row):
            forks.check_not_forked(self._generation, "the producer of this record")
        deadline_ms = None if timeout_s is None else self._clock.now_ms() + milliseconds(timeout_s)
        with self._settled:
            while not self.is_settled(row):
                remaining_ms = 3_600_000 if deadline_ms is None else deadline_ms - self._clock.now_ms()
                if remaining_ms <= 0:
                    raise KafkaTimeoutError(f"a record for {self.topic} is not acknowledged after {timeout_s} s")
                self._clock.wait(self._settled, remaining_ms)

    def error_of(self, row: int) -> KafkaError | None:
        return self._errors.get(row)

    def metadata_of(self, row: int) -> RecordMetadata:
        """Of a row that is acknowledged."""
        acknowledged = self._acknowledgements[self._fate(row)]
        return next(self._metadata(acknowledged, int(np.argmax(acknowledged.part.rows == row))))


def _rows_of(column: Int64Column | int, rows: npt.NDArray[np.int32]) -> Iterable[int]:
    """The column's values for these rows; forever, where all rows have the same."""
    if isinstance(column, int):
        return repeat(column)
    values: list[int] = column[rows].tolist()
    return values


def _lies_in(part: Part, index: int) -> bool:
    return 0 <= index - part.first_delta < part.row_count


# As RecordMetadata(*fields), in a third of the time: one is made for every record that has a callback.
_new_metadata = cast(Callable[[tuple[object, ...]], RecordMetadata], partial(tuple.__new__, RecordMetadata))

NewChunk = Callable[[str, Cluster, Clock], GatheredRecords]


def failed_record(
    topic: str,
    callback: Callback | None,
    details: RecordDetails | None,
    error: KafkaError,
    clock: Clock,
    new_chunk: NewChunk = GatheredRecords,
) -> RecordFuture:
    """The future of a record that could not even be gathered; its callback has been called."""
    chunk = new_chunk(topic, Cluster(), clock)
    future = chunk.add(None, None, callback, 0, details)
    assert future is not None
    chunk.seal()
    chunk.abandon_all(error)
    return future


class MemorySource(Protocol):
    """What gathering needs of RecordAccumulator."""

    pool: BufferPool

    def wait_for_memory(
        self, block_count: int, charge: int, into: PoolMemory, max_block_ms: int, wake_sender: Callable[[], None]
    ) -> None: ...


class _TopicLocks:
    def __init__(self) -> None:
        # Held while a chunk is encoded; the Sender takes it only if it is free. Reentrant: a callback that is told of a failure
        # meanwhile, on the same thread, may send again.
        self.encoding = threading.RLock()
        self.chunk = threading.Lock()  # guards the beginning and the taking of the topic's chunk


class RecordGatherer:
    """Args:
    chunk_bytes: how much makes a chunk.
    linger_ms: how long a chunk that is not full waits for more records.
    max_block_ms: how long a caller waits for memory, and for another's chunk to be encoded.
    encode: queues a sealed chunk, whose records it settles if it fails. It uses the chunk's charge, and never waits for memory.
    wake_sender: called when a chunk is begun.
    source: of memory.
    new_chunk: makes a chunk; interceptors have chunks of their own.
    may_wait: whether this thread may wait for memory. The Sender's, in a callback, may not: it would wait for itself.
    """

    def __init__(
        self,
        chunk_bytes: int,
        linger_ms: int,
        max_block_ms: int,
        encode: Callable[[GatheredRecords], None],
        wake_sender: Callable[[], None],
        clock: Clock,
        source: MemorySource,
        new_chunk: NewChunk = GatheredRecords,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self._new_chunk = new_chunk
        self._source = source
        self._pool = source.pool
        self._may_wait = may_wait
        self.chunk_bytes = min(max(chunk_bytes, MIN_CHUNK_BYTES), max(1, self._pool.total_memory // CHUNK_SHARE))
        self.chunks: dict[str, GatheredRecords] = {}  # by topic: those that take records
        self._linger_ms = linger_ms
        self._max_block_ms = max_block_ms
        self._encode = encode
        self._wake_sender = wake_sender
        self._clock = clock
        self._topics: dict[str, _TopicLocks] = {}  # grows only
        self._closed = False
        self._ended_by: KafkaError | None = None

    def begin(
        self,
        topic: str,
        cluster: Cluster,
        key: bytes | None,
        value: bytes | None,
        callback: Callback | None,
        size_bytes: int,
        details: RecordDetails | None = None,
    ) -> RecordFuture:
        """Take a record into the topic's chunk when there is memory for it; begin a chunk if there is none.

        Blocks at most max.block.ms for memory, and as encode_full.

        Raises:
            ProducerClosedError: the producer is closed, or was while this waited.
            RecordTooLargeError, KafkaTimeoutError: no memory for the record at all, or not in time.
        """
        locks = self._topics.get(topic) or self._topics.setdefault(topic, _TopicLocks())
        memory = PoolMemory()
        try:
            while True:
                with locks.chunk:
                    if self._closed:
                        raise closed_error(self._ended_by, "Cannot send: the producer is closed or being closed")
                    chunk = self.chunks.get(topic)
                    missing = self._pool.blocks_for(size_bytes if chunk is None else chunk.missing_bytes(size_bytes))
                    had = 0 if chunk is None else chunk.memory.charged
                    if missing <= memory.charged:
                        begins = chunk is None
                        if chunk is None:
                            chunk = self._new_chunk(topic, cluster, self._clock)
                        chunk.charge(memory, self._pool.block_size)
                        future = chunk.add(key, value, callback, size_bytes, details)
                        if future is not None:
                            if begins:
                                self.chunks[topic] = chunk
                            break
                        continue  # somebody else was faster to use the room
                self._charge(missing - memory.charged, had, memory)
        finally:
            if memory:
                self._pool.deallocate(memory)
        if chunk.size_bytes >= self.chunk_bytes:
            self.encode_full(topic)
        elif begins:
            self._wake_sender()  # so that it counts the linger
        return future

    def _charge(self, missing: int, had: int, memory: PoolMemory) -> None:
        """Charge for a record, or for as much again as its chunk has, up to a full one: so that it takes few steps to fill."""
        ample = min(had, self._pool.blocks_for(self.chunk_bytes) - had)
        if ample > missing and self._pool.try_allocate(0, charge=ample, into=memory) is not None:
            return
        if self._pool.try_allocate(0, charge=missing, into=memory) is not None:
            return
        if not self._may_wait():
            raise KafkaTimeoutError(
                "there is no buffer memory for a record that was sent in a callback, which cannot wait for any: memory comes back"
                " on the thread that calls callbacks; raise buffer.memory, or send from another thread",
                condition="KAFKA_BUFFER_EXHAUSTED",
            )
        self._source.wait_for_memory(0, missing, memory, self._max_block_ms, self._wake_sender)

    def encode_full(self, topic: str) -> None:
        """Queue a topic's chunk, which has reached `chunk_bytes`. Blocks while others encode one; errors go to the records."""
        self._encode_topic(topic, self._max_block_ms)

    def encode_all(self, deadline_ms: int) -> bool:
        """Queue whatever is gathered, for flush and close. False if others are still encoding at the deadline; nothing fails."""
        done = True
        for topic in list(self._topics):
            done &= self._encode_topic(topic, max(0, deadline_ms - self._clock.now_ms()))
        return done

    def encode_topic(self, topic: str) -> None:
        """Queue what is gathered for a topic, so that what comes by other ways follows it. Raises KafkaTimeoutError."""
        if topic in self._topics and not self._encode_topic(topic, self._max_block_ms):
            raise KafkaTimeoutError(
                f"records sent to {topic} before are still being encoded by another thread after"
                f" max.block.ms={self._max_block_ms}"
            )

    def encode_lingered(self, now_ms: int, at_once: bool) -> int:
        """Sender: queue what has waited for linger.ms; returns how long nothing more will be due. Never waits."""
        delay_ms = NEVER_MS
        for topic, chunk in list(self.chunks.items()):
            remaining_ms = 0 if at_once else chunk.created_ms + self._linger_ms - now_ms
            if remaining_ms > 0:
                delay_ms = min(delay_ms, remaining_ms)
            elif not self._encode_topic(topic, 0):
                delay_ms = min(delay_ms, max(1, self._linger_ms))  # somebody is at it, and may not take what came last
        return delay_ms

    def leave_behind(self) -> None:
        """In a fork: without a chunk that takes records, `send` makes all its checks."""
        self.chunks.clear()

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Refuse further records; `ended_by` says why, if nobody asked for it."""
        self._ended_by = ended_by
        self._closed = True
        for topic, locks in list(self._topics.items()):
            with locks.chunk:
                chunk = self.chunks.get(topic)
                if chunk is not None:
                    chunk.refuse_records()

    def take_all(self) -> list[GatheredRecords]:
        """Sender: the chunks that are gathered and not queued yet, to be failed. Their memory has been given back."""
        taken = [chunk for topic in list(self._topics) if (chunk := self._take(topic)) is not None]
        for chunk in taken:
            self._pool.deallocate(chunk.memory)
        return taken

    def _encode_topic(self, topic: str, timeout_ms: int) -> bool:
        """Queue a topic's chunk. False if another thread is queueing the one before, and time ran out for waiting."""
        encoding = self._topics[topic].encoding
        if not encoding.acquire(timeout=wait_seconds(timeout_ms)):
            return False
        try:
            chunk = self._take(topic)
            if chunk is not None:
                try:
                    self._encode(chunk)
                finally:
                    self._pool.deallocate(chunk.memory)
            return True
        finally:
            encoding.release()

    def _take(self, topic: str) -> GatheredRecords | None:
        with self._topics[topic].chunk:
            chunk = self.chunks.pop(topic, None)
        if chunk is not None:
            chunk.seal()
        return chunk


# SIZES AND CHECKS, AT SEND

_FIELDS = ("topic", "value", "key", "partition", "headers", "timestamp", "callback")
_FORMS = "use send(record, callback), or send(topic, value, key=…, partition=…, headers=…, timestamp=…, callback=…)"


def record_of_arguments(
    topic: object, value: object, callback: Callback | None, fields: dict[str, Any]
) -> tuple[ProducerRecord, Callback | None]:
    """The record and callback of send(topic, value, …). Raises TypeError when the arguments are neither of its forms."""
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise TypeError(f"{', '.join(unknown)} is no argument of send(), which has {', '.join(_FIELDS)}; {_FORMS}")
    if isinstance(topic, ProducerRecord):
        raise _beside_a_record(value, callback, fields)
    if topic is not None and "topic" in fields:
        raise TypeError(f"send() has two topics; {_FORMS}")
    topic = fields.pop("topic", topic)
    if not isinstance(topic, str):
        raise TypeError(f"send() needs a ProducerRecord or the name of a topic first, not {type(topic).__name__}; {_FORMS}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}; {_FORMS}")
    return ProducerRecord(topic, value, **fields), callback


def _beside_a_record(value: object, callback: object, fields: Mapping[str, Any]) -> TypeError:
    if fields:
        return TypeError(f"{', '.join(fields)} is given beside a ProducerRecord, which says that itself; {_FORMS}")
    if value is not None and callback is not None:
        return TypeError(f"send() has two arguments beside a ProducerRecord, where only a callback may be; {_FORMS}")
    wrong = callback if value is None else value
    return TypeError(f"beside a ProducerRecord send() takes a callback, not {type(wrong).__name__}; {_FORMS}")


def checked_details(record: ProducerRecord) -> RecordDetails:
    """What a record says beside key and value.

    Raises SerializationError for headers, TypeError for what is no int, ValueError for numbers out of range.
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
    """The headers, if they are what a record can have. Raises SerializationError."""
    if headers is None:
        return ()
    pairs: tuple[Any, ...] = tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, Mapping) else (headers,)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SerializationError(f"headers must be (name, value) pairs, of which a {type(pair).__name__} is none")
        name, value = pair
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise SerializationError(
                f"a header must be a str and bytes or None, not {type(name).__name__} and {type(value).__name__}"
            )
    return pairs


RECORD_OVERHEAD = BATCH_HEADER_SIZE + MAX_RECORD_OVERHEAD


def headers_bound(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes that headers take in a record, at most: each length is a varint of up to five."""
    return sum(10 + len(name.encode()) + len(value or b"") for name, value in headers)
