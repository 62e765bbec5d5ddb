"""Real schema registries on this machine, for tests: Apicurio's by its Confluent-compatible API, and franz-go's srfake.

    with apicurio() as url: …

Apicurio's distribution is fetched once by Ivy into the user's cache, as Kafka's jars are, and used only with the SHA-256 below.
srfake is built by Go from the module in srfake/, whose go.sum pins it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from jobs.java import find_java
from jobs.kafka_jars import Dependency, fetch
from jobs.ports import HOST, free_port
from tests.integration.processes import until

HERE = Path(__file__).parent
APICURIO_VERSION = "3.0.9"  # later ones need Java 21
APICURIO_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
START_LIMIT_S = 180
BUILD_LIMIT_S = 180
END_LIMIT_S = 30


@dataclass(frozen=True)
class Distribution(Dependency):
    """An archive with the classifier `all` in place of a jar. Ivy takes jars and bundles here."""

    def as_xml(self) -> str:
        return (
            f'<dependency org="{self.organisation}" name="{self.artifact}" rev="{self.revision}" conf="default->default"'
            f' transitive="false"><artifact name="{self.artifact}" type="bundle" ext="tar.gz" m:classifier="all"/></dependency>'
        )


APICURIO = Distribution("io.apicurio", "apicurio-registry-app", APICURIO_VERSION)


@contextlib.contextmanager
def apicurio() -> Iterator[str]:
    """The address of its API that is like Confluent's. Storage is in memory."""
    with tempfile.TemporaryDirectory(prefix="apicurio-") as directory:
        folder = Path(directory)
        with tarfile.open(_archive()) as archive:
            archive.extractall(folder, filter="data")
        (runner,) = folder.glob("*-runner.jar")
        port = free_port(set())
        command = [
            str(find_java()),
            "-Xmx512m",
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={port}",
            "-jar",
            str(runner),
        ]
        url = f"http://{HOST}:{port}/apis/ccompat/v7"
        with (folder / "log").open("w") as log, _running(command, stdout=log, stderr=subprocess.STDOUT) as process:
            until(lambda: process.poll() is not None or _answers(f"{url}/subjects"), START_LIMIT_S, "Apicurio answers")
            assert process.poll() is None, (folder / "log").read_text()[-2_000:]
            yield url


def _archive() -> Path:
    settings = os.environ.get("IVY_SETTINGS_FILE") or str(HERE / "apicurio-ivysettings.xml")
    with mock.patch.dict(os.environ, IVY_SETTINGS_FILE=settings):
        (archive,) = fetch(f"apicurio-{APICURIO_VERSION}", [APICURIO]).iterdir()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == APICURIO_SHA256, f"{archive} is not the archive that these tests know: delete it"
    return archive


@contextlib.contextmanager
def srfake() -> Iterator[str]:
    """Skips without Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go")
    with tempfile.TemporaryDirectory(prefix="srfake-") as directory:
        program = Path(directory) / "srfake"
        subprocess.run([go, "build", "-o", program, "."], cwd=HERE / "srfake", check=True, timeout=BUILD_LIMIT_S)
        with _running([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield process.stdout.readline().strip()


@contextlib.contextmanager
def _running(command: list[str], **more: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, **more) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
