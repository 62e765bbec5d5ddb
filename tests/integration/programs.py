"""Spark programs in processes of their own, which a test may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

from jobs.local_kafka import LocalKafka
from tests.integration.clusters import ROOT
from tests.integration.exactly_once_writes import CommittedReader
from tests.integration.reading import ReadRecord

ROWS = 12_000
TASKS = 4
ALL = range(TASKS * ROWS)
DOOMED = range(ROWS, 2 * ROWS)  # of Spark partition 1
FAULT_ROW = DOOMED[-100]
LIMIT_S = 240
EXECUTORS = {  # in processes of their own
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}
SETTINGS = {"spark.ui.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "500", **EXECUTORS}
PREAMBLE = """
import os, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F
from spark_kafka_sink import KafkaDataSource

def session(master, settings):
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    spark.dataSource.register(KafkaDataSource)
    return spark

def rows(spark, tasks, rows):
    return spark.range(tasks * rows, numPartitions=tasks).selectExpr("rpad(lpad(id, 8, '0'), 1024, ' x') value")
"""


class Program:
    """A Spark program in a process of its own; what it has started ends with it."""

    def __init__(self, directory: Path, code: str, **environment: str) -> None:
        file = directory / "program.py"
        file.write_text(PREAMBLE + textwrap.dedent(code))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_WORKER_DIR": str(directory / "work"), **environment}
        self._log = directory / "program.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(file)], cwd=directory, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code."""
        try:
            return self._process.wait(limit_s)
        finally:
            self.end()

    def succeed(self) -> None:
        assert self.wait() == 0, self.log()[-6000:]

    def end(self) -> None:
        """With all processes of its session: JVMs and workers outlive a driver that was killed."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait(LIMIT_S)

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def options_of(broker: LocalKafka, topic: str, directory: Path, kind: str | None, row: int = FAULT_ROW) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": topic,
        "kafka.buffer.memory": str(1024 * 1024),
        "reportPath": str(directory / "report.jsonl"),
    }
    if kind is not None:
        options |= {
            "kafka.partitioner.class": "tests.integration.plugins.HarmfulPartitioner",
            "kafka.fault.kind": kind,
            "kafka.fault.row": str(row),
            "kafka.fault.marker": str(directory / "marker"),
        }
    return options


def count_rows(records: list[ReadRecord]) -> Counter[int]:
    return Counter(int((record.value or b"-1")[:8]) for record in records)


def committed_rows(reader: CommittedReader, name: str) -> Counter[int]:
    """Of a topic whose name is the transactionalIdPrefix too."""
    return count_rows(reader.records(name, name))


BATCH_WRITES = """
spark = session({master!r}, {settings})
for options in {writes}:
    rows(spark, {tasks}, {rows}).write.format("pykafka-sink").options(**options).mode("append").save()
spark.stop()
"""


def batch_writes(master: str, *writes: dict[str, str]) -> str:
    """The same rows with the options of each."""
    return BATCH_WRITES.format(master=master, settings=SETTINGS, tasks=TASKS, rows=ROWS, writes=writes)


DYING_STREAM = """
from tests.integration.dying_sink import Dying
spark = session({master!r}, {settings})
spark.dataSource.register(Dying)
stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).json({source!r}).repartition(3, "value")
options = {options}
{sink}
query = writer.option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
"""
SINKS = {
    "stream": "writer = stream.writeStream.format('pykafka-sink-dying').options(**options)",
    "foreachBatch": """
def write(df, batch_id):
    df.write.format('pykafka-sink-dying').options(**options).mode('append').save()
writer = stream.writeStream.foreachBatch(write)
""",
}
