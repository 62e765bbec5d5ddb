"""Producers of the old kind, for tests: with a fake broker, or in steps."""

from __future__ import annotations

from random import Random
from typing import Any

from spark_kafka_sink.legacy.config import read_config
from spark_kafka_sink.legacy.event_handler import EventHandler
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.producer import Producer
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker

WAIT_S = 30.0


def legacy_options(servers: str, **options: Any) -> dict[str, object]:
    properties = {
        "metadata_broker_list": servers,
        "request_required_acks": -1,
        "request_timeout_ms": 20_000,
        "retry_backoff_ms": 10,
        "serializer_class": "kafka.serializer.StringEncoder",
        "partitioner_class": by_number,
    } | options
    return {name.replace("_", "."): value for name, value in properties.items()}


def by_number(key: Any, partitions: int) -> int:
    """A key names its partition."""
    return int(key) % partitions


def legacy(fake: FakeBroker, on_error: Any = None, **options: Any) -> Producer:
    return Producer(legacy_options(fake.bootstrap_servers, **options), on_error=on_error)


def asynchronous(fake: FakeBroker, on_error: Any = None, **options: Any) -> Producer:
    return legacy(fake, on_error, **({"producer_type": "async", "queue_buffering_max_ms": 5} | options))


class Turns(Random):
    """Draws one after the other."""

    turn = -1

    def choice(self, seq: Any) -> Any:
        self.turn += 1
        return seq[self.turn % len(seq)]


class HandlerStage:
    """An EventHandler on a clock of its own; the KafkaProducer below it runs on the real one."""

    def __init__(self, fake: FakeBroker, **options: Any) -> None:
        self.config, plugins = read_config(legacy_options(fake.bootstrap_servers, **options))
        self.clock = ManualClock()
        self.producer = KafkaProducer(self.config.producer.to_mapping())
        self.handler = EventHandler(self.config, plugins, self.producer, self.clock, Turns())

    def __enter__(self) -> HandlerStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.close()

    def send(self, *messages: KeyedMessage) -> None:
        self.handler.handle(self.handler.serialize(messages))


def keyless(number: int, topic: str = "orders") -> KeyedMessage:
    return KeyedMessage(topic, message=str(number))


def written(fake: FakeBroker, partition: int, topic: str = "orders") -> list[str]:
    return [(value or b"").decode() for value in fake.values(topic, partition)]


def tries(fake: FakeBroker) -> dict[int, int]:
    """How many Produce requests wrote to each partition of "orders"."""
    tries_by_partition: dict[int, int] = {}
    for request in fake.requests_of(ApiKey.PRODUCE):
        for data in (data for topic in request.message.topic_data for data in topic.partition_data):
            tries_by_partition[data.index] = tries_by_partition.get(data.index, 0) + 1
    return tries_by_partition
