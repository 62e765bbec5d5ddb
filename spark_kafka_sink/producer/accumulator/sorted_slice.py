"""The rows of a slice in partition order, and how many of them fit into a batch: sizes only, nothing is encoded yet.

The size of a record depends on its key, value and headers, and on its two deltas, which depend on its place in a batch. So the
`fit…` methods are told the place of the first row. They write deltas and sizes of the rows into the columns of the slice.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.interleave import InterleavedRows
from spark_kafka_sink.records.record_batch import RecordRows, record_sizes

ONE_BYTE_DELTAS = 64  # offset deltas below this take one byte as a zigzag varint
TWO_BYTE_DELTAS = 8192  # offset deltas below this take at most two bytes
MIN_OVERHEAD = 3  # a record takes at least this many bytes for its length and its two deltas
_DELTAS = np.arange(TWO_BYTE_DELTAS)


class FittingRows(NamedTuple):
    """The first rows of a range, as many as fit into the room that a batch has. At least one."""

    end: int  # the row after the last of them
    size_bytes: int
    max_timestamp: int
    batch_is_full: bool  # the batch has no room for another row


class SortedSlice:
    """A slice of one topic's rows in partition order. A stretch is the rows of one partition.

    Arrays of rows are int64[row_count] in sorted order unless said otherwise. Rows are numbered in that order. A range lo:hi
    does not include row hi.
    """

    def __init__(self, columns: RecordColumns, partitions: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]) -> None:
        self._columns = columns
        self.row_count = len(partitions)
        self._order = _stable_order(partitions)
        base = columns.base_sizes
        stamps = np.broadcast_to(np.asarray(columns.timestamps, np.int64), self.row_count)
        self._has_one_timestamp = isinstance(columns.timestamps, int)  # then all timestamp deltas in a new batch are 0
        if self._order is not None:
            base, positions, partitions = base[self._order], positions[self._order], partitions[self._order]
            stamps = stamps if self._has_one_timestamp else stamps[self._order]
        self._base_sizes = base
        self.timestamps = stamps
        self.positions = positions  # int32: of each row in the caller's chunk
        switches = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
        self.stretch_starts: npt.NDArray[np.int64] = np.concatenate(([0], switches)).astype(np.int64)
        self.stretch_ends: npt.NDArray[np.int64] = np.append(self.stretch_starts[1:], self.row_count)
        self.stretch_partitions: list[int] = partitions[self.stretch_starts].tolist()
        self.offset_deltas = np.zeros(self.row_count, np.int64)
        self.timestamp_deltas = np.zeros(self.row_count, np.int64)
        self.sizes = np.zeros(self.row_count, np.int32)  # encoded bytes

    def timestamp_at(self, row: int) -> int:
        return int(self.timestamps[row])

    def measure(self, lo: int, hi: int) -> None:
        """Write the exact sizes of rows lo:hi, whose deltas have been written."""
        self.sizes[lo:hi] = record_sizes(self._base_sizes[lo:hi], self.offset_deltas[lo:hi], self.timestamp_deltas[lo:hi])

    # WHAT FITS

    def fit_all_stretches(
        self, first_deltas: list[int], base_timestamps: list[int | None], rooms: list[int]
    ) -> list[FittingRows | None]:
        """For each stretch, as many rows as fit into its batch; None where not even one does. Measures all stretches together.

        Args:
            first_deltas: for each stretch, how many rows its batch has already.
            base_timestamps: for each stretch, of its batch; None for a new batch.
            rooms: for each stretch, how many bytes of records its batch has room for.
        """
        starts, lengths = self.stretch_starts, self.stretch_ends - self.stretch_starts
        self.offset_deltas[:] = np.arange(self.row_count) + np.repeat(np.asarray(first_deltas, np.int64) - starts, lengths)
        firsts: list[int] = self.timestamps[starts].tolist()
        bases = [first if base is None else base for base, first in zip(base_timestamps, firsts, strict=True)]
        self.timestamp_deltas[:] = self.timestamps - np.repeat(np.asarray(bases, np.int64), lengths)
        self.measure(0, self.row_count)
        sizes: list[int] = np.add.reduceat(self.sizes, starts, dtype=np.int64).tolist()
        latest: list[int] = np.maximum.reduceat(self.timestamps, starts).tolist()
        begins, ends = starts.tolist(), self.stretch_ends.tolist()
        return [
            FittingRows(end, size, newest, size == room) if size <= room else self._cut(lo, end, room)
            for lo, end, size, newest, room in zip(begins, ends, sizes, latest, rooms, strict=True)
        ]

    @cached_property
    def _least_ends(self) -> npt.NDArray[np.int64]:
        """Cumulative sums of the least sizes, which limit the rows that `fit` measures."""
        return np.cumsum(self._base_sizes + MIN_OVERHEAD)

    def fit(self, lo: int, end: int, first_delta: int, base_timestamp: int, room: int) -> FittingRows | None:
        """The first of the rows lo:end, as many as fit into a batch that has `first_delta` rows already; None if none fits."""
        before = int(self._least_ends[lo - 1]) if lo else 0
        window = min(end, max(lo + 1, int(np.searchsorted(self._least_ends, before + room, side="right"))))
        self.offset_deltas[lo:window] = np.arange(first_delta, first_delta + window - lo)
        self.timestamp_deltas[lo:window] = self.timestamps[lo:window] - base_timestamp
        self.measure(lo, window)
        fitting = self._cut(lo, window, room)
        if fitting is None:
            return None
        return fitting._replace(batch_is_full=fitting.end < end or fitting.size_bytes >= room)

    def fit_new_batch(self, lo: int, end: int, room: int) -> FittingRows:
        """The first of the rows lo:end, as many as fit into a new batch. A new batch takes at least one row, of any size."""
        if self._has_one_timestamp:
            fitting = self._fit_new_batch_of_one_timestamp(lo, end, room)
        else:
            fitting = self.fit(lo, end, 0, self.timestamp_at(lo), room)
        if fitting is not None:
            return fitting
        self.offset_deltas[lo] = self.timestamp_deltas[lo] = 0
        self.measure(lo, lo + 1)
        return FittingRows(lo + 1, int(self.sizes[lo]), self.timestamp_at(lo), True)

    def _cut(self, lo: int, end: int, room: int) -> FittingRows | None:
        """The first of the measured rows lo:end, as many as have room; None if none has."""
        ends = np.cumsum(self.sizes[lo:end], dtype=np.int64)
        count = int(np.searchsorted(ends, room, side="right"))
        if count == 0:
            return None
        return FittingRows(lo + count, int(ends[count - 1]), int(self.timestamps[lo : lo + count].max()), True)

    @cached_property
    def _new_batch_ends(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cumulative sums of sizes, from 0: with offset deltas of one byte, and of two. All timestamp deltas are 0."""
        sums = np.zeros((2, self.row_count + 1), np.int64)
        for row, delta in zip(sums, (0, ONE_BYTE_DELTAS), strict=True):
            np.cumsum(record_sizes(self._base_sizes, delta, 0), out=row[1:])
        return sums[0], sums[1]

    def _fit_new_batch_of_one_timestamp(self, lo: int, end: int, room: int) -> FittingRows | None:
        """Like `fit`, for a new batch whose rows share a timestamp: two look-ups in sums that are made once for the whole slice.

        A slice is cut into small batches by the hundred; this takes a fifth of the time of measuring each of them.
        """
        one_byte, two_bytes = self._new_batch_ends
        turn = min(lo + ONE_BYTE_DELTAS, end)  # the first row whose offset delta takes two bytes
        size = int(one_byte[turn] - one_byte[lo])
        if size > room:
            hi = int(one_byte.searchsorted(one_byte[lo] + room, side="right")) - 1
            size = int(one_byte[hi] - one_byte[lo])
        else:
            hi = min(int(two_bytes.searchsorted(two_bytes[turn] + room - size, side="right")) - 1, lo + TWO_BYTE_DELTAS, end)
            size += int(two_bytes[hi] - two_bytes[turn])
        if hi == lo:
            return None
        turn = min(turn, hi)
        self.offset_deltas[lo:hi] = _DELTAS[: hi - lo]
        self.timestamp_deltas[lo:hi] = 0
        self.sizes[lo:turn] = one_byte[lo + 1 : turn + 1] - one_byte[lo:turn]
        self.sizes[turn:hi] = two_bytes[turn + 1 : hi + 1] - two_bytes[turn:hi]
        is_full = (hi < end and hi < lo + TWO_BYTE_DELTAS) or size >= room
        return FittingRows(hi, size, self.timestamp_at(lo), is_full)

    # ENCODING

    @cached_property
    def _record_rows(self) -> RecordRows:
        return RecordRows(self._columns, self._order, self._base_sizes)

    def interleave(self, lo: int, hi: int) -> InterleavedRows:
        """Rows lo:hi, whose deltas have been written, ready to be encoded."""
        return self._record_rows.interleave(lo, hi, self.offset_deltas[lo:hi], self.timestamp_deltas[lo:hi])


def _stable_order(partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """Row positions sorted by partition, equal partitions in row order; None when the rows are sorted already.

    numpy sorts 16-bit integers by radix, several times faster than 32-bit ones by merging.
    """
    if (partitions[1:] >= partitions[:-1]).all():
        return None
    codes = partitions.astype(np.uint16) if int(partitions.max()) < 65_536 else partitions
    return np.argsort(codes, kind="stable")
