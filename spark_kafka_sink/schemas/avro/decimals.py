"""Columns of decimals: the unscaled number in two's complement, highest byte first, in as few bytes as it needs or in a fixed.

Arrow stores a decimal as limbs of 64 bits, lowest first; the highest has the sign. Most columns need only the lowest limb.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.interleave import Piece, Word
from spark_kafka_sink.records.varint import Int64Column
from spark_kafka_sink.schemas.avro.encoding import Encoding, Mask, Refusals, varints

_LIMB_BYTES = 8
_LIMB_BITS = 64
_DIGITS_BEYOND_A_LIMB = 20  # no limb can hold so many decimal digits


@dataclass(frozen=True, slots=True)
class DecimalEncoding(Encoding):
    """Writes Avro's bytes: their number, then as few as the value needs, as Java's BigInteger.toByteArray."""

    precision: int  # the schema's

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        limbs = _limbs(column, valid)
        is_too_wide = _exceeds(limbs, self.precision)
        refusals.add(is_too_wide, self.path, f"it has more than the {self.precision} digits of the schema's decimal")
        return self.words(limbs, valid)

    def words(self, limbs: list[Int64Column], valid: Mask | None) -> list[Piece]:
        words = _shortest_words(limbs)
        sizes = np.zeros(len(limbs[0]), np.int64)
        for word in words:
            sizes += word.size
        if valid is not None:
            words = [Word(word.octets, word.size * valid, word.max_size) for word in words]
        return [*varints(sizes, valid), *words]


@dataclass(frozen=True, slots=True)
class FixedDecimalEncoding(DecimalEncoding):
    """Writes a fixed of `size` bytes, filled up in front with the sign."""

    size: int

    def words(self, limbs: list[Int64Column], valid: Mask | None) -> list[Piece]:
        sign = limbs[-1] >> (_LIMB_BITS - 1)
        words: list[Piece] = []
        bytes_left = self.size
        while bytes_left:
            number = (bytes_left - 1) // _LIMB_BYTES  # of the limb that has the highest byte not yet written
            bytes_left, byte_count = number * _LIMB_BYTES, bytes_left - number * _LIMB_BYTES
            octets = _highest_first(limbs[number] if number < len(limbs) else sign, byte_count)
            words.append(Word(octets, byte_count if valid is None else valid * np.int64(byte_count), byte_count))
        return words


def _limbs(column: pa.Array, valid: Mask | None) -> list[Int64Column]:
    """The limbs, lowest first, without high limbs that repeat the sign in every row. 0 where the column is null."""
    if column.type.bit_width < 2 * _LIMB_BITS:
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    limb_count = column.type.bit_width // _LIMB_BITS
    numbers = np.frombuffer(column.buffers()[1], "<i8", len(column) * limb_count, column.offset * limb_count * _LIMB_BYTES)
    limbs = [numbers[place::limb_count] if valid is None else numbers[place::limb_count] * valid for place in range(limb_count)]
    while len(limbs) > 1 and (limbs[-1] == limbs[-2] >> (_LIMB_BITS - 1)).all():
        limbs.pop()
    return limbs


def _exceeds(limbs: list[Int64Column], precision: int) -> Mask:
    """Whether each value has more decimal digits than `precision`."""
    limit = 10 ** min(precision, _DIGITS_BEYOND_A_LIMB * len(limbs))  # a schema may have any precision
    if limit >= 1 << (_LIMB_BITS * len(limbs) - 1):
        return np.zeros(len(limbs[0]), np.bool_)
    return _at_least(limbs, limit) | ~_at_least(limbs, 1 - limit)


def _at_least(limbs: list[Int64Column], number: int) -> Mask:
    """Whether each value is `number` or more: compared limb by limb, of which the highest decides unless it is equal."""
    result = np.ones(len(limbs[0]), np.bool_)
    for place, limb in enumerate(limbs):
        signed_part = number >> _LIMB_BITS * place
        if place == len(limbs) - 1:
            result = (limb > signed_part) | ((limb == signed_part) & result)
        else:
            unsigned_limb, unsigned_part = limb.view(np.uint64), np.uint64(signed_part & (1 << _LIMB_BITS) - 1)
            result = (unsigned_limb > unsigned_part) | ((unsigned_limb == unsigned_part) & result)
    return result


def _shortest_words(limbs: list[Int64Column]) -> list[Word]:
    """The words of each value, highest first, without bytes that only repeat the sign."""
    words = []
    has_begun = np.zeros(len(limbs[0]), np.bool_)  # whether a higher limb of the row is written
    for place in reversed(range(len(limbs))):
        sizes = np.where(has_begun, _LIMB_BYTES, _bytes_needed(limbs[place]))
        if place:
            is_needed = has_begun | (limbs[place] != limbs[place - 1] >> (_LIMB_BITS - 1))
            sizes, has_begun = sizes * is_needed, is_needed
        words.append(Word(_highest_first(limbs[place], sizes), sizes, _LIMB_BYTES))
    return words


def _bytes_needed(numbers: Int64Column) -> Int64Column:
    """Count the bytes of each value in two's complement."""
    magnitudes = numbers ^ numbers >> (_LIMB_BITS - 1)
    sizes = np.ones(len(numbers), np.int64)
    for bits in range(7, int(magnitudes.max()).bit_length(), 8):
        sizes += magnitudes >= 1 << bits
    return sizes


def _highest_first(numbers: Int64Column, byte_count: Int64Column | int) -> NDArray[np.uint64]:
    """The lowest `byte_count` bytes of each number as the first bytes of a word, highest first; all zero if there are none."""
    words = numbers.byteswap().view(np.uint64)
    if isinstance(byte_count, int):
        return words >> np.uint64(8 * (_LIMB_BYTES - byte_count))
    unused_bytes = np.minimum(_LIMB_BYTES - byte_count, _LIMB_BYTES - 1)  # a shift by all 64 bits is undefined
    octets: NDArray[np.uint64] = (words >> (8 * unused_bytes).view(np.uint64)) * (byte_count > 0)
    return octets
