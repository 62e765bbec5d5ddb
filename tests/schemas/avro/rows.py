"""What fastavro writes for the rows of a column: the other encoder, row by row."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from spark_kafka_sink.schemas.avro_encoder import AvroEncoder, EncodedColumn
from spark_kafka_sink.schemas.avro_schema import parse_schema
from spark_kafka_sink.schemas.resolution import resolve_column


def encoder_for(type: pa.DataType, schema: Any, truncates_timestamps: bool = False) -> AvroEncoder:
    parsed = parse_schema(json.dumps(schema))
    encoder, problems = resolve_column(type, parsed, column_name="value", truncates_timestamps=truncates_timestamps)
    assert problems == []
    return encoder


def problems_of(type: pa.DataType, schema: Any, column_name: str = "value") -> list[str]:
    return resolve_column(type, parse_schema(json.dumps(schema)), column_name=column_name, truncates_timestamps=False)[1]


def encoded(column: pa.Array | pa.ChunkedArray, schema: Any, prefix: bytes = b"") -> list[bytes | None]:
    """Each row's bytes, none of which may be refused."""
    result: EncodedColumn = encoder_for(column.type, schema).encode(column, prefix)
    assert result.refused_rows == []
    result.values.validate(full=True)
    return result.values.to_pylist()


def written_by_fastavro(rows: list[Any], schema: Any) -> list[bytes | None]:
    """None for a row that is None."""
    parsed = fastavro.parse_schema(schema)
    return [None if row is None else _written(row, parsed) for row in rows]


def _written(row: Any, parsed: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, row)
    return stream.getvalue()
