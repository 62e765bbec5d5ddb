"""Gathers records that were sent one by one into chunks, and has the chunks encoded when they are due.

`send` only appends a record to the lists of its topic's chunk (record_chunk.py). A chunk is encoded when it holds a batch's
worth of bytes, on the thread of the caller who filled it; when linger.ms is over, on the Sender's; or at flush and close.
ColumnSender does the encoding.
Laws: the chunks of a topic are encoded one at a time, in the order in which they were begun, so records keep their order.
A record is gathered only after buffer memory has been charged for its size bound. Its caller waits for that memory; encoding the
chunk later waits for nothing, because the charge covers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, closed_error
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.hand_overs import ORDINARY_ERRORS, HandOver, HandOvers
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.record_chunk import GatheredRecord, RecordChunk, RecordFuture

MIN_CHUNK_BYTES = 512 * 1024  # a chunk costs some 0.2 ms however small it is; linger.ms bounds how long it is gathered
CHUNK_SHARE = 4  # but no chunk takes more than a quarter of buffer.memory


class _TopicLocks:
    def __init__(self) -> None:
        self.chunk = threading.Lock()  # guards the topic's entry in RecordGatherer.chunks
        # The calls that encode a chunk. They are of one thread: encoding may call a callback with an error, and that callback may
        # send again. HandOvers guards it, and lets one thread look at a time.
        self._encoders: list[HandOver] = []

    def admit(self, hand_over: HandOver) -> bool:
        """Whether the call may encode now. If so, it may until it is over."""
        self._encoders = [each for each in self._encoders if each.call.locked()]
        if any(each.thread_id != hand_over.thread_id for each in self._encoders):
            return False
        self._encoders.append(hand_over)
        return True


@dataclass(eq=False, repr=False)
class RecordGatherer:
    config: ProducerConfig
    clock: Clock  # for linger.ms and bounded waits
    accumulator: RecordAccumulator  # where memory comes from
    hand_overs: HandOvers  # records and chunks are handed over under its rule
    # Queues a sealed chunk, or fails its records. It uses the chunk's charge and never waits for memory.
    encode: Callable[[HandOver, RecordChunk], None]
    # Whether the calling thread may wait for memory. The Sender's thread must not: it would wait for itself.
    may_wait: Callable[[], bool] = lambda: True
    interceptors: Interceptors | None = None  # chunks report outcomes to them

    def __post_init__(self) -> None:
        self._pool = self.accumulator.pool
        # No larger than a batch or a request: the Sender may have to encode it at once.
        wanted = max(min(self.config.batch_size, self.config.max_request_size), MIN_CHUNK_BYTES)
        self.chunk_bytes = min(wanted, max(1, self._pool.total_memory // CHUNK_SHARE))
        self.chunks: dict[str, RecordChunk] = {}  # by topic; those that take records
        self._topics: dict[str, _TopicLocks] = {}  # grows only
        self._not_queued: set[RecordChunk] = set()  # chunks with records that may be in no batch
        self._closed = False
        self._ended_by: KafkaError | None = None

    def begin(self, topic: str, cluster: Cluster, record: GatheredRecord) -> RecordFuture:
        """Add a record to the topic's chunk, after waiting for memory if need be; begin a chunk if there is none.

        Blocks at most max.block.ms for memory, and as encode_full does.

        Raises:
            ProducerClosedError: the producer is closed, or was closed during the wait.
            RecordTooLargeError: the record is larger than buffer.memory.
            KafkaTimeoutError: there was not enough memory in time.
        """
        open_chunk = self.chunks.get(topic)
        future = None if open_chunk is None else open_chunk.add(*record)
        if open_chunk is not None and future is not None:
            is_full = open_chunk.size_bytes >= self.chunk_bytes
        else:
            future, is_full = self.hand_overs.run(self._add, topic, cluster, record)
        if is_full:
            self.encode_full(topic)
        return future

    def _add(self, hand_over: HandOver, topic: str, cluster: Cluster, record: GatheredRecord) -> tuple[RecordFuture, bool]:
        """The record's future, and whether its chunk is full."""
        locks = self._topics.get(topic) or self._topics.setdefault(topic, _TopicLocks())
        memory = PoolMemory()
        try:
            while True:
                with locks.chunk:
                    if self._closed:
                        raise closed_error(self._ended_by, "Cannot send: the producer is closed or being closed")
                    chunk = self.chunks.get(topic)
                    missing_bytes = record.size_bytes if chunk is None else chunk.missing_bytes(record.size_bytes)
                    missing = self._pool.blocks_for(missing_bytes)
                    had = 0 if chunk is None else chunk.memory.charged
                    is_sealed = chunk is not None and chunk.is_sealed  # an interrupt has cut off a record
                    if missing <= memory.charged and not is_sealed:
                        hand_over.begin()
                        begins = chunk is None
                        if chunk is None:
                            chunk = RecordChunk(topic, cluster, self.clock, self.interceptors)
                            self._not_queued.add(chunk)
                        chunk.charge(memory, self._pool.block_size)
                        future = chunk.add(*record)
                        if future is not None:
                            if begins:
                                self.chunks[topic] = chunk
                            break
                        continue  # another thread has used that memory for its record
                if is_sealed:
                    self.encode_topic(topic)
                else:
                    self._charge(hand_over, missing - memory.charged, had, memory)
        except ORDINARY_ERRORS:
            self._pool.deallocate(memory)
            raise
        is_full = chunk.size_bytes >= self.chunk_bytes
        if begins and not is_full:
            self.accumulator.wake_sender()  # linger.ms begins
        return future, is_full

    def _charge(self, hand_over: HandOver, missing: int, had: int, memory: PoolMemory) -> None:
        """Charge memory for a record. Where possible doubles the chunk's charge, up to a full chunk, to take few steps."""
        hand_over.begin()
        ample = min(had, self._pool.blocks_for(self.chunk_bytes) - had)
        if ample > missing and self._pool.try_allocate(0, charge=ample, into=memory) is not None:
            return
        if self._pool.try_allocate(0, charge=missing, into=memory) is not None:
            return
        if not self.may_wait():
            raise KafkaTimeoutError(
                "there is no buffer memory for a record that was sent in a callback. A callback cannot wait for memory, because"
                " its own thread gives memory back; raise buffer.memory, or send from another thread",
                condition="KAFKA_BUFFER_EXHAUSTED",
            )
        if not memory:
            hand_over.wait_begins()
        self.accumulator.wait_for_memory(0, missing, memory, hand_over.begin)

    def encode_full(self, topic: str) -> None:
        """Queue a topic's chunk, which has reached `chunk_bytes`. Blocks while another thread encodes one of the topic.

        Errors go to the records.
        """
        self._encode_topic(topic, self.config.max_block_ms)

    def encode_all(self, deadline_ms: int) -> bool:
        """Queue everything gathered, for flush and close. False if another thread still encodes at the deadline."""
        done = True
        for topic in list(self._topics):
            done &= self._encode_topic(topic, max(0, deadline_ms - self.clock.now_ms()))
        return done

    def encode_topic(self, topic: str) -> None:
        """Queue what is gathered for a topic, before rows of `send_columns` follow. Raises KafkaTimeoutError."""
        if topic in self._topics and not self._encode_topic(topic, self.config.max_block_ms):
            raise KafkaTimeoutError(
                f"another thread is still encoding earlier records for {topic} after max.block.ms={self.config.max_block_ms}"
            )

    def encode_lingered(self, now_ms: int, at_once: bool) -> int:
        """Queue what has waited for linger.ms; returns in how many ms the next chunk is due. Sender thread; never waits."""
        delay_ms = NEVER_MS
        for topic, chunk in list(self.chunks.items()):
            remaining_ms = 0 if at_once else chunk.created_ms + self.config.linger_ms - now_ms
            if remaining_ms > 0:
                delay_ms = min(delay_ms, remaining_ms)
            elif not self._encode_topic(topic, 0):
                delay_ms = min(delay_ms, max(1, self.config.linger_ms))  # another thread encodes the chunk before this one
        return delay_ms

    def leave_behind(self) -> None:
        """In a forked child, or when an interrupt has ended the producer: without a chunk, `send` makes all its checks."""
        self.chunks.clear()

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Take no more records. `ended_by`: why the producer ended, if not by close(). Called again without, it keeps it."""
        if ended_by is not None:
            self._ended_by = ended_by
        self._closed = True
        for topic, locks in list(self._topics.items()):
            with locks.chunk:
                chunk = self.chunks.get(topic)
                if chunk is not None:
                    chunk.refuse_records()

    def take_all(self) -> list[RecordChunk]:
        """The chunks that are gathered and not queued yet, to be failed. Their memory is given back. Sender thread."""
        taken = [chunk for topic in list(self._topics) if (chunk := self._take(topic)) is not None]
        for chunk in taken:
            self._finish(chunk)
        return taken

    def take_unfinished(self) -> list[RecordChunk]:
        """After `close`: the chunks with records that may be in no batch, because a call that encodes them was interrupted or is
        not over. Sender thread.
        """
        unfinished = list(self._not_queued)
        for chunk in unfinished:
            chunk.seal()
        return unfinished

    def _encode_topic(self, topic: str, timeout_ms: int) -> bool:
        """Queue a topic's chunk. False if another thread was still encoding the chunk before it when time ran out."""
        return self.hand_overs.run(self._encode_next, topic, self.clock.now_ms() + timeout_ms)

    def _encode_next(self, hand_over: HandOver, topic: str, deadline_ms: int) -> bool:
        locks = self._topics[topic]
        if not self.hand_overs.wait_until(lambda: locks.admit(hand_over), deadline_ms):
            return False
        hand_over.begin()
        chunk = self._take(topic)
        if chunk is not None:
            try:
                self.encode(hand_over, chunk)
            except ORDINARY_ERRORS:
                self._finish(chunk)
                raise
            self._finish(chunk)
        return True

    def _finish(self, chunk: RecordChunk) -> None:
        """Each of its records is in a batch, or has failed."""
        self._pool.deallocate(chunk.memory)
        self._not_queued.discard(chunk)

    def _take(self, topic: str) -> RecordChunk | None:
        with self._topics[topic].chunk:
            chunk = self.chunks.pop(topic, None)
        if chunk is not None:
            chunk.seal()
        return chunk
