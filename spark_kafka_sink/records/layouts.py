"""Arrow's layouts of the same values: joins pieces, picks rows, decodes dictionaries and extensions, takes lists and maps apart.

Arrow joins no dictionaries that differ, and picks no rows of string views. It refuses to cast or view a nested column whose
nulls stand for fields that are not nullable, as they do below each null struct.
Law: no other module joins, casts or picks rows of columns that may be nested. This one rebuilds them from their parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import INT32_MAX, arrays_of, number_array, numbers_of
from spark_kafka_sink.records.varint import Int64Column

AnyColumn: TypeAlias = pa.Array | pa.ChunkedArray


def is_any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda each: any(test(each) for test in tests)


is_list = is_any_of(
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view
)
is_string = is_any_of(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
is_binary = is_any_of(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


# TYPES


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary or an extension type; any other type as it is."""
    while True:
        if pa.types.is_dictionary(data_type):
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        else:
            return data_type


def have_same_values(data_type: pa.DataType, other: pa.DataType) -> bool:
    """Whether columns of both types mean the same by the same numbers and bytes: time zones, names of items, nullability and the
    layout may differ."""
    if data_type == other:
        return True
    pair = data_type, other = plain_type(data_type), plain_type(other)
    if all(map(pa.types.is_struct, pair)):
        fields, other_fields = list(data_type), list(other)
        return [field.name for field in fields] == [field.name for field in other_fields] and all(
            have_same_values(field.type, other_field.type) for field, other_field in zip(fields, other_fields, strict=True)
        )
    if all(map(is_list, pair)):
        return have_same_values(data_type.value_type, other.value_type)
    if all(map(pa.types.is_map, pair)):
        return have_same_values(data_type.key_type, other.key_type) and have_same_values(data_type.item_type, other.item_type)
    if all(map(pa.types.is_timestamp, pair)):
        return data_type.unit == other.unit and (data_type.tz is None) == (other.tz is None)
    return data_type == other or all(map(is_string, pair)) or all(map(is_binary, pair))


def _is_movable(data_type: pa.DataType) -> bool:
    """Whether Arrow can join columns of this type and pick their rows."""
    if pa.types.is_struct(data_type):
        return all(_is_movable(field.type) for field in data_type)
    if is_list(data_type):
        return _is_movable(data_type.value_type)
    if pa.types.is_map(data_type):
        return _is_movable(data_type.key_type) and _is_movable(data_type.item_type)
    is_view = pa.types.is_string_view(data_type) or pa.types.is_binary_view(data_type)
    return not is_view and data_type == plain_type(data_type)


# PIECES AND ROWS


def contiguous(column: AnyColumn) -> pa.Array:
    """The column in one chunk. If it has several, it is a copy, in which dictionaries are decoded."""
    return concatenate(column.chunks, column.type) if isinstance(column, pa.ChunkedArray) else column


def in_one_piece(column: AnyColumn) -> AnyColumn:
    """The column in one chunk if its bytes fit. Call it before several `take_rows`: each would join the chunks."""
    return contiguous(column) if bytes_of(column) <= INT32_MAX else column


def concatenate(arrays: list[pa.Array], data_type: pa.DataType) -> pa.Array:
    """The rows of all arrays, which have this type; a copy, in which dictionaries are decoded, unless there is one array only."""
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays([_movable(array) for array in arrays]) if arrays else pa.nulls(0, data_type)


def take_rows(column: AnyColumn, indices: NDArray[np.integer]) -> AnyColumn:
    """The rows in `indices`, in that order: a copy; or slices, if Arrow cannot copy the chunks, which exceed 2 GiB together."""
    if not _is_movable(column.type):
        pieces = [_movable(array) for array in arrays_of(column) or [pa.nulls(0, column.type)]]
        column = pieces[0] if len(pieces) == 1 else pa.chunked_array(pieces)
    try:
        return column.take(number_array(indices))
    except pa.ArrowInvalid:
        runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
        slices = [column.slice(int(rows[0]), len(rows)) for rows in runs if len(rows)]
        return pa.chunked_array([array for part in slices for array in arrays_of(part)], column.type)


def bytes_of(column: AnyColumn) -> int:
    """The column's size in bytes; for views, which older versions of pyarrow cannot measure, the size of its buffers."""
    try:
        size_bytes: int = column.nbytes
    except pa.ArrowTypeError:
        size_bytes = column.get_total_buffer_size()
    return size_bytes


# VALUES


def plain_column(column: pa.Array) -> pa.Array:
    """The values that a dictionary or an extension stands for. Columns in the column stay as they are."""
    while True:
        if isinstance(column, pa.DictionaryArray):
            column = _addressable_values(_movable(column.dictionary)).take(column.indices)
        elif isinstance(column, pa.ExtensionArray):
            column = column.storage
        else:
            return column


def _addressable_values(values: pa.Array) -> pa.Array:
    """Use 64-bit offsets: a column that repeats its values may have more than 2 GiB."""
    if pa.types.is_string(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary(values.type) else values


def _movable(column: pa.Array) -> pa.Array:
    """The same values in a layout that Arrow can join and pick rows of: no dictionaries, extensions or views at any depth."""
    if _is_movable(column.type):
        return column
    column = plain_column(column)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        return column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    is_null = column.is_null()
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        fields = column.flatten()  # null where the struct is, which may hide an index without an entry
        return pa.StructArray.from_arrays([_movable(each) for each in fields], names, mask=is_null)
    if not pa.types.is_nested(column.type):
        return column
    counts, entries = entries_of(column)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if pa.types.is_map(column.type):
        keys, items = map(_movable, entries.flatten())
        return pa.MapArray.from_arrays(number_array(offsets.astype(np.int32)), keys, items, mask=is_null)
    return pa.LargeListArray.from_arrays(number_array(offsets), _movable(entries), mask=is_null)


def entries_of(column: pa.Array) -> tuple[Int64Column, pa.Array]:
    """The number of entries in each row of a list or map, and the entries of all rows; a map's entries are structs."""
    if pa.types.is_map(column.type):
        entries = pa.StructArray.from_arrays(column.values.flatten(), ["key", "value"])
        validity_and_offsets = column.buffers()[:2]
        column = pa.ListArray.from_buffers(
            pa.list_(entries.type), len(column), validity_and_offsets, column.null_count, column.offset, [entries]
        )
    counts = numbers_of(pc.list_value_length(column), at_null=0).astype(np.int64)
    return counts, column.flatten()
