"""task_clock.py: waiting for Spark's rows is told apart from our own work, and no batch is kept in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.sink.task_clock import TaskClock


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"value": "v"}])


def test_only_the_time_between_asking_for_rows_and_getting_them_is_sparks() -> None:
    time = Seconds()
    clock = TaskClock(time)

    def computed() -> Iterator[pa.RecordBatch]:
        for seconds in (2.0, 3.0):
            time.now += seconds
            yield batch()
        time.now += 0.5  # Spark finds that there are no more

    for _ in clock.rows(computed()):
        time.now += 10.0  # ours
    assert clock.seconds() == 25.5
    assert clock.times(held_back=1.25)[1:] == (5.5, 1.25)
    assert clock.times().started_at_ms > 1_600_000_000_000


def test_the_time_until_spark_fails_is_sparks_too() -> None:
    time = Seconds()
    clock = TaskClock(time)

    def failing() -> Iterator[pa.RecordBatch]:
        time.now += 4.0
        raise OSError("the input is gone")
        yield batch()

    with pytest.raises(OSError, match="the input is gone"):
        list(clock.rows(failing()))
    assert clock.times().waiting_for_spark == 4.0


def test_a_batch_that_was_passed_on_is_not_kept() -> None:
    """A generator keeps what it has yielded until it is asked again: 64 MB more for each task."""
    alive: list[weakref.ref[pa.RecordBatch]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        made = [batch()]
        alive.append(weakref.ref(made[0]))
        yield made.pop()

    rows = TaskClock().rows(batches())
    assert next(rows).num_rows == 1
    assert alive[0]() is None
