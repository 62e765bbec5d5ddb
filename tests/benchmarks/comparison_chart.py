"""The charts of what sink_benchmark measured, as SVG files for light and for dark pages.

`comparison` in docs/speed.md shows every row of the table, `headline` in the README the two of HEADLINE.
For each row of the table a group of bars, one for each sink: rows/s on the left, client CPU on the right. A bar is as long as its
share of the longest one of its group, because rows of 100 B and of 1,000 B have no scale in common. The chart is as wide as a
phone's page, so that its text is readable there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from tests.benchmarks.comparison import (
    CONFLUENT,
    DEFAULTS,
    SHORT,
    SINK,
    SINKS,
    TUNED,
    Comparison,
    SinkBenchmarkRun,
    is_short,
    label,
    thousands,
    with_settings,
)


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    text: str
    faint: str
    line: str
    bars: dict[str, str]


THEMES = (
    Theme(
        "light", "#1f2328", "#59636e", "#d1d9e0", {SINK: "#0969da", DEFAULTS: "#c4ccd5", TUNED: "#8c959f", CONFLUENT: "#d4a72c"}
    ),
    Theme(
        "dark", "#f0f6fc", "#9198a1", "#3d444d", {SINK: "#4493f8", DEFAULTS: "#484f58", TUNED: "#818b98", CONFLUENT: "#bb8009"}
    ),
)
NAMES = {
    SINK: "pykafka-sink",
    DEFAULTS: "Spark's Kafka sink, defaults",
    TUNED: "Spark's Kafka sink, tuned",
    CONFLUENT: "confluent-kafka in mapInArrow",
}

HEADLINE = ("100 B", "1,000 B")  # labels

WIDTH, RIGHT = 380, 206  # RIGHT: where the column of the CPU begins
LONGEST_RATE, LONGEST_CPU = 90, 140  # bars; the rest of the column is for the words behind them
TOP, BAR, HEADING, GAP = 142, 15, 20, 10
FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
BOLD = ' font-weight="600"'
FOOT = (
    "A group is named by the size of its values and the codec; bars compare within a group. ×: rows/s against Spark's sink with"
    " defaults, in the same run."
)


def chart(runs: Sequence[SinkBenchmarkRun], theme: Theme) -> str:
    """The SVG. Nothing of a variant that was not measured is drawn."""
    pairs = with_settings(runs)
    below = _wrapped(FOOT) + _wrapped(_setting(runs))
    warning = _wrapped(SHORT) if is_short(runs) else []
    group = HEADING + len(SINKS) * BAR + GAP
    bottom = TOP + len(pairs) * group
    height = bottom + 16 * (len(below) + len(warning)) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="{FONT}" font-size="12" role="img">',
        f"<title>{escape(title(runs))}</title>",
        *_head(theme),
    ]
    for number, (run, comparison) in enumerate(pairs):
        parts += _group(theme, run, comparison, TOP + number * group)
    for number, line in enumerate([*below, *warning]):
        color, style = (theme.faint, "") if number < len(below) else (theme.text, BOLD)
        parts.append(_text(0, bottom + 14 + 16 * number, line, color, style))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(theme: Theme) -> list[str]:
    parts = [_text(0, 15, "Writing a DataFrame to Kafka", theme.text, ' font-size="14"' + BOLD)]
    for place, (name, words) in enumerate(NAMES.items()):
        y = 28 + 18 * place
        parts.append(f'<rect x="0" y="{y}" width="12" height="12" rx="2" fill="{theme.bars[name]}"/>')
        parts.append(_text(18, y + 10, words, theme.text))
    for x, words, better in ((0, "rows/s", "more is better"), (RIGHT, "client CPU s per million", "rows; less is better")):
        parts.append(_text(x, 116, words, theme.text, BOLD))
        parts.append(_text(x, 132, better, theme.faint))
    return parts


def _group(theme: Theme, run: SinkBenchmarkRun, comparison: Comparison, top: float) -> list[str]:
    measured = {name: comparison.variants[name] for name in NAMES if name in comparison.variants}
    rates = {name: each.rows_per_second for name, each in measured.items()}
    costs = {name: each.client_cpu_s_per_million for name, each in measured.items()}
    parts = [
        f'<line x1="0" y1="{top:.1f}" x2="{WIDTH}" y2="{top:.1f}" stroke="{theme.line}"/>',
        _text(0, top + 15, label(run, comparison), theme.text, BOLD),
    ]
    fastest, cheapest = max(rates, key=rates.__getitem__), min(costs, key=costs.__getitem__)
    for place, name in enumerate(measured):
        y = top + HEADING + place * BAR
        words = thousands(rates[name])
        if name != DEFAULTS and DEFAULTS in measured:
            words += f" {comparison.ratio(name):.2f}×"
        length = LONGEST_RATE * rates[name] / rates[fastest]
        parts += _bar(theme, name, 0, y, length, words, name == fastest)
        length = LONGEST_CPU * costs[name] / max(costs.values())
        parts += _bar(theme, name, RIGHT, y, length, f"{costs[name]:.1f}", name == cheapest)
    return parts


def _bar(theme: Theme, name: str, x: float, y: float, length: float, words: str, best: bool) -> list[str]:
    return [
        f'<rect x="{x}" y="{y:.1f}" width="{length:.1f}" height="{BAR - 3}" rx="2" fill="{theme.bars[name]}"/>',
        _text(x + length + 5, y + BAR - 5, words, theme.text if best else theme.faint, BOLD if best else ""),
    ]


def _text(x: float, y: float, words: str, color: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}"{style}>{escape(words)}</text>'


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, 58)


def title(runs: Sequence[SinkBenchmarkRun]) -> str:
    """The chart in words."""
    return "; ".join(_in_words(run, each) for run, each in with_settings(runs))


def _in_words(run: SinkBenchmarkRun, comparison: Comparison) -> str:
    others = [name for name in (DEFAULTS, TUNED, CONFLUENT) if name in comparison.variants]
    ratios = ", ".join(f"{comparison.ratio(SINK, name):.2f} times that of {NAMES[name]}" for name in others)
    return f"{label(run, comparison)}: rows per second of {NAMES[SINK]} are {ratios}"


def _setting(runs: Sequence[SinkBenchmarkRun]) -> str:
    return f"{runs[0].machine}, broker on the same machine; {runs[0].date}."


def headline(runs: Sequence[SinkBenchmarkRun]) -> list[SinkBenchmarkRun]:
    """The runs with what the README shows of them."""
    shown = {id(each) for run, each in with_settings(runs) if label(run, each) in HEADLINE}
    left = [replace(run, comparisons=tuple(each for each in run.comparisons if id(each) in shown)) for run in runs]
    return [run for run in left if run.comparisons]


def draw(directory: Path, runs: Sequence[SinkBenchmarkRun]) -> list[Path]:
    """Write both charts, each as …-light.svg and …-dark.svg."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for name, shown in (("headline", headline(runs)), ("comparison", runs)):
        for theme in THEMES:
            files.append(directory / f"{name}-{theme.name}.svg")
            files[-1].write_text(chart(shown, theme), encoding="utf-8")
    return files
