"""Which partition each row goes to: whole columns in, an int32 column out.

Explicit partitions first, then murmur2 of the key over all partitions (leaderless ones too, so that a key never moves), then
the sticky partitioner for rows without a key (KIP-794). Knows the sizes of rows, not their bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import numpy.typing as npt


class StickyPartitioner:
    """Spreads rows without a key: stays with one partition for a batch's worth of bytes, then moves to a random one.

    Moves where a batch ends: a partition whose open batch is partly filled keeps the row stream until the batch after it is full
    too, at most twice the batch size (KIP-794 calls what it avoids fractional batches).
    With queue lengths, a partition is drawn the more often the shorter its queue is.

    Args:
        batch_size: bytes, the quota of a stay.
        open_bytes: tells how many bytes of a partition's open batch are filled.
        random: seeded by tests.
    """

    def __init__(self, batch_size: int, open_bytes: Callable[[int], int], random: Random) -> None:
        self._batch_size = batch_size
        self._open_bytes = open_bytes
        self._random = random
        self.in_use = False  # whether any row came without a key: without one, nobody needs queue lengths
        self._lock = threading.Lock()  # guards the three below; held while assigning, never while waiting
        self._partition = -1
        self._produced_bytes = 0
        self._quota_bytes = 0
        self._load: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None  # replaced whole by the Sender

    def assign(self, row_bytes: npt.NDArray[np.int64], available: Sequence[int]) -> npt.NDArray[np.int32]:
        """Partitions for rows of the given sizes, in order. `available` are the partitions to draw from; not empty."""
        self.in_use = True
        ends = np.cumsum(row_bytes)
        out = np.empty(len(row_bytes), np.int32)
        with self._lock:
            if self._partition not in available:
                self._switch(available)
            start, before = 0, 0
            while start < len(out):
                stop = int(np.searchsorted(ends, before + self._quota_bytes - self._produced_bytes)) + 1
                stop = min(stop, len(out))
                out[start:stop] = self._partition
                self._produced_bytes += int(ends[stop - 1]) - before
                start, before = stop, int(ends[stop - 1])
                if self._produced_bytes >= self._quota_bytes:
                    self._switch(available)
        return out

    def _switch(self, available: Sequence[int]) -> None:
        self._partition = self._next_partition(available)
        self._produced_bytes = 0
        filled = min(self._open_bytes(self._partition), self._batch_size)
        self._quota_bytes = self._batch_size if filled == 0 else 2 * self._batch_size - filled

    def _next_partition(self, available: Sequence[int]) -> int:
        load = self._load
        if load is None:
            return available[self._random.randrange(len(available))]
        cumulative, partitions = load
        drawn = self._random.randrange(int(cumulative[-1]))
        return int(partitions[np.searchsorted(cumulative, drawn, side="right")])

    def update_load(self, queue_sizes: Sequence[int], partitions: Sequence[int], all_counted: bool) -> None:
        """Take note of queue lengths: a partition's weight is the longest length + 1 - its own.

        `all_counted` is false when slow partitions were left out; then even equal lengths say where to go.
        """
        sizes = np.asarray(queue_sizes, np.int64)
        if len(sizes) == 0 or (all_counted and (len(sizes) < 2 or (sizes == sizes[0]).all())):
            self._load = None
        else:
            self._load = (np.cumsum(sizes.max() + 1 - sizes), np.asarray(partitions, np.int32))


class RoundRobinPartitioner:
    """Row after row to partition after partition, whatever its key. Kafka's class of this name; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the counter
        self._next = 0

    def assign(self, rows: int, available: Sequence[int]) -> npt.NDArray[np.int32]:
        with self._lock:
            turns = np.arange(self._next, self._next + rows) % len(available)
            self._next = (self._next + rows) % len(available)
        return np.asarray(available, np.int32)[turns]
