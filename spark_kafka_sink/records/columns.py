"""The columns of a call or a bundle, checked once and prepared for encoding.

`record_columns` takes columns as Arrow has them: slices, chunks, strings, nulls whose slots contain any bytes. It returns one
binary column per payload, over the same buffers, and the length of each row. The value column may consist of chunks, as Spark's
batches do after they were gathered. record_batch.py writes the rows; murmur2.py hashes the keys.
Law: a row is null if and only if its length is -1. record_batch.py relies on that; murmur2.py reads the validity bitmap instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.records.arrays import INT32_MAX, arrays_of, nulls_of, numbers_of
from spark_kafka_sink.records.interleave import Payload, binary_offsets, join_rows
from spark_kafka_sink.records.layouts import contiguous, entries_of, in_one_piece, is_list, plain_column, plain_type, take_rows
from spark_kafka_sink.records.varint import Int64Column, varint_sizes

NO_TIMESTAMP = -1  # in a batch whose records have no timestamps
NULL_LENGTH = -1  # in a record, in place of the length of a null key, value or header value
ATTRIBUTES_BYTES = 1  # of the first field after a record's length
NO_HEADERS = b"\0"  # a count of 0
_NO_LENGTHS = np.zeros(0, np.int64)

_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_PAYLOAD_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view(), *_TEXT_TYPES)

Column: TypeAlias = pa.Array | pa.ChunkedArray | None


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """The rows of a call or a bundle, or some of them, as columns: one for each part of a record, with `row_count` rows. A column
    that is None is null in every row, or was left out by `without_payloads`."""

    row_count: int
    key: pa.Array | None  # binary or large_binary, may be a slice
    value: pa.Array | pa.ChunkedArray | None
    headers: pa.Array | None  # binary: each row's header count and headers as a record writes them; None if no row has any
    timestamps: Int64Column | int  # ms since 1970-01-01 UTC; an int is for all rows
    key_lengths: Int64Column | int  # bytes, or NULL_LENGTH; an int is for all rows
    value_lengths: Int64Column | int
    base_bytes: Int64Column  # bytes of each record that do not depend on its batch: all but length, timestamp and offset delta

    def __len__(self) -> int:
        return self.row_count

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Rows start:stop, over the same memory."""
        start, stop, _ = slice(start, stop).indices(self.row_count)
        row_count = max(0, stop - start)
        return self._map(
            row_count, lambda column: column.slice(start, row_count), lambda numbers: numbers[start : start + row_count]
        )

    def in_one_piece(self) -> RecordColumns:
        """The same rows, the values in one chunk if they fit. Call it before several `take`: each would join the chunks."""
        return self if self.value is None else replace(self, value=in_one_piece(self.value))

    def without_payloads(self) -> RecordColumns:
        """The same lengths and timestamps, which are all that is reported of rows that were sent."""
        return replace(self, key=None, value=None, headers=None)

    def take(self, indices: NDArray[np.integer]) -> RecordColumns:
        """The rows in `indices`, in that order."""
        return self._map(len(indices), lambda column: take_rows(column, indices), lambda numbers: numbers[indices])

    def _map(self, row_count: int, pick: Callable[[Any], Any], pick_ints: Callable[[Int64Column], Int64Column]) -> RecordColumns:
        key, value, headers = (None if column is None else pick(column) for column in (self.key, self.value, self.headers))
        timestamps, key_lengths, value_lengths = (
            column if isinstance(column, int) else pick_ints(column)
            for column in (self.timestamps, self.key_lengths, self.value_lengths)
        )
        return RecordColumns(row_count, key, value, headers, timestamps, key_lengths, value_lengths, pick_ints(self.base_bytes))


def record_columns(
    value: Column,
    key: Column = None,
    headers: Column = None,
    timestamps: pa.Array | pa.ChunkedArray | Int64Column | int = NO_TIMESTAMP,
    default_timestamp: int = NO_TIMESTAMP,
    row_count: int | None = None,
) -> RecordColumns:
    """Check columns and prepare them for encoding. Never blocks, and usually copies no payload.

    Args:
        value, key: binary or string in any of Arrow's layouts; a null-typed column, or None, is null in every row.
        headers: list<struct<key: string, value: binary>> in any of Arrow's layouts, or map<string, binary | string>. Order and
            duplicates are kept; a null list counts as empty. Encoded here, all rows at once.
        timestamps: int64 milliseconds since 1970-01-01 UTC, or one int for all rows, which is not checked.
        default_timestamp: milliseconds, for rows whose timestamp is null.
        row_count: needed only when value, key and headers are all None.

    Raises:
        SchemaError: a column has a type that is not listed above, or columns differ in length.
        InvalidRecordError: a header without a key, or a negative timestamp in a column; names the first such row.
        ValueError: there is neither a column nor a row_count.
    """
    if row_count is None:
        row_count = next((len(column) for column in (value, key, headers) if column is not None), None)
    if row_count is None:
        raise ValueError("row_count is needed when there is no column")
    for name, column in (("value", value), ("key", key), ("headers", headers)):
        if column is not None and len(column) != row_count:
            raise SchemaError(f"column {name} has {len(column)} rows where {row_count} are expected; pass columns of one length")
    keys, values = binary_column("key", key), binary_column("value", value)
    if keys is not None:
        keys = contiguous(keys)
    encoded_headers = _encode_headers(headers, row_count)
    key_lengths, value_lengths = (_one_if_equal(lengths_of(column)) for column in (keys, values))
    return RecordColumns(
        row_count=row_count,
        key=keys,
        value=values,
        headers=encoded_headers,
        timestamps=_timestamps(timestamps, default_timestamp, row_count),
        key_lengths=key_lengths,
        value_lengths=value_lengths,
        base_bytes=_base_bytes(key_lengths, value_lengths, encoded_headers, row_count),
    )


def binary_column(name: str, column: Column) -> Column:
    """The column as binary or large_binary, over the same bytes; other layouts are converted. None if the column's type is null.

    Raises SchemaError, with the column's `name`, for a type that is neither binary nor string.
    """
    if column is None or pa.types.is_null(column.type):
        return None
    if not is_payload(column.type):
        remedy = nested_remedy(name) if pa.types.is_nested(column.type) else "cast it before writing"
        raise SchemaError(f"column {name} has type {column.type}; it must be binary or string: {remedy}")
    if pa.types.is_dictionary(column.type):  # decoded, it may be larger than int32 offsets can address
        decoded_arrays = [plain_column(array).cast(pa.large_binary()) for array in arrays_of(column)]
        return pa.chunked_array(decoded_arrays, pa.large_binary()) if isinstance(column, pa.ChunkedArray) else decoded_arrays[0]
    is_large = column.type not in (pa.binary(), pa.string()) or column.nbytes > INT32_MAX
    return column.cast(pa.large_binary() if is_large else pa.binary())


def nested_remedy(name: str) -> str:
    """What to do with keys or values, by the column's name, that are structs, lists or maps."""
    return f"encode it before sending, for example as JSON, or set {name}.serializer=avro"


def is_payload(kind: pa.DataType) -> bool:
    """Whether a column of this type can be keys, values or header values: binary or string, in any of Arrow's layouts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in _PAYLOAD_TYPES or bool(pa.types.is_fixed_size_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    return kind in _TEXT_TYPES


def texts(column: pa.Array) -> list[Any]:
    """The cells of a string column, with bytes that are not UTF-8 escaped (`\\xff`); the cells of other columns unchanged.

    A string column may contain any bytes: Spark's cast(binary AS string) does not check. Arrow's own to_pylist would raise.
    """
    column = plain_column(column)
    if not is_text(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    cells = column.cast(pa.large_binary()).to_pylist()
    return [cell if cell is None else cell.decode("utf-8", "backslashreplace") for cell in cells]


def lengths_of(payload: Column) -> Int64Column | int:
    """Bytes of each row of a binary column, NULL_LENGTH for a null; the int NULL_LENGTH for all rows when the column is None."""
    if payload is None:
        return NULL_LENGTH
    lengths: Int64Column = np.concatenate([_NO_LENGTHS, *(np.diff(binary_offsets(piece)) for piece in arrays_of(payload))])
    if payload.null_count:
        lengths[nulls_of(payload)] = NULL_LENGTH
    return lengths


def _one_if_equal(lengths: Int64Column | int) -> Int64Column | int:
    """One int if all rows have the same length, as ids and hashes do: one number is gathered, measured and encoded then."""
    if isinstance(lengths, int) or len(lengths) == 0 or (lengths != lengths[0]).any():
        return lengths
    return int(lengths[0])


def _base_bytes(
    key_lengths: Int64Column | int, value_lengths: Int64Column | int, headers: pa.Array | None, row_count: int
) -> Int64Column:
    headers_sizes = len(NO_HEADERS) if headers is None else np.diff(binary_offsets(headers))
    sizes: Int64Column = np.full(row_count, ATTRIBUTES_BYTES, np.int64) + headers_sizes
    for lengths in (key_lengths, value_lengths):
        sizes += varint_sizes(lengths)
        sizes += np.maximum(lengths, 0)
    return sizes


def _timestamps(column: pa.Array | pa.ChunkedArray | Int64Column | int, default: int, row_count: int) -> Int64Column | int:
    if isinstance(column, int):
        return column
    if len(column) != row_count:
        raise SchemaError(f"column timestamp has {len(column)} rows where {row_count} are expected; pass columns of one length")
    if isinstance(column, np.ndarray):
        return _refuse_negative(column)
    if pa.types.is_null(column.type):
        return default
    if not pa.types.is_int64(column.type):
        raise SchemaError(f"column timestamp has type {column.type}; it must be int64, milliseconds since 1970-01-01 UTC")
    timestamps = _refuse_negative(numbers_of(column, at_null=0))
    if column.null_count == 0:
        return timestamps
    return np.where(nulls_of(column), default, timestamps)


def _refuse_negative(timestamps: Int64Column) -> Int64Column:
    if timestamps.min(initial=0) < 0:
        row = int(np.argmax(timestamps < 0))
        raise InvalidRecordError(f"row {row}: timestamp {timestamps[row]} is negative; it must be at least 0, or null", row=row)
    return timestamps


# HEADERS


def _encode_headers(column: Column, row_count: int) -> pa.Array | None:
    """Each row's header count and headers, as a record writes them; None if no row has any."""
    joined_headers = join_headers(column, row_count)
    if joined_headers is None:
        return None
    _refuse_null_header_keys(joined_headers)
    return _binary_array(*join_rows([joined_headers.counts, Payload.of(joined_headers.headers)], row_count))


@dataclass(frozen=True, slots=True, eq=False)
class JoinedHeaders:
    """The headers of each row as a record writes them, without their count."""

    counts: Int64Column
    headers: pa.Array  # binary: as many headers in each row as `counts` says
    key_lengths: Int64Column | int  # of each header; NULL_LENGTH for a header without a key


def join_headers(column: Column, row_count: int) -> JoinedHeaders | None:
    """None if no row has headers. Nested columns are flattened, encoded and grouped by row; null lists count as empty.

    Raises SchemaError for a type that `record_columns` does not list.
    """
    if column is None or pa.types.is_null(column.type):
        return None
    counts, keys, values = header_entries(column)
    cumulative_counts = np.zeros(row_count + 1, np.int64)
    np.cumsum(counts, out=cumulative_counts[1:])
    if cumulative_counts[-1] == 0:
        return None
    key, value = binary_column("headers", keys), binary_column("headers", values)
    key_lengths = lengths_of(key)
    pieces = [key_lengths, *_payloads(key), lengths_of(value), *_payloads(value)]
    offsets, data = join_rows(pieces, int(cumulative_counts[-1]))
    return JoinedHeaders(counts, _binary_array(offsets[cumulative_counts], data), key_lengths)


def header_entries(column: pa.Array | pa.ChunkedArray) -> tuple[Int64Column, pa.Array, pa.Array]:
    """How many headers each row has, then the keys and the values of all headers, in the order of the rows.

    Raises SchemaError for a type that cannot be headers.
    """
    if not is_headers(column.type):
        raise SchemaError(f"column headers has type {column.type}; it must be list<struct<key: string, value: binary>>")
    counts, entries = entries_of(plain_column(contiguous(column)))
    if pa.types.is_null(entries.type):
        return counts, entries, entries
    entries = plain_column(entries)
    fields = dict(zip((field.name.lower() for field in entries.type), entries.flatten(), strict=True))
    return counts, fields["key"], fields["value"]


def _payloads(column: Column) -> list[Payload]:
    return [] if column is None else [Payload.of(column)]


def is_headers(kind: pa.DataType) -> bool:
    """Whether a column of this type can be headers: a map, or a list of structs whose fields are `key` and `value`, in upper or
    lower case, as in Spark. A list of nulls has no fields."""
    kind = plain_type(kind)
    types = []
    if pa.types.is_map(kind):
        types = [("key", kind.key_type), ("value", kind.item_type)]
    elif is_list(kind):
        entry = plain_type(kind.value_type)
        if pa.types.is_null(entry):
            return True
        types = [(field.name.lower(), field.type) for field in entry] if pa.types.is_struct(entry) else []
    names = sorted(name for name, _ in types)
    return names == ["key", "value"] and all(is_payload(part) or pa.types.is_null(part) for _, part in types)


def _refuse_null_header_keys(joined_headers: JoinedHeaders) -> None:
    cumulative_counts = np.cumsum(joined_headers.counts)
    is_null = np.broadcast_to(np.asarray(joined_headers.key_lengths), cumulative_counts[-1]) == NULL_LENGTH
    if is_null.any():
        row = int(np.searchsorted(cumulative_counts, np.argmax(is_null), side="right"))
        raise InvalidRecordError(f"row {row}: a header has no key; every header needs one: leave it out or name it", row=row)


def _binary_array(offsets: Int64Column, data: pa.Buffer) -> pa.Array:
    is_large = int(offsets[-1]) > INT32_MAX
    kind, dtype = (pa.large_binary(), np.int64) if is_large else (pa.binary(), np.int32)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets.astype(dtype)), data])
