"""Sequence numbers per topic-partition: which were assigned, are in flight, were acknowledged.

Kafka's TxnPartitionMap. Sender thread only.
Law: a batch gets its sequence at its first drain and keeps it through every retry, because an earlier attempt may have been
written. Only a new epoch starts a partition again at 0.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch, increment_sequence
from spark_kafka_sink.records.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_LAST_ACKED_SEQUENCE = -1  # 0 follows
HALF_RANGE = 2**30  # two sequences are less than this apart, so the order is known across the wrap-around too


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class SequenceFacts(NamedTuple):
    """The sequence of one batch among the others, and what follows for a retry. The defaults: without idempotence."""

    idempotent: bool = False
    transactional: bool = False  # no epoch is bumped within a transaction: the transaction is aborted
    was_reset: bool = False
    is_first: bool = True  # no batch of the partition with a lower sequence is being sent or retried
    is_next: bool = True  # its sequence directly follows the last acknowledged one
    unresolved: bool = False  # a batch of the partition has failed: its sequences may be missing in the log


class PartitionSequences:
    """Those of one partition."""

    def __init__(self) -> None:
        self.producer = NO_PRODUCER  # the id and epoch of the sequences below
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        self.in_flight: list[ProducerBatch] = []  # batches that have a sequence and are not done, in sequence order

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Batches come in sequence order, except the smaller ones of a split. Sequences that wrapped to 0 follow the highest."""
        if not self.in_flight:
            self.in_flight.append(batch)
            return
        first = self.in_flight[0].base_sequence
        insort(self.in_flight, batch, key=lambda each: (each.base_sequence - first + HALF_RANGE) & MAX_SEQUENCE)

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def take_sequence(self, record_count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence = increment_sequence(sequence, record_count)
        return sequence

    def acknowledge(self, last_sequence: int) -> None:
        ahead = (last_sequence - self.last_acked_sequence) & MAX_SEQUENCE
        if self.last_acked_sequence == NO_LAST_ACKED_SEQUENCE or 0 < ahead < HALF_RANGE:
            self.last_acked_sequence = last_sequence

    def is_next(self, sequence: int) -> bool:
        """Whether `sequence` directly follows the last acknowledged one. Before the first, that is 0."""
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    def start_at_beginning(self, producer: ProducerIdAndEpoch) -> None:
        """Renumber everything in flight from 0 under a new epoch, in the same order."""
        self.producer = producer
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        for batch in self.in_flight:
            batch.reset_producer_state(producer.producer_id, producer.epoch, self.take_sequence(batch.record_count))
