"""The queue of batches of one topic-partition, and the queues of all of them.

Callers append batches at the tail of a queue, the Sender drains them from its head. drainer.py decides when.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from spark_kafka_sink.clock import LONG_AGO_MS, NEVER_MS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_FLUSH_ID = attrgetter("flush_id")

MAX_EXPECTED_TOPICS = 1_000  # of one producer; more are probably a mistake


class PartitionQueue:
    """The batches of one topic-partition, oldest first."""

    __slots__ = ("_filled_queues", "_is_watched", "batches", "index", "is_muted", "lingers_until_ms", "lock", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, index: int, filled_queues: deque[PartitionQueue]) -> None:
        self.topic_partition = topic_partition
        self.index = index  # in PartitionQueues
        self._filled_queues = filled_queues  # tells the Sender that the queue has batches
        self.is_muted = False  # Sender only: while a batch is in flight, if max.in.flight.requests.per.connection is 1
        # Guards _is_watched, batches and lingers_until_ms, and the fields of its batches that ProducerBatch lists.
        self.lock = threading.Lock()
        self._is_watched = False  # the Sender looks for batches here, or will: see PartitionQueues.filled_queues
        self.batches: deque[ProducerBatch] = deque()
        # The Sender need not look at the batches before this time, unless nothing may linger. It is set only while the queue
        # holds a single batch, which is neither full nor retried. Each method that changes this resets it to LONG_AGO_MS.
        self.lingers_until_ms = LONG_AGO_MS

    # CALLERS

    def open_batch(self) -> ProducerBatch | None:
        """The batch at the tail if it takes more rows. Read without the lock it is a guess, which a reservation verifies."""
        if not self.batches:
            return None
        try:
            tail = self.batches[-1]
        except IndexError:  # the Sender drained it just now
            return None
        return None if tail.is_closed or tail.has_sequence else tail

    def append_locked(self, batch: ProducerBatch) -> None:
        """Add a new batch at the tail. A second call with the same batch does nothing."""
        self._watch_locked()
        if not self.batches or self.batches[-1] is not batch:
            self.batches.append(batch)
        self.lingers_until_ms = LONG_AGO_MS

    def _watch_locked(self) -> None:
        """Make the Sender look at this queue. To be called before a batch is added."""
        if not self._is_watched:
            self._is_watched = True
            self._filled_queues.append(self)

    def close_locked(self, batch: ProducerBatch) -> None:
        """Make a batch take no more rows."""
        batch.is_closed = True
        self.lingers_until_ms = LONG_AGO_MS

    # SENDER

    def unwatch_if_empty(self) -> bool:
        """Return whether there are no batches. The Sender then need not look here until the queue is in `filled_queues` again."""
        with self.lock:
            self._is_watched = bool(self.batches)
            return not self._is_watched

    def holds(self, batch: ProducerBatch) -> bool:
        with self.lock:
            return batch in self.batches

    def has_batches(self) -> bool:
        """Whether there are batches. Takes the lock, so it sees every append that was checked before the accumulator closed."""
        with self.lock:
            return bool(self.batches)

    def put_back(self, batch: ProducerBatch) -> None:
        """Put a batch back at the head of the queue, but behind batches with lower sequences. Does nothing if it is there."""
        with self.lock:
            if batch in self.batches:
                return
            self._watch_locked()
            position = 0
            # Only batches that were drained before have a sequence, and they are at the head of the queue.
            while position < len(self.batches) and self.batches[position].has_sequence:
                distance = (batch.base_sequence - self.batches[position].base_sequence) & MAX_SEQUENCE
                if distance > MAX_SEQUENCE // 2:  # sequences wrap around: more than half of their range ahead means behind
                    break
                position += 1
            self.batches.insert(position, batch)
            self.lingers_until_ms = LONG_AGO_MS

    def take_first_locked(self) -> None:
        """Remove and close the batch at the head. The caller holds the lock."""
        self.close_locked(self.batches.popleft())

    def take_expired(self, delivery_timeout_ms: int, now_ms: int, oldest: OldestBatch) -> list[ProducerBatch]:
        """Remove and return the batches that are older than delivery.timeout.ms, or poisoned. Tell `oldest` of those that stay.

        An old batch may be behind younger ones, because retries without sequences change the order. A batch that a caller still
        writes into stays; that caller wakes the Sender when it has finished.
        """
        expired_batches: list[ProducerBatch] = []
        remaining_batches: deque[ProducerBatch] = deque()
        with self.lock:
            for batch in self.batches:
                must_go = batch.poison is not None or batch.has_reached_delivery_timeout(delivery_timeout_ms, now_ms)
                if must_go and not batch.reservation_count:
                    self.close_locked(batch)
                    expired_batches.append(batch)
                    continue
                batch.must_wake_sender |= must_go
                remaining_batches.append(batch)
                oldest.note_queued(batch.created_ms)
                if batch.poison is not None:
                    oldest.note_poisoned()
            if expired_batches:
                self.batches = remaining_batches
        return expired_batches

    def take_batches(self, error: KafkaError, *, undrained_only: bool = False) -> list[ProducerBatch]:
        """Remove and return all batches, or only those that were never drained. The code that calls this must fail them.

        A batch that somebody still writes into stays, poisoned with `error`: `take_expired` removes it later, when its memory can
        be freed.
        """
        taken_batches: list[ProducerBatch] = []
        remaining_batches: deque[ProducerBatch] = deque()
        with self.lock:
            for batch in self.batches:
                if undrained_only and batch.was_drained:
                    remaining_batches.append(batch)
                    continue
                self.close_locked(batch)
                if batch.reservation_count:
                    batch.poison = batch.poison or error
                    batch.must_wake_sender = True
                    remaining_batches.append(batch)
                else:
                    taken_batches.append(batch)
            self.batches = remaining_batches
        return taken_batches

    def clear(self) -> None:
        with self.lock:
            self.batches.clear()


class OldestBatch:
    """Tells the Sender whether a queued batch may have expired or be poisoned, to spare it looking into each queue. The values
    are bounds: they stay when batches leave their queues, until the Sender looks through all queues again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes of created_ms and may_have_poisoned, which are read without it
        self.created_ms = NEVER_MS  # the oldest queued batch was created then, or later
        self.may_have_poisoned = False

    def note_queued(self, created_ms: int) -> None:
        """Note that a batch is in a queue. Any thread."""
        if created_ms < self.created_ms:
            with self._lock:
                self.created_ms = min(self.created_ms, created_ms)

    def note_poisoned(self) -> None:
        """Note that a batch in a queue is poisoned. Any thread."""
        with self._lock:
            self.may_have_poisoned = True

    def reset_bounds(self) -> None:
        """Forget the bounds: the Sender looks through all queues now, and notes the batches that stay by the methods above."""
        with self._lock:
            self.created_ms, self.may_have_poisoned = NEVER_MS, False


class PartitionQueues:
    """The queues of all topic-partitions that were written to. Queues are added and never removed."""

    def __init__(self) -> None:
        self.move_count = 0  # Sender only: counts batches that were removed from a queue or put back into one
        self.oldest = OldestBatch()
        # Queues that got their first batch; the Sender takes them out. So `Drainer.ready` looks at no empty queues.
        self.filled_queues: deque[PartitionQueue] = deque()
        self._lock = threading.Lock()  # held to add to _by_topic and _in_order, which are read without it
        self._by_topic: dict[str, dict[int, PartitionQueue]] = {}
        self._in_order: list[PartitionQueue] = []  # in the order in which they were made

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._in_order)

    def __getitem__(self, index: int) -> PartitionQueue:
        """Return a queue by the order in which the queues were made."""
        return self._in_order[index]

    def of_topic(self, topic: str) -> dict[int, PartitionQueue]:
        """The topic's queues by partition."""
        queues = self._by_topic.get(topic)
        if queues is None:
            with self._lock:
                count_before = len(self._by_topic)
                queues = self._by_topic.setdefault(topic, {})
                has_just_become_many = count_before < len(self._by_topic) == MAX_EXPECTED_TOPICS
            if has_just_become_many:
                logger.warning(
                    "! rows for %d topics so far, the last is %s: each topic costs time, and some 10 KB of memory that"
                    " buffer.memory does not limit. Does the topic column hold topics?",
                    MAX_EXPECTED_TOPICS,
                    topic,
                )
        return queues

    def of_partition(self, topic_partition: TopicPartition) -> PartitionQueue:
        return self.of_partitions(topic_partition.topic, [topic_partition.partition])[0]

    def of_partitions(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]:
        """A queue for each partition; makes those that do not exist yet."""
        by_partition = self.of_topic(topic)
        return [by_partition.get(partition) or self._make(by_partition, topic, partition) for partition in partitions]

    def take_batches(
        self, error: KafkaError, must_take: Callable[[PartitionQueue], bool] = lambda _: True, *, undrained_only: bool = False
    ) -> list[ProducerBatch]:
        """Call `take_batches` of each queue for which `must_take` returns true, as `take_from_each` does. Sender only."""
        batches = self.take_from_each(
            lambda queue: queue.take_batches(error, undrained_only=undrained_only) if must_take(queue) else []
        )
        self.oldest.note_poisoned()
        return batches

    def take_from_each(self, take: Callable[[PartitionQueue], list[ProducerBatch]]) -> list[ProducerBatch]:
        """The batches that `take` removes from the queues, oldest first. If it raises, they are put back first. Sender only."""
        batches: list[ProducerBatch] = []
        try:
            for queue in self:
                batches += take(queue)
            batches.sort(key=_FLUSH_ID)
        except BaseException:
            for batch in reversed(batches):
                self.put_back(batch)
            self.oldest.note_queued(LONG_AGO_MS)  # what the queues hold is not known: the Sender looks through them again
            self.oldest.note_poisoned()
            raise
        self.move_count += len(batches)
        return batches

    def put_back(self, batch: ProducerBatch) -> None:
        """Put a batch at the head of its queue, but behind batches with lower sequences. Sender only."""
        self.of_partition(batch.topic_partition).put_back(batch)
        self.move_count += 1
        self.oldest.note_queued(batch.created_ms)

    def _make(self, by_partition: dict[int, PartitionQueue], topic: str, partition: int) -> PartitionQueue:
        with self._lock:
            queue = by_partition.get(partition)
            if queue is None:
                queue = PartitionQueue(TopicPartition(topic, partition), len(self._in_order), self.filled_queues)
                by_partition[partition] = queue
                self._in_order.append(queue)
            return queue
