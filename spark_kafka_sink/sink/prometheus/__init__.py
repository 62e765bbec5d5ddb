"""Totals and gauges of each query and topic for Prometheus: `onCommit=spark_kafka_sink.sink.prometheus.record`.

Spark calls `record` in a Python process on the driver that it ends after a minute of rest, and it may use several. So the totals
are kept in a file, which every process adds to under a lock and replaces as a whole: a textfile for node_exporter. With a port,
the process that has committed last serves that file as well. The driver's environment says where:

    PYKAFKA_SINK_PROMETHEUS_FILE    path of the textfile, which ends with .prom for node_exporter
    PYKAFKA_SINK_PROMETHEUS_PORT    9404, or host:9404; without a host, only this machine can reach it

Law: METRICS is all there is. Names follow Prometheus' conventions: base units, `_total` for what only grows. No label has a value
for each partition or micro-batch. Needs the extra `prometheus`.
"""

from __future__ import annotations

import errno
import http.client
import logging
import os
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_kafka_sink.errors import ConfigError

if sys.platform != "win32":
    import fcntl

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install prometheus-client where the driver runs", name=error.name) from error

if TYPE_CHECKING:
    from spark_kafka_sink.sink.commit import CommitSummary

logger = logging.getLogger(__name__)

FILE = "PYKAFKA_SINK_PROMETHEUS_FILE"
PORT = "PYKAFKA_SINK_PROMETHEUS_PORT"
REMEDY = f"set {FILE} to a file for node_exporter's textfile collector, {PORT} to a port, or both, in the driver's environment"
NO_LOCKS = "the driver runs on Windows, where this sink does not lock files: run it on Linux or macOS, or without onCommit"
LOCK_LIMIT_S = 5.0
ASK_LIMIT_S = 1.0  # for the answer of another process at the port
LOCK_LOOK_S = 0.01
MOST_SERIES = 2_000  # of a metric; further topics and reasons count as OTHER
OTHER = "_other"
BATCH = "batch"  # the query of writes that are no stream

PREFIX = "pykafka_sink_"
Labels = tuple[str, ...]
Read = Callable[["CommitSummary"], Iterable[tuple[Labels, float]]]


# THE METRICS


@dataclass(frozen=True, slots=True)
class SinkMetric:
    """
    Args:
        labels: after `query`, which each has.
        read: the values of a commit, each with its labels after `query`. A total grows by them, a gauge becomes them.
    """

    name: str
    is_total: bool
    labels: tuple[str, ...]
    doc: str
    read: Read

    @property
    def label_names(self) -> Labels:
        return ("query", *self.labels)

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self.is_total else GaugeMetricFamily
        return kind(self.name, self.doc, labels=self.label_names)


def _total(name: str, doc: str, read: Callable[[CommitSummary], float]) -> SinkMetric:
    return SinkMetric(f"{PREFIX}{name}_total", True, (), doc, lambda summary: [((), read(summary))])


def _total_of(name: str, doc: str, counter: str, scale: float = 1) -> SinkMetric:
    """Sum up a counter of the commits, divided by `scale`."""
    return _total(name, doc, lambda summary: summary.counters.get(counter, 0) / scale)


def _gauge(name: str, doc: str, read: Callable[[CommitSummary], float | None]) -> SinkMetric:
    def values(summary: CommitSummary) -> Iterator[tuple[Labels, float]]:
        value = read(summary)
        if value is not None:
            yield (), value

    return SinkMetric(f"{PREFIX}{name}", False, (), doc, values)


def _gauge_of(name: str, doc: str, counter: str, scale: float = 1) -> SinkMetric:
    def read(summary: CommitSummary) -> float | None:
        value = summary.counters.get(counter)
        return None if value is None else value / scale

    return _gauge(name, doc, read)


def _by(label: str, name: str, doc: str, read: Callable[[CommitSummary], Mapping[str, float]]) -> SinkMetric:
    def values(summary: CommitSummary) -> Iterator[tuple[Labels, float]]:
        for key, value in read(summary).items():
            yield (key,), value

    return SinkMetric(f"{PREFIX}{name}", name.endswith("_total"), (label,), doc, values)


def _by_topic(field: str) -> Callable[[CommitSummary], Mapping[str, float]]:
    def read(summary: CommitSummary) -> Mapping[str, float]:
        found: Counter[str] = Counter()
        for each in summary.written:
            found[each.topic] += getattr(each, field)
        return found

    return read


def _skew_by_topic(summary: CommitSummary) -> dict[str, float]:
    """As in the page of tools/report: a partition without a row counts, if a later one has some."""
    rows: dict[str, dict[int, int]] = {}
    for each in summary.written:
        rows.setdefault(each.topic, {})[each.partition] = each.rows
    return {
        topic: max(parts.values()) * (1 + max(number for number, written in parts.items() if written)) / sum(parts.values())
        for topic, parts in rows.items()
        if sum(parts.values())
    }


def _versions(summary: CommitSummary) -> dict[str, float]:
    return {} if summary.exactly_once is None else {summary.exactly_once.how: 1}


def _duration(summary: CommitSummary) -> float:
    if summary.started_at_ms is None:
        return summary.commit_seconds
    return max(0.0, time.time() - summary.started_at_ms / 1000)


METRICS: tuple[SinkMetric, ...] = (
    _total("commits", "Commits of micro-batches or writes.", lambda _: 1),
    _total("tasks", "Tasks that have written.", lambda summary: summary.tasks),
    _by("topic", "rows_total", "Rows that brokers have acknowledged, without dead letters.", _by_topic("rows")),
    _by("topic", "record_bytes_total", "Bytes of their records before compression.", _by_topic("bytes")),
    _total_of("sent_bytes", "Bytes of batches as sent.", "byte-total"),
    _total_of("sent_records", "Records sent; one that is sent again counts again.", "record-send-total"),
    _total_of("retried_records", "Records that had to be sent again.", "record-retry-total"),
    _total_of("batches", "Batches sent.", "batch-send-total"),
    _total_of("split_batches", "Batches that a broker found too large and that were split.", "batch-split-total"),
    _total_of("produce_requests", "Produce requests sent.", "produce-request-total"),
    _by("reason", "skipped_rows_total", "Rows that were left out, by error code.", lambda summary: summary.skipped_by_reason),
    _by(
        "reason",
        "dead_lettered_rows_total",
        "Rows that went to the dead letter topic, by error code.",
        lambda summary: summary.dead_lettered_by_reason,
    ),
    _total("write_seconds", "Time from a commit's first task to its commit.", _duration),
    _total("task_seconds", "Time of all tasks.", lambda summary: summary.task_seconds),
    _total("spark_seconds", "The part in which tasks waited for Spark's rows.", lambda summary: summary.spark_seconds),
    _total(
        "held_back_seconds", "The part in which the sink's own rates made tasks wait.", lambda summary: summary.held_back_seconds
    ),
    _total_of("memory_wait_seconds", "The part in which tasks waited for memory.", "bufferpool-wait-time-ms-total", 1e3),
    _total_of("metadata_wait_seconds", "The part in which tasks waited for metadata.", "metadata-wait-time-ns-total", 1e9),
    _total_of("flush_seconds", "The part in which tasks waited for the last acknowledgements.", "flush-time-ns-total", 1e9),
    _total_of("throttle_seconds", "Time for which brokers throttled the tasks (quotas).", "produce-throttle-time-total", 1e3),
    _total("commit_seconds", "Time of the driver's commits.", lambda summary: summary.commit_seconds),
    _by("how", "versions_total", "Versions of exactly-once: committed, found, rolled-forward or superseded.", _versions),
    _gauge("last_commit_timestamp_seconds", "When the last commit was, since 1970.", lambda _: time.time()),
    _gauge("last_commit_batch_id", "Its micro-batch.", lambda summary: summary.batch_id),
    _gauge("last_commit_rows", "Its rows.", lambda summary: summary.rows),
    _gauge("last_commit_duration_seconds", "Its time, from its first task.", _duration),
    _gauge("last_commit_slowest_task_seconds", "Its slowest task.", lambda summary: summary.slowest_task_seconds),
    _gauge("last_commit_median_task_seconds", "The task in the middle.", lambda summary: summary.median_task_seconds),
    _gauge_of("last_commit_batch_size_bytes", "The mean size of its batches, as sent.", "batch-size-avg"),
    _gauge_of("last_commit_compression_ratio", "Its records as sent, in proportion to their size.", "compression-rate-avg"),
    _gauge_of("last_commit_request_latency_seconds", "Mean time of a Produce request.", "request-latency-avg", 1e3),
    _gauge_of("last_commit_request_latency_max_seconds", "The longest one.", "request-latency-max", 1e3),
    _gauge_of("last_commit_throttle_max_seconds", "The longest throttle.", "produce-throttle-time-max", 1e3),
    _by(
        "topic",
        "last_commit_partition_skew_ratio",
        "Rows of its fullest partition, in proportion to an even share: 1 is even. Tells little of a commit of few rows.",
        _skew_by_topic,
    ),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


def markdown_table() -> str:
    """Describe METRICS, for docs/report.md."""
    rows = (f"| `{each.name}` | {', '.join(f'`{label}`' for label in each.label_names)} | {each.doc} |" for each in METRICS)
    return "\n".join(["| Metric | Labels | |", "|---|---|---|", *rows])


# THE FILE

Values = dict[tuple[str, Labels], float]  # name, labels -> value


class TextFile:
    """The totals and gauges, in Prometheus' text format, for all processes of all drivers that name the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, summary: CommitSummary) -> None:
        """Add a commit. Blocks for LOCK_LIMIT_S at most. Raises ConfigError."""
        query = summary.query_id or BATCH
        try:
            with self._locked():
                values = self.read()
                for metric in METRICS:
                    _add(values, metric, query, metric.read(summary))
                self._replace(generate_latest(_registry(lambda: values)))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error.strerror or error}): {REMEDY}") from error

    def read(self) -> Values:
        """Empty if there is no file yet. Raises ConfigError for a file of something else, which is left as it is."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError as error:
            raise self._of_others(error) from error
        values: Values = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    metric = _BY_NAME.get(sample.name)
                    if metric is not None:
                        values[sample.name, tuple(sample.labels[name] for name in metric.label_names)] = sample.value
                    elif not sample.name.startswith(PREFIX):  # a newer sink may have more
                        raise ValueError(f"{sample.name} is not of this sink")
        except (ValueError, KeyError) as error:
            raise self._of_others(error) from error
        return values

    def _of_others(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self.path} holds something else ({error}); the commit is not counted. Name another file in {FILE}, or remove this"
            " one"
        )

    def _replace(self, text: bytes) -> None:
        """A reader sees the old file or the new one. The temporary file does not end with .prom: node_exporter passes it by."""
        new = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        try:
            new.write_bytes(text)
            os.replace(new, self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.path.parent / f".{self.path.name}.lock", "a") as lock:
            until = time.monotonic() + LOCK_LIMIT_S
            never = threading.Event()
            while True:
                try:
                    _lock(lock)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise ConfigError(
                            f"{self.path} was locked for {LOCK_LIMIT_S:g} s by another process; the commit is not counted"
                        ) from error
                    never.wait(LOCK_LOOK_S)
            yield  # closing the file unlocks it


def _lock(file: TextIO) -> None:
    """Raises BlockingIOError if another process has locked it, ConfigError on Windows."""
    if sys.platform == "win32":
        raise ConfigError(NO_LOCKS)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _add(values: Values, metric: SinkMetric, query: str, found: Iterable[tuple[Labels, float]]) -> None:
    known = sum(name == metric.name for name, _ in values)
    for labels, value in found:
        key = (metric.name, (query, *labels))
        if key not in values:
            if labels and known >= MOST_SERIES:
                key = (metric.name, (query, OTHER))
            known += 1
        values[key] = values.get(key, 0) + value if metric.is_total else value


class _FromFile(Collector):
    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that the registry does not call `collect` when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = {metric.name: metric.family() for metric in METRICS}
        for (name, labels), value in self._read().items():
            families[name].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


def _registry(read: Callable[[], Values]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FromFile(read))
    return registry


# THE PORT


@dataclass(frozen=True, slots=True)
class Target:
    """Where the numbers go. `port`: 0 for none."""

    file: Path
    host: str = ""
    port: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Target:
        """Raises ConfigError when the environment does not say where, or says something that cannot be."""
        name, address = environment.get(FILE, "").strip(), environment.get(PORT, "").strip()
        if not name and not address:
            raise ConfigError(f"onCommit={__name__}.record does not know where to: {REMEDY}")
        host, port = _host_and_port(address) if address else ("", 0)
        file = Path(name).absolute() if name else _private_directory() / f"{port}.prom"
        if not file.parent.is_dir():
            raise ConfigError(f"{FILE}={name} lies in a directory that does not exist on the driver")
        return cls(file, host, port)


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65_535 or (colon and not host):
        raise ConfigError(f"{PORT}={address} is neither a port, 1 to 65535, nor host:port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _private_directory() -> Path:
    """Make the directory of the totals behind a port, if no file is named. No other user may be able to write there."""
    if sys.platform == "win32":
        raise ConfigError(NO_LOCKS)
    directory = Path(tempfile.gettempdir()) / f"pykafka-sink-prometheus-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{directory} belongs to others or can be written by them: name a file of your own in {FILE}")
    return directory


_serving: dict[tuple[int, str, int], object] = {}  # process, host and port -> the server; one commit at a time adds to it


def _serve(target: Target) -> None:
    """Open the port, unless this or another process of the sink has it open. Blocks for ASK_LIMIT_S at most."""
    key = (os.getpid(), target.host, target.port)
    if key in _serving:
        return
    try:
        _serving[key] = start_http_server(target.port, target.host, _registry(TextFile(target.file).read))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _is_ours(target):
            logger.debug("= port %d is served by another process; this one tries again at its next commit", target.port)
            return
        raise ConfigError(
            f"{PORT}: {target.host}:{target.port} cannot be listened at ({error.strerror or error}); the commit is counted in"
            f" {target.file}. Choose another port, one for each driver of this machine, or use {FILE} alone"
        ) from error


def _is_ours(target: Target) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(target.host, target.host)
    connection = http.client.HTTPConnection(host, target.port, timeout=ASK_LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        return PREFIX.encode() in connection.getresponse().read(65_536)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# WHAT SPARK CALLS


def record(summary: CommitSummary) -> None:
    """Add a commit to the totals; for the option onCommit. Raises ConfigError, which the sink logs: the write succeeds anyway."""
    target = Target.of(os.environ)
    TextFile(target.file).add(summary)
    if target.port:
        _serve(target)
