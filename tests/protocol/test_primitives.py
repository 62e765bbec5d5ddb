"""protocol/primitives.py: every type round-trips, and nothing a network may send is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.protocol import primitives
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS, Buffer, Reader, Writer


def written(write: Callable[[Writer, Any], None], value: Any) -> bytes:
    writer = Writer()
    write(writer, value)
    return b"".join(writer.buffers())


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


TEXT = st.text(max_size=50)
BYTES = st.binary(max_size=50)
TYPES = [
    (Writer.boolean, Reader.boolean, st.booleans()),
    (Writer.int8, Reader.int8, integers(8)),
    (Writer.int16, Reader.int16, integers(16)),
    (Writer.int32, Reader.int32, integers(32)),
    (Writer.int64, Reader.int64, integers(64)),
    (Writer.uvarint, Reader.uvarint, st.integers(0, (1 << 32) - 1)),
    (Writer.uuid, Reader.uuid, st.uuids()),
    (Writer.string, Reader.string, TEXT),
    (Writer.nullable_string, Reader.nullable_string, TEXT | st.none()),
    (Writer.compact_string, Reader.compact_string, TEXT),
    (Writer.compact_nullable_string, Reader.compact_nullable_string, TEXT | st.none()),
    (Writer.bytes, Reader.bytes, BYTES),
    (Writer.nullable_bytes, Reader.nullable_bytes, BYTES | st.none()),
    (Writer.compact_bytes, Reader.compact_bytes, BYTES),
    (Writer.compact_nullable_bytes, Reader.compact_nullable_bytes, BYTES | st.none()),
    (Writer.array_length, Reader.array_length, st.just(-1) | st.just(0)),
    (Writer.compact_array_length, Reader.compact_array_length, st.just(-1) | st.just(0)),
]
READERS = [read for _, read, _ in TYPES] + [Reader.records, Reader.compact_records, Reader.tagged_fields]


@pytest.mark.parametrize(("write", "read", "values"), TYPES, ids=[write.__name__ for write, _, _ in TYPES])
@given(data=st.data())
def test_a_value_is_read_as_it_was_written(write: Any, read: Any, values: Any, data: st.DataObject) -> None:
    value = data.draw(values)
    encoded = written(write, value)
    reader = Reader(encoded)
    assert read(reader) == value
    reader.expect_end()
    for length in range(len(encoded)):
        with pytest.raises(ProtocolError):
            read(Reader(encoded[:length]))


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@given(data=st.binary(max_size=40))
def test_random_bytes_give_a_value_or_a_protocol_error(read: Callable[[Reader], Any], data: bytes) -> None:
    try:
        read(Reader(data))
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (Writer.uvarint, 0, "00"),
        (Writer.uvarint, 127, "7f"),
        (Writer.uvarint, 128, "8001"),
        (Writer.uvarint, 300, "ac02"),
        (Writer.uvarint, (1 << 32) - 1, "ffffffff0f"),
        (Writer.string, "é", "0002c3a9"),
        (Writer.nullable_string, None, "ffff"),
        (Writer.compact_string, "é", "03c3a9"),
        (Writer.compact_nullable_string, None, "00"),
        (Writer.uuid, UUID("00112233-4455-6677-8899-aabbccddeeff"), "00112233445566778899aabbccddeeff"),
        (Writer.compact_array_length, 2, "03"),
        (Writer.array_length, -1, "ffffffff"),
    ],
)
def test_bytes_are_those_of_the_specification(write: Any, value: Any, expected: str) -> None:
    assert written(write, value).hex() == expected


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_an_unsigned_varint_holds_32_bits(value: int) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        Writer().uvarint(value)


@pytest.mark.parametrize("data", ["ffffffff10", "ffffffffff01", "808080808000"])
def test_a_varint_longer_than_32_bits_is_refused(data: str) -> None:
    with pytest.raises(ProtocolError, match="32 bits"):
        Reader(bytes.fromhex(data)).uvarint()


def test_a_string_too_long_for_its_length_field_is_refused() -> None:
    Writer().string("x" * 32767)
    with pytest.raises(ProtocolError, match="32,767"):
        Writer().string("x" * 32768)


@pytest.mark.parametrize("write", [Writer.string, Writer.compact_string])
def test_text_that_utf_8_cannot_carry_is_refused(write: Callable[[Writer, str], None]) -> None:
    with pytest.raises(ProtocolError, match="half of a surrogate pair"):
        write(Writer(), "a\ud800")


@pytest.mark.parametrize("read", [Reader.string, Reader.bytes, Reader.records])
def test_a_negative_length_is_refused(read: Callable[[Reader], Any]) -> None:
    with pytest.raises(ProtocolError):
        read(Reader(b"\xff\xff\xff\xff" + b"x" * 10))


def test_a_huge_array_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ProtocolError, match="2147483647 elements"):
        Reader(b"\x7f\xff\xff\xff" + b"x" * 10).array_length()


def test_a_null_array_is_refused_where_null_is_not_allowed() -> None:
    with pytest.raises(ProtocolError, match="null"):
        Reader(b"").array(-1, Reader.int8)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        Reader(b"\x00\x01\xff").string()


def test_bytes_after_the_last_field_are_refused() -> None:
    reader = Reader(b"\x00\x01")
    reader.int8()
    with pytest.raises(ProtocolError, match="1 bytes are left"):
        reader.expect_end()


def test_opaque_buffers_are_passed_on_by_reference() -> None:
    parts: list[Buffer] = [bytearray(b"abc"), memoryview(b"defg")]
    writer = Writer()
    writer.int8(1)
    writer.records(parts)
    writer.int8(2)
    buffers = writer.buffers()
    assert b"".join(buffers).hex() == "01" + "00000007" + b"abcdefg".hex() + "02"
    assert any(buffer is parts[0] for buffer in buffers)
    assert any(buffer is parts[1] for buffer in buffers)


def test_known_tagged_fields_are_returned_and_the_others_skipped() -> None:
    writer = Writer()
    writer.tagged_fields([(0, [b"ab"]), (5, [b"x"]), (7, [b"c", b"d"])])
    reader = Reader(b"".join(writer.buffers()))
    assert {tag: bytes(value) for tag, value in reader.tagged_fields({0, 7}).items()} == {0: b"ab", 7: b"cd"}
    reader.expect_end()


def test_an_array_whose_elements_cannot_all_be_there_is_refused_before_it_is_read() -> None:
    """Five longs were read one by one, until the sixth was missing."""
    reader = Reader(b"\x00\x00\x00\x06" + bytes(6 * 8 - 1))
    length = reader.array_length()
    read: list[int] = []
    with pytest.raises(ProtocolError, match="an array of 6 elements at offset 4 exceeds the 47 bytes left"):
        reader.array(length, lambda each: read.append(each.int64()), 8)
    assert read == []


def test_an_array_longer_than_any_answers_is_refused_before_it_is_read() -> None:
    """32 MiB of one-byte strings kept the Sender thread busy for 28 s, and of small structures for 53 s."""
    read: list[str] = []
    reader = Reader(bytes(MAX_ELEMENTS + 1))
    with pytest.raises(ProtocolError, match="more than 2,000,000 elements"):
        reader.array(MAX_ELEMENTS + 1, lambda each: read.append(each.compact_string()))
    assert read == []


def test_the_elements_of_all_arrays_and_tags_of_a_frame_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "MAX_ELEMENTS", 100)
    for left, more in [(100, 0), (99, 1)]:
        reader = Reader(bytes(1_000))
        reader.array(left - 20, Reader.int8)
        assert len(reader.read_tag(memoryview(bytes(10)), lambda inner: inner.array(10, Reader.int8))) == 10
        reader.array(2, lambda each: each.array(4, Reader.int8))
        reader.array(more, Reader.int8)
        with pytest.raises(ProtocolError, match="more than 100 elements"):
            reader.array(1, Reader.int8)
    tags = Reader(bytes([51]) + bytes(102))
    assert tags.tagged_fields() == {}
    many = Reader(bytes([101]) + bytes(202))
    with pytest.raises(ProtocolError, match="more than 100 elements"):
        many.tagged_fields()
