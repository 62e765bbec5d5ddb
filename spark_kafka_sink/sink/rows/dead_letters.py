"""Sends rows that cannot be written to the dead letter topic, with headers that say where they belong and what was wrong.

A dead letter keeps its key, value, headers and, unless brokers may reject it, its timestamp. Headers whose names begin with
HEADER_PREFIX are added after its own. The task's producer sends it. Rows that are too large for that producer go through a
second one, which takes rows of up to MAX_ROW_BYTES bytes and is made when it is first needed.
Law: a row counts as dead-lettered when brokers have acknowledged its dead letter; if they reject that, the task fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AbortableTransactionError, KafkaError, RecordTooLargeError, TransactionAbortedError
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.records.arrays import number_array, scalar
from spark_kafka_sink.records.columns import header_entries
from spark_kafka_sink.sink.rows.chunk import PerRow

if TYPE_CHECKING:
    from spark_kafka_sink.producer.accumulator.delivery import Delivery
    from spark_kafka_sink.producer.producer import KafkaProducer

HEADER_PREFIX = "__pykafka_sink.errors."
_REJECTED_AS_INVALID = (Errors.INVALID_RECORD.condition, Errors.INVALID_TIMESTAMP.condition)  # or several timestamps
MAX_AHEAD_MS = 3_600_000  # the default of topics for timestamps in the future (message.timestamp.after.max.ms)
MAX_ROW_BYTES = 100_000_000  # the brokers' default limit for a request is 104,857,600 (socket.request.max.bytes)


class DeadLetters:
    """One task's dead letters, and the producers that send them.

    Args:
        topic: the dead letter topic.
        producer: the task's.
        make_larger_producer: makes the second producer, as the function of this name does; called at most once.
    """

    def __init__(self, topic: str, producer: KafkaProducer, make_larger_producer: Callable[[], KafkaProducer]) -> None:
        self._topic = topic
        self._producer = producer
        self._make_larger_producer = make_larger_producer
        self._larger_producer: KafkaProducer | None = None
        self._deliveries: list[tuple[str, Delivery]] = []  # with the condition of its rows
        self.acknowledged_by_reason: Counter[str] = Counter()  # condition -> rows

    def send(
        self, columns: Mapping[str, Any], condition: str, text: str, partition: int | None = None, field: str | None = None
    ) -> None:
        """Queue rows that cannot be written for the same reason. Blocks and raises as send_columns does.

        Args:
            columns: the arguments of send_columns for these rows alone.
            partition: the partition whose broker rejected them; None: the one in the partition column, if any.
            field: of the key or value, if that is what cannot be encoded.
        """
        letters = dead_letter_columns(columns, condition, text, partition, field)
        try:
            self._deliveries.append((condition, self._send(letters)))
        except KafkaError as error:
            if is_consequence(error):
                raise  # nothing is wrong with these rows
            raise self._error_naming_topic(error) from error
        self.raise_failure()
        while self._deliveries and self._deliveries[0][1].done():
            self._settle(*self._deliveries.pop(0))

    def _send(self, letters: dict[str, Any]) -> Delivery:
        try:
            return self._producer.send_columns(self._topic, **letters)
        except RecordTooLargeError:  # the producer has queued none of the rows
            if self._larger_producer is None:
                self._larger_producer = self._make_larger_producer()
            return self._larger_producer.send_columns(self._topic, **letters)

    def raise_failure(self) -> None:
        """Raise the first error that is a cause, not a consequence of another row's failure."""
        for _, delivery in self._deliveries:
            if delivery.error is not None and not is_consequence(delivery.error):
                raise self._error_naming_topic(delivery.error) from delivery.error

    def finish(self) -> None:
        """Wait until every row is acknowledged, at most as long as the producers' flush waits. Raises the first error."""
        if not self._deliveries:
            return
        self._producer.flush()
        if self._larger_producer is not None:
            self._larger_producer.flush()
        self.raise_failure()
        while self._deliveries:
            self._settle(*self._deliveries.pop(0))

    def _settle(self, condition: str, delivery: Delivery) -> None:
        try:
            delivery.result()
        except KafkaError as error:
            raise self._error_naming_topic(error) from error
        self.acknowledged_by_reason[condition] += delivery.acknowledged

    def _error_naming_topic(self, error: KafkaError) -> KafkaError:
        text = f"rows cannot be written to deadLetterTopic={self._topic} either: {error.message}"
        if error.condition == Errors.MESSAGE_TOO_LARGE.condition:
            text = f"{text.rstrip('.')}. Raise max.message.bytes of {self._topic}"
        return KafkaError(text, condition=error.condition)

    def close(self, timeout_ms: int | None) -> None:
        """Close the second producer, if there is one. Blocks as KafkaProducer.close does."""
        if self._larger_producer is not None:
            self._larger_producer.close(timeout_ms)


def is_consequence(error: KafkaError) -> bool:
    """Whether rows failed only because other rows of their transaction had failed."""
    return isinstance(error, (TransactionAbortedError, AbortableTransactionError))


def make_larger_producer(options: Mapping[str, object]) -> KafkaProducer:
    """Make the second producer. `options`: of the first."""
    from spark_kafka_sink.producer.task_producer import TaskProducer

    return TaskProducer(options_for_large_rows(options), largest_record=MAX_ROW_BYTES)


def options_for_large_rows(options: Mapping[str, object]) -> dict[str, object]:
    """The options of a producer with `largest_record=MAX_ROW_BYTES`: its pool has memory for such a row, in whole blocks."""
    from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES

    config = ProducerConfig.from_mapping(options)
    return {**options, "buffer.memory": max(config.buffer_memory, MAX_ROW_BYTES + MAX_POOL_BLOCK_BYTES)}


def dead_letter_columns(
    columns: Mapping[str, Any], condition: str, text: str, partition: int | None = None, field: str | None = None
) -> dict[str, Any]:
    """The arguments of send_columns, except the topic, for the dead letters of these rows. A header without a key gets the empty
    key, because a header must have one. A timestamp for which brokers may reject the dead letter too stays in a header only."""
    value = columns["value"]
    row_count = len(value)
    topic = pa.repeat(scalar(columns["topic"]), row_count) if isinstance(columns["topic"], str) else columns["topic"]
    partitions = columns["partition"] if partition is None else pa.repeat(scalar(partition), row_count)
    details = {
        "topic": topic.cast(pa.binary()),
        "partition": pa.nulls(row_count, pa.binary()) if partitions is None else partitions.cast(pa.string()).cast(pa.binary()),
        "condition": pa.repeat(scalar(condition.encode()), row_count),
        "message": pa.repeat(scalar(text.encode()), row_count),
    }
    if field is not None:
        details["field"] = pa.repeat(scalar(field.encode()), row_count)
    timestamp = columns["timestamp"]
    if timestamp is not None:
        details["timestamp"] = timestamp.cast(pa.string()).cast(pa.binary())
        is_rejected = partition is not None and condition in _REJECTED_AS_INVALID
        latest_ms = -1 if is_rejected else time.time_ns() // 1_000_000 + MAX_AHEAD_MS
        is_kept = pc.and_(pc.greater_equal(timestamp, scalar(0)), pc.less_equal(timestamp, scalar(latest_ms)))
        timestamp = pc.if_else(is_kept, timestamp, pa.nulls(1, pa.int64())[0])
    return {"key": columns["key"], "value": value, "headers": _with_headers(columns["headers"], details), "timestamp": timestamp}


def _with_headers(headers: pa.Array | None, details: Mapping[str, pa.Array]) -> pa.Array:
    """Each row's own headers, followed by one header for each name in `details`.

    `keys` and `values` list all own headers first, then one whole column per name; `order` sorts them by row.
    """
    row_count = len(next(iter(details.values())))
    counts: PerRow = np.zeros(row_count, np.int64)
    keys, values = [], []
    if headers is not None:
        counts, own_keys, own_values = header_entries(headers)
        keys.append(own_keys.cast(pa.string()).fill_null(scalar("")))
        values.append(own_values.cast(pa.binary()))
    for name, column in details.items():
        keys.append(pa.repeat(scalar(HEADER_PREFIX + name), row_count))
        values.append(column)
    own_count = int(counts.sum())
    positions = own_count + np.arange(len(details) * row_count).reshape(len(details), row_count).T.ravel()  # of details, by row
    order = np.insert(np.arange(own_count), np.repeat(np.cumsum(counts), len(details)), positions)
    entries = pa.StructArray.from_arrays([pa.concat_arrays(keys), pa.concat_arrays(values)], ["key", "value"])
    offsets = np.concatenate([[0], np.cumsum(counts + len(details))]).astype(np.int32)
    return pa.ListArray.from_arrays(number_array(offsets), entries.take(number_array(order)))
