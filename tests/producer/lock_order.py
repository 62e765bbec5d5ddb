"""Watches the locks that the package makes, and tells what contradicts the list of locks in producer/__init__.py.

The list is read from there, so that it cannot say one thing and the code do another. Locks are named by class and attribute. A
lock that a call holds only to show that it goes on (`call`, see Inside) has no place in the list and is not watched.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from typing import Any

import pytest

import spark_kafka_sink.producer

_PACKAGE = spark_kafka_sink.producer.__name__.partition(".")[0]
_MADE = re.compile(r"self\.(\w+)\b.* = threading\.R?Lock\(\)")
_NAME = re.compile(r"\b\w+\.\w*lock\b")
NOT_BELOW_QUEUES = "Metadata._lock"
SHOWS_A_CALL = ("HandOver.call", "Waiter._lock")


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
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            self._order.held().append(self)
        return taken

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

    def is_right(self, held: str, taken: str) -> bool:
        if held in self.last:
            return False
        places = {name: number for number, names in enumerate(self.ordered) for name in names}
        if held not in places:
            return True
        if taken == NOT_BELOW_QUEUES:
            return places[held] < places["PartitionQueue.lock"]
        return taken not in places or places[held] < places[taken]

    def _maker(self, real: Any) -> Any:
        def make() -> Any:
            frame = sys._getframe(1)
            made = _MADE.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
            if made is None or frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
                return real()
            name = f"{type(frame.f_locals['self']).__name__}.{made[1]}"
            return real() if name in SHOWS_A_CALL else WatchedLock(self, name, real())

        return make
