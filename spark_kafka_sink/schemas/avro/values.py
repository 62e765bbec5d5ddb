"""Columns of single values: numbers, strings, bytes, enums. decimals.py has decimals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import printable, printable_list
from spark_kafka_sink.records.arrays import bools_of, bytes_array, nulls_of, number_array, numbers_of
from spark_kafka_sink.records.columns import binary_column
from spark_kafka_sink.records.interleave import Payload, Piece, Word, binary_offsets, data_buffer
from spark_kafka_sink.records.layouts import plain_column
from spark_kafka_sink.records.varint import Int64Column
from spark_kafka_sink.schemas.avro.encoding import Encoding, Mask, Refusals, constant, varints

INT64_MAX = 2**63 - 1
MAX_UNKNOWN_SYMBOLS = 3  # that refusals of a block of rows name
MAX_SYMBOL_CHARACTERS = 60
_FIRST_BEYOND_ASCII = 0x80
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@dataclass(frozen=True, slots=True)
class ConstantEncoding(Encoding):
    """Writes the same bytes in every row, such as the default of a field for which there is no column."""

    octets: bytes

    def pieces(self, column: pa.Array, present: Mask | None, refusals: Refusals) -> list[Piece]:  # noqa: ARG002
        return constant(self.octets, present)

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:  # noqa: ARG002
        return constant(self.octets, valid)


# NUMBERS


@dataclass(frozen=True, slots=True)
class IntegerEncoding(Encoding):
    """Writes int, long, dates and times. A value is multiplied by `factor` or divided by `divisor`, which gives the schema's
    unit. If the division leaves a remainder, the value is rounded down if `truncates`; otherwise the row is refused."""

    unit: str = ""  # the schema's, for refusals
    factor: int = 1
    divisor: int = 1
    truncates: bool = False
    is_int: bool = False  # the result must fit in 32 bits

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        values = numbers_of(column)
        if values.dtype == np.uint64:
            self.refuse(values > INT64_MAX, valid, refusals, "it exceeds the largest long")
        return varints(self._in_unit(values.astype(np.int64, copy=False), valid, refusals), valid)

    def _in_unit(self, values: Int64Column, valid: Mask | None, refusals: Refusals) -> Int64Column:
        if self.factor != 1:
            limit = INT64_MAX // self.factor
            self.refuse((values > limit) | (values < -limit), valid, refusals, f"as a number of {self.unit} it exceeds 64 bits")
            values = values * self.factor
        if self.divisor != 1:
            quotients = values // self.divisor
            if not self.truncates:
                has_remainder = quotients * self.divisor != values
                self.refuse(has_remainder, valid, refusals, f"it is no whole number of {self.unit}, the schema's unit")
            values = quotients
        if self.is_int:
            is_wide = values.astype(np.int32) != values
            self.refuse(is_wide, valid, refusals, f"as a number of {self.unit} it exceeds 32 bits")
        return values


@dataclass(frozen=True, slots=True)
class FloatEncoding(Encoding):
    """Writes float and double: their bytes, lowest first."""

    size: int

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:  # noqa: ARG002
        octets = self.values(column).view(f"<u{self.size}").astype(np.uint64, copy=False)
        if valid is None:
            return [Word(octets, self.size, self.size)]
        return [Word(octets * valid, valid * np.int64(self.size), self.size)]

    def byte_matrix(self, column: pa.Array) -> NDArray[np.uint8] | None:
        column = plain_column(column)
        if column.null_count or not len(column):
            return None
        return self.values(column).view(np.uint8).reshape(len(column), self.size)

    def values(self, column: pa.Array) -> NDArray[Any]:
        return numbers_of(column).astype(f"<f{self.size}", copy=False)


@dataclass(frozen=True, slots=True)
class BooleanEncoding(Encoding):
    """Writes a boolean: one byte, 0 or 1."""

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:  # noqa: ARG002
        octets = bools_of(column).astype(np.uint64)
        return [Word(octets, 1 if valid is None else valid.astype(np.int64), 1)]


# BYTES


@dataclass(frozen=True, slots=True)
class BytesEncoding(Encoding):
    """Writes bytes: their number, then the bytes."""

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        column = binary_column(self.path, column)
        lengths = np.diff(binary_offsets(column)).astype(np.int64)
        self.refuse_values(column, lengths, valid, refusals)
        return [*varints(lengths, valid), Payload.of(column)]

    def refuse_values(self, column: pa.Array, lengths: Int64Column, valid: Mask | None, refusals: Refusals) -> None:
        """Subclasses refuse values here."""


@dataclass(frozen=True, slots=True)
class StringEncoding(BytesEncoding):
    """Writes strings. Refuses bytes that are not UTF-8: Spark's cast(binary AS string) does not check that."""

    def refuse_values(self, column: pa.Array, lengths: Int64Column, valid: Mask | None, refusals: Refusals) -> None:  # noqa: ARG002
        if _is_ascii(column) or _is_utf8(column):
            return
        reason = "its bytes are not UTF-8; cast it to binary, for a schema with bytes"
        self.refuse(rows_that_are_not_utf8(column), valid, refusals, reason)


@dataclass(frozen=True, slots=True)
class UuidEncoding(BytesEncoding):
    """Writes a string that must be a UUID: 36 characters."""

    def refuse_values(self, column: pa.Array, lengths: Int64Column, valid: Mask | None, refusals: Refusals) -> None:  # noqa: ARG002
        is_uuid = bools_of(pc.match_substring_regex(column, _UUID), at_null=True)
        refusals.add(~is_uuid, self.path, "it is no UUID in the form of 8-4-4-4-12 hexadecimal digits")


def _is_ascii(column: pa.Array) -> bool:
    offsets = binary_offsets(column)
    octets = np.frombuffer(data_buffer(column), np.uint8)[offsets[0] : offsets[-1]]
    return bool(octets.max(initial=0) < _FIRST_BEYOND_ASCII)


def _is_utf8(column: pa.Array) -> bool:
    try:
        column.cast(pa.large_string() if column.type == pa.large_binary() else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


# The lowest and highest byte that may follow these. Others would be overlong, a surrogate, or beyond Unicode.
_SECOND_BYTES = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def rows_that_are_not_utf8(column: pa.Array) -> Mask:
    """The rows that break table 3-7 of the Unicode standard, maybe also null rows. Takes ten times the memory of the bytes."""
    offsets = binary_offsets(column).astype(np.int64)
    octets = np.frombuffer(data_buffer(column), np.uint8)[offsets[0] : offsets[-1]]
    ends = offsets[1:] - offsets[0]
    octets = np.insert(octets, np.repeat(ends, 3), 0)  # after each row, so that no character continues in the next row
    tail_sizes = np.select([octets >= 0xF0, octets >= 0xE0, octets >= 0xC0], [3, 2, 1], 0)  # continuation bytes after this byte
    is_continuation = np.zeros(len(octets), np.bool_)
    for distance in (1, 2, 3):
        is_continuation[distance:] |= tail_sizes[:-distance] >= distance
    is_wrong = is_continuation != (octets & 0xC0 == 0x80)
    is_wrong |= (octets == 0xC0) | (octets == 0xC1) | (octets > 0xF4)
    for first, (lowest, highest) in _SECOND_BYTES.items():
        is_wrong[:-1] |= (octets[:-1] == first) & ((octets[1:] < lowest) | (octets[1:] > highest))
    rows = np.zeros(len(column), np.bool_)
    rows[np.searchsorted(ends + 3 * np.arange(1, len(column) + 1), np.flatnonzero(is_wrong), side="right")] = True
    return rows


@dataclass(frozen=True, slots=True)
class FixedEncoding(Encoding):
    """Writes a fixed: the bytes without a length. Each value has `size` of them."""

    size: int

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        column = binary_column(self.path, column)
        is_wrong = np.diff(binary_offsets(column)) != self.size
        self.refuse(is_wrong, valid, refusals, f"it does not have the {self.size} bytes of the fixed")
        return [Payload.of(column)]


@dataclass(frozen=True, slots=True)
class EnumEncoding(Encoding):
    """Writes an enum: the number of the symbol."""

    symbols: tuple[str, ...]

    def value_pieces(self, column: pa.Array, valid: Mask | None, refusals: Refusals) -> list[Piece]:
        column = binary_column(self.path, column)
        numbers = pc.index_in(column, bytes_array([symbol.encode() for symbol in self.symbols], column.type))
        is_unknown = nulls_of(numbers) if valid is None else nulls_of(numbers) & valid
        if is_unknown.any():
            self._refuse_unknown(column, np.flatnonzero(is_unknown), refusals)
        return varints(numbers_of(numbers, at_null=0).astype(np.int64), valid)

    def _refuse_unknown(self, column: pa.Array, rows: Int64Column, refusals: Refusals) -> None:
        """Refuse rows, with a reason for each of the first unknown values. The others, which may be many, have one reason."""
        values = column.take(number_array(rows)).dictionary_encode()
        shown_values = values.dictionary[:MAX_UNKNOWN_SYMBOLS].to_pylist()
        texts = [repr(printable(value.decode("utf-8", "backslashreplace"), MAX_SYMBOL_CHARACTERS)) for value in shown_values]
        numbers = np.minimum(numbers_of(values.indices), len(texts))
        for number, text in enumerate([*texts, "it"]):
            is_refused = np.zeros(len(column), np.bool_)
            is_refused[rows[numbers == number]] = True
            refusals.add(is_refused, self.path, f"{text} is none of the enum's symbols: {printable_list(self.symbols)}")
