"""The jobs with a real Spark and a real broker: what is in the topic afterwards, and how a failure looks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from jobs import batch_to_kafka, stream_to_kafka
from jobs.local_kafka import LocalKafka
from tests.integration.reading import ReadRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent
Reader = Callable[..., list[ReadRecord]]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    directory = tmp_path / "input"
    directory.mkdir()
    (directory / "a.csv").write_text("id,name\n1,ann\n2,bob\n3,\n")
    return directory / "a.csv"


def test_a_batch_writes_every_row_as_json_with_its_key_and_headers(
    spark: SparkSession, broker: LocalKafka, topic: Callable[..., str], read_topic: Reader, csv: Path
) -> None:
    name = topic(partitions=2)
    headers = "array(named_struct('key', 'source', 'value', cast('csv' AS binary)))"
    arguments = ["--input", str(csv), "--topic", name, "--bootstrap-servers", broker.bootstrap_servers]
    arguments += ["--key", "cast(id AS string)", "--headers", headers, "--config", str(ROOT / "conf" / "sink.properties")]
    said = batch_to_kafka.batch_to_kafka(spark, batch_to_kafka.build_parser().parse_args(arguments))
    assert f"to topic {name}" in said
    records = sorted(read_topic(name), key=lambda record: record.key or b"")
    rows = [json.loads(record.value or b"") for record in records]
    assert rows == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3}]
    assert [record.key for record in records] == [b"1", b"2", b"3"]
    assert {tuple(record.headers) for record in records} == {(("source", b"csv"),)}


def test_a_stream_writes_each_file_once_across_restarts(
    spark: SparkSession, broker: LocalKafka, topic: Callable[..., str], read_topic: Reader, csv: Path, tmp_path: Path
) -> None:
    name = topic()
    arguments = ["--input", str(csv.parent), "--input-format", "csv", "--topic", name, "--value", "name"]
    arguments += ["--bootstrap-servers", broker.bootstrap_servers, "--trigger", "available-now"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint")]
    parsed = stream_to_kafka.build_parser().parse_args(arguments)
    stream_to_kafka.stream_to_kafka(spark, parsed)
    (csv.parent / "b.csv").write_text("id,name\n4,dan\n")
    stream_to_kafka.stream_to_kafka(spark, parsed)
    stream_to_kafka.stream_to_kafka(spark, parsed)
    assert [record.value for record in read_topic(name)] == [b"ann", b"bob", None, b"dan"]


@pytest.mark.spark
def test_spark_submit_runs_a_job_with_the_package_as_a_zip(
    broker: LocalKafka, topic: Callable[..., str], read_topic: Reader, csv: Path, tmp_path: Path
) -> None:
    """Outside the checkout, as on a cluster: only what --py-files names is there, on the driver and in the workers."""
    name = topic()
    package = tmp_path / "pykafka_sink.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for source in (ROOT / "spark_kafka_sink").rglob("*.py"):
            archive.write(source, source.relative_to(ROOT))
    job = tmp_path / "batch_to_kafka.py"
    job.write_bytes((ROOT / "jobs" / "batch_to_kafka.py").read_bytes())
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--py-files", f"{package},{ROOT / 'jobs' / 'command_line.py'}", str(job)]
    command += ["--input", str(csv), "--topic", name, "--value", "name", "--bootstrap-servers", broker.bootstrap_servers]
    done = _run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(read_topic(name)) == 3


@pytest.mark.spark
def test_a_failing_job_ends_with_one_line_and_exit_code_1(csv: Path) -> None:
    arguments = ["--input", str(csv), "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", "--option", "kafka.linger.ms=soon"]
    done = _run([sys.executable, "-m", "jobs.batch_to_kafka", *arguments], ROOT)
    assert done.returncode == 1
    assert "batch_to_kafka: error: [KAFKA_INVALID_CONFIG] " in done.stderr
    assert "\tat org.apache" not in done.stderr
    assert "Traceback" not in done.stderr


def _run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        check=False,
    )
