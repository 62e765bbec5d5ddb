"""Columns → Avro's binary form, one value per row. `resolve_column` in resolution.py makes encoders.

What is written is what fastavro and Java write for the same values: each array and each map is one block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.arrays import INT32_MAX, arrays_of, bitmap, nulls_of
from spark_kafka_sink.records.interleave import Piece
from spark_kafka_sink.records.layouts import bytes_of, concatenate, plain_column
from spark_kafka_sink.records.varint import Int64Column
from spark_kafka_sink.schemas.avro.encoding import (
    MAX_BLOCK_BYTES,
    MAX_BLOCK_ROWS,
    Encoding,
    Mask,
    Refusals,
    RowBytes,
    constant,
    encode_rows,
    join_encoded,
    validity,
)


class UnencodableRows(NamedTuple):
    """Rows that cannot be encoded for one reason."""

    rows: Int64Column  # positions in the column, ascending
    field: str  # below the column: "address.zip", "tags[*]"; empty for the column itself
    reason: str  # "it is null, which the schema does not allow"; no data of the row, but what is no symbol of an enum


class EncodedColumn(NamedTuple):
    """An encoded column. `values` has as many rows as the column. A row is null if the column's row is null or is refused."""

    values: pa.Array  # binary, or large_binary beyond 2 GiB
    refused_rows: list[UnencodableRows]  # each row is in one of them at most


@dataclass(frozen=True, slots=True)
class AvroEncoder:
    """Encodes columns of one type by one schema. Plain data, which tasks get by pickle."""

    type: pa.DataType
    encoding: Encoding

    def encode(self, column: pa.Array | pa.ChunkedArray, prefix: bytes = b"") -> EncodedColumn:
        """The bytes of each row, after `prefix`. Never blocks. A row that cannot be encoded does not affect the others.

        Needs memory for the result, and for the arrays and maps of a few thousand rows at a time. The column's type has the same
        values as `type`.
        """
        framed_encoding = _FramedEncoding("", prefix, self.encoding)
        refusals = Refusals()
        encoded_chunks: list[RowBytes] = []
        null_masks = [np.zeros(0, np.bool_)]
        start = 0
        for chunk in _join_small_chunks(column):
            chunk_refusals = Refusals()
            encoded_chunks.append(encode_rows(framed_encoding, chunk, chunk_refusals))
            refusals.add_block(chunk_refusals, start)
            null_masks.append(nulls_of(chunk))
            start += len(chunk)
        return _encoded_column(join_encoded(encoded_chunks), np.concatenate(null_masks), _rows_by_reason(refusals))


@dataclass(frozen=True, slots=True)
class _FramedEncoding(Encoding):
    """Writes the prefix of the frame and the value; nothing for a row that is null."""

    prefix: bytes
    value: Encoding

    def pieces(self, column: pa.Array, present: Mask | None, refusals: Refusals) -> list[Piece]:  # noqa: ARG002
        column = plain_column(column)
        valid = validity(column)
        return [*constant(self.prefix, valid), *self.value.value_pieces(column, valid, refusals)]


def _join_small_chunks(column: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """The chunks, with small neighbors joined: the work for a chunk takes as long as that for hundreds of rows."""
    waiting_chunks: list[pa.Array] = []
    row_count = size_bytes = 0
    for chunk in map(plain_column, arrays_of(column)):
        row_count, size_bytes = row_count + len(chunk), size_bytes + bytes_of(chunk)
        if waiting_chunks and (row_count > MAX_BLOCK_ROWS or size_bytes > MAX_BLOCK_BYTES):
            yield concatenate(waiting_chunks, column.type)
            waiting_chunks, row_count, size_bytes = [], len(chunk), bytes_of(chunk)
        waiting_chunks.append(chunk)
    if waiting_chunks:
        yield concatenate(waiting_chunks, column.type)


def _rows_by_reason(refusals: Refusals) -> list[UnencodableRows]:
    """The refused rows by field and reason; each row only with its first reason."""
    rows_by_reason: dict[tuple[str, str], list[Int64Column]] = {}
    for rows, path, reason in refusals.entries:
        rows_by_reason.setdefault((path, reason), []).append(rows)
    return list(each_row_once(UnencodableRows(np.concatenate(rows), *key) for key, rows in rows_by_reason.items()))


def each_row_once(refused_rows: Iterable[UnencodableRows]) -> Iterator[UnencodableRows]:
    """The same rows, each with the first reason that it has."""
    reasons = list(refused_rows)
    counts = [len(each.rows) for each in reasons]
    rows, places = np.unique(np.concatenate([np.zeros(0, np.int64), *(each.rows for each in reasons)]), return_index=True)
    reason_numbers = np.repeat(np.arange(len(reasons)), counts)[places]  # of each row's first place
    for number, each in enumerate(reasons):
        if (reason_numbers == number).any():
            yield each._replace(rows=rows[reason_numbers == number])


def _encoded_column(row_bytes: RowBytes, is_null: Mask, refused_rows: list[UnencodableRows]) -> EncodedColumn:
    for each in refused_rows:
        is_null[each.rows] = True
    is_large = int(row_bytes.offsets[-1]) > INT32_MAX
    kind, dtype = (pa.large_binary(), np.int64) if is_large else (pa.binary(), np.int32)
    validity_buffer = bitmap(~is_null) if is_null.any() else None
    offsets = pa.py_buffer(row_bytes.offsets.astype(dtype))
    return EncodedColumn(pa.Array.from_buffers(kind, len(is_null), [validity_buffer, offsets, row_bytes.data]), refused_rows)
