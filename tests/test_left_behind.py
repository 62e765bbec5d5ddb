"""left_behind.py: what a killed test run had started ends with it; an orderly run has nothing ended for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT_S = 30
# A run that starts a child in a session of its own, which alone keeps the given pipe open; it ends when told so.
RUN = """
import os, subprocess, sys
from tests.left_behind import watch
dismiss, pipe = watch(), int(sys.argv[1])
child = subprocess.Popen(["sleep", "60"], start_new_session=True, pass_fds=[pipe], stdout=subprocess.DEVNULL)
os.close(pipe)
print(child.pid, flush=True)
sys.stdin.readline()
dismiss()
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


class WatchedRun:
    """A process like a test run: it is watched, and has started a child."""

    def __init__(self) -> None:
        self._child_ends, pipe = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(pipe)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[pipe],
        )
        os.close(pipe)
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def child_has_ended(self, within_s: float) -> bool:
        return bool(select.select([self._child_ends], [], [], within_s)[0])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
        if not self.child_has_ended(0):
            os.kill(self.child, signal.SIGKILL)
        os.close(self._child_ends)


@pytest.fixture
def run() -> Iterator[WatchedRun]:
    started = WatchedRun()
    yield started
    started.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_run_had_started_ends(run: WatchedRun, how: signal.Signals) -> None:
    assert not run.child_has_ended(0)
    run.process.send_signal(how)
    assert run.child_has_ended(LIMIT_S)


def test_a_run_that_ends_in_order_has_nothing_ended_for_it(run: WatchedRun) -> None:
    run.process.communicate(b"\n", timeout=LIMIT_S)
    assert run.process.returncode == 0
    assert not run.child_has_ended(0)
