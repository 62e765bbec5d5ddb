"""Recognizes a process that was started earlier, by more than its id: the system reuses ids."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.05


def process_start(pid: int) -> str:
    """The start time of a process, which differs for a later process with the same id. Empty if it has ended or is a zombie."""
    proc = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = proc.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] == "Z" else fields[19]  # field 22 of proc(5): start time, in ticks since boot
    return _ps(pid, "lstart=")


def command_line_of(pid: int) -> str:
    """The words of a process's command line, with blanks between them; empty if it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return _ps(pid, "command=")


def _ps(pid: int, column: str) -> str:
    """One column of `ps`, for systems without /proc."""
    answer = subprocess.run(["ps", "-ww", "-o", column, "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False)
    return answer.stdout.strip()


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Wait until the condition is true, or until the deadline on time.monotonic(). Returns whether it became true."""
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
