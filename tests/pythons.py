"""The fast tests with every Python that this package is for, and with the oldest dependencies: tests/run --pythons.

An interpreter is found as python3.12 … on the path, or in TEST_PYTHONS, which lists paths as PATH does. Each gets an environment
of its own, .venv-3.12 …, made as .venv-tests is. There mypy runs, then every test that needs neither a broker nor Spark.
The matrix finds the Pythons for a real Spark here too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
THIS = "{}.{}".format(*sys.version_info)
FAST = "not spark and not broker and not slow and not soak and not matrix"
VARIABLE = "TEST_PYTHONS"
ASK_LIMIT_S = 30
ASK = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
MAKE = '. jobs/environment.sh; PYTHON=$1 make_environment "$2" test'
FOR_USERS = ("pkcs12", "jwt", "report", "registry", "prometheus")  # extras that tests cover without a service


class Environment(NamedTuple):
    """One environment: `.venv-NAME`, of this version of Python, with these requirements instead of the newest."""

    name: str
    version: str
    instead: tuple[str, ...] = ()

    def steps(self, interpreter: Path) -> Iterator[tuple[str, Sequence[str | Path]]]:
        """What has failed when a command fails, and the command. Options of pytest go to the last."""
        environment = f".venv-{self.name}"
        python = ROOT / environment / "bin" / "python"
        yield "no environment", ["bash", "-c", MAKE, "bash", interpreter, environment]
        if self.instead:
            yield "no environment", [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *self.instead]
        else:
            yield "mypy failed", [python, "-m", "mypy", "--cache-dir", ROOT / ".mypy_cache" / self.name]
        yield "tests failed", [python, "-m", "pytest", "-m", FAST]


class Outcome(NamedTuple):
    words: str
    failed: bool = False


# FINDING


def find(version: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The first interpreter of this version, with venv, among those that TEST_PYTHONS lists, this one, and those on the path.

    Starts each that may be it, which takes milliseconds, at most ASK_LIMIT_S each.
    """
    return next((each for each in _candidates(version, environ) if _version_of(each) == version), None)


def _candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(each) for each in environ.get(VARIABLE, "").split(os.pathsep) if each)
    yield Path(sys.executable)
    yield from (Path(directory) / f"python{version}" for directory in os.get_exec_path(environ))


def _version_of(python: Path) -> str | None:
    """None if it does not run: pyenv puts programs on the path that only say that they are switched off."""
    try:
        answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def lowest_requirements(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, ...]:
    """What users install, at the lowest version that pyproject.toml allows: pyarrow==19, …"""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    allowed = [*project["dependencies"], *(each for extra in FOR_USERS for each in extras[extra])]
    return tuple(dict.fromkeys(re.sub(r">=([\d.]+).*", r"==\1", each) for each in allowed))


# RUNNING


def run(each: Environment, options: Sequence[str]) -> Outcome:
    """Blocks for minutes: as long as the tests take, and the first time the installation."""
    python = find(each.version)
    if python is None:
        return Outcome(f"not found: python{each.version} is not on the path, and not in {VARIABLE}")
    print(f"== {each.name}: {python}", flush=True)
    started = time.monotonic()
    for failure, command in each.steps(python):
        full_command = [*command, *options] if command[-1] == FAST else command
        done = subprocess.run(full_command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return Outcome(f"{failure}, after {time.monotonic() - started:.0f} s", failed=True)
    return Outcome(f"passed, {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    """`--others` leaves this Python out; the rest goes to pytest. Exit code: 1 if one failed, 0 also if some were not found."""
    others = "--others" in arguments
    options = [each for each in arguments if each != "--others"]
    runs = [Environment(version, version) for version in VERSIONS if not others or version != THIS]
    runs.append(Environment("lowest", VERSIONS[0], lowest_requirements()))
    outcomes = {each.name: run(each, options) for each in runs}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.words}")
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
