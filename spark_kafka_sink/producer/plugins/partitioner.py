"""Which partition each row goes to: whole columns in, an int32 column out.

A partition that the row names comes first. Then a user's partitioner decides, if there is one; otherwise murmur2 of the key over
all partitions, also those without a leader, so that a key always has the same partition. Rows that are still undecided go to the
sticky partitioner (KIP-794). The built-in partitioners use the sizes of rows, not their bytes.
Law: the answers of a user's partitioner are checked, and no row of a chunk is queued before all rows have an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.dotted_names import KAFKAS_PARTITIONERS
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError, InvalidRecordError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.plugin import Plugin, make_plugin
from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.interleave import contiguous


class StickyPartitioner:
    """Spreads rows without a key: sends them to one partition until that is a full batch, then switches to a random partition.

    It switches where a batch ends. If the partition's open batch is partly filled already, the partition gets rows until the
    batch after it is full too, so at most twice the batch size; this avoids what KIP-794 calls fractional batches.
    Once queue lengths are known, partitions with shorter queues are chosen more often.

    Args:
        batch_size: bytes that a partition gets before the switch.
        open_bytes: returns how many bytes of a partition's open batch are filled.
        random: seeded by tests.
    """

    def __init__(self, batch_size: int, open_bytes: Callable[[int], int], random: Random) -> None:
        self._batch_size = batch_size
        self._open_bytes = open_bytes
        self._random = random
        self.in_use = False  # set by the first row without a key: before that, queue lengths are not needed
        self._lock = threading.Lock()  # guards the three below; held while assigning, never while waiting
        self._partition = NO_PARTITION
        self._produced_bytes = 0
        self._quota_bytes = 0
        # Cumulative weights, and the partitions they belong to. The Sender replaces the tuple as a whole.
        self._load: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None

    def assign(self, row_bytes: npt.NDArray[np.int64], available: Sequence[int]) -> npt.NDArray[np.int32]:
        """Partitions for rows of the given sizes, in order. `available` are the partitions to choose from; not empty."""
        self.in_use = True
        ends = np.cumsum(row_bytes)
        out = np.empty(len(row_bytes), np.int32)
        with self._lock:
            if self._partition not in available:
                self._switch(available)
            start, before = 0, 0
            while start < len(out):
                stop = int(np.searchsorted(ends, before + self._quota_bytes - self._produced_bytes)) + 1
                stop = min(stop, len(out))
                out[start:stop] = self._partition
                self._produced_bytes += int(ends[stop - 1]) - before
                start, before = stop, int(ends[stop - 1])
                if self._produced_bytes >= self._quota_bytes:
                    self._switch(available)
        return out

    def _switch(self, available: Sequence[int]) -> None:
        self._partition = self._next_partition(available)
        self._produced_bytes = 0
        filled = min(self._open_bytes(self._partition), self._batch_size)
        self._quota_bytes = self._batch_size if filled == 0 else 2 * self._batch_size - filled

    def _next_partition(self, available: Sequence[int]) -> int:
        load = self._load
        if load is None:
            return available[self._random.randrange(len(available))]
        cumulative, partitions = load
        drawn = self._random.randrange(int(cumulative[-1]))
        return int(partitions[np.searchsorted(cumulative, drawn, side="right")])

    def update_load(self, queue_sizes: Sequence[int], partitions: Sequence[int], all_counted: bool) -> None:
        """Use these queue lengths from now on: a partition's weight is the longest length + 1 - its own.

        `all_counted` is false when slow partitions were left out. Then equal lengths are used too: they exclude the slow ones.
        """
        sizes = np.asarray(queue_sizes, np.int64)
        if len(sizes) == 0 or (all_counted and (len(sizes) < 2 or (sizes == sizes[0]).all())):
            self._load = None
        else:
            self._load = (np.cumsum(sizes.max() + 1 - sizes), np.asarray(partitions, np.int32))


class RoundRobinPartitioner:
    """Assigns rows to the partitions in turn, whatever their keys. Kafka's class of this name. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the counter
        self._next = 0

    def assign(self, rows: int, available: Sequence[int]) -> npt.NDArray[np.int32]:
        with self._lock:
            turns = np.arange(self._next, self._next + rows) % len(available)
            self._next = (self._next + rows) % len(available)
        return np.asarray(available, np.int32)[turns]


# A USER'S PARTITIONER


class Partitioner(Protocol):
    """What `partitioner.class` may name: a class with this method, or a function with the same arguments.

    The class need not inherit from this one. `configure` and `close` are optional. Several threads may call at the same time.
    """

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> npt.NDArray[Any] | pa.Array:
        """A partition for each row of a slice of one topic, at most 32,768 rows. Rows that name a partition are left out.

        If this raises, no row of the send_columns call is queued, and the caller gets an error that names this class. Of records
        that are sent one by one, those that were gathered together fail. This method must not wait for the producer.

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
    """As in Java, `partitioner.class` may also name a class that only has this method.

    It costs a call and several Python objects per record: about a microsecond, where columns cost nanoseconds.
    """

    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, cluster: Cluster
    ) -> int | None:
        """The record's partition; None or -1 to let the sticky partitioner choose.

        `key` and `value` are the arguments of `send`. For rows that came as columns they are the bytes.
        """
        ...


class UserPartitioner:
    """Calls a user's partitioner for the rows that name no partition, and checks its answers.

    Args:
        config: `partitioner.class` is read from it; `configure` gets its `for_plugins()`.

    Raises ConfigError if the partitioner cannot be loaded, created or configured.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._plugin = make_plugin(_OPTION, config.partitioner_class)
        self._by_columns = _column_method(self._plugin)
        self._by_record = self._plugin.method("partition")
        try:
            if self._by_columns is None and self._by_record is None:
                raise ConfigError(
                    f"{_OPTION}={self._plugin.name} has neither partition_columns(topic, key, value, cluster) nor"
                    " partition(topic, key, key_bytes, value, value_bytes, cluster)"
                )
            self._plugin.configure(_OPTION, config.for_plugins())
        except ConfigError:
            self._plugin.close()
            raise

    @classmethod
    def of(cls, config: ProducerConfig) -> UserPartitioner | None:
        """None if `partitioner.class` is not set or names one of Kafka's."""
        return None if config.partitioner_class in (None, *KAFKAS_PARTITIONERS) else cls(config)

    @property
    def asks_per_record(self) -> bool:
        return self._by_columns is None

    def decide(
        self,
        topic: str,
        columns: RecordColumns,
        partitions: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        cluster: Cluster,
    ) -> npt.NDArray[np.int32]:
        """The partitions of all rows of a chunk: those given, and the user's choice where NO_PARTITION is given.

        NO_PARTITION remains where the user's partitioner leaves the choice to the sticky one. `rows` are the rows' positions in
        the caller's chunk, for error texts. Raises KafkaError.
        """
        undecided = partitions == NO_PARTITION
        if not undecided.any():
            return partitions
        if not undecided.all():
            columns, rows = replace(columns, headers=None).take(np.flatnonzero(undecided)), rows[undecided]
        key, value = (
            pa.nulls(columns.rows, pa.binary()) if column is None else contiguous(column)
            for column in (columns.key, columns.value)
        )
        try:
            if self._by_columns is not None:
                answer = self._by_columns(topic, key, value, cluster)
            else:
                answer = self._ask_per_row(topic, key, value, cluster)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}", topic) from error
        decided = partitions.copy()
        decided[undecided] = self._checked(answer, topic, rows, cluster.partition_count(topic) or 1)
        return decided

    def _ask_per_row(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> pa.Array:
        assert self._by_record is not None
        pairs = zip(key.to_pylist(), value.to_pylist(), strict=True)
        answers = (self._by_record(topic, each, each, data, data, cluster) for each, data in pairs)
        return pa.array([None if each is None else whole_number(each, "partition") for each in answers], pa.int64())

    def decide_record(
        self, topic: str, key: object, key_bytes: bytes | None, value: object, value_bytes: bytes | None, cluster: Cluster
    ) -> int:
        """The partition of a record that names none, or NO_PARTITION. Raises KafkaError. Only if `asks_per_record`."""
        assert self._by_record is not None
        try:
            answer = self._by_record(topic, key, key_bytes, value, value_bytes, cluster)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}", topic) from error
        count = cluster.partition_count(topic) or 1
        if type(answer) is int and 0 <= answer < count:
            return answer
        numbers = np.array([NO_PARTITION if answer is None else answer])
        return int(self._checked(numbers, topic, np.zeros(1, np.int32), count)[0])

    def _checked(self, answer: object, topic: str, rows: npt.NDArray[np.int32], partition_count: int) -> npt.NDArray[np.int32]:
        numbers = self._numbers(answer, topic)
        if numbers.shape != rows.shape:
            raise self._failed(f"returned {numbers.size} partitions for {len(rows)} rows", topic)
        wrong = (numbers < NO_PARTITION) | (numbers >= partition_count)
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidRecordError(
                f"partitioner {self._plugin.name} chose partition {numbers[at]} for row {rows[at]} of this chunk, but topic"
                f" {topic} has partitions 0 to {partition_count - 1}; null or -1 lets the sticky partitioner choose",
                condition="KAFKA_INVALID_PARTITION",
            )
        return numbers.astype(np.int32)

    def _numbers(self, answer: object, topic: str) -> npt.NDArray[Any]:
        kind: object = type(answer).__name__
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            kind = answer.type
            if pa.types.is_integer(answer.type) or pa.types.is_null(answer.type):
                try:
                    answer = pc.fill_null(answer.cast(pa.int64()), NO_PARTITION).to_numpy(zero_copy_only=False)
                except pa.ArrowInvalid as error:  # uint64 beyond int64
                    raise self._failed(f"returned numbers that are not partitions: {error}", topic) from error
        elif isinstance(answer, np.ndarray):
            kind = f"an array of {answer.dtype}"
        if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "iu":
            raise self._failed(f"returned {kind}, not a numpy or Arrow array of whole numbers", topic)
        return answer

    def _failed(self, what: str, topic: str) -> KafkaError:
        return KafkaError(
            f"partitioner {self._plugin.name} {what}; topic {topic}. No row of this chunk has been queued",
            condition="KAFKA_PARTITIONER_FAILED",
        )

    def close(self) -> None:
        """Never raises."""
        self._plugin.close()


_OPTION = "partitioner.class"


def _column_method(plugin: Plugin) -> Callable[..., object] | None:
    found = plugin.method("partition_columns")
    if found is None and plugin.method("partition") is None and callable(plugin.instance):
        return plugin.instance
    return found
