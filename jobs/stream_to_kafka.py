"""Write a stream to a Kafka topic: files as they arrive in a directory, or any streaming source of Spark (rate, socket …).

    python -m jobs.stream_to_kafka --input incoming/ --input-format json --topic events --checkpoint checkpoints/events \\
        --bootstrap-servers localhost:9092 --trigger '10 seconds'
    spark-submit --py-files pykafka_sink.zip,jobs/command_line.py jobs/stream_to_kafka.py --input-format rate …

Parses arguments, builds a streaming DataFrame, calls the sink. Runs until the trigger ends it, the query fails, or Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

try:
    from jobs import command_line
except ImportError:  # spark-submit puts this folder on the path, not its parent
    import command_line  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "pykafka-sink"
NAMED_TRIGGERS: dict[str, dict[str, Any]] = {"available-now": {"availableNow": True}, "once": {"once": True}}
PROGRESS_INTERVAL_S = 5


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stream_to_kafka", description="Write a stream to a Kafka topic.")
    command_line.add_arguments(parser)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="DIR", help="where Spark remembers what was written; one directory per query")
    add("--trigger", default=None, help="available-now, once, or an interval like '10 seconds' (default: batch after batch)")
    add("--query-name", default=None, help="name of the query in Spark's UI and logs")
    return parser


def stream_to_kafka(spark: SparkSession, arguments: argparse.Namespace) -> str:
    """Run the query to its end. Returns the line to print."""
    options = command_line.sink_options(arguments)
    writer = command_line.records(_read_stream(spark, arguments), arguments).writeStream.format(FORMAT).options(**options)
    writer = writer.option("checkpointLocation", arguments.checkpoint).outputMode("append")
    if arguments.query_name:
        writer = writer.queryName(arguments.query_name)
    if arguments.trigger:
        writer = writer.trigger(**NAMED_TRIGGERS.get(arguments.trigger, {"processingTime": arguments.trigger}))
    query = writer.start()
    try:
        _follow(query)
    finally:
        query.stop()
    return f"stream_to_kafka: the query to topic {options['topic']} ended"


def _read_stream(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """Files need a schema before the first one is read: the one given, else that of the files that are there now."""
    format_name = command_line.input_format(arguments)
    options = command_line.input_options(arguments, format_name)
    reader = spark.readStream.format(format_name).options(**options)
    if arguments.schema:
        reader = reader.schema(arguments.schema)
    elif arguments.input:
        reader = reader.schema(spark.read.format(format_name).options(**options).load(arguments.input).schema)
    return reader.load(arguments.input)


def _follow(query: StreamingQuery) -> None:
    """Wait for the query's end; on a terminal, show each new batch."""
    shown = None
    while not query.awaitTermination(PROGRESS_INTERVAL_S):
        progress = query.lastProgress
        if sys.stderr.isatty() and progress is not None and progress["batchId"] != shown:
            shown = progress["batchId"]
            rate = progress["processedRowsPerSecond"] or 0
            print(f"batch {shown}: {progress['numInputRows']:,} rows, {rate:,.0f} rows/s", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    return command_line.run(build_parser(), stream_to_kafka, argv)


if __name__ == "__main__":
    sys.exit(main())
