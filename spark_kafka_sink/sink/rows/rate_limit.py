"""Keeps a task below the user's rates: a token bucket that releases rows portion by portion.

A portion is as many rows as the rates allow in a quarter of a second, or one row that needs longer. After each release, the next
portion waits for the time that the rates give to the released one: a quarter of a second at most, or the time of one row.
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
    """Divides one task's rows into portions, and waits before one that would exceed a rate. None is no limit."""

    def __init__(self, records_per_second: int | None, bytes_per_second: int | None, clock: Clock | None = None) -> None:
        self._records_per_second = records_per_second
        self._bytes_per_second = bytes_per_second
        self._clock = clock or Clock()
        self._next_portion_ms = 0.0  # when the next portion may be released
        self.held_back_ms = 0  # how long portions have waited, all together

    def seconds_of(self, chunk: Chunk) -> float:
        """The least time for these rows."""
        return self._seconds(len(chunk.numbers), int(chunk.payload_bytes().sum()))

    def _seconds(self, row_count: int, size_bytes: int) -> float:
        return max(row_count / (self._records_per_second or np.inf), size_bytes / (self._bytes_per_second or np.inf))

    def portions(self, chunk: Chunk) -> Iterator[Chunk]:
        """The rows, portion by portion, as soon as each may be sent. Blocks between portions."""
        end_bytes = np.cumsum(chunk.payload_bytes())
        start = 0
        while start < len(end_bytes):
            bytes_before = int(end_bytes[start - 1]) if start else 0
            stop = self._find_portion_end(end_bytes, start, bytes_before)
            self._await_next_portion()
            self._release(stop - start, int(end_bytes[stop - 1]) - bytes_before)
            yield chunk.slice(start, stop)
            start = stop

    def _find_portion_end(self, end_bytes: npt.NDArray[np.int64], start: int, bytes_before: int) -> int:
        stop = len(end_bytes)
        if self._records_per_second is not None:
            stop = min(stop, start + self._records_per_second * PORTION_MS // 1000)
        if self._bytes_per_second is not None:
            portion_bytes = self._bytes_per_second * PORTION_MS // 1000
            stop = min(stop, int(np.searchsorted(end_bytes, bytes_before + portion_bytes, side="right")))
        return max(stop, start + 1)

    def _release(self, row_count: int, size_bytes: int) -> None:
        self._next_portion_ms = max(self._next_portion_ms, self._clock.now_ms()) + 1000 * self._seconds(row_count, size_bytes)

    def _await_next_portion(self) -> None:
        started_ms = self._clock.now_ms()
        sleep(self._clock, self._next_portion_ms - started_ms)
        self.held_back_ms += self._clock.now_ms() - started_ms
