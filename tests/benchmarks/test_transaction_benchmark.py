"""transaction_benchmark.py: each figure stands beside what it is compared with, in the table and in the JSON."""

from __future__ import annotations

import json

from tests.benchmarks.transaction_benchmark import JAVA, OURS, TransactionBenchmarkRun, Way, WayMedians

RUN = TransactionBenchmarkRun(
    command="python -m …",
    date="2026-01-01",
    machine="2 cores",
    versions={"Python": "3.11"},
    what="1,000 records",
    throughput={
        Way(OURS, None): WayMedians(1_000_000, 1.5, 0.5),
        Way(JAVA, None): WayMedians(800_000, 2.5, 0.6),
        Way(OURS, 1000): WayMedians(960_000, 1.6, 0.7),
        Way(JAVA, 1000): WayMedians(600_000, 2.6, 0.8),
    },
    commits_per_second={OURS: 300.0, JAVA: 400.0},
)


def test_a_row_has_its_ratios_to_the_same_client_without_transactions_and_to_java() -> None:
    rows = {line[:32].strip(): line[32:].split() for line in RUN.lines()}
    assert rows["ours, transactions of 1000 ms"] == ["960,000", "0.96", "1.60", "1.60", "0.70"]
    assert rows["java, transactions of 1000 ms"] == ["600,000", "0.75", "1.00", "2.60", "0.80"]
    assert rows["ours, idempotent"] == ["1,000,000", "1.00", "1.25", "1.50", "0.50"]
    assert rows["ours"] == ["300", "0.75"]


def test_the_json_has_every_figure() -> None:
    figures = json.loads(RUN.as_json())
    assert figures["throughput"]["java, transactions of 1000 ms"]["records_per_second"] == 600_000
    assert figures["commits_per_second"] == {"ours": 300.0, "java": 400.0}
