"""Joins columns of pieces row by row into consecutive bytes, without a loop over rows.

record_batch.py describes a record as a sequence of pieces, columns.py a record's headers. Each piece of each row becomes one of
Arrow's binary views: 16 bytes that contain up to 12 bytes, or refer to more bytes in a buffer. Casting the views of any rows to
plain binary then copies every payload once, straight to its place. Nothing here knows what a record is.
Law: the bytes of a row depend on that row alone, so rows may be written in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import INT32_MAX, arrays_of, bytes_array
from spark_kafka_sink.records.varint import Int64Column, encode_varint, zigzag

# The Sender's thread may free what is written here. Arrow's default pool keeps memory that another thread frees: a writer of
# fifty million rows grew by 125 MiB with that pool, and by 65 MiB with this one. The default is faster if one thread does both.
_POOL_FOR_OTHER_THREADS = pa.system_memory_pool()

# Arrow's layout of a view. `data` and `offset` contain its bytes if there are at most 12. Otherwise `data` contains the first 4
# and the index of the buffer that all bytes are in, and `offset` their place in that buffer.
_VIEW = np.dtype([("size", "<i4"), ("data", "<u8"), ("offset", "<u4")])
_OPAQUE_VIEW = np.dtype("V16")  # the same, copied as a whole: ten times as fast as field by field
_BUFFER_INDEX = 2  # of a view seen as four int32
_INLINE_BYTES = 12
MAX_WORD_BYTES = 8  # of numbers in one view, in its `data`; `offset` stays empty
_INT32_PER_VIEW = 4
_NO_VIEWS = np.zeros(0, _OPAQUE_VIEW)


@dataclass(frozen=True, slots=True)
class InterleavedRows:
    """Rows that are ready to be written: all of them, or any consecutive ones."""

    views: NDArray[np.void]  # opaque views[rows, pieces of a row]
    buffers: list[pa.Buffer]  # that views of more than 12 bytes refer to

    def write(
        self, start: int, stop: int, *, is_large: bool = False, memory_pool: pa.MemoryPool = _POOL_FOR_OTHER_THREADS
    ) -> pa.Array:
        """Rows start:stop as binary: an element per piece, so that a row's bytes are consecutive. Set `is_large` beyond 2 GiB."""
        views = self.views[start:stop]
        pieces = pa.Array.from_buffers(pa.binary_view(), views.size, [None, pa.py_buffer(views), *self.buffers], null_count=0)
        return pieces.cast(pa.large_binary() if is_large else pa.binary(), memory_pool=memory_pool)

    def size_bytes(self) -> int:
        return int(self.views.view(_VIEW)["size"].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Payload:
    """A column of bytes: a view for each row, or one for all, and the buffers that views of more than 12 bytes refer to."""

    views: NDArray[np.void]
    buffers: list[pa.Buffer]

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, entries: Int64Column | None = None) -> Payload:
        """A binary or large_binary column, without a copy of its bytes below 2 GiB. It may be a slice; nulls write nothing.

        `entries` names the entry of each row; without it row i has entry i.
        """
        views: list[NDArray[np.void]] = []
        buffers: list[pa.Buffer] = []
        for array in (array for chunk in arrays_of(column) for array in _addressable_parts(chunk)):
            view_array = _trim_start(array).cast(pa.binary_view())
            _, views_buffer, *data_buffers = view_array.buffers()
            views.append(np.frombuffer(views_buffer, _OPAQUE_VIEW, len(array), view_array.offset * _OPAQUE_VIEW.itemsize))
            if buffers:
                views[-1] = _shift_buffer_indexes(views[-1], len(buffers))
            buffers += data_buffers
        all_views = views[0] if len(views) == 1 else np.concatenate([_NO_VIEWS, *views])
        return cls(all_views if entries is None else all_views[entries], buffers)

    @classmethod
    def prefixes(cls, data: bytes, step: int = 1) -> Payload:
        """Entry i consists of the first i * step bytes of `data`. All entries share one copy of it."""
        sizes = np.arange(0, len(data) + 1, step)
        whole_payload = cls.of(bytes_array([data]))
        views = np.repeat(whole_payload.views, len(sizes))
        views.view(_VIEW)["size"] = sizes
        inline_prefixes = [data[:size] for size in sizes if size <= _INLINE_BYTES]
        views[: len(inline_prefixes)] = cls.of(bytes_array(inline_prefixes)).views
        return cls(views, whole_payload.buffers)

    def at(self, entries: NDArray[np.integer]) -> Payload:
        """Row i has entry entries[i]."""
        return Payload(self.views[entries], self.buffers)

    def rows(self, start: int, stop: int) -> Payload:
        return Payload(self.views[start:stop], self.buffers)


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """Up to eight bytes of each row: the first byte lowest in `octets`, and zeros beyond `size`. An int is for all rows."""

    octets: NDArray[np.uint64] | int
    size: Int64Column | int
    max_size: int  # no element of `size` is larger


# One place in every row: the same bytes for all rows, the same number for all, a number per row, or bytes per row.
Piece: TypeAlias = bytes | int | Int64Column | Word | Payload
_ShortPiece: TypeAlias = bytes | int | Int64Column | Word


def interleave(pieces: Sequence[Piece], row_count: int) -> InterleavedRows:
    """Place the pieces of each row side by side, numbers as zigzag varints. Copies no payload of more than 12 bytes."""
    columns: list[NDArray[np.void]] = []
    buffers: list[pa.Buffer] = []
    short_pieces: list[_ShortPiece] = []
    for piece in pieces:
        if not isinstance(piece, Payload):
            short_pieces.append(piece)
            continue
        columns += _number_views(short_pieces, row_count)
        short_pieces = []
        columns.append(_shift_buffer_indexes(piece.views, len(buffers)) if buffers and piece.buffers else piece.views)
        buffers += piece.buffers
    columns += _number_views(short_pieces, row_count)
    columns = columns or [np.zeros(1, _OPAQUE_VIEW)]
    views = np.empty((row_count, len(columns)), _OPAQUE_VIEW)
    for position, column in enumerate(columns):
        views[:, position] = column
    return InterleavedRows(views, buffers)


def join_rows(pieces: Sequence[Piece], row_count: int) -> tuple[Int64Column, pa.Buffer]:
    """Write all pieces of row 0, then all of row 1 …; returns (offsets int64[row_count + 1], data)."""
    rows = interleave(pieces, row_count)
    return row_offsets_and_data(rows.write(0, row_count, is_large=rows.size_bytes() > INT32_MAX), row_count)


def row_offsets_and_data(written_rows: pa.Array, row_count: int) -> tuple[Int64Column, pa.Buffer]:
    """The offsets of the rows in the written bytes, and these bytes."""
    offsets = binary_offsets(written_rows)
    return offsets[:: len(written_rows) // row_count if row_count else 1].astype(np.int64), data_buffer(written_rows)


def binary_offsets(array: pa.Array) -> NDArray[np.int32] | NDArray[np.int64]:
    """The n + 1 offsets of a binary or string array (large or not, slice or not) into its data buffer, without a copy."""
    dtype = _offsets_dtype(array.type)
    if len(array) == 0:
        return np.zeros(1, dtype)  # an empty array may have no buffer at all
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)


def _offsets_dtype(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(np.int64 if kind in (pa.large_binary(), pa.large_string()) else np.int32)


def data_buffer(array: pa.Array) -> pa.Buffer:
    """The bytes of a binary array that is not a slice."""
    return array.buffers()[2] if len(array) else pa.py_buffer(b"")


# PAYLOADS


def _shift_buffer_indexes(views: NDArray[np.void], buffer_count: int) -> NDArray[np.void]:
    fields = views.view(np.int32).reshape(-1, _INT32_PER_VIEW).copy()
    fields[:, _BUFFER_INDEX] += np.where(fields[:, 0] > _INLINE_BYTES, np.int32(buffer_count), np.int32(0))
    return fields.view(_OPAQUE_VIEW)[:, 0]


def _trim_start(payload: pa.Array) -> pa.Array:
    """The same payload, at most 7 rows into its buffers: a cast of a slice allocates views for all rows before the slice."""
    skipped_rows = payload.offset // 8 * 8 if len(payload) else 0  # a validity bitmap has one bit per row
    if not skipped_rows:
        return payload
    validity, offsets, data = payload.buffers()
    if validity is not None:
        validity = validity.slice(skipped_rows // 8)
    offsets = offsets.slice(skipped_rows * _offsets_dtype(payload.type).itemsize)
    return pa.Array.from_buffers(payload.type, len(payload), [validity, offsets, data], offset=payload.offset - skipped_rows)


def _addressable_parts(payload: pa.Array) -> list[pa.Array]:
    """The payload in parts that int32 offsets can address: one part without a copy, or copies if its offsets exceed 2 GiB."""
    offsets = binary_offsets(payload)
    if offsets[-1] <= INT32_MAX:
        return [payload]
    parts = []
    start = 0
    while start < len(payload):
        stop = int(np.searchsorted(offsets, int(offsets[start]) + INT32_MAX, side="right")) - 1
        parts.append(pa.concat_arrays([payload.slice(start, max(stop, start + 1) - start)]))
        start += len(parts[-1])
    return parts


# NUMBERS


def _number_views(short_pieces: Sequence[_ShortPiece], row_count: int) -> list[NDArray[np.void]]:
    """Neighboring numbers and constants, packed into as few views as they need."""
    words: list[Word] = []
    for piece in short_pieces:
        for word in _words(piece):
            if words and words[-1].max_size + word.max_size <= MAX_WORD_BYTES:
                words[-1] = _append_word(words[-1], word)
            else:
                words.append(word)
    columns = []
    for word in words:
        is_constant = isinstance(word.octets, int) and isinstance(word.size, int)
        views = np.zeros(1 if is_constant else row_count, _VIEW)
        views["size"] = word.size
        views["data"] = word.octets
        columns.append(views.view(_OPAQUE_VIEW))
    return columns


def _append_word(word: Word, next_word: Word) -> Word:
    """The bytes of both words as one word. The caller has checked that they fit."""
    octets = _combine_octets(word.octets, _shift_octets(next_word.octets, word.size))
    return Word(octets, word.size + next_word.size, word.max_size + next_word.max_size)


def _combine_octets(octets: NDArray[np.uint64] | int, other_octets: NDArray[np.uint64] | int) -> NDArray[np.uint64] | int:
    """The bytes of both, which are at different places. An int if both are ints."""
    if isinstance(octets, int):
        return other_octets | octets if isinstance(other_octets, int) else other_octets | np.uint64(octets)
    return octets | (np.uint64(other_octets) if isinstance(other_octets, int) else other_octets)


def _shift_octets(octets: NDArray[np.uint64] | int, byte_count: Int64Column | int) -> NDArray[np.uint64] | int:
    """The octets of each row, moved to places `byte_count` higher. An int if both are ints."""
    if isinstance(byte_count, int):
        return octets << 8 * byte_count if isinstance(octets, int) else octets << np.uint64(8 * byte_count)
    bit_counts = (byte_count << 3).view(np.uint64)
    return np.left_shift(np.uint64(octets) if isinstance(octets, int) else octets, bit_counts)


def _words(piece: _ShortPiece) -> list[Word]:
    """A piece as words, each of eight bytes at most; numbers become zigzag varints."""
    if isinstance(piece, Word):
        return [piece]
    if isinstance(piece, np.ndarray):
        return varint_words(piece)
    octets = encode_varint(piece) if isinstance(piece, int) else piece
    chunks = [octets[start : start + MAX_WORD_BYTES] for start in range(0, len(octets), MAX_WORD_BYTES)]
    return [Word(int.from_bytes(chunk, "little"), len(chunk), len(chunk)) for chunk in chunks]


def varint_words(numbers: Int64Column) -> list[Word]:
    """The zigzag varint of each row: one word, or two if a row has more than eight bytes. No words without rows."""
    if not len(numbers):
        return []
    least, greatest = int(numbers.min()), int(numbers.max())
    if least == greatest:  # frequent (lengths of keys, timestamps); the check costs a tenth of encoding
        return _words(least)
    return _varint_words(zigzag(numbers), max(-2 * least - 1, 2 * greatest))


def _varint_words(zigzags: NDArray[np.uint64], greatest: int) -> list[Word]:
    """Seven bits per byte; the top bit tells whether another byte follows. At most ten bytes: eight, and two more."""
    width = max(1, -(-greatest.bit_length() // 7))
    octets, size = zigzags & np.uint64(0x7F), np.ones(len(zigzags), np.int64)
    for byte in range(1, min(width, MAX_WORD_BYTES)):
        has_next_byte = zigzags >= np.uint64(1 << 7 * byte)
        size += has_next_byte
        octets |= has_next_byte.astype(np.uint64) << np.uint64(8 * byte - 1)
        octets |= (zigzags << np.uint64(byte)) & np.uint64(0x7F << 8 * byte)
    if width <= MAX_WORD_BYTES:
        return [Word(octets, size, width)]
    has_next_byte = zigzags >= np.uint64(1 << 7 * MAX_WORD_BYTES)
    octets |= has_next_byte.astype(np.uint64) << np.uint64(8 * MAX_WORD_BYTES - 1)
    [end] = _varint_words(zigzags >> np.uint64(7 * MAX_WORD_BYTES), greatest >> 7 * MAX_WORD_BYTES)
    return [Word(octets, size, MAX_WORD_BYTES), Word(end.octets, np.where(has_next_byte, end.size, 0), end.max_size)]
