"""Configurations as tests write them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


def read(**options: object) -> ProducerConfig:
    """Keys with underscores for dots."""
    return ProducerConfig.from_mapping(SERVERS | {key.replace("_", "."): value for key, value in options.items()})


def problem(mapping: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping(SERVERS | mapping)
    assert str(raised.value).startswith("[KAFKA_INVALID_CONFIG] ")
    return raised.value.message
