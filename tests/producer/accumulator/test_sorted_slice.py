"""SortedSlice: rows in partition order, and how many of them fit where."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.accumulator.sorted_slice import FittingRows
from tests.producer.accumulator.slices import ROW, sorted_slice

# ORDER


def test_rows_are_sorted_by_partition_and_keep_their_order_within() -> None:
    rows = sorted_slice([b"%d" % row for row in range(6)], [2, 0, 2, 1, 0, 2])
    assert rows.original_rows.tolist() == [101, 104, 103, 100, 102, 105]
    assert rows.run_partitions == [0, 1, 2]
    assert rows.run_starts.tolist() == [0, 2, 3]
    assert rows.run_ends.tolist() == [2, 3, 6]


@pytest.mark.parametrize("partitions", [[0, 0, 0], [0, 1, 2], [3, 3, 7]])
def test_rows_that_stand_in_order_stay_where_they_are(partitions: list[int]) -> None:
    rows = sorted_slice([b"a", b"b", b"c"], partitions)
    assert rows.original_rows.tolist() == [100, 101, 102]


def test_partitions_beyond_16_bits_are_told_apart() -> None:
    rows = sorted_slice([b"a", b"b", b"c"], [65_536, 0, 131_072])
    assert rows.run_partitions == [0, 65_536, 131_072]
    assert rows.original_rows.tolist() == [101, 100, 102]


def test_timestamps_and_sizes_move_with_their_rows() -> None:
    rows = sorted_slice([b"long value", b"x"], [1, 0], timestamps=[50, 60])
    assert [rows.timestamp_at(0), rows.timestamp_at(1)] == [60, 50]
    rows.measure(0, 2)
    assert rows.sizes[0] < rows.sizes[1]


# WHAT FITS


@pytest.mark.parametrize("timestamps", [7, [7] * 20], ids=["one timestamp", "a column"])
def test_as_many_rows_fit_into_a_new_batch_as_there_is_room_for(timestamps: object) -> None:
    rows = sorted_slice([ROW] * 20, [0] * 20, timestamps)
    assert rows.fit_new_batch(0, 20, 950) == FittingRows(9, 900, 7, True)
    assert rows.fit_new_batch(9, 20, 1100) == FittingRows(20, 1100, 7, True)
    assert rows.fit_new_batch(9, 20, 1101) == FittingRows(20, 1100, 7, False)
    assert rows.sizes[9:].tolist() == [100] * 11
    assert rows.offset_deltas[9:].tolist() == list(range(11))


@pytest.mark.parametrize("timestamps", [7, [7, 9, 8]], ids=["one timestamp", "several"])
def test_a_new_batch_takes_one_row_of_any_size(timestamps: object) -> None:
    rows = sorted_slice([ROW] * 3, [0] * 3, timestamps)
    assert rows.fit_new_batch(1, 3, 50) == FittingRows(2, 100, rows.timestamp_at(1), True)


def test_no_row_fits_into_a_batch_without_room_for_the_next() -> None:
    rows = sorted_slice([ROW] * 3, [0] * 3)
    assert rows.fit(0, 3, 5, 0, 99) is None
    assert rows.fit(0, 3, 5, 0, 100) == FittingRows(1, 100, 0, True)


def test_all_runs_are_measured_against_their_own_batches() -> None:
    rows = sorted_slice([ROW] * 6, [0, 0, 1, 1, 2, 2], [5, 4, 3, 2, 9, 8])
    fitting = rows.fit_all_runs([0, 64, 3], [None, 2, 9], [1000, 150, 99])
    assert fitting == [FittingRows(2, 200, 5, False), FittingRows(3, 101, 3, True), None]
    assert rows.offset_deltas.tolist() == [0, 1, 64, 65, 3, 4]
    assert rows.timestamp_deltas.tolist() == [0, -1, 1, 0, 0, -1]
