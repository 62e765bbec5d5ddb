"""tests/run chooses the right tests for its arguments, and the report of a run names them so that they can be run again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
LIMIT_S = 120
WITH_CHECKS = ["ruff", "mypy", "lint-imports", "python"]
UNIT_TESTS = "not spark and not broker and not slow and not soak and not matrix"
TOOL = '#!/bin/sh\necho "${0##*/}" "$@"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script, with tools that say how they were called."""
    for name in ("tests/run", "jobs/environment.sh", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for package in ("records", "network"):
        (tmp_path / "spark_kafka_sink" / package).mkdir(parents=True)
        (tmp_path / "tests" / package).mkdir()
    tools = tmp_path / ".venv-tests" / "bin"
    tools.mkdir(parents=True)
    for name in WITH_CHECKS:
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    stamp = 'echo "test ${PYTHON:-any} $(cksum <pyproject.toml)" >.venv-tests/.stamp'
    subprocess.run(["bash", "-c", stamp], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ("", "-m not slow and not soak and not matrix"),
        ("--ci", "-m not soak and not matrix"),
        ("--ci -x", "-m not soak and not matrix -x"),
    ],
)
def test_a_whole_run_checks_first_and_takes_several_processes(checkout: Path, arguments: str, chosen: str) -> None:
    *checks, call = calls(checkout, arguments)
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert " -n " in call
    assert call.endswith(chosen)


def test_all_tests_have_the_machine_alone(checkout: Path) -> None:
    *checks, call = calls(checkout, "--all")
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert call == "python -m pytest --durations=10"


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ("records", f"-m {UNIT_TESTS} tests/records"),
        ("records network -x", f"-m {UNIT_TESTS} tests/records tests/network -x"),
    ],
)
def test_names_of_packages_run_their_unit_tests_alone(checkout: Path, arguments: str, chosen: str) -> None:
    (call,) = calls(checkout, arguments)
    assert " -n 3 " in call
    assert call.endswith(chosen)


@pytest.mark.parametrize("arguments", ["tests/records -x", "-k a_name", "--durations=0"])
def test_other_arguments_go_to_pytest_after_the_checks(checkout: Path, arguments: str) -> None:
    *checks, call = calls(checkout, arguments)
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert " -n " not in call
    assert call.endswith(f"-m not soak and not matrix {arguments}")


def calls(checkout: Path, arguments: str) -> list[str]:
    """What the script calls, in order."""
    command = [str(checkout / "tests" / "run"), *arguments.split()]
    environment = {**os.environ, "TEST_PROCESSES": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return [line for line in done.stdout.splitlines() if not line.startswith(("==", "python -c"))]  # -c: does Python run?


def test_a_failed_check_ends_the_run_with_code_1(checkout: Path) -> None:
    (checkout / ".venv-tests" / "bin" / "mypy").write_text("#!/bin/sh\nexit 1\n")
    done = subprocess.run([str(checkout / "tests" / "run")], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "pytest" not in done.stdout


@pytest.mark.parametrize("parallel", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_the_report_names_the_selection_and_what_was_left_out(parallel: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--basetemp", str(tmp_path), *parallel]
    command += ["-m", "not slow", "-k", "dictionary", "tests/records/test_columns.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, selection, last = done.stdout.splitlines()
    assert selection.startswith("selection: not slow; left out: 1 slow (tests/run --ci), ")
    assert " passed, " in last
    assert " deselected in " in last
    names = [line.removeprefix("PASSED ") for line in done.stdout.splitlines() if line.startswith("PASSED ")]
    assert "tests/records/test_columns.py::test_a_dictionary_with_a_null_entry_gives_null_rows" in names


def test_no_generated_example_has_a_time_limit() -> None:
    """A proof of SCRAM took 275 ms on a busy machine, more than hypothesis allows by default, and failed a whole run."""
    assert settings().deadline is None
