"""Summaries of commits, and what Prometheus reads of them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, TaskTimes, WrittenRange
from spark_kafka_sink.sink.commit_summary import CommitSummary, VersionSummary

COUNTED = {
    "record-send-total": 30,
    "batch-send-total": 3,
    "byte-total": 120,
    "bufferpool-wait-time-ms-total": 1500,
    "metadata-wait-time-ns-total": 250_000_000,
    "produce-throttle-time-total": 2000,
    "produce-throttle-time-max": 700,
    "compression-rate-total": 1.5,
}


def message(*written: WrittenRange, query: str | None = "q1", batch: int = 4) -> KafkaCommitMessage:
    return KafkaCommitMessage(
        spark_partition=0,
        attempt=0,
        query_id=query,
        batch_id=None if query is None else batch,
        rows=sum(each.rows for each in written),
        bytes=sum(each.bytes for each in written),
        seconds=2.5,
        counters=tuple(COUNTED.get(name, 0) for name in COUNTERS),
        skipped=2,
        dead_lettered=0,
        written=written,
        times=TaskTimes(1_000, 1.25, 0.5),
        skipped_by_reason=(("KAFKA_X", 2),),
    )


ORDERS = (WrittenRange("orders", 0, 0, 9, 30, 300), WrittenRange("orders", 1, 0, 9, 10, 100))
OTHERS = (WrittenRange('odd"\\\n', 0, 0, 0, 1, 10),)


def summary(*written: WrittenRange, query: str | None = "q1") -> CommitSummary:
    return CommitSummary.of([message(*written, query=query)], VersionSummary("o", 4, "committed", 0, 0), 0.25)


def samples(text: str) -> dict[tuple[str, ...], float]:
    """(name, label values …) -> value, by Prometheus' own parser."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            values[sample.name.removeprefix("pykafka_sink_"), labels.pop("query"), *labels.values()] = sample.value
    return values
