"""The metrics: their names, and how their values are read from the CommitSummary of a commit.

Names follow Prometheus' conventions: base units, `_total` for what only grows. No label has a value for each partition or
micro-batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from spark_kafka_sink.sink.commit_summary import CommitSummary

PREFIX = "pykafka_sink_"
Labels = tuple[str, ...]
Read = Callable[["CommitSummary"], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True, slots=True)
class SinkMetric:
    """One metric of the sink."""

    name: str
    labels: Labels  # after `query`, which each has
    doc: str
    read: Read  # the values of a commit, each with its labels after `query`. A total grows by them, a gauge becomes them

    @property
    def is_total(self) -> bool:
        return self.name.endswith("_total")

    @property
    def label_names(self) -> Labels:
        return ("query", *self.labels)

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self.is_total else GaugeMetricFamily
        return kind(self.name, self.doc, labels=self.label_names)


def _total(name: str, doc: str, read: Callable[[CommitSummary], float]) -> SinkMetric:
    return SinkMetric(f"{PREFIX}{name}_total", (), doc, lambda summary: [((), read(summary))])


def _total_of(name: str, doc: str, counter: str, divisor: float = 1) -> SinkMetric:
    """Sum up a counter of the commits, divided by `divisor`."""
    return _total(name, doc, lambda summary: summary.counters.get(counter, 0) / divisor)


def _gauge(name: str, doc: str, read: Callable[[CommitSummary], float | None]) -> SinkMetric:
    """`read` returns None where a commit has no such value."""
    return SinkMetric(f"{PREFIX}{name}", (), doc, lambda summary: [((), value) for value in [read(summary)] if value is not None])


def _gauge_of(name: str, doc: str, counter: str, divisor: float = 1) -> SinkMetric:
    return _gauge(name, doc, lambda summary: summary.counters[counter] / divisor if counter in summary.counters else None)


def _by(label: str, name: str, doc: str, read: Callable[[CommitSummary], Mapping[str, float]]) -> SinkMetric:
    return SinkMetric(f"{PREFIX}{name}", (label,), doc, lambda summary: [((key,), value) for key, value in read(summary).items()])


def _by_topic(field: str) -> Callable[[CommitSummary], Mapping[str, float]]:
    def read(summary: CommitSummary) -> Mapping[str, float]:
        totals: Counter[str] = Counter()
        for each in summary.written:
            totals[each.topic] += getattr(each, field)
        return totals

    return read


def _skew_by_topic(summary: CommitSummary) -> dict[str, float]:
    """Skew as on the page of tools/report: a partition without rows counts if a partition with a higher number has rows."""
    rows: dict[str, dict[int, int]] = {}
    for each in summary.written:
        rows.setdefault(each.topic, {})[each.partition] = each.rows
    return {
        topic: max(by_partition.values())
        * (1 + max(number for number, row_count in by_partition.items() if row_count))
        / sum(by_partition.values())
        for topic, by_partition in rows.items()
        if sum(by_partition.values())
    }


def _versions(summary: CommitSummary) -> dict[str, float]:
    return {} if summary.exactly_once is None else {summary.exactly_once.how: 1}


def _duration(summary: CommitSummary) -> float:
    if summary.started_at_ms is None:
        return summary.commit_seconds
    return max(0.0, time.time() - summary.started_at_ms / 1000)


METRICS: tuple[SinkMetric, ...] = (
    _total("commits", "Commits of micro-batches or writes.", lambda _: 1),
    _total("tasks", "Tasks that have written.", lambda summary: summary.tasks),
    _by("topic", "rows_total", "Rows that brokers have acknowledged, without dead letters.", _by_topic("rows")),
    _by("topic", "record_bytes_total", "Bytes of their records before compression.", _by_topic("bytes")),
    _total_of("sent_bytes", "Bytes of batches, as sent.", "byte-total"),
    _total_of("sent_records", "Records sent; one that is sent again counts again.", "record-send-total"),
    _total_of("retried_records", "Records that had to be sent again.", "record-retry-total"),
    _total_of("batches", "Batches sent.", "batch-send-total"),
    _total_of("split_batches", "Batches that a broker found too large and that were split.", "batch-split-total"),
    _total_of("produce_requests", "Produce requests sent.", "produce-request-total"),
    _by("reason", "skipped_rows_total", "Rows that were left out, by error code.", lambda summary: summary.skipped_by_reason),
    _by(
        "reason",
        "dead_lettered_rows_total",
        "Rows that went to the dead letter topic, by error code.",
        lambda summary: summary.dead_lettered_by_reason,
    ),
    _total("write_seconds", "Time from a commit's first task to its commit.", _duration),
    _total("task_seconds", "Time of all tasks.", lambda summary: summary.task_seconds),
    _total("spark_seconds", "The part in which tasks waited for Spark's rows.", lambda summary: summary.spark_seconds),
    _total(
        "held_back_seconds", "The part in which the sink's own rates made tasks wait.", lambda summary: summary.held_back_seconds
    ),
    _total_of("memory_wait_seconds", "The part in which tasks waited for memory.", "bufferpool-wait-time-ms-total", 1e3),
    _total_of("metadata_wait_seconds", "The part in which tasks waited for metadata.", "metadata-wait-time-ns-total", 1e9),
    _total_of("flush_seconds", "The part in which tasks waited for the last acknowledgements.", "flush-time-ns-total", 1e9),
    _total_of("throttle_seconds", "Time for which brokers throttled the tasks (quotas).", "produce-throttle-time-total", 1e3),
    _total("commit_seconds", "Time of the driver's commits.", lambda summary: summary.commit_seconds),
    _by("how", "versions_total", "Versions of exactly-once: committed, found, rolled-forward or superseded.", _versions),
    _gauge("last_commit_timestamp_seconds", "When the last commit was, since 1970.", lambda _: time.time()),
    _gauge("last_commit_batch_id", "Its micro-batch.", lambda summary: summary.batch_id),
    _gauge("last_commit_rows", "Its rows.", lambda summary: summary.rows),
    _gauge("last_commit_duration_seconds", "Its time, from its first task.", _duration),
    _gauge("last_commit_slowest_task_seconds", "Its slowest task.", lambda summary: summary.slowest_task_seconds),
    _gauge("last_commit_median_task_seconds", "The median task.", lambda summary: summary.median_task_seconds),
    _gauge_of("last_commit_batch_size_bytes", "The mean size of its batches, as sent.", "batch-size-avg"),
    _gauge_of("last_commit_compression_ratio", "Its records as sent, in proportion to their size.", "compression-rate-avg"),
    _gauge_of("last_commit_request_latency_seconds", "Mean time of a Produce request.", "request-latency-avg", 1e3),
    _gauge_of("last_commit_request_latency_max_seconds", "The longest one.", "request-latency-max", 1e3),
    _gauge_of("last_commit_throttle_max_seconds", "The longest throttle.", "produce-throttle-time-max", 1e3),
    _by(
        "topic",
        "last_commit_partition_skew_ratio",
        "Rows of its fullest partition, in proportion to an even share: 1 is even. Tells little of a commit of few rows.",
        _skew_by_topic,
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def markdown_table() -> str:
    """Describe METRICS, for docs/report.md."""
    rows = (f"| `{each.name}` | {', '.join(f'`{label}`' for label in each.label_names)} | {each.doc} |" for each in METRICS)
    return "\n".join(["| Metric | Labels | |", "|---|---|---|", *rows])
