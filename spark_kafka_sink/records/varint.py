"""Zigzag varints, the numbers inside a record: one column at a time, or a single one.

RecordBatch v2 encodes every length, delta and count of a record this way: zigzag (the sign moves to the lowest bit), then seven
bits per byte, lowest first. The top bit is set in all bytes but the last. 32-bit and 64-bit fields have the same encoding. This
module computes sizes and encodes single values; interleave.py encodes columns, together with the fields around them.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]


def zigzag(values: Int64Column) -> NDArray[np.uint64]:
    """int64[n] -> uint64[n]: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


@overload
def varint_sizes(values: int) -> int: ...
@overload
def varint_sizes(values: Int64Column) -> Int64Column: ...
def varint_sizes(values: Int64Column | int) -> Int64Column | int:
    """Bytes of each value: one, plus one for each of 2**7, 2**14 … that its zigzag form reaches. Returns an int for an int.

    Takes one comparison per step that the largest value reaches, none if all values take one byte.
    """
    if isinstance(values, int):
        return len(encode_varint(values))
    sizes = np.ones(len(values), np.int64)
    if len(values) == 0:
        return sizes
    if values.min() < 0:
        values = values ^ values >> 63  # -1, -2 … become 0, 1 …, whose varints have the same sizes
    greatest = int(values.max())
    for shift in range(6, greatest.bit_length(), 7):
        sizes += values >= 1 << shift
    return sizes


def encode_varint(value: int) -> bytes:
    """One value, -2**63 … 2**63-1."""
    return encode_unsigned_varint((value << 1) ^ (value >> 63))


def encode_unsigned_varint(value: int) -> bytes:
    """One value as it is, without zigzag; at least 0."""
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
