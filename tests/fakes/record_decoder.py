"""RecordBatch v2 read one record at a time, as plainly as the specification says it; shares nothing with our encoder.

https://kafka.apache.org/documentation/#recordbatch. Whatever a broker would refuse raises InvalidBatch with Kafka's error;
what a broker lets pass although it is wrong goes into `Batch.violations`.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field

import crc32c
import lz4.frame
import pyarrow as pa

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors

_HEADER = struct.Struct(">qiibIhiqqqhii")  # 61 bytes
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"


class InvalidBatch(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Batch:
    base_offset: int
    codec: str
    is_transactional: bool
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: list[Record]
    size_bytes: int
    violations: list[str] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + len(self.records) - 1) % (1 << 31)


def decode_batch(data: bytes) -> Batch:
    """The one batch in `data`."""
    if len(data) < _HEADER.size:
        raise InvalidBatch(Errors.CORRUPT_MESSAGE, f"{len(data)} bytes are less than a header")
    (
        base_offset, length, _leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    for is_wrong, error, message in (
        (magic != 2, Errors.INVALID_RECORD, f"magic {magic}"),
        (length != len(data) - 12, Errors.INVALID_RECORD, f"not exactly one batch: length {length} in {len(data)} bytes"),
        (crc != crc32c.crc32c(data[21:]), Errors.CORRUPT_MESSAGE, "the checksum does not match"),
        (base_offset != 0, Errors.INVALID_RECORD, f"base offset {base_offset}"),
        (count <= 0, Errors.INVALID_RECORD, f"{count} records"),
        (last_offset_delta + 1 != count, Errors.INVALID_RECORD, f"{count} records, last offset delta {last_offset_delta}"),
        (attributes & 0x20, Errors.INVALID_RECORD, "a client sent a control batch"),
        (attributes & 0x08, Errors.INVALID_TIMESTAMP, "a client set LogAppendTime"),
        (producer_id >= 0 > base_sequence, Errors.INVALID_RECORD, f"producer {producer_id} without a sequence"),
        (attributes & 0x07 not in _CODECS, Errors.INVALID_RECORD, f"codec {attributes & 0x07}"),
    ):
        if is_wrong:
            raise InvalidBatch(error, message)
    codec = _CODECS[attributes & 0x07]
    records = _Cursor(_decompress(codec, data[_HEADER.size :])).records(count, base_timestamp)
    batch = Batch(
        base_offset, codec, bool(attributes & 0x10), base_timestamp, max_timestamp, producer_id, producer_epoch,
        base_sequence, records, len(data),
    )  # fmt: skip
    if attributes & ~0x17:
        batch.violations.append(f"unknown attributes {attributes:#x}")
    if base_timestamp != records[0].timestamp:
        batch.violations.append(f"base timestamp {base_timestamp} is not the first record's, {records[0].timestamp}")
    if max_timestamp != max(record.timestamp for record in records):
        batch.violations.append(f"max timestamp {max_timestamp} is not the records' maximum")
    return batch


def _decompress(codec: str, data: bytes) -> bytes:
    try:
        if codec == "none":
            return data
        if codec == "gzip":
            return gzip.decompress(data)
        if codec == "lz4":
            return bytes(lz4.frame.decompress(data))
        if codec == "zstd":
            return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
        return _decompress_snappy(data)
    except (OSError, EOFError, RuntimeError, ValueError, IndexError) as error:
        raise InvalidBatch(Errors.CORRUPT_MESSAGE, f"{codec}: {error}") from error


def _decompress_snappy(data: bytes) -> bytes:
    """Raw, or in the framing of xerial's stream: magic, two versions, then blocks with their lengths."""
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data)
    position, blocks = 16, []
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        blocks.append(_snappy_block(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return b"".join(blocks)


def _snappy_block(data: bytes) -> bytes:
    size, shift = 0, 0
    for byte in data:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(data, decompressed_size=size))


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def records(self, count: int, base_timestamp: int) -> list[Record]:
        records = []
        try:
            for index in range(count):
                records.append(self.record(index, base_timestamp))
        except (IndexError, UnicodeDecodeError) as error:
            raise InvalidBatch(Errors.INVALID_RECORD, f"record {len(records)} of {count}: {error}") from error
        if self.position != len(self.data):
            raise InvalidBatch(Errors.INVALID_RECORD, f"{len(self.data) - self.position} bytes after the last record")
        return records

    def record(self, index: int, base_timestamp: int) -> Record:
        length = self.varint()
        end = self.position + length
        if self.take(1) != b"\0":
            raise InvalidBatch(Errors.INVALID_RECORD, f"record {index} has attributes")
        timestamp = base_timestamp + self.varint()
        offset_delta = self.varint()
        if offset_delta != index:
            raise InvalidBatch(Errors.INVALID_RECORD, f"record {index} has offset delta {offset_delta}")
        key, value = self.nullable_bytes(), self.nullable_bytes()
        headers = tuple(self.header() for _ in range(self.varint()))
        if self.position != end:
            raise InvalidBatch(Errors.INVALID_RECORD, f"record {index} says {length} bytes and has another size")
        return Record(offset_delta, timestamp, key, value, headers)

    def header(self) -> tuple[str, bytes | None]:
        name = self.nullable_bytes()
        if name is None:
            raise InvalidBatch(Errors.INVALID_RECORD, "a header's key is null")
        return name.decode(), self.nullable_bytes()

    def nullable_bytes(self) -> bytes | None:
        length = self.varint()
        return None if length == -1 else self.take(length)

    def take(self, length: int) -> bytes:
        if length < 0 or self.position + length > len(self.data):
            raise IndexError(f"{length} bytes at {self.position} exceed {len(self.data)}")
        self.position += length
        return self.data[self.position - length : self.position]

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift > 63:
                raise IndexError("varint too long")
