"""Gathers records that were sent one by one into bundles, and has the bundles encoded when they are due.

`send` only appends a record to the lists of its topic's bundle (record_bundle.py). A bundle is encoded when it holds
`bundle_bytes`, on the thread of the caller who filled it; when linger.ms is over, on the Sender's; or on the thread of a caller
whose call needs it queued: flush, close, send_columns, send_table, the begin and end of a transaction. ColumnSender encodes it.
Laws: the bundles of a topic are encoded one at a time, in the order in which they were begun, so records keep their order.
A record is gathered only after buffer memory has been charged for its size bound. Its caller waits for that memory; encoding the
bundle later waits for nothing, because the charge covers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, closed_error
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.accumulator.slice_layout import MemoryNeed
from spark_kafka_sink.producer.hand_overs import CLEANED_UP_ERRORS, HandOver, HandOvers
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.single_records.record_bundle import GatheredRecord, RecordBundle, RecordFuture

MIN_BUNDLE_BYTES = 512 * 1024  # a bundle costs some 0.2 ms however small it is; linger.ms bounds how long it is gathered
MAX_BUNDLE_SHARE = 0.25  # of buffer.memory, at which a bundle is full in any case; a single large record may take more


class _TopicEncoding:
    """Which call may encode bundles of a topic now."""

    def __init__(self) -> None:
        self.bundle_lock = threading.Lock()  # guards the topic's entry in RecordGatherer.bundles
        # The calls that encode bundles of the topic now, all of one thread. There are several if encoding fails a record whose
        # callback sends again. Only `admit_locked` uses it, under the lock of HandOvers.
        self._encoding_calls: list[HandOver] = []

    def admit_locked(self, hand_over: HandOver) -> bool:
        """Let the call encode until it is over. False if another thread encodes for the topic."""
        self._encoding_calls = [each for each in self._encoding_calls if each.liveness_lock.locked()]
        if any(each.thread_id != hand_over.thread_id for each in self._encoding_calls):
            return False
        self._encoding_calls.append(hand_over)
        return True


class _Addition(NamedTuple):
    """A record that was added to a bundle."""

    future: RecordFuture
    bundle: RecordBundle
    begins_bundle: bool


@dataclass(eq=False, repr=False)
class RecordGatherer:
    """Gathers single records in a bundle for each topic, and has bundles encoded when they are due."""

    config: ProducerConfig
    clock: Clock  # for linger.ms and bounded waits
    accumulator: RecordAccumulator  # where memory comes from
    hand_overs: HandOvers  # runs calls that hand records and bundles over
    # Encodes a sealed bundle: its records become columns, whose rows are queued, or fail. Never waits for memory.
    encode_bundle: Callable[[HandOver, RecordBundle], None]
    may_wait: Callable[[], bool] = lambda: True  # for memory; as KafkaProducer._may_wait
    interceptors: Interceptors | None = None  # bundles report outcomes to them

    def __post_init__(self) -> None:
        self._pool = self.accumulator.pool
        # The smaller of a batch and a request, but at least MIN_BUNDLE_BYTES: the Sender may have to encode a bundle.
        target_bytes = max(min(self.config.batch_size, self.config.max_request_size), MIN_BUNDLE_BYTES)
        self.bundle_bytes = min(target_bytes, max(1, int(self._pool.total_memory * MAX_BUNDLE_SHARE)))
        self.bundles: dict[str, RecordBundle] = {}  # the bundles that take records, by topic
        self._encodings: dict[str, _TopicEncoding] = {}  # grows only
        self._unfinished_bundles: set[RecordBundle] = set()  # bundles with records that may be in no batch
        self._is_closed = False
        self._ended_by: KafkaError | None = None

    def add(self, topic: str, cluster: Cluster, record: GatheredRecord) -> RecordFuture:
        """Add a record to the topic's bundle, after waiting for memory if need be; begin a bundle if there is none.

        Blocks at most max.block.ms for memory, and as encode_full does.

        Raises:
            ProducerClosedError: the producer is closed, or was closed during the wait.
            RecordTooLargeError: the record is larger than buffer.memory.
            KafkaTimeoutError: there was not enough memory in time, or the bundle is full and another thread still encodes.
        """
        open_bundle = self.bundles.get(topic)
        future = None if open_bundle is None else open_bundle.add(*record)
        if open_bundle is not None and future is not None:
            is_full = open_bundle.size_bytes >= self.bundle_bytes
        else:
            future, is_full = self.hand_overs.run(self._add, topic, cluster, record)
        if is_full:
            self.encode_full(topic)
        return future

    def _add(self, hand_over: HandOver, topic: str, cluster: Cluster, record: GatheredRecord) -> tuple[RecordFuture, bool]:
        """The record's future, and whether its bundle is full."""
        encoding = self._encodings.get(topic) or self._encodings.setdefault(topic, _TopicEncoding())
        memory = PoolMemory()  # charged, and not in a bundle yet
        addition = None
        try:
            while addition is None:
                with encoding.bundle_lock:
                    if self._is_closed:
                        raise closed_error(self._ended_by, "Cannot send: the producer is closed or being closed")
                    bundle = self.bundles.get(topic)
                    takes_no_more = bundle is not None and bundle.takes_no_more  # full, or an interrupt cut off a record
                    missing_blocks = self._missing_blocks(bundle, record) - memory.charge_blocks
                    if missing_blocks <= 0 and not takes_no_more:
                        hand_over.begin()
                        addition = self._add_locked(bundle, topic, cluster, record, memory)
                        continue
                if takes_no_more:
                    self.encode_topic(topic)
                else:
                    self._charge(hand_over, missing_blocks, 0 if bundle is None else bundle.memory.charge_blocks, memory)
        except CLEANED_UP_ERRORS:
            self._pool.deallocate(memory)
            raise
        is_full = addition.bundle.size_bytes >= self.bundle_bytes
        if addition.begins_bundle and not is_full:
            self.accumulator.wake_sender()  # linger.ms begins
        return addition.future, is_full

    def _missing_blocks(self, bundle: RecordBundle | None, record: GatheredRecord) -> int:
        return self._pool.blocks_for(record.size_bytes if bundle is None else bundle.missing_bytes(record.size_bytes))

    def _add_locked(
        self, bundle: RecordBundle | None, topic: str, cluster: Cluster, record: GatheredRecord, memory: PoolMemory
    ) -> _Addition | None:
        """Add a record to a bundle; None: to a new one. Returns None if another thread has used the memory for its record."""
        begins_bundle = bundle is None
        if bundle is None:
            bundle = RecordBundle(topic, cluster, self.clock, self.interceptors)
            self._unfinished_bundles.add(bundle)
        bundle.charge(memory, self._pool.block_size)
        future = bundle.add(*record)
        if future is None:
            return None
        if begins_bundle:
            self.bundles[topic] = bundle
        return _Addition(future, bundle, begins_bundle)

    def _charge(self, hand_over: HandOver, missing_blocks: int, charged_blocks: int, memory: PoolMemory) -> None:
        """Charge memory for a record. If possible doubles the bundle's charge, up to a full bundle, so that few calls charge."""
        hand_over.begin()
        ample_blocks = min(charged_blocks, self._pool.blocks_for(self.bundle_bytes) - charged_blocks)
        if ample_blocks > missing_blocks and self._pool.try_allocate(0, charge_blocks=ample_blocks, into=memory) is not None:
            return
        if self._pool.try_allocate(0, charge_blocks=missing_blocks, into=memory) is not None:
            return
        if not self.may_wait():
            raise KafkaTimeoutError(
                "there is no buffer memory for a record that was sent in a callback. A callback cannot wait for memory, because"
                " its own thread gives memory back; raise buffer.memory, or send from another thread",
                condition="KAFKA_BUFFER_EXHAUSTED",
            )
        if not memory:
            hand_over.begin_wait()
        self.accumulator.wait_for_memory(MemoryNeed(0, missing_blocks), memory, hand_over.begin)

    def encode_full(self, topic: str) -> None:
        """Encode a topic's bundle, which has reached `bundle_bytes`. Errors go to the records.

        Blocks at most max.block.ms while another thread encodes a bundle of the topic. If that takes longer, this bundle takes no
        more records, and the caller of the topic's next record waits, too.
        """
        if not self._encode_within(topic, self.config.max_block_ms):
            self._refuse_records(topic)

    def encode_all(self, deadline_ms: int) -> bool:
        """Encode all bundles, for flush, close and transactions. False if another thread still encodes at `deadline_ms`."""
        are_all_encoded = True
        for topic in list(self._encodings):
            are_all_encoded &= self._encode_within(topic, max(0, deadline_ms - self.clock.now_ms()))
        return are_all_encoded

    def encode_topic(self, topic: str) -> None:
        """Encode what is gathered for a topic, before rows of `send_columns`. Raises KafkaTimeoutError after max.block.ms."""
        if topic in self._encodings and not self._encode_within(topic, self.config.max_block_ms):
            raise KafkaTimeoutError(
                f"another thread is still encoding earlier records for {topic} after max.block.ms={self.config.max_block_ms}"
            )

    def encode_lingered(self, now_ms: int, is_all_due: bool) -> int:
        """Encode what has waited for linger.ms; returns in how many ms the next bundle is due. Sender thread; never waits."""
        delay_ms = NEVER_MS
        for topic, bundle in list(self.bundles.items()):
            left_ms = 0 if is_all_due else bundle.created_ms + self.config.linger_ms - now_ms
            if left_ms > 0:
                delay_ms = min(delay_ms, left_ms)
            elif not self._encode_within(topic, 0):
                delay_ms = min(delay_ms, max(1, self.config.linger_ms))  # another thread encodes the previous bundle
        return delay_ms

    def disable_fast_path(self) -> None:
        """For a forked child, or a producer that an interrupt has ended: without a bundle, `send` makes all its checks."""
        self.bundles.clear()

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Take no more records. `ended_by`: why the producer ended, if not by close(). A later call without it keeps it."""
        if ended_by is not None:
            self._ended_by = ended_by
        self._is_closed = True
        for topic in list(self._encodings):
            self._refuse_records(topic)

    def _refuse_records(self, topic: str) -> None:
        with self._encodings[topic].bundle_lock:
            bundle = self.bundles.get(topic)
            if bundle is not None:
                bundle.refuse_records()

    def take_gathered_bundles(self) -> list[RecordBundle]:
        """Take the bundles that no call encodes yet, for the caller to fail. Gives back their memory. Sender thread."""
        bundles = [bundle for topic in list(self._encodings) if (bundle := self._take_bundle(topic)) is not None]
        for bundle in bundles:
            self._finish_bundle(bundle)
        return bundles

    def take_unfinished_bundles(self) -> list[RecordBundle]:
        """Take the bundles whose encoding was interrupted or is not over, for the caller to fail. Some of their records may
        be in no batch. Called after `close`. Sender thread."""
        bundles = list(self._unfinished_bundles)
        for bundle in bundles:
            bundle.seal()
        return bundles

    def unfinished_record_count(self) -> int:
        """The records of bundles that are not encoded, or being encoded now. Takes no lock."""
        return sum(len(bundle) for bundle in tuple(self._unfinished_bundles))

    def _encode_within(self, topic: str, timeout_ms: int) -> bool:
        """Encode a topic's bundle. False if another thread was still encoding the previous bundle when time ran out."""
        return self.hand_overs.run(self._encode_when_admitted, topic, self.clock.now_ms() + timeout_ms)

    def _encode_when_admitted(self, hand_over: HandOver, topic: str, deadline_ms: int) -> bool:
        encoding = self._encodings[topic]
        if not self.hand_overs.wait_until(lambda: encoding.admit_locked(hand_over), deadline_ms):
            return False
        hand_over.begin()
        bundle = self._take_bundle(topic)
        if bundle is not None:
            try:
                self.encode_bundle(hand_over, bundle)
            except CLEANED_UP_ERRORS:
                self._finish_bundle(bundle)
                raise
            self._finish_bundle(bundle)
        return True

    def _finish_bundle(self, bundle: RecordBundle) -> None:
        """Give back a bundle's memory: each of its records is in a batch, has failed, or will be failed by the caller."""
        self._pool.deallocate(bundle.memory)
        self._unfinished_bundles.discard(bundle)

    def _take_bundle(self, topic: str) -> RecordBundle | None:
        with self._encodings[topic].bundle_lock:
            bundle = self.bundles.pop(topic, None)
        if bundle is not None:
            bundle.seal()
        return bundle
