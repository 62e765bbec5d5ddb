"""What is known about brokers and topics at one moment. A Cluster never changes; Metadata replaces it.

Any thread may read any Cluster without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
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


_NO_PARTITIONS: Mapping[int, PartitionInfo] = MappingProxyType({})


class Cluster:
    """An immutable picture of the cluster."""

    __slots__ = ("_available", "_nodes", "cluster_id", "is_bootstrap", "nodes", "topics")

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
        self.is_bootstrap = is_bootstrap  # the nodes are bootstrap.servers; no broker has answered yet
        self._nodes = {node.id: node for node in self.nodes}
        self.topics = MappingProxyType(dict(topics))  # every topic that an answer mentioned, even with an error
        self._available: dict[str, tuple[PartitionInfo, ...]] = {}  # filled on demand; filling twice gives the same

    def node(self, node_id: int) -> Node | None:
        return self._nodes.get(node_id)

    def _partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        found = self.topics.get(topic)
        return _NO_PARTITIONS if found is None else found.partitions

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        return self._partitions(topic_partition.topic).get(topic_partition.partition)

    def partition_count(self, topic: str) -> int | None:
        """None while the topic is unknown."""
        return len(self._partitions(topic)) or None

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Every partition of the topic, by number; empty while the topic is unknown."""
        return tuple(info for _, info in sorted(self._partitions(topic).items()))

    def available_partitions(self, topic: str) -> Sequence[PartitionInfo]:
        """The partitions that have a leader whose address is known, by number."""
        available = self._available.get(topic)
        if available is None:
            available = tuple(info for info in self.partitions_for(topic) if info.leader in self._nodes)
            self._available[topic] = available
        return available

    def leader_for(self, topic_partition: TopicPartition) -> int | None:
        """Node id of the leader; None when there is none, or its address is unknown, or the partition is unknown."""
        info = self.partition(topic_partition)
        return info.leader if info is not None and info.leader in self._nodes else None

    def leader_epoch(self, topic_partition: TopicPartition) -> int | None:
        info = self.partition(topic_partition)
        return None if info is None else info.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        """None when the topic is unknown or the brokers do not support topic ids."""
        found = self.topics.get(topic)
        return None if found is None else found.id

    def topic_error(self, topic: str) -> ErrorCode | None:
        """The error in the last answer about this topic."""
        found = self.topics.get(topic)
        return None if found is None else found.error

    def __repr__(self) -> str:
        nodes, topics = printable_list(self.nodes), printable_list(sorted(self.topics))
        return f"Cluster(id={printable(self.cluster_id)}, nodes=[{nodes}], topics=[{topics}])"
