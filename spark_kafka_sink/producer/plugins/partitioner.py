"""A user's own partitioner, `partitioner.class`: whole columns in, an int32 column out.

Law: the answers of a user's partitioner are checked, and no row of a `send_columns` call is queued before all its rows have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError, InvalidRecordError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.plugin import Plugin, make_plugin
from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.arrays import int64_array, numbers_of
from spark_kafka_sink.records.layouts import contiguous


class Partitioner(Protocol):
    """What `partitioner.class` may name: a class with this method, or a function with the same arguments.

    The class need not inherit from this one. `configure` and `close` are optional. Threads that send call the method,
    perhaps several at the same time; for records of `send` the Sender thread does too.
    """

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> npt.NDArray[Any] | pa.Array:
        """A partition for each row of a slice of one topic. Rows that name a partition are left out. A slice has at most 32,768
        rows of columns, or the records that were gathered together.

        If it raises, no row of the send_columns call is queued, and the caller gets an error that names this class. For records
        of `send`, all that were gathered together fail. The method must not wait for the producer.

        Args:
            topic: of all rows.
            key, value: binary or large_binary columns of equal length, null where a row has none.
            cluster: `partition_count(topic)`, `partitions_for(topic)`, `available_partitions(topic)` (with a leader), `nodes`.

        Returns:
            Whole numbers, as a numpy or Arrow array of that length: 0 to the number of partitions - 1, or null or -1 to let the
            sticky partitioner choose.
        """
        ...


class RecordPartitioner(Protocol):
    """The method of Java's partitioners: `partitioner.class` may also name a class that has only this. It costs a call and
    several Python objects per record, where columns cost nanoseconds."""

    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, cluster: Cluster
    ) -> int | None:
        """The record's partition; None or -1 to let the sticky partitioner choose.

        `key` and `value` are the arguments of `send`. They are bytes for rows of columns, and for records of `send` that an
        interceptor takes as columns.
        """
        ...


class UserPartitioner:
    """Calls a user's partitioner for the rows that name no partition, and checks its answers.

    Raises ConfigError if the partitioner cannot be loaded, created or configured, or has neither method.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._plugin = make_plugin(_OPTION, config.partitioner_class)
        self._column_method = _find_column_method(self._plugin)
        self._record_method = self._plugin.method("partition")
        try:
            if self._column_method is None and self._record_method is None:
                raise ConfigError(
                    f"{_OPTION}={self._plugin.name} has neither partition_columns(topic, key, value, cluster) nor"
                    " partition(topic, key, key_bytes, value, value_bytes, cluster)"
                )
            self._plugin.configure(_OPTION, config.for_plugins())
        except BaseException:  # an interrupt too
            self._plugin.close()
            raise

    @property
    def asks_per_record(self) -> bool:
        return self._column_method is None

    def decide(self, rows: TopicRows, cluster: Cluster, *, are_gathered: bool = False) -> npt.NDArray[np.int32]:
        """The partitions of all rows: what a row names, or the user's choice where that is NO_PARTITION. Raises KafkaError.

        NO_PARTITION remains where the user's partitioner leaves the choice to the sticky partitioner. `are_gathered`: the rows
        are records of `send`, so the error names none.
        """
        topic, columns, partitions = rows.topic, rows.columns, rows.partitions
        is_undecided = partitions == NO_PARTITION
        if not is_undecided.any():
            return partitions
        if not is_undecided.all():
            columns = replace(columns, headers=None).take(np.flatnonzero(is_undecided))
        key, value = (
            pa.nulls(columns.row_count, pa.binary()) if column is None else contiguous(column)
            for column in (columns.key, columns.value)
        )
        method = self._ask_per_row if self._column_method is None else self._column_method
        answer = self._ask(method, topic, key, value, cluster)
        all_partitions = partitions.copy()
        positions = None if are_gathered else rows.positions[is_undecided]
        partition_count = cluster.partition_count(topic) or 1
        all_partitions[is_undecided] = self._checked_partitions(answer, topic, len(key), partition_count, positions)
        return all_partitions

    def _ask(self, method: Callable[..., object], topic: str, *arguments: object) -> object:
        try:
            return method(topic, *arguments)
        except Exception as error:
            raise self._failure_error(f"raised {type(error).__name__}: {error}", topic) from error

    def _ask_per_row(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> pa.Array:
        assert self._record_method is not None
        pairs = zip(key.to_pylist(), value.to_pylist(), strict=True)
        answers = (self._record_method(topic, row_key, row_key, row_value, row_value, cluster) for row_key, row_value in pairs)
        return int64_array([None if each is None else whole_number(each, "partition") for each in answers])

    def decide_record(
        self, topic: str, key: object, key_bytes: bytes | None, value: object, value_bytes: bytes | None, cluster: Cluster
    ) -> int:
        """The partition of a record that names none, or NO_PARTITION. Raises KafkaError. Only if `asks_per_record`."""
        assert self._record_method is not None
        answer = self._ask(self._record_method, topic, key, key_bytes, value, value_bytes, cluster)
        partition_count = cluster.partition_count(topic) or 1
        if type(answer) is int and 0 <= answer < partition_count:
            return answer
        numbers = np.array([NO_PARTITION if answer is None else answer])
        return int(self._checked_partitions(numbers, topic, 1, partition_count)[0])

    def _checked_partitions(
        self, answer: object, topic: str, row_count: int, partition_count: int, positions: npt.NDArray[np.int32] | None = None
    ) -> npt.NDArray[np.int32]:
        numbers = self._checked_numbers(answer, topic)
        if numbers.shape != (row_count,):
            raise self._failure_error(f"returned {numbers.size} partitions for {row_count} rows", topic)
        is_wrong = (numbers < NO_PARTITION) | (numbers >= partition_count)
        if is_wrong.any():
            index = int(is_wrong.argmax())
            row = None if positions is None else int(positions[index])
            raise InvalidRecordError(
                f"partitioner {self._plugin.name} chose partition {numbers[index]} for"
                f" {'a record' if row is None else f'row {row} of this chunk'}, but topic {topic} has partitions 0 to"
                f" {partition_count - 1}; null or -1 lets the sticky partitioner choose",
                row=row,
                condition="KAFKA_INVALID_PARTITION",
            )
        return numbers.astype(np.int32)

    def _checked_numbers(self, answer: object, topic: str) -> npt.NDArray[Any]:
        kind: object = type(answer).__name__
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            kind = answer.type
            if pa.types.is_integer(answer.type) or pa.types.is_null(answer.type):
                try:
                    answer = numbers_of(answer.cast(pa.int64()), at_null=NO_PARTITION)
                except pa.ArrowInvalid as error:  # uint64 beyond int64
                    raise self._failure_error(f"returned numbers that are not partitions: {error}", topic) from error
        elif isinstance(answer, np.ndarray):
            kind = f"an array of {answer.dtype}"
        if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "iu":
            raise self._failure_error(f"returned {kind}, not a numpy or Arrow array of whole numbers", topic)
        return answer

    def _failure_error(self, fact: str, topic: str) -> KafkaError:
        return KafkaError(
            f"partitioner {self._plugin.name} {fact}; topic {topic}. No row has been queued", condition="KAFKA_PARTITIONER_FAILED"
        )

    def close(self) -> None:
        """Call the partitioner's `close`, see Plugin.close."""
        self._plugin.close()


_OPTION = "partitioner.class"


def _find_column_method(plugin: Plugin) -> Callable[..., object] | None:
    method = plugin.method("partition_columns")
    if method is None and plugin.method("partition") is None and callable(plugin.instance):
        return plugin.instance
    return method
