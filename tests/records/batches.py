"""Rows as the tests write them down, made into columns and batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.compression import CODECS, compress
from spark_kafka_sink.records.record_batch import encode_batch_header, encode_records
from tests.records.reference import DecodedRecord

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns_of(rows: Sequence[DecodedRecord]) -> RecordColumns:
    timestamps: pa.Array | int = pa.array([row.timestamp for row in rows], pa.int64())
    if {row.timestamp for row in rows} == {-1}:
        timestamps = -1
    return record_columns(
        value=pa.array([row.value for row in rows], pa.binary()),
        key=pa.array([row.key for row in rows], pa.binary()),
        headers=pa.array([row.headers for row in rows], HEADERS),
        timestamps=timestamps,
    )


def batch_of(
    columns: RecordColumns, codec: str = "none", level: int | None = None, is_transactional: bool = False, **producer_state: int
) -> bytes:
    """All rows as one batch."""
    timestamps = np.broadcast_to(np.asarray(columns.timestamps, np.int64), columns.rows)
    encoded = encode_records(columns, np.arange(columns.rows), timestamps - timestamps[0])
    records = compress(codec, encoded.data, level)
    header = encode_batch_header(
        [records],
        record_count=columns.rows,
        base_timestamp=int(timestamps[0]),
        max_timestamp=int(timestamps.max()),
        codec_id=CODECS[codec].id,
        is_transactional=is_transactional,
        **producer_state,
    )
    return header + records
