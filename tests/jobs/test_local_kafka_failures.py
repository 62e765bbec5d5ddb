"""Failures of local_kafka: one sentence each, waits that end in time, and true words after Ctrl-C. No broker is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jobs import local_kafka
from jobs.broker_config import LocalNode
from jobs.kafka_jars import DEFAULT_KAFKA_VERSION, file_lock
from jobs.local_kafka import LocalKafka, _parser, main
from jobs.processes import POLL_S
from spark_kafka_sink.tools.errors import ToolError
from spark_kafka_sink.tools.exit_codes import UNREAD, run_tool
from tests.jobs.fake_java import put_on_path

ROOT = Path(__file__).resolve().parents[2]

# Plays Java: Kafka's tools end at once, and a broker does nothing until it is stopped.
JAVA = """#!/bin/sh
case "$*" in
    -version) echo 'openjdk version "17.0.1"' >&2 ;;
    *kafka.Kafka*) exec sleep 60 ;;
esac
"""


@pytest.fixture
def idle_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker that is started is a process that does nothing."""
    put_on_path(JAVA, tmp_path, monkeypatch)
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda *_: tmp_path)


class Running(LocalKafka):
    """A cluster of one broker that is up."""

    def __init__(self) -> None:
        super().__init__(Path("/none"), version="4.1.1")
        self.nodes = {1: LocalNode(1, 9092, None, {})}

    def running(self) -> list[int]:
        return [1]


class ManualTime:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def manual_time(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    manual_time = ManualTime()
    monkeypatch.setattr(local_kafka, "time", manual_time)
    return manual_time


def interrupt(*_arguments: object, **_keywords: object) -> NoReturn:
    raise KeyboardInterrupt


# ONE SENTENCE


def test_a_read_that_takes_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """local_kafka showed a traceback of subprocess.TimeoutExpired."""
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda _: Path("/none"))
    monkeypatch.setattr(local_kafka, "console_consumer_command", lambda *_, **__: ["sleep", "60"])
    monkeypatch.setattr(local_kafka, "READ_TIMEOUT_S", 0.01)
    assert main(["read", "--topic", "orders"]) == 1
    said = "Reading orders took more than 0 s, and was stopped: read fewer records with --max-records."
    assert capsys.readouterr().err == f"local_kafka: error: {said}\n"


def test_topics_of_an_older_broker_are_read_with_the_newest_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools of the broker's version were used, and before 4.2 these do not know the options: `read` failed."""
    versions: list[str] = []
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda version: versions.append(version) or Path("/none"))
    monkeypatch.setattr(local_kafka, "console_consumer_command", lambda *_, **__: ["true"])
    assert main(["read", "--topic", "orders"]) == 0
    assert versions == [DEFAULT_KAFKA_VERSION]


CONSUMER_OF_AN_EMPTY_TOPIC = """
echo "The consumer rebalance protocol (KIP-848) is production-ready! Set group.protocol=consumer to try it out." >&2
echo "ERROR Error processing message, terminating consumer process: " >&2
echo "org.apache.kafka.common.errors.TimeoutException" >&2
echo "Processed a total of 0 messages" >&2
"""


def test_an_empty_topic_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's console consumer logs the time-out that ends it as an error, with the exception."""
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda _: Path("/none"))
    monkeypatch.setattr(local_kafka, "console_consumer_command", lambda *_, **__: ["sh", "-c", CONSUMER_OF_AN_EMPTY_TOPIC])
    assert main(["read", "--topic", "orders"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "Processed a total of 0 messages",
        "orders is empty, or there is no such topic: nothing came in 5 s",
    ]


def test_other_errors_of_the_consumer_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda _: Path("/none"))
    error = CONSUMER_OF_AN_EMPTY_TOPIC.replace("TimeoutException", "SerializationException")
    monkeypatch.setattr(local_kafka, "console_consumer_command", lambda *_, **__: ["sh", "-c", f"{error}exit 1"])
    assert main(["read", "--topic", "orders"]) == 1
    assert "org.apache.kafka.common.errors.SerializationException" in capsys.readouterr().err


def test_the_help_says_how_a_topic_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """NAME:PARTITIONS stood there alone, and with another meaning: a name without a number was accepted."""
    for arguments in (["--help"], ["start", "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
    whole_help, start_help = " ".join(capsys.readouterr().out.split()).split("usage: ")[1:]
    assert "start --topic orders:6 --topic events:3:retention.ms=60000 makes a topic of 6 partitions, and one of 3" in whole_help
    assert "NAME[:PARTITIONS[:KEY=VALUE,...]] topic to create: its name, how many partitions (default: 1)" in start_help


@pytest.mark.parametrize("command", ["exit 7", "kill -9 $$"])
def test_a_consumer_that_fails_is_exit_code_1(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own exit code was passed on: -9 after a signal, or one that means something else here."""
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    monkeypatch.setattr(local_kafka, "fetch_kafka", lambda _: Path("/none"))
    monkeypatch.setattr(local_kafka, "console_consumer_command", lambda *_, **__: ["sh", "-c", command])
    assert main(["read", "--topic", "orders"]) == 1
    assert capsys.readouterr().err.startswith("local_kafka: error: Kafka's console consumer failed with exit code ")


def without(*path: Any) -> Callable[[Any], None]:
    """Removes what stands there in a state."""

    def remove(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return remove


DAMAGES: dict[str, str | Callable[[Any], None]] = {
    "empty": "",
    "zeros": "\0" * 100,
    "cut off": '{"version": "4.3.1", "no',
    "a list": "[]",
    "lists without end": "[" * 100_000,
    "no heap": without("heap"),
    "no nodes": without("nodes"),
    "no port": without("nodes", 0, "port"),
    "no node id": without("nodes", 0, "node_id"),
    "a field too many": lambda state: state["nodes"][0].update(rack="a"),
    "a node that is a number": lambda state: state["nodes"].append(7),
    "no properties": lambda state: state.update(properties=None),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_one_sentence_for_every_command(
    damage: str | Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands showed a traceback, `stop` too."""
    cluster = LocalKafka(tmp_path)
    cluster._assign_ports()
    cluster._save()
    file = tmp_path / "state.json"
    if callable(damage):
        state = json.loads(file.read_text())
        damage(state)
        damage = json.dumps(state)
    file.write_text(damage)
    for command in (["start", "--port", "0"], ["stop"], ["stop", "--delete"], ["status"], ["read", "--topic", "t"]):
        assert main(["--work-dir", str(tmp_path), *command]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"local_kafka: error: {file} is damaged, so no broker there can be recognized (")
        assert said.endswith("): stop the brokers of this directory by hand, and delete it.\n")
        assert said.count("\n") == 1


def test_a_state_that_cannot_be_read_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["--work-dir", str(file), "status"]) == 1
    remedy = "make it readable, or choose another directory"
    assert capsys.readouterr().err == f"local_kafka: error: {file}/state.json cannot be read (Not a directory): {remedy}.\n"


@pytest.mark.parametrize("text", ["", "\0" * 22, "é"], ids=["empty", "zeros", "not ASCII"])
def test_a_damaged_cluster_id_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.id").write_text(text)
    with pytest.raises(ToolError, match=r"cluster\.id is damaged: delete the directory"):
        LocalKafka(tmp_path)._cluster_id()


@pytest.mark.parametrize(
    ("file_name", "act"),
    [
        ("lock", LocalKafka.start),
        ("node-1.properties", LocalKafka.start),
        ("node-1.log", lambda cluster: cluster.restart(1)),
        ("state.json.new", LocalKafka.stop),
        ("state.json.new", lambda cluster: cluster.kill(1)),
    ],
)
@pytest.mark.usefixtures("idle_brokers")
def test_a_file_that_cannot_be_written_is_one_sentence(
    file_name: str, act: Callable[[LocalKafka], object], tmp_path: Path
) -> None:
    """A directory stands in its place. Without permission, or on a full disk, there was a traceback as well."""
    (tmp_path / "kafka" / file_name).mkdir(parents=True)
    cluster = LocalKafka(tmp_path / "kafka")
    cluster._assign_ports()
    with pytest.raises(ToolError, match=rf"^A file of the broker in \S+ cannot be used \(.*{file_name}'\): make it writable,"):
        act(cluster)


def test_delete_waits_for_a_start_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalKafka.delete deleted the data of brokers that another process was starting, and the lock that the other held."""
    monkeypatch.setattr(local_kafka, "STOP_TIMEOUT_S", 0)
    with file_lock(tmp_path / "lock", 1, "me"), pytest.raises(ToolError, match="a start is under way"):
        LocalKafka(tmp_path).delete()
    assert (tmp_path / "lock").exists()


def test_delete_holds_its_lock_until_all_else_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalKafka.delete deleted the lock first: another process could start brokers while it deleted their data."""
    for name in ("data-1", "data-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "lock").touch()
    monkeypatch.setattr(Path, "glob", lambda path, _: [path / name for name in ("lock", "data-1", "data-2")])
    removed: list[bool] = []
    monkeypatch.setattr(local_kafka.shutil, "rmtree", lambda path: (path.rmdir(), removed.append((tmp_path / "lock").exists())))
    LocalKafka(tmp_path).delete()
    assert removed == [True, True]
    assert not tmp_path.exists()


def test_delete_spares_brokers_that_another_process_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data-1").mkdir()
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    with pytest.raises(ToolError, match="stop it before deleting its data"):
        LocalKafka(tmp_path).delete()
    assert (tmp_path / "data-1").is_dir()


@pytest.mark.parametrize(("arguments", "port"), [("-1", "-1"), ("70000", "70000"), ("65534 --brokers 3", "65536")])
def test_a_port_that_does_not_exist_is_one_sentence(
    arguments: str, port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """local_kafka showed a traceback of OverflowError."""
    assert main(["--work-dir", str(tmp_path), "start", "--port", *arguments.split()]) == 1
    assert capsys.readouterr().err == f"local_kafka: error: There is no port {port}: pass another --port (0: a free one).\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "--timeout", "nan"],  # was waited for without end
        ["start", "--timeout", "inf"],  # was an OverflowError
        ["start", "--timeout", "1e12"],
        ["start", "--timeout", "0"],
        ["start", "--timeout", "soon"],
        ["start", "--topic", "orders:3000000000"],  # was a struct.error, while the broker ran
        ["read", "--topic", "orders", "--max-records", "0"],
        ["read", "--topic", "orders", "--max-records", "-1"],  # means all to Kafka's console consumer
    ],
    ids=" ".join,
)
def test_numbers_that_mean_nothing_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        _parser().parse_args(arguments)
    assert exit_.value.code == 2
    assert "invalid parse_" not in capsys.readouterr().err


# WAITS


class SlowTool:
    """A process that takes 0.9 s."""

    returncode = 0

    def __init__(self, time: ManualTime) -> None:
        self._time = time

    def __enter__(self) -> SlowTool:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def kill(self) -> None:
        return

    def communicate(self, timeout: float) -> tuple[str, None]:
        self._time.sleep(min(timeout, 0.9))
        if timeout < 0.9:
            raise subprocess.TimeoutExpired("format", timeout)
        return "", None


def test_formatting_has_one_deadline_for_all_nodes(
    tmp_path: Path, manual_time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node had the whole time-out: with 1 s, three nodes took 2.7 s without an error."""
    monkeypatch.setattr(LocalKafka, "_format_tool", lambda *_: SlowTool(manual_time))
    cluster = LocalKafka(tmp_path, brokers=3)
    cluster._assign_ports()
    with pytest.raises(ToolError, match=r"^Formatting \S+data-2 took more than 1 s: try again, or raise --timeout\.$"):
        cluster._format(1.0)
    assert manual_time.now == pytest.approx(1.0)


def test_silent_nodes_together_are_waited_for_until_the_deadline(
    tmp_path: Path, manual_time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node that accepted a connection and said nothing added 5 s."""

    def silent(_address: object, timeout_s: float) -> bool:
        manual_time.sleep(timeout_s)
        return False

    monkeypatch.setattr(local_kafka, "is_answering", silent)
    monkeypatch.setattr(LocalKafka, "_is_alive", lambda *_: True)
    cluster = LocalKafka(tmp_path, brokers=3)
    cluster._assign_ports()
    cluster.log_file(1).touch()
    with pytest.raises(ToolError, match=r"^Broker 1 did not answer at \S+ within 1 s"):
        cluster._await_answers(list(cluster.nodes.values()), 1.0)
    assert manual_time.now <= 1.0 + 4 * POLL_S


# CTRL-C AND CLOSED PIPES


@pytest.mark.usefixtures("idle_brokers")
def test_an_interrupted_start_says_how_many_brokers_it_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_kafka, "is_answering", interrupt)
    work_dir = tmp_path / "kafka"
    assert run_tool("local_kafka", partial(main, ["--work-dir", str(work_dir), "start", "--port", "0", "--brokers", "2"])) == 130
    assert capsys.readouterr().err == (
        f"starting Apache Kafka {local_kafka.kafka_version()} in {work_dir}\n"
        "stopped what had been started: 2 brokers\n"
        "local_kafka: interrupted\n"
    )
    cluster = LocalKafka.load(work_dir)
    assert cluster is not None
    assert cluster.running() == []


@pytest.mark.parametrize("command", [["start", "--topic", "t"], ["stop"], ["status"], ["read", "--topic", "t"]])
def test_ctrl_c_says_nothing_of_brokers_that_it_did_not_stop(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All said "brokers that were starting have been stopped", also `start` while it made topics of a broker that ran."""
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running())
    for name in ("create_topic", "stop", "log_file"):
        monkeypatch.setattr(LocalKafka, name, interrupt)
    monkeypatch.setattr(local_kafka, "fetch_kafka", interrupt)
    assert run_tool("local_kafka", partial(main, command)) == 130
    assert capsys.readouterr().err == "local_kafka: interrupted\n"


def test_a_command_ends_quietly_when_nobody_reads_it(tmp_path: Path) -> None:
    """`status | head` printed a traceback of BrokenPipeError."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "jobs.local_kafka", "--work-dir", str(tmp_path), "status"]
    with os.fdopen(writing, "wb") as unread:
        done = subprocess.run(command, cwd=ROOT, stdout=unread, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (UNREAD, b"")
