"""Sends a task's rows, and waits until each is acknowledged, skipped or dead-lettered.

Stands between writer.py, which passes on chunks, and KafkaProducer. remove_refused_rows.py handles rows that the client
refuses, rejected_by_brokers.py rows that a broker rejects; both apply the user's choice by row_outcomes.py.
Chunks are kept until they are acknowledged, up to MAX_KEPT_BYTES, so that an error can name its row and rows can be sent again.
Law: when finish() returns, rows == acknowledged + skipped + dead-lettered; anything else is an error.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.config.format_options import SchemaUse
from spark_kafka_sink.config.sink_options import DEAD_LETTER, FAIL_TASK, SinkOptions
from spark_kafka_sink.errors import (
    NOT_ENCODABLE,
    AbortableTransactionError,
    DeliveryError,
    InvalidRecordError,
    KafkaError,
    TransactionAbortedError,
)
from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, TaskTimes, WrittenRange, elapsed_s, merge_ranges
from spark_kafka_sink.sink.rows.chunk import Chunk, UnencodedRows
from spark_kafka_sink.sink.rows.dead_letters import DeadLetters, is_consequence
from spark_kafka_sink.sink.rows.rate_limit import RateLimit
from spark_kafka_sink.sink.rows.rejected_by_brokers import error_of_delivery, handle_failure
from spark_kafka_sink.sink.rows.remove_refused_rows import RefusedRowRemover
from spark_kafka_sink.sink.rows.row_outcomes import RowOutcomes, UnwritableRows

if TYPE_CHECKING:
    from spark_kafka_sink.producer.accumulator.delivery import Delivery
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.producer.task_producer import TaskProducer
    from spark_kafka_sink.sink.task import Task

MAX_PENDING_DELIVERIES = 256  # send() looks at each; buffer.memory allows far fewer, unless chunks are tiny
MAX_RANGES = 10_000  # offset ranges before they are merged: each chunk adds one per topic-partition
WHY_TASK_FAILS = (
    ". With exactly-once, a row that a broker rejects fails its task, whatever onInvalidRecord and onRecordTooLarge say: the"
    " transaction cannot leave it out. Remove such rows before the write, or set kafka.max.request.size to the topic's limit"
)
MAX_KEPT_BYTES = 16 * 1024 * 1024  # of chunks that are not acknowledged yet


@dataclass(slots=True)
class _SentChunk:
    """A chunk that was sent, and its Delivery."""

    delivery: Delivery
    chunk: Chunk | None  # None: no longer kept


class RowSender:
    """Sends one task's chunks, and counts what becomes of their rows.

    Args:
        producer: the task's; RowSender does not close it.
        options: of the write.
        make_larger_producer: makes a producer for dead letters that are too large for `producer`.
        is_transactional: the producer's rows are one transaction, in which no rejected row can be replaced by others. So
            whatever a broker rejects fails the task. With onRecordTooLarge=deadLetter the producer takes rows of up to
            MAX_ROW_BYTES bytes, for the dead letters, and `options` say which rows are too large.
    """

    def __init__(
        self,
        producer: TaskProducer,
        options: SinkOptions,
        make_larger_producer: Callable[[], KafkaProducer],
        *,
        is_transactional: bool = False,
    ) -> None:
        self._producer = producer
        self._is_transactional = is_transactional
        rates = options.max_records_per_second, options.max_bytes_per_second
        self.rate_limit = RateLimit(*rates) if any(rates) else None
        topic = options.dead_letter_topic
        self._dead_letters = None if topic is None else DeadLetters(topic, producer, make_larger_producer)
        self._outcomes = RowOutcomes(options, self._dead_letters)
        # Rows by condition; of the dead letters those that are acknowledged.
        self.skipped_by_reason = self._outcomes.skipped_by_reason
        self.dead_lettered_by_reason = Counter[str]() if self._dead_letters is None else self._dead_letters.acknowledged_by_reason
        takes_larger_rows = is_transactional and options.on_record_too_large == DEAD_LETTER
        self._remover = RefusedRowRemover(producer, options.producer, self._outcomes, takes_larger_rows)
        self.missing_topics = self._remover.missing_topics
        self._no_delivery_may_fail = is_transactional or options.on_record_too_large == options.on_invalid_record == FAIL_TASK
        self._pending: deque[_SentChunk] = deque()
        self._kept_chunks: deque[_SentChunk] = deque()  # those of _pending that keep their chunk; the first ones may be settled
        self._kept_bytes = 0
        self._chunks_to_repeat: deque[Chunk] = deque()  # rows to be sent again; empty whenever send() and finish() return
        self._ranges: list[WrittenRange] = []
        self.rows = 0
        self.acknowledged = 0

    def commit_message(self, task: Task, waited_s: float, schemas: tuple[SchemaUse, ...] = ()) -> KafkaCommitMessage:
        """Make the task's message, after finish(). `waited_s`: for Spark's rows. `schemas`: that the rows were encoded with."""
        metrics = self._producer.metrics(since_start=True)
        held_back_s = 0.0 if self.rate_limit is None else self.rate_limit.held_back_ms / 1000
        return KafkaCommitMessage(
            spark_partition=task.partition,
            attempt=task.attempt,
            query_id=task.query_id,
            batch_id=task.batch_id,
            rows=self.acknowledged,
            bytes=sum(each.bytes for each in self._ranges),
            counters=tuple(round(metrics.get(name, 0), 3) for name in COUNTERS),
            seconds=elapsed_s(task.started_monotonic_s),
            skipped=self.skipped_by_reason.total(),
            dead_lettered=self.dead_lettered_by_reason.total(),
            written=merge_ranges(self._ranges),
            times=TaskTimes(task.started_wall_ms, round(waited_s, 3), round(held_back_s, 3)),
            skipped_by_reason=tuple(self.skipped_by_reason.items()),
            dead_lettered_by_reason=tuple(self.dead_lettered_by_reason.items()),
            schemas=schemas,
        )

    # SENDING

    def send(self, chunk: Chunk) -> None:
        """Queue all rows. Blocks as send_columns does, and for as long as the user's rates require.

        Raises KafkaError for a row that must be written and cannot be, so that the task fails before it has read all rows.
        """
        self.rows += len(chunk.numbers)
        for each in chunk.unencoded_rows:
            self._apply_choice(each)
        for portion in (chunk,) if self.rate_limit is None else self.rate_limit.portions(chunk):
            self._send(portion)
            self._send_again()

    def finish(self) -> None:
        """Wait until every row is acknowledged, skipped or dead-lettered. Blocks for a flush, and another if rows are sent again.

        Raises the error of a row that failed; if one row made others fail, its error. The second producer of the dead letters, if
        there is one, is closed.
        """
        self._producer.flush()
        while self._pending:
            self._settle(self._pending.popleft())  # waits only for rows that were sent again; there are fewer each time
            self._send_again()
        if self._dead_letters is not None:
            self._dead_letters.finish()
        skipped_count, dead_lettered_count = self.skipped_by_reason.total(), self.dead_lettered_by_reason.total()
        if self.rows != self.acknowledged + skipped_count + dead_lettered_count:
            raise DeliveryError(
                f"the task read {self.rows} rows, of which {self.acknowledged} are acknowledged, {skipped_count} skipped and"
                f" {dead_lettered_count} dead-lettered; no error was reported for the others"
            )
        if self._dead_letters is not None:
            self._dead_letters.close(timeout_ms=None)

    def close_after_failure(self) -> None:
        """End after a failure: close the second producer of the dead letters, if there is one. Its unsettled rows fail."""
        if self._dead_letters is not None:
            self._dead_letters.close(timeout_ms=0)

    def _apply_choice(self, rows: UnencodedRows) -> None:
        chunk, text = rows.chunk, f"{rows.field}: {rows.reason}"
        if self._outcomes.fails_task(NOT_ENCODABLE):
            raise self._outcomes.error_naming_row(InvalidRecordError("", condition=NOT_ENCODABLE), text, chunk, 0)
        self.rows += len(chunk.numbers)
        every_row = np.arange(len(chunk.numbers))
        self._outcomes.apply(chunk, UnwritableRows(NOT_ENCODABLE, text, every_row, rows.field))

    def _send_again(self) -> None:
        """Send the rows of `_chunks_to_repeat`. A loop, because sending settles other chunks, which may add rows to it."""
        while self._chunks_to_repeat:
            self._send(self._chunks_to_repeat.popleft())

    def _send(self, chunk: Chunk) -> None:
        try:
            self._send_or_refuse(chunk)
        except (TransactionAbortedError, AbortableTransactionError):
            self._raise_failure()
            raise

    def _send_or_refuse(self, chunk: Chunk) -> None:
        if self._remover.must_check_first:
            chunk = self._remover.remove_rows_known_to_fail(chunk)
        while len(chunk.numbers):
            try:
                delivery = self._producer.send_columns(**chunk.columns)
            except KafkaError as error:  # the producer has queued none of these rows
                self._raise_failure()  # in a transaction: the failure that caused this error, with its row
                if is_consequence(error):
                    raise  # other rows are to blame, and `error` has their condition
                chunk = self._remover.remove_refused_rows(chunk, error)
            else:
                self._add_pending(delivery, chunk)
                return

    # SETTLING

    def _add_pending(self, delivery: Delivery, chunk: Chunk) -> None:
        """Add a delivery. Raises if a delivery has failed the task; settles deliveries that are done or exceed a limit."""
        sent_chunk = _SentChunk(delivery, chunk)
        self._pending.append(sent_chunk)
        self._kept_chunks.append(sent_chunk)
        self._kept_bytes += chunk.size_bytes
        self._raise_failure()
        while self._pending and (self._pending[0].delivery.done() or len(self._pending) > MAX_PENDING_DELIVERIES):
            self._settle(self._pending.popleft())
        while self._kept_bytes > MAX_KEPT_BYTES and len(self._kept_chunks) > 1:
            if self._no_delivery_may_fail:
                self._drop_chunk(self._kept_chunks.popleft())
            else:
                self._settle(self._pending.popleft())  # its rows may have to be sent again, so they cannot be dropped

    def _raise_failure(self) -> None:
        """Raise the error of a delivery that must not fail, if there is one; one that made others fail comes first."""
        if not self._no_delivery_may_fail:
            return
        failures = [(each, each.delivery.error) for each in self._pending if each.delivery.error is not None]
        for sent_chunk, error in failures:
            if not is_consequence(error):
                raise self._failure_of(sent_chunk, error)
        if self._dead_letters is not None:
            self._dead_letters.raise_failure()
        if failures:
            raise self._failure_of(*failures[0])

    def _failure_of(self, sent_chunk: _SentChunk, error: KafkaError) -> KafkaError:
        failure = error_of_delivery(sent_chunk.delivery, error, sent_chunk.chunk, self._outcomes)
        if self._is_transactional and not is_consequence(error) and not self._outcomes.fails_task(failure.condition):
            failure.message = failure.message.rstrip(".") + WHY_TASK_FAILS
        return failure

    def _settle(self, sent_chunk: _SentChunk) -> None:
        """Wait for a delivery and count its rows."""
        delivery, result_error = sent_chunk.delivery, None
        if not delivery.done():
            self._producer.flush(until=delivery)
        try:
            delivery.result()
        except KafkaError as error:
            result_error = error
        if result_error is not None and self._no_delivery_may_fail:
            self._pending.appendleft(sent_chunk)
            self._raise_failure()
            raise self._failure_of(sent_chunk, result_error)  # result() raised, although the delivery has no error
        self.acknowledged += delivery.acknowledged
        self._ranges += [WrittenRange(topic, partition, *offsets) for (topic, partition), offsets in delivery.offsets.items()]
        if len(self._ranges) > MAX_RANGES:
            self._ranges = list(merge_ranges(self._ranges))
        chunk = sent_chunk.chunk
        self._drop_chunk(sent_chunk)
        for failure in delivery.failures:
            others = handle_failure(chunk, failure, self._outcomes)
            if others is not None:
                self._chunks_to_repeat.append(others)

    def _drop_chunk(self, sent_chunk: _SentChunk) -> None:
        if sent_chunk.chunk is not None:
            self._kept_bytes -= sent_chunk.chunk.size_bytes
            sent_chunk.chunk = None
        while self._kept_chunks and self._kept_chunks[0].chunk is None:
            self._kept_chunks.popleft()
