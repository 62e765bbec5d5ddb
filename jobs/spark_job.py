"""Runs a job with a Spark session of its own: starts Spark, reports while the job writes, and ends the JVM.

Exit codes: 0 done, 1 failed, 2 usage, 130 Ctrl-C. A failure is a line or a few on stderr. The result of a job goes to stdout,
everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.exit_codes import DONE, FAILED, INTERRUPTED, USAGE

if __package__:
    from jobs.command_line import check_arguments
else:  # spark-submit adds this directory to the path, not its parent
    from command_line import check_arguments  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafka_sink.config.sink_options import SinkOptions

    Job = Callable[[SparkSession, argparse.Namespace], str]

FORMAT = "pykafka-sink"  # Spark's name of the sink
STOP_LIMIT_S = 120  # Spark may wait a minute for a query's thread
JVM_END_LIMIT_S = 60
STATUS_INTERVAL_S = 10  # between progress lines
STATUS_END_LIMIT_S = 10  # for the end of a thread that may be asking Spark
LOOK_INTERVAL_S = 1  # between looks for failed tasks, and for brokers that were missing
MAX_SHOWN_FAILURES = 10  # of tasks; most of them have the same reason
CHECK_AFTER_S = 5  # of a write: when to check whether brokers can be reached
CONNECT_LIMIT_S = 2

# Rows reach Python workers in Arrow batches small enough for a processor's cache. Unix sockets would be faster, too, but with
# them idle workers print a traceback when Spark ends, because nobody reads their last answer.
ARROW_BATCH_SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": "1m"}
ARROW_COMPRESSION = "spark.sql.execution.arrow.compression.codec"

SPARK_LOGGING = Path(__file__).resolve().parent.parent / "conf" / "log4j2.properties"

_interrupted = threading.Event()  # set by Ctrl-C, cleared when a job begins
ENDING_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    ENDING_SIGNALS.append(signal.SIGHUP)

# These loggers repeat, with a stack trace each, what the exception in the job says.
LOGGERS_THAT_REPEAT_FAILURES = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)


# A JOB FROM ITS ARGUMENTS TO ITS EXIT CODE


def run(parser: argparse.ArgumentParser, job: Job, argv: list[str] | None = None) -> int:
    """Run the job and print the line that it returns. Returns the exit code."""
    arguments = parser.parse_args(argv)
    try:
        check_arguments(arguments)
    except UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return USAGE
    return _run_with_spark(parser.prog, job, arguments)


def _run_with_spark(name: str, job: Job, arguments: argparse.Namespace) -> int:
    from pyspark import SparkContext

    owns_jvm = SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ  # spark-submit starts its JVM itself
    try:
        return _run_in_session(name, job, arguments)
    finally:
        if owns_jvm:
            end_jvm()  # last, because Spark's exceptions ask the JVM for their text


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
            call_on_other_thread(spark.stop)
    except (KeyboardInterrupt, PySparkException, Py4JError, UsageError, OSError, RuntimeError) as error:
        # An interrupt in the middle of an answer from the JVM may surface as another error.
        if isinstance(error, KeyboardInterrupt) or _interrupted.is_set():
            print(f"{name}: interrupted", file=sys.stderr)
            return INTERRUPTED
        if arguments.verbose:
            traceback.print_exc()
        else:
            print(f"{name}: error: {failure_line(str(error))}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED
    return DONE


def failure_line(text: str) -> str:
    """What matters in Spark's error: the sink's own `[KAFKA_…]` message, else the Python error, else the first line."""
    own_messages = list(re.finditer(r"\[KAFKA_[A-Z_]+\] ", text))
    if own_messages:
        return _until_trace(text[own_messages[-1].start() :])
    errors = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception): .+", text, re.MULTILINE) if "Traceback (most" in text else []
    lines = [*errors[-1:], *(line.strip() for line in text.splitlines() if line.strip())]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):  # Py4J's, before ": some.java.Exception: …"
        return re.sub(r"^: [\w.$]+: ", "", lines[1])
    return lines[0] if lines else "failed without a message"


def _until_trace(message: str) -> str:
    """Cut off what follows the message, which may have several lines: text of Spark or Java."""
    lines = message.splitlines()
    foreign_line = re.compile(r"\s*$|\s+at |\s*SQLSTATE: |Driver stack|===")
    foreign_numbers = (number for number, line in enumerate(lines) if foreign_line.match(line))
    return "\n".join(lines[: next(foreign_numbers, len(lines))]).strip()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# THE SPARK SESSION AND ITS JVM


def start_spark(name: str, *, verbose: bool) -> SparkSession:
    """A session as spark-submit or the environment configures it, with the sink. ARROW_BATCH_SETTINGS are defaults."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from spark_kafka_sink.sink.datasource import KafkaDataSource

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # started by python -m, not by spark-submit
        _prepare_environment()
    started_s = time.monotonic()
    with _hold_signals():
        SparkContext._ensure_initialized()  # starts the JVM, which knows what the user has set
        user_conf = SparkConf()
        builder = SparkSession.builder.appName(name)
        for key, value in ARROW_BATCH_SETTINGS.items():
            builder = builder.config(key, user_conf.get(key, value))
        # No progress bar, because it would overwrite the lines of status_lines.
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    signal.signal(signal.SIGINT, _interrupt)  # PySpark's own handler calls the JVM in the middle of another call
    if not verbose:
        _quieten(spark)
    if spark.conf.get(ARROW_COMPRESSION, "none") == "lz4":
        say(f"warning: {ARROW_COMPRESSION}=lz4 makes every sink in Python many times slower; leave it at none")
    spark.dataSource.register(KafkaDataSource)  # Spark does not search --py-files for data sources
    say(f"Spark {spark.version} started in {time.monotonic() - started_s:.1f} s")
    return spark


def _prepare_environment() -> None:
    """Make workers run this Python, not the first one on the path. Make the JVM log as this project's conf/ says, unless
    the environment configures Spark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SPARK_LOGGING.is_file() and "SPARK_CONF_DIR" not in os.environ:
        java_options = shlex.quote(f"-Dlog4j2.configurationFile={SPARK_LOGGING}")
        os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-java-options {java_options} pyspark-shell")


def _quieten(spark: SparkSession) -> None:
    spark.sparkContext.setLogLevel("WARN")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark's; it logs stack traces in JSON
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for logger in LOGGERS_THAT_REPEAT_FAILURES:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


@contextlib.contextmanager
def _hold_signals() -> Iterator[None]:
    """Delay Ctrl-C and similar signals until the block ends. If PySpark is interrupted while it starts a JVM, the JVM goes on."""
    late_signals: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _frame: late_signals.append(number)) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late_signal in late_signals:
            signal.raise_signal(late_signal)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    _interrupted.set()
    logging.disable(logging.CRITICAL)  # py4j would log the stack of the call that was waiting
    raise KeyboardInterrupt


def call_on_other_thread(call: Callable[[], object]) -> None:
    """Make a call to Spark on another thread, and raise what it raises, or TimeoutError after STOP_LIMIT_S.

    Ctrl-C may have interrupted this thread in the middle of an answer from the JVM. The thread's connection is then unusable:
    without another thread, the next call fails with "Answer from Java side is empty", and that error hides the interrupt.
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="call-on-other-thread", daemon=True).start()
    outcome.result(STOP_LIMIT_S)


def end_jvm() -> None:
    """End PySpark's JVM, and wait for it for JVM_END_LIMIT_S at most. PySpark would let it outlive this process by seconds."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:  # it was never started
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its input
    try:
        gateway.proc.wait(JVM_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        say(f"Spark's JVM, process {gateway.proc.pid}, did not end within {JVM_END_LIMIT_S} s")


# STATUS LINES


@contextlib.contextmanager
def status_lines(
    spark: SparkSession, options: SinkOptions | None = None, *, has_progress: bool = True, interval_s: float = STATUS_INTERVAL_S
) -> Iterator[None]:
    """While the block runs, print to stderr: progress, failed tasks, and a warning when no broker can be reached.

    A progress line comes every `interval_s`, if `has_progress`: how many tasks are done and how many rows are read.
    The warning needs the `options` of the sink. Spark learns how many rows were read when a task ends, and from running tasks
    every spark.executor.heartbeatInterval.
    """
    ended = threading.Event()
    status = Status(spark, interval_s, has_progress=has_progress)
    threads = [threading.Thread(target=status.run, args=(ended,), name="status-lines", daemon=True)]
    if options is not None:
        servers, wait_ms = options.producer.bootstrap_servers, options.producer.max_block_ms
        arguments = (servers, wait_ms, status.max_attempts, ended)
        threads.append(threading.Thread(target=warn_of_missing_brokers, args=arguments, name="broker-check", daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(STATUS_END_LIMIT_S)


class Status:
    """Prints progress and failed tasks, from the store behind Spark's UI: PySpark's status tracker has no rows and no errors."""

    def __init__(self, spark: SparkSession, interval_s: float, *, has_progress: bool) -> None:
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()
        self._java: Any = spark.sparkContext._jvm
        self._interval_s = interval_s
        self._has_progress = has_progress
        self._shown_ids: set[int] = set()  # ids of failed task attempts
        self.max_attempts = int(spark.sparkContext._jsc.sc().taskScheduler().maxTaskFailures())  # of a task; 1 with local[n]

    def run(self, ended: threading.Event) -> None:
        from py4j.protocol import Py4JError

        next_line_s = time.monotonic() + self._interval_s
        while not ended.wait(min(LOOK_INTERVAL_S, self._interval_s)):
            is_due = time.monotonic() >= next_line_s
            try:
                self._show_status(is_progress_due=is_due and self._has_progress)
            except Py4JError as error:
                logging.getLogger(__name__).debug("! no status: %s", error)
            if is_due:
                next_line_s += self._interval_s

    def _show_status(self, *, is_progress_due: bool) -> None:
        stages = self._store.activeStages()
        for stage in map(stages.apply, range(stages.size())):
            failed_attempts = self._failed_attempts(stage) if stage.numFailedTasks() + stage.numKilledTasks() else []
            for attempt in failed_attempts:
                self._show_failure(attempt)
            if is_progress_due:
                rows = stage.inputRecords() - sum(map(_rows_read, failed_attempts))  # the next attempts read these rows again
                say(f"{stage.numCompleteTasks():,} of {stage.numTasks():,} tasks done, {max(0, rows):,} rows read so far")

    def _failed_attempts(self, stage: Any) -> list[Any]:
        v1 = self._java.org.apache.spark.status.api.v1
        statuses = self._java.java.util.ArrayList()
        statuses.add(v1.TaskStatus.FAILED)
        statuses.add(v1.TaskStatus.KILLED)
        limit = stage.numFailedTasks() + stage.numKilledTasks()
        attempts = self._store.taskList(stage.stageId(), stage.attemptId(), 0, limit, v1.TaskSorting.ID, statuses)
        return [attempts.apply(number) for number in range(attempts.size())]

    def _show_failure(self, attempt: Any) -> None:
        if attempt.taskId() in self._shown_ids or attempt.status() != "FAILED" or len(self._shown_ids) > MAX_SHOWN_FAILURES:
            return
        self._shown_ids.add(attempt.taskId())
        if len(self._shown_ids) > MAX_SHOWN_FAILURES:
            say("more tasks have failed; their errors are not shown here")
            return
        message = attempt.errorMessage()
        reason = failure_line(message.get()) if message.isDefined() else "no reason given"
        say(f"task {attempt.index()} failed (attempt {attempt.attempt() + 1} of {self.max_attempts}): {reason}")


def _rows_read(attempt: Any) -> int:
    metrics = attempt.taskMetrics()
    return int(metrics.get().inputMetrics().recordsRead()) if metrics.isDefined() else 0


def warn_of_missing_brokers(
    servers: Sequence[tuple[str, int]], wait_ms: int, max_attempts: int, ended: threading.Event, after_s: float = CHECK_AFTER_S
) -> None:
    """Wait `after_s` from the start of a write. Warn if no server accepts a connection, and say when one does."""
    if ended.wait(after_s):
        return
    reason = reason_unreachable(servers)
    if reason is None:
        return
    waits = f"a task waits up to {wait_ms / 1000:g} s for one (kafka.max.block.ms)"
    retries = f", and Spark runs a failing task up to {max_attempts} times" if max_attempts > 1 else ""
    say(f"warning: the driver cannot connect to any broker ({reason}); {waits}{retries}")
    while not ended.wait(LOOK_INTERVAL_S):
        if reason_unreachable(servers) is None:
            say("a broker accepts connections now")
            return


def reason_unreachable(servers: Sequence[tuple[str, int]]) -> str | None:
    """Why no server accepts a connection; None if one does. Blocks CONNECT_LIMIT_S for each address, and for DNS."""
    reasons = []
    for host, port in servers:
        try:
            socket.create_connection((host, port), CONNECT_LIMIT_S).close()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot encode
            reasons.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
        else:
            return None
    return "; ".join(reasons)
