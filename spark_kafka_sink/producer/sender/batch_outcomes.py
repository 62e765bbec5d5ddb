"""What becomes of a batch: it succeeds, fails, is retried or split, after an answer, an expiry or an abort.

next_step of retry.py decides what follows an answer. BatchOutcomes carries this out: it calls the batch's callbacks, the
accumulator, the Sequencer and the metrics. Sender thread only.
Laws: a batch's memory is given back only when no request refers to it any more, whether the batch is done or not (KAFKA-19012).
A batch that was taken out of its queue is settled or queued again, whatever is raised meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.config.option import LONG_MAX
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.producer.sender.retry import BatchFacts, NextStep, next_step
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.producer.txn_requests.transaction_errors import idempotent_write_denied_error
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors, Persisted
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse
from spark_kafka_sink.protocol.permissions import to_grant
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class InFlightBatches:
    """The batches that a Produce request refers to, by partition, in the order in which they were sent. A batch that has expired
    in flight stays until its answer comes or the connection is lost: the request still reads its memory."""

    def __init__(self) -> None:
        self._batches: dict[TopicPartition, list[ProducerBatch]] = {}
        # A lower bound: each batch here that is not done was created then or later. `tighten_bound` makes it exact.
        self.oldest_created_ms = NEVER_MS

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: ProducerBatch) -> None:
        """Note that a request refers to the batch. If this raises, nothing has changed."""
        batches = self._batches.get(batch.topic_partition)
        if batches is None:
            self._batches[batch.topic_partition] = [batch]
        else:
            batches.append(batch)
        batch.is_in_flight = True  # last: if memory ends above, nothing has happened
        if batch.created_ms < self.oldest_created_ms:
            self.oldest_created_ms = batch.created_ms

    def remove(self, batch: ProducerBatch) -> None:
        """Note that no request refers to the batch any more."""
        batch.is_in_flight = False
        batches = self._batches[batch.topic_partition]
        batches.remove(batch)
        if not batches:
            del self._batches[batch.topic_partition]

    def clear(self) -> list[ProducerBatch]:
        """Remove and return all batches, because the client is closed and no request refers to them."""
        all_batches = [batch for batches in self._batches.values() for batch in batches]
        for batch in all_batches:
            batch.is_in_flight = False
        self._batches.clear()
        return all_batches

    def tighten_bound(self) -> None:
        """Set `oldest_created_ms` to the exact value."""
        self.oldest_created_ms = min((batch.created_ms for batch in self.not_done()), default=NEVER_MS)

    def not_done(self) -> Iterator[ProducerBatch]:
        """The batches whose rows have no outcome yet: a batch may fail before its answer comes."""
        return (batch for batches in self._batches.values() for batch in batches if not batch.is_done)


class BatchOutcomes:
    """Completes, fails, retries or splits batches."""

    def __init__(self, parts: SenderParts) -> None:
        self._metadata = parts.metadata
        self._accumulator = parts.accumulator
        self._sequencer = parts.sequencer
        self._metrics = parts.metrics
        self._failures = parts.failures
        self._config = parts.config
        self._guarantee_message_order = parts.config.max_in_flight_requests_per_connection == 1
        self.in_flight = InFlightBatches()

    # IN FLIGHT

    def note_drained(self, batches: Iterable[ProducerBatch]) -> None:
        """Note that these batches go into a request now."""
        for batch in batches:
            self.in_flight.add(batch)
            self._mute(batch, is_muted=True)

    def take_back(self, batches: Iterable[ProducerBatch], now_ms: int) -> None:
        """Queue these batches again, because no request was made of them."""
        for batch in batches:
            if batch.is_in_flight:
                self.in_flight.remove(batch)
            self._accumulator.reenqueue(batch, now_ms)
            self._mute(batch, is_muted=False)

    def _mute(self, batch: ProducerBatch, *, is_muted: bool) -> None:
        if self._guarantee_message_order:
            self._accumulator.queues.of_partition(batch.topic_partition).is_muted = is_muted

    # ANSWERS

    def handle_answer(self, batch: ProducerBatch, answer: PartitionProduceResponse, source: tuple[int, int], now_ms: int) -> None:
        """Apply a broker's answer to a batch that is no longer in flight. `source`: node and correlation id, for the log."""
        error = Errors.for_code(answer.error_code)
        if error:
            batch.last_error = str(error) + (f": {printable(answer.error_message)}" if answer.error_message else "")
            batch.is_in_doubt |= error.persisted is not Persisted.NO  # an answer says nothing about earlier attempts
        try:
            # Without an error the answer alone decides: most batches need no BatchFacts.
            step = next_step(error, self._facts(batch, answer, now_ms)) if error else NextStep.COMPLETE
            if logger.isEnabledFor(logging.DEBUG):
                node, correlation_id = source
                logger.debug("< node %d: %r, correlation id %d: %s -> %s", node, batch, correlation_id, error, step.value)
            if batch.is_done:
                self._settle_late_answer(batch, step)
            else:
                self._take_step(batch, step, error, answer, now_ms)
        except Exception as exception:
            if batch.is_done:
                self._accumulator.deallocate(batch)  # does nothing if that was done before
            elif not self._accumulator.is_queued(batch):
                failure = _internal_error(batch, f"handled the broker's answer, {error}", exception)
                self.fail(batch, failure, final_state=FinalState.ABORTED)
            raise
        finally:
            self._mute(batch, is_muted=False)
        if error.must_refresh_metadata:
            self._metadata.request_update(f"{batch.topic_partition}: {error}")

    def _facts(self, batch: ProducerBatch, answer: PartitionProduceResponse, now_ms: int) -> BatchFacts:
        is_expired = batch.has_reached_delivery_timeout(self._config.delivery_timeout_ms, now_ms)
        may_retry = batch.attempts < self._config.retries and not is_expired and not batch.is_done
        sequence = self._sequencer.sequence_facts(batch)
        return BatchFacts(batch.record_count, may_retry, batch.is_done, sequence, answer.log_start_offset)

    def _settle_late_answer(self, batch: ProducerBatch, step: NextStep) -> None:
        """Handle the answer for a batch that failed in flight: only its sequences and its memory are left to settle."""
        if step is NextStep.COMPLETE:
            self._sequencer.handle_completed_batch(batch)
        self._accumulator.deallocate(batch)

    def _take_step(
        self, batch: ProducerBatch, step: NextStep, error: ErrorCode, answer: PartitionProduceResponse, now_ms: int
    ) -> None:
        if step is NextStep.COMPLETE:
            self._succeed(batch, answer)
        elif step in (NextStep.RETRY, NextStep.RETRY_IN_NEW_EPOCH):
            if step is NextStep.RETRY_IN_NEW_EPOCH:
                self._sequencer.request_epoch_bump(batch.topic_partition)
            self._retry(batch, error, now_ms)
        elif step is NextStep.SPLIT:
            self._split(batch)
        else:
            failure = self._answer_error(batch, error, answer)
            if step is NextStep.FATAL:
                self._sequencer.become_fatal(failure)
            self.fail(batch, failure, _record_errors(failure, error, answer, batch.record_count))

    def _retry(self, batch: ProducerBatch, error: ErrorCode, now_ms: int) -> None:
        logger.info("! %s: retrying after attempt %d: %s", batch.topic_partition, batch.attempts + 1, batch.last_error)
        self._metrics.records_retried(batch.topic_partition.topic, batch.record_count)
        self._accumulator.reenqueue(batch, now_ms, self._sequencer.max_backoff_ms(error))

    def _split(self, batch: ProducerBatch) -> None:
        logger.info("! %s: %d bytes are too large for the broker; splitting", batch.topic_partition, batch.size_bytes)
        self._metrics.splits.record(1)
        # Earlier attempts were as large, so the records are not in the log, unless the broker's limit was lowered meanwhile.
        smaller_batches = self._accumulator.split(batch)
        try:
            self._sequencer.replace_in_flight(batch, smaller_batches)
            for smaller_batch in reversed(smaller_batches):  # inserted by sequence; without sequences each goes to the front
                self._accumulator.queues.put_back(smaller_batch)
        except Exception as exception:
            error = _internal_error(batch, "split the batch", exception)
            self._sequencer.handle_failed_batch(batch, error)
            for smaller_batch in smaller_batches:
                if not self._accumulator.is_queued(smaller_batch):
                    self.abort(smaller_batch, error)
            raise

    def _succeed(self, batch: ProducerBatch, answer: PartitionProduceResponse) -> None:
        self._sequencer.handle_completed_batch(batch)
        # The offset is unknown for a duplicate that the broker no longer remembers, and if the answer's offset cannot be right.
        is_known = not answer.error_code and 0 <= answer.base_offset <= LONG_MAX - batch.record_count
        base_offset = answer.base_offset if is_known else UNKNOWN_OFFSET
        try:
            batch.complete(base_offset, answer.log_append_time_ms)
        finally:
            self._accumulator.deallocate(batch)

    def _answer_error(self, batch: ProducerBatch, error: ErrorCode, answer: PartitionProduceResponse) -> KafkaError:
        batch_text = f"{batch.topic_partition} ({batch.record_count} records, {batch.size_bytes} bytes)"
        if error == Errors.CLUSTER_AUTHORIZATION_FAILED:
            return idempotent_write_denied_error(batch_text)
        if error.is_retriable:
            batch_text += f", attempt {batch.attempts + 1}, retries={self._config.retries} or delivery.timeout.ms exhausted"
        exception = error.exception(batch_text, answer.error_message)
        exception.message += to_grant(error, topic=batch.topic_partition.topic)
        if error == Errors.MESSAGE_TOO_LARGE:
            exception.message += (
                f" Raise it to at least {batch.size_bytes} (without a value of its own, the topic has the brokers'"
                " message.max.bytes), compress more (compression.type), or write less per row."
            )
        return exception

    # FAILURE

    def fail(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
        *,
        final_state: FinalState = FinalState.FAILED,
    ) -> None:
        """Fail a batch's rows, and free its memory unless that is in use. Raises the SystemExit, or the like, of a callback."""
        if not batch.is_done:  # counted before the callbacks get the outcome
            self._metrics.records_failed(batch.topic_partition.topic, batch.record_count)
        try:
            batch.fail(error, record_errors, final_state)
        finally:
            self._sequencer.handle_failed_batch(batch, error)
            if batch.is_in_flight or batch.reservation_count:
                # Its memory is still in use, but flush() need not wait for it: its rows have failed.
                self._accumulator.incomplete.remove(batch)
            else:
                self._accumulator.deallocate(batch)

    def abort(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Fail a batch for a reason other than a broker's answer. Never raises, so that the batches after it fail too."""
        with self._failures.guard_step(batch):
            self.fail(batch, error, final_state=FinalState.ABORTED)

    def abort_all(self, error: KafkaError) -> None:
        """Fail every batch that is not done, queued or in flight, as `abort` does."""
        for batch in self._accumulator.take_incomplete(error):
            self.abort(batch, error)


def _internal_error(batch: ProducerBatch, action: str, exception: Exception) -> KafkaError:
    text = f"{batch.topic_partition}: the producer failed while it {action}: {exception!r}"
    return KafkaError(text, condition="KAFKA_INTERNAL_ERROR")


# With these errors the broker rejects the records, not only the batch.
_RECORD_REJECTIONS = (Errors.MESSAGE_TOO_LARGE, Errors.RECORD_LIST_TOO_LARGE, Errors.INVALID_RECORD, Errors.INVALID_TIMESTAMP)


def _record_errors(
    failure: KafkaError, error: ErrorCode, answer: PartitionProduceResponse, record_count: int
) -> dict[int, KafkaError]:
    """Errors of the rows that the broker names, by offset delta (KIP-467). A row named alone has the batch's condition."""
    if record_count == 1 and error in _RECORD_REJECTIONS and not answer.record_errors:
        return {0: failure}
    condition = failure.condition if len(answer.record_errors) == 1 else "KAFKA_INVALID_RECORD"
    return {
        record_error.batch_index: KafkaError(
            printable(record_error.batch_index_error_message or answer.error_message or "") or failure.message,
            condition=condition,
        )
        for record_error in answer.record_errors
        if 0 <= record_error.batch_index < record_count
    }
