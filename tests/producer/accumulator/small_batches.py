"""What tests of the accumulator share: batches of a kibibyte, clusters of few partitions, and a split as the Sender does it."""

from __future__ import annotations

from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from tests.producer.harness import TOPIC, Accumulation, cluster

ONE_NODE = cluster({TOPIC: (0, 0, 0, 0)})
TWO_NODES = cluster({TOPIC: (0, 0, 1, 1)})
VALUE = bytes(100)  # 109 bytes as a record
BATCH = 1024


def split(stage: Accumulation, batch: ProducerBatch) -> list[ProducerBatch]:
    """Split a batch and queue the smaller ones, as the Sender does."""
    smaller = stage.accumulator.split(batch)
    for each in reversed(smaller):
        stage.accumulator.queues.put_back(each)
    return smaller
