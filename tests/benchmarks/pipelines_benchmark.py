"""Our sink, Spark's own and a Python writer that discards, in pipelines as people have them: rows/s, CPU, latency of a stream.

    python -m tests.benchmarks.pipelines_benchmark [--rows 3000000] [--repeats 3] [--rates 10000,100000] [--seconds 20] …

- `parquet -> to_json -> lz4`: the flights that left New York in 2013, repeated, as JSON with a key.
- `kafka -> kafka`: a topic of as many rows of 100 B, copied as it is.
- `stream`: rows of 100 B come into a topic at a steady rate; a stream copies them as fast as it can. A row's latency is the time
  from its creation to its append to the target topic, by the broker's clock, which is the same. The time until the stream has
  written its first micro-batches, and has no more to catch up with, is left out. The writer that discards its rows has
  micro-batches and no latency. A rate that is given twice is measured twice, the second time with warm JVMs.

Variants take turns; figures are medians, ratios are against Spark's sink with defaults. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import numpy as np
import pyarrow as pa

from jobs.kafka_jars import cache_dir
from jobs.local_kafka import LocalKafka
from jobs.quickstart_flights import fetch_flights
from spark_kafka_sink import KafkaProducer
from tests.benchmarks.measuring import Usage
from tests.benchmarks.sink_benchmark import DEFAULTS, VARIANTS, Bench, Variant, session
from tests.integration.processes import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FAST_ROWS = {"spark.python.unix.domain.socket.enabled": "true", "spark.sql.execution.arrow.maxBytesPerBatch": "1m"}
COMPARED = [VARIANTS[name] for name in ("sink", "defaults", "tuned", "discard")]
DISCARD = VARIANTS["discard"]
PARTITIONS = 6
WARM_UP_BATCHES = 8
TICK_S = 0.01  # rows come in lots, this often


def flights(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Read from Parquet files of about `rows` rows."""
    table = spark.read.csv(str(fetch_flights(cache_dir() / "flights")), header=True, inferSchema=True)
    times = max(1, rows // table.count())
    path = str(folder / "flights.parquet")
    table.crossJoin(spark.range(times).withColumnRenamed("id", "repetition")).repartition(8).write.parquet(path)
    return spark.read.parquet(path).selectExpr("concat(carrier, flight) as key", "to_json(struct(*)) as value")


def topic_of(spark: SparkSession, broker: LocalKafka, rows: int) -> DataFrame:
    topic = f"source-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, PARTITIONS)
    values = pa.array([b"%0100d" % number for number in range(20_000)], pa.binary())
    keys = pa.array([b"%08d" % number for number in range(20_000)], pa.binary())
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "20", "batch.size": "262144"}) as producer:
        for _ in range(rows // 20_000):
            producer.send_columns(topic, value=values, key=keys)
        producer.flush()
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers).option("subscribe", topic)
    return read.load().select("key", "value")


def compare(what: str, bench: Bench, frame: DataFrame, codec: str, repeats: int) -> None:
    rows = frame.count()
    usages: dict[str, list[Usage]] = {variant.name: [] for variant in COMPARED}
    for variant in COMPARED:
        bench.run(variant, frame, codec)
    for repeat in range(repeats):
        turn = repeat % len(COMPARED)
        for variant in COMPARED[turn:] + COMPARED[:turn]:
            usages[variant.name].append(bench.run(variant, frame, codec))
    print(f"\n{what}: {rows:,} rows, {codec}, medians of {repeats}")
    print(f"{'':24}{'rows/s':>12}{'ratio':>8}{'client CPU s/M':>16}{'broker CPU s/M':>16}")
    base = statistics.median(usage.wall_s for usage in usages[DEFAULTS])
    for name, measured in usages.items():
        wall, client, server = (
            statistics.median(getattr(usage, figure) for usage in measured)
            for figure in ("wall_s", "client_cpu_s", "broker_cpu_s")
        )
        print(
            f"{name:24}{rows / wall:>12,.0f}{base / wall:>8.2f}{client / rows * 1e6:>16.2f}{server / rows * 1e6:>16.2f}",
            flush=True,
        )


# STREAM


def feed(producer: KafkaProducer, topic: str, rate: int, ends: threading.Event) -> None:
    """Rows at a steady rate, whose values begin with the millisecond of their creation."""
    lot, sent_rows, started = max(1, int(rate * TICK_S)), 0, time.monotonic()
    while not ends.wait(max(0.0, started + sent_rows / rate - time.monotonic())):
        value = b"%013d%087d" % (time.time_ns() // 1_000_000, 0)
        producer.send_columns(topic, value=pa.array([value] * lot, pa.binary()))
        sent_rows += lot


def batches_of(query: StreamingQuery) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def latencies(bootstrap_servers: str, topic: str, from_ms: int) -> list[int]:
    """ms from creation to append of the rows in the topic that were made since `from_ms`."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "pipelines",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    latencies_ms: list[int] = []
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, timeout=10):
            if message.error() is not None:
                ended += message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                continue
            made = int(message.value()[:13])
            if made >= from_ms:
                latencies_ms.append(message.timestamp()[1] - made)
    consumer.close()
    return latencies_ms


def stream(spark: SparkSession, broker: LocalKafka, folder: Path, variant: Variant, rate: int, seconds: int) -> None:
    source, target = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("source", "target"))
    broker.create_topic(source, PARTITIONS)
    broker.create_topic(target, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    rows = spark.readStream.format("kafka").options(**servers, subscribe=source, startingOffsets="earliest").load()
    writing = rows.select("value").writeStream.format(variant.format).options(**servers, **variant.options, topic=target)
    query = writing.option("checkpointLocation", str(folder / target)).start()
    ends = threading.Event()
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "1"}) as producer:
        feeder = threading.Thread(target=feed, args=(producer, source, rate, ends))
        feeder.start()
        until(lambda: len(batches_of(query)) >= WARM_UP_BATCHES, 300, "the stream has written its first micro-batches")
        from_ms, warm_up = time.time_ns() // 1_000_000, len(batches_of(query))
        ends.wait(seconds)
        ends.set()
        feeder.join(60)
    query.processAllAvailable()
    durations = [progress["durationMs"]["triggerExecution"] for progress in batches_of(query)[warm_up:]]
    query.stop()
    if variant is DISCARD:
        print(f"{variant.name:24}{rate:>10,}{'':36}{statistics.median(durations):>16,.0f}", flush=True)
        return
    late = latencies(broker.bootstrap_servers, target, from_ms)
    print(
        f"{variant.name:24}{rate:>10,}{len(late):>12,}{np.median(late):>12,.0f}{np.percentile(late, 99):>12,.0f}"
        f"{statistics.median(durations):>16,.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rates", default="10000,100000", help="rows/s of the streams")
    parser.add_argument("--seconds", type=int, default=20, help="of each stream")
    parser.add_argument("--parts", default="parquet,kafka,stream")
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, LocalKafka(Path(name) / "kafka", heap="1g") as broker:
        folder = Path(name)
        spark = session(arguments.master, FAST_ROWS)
        spark.sparkContext.setLogLevel("ERROR")  # Spark's producers outlive the broker and complain
        bench = Bench(spark, broker, PARTITIONS)
        parts = arguments.parts.split(",")
        if "parquet" in parts:
            compare("parquet -> to_json", bench, flights(spark, folder, arguments.rows), "lz4", arguments.repeats)
        if "kafka" in parts:
            compare("kafka -> kafka", bench, topic_of(spark, broker, arguments.rows), "none", arguments.repeats)
        if "stream" in parts:
            compare_streams(spark, broker, folder, arguments)
        spark.stop()


def compare_streams(spark: SparkSession, broker: LocalKafka, folder: Path, arguments: argparse.Namespace) -> None:
    print(f"\nstreams of {arguments.seconds} s; latency in ms")
    print(f"{'':24}{'rows/s':>10}{'rows':>12}{'median':>12}{'99 %':>12}{'micro-batch ms':>16}")
    for rate in map(int, arguments.rates.split(",")):
        for variant in COMPARED:
            stream(spark, broker, folder, variant, rate, arguments.seconds)


if __name__ == "__main__":
    main()
