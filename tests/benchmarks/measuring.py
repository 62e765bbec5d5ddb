"""CPU time and memory of other processes, and of what they started, read from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its descendants, and of those of them that have ended and were waited for."""
    return sum(_own_and_waited_for(each) for each in [pid, *descendants(pid)])


def _own_and_waited_for(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS_PER_SECOND if fields else 0.0  # utime, stime, cutime, cstime


def descendants(pid: int) -> list[int]:
    parents = {int(each.name): int(fields[1]) for each in Path("/proc").glob("[0-9]*") if (fields := _stat(int(each.name)))}
    pids, frontier = [], {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        pids += frontier
    return pids


def _stat(pid: int) -> list[str]:
    """The fields behind the name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def peak_resident_mb(pid: int) -> float:
    """The most memory the process ever had resident, in MiB; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def reset_peak(pid: int) -> None:
    """Start the peak anew from what is resident now."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return


def python_workers(jvm_pid: int, environment: str = "") -> list[int]:
    """Spark's Python processes below a JVM; only those that have the variable NAME=VALUE of `environment`, if one is given."""
    return [
        pid for pid in descendants(jvm_pid) if "python" in _command(pid) and (not environment or environment in _variables(pid))
    ]


def _variables(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@dataclass(frozen=True, slots=True)
class Usage:
    wall_s: float
    client_cpu_s: float
    broker_cpu_s: float
