"""The pictures of a query: which columns are drawn, and how. svg.py makes them fit into a page.

A line is the median of each bucket; the band around it reaches from the lowest to the highest value. It has a gap where a stream
has paused. A batch write has nothing to do with the one before, so it is a dot. Parts of a whole are means, stacked.
Only this file and svg.py use matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spark_kafka_sink.tools.report.series import ColumnValues
from spark_kafka_sink.tools.report.statistics import TASK_PARTS, TIME_PARTS, Query
from spark_kafka_sink.tools.report.svg import HEAT, HEIGHT, LINE_COLORS, STYLE, new_figure, to_svg
from spark_kafka_sink.tools.words import moment, percent, rounded, seconds, several, size

StackPart = tuple[str, str, ColumnValues]  # label, color, values
MAX_HEAT_MAPS = 6  # of a query
MAX_HEAT_ROWS = 32  # of a heat map; partitions next to each other share one if there are more
PART_NAMES = {
    "running_s": "tasks run",
    "outside_s": "outside of tasks",
    "commit_s": "committing",
    "spark_s": "Spark computes rows",
    "held_back_s": "held back by a rate",
    "sink_s": "encoding, sending",
    "brokers_s": "waiting for brokers",
}
PART_COLORS = dict(zip((*TIME_PARTS, *TASK_PARTS), (LINE_COLORS[number] for number in (3, 2, 4, 0, 5, 1, 2)), strict=True))
BAND_OPACITY = 0.22
BAR_WIDTH_SHARE = 0.008  # of the picture's width, for a stack at one moment
MIN_SPAN_S = 0.001  # from the first to the last commit, to draw lines


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the page, with its title."""

    title: str
    caption: str  # a sentence below it
    svg: str
    needs_legend: bool = False  # of the shades in a heat map


def pictures(query: Query, name: str) -> list[Picture]:
    """All pictures of a query, except those without numbers. `name`: unique on the page."""
    draw_functions = (_speed, _time, _task_time, _bytes, _busy, _tasks, _waits, _batches, _compression, _requests, _retries)
    with mpl.rc_context(STYLE):
        results = [each(query, f"{name}-{number}") for number, each in enumerate(draw_functions)]
    return [picture for picture in results if picture is not None]


def heat_maps(query: Query, name: str) -> list[Picture]:
    """Draw a heat map for each of the topics with the most rows. `name`: unique on the page."""
    topics = [topic for topic in query.topics_by_rows()[:MAX_HEAT_MAPS] if query.heat_maps[topic].rows]
    with mpl.rc_context(STYLE):
        results = [_heat_map(topic, query, f"{name}-heat-{number}") for number, topic in enumerate(topics)]
    return [picture for picture in results if picture is not None]


# LINES


def _speed(query: Query, name: str) -> Picture | None:
    best = query.series.highest("rows_per_s")
    caption = f"{rounded(query.rows_per_s)} rows/s in all, at most {rounded(best)} in a {query.unit}."
    return _lines(query, name, "Rows per second while tasks ran", caption, {"rows_per_s": "rows/s"}, rounded)


def _bytes(query: Query, name: str) -> Picture | None:
    caption = f"{size(query.totals.bytes)} of records in all, before compression; {size(query.totals.sent_bytes)} were sent."
    return _lines(query, name, "Bytes per second, before compression, while tasks ran", caption, {"bytes_per_s": "bytes/s"}, size)


def _tasks(query: Query, name: str) -> Picture | None:
    slowest_s, median_s = query.series.median("slowest_task_s"), query.series.median("median_task_s")
    factor = f", {slowest_s / median_s:.1f} times the median" if median_s > 0 else ""
    caption = f"The slowest task takes {seconds(slowest_s)}{factor}."
    columns = {"slowest_task_s": "slowest", "median_task_s": "median"}
    return _lines(query, name, "Slowest task and median", caption, columns, seconds)


def _batches(query: Query, name: str) -> Picture | None:
    middle = size(query.series.median("batch_bytes"))
    caption = f"{several(query.totals.batches, 'batch', 'batches')}, {middle} each in the median, as sent."
    return _lines(query, name, "Size of a batch", caption, {"batch_bytes": "bytes"}, size)


def _compression(query: Query, name: str) -> Picture | None:
    caption = f"What is sent has {percent(query.compression)} of the records' bytes."
    return _lines(query, name, "Compression: bytes sent, of the records' bytes", caption, {"compression": "part"}, percent)


def _requests(query: Query, name: str) -> Picture | None:
    records, latency_s = query.series.median("records_per_request"), query.series.median("latency_s")
    caption = f"{several(records, 'record')} each, answered in {seconds(latency_s)}."
    return _lines(query, name, f"Produce requests of a {query.unit}", caption, {"requests": "requests"}, rounded)


def _busy(query: Query, name: str) -> Picture | None:
    rest_share = 1 - query.series.median("busy_share")
    caption = f"The rest of the time, {percent(rest_share)} in the median, Spark plans or waits for rows."
    return _lines(query, name, "Part of the time at work", caption, {"busy_share": "at work"}, percent)


def _retries(query: Query, name: str) -> Picture | None:
    retried_records = query.series.sum("retried")
    if not retried_records:
        return None
    caption = f"{several(retried_records, 'record')} in all; sending again writes nothing twice."
    title = f"Records of a {query.unit} that were sent again"
    return _stack(query, name, title, caption, [("records", LINE_COLORS[5], query.series.means("retried"))], rounded)


def _lines(
    query: Query, name: str, title: str, caption: str, columns: dict[str, str], unit: Callable[[float], str]
) -> Picture | None:
    """None if no number is known, or if nothing can change because all commits are at one moment."""
    known_columns = {column: label for column, label in columns.items() if not np.isnan(query.series.medians(column)).all()}
    if not known_columns or is_one_moment(query):
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    for color, (column, label) in zip(LINE_COLORS, known_columns.items(), strict=False):
        medians = query.series.medians(column)
        lows, highs = query.series.lows(column), query.series.highs(column)
        axes.plot([], [], color=color, label=label)  # for the legend
        for part_times, part_positions in _unbroken_lines(query):
            is_known = ~np.isnan(medians[part_positions])  # of a micro-batch's further writes, some numbers are not
            times, positions = part_times[is_known], np.array(part_positions)[is_known]
            if len(positions) == 1:
                axes.vlines(times, lows[positions], highs[positions], color=color, alpha=2 * BAND_OPACITY)
                axes.plot(times, medians[positions], color=color, marker="o", markersize=4)
            else:
                axes.fill_between(times, lows[positions], highs[positions], color=color, alpha=BAND_OPACITY, linewidth=0)
                axes.plot(times, medians[positions], color=color)
    _format_axes(axes, unit)
    if len(known_columns) > 1:
        _draw_legend(axes, len(known_columns))
    return _picture(figure, query, name, title, caption)


def _unbroken_lines(query: Query) -> list[tuple[Any, list[int]]]:
    """The parts of a line between pauses: times, and the buckets drawn there. A bucket with a pause in it is in two parts."""
    parts: list[list[tuple[float, int]]] = [[]]
    pauses = query.pauses()
    for position, bucket in enumerate(query.series.buckets):
        start = bucket.first_at_s
        for pause in (each for each in pauses if bucket.first_at_s <= each.start_s < bucket.last_at_s):
            parts[-1].append(((start + pause.start_s) / 2, position))
            parts.append([])
            start = pause.stop_s
        parts[-1].append(((start + bucket.last_at_s) / 2, position))
        if not query.is_stream or any(each.start_s == bucket.last_at_s for each in pauses):
            parts.append([])
    return [(_dates(np.array([time for time, _ in part])), [position for _, position in part]) for part in parts if part]


def is_one_moment(query: Query) -> bool:
    """Whether there is no time over which anything could change."""
    times_s = query.series.times_s
    return len(times_s) < 2 or times_s[-1] - times_s[0] < MIN_SPAN_S


def _dates(times_s: ColumnValues) -> Any:
    return date2num([datetime.fromtimestamp(epoch_s, UTC) for epoch_s in times_s])


def _draw_legend(axes: Axes, column_count: int) -> None:
    """Draw the legend above the picture."""
    position = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
    axes.legend(**position, ncols=column_count, handlelength=1, columnspacing=1, fontsize=10.5)


def _format_axes(axes: Axes, unit: Callable[[float], str]) -> None:
    """Format both axes of a picture whose values are drawn. `unit` writes a value of the vertical axis, which begins at 0."""
    axes.set_ylim(0, 1.06 * (axes.dataLim.y1 if axes.dataLim.y1 > 0 else 1))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    _format_time_axis(axes)


def _format_time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.margins(x=0.01)


def _picture(figure: Figure, query: Query, name: str, title: str, caption: str, *, needs_legend: bool = False) -> Picture:
    span = f"{query.commits_in_words()}, from {moment(query.first_at_s)} to {moment(query.last_at_s)}."
    return Picture(title, caption, to_svg(figure, name, title, f"{caption} {span}"), needs_legend)


# PARTS


def _time(query: Query, name: str) -> Picture | None:
    shares = {part: share for part in TIME_PARTS if (share := query.share_of_time(part)) > 0.0005}
    parts = [(PART_NAMES[part], PART_COLORS[part], query.series.means(part)) for part in shares]
    caption = f"{_shares_in_words(shares)} of the time from its first task to its commit."
    return _stack(query, name, f"Where the time of a {query.unit} goes", caption, parts, seconds)


def _task_time(query: Query, name: str) -> Picture | None:
    shares = {part: share for part in TASK_PARTS if (share := query.share_of_task_time(part)) > 0.0005}
    tasks = query.series.sums("timed_tasks")
    parts = [(PART_NAMES[part], PART_COLORS[part], query.series.sums(part) / np.where(tasks, tasks, np.nan)) for part in shares]
    caption = f"{_shares_in_words(shares)} of the tasks' time. Shown is the mean of the tasks."
    return _stack(query, name, "What a task does with its time", caption, parts, seconds)


def _shares_in_words(shares: Mapping[str, float]) -> str:
    """The largest share first."""
    text = "; ".join(f"{PART_NAMES[part]} {percent(share)}" for part, share in sorted(shares.items(), key=lambda each: -each[1]))
    return f"{text[:1].upper()}{text[1:]}"


def _waits(query: Query, name: str) -> Picture | None:
    labels = {"memory_wait_s": "memory", "metadata_wait_s": "metadata", "throttle_s": "throttled by brokers"}
    columns = {column: label for column, label in labels.items() if query.series.sum(column)}
    if not columns:
        return None
    title = f"What tasks wait for in a {query.unit}"
    waits_in_words = ", ".join(f"{label} {seconds(query.series.sum(column))}" for column, label in columns.items())
    caption = f"All tasks together: {waits_in_words}."
    if is_one_moment(query):
        means = [query.series.means(column) for column in columns]
        parts = list(zip(columns.values(), LINE_COLORS, means, strict=False))
        return _stack(query, name, title, caption, parts, seconds)
    return _lines(query, name, title, caption, columns, seconds)


def _stack(
    query: Query, name: str, title: str, caption: str, parts: Sequence[StackPart], unit: Callable[[float], str]
) -> Picture | None:
    """None if nothing is known, or if there is only one bar: a table of the page has its number."""
    has_bars = is_one_moment(query)
    if not parts or (has_bars and len(parts) == 1):
        return None
    figure = new_figure(24 + 34 * len(parts) if has_bars else HEIGHT)
    axes = figure.add_subplot()
    if has_bars:
        _draw_bars(axes, parts, unit)
    else:
        _draw_areas(axes, query, parts)
        _format_axes(axes, unit)
        if len(parts) > 1:
            _draw_legend(axes, 2)
    return _picture(figure, query, name, title, caption)


def _draw_areas(axes: Axes, query: Query, parts: Sequence[StackPart]) -> None:
    values = np.nan_to_num(np.array([each for _, _, each in parts]))
    colors = [color for _, color, _ in parts]
    for label, color, _ in parts:
        axes.fill_between([], [], color=color, label=label)  # for the legend
    all_times = _dates(query.series.times_s)
    width = BAR_WIDTH_SHARE * (all_times[-1] - all_times[0])
    for times, positions in _unbroken_lines(query):
        if len(positions) == 1:
            bottoms = np.cumsum(values[:, positions[0]]) - values[:, positions[0]]
            axes.bar(np.repeat(times, len(parts)), values[:, positions[0]], width, bottoms, color=colors)
        else:
            axes.stackplot(times, values[:, positions], colors=colors, linewidth=0)


def _draw_bars(axes: Axes, parts: Sequence[StackPart], unit: Callable[[float], str]) -> None:
    """Draw horizontal bars with their labels, when all commits are at one moment."""
    means = [float(np.nanmean(values)) for _, _, values in parts]
    axes.barh(range(len(parts)), means, color=[color for _, color, _ in parts], height=0.6)
    axes.set_yticks(range(len(parts)), [label for label, _, _ in parts])
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(right=1.3 * max(means, default=1) or 1)
    _remove_frame(axes)
    _annotate(axes, means, unit)


def _annotate(axes: Axes, lengths: Sequence[float], unit: Callable[[float], str]) -> None:
    """Write the length of each bar beside its end."""
    for position, length in enumerate(lengths):
        axes.annotate(unit(length), (length, position), (5, 0), textcoords="offset points", va="center")


def _remove_frame(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


# ROWS BY PARTITION


def _heat_map(topic: str, query: Query, name: str) -> Picture | None:
    """None if there is only one bar: a table of the page has its number."""
    heat = query.heat_maps[topic]
    partitions, table = heat.by_partition()
    labels, table = _join_rows(partitions, table)
    row_count = len(labels)
    title = f"Rows by partition of {topic}"
    caption = heat.in_words()
    has_bars = is_one_moment(query) or heat.times_s[-1][1] - heat.times_s[0][0] < MIN_SPAN_S
    if has_bars and row_count == 1:
        return None
    height = 24 + max(3, row_count) * (17 if row_count <= 12 else 11)
    figure = new_figure(height if has_bars else height + 38)
    axes = figure.add_subplot()
    if has_bars:
        _draw_partition_bars(axes, labels, table.sum(axis=1))
    else:
        _draw_cells(axes, table / np.array(heat.commit_counts), _spans(query, heat.times_s))
        _format_time_axis(axes)
        _label_rows(axes, labels, 0.5)
        axes.set_ylim(row_count, 0)
    _remove_frame(axes)
    axes.set_ylabel("partition")
    return _picture(figure, query, name, title, caption, needs_legend=not has_bars)


def _spans(query: Query, times_s: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """From when to when each column of a heat map is drawn: to the next one, but not across a pause of a stream."""
    pauses = query.pauses()
    min_width_s = (times_s[-1][1] - times_s[0][0]) * BAR_WIDTH_SHARE
    columns = []
    for (first_s, last_s), (following_s, _) in zip(times_s, [*times_s[1:], (inf, inf)], strict=True):
        spans, start_s = [], first_s
        for pause in (each for each in pauses if first_s <= each.start_s < last_s):
            spans.append((start_s, pause.start_s))
            start_s = pause.stop_s
        # Later commits before the next column may lack the topic.
        pause_s = next((each.start_s for each in pauses if last_s <= each.start_s < following_s), None)
        ends_here = not query.is_stream or following_s == inf or pause_s is not None
        stop_s = max(last_s if pause_s is None else pause_s, start_s + min_width_s) if ends_here else following_s
        columns.append([*spans, (start_s, stop_s)])
    return columns


def _join_rows(partitions: Sequence[int], table: Any) -> tuple[list[str], Any]:
    """Join partitions into at most MAX_HEAT_ROWS rows. A row shows its fullest partition, so that no skew is hidden."""
    if len(partitions) <= MAX_HEAT_ROWS:
        return [str(partition) for partition in partitions], table
    starts = np.unique(np.linspace(0, len(partitions), MAX_HEAT_ROWS + 1).astype(int))[:-1]
    stops = [*starts[1:], len(partitions)]
    labels = [f"{partitions[start]}–{partitions[stop - 1]}" for start, stop in zip(starts, stops, strict=True)]
    return labels, np.maximum.reduceat(table, starts, axis=0)


def _draw_cells(axes: Axes, table: Any, columns: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Draw all cells of a shade as one outline, which takes a tenth of the bytes of one outline for each cell."""
    edges = [_dates(np.array(spans).ravel()).reshape(-1, 2) for spans in columns]
    positive_values = table[table > 0]
    # Rows that are all alike get the shade in the middle.
    full_rows = max(float(positive_values.max()), 2 * float(positive_values.mean())) if positive_values.size else 1.0
    shades = np.where(table > 0, 1 + np.minimum(len(HEAT) - 2, (table / full_rows * (len(HEAT) - 1)).astype(int)), 0)
    for shade, color in enumerate(HEAT):
        positions = np.argwhere(shades == shade)
        if len(positions):
            cells = (_cell(start, stop, row) for row, column in positions for start, stop in edges[column])
            outline = Outline.make_compound_path(*cells)
            axes.add_patch(PathPatch(outline, facecolor=color, linewidth=0, antialiased=False))
    axes.set_xlim(edges[0][0, 0], edges[-1][-1, 1])
    axes.xaxis_date()


def _cell(start: float, stop: float, row: int) -> Outline:
    return Outline(
        [(start, row + 0.04), (stop, row + 0.04), (stop, row + 0.96), (start, row + 0.96), (start, row + 0.04)], closed=True
    )


def _draw_partition_bars(axes: Axes, labels: Sequence[str], rows: Any) -> None:
    axes.barh(range(len(labels)), rows, color=LINE_COLORS[0], height=0.7)
    _label_rows(axes, labels, 0)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(right=1.25 * max(1, int(rows.max())))
    if len(labels) <= 16:
        _annotate(axes, rows.tolist(), rounded)


def _label_rows(axes: Axes, labels: Sequence[str], offset: float) -> None:
    """Label at most 12 rows."""
    step = 1 if len(labels) <= 12 else -(-len(labels) // 8)
    axes.set_yticks([row + offset for row in range(0, len(labels), step)], labels[::step])
