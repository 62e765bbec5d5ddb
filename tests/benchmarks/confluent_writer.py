"""confluent-kafka in mapInArrow, as a Spark user writes it who wants what a sink does: idempotent, complete or failed.

    frame.mapInArrow(ConfluentWriter(topic, settings), ConfluentWriter.SCHEMA).write.format("noop").mode("append").save()

The settings are those of our sink: its linger.ms, batch.size and buffer.memory, acks=all, and Java's partitioner, so that a key
gets the same partition. Errors of deliveries are reported, successes are not: that is cheaper, and flush() waits for them anyway.
`on_delivery` is a setting because a record then costs less CPU than with an argument of produce(), and no more than with
produce_batch(). Workers import this module, and with it neither Spark nor our package.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from spark_kafka_sink.config.producer_config import ProducerConfig

FLUSH_S = 130.0  # longer than delivery.timeout.ms, after which each record has been delivered or reported
FULL_S = 60.0  # Kafka's max.block.ms: how long a full queue may take to get room
POLL_S = 0.1


def settings(bootstrap_servers: str, like: ProducerConfig) -> dict[str, Any]:
    """librdkafka's configuration with what our producer uses."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "compression.type": like.compression_type,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": like.linger_ms,
        "batch.size": like.batch_size,
        "delivery.timeout.ms": like.delivery_timeout_ms,
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": like.buffer_memory // 1024,
        "queue.buffering.max.messages": 1_000_000,  # the bytes are the limit
        "delivery.report.only.error": True,
    }


class ConfluentWriter:
    """The function for mapInArrow: writes the columns key and value, and yields one row with the number of rows."""

    SCHEMA = "rows bigint"

    def __init__(self, topic: str, options: dict[str, Any]) -> None:
        self._topic = topic
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        errors: list[str] = []
        producer = Producer(self._options | {"on_delivery": lambda error, _: errors.append(str(error)) if error else None})
        rows = 0
        for batch in batches:
            self._produce(producer, batch)
            producer.poll(0)
            self._check(errors)
            rows += batch.num_rows
        left = producer.flush(FLUSH_S)
        self._check(errors)
        if left:
            raise TimeoutError(f"{self._topic}: {left:,} of {rows:,} rows are not acknowledged after {FLUSH_S:.0f} s")
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def _produce(self, producer: Producer, batch: pa.RecordBatch) -> None:
        produce, topic = producer.produce, self._topic
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            try:
                produce(topic, value, key)
            except BufferError:
                self._produce_when_there_is_room(producer, value, key)

    def _produce_when_there_is_room(self, producer: Producer, value: bytes, key: bytes) -> None:
        deadline = time.monotonic() + FULL_S
        while True:
            producer.poll(POLL_S)  # serves delivery reports, which makes room
            try:
                return producer.produce(self._topic, value, key)
            except BufferError as full:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._topic}: the producer's queue had no room for {FULL_S:.0f} s") from full

    def _check(self, errors: list[str]) -> None:
        if errors:
            raise RuntimeError(
                f"{self._topic}: rows that could not be written: {len(errors):,}, the first because of: {errors[0]}"
            )
