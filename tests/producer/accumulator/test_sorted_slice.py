"""SortedSlice: rows in partition order, and how many of them fit where."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.accumulator.sorted_slice import FittingRows
from tests.producer.accumulator.slices import ROW, slice_of

# ORDER


def test_rows_are_sorted_by_partition_and_keep_their_order_within() -> None:
    sorted_slice = slice_of([b"%d" % row for row in range(6)], [2, 0, 2, 1, 0, 2])
    assert sorted_slice.positions.tolist() == [101, 104, 103, 100, 102, 105]
    assert sorted_slice.stretch_partitions == [0, 1, 2]
    assert sorted_slice.stretch_starts.tolist() == [0, 2, 3]
    assert sorted_slice.stretch_stops.tolist() == [2, 3, 6]


@pytest.mark.parametrize("partitions", [[0, 0, 0], [0, 1, 2], [3, 3, 7]])
def test_rows_that_stand_in_order_stay_where_they_are(partitions: list[int]) -> None:
    sorted_slice = slice_of([b"a", b"b", b"c"], partitions)
    assert sorted_slice.positions.tolist() == [100, 101, 102]


def test_partitions_beyond_16_bits_are_told_apart() -> None:
    sorted_slice = slice_of([b"a", b"b", b"c"], [65_536, 0, 131_072])
    assert sorted_slice.stretch_partitions == [0, 65_536, 131_072]
    assert sorted_slice.positions.tolist() == [101, 100, 102]


def test_timestamps_and_sizes_move_with_their_rows() -> None:
    sorted_slice = slice_of([b"long value", b"x"], [1, 0], timestamps=[50, 60])
    assert [sorted_slice.timestamp_at(0), sorted_slice.timestamp_at(1)] == [60, 50]
    sorted_slice.measure(0, 2)
    assert sorted_slice.sizes[0] < sorted_slice.sizes[1]


# WHAT FITS


@pytest.mark.parametrize("timestamps", [7, [7] * 20], ids=["one timestamp", "a column"])
def test_as_many_rows_fit_into_a_new_batch_as_there_is_room_for(timestamps: object) -> None:
    sorted_slice = slice_of([ROW] * 20, [0] * 20, timestamps)
    assert sorted_slice.fit_new_batch(0, 20, 950) == FittingRows(9, 900, 7, True)
    assert sorted_slice.fit_new_batch(9, 20, 1100) == FittingRows(20, 1100, 7, True)
    assert sorted_slice.fit_new_batch(9, 20, 1101) == FittingRows(20, 1100, 7, False)
    assert sorted_slice.sizes[9:].tolist() == [100] * 11
    assert sorted_slice.offset_deltas[9:].tolist() == list(range(11))


@pytest.mark.parametrize("timestamps", [7, [7, 9, 8]], ids=["one timestamp", "several"])
def test_a_new_batch_takes_one_row_of_any_size(timestamps: object) -> None:
    sorted_slice = slice_of([ROW] * 3, [0] * 3, timestamps)
    assert sorted_slice.fit_new_batch(1, 3, 50) == FittingRows(2, 100, sorted_slice.timestamp_at(1), True)


def test_no_row_fits_into_a_batch_without_room_for_the_next() -> None:
    sorted_slice = slice_of([ROW] * 3, [0] * 3)
    assert sorted_slice.fit(0, 3, 5, 0, 99) is None
    assert sorted_slice.fit(0, 3, 5, 0, 100) == FittingRows(1, 100, 0, True)


def test_all_stretches_are_measured_against_their_own_batches() -> None:
    sorted_slice = slice_of([ROW] * 6, [0, 0, 1, 1, 2, 2], [5, 4, 3, 2, 9, 8])
    fitting = sorted_slice.fit_all_stretches([0, 64, 3], [None, 2, 9], [1000, 150, 99])
    assert fitting == [FittingRows(2, 200, 5, False), FittingRows(3, 101, 3, True), None]
    assert sorted_slice.offset_deltas.tolist() == [0, 1, 64, 65, 3, 4]
    assert sorted_slice.timestamp_deltas.tolist() == [0, -1, 1, 0, 0, -1]
