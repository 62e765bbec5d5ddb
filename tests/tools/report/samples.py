"""Lines of commits as the sink writes them, and the four stories that the page is looked at with."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, TaskTimes, WrittenRange
from spark_kafka_sink.sink.commit_summary import CommitSummary, VersionSummary

BEGAN = 1_790_000_000  # seconds since 1970
QUERY = "8f0d2c1e-6f3b-4c66-9d6e-0d6ad6a4b1f2"
RECORD_BYTES = 110


def line(
    at: float,
    *,
    batch: int | None = 0,
    query: str | None = QUERY,
    rows: int = 12_000,
    duration_s: float = 4.0,
    tasks: int = 4,
    slowest: float = 1.0,
    spark: float = 0.4,
    held_back: float = 0.0,
    commit: float = 0.0,
    outside: float = 0.0,
    partitions: Sequence[float] = (1, 1, 1, 1),
    topic: str = "orders",
    skipped: Mapping[str, int] | None = None,
    dead_lettered: Mapping[str, int] | None = None,
    version: VersionSummary | None = None,
    **counters: float,
) -> str:
    """What the sink writes `at` seconds after BEGAN, by CommitSummary itself.

    Args:
        duration_s: from the first task's start on.
        commit, outside: seconds of that time in which no task ran.
        slowest: the slowest task's time, in proportion to the others'.
        spark, held_back: parts of the tasks' time.
        partitions: what part of the rows each has, in proportion.
        counters: metrics of each task, with _ for -.
    """
    own = duration_s - commit - outside
    others = own / slowest
    written = [
        WrittenRange(
            topic, number, 0, 9, round(rows * part / sum(partitions)), round(rows * part / sum(partitions)) * RECORD_BYTES
        )
        for number, part in enumerate(partitions)
    ]
    messages = []
    for task in range(tasks):
        seconds = own if task == 0 else others
        metrics = {**_metrics(rows / tasks), **{name.replace("_", "-"): value for name, value in counters.items()}}
        messages.append(
            KafkaCommitMessage(
                spark_partition=task,
                attempt=0,
                query_id=query,
                batch_id=None if query is None else batch,
                rows=rows // tasks,
                bytes=rows // tasks * RECORD_BYTES,
                seconds=round(seconds, 3),
                counters=tuple(metrics.get(name, 0) for name in COUNTERS),
                skipped=sum((skipped or {}).values()) if task == 0 else 0,
                dead_lettered=sum((dead_lettered or {}).values()) if task == 0 else 0,
                written=tuple(written) if task == 0 else (),
                times=TaskTimes(
                    round((BEGAN + at - duration_s) * 1000), round(seconds * spark, 3), round(seconds * held_back, 3)
                ),
                skipped_by_reason=tuple((skipped or {}).items()) if task == 0 else (),
                dead_lettered_by_reason=tuple((dead_lettered or {}).items()) if task == 0 else (),
            )
        )
    return CommitSummary.of(messages, version, commit).to_json(round((BEGAN + at) * 1000))


def _metrics(rows: float) -> dict[str, float]:
    size = rows * RECORD_BYTES
    batches = max(1, rows // 1000)
    return {
        "record-send-total": rows,
        "batch-send-total": batches,
        "request-total": batches + 5,
        "byte-total": size * 0.4,
        "uncompressed-byte-total": size,
        "outgoing-byte-total": size * 0.41,
        "flush-time-ns-total": 1e8,
        "metadata-wait-time-ns-total": 1e6,
        "produce-request-total": batches,
        "produce-response-total": batches,
        "compression-rate-total": 0.4 * batches,
        "record-queue-time-total": 20 * batches,
        "request-latency-total": 15 * batches,
        "batch-size-max": 60_000,
        "record-size-max": 300,
        "request-latency-max": 80,
    }


# THE FOUR STORIES


def one_commit() -> Iterator[str]:
    yield line(
        5,
        query=None,
        rows=336_776,
        duration_s=4.8,
        outside=0.5,
        commit=0.1,
        tasks=3,
        slowest=1.3,
        partitions=[1.01, 1, 0.99, 1, 1.02, 0.98],
        topic="flights",
    )


def many_micro_batches(number: int = 10_000) -> Iterator[str]:
    """A day's waves, now and then a slow micro-batch, a rejected row, a retry."""
    chance = random.Random(4)
    for batch in range(number):
        load = 1 + 0.6 * math.sin(batch / 1440 * 2 * math.pi) + chance.uniform(-0.1, 0.1)
        duration_s = 2 + 1.5 * load + (20 if chance.random() < 0.002 else 0)
        yield line(
            60 * (batch + 1),
            batch=batch,
            rows=int(80_000 * load),
            duration_s=duration_s,
            slowest=1.2,
            commit=0.12,
            partitions=[1] * 12,
            skipped={"KAFKA_RECORD_TOO_LARGE": 3} if chance.random() < 0.01 else None,
            dead_lettered={"KAFKA_INVALID_PARTITION": 2} if chance.random() < 0.01 else None,
            version=VersionSummary("orders", batch, "committed", 0, 0),
            record_retry_total=2000 if chance.random() < 0.003 else 0,
        )


def falls_behind(number: int = 200) -> Iterator[str]:
    chance = random.Random(4)
    at, rows = 0.0, 60_000.0
    for batch in range(number):
        duration_s = rows / 20_000
        at += duration_s + 0.15
        throttle = 400 if batch > 120 else 0
        yield line(
            at,
            batch=batch,
            rows=int(rows),
            duration_s=duration_s,
            outside=0.1 * duration_s,
            commit=0.05,
            slowest=1.2,
            spark=0.1,
            bufferpool_wait_time_ms_total=duration_s * 600,
            produce_throttle_time_max=throttle,
            produce_throttle_time_total=throttle * duration_s / 2,
        )
        rows *= 1.012 * chance.uniform(0.97, 1.03)


def skewed(number: int = 300) -> Iterator[str]:
    """From the 80th on, one partition gets half of the rows, and one task takes much longer."""
    for batch in range(number):
        hot = 14 if batch > 80 else 2
        parts = [1, 1, 1, hot, 1, 1, 0, 1, 2, 1, 1, 1]
        yield line(30 * (batch + 1), batch=batch, duration_s=8, slowest=4 if batch > 80 else 1.2, tasks=12, partitions=parts)


STORIES = {"one": one_commit, "many": many_micro_batches, "behind": falls_behind, "skewed": skewed}


def write(path: Path, lines: Iterator[str]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for text in lines:
            file.write(text + "\n")
    return path
