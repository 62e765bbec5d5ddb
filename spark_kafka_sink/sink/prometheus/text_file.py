"""The file of totals and gauges: each commit of each process is added under a lock, and the file is replaced as a whole."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from spark_kafka_sink.errors import ConfigError, printable
from spark_kafka_sink.sink.commit_report import open_regular_file
from spark_kafka_sink.sink.prometheus.metrics import BY_NAME, METRICS, PREFIX, Labels, SinkMetric

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from spark_kafka_sink.sink.commit_summary import CommitSummary

FILE_KEY = "PYKAFKA_SINK_PROMETHEUS_FILE"
PORT_KEY = "PYKAFKA_SINK_PROMETHEUS_PORT"
REMEDY = (
    f"set {FILE_KEY} to a file for node_exporter's textfile collector, {PORT_KEY} to a port, or both, in the driver's environment"
)
NO_LOCKS = "the driver runs on Windows, where this sink does not lock files: run it on Linux or macOS, or without onCommit"
LOCK_LIMIT_S = 5.0
LOCK_PAUSE_S = 0.01
MAX_SERIES = 2_000  # of a metric; further topics and reasons count as OTHER
MAX_FILE_BYTES = 64 * 1024 * 1024  # of the file; of a query with 2,000 topics, a few hundred KB
OTHER = "_other"
BATCH = "batch"  # the query of writes that are no stream

SampleValues = dict[tuple[str, Labels], float]  # name, labels -> value


class TextFile:
    """The totals and gauges, in Prometheus' text format, for all processes of all drivers that name the same file."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a symbolic link stays, and its target is replaced

    def add(self, summary: CommitSummary) -> None:
        """Add a commit. Waits LOCK_LIMIT_S at most for the lock of the file. Raises ConfigError."""
        query = summary.query_id or BATCH
        try:
            with self._hold_lock():
                values = self.read()
                for metric in METRICS:
                    _add(values, metric, query, metric.read(summary))
                self._replace(generate_latest(registry(lambda: values)))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error.strerror or error}): {REMEDY}") from error

    def read(self) -> SampleValues:
        """The values in the file; none if there is no file yet. Raises ConfigError for a file that this sink did not write, and
        OSError for one that cannot be read, or is not a regular file."""
        try:
            with open(open_regular_file(self.path, os.O_RDONLY), "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return {}
        try:
            if len(content) > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes")
            samples = (each for family in text_string_to_metric_families(content.decode()) for each in family.samples)
            return dict(_values(samples))
        except (ValueError, OverflowError, KeyError) as error:
            raise ConfigError(
                f"{self.path} holds something else ({printable(error)}); the commit is not counted."
                f" Name another file in {FILE_KEY}, or remove this one"
            ) from error

    def _replace(self, text: bytes) -> None:
        """Replace the file in one step, and keep its mode. The temporary one has no .prom, so node_exporter ignores it."""
        new_file = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        try:
            new_file.write_bytes(text)
            if self.path.exists():
                shutil.copymode(self.path, new_file)
            os.replace(new_file, self.path)
        except BaseException:
            new_file.unlink(missing_ok=True)
            raise

    def _open_lock(self) -> BinaryIO:
        file = self.path.with_name(f".{self.path.name}.lock")
        try:
            return open(open_regular_file(file, os.O_WRONLY | os.O_CREAT), "wb")
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be locked ({error.strerror or error}); the commit is not counted: {REMEDY}"
            ) from error

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with self._open_lock() as lock:
            deadline_s = time.monotonic() + LOCK_LIMIT_S
            never = threading.Event()
            while True:
                try:
                    _lock(lock)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline_s:
                        raise ConfigError(
                            f"{self.path} was locked for {LOCK_LIMIT_S:g} s by another process; the commit is not counted"
                        ) from error
                    never.wait(LOCK_PAUSE_S)
            yield  # closing the file unlocks it


def _values(samples: Iterable[Sample]) -> Iterator[tuple[tuple[str, Labels], float]]:
    """Raises ValueError, OverflowError or KeyError for a sample that is not this sink's."""
    for sample in samples:
        metric = BY_NAME.get(sample.name)
        if metric is None and not sample.name.startswith(PREFIX):  # a newer sink may have more
            raise ValueError(f"{sample.name} is not of this sink")
        value = float(sample.value)
        if not math.isfinite(value) or (metric is not None and metric.is_total and value < 0):
            raise ValueError(f"{sample.name} is {value}")
        if metric is not None:
            yield (sample.name, tuple(sample.labels[name] for name in metric.label_names)), value


def _lock(file: BinaryIO) -> None:
    """Raises BlockingIOError if another process has locked it, ConfigError on Windows."""
    if sys.platform == "win32":
        raise ConfigError(NO_LOCKS)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _add(values: SampleValues, metric: SinkMetric, query: str, labeled_values: Iterable[tuple[Labels, float]]) -> None:
    series_count = sum(name == metric.name for name, _ in values)
    for labels, value in labeled_values:
        key = (metric.name, (query, *labels))
        if key not in values:
            if labels and series_count >= MAX_SERIES:
                key = (metric.name, (query, OTHER))
            series_count += 1
        values[key] = values.get(key, 0) + value if metric.is_total else value


class _FromFile(Collector):
    """Gives prometheus_client the metrics that `read` returns."""

    def __init__(self, read: Callable[[], SampleValues]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that the registry does not call `collect` when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = {metric.name: metric.family() for metric in METRICS}
        for (name, labels), value in self._read().items():
            families[name].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


def registry(read: Callable[[], SampleValues]) -> CollectorRegistry:
    """A registry of METRICS. Calls `read`, on the thread of the scrape, each time that it is asked for their values."""
    collector_registry = CollectorRegistry(auto_describe=False)
    collector_registry.register(_FromFile(read))
    return collector_registry
