"""Spark's from_avro reads what was written with a registry's schemas, after the frame.

In a Spark of its own, as the jar must be there when it starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.schemas.fake_registry import FakeRegistry
from tests.spark_connector import fetch_spark_avro

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    **{
        "id": pa.int64(),
        "name": pa.string(),
        "amount": pa.decimal128(12, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
    },
    **{"tags": pa.list_(pa.string()), "counts": pa.map_(pa.string(), pa.int32()), "inner": pa.struct([("x", pa.float64())])},
}
ORDER = pa.struct(list(FIELDS.items()))
JSON_ROWS = [
    {
        **{"id": 1, "name": "Ürün", "amount": 12.34, "day": "1969-12-31", "at": "2024-02-29T01:02:03.456Z"},
        **{"tags": ["a", None, ""], "counts": {"x": 1, "y": None}, "inner": {"x": 0.5}},
    },
    {"id": -(2**63), "tags": [], "counts": {}, "inner": {"x": -1.5}},
]
PROGRAM = """
    import json, sys
    from pyspark.sql import SparkSession
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import col, to_json

    jars, schema, *values = sys.argv[1:]
    settings = {"spark.jars": jars, "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    frame = spark.createDataFrame([(bytearray.fromhex(each),) for each in values], "value binary").coalesce(1)
    payload = col("value").substr(6, 1_000_000)  # after the magic byte and the id
    rows = frame.select(to_json(from_avro(payload, schema)).alias("row")).collect()
    print(json.dumps([json.loads(each.row) for each in rows]))
"""

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"orders": 1}) as broker:
        yield broker


def from_avro(schema: str, values: list[bytes | None]) -> Any:
    jars = ",".join(str(jar) for jar in fetch_spark_avro().glob("*.jar"))
    hexadecimal = [value.hex() for value in values if value is not None]
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), jars, schema, *hexadecimal]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_from_avro_reads_what_stands_behind_the_frame(broker: FakeBroker) -> None:
    rows = pa.array([_typed(row) for row in JSON_ROWS], ORDER)
    with FakeRegistry() as registry:
        options = {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": registry.url, "value.serializer": "avro"}
        with KafkaProducer(options) as producer:
            producer.send_columns("orders", value=rows)
        (schema,) = registry.texts("orders-value")
    assert from_avro(schema, broker.values("orders")) == JSON_ROWS


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    typed = dict(row)
    if "amount" in row:
        typed |= {"amount": Decimal(str(row["amount"])), "day": date.fromisoformat(row["day"])}
        typed["at"] = datetime.fromisoformat(row["at"])
    return typed
