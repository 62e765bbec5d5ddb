"""`pykafka-sink`: one command for all tools, and how each of them ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import spark_kafka_sink
from spark_kafka_sink.errors import ConfigError, KafkaTimeoutError
from spark_kafka_sink.tools.catalog import PROG, TOOLS
from spark_kafka_sink.tools.command import main
from spark_kafka_sink.tools.errors import ToolError, UsageError
from spark_kafka_sink.tools.exit_codes import run_tool

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
WITHOUT_SPARK = (
    "import sys; sys.modules['pyspark'] = None; import runpy; runpy.run_module('spark_kafka_sink', run_name='__main__')"
)


def run(*words: str, code: str = WITHOUT_SPARK, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """As a user runs it, with pyspark missing."""
    command = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=LIMIT_S, check=False)


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a call that argparse ends."""
    with pytest.raises(SystemExit) as raised:
        main(words)
    printed = capsys.readouterr()
    return raised.value.code, printed.out, printed.err


# THE TABLE


def test_help_lists_every_tool_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ended(capsys, "--help")
    assert code == 0
    for name, tool in TOOLS.items():
        assert name in shown
        assert tool.summary.split()[0] in shown
    assert "examples:\n  pykafka-sink transactions list " in shown
    assert "exit codes: 0 done; 1 failed, with one line on stderr that says why; 2 wrong usage or options; 130 Ctrl-C" in shown


@pytest.mark.parametrize("name", TOOLS)
def test_help_of_each_tool_has_examples_that_its_parser_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ended(capsys, name, "--help")
    assert code == 0
    assert shown.startswith(f"usage: {PROG} {name} ")
    assert "exit codes: 0 " in shown
    examples = re.findall(r"pykafka-sink (?:(?!  )[^)>])+", shown.partition("examples:\n")[2].partition("\n\n")[0])
    assert len(examples) >= 3
    for example in examples:
        command, tool, *words = example.split()
        assert (command, tool) == (PROG, name)
        TOOLS[name].load().build_parser().parse_args(words)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, "--version") == (0, f"pykafka-sink {spark_kafka_sink.__version__}\n", "")


def test_an_unknown_tool_is_wrong_usage_and_the_known_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, said = ended(capsys, "transaction")
    assert (code, shown) == (2, "")
    assert "invalid choice: 'transaction' (choose from" in said
    assert "transactions" in said


@pytest.mark.parametrize("text", ["=x", " =x", "x"])
def test_an_option_without_a_name_or_a_value_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = ended(capsys, "check", "--option", text)
    assert code == 2
    assert said.endswith("error: argument --option: not NAME=VALUE\n")


def test_without_a_word_it_shows_help_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("usage: pykafka-sink ")


# WHAT IS IMPORTED


def test_as_a_module_it_runs_without_spark() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: pykafka-sink ")


@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_runs_without_spark(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: pykafka-sink {name} ")


def test_help_imports_no_tool() -> None:
    """Each would cost half a second for pyarrow and numpy."""
    code = (
        "import sys; from spark_kafka_sink.tools import catalog, command; catalog.build_parser(); print(*sys.modules, sep='\\n')"
    )
    loaded = set(run(code=code).stdout.split())
    assert "spark_kafka_sink.tools.command" in loaded
    assert not loaded & {"pyarrow", "numpy", *(tool.module for tool in TOOLS.values())}


def test_the_command_imports_next_to_nothing_before_it_waits_for_ctrl_c() -> None:
    """Ctrl-C in the first tenth of a second was a traceback from argparse, which was being imported."""
    code = "import sys; before = set(sys.modules); from spark_kafka_sink.tools import command; print(*set(sys.modules) - before)"
    loaded = run(code=code).stdout.split()
    assert {name for name in loaded if name.startswith("spark_kafka_sink")} == {
        "spark_kafka_sink",
        "spark_kafka_sink.tools",
        "spark_kafka_sink.tools.command",
        "spark_kafka_sink.tools.exit_codes",
    }
    assert "argparse" not in loaded


def test_the_script_of_the_wheel_is_this_command() -> None:
    (script,) = [each for each in entry_points(group="console_scripts") if each.name == PROG]
    assert script.load() is main


# HOW IT ENDS

CTRL_C = (
    "signal.signal(signal.SIGINT, signal.default_int_handler); signal.raise_signal(signal.SIGINT)"  # background jobs ignore it
)


def fake_tool(body: str) -> str:
    """A program that runs `pykafka-sink report` with another `main`."""
    return (
        "import sys; from spark_kafka_sink.tools import command; from spark_kafka_sink.tools.report import command as report\n"
        f"def main(words):\n    {body}\n"
        "report.main = main\n"
        "sys.exit(command.main(['report']))"
    )


def test_ctrl_c_is_one_line_and_130() -> None:
    done = run(code=fake_tool(f"import signal; {CTRL_C}"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pykafka-sink: interrupted\n")


def test_ctrl_c_while_a_tool_is_imported_is_one_line_and_130() -> None:
    code = (
        "import sys, signal; from spark_kafka_sink.tools import catalog, command\n"
        f"def import_module(name):\n    {CTRL_C}\n"
        "catalog.import_module = import_module\n"
        "sys.exit(command.main(['report']))"
    )
    done = run(code=code)
    assert (done.returncode, done.stderr) == (130, "pykafka-sink: interrupted\n")


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("x"), 2), (ConfigError("x"), 2), (ToolError("x"), 1), (KafkaTimeoutError("x"), 1)]
)
def test_an_error_for_the_user_is_one_line(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise error

    assert run_tool("report", fail) == code
    assert capsys.readouterr().err == f"report: error: {error}\n"


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at-the-end", "while-it-prints"])
def test_a_closed_pipe_ends_a_tool_quietly(lines: int) -> None:
    """Python printed "Exception ignored … BrokenPipeError" when it ended, or a traceback."""
    code = fake_tool(f"print('a line\\n' * {lines}); return 0")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as unread:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, stdout=unread, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("lines", [1, 100_000], ids=["at-the-end", "while-it-prints"])
def test_output_that_cannot_be_written_is_one_line(lines: int) -> None:
    code = fake_tool(f"print('a line\\n' * {lines}); return 0")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False
        )
    assert (done.returncode, done.stderr.decode()) == (
        1,
        "pykafka-sink: error: the output cannot be written (No space left on device).\n",
    )


def test_what_the_output_cannot_encode_is_escaped() -> None:
    body = "print('a\u2026'); print('b\u2026', file=sys.stderr); return 0"
    done = run(code=fake_tool(body), encoding="ascii:strict")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\\u2026\n", "b\\u2026\n")


def test_an_error_of_the_system_that_is_not_of_the_output_is_not_hidden() -> None:
    done = run(code=fake_tool("raise OSError(2, 'elsewhere')"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "elsewhere" in done.stderr


def test_json_of_the_options_is_json_where_the_terminal_knows_ascii_alone() -> None:
    done = run("options", "--json", encoding="ascii:strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert len([json.loads(line) for line in done.stdout.splitlines()]) > 100
