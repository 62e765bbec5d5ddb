"""Where each row of a slice is to lie: rows in partition order, runs of rows in batches, before a byte is encoded.

Sizes first: they follow from the lengths of keys and values and from a row's place in its batch. Then cuts, memory (blocks, or
for SEGMENT_BYTES and more a charge) and reservations; RecordAccumulator has the reserved rows encoded. Runs on callers' threads,
holds a queue's lock only for a reservation, and never waits while it holds one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Part, RecordsOwner
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.interleave import InterleavedRows
from spark_kafka_sink.records.record_batch import RecordRows, record_sizes

ONE_BYTE_DELTAS = 64  # offset deltas below this take one byte as a zigzag varint
TWO_BYTE_DELTAS = 8192  # and below this at most two
_DELTAS = np.arange(TWO_BYTE_DELTAS)
SEGMENT_BYTES = 32 * 1024  # rows of a batch that are as many bytes are not copied into blocks


class SortedSlice:
    """A slice of one topic's rows in partition order, and where each row is to lie.

    Arrays are int64[rows] in sorted order unless said otherwise. The deltas and sizes are written by SliceLayout, run by run.
    """

    def __init__(self, columns: RecordColumns, partitions: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> None:
        self._columns = columns
        self.rows = len(partitions)
        self._order = _stable_order(partitions)
        base = columns.base_sizes
        stamps = np.broadcast_to(np.asarray(columns.timestamps, np.int64), self.rows)
        if self._order is not None:
            base, stamps, rows, partitions = base[self._order], stamps[self._order], rows[self._order], partitions[self._order]
        self._base_sizes = base
        self.timestamps = stamps
        self.original_rows = rows  # int32: where each row stood in the caller's chunk
        switches = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
        self.run_starts: npt.NDArray[np.int64] = np.concatenate(([0], switches)).astype(np.int64)
        self.run_ends: npt.NDArray[np.int64] = np.append(self.run_starts[1:], self.rows)
        self.run_partitions: list[int] = partitions[self.run_starts].tolist()
        self.offset_deltas = np.zeros(self.rows, np.int64)
        self.timestamp_deltas = np.zeros(self.rows, np.int64)
        self.sizes = np.zeros(self.rows, np.int32)  # encoded bytes
        # No record is smaller than its body with one-byte deltas and a one-byte length: bounds the search for a cut.
        self.least_ends = np.cumsum(base + 3)
        self.one_timestamp = isinstance(columns.timestamps, int)  # then no timestamp delta differs from 0 in a new batch

    def timestamp_at(self, row: int) -> int:
        return int(self.timestamps[row])

    @cached_property
    def new_batch_ends(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sums of sizes in a new batch, a 0 in front: with offset deltas of one byte, and of two. For `one_timestamp`."""
        sums = np.zeros((2, self.rows + 1), np.int64)
        for row, delta in zip(sums, (0, ONE_BYTE_DELTAS), strict=True):
            np.cumsum(record_sizes(self._base_sizes, np.full(self.rows, delta), 0), out=row[1:])
        return sums[0], sums[1]

    def measure(self, lo: int, hi: int) -> None:
        """Write the exact sizes of rows lo..hi, whose deltas have been written."""
        self.sizes[lo:hi] = record_sizes(self._base_sizes[lo:hi], self.offset_deltas[lo:hi], self.timestamp_deltas[lo:hi])

    @cached_property
    def _record_rows(self) -> RecordRows:
        return RecordRows(self._columns, self._order, self._base_sizes)

    def interleave(self, lo: int, hi: int) -> InterleavedRows:
        """Rows lo..hi in sorted order, ready to be written."""
        return self._record_rows.interleave(lo, hi, self.offset_deltas[lo:hi], self.timestamp_deltas[lo:hi])


def _stable_order(partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """Row positions sorted by partition, equal partitions in row order; None when the rows stand so already.

    numpy sorts 16-bit codes by radix, several times faster than 32-bit ones by merging.
    """
    if (partitions[1:] >= partitions[:-1]).all():
        return None
    codes = partitions.astype(np.uint16) if int(partitions.max()) < 65_536 else partitions
    return np.argsort(codes, kind="stable")


@dataclass(slots=True, eq=False)
class Reservation:
    """Room for rows lo..hi (positions in the sorted slice) in a batch."""

    queue: PartitionQueue
    batch: ProducerBatch
    begins_batch: bool
    is_segment: bool  # of its own; otherwise the rows lie in the batch's blocks
    place: int  # the segment, or where the rows begin in the blocks
    lo: int
    hi: int
    size_bytes: int
    charge: int  # that it has brought into the batch
    is_open: bool = True  # counted in batch.reservations; the queue's lock guards both


class BatchSource(Protocol):
    """What a layout needs of RecordAccumulator."""

    pool: BufferPool

    def queues_for(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]: ...

    def raw_limit(self, topic: str) -> int: ...

    def check_open(self) -> None: ...

    def new_batch(self, queue: PartitionQueue, base_timestamp: int, raw_limit: int, created_ms: int | None) -> ProducerBatch: ...

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None: ...


@dataclass(slots=True)
class _Place:
    """Where the next rows of a run would go, judged without a lock: `batch` as it was with `count` rows and `used` bytes."""

    batch: ProducerBatch | None
    count: int
    used: int
    hi: int  # rows up to here
    size_bytes: int
    max_timestamp: int
    fills: bool  # no further row fits
    is_segment: bool
    missing_blocks: int  # memory that it takes beyond what the batch has
    missing_charge: int  # the same for a segment, in blocks


class SliceLayout:
    """Walks a sorted slice and reserves room for its rows, run by run (a run: the slice's rows of one partition).

    First all runs at once are measured against the batches that are open now, which settles those that fit; then, batch by
    batch, the runs that do not fit, and those whose batch was drained or filled by somebody else meanwhile.
    """

    def __init__(
        self,
        accumulator: BatchSource,
        topic: str,
        rows: SortedSlice,
        owner: RecordsOwner,
        created_ms: int | None = None,
        prepaid: PoolMemory | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._pool = accumulator.pool
        self._rows = rows
        self._owner = owner
        self._created_ms = created_ms  # None: when the batch is made
        self._prepaid = prepaid  # a charge for these rows, which then never wait for memory
        self._queues = accumulator.queues_for(topic, rows.run_partitions)
        self._ends: list[int] = rows.run_ends.tolist()
        self._raw_limit = accumulator.raw_limit(topic)
        self._run = 0
        self._row = 0  # the first row that has no room yet
        self._wanted = (0, 0)  # blocks and a charge that the pool could not give at once
        self._stock = PoolMemory()  # for the places that come next; nothing between two calls
        self.reservations: list[Reservation] = []  # of the latest reserve(), also if it raised
        self._guesses: dict[int, _Place] | None = None  # by run; each is used once at most, and only if it still holds

    @property
    def done(self) -> bool:
        return self._row >= self._rows.rows

    def rows_without_place(self) -> npt.NDArray[np.int32]:
        return self._rows.original_rows[self._row :]

    @property
    def memory_wanted(self) -> tuple[int, int, PoolMemory]:
        """Blocks and a charge that the pool could not give at once, and where to put them."""
        return *self._wanted, self._stock

    def give_back_stock(self) -> None:
        """Give back the memory that no place has taken; needed only if something has raised."""
        self._pool.deallocate(self._stock)

    def reserve(self) -> list[Reservation]:
        """Room for as many of the remaining rows as there is memory for now; an empty list when there is none at all.

        Rows that had found room when this raises have it: `reservations` tells which.
        """
        self.reservations = []
        if self._guesses is None:
            self._guesses = self._guess_all_runs()
        guesses = self._guesses
        self._fill_stock(  # for all at once, if there is so much
            sum(each.missing_blocks for each in guesses.values()), sum(each.missing_charge for each in guesses.values())
        )
        try:
            while not self.done:
                if self._row == self._ends[self._run]:
                    self._run += 1
                queue, end = self._queues[self._run], self._ends[self._run]
                place = guesses.pop(self._run, None) or self._next_place(queue, end)
                if not self._fill_stock(place.missing_blocks, place.missing_charge) and not self._use_prepaid(place):
                    break
                self._take_place(queue, place)
        finally:
            if self._stock:
                self.give_back_stock()
        return self.reservations

    def _guess_all_runs(self) -> dict[int, _Place]:
        """Places for all runs in the batches that are open now, as far as there is room, measured together."""
        rows = self._rows
        tails = [queue.open_batch() for queue in self._queues]
        counts = [0 if tail is None else tail.record_count for tail in tails]
        used = [0 if tail is None else tail.record_bytes for tail in tails]
        starts, lengths = rows.run_starts, rows.run_ends - rows.run_starts
        rows.offset_deltas[:] = np.arange(rows.rows) + np.repeat(np.asarray(counts, np.int64) - starts, lengths)
        firsts: list[int] = rows.timestamps[starts].tolist()
        bases = [stamp if tail is None else tail.base_timestamp for tail, stamp in zip(tails, firsts, strict=True)]
        rows.timestamp_deltas[:] = rows.timestamps - np.repeat(np.asarray(bases, np.int64), lengths)
        rows.measure(0, rows.rows)
        sizes: list[int] = np.add.reduceat(rows.sizes, starts, dtype=np.int64).tolist()
        latest: list[int] = np.maximum.reduceat(rows.timestamps, starts).tolist()
        guesses = {}
        for run, (tail, count, before, size, newest) in enumerate(zip(tails, counts, used, sizes, latest, strict=True)):
            room = self._limit_of(tail) - before
            if size <= room:
                guesses[run] = self._place(tail, count, before, self._ends[run], size, newest, size == room)
            elif (found := self._fitting(int(starts[run]), self._ends[run], room)) is not None:
                guesses[run] = self._place(tail, count, before, *found, True)
        return guesses

    def _fitting(self, lo: int, end: int, room: int) -> tuple[int, int, int] | None:
        """Of measured rows: up to where they fit, their bytes, and the newest timestamp; None if not even the first does."""
        ends = np.cumsum(self._rows.sizes[lo:end], dtype=np.int64)
        fitting = int(np.searchsorted(ends, room, side="right"))
        if fitting == 0:
            return None
        return lo + fitting, int(ends[fitting - 1]), int(self._rows.timestamps[lo : lo + fitting].max())

    def _limit_of(self, batch: ProducerBatch | None) -> int:
        return self._raw_limit if batch is None else batch.raw_limit

    def _place(
        self, batch: ProducerBatch | None, count: int, used: int, hi: int, size_bytes: int, max_timestamp: int, fills: bool
    ) -> _Place:
        is_segment = size_bytes >= SEGMENT_BYTES
        blocks = self._pool.blocks_for(size_bytes) if is_segment or batch is None else batch.missing_blocks(size_bytes)
        missing = (0, blocks) if is_segment else (blocks, 0)
        return _Place(batch, count, used, hi, size_bytes, max_timestamp, fills, is_segment, *missing)

    def _next_place(self, queue: PartitionQueue, end: int) -> _Place:
        """As many rows as the batch at the tail, or else a new one, has room for; a new batch takes one row of any size."""
        rows, lo = self._rows, self._row
        batch = queue.open_batch()
        if batch is not None:
            found = self._measure(batch, batch.record_count, batch.record_bytes, batch.base_timestamp, end)
            if found is not None:
                return found
            self._close(queue, batch)
        one_timestamp = rows.one_timestamp
        found = self._start_of_new_batch(end) if one_timestamp else self._measure(None, 0, 0, rows.timestamp_at(lo), end)
        if found is not None:
            return found
        rows.offset_deltas[lo] = rows.timestamp_deltas[lo] = 0
        rows.measure(lo, lo + 1)
        size = int(rows.sizes[lo])
        return self._place(None, 0, 0, lo + 1, size, rows.timestamp_at(lo), True)

    def _start_of_new_batch(self, end: int) -> _Place | None:
        """As _measure, for a new batch whose rows share a timestamp: two look-ups in sums that the whole slice has in common.

        Small batches are cut by the hundred from a slice; this takes a fifth of the time of measuring each anew.
        """
        rows, lo, room = self._rows, self._row, self._raw_limit
        near, far = rows.new_batch_ends
        turn = min(lo + ONE_BYTE_DELTAS, end)
        size = int(near[turn] - near[lo])
        if size > room:
            hi = int(near.searchsorted(near[lo] + room, side="right")) - 1
            size = int(near[hi] - near[lo])
        else:
            hi = min(int(far.searchsorted(far[turn] + room - size, side="right")) - 1, lo + TWO_BYTE_DELTAS, end)
            size += int(far[hi] - far[turn])
        if hi == lo:
            return None
        turn = min(turn, hi)
        rows.offset_deltas[lo:hi] = _DELTAS[: hi - lo]
        rows.timestamp_deltas[lo:hi] = 0
        rows.sizes[lo:turn] = near[lo + 1 : turn + 1] - near[lo:turn]
        rows.sizes[turn:hi] = far[turn + 1 : hi + 1] - far[turn:hi]
        is_full = (hi < end and hi < lo + TWO_BYTE_DELTAS) or size >= room
        return self._place(None, 0, 0, hi, size, rows.timestamp_at(lo), is_full)

    def _measure(self, batch: ProducerBatch | None, count: int, used: int, base_timestamp: int, end: int) -> _Place | None:
        rows, lo = self._rows, self._row
        room = self._limit_of(batch) - used
        before = int(rows.least_ends[lo - 1]) if lo else 0
        window = min(end, max(lo + 1, int(np.searchsorted(rows.least_ends, before + room, side="right"))))
        rows.offset_deltas[lo:window] = np.arange(count, count + window - lo)
        rows.timestamp_deltas[lo:window] = rows.timestamps[lo:window] - base_timestamp
        rows.measure(lo, window)
        found = self._fitting(lo, window, room)
        if found is None:
            return None
        hi, size, newest = found
        return self._place(batch, count, used, hi, size, newest, hi < end or size >= room)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        with queue.lock:
            batch.closed = True

    def _fill_stock(self, block_count: int, charge: int) -> bool:
        """Have so much memory at hand; false, and no more than before, when the pool has too little now. Never waits."""
        more_blocks, more_charge = max(0, block_count - len(self._stock.blocks)), max(0, charge - self._stock.charged)
        if more_blocks == more_charge == 0:
            return True
        ahead = self._prepaid is not None
        if self._pool.try_allocate(more_blocks, charge=more_charge, into=self._stock, ahead=ahead) is None:
            self._wanted = block_count, charge
            return False
        return True

    def _use_prepaid(self, place: _Place) -> bool:
        """For want of blocks: keep these rows in memory of their own, however few they are, for the charge that they have.

        In all, the slice's segments take no more bytes than were charged for; batch by batch the charge is rounded up to blocks.
        """
        if self._prepaid is None:
            return False
        batch = place.batch
        before, charged = (0, 0) if batch is None else (batch.record_bytes - batch.block_bytes, batch.memory.charged)
        charge = max(0, self._pool.blocks_for(before + place.size_bytes) - charged)
        own = min(charge, self._prepaid.charged)
        # Nothing is called between these two: an interrupt finds the charge in one of them.
        self._prepaid.charged -= own
        self._stock.charged += own
        if charge > own:
            self._pool.overdraw(charge - own, self._stock)
        place.is_segment, place.missing_blocks, place.missing_charge = True, 0, charge
        return True

    def _take_place(self, queue: PartitionQueue, place: _Place) -> None:
        """Reserve a place, if its batch still is as it was."""
        rows, lo, hi = self._rows, self._row, place.hi
        with queue.lock:
            self._accumulator.check_open()
            batch = queue.open_batch()
            if batch is not place.batch:
                return
            is_new = batch is None
            if batch is None:
                batch = self._accumulator.new_batch(queue, rows.timestamp_at(lo), self._raw_limit, self._created_ms)
            elif batch.record_count != place.count or batch.record_bytes != place.used:
                return
            part = Part(
                self._owner, queue.topic_partition, place.count, rows.original_rows[lo:hi], rows.sizes[lo:hi], place.size_bytes
            )
            reservation = Reservation(
                queue, batch, place.count == 0, place.is_segment, 0, lo, hi, place.size_bytes, place.missing_charge
            )
            reserve = batch.reserve_segment if place.is_segment else batch.reserve
            memory = self._stock.take(place.missing_blocks, place.missing_charge)
            try:
                reservation.place = reserve(part, memory, place.max_timestamp)
                batch.closed = place.fills
                self.reservations += [reservation]
                self._row = hi
                if is_new:
                    self._accumulator.enqueue(queue, batch)
            except BaseException:
                self._stock.add(memory)  # if the batch has not got it
                if is_new and batch.record_count:
                    self._accumulator.enqueue(queue, batch)
                raise
