"""Java is found where Spark finds it, and a problem with it is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.java import find_java
from spark_kafka_sink.tools.errors import ToolError

FakeJava = Callable[[str], Path]


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    """fake_java(script) is the only java on the path; JAVA_HOME is unset."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def install(script: str) -> Path:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        return java

    return install


def test_the_java_of_the_path_is_taken(fake_java: FakeJava) -> None:
    java = fake_java("""echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
    assert find_java() == java


def test_java_home_overrides_the_path(fake_java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java("exit 1")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx'\necho 'version \"17\"'\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home / "bin" / "java"


def test_no_java_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"^No Java was found.*install a JDK or JRE 17 or newer, or point JAVA_HOME at one\.$"):
        find_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolError, match=f"JAVA_HOME is {tmp_path}, but there is no program"):
        find_java()


@pytest.mark.parametrize(("says", "version"), [('openjdk version "11.0.2"', 11), ('java version "1.8.0_292"', 8)])
def test_an_old_java_is_refused_with_its_version(fake_java: FakeJava, says: str, version: int) -> None:
    fake_java(f"echo '{says}' >&2")
    with pytest.raises(ToolError, match=f"^Java {version} at .* is too old"):
        find_java()


def test_a_java_that_does_not_run_is_no_java(fake_java: FakeJava) -> None:
    fake_java("echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(ToolError, match="does not run"):
        find_java()
