"""comparison.py: what was measured is shown as it is, also where another sink is faster, and a short run says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.comparison import (
    CONFLUENT,
    DEFAULTS,
    DISCARD,
    NOOP,
    SHORT,
    SINK,
    SINKS,
    TUNED,
    Comparison,
    SinkBenchmarkRun,
    VariantMedians,
    markdown_table,
    recorded_runs,
)
from tests.benchmarks.comparison_chart import BAR, HEADLINE, THEMES, WIDTH, Theme, chart, headline

SVG = "{http://www.w3.org/2000/svg}"
RECOMMENDED = {"spark.sql.execution.arrow.maxBytesPerBatch": "1m"}
RATES = {SINK: 200_000, DEFAULTS: 100_000, TUNED: 250_000, CONFLUENT: 50_000, DISCARD: 300_000, NOOP: 900_000}
CPU = {SINK: 2.0, DEFAULTS: 4.0, TUNED: 1.0, CONFLUENT: 8.0, DISCARD: 1.5, NOOP: 0.5}


def run(short: bool = False, peak_mb: int | None = 150, value_bytes: int = 1000) -> SinkBenchmarkRun:
    measured = {
        name: VariantMedians(rate, CPU[name], broker_cpu_s_per_million=1.0, worker_peak_mb=peak_mb)
        for name, rate in RATES.items()
    }
    comparison = Comparison(3_000_000, 8, value_bytes, "lz4", 6, 5, measured)
    return SinkBenchmarkRun(
        "python -m …", "2026-01-01", "local[2]", RECOMMENDED, "2 cores", {"Python": "3.11"}, short, (comparison,)
    )


def only(these: SinkBenchmarkRun, *variants: str) -> SinkBenchmarkRun:
    """The run as --variants makes it."""
    left = (replace(each, variants={name: each.variants[name] for name in variants}) for each in these.comparisons)
    return replace(these, comparisons=tuple(left))


def with_sparks_own_settings(these: SinkBenchmarkRun) -> SinkBenchmarkRun:
    return replace(only(these, SINK, DEFAULTS), spark_settings={})


def cells(runs: list[SinkBenchmarkRun]) -> dict[str, str]:
    """Those of the table's one row, by the words above them."""
    heading, _, *rows = [line for line in markdown_table(runs).splitlines() if line.startswith("|")]
    (row,) = rows
    return dict(zip(*([cell.strip() for cell in line.split("|")[1:-1]] for line in (heading, row)), strict=True))


# THE TABLE


def test_the_fastest_sink_of_a_row_is_bold_whichever_it_is() -> None:
    row = cells([run()])
    assert row["Spark's, tuned"] == "**250 k (2.50×)**"
    assert [cell for cell in row.values() if "**" in cell] == ["**250 k (2.50×)**"]


def test_a_row_says_how_this_sink_compares_with_each_of_the_others() -> None:
    row = cells([run()])
    assert row["Values"] == "1,000 B, lz4"
    assert row["This sink, rows/s"] == "200 k (2.00×)"
    assert row["This ÷ Spark's tuned"] == "0.80×"
    assert row["confluent-kafka in `mapInArrow`"] == "50 k (0.50×)"
    assert row["Client CPU s per million rows: this / Spark's / tuned / confluent"] == "2.0 / 4.0 / 1.0 / 8.0"


def test_a_run_with_sparks_own_settings_fills_a_cell_of_its_row() -> None:
    row = cells([run(), with_sparks_own_settings(run())])
    assert row["This sink with Spark's own settings"] == "200 k (2.00×)"


def test_a_row_that_was_not_measured_with_sparks_own_settings_has_an_empty_cell() -> None:
    assert cells([run()])["This sink with Spark's own settings"] == ""


def test_a_measurement_with_sparks_own_settings_that_has_no_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="not with the recommended ones: 100 B, lz4"):
        markdown_table([run(), with_sparks_own_settings(run(value_bytes=100))])


def test_a_variant_that_was_not_measured_is_an_empty_cell_and_no_bar() -> None:
    runs = [only(run(), SINK, DEFAULTS)]
    row = cells(runs)
    assert row["Spark's, tuned"] == row["This ÷ Spark's tuned"] == row["confluent-kafka in `mapInArrow`"] == ""
    assert len(bars(runs, THEMES[0])) == 2 * 2


# MEMORY


def test_a_row_shows_the_peak_of_a_worker_beside_the_formula() -> None:
    # Arrow batches of 1 MiB: 180 + 32 + 2 × 1
    assert cells([run()])["A worker's peak / by the formula"] == "150 / 234 MiB"


def test_a_recorded_run_above_the_memory_formula_cannot_be_printed() -> None:
    assert markdown_table([run(peak_mb=234)])
    with pytest.raises(ValueError, match=r"1,000 B, lz4: a worker took 235 MiB, but the formula of docs/tuning\.md allows 234"):
        markdown_table([run(peak_mb=235)])


def test_the_formula_binds_runs_with_sparks_own_larger_arrow_batches() -> None:
    # 10,000 rows of 1,024 B are 9.8 MiB: 200 + 32 + 2 × 9.8
    assert markdown_table([run(), with_sparks_own_settings(run(peak_mb=251))])
    with pytest.raises(ValueError, match="a worker took 252 MiB"):
        markdown_table([run(), with_sparks_own_settings(run(peak_mb=252))])


def test_a_run_without_a_peak_cannot_be_printed() -> None:
    with pytest.raises(ValueError, match="recorded no peak"):
        markdown_table([run(peak_mb=None)])


# THE CHART


def bars(runs: list[SinkBenchmarkRun], theme: Theme) -> list[ElementTree.Element]:
    svg = ElementTree.fromstring(chart(runs, theme))
    return [each for each in svg.iter(f"{SVG}rect") if each.get("height") == str(BAR - 3) and float(each.get("width", 0)) != 12]


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_bars_are_as_long_as_the_rates_and_the_cpu(theme: Theme) -> None:
    drawn = bars([run()], theme)
    widths = [float(each.get("width", 0)) for each in drawn]
    rates, costs = widths[::2], widths[1::2]
    assert [each.get("fill") for each in drawn[::2]] == [theme.bars[name] for name in SINKS]
    assert [round(width / rates[1], 2) for width in rates] == [2.0, 1.0, 2.5, 0.5]
    assert [round(width / costs[1], 2) for width in costs] == [0.5, 1.0, 0.25, 2.0]


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_the_chart_fits_a_phone_and_no_words_leave_it(theme: Theme) -> None:
    """Words are taken as 0.54 em wide for each character, about what system fonts take for a sentence."""
    assert WIDTH <= 390
    svg = ElementTree.fromstring(chart(recorded_runs(), theme))
    for each in svg.iter(f"{SVG}text"):
        size = float(each.get("font-size", "12"))
        assert size >= 12
        assert float(each.get("x", 0)) + 0.54 * size * len(each.text or "") <= WIDTH, each.text


def test_the_chart_has_a_group_for_each_row_of_the_table() -> None:
    runs = recorded_runs()
    words = [each.text for each in ElementTree.fromstring(chart(runs, THEMES[0])).iter(f"{SVG}text")]
    rows = [line.split("|")[1].strip() for line in markdown_table(runs).splitlines() if line.startswith("|")][2:]
    assert rows
    assert [words.count(row) for row in rows] == [1] * len(rows)


def test_the_readmes_chart_has_the_groups_of_its_headline() -> None:
    shown = chart(headline(recorded_runs()), THEMES[0])
    words = [each.text for each in ElementTree.fromstring(shown).iter(f"{SVG}text")]
    assert [word for word in words if word and word.endswith(" B")] == list(HEADLINE)


@pytest.mark.parametrize("short", [True, False])
def test_a_short_run_is_marked_in_table_and_chart(short: bool) -> None:
    runs = [run(), replace(run(value_bytes=100), short=short)]
    drawn = ElementTree.fromstring(chart(runs, THEMES[0]))
    assert (SHORT in markdown_table(runs)) is short
    assert (SHORT in " ".join(each.text or "" for each in drawn.iter(f"{SVG}text"))) is short


# KEEPING


def test_a_run_of_some_variants_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = with_sparks_own_settings(run())
    written.save(tmp_path / "run.json")
    assert SinkBenchmarkRun.load(tmp_path / "run.json") == written
    assert TUNED not in (tmp_path / "run.json").read_text(encoding="utf-8")
