"""An application that is interrupted once at a given point, and then does what the documents say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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

LIMIT_MS = 20_000  # nothing takes as long, unless it hangs
SPOILED = b" spoiled"  # how values of records end that cannot be sent


class LoneRecord:
    """A record that was sent alone, and what its callback heard."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.future: RecordFuture | None = None
        self.heard: list[KafkaError | None] = []

    def hear(self, _: object, error: KafkaError | None) -> None:
        self.heard.append(error)


class InterruptedApplication:
    """Calls a producer's methods one by one. After an interrupt it makes the same call again, unless the producer has ended.

    Rows of an interrupted `send`, `send_columns` or `send_table` may be written or not; they are sent again under another value.
    """

    def __init__(self, producer: KafkaProducer, name: str) -> None:
        self.producer = producer
        self.name = name
        self._value_count = 0
        self._rows: list[LoneRecord] = []
        self._deliveries: list[tuple[Delivery, list[bytes]]] = []
        self._in_transaction: list[bytes] = []
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.has_ended = False

    # CALLS

    def send(self, **details: Any) -> None:
        row = LoneRecord(self._value())
        self._rows.append(row)
        row.future = self.producer.send("single", row.value, callback=row.hear, **details)
        self._in_transaction.append(row.value)

    def send_spoiled(self) -> None:
        """An interceptor has it fail, on the thread that hands it over."""
        row = LoneRecord(self._value() + SPOILED)
        self._rows.append(row)
        row.future = self.producer.send("single", row.value, callback=row.hear)

    def send_full(self) -> None:
        """As much as makes a bundle full: the caller encodes it."""
        row = LoneRecord(self._value() + bytes(600_000))
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

    def play(self, story: Sequence[Callable[[InterruptedApplication], None]], interrupts: AbstractContextManager[Any]) -> None:
        """Make the calls. Within `interrupts` KeyboardInterrupt is raised now and then."""
        for call in story:
            self._make(call, interrupts)
        self.producer.close(LIMIT_MS)

    def _make(self, call: Callable[[InterruptedApplication], None], interrupts: AbstractContextManager[Any]) -> None:
        while True:
            try:
                with interrupts:
                    call(self)
                return
            except KeyboardInterrupt:
                self.has_ended = self.producer._sender.failures.fatal is not None
                if self.has_ended and call is not InterruptedApplication.close:
                    self._expect_the_end()
                    return
            except KafkaError as error:
                if not self.has_ended or error.condition != "KAFKA_INTERRUPTED":
                    raise
                return

    def _expect_the_end(self) -> None:
        for call in (
            InterruptedApplication.send,
            InterruptedApplication.send_columns,
            InterruptedApplication.send_table,
            InterruptedApplication.flush,
        ):
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
