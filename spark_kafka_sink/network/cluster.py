"""What is known about brokers and topics at one moment. A Cluster does not change; Metadata replaces it.

Any thread may read any Cluster without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from spark_kafka_sink.errors import printable, printable_list
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.topic_partition import TopicPartition


def address_text(host: str, port: int) -> str:
    """host:port, for logs and errors. Escaped, since a broker may name any text as a host."""
    return f"{printable(host)}:{port}"


class Node(NamedTuple):
    """A broker. Ids below zero are bootstrap servers, whose real id is not known yet."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.address} (id {self.id})"

    @property
    def address(self) -> str:
        """For logs and errors."""
        return address_text(self.host, self.port)


class PartitionInfo(NamedTuple):
    """A partition of a topic, with its leader and replicas."""

    topic: str
    partition: int
    leader: int | None  # a node id, perhaps of a node whose address is unknown; None while there is no leader
    leader_epoch: int | None
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class Topic(NamedTuple):
    """The partitions of one topic by index, as far as the brokers reported them."""

    id: UUID | None
    partitions: Mapping[int, PartitionInfo]
    error: ErrorCode | None = None
    is_internal: bool = False


_NO_TOPIC = Topic(None, MappingProxyType({}))
_UNCHANGED = Topic(None, MappingProxyType({}))  # compared by identity


class Topics(Mapping[str, Topic]):
    """Topics by name; immutable. `with_changes` returns another object, which shares the topics that stay.

    Most answers are about a few of thousands of topics, and copying all of them each time would take longer than everything else.
    So changes are kept apart, and merged when there are more of them than the square root of the number of topics.
    """

    __slots__ = ("_base", "_changes")

    def __init__(self, base: Mapping[str, Topic] = MappingProxyType({})) -> None:
        self._base = dict(base)
        self._changes: dict[str, Topic | None] = {}  # since the last merge; None: removed

    def with_changes(self, topics: dict[str, Topic], removed_names: Iterable[str] = ()) -> Topics:
        """A copy with `topics` added or replaced, and without those in `removed_names`."""
        changes = self._changes | dict.fromkeys(removed_names) | topics
        copy = Topics()
        if len(changes) ** 2 < len(self._base):
            copy._base, copy._changes = self._base, changes
            return copy
        copy._base = self._base | {name: topic for name, topic in changes.items() if topic is not None}
        for name in [name for name, topic in changes.items() if topic is None]:
            copy._base.pop(name, None)
        return copy

    def get(self, name: str, default: Any = None) -> Any:
        change = self._changes.get(name, _UNCHANGED)
        if change is _UNCHANGED:
            return self._base.get(name, default)
        return default if change is None else change

    def __getitem__(self, name: str) -> Topic:
        topic: Topic | None = self.get(name)
        if topic is None:
            raise KeyError(name)
        return topic

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._base if name not in self._changes)
        yield from (name for name, topic in self._changes.items() if topic is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Cluster:
    """An immutable snapshot of the cluster."""

    __slots__ = ("_available_partitions", "_nodes", "cluster_id", "is_bootstrap", "nodes", "topics")

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = (),
        topics: Mapping[str, Topic] = MappingProxyType({}),
        cluster_id: str | None = None,
        is_bootstrap: bool = False,
    ) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.cluster_id = cluster_id
        self.is_bootstrap = is_bootstrap  # the nodes are bootstrap.servers; no broker has answered since bootstrap()
        self._nodes = {node.id: node for node in self.nodes}
        # Includes the topics that the last answer reported with an error.
        self.topics = topics if isinstance(topics, Topics) else Topics(topics)
        self._available_partitions: dict[str, tuple[PartitionInfo, ...]] = {}  # filled on demand; two threads fill in the same

    def node(self, node_id: int) -> Node | None:
        return self._nodes.get(node_id)

    def _topic(self, name: str) -> Topic:
        topic: Topic = self.topics.get(name, _NO_TOPIC)
        return topic

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        return self._topic(topic_partition.topic).partitions.get(topic_partition.partition)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None while it is unknown."""
        return len(self._topic(topic).partitions) or None

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Every partition of the topic, sorted by number; empty while the topic is unknown."""
        return tuple(info for _, info in sorted(self._topic(topic).partitions.items()))

    def available_partitions(self, topic: str) -> Sequence[PartitionInfo]:
        """The partitions that have a leader whose address is known, sorted by number."""
        partitions = self._available_partitions.get(topic)
        if partitions is None:
            partitions = tuple(info for info in self.partitions_for(topic) if info.leader in self._nodes)
            self._available_partitions[topic] = partitions
        return partitions

    def leader_for(self, topic_partition: TopicPartition) -> int | None:
        """Node id of the leader; None when there is none, or its address is unknown, or the partition is unknown."""
        info = self.partition(topic_partition)
        return info.leader if info is not None and info.leader in self._nodes else None

    def leader_epoch(self, topic_partition: TopicPartition) -> int | None:
        info = self.partition(topic_partition)
        return None if info is None else info.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id; None when the topic is unknown or the brokers do not support topic ids."""
        return self._topic(topic).id

    def topic_error(self, topic: str) -> ErrorCode | None:
        """The topic's error in the last answer about it; None if there was none."""
        return self._topic(topic).error

    def __repr__(self) -> str:
        nodes, topics = printable_list(self.nodes), printable_list(sorted(self.topics))
        return f"Cluster(id={printable(self.cluster_id)}, nodes=[{nodes}], topics=[{topics}])"
