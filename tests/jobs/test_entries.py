"""The tools of the package under their names in jobs/."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120


@pytest.mark.parametrize(
    ("module", "usage"),
    [
        ("jobs.transactions", "usage: python -m jobs.transactions "),
        ("jobs.report", "usage: python -m jobs.report "),
        ("jobs.producer_perf", "usage: python -m jobs.producer_perf "),
    ],
)
def test_a_tool_runs_under_its_name_in_jobs(
    module: str, usage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module(module, run_name="__main__")
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(usage)
    assert f"examples:\n  python -m {module} " in shown


@pytest.mark.parametrize("module", ["jobs.transactions", "jobs.report", "jobs.producer_perf"])
def test_a_tool_ends_quietly_there_too_when_nobody_reads_it(module: str) -> None:
    """Each printed a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as unread:
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=ROOT,
            stdout=unread,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode in (0, 128 + signal.SIGPIPE)  # argparse passes over it in some versions of Python
    assert done.stderr == b""
