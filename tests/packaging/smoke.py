"""Writes to a broker with the installed package alone, in an environment that has no tests and no checkout.

    python smoke.py localhost:9092            the producer and TransactionClient, where pyspark is not installed
    python smoke.py localhost:9092 --spark    a batch, an exactly-once batch and a stream too

Needs the topic `smoke`. Spark finds the format by itself, as the wheel registers it. Exit code 0: every row was acknowledged.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_kafka_sink
from spark_kafka_sink import KafkaProducer, TransactionClient

TOPIC = "smoke"
ROWS = 1_000
NEED_SPARK = {"KafkaDataSource", "CommitSummary", "VersionSummary", "WrittenRange"}


def import_every_name(with_spark: bool) -> None:
    """Raises unless each public name is there. Those of the sink need pyspark, and say so."""
    for name in set(spark_kafka_sink.__all__) - (set() if with_spark else NEED_SPARK):
        getattr(spark_kafka_sink, name)
    assert with_spark or what_is_said_without_pyspark().startswith("[KAFKA_PYSPARK_MISSING]")


def what_is_said_without_pyspark() -> str:
    try:
        return repr(spark_kafka_sink.KafkaDataSource)
    except ImportError as error:
        return str(error)


def write_in_a_transaction(servers: str) -> None:
    with KafkaProducer({"bootstrap.servers": servers, "transactional.id": "smoke-1"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            delivery = producer.send_columns(TOPIC, value=pa.array([str(row) for row in range(ROWS)]))
        assert delivery.result(0).acknowledged == ROWS
    with TransactionClient({"bootstrap.servers": servers}) as client:
        (transaction,) = client.list_transactions("smoke-1")
        assert transaction.state in ("PrepareCommit", "CompleteCommit"), transaction


def write_with_spark(servers: str, directory: Path) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    report = directory / "report.jsonl"
    options = {"kafka.bootstrap.servers": servers, "topic": TOPIC, "reportPath": str(report)}
    rows = spark.range(ROWS).selectExpr("cast(id as string) value")
    rows.write.format("pykafka-sink").options(**options).mode("append").save()
    once = spark_kafka_sink.exactly_once_options("smoke-spark", 1)
    rows.write.format("pykafka-sink").options(**options, **once).mode("append").save()
    rows.write.json(str(directory / "in"))
    stream(spark, directory, options)
    spark.stop()
    written = [json.loads(line)["rows"] for line in report.read_text(encoding="utf-8").splitlines()]
    assert written == [ROWS] * 3, written


def stream(spark: Any, directory: Path, options: dict[str, str]) -> None:
    writer = spark.readStream.schema("value string").json(str(directory / "in")).writeStream.format("pykafka-sink")
    started = writer.options(**options, checkpointLocation=str(directory / "checkpoint")).trigger(availableNow=True).start()
    started.awaitTermination()


def main(servers: str, *more: str) -> None:
    with_spark = "--spark" in more
    import_every_name(with_spark)
    write_in_a_transaction(servers)
    if with_spark:
        with tempfile.TemporaryDirectory() as directory:
            write_with_spark(servers, Path(directory))
    print(f"pykafka-sink {spark_kafka_sink.__version__} of {Path(spark_kafka_sink.__file__).parent}: every row was acknowledged")


if __name__ == "__main__":
    main(*sys.argv[1:])
