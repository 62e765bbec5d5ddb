"""rate_limit.py: released rows are never ahead of the rates by more than one portion, and no wait is long."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.rate_limit import PORTION_MS, RateLimit
from tests.fakes.clock import ManualClock
from tests.sink.columns import columns


class WatchedClock(ManualClock):
    """Records the length of each wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[int] = []

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        self.waits.append(timeout_ms)
        return super().wait(waitable, timeout_ms)


class Portion(NamedTuple):
    """When a portion was released, since the start, and which rows it has: first_row:stop_row."""

    released_ms: int
    first_row: int
    stop_row: int


def release(rate_limit: RateLimit, clock: ManualClock, row_bytes: list[int]) -> list[Portion]:
    """Send rows of these sizes through the limit."""
    started_ms = clock.now_ms()
    chunk = Chunk(columns(value=pa.array([bytes(each) for each in row_bytes])), range(len(row_bytes)), 0)
    portions = rate_limit.portions(chunk)
    return [Portion(clock.now_ms() - started_ms, each.numbers[0], each.numbers[-1] + 1) for each in portions]


def test_records_are_given_out_in_portions_of_a_quarter_of_a_second() -> None:
    clock = WatchedClock()
    rate_limit = RateLimit(100, None, clock)
    assert release(rate_limit, clock, [1] * 60) == [(0, 0, 25), (250, 25, 50), (500, 50, 60)]
    assert rate_limit.held_back_ms == 500


def test_bytes_are_counted_row_by_row() -> None:
    clock = WatchedClock()
    assert release(RateLimit(None, 1000, clock), clock, [100, 100, 100, 10]) == [(0, 0, 2), (200, 2, 4)]


def test_the_lower_rate_counts() -> None:
    clock = WatchedClock()
    assert release(RateLimit(8, 1000, clock), clock, [10, 240, 240]) == [(0, 0, 2), (250, 2, 3)]


def test_a_row_above_the_rate_goes_alone_and_is_paid_for_afterwards() -> None:
    clock = WatchedClock()
    assert release(RateLimit(None, 100, clock), clock, [1, 350, 1]) == [(0, 0, 1), (10, 1, 2), (3510, 2, 3)]
    assert clock.waits == [10, 3500]


def test_what_was_not_used_is_not_saved_up() -> None:
    clock = WatchedClock()
    rate_limit = RateLimit(100, None, clock)
    release(rate_limit, clock, [1] * 25)
    clock.advance(60_000)
    assert release(rate_limit, clock, [1] * 50) == [(0, 0, 25), (PORTION_MS, 25, 50)]


def test_the_next_chunk_waits_for_the_one_before() -> None:
    clock = WatchedClock()
    rate_limit = RateLimit(100, None, clock)
    release(rate_limit, clock, [1] * 25)
    assert release(rate_limit, clock, [1]) == [(PORTION_MS, 0, 1)]
