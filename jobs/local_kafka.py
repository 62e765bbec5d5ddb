"""Start, stop and look at a real Apache Kafka broker on this machine: python -m jobs.local_kafka start | status | stop.

One process per node, KRaft, listening on 127.0.0.1 only; the jars come from `kafka_jars`. Tests use `LocalKafka` as a
context manager, also for clusters whose single nodes are killed and restarted.
Law: a process is ended only when its id, its start time and its command line are those of a node started here; what is
needed to know that stands in state.json beside the broker's data, written before start() returns.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from jobs.java import JobError, find_java
from jobs.kafka_jars import (
    DEFAULT_KAFKA_VERSION,
    Progress,
    be_quiet,
    cache_dir,
    fetch_kafka,
    file_lock,
    kafka_version,
    make_dir,
    require_free_space,
)
from jobs.kafka_wire import NewTopic, answers, create_topics

HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_HEAP = "768m"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
TOPIC_TIMEOUT_S = 30.0
POLL_S = 0.05
# Broker properties with which a killed broker may come back after three seconds instead of nine.
QUICK_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # for a Java program that lives for seconds
# Below the range from which the kernel takes ports for outgoing connections: a node's port stays free while it is down.
FREE_PORTS = range(15_000, 32_000)
LOG_LINES_QUOTED = 5
OWN_FILES = ("data-*", "node-*.log", "node-*.properties", "cluster.id", "state.json*", "lock")
LOGGING = Path(__file__).resolve().parent.parent / "conf" / "local-kafka-log4j2.properties"


@dataclass
class Node:
    """One process of the cluster. `pid` is None while it is down; `started` tells a process from a later one of the same id."""

    node_id: int
    port: int
    controller_port: int | None
    extra_ports: dict[str, int]
    pid: int | None = None
    started: str = ""


class LocalKafka:
    """A cluster of one or more real brokers under `work_dir`.

    `port` 0 takes free ports, else node i listens on port + i - 1. `brokers` of three and more have three controllers (in the
    first three nodes), fewer have one. `properties` are broker properties and win over the ones set here. `extra_listeners`
    names security protocols (SASL_PLAINTEXT, SSL …) that get a listener each, see `bootstrap_servers_for`; NAME:PROTOCOL names
    a listener otherwise, for several of one protocol (their properties begin with listener.name.<name in small letters>).
    `format_options` go to Kafka's storage tool (--add-scram …). Data of an earlier start in the same directory is kept and used.
    KAFKA_JVM_PERFORMANCE_OPTS of the environment are the brokers' flags, as with Kafka's own scripts.

    start() blocks for up to `start_timeout_s` after the jars are there. Every failure is a JobError with one sentence.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        port: int = 0,
        brokers: int = 1,
        version: str | None = None,
        heap: str = DEFAULT_HEAP,
        properties: Mapping[str, str] | None = None,
        extra_listeners: Sequence[str] = (),
        format_options: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        progress: Progress = be_quiet,
    ) -> None:
        self.work_dir = work_dir.resolve()
        self.version = version or kafka_version()
        self.nodes: dict[int, Node] = {}
        self.jars: Path | None = None
        self._port = port
        self._brokers = brokers
        self._heap = heap
        self._properties = dict(properties or {})
        # listener name -> security protocol
        self._extra_listeners = {
            name: protocol or name for name, _, protocol in (each.partition(":") for each in extra_listeners)
        }
        self._format_options = tuple(format_options)
        self._start_timeout_s = start_timeout_s
        self._progress = progress
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # node id -> process; empty when loaded from a state file

    @classmethod
    def load(cls, work_dir: Path) -> LocalKafka | None:
        """The cluster whose state lies in `work_dir`, running or not; None when none was started there."""
        try:
            state = json.loads((work_dir / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        cluster = cls(work_dir, version=state["version"], brokers=len(state["nodes"]), heap=state["heap"])
        cluster.nodes = {node["node_id"]: Node(**node) for node in state["nodes"]}
        return cluster

    # --- what a user of the cluster asks -------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values())

    def bootstrap_servers_for(self, listener: str) -> str:
        """The addresses of one of the extra listeners, by its name."""
        return ",".join(f"{HOST}:{node.extra_ports[listener]}" for node in self.nodes.values())

    def running(self) -> list[int]:
        """Ids of the nodes that are up."""
        return [node.node_id for node in self.nodes.values() if self._is_alive(node)]

    def log_file(self, node_id: int) -> Path:
        return self.work_dir / f"node-{node_id}.log"

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int | None = None
    ) -> None:
        """Create a topic and return when the controller has it; one that exists is left as it is. Up to three replicas."""
        factor = replication_factor or min(3, len(self.nodes))
        up = self.running()
        if not up:
            raise JobError(f"No broker runs in {self.work_dir}: start it before creating topics.")
        create_topics((HOST, self.nodes[up[0]].port), [NewTopic(name, partitions, factor, config or {})], TOPIC_TIMEOUT_S)

    # --- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalKafka:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> LocalKafka:
        """Start every node and wait until each answers. Ends what it started when anything fails or Ctrl-C comes."""
        find_java()
        make_dir(self.work_dir)
        require_free_space(self.work_dir)
        with file_lock(self.work_dir / "lock", self._start_timeout_s * 2, "another start is under way"):
            earlier = LocalKafka.load(self.work_dir)
            if earlier is not None and earlier.running():
                where = f"{self.work_dir} at {earlier.bootstrap_servers}"
                raise JobError(f"A broker runs already in {where}: stop it, or choose another directory.")
            self._assign_ports()
            self.jars = fetch_kafka(self.version, self._progress)
            self._progress(f"starting Apache Kafka {self.version} in {self.work_dir}")
            try:
                self._format()
                for node in self.nodes.values():
                    self._launch(node)
                self._await_answers(list(self.nodes.values()))
            except BaseException:
                self.stop(STOP_TIMEOUT_S / 4)
                raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
        """Ask every node to end, and after `timeout_s` kill it. Returns the ids of the nodes that were up."""
        stopped = self.running()
        for node_id in stopped:
            self._signal(self.nodes[node_id], signal.SIGCONT)  # a paused node would not hear the next one
            self._signal(self.nodes[node_id], signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for node_id in stopped:
            node = self.nodes[node_id]
            if not self._await_end(node, deadline):
                self._signal(node, signal.SIGKILL)
                self._await_end(node, time.monotonic() + timeout_s)
        for node in self.nodes.values():
            node.pid = None
        if self.nodes and self.work_dir.is_dir():
            self._save()
        return stopped

    def kill(self, node_id: int) -> None:
        """End one node without warning, as a crash would."""
        self._end(node_id, signal.SIGKILL)

    def terminate(self, node_id: int) -> None:
        """End one node in order: it hands its partitions over first."""
        self._end(node_id, signal.SIGTERM)

    def pause(self, node_id: int) -> None:
        """Freeze one node: its connections stay open and nothing answers."""
        self._signal(self.nodes[node_id], signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._signal(self.nodes[node_id], signal.SIGCONT)

    def restart(self, node_id: int) -> None:
        """Start one node again on its ports and data, and wait until it answers: after kill, when its old session has run out.

        See QUICK_SESSIONS.
        """
        node = self.nodes[node_id]
        if self._is_alive(node):
            raise JobError(f"Node {node_id} in {self.work_dir} is up: kill or terminate it before restarting it.")
        self._launch(node)
        self._await_answers([node])

    def delete(self) -> None:
        """Delete what a stopped cluster left in its directory, and the directory if nothing else is in it."""
        if self.running():
            raise JobError(f"A broker runs in {self.work_dir}: stop it before deleting its data.")
        for pattern in OWN_FILES:
            for path in self.work_dir.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if self.work_dir.is_dir() and not any(self.work_dir.iterdir()):
            self.work_dir.rmdir()

    # --- ports, files, processes ---------------------------------------------------------------------------------------

    def _assign_ports(self) -> None:
        controllers = 3 if self._brokers >= 3 else 1
        taken: set[int] = set()
        for node_id in range(1, self._brokers + 1):
            port = _free_port(taken) if self._port == 0 else _claimed_port(self._port + node_id - 1, taken)
            self.nodes[node_id] = Node(
                node_id,
                port,
                _free_port(taken) if node_id <= controllers else None,
                {name: _free_port(taken) for name in self._extra_listeners},
            )

    def _server_properties(self, node: Node) -> dict[str, str]:
        replicas = min(3, self._brokers)
        listeners = {"PLAINTEXT": node.port, **node.extra_ports}
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **self._extra_listeners}
        addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
        controller = "" if node.controller_port is None else f",CONTROLLER://{HOST}:{node.controller_port}"
        voters = [f"{n.node_id}@{HOST}:{n.controller_port}" for n in self.nodes.values() if n.controller_port is not None]
        return {
            "process.roles": "broker" if node.controller_port is None else "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": addresses + controller,
            "advertised.listeners": addresses,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "log.dirs": str(self._data_dir(node)),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(2, replicas)),
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(min(2, replicas)),
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "16777216",  # Kafka's 128 MB would be most of the heap
            **self._properties,
        }

    def _data_dir(self, node: Node) -> Path:
        return self.work_dir / f"data-{node.node_id}"

    def _config_file(self, node: Node) -> Path:
        return self.work_dir / f"node-{node.node_id}.properties"

    def _format(self) -> None:
        """Write each node's properties, and format the directories of those that have no data yet, all at once."""
        cluster_id = self._cluster_id()
        tools: list[tuple[Node, subprocess.Popen[str]]] = []
        with contextlib.ExitStack() as stack:
            for node in self.nodes.values():
                _write_properties(self._config_file(node), self._server_properties(node))
                if not (self._data_dir(node) / "meta.properties").exists():
                    tools.append((node, stack.enter_context(self._format_tool(node, cluster_id))))
                    stack.callback(tools[-1][1].kill)
            for node, tool in tools:
                try:
                    output, _ = tool.communicate(timeout=self._start_timeout_s)
                except subprocess.TimeoutExpired:
                    took = f"more than {self._start_timeout_s:.0f} s"
                    raise JobError(f"Formatting {self._data_dir(node)} took {took}: try again, or allow more.") from None
                if tool.returncode != 0:
                    raise JobError(f"Kafka refused to format {self._data_dir(node)}: {_last_lines(output)}.")

    def _format_tool(self, node: Node, cluster_id: str) -> subprocess.Popen[str]:
        command = self._java("128m", "kafka.tools.StorageTool", quick=True)
        command += ["format", "-t", cluster_id, "-c", str(self._config_file(node)), *self._format_options]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )

    def _cluster_id(self) -> str:
        """The id of an earlier start in this directory, else a new one."""
        file = self.work_dir / "cluster.id"
        if not file.exists():
            file.write_text(new_cluster_id(), encoding="ascii")
        return file.read_text(encoding="ascii")

    def _java(self, heap: str, main: str, *, quick: bool = False) -> list[str]:
        jars = self.jars or fetch_kafka(self.version)
        flags = QUICK_JVM if quick else os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS") or "-XX:+UseG1GC"
        return [
            str(find_java()), f"-Xmx{heap}", *flags.split(),
            f"-Dlog4j2.configurationFile={LOGGING}", "-Djava.awt.headless=true",
            "-cp", f"{jars}/*", main,
        ]  # fmt: skip

    def _launch(self, node: Node) -> None:
        """Start one node in a session of its own, so that the terminal's Ctrl-C reaches only its starter."""
        with self.log_file(node.node_id).open("ab") as log:
            child = subprocess.Popen(
                [*self._java(self._heap, "kafka.Kafka"), str(self._config_file(node))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.work_dir, start_new_session=True,
            )  # fmt: skip
        self._children[node.node_id] = child
        node.pid, node.started = child.pid, _process_start(child.pid)
        self._save()

    def _await_answers(self, nodes: list[Node]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        waiting = list(nodes)
        while waiting:
            for node in waiting:
                if not self._is_alive(node):
                    raise JobError(f"Broker {node.node_id} ended while starting; {self._log_tail(node)}")
            if time.monotonic() > deadline:
                late = waiting[0]
                within = f"at {HOST}:{late.port} within {self._start_timeout_s:.0f} s"
                raise JobError(f"Broker {late.node_id} did not answer {within}; {self._log_tail(late)}")
            waiting = [node for node in waiting if not answers((HOST, node.port), timeout_s=5)]
            time.sleep(POLL_S)

    def _log_tail(self, node: Node) -> str:
        file = self.log_file(node.node_id)
        return f"its log {file} ends with: {_last_lines(file.read_text(encoding='utf-8', errors='replace'))}"

    def _end(self, node_id: int, how: signal.Signals) -> None:
        node = self.nodes[node_id]
        self._signal(node, signal.SIGCONT)
        self._signal(node, how)
        if not self._await_end(node, time.monotonic() + STOP_TIMEOUT_S):
            self._signal(node, signal.SIGKILL)
            self._await_end(node, time.monotonic() + STOP_TIMEOUT_S)
        node.pid = None
        self._save()

    def _signal(self, node: Node, how: signal.Signals) -> None:
        """Send a signal to a node's process, if it is still the one that was started."""
        if self._is_alive(node):
            assert node.pid is not None
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(node.pid, how)

    def _is_alive(self, node: Node) -> bool:
        child = self._children.get(node.node_id)
        if child is not None:
            return child.poll() is None
        return node.pid is not None and _process_start(node.pid) == node.started and "kafka.Kafka" in _command_line(node.pid)

    def _await_end(self, node: Node, deadline: float) -> bool:
        return _wait_until(lambda: not self._is_alive(node), deadline)

    def _save(self) -> None:
        state = {"version": self.version, "heap": self._heap, "nodes": [asdict(node) for node in self.nodes.values()]}
        staging = self.work_dir / "state.json.new"
        staging.write_text(json.dumps(state, indent=1), encoding="utf-8")
        staging.replace(self.work_dir / "state.json")


def new_cluster_id() -> str:
    """22 characters of base64, as Kafka makes them: never with a dash in front, which its tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _free_port(taken: set[int]) -> int:
    for port in random.sample(FREE_PORTS, 200):
        if port not in taken and _can_bind(port):
            taken.add(port)
            return port
    raise JobError(f"No free port was found between {FREE_PORTS.start} and {FREE_PORTS.stop}: end something that listens.")


def _claimed_port(port: int, taken: set[int]) -> int:
    if not _can_bind(port):
        raise JobError(f"Port {port} on {HOST} is in use: end what listens there, or pass another --port (0 takes a free one).")
    taken.add(port)
    return port


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker: TIME_WAIT does not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _process_start(pid: int) -> str:
    """What tells this process from a later one with the same id; empty when there is none, or it is a zombie."""
    proc = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = proc.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] == "Z" else fields[19]  # field 22 of proc(5): start time, in ticks since boot
    return _ps(pid, "lstart=")


def _command_line(pid: int) -> str:
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return _ps(pid, "command=")


def _ps(pid: int, column: str) -> str:
    """One column of `ps`, for systems without /proc."""
    answer = subprocess.run(["ps", "-ww", "-o", column, "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False)
    return answer.stdout.strip()


def _write_properties(file: Path, properties: Mapping[str, str]) -> None:
    file.touch(mode=0o600)  # may hold passwords of listeners
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " | ".join(lines[-LOG_LINES_QUOTED:]) or "nothing"


# --- command line -----------------------------------------------------------------------------------------------------


def default_work_dir() -> Path:
    return cache_dir() / "local-kafka"


def parse_topic(text: str) -> NewTopic:
    """name:partitions[:key=value,...]"""
    name, _, rest = text.partition(":")
    partitions, _, pairs = rest.partition(":")
    if not name or not (partitions or "1").isdigit() or int(partitions or "1") < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not name:partitions[:key=value,...]")
    return NewTopic(name, int(partitions or "1"), config=dict(parse_pair(pair) for pair in pairs.split(",") if pair))


def parse_pair(text: str) -> tuple[str, str]:
    """key=value"""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.strip(), value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.local_kafka", description="A real Apache Kafka broker on this machine, for trying out and for tests."
    )
    parser.add_argument("--work-dir", type=Path, default=None, help="for data, logs and state (default: in the user's cache)")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start it and wait until it answers")
    add = start.add_argument
    add("--port", type=int, default=DEFAULT_PORT, help="of the first broker; 0: free ports (default: %(default)s)")
    add("--brokers", type=int, default=1, help="number of brokers (default: %(default)s)")
    add("--kafka-version", default=None, help=f"of Apache Kafka (default: KAFKA_VERSION or {DEFAULT_KAFKA_VERSION})")
    topic_form = "NAME:PARTITIONS[:KEY=VALUE,...]"
    add("--topic", type=parse_topic, action="append", default=[], metavar=topic_form, help="create a topic; repeatable")
    add("--set", type=parse_pair, action="append", default=[], metavar="KEY=VALUE", help="broker property; repeatable")
    add("--heap", default=DEFAULT_HEAP, help="Java heap of each broker (default: %(default)s)")
    add("--timeout", type=float, default=START_TIMEOUT_S, help="seconds to wait for the broker (default: %(default)s)")
    stop = commands.add_parser("stop", help="stop what was started")
    stop.add_argument("--delete", action="store_true", help="delete its data too")
    commands.add_parser("status", help="exit code 0 if every broker runs, 3 if not")
    for command in commands.choices.values():
        command.add_argument("--work-dir", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _start(work_dir: Path, arguments: argparse.Namespace) -> int:
    running = LocalKafka.load(work_dir)
    if running is not None and running.running():
        cluster = running
        print(f"already running at {cluster.bootstrap_servers}")
    else:
        if arguments.brokers < 1:
            raise JobError("--brokers must be at least 1.")
        cluster = LocalKafka(
            work_dir,
            port=arguments.port,
            brokers=arguments.brokers,
            version=arguments.kafka_version,
            heap=arguments.heap,
            properties=dict(arguments.set),
            start_timeout_s=arguments.timeout,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        ).start()
        print(f"Apache Kafka {cluster.version} runs at {cluster.bootstrap_servers}")
    for topic in arguments.topic:
        cluster.create_topic(topic.name, topic.partitions, topic.config)
        print(f"topic {topic.name} is there")
    print(f"stop it with: python -m jobs.local_kafka stop --work-dir {work_dir}")
    return 0


def _stop(work_dir: Path, arguments: argparse.Namespace) -> int:
    cluster = LocalKafka.load(work_dir)
    stopped = cluster.stop() if cluster is not None else []
    print(f"stopped {len(stopped)} broker(s)" if stopped else "nothing was running")
    if arguments.delete and cluster is not None:
        cluster.delete()
        print(f"deleted its data in {work_dir}")
    return 0


def _status(work_dir: Path, _arguments: argparse.Namespace) -> int:
    cluster = LocalKafka.load(work_dir)
    up = cluster.running() if cluster is not None else []
    if cluster is None or not up:
        print("not running")
        return 3
    for node in cluster.nodes.values():
        state = f"running, process {node.pid}" if node.node_id in up else "down"
        print(f"broker {node.node_id} at {HOST}:{node.port}: {state}; log {cluster.log_file(node.node_id)}")
    return 0 if len(up) == len(cluster.nodes) else 3


COMMANDS: dict[str, Callable[[Path, argparse.Namespace], int]] = {"start": _start, "stop": _stop, "status": _status}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed with one sentence on stderr, 2 usage, 3 not running (status), 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return COMMANDS[options.command]((options.work_dir or default_work_dir()).resolve(), options)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was being started has been ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
