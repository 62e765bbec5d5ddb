"""The rows of a topic by partition and time. When there are MAX_COLUMNS columns, adjacent ones are joined, as in series.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.tools.words import counted, percent, several

MAX_COLUMNS = 48
MIN_SKEW_FACTOR = 2.5  # times an even share: from there on, a topic is skewed
MIN_UNEVEN_FACTOR = 1.5  # times an even share: from there on, a topic is a little uneven


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly the rows are spread over the partitions of a topic, those without a row included.

    Args:
        partition: the one with the most rows.
        share: its part of all rows.
        even_share: what its part would be if all partitions had as many rows.
        empty_count: how many partitions have no row, up to the highest partition with one.
    """

    partition: int
    share: float
    partition_count: int
    even_share: float
    empty_count: int

    @property
    def factor(self) -> float:
        return self.share / self.even_share


@dataclass(slots=True)
class _Column:
    """The rows of one commit, or of several consecutive ones."""

    first_at_s: float  # when the first commit was, in seconds since 1970
    last_at_s: float
    commit_count: int
    rows: Counter[int]  # by partition

    def add(self, later: _Column) -> None:
        self.last_at_s = later.last_at_s
        self.commit_count += later.commit_count
        self.rows.update(later.rows)


class HeatMap:
    """The rows of one topic, counted by partition and time. `rows`: how many there are in all."""

    def __init__(self) -> None:
        self.rows = 0
        self._commits_per_column = 1  # the last column may have fewer
        self._columns: list[_Column] = []

    def add(self, time_s: float, partitions: Mapping[int, int]) -> None:
        """Add the rows of the next commit, by partition."""
        self.rows += sum(partitions.values())
        if self._columns and self._columns[-1].commit_count < self._commits_per_column:
            self._columns[-1].add(_Column(time_s, time_s, 1, Counter(partitions)))
        else:
            self._columns.append(_Column(time_s, time_s, 1, Counter(partitions)))
        if len(self._columns) >= MAX_COLUMNS and self._columns[-1].commit_count >= self._commits_per_column:
            for earlier, later in zip(self._columns[::2], self._columns[1::2], strict=False):
                earlier.add(later)
            self._columns = self._columns[::2]
            self._commits_per_column *= 2

    @property
    def commit_counts(self) -> list[int]:
        """How many commits each column has."""
        return [column.commit_count for column in self._columns]

    @property
    def times_s(self) -> list[tuple[float, float]]:
        """When the first and the last commit of each column were."""
        return [(column.first_at_s, column.last_at_s) for column in self._columns]

    def by_partition(self) -> tuple[list[int], npt.NDArray[np.float64]]:
        """The partitions that have rows, and how many: a table of partitions × columns. A sum may exceed an int64."""
        partitions = sorted({partition for column in self._columns for partition in column.rows})
        row_of_partition = {partition: row for row, partition in enumerate(partitions)}
        table = np.zeros((len(partitions), len(self._columns)), np.float64)
        for number, column in enumerate(self._columns):
            table[[row_of_partition[partition] for partition in column.rows], number] = list(column.rows.values())
        return partitions, table

    def skew(self) -> Skew | None:
        """None if only partition 0 has rows, because there may be no other partition. sink/prometheus counts likewise."""
        partitions, table = self.by_partition()
        rows = table.sum(axis=1)
        highest = max((partition for partition, row_count in zip(partitions, rows, strict=True) if row_count), default=0)
        if not highest:
            return None
        fullest_row, partition_count = int(rows.argmax()), highest + 1
        empty_count = partition_count - int((rows > 0).sum())
        share = float(rows[fullest_row] / rows.sum())
        return Skew(partitions[fullest_row], share, partition_count, 1 / partition_count, empty_count)

    def in_words(self) -> str:
        """How evenly the rows are spread, in one or two sentences."""
        skew = self.skew()
        if skew is None:
            return f"{counted(self.rows, 'row')}, all in partition 0."
        empty = f" {counted(skew.empty_count, 'partition')} got none." if skew.empty_count else ""
        if skew.factor < MIN_UNEVEN_FACTOR:
            return f"{several(self.rows, 'row')}, evenly spread over {counted(skew.partition_count, 'partition')}.{empty}"
        how = "A little uneven" if skew.factor < MIN_SKEW_FACTOR else "Skewed"
        share = f"partition {skew.partition} got {percent(skew.share)} of {several(self.rows, 'row')}"
        return f"{how}: {share}, {skew.factor:.1f} times an even share.{empty}"
