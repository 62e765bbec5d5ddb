"""The pair that names a partition."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

NO_PARTITION = -1  # in place of a partition: it is not given, not decided or not known


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """The partitions of each topic, as most requests name them; topics and partitions are sorted."""
    return {topic: list(own_partitions) for topic, own_partitions in groupby(sorted(partitions), attrgetter("topic"))}
