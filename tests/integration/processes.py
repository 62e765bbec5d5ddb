"""Looks at Spark's Python workers from outside, through /proc: who has connections to a broker (Linux)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.measuring import python_workers

ESTABLISHED = "01"


def _workers_of(spark: SparkSession) -> list[int]:
    return python_workers(int(spark.sparkContext._jvm.ProcessHandle.current().pid()))


def connections(spark: SparkSession, bootstrap_servers: str) -> set[str]:
    """The sockets of the session's Python workers that are connected to these ports."""
    ports = {int(server.rpartition(":")[2]) for server in bootstrap_servers.split(",")}
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _inodes(Path(f"/proc/net/{table}"), ports)}
    return {file for pid in _workers_of(spark) for file in _files(pid) & sockets}


def _inodes(table: Path, ports: set[int]) -> list[str]:
    lines = [line.split() for line in table.read_text().splitlines()[1:]]
    return [line[9] for line in lines if line[3] == ESTABLISHED and int(line[2].rpartition(":")[2], 16) in ports]


def _files(pid: int) -> set[str]:
    files = set()
    for each in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            files.add(os.readlink(each))
        except FileNotFoundError:  # closed meanwhile, or the process has ended
            continue
    return files


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Look until it is so; another process tells nobody when it is."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        threading.Event().wait(0.1)
