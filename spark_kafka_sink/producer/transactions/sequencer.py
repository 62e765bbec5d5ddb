"""Who a producer is to brokers: its id and epoch, and how batches get their sequence numbers.

    Sequencer             for a producer without idempotence: numbers nothing. The base class of the others
    IdempotentSequencer   decides and keeps state; PartitionSequences counts
    TransactionManager    adds transactions (transaction_manager.py)

Law: a batch is renumbered only if it is certainly not in the log. A broker recognizes a batch by its epoch and sequence. A batch
that may have been written is sent again with the same two numbers, and a broker that has written it acknowledges it.

    UNINITIALIZED ──request──▶ INITIALIZING ──id received──▶ READY
          ▲                        │                           │
          └─────── denied ─────────┴──epoch exhausted──────────┘       FATAL_ERROR is reachable from each state, and final
"""

from __future__ import annotations

import enum
import logging
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from random import Random
from typing import NamedTuple

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.producer.accumulator.drainer import DrainSequencer
from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch, increment_sequence
from spark_kafka_sink.producer.transactions.transaction_errors import idempotent_write_denied_error
from spark_kafka_sink.producer.transactions.txn_request_handlers import AnswerProblem, InitProducerIdHandler, TxnRequestHandler
from spark_kafka_sink.producer.transactions.txn_request_queue import TxnRequestQueue
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MAX_EPOCH = 32767
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


NEXT_STATES = {  # of an idempotent producer. An absent entry is the error; FATAL_ERROR is reachable from each state
    SequencerState.UNINITIALIZED: {SequencerState.INITIALIZING},
    SequencerState.INITIALIZING: {SequencerState.READY, SequencerState.UNINITIALIZED},
    SequencerState.READY: {SequencerState.UNINITIALIZED},
    SequencerState.FATAL_ERROR: set(),
}


class SequenceFacts(NamedTuple):
    """The sequence of one batch among the others, and what that means for a retry. The defaults: without idempotence."""

    is_idempotent: bool = False
    is_transactional: bool = False  # no epoch is bumped within a transaction: the transaction is aborted
    sequence_has_been_reset: bool = False
    is_first: bool = True  # no batch of the partition with a lower sequence is being sent or retried
    is_next: bool = True  # its sequence directly follows the last acknowledged one
    is_unresolved: bool = False  # a batch of the partition has failed: its sequences may be missing in the log


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


class Sequencer(DrainSequencer):
    """The sequencer of a producer without idempotence, which numbers nothing, and the base class of the others. Only the Sender
    calls it, except the methods below ANY THREAD."""

    transactional_id: str | None = None
    fatal_error: KafkaError | None = None  # why nothing can be sent any more; callers read it

    # ANY THREAD

    def current_error(self) -> KafkaError | None:
        """Why no row can be written now, as a new exception each time; None when nothing is wrong."""
        error = self.fatal_error
        return None if error is None else fresh_copy(error)

    def handle_failed_row(self, error: KafkaError) -> None:
        """Note that a row failed before it got into a batch."""

    @property
    def is_at_rest(self) -> bool:
        """Whether another task could use the producer: it has not failed, and nothing is under way under its transactional id."""
        return self.fatal_error is None

    # EACH ROUND OF THE SENDER

    def begin_round(self) -> None:
        """Take what callers have posted since the last round."""

    def prepare_drain(self) -> None:
        """Resolve sequences and bump the epoch, where that is due."""

    def send_due_requests(self, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]) -> int:  # noqa: ARG002
        """Send what is due to coordinators, after batches were drained and sent; returns in how many ms to call again.

        Called in every round while there is no fatal error. Never waits; the answer to a request ends the poll that follows.

        Args:
            is_all_settled: every batch is acknowledged or has failed, and no answer to a Produce request is due.
            is_all_sent: tells whether every batch that is not settled is in flight.
        """
        return NEVER_MS

    def take_denial(self) -> KafkaError | None:
        """The error of all rows that wait for a producer id, if brokers denied it. Returned once for each denial."""
        return None

    def error_of_lost_rows(self) -> KafkaError | None:
        """The error of rows that were never sent, while their transaction must be aborted or is being aborted; else None."""
        return None

    @property
    def transaction_waits_for_rows(self) -> bool:
        """Whether a commit, a preparation or offsets wait for rows, so that nothing may linger."""
        return False

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has a transaction to end."""
        return False

    def abort_for_close(self) -> bool:
        """Abort the open transaction if nobody else ends it. Returns whether there is one that has not ended yet."""
        return False

    def fail_all_calls(self, error: KafkaError) -> None:
        """Nothing more will be sent: fail every call that waits, and later ones."""

    # BATCHES

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce requests to use; None: the newest that the node knows."""
        return None

    def handle_completed_batch(self, batch: ProducerBatch) -> None:
        """Note that a batch is in the log."""

    def handle_failed_batch(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Stop tracking a batch that will not be sent again. If it was not written, its sequences are a gap."""

    def become_fatal(self, error: KafkaError) -> None:
        """Send no more batches. The Sender fails all of them with `error`, and callers get it at their next call."""

    def replace_in_flight(self, large: ProducerBatch, smaller: list[ProducerBatch]) -> None:
        """Track the smaller batches of a split instead of the large one. They have its sequences."""

    def max_backoff_ms(self, error: ErrorCode) -> int | None:  # noqa: ARG002
        """At most how many ms a batch waits for its next attempt; None: as retry.backoff.ms says."""
        return None

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        """Have a partition's batches renumbered as soon as no request contains one. By then none of them may be in the log."""

    def sequence_facts(self, batch: ProducerBatch) -> SequenceFacts:  # noqa: ARG002
        """The facts about a batch's sequence that retry.py needs."""
        return SequenceFacts()


class IdempotentSequencer(Sequencer):
    """Numbers batches under a producer id, for which it asks brokers.

    Args:
        config: its time-outs and back-offs; TransactionManager also takes its transactional.id.
        client: sends the requests (TxnRequestQueue).
        clock: tells when a request may be sent again.
        random: spreads the back-offs; None: one of its own.
    """

    next_states: Mapping[SequencerState, Set[SequencerState]] = NEXT_STATES

    def __init__(self, config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None = None) -> None:
        self.state = SequencerState.UNINITIALIZED
        self.identity = NO_PRODUCER
        self.sequences: dict[TopicPartition, PartitionSequences] = defaultdict(PartitionSequences)
        self.requests = TxnRequestQueue(self, config, client, clock, random)
        self._denial: KafkaError | None = None  # of the producer id, until the Sender takes it
        self._was_denied = False  # the id was denied, so it is asked for again only when there are rows
        self.unresolved_partitions: set[TopicPartition] = set()  # a numbered batch of theirs failed: there may be a gap
        self._partitions_to_reset: set[TopicPartition] = set()  # their batches in flight get new sequences in a new epoch

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

    def prepare_drain(self) -> None:
        self._close_gaps()
        self._bump_epoch_if_requested()

    # PRODUCER ID

    @property
    def has_producer_id(self) -> bool:
        return self.identity.is_valid

    def send_due_requests(self, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]) -> int:
        if self.state is SequencerState.UNINITIALIZED and not (self._was_denied and is_all_settled):
            self.transition_to(SequencerState.INITIALIZING)
            self.requests.enqueue(InitProducerIdHandler(on_received=self.handle_identity))
        return self.requests.send_due_requests(now_ms, is_all_settled, is_all_sent)

    def handle_identity(self, identity: ProducerIdentity) -> None:
        self._was_denied = False
        self.transition_to(SequencerState.READY)
        self.identity = identity
        logger.info("= producer id is %d, epoch %d", *identity)
        self._bump_epoch_if_requested()

    def take_denial(self) -> KafkaError | None:
        denial, self._denial = self._denial, None
        return denial

    def refusal_of_request(self, request: TxnRequestHandler) -> KafkaError | None:  # noqa: ARG002
        """Why a request must not be sent any more; None: it is sent."""
        return None

    def handle_rejected_request(self, request: TxnRequestHandler, problem: AnswerProblem) -> None:
        """Handle a request that a broker has rejected for good."""
        is_denied = problem.error == Errors.CLUSTER_AUTHORIZATION_FAILED
        self.handle_broken_request(request, idempotent_write_denied_error(problem.where) if is_denied else problem.exception())

    def handle_broken_request(self, request: TxnRequestHandler, error: KafkaError) -> None:
        """Handle a request that cannot be sent, or whose answer cannot be read. After an internal error it is sent again."""
        if error.condition == "KAFKA_INTERNAL_ERROR":
            if self.state is SequencerState.INITIALIZING:  # else the id was received, and the next prepare_drain does the rest
                self.requests.retry(request)
            return
        self._denial, self._was_denied = error, True
        self.transition_to(SequencerState.UNINITIALIZED)

    # EPOCHS

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        self._partitions_to_reset.add(topic_partition)

    def _bump_epoch_if_requested(self) -> None:
        """Carry out a requested bump. It is a local step: the broker learns the epoch from the next batch (KIP-360).

        A partition in `_partitions_to_reset` is renumbered as soon as no request contains a batch of it. The others keep the
        old epoch until their batches in flight are done, and restart at 0 at their next drain (`assign_sequence`).
        """
        entries = {each: self.sequences[each] for each in self._partitions_to_reset}
        idle_entries = {
            each: entry for each, entry in entries.items() if not any(batch.is_in_flight for batch in entry.in_flight)
        }
        if not idle_entries or self.state is not SequencerState.READY:
            return
        if any(entry.identity == self.identity for entry in idle_entries.values()):
            self._begin_epoch()
        if self.identity.is_valid:
            for topic_partition in idle_entries:
                self._start_at_beginning(topic_partition)

    def _begin_epoch(self) -> None:
        if self.identity.producer_epoch == MAX_EPOCH:
            self.identity = NO_PRODUCER  # a new id is requested; batches to be renumbered wait for it
            self.transition_to(SequencerState.UNINITIALIZED)
        else:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.producer_epoch + 1)
            logger.debug("= producer id %d: epoch is now %d", *self.identity)

    def _start_at_beginning(self, topic_partition: TopicPartition) -> None:
        self.sequences[topic_partition].start_at_beginning(self.identity)
        self._partitions_to_reset.discard(topic_partition)
        self.unresolved_partitions.discard(topic_partition)

    # DRAIN

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        if not self.identity.is_valid:
            return True
        if first.topic_partition in self._partitions_to_reset:
            return True  # it will be renumbered, or must follow batches that will be
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

    # UNRESOLVED SEQUENCES

    def _close_gaps(self) -> None:
        """Close the gaps that failed batches may have left: by a new epoch, unless a later batch was accepted.

        If a batch behind the gap may have been written, it is first sent again with its old sequence. The broker acknowledges
        it, or rejects it as out of order and then has none of the batches behind it.
        """
        for topic_partition in self.unresolved_partitions - self._partitions_to_reset:
            entry = self.sequences[topic_partition]
            if not entry.in_flight and entry.is_next(entry.next_sequence):
                self.unresolved_partitions.discard(topic_partition)
            elif not any(batch.may_be_written for batch in entry.in_flight):
                logger.info("= %s: starting a new epoch, because a batch failed and may be missing", topic_partition)
                self.request_epoch_bump(topic_partition)
