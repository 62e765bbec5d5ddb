"""Transactional producers over real sockets, and the fake cluster that they write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.fake_broker import FakeBroker
from tests.producer.producers import task_producer_of

WAIT_MS = 30_000
ID = "copies-1"
GROUP = ConsumerGroupMetadata("readers")
COORDINATOR_APIS = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)


@contextmanager
def cluster_of(version: int) -> Iterator[FakeBroker]:
    """Two brokers with transactions of this version, which nobody may violate."""
    with FakeBroker(nodes=2, topics={"orders": 2, "single": 1}, transaction_version=version) as cluster:
        yield cluster
        assert cluster.violations == []


def producer_of(broker: FakeBroker, **options: Any) -> TaskProducer:
    """Options with underscores instead of dots. A TaskProducer, as is_at_rest shows what a transaction leaves."""
    own = {"transactional_id": ID, "retry_backoff_max_ms": 50, "linger_ms": 0}
    return task_producer_of(broker, **(own | options))


def write(producer: KafkaProducer, *values: bytes, topic: str = "single", partition: int | None = None) -> Any:
    where = None if partition is None else pa.array([partition] * len(values), pa.int32())
    return producer.send_columns(topic, value=pa.array(values, pa.binary()), partition=where)
