"""The page: one HTML file that needs nothing else. page.html is its template. Only this file uses jinja2.

Names of topics, queries and files may contain anything: jinja2 escapes them, and svg.py and matplotlib in pictures.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import spark_kafka_sink
from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.report.findings import Finding, top_findings
from spark_kafka_sink.tools.report.lines import Troubles
from spark_kafka_sink.tools.report.pictures import MAX_HEAT_MAPS, heat_maps, is_one_moment, pictures
from spark_kafka_sink.tools.report.statistics import MAX_QUERIES, Query, Statistics
from spark_kafka_sink.tools.report.svg import HEAT
from spark_kafka_sink.tools.words import counted, moment, percent, rounded, seconds, size

MAX_SECTIONS = 8  # of queries, with pictures; the notes name the others
MAX_QUERIES_LISTED = 50
OPTION_PATTERN = re.compile(
    r"((?:kafka|spark|df)\.[\w.]*\w(?:=\w+|\(\"\w+\"\))?|(?:isolation|max)\.[\w.]*\w(?:=\w+)?"
    r"|[a-z]+[A-Z]\w*(?:=[\w-]+)?|trigger(?:\(processingTime=…\))?)"
)


class Table(NamedTuple):
    """A table of the page."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def html(statistics: Statistics, troubles: Troubles, files: Sequence[str], refresh_s: int | None = None) -> str:
    """The page. `refresh_s`: how often a browser is to load it again; None: never."""
    queries = statistics.by_rows()
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title="What the sink did",
        subtitle=f"{counted(troubles.commit_count, 'commit')} from {', '.join(map(printable, files))}",
        refresh_s=refresh_s,
        no_line_is_a_commits=not queries and troubles.unreadable_count > 0,
        findings=list(map(_finding, top_findings(queries))),
        sections=[_section(query, f"q{number}") for number, query in enumerate(queries[:MAX_SECTIONS])],
        shades=range(len(HEAT)),
        notes=[*troubles.sentences(), *_left_out(statistics, queries), *_how_to_read(queries[:MAX_SECTIONS])],
        version=spark_kafka_sink.__version__,
        made_at=moment(time.time()),
    )


def replace_file(path: Path, text: str) -> None:
    """Replace the file as a whole: a reader sees the old page or the new one. Raises OSError."""
    new_file = path.resolve().with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        new_file.write_text(text, encoding="utf-8")
        os.replace(new_file, path)
    except BaseException:
        new_file.unlink(missing_ok=True)
        raise


def _in_code_font(text: str) -> Markup:
    """Put the names of options into code font."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if OPTION_PATTERN.fullmatch(part) else part for part in OPTION_PATTERN.split(text)
    )


def _finding(finding: Finding) -> dict[str, str]:
    kind = "trouble" if finding.is_trouble else "hint" if finding.weight > 0.5 else "well"
    return {"kind": kind, "text": finding.observation, "advice": _in_code_font(finding.advice)}


def _section(query: Query, name: str) -> dict[str, object]:
    """The part of the page about a query."""
    further_count = len(query.heat_maps) - MAX_HEAT_MAPS
    return {
        "name": name,
        "title": query.name[0].upper() + query.name[1:],
        "span": f"{moment(query.first_at_s)} to {moment(query.last_at_s)}",
        "tiles": list(_tiles(query)),
        "pictures": pictures(query, name),
        "heat_maps": heat_maps(query, name),
        "topics_left_out": f"{counted(further_count, 'further topic')} with fewer rows not shown." if further_count > 0 else "",
        "tables": [*_numbers_of_one_moment(query), *_unwritten_rows(query), *_versions(query)],
    }


def _tiles(query: Query) -> Iterator[tuple[str, str]]:
    totals = query.totals
    yield "micro-batches" if query.is_stream else "writes", f"{query.unit_count:,}"
    yield "rows", rounded(totals.rows)
    yield "bytes before compression", size(totals.bytes)
    yield "rows/s while tasks ran", rounded(query.rows_per_s)
    yield f"time of a {query.unit}", seconds(query.series.median("wall_s"))
    yield "skipped", rounded(query.skipped.total())
    yield "dead-lettered", rounded(query.dead_lettered.total())
    yield "sent again", percent(query.series.sum("retried") / totals.sent_records) if totals.sent_records else "0"


def _numbers_of_one_moment(query: Query) -> Iterator[Table]:
    """The numbers of a single moment, which have no picture."""
    if not is_one_moment(query):
        return
    median = query.series.median
    rows = [
        ("tasks", f"{query.totals.most_tasks:,}"),
        ("slowest task", seconds(median("slowest_task_s"))),
        ("median task", seconds(median("median_task_s"))),
        ("batches", rounded(query.totals.batches)),
        ("size of a batch, as sent", size(median("batch_bytes"))),
        ("bytes sent, of the records' bytes", percent(query.compression)),
        ("Produce requests", rounded(query.totals.requests)),
        ("records of a request", rounded(median("records_per_request"))),
        ("a broker answers in", seconds(median("latency_s"))),
    ]
    waits = (("memory", "memory_wait_s"), ("metadata", "metadata_wait_s"), ("brokers that throttle", "throttle_s"))
    rows += [(f"tasks waited for {cause}", seconds(wait_s)) for cause, name in waits if (wait_s := query.series.sum(name))]
    rows += [(topic, heat.in_words()) for topic, heat in query.heat_maps.items() if heat.rows and heat.skew() is None]
    yield Table("Tasks, batches and requests", ("", "median" if query.totals.commits > 1 else "value"), rows)


def _unwritten_rows(query: Query) -> Iterator[Table]:
    reasons = sorted({*query.skipped, *query.dead_lettered}, key=lambda each: -query.skipped[each] - query.dead_lettered[each])
    if reasons:
        rows = [(each or "not told", f"{query.skipped[each]:,}", f"{query.dead_lettered[each]:,}") for each in reasons]
        yield Table("Rows that could not be written", ("reason", "skipped", "dead-lettered"), rows)


def _versions(query: Query) -> Iterator[Table]:
    if query.is_exactly_once:
        names = {"committed": "committed", "found": "found there already", "rolled-forward": "rolled forward"}
        names |= {"superseded": "found there already, and a later one"}
        rows = [(text, f"{query.versions[how]:,}") for how, text in names.items()]
        rows += [(how, f"{number:,}") for how, number in query.versions.items() if how not in names]
        rows.append(("Spark partitions that were in Kafka already", f"{query.skipped_partitions:,}"))
        rows.append(("rows of repetitions that were not written", f"{query.other_rows:,}"))
        rows.append(("transactional ids of earlier runs fenced", f"{query.fenced_count:,}"))
        yield Table("Exactly once: versions", ("version", "how many"), rows)


def _how_to_read(queries: Sequence[Query]) -> Iterator[str]:
    drawn_queries = [query for query in queries if not is_one_moment(query)]
    if any(query.is_stream for query in drawn_queries):
        line = "A line is the median, the band around it reaches from the lowest to the highest value."
        yield f"{line} Where it has a gap, nothing was committed."
    if not all(query.is_stream for query in drawn_queries):
        yield "A dot is a batch write, or the median of several, with a bar from the lowest to the highest value."


def _left_out(statistics: Statistics, queries: Sequence[Query]) -> Iterator[str]:
    further_queries = queries[MAX_SECTIONS:]
    if further_queries:
        query_list = ", ".join(f"{each.name} ({rounded(each.totals.rows)} rows)" for each in further_queries[:MAX_QUERIES_LISTED])
        yield f"Without pictures, as they have fewer rows: {query_list}."
    if statistics.commits_left_out:
        yield f"{counted(statistics.commits_left_out, 'commit')} of queries beyond the first {MAX_QUERIES} are not shown."
