"""Sends a task's rows and sees to it that each is acknowledged, or has the fate that the user chose for rows like it.

Stands between writer.py, which brings Arrow batches, and KafkaProducer. It keeps what is not acknowledged yet, up to KEPT_BYTES,
so that an error can tell which row it was, and so that rows which shared a batch with a refused one can be sent again.
Law: when finish() returns, rows == acknowledged + skipped + dead-lettered; anything else is an error.

How a row is refused
    by the producer, before anything of its chunk is queued: refused_rows.py finds all such rows, the others are sent
    by the broker, for its size: batches are split down to single rows, and only such a row fails
    by the broker, for what it is: the whole batch fails, and the rows that the broker does not name are sent again (KIP-467)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import DEAD_LETTER, FAIL, SKIP
from spark_kafka_sink.config.topic_names import is_topic_name
from spark_kafka_sink.errors import DeliveryError, InvalidRecordError, KafkaError, fresh_copy
from spark_kafka_sink.records.columns import texts
from spark_kafka_sink.sink.commit_protocol import WrittenRange, merge_ranges
from spark_kafka_sink.sink.dead_letters import DeadLetters
from spark_kafka_sink.sink.refused_rows import Refusal, find_refused_rows, payload_bytes, row_in_words
from spark_kafka_sink.sink.row_mapping import RowMapping
from spark_kafka_sink.sink.row_rules import RowRules
from spark_kafka_sink.sink.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.producer.accumulator.delivery import Delivery, RowFailure
    from spark_kafka_sink.producer.producer import KafkaProducer

logger = logging.getLogger(__name__)

MAX_PENDING = 256  # handles looked at for each Arrow batch; buffer.memory keeps them far below, unless batches are tiny
MAX_RANGES = 10_000  # kept before they are merged: each Arrow batch brings one per topic-partition
KEPT_BYTES = 16 * 1024 * 1024  # of Arrow batches that are not acknowledged yet
TO_WAIT_FOR = ("KAFKA_UNKNOWN_TOPIC", "KAFKA_UNKNOWN_PARTITION")  # the producer refuses such rows only after max.block.ms


@dataclass(slots=True)
class Chunk:
    """Rows as they came, and their numbers in the task's input."""

    table: pa.Table
    numbers: Sequence[int] | npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.int64]) -> Chunk:
        return Chunk(self.table.take(pa.array(rows)), np.asarray(self.numbers)[rows])

    def slice(self, start: int, stop: int) -> Chunk:
        return Chunk(self.table.slice(start, stop - start), self.numbers[start:stop])


@dataclass(slots=True)
class _Sent:
    delivery: Delivery
    chunk: Chunk | None  # None: no longer kept
    size: int = 0  # bytes that keeping it takes


class RowSender:
    """Args:
    producer: the task's.
    options: that the producer was made with, for its limits.
    rules: what the user chose.
    make_larger_producer: of DeadLetters.
    throttle: for tests.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        mapping: RowMapping,
        options: Mapping[str, object],
        rules: RowRules,
        make_larger_producer: Callable[[], KafkaProducer],
        throttle: Throttle | None = None,
    ) -> None:
        self._producer = producer
        self._mapping = mapping
        self._options = options
        self._rules = rules
        self._throttle = throttle or Throttle(rules.max_records_per_second, rules.max_bytes_per_second)
        topic = rules.dead_letter_topic
        self._dead_letters = None if topic is None else DeadLetters(topic, producer, make_larger_producer)
        self._pending: deque[_Sent] = deque()
        self._kept: deque[_Sent] = deque()  # those of _pending whose chunk is there, perhaps with settled ones in front
        self._kept_bytes = 0
        self._again: deque[Chunk] = deque()  # rows to be sent again; empty whenever send() and finish() return
        self._written: list[WrittenRange] = []
        self._partition_counts: dict[str, int] = {}  # of topics that lacked a partition after waiting max.block.ms for it
        self._unknown_topics: dict[str, str] = {}  # names of a column that brokers do not have, after the same wait; in words
        self._told: set[str] = set()  # conditions that have been logged
        self.rows = 0
        self.acknowledged = 0
        self.skipped = 0

    @property
    def dead_lettered(self) -> int:
        return 0 if self._dead_letters is None else self._dead_letters.acknowledged

    def written(self) -> tuple[WrittenRange, ...]:
        return merge_ranges(self._written)

    @property
    def has_rates(self) -> bool:
        return not self._throttle.is_off

    def seconds(self, table: pa.Table) -> float:
        """How long the user's rates make these rows take."""
        return self._throttle.seconds(table.num_rows, int(payload_bytes(self._mapping.unchecked_columns(table)).sum()))

    # SENDING

    def send(self, table: pa.Table) -> None:
        """Queue all rows. Blocks as send_columns does, and as long as the user's rates ask for.

        Raises KafkaError for a row that must be written and cannot be, so that a task fails before it has read all.
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

    def _send_again(self) -> None:
        """A loop, as sending settles other chunks, of which rows may have to be sent again too."""
        while self._again:
            self._send(self._again.popleft())

    def _send(self, chunk: Chunk) -> None:
        if self._unknown_topics or self._partition_counts:
            chunk = self._without_rows_known_to_fail(chunk)
        while chunk.table.num_rows:
            try:
                delivery = self._producer.send_columns(**self._mapping.columns(chunk.table))
            except KafkaError as error:  # of these rows, none has been queued
                chunk = self._without_refused_rows(chunk, error)
            else:
                self._keep(_Sent(delivery, chunk, chunk.table.nbytes))
                return

    def _keep(self, sent: _Sent) -> None:
        self._pending.append(sent)
        self._kept.append(sent)
        self._kept_bytes += sent.size
        if self._rules.all_rows_must_be_written:
            for each in self._pending:
                if each.delivery.error is not None:
                    raise self._with_row(each, each.delivery.error)
        while self._pending and (self._pending[0].delivery.done() or len(self._pending) > MAX_PENDING):
            self._settle(self._pending.popleft())
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            if self._rules.all_rows_must_be_written:
                self._forget(self._kept.popleft())
            else:
                self._settle(self._pending.popleft())  # it may have to be sent again: wait for it

    def _forget(self, sent: _Sent) -> None:
        if sent.chunk is not None:
            sent.chunk = None
            self._kept_bytes -= sent.size
        while self._kept and self._kept[0].chunk is None:
            self._kept.popleft()

    def finish(self) -> None:
        """Wait until every row has met its fate: as long as the producer's flush takes, and again if rows are sent again.

        Raises the first error.
        """
        self._producer.flush()
        while self._pending:
            sent = self._pending.popleft()
            if not sent.delivery.done():  # rows that were sent again: each time there are fewer
                self._producer.flush()
            self._settle(sent)
            self._send_again()
        if self._dead_letters is not None:
            self._dead_letters.finish()
        if self.rows != self.acknowledged + self.skipped + self.dead_lettered:
            raise DeliveryError(
                f"{self.rows} rows came in, {self.acknowledged} are acknowledged, {self.skipped} were skipped and"
                f" {self.dead_lettered} dead-lettered, without any error reported"
            )

    def close(self, timeout_ms: int | None) -> None:
        """End what it has made itself; the task's producer is not its own."""
        if self._dead_letters is not None:
            self._dead_letters.close(timeout_ms)

    def _settle(self, sent: _Sent) -> None:
        delivery = sent.delivery
        try:
            delivery.result()
        except KafkaError as error:
            if self._rules.all_rows_must_be_written:
                raise self._with_row(sent, delivery.error or error) from None
        self.acknowledged += delivery.acknowledged
        self._written += [
            WrittenRange(topic, partition, part.first, part.last, part.rows, part.bytes)
            for (topic, partition), part in delivery.offsets.items()
        ]
        if len(self._written) > MAX_RANGES:
            self._written = list(merge_ranges(self._written))
        chunk = sent.chunk
        self._forget(sent)
        for failure in delivery.failures:
            self._after_failure(chunk, failure)

    def _with_row(self, sent: _Sent, error: KafkaError) -> KafkaError:
        """A copy of the delivery's error, with the row that the broker blames if it is known which."""
        failure = next((each for each in sent.delivery.failures if each.error is error), None)
        if failure is None or not failure.blamed or sent.chunk is None:
            return fresh_copy(error)
        row, blamed = next(iter(failure.blamed.items()))
        partition = None if failure.topic_partition is None else failure.topic_partition.partition
        return self._told_of(sent.chunk, row, blamed, blamed.message, partition)

    def _told_of(self, chunk: Chunk, row: int, error: KafkaError, text: str, partition: int | None = None) -> KafkaError:
        told = fresh_copy(error)
        columns = self._mapping.unchecked_columns(chunk.table)
        told.message = f"{row_in_words(columns, row, int(chunk.numbers[row]), partition)}: {text}"
        return told

    # REFUSED BY THE PRODUCER

    def _without_refused_rows(self, chunk: Chunk, error: KafkaError) -> Chunk:
        """The rows that are good, after the others have had their fate. Raises if that is to fail, or if no row is to blame."""
        if not isinstance(error, InvalidRecordError) and error.condition != "KAFKA_UNKNOWN_TOPIC":
            raise error
        columns = self._mapping.unchecked_columns(chunk.table)
        topics = _topics(columns["topic"])
        if error.condition == "KAFKA_UNKNOWN_TOPIC" and not isinstance(columns["topic"], str):
            self._unknown_topics |= self._producer.unknown_topics(topics)
        if error.condition == "KAFKA_UNKNOWN_PARTITION" or self._partition_counts:
            self._learn_partition_counts(topics)
        refusals = find_refused_rows(columns, self._size_limits(), self._partition_counts, self._unknown_topics)
        failing = [each for each in refusals if self._rules.fate(each.condition) == FAIL]
        if failing:
            raise self._refusal_error(chunk, failing[0], error)
        if not refusals:
            raise error
        return self._without(chunk, refusals)

    def _without_rows_known_to_fail(self, chunk: Chunk) -> Chunk:
        """What the producer would find too, after waiting max.block.ms for the topics or partitions with every chunk anew."""
        columns = self._mapping.unchecked_columns(chunk.table)
        highest = None if columns["partition"] is None else pc.max(columns["partition"]).as_py()
        topics = _topics(columns["topic"])
        counted = [name for name in topics if name in self._partition_counts]
        if highest is not None and any(highest >= self._partition_counts[name] for name in counted):
            self._learn_partition_counts(counted)
        elif self._unknown_topics.keys().isdisjoint(topics):
            return chunk
        refusals = find_refused_rows(columns, self._size_limits(), self._partition_counts, self._unknown_topics)
        return self._without(chunk, [each for each in refusals if each.condition in TO_WAIT_FOR])

    def _without(self, chunk: Chunk, refusals: Sequence[Refusal]) -> Chunk:
        if not refusals:
            return chunk
        for each in refusals:
            self._reject(chunk, each)
        refused = np.concatenate([each.rows for each in refusals])
        return chunk.take(np.setdiff1d(np.arange(chunk.table.num_rows), refused))

    def _refusal_error(self, chunk: Chunk, refusal: Refusal, error: KafkaError) -> KafkaError:
        if error.condition != refusal.condition:
            error = InvalidRecordError(refusal.text, condition=refusal.condition)
        text = error.message if error.condition == "KAFKA_UNKNOWN_PARTITION" else refusal.text
        told = self._told_of(chunk, int(refusal.rows[0]), error, text)
        if refusal.condition == "KAFKA_NULL_TOPIC_IN_DATA":  # Spark's text first, as it is
            told.message = f"{text} It is {told.message.removesuffix(f': {text}')}"
        return told

    def _size_limits(self) -> dict[str, int]:
        config = ProducerConfig.from_mapping(self._options)
        return {"max.request.size": config.max_request_size, "buffer.memory": config.buffer_memory}

    def _learn_partition_counts(self, topics: Sequence[str]) -> None:
        """As metadata has them now: a topic may have grown. Waits only for a topic that nobody has written to yet."""
        for name in topics:
            if name in self._unknown_topics:
                continue
            try:
                self._partition_counts[name] = len(self._producer.partitions_for(name))
            except KafkaError as error:
                self._unknown_topics |= self._producer.unknown_topics(topics)
                if name not in self._unknown_topics:
                    raise error

    # REFUSED BY THE BROKER

    def _after_failure(self, chunk: Chunk | None, failure: RowFailure) -> None:
        if chunk is None or not failure.rows_are_named:
            raise fresh_copy(failure.error)
        partition = None if failure.topic_partition is None else failure.topic_partition.partition
        by_reason: dict[tuple[str, str], list[int]] = {}
        for row, error in failure.blamed.items():
            if self._rules.fate(error.condition) == FAIL:
                raise self._told_of(chunk, row, error, error.message, partition)
            by_reason.setdefault((error.condition, error.message), []).append(row)
        for (condition, text), rows in by_reason.items():
            self._reject(chunk, Refusal(condition, text, np.array(rows, np.int64)), partition)
        again = np.setdiff1d(failure.rows, np.array(list(failure.blamed), np.int64))
        if len(again):
            logger.info("sending %d rows again that shared a batch with refused ones", len(again))
            self._again.append(chunk.take(again))

    # FATES

    def _reject(self, chunk: Chunk, refusal: Refusal, partition: int | None = None) -> None:
        fate = self._rules.fate(refusal.condition)
        columns = self._mapping.unchecked_columns(chunk.take(refusal.rows).table)
        if refusal.condition not in self._told:
            self._told.add(refusal.condition)
            where = row_in_words(columns, 0, int(chunk.numbers[refusal.rows[0]]), partition)
            done = "skipped" if fate == SKIP else f"sent to {self._rules.dead_letter_topic}"
            logger.warning("%s [%s] %s: %s. Further rows like it are only counted", where, refusal.condition, refusal.text, done)
        if fate == SKIP:
            self.skipped += len(refusal.rows)
        elif fate == DEAD_LETTER and self._dead_letters is not None:
            self._dead_letters.send(columns, refusal.condition, refusal.text, partition)


def _topics(topic: str | pa.Array) -> list[str]:
    """The names that can be topics, of an argument of send_columns."""
    names = [topic] if isinstance(topic, str) else texts(topic.drop_null().unique())
    return [name for name in names if is_topic_name(name)]
