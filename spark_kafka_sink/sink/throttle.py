"""Keeps a task's writing below the user's rates: a token bucket that hands out rows run by run.

The bucket holds a quarter of a second of tokens: a run is cut so that it takes no more (a larger row goes alone), is given out
at once, and the next one waits until it is paid for. Each wait thus lasts a quarter of a second, or what one large row costs.
It waits on the caller's thread, where nothing is held; Spark ends a killed task's worker there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import Clock

RUN_MS = 250


class Throttle:
    """Args: rates per second, None for no limit; a clock for tests."""

    def __init__(self, records_per_second: int | None, bytes_per_second: int | None, clock: Clock | None = None) -> None:
        self._records_per_second = records_per_second
        self._bytes_per_second = bytes_per_second
        self._clock = clock or Clock()
        self._paid_at_ms = 0.0  # when what was given out so far has been paid for

    @property
    def is_off(self) -> bool:
        return self._records_per_second is None and self._bytes_per_second is None

    def seconds(self, rows: int, size: int) -> float:
        """What so many rows, of so many bytes in all, take at least."""
        return max(rows / (self._records_per_second or np.inf), size / (self._bytes_per_second or np.inf))

    def runs(self, row_bytes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """First row and end of each run, when it may be sent. Blocks in between as the rates ask for."""
        ends = np.cumsum(row_bytes)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = self._end_of_run(ends, start, before)
            self._await_payment()
            self._pay(stop - start, int(ends[stop - 1]) - before)
            yield start, stop
            start = stop

    def _end_of_run(self, ends: npt.NDArray[np.int64], start: int, before: int) -> int:
        stop = len(ends)
        if self._records_per_second is not None:
            stop = min(stop, start + self._records_per_second * RUN_MS // 1000)
        if self._bytes_per_second is not None:
            room = self._bytes_per_second * RUN_MS // 1000
            stop = min(stop, int(np.searchsorted(ends, before + room, side="right")))
        return max(stop, start + 1)

    def _pay(self, rows: int, size: int) -> None:
        self._paid_at_ms = max(self._paid_at_ms, float(self._clock.now_ms())) + 1000 * self.seconds(rows, size)

    def _await_payment(self) -> None:
        nobody_notifies = threading.Condition()
        with nobody_notifies:
            while (remaining_ms := self._paid_at_ms - self._clock.now_ms()) > 0:
                self._clock.wait(nobody_notifies, max(1, min(1000, int(remaining_ms))))
