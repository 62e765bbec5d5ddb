"""The batches that a Produce request refers to, by partition, oldest first. Sender thread only.

A batch that has expired in flight stays until its answer comes or the connection is lost: the request still reads its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class InFlightBatches:
    def __init__(self) -> None:
        self._batches: dict[TopicPartition, list[ProducerBatch]] = {}
        # None of those that have not expired was made before. A bound: a batch that leaves changes nothing until `look_anew`.
        self.oldest_made_ms = NEVER_MS

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: ProducerBatch) -> None:
        batch.in_flight = True
        self._batches.setdefault(batch.topic_partition, []).append(batch)
        if batch.created_ms < self.oldest_made_ms:
            self.oldest_made_ms = batch.created_ms

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

    def look_anew(self) -> None:
        """Make the bound exact."""
        self.oldest_made_ms = min((batch.created_ms for batch in self.not_done()), default=NEVER_MS)

    def not_done(self) -> Iterator[ProducerBatch]:
        """Those that have not expired."""
        return (batch for batches in self._batches.values() for batch in batches if not batch.is_done)
