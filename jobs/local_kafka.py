"""Starts and stops a real Apache Kafka broker on this machine: python -m jobs.local_kafka start | status | read | stop.

One process per node, KRaft, listening on 127.0.0.1 only. The jars come from `kafka_jars`. Tests use `LocalKafka` as a context
manager, also to kill and restart single nodes of a cluster.
Law: LocalKafka ends only its own children, and brokers of an earlier process. It recognizes the latter by id and start time,
which are in state.json before start() returns, and by kafka.Kafka in the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from jobs.broker_config import LocalNode, new_cluster_id, server_properties, write_properties
from jobs.java import find_java
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
from jobs.kafka_tools import console_consumer_command, without_time_out
from jobs.kafka_wire import NewTopic, create_topics, is_answering
from jobs.ports import HOST, claim_port, free_port
from jobs.processes import POLL_S, command_line_of, process_start, wait_until
from spark_kafka_sink.tools.arguments import parse_pair, parse_positive_int
from spark_kafka_sink.tools.errors import ToolError
from spark_kafka_sink.tools.exit_codes import DONE, FAILED, run_tool
from spark_kafka_sink.tools.words import counted

DEFAULT_PORT = 9092
DEFAULT_HEAP = "768m"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0  # of a request that asks whether a broker has started
TOPIC_TIMEOUT_S = 30.0
READ_IDLE_MS = 5_000  # `read` ends when no record has come for so long
READ_TIMEOUT_S = 600.0
MAX_TIMEOUT_S = 86_400
MAX_PORT = 65_535
QUICK_JVM_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # for a Java program that runs for seconds
MAX_LOG_LINES_QUOTED = 5
TOPIC_FORM = "NAME[:PARTITIONS[:KEY=VALUE,...]]"
BROKER_DOWN = 3  # exit code of `status`
LOCK_FILE = "lock"  # the file that a start or a deletion has locked
OWN_FILES_PATTERN = re.compile(rf"data-\d+|node-\d+\.(log|properties)|cluster\.id|state\.json(\.new)?|{LOCK_FILE}")
BROKER_LOGGING = Path(__file__).resolve().parent.parent / "conf" / "local-kafka-log4j2.properties"


class LocalKafka:
    """A cluster of one or more real brokers under `work_dir`.

    Args:
        port: of the first node; node i listens on port + i - 1. 0: free ports.
        brokers: three and more have three controllers, in the first three nodes; fewer have one.
        properties: of the brokers, without escapes; they override the properties that LocalKafka sets.
        extra_listeners: security protocols (SASL_PLAINTEXT, SSL …) that get a listener each, see `bootstrap_servers_for`.
            NAME:PROTOCOL gives a listener another name, for several listeners of one protocol (their properties begin with
            listener.name.<name in lower case>).
        format_options: for Kafka's storage tool (--add-scram …).

    A start uses the data of an earlier start in the same directory. The environment's KAFKA_JVM_PERFORMANCE_OPTS are the
    JVM flags of brokers and storage tool, as with Kafka's own scripts. Expected failures are a ToolError with one sentence.
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
    ) -> None:
        self.work_dir = work_dir.resolve()
        self.version = version or kafka_version()
        self.nodes: dict[int, LocalNode] = {}
        self.jars: Path | None = None
        self._port = port
        self._broker_count = brokers
        self._heap = heap
        self._properties = dict(properties or {})
        # listener name -> security protocol
        self._extra_listeners = {
            name: protocol or name for name, _, protocol in (each.partition(":") for each in extra_listeners)
        }
        self._format_options = tuple(format_options)
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # node id -> process; empty after load()

    @classmethod
    def load(cls, work_dir: Path) -> LocalKafka | None:
        """The cluster that was started in `work_dir`, running or not; None if there was none. Raises ToolError."""
        file = work_dir / "state.json"
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            cluster = cls(work_dir, version=state["version"], brokers=len(state["nodes"]), heap=state["heap"])
            cluster._properties = dict(state.get("properties", {}))
            cluster.nodes = {node["node_id"]: LocalNode(**node) for node in state["nodes"]}
        except FileNotFoundError:
            return None
        except OSError as error:
            remedy = "make it readable, or choose another directory"
            raise ToolError(f"{file} cannot be read ({error.strerror}): {remedy}.") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            remedy = "stop the brokers of this directory by hand, and delete it"
            raise ToolError(f"{file} is damaged, so no broker there can be recognized ({reason}): {remedy}.") from error
        return cluster

    # INFORMATION AND TOPICS

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values())

    def bootstrap_servers_for(self, listener: str) -> str:
        """The addresses of an extra listener."""
        return ",".join(f"{HOST}:{node.extra_ports[listener]}" for node in self.nodes.values())

    def running(self) -> list[int]:
        """Ids of the nodes that are up."""
        return [node.node_id for node in self.nodes.values() if self._is_alive(node)]

    def log_file(self, node_id: int) -> Path:
        return self.work_dir / f"node-{node_id}.log"

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int | None = None
    ) -> bool:
        """Create a topic, by default with up to three replicas, and wait until the controller has it.

        Returns false for a topic that exists: it stays as it is. Blocks for about TOPIC_TIMEOUT_S at most. Raises ToolError.
        """
        factor = replication_factor or min(3, len(self.nodes))
        running_ids = self.running()
        if not running_ids:
            raise ToolError(f"No broker runs in {self.work_dir}: start one before you create topics.")
        topics = [NewTopic(name, partitions, factor, config or {})]
        return not create_topics((HOST, self.nodes[running_ids[0]].port), topics, TOPIC_TIMEOUT_S)

    # STARTING AND STOPPING

    def __enter__(self) -> LocalKafka:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self, timeout_s: float = START_TIMEOUT_S, progress: Progress = be_quiet) -> LocalKafka:
        """Start every node and wait until each answers. After a failure or Ctrl-C, stops the nodes that it has started.

        Args:
            timeout_s: limit of each step, for all nodes together: the wait for another start in the directory (twice as long),
                the formatting, and the wait for answers. The jars are fetched without this limit.
            progress: gets a line for each thing that happens.
        """
        find_java()
        make_dir(self.work_dir)
        require_free_space(self.work_dir)
        lock = file_lock(self.work_dir / LOCK_FILE, timeout_s * 2, "another start is under way")
        with _file_errors_in_a_sentence(self.work_dir), lock:
            earlier_cluster = LocalKafka.load(self.work_dir)
            if earlier_cluster is not None and earlier_cluster.running():
                place = f"{self.work_dir} at {earlier_cluster.bootstrap_servers}"
                raise ToolError(f"A broker already runs in {place}: stop it, or choose another directory.")
            self._assign_ports()
            self.jars = fetch_kafka(self.version, progress)
            progress(f"starting Apache Kafka {self.version} in {self.work_dir}")
            try:
                self._format(timeout_s)
                for node in self.nodes.values():
                    self._launch(node)
                self._await_answers(list(self.nodes.values()), timeout_s)
            except BaseException:
                stopped_ids = self.stop(STOP_TIMEOUT_S / 4)
                if stopped_ids:
                    progress(f"stopped what had been started: {counted(len(stopped_ids), 'broker')}")
                raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
        """Ask every node to stop; kill those that are up `timeout_s` seconds later. Returns the ids of nodes that were up."""
        stopped_ids = self.running()
        self._end(stopped_ids, signal.SIGTERM, timeout_s)
        for node in self.nodes.values():
            node.pid = None
        if self.nodes and self.work_dir.is_dir():
            self._save()
        return stopped_ids

    def kill(self, node_id: int) -> None:
        """End one node without warning, like a crash."""
        self._end([node_id], signal.SIGKILL)
        self._save()

    def terminate(self, node_id: int) -> None:
        """Shut one node down: it hands over its partitions first. If it is up STOP_TIMEOUT_S later, it is killed."""
        self._end([node_id], signal.SIGTERM)
        self._save()

    def restart(self, node_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start one node again with its ports and data, and wait until it answers.

        After kill(), it answers only when its old session has expired (broker.session.timeout.ms). ToolError after `timeout_s`.
        """
        node = self.nodes[node_id]
        if self._is_alive(node):
            raise ToolError(f"Node {node_id} in {self.work_dir} is up: kill or terminate it before restarting it.")
        self._launch(node)
        self._await_answers([node], timeout_s)

    def delete(self) -> None:
        """Delete a stopped cluster's files, and its directory if nothing else is in it.

        Waits at most STOP_TIMEOUT_S for a start that is under way. Raises ToolError if the start takes longer, or a broker runs.
        """
        if not self.work_dir.is_dir():
            return
        lock = file_lock(self.work_dir / LOCK_FILE, STOP_TIMEOUT_S, "a start is under way")
        with _file_errors_in_a_sentence(self.work_dir), lock:
            earlier = LocalKafka.load(self.work_dir)
            if self.running() or (earlier is not None and earlier.running()):
                raise ToolError(f"A broker runs in {self.work_dir}: stop it before deleting its data.")
            for path in sorted(self.work_dir.glob("*"), key=lambda path: path.name == LOCK_FILE):  # last: it holds
                if OWN_FILES_PATTERN.fullmatch(path.name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if self.work_dir.is_dir() and not any(self.work_dir.iterdir()):
                self.work_dir.rmdir()

    # PORTS, FILES, PROCESSES

    def _assign_ports(self) -> None:
        controller_count = 3 if self._broker_count >= 3 else 1
        for port in (self._port, self._port + self._broker_count - 1):
            if not 0 <= port <= MAX_PORT:
                raise ToolError(f"There is no port {port}: pass another --port (0: a free one).")
        taken_ports: set[int] = set()
        for node_id in range(1, self._broker_count + 1):
            port = free_port(taken_ports) if self._port == 0 else claim_port(self._port + node_id - 1, taken_ports)
            self.nodes[node_id] = LocalNode(
                node_id,
                port,
                free_port(taken_ports) if node_id <= controller_count else None,
                {name: free_port(taken_ports) for name in self._extra_listeners},
            )

    def _server_properties(self, node: LocalNode) -> dict[str, str]:
        own_properties = server_properties(node, self.nodes.values(), self._data_dir(node), self._extra_listeners)
        return {**own_properties, **self._properties}

    def _data_dir(self, node: LocalNode) -> Path:
        return self.work_dir / f"data-{node.node_id}"

    def _config_file(self, node: LocalNode) -> Path:
        return self.work_dir / f"node-{node.node_id}.properties"

    def _format(self, timeout_s: float) -> None:
        """Write the properties of all nodes, and format the directories of those without data, all at the same time."""
        deadline_s = time.monotonic() + timeout_s
        tools: list[tuple[LocalNode, subprocess.Popen[str]]] = []
        with contextlib.ExitStack() as stack:
            for node in self.nodes.values():
                write_properties(self._config_file(node), self._server_properties(node))
                if not (self._data_dir(node) / "meta.properties").exists():
                    tools.append((node, stack.enter_context(self._format_tool(node))))
                    stack.callback(tools[-1][1].kill)
            for node, tool in tools:
                try:
                    output, _ = tool.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    work = f"Formatting {self._data_dir(node)}"
                    raise ToolError(f"{work} took more than {timeout_s:.0f} s: try again, or raise --timeout.") from None
                if tool.returncode != 0:
                    raise ToolError(f"Kafka could not format {self._data_dir(node)}: {_last_lines(output)}.")

    def _format_tool(self, node: LocalNode) -> subprocess.Popen[str]:
        command = self._java("128m", "kafka.tools.StorageTool", is_quick=True)
        command += ["format", "-t", self._cluster_id(), "-c", str(self._config_file(node)), *self._format_options]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )

    def _cluster_id(self) -> str:
        """The id from an earlier start in this directory, else a new one."""
        file = self.work_dir / "cluster.id"
        if not file.exists():
            file.write_text(new_cluster_id(), encoding="ascii")
        text = file.read_text(encoding="ascii", errors="replace")
        if not re.fullmatch(r"[\w-]{22}", text):
            raise ToolError(f"{file} is damaged: delete the directory, with its data, or choose another.")
        return text

    def _java(self, heap: str, main: str, *, is_quick: bool = False) -> list[str]:
        jars = self.jars or fetch_kafka(self.version)
        flags = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS") or (QUICK_JVM_FLAGS if is_quick else "-XX:+UseG1GC")
        return [
            str(find_java()), f"-Xmx{heap}", *flags.split(),
            f"-Dlog4j2.configurationFile={BROKER_LOGGING}", "-Djava.awt.headless=true",
            "-cp", f"{jars}/*", main,
        ]  # fmt: skip

    def _launch(self, node: LocalNode) -> None:
        """Start one node in a session of its own, so that Ctrl-C in the terminal does not reach it."""
        with _file_errors_in_a_sentence(self.work_dir), self.log_file(node.node_id).open("ab") as log:
            child = subprocess.Popen(
                [*self._java(self._heap, "kafka.Kafka"), str(self._config_file(node))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.work_dir, start_new_session=True,
            )  # fmt: skip
        self._children[node.node_id] = child
        node.pid, node.started = child.pid, process_start(child.pid)
        self._save()

    def _await_answers(self, nodes: list[LocalNode], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        waiting_nodes = list(nodes)
        while waiting_nodes:
            for node in waiting_nodes:
                if not self._is_alive(node):
                    raise ToolError(f"Broker {node.node_id} ended during its start; {self._log_tail(node)}")
            if time.monotonic() > deadline_s:
                late_node = waiting_nodes[0]
                limit = f"at {HOST}:{late_node.port} within {timeout_s:.0f} s"
                raise ToolError(f"Broker {late_node.node_id} did not answer {limit}; {self._log_tail(late_node)}")
            waiting_nodes = [node for node in waiting_nodes if not self._is_answering(node, deadline_s)]
            time.sleep(POLL_S)

    def _is_answering(self, node: LocalNode, deadline_s: float) -> bool:
        """Whether a node answers before the deadline. Waits ANSWER_TIMEOUT_S at most: the other nodes are asked next."""
        left_s = max(POLL_S, deadline_s - time.monotonic())
        return is_answering((HOST, node.port), min(ANSWER_TIMEOUT_S, left_s))

    def _log_tail(self, node: LocalNode) -> str:
        file = self.log_file(node.node_id)
        return f"its log {file} ends with: {_last_lines(file.read_text(encoding='utf-8', errors='replace'))}"

    def _end(self, node_ids: Sequence[int], signal_number: signal.Signals, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send the signal to these nodes, and kill those that are up `timeout_s` later."""
        nodes = [self.nodes[node_id] for node_id in node_ids]
        for node in nodes:
            self._signal(node, signal_number)
        deadline_s = time.monotonic() + timeout_s
        for node in nodes:
            if not self._await_end(node, deadline_s):
                self._signal(node, signal.SIGKILL)
                self._await_end(node, time.monotonic() + timeout_s)
            node.pid = None

    def _signal(self, node: LocalNode, signal_number: signal.Signals) -> None:
        """Send a signal to a node's process, unless the process has ended."""
        if self._is_alive(node):
            assert node.pid is not None
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(node.pid, signal_number)

    def _is_alive(self, node: LocalNode) -> bool:
        child = self._children.get(node.node_id)
        if child is not None:
            return child.poll() is None
        return node.pid is not None and process_start(node.pid) == node.started and "kafka.Kafka" in command_line_of(node.pid)

    def _await_end(self, node: LocalNode, deadline_s: float) -> bool:
        return wait_until(lambda: not self._is_alive(node), deadline_s)

    def _save(self) -> None:
        state = {
            "version": self.version,
            "heap": self._heap,
            "properties": self._properties,
            "nodes": [asdict(node) for node in self.nodes.values()],
        }
        staging = self.work_dir / "state.json.new"
        with _file_errors_in_a_sentence(self.work_dir):
            staging.touch(mode=0o600)  # properties may contain passwords
            staging.write_text(json.dumps(state, indent=1), encoding="utf-8")
            staging.replace(self.work_dir / "state.json")


@contextlib.contextmanager
def _file_errors_in_a_sentence(work_dir: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # from `progress`, when nobody reads its output
        raise
    except OSError as error:
        remedy = "make it writable, free some space, or choose another directory"
        raise ToolError(f"A file of the broker in {work_dir} cannot be used ({error}): {remedy}.") from error


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " | ".join(lines[-MAX_LOG_LINES_QUOTED:]) or "nothing"


# COMMAND LINE


parse_property = partial(parse_pair, form="key=value")


def parse_topic(text: str) -> NewTopic:
    """Read the form TOPIC_FORM."""
    name, _, rest = text.partition(":")
    partitions, _, pairs = rest.partition(":")
    if not name or not (partitions or "1").isdigit() or not 1 <= int(partitions or "1") < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not {TOPIC_FORM}")
    return NewTopic(name, int(partitions or "1"), config=dict(map(parse_property, filter(None, pairs.split(",")))))


def parse_timeout(text: str) -> float:
    """Read seconds. Rejects nan and inf, at which no wait would end."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= MAX_TIMEOUT_S:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {MAX_TIMEOUT_S}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.local_kafka",
        description="Runs a real Apache Kafka broker on this machine, to try things out.",
        epilog="Example: start --topic orders:6 --topic events:3:retention.ms=60000 makes a topic of 6 partitions, and one of 3"
        " whose records are deleted after a minute. COMMAND --help shows what else a command takes.",
    )
    parser.add_argument("--work-dir", type=Path, default=None, help="for data, logs and state (default: in the user's cache)")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start the broker and wait until it answers")
    add = start.add_argument
    add("--port", type=int, help=f"port of the first broker; 0: free ports (default: {DEFAULT_PORT})")
    add("--brokers", type=int, help="number of brokers (default: 1)")
    add("--kafka-version", default=None, help=f"version of Apache Kafka (default: KAFKA_VERSION or {DEFAULT_KAFKA_VERSION})")
    topic_help = (
        "topic to create: its name, how many partitions (default: 1), and settings such as retention.ms=60000; repeatable"
    )
    add("--topic", type=parse_topic, action="append", default=[], metavar=TOPIC_FORM, help=topic_help)
    property_help = "broker property, without escapes; repeatable"
    add("--set", type=parse_property, action="append", default=[], metavar="KEY=VALUE", help=property_help)
    add("--heap", default=None, help=f"Java heap of each broker (default: {DEFAULT_HEAP})")
    add("--timeout", type=parse_timeout, default=START_TIMEOUT_S, help="seconds to wait for the broker (default: %(default)s)")
    stop = commands.add_parser("stop", help="stop the brokers that were started")
    stop.add_argument("--delete", action="store_true", help="delete their data too")
    read = commands.add_parser("read", help="show the first records of a topic: partition, key and value")
    read.add_argument("--topic", required=True, help="the topic")
    max_help = "how many at most (default: %(default)s)"
    read.add_argument("--max-records", type=parse_positive_int, default=10, metavar="N", help=max_help)
    commands.add_parser("status", help="show the brokers; exit code 0 if every broker runs, 3 if not")
    for command in commands.choices.values():
        command.add_argument("--work-dir", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _start(work_dir: Path, arguments: argparse.Namespace) -> int:
    cluster = LocalKafka.load(work_dir)
    if cluster is not None and cluster.running():
        differences = ", ".join(_differences(cluster, arguments))
        if differences:
            remedy = "stop it first, or start another with --work-dir"
            raise ToolError(f"A broker runs already at {cluster.bootstrap_servers}, with another {differences}: {remedy}.")
        print(f"already running at {cluster.bootstrap_servers}")
    else:
        broker_count = 1 if arguments.brokers is None else arguments.brokers
        if broker_count < 1:
            raise ToolError("--brokers must be at least 1.")
        cluster = LocalKafka(
            work_dir,
            port=DEFAULT_PORT if arguments.port is None else arguments.port,
            brokers=broker_count,
            version=arguments.kafka_version,
            heap=arguments.heap or DEFAULT_HEAP,
            properties=dict(arguments.set),
        ).start(arguments.timeout, progress=lambda line: print(line, file=sys.stderr, flush=True))
        print(f"Apache Kafka {cluster.version} runs at {cluster.bootstrap_servers}")
    for topic in arguments.topic:
        if cluster.create_topic(topic.name, topic.partitions, topic.config):
            print(f"created topic {topic.name} with {counted(topic.partitions, 'partition')}")
        else:
            print(f"topic {topic.name} existed before, and is left as it is")
    print(f"stop it with: python -m jobs.local_kafka stop --work-dir {work_dir}")
    return DONE


def _differences(running: LocalKafka, arguments: argparse.Namespace) -> Iterator[str]:
    """The arguments that differ from those of the broker that runs."""
    if arguments.port and arguments.port != next(iter(running.nodes.values())).port:
        yield "--port"
    if arguments.brokers is not None and arguments.brokers != len(running.nodes):
        yield "--brokers"
    if arguments.kafka_version is not None and arguments.kafka_version != running.version:
        yield "--kafka-version"
    if arguments.heap is not None and arguments.heap != running._heap:
        yield "--heap"
    if not dict(arguments.set).items() <= running._properties.items():
        yield "--set"


def _stop(work_dir: Path, arguments: argparse.Namespace) -> int:
    cluster = LocalKafka.load(work_dir)
    stopped_ids = cluster.stop() if cluster is not None else []
    print(f"stopped {counted(len(stopped_ids), 'broker')}" if stopped_ids else "nothing was running")
    if arguments.delete and cluster is not None:
        cluster.delete()
        print(f"deleted its data in {work_dir}")
    return DONE


def _status(work_dir: Path, _arguments: argparse.Namespace) -> int:
    cluster = LocalKafka.load(work_dir)
    running_ids = cluster.running() if cluster is not None else []
    if cluster is None or not running_ids:
        print("not running")
        return BROKER_DOWN
    for node in cluster.nodes.values():
        state = f"running, process {node.pid}" if node.node_id in running_ids else "down"
        print(f"broker {node.node_id} at {HOST}:{node.port}: {state}; log {cluster.log_file(node.node_id)}")
    return DONE if len(running_ids) == len(cluster.nodes) else BROKER_DOWN


def _read(work_dir: Path, arguments: argparse.Namespace) -> int:
    """Prints what Kafka's console consumer prints: partition, key, value. Its version is ours: older ones lack its options."""
    cluster = LocalKafka.load(work_dir)
    if cluster is None or not cluster.running():
        raise ToolError(f"No broker runs in {work_dir}: start one before you read from it.")
    jars = fetch_kafka(DEFAULT_KAFKA_VERSION)
    command = console_consumer_command(
        jars, cluster.bootstrap_servers, arguments.topic, arguments.max_records, timeout_ms=READ_IDLE_MS
    )
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=READ_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        duration = f"more than {READ_TIMEOUT_S:.0f} s, and was stopped"
        raise ToolError(f"Reading {arguments.topic} took {duration}: read fewer records with --max-records.") from None
    text = without_time_out(done.stderr.decode(errors="replace"))
    print(text, end="", file=sys.stderr)
    if done.returncode == 0 and "Processed a total of 0 messages" in text:
        print(
            f"{arguments.topic} is empty, or there is no such topic: nothing came in {READ_IDLE_MS // 1_000} s", file=sys.stderr
        )
    if done.returncode != 0:
        raise ToolError(f"Kafka's console consumer failed with exit code {done.returncode}: see what it says above.")
    return DONE


Command = Callable[[Path, argparse.Namespace], int]
COMMANDS: dict[str, Command] = {"start": _start, "stop": _stop, "status": _status, "read": _read}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed with one sentence on stderr, 2 usage, 3 a broker is down (status). Lets Ctrl-C pass."""
    options = _parser().parse_args(arguments)
    try:
        return COMMANDS[options.command]((options.work_dir or cache_dir() / "local-kafka").resolve(), options)
    except ToolError as error:
        print(f"local_kafka: error: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(run_tool("local_kafka", main))
