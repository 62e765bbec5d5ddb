"""Reads a task's rows from Spark, and joins small Arrow batches: the producer then works once per partition for many of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.idle_timeout import checked_chunks
from spark_kafka_sink.sink.rows.rate_limit import RateLimit

if TYPE_CHECKING:
    from spark_kafka_sink.config.format_options import SchemaUse
    from spark_kafka_sink.sink.rows.row_encoder import RowEncoder

MAX_GATHERED_ROWS = 80 * 1024  # the most that the producer lays out at a time; Spark's Arrow batches have 10,000 rows by default
MAX_GATHERED_BYTES = 8 * 1024 * 1024
MAX_GATHERED_ROWS_AT_FIRST = 32 * 1024  # a small task's rows are on their way while it reads the rest


@dataclass(eq=False, repr=False)
class SparkRows:
    """The rows that Spark delivers to a task, in chunks."""

    batches: Iterator[pa.RecordBatch]
    mapping: RowMapping
    on_first_row: Callable[[], None] | None = None  # called once there is a row, before more is read
    encoder: RowEncoder | None = None  # of keys and values that have a format
    waited_s: float = 0.0  # for the next rows: Spark reads, computes and copies them
    _row_count: int = 0  # in the chunks so far

    def chunks(self, rate_limit: RateLimit | None = None, idle_timeout_s: float | None = None) -> Iterator[Chunk]:
        """All rows. With a rate limit each batch is a chunk, because Spark takes a task that reads nothing for idle.

        Raises ConfigError when the rate is too low for Spark's idle time-out.
        """
        if rate_limit is None:
            return self._gather(MAX_GATHERED_ROWS, MAX_GATHERED_BYTES)
        single_batches = self._gather(1, 1)
        return single_batches if idle_timeout_s is None else checked_chunks(single_batches, rate_limit.seconds_of, idle_timeout_s)

    def _gather(self, max_rows: int, max_bytes: int) -> Iterator[Chunk]:
        """Consecutive batches, of up to so many rows and bytes. A larger batch is a chunk by itself, an empty one is left out.

        The first chunk has up to MAX_GATHERED_ROWS_AT_FIRST. A large batch is yielded before the next one is read, and the
        generator keeps no reference to what it has yielded. Batches may have 64 MB, most of the memory of a task.
        """
        waiting_batches: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        row_limit = min(MAX_GATHERED_ROWS_AT_FIRST, max_rows)
        while (batch := self._next()) is not None:
            if waiting_batches and (row_count + batch.num_rows > row_limit or size_bytes + batch.nbytes > max_bytes):
                yield self._chunk(waiting_batches)
                row_count, size_bytes, row_limit = 0, 0, max_rows
            if batch.num_rows:
                waiting_batches.append(batch)
                row_count += batch.num_rows
                size_bytes += batch.nbytes
            del batch
            if row_count >= row_limit or size_bytes >= max_bytes:
                yield self._chunk(waiting_batches)
                row_count, size_bytes, row_limit = 0, 0, max_rows
        if waiting_batches:
            yield self._chunk(waiting_batches)

    def _next(self) -> pa.RecordBatch | None:
        started_s = time.monotonic()
        try:
            batch = next(self.batches, None)
        finally:
            self.waited_s += time.monotonic() - started_s
        if batch is not None and batch.num_rows and self.on_first_row is not None:
            self.on_first_row()
            self.on_first_row = None
        return batch

    def _chunk(self, batches: list[pa.RecordBatch]) -> Chunk:
        """A chunk of these batches, encoded if they have a format. Empties the list."""
        table = pa.Table.from_batches(batches)
        batches.clear()
        numbers = range(self._row_count, self._row_count + table.num_rows)
        self._row_count = numbers.stop
        chunk = Chunk(self.mapping.columns(table), numbers, table.nbytes)
        return chunk if self.encoder is None else self.encoder.encode(chunk)

    def schemas(self) -> tuple[SchemaUse, ...]:
        """Which schemas the rows so far were encoded with."""
        return () if self.encoder is None else self.encoder.uses()
