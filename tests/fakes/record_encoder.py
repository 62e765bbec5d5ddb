"""One RecordBatch v2, written a record at a time: for tests below the record encoder, which must not use it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """Uncompressed; record i has the timestamp `timestamp` + i."""
    keys = keys if keys is not None else [None] * len(values)
    records = b"".join(_record(index, key, value) for index, (key, value) in enumerate(zip(keys, values, strict=True)))
    count = len(values)
    body = struct.pack(
        ">hiqqqhii",
        0x10 if is_transactional else 0,
        count - 1,
        timestamp,
        timestamp + count - 1,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    body += records
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c.crc32c(body)) + body


def _record(index: int, key: bytes | None, value: bytes | None) -> bytes:
    content = b"\0" + _varint(index) + _varint(index) + _nullable(key) + _nullable(value) + _varint(0)
    return _varint(len(content)) + content


def _nullable(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
