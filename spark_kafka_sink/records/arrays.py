"""Arrow's arrays from Python's values and numpy's, and back, without pandas.

Arrow imports pandas, where it is installed, in a process's first call of pa.array, pa.scalar or to_numpy, and where a function of
pyarrow.compute gets a Python value. That takes up to 0.6 s. In an exit handler it fails, since Python starts no threads then.
Law: neither these functions nor the way of a row to the brokers makes Arrow import pandas. Only Avro serializers leave objects to
pa.array, and have pandas imported before: when the producer is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

INT32_MAX = 2**31 - 1  # binary arrays and views have int32 offsets; larger results are written as large_binary
_LARGE_TYPES = (pa.large_binary(), pa.large_string())

# TO ARROW


def number_array(numbers: NDArray[Any], is_null: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as an array over the same memory, of their own type; null where `is_null` says so."""
    numbers = np.ascontiguousarray(numbers)
    buffers = [None if is_null is None else bitmap(~is_null), pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def int64_array(values: Sequence[int | None]) -> pa.Array:
    """Raises OverflowError for a number that is no int64."""
    numbers = np.array([value or 0 for value in values], np.int64)
    return number_array(numbers, np.array([value is None for value in values], np.bool_))


def bool_array(mask: NDArray[np.bool_]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bitmap(mask)])


def bitmap(mask: NDArray[np.bool_]) -> pa.Buffer:
    """One bit per row, as Arrow has booleans and what is valid."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def bytes_array(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """A column of bytes. `kind`: of the array, binary or string, large or not; by default binary, beyond 2 GiB large_binary."""
    data, validity = BytesIO(), None  # not b"".join: in new memory of that size it takes three times as long
    try:
        data.writelines(values)  # type: ignore[arg-type]
    except TypeError:  # for a None
        validity = bitmap(np.array([value is not None for value in values], np.bool_))
        data, values = BytesIO(), [b"" if value is None else value for value in values]
        data.writelines(values)  # type: ignore[arg-type]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])  # type: ignore[arg-type]
    if kind is None:
        kind = pa.large_binary() if offsets[-1] > INT32_MAX else pa.binary()
    offsets_dtype = np.int64 if kind in _LARGE_TYPES else np.int32
    buffers = [validity, pa.py_buffer(offsets.astype(offsets_dtype)), pa.py_buffer(data.getbuffer())]
    return pa.Array.from_buffers(kind, len(values), buffers)


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """A column of strings. Raises UnicodeEncodeError for a text that UTF-8 cannot encode."""
    return bytes_array([None if text is None else text.encode() for text in texts], pa.string())


def scalar(value: bool | int | str | bytes) -> pa.Scalar:
    """A value as functions of pyarrow.compute take it; a whole number is an int64."""
    if isinstance(value, bool):
        return bool_array(np.array([value]))[0]
    if isinstance(value, int):
        return number_array(np.array([value], np.int64))[0]
    return text_array([value])[0] if isinstance(value, str) else bytes_array([value])[0]


def header_array(rows: Sequence[Sequence[tuple[str | None, bytes | None]]]) -> pa.Array:
    """A column of headers, of type map<string, binary>. Surrogate escapes in a key become the bytes that they stand for. Raises
    pyarrow.ArrowInvalid for a header without a key."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), out=offsets[1:])
    keys = [None if key is None else key.encode("utf-8", "surrogateescape") for headers in rows for key, _ in headers]
    values = [value for headers in rows for _, value in headers]
    return pa.MapArray.from_arrays(number_array(offsets), bytes_array(keys, pa.string()), bytes_array(values, pa.binary()))


# TO NUMPY


def arrays_of(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def numbers_of(column: pa.Array | pa.ChunkedArray, at_null: int | None = None) -> NDArray[Any]:
    """The numbers of a column, without a copy if it is in one piece. Where the column is null: `at_null`, or any number if it is
    None. Dates and times are ints."""
    pieces = [_numbers_of_piece(piece) for piece in arrays_of(column)]
    numbers = pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, _number_dtype(column.type)), *pieces])
    if at_null is None or not column.null_count:
        return numbers
    return np.where(nulls_of(column), numbers.dtype.type(at_null), numbers)


def _numbers_of_piece(array: pa.Array) -> NDArray[Any]:
    dtype = _number_dtype(array.type)
    if not len(array):
        return np.zeros(0, dtype)  # an empty array may have no buffer at all
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _number_dtype(kind: pa.DataType) -> np.dtype[Any]:
    code = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"<{code}{kind.bit_width // 8}")


def bools_of(column: pa.Array | pa.ChunkedArray, *, at_null: bool = False) -> NDArray[np.bool_]:
    """The truth values of a boolean column, as a copy; `at_null` where it is null."""
    values = [np.zeros(0, np.bool_), *(_bits(piece, 1) for piece in arrays_of(column))]
    bools: NDArray[np.bool_] = np.concatenate(values)
    if column.null_count:
        bools[nulls_of(column)] = at_null
    return bools


def nulls_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Whether each row is null. Unions, dictionaries and other types whose nulls are not all in one bitmap work too."""
    return bools_of(column.is_null())


def _bits(array: pa.Array, buffer_index: int) -> NDArray[np.bool_]:
    if not len(array):
        return np.zeros(0, np.bool_)
    octets = np.frombuffer(array.buffers()[buffer_index], np.uint8)
    return np.unpackbits(octets, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)
