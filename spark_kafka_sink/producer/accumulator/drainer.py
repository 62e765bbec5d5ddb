"""Decides which batches are sent now, and takes them from their queues. Sender thread only; never waits and never sends."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch

logger = logging.getLogger(__name__)

_INDEX = attrgetter("index")


@dataclass(slots=True)
class ReadyCheckResult:
    """The nodes that have batches to send now, and when to look again."""

    ready_nodes: set[int] = field(default_factory=set)
    next_ready_check_delay_ms: int = NEVER_MS
    unknown_leader_topics: set[str] = field(default_factory=set)
    # By leader: which queues have batches, as ascending indexes into PartitionQueues.
    indexes_by_leader: dict[int, list[int]] = field(default_factory=dict)


class DrainSequencer:
    """What Drainer needs of a Sequencer. Producers without idempotence use this class: no batch waits or gets a sequence."""

    @property
    def has_producer_id(self) -> bool:
        """Whether the producer has an id, or needs none. If not, no batch can be drained."""
        return True

    def must_stop_draining(self, first: ProducerBatch) -> bool:  # noqa: ARG002
        """Whether the batch at the head of a queue must wait: for other batches of its partition, or for the transaction.

        If the transaction does not have the partition yet, this call also asks for the partition to be added.
        """
        return False

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Assign a batch its sequence at its first drain, and track the batch. A batch that has a sequence keeps it."""


@dataclass(eq=False, repr=False)
class Drainer:
    """Finds the nodes that batches can be sent to, and takes the next batch of each partition for them."""

    linger_ms: int
    queues: PartitionQueues
    sequencer: DrainSequencer
    compressor: BatchCompressor  # for batches that no caller has compressed

    def __post_init__(self) -> None:
        self._last_drained_indexes: dict[int, int] = {}  # node -> index of the queue whose batch was taken last
        self._by_leader: dict[int | None, list[PartitionQueue]] = {}  # queues with batches in the last round or since
        self._cluster_of_leaders: Cluster | None = None

    # READY

    def ready(self, cluster: Cluster, now_ms: int, must_hurry: bool) -> ReadyCheckResult:
        """Which nodes have a batch to send: one that is full, has lingered, or is wanted at once.

        A batch does not count while a caller writes into it, while it backs off, while its queue is muted, or if it must wait.
        """
        result = ReadyCheckResult()
        for leader, queues in self._queues_by_leader(cluster).items():
            queues_with_batches = [queue for queue in queues if queue.batches]
            if len(queues_with_batches) < len(queues):
                queues[:] = [queue for queue in queues if not queue.unwatch_if_empty()]
            if leader is None:
                result.unknown_leader_topics |= {queue.topic_partition.topic for queue in queues_with_batches}
            elif queues_with_batches:
                result.indexes_by_leader[leader] = [queue.index for queue in queues_with_batches]
                ready_in_ms = self._least_ready_in_ms(queues_with_batches, cluster, now_ms, must_hurry)
                if ready_in_ms <= 0:
                    result.ready_nodes.add(leader)
                else:
                    result.next_ready_check_delay_ms = min(result.next_ready_check_delay_ms, ready_in_ms)
        return result

    def _queues_by_leader(self, cluster: Cluster) -> dict[int | None, list[PartitionQueue]]:
        """The queues that may have batches, in the order of their indexes."""
        if cluster is not self._cluster_of_leaders:
            by_leader: dict[int | None, list[PartitionQueue]] = {}
            for queue in chain.from_iterable(self._by_leader.values()):
                _add_to_leader(by_leader, queue, cluster)
            self._by_leader, self._cluster_of_leaders = by_leader, cluster
        filled_queues = self.queues.filled_queues
        while filled_queues:
            _add_to_leader(self._by_leader, filled_queues[0], cluster)
            filled_queues.popleft()
        return self._by_leader

    def _least_ready_in_ms(self, queues: Sequence[PartitionQueue], cluster: Cluster, now_ms: int, must_hurry: bool) -> int:
        """How long until the first of these queues has a batch to send. 0 or less: one of them has a batch now."""
        least_ms = NEVER_MS
        for queue in queues:
            ready_in_ms = queue.lingers_until_ms - now_ms  # the first look is without the lock: most batches linger
            if ready_in_ms <= 0 or must_hurry:
                ready_in_ms = self._ready_in_ms(queue, cluster, now_ms, must_hurry)
            if ready_in_ms <= 0:
                return 0
            least_ms = min(least_ms, ready_in_ms)
        return least_ms

    def _ready_in_ms(self, queue: PartitionQueue, cluster: Cluster, now_ms: int, must_hurry: bool) -> int:
        """How long until the queue's first batch is to be sent; NEVER_MS: some event will wake the Sender."""
        if queue.is_muted:
            return NEVER_MS
        with queue.lock:
            if not queue.batches:
                return NEVER_MS
            batch = queue.batches[0]
            if batch.reservation_count:
                batch.must_wake_sender = True
                return NEVER_MS
            is_full = len(queue.batches) > 1 or batch.is_full()
            if not is_full and not batch.is_in_retry:
                queue.lingers_until_ms = now_ms + self.linger_ms - batch.waited_ms(now_ms)
        if self._waits_for_a_response(batch):
            return NEVER_MS  # a response wakes the Sender
        batch.maybe_update_leader_epoch(cluster.leader_epoch(queue.topic_partition))
        backoff_ms = batch.remaining_backoff_ms(now_ms)
        if backoff_ms > 0 or is_full or must_hurry:
            return backoff_ms
        return self.linger_ms - batch.waited_ms(now_ms)

    def _waits_for_a_response(self, batch: ProducerBatch) -> bool:
        """Whether the batch must wait for the response to another batch of its partition, or for the transaction.

        Returns false while there is no producer id. So the nodes of batches count as ready, and the Sender connects to them.
        """
        return self.sequencer.has_producer_id and self.sequencer.must_stop_draining(batch)

    # DRAIN

    def drain(
        self, cluster: Cluster, nodes: Iterable[int], max_bytes: int, now_ms: int, indexes_by_leader: Mapping[int, Sequence[int]]
    ) -> dict[int, list[ProducerBatch]]:
        """Take one batch of each partition that these nodes lead, up to `max_bytes` bytes per node (one batch always fits).

        `indexes_by_leader` is what `ready` found in this round for the same cluster. If this raises, the batches are put back.
        """
        batches_by_node: dict[int, list[ProducerBatch]] = {}
        try:
            for node in nodes:
                batches_by_node[node] = []
                self._drain_node(cluster, node, indexes_by_leader.get(node, ()), max_bytes, now_ms, batches_by_node[node])
        except BaseException:
            for batch in chain.from_iterable(batches_by_node.values()):
                self.queues.put_back(batch)
            raise
        return batches_by_node

    def _drain_node(
        self, cluster: Cluster, node: int, indexes: Sequence[int], max_bytes: int, now_ms: int, batches: list[ProducerBatch]
    ) -> None:
        """Add each batch to `batches` as it is taken: if this raises, the caller puts them back."""
        drained_bytes = 0
        for index in self._indexes_in_turn(node, indexes):
            queue = self.queues[index]
            if not queue.batches or queue.is_muted:
                continue
            with queue.lock:
                batch = self._head_to_drain_locked(queue, cluster, now_ms)
                if batch is None:
                    continue
                if batches and drained_bytes + self.compressor.estimated_size(batch) > max_bytes:
                    break
                batches.append(batch)  # before it leaves its queue: if anything below raises, it is put back
                queue.take_first_locked()
            self.queues.move_count += 1
            self._last_drained_indexes[node] = index
            if not self._finish_or_poison(batch):
                self.queues.put_back(batch)
                batches.pop()
                self.queues.oldest.note_poisoned()
                continue
            self.sequencer.assign_sequence(batch)
            drained_bytes += batch.size_bytes
            batch.drained_ms = now_ms

    def _indexes_in_turn(self, node: int, indexes: Sequence[int]) -> Iterator[int]:
        """The queues of a node, starting after the one that was drained last: none starves if a request is too small for all."""
        start = bisect_right(indexes, self._last_drained_indexes.get(node, -1))
        return chain(indexes[start:], indexes[:start])

    def _head_to_drain_locked(self, queue: PartitionQueue, cluster: Cluster, now_ms: int) -> ProducerBatch | None:
        if not queue.batches:
            return None
        head = queue.batches[0]
        if head.reservation_count:
            head.must_wake_sender = True
            return None
        head.maybe_update_leader_epoch(cluster.leader_epoch(queue.topic_partition))
        must_wait = head.poison is not None or head.remaining_backoff_ms(now_ms) > 0 or self.sequencer.must_stop_draining(head)
        return None if must_wait else head

    def _finish_or_poison(self, batch: ProducerBatch) -> bool:
        """Compress a batch that was taken. If that fails, the batch is poisoned: it goes back, and `take_expired` removes it."""
        try:
            self.compressor.finish(batch)
        except Exception as error:
            logger.exception("! %s cannot be compressed", batch)
            batch.poison = KafkaError(
                f"{batch.topic_partition}: {batch.record_count} record(s) cannot be compressed with"
                f" {self.compressor.compression.codec}: {error!r}",
                condition="KAFKA_INTERNAL_ERROR",
            )
            return False
        return True


def _add_to_leader(by_leader: dict[int | None, list[PartitionQueue]], queue: PartitionQueue, cluster: Cluster) -> None:
    """Add a queue to those of its leader. Does nothing if it is there."""
    queues = by_leader.setdefault(cluster.leader_for(queue.topic_partition), [])
    position = bisect_left(queues, queue.index, key=_INDEX)
    if position == len(queues) or queues[position] is not queue:
        queues.insert(position, queue)
