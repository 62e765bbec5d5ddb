"""tests/run chooses the right tests for its arguments, and the report of a run names them so that they can be run again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT_S = 120
WITH_CHECKS = ["ruff", "ruff", "mypy", "mypy", "mypy", "lint-imports", "python"]
QUICK_TESTS = "not slow and not soak and not matrix"
TOOL = '#!/bin/sh\necho "${0##*/}" "$@"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script, with tools that say how they were called."""
    for name in ("tests/run", "jobs/environment.sh", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("records", "jobs/reporting", "integration"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests" / "records" / "test_varint.py").touch()
    tools = tmp_path / ".venv-tests" / "bin"
    tools.mkdir(parents=True)
    for name in set(WITH_CHECKS):
        (tools / name).write_text(TOOL)
        (tools / name).chmod(0o755)
    stamp = 'echo "test ${PYTHON:-any} $(cksum <pyproject.toml)" >.venv-tests/.stamp'
    subprocess.run(["bash", "-c", stamp], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "pytest_arguments"),
    [
        ("", "-m not slow and not soak and not matrix"),
        ("--ci", "-m not soak and not matrix"),
        ("--ci -x", "-m not soak and not matrix -x"),
    ],
)
def test_a_whole_run_checks_first_and_takes_several_processes(checkout: Path, arguments: str, pytest_arguments: str) -> None:
    *checks, call = calls(checkout, arguments)
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert " -n " in call
    assert call.endswith(pytest_arguments)


def test_all_tests_have_the_machine_alone_and_other_pythons_follow(checkout: Path) -> None:
    *checks, call, others = calls(checkout, "--all -x")
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert call == "python -m pytest --durations=10 -x"
    assert others == "python -m tests.pythons --others -n 3 -x"


@pytest.mark.parametrize(("code", "ends_with", "others_run"), [(1, 1, True), (2, 2, False), (0, 0, True)])
def test_other_pythons_run_after_a_failure_but_not_after_an_interrupt(
    checkout: Path, code: int, ends_with: int, others_run: bool
) -> None:
    tool = checkout / ".venv-tests" / "bin" / "python"
    tool.write_text(f"{TOOL}case $2 in pytest) exit {code};; esac\n")
    done = run(checkout, "--all")
    assert done.returncode == ends_with
    assert ("tests.pythons" in done.stdout) == others_run


def test_other_systems_types_are_checked_with_a_cache_each(checkout: Path) -> None:
    checks = [line for line in calls(checkout, "") if line.startswith("mypy")]
    own = [line.split(" --cache-dir ")[-1] for line in checks]
    assert own == [
        "mypy",
        ".mypy_cache/darwin",
        ".mypy_cache/win32 -p spark_kafka_sink",
    ]


def test_pythons_runs_nothing_but_what_each_python_runs(checkout: Path) -> None:
    assert calls(checkout, "--pythons -x") == ["python -m tests.pythons -n 3 -x"]


@pytest.mark.parametrize(
    ("arguments", "pytest_arguments"),
    [
        ("jobs", "tests/jobs"),
        ("jobs/reporting/", "tests/jobs/reporting/"),
        ("tests/records integration", "tests/records tests/integration"),
        ("records records/test_varint.py", "tests/records tests/records/test_varint.py"),
        ("integration -m slow", "tests/integration -m slow"),
    ],
)
def test_folders_run_their_quick_tests_without_checks(checkout: Path, arguments: str, pytest_arguments: str) -> None:
    (call,) = calls(checkout, arguments)
    assert " -n 3 " in call
    assert call.endswith(f"-m {QUICK_TESTS} {pytest_arguments}")


@pytest.mark.parametrize("argument", ["records/test_varint.py", "tests/records/test_varint.py::test_name"])
def test_a_file_or_a_test_of_it_runs_without_checks_in_one_process(checkout: Path, argument: str) -> None:
    (call,) = calls(checkout, f"{argument} -x")
    assert call == f"python -m pytest --durations=10 -m {QUICK_TESTS} tests/{argument.removeprefix('tests/')} -x"


def test_a_path_that_does_not_exist_is_an_error(checkout: Path) -> None:
    done = run(checkout, "records recrods")
    assert done.returncode == 1
    assert done.stderr == "error: There is no tests/recrods.\n"


@pytest.mark.parametrize("arguments", ["-k a_name", "--durations=0"])
def test_options_alone_go_to_pytest_after_the_checks(checkout: Path, arguments: str) -> None:
    *checks, call = calls(checkout, arguments)
    assert [line.split()[0] for line in checks] == WITH_CHECKS[:-1]
    assert " -n " not in call
    assert call.endswith(f"-m not soak and not matrix {arguments}")


def run(checkout: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "tests" / "run"), *arguments.split()]
    environment = {**os.environ, "TEST_PROCESSES": "3"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def calls(checkout: Path, arguments: str) -> list[str]:
    """What the script calls, in order."""
    done = run(checkout, arguments)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith(("==", "python -c"))]  # -c: does Python run?


def test_a_failed_check_ends_the_run_with_code_1(checkout: Path) -> None:
    (checkout / ".venv-tests" / "bin" / "mypy").write_text("#!/bin/sh\nexit 1\n")
    done = run(checkout, "")
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
