"""The README is true: its tables are what the code prints, its error codes are all there are, and its code blocks run.

Each block of code is run here, by the test that SHOWN_ELSEWHERE names, or is listed in NOT_RUN with the reason. Blocks run as
they are, but for addresses and paths: a broker and a directory of the test's take the place of localhost:9092 and /tmp.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, Errors, Persisted
from tests.benchmarks.memory_benchmark import BUFFER_MEMORY, MAX_ARROW_BATCH, PYTHON_AND_SCRATCH
from tests.integration.clusters import SPARK_HOME, free_port
from tests.integration.reading import READERS, ReadRecord
from tests.readme_tables import README, code_blocks, filled_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = README.parent

# Beginning of a block -> who runs it.
SHOWN_ELSEWHERE = {
    "jobs/quickstart": "tests/jobs/test_quickstart.py",
    "# environment.tar.gz": "tests/integration/test_clusters.py",
    "# SASL over TLS": "tests/integration/test_sasl.py",
    "# over Spark Connect": "tests/integration/test_clusters.py",
    "# transformations/orders.py": "tests/integration/test_clusters.py",
    "# spark-pipeline.yml": "tests/integration/test_clusters.py",
    "spark-submit --py-files pykafka_sink.zip,my_plugins.py": "tests/integration/test_sink_deployment.py",
    "spark-submit --conf spark.python.daemon.module": "tests/integration/test_debug_log.py",
}

# Beginning of a block -> why nobody does.
NOT_RUN = {
    '.option("kafka.sasl.mechanism", "GSSAPI")': "a fragment; test_kerberos.py has a Kerberos server of its own",
    'pip install ".[spark]"': "it would change the tests' environment; test_sink_deployment.py installs the wheel elsewhere",
    "tests/run": "it is what runs this test",
    ".venv-tests/bin/python -m tests.benchmarks": "benchmarks take minutes, and measure nothing on a busy machine",
    'df.write.format("pykafka-sink").option("kafka.security': "a fragment; TLS is tested with brokers of its own",
}

JOBS = "python -m jobs.local_kafka start"


def here(kind: str) -> list[str]:
    """The blocks of a language that this file is to run."""
    elsewhere = (*SHOWN_ELSEWHERE, *NOT_RUN)
    return [text for language, text in code_blocks() if language == kind and not text.startswith(elsewhere)]


def test_its_tables_are_what_the_code_prints() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == filled_in(text), "run: python -m tests.readme_tables"


def test_every_block_is_run_or_listed_with_a_reason() -> None:
    for beginning, where in SHOWN_ELSEWHERE.items():
        assert sum(text.startswith(beginning) for _, text in code_blocks()) == 1, beginning
        assert (ROOT / where).is_file()
    for beginning in NOT_RUN:
        assert sum(text.startswith(beginning) for _, text in code_blocks()) == 1, beginning
    assert len(here("python")) >= 4
    (jobs,) = here("bash")  # a further one needs a test here, or a line above
    assert jobs.startswith(JOBS)
    assert not {language for language, _ in code_blocks()} - {"python", "bash", "yaml", "text"}


def test_links_within_lead_to_headings() -> None:
    text = README.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_every_file_that_it_names_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:conf|jobs|tests)/[\w/.\-]+\.\w+)`", text))
    named |= {f"spark_kafka_sink/{name}" for name in re.findall(r"`((?:sink|producer|network|records|protocol)/\w+\.py)`", text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


# ERROR CODES


def documented_conditions() -> set[str]:
    table = README.read_text(encoding="utf-8").partition("<!-- conditions: begin -->")[2].partition("<!-- conditions: end -->")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [code for row in rows for code in re.findall(r"`(KAFKA_[A-Z_]+)`", row)]
    assert len(listed) == len(set(listed))
    return set(listed)


def own_conditions() -> set[str]:
    """The codes that stand in the package's sources, in quotes or in brackets."""
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "spark_kafka_sink").rglob("*.py"))
    return {quoted or bracketed for quoted, bracketed in re.findall(r'"(KAFKA_[A-Z_]+)"|\[(KAFKA_[A-Z_]+)\]', sources)}


def test_every_error_code_of_ours_has_a_meaning_and_a_remedy() -> None:
    assert own_conditions() - documented_conditions() == set()


# Codes that the package handles and never raises.
NOT_RAISED = {
    "NONE",  # no error
    "DUPLICATE_SEQUENCE_NUMBER",  # the batch is complete: an earlier attempt wrote it
    "REBOOTSTRAP_REQUIRED",  # metadata are then asked for at bootstrap.servers
}


def brokers_conditions() -> set[str]:
    """Of the codes of brokers, those that reach a user: which Produce is known to answer with, or which our sources name."""
    table = ROOT / "spark_kafka_sink" / "protocol" / "error_codes.py"
    files = [file for file in (ROOT / "spark_kafka_sink").rglob("*.py") if file != table]
    named = {name for file in files for name in re.findall(r"\bErrors\.([A-Z_]+)\b", file.read_text(encoding="utf-8"))}
    known = {row.name for row in ERROR_CODES.values() if row.persisted is not Persisted.MAYBE}
    return {f"KAFKA_{name}" for name in (named | known) - NOT_RAISED}


def test_every_code_of_brokers_that_can_be_raised_has_a_meaning_and_a_remedy() -> None:
    """KAFKA_ILLEGAL_SASL_STATE, which a listener without SASL causes, could be looked up nowhere: codes of brokers are made of
    their names in the table, so they stand in no source."""
    assert brokers_conditions() - documented_conditions() == set()


def test_no_error_code_is_put_together_but_from_the_table_of_brokers_codes() -> None:
    """What the two tests above collect is all there is."""
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "spark_kafka_sink").rglob("*.py")}
    made = [(file.name, line) for file, text in sources.items() for line in re.findall(r""".*KAFKA_\{.*""", text)]
    assert made == [("error_codes.py", '        condition = f"KAFKA_{self.name}"')]
    given = {each for text in sources.values() for each in re.findall(r"""condition=["']([^"']*)["']""", text)}
    assert given <= own_conditions()


def test_every_documented_error_code_exists() -> None:
    brokers = {f"KAFKA_{name}" for name in vars(Errors) if name.isupper()}
    assert documented_conditions() - own_conditions() - brokers == set()


# SIZES


def test_the_memory_example_follows_from_its_formula() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    example = r"(\d+) × (\d+) MB \+ 384 MB, `spark.executor.memoryOverhead=(\d+)m`"
    found = re.search(rf"(\d+) cores and the default of (\d+) MB: {example}; with large rows {example}", text)
    assert found is not None
    cores, default, *examples = map(int, found.groups())
    assert default == BUFFER_MEMORY
    assert ProducerConfig.from_mapping({"bootstrap.servers": "b:1"}).buffer_memory == default * 2**20
    assert f"kafka.buffer.memory + {PYTHON_AND_SCRATCH} MB + 2 × Arrow batch" in text
    for batch_mb, (times, each, overhead) in zip((1, MAX_ARROW_BATCH), (examples[:3], examples[3:]), strict=True):
        assert times == cores
        assert each == default + PYTHON_AND_SCRATCH + 2 * batch_mb
        assert cores * each + 384 <= overhead <= cores * each + 384 + 150


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
def test_its_python_blocks_run_as_one_program(
    spark: SparkSession, tmp_path: Path, read_topic: Callable[..., list[ReadRecord]]
) -> None:
    """In the README's order, with the names that it takes for granted: spark, df, events."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"device": "d1", "level": 7}\n')
    df = spark.sql("SELECT '1' AS key, 'first' AS value")
    events = spark.readStream.schema("device STRING, level INT").json(str(tmp_path / "in"))
    names = {"spark": spark, "df": df, "events": events}
    with LocalKafka(tmp_path / "kafka") as cluster:
        for topic in ("orders", "events"):
            cluster.create_topic(topic)
        try:
            for block in here("python"):
                code = block.replace("localhost:9092", cluster.bootstrap_servers).replace('"/tmp/', f'"{tmp_path}/')
                exec(compile(code, "README.md", "exec"), names)
            names["query"].processAllAvailable()  # type: ignore[attr-defined]
        finally:
            for query in spark.streams.active:
                query.stop()
        orders, stream = (read_topic(topic, bootstrap_servers=cluster.bootstrap_servers) for topic in ("orders", "events"))
    values = [record.value for record in orders]
    assert values.count(b"first") == 2  # the first block, and the migrated one
    assert {b"1", b"2", b"3", b"4", b"5", b"message", b"without a key"} <= set(values)
    assert [(record.key, json.loads(record.value or b"")["level"]) for record in stream] == [(b"d1", 7)]


# BASH


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(900)
def test_its_job_commands_run_in_a_fresh_copy(tmp_path: Path) -> None:
    """With a broker that the block itself starts and stops. The topic is read before the last line, which stops it."""
    copy, port, cluster = tmp_path / "copy", free_port(), tmp_path / "kafka"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "dist", "build", ".*_cache"))
    prepare_inputs(copy)
    (block,) = here("bash")
    block = block.replace("localhost:9092", f"127.0.0.1:{port}").replace("/tmp/", f"{tmp_path}/")
    block = block.replace("local_kafka start", f"local_kafka --work-dir {cluster} start --port {port}")
    *lines, stop = block.replace("local_kafka stop", f"local_kafka --work-dir {cluster} stop").strip().splitlines()
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
