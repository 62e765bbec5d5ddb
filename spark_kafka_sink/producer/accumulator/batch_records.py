"""The encoded records of one batch: the segments in which callers write them, and their compression.

The functions here keep no state. ProducerBatch holds the segments and their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.records.compression import CODECS, compress, compress_blocks, framed_blocks


@dataclass(frozen=True, slots=True)
class Compression:
    """How a producer compresses its batches: codec and level."""

    codec: str  # compression.type
    level: int | None

    @classmethod
    def of(cls, config: ProducerConfig) -> Compression:
        levels = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }
        return cls(config.compression_type, levels.get(config.compression_type))

    @property
    def is_enabled(self) -> bool:
        return self.codec != "none"

    @property
    def is_blockwise(self) -> bool:
        """Whether parts of a batch can be compressed one by one."""
        return CODECS[self.codec].frame is not None


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Records that were compressed while they were written, as blocks that do not depend on each other."""

    blocks: list[memoryview]

    @property
    def size_bytes(self) -> int:
        return total_size(self.blocks)


# A segment of a batch: a range of the bytes in its pool blocks, or records with memory of their own. None: not written yet.
Segment: TypeAlias = range | memoryview | PackedRecords | None


def total_size(buffers: Sequence[memoryview]) -> int:
    return sum(map(len, buffers))


def has_packed(segments: Sequence[Segment]) -> bool:
    return any(isinstance(segment, PackedRecords) for segment in segments)


def estimated_size(segments: Sequence[Segment], ratio: float) -> int:
    """Bytes of all segments when compressed, if those that are not compressed yet shrink to `ratio` of their size."""
    written_segments = [segment for segment in segments if segment is not None]
    return sum(each.size_bytes if isinstance(each, PackedRecords) else int(len(each) * ratio) for each in written_segments)


def uncompressed_views(segments: Sequence[Segment], pool_blocks: Sequence[bytearray], block_size: int) -> list[memoryview]:
    """The records of all segments, in order. Raises RuntimeError if some are not written or already compressed."""
    return [view for segment in segments for view in _views_of(segment, pool_blocks, block_size)]


def compressed_records(
    segments: Sequence[Segment], pool_blocks: Sequence[bytearray], block_size: int, compression: Compression
) -> list[memoryview]:
    """The records section of the whole batch. Segments that are compressed already are used as they are."""
    codec, level = compression.codec, compression.level
    if not has_packed(segments):
        return [memoryview(compress(codec, uncompressed_views(segments, pool_blocks, block_size), level))]
    blocks: list[memoryview] = []
    for segment in segments:
        if isinstance(segment, PackedRecords):
            blocks += segment.blocks
        else:
            blocks.append(compress_blocks(codec, _views_of(segment, pool_blocks, block_size), level))
    return framed_blocks(codec, blocks)


def _views_of(segment: Segment, pool_blocks: Sequence[bytearray], block_size: int) -> list[memoryview]:
    if isinstance(segment, range):
        return _block_views(segment, pool_blocks, block_size)
    if isinstance(segment, memoryview):
        return [segment]
    raise RuntimeError(f"records that were {'compressed' if segment else 'not written'} cannot be read")


def _block_views(segment: range, pool_blocks: Sequence[bytearray], block_size: int) -> list[memoryview]:
    start, stop = segment.start, segment.stop
    indexes = range(start // block_size, -(-stop // block_size))
    return [memoryview(pool_blocks[i])[max(start - i * block_size, 0) : stop - i * block_size] for i in indexes]
