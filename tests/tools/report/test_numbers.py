"""Every number on the page is one of the report line: stories with numbers that were worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from jobs.quickstart_flights import report_lines
from spark_kafka_sink.sink.commit_summary import REPORT_VERSION
from spark_kafka_sink.tools.report import page, terminal
from spark_kafka_sink.tools.report.findings import top_findings
from spark_kafka_sink.tools.report.lines import Troubles, parse
from spark_kafka_sink.tools.report.statistics import TASK_PARTS, TIME_PARTS, Query, Statistics

T0 = 1_790_000_000_000  # milliseconds since 1970


def story(**changes: Any) -> dict[str, Any]:
    """Two tasks write 300,000 rows, for 4 and 2 seconds side by side. The write takes 8 seconds, of which the commit takes 1."""
    counters = {
        "record-send-total": 300_000,
        "batch-send-total": 1,
        "byte-total": 2_040_000,
        "uncompressed-byte-total": 2_000_000,
        "bufferpool-wait-time-ms-total": 300,
        "metadata-wait-time-ns-total": 200_000_000,
        "flush-time-ns-total": 1_000_000_000,
        "produce-request-total": 1,
        "records-per-request-avg": 1,
        "batch-size-avg": 2_040_000,
        "compression-rate-avg": 1.0,
        "request-latency-avg": 80,
    }
    line = {
        "report_version": REPORT_VERSION,
        "committed_at_ms": T0 + 8_000,
        "started_at_ms": T0,
        "query_id": None,
        "batch_id": None,
        "tasks": 2,
        "rows": 300_000,
        "bytes": 2_000_000,
        "slowest_task_seconds": 4.0,
        "median_task_seconds": 3.0,
        "task_seconds": 6.0,
        "spark_seconds": 1.5,
        "held_back_seconds": 0.6,
        "running_seconds": 4.0,
        "commit_seconds": 1.0,
        "counters": counters,
        "skipped": 0,
        "dead_lettered": 0,
        "skipped_by_reason": {},
        "dead_lettered_by_reason": {},
        "exactly_once": None,
        "offsets": {
            "t": {
                "0": {"first": 0, "last": 1, "rows": 200_000, "bytes": 1},
                "1": {"first": 0, "last": 1, "rows": 100_000, "bytes": 1},
            }
        },
    }
    return {**line, **changes}


def statistics_of(*lines: Mapping[str, Any]) -> Statistics:
    statistics = Statistics()
    statistics.add(parse(json.dumps(line).encode()) for line in lines)
    return statistics


def query_of(*lines: Mapping[str, Any]) -> Query:
    (query,) = statistics_of(*lines).by_rows()
    return query


def text_of(*lines: Mapping[str, Any]) -> str:
    """The page's words, with one space between them."""
    text = page.html(statistics_of(*lines), Troubles(commit_count=len(lines)), ["r.jsonl"])
    body = text[text.index("<body") :]
    return " ".join(re.sub(r"<style.*?</style>|<[^>]+>", " ", body, flags=re.DOTALL).split())


def test_a_moment_of_work_in_a_long_write_is_not_spread_over_it() -> None:
    """A task that worked 0.05 s became "1,698 rows/s while tasks were at work … waiting for brokers is the largest part".

    The 3.9 s before and after it were counted as the task's, and spread over Spark, encoding and brokers.
    """
    waits = ("bufferpool-wait-time-ms-total", "metadata-wait-time-ns-total")
    counters = {**dict.fromkeys(waits, 0), "flush-time-ns-total": 20_000_000, "record-send-total": 7_000}
    times = {"slowest_task_seconds": 0.05, "median_task_seconds": 0.05, "task_seconds": 0.05, "running_seconds": 0.05}
    line = story(tasks=1, rows=7_000, **times, spark_seconds=0.01, held_back_seconds=0, commit_seconds=0, counters=counters)
    line["committed_at_ms"] = T0 + 4_000
    sentences = [each.sentence for each in top_findings(statistics_of(line).by_rows())]
    assert sentences == [
        "All rows arrived: 7,000 rows (2 MB) in 1 write.",
        "99 % of the time of a write (4 s) passes while no task runs: Spark starts tasks and Python workers then, so write more"
        " rows at a time, or with fewer tasks (df.coalesce).",
        "140k rows/s were written while 1 task ran (50 ms).",  # 7,000 / 0.05
    ]
    query = query_of(line)
    assert {name: query.series.sum(name) for name in TIME_PARTS} == pytest.approx(
        {"running_s": 0.05, "outside_s": 3.95, "commit_s": 0}
    )
    assert {name: query.series.sum(name) for name in TASK_PARTS} == pytest.approx(
        {"spark_s": 0.01, "held_back_s": 0, "brokers_s": 0.02, "sink_s": 0.02}
    )


def test_the_parts_of_the_time_are_those_of_the_line() -> None:
    query = query_of(story())
    assert {name: query.series.sum(name) for name in TIME_PARTS} == {"running_s": 4, "outside_s": 3, "commit_s": 1}
    parts = {name: query.series.sum(name) for name in TASK_PARTS}
    assert parts == pytest.approx({"spark_s": 1.5, "held_back_s": 0.6, "brokers_s": 1.5, "sink_s": 6 - 1.5 - 0.6 - 1.5})
    shown = text_of(story())
    assert "Tasks run 50 %; outside of tasks 38 %; committing 12 % of the time from its first task to its commit." in shown
    assert "Encoding, sending 40 %; " in shown  # 2.4 of 6 s
    assert "held back by a rate 10 % of the tasks' time." in shown.replace("&#39;", "'")


def test_no_part_of_a_task_is_longer_than_the_slowest_task() -> None:
    """The quick start showed a part of 3 s of a write whose slowest task took 2 s."""
    query = query_of(story())
    means = [query.series.sum(name) / query.series.sum("timed_tasks") for name in TASK_PARTS]
    assert sum(means) == pytest.approx(3.0)  # the mean of 4 and 2 s
    shown = text_of(story())
    bars = shown[shown.rindex("What a task does with its time") :]
    assert [f"{value} s" in bars or f"{value * 1000:.0f} ms" in bars for value in (0.75, 0.3, 0.75, 1.2)] == [True] * 4


def test_shell_page_and_quick_start_name_one_speed() -> None:
    """The quick start printed 63,280 rows/s in the shell and 44.6k on the page."""
    line = story()
    sentence = "75k rows/s were written while 2 tasks ran (4 s)"  # 300,000 / 4
    assert sentence in text_of(line)
    assert re.search(r"rows/s while tasks ran 75k\b", text_of(line))
    assert any(sentence in each for each in report_lines(json.dumps(line), 12.0))
    assert any(sentence in each for each in terminal.lines(statistics_of(line), Troubles(commit_count=1)))


def test_the_speed_of_several_writes_is_that_of_all_their_rows_while_tasks_ran() -> None:
    quick = story(committed_at_ms=T0 + 60_000, started_at_ms=T0 + 50_000, rows=100_000, running_seconds=1.0)
    query = query_of(story(), quick)
    assert query.rows_per_s == 80_000  # 400,000 / 5
    shown = text_of(story(), quick)
    assert "80k rows/s were written while tasks ran (5 s)" in shown
    assert "80k rows/s in all, at most 100k in a write." in shown


def test_bytes_sent_and_their_part_are_of_the_same_bytes() -> None:
    """The page said "100 % of the records' bytes" beside "1.96 MB … 2.04 MB were sent": batches have headers."""
    later = story(committed_at_ms=T0 + 60_000, started_at_ms=T0 + 50_000)
    shown = text_of(story(), later)
    assert "4 MB of records in all, before compression; 4.08 MB were sent." in shown
    assert "What is sent has 102 % of the records' bytes." in shown.replace("&#39;", "'")


def test_one_of_a_thing_is_not_several() -> None:
    """The page said "1 records each" and "in 1 batches"."""
    later = story(committed_at_ms=T0 + 60_000, started_at_ms=T0 + 50_000)
    shown = page.html(statistics_of(story(), later), Troubles(commit_count=2), ["r.jsonl"]) + page.html(
        statistics_of(story(tasks=1)), Troubles(commit_count=1), ["r.jsonl"]
    )
    said = re.findall(r"<figcaption>(.*?)</figcaption>|<li[^>]*>(.*?)</li>|<p[^>]*>(.*?)</p>", shown)
    sentences = " ".join("".join(each) for each in said)
    assert "1 record each, answered in 80 ms." in sentences
    assert re.findall(r"\b1 (?:records|batches|rows|writes|requests|tasks|commits)\b", sentences) == []


def test_what_a_line_does_not_tell_is_not_made_up() -> None:
    """A write without tasks has no time in which they ran."""
    line = story(running_seconds=None)
    assert "rows/s were written" not in text_of(line)
    assert "outside of tasks" not in text_of(line).lower()
    assert "nan" not in text_of(line)


def test_a_task_whose_clock_is_ahead_makes_no_time_negative() -> None:
    query = query_of(story(started_at_ms=T0 + 7_000))
    assert {name: query.series.sum(name) for name in TIME_PARTS} == {"running_s": 4, "outside_s": 0, "commit_s": 1}
    assert query.series.sum("wall_s") == 5


def test_the_quick_starts_table_has_the_numbers_of_the_line() -> None:
    lines = list(report_lines(json.dumps(story()), 12.0))
    assert "1 batch of 2,040,000 bytes" in lines[-3]
    assert lines[-1] == "12.0 s in all: Spark's start, the time of batch_to_kafka, and Spark's end"
