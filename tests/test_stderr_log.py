"""stderr_log.py: warnings have a time and a level in our own processes, and nobody else's logging is touched."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from spark_kafka_sink import stderr_log

PACKAGE = logging.getLogger("spark_kafka_sink")
LINE = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING spark_kafka_sink\.network: ! it happened"


@contextlib.contextmanager
def unconfigured() -> Iterator[None]:
    """Logging as a new process has it; pytest has handlers of its own, around each test."""
    root = logging.getLogger()
    before = root.handlers, PACKAGE.handlers
    root.handlers, PACKAGE.handlers = [], []
    try:
        yield
    finally:
        root.handlers, PACKAGE.handlers = before


def warn() -> None:
    logging.getLogger("spark_kafka_sink.network").warning("! it %s", "happened")


def test_a_warning_has_a_time_a_level_and_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own last resort prints `! it happened`, which stood without a sign of its origin among the lines of Spark."""
    with unconfigured():
        stderr_log.add_handler()
        stderr_log.add_handler()
        warn()
    assert re.fullmatch(LINE + "\n", capsys.readouterr().err)


def test_a_root_logger_that_is_configured_later_has_the_line_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured():
        stderr_log.add_handler()
        logging.basicConfig(format="mine: %(message)s", stream=sys.stderr)
        warn()
    assert capsys.readouterr().err == "mine: ! it happened\n"


def test_a_logger_that_has_a_handler_gets_no_other() -> None:
    mine = logging.NullHandler()
    with unconfigured():
        PACKAGE.addHandler(mine)
        stderr_log.add_handler()
        assert PACKAGE.handlers == [mine]


@pytest.mark.parametrize(
    ("program", "daemon_is_loaded", "handlers"),
    [
        ("pyspark.daemon", False, 1),
        ("my.daemon", True, 1),
        ("pyspark.worker", False, 1),
        ("pyspark.sql.worker.write_into_data_source", False, 1),
        ("my.program", False, 0),
        ("pyspark.shell", False, 0),
        (None, False, 0),
    ],
)
def test_only_sparks_workers_get_a_handler(
    program: str | None, daemon_is_loaded: bool, handlers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if program is None else ModuleSpec(program, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delitem(sys.modules, "pyspark.daemon", raising=False)  # whatever tests before this one have loaded
    if daemon_is_loaded:
        monkeypatch.setitem(sys.modules, "pyspark.daemon", ModuleType("pyspark.daemon"))
    with unconfigured():
        stderr_log.add_handler_in_spark_worker()
        assert len(PACKAGE.handlers) == handlers
        assert logging.getLogger().handlers == []


def test_the_library_adds_no_handler_to_a_program_that_uses_it() -> None:
    program = (
        "import logging\n"
        "from spark_kafka_sink import KafkaDataSource, KafkaProducer\n"
        "assert KafkaDataSource and KafkaProducer\n"
        "loggers = [logging.getLogger(name) for name in (None, *logging.root.manager.loggerDict)]\n"
        "print([each.name for each in loggers if each.handlers and each.name.startswith(('root', 'spark_kafka_sink'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
