"""The report as a small table for a shell, with sparklines: one block for each query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan

import numpy as np

from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.report.findings import top
from spark_kafka_sink.tools.report.lines import Troubles
from spark_kafka_sink.tools.report.series import ColumnValues, highest
from spark_kafka_sink.tools.report.statistics import Query, Statistics
from spark_kafka_sink.tools.words import count, moment, percent, rounded, seconds, several, size

TICKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 32  # characters of a sparkline
SHOWN_QUERIES = 20
SHOWN_TOPICS = 5

Row = tuple[str, str, Callable[[float], str]]
ROWS: Sequence[Row] = (
    ("rows/s", "rows_per_s", rounded),
    ("bytes/s", "bytes_per_s", size),
    ("rows", "rows", rounded),
    ("time", "wall", seconds),
    ("at work", "busy", percent),
    ("  tasks run", "running", seconds),
    ("  outside", "outside", seconds),
    ("  commits", "commit", seconds),
    ("all tasks", "task_seconds", seconds),
    ("  Spark", "spark", seconds),
    ("  encode", "sink", seconds),
    ("  brokers", "brokers", seconds),
    ("  held back", "held_back", seconds),
    ("slowest task", "slowest_task", seconds),
    ("middle task", "median_task", seconds),
    ("batch", "batch_size", size),
    ("compression", "compression", percent),
    ("requests", "requests", rounded),
    ("memory wait", "memory_wait", seconds),
    ("throttle", "throttle", seconds),
    ("sent again", "retried", rounded),
)


def lines(statistics: Statistics, troubles: Troubles) -> Iterator[str]:
    """All lines. Names from reports are escaped: they may contain any characters."""
    queries = statistics.by_rows()
    for number, finding in enumerate(top(queries), 1):
        yield f"{number}. {printable(finding.sentence, 1000)}"
    if not queries:
        nothing_yet = "No commit has been reported yet: set reportPath, let a write commit, and look again."
        yield "No line is a commit's: is this the file that reportPath names?" if troubles.unreadable_count else nothing_yet
    for query in queries[:SHOWN_QUERIES]:
        yield ""
        yield from _block(query)
    if len(queries) > SHOWN_QUERIES:
        yield f"and {count(len(queries) - SHOWN_QUERIES, 'more query', 'more queries')} with fewer rows"
    yield from (["", *map(printable, troubles.sentences())] if any(troubles.sentences()) else [])


def _block(query: Query) -> Iterator[str]:
    yield f"{printable(query.name)}: {query.commits()}, {several(query.totals.rows, 'row')}, {size(query.totals.bytes)}"
    yield f"{moment(query.first_at)} to {moment(query.last_at)}"
    yield f"{'':<13} {'lowest':>9} {'middle':>9} {'highest':>9}"
    for label, column, unit in ROWS:
        middle = query.series.median_of(column)
        if isnan(middle) or not query.series.highest(column):
            continue
        low, high = query.series.lowest(column), query.series.highest(column)
        picture = sparkline(query.series.mean(column))
        yield f"{label:<13} {unit(low):>9} {unit(middle):>9} {unit(high):>9}  {picture}".rstrip()
    topics = query.topics_by_rows()
    for topic in topics[:SHOWN_TOPICS]:
        yield f"{printable(topic)}: {query.heat[topic].in_words()}"
    if len(topics) > SHOWN_TOPICS:
        yield f"and {count(len(topics) - SHOWN_TOPICS, 'more topic')}"
    for name, reasons in (("skipped", query.skipped), ("dead-lettered", query.dead_lettered)):
        for reason, rows in reasons.most_common():
            yield f"{name}: {count(rows, 'row')}, {printable(reason) or 'reason not told'}"
    for how, number in query.versions.items():
        yield f"exactly once: {count(number, 'version')} {printable(how)}"


def sparkline(values: ColumnValues, width: int = SPARKLINE_WIDTH) -> str:
    """A bar for each value, from 0 to the highest one; a blank where nothing is known. Empty for a single value."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    groups = [values[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))] for i in range(min(width, len(values)))]
    highs = [highest(group) for group in groups]
    top_value = np.nan_to_num(highest(values)) or 1.0
    return "".join(" " if isnan(high) else TICKS[min(7, int(8 * max(0.0, high) / top_value))] for high in highs)
