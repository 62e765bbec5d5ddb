"""findings.py: each rule sees what it is for, keeps silent otherwise, and names an option that exists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest

from spark_kafka_sink.config.option import options_of
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.sink.commit_summary import VersionSummary
from spark_kafka_sink.tools.report import findings
from spark_kafka_sink.tools.report.findings import FINDING_RULES, top_findings
from spark_kafka_sink.tools.report.lines import parse
from spark_kafka_sink.tools.report.statistics import Query, Statistics
from tests.tools.report.samples import STORIES, line

NUMBER = 20
WITHOUT_ADVICE = {"speed"}
OPTIONS_OF_SPARK = {"maxOffsetsPerTrigger", "trigger", "spark.sql.files.maxPartitionBytes", "df.repartition", "df.coalesce"}


def statistics_of(lines: Iterator[str]) -> Statistics:
    statistics = Statistics()
    statistics.add(parse(text.encode()) for text in lines)
    return statistics


def query_of(lines: Iterator[str]) -> Query:
    (query,) = statistics_of(lines).by_rows()
    return query


def stream(**how: object) -> Callable[[], Iterator[str]]:
    """Micro-batches that are all alike, every 30 s."""
    return lambda: (line(30 * (batch + 1), **{"batch": batch, **how}) for batch in range(NUMBER))


def repeated(**how: object) -> Callable[[], Iterator[str]]:
    return lambda: (line(30 * at, batch=min(at, NUMBER - 2), **how) for at in range(1, NUMBER))


def without_pause() -> Iterator[str]:
    return (line(4.05 * (batch + 1), batch=batch, duration_s=4) for batch in range(NUMBER))


def versions(how: str, other_rows: int = 0) -> VersionSummary:
    return VersionSummary("orders", 1, how, 0, 0, other_rows)


# Name of a rule -> commits that it is for, and what it says of them.
CASES: dict[str, tuple[Callable[[], Iterator[str]], str]] = {
    "falls behind": (STORIES["behind"], "The stream falls behind: a micro-batch took 3.* at first and .* lately"),
    "without a pause": (without_pause, "The stream rests for 1.2 % of the time only"),
    "commits are repeated": (repeated(), "1 micro-batch ran again: at least once means that those rows are in Kafka twice"),
    "versions are repeated": (
        lambda: (line(30 * at, batch=at, version=versions("committed" if at < 3 else "found")) for at in range(1, 4)),
        "1 version ran again, and was in Kafka already: with deliveryGuarantee=exactly-once, readers with isolation.level=read_",
    ),
    "rows are missing": (
        stream(skipped={"KAFKA_NULL_TOPIC_IN_DATA": 2}, dead_lettered={"KAFKA_INVALID_PARTITION": 1}),
        r"40 rows were skipped and 20 rows went to the dead letter topic \(<0\.1 %\), most of them with KAFKA_NULL_TOPIC_IN_DATA",
    ),
    "throttled": (
        stream(produce_throttle_time_max=2500, produce_throttle_time_total=1000),
        "Brokers throttled the sink, once for 2.5 s, in all 25 % of the tasks' time",
    ),
    "waits for memory": (stream(bufferpool_wait_time_ms_total=2000), "Tasks waited 50 % of their time for memory"),
    "waits for metadata": (stream(metadata_wait_time_ns_total=2e9), "Tasks waited 50 % of their time for brokers to describe"),
    "held back": (stream(held_back=0.5), "The sink's own limits held rows back for 50 % of the tasks' time"),
    "records are sent again": (stream(record_retry_total=300), r"24k records \(10 %\) had to be sent again"),
    "batches are split": (stream(batch_split_total=1), "Brokers found 80 batches too large"),
    "brokers are slow": (stream(request_latency_total=9000), "Brokers took 3 s to answer a request"),
    "a task is slow": (stream(slowest=5.0), r"The slowest task takes 5\.0 times as long as the median task \(4 s\)"),
    "partitions are skewed": (
        stream(partitions=[1, 1, 14, 1, 1, 1]),
        r"Partition 2 of orders gets 74 % of its rows, 4\.4 times an even share of 17 %",
    ),
    "Spark computes": (stream(spark=0.9), "90 % of the tasks' time goes into reading and computing rows"),
    "encoding": (stream(spark=0.1), "87 % of the tasks' time goes into encoding and sending rows"),
    "waiting for brokers": (stream(spark=0.1, flush_time_ns_total=3e9), "75 % of the tasks' time is waiting for brokers"),
    "time outside of tasks": (stream(outside=3.0), r"75 % of the time of a micro-batch \(4 s\) passes while no task runs"),
    "commits take long": (stream(commit=2.0, version=versions("committed")), "Committing transactions takes 50 % of the time"),
    "versions were completed by another run": (
        stream(version=versions("rolled-forward")),
        "20 versions had been decided by an earlier run, which ended before it had committed all: a later run did that and",
    ),
    "repetitions brought other rows": (
        stream(version=versions("found", other_rows=7)),
        "140 rows of repeated versions differ from those in Kafka, and were not written",
    ),
    "many small micro-batches": (stream(rows=40, duration_s=0.2), "A micro-batch writes 40 rows in 200 ms"),
    "batches are small": (
        stream(rows=400_000, byte_total=2_000_000, batch_send_total=1000),
        "Batches have 2 kB only, as each task has few rows for each partition",
    ),
    "nothing is compressed": (stream(rows=400_000, byte_total=11_100_000), "went out uncompressed"),
    "keeps up": (stream(duration_s=3), "The stream keeps up: lately it was at work for 10 % of the time, 3 s a micro-batch"),
    "speed": (stream(), r"3,000 rows/s were written while tasks ran \(80 s\)"),
    "compresses": (stream(), "Compression leaves 40 % of the records.? bytes"),
}


def rule(name: str) -> findings.FindingRule:
    (finding_rule,) = [each for each in FINDING_RULES if each.name == name]
    return finding_rule


def test_every_rule_has_a_case() -> None:
    assert [each.name for each in FINDING_RULES] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_sees_what_it_is_for_and_names_its_option(name: str) -> None:
    lines, says = CASES[name]
    finding = rule(name).judge(query_of(lines()))
    assert finding is not None
    assert re.search(says, finding.sentence), finding.sentence
    if name in WITHOUT_ADVICE:
        assert finding.advice == rule(name).option == ""
    else:
        assert rule(name).option
        assert rule(name).option in finding.advice
    assert finding.sentence.count("\n") == 0
    assert finding.sentence.endswith(".")
    assert ".." not in finding.sentence


def test_of_a_healthy_stream_no_rule_complains() -> None:
    stream_findings = findings.findings(query_of(stream(duration_s=3)()))
    assert [each.sentence for each in stream_findings if each.is_trouble] == []
    assert stream_findings[0].observation.startswith("The stream keeps up")


@pytest.mark.parametrize(("largest", "is_seen"), [(10, True), (9, False)])
def test_partitions_are_skewed_from_two_and_a_half_times_an_even_share(largest: int, is_seen: bool) -> None:
    finding = rule("partitions are skewed").judge(query_of(stream(partitions=[1, 1, largest])()))
    assert (finding is not None) == is_seen
    assert finding is None or "gets 83 % of its rows, 2.5 times an even share of 33 %" in finding.sentence


def test_the_finding_of_too_large_rows_has_another_remedy() -> None:
    finding = rule("rows are missing").judge(query_of(stream(skipped={"KAFKA_RECORD_TOO_LARGE": 1})()))
    assert finding is not None
    assert "raise kafka.max.request.size and the topic's max.message.bytes" in finding.sentence
    assert finding.sentence.endswith("onRecordTooLarge decides what happens to them.")


@pytest.mark.parametrize("how", ["found", "superseded"])
def test_an_ordinary_repetition_is_told_once_and_blames_no_driver(how: str) -> None:
    """A write that a scheduler had repeated was told twice: in amber that a driver had died amid its work, in green that a
    micro-batch had run again."""
    lines = [line(30, batch=1, version=versions("committed")), line(60, batch=1, rows=0, version=versions(how))]
    said = [each for each in findings.findings(query_of(iter(lines))) if "again" in each.sentence or "driver" in each.sentence]
    assert [each.observation for each in said] == ["1 version ran again, and was in Kafka already"]
    assert said[0].weight <= 0.5
    lines = [line(30, query=None, batch=None, version=versions("committed"))]
    lines += [line(60, query=None, batch=None, rows=0, version=versions(how))]
    assert "driver" not in str(findings.findings(query_of(iter(lines))))


def test_a_trend_needs_some_micro_batches() -> None:
    lines = list(STORIES["behind"]())[:: len(list(STORIES["behind"]())) // 5][:5]
    assert rule("falls behind").judge(query_of(iter(lines))) is None


@pytest.mark.parametrize(("times", "fuller", "is_said"), [(1.45, 1.25, True), (1.35, 1.25, False), (1.45, 1.15, False)])
def test_a_stream_falls_behind_by_time_and_by_rows(times: float, fuller: float, is_said: bool) -> None:
    """The last quarter of the micro-batches against the first."""
    late = [at >= 20 for at in range(40)]
    lines = (
        line(at * 10 + 1, batch=at, rows=round(1000 * (fuller if late[at] else 1)), duration_s=10 * (times if late[at] else 1))
        for at in range(40)
    )
    assert (rule("falls behind").judge(query_of(lines)) is not None) is is_said


@pytest.mark.parametrize(("late_s", "is_said"), [(20, True), (0, False)])
def test_a_stream_whose_first_micro_batches_took_no_time_may_fall_behind(late_s: float, is_said: bool) -> None:
    """The report ended in a ZeroDivisionError, as the late time was divided by the early one."""
    durations_s = [*[0.0] * 10, *[20.0] * 20, *[late_s] * 9, 20.0]
    ends_s = accumulate(durations_s)
    batches = enumerate(zip(ends_s, durations_s, strict=True))
    lines = (line(at, batch=batch, rows=1000 * (1 + batch), duration_s=duration_s) for batch, (at, duration_s) in batches)
    assert (rule("falls behind").judge(query_of(lines)) is not None) is is_said


def test_a_stream_whose_first_times_are_unknown_is_not_said_to_fall_behind() -> None:
    """A time that no line tells passed for a short one: "a micro-batch took - at first"."""
    texts = (line(10 * (at + 1), batch=at, rows=1000 * (1 + at), duration_s=10) for at in range(40))
    lines = (text if at >= 20 else json.dumps({**json.loads(text), "started_at_ms": None}) for at, text in enumerate(texts))
    assert rule("falls behind").judge(query_of(lines)) is None


@pytest.mark.parametrize(
    ("part", "advice"),
    [
        ({"spark": 0.8}, "give Spark more cores"),
        ({"held_back": 0.8, "spark": 0.1}, "raise maxRecordsPerSecond"),
        ({"spark": 0.1}, "encoding"),
    ],
)
def test_what_to_do_about_falling_behind_depends_on_where_the_time_goes(part: dict[str, float], advice: str) -> None:
    lines = (line(at * at + 1, batch=at, rows=1000 * at, duration_s=2 * at, **part) for at in range(1, 40))
    finding = rule("falls behind").judge(query_of(lines))
    assert finding is not None
    assert advice in finding.advice


def test_the_report_says_that_no_row_was_written() -> None:
    (finding, *_) = top_findings(
        statistics_of(iter([line(1, rows=0, query=None, duration_s=0.5, **dict.fromkeys(["byte_total"], 0.0))])).by_rows()
    )
    assert finding.sentence.startswith("No row was written in 1 write")


def test_of_a_write_of_few_rows_nothing_is_said_about_speed() -> None:
    """A write of a few rows was told to repartition, to compress, and to look at its brokers' disks."""
    text = line(1, rows=3, query=None, duration_s=3, slowest=3.0, tasks=3, spark=0.9, request_latency_total=900)
    assert [each.sentence for each in top_findings([query_of(iter([text]))])] == ["All rows arrived: 3 rows (330 B) in 1 write."]


def test_the_page_says_first_that_all_rows_arrived_and_then_the_heaviest() -> None:
    for name, lines in STORIES.items():
        if name != "many":
            page_findings = top_findings(statistics_of(lines()).by_rows())
            assert 3 <= len(page_findings) <= 4, name
            assert page_findings[0].sentence.startswith("All rows arrived: "), name
            assert [each.weight for each in page_findings[1:]] == sorted(
                (each.weight for each in page_findings[1:]), reverse=True
            )


def test_of_rows_that_were_rejected_nobody_says_that_they_arrived() -> None:
    for lines in (
        stream(skipped={"KAFKA_X": 1}),
        stream(dead_lettered={"KAFKA_X": 1}),
        stream(version=versions("found", other_rows=1)),
    ):
        assert not [each.sentence for each in top_findings(statistics_of(lines()).by_rows()) if "arrived" in each.sentence]


def test_nothing_is_advised_twice() -> None:
    """Two of three sentences of the quick start recommended spark.sql.shuffle.partitions, and the job had no shuffle."""
    for lines, _ in CASES.values():
        advice = [each.advice for each in top_findings(statistics_of(lines()).by_rows())]
        options = [option for text in advice for option in re.findall(r"[\w.]*\.[\w.]+", text)]
        assert len(options) == len(set(options)), options
        assert "spark.sql.shuffle.partitions" not in options


def test_sentences_name_the_query_where_there_are_several() -> None:
    lines = [*stream(query="a")(), *stream(query="b", skipped={"KAFKA_X": 9})()]
    all_findings = top_findings(statistics_of(iter(lines)).by_rows())
    assert all_findings[0].observation.startswith("In query b, 180 rows were skipped")


def test_batch_writes_are_no_query() -> None:
    """Two streams and a batch write were "3 queries"."""
    lines = [*stream(query="a")(), *stream(query="b")(), line(1, query=None, batch=None), line(2, query=None, batch=None)]
    assert " in 2 queries and 2 writes" in top_findings(statistics_of(iter(lines)).by_rows())[0].sentence
    lines = [*stream(query="a")(), *stream(query="b")(), *stream(query="c")()]
    assert " in 3 queries" in top_findings(statistics_of(iter(lines)).by_rows())[0].sentence


def test_every_option_that_a_sentence_names_exists() -> None:
    own = {row.key for row in options_of(SinkOptions).values()}
    for name, (lines, _) in CASES.items():
        finding = rule(name).judge(query_of(lines()))
        assert finding is not None
        for option in re.findall(r"\bkafka\.([\w.]*\w)", finding.sentence):
            assert option in PRODUCER_KEYS, option
    for each in filter(lambda rule: rule.option, FINDING_RULES):
        kafka = each.option.removeprefix("kafka.")
        assert each.option in own | OPTIONS_OF_SPARK or (kafka != each.option and kafka in PRODUCER_KEYS), each.option
