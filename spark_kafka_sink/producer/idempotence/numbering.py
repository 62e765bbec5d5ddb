"""How batches get their sequence numbers, in a producer with an id.

Law: a batch is renumbered only if it is certainly not in the log. A broker recognizes a batch by its epoch and sequence. A batch
that may have been written is sent again with the same two numbers, and a broker that has written it acknowledges it.
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Set
from random import Random
from typing import ClassVar

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch, increment_sequence
from spark_kafka_sink.producer.idempotence.sequencer import SequenceFacts, Sequencer
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import AnswerProblem, TxnRequestHandler
from spark_kafka_sink.producer.txn_requests.txn_request_queue import TxnRequestQueue
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

NO_LAST_ACKED_SEQUENCE = -1  # 0 follows
HALF_SEQUENCE_RANGE = 2**30  # two sequences are less than this apart, so the order is known across the wrap-around too


class SequencerState(enum.Enum):
    """The states of a Sequencer. An idempotent producer has the first three and the last; a transactional one has all of them."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    BUMPING_EPOCH = "getting the epoch for its next transaction"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "fatal error"


class PartitionSequences:
    """The sequence numbers of one partition: assigned, in flight, and acknowledged (an entry of Kafka's TxnPartitionMap).

    Law: a batch gets its sequence at its first drain and keeps it through every retry, because an earlier attempt may have been
    written. Only a new epoch renumbers batches, from 0.
    """

    def __init__(self) -> None:
        self.identity = NO_PRODUCER  # under which the sequences below were assigned
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        self.in_flight: list[ProducerBatch] = []  # batches that have a sequence and are not done, in sequence order

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Batches come in sequence order, except the smaller ones of a split. Sequences that wrapped to 0 follow the highest."""
        if not self.in_flight:
            self.in_flight.append(batch)
            return
        first = self.in_flight[0].base_sequence
        insort(self.in_flight, batch, key=lambda each: (each.base_sequence - first + HALF_SEQUENCE_RANGE) & MAX_SEQUENCE)

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def take_sequence(self, record_count: int) -> int:
        """The first sequence of the next batch. It uses up as many sequences as the batch has records."""
        sequence = self.next_sequence
        self.next_sequence = increment_sequence(sequence, record_count)
        return sequence

    def acknowledge(self, last_sequence: int) -> None:
        """Note the last sequence of an acknowledged batch, unless a batch behind it has been acknowledged before."""
        distance = (last_sequence - self.last_acked_sequence) & MAX_SEQUENCE
        if self.last_acked_sequence == NO_LAST_ACKED_SEQUENCE or 0 < distance < HALF_SEQUENCE_RANGE:
            self.last_acked_sequence = last_sequence

    def is_next(self, sequence: int) -> bool:
        """Whether `sequence` directly follows the last acknowledged one. Before the first, that is 0."""
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    def start_at_beginning(self, identity: ProducerIdentity) -> None:
        """Renumber everything in flight from 0 under a new epoch, in the same order."""
        self.identity = identity
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        for batch in self.in_flight:
            batch.reset_producer_state(identity, self.take_sequence(batch.record_count))


class NumberingSequencer(Sequencer, ABC):
    """Numbers batches under a producer id. Subclasses ask for the id, and decide when an epoch begins and what an error costs.

    Args:
        config: its time-outs and back-offs; TransactionManager also takes its transactional.id.
        client: sends the requests (TxnRequestQueue).
        clock: tells when a request may be sent again.
        random: spreads the back-offs; None: one of its own.
    """

    next_states: ClassVar[Mapping[SequencerState, Set[SequencerState]]]  # FATAL_ERROR, which follows each state, is left out

    def __init__(self, config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None = None) -> None:
        self.state = SequencerState.UNINITIALIZED
        self.identity = NO_PRODUCER
        self.sequences: dict[TopicPartition, PartitionSequences] = defaultdict(PartitionSequences)
        self.requests = TxnRequestQueue(self, config, client, clock, random)
        self.unresolved_partitions: set[TopicPartition] = set()  # a numbered batch of theirs failed: there may be a gap

    def transition_to(self, target: SequencerState) -> None:
        if target is not SequencerState.FATAL_ERROR and target not in self.next_states[self.state]:
            raise RuntimeError(f"a producer that is {self.state.value} cannot become {target.value}")
        logger.debug("= producer id %s: %s -> %s", self.identity.producer_id, self.state.value, target.value)
        self.state = target

    def become_fatal(self, error: KafkaError) -> None:
        if self.fatal_error is None:
            self.fatal_error = error
            self.transition_to(SequencerState.FATAL_ERROR)
            self.requests.drop_all(error)

    def fail_all_calls(self, error: KafkaError) -> None:
        self.requests.drop_all(error)

    # REQUESTS

    @property
    def has_producer_id(self) -> bool:
        return self.identity.is_valid

    def refusal_of_request(self, request: TxnRequestHandler) -> KafkaError | None:  # noqa: ARG002
        """Why a request must not be sent any more; None: it is sent."""
        return None

    @abstractmethod
    def handle_rejected_request(self, request: TxnRequestHandler, problem: AnswerProblem) -> None:
        """Handle a request that a broker has rejected for good."""

    @abstractmethod
    def handle_broken_request(self, request: TxnRequestHandler, error: KafkaError) -> None:
        """Handle a request that cannot be sent, or whose answer cannot be read."""

    # DRAIN

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        if not self.identity.is_valid:
            return True
        entry = self.sequences[first.topic_partition]
        if first.has_sequence:
            # A batch that has its sequence is being retried. Only the lowest one in flight may go; a broker rejects the others.
            return bool(entry.in_flight) and entry.in_flight[0] is not first
        if entry.in_flight and entry.identity != self.identity:
            return True  # a new epoch's batch 0 must not overtake batches of the old epoch
        if entry.in_flight and entry.last_acked_sequence == NO_LAST_ACKED_SEQUENCE and not self._is_known(first.topic_partition):
            # A broker that does not know the producer accepts any first sequence. If it rejected batch 0 and accepted batch 1,
            # batch 0 would stay out of order forever. So the second batch waits until the first is acknowledged, once per
            # partition and epoch.
            return True
        return first.topic_partition in self.unresolved_partitions

    def _is_known(self, topic_partition: TopicPartition) -> bool:  # noqa: ARG002
        """Whether the partition's brokers know the producer id. If so, they reject a new epoch's first sequence other than 0."""
        return False

    def assign_sequence(self, batch: ProducerBatch) -> None:
        if batch.has_sequence:
            return
        entry = self.sequences[batch.topic_partition]
        if entry.identity != self.identity and not entry.in_flight:
            entry.start_at_beginning(self.identity)
        batch.set_producer_state(self.identity, entry.take_sequence(batch.record_count))
        entry.add_in_flight(batch)

    # OUTCOMES

    def handle_completed_batch(self, batch: ProducerBatch) -> None:
        entry = self.sequences[batch.topic_partition]
        if entry.identity == batch.identity:  # else it is a late answer from an earlier epoch
            entry.acknowledge(batch.last_sequence)
        entry.remove_in_flight(batch)

    def handle_failed_batch(self, batch: ProducerBatch, error: KafkaError) -> None:  # noqa: ARG002
        if not batch.has_sequence:
            return
        self.sequences[batch.topic_partition].remove_in_flight(batch)
        if self.fatal_error is None:
            self.unresolved_partitions.add(batch.topic_partition)

    def replace_in_flight(self, large: ProducerBatch, smaller: list[ProducerBatch]) -> None:
        entry = self.sequences[large.topic_partition]
        entry.remove_in_flight(large)
        for each in smaller:
            entry.add_in_flight(each)

    def sequence_facts(self, batch: ProducerBatch) -> SequenceFacts:
        entry = self.sequences[batch.topic_partition]
        return SequenceFacts(
            is_idempotent=True,
            sequence_has_been_reset=batch.sequence_has_been_reset,
            is_first=entry.in_flight[:1] == [batch],
            is_next=entry.is_next(batch.base_sequence),
            is_unresolved=batch.topic_partition in self.unresolved_partitions,
        )
