"""Splits encoded records into new batches, without the columns that they were encoded from.

A record begins with its length, attributes, timestamp delta and offset delta, most of which depend on its batch. `read_records`
removes these fields, for all rows at once; `SplittableRecords.encode` writes new ones. Keys, values and headers are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.records.interleave import Payload, binary_offsets, join_rows
from spark_kafka_sink.records.record_batch import EncodedRecords, octets
from spark_kafka_sink.records.varint import Int64Column, varint_sizes

_ATTRIBUTES = b"\0"


@dataclass(frozen=True, slots=True)
class SplittableRecords:
    """Records without their first fields. `tails` begin at the key length; timestamp deltas count from the old batch's base."""

    timestamp_deltas: Int64Column
    tails: pa.Array  # binary

    def encode(self, start: int, stop: int) -> EncodedRecords:
        """Records start:stop, as the first records of a batch whose base timestamp is that of record `start`."""
        tails = self.tails.slice(start, stop - start)
        offset_deltas = np.arange(stop - start, dtype=np.int64)
        timestamp_deltas = self.timestamp_deltas[start:stop] - self.timestamp_deltas[start]
        tail_sizes = np.diff(binary_offsets(tails)).astype(np.int64)
        body_bytes = len(_ATTRIBUTES) + varint_sizes(timestamp_deltas) + varint_sizes(offset_deltas) + tail_sizes
        offsets, data = join_rows([body_bytes, _ATTRIBUTES, timestamp_deltas, offset_deltas, Payload.of(tails)], stop - start)
        return EncodedRecords(offsets, octets(data))


def read_records(raw: bytes | memoryview, sizes: NDArray[np.int32]) -> SplittableRecords:
    """Read the uncompressed records of one batch, below 2 GiB. Raises ProtocolError if `sizes` do not add up to `raw`."""
    data = np.frombuffer(raw, np.uint8)
    stops = np.cumsum(sizes, dtype=np.int64)
    if len(data) != (int(stops[-1]) if len(stops) else 0):
        raise ProtocolError(f"a batch of {len(data)} bytes cannot be split: its records should add up to {stops[-1:]} bytes")
    positions = stops - sizes
    _, positions = _read_varints(data, positions)  # length
    timestamp_deltas, positions = _read_varints(data, positions + len(_ATTRIBUTES))
    _, positions = _read_varints(data, positions)  # offset delta
    in_tail = np.zeros(len(data) + 1, np.int8)
    in_tail[positions] += 1
    np.subtract.at(in_tail, stops, 1)
    tail_bytes = data[np.cumsum(in_tail[:-1], dtype=np.int8).view(np.bool_)]
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(stops - positions, out=offsets[1:])
    return SplittableRecords(
        timestamp_deltas, pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(tail_bytes)])
    )


def _read_varints(data: NDArray[np.uint8], positions: Int64Column) -> tuple[Int64Column, Int64Column]:
    """The varint at each position, and the position after each. One step per byte of the longest varint."""
    zigzags = np.zeros(len(positions), np.uint64)
    next_positions = positions.copy()
    unfinished_rows = np.arange(len(positions))
    for byte_index in range(10):
        next_bytes = data[next_positions[unfinished_rows]]
        zigzags[unfinished_rows] |= (next_bytes & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte_index)
        next_positions[unfinished_rows] += 1
        unfinished_rows = unfinished_rows[next_bytes >= 0x80]
        if len(unfinished_rows) == 0:
            break
    values = (zigzags >> np.uint64(1)).view(np.int64) ^ -(zigzags & np.uint64(1)).view(np.int64)
    return values, next_positions
