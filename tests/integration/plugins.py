"""Plug-ins that Spark's workers load by name."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class AlwaysZero:
    """All rows to partition 0."""

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Any) -> npt.NDArray[np.int32]:
        del topic, key, cluster
        return np.zeros(len(value), np.int32)


class HarmfulPartitioner:
    """A partitioner that does harm once, when it sees the row `kafka.fault.row`: values begin with a number of 8 digits.

    `kafka.fault.kind` is kill-worker, kill-jvm (the executor's, which for a local master is the driver's) or wait (until the file
    `kafka.fault.marker` has a second line); the marker is the file that tells that the harm is done.
    """

    def configure(self, config: Mapping[str, Any]) -> None:
        self._row, self._kind, self._marker = b"%08d" % int(config["fault.row"]), config["fault.kind"], config["fault.marker"]

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Any) -> npt.NDArray[np.int32]:
        del topic, key, cluster
        if pc.any(pc.equal(pc.binary_slice(value, 0, 8), self._row)).as_py() and self._first():
            self._harm()
        return np.full(len(value), -1, np.int32)

    def _first(self) -> bool:
        try:
            with open(self._marker, "x"):
                return True
        except FileExistsError:
            return False

    def _harm(self) -> None:
        if self._kind == "kill-worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "kill-jvm":
            os.kill(_parent(os.getppid()), signal.SIGKILL)  # worker < daemon < JVM
        else:
            while not os.path.getsize(self._marker):
                time.sleep(0.1)


def commits_file(owner: str) -> Path:
    """Where note_commit writes what it was told of this txnAppId."""
    return Path(tempfile.gettempdir()) / f"pykafka-sink-commits-of-{owner}"


def note_commit(summary: Any) -> None:
    """An onCommit: one line of the file for each call."""
    version = summary.exactly_once
    with commits_file(version.owner).open("a") as file:
        file.write(f"{version.version} {version.how} {summary.rows}\n")


def kill_driver_once(summary: Any) -> None:
    """An onCommit that kills the JVM of the driver, unless the marker that the environment names is there already."""
    del summary
    try:
        with open(os.environ["KILL_DRIVER_MARKER"], "x"):
            pid = os.getppid()
    except FileExistsError:
        return
    while _program(pid) != "java":
        pid = _parent(pid)
    os.kill(pid, signal.SIGKILL)


def _program(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
