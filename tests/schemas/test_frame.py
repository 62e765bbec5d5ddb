"""frame.py: the bytes before each payload, compared with Confluent's own."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.format_options import MAX_SCHEMA_ID
from spark_kafka_sink.schemas.frame import confluent_prefix


@pytest.mark.parametrize(
    ("schema_id", "index", "expected"),
    [
        (1, None, b"\x00\x00\x00\x00\x01"),
        (MAX_SCHEMA_ID, None, b"\x00\x7f\xff\xff\xff"),
        (7, (0,), b"\x00\x00\x00\x00\x07\x00"),
        (7, (1,), b"\x00\x00\x00\x00\x07\x02\x02"),
        (7, (1, 0), b"\x00\x00\x00\x00\x07\x04\x02\x00"),
        (7, (0, 0), b"\x00\x00\x00\x00\x07\x04\x00\x00"),
        (7, (200,), b"\x00\x00\x00\x00\x07\x02\x90\x03"),
    ],
)
def test_the_frame_is_that_of_confluents_serializers(schema_id: int, index: tuple[int, ...] | None, expected: bytes) -> None:
    assert confluent_prefix(schema_id, index) == expected


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_a_reader_by_the_documentation_gets_the_message_index(index: list[int]) -> None:

    framed = io.BytesIO(confluent_prefix(5, index)[5:])
    assert _read_index(framed) == index


def _read_index(buffer: io.BytesIO) -> list[int]:
    """Read it by Confluent's documentation of the wire format: a length, then the positions; a length of 0 is [0]."""
    length = _read_varint(buffer)
    return [0] if length == 0 else [_read_varint(buffer) for _ in range(length)]


def _read_varint(buffer: io.BytesIO) -> int:
    value = shift = 0
    while True:
        (byte,) = buffer.read(1)
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value >> 1 ^ -(value & 1)


@pytest.mark.parametrize("wrong", [-1, 2**31])
def test_a_number_that_is_no_id_has_no_frame(wrong: int) -> None:
    with pytest.raises(ValueError, match="is not the id of a schema"):
        confluent_prefix(wrong)


@pytest.mark.parametrize("wrong", [(), (-1,), (0, -2)])
def test_a_path_to_no_message_has_no_frame(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is not the path to a message"):
        confluent_prefix(1, wrong)
