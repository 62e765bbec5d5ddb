"""Values over time, in a bounded number of buckets: each has the lowest and highest value, the sum, and a sample for the median.

Each bucket but the last has the same number of consecutive rows of values. When there are MAX_BUCKETS, neighbours are joined:
half as many buckets have twice as many rows each. So 10,000 micro-batches take as much memory as 1,000, and a peak stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ColumnValues = npt.NDArray[np.float64]

MAX_BUCKETS = 160  # a picture is some 400 points wide
MAX_OPEN = 8192  # rows of values that are not in a bucket yet
SAMPLE = 32  # rows of a bucket from which its medians are taken


@dataclass(slots=True)
class Bucket:
    """Consecutive rows, summed up. Arrays have a value for each column, NaN where no row had one."""

    first_at: float  # when, of the first row
    last_at: float
    rows: int
    low: ColumnValues
    high: ColumnValues
    total: ColumnValues
    known_counts: ColumnValues  # how many rows had a value
    sample: ColumnValues  # rows × columns

    @classmethod
    def of(cls, times: Sequence[float], rows: ColumnValues) -> Bucket:
        """Sum up `rows`, a table of rows × columns."""
        low, high = np.fmin.reduce(rows), np.fmax.reduce(rows)
        known_counts = (~np.isnan(rows)).sum(axis=0).astype(float)
        return cls(min(times), max(times), len(rows), low, high, np.nansum(rows, axis=0), known_counts, _sample_of(rows))

    def join_with(self, other: Bucket) -> Bucket:
        """A new bucket with the rows of both."""
        return Bucket(
            min(self.first_at, other.first_at),
            max(self.last_at, other.last_at),
            self.rows + other.rows,
            np.fmin(self.low, other.low),
            np.fmax(self.high, other.high),
            self.total + other.total,
            self.known_counts + other.known_counts,
            _sample_of(np.concatenate([self.sample, other.sample])),
        )


def _sample_of(rows: ColumnValues) -> ColumnValues:
    """Take at most SAMPLE of them, evenly spread."""
    if len(rows) <= SAMPLE:
        return rows
    return np.take(rows, np.linspace(0, len(rows) - 1, SAMPLE).round().astype(int), axis=0)


class Series:
    """Columns of values over time. Buckets become longer when there are too many.

    Args:
        names: of the columns.
        max_buckets: only tests pass it.
    """

    def __init__(self, names: Sequence[str], max_buckets: int = MAX_BUCKETS) -> None:
        self._column = {name: number for number, name in enumerate(names)}
        self._max_buckets = max_buckets
        self._width = 1  # rows of a bucket
        self._buckets: list[Bucket] = []
        self._open_times: list[float] = []  # the rows of the bucket that is not full
        self._open_rows: list[Sequence[float]] = []

    def add(self, time: float, row: Sequence[float]) -> None:
        """Add the next row, in the order of time."""
        self._open_times.append(time)
        self._open_rows.append(row)
        if len(self._open_rows) >= self._width or len(self._open_rows) >= MAX_OPEN:
            self._close()

    def _close(self) -> None:
        """Put the open rows into a bucket. A bucket of very many rows is filled in parts, so that few rows are held."""
        bucket = Bucket.of(self._open_times, np.array(self._open_rows, float))
        self._open_times, self._open_rows = [], []
        if self._buckets and self._buckets[-1].rows < self._width:
            self._buckets[-1] = self._buckets[-1].join_with(bucket)
        else:
            self._buckets.append(bucket)
        if len(self._buckets) >= self._max_buckets and self._buckets[-1].rows >= self._width:
            pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
            odd = self._buckets[-1:] if len(self._buckets) % 2 else []
            self._buckets = [*(earlier.join_with(later) for earlier, later in pairs), *odd]
            self._width *= 2

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, the one that is not full included."""
        if not self._open_rows:
            return self._buckets
        return [*self._buckets, Bucket.of(self._open_times, np.array(self._open_rows, float))]

    @property
    def times(self) -> ColumnValues:
        return np.array([(bucket.first_at + bucket.last_at) / 2 for bucket in self.buckets])

    def low(self, name: str) -> ColumnValues:
        return np.array([bucket.low[self._column[name]] for bucket in self.buckets])

    def high(self, name: str) -> ColumnValues:
        return np.array([bucket.high[self._column[name]] for bucket in self.buckets])

    def total(self, name: str) -> ColumnValues:
        return np.array([bucket.total[self._column[name]] for bucket in self.buckets])

    def mean(self, name: str) -> ColumnValues:
        """The mean of each bucket; NaN where no row has a value."""
        counts = np.array([bucket.known_counts[self._column[name]] for bucket in self.buckets])
        mean: ColumnValues = np.divide(self.total(name), counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return mean

    def median(self, name: str) -> ColumnValues:
        column = self._column[name]
        return np.array([_median(bucket.sample[:, column]) for bucket in self.buckets])

    def median_of(self, name: str, part: slice = slice(None)) -> float:
        """The median of the samples of all buckets, or of a part of them; NaN if no row has a value."""
        column = self._column[name]
        return _median(np.concatenate([[], *(bucket.sample[:, column] for bucket in self.buckets[part])]))

    def sum_of(self, name: str) -> float:
        return float(self.total(name).sum())

    def lowest(self, name: str) -> float:
        return float(np.fmin.reduce(self.low(name), initial=np.nan))

    def highest(self, name: str) -> float:
        return highest(self.high(name))


def highest(values: ColumnValues) -> float:
    """The highest value that is known; NaN if none is."""
    return float(np.fmax.reduce(values, initial=np.nan))


def _median(values: ColumnValues) -> float:
    known_values = values[~np.isnan(values)]
    return float(np.median(known_values)) if len(known_values) else np.nan
