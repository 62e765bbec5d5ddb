"""SliceLayout: which rows lie in which batch, at which place, before a byte is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest

from spark_kafka_sink.errors import ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.slice_layout import Reservation, SliceLayout
from spark_kafka_sink.producer.accumulator.sorted_slice import SortedSlice
from tests.producer.accumulator.slices import ROW, slice_of
from tests.producer.harness import TOPIC, Accumulation

BATCH = 1024


def layout_of(stage: Accumulation, sorted_slice: SortedSlice) -> SliceLayout:
    return SliceLayout(stage.accumulator, TOPIC, sorted_slice, Delivery(sorted_slice.row_count, stage.clock))


def reserve(layout: SliceLayout) -> list[Reservation]:
    reservations: list[Reservation] = []
    layout.reserve(reservations)
    return reservations


def lay_out(stage: Accumulation, values: Sequence[bytes], partitions: Sequence[int]) -> list[Reservation]:
    layout = layout_of(stage, slice_of(values, partitions))
    reservations = reserve(layout)
    assert layout.is_done
    return reservations


def wait_for_memory(stage: Accumulation, layout: SliceLayout) -> None:
    need = layout.pending_need
    stage.pool.allocate(need.block_count, 0, charge_blocks=need.charge_blocks, into=layout.unused_memory)


def memory_in_use(stage: Accumulation) -> int:
    return stage.pool.total_memory - stage.pool.available_memory


def shape(reservations: Sequence[Reservation]) -> list[tuple[int, int, int]]:
    """(partition, start, stop) of each reservation."""
    return [(each.queue.topic_partition.partition, each.start, each.stop) for each in reservations]


# CUTS


def test_a_stretch_is_cut_where_a_batch_is_full() -> None:
    stage = Accumulation(batch_size=BATCH)
    reservations = lay_out(stage, [ROW] * 25, [0] * 25)
    assert shape(reservations) == [(0, 0, 9), (0, 9, 18), (0, 18, 25)]
    assert [each.batch.is_closed for each in reservations] == [True, True, False]
    assert all(each.begins_batch for each in reservations)
    assert [each.index_in_batch for each in reservations] == [0, 0, 0]


def test_reservations_cover_all_rows_without_a_gap() -> None:
    stage = Accumulation(batch_size=BATCH)
    reservations = lay_out(stage, [bytes(size * 7 % 400) for size in range(200)], [row % 5 for row in range(200)])
    assert reservations[0].start == 0
    assert reservations[-1].stop == 200
    assert all(one.stop == following.start for one, following in pairwise(reservations))


def test_the_open_batch_is_filled_before_a_new_one_is_begun() -> None:
    stage = Accumulation(batch_size=BATCH)
    stage.append(*[ROW] * 5)
    reservations = lay_out(stage, [ROW] * 6, [0] * 6)
    assert shape(reservations) == [(0, 0, 4), (0, 4, 6)]
    assert reservations[0].index_in_batch == 500
    assert not reservations[0].begins_batch
    assert reservations[0].batch.record_count == 9
    assert reservations[0].batch.is_closed


def test_an_open_batch_without_room_for_the_next_row_is_closed() -> None:
    stage = Accumulation(batch_size=BATCH)
    stage.append(b"small")
    (reservation,) = lay_out(stage, [bytes(950)], [0])
    first, second = stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches
    assert first.is_closed
    assert reservation.batch is second


def test_reservations_remember_which_rows_of_the_caller_they_hold() -> None:
    stage = Accumulation(batch_size=BATCH)
    reservations = lay_out(stage, [ROW] * 4, [1, 0, 1, 0])
    all_rows = [each.batch.rows_by_call[-1] for each in reservations]
    assert [batch_rows.positions.tolist() for batch_rows in all_rows] == [[101, 103], [100, 102]]
    assert [batch_rows.size_bytes for batch_rows in all_rows] == [200, 200]


def test_batch_rows_keep_what_they_know_of_its_own_rows_only() -> None:
    """A partition whose leader is down got twenty rows of each slice, and kept eight bytes for each of the slice's other rows."""
    stage = Accumulation()
    lay_out(stage, [ROW] * 1000, sorted(row % 50 for row in range(1000)))
    (batch,) = stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches
    (batch_rows,) = batch.rows_by_call
    assert [len(batch_rows.positions), len(batch_rows.sizes)] == [20, 20]
    assert batch_rows.positions.base is None
    assert batch_rows.sizes.base is None


def test_memory_is_taken_for_what_is_filled_not_for_what_could_be() -> None:
    stage = Accumulation(batch_size=1024 * 1024, buffer_memory=100 * MAX_POOL_BLOCK_BYTES)
    lay_out(stage, [ROW] * 50, list(range(50)))
    assert memory_in_use(stage) == 50 * MAX_POOL_BLOCK_BYTES


def test_many_bytes_for_one_batch_keep_their_memory_and_are_charged_for() -> None:
    stage = Accumulation(batch_size=1024 * 1024)
    block = stage.pool.block_size
    small, large = lay_out(stage, [ROW] + [bytes(1000)] * 40, [0] + [1] * 40)
    assert (small.has_own_memory, large.has_own_memory) == (False, True)
    assert large.size_bytes == 40 * 1009
    charge = -(-large.size_bytes // block)
    assert memory_in_use(stage) == block + charge * block
    assert large.batch.memory == PoolMemory([], charge)


def test_a_segment_waits_for_a_charge_and_what_is_left_of_it_is_given_back() -> None:
    stage = Accumulation(batch_size=1024 * 1024, buffer_memory=6 * MAX_POOL_BLOCK_BYTES)
    held = stage.pool.allocate(2, 0)
    layout = layout_of(stage, slice_of([bytes(1000)] * 40, [0] * 40))  # 40,360 bytes
    assert reserve(layout) == []
    stage.pool.deallocate(held)
    wait_for_memory(stage, layout)
    assert memory_in_use(stage) == 5 * MAX_POOL_BLOCK_BYTES
    (reservation,) = reserve(layout)
    assert reservation.batch.memory == PoolMemory([], 5)
    assert memory_in_use(stage) == 5 * MAX_POOL_BLOCK_BYTES


def prepaid_layout(
    stage: Accumulation, values: Sequence[bytes], partitions: Sequence[int], charge_blocks: int
) -> tuple[SliceLayout, PoolMemory]:
    sorted_slice, prepaid = slice_of(values, partitions), stage.pool.allocate(0, 0, charge_blocks=charge_blocks)
    return SliceLayout(
        stage.accumulator, TOPIC, sorted_slice, Delivery(sorted_slice.row_count, stage.clock), prepaid_memory=prepaid
    ), prepaid


def test_rows_that_are_paid_for_use_the_pool_while_it_has_memory() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=8 * BATCH)
    layout, prepaid = prepaid_layout(stage, [ROW] * 3, [0, 1, 2], charge_blocks=1)
    assert [(each.has_own_memory, each.charge_blocks) for each in reserve(layout)] == [(False, 0)] * 3
    assert prepaid == PoolMemory([], 1)
    assert memory_in_use(stage) == 4 * BATCH


def test_rows_that_are_paid_for_find_room_when_the_pool_is_empty() -> None:
    """The Sender must not wait for memory that only it gives back."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=4 * BATCH)
    layout, prepaid = prepaid_layout(stage, [ROW] * 18, [0] * 18, charge_blocks=2)
    held = stage.pool.allocate(2, 0)
    first, second = reserve(layout)
    assert [(each.has_own_memory, each.charge_blocks) for each in (first, second)] == [(True, 1), (True, 1)]
    assert prepaid == PoolMemory()
    assert stage.pool.available_memory == 0
    for memory in (held, first.batch.memory, second.batch.memory):
        stage.pool.deallocate(memory)
    assert stage.is_whole


def test_a_batch_is_charged_for_its_segments_together() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH)
    held = stage.pool.allocate(0, 0, charge_blocks=1)
    for expected in (1, 0, 0):
        layout = SliceLayout(stage.accumulator, TOPIC, slice_of([ROW], [0]), Delivery(1, stage.clock), prepaid_memory=held)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.pool, "try_allocate", lambda *_, **__: None)
            (reservation,) = reserve(layout)
        assert reservation.charge_blocks == expected
    assert reservation.batch.memory == PoolMemory([], 1)


def test_only_the_rounding_is_overdrawn() -> None:
    """100 bytes in each of three batches: in fact less than the one block that was charged, but counted as three."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH)
    layout, _ = prepaid_layout(stage, [ROW] * 3, [0, 1, 2], charge_blocks=1)
    held = stage.pool.allocate(1, 0)
    reservations = reserve(layout)
    assert [each.charge_blocks for each in reservations] == [1, 1, 1]
    stage.pool.deallocate(held)
    assert stage.pool.available_memory == 0
    for each in reservations:
        stage.pool.deallocate(each.batch.memory)
    assert stage.is_whole


def test_memory_for_many_partitions_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Accumulation(batch_size=BATCH)
    try_allocate = Mock(wraps=stage.pool.try_allocate)
    monkeypatch.setattr(stage.pool, "try_allocate", try_allocate)
    lay_out(stage, [ROW] * 50, list(range(50)))
    try_allocate.assert_called_once_with(50, charge_blocks=0, into=ANY, has_precedence=False)


@pytest.mark.parametrize("partitions", [[0] * 300, [0] * 150 + [1] * 150])
def test_rows_that_fill_open_batches_and_begin_new_ones_are_measured_together(partitions: list[int]) -> None:
    stage = Accumulation(batch_size=BATCH)
    stage.append(*[ROW] * 5, partition=[0, 1, 0, 1, 0])
    sorted_slice = slice_of([ROW] * 300, partitions)
    measure = Mock(wraps=sorted_slice.measure)
    sorted_slice.measure = measure
    reservations = reserve(layout_of(stage, sorted_slice))
    measure.assert_called_once_with(0, 300)
    assert [each.stop for each in reservations][-1] == 300
    for each in reservations:
        assert each.batch.record_bytes <= each.batch.max_raw_bytes
        assert each.batch.is_closed == (each.stop not in sorted_slice.stretch_stops)


def test_without_memory_for_all_partitions_those_get_some_for_which_there_is() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=3 * BATCH)
    layout = layout_of(stage, slice_of([ROW] * 5, range(5)))
    assert shape(reserve(layout)) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    assert reserve(layout) == []


def test_deltas_of_two_and_three_bytes_are_counted() -> None:
    """The 65th row of a batch takes one byte more than the first, the 8193rd two."""
    stage = Accumulation(batch_size=1024 * 1024)
    reservations = lay_out(stage, [b""] * 10_000, [0] * 10_000)
    sizes = np.concatenate([each.batch.rows_by_call[-1].sizes for each in reservations])
    assert sizes[[0, 63, 64, 8191, 8192]].tolist() == [7, 7, 8, 8, 9]
    assert reservations[0].batch is reservations[-1].batch


# OTHERS AT THE SAME TIME


def test_a_place_that_somebody_else_took_meanwhile_is_measured_anew() -> None:
    stage = Accumulation(batch_size=BATCH)
    stage.append(ROW)
    layout = layout_of(stage, slice_of([ROW] * 3, [0] * 3))
    guesses = layout._guess_places()
    assert guesses[0].tail.record_count == 1
    stage.append(ROW)  # now the batch holds two
    reservations: list[Reservation] = []
    layout._take_place(layout._queues[0], guesses[0], reservations)
    assert reservations == []
    (reservation,) = reserve(layout)
    assert reservation.batch.rows_by_call[-1].first_delta == 2


def test_a_place_in_a_batch_that_was_drained_meanwhile_is_not_taken() -> None:
    stage = Accumulation(batch_size=BATCH)
    stage.append(ROW)
    layout = layout_of(stage, slice_of([ROW], [0]))
    guess = layout._guess_places()[0]
    stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches.popleft().is_closed = True
    reservations: list[Reservation] = []
    layout._take_place(layout._queues[0], guess, reservations)
    assert reservations == []
    (reservation,) = reserve(layout)
    assert reservation.begins_batch


def test_blocks_taken_for_a_place_that_is_gone_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Accumulation(batch_size=BATCH)
    layout = layout_of(stage, slice_of([ROW], [0]))
    try_allocate = stage.pool.try_allocate

    def while_somebody_else_begins_the_batch(block_count: int, **more: Any) -> PoolMemory | None:
        monkeypatch.undo()
        stage.append(b"somebody else")
        return try_allocate(block_count, **more)

    monkeypatch.setattr(stage.pool, "try_allocate", while_somebody_else_begins_the_batch)
    (reservation,) = reserve(layout)
    assert reservation.index_in_batch > 0
    assert memory_in_use(stage) == BATCH


# MEMORY RUNS OUT


def test_what_found_memory_is_reserved_and_the_rest_waits() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH)
    layout = layout_of(stage, slice_of([ROW] * 40, [0] * 40))
    assert shape(reserve(layout)) == [(0, 0, 9), (0, 9, 18)]
    assert not layout.is_done
    assert reserve(layout) == []
    assert stage.is_whole is False


def test_memory_that_was_waited_for_is_used_for_the_row_that_waited() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=BATCH)
    held = stage.pool.allocate(1, 0)
    layout = layout_of(stage, slice_of([ROW], [0]))
    assert reserve(layout) == []
    stage.pool.deallocate(held)
    wait_for_memory(stage, layout)
    assert stage.pool.available_memory == 0
    assert len(reserve(layout)) == 1
    assert layout.is_done


def test_memory_that_was_waited_for_and_is_no_longer_needed_is_given_back() -> None:
    """Meanwhile the partition's batch was drained, or another has room."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=3 * BATCH)
    layout = layout_of(stage, slice_of([ROW], [0]))
    held = stage.pool.allocate(3, 0)
    assert reserve(layout) == []
    stage.pool.deallocate(held)
    wait_for_memory(stage, layout)
    stage.append(b"somebody else's batch has room")
    assert len(reserve(layout)) == 1
    assert memory_in_use(stage) == BATCH


def test_a_row_that_no_memory_could_hold_is_refused() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH)
    layout = layout_of(stage, slice_of([bytes(3 * BATCH)], [0]))
    assert reserve(layout) == []
    with pytest.raises(RecordTooLargeError):
        wait_for_memory(stage, layout)


def test_rows_that_had_found_room_when_reserve_raises_are_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """These reservations were lost with the stack: their batches, reserved for ever, could neither be drained nor expire."""
    stage = Accumulation(batch_size=BATCH)
    layout = layout_of(stage, slice_of([ROW] * 3, [0, 1, 2]))
    checks = iter([None, None, ProducerClosedError("closed meanwhile")])

    def check_open() -> None:
        error = next(checks)
        if error is not None:
            raise error

    monkeypatch.setattr(stage.accumulator, "check_open", check_open)
    reservations: list[Reservation] = []
    with pytest.raises(ProducerClosedError):
        layout.reserve(reservations)
    layout.give_back_unused_memory()
    assert shape(reservations) == [(0, 0, 1), (1, 1, 2)]
    assert layout.positions_without_place().tolist() == [102]
    assert memory_in_use(stage) == 2 * BATCH


def test_a_closed_producer_takes_no_place_and_keeps_no_block() -> None:
    stage = Accumulation(batch_size=BATCH)
    layout = layout_of(stage, slice_of([ROW], [0]))
    stage.accumulator.is_closed = True
    with pytest.raises(ProducerClosedError):
        reserve(layout)
    layout.give_back_unused_memory()
    assert stage.is_whole
