"""Spark's own Kafka sink and this one, side by side: the same rows, the same topics, the same bytes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from tests.integration.reading import ReadRecord, ReadTopic, Topic, read_with_spark
from tests.integration.writing import error_of, run, save

ROWS = 100_000
PARTITIONS = 7
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WORDS = ["", "a", "straße", "日本語", "🙂🙂", "\x00", "a\nb", "x" * 300, "ключ"]


def save_with_spark(df: DataFrame, broker: LocalKafka, topic: str | None = None, **options: str) -> None:
    writer = df.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**options)
    (writer if topic is None else writer.option("topic", topic)).save()


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Random rows, by key in four Spark partitions and by `id` within them; the same each time it is written."""
    draw = random.Random(20_241)

    def header() -> dict[str, Any]:
        return {"key": draw.choice(WORDS), "value": draw.choice([None, b"", draw.randbytes(9)])}

    def headers() -> list[dict[str, Any]] | None:
        return draw.choice([None, [], [header()], [header(), header()], [header()] * 2 + [header()]])

    def maybe(value: Any, chance: float) -> Any:
        return value if draw.random() < chance else None

    columns = {
        "id": pa.array(range(ROWS)),
        "key": pa.array([maybe(draw.choice(WORDS) + str(draw.randrange(5000)) * draw.randrange(2), 0.9) for _ in range(ROWS)]),
        "value": pa.array([maybe(draw.randbytes(draw.choice([0, 1, 20, 200])), 0.9) for _ in range(ROWS)], pa.binary()),
        "headers": pa.array([headers() for _ in range(ROWS)], HEADERS),
        "partition": pa.array([maybe(draw.randrange(PARTITIONS), 0.1) for _ in range(ROWS)], pa.int32()),
    }
    df = spark.createDataFrame(pa.table(columns)).repartition(4, "key").sortWithinPartitions("id").cache()
    assert df.count() == ROWS
    return df


def by_key(records: list[ReadRecord]) -> dict[bytes, dict[int, list[tuple[Any, ...]]]]:
    """What each key has in each partition, in order."""
    rows_by_key: dict[bytes, dict[int, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.key is not None:
            rows_by_key[record.key][record.partition].append((record.value, tuple(record.headers)))
    return rows_by_key


def without_key(records: list[ReadRecord]) -> Counter[tuple[Any, ...]]:
    return Counter((record.value, tuple(record.headers)) for record in records if record.key is None)


def test_a_hundred_thousand_random_rows_are_the_same_in_both_topics(
    frame: DataFrame, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """Keys: same partitions, same bytes, same order. Rows without a key or partition may lie anywhere, in both sinks."""
    theirs, ours = topic(PARTITIONS), topic(PARTITIONS)
    save_with_spark(frame, broker, theirs)
    save(frame, broker, ours)
    their_records, our_records = read_topic(theirs), read_topic(ours)
    assert len(their_records) == len(our_records) == ROWS
    assert by_key(our_records) == by_key(their_records)
    assert without_key(our_records) == without_key(their_records)


@pytest.mark.parametrize("said", ["", "false", "true"])
def test_both_sinks_write_headers_whatever_include_headers_says(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, said: str
) -> None:
    """The documents had it that Spark's own sink leaves them out."""
    df = spark.sql("SELECT 'v' AS value, array(named_struct('key', 'h', 'value', cast('x' AS binary))) AS headers")
    options = {"includeHeaders": said} if said else {}
    for write in (save_with_spark, save):
        name = topic()
        write(df, broker, name, **options)
        assert [record.headers for record in read_topic(name)] == [[("h", b"x")]]


def test_several_topics_from_a_column_get_the_same_rows_by_binary_keys(
    frame: DataFrame, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    theirs, ours = [topic(PARTITIONS), topic(2)], [topic(PARTITIONS), topic(2)]
    sample = frame.where("id < 5000 and key is not null").withColumn("key", F.col("key").cast("binary")).drop("partition")
    for names, write in ((theirs, save_with_spark), (ours, save)):
        write(sample.withColumn("topic", F.when(F.col("id") % 3 == 0, names[0]).otherwise(names[1])), broker)
    for their_topic, our_topic in zip(theirs, ours, strict=True):
        assert by_key(read_topic(our_topic)) == by_key(read_topic(their_topic))


# COPIES FROM TOPIC TO TOPIC


def read(spark: SparkSession, broker: LocalKafka, topic: str) -> DataFrame:
    return read_with_spark(spark, broker.bootstrap_servers, topic)


def test_a_copy_may_bring_all_of_the_sources_columns(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    """The option `topic` goes before the source's column; its `partition` is written to; offset and times are ignored."""
    source, copy, with_times = topic(3), topic(3), topic(3)
    rows = spark.range(300, numPartitions=2).selectExpr(
        "cast(id as string) key",
        "cast(id as string) value",
        "array(named_struct('key', 'h', 'value', cast('v' as binary))) headers",
        "1700000000000 + id timestamp",
    )
    save(rows, broker, source, includeTimestamp="true")
    df = read(spark, broker, source)
    assert {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"} == set(df.columns)
    save(df, broker, copy)
    save(df, broker, with_times, includeTimestamp="true")

    content, originals = ["partition", "key", "value", "headers"], read(spark, broker, source)
    assert originals.count() == 300
    copies, timed = read(spark, broker, copy), read(spark, broker, with_times)
    assert_df_equality(copies.select(content), originals.select(content), ignore_row_order=True)
    assert_df_equality(timed.select(*content, "timestamp"), originals.select(*content, "timestamp"), ignore_row_order=True)
    ((earliest,), (latest,)) = copies.agg(F.min("timestamp")).collect() + originals.agg(F.max("timestamp")).collect()
    assert earliest > latest


def test_without_the_option_a_copy_goes_back_to_the_topic_it_came_from(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    """As in Spark's own sink: the source's column names the topic."""
    source = topic(2)
    written = spark.range(10).selectExpr("cast(cast(id as string) as binary) value")
    save(written, broker, source)
    save(read(spark, broker, source).cache(), broker)
    values = read(spark, broker, source).select("value")
    assert_df_equality(values, written.union(written), ignore_row_order=True, ignore_nullable=True)


# PARTITIONER PRIORITIES


def test_a_partition_column_precedes_the_partitioner_which_decides_for_nulls(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(4)
    robin = {"kafka__partitioner__class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
    df = spark.range(40, numPartitions=1).selectExpr("'k' key", "cast(id as string) value", "if(id < 8, null, 2) partition")
    save(df, broker, name, **robin)
    assert Counter(record.partition for record in read_topic(name)) == {0: 2, 1: 2, 2: 2 + 32, 3: 2}


# DIFFERENCES, WHERE THEY BITE


def test_real_time_mode_is_refused_by_spark(spark: SparkSession, broker: LocalKafka, topic: Topic, tmp_path: Any) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    df = source.option("subscribe", topic()).load().select("value")
    writer = df.writeStream.format("pykafka-sink").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer = writer.option("topic", topic()).option("checkpointLocation", str(tmp_path)).outputMode("update")
    message = error_of(lambda: run(writer.trigger(realTime="5 seconds")))
    assert "STREAMING_REAL_TIME_MODE" in message
