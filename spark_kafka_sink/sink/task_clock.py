"""Where the time of a task goes: waiting for Spark's rows, held back by the user's rates, and the rest, which is ours.

writer.py starts the clock with the task, has it pass on the rows that Spark delivers, and puts the readings into the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa


class TaskTimes(NamedTuple):
    """Of one task.

    Args:
        started_at_ms: when the task began, by the clock of its machine; 0: not known.
        waiting_for_spark: seconds that it waited for the next rows: Spark reads, computes and copies them.
        held_back: seconds that maxRecordsPerSecond and maxBytesPerSecond made it wait.
    """

    started_at_ms: int = 0
    waiting_for_spark: float = 0.0
    held_back: float = 0.0


NOT_TIMED = TaskTimes()


class TaskClock:
    """Starts when it is made. Args: the monotonic time in seconds, for tests."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = now()
        self._waiting = 0.0
        self._started_at_ms = time.time_ns() // 1_000_000

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; what it takes to get them counts as waiting for Spark. Keeps none of them in memory."""
        return _Timed(batches, self)

    def next_of(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        before = self._now()
        try:
            return next(batches)
        finally:
            self._waiting += self._now() - before

    def seconds(self) -> float:
        """Since the start."""
        return self._now() - self._started

    def times(self, held_back: float = 0.0) -> TaskTimes:
        return TaskTimes(self._started_at_ms, round(self._waiting, 3), round(held_back, 3))


class _Timed(Iterator[pa.RecordBatch]):
    """An iterator and no generator, which would hold on to the batch that it has yielded: such a batch may have 64 MB."""

    def __init__(self, batches: Iterator[pa.RecordBatch], clock: TaskClock) -> None:
        self._batches = batches
        self._clock = clock

    def __next__(self) -> pa.RecordBatch:
        return self._clock.next_of(self._batches)
