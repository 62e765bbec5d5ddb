"""`KafkaProducer.send_table` against a real broker: what other clients read of tables of polars, duckdb and pandas."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaError, KafkaProducer
from tests.integration.reading import ReadTopic, Topic

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
MOMENT_MS = 1_767_323_045_678
ROWS = 50_000


def polars_table() -> Any:
    numbers = pl.DataFrame({"number": range(ROWS)}).select(pl.col("number").cast(pl.String))
    return numbers.select(
        key=pl.lit("k").cast(pl.Categorical),
        value=pl.col("number"),
        partition=pl.lit(1),
        headers=pl.concat_list(pl.struct(key=pl.lit("of"), value=pl.lit("polars").cast(pl.Binary))),
        timestamp=pl.lit(MOMENT),
    )


def duckdb_table() -> Any:
    return duckdb.sql(
        "SELECT 'k' AS key, range::VARCHAR AS value, 1 AS partition, MAP {'of': 'duckdb'} AS headers,"
        f" TIMESTAMPTZ '{MOMENT.isoformat()}' AS timestamp FROM range({ROWS})"
    )


def pandas_table() -> Any:
    pd = pytest.importorskip("pandas", reason="pip install pandas")
    values = [str(number) for number in range(ROWS)]
    headers = [[{"key": "of", "value": b"pandas"}]] * ROWS
    return pd.DataFrame({"key": "k", "value": values, "partition": 1, "headers": headers, "timestamp": MOMENT})


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
@pytest.mark.parametrize("make", [polars_table, duckdb_table, pandas_table])
def test_other_clients_read_the_rows_of_a_table(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, make: Callable[[], Any], client: str
) -> None:
    name, library = topic(partitions=2), make.__name__.partition("_")[0]
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"}) as producer:
        delivery = producer.send_table(name, make())
    assert delivery.result(0).acknowledged == ROWS
    records = read_topic(name, client)
    assert [record.value for record in records] == [b"%d" % number for number in range(ROWS)]
    parts = {(each.partition, each.key, each.timestamp, *each.headers) for each in records}
    assert parts == {(1, b"k", MOMENT_MS, ("of", library.encode()))}


def test_readers_of_committed_records_see_whole_tables_only(broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    name = topic()
    schema = pa.schema([("value", pa.string())])

    def half_a_table() -> Any:
        yield pa.record_batch({"value": ["half"]})
        raise ZeroDivisionError("no more rows")

    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"T-{uuid.uuid4().hex}"}
    with KafkaProducer(options) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_table(name, pl.DataFrame({"value": ["a", "b"]}))
        with pytest.raises(KafkaError, match="no more rows"), producer.transaction():
            producer.send_table(name, pa.RecordBatchReader.from_batches(schema, half_a_table()))
        with producer.transaction():
            producer.send_table(name, pl.DataFrame({"value": ["c"]}))
    assert [record.value for record in read_topic(name, isolation_level="read_committed")] == [b"a", b"b", b"c"]
