"""The report as a small table for a shell, with sparklines: one block for each query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan

import numpy as np

from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.report.findings import queries_in_words, top_findings
from spark_kafka_sink.tools.report.lines import Troubles
from spark_kafka_sink.tools.report.series import ColumnValues, known_max
from spark_kafka_sink.tools.report.statistics import Query, Statistics
from spark_kafka_sink.tools.words import counted, moment, percent, rounded, seconds, several, size

TICKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 32  # characters
MAX_QUERIES_SHOWN = 20
MAX_TOPICS_SHOWN = 5

Row = tuple[str, str, Callable[[float], str]]
ROWS: Sequence[Row] = (
    ("rows/s", "rows_per_s", rounded),
    ("bytes/s", "bytes_per_s", size),
    ("rows", "rows", rounded),
    ("time", "wall_s", seconds),
    ("at work", "busy_share", percent),
    ("  tasks run", "running_s", seconds),
    ("  outside", "outside_s", seconds),
    ("  commits", "commit_s", seconds),
    ("all tasks", "all_tasks_s", seconds),
    ("  Spark", "spark_s", seconds),
    ("  encode", "sink_s", seconds),
    ("  brokers", "brokers_s", seconds),
    ("  held back", "held_back_s", seconds),
    ("slowest task", "slowest_task_s", seconds),
    ("middle task", "median_task_s", seconds),
    ("batch", "batch_bytes", size),
    ("compression", "compression", percent),
    ("requests", "requests", rounded),
    ("memory wait", "memory_wait_s", seconds),
    ("throttle", "throttle_s", seconds),
    ("sent again", "retried", rounded),
)


def lines(statistics: Statistics, troubles: Troubles) -> Iterator[str]:
    """All lines. Names from reports are escaped: they may contain any characters."""
    queries = statistics.by_rows()
    for number, finding in enumerate(top_findings(queries), 1):
        yield f"{number}. {printable(finding.sentence, 1000)}"
    if not queries:
        nothing_yet = "No commit has been reported yet: set reportPath, let a write commit, and look again."
        yield "No line is a commit's: is this the file that reportPath names?" if troubles.unreadable_count else nothing_yet
    for query in queries[:MAX_QUERIES_SHOWN]:
        yield ""
        yield from _block(query)
    if len(queries) > MAX_QUERIES_SHOWN:
        yield f"and {queries_in_words(queries[MAX_QUERIES_SHOWN:], 'more ')} with fewer rows"
    yield from (["", *map(printable, troubles.sentences())] if any(troubles.sentences()) else [])


def _block(query: Query) -> Iterator[str]:
    yield f"{printable(query.name)}: {query.commits_in_words()}, {several(query.totals.rows, 'row')}, {size(query.totals.bytes)}"
    yield f"{moment(query.first_at_s)} to {moment(query.last_at_s)}"
    yield f"{'':<13} {'lowest':>9} {'middle':>9} {'highest':>9}"
    for label, column, unit in ROWS:
        middle = query.series.median(column)
        if isnan(middle) or not query.series.highest(column):
            continue
        low, high = query.series.lowest(column), query.series.highest(column)
        picture = sparkline(query.series.means(column))
        yield f"{label:<13} {unit(low):>9} {unit(middle):>9} {unit(high):>9}  {picture}".rstrip()
    topics = query.topics_by_rows()
    for topic in topics[:MAX_TOPICS_SHOWN]:
        yield f"{printable(topic)}: {query.heat_maps[topic].in_words()}"
    if len(topics) > MAX_TOPICS_SHOWN:
        yield f"and {counted(len(topics) - MAX_TOPICS_SHOWN, 'more topic')}"
    for name, reasons in (("skipped", query.skipped), ("dead-lettered", query.dead_lettered)):
        for reason, rows in reasons.most_common():
            yield f"{name}: {counted(rows, 'row')}, {printable(reason) or 'reason not told'}"
    for how, number in query.versions.items():
        yield f"exactly once: {counted(number, 'version')} {printable(how)}"


def sparkline(values: ColumnValues, width: int = SPARKLINE_WIDTH) -> str:
    """A bar for each value, from 0 to the highest one; a blank where nothing is known. Empty for a single value."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    groups = [values[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))] for i in range(min(width, len(values)))]
    highs = [known_max(group) for group in groups]
    top_value = np.nan_to_num(known_max(values)) or 1.0
    return "".join(" " if isnan(high) else TICKS[min(7, int(8 * max(0.0, high) / top_value))] for high in highs)
