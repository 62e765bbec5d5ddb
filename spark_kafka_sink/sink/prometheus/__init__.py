"""Totals and gauges of each query and topic for Prometheus: `onCommit=spark_kafka_sink.sink.prometheus.record`.

Spark calls `record` in a Python process on the driver. Spark may use several such processes, and ends each after an idle minute.
So the totals are kept in a file, which every process adds to under a lock and replaces as a whole: a textfile for node_exporter.
With a port, one of the processes serves that file as well. The driver's environment names file and port:

    PYKAFKA_SINK_PROMETHEUS_FILE    path of the textfile, which ends with .prom for node_exporter
    PYKAFKA_SINK_PROMETHEUS_PORT    9404, or host:9404; without a host, only this machine can reach it

Files
    metrics.py      METRICS, and how they are read from a commit's summary; there are no others
    text_file.py    the file, its lock, and its text
    __init__.py     the port, and what Spark calls

Needs the extra `prometheus`.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

try:
    from prometheus_client import start_http_server
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install prometheus-client where the driver runs", name=error.name) from error

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.sink.prometheus.metrics import PREFIX
from spark_kafka_sink.sink.prometheus.text_file import FILE_KEY, NO_LOCKS, PORT_KEY, REMEDY, TextFile, registry

if TYPE_CHECKING:
    from spark_kafka_sink.sink.commit_summary import CommitSummary

logger = logging.getLogger(__name__)

ASK_LIMIT_S = 1.0  # for the answer of another process at the port
MAX_METRICS_BYTES = 65_536  # of this answer that are looked at


# THE PORT


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """Where the metrics of this driver go: a file, and perhaps a port (0 for none)."""

    file: Path
    host: str = ""
    port: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> MetricsTarget:
        """Raises ConfigError when the environment names neither file nor port, or one that cannot be used."""
        name, address = environment.get(FILE_KEY, "").strip(), environment.get(PORT_KEY, "").strip()
        if not name and not address:
            raise ConfigError(f"onCommit={__name__}.record does not know where to: {REMEDY}")
        host, port = _parse_address(address) if address else ("", 0)
        file = Path(name).absolute() if name else _make_private_directory() / f"{port}.prom"
        if not file.parent.is_dir():
            raise ConfigError(f"{FILE_KEY}={name} lies in a directory that does not exist on the driver")
        return cls(file, host, port)


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65_535 or (colon and not host):
        raise ConfigError(f"{PORT_KEY}={address} is neither a port, 1 to 65535, nor host:port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _make_private_directory() -> Path:
    """Make the directory of the totals behind a port, if no file is named. No other user may be able to write there."""
    if sys.platform == "win32":
        raise ConfigError(NO_LOCKS)
    directory = Path(tempfile.gettempdir()) / f"pykafka-sink-prometheus-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"{directory} belongs to others or can be written by them: name a file of your own in {FILE_KEY}")
    return directory


_servers: dict[tuple[int, str, int], object] = {}  # process, host and port -> the server; one commit at a time adds to it


def _serve(target: MetricsTarget) -> None:
    """Open the port, unless this or another process of the sink has it open. Blocks for about ASK_LIMIT_S."""
    key = (os.getpid(), target.host, target.port)
    if key in _servers:
        return
    try:
        _servers[key] = start_http_server(target.port, target.host, registry(TextFile(target.file).read))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _is_ours(target):
            logger.debug("= port %d is served by another process; this one tries again at its next commit", target.port)
            return
        raise ConfigError(
            f"{PORT_KEY}: {target.host}:{target.port} cannot be listened at ({error.strerror or error}); the commit is counted in"
            f" {target.file}. Choose another port, one for each driver of this machine, or use {FILE_KEY} alone"
        ) from error


def _is_ours(target: MetricsTarget) -> bool:
    """Whether metrics of the sink are served at the port. Blocks for about ASK_LIMIT_S, however slowly the answer comes."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(target.host, target.host)
    deadline_s = time.monotonic() + ASK_LIMIT_S
    answer, prefix = b"", PREFIX.encode()
    try:
        with socket.create_connection((host, target.port), ASK_LIMIT_S) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while prefix not in answer and len(answer) < MAX_METRICS_BYTES and (rest_s := deadline_s - time.monotonic()) > 0:
                connection.settimeout(rest_s)
                piece = connection.recv(MAX_METRICS_BYTES)
                if not piece:
                    break
                answer += piece
    except OSError:
        return False
    return prefix in answer


# WHAT SPARK CALLS


def record(summary: CommitSummary) -> None:
    """Add a commit to the totals; for the option onCommit. Raises ConfigError, which the sink logs: the write succeeds anyway."""
    target = MetricsTarget.of(os.environ)
    TextFile(target.file).add(summary)
    if target.port:
        _serve(target)
