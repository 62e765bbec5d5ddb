"""The rows that wait to be sent: callers append slices of columns, the Sender drains batches. Kafka's class of this name.

RecordAccumulator puts the parts of this package together for ColumnSender, RecordGatherer and the Sender. To append a slice, it
chooses partitions (built_in_partitioner.py), sorts the rows by partition (sorted_slice.py), reserves room for them in batches
(slice_layout.py) and encodes them (slice_writer.py). Work per partition and per batch is Python, work per row is not. drainer.py
decides which batches are sent.

Law: no thread waits for memory while it holds a reservation. A batch with a reservation is not drained, so its memory could never
come back. If the pool is empty, an append encodes the rows that have room, and only then waits. A slice of gathered records is
prepaid and never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, closed_error, fresh_copy
from spark_kafka_sink.interrupts import LiveCalls
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool, PoolMemory
from spark_kafka_sink.producer.accumulator.built_in_partitioner import BuiltInPartitioner
from spark_kafka_sink.producer.accumulator.delivery import RowsCallback
from spark_kafka_sink.producer.accumulator.drainer import Drainer, DrainSequencer, ReadyCheckResult
from spark_kafka_sink.producer.accumulator.incomplete_batches import IncompleteBatches
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.accumulator.slice_layout import MemoryNeed, Reservation, SliceLayout
from spark_kafka_sink.producer.accumulator.slice_writer import SliceWriter
from spark_kafka_sink.producer.accumulator.sorted_slice import SortedSlice
from spark_kafka_sink.producer.hand_overs import CLEANED_UP_ERRORS, UNKNOWN_PROGRESS_TEXT, HandOver
from spark_kafka_sink.producer.topic_rows import TopicRows


class RecordAccumulator:
    """The queues of all partitions, and the memory of their batches.

    Args:
        wake_sender: called when there is something to send.
        sequencer: numbers batches when they are drained.
        random: for sticky partitions and back-off jitter; seeded by tests.
        on_unbatched: called with topic, number and error of rows that got into no batch, before their callback is called.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        wake_sender: Callable[[], None],
        sequencer: DrainSequencer,
        random: Random,
        on_unbatched: Callable[[str, int, KafkaError], None] = lambda *_: None,
    ) -> None:
        self._config = config
        self.pool = BufferPool(config.buffer_memory, config.batch_size, clock)
        self._clock = clock
        self.wake_sender = wake_sender
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._on_unbatched = on_unbatched
        self.queues = PartitionQueues()
        self.incomplete = IncompleteBatches(clock)
        self._compressor = BatchCompressor(config, self.pool)
        self.writer = SliceWriter(self.pool, self._compressor, self.queues.oldest.note_poisoned, wake_sender)
        self.drainer = Drainer(config.linger_ms, self.queues, sequencer, self._compressor)
        self.built_in_partitioner = BuiltInPartitioner(config, self.queues, self._compressor, random)
        # WRITTEN BY THE SENDER. All threads read it without a lock.
        self.transaction_waits_for_rows = False  # a commit, a preparation, or offsets that must follow the rows
        self._refusal: KafkaError | None = None  # what appends raise while a transaction is being aborted
        # WRITTEN BY CALLERS WHO CLOSE THE PRODUCER, and by the Sender when it ends, perhaps at the same time. That does no harm:
        # `is_closed` stays true, no error is replaced by None, and either error says what happened. Read without a lock.
        self.is_closed = False
        self._ended_by: KafkaError | None = None
        self._starving_callers = LiveCalls()  # callers that wait for memory

    # CALLERS

    def append(
        self,
        rows: TopicRows,
        cluster: Cluster,
        callback: RowsCallback,
        hand_over: HandOver,
        *,
        created_ms: int | None = None,
        prepaid_memory: PoolMemory | None = None,
    ) -> None:
        """Put a slice's rows into their partitions' batches, filling batch after batch.

        Blocks while the pool is empty, each time at most max.block.ms.

        Args:
            rows: one slice, a few MiB at most unless a single row is larger; at least one row.
            cluster: metadata that contains the topic, for rows that name no partition.
            callback: gets the outcome of every row, also of those that get into no batch because this raises.
            hand_over: the call, which has begun to hand rows over; it pauses while it waits for memory before its first row.
            created_ms: the time (Clock.now_ms) since which the rows wait; now, if not given.
            prepaid_memory: a charge that pays for these rows, so that they never wait. The caller keeps what is left of it.

        Raises:
            KafkaTimeoutError: no memory within max.block.ms. Rows that are in a batch stay there and are sent.
            ProducerClosedError, or the error that ended the producer: it was closed meanwhile.
            KafkaError: rows are refused (`refuse_rows`), or one is larger than buffer.memory (RecordTooLargeError).
            Others of CLEANED_UP_ERRORS (hand_overs.py): rows cannot be encoded, and fail.
            RuntimeError: an error came halfway (UNKNOWN_PROGRESS_TEXT of hand_overs.py). The producer ends.
        """
        layout: SliceLayout | None = None
        reservations: list[Reservation] = []
        try:
            sorted_slice = SortedSlice(rows.columns, self.built_in_partitioner.choose(rows, cluster), rows.positions)
            layout = SliceLayout(self, rows.topic, sorted_slice, callback, created_ms, prepaid_memory)
            while not layout.is_done:
                reservations = []
                self._append_what_has_room(layout, reservations, hand_over)
                if not reservations:
                    hand_over.begin_wait()
                    self.wait_for_memory(layout.pending_need, layout.unused_memory, hand_over.begin)
        except CLEANED_UP_ERRORS as error:
            try:  # here, because memory may end at the call of a method
                unplaced_positions = rows.positions
                if layout is not None:
                    unplaced_positions = layout.positions_without_place()
                    layout.give_back_unused_memory()
                    self.writer.poison_batches(reservations)
                self.fail_unbatched(rows.topic, unplaced_positions, callback, error)
            except CLEANED_UP_ERRORS as second_error:
                raise RuntimeError(UNKNOWN_PROGRESS_TEXT) from second_error
            raise

    def _append_what_has_room(self, layout: SliceLayout, reservations: list[Reservation], hand_over: HandOver) -> None:
        """Reserve room, and encode the rows that have got it, even if reserving room for the others has failed."""
        try:
            layout.reserve(reservations)
        except CLEANED_UP_ERRORS:
            self._write(layout.sorted_slice, reservations, hand_over)
            raise
        self._write(layout.sorted_slice, reservations, hand_over)

    def _write(self, sorted_slice: SortedSlice, reservations: list[Reservation], hand_over: HandOver) -> None:
        if reservations:
            hand_over.has_queued_rows = True
            self.writer.write(sorted_slice, reservations)

    def fail_unbatched(self, topic: str, positions: npt.NDArray[np.int32], callback: RowsCallback, error: BaseException) -> None:
        """Fail rows that got into no batch."""
        kafka_error = error if isinstance(error, KafkaError) else KafkaError(f"rows for {topic} cannot be encoded: {error!r}")
        self._on_unbatched(topic, len(positions), kafka_error)
        callback.fail_unbatched(positions, kafka_error)

    def wait_for_memory(self, need: MemoryNeed, into: PoolMemory, on_take: Callable[[], None]) -> None:
        """Have all queued batches sent, and wait at most max.block.ms for memory. `into`, `on_take`: see BufferPool.allocate."""
        liveness_lock = threading.Lock()
        with liveness_lock:
            self._starving_callers.add(liveness_lock)  # before the Sender wakes, so that it sees the change
            self.wake_sender()
            self.pool.allocate(
                need.block_count, self._config.max_block_ms, charge_blocks=need.charge_blocks, into=into, on_take=on_take
            )

    def flush(self, timeout_ms: int, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Wait as IncompleteBatches.flush does. Nothing lingers meanwhile."""
        return self.incomplete.flush(timeout_ms, self.wake_sender, is_enough)

    def check_not_closed(self) -> None:
        """Raise ProducerClosedError, or the error that ended the producer, if it is closed or being closed."""
        if self.is_closed:
            raise closed_error(self._ended_by, "Cannot write: the producer is closed or being closed")

    def check_open(self) -> None:
        """Raise if rows cannot be appended: the producer is closed, or the Sender refuses them."""
        self.check_not_closed()
        refusal = self._refusal
        if refusal is not None:
            raise fresh_copy(refusal)

    # CALLERS: what a SliceLayout needs

    def max_raw_bytes(self, topic: str) -> int:
        """Bytes of uncompressed records that make a batch full."""
        return self._compressor.max_raw_bytes(topic)

    def new_batch(self, queue: PartitionQueue, base_timestamp: int, max_raw_bytes: int, created_ms: int | None) -> ProducerBatch:
        """A batch for the tail of a queue, whose lock the caller holds. When it has rows, `enqueue` puts it there."""
        return ProducerBatch(
            queue.topic_partition,
            self._clock.now_ms() if created_ms is None else created_ms,
            max_raw_bytes,
            base_timestamp,
            flush_id=self.incomplete.new_flush_id(),
            block_size=self.pool.block_size,
            is_transactional=self._config.transactional_id is not None,
        )

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Put a new batch at the tail of a queue, whose lock the caller holds. A second call for it does nothing."""
        self.incomplete.add([batch])
        queue.append_locked(batch)
        self.queues.oldest.note_queued(batch.created_ms)

    # SENDER: what to send

    def must_hurry(self) -> bool:
        """Whether nothing lingers: a caller waits for memory or flushes, a transaction for rows, or the producer is closed."""
        return len(self._starving_callers) > 0 or self.is_closed or self.incomplete.is_flushing or self.transaction_waits_for_rows

    def ready(self, cluster: Cluster, now_ms: int) -> ReadyCheckResult:
        """Which nodes have a batch to send, when to ask again at the latest, and where `drainer.drain` will find batches."""
        result = self.drainer.ready(cluster, now_ms, self.must_hurry())
        self.built_in_partitioner.update_queue_lengths(cluster, self.incomplete.newest_flush_id)
        return result

    # SENDER: batches that come back

    def reenqueue(self, batch: ProducerBatch, now_ms: int, max_backoff_ms: int | None = None) -> None:
        """Queue a batch again for a retry, in sequence order if it has a sequence.

        It backs off as retry.backoff.ms and retry.backoff.max.ms say; with `max_backoff_ms`, for the lesser of it and the first.
        """
        batch.count_attempt(now_ms)
        if max_backoff_ms is None:
            batch.backoff_ms = self._backoff.backoff_ms(batch.attempts - 1)  # drawn once: the shortest of many would end the wait
        else:
            batch.backoff_ms = min(max_backoff_ms, self._config.retry_backoff_ms)
        self.queues.put_back(batch)

    def split(self, large_batch: ProducerBatch) -> list[ProducerBatch]:
        """Split a batch that the broker found too large into smaller ones, and free its memory.

        The caller puts the smaller batches into their queue after the sequencer knows them. Kafka's splitAndReenqueue.
        """
        smaller_batches = large_batch.split(self._compressor.max_raw_bytes_after(large_batch))
        self.incomplete.add(smaller_batches)
        self.deallocate(large_batch)
        return smaller_batches

    # SENDER: batches that fail

    def take_expired(self, now_ms: int) -> list[ProducerBatch]:
        """Take the batches that are older than delivery.timeout.ms, or poisoned, out of all queues."""
        oldest = self.queues.oldest
        if self.next_expiry_delay_ms(now_ms) > 0 and not oldest.may_have_poisoned:
            return []
        oldest.reset_bounds()
        timeout_ms = self._config.delivery_timeout_ms
        return self.queues.take_from_each(lambda queue: queue.take_expired(timeout_ms, now_ms, oldest) if queue.batches else [])

    def next_expiry_delay_ms(self, now_ms: int) -> int:
        """How long until the first queued batch can expire: the Sender sleeps no longer than this."""
        oldest_ms = self.queues.oldest.created_ms
        return NEVER_MS if oldest_ms == NEVER_MS else max(0, oldest_ms + self._config.delivery_timeout_ms - now_ms)

    def take_waiting_for(self, leader: int | None, cluster: Cluster, error: KafkaError) -> list[ProducerBatch]:
        """Take the batches for this leader out of their queues, to be failed. None: batches whose leader is not known."""
        return self.queues.take_batches(
            error, lambda queue: bool(queue.batches) and cluster.leader_for(queue.topic_partition) == leader
        )

    def take_incomplete(self, error: KafkaError) -> list[ProducerBatch]:
        """Take all batches out of their queues, except batches that callers still write into. Returns every batch that is not
        done, oldest first: this includes those exceptions and the batches in flight."""
        self.queues.take_batches(error)
        return list(self.incomplete)

    def take_undrained(self, error: KafkaError) -> list[ProducerBatch]:
        """Take the batches that were never drained out of the queues, because their transaction is aborted.

        Batches in flight or in retry stay: the broker may have them, and the transaction cannot end before that is known.
        """
        return self.queues.take_batches(error, undrained_only=True)

    # SENDER: batches that are done

    def deallocate(self, batch: ProducerBatch) -> None:
        """Forget a batch that is done and free its memory. No request in flight may refer to it."""
        if batch.is_in_flight:
            raise RuntimeError(f"{batch} is in flight: its memory cannot be given back")
        batch.body, batch.segments = [], []
        for memory in (batch.memory, batch.surplus):
            if memory:
                self.pool.deallocate(memory)
        self.incomplete.remove(batch)

    # ANY THREAD

    def is_queued(self, batch: ProducerBatch) -> bool:
        return self.queues.of_partition(batch.topic_partition).holds(batch)

    def has_queued_batches(self) -> bool:
        """Whether any queue has batches. Takes each queue's lock, so after close() it sees every append that was in time."""
        return any(queue.has_batches() for queue in self.queues)

    def refuse_rows(self, error: KafkaError | None) -> None:
        """From now on appends raise a copy of `error`, also those in progress, until this is called with None.

        For a transaction that is being aborted. An append checks this under the queue's lock. So `take_undrained`, called after
        this, sees all rows that have passed the check.
        """
        self._refusal = error

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Refuse further rows, wake callers that wait for memory, and make all batches ready at once.

        `ended_by` is the error that callers get. Without it they get ProducerClosedError: the user closed the producer.
        A later call without an error keeps the earlier error: that caller may not know yet that the Sender failed.
        """
        if ended_by is not None:
            self._ended_by = ended_by
        self.is_closed = True
        self.pool.close(ended_by)

    def end(self) -> None:
        """Give up all batches and memory. Called after `close`, when every row is settled and no request refers to a batch.

        This includes the memory of calls that were interrupted, or have not noticed the end.
        """
        for queue in self.queues:
            queue.clear()
        self.pool.end()
