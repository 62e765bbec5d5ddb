"""The pair that names a partition."""

from __future__ import annotations

from typing import NamedTuple

NO_PARTITION = -1  # in place of a partition: it is not given, not decided or not known


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
