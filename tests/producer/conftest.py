"""The fake brokers of most tests of this folder, and a producer over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.producer.lock_order import LockOrder
from tests.producer.producers import producer_of

# Interrupts come at any point of a watched lock, which is Python code; a fork keeps what its parent's threads held.
NOT_WATCHED = ("test_interrupts", "test_interrupted_appends", "test_fork")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Two nodes, which nobody may violate."""
    with FakeBroker(nodes=2, topics={"orders": 4, "single": 1, "other": 2}) as cluster:
        yield cluster
        assert cluster.violations == []


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[KafkaProducer]:
    with producer_of(broker) as made:
        yield made


@pytest.fixture(autouse=True)
def lock_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockOrder]:
    """Watches the locks of every producer of this folder: taken in the order of producer/__init__.py, and held in no wait."""
    order, wait = LockOrder(), Clock.wait
    if request.module.__name__.rpartition(".")[2] in NOT_WATCHED:
        yield order
        return

    def wait_and_look(clock: Clock, waiter: Any, timeout_ms: int) -> bool:
        order.waiting()
        return wait(clock, waiter, timeout_ms)

    order.install(monkeypatch)
    monkeypatch.setattr(Clock, "wait", wait_and_look)
    yield order
    assert sorted(order.wrong) == []
