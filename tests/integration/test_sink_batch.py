"""Batch writes with real Spark to a real broker: what is in the topic afterwards is what was in the DataFrame."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from tests.integration.conftest import SessionSettings
from tests.integration.reading import ReadRecord, ReadTopic, Topic, read_values_with_console_consumer, read_with_spark
from tests.integration.writing import error_of, save

HEADERS = "array<struct<key:string,value:binary>>"


def values(records: list[ReadRecord]) -> list[str | None]:
    return [None if record.value is None else record.value.decode() for record in records]


# THE SCENARIOS OF SPARK'S OWN KAFKASINKSUITE


def test_topic_value_and_headers_come_back_as_written(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(4)
    several = [Row(key="a", value=b"b"), Row(key="c", value=b"d"), Row(key="a", value=None), Row(key="é", value=b"")]
    rows = [(name, "1", several), (name, "2", None), (name, "3", []), (name, "4", [Row(key="", value=b"\x00\xff")])]
    save(spark.createDataFrame(rows, f"topic string, value string, headers {HEADERS}"), broker)
    headers_by_value = {record.value: record.headers for record in read_topic(name, client="kafka-python")}
    assert headers_by_value == {
        b"1": [("a", b"b"), ("c", b"d"), ("a", None), ("é", b"")],
        b"2": [],
        b"3": [],
        b"4": [("", b"\x00\xff")],
    }


def test_the_partition_column_takes_precedence_over_the_key(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(4)
    rows = [(f"k{i}", f"v{i}") for i in range(20)]
    by_key = spark.createDataFrame(rows, "key string, value string")
    save(by_key, broker, name)
    partition_by_value = {record.value: record.partition for record in read_topic(name)}
    assert len(set(partition_by_value.values())) > 1

    second = topic(4)
    save(by_key.withColumn("partition", F.lit(2)), broker, second)
    assert {record.partition for record in read_topic(second)} == {2}

    third = topic(4)
    save(by_key.withColumn("partition", F.lit(None).cast("int")), broker, third)
    assert {record.value: record.partition for record in read_topic(third)} == partition_by_value


def test_a_partitioner_precedes_the_key_and_the_partition_column_both(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    by_key = spark.range(20).selectExpr("cast(id as string) key", "cast(id as string) value")
    for partition, expected in ((None, {0}), (2, {2})):
        name = topic(4)
        df = by_key.withColumn("partition", F.lit(partition).cast("int"))
        save(df, broker, name, kafka__partitioner__class="tests.integration.plugins.AlwaysZero")
        assert {record.partition for record in read_topic(name)} == expected


def test_keys_go_where_sparks_own_sink_puts_them(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    ours, theirs = topic(7), topic(7)
    df = spark.range(500).selectExpr("cast(id * id as string) key", "cast(id as string) value")
    save(df, broker, ours)
    df.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", theirs).save()
    our_rows, their_rows = (
        read_with_spark(spark, broker.bootstrap_servers, name).select("partition", "key", "value") for name in (ours, theirs)
    )
    assert our_rows.count() == 500
    assert_df_equality(our_rows, their_rows, ignore_row_order=True)


def test_an_analyzed_expression_may_be_the_value(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """SPARK-20496: the plan handed to the sink was analyzed twice."""
    name = topic()
    df = spark.range(1).select(F.to_json(F.struct("*")).alias("value"))
    save(df, broker, name)
    assert values(read_topic(name)) == ['{"id":0}']


def test_large_rows_pass_through_a_small_buffer(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    df = spark.range(1000, numPartitions=2).selectExpr("cast(repeat('x', 15000) as binary) value")
    save(df, broker, name, kafka__buffer__memory="16384")
    assert [len(record.value or b"") for record in read_topic(name)] == [15_000] * 1000


# ROWS OF EVERY KIND


def test_nulls_stay_nulls_and_empty_stays_empty(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    name = topic()
    rows = [(b"k", None), (None, b"v"), (None, None), (b"", b""), (b"k", b"v")]
    written = spark.createDataFrame(rows, "key binary, value binary").coalesce(1)
    save(written, broker, name)
    rows_read = read_with_spark(spark, broker.bootstrap_servers, name).orderBy("offset")
    assert_df_equality(rows_read.select("key", "value"), written)


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_text_and_bytes_are_written_as_they_are(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, kind: str
) -> None:
    name = topic()
    texts = ["straße", "日本語", "🙂" * 100, "\x00", "a\nb", ""]
    df = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
    save(df.select(F.col("value").cast(kind), F.col("value").cast(kind).alias("key")), broker, name)
    records = read_topic(name)
    assert values(records) == texts
    assert [record.key for record in records] == [record.value for record in records]


def test_one_row_is_written_in_order_with_a_current_timestamp(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    before = time.time()
    save(spark.range(1).selectExpr("'v' value"), broker, name)
    (record,) = read_topic(name)
    assert (record.offset, record.key, record.value) == (0, None, b"v")
    assert before - 1 <= record.timestamp / 1000 <= time.time() + 1


def test_no_rows_write_nothing(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic()
    save(spark.range(0).selectExpr("cast(id as string) value"), broker, name)
    assert read_topic(name) == []


def test_empty_spark_partitions_do_no_harm(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic()
    save(spark.range(100, numPartitions=8).where("id % 100 = 7").selectExpr("cast(id as string) value"), broker, name)
    assert values(read_topic(name)) == ["7"]


def test_rows_of_200_tasks_arrive_once_each(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(3), tmp_path / "report.jsonl"
    df = spark.range(10_000, numPartitions=200).selectExpr("cast(id as string) key", "cast(id as string) value")
    save(df, broker, name, reportPath=str(report))
    assert sorted(map(int, filter(None, values(read_topic(name))))) == list(range(10_000))
    line = json.loads(report.read_text())
    assert (line["tasks"], line["rows"]) == (200, 10_000)
    assert sum(each["rows"] for each in line["offsets"][name].values()) == 10_000
    counters = line["counters"]
    assert counters["record-send-total"] == 10_000 + counters["record-retry-total"]
    assert counters["uncompressed-byte-total"] >= line["bytes"]
    assert 1 <= counters["records-per-request-avg"] <= 50
    assert 0 < counters["request-latency-avg"] <= counters["request-latency-max"]
    assert 0 < line["spark_seconds"] < line["task_seconds"]
    assert 0 < line["median_task_seconds"] <= line["slowest_task_seconds"]
    assert 0 < line["committed_at_ms"] - line["started_at_ms"] < 600_000


def test_the_order_within_a_task_is_kept(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic(3)
    df = spark.range(300_000, numPartitions=1).selectExpr("cast(id % 50 as string) key", "cast(id as string) value")
    save(df, broker, name)
    by_partition: dict[int, list[int]] = {}
    for record in read_topic(name):
        by_partition.setdefault(record.partition, []).append(int(record.value or b""))
    assert all(ids == sorted(ids) for ids in by_partition.values())
    assert sum(map(len, by_partition.values())) == 300_000


def test_rows_of_one_task_go_to_several_topics(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    names = [topic(2) for _ in range(3)]
    rows = [(names[i % 3], b"%d" % i) for i in range(3000)]
    written = spark.createDataFrame(rows, "topic string, value binary").coalesce(1)
    save(written, broker)
    rows_read = read_with_spark(spark, broker.bootstrap_servers, *names)
    assert_df_equality(rows_read.select("topic", "value"), written, ignore_row_order=True)


def test_the_topic_option_overrides_the_column(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name, other = topic(), topic()
    save(spark.range(2).selectExpr("cast(id as string) value", f"'{other}' topic"), broker, name)
    assert sorted(filter(None, values(read_topic(name)))) == ["0", "1"]
    assert read_topic(other) == []


def test_columns_that_no_record_has_are_ignored(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    df = spark.range(1).selectExpr(
        "'v' value", "map('a', 1) extra", "current_date() day", "cast(1 as decimal(20,2)) amount", "'K' KEY"
    )
    save(df, broker, name)
    (record,) = read_topic(name)
    assert (record.key, record.value) == (None, b"v")


def test_a_value_of_one_megabyte_arrives(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic()
    save(spark.range(3).selectExpr("repeat(cast(id as string), 1000000) value"), broker, name)
    assert sorted(record.value for record in read_topic(name) if record.value) == [str(i).encode() * 1_000_000 for i in range(3)]


def test_rows_larger_than_a_batch_keep_their_offsets(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """A batch of one row once carried its row's place in the chunk: readers skipped rows, and brokers do not check it."""
    name = topic()
    df = spark.range(500, numPartitions=1).selectExpr("concat(id, repeat('x', 100)) value")
    save(df, broker, name, kafka__batch__size="100")
    for client in ("confluent-kafka", "kafka-python"):
        records = read_topic(name, client=client)
        assert [record.offset for record in records] == list(range(500))
        assert values(records) == [f"{i}{'x' * 100}" for i in range(500)]


def test_every_codec_is_readable_by_java_and_two_other_clients(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, kafka_jars: Path
) -> None:
    """Rows enough for parts that are compressed one by one, where the codec can. One topic for all: Java is slow to start."""
    name, codecs = topic(2), ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        df = spark.range(20_000, numPartitions=2).selectExpr(f"concat('{codec}-', id, repeat(' of many', 12)) value")
        save(df, broker, name, kafka__compression__type=codec)
    written = Counter(f"{codec}-{i}{' of many' * 12}" for codec in codecs for i in range(20_000))
    assert Counter(values(read_topic(name))) == written
    assert Counter(values(read_topic(name, client="kafka-python"))) == written
    assert Counter(read_values_with_console_consumer(kafka_jars, broker.bootstrap_servers, name, written.total())) == written


def test_a_topic_of_300_partitions_gets_each_row_once_and_each_key_in_one_place(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(300)
    df = spark.range(60_000, numPartitions=2).selectExpr("cast(id % 5000 as string) key", "cast(id as string) value")
    save(df, broker, name)
    records = read_topic(name)
    assert Counter(values(records)) == Counter(map(str, range(60_000)))
    assert len({(record.key, record.partition) for record in records}) == 5_000
    assert len({record.partition for record in records}) == 300


def test_a_timestamp_column_is_written_when_asked_for(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    moment = int(datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC).timestamp() * 1000)
    df = spark.range(1, numPartitions=1).selectExpr("'v' value", f"timestamp_millis({moment}) timestamp")
    with_timestamp, without_timestamp = topic(), topic()
    save(df, broker, with_timestamp, includeTimestamp="true")
    save(df, broker, without_timestamp)
    assert [record.timestamp for record in read_topic(with_timestamp)] == [moment]
    assert read_topic(without_timestamp)[0].timestamp > moment


def test_acks_0_and_1_write_the_same_rows(spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    for acks in ("0", "1"):
        name = topic(2)
        save(spark.range(1000).selectExpr("cast(id as string) value"), broker, name, kafka__acks=acks)
        assert Counter(values(read_topic(name))) == Counter(map(str, range(1000)))


# WAYS TO WRITE


def test_the_format_works_in_sql_style_writers(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """saveAsTable and save(path) bring options of Spark's own."""
    name = topic()
    df = spark.range(1).selectExpr("'v' value")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": name}
    df.write.format("PyKafka-Sink").options(**options).mode("append").save("a/path/that/is/ignored")
    table = name.replace("-", "_")
    df.write.format("pykafka-sink").options(**options).mode("append").saveAsTable(table)
    spark.sql(f"drop table {table}")
    assert values(read_topic(name)) == ["v", "v"]


def test_a_table_takes_its_options_from_the_insert(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """Spark hands those of CREATE TABLE to no data source in Python; the error says so."""
    name = topic()
    table = name.replace("-", "_")
    options = f"'kafka.bootstrap.servers' = '{broker.bootstrap_servers}', 'topic' = '{name}'"
    spark.sql(f"create table {table} (value string) using `pykafka-sink` options ({options})")
    try:
        message = error_of(lambda: spark.sql(f"insert into {table} values ('a')"))
        assert "No option came with this write." in message
        assert "INSERT INTO … WITH (" in message
        spark.sql(f"insert into {table} with ({options}) values ('a')")
        spark.createDataFrame([("b",)], "value string").writeTo(table).option("topic", name).option(
            "kafka.bootstrap.servers", broker.bootstrap_servers
        ).append()
        assert 'read from Kafka with format("kafka")' in error_of(lambda: spark.table(table).collect())
    finally:
        spark.sql(f"drop table {table}")
    assert values(read_topic(name)) == ["a", "b"]


def test_a_thread_of_the_users_finds_the_format_when_the_session_is_active_there(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """As docs/migrating.md says. format("kafka") needs no such thing."""
    name = topic()
    df = spark.range(1).selectExpr("'v' value")

    def write(prepare: Callable[[], object]) -> None:
        prepare()
        save(df, broker, name)

    with ThreadPoolExecutor(1) as thread:
        problem = thread.submit(write, lambda: None).exception(60)
        assert "DATA_SOURCE_NOT_FOUND" in str(problem)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write, lambda: spark.createDataFrame([], "x int")).result(60)
    assert values(read_topic(name)) == ["v"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrow_batches_are_read(
    spark: SparkSession,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    session_settings: SessionSettings,
    codec: str,
) -> None:
    name = topic()
    session_settings({"spark.sql.execution.arrow.compression.codec": codec})
    save(spark.range(2000, numPartitions=1).selectExpr("repeat(cast(id as string), 50) value"), broker, name)
    assert values(read_topic(name)) == [str(i) * 50 for i in range(2000)]


def test_columns_that_differ_in_case_alone_and_strings_of_every_kind_are_written(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic()
    df = spark.range(1).selectExpr(
        f"'{name}' collate UNICODE topic",
        "'k' collate UTF8_LCASE key",
        "'no' KEY",
        "'v' value",
        "named_struct('a', 1, 'A', 2) extra",
    )
    save(df, broker)
    (record,) = read_topic(name)
    assert (record.key, record.value) == (b"k", b"v")


def test_spark_says_what_its_own_sink_takes_and_it_refuses_here(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    """docs/migrating.md has the remedies. The broker is there: without one, planning waits 5 s for it at each write."""
    name, df = topic(), spark.range(1).selectExpr("'k' key", "'v' value")
    writer = df.write.format("pykafka-sink").mode("append").option("topic", name)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    assert "The provided partitioning" in error_of(writer.partitionBy("key").save)
    message = error_of(lambda: save(df.withColumn("extra", F.lit(1)).selectExpr("*", "1 extra"), broker, name))
    assert "DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT" in message


def test_the_report_tells_offsets_that_readers_see(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, report = topic(3), tmp_path / "report.jsonl"
    df = spark.range(5000, numPartitions=2).selectExpr("cast(id as string) key", "cast(id as string) value")
    for _ in range(2):
        save(df, broker, name, reportPath=str(report))
    lines = [json.loads(line)["offsets"][name] for line in report.read_text().splitlines()]
    assert len(lines) == 2
    for partition in range(3):
        offsets = [record.offset for record in read_topic(name) if record.partition == partition]
        first, second = (line[str(partition)] for line in lines)
        assert (first["first"], first["last"] + 1, second["last"]) == (0, second["first"], offsets[-1])
        assert first["rows"] + second["rows"] == len(offsets)
