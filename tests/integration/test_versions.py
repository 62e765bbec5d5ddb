"""Other versions of Kafka and of pyspark than the ones that everything else is tested on."""

from __future__ import annotations

import os
import subprocess
import textwrap
import venv
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from tests.integration.reading import READERS, ReadTopic, Topic

ROOT = Path(__file__).resolve().parents[2]
ROWS = 50_000

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]


@pytest.mark.parametrize("version", ["3.9.1", "4.0.1", "4.1.1", "4.2.0"])
def test_brokers_of_other_versions_take_every_row(tmp_path: Path, version: str) -> None:
    values = pa.array([f"value-{number}" for number in range(ROWS)], pa.string())
    written = Counter(value.encode() for value in values.to_pylist())
    with LocalKafka(tmp_path, version=version) as cluster:
        for codec in ("none", "zstd"):
            cluster.create_topic(codec, 4)
            with KafkaProducer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec}) as producer:
                delivery = producer.send_columns(codec, key=values, value=values)
                producer.flush()
                assert delivery.result(0).acknowledged == ROWS
            read = READERS["confluent-kafka"](cluster.bootstrap_servers, codec)
            assert Counter(record.value for record in read) == written


@pytest.mark.parametrize("version", ["4.1", "4.2"])
def test_other_versions_of_pyspark_write_batches_and_streams(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path, version: str
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    needed = [f"pyspark~={version}.0", "pyarrow>=19", "numpy", "crc32c", "lz4"]
    subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=True, timeout=600)
    batch, stream = topic(2), topic(2)
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            from pyspark.sql import SparkSession
            from spark_kafka_sink import KafkaDataSource

            spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
            spark.dataSource.register(KafkaDataSource)
            options = {{"kafka.bootstrap.servers": {broker.bootstrap_servers!r}}}
            rows = spark.range({ROWS}).selectExpr("cast(id as string) key", "cast(id as string) value")
            rows.write.format("pykafka-sink").options(**options, topic={batch!r}).mode("append").save()
            rows.write.json("in")
            query = (
                spark.readStream.schema("key string, value string").json("in")
                .writeStream.format("pykafka-sink").options(**options, topic={stream!r})
                .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
            )
            query.awaitTermination()
            spark.stop()
            """
        )
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK_HOME"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [python, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for name in (batch, stream):
        assert Counter(record.value for record in read_topic(name)) == Counter(str(number).encode() for number in range(ROWS))
