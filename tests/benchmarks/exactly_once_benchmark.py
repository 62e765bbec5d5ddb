"""What exactly-once costs: the sink with deliveryGuarantee=exactly-once beside the sink with at-least-once, in one run.

    python -m tests.benchmarks.exactly_once_benchmark [--rows 2000000] [--repeats 3] [--batches 15] [--tasks 1000]

Three figures: rows/s of a bulk write of 100 B rows; the time of a micro-batch of 10 rows in 3 tasks; and the driver's commit of
so many tasks, by its steps. The two guarantees take turns, each first in some turn. Figures are medians. Nothing is asserted: a
time is not a test.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.exactly_once.version_commit import VersionCommit
from spark_kafka_sink.exactly_once.writes import TaskReport
from tests.benchmarks.sink_benchmark import ROOT, session
from tests.benchmarks.small_tasks_benchmark import FIRST_BATCHES, LIMIT_S, UNIX_SOCKETS
from tests.exactly_once.driving import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
GUARANTEES = ("at-least-once", "exactly-once")
STEPS = ("_listed", "_fence_others", "_check_markers", "_check_open", "_decide", "_carry_out")


class Bench:
    def __init__(self, spark: SparkSession, broker: LocalKafka, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.broker = broker
        self.topic = f"bench-{uuid.uuid4().hex[:12]}"
        broker.create_topic(self.topic, PARTITIONS)

    def _options(self, guarantee: str) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "topic": self.topic, "deliveryGuarantee": guarantee}
        return options | ({"transactionalIdPrefix": uuid.uuid4().hex} if guarantee == "exactly-once" else {})

    def bulk(self, guarantee: str, frame: DataFrame) -> float:
        """Seconds of one write."""
        started = time.monotonic()
        frame.write.format("pykafka-sink").options(**self._options(guarantee)).mode("append").save()
        return time.monotonic() - started

    def micro_batches(self, guarantee: str, batches: int) -> list[float]:
        """Milliseconds of each trigger of a query with 10 rows in 3 tasks."""
        rows = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=PARTITIONS).load()
        query = (
            rows.selectExpr("cast(value as string) key", "repeat(cast(value as string), 20) value")
            .writeStream.format("pykafka-sink")
            .options(**self._options(guarantee))
            .option("checkpointLocation", str(self._folder / uuid.uuid4().hex))
            .start()
        )
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(query.recentProgress) < FIRST_BATCHES + batches:
                if time.monotonic() > deadline or query.exception() is not None:
                    raise TimeoutError(f"{guarantee}: {query.exception()}")
                time.sleep(0.1)
            done: list[Any] = query.recentProgress[FIRST_BATCHES : FIRST_BATCHES + batches]
        finally:
            query.stop()
        return [each["durationMs"]["addBatch"] for each in done]

    def measure(self, rows: int, repeats: int, batches: int) -> dict[str, tuple[float, float]]:
        """Median seconds of a bulk write, and median milliseconds of a micro-batch, for each guarantee."""
        value = "rpad(cast(id as string), 100, 'x')"
        frame = self._spark.range(rows, numPartitions=4).selectExpr("cast(id as string) key", f"{value} value").cache()
        frame.count()
        writes: dict[str, list[float]] = defaultdict(list)
        latencies: dict[str, list[float]] = defaultdict(list)
        for guarantee in GUARANTEES:
            self.bulk(guarantee, frame)
        for repeat in range(repeats):
            turn = GUARANTEES if repeat % 2 else GUARANTEES[::-1]
            for guarantee in turn:
                writes[guarantee].append(self.bulk(guarantee, frame))
            for guarantee in turn:
                latencies[guarantee] += self.micro_batches(guarantee, batches)
        return {each: (statistics.median(writes[each]), statistics.median(latencies[each])) for each in GUARANTEES}


# THE DRIVER'S COMMIT


@contextmanager
def timed(steps: dict[str, float]) -> Iterator[None]:
    """Adds up how long each step of VersionCommit takes, in milliseconds; steps contain others."""
    kept: dict[str, Callable[..., Any]] = {name: getattr(VersionCommit, name) for name in STEPS}

    def timing(name: str) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return kept[name](*arguments, **named)
            finally:
                steps[name] = steps.get(name, 0) + (time.perf_counter() - started) * 1000

        return step

    for name in STEPS:
        setattr(VersionCommit, name, timing(name))
    try:
        yield
    finally:
        for name, step in kept.items():
            setattr(VersionCommit, name, step)


def commit_of(tasks: int, broker: LocalKafka, topic: str) -> dict[str, float]:
    """Milliseconds of the driver's commit of so many tasks with one row each, and of its steps."""
    with Run(broker.bootstrap_servers, topic, uuid.uuid4().hex, prefix=uuid.uuid4().hex) as run:
        reports: list[TaskReport] = [run.task(0, partition, "row", timeout_ms=600_000).run() for partition in range(tasks)]
        steps: dict[str, float] = {}
        started = time.perf_counter()
        with timed(steps):
            run.commit(reports)
        return {"commit": (time.perf_counter() - started) * 1000, **steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=15, help="micro-batches measured for each guarantee and repeat")
    parser.add_argument("--tasks", type=int, default=1000, help="of the driver's commit")
    parser.add_argument("--master", default="local[3]")
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder) / "broker", heap="1g") as broker:
        spark = session(arguments.master, {UNIX_SOCKETS: "true"})
        bench = Bench(spark, broker, Path(folder))
        medians = bench.measure(arguments.rows, arguments.repeats, arguments.batches)
        spark.stop()
        print(f"\n{arguments.master}, {arguments.rows:,} rows of 100 B, medians of {arguments.repeats} turns")
        print(f"{'':16}{'rows/s':>12}{'ratio':>8}{'micro-batch ms':>16}{'ratio':>8}")
        base_s, base_ms = medians[GUARANTEES[0]]
        for name, (seconds, ms) in medians.items():
            print(f"{name:16}{arguments.rows / seconds:>12,.0f}{base_s / seconds:>8.2f}{ms:>16,.0f}{ms / base_ms:>8.2f}")
        if arguments.tasks:
            print(f"\nthe driver's commit of {arguments.tasks} tasks, ms")
            for name, ms in commit_of(arguments.tasks, broker, bench.topic).items():
                print(f"{name:16}{ms:>12,.0f}")


if __name__ == "__main__":
    main()
