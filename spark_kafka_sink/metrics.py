"""Numbers that are recorded as they come, and read as totals, averages, maxima and rates under Kafka's metric names.

A Stat adds up. Samples remembers where each Stat stood when the last windows began (metrics.num.samples of
metrics.sample.window.ms), so that recording is a few additions and the arithmetic is the reader's. Which readings there are
stands in tables of Metric, next to what they measure; the README's table is printed from them.
Law: a Stat is written by one thread, or under one lock; `roll` is called by one thread, `restart` while nothing is recorded that
its caller cares for. Anybody reads at any time, without a lock: every number is whole, but two numbers of one event may be that
event apart while it is being recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a Stat stood when a window began."""

    started_ms: int
    count: int
    total: float
    largest: float = 0  # of the window's own values, known when it is over


class Stat:
    """Values, none below zero: how many, their sum, the largest."""

    __slots__ = ("count", "largest", "marks", "origin", "total", "window_largest")

    def __init__(self) -> None:
        self.count = 0
        self.total: float = 0  # stays an int when all values are
        self.window_largest: float = 0  # since the last mark
        self.largest: float = 0  # before it, since the origin
        self.origin = Mark(0, 0, 0)  # where it stood at the last restart
        self.marks: tuple[Mark, ...] = ()  # oldest first; replaced as a whole

    def record(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.window_largest:
            self.window_largest = value

    def add(self, count: int, total: float, largest: float = 0) -> None:
        """Several values at once."""
        self.count += count
        self.total += total
        if largest > self.window_largest:
            self.window_largest = largest


@dataclass(frozen=True, slots=True)
class Reading:
    """One Stat, over the windows or since the start or last restart; its sums in all, or since then, beside it."""

    count: int
    total: float
    largest: float
    elapsed_ms: int
    count_in_all: int
    total_in_all: float


class Samples:
    """The windows over which averages, maxima and rates are taken, for all Stats of one producer.

    Args:
        window_ms: length of a window; one begins with the first event after the end of the one before.
        count: windows that a reading looks back. As in Java one more is kept while it overlaps that time, and a rate counts at
            least `count - 1` windows of time, so that a producer which has just begun does not seem fast.
        started_ms: the clock's time now.
    """

    def __init__(self, window_ms: int = 30_000, count: int = 2, started_ms: int = 0) -> None:
        self.started_ms = started_ms
        self._window_ms = max(1, window_ms)
        self._count = count
        self._window_started_ms = started_ms
        self._stats: list[Stat] = []
        self._moving = threading.Lock()  # guards marks and maxima while windows or the start are moved

    def stat(self) -> Stat:
        return self.watch(Stat())

    def watch(self, stat: Stat) -> Stat:
        stat.marks = (Mark(self._window_started_ms, stat.count, stat.total),)
        self._stats.append(stat)
        return stat

    def roll(self, now_ms: int) -> None:
        """Begin a new window if the last is over. To be called before anything is recorded."""
        if now_ms - self._window_started_ms < self._window_ms:
            return
        self._window_started_ms = now_ms
        with self._moving:
            for stat in self._stats:
                stat.largest = max(stat.largest, stat.window_largest)
                over = self._largest_so_far(stat)
                stat.marks = (*stat.marks[:-1], over, Mark(now_ms, stat.count, stat.total))[-self._count - 1 :]
                stat.window_largest = 0

    def restart(self, now_ms: int) -> None:
        """Read `since_start` from here on; windows go on as they were. For one who takes over what another has used before."""
        with self._moving:
            self.started_ms = now_ms
            for stat in self._stats.copy():
                stat.origin = Mark(now_ms, stat.count, stat.total)
                stat.marks = (*stat.marks[:-1], self._largest_so_far(stat))
                stat.largest = stat.window_largest = 0

    @staticmethod
    def _largest_so_far(stat: Stat) -> Mark:
        """The window that is open, knowing its maximum."""
        return replace(stat.marks[-1], largest=max(stat.marks[-1].largest, stat.window_largest))

    def read(self, stat: Stat, now_ms: int, *, since_start: bool) -> Reading:
        count, total, largest = stat.count, stat.total, stat.window_largest
        if since_start:
            count, total = count - stat.origin.count, total - stat.origin.total
            return Reading(count, total, max(largest, stat.largest), max(1, now_ms - self.started_ms), count, total)
        least_ms = (self._count - 1) * self._window_ms
        kept = [mark for mark in stat.marks if now_ms - mark.started_ms < (self._count + 1) * self._window_ms]
        if not kept:
            return Reading(0, 0, 0, max(1, least_ms), count, total)
        elapsed_ms = now_ms - kept[0].started_ms
        elapsed_ms += max(0, least_ms - elapsed_ms // self._window_ms * self._window_ms)
        largest = max(largest, *(mark.largest for mark in kept))
        return Reading(count - kept[0].count, total - kept[0].total, largest, max(1, elapsed_ms), count, total)


# --- READINGS: 0 where there is nothing to take them of (Java says NaN, which JSON cannot) ------------------------------------


def _total(reading: Reading) -> float:
    return reading.total_in_all


def _total_ms(reading: Reading) -> float:
    """Of a Stat of nanoseconds."""
    return reading.total_in_all // NS_PER_MS


def _count(reading: Reading) -> float:
    return reading.count_in_all


def _rate(reading: Reading) -> float:
    return reading.total * 1000 / reading.elapsed_ms


def _count_rate(reading: Reading) -> float:
    return reading.count * 1000 / reading.elapsed_ms


def _average(reading: Reading) -> float:
    return reading.total / reading.count if reading.count else 0.0


def _largest(reading: Reading) -> float:
    return reading.largest


def _share(reading: Reading) -> float:
    """Of a Stat of nanoseconds: how much of the time they are."""
    return reading.total / (reading.elapsed_ms * NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Metric:
    """A name, what it says, and how it is read of which Stat. A gauge has no Stat: whoever takes the snapshot knows it."""

    name: str
    stat: str | None
    read: Callable[[Reading], float]
    doc: str


def total(name: str, stat: str, doc: str) -> list[Metric]:
    return [Metric(name, stat, _total, doc)]


def total_ms(name: str, stat: str, doc: str) -> list[Metric]:
    """Of a Stat of nanoseconds."""
    return [Metric(name, stat, _total_ms, doc)]


def count(name: str, stat: str, doc: str) -> list[Metric]:
    return [Metric(name, stat, _count, doc)]


def meter(name: str, stat: str, doc: str) -> list[Metric]:
    """The sum of the values, and that per second."""
    return [Metric(f"{name}-total", stat, _total, doc), Metric(f"{name}-rate", stat, _rate, doc)]


def count_meter(name: str, stat: str, doc: str) -> list[Metric]:
    """How many values there were, and that per second."""
    return [Metric(f"{name}-total", stat, _count, doc), Metric(f"{name}-rate", stat, _count_rate, doc)]


def average(name: str, stat: str, doc: str) -> list[Metric]:
    return [Metric(name, stat, _average, doc)]


def average_and_max(name: str, stat: str, doc: str) -> list[Metric]:
    return [Metric(f"{name}-avg", stat, _average, doc), Metric(f"{name}-max", stat, _largest, doc)]


def time_and_share(name: str, stat: str, doc: str) -> list[Metric]:
    """Of a Stat of nanoseconds."""
    return [Metric(f"{name}-time-ns-total", stat, _total, doc), Metric(f"{name}-ratio", stat, _share, doc)]


def gauge(name: str, doc: str) -> list[Metric]:
    return [Metric(name, None, _total, doc)]


def snapshot(samples: Samples, metrics: Iterable[Metric], group: object, now_ms: int, *, since_start: bool) -> dict[str, float]:
    """Name -> value of all metrics that are no gauges. `group` has their Stats as attributes."""
    readings: dict[str, Reading] = {}
    values: dict[str, float] = {}
    for metric in metrics:
        if metric.stat is not None:
            if metric.stat not in readings:
                readings[metric.stat] = samples.read(getattr(group, metric.stat), now_ms, since_start=since_start)
            values[metric.name] = metric.read(readings[metric.stat])
    return values


def markdown_rows(metrics: Iterable[Metric]) -> list[str]:
    """One row for neighbours that share a sentence."""
    rows = []
    for doc, alike in groupby(metrics, key=lambda metric: metric.doc):
        names = ", ".join(f"`{metric.name}`" for metric in alike)
        rows.append(f"| {names} | {doc} |")
    return rows
