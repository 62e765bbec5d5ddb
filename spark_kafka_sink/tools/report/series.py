"""Values over time, in a bounded number of buckets. A bucket has the lowest and highest value, the sum, and a sample of values.

Each bucket but the last has the same number of consecutive rows of values. When there are MAX_BUCKETS, adjacent ones are joined:
half as many buckets have twice as many rows each. So 10,000 micro-batches take as much memory as 1,000, and a peak stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ColumnValues = npt.NDArray[np.float64]

MAX_BUCKETS = 160  # a picture is some 400 points wide
MAX_OPEN_ROWS = 8192  # rows of values that are not in a bucket yet
MAX_SAMPLE_ROWS = 32  # of a bucket; its medians are those of the sample


@dataclass(slots=True)
class Bucket:
    """Consecutive rows, summed up. Arrays have a value for each column, NaN where no row had one."""

    first_at_s: float  # when the first row was, in seconds since 1970
    last_at_s: float
    row_count: int
    lows: ColumnValues
    highs: ColumnValues
    sums: ColumnValues
    known_counts: ColumnValues  # how many rows had a value
    sample: ColumnValues  # rows × columns

    @classmethod
    def of(cls, times_s: Sequence[float], table: ColumnValues) -> Bucket:
        """Sum up a table of rows × columns. `times_s`: when each row was."""
        lows, highs = np.fmin.reduce(table), np.fmax.reduce(table)
        known_counts = (~np.isnan(table)).sum(axis=0).astype(float)
        sums, sample = np.nansum(table, axis=0), _sample_of(table)
        return cls(min(times_s), max(times_s), len(table), lows, highs, sums, known_counts, sample)

    def join_with(self, other: Bucket) -> Bucket:
        """A new bucket with the rows of both."""
        return Bucket(
            min(self.first_at_s, other.first_at_s),
            max(self.last_at_s, other.last_at_s),
            self.row_count + other.row_count,
            np.fmin(self.lows, other.lows),
            np.fmax(self.highs, other.highs),
            self.sums + other.sums,
            self.known_counts + other.known_counts,
            _sample_of(np.concatenate([self.sample, other.sample])),
        )


def _sample_of(table: ColumnValues) -> ColumnValues:
    """Take at most MAX_SAMPLE_ROWS rows, evenly spread."""
    if len(table) <= MAX_SAMPLE_ROWS:
        return table
    return np.take(table, np.linspace(0, len(table) - 1, MAX_SAMPLE_ROWS).round().astype(int), axis=0)


class Series:
    """Columns of values over time. Buckets become longer when there are too many.

    Args:
        names: of the columns.
        max_buckets: only tests pass it.
    """

    def __init__(self, names: Sequence[str], max_buckets: int = MAX_BUCKETS) -> None:
        self._position = {name: number for number, name in enumerate(names)}
        self._max_buckets = max_buckets
        self._bucket_rows = 1  # rows of a full bucket
        self._buckets: list[Bucket] = []
        self._open_times_s: list[float] = []  # the rows of the bucket that is not full
        self._open_rows: list[Sequence[float]] = []

    def add(self, time_s: float, row: Sequence[float]) -> None:
        """Add the next row, in the order of time."""
        self._open_times_s.append(time_s)
        self._open_rows.append(row)
        if len(self._open_rows) >= self._bucket_rows or len(self._open_rows) >= MAX_OPEN_ROWS:
            self._close_bucket()

    def _close_bucket(self) -> None:
        """Put the open rows into a bucket. A bucket of very many rows is filled in parts, so that few rows are in memory."""
        bucket = Bucket.of(self._open_times_s, np.array(self._open_rows, float))
        self._open_times_s, self._open_rows = [], []
        if self._buckets and self._buckets[-1].row_count < self._bucket_rows:
            self._buckets[-1] = self._buckets[-1].join_with(bucket)
        else:
            self._buckets.append(bucket)
        if len(self._buckets) >= self._max_buckets and self._buckets[-1].row_count >= self._bucket_rows:
            pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
            odd = self._buckets[-1:] if len(self._buckets) % 2 else []
            self._buckets = [*(earlier.join_with(later) for earlier, later in pairs), *odd]
            self._bucket_rows *= 2

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, the one that is not full included."""
        if not self._open_rows:
            return self._buckets
        return [*self._buckets, Bucket.of(self._open_times_s, np.array(self._open_rows, float))]

    @property
    def times_s(self) -> ColumnValues:
        return np.array([(bucket.first_at_s + bucket.last_at_s) / 2 for bucket in self.buckets])

    def lows(self, name: str) -> ColumnValues:
        return np.array([bucket.lows[self._position[name]] for bucket in self.buckets])

    def highs(self, name: str) -> ColumnValues:
        return np.array([bucket.highs[self._position[name]] for bucket in self.buckets])

    def sums(self, name: str) -> ColumnValues:
        return np.array([bucket.sums[self._position[name]] for bucket in self.buckets])

    def means(self, name: str) -> ColumnValues:
        """The mean of each bucket; NaN where no row has a value."""
        counts = np.array([bucket.known_counts[self._position[name]] for bucket in self.buckets])
        means: ColumnValues = np.divide(self.sums(name), counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return means

    def medians(self, name: str) -> ColumnValues:
        position = self._position[name]
        return np.array([_known_median(bucket.sample[:, position]) for bucket in self.buckets])

    def median(self, name: str, part: slice = slice(None)) -> float:
        """The median of the samples of all buckets, or of a part of them; NaN if no row has a value."""
        position = self._position[name]
        return _known_median(np.concatenate([[], *(bucket.sample[:, position] for bucket in self.buckets[part])]))

    def sum(self, name: str) -> float:
        return float(self.sums(name).sum())

    def lowest(self, name: str) -> float:
        return float(np.fmin.reduce(self.lows(name), initial=np.nan))

    def highest(self, name: str) -> float:
        return known_max(self.highs(name))


def known_max(values: ColumnValues) -> float:
    """The highest of the values that are not NaN; NaN if all are."""
    return float(np.fmax.reduce(values, initial=np.nan))


def _known_median(values: ColumnValues) -> float:
    known_values = values[~np.isnan(values)]
    return float(np.median(known_values)) if len(known_values) else np.nan
