"""Logs warnings to stderr with time and level: in Spark's Python workers, the jobs and the command pykafka-sink.

If logging is not configured, Python prints only the text of a warning to stderr (`logging.lastResort`), between the lines of
Spark's executor. The handler here is added to this package's logger only, never to the root logger. It writes nothing once the
root logger has a handler, so a program that configures logging gets each line once and in its own format.
Law: importing this package adds no handler in a user's own program, such as a driver with the sink or a user of KafkaProducer.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%y/%m/%d %H:%M:%S"  # Spark's

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "pyspark.sql.streaming.")  # as in python -m …

_package = logging.getLogger("spark_kafka_sink")


class StderrHandler(logging.Handler):
    """Writes to the current sys.stderr, unless the root logger has a handler."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or sys.stderr is None:
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")  # one call, so that lines of several threads do not mix
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers: a failure is reported and raises nothing
            self.handleError(record)


def add_handler() -> None:
    """Add the handler, unless this package's logger has one already."""
    if not _package.handlers:
        _package.addHandler(StderrHandler())


@contextlib.contextmanager
def without_warnings(least: int = logging.ERROR) -> Iterator[None]:
    """Suppress this package's log lines below the level `least` in the block, because users learn the same in another way."""
    level = _package.level
    _package.setLevel(least)
    try:
        yield
    finally:
        _package.setLevel(level)


def is_in_spark_worker() -> bool:
    """Whether this process is a Python worker that Spark started, on an executor or on the driver."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    program = main.name if main is not None else ""
    return program.startswith(_WORKERS) or "pyspark.daemon" in sys.modules  # a user's own daemon module imports Spark's


def add_handler_in_spark_worker() -> None:
    """Call add_handler if this process is a Python worker that Spark started."""
    if is_in_spark_worker():
        add_handler()
