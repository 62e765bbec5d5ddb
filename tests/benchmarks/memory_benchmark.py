"""What a Python worker takes at most, beside the formula of docs/tuning.md: python -m tests.benchmarks.memory_benchmark

Each case is one task in a worker of its own, against a real broker on this machine. The peak is that of the worker's resident
memory (VmHWM), watched while the task runs. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaDataSource
from tests.benchmarks.measuring import peak_resident_mb, python_workers
from tests.benchmarks.memory_formula import MAX_ARROW_ROWS, ROW_OVERHEAD, arrow_batch_mb, formula_mb


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    value_bytes: int
    batch_rows: int = MAX_ARROW_ROWS  # spark.sql.execution.arrow.maxRecordsPerBatch
    options: tuple[tuple[str, str], ...] = ()
    value: str = "rpad(cast(id as string), {0}, sha2(cast(id as string), 256))"
    rejects: bool = False  # rows are refused or rejected, and there is a dead letter topic for those that are too large

    @property
    def formula_mb(self) -> float:
        return formula_mb(arrow_batch_mb(self.value_bytes + ROW_OVERHEAD, self.batch_rows), self.rejects)


CASES = (
    Case("100 B", 3_000_000, 100),
    Case("6.5 KB", 60_000, 6_500),
    Case("100 B, maxRecordsPerBatch=-1", 3_000_000, 100, batch_rows=-1),
    Case(
        "6.5 KB, rows of 20 MB dead-lettered",
        40_000,
        6_500,
        options=(("onRecordTooLarge", "deadLetter"), ("deadLetterTopic", "dead")),
        value="if(id % 10000 = 777, repeat('x', 20000000), rpad(cast(id as string), {0}, 'y'))",
        rejects=True,
    ),
)


def measure(spark: SparkSession, bootstrap_servers: str, case: Case, topic: str) -> float:
    """The peak in MiB of the worker of the one task that writes this case."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", case.batch_rows)
    jvm_pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    peaks: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for pid in python_workers(jvm_pid):
                peaks[pid] = max(peaks.get(pid, 0.0), peak_resident_mb(pid))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        df = spark.range(0, case.rows, 1, 1).selectExpr("cast(id as string) key", f"{case.value.format(case.value_bytes)} value")
        options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, **dict(case.options)}
        df.write.format("pykafka-sink").mode("append").options(**options).save()
    finally:
        done.set()
        watching.join()
    return max(peaks.values(), default=0.0)


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.python.worker.reuse": "false"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KafkaDataSource)
    return spark


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a Python worker takes at most, beside the formula of docs/tuning.md.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--cases", default="", help="those whose names begin so (default: all)")
    arguments = parser.parse_args(argv)
    cases = [case for case in CASES if case.name.startswith(arguments.cases)]
    if not cases:
        parser.error(f"no case begins with {arguments.cases!r}: {', '.join(case.name for case in CASES)}")
    with TemporaryDirectory(prefix="memory-benchmark-") as directory, LocalKafka(Path(directory)) as broker:
        broker.create_topic("dead", 1, {"max.message.bytes": "100000000"})
        spark = session()
        for number, case in enumerate(cases):
            topic = f"memory-{number}"
            broker.create_topic(topic, 6, None)
            measured = measure(spark, broker.bootstrap_servers, replace(case, rows=int(case.rows * arguments.scale)), topic)
            print(f"{case.name}: formula {case.formula_mb:.0f} MiB, measured {measured:.0f} MiB", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
