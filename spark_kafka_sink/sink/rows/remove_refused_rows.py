"""Removes from a chunk the rows that the client refuses, before any row of the chunk is queued.

The producer refuses a whole chunk for one bad row. `remove_refused_rows` finds all bad rows of the chunk (find_refused_rows.py),
applies the user's choice to them (row_outcomes.py), and returns the others to be sent.
The producer waits max.block.ms for topics and partitions that do not exist before it refuses their rows. Such topics and
partitions are remembered here, so that a task waits once per topic and not once per chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.topic_names import is_topic_name
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.records.columns import texts
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.find_refused_rows import find_refused_rows
from spark_kafka_sink.sink.rows.row_outcomes import TOO_LARGE, RowOutcomes, UnwritableRows

if TYPE_CHECKING:
    from spark_kafka_sink.producer.task_producer import TaskProducer

SLOW_CONDITIONS = ("KAFKA_UNKNOWN_TOPIC", "KAFKA_UNKNOWN_PARTITION")  # the producer refuses such rows only after max.block.ms


@dataclass(eq=False, repr=False)
class RefusedRowRemover:
    """Removes refused rows from one task's chunks, and remembers its unknown topics and partitions."""

    producer: TaskProducer  # the task's
    config: ProducerConfig  # the producer's, for its limits
    outcomes: RowOutcomes
    takes_larger_rows: bool  # the producer takes larger rows than `config` says; those that are too large must be found here

    def __post_init__(self) -> None:
        self._size_limits = {"max.request.size": self.config.max_request_size, "buffer.memory": self.config.buffer_memory}
        self.must_check_first = self.takes_larger_rows  # whether chunks need remove_rows_known_to_fail
        self._partition_counts: dict[str, int] = {}  # of topics that lacked a partition after max.block.ms
        self._unknown_topics: dict[str, str] = {}  # topic -> error text, for topics that did not exist after max.block.ms

    def missing_topics(self, topics: Sequence[str]) -> frozenset[str]:
        """Which of these topics do not exist, by the brokers' answer; their rows are refused later. `topics` are valid names.

        Blocks at most max.block.ms for topics that the task has not asked for yet. Raises other errors as send_columns does.
        """
        self.producer.ask_for_topics(each for each in topics if each not in self._unknown_topics)
        for topic in topics:
            self._require_answer(topic, topics)
        self.must_check_first |= bool(self._unknown_topics)
        return frozenset(self._unknown_topics).intersection(topics)

    def _require_answer(self, topic: str, topics: Sequence[str]) -> None:
        """Wait until it is known whether the topic exists. `topics`: all that were asked for together with it."""
        if topic in self._unknown_topics:
            return
        try:
            self.producer.partitions_for(topic)
        except KafkaError as error:
            if error.condition == "KAFKA_UNKNOWN_TOPIC":
                self._unknown_topics |= self.producer.unknown_topics(topics)
            if topic not in self._unknown_topics:
                raise

    def remove_refused_rows(self, chunk: Chunk, error: KafkaError) -> Chunk:
        """The rows to be sent, after the producer has refused the chunk with `error`. The others are skipped or dead-lettered.

        Raises an error if a row must fail the task, and `error` itself if no row is the reason for it.
        """
        if not isinstance(error, InvalidRecordError) and error.condition != "KAFKA_UNKNOWN_TOPIC":
            raise error
        columns = chunk.columns
        topics = _topic_names(columns["topic"])
        if error.condition == "KAFKA_UNKNOWN_TOPIC" and not isinstance(columns["topic"], str):
            self._unknown_topics |= self.producer.unknown_topics(topics)
        if error.condition == "KAFKA_UNKNOWN_PARTITION" or self._partition_counts:
            self._update_partition_counts(topics)
        self.must_check_first |= bool(self._unknown_topics or self._partition_counts)
        refused_rows = find_refused_rows(columns, self._size_limits, self._partition_counts, self._unknown_topics)
        fatal_rows = next((each for each in refused_rows if self.outcomes.fails_task(each.condition)), None)
        if fatal_rows is not None:
            raise self._error_of_first_row(chunk, fatal_rows, error)
        if not refused_rows:
            raise error
        return self._remove(chunk, refused_rows)

    def remove_rows_known_to_fail(self, chunk: Chunk) -> Chunk:
        """The rows that are not too large, and whose topics and partitions may exist. The others are skipped or dead-lettered.
        Raises an error if a row must fail the task."""
        if self.takes_larger_rows:
            chunk = self._remove_large_rows(chunk)
        if not self._unknown_topics and not self._partition_counts:
            return chunk
        columns = chunk.columns
        highest_partition = None if columns["partition"] is None else pc.max(columns["partition"]).as_py()
        topics = _topic_names(columns["topic"])
        counted_topics = [name for name in topics if name in self._partition_counts]
        if highest_partition is not None and any(highest_partition >= self._partition_counts[name] for name in counted_topics):
            self._update_partition_counts(counted_topics)
        elif self._unknown_topics.keys().isdisjoint(topics):
            return chunk
        refused_rows = find_refused_rows(columns, self._size_limits, self._partition_counts, self._unknown_topics)
        awaited_rows = [each for each in refused_rows if each.condition in SLOW_CONDITIONS]
        fatal_rows = next((each for each in awaited_rows if self.outcomes.fails_task(each.condition)), None)
        if fatal_rows is not None:
            raise self._error_of_first_row(chunk, fatal_rows, KafkaTimeoutError(fatal_rows.text, condition=fatal_rows.condition))
        return self._remove(chunk, awaited_rows)

    def _remove_large_rows(self, chunk: Chunk) -> Chunk:
        refused_rows = find_refused_rows(chunk.columns, self._size_limits, {})
        return self._remove(chunk, [each for each in refused_rows if each.condition in TOO_LARGE])

    def _remove(self, chunk: Chunk, refused_rows: Sequence[UnwritableRows]) -> Chunk:
        if not refused_rows:
            return chunk
        for each in refused_rows:
            self.outcomes.apply(chunk, each)
        return chunk.drop(np.concatenate([each.rows for each in refused_rows]))

    def _error_of_first_row(self, chunk: Chunk, refused_rows: UnwritableRows, error: KafkaError) -> KafkaError:
        if error.condition != refused_rows.condition:
            error = InvalidRecordError(refused_rows.text, condition=refused_rows.condition)
        text = error.message if error.condition == "KAFKA_UNKNOWN_PARTITION" else refused_rows.text
        row_error = self.outcomes.error_naming_row(error, text, chunk, int(refused_rows.rows[0]))
        if refused_rows.condition == "KAFKA_NULL_TOPIC_IN_DATA":  # Spark's own message comes first, unchanged
            row_error.message = f"{text} It is {row_error.message.removesuffix(f': {text}')}"
        return row_error

    def _update_partition_counts(self, topics: Sequence[str]) -> None:
        """Take the counts from current metadata: topics may grow. Blocks only for a topic that nothing was written to yet."""
        for name in topics:
            if name in self._unknown_topics:
                continue
            try:
                self._partition_counts[name] = len(self.producer.partitions_for(name))
            except KafkaError as error:
                self._unknown_topics |= self.producer.unknown_topics(topics)
                if name not in self._unknown_topics:
                    raise error


def _topic_names(topic: str | pa.Array) -> list[str]:
    """The distinct valid topic names in the argument of send_columns."""
    names = [topic] if isinstance(topic, str) else texts(topic.drop_null().unique())
    return [name for name in names if is_topic_name(name)]
