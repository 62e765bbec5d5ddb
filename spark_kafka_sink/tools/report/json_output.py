"""The report for programs: one JSON object for each query, with the sums and the findings of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan

from spark_kafka_sink.tools.report.findings import findings
from spark_kafka_sink.tools.report.statistics import Query, Statistics


def json_lines(statistics: Statistics) -> Iterator[str]:
    """One line for each query, those with the most rows first. Numbers that are not known are null."""
    for query in statistics.by_rows():
        yield json.dumps(_figures(query))


def _figures(query: Query) -> dict[str, object]:
    totals = query.totals
    return {
        "query_id": query.id,
        "commits": totals.commits,
        "rows": totals.rows,
        "bytes": totals.bytes,
        "first_at_ms": _milliseconds(query.first_at_s),
        "last_at_ms": _milliseconds(query.last_at_s),
        "rows_per_second": _known_or_null(query.rows_per_s),
        "compression": _known_or_null(query.compression),
        "topics": {topic: query.heat_maps[topic].rows for topic in query.topics_by_rows()},
        "skipped_by_reason": dict(query.skipped),
        "dead_lettered_by_reason": dict(query.dead_lettered),
        "exactly_once": _exactly_once(query),
        "findings": [{"trouble": each.is_trouble, "text": each.sentence} for each in findings(query)],
    }


def _exactly_once(query: Query) -> dict[str, object] | None:
    if not query.is_exactly_once:
        return None
    return {
        "versions": dict(query.versions),
        "skipped_partitions": query.skipped_partitions,
        "fenced": query.fenced_count,
        "other_rows": query.other_rows,
    }


def _known_or_null(number: float) -> float | None:
    return None if isnan(number) else round(number, 3)


def _milliseconds(epoch_s: float) -> int | None:
    return None if isnan(epoch_s) else round(epoch_s * 1000)
