"""A real Apache Kafka 2.8 broker with its ZooKeeper, behind a FaultProxy: the oldest version that this project promises.

LocalKafka starts KRaft only, which 2.8 had not finished. One broker, one ZooKeeper, listening on 127.0.0.1; both end with the
context, the broker first, as it waits for ZooKeeper otherwise.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from jobs.java import find_java
from jobs.kafka_jars import Dependency, fetch
from jobs.kafka_wire import NewTopic, create_topics, is_answering
from jobs.ports import HOST, free_port
from spark_kafka_sink.tools.errors import ToolError
from tests.fakes.fault_proxy import FaultProxy

VERSION = "2.8.2"
DEPENDENCIES = (
    Dependency("org.apache.kafka", "kafka_2.13", VERSION),
    Dependency("ch.qos.reload4j", "reload4j", "1.2.25"),  # what that version logs by, maintained
    Dependency("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
START_S = 60.0
STOP_S = 20.0


class ZooKeeperKafka:
    """`bootstrap_servers` lead to the broker itself, `proxied_servers` through `proxy`."""

    def __init__(self, work_dir: Path) -> None:
        taken_ports: set[int] = set()
        self._dir = work_dir
        self._zookeeper_port, self._port, proxied_port = (free_port(taken_ports) for _ in range(3))
        self.proxy = FaultProxy((HOST, proxied_port))
        self.bootstrap_servers = f"{HOST}:{self._port}"
        self.proxied_servers = self.proxy.address
        self._processes: list[subprocess.Popen[bytes]] = []  # in the order of their start
        self._write("log4j.properties", "log4j.rootLogger=WARN, out", "log4j.appender.out=org.apache.log4j.ConsoleAppender",
            "log4j.appender.out.layout=org.apache.log4j.SimpleLayout")  # fmt: skip
        self._write("zookeeper.properties", f"dataDir={work_dir}/zookeeper", f"clientPort={self._zookeeper_port}",
            f"clientPortAddress={HOST}", "admin.enableServer=false")  # fmt: skip
        self._write(
            "broker.properties",
            "broker.id=1",
            f"zookeeper.connect={HOST}:{self._zookeeper_port}",
            f"listeners=PLAINTEXT://{HOST}:{self._port},PROXIED://{HOST}:{proxied_port}",
            f"advertised.listeners=PLAINTEXT://{HOST}:{self._port},PROXIED://{self.proxy.address}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            f"log.dirs={work_dir}/data",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=8",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=8",
        )

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        create_topics((HOST, self._port), [NewTopic(name, partitions, config=config or {})], START_S)

    def __enter__(self) -> ZooKeeperKafka:
        try:
            self._start("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper.properties")
            self._start("kafka.Kafka", "broker.properties")  # waits for ZooKeeper
            deadline = time.monotonic() + START_S
            while not self._is_ready():
                assert time.monotonic() < deadline, (self._dir / "broker.properties.log").read_text()[-3000:]
                time.sleep(0.1)
        except BaseException:
            self._stop()
            raise
        return self

    def _is_ready(self) -> bool:
        """A broker answers before the controller knows it, and no topic can be created until then."""
        try:
            if is_answering((HOST, self._port), timeout_s=5):
                self.create_topic("ready")
                return True
        except ToolError:
            pass
        return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _write(self, name: str, *lines: str) -> None:
        (self._dir / name).write_text("\n".join(lines) + "\n")

    def _start(self, main: str, properties: str) -> None:
        jars = fetch(f"kafka-{VERSION}", DEPENDENCIES)
        command = [str(find_java()), "-Xmx512m", f"-Dlog4j.configuration=file:{self._dir}/log4j.properties", "-cp", f"{jars}/*"]
        with (self._dir / f"{properties}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, main, str(self._dir / properties)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._dir,
                )
            )

    def _stop(self) -> None:
        self.proxy.close()
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
