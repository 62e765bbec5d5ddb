"""record_columns accepts what Arrow hands over, refuses what cannot be a record, and copies no payload on the usual way."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.records import columns as columns_module
from spark_kafka_sink.records.columns import NO_TIMESTAMP, NULL_LENGTH, RecordColumns, record_columns
from tests.records.batches import HEADERS, batch_of
from tests.records.reference import DecodedRecord, decode_batch

TEXTS = ["a", None, "", "schlüssel", "a", "0123456789abcdef" * 4]
BYTES = [None if text is None else text.encode() for text in TEXTS]
STRUCT = HEADERS.value_type
Headers = list[tuple[str, bytes | None]]


def rows_of(columns: RecordColumns) -> list[DecodedRecord]:
    return decode_batch(batch_of(columns)).records


def values_of(columns: RecordColumns) -> list[bytes | None]:
    return [row.value for row in rows_of(columns)]


def headers_of(headers: pa.Array | pa.ChunkedArray) -> list[Headers]:
    return [row.headers for row in rows_of(record_columns(None, headers=headers))]


LAYOUTS = {
    "binary": pa.array(BYTES, pa.binary()),
    "string": pa.array(TEXTS, pa.string()),
    "large_binary": pa.array(BYTES, pa.large_binary()),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "binary_view": pa.array(BYTES, pa.binary_view()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "dictionary": pa.array(TEXTS, pa.string()).dictionary_encode(),
    "slice": pa.array(["before", *TEXTS, "after"], pa.string()).slice(1, len(TEXTS)),
    "large slice": pa.array(["before", *TEXTS, "after"], pa.large_string()).slice(1, len(TEXTS)),
    "one chunk": pa.chunked_array([pa.array(TEXTS, pa.string())]),
    "chunks": pa.chunked_array([pa.array(TEXTS[:2], pa.string()), pa.array([], pa.string()), pa.array(TEXTS[2:], pa.string())]),
    "large chunks": pa.chunked_array([pa.array(TEXTS[:4], pa.large_string()), pa.array(TEXTS[4:], pa.large_string())]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_rows_as_key_and_as_value(layout: str) -> None:
    columns = record_columns(value=LAYOUTS[layout], key=LAYOUTS[layout])
    assert [(row.key, row.value) for row in rows_of(columns)] == list(zip(BYTES, BYTES, strict=True))


def test_fixed_size_binary_gives_the_same_rows() -> None:
    assert values_of(record_columns(pa.array([b"abc", None, b"xyz"], pa.binary(3)))) == [b"abc", None, b"xyz"]


@pytest.mark.parametrize("column", [None, pa.nulls(3), pa.nulls(3, pa.binary()), pa.chunked_array([pa.nulls(3)])])
def test_a_column_without_values_is_null_in_every_row(column: Any) -> None:
    assert rows_of(record_columns(column, key=column, row_count=3)) == [DecodedRecord(NO_TIMESTAMP, None, None)] * 3


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_payloads_keep_their_memory(kind: pa.DataType) -> None:
    column = pa.array(["some", "text"], pa.string()).cast(kind)
    value: pa.Array = record_columns(column).value
    assert value.buffers()[2].address == column.buffers()[2].address


def test_values_in_pieces_stay_where_they_are_and_keys_become_one() -> None:
    column = pa.chunked_array([pa.array(TEXTS[:2], pa.string()), pa.array(TEXTS[2:], pa.string())])
    columns = record_columns(column, key=column)
    assert isinstance(columns.value, pa.ChunkedArray)
    addresses = [[piece.buffers()[2].address for piece in each.chunks] for each in (columns.value, column)]
    assert addresses[0] == addresses[1]
    assert isinstance(columns.key, pa.BinaryArray)
    whole = columns.in_one_piece()
    assert isinstance(whole.value, pa.BinaryArray)
    assert rows_of(whole) == rows_of(columns)


def test_stray_bytes_under_a_null_are_not_written() -> None:
    garbage = pa.Array.from_buffers(
        pa.binary(),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 9, 10], np.int32)), pa.py_buffer(b"abGARBAGEc")],  # bits 101
    )
    rows = rows_of(record_columns(value=garbage, key=garbage))
    assert [(row.key, row.value) for row in rows] == [(b"ab", b"ab"), (None, None), (b"c", b"c")]


def test_an_empty_column_gives_no_rows() -> None:
    assert record_columns(pa.array([], pa.string())).row_count == 0
    assert record_columns(pa.chunked_array([], pa.string()), headers=pa.chunked_array([], HEADERS)).row_count == 0


def test_chunks_too_large_for_int32_offsets_become_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "INT32_MAX", 10)
    columns = record_columns(LAYOUTS["chunks"])
    assert columns.value is not None
    assert columns.value.type == pa.large_binary()
    assert values_of(columns) == BYTES


def test_headers_too_large_for_int32_offsets_become_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "INT32_MAX", 10)
    columns = record_columns(None, headers=pa.array([[("name", b"0123456789")], None], HEADERS))
    assert columns.headers is not None
    assert columns.headers.type == pa.large_binary()
    assert [row.headers for row in rows_of(columns)] == [[("name", b"0123456789")], []]


@pytest.mark.slow  # decodes two columns of two GiB
def test_a_dictionary_column_may_decode_to_more_than_int32_offsets_reach() -> None:
    """A column of two GiB with one value took a few bytes as it came, and ended in ArrowInvalid when it was decoded."""
    rows = 2**11 + 2
    entry = bytes(range(256)) * 4096  # 1 MiB
    for name in ("value", "key"):
        encoded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([entry], pa.binary()))
        columns = record_columns(**{"value": None, name: encoded})
        column, lengths = getattr(columns, name), getattr(columns, f"{name}_lengths")
        assert column.type == pa.large_binary()
        assert lengths == len(entry)
        assert column[rows - 1].as_py() == entry
        del columns, column


def test_the_length_of_rows_of_one_length_is_one_number() -> None:
    columns = record_columns(pa.chunked_array([[b"ab", b"cd"], [b"ef"]]), key=pa.array(["x", None, "y"]))
    assert columns.value_lengths == 2
    assert isinstance(columns.key_lengths, np.ndarray)
    assert [(row.key, row.value) for row in rows_of(columns)] == [(b"x", b"ab"), (None, b"cd"), (b"y", b"ef")]
    assert [(row.key, row.value) for row in rows_of(columns.take(np.array([2, 0])))] == [(b"y", b"ef"), (b"x", b"ab")]
    only_nulls = record_columns(pa.array([b"", b""]), key=pa.nulls(2, pa.binary()))
    assert (only_nulls.value_lengths, only_nulls.key_lengths) == (0, NULL_LENGTH)
    assert [(row.key, row.value) for row in rows_of(only_nulls)] == [(None, b"")] * 2


def test_a_dictionary_with_a_null_entry_gives_null_rows() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), pa.array([b"a", None]))
    pieces = pa.chunked_array([encoded[:2], encoded[2:]])
    for column in (encoded, pieces):
        columns = record_columns(column, key=column)
        assert [(row.key, row.value) for row in rows_of(columns)] == [(None, None), (b"a", b"a"), (None, None), (None, None)]


def test_headers_may_be_dictionary_encoded() -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array([b"1", None, b"1"]).dictionary_encode()], ["key", "value"]
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), entries)
    assert headers_of(headers) == [[("a", b"1"), ("b", None)], [("a", b"1")]]


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.binary()), pa.struct([("a", pa.binary())]), pa.float64()])
def test_other_types_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"\[KAFKA_INVALID_SCHEMA\] column key has type"):
        record_columns(pa.array(["v"]), key=pa.array([None], kind))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(SchemaError, match="column key has 2 rows where 1 are expected"):
        record_columns(pa.array(["v"]), key=pa.array(["a", "b"]))
    with pytest.raises(SchemaError, match="column timestamp has 2 rows where 1 are expected"):
        record_columns(pa.array(["v"]), timestamps=pa.array([1, 2]))


def test_without_any_column_the_rows_must_be_told() -> None:
    with pytest.raises(ValueError, match="row_count is needed"):
        record_columns(None)


# TIMESTAMPS


@pytest.mark.parametrize(
    ("given_timestamps", "expected"),
    [
        (5, [5, 5, 5]),
        (pa.array([7, 0, 9]), [7, 0, 9]),
        (np.array([7, 0, 9]), [7, 0, 9]),
        (pa.array([None, 8, None], pa.int64()), [99, 8, 99]),
        (pa.chunked_array([[None, 8], [1]], pa.int64()), [99, 8, 1]),
        (pa.array([0, None, 8, None, 0], pa.int64()).slice(1, 3), [99, 8, 99]),
        (pa.nulls(3, pa.int64()), [99, 99, 99]),
        (pa.nulls(3), [99, 99, 99]),
    ],
)
def test_timestamps_are_given_or_the_default(given_timestamps: Any, expected: list[int]) -> None:
    columns = record_columns(pa.nulls(3), timestamps=given_timestamps, default_timestamp=99)
    assert [row.timestamp for row in rows_of(columns)] == expected


@pytest.mark.parametrize("timestamps", [pa.array([1, None, -5]), np.array([1, 2, -5])])
def test_a_negative_timestamp_is_refused_with_its_row(timestamps: Any) -> None:
    with pytest.raises(InvalidRecordError, match=r"\[KAFKA_INVALID_RECORD\] row 2: timestamp -5 is negative"):
        record_columns(pa.nulls(3), timestamps=timestamps)


def test_timestamps_of_another_type_are_refused() -> None:
    with pytest.raises(SchemaError, match="column timestamp has type"):
        record_columns(pa.nulls(1), timestamps=pa.array([1], pa.timestamp("ms")))


# HEADERS

ROWS: list[Headers | None] = [
    [("b", b"2"), ("a", b"1"), ("b", b"3")],
    None,
    [],
    [("null", None), ("empty", b""), ("", b"no name")],
    [("ключ-\N{KEY}", "значение".encode())],
]
EXPECTED = [row or [] for row in ROWS]


@pytest.mark.parametrize(
    "headers",
    [
        pa.array(ROWS, HEADERS),
        pa.array(ROWS, pa.large_list(STRUCT)),
        pa.array(ROWS, pa.map_(pa.string(), pa.binary())),
        pa.array([[("x", b"y")], *ROWS, [(None, b"outside the slice")]], HEADERS).slice(1, 5),
        pa.chunked_array([pa.array(ROWS[:1], HEADERS), pa.array(ROWS[1:], HEADERS)]),
        pa.array(ROWS, pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))),
        pa.array(
            [None if row is None else [{"value": value, "key": key} for key, value in row] for row in ROWS],
            pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        ),
    ],
    ids=["list", "large_list", "map", "slice", "chunks", "large payloads", "value before key"],
)
def test_headers_keep_order_duplicates_and_nulls(headers: pa.Array) -> None:
    assert headers_of(headers) == EXPECTED


def test_text_may_hold_any_bytes_as_key_value_and_key_of_a_header() -> None:
    """Spark hands over strings that nobody has checked to be UTF-8."""
    octets = pa.array([b"\xff\xfe\x80", b"\xc3"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, octets.buffers())
    headers = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text, text)
    raw = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), octets, octets)
    expected = record_columns(octets, octets, raw)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        columns = record_columns(text.cast(kind), text.cast(kind), headers)
        assert columns.headers == expected.headers
        assert (columns.key.cast(pa.binary()), columns.value.cast(pa.binary())) == (expected.key, expected.value)


def test_a_map_of_strings_gives_headers() -> None:
    assert headers_of(pa.array([[("a", "x"), ("b", None)]], pa.map_(pa.string(), pa.string()))) == [[("a", b"x"), ("b", None)]]


def test_entries_under_a_null_list_are_not_written() -> None:
    entries = pa.array([("a", b"1"), ("hidden", b"2"), ("b", b"3")], STRUCT)
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([False, True, False]))
    assert headers_of(headers) == [[("a", b"1")], [], [("b", b"3")]]


def test_the_fields_of_a_header_are_found_in_any_case() -> None:
    kind = pa.list_(pa.struct([("KEY", pa.string()), ("Value", pa.binary())]))
    column = pa.array([[{"KEY": "a", "Value": b"1"}]], kind)
    same = pa.array([[{"key": "a", "value": b"1"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    values = pa.array(["v"])
    assert record_columns(values, headers=column).headers.equals(record_columns(values, headers=same).headers)


def test_header_values_may_all_be_null() -> None:
    headers = pa.array([[("a", None)], []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.null())])))
    assert headers_of(headers) == [[("a", None)], []]


@pytest.mark.parametrize("headers", [pa.nulls(2), pa.array([None, []], HEADERS), None])
def test_rows_without_headers_cost_nothing(headers: pa.Array | None) -> None:
    assert record_columns(pa.array(["a", "b"]), headers=headers).headers is None


@pytest.mark.parametrize(
    "rows",
    [
        [[("a", b"")], None, [("b", b""), (None, b"x")], [(None, b"y")]],
        [[("a", b"")], None, [("b", b""), None]],
    ],
    ids=["null key", "null entry"],
)
def test_a_header_without_a_key_is_refused_with_its_row(rows: list[Any]) -> None:
    with pytest.raises(InvalidRecordError, match=r"\[KAFKA_INVALID_RECORD\] row 2: a header has no key"):
        record_columns(None, headers=pa.array(rows, HEADERS))


def test_header_keys_that_are_all_null_are_refused() -> None:
    headers = pa.array([None, [(None, b"x")]], pa.list_(pa.struct([("key", pa.null()), ("value", pa.binary())])))
    with pytest.raises(InvalidRecordError, match="row 1: a header has no key"):
        record_columns(None, headers=headers)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.string(),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("more", pa.binary())])),
        pa.map_(pa.string(), pa.int64()),
    ],
)
def test_headers_of_another_type_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column headers"):
        record_columns(None, headers=pa.nulls(1, kind))


# PARTS

header_lists = st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
payloads = st.none() | st.binary(max_size=8)


@given(st.lists(st.tuples(payloads, payloads, header_lists, st.integers(0, 2**40)), max_size=8), st.data())
def test_slices_and_taken_rows_are_those_rows(rows: list[Any], data: st.DataObject) -> None:
    values, keys, headers, timestamps = ([row[column] for row in rows] for column in range(4))
    pieces = data.draw(st.sampled_from([1, 2, 3, 9]))
    cuts = [len(rows) * piece // pieces for piece in range(pieces + 1)]
    in_pieces = pa.chunked_array([values[cut:next_cut] for cut, next_cut in itertools.pairwise(cuts)], pa.binary())
    columns = record_columns(in_pieces, pa.array(keys, pa.binary()), pa.array(headers, HEADERS), pa.array(timestamps, pa.int64()))
    expected = [DecodedRecord(row[3], row[1], row[0], row[2] or []) for row in rows]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows)))))
    assert_rows(columns.slice(start, stop), expected[start:stop])
    row_numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    assert_rows(columns.take(np.array(row_numbers, np.int64)), [expected[row] for row in row_numbers])


def assert_rows(columns: RecordColumns, expected: list[DecodedRecord]) -> None:
    assert len(columns) == len(expected)
    if expected:
        assert rows_of(columns) == expected


def test_parts_of_columns_that_are_the_same_in_every_row() -> None:
    columns = record_columns(pa.array(["a", "b", "c"]), timestamps=5)
    assert rows_of(columns.slice(1, 3)) == rows_of(columns.take(np.array([1, 2])))
    assert columns.slice(1, 3).timestamps == 5


def test_rows_of_more_than_two_gigabytes_in_all_can_be_taken() -> None:
    """A column of topics beside such values ended in "offset overflow while concatenating arrays"."""
    offsets = pa.py_buffer(np.array([0, 2**31 - 1], np.int32))
    huge = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(mmap.mmap(-1, 2**31))])  # of untouched pages
    columns = record_columns(pa.chunked_array([pa.array([b"a", b"b"]), huge, pa.array([b"c"])]))
    rows = columns.in_one_piece().take(np.array([3, 0, 1]))
    assert rows.value is not None
    assert rows.value.to_pylist() == [b"c", b"a", b"b"]
    assert rows.value_lengths.tolist() == [1, 1, 1]
