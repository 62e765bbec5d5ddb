"""Arguments of send_columns and chunks of them for tests, and options of writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.exactly_once.writes import DriverTime
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.write_plan import WritePlan

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns(**fields: Any) -> dict[str, Any]:
    return {"topic": "t", "key": None, "partition": None, "headers": None, "timestamp": None} | fields


def not_utf8(*cells: bytes | None) -> pa.Array:
    """A string column of any bytes: Spark's cast(binary AS string) does not check them."""
    octets = pa.array(cells, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(octets), octets.buffers())


def chunk_of(table: pa.Table, mapping: RowMapping, first: int = 0) -> Chunk:
    """The table's rows as SparkRows makes them, whose numbers begin with `first`."""
    return Chunk(mapping.columns(table), range(first, first + table.num_rows), table.nbytes)


def sink_options(producer: Mapping[str, object] | None = None, **attributes: Any) -> SinkOptions:
    """Options of a write: those of the producer by their keys, those of the sink by attribute."""
    return SinkOptions(**attributes, producer=ProducerConfig.from_mapping({"bootstrap.servers": "a:1"} | dict(producer or {})))


def write_plan(mapping: RowMapping, options: SinkOptions) -> WritePlan:
    return WritePlan(mapping, options, is_stream=False, planned_at=DriverTime("host", 0))
