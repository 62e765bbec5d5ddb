"""What is known of each query, added up from its commits. Batch writes count as one query, as they have no id.

The time of a commit lasts from the start of its first task until its line is logged. It has three parts: tasks run, something
happens outside of tasks, the driver commits. A function of foreachBatch may write a micro-batch several times, with a commit for
each. A *cycle* is the time from a micro-batch's first commit to that of the next, with what Spark does or waits for in between.
Rates are over the time in which tasks ran.
Laws: every number is measured, or computed from measured ones; what no line tells stays unknown.
Memory does not grow with the number of commits, and with names only up to MAX_QUERIES, MAX_TOPICS and MAX_REASONS.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan, nan
from typing import NamedTuple

from spark_kafka_sink.tools.report.heat import HeatMap
from spark_kafka_sink.tools.report.lines import CommitLine
from spark_kafka_sink.tools.report.series import Series
from spark_kafka_sink.tools.words import counted

MAX_QUERIES = 50  # the commits of further ones are only counted
MAX_TOPICS = 100  # of a query; further ones are not shown
MAX_REASONS = 100

MAX_PAUSES = 32  # the longest ones
MIN_PAUSE_CYCLES = 10  # a stream that commits nothing for so long has paused

# Columns that add up to `wall_s`, the time of a commit. With `between_s`, and further commits of the cycle, they are `cycle_s`.
TIME_PARTS = ("running_s", "outside_s", "commit_s")
# Columns that add up to `all_tasks_s`, the time of all tasks of a commit.
TASK_PARTS = ("spark_s", "held_back_s", "sink_s", "brokers_s")
# Columns that are counters of the line: the counter, and a divisor that makes seconds of times.
COLUMNS_OF_COUNTERS = {
    "batch_bytes": ("batch-size-avg", 1),
    "requests": ("produce-request-total", 1),
    "records_per_request": ("records-per-request-avg", 1),
    "latency_s": ("request-latency-avg", 1e3),
    "memory_wait_s": ("bufferpool-wait-time-ms-total", 1e3),
    "metadata_wait_s": ("metadata-wait-time-ns-total", 1e9),
    "flush_s": ("flush-time-ns-total", 1e9),
    "throttle_s": ("produce-throttle-time-total", 1e3),
    "retried": ("record-retry-total", 1),
    "splits": ("batch-split-total", 1),
}
COLUMNS = (
    *("rows_per_s", "bytes_per_s", "rows", "timed_rows", "wall_s", "cycle_s", "busy_share", "between_s", *TIME_PARTS),
    *(*TASK_PARTS, "slowest_task_s", "median_task_s", "timed_tasks", "all_tasks_s", "compression", *COLUMNS_OF_COUNTERS),
)


@dataclass
class Totals:
    """Sums over all commits of a query."""

    commits: int = 0
    rows: int = 0
    bytes: int = 0
    sent_bytes: float = 0.0
    bytes_before_compression: float = 0.0  # of what was sent, dead letters included
    sent_records: float = 0.0
    batches: float = 0.0
    requests: float = 0.0
    most_tasks: int = 0
    longest_throttle_s: float = 0.0

    def add(self, commit: CommitLine) -> None:
        counters = commit.counters
        self.commits += 1
        self.rows += commit.rows
        self.bytes += commit.bytes
        self.sent_bytes += counters.get("byte-total", 0)
        self.bytes_before_compression += counters.get("uncompressed-byte-total", 0)
        self.sent_records += counters.get("record-send-total", 0)
        self.batches += counters.get("batch-send-total", 0)
        self.requests += counters.get("produce-request-total", 0)
        self.most_tasks = max(self.most_tasks, commit.tasks)
        self.longest_throttle_s = max(self.longest_throttle_s, counters.get("produce-throttle-time-max", 0) / 1000)


class Pause(NamedTuple):
    """A stream's pause: nothing was committed between two commits, for `duration_s` until the first task of the later one."""

    duration_s: float
    start_s: float  # when the earlier one was committed, in seconds since 1970
    stop_s: float  # when the later one was


class Query:
    """The numbers of one query, or of all batch writes.

    Args:
        query: the id of the streaming query; None stands for all batch writes.
    """

    def __init__(self, query: str | None) -> None:
        self.id = query
        self.totals = Totals()
        self.series = Series(COLUMNS)
        self.heat_maps: dict[str, HeatMap] = {}
        self.skipped: Counter[str] = Counter()
        self.dead_lettered: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()  # exactly-once: how they came to be committed
        self.skipped_partitions = 0
        self.fenced_count = 0
        self.other_rows = 0
        self.repeated_count = 0  # micro-batches that ran again, without exactly-once
        self.further_write_count = 0  # commits of a micro-batch after its first, as foreachBatch may write several times
        self.first_at_s = nan
        self.last_at_s = nan
        self._last_batch: int | None = None
        self._destinations: Counter[str] = Counter()  # how often the last micro-batch was written to each, since it began to run
        self._write_counts: Counter[int] = Counter()  # of the micro-batches before: how often one was written to a destination
        self._cycle_start_s = nan
        self._further_writes_s = 0.0  # the time of the commits in this cycle, without the first
        self._pauses: list[Pause] = []  # a heap

    @property
    def is_stream(self) -> bool:
        return self.id is not None

    @property
    def name(self) -> str:
        return f"query {self.id}" if self.id is not None else "batch writes"

    @property
    def unit(self) -> str:
        """The noun for what one commit writes."""
        return "micro-batch" if self.is_stream else "write"

    @property
    def unit_count(self) -> int:
        """How many micro-batches, or writes."""
        return self.totals.commits - self.further_write_count

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.versions)

    def commits_in_words(self) -> str:
        return counted(self.unit_count, self.unit, "micro-batches" if self.is_stream else "writes")

    def topics_by_rows(self) -> list[str]:
        """The topics, the one with the most rows first."""
        return sorted(self.heat_maps, key=lambda topic: -self.heat_maps[topic].rows)

    def add(self, commit: CommitLine) -> None:
        """Add the next commit: to the sums, the series, the pauses, and the heat maps of its topics."""
        self.totals.add(commit)
        is_same_batch = commit.batch is not None and commit.batch == self._last_batch
        is_further_write = is_same_batch and self._is_further_write(commit)
        self._count_events(commit, is_further_write)
        row = self._row(commit, is_further_write)
        self.series.add(commit.committed_at_s, row)
        wall_s, cycle_s, between_s = (row[COLUMNS.index(name)] for name in ("wall_s", "cycle_s", "between_s"))
        if is_further_write:
            self._further_writes_s += wall_s
        else:
            self._cycle_start_s, self._further_writes_s = commit.committed_at_s, 0.0
        if not isnan(cycle_s):
            self._remember_pause(Pause(cycle_s if isnan(between_s) else between_s, self.last_at_s, commit.committed_at_s))
        for topic, partitions in commit.partitions.items():
            if topic in self.heat_maps or len(self.heat_maps) < MAX_TOPICS:
                self.heat_maps.setdefault(topic, HeatMap()).add(commit.committed_at_s, partitions)
        if isnan(self.first_at_s):
            self.first_at_s = commit.committed_at_s if isnan(commit.started_at_s) else commit.started_at_s
        self.last_at_s = max(commit.committed_at_s, self.last_at_s)  # in this order, NaN gives way

    def _is_further_write(self, commit: CommitLine) -> bool:
        """Whether a commit of the last micro-batch is one more of its writes, and no repetition: each destination was written to
        less often than is usual in this query. The writes of the first micro-batch are not known to be repetitions."""
        if commit.exactly_once is not None:  # Two writes of a micro-batch have two owners.
            return self._destinations.keys().isdisjoint(commit.destinations)
        if not self._write_counts:
            return True
        usual_count = max(self._write_counts, key=lambda count: (self._write_counts[count], -count))
        return all(self._destinations[each] < usual_count for each in commit.destinations)

    def _count_events(self, commit: CommitLine, is_further_write: bool) -> None:
        self.further_write_count += is_further_write
        for rows_by_reason, new_rows in ((self.skipped, commit.skipped), (self.dead_lettered, commit.dead_lettered)):
            for reason, rows in new_rows.items():
                rows_by_reason[reason if reason in rows_by_reason or len(rows_by_reason) < MAX_REASONS else ""] += rows
        if commit.batch is not None:
            if not is_further_write:
                has_run = self._last_batch is not None and commit.batch <= self._last_batch
                self.repeated_count += has_run and commit.exactly_once is None
                if commit.batch != self._last_batch and self._destinations:
                    self._write_counts[max(self._destinations.values())] += 1
                self._destinations.clear()
            if len(self._destinations) < MAX_TOPICS:
                self._destinations.update(dict.fromkeys(commit.destinations, 1))
            self._last_batch = commit.batch
        if commit.exactly_once is not None:
            how = commit.exactly_once.how
            self.versions[how if how in self.versions or len(self.versions) < MAX_REASONS else "otherwise"] += 1
            self.skipped_partitions += commit.exactly_once.skipped_partitions
            self.fenced_count += commit.exactly_once.fenced_count
            self.other_rows += commit.exactly_once.other_rows

    def _remember_pause(self, pause: Pause) -> None:
        heapq.heappush(self._pauses, pause)
        if len(self._pauses) > MAX_PAUSES:
            heapq.heappop(self._pauses)

    def pauses(self) -> list[Pause]:
        """The pauses that are long for this stream, such as an outage, a restart or a night without rows; in order of time."""
        min_pause_s = MIN_PAUSE_CYCLES * self.series.median("cycle_s")
        return sorted((each for each in self._pauses if each.duration_s > min_pause_s), key=lambda pause: pause.start_s)

    def _row(self, commit: CommitLine, is_further_write: bool) -> tuple[float, ...]:
        counters = {column: commit.counters.get(name, nan) / divisor for column, (name, divisor) in COLUMNS_OF_COUNTERS.items()}
        running_s, bytes_before = commit.running_s, commit.counters.get("uncompressed-byte-total", 0) or nan
        values = {
            "rows_per_s": commit.rows / (running_s or nan),
            "bytes_per_s": commit.bytes / (running_s or nan),
            "rows": commit.rows,
            "timed_rows": nan if isnan(running_s) else commit.rows,
            **self._time_columns(commit, is_further_write),
            **_task_parts(commit, counters["memory_wait_s"] + counters["metadata_wait_s"] + counters["flush_s"]),
            "slowest_task_s": commit.slowest_task_s,
            "median_task_s": commit.median_task_s,
            "timed_tasks": nan if isnan(commit.all_tasks_s) else commit.tasks,
            "all_tasks_s": commit.all_tasks_s,
            "compression": commit.counters.get("byte-total", nan) / bytes_before,
            **counters,
        }
        return tuple(values[name] for name in COLUMNS)

    def _time_columns(self, commit: CommitLine, is_further_write: bool) -> dict[str, float]:
        """The time of a commit, its parts, and the cycle that it ends: NaN for the first commit, and for a further write."""
        running_s, commit_s = commit.running_s, 0.0 if isnan(commit.commit_s) else commit.commit_s
        wall_s = commit.committed_at_s - commit.started_at_s
        if not isnan(running_s):
            wall_s = max(wall_s, running_s + commit_s)  # a machine with another clock
        busy_s = self._further_writes_s + wall_s
        has_cycle = self.is_stream and not is_further_write
        cycle_s = max(commit.committed_at_s - self._cycle_start_s, busy_s) if has_cycle else nan
        return {
            "wall_s": wall_s,
            "cycle_s": cycle_s,
            "busy_share": busy_s / (cycle_s or nan),
            "between_s": cycle_s - busy_s,
            "running_s": running_s,
            "outside_s": max(wall_s - running_s - commit_s, 0.0),  # NaN stays NaN
            "commit_s": commit_s if not isnan(wall_s - running_s) else nan,
        }

    @property
    def rows_per_s(self) -> float:
        """Rows per second while tasks ran, over all commits; NaN if that is not known."""
        running_s = self.series.sum("running_s")
        return self.series.sum("timed_rows") / running_s if running_s else nan

    @property
    def compression(self) -> float:
        """Bytes sent, in proportion to the same records before compression. Batches have headers, so it may exceed 1."""
        bytes_before = self.totals.bytes_before_compression
        return self.totals.sent_bytes / bytes_before if bytes_before else nan

    def share_of_task_time(self, name: str) -> float:
        """The share of all tasks' time that a column of seconds has: 0 to 1; NaN if it is not known."""
        total_s = self.series.sum("all_tasks_s")
        return min(1.0, self.series.sum(name) / total_s) if total_s else nan

    def share_of_time(self, name: str) -> float:
        """The share of all commits' time that one of TIME_PARTS has; NaN if it is not known."""
        total_s = sum(self.series.sum(each) for each in TIME_PARTS)
        return self.series.sum(name) / total_s if total_s else nan


def _task_parts(commit: CommitLine, wait_for_brokers_s: float) -> dict[str, float]:
    """The values of TASK_PARTS."""
    if isnan(commit.all_tasks_s):
        return dict.fromkeys(TASK_PARTS, nan)
    left_s = commit.all_tasks_s
    parts = {}
    for name, part_s in (("spark_s", commit.spark_s), ("held_back_s", commit.held_back_s), ("brokers_s", wait_for_brokers_s)):
        parts[name] = min(0.0 if isnan(part_s) else part_s, left_s)
        left_s -= parts[name]
    return {**parts, "sink_s": left_s}


@dataclass
class Statistics:
    """Holds all queries, in the order in which they appeared. `commits_left_out`: of queries beyond MAX_QUERIES."""

    queries: dict[str | None, Query] = field(default_factory=dict)
    commits_left_out: int = 0

    def add(self, commits: Iterable[CommitLine]) -> None:
        """Add each commit to its query, or count it in `commits_left_out`."""
        for commit in commits:
            query = self.queries.get(commit.query)
            if query is None:
                if len(self.queries) >= MAX_QUERIES:
                    self.commits_left_out += 1
                    continue
                query = self.queries[commit.query] = Query(commit.query)
            query.add(commit)

    def by_rows(self) -> list[Query]:
        """The queries, the one with the most rows first."""
        return sorted(self.queries.values(), key=lambda query: -query.totals.rows)
