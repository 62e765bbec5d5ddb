"""How fast columns become batches: `python -m tests.benchmarks.encoder_benchmark [--repeats N]`.

One core, no broker. "encode" is all that happens to a slice here: prepare the columns, count, write the records in partition
order, make one header with its checksum for each partition. "partition" is what comes before: hash the keys, sort the rows.
Prints medians; ratios between lines of one run tell more than the numbers of two machines.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.columns import record_columns
from spark_kafka_sink.records.murmur2 import partition_for_keys
from spark_kafka_sink.records.record_batch import encode_batch_header
from tests.records.batches import HEADERS, encode_records

PARTITIONS = 6
TIMESTAMP = 1_700_000_000_000
_source = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    name: str
    value: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None
    timestamps: pa.Array | int = TIMESTAMP


def payload(lengths: NDArray[np.int64]) -> pa.Array:
    """Random bytes, so many for each row."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = pa.py_buffer(_source.bytes(int(offsets[-1])))
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), data])


def of_size(rows: int, size: int) -> pa.Array:
    return payload(np.full(rows, size, np.int64))


def of_mixed_sizes(rows: int, limit: int) -> pa.Array:
    return payload(_source.integers(0, limit + 1, rows))


def cases() -> list[Case]:
    two_headers = pa.array([[("trace", b"0123456789abcdef"), ("source", b"app")]] * 10_000, HEADERS)
    event_times = pa.array(TIMESTAMP + _source.integers(0, 3_600_000, 20_000))
    return [
        *(
            Case(f"key 8 B, value 100 B, {rows:,} rows", of_size(rows, 100), of_size(rows, 8))
            for rows in (10_000, 20_000, 40_000)
        ),
        Case("the same, 500 rows", of_size(500, 100), of_size(500, 8)),
        Case("the same, a timestamp for each row, 20,000 rows", of_size(20_000, 100), of_size(20_000, 8), timestamps=event_times),
        Case("null key, value 100 B, 20,000 rows", of_size(20_000, 100)),
        Case("key 8 B, value 1000 B, 4,000 rows", of_size(4_000, 1000), of_size(4_000, 8)),
        Case("key 8 B, value 100 B, 2 headers, 10,000 rows", of_size(10_000, 100), of_size(10_000, 8), two_headers),
        Case("key 0-40 B, value 0-1000 B, 5,000 rows", of_mixed_sizes(5_000, 1000), of_mixed_sizes(5_000, 40)),
    ]


def partition(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows in partition order, where each partition's rows begin, and the offset delta of each row."""
    rows = len(case.value)
    partitions = np.arange(rows) * PARTITIONS // rows if case.key is None else partition_for_keys(case.key, PARTITIONS)
    order = np.argsort(partitions.astype(np.uint16), kind="stable")
    counts = np.bincount(partitions, minlength=PARTITIONS)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return order, starts, np.arange(rows) - np.repeat(starts[:-1], counts)


def encode(case: Case, order: NDArray[np.int64], starts: NDArray[np.int64], offset_deltas: NDArray[np.int64]) -> int:
    """Bytes of the batches."""
    columns = record_columns(case.value, case.key, case.headers, case.timestamps)
    deltas = 0 if isinstance(columns.timestamps, int) else columns.timestamps[order] - TIMESTAMP
    encoded = encode_records(columns, offset_deltas, deltas, order)
    size = 0
    for first, end in itertools.pairwise(starts):
        records = encoded.data[encoded.offsets[first] : encoded.offsets[end]]
        header = encode_batch_header(
            [records], record_count=int(end - first), base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP + 3_600_000
        )
        size += len(header) + len(records)
    return size


def median_cpu_seconds(function: Callable[[], object], repeats: int, calls: int) -> float:
    """CPU time of one call: the median over `repeats` of the mean over `calls`."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            function()
        seconds.append((time.process_time() - start) / calls)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    pa.set_cpu_count(1)
    print(f"{'':50} {'encode':>28} {'':>9} {'partition':>10}")
    print(f"{'':50} {'M rows/s':>9} {'CPU s/M':>9} {'MB/s':>8} {'B/row':>9} {'CPU s/M':>10}")
    for case in cases():
        rows = len(case.value)
        calls = max(1, 100_000 // rows)
        parts = partition(case)
        size = encode(case, *parts)
        encoding = median_cpu_seconds(lambda: encode(case, *parts), repeats, calls)  # noqa: B023
        partitioning = median_cpu_seconds(lambda: partition(case), repeats, calls)  # noqa: B023
        print(
            f"{case.name:50} {rows / encoding / 1e6:9.1f} {encoding / rows * 1e6:9.3f} {size / encoding / 1e6:8.0f}"
            f" {size / rows:9.1f} {partitioning / rows * 1e6:10.3f}"
        )


if __name__ == "__main__":
    main()
