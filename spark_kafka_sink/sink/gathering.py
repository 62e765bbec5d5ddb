"""Joins small Arrow batches, so that the producer does its work per partition once for many of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

GATHERED_ROWS = 32 * 1024  # what the producer lays out at a time; Spark's Arrow batches have 10,000 rows by default
GATHERED_BYTES = 8 * 1024 * 1024


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups of consecutive batches, of up to GATHERED_ROWS and GATHERED_BYTES. A larger batch is a group by itself.

    Empty batches are left out. A large batch is yielded before the next one is read, and the generator keeps no reference to
    what it has yielded: batches of 64 MB are most of the memory that a task needs.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > GATHERED_ROWS or size + batch.nbytes > GATHERED_BYTES):
            yield _take_all(waiting)
            rows = size = 0
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        del batch
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield _take_all(waiting)
            rows = size = 0
    if waiting:
        yield waiting


def _take_all(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    taken = waiting.copy()
    waiting.clear()
    return taken
