"""What a package index shows of the project, and what keeps a version from being released."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from trove_classifiers import classifiers

import spark_kafka_sink
from hatch_build import with_absolute_links
from jobs.kafka_jars import DEFAULT_KAFKA_VERSION
from tests import pythons
from tests.documents import ROOT, links, read, table_rows
from tests.integration import clusters
from tests.packaging import release

PROJECT = tomllib.loads(read(ROOT / "pyproject.toml"))
README = ROOT / "README.md"
VERSIONS = ROOT / "docs" / "versions.md"
REPOSITORY = "https://host.example/us/ours"


# THE README ON AN INDEX


def test_each_link_of_the_readme_leads_to_a_file_of_the_tagged_repository(tmp_path: Path) -> None:
    """Relative links lead nowhere from an index."""
    shown = tmp_path / "README.md"
    shown.write_text(with_absolute_links(read(ROOT / "README.md"), REPOSITORY, "v1.2.3"), encoding="utf-8")
    absolute_links = links(shown)
    assert len(absolute_links) == len(links(ROOT / "README.md")) > 20
    for link in absolute_links:
        if link.startswith(REPOSITORY):
            kind, tag, path = link.removeprefix(f"{REPOSITORY}/").split("/", 2)
            assert tag == "v1.2.3"
            assert (ROOT / path.partition("#")[0]).is_file(), link
            assert kind == ("raw" if path.endswith(".svg") else "blob"), link
        else:
            assert link.startswith("https://"), link


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](docs/a.md#b)", f"[a]({REPOSITORY}/blob/v1/docs/a.md#b)"),
        ("[a](#b)", f"[a]({REPOSITORY}/blob/v1/README.md#b)"),
        ('<img alt="a" src="a.svg">', f'<img alt="a" src="{REPOSITORY}/raw/v1/a.svg">'),
        ("[a](https://a.example/b)", "[a](https://a.example/b)"),
        ("```python\nrows[i](x)\n```", "```python\nrows[i](x)\n```"),
    ],
)
def test_relative_links_become_absolute_outside_of_code(text: str, shown: str) -> None:
    assert with_absolute_links(text, REPOSITORY, "v1") == shown


# PYPROJECT.TOML


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    address = PROJECT["project"]["urls"]["Repository"]
    git_grep = subprocess.run(["git", "grep", "-lF", address], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if git_grep.returncode > 1:
        pytest.skip("this is no checkout of git")
    assert git_grep.stdout.splitlines() == ["pyproject.toml"]


def test_each_pattern_of_the_source_archive_names_one_path() -> None:
    """`docs` without a slash is any folder of that name, wherever it lies."""
    for pattern in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert pattern[0] == "/"
        assert (ROOT / pattern[1:]).exists(), pattern


def test_classifiers_are_known_and_name_the_pythons_that_pip_accepts() -> None:
    project_classifiers = PROJECT["project"]["classifiers"]
    assert set(project_classifiers) <= classifiers
    assert project_classifiers == sorted(project_classifiers)
    minors = [int(each.rpartition(".")[2]) for each in project_classifiers if re.search(r":: 3\.\d+$", each)]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["project"]["requires-python"] == f">=3.{minors[0]}"


def test_what_only_a_checkout_needs_is_no_extra_of_the_package() -> None:
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    assert groups.keys() == {"test", "docs", "bench"}
    assert not groups.keys() & extras.keys()


def test_the_readme_lists_every_extra_where_one_installs() -> None:
    """`report`, `registry` and the others stood on the pages of their features only."""
    install = read(README).partition("\n## Install\n")[2].partition("\n## ")[0]
    named_extras = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in install.splitlines() if line[:1] == "|")))
    assert named_extras == PROJECT["project"]["optional-dependencies"].keys() - {"spark"}


# VERSIONS AND PROMISES


def test_the_page_of_promises_lists_every_public_name_once() -> None:
    rows = [row for row in table_rows(VERSIONS) if len(row) == 2]
    promised = [name for _, names in rows for name in re.findall(r"`(\w+)`", names) if name != "onCommit"]
    assert sorted(promised) == sorted(spark_kafka_sink.__all__)


def lowest_versions() -> dict[str, str]:
    """By name, of the table of versions."""
    return {row[0].removesuffix(" brokers"): row[1] for row in table_rows(VERSIONS) if len(row) == 4}


def test_the_lowest_versions_of_the_page_are_those_that_pip_accepts() -> None:
    required = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["spark"]]
    bounds = dict(requirement.split(">=") for requirement in [*required, f"Python{PROJECT['project']['requires-python']}"])
    assert len(bounds) == 6
    assert {name: version for name, version in lowest_versions().items() if name in bounds} == bounds


def tried_in_workflow(what: str) -> list[list[str]]:
    jobs = yaml.safe_load(read(ROOT / ".github" / "workflows" / "tests.yml"))["jobs"].values()
    matrices = [job["strategy"]["matrix"] for job in jobs if "strategy" in job]
    return [matrix[what] for matrix in matrices if what in matrix]


def row_of(page: Path, name: str) -> list[str]:
    (only_row,) = [row for row in table_rows(page) if row[0] == name and len(row) in (3, 4)]
    return only_row


def test_the_same_pythons_are_tested_classified_and_documented() -> None:
    classified = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert list(pythons.VERSIONS) == classified
    assert re.findall(r"\b3\.\d+", row_of(README, "Python")[1].partition("(")[0]) == classified
    assert row_of(VERSIONS, "Python")[1:3] == [classified[0], classified[-1]]
    assert tried_in_workflow("python") == [classified] * 2


def test_the_same_pysparks_are_tested_and_documented() -> None:
    documented_versions = re.findall(r"\d\.\d", row_of(README, "pyspark")[1])
    assert row_of(VERSIONS, "pyspark")[1:3] == [documented_versions[0], documented_versions[-1]]
    assert sorted({pyspark for pyspark, _ in clusters.BESIDE}) == documented_versions
    assert tried_in_workflow("pyspark") == [["none", *documented_versions]]


def test_the_same_kafkas_are_tested_and_documented() -> None:
    """tests/integration/transaction_brokers.py has the lowest."""
    minors = [".".join(each.split(".")[:2]) for each in (*clusters.KAFKA_VERSIONS, DEFAULT_KAFKA_VERSION)]
    lowest, newest = row_of(VERSIONS, "Apache Kafka brokers")[1:3]
    before_4, kafka_4 = [each for each in minors if each < "4"], [each for each in minors if each >= "4"]
    supported_versions = ", ".join([lowest, *before_4, f"{kafka_4[0]} to {kafka_4[-1]}"])
    assert (row_of(README, "Apache Kafka brokers")[1], newest) == (supported_versions, minors[-1])
    assert re.findall(r"image: apache/kafka:(\S+)", read(ROOT / ".github" / "workflows" / "tests.yml")) == [DEFAULT_KAFKA_VERSION]


# A RELEASE


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout that can be released as v0.1.0."""
    (tmp_path / "spark_kafka_sink").mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md", "spark_kafka_sink/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    version = spark_kafka_sink.__version__
    change(tmp_path / "pyproject.toml", r"^Repository = .*$", f'Repository = "{REPOSITORY}"')
    change(tmp_path / "CHANGELOG.md", rf"^## {version} - .*$", "## 0.1.0 - 2026-12-01")
    change(tmp_path / "spark_kafka_sink" / "__init__.py", r'^__version__ = "[\d.]+"', '__version__ = "0.1.0"')
    return tmp_path


def change(file: Path, pattern: str, text: str) -> None:
    changed, times = re.subn(pattern, text, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert times == 1
    file.write_text(changed, encoding="utf-8")


def test_a_checkout_with_address_version_and_date_can_be_released(ready: Path) -> None:
    assert release.problems(ready, "v0.1.0") == []


@pytest.mark.parametrize(
    ("name", "pattern", "text", "problem"),
    [
        ("pyproject.toml", REPOSITORY, f"https://host.example/{release.PLACEHOLDER}/ours", "has a placeholder"),
        ("spark_kafka_sink/__init__.py", '"0.1.0"', '"0.1.1"', "the tag must be v0.1.1"),
        ("CHANGELOG.md", "2026-12-01", "not released yet", "the day of the release"),
    ],
)
def test_what_keeps_a_checkout_from_being_released_is_listed(
    ready: Path, name: str, pattern: str, text: str, problem: str
) -> None:
    change(ready / name, pattern, text)
    assert problem in " ".join(release.problems(ready, "v0.1.0"))


def test_this_checkout_is_not_released_before_it_has_an_address() -> None:
    tag = f"v{release.version_of(ROOT)}"
    is_placeholder = release.PLACEHOLDER in release.repository(ROOT)
    assert any("placeholder" in each for each in release.problems(ROOT, tag)) == is_placeholder
