"""The files that would be published: built as a release builds them, and looked at by the tools of a package index."""

from __future__ import annotations

import email
import email.message
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from readme_renderer import markdown

import spark_kafka_sink
from tests.documents import ROOT

LIMIT_S = 300

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel that is built from it, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    run("build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (file,) = built.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_an_index_accepts_both_files(built: Path) -> None:
    said = run("twine", "check", "--strict", *sorted(built.iterdir()))
    assert said.count("PASSED") == 2


def test_the_wheel_has_nothing_superfluous(wheel: Path) -> None:
    assert "OK" in run("check_wheel_contents", wheel)


def test_the_metadata_have_the_version_the_address_and_no_tools(metadata: email.message.Message) -> None:
    assert metadata["Version"] == spark_kafka_sink.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert [each.partition(", ")[0] for each in metadata.get_all("Project-URL", [])] == ["Repository"]
    extras = {"spark", "pkcs12", "aws", "kerberos", "jwt", "report", "registry", "prometheus"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras
    assert "pytest" not in str(metadata.get_all("Requires-Dist"))


def test_no_link_of_the_description_is_relative(metadata: email.message.Message) -> None:
    shown = str(metadata.get_payload())
    assert shown.startswith("# pykafka-sink")
    assert "](docs/" not in shown
    assert 'src="docs/' not in shown
    assert f"/blob/v{spark_kafka_sink.__version__}/docs/exactly-once.md#switch-it-on" in shown


def test_an_index_shows_the_description_with_its_picture(metadata: email.message.Message) -> None:
    rendered = markdown.render(str(metadata.get_payload()))
    assert rendered is not None
    assert re.search(r'<img [^>]*src="https://[^"]+/raw/v[^"]+/docs/images/headline-light\.svg"', rendered)


def test_the_source_archive_has_what_builds_and_tests_it_and_no_more(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"hatch_build.py", "pyproject.toml", "tests/run", "jobs/quickstart", ".github/workflows/release.yml"} <= names
    git_ls_files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if git_ls_files.returncode == 0:
        assert names - set(git_ls_files.stdout.splitlines()) <= {"PKG-INFO"}
