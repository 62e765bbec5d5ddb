"""Owners of rows that report each outcome to interceptors first, then to the Delivery or the gathered records.

Interceptors is the OutcomeListener.
Law: rows are settled whatever the listener raises, SystemExit too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, for_keeping
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, Part, RecordsOwner
from spark_kafka_sink.producer.producer_record import RecordMetadata
from spark_kafka_sink.producer.record_chunk import RecordChunk
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import NO_TIMESTAMP, RecordColumns


class OutcomeListener(Protocol):
    def report_success(self, part: Part, base_offset: int, log_append_time_ms: int, columns: RecordColumns) -> None:
        """`columns`: the columns that `part.rows` are positions in."""
        ...

    def report_failure(
        self, topic: str, partition: int, rows: int, error: Exception, record_errors: Mapping[int, Exception] | None = None
    ) -> None:
        """`record_errors`: errors of single rows, by their positions from 0."""
        ...


class Watch:
    """One send_columns call as interceptors see it: makes owners that report to them, and counts the rows that have one."""

    def __init__(self, listener: OutcomeListener) -> None:
        self._listener = listener
        self._columns: RecordColumns | None = None
        self.queued: Counter[str] = Counter()  # topic -> rows that have an owner

    def begin(self, columns: RecordColumns) -> None:
        """All columns of the call as they will be sent. Keeps lengths and timestamps, no payloads."""
        self._columns = replace(columns, key=None, value=None, headers=None)

    def owner(self, topic: str, rows: int, delivery: RecordsOwner) -> RecordsOwner:
        """The owner for the next rows that are queued."""
        assert self._columns is not None
        self.queued[topic] += rows
        return _Owner(self._listener, topic, self._columns, delivery)


@dataclass(slots=True)
class _Owner:
    listener: OutcomeListener
    topic: str
    columns: RecordColumns
    delivery: RecordsOwner

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        try:
            self.listener.report_success(part, base_offset, log_append_time_ms, self.columns)
        finally:
            self.delivery.acknowledge(part, base_offset, log_append_time_ms)

    def fail(self, part: Part, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        try:
            self.listener.report_failure(*part.topic_partition, part.row_count, error, _by_row(part, record_errors))
        finally:
            self.delivery.fail(part, error, record_errors)

    def abandon(self, rows: npt.NDArray[np.int32], error: KafkaError) -> None:
        error = for_keeping(error)
        try:
            self.listener.report_failure(self.topic, NO_PARTITION, len(rows), error)
        finally:
            self.delivery.abandon(rows, error)


class InterceptedRecords(RecordChunk):
    def __init__(self, topic: str, cluster: Cluster, clock: Clock, listener: OutcomeListener) -> None:
        super().__init__(topic, cluster, clock)
        self._listener = listener

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        assert self.columns is not None
        try:
            self._listener.report_success(part, base_offset, log_append_time_ms, self.columns)
        finally:
            super().acknowledge(part, base_offset, log_append_time_ms)

    def fail(self, part: Part, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        try:
            self._listener.report_failure(*part.topic_partition, part.row_count, error, _by_row(part, record_errors))
        finally:
            super().fail(part, error, record_errors)

    def abandon(self, rows: npt.NDArray[np.int32], error: KafkaError) -> None:
        error = for_keeping(error)
        try:
            explicit = self.explicit_partitions(NO_PARTITION)[rows]
            for partition, count in Counter(explicit.tolist()).items():
                self._listener.report_failure(self.topic, partition, count, error)
        finally:
            super().abandon(rows, error)


def _by_row(part: Part, record_errors: Mapping[int, KafkaError]) -> dict[int, Exception]:
    return {index - part.first_delta: error for index, error in record_errors.items()}


def metadata_of_records(part: Part, first: int, log_append_time_ms: int, columns: RecordColumns) -> list[RecordMetadata]:
    topic, partition = part.topic_partition
    count = part.row_count
    offsets = [first] * count if first == UNKNOWN_OFFSET else range(first, first + count)
    times, key_sizes, value_sizes = (
        np.broadcast_to(np.asarray(column), columns.rows)[part.rows].tolist()
        for column in (columns.timestamps, columns.key_lengths, columns.value_lengths)
    )
    if log_append_time_ms != NO_TIMESTAMP:
        times = [log_append_time_ms] * count
    fields = zip([topic] * count, [partition] * count, offsets, times, key_sizes, value_sizes, strict=True)
    return list(map(RecordMetadata._make, fields))
