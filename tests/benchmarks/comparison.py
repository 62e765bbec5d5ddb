"""What sink_benchmark measured: kept as JSON, shown as a table and as a chart. Measures nothing itself.

A recorded run is one file of docs/benchmarks/, with what it was run on. docs/speed.md and the chart of the README are made from
these files, and from nothing else. Needs neither Spark nor a broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

SINK, DEFAULTS, TUNED, DISCARD, NOOP = (
    "pykafka-sink",
    "spark kafka, defaults",
    "spark kafka, tuned",
    "discarding writer",
    "noop",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant in one comparison: medians over the repeats."""

    rows_per_second: int
    client_cpu_s_per_million: float
    broker_cpu_s_per_million: float
    worker_peak_mb: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All variants, on the same rows, in turn."""

    rows: int
    key_bytes: int
    value_bytes: int
    codec: str
    partitions: int
    repeats: int
    variants: dict[str, Measured]

    def ratio(self, variant: str) -> float:
        return self.variants[variant].rows_per_second / self.variants[DEFAULTS].rows_per_second

    def megabytes_per_second(self, variant: str) -> float:
        """Of keys and values, before compression."""
        return self.variants[variant].rows_per_second * (self.key_bytes + self.value_bytes) / 1e6


@dataclass(frozen=True, slots=True)
class Run:
    """One call of sink_benchmark. `short`: too few rows or repeats to be quoted."""

    command: str
    date: str
    master: str
    machine: str
    versions: dict[str, str]
    short: bool
    comparisons: tuple[Comparison, ...]

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Run:
        found = json.loads(file.read_text(encoding="utf-8"))
        comparisons = tuple(
            Comparison(**each | {"variants": {name: Measured(**figures) for name, figures in each["variants"].items()}})
            for each in found["comparisons"]
        )
        return cls(**found | {"comparisons": comparisons})


def recorded_runs(directory: Path = RECORDED) -> list[Run]:
    """In the order of their file names."""
    return [Run.load(file) for file in sorted(directory.glob("*.json"))]


# WORDS


def _label(run: Run, comparison: Comparison) -> str:
    """What distinguishes the rows. No codec, 6 partitions and local[2] are the usual case, which is not mentioned."""
    words = [f"{comparison.value_bytes:,} B"]
    if comparison.codec != "none":
        words.append(comparison.codec)
    if comparison.partitions != 6:
        words.append(f"{comparison.partitions} partition{'s' if comparison.partitions > 1 else ''}")
    if run.master != "local[2]":
        words.append(run.master)
    return ", ".join(words)


def _rows(per_second: float) -> str:
    return f"{per_second / 1e3:,.0f} k"


def _is_short(runs: Iterable[Run]) -> bool:
    return any(run.short for run in runs)


SHORT = "A short run, on a busy machine: made to develop the documents, not to be quoted."


def markdown_table(runs: Sequence[Run]) -> str:
    """Every comparison of every run, the fastest of the three sinks in bold, and how each run was made."""
    lines = [
        "| Values | This sink | Spark's, defaults | Spark's, tuned | A writer that discards"
        " | Client CPU s per million rows: this / Spark's / tuned |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for comparison in run.comparisons:
            fastest = max((SINK, DEFAULTS, TUNED), key=lambda name: comparison.variants[name].rows_per_second)
            cells = [_label(run, comparison)]
            for name in (SINK, DEFAULTS, TUNED, DISCARD):
                cell = f"{_rows(comparison.variants[name].rows_per_second)} rows/s"
                if name in (SINK, TUNED):
                    cell += f" ({comparison.ratio(name):.2f}×)"
                cells.append(f"**{cell}**" if name == fastest else cell)
            cells.append(" / ".join(f"{comparison.variants[n].client_cpu_s_per_million:.1f}" for n in (SINK, DEFAULTS, TUNED)))
            lines.append(f"| {' | '.join(cells)} |")
    paragraphs = ["\n".join(lines)]
    if _is_short(runs):
        paragraphs.insert(0, f"**{SHORT}**")
    peaks = [each.variants[SINK].worker_peak_mb or 0 for run in runs for each in run.comparisons]
    paragraphs.append(f"A Python worker of this sink took at most {max(peaks)} MiB.")
    for run in runs:
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        paragraphs.append(f"`{run.command}`  \n{run.date}, {run.machine}, {versions}.")
    return "\n\n".join(paragraphs)


# THE CHART


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    text: str
    faint: str
    line: str
    bars: dict[str, str]


THEMES = (
    Theme("light", "#1f2328", "#59636e", "#d1d9e0", {SINK: "#0969da", DEFAULTS: "#c4ccd5", TUNED: "#8c959f"}),
    Theme("dark", "#f0f6fc", "#9198a1", "#3d444d", {SINK: "#4493f8", DEFAULTS: "#484f58", TUNED: "#818b98"}),
)
HEADLINE = "Writing a DataFrame to Kafka, by size of the values and codec: MB/s of keys and values"
NAMES = {SINK: "pykafka-sink", DEFAULTS: "Spark's Kafka sink, defaults", TUNED: "Spark's Kafka sink, tuned"}

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 820, 150, 140, 70, 13, 15
FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


def chart(runs: Sequence[Run], theme: Theme) -> str:
    """An SVG: for each comparison one bar for each sink, as long as the megabytes per second; the rows per second beside it."""
    pairs = [(run, comparison) for run in runs for comparison in run.comparisons]
    longest = max(each.megabytes_per_second(name) for _, each in pairs for name in NAMES)
    step = next(step for step in (10, 20, 25, 50, 100, 200, 500, 1000) if longest / step <= 6)
    group = len(NAMES) * BAR + GAP
    bottom = TOP + len(pairs) * group
    height = bottom + (58 if _is_short(runs) else 38)

    def text(x: float, y: float, words: str, color: str = theme.text, anchor: str = "start", style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{style}>{escape(words)}</text>'

    def scaled(megabytes: float) -> float:
        return (WIDTH - LEFT - RIGHT) * megabytes / longest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="{FONT}" font-size="12" role="img">',
        f"<title>{escape(title(runs))}</title>",
        text(0, 16, HEADLINE, style=' font-size="15" font-weight="600"'),
    ]
    x = 0.0
    for name, words in NAMES.items():
        parts += [f'<rect x="{x}" y="31" width="12" height="12" rx="2" fill="{theme.bars[name]}"/>', text(x + 18, 41, words)]
        x += 30 + 6.4 * len(words)
    for megabytes in range(0, int(longest) + 1, step):
        at = LEFT + scaled(megabytes)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP - 6}" x2="{at:.1f}" y2="{bottom - GAP + 6}" stroke="{theme.line}"/>')
        parts.append(text(at, bottom + 8, f"{megabytes}", theme.faint, "middle"))
    for number, (run, comparison) in enumerate(pairs):
        y = TOP + number * group
        parts.append(text(LEFT - 10, y + len(NAMES) * BAR / 2 + 4, _label(run, comparison), anchor="end"))
        for place, name in enumerate(NAMES):
            length, at = scaled(comparison.megabytes_per_second(name)), y + place * BAR
            parts.append(f'<rect x="{LEFT}" y="{at}" width="{length:.1f}" height="{BAR - 2}" rx="2" fill="{theme.bars[name]}"/>')
            words = f"{_rows(comparison.variants[name].rows_per_second)} rows/s"
            words += "" if name == DEFAULTS else f"  {comparison.ratio(name):.2f}×"
            strong = name == max(NAMES, key=comparison.megabytes_per_second)
            parts.append(
                text(
                    LEFT + length + 6,
                    at + BAR - 3,
                    words,
                    theme.text if strong else theme.faint,
                    style=' font-size="11"' + (' font-weight="600"' if strong else ""),
                )
            )
    parts.append(text(0, bottom + 28, f"×: against Spark's sink with defaults, in the same run. {_setting(runs)}", theme.faint))
    if _is_short(runs):
        parts.append(text(0, bottom + 48, SHORT, theme.text, style=' font-weight="600"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


def title(runs: Sequence[Run]) -> str:
    """The chart in words."""
    pairs = [(run, each) for run in runs for each in run.comparisons]
    return "; ".join(f"{_label(run, each)}: {each.ratio(SINK):.2f} times the rows of Spark's sink" for run, each in pairs)


def _setting(runs: Sequence[Run]) -> str:
    return f"{runs[0].machine}, broker on the same machine; {runs[0].date}."


def draw(directory: Path, runs: Sequence[Run]) -> list[Path]:
    """Write comparison-light.svg and comparison-dark.svg."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for theme in THEMES:
        files.append(directory / f"comparison-{theme.name}.svg")
        files[-1].write_text(chart(runs, theme), encoding="utf-8")
    return files
