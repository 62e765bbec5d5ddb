"""Rows by partition of a topic over time. Neighbouring columns are joined at MAX_COLUMNS, like buckets in series.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.tools.words import count, percent, several

MAX_COLUMNS = 48
SKEWED = 2.5  # times an even share
A_LITTLE_UNEVEN = 1.5


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly the rows are spread over the partitions of a topic, those without a row included.

    Args:
        partition: the one with the most rows.
        share: its part of all rows.
        even: what its part would be if all had as many.
        empty: partitions without a row, below the highest that has one.
    """

    partition: int
    share: float
    partitions: int
    even: float
    empty: int

    @property
    def factor(self) -> float:
        return self.share / self.even


@dataclass(slots=True)
class _Column:
    """The rows of one or more commits in a row."""

    first_at: float  # when, of the first commit
    last_at: float
    commits: int
    rows: Counter[int]  # by partition

    def join(self, later: _Column) -> None:
        self.last_at = later.last_at
        self.commits += later.commits
        self.rows.update(later.rows)


class Heat:
    """The rows of one topic, counted by partition and time. `rows`: all."""

    def __init__(self) -> None:
        self.rows = 0
        self._width = 1  # commits of a column
        self._columns: list[_Column] = []

    def add(self, time: float, partitions: Mapping[int, int]) -> None:
        """Add the rows of the next commit, by partition."""
        self.rows += sum(partitions.values())
        if self._columns and self._columns[-1].commits < self._width:
            self._columns[-1].join(_Column(time, time, 1, Counter(partitions)))
        else:
            self._columns.append(_Column(time, time, 1, Counter(partitions)))
        if len(self._columns) >= MAX_COLUMNS and self._columns[-1].commits >= self._width:
            for earlier, later in zip(self._columns[::2], self._columns[1::2], strict=False):
                earlier.join(later)
            self._columns = self._columns[::2]
            self._width *= 2

    @property
    def commit_counts(self) -> list[int]:
        """How many commits each column has."""
        return [column.commits for column in self._columns]

    @property
    def times(self) -> list[tuple[float, float]]:
        return [(column.first_at, column.last_at) for column in self._columns]

    def by_partition(self) -> tuple[list[int], npt.NDArray[np.float64]]:
        """The partitions that have rows, and a table of their rows: partitions × columns. A sum may exceed an int64."""
        partitions = sorted({partition for column in self._columns for partition in column.rows})
        row_of_partition = {partition: row for row, partition in enumerate(partitions)}
        table = np.zeros((len(partitions), len(self._columns)), np.float64)
        for number, column in enumerate(self._columns):
            table[[row_of_partition[partition] for partition in column.rows], number] = list(column.rows.values())
        return partitions, table

    def skew(self) -> Skew | None:
        """None if no partition but 0 has a row, because there may be no other partition. sink/prometheus counts likewise."""
        numbers, table = self.by_partition()
        rows = table.sum(axis=1)
        highest = max((number for number, rows_written in zip(numbers, rows, strict=True) if rows_written), default=0)
        if not highest:
            return None
        fullest_row, partitions = int(rows.argmax()), highest + 1
        empty = partitions - int((rows > 0).sum())
        return Skew(numbers[fullest_row], float(rows[fullest_row] / rows.sum()), partitions, 1 / partitions, empty)

    def in_words(self) -> str:
        """How evenly the rows are spread, in one or two sentences."""
        skew = self.skew()
        if skew is None:
            return f"{count(self.rows, 'row')}, all in partition 0."
        empty = f" {count(skew.empty, 'partition')} got none." if skew.empty else ""
        if skew.factor < A_LITTLE_UNEVEN:
            return f"{several(self.rows, 'row')}, evenly spread over {count(skew.partitions, 'partition')}.{empty}"
        how = "A little uneven" if skew.factor < SKEWED else "Skewed"
        share = f"partition {skew.partition} got {percent(skew.share)} of {several(self.rows, 'row')}"
        return f"{how}: {share}, {skew.factor:.1f} times an even share.{empty}"
