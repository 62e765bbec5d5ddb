"""How many rows of a call are laid out and encoded at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.producer.topic_rows import MAX_SLICE_BYTES, MAX_SLICE_ROWS, SLICE_ROWS, TopicRows
from spark_kafka_sink.records.columns import record_columns
from spark_kafka_sink.sink.rows.gathering import MAX_GATHERED_BYTES, MAX_GATHERED_ROWS


def chunk_of(row_count: int, value_size: int = 1) -> TopicRows:
    columns = record_columns(pa.array([bytes(value_size)] * row_count, pa.binary()))
    return TopicRows("orders", columns, np.zeros(row_count, np.int32), np.arange(row_count, dtype=np.int32))


@pytest.mark.parametrize("partitions", [1, 6, 128, 300, 5_000])
@pytest.mark.parametrize("row_count", [1, SLICE_ROWS, SLICE_ROWS + 1, 300_000])
def test_slices_hold_every_row_once_and_in_order(row_count: int, partitions: int) -> None:
    slices = list(chunk_of(row_count).slices(partitions))
    assert np.concatenate([each.positions for each in slices]).tolist() == list(range(row_count))
    assert (
        [each.columns.row_count for each in slices]
        == [len(each.positions) for each in slices]
        == [len(each.partitions) for each in slices]
    )
    assert max(len(each.positions) for each in slices) <= MAX_SLICE_ROWS


def sizes(chunk: TopicRows, partitions: int) -> list[int]:
    return [len(each.positions) for each in chunk.slices(partitions)]


def test_slices_are_small_for_few_partitions_and_larger_for_many() -> None:
    chunk = chunk_of(2 * MAX_SLICE_ROWS)
    assert sizes(chunk, 6) == sizes(chunk, 128) == [SLICE_ROWS] * 5
    assert [round(rows, -1) for rows in sizes(chunk, 256)] == [54_610] * 3
    assert sizes(chunk, 1_000) == sizes(chunk, 100_000) == [MAX_SLICE_ROWS] * 2


def test_slices_of_large_rows_are_not_larger_for_many_partitions() -> None:
    chunk = chunk_of(3 * SLICE_ROWS, 300)
    assert chunk.columns.base_bytes.sum() > 3 * MAX_SLICE_BYTES
    assert sizes(chunk, 1_000) == sizes(chunk, 6) == [SLICE_ROWS] * 3


def test_what_the_sink_gathers_fits_into_one_slice() -> None:
    assert MAX_GATHERED_ROWS == MAX_SLICE_ROWS
    assert MAX_GATHERED_BYTES <= MAX_SLICE_BYTES
