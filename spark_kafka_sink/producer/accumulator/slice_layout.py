"""Reserves room for the rows of a slice: in which batch each lies and in which memory, before any of them is encoded.

Sizes come first (sorted_slice.py): they decide where a stretch of rows is cut into batches. Then the rows of a batch get memory
and a reservation, under which slice_writer.py encodes them. Runs on the thread that appends: a caller's, or for gathered records
also the Sender's. Holds a queue's lock only to make a reservation, or to close a batch without room for the next row. Never waits
for memory: it stops, and `pending_need` is what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import BatchRows, RowsCallback
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.accumulator.sorted_slice import FittingRows, SortedSlice
from spark_kafka_sink.producer.hand_overs import CLEANED_UP_ERRORS, UNKNOWN_PROGRESS_TEXT

MIN_SEGMENT_BYTES = 32 * 1024  # rows of one batch that take this much are not copied into pool blocks


@dataclass(slots=True, eq=False)
class Reservation:
    """Room in a batch for the rows start:stop of the sorted slice."""

    queue: PartitionQueue
    batch: ProducerBatch
    rows: BatchRows
    has_own_memory: bool  # the rows are a segment with memory of its own; otherwise they lie in the batch's blocks
    index_in_batch: int  # of the segment among the segments, or of the first byte in the blocks
    start: int
    stop: int
    charge_blocks: int  # added to the batch's memory for these rows
    is_open: bool = field(default=True, init=False)  # counted in batch.reservation_count; the queue's lock guards both

    @property
    def begins_batch(self) -> bool:
        return self.rows.first_delta == 0

    @property
    def size_bytes(self) -> int:
        return self.rows.size_bytes


class MemoryNeed(NamedTuple):
    """Memory of the pool that rows need: blocks to write into, and a charge."""

    block_count: int
    charge_blocks: int  # for a segment


class BatchSource(Protocol):
    """What SliceLayout needs of RecordAccumulator."""

    pool: BufferPool
    queues: PartitionQueues

    def max_raw_bytes(self, topic: str) -> int: ...

    def check_open(self) -> None: ...

    def new_batch(
        self, queue: PartitionQueue, base_timestamp: int, max_raw_bytes: int, created_ms: int | None
    ) -> ProducerBatch: ...

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None: ...


class _Tail(NamedTuple):
    """The open batch of a queue as it was at some moment, read without the lock. None: the rows need a new batch."""

    batch: ProducerBatch | None
    record_count: int
    record_bytes: int

    @classmethod
    def of(cls, queue: PartitionQueue) -> _Tail:
        batch = queue.open_batch()
        return _NO_TAIL if batch is None else cls(batch, batch.record_count, batch.record_bytes)

    def is_unchanged(self, batch: ProducerBatch | None) -> bool:
        """Whether the queue's open batch, now `batch`, is the same and nobody has added rows to it."""
        has_same_rows = batch is None or (batch.record_count, batch.record_bytes) == (self.record_count, self.record_bytes)
        return batch is self.batch and has_same_rows


_NO_TAIL = _Tail(None, 0, 0)


@dataclass(slots=True)
class _Place:
    """Where the next rows of a stretch would go, and the memory that they need in addition to what the batch has."""

    tail: _Tail
    fitting: FittingRows
    has_own_memory: bool
    memory: MemoryNeed


@dataclass(eq=False, repr=False)
class SliceLayout:
    """Reserves room for the rows of a sorted slice, stretch by stretch (a stretch: the slice's rows of one partition).

    The first call of `reserve` measures all stretches together against the batches that are open then. Stretches that do
    not fit are laid out batch by batch. So are stretches whose batch another thread has drained or filled since.
    """

    accumulator: BatchSource
    topic: str
    sorted_slice: SortedSlice
    callback: RowsCallback
    created_ms: int | None = None  # for new batches; None: the time at which each is made
    prepaid_memory: PoolMemory | None = None  # a charge that the caller has for these rows. With it they never wait for memory

    def __post_init__(self) -> None:
        self._pool = self.accumulator.pool
        self._queues = self.accumulator.queues.of_partitions(self.topic, self.sorted_slice.stretch_partitions)
        self._stretch_stops: list[int] = self.sorted_slice.stretch_stops.tolist()
        self._max_raw_bytes = self.accumulator.max_raw_bytes(self.topic)
        self._stretch_index = 0
        self._next_row = 0  # the first row that has no room yet
        self.pending_need = MemoryNeed(0, 0)  # what the pool could not give at once; the caller allocates it to `unused_memory`
        self.unused_memory = PoolMemory()  # for the next places; empty between two calls, unless the caller has waited for some
        self._guessed_places: dict[int, _Place] | None = None  # by stretch; each is used at most once, if its tail is unchanged

    @property
    def is_done(self) -> bool:
        return self._next_row >= self.sorted_slice.row_count

    def positions_without_place(self) -> npt.NDArray[np.int32]:
        """The positions, in the caller's chunk, of the rows that have no room yet."""
        return self.sorted_slice.positions[self._next_row :]

    def give_back_unused_memory(self) -> None:
        """Give back memory that no place has used. The caller needs this only after an error."""
        self._pool.deallocate(self.unused_memory)

    def reserve(self, reservations: list[Reservation]) -> None:
        """Reserve room for as many of the remaining rows as there is memory for now; adds nothing when there is none at all.

        Adds each reservation to `reservations`. If this raises one of CLEANED_UP_ERRORS, the earlier reservations of
        the call are in that list, and the caller gives back the unused memory. Give a new list each time: an interrupt may come
        before the first line here, and must not find the reservations of an earlier call, which are over.
        """
        if self._guessed_places is None:
            self._guessed_places = self._guess_places()
        guessed_places = self._guessed_places
        needs = [place.memory for place in guessed_places.values()]
        # For all stretches at once, if the pool has enough.
        self._ensure_memory(MemoryNeed(sum(need.block_count for need in needs), sum(need.charge_blocks for need in needs)))
        while not self.is_done:
            if self._next_row == self._stretch_stops[self._stretch_index]:
                self._stretch_index += 1
            queue, stop = self._queues[self._stretch_index], self._stretch_stops[self._stretch_index]
            place = guessed_places.pop(self._stretch_index, None) or self._next_place(queue, stop)
            if not self._ensure_memory(place.memory) and not self._use_prepaid(place):
                break
            self._take_place(queue, place, reservations)
        if self.unused_memory:
            self.give_back_unused_memory()

    # PLACES

    def _guess_places(self) -> dict[int, _Place]:
        """Places for all stretches in the batches that are open now, where there is room."""
        tails = [_Tail.of(queue) for queue in self._queues]
        fitting_of_stretches = self.sorted_slice.fit_all_stretches(
            [tail.record_count for tail in tails],
            [None if tail.batch is None else tail.batch.base_timestamp for tail in tails],
            [self._room_bytes_in(tail) for tail in tails],
        )
        return {
            stretch: self._place(tail, fitting)
            for stretch, (tail, fitting) in enumerate(zip(tails, fitting_of_stretches, strict=True))
            if fitting is not None
        }

    def _next_place(self, queue: PartitionQueue, stop: int) -> _Place:
        """A place for as many rows as fit into the open batch, or else into a new batch."""
        tail = _Tail.of(queue)
        if tail.batch is not None:
            base_timestamp, room_bytes = tail.batch.base_timestamp, self._room_bytes_in(tail)
            fitting = self.sorted_slice.fit(self._next_row, stop, tail.record_count, base_timestamp, room_bytes)
            if fitting is not None:
                return self._place(tail, fitting)
            with queue.lock:
                queue.close_locked(tail.batch)
        return self._place(_NO_TAIL, self.sorted_slice.fit_new_batch(self._next_row, stop, self._max_raw_bytes))

    def _room_bytes_in(self, tail: _Tail) -> int:
        return (self._max_raw_bytes if tail.batch is None else tail.batch.max_raw_bytes) - tail.record_bytes

    def _place(self, tail: _Tail, fitting: FittingRows) -> _Place:
        size = fitting.size_bytes
        if size >= MIN_SEGMENT_BYTES:
            return _Place(tail, fitting, has_own_memory=True, memory=MemoryNeed(0, self._pool.blocks_for(size)))
        blocks = self._pool.blocks_for(size) if tail.batch is None else tail.batch.missing_blocks(size)
        return _Place(tail, fitting, has_own_memory=False, memory=MemoryNeed(blocks, 0))

    # MEMORY

    def _ensure_memory(self, need: MemoryNeed) -> bool:
        """Increase the unused memory to what is needed. Returns false, and changes nothing, if the pool has too little now."""
        memory, has_precedence = self.unused_memory, self.prepaid_memory is not None
        more_blocks = max(0, need.block_count - len(memory.blocks))
        more_charge = max(0, need.charge_blocks - memory.charge_blocks)
        if not more_blocks and not more_charge:
            return True
        if self._pool.try_allocate(more_blocks, charge_blocks=more_charge, into=memory, has_precedence=has_precedence) is None:
            self.pending_need = need
            return False
        return True

    def _use_prepaid(self, place: _Place) -> bool:
        """If the rows are prepaid: make their place a segment, however small, and pay for it with the prepaid charge.

        The prepaid charge covers the slice's bytes, but not the rounding of each batch to whole blocks: that is overdrawn.
        """
        if self.prepaid_memory is None:
            return False
        batch = place.tail.batch
        segment_bytes = 0 if batch is None else batch.record_bytes - batch.block_bytes
        batch_charge = 0 if batch is None else batch.memory.charge_blocks
        charge_blocks = max(0, self._pool.blocks_for(segment_bytes + place.fitting.size_bytes) - batch_charge)
        prepaid_charge = min(charge_blocks, self.prepaid_memory.charge_blocks)
        self.prepaid_memory.charge_blocks -= prepaid_charge
        self.unused_memory.charge_blocks += prepaid_charge
        if charge_blocks > prepaid_charge:
            self._pool.overdraw(charge_blocks - prepaid_charge, self.unused_memory)
        place.has_own_memory, place.memory = True, MemoryNeed(0, charge_blocks)
        return True

    # RESERVATIONS

    def _take_place(self, queue: PartitionQueue, place: _Place, reservations: list[Reservation]) -> None:
        """Reserve a place, paid from the unused memory; does nothing if the queue's tail has changed meanwhile."""
        tail = place.tail
        with queue.lock:
            self.accumulator.check_open()
            batch = queue.open_batch()
            if not tail.is_unchanged(batch):
                return
            if batch is None:
                base_timestamp = self.sorted_slice.timestamp_at(self._next_row)
                batch = self.accumulator.new_batch(queue, base_timestamp, self._max_raw_bytes, self.created_ms)
            batch_rows = self._new_batch_rows(queue, tail.record_count, place.fitting)
            try:
                self._reserve_locked(queue, batch, place, batch_rows, reservations)
            except CLEANED_UP_ERRORS as error:
                raise RuntimeError(UNKNOWN_PROGRESS_TEXT) from error

    def _new_batch_rows(self, queue: PartitionQueue, first_delta: int, fitting: FittingRows) -> BatchRows:
        """The next rows, which fit. Copied: a view would keep the whole slice's arrays until its slowest partition is done."""
        start, stop = self._next_row, fitting.stop
        positions, sizes = self.sorted_slice.positions[start:stop].copy(), self.sorted_slice.sizes[start:stop].copy()
        return BatchRows(self.callback, queue.topic_partition, first_delta, positions, sizes, fitting.size_bytes)

    def _reserve_locked(
        self, queue: PartitionQueue, batch: ProducerBatch, place: _Place, batch_rows: BatchRows, reservations: list[Reservation]
    ) -> None:
        fitting = place.fitting
        reserve = batch.reserve_segment if place.has_own_memory else batch.reserve
        memory = self.unused_memory.take(place.memory.block_count, place.memory.charge_blocks)
        # The batch counts the reservation before `reservations` has it. If an error or an interrupt comes between, nobody ends
        # the reservation: the batch is not sent, and the producer ends.
        index_in_batch = reserve(batch_rows, memory, fitting.max_timestamp)
        reservations.append(
            Reservation(
                queue=queue,
                batch=batch,
                rows=batch_rows,
                has_own_memory=place.has_own_memory,
                index_in_batch=index_in_batch,
                start=self._next_row,
                stop=fitting.stop,
                charge_blocks=place.memory.charge_blocks,
            )
        )
        self._next_row = fitting.stop
        if fitting.fills_batch:
            queue.close_locked(batch)
        if place.tail.batch is None:
            self.accumulator.enqueue(queue, batch)
