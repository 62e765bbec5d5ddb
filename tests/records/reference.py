"""A decoder of RecordBatch v2 that reads one byte after the other: slow, strict, and written from the format alone.

The tests of records/ hold the encoder against it. It refuses whatever a broker would refuse, and leftovers besides, so that a
wrong length cannot pass unseen.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import NamedTuple

import crc32c as crc32c_package
import lz4.frame
import pyarrow as pa


class Malformed(Exception):
    """The bytes are not a RecordBatch."""


class DecodedRecord(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012


class DecodedBatch(NamedTuple):
    records: list[DecodedRecord]
    codec_id: int
    transactional: bool
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Bytes:
    """A cursor that never reads past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise Malformed(f"{size} bytes wanted at {self._at} of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self, bits: int = 32) -> int:
        encoded = shift = 0
        while True:
            byte = self.take(1)[0]
            encoded |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if byte == 0 and shift > 7:
            raise Malformed("a varint longer than it needs to be")
        if encoded >= 1 << bits:
            raise Malformed(f"a varint of more than {bits} bits")
        return (encoded >> 1) ^ -(encoded & 1)

    def nullable(self) -> bytes | None:
        size = self.varint()
        if size < -1:
            raise Malformed(f"length {size}")
        return None if size == -1 else self.take(size)

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def rest(self) -> bytes:
        return self.take(self.left)

    def expect_end(self) -> None:
        if self.left:
            raise Malformed(f"{self.left} bytes are left over")


def decode_batch(data: bytes) -> DecodedBatch:
    head = Bytes(data)
    if head.integer(8) != 0:
        raise Malformed("base offset")
    if head.integer(4) != len(data) - 12:
        raise Malformed("batch length")
    if (head.integer(4), head.integer(1)) != (-1, 2):
        raise Malformed("leader epoch or magic")
    if head.integer(4) & 0xFFFFFFFF != crc32c_package.crc32c(data[21:]):
        raise Malformed("checksum")
    attributes, last_offset_delta = head.integer(2), head.integer(4)
    base_timestamp, max_timestamp = head.integer(8), head.integer(8)
    producer_id, producer_epoch, base_sequence, count = head.integer(8), head.integer(2), head.integer(4), head.integer(4)
    if attributes & ~0x17:
        raise Malformed(f"attributes {attributes:#x}")
    if count != last_offset_delta + 1:
        raise Malformed(f"{count} records, last offset delta {last_offset_delta}")
    records = decode_records(decompress(attributes & 7, head.rest()), count, base_timestamp)
    return DecodedBatch(
        records,
        attributes & 7,
        bool(attributes & 0x10),
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
    )


def decode_records(data: bytes, count: int, base_timestamp: int = 0) -> list[DecodedRecord]:
    """Exactly `count` records with offset deltas 0, 1, 2 …"""
    records = Bytes(data)
    decoded = []
    for offset_delta in range(count):
        record, delta = decode_record(records, base_timestamp)
        if delta != offset_delta:
            raise Malformed(f"offset delta {delta} where {offset_delta} is expected")
        decoded.append(record)
    records.expect_end()
    return decoded


def decode_record(data: Bytes, base_timestamp: int) -> tuple[DecodedRecord, int]:
    """The next record and its offset delta."""
    record = Bytes(data.take(data.varint()))
    if record.integer(1) != 0:
        raise Malformed("record attributes")
    timestamp = base_timestamp + record.varint(bits=64)
    offset_delta = record.varint()
    key, value = record.nullable(), record.nullable()
    headers = [_header(record) for _ in range(record.varint())]
    record.expect_end()
    return DecodedRecord(timestamp, key, value, headers), offset_delta


def _header(record: Bytes) -> tuple[str, bytes | None]:
    key = record.nullable()
    if key is None:
        raise Malformed("a header without a key")
    return key.decode(), record.nullable()


def decompress(codec_id: int, data: bytes) -> bytes:
    codecs: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: gzip.decompress, 2: _snappy, 3: _lz4, 4: unzstd}
    return codecs[codec_id](data)


def _snappy(data: bytes) -> bytes:
    framed = Bytes(data)
    if framed.take(16) != b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01":
        raise Malformed("no snappy header")
    blocks = []
    while framed.left:
        block = framed.take(framed.integer(4))
        blocks.append(snappy_block(block))
    return b"".join(blocks)


def snappy_block(block: bytes) -> bytes:
    """One raw block: it opens with its uncompressed size, as a varint without zigzag."""
    size = shift = 0
    for byte in block:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    unpacked: bytes = pa.decompress(block, size, "snappy", asbytes=True)
    return unpacked


def _lz4(data: bytes) -> bytes:
    magic, flags = data[:4], data[4]
    if magic != b"\x04\x22\x4d\x18" or flags >> 6 != 1:
        raise Malformed("no lz4 frame")
    if not flags & 0x20:
        raise Malformed("linked blocks, which Java's reader refuses")
    unpacked: bytes
    unpacked, size = lz4.frame.decompress(data, return_bytes_read=True)
    if size != len(data):
        raise Malformed("a second frame, which Java's reader would drop")
    return unpacked


def unzstd(data: bytes) -> bytes:
    unpacked: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return unpacked
