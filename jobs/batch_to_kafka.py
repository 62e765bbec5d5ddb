"""Write a file or directory to a Kafka topic: python -m jobs.batch_to_kafka, or the same file given to spark-submit.

    python -m jobs.batch_to_kafka --input flights.csv --topic flights --key carrier --bootstrap-servers localhost:9092
    spark-submit --py-files pykafka_sink.zip,jobs/command_line.py jobs/batch_to_kafka.py --input …

pykafka_sink.zip is the wheel under that name: Spark hands its workers a .zip, and leaves a .whl aside.
Parses arguments, builds a DataFrame, calls the sink. A long write says on stderr how far it is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if __package__:
    from jobs import command_line
else:  # spark-submit puts this folder on the path, not its parent
    import command_line  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "pykafka-sink"
EXAMPLES = """
    python -m jobs.batch_to_kafka --input flights.csv --topic flights --key carrier --bootstrap-servers localhost:9092
    python -m jobs.batch_to_kafka --input s3a://bucket/orders/ --input-format parquet --topic orders \\
        --key 'cast(id AS string)' --value 'to_json(struct(id, total))' --config conf/sink.properties --config secrets.properties
"""


def build_parser() -> argparse.ArgumentParser:
    return command_line.new_parser("batch_to_kafka", "Write a file or a directory to a Kafka topic, once.", EXAMPLES)


def batch_to_kafka(spark: SparkSession, arguments: argparse.Namespace) -> str:
    """Write the input once. Returns the line to print."""
    started = time.monotonic()
    format_name = command_line.input_format(arguments)
    reader = spark.read.format(format_name).options(**command_line.input_options(arguments, format_name))
    if arguments.schema:
        reader = reader.schema(arguments.schema)
    rows = command_line.records(reader.load(arguments.input), arguments)
    known = time.monotonic()
    checked = command_line.checked_options(arguments)
    with command_line.reported(command_line.sink_options(arguments)) as (options, report):
        with command_line.status_lines(spark, checked):
            rows.write.format(FORMAT).options(**options).mode("append").save()
        written = in_words(report.read())
    ended = time.monotonic()
    return (
        f"batch_to_kafka: wrote {written}{arguments.input or format_name} to topic {options['topic']} in {ended - started:.1f} s"
        f" ({known - started:.1f} s to find columns and types, {ended - known:.1f} s to write)"
    )


def in_words(report: Mapping[str, Any] | None) -> str:
    """How many rows, before their source; nothing if nobody knows."""
    if report is None:
        return ""
    others = {"skipped": report["skipped"], "dead-lettered": report["dead_lettered"]}
    rest = ", ".join(f"{count:,} {name}" for name, count in others.items() if count)
    return f"{report['rows']:,} rows{f' ({rest})' if rest else ''} of "


def main(argv: list[str] | None = None) -> int:
    return command_line.run(build_parser(), batch_to_kafka, argv)


if __name__ == "__main__":
    sys.exit(main())
