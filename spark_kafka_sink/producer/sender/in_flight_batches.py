"""The batches that a Produce request refers to, by partition, oldest first. Sender thread only.

A batch that has expired in flight stays until its answer comes or the connection is lost: the request still reads its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class InFlightBatches:
    def __init__(self) -> None:
        self._batches: dict[TopicPartition, list[ProducerBatch]] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: ProducerBatch) -> None:
        batch.in_flight = True
        self._batches.setdefault(batch.topic_partition, []).append(batch)

    def remove(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        batches = self._batches[batch.topic_partition]
        batches.remove(batch)
        if not batches:
            del self._batches[batch.topic_partition]

    def clear(self) -> list[ProducerBatch]:
        """The client is closed: no request refers to any batch. Returns those that were here."""
        cleared = [batch for batches in self._batches.values() for batch in batches]
        for batch in cleared:
            batch.in_flight = False
        self._batches.clear()
        return cleared

    def not_done(self) -> Iterator[ProducerBatch]:
        """Those that have not expired."""
        return (batch for batches in self._batches.values() for batch in batches if not batch.is_done)
