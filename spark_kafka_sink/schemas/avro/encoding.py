"""What all of Avro's types have in common when a column of them is encoded: pieces for each row, and rows that are refused.

An `Encoding` says how the values of a column become pieces of rows (records/interleave.py). `encode_rows` joins the pieces, one
block of rows at a time, so that its intermediate results fit into the CPU's cache.
Law: a row whose value is null has no bytes of that value in any piece, whatever Arrow's buffers contain there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import INT32_MAX, bools_of, bytes_array
from spark_kafka_sink.records.interleave import (
    MAX_WORD_BYTES,
    Payload,
    Piece,
    Word,
    interleave,
    row_offsets_and_data,
    varint_words,
)
from spark_kafka_sink.records.layouts import bytes_of, plain_column
from spark_kafka_sink.records.varint import Int64Column

# Rows in a block: larger blocks are not faster, smaller blocks are slower. Long arrays need memory for each item, so a block of
# large rows has fewer of them.
MAX_BLOCK_ROWS = 16_384
MAX_BLOCK_BYTES = 8 << 20
MIN_BLOCK_ROWS = 256

MAX_PATH_CHARACTERS = 500  # the names in a schema may be long, and each field has the names of all records around it in its path

Mask: TypeAlias = NDArray[np.bool_]


def path_below(path: str, field_name: str) -> str:
    """The path of a field of the record at `path`. Of a long one, the middle is left out."""
    field_path = f"{path}.{field_name}" if path else field_name
    half = MAX_PATH_CHARACTERS // 2
    return field_path if len(field_path) <= MAX_PATH_CHARACTERS else f"{field_path[:half]}…{field_path[-half:]}"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a column of one type becomes bytes. `path`: its name in refusals, from the encoded column downwards: "address.zip"."""

    path: str

    def pieces(self, column: pa.Array, present: Mask | None, refusals: Refusals) -> list[Piece]:
        """The pieces of each row for this column, which has at least one row.

        Args:
            present: rows that have a value here or a null, as opposed to those whose parent is null. None: all.
            refusals: gets the rows that cannot be encoded. Their pieces may be anything.
        """
        column = plain_column(column)
        valid = validity(column)
        if valid is not None:
            missing = ~valid if present is None else present & ~valid
            refusals.add(missing, self.path, "it is null, which the schema does not allow")
        return self.value_pieces(column, valid, refusals)

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        """The pieces of each row that has a value; a null gives no bytes. `valid`: the rows that have a value; None: all."""
        raise NotImplementedError

    def refuse(self, is_refused: Mask, valid: Mask | None, refusals: Refusals, reason: str) -> None:
        """Add to `refusals` the rows that have a value and are to be refused."""
        refusals.add(is_refused if valid is None else is_refused & valid, self.path, reason)

    def byte_matrix(self, column: pa.Array) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """uint8[rows, bytes of each]: what `pieces` describe, in one step. None if rows may differ in size, or some are null."""
        return None


# REFUSALS


@dataclass(slots=True)
class Refusals:
    """Rows that cannot be encoded, each with the field and the reason."""

    entries: list[tuple[Int64Column, str, str]] = field(default_factory=list)  # rows by position, field, reason

    def add(self, is_refused: Mask, path: str, reason: str) -> None:
        if is_refused.any():
            self.entries.append((np.flatnonzero(is_refused), path, reason))

    def add_items(self, items: Refusals, ends: Int64Column) -> None:
        """Add refused items of lists, each as a refusal of its row. `ends`: where the items of each row end."""
        for positions, path, reason in items.entries:
            self.entries.append((np.unique(np.searchsorted(ends, positions, side="right")), path, reason))

    def add_block(self, block: Refusals, start: int) -> None:
        self.entries += [(rows + start, path, reason) for rows, path, reason in block.entries]

    def rows(self) -> Int64Column:
        return np.concatenate([np.zeros(0, np.int64), *(rows for rows, _, _ in self.entries)])


# COLUMNS


def validity(column: pa.Array) -> Mask | None:
    """Where the column has values; None if it has no nulls."""
    return bools_of(column.is_valid()) if column.null_count else None


# PIECES


def varints(numbers: Int64Column, valid: Mask | None) -> list[Piece]:
    """The zigzag varint of each valid row, nothing in the others."""
    if valid is None:
        return [numbers]
    first, *more = varint_words(np.where(valid, numbers, 0))
    return [replace(first, size=first.size * valid), *more]


def constant(octets: bytes, present: Mask | None) -> list[Piece]:
    """The same bytes in each row that is present."""
    if len(octets) > MAX_WORD_BYTES:
        both = Payload.of(bytes_array([b"", octets], pa.large_binary()))
        return [both.at(np.ones(1, np.int64) if present is None else present.astype(np.int64))]  # one view serves all rows
    if present is None:
        return [octets]
    word = np.uint64(int.from_bytes(octets, "little"))
    return [Word(present * word, present * np.int64(len(octets)), len(octets))]


# ROWS


class RowBytes(NamedTuple):
    """The encoded values of a column, one after the other. Row i is data[offsets[i]:offsets[i + 1]]."""

    offsets: Int64Column
    data: pa.Buffer


def encode_rows(encoding: Encoding, column: pa.Array, refusals: Refusals) -> RowBytes:
    """The bytes of each row; a refused row has none."""
    byte_matrix = encoding.byte_matrix(column)
    if byte_matrix is not None:
        return RowBytes(np.arange(len(byte_matrix) + 1) * byte_matrix.shape[1], pa.py_buffer(byte_matrix))
    block_row_count = _block_row_count(column)
    starts = range(0, len(column), block_row_count)
    return join_encoded([_encode_block(encoding, column.slice(start, block_row_count), refusals, start) for start in starts])


def _block_row_count(column: pa.Array) -> int:
    if len(column) <= MIN_BLOCK_ROWS:
        return MIN_BLOCK_ROWS
    usual_row_count: int = MAX_BLOCK_BYTES * len(column) // max(1, bytes_of(column))
    return min(MAX_BLOCK_ROWS, max(MIN_BLOCK_ROWS, usual_row_count))


def join_encoded(blocks: list[RowBytes]) -> RowBytes:
    """The rows of all blocks, one block after the other."""
    if len(blocks) == 1:
        return blocks[0]
    sizes = [np.diff(block.offsets) for block in blocks]
    data = pa.py_buffer(b"".join(block.data for block in blocks))
    return RowBytes(offsets_of(np.concatenate([np.zeros(0, np.int64), *sizes])), data)


def _encode_block(encoding: Encoding, block: pa.Array, refusals: Refusals, start: int) -> RowBytes:
    block_refusals = Refusals()
    rows = interleave(encoding.pieces(block, present=None, refusals=block_refusals), len(block))
    if block_refusals.entries:
        rows.views.view(np.int64).reshape(len(rows.views), -1)[block_refusals.rows()] = 0  # they have no bytes
        refusals.add_block(block_refusals, start)
    is_large = rows.size_bytes() > INT32_MAX
    row_array = rows.write(0, len(block), is_large=is_large, memory_pool=pa.default_memory_pool())
    return RowBytes(*row_offsets_and_data(row_array, len(block)))


def offsets_of(sizes: Int64Column) -> Int64Column:
    """Where each of these begins if they follow one another, and where the last one ends."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
