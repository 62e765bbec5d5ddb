"""What the jobs share: arguments, .properties files, and one clear line when something fails.

Nothing here knows Kafka or what the sink does with an option. Exit codes: EXIT_CODES.
Law: the value of an option is never printed or logged; it may be a password. Such values belong in a --config file, because
a command line can be seen by every user of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Job = Callable[[SparkSession, argparse.Namespace], str]

FORMAT_OF_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
COMPRESSION_SUFFIXES = {".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate"}
INPUT_DEFAULTS = {"csv": {"header": "true", "inferSchema": "true"}}
EXIT_CODES = "exit codes: 0 all rows are acknowledged, 1 failed, with one line that says why, 2 usage, 130 Ctrl-C"
STOP_LIMIT_S = 120  # Spark may wait a minute for a query's thread
STATUS_INTERVAL_S = 10  # between the lines of a long write
DEFAULT_VALUE = "to_json(struct(*))"
# Every other producer key of Kafka has a dot, and no option of the sink has.
DOTLESS_KAFKA_KEYS = {"acks", "retries"}
# Those that the jobs look for themselves, however they are spelt: to the sink, case makes no difference.
NAMED_OPTIONS = {name: name for name in ("kafka.bootstrap.servers", "topic")}

LOGGING = Path(__file__).resolve().parent.parent / "conf" / "log4j2.properties"

_interrupted = threading.Event()  # by Ctrl-C, since the job began
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# These repeat, with a stack trace each, what the exception says that reaches the job.
LOGGERS_THAT_REPEAT_FAILURES = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)


class UsageError(Exception):
    """The command line or a file it names is wrong: one sentence, exit code 2."""


def new_parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser of the arguments that both jobs take; --help ends with examples and the exit codes."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("what to read").add_argument
    add("--input", metavar="PATH", help="file or directory; any that Spark reads, like hdfs:// or s3a://")
    add("--input-format", metavar="NAME", help="csv, json, parquet or any Spark format (default: by the extension of --input)")
    add("--input-option", type=pair, action="append", default=[], metavar="NAME=VALUE", help="of Spark's reader; repeatable")
    add("--schema", metavar="DDL", help="columns of the input, like 'id INT, name STRING' (default: read from the input)")
    add = parser.add_argument_group("what to write: SQL expressions over the input's columns").add_argument
    add("--key", metavar="SQL", help="the key, a string or binary: rows with equal keys share a partition (default: no key)")
    add("--value", metavar="SQL", default=DEFAULT_VALUE, help="the value, a string or binary (default: the row as JSON)")
    add("--headers", metavar="SQL", help="the headers: array<struct<key: string, value: binary>> (default: none)")
    add = parser.add_argument_group("where to").add_argument
    add("--topic", help="topic to write to (or `topic` in --config)")
    add("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers (or `bootstrap.servers` in --config)")
    add("--option", type=pair, action="append", default=[], metavar="NAME=VALUE", help="of the sink, or kafka.<key>; repeatable")
    what = "options of the sink and Kafka's, one NAME=VALUE a line: the place for passwords; repeatable; samples in conf/"
    add("--config", type=Path, action="append", default=[], metavar="FILE", help=what)
    add = parser.add_argument_group("while running").add_argument
    add("--verbose", action="store_true", help="show Spark's log and whole stack traces")
    return parser


def pair(text: str) -> tuple[str, str]:
    """name=value"""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("not NAME=VALUE")  # without the text: it may be a secret
    return name.strip(), value


# --- options of the sink ----------------------------------------------------------------------------------------------


def sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The sink's options: files in their order, then --option, then the arguments that have a name of their own."""
    options: dict[str, str] = {}
    for file in arguments.config:
        options |= {option_name(key): value for key, value in read_properties(file).items()}
    options |= {NAMED_OPTIONS.get(name.lower(), name): value for name, value in arguments.option}
    if arguments.bootstrap_servers:
        options["kafka.bootstrap.servers"] = arguments.bootstrap_servers
    if arguments.topic:
        options["topic"] = arguments.topic
    for name, argument in (("kafka.bootstrap.servers", "--bootstrap-servers"), ("topic", "--topic")):
        if not options.get(name, "").strip():
            raise UsageError(f"{argument} is missing: pass it, or set it in a --config file.")
    return options


def option_name(key: str) -> str:
    """The sink's name of a key in a .properties file: Kafka's own keys may be written without `kafka.`."""
    is_kafka_key = "." in key or key in DOTLESS_KAFKA_KEYS
    name = f"kafka.{key}" if is_kafka_key and not key.lower().startswith("kafka.") else key
    return NAMED_OPTIONS.get(name.lower(), name)


def read_properties(file: Path, argument: str = "--config") -> dict[str, str]:
    """The pairs of a Java .properties file, which `argument` names; UsageError when it cannot be read."""
    try:
        return parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{argument} {file} cannot be read ({error}).") from error
    except ValueError as error:
        raise UsageError(f"{argument} {file}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    """java.util.Properties' format: # and ! comments; = : or blanks after the key; escapes; a final backslash joins lines."""
    properties = {}
    for line in _logical_lines(text):
        key, value = _split_at_separator(line)
        properties[_unescape(key)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    continued = False
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(" \t\f")
        if not continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        ends_open = backslashes % 2 == 1
        piece = line[:-1] if ends_open else line
        if continued:
            lines[-1] += piece
        else:
            lines.append(piece)
        continued = ends_open
    return [line for line in lines if line]


def _split_at_separator(line: str) -> tuple[str, str]:
    match = re.match(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", line, re.DOTALL)
    assert match is not None, "the pattern matches every line"
    return match.group(1), match.group(2)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    return re.sub(r"\\(u.{0,4}|.)", _unescape_one, text, flags=re.DOTALL)


def _unescape_one(match: re.Match[str]) -> str:
    escaped = match.group(1)
    if escaped[0] != "u":
        return _ESCAPES.get(escaped, escaped)
    if not re.fullmatch(r"u[0-9A-Fa-f]{4}", escaped):
        raise ValueError("a \\u escape needs four hexadecimal digits.")  # without the text: it may be a secret
    return chr(int(escaped[1:], 16))


# --- input and records ------------------------------------------------------------------------------------------------


def input_format(arguments: argparse.Namespace) -> str:
    """Spark's format of the input: as named, else by the extension of its path."""
    if arguments.input_format:
        return str(arguments.input_format)
    if not arguments.input:
        raise UsageError("--input is missing: name a file or directory (or an --input-format that needs none).")
    suffixes = [suffix for suffix in Path(arguments.input).suffixes if suffix not in COMPRESSION_SUFFIXES]
    known = FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if known is None:
        raise UsageError(f"The format of {arguments.input} cannot be told by its extension: pass --input-format.")
    return known


def input_options(arguments: argparse.Namespace, format_name: str) -> dict[str, str]:
    return INPUT_DEFAULTS.get(format_name, {}) | dict(arguments.input_option)


def records(rows: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """The rows as the sink's columns."""
    columns = {"key": arguments.key, "value": arguments.value, "headers": arguments.headers}
    return rows.selectExpr(*(f"({expression}) AS {name}" for name, expression in columns.items() if expression))


# --- running ----------------------------------------------------------------------------------------------------------


def run(parser: argparse.ArgumentParser, job: Job, argv: list[str] | None = None) -> int:
    """Run a job with a Spark session of its own and print the line it returns. The result is the exit code."""
    arguments = parser.parse_args(argv)
    try:
        sink_options(arguments)
        input_format(arguments)
    except UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return _run_with_spark(parser.prog, job, arguments)


def _run_with_spark(name: str, job: Job, arguments: argparse.Namespace) -> int:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from spark_kafka_sink import stderr_log

    _interrupted.clear()
    stderr_log.add_handler()
    try:
        spark = start_spark(name, verbose=arguments.verbose)
        try:
            print(job(spark, arguments), flush=True)
        finally:
            call_apart(spark.stop)
    except (KeyboardInterrupt, PySparkException, Py4JError, UsageError, OSError, RuntimeError) as error:
        if isinstance(error, KeyboardInterrupt) or _interrupted.is_set():  # an answer that it cut short ends as another error
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
        if arguments.verbose:
            raise
        print(f"{name}: error: {failure_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def call_apart(call: Callable[[], object]) -> None:
    """Make a call to Spark on a thread of its own, for at most STOP_LIMIT_S, and raise what it raises.

    Ctrl-C may have struck this thread in the middle of an answer of the JVM's. Its connection then is of no more use: the next
    call failed with "Answer from Java side is empty", and that error took the place of the interrupt.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - handed on
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="call-apart", daemon=True).start()
    done.result(STOP_LIMIT_S)


def start_spark(name: str, *, verbose: bool) -> SparkSession:
    """A session as spark-submit or the environment configures it, with the sink registered."""
    from pyspark.sql import SparkSession

    from spark_kafka_sink.sink.datasource import KafkaDataSource

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # started by python -m, not by spark-submit
        _prepare_environment()
    with _signals_held():  # the progress bar would overwrite the lines of status_lines
        spark = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    signal.signal(signal.SIGINT, _interrupt)  # PySpark's own calls the JVM in the middle of another call
    if not verbose:
        _quieten(spark)
    spark.dataSource.register(KafkaDataSource)  # --py-files are not searched for data sources
    return spark


@contextlib.contextmanager
def status_lines(spark: SparkSession, interval_s: float | None = None) -> Iterator[None]:
    """While the block runs, say every now and then on stderr how many tasks are done and how many rows have been read.

    Spark learns of rows from tasks that have ended, and from the others every spark.executor.heartbeatInterval.
    """
    ended = threading.Event()
    arguments = (spark, STATUS_INTERVAL_S if interval_s is None else interval_s, ended)
    thread = threading.Thread(target=_say_status, args=arguments, name="status-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STATUS_INTERVAL_S)


def _say_status(spark: SparkSession, interval_s: float, ended: threading.Event) -> None:
    from py4j.protocol import Py4JError

    store = spark.sparkContext._jsc.sc().statusStore()  # pyspark's own tracker knows tasks, not rows
    while not ended.wait(interval_s):
        try:
            stages = store.activeStages()
            for stage in map(stages.apply, range(stages.size())):
                done, tasks = stage.numCompleteTasks(), stage.numTasks()
                print(f"{done:,} of {tasks:,} tasks done, {stage.inputRecords():,} rows read so far", file=sys.stderr, flush=True)
        except Py4JError as error:
            logging.getLogger(__name__).debug("no status: %s", error)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Put Ctrl-C and its like off until the JVM listens: PySpark leaves one that it was starting behind, running for ever."""
    held: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _frame: held.append(number)) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in held:
            signal.raise_signal(late)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    _interrupted.set()
    logging.disable(logging.CRITICAL)  # py4j logs the stack of whatever call was waiting
    raise KeyboardInterrupt


def _prepare_environment() -> None:
    """Workers are this Python, not the path's first; the JVM's log is this project's unless the user configures Spark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if LOGGING.is_file() and "SPARK_CONF_DIR" not in os.environ:
        java_options = shlex.quote(f"-Dlog4j2.configurationFile={LOGGING}")
        os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-java-options {java_options} pyspark-shell")


def _quieten(spark: SparkSession) -> None:
    spark.sparkContext.setLogLevel("WARN")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark's, with a stack trace in JSON
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for logger in LOGGERS_THAT_REPEAT_FAILURES:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def failure_line(text: str) -> str:
    """What matters in the text of a Spark exception: the sink's own `[KAFKA_…]` message, else the Python error, else line one."""
    own = list(re.finditer(r"\[KAFKA_[A-Z_]+\] ", text))
    if own:
        return _until_trace(text[own[-1].start() :])
    raised = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception): .+", text, re.MULTILINE) if "Traceback (most" in text else []
    lines = [*raised[-1:], *(line.strip() for line in text.splitlines() if line.strip())]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):  # Py4J's, before ": some.java.Exception: …"
        return re.sub(r"^: [\w.$]+: ", "", lines[1])
    return lines[0] if lines else "failed without a message"


def _until_trace(message: str) -> str:
    """A message may have several lines; it ends where Spark's or Java's own words begin."""
    lines = message.splitlines()
    foreign = re.compile(r"\s*$|\s+at |\s*SQLSTATE: |Driver stack|===")
    ends = (number for number, line in enumerate(lines) if foreign.match(line))
    return "\n".join(lines[: next(ends, len(lines))]).strip()
