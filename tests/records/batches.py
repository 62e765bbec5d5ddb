"""Rows as the tests write them down, made into columns and batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.compression import CODECS, compress, compress_blocks, framed_blocks
from spark_kafka_sink.records.interleave import row_offsets_and_data
from spark_kafka_sink.records.record_batch import EncodedRecords, RecordRows, encode_batch_header, octets
from spark_kafka_sink.records.varint import Int64Column
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


def encode_records(
    columns: RecordColumns,
    offset_deltas: Int64Column,
    timestamp_deltas: Int64Column | int,
    entries: Int64Column | None = None,
) -> EncodedRecords:
    """All rows, or the rows that `entries` names, in that order; entry i of the deltas belongs to row entries[i]."""
    base_bytes = columns.base_bytes if entries is None else columns.base_bytes[entries]
    rows = len(base_bytes)
    written = RecordRows(columns, entries, base_bytes).interleave(0, rows, offset_deltas, timestamp_deltas).write(0, rows)
    offsets, data = row_offsets_and_data(written, rows)
    return EncodedRecords(offsets, octets(data))


def batch_of(
    columns: RecordColumns,
    codec: str = "none",
    level: int | None = None,
    parts: int = 1,
    is_transactional: bool = False,
    **producer_state: Any,
) -> bytes:
    """All rows as one batch; of several `parts` if its records are to be compressed piece by piece."""
    timestamps = np.broadcast_to(np.asarray(columns.timestamps, np.int64), columns.row_count)
    encoded = encode_records(columns, np.arange(columns.row_count), timestamps - timestamps[0])
    if parts == 1:
        records = compress(codec, encoded.data, level)
    else:
        bounds = [len(encoded.data) * part // parts for part in range(parts + 1)]
        blocks = [compress_blocks(codec, encoded.data[start:stop], level) for start, stop in itertools.pairwise(bounds)]
        records = b"".join(framed_blocks(codec, blocks))
    header = encode_batch_header(
        [records],
        record_count=columns.row_count,
        base_timestamp=int(timestamps[0]),
        max_timestamp=int(timestamps.max()),
        codec_id=CODECS[codec].id,
        is_transactional=is_transactional,
        **producer_state,
    )
    return header + records
