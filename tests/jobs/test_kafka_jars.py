"""A directory of jars is complete or absent, and a fetch that fails says why."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from jobs import kafka_jars
from jobs.kafka_jars import (
    DEFAULT_KAFKA_VERSION,
    Dependency,
    directory_name,
    fetch,
    fetch_kafka,
    file_lock,
    kafka_dependencies,
    require_free_space,
)
from spark_kafka_sink.tools.errors import ToolError
from tests import spark_connector
from tests.jobs.fake_java import put_on_path

DEPENDENCIES = (Dependency("org.example", "thing", "1.0", is_transitive=False),)

# Plays Ivy: takes the pattern after -retrieve, and does what FAKE_IVY says.
IVY = """#!/bin/sh
case "$1" in -version) echo 'openjdk version "17.0.1"'; exit 0;; esac
while [ "$1" != -retrieve ]; do shift; done
directory=$(dirname "$2")
mkdir -p "$directory"; echo jar > "$directory/thing-1.0.jar"
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that is `java` in these tests. Each test has an empty cache of its own."""
    java = put_on_path(IVY, tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return java


def test_jars_are_fetched_once(ivy: Path) -> None:
    directory = fetch("thing", DEPENDENCIES)
    assert [jar.name for jar in directory.iterdir()] == ["thing-1.0.jar"]
    ivy.write_text("#!/bin/sh\nexit 1\n")
    assert fetch("thing", DEPENDENCIES) == directory


@pytest.fixture
def listed_directory(tmp_path: Path, ivy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """The directory whose jar is listed with its checksum. It does not exist yet."""
    directory = fetch("thing", DEPENDENCIES)
    checksums = tmp_path / "checksums"
    checksum = hashlib.sha256(b"jar\n").hexdigest()
    checksums.write_text(f"# a comment\n{checksum}  {directory.name}/thing-1.0.jar\n{'0' * 64}  other/thing-1.0.jar\n")
    monkeypatch.setattr(kafka_jars, "CHECKSUMS", checksums)
    shutil.rmtree(directory)
    return directory


def test_jars_that_are_listed_are_used_if_they_are_the_listed_ones(listed_directory: Path) -> None:
    for _ in range(2):
        assert fetch("thing", DEPENDENCIES) == listed_directory


@pytest.mark.parametrize("change", ["written", "added", "removed"])
def test_jars_that_somebody_has_changed_are_not_started(listed_directory: Path, change: str) -> None:
    """Nothing was checked after the fetch: what another process wrote into the cache ran at the next start."""
    fetch("thing", DEPENDENCIES)
    if change == "removed":
        (listed_directory / "thing-1.0.jar").unlink()
    else:
        (listed_directory / ("thing-1.0.jar" if change == "written" else "a.jar")).write_text("other")
    with pytest.raises(ToolError, match=r"1 differ, such as .*: delete it to have them fetched again"):
        fetch("thing", DEPENDENCIES)


def test_jars_that_another_process_has_fetched_meanwhile_are_checked(
    listed_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def other_process_has_the_lock(*_: object) -> Iterator[None]:
        listed_directory.mkdir()
        (listed_directory / "thing-1.0.jar").write_text("other")
        yield

    monkeypatch.setattr(kafka_jars, "file_lock", other_process_has_the_lock)
    with pytest.raises(ToolError, match=r"such as thing-1\.0\.jar"):
        fetch("thing", DEPENDENCIES)


def test_jars_that_a_repository_has_changed_are_not_kept(listed_directory: Path, ivy: Path) -> None:
    ivy.write_text(IVY.replace("echo jar", "echo other"))
    with pytest.raises(ToolError, match=r"such as thing-1\.0\.jar"):
        fetch("thing", DEPENDENCIES)
    assert not listed_directory.exists()


def test_the_jars_that_jobs_and_tests_start_by_default_are_listed() -> None:
    for name, dependencies in [
        (f"kafka-{DEFAULT_KAFKA_VERSION}", kafka_dependencies(DEFAULT_KAFKA_VERSION)),
        (spark_connector.NAME, spark_connector.DEPENDENCIES),
    ]:
        assert kafka_jars._listed_checksums(directory_name(name, dependencies))


def test_two_fetches_at_once_fetch_once(ivy: Path) -> None:
    count = ivy.parent / "count"
    ivy.write_text(IVY + f"echo x >> {count}\n")
    directories: list[Path] = []
    threads = [threading.Thread(target=lambda: directories.append(fetch("thing", DEPENDENCIES))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(directories) == 4
    assert len(set(directories)) == 1
    assert count.read_text() == "x\n"


def test_a_failed_fetch_leaves_nothing_that_looks_complete(ivy: Path, tmp_path: Path) -> None:
    ivy.write_text(IVY + "echo ':: org.example#thing;1.0: not found'; exit 1\n")
    with pytest.raises(ToolError, match=r"^thing does not exist in Ivy's repositories \(org.example#thing;1.0 not found\)"):
        fetch("thing", DEPENDENCIES)
    assert [path.name for path in (tmp_path / "cache" / "pykafka-sink" / "jars").iterdir()] == ["fetch.lock"]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("Server access error at url x://y/z.pom (java.net.ConnectException: Connection refused)", "Connection refused"),
        ("Host repo.example not found. url=x://repo.example/z.pom", "Host repo.example not found"),
    ],
)
def test_a_network_failure_is_not_mistaken_for_a_missing_version(ivy: Path, says: str, reason: str) -> None:
    ivy.write_text(IVY + f"echo '{says}'; echo ':: org.example#thing;1.0: not found'; exit 1\n")
    with pytest.raises(ToolError, match=rf"could not be fetched \(.*{reason}.*\): check the network"):
        fetch("thing", DEPENDENCIES)


@pytest.mark.parametrize(
    "form", ["{}", "Server access error at url {0} (java.io.IOException: HTTP response code: 401 for URL: {0})"]
)
def test_a_login_in_the_url_of_a_repository_is_not_shown(form: str, ivy: Path) -> None:
    ivy.write_text(IVY + f"echo '{form.format('https://me:pass@word@repo.example/z.pom')}'; exit 1\n")
    with pytest.raises(ToolError, match=r"https://repo\.example/z\.pom") as raised:
        fetch("thing", DEPENDENCIES)
    assert "word" not in str(raised.value)


def test_the_users_ivy_settings_are_used(ivy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ivy.write_text(IVY.replace("while", f'echo "$@" > {tmp_path}/arguments\nwhile', 1))
    monkeypatch.setenv("IVY_SETTINGS_FILE", "/etc/ivy.xml")
    fetch("thing", DEPENDENCIES)
    assert "-settings /etc/ivy.xml" in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize("version", ["latest", "4.3", "../../etc", "4.3.1; rm"])
def test_an_invalid_version_is_refused_before_anything_is_fetched(version: str) -> None:
    with pytest.raises(ToolError, match="is not a version of Apache Kafka"):
        fetch_kafka(version)


@pytest.mark.parametrize("version", ["2.8.0", "3.2.3"])
def test_a_kafka_that_needs_zookeeper_is_refused(version: str) -> None:
    """3.0 to 3.2 have KRaft for trials only, and passed."""
    with pytest.raises(ToolError, match=r"needs ZooKeeper.*use 3\.3\.0 or newer"):
        fetch_kafka(version)


def test_a_full_disk_is_named_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.kafka_jars.shutil.disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(ToolError, match=rf"Only 5 MB are free at {tmp_path}, and 500 MB are needed"):
        require_free_space(tmp_path)


def test_a_lock_held_too_long_names_its_occupant(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / "lock", 1, "me"),
        pytest.raises(ToolError, match="another start is under way"),
        file_lock(tmp_path / "lock", 0.05, "another start is under way"),
    ):
        pass


def test_a_lock_whose_file_its_last_holder_deleted_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had waited held the lock of a file that was gone, and another process locked the new one."""
    path = tmp_path / "lock"
    locked: list[int] = []

    def flock(file: TextIO, how: int) -> None:
        if not locked:
            path.unlink()
        locked.append(os.fstat(file.fileno()).st_ino)
        fcntl.flock(file, how)

    monkeypatch.setattr(kafka_jars, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    with file_lock(path, 10, "me"):
        assert len(locked) == 2
        assert path.stat().st_ino == locked[-1]


def test_a_cache_that_cannot_be_made_is_named(ivy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ToolError, match="cannot be created"):
        fetch("thing", DEPENDENCIES)
