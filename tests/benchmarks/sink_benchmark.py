"""Our sink beside Spark's own and confluent-kafka, on one broker in one run: rows/s, and CPU seconds per million rows.

    python -m tests.benchmarks.sink_benchmark [--rows 3000000] [--repeats 5] [--variants sink,defaults] [--json FILE] …
    python -m tests.benchmarks.sink_benchmark --chart docs/images     draws what docs/benchmarks/*.json hold; measures nothing

Variants take turns, each first in some turn, so that a slow minute of the machine hits all of them; figures are medians, ratios
are against Spark's sink with defaults. Values are half text, half hash; 1,000 B are ten times the same 100. `client` is Spark's
JVM with its Python workers. Each variant has Python workers of its own, so that none shows the memory of another; Spark ends
workers that idle for a minute, so a few rows go before each measured write. Nothing is asserted: a time is not a test.
docs/speed.md has the commands whose results docs/benchmarks/ holds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from kafka.admin import KafkaAdminClient
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

from jobs.kafka_jars import kafka_version
from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaDataSource, KafkaProducer
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.producer.producer_record import ProducerRecord
from tests.benchmarks.comparison import (
    CONFLUENT,
    DEFAULTS,
    DISCARD,
    NOOP,
    SINK,
    TUNED,
    Comparison,
    SinkBenchmarkRun,
    VariantMedians,
    recorded_runs,
)
from tests.benchmarks.comparison_chart import draw
from tests.benchmarks.confluent_writer import ConfluentWriter, settings
from tests.benchmarks.discarding import DiscardDataSource
from tests.benchmarks.measuring import Usage, cpu_seconds, peak_resident_mb, python_workers, reset_peak
from tests.spark_connector import fetch_spark_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
INDEX_INTERVAL_BYTES = 4096  # a broker's index.interval.bytes: a log's first batch beyond it gets an entry in each index
KEY_BYTES = 8
TUNED_OPTIONS = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}
TUNED_BATCHES = 2  # for each partition, one that fills and one on its way, as far as the default of 32 MB does not hold them
DEFAULT_BUFFER_MEMORY = 32 * 1024 * 1024
WORTH_QUOTING = (3_000_000, 5)  # rows of 100 B, repeats
WORKERS_OF = "SINK_BENCHMARK_WORKERS_OF"  # a variable of Python workers: Spark shares none between different environments
FEW_ROWS = 1_000
WARM_UP_RUNS = 2
# Files of a deleted topic leave the page cache at once, and the next run uses that memory. A minute later, the default, each run
# takes memory that a virtual machine may have to fetch from its host first: the broker's CPU was up to four times as high then,
# and for whichever variant it hit.
AT_ONCE = {"log.segment.delete.delay.ms": "0"}


@dataclass(frozen=True)
class Variant:
    name: str
    format: str
    options: dict[str, str] = field(default_factory=dict)
    in_map_in_arrow: bool = False  # confluent-kafka writes the rows, and the format gets what is left

    @property
    def workers(self) -> str:
        """The value of WORKERS_OF in this variant's Python workers; empty if it has none."""
        if self.in_map_in_arrow:
            return "confluent-kafka"
        return self.format if self.format in (KafkaDataSource.name(), DiscardDataSource.name()) else ""

    @property
    def uses_kafka(self) -> bool:
        return "kafka" in self.format or self.in_map_in_arrow

    def for_topic_of(self, partitions: int) -> Variant:
        """What is tuned gets memory for its batches: with too little, Java's producer sends nearly empty ones."""
        needed = partitions * TUNED_BATCHES * int(self.options.get("kafka.batch.size", 0))
        if needed <= DEFAULT_BUFFER_MEMORY:
            return self
        return replace(self, options={**self.options, "kafka.buffer.memory": str(needed)})

    def write(self, frame: DataFrame, options: dict[str, str]) -> None:
        if self.in_map_in_arrow:
            frame.sparkSession.sparkContext.environment[WORKERS_OF] = self.workers
            frame, options = map_in_arrow(frame, confluent_writer(options), ConfluentWriter.SCHEMA), {}
        frame.write.format(self.format).options(**self.options, **options).mode("append").save()


def confluent_writer(options: dict[str, str]) -> ConfluentWriter:
    """It uses what our sink uses with these options."""
    problems: list[str] = []
    like = SinkOptions.read(options, problems).producer
    assert not problems, problems
    return ConfluentWriter(options["topic"], settings(options["kafka.bootstrap.servers"], like))


def map_in_arrow(frame: DataFrame, function: ConfluentWriter, schema: str) -> DataFrame:
    """frame.mapInArrow(function, schema), without its check that pandas is installed.

    Spark uses no pandas here. But where it is installed, pyarrow imports it in every Python worker, those of the sinks included,
    and the peaks would be larger than what the sinks need.
    """
    column = _create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(*frame.columns)
    return classic.DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


VARIANTS = {  # by what --variants calls them
    "sink": Variant(SINK, "pykafka-sink"),
    "defaults": Variant(DEFAULTS, "kafka"),
    "tuned": Variant(TUNED, "kafka", TUNED_OPTIONS),
    "confluent": Variant(CONFLUENT, "noop", in_map_in_arrow=True),
    "discard": Variant(DISCARD, "discard"),
    "noop": Variant(NOOP, "noop"),
}


class Bench:
    def __init__(self, spark: SparkSession, broker: LocalKafka, partitions: int) -> None:
        self._spark = spark
        self._broker = broker
        self._partitions = partitions
        self._admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        self._jvm_pid = int(spark.sparkContext._jvm.ProcessHandle.current().pid())

    def frame(self, rows: int, value_bytes: int) -> DataFrame:
        hashes = "concat(cast(id as string), ' ', hex(xxhash64(id)), ' ', hex(xxhash64(id + 1)), ' order shipped to customer ')"
        return self._spark.range(rows).selectExpr(
            "encode(lpad(cast(id as string), 8, '0'), 'UTF-8') as key",
            f"encode(rpad(repeat({hashes}, {value_bytes // 100}), {value_bytes}, ' in good order'), 'UTF-8') as value",
        )

    def run(self, variant: Variant, frame: DataFrame, codec: str) -> Usage:
        topic = f"bench-{uuid.uuid4().hex[:12]}"
        if variant.uses_kafka:
            self._create(topic)
        broker_pid = self._broker.nodes[1].pid
        assert broker_pid is not None
        before = time.monotonic(), cpu_seconds(self._jvm_pid), cpu_seconds(broker_pid)
        variant.write(frame, self._to(topic, codec) if variant.uses_kafka else {})
        after = time.monotonic(), cpu_seconds(self._jvm_pid), cpu_seconds(broker_pid)
        if variant.uses_kafka:
            self._admin.delete_topics([topic])
        return Usage(*(now - then for then, now in zip(before, after, strict=True)))

    def _to(self, topic: str, codec: str) -> dict[str, str]:
        servers = self._broker.bootstrap_servers
        return {"topic": topic, "kafka.bootstrap.servers": servers, "kafka.compression.type": codec}

    def _create(self, topic: str) -> None:
        """A topic that takes rows already. Brokers tell of a new one before each partition is ready, and Spark's own sink can
        then lose two minutes: its first batch rejected, its second accepted, and the first out of order from there on.

        Its indexes have entries, too: the first of each costs the broker milliseconds, as the kernel reads ahead in the file.
        """
        self._broker.create_topic(topic, self._partitions)
        first = bytes(INDEX_INTERVAL_BYTES + 1)
        with KafkaProducer({"bootstrap.servers": self._broker.bootstrap_servers}) as producer:
            for _ in range(2):
                for future in [producer.send(ProducerRecord(topic, first, partition=each)) for each in range(self._partitions)]:
                    future.result(60)

    def measure(self, variant: Variant, frame: DataFrame, codec: str) -> tuple[Usage, float]:
        """A run in workers that are there already, and the peak of the largest of them in MiB; 0 if the variant has none."""
        if not variant.workers:
            return self.run(variant, frame, codec), 0.0
        self.run(variant, self.frame(FEW_ROWS, 100), codec)
        for pid in self._workers(variant):
            reset_peak(pid)
        usage = self.run(variant, frame, codec)
        return usage, max(map(peak_resident_mb, self._workers(variant)), default=0.0)

    def _workers(self, variant: Variant) -> list[int]:
        return python_workers(self._jvm_pid, f"{WORKERS_OF}={variant.workers}")

    def compare(self, rows: int, value_bytes: int, codec: str, repeats: int, variants: Sequence[Variant]) -> Comparison:
        frame = self.frame(rows, value_bytes)
        variants = [variant.for_topic_of(self._partitions) for variant in variants]
        usages: dict[str, list[Usage]] = {variant.name: [] for variant in variants}
        peaks: dict[str, float] = {}
        for variant in [*variants] * WARM_UP_RUNS:
            self.run(variant, frame, codec)  # what the JVMs of Spark and broker have not compiled yet, they compile now
        for repeat in range(repeats):
            turn = repeat % len(variants)
            for variant in [*variants[turn:], *variants[:turn]]:
                usage, peak = self.measure(variant, frame, codec)
                usages[variant.name].append(usage)
                if peak:
                    peaks[variant.name] = max(peaks.get(variant.name, 0.0), peak)
        figures = {
            name: VariantMedians(
                rows_per_second=round(rows / statistics.median(usage.wall_s for usage in measured)),
                client_cpu_s_per_million=round(statistics.median(usage.client_cpu_s for usage in measured) / rows * 1e6, 3),
                broker_cpu_s_per_million=round(statistics.median(usage.broker_cpu_s for usage in measured) / rows * 1e6, 3),
                worker_peak_mb=round(peaks[name]) if name in peaks else None,
            )
            for name, measured in usages.items()
        }
        comparison = Comparison(rows, KEY_BYTES, value_bytes, codec, self._partitions, repeats, figures)
        show(comparison)
        return comparison


def show(comparison: Comparison) -> None:
    what = f"{comparison.rows:,} rows, key {comparison.key_bytes} B, value {comparison.value_bytes} B, {comparison.codec}"
    print(f"\n{what}, {comparison.partitions} partitions, medians of {comparison.repeats}")
    print(f"{'':32}{'rows/s':>12}{'ratio':>8}{'client CPU s/M':>16}{'broker CPU s/M':>16}{'worker peak MB':>16}")
    for name, each in comparison.variants.items():
        peak = "-" if each.worker_peak_mb is None else f"{each.worker_peak_mb:.0f}"
        ratio = f"{comparison.ratio(name):.2f}" if DEFAULTS in comparison.variants else "-"
        print(
            f"{name:32}{each.rows_per_second:>12,.0f}{ratio:>8}{each.client_cpu_s_per_million:>16.2f}"
            f"{each.broker_cpu_s_per_million:>16.2f}{peak:>16}",
            flush=True,
        )


def session(master: str, extra: dict[str, str]) -> SparkSession:
    """A session whose workers run this Python with this project, and which has Spark's own sink and both sinks in Python."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    jars = ",".join(map(str, sorted(fetch_spark_kafka().glob("*.jar"))))
    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.jars": jars,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={ROOT / 'conf' / 'log4j2.properties'}",
        **extra,
    }
    spark = SparkSession.builder.master(master).appName("sink benchmark").config(map=options).getOrCreate()
    for source in (KafkaDataSource, DiscardDataSource):
        spark.sparkContext.environment[WORKERS_OF] = source.name()
        spark.dataSource.register(source)
    return spark


def spark_settings(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in arguments.conf)


def recorded(arguments: argparse.Namespace, comparisons: list[Comparison]) -> SinkBenchmarkRun:
    """The run as --json keeps it: what was measured, on what, and by which command."""
    words_left, words = sys.argv[1:], []
    while words_left:
        word = words_left.pop(0)
        if word == "--json":
            words_left.pop(0)
        elif not word.startswith("--json="):
            words.append(word)
    return SinkBenchmarkRun(
        command=shlex.join(["python", "-m", "tests.benchmarks.sink_benchmark", *words]),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        master=arguments.master,
        spark_settings=spark_settings(arguments),
        machine=f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})",
        versions={"Python": platform.python_version(), "pyspark": pyspark.__version__, "Apache Kafka": kafka_version()},
        short=arguments.rows < WORTH_QUOTING[0] or arguments.repeats < WORTH_QUOTING[1],
        comparisons=tuple(comparisons),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000, help="of 100 B; larger values get fewer rows of as many bytes")
    parser.add_argument("--values", default="100,1000", help="value sizes in bytes")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--partitions", default="6", help="partitions of the topic; several with commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="only these, of %(default)s")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="record the result, as docs/benchmarks/*.json are")
    parser.add_argument("--chart", type=Path, metavar="DIRECTORY", help="only draw the recorded results")
    arguments = parser.parse_args()
    if arguments.chart is not None:
        print(*draw(arguments.chart, recorded_runs()), sep="\n")
        return
    names = arguments.variants.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        parser.error(f"--variants: there is no {', '.join(unknown)}; choose from {', '.join(VARIANTS)}")
    variants = [VARIANTS[name] for name in names]
    comparisons = []
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder), heap="1g", properties=AT_ONCE) as broker:
        spark = session(arguments.master, spark_settings(arguments))
        for partitions in map(int, arguments.partitions.split(",")):
            bench = Bench(spark, broker, partitions)
            for value_bytes in map(int, arguments.values.split(",")):
                for codec in arguments.codecs.split(","):
                    rows = arguments.rows * (KEY_BYTES + 100) // (KEY_BYTES + value_bytes)
                    comparisons.append(bench.compare(rows, value_bytes, codec, arguments.repeats, variants))
        spark.stop()
    if arguments.json is not None:
        recorded(arguments, comparisons).save(arguments.json)


if __name__ == "__main__":
    main()
