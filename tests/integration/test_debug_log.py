"""The debug log of writers in Spark's Python workers."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from tests.fakes.fake_broker import FakeBroker


@pytest.mark.slow
@pytest.mark.spark
def test_spark_workers_show_the_debug_log_when_their_daemon_is_replaced(tmp_path: Path) -> None:
    with FakeBroker(topics={"orders": 1}) as broker:
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(
                f"""
                from pyspark.sql import SparkSession
                from spark_kafka_sink import KafkaDataSource

                settings = {{"spark.ui.enabled": "false", "spark.python.daemon.module": "spark_kafka_sink.debug_daemon"}}
                spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
                spark.dataSource.register(KafkaDataSource)
                rows = spark.range(10).selectExpr("cast(id as string) value")
                writer = rows.write.format("pykafka-sink").option("kafka.bootstrap.servers", {broker.bootstrap_servers!r})
                writer.option("topic", "orders").mode("append").save()
                spark.stop()
                """
            )
        )
        done = subprocess.run([sys.executable, program], env=os.environ, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert len(broker.values("orders")) == 10
    assert "DEBUG spark_kafka_sink.producer.sender.produce_requests > node 0: ProducerBatch(orders-0, records=10" in done.stderr
    assert re.search(r"> node 0: ProduceRequest v13, correlation id \d+, \d+ bytes: orders-0", done.stderr)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stderr of a program that writes a batch, two micro-batches, and a batch with a row that is too large."""
    directory = tmp_path_factory.mktemp("program")
    program = directory / "program.py"
    with FakeBroker(topics={"orders": 1}) as broker:
        program.write_text(
            textwrap.dedent(
                f"""
                from pyspark.sql import SparkSession
                from spark_kafka_sink import KafkaDataSource

                spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
                spark.dataSource.register(KafkaDataSource)
                options = {{"kafka.bootstrap.servers": {broker.bootstrap_servers!r}, "topic": "orders"}}
                rows = spark.range(3).selectExpr("cast(id as string) value").coalesce(1)
                rows.write.format("pykafka-sink").options(**options).mode("append").save()
                for name in ("one", "two"):
                    rows.write.mode("append").text({str(directory / "in")!r})
                stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text({str(directory / "in")!r})
                writer = stream.writeStream.format("pykafka-sink").options(**options, checkpointLocation={str(directory / "c")!r})
                writer.trigger(availableNow=True).start().awaitTermination()
                large = spark.sql("SELECT 'a' AS value UNION ALL SELECT repeat('a', 2000000) AS value").coalesce(1)
                writer = large.write.format("pykafka-sink").options(**options)
                writer.option("onRecordTooLarge", "skip").mode("append").save()
                spark.stop()
                """
            )
        )
        done = subprocess.run([sys.executable, program], env=os.environ, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(broker.values("orders")) == sorted([b"0", b"1", b"2"] * 3 + [b"a"])
    return done.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_warnings_of_spark_workers_have_a_time_and_a_level(printed: str) -> None:
    """Nobody configures logging in Spark's workers, and Python printed the bare text: `! metadata reports problems …`, without
    a sign of what told it, when, and how bad it was."""
    stamp = r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING spark_kafka_sink\."
    assert re.search(stamp + r"sink\.rows\.row_outcomes: .*Further rows like it are only counted$", printed, re.MULTILINE)
    assert re.search(stamp + r"sink\.commit_report: wrote 1 row,", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.spark
def test_each_commit_of_a_batch_and_of_a_stream_is_a_line_on_the_drivers_stderr(printed: str) -> None:
    """Four pages promised the line, and nobody saw it: it was below the level of Spark's Python process."""
    stamp = r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO spark_kafka_sink\.sink\.commit_report: "
    lines = re.findall(stamp + r"(.*?); slowest task \d+\.\d s(?:; query \S+, batch (\d))?$", printed, re.MULTILINE)
    texts, batches = zip(*lines, strict=True)
    assert set(texts) == {"wrote 3 rows, 24 bytes, in 1 task to 1 partition of orders"}
    assert batches == ("", "0", "1")


def test_a_topic_that_a_real_broker_creates_on_first_use_is_no_warning(
    broker: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "spark_kafka_sink")
    name = f"created-{uuid.uuid4().hex[:8]}"
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_columns(name, value=pa.array(["a"])).result()
    assert "metadata reports problems with topics: " + name in caplog.text  # it was unknown at first
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []
