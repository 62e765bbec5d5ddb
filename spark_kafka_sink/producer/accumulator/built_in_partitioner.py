"""Kafka's own choice of partitions, for rows that name none and for which a user's partitioner chose none.

A key's hash chooses among all partitions, also those without a leader, so that a key keeps its partition. Rows without a key go
to the sticky partitioner (KIP-794), which uses their sizes and the lengths of queues that the Sender reports. Rows with a key go
there too with partitioner.ignore.keys, or if a user's partitioner has chosen no partition for them. If partitioner.class names
Kafka's RoundRobinPartitioner, the class of this name below gets all rows that name no partition.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
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
from spark_kafka_sink.producer.accumulator.sorted_slice import MIN_OVERHEAD_BYTES
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import NULL_LENGTH
from spark_kafka_sink.records.murmur2 import partition_for_keys

# All that queue lengths depend on: the cluster, the slow nodes, and two counters. While these stay equal, the lengths do too.
QueueState: TypeAlias = tuple[Cluster, frozenset[int], int, int]


class StickyPartitioner:
    """Spreads rows without a key: sends them to one partition until that is a full batch, then switches to a random partition.

    It switches where a batch ends. If the partition's open batch is partly filled already, the partition gets rows until the
    next batch is full too: at most twice the batch size. This avoids what KIP-794 calls fractional batches.
    Once queue lengths are known, partitions with shorter queues are chosen more often.
    """

    def __init__(self, batch_size: int, open_bytes: Callable[[int], int], random: Random) -> None:
        self._batch_size = batch_size  # bytes that a partition gets before the switch
        self._open_bytes = open_bytes  # how many bytes of a partition's open batch are filled
        self._random = random
        self.is_in_use = False  # set by the first row without a key: before that, queue lengths are not needed
        # Guards _partition, _produced_bytes and _quota_bytes; held while assigning, never while waiting.
        self._lock = threading.Lock()
        self._partition = NO_PARTITION
        self._produced_bytes = 0
        self._quota_bytes = 0
        # Cumulative weights, and the partitions they belong to. The Sender replaces the tuple as a whole.
        self._weights: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None

    def assign(self, row_bytes: npt.NDArray[np.int64], available_partitions: Sequence[int]) -> npt.NDArray[np.int32]:
        """int32[n]: the partition of each row, in order. `row_bytes`: int64[n]. At least one partition must be available."""
        self.is_in_use = True
        cumulative_bytes = np.cumsum(row_bytes)
        partitions = np.empty(len(row_bytes), np.int32)
        with self._lock:
            if self._partition not in available_partitions:
                self._switch(available_partitions)
            start, bytes_before = 0, 0
            while start < len(partitions):
                stop = int(np.searchsorted(cumulative_bytes, bytes_before + self._quota_bytes - self._produced_bytes)) + 1
                stop = min(stop, len(partitions))
                partitions[start:stop] = self._partition
                self._produced_bytes += int(cumulative_bytes[stop - 1]) - bytes_before
                start, bytes_before = stop, int(cumulative_bytes[stop - 1])
                if self._produced_bytes >= self._quota_bytes:
                    self._switch(available_partitions)
        return partitions

    def _switch(self, available_partitions: Sequence[int]) -> None:
        self._partition = self._next_partition(available_partitions)
        self._produced_bytes = 0
        filled_bytes = min(self._open_bytes(self._partition), self._batch_size)
        self._quota_bytes = self._batch_size if filled_bytes == 0 else 2 * self._batch_size - filled_bytes

    def _next_partition(self, available_partitions: Sequence[int]) -> int:
        weights = self._weights
        if weights is None:
            return available_partitions[self._random.randrange(len(available_partitions))]
        cumulative_weights, partitions = weights
        random_weight = self._random.randrange(int(cumulative_weights[-1]))
        return int(partitions[np.searchsorted(cumulative_weights, random_weight, side="right")])

    def update_queue_lengths(self, queue_lengths: Sequence[int], partitions: Sequence[int], is_complete: bool) -> None:
        """Use these queue lengths from now on: a partition's weight is the longest length + 1 - its own.

        `is_complete` is false when partitions were left out: slow ones, those without a leader, or those outside of the rack.
        Then equal lengths are used too, because they exclude these partitions.
        """
        lengths = np.asarray(queue_lengths, np.int64)
        if len(lengths) == 0 or (is_complete and (len(lengths) < 2 or (lengths == lengths[0]).all())):
            self._weights = None
        else:
            self._weights = (np.cumsum(lengths.max() + 1 - lengths), np.asarray(partitions, np.int32))


class RoundRobinPartitioner:
    """Assigns rows to the available partitions in turn, whatever their keys. Kafka's class of this name. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the counter
        self._next_turn = 0

    def assign(self, row_count: int, available_partitions: Sequence[int]) -> npt.NDArray[np.int32]:
        """int32[row_count]: the partition of each row. The next call goes on where this one ends."""
        with self._lock:
            turns = np.arange(self._next_turn, self._next_turn + row_count) % len(available_partitions)
            self._next_turn = (self._next_turn + row_count) % len(available_partitions)
        return np.asarray(available_partitions, np.int32)[turns]


class TopicPartitioners:
    """The partitioners of one topic, and the state from which the queue lengths in use were computed."""

    def __init__(self, topic: str, queues: PartitionQueues, batch_size: int, random: Random) -> None:
        self._queues = queues.of_topic(topic)
        self.sticky = StickyPartitioner(batch_size, self._open_bytes, random)
        self.round_robin = RoundRobinPartitioner()
        self.queue_state: QueueState | None = None  # Sender only: of the queue lengths that `sticky` uses

    def _open_bytes(self, partition: int) -> int:
        queue = self._queues.get(partition)
        batch = queue.open_batch() if queue is not None else None
        return batch.record_bytes if batch is not None else 0


@dataclass(slots=True)
class NodeWait:
    """How long batches have been waiting for a node: for partitioner.availability.timeout.ms (KIP-794)."""

    last_needed_ms: int  # when the Sender last had batches for the node
    last_accepted_ms: int  # when the node last could take batches


class BuiltInPartitioner:
    """Chooses partitions for the rows of one producer: by key, or by the topic's sticky or round-robin partitioner."""

    def __init__(self, config: ProducerConfig, queues: PartitionQueues, compressor: BatchCompressor, random: Random) -> None:
        self._config = config
        self._uses_keys = not config.partitioner_ignore_keys and config.partitioner_class is None
        self._queues = queues
        self._compressor = compressor
        self._random = random
        self._topics: dict[str, TopicPartitioners] = {}
        self._node_waits: dict[int, NodeWait] = {}  # Sender only, and only with partitioner.availability.timeout.ms
        self._new_topics: deque[str] = deque()  # topics for which callers have just chosen partitions; the Sender takes them out
        self._active_topics: set[str] = set()  # Sender only: topics that were taken out and still have batches in their queues

    # CALLERS

    def choose(self, rows: TopicRows, cluster: Cluster) -> npt.NDArray[np.int32]:
        """The partition of each row. With partitioner.class or partitioner.ignore.keys, keys do not count."""
        partitions = rows.partitions.copy()
        is_undecided = partitions == NO_PARTITION
        columns = rows.columns
        if self._uses_keys and columns.key is not None and is_undecided.any():
            partitions_by_key = partition_for_keys(columns.key, cluster.partition_count(rows.topic) or 1)
            if columns.key.null_count == 0 and is_undecided.all():
                return partitions_by_key
            has_key = is_undecided & (columns.key_lengths != NULL_LENGTH)
            np.copyto(partitions, partitions_by_key, where=has_key)
            is_undecided &= ~has_key
        if is_undecided.any():
            partitions[is_undecided] = self._spread(rows.topic, columns.base_bytes[is_undecided] + MIN_OVERHEAD_BYTES, cluster)
        return partitions

    def _spread(self, topic: str, row_bytes: npt.NDArray[np.int64], cluster: Cluster) -> npt.NDArray[np.int32]:
        """Partitions for rows of these sizes, from the sticky partitioner or RoundRobinPartitioner."""
        partitioners = self.of_topic(topic)
        available_partitions = self._available_partitions(topic, cluster)
        if self._config.partitioner_adaptive_partitioning_enable and len(available_partitions) > 1:
            self._new_topics.append(topic)
        if self._config.partitioner_class == ROUND_ROBIN:
            return partitioners.round_robin.assign(len(row_bytes), available_partitions)
        # The sticky partitioner switches after batch.size, which counts compressed bytes.
        return partitioners.sticky.assign(self._compressor.compressed_sizes(topic, row_bytes), available_partitions)

    def of_topic(self, topic: str) -> TopicPartitioners:
        """The partitioners of a topic; makes them if they do not exist yet. Any thread."""
        partitioners = self._topics.get(topic)
        if partitioners is None:  # of two threads that come here at the same time, setdefault gives both the same one
            new_partitioners = TopicPartitioners(topic, self._queues, self._config.batch_size, self._random)
            partitioners = self._topics.setdefault(topic, new_partitioners)
        return partitioners

    def _available_partitions(self, topic: str, cluster: Cluster) -> list[int]:
        """The partitions to choose from: those with a leader; if none has one, all of them.

        With partitioner.rack.aware, only partitions whose leader is in client.rack, if there are any.
        """
        infos = cluster.available_partitions(topic) or cluster.partitions_for(topic)
        if self._config.partitioner_rack_aware:
            near_nodes = {node.id for node in cluster.nodes if node.rack == self._config.client_rack}
            near_partitions = [info.partition for info in infos if info.leader in near_nodes]
            if near_partitions:
                return near_partitions
        return [info.partition for info in infos]

    # SENDER

    def update_queue_lengths(self, cluster: Cluster, newest_flush_id: int) -> None:
        """Give the sticky partitioners the lengths of the queues, if they may have changed."""
        if not self._config.partitioner_adaptive_partitioning_enable:
            return
        while self._new_topics:
            self._active_topics.add(self._new_topics.popleft())
        if not self._active_topics:
            return
        slow_nodes = frozenset(node for node in self._node_waits if self._is_slow(node))
        state = (cluster, slow_nodes, newest_flush_id, self._queues.move_count)
        for topic in list(self._active_topics):  # not all topics in each round, because there may be thousands
            partitioners = self._topics[topic]
            if partitioners.sticky.is_in_use and partitioners.queue_state != state:
                partitioners.queue_state = state
                self._update_lengths_of(topic, partitioners.sticky, cluster, slow_nodes)
            queues = list(self._queues.of_topic(topic).values())  # callers may add some meanwhile
            if not any(queue.batches for queue in queues):
                partitioners.sticky.update_queue_lengths([], [], is_complete=True)
                self._active_topics.discard(topic)

    def _update_lengths_of(self, topic: str, sticky: StickyPartitioner, cluster: Cluster, slow_nodes: frozenset[int]) -> None:
        queues = self._queues.of_topic(topic)
        partition_count = cluster.partition_count(topic) or 0
        available_partitions = self._available_partitions(topic, cluster)
        if not available_partitions or len(queues) < partition_count or not queues.keys() >= set(available_partitions):
            sticky.update_queue_lengths([], [], is_complete=True)  # otherwise a partition without a queue would never be chosen
            return
        candidates = [queues[partition] for partition in available_partitions]
        if slow_nodes:
            candidates = [each for each in candidates if cluster.leader_for(each.topic_partition) not in slow_nodes] or candidates
        lengths = [len(queue.batches) for queue in candidates]
        partitions = [queue.topic_partition.partition for queue in candidates]
        sticky.update_queue_lengths(lengths, partitions, is_complete=len(candidates) == len(queues))

    def update_node_wait(self, node: int, now_ms: int, can_drain: bool) -> None:
        """Note that the Sender has batches for this node now, and whether the node accepts them."""
        if self._config.partitioner_availability_timeout_ms > 0:
            wait = self._node_waits.setdefault(node, NodeWait(now_ms, now_ms))
            wait.last_needed_ms = now_ms
            if can_drain:
                wait.last_accepted_ms = now_ms

    def _is_slow(self, node: int) -> bool:
        wait = self._node_waits[node]
        return wait.last_needed_ms - wait.last_accepted_ms > self._config.partitioner_availability_timeout_ms
