"""The workflows of a code host, which cannot run here: a linter reads them, and what they name exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.kafka_jars import DEFAULT_KAFKA_VERSION
from tests.documents import ROOT, read, table_rows

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads(read(ROOT / "pyproject.toml"))


def parsed(file: Path) -> Any:
    return yaml.safe_load(read(file))


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    jobs_by_name: dict[str, dict[str, Any]] = parsed(file)["jobs"]
    return jobs_by_name


def steps() -> list[dict[str, Any]]:
    return [step for file in WORKFLOWS for job in jobs(file).values() for step in job.get("steps", ())]


def actionlint() -> str | None:
    """On the path, or where `go install` puts it."""
    if go := shutil.which("go"):
        answer = subprocess.run([go, "env", "GOPATH"], capture_output=True, text=True, timeout=60, check=False)
        if program := shutil.which("actionlint", path=f"{answer.stdout.strip()}/bin"):
            return program
    return shutil.which("actionlint")


def test_a_linter_finds_nothing_in_the_workflows() -> None:
    command = actionlint()
    if command is None:
        pytest.skip("no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7")
    done = subprocess.run([command, *map(str, WORKFLOWS)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_each_job_has_a_time_limit_and_reads_only_by_default(file: Path) -> None:
    assert parsed(file)["permissions"] == {"contents": "read"}
    for name, job in jobs(file).items():
        assert "uses" in job or job["timeout-minutes"] <= 90, name


def test_actions_are_pinned_to_a_commit_with_its_version_beside_it() -> None:
    """A tag can be moved to other code. The one exception says why."""
    used = [line for file in WORKFLOWS for line in re.findall(r"uses: (.+)", read(file)) if not line.startswith("./")]
    assert len(used) > 10
    exception = "pypa/gh-action-pypi-publish@release/v1"
    assert used.count(exception) == 1
    assert [line for line in used if line != exception and not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert len(set(used)) == len({line.partition("@")[0] for line in used}), "one action in two versions"


def test_commands_of_a_workflow_take_nothing_that_strangers_write() -> None:
    """The title of a pull request in a command is a command."""
    inserted = {context for step in steps() for context in re.findall(r"\$\{\{ *(\w+)", step.get("run", ""))}
    assert inserted <= {"matrix"}


def test_workflows_try_each_python_and_pyspark_that_is_promised() -> None:
    versions = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"]]
    pythons = [each for each in versions if re.fullmatch(r"3\.\d+", each)]
    matrices = {
        name: job["strategy"]["matrix"] for name, job in jobs(ROOT / ".github/workflows/tests.yml").items() if "strategy" in job
    }
    assert [matrix["python"] for matrix in matrices.values()] == [pythons, pythons]
    (lowest, newest) = next(row[1:3] for row in table_rows(ROOT / "docs" / "versions.md") if row[0] == "pyspark")
    sparks = matrices["wheel"]["pyspark"]
    assert sparks[0] == "none"
    assert (sparks[1], sparks[-1]) == (lowest, newest)


def test_the_wheel_is_tried_with_the_broker_of_the_tests() -> None:
    services = jobs(ROOT / ".github" / "workflows" / "tests.yml")["wheel"]["services"]
    assert services["kafka"]["image"] == f"apache/kafka:{DEFAULT_KAFKA_VERSION}"


def test_what_workflows_run_from_the_checkout_exists() -> None:
    commands = "\n".join(step.get("run", "") for step in steps())
    files = set(re.findall(r"(?:^|\s)((?:tests|jobs|\.ci)/[\w/.]+)", commands))
    modules = set(re.findall(r"python -m ((?:tests|jobs)[\w.]+)", commands))
    assert len(files) >= 2
    assert modules == {"tests.packaging.release"}
    for path in files | {f"{module.replace('.', '/')}.py" for module in modules}:
        assert (ROOT / path).is_file(), path


def test_publishing_waits_for_the_check_and_all_tests() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    assert release["publish"]["needs"] == "tests"
    assert release["tests"]["needs"] == "check"
    assert release["publish"]["permissions"] == {"id-token": "write"}


def test_hooks_before_a_commit_come_from_the_tests_environment() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    needed = " ".join(PROJECT["dependency-groups"]["test"])
    for hook in repository["hooks"]:
        tool = re.match(r"\.venv-tests/bin/(\S+)", hook["entry"])
        assert tool is not None
        assert tool[1].replace("lint-imports", "import-linter").replace("python", "pytest") in needed
    checked = [hook["id"] for hook in repository["hooks"]]
    assert checked == ["ruff-format", "ruff-check", "mypy", "lint-imports", "documents"]


def test_forms_for_issues_and_updates_are_complete() -> None:
    forms = [parsed(file) for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if file.stem != "config"]
    assert len(forms) == 2
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        assert all(each["type"] == "markdown" or each["attributes"]["label"] for each in form["body"])
    updates = parsed(ROOT / ".github" / "dependabot.yml")["updates"]
    assert {each["package-ecosystem"] for each in updates} == {"github-actions", "pip"}
