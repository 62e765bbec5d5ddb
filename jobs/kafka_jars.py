"""Fetches jars, mainly those of Apache Kafka, into the user's cache, where they stay.

Uses Apache Ivy, which PySpark ships, so nothing else has to be installed. Ivy's repositories are its defaults, or those of the
user's settings: the file named by IVY_SETTINGS_FILE, else ~/.ivy2/ivysettings.xml.
Laws: a directory of jars is complete or absent. It is filled under another name and then renamed. A lock prevents two fetches at
the same time. Jars that CHECKSUMS lists are used only if their SHA-256 is the listed one, which `fetch` checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from jobs.java import find_java
from spark_kafka_sink.tools.errors import ToolError

try:
    import fcntl
except ImportError as error:
    raise ImportError("A broker on this machine needs Linux or macOS; on Windows run it in WSL.") from error

DEFAULT_KAFKA_VERSION = "4.3.1"
LOG4J_BINDING_VERSION = "2.25.4"  # connects Kafka's slf4j 1.7 to the log4j-core of brokers since 4.0
CHECKSUMS = Path(__file__).with_name("kafka_jars.sha256")
FETCH_TIMEOUT_S = 900
MIN_FREE_BYTES = 500 * 1024 * 1024

Progress = Callable[[str], None]


def be_quiet(_line: str) -> None:
    """A Progress that prints nothing."""


@dataclass(frozen=True)
class Dependency:
    """One artifact; `is_transitive`: with its own dependencies."""

    organisation: str
    artifact: str
    revision: str
    is_transitive: bool = True

    def as_xml(self) -> str:
        return (
            f'<dependency org="{self.organisation}" name="{self.artifact}" rev="{self.revision}"'
            f' conf="default->default" transitive="{str(self.is_transitive).lower()}"/>'
        )


def kafka_dependencies(version: str) -> tuple[Dependency, ...]:
    """A broker and its command-line tools, without the tools' dependencies: only commands of Connect need them."""
    return (
        Dependency("org.apache.kafka", "kafka_2.13", version),
        Dependency("org.apache.kafka", "kafka-tools", version, is_transitive=False),
        Dependency("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_BINDING_VERSION),
    )


def cache_dir() -> Path:
    """The directory for everything that is fetched: pykafka-sink in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pykafka-sink"


def kafka_version() -> str:
    """The version of the broker: the environment's KAFKA_VERSION, else the default."""
    return os.environ.get("KAFKA_VERSION") or DEFAULT_KAFKA_VERSION


def fetch_kafka(version: str | None = None, progress: Progress = be_quiet) -> Path:
    """The directory with the jars of this Kafka version, fetched if absent. Raises ToolError and blocks as `fetch`."""
    version = version or kafka_version()
    if not re.fullmatch(r"\d+\.\d+\.\d+([-.]\w+)*", version):
        raise ToolError(f"{version!r} is not a version of Apache Kafka; they look like {DEFAULT_KAFKA_VERSION}.")
    major, minor, _ = version.split(".", 2)
    if (int(major), int(minor)) < (3, 3):
        raise ToolError(f"Kafka {version} needs ZooKeeper, which these jobs do not start: use 3.3.0 or newer.")
    return fetch(f"kafka-{version}", kafka_dependencies(version), progress)


def fetch(name: str, dependencies: Sequence[Dependency], progress: Progress = be_quiet) -> Path:
    """The directory of the jars in the cache, fetched if absent.

    Blocks FETCH_TIMEOUT_S at most for the fetch, and as long for a fetch by another process. Raises ToolError, as check_jars.
    """
    target = cache_dir() / "jars" / directory_name(name, dependencies)
    if target.is_dir():
        check_jars(target, target.name)
        return target
    java = find_java()
    make_dir(target.parent)
    require_free_space(target.parent)
    with file_lock(target.parent / "fetch.lock", FETCH_TIMEOUT_S, "another process is fetching jars"):
        if target.is_dir():
            check_jars(target, target.name)
        else:
            progress(f"fetching the jars of {name} into {target} (once)")
            _fetch_into(java, target, name, dependencies, progress)
    return target


def directory_name(name: str, dependencies: Sequence[Dependency]) -> str:
    """The name with a hash of the dependencies, so that other dependencies get another directory."""
    digest = hashlib.sha256("".join(each.as_xml() for each in dependencies).encode()).hexdigest()[:8]
    return f"{name}-{digest}"


def check_jars(directory: Path, name: str) -> None:
    """Raises ToolError if the jars are not those that CHECKSUMS lists under this name. A name that is not listed passes."""
    listed_checksums = _listed_checksums(name)
    if not listed_checksums:
        return
    checksums = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in directory.iterdir()}
    wrong_jars = sorted(jar for jar in {*checksums, *listed_checksums} if checksums.get(jar) != listed_checksums.get(jar))
    if wrong_jars:
        raise ToolError(
            f"{directory} does not hold the jars that {CHECKSUMS.name} lists ({len(wrong_jars)} differ, such as {wrong_jars[0]}),"
            " and is not used: delete it to have them fetched again, and find out who changed them."
        )


def _listed_checksums(name: str) -> dict[str, str]:
    lines = [line.split() for line in CHECKSUMS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    places = [(checksum, *place.split("/")) for checksum, place in lines]
    return {jar: checksum for checksum, directory, jar in places if directory == name}


def make_dir(path: Path) -> Path:
    """Create a directory and its parents. Raises ToolError if that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(f"{path} cannot be created ({error.strerror}): make its parent writable, or choose another.") from error
    return path


def require_free_space(path: Path) -> None:
    """Raises ToolError if the file system of `path` has less than MIN_FREE_BYTES left."""
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < MIN_FREE_BYTES:
        raise ToolError(
            f"Only {free_bytes / 2**20:,.0f} MB are free at {path}, and {MIN_FREE_BYTES / 2**20:,.0f} MB are needed:"
            " free some, or choose another directory."
        )


@contextlib.contextmanager
def file_lock(path: Path, timeout_s: float, occupant: str) -> Iterator[None]:
    """Hold a lock between processes; the system releases it if its holder dies.

    Waits `timeout_s` seconds at most, then raises ToolError. `occupant` says in the error who holds the lock.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        with path.open("w") as file:
            if _try_to_lock(file, path):
                yield
                return
        if time.monotonic() > deadline_s:
            raise ToolError(f"{path} was locked for {timeout_s:.0f} s ({occupant}): wait for it, or stop it.")
        time.sleep(0.1)


def _try_to_lock(file: TextIO, path: Path) -> bool:
    """Lock the file, if no other process has. Returns whether it is locked now. False if the last holder has deleted it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _fetch_into(java: Path, target: Path, name: str, dependencies: Sequence[Dependency], progress: Progress) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        module = staging / "ivy.xml"
        module.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="pykafka-sink" module="fetch"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(each.as_xml() for each in dependencies)}</dependencies></ivy-module>",
            encoding="utf-8",
        )
        jars = staging / "jars"
        command = [
            str(java), "-cp", _ivy_class_path(), "org.apache.ivy.Main",
            *_ivy_settings(),
            "-cache", str(cache_dir() / "ivy"),
            "-ivy", str(module), "-confs", "default",
            "-types", "jar", "bundle",
            "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
        ]  # fmt: skip
        _run_ivy(command, name, progress)
        check_jars(jars, target.name)
        jars.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _ivy_class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ToolError(
            "PySpark is not installed, and its Ivy fetches Kafka's jars: install this project with the extra [spark]."
        )
    jars = Path(spec.origin).parent / "jars"
    class_path = [*jars.glob("ivy-*.jar"), *jars.glob("commons-cli-*.jar")]
    if len(class_path) < 2:
        raise ToolError(f"PySpark's Ivy is not in {jars}: install pyspark (pyspark-client has no jars).")
    return os.pathsep.join(map(str, class_path))


def _ivy_settings() -> list[str]:
    configured_file = os.environ.get("IVY_SETTINGS_FILE")
    file = Path(configured_file) if configured_file else Path.home() / ".ivy2" / "ivysettings.xml"
    return ["-settings", str(file)] if configured_file or file.is_file() else []


def _run_ivy(command: list[str], name: str, progress: Progress) -> None:
    lines: list[str] = []
    fetched_count = 0
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as ivy,
        _kill_after(ivy, FETCH_TIMEOUT_S) as has_timed_out,
    ):
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(re.sub(r"://[^\s]*@", "://", line.strip()))  # without a login in the URL of a repository
            fetched_count += "[SUCCESSFUL ]" in line
            if "[SUCCESSFUL ]" in line and fetched_count % 10 == 0:
                progress(f"fetched {fetched_count} files of {name}")
    if has_timed_out.is_set():
        raise ToolError(f"Fetching {name} took more than {FETCH_TIMEOUT_S} s and was stopped: run it again to continue.")
    if ivy.returncode != 0:
        raise ToolError(_ivy_failure(name, lines))


@contextlib.contextmanager
def _kill_after(process: subprocess.Popen[str], timeout_s: float) -> Iterator[threading.Event]:
    """Kill a process if the block raises, or after `timeout_s` seconds. The event is set in the second case only."""
    has_timed_out = threading.Event()

    def kill() -> None:
        has_timed_out.set()
        process.kill()

    watchdog = threading.Timer(timeout_s, kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield has_timed_out
    except BaseException:
        process.kill()
        raise
    finally:
        watchdog.cancel()


def _ivy_failure(name: str, lines: Sequence[str]) -> str:
    """The text of the error. Ivy says "not found" for an unreachable server, too: only its list of errors has the cause."""
    for line in lines:
        match = re.search(r"Server access error at url \S+ \((.*)\)|(Host \S+ not found)", line)
        if match:
            reason = match.group(1) or match.group(2)
            return f"The jars of {name} could not be fetched ({reason}): check the network, the proxy, or IVY_SETTINGS_FILE."
    missing_jars = [line.strip(": ").removesuffix(": not found") for line in lines if line.endswith(": not found")]
    if missing_jars:
        return f"{name} does not exist in Ivy's repositories ({missing_jars[0]} not found): choose another version."
    tail = " | ".join(line for line in lines[-5:] if line)
    return f"The jars of {name} could not be fetched; Ivy ended with: {tail or 'no output'}."
