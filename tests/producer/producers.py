"""Producers over fake brokers."""

from __future__ import annotations

import dataclasses
from typing import Any

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.task_producer import TaskProducer
from tests.fakes.fake_broker import FakeBroker

ANSWER_LIMIT_MS = 30_000


def producer_of(broker: FakeBroker, **options: Any) -> KafkaProducer:
    """Options with underscores instead of dots. It does not wait long before it tries again."""
    return KafkaProducer(_options(broker, options))


def task_producer_of(broker: FakeBroker, **options: Any) -> TaskProducer:
    """As producer_of."""
    return TaskProducer(_options(broker, options))


def _options(broker: FakeBroker, options: dict[str, Any]) -> dict[str, object]:
    own = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10, "metadata_max_age_ms": 60_000}
    return {name.replace("_", "."): value for name, value in (own | options).items()}


def await_answers(producer: KafkaProducer, *topics: str) -> None:
    """Wait until brokers have told of these topics, whether they exist or not, however busy the machine is."""
    metadata, clock = producer._metadata, producer._clock
    for topic in topics:
        metadata.add_topic(topic, clock.now_ms())
        while metadata.cluster().partition_count(topic) is None and metadata.cluster().topic_error(topic) is None:
            version = metadata.request_update_for_topic(topic)
            producer._parts.metadata_wait.wake_sender()
            metadata.await_update(version, ANSWER_LIMIT_MS)


def give_up_soon(producer: KafkaProducer, max_block_ms: int = 100) -> None:
    """From now on calls wait no longer than this for metadata and memory. It is for what never comes; what a test needs comes
    before, with the time that a busy machine takes."""
    producer._parts.metadata_wait.max_block_ms = max_block_ms
    accumulator = producer._accumulator
    accumulator._config = dataclasses.replace(accumulator._config, max_block_ms=max_block_ms)
