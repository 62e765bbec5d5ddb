"""The rows that wait to be sent: a queue of batches per topic-partition, filled by callers, drained by the Sender.

APPENDING turns a slice of columns into filled batches: slice_layout.py orders the rows by partition and finds room for each,
then each part is encoded: small ones together, to be copied into blocks, a large one straight into memory that it keeps, and
compressed while it is in the cache if the codec allows. Work per partition and per batch is Python; work per row is not.
SENDING answers the Sender: which nodes are ready, which batches to take, which have expired. It never sleeps and never sends.

Law: nobody waits for memory while holding a reservation. A batch with a reservation is not drained, so memory that it keeps
busy could never come back; a slice that finds the pool empty fills what it has reserved so far, and only then waits. A slice of
gathered records has been charged for before, and never waits.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.dotted_names import ROUND_ROBIN
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, closed_error
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import RecordsOwner
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue
from spark_kafka_sink.producer.accumulator.producer_batch import Compression, PackedRecords, ProducerBatch
from spark_kafka_sink.producer.accumulator.slice_layout import SEGMENT_BYTES, Reservation, SliceLayout, SortedSlice
from spark_kafka_sink.producer.partitioner import RoundRobinPartitioner, StickyPartitioner
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import CompressionRatioEstimator, compress_blocks
from spark_kafka_sink.records.interleave import InterleavedRows, data_buffer
from spark_kafka_sink.records.record_batch import BATCH_HEADER_SIZE, octets

logger = logging.getLogger(__name__)

WRITTEN_TOGETHER_BYTES = 512 * 1024  # before it is copied into blocks, or compressed: what a core's cache holds
MAX_RAW_BATCH_BYTES = 4 * 1024 * 1024  # of a batch that compresses well: a reader unpacks a batch as a whole


class TopicQueues:
    """One topic's queues by partition. Read-mostly: queues are added under the accumulator's lock and never removed."""

    def __init__(self, topic: str, config: ProducerConfig, random: Random) -> None:
        self.topic = topic
        self.by_partition: dict[int, PartitionQueue] = {}
        self.sticky = StickyPartitioner(config.batch_size, self._open_bytes, random)
        self.round_robin = RoundRobinPartitioner()
        self.load_state: LoadState | None = None  # Sender only: what the sticky partitioner's queue lengths were taken from

    def _open_bytes(self, partition: int) -> int:
        queue = self.by_partition.get(partition)
        batch = queue.open_batch() if queue is not None else None
        return batch.record_bytes if batch is not None else 0


# Cluster, slow nodes, and two counters that change with any queue's length.
LoadState: TypeAlias = tuple[Cluster, frozenset[int], int, int]


@dataclass(slots=True)
class ReadyCheckResult:
    ready_nodes: set[int] = field(default_factory=set)
    next_ready_check_delay_ms: int = NEVER_MS
    unknown_leader_topics: set[str] = field(default_factory=set)
    occupied: dict[int, list[int]] = field(default_factory=dict)  # by leader: places, ascending, of the queues with batches


@dataclass(slots=True)
class NodeWait:
    """Since when batches wait for a node that does not take them: for partitioner.availability.timeout.ms (KIP-794)."""

    ready_ms: int  # when batches were last ready for it
    taken_ms: int  # when it last took some


class Sequencer(Protocol):
    """What draining needs of TransactionManager."""

    @property
    def has_producer_id(self) -> bool: ...

    def must_stop_draining(self, first: ProducerBatch) -> bool: ...

    def assign_sequence(self, batch: ProducerBatch) -> None: ...


class RecordAccumulator:
    """See the module's docstring. `append` is called by callers, `ready` … `withdraw_batches` by the Sender.

    Args:
        config: batch.size, linger.ms, compression.type, retry back-off and the delivery time-out are read from it.
        pool: the memory of all batches.
        clock: for linger, back-off and expiry.
        sequencer: the TransactionManager, or None without idempotence.
        random: for sticky partitions and back-off jitter; seeded by tests.
        on_abandoned: told topic and number of rows that found no place, before their owner is.
    """

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        clock: Clock,
        sequencer: Sequencer | None = None,
        random: Random | None = None,
        on_abandoned: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._config = config
        self.pool = pool
        self._clock = clock
        self._sequencer = sequencer
        self._random = random or Random()
        self._on_abandoned = on_abandoned
        self._compression = Compression.of(config)
        self._ratios = CompressionRatioEstimator()
        self._topics: dict[str, TopicQueues] = {}
        self._queues: list[PartitionQueue] = []  # all of them in the order they were made; grows only
        self._node_waits: dict[int, NodeWait] = {}  # Sender only, and only with partitioner.availability.timeout.ms
        self._drain_after: dict[int, int] = {}  # Sender only: node -> index into _queues of the partition drained last
        self._moves = 0  # Sender only: counts batches that have left a queue or come back to one
        self._closed = False
        self._ended_by: KafkaError | None = None
        self._lock = threading.Lock()  # guards the five below, and the making of queues
        self._incomplete: set[ProducerBatch] = set()
        self._flushes_in_progress = 0
        self._starving_callers = 0
        self._completed = threading.Condition(self._lock)  # notified when a batch is done while somebody flushes
        self._newest_flush_id = 0

    # APPENDING: callers

    def topic_queues(self, topic: str) -> TopicQueues:
        found = self._topics.get(topic)
        if found is None:
            with self._lock:
                found = self._topics.setdefault(topic, TopicQueues(topic, self._config, self._random))
        return found

    def append(
        self,
        topic: str,
        columns: RecordColumns,
        partitions: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        owner: RecordsOwner,
        wake_sender: Callable[[], None],
        *,
        max_block_ms: int,
        created_ms: int | None = None,
        prepaid: PoolMemory | None = None,
    ) -> None:
        """Put a slice's rows into their partitions' batches, filling batch after batch.

        Blocks while the pool is empty, each time at most `max_block_ms`. `wake_sender` is called when there is something to send.

        Args:
            columns: one slice, a few MiB at most unless a single row is larger; at least one row.
            partitions: int32[n], where each row goes.
            rows: int32[n], where each row stood in the caller's chunk.
            owner: hears what becomes of every row, also of those that find no place because this raises.
            max_block_ms: how long each wait for memory may be.
            created_ms: since when the rows wait; now, if not given.
            prepaid: a charge for these rows that the caller has; they never wait then. What is left of it stays the caller's.

        Raises:
            KafkaTimeoutError: no memory within `max_block_ms`. Rows that had found a place stay and are sent.
            ProducerClosedError: the producer was closed meanwhile.
        """
        layout: SliceLayout | None = None
        try:
            sorted_slice = SortedSlice(columns, partitions, rows)
            layout = SliceLayout(self, topic, sorted_slice, owner, created_ms, prepaid)
            while not layout.done:
                layout.reservations = []  # here: an interrupt at the call below must not have the former ones filled again
                try:
                    layout.reserve()
                finally:  # rows that have room are filled in, whatever keeps the others from getting any
                    if layout.reservations:
                        self._fill(sorted_slice, layout.reservations, wake_sender)
                if not layout.reservations:
                    blocks, charge, stock = layout.memory_wanted
                    self.wait_for_memory(blocks, charge, stock, max_block_ms, wake_sender)
        except BaseException as error:
            told = error if isinstance(error, KafkaError) else KafkaError(f"rows for {topic} cannot be encoded: {error!r}")
            left = rows
            if layout is not None:
                left = layout.rows_without_place()
                layout.give_back_stock()
                self._spoil_open(layout.reservations, wake_sender)
            self._on_abandoned(topic, len(left))
            owner.abandon(left, told)
            raise

    def wait_for_memory(
        self, block_count: int, charge: int, into: PoolMemory, max_block_ms: int, wake_sender: Callable[[], None]
    ) -> None:
        """The pool is empty: have everything sent that is queued, and wait for what comes back. Raises as BufferPool.allocate."""
        counted = False
        try:
            with self._lock:
                self._starving_callers += 1  # first, so that the Sender sees it when it wakes
                counted = True
            wake_sender()
            self.pool.allocate(block_count, max_block_ms, charge=charge, into=into)
        finally:
            with self._lock:
                self._starving_callers -= counted

    def assign_partitions(
        self,
        topic: str,
        row_bytes: npt.NDArray[np.int64],
        chosen: npt.NDArray[np.bool_],
        partitions: npt.NDArray[np.int32],
        cluster: Cluster,
    ) -> None:
        """Write a partition into `partitions` for each chosen row: the ones that neither the row nor its key decides."""
        queues = self.topic_queues(topic)
        available = self._available(topic, cluster)
        sizes = row_bytes[chosen] + 3
        if self._config.partitioner_class == ROUND_ROBIN:
            partitions[chosen] = queues.round_robin.assign(len(sizes), available)
            return
        if self._compression.enabled:  # a stay is measured as a batch is: compressed
            sizes = np.ceil(sizes * self._ratios.estimation(topic, self._compression.codec)).astype(np.int64)
        partitions[chosen] = queues.sticky.assign(sizes, available)

    def _available(self, topic: str, cluster: Cluster) -> list[int]:
        """Partitions with a leader, those in our rack if that is wanted and there are any; all of them if none has a leader."""
        infos = cluster.available_partitions(topic) or cluster.partitions_for(topic)
        if self._config.partitioner_rack_aware:
            near_nodes = {node.id for node in cluster.nodes if node.rack == self._config.client_rack}
            near = [info.partition for info in infos if info.leader in near_nodes]
            if near:
                return near
        return [info.partition for info in infos]

    def queues_for(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]:
        by_partition = self.topic_queues(topic).by_partition
        return [by_partition.get(partition) or self._make_queue(by_partition, topic, partition) for partition in partitions]

    def _make_queue(self, by_partition: dict[int, PartitionQueue], topic: str, partition: int) -> PartitionQueue:
        with self._lock:
            queue = by_partition.get(partition)
            if queue is None:
                queue = by_partition[partition] = PartitionQueue(TopicPartition(topic, partition))
                self._queues.append(queue)
            return queue

    def raw_limit(self, topic: str) -> int:
        """Bytes of uncompressed records that make a batch full: batch.size as it will be after compression (as Java counts)."""
        limit = self._config.batch_size - BATCH_HEADER_SIZE
        if self._compression.enabled:
            estimated = int(limit / (self._ratios.estimation(topic, self._compression.codec) * 1.05))
            limit = max(limit, min(estimated, MAX_RAW_BATCH_BYTES))
        return max(1, min(limit, self.pool.total_memory))

    def new_batch(
        self, queue: PartitionQueue, base_timestamp: int, raw_limit: int, created_ms: int | None = None
    ) -> ProducerBatch:
        """A batch for the tail of a queue, whose lock the caller holds; to be put there, with `enqueue`, when it has rows."""
        with self._lock:
            self._newest_flush_id += 1
            flush_id = self._newest_flush_id
        return ProducerBatch(
            queue.topic_partition,
            self._clock.now_ms() if created_ms is None else created_ms,
            raw_limit,
            base_timestamp,
            flush_id,
            self.pool.block_size,
        )

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Put a new batch at the tail of a queue, whose lock the caller holds. Doing it twice does no more."""
        with self._lock:
            self._incomplete.add(batch)
        if not queue.batches or queue.batches[-1] is not batch:
            queue.batches.append(batch)

    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        if self._closed:
            raise closed_error(self._ended_by, "Cannot write: the producer is closed or being closed")

    def _fill(self, sorted_slice: SortedSlice, reservations: list[Reservation], wake_sender: Callable[[], None]) -> None:
        """Encode the reserved rows, each at its place, and end their reservations; `append` ends those left open by an error."""
        first = reservations[0].lo
        wake = False
        try:
            rows = sorted_slice.interleave(first, reservations[-1].hi)
            for group in _written_together(reservations):
                if group[0].is_segment:
                    self._write_segment(rows, first, group[0])
                else:
                    _write_to_blocks(rows, first, group)
                for reservation in group:
                    if self._compression.enabled:
                        self._finish_if_full(reservation)
                    wake |= self._release(reservation)
        finally:
            if wake:
                wake_sender()

    def _write_segment(self, rows: InterleavedRows, first: int, reservation: Reservation) -> None:
        """Rows that keep the memory they are written to; compressed at once where that can be done part by part."""
        is_large = reservation.size_bytes >= SEGMENT_BYTES  # a small one would compress badly by itself
        packed = self._packed_segment(rows, first, reservation) if self._compression.is_blockwise and is_large else None
        if packed is None:
            data = _written(rows, reservation.lo - first, reservation.hi - first, reservation.size_bytes)
            reservation.batch.attach(reservation.place, data)
            return
        reservation.batch.attach(reservation.place, packed)
        surplus = reservation.charge - self.pool.blocks_for(packed.size_bytes)
        if surplus > 0:
            with reservation.queue.lock:
                self.pool.reduce_charge(reservation.batch.memory, surplus)

    def _packed_segment(self, rows: InterleavedRows, first: int, reservation: Reservation) -> PackedRecords | None:
        """Compressed in steps that stay in a core's cache; None if the first step does not shrink."""
        count = reservation.hi - reservation.lo
        step = max(1, count * WRITTEN_TOGETHER_BYTES // reservation.size_bytes)
        blocks: list[memoryview] = []
        written = 0
        for lo in range(reservation.lo - first, reservation.hi - first, step):
            data = octets(data_buffer(rows.write(lo, min(lo + step, reservation.hi - first))))
            blocks.append(compress_blocks(self._compression.codec, data, self._compression.level))
            written += len(data)
            if len(blocks) == 1 and len(blocks[0]) >= written:
                return None
        if written != reservation.size_bytes:
            raise RuntimeError(f"{written} bytes were written where {reservation.size_bytes} were reserved")
        return PackedRecords(blocks)

    def _finish_if_full(self, reservation: Reservation) -> None:
        """Compress a full batch here, on the caller's thread; it is still reserved, so the Sender cannot have it."""
        batch = reservation.batch
        with reservation.queue.lock:
            is_last_writer = batch.closed and batch.reservations == 1 and batch.poison is None
        if is_last_writer:
            self.finish(batch)

    def _spoil_open(self, reservations: list[Reservation], wake_sender: Callable[[], None]) -> None:
        """End the reservations whose rows were not written. What lies in their batches fails, with these rows."""
        for reservation in reservations:
            if reservation.is_open:
                self._spoil(reservation)
                self._release(reservation)
        if reservations:
            wake_sender()

    def _spoil(self, reservation: Reservation) -> None:
        batch = reservation.batch
        with reservation.queue.lock:
            batch.closed = True
            batch.poison = batch.poison or KafkaError(
                f"{batch.topic_partition}: a row could not be encoded; the batch it lay in is given up"
            )

    def _release(self, reservation: Reservation) -> bool:
        """End a reservation; returns whether the Sender should look at the batch now."""
        queue, batch = reservation.queue, reservation.batch
        with queue.lock:
            is_full = batch.is_full()
            # Nothing is called from here on: no interrupt can leave a reservation half ended.
            reservation.is_open = False
            batch.reservations -= 1
            batch.sender_waits |= is_full or reservation.begins_batch  # kept until the last of its writers is done
            wake = batch.sender_waits and batch.reservations == 0
            batch.sender_waits &= not wake
        return wake

    def finish(self, batch: ProducerBatch) -> None:
        """Compress a closed batch, learn from it, and give back the memory that it saved."""
        surplus = batch.finish(self._compression)
        if self._compression.enabled:
            self._ratios.update_estimation(batch.topic_partition.topic, self._compression.codec, batch.compression_ratio)
        if surplus:
            self.pool.deallocate(surplus)

    # SENDING: Sender thread

    def wants_all_at_once(self) -> bool:
        """Whether nothing lingers: somebody waits for memory, flushes, or closes."""
        return self._starving_callers > 0 or self._closed or self._flushes_in_progress > 0

    def ready(self, cluster: Cluster, now_ms: int) -> ReadyCheckResult:
        """Which nodes have a batch to send: full, lingered, or wanted at once (no memory left, flush, close).

        Minus partitions that back off, are muted, or wait for the answer to another batch. Also tells for how long nothing more
        will become ready by itself, and where `drain` has to look.
        """
        result = ReadyCheckResult()
        all_at_once = self.wants_all_at_once()
        for index, queue in enumerate(self._queues):
            if queue.batches:
                self._check_ready(index, queue, cluster, now_ms, all_at_once, result)
        if self._config.partitioner_adaptive_partitioning_enable:
            self._update_load(cluster)
        return result

    def _check_ready(
        self, index: int, queue: PartitionQueue, cluster: Cluster, now_ms: int, at_once: bool, result: ReadyCheckResult
    ) -> None:
        leader = cluster.leader_for(queue.topic_partition)
        if leader is None:
            result.unknown_leader_topics.add(queue.topic_partition.topic)
            return
        result.occupied.setdefault(leader, []).append(index)
        if queue.muted or leader in result.ready_nodes:
            return
        with queue.lock:
            if not queue.batches:
                return
            batch = queue.batches[0]
            if batch.reservations:
                batch.sender_waits = True
                return
            full = len(queue.batches) > 1 or batch.is_full()
        if self._waits_for_an_answer(batch):
            return  # which ends the Sender's sleep by itself
        batch.maybe_update_leader_epoch(cluster.leader_epoch(queue.topic_partition))
        remaining_ms = self._remaining_backoff_ms(batch, now_ms)
        if remaining_ms == 0 and not (full or at_once):
            remaining_ms = self._config.linger_ms - batch.waited_ms(now_ms)
        if remaining_ms <= 0:
            result.ready_nodes.add(leader)
        else:
            result.next_ready_check_delay_ms = min(result.next_ready_check_delay_ms, remaining_ms)

    def _waits_for_an_answer(self, batch: ProducerBatch) -> bool:
        """For another batch of its partition. Without a producer id all wait, but nodes count as ready, so as to be connected."""
        return self._sequencer is not None and self._sequencer.has_producer_id and self._sequencer.must_stop_draining(batch)

    def _remaining_backoff_ms(self, batch: ProducerBatch, now_ms: int) -> int:
        if not batch.in_retry or batch.has_leader_changed_for_the_ongoing_retry():
            return 0
        return max(0, batch.backoff_ms - batch.waited_ms(now_ms))

    def _draw_backoff_ms(self, attempts: int) -> int:
        """retry.backoff.ms · 2^(attempts-1), at most retry.backoff.max.ms, ±20 % (KIP-580)."""
        base = self._config.retry_backoff_ms * 2 ** min(attempts - 1, 30)
        most = max(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        return int(min(base, most) * self._random.uniform(0.8, 1.2))

    def _update_load(self, cluster: Cluster) -> None:
        slow = frozenset(node for node in self._node_waits if self._is_slow(node))
        state = (cluster, slow, self._newest_flush_id, self._moves)
        for topic, queues in list(self._topics.items()):
            if not queues.sticky.in_use or queues.load_state == state:
                continue
            queues.load_state = state
            by_partition = queues.by_partition
            if len(by_partition) < (cluster.partition_count(topic) or NEVER_MS):
                queues.sticky.update_load([], [], all_counted=True)  # a partition never written to would never be drawn
                continue
            led = [by_partition[partition] for partition in self._available(topic, cluster)]  # only what may be drawn
            if slow:
                led = [queue for queue in led if cluster.leader_for(queue.topic_partition) not in slow] or led
            lengths = [len(queue.batches) for queue in led]
            queues.sticky.update_load(lengths, [queue.topic_partition.partition for queue in led], len(led) == len(by_partition))

    def node_looked_at(self, node: int, now_ms: int, takes_batches: bool) -> None:
        """The Sender found batches ready for a node, which takes them now or does not."""
        if self._config.partitioner_availability_timeout_ms > 0:
            wait = self._node_waits.setdefault(node, NodeWait(now_ms, now_ms))
            wait.ready_ms = now_ms
            if takes_batches:
                wait.taken_ms = now_ms

    def _is_slow(self, node: int) -> bool:
        wait = self._node_waits[node]
        return wait.ready_ms - wait.taken_ms > self._config.partitioner_availability_timeout_ms

    def drain(
        self,
        cluster: Cluster,
        nodes: Iterable[int],
        max_size: int,
        now_ms: int,
        occupied: Mapping[int, Sequence[int]] | None = None,
    ) -> dict[int, list[ProducerBatch]]:
        """Take one batch of each partition that a ready node leads, up to `max_size` bytes a node (one batch always fits).

        `occupied` is what `ready` found in this round, for the same cluster; without it this looks at all queues once more.
        """
        if occupied is None:
            occupied = self._occupied(cluster)
        return {node: self._drain_node(cluster, node, occupied.get(node, ()), max_size, now_ms) for node in nodes}

    def _occupied(self, cluster: Cluster) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for index, queue in enumerate(self._queues):
            leader = cluster.leader_for(queue.topic_partition) if queue.batches else None
            if leader is not None:
                found.setdefault(leader, []).append(index)
        return found

    def _drain_node(
        self, cluster: Cluster, node: int, occupied: Sequence[int], max_size: int, now_ms: int
    ) -> list[ProducerBatch]:
        drained: list[ProducerBatch] = []
        size = 0
        for index in self._rotation(node, occupied):
            queue = self._queues[index]
            if not queue.batches or queue.muted:
                continue
            with queue.lock:
                batch = self._head_to_drain_locked(queue, cluster, now_ms)
                if batch is None:
                    continue
                if drained and size + batch.size_in_bytes > max_size:
                    break
                queue.batches.popleft()
                batch.closed = True
            self._moves += 1
            self._drain_after[node] = index
            if not self._can_finish(batch):
                continue
            if self._sequencer is not None:
                self._sequencer.assign_sequence(batch)
            size += batch.size_in_bytes
            batch.drained_ms = now_ms
            drained.append(batch)
        return drained

    def _can_finish(self, batch: ProducerBatch) -> bool:
        """Compress a batch that was taken. One that cannot be compressed is put back, spoilt, for `expired_batches`."""
        try:
            self.finish(batch)
        except Exception as error:
            logger.exception("! %s cannot be compressed", batch)
            batch.poison = KafkaError(
                f"{batch.topic_partition}: {batch.record_count} record(s) cannot be compressed with"
                f" {self._compression.codec}: {error!r}",
                condition="KAFKA_INTERNAL_ERROR",
            )
            self.insert(batch)
            return False
        return True

    def _rotation(self, node: int, occupied: Sequence[int]) -> Iterator[int]:
        """The queues of a node, beginning behind the one it was sent last, so that none starves behind the request size."""
        start = bisect_right(occupied, self._drain_after.get(node, -1))
        return chain(occupied[start:], occupied[:start])

    def _head_to_drain_locked(self, queue: PartitionQueue, cluster: Cluster, now_ms: int) -> ProducerBatch | None:
        if not queue.batches:
            return None
        first = queue.batches[0]
        if first.reservations:
            first.sender_waits = True
            return None
        first.maybe_update_leader_epoch(cluster.leader_epoch(queue.topic_partition))
        if first.poison is not None or self._remaining_backoff_ms(first, now_ms) > 0:
            return None
        if self._sequencer is not None and self._sequencer.must_stop_draining(first):
            return None
        return first

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a batch back that is to be retried, in sequence order if it has a sequence."""
        batch.reenqueued(now_ms)
        batch.backoff_ms = self._draw_backoff_ms(batch.attempts)  # once: a new draw at each look would end at the first short one
        self.insert(batch)

    def split_and_reenqueue(self, big: ProducerBatch) -> list[ProducerBatch]:
        """Queue smaller batches in the place of one that the broker found too large, and give its memory back.

        They are of batch.size, or of half the size if that is less: so that splitting ends wherever the broker's limit lies
        (a client that splits a batch into itself would do so until delivery.timeout.ms, KAFKA-8350).
        """
        topic = big.topic_partition.topic
        if self._compression.enabled:
            self._ratios.set_estimation(topic, self._compression.codec, max(1.0, big.compression_ratio))
        children = big.split(max(1, min(self._config.batch_size - BATCH_HEADER_SIZE, big.record_bytes // 2)))
        with self._lock:
            self._incomplete.update(children)
        self.deallocate(big)
        return children

    def insert(self, batch: ProducerBatch) -> None:
        queue = self.queues_for(batch.topic_partition.topic, [batch.topic_partition.partition])[0]
        with queue.lock:
            place = 0
            if self._sequencer is not None:
                # Only batches that were drained before have a sequence, and they stand in front. Smaller means up to half the
                # range of sequences behind.
                while place < len(queue.batches) and queue.batches[place].has_sequence:
                    ahead = (batch.base_sequence - queue.batches[place].base_sequence) & 0x7FFFFFFF
                    if ahead >= 2**30:
                        break
                    place += 1
            queue.batches.insert(place, batch)
        self._moves += 1

    def expired_batches(self, now_ms: int) -> list[ProducerBatch]:
        """Take out the batches that have waited longer than delivery.timeout.ms, oldest first, and those a caller spoilt."""
        expired: list[ProducerBatch] = []
        for queue in self._queues:
            if not queue.batches:
                continue
            with queue.lock:
                while queue.batches and self._is_over_locked(queue.batches[0], now_ms):
                    batch = queue.batches.popleft()
                    batch.closed = True
                    expired.append(batch)
        self._moves += len(expired)
        return expired

    def _is_over_locked(self, batch: ProducerBatch, now_ms: int) -> bool:
        if batch.reservations:
            batch.sender_waits = True
            return False
        return batch.poison is not None or batch.has_reached_delivery_timeout(self._config.delivery_timeout_ms, now_ms)

    def next_expiry_delay_ms(self, now_ms: int) -> int:
        """Until the first queued batch expires; what the Sender may sleep at most."""
        heads = (queue.batches[0].created_ms for queue in self._queues if queue.batches)
        oldest = min(heads, default=None)
        return NEVER_MS if oldest is None else max(0, oldest + self._config.delivery_timeout_ms - now_ms)

    def mute_partition(self, topic_partition: TopicPartition) -> None:
        self.queues_for(topic_partition.topic, [topic_partition.partition])[0].muted = True

    def unmute_partition(self, topic_partition: TopicPartition) -> None:
        self.queues_for(topic_partition.topic, [topic_partition.partition])[0].muted = False

    # COMPLETION

    def deallocate(self, batch: ProducerBatch) -> None:
        """Forget a batch that is done and give its memory back; no request in flight may refer to it any more."""
        if batch.in_flight:
            raise RuntimeError(f"{batch} is in flight: its memory cannot be given back")
        batch.body, batch.segments = [], []
        for memory in (batch.memory, batch.surplus):
            if memory:
                self.pool.deallocate(memory)
        self.remove_incomplete(batch)

    def remove_incomplete(self, batch: ProducerBatch) -> None:
        """Let flush() go on; for a batch that is done while a request still refers to its memory."""
        with self._lock:
            self._incomplete.discard(batch)
            if self._flushes_in_progress:
                self._completed.notify_all()

    def is_queued(self, batch: ProducerBatch) -> bool:
        queue = self.queues_for(batch.topic_partition.topic, [batch.topic_partition.partition])[0]
        with queue.lock:
            return batch in queue.batches

    def has_undrained(self) -> bool:
        """After close(): whether batches are left. Takes every lock, so as to see an append that just preceded the close."""
        return any(self._holds_batches(queue) for queue in self._queues)

    def _holds_batches(self, queue: PartitionQueue) -> bool:
        with queue.lock:
            return bool(queue.batches)

    def has_incomplete(self) -> bool:
        return bool(self._incomplete)

    def flush(self, timeout_ms: int, wake_sender: Callable[[], None]) -> bool:
        """Have everything sent that was appended before, without lingering, and wait until it is done.

        Blocks at most `timeout_ms`; false when time ran out.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        counted = False
        try:
            with self._lock:
                flush_id = self._newest_flush_id
                self._flushes_in_progress += 1
                counted = True
            wake_sender()
            with self._lock:
                while any(batch.flush_id <= flush_id for batch in self._incomplete):
                    remaining_ms = deadline_ms - self._clock.now_ms()
                    if remaining_ms <= 0:
                        return False
                    self._clock.wait(self._completed, remaining_ms)
            return True
        finally:
            with self._lock:
                self._flushes_in_progress -= counted

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Refuse further rows, wake whoever waits for memory; what is here becomes ready at once.

        `ended_by` is what callers are told, if nobody asked for it.
        """
        self._ended_by = ended_by
        self._closed = True
        self.pool.close(ended_by)

    def take_waiting_for(self, leader: int | None, cluster: Cluster, error: KafkaError) -> list[ProducerBatch]:
        """Take out the batches that wait for this leader; None: those whose leader is not known.

        A batch that a caller still writes into stays in its queue, spoilt with `error`, until `expired_batches` collects it.
        """
        taken: list[ProducerBatch] = []
        for queue in self._queues:
            if not queue.batches or cluster.leader_for(queue.topic_partition) != leader:
                continue
            with queue.lock:
                for batch in queue.batches:
                    batch.closed = True
                    if batch.reservations:
                        batch.poison = batch.poison or error
                        batch.sender_waits = True
                    else:
                        taken.append(batch)
                queue.batches = deque(batch for batch in queue.batches if batch.reservations)
        self._moves += 1
        return taken

    def withdraw_batches(self, error: KafkaError) -> list[ProducerBatch]:
        """Every batch, queued or in flight, oldest first: the Sender is to fail them with `error`. No queue holds them any more.

        Except for a batch that a caller still writes into: that one stays, spoilt, until `expired_batches` collects it.
        """
        for queue in self._queues:
            with queue.lock:
                for batch in queue.batches:
                    batch.closed = True
                    batch.poison = error
                queue.batches = deque(batch for batch in queue.batches if batch.reservations)
        self._moves += 1
        with self._lock:
            return sorted(self._incomplete, key=lambda batch: batch.flush_id)


def _written_together(reservations: list[Reservation]) -> Iterator[list[Reservation]]:
    """Neighbours whose rows go into blocks, up to so many bytes; each segment alone, as it keeps what was written."""
    group: list[Reservation] = []
    size = 0
    for reservation in reservations:
        if group and (reservation.is_segment or group[-1].is_segment or size + reservation.size_bytes > WRITTEN_TOGETHER_BYTES):
            yield group
            group, size = [], 0
        group.append(reservation)
        size += reservation.size_bytes
    yield group


def _write_to_blocks(rows: InterleavedRows, first: int, reservations: list[Reservation]) -> None:
    size = sum(reservation.size_bytes for reservation in reservations)
    data = _written(rows, reservations[0].lo - first, reservations[-1].hi - first, size)
    begin = 0
    for reservation in reservations:
        end = begin + reservation.size_bytes
        reservation.batch.write(reservation.place, data[begin:end])
        begin = end


def _written(rows: InterleavedRows, lo: int, hi: int, size_bytes: int) -> memoryview:
    data = octets(data_buffer(rows.write(lo, hi)))
    if len(data) != size_bytes:
        raise RuntimeError(f"{len(data)} bytes were written where {size_bytes} were reserved")
    return data
