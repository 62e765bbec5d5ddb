"""Sends the records of a run: whole columns, a chunk at a time, or one by one.

A record's latency is the time from the call of the producer, which may wait for memory, to the acknowledgement.
All rows of a chunk count with the latency of its last row, so latencies are never too low.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.metrics import NS_PER_MS
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord, RecordMetadata
from spark_kafka_sink.tools.perf.measurements import Measurements
from spark_kafka_sink.tools.perf.payloads import POOL_BYTES, PayloadSource
from spark_kafka_sink.tools.perf.transaction_pace import TransactionPace

CHUNK_RECORDS = 10_000  # the size of Spark's Arrow batches
THROTTLED_CHUNKS_PER_S = 100  # with --throughput, so that its limit also holds within 10 ms


class ThroughputThrottler:
    """Keeps a rate of records per second, on average since the start: it catches up after a pause. Zero or less: no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._started_ns = clock.now_ns()

    def early_ms(self, record_count: int) -> int:
        """How long to wait after this many records in total; 0 or less: not at all."""
        if self._per_second <= 0:
            return 0
        return round(record_count / self._per_second * 1000) - (self._clock.now_ns() - self._started_ns) // NS_PER_MS

    def wait(self, record_count: int) -> None:
        if (early_ms := self.early_ms(record_count)) > 0:
            sleep(self._clock, early_ms)


def chunks(record_count: int, chunk_size: int, warmup_count: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each chunk. No chunk contains records of the warm-up and later ones."""
    first = 0
    while first < record_count:
        stop = min(first + chunk_size, record_count)
        stop = min(stop, warmup_count) if first < warmup_count else stop
        yield first, stop - first
        first = stop


def chunk_records(arguments: argparse.Namespace) -> int:
    """How many records a chunk has: --chunk-records, else CHUNK_RECORDS, or as many as POOL_BYTES and --throughput allow."""
    if arguments.chunk_records is not None:
        return int(arguments.chunk_records)
    limits = [CHUNK_RECORDS]
    if arguments.record_size is not None:
        limits.append(POOL_BYTES // arguments.record_size)  # so that a chunk is a slice of the pool
    if arguments.throughput > 0:
        limits.append(int(arguments.throughput / THROTTLED_CHUNKS_PER_S))
    return max(1, min(limits))


class _SentColumns(NamedTuple):
    """A chunk that was sent. `first`: the number of its first record."""

    first: int
    size_bytes: int
    started_ns: int
    delivery: Delivery


@dataclass(eq=False, repr=False)
class Sending:
    """Sends all records of a run. Both ways to send wait until each record is settled. After a failure, no further chunk or
    single record is sent. A transaction with a failure is left open, and the producer's close() aborts it."""

    producer: KafkaProducer
    arguments: argparse.Namespace
    values: PayloadSource
    measurements: Measurements
    transactions: TransactionPace
    clock: Clock

    def __post_init__(self) -> None:
        self._throttler = ThroughputThrottler(self.arguments.throughput, self.clock)
        self._pending: deque[_SentColumns] = deque()

    def _chunks(self) -> Iterator[tuple[int, pa.Array]]:
        """The number of the first record of each chunk, and the values."""
        arguments = self.arguments
        for first, count in chunks(arguments.num_records, chunk_records(arguments), arguments.warmup_records):
            if first == arguments.warmup_records > 0:
                self.measurements.begin_steady_state()
            yield first, self.values(first, count)

    def send_columns(self) -> None:
        """Send chunk by chunk. Blocks for at most delivery.timeout.ms after the last chunk. Failures go to the measurements."""
        failure: tuple[int, KafkaError] | None = None
        for first, chunk in self._chunks():
            failure = self._send_chunk(first, chunk)
            self._settle()
            if failure is not None or self.measurements.error is not None:
                break
            self._throttler.wait(first + len(chunk))
        self._await_pending()
        if failure is not None:
            self.measurements.add_failure(*failure)  # last: in a transaction, the failure of an earlier record is the cause

    def _send_chunk(self, first: int, chunk: pa.Array) -> tuple[int, KafkaError] | None:
        """Returns None; after a failure, how many records of the chunk were not sent at all, and the error."""
        unsent_count = len(chunk)
        try:
            self.transactions.begin_if_none()
            started_ns = self.clock.now_ns()
            delivery = self.producer.send_columns(self.arguments.topic, value=chunk)
            self._pending.append(_SentColumns(first, int(pc.sum(pc.binary_length(chunk)).as_py()), started_ns, delivery))
            unsent_count = 0
            self.transactions.commit_if_due(is_last=first + len(chunk) == self.arguments.num_records)
        except KafkaError as error:
            return unsent_count, error
        return None

    def _await_pending(self) -> None:
        while self._pending:
            with suppress(KafkaError):  # not settled yet, or failed: _settle finds out
                self._pending[0].delivery.result(self.measurements.until_next_line_ms())
            self._settle()
            self.measurements.say_progress()

    def _settle(self) -> None:
        """Count and remove the chunks that are settled. A later chunk may be settled before an earlier one."""
        for _ in range(len(self._pending)):
            chunk = self._pending.popleft()
            delivery = chunk.delivery
            if delivery.settled_ns is None:
                self._pending.append(chunk)
                continue
            if row_count := delivery.acknowledged:
                size = chunk.size_bytes * row_count // delivery.rows
                self.measurements.add_acknowledged(chunk.first, row_count, size, chunk.started_ns, delivery.settled_ns)
            if delivery.error is not None:
                self.measurements.add_failure(delivery.failed, delivery.error)

    def send_single(self) -> None:
        """One send() per record. Callbacks count the latencies, on the Sender's thread."""
        failure: KafkaError | None = None
        try:
            self._send_one_by_one()
        except KafkaError as error:
            failure = error
        self.producer.flush()
        if failure is not None:
            self.measurements.add_failure(0, failure)

    def _send_one_by_one(self) -> None:
        last = self.arguments.num_records - 1
        for first, chunk in self._chunks():
            for number, value in enumerate(chunk.cast(pa.binary()).to_pylist(), first):
                self.transactions.begin_if_none()
                callback = partial(self._count, number, len(value), self.clock.now_ns())
                self.producer.send(ProducerRecord(self.arguments.topic, value), callback)
                self.transactions.commit_if_due(is_last=number == last)
                if self.measurements.error is not None:
                    return
                self._throttler.wait(number + 1)

    def _count(
        self, number: int, size_bytes: int, started_ns: int, _metadata: RecordMetadata | None, error: KafkaError | None
    ) -> None:
        if error is None:
            self.measurements.add_acknowledged(number, 1, size_bytes, started_ns, self.clock.now_ns())
        else:
            self.measurements.add_failure(1, error)
