"""Keeps a task below the user's rates: a token bucket that releases rows portion by portion.

A portion is as many rows as the rates allow in a quarter of a second, or one row that needs longer. It is released at once, and
the next one only after the time that this one needs. So each wait lasts a quarter of a second at most, or the time of one row.
The limit waits on the caller's thread and holds no lock; during the wait Spark can end the worker of a killed task.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.sink.rows.chunk import Chunk

PORTION_MS = 250


class RateLimit:
    """Divides one task's rows into portions, and waits before one that would exceed a rate.

    Args:
        records_per_second, bytes_per_second: None for no limit.
        clock: for tests.
    """

    def __init__(self, records_per_second: int | None, bytes_per_second: int | None, clock: Clock | None = None) -> None:
        self._records_per_second = records_per_second
        self._bytes_per_second = bytes_per_second
        self._clock = clock or Clock()
        self._next_portion_ms = 0.0  # when the portions released so far have had their time
        self.waited_ms = 0

    def seconds_of(self, chunk: Chunk) -> float:
        """The least time for these rows."""
        return self._seconds(len(chunk.numbers), int(chunk.payload_bytes().sum()))

    def _seconds(self, rows: int, size: int) -> float:
        return max(rows / (self._records_per_second or np.inf), size / (self._bytes_per_second or np.inf))

    def portions(self, chunk: Chunk) -> Iterator[Chunk]:
        """The rows, portion by portion, as soon as each may be sent. Blocks between portions."""
        ends = np.cumsum(chunk.payload_bytes())
        start = 0
        while start < len(ends):
            size_before = int(ends[start - 1]) if start else 0
            stop = self._end_of_portion(ends, start, size_before)
            self._await_next_portion()
            self._release(stop - start, int(ends[stop - 1]) - size_before)
            yield chunk.slice(start, stop)
            start = stop

    def _end_of_portion(self, ends: npt.NDArray[np.int64], start: int, size_before: int) -> int:
        stop = len(ends)
        if self._records_per_second is not None:
            stop = min(stop, start + self._records_per_second * PORTION_MS // 1000)
        if self._bytes_per_second is not None:
            room = self._bytes_per_second * PORTION_MS // 1000
            stop = min(stop, int(np.searchsorted(ends, size_before + room, side="right")))
        return max(stop, start + 1)

    def _release(self, rows: int, size: int) -> None:
        self._next_portion_ms = max(self._next_portion_ms, float(self._clock.now_ms())) + 1000 * self._seconds(rows, size)

    def _await_next_portion(self) -> None:
        started_ms = self._clock.now_ms()
        sleep(self._clock, self._next_portion_ms - started_ms)
        self.waited_ms += self._clock.now_ms() - started_ms
