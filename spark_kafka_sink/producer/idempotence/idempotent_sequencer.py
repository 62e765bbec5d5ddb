"""An idempotent producer without transactions: asks any broker for its id, and begins new epochs by itself.

UNINITIALIZED ──request──▶ INITIALIZING ──id received──▶ READY
      ▲                        │                           │
      └─────── denied ─────────┴──epoch exhausted──────────┘       FATAL_ERROR is reachable from each state, and final
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.idempotence.numbering import NumberingSequencer, SequencerState
from spark_kafka_sink.producer.txn_requests.transaction_errors import idempotent_write_denied_error
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import AnswerProblem, InitProducerIdHandler, TxnRequestHandler
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH, NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class IdempotentSequencer(NumberingSequencer):
    """The sequencer of an idempotent producer without transactions. Arguments as NumberingSequencer."""

    next_states = {  # noqa: RUF012 - never changed
        SequencerState.UNINITIALIZED: {SequencerState.INITIALIZING},
        SequencerState.INITIALIZING: {SequencerState.READY, SequencerState.UNINITIALIZED},
        SequencerState.READY: {SequencerState.UNINITIALIZED},
        SequencerState.FATAL_ERROR: set(),
    }

    def __init__(self, config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None = None) -> None:
        super().__init__(config, client, clock, random)
        self._denial: KafkaError | None = None  # of the producer id, until the Sender takes it
        self._was_denied = False  # the id was denied, so it is asked for again only when there are rows
        self._partitions_to_reset: set[TopicPartition] = set()  # their batches in flight get new sequences in a new epoch

    # PRODUCER ID

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

    def handle_rejected_request(self, request: TxnRequestHandler, problem: AnswerProblem) -> None:
        is_denied = problem.error == Errors.CLUSTER_AUTHORIZATION_FAILED
        self.handle_broken_request(request, idempotent_write_denied_error(problem.where) if is_denied else problem.exception())

    def handle_broken_request(self, request: TxnRequestHandler, error: KafkaError) -> None:
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
            for entry in idle_entries.values():
                entry.start_at_beginning(self.identity)
            self._partitions_to_reset -= idle_entries.keys()
            self.unresolved_partitions -= idle_entries.keys()

    def _begin_epoch(self) -> None:
        if self.identity.producer_epoch == MAX_EPOCH:
            self.identity = NO_PRODUCER  # a new id is requested; batches to be renumbered wait for it
            self.transition_to(SequencerState.UNINITIALIZED)
        else:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.producer_epoch + 1)
            logger.debug("= producer id %d: epoch is now %d", *self.identity)

    # DRAIN

    def prepare_drain(self) -> None:
        self._close_gaps()
        self._bump_epoch_if_requested()

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        # A batch of a partition that is to be reset will be renumbered, or must follow batches that will be.
        return first.topic_partition in self._partitions_to_reset or super().must_stop_draining(first)

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
