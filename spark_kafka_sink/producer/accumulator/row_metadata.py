"""The RecordMetadata of rows that were acknowledged, for callbacks, futures and interceptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, repeat
from typing import cast

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, BatchRows
from spark_kafka_sink.producer.producer_record import RecordMetadata
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.varint import Int64Column


def metadata_of_rows(
    batch_rows: BatchRows, base_offset: int, log_append_time_ms: int, columns: RecordColumns, start: int = 0
) -> Iterator[RecordMetadata]:
    """Metadata of these rows from `start` on, made by columns: little is left to do per row.

    The iterator may not end after the last row: take only as many as there are rows. `batch_rows.positions` refer to `columns`.
    """
    positions, first_offset = batch_rows.positions[start:], batch_rows.first_offset(base_offset)
    offsets = repeat(UNKNOWN_OFFSET) if first_offset == UNKNOWN_OFFSET else count(first_offset + start)
    times = _rows_of(columns.timestamps if log_append_time_ms < 0 else log_append_time_ms, positions)
    sizes = (_rows_of(lengths, positions) for lengths in (columns.key_lengths, columns.value_lengths))
    topic, partition = batch_rows.topic_partition
    return map(_new_metadata, zip(repeat(topic), repeat(partition), offsets, times, *sizes))


def _rows_of(column: Int64Column | int, positions: npt.NDArray[np.int32]) -> Iterable[int]:
    """The column's values at these positions; an endless iterator when all rows have the same value."""
    if isinstance(column, int):
        return repeat(column)
    values: list[int] = column[positions].tolist()
    return values


# Like RecordMetadata(*fields), in a third of the time: every record with a callback needs its RecordMetadata.
_new_metadata = cast(Callable[[tuple[object, ...]], RecordMetadata], partial(tuple.__new__, RecordMetadata))
