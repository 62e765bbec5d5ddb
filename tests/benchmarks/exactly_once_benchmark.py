"""What exactly-once costs: the sink with deliveryGuarantee=exactly-once beside the sink with at-least-once, in one run.

    python -m tests.benchmarks.exactly_once_benchmark [--rows 2000000] [--repeats 3] [--batches 15] [--tasks 1000]

Three figures: rows/s of a bulk write of 100 B rows, with CPU seconds of client and broker; the time of a micro-batch of 10 rows
in 3 tasks, and of its parts; and the driver's commit of so many tasks, by its steps. The two guarantees take turns, each first in
some turn. Figures are medians. Nothing is asserted: a time is not a test.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.version_commit import VersionCommit
from spark_kafka_sink.exactly_once.writes import TaskReport
from tests.benchmarks.measuring import Usage, cpu_seconds
from tests.benchmarks.sink_benchmark import session
from tests.benchmarks.small_tasks_benchmark import FIRST_BATCHES, LIMIT_S, UNIX_SOCKETS
from tests.benchmarks.timed_sink import TimedSink, Times, parts_in
from tests.exactly_once.stepwise_writes import DriverRun, content_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
GUARANTEES = ("at-least-once", "exactly-once")
NAMED = "… with txnAppId"  # exactly-once for a write that can be repeated, so that its rows are fingerprinted
WRITES = (*GUARANTEES, NAMED)
STEPS = ("_read_decision", "_fence_and_check", "_check", "_decide", "_commit_or_fail", "_record_and_fence_late")


class Bench:
    def __init__(self, spark: SparkSession, broker: LocalKafka, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.broker = broker
        self.topic = f"bench-{uuid.uuid4().hex[:12]}"
        broker.create_topic(self.topic, PARTITIONS)

    def _options(self, guarantee: str) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "topic": self.topic}
        if guarantee == GUARANTEES[0]:
            return options | {"deliveryGuarantee": guarantee}
        name = {"txnAppId": "bench", "txnVersion": "0"} if guarantee == NAMED else {}
        return options | name | {"deliveryGuarantee": GUARANTEES[1], "transactionalIdPrefix": uuid.uuid4().hex}

    def bulk(self, guarantee: str, frame: DataFrame) -> Usage:
        """Of one write."""
        options = self._options(guarantee) | ({"allowUnnamedWrite": "true"} if guarantee == GUARANTEES[1] else {})
        jvm = int(self._spark.sparkContext._jvm.ProcessHandle.current().pid())
        broker = self.broker.nodes[1].pid
        assert broker is not None
        before = time.monotonic(), cpu_seconds(jvm), cpu_seconds(broker)
        frame.write.format("pykafka-sink").options(**options).mode("append").save()
        after = time.monotonic(), cpu_seconds(jvm), cpu_seconds(broker)
        return Usage(*(now - then for then, now in zip(before, after, strict=True)))

    def micro_batches(self, guarantee: str, batches: int) -> tuple[list[float], dict[tuple[str, str], list[Times]]]:
        """Milliseconds of each trigger of a query with 10 rows in 3 tasks, and the times of their parts."""
        times = self._folder / uuid.uuid4().hex
        times.mkdir()
        rows = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=PARTITIONS).load()
        query = (
            rows.selectExpr("cast(value as string) key", "repeat(cast(value as string), 20) value")
            .writeStream.format("timed-sink")
            .options(**self._options(guarantee), timesFolder=str(times))
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
        return [each["durationMs"]["addBatch"] for each in done], parts_in(times, first_batch=FIRST_BATCHES)

    def measure_writes(self, rows: int, repeats: int) -> dict[str, Usage]:
        value = "rpad(cast(id as string), 100, 'x')"
        frame = self._spark.range(rows, numPartitions=4).selectExpr("cast(id as string) key", f"{value} value").cache()
        frame.count()
        for guarantee in WRITES:
            self.bulk(guarantee, frame)
        writes: dict[str, list[Usage]] = {guarantee: [] for guarantee in WRITES}
        for guarantee in turns(repeats, WRITES):
            writes[guarantee].append(self.bulk(guarantee, frame))
        return {name: median_usage(each) for name, each in writes.items()}

    def measure_micro_batches(self, repeats: int, batches: int) -> dict[str, MicroBatch]:
        measured = {guarantee: MicroBatch([], defaultdict(list)) for guarantee in GUARANTEES}
        for guarantee in GUARANTEES:
            self.micro_batches(guarantee, 1)
        for guarantee in turns(repeats, GUARANTEES):
            latencies, parts = self.micro_batches(guarantee, batches)
            measured[guarantee].latencies.extend(latencies)
            for part, times in parts.items():
                measured[guarantee].parts[part] += times
        return measured


class MicroBatch(NamedTuple):
    """All that were measured: milliseconds, and the times of each part."""

    latencies: list[float]
    parts: dict[tuple[str, str], list[Times]]

    @property
    def ms(self) -> float:
        return statistics.median(self.latencies)


def turns(repeats: int, names: Sequence[str]) -> Iterator[str]:
    """Each of them so many times, each first in some turn."""
    for repeat in range(repeats):
        first = repeat % len(names)
        yield from (*names[first:], *names[:first])


def median_usage(each: list[Usage]) -> Usage:
    return Usage(*(statistics.median(getattr(one, name) for one in each) for name in Usage.__slots__))


def show_writes(measured: dict[str, Usage], rows: int) -> None:
    print(f"\na write of {rows:,} rows of 100 B\n{'':16}{'rows/s':>12}{'ratio':>8}{'client CPU s':>14}{'broker CPU s':>14}")
    base = measured[GUARANTEES[0]]
    for name, each in measured.items():
        speed = f"{rows / each.wall_s:>12,.0f}{base.wall_s / each.wall_s:>8.2f}"
        print(f"{name:16}{speed}{each.client_cpu_s:>14.2f}{each.broker_cpu_s:>14.2f}", flush=True)


def show_micro_batches(measured: dict[str, MicroBatch]) -> None:
    """Of the parts, milliseconds, and CPU milliseconds of the Python process that is at it."""
    print(f"\na micro-batch of 10 rows in {PARTITIONS} tasks\n{'':36}{'ms':>8}{'CPU ms':>8}{'ratio':>8}")
    base = measured[GUARANTEES[0]]
    for name, each in measured.items():
        print(f"{name:36}{each.ms:>8.1f}{'':8}{each.ms / base.ms:>8.2f}")
        for (of, part), times in each.parts.items():
            wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{('    ' if part == of else '        ') + part:36}{wall:>8.1f}{cpu:>8.1f}", flush=True)


# THE DRIVER'S COMMIT


@contextmanager
def timed(steps: dict[str, float]) -> Iterator[None]:
    """Adds up how long each step of VersionCommit takes, in milliseconds; steps contain others."""
    originals: dict[str, Callable[..., Any]] = {name: getattr(VersionCommit, name) for name in STEPS}

    def timing(name: str) -> Callable[..., Any]:
        def step(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return originals[name](*arguments, **keywords)
            finally:
                steps[name] = steps.get(name, 0) + (time.perf_counter() - started) * 1000

        return step

    for name in STEPS:
        setattr(VersionCommit, name, timing(name))
    try:
        yield
    finally:
        for name, step in originals.items():
            setattr(VersionCommit, name, step)


def commit_of(tasks: int, broker: LocalKafka) -> dict[str, float]:
    """Milliseconds of the driver's commit of so many tasks with one row each, and of its steps.

    The tasks are driven by hand, one after the other. The driver has a client of its own, which knows no coordinator yet.
    """
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    broker.create_topic(topic, PARTITIONS)
    with DriverRun(broker.bootstrap_servers, topic, uuid.uuid4().hex, prefix=uuid.uuid4().hex) as run:
        options = {**run.options, "transactional.id": "none", "transaction.timeout.ms": 600_000}
        with KafkaProducer(options) as producer:
            reports = [_write_row(run, producer, partition) for partition in range(tasks)]
        steps: dict[str, float] = {}
        with TransactionClient(run.options) as client, timed(steps):
            started = time.perf_counter()
            VersionCommit(client, run.names, reports, topic).run()
            return {"commit": (time.perf_counter() - started) * 1000, **steps}


def _write_row(run: DriverRun, producer: KafkaProducer, partition: int) -> TaskReport:
    write = run.write(0)
    attempt = TaskAttempt(run.client, producer, run.names, write, run.planned_at(0), partition, 0, run.topic)
    attempt.begin()
    attempt.add_rows(content_of(["row"]))
    producer.send_columns(run.topic, value=pa.array(["row"]))
    producer.flush()
    return attempt.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="0: only the driver's commit")
    parser.add_argument("--batches", type=int, default=15, help="micro-batches measured for each guarantee and repeat")
    parser.add_argument("--tasks", type=int, default=1000, help="of the driver's commit; 0: leave it out")
    parser.add_argument("--master", default="local[3]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder) / "broker", heap="1g") as broker:
        if arguments.tasks:
            print(f"the driver's commit of {arguments.tasks} tasks, ms")
            for name, ms in commit_of(arguments.tasks, broker).items():
                print(f"{name:36}{ms:>8,.0f}", flush=True)
        if arguments.repeats:
            print(f"\n{arguments.master}, medians of {arguments.repeats} turns")
            spark = session(arguments.master, {UNIX_SOCKETS: "true"})
            spark.dataSource.register(TimedSink)
            bench = Bench(spark, broker, Path(folder))
            show_micro_batches(bench.measure_micro_batches(arguments.repeats, arguments.batches))
            show_writes(bench.measure_writes(arguments.rows, arguments.repeats), arguments.rows)
            spark.stop()


if __name__ == "__main__":
    main()
