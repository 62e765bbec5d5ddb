"""Keys hash as in Java: against vectors of several clients, and against a scalar murmur2 for every shape of column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import murmur2 as module
from spark_kafka_sink.records.murmur2 import murmur2, partition_for_keys

# unsigned hashes, from the tests of Apache Kafka, librdkafka and sarama
KNOWN = {
    b"21": -973932308 % 2**32,
    b"foobar": -790332482 % 2**32,
    b"a-little-bit-long-string": -985981536 % 2**32,
    b"a-little-bit-longer-string": -1486304829 % 2**32,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971 % 2**32,
    b"abc": 479470107,
    b"": 275646681,
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"1234": 0x9FC97B14,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
    b"4": 0x5A4B5CA1,
}
# partitions of 1000, from kafka-python
PARTITIONS = {b"": 681, b"a": 524, b"ab": 434, b"abc": 107, b"123456789": 566, b"\x00 ": 742}
# hash & 0x7fffffff, from sarama
POSITIVE = {b"foo": 597841616, b"bar": 988958145, b"baz": 1973573280}

LAYOUTS = [pa.binary(), pa.large_binary()]


def scalar_murmur2(key: bytes) -> int:
    """One key, one step after the other."""
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        hashed = (hashed * 0x5BD1E995 & 0xFFFFFFFF) ^ word
    if len(key) > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return hashed ^ hashed >> 15


def hashes_of(keys: list[bytes | None], kind: pa.DataType = LAYOUTS[0]) -> list[int]:
    return [int(value) for value in murmur2(pa.array(keys, kind))]


def test_hashes_are_those_of_java() -> None:
    assert dict(zip(KNOWN, hashes_of(list(KNOWN)), strict=True)) == KNOWN
    assert [scalar_murmur2(key) for key in KNOWN] == list(KNOWN.values())


@pytest.mark.parametrize("key", KNOWN)
def test_a_key_alone_hashes_like_among_others(key: bytes) -> None:
    assert hashes_of([key]) == [KNOWN[key]]


def test_partitions_are_those_of_java() -> None:
    partitions = partition_for_keys(pa.array(list(PARTITIONS), pa.binary()), 1000)
    assert partitions.dtype == np.int32
    assert dict(zip(PARTITIONS, partitions.tolist(), strict=True)) == PARTITIONS
    assert partition_for_keys(pa.array(list(POSITIVE), pa.binary()), 2**31 - 1).tolist() == list(POSITIVE.values())


def test_one_partition_takes_every_key() -> None:
    assert partition_for_keys(pa.array(["a", "b", ""]), 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("few", [1, 2, 1000])
@given(keys=st.lists(st.binary(max_size=40), max_size=20), kind=st.sampled_from(LAYOUTS))
def test_a_column_hashes_like_its_keys(few: int, keys: list[bytes], kind: pa.DataType) -> None:
    """`few` is the count below which keys are finished one by one: always, mostly and never in numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MIN_KEYS_PER_CALL", few)
        assert hashes_of(list(keys), kind) == [scalar_murmur2(key) for key in keys]


@pytest.mark.parametrize("size", range(18))
def test_keys_of_one_length_hash_as_each_alone(size: int) -> None:
    keys = [bytes((row * 37 + index * 11) % 256 for index in range(size)) for row in range(200)]
    assert hashes_of(list(keys)) == [scalar_murmur2(key) for key in keys]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_a_slice_of_keys_of_one_length_hashes_as_each_alone(kind: pa.DataType) -> None:
    keys = [f"{row * 7919 % 100_003:05}" for row in range(300)]
    hashes = murmur2(pa.array(["other", *keys, "longer than these"]).cast(kind).slice(1, 300))
    assert hashes.tolist() == [scalar_murmur2(key.encode()) for key in keys]


def test_keys_of_mixed_lengths_hash_as_each_alone_beside_a_very_long_one() -> None:
    source = np.random.default_rng(5)
    keys = [source.bytes(int(size)) for size in source.integers(0, 300, 1000)] + [source.bytes(100_003)]
    assert hashes_of(list(keys)) == [scalar_murmur2(key) for key in keys]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_a_slice_hashes_its_own_rows(kind: pa.DataType) -> None:
    column = pa.array(["before", "schlüssel", "", "abc", "after"], pa.string()).cast(kind).slice(1, 3)
    assert murmur2(column).tolist() == [scalar_murmur2(key) for key in ("schlüssel".encode(), b"", b"abc")]


def test_a_null_hashes_like_an_empty_key_whatever_lies_under_it() -> None:
    garbage = pa.Array.from_buffers(
        pa.binary(),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 9, 10], np.int32)), pa.py_buffer(b"abGARBAGEc")],
    )
    assert murmur2(garbage).tolist() == [scalar_murmur2(key) for key in (b"ab", b"", b"c")]
    assert murmur2(pa.nulls(2, pa.binary())).tolist() == [scalar_murmur2(b"")] * 2


def test_no_keys_have_no_hashes() -> None:
    assert murmur2(pa.array([], pa.binary())).tolist() == []
    assert partition_for_keys(pa.array([], pa.binary()), 3).tolist() == []
