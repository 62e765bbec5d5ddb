"""Kafka's primitive types, written and read: https://kafka.apache.org/protocol#protocol_types.

`Writer` collects small fields in one buffer and keeps opaque record batches by reference, without a copy.
`Reader` reads one frame. schema.py combines both into messages; nothing here knows a message.
Law of the Reader: a length is compared with the bytes that are left before memory is reserved for it, and a length that is too
large raises ProtocolError. More than MAX_ELEMENTS raise it too: 32 MiB of small elements would take a minute to read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from spark_kafka_sink.errors import ProtocolError, ResponseTooLargeError

Buffer = bytes | bytearray | memoryview  # one byte per element, so that len() is the size
T = TypeVar("T")
_Bytes = bytes  # inside the classes, `bytes` is a method

ZERO_UUID = UUID(int=0)

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_pack_int8, _pack_int16, _pack_int32, _pack_int64 = _INT8.pack, _INT16.pack, _INT32.pack, _INT64.pack

_MAX_INT16_STRING_BYTES = 0x7FFF
_MAX_VARINT_BYTES = 5  # ceil(32 / 7)
MAX_ELEMENTS = 2_000_000  # of all arrays of a frame; one topic with 100,000 partitions and three replicas has 700,000


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError("a string contains half of a surrogate pair, which UTF-8 cannot encode") from error


class Writer:
    """Encodes one message. Methods but `buffers` append a value, or raise ProtocolError or struct.error if it does not fit."""

    __slots__ = ("_buffers", "_small_fields")

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._small_fields = bytearray()  # fields since the last opaque buffer

    def buffers(self) -> list[Buffer]:
        """Everything that was written, in order; opaque buffers are the objects that were passed, not copies."""
        if self._small_fields:
            self._buffers.append(self._small_fields)
            self._small_fields = bytearray()
        return self._buffers

    def boolean(self, value: bool) -> None:
        self._small_fields.append(1 if value else 0)

    def int8(self, value: int) -> None:
        self._small_fields += _pack_int8(value)

    def int16(self, value: int) -> None:
        self._small_fields += _pack_int16(value)

    def int32(self, value: int) -> None:
        self._small_fields += _pack_int32(value)

    def int64(self, value: int) -> None:
        self._small_fields += _pack_int64(value)

    def uuid(self, value: UUID) -> None:
        self._small_fields += value.bytes

    def uvarint(self, value: int) -> None:
        """Unsigned 32-bit, 7 bits per byte, least significant first."""
        if not 0 <= value < 1 << 32:
            raise ProtocolError(f"{value} does not fit an unsigned varint of 32 bits")
        small = self._small_fields
        while value > 0x7F:
            small.append(value & 0x7F | 0x80)
            value >>= 7
        small.append(value)

    def string(self, value: str) -> None:
        data = _utf8(value)
        if len(data) > _MAX_INT16_STRING_BYTES:
            raise ProtocolError(f"a string of {len(data):,} bytes exceeds the protocol's limit of {_MAX_INT16_STRING_BYTES:,}")
        self._small_fields += _pack_int16(len(data))
        self._small_fields += data

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        data = _utf8(value)
        self.uvarint(len(data) + 1)
        self._small_fields += data

    def compact_nullable_string(self, value: str | None) -> None:
        if value is None:
            self.uvarint(0)
        else:
            self.compact_string(value)

    def bytes(self, value: Buffer) -> None:
        self.int32(len(value))
        self._small_fields += value

    def nullable_bytes(self, value: Buffer | None) -> None:
        if value is None:
            self.int32(-1)
        else:
            self.bytes(value)

    def compact_bytes(self, value: Buffer) -> None:
        self.uvarint(len(value) + 1)
        self._small_fields += value

    def compact_nullable_bytes(self, value: Buffer | None) -> None:
        if value is None:
            self.uvarint(0)
        else:
            self.compact_bytes(value)

    def records(self, value: Sequence[Buffer]) -> None:
        """Buffers that together are one opaque value, kept by reference."""
        self.int32(sum(map(len, value)))
        self.opaque(value)

    def compact_records(self, value: Sequence[Buffer]) -> None:
        self.uvarint(sum(map(len, value)) + 1)
        self.opaque(value)

    def opaque(self, buffers: Iterable[Buffer]) -> None:
        """Buffers without a length before them, kept by reference."""
        if self._small_fields:
            self._buffers.append(self._small_fields)
            self._small_fields = bytearray()
        self._buffers.extend(buffers)

    def array_length(self, length: int) -> None:
        """-1 means null."""
        self.int32(length)

    def compact_array_length(self, length: int) -> None:
        self.uvarint(length + 1)

    def tagged_fields(self, fields: Iterable[tuple[int, list[Buffer]]] = ()) -> None:
        """(tag, encoded value) in ascending order of tags."""
        fields = list(fields)
        self.uvarint(len(fields))
        for tag, value in fields:
            self.uvarint(tag)
            self.uvarint(sum(map(len, value)))
            for buffer in value:
                self._small_fields += buffer


class Reader:
    """Decodes one frame, or raises ProtocolError. Strings and bytes are copies; `records`, `take`, `unread` are views of it."""

    __slots__ = ("_data", "_elements_left", "_position", "_size_bytes")

    def __init__(self, data: Buffer) -> None:
        self._elements_left = MAX_ELEMENTS
        self._data = memoryview(data)
        self._position = 0
        self._size_bytes = len(self._data)

    def remaining_bytes(self) -> int:
        return self._size_bytes - self._position

    def unread(self) -> memoryview:
        """What has not been read yet; it stays unread."""
        return self._data[self._position :]

    def expect_end(self) -> None:
        """Raise ProtocolError if bytes are left: the frame does not have the expected format."""
        if self._position != self._size_bytes:
            raise ProtocolError(f"{self.remaining_bytes()} bytes are left after the last field")

    def take(self, length: int) -> memoryview:
        """The next `length` bytes as a view."""
        return self._data[self._advance(length) : self._position]

    def _advance(self, length: int) -> int:
        start = self._position
        if not 0 <= length <= self._size_bytes - start:
            raise ProtocolError(f"a field of {length} bytes at offset {start} exceeds the frame of {self._size_bytes} bytes")
        self._position = start + length
        return start

    def boolean(self) -> bool:
        return self._data[self._advance(1)] != 0

    def int8(self) -> int:
        return int(_INT8.unpack_from(self._data, self._advance(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack_from(self._data, self._advance(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self._data, self._advance(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self._data, self._advance(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.take(16)))

    def uvarint(self) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._data[self._advance(1)]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise ProtocolError(f"an unsigned varint at offset {self._position} exceeds 32 bits")

    def string(self) -> str:
        return self._text(self.int16())

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._text(length)

    def compact_string(self) -> str:
        return self._text(self.uvarint() - 1)

    def compact_nullable_string(self) -> str | None:
        length = self.uvarint() - 1
        return None if length == -1 else self._text(length)

    def _text(self, length: int) -> str:
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string before offset {self._position} is not UTF-8: {error}") from error

    def bytes(self) -> _Bytes:
        return _Bytes(self.take(self.int32()))

    def nullable_bytes(self) -> _Bytes | None:
        length = self.int32()
        return None if length == -1 else _Bytes(self.take(length))

    def compact_bytes(self) -> _Bytes:
        return _Bytes(self.take(self.uvarint() - 1))

    def compact_nullable_bytes(self) -> _Bytes | None:
        length = self.uvarint() - 1
        return None if length == -1 else _Bytes(self.take(length))

    def records(self) -> Sequence[Buffer]:
        return (self.take(self.int32()),)

    def compact_records(self) -> Sequence[Buffer]:
        return (self.take(self.uvarint() - 1),)

    def array_length(self) -> int:
        """-1 means null."""
        return self._check_length(self.int32())

    def compact_array_length(self) -> int:
        return self._check_length(self.uvarint() - 1)

    def _check_length(self, length: int) -> int:
        """Return the length of an array. Raises ProtocolError if so many elements of one byte exceed the rest of the frame."""
        if length < -1:
            raise ProtocolError(f"an array of {length} elements before offset {self._position}")
        self._expect_room(length, 1)  # every element takes at least one byte
        return length

    def _expect_room(self, count: int, min_bytes: int) -> None:
        if count * min_bytes > self.remaining_bytes():
            raise ProtocolError(
                f"an array of {count} elements at offset {self._position} exceeds the {self.remaining_bytes()} bytes left"
            )

    def _count_elements(self, element_count: int) -> None:
        self._elements_left -= element_count
        if self._elements_left < 0:
            raise ResponseTooLargeError(f"more than {MAX_ELEMENTS:,} elements before offset {self._position}")

    def read_tag(self, data: memoryview, decode: Callable[[Reader], T]) -> T:
        """The value of a tagged field, which is all of `data`."""
        tag_reader = Reader(data)
        tag_reader._elements_left = self._elements_left
        value = decode(tag_reader)
        tag_reader.expect_end()
        self._elements_left = tag_reader._elements_left
        return value

    def array(self, length: int, element: Callable[[Reader], T], min_bytes: int = 1) -> tuple[T, ...]:
        """Read `length` elements. Raises ProtocolError at once if so many, of at least `min_bytes` each, do not fit."""
        if length < 0:
            raise ProtocolError(f"the array before offset {self._position} is null, which this field does not allow")
        self._expect_room(length, min_bytes)
        self._count_elements(length)
        return tuple([element(self) for _ in range(length)])

    def tagged_fields(self, known_tags: Container[int] = ()) -> dict[int, memoryview]:
        """tag -> encoded value, for the known tags; other tags are skipped."""
        fields: dict[int, memoryview] = {}
        count = self.uvarint()
        self._expect_room(count, 2)  # tag and length
        self._count_elements(count)
        for _ in range(count):
            tag, length = self.uvarint(), self.uvarint()
            start = self._advance(length)
            if tag in known_tags:
                fields[tag] = self._data[start : self._position]
        return fields
