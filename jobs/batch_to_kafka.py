"""Write a file or directory to a Kafka topic: python -m jobs.batch_to_kafka, or the same file given to spark-submit.

    spark-submit --py-files pykafka_sink.zip,jobs/command_line.py,jobs/spark_job.py jobs/batch_to_kafka.py --input …

pykafka_sink.zip is the wheel under another name: Spark passes a .zip on to its workers, and ignores a .whl.
Parses arguments, builds a DataFrame, and calls the sink. A long write prints its progress to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import printable

if __package__:
    from jobs import command_line, spark_job
else:  # spark-submit adds this directory to the path, not its parent
    import command_line  # type: ignore[import-not-found,no-redef]
    import spark_job  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = """
    python -m jobs.batch_to_kafka --input flights.csv --topic flights --key carrier --bootstrap-servers localhost:9092
    python -m jobs.batch_to_kafka --input s3a://bucket/orders/ --input-format parquet --topic orders \\
        --key 'cast(id AS string)' --value 'to_json(struct(id, total))' --config conf/sink.properties --config secrets.properties
    python -m jobs.batch_to_kafka --input orders/2026-11-23.json --topic orders --exactly-once orders --txn-version 20261123 \\
        --bootstrap-servers localhost:9092
    python -m jobs.batch_to_kafka --input orders.parquet --topic orders --key customer --value-format avro \\
        --option schema.registry.url=http://localhost:8081 --bootstrap-servers localhost:9092
"""


def build_parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("batch_to_kafka", "Write a file or a directory to a Kafka topic, once.", EXAMPLES)
    version_help = "with --exactly-once: number of this write, higher for each new one; the same number again writes nothing"
    version_help += " twice (txnVersion; txnAppId is NAME)"
    parser.add_argument_group("batch").add_argument("--txn-version", metavar="N", help=version_help)
    return parser


def batch_to_kafka(spark: SparkSession, arguments: argparse.Namespace) -> str:
    """Write the input once. Returns the line that the job prints."""
    start_s = time.monotonic()
    format_name = command_line.input_format(arguments)
    reader = spark.read.format(format_name).options(**command_line.input_options(arguments, format_name))
    if arguments.schema:
        reader = reader.schema(arguments.schema)
    rows = command_line.records(reader.load(arguments.input), arguments)
    write_start_s = time.monotonic()
    checked_options = command_line.checked_options(arguments)
    with with_report_path(command_line.sink_options(arguments)) as (options, read_report):
        with spark_job.status_lines(spark, checked_options):
            rows.write.format(spark_job.FORMAT).options(**options).mode("append").save()
        report = read_report()
    stop_s = time.monotonic()
    return (
        f"batch_to_kafka: wrote {rows_in_words(report)}{arguments.input or format_name} to topic {options['topic']} in"
        f" {stop_s - start_s:.1f} s ({write_start_s - start_s:.1f} s to find columns and types,"
        f" {stop_s - write_start_s:.1f} s to write){reason_not_written(report)}"
    )


@contextlib.contextmanager
def with_report_path(options: dict[str, str]) -> Iterator[tuple[dict[str, str], Callable[[], Mapping[str, Any] | None]]]:
    """The options with a reportPath, and a function that reads the report that the write appends to that file.

    Uses a temporary file if the user has set none. The user's file may contain reports of other writes.
    """
    with tempfile.TemporaryDirectory(prefix="pykafka-sink-") as directory:
        name = next((each for each in options if each.lower() == "reportpath"), "reportPath")
        path = options.get(name) or str(Path(directory, "report.jsonl"))
        start = Path(path).stat().st_size if Path(path).exists() else 0
        yield {**options, name: path}, partial(_only_report, Path(path), start)


def _only_report(path: Path, start: int) -> Mapping[str, Any] | None:
    """The report from byte `start` on. None without a report: the sink has logged why it could not write one. None as well if
    there are several, because other writes have appended to the file meanwhile."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            (line,) = file.read().strip().splitlines()
        report: Mapping[str, Any] = json.loads(line)
    except (OSError, ValueError):
        return None
    return report


def rows_in_words(report: Mapping[str, Any] | None) -> str:
    """The number of rows, to be followed by their source; nothing without a report."""
    if report is None:
        return ""
    counts = {"skipped": report["skipped"], "dead-lettered": report["dead_lettered"]}
    other_counts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{report['rows']:,} rows{f' ({other_counts})' if other_counts else ''} of "


# Why an exactly-once write has not written its version: what had become of that version before.
_NOT_WRITTEN = {
    "found": "was in Kafka already",
    "rolled-forward": "had been written by an earlier run, and is committed now",
    "superseded": "was in Kafka already, as a higher one is",
}


def reason_not_written(report: Mapping[str, Any] | None) -> str:
    """Why an exactly-once write has not written all of its version; empty if it has."""
    version = (report or {}).get("exactly_once") or {}
    reason = _NOT_WRITTEN.get(version.get("how", ""))
    return "" if reason is None else f"; number {version['version']} of {printable(version['owner'])} {reason}"


def main(argv: list[str] | None = None) -> int:
    return spark_job.run(build_parser(), batch_to_kafka, argv)


if __name__ == "__main__":
    sys.exit(main())
