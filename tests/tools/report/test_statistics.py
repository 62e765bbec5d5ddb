"""series.py, heat.py and statistics.py: sums are right, peaks stay, and memory does not grow with the commits."""

from __future__ import annotations

import tracemalloc
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.sink.commit_summary import VersionSummary
from spark_kafka_sink.tools.report.heat import MAX_COLUMNS, HeatMap
from spark_kafka_sink.tools.report.lines import parse
from spark_kafka_sink.tools.report.series import Series
from spark_kafka_sink.tools.report.statistics import MAX_QUERIES, TASK_PARTS, TIME_PARTS, Query, Statistics
from tests.tools.report.samples import BEGAN, line, many_micro_batches


def query_of(*lines: str) -> Query:
    statistics = Statistics()
    statistics.add(parse(text.encode()) for text in lines)
    (query,) = statistics.by_rows()
    return query


# SERIES


@given(values=st.lists(st.none() | st.integers(0, 1000), min_size=1, max_size=400), most=st.integers(4, 12))
def test_buckets_keep_every_sum_and_every_extreme(values: list[int | None], most: int) -> None:
    series = Series(["a", "b"], most)
    for time, value in enumerate(values):
        series.add(time, (np.nan if value is None else value, 1.0))
    numbers = [value for value in values if value is not None]
    assert len(series.buckets) <= most
    assert sum(bucket.row_count for bucket in series.buckets) == len(values) == series.sum("b")
    assert series.sum("a") == sum(numbers)
    assert series.highest("a") == max(numbers) if numbers else isnan(series.highest("a"))
    if numbers:
        assert np.nanmin(series.lows("a")) == min(numbers)
        assert min(numbers) <= series.median("a") <= max(numbers)
    assert list(series.times_s) == sorted(series.times_s)


def test_the_median_of_many_is_near_that_of_all() -> None:
    series, chance = Series(["a"]), np.random.default_rng(3)
    values = chance.lognormal(3, 1, 20_000)
    for time, value in enumerate(values):
        series.add(time, (value,))
    assert series.median("a") == pytest.approx(np.median(values), rel=0.05)


def test_a_single_peak_among_ten_thousand_is_still_there() -> None:
    series = Series(["a"])
    for time in range(10_000):
        series.add(time, (99.0 if time == 7_001 else 1.0,))
    assert series.highest("a") == 99
    assert series.median("a") == 1


# ROWS BY PARTITION


@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=300))
def test_a_heat_map_keeps_the_rows_of_each_partition(commits: list[dict[int, int]]) -> None:
    heat = HeatMap()
    for time, partitions in enumerate(commits):
        heat.add(time, partitions)
    numbers, table = heat.by_partition()
    assert table.shape[1] <= MAX_COLUMNS
    assert sum(heat.commit_counts) == len(commits)
    for number, row in zip(numbers, table, strict=True):
        assert row.sum() == sum(partitions.get(number, 0) for partitions in commits)


def test_skew_is_described_in_words() -> None:
    heat = HeatMap()
    heat.add(0, {0: 10, 3: 80, 1: 10})
    assert heat.in_words() == "Skewed: partition 3 got 80 % of 100 rows, 3.2 times an even share. 1 partition got none."
    even = HeatMap()
    even.add(0, {0: 50, 1: 50})
    assert even.in_words() == "100 rows, evenly spread over 2 partitions."


# A QUERY


def test_the_parts_of_a_commit_add_up_to_its_time_and_those_of_tasks_to_theirs() -> None:
    query = query_of(line(10, duration_s=4, commit=1, outside=0.5, spark=0.5, held_back=0.25))
    assert sum(query.series.sum(name) for name in TIME_PARTS) == pytest.approx(4) == query.series.sum("wall_s")
    assert sum(query.series.sum(name) for name in TASK_PARTS) == pytest.approx(10) == query.series.sum("all_tasks_s")


def test_a_stream_pauses_where_it_commits_nothing_for_ten_times_as_long_as_usual() -> None:
    at = [*range(10, 100, 10), *range(5000, 5100, 10), 5180]
    query = query_of(*(line(each, batch=batch, duration_s=4) for batch, each in enumerate(at)))
    ((seconds, after, until),) = query.pauses()
    assert (seconds, after, until) == (4906, BEGAN + 90, BEGAN + 5000)
    assert query_of(*(line(each, batch=batch, duration_s=4) for batch, each in enumerate([1, 9000]))).pauses() == []
    writes = query_of(*(line(each, query=None) for each in at))
    assert writes.pauses() == []


def test_the_time_between_commits_of_a_stream_is_sparks_and_no_rate_counts_it() -> None:
    query = query_of(*(line(10 * number, batch=number, rows=1000, duration_s=4) for number in (1, 2, 3)))
    assert (query.series.sum("between_s"), query.series.median("busy_share")) == (12, 0.4)
    assert query.rows_per_s == 250


def test_a_machine_with_another_clock_makes_no_time_negative() -> None:
    text = line(10, duration_s=4).replace(f'"started_at_ms": {(BEGAN + 6) * 1000}', f'"started_at_ms": {(BEGAN + 60) * 1000}')
    assert query_of(text).series.sum("wall_s") == 4


def test_what_exactly_once_did_is_counted() -> None:
    hows = ["committed", "committed", "found", "rolled-forward"]
    query = query_of(*(line(i, batch=i, version=VersionSummary("o", i, how, 2, 1)) for i, how in enumerate(hows)))
    assert query.versions == {"committed": 2, "found": 1, "rolled-forward": 1}
    assert (query.skipped_partitions, query.fenced_count) == (8, 4)


def test_a_micro_batch_that_ran_again_is_counted() -> None:
    assert query_of(line(1, batch=1), line(2, batch=2), line(3, batch=2), line(4, batch=3)).repeated_count == 1


def writes(batch: int, at: float, *topics: str) -> list[str]:
    """What foreachBatch writes, one topic after the other, 2 s each."""
    return [line(at + 2 * number, batch=batch, topic=topic, duration_s=2) for number, topic in enumerate(topics, 1)]


def test_a_micro_batch_that_is_written_to_two_topics_did_not_run_again() -> None:
    """foreachBatch may do that, and every micro-batch was said to be in Kafka twice."""
    lines = [text for batch in range(5) for text in writes(batch, 10 * batch, "orders", "audit")]
    query = query_of(*lines)
    assert (query.repeated_count, query.commits_in_words()) == (0, "5 micro-batches")
    assert (query.series.median("busy_share"), query.series.highest("cycle_s")) == (0.4, 10)
    assert query_of(*lines, *writes(4, 50, "orders", "audit")).repeated_count == 1
    assert query_of(*lines[:-1], *writes(4, 50, "orders", "audit"), *writes(5, 60, "orders", "audit")).repeated_count == 1
    assert query_of(*lines, *writes(2, 50, "archive")).repeated_count == 1


def test_exactly_once_writes_of_a_micro_batch_are_told_apart_by_their_owners() -> None:
    """A version that is found names no topic, as nothing is written; the writes of two owners may share one."""
    lines = [line(at, batch=1, version=VersionSummary(owner, 1, "committed", 0, 0)) for at, owner in enumerate("ab")]
    assert query_of(*lines).commits_in_words() == "1 micro-batch"
    repetition = line(9, batch=1, rows=0, partitions=[], version=VersionSummary("a", 1, "found", 2, 0))
    query = query_of(*lines, repetition)
    assert query.commits_in_words() == "2 micro-batches"
    assert (query.repeated_count, query.versions["found"]) == (0, 1)  # what it found says that it ran again


def test_a_micro_batch_that_writes_twice_to_one_topic_did_not_run_again() -> None:
    """foreachBatch may write two DataFrames to one topic: each micro-batch was said to be in Kafka twice, and counted twice."""
    lines = [text for batch in range(5) for text in writes(batch, 10 * batch, "orders", "orders")]
    query = query_of(*lines)
    assert (query.repeated_count, query.commits_in_words()) == (0, "5 micro-batches")
    assert query_of(*lines[:2]).repeated_count == 0
    assert query_of(*lines[:3]).repeated_count == 0  # the second micro-batch still writes
    assert query_of(*lines, *writes(4, 50, "orders", "orders")).repeated_count == 1
    assert query_of(*lines, *writes(5, 50, "orders"), *writes(5, 60, "orders", "orders"), *writes(6, 70)).repeated_count == 1
    assert query_of(*writes(0, 0, "orders"), *writes(1, 10, "orders"), *writes(1, 20, "orders")).repeated_count == 1


def test_each_query_is_told_apart_and_batch_writes_are_one() -> None:
    statistics = Statistics()
    texts = [line(1, query="a"), line(2, query=None, rows=40_000), line(3, query="b"), line(4, query=None), line(5, query="a")]
    statistics.add(parse(text.encode()) for text in texts)
    assert [(query.id, query.totals.commits) for query in statistics.by_rows()] == [(None, 2), ("a", 2), ("b", 1)]


def test_the_last_commit_is_the_latest_in_whichever_order_lines_come() -> None:
    """Of two batch jobs with a file each, it was the last of the job that began later, though the other ran on for hours."""
    query = query_of(*(line(at, query=None) for at in (0, 36_000, 3600, 7200)))
    assert query.last_at_s == BEGAN + 36_000


def test_queries_beyond_a_limit_are_only_counted() -> None:
    statistics = Statistics()
    statistics.add(parse(line(at, query=f"q{at}").encode()) for at in range(MAX_QUERIES + 5))
    assert (len(statistics.queries), statistics.commits_left_out) == (MAX_QUERIES, 5)


def test_memory_does_not_grow_with_the_number_of_commits() -> None:
    """5,000 commits of 12 partitions would take 40 MB if their lines were kept."""
    texts = [text.encode() for text in many_micro_batches(500)]
    query = Query("q")
    tracemalloc.start()
    try:
        peaks = []
        for _ in range(2):
            for _ in range(5):
                for text in texts:
                    query.add(parse(text))
            peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(peaks) < 4_000_000
