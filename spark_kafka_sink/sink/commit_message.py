"""What a task reports to the driver: KafkaCommitMessage, its ranges and counters. commit_report.py adds the messages up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.config.format_options import SchemaUse
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.producer.accumulator.delivery import OffsetRange


class TaskTimes(NamedTuple):
    """What one task spent its time on."""

    started_at_ms: int = 0  # when the task began, by the clock of its machine; 0: not known
    waited_for_spark_s: float = 0.0  # until the next rows came: Spark reads, computes and copies them
    held_back_s: float = 0.0  # that maxRecordsPerSecond and maxBytesPerSecond made it wait


NOT_TIMED = TaskTimes()


def elapsed_s(since_s: float) -> float:
    """The seconds since `since_s`, a reading of time.monotonic(), rounded to milliseconds."""
    return round(time.monotonic() - since_s, 3)


class WrittenRange(NamedTuple):
    """What one write put into one partition of a topic. Offsets are -1 where the broker did not return them."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    bytes: int

    def merge(self, other: WrittenRange) -> WrittenRange:
        return WrittenRange(*self[:2], *OffsetRange(*self[2:]).merge(OffsetRange(*other[2:])))


_TOTALS = (
    *("record-send-total", "batch-send-total", "batch-split-total", "record-retry-total", "request-total"),
    *("byte-total", "uncompressed-byte-total", "outgoing-byte-total", "connection-creation-total"),
    *("bufferpool-wait-time-ms-total", "metadata-wait-time-ns-total", "flush-time-ns-total"),
    *("produce-request-total", "produce-response-total", "compression-rate-total"),
    *("record-queue-time-total", "request-latency-total", "produce-throttle-time-total"),
)
_LARGEST = ("batch-size-max", "record-size-max", "request-latency-max", "record-queue-time-max", "produce-throttle-time-max")
# The producer's metrics that a message carries, for the whole task, and the function that merges those of several tasks.
COUNTERS: dict[str, Callable[[Iterable[float]], float]] = dict.fromkeys(_TOTALS, sum) | dict.fromkeys(_LARGEST, max)


@dataclass(frozen=True, slots=True)
class KafkaCommitMessage(WriterCommitMessage):
    """One task's report to the driver. Every row that it counts is acknowledged. `counters` have the order of COUNTERS."""

    spark_partition: int
    attempt: int
    query_id: str | None  # of a stream, foreachBatch included
    batch_id: int | None
    rows: int = 0  # acknowledged, dead letters not included
    bytes: int = 0  # of encoded records, before compression
    seconds: float = 0.0
    counters: tuple[float, ...] = (0.0,) * len(COUNTERS)
    skipped: int = 0  # rows left out because of onRecordTooLarge or onInvalidRecord
    dead_lettered: int = 0  # rows acknowledged in deadLetterTopic
    written: tuple[WrittenRange, ...] = ()
    exactly_once: TaskReport | None = None  # the task's transaction, left open; its rows are not visible before the commit
    times: TaskTimes = NOT_TIMED
    skipped_by_reason: tuple[tuple[str, int], ...] = ()  # condition and rows
    dead_lettered_by_reason: tuple[tuple[str, int], ...] = ()
    found_abort: bool = False  # the task ended without its rows, as it found that its driver had aborted the write
    schemas: tuple[SchemaUse, ...] = ()  # that keys and values were encoded with

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values without names, and ranges and times as plain tuples: a driver may receive thousands of messages with
        hundreds of ranges.
        """
        plain = replace(self, written=tuple(map(tuple, self.written)), times=tuple(self.times))  # type: ignore[arg-type]
        return _rebuild, tuple(getattr(plain, each.name) for each in fields(plain))


def _rebuild(*values: Any) -> KafkaCommitMessage:
    plain = KafkaCommitMessage(*values)
    return replace(plain, written=tuple(map(WrittenRange._make, plain.written)), times=TaskTimes._make(plain.times))


def merge_ranges(ranges: Sequence[WrittenRange]) -> tuple[WrittenRange, ...]:
    """One range for each topic and partition, sorted by them."""
    merged_ranges: dict[tuple[str, int], WrittenRange] = {}
    for each in ranges:
        so_far = merged_ranges.get(each[:2])
        merged_ranges[each[:2]] = each if so_far is None else so_far.merge(each)
    return tuple(merged_ranges[key] for key in sorted(merged_ranges))
