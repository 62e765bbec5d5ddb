"""Producers over fake brokers."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.task_producer import TaskProducer
from tests.fakes.fake_broker import FakeBroker


def producer_of(broker: FakeBroker, **options: Any) -> KafkaProducer:
    """Options with underscores instead of dots. It does not wait long before it tries again."""
    return KafkaProducer(_options(broker, options))


def task_producer_of(broker: FakeBroker, **options: Any) -> TaskProducer:
    """As producer_of."""
    return TaskProducer(_options(broker, options))


def _options(broker: FakeBroker, options: dict[str, Any]) -> dict[str, object]:
    own = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10, "metadata_max_age_ms": 60_000}
    return {name.replace("_", "."): value for name, value in (own | options).items()}
