"""Who this producer is to the brokers: its id and epoch, and what that means for the numbering of batches.

The idempotent half of Kafka's TransactionManager (transactions will stand on it). Sender thread only, except `fatal_error`,
which callers read. It decides and remembers; the Sender sends. Numbers themselves are kept in sequence_numbers.py.

    UNINITIALIZED ──request──▶ INITIALIZING ──id received──▶ READY
          ▲                        │                           │
          └──retriable error───────┴──epoch exhausted──────────┘       FATAL_ERROR is reachable from each, and final
"""

from __future__ import annotations

import enum
import logging

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer_batch import ProducerBatch, increment_sequence
from spark_kafka_sink.producer.sequence_numbers import NO_LAST_ACKED_SEQUENCE, NO_PRODUCER, ProducerIdAndEpoch, SequenceNumbers
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
    def __init__(self) -> None:
        self.state = State.UNINITIALIZED
        self.producer = NO_PRODUCER
        self.fatal_error: KafkaError | None = None
        self.sequences = SequenceNumbers()
        self._unresolved: dict[TopicPartition, int] = {}  # expired after having been sent -> the sequence that follows the gap
        self._epoch_bump_required = False
        self._to_rewrite: set[TopicPartition] = set()  # partitions whose in-flight batches are numbered anew at the bump

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
        self._renumber_in_flight()
        logger.info("= producer id is %d, epoch %d", producer_id, epoch)

    def maybe_bump_epoch(self) -> None:
        """Carry out a bump that was asked for: a purely local step, the broker learns of it by the next batch (KIP-360).

        Partitions that asked for it are numbered anew at once; the others keep the old epoch until what they have in flight
        is done, and start anew at their next drain (`assign_sequence`).
        """
        if not self._epoch_bump_required or self.state is not State.READY:
            return
        self._epoch_bump_required = False
        if self.producer.epoch == MAX_EPOCH:
            self.producer = NO_PRODUCER  # a new id is fetched; what is to be numbered anew waits for it
            self.transition_to(State.UNINITIALIZED)
        else:
            self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
            logger.debug("= producer id %d: epoch is now %d", *self.producer)
            self._renumber_in_flight()

    def _renumber_in_flight(self) -> None:
        for topic_partition in self._to_rewrite:
            self.sequences[topic_partition].start_at_beginning(self.producer)
            self._unresolved.pop(topic_partition, None)
        self._to_rewrite.clear()

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        self._epoch_bump_required = True
        self._to_rewrite.add(topic_partition)

    # DRAIN

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        """Whether the batch at the head of a queue has to wait for others of its partition."""
        if not self.producer.is_valid:
            return True
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

    def batch_completed(self, batch: ProducerBatch, base_offset: int) -> None:
        entry = self.sequences[batch.topic_partition]
        if entry.producer == (batch.producer_id, batch.producer_epoch):  # else a late answer to a number of an epoch gone by
            entry.acknowledge(batch.last_sequence, base_offset + batch.record_count - 1 if base_offset >= 0 else base_offset)
        entry.remove_in_flight(batch)

    def batch_failed(self, batch: ProducerBatch, *, outcome_known: bool) -> None:
        """Forget a batch that will not be sent again.

        When the broker surely refused it, its numbers are free: the epoch is bumped so that those behind it can follow.
        When it may have been written (`outcome_known` false: expired, or retries exhausted) nothing is reassigned.
        """
        if not batch.has_sequence:
            return
        self.sequences[batch.topic_partition].remove_in_flight(batch)
        if outcome_known and self.fatal_error is None:
            self.request_epoch_bump(batch.topic_partition)

    def replace_in_flight(self, parent: ProducerBatch, children: list[ProducerBatch]) -> None:
        """After a split: the children carry the parent's numbers on."""
        entry = self.sequences[parent.topic_partition]
        entry.remove_in_flight(parent)
        for child in children:
            entry.add_in_flight(child)

    # UNRESOLVED SEQUENCES

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """A batch expired that had been sent: until the rest in flight is done, nobody knows whether its numbers were used."""
        follows = increment_sequence(batch.last_sequence, 1)
        self._unresolved[batch.topic_partition] = max(follows, self._unresolved.get(batch.topic_partition, 0))

    def has_unresolved(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._unresolved

    def follows_unresolved(self, batch: ProducerBatch) -> bool:
        return self._unresolved.get(batch.topic_partition) == batch.base_sequence

    def maybe_resolve(self) -> None:
        """Where nothing is in flight any more: a later batch was accepted, so there is no gap; or else the epoch is bumped."""
        for topic_partition in [tp for tp in self._unresolved if not self.sequences[tp].in_flight]:
            entry = self.sequences[topic_partition]
            if not entry.is_next(entry.next_sequence):
                logger.info("= %s: sequences up to %d are unresolved; starting a new epoch", topic_partition, entry.next_sequence)
                self.request_epoch_bump(topic_partition)
            del self._unresolved[topic_partition]
