"""A Python worker takes what the formula of docs/tuning.md allows, with large rows, large batches and dead letters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 400
TOLERANCE = 1.05

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize("cases", ["6.5 KB", pytest.param("100 B", marks=pytest.mark.matrix)])
def test_a_workers_peak_is_what_the_formula_allows(cases: str) -> None:
    """With rows of 6.5 KB a worker took 341 MB where the formula allowed 296: three Arrow batches of 64 MB were alive at a time.

    Each case is measured in a worker of its own, so in a session of its own.
    """
    command = [sys.executable, "-m", "tests.benchmarks.memory_benchmark", "--scale", "0.5", "--cases", cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    peaks = re.findall(r"formula (\d+) MiB, measured (\d+) MiB", done.stdout)
    assert len(peaks) == 2, done.stdout
    for formula, measured in peaks:
        assert 0.6 * int(formula) < int(measured) <= TOLERANCE * int(formula), done.stdout
