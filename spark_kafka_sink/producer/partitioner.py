"""Which partition each row goes to: whole columns in, an int32 column out.

Explicit partitions first, then a user's partitioner if there is one, else murmur2 of the key over all partitions (leaderless
ones too, so that a key never moves), then the sticky partitioner for rows that are still undecided (KIP-794). The built-in ones
know the sizes of rows, not their bytes.
Law: what a user's partitioner answers is checked, and nothing of a chunk is queued before all of it has its answer.
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
from spark_kafka_sink.producer.plugins import Plugin, make_plugin
from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.interleave import contiguous

UNDECIDED = -1  # in an int32 column: the row has no partition yet


class StickyPartitioner:
    """Spreads rows without a key: stays with one partition for a batch's worth of bytes, then moves to a random one.

    Moves where a batch ends: a partition whose open batch is partly filled keeps the row stream until the batch after it is full
    too, at most twice the batch size (KIP-794 calls what it avoids fractional batches).
    With queue lengths, a partition is drawn the more often the shorter its queue is.

    Args:
        batch_size: bytes, the quota of a stay.
        open_bytes: tells how many bytes of a partition's open batch are filled.
        random: seeded by tests.
    """

    def __init__(self, batch_size: int, open_bytes: Callable[[int], int], random: Random) -> None:
        self._batch_size = batch_size
        self._open_bytes = open_bytes
        self._random = random
        self.in_use = False  # whether any row came without a key: without one, nobody needs queue lengths
        self._lock = threading.Lock()  # guards the three below; held while assigning, never while waiting
        self._partition = -1
        self._produced_bytes = 0
        self._quota_bytes = 0
        self._load: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None  # replaced whole by the Sender

    def assign(self, row_bytes: npt.NDArray[np.int64], available: Sequence[int]) -> npt.NDArray[np.int32]:
        """Partitions for rows of the given sizes, in order. `available` are the partitions to draw from; not empty."""
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
        """Take note of queue lengths: a partition's weight is the longest length + 1 - its own.

        `all_counted` is false when slow partitions were left out; then even equal lengths say where to go.
        """
        sizes = np.asarray(queue_sizes, np.int64)
        if len(sizes) == 0 or (all_counted and (len(sizes) < 2 or (sizes == sizes[0]).all())):
            self._load = None
        else:
            self._load = (np.cumsum(sizes.max() + 1 - sizes), np.asarray(partitions, np.int32))


class RoundRobinPartitioner:
    """Row after row to partition after partition, whatever its key. Kafka's class of this name; any thread may call."""

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
    """What `partitioner.class` may name: a class with this method, or a function of the same arguments.

    There is no need to inherit from it. `configure` and `close` may be left out. Several threads may call at a time.
    """

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> npt.NDArray[Any] | pa.Array:
        """A partition for each row of a slice of one topic, at most 32,768; rows that name one themselves are not shown.

        Args:
            topic: of all rows.
            key, value: binary or large_binary columns of equal length, null where a row has none.
            cluster: `partition_count(topic)`, `partitions_for(topic)`, `available_partitions(topic)` (with a leader), `nodes`.

        Returns:
            Whole numbers, as numpy or Arrow array of that length: 0 to the number of partitions - 1; null or -1 where the
            sticky partitioner shall choose.

        Raises anything: no row of the send_columns call is queued then, and the error names this class; of records sent singly,
        those that were gathered together fail. It must not wait for the producer.
        """
        ...


class RecordPartitioner(Protocol):
    """Java's way: `partitioner.class` may also name a class with this method alone.

    It costs a call and several Python objects per record, a microsecond or so, where columns cost nanoseconds.
    """

    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, cluster: Cluster
    ) -> int | None:
        """The record's partition; None or -1 where the sticky partitioner shall choose.

        `key` and `value` are what `send` was given; of rows that came as columns they are the bytes.
        """
        ...


class UserPartitioner:
    """A user's partitioner: asked for the rows that need it, its answers checked.

    Args:
        config: `partitioner.class` is read from it; `configure` gets its `for_plugins()`.

    Raises ConfigError when it cannot be loaded, made or configured.
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
        """None when the partitioner is one of Kafka's."""
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
        """Partitions of all rows of a chunk: those given, and the user's where UNDECIDED stands; UNDECIDED may remain.

        `rows` tell where each row stood in the caller's chunk, for error texts. Raises KafkaError.
        """
        undecided = partitions == UNDECIDED
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
        """The partition of a record that does not name one, or UNDECIDED. Raises KafkaError. Only if it `asks_per_record`."""
        assert self._by_record is not None
        try:
            answer = self._by_record(topic, key, key_bytes, value, value_bytes, cluster)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}", topic) from error
        count = cluster.partition_count(topic) or 1
        if type(answer) is int and 0 <= answer < count:
            return answer
        numbers = np.array([UNDECIDED if answer is None else answer])
        return int(self._checked(numbers, topic, np.zeros(1, np.int32), count)[0])

    def _checked(self, answer: object, topic: str, rows: npt.NDArray[np.int32], partition_count: int) -> npt.NDArray[np.int32]:
        numbers = self._numbers(answer, topic)
        if numbers.shape != rows.shape:
            raise self._failed(f"returned {numbers.size} partitions for {len(rows)} rows", topic)
        wrong = (numbers < UNDECIDED) | (numbers >= partition_count)
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidRecordError(
                f"partitioner {self._plugin.name} chose partition {numbers[at]} for row {rows[at]} of this chunk, but topic"
                f" {topic} has the partitions 0 to {partition_count - 1}; null or -1 leaves the choice to the sticky partitioner",
                condition="KAFKA_INVALID_PARTITION",
            )
        return numbers.astype(np.int32)

    def _numbers(self, answer: object, topic: str) -> npt.NDArray[Any]:
        kind: object = type(answer).__name__
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            kind = answer.type
            if pa.types.is_integer(answer.type) or pa.types.is_null(answer.type):
                try:
                    answer = pc.fill_null(answer.cast(pa.int64()), UNDECIDED).to_numpy(zero_copy_only=False)
                except pa.ArrowInvalid as error:  # uint64 beyond int64
                    raise self._failed(f"returned numbers that are no partitions: {error}", topic) from error
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
