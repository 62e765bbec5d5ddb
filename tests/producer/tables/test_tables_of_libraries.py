"""KafkaProducer.send_table with tables of polars and duckdb as they make them, types and layouts and all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import duckdb
import polars as pl
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.producer.tables.written_tables import EXPECTED, MOMENTS, written

SQL = """
    SELECT * FROM (VALUES
        ('k', 'v', 'one', 0, [{key: 'h', value: '1'::BLOB}, {key: 'h', value: NULL}], TIMESTAMPTZ '2024-01-02 03:04:05.678999Z'),
        (NULL, NULL, 'one', NULL, NULL, TIMESTAMPTZ '2024-01-02 00:00:00Z')
    ) AS rows(key, value, topic, partition, headers, timestamp)
"""


def polars_frame() -> pl.DataFrame:
    entry = pl.Struct({"key": pl.String, "value": pl.Binary})
    return pl.DataFrame(
        {
            "key": ["k", None],
            "value": ["v", None],
            "topic": ["one", "one"],
            "partition": [0, None],
            "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
            "timestamp": MOMENTS,
        },
        schema_overrides={"headers": pl.List(entry)},
    )


# POLARS


def test_a_frame_of_polars_is_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    assert written(broker, producer, polars_frame()) == EXPECTED


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["one", "k", "v"]), pl.Binary], ids=str)
def test_categories_and_bytes_of_polars_are_written(broker: FakeBroker, producer: KafkaProducer, kind: Any) -> None:
    parts = ["key", "value"] if kind == pl.Binary else ["key", "value", "topic"]
    frame = polars_frame().with_columns(pl.col(parts).cast(kind))
    assert written(broker, producer, frame) == EXPECTED


def test_a_frame_of_polars_in_many_chunks_is_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    frame = pl.concat([polars_frame().with_columns(pl.col("key", "topic").cast(pl.Categorical))] * 3, rechunk=False)
    assert frame.n_chunks() == 3
    assert [record.value for record in written(broker, producer, frame)] == [b"v", None] * 3


def test_headers_of_polars_in_arrays_of_a_fixed_width(broker: FakeBroker, producer: KafkaProducer) -> None:
    entry = pl.Struct({"key": pl.String, "value": pl.String})
    frame = pl.DataFrame(
        {"value": ["v"], "headers": [[{"key": "h", "value": "1"}]]}, schema={"value": pl.String, "headers": pl.Array(entry, 1)}
    )
    assert written(broker, producer, frame, "two")[0].headers == (("h", b"1"),)


def test_what_polars_has_that_is_no_record_is_an_error(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match=r"column timestamp has type timestamp\[us\]"):
        producer.send_table("one", pl.DataFrame({"value": ["v"], "timestamp": [datetime(2024, 1, 2)]}))
    with pytest.raises(SchemaError, match="column value has type int64"):
        producer.send_table("one", pl.DataFrame({"value": [1]}))
    with pytest.raises(SchemaError, match="cannot be read as columns of Arrow"):
        producer.send_table("one", pl.Series("value", ["v"]))


# DUCKDB


def test_a_relation_of_duckdb_is_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    assert written(broker, producer, duckdb.sql(SQL)) == EXPECTED


def test_a_map_and_an_enum_of_duckdb_are_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    sql = "SELECT 'k'::ENUM('k', 'l') AS key, 'v' AS value, MAP {'h': '1'} AS headers, 'two'::ENUM('two') AS topic"
    (record,) = written(broker, producer, duckdb.sql(sql), "two")
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))


def test_a_long_result_of_duckdb_is_written_in_its_order(broker: FakeBroker, producer: KafkaProducer) -> None:
    """In one batch, up to duckdb 1.2, or in several."""
    relation = duckdb.sql("SELECT range::VARCHAR AS value FROM range(140_000)")
    records = written(broker, producer, relation, "two")
    assert [record.value for record in records] == [b"%d" % number for number in range(140_000)]


def test_text_of_duckdb_in_views_is_written(broker: FakeBroker, producer: KafkaProducer) -> None:
    with duckdb.connect() as connection:
        connection.sql("SET produce_arrow_string_view = true")
        connection.sql("SET arrow_large_buffer_size = true")
        assert written(broker, producer, connection.sql(SQL)) == EXPECTED


def test_what_is_wrong_in_a_query_of_duckdb_is_an_error(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match="column partition has type string; it must be int32"):
        producer.send_table("one", duckdb.sql("SELECT 'v' AS value, '0' AS partition"))
