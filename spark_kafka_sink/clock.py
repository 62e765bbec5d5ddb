"""The clock of the producer, the network and the clients of brokers. It is passed as an argument, so tests can use one that
they move by hand. The sink measures its own times, and tools their files and sockets, by `time` itself.

A name that ends in _ms counts milliseconds. NEVER_MS is a time that never comes, LONG_AGO_MS a time that is long past.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

NEVER_MS = 2**62  # as a time: later than every deadline; as a delay: only an event ends the wait
LONG_AGO_MS = -(2**64)  # as a time: longer ago than any option says; the largest is Long.MAX, 2**63 - 1
MAX_WAIT_MS = 2**31 - 1  # 24 days, the longest single wait: locks, threads and sockets reject values like Long.MAX


def wait_seconds(timeout_ms: float) -> float:
    """The time-out in seconds for a lock, a thread or a condition: from 0 (also for negative values) to MAX_WAIT_MS."""
    return max(0, min(timeout_ms, MAX_WAIT_MS)) / 1000


def milliseconds(seconds: float) -> int:
    """A caller's time-out in seconds, of any size, `inf` included, as milliseconds of at most NEVER_MS."""
    return int(min(seconds * 1000, NEVER_MS))


class Waitable(Protocol):
    """What Clock.wait accepts: a Waiter of interrupts.py, a threading.Condition, or any object with such a `wait`."""

    def wait(self, timeout: float) -> bool: ...


class Clock:
    """The system's clock. Tests use `tests.fakes.clock.ManualClock`, which has the same methods."""

    def now_ms(self) -> int:
        """Monotonic milliseconds, for time-outs and ages."""
        return time.monotonic_ns() // 1_000_000

    def now_ns(self) -> int:
        """Monotonic nanoseconds, to measure how long something took."""
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, for the timestamps of records."""
        return time.time_ns() // 1_000_000

    wall_s = staticmethod(time.time)  # wall_ms in seconds, without a Python call, because `send` needs it for every record

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        """Wait with a Waiter, or on a Condition whose lock the caller holds. False when the time ran out.

        One call waits for at most MAX_WAIT_MS, so callers wait in a loop that checks their own deadline.
        """
        return waitable.wait(wait_seconds(timeout_ms))


def sleep(clock: Clock, ms: float) -> None:
    """Block the calling thread for `ms` milliseconds. The caller must hold no lock."""
    deadline_ms = clock.now_ms() + ms
    never_notified = threading.Condition()  # an exception to interrupts.py, listed in tests/test_interrupt_rule.py
    while (left_ms := deadline_ms - clock.now_ms()) > 0:
        with never_notified:
            clock.wait(never_notified, max(1, int(left_ms)))
