"""comparison.py: what was measured is shown as it is, also where Spark's own sink is faster, and a short run says so."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.benchmarks.comparison import (
    DEFAULTS,
    DISCARD,
    NOOP,
    SHORT,
    SINK,
    THEMES,
    TUNED,
    Comparison,
    Measured,
    Run,
    chart,
    markdown_table,
)


def measured(rows_per_second: int) -> Measured:
    return Measured(rows_per_second, client_cpu_s_per_million=2.0, broker_cpu_s_per_million=1.0, worker_peak_mb=150)


def run(short: bool = False) -> Run:
    rates = {SINK: 200_000, DEFAULTS: 100_000, TUNED: 250_000, DISCARD: 300_000, NOOP: 900_000}
    comparison = Comparison(3_000_000, 8, 1000, "lz4", 6, 3, {name: measured(rate) for name, rate in rates.items()})
    return Run("python -m …", "2026-01-01", "local[2]", "2 cores", {"Python": "3.11"}, short, (comparison,))


def test_the_fastest_sink_of_a_row_is_bold_whichever_it_is() -> None:
    (row,) = [line for line in markdown_table([run()]).splitlines() if line.startswith("| 1,000 B, lz4 ")]
    assert "| 200 k rows/s (2.00×) | 100 k rows/s | **250 k rows/s (2.50×)** | 300 k rows/s |" in row


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_bars_are_as_long_as_the_rates(theme: object) -> None:
    svg = ElementTree.fromstring(chart([run()], theme))  # type: ignore[arg-type]
    bars = [float(each.get("width", 0)) for each in svg.iter("{http://www.w3.org/2000/svg}rect") if each.get("height") != "12"]
    assert [round(bar / bars[1], 2) for bar in bars] == [2.0, 1.0, 2.5]


@pytest.mark.parametrize("short", [True, False])
def test_a_short_run_is_marked_in_table_and_chart(short: bool) -> None:
    runs = [run(), replace(run(), short=short)]
    assert (SHORT in markdown_table(runs)) is short
    assert (SHORT in chart(runs, THEMES[0])) is short
