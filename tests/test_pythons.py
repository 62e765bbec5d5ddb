"""tests/run --pythons: which interpreters it finds, what it runs with each, and what it says at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import pythons
from tests.pythons import FAST, THIS, VERSIONS, Environment

ELSEWHERE = "3.99"


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[..., Path]:
    """interpreter(name, answer): a program that prints what an interpreter of that version would."""

    def create(name: str, answer: str, code: int = 0) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
        file.chmod(0o755)
        return file

    return create


def test_an_interpreter_is_found_on_the_path_behind_one_that_is_switched_off(
    interpreter: Callable[..., Path], tmp_path: Path
) -> None:
    """pyenv's python3.13 on the path says that the command is not found, unless that version is switched on."""
    interpreter(f"shims/python{ELSEWHERE}", "command not found", 127)
    python = interpreter(f"bin/python{ELSEWHERE}", ELSEWHERE)
    path = os.pathsep.join(str(tmp_path / each) for each in ("nowhere", "shims", "bin"))
    assert pythons.find(ELSEWHERE, {"PATH": path}) == python
    assert pythons.find(ELSEWHERE, {"PATH": str(tmp_path / "shims")}) is None


def test_an_interpreter_that_is_listed_comes_first_whatever_its_name(interpreter: Callable[..., Path], tmp_path: Path) -> None:
    interpreter(f"bin/python{ELSEWHERE}", ELSEWHERE)
    other, listed_python = interpreter("other", "3.98"), interpreter("mine", ELSEWHERE)
    environ = {"PATH": str(tmp_path / "bin"), pythons.VARIABLE: os.pathsep.join(map(str, ("", other, tmp_path, listed_python)))}
    assert pythons.find(ELSEWHERE, environ) == listed_python


def test_the_python_that_runs_the_tests_is_found() -> None:
    assert pythons.find(THIS, {"PATH": ""}) == Path(sys.executable)


def test_the_lowest_requirements_are_exact_versions() -> None:
    lowest = pythons.lowest_requirements()
    assert "pyarrow==19" in lowest
    assert any(each.startswith("cryptography==") for each in lowest)
    assert all("==" in each and ">" not in each for each in lowest)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What would be run. Everything works, but mypy of 3.12; 3.13 is not found."""
    called: list[Sequence[str]] = []

    def record(command: Sequence[str | Path], **_: Any) -> subprocess.CompletedProcess[bytes]:
        called.append([str(word) for word in command])
        return subprocess.CompletedProcess(command, int("mypy" in command and ".venv-3.12" in str(command[0])))

    monkeypatch.setattr(pythons, "find", lambda version: None if version == "3.13" else Path(f"/opt/python{version}"))
    monkeypatch.setattr(pythons.subprocess, "run", record)
    return called


def test_each_python_has_an_environment_types_and_tests_and_the_end_says_all(
    commands: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pythons.main(["-n", "2", "-x"]) == 1
    said = capsys.readouterr().out.splitlines()[-5:]
    assert [line.partition(",")[0] for line in said] == [
        "3.11: passed",
        "3.12: mypy failed",
        "3.13: not found: python3.13 is not on the path",
        "3.14: passed",
        "lowest: passed",
    ]
    assert said[2].endswith("and not in TEST_PYTHONS")
    tests = [command for command in commands if FAST in command]
    assert [Path(command[0]).parts[-3] for command in tests] == [".venv-3.11", ".venv-3.14", ".venv-lowest"]
    assert all(command[-3:] == ["-n", "2", "-x"] for command in tests)
    assert not any(".venv-lowest" in command[0] and "mypy" in command for command in commands)


@pytest.mark.usefixtures("commands")
def test_the_option_others_leaves_out_the_python_that_has_run_all_tests(capsys: pytest.CaptureFixture[str]) -> None:
    pythons.main(["--others"])
    said = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert said[-len(VERSIONS) :] == [*(version for version in VERSIONS if version != THIS), "lowest"]


@pytest.mark.usefixtures("commands")
def test_a_run_that_finds_no_python_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "find", lambda _: None)
    assert pythons.main([]) == 0
    assert pythons.run(Environment("3.14", "3.14"), []).words.startswith("not found")
