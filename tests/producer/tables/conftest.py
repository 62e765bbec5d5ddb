"""The fake broker that tables of all libraries are sent to, and a producer that does not wait for others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.producer.transactions.transactional_brokers import producer_of


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"one": 1, "two": 1, "orders": 1}) as cluster:
        yield cluster
        assert cluster.violations == []


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[KafkaProducer]:
    with producer_of(broker, transactional_id=None) as made:
        yield made
