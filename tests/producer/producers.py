"""Producers over fake brokers."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker


def producer_of(broker: FakeBroker, **options: Any) -> KafkaProducer:
    """Options with underscores instead of dots. It does not wait long before it tries again."""
    given = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10, "metadata_max_age_ms": 60_000} | options
    return KafkaProducer({name.replace("_", "."): value for name, value in given.items()})
