"""StickyPartitioner and RoundRobinPartitioner: which of the available partitions the next rows go to."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from spark_kafka_sink.producer.accumulator.built_in_partitioner import RoundRobinPartitioner, StickyPartitioner

BATCH = 1000


def sizes(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


class Open(dict[int, int]):
    """Filled bytes of each partition's open batch; 0 unless set."""

    def __missing__(self, partition: int) -> int:
        return 0


def sticky(filled: Open | None = None, *, seed: int = 1, batch_size: int = BATCH) -> StickyPartitioner:
    return StickyPartitioner(batch_size, (filled if filled is not None else Open()).__getitem__, Random(seed))


def stays(partitions: npt.NDArray[np.int32]) -> list[int]:
    """How many rows each partition got before the next switch."""
    starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    return [stop - start for start, stop in pairwise(starts)]


# STICKY


def test_rows_stay_until_a_batch_is_full() -> None:
    partitions = sticky().assign(sizes(*[100] * 2000), range(1000))
    assert set(stays(partitions)) == {10}


def test_the_row_that_crosses_the_limit_still_stays() -> None:
    assert stays(sticky().assign(sizes(*[300] * 400), range(1000))) == [4] * 100


def test_a_partition_is_kept_over_calls() -> None:
    partitioner = sticky()
    partitions = np.concatenate([partitioner.assign(sizes(100), range(1000)) for _ in range(30)])
    assert stays(partitions) == [10, 10, 10]


def test_a_large_row_ends_the_stay_at_once() -> None:
    partitions = sticky().assign(sizes(5000, 5000, 5000), range(1000))
    assert len(set(partitions.tolist())) == 3


def test_every_partition_gets_its_share() -> None:
    drawn = Counter(sticky().assign(sizes(*[BATCH] * 4000), range(4)).tolist())
    assert all(850 < drawn[partition] < 1150 for partition in range(4))


def test_a_partition_whose_batch_is_partly_filled_keeps_rows_until_the_next_is_full() -> None:
    """KIP-794: switching in the middle of a batch would leave two small ones."""
    filled = Open(dict.fromkeys(range(1000), 400))
    partitions = sticky(filled).assign(sizes(*[100] * 160), range(1000))
    assert set(stays(partitions)) == {16}


def test_a_stay_is_never_longer_than_two_batches_nor_shorter_than_one() -> None:
    for level, expected in ((1, 20), (999, 11), (1000, 10), (7000, 10)):
        partitions = sticky(Open(dict.fromkeys(range(1000), level))).assign(sizes(*[100] * 200), range(1000))
        assert stays(partitions)[0] == expected


def test_a_partition_that_is_no_longer_available_is_left_at_the_next_call() -> None:
    partitioner = sticky()
    first = int(partitioner.assign(sizes(1), [0, 1, 2])[0])
    others = [partition for partition in (0, 1, 2) if partition != first]
    assert set(partitioner.assign(sizes(*[1] * 20), others).tolist()) <= set(others)


def test_one_partition_gets_everything() -> None:
    assert set(sticky().assign(sizes(*[400] * 50), [5]).tolist()) == {5}


def test_no_rows_are_no_trouble() -> None:
    assert sticky().assign(sizes(), [0, 1]).tolist() == []


def test_the_same_seed_draws_the_same_partitions() -> None:
    draws = [sticky(seed=9).assign(sizes(*[BATCH] * 50), range(10)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


# STICKY, ADAPTIVE


def draw(partitioner: StickyPartitioner, times: int = 8000, partitions: range = range(4)) -> Counter[int]:
    return Counter(partitioner.assign(sizes(*[BATCH] * times), partitions).tolist())


def test_a_partition_is_drawn_the_more_often_the_shorter_its_queue_is() -> None:
    partitioner = sticky()
    partitioner.update_queue_lengths([5, 0, 3, 0], [0, 1, 2, 3], is_complete=True)
    drawn = draw(partitioner, 16_000)  # weights 1, 6, 3, 6
    for partition, weight in enumerate((1, 6, 3, 6)):
        assert abs(drawn[partition] - weight * 1000) < 250


@pytest.mark.parametrize("lengths", [[], [3], [2, 2, 2, 2]])
def test_equal_queues_are_drawn_equally(lengths: list[int]) -> None:
    partitioner = sticky()
    partitioner.update_queue_lengths([9, 0, 0, 0], range(4), is_complete=True)
    partitioner.update_queue_lengths(lengths, range(len(lengths)), is_complete=True)
    drawn = draw(partitioner)
    assert all(1800 < drawn[partition] < 2200 for partition in range(4))


def test_partitions_that_were_left_out_are_not_drawn_even_if_the_others_are_equal() -> None:
    partitioner = sticky()
    partitioner.update_queue_lengths([1, 1], [0, 3], is_complete=False)
    assert set(draw(partitioner)) == {0, 3}


def test_only_one_partition_left_gets_everything() -> None:
    partitioner = sticky()
    partitioner.update_queue_lengths([7], [2], is_complete=False)
    assert set(draw(partitioner, 50)) == {2}


# ROUND ROBIN


def test_rows_take_turns_over_all_calls() -> None:
    partitioner = RoundRobinPartitioner()
    partitions = np.concatenate([partitioner.assign(rows, [0, 1, 2]) for rows in (2, 5, 0, 4)]).tolist()
    assert all(later == (earlier + 1) % 3 for earlier, later in pairwise(partitions))


def test_turns_go_over_the_partitions_that_are_available() -> None:
    partitions = RoundRobinPartitioner().assign(8, [1, 4]).tolist()
    assert Counter(partitions) == {1: 4, 4: 4}
