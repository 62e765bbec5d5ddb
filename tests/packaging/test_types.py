"""Type checkers see the public names, and nothing else: a misspelt name is an error, not Any."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_kafka_sink
from tests.documents import ROOT, code_blocks, name_of

PROGRAMS = Path(__file__).parent / "programs"
WHOLE_API = PROGRAMS / "whole_api.py"
MISSPELT = PROGRAMS / "misspelt.py"
LIMIT_S = 300
PYARROW = "class Array: ...\nclass ChunkedArray: ...\n"  # it has no types of its own, which strict pyright tells in each use


# THE CHECKERS


def mypy(program: Path) -> list[int]:
    """The lines with an error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--ignore-missing-imports", str(program)]
    done = run([*command, "--cache-dir", str(ROOT / ".mypy_cache" / "programs")])
    assert done.returncode in (0, 1), done.stderr
    return sorted({int(line) for line in re.findall(rf"{program.name}:(\d+): error:", done.stdout)})


def pyright(program: Path, folder: Path) -> list[int]:
    """The lines with an error."""
    shutil.copy(program, folder)
    (folder / "typings" / "pyarrow").mkdir(parents=True)
    (folder / "typings" / "pyarrow" / "__init__.pyi").write_text(PYARROW)
    (folder / "pyrightconfig.json").write_text(json.dumps({"include": [program.name], "typeCheckingMode": "strict"}))
    done = run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)])
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {(done.stderr or done.stdout).strip()[-300:]}")
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == 1
    return sorted({each["range"]["start"]["line"] + 1 for each in answer["generalDiagnostics"] if each["severity"] == "error"})


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def marked_lines(program: Path) -> list[int]:
    lines = program.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# error")]


@pytest.mark.slow
def test_mypy_accepts_a_program_that_uses_everything() -> None:
    assert mypy(WHOLE_API) == []


@pytest.mark.slow
def test_mypy_finds_each_misspelt_name() -> None:
    assert mypy(MISSPELT) == marked_lines(MISSPELT)
    assert len(marked_lines(MISSPELT)) == 6


@pytest.mark.slow
def test_pyright_accepts_a_program_that_uses_everything(tmp_path: Path) -> None:
    assert pyright(WHOLE_API, tmp_path) == []


@pytest.mark.slow
def test_pyright_finds_each_misspelt_name(tmp_path: Path) -> None:
    assert pyright(MISSPELT, tmp_path) == marked_lines(MISSPELT)


# WHAT THEY READ


def test_the_program_that_uses_everything_does() -> None:
    tree = ast.parse(WHOLE_API.read_text(encoding="utf-8"))
    used_names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    called = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    assert set(spark_kafka_sink.__all__) - used_names - {"__version__"} == set()
    kept_for_the_sink = {"ask_for_topics", "await_brokers", "unknown_topics", "rest", "resume", "is_at_rest"}
    for owner in (spark_kafka_sink.KafkaProducer, spark_kafka_sink.TransactionClient):
        methods = {name for name in dir(owner) if not name.startswith("_") and callable(getattr(owner, name))}
        assert methods - called - kept_for_the_sink - QUESTIONS == set(), owner


def test_checkers_and_python_see_the_same_names() -> None:
    """The names stand three times: for checkers, for `import *`, and with the module that has them."""
    tree = ast.parse(Path(spark_kafka_sink.__file__).read_text(encoding="utf-8"))
    homes_for_checkers = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    homes = spark_kafka_sink._HOMES
    assert {name: home for name, home in homes.items() if name != "__version__"} == homes_for_checkers
    assert sorted(spark_kafka_sink.__all__) == sorted([*homes_for_checkers, "__version__"])
    for name in set(homes_for_checkers):
        assert getattr(spark_kafka_sink, name) is getattr(importlib.import_module(homes[name]), name)
    with pytest.raises(AttributeError, match="has no attribute 'KafkaProduser'"):
        spark_kafka_sink.KafkaProduser  # noqa: B018


def test_pages_import_only_what_is_promised() -> None:
    inner = [
        (name_of(block.page), module)
        for block in code_blocks()
        for module in re.findall(r"(?:from|import) (spark_kafka_sink\.[\w.]+)", block.text)
        if module != "spark_kafka_sink.legacy.producer"
    ]
    assert inner == []


# What a commit asks side by side with TransactionClient.
QUESTIONS = {
    "ask", "ask_together", "describe_transactions_question", "fetch_offsets_question", "commit_offsets_question",
    "list_transactions_question", "whole_list_questions", "describe_producers_question", "end_offsets_question",
    "stable_offsets_question", "take_over_question", "end_again", "brokers_that_may_skip_control_records", "bumps_epochs",
    "partitions_of", "pause", "clock", "default_timeout_ms",
}  # fmt: skip
# What the package alone calls: of objects that only it makes, and of the driver's commit.
OF_THE_PACKAGE = {
    "Cluster.__init__", "Cluster.topic_error",
    "Delivery.__init__", "Delivery.acknowledge", "Delivery.fail", "Delivery.expect",
    "RecordFuture.__init__",
    *(f"TransactionClient.{each}" for each in QUESTIONS),
}  # fmt: skip
FOR_TESTS = {"clock", "requests"}


def functions_of(name: str) -> Iterator[tuple[str, Any]]:
    """Public functions, methods and properties, constructors, and classes for their fields, by name."""
    public = getattr(spark_kafka_sink, name)
    if inspect.isfunction(public):
        yield name, public
    if isinstance(public, type) and name != "KafkaDataSource":  # its methods are Spark's
        yield name, public
        for member, each in inspect.getmembers(public):
            function = each.fget if isinstance(each, property) else each
            if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                yield f"{name}.{member}", function


def classes_in(hint: Any) -> Iterator[type]:
    """Of this package, in a type hint."""
    if isinstance(hint, type) and hint.__module__.startswith("spark_kafka_sink"):
        yield hint
    for part in hint if isinstance(hint, list) else typing.get_args(hint):
        yield from classes_in(part)


def test_what_public_functions_take_and_return_is_public() -> None:
    """OffsetRange, which Delivery.offsets has, could be imported from an inner module only."""
    aliased = {each for name in spark_kafka_sink.__all__ for each in classes_in(getattr(spark_kafka_sink, name))}
    hidden = [
        f"{place}({parameter}): {hinted_class.__name__}"
        for name in spark_kafka_sink.__all__
        if name != "__version__"
        for place, function in functions_of(name)
        if place not in OF_THE_PACKAGE
        for parameter, hint in typing.get_type_hints(function).items()
        if parameter not in FOR_TESTS and not parameter.startswith("_")
        for hinted_class in classes_in(hint)
        if hinted_class not in aliased
    ]
    assert hidden == []
