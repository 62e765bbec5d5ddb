"""Watches the locks that the package makes, and tells what contradicts the list of locks in producer/__init__.py.

The list is read from there, so that it cannot say one thing and the code do another. Locks are named by class and attribute. A
lock that a call holds only to show that it goes on (`liveness_lock`, see LiveCalls) has no place in the list and is not watched.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import spark_kafka_sink.producer
from spark_kafka_sink.clock import Clock
from tests.fakes.clock import ManualClock

_PACKAGE = spark_kafka_sink.producer.__name__.partition(".")[0]
_MADE = re.compile(r"self\.(\w+)\b.* = threading\.R?Lock\(\)")
_NAME = re.compile(r"\b\w+\.\w*lock\b")
NOT_BELOW_QUEUES = "Metadata._lock"
SHOWS_A_CALL = ("HandOver.liveness_lock", "Waiter._lock")


def listed_locks() -> tuple[list[set[str]], set[str]]:
    """The locks of producer/__init__.py: those with an order, line by line, and those under which no other is taken."""
    text = (spark_kafka_sink.producer.__doc__ or "").partition("Locks.")[2].partition("No thread takes")[0]
    ordered, _, last = text.partition("With one of these, a thread takes no other:")
    lines = [set(_NAME.findall(line)) for line in ordered.splitlines()]
    taken_under = re.sub(r"taken under PartitionQueue\.lock", "", last)
    return [names for names in lines if names], set(_NAME.findall(taken_under))


class WatchedLock:
    """A Lock or RLock. Tells `order` what its thread takes while it holds others."""

    def __init__(self, order: LockOrder, name: str, lock: Any) -> None:
        self._order = order
        self.name = name
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._order.taking(self)
        is_taken: bool = self._lock.acquire(blocking, timeout)
        if is_taken:
            self._order.held().append(self)
        return is_taken

    def release(self) -> None:
        self._order.held().remove(self)
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class LockOrder:
    """The locks that are made while it is installed, which pairs of them were held together, and what was wrong with that."""

    def __init__(self) -> None:
        self.ordered, self.last = listed_locks()
        self.pairs: set[tuple[str, str]] = set()  # held, then taken
        self.wrong: set[str] = set()
        self._threads = threading.local()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("Lock", "RLock"):
            monkeypatch.setattr(threading, kind, self._maker(getattr(threading, kind)))
        for clock in (Clock, ManualClock):
            monkeypatch.setattr(clock, "wait", self._looking(clock.wait))

    def held(self) -> list[WatchedLock]:
        """What the calling thread holds."""
        locks: list[WatchedLock] = self._threads.__dict__.setdefault("held", [])
        return locks

    def taking(self, lock: WatchedLock) -> None:
        for each in self.held():
            if each is lock:  # an RLock, once more
                return
            self.pairs.add((each.name, lock.name))
            if not self.is_right(each.name, lock.name):
                self.wrong.add(f"{lock.name} is taken under {each.name}")

    def waiting(self) -> None:
        """The calling thread waits for something that another thread does."""
        self.wrong.update(f"a thread waits and holds {each.name}" for each in self.held())

    def faults(self) -> list[str]:
        """What was wrong; also two locks, listed or not, that were taken in both orders."""
        both = [
            (outer_lock, inner_lock)
            for outer_lock, inner_lock in self.pairs
            if outer_lock < inner_lock and (inner_lock, outer_lock) in self.pairs
        ]
        return sorted(self.wrong | {f"{outer_lock} and {inner_lock} are taken in both orders" for outer_lock, inner_lock in both})

    def is_right(self, outer_lock: str, inner_lock: str) -> bool:
        if outer_lock in self.last:
            return False
        places = {name: number for number, names in enumerate(self.ordered) for name in names}
        if outer_lock not in places:
            return True
        if inner_lock == NOT_BELOW_QUEUES:
            return places[outer_lock] < places["PartitionQueue.lock"]
        return inner_lock not in places or places[outer_lock] < places[inner_lock]

    def _looking(self, wait: Any) -> Any:
        def wait_and_look(clock: Clock, waitable: Any, timeout_ms: int) -> bool:
            self.waiting()
            return bool(wait(clock, waitable, timeout_ms))

        return wait_and_look

    def _maker(self, real: Any) -> Any:
        def make() -> Any:
            frame = sys._getframe(1)
            made = _MADE.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
            if made is None or frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
                return real()
            name = f"{frame.f_code.co_qualname.split('.')[-2]}.{made[1]}"  # of the class that makes it, not of a subclass
            return real() if name in SHOWS_A_CALL else WatchedLock(self, name, real())

        return make


# Interrupts come at any point of a watched lock, which is Python code; a fork keeps what its parent's threads held.
NOT_WATCHED = ("test_interrupts", "test_interrupted_appends", "test_fork")


@pytest.fixture(autouse=True)
def lock_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockOrder]:
    """Watches the locks of every producer of a folder: taken in the order of producer/__init__.py, and held in no wait."""
    order = LockOrder()
    if request.module.__name__.rpartition(".")[2] not in NOT_WATCHED:
        order.install(monkeypatch)
    yield order
    assert order.faults() == []
