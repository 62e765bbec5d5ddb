"""Records values as they occur, and computes totals, averages, maxima and rates from them under Kafka's metric names.

A Stat adds values up. Samples keeps a Mark of each Stat for each of the last windows (metrics.num.samples windows of
metrics.sample.window.ms). Recording a value is therefore a few additions, and the reader does the arithmetic. Tables of Metric,
next to the code that they measure, list the metrics; docs/metrics.md is printed from them.
Law: one thread writes a Stat, or several under one lock; one thread calls `roll`. What is recorded during a `restart` may be
lost. Any thread may read at any time without a lock: each number is consistent, but while an event is being recorded, one number
may include that event and another not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """The count and total of a Stat when a window began."""

    started_ms: int
    count: int
    total: float
    largest: float = 0  # of the values in this window; complete when the window is over


class Stat:
    """The number, sum and maximum of values; no value may be negative."""

    __slots__ = ("count", "largest", "marks", "origin", "total", "window_largest")

    def __init__(self) -> None:
        self.count = 0
        self.total: float = 0  # an int as long as all values are
        self.window_largest: float = 0  # since the last mark
        self.largest: float = 0  # from the origin to the last mark
        self.origin = Mark(0, 0, 0)  # taken at the last restart
        self.marks: tuple[Mark, ...] = ()  # oldest first; always replaced as a whole

    def record(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.window_largest:
            self.window_largest = value

    def add(self, count: int, total: float, largest: float = 0) -> None:
        """Record several values at once."""
        self.count += count
        self.total += total
        if largest > self.window_largest:
            self.window_largest = largest


@dataclass(frozen=True, slots=True)
class Reading:
    """What one Stat has recorded within `elapsed_ms`: over the windows, or since the start or last restart. In a reading over
    the windows, `count_in_all` and `total_in_all` also have the values from before the windows."""

    count: int
    total: float
    largest: float
    elapsed_ms: int
    count_in_all: int
    total_in_all: float


class Samples:
    """The windows over which averages, maxima and rates are computed, for all Stats of one producer.

    Args:
        window_ms: length of a window. A window begins with the first event after the end of the previous one.
        window_count: windows in a reading. As in Java, one more is kept while it overlaps that time, and a rate is computed
            over at least `window_count - 1` windows of time, so that a producer that has just started does not seem fast.
        started_ms: the current time, of Clock.now_ms.
    """

    def __init__(self, window_ms: int = 30_000, window_count: int = 2, started_ms: int = 0) -> None:
        self.started_ms = started_ms
        self._window_ms = max(1, window_ms)
        self._window_count = window_count
        self._window_started_ms = started_ms
        self._stats: list[Stat] = []
        self._marks_lock = threading.Lock()  # held while roll and restart change marks and maxima

    def stat(self) -> Stat:
        return self.watch(Stat())

    def watch(self, stat: Stat) -> Stat:
        """Let readings be taken of `stat`, whose values so far are not part of any window. Returns `stat`."""
        stat.marks = (Mark(self._window_started_ms, stat.count, stat.total),)
        self._stats.append(stat)
        return stat

    def roll(self, now_ms: int) -> None:
        """Begin a new window if the last one is over. Must be called before a value is recorded."""
        if now_ms - self._window_started_ms < self._window_ms:
            return
        self._window_started_ms = now_ms
        with self._marks_lock:
            for stat in self._stats:
                stat.largest = max(stat.largest, stat.window_largest)
                closed_mark = self._largest_so_far(stat)
                stat.marks = (*stat.marks[:-1], closed_mark, Mark(now_ms, stat.count, stat.total))[-self._window_count - 1 :]
                stat.window_largest = 0

    def restart(self, now_ms: int) -> None:
        """Make `now_ms` the start for `since_start`; windows are unchanged. For a new user of a producer that was used before."""
        with self._marks_lock:
            self.started_ms = now_ms
            for stat in self._stats.copy():
                stat.origin = Mark(now_ms, stat.count, stat.total)
                stat.marks = (*stat.marks[:-1], self._largest_so_far(stat))
                stat.largest = stat.window_largest = 0

    @staticmethod
    def _largest_so_far(stat: Stat) -> Mark:
        """The mark of the open window, with the maximum so far."""
        mark = stat.marks[-1]
        return mark if mark.largest >= stat.window_largest else replace(mark, largest=stat.window_largest)

    def read(self, stat: Stat, now_ms: int, *, since_start: bool) -> Reading:
        """What `stat` has recorded since the start or last restart, or without `since_start` over the windows. Any thread."""
        count, total, largest = stat.count, stat.total, stat.window_largest
        if since_start:
            count, total = count - stat.origin.count, total - stat.origin.total
            return Reading(count, total, max(largest, stat.largest), max(1, now_ms - self.started_ms), count, total)
        min_elapsed_ms = (self._window_count - 1) * self._window_ms
        recent_marks = [mark for mark in stat.marks if now_ms - mark.started_ms < (self._window_count + 1) * self._window_ms]
        if not recent_marks:
            return Reading(0, 0, 0, max(1, min_elapsed_ms), count, total)
        elapsed_ms = now_ms - recent_marks[0].started_ms
        elapsed_ms += max(0, min_elapsed_ms - elapsed_ms // self._window_ms * self._window_ms)
        largest = max(largest, *(mark.largest for mark in recent_marks))
        return Reading(count - recent_marks[0].count, total - recent_marks[0].total, largest, max(1, elapsed_ms), count, total)


# WHAT A METRIC MAKES OF A READING: 0 if there are no values (Java returns NaN, which JSON does not have)


_total: Callable[[Reading], float] = attrgetter("total_in_all")
_count: Callable[[Reading], float] = attrgetter("count_in_all")
_largest: Callable[[Reading], float] = attrgetter("largest")


def _rate(reading: Reading) -> float:
    return reading.total * 1000 / reading.elapsed_ms


def _count_rate(reading: Reading) -> float:
    return reading.count * 1000 / reading.elapsed_ms


def _average(reading: Reading) -> float:
    return reading.total / reading.count if reading.count else 0.0


def _share_of_time(reading: Reading) -> float:
    """Which share of the elapsed time the values add up to. The values are nanoseconds."""
    return reading.total / (reading.elapsed_ms * NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, its Stat, how it is computed and what it means. A gauge has no Stat: ProducerMetrics reads it."""

    name: str
    stat: str | None
    read: Callable[[Reading], float]
    doc: str


# Kinds of metrics: each function makes the metrics of one kind, from their name, their Stat's name and their meaning.
def _single_metric(read: Callable[[Reading], float]) -> Callable[[str, str, str], list[Metric]]:
    return lambda name, stat, doc: [Metric(name, stat, read, doc)]


total = _single_metric(_total)
total_ms = _single_metric(lambda reading: reading.total_in_all // NS_PER_MS)  # of a Stat of nanoseconds
count = _single_metric(_count)
average = _single_metric(_average)


def meter(name: str, stat: str, doc: str) -> list[Metric]:
    """The sum of the values, and the sum per second."""
    return [Metric(f"{name}-total", stat, _total, doc), Metric(f"{name}-rate", stat, _rate, doc)]


def count_meter(name: str, stat: str, doc: str) -> list[Metric]:
    """The number of values, and the number per second."""
    return [Metric(f"{name}-total", stat, _count, doc), Metric(f"{name}-rate", stat, _count_rate, doc)]


def average_and_max(name: str, stat: str, doc: str) -> list[Metric]:
    return [Metric(f"{name}-avg", stat, _average, doc), Metric(f"{name}-max", stat, _largest, doc)]


def time_and_share(name: str, stat: str, doc: str) -> list[Metric]:
    """The sum of the values, and which share of the elapsed time the sum is. The values are nanoseconds."""
    return [Metric(f"{name}-time-ns-total", stat, _total, doc), Metric(f"{name}-ratio", stat, _share_of_time, doc)]


def gauge(name: str, doc: str) -> list[Metric]:
    return [Metric(name, None, _total, doc)]


def snapshot(samples: Samples, metrics: Iterable[Metric], group: object, now_ms: int, *, since_start: bool) -> dict[str, float]:
    """Name -> value of all metrics that are not gauges. `group` has their Stats as attributes."""
    readings: dict[str, Reading] = {}
    values: dict[str, float] = {}
    for metric in metrics:
        if metric.stat is not None:
            if metric.stat not in readings:
                readings[metric.stat] = samples.read(getattr(group, metric.stat), now_ms, since_start=since_start)
            values[metric.name] = metric.read(readings[metric.stat])
    return values


def markdown_rows(metrics: Iterable[Metric]) -> list[str]:
    """Rows of a table. Consecutive metrics with the same `doc` share a row."""
    rows = []
    for doc, metrics_of_row in groupby(metrics, key=lambda metric: metric.doc):
        names = ", ".join(f"`{metric.name}`" for metric in metrics_of_row)
        rows.append(f"| {names} | {doc} |")
    return rows
