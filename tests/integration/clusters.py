"""What tests of clusters share: programs that run for a while beside the test, and Python environments to run them in.

Law: what was started is ended when the `with` block ends, also after a failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
KAFKA_VERSIONS = ("3.9.1", "4.0.1", "4.1.1", "4.2.0")  # besides the one that everything is tested on, and 2.8 (transactions)
# Versions of pyspark and Python that are tried beside the ones that everything else is tested with.
BESIDE = [("4.1", "3.11"), ("4.2", "3.11"), ("4.1", "3.13"), ("4.2", "3.13"), ("4.3", "3.12"), ("4.3", "3.13"), ("4.3", "3.14")]
SPARK_HOME = Path(pyspark.__file__).parent
START_LIMIT_S = 180
END_LIMIT_S = 60
POLL_S = 0.1


def environment(**more: str) -> dict[str, str]:
    """This process's environment as a user's who has nothing of ours on the path, on this machine only."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("PYSPARK_")}
    return inherited | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable} | more


def run(command: Sequence[str | Path], directory: Path, limit_s: float = 280, **more: str) -> str:
    """What a program prints. Fails with the end of its errors when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@contextlib.contextmanager
def running(command: Sequence[str | Path], log: Path, says: str, **more: str) -> Iterator[re.Match[str]]:
    """A program that runs while the block does, from when its output matches `says`."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=log.parent,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield _await_words(process, log, says)
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_LIMIT_S)


def _await_words(process: subprocess.Popen[bytes], log: Path, says: str) -> re.Match[str]:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        match = re.search(says, log.read_text(errors="replace"))
        if match is not None:
            return match
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        time.sleep(POLL_S)
    raise AssertionError(f"{process.args!r} did not say {says!r} in {START_LIMIT_S} s: {log.read_text(errors='replace')[-4000:]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def zipped_pyspark() -> Iterator[None]:
    """Spark's zip of pyspark is there while the block runs, as in each Spark that users have: tests/run removes it.

    Without it, only Pythons that have pyspark themselves can be a driver or a worker.
    """
    file = SPARK_HOME / "python" / "lib" / "pyspark.zip"
    if file.exists():
        yield
        return
    new_file = file.with_suffix(".new")
    try:
        with zipfile.ZipFile(new_file, "w") as archive:
            for source in [*SPARK_HOME.rglob("*.py"), *SPARK_HOME.rglob("*.json")]:
                archive.write(source, Path("pyspark") / source.relative_to(SPARK_HOME))
        new_file.rename(file)
        yield
    finally:
        new_file.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers with one core each, on 127.0.0.1; the master's address."""
    spark_class = SPARK_HOME / "bin" / "spark-class"
    package, options = "org.apache.spark.deploy", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    memory = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    with contextlib.ExitStack() as stack:
        start = [spark_class, f"{package}.master.Master", *options]
        master = running(start, directory / "master.log", r"at (spark://\S+)", **memory)
        address = stack.enter_context(master).group(1)
        for number in range(1, workers + 1):
            command = [spark_class, f"{package}.worker.Worker", *options, "--cores", "1", "--memory", "1g"]
            command += ["--work-dir", str(directory / f"worker-{number}"), address]
            log = directory / f"worker-{number}.log"
            stack.enter_context(running(command, log, "Successfully registered with master", **memory))
        yield address


@contextlib.contextmanager
def connect_server(directory: Path, python: Path, **more: str) -> Iterator[str]:
    """A Spark Connect server whose Python workers are `python`, with more of an environment; its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with running(
        [*command, "spark-internal"], directory / "connect.log", "Connect server started", PYSPARK_PYTHON=str(python), **more
    ):
        yield f"sc://127.0.0.1:{port}"


def package_zip(directory: Path) -> Path:
    """The package as --py-files takes it."""
    file = directory / "pykafka_sink.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for source in (ROOT / "spark_kafka_sink").rglob("*.py"):
            archive.write(source, source.relative_to(ROOT))
    return file


def wheel(directory: Path) -> Path:
    """The wheel of this checkout."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel"]
    run([*pip, ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", directory], directory)
    (file,) = directory.glob("*.whl")
    return file


def make_environment(
    directory: Path, *requirements: str | Path, upon_ours: bool = False, interpreter: str | Path = sys.executable
) -> Path:
    """A virtual environment with these packages; `upon_ours`: and with all that is installed here except this project.

    Returns its Python. Needs a package index, blocks for at most ten minutes.
    """
    directory.mkdir(exist_ok=True)
    run([interpreter, "-m", "venv", "--without-pip", directory], directory)
    python = directory / "bin" / "python"
    if upon_ours:
        site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], directory).strip())
        (site / "ours.pth").write_text(str(_all_but_this_project(directory / "ours")))
    if requirements:
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check", "--no-input", "-q"]
        run([*pip, *requirements], directory, limit_s=600)
    return python


def _all_but_this_project(directory: Path) -> Path:
    """Links to what is installed here. Outside of the new environment's own packages, where pip would replace things."""
    directory.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "kafka_sink" not in package.name and package.suffix != ".pth":
            (directory / package.name).symlink_to(package)
    return directory
