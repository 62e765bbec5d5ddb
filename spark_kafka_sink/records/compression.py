"""The codecs of a RecordBatch. Its records are compressed as a whole, or in parts if the codec's blocks are independent."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_kafka_sink.records.crc32c import ByteBuffer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Codec:
    """One codec of compression.type. Levels are those of compression.<name>.level; config/ checks their range."""

    id: int  # bits 0-2 of the batch's attributes
    default_level: int | None  # None: the codec has no levels
    function: Callable[[ByteBuffer, int | None], bytes]
    # The bytes before and after the compressed blocks, if the blocks are independent; None: a batch is compressed as a whole.
    frame: tuple[bytes, bytes] | None = None


def compress(codec: str, data: ByteBuffer | Sequence[ByteBuffer], level: int | None = None) -> bytes:
    """Compress one batch's records, given whole or in pieces. Releases the GIL, except with the codec none.

    `level` None is the codec's default. config/ checks levels, not this function. Raises KeyError for an unknown codec.
    """
    if isinstance(data, Sequence) and not isinstance(data, (bytes, bytearray, memoryview)):
        data = data[0] if len(data) == 1 else b"".join(data)
    definition = CODECS[codec]
    return definition.function(data, definition.default_level if level is None else level)


def compress_blocks(codec: str, data: ByteBuffer | Sequence[ByteBuffer], level: int | None = None) -> memoryview:
    """Compress a part of a batch's records while it is in the CPU's cache; `framed_blocks` joins the parts. Needs Codec.frame."""
    opening, closing = CODECS[codec].frame or (b"", b"")
    compressed = memoryview(compress(codec, data, level))
    return compressed[len(opening) : len(compressed) - len(closing)]


def framed_blocks(codec: str, blocks: Sequence[memoryview]) -> list[memoryview]:
    """One batch's compressed records, from the results of compress_blocks for their parts."""
    opening, closing = CODECS[codec].frame or (b"", b"")
    return [piece for piece in [memoryview(opening), *blocks, memoryview(closing)] if piece]


def _gzip(data: ByteBuffer, level: int | None) -> bytes:
    """zlib is at least as fast as pyarrow's codec (63 against 55 MB/s at level 6), and supports Java's level -1."""
    return zlib.compress(data, -1 if level is None else level, wbits=31)  # 31: gzip format, window of 15 bits


def _arrow(codec: str, data: ByteBuffer, level: int | None = None) -> bytes:
    compressed: bytes = pa.Codec(codec, compression_level=level).compress(data, asbytes=True)
    return compressed


# SNAPPY

_SNAPPY_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2  # magic, version, lowest compatible version
_SNAPPY_BLOCK_BYTES = 64 * 1024  # snappy's window: larger blocks compress no better (ratio 0.40; with Java's 32 KiB 0.41)


def _snappy(data: ByteBuffer, level: int | None) -> bytes:  # noqa: ARG001
    """Xerial's framing, as in the Java client: every consumer can read it, and need not decompress a batch as one block."""
    pieces = [_SNAPPY_HEADER]
    for block in _blocks(data, _SNAPPY_BLOCK_BYTES):
        compressed = _arrow("snappy", block)
        pieces += [len(compressed).to_bytes(4, "big"), compressed]
    return b"".join(pieces)


def _blocks(data: ByteBuffer, size: int) -> list[memoryview]:
    view = memoryview(data)
    return [view[start : start + size] for start in range(0, len(view), size)]


# LZ4
# One frame with independent blocks of 64 KiB, without content size or checksum: Java writes this kind, and can read no other
# (Lz4BlockInputStream; of several frames it reads the first and ignores the rest). Larger blocks are a third faster to write, but
# every consumer would need memory for a block.

_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_FAST_LEVEL = 9  # Java's level 9 is the fast compressor; any other is LZ4HC of that level
_LZ4HC_LEVELS = range(3, 13)  # of the lz4 library: lower levels are the fast compressor, higher ones are the same as 12
_LZ4_FRAME_HEADER = bytes.fromhex("04224d18 60 40 82")  # magic; version 1, independent blocks; 64 KiB; checksum of the two
_LZ4_END_MARK = bytes(4)
_LZ4_STORED_FLAG = 0x80000000  # this block is not compressed


def _lz4(data: ByteBuffer, level: int | None) -> bytes:
    frame = _lz4_frame()
    if frame is None:
        return _lz4_without_package(data, level)
    compressed: bytes = frame.compress(
        data, compression_level=_lz4hc_level(level) or 0, block_size=frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return compressed


def _lz4hc_level(level: int | None) -> int | None:
    """The LZ4HC level for a level of Java's; None for the fast compressor."""
    return None if level in (None, _LZ4_FAST_LEVEL) else min(max(level, _LZ4HC_LEVELS[0]), _LZ4HC_LEVELS[-1])


@functools.cache
def _lz4_frame() -> Any:
    try:
        import lz4.frame
    except ImportError:
        logger.warning("the lz4 package is missing: lz4 batches are built from pyarrow's blocks; install lz4")
        return None
    return lz4.frame


def _lz4_without_package(data: ByteBuffer, level: int | None) -> bytes:
    hc_level = _lz4hc_level(level)
    pieces: list[ByteBuffer] = [_LZ4_FRAME_HEADER]
    for block in _blocks(data, _LZ4_BLOCK_BYTES):
        compressed = _arrow("lz4_raw", block, hc_level)
        if len(compressed) < len(block):
            pieces += [len(compressed).to_bytes(4, "little"), compressed]
        else:
            pieces += [(len(block) | _LZ4_STORED_FLAG).to_bytes(4, "little"), block]
    pieces.append(_LZ4_END_MARK)
    return b"".join(pieces)


CODECS = {
    "none": Codec(0, None, lambda data, _: bytes(data)),
    "gzip": Codec(1, -1, _gzip),  # -1: zlib's default, 6
    "snappy": Codec(2, None, _snappy, (_SNAPPY_HEADER, b"")),
    "lz4": Codec(3, 9, _lz4, (_LZ4_FRAME_HEADER, _LZ4_END_MARK)),
    "zstd": Codec(4, 3, functools.partial(_arrow, "zstd")),
}


def decompress(codec: str, data: bytes, raw_bytes: int) -> bytes:
    """The reverse of `compress`, for batches that are split. The result has `raw_bytes`. Releases the GIL, except for none."""
    if codec == "none":
        return data
    if codec == "snappy":
        return b"".join(_snappy_blocks(data, raw_bytes))
    raw: bytes = pa.decompress(data, decompressed_size=raw_bytes, codec=codec, asbytes=True)
    return raw


def _snappy_blocks(data: bytes, raw_bytes: int) -> Iterator[bytes]:
    stop = len(_SNAPPY_HEADER)
    while raw_bytes > 0:
        start = stop + 4
        stop = start + int.from_bytes(data[stop:start], "big")
        block = pa.decompress(data[start:stop], decompressed_size=_snappy_raw_bytes(data, start), codec="snappy", asbytes=True)
        yield block
        raw_bytes -= len(block)


def _snappy_raw_bytes(data: bytes, position: int) -> int:
    """The unsigned varint at the start of a block."""
    size = shift = 0
    while data[position] & 0x80:
        size |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return size | data[position] << shift
