"""Sequence numbers per topic-partition: what was given out, what is in flight, what was acknowledged.

Kafka's TxnPartitionMap. Sender thread only. Law: a sequence is given to a batch at its first drain and stays with it through
every retry, because an earlier attempt may have landed; only an epoch bump starts a partition again at 0.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from spark_kafka_sink.producer.accumulator.producer_batch import (
    MAX_SEQUENCE,
    ProducerBatch,
    increment_sequence,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_LAST_ACKED_SEQUENCE = -1
NO_LAST_ACKED_OFFSET = -1
HALF_RANGE = 2**30  # of two sequences less than this apart, the one ahead is the later one, also across the wrap-around


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PartitionSequences:
    """One partition's entry."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.producer = NO_PRODUCER  # under which the numbers below were given out
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        self.last_acked_offset = NO_LAST_ACKED_OFFSET
        self.in_flight: list[ProducerBatch] = []  # given a sequence and not yet done, oldest first

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Batches come in sequence order, except for the children of a split; numbers that wrapped to 0 follow the highest."""
        first = self.in_flight[0].base_sequence if self.in_flight else batch.base_sequence
        insort(self.in_flight, batch, key=lambda each: (each.base_sequence - first + HALF_RANGE) & MAX_SEQUENCE)

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def take_sequence(self, record_count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence = increment_sequence(sequence, record_count)
        return sequence

    def acknowledge(self, last_sequence: int, last_offset: int) -> None:
        ahead = (last_sequence - self.last_acked_sequence) & MAX_SEQUENCE
        if self.last_acked_sequence == NO_LAST_ACKED_SEQUENCE or 0 < ahead < HALF_RANGE:
            self.last_acked_sequence = last_sequence
        self.last_acked_offset = max(self.last_acked_offset, last_offset)

    def is_next(self, sequence: int) -> bool:
        """Whether `sequence` directly follows what was acknowledged last."""
        if self.last_acked_sequence == NO_LAST_ACKED_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    def start_at_beginning(self, producer: ProducerIdAndEpoch) -> None:
        """Number everything in flight anew from 0 under a new epoch, in the order it was."""
        self.producer = producer
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        for batch in self.in_flight:
            batch.reset_producer_state(producer.producer_id, producer.epoch, self.take_sequence(batch.record_count))


class SequenceNumbers:
    """All partitions' entries, made when first asked for."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionSequences] = {}

    def __getitem__(self, topic_partition: TopicPartition) -> PartitionSequences:
        entry = self._partitions.get(topic_partition)
        if entry is None:
            entry = self._partitions[topic_partition] = PartitionSequences(topic_partition)
        return entry

    def forget(self, topic_partition: TopicPartition) -> None:
        self._partitions.pop(topic_partition, None)
