"""What is known of each query, added up from its commits. Batch writes count as one query, as they have no id.

A commit is timed from its first task's start to its line; a *cycle* is the time from one commit to the next, with what Spark does
in between, or waits for. Law: memory does not grow with the number of commits, and grows by names only up to MOST_QUERIES and
MOST_TOPICS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan, nan

from jobs.reporting.heat import Heat
from jobs.reporting.lines import Commit
from jobs.reporting.series import Series
from jobs.reporting.words import batches, count

MOST_QUERIES = 50  # the commits of further ones are only counted
MOST_TOPICS = 100  # of a query; likewise
MOST_REASONS = 100

# The parts of a commit's time, in seconds; with `between`, Spark's time before it, they are its cycle.
PARTS = ("spark", "held_back", "sink", "brokers", "commit")
COLUMNS = (
    *("rows_per_s", "bytes_per_s", "rows", "cycle", "wall", "busy", "between", *PARTS),
    *("slowest_task", "median_task", "tasks", "batch_size", "compression", "requests", "records_per_request", "latency"),
    *("memory_wait", "metadata_wait", "throttle", "task_seconds", "retried", "splits"),
)


@dataclass
class Totals:
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    sent_bytes: float = 0.0
    sent_records: float = 0.0
    batches: float = 0.0
    requests: float = 0.0
    task_seconds: float = 0.0
    timed_commits: int = 0  # commits that tell where the time went
    most_tasks: int = 0
    largest_record: float = 0.0
    longest_throttle: float = 0.0  # seconds


class Query:
    """Args: its id; None stands for all batch writes."""

    def __init__(self, query: str | None) -> None:
        self.id = query
        self.totals = Totals()
        self.series = Series(COLUMNS)
        self.heat: dict[str, Heat] = {}
        self.more_topics = 0  # commits to topics beyond MOST_TOPICS
        self.skipped: Counter[str] = Counter()
        self.dead_lettered: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()  # exactly-once: how they came to be committed
        self.skipped_partitions = 0
        self.fenced = 0
        self.repeated = 0  # micro-batches that were committed more than once
        self.first_at = nan
        self.last_at = nan
        self._last_batch: int | None = None

    @property
    def is_stream(self) -> bool:
        return self.id is not None

    @property
    def name(self) -> str:
        return f"query {self.id}" if self.id is not None else "batch writes"

    @property
    def unit(self) -> str:
        """What one commit is of."""
        return "micro-batch" if self.is_stream else "write"

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.versions)

    def commits(self) -> str:
        commits = self.totals.commits
        return batches(commits, self.unit) if self.is_stream else count(commits, self.unit)

    def add(self, commit: Commit) -> None:
        self._count(commit)
        self.series.add(commit.committed_at, self._row(commit))
        for topic, partitions in commit.partitions.items():
            if topic in self.heat or len(self.heat) < MOST_TOPICS:
                self.heat.setdefault(topic, Heat()).add(commit.committed_at, partitions)
            else:
                self.more_topics += 1
        if isnan(self.first_at):
            self.first_at = commit.committed_at if isnan(commit.started_at) else commit.started_at
        self.last_at = commit.committed_at

    def _count(self, commit: Commit) -> None:
        totals, counters = self.totals, commit.counters
        totals.commits += 1
        totals.rows += commit.rows
        totals.bytes += commit.bytes
        totals.sent_bytes += counters.get("byte-total", 0)
        totals.sent_records += counters.get("record-send-total", 0)
        totals.batches += counters.get("batch-send-total", 0)
        totals.requests += counters.get("produce-request-total", 0)
        totals.most_tasks = max(totals.most_tasks, commit.tasks)
        totals.largest_record = max(totals.largest_record, counters.get("record-size-max", 0))
        totals.longest_throttle = max(totals.longest_throttle, counters.get("produce-throttle-time-max", 0) / 1000)
        if not isnan(commit.task_seconds):
            totals.task_seconds += commit.task_seconds
            totals.timed_commits += 1
        for known, more in ((self.skipped, commit.skipped), (self.dead_lettered, commit.dead_lettered)):
            for reason, rows in more.items():
                known[reason if reason in known or len(known) < MOST_REASONS else ""] += rows
        if commit.batch is not None:
            self.repeated += self._last_batch is not None and commit.batch <= self._last_batch
            self._last_batch = commit.batch
        if commit.exactly_once is not None:
            how = commit.exactly_once.how
            self.versions[how if how in self.versions or len(self.versions) < MOST_REASONS else "otherwise"] += 1
            self.skipped_partitions += commit.exactly_once.skipped_partitions
            self.fenced += commit.exactly_once.fenced

    def _row(self, commit: Commit) -> tuple[float, ...]:
        counters = commit.counters
        wall = commit.committed_at - commit.started_at
        if isnan(wall) or wall < 0:  # an older line, or a machine with another clock
            wall = commit.slowest_task + (0 if isnan(commit.commit_seconds) else commit.commit_seconds)
        cycle = max(commit.committed_at - self.last_at, wall) if self.is_stream else wall  # NaN for a stream's first commit
        memory = counters.get("bufferpool-wait-time-ms-total", nan) / 1e3
        metadata = counters.get("metadata-wait-time-ns-total", nan) / 1e9
        flush = counters.get("flush-time-ns-total", nan) / 1e9
        parts = _parts(commit, wall, memory + metadata + flush)
        seconds = cycle or nan
        values = {
            "rows_per_s": commit.rows / seconds,
            "bytes_per_s": commit.bytes / seconds,
            "rows": commit.rows,
            "cycle": cycle,
            "wall": wall,
            "busy": wall / seconds if self.is_stream else nan,
            "between": cycle - wall,
            **parts,
            "slowest_task": commit.slowest_task,
            "median_task": commit.median_task,
            "tasks": commit.tasks,
            "batch_size": counters.get("batch-size-avg", nan),
            "compression": counters.get("compression-rate-avg", nan),
            "requests": counters.get("produce-request-total", nan),
            "records_per_request": counters.get("records-per-request-avg", nan),
            "latency": counters.get("request-latency-avg", nan) / 1e3,
            "memory_wait": memory,
            "metadata_wait": metadata,
            "throttle": counters.get("produce-throttle-time-total", nan) / 1e3,
            "task_seconds": commit.task_seconds,
            "retried": counters.get("record-retry-total", nan),
            "splits": counters.get("batch-split-total", nan),
        }
        return tuple(values[name] for name in COLUMNS)

    def part(self, name: str) -> float:
        """What part of all tasks' time a column has, which is in seconds of all tasks: 0 to 1; NaN if it is not known."""
        total = self.series.sum_of("task_seconds")
        return min(1.0, self.series.sum_of(name) / total) if total else nan

    @property
    def rows_per_s(self) -> float:
        """In the middle; of a stream's first commit, while it was at work."""
        median, walls = self.series.median_of("rows_per_s"), self.series.sum_of("wall")
        return self.totals.rows / walls if isnan(median) and walls else median

    def part_of_work(self, name: str) -> float:
        """What part of all commits' time one of PARTS has."""
        known = sum(self.series.sum_of(each) for each in PARTS)
        return self.series.sum_of(name) / known if known and self.totals.timed_commits else nan


def _parts(commit: Commit, wall: float, waited_for_brokers: float) -> dict[str, float]:
    """PARTS of a commit's time. Those of the tasks, which ran side by side, are in proportion."""
    if isnan(commit.task_seconds) or isnan(commit.commit_seconds):
        return dict.fromkeys(PARTS, nan)
    own = min(commit.commit_seconds, wall)
    together, side_by_side = commit.task_seconds, wall - own
    if not together:
        return {**dict.fromkeys(PARTS, 0.0), "spark": side_by_side, "commit": own}
    spark = min(commit.spark_seconds, together)
    held_back = min(commit.held_back, together - spark)
    brokers = min(0.0 if isnan(waited_for_brokers) else waited_for_brokers, together - spark - held_back)
    parts = {"spark": spark, "held_back": held_back, "brokers": brokers, "sink": together - spark - held_back - brokers}
    return {**{name: seconds / together * side_by_side for name, seconds in parts.items()}, "commit": own}


@dataclass
class Statistics:
    """Of all queries, in the order in which they appeared. `commits_left_out`: of queries beyond MOST_QUERIES."""

    queries: dict[str | None, Query] = field(default_factory=dict)
    commits_left_out: int = 0

    def add(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            query = self.queries.get(commit.query)
            if query is None:
                if len(self.queries) >= MOST_QUERIES:
                    self.commits_left_out += 1
                    continue
                query = self.queries[commit.query] = Query(commit.query)
            query.add(commit)

    def by_rows(self) -> list[Query]:
        """The one with the most rows first."""
        return sorted(self.queries.values(), key=lambda query: -query.totals.rows)
