"""The reports of all tasks of a write, added up: what onCommit receives, a line for the log and one for the report file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import NamedTuple

from spark_kafka_sink.config.format_options import SchemaUse, all_uses
from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, WrittenRange, merge_ranges

# Version of a line of the report file. Version 1 had no `report_version`; 2 added it, with times and unwritten rows by reason; 3
# added `running_seconds`, 4 `schemas`.
REPORT_VERSION = 4

MAX_SHOWN_SCHEMAS = 4  # in a log line

# Averages over all tasks: the counter to divide, and the one to divide it by. Averages of averages would be wrong.
AVERAGES: dict[str, tuple[str, str]] = {
    "records-per-request-avg": ("record-send-total", "produce-request-total"),
    "record-size-avg": ("uncompressed-byte-total", "record-send-total"),
    "batch-size-avg": ("byte-total", "batch-send-total"),
    "compression-rate-avg": ("compression-rate-total", "batch-send-total"),
    "record-queue-time-avg": ("record-queue-time-total", "batch-send-total"),
    "request-latency-avg": ("request-latency-total", "produce-response-total"),
}
ONLY_FOR_AVERAGES = ("produce-response-total", "compression-rate-total", "record-queue-time-total", "request-latency-total")


def merge_counters(columns: Iterable[Iterable[float]]) -> dict[str, float]:
    """Merge the tasks' values, one column per name in COUNTERS, into one value each, and compute AVERAGES from them. Without
    tasks there are no columns."""
    counters = {name: round(merge(column), 3) for (name, merge), column in zip(COUNTERS.items(), columns, strict=False)}
    for name, (total_name, count_name) in AVERAGES.items():
        if counters.get(count_name):
            counters[name] = round(counters[total_name] / counters[count_name], 3)
    return {name: value for name, value in counters.items() if name not in ONLY_FOR_AVERAGES}


class VersionSummary(NamedTuple):
    """What became of a version, for the commit's report.

    Args:
        owner: the streaming query's id without dashes, txnAppId, or %unnamed.
        version: the micro-batch, txnVersion, or when an unnamed write was planned, in milliseconds.
        how: committed, rolled-forward, found or superseded, see HowCommitted.
        skipped_partitions: Spark partitions whose rows an earlier run had committed.
        fenced: transactional ids that others had left, and that were fenced.
        other_rows: rows that were not written, as the version was committed with other ones before.
    """

    owner: str
    version: int
    how: str
    skipped_partitions: int
    fenced: int
    other_rows: int = 0


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The reports of all tasks of one write, added up. Fields of one name mean the same as in KafkaCommitMessage."""

    query_id: str | None
    batch_id: int | None
    tasks: int
    rows: int
    bytes: int
    slowest_task_seconds: float
    counters: Mapping[str, float]
    skipped: int
    dead_lettered: int
    written: tuple[WrittenRange, ...]
    exactly_once: VersionSummary | None = None  # None: deliveryGuarantee is another
    started_at_ms: int | None = None  # when the first task began, by its machine's clock
    median_task_seconds: float = 0.0
    task_seconds: float = 0.0  # of all tasks together, like the two below
    spark_seconds: float = 0.0  # the part of it in which tasks waited for Spark's rows
    held_back_seconds: float = 0.0  # the part in which maxRecordsPerSecond and maxBytesPerSecond made them wait
    commit_seconds: float = 0.0  # that the driver took to commit: with exactly-once, to commit the transactions
    skipped_by_reason: Mapping[str, int] = field(default_factory=dict)  # condition -> rows
    dead_lettered_by_reason: Mapping[str, int] = field(default_factory=dict)
    running_seconds: float | None = None  # for how long at least one of the tasks ran, by their machines' clocks
    schemas: tuple[SchemaUse, ...] = ()  # that keys and values were encoded with

    @classmethod
    def of(
        cls, messages: Sequence[KafkaCommitMessage], version: VersionSummary | None = None, commit_seconds: float = 0.0
    ) -> CommitSummary:
        """Add up the messages of all tasks. `version`: with exactly-once. `commit_seconds`: the time of the commit itself."""
        query_id, batch_id = next(((each.query_id, each.batch_id) for each in messages), (None, None))
        columns = zip(*(message.counters for message in messages), strict=True)
        seconds = [message.seconds for message in messages]
        times = [message.times for message in messages]
        return cls(
            query_id=query_id,
            batch_id=batch_id,
            tasks=len(messages),
            rows=sum(message.rows for message in messages),
            bytes=sum(message.bytes for message in messages),
            slowest_task_seconds=max(seconds, default=0.0),
            counters=merge_counters(columns),
            skipped=sum(message.skipped for message in messages),
            dead_lettered=sum(message.dead_lettered for message in messages),
            written=merge_ranges([each for message in messages for each in message.written]),
            exactly_once=version,
            started_at_ms=min((each.started_at_ms for each in times if each.started_at_ms), default=None),
            median_task_seconds=round(median(seconds), 3) if seconds else 0.0,
            task_seconds=round(sum(seconds), 3),
            spark_seconds=round(sum(each.waited_for_spark_s for each in times), 3),
            held_back_seconds=round(sum(each.held_back_s for each in times), 3),
            commit_seconds=round(commit_seconds, 3),
            skipped_by_reason=_sum_by_reason(message.skipped_by_reason for message in messages),
            dead_lettered_by_reason=_sum_by_reason(message.dead_lettered_by_reason for message in messages),
            running_seconds=_running_seconds(messages),
            schemas=all_uses(use for message in messages for use in message.schemas),
        )

    def line(self) -> str:
        """One line for the log."""
        topics = sorted({each.topic for each in self.written})
        topic_list = ", ".join(topics) if len(topics) <= 3 else f"{len(topics)} topics"
        query_in_words = f"; query {self.query_id}, batch {self.batch_id}" if self.query_id is not None else ""
        omissions = (
            f"; {self.skipped:,} skipped, {self.dead_lettered:,} dead-lettered" if self.skipped or self.dead_lettered else ""
        )
        where = f" to {_count_of(len(self.written), 'partition')} of {topic_list}" if topics else ""
        rows = f"{_count_of(self.rows, 'row')}, {_count_of(self.bytes, 'byte')}," if topics else "no rows"
        return (
            f"wrote {rows} in {_count_of(self.tasks, 'task')}{where}{omissions};"
            f" slowest task {self.slowest_task_seconds:.1f} s{query_in_words}{self._schemas_in_words()}"
        )

    def _schemas_in_words(self) -> str:
        schema_texts = [f"{use.part}: {use}" for use in self.schemas[:MAX_SHOWN_SCHEMAS]]
        if not schema_texts:
            return ""
        more_count = len(self.schemas) - len(schema_texts)
        return f"; schemas {', '.join(schema_texts)}" + (f" and {more_count} more" if more_count else "")

    def to_json(self, committed_at_ms: int) -> str:
        """One line of the report file. docs/report.md describes it; a new key raises REPORT_VERSION, and no key is removed."""
        offsets: dict[str, dict[str, dict[str, int]]] = {}
        for each in self.written:
            partition = {"first": each.first, "last": each.last, "rows": each.rows, "bytes": each.bytes}
            offsets.setdefault(each.topic, {})[str(each.partition)] = partition
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "written"}
        values["schemas"] = [use._asdict() for use in self.schemas]
        values["exactly_once"] = None if self.exactly_once is None else self.exactly_once._asdict()
        return json.dumps({"report_version": REPORT_VERSION, "committed_at_ms": committed_at_ms, **values, "offsets": offsets})


def _count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _running_seconds(messages: Sequence[KafkaCommitMessage]) -> float | None:
    """How long at least one of these tasks ran; None without tasks, or if one does not say when it began."""
    if not messages or not all(each.times.started_at_ms for each in messages):
        return None
    running_seconds = last_stop = 0.0
    for start, seconds in sorted((each.times.started_at_ms / 1000, each.seconds) for each in messages):
        running_seconds += max(0.0, start + seconds - max(start, last_stop))
        last_stop = max(last_stop, start + seconds)
    return round(running_seconds, 3)


def _sum_by_reason(parts: Iterable[Iterable[tuple[str, int]]]) -> dict[str, int]:
    rows_by_reason: Counter[str] = Counter()
    for part in parts:
        rows_by_reason.update(dict(part))
    return dict(sorted(rows_by_reason.items()))
