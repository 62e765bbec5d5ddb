"""Queues the rows of one `send_columns` call: checks all of them, waits for metadata, then appends them slice by slice.

Runs on the caller's thread. Law: an error that is known before the first append leaves no row queued.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.hand_overs import ORDINARY_ERRORS, HandOver, HandOvers
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.partition_choice import PartitionChoice
from spark_kafka_sink.producer.plugins.intercepted_rows import Watch
from spark_kafka_sink.producer.plugins.partitioner import UserPartitioner
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.record_checks import SizeLimits
from spark_kafka_sink.producer.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.topic_rows import (
    TopicRows,
    check_topic_type,
    chunks_by_topic,
    explicit_partitions,
    row_count,
    rows_of,
)


class ColumnSender:
    """Args: see KafkaProducer, which makes all of them."""

    def __init__(
        self,
        config: ProducerConfig,
        metadata_wait: MetadataWait,
        accumulator: RecordAccumulator,
        gatherer: RecordGatherer,
        hand_overs: HandOvers,
        wake_sender: Callable[[], None],
        partition_choice: PartitionChoice,
        partitioner: UserPartitioner | None,
        size_limits: SizeLimits,
        metrics: ProducerMetrics,
        clock: Clock,
        row_failed: Callable[[KafkaError], None],
    ) -> None:
        self._max_block_ms = config.max_block_ms
        self._metadata_wait = metadata_wait
        self._accumulator = accumulator
        self._gatherer = gatherer
        self._hand_overs = hand_overs
        self._wake_sender = wake_sender
        self._partition_choice = partition_choice
        self._partitioner = partitioner
        self._size_limits = size_limits
        self._metrics = metrics
        self._clock = clock
        self._row_failed = row_failed

    def send(self, given: ProducerColumns, watch: Watch | None = None) -> Delivery:
        """As KafkaProducer.send_columns. `watch`: makes the rows' owners, where there are interceptors."""
        check_topic_type(given.topic)
        columns = rows_of(given, row_count(given.topic, given.value, given.key, given.partition), self._clock.wall_ms())
        delivery = Delivery(columns.rows, self._clock)
        explicit = explicit_partitions(given.partition, columns.rows)
        chunks = list(chunks_by_topic(given.topic, columns, explicit)) if columns.rows else []
        try:
            chunks, clusters = self._checked(chunks)
        except KafkaError:
            for chunk in chunks:
                self._metrics.records_failed(chunk.topic, len(chunk.rows))
            raise
        if watch is not None:
            watch.begin(columns)
        self._hand_overs.run(self._queue, chunks, clusters, delivery, watch)
        return delivery

    def _queue(
        self, hand_over: HandOver, chunks: list[TopicRows], clusters: list[Cluster], delivery: Delivery, watch: Watch | None
    ) -> None:
        try:
            for chunk, cluster in zip(chunks, clusters, strict=True):
                self._gatherer.encode_topic(chunk.topic)  # records that were sent one by one before go first
                self._append(hand_over, chunk, cluster, delivery, watch)
        except ORDINARY_ERRORS as error:
            self._row_failed(error if isinstance(error, KafkaError) else KafkaError(f"rows were not queued: {error!r}"))
            raise

    def _checked(self, chunks: list[TopicRows]) -> tuple[list[TopicRows], list[Cluster]]:
        """The chunks with the partitions that a user's partitioner chose, and metadata with the partitions of each."""
        for chunk in chunks:
            chunk.check_sizes(self._size_limits)
        if len(chunks) > 1:
            self._metadata_wait.ask_for(chunk.topic for chunk in chunks)
        clusters = [self._await_partitions(chunk) for chunk in chunks]
        if self._partitioner is not None:
            chunks = [chunk.decided_by(self._partitioner, each) for chunk, each in zip(chunks, clusters, strict=True)]
        return chunks, clusters

    def _await_partitions(self, chunk: TopicRows) -> Cluster:
        highest = int(chunk.explicit.max())
        return self._metadata_wait.await_partition(chunk.topic, highest, self._max_block_ms)

    def _append(self, hand_over: HandOver, chunk: TopicRows, cluster: Cluster, delivery: Delivery, watch: Watch | None) -> None:
        for part in chunk.slices(cluster.partition_count(chunk.topic) or 1):
            hand_over.begin()
            self._accumulator.append(
                part.topic,
                part.columns,
                self._partition_choice.choose(part.topic, part.columns, part.explicit, cluster),
                part.rows,
                delivery if watch is None else watch.owner(part.topic, len(part.rows), delivery),
                self._wake_sender,
                hand_over,
                max_block_ms=self._max_block_ms,
            )
