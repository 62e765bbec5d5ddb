"""Encodes a chunk of records that were sent one by one, and queues them. Errors go to the records.

Runs on the thread of the caller who filled the chunk, or on the Sender's after linger.ms. Never waits: the chunk has its memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import InvalidRecordError, KafkaError
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.hand_overs import ORDINARY_ERRORS, HandOver
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.partition_choice import PartitionChoice
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.record_checks import SizeLimits
from spark_kafka_sink.producer.record_chunk import GatheredPayload, RecordChunk
from spark_kafka_sink.producer.topic_rows import explicit_partitions, rows_of
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.record_batch import size_upper_bounds

logger = logging.getLogger(__name__)


class GatheredEncoder:
    """Args: see KafkaProducer, which makes all of them."""

    def __init__(
        self,
        metadata: Metadata,
        metadata_wait: MetadataWait,
        accumulator: RecordAccumulator,
        wake_sender: Callable[[], None],
        partition_choice: PartitionChoice,
        plugins: ProducerPlugins,
        size_limits: SizeLimits,
        metrics: ProducerMetrics,
        clock: Clock,
        row_failed: Callable[[KafkaError], None],
    ) -> None:
        self._metadata = metadata
        self._metadata_wait = metadata_wait
        self._accumulator = accumulator
        self._wake_sender = wake_sender
        self._partition_choice = partition_choice
        self._plugins = plugins
        self._size_limits = size_limits
        self._metrics = metrics
        self._clock = clock
        self._row_failed = row_failed

    def encode(self, hand_over: HandOver, chunk: RecordChunk) -> None:
        rows = np.arange(len(chunk), dtype=np.int32)
        try:
            self._metadata.add_topic(chunk.topic, self._clock.now_ms())  # metadata of a topic in use must not expire
            columns, explicit, rows = self._columns(chunk, rows)
            if not len(rows):
                return
            if self._plugins.chunk_partitioner is not None:
                explicit = self._plugins.chunk_partitioner.decide(chunk.topic, columns, explicit, rows, chunk.cluster)
            partitions = self._partition_choice.choose(chunk.topic, columns, explicit, chunk.cluster)
        except ORDINARY_ERRORS as error:
            self._metrics.records_failed(chunk.topic, len(rows))
            failure = error if isinstance(error, KafkaError) else InvalidRecordError(f"cannot be encoded: {error!r}")
            self._row_failed(failure)
            chunk.abandon(rows, failure)
            return
        self._append(hand_over, chunk, columns, partitions, rows)

    def _columns(
        self, chunk: RecordChunk, rows: npt.NDArray[np.int32]
    ) -> tuple[RecordColumns, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Columns, explicit partitions and positions of the records; what interceptors made of them, where there are any."""
        explicit = chunk.explicit_partitions(NO_PARTITION)
        given = chunk.payload_columns()
        if self._plugins.intercepts_gathered and self._plugins.interceptors is not None:
            return self._intercepted(chunk, given, explicit, self._plugins.interceptors)
        columns = record_columns(*given)
        chunk.become(columns)
        return columns, explicit, rows

    def _intercepted(
        self,
        chunk: RecordChunk,
        given: GatheredPayload,
        explicit: npt.NDArray[np.int32],
        interceptors: Interceptors,
    ) -> tuple[RecordColumns, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The records as interceptors leave them.

        They are checked again: a record that is too large now, or names a partition that does not exist, fails. The others go on.
        """
        found = interceptors.on_send_gathered(_as_given(chunk.topic, given, explicit))
        columns = rows_of(found, len(chunk), self._clock.wall_ms())
        chunk.become(columns)
        explicit = explicit_partitions(found.partition, columns.rows)
        bounds = size_upper_bounds(columns)
        count = chunk.cluster.partition_count(chunk.topic) or 0
        bad = (bounds > self._size_limits.largest_record) | (explicit >= count)
        for row in np.flatnonzero(bad).tolist():
            try:
                self._size_limits.check(int(bounds[row]), f"a record for topic {chunk.topic}, as interceptors left it")
                raise self._metadata_wait.absent(chunk.topic, int(explicit[row]), count, 0)
            except KafkaError as error:
                self._row_failed(error)
                chunk.abandon(np.array([row], np.int32), error)
                self._metrics.records_failed(chunk.topic, 1)
        good = np.flatnonzero(~bad).astype(np.int32)
        return (columns, explicit, good) if len(good) == columns.rows else (columns.take(good), explicit[good], good)

    def _append(
        self,
        hand_over: HandOver,
        chunk: RecordChunk,
        columns: RecordColumns,
        partitions: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
    ) -> None:
        try:
            self._accumulator.append(
                chunk.topic,
                columns,
                partitions,
                rows,
                chunk,
                self._wake_sender,
                hand_over,
                max_block_ms=0,
                created_ms=chunk.created_ms,
                prepaid=chunk.memory,
            )
        except ORDINARY_ERRORS as error:
            logger.debug("! records for %s: %s", chunk.topic, error)  # append has failed the records concerned
            reason = f"records for {chunk.topic} cannot be encoded: {error!r}"
            self._row_failed(error if isinstance(error, KafkaError) else KafkaError(reason))
            if not isinstance(error, KafkaError | MemoryError):
                raise


def _as_given(topic: str, given: GatheredPayload, explicit: npt.NDArray[np.int32]) -> ProducerColumns:
    """Gathered records as interceptors see them. `explicit` is negative where a record names no partition."""
    partition = pa.array(explicit, mask=explicit < 0)
    return ProducerColumns(topic, given.value, given.key, partition, given.headers, pa.array(given.timestamps))
