"""RecordBatch v2: the size of each row, the bytes of all rows, and the header before them.

    Record =>                               RecordBatch =>
      length          varint                  the 61 bytes of HEADER below
      attributes      int8 = 0                records, one after the other: plain, or compressed as one
      timestampDelta  varlong
      offsetDelta     varint                Offset and timestamp deltas count from the batch's first record; timestamp deltas
      keyLength       varint, -1 null       may be negative. The length counts what follows it. All varints are zigzag.
      key             bytes                 Source: DefaultRecord and DefaultRecordBatch of the Java client.
      valueLength     varint, -1 null
      value           bytes
      headers         varint count, then keyLength key valueLength value each (columns.py writes them)

The RecordAccumulator computes sizes first, divides rows into batches, then encodes all rows of a slice at once; the Sender adds
the header when the sequence number is known. This module knows neither which rows share a batch nor where its bytes are stored.
Law: record_sizes says exactly what RecordRows writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.records.arrays import INT32_MAX
from spark_kafka_sink.records.columns import ATTRIBUTES_BYTES, NO_HEADERS, NULL_LENGTH, RecordColumns
from spark_kafka_sink.records.crc32c import ByteBuffer, crc32c
from spark_kafka_sink.records.interleave import InterleavedRows, Payload, Piece, interleave
from spark_kafka_sink.records.varint import Int64Column, varint_sizes

BATCH_HEADER_BYTES = 61
MAX_RECORD_OVERHEAD_BYTES = 21  # length 5, attributes 1, timestamp delta 10, offset delta 5
NO_SEQUENCE = -1

_RECORD_ATTRIBUTES = b"\0"  # no flag is defined

# COUNTING


def size_upper_bounds(columns: RecordColumns) -> Int64Column:
    """The most bytes that a batch with only this row takes; Kafka's producer compares this with max.request.size."""
    return columns.base_bytes + (BATCH_HEADER_BYTES + MAX_RECORD_OVERHEAD_BYTES - ATTRIBUTES_BYTES)


def record_sizes(base_bytes: Int64Column, offset_deltas: Int64Column | int, timestamp_deltas: Int64Column | int) -> Int64Column:
    """Exact bytes of each row at the given deltas."""
    body_bytes = _body_bytes(base_bytes, offset_deltas, timestamp_deltas)
    return body_bytes + varint_sizes(body_bytes)


def _body_bytes(base_bytes: Int64Column, offset_deltas: Int64Column | int, timestamp_deltas: Int64Column | int) -> Int64Column:
    """The value of a record's length field."""
    return base_bytes + varint_sizes(offset_deltas) + varint_sizes(timestamp_deltas)


# ENCODING


class EncodedRecords(NamedTuple):
    """Encoded records in one buffer. Row i is data[offsets[i]:offsets[i + 1]]; consecutive rows can be a batch's records."""

    offsets: Int64Column
    data: memoryview


class RecordRows:
    """Rows in the order in which they are written. All is prepared except the deltas, which depend on their batches."""

    def __init__(self, columns: RecordColumns, row_order: Int64Column | None, base_bytes: Int64Column) -> None:
        self._base_bytes = base_bytes  # of each row, in the order in which they are written
        self._row_order = row_order  # for each row its index in the columns; None: all rows in their order
        self._key_lengths, self._key = self._ordered_column(columns.key_lengths, columns.key)
        self._value_lengths, self._value = self._ordered_column(columns.value_lengths, columns.value)
        self._headers = NO_HEADERS if columns.headers is None else Payload.of(columns.headers, row_order)

    def _ordered_column(self, lengths: Int64Column | int, payload: pa.Array | None) -> tuple[Int64Column | int, Payload | None]:
        if payload is None:
            return NULL_LENGTH, None
        ordered_lengths = lengths if isinstance(lengths, int) or self._row_order is None else lengths[self._row_order]
        return ordered_lengths, Payload.of(payload, self._row_order)

    def interleave(
        self, start: int, stop: int, offset_deltas: Int64Column, timestamp_deltas: Int64Column | int
    ) -> InterleavedRows:
        """Rows start:stop, with their deltas. Raises RecordTooLargeError for a row above 2 GiB, the format's limit."""
        body_bytes = _body_bytes(self._base_bytes[start:stop], offset_deltas, timestamp_deltas)
        if body_bytes.max(initial=0) > INT32_MAX:
            largest = int(body_bytes.argmax())
            row = start + largest if self._row_order is None else int(self._row_order[start + largest])
            raise RecordTooLargeError(
                f"row {row}: a record of {body_bytes[largest]} bytes exceeds the format's limit of {INT32_MAX}; make it smaller",
                row=row,
            )
        pieces: list[Piece] = [body_bytes, _RECORD_ATTRIBUTES, timestamp_deltas, offset_deltas]
        for lengths, payload in ((self._key_lengths, self._key), (self._value_lengths, self._value)):
            pieces.append(lengths if isinstance(lengths, int) else lengths[start:stop])
            if payload is not None:
                pieces.append(payload.rows(start, stop))
        pieces.append(self._headers if isinstance(self._headers, bytes) else self._headers.rows(start, stop))
        return interleave(pieces, stop - start)


def octets(data: pa.Buffer) -> memoryview:
    """The buffer as unsigned bytes. Arrow's bytes are signed, and cannot be copied to a buffer of unsigned ones."""
    return memoryview(data).cast("B")


# HEADER

_UNCHECKED_FIELDS = struct.Struct(
    ">"  # not covered by the checksum
    "q"  # base offset: 0, the broker assigns it
    "i"  # batch length: the bytes after this field
    "i"  # partition leader epoch: -1, the broker fills it in
    "b"  # magic: 2
    "I"  # CRC-32C of everything after this field
)
_CHECKED_FIELDS = struct.Struct(
    ">"
    "h"  # attributes: codec, timestamp type, transactional, control
    "i"  # last offset delta: records - 1
    "q"  # base timestamp: that of the first record, not the smallest
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
)
_LENGTH_OVERHEAD_BYTES = BATCH_HEADER_BYTES - 12  # base offset 8 and the length itself 4 are not counted
_LEADER_EPOCH = -1
_MAGIC = 2
_TRANSACTIONAL_FLAG = 0x10  # attributes: bits 0-2 codec, 3 timestamp type (0: set by the producer), 4 transactional, 5 control


def encode_batch_header(
    records: Sequence[ByteBuffer],
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec_id: int = 0,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytes:
    """The 61 bytes before `records`, which are one batch's records as they are sent (compressed with codec_id), in any pieces.

    Timestamps are milliseconds; base_timestamp is the base of the timestamp deltas. Reads every byte of the records once, for the
    checksum.
    """
    attributes = codec_id | (_TRANSACTIONAL_FLAG if is_transactional else 0)
    checked_fields = _CHECKED_FIELDS.pack(
        attributes, record_count - 1, base_timestamp, max_timestamp, *identity, base_sequence, record_count
    )
    crc = crc32c(checked_fields)
    size = 0
    for buffer in records:
        crc = crc32c(buffer, crc)
        size += len(buffer)
    return _UNCHECKED_FIELDS.pack(0, _LENGTH_OVERHEAD_BYTES + size, _LEADER_EPOCH, _MAGIC, crc) + checked_fields
