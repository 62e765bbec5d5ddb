"""A key goes to the partition that the Java client would choose."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records.murmur2 import murmur2, partition_for_keys
from tests.interop.java import run_java

PARTITION_COUNTS = (1, 2, 3, 7, 12, 100, 1000)


def random_keys() -> list[bytes]:
    """120,000 keys: short binary ones, text, decimal numbers, and one in twenty of up to 1,000 bytes."""
    source = np.random.default_rng(20_240_101)
    short = [source.bytes(int(size)) for size in source.integers(0, 41, 60_000)]
    letters = np.array(list("abcXYZ0189 _-äßøжκ漢字\N{KEY}\N{GEM STONE}"))
    text = ["".join(source.choice(letters, int(size))).encode() for size in source.integers(0, 30, 24_000)]
    numbers = [b"%d" % number for number in source.integers(-(2**63), 2**63 - 1, 30_000)]
    long = [source.bytes(int(size)) for size in source.integers(0, 1001, 6_000)]
    return [*short, *text, *numbers, *long]


@pytest.mark.broker
def test_hashes_and_partitions_of_random_keys_equal_javas(kafka_jars: Path, tmp_path: Path) -> None:
    keys = random_keys()
    (tmp_path / "keys").write_bytes(b"".join(itertools.chain.from_iterable((len(key).to_bytes(4, "big"), key) for key in keys)))

    run_java(kafka_jars, Path(__file__).parent / "HashKeys.java", tmp_path / "keys", tmp_path / "hashes", *PARTITION_COUNTS)

    java = np.fromfile(tmp_path / "hashes", ">i4").reshape(len(keys), 1 + len(PARTITION_COUNTS))
    column = pa.array(keys, pa.binary())
    np.testing.assert_array_equal(murmur2(column).view(np.int32), java[:, 0])
    for place, partition_count in enumerate(PARTITION_COUNTS):
        np.testing.assert_array_equal(partition_for_keys(column, partition_count), java[:, 1 + place])
    in_slices = np.concatenate([murmur2(column.slice(start, 997)) for start in range(0, len(keys), 997)])
    np.testing.assert_array_equal(in_slices.view(np.int32), java[:, 0])
