"""Joins small Arrow batches, so that the producer does its work per partition once for many of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

# Spark's Arrow batches have 10,000 rows by default. These are numbers, not topic_rows.py's names: the driver imports this
# module, and must not load the producer.
GATHERED_ROWS = 80 * 1024  # the most that the producer lays out at a time
GATHERED_BYTES = 8 * 1024 * 1024
GATHERED_ROWS_AT_FIRST = 32 * 1024  # a small task's rows are on their way while it reads the rest


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups of consecutive batches, of up to GATHERED_ROWS and GATHERED_BYTES. A larger batch is a group by itself.

    The first group has up to GATHERED_ROWS_AT_FIRST.

    Empty batches are left out. A large batch is yielded before the next one is read, and the generator keeps no reference to
    what it has yielded: batches of 64 MB are most of the memory that a task needs.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    most_rows = min(GATHERED_ROWS_AT_FIRST, GATHERED_ROWS)
    for batch in batches:
        if waiting and (rows + batch.num_rows > most_rows or size + batch.nbytes > GATHERED_BYTES):
            yield _take_all(waiting)
            rows, size, most_rows = 0, 0, GATHERED_ROWS
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        del batch
        if rows >= most_rows or size >= GATHERED_BYTES:
            yield _take_all(waiting)
            rows, size, most_rows = 0, 0, GATHERED_ROWS
    if waiting:
        yield waiting


def _take_all(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    taken = waiting.copy()
    waiting.clear()
    return taken
