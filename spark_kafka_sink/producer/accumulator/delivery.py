"""The outcome of the rows that a caller has sent.

There is one Delivery per send_columns or send_table call, however many batches its rows are in, and no object per row. A batch
reports the outcome of BatchRows, its rows of one call, on the Sender's thread. Rows that got into no batch fail on the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, copy_to_keep, fresh_copy
from spark_kafka_sink.interrupts import Waiters
from spark_kafka_sink.producer import forks
from spark_kafka_sink.protocol.topic_partition import TopicPartition

UNKNOWN_OFFSET = -1  # acknowledged without an offset: acks=0, or a duplicate of a batch that the broker no longer remembers


class OffsetRange(NamedTuple):
    """What one write put into one topic-partition. Offsets that the broker did not return are -1."""

    first: int
    last: int
    rows: int
    bytes: int

    def merge(self, other: OffsetRange) -> OffsetRange:
        """Both ranges as one. A known offset takes precedence over an unknown one."""
        known_offsets = [offset for offset in (self.first, other.first) if offset != UNKNOWN_OFFSET]
        first, last = min(known_offsets, default=UNKNOWN_OFFSET), max(self.last, other.last)
        return OffsetRange(first, last, self.rows + other.rows, self.bytes + other.bytes)


class RowsCallback(Protocol):
    """What batches report outcomes to: a Delivery, a bundle of single records, or an object that passes outcomes on to one.
    `acknowledge` and `fail` are called for rows in a batch, `fail_unbatched` for rows that got into no batch."""

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None: ...

    def fail(self, batch_rows: BatchRows, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None: ...

    def fail_unbatched(self, positions: npt.NDArray[np.int32], error: KafkaError) -> None: ...


@dataclass(slots=True)
class BatchRows:
    """Rows of one call that are next to each other in one batch.

    `positions` are the rows' places in the caller's chunk and `sizes` the encoded sizes, both in the order of the batch. A split
    or an error of a single record needs them to find a row again. They take 8 bytes per row.
    """

    callback: RowsCallback
    topic_partition: TopicPartition
    first_delta: int  # offset of the first row within its batch
    positions: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    size_bytes: int

    @property
    def row_count(self) -> int:
        return len(self.positions)

    def first_offset(self, base_offset: int) -> int:
        """The offset of the first row, if the batch has this base offset."""
        return UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + self.first_delta

    def errors_of_rows(self, record_errors: Mapping[int, KafkaError]) -> dict[int, KafkaError]:
        """The errors of these rows, by index in `positions`. `record_errors` maps the batch's offset deltas to errors."""
        by_index = {delta - self.first_delta: error for delta, error in sorted(record_errors.items())}
        return {index: error for index, error in by_index.items() if 0 <= index < self.row_count}


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Rows of one batch, or of no batch, that failed together. `rows` are positions in the caller's chunk or table."""

    rows: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    error: KafkaError
    topic_partition: TopicPartition | None  # None: the rows were in no batch
    blamed: Mapping[int, KafkaError]  # the rows among them that the broker rejects as invalid (KIP-467), and why
    rows_are_named: bool  # the broker said which rows of the batch are invalid: the others may be sent again


class Delivery:
    """What `send_columns` and `send_table` return: counts rows until each is settled, which means acknowledged or failed.

    All attributes may be read at any time from any thread; `result` waits.
    """

    def __init__(self, rows: int, clock: Clock, whole_name: str = "chunk") -> None:
        self.rows = rows
        self.acknowledged = 0
        self.failed = 0
        self.error: KafkaError | None = None  # the first one
        self.failures: list[RowFailure] = []  # each failed row is in one of them
        self.offsets: dict[TopicPartition, OffsetRange] = {}
        self.settled_ns: int | None = None  # Clock.now_ns() when the last row was settled
        self._clock = clock
        self._whole_name = whole_name  # what error messages call all rows of the call
        self._generation = forks.generation()
        self._lock = threading.Lock()  # guards rows, acknowledged, failed, error, failures, offsets and settled_ns
        self._waiters = Waiters(self._lock)  # woken when the last row is settled

    def expect(self, row_count: int) -> RowsCallback:
        """Expect further rows, which are about to be queued. Returns their callback, which knows how many rows came before."""
        first_row = self.rows
        with self._lock:
            self.rows = first_row + row_count
            self.settled_ns = None  # those before may have been settled
        return self if first_row == 0 else _LaterRows(self, first_row)

    def done(self) -> bool:
        """Whether every row is settled. Never blocks."""
        return self.acknowledged + self.failed >= self.rows

    def result(self, timeout_ms: int | None = None) -> Delivery:
        """Wait until every row is settled, and return self.

        Blocks at most `timeout_ms` milliseconds, if given; a RecordFuture counts in seconds. Rows in batches are settled within
        `delivery.timeout.ms`. Raises the error of the rows that failed first, or KafkaTimeoutError after `timeout_ms`. In a
        forked child it never blocks, and raises KafkaError if rows are not settled.
        """
        if not forks.is_forked(self._generation):
            self._await_settled(timeout_ms)
        elif not self.done():
            forks.check_not_forked(self._generation, "the producer of these rows")
        if self.error is not None:
            raise fresh_copy(self.error)
        return self

    def _await_settled(self, timeout_ms: int | None) -> None:
        deadline_ms = NEVER_MS if timeout_ms is None else self._clock.now_ms() + timeout_ms
        if not self._waiters.wait_until(self.done, self._clock, deadline_ms):
            rows_left = self.rows - self.acknowledged - self.failed
            raise KafkaTimeoutError(f"{rows_left} of {self.rows} rows are not acknowledged after {timeout_ms} ms")

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None:
        """Count these rows as acknowledged, and add their offsets to `offsets`. The Sender calls it."""
        del log_append_time_ms  # only single records report timestamps
        row_count = len(batch_rows.positions)
        first_offset = batch_rows.first_offset(base_offset)
        last_offset = UNKNOWN_OFFSET if first_offset == UNKNOWN_OFFSET else first_offset + row_count - 1
        new_range = OffsetRange(first_offset, last_offset, row_count, batch_rows.size_bytes)
        with self._lock:
            earlier_range = self.offsets.get(batch_rows.topic_partition)
            self.offsets[batch_rows.topic_partition] = new_range if earlier_range is None else earlier_range.merge(new_range)
            self.acknowledged += row_count
            self._settle_locked()

    def fail(
        self,
        batch_rows: BatchRows,
        error: KafkaError,
        record_errors: Mapping[int, KafkaError],
        positions: npt.NDArray[np.int32] | npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Fail these rows. `record_errors` maps offset deltas to the errors of invalid rows (KIP-467).

        `positions`: the rows' positions in the call, if they differ from `batch_rows.positions`.
        """
        if positions is None:
            positions = batch_rows.positions
        row_errors = {int(positions[index]): row_error for index, row_error in batch_rows.errors_of_rows(record_errors).items()}
        if row_errors:
            row, row_error = next(iter(row_errors.items()))
            error = _at_row(row_error, batch_rows.topic_partition, row, self._whole_name)
        self._fail(
            RowFailure(positions, copy_to_keep(error), batch_rows.topic_partition, row_errors, rows_are_named=bool(record_errors))
        )

    def fail_unbatched(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64], error: KafkaError) -> None:
        """Fail rows that got into no batch."""
        self._fail(RowFailure(positions, copy_to_keep(error), None, {}, rows_are_named=False))

    def _fail(self, failure: RowFailure) -> None:
        with self._lock:
            self.failed += len(failure.rows)
            self.failures.append(failure)
            if self.error is None:
                self.error = failure.error
            self._settle_locked()

    def _settle_locked(self) -> None:
        if self.done():
            self.settled_ns = self._clock.now_ns()
            self._waiters.wake_all_locked()


class _LaterRows:
    """The callback of rows that follow earlier rows of their Delivery. Batches count these rows from 0, the Delivery does not."""

    def __init__(self, delivery: Delivery, first_row: int) -> None:
        self._delivery = delivery
        self._first_row = first_row

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None:
        self._delivery.acknowledge(batch_rows, base_offset, log_append_time_ms)

    def fail(self, batch_rows: BatchRows, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        self._delivery.fail(batch_rows, error, record_errors, self._positions_in_call(batch_rows.positions))

    def fail_unbatched(self, positions: npt.NDArray[np.int32], error: KafkaError) -> None:
        self._delivery.fail_unbatched(self._positions_in_call(positions), error)

    def _positions_in_call(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        return positions.astype(np.int64) + self._first_row


def _at_row(error: KafkaError, topic_partition: TopicPartition, row: int, whole_name: str) -> KafkaError:
    """The same error, its message preceded by the row's position."""
    row_error = fresh_copy(error)
    partition_text = "" if error.message.startswith(f"{topic_partition} ") else f", {topic_partition}"
    row_error.message = f"row {row} of this {whole_name}{partition_text}: {error.message}"
    return row_error
