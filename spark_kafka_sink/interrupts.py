"""What an interrupt in a caller's thread may do: the rule for code that callers run, and the classes that it uses.

An interrupt is an exception that comes from outside: KeyboardInterrupt, SystemExit of a SIGTERM handler, or what
PyThreadState_SetAsyncExc raises. It can come wherever a function begins or returns or a loop repeats, also in `except` and
`finally`. So nothing depends on code that an interrupted call would still have to run.

The rule (tests/test_interrupt_rule.py lists the files that do otherwise, and why they may)
    1. Locks are plain Locks or RLocks, taken by `with`. `acquire()` before `try` is not safe, and neither is a Condition, whose
       `with` and `wait` are Python code. Threads wait with Waiters instead, and hold no lock meanwhile.
    2. While a call is inside a block that others must know of, it holds a lock of its own (LiveCalls). Nothing counts calls.
    3. A call that only waits can be made again after an interrupt, with the same effect.
    4. A call that hands rows over says so first (producer/hand_overs.py). If it is interrupted before it has finished, the
       producer ends: the Sender fails the call's rows and takes its memory back.
    5. Outside of a hand-over, a caller takes the lock, wakes the threads that wait, and only then makes the change. If it woke
       them after the change, an interrupt could come first. A thread that waits also looks again every RECHECK_INTERVAL_MS.
Code in `finally` may wake others earlier, but nothing depends on it. Tests raise an interrupt at each call point.

CPython takes a plain lock in `with` without a gap, except in 3.14 (python/cpython#148874, mended in 3.15.0): there an interrupt
can come before the block begins, and leave the lock locked. The rule is not for Sender threads: an exception like SystemExit
ends them (producer/sender/sender_failures.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_kafka_sink.clock import Clock


class Waiter:
    """Lets one thread wait once, by Clock.wait."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> bool:
        """Block until `wake`, at most `timeout` seconds. False when the time ran out."""
        return self._lock.acquire(timeout=timeout)

    def wake(self) -> None:
        """End the wait, or the next one if none has begun. A second call does nothing. Only one thread at a time may call it."""
        if self._lock.locked():
            self._lock.release()


RECHECK_INTERVAL_MS = 1_000  # a call that was interrupted may have woken nobody


class Waiters:
    """The threads that wait for a change of what `lock` guards."""

    def __init__(self, lock: Any) -> None:  # a threading.Lock or RLock
        self._lock = lock
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add_locked(self) -> Waiter:
        """A Waiter for the thread that holds the lock. The thread waits with it after it has released the lock."""
        waiter = Waiter()
        self._waiters.append(waiter)
        return waiter

    def wake_all_locked(self) -> None:
        """End the wait of every thread. The caller holds the lock; rule 5 says when to call this."""
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()

    def wake_all_within(self, timeout_ms: int) -> None:
        """As `wake_all_locked`, for a thread that does not hold the lock, and must not wait longer for it."""
        if self._lock.acquire(timeout=timeout_ms / 1000):
            try:
                self.wake_all_locked()
            finally:
                self._lock.release()

    def wait_until(self, is_true: Callable[[], bool], clock: Clock, deadline_ms: int) -> bool:
        """Wait until `is_true()`. Calls it with the lock held: at once, each time all are woken, and every RECHECK_INTERVAL_MS.

        False when `deadline_ms`, a time of Clock.now_ms, has passed.
        """
        waiter: Waiter | None = None
        while True:
            with self._lock:
                if is_true():
                    return True
                left_ms = deadline_ms - clock.now_ms()
                if left_ms <= 0:
                    return False
                waiter = waiter or self.add_locked()
            if clock.wait(waiter, min(left_ms, RECHECK_INTERVAL_MS)):
                waiter = None


class Signal:
    """A flag that is set once and stays set. Threads can wait for it."""

    def __init__(self) -> None:
        self.is_signaled = False
        self._lock = threading.Lock()  # guards is_signaled
        self._waiters = Waiters(self._lock)

    def signal(self) -> None:
        """Set the flag for good, and wake all threads that wait for it. Any thread may call it, and again."""
        with self._lock:
            self._waiters.wake_all_locked()
            self.is_signaled = True

    def wait(self, clock: Clock, timeout_ms: int) -> bool:
        """Block until `signal` is called, at most `timeout_ms`. False when the time ran out."""
        return self._waiters.wait_until(lambda: self.is_signaled, clock, clock.now_ms() + timeout_ms)


class LiveCalls:
    """The calls that run a certain block now. Each holds a lock of its own, which `with` releases however the block ends:

    liveness_lock = threading.Lock()
    with liveness_lock:
        live_calls.add(liveness_lock)
        …

    Several threads may use it at once: each operation on the set is one step of CPython, and only ended calls leave it.
    """

    def __init__(self) -> None:
        self._liveness_locks: set[threading.Lock] = set()

    def add(self, liveness_lock: threading.Lock) -> None:
        self._liveness_locks.add(liveness_lock)

    def __len__(self) -> int:
        """How many calls run the block now. Removes those that have ended from the set."""
        if self._liveness_locks:
            self._liveness_locks.difference_update([each for each in tuple(self._liveness_locks) if not each.locked()])
        return len(self._liveness_locks)
