"""What little work costs: micro-batches of 10 rows, and one write of 500 small tasks, beside a writer that discards.

    python -m tests.benchmarks.small_tasks_benchmark [--repeats 3] [--batches 15] [--tasks 500] [--master local[2]]

Once with Spark's default TCP sockets between JVM and Python workers, once with spark.python.unix.domain.socket.enabled. The sink
runs as it is and without its producer cache; these variants take turns, so that a slow minute of the machine hits all of them.
The discarding writer has a session, and so Python workers, of its own: in those that the sink has used, Spark's collections of
garbage are short (writer.freeze_loaded_modules). Figures are medians. Nothing is asserted: a time is not a test.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from tests.benchmarks.discarding import DiscardDataSource
from tests.benchmarks.sink_benchmark import Variant, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
FIRST_BATCHES = 3  # of a query: workers start, classes are loaded
PARTITIONS = 3
LIMIT_S = 300


REFERENCE = Variant("discarding writer", "discard")
VARIANTS = [
    Variant("pykafka-sink", "pykafka-sink"),
    Variant("without producer cache", "pykafka-sink", {"producerCacheTimeoutMs": "0"}),
    Variant("spark kafka", "kafka"),
]


class Bench:
    def __init__(self, spark: SparkSession, broker: LocalKafka, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._topic = f"bench-{uuid.uuid4().hex[:12]}"
        self._to = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": self._topic}
        broker.create_topic(self._topic, PARTITIONS)
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for partition in range(PARTITIONS):
                producer.send(ProducerRecord(self._topic, b"first", partition=partition)).result(60)

    def _options(self, variant: Variant) -> dict[str, str]:
        return (self._to if "kafka" in variant.format else {}) | variant.options

    def micro_batches(self, variant: Variant, batches: int) -> list[float]:
        """Milliseconds of each trigger of a query with 10 rows in one task."""
        rows = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1).load()
        query = (
            rows.selectExpr("cast(value as string) key", "repeat(cast(value as string), 20) value")
            .writeStream.format(variant.format)
            .options(**self._options(variant))
            .option("checkpointLocation", str(self._folder / uuid.uuid4().hex))
            .start()
        )
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(query.recentProgress) < FIRST_BATCHES + batches:
                if time.monotonic() > deadline or query.exception() is not None:
                    raise TimeoutError(f"{variant.name}: {query.exception()}")
                time.sleep(0.1)
            done: list[Any] = query.recentProgress[FIRST_BATCHES : FIRST_BATCHES + batches]
        finally:
            query.stop()
        return [each["durationMs"]["addBatch"] for each in done]

    def small_tasks(self, variant: Variant, tasks: int) -> float:
        """Milliseconds of one write with so many tasks of 10 rows."""
        rows = self._spark.range(tasks * 10, numPartitions=tasks)
        frame = rows.selectExpr("cast(id as string) key", "repeat(cast(id as string), 20) value")
        started = time.monotonic()
        frame.write.format(variant.format).options(**self._options(variant)).mode("append").save()
        return (time.monotonic() - started) * 1000

    def measure(self, variants: Sequence[Variant], repeats: int, batches: int, tasks: int) -> dict[str, tuple[float, float]]:
        """Median milliseconds of a micro-batch, and of a write, for each variant by name."""
        latencies: dict[str, list[float]] = defaultdict(list)
        writes: dict[str, list[float]] = defaultdict(list)
        for variant in variants:
            self.small_tasks(variant, tasks // 10)
        for _ in range(repeats):
            for variant in variants:
                latencies[variant.name] += self.micro_batches(variant, batches)
            for variant in variants:
                writes[variant.name].append(self.small_tasks(variant, tasks))
        return {name: (statistics.median(latencies[name]), statistics.median(writes[name])) for name in latencies}


def print_table(medians: dict[str, tuple[float, float]], tasks: int) -> None:
    print(f"{'':24}{'micro-batch ms':>16}{'ratio':>8}{f'{tasks} tasks ms':>16}{'ratio':>8}")
    for name, measured in medians.items():
        cells = (
            f"{own:>16,.0f}{own / reference:>8.2f}" for own, reference in zip(measured, medians[REFERENCE.name], strict=True)
        )
        print(f"{name:24}{''.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=15, help="micro-batches measured for each variant and repeat")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--sockets", default="tcp,unix")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder) / "broker", heap="1g") as broker:
        for sockets in arguments.sockets.split(","):
            medians: dict[str, tuple[float, float]] = {}
            for variants in ([REFERENCE], VARIANTS):
                spark = session(arguments.master, {UNIX_SOCKETS: str(sockets == "unix").lower()})
                spark.dataSource.register(DiscardDataSource)
                bench = Bench(spark, broker, Path(folder))
                medians |= bench.measure(variants, arguments.repeats, arguments.batches, arguments.tasks)
                spark.stop()
            print(f"\n{sockets} sockets, {arguments.master}, medians of {arguments.repeats} turns")
            print_table(medians, arguments.tasks)


if __name__ == "__main__":
    main()
