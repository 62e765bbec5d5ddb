"""delivery.timeout.ms: finds the batches that have exceeded it, in queues and in flight, and fails them with an explanation.

Poisoned batches fail here too, with their own error. Sender thread only.
"""

from __future__ import annotations

import logging
from itertools import chain

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.producer.sender.batch_outcomes import BatchOutcomes
from spark_kafka_sink.producer.sender.sender_parts import SenderParts

logger = logging.getLogger(__name__)


class Expiry:
    """Fails batches that have expired or are poisoned."""

    def __init__(self, parts: SenderParts, outcomes: BatchOutcomes) -> None:
        self._delivery_timeout_ms = parts.config.delivery_timeout_ms
        self._metadata = parts.metadata
        self._accumulator = parts.accumulator
        self._sequencer = parts.sequencer
        self._failures = parts.failures
        self._outcomes = outcomes

    def expire(self, now_ms: int) -> bool:
        """Fail the batches that have expired or are poisoned; returns whether there were any."""
        batches_in_flight = self._expired_in_flight(now_ms)
        queued_batches = self._accumulator.take_expired(now_ms)
        for batch in chain(queued_batches, batches_in_flight):
            with self._failures.guard_step(batch):
                error = batch.poison or self._error(batch, now_ms)
                logger.debug("- %s: %s", batch, error)
                self._outcomes.fail(batch, error, final_state=FinalState.ABORTED)
        return bool(queued_batches or batches_in_flight)

    def _expired_in_flight(self, now_ms: int) -> list[ProducerBatch]:
        in_flight = self._outcomes.in_flight
        if now_ms - in_flight.oldest_created_ms < self._delivery_timeout_ms:
            return []
        in_flight.tighten_bound()
        return [batch for batch in in_flight.not_done() if batch.has_reached_delivery_timeout(self._delivery_timeout_ms, now_ms)]

    def next_delay_ms(self, now_ms: int) -> int:
        """How many ms it takes until the next batch expires, or less."""
        in_flight_ms = self._outcomes.in_flight.oldest_created_ms + self._delivery_timeout_ms - now_ms
        return min(self._accumulator.next_expiry_delay_ms(now_ms), in_flight_ms)

    def _error(self, batch: ProducerBatch, now_ms: int) -> KafkaError:
        leader = self._metadata.last_known_leader(batch.topic_partition)
        leader_text = "" if leader is None else f", led by node {leader.id} at {leader.address}"
        return KafkaTimeoutError(
            f"Expiring {batch.record_count} record(s) for {batch.topic_partition}{leader_text}: {now_ms - batch.created_ms} ms"
            f" have passed since batch creation, delivery.timeout.ms={self._delivery_timeout_ms};"
            f" {batch.attempts} attempt(s) have failed; last trouble: {self._trouble(batch)}",
            condition="KAFKA_DELIVERY_TIMEOUT",
        )

    def _trouble(self, batch: ProducerBatch) -> str:
        """Why the last attempt failed, why there is no connection, and what the Sender raised; else what the batch waits for."""
        round_error = self._failures.last_round_error
        sender_trouble = None if round_error is None else f"the producer's sender thread fails: {round_error!r}"
        broker_trouble = self._metadata.last_trouble(batch.created_ms, self._metadata.cluster().leader_for(batch.topic_partition))
        troubles = [each for each in (batch.last_error, broker_trouble, sender_trouble) if each]
        return "; ".join(troubles) or self._wait_reason(batch)

    def _wait_reason(self, batch: ProducerBatch) -> str:
        leader = self._metadata.cluster().leader_for(batch.topic_partition)
        if leader is None:
            return "the partition has no leader"
        if not self._sequencer.has_producer_id:
            return "no broker has given this producer an id"
        return f"no answer from node {leader}, the partition's leader"
