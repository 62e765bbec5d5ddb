"""The code blocks of the documents run as they are, but for addresses and paths.

A broker and a directory of the test's replace localhost:9092 and /tmp. tests/test_documents.py lists the blocks that other tests
run, and those that no test runs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.local_kafka import LocalKafka
from tests.documents import NOT_RUN, ROOT, SHOWN_ELSEWHERE, Block, code_blocks, name_of
from tests.integration.clusters import SPARK_HOME, free_port
from tests.integration.reading import READERS, ReadTopic
from tests.schemas.fake_registry import FakeRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def here(language: str) -> list[Block]:
    """The blocks of a language that this file runs."""
    elsewhere = (*SHOWN_ELSEWHERE, *NOT_RUN)
    return [each for each in code_blocks() if each.language == language and not each.text.startswith(elsewhere)]


# PYTHON


@pytest.fixture
def debug_logging_as_found() -> Iterator[None]:
    """A block may turn logging on."""
    ours, root = logging.getLogger("spark_kafka_sink"), logging.getLogger()
    level, handlers = ours.level, root.handlers[:]
    yield
    ours.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("debug_logging_as_found")
def test_the_python_blocks_of_each_page_run_as_one_program(spark: SparkSession, tmp_path: Path, read_topic: ReadTopic) -> None:
    """In the page's order, with the names that pages take for granted: spark, df, events."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"device": "d1", "level": 7}\n')
    df = spark.sql("SELECT '1' AS key, 'first' AS value")
    events = spark.readStream.schema("device STRING, level INT").json(str(tmp_path / "in"))
    pages = dict.fromkeys(each.page for each in here("python"))
    with LocalKafka(tmp_path / "kafka") as cluster, FakeRegistry() as registry:
        registry.register("payments-json", '{"type": "object"}', schemaType="JSON")
        for topic in ("orders", "events", "payments"):
            cluster.create_topic(topic)
        try:
            for page in pages:
                names = {"spark": spark, "df": df, "events": events}
                for block in here("python"):
                    if block.page == page:
                        code = block.text.replace("localhost:9092", cluster.bootstrap_servers)
                        code = code.replace("http://localhost:8081", registry.url)
                        exec(compile(code.replace('"/tmp/', f'"{tmp_path}/'), name_of(page), "exec"), names)
            for query in spark.streams.active:
                query.processAllAvailable()
        finally:
            for query in spark.streams.active:
                query.stop()
        topics = ("orders", "events", "copies", "echoes", "payments")
        read = [read_topic(topic, bootstrap_servers=cluster.bootstrap_servers) for topic in topics]
    orders, stream, copies, echoes, (first, second) = read
    values = [record.value for record in orders]
    assert values.count(b"first") == 3  # of README.md, migrating.md and exactly-once.md
    assert values.count(None) == 1  # of producer.md, a tombstone
    assert {b"1", b"2", b"a value", b"counted", b"message", b"without a key"} <= set(values)
    # of producer.md: tables of polars and duckdb
    assert {b'{"user":"bob","total":7.0}', b'{"id":999,"square":998001}'} <= set(values)
    # of producer.md: each record that was there once, in the order of the only partition
    assert [record.value for record in copies] == [(value or b"").upper() for value in values[: len(copies)]]
    assert [record.value for record in echoes] == [(value or b"").lower() for value in values[: len(echoes)]]
    assert len(copies) == len(echoes) >= values.index(b"a value")
    # of schemas.md: Avro, then JSON
    assert (first.key, (first.value or b"")[:1], (second.value or b"")[5:]) == (b"eve", b"\0", b'{"id": 7}')
    # of README.md and exactly-once.md
    assert [(record.key, json.loads(record.value or b"")["level"]) for record in stream] == [(b"d1", 7)] * 2


# BASH


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_job_commands_run_in_a_fresh_copy(tmp_path: Path) -> None:
    """With a broker that the block itself starts and stops. The topic is read before the last line, which stops it."""
    copy, port, cluster = tmp_path / "copy", free_port(), tmp_path / "kafka"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "dist", "build", ".*_cache"))
    prepare_inputs(copy)
    (code_block,) = here("bash")
    block = code_block.text.replace("localhost:9092", f"127.0.0.1:{port}").replace("/tmp/", f"{tmp_path}/")
    block = block.replace("local_kafka start", f"local_kafka --work-dir {cluster} start --port {port}")
    for command in ("read", "stop"):
        block = block.replace(f"local_kafka {command}", f"local_kafka --work-dir {cluster} {command}")
    *lines, stop = block.strip().splitlines()
    assert "local_kafka" in stop
    try:
        shell("\n".join(lines), copy)
        flights, events = (READERS["confluent-kafka"](f"127.0.0.1:{port}", topic) for topic in ("flights", "events"))
    finally:
        shell(stop, copy)
    assert sorted(record.value or b"" for record in events) == [b'{"id":1}', b'{"id":2}']
    written = [json.loads(record.value or b"") for record in flights if (record.value or b"").startswith(b"{")]
    assert sorted(row["flight"] for row in written) == [1, 2, 3, 4]
    assert len(flights) == 4 + 100_000


def prepare_inputs(directory: Path) -> None:
    (directory / "flights.csv").write_text("carrier,flight\nUA,1\nAA,2\n")
    pq.write_table(pa.table({"carrier": ["B6", "DL"], "flight": [3, 4]}), directory / "flights.parquet")
    (directory / "incoming").mkdir()
    (directory / "incoming" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')


def shell(script: str, directory: Path) -> None:
    """In the directory, with this environment's programs first, and pip without an index."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), str(SPARK_HOME / "bin"), os.environ["PATH"]])
    more = {"PATH": path, "PYTHONPATH": str(directory), "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, **more, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=800,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
