"""Columns of pieces joined row by row equal what a loop over the rows would have written."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import interleave as module
from spark_kafka_sink.records.interleave import Payload, binary_offsets, data_buffer, interleave, join_rows, row_offsets_and_data
from spark_kafka_sink.records.varint import encode_varint

PAYLOADS = st.sampled_from([pa.binary(), pa.large_binary()])


def interleaved_rows(pieces: list[Any], rows: int, selected: list[int] | None = None) -> list[bytes]:
    order = None if selected is None else np.array(selected, np.int64)
    interleaved = interleave([Payload.of(piece, order) if isinstance(piece, pa.Array) else piece for piece in pieces], rows)
    offsets, data = row_offsets_and_data(interleaved.write(0, rows), rows)
    assert interleaved.size_bytes() == data.size
    assert offsets[0] == 0
    assert offsets[-1] == data.size
    octets = data.to_pybytes()
    return [octets[start:end] for start, end in itertools.pairwise(offsets)]


@st.composite
def pieces_and_rows(draw: st.DrawFn) -> tuple[list[Any], list[bytes]]:
    """Any sequence of pieces, and the bytes of each row."""
    rows = draw(st.integers(1, 8))
    pieces: list[Any] = []
    expected = [b""] * rows
    for _ in range(draw(st.integers(1, 6))):
        match draw(st.sampled_from(["bytes", "int", "numbers", "payload"])):
            case "bytes":
                constant = draw(st.binary(max_size=3))
                pieces.append(constant)
                column = [constant] * rows
            case "int":
                number = draw(st.integers(-(2**63), 2**63 - 1))
                pieces.append(number)
                column = [encode_varint(number)] * rows
            case "numbers":
                numbers = draw(st.lists(st.integers(-(2**40), 2**40), min_size=rows, max_size=rows))
                pieces.append(np.array(numbers, np.int64))
                column = [encode_varint(number) for number in numbers]
            case _:
                payload = draw(st.lists(st.none() | st.binary(max_size=20), min_size=rows, max_size=rows))
                pieces.append(pa.array([b"before", *payload, b"after"], draw(PAYLOADS)).slice(1, rows))
                column = [octets or b"" for octets in payload]
        expected = [row + octets for row, octets in zip(expected, column, strict=True)]
    return pieces, expected


@given(pieces_and_rows())
def test_rows_hold_their_pieces_in_order(case: tuple[list[Any], list[bytes]]) -> None:
    pieces, expected = case
    assert interleaved_rows(pieces, len(expected)) == expected


def test_selected_entries_of_payloads_go_with_the_numbers_of_the_row() -> None:
    payload = pa.array([b"zero", b"one", None, b"three"], pa.binary())
    assert interleaved_rows([np.array([7, 200]), payload, b"!"], 2, [3, 0]) == [b"\x0ethree!", b"\x90\x03zero!"]


def test_no_rows_give_no_bytes() -> None:
    assert interleaved_rows([np.empty(0, np.int64), b"\0", pa.array([], pa.binary())], 0) == []


def test_payloads_beyond_the_reach_of_int32_offsets_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INT32_MAX", 40)
    values = [
        b"0123456789abcdef",
        None,
        b"abcdefghijABCDEFGHIJ",
        b"x",
        b"a longer one than all of them, which lies alone",
        b"y" * 13,
    ]
    payload = pa.array([b"before", *values], pa.large_binary()).slice(1)
    assert len(module._addressable_parts(payload)) == 3
    assert interleaved_rows([np.arange(6), payload], 6, [2, 3, 1, 0, 5, 4]) == [
        encode_varint(number) + (values[row] or b"") for number, row in enumerate([2, 3, 1, 0, 5, 4])
    ]
    offsets, data = join_rows([Payload.of(payload), b"!"], 6)
    assert data.to_pybytes() == b"".join((value or b"") + b"!" for value in values)
    assert np.diff(offsets).tolist() == [len(value or b"") + 1 for value in values]


def test_a_slice_far_inside_a_large_column_is_read_where_it_lies() -> None:
    size = 2**31 + 64  # never touched but for its end: costs no memory
    zeros = pa.py_buffer(memoryview(mmap.mmap(-1, size)))
    offsets = np.array([0, 2**31, 2**31 + 40, size], np.int64)
    column = pa.Array.from_buffers(pa.large_binary(), 3, [None, pa.py_buffer(offsets), zeros])
    assert interleaved_rows([7, column.slice(1)], 2) == [b"\x0e" + bytes(40), b"\x0e" + bytes(24)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_views_of_a_slice_take_no_memory_for_the_rows_before_it(kind: pa.DataType) -> None:
    """Arrow casts a slice together with all rows before it: a column of n rows, taken slice by slice, took n² of memory."""
    column = pa.array([b"%d" % row if row % 3 else None for row in range(40_000)], kind)
    before = pa.total_allocated_bytes()
    slices = [Payload.of(column.slice(start, 10)) for start in range(0, len(column), 1003)]
    assert pa.total_allocated_bytes() - before < 40_000
    assert len(slices) == 40
    for start in (0, 7, 8, 9, 1003, 39_990):
        assert interleaved_rows([column.slice(start, 10)], 10) == [cell or b"" for cell in column.slice(start, 10).to_pylist()]


def test_prefixes_share_their_bytes() -> None:
    data = b"0123456789abcdefghij"
    every = np.arange(len(data) + 1)
    prefixes = interleave([Payload.prefixes(data).at(every[::-1])], len(every))
    offsets, octets = row_offsets_and_data(prefixes.write(0, len(every)), len(every))
    assert octets.to_pybytes() == b"".join(data[:size] for size in every[::-1])
    assert np.diff(offsets).tolist() == every[::-1].tolist()
    by_fours = interleave([Payload.prefixes(data, 4).at(np.array([0, 3, 5]))], 3)
    assert data_buffer(by_fours.write(0, 3)).to_pybytes() == data[:12] + data
    assert data_buffer(interleave([Payload.prefixes(bytes(3)).at(np.array([3, 1]))], 2).write(0, 2)).to_pybytes() == bytes(4)


def test_rows_beyond_two_gib_are_written_with_int64_offsets() -> None:
    views = interleave([Payload.of(pa.array([b"a payload that takes a buffer"]))], 1)
    written = views.write(0, 1, is_large=True)
    assert written.type == pa.large_binary()
    assert row_offsets_and_data(written, 1)[0].tolist() == [0, 29]


def test_any_rows_that_stand_together_can_be_written_alone() -> None:
    payload = pa.array([bytes([65 + row]) * 3 * row for row in range(12)])
    interleaved = interleave([np.arange(12), Payload.of(payload, np.arange(12)[::-1]), b"."], 12)
    parts = [data_buffer(interleaved.write(start, stop)).to_pybytes() for start, stop in ((0, 5), (5, 5), (5, 6), (6, 12))]
    assert b"".join(parts) == data_buffer(interleaved.write(0, 12)).to_pybytes()
    assert parts[1] == b""
    assert parts[2] == b"\x0a" + b"G" * 18 + b"."


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_offsets_are_those_of_the_slice(kind: pa.DataType) -> None:
    column = pa.array(["a", "bb", "", "cccc"], pa.string()).cast(kind)
    assert np.diff(binary_offsets(column.slice(1))).tolist() == [2, 0, 4]
    assert binary_offsets(column.slice(4)).tolist() == [0]
