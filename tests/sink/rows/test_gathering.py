"""gathering.py: waiting for Spark's rows is told apart from our own work, and no batch is kept in memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.topic_rows import MAX_SLICE_BYTES, MAX_SLICE_ROWS
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows import gathering
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.rate_limit import RateLimit

MAPPING = RowMapping(topic="t", value=0, key=None, partition=None, headers=None, timestamp=None)


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr(time, "monotonic", seconds)
    return seconds


def batch(rows: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": ["v"] * rows})


def test_only_the_time_between_asking_for_rows_and_getting_them_is_sparks(seconds: Seconds) -> None:
    def computed() -> Iterator[pa.RecordBatch]:
        for each in (2.0, 3.0):
            seconds.now += each
            yield batch()
        seconds.now += 0.5  # Spark finds that there are no more

    rows = SparkRows(computed(), MAPPING)
    for _ in rows.chunks():
        seconds.now += 10.0  # ours
    assert rows.waited_s == 5.5


def test_the_time_until_spark_fails_is_sparks_too(seconds: Seconds) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        seconds.now += 4.0
        raise OSError("the input is gone")
        yield batch()

    rows = SparkRows(failing(), MAPPING)
    with pytest.raises(OSError, match="the input is gone"):
        list(rows.chunks())
    assert rows.waited_s == 4.0


def test_a_batch_that_was_passed_on_is_not_kept() -> None:
    """A generator keeps what it has yielded until it is asked again: 64 MB more for each task."""
    alive: list[weakref.ref[pa.RecordBatch]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        made = [batch()]
        alive.append(weakref.ref(made[0]))
        yield made.pop()

    chunks = SparkRows(batches(), MAPPING).chunks(RateLimit(1, None))
    assert next(chunks).columns["value"].to_pylist() == ["v"]
    assert alive[0]() is None


def test_rows_are_numbered_through_all_chunks() -> None:
    chunks = SparkRows(iter([batch(2), batch(0), batch(3)]), MAPPING).chunks(RateLimit(1, None))
    assert [each.numbers for each in chunks] == [range(2), range(2, 5)]


def test_brokers_are_asked_once_before_the_first_row_and_not_without_one() -> None:
    calls: list[str] = []
    list(SparkRows(iter([batch(0), batch(2), batch(3)]), MAPPING, lambda: calls.append("asked")).chunks())
    assert calls == ["asked"]
    list(SparkRows(iter([batch(0), batch(0)]), MAPPING, lambda: calls.append("again")).chunks())
    assert calls == ["asked"]


def test_a_chunk_is_as_large_as_what_the_producer_lays_out_at_a_time() -> None:
    assert (gathering.MAX_GATHERED_ROWS, gathering.MAX_GATHERED_BYTES) == (MAX_SLICE_ROWS, MAX_SLICE_BYTES)
