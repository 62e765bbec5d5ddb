"""Who this producer is to the brokers: its id and epoch, and what that means for the numbering of batches.

The idempotent half of Kafka's TransactionManager (transactions will stand on it). Sender thread only, except `fatal_error`,
which callers read. It decides and remembers; the Sender sends. Numbers themselves are kept in sequence_numbers.py.
Law: a batch is numbered anew only if it is surely not in the log. A broker knows a batch by its epoch and sequences: one that
may have been written goes again under its old ones, which the broker acknowledges if it has it.

    UNINITIALIZED ──request──▶ INITIALIZING ──id received──▶ READY
          ▲                        │                           │
          └──retriable error───────┴──epoch exhausted──────────┘       FATAL_ERROR is reachable from each, and final
"""

from __future__ import annotations

import enum
import logging

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender.sequence_numbers import (
    NO_LAST_ACKED_SEQUENCE,
    NO_PRODUCER,
    ProducerIdAndEpoch,
    SequenceNumbers,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MAX_EPOCH = 32767


class State(enum.Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    FATAL_ERROR = "fatal error"


NEXT = {  # an absent entry is the error; FATAL_ERROR is reachable from every state
    State.UNINITIALIZED: {State.INITIALIZING},
    State.INITIALIZING: {State.READY, State.UNINITIALIZED},
    State.READY: {State.UNINITIALIZED},
    State.FATAL_ERROR: set(),
}


class TransactionManager:
    # Of Produce requests. A transactional producer has values of its own.
    transactional_id: str | None = None
    produce_version_cap: int | None = None  # the newest version to use; None: the newest that the node knows

    def __init__(self) -> None:
        self.state = State.UNINITIALIZED
        self.producer = NO_PRODUCER
        self.fatal_error: KafkaError | None = None
        self.sequences = SequenceNumbers()
        self._unresolved: set[TopicPartition] = set()  # a batch that had its number was given up: there may be a gap
        self._to_rewrite: set[TopicPartition] = set()  # partitions whose in-flight batches are numbered anew under a new epoch

    def transition_to(self, target: State) -> None:
        if target is not State.FATAL_ERROR and target not in NEXT[self.state]:
            raise RuntimeError(f"a producer that is {self.state.value} cannot become {target.value}")
        logger.debug("= producer id %s: %s -> %s", self.producer.producer_id, self.state.value, target.value)
        self.state = target

    def become_fatal(self, error: KafkaError) -> None:
        """No batch is sent from here on; the Sender fails them all with `error`, and callers get it at their next call."""
        if self.fatal_error is None:
            self.fatal_error = error
            self.transition_to(State.FATAL_ERROR)

    # EACH ROUND

    def step(self, now_ms: int, all_settled: bool) -> int:  # noqa: ARG002
        """Send what is due to coordinators, after batches were drained and sent; returns in how many ms to call again.

        Called in every round while there is no fatal error. Never waits; the answer to a request ends the poll that follows.

        Args:
            all_settled: every batch is acknowledged or has failed, and no answer to a Produce request is due.
        """
        return NEVER_MS

    # PRODUCER ID

    @property
    def needs_producer_id(self) -> bool:
        return self.state is State.UNINITIALIZED

    @property
    def has_producer_id(self) -> bool:
        return self.producer.is_valid

    def producer_id_received(self, producer_id: int, epoch: int) -> None:
        self.producer = ProducerIdAndEpoch(producer_id, epoch)
        self.transition_to(State.READY)
        logger.info("= producer id is %d, epoch %d", producer_id, epoch)
        self.maybe_bump_epoch()

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        """Number a partition's batches in flight anew. None of them is in the log, except that answers may still be due."""
        self._to_rewrite.add(topic_partition)

    def maybe_bump_epoch(self) -> None:
        """Carry out a bump that was asked for: a purely local step, the broker learns of it by the next batch (KIP-360).

        A partition that asked for it is numbered anew as soon as no request with a batch of it is out; the others keep the old
        epoch until what they have in flight is done, and start anew at their next drain (`assign_sequence`).
        """
        ready = [each for each in self._to_rewrite if not any(batch.in_flight for batch in self.sequences[each].in_flight)]
        if not ready or self.state is not State.READY:
            return
        if any(self.sequences[each].producer == self.producer for each in ready):
            self._begin_epoch()
        if self.producer.is_valid:
            for each in ready:
                self._start_at_beginning(each)

    def _begin_epoch(self) -> None:
        if self.producer.epoch == MAX_EPOCH:
            self.producer = NO_PRODUCER  # a new id is fetched; what is to be numbered anew waits for it
            self.transition_to(State.UNINITIALIZED)
        else:
            self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
            logger.debug("= producer id %d: epoch is now %d", *self.producer)

    def _start_at_beginning(self, topic_partition: TopicPartition) -> None:
        self.sequences[topic_partition].start_at_beginning(self.producer)
        self._to_rewrite.discard(topic_partition)
        self._unresolved.discard(topic_partition)

    # DRAIN

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        """Whether the batch at the head of a queue has to wait for others of its partition."""
        if not self.producer.is_valid:
            return True
        if first.topic_partition in self._to_rewrite:
            return True  # it gets another number, or has to follow those that do
        entry = self.sequences[first.topic_partition]
        if first.has_sequence:
            # A batch that has its number already is being retried. Only the lowest one in flight may go: others would be refused.
            return bool(entry.in_flight) and entry.in_flight[0] is not first
        if entry.in_flight and entry.producer != self.producer:
            return True  # a new epoch's batch 0 must not overtake batches of the old epoch
        if entry.in_flight and entry.last_acked_sequence == NO_LAST_ACKED_SEQUENCE:
            # A broker that does not know the producer takes any first sequence. Were batch 0 refused and batch 1 accepted, batch
            # 0 would be out of order for ever: so the second goes when the first is acknowledged, once per partition and epoch.
            return True
        return first.topic_partition in self._unresolved

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Give a batch its number at its first drain, and track it. A batch that has one keeps it."""
        if batch.has_sequence:
            return
        entry = self.sequences[batch.topic_partition]
        if entry.producer != self.producer and not entry.in_flight:
            entry.start_at_beginning(self.producer)
        batch.set_producer_state(self.producer.producer_id, self.producer.epoch, entry.take_sequence(batch.record_count))
        entry.add_in_flight(batch)

    # OUTCOMES

    def batch_completed(self, batch: ProducerBatch) -> None:
        entry = self.sequences[batch.topic_partition]
        if entry.producer == (batch.producer_id, batch.producer_epoch):  # else it is a late answer from an earlier epoch
            entry.acknowledge(batch.last_sequence)
        entry.remove_in_flight(batch)

    def batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:  # noqa: ARG002
        """Forget a batch that will not be sent again. Its numbers were used if it was written, and are a gap if not."""
        if not batch.has_sequence:
            return
        self.sequences[batch.topic_partition].remove_in_flight(batch)
        if self.fatal_error is None:
            self._unresolved.add(batch.topic_partition)

    def replace_in_flight(self, parent: ProducerBatch, children: list[ProducerBatch]) -> None:
        """After a split: the children carry the parent's numbers on."""
        entry = self.sequences[parent.topic_partition]
        entry.remove_in_flight(parent)
        for child in children:
            entry.add_in_flight(child)

    # UNRESOLVED SEQUENCES

    def has_unresolved(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._unresolved

    def is_first_in_flight(self, batch: ProducerBatch) -> bool:
        in_flight = self.sequences[batch.topic_partition].in_flight
        return bool(in_flight) and in_flight[0] is batch

    def maybe_resolve(self) -> None:
        """Close the gaps that given-up batches may have left: by a new epoch, unless a later batch was accepted.

        A batch behind the gap that may have been written goes again under its own number first. The broker acknowledges it, or
        refuses it as out of order, and then has none of those behind it either.
        """
        for topic_partition in self._unresolved - self._to_rewrite:
            entry = self.sequences[topic_partition]
            if not entry.in_flight and entry.is_next(entry.next_sequence):
                self._unresolved.discard(topic_partition)
            elif not any(batch.may_be_written for batch in entry.in_flight):
                logger.info("= %s: starting a new epoch after a batch that was given up", topic_partition)
                self.request_epoch_bump(topic_partition)
