"""Time, handed in: whatever waits or expires asks a Clock, so that tests turn the hands themselves."""

from __future__ import annotations

import threading
import time

NEVER_MS = 2**62  # a delay that does not end, or a time that does not come
MAX_WAIT_MS = 2**31 - 1  # 24 days: locks, threads and sockets refuse what is much longer, and Long.MAX stands for "for ever"


def wait_seconds(timeout_ms: float) -> float:
    """What to hand to a lock, a thread or a condition. A time that is over is 0."""
    return max(0, min(timeout_ms, MAX_WAIT_MS)) / 1000


def milliseconds(seconds: float) -> int:
    """For time-outs that callers give in seconds, of any size, `inf` included."""
    return int(min(seconds * 1000, NEVER_MS))


class Clock:
    """The system's clock. Tests use `tests.fakes.clock.ManualClock`, which has the same methods."""

    def now_ms(self) -> int:
        """Milliseconds that never go backwards; for time-outs and ages."""
        return time.monotonic_ns() // 1_000_000

    def now_ns(self) -> int:
        """The same in nanoseconds; to measure how long something took."""
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; for the timestamps of records."""
        return time.time_ns() // 1_000_000

    wall_s = staticmethod(time.time)  # the same in seconds; no Python call, for what is done with every record

    def wait(self, condition: threading.Condition, timeout_ms: int) -> bool:
        """Wait on a held condition for at most `timeout_ms`, or MAX_WAIT_MS; false when time ran out without a notify.

        Callers wait in a loop that looks at their own deadline.
        """
        return condition.wait(wait_seconds(timeout_ms))
