"""The fake brokers of most tests of this folder, and a producer over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.producer.lock_order import lock_order as lock_order  # watches every test of this folder
from tests.producer.producers import producer_of


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
