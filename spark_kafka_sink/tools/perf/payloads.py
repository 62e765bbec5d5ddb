"""The payloads that `perf` writes: random letters, the lines of a file, or numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.arrays import number_array, text_array
from spark_kafka_sink.tools.errors import UsageError

POOL_BYTES = 32 * 1024 * 1024  # of random payloads, which are made before the clock starts, and used in turn

PayloadSource = Callable[[int, int], pa.Array]  # (number of the first record, how many records) -> their values


def payloads(arguments: argparse.Namespace) -> PayloadSource:
    """The source of payloads that the arguments name. Raises UsageError if the file has none or cannot be read."""
    random = np.random.default_rng(0)
    if arguments.payload_monotonic:
        return lambda first, count: number_array(np.arange(first, first + count)).cast(pa.string())
    if arguments.payload_file is not None:
        return _random_choice(_read_payloads(arguments.payload_file, arguments.payload_delimiter), random)
    return _random_letters(arguments.record_size, arguments.num_records, random)


def _read_payloads(file: Path, delimiter: str) -> pa.Array:
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--payload-file {file} cannot be read ({error}).") from error
    lines = text.split(delimiter.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t") or "\n")
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError(f"--payload-file {file} contains no payload.")
    return text_array(lines)


def _random_choice(values: pa.Array, random: np.random.Generator) -> PayloadSource:
    return lambda _first, count: values.take(number_array(random.integers(0, len(values), count)))


def _random_letters(size_bytes: int, records: int, random: np.random.Generator) -> PayloadSource:
    """Values of `size_bytes` letters. They are made once, as a pool; each chunk takes the next ones."""
    rows = max(1, min(records, POOL_BYTES // size_bytes))
    letters = random.integers(65, 91, rows * size_bytes, np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size_bytes)
    pool = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])

    def next_of_pool(first: int, count: int) -> pa.Array:
        start = first % rows
        if start + count <= rows:
            return pool.slice(start, count)
        return pool.take(number_array(np.arange(start, start + count) % rows))

    return next_of_pool
