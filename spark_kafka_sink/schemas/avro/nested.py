"""Columns that contain columns: records, arrays, maps, and unions with null."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.interleave import Payload, Piece, Word
from spark_kafka_sink.records.layouts import entries_of, plain_column
from spark_kafka_sink.records.varint import Int64Column, encode_varint
from spark_kafka_sink.schemas.avro.encoding import (
    Encoding,
    Mask,
    Refusals,
    RowBytes,
    constant,
    encode_rows,
    offsets_of,
    validity,
    varints,
)

# RECORDS


@dataclass(frozen=True, slots=True)
class RecordEncoding(Encoding):
    """Writes a record: the fields one after the other, in the schema's order."""

    fields: tuple[tuple[int | None, Encoding], ...]  # with the position of each field's column in the struct; None: no column

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        children = column.flatten()  # null where the struct is
        pieces: list[Piece] = []
        for position, encoding in self.fields:
            pieces += encoding.pieces(column if position is None else children[position], valid, refusals)
        return pieces


# UNIONS


@dataclass(frozen=True, slots=True)
class BranchEncoding(Encoding):
    """Writes a union without null: always the branch that the column fits."""

    branch: int
    value: Encoding

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        return [*constant(encode_varint(self.branch), valid), *self.value.value_pieces(column, valid, refusals)]

    def byte_matrix(self, column: pa.Array) -> NDArray[np.uint8] | None:
        values = self.value.byte_matrix(column)
        if values is None:
            return None
        branch = np.frombuffer(encode_varint(self.branch), np.uint8)
        return np.hstack([np.broadcast_to(branch, (len(values), len(branch))), values])


@dataclass(frozen=True, slots=True)
class NullableEncoding(BranchEncoding):
    """Writes a union with null: the branch null where the column is null, else the other branch."""

    null_branch: int

    def pieces(self, column: pa.Array, present: Mask | None, refusals: Refusals) -> list[Piece]:
        column = plain_column(column)
        valid = validity(column)
        if valid is None:
            return self.value_pieces(column, None, refusals)
        branches = np.where(valid, self.branch, self.null_branch)
        return [*varints(branches, present), *self.value.value_pieces(column, valid, refusals)]


# ARRAYS AND MAPS


@dataclass(frozen=True, slots=True)
class ArrayEncoding(Encoding):
    """Writes an array or a map as one block: the number of items, the items, and a count of 0. An empty array has that 0 alone.
    A map's items are entries."""

    items: Encoding

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        counts, items = entries_of(column)  # the items follow one another; null rows have none
        if not len(items):
            return varints(counts, valid)
        offsets = offsets_of(counts)
        item_refusals = Refusals()
        item_bytes = encode_rows(self.items, items, item_refusals)
        refusals.add_items(item_refusals, offsets[1:])
        return [*varints(counts, valid), _items_of_rows(item_bytes, offsets), Word(0, (counts > 0).astype(np.int64), 1)]


def _items_of_rows(item_bytes: RowBytes, offsets: Int64Column) -> Payload:
    """Return for each row the bytes of its items, which follow one another."""
    buffer = pa.py_buffer(item_bytes.offsets[offsets])
    return Payload.of(pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, buffer, item_bytes.data]))
