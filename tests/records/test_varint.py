"""Varints: columns agree with single values, and single values with the bytes that Kafka's own tests list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records.interleave import join_rows
from spark_kafka_sink.records.varint import encode_unsigned_varint, encode_varint, varint_sizes, zigzag
from tests.records.reference import Bytes

INT64 = st.integers(-(2**63), 2**63 - 1)
STEPS = sorted({sign * (2**power + by) for power in range(63) for by in (-1, 0, 1) for sign in (-1, 1)} | {2**63 - 1, -(2**63)})

# value -> bytes, from ByteUtilsTest of Apache Kafka
KNOWN = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    -8193: "818001",
    1048575: "feff7f",
    1048576: "80808001",
    134217727: "feffff7f",
    134217728: "8080808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
    9223372036854775807: "feffffffffffffffff01",
    -9223372036854775808: "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("value", "encoded"), KNOWN.items())
def test_varints_are_those_of_protocol_buffers(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert varint_sizes(value) == len(encoded) // 2


def test_zigzag_orders_by_distance_from_zero() -> None:
    assert zigzag(np.array([0, -1, 1, -2, 2])).tolist() == [0, 1, 2, 3, 4]


def test_a_column_has_the_sizes_of_its_values_at_every_step() -> None:
    assert varint_sizes(np.array(STEPS)).tolist() == [len(encode_varint(value)) for value in STEPS]


def test_an_empty_column_has_no_sizes() -> None:
    assert varint_sizes(np.empty(0, np.int64)).tolist() == []


@given(st.lists(INT64, min_size=1, max_size=40))
def test_a_column_is_written_like_its_values(values: list[int]) -> None:
    offsets, data = join_rows([np.array(values, np.int64)], len(values))
    assert data.to_pybytes() == b"".join(map(encode_varint, values))
    assert np.diff(offsets).tolist() == [len(encode_varint(value)) for value in values]


@given(INT64)
def test_a_value_survives_the_round_trip(value: int) -> None:
    assert Bytes(encode_varint(value)).varint(bits=64) == value


@given(st.integers(0, 2**35))
def test_an_unsigned_varint_is_the_zigzag_one_of_half_an_even_value(value: int) -> None:
    assert encode_unsigned_varint(2 * value) == encode_varint(value)
