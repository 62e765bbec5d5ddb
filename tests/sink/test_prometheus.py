"""Prometheus: totals survive the processes that count them, a scrape is read by Prometheus' own parser, names are in order."""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from jobs.ports import free_port
from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.sink import commit_report, prometheus
from spark_kafka_sink.sink.commit_message import WrittenRange
from spark_kafka_sink.sink.commit_summary import CommitSummary
from spark_kafka_sink.sink.prometheus import MetricsTarget, metrics, record, text_file
from spark_kafka_sink.sink.prometheus.metrics import METRICS
from spark_kafka_sink.sink.prometheus.text_file import FILE_KEY, PORT_KEY
from spark_kafka_sink.tools.report.heat import HeatMap
from tests.documents import ROOT
from tests.sink.summaries import ORDERS, OTHERS, message, samples, summary

LIMIT_S = 60
NAME = "spark_kafka_sink.sink.prometheus.record"
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sink.prom"
    monkeypatch.setenv(FILE_KEY, str(path))
    monkeypatch.delenv(PORT_KEY, raising=False)
    return path


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    number = free_port(set())
    monkeypatch.setenv(PORT_KEY, str(number))
    monkeypatch.setattr(prometheus, "_servers", {})
    yield number
    for server, thread in prometheus._servers.values():
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


def scrape(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


# THE FILE


def test_the_textfile_can_be_read_by_those_only_whom_the_umask_allows(file: Path) -> None:
    """The file became 0644 whatever the umask was."""
    before = os.umask(0o027)
    try:
        record(summary(*ORDERS))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_totals_grow_with_each_commit_and_gauges_are_the_last_ones(file: Path) -> None:
    for _ in range(3):
        record(summary(*ORDERS))
    values = samples(file.read_text())
    assert values["commits_total", "q1"] == 3
    assert (values["rows_total", "q1", "orders"], values["record_bytes_total", "q1", "orders"]) == (120, 1200)
    assert values["skipped_rows_total", "q1", "KAFKA_X"] == 6
    assert (values["task_seconds_total", "q1"], values["spark_seconds_total", "q1"]) == (7.5, 3.75)
    assert (values["memory_wait_seconds_total", "q1"], values["metadata_wait_seconds_total", "q1"]) == (4.5, 0.75)
    assert (values["throttle_seconds_total", "q1"], values["last_commit_throttle_max_seconds", "q1"]) == (6, 0.7)
    assert values["commit_seconds_total", "q1"] == 0.75
    assert values["versions_total", "q1", "committed"] == 3
    assert (values["last_commit_rows", "q1"], values["last_commit_batch_id", "q1"]) == (40, 4)
    assert values["last_commit_partition_skew_ratio", "q1", "orders"] == 1.5
    assert values["last_commit_compression_ratio", "q1"] == 0.5


@given(rows=st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1))
def test_skew_is_what_the_page_calls_skew(rows: dict[int, int]) -> None:
    """A topic of twelve partitions of which one had rows was even here, and skewed on the page."""
    heat = HeatMap()
    heat.add(0, rows)
    skew = heat.skew()
    skew_by_topic = metrics._skew_by_topic(summary(*(WrittenRange("t", number, 0, 0, each, 1) for number, each in rows.items())))
    if sum(rows.values()):
        assert skew_by_topic["t"] == pytest.approx(skew.factor if skew else 1)
    else:
        assert skew_by_topic == {}


def test_queries_are_told_apart_and_names_may_hold_anything(file: Path) -> None:
    record(summary(*ORDERS))
    record(summary(*OTHERS, query='a"b\nc\\'))
    record(summary(*OTHERS, query=None))
    record(summary(*OTHERS, query=None))
    values = samples(file.read_text())
    assert values["rows_total", 'a"b\nc\\', 'odd"\\\n'] == 1
    assert values["commits_total", "batch"] == 2
    assert values["rows_total", "q1", "orders"] == 40


def test_a_commit_without_tasks_counts_too(file: Path) -> None:
    record(CommitSummary.of([]))
    assert samples(file.read_text())["commits_total", "batch"] == 1


WRITER = """
from spark_kafka_sink.sink.prometheus import record
from tests.sink.summaries import ORDERS, summary
for _ in range(25):
    record(summary(*ORDERS))
"""


def test_no_commit_of_several_processes_is_lost(file: Path) -> None:
    """Spark may commit in several processes, and ends them when it likes."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER], cwd=ROOT, env={**os.environ, FILE_KEY: str(file)}) for _ in range(3)
    ]
    assert [writer.wait(LIMIT_S) for writer in writers] == [0, 0, 0]
    assert samples(file.read_text())["commits_total", "q1"] == 75
    assert sorted(each.name for each in file.parent.iterdir()) == [".sink.prom.lock", "sink.prom"]


def test_topics_beyond_a_limit_count_as_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_SERIES", 3)
    for number in range(6):
        record(summary(WrittenRange(f"t{number}", 0, 0, 0, 1, 10)))
    values = samples(file.read_text())
    assert values["rows_total", "q1", "_other"] == 3
    assert values["rows_total", "q1", "t2"] == 1
    assert ("rows_total", "q1", "t3") not in values


@pytest.mark.parametrize(
    "text", ["node_boot_time_seconds 1.0\n", "Dear diary,\n", "\xff\xfe", "pykafka_sink_commits_total 1.0\n"]
)
def test_a_file_of_something_else_is_left_alone(text: str, file: Path) -> None:
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="holds something else"):
        record(summary(*ORDERS))
    assert file.read_text(encoding="latin-1") == text


def test_what_a_newer_sink_has_counted_does_not_keep_this_one_from_counting(file: Path) -> None:
    file.write_text('pykafka_sink_what_nobody_knows_total{query="q1"} 1.0\npykafka_sink_commits_total{query="q1"} 7.0\n')
    record(summary(*ORDERS))
    assert samples(file.read_text())["commits_total", "q1"] == 8


def test_a_file_that_is_a_fifo_does_not_block_the_commit(file: Path) -> None:
    """Reading it waited for a writer for ever, with the lock held, after all rows had been written."""
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=r"cannot be written \(it is not a regular file\)"):
        record(summary(*ORDERS))


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_lock_file_that_is_a_fifo_does_not_block_the_commit(file: Path, has_reader: bool) -> None:
    """Opening it to lock it waited for a reader for ever, after all rows had been written."""
    lock_file = file.with_name(".sink.prom.lock")
    os.mkfifo(lock_file)
    reader = os.open(lock_file, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    try:
        with pytest.raises(ConfigError, match=r"\.sink\.prom\.lock cannot be locked \(.*\); the commit is not counted"):
            record(summary(*ORDERS))
    finally:
        if reader is not None:
            os.close(reader)
    assert not file.exists()


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "-1"])
def test_a_total_that_no_sink_has_counted_is_not_added_to(value: str, file: Path) -> None:
    """1e999 was read as infinity: each later total was infinite too, and no alert on a rate could fire again."""
    text = f'pykafka_sink_commits_total{{query="q1"}} {value}\n'
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"pykafka_sink_commits_total is {float(value)}\); the commit is not counted"):
        record(summary(*ORDERS))
    assert file.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "x" * 120_000,
        "pykafka_sink_commits_total " + "9" * 4_000,
        "pykafka_sink_commits_total " + "9" * 120_000 + "x\n",
        "diary\x1b[2K 1.0\n",
    ],
)
def test_an_odd_file_is_quoted_in_one_short_line(text: str, file: Path) -> None:
    """A file of one long line stood in the driver's log with its 120,000 characters."""
    file.write_text(text)
    with pytest.raises(ConfigError, match="holds something else") as raised:
        record(summary(*ORDERS))
    assert len(raised.value.message) < 300 + len(str(file)) + 300
    assert raised.value.message.isprintable()


def test_a_file_that_is_too_large_is_not_read_into_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_FILE_BYTES", 1_000)
    file.write_text("# HELP x\n" * 112)
    with pytest.raises(ConfigError, match="more than 1,000 bytes"):
        record(summary(*ORDERS))


def test_a_file_keeps_its_mode_and_a_symbolic_link_its_target(file: Path, tmp_path: Path) -> None:
    """The link became a file, and what it pointed to was never written again. A file for one group could be read by all."""
    target = tmp_path / "target.prom"
    target.touch()
    target.chmod(0o600)
    file.symlink_to(target)
    for _ in range(2):
        record(summary(*ORDERS))
    assert file.is_symlink()
    assert samples(target.read_text())["commits_total", "q1"] == 2
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_lock_that_is_never_given_back_ends_the_wait(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LOCK_LIMIT_S", 0.05)
    with open(file.parent / ".sink.prom.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="was locked for"):
            record(summary(*ORDERS))
    record(summary(*ORDERS))


# THE PORT


def test_a_scrape_is_what_prometheus_own_parser_reads(file: Path, port: int) -> None:
    record(summary(*ORDERS))
    record(summary(*ORDERS))
    text = scrape(port)
    assert samples(text) == samples(file.read_text())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in METRICS:
        family = families.get(metric.name.removesuffix("_total"))
        if family is not None:
            assert family.type == ("counter" if metric.is_total else "gauge")
            assert family.documentation == metric.doc
    assert len(families) > len(METRICS) - 4


def test_a_port_alone_keeps_its_totals_in_a_directory_of_ones_own(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv(FILE_KEY, raising=False)
    record(summary(*ORDERS))
    assert samples(scrape(port))["commits_total", "q1"] == 1
    (directory,) = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    with pytest.raises(ConfigError, match="name a file of your own"):
        record(summary(*ORDERS))


@pytest.mark.usefixtures("file")
def test_a_port_that_another_process_of_the_sink_serves_is_left_to_it(port: int) -> None:
    record(summary(*ORDERS))
    served = dict(prometheus._servers)
    prometheus._servers.clear()  # as in another process
    record(summary(*ORDERS))
    assert prometheus._servers == {}
    assert samples(scrape(port))["commits_total", "q1"] == 2
    prometheus._servers.update(served)


class SomethingElse(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Keep the messages out of pytest's output."""


def test_a_port_of_another_program_is_an_error_and_the_commit_counts(file: Path, port: int) -> None:
    server = HTTPServer(("127.0.0.1", port), SomethingElse)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened at") as raised:
            record(summary(*ORDERS))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)
    assert f"the commit is counted in {file}" in str(raised.value)
    assert samples(file.read_text())["commits_total", "q1"] == 1


def test_a_program_that_answers_byte_by_byte_does_not_hold_up_the_commit(
    file: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "ASK_LIMIT_S", 0.2)
    listener = socket.create_server(("127.0.0.1", port))
    has_left = Event()

    def drip() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.0 200 OK\r\nx: ")
            while not has_left.wait(0.01):  # no pause is as long as the limit
                connection.sendall(b"x")

    thread = Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened at"):
            record(summary(*ORDERS))
        assert samples(file.read_text())["commits_total", "q1"] == 1
    finally:
        has_left.set()
        thread.join(LIMIT_S)
        listener.close()


# WHAT THE USER SETS


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("9404", "127.0.0.1", 9404), ("0.0.0.0:9404", "0.0.0.0", 9404), ("[::1]:1", "::1", 1), (" localhost:80 ", "localhost", 80)],
)
def test_a_port_is_told_with_or_without_a_host(text: str, host: str, port: int, tmp_path: Path) -> None:
    target = MetricsTarget.of({PORT_KEY: text, FILE_KEY: str(tmp_path / "a.prom")})
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize("text", ["http", "0", "65536", "-1", ":9404", "host:", "٣"])
def test_what_is_no_port_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is neither a port, 1 to 65535, nor host:port"):
        MetricsTarget.of({PORT_KEY: text, FILE_KEY: str(tmp_path / "a.prom")})


def test_without_a_file_and_a_port_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=f"does not know where to: set {FILE_KEY} .* {PORT_KEY} .* in the driver's environment"):
        MetricsTarget.of({})


def test_a_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lies in a directory that does not exist on the driver"):
        MetricsTarget.of({FILE_KEY: str(tmp_path / "no" / "a.prom")})


def test_the_sink_writes_the_textfile_and_only_logs_a_failure(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit_report.report_commit([message(*ORDERS)], None, NAME)
    assert samples(file.read_text())["rows_total", "q1", "orders"] == 40
    monkeypatch.delenv(FILE_KEY)
    with caplog.at_level(logging.ERROR):
        commit_report.report_commit([message(*ORDERS)], None, NAME)
    assert "the write succeeds all the same" in caplog.text
    assert FILE_KEY in caplog.text


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
            changed.setitem(sys.modules, name, None)
        changed.delitem(sys.modules, "spark_kafka_sink.sink.prometheus")
        with pytest.raises(ConfigError, match="pip install prometheus-client where the driver runs"):
            load_callable("onCommit", NAME)
    assert importlib.import_module("spark_kafka_sink.sink.prometheus") is prometheus


# NAMES


def test_names_follow_the_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"pykafka_sink_[a-z]+(_[a-z]+)*", metric.name)
        assert not re.search(r"_(ms|ns|milli|kb|mb|count|sum|bucket|info|created)(_|$)", metric.name)
        assert metric.doc.endswith(".")


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    legends = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    labels = {metric.name: set(metric.label_names) for metric in METRICS}
    for expression in expressions:
        metric_names = re.findall(r"\bpykafka_sink_\w+", expression)
        assert metric_names
        assert set(metric_names) <= set(labels), expression
        for grouped in re.findall(r"by \(([^)]+)\)", expression):
            assert {label.strip() for label in grouped.split(",")} <= set.intersection(*(labels[name] for name in metric_names))
    label_names = set.union(*labels.values())
    assert {label for legend in legends for label in re.findall(r"{{(\w+)}}", legend)} <= label_names


def test_the_dashboard_can_be_imported() -> None:
    """Grafana asks for the source that __inputs names; panels do not overlap, and each has its own id."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    (source,) = dashboard["__inputs"]
    panels = dashboard["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {f"${{{source['name']}}}"}
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
