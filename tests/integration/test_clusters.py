"""The ways to a cluster of docs/cluster.md: standalone workers, a packed environment, Spark Connect, pipelines.

What the page shows is what runs here, with this test's addresses in it. The package is in no environment used here unless the
page put it there. Only with --all: half of it needs more packages from an index, and all of it takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from tests import pythons
from tests.documents import code_block
from tests.integration import clusters
from tests.integration.clusters import ROOT, SPARK_HOME
from tests.integration.exactly_once_world import OPEN
from tests.integration.processes import until
from tests.integration.reading import ReadRecord, ReadTopic, Topic

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(900)]


CONNECT = "pyspark[connect,pipelines]"  # what is missing of it comes from the index


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    """Two files of ten rows, so that there is work for two tasks."""
    directory = tmp_path / "incoming"
    directory.mkdir()
    for file in range(2):
        rows = ({"id": number, "total": number / 2} for number in range(10 * file, 10 * file + 10))
        (directory / f"{file}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def ids(records: list[ReadRecord]) -> list[int]:
    return sorted(json.loads(record.value or b"")["id"] for record in records)


# SPARK STANDALONE


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The master's address, and the directory of its log and its workers'."""
    directory = tmp_path_factory.mktemp("standalone")
    with clusters.standalone_cluster(directory) as address:
        yield address, directory


SUBMIT = ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]


def test_two_workers_of_a_standalone_cluster_write_what_a_job_reads(
    standalone: tuple[str, Path], broker: LocalKafka, topic: Topic, read_topic: ReadTopic, incoming: Path, tmp_path: Path
) -> None:
    name, (master, directory), report = topic(3), standalone, tmp_path / "report.jsonl"
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", master, *SUBMIT, "--conf", "spark.locality.wait=0"]
    command += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"]
    shared = [ROOT / "jobs" / name for name in ("command_line.py", "spark_job.py")]
    command += ["--py-files", ",".join(map(str, [clusters.package_zip(tmp_path), *shared]))]
    command += [ROOT / "jobs" / "batch_to_kafka.py", "--input", incoming, "--input-format", "json", "--topic", name]
    command += ["--bootstrap-servers", broker.bootstrap_servers, "--option", f"reportPath={report}"]
    clusters.run(command, tmp_path)
    assert ids(read_topic(name)) == list(range(20))
    assert json.loads(report.read_text())["tasks"] == 2
    assert len(re.findall(r"Launching executor app-\S+ on worker", (directory / "master.log").read_text())) >= 2


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_executors_write_with_nothing_but_a_packed_environment(
    standalone: tuple[str, Path],
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    incoming: Path,
    tmp_path: Path,
    version: str,
) -> None:
    name, interpreter = topic(3), pythons.find(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    (tmp_path / "dist").mkdir()
    clusters.wheel(tmp_path / "dist")
    (tmp_path / "bin").mkdir()
    # No symbolic link: an environment would take its directory for Python's home, and one that was moved finds no library there.
    program = tmp_path / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
    program.chmod(0o755)
    script = code_block("# environment.tar.gz").replace("spark://host:7077", standalone[0])
    script = script.replace("spark-submit", " ".join(map(str, [SPARK_HOME / "bin" / "spark-submit", *SUBMIT])))
    script = script.replace("jobs/batch_to_kafka.py", str(ROOT / "jobs" / "batch_to_kafka.py"))
    script = script.replace("flights.parquet", f"{incoming} --input-format json").replace("--topic flights", f"--topic {name}")
    script = script.replace("localhost:9092", broker.bootstrap_servers)
    path = f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    with clusters.zipped_pyspark():
        clusters.run(["bash", "-euo", "pipefail", "-c", script], tmp_path, limit_s=600, PATH=path)
    assert ids(read_topic(name)) == list(range(20))


# SPARK CONNECT


@pytest.fixture(scope="module")
def connect_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with pyspark[connect,pipelines], and without this project."""
    return clusters.make_environment(tmp_path_factory.mktemp("connect") / "env", CONNECT, "pandas<3", upon_ours=True)


def test_a_spark_connect_client_brings_the_package_along_for_batches(
    connect_python: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, package = topic(), clusters.package_zip(tmp_path)
    program = code_block("# over Spark Connect").replace("localhost:9092", broker.bootstrap_servers).replace("orders", name)
    with clusters.connect_server(tmp_path, connect_python) as address:
        (tmp_path / "program.py").write_text(program.replace("sc://localhost:15002", address) + "spark.stop()\n")
        clusters.run([connect_python, "program.py"], tmp_path, limit_s=600, PYTHONPATH=str(package))
    assert [(record.key, record.value) for record in read_topic(name)] == [(b"1", b"first")]


def test_a_stream_over_spark_connect_finds_the_package_where_the_server_runs(
    connect_python: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, incoming: Path, tmp_path: Path
) -> None:
    """Spark 4.3 does not hand what addArtifacts brought to the tasks of a stream: No module named 'spark_kafka_sink'."""
    name, package = topic(), str(clusters.package_zip(tmp_path))
    program = f"""
        import sys
        from pyspark.sql import SparkSession
        from spark_kafka_sink import KafkaDataSource

        spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
        spark.dataSource.register(KafkaDataSource)
        rows = spark.readStream.schema("id INT, total DOUBLE").json({str(incoming)!r}).selectExpr("to_json(struct(*)) AS value")
        options = {{"kafka.bootstrap.servers": {broker.bootstrap_servers!r}, "topic": {name!r}}}
        query = rows.writeStream.format("pykafka-sink").options(**options).option("checkpointLocation", {str(tmp_path / "c")!r})
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(240), "not in time"
        spark.stop()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    with clusters.connect_server(tmp_path, connect_python, PYTHONPATH=package) as address:
        clusters.run([connect_python, "program.py", address], tmp_path, limit_s=600, PYTHONPATH=package)
    assert ids(read_topic(name)) == list(range(20))


FOR_EACH_BATCH = """
import os, sys
from pyspark.sql import SparkSession
from spark_kafka_sink import KafkaDataSource, exactly_once_options

address, brokers, topic, source, checkpoint, how = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()

def write(df, batch_id):
    spark = df.sparkSession
    spark.dataSource.register(KafkaDataSource)
    unnamed = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic}
    options = exactly_once_options(topic, batch_id) if how == "named" else unnamed
    writer = df.write.format("pykafka-sink").options(**options).option("kafka.bootstrap.servers", brokers)
    writer.option("topic", topic).mode("append").save()
    if batch_id == 1 and not os.path.exists(checkpoint + ".failed"):
        open(checkpoint + ".failed", "w").close()
        raise RuntimeError("after the write, as planned")

rows = spark.readStream.schema("id INT, total DOUBLE").option("maxFilesPerTrigger", 1).json(source)
query = rows.selectExpr("to_json(struct(*)) AS value").writeStream.foreachBatch(write)
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
try:
    print("ended" if query.awaitTermination(240) else "not in time")
except Exception as error:
    print(f"failed: {error}")
spark.stop()
"""


def test_for_each_batch_over_spark_connect_has_a_name_or_writes_nothing(
    connect_python: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, incoming: Path, tmp_path: Path
) -> None:
    """Spark Connect runs the function's writes on threads that know neither query nor batch. Each write took another name, and a
    batch that was repeated was in Kafka twice: 300 rows, 200 of them different, without a word."""
    name, package = topic(2), str(clusters.package_zip(tmp_path))
    (tmp_path / "program.py").write_text(FOR_EACH_BATCH)

    def life(address: str, how: str) -> str:
        command = [connect_python, "program.py", address, broker.bootstrap_servers, name, incoming, tmp_path / "checkpoint", how]
        return clusters.run(command, tmp_path, limit_s=600, PYTHONPATH=package)

    with clusters.connect_server(tmp_path, connect_python, PYTHONPATH=package) as address:
        printed = life(address, "unnamed")
        assert "[KAFKA_UNNAMED_WRITE]" in printed
        assert "exactly_once_options" in printed
        assert read_topic(name) == []
        assert "as planned" in life(address, "named")
        assert "ended" in life(address, "named")
    assert ids(read_topic(name, isolation_level="read_committed")) == list(range(20))


SLOW_WRITE = """
import sys
from pyspark.sql import SparkSession
from spark_kafka_sink import KafkaDataSource, exactly_once_options

address, brokers, topic = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
spark.dataSource.register(KafkaDataSource)
writer = spark.range(2_000, numPartitions=2).selectExpr("cast(id as string) value").write.format("pykafka-sink")
writer = writer.options(**exactly_once_options(topic, 1)).option("kafka.bootstrap.servers", brokers).option("topic", topic)
writer.option("maxRecordsPerSecond", 200).mode("append").save()
spark.stop()
"""


def test_a_write_whose_spark_connect_client_dies_is_seen_once_after_its_repetition(
    connect_python: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """The server goes on with it, or gives it up: the repetition finds out."""
    name, package = topic(2), str(clusters.package_zip(tmp_path))
    (tmp_path / "program.py").write_text(SLOW_WRITE)
    with (
        clusters.connect_server(tmp_path, connect_python, PYTHONPATH=package) as address,
        TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client,
    ):
        command = [connect_python, "program.py", address, broker.bootstrap_servers, name]
        dying = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": package})
        try:
            until(lambda: bool(client.list_transactions(f"{name}-", OPEN)), 120, "the write has begun")
        finally:
            dying.kill()
            dying.wait(60)
        until(lambda: not client.list_transactions(f"{name}-", OPEN), 120, "the write has ended")
        clusters.run(command, tmp_path, limit_s=600, PYTHONPATH=package)
    values = sorted(int(record.value or b"") for record in read_topic(name, isolation_level="read_committed"))
    assert values == list(range(2_000))


# DECLARATIVE PIPELINES


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_declarative_pipeline_writes_to_a_sink_of_ours(
    connect_python: Path,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    incoming: Path,
    tmp_path: Path,
    guarantee: str,
) -> None:
    name, installed = topic(), tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", "--no-build-isolation"]
    clusters.run([*pip, "--no-deps", "--target", installed, ROOT], tmp_path)
    (tmp_path / "transformations").mkdir()
    flow = code_block("# transformations/orders.py").replace("localhost:9092", broker.bootstrap_servers)
    options = f'"topic": "{name}"'
    if guarantee == "exactly-once":
        options += f', "deliveryGuarantee": "{guarantee}", "transactionalIdPrefix": "{name}"'
    flow = flow.replace('"topic": "orders"', options).replace('"incoming"', repr(str(incoming)))
    (tmp_path / "transformations" / "orders.py").write_text(flow)
    spec = code_block("# spark-pipeline.yml").replace("/tmp/pipelines", str(tmp_path / "pipelines"))
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    python = {"PYSPARK_PYTHON": str(connect_python), "PYSPARK_DRIVER_PYTHON": str(connect_python)}
    command = [SPARK_HOME / "bin" / "spark-pipelines", "run", "--conf", "spark.ui.enabled=false"]
    clusters.run(command, tmp_path, limit_s=600, PYTHONPATH=str(installed), **python)
    assert ids(read_topic(name, isolation_level="read_committed")) == list(range(20))
