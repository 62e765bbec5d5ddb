"""The queue of batches of one topic-partition: callers append at the tail, the Sender drains at the head."""

from __future__ import annotations

import threading
from collections import deque

from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class PartitionQueue:
    """One topic-partition's batches, oldest first."""

    __slots__ = ("batches", "lock", "muted", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.lock = threading.Lock()  # guards `batches`, and of its batches what ProducerBatch says
        self.batches: deque[ProducerBatch] = deque()
        self.muted = False  # Sender only: with one request in flight, a partition whose batch is in flight

    def open_batch(self) -> ProducerBatch | None:
        """The batch at the tail if it takes rows. Read without the lock it is a guess, which a reservation then verifies."""
        if not self.batches:
            return None
        try:
            tail = self.batches[-1]
        except IndexError:  # drained this moment
            return None
        return None if tail.closed or tail.has_sequence else tail
