"""The edges of deliveryGuarantee=exactly-once with real Spark and a real broker: which write it is, and what a stop leaves."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from tests.integration.exactly_once_writes import CommittedReader, exactly_once, fed, lines, numbered, once, unnamed
from tests.integration.processes import until
from tests.integration.reading import Topic
from tests.integration.writing import FileStream, conditions, error_of, run, save

pytestmark = [pytest.mark.slow]

REPLAY = "KAFKA_NON_DETERMINISTIC_REPLAY"
EARLY_STOPS = 6
LONGEST_START_S = 2.5  # in which Spark starts its tasks, so that a stop comes before, amid and after that


def test_a_job_group_of_the_users_does_not_hide_a_second_write(
    stream: FileStream, spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    """The run was taken from the job group, and the second write for a repetition by another run: its rows were dropped with a
    warning, and the query went on."""
    name = topic(2)

    def write(df: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        spark.sparkContext.setJobGroup("a group of the user's", "")
        save(df.where("cast(value as int) < 50"), broker, **exactly_once(name))
        save(df.where("cast(value as int) >= 50"), broker, **exactly_once(name))

    fed(stream, 0, 100)
    rows = stream.read().writeStream.foreachBatch(write)
    begin = rows.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    assert REPLAY in conditions(error_of(lambda: run(begin)))
    assert reader.values(name, name) == once(0, 50)


def test_a_checkpoint_that_was_restored_and_brings_other_rows_stops_the_query(
    stream: FileStream, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """The query was healthy, and the rows of two batches were in Kafka nowhere."""
    name, backup = topic(2), tmp_path / "backup"

    def go_on(**more: str) -> None:
        run(stream.writer(stream.read(), broker, **exactly_once(name, **more)))

    fed(stream, 0, 10)
    go_on()
    shutil.copytree(stream.checkpoint, backup)
    fed(stream, 10, 20)
    fed(stream, 20, 30)
    go_on()
    assert reader.values(name, name) == once(0, 30)

    shutil.rmtree(stream.checkpoint)
    shutil.copytree(backup, stream.checkpoint)
    go_on()  # the same rows: each batch is found
    assert reader.values(name, name) == once(0, 30)

    shutil.rmtree(stream.checkpoint)
    shutil.copytree(backup, stream.checkpoint)
    (stream.source / "00002.json").unlink()
    fed(stream, 30, 40)
    message = error_of(go_on)
    assert REPLAY in conditions(message)
    assert re.search("version [12] is in Kafka with 10 rows", message)
    assert reader.values(name, name) == once(0, 30)


def test_a_stream_of_random_values_goes_on_where_the_user_keeps_the_first(
    stream: FileStream, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    name, report, backup = topic(2), tmp_path / "report.jsonl", tmp_path / "backup"

    def go_on(**more: str) -> None:
        rows = stream.read().select(F.concat("value", F.lit(" "), F.rand().cast("string")).alias("value"))
        run(stream.writer(rows, broker, **exactly_once(name, reportPath=str(report), **more)))

    fed(stream, 0, 10)
    go_on()
    shutil.copytree(stream.checkpoint, backup)
    fed(stream, 10, 20)
    go_on()
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(backup, stream.checkpoint)
    assert REPLAY in conditions(error_of(go_on))
    go_on(onNonDeterministicReplay="keepFirst")
    assert Counter(value.split()[0] for value in reader.values(name, name).elements()) == once(0, 20)
    assert [each["exactly_once"]["other_rows"] for each in lines(report)] == [0, 0, 10]


def test_a_stream_that_is_stopped_as_it_starts_leaves_nothing_open(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """In three of eight stops within two seconds a task that was still starting took its id after abort() had listed the ids.
    Readers waited for its transaction until it timed out."""
    name, chance = topic(2), random.Random(5)
    for number in range(EARLY_STOPS):
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10_000).load().repartition(4)
        writer = rows.selectExpr("cast(value as string) value").writeStream.format("pykafka-sink")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**exactly_once(name))
        query = writer.option("checkpointLocation", str(tmp_path / f"checkpoint{number}")).start()
        time.sleep(chance.uniform(0, LONGEST_START_S))  # when the stop comes is what varies
        query.stop()
    until(lambda: reader.nothing_is_open(name), 30, "no transaction is open")


def test_what_writes_leave_on_brokers_does_not_grow_with_their_number(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    """Each df.write left as many transactional ids as it had tasks, which brokers keep for seven days."""
    name, other = topic(2), topic(2)
    for version in range(5):
        save(
            numbered(spark, version * 10, version * 10 + 10), broker, **exactly_once(name, txnAppId="a"), txnVersion=str(version)
        )
        save(numbered(spark, version * 10, version * 10 + 10), broker, **unnamed(other))
    assert len(reader.transactional_ids(name)) == len(reader.transactional_ids(other)) == 3
    assert reader.values(name, name) == reader.values(other, other) == once(0, 50)
