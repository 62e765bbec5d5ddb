"""What the jobs share: arguments, .properties files, and one clear line when something fails.

Nothing here knows Kafka or what the sink does with an option. Exit codes: EXIT_CODES.
Law: the value of an option is never printed or logged; it may be a password. Such values belong in a --config file, because
a command line can be seen by every user of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_kafka_sink.config.sink_options import SinkOptions

    Job = Callable[[SparkSession, argparse.Namespace], str]

FORMAT_OF_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
COMPRESSION_SUFFIXES = {".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate"}
INPUT_DEFAULTS = {"csv": {"header": "true", "inferSchema": "true"}}
EXIT_CODES = (
    "exit codes: 0 all rows are acknowledged, 1 failed, with one line that says why, 2 wrong usage or options, 130 Ctrl-C"
)
STOP_LIMIT_S = 120  # Spark may wait a minute for a query's thread
STATUS_INTERVAL_S = 10  # between the lines of a long write
LOOK_INTERVAL_S = 1  # between looks for tasks that have failed
TOLD_FAILURES = 10  # of tasks; the others mostly say the same
BROKERS_AFTER_S = 5  # of a write: then the job looks whether a broker is there at all
CONNECT_LIMIT_S = 2
JVM_END_LIMIT_S = 60
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
        description=f"{description} python -m runs it from the top of a checkout, spark-submit from anywhere.",
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


def checked_options(arguments: argparse.Namespace) -> SinkOptions:
    """The sink's options as the sink reads them. Raises UsageError, before Spark has started, for what the sink would refuse."""
    from spark_kafka_sink.errors import ConfigError
    from spark_kafka_sink.sink.datasource import check_options

    try:
        return check_options(sink_options(arguments))
    except ConfigError as error:
        raise UsageError(str(error)) from error


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
        if not arguments.value.strip():
            raise UsageError("--value is empty: pass an SQL expression, or leave it out for the row as JSON.")
        checked_options(arguments)
    except UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return _run_with_spark(parser.prog, job, arguments)


def _run_with_spark(name: str, job: Job, arguments: argparse.Namespace) -> int:
    from pyspark import SparkContext

    owns_jvm = SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ  # spark-submit's JVM started us
    try:
        return _run_in_session(name, job, arguments)
    finally:
        if owns_jvm:
            end_jvm()  # at the very end: Spark's exceptions ask the JVM for their text


def _run_in_session(name: str, job: Job, arguments: argparse.Namespace) -> int:
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
            traceback.print_exc()
        else:
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


def end_jvm() -> None:
    """End the JVM that PySpark has started, and wait for it. Left alone, it outlives its session, and this process by seconds."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:  # it was never started
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the end of its input ends the JVM
    try:
        gateway.proc.wait(JVM_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        say_apart(f"Spark's JVM, process {gateway.proc.pid}, has not ended within {JVM_END_LIMIT_S} s")


def say_apart(line: str) -> None:
    """To stderr: what is no result."""
    print(line, file=sys.stderr, flush=True)


def start_spark(name: str, *, verbose: bool) -> SparkSession:
    """A session as spark-submit or the environment configures it, with the sink registered."""
    from pyspark.sql import SparkSession

    from spark_kafka_sink.sink.datasource import KafkaDataSource

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # started by python -m, not by spark-submit
        _prepare_environment()
    started = time.monotonic()
    with _signals_held():  # the progress bar would overwrite the lines of status_lines
        spark = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    signal.signal(signal.SIGINT, _interrupt)  # PySpark's own calls the JVM in the middle of another call
    if not verbose:
        _quieten(spark)
    spark.dataSource.register(KafkaDataSource)  # --py-files are not searched for data sources
    say_apart(f"Spark {spark.version} started in {time.monotonic() - started:.1f} s")
    return spark


@contextlib.contextmanager
def status_lines(
    spark: SparkSession, options: SinkOptions | None = None, *, progress: bool = True, interval_s: float | None = None
) -> Iterator[None]:
    """While the block runs, say on stderr what the user would otherwise learn at its end, if ever.

    Every now and then how many tasks are done and how many rows have been read, unless `progress` is off; each task that has
    failed, when it has; and, with the options of the sink, that no broker is to be reached.
    Spark learns of rows from tasks that have ended, and from the others every spark.executor.heartbeatInterval.
    """
    ended = threading.Event()
    status = Status(spark, STATUS_INTERVAL_S if interval_s is None else interval_s, progress=progress)
    threads = [threading.Thread(target=status.run, args=(ended,), name="status-lines", daemon=True)]
    if options is not None:
        servers, wait_ms = options.producer.bootstrap_servers, options.producer.max_block_ms
        arguments = (servers, wait_ms, status.attempts, ended)
        threads.append(threading.Thread(target=warn_of_missing_brokers, args=arguments, name="broker-check", daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(STATUS_INTERVAL_S)


class Status:
    """Looks at the store behind Spark's UI, which knows rows and errors; PySpark's own tracker knows tasks only."""

    def __init__(self, spark: SparkSession, interval_s: float, *, progress: bool) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()
        self._java: Any = spark.sparkContext._jvm
        self._interval_s = interval_s
        self._progress = progress
        self._told: set[int] = set()  # ids of task attempts that have failed
        self.attempts = int(spark.sparkContext._jsc.sc().taskScheduler().maxTaskFailures())  # 1 with local[n]

    def run(self, ended: threading.Event) -> None:
        from py4j.protocol import Py4JError

        next_line = time.monotonic() + self._interval_s
        while not ended.wait(min(LOOK_INTERVAL_S, self._interval_s)):
            is_due = time.monotonic() >= next_line
            try:
                self._look(is_due and self._progress)
            except Py4JError as error:
                logging.getLogger(__name__).debug("no status: %s", error)
            if is_due:
                next_line += self._interval_s

    def _look(self, says_progress: bool) -> None:
        stages = self._store.activeStages()
        for stage in map(stages.apply, range(stages.size())):
            failed = self._failed_attempts(stage) if stage.numFailedTasks() + stage.numKilledTasks() else []
            for attempt in failed:
                self._tell(attempt)
            if says_progress:
                rows = stage.inputRecords() - sum(map(_rows_read, failed))  # they are read again
                say_apart(f"{stage.numCompleteTasks():,} of {stage.numTasks():,} tasks done, {max(0, rows):,} rows read so far")

    def _failed_attempts(self, stage: Any) -> list[Any]:
        v1 = self._java.org.apache.spark.status.api.v1
        statuses = self._java.java.util.ArrayList()
        statuses.add(v1.TaskStatus.FAILED)
        statuses.add(v1.TaskStatus.KILLED)
        at_most = stage.numFailedTasks() + stage.numKilledTasks()
        found = self._store.taskList(stage.stageId(), stage.attemptId(), 0, at_most, v1.TaskSorting.ID, statuses)
        return [found.apply(number) for number in range(found.size())]

    def _tell(self, attempt: Any) -> None:
        if attempt.taskId() in self._told or attempt.status() != "FAILED" or len(self._told) > TOLD_FAILURES:
            return
        self._told.add(attempt.taskId())
        if len(self._told) > TOLD_FAILURES:
            say_apart("more tasks have failed; what they say is not shown here")
            return
        message = attempt.errorMessage()
        reason = failure_line(message.get()) if message.isDefined() else "no reason given"
        say_apart(f"task {attempt.index()} failed (attempt {attempt.attempt() + 1} of {self.attempts}): {reason}")


def _rows_read(attempt: Any) -> int:
    metrics = attempt.taskMetrics()
    return int(metrics.get().inputMetrics().recordsRead()) if metrics.isDefined() else 0


def warn_of_missing_brokers(
    servers: Sequence[tuple[str, int]],
    wait_ms: int,
    attempts: int,
    ended: threading.Event,
    after_s: float = BROKERS_AFTER_S,
) -> None:
    """If, a few seconds after the start of a write, no server takes a connection, say so, and say it when one does."""
    if ended.wait(after_s):
        return
    trouble = unreachable(servers)
    if trouble is None:
        return
    waits = f"a task waits up to {wait_ms / 1000:g} s for one (kafka.max.block.ms)"
    retries = f", and Spark runs a task that has failed again, {attempts} times in all" if attempts > 1 else ""
    say_apart(f"warning: no broker takes a connection, as seen from the driver ({trouble}); {waits}{retries}")
    while not ended.wait(LOOK_INTERVAL_S):
        if unreachable(servers) is None:
            say_apart("a broker takes connections now")
            return


def unreachable(servers: Sequence[tuple[str, int]]) -> str | None:
    """Why none of the servers takes a connection, of each; None if one does. Blocks CONNECT_LIMIT_S for each, and for DNS."""
    reasons = []
    for host, port in servers:
        try:
            socket.create_connection((host, port), CONNECT_LIMIT_S).close()
        except (OSError, UnicodeError) as error:  # the latter of names that DNS cannot hold
            reasons.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
        else:
            return None
    return "; ".join(reasons)


class Report:
    """The sink's report of one write, in the file that `reportPath` names, which may hold those of others already."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = path.stat().st_size if path.exists() else 0

    def read(self) -> Mapping[str, Any] | None:
        """None if there is none: the sink logs why it could not be written."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._before)
                lines = file.read().splitlines()
            report: Mapping[str, Any] = json.loads(lines[-1])
        except (OSError, ValueError, IndexError):
            return None
        return report


@contextlib.contextmanager
def reported(options: dict[str, str]) -> Iterator[tuple[dict[str, str], Report]]:
    """The options with a reportPath, the user's or one for the length of the block, and the report that comes there."""
    with tempfile.TemporaryDirectory(prefix="pykafka-sink-") as directory:
        name = next((each for each in options if each.lower() == "reportpath"), "reportPath")
        path = options.get(name) or str(Path(directory, "report.jsonl"))
        yield {**options, name: path}, Report(Path(path))


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
