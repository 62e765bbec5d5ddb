"""The tools of the package under their names in jobs/."""

from __future__ import annotations

import runpy

import pytest


@pytest.mark.parametrize(
    ("module", "usage"),
    [
        ("jobs.transactions", "usage: transactions "),
        ("jobs.report", "usage: python -m jobs.report "),
        ("jobs.producer_perf", "usage: producer_perf "),
    ],
)
def test_a_tool_runs_under_its_name_in_jobs(
    module: str, usage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module(module, run_name="__main__")
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(usage)
