"""Chooses partitions for the rows that name none and have no key, and gives the sticky partitioner the queues' lengths.

The partitioners are in plugins/partitioner.py. This module keeps those of each topic, and knows the available partitions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.config.dotted_names import ROUND_ROBIN
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueues
from spark_kafka_sink.producer.accumulator.sorted_slice import LEAST_OVERHEAD
from spark_kafka_sink.producer.plugins.partitioner import RoundRobinPartitioner, StickyPartitioner

# What queue lengths depend on: the cluster, slow nodes, and two counters. Whenever a queue's length changes, one of them does.
LoadState: TypeAlias = tuple[Cluster, frozenset[int], int, int]


class TopicPartitioners:
    """One topic's partitioners."""

    def __init__(self, topic: str, queues: PartitionQueues, batch_size: int, random: Random) -> None:
        self._queues = queues.of_topic(topic)
        self.sticky = StickyPartitioner(batch_size, self._open_bytes, random)
        self.round_robin = RoundRobinPartitioner()
        self.load_state: LoadState | None = None  # Sender only: of the queue lengths that `sticky` has

    def _open_bytes(self, partition: int) -> int:
        queue = self._queues.get(partition)
        batch = queue.open_batch() if queue is not None else None
        return batch.record_bytes if batch is not None else 0


@dataclass(slots=True)
class NodeWait:
    """How long batches have been waiting for a node: for partitioner.availability.timeout.ms (KIP-794)."""

    ready_ms: int  # when there were batches for it last
    accepted_ms: int  # when it last accepted some


class BuiltInPartitioner:
    def __init__(self, config: ProducerConfig, queues: PartitionQueues, compressor: BatchCompressor, random: Random) -> None:
        self._config = config
        self._queues = queues
        self._compressor = compressor
        self._random = random
        self._topics: dict[str, TopicPartitioners] = {}
        self._node_waits: dict[int, NodeWait] = {}  # Sender only, and only with partitioner.availability.timeout.ms
        self._assigned: deque[str] = deque()  # topics for which callers have just chosen partitions; the Sender takes them out
        self._active: set[str] = set()  # Sender only: of those, the ones that have batches in their queues

    # CALLERS

    def of_topic(self, topic: str) -> TopicPartitioners:
        found = self._topics.get(topic)
        if found is None:  # of two threads that come here at the same time, setdefault gives both the same one
            made = TopicPartitioners(topic, self._queues, self._config.batch_size, self._random)
            found = self._topics.setdefault(topic, made)
        return found

    def assign(
        self,
        topic: str,
        row_bytes: npt.NDArray[np.int64],
        chosen: npt.NDArray[np.bool_],
        partitions: npt.NDArray[np.int32],
        cluster: Cluster,
    ) -> None:
        """Write a partition into `partitions` for each chosen row."""
        partitioners = self.of_topic(topic)
        available = self._available(topic, cluster)
        sizes = row_bytes[chosen] + LEAST_OVERHEAD
        if self._config.partitioner_adaptive_partitioning_enable:
            self._assigned.append(topic)
        if self._config.partitioner_class == ROUND_ROBIN:
            partitions[chosen] = partitioners.round_robin.assign(len(sizes), available)
        else:  # its quota is batch.size, which counts compressed bytes
            partitions[chosen] = partitioners.sticky.assign(self._compressor.compressed_sizes(topic, sizes), available)

    def _available(self, topic: str, cluster: Cluster) -> list[int]:
        """The partitions to choose from: those with a leader; if none has one, all of them.

        With partitioner.rack.aware only those whose leader is in our rack, if there are any.
        """
        infos = cluster.available_partitions(topic) or cluster.partitions_for(topic)
        if self._config.partitioner_rack_aware:
            near_nodes = {node.id for node in cluster.nodes if node.rack == self._config.client_rack}
            near = [info.partition for info in infos if info.leader in near_nodes]
            if near:
                return near
        return [info.partition for info in infos]

    # SENDER

    def update_load(self, cluster: Cluster, newest_flush_id: int) -> None:
        """Give the sticky partitioners the lengths of the queues, if they may have changed."""
        if not self._config.partitioner_adaptive_partitioning_enable:
            return
        while self._assigned:
            self._active.add(self._assigned.popleft())
        if not self._active:
            return
        slow_nodes = frozenset(node for node in self._node_waits if self._is_slow(node))
        state = (cluster, slow_nodes, newest_flush_id, self._queues.moves)
        for topic in list(self._active):  # and not all topics in each round: there may be thousands
            partitioners = self._topics[topic]
            if partitioners.sticky.in_use and partitioners.load_state != state:
                partitioners.load_state = state
                self._update_load_of(topic, partitioners.sticky, cluster, slow_nodes)
            if not any(queue.batches for queue in self._queues.of_topic(topic).values()):
                partitioners.sticky.update_load([], [], all_counted=True)
                self._active.discard(topic)

    def _update_load_of(self, topic: str, sticky: StickyPartitioner, cluster: Cluster, slow_nodes: frozenset[int]) -> None:
        queues = self._queues.of_topic(topic)
        partition_count = cluster.partition_count(topic) or 0
        available = self._available(topic, cluster)
        if not available or len(queues) < partition_count or not queues.keys() >= set(available):
            sticky.update_load([], [], all_counted=True)  # otherwise a partition without a queue would never be chosen
            return
        counted = [queues[partition] for partition in available]
        if slow_nodes:
            counted = [queue for queue in counted if cluster.leader_for(queue.topic_partition) not in slow_nodes] or counted
        lengths = [len(queue.batches) for queue in counted]
        partitions = [queue.topic_partition.partition for queue in counted]
        sticky.update_load(lengths, partitions, all_counted=len(counted) == len(queues))

    def node_looked_at(self, node: int, now_ms: int, takes_batches: bool) -> None:
        """The Sender has batches for this node, and has found that it accepts them now, or does not."""
        if self._config.partitioner_availability_timeout_ms > 0:
            wait = self._node_waits.setdefault(node, NodeWait(now_ms, now_ms))
            wait.ready_ms = now_ms
            if takes_batches:
                wait.accepted_ms = now_ms

    def _is_slow(self, node: int) -> bool:
        wait = self._node_waits[node]
        return wait.ready_ms - wait.accepted_ms > self._config.partitioner_availability_timeout_ms
