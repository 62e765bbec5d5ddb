"""What the fingerprint of exactly-once writes costs: `python -m tests.benchmarks.fingerprint_benchmark [--repeats N]`.

One core, no broker. The last column compares it with what the encoder needs for the same rows, measured alternately: hash the
keys, sort the rows, write the batches of six partitions, uncompressed. Prints the fastest of all repeats, which a busy machine
disturbs least; ratios between the columns of one run tell more than the numbers of two machines.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_kafka_sink.exactly_once.fingerprint import content_of
from tests.benchmarks.encoder_benchmark import Case, encode, of_mixed_sizes, of_size, partition
from tests.records.batches import HEADERS

ROWS = 10_000  # of Spark's Arrow batches
BATCH_BYTES = 4_000_000
KEY_BYTES = 8


def cases() -> list[Case]:
    sizes = (10, 100, 300, 1_000, 10_000)
    fixed = [Case(f"value {size:,} B", of_size(rows_of(size), size)) for size in sizes]
    mixed = [Case(f"value 0-{2 * size:,} B", of_mixed_sizes(rows_of(size), 2 * size)) for size in sizes]
    keyed = [
        Case(f"key {KEY_BYTES} B, {case.name}", case.value, of_size(len(case.value), KEY_BYTES)) for case in (*fixed, *mixed)
    ]
    headers = pa.array([[("trace", b"0123456789abcdef"), ("source", b"app")]] * ROWS, HEADERS)
    return [*fixed, *mixed, *keyed, Case("value 100 B, 2 headers", of_size(ROWS, 100), headers=headers)]


def rows_of(size: int) -> int:
    return min(ROWS, BATCH_BYTES // size)


def columns(case: Case) -> dict[str, Any]:
    value = pa.chunked_array([case.value])
    return {"topic": "orders", "value": value, "key": case.key, "partition": None, "headers": case.headers}


def fingerprint_of(batch: dict[str, Any]) -> int:
    return content_of(batch).fingerprint


def cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    pa.set_cpu_count(1)
    print(f"{'':34} {'fingerprint':>11} {'':>8} {'encoder':>9} {'fingerprint':>11}")
    print(f"{'':34} {'ms/M rows':>11} {'MB/s':>8} {'ms/M rows':>9} {'/ encoder':>11}")
    for case in cases():
        rows, batch = len(case.value), columns(case)
        fingerprint_of(batch)
        hashing = encoding = float("inf")
        for _ in range(repeats):
            hashing = min(hashing, cpu_seconds(lambda: fingerprint_of(batch)))  # noqa: B023
            encoding = min(encoding, cpu_seconds(lambda: encode(case, *partition(case))))  # noqa: B023
        size = sum(column.nbytes for column in (case.value, case.key, case.headers) if column is not None)
        print(
            f"{case.name:34} {hashing / rows * 1e9:11.0f} {size / hashing / 1e6:8.0f} {encoding / rows * 1e9:9.0f}"
            f" {hashing / encoding:11.0%}"
        )


if __name__ == "__main__":
    main()
