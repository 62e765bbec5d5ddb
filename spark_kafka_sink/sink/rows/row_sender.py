"""Sends a task's rows, and waits until each is acknowledged, skipped or dead-lettered.

Stands between writer.py, which reads Arrow batches, and KafkaProducer. refused_before_sending.py handles rows that the client
rejects, refused_by_brokers.py rows that a broker rejects; both apply the user's choice with row_outcomes.py.
Chunks are kept until they are acknowledged, up to KEPT_BYTES, so that an error can name its row and rows can be sent again.
Law: when finish() returns, rows == acknowledged + skipped + dead-lettered; anything else is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.config.sink_options import DEAD_LETTER
from spark_kafka_sink.errors import AbortableTransactionError, DeliveryError, KafkaError, TransactionAbortedError
from spark_kafka_sink.sink.commit_message import WrittenRange, merge_ranges
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.dead_letters import DeadLetters, is_consequence
from spark_kafka_sink.sink.rows.payloads import payload_bytes
from spark_kafka_sink.sink.rows.refused_before_sending import RefusedBeforeSending
from spark_kafka_sink.sink.rows.refused_by_brokers import error_of_delivery, handle_failure
from spark_kafka_sink.sink.rows.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.row_outcomes import RowOutcomes
from spark_kafka_sink.sink.rows.row_rules import RowRules
from spark_kafka_sink.sink.rows.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.producer.accumulator.delivery import Delivery
    from spark_kafka_sink.producer.producer import KafkaProducer

MAX_PENDING = 256  # deliveries that each send() looks at; buffer.memory keeps them far fewer, unless batches are tiny
MAX_RANGES = 10_000  # offset ranges before they are merged: each Arrow batch adds one per topic-partition
NO_HOLES = (
    ". With exactly-once, a row that a broker refuses fails its task, whatever onInvalidRecord and onRecordTooLarge say: the"
    " transaction cannot leave it out. Remove such rows before the write, or set kafka.max.request.size to the topic's limit"
)
KEPT_BYTES = 16 * 1024 * 1024  # of Arrow batches that are not acknowledged yet


@dataclass(slots=True)
class _Sent:
    delivery: Delivery
    chunk: Chunk | None  # None: no longer kept
    size: int = 0  # bytes of memory that the chunk takes


class RowSender:
    """Args:
    producer: the task's; RowSender does not close it.
    options: the producer's, for its limits.
    rules: what the user chose for rows that cannot be written.
    make_larger_producer: DeadLetters' argument.
    throttle: for tests.
    is_transactional: the producer's rows are one transaction, in which no refused row can be replaced by others: whatever a
        broker refuses fails the task. The producer takes rows of any size, and `options` say which ones are too large.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        mapping: RowMapping,
        options: Mapping[str, object],
        rules: RowRules,
        make_larger_producer: Callable[[], KafkaProducer],
        throttle: Throttle | None = None,
        *,
        is_transactional: bool = False,
    ) -> None:
        self._producer = producer
        self._mapping = mapping
        self._rules = rules
        self._is_transactional = is_transactional
        self._throttle = throttle or Throttle(rules.max_records_per_second, rules.max_bytes_per_second)
        topic = rules.dead_letter_topic
        self._fates = RowOutcomes(rules, mapping, None if topic is None else DeadLetters(topic, producer, make_larger_producer))
        takes_any_size = is_transactional and rules.on_record_too_large == DEAD_LETTER
        self._refused = RefusedBeforeSending(producer, mapping, options, self._fates, takes_any_size=takes_any_size)
        self._no_delivery_may_fail = rules.all_rows_must_be_written or is_transactional
        self._pending: deque[_Sent] = deque()
        self._kept: deque[_Sent] = deque()  # those of _pending that keep their chunk; the first ones may be settled already
        self._kept_bytes = 0
        self._again: deque[Chunk] = deque()  # rows to be sent again; empty whenever send() and finish() return
        self._written: list[WrittenRange] = []
        self.rows = 0
        self.acknowledged = 0

    @property
    def skipped(self) -> int:
        return self._fates.skipped

    @property
    def dead_lettered(self) -> int:
        return self._fates.dead_lettered

    @property
    def skipped_by_reason(self) -> Mapping[str, int]:
        return self._fates.skipped_by_reason

    @property
    def dead_lettered_by_reason(self) -> Mapping[str, int]:
        return self._fates.dead_lettered_by_reason

    @property
    def held_back_seconds(self) -> float:
        """How long the user's rates have made the caller wait."""
        return self._throttle.waited_ms / 1000

    def written(self) -> tuple[WrittenRange, ...]:
        return merge_ranges(self._written)

    @property
    def has_rates(self) -> bool:
        return not self._throttle.is_off

    def seconds(self, table: pa.Table) -> float:
        """How long it takes to send these rows at the user's rates."""
        return self._throttle.seconds(table.num_rows, int(payload_bytes(self._mapping.unchecked_columns(table)).sum()))

    # SENDING

    def send(self, table: pa.Table) -> None:
        """Queue all rows. Blocks as send_columns does, and for as long as the user's rates require.

        Raises KafkaError for a row that must be written and cannot be, so that the task fails before it has read all rows.
        """
        chunk = Chunk(table, range(self.rows, self.rows + table.num_rows))
        self.rows += table.num_rows
        if self._throttle.is_off:
            self._send(chunk)
            self._send_again()
            return
        for start, stop in self._throttle.runs(payload_bytes(self._mapping.unchecked_columns(table))):
            self._send(chunk.slice(start, stop))
            self._send_again()

    def finish(self) -> None:
        """Wait until every row is acknowledged, skipped or dead-lettered. Blocks for a flush, and another if rows are sent again.

        Raises the first error.
        """
        self._producer.flush()
        while self._pending:
            self._settle(self._pending.popleft())  # waits only for rows that were sent again; there are fewer each time
            self._send_again()
        self._fates.finish()
        if self.rows != self.acknowledged + self.skipped + self.dead_lettered:
            raise DeliveryError(
                f"the task read {self.rows} rows, of which {self.acknowledged} are acknowledged, {self.skipped} skipped and"
                f" {self.dead_lettered} dead-lettered; no error was reported for the others"
            )

    def close(self, timeout_ms: int | None) -> None:
        """Close the second producer of the dead letters, if there is one."""
        self._fates.close(timeout_ms)

    def _send_again(self) -> None:
        """Send the rows of `_again`. A loop, because sending settles other chunks, which may add rows to it."""
        while self._again:
            self._send(self._again.popleft())

    def _send(self, chunk: Chunk) -> None:
        try:
            self._send_or_refuse(chunk)
        except (TransactionAbortedError, AbortableTransactionError):
            self._raise_failure()
            raise

    def _send_or_refuse(self, chunk: Chunk) -> None:
        chunk = self._refused.remove_rows_known_to_fail(chunk)
        while chunk.table.num_rows:
            try:
                delivery = self._producer.send_columns(**self._mapping.columns(chunk.table))
            except KafkaError as error:  # the producer has queued none of these rows
                self._raise_failure()  # the reason in a transaction; it names the row
                if is_consequence(error):
                    raise  # its condition is that of the other rows
                chunk = self._refused.remove_refused_rows(chunk, error)
            else:
                self._add_pending(_Sent(delivery, chunk, chunk.table.nbytes))
                return

    # SETTLING

    def _add_pending(self, sent: _Sent) -> None:
        """Add a delivery. Raises if a delivery has failed the task; settles deliveries that are done or exceed a limit."""
        self._pending.append(sent)
        self._kept.append(sent)
        self._kept_bytes += sent.size
        self._raise_failure()
        while self._pending and (self._pending[0].delivery.done() or len(self._pending) > MAX_PENDING):
            self._settle(self._pending.popleft())
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            if self._no_delivery_may_fail:
                self._drop_chunk(self._kept.popleft())
            else:
                self._settle(self._pending.popleft())  # its rows may have to be sent again, so they cannot be dropped

    def _raise_failure(self) -> None:
        """If a delivery that must not fail has failed. Of several: one that does not only follow from another."""
        if not self._no_delivery_may_fail:
            return
        failed = [(each, each.delivery.error) for each in self._pending if each.delivery.error is not None]
        for each, error in failed:
            if not is_consequence(error):
                raise self._failure_of(each, error)
        self._fates.raise_failure()
        for each, error in failed:
            raise self._failure_of(each, error)

    def _failure_of(self, sent: _Sent, error: KafkaError) -> KafkaError:
        found = error_of_delivery(sent.delivery, error, sent.chunk, self._mapping)
        if self._is_transactional and not is_consequence(error) and not self._fates.fails_task(found.condition):
            found.message = found.message.rstrip(".") + NO_HOLES
        return found

    def _settle(self, sent: _Sent) -> None:
        """Wait for a delivery and count its rows."""
        delivery, failed = sent.delivery, None
        if not delivery.done():
            self._producer.flush(until=delivery)
        try:
            delivery.result()
        except KafkaError as error:
            failed = error
        if failed is not None and self._no_delivery_may_fail:
            self._pending.appendleft(sent)
            self._raise_failure()
            raise self._failure_of(sent, failed)  # it has no outcome yet
        self.acknowledged += delivery.acknowledged
        self._written += [
            WrittenRange(topic, partition, part.first, part.last, part.rows, part.bytes)
            for (topic, partition), part in delivery.offsets.items()
        ]
        if len(self._written) > MAX_RANGES:
            self._written = list(merge_ranges(self._written))
        chunk = sent.chunk
        self._drop_chunk(sent)
        for failure in delivery.failures:
            others = handle_failure(chunk, failure, self._mapping, self._fates)
            if others is not None:
                self._again.append(others)

    def _drop_chunk(self, sent: _Sent) -> None:
        if sent.chunk is not None:
            sent.chunk = None
            self._kept_bytes -= sent.size
        while self._kept and self._kept[0].chunk is None:
            self._kept.popleft()
