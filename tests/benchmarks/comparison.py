"""What sink_benchmark measured: kept as JSON, and shown as a table. Measures nothing itself.

A recorded run is one file of docs/benchmarks/, with what it was run on. The table of docs/speed.md and the charts
(comparison_chart.py) are made from these files, and from nothing else. Needs neither Spark nor a broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.memory_formula import formula_of_settings_mb

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

SINK, DEFAULTS, TUNED, CONFLUENT, DISCARD, NOOP = (
    "pykafka-sink",
    "spark kafka, defaults",
    "spark kafka, tuned",
    "confluent-kafka in mapInArrow",
    "discarding writer",
    "noop",
)
SINKS = (SINK, DEFAULTS, TUNED, CONFLUENT)  # what writes to Kafka


@dataclass(frozen=True, slots=True)
class VariantMedians:
    """One variant in one comparison: medians over the repeats."""

    rows_per_second: int
    client_cpu_s_per_million: float
    broker_cpu_s_per_million: float
    worker_peak_mb: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Variants on the same rows, in turn: all of them, or those that were asked for."""

    rows: int
    key_bytes: int
    value_bytes: int
    codec: str
    partitions: int
    repeats: int
    variants: dict[str, VariantMedians]

    def ratio(self, variant: str, to: str = DEFAULTS) -> float:
        return self.variants[variant].rows_per_second / self.variants[to].rows_per_second


@dataclass(frozen=True, slots=True)
class SinkBenchmarkRun:
    """One call of sink_benchmark. `short`: too few rows or repeats to be quoted; `spark_settings`: those of --conf."""

    command: str
    date: str
    master: str
    spark_settings: dict[str, str]
    machine: str
    versions: dict[str, str]
    short: bool
    comparisons: tuple[Comparison, ...]

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> SinkBenchmarkRun:
        fields = json.loads(file.read_text(encoding="utf-8"))
        comparisons = tuple(
            Comparison(**each | {"variants": {name: VariantMedians(**figures) for name, figures in each["variants"].items()}})
            for each in fields["comparisons"]
        )
        return cls(**fields | {"comparisons": comparisons})


def recorded_runs(directory: Path = RECORDED) -> list[SinkBenchmarkRun]:
    """In the order of their file names."""
    return [SinkBenchmarkRun.load(file) for file in sorted(directory.glob("*.json"))]


def with_settings(runs: Sequence[SinkBenchmarkRun]) -> list[tuple[SinkBenchmarkRun, Comparison]]:
    """What was measured with the recommended settings of Spark: a row of the table each, and a group of the chart."""
    return [(run, each) for run in runs if run.spark_settings for each in run.comparisons]


def without_settings(runs: Sequence[SinkBenchmarkRun]) -> dict[str, tuple[SinkBenchmarkRun, Comparison]]:
    """What was measured with Spark's own settings, by the label of the table's row.

    Raises:
        ValueError: a measurement has no row.
    """
    labels = {label(run, each) for run, each in with_settings(runs)}
    by_label = {label(run, each): (run, each) for run in runs if not run.spark_settings for each in run.comparisons}
    if by_label.keys() - labels:
        missing = "; ".join(sorted(by_label.keys() - labels))
        raise ValueError(f"measured with Spark's own settings, but not with the recommended ones: {missing}. Record both.")
    return by_label


# MEMORY


def allowed_mb(run: SinkBenchmarkRun, comparison: Comparison) -> float:
    """What the formula of docs/tuning.md allows a Python worker of our sink."""
    return formula_of_settings_mb(run.spark_settings, comparison.key_bytes + comparison.value_bytes)


def check_memory(runs: Iterable[SinkBenchmarkRun]) -> None:
    """The formula is a promise to those who size executors.

    Raises:
        ValueError: a worker of our sink took more in a recorded run than the formula allows.
    """
    for run in runs:
        for each in run.comparisons:
            peak, allowed = each.variants[SINK].worker_peak_mb, allowed_mb(run, each)
            if peak is None:
                raise ValueError(f"{label(run, each)}: the run recorded no peak of a worker. Record it again, on Linux.")
            if peak > allowed:
                raise ValueError(
                    f"{label(run, each)}: a worker took {peak} MiB, but the formula of docs/tuning.md allows {allowed:.0f} MiB."
                    " Find out what takes the memory, or correct the formula and tests/benchmarks/memory_formula.py."
                )


# WORDS


def label(run: SinkBenchmarkRun, comparison: Comparison) -> str:
    """What distinguishes the rows. No codec, 6 partitions and local[2] are the usual case, which is not mentioned."""
    words = [f"{comparison.value_bytes:,} B"]
    if comparison.codec != "none":
        words.append(comparison.codec)
    if comparison.partitions != 6:
        words.append(f"{comparison.partitions:,} partition{'s' if comparison.partitions > 1 else ''}")
    if run.master != "local[2]":
        words.append(run.master)
    return ", ".join(words)


def thousands(per_second: float) -> str:
    return f"{per_second / 1e3:,.0f} k"


def is_short(runs: Iterable[SinkBenchmarkRun]) -> bool:
    return any(run.short for run in runs)


SHORT = "A short run, on a busy machine: made to develop the documents, not to be quoted."


HEADINGS = (
    "Values",
    "This sink, rows/s",
    "This ÷ Spark's tuned",
    "Spark's, defaults",
    "Spark's, tuned",
    "confluent-kafka in `mapInArrow`",
    "A writer that discards",
    "Client CPU s per million rows: this / Spark's / tuned / confluent",
    "A worker's peak / by the formula",
    "This sink with Spark's own settings",
)


def markdown_table(runs: Sequence[SinkBenchmarkRun]) -> str:
    """Every comparison of every run, the fastest of the sinks in bold, and what was run on.

    Raises:
        ValueError: see check_memory and without_settings.
    """
    check_memory(runs)
    plain = without_settings(runs)
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for run, comparison in with_settings(runs):
        lines.append(f"| {' | '.join(_cells(run, comparison, plain.get(label(run, comparison))))} |")
    paragraphs = ["\n".join(lines)]
    if is_short(runs):
        paragraphs.insert(0, f"**{SHORT}**")
    if plain:
        paragraphs.append(_largest_peak(plain))
    paragraphs.append("\n".join(dict.fromkeys(_made_on(run) for run in runs)))
    return "\n\n".join(paragraphs)


def _made_on(run: SinkBenchmarkRun) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return f"{run.date}, {run.machine}, {versions}."


def _cells(run: SinkBenchmarkRun, comparison: Comparison, plain: tuple[SinkBenchmarkRun, Comparison] | None) -> list[str]:
    """A row of the table. What was not measured is empty."""
    variants = comparison.variants
    fastest = max(SINKS, key=lambda name: variants[name].rows_per_second if name in variants else 0)

    def rate(name: str) -> str:
        return f"**{_rate(comparison, name)}**" if name == fastest else _rate(comparison, name)

    return [
        label(run, comparison),
        rate(SINK),
        f"{comparison.ratio(SINK, TUNED):.2f}×" if TUNED in variants else "",
        *map(rate, SINKS[1:]),
        _rate(comparison, DISCARD),
        " / ".join(f"{variants[name].client_cpu_s_per_million:.1f}" if name in variants else "–" for name in SINKS),
        f"{variants[SINK].worker_peak_mb} / {allowed_mb(run, comparison):.0f} MiB",
        _rate(plain[1], SINK) if plain is not None else "",
    ]


def _rate(comparison: Comparison, name: str) -> str:
    """With the ratio to Spark's sink with defaults, for a sink that has one."""
    if name not in comparison.variants:
        return ""
    has_ratio = name in SINKS and name != DEFAULTS and DEFAULTS in comparison.variants
    ratio = f" ({comparison.ratio(name):.2f}×)" if has_ratio else ""
    return thousands(comparison.variants[name].rows_per_second) + ratio


def _largest_peak(plain: dict[str, tuple[SinkBenchmarkRun, Comparison]]) -> str:
    peaks = {name: each.variants[SINK].worker_peak_mb or 0 for name, (_, each) in plain.items()}
    largest = max(peaks, key=lambda name: peaks[name] / allowed_mb(*plain[name]))
    return (
        f"With Spark's own settings a worker of this sink came nearest to the formula with {largest}: {peaks[largest]} MiB of"
        f" {allowed_mb(*plain[largest]):.0f} MiB."
    )
