"""Rows that cannot be written, and their outcomes; which row an error names; timestamps, maps of headers, rates and reports."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.sink.commit_summary import CommitSummary
from tests.integration.conftest import SessionSettings
from tests.integration.reading import ReadRecord, ReadTopic, Topic, read_with_spark
from tests.integration.writing import FileStream, conditions, error_of, run, save

NO_KEY_ON_COMPACTED = {"cleanup.policy": "compact"}
WHY = "__pykafka_sink.errors."


def reasons(record: ReadRecord) -> dict[str, bytes | None]:
    return {name.removeprefix(WHY): value for name, value in record.headers if name.startswith(WHY)}


def some_without_key(spark: SparkSession, rows: int = 3000) -> DataFrame:
    """Every seventh row has no key."""
    return spark.range(rows, numPartitions=1).selectExpr(
        "if(id % 7 = 3, null, cast(id as string)) key", "cast(id as string) value"
    )


# WHICH ROW IT WAS


def test_the_error_of_a_row_that_the_broker_rejects_has_number_partition_and_key(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    name = topic(1, NO_KEY_ON_COMPACTED)
    message = error_of(lambda: save(some_without_key(spark, 100), broker, name))
    assert f"[KAFKA_INVALID_RECORD] row 3 of this task: topic {name}, partition 0, no key, value of 1 bytes: " in message
    assert "(Spark partition 0, attempt 0)" in message


def test_the_error_of_a_row_above_the_topics_limit_has_number_and_size(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    df = spark.range(10, numPartitions=1).selectExpr("concat('k', id) key", "repeat('x', if(id = 7, 50000, 1)) value")
    message = error_of(lambda: save(df, broker, topic(1, {"max.message.bytes": "10000"})))
    assert "[KAFKA_MESSAGE_TOO_LARGE] row 7 of this task: " in message
    assert "partition 0, key b'k7' of 2 bytes, value of 50000 bytes: " in message


# OUTCOMES


def test_a_row_above_max_request_size_goes_to_the_dead_letter_topic_whole(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, dead, report = topic(1), topic(1, {"max.message.bytes": "10000000"}), tmp_path / "report.jsonl"
    df = spark.range(10, numPartitions=1).selectExpr(
        "concat('k', id) key",
        "repeat('x', if(id = 7, 2000000, 1)) value",
        "array(named_struct('key', 'h', 'value', cast('v' as binary))) headers",
    )
    save(df, broker, name, onRecordTooLarge="deadLetter", deadLetterTopic=dead, reportPath=str(report))
    assert [record.key for record in read_topic(name)] == [b"k%d" % i for i in range(10) if i != 7]
    (letter,) = read_topic(dead, **{"fetch.message.max.bytes": 10_000_000})
    assert (letter.key, letter.value, letter.headers[0]) == (b"k7", b"x" * 2_000_000, ("h", b"v"))
    reason = reasons(letter)
    assert (reason["topic"], reason["partition"], reason["condition"]) == (name.encode(), None, b"KAFKA_RECORD_TOO_LARGE")
    assert b"max.request.size=1048576" in (reason["message"] or b"")
    line = json.loads(report.read_text())
    assert (line["rows"], line["skipped"], line["dead_lettered"]) == (9, 0, 1)


def test_keys_and_topics_that_are_not_utf8_have_their_fate_and_keep_their_bytes(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """cast(binary AS string) checks nothing, and copies from topic to topic do that. Such rows ended in UnicodeDecodeError."""
    name, dead = topic(1), topic(1, {"max.message.bytes": "10000000"})
    df = spark.range(4, numPartitions=1).selectExpr(
        f"if(id = 1, cast(unhex('C3') as string), '{name}') topic",
        "cast(unhex(concat('FFFE8', id)) as string) key",
        "repeat('x', if(id = 2, 2000000, 1)) value",
    )
    save(df, broker, onRecordTooLarge="deadLetter", onInvalidRecord="deadLetter", deadLetterTopic=dead)
    assert [record.key for record in read_topic(name)] == [b"\xff\xfe\x80", b"\xff\xfe\x83"]
    letters = read_topic(dead, **{"fetch.message.max.bytes": 10_000_000})
    assert {letter.key: reasons(letter)["condition"] for letter in letters} == {
        b"\xff\xfe\x81": b"KAFKA_INVALID_TOPIC_EXCEPTION",
        b"\xff\xfe\x82": b"KAFKA_RECORD_TOO_LARGE",
    }
    assert {reasons(letter)["topic"] for letter in letters} == {b"\xc3", name.encode()}


def test_rows_above_the_topics_limit_are_skipped_in_order_of_the_others(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Batches are split until such a row is alone, so the others stay where they are."""
    name, report = topic(1, {"max.message.bytes": "10000"}), tmp_path / "report.jsonl"
    df = spark.range(2000, numPartitions=1).selectExpr("concat(id, repeat('x', if(id % 500 = 7, 20000, 10))) value")
    save(df, broker, name, onRecordTooLarge="skip", reportPath=str(report))
    numbers = [int((record.value or b"").rstrip(b"x")) for record in read_topic(name)]
    assert numbers == [i for i in range(2000) if i % 500 != 7]
    assert json.loads(report.read_text())["skipped"] == 4


@pytest.mark.parametrize("batch_size", ["1000", "262144"])
def test_rows_that_the_broker_rejects_are_dead_lettered_and_the_others_sent_again(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path, batch_size: str
) -> None:
    name, dead, report = topic(2, NO_KEY_ON_COMPACTED), topic(), tmp_path / "report.jsonl"
    options = {"onInvalidRecord": "deadLetter", "deadLetterTopic": dead, "kafka__batch__size": batch_size}
    save(some_without_key(spark), broker, name, reportPath=str(report), **options)
    assert Counter(record.value for record in read_topic(name)) == Counter(b"%d" % i for i in range(3000) if i % 7 != 3)
    letters = read_topic(dead)
    assert Counter(record.value for record in letters) == Counter(b"%d" % i for i in range(3, 3000, 7))
    assert {reasons(letter)["condition"] for letter in letters} == {b"KAFKA_INVALID_RECORD"}
    assert {reasons(letter)["partition"] for letter in letters} <= {b"0", b"1"}
    line = json.loads(report.read_text())
    assert (line["rows"], line["dead_lettered"]) == (2571, 429)
    assert sum(each["rows"] for each in line["offsets"][name].values()) == 2571


def test_rows_whose_timestamp_the_broker_rejects_are_skipped(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(1, {"message.timestamp.before.max.ms": "3600000"})
    df = spark.range(100, numPartitions=1).selectExpr(
        "cast(id as string) value", "if(id % 10 = 0, 1000, cast(unix_millis(now()) as bigint)) timestamp"
    )
    save(df, broker, name, includeTimestamp="true", onInvalidRecord="skip")
    assert {record.value for record in read_topic(name)} == {b"%d" % i for i in range(100) if i % 10}


def test_rows_that_can_be_sent_nowhere_are_dead_lettered_before_anything_is_sent(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name, dead = topic(3), topic()
    headers = "array(named_struct('key', if(id = 5, null, 'h'), 'value', cast('v' as binary))) headers"
    df = spark.range(8, numPartitions=1).selectExpr(
        "case id when 1 then null when 2 then 'ünï/code' else '" + name + "' end topic",
        "concat('v', id) value",
        "cast(case id when 3 then -1 when 4 then 3 end as int) partition",
        headers,
        "if(id = 6, -1, 1700000000000) timestamp",
    )
    options = {"onInvalidRecord": "deadLetter", "deadLetterTopic": dead, "kafka__max__block__ms": "2000"}
    save(df, broker, includeTimestamp="true", **options)
    assert sorted(record.value or b"" for record in read_topic(name)) == [b"v0", b"v7"]
    errors = {record.value: reasons(record) for record in read_topic(dead)}
    assert {value: why["condition"] for value, why in errors.items()} == {
        b"v1": b"KAFKA_NULL_TOPIC_IN_DATA",
        b"v2": b"KAFKA_INVALID_TOPIC_EXCEPTION",
        b"v3": b"KAFKA_INVALID_PARTITION",
        b"v4": b"KAFKA_UNKNOWN_PARTITION",
        b"v5": b"KAFKA_INVALID_RECORD",
        b"v6": b"KAFKA_INVALID_RECORD",
    }
    assert (errors[b"v1"]["topic"], errors[b"v2"]["topic"], errors[b"v4"]["partition"]) == (None, "ünï/code".encode(), b"3")


def test_a_row_that_the_dead_letter_topic_rejects_fails_the_task(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    name, dead = topic(1, NO_KEY_ON_COMPACTED), topic(1, NO_KEY_ON_COMPACTED)
    message = error_of(
        lambda: save(some_without_key(spark, 50), broker, name, onInvalidRecord="deadLetter", deadLetterTopic=dead)
    )
    assert f"rows cannot be written to deadLetterTopic={dead} either: " in message
    assert "KAFKA_INVALID_RECORD" in conditions(message)


def test_a_stream_sends_dead_letters(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, dead = topic(), topic()
    stream = FileStream(spark, tmp_path, "topic string, value string")
    for batch in range(2):
        stream.feed([{"topic": name, "value": str(batch)}, {"topic": None, "value": f"bad{batch}"}])
    run(stream.writer(stream.read(), broker, onInvalidRecord="deadLetter", deadLetterTopic=dead))
    assert [record.value for record in read_topic(name)] == [b"0", b"1"]
    assert [record.value for record in read_topic(dead)] == [b"bad0", b"bad1"]


def test_headers_without_key_or_that_are_null_are_invalid_and_null_values_are_not(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """Spark's own sink ends with a NullPointerException for both."""
    name, dead = topic(), topic()
    kind = "array<struct<key:string,value:binary>>"
    headers = "case id when 0 then array(null) when 1 then array(struct(null, null)) when 2 then array(struct('h', null)) end"
    df = spark.range(4, numPartitions=1).selectExpr("cast(id as string) value", f"cast({headers} as {kind}) headers")
    save(df, broker, name, onInvalidRecord="deadLetter", deadLetterTopic=dead)
    assert [(record.value, record.headers) for record in read_topic(name)] == [(b"2", [("h", None)]), (b"3", [])]
    assert [record.value for record in read_topic(dead)] == [b"0", b"1"]


# COLUMNS BEYOND SPARK'S


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_maps_are_headers(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, kind: str) -> None:
    name = topic()
    df = spark.range(3, numPartitions=1).selectExpr(
        "cast(id as string) value",
        f"case id when 0 then map('a', cast('1' as {kind}), 'é', cast(null as {kind})) when 1 then map() end headers",
    )
    save(df, broker, name)
    assert [record.headers for record in read_topic(name)] == [[("a", b"1"), ("é", None)], [], []]


def test_the_fields_of_a_header_may_be_named_in_any_case(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    save(
        spark.range(1).selectExpr("'v' value", "array(named_struct('Key', 'a', 'VALUE', cast('b' as binary))) headers"),
        broker,
        name,
    )
    assert [record.headers for record in read_topic(name)] == [[("a", b"b")]]


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kathmandu", "GMT+5", "-18:00"])
def test_a_timestamp_is_its_instant_whatever_the_sessions_time_zone(
    spark: SparkSession,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    session_settings: SessionSettings,
    zone: str,
) -> None:
    session_settings({"spark.sql.session.timeZone": zone})
    name, moment = topic(), int(datetime(2024, 3, 10, 7, 30, tzinfo=UTC).timestamp() * 1000)
    df = spark.range(2, numPartitions=1).selectExpr("'v' value", f"if(id = 0, timestamp_millis({moment}), null) timestamp")
    before = time.time() * 1000
    save(df, broker, name, includeTimestamp="true")
    first, second = (record.timestamp for record in read_topic(name))
    assert first == moment
    assert second >= int(before)


def test_timestamps_at_the_ends_of_their_range_are_kept_and_before_1970_invalid(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    times = "case id when 0 then '1970-01-01 00:00:00' when 1 then '9999-12-31 23:59:59.999' else '1969-12-31 23:59:59' end"
    df = spark.range(3, numPartitions=1).selectExpr("cast(id as string) value", f"cast({times} as timestamp) timestamp")
    save(df, broker, name, includeTimestamp="true", onInvalidRecord="skip")
    assert [record.timestamp for record in read_topic(name)] == [0, 253_402_300_799_999]


def test_large_types_of_arrow_are_written_as_others_are(
    spark: SparkSession, broker: LocalKafka, topic: Topic, session_settings: SessionSettings
) -> None:
    session_settings({"spark.sql.execution.arrow.useLargeVarTypes": "true"})
    name = topic(2)
    written = spark.range(100, numPartitions=1).selectExpr(
        "cast(id as string) key",
        "cast(concat('v', id) as binary) value",
        f"'{name}' topic",
        "array(named_struct('key', 'h', 'value', cast('b' as binary))) headers",
    )
    save(written, broker)
    rows_read = read_with_spark(spark, broker.bootstrap_servers, name)
    rows_read = rows_read.selectExpr("cast(key as string)", "value", "topic", "headers")
    assert_df_equality(rows_read, written, ignore_row_order=True, ignore_nullable=True)


# RATES


@pytest.mark.parametrize("rate", [{"maxRecordsPerSecond": "2000"}, {"maxBytesPerSecond": "20000"}])
def test_a_task_keeps_to_its_rate(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path, rate: dict[str, str]
) -> None:
    name, report = topic(), tmp_path / "report.jsonl"
    df = spark.range(3000, numPartitions=1).selectExpr("lpad(cast(id as string), 10, '0') value")
    save(df, broker, name, reportPath=str(report), **rate)
    assert [int(record.value or b"") for record in read_topic(name)] == list(range(3000))
    assert json.loads(report.read_text())["slowest_task_seconds"] >= 1.2  # 1.5 s of rows but the last run


def test_a_rate_too_low_for_sparks_idle_time_out_is_refused_before_a_row_is_written(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, session_settings: SessionSettings
) -> None:
    """Spark killed the task's worker, with some rows written, and then the next attempt's. Smaller Arrow batches are no help, as
    Spark hands over all of so few rows at once."""
    idle = {"killOnIdleTimeout": "true", "idleTimeoutSeconds": "30"}
    session_settings({f"spark.sql.execution.pyspark.udf.{name}": value for name, value in idle.items()})
    session_settings({"spark.sql.execution.arrow.maxRecordsPerBatch": "10"})
    name = topic()
    df = spark.range(100, numPartitions=1).selectExpr("cast(id as string) value")
    message = error_of(lambda: save(df, broker, name, maxRecordsPerSecond="3"))
    assert "[KAFKA_INVALID_CONFIG] maxRecordsPerSecond or maxBytesPerSecond is too low for Spark's idle time-out" in message
    assert " s for 80 rows that Spark may deliver at once" in message
    assert read_topic(name) == []
    save(df, broker, name, maxRecordsPerSecond="100")
    assert len(read_topic(name)) == 100


def test_a_task_that_waits_for_its_rate_can_be_cancelled(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    name = topic()
    tracker, group = spark.sparkContext.statusTracker(), f"slow-{name}"

    def write() -> None:
        spark.sparkContext.setJobGroup(group, "a write that would take an hour", interruptOnCancel=True)
        spark.createDataFrame([("v",)], "value string")  # gives this thread the session, and with it the format
        df = spark.range(3600, numPartitions=1).selectExpr("cast(id as string) value")
        save(df, broker, name, maxRecordsPerSecond="1")

    def running_tasks() -> int:
        jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
        stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
        return sum(stage.numActiveTasks for stage in stages)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        deadline = time.monotonic() + 60
        while not running_tasks() and not writing.done() and time.monotonic() < deadline:
            wait([writing], 0.1)
        spark.sparkContext.cancelJobGroup(group)
        assert "cancelled" in str(writing.exception(30))


# REPORTS


def file_of(topic: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{topic}.commits"


def append_summary(summary: CommitSummary) -> None:
    """What onCommit names: runs in a process of Spark's on the driver."""
    with file_of(summary.written[0].topic).open("a") as file:
        file.write(json.dumps([summary.rows, summary.batch_id, [each.last for each in summary.written]]) + "\n")


@pytest.fixture
def commits_of() -> Iterator[Callable[[str], list[Any]]]:
    read: list[Path] = []

    def commits(name: str) -> list[Any]:
        read.append(file_of(name))
        return [json.loads(line) for line in read[-1].read_text().splitlines()]

    yield commits
    for path in read:
        path.unlink(missing_ok=True)


def test_each_commit_calls_the_users_function_on_the_driver(
    spark: SparkSession, broker: LocalKafka, topic: Topic, tmp_path: Path, commits_of: Callable[[str], list[Any]]
) -> None:
    name = topic()
    on_commit = f"{__name__}.append_summary"
    save(spark.range(10).select(F.col("id").cast("string").alias("value")), broker, name, onCommit=on_commit)
    stream = FileStream(spark, tmp_path, "value string")
    stream.feed([{"value": "a"}])
    stream.feed([{"value": "b"}, {"value": "c"}])
    run(stream.writer(stream.read(), broker, name, onCommit=on_commit))
    assert commits_of(name) == [[10, None, [9]], [1, 0, [10]], [2, 1, [12]]]


def test_the_line_of_a_commit_is_among_the_logs_that_spark_captures(
    spark: SparkSession, broker: LocalKafka, topic: Topic, session_settings: SessionSettings
) -> None:
    """The line is logged in a process of Spark's, where a user's own logging has no effect: nobody ever saw it."""
    session_settings({"spark.sql.pyspark.worker.logging.enabled": "true"})
    name = topic()
    save(spark.range(7).selectExpr("cast(id as string) value"), broker, name)
    lines = [row.msg for row in spark.tvf.python_worker_logs().collect() if name in row.msg]
    (line,) = lines
    assert line.startswith("wrote 7 rows, ")


def test_rows_can_be_observed_as_with_any_sink(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    observation = Observation("written")
    save(
        spark.range(7).selectExpr("cast(id as string) value").observe(observation, F.count("value").alias("rows")),
        broker,
        topic(),
    )
    assert observation.get == {"rows": 7}


def test_a_function_that_cannot_be_imported_fails_before_a_task_starts(spark: SparkSession) -> None:
    message = error_of(lambda: save(spark.range(1).selectExpr("'v' value"), "127.0.0.1:9", "t", onCommit="nowhere.f"))
    assert "onCommit=nowhere.f cannot be loaded: there is no module nowhere" in message
