"""The debug log of writers in Spark's Python workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fakes.fake_broker import FakeBroker


@pytest.mark.spark
def test_spark_workers_show_the_debug_log_when_their_daemon_is_replaced(tmp_path: Path) -> None:
    with FakeBroker(topics={"orders": 1}) as broker:
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(
                f"""
                from pyspark.sql import SparkSession
                from spark_kafka_sink import KafkaDataSource

                settings = {{"spark.ui.enabled": "false", "spark.python.daemon.module": "spark_kafka_sink.debug_daemon"}}
                spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
                spark.dataSource.register(KafkaDataSource)
                rows = spark.range(10).selectExpr("cast(id as string) value")
                writer = rows.write.format("pykafka-sink").option("kafka.bootstrap.servers", {broker.bootstrap_servers!r})
                writer.option("topic", "orders").mode("append").save()
                spark.stop()
                """
            )
        )
        done = subprocess.run([sys.executable, program], env=os.environ, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert len(broker.values("orders")) == 10
    assert "DEBUG spark_kafka_sink.producer.sender > node 0: ProducerBatch(orders-0, records=10" in done.stderr
    assert re.search(r"> node 0: ProduceRequest v13, correlation id \d+, \d+ bytes: orders-0", done.stderr)
