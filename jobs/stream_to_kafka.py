"""Write a stream to a Kafka topic: new files in a directory, or any streaming source of Spark (rate, socket …).

    spark-submit --py-files pykafka_sink.zip,jobs/command_line.py,jobs/spark_job.py jobs/stream_to_kafka.py --input-format rate …

Parses arguments, builds a streaming DataFrame, and calls the sink. Runs until the trigger ends the query, the query fails, or
Ctrl-C comes. Prints to stderr how many rows are processed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.words import counted

if __package__:
    from jobs import command_line, spark_job
else:  # spark-submit adds this directory to the path, not its parent
    import command_line  # type: ignore[import-not-found,no-redef]
    import spark_job  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAMED_TRIGGERS: dict[str, dict[str, Any]] = {"available-now": {"availableNow": True}, "once": {"once": True}}
POLL_S = 2  # often enough: Spark keeps the progress of the last 100 batches
EXAMPLES = """
    python -m jobs.stream_to_kafka --input incoming/ --input-format json --topic events --checkpoint checkpoints/events \\
        --trigger '10 seconds' --bootstrap-servers localhost:9092
    python -m jobs.stream_to_kafka --input-format rate --value 'cast(value AS string)' --topic ticks \\
        --checkpoint checkpoints/ticks --bootstrap-servers localhost:9092
"""


def build_parser() -> argparse.ArgumentParser:
    description = "Write a stream to a Kafka topic: new files in a directory, or any streaming source of Spark."
    parser = command_line.new_parser("stream_to_kafka", description, EXAMPLES)
    parser.set_defaults(is_stream=True)
    add = parser.add_argument_group("stream").add_argument
    checkpoint_help = "directory where Spark records what the query has written, so that a restart continues there; one per query"
    add("--checkpoint", required=True, metavar="DIR", help=checkpoint_help)
    trigger_help = "available-now (write what is available, then end), once, or an interval like '10 seconds' (default: one batch"
    add("--trigger", default=None, metavar="WHEN", help=f"{trigger_help} after the other)")
    add("--query-name", default=None, metavar="NAME", help="name of the query in Spark's UI and log")
    return parser


def stream_to_kafka(spark: SparkSession, arguments: argparse.Namespace) -> str:
    """Run the query to its end. Returns the line that the job prints."""
    options = command_line.sink_options(arguments)
    writer = (
        command_line.records(_read_stream(spark, arguments), arguments).writeStream.format(spark_job.FORMAT).options(**options)
    )
    writer = writer.option("checkpointLocation", arguments.checkpoint).outputMode("append")
    if arguments.query_name:
        writer = writer.queryName(arguments.query_name)
    if arguments.trigger:
        writer = _with_trigger(writer, arguments.trigger)
    query = writer.start()
    totals = ProcessedRows()
    try:
        with spark_job.status_lines(spark, command_line.checked_options(arguments), has_progress=False):
            _follow(query, totals)
    finally:
        spark_job.call_on_other_thread(query.stop)
    return f"stream_to_kafka: the query to topic {options['topic']} ended: {totals}"


def _with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    from pyspark.errors import PySparkException

    try:
        return writer.trigger(**NAMED_TRIGGERS.get(trigger, {"processingTime": trigger}))
    except PySparkException as error:  # only Spark knows which intervals are valid
        reason = spark_job.failure_line(str(error))
        raise UsageError(f"--trigger {trigger}: not available-now, once, or an interval like '10 seconds' ({reason})") from error


def _follow(query: StreamingQuery, totals: ProcessedRows) -> None:
    """Wait until the query ends. Print how much is processed every STATUS_INTERVAL_S, if there are new rows."""
    printed_rows, printed_s = totals.rows, time.monotonic()
    while not query.awaitTermination(POLL_S):
        totals.add(query.recentProgress)
        if totals.rows > printed_rows and time.monotonic() - printed_s >= spark_job.STATUS_INTERVAL_S:
            spark_job.say(f"{totals} so far")
            printed_rows, printed_s = totals.rows, time.monotonic()
    totals.add(query.recentProgress)


class ProcessedRows:
    """Counts a query's rows and batches from its progress reports, in which Spark also counts rows that the sink has skipped or
    dead-lettered."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self._counted_batches: set[tuple[int, str]] = set()  # (id, timestamp): Spark reports an id again when no rows come

    def add(self, progress_reports: Iterable[Mapping[str, Any]]) -> None:
        """Count the batches that have rows and are new."""
        rows_by_batch = {(each["batchId"], each["timestamp"]): max(0, each["sink"]["numOutputRows"]) for each in progress_reports}
        new_rows = {key: rows for key, rows in rows_by_batch.items() if key not in self._counted_batches and rows}
        self._counted_batches = set(rows_by_batch)  # a batch that Spark no longer lists does not come back
        self.rows += sum(new_rows.values())
        self.batches += len(new_rows)

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')} processed in {counted(self.batches, 'batch', 'batches')}"


def _read_stream(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """Spark needs the schema of files before the query starts: --schema, else the schema of the files that exist now."""
    format_name = command_line.input_format(arguments)
    options = command_line.input_options(arguments, format_name)
    reader = spark.readStream.format(format_name).options(**options)
    if arguments.schema:
        reader = reader.schema(arguments.schema)
    elif arguments.input:
        reader = reader.schema(spark.read.format(format_name).options(**options).load(arguments.input).schema)
    return reader.load(arguments.input)


def main(argv: list[str] | None = None) -> int:
    return spark_job.run(build_parser(), stream_to_kafka, argv)


if __name__ == "__main__":
    sys.exit(main())
