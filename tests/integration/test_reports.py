"""A real stream reports: Prometheus' file has its totals, and the lines that it appends make a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.ports import free_port
from spark_kafka_sink.sink.prometheus.text_file import FILE_KEY, PORT_KEY
from spark_kafka_sink.tools.report import command as report
from tests.fakes.fake_broker import FakeBroker
from tests.sink.summaries import samples

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_is_seen_by_prometheus_and_on_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark commits in a Python process of its own, which must inherit the driver's environment."""
    name, lines, totals, port = "orders", tmp_path / "commits.jsonl", tmp_path / "sink.prom", free_port(set())
    (tmp_path / "incoming").mkdir()
    for number in range(3):
        rows = "".join(f'{{"id": {number * 100 + row}}}\n' for row in range(100))
        (tmp_path / "incoming" / f"{number}.json").write_text(rows)
    command = [
        sys.executable,
        "-m",
        "jobs.stream_to_kafka",
        "--input",
        str(tmp_path / "incoming"),
        "--input-format",
        "json",
        "--schema",
        "id INT",
    ]
    command += ["--input-option", "maxFilesPerTrigger=1", "--trigger", "available-now", "--topic", name]
    command += ["--option", f"reportPath={lines}", "--option", "onCommit=spark_kafka_sink.sink.prometheus.record"]
    environment = {**os.environ, FILE_KEY: str(totals), PORT_KEY: str(port)}
    with FakeBroker(topics={name: 2}) as cluster:
        command += ["--checkpoint", str(tmp_path / "checkpoint"), "--bootstrap-servers", cluster.bootstrap_servers]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "onCommit" not in done.stderr
    metrics = samples(totals.read_text())
    ((_, query),) = [key for key in metrics if key[0] == "commits_total"]
    assert (metrics["commits_total", query], metrics["rows_total", query, name]) == (3, 300)
    assert 0 < metrics["spark_seconds_total", query] < metrics["task_seconds_total", query]
    assert metrics["last_commit_batch_id", query] == 2

    assert report.main([str(lines), "-o", str(tmp_path / "page.html")]) == 0
    assert report.main([str(lines), "--terminal"]) == 0
    shown = capsys.readouterr().out
    assert f"query {query}: 3 micro-batches, 300 rows" in shown
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"Rows by partition of {name}" in page
    assert "Where the time of a micro-batch goes" in page
