"""What an interrupt in a caller's thread may do, and the two tools with which the rule is kept.

An interrupt is an exception that comes from outside: KeyboardInterrupt, SystemExit of a SIGTERM handler, or what
PyThreadState_SetAsyncExc raises. It can strike wherever a function begins or returns, or a loop goes back, also in `except` and
`finally`. So nothing depends on code that an interrupted call would still have to run.

The rule
    1. Locks are plain Locks or RLocks, taken by `with`. `acquire()` before `try` is not safe, and neither is a Condition, whose
       `with` and `wait` are Python code. Threads wait with Waiters instead, and hold no lock meanwhile.
    2. Whether a call is inside of a block shows in a lock that it holds there (Inside), never by a counter that it takes back.
    3. A call that only waits changes nothing that the same call, made again, would not find or do again.
    4. A call that hands rows over says so first (producer/hand_overs.py). If it is interrupted before it has finished, the
       producer ends. Its rows fail, and its memory is given back, by others.
    5. A caller that wakes others outside of a hand-over does so before the change, under the lock: it may not get to do so later.
       Whoever waits looks again every LOOK_AGAIN_MS in any case.
`finally` may still wake others at once, but is not needed for anything to be right. Tests raise an interrupt at each call point.

CPython takes a plain lock in `with` without a gap, except in 3.14 (python/cpython#148874, mended in 3.15.0): there an interrupt
can come before the block begins, and leave the lock locked. Sender threads are not interrupted: what is raised there ends the
Sender.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_kafka_sink.clock import Clock


class Waiter:
    """One thread that waits once. Clock.wait takes it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> bool:
        """Block until `wake`, at most `timeout` seconds. False when the time ran out."""
        return self._lock.acquire(timeout=timeout)

    def wake(self) -> None:
        """Before or while it waits; once more does nothing. Two threads must not call it at the same time."""
        if self._lock.locked():
            self._lock.release()


LOOK_AGAIN_MS = 1_000  # a call that was interrupted may have woken nobody


class Waiters:
    """The threads that wait for a change of what `lock` guards."""

    def __init__(self, lock: Any) -> None:  # a threading.Lock or RLock
        self._lock = lock
        self._waiting: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add_locked(self) -> Waiter:
        """A waiter for the thread that holds the lock: `wait` with it when the lock is released."""
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    def wake_all_locked(self) -> None:
        for waiter in self._waiting:
            waiter.wake()
        self._waiting.clear()

    def wait_until(self, is_true: Callable[[], bool], clock: Clock, deadline_ms: int) -> bool:
        """Wait until `is_true`, which is called with the lock held: at first, and each time somebody wakes all.

        False when the deadline has passed (Clock.now_ms).
        """
        waiter: Waiter | None = None
        while True:
            with self._lock:
                if is_true():
                    return True
                remaining_ms = deadline_ms - clock.now_ms()
                if remaining_ms <= 0:
                    return False
                waiter = waiter or self.add_locked()
            if clock.wait(waiter, min(remaining_ms, LOOK_AGAIN_MS)):
                waiter = None


class Signal:
    """That something has happened, once and for all."""

    def __init__(self) -> None:
        self.is_given = False
        self._lock = threading.Lock()  # guards the one above
        self._waiters = Waiters(self._lock)

    def give(self) -> None:
        with self._lock:
            self._waiters.wake_all_locked()
            self.is_given = True

    def wait(self, clock: Clock, timeout_ms: int) -> bool:
        """Block until it is given, at most so long. False when the time ran out."""
        return self._waiters.wait_until(lambda: self.is_given, clock, clock.now_ms() + timeout_ms)


class Inside:
    """The calls that are inside of a block now. A call holds a lock of its own there, which ends with the block in any case:

    call = threading.Lock()
    with call:
        inside.add(call)
        …

    Several threads may use it at once: each operation on the set is one step of CPython, and only ended calls leave it.
    """

    def __init__(self) -> None:
        self._calls: set[threading.Lock] = set()

    def add(self, call: threading.Lock) -> None:
        self._calls.add(call)

    def __len__(self) -> int:
        if self._calls:
            self._calls.difference_update([call for call in tuple(self._calls) if not call.locked()])
        return len(self._calls)
