"""A bundle of records that were sent one by one: lists while `send` fills it, then the RowsCallback of its rows.

When a bundle is sealed, its lists become Arrow columns, and its records are rows like any others. The Sender reports to the
bundle what became of them; futures and callbacks get it from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import NEVER_MS, Clock, milliseconds
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, copy_to_keep, fresh_copy
from spark_kafka_sink.interrupts import Waiters
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer import forks
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import BatchRows, RowsCallback
from spark_kafka_sink.producer.accumulator.row_metadata import metadata_of_rows
from spark_kafka_sink.producer.plugins.interceptors import InterceptorCallback, Interceptors
from spark_kafka_sink.producer.producer_record import Callback, ProducerColumns, RecordDetails, RecordMetadata
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.arrays import bytes_array, header_array, number_array
from spark_kafka_sink.records.columns import RecordColumns

logger = logging.getLogger(__name__)

_NO_LIMIT, _NO_MORE = 2**62, -1  # in `_limit_bytes`: memory was not charged yet; the bundle takes no more records
_FAILED = -1  # in `_outcomes`; a row with a smaller value is not settled
_FAILING = -2  # the row has an error, which interceptors get before its future does; an interrupt may prevent that
_PENDING = -3


class RecordFuture:
    """The outcome of one record. Holds only its bundle and its index in it, so that a million futures cost little."""

    __slots__ = ("_bundle", "_index")

    def __init__(self, bundle: RecordBundle, index: int) -> None:
        self._bundle = bundle
        self._index = index

    def done(self) -> bool:
        return self._bundle.is_settled(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record was written. Blocks until the record is settled, at most `timeout` seconds (as in
        concurrent.futures; `Delivery.result` takes milliseconds). Raises the record's error, or KafkaTimeoutError after that."""
        error = self.exception(timeout)
        if error is not None:
            raise fresh_copy(error)
        return self._bundle.metadata_of(self._index)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The record's error, or None when it was written. Blocks as `result` does."""
        self._bundle.await_settled(self._index, timeout)
        return self._bundle.error_of(self._index)


class _Acknowledgement(NamedTuple):
    """A broker's acknowledgement of rows in one batch."""

    batch_rows: BatchRows
    base_offset: int
    log_append_time_ms: int


class GatheredRecord(NamedTuple):
    """A record on its way into a bundle: its fields are the arguments of `RecordBundle.add`."""

    key: Any  # bytes or None, or what a serializer encodes for the whole bundle
    value: Any
    callback: Callback | None
    size_bytes: int  # an upper bound
    details: RecordDetails | None


ColumnOf = Callable[[str, str, Sequence[Any]], pa.Array]  # ("key" or "value", topic, what was gathered) -> column


def _column_of_bytes(part: str, topic: str, values: Sequence[Any]) -> pa.Array:  # noqa: ARG001
    return bytes_array(values)


class RecordBundle:
    """Single records of one topic. Holds columns from the start: lists with one entry per record, which `add` fills, and a dict
    of what few records have."""

    def __init__(self, topic: str, cluster: Cluster, clock: Clock, interceptors: Interceptors | None = None) -> None:
        self.topic = topic
        self.created_ms = clock.now_ms()  # linger.ms and delivery.timeout.ms count from the first record
        self.cluster = cluster  # metadata that contains the topic
        self.memory = PoolMemory()  # a charge, which RecordGatherer gives back when the bundle is encoded or failed
        self._lock = threading.Lock()  # guards what `add` fills
        self._limit_bytes = _NO_LIMIT  # the limit of `size_bytes`, or _NO_MORE
        self.size_bytes = 0  # the sum of the records' size bounds
        self.values: list[Any] = []  # bytes or None, or what a serializer encodes for the whole bundle
        self.keys: list[Any] = []
        self.sent_s: list[float] = []  # when `add` was called, in seconds since 1970: the timestamp of records without one
        self.details: dict[int, RecordDetails] = {}
        self.callbacks: list[Callback | None] = []
        self._clock = clock
        self._interceptors = interceptors
        self._generation = forks.generation()
        self._outcome_lock = threading.RLock()  # guards _acknowledgements, _entered_count, _outcomes and _errors
        self._waiters = Waiters(self._outcome_lock)  # woken whenever a row is settled
        self._acknowledgements: list[_Acknowledgement] = []
        self._entered_count = 0  # how many of these `_outcomes` contains; they are entered when it is read
        self._outcomes: npt.NDArray[np.int32] | None = None  # from `seal` on: index of an acknowledgement, or _FAILED, …
        self._errors: dict[int, KafkaError] = {}
        self._columns: RecordColumns | None = None  # for RecordMetadata; without payloads

    def __len__(self) -> int:
        return len(self.callbacks) if self._outcomes is None else len(self._outcomes)

    def add(
        self, key: Any, value: Any, callback: Callback | None, size_bytes: int, details: RecordDetails | None = None
    ) -> RecordFuture | None:
        """Add a record. None if the bundle takes no more, or if more memory has to be charged first."""
        with self._lock:
            size = self.size_bytes + size_bytes
            if size > self._limit_bytes:
                return None
            callbacks = self.callbacks
            index = len(callbacks)
            future = RecordFuture(self, index)
            try:
                self.values.append(value)
                self.keys.append(key)
                self.sent_s.append(self._clock.wall_s())
                if details is not None:
                    self.details[index] = details
                self.size_bytes = size
                callbacks.append(callback)  # last: with it the record is in the bundle
            except BaseException:
                self._limit_bytes = _NO_MORE  # an interrupt may have left half a record, which nothing may follow
                raise
            return future

    def charge(self, memory: PoolMemory, block_size: int) -> None:
        """Add to the memory that records may fill. Takes all of `memory`."""
        with self._lock:
            self.memory.add(memory)
            if not self.takes_no_more:
                self._limit_bytes = self.memory.charge_blocks * block_size

    @property
    def takes_no_more(self) -> bool:
        """Whether `add` refuses every record: the bundle is sealed, or will be."""
        return self._limit_bytes == _NO_MORE

    def missing_bytes(self, size_bytes: int) -> int:
        """How much more has to be charged before a record of this size fits."""
        return max(0, self.size_bytes + size_bytes - self._limit_bytes)

    def refuse_records(self) -> None:
        with self._lock:
            self._limit_bytes = _NO_MORE

    def seal(self) -> None:
        """Take no more records. From here on outcomes may be reported."""
        self.refuse_records()
        with self._outcome_lock:
            if self._outcomes is None:
                row_count = len(self.callbacks)
                for column in (self.values, self.keys, self.sent_s):
                    del column[row_count:]  # of a record that an interrupt has cut off
                self.details.pop(row_count, None)
                self._outcomes = np.full(row_count, _PENDING, np.int32)
                if self.callbacks.count(None) == row_count:
                    self.callbacks = []

    def as_columns(self, column_of: ColumnOf = _column_of_bytes) -> ProducerColumns:
        """The records as columns, as ColumnSender queues them. `column_of`: makes bytes of keys and values."""
        rounding_ms = 0.0005  # more than the error of seconds since 1970 in a double
        timestamps = (np.array(self.sent_s) * 1000 + rounding_ms).astype(np.int64)
        timestamp_by_row = {row: each.timestamp for row, each in self.details.items() if each.timestamp is not None}
        timestamps[list(timestamp_by_row)] = list(timestamp_by_row.values())
        row_count, headers = len(self.values), None
        if any(each.headers for each in self.details.values()):
            no_details = RecordDetails()
            headers = header_array([self.details.get(row, no_details).headers for row in range(row_count)])
        keys = column_of("key", self.topic, self.keys) if self.keys.count(None) < row_count else None
        named_partitions = self._named_partitions()
        partitions = number_array(named_partitions, named_partitions == NO_PARTITION)
        values = column_of("value", self.topic, self.values)
        return ProducerColumns(self.topic, values, keys, partitions, headers, number_array(timestamps))

    def _named_partitions(self) -> npt.NDArray[np.int32]:
        """int32[n]: the partitions that records name, NO_PARTITION for the others."""
        partitions = np.full(len(self), NO_PARTITION, np.int32)
        partition_by_row = {row: each.partition for row, each in self.details.items() if each.partition is not None}
        partitions[list(partition_by_row)] = list(partition_by_row.values())
        return partitions

    def keep_columns(self, columns: RecordColumns) -> None:
        """Keep sizes and timestamps of the columns that were made of the records, and drop all payloads."""
        self._columns = columns.without_payloads()
        self.values, self.keys, self.sent_s = [], [], []

    @property
    def rows_callback(self) -> RowsCallback:
        """What batches report outcomes to; with interceptors, these get them first. Available after `keep_columns`."""
        assert self._columns is not None
        return self if self._interceptors is None else InterceptorCallback(self._interceptors, self.topic, self._columns, self)

    # OUTCOMES: the Sender's thread, or a caller whose bundle could not be queued

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None:
        with self._outcome_lock:
            self._acknowledgements.append(_Acknowledgement(batch_rows, base_offset, log_append_time_ms))
            self._waiters.wake_all_locked()
        if self.callbacks:
            assert self._columns is not None
            metadata = metadata_of_rows(batch_rows, base_offset, log_append_time_ms, self._columns)
            self._call_back(batch_rows.positions, metadata, repeat(None))

    def fail(self, batch_rows: BatchRows, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        own_errors = {int(batch_rows.positions[index]): each for index, each in batch_rows.errors_of_rows(record_errors).items()}
        common_error = error
        if record_errors:
            common_error = KafkaError(
                f"{batch_rows.topic_partition}: the record itself is valid, but it was part of a batch with invalid records",
                condition="KAFKA_BATCH_HAS_INVALID_RECORDS",
            )
        self._begin_to_fail(batch_rows.positions, dict.fromkeys(batch_rows.positions.tolist(), common_error) | own_errors)
        self._settle_failing(batch_rows.positions)

    def fail_unbatched(self, positions: npt.NDArray[np.int32], error: KafkaError) -> None:
        error = copy_to_keep(error)
        positions = self._begin_to_fail(positions, dict.fromkeys(positions.tolist(), error))
        try:
            if self._interceptors is not None:
                self._interceptors.report_unbatched(self.topic, self._named_partitions()[positions], error)
        finally:
            self._settle_failing(positions)

    def fail_all(self, error: KafkaError) -> None:
        """Fail the rows that are not settled, and finish what an interrupted call has begun to fail."""
        positions = np.arange(len(self), dtype=np.int32)
        try:
            self.fail_unbatched(positions, error)
        finally:
            self._settle_failing(positions)

    def _begin_to_fail(self, positions: npt.NDArray[np.int32], errors: dict[int, KafkaError]) -> npt.NDArray[np.int32]:
        """Returns the rows that this call fails. When the producer ends, another thread may have failed some of them already."""
        with self._outcome_lock:
            outcomes = self._entered_outcomes_locked()
            assert outcomes is not None
            positions = positions[outcomes[positions] == _PENDING]
            self._errors.update((row, errors[row]) for row in positions.tolist())
            outcomes[positions] = _FAILING
            return positions

    def _settle_failing(self, positions: npt.NDArray[np.int32]) -> None:
        """Give these rows' errors to their futures, then to callbacks that were not called yet. Skips rows without an error."""
        with self._outcome_lock:
            assert self._outcomes is not None
            outcomes = self._outcomes[positions]
            positions = positions[(outcomes == _FAILING) | (outcomes == _FAILED)]
            self._waiters.wake_all_locked()
            self._outcomes[positions] = _FAILED
        if self.callbacks:
            self._call_back(positions, repeat(None), map(self._errors.get, positions.tolist()))

    def _call_back(
        self, positions: npt.NDArray[np.int32], outcomes: Iterable[RecordMetadata | None], errors: Iterable[KafkaError | None]
    ) -> None:
        """Call every record's callback, whatever one of them raises. Then raises the first that is no Exception (SystemExit)."""
        ended_by: BaseException | None = None
        callbacks = self.callbacks
        for row, metadata, error in zip(positions.tolist(), outcomes, errors, strict=False):
            # Taken out right before it is called: in between, CPython with its GIL runs no signal handler and no other thread.
            callback, callbacks[row] = callbacks[row], None
            if callback is None:
                continue
            try:
                callback(metadata, error)
            except Exception:
                logger.exception("! the callback of a record for %s raised", self.topic)
            except BaseException as exception:  # noqa: BLE001 - raised below
                ended_by = ended_by or exception
        if ended_by is not None:
            raise ended_by

    # FOR FUTURES: any thread

    def is_settled(self, row: int) -> bool:
        return self._outcome_of(row) >= _FAILED

    def _outcome_of(self, row: int) -> int:
        if forks.is_forked(self._generation):
            self._outcome_lock = threading.RLock()  # the thread that held the lock does not exist in this process
            self._waiters = Waiters(self._outcome_lock)
        with self._outcome_lock:
            outcomes = self._entered_outcomes_locked()
            return _PENDING if outcomes is None else int(outcomes[row])

    def _entered_outcomes_locked(self) -> npt.NDArray[np.int32] | None:
        """The outcomes, after all acknowledgements have been entered; None before `seal`."""
        if self._outcomes is not None:
            for index in range(self._entered_count, len(self._acknowledgements)):
                self._outcomes[self._acknowledgements[index].batch_rows.positions] = index
            self._entered_count = len(self._acknowledgements)
        return self._outcomes

    def await_settled(self, row: int, timeout_s: float | None) -> None:
        """Block until the row is settled. Raises KafkaTimeoutError after `timeout_s`, IllegalStateError in a forked child."""
        if forks.is_forked(self._generation) and not self.is_settled(row):
            forks.check_not_forked(self._generation, "the producer of this record")
        deadline_ms = NEVER_MS if timeout_s is None else self._clock.now_ms() + milliseconds(timeout_s)
        if not self._waiters.wait_until(lambda: self.is_settled(row), self._clock, deadline_ms):
            raise KafkaTimeoutError(f"a record for {self.topic} is not acknowledged after {timeout_s} s")

    def error_of(self, row: int) -> KafkaError | None:
        return self._errors.get(row)

    def metadata_of(self, row: int) -> RecordMetadata:
        """Where an acknowledged row was written."""
        assert self._columns is not None
        batch_rows, base_offset, log_append_time_ms = self._acknowledgements[self._outcome_of(row)]
        index = int(np.argmax(batch_rows.positions == row))
        return next(metadata_of_rows(batch_rows, base_offset, log_append_time_ms, self._columns, index))


def failed_record(
    topic: str,
    callback: Callback | None,
    details: RecordDetails | None,
    error: KafkaError,
    clock: Clock,
    interceptors: Interceptors | None = None,
) -> RecordFuture:
    """The future of a record that could not be gathered. Its callback has been called."""
    bundle = RecordBundle(topic, Cluster(), clock, interceptors)
    future = bundle.add(key=None, value=None, callback=callback, size_bytes=0, details=details)
    assert future is not None
    bundle.seal()
    bundle.fail_all(error)
    return future
