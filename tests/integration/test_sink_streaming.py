"""Streams with real Spark to a real broker: rounds, restarts, foreachBatch, output modes, and the trigger that loses rows."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from tests.integration.conftest import SessionSettings
from tests.integration.failing_sink import CommitFailsWhenAsked, file_that_fails_commits
from tests.integration.processes import connections, until
from tests.integration.reading import ReadRecord, ReadTopic, Topic, read_with_spark
from tests.integration.writing import FORMAT, STREAM_LIMIT_S, FileStream, error_of, run, save


def counted(records: list[ReadRecord]) -> Counter[bytes | None]:
    return Counter(record.value for record in records)


def once(numbers: range) -> Counter[bytes | None]:
    return Counter(str(number).encode() for number in numbers)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    return FileStream(spark, tmp_path, "topic string, key string, value string")


# THE SCENARIOS OF SPARK'S OWN KAFKASINKSUITE


def test_two_rounds_go_where_the_topic_column_says(
    spark: SparkSession, stream: FileStream, broker: LocalKafka, topic: Topic
) -> None:
    names = [topic(), topic()]
    rows = [(names[i % 2], str(i)) for i in range(20)]
    for round_ in (rows[:10], rows[10:]):
        stream.feed([{"topic": name, "value": value} for name, value in round_])
        run(stream.writer(stream.read(), broker))
    rows_read = read_with_spark(spark, broker.bootstrap_servers, *names).selectExpr("topic", "cast(value as string) value")
    assert_df_equality(rows_read, spark.createDataFrame(rows, rows_read.schema), ignore_row_order=True)


def test_the_topic_option_suffices(stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic()
    stream.feed([{"value": "a"}, {"value": None}])
    run(stream.writer(stream.read().drop("topic"), broker, name))
    assert counted(read_topic(name)) == Counter([b"a", None])


def test_the_topic_option_overrides_the_column(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    stream.feed([{"topic": "foo", "value": "a"}])
    run(stream.writer(stream.read(), broker, name))
    assert counted(read_topic(name)) == Counter([b"a"])


def test_the_error_of_a_wrong_schema_is_sparks(stream: FileStream) -> None:
    stream.feed([{"topic": "t", "value": "a"}])
    message = error_of(lambda: run(stream.writer(stream.read().select("topic", "key"), "127.0.0.1:9")))
    assert "Required attribute 'value' not found" in message


def test_the_progress_counts_the_rows(stream: FileStream, broker: LocalKafka, topic: Topic) -> None:
    stream.feed([{"value": "a"}, {"value": "b"}, {"value": "c"}])
    query = run(stream.writer(stream.read(), broker, topic()))
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [3]


# WHAT ELSE STREAMS DO


def test_a_restart_from_the_checkpoint_writes_every_row_once(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(2), tmp_path / "report.jsonl"
    for batch in range(3):
        stream.feed([{"value": str(i)} for i in range(batch * 100, batch * 100 + 100)])
    run(stream.writer(stream.read(), broker, name, reportPath=str(report)))
    stream.feed([{"value": str(i)} for i in range(300, 400)])
    run(stream.writer(stream.read(), broker, name, reportPath=str(report)))
    run(stream.writer(stream.read(), broker, name, reportPath=str(report)))  # nothing new
    assert counted(read_topic(name)) == once(range(400))
    reports = [json.loads(line) for line in report.read_text().splitlines()]
    assert [each["rows"] for each in reports] == [100] * 4
    assert [each["batch_id"] for each in reports] == [0, 1, 2, 3]
    assert len({each["query_id"] for each in reports}) == 1


def test_a_batch_that_failed_is_written_after_the_restart(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    stream.feed([{"topic": name, "value": str(i)} for i in range(10)])
    run(stream.writer(stream.read(), broker))
    stream.feed([{"topic": name, "value": str(i)} for i in range(10, 20)])
    error_of(lambda: run(stream.writer(stream.read().withColumn("partition", F.lit(5)), broker, kafka__max__block__ms="500")))
    run(stream.writer(stream.read(), broker))
    assert counted(read_topic(name)) == once(range(20))


def test_a_commit_that_failed_is_made_good_by_writing_the_batch_again(
    stream: FileStream, spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Its rows had been acknowledged: at least once means that they are there twice, and no other ones are."""
    name, report = topic(), tmp_path / "report.jsonl"
    spark.dataSource.register(CommitFailsWhenAsked)
    failure_file = file_that_fails_commits(str(report))
    stream.feed([{"value": "a"}])
    run(stream.writer(stream.read(), broker, name, reportPath=str(report)).format(CommitFailsWhenAsked.name()))
    failure_file.touch()
    stream.feed([{"value": "b"}])
    message = error_of(
        lambda: run(stream.writer(stream.read(), broker, name, reportPath=str(report)).format(CommitFailsWhenAsked.name()))
    )
    assert "no commit, as planned" in message
    failure_file.unlink()
    run(stream.writer(stream.read(), broker, name, reportPath=str(report)).format(CommitFailsWhenAsked.name()))
    assert counted(read_topic(name)) == Counter([b"a", b"b", b"b"])
    assert [json.loads(line)["batch_id"] for line in report.read_text().splitlines()] == [0, 1]


def test_a_report_directory_that_is_gone_fails_not_the_commit_but_the_next_plan(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Spark makes the writer anew to commit a batch. Its checks failed the query after the rows had been written, and the
    restart wrote them again. Here a task removes the directory, between the plan and the commit."""
    name, reports = topic(), tmp_path / "reports"
    reports.mkdir()

    def remove_directory(value: str) -> str:
        shutil.rmtree(reports, ignore_errors=True)
        return value

    rows = stream.read().withColumn("value", F.udf(remove_directory)("value"))
    stream.feed([{"value": "a"}])
    run(stream.writer(rows, broker, name, reportPath=str(reports / "report.jsonl")))
    assert not reports.exists()
    stream.feed([{"value": "b"}])
    message = error_of(lambda: run(stream.writer(rows, broker, name, reportPath=str(reports / "report.jsonl"))))
    assert "[KAFKA_INVALID_CONFIG] reportPath=" in message
    assert "Failed to initialize Python data source writer" in message
    run(stream.writer(rows, broker, name))
    assert counted(read_topic(name)) == Counter([b"a", b"b"])


def test_foreach_batch_writes_and_knows_its_stream(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(), tmp_path / "report.jsonl"

    def write(df: DataFrame, batch_id: int) -> None:
        save(df.withColumn("key", F.lit(str(batch_id))), broker, name, reportPath=str(report))

    stream.feed([{"value": "0"}])
    stream.feed([{"value": "1"}])
    run(
        stream.read()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
    )
    assert {(record.key, record.value) for record in read_topic(name)} == {(b"0", b"0"), (b"1", b"1")}
    reports = [json.loads(line) for line in report.read_text().splitlines()]
    assert [each["batch_id"] for each in reports] == [0, 1]
    assert reports[0]["query_id"] is not None


def test_complete_mode_writes_the_whole_result_with_each_batch(
    spark: SparkSession, stream: FileStream, broker: LocalKafka, topic: Topic
) -> None:
    name = topic()
    counts = stream.read().groupBy("key").count().selectExpr("key", "cast(count as string) value")
    stream.feed([{"key": "a"}, {"key": "b"}])
    stream.feed([{"key": "a"}])
    run(stream.writer(counts, broker, name).outputMode("complete"))
    rows_read = read_with_spark(spark, broker.bootstrap_servers, name).selectExpr("cast(key as string)", "cast(value as string)")
    first, second = [("a", "1"), ("b", "1")], [("a", "2"), ("b", "1")]
    assert_df_equality(rows_read, spark.createDataFrame(first + second, rows_read.schema), ignore_row_order=True)


def test_update_mode_is_refused_by_spark(stream: FileStream) -> None:
    stream.feed([{"key": "a"}])
    counts = stream.read().groupBy("key").count().selectExpr("key", "cast(count as string) value")
    message = error_of(lambda: run(stream.writer(counts, "127.0.0.1:9", "t").outputMode("update")))
    assert "does not support Update mode" in message


def test_the_continuous_trigger_fails_instead_of_losing_rows(
    spark: SparkSession,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    session_settings: SessionSettings,
    tmp_path: Path,
) -> None:
    """Spark never calls write() there, yet commits each epoch: without the check, rows vanish from a query that looks healthy.

    With it, no epoch is ever committed, and the query ends when as many as Spark allows are waiting.
    """
    name = topic()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load().selectExpr("cast(value as string) value")
    session_settings({"spark.sql.streaming.continuous.epochBacklogQueueSize": "8"})
    query = (
        rows.writeStream.format(FORMAT)
        .options(**{"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": name})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(continuous="1 second")
        .start()
    )
    message = error_of(lambda: query.awaitTermination(STREAM_LIMIT_S))
    assert "exceeded its maximum" in message
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == []
    assert read_topic(name) == []


# TRIGGERS, MANY QUERIES, EMPTY BATCHES


def numbers(start: int, stop: int) -> list[dict[str, str]]:
    return [{"value": str(number)} for number in range(start, stop)]


def test_a_processing_time_trigger_writes_what_comes_while_it_runs(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(2)
    stream.feed(numbers(0, 10))
    query = stream.writer(stream.read(), broker, name).trigger(processingTime="200 milliseconds").start()
    try:
        query.processAllAvailable()
        assert counted(read_topic(name)) == once(range(10))
        stream.feed(numbers(10, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert counted(read_topic(name)) == once(range(20))


def test_queries_of_one_session_do_not_mix(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Their tasks take turns in the same Python workers, with the same producers where their options are equal."""
    names = [topic() for _ in range(4)]
    queries = []
    try:
        for number, name in enumerate(names):
            directory = tmp_path / name
            directory.mkdir()
            stream = FileStream(spark, directory, "value string")
            for batch in range(3):
                stream.feed(numbers(number * 100 + batch * 10, number * 100 + batch * 10 + 10))
            linger = {"kafka__linger__ms": str(number // 2)}  # two pairs of queries with equal options
            queries.append(stream.writer(stream.read(), broker, name, **linger).start())
        for query in queries:
            assert query.awaitTermination(STREAM_LIMIT_S)
    finally:
        for query in queries:
            query.stop()
    for number, name in enumerate(names):
        assert counted(read_topic(name)) == once(range(number * 100, number * 100 + 30))


def test_empty_batches_are_committed_and_write_nothing(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(), tmp_path / "report.jsonl"
    for rows in (numbers(0, 5), [{"key": "none"}], numbers(5, 10)):
        stream.feed(rows)
    run(stream.writer(stream.read().where("value is not null"), broker, name, reportPath=str(report)))
    assert sorted(json.loads(line)["rows"] for line in report.read_text().splitlines()) == [0, 5, 5]
    assert counted(read_topic(name)) == once(range(10))


# WHAT IS KEPT BETWEEN BATCHES, AND WHAT IS NOT


def test_later_batches_find_their_producer_connected(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(), tmp_path / "report.jsonl"
    for batch in range(8):
        stream.feed(numbers(batch * 10, batch * 10 + 10))
    run(stream.writer(stream.read(), broker, name, reportPath=str(report), kafka__client__id="later-batches"))
    reports = [json.loads(line)["counters"] for line in report.read_text().splitlines()]
    assert [each["record-send-total"] - each["record-retry-total"] for each in reports] == [10] * 8
    connections = [each["connection-creation-total"] for each in reports]
    assert connections[0] > 0
    assert sum(count > 0 for count in connections) <= 2  # the first batch in each of two workers
    assert counted(read_topic(name)) == once(range(80))


def test_no_thread_and_no_connection_outlives_the_time_that_a_producer_may_rest(
    spark: SparkSession, stream: FileStream, broker: LocalKafka, topic: Topic
) -> None:
    """Producers of other tests rest here too, for longer."""
    before = connections(spark, broker.bootstrap_servers)
    threads = F.udf(lambda _: ",".join(thread.name for thread in threading.enumerate()))
    stream.feed(numbers(0, 10))
    run(stream.writer(stream.read(), broker, topic(), producerCacheTimeoutMs="3000", kafka__client__id="rests-shortly"))
    assert connections(spark, broker.bootstrap_servers) - before
    until(lambda: connections(spark, broker.bootstrap_servers) <= before, 30, "workers let their connections go")
    for row in spark.range(4, numPartitions=2).select(threads("id").alias("names")).collect():
        assert "MainThread" in row.names
        assert "rests-shortly" not in row.names


def test_a_query_stopped_within_a_batch_leaves_nothing_open_and_repeats_it(
    spark: SparkSession, stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, marker = topic(), tmp_path / "marker"
    rows = [{"value": f"{number:08}"} for number in range(100)]
    stream.feed(rows)
    options = {
        "kafka.partitioner.class": "tests.integration.plugins.HarmfulPartitioner",
        "kafka.fault.kind": "wait",
        "kafka.fault.row": "50",
        "kafka.fault.marker": str(marker),
        "producerCacheTimeoutMs": "500",
    }
    writer = stream.writer(stream.read(), broker, name).options(**options)
    before = connections(spark, broker.bootstrap_servers)
    query = writer.start()
    until(lambda: marker.exists() or query.exception() is not None, STREAM_LIMIT_S, "the task stands still")
    query.stop()
    until(lambda: connections(spark, broker.bootstrap_servers) <= before, 30, "workers let their connections go")
    assert read_topic(name) == []
    run(writer)
    assert counted(read_topic(name)) == Counter(row["value"].encode() for row in rows)
