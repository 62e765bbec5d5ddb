"""The order of the producer's locks: what the watch of lock_order.py, which the other tests run under, tells apart."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import spark_kafka_sink.producer
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.interrupts import Waiter
from spark_kafka_sink.producer.hand_overs import HandOvers
from tests.fakes.clock import ManualClock
from tests.producer.lock_order import LockOrder, WatchedLock, listed_locks


def locks(order: LockOrder, *names: str) -> list[WatchedLock]:
    return [WatchedLock(order, name, threading.RLock()) for name in names]


def test_every_lock_of_the_producer_is_in_the_list() -> None:
    ordered, last = listed_locks()
    names_in_list = set().union(*ordered, last)
    (folder,) = map(Path, spark_kafka_sink.producer.__path__)
    made = set[str]()
    for file in folder.rglob("*.py"):
        name = ""
        for line in file.read_text().splitlines():
            name = match[1] if (match := re.match(r"class (\w+)", line)) else name
            made |= {f"{name}.{each}" for each in re.findall(r"self\.(\w+) = threading\.R?Lock\(\)", line)}
    assert made - {"HandOver.liveness_lock"} <= names_in_list
    assert len(made) > 10


@pytest.mark.parametrize(
    ("outer_lock", "inner_lock", "wrong"),
    [
        ("CallerSide._lock", "PartitionQueue.lock", False),
        ("PartitionQueue.lock", "BufferPool._lock", False),
        ("BufferPool._lock", "PartitionQueue.lock", True),
        ("PartitionQueue.lock", "PartitionQueue.lock", True),  # of two partitions
        ("PartitionQueue.lock", "OldestBatch._lock", False),
        ("OldestBatch._lock", "Metadata._lock", True),  # with it a thread takes no other
        ("CallerSide._lock", "Metadata._lock", False),
        ("PartitionQueue.lock", "Metadata._lock", True),
        ("Delivery._lock", "Metadata._lock", True),
        ("Metadata._lock", "PartitionQueue.lock", False),
    ],
)
def test_locks_are_taken_downwards(outer_lock: str, inner_lock: str, wrong: bool) -> None:
    order = LockOrder()
    first, second = locks(order, outer_lock, inner_lock)
    with first, second:
        pass
    assert order.wrong == ({f"{inner_lock} is taken under {outer_lock}"} if wrong else set())
    assert order.pairs == {(outer_lock, inner_lock)}


def test_two_locks_that_are_not_listed_have_one_order_too() -> None:
    order = LockOrder()
    first, second = locks(order, "Metadata._lock", "TokenCache._lock")
    with first, second:
        assert order.faults() == []
    with second, first:
        assert order.faults() == ["Metadata._lock and TokenCache._lock are taken in both orders"]


def test_a_lock_that_its_thread_holds_may_be_taken_once_more() -> None:
    order = LockOrder()
    (lock,) = locks(order, "RecordBundle._outcome_lock")
    with lock, lock:
        pass
    assert order.wrong == set()
    assert order.held() == []


def test_what_another_thread_holds_does_not_count() -> None:
    order = LockOrder()
    below, above = locks(order, "BufferPool._lock", "PartitionQueue.lock")
    with below:
        other = threading.Thread(target=above.acquire)
        other.start()
        other.join(10)
    assert order.pairs == set()


@pytest.mark.parametrize("clock", [Clock(), ManualClock()], ids=lambda clock: type(clock).__name__)
def test_a_thread_holds_nothing_while_it_waits(clock: Clock, lock_order: LockOrder) -> None:
    (lock,) = locks(lock_order, "BufferPool._lock")
    with lock:
        clock.wait(Waiter(), 1)
    assert lock_order.wrong == {"a thread waits and holds BufferPool._lock"}
    lock_order.wrong.clear()


@pytest.mark.usefixtures("lock_order")
def test_locks_of_the_package_are_watched_and_no_others() -> None:
    made: Any = HandOvers(Clock(), lambda: None)
    assert made._lock.name == "HandOvers._lock"
    assert not isinstance(threading.Lock(), WatchedLock)
