"""A producer that records its calls, and acknowledges or fails rows as a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.delivery import OffsetRange, RowFailure
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class FakeDelivery:
    """Like Delivery, but settled by the test or by flush()."""

    def __init__(self, rows: int, first_offset: int) -> None:
        self.rows = rows
        self.acknowledged = 0
        self.error: KafkaError | None = None
        self.failures: list[RowFailure] = []
        self.offsets: dict[TopicPartition, OffsetRange] = {}
        self._first_offset = first_offset

    def reject(self, blamed: Mapping[int, KafkaError], others: Sequence[int] = (), *, partition: int = 0) -> None:
        """The broker blames some rows, others were in the same batch; the rest is acknowledged."""
        rows = np.array(sorted([*blamed, *others]), np.int32)
        error = next(iter(blamed.values()), KafkaError("another row of the batch was rejected"))
        where = TopicPartition("t", partition)
        self.failures.append(RowFailure(rows, error, where, dict(blamed), rows_are_named=True))
        self.error = self.error or error
        if self.rows > len(rows):
            self.acknowledge(self.rows - len(rows))

    def fail_all(self, error: KafkaError) -> None:
        rows = np.arange(self.rows, dtype=np.int32)
        self.failures.append(RowFailure(rows, error, None, {}, rows_are_named=False))
        self.error = error

    def acknowledge(self, rows: int | None = None) -> None:
        self.acknowledged = self.rows if rows is None else rows
        last = self._first_offset + self.acknowledged - 1
        self.offsets = {TopicPartition("t", 0): OffsetRange(self._first_offset, last, self.acknowledged, 10 * self.acknowledged)}

    def done(self) -> bool:
        return bool(self.offsets) or self.error is not None

    def result(self) -> FakeDelivery:
        if not self.done():
            self.acknowledge()
        if self.error is not None:
            raise self.error
        return self


class FakeProducer:
    """`on_send(producer, delivery)` may settle each call; flush() acknowledges the calls that are not settled.

    flush(until=…) acknowledges them up to the one that it names.
    """

    def __init__(
        self, config: Mapping[str, object] | None = None, on_send: Callable[[FakeProducer, FakeDelivery], None] | None = None
    ) -> None:
        self.config = config
        self.calls: list[dict[str, Any]] = []
        self.deliveries: list[FakeDelivery] = []
        self.flushed = 0
        self.closed: list[int | None] = []
        self.client_id = "producer-0"
        self.works = True
        self.kept_bytes: int | None = None
        self.resumed = 0
        self._on_send = on_send

    def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
        ProducerColumns(topic, **columns).require_topics()
        self.calls.append({"topic": topic, **columns})
        delivery = FakeDelivery(len(columns["value"]), sum(each.rows for each in self.deliveries))
        self.deliveries.append(delivery)
        if self._on_send is not None:
            self._on_send(self, delivery)
        return delivery

    def flush(self, *, until: FakeDelivery | None = None) -> None:
        self.flushed += until is None
        for delivery in self.deliveries:
            if not delivery.done():
                delivery.acknowledge()
            if delivery is until:
                return

    def metrics(self, *, since_start: bool = False) -> dict[str, float]:
        assert since_start  # a task may take longer than the windows of averages and maxima
        return {"batch-send-total": len(self.calls), "request-latency-max": 7, "byte-total": 99, "something-else": 1}

    def is_at_rest(self) -> bool:
        return not self.closed and self.works and all(delivery.done() for delivery in self.deliveries)

    def rest(self, keep_bytes: int = 0) -> None:
        self.kept_bytes = keep_bytes

    def resume(self) -> None:
        self.resumed += 1

    def close(self, timeout_ms: int | None = None) -> None:
        self.closed.append(timeout_ms)
