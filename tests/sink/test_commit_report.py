"""commit_report.py: reports are small, none may be missing, and they add up to one line."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.config.format_options import SchemaUse
from spark_kafka_sink.errors import ConfigError, DeliveryError
from spark_kafka_sink.exactly_once.writes import AttemptResult, Content, TaskReport, TaskTransaction, WriteId
from spark_kafka_sink.producer.producer_metrics import SECTIONS
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink import commit_report
from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, TaskTimes, WrittenRange, merge_ranges
from spark_kafka_sink.sink.commit_summary import AVERAGES, ONLY_FOR_AVERAGES, REPORT_VERSION, CommitSummary, merge_counters
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter
from tests.sink.columns import sink_options, write_plan


def message(
    partition: int, *written: WrittenRange, count: int = 1, query_id: str | None = None, rejected: tuple[int, int] = (0, 0)
) -> KafkaCommitMessage:
    rows = sum(each.rows for each in written)
    counters = tuple(count for _ in COUNTERS)
    batch_id = None if query_id is None else 4
    seconds = 0.5 + partition
    return KafkaCommitMessage(partition, 0, query_id, batch_id, rows, 10 * rows, seconds, counters, *rejected, written)


ONE = message(0, WrittenRange("a", 0, 10, 19, 10, 100), WrittenRange("b", 0, 5, 5, 1, 10), count=2)
TWO = message(1, WrittenRange("a", 0, 20, 24, 5, 50), WrittenRange("a", 1, 0, 1, 2, 20), count=3)


# MESSAGES


def test_a_message_survives_the_way_to_the_driver() -> None:
    rejected = (("KAFKA_X", 2),)
    full = replace(ONE, times=TaskTimes(1, 2.5, 0.5), skipped_by_reason=rejected, dead_lettered_by_reason=rejected)
    for each in (ONE, full):
        back = pickle.loads(pickle.dumps(each))
        assert back == each
        assert [type(each) for each in back.written] == [WrittenRange, WrittenRange]
        assert isinstance(back.times, TaskTimes)


def test_every_field_of_a_message_survives_the_way_to_the_driver() -> None:
    """A field that is added later, too: each one has a value that differs from its default."""
    report = TaskReport(WriteId("q", 4), AttemptResult.OPEN, TaskTransaction(0, 1, 2, 3, 2, Content(11, 12)))
    full = replace(
        message(3, *ONE.written, count=2, query_id="q", rejected=(1, 2)),
        attempt=1,
        exactly_once=report,
        times=TaskTimes(1, 2.5, 0.5),
        skipped_by_reason=(("KAFKA_X", 1),),
        dead_lettered_by_reason=(("KAFKA_Y", 2),),
        found_abort=True,
        schemas=(SchemaUse("value", "orders-value", 1, 7),),
    )
    back = pickle.loads(pickle.dumps(full))
    values = {each.name: (getattr(full, each.name), getattr(back, each.name)) for each in fields(full)}
    assert [name for name, (original, _) in values.items() if not original] == []
    assert [name for name, (original, copy) in values.items() if original != copy or type(original) is not type(copy)] == []


def test_a_message_of_300_partitions_stays_small() -> None:
    many = message(0, *(WrittenRange("orders", i, 10**9 + i, 10**9 + i + 9999, 10_000, 1_100_000) for i in range(300)))
    assert len(pickle.dumps(many)) < 300 * 40


def test_a_message_of_one_partition_is_small_with_all_its_counters() -> None:
    assert len(pickle.dumps(message(0, WrittenRange("orders", 0, 10**9, 10**9 + 9999, 10_000, 1_100_000), count=10**12))) < 500


def test_ranges_of_one_partition_become_one() -> None:
    ranges = [WrittenRange("a", 1, 7, 9, 3, 30), WrittenRange("a", 0, 0, 0, 1, 10), WrittenRange("a", 1, 2, 3, 2, 20)]
    assert merge_ranges(ranges) == (WrittenRange("a", 0, 0, 0, 1, 10), WrittenRange("a", 1, 2, 9, 5, 50))


def test_an_unknown_offset_does_not_hide_a_known_one() -> None:
    known_range, unknown_range = WrittenRange("a", 0, 5, 6, 2, 20), WrittenRange("a", 0, -1, -1, 3, 30)
    for ranges in ([known_range, unknown_range], [unknown_range, known_range]):
        assert merge_ranges(ranges) == (WrittenRange("a", 0, 5, 6, 5, 50),)
    assert merge_ranges([unknown_range, unknown_range]) == (WrittenRange("a", 0, -1, -1, 6, 60),)


# COMMIT


def test_reports_add_up() -> None:
    summary = CommitSummary.of([ONE, TWO])
    assert (summary.tasks, summary.rows, summary.bytes, summary.slowest_task_seconds) == (2, 18, 180, 1.5)
    assert summary.counters["request-total"] == 5
    assert summary.counters["request-latency-max"] == 3
    assert summary.written == (
        WrittenRange("a", 0, 10, 24, 15, 150),
        WrittenRange("a", 1, 0, 1, 2, 20),
        WrittenRange("b", 0, 5, 5, 1, 10),
    )


def counters_of(**values: float) -> tuple[float, ...]:
    return tuple(values.get(name.replace("-", "_"), 0) for name in COUNTERS)


def test_averages_are_over_the_batches_and_requests_of_all_tasks() -> None:
    """Averages of the tasks' averages would be 505 bytes a batch and 505 records a request here."""
    small = counters_of(batch_send_total=1, byte_total=10, produce_request_total=1, record_send_total=10)
    large = counters_of(batch_send_total=99, byte_total=99_000, produce_request_total=9, record_send_total=9_000)
    merged = merge_counters(zip(small, large, strict=True))
    assert (merged["batch-size-avg"], merged["records-per-request-avg"]) == (990.1, 901)
    assert "request-latency-avg" not in merged  # with acks=0 there are no responses


def test_an_average_has_the_sum_and_the_number_that_it_needs() -> None:
    for total, count in AVERAGES.values():
        assert COUNTERS[total] is COUNTERS[count] is sum
    assert not set(ONLY_FOR_AVERAGES) & set(merge_counters([[1, 2]] * len(COUNTERS)))


def test_every_counter_is_a_metric_of_the_producer() -> None:
    names = {metric.name for metrics in list(SECTIONS.values())[:2] for metric in metrics}
    assert {*COUNTERS, *AVERAGES} <= names


def test_commit_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    commit_report.report_commit([ONE, TWO], None)
    (record,) = caplog.records
    assert record.getMessage() == "wrote 18 rows, 180 bytes, in 2 tasks to 3 partitions of a, b; slowest task 1.5 s"


def test_a_commit_without_rows_is_one_plain_line(caplog: pytest.LogCaptureFixture) -> None:
    """It was "wrote 0 rows, 0 bytes, in 1 task to 0 partitions of no topic", also where an earlier run had written all rows."""
    caplog.set_level(logging.INFO)
    commit_report.report_commit([message(0)], None)
    (record,) = caplog.records
    assert record.getMessage() == "wrote no rows in 1 task; slowest task 0.5 s"


@pytest.mark.parametrize("by_spark", [True, False])
def test_the_line_is_seen_in_sparks_process_and_in_no_other_unless_asked_for(
    by_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four pages promised the line, and nobody saw it: Spark's process logged warnings only."""
    logger = logging.getLogger("spark_kafka_sink.sink.commit_report")
    monkeypatch.setattr(stderr_log, "is_in_spark_worker", lambda: by_spark)
    try:
        commit_report.report_commit([], None)
        assert logger.isEnabledFor(logging.INFO) == by_spark
    finally:
        logger.setLevel(logging.NOTSET)


def test_a_stream_is_named_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    commit_report.report_commit([message(0, query_id="q1")], None)
    assert caplog.messages[0].endswith("; query q1, batch 4")


def test_many_topics_are_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    commit_report.report_commit([message(0, *(WrittenRange(name, 0, 0, 0, 1, 1) for name in "abcd"))], None)
    assert "to 4 partitions of 4 topics;" in caplog.text


def test_a_commit_of_no_tasks_is_one_of_no_rows() -> None:
    assert commit_report.report_commit([], None).rows == 0


@pytest.mark.parametrize("messages", [[None, None], [ONE, None]])
def test_a_missing_report_is_an_error_that_explains_the_continuous_trigger(
    messages: list[KafkaCommitMessage | None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DeliveryError) as raised:
        commit_report.require_all(messages)
    assert str(raised.value).startswith(f"[KAFKA_MISSING_COMMIT_MESSAGE] {messages.count(None)} of 2 tasks report nothing")
    assert "trigger(continuous=…)" in str(raised.value)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_both_writers_commit_and_abort_as_spark_calls_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = tmp_path / "report"
    plan = write_plan(RowMapping("t", 0, None, None, None, None), sink_options(report_path=str(report)))
    batch, stream = KafkaBatchWriter(plan), KafkaStreamWriter(plan)
    batch.commit([ONE])
    stream.commit([TWO], 4)
    assert len(report.read_text().splitlines()) == 2
    batch.abort([None])
    stream.abort([None], 4)
    assert caplog.text.count("aborted: 0/1 tasks") == 2
    with pytest.raises(DeliveryError):
        batch.commit([None])
    with pytest.raises(DeliveryError):
        stream.commit([None], 4)


# THE REPORT FILE


def test_each_commit_appends_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    commit_report.report_commit([ONE], str(path))
    commit_report.report_commit([TWO, message(2, query_id=None)], str(path))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["rows"], first["tasks"], first["bytes"]) == (11, 1, 110)
    assert first["offsets"] == {
        "a": {"0": {"first": 10, "last": 19, "rows": 10, "bytes": 100}},
        "b": {"0": {"first": 5, "last": 5, "rows": 1, "bytes": 10}},
    }
    assert first["counters"]["request-total"] == 2
    assert second["tasks"] == 2
    assert second["committed_at_ms"] >= first["committed_at_ms"] > 1_600_000_000_000


def test_a_report_path_that_is_a_fifo_does_not_block_the_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """open() waited for a reader for ever, after all rows had been written."""
    path = tmp_path / "report"
    os.mkfifo(path)
    commit_report.report_commit([ONE], str(path))
    assert "it is not a regular file" in caplog.text


def test_a_line_that_was_written_in_part_does_not_spoil_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full for a moment: the next line was appended to the piece, and neither could be read. Nothing was logged."""
    path, write = tmp_path / "report", os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: write(file, line[:100]))
        commit_report.report_commit([ONE], str(path))
    assert "only 100 of" in caplog.text
    commit_report.report_commit([ONE], str(path))
    piece, line = path.read_text().splitlines()
    assert len(piece) == 100
    assert json.loads(line)["rows"] == 11


@pytest.mark.parametrize("name", ["missing/report", "a\0b"])
def test_a_report_that_cannot_be_written_does_not_fail_the_write(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With NUL in the path, open() raises ValueError, and the write failed although its rows were in Kafka."""
    commit_report.report_commit([ONE], str(tmp_path / name))
    assert "the report of 11 rows could not be written to reportPath=" in caplog.text


# The keys of a line, by the version that brought them. Programs read these lines: a version that is released never changes here.
KEYS = {
    1: (
        *("committed_at_ms", "query_id", "batch_id", "tasks", "rows", "bytes", "slowest_task_seconds", "counters", "skipped"),
        *("dead_lettered", "exactly_once", "offsets"),
    ),
    2: (
        *("report_version", "started_at_ms", "median_task_seconds", "task_seconds", "spark_seconds", "held_back_seconds"),
        *("commit_seconds", "skipped_by_reason", "dead_lettered_by_reason"),
    ),
    3: ("running_seconds",),
    4: ("schemas",),
}


def test_a_line_says_its_version_and_has_all_keys_of_the_versions_before() -> None:
    line = json.loads(CommitSummary.of([ONE]).to_json(0))
    assert line["report_version"] == REPORT_VERSION == max(KEYS)
    assert set(line) == {key for keys in KEYS.values() for key in keys}
    assert next(iter(line)) == "report_version"


def test_a_commit_tells_which_schemas_its_rows_were_encoded_with() -> None:
    value, key = SchemaUse("value", "t-value", 7, 3), SchemaUse("key", "", 2, None)
    messages = [replace(ONE, schemas=each) for each in ((value,), (), (key, value))]
    summary = CommitSummary.of([pickle.loads(pickle.dumps(each)) for each in messages])
    assert summary.schemas == (key, value)
    assert summary.line().endswith("; schemas key: schema 2, value: t-value version 3 (id 7)")
    assert json.loads(summary.to_json(0))["schemas"] == [
        {"part": "key", "subject": "", "id": 2, "version": None},
        {"part": "value", "subject": "t-value", "id": 7, "version": 3},
    ]


def test_the_line_of_a_commit_names_a_few_of_many_schemas() -> None:
    uses = tuple(SchemaUse("value", f"t{number}-value", number, 1) for number in range(9))
    assert CommitSummary.of([replace(ONE, schemas=uses)]).line().endswith("t3-value version 1 (id 3) and 5 more")


def test_the_keys_of_a_line_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    section = page.partition("## The line of a commit")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(key for keys in KEYS.values() for key in keys)


def test_where_the_time_went_adds_up() -> None:
    times = [TaskTimes(2_000, 1.5, 0.25), TaskTimes(1_000, 2.0, 0.5), TaskTimes(0, 0.25, 0.0)]
    messages = [replace(message(number), times=each) for number, each in enumerate(times)]
    line = json.loads(CommitSummary.of(messages, commit_seconds=0.12345).to_json(0))
    assert line["started_at_ms"] == 1_000
    assert (line["median_task_seconds"], line["slowest_task_seconds"], line["task_seconds"]) == (1.5, 2.5, 4.5)
    assert (line["spark_seconds"], line["held_back_seconds"], line["commit_seconds"]) == (3.75, 0.75, 0.123)


@pytest.mark.parametrize(
    ("tasks", "running"),
    [
        ([(1_000, 2.0)], 2.0),
        ([(1_000, 2.0), (2_000, 3.0)], 4.0),  # side by side: from 1 to 5
        ([(1_000, 5.0), (2_000, 1.0)], 5.0),  # one within the other
        ([(9_000, 1.5), (1_000, 2.0)], 3.5),  # one after the other, with a pause from 3 to 9
        ([(1_000, 2.0), (0, 3.0)], None),  # the second does not say when it began
        ([], None),
    ],
)
def test_the_time_in_which_tasks_ran_is_that_of_one_or_more(tasks: list[tuple[int, float]], running: float | None) -> None:
    messages = [replace(message(0), seconds=seconds, times=TaskTimes(began)) for began, seconds in tasks]
    assert json.loads(CommitSummary.of(messages).to_json(0))["running_seconds"] == running


def test_a_commit_without_tasks_has_no_start() -> None:
    line = json.loads(CommitSummary.of([]).to_json(0))
    assert (line["started_at_ms"], line["task_seconds"], line["median_task_seconds"]) == (None, 0, 0)


def test_rejected_rows_are_counted_by_reason() -> None:
    one = replace(message(0), skipped_by_reason=(("KAFKA_B", 2), ("KAFKA_A", 1)))
    two = replace(message(1), skipped_by_reason=(("KAFKA_B", 3),), dead_lettered_by_reason=(("KAFKA_C", 4),))
    line = json.loads(CommitSummary.of([one, two]).to_json(0))
    assert (line["skipped_by_reason"], line["dead_lettered_by_reason"]) == ({"KAFKA_A": 1, "KAFKA_B": 5}, {"KAFKA_C": 4})


# ROWS THAT WERE NOT WRITTEN


def test_rows_that_were_not_written_are_counted_and_make_the_line_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    summary = commit_report.report_commit([ONE, message(1, rejected=(2, 3)), message(2, rejected=(1, 0))], None)
    assert (summary.rows, summary.skipped, summary.dead_lettered) == (11, 3, 3)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "; 3 skipped, 3 dead-lettered; " in record.getMessage()
    assert (json.loads(summary.to_json(0))["skipped"], json.loads(summary.to_json(0))["dead_lettered"]) == (3, 3)


# THE CALLER'S FUNCTION

summaries: list[CommitSummary] = []


def remember(summary: CommitSummary) -> None:
    summaries.append(summary)


def fail(summary: CommitSummary) -> None:
    raise RuntimeError(f"no use for {summary.rows} rows")


def test_the_callers_function_gets_the_summary() -> None:
    summary = commit_report.report_commit([ONE, TWO], None, f"{__name__}.remember")
    assert summaries.pop() is summary


def test_a_function_that_fails_does_not_fail_the_write(caplog: pytest.LogCaptureFixture) -> None:
    assert commit_report.report_commit([ONE], None, f"{__name__}.fail").rows == 11
    assert f"onCommit={__name__}.fail failed; the write succeeds all the same, with 11 rows" in caplog.text
    assert "no use for 11 rows" in caplog.text


def leave(summary: CommitSummary) -> None:
    sys.exit(f"{summary.rows} rows are enough")


def cancel(summary: CommitSummary) -> None:
    raise asyncio.CancelledError(f"{summary.rows} rows came too late")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}.leave", "11 rows are enough"),
        (f"{__name__}.cancel", "11 rows came too late"),
        ("nowhere.f", "no module nowhere"),
    ],
)
def test_a_function_that_exits_or_is_gone_does_not_fail_the_write_either(
    name: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """sys.exit() ended Spark's commit process and failed the write, although its rows were in Kafka. So did the CancelledError
    of a client in asyncio, which is no Exception either."""
    assert commit_report.report_commit([ONE], None, name).rows == 11
    assert message in caplog.text


def interrupt(_: CommitSummary) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_in_the_callers_function_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        commit_report.report_commit([ONE], None, f"{__name__}.interrupt")


@pytest.mark.parametrize("name", ["nowhere.at_all", "json.lods", "json.__name__", "print"])
def test_a_function_that_cannot_be_called_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"onCommit={name} cannot be loaded: "):
        load_callable("onCommit", name)


# ABORT


EMPTY = message(2)
AGAIN = "If the write is run again, it writes these rows again (at-least-once)"
UNKNOWN = "No row is known to be in Kafka, but rows that a task wrote before it failed, or still writes, stay there"


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        (
            [ONE, None, TWO],
            "2/3 tasks had completed. Their 18 rows stay in Kafka, and so do rows that other tasks have written or still write. "
            + AGAIN,
        ),
        ([ONE, TWO], f"2/2 tasks had completed. Their 18 rows stay in Kafka. {AGAIN}"),
        ([None, None], f"0/2 tasks had completed. {UNKNOWN}"),
        ([EMPTY, None], f"1/2 tasks had completed. {UNKNOWN}"),
        ([], f"0/0 tasks had completed. {UNKNOWN}"),
        ([EMPTY], "1/1 tasks had completed. They wrote no rows"),
    ],
)
def test_abort_says_what_stays_in_kafka(
    messages: list[KafkaCommitMessage | None], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that had written nothing logged "0 rows of theirs stay in Kafka …, those rows will be there twice"."""
    commit_report.log_abort(messages)
    assert caplog.messages == [f"aborted: {line}"]
