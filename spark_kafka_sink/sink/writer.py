"""The writers that travel to the tasks: plain data on the driver, one producer inside write().

write() hands each Arrow batch to `KafkaProducer.send_columns` and returns only when every row is acknowledged.
Laws: rows in == rows acknowledged, or it raises. On success the iterator has been read to its end. The producer comes from the
worker's ProducerCache and goes back flushed and empty, or is closed: a Python worker gets no other chance.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.sink import commit_protocol
from spark_kafka_sink.sink.commit_protocol import COUNTERS, KafkaCommitMessage, WrittenRange, merge_ranges
from spark_kafka_sink.sink.row_mapping import RowMapping

if TYPE_CHECKING:
    from spark_kafka_sink.producer.delivery import Delivery
    from spark_kafka_sink.producer.producer import KafkaProducer

GATHERED_BYTES = 4 * 1024 * 1024  # Spark's Arrow batches have 10,000 rows, often 1 MB; the producer encodes 4 MiB at a time
MAX_PENDING = 256  # handles looked at for each Arrow batch; buffer.memory keeps them far below, unless batches are tiny
MAX_RANGES = 10_000  # kept before they are merged: each Arrow batch brings one per topic-partition


@dataclass(frozen=True, slots=True)
class Task:
    """Who writes: Spark's ids of this attempt, and of the stream's batch if there is one (foreachBatch included)."""

    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None

    @classmethod
    def current(cls) -> Task:
        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            context.getLocalProperty("sql.streaming.queryId"),
            None if batch_id is None else int(batch_id),
        )

    def __str__(self) -> str:
        stream = "" if self.batch_id is None else f" of batch {self.batch_id}"
        return f"Spark partition {self.partition}{stream}, attempt {self.attempt}"


class PendingDeliveries:
    """Counts what was sent and what was acknowledged, keeping no more handles than needed."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._pending: deque[Delivery] = deque()
        self._written: list[WrittenRange] = []

    def add(self, delivery: Delivery) -> None:
        """Take note of a new handle. Raises the error of any that has failed, so that a task fails before it has read all."""
        self.sent += delivery.rows
        self._pending.append(delivery)
        for each in self._pending:
            if each.error is not None:
                raise each.error
        while self._pending and (self._pending[0].done() or len(self._pending) > MAX_PENDING):
            self._settle(self._pending.popleft())

    def settle_all(self) -> None:
        """Wait for the rest. Raises the first error."""
        while self._pending:
            self._settle(self._pending.popleft())

    def _settle(self, delivery: Delivery) -> None:
        delivery.result()
        self.acknowledged += delivery.acknowledged
        self._written += [
            WrittenRange(topic, partition, part.first, part.last, part.rows, part.bytes)
            for (topic, partition), part in delivery.offsets.items()
        ]
        if len(self._written) > MAX_RANGES:
            self._written = list(merge_ranges(self._written))

    def written(self) -> tuple[WrittenRange, ...]:
        return merge_ranges(self._written)


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Small neighbours, up to GATHERED_BYTES, and large batches alone, so that joining never copies much; no empty ones.

    Work per partition is done once for what is joined.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > GATHERED_BYTES:
            yield waiting
            waiting, size = [], 0
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
    if waiting:
        yield waiting


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays(parts) for parts in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def write_batches(
    batches: Iterator[pa.RecordBatch], mapping: RowMapping, producer: KafkaProducer, task: Task
) -> KafkaCommitMessage:
    """Send every row and wait until each is acknowledged. Raises KafkaError otherwise; rows may have been written then."""
    started = time.monotonic()
    deliveries = PendingDeliveries()
    rows = 0
    for gathered in gather(batches):
        rows += sum(batch.num_rows for batch in gathered)
        deliveries.add(producer.send_columns(**mapping.columns(_joined(gathered))))
    producer.flush()
    deliveries.settle_all()
    if not rows == deliveries.sent == deliveries.acknowledged:
        raise DeliveryError(
            f"{rows} rows came in, {deliveries.sent} were sent and {deliveries.acknowledged} acknowledged,"
            " without any error reported"
        )
    written = deliveries.written()
    metrics = producer.metrics(since_start=True)
    return KafkaCommitMessage(
        spark_partition=task.partition,
        attempt=task.attempt,
        query_id=task.query_id,
        batch_id=task.batch_id,
        rows=rows,
        bytes=sum(each.bytes for each in written),
        seconds=round(time.monotonic() - started, 3),
        counters=tuple(round(metrics.get(name, 0), 3) for name in COUNTERS),
        written=written,
    )


@dataclass(frozen=True)
class _TaskWriter:
    """What both kinds of writers are made of: picklable, and without any life of its own."""

    mapping: RowMapping
    producer_options: Mapping[str, object] = field(repr=False)  # checked on the driver; secrets wrapped
    report_path: str | None = None
    producer_cache_timeout_ms: int = 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Blocks until every row is acknowledged, at most delivery.timeout.ms after the last was sent.

        Raises KafkaError, naming the Spark partition and attempt, when a row cannot be written; Spark then retries the task.
        """
        from spark_kafka_sink.sink.producer_cache import PRODUCERS  # here: the driver, which plans every batch, does without

        task = Task.current()
        try:
            with PRODUCERS.lend(self.producer_options, self.producer_cache_timeout_ms) as producer:
                return write_batches(iterator, self.mapping, producer, task)
        except KafkaError as error:
            error.message = f"{error.message} ({task})"
            raise


class KafkaBatchWriter(_TaskWriter, DataSourceArrowWriter):
    """Of `df.write`, foreachBatch included."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_protocol.commit(messages, self.report_path)  # type: ignore[arg-type]  # Spark gives back what write() returned

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_protocol.abort(messages)  # type: ignore[arg-type]


class KafkaStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Of `df.writeStream`. Spark makes a new one for every commit: nothing is kept from batch to batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's signature
        commit_protocol.commit(messages, self.report_path)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        commit_protocol.abort(messages)  # type: ignore[arg-type]
