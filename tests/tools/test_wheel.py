"""The wheel in an empty environment: the command `pykafka-sink`, and the commands that docs/tools.md shows.

The environment has the wheel and its dependencies, and no pyspark. Each command is a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spark_kafka_sink.tools.catalog import TOOLS
from tests.documents import code_block
from tests.fakes.fake_broker import FakeBroker
from tests.tools.report.samples import one_commit, write

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel of this checkout. Its dependencies are links to those of the tests' environment."""
    directory = tmp_path_factory.mktemp("wheel")
    venv.create(directory / "env", with_pip=False)
    (site,) = (directory / "env" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    python = ["--python", str(directory / "env" / "bin" / "python")]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory)]
    install = [*python, "install", "--no-deps", "--no-index", "--find-links", str(directory), "pykafka-sink"]
    for step in (build, install):
        done = subprocess.run([*pip, *step], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    for requirement in map(Requirement, requires("pykafka-sink") or []):
        if requirement.marker is None:
            _link(requirement.name, site)
    return directory / "env"


def _link(name: str, site: Path) -> None:
    """The distribution's files at the top of site-packages, and the directories there."""
    package = distribution(name)
    for top in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        (site / top).symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"orders": 1}) as broker:
        yield broker
        assert broker.violations == []


def run(environment: Path, script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(directory)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_environment_has_no_spark_and_nothing_of_this_checkout(environment: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u, spark_kafka_sink as s; print(u.find_spec('pyspark'), s.__file__)"
    pyspark_spec, home = run(environment, f'python -c "{code}"', tmp_path).stdout.split()
    assert pyspark_spec == "None"
    assert Path(home).is_relative_to(environment)


def test_help_and_options_are_shown(environment: Path, tmp_path: Path) -> None:
    shown = run(environment, "pykafka-sink --help && python -m spark_kafka_sink options acks", tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(name in shown.stdout for name in TOOLS)
    assert "kafka.acks  (all, -1, 0, 1; default: all)" in shown.stdout


def test_transactions_are_listed(environment: Path, broker: FakeBroker, tmp_path: Path) -> None:
    command = f"pykafka-sink transactions list --prefix orders --json --bootstrap-servers {broker.bootstrap_servers}"
    done = run(environment, command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"prefix": "orders", "transactions": 0, "known_prefixes": []}


def test_what_workflows_try_each_wheel_with_runs_without_pyspark(environment: Path, tmp_path: Path) -> None:
    with FakeBroker(topics={"smoke": 1}) as broker:
        done = run(environment, f"python {ROOT}/tests/packaging/smoke.py {broker.bootstrap_servers}", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "every row was acknowledged" in done.stdout
        assert len(broker.values("smoke")) == 1_000
        assert broker.violations == []


def test_the_commands_of_the_document_run(environment: Path, broker: FakeBroker, tmp_path: Path) -> None:
    write(tmp_path / "commits.jsonl", one_commit())
    block = code_block("pykafka-sink transactions list").replace("localhost:9092", broker.bootstrap_servers)
    done = run(environment, block, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100000 records sent" in done.stdout


def test_the_page_says_which_extra_to_install_and_the_table_needs_none(environment: Path, tmp_path: Path) -> None:
    write(tmp_path / "commits.jsonl", one_commit())
    page = run(environment, "pykafka-sink report commits.jsonl", tmp_path)
    assert (page.returncode, page.stdout) == (1, "")
    assert 'pip install "pykafka-sink[report]"' in page.stderr
    assert run(environment, "pykafka-sink report commits.jsonl --terminal", tmp_path).returncode == 0


def test_a_reader_that_ends_first_is_no_error_that_is_printed(environment: Path, tmp_path: Path) -> None:
    done = run(environment, "set +e; pykafka-sink options | head -n 1; echo ${PIPESTATUS[0]}", tmp_path)
    assert done.stdout.splitlines()[1] in ("0", str(128 + signal.SIGPIPE))  # 0: it had written all of it before
    assert done.stderr == ""


def test_completion_is_the_one_of_the_installed_command(environment: Path, tmp_path: Path) -> None:
    done = run(environment, "source <(pykafka-sink completion bash); complete -p pykafka-sink", tmp_path)
    assert (done.stdout, done.stderr) == ("complete -F _pykafka_sink pykafka-sink\n", "")
