"""The arguments of the Spark jobs: what to read, what to write, and the options of the sink.

spark_job.py runs a job with them.
Law: passwords and other secrets are never printed or logged. They belong in a --config file: every user of the machine can see a
command line.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.tools.arguments import new_parser as new_tool_parser
from spark_kafka_sink.tools.arguments import parse_pair
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.sink_arguments import add_sink_arguments
from spark_kafka_sink.tools.sink_arguments import sink_options as sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_kafka_sink.config.sink_options import SinkOptions

FORMAT_OF_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
COMPRESSION_SUFFIXES = {".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate"}
INPUT_DEFAULTS = {"csv": {"header": "true", "inferSchema": "true"}}
AVRO = "avro"
RECORD_TYPES = ("string", "binary", "varchar", "char")  # of keys and values


def new_parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all Spark jobs take; --help ends with examples and the exit codes."""
    full_description = f"{description} Run it with python -m from the top of a checkout, or with spark-submit from anywhere."
    success, failure = "all rows are acknowledged, skipped or dead-lettered", "failed, with one line that says why"
    parser = new_tool_parser(name, full_description, examples, success=success, failure=failure)
    add = parser.add_argument_group("input").add_argument
    add("--input", metavar="PATH", help="file or directory; any path that Spark reads, like hdfs:// or s3a://")
    add("--input-format", metavar="NAME", help="csv, json, parquet or any Spark format (default: from the extension of --input)")
    option_help = "for Spark's reader; repeatable"
    add("--input-option", type=parse_pair, action="append", default=[], metavar="NAME=VALUE", help=option_help)
    add("--schema", metavar="DDL", help="columns of the input, like 'id INT, name STRING' (default: found in the input)")
    add = parser.add_argument_group("records, as SQL expressions over the input's columns").add_argument
    key_help = "the key, a string or binary, like 'cast(id AS string)'; rows with equal keys go to one partition (default: none)"
    add("--key", metavar="SQL", help=key_help)
    add("--value", metavar="SQL", help="the value, a string or binary (default: the row as JSON; with avro the row as a struct)")
    add("--headers", metavar="SQL", help="the headers, as array<struct<key: string, value: binary>> (default: none)")
    add_sink_arguments(parser)
    add = parser.add_argument_group("output").add_argument
    add("--verbose", action="store_true", help="show Spark's log and full stack traces")
    parser.set_defaults(is_stream=False)
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises UsageError for everything that can be checked before Spark starts."""
    sink_options(arguments)
    input_format(arguments)
    if arguments.value is not None and not arguments.value.strip():
        raise UsageError("--value is empty: pass an SQL expression, or leave it out to write the row as JSON.")
    _check_types_of_schema(arguments)
    _require_name(checked_options(arguments), is_stream=arguments.is_stream)


def _require_name(options: SinkOptions, *, is_stream: bool) -> None:
    """Raises UsageError for an exactly-once batch without a name, which would otherwise fail later, in its tasks."""
    from spark_kafka_sink.config.sink_options import EXACTLY_ONCE

    is_named = is_stream or options.txn_app_id is not None or options.allow_unnamed_write
    if options.delivery_guarantee == EXACTLY_ONCE and not is_named:
        raise UsageError(
            "A batch write with exactly-once needs a number: pass --txn-version N, higher for each new write, so that a"
            " repetition is recognized; or --option allowUnnamedWrite=true, if a repetition may write all rows again."
        )


# OPTIONS OF THE SINK


def checked_options(arguments: argparse.Namespace) -> SinkOptions:
    """The sink's options, checked without Spark. Raises UsageError for problems that would fail the write.

    Logs no warnings: the sink checks the options again when Spark plans the write, in another process, and logs them there.
    """
    from spark_kafka_sink.errors import ConfigError
    from spark_kafka_sink.sink.datasource import check_options
    from spark_kafka_sink.stderr_log import without_warnings

    try:
        with without_warnings():
            return check_options(sink_options(arguments), is_stream=arguments.is_stream)
    except ConfigError as error:
        raise UsageError(str(error)) from error


# INPUT AND RECORDS


def input_format(arguments: argparse.Namespace) -> str:
    """Spark's name for the format of the input: --input-format, else from the extension of --input. Raises UsageError."""
    if arguments.input_format:
        return str(arguments.input_format)
    if not arguments.input:
        raise UsageError("--input is missing: name a file or directory (or an --input-format that needs none).")
    suffixes = [suffix for suffix in Path(arguments.input).suffixes if suffix not in COMPRESSION_SUFFIXES]
    format_name = FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if format_name is None:
        raise UsageError(f"The format of {arguments.input} is not known from its extension: pass --input-format.")
    return format_name


def input_options(arguments: argparse.Namespace, format_name: str) -> dict[str, str]:
    """The options for Spark's reader: --input-option, which overrides INPUT_DEFAULTS."""
    return INPUT_DEFAULTS.get(format_name, {}) | dict(arguments.input_option)


def records(rows: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """The rows with the sink's columns: key, value and headers. Raises UsageError if a key or value has another type."""
    formats = _formats(arguments)
    default = "struct(*)" if formats["value"] == AVRO else "to_json(struct(*))"
    columns = {"key": arguments.key, "value": arguments.value or default, "headers": arguments.headers}
    selection = rows.selectExpr(*(f"({expression}) AS {name}" for name, expression in columns.items() if expression))
    for name, type_name in selection.dtypes:
        if formats.get(name, AVRO) != AVRO:
            _check_type(name, columns[name], type_name)
    return selection


def _formats(arguments: argparse.Namespace) -> dict[str, str]:
    """The formats of key and value. The sink checks the names."""
    options = sink_options(arguments)
    return {part: options.get(f"{part}Format", "").strip().lower() for part in ("key", "value")}


def _check_types_of_schema(arguments: argparse.Namespace) -> None:
    """Check the type of a key or value that is a column of --schema, before Spark starts."""
    columns, count = arguments.schema or "", 1
    while count:  # leaves out comments, and what is nested
        columns, count = re.subn(r"'[^']*'|<[^<>]*>", "", columns)
    for name, expression in (("key", arguments.key), ("value", arguments.value)):
        if _formats(arguments)[name] != AVRO and re.fullmatch(r"\w+", expression or ""):
            match = re.search(rf"(?:^|,)\s*`?{expression}`?\s*:?\s+(\w+)", columns, re.IGNORECASE)
            if match:
                _check_type(name, expression, match[1].lower())


def _check_type(name: str, expression: str, type_name: str) -> None:
    if re.split(r"\W", type_name)[0] not in RECORD_TYPES:  # varchar(10), string collate UTF8_LCASE
        raise UsageError(
            f"--{name} {expression} is of type {type_name}, and a {name} is a string or binary:"
            f" pass --{name} 'cast({expression} AS string)', or another expression."
        )
