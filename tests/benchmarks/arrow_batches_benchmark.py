"""What the size of Spark's Arrow batches costs: rows/s and client CPU seconds per million rows, by value size.

    python -m tests.benchmarks.arrow_batches_benchmark [--values 100,1000] [--mib 300] [--repeats 4] [--codec none] …
    python -m tests.benchmarks.arrow_batches_benchmark --cases "1m by bytes" "buffer 256k" "buffer 1m"
    python -m tests.benchmarks.arrow_batches_benchmark --cases "1m by bytes" lz4 zstd --mib 3

Spark hands rows to Python in Arrow batches, which it cuts by rows (spark.sql.execution.arrow.maxRecordsPerBatch) or by bytes
(spark.sql.execution.arrow.maxBytesPerBatch). Each setting is measured with this sink and with a writer that discards, all in one
run and in turns; ratios compare with the first case. "1m by rows" is the number of rows that makes batches of 1 MiB. lz4, zstd:
batches of 1 MiB, which Spark compresses (spark.sql.execution.arrow.compression.codec). "buffer": batches of 1 MiB, which cross to
Python in pieces of this size instead of 64 KiB (spark.sql.execution.pandas.udf.buffer.size, by default spark.buffer.size).
Settings given with --conf hold for a whole run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.local_kafka import LocalKafka
from tests.benchmarks.measuring import Usage
from tests.benchmarks.sink_benchmark import KEY_BYTES, Bench, Variant, session, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
COMPRESSION = "spark.sql.execution.arrow.compression.codec"
BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
SIZES = {"512k": 2**19, "1m": 2**20, "2m": 2**21, "4m": 2**22}
ROW_OVERHEAD = 16  # offsets and validity of two columns

DEFAULTS = "defaults"
SINK = Variant("this sink", "pykafka-sink")
DISCARD = Variant("discard", "discard")


def settings(value_bytes: int, sizes: list[str]) -> dict[str, dict[str, str]]:
    row_bytes = KEY_BYTES + value_bytes + ROW_OVERHEAD
    cases: dict[str, dict[str, str]] = {DEFAULTS: {}}
    for size in sizes:
        cases[f"{size} by bytes"] = {BYTES: size}
        cases[f"{size} by rows"] = {ROWS: str(max(1, SIZES[size] // row_bytes))}
    cases["1,000 rows"] = {ROWS: "1000"}
    cases["bytes counted, never reached"] = {BYTES: "1g"}
    cases |= {codec: {BYTES: "1m", COMPRESSION: codec} for codec in ("lz4", "zstd")}
    cases |= {f"buffer {name}": {BYTES: "1m", BUFFER: str(size)} for name, size in (("256k", 2**18), ("1m", 2**20))}
    return cases


def measure(
    spark: SparkSession, bench: Bench, frame: DataFrame, cases: dict[str, dict[str, str]], codec: str, repeats: int
) -> dict[tuple[str, str], list[Usage]]:
    """What each run took, by setting and variant. Settings take turns; the first turn is a warm-up and is not counted."""
    usages: dict[tuple[str, str], list[Usage]] = {(name, each.name): [] for name in cases for each in (SINK, DISCARD)}
    for repeat in range(-1, repeats):
        turn = repeat % len(cases)
        for name in [*cases][turn:] + [*cases][:turn]:
            for key, value in cases[name].items():
                spark.conf.set(key, value)
            for variant in (SINK, DISCARD):
                used = bench.run(variant, frame, codec)
                if repeat >= 0:
                    usages[name, variant.name].append(used)
            for key in cases[name]:
                spark.conf.unset(key)
    return usages


def show(rows: int, usages: dict[tuple[str, str], list[Usage]]) -> None:
    def median(name: str, variant: Variant, figure: str) -> float:
        return statistics.median(getattr(usage, figure) for usage in usages[name, variant.name])

    print(f"{'':32}{'rows/s':>12}{'ratio':>8}{'CPU s/M':>10}{'ratio':>8}{'discard, CPU s/M':>20}")
    names = list(dict.fromkeys(name for name, _ in usages))
    default_wall, default_cpu = (median(names[0], SINK, figure) for figure in ("wall_s", "client_cpu_s"))
    for name in names:
        wall, cpu = median(name, SINK, "wall_s"), median(name, SINK, "client_cpu_s")
        print(
            f"{name:32}{rows / wall:>12,.0f}{default_wall / wall:>8.2f}{cpu / rows * 1e6:>10.2f}{cpu / default_cpu:>8.2f}"
            f"{median(name, DISCARD, 'client_cpu_s') / rows * 1e6:>20.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", default="100,300,1000,10000,100000", help="value sizes in bytes")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of batches")
    parser.add_argument("--cases", nargs="+", help="only these, as they are printed")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, repeatable")
    parser.add_argument("--mib", type=int, default=300, help="of keys and values in each run")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder), heap="1g") as broker:
        spark = session(arguments.master, {"spark.python.unix.domain.socket.enabled": "true", **spark_settings(arguments)})
        bench = Bench(spark, broker, 6)
        for value_bytes in map(int, arguments.values.split(",")):
            rows = arguments.mib * 2**20 // (KEY_BYTES + value_bytes)
            frame = bench.frame(rows, value_bytes)
            cases = settings(value_bytes, arguments.sizes.split(","))
            if arguments.cases is not None:
                cases = {name: cases[name] for name in arguments.cases}
            usages = measure(spark, bench, frame, cases, arguments.codec, arguments.repeats)
            print(f"\n{rows:,} rows, value {value_bytes} B, {arguments.codec}, medians of {arguments.repeats}")
            show(rows, usages)
        spark.stop()


if __name__ == "__main__":
    main()
