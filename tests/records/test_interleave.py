"""Columns of pieces joined row by row equal what a loop over the rows would have written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import interleave
from spark_kafka_sink.records.interleave import binary_offsets, join_rows
from spark_kafka_sink.records.varint import encode_varint

PAYLOADS = st.sampled_from([pa.binary(), pa.large_binary()])


def joined(pieces: list[Any], rows: int, selected: list[int] | None = None) -> list[bytes]:
    offsets, data = join_rows(pieces, rows, None if selected is None else np.array(selected, np.int64))
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
    assert joined(pieces, len(expected)) == expected


def test_selected_entries_of_payloads_go_with_the_numbers_of_the_row() -> None:
    payload = pa.array([b"zero", b"one", None, b"three"], pa.binary())
    assert joined([np.array([7, 200]), payload, b"!"], 2, [3, 0]) == [b"\x0ethree!", b"\x90\x03zero!"]


def test_no_rows_give_no_bytes() -> None:
    assert joined([np.empty(0, np.int64), b"\0", pa.array([], pa.binary())], 0) == []


def test_what_may_outgrow_int32_offsets_is_joined_with_int64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "INT32_MAX", 20)
    payload = pa.array([b"0123456789", None, b"abcdefghij", b"x"], pa.binary())
    assert interleave._concatenate([payload, payload]).type == pa.large_binary()
    assert interleave._concatenate([payload.slice(1, 2)]).type == pa.binary()  # only the slice counts
    assert joined([np.arange(4), payload], 4, [2, 3, 1, 0]) == [b"\0abcdefghij", b"\x02x", b"\x04", b"\x060123456789"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_offsets_are_those_of_the_slice(kind: pa.DataType) -> None:
    column = pa.array(["a", "bb", "", "cccc"], pa.string()).cast(kind)
    assert np.diff(binary_offsets(column.slice(1))).tolist() == [2, 0, 4]
    assert binary_offsets(column.slice(4)).tolist() == [0]
