"""CRC-32C (Castagnoli), the checksum of a RecordBatch.

`crc32c(data, crc=0)` is the crc32c package's function, about 25 GB/s. Without the package it is `numpy_crc32c`, which splits the
data into lanes, processes all lanes word by word, and combines their checksums. Both can continue a checksum (`crc`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ByteBuffer: TypeAlias = bytes | bytearray | memoryview

_POLYNOMIAL = np.uint32(0x82F63B78)  # 0x1EDC6F41, bits reversed
_ALL_ONES = 0xFFFFFFFF

Lanes = NDArray[np.uint32]


def numpy_crc32c(data: ByteBuffer, crc: int = 0) -> int:
    """CRC-32C without the package. Never blocks."""
    octets = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    size = len(octets)
    lane_bytes = 1 << max(4, size.bit_length() // 2 - 1)  # about as many steps as there are lanes
    padded_octets = np.zeros(-(-size // lane_bytes) * lane_bytes or lane_bytes, np.uint8)
    start = len(padded_octets) - size  # leading zeros do not change a checksum that starts at 0
    padded_octets[start:] = octets
    state = crc ^ _ALL_ONES
    head = min(4, size)  # a start at another state equals XORing this state into the first four bytes
    padded_octets[start : start + head] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)[:head]
    lanes = padded_octets.view("<u4").reshape(-1, lane_bytes // 4)
    return _join(_advance(lanes), lane_bytes) ^ (state >> 8 * size) ^ _ALL_ONES


def _advance(lanes: Lanes) -> Lanes:
    """Checksum of each row of little-endian words, all rows at once, without the inversions at start and end."""
    low_table, high_table = _word_tables()
    crc = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        crc ^= column
        crc = low_table[crc & np.uint32(0xFFFF)] ^ high_table[crc >> np.uint32(16)]
    return crc


def _join(crcs: Lanes, size: int) -> int:
    """One checksum from those of neighboring lanes of `size` bytes, a power of two: CRC(ab) = CRC(a zeros) ^ CRC(b)."""
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _multiply(_zeros_matrix(size.bit_length() - 1), crcs[0::2]) ^ crcs[1::2]
        size *= 2
    return int(crcs[0])


def _multiply(matrix: Lanes, crcs: Lanes) -> Lanes:
    """Matrix times vector over GF(2): row i is the image of bit i of a checksum."""
    bits = crcs[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    images: Lanes = np.bitwise_xor.reduce(bits * matrix, axis=1)
    return images


@functools.cache
def _zeros_matrix(doubling_count: int) -> Lanes:
    """The image of each single bit after 2**doubling_count zero bytes."""
    if doubling_count == 0:
        return _append_zero_bits(np.uint32(1) << np.arange(32, dtype=np.uint32), 8)
    half = _zeros_matrix(doubling_count - 1)
    return _multiply(half, half)


@functools.cache
def _word_tables() -> tuple[Lanes, Lanes]:
    """The images after 32 zero bits of each value of a checksum's low half, and of its high half."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    return _append_zero_bits(halves, 32), _append_zero_bits(halves << np.uint32(16), 32)


def _append_zero_bits(crcs: Lanes, bit_count: int) -> Lanes:
    for _ in range(bit_count):
        crcs = crcs >> np.uint32(1) ^ (crcs & np.uint32(1)) * _POLYNOMIAL
    return crcs


def _fastest_crc32c() -> Callable[..., int]:
    try:
        from crc32c import crc32c
    except ImportError:
        logger.warning("the crc32c package is missing: checksums are computed with numpy, about 100 times slower; install crc32c")
        return numpy_crc32c
    return crc32c  # type: ignore[no-any-return]


crc32c = _fastest_crc32c()
