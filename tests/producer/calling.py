"""What the tests of KafkaProducer's calls share."""

from __future__ import annotations

import pyarrow as pa

from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.producer import KafkaProducer

WAIT_MS = 30_000


WAIT_S = 30.0


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def fill_memory(producer: KafkaProducer) -> PoolMemory:
    return producer._pool.allocate(producer._pool.available_memory // producer._pool.block_size, 0)
