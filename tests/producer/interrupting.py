"""Interrupts for tests, and an application that is interrupted once at a given point, and then does what the documents say.

Python looks for signals where a function begins, where a call of a C function has returned, and where a loop goes back.
Interrupts counts these points in one thread, in frames of the package and of the standard library's helpers that it uses, and
raises KeyboardInterrupt at those that the test names.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture
from spark_kafka_sink.producer.txn_requests.group_offsets import OffsetAndMetadata
from tests.producer.harness import tp
from tests.producer.transactions.transactional_brokers import GROUP

WHERE = ("spark_kafka_sink", "contextlib.py", "threading.py")
LIMIT_MS = 20_000  # nothing takes as long, unless it hangs
SPOILED = b" spoiled"  # how values of records end that cannot be sent


def may_be_interrupted(event: str, called: object) -> bool:
    """Whether Python looks for signals at this event of a profiler: where a function begins, or a C function has returned.

    Where `__enter__` of a C class returns to its `with` is a point in Python 3.14 only (python/cpython#148874). Nothing can be
    promised there, and it is left out.
    """
    return event == "call" or (event == "c_return" and getattr(called, "__name__", "") != "__enter__")


class Interrupted:
    """Runs a function and raises KeyboardInterrupt in it once, where Python looks for signals: at its n-th call or return."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.happened = False
        self.where = ""

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        if not may_be_interrupted(event, called) or "spark_kafka_sink" not in frame.f_code.co_filename:
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.happened = True
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt

    def run(self, function: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            function()
        except KeyboardInterrupt:
            assert self.happened
        finally:
            sys.setprofile(before)


class Interrupts:
    """Raises KeyboardInterrupt at each of these points, counted from 0, while it is the context.

    Python 3.12 traces the loops of a function from its second call on: a test that needs all points counts those of a second run.
    """

    raises: type[BaseException] = KeyboardInterrupt

    def __init__(self, *at: int) -> None:
        self._at = sorted(at, reverse=True)
        self._is_on = False
        self.points = 0
        self.places: dict[str, list[int]] = {}  # each place in the sources -> its points
        self.where: list[str] = []  # they came

    def __enter__(self) -> Interrupts:
        self._is_on = True
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False
        sys.settrace(None)
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, called: object) -> None:
        self._go_on()
        if may_be_interrupted(event, called):
            self._point(frame, event)

    def _go_on(self) -> None:
        """Python removes a profiler that has raised, or a tracer: the other one sets it again, for the points that are left."""
        if self._at and self._is_on:
            if sys.getprofile() is None:
                sys.setprofile(self._profile)
            if sys.gettrace() is None:
                sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        """For loops."""
        self._go_on()
        jumps = _jumps_back(frame.f_code) if _is_ours(frame.f_code.co_filename) else frozenset[int]()
        if not jumps:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in jumps:
            self._point(frame, "loop")
        return self._trace

    def _point(self, frame: FrameType, event: str) -> None:
        if not _is_ours(frame.f_code.co_filename):
            return
        point, self.points = self.points, self.points + 1
        place = f"{frame.f_code.co_filename.rpartition('spark_kafka_sink/')[2]}:{frame.f_lineno} {event}"
        self.places.setdefault(place, []).append(point)
        if self._at and point >= self._at[-1]:
            self._at.pop()
            self.where.append(place)
            if not self._at:
                sys.setprofile(None)
                sys.settrace(None)
            raise self.raises


class MemoryErrors(Interrupts):
    """Raises MemoryError instead, where functions begin: there is no memory for their frames."""

    raises = MemoryError

    def _point(self, frame: FrameType, event: str) -> None:
        if event == "call":
            super()._point(frame, event)


def places_of(interrupts: Interrupts) -> list[int]:
    """Points: the first and the last time that each place in the sources was passed."""
    return sorted({point for points in interrupts.places.values() for point in (points[0], points[-1])})


@cache
def _jumps_back(code: CodeType) -> frozenset[int]:
    """Where in the code Python looks for signals before it goes back."""
    return frozenset(
        each.offset for each in dis.get_instructions(code) if "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname
    )


@cache
def _is_ours(file: str) -> bool:
    return any(each in file for each in WHERE)


class Row:
    """A record that was sent alone, and what its callback heard."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.future: RecordFuture | None = None
        self.heard: list[KafkaError | None] = []

    def hear(self, _: object, error: KafkaError | None) -> None:
        self.heard.append(error)


class Application:
    """Calls a producer's methods one by one. After an interrupt it makes the same call again, unless the producer has ended.

    Rows of an interrupted `send`, `send_columns` or `send_table` may be written or not; they are sent again under another value.
    """

    def __init__(self, producer: KafkaProducer, name: str) -> None:
        self.producer = producer
        self.name = name
        self._value_count = 0
        self._rows: list[Row] = []
        self._deliveries: list[tuple[Delivery, list[bytes]]] = []
        self._in_transaction: list[bytes] = []
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.has_ended = False

    # CALLS

    def send(self, **details: Any) -> None:
        row = Row(self._value())
        self._rows.append(row)
        row.future = self.producer.send("single", row.value, callback=row.hear, **details)
        self._in_transaction.append(row.value)

    def send_spoiled(self) -> None:
        """An interceptor has it fail, on the thread that hands it over."""
        row = Row(self._value() + SPOILED)
        self._rows.append(row)
        row.future = self.producer.send("single", row.value, callback=row.hear)

    def send_full(self) -> None:
        """As much as makes a bundle full: the caller encodes it."""
        row = Row(self._value() + bytes(600_000))
        self._rows.append(row)
        row.future = self.producer.send("single", row.value, callback=row.hear)
        self._in_transaction.append(row.value)

    def send_columns(self) -> None:
        values = [self._value() for _ in range(3)]
        topics = pa.array(["single", "orders", "single"])
        delivery = self.producer.send_columns(topics, value=pa.array(values, pa.binary()))
        self._deliveries.append((delivery, values))
        self._in_transaction += values

    def send_table(self) -> None:
        """In three batches; the second one has no rows."""
        values = [self._value() for _ in range(4)]
        topics = pa.array(["single", "orders", "orders", "single"])
        rows = pa.record_batch({"topic": topics, "value": pa.array(values, pa.binary())})
        batches = [rows.slice(0, 2), rows.slice(0, 0), rows.slice(2, 2)]
        delivery = self.producer.send_table(None, pa.RecordBatchReader.from_batches(rows.schema, iter(batches)))
        self._deliveries.append((delivery, values))
        self._in_transaction += values

    def send_large_table(self) -> None:
        """More than buffer.memory: the call waits for memory in each batch."""
        values = [self._value() + bytes(100_000) for _ in range(40)]
        rows = pa.record_batch({"value": pa.array(values, pa.binary())})
        delivery = self.producer.send_table("orders", pa.Table.from_batches([rows.slice(0, 30), rows.slice(30)]))
        self._deliveries.append((delivery, values))
        self._in_transaction += values

    def send_large_columns(self) -> None:
        """More than buffer.memory: the call waits for memory."""
        values = [self._value() + bytes(100_000) for _ in range(40)]
        delivery = self.producer.send_columns("orders", value=pa.array(values, pa.binary()))
        self._deliveries.append((delivery, values))
        self._in_transaction += values

    def flush(self) -> None:
        self.producer.flush(LIMIT_MS)

    def results(self) -> None:
        for row in self._rows:
            if row.future is not None:
                row.future.result(LIMIT_MS / 1000)
        for delivery, _ in self._deliveries:
            delivery.result(LIMIT_MS)

    def init(self) -> None:
        self.producer.init_transactions()

    def begin(self) -> None:
        self._in_transaction = []
        self.producer.begin_transaction()

    def send_offsets(self) -> None:
        self.producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(5)}, GROUP)

    def commit(self) -> None:
        self.producer.commit_transaction()
        self.committed += self._in_transaction

    def prepare(self) -> None:
        self.producer.prepare_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()
        self.aborted += self._in_transaction

    def close(self) -> None:
        self.producer.close(LIMIT_MS)

    def _value(self) -> bytes:
        self._value_count += 1
        return b"%s-%03d" % (self.name.encode(), self._value_count)

    # THE STORY

    def play(self, story: Sequence[Callable[[Application], None]], interrupts: AbstractContextManager[Any]) -> None:
        """Make the calls. Within `interrupts` KeyboardInterrupt is raised now and then."""
        for call in story:
            self._make(call, interrupts)
        self.producer.close(LIMIT_MS)

    def _make(self, call: Callable[[Application], None], interrupts: AbstractContextManager[Any]) -> None:
        while True:
            try:
                with interrupts:
                    call(self)
                return
            except KeyboardInterrupt:
                self.has_ended = self.producer._sender.failures.fatal is not None
                if self.has_ended and call is not Application.close:
                    self._expect_the_end()
                    return
            except KafkaError as error:
                if not self.has_ended or error.condition != "KAFKA_INTERRUPTED":
                    raise
                return

    def _expect_the_end(self) -> None:
        for call in (Application.send, Application.send_columns, Application.send_table, Application.flush):
            with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\]"):
                call(self)
        if self.producer._caller_side is not None:
            with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\]"):
                self.producer.commit_transaction()
            with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\]"):
                self.producer.abort_transaction()

    # THE LAW

    def check(self, written: Sequence[bytes | None], committed: Sequence[bytes | None]) -> None:
        """After close(): what holds wherever the interrupt came."""
        for row in self._rows:
            if row.future is None:
                continue
            assert row.future.done(), row.value
            error = row.future.exception(0)
            assert len(row.heard) == 1, (row.value, row.heard)
            assert (row.heard[0] is None) == (error is None), row.value
            self._check_row(row.value, error, written)
        for delivery, values in self._deliveries:
            assert delivery.done()
            for value in values if delivery.error is None else []:
                assert written.count(value) == 1
        for value in self.committed:
            assert committed.count(value) == 1, value
        for value in self.aborted:
            assert committed.count(value) == 0, value
        for interceptor in self.producer._config.interceptor_classes:
            assert interceptor.heard <= self._value_count
        self._check_parts()

    def _check_row(self, value: bytes, error: KafkaError | None, written: Sequence[bytes | None]) -> None:
        assert written.count(value) <= 1
        if error is None:
            assert written.count(value) == 1
        elif error.condition == "KAFKA_TRANSACTION_ABORTED":
            assert value in self.aborted
        elif error.condition == "KAFKA_UNKNOWN_PARTITION":
            assert value.endswith(SPOILED)
        else:
            assert self.has_ended
            assert error.condition == "KAFKA_INTERRUPTED", error

    def _check_parts(self) -> None:
        producer = self.producer
        assert producer._pool.available_memory == producer._pool.total_memory
        assert producer._pool.waiter_count() == 0
        assert not producer._accumulator.incomplete
        assert producer._sender.end_signal.is_signaled
        for lock in (producer._pool._lock, producer._metadata._lock, producer._metrics._lock):
            assert lock.acquire(timeout=LIMIT_MS / 1000)
            lock.release()
        assert producer._thread not in threading.enumerate() or not producer._thread.join(LIMIT_MS / 1000)
