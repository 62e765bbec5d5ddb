"""Warnings with a time and a level, in processes that are ours: Spark's Python workers and the jobs.

Where nobody configures logging, Python prints the bare text of a warning to stderr (`logging.lastResort`), among the lines of
Spark's executor. The handler here is added to this package's logger only, never to the root logger, and it is silent as soon as
the root logger has a handler: whoever configures logging has the lines once, in his format.
Law: nothing is added in a process of somebody else's, such as a driver or a program that uses KafkaProducer.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%y/%m/%d %H:%M:%S"  # Spark's

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "pyspark.sql.streaming.")  # python -m …

_package = logging.getLogger("spark_kafka_sink")


class StderrHandler(logging.Handler):
    """Writes to what sys.stderr is at the time, unless the root logger has a handler."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or sys.stderr is None:
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")  # one call: lines of several threads do not mix
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers: a log that fails is told, and ends nothing
            self.handleError(record)


def add_handler() -> None:
    """Once, and not where this package's logger has a handler already."""
    if not _package.handlers:
        _package.addHandler(StderrHandler())


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress this package's warnings in the block: another process logs the same ones."""
    level = _package.level
    _package.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _package.setLevel(level)


def add_handler_in_spark_worker() -> None:
    """As add_handler, if this process is a Python worker that Spark started."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    program = main.name if main is not None else ""
    if program.startswith(_WORKERS) or "pyspark.daemon" in sys.modules:  # a daemon of the user's makes use of Spark's
        add_handler()
