"""Ways to bring the sink to a cluster: executors in processes of their own, and an installed wheel that Spark finds by itself.

Each test runs a program of its own, as spark-submit would: a session in this process would share the tests' JVM.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import uuid
import venv
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.records.murmur2 import partition_for_keys
from tests.documents import code_block
from tests.integration.programs import EXECUTORS
from tests.integration.reading import ReadTopic, Topic

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 240

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def run(code: str, directory: Path, python_path: Path, **environment: str) -> str:
    """What complete() prints."""
    return complete(code, directory, python_path, **environment).stdout


def complete(code: str, directory: Path, python_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Spark program from a directory without our sources, with one directory on the Python path."""
    program = directory / "program.py"
    program.write_text(textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": str(python_path), "SPARK_LOG_LEVEL": "WARN", **environment}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done


SETTINGS = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


class OnACluster(NamedTuple):
    """What a program on executors in processes of their own has done, with modules that came by addPyFile alone."""

    topics: dict[str, str]  # by what was written
    reports: list[dict[str, Any]]
    audit: str  # what the interceptor wrote
    printed: str


@pytest.fixture(scope="module")
def on_a_cluster(broker: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> OnACluster:
    """One cluster for all claims, as its JVMs take half a minute to start."""
    directory = tmp_path_factory.mktemp("cluster")
    topics = {what: f"cluster-{what}-{uuid.uuid4().hex[:8]}" for what in ("steady", "flaky", "plugins")}
    for name in topics.values():
        broker.create_topic(name, 5)
    audit, shipped = directory / "audit", directory / "shipped"
    shipped.mkdir()
    (shipped / "my_plugins.py").write_text(code_block("# my_plugins.py"))
    settings = {**SETTINGS, **EXECUTORS}
    printed = run(
        f"""
        from pyspark import TaskContext
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F
        from spark_kafka_sink import KafkaDataSource

        def failing_once(number):
            if number == 9000 and TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("as planned")
            return str(number)

        spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map={settings}).getOrCreate()
        spark.dataSource.register(KafkaDataSource)
        spark.sparkContext.addPyFile({str(shipped / "my_plugins.py")!r})
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1000)

        def writer(df, topic):
            writer = df.write.format("pykafka-sink").mode("append").option("topic", topic)
            return writer.option("kafka.bootstrap.servers", {broker.bootstrap_servers!r})

        df = spark.range(20000, numPartitions=4)
        steady = writer(df.selectExpr("cast(id as string) key", "cast(id as string) value"), {topics["steady"]!r})
        steady.option("reportPath", "report.jsonl").save()
        flaky = writer(df.select(F.udf(failing_once)("id").alias("value")), {topics["flaky"]!r})
        flaky.option("reportPath", "report.jsonl").save()
        print("executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)

        rows = spark.range(6000, numPartitions=2).selectExpr(
            "concat(elt(1 + id % 3, 'DE', 'FR', 'IT'), '-', id) key",
            "concat(id, ' secret') value",
            "if(id % 100 = 0, 4, null) partition",
        )
        plugins = writer(rows, {topics["plugins"]!r}).option("kafka.audit.file", {str(audit)!r})
        plugins = plugins.option("kafka.interceptor.classes", "my_plugins.Audit")
        plugins.option("kafka.partitioner.class", "my_plugins.ByCountry").save()
        try:
            plugins.option("kafka.partitioner.class", "not_my_plugins.ByCountry").save()
        except Exception as error:
            print(error)
        spark.stop()
        """,
        directory,
        ROOT,
        SPARK_WORKER_DIR=str(directory / "work"),
    )
    reports = [json.loads(line) for line in (directory / "report.jsonl").read_text().splitlines()]
    return OnACluster(topics, reports, audit.read_text(), printed)


def test_executors_in_other_processes_write_and_a_failed_task_is_run_again(
    on_a_cluster: OnACluster, read_topic: ReadTopic
) -> None:
    """A task that fails half-way has written some rows: the second attempt writes all of them, and only it is counted."""
    assert "executors 2" in on_a_cluster.printed
    assert sorted(int(record.value or b"") for record in read_topic(on_a_cluster.topics["steady"])) == list(range(20_000))
    assert {int(record.value or b"") for record in read_topic(on_a_cluster.topics["flaky"])} == set(range(20_000))
    first, second = on_a_cluster.reports
    assert (first["tasks"], first["rows"]) == (second["tasks"], second["rows"]) == (4, 20_000)


def test_plugins_sent_along_as_py_files_decide_change_and_hear(on_a_cluster: OnACluster, read_topic: ReadTopic) -> None:
    """The partitioner and the interceptor of docs/plug-ins.md, in executors that get them from addPyFile alone."""
    error = "[KAFKA_INVALID_CONFIG] partitioner.class=not_my_plugins.ByCountry cannot be loaded: there is no module"
    assert error in on_a_cluster.printed
    records = read_topic(on_a_cluster.topics["plugins"])
    assert {record.value for record in records} == {b"%d ******" % number for number in range(6000)}
    explicit = {record.partition for record in records if int((record.value or b"").split()[0]) % 100 == 0}
    assert explicit == {4}
    for country, where in zip(
        (b"DE", b"FR", b"IT"), partition_for_keys(pa.array([b"DE", b"FR", b"IT"]), 5).tolist(), strict=True
    ):
        country_records = [record for record in records if (record.key or b"").startswith(country)]
        assert {record.partition for record in country_records if int((record.value or b"").split()[0]) % 100} == {where}
    assert sum(map(int, on_a_cluster.audit.split())) == 6000


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the wheel of this checkout has been installed."""
    directory = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    for step in (
        ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory / "wheels")],
        [
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            str(directory / "site"),
            "--find-links",
            str(directory / "wheels"),
            "pykafka-sink",
        ],
    ):
        done = subprocess.run([*pip, *step], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_the_wheel_holds_the_package_and_the_shim_and_nothing_else(installed: Path) -> None:
    (wheel,) = (installed / "wheels").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    files = ("py.typed", "sink/datasource.py", "tools/transactions/command.py", "tools/report/page.html")
    assert {"pyspark_kafka_sink.py", *(f"spark_kafka_sink/{file}" for file in files)} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"pyspark_kafka_sink.py", "spark_kafka_sink", "pykafka_sink"}


def test_a_type_checker_sees_the_types_of_the_installed_package(installed: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "installed.pth").write_text(str(installed / "site"))
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from spark_kafka_sink import KafkaDataSource, KafkaProducer

            with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
                reveal_type(producer.send_columns("t", value=None).result())
                producer.flush(timeout_ms="soon")
            """
        )
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull]
    command += ["--python-executable", str(tmp_path / "env" / "bin" / "python"), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "note: Revealed type is" in done.stdout
    assert ".delivery.Delivery" in done.stdout
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert [re.search(r"\[([\w-]+)\]$", line).group(1) for line in errors] == ["arg-type"], done.stdout


def test_an_installed_wheel_registers_itself(
    installed: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name = topic()
    printed = run(
        f"""
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config(map={SETTINGS}).getOrCreate()
        options = {{"kafka.bootstrap.servers": {broker.bootstrap_servers!r}, "topic": {name!r}}}

        spark.range(1).selectExpr("'batch' value").write.format("pykafka-sink").options(**options).mode("append").save()

        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("'stream' value")
        query = stream.writeStream.format("pykafka-sink").options(**options).option("checkpointLocation", "checkpoint").start()
        while not query.recentProgress and query.isActive:
            query.awaitTermination(1)
        query.stop()

        from spark_kafka_sink import KafkaDataSource, __file__ as home
        spark.dataSource.register(KafkaDataSource)    # does no harm
        spark.range(1).selectExpr("'again' value").write.format("pykafka-sink").options(**options).mode("append").save()
        print(home)
        spark.stop()
        """,
        tmp_path,
        installed / "site",
    )
    assert str(installed / "site") in printed
    assert {record.value for record in read_topic(name)} == {b"batch", b"stream", b"again"}


def test_a_wheel_given_as_py_files_works_without_lz4_and_crc32c(
    installed: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """On clusters that bring pyarrow alone: its blocks make lz4 frames, and numpy the checksum, which both readers check."""
    name, bare = topic(2), tmp_path / "bare"
    (bare / "lz4").mkdir(parents=True)
    for module in ("lz4/__init__.py", "crc32c.py"):
        (bare / module).write_text("raise ImportError('not on this cluster')")
    (wheel,) = (installed / "wheels").glob("*.whl")
    zipped = tmp_path / "pykafka_sink.zip"
    zipped.write_bytes(wheel.read_bytes())
    done = complete(
        f"""
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config(map={SETTINGS}).getOrCreate()
        spark.sparkContext.addPyFile({str(zipped)!r})
        from spark_kafka_sink import KafkaDataSource
        spark.dataSource.register(KafkaDataSource)
        options = {{"kafka.bootstrap.servers": {broker.bootstrap_servers!r}, "topic": {name!r}, "kafka.compression.type": "lz4"}}
        for start in (0, 10000):
            df = spark.range(start, start + 10000, 1, 4).selectExpr("cast(id as string) key", "concat('value-', id) value")
            df.write.format("pykafka-sink").options(**options).mode("append").save()
        spark.stop()
        """,
        tmp_path,
        bare,
    )
    written = {b"value-%d" % i for i in range(20_000)}
    for client in ("confluent-kafka", "kafka-python"):
        records = read_topic(name, client=client)
        assert len(records) == 20_000
        assert {record.value for record in records} == written
    for missing in ("the lz4 package is missing", "the crc32c package is missing"):
        assert done.stderr.count(missing) == 1, done.stderr[-4000:]
