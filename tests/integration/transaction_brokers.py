"""Brokers with each version of transactions, as parameters of a fixture that starts one: each makes a cluster in a directory."""

from __future__ import annotations

import uuid
from functools import partial

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.zookeeper_kafka import ZooKeeperKafka

VERSION_0 = ("--feature", "transaction.version=0")  # a cluster that came from 3.x, until its operator raises the level
VERSION_1 = ("--feature", "transaction.version=1")

WITH_VERSION_2 = pytest.param(LocalKafka, id="transaction.version=2", marks=pytest.mark.slow)
WITH_VERSION_1 = pytest.param(partial(LocalKafka, format_options=VERSION_1), id="transaction.version=1", marks=pytest.mark.slow)
WITH_VERSION_0 = pytest.param(partial(LocalKafka, format_options=VERSION_0), id="transaction.version=0", marks=pytest.mark.slow)
KAFKA_3_9 = pytest.param(partial(LocalKafka, version="3.9.1"), id="3.9", marks=pytest.mark.matrix)
KAFKA_2_8 = pytest.param(ZooKeeperKafka, id="2.8", marks=pytest.mark.matrix)


def transactional(address: str, transactional_id: str = "") -> KafkaProducer:
    return KafkaProducer({"bootstrap.servers": address, "transactional.id": transactional_id or f"T-{uuid.uuid4().hex}"})
