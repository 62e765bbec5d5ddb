"""The command line of local_kafka and its error texts; no broker is started."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

import pytest

from jobs.broker_config import LocalNode, new_cluster_id, write_properties
from jobs.kafka_wire import NewTopic, is_answering
from jobs.local_kafka import LocalKafka, main, parse_property, parse_topic
from jobs.ports import FREE_PORTS, HOST
from jobs.processes import process_start
from spark_kafka_sink.tools.errors import ToolError
from spark_kafka_sink.tools.properties import parse_properties


def test_topics_are_named_with_partitions_and_configuration() -> None:
    assert parse_topic("orders:3:retention.ms=60000,cleanup.policy=compact") == NewTopic(
        "orders", 3, config={"retention.ms": "60000", "cleanup.policy": "compact"}
    )
    assert parse_topic("orders") == NewTopic("orders", 1)


@pytest.mark.parametrize("text", ["", ":3", "orders:x", "orders:0", "orders:1:retention"])
def test_what_is_no_topic_is_a_usage_error(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not NAME\[:PARTITIONS|not key=value"):
        parse_topic(text)


def test_a_property_may_hold_equals_signs() -> None:
    assert parse_property("sasl.jaas.config=x username=y;") == ("sasl.jaas.config", "x username=y;")


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as occupant:
        port = occupant.getsockname()[1]
        assert main(["--work-dir", str(tmp_path), "start", "--port", str(port)]) == 1
    message = capsys.readouterr().err
    assert f"error: Port {port} on {HOST} is in use" in message
    assert message.count("\n") == 1


def test_no_java_is_one_sentence_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--work-dir", str(tmp_path / "kafka"), "start"]) == 1
    assert capsys.readouterr().err.startswith("local_kafka: error: No Java was found")


def test_a_bad_version_is_one_sentence_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--work-dir", str(tmp_path), "--port", "0", "--kafka-version", "four"]) == 1
    assert capsys.readouterr().err == "local_kafka: error: 'four' is not a version of Apache Kafka; they look like 4.3.1.\n"


class Running(LocalKafka):
    """A broker of version 4.3.1 that answers nobody."""

    def __init__(self, port: int) -> None:
        super().__init__(Path("/none"), version="4.3.1", heap="384m", properties={"num.partitions": "7", "log.dirs": "/data"})
        self.nodes = {1: LocalNode(1, port, None, {})}

    def running(self) -> list[int]:
        return [1]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--port", "9093"], "--port"),
        (["--brokers", "3"], "--brokers"),
        (["--kafka-version", "3.9.0", "--port", "9093"], "--port, --kafka-version"),
        (["--heap", "768m"], "--heap"),
        (["--set", "num.partitions=8"], "--set"),
        (["--set", "num.partitions=7", "--set", "min.insync.replicas=2"], "--set"),
    ],
)
def test_what_a_broker_that_runs_already_does_not_have_is_an_error(
    arguments: list[str], options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--port, --heap and --set were ignored without a word while another broker ran."""
    monkeypatch.setattr(LocalKafka, "load", lambda _: Running(9092))
    assert main(["start", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"local_kafka: error: A broker runs already at 127.0.0.1:9092, with another {options}: stop it first, or"
    )
    for same in (
        [],
        ["--port", "9092"],
        ["--port", "0"],
        ["--brokers", "1", "--kafka-version", "4.3.1"],
        ["--heap", "384m", "--set", "num.partitions=7"],
    ):
        assert main(["start", *same]) == 0


def test_what_a_broker_was_started_with_is_found_again(tmp_path: Path) -> None:
    """Passwords among the properties are for the user's eyes only."""
    LocalKafka(tmp_path, heap="384m", properties={"num.partitions": "7"})._save()
    cluster = LocalKafka.load(tmp_path)
    assert cluster is not None
    assert (cluster._heap, cluster._properties) == ("384m", {"num.partitions": "7"})
    assert (tmp_path / "state.json").stat().st_mode & 0o077 == 0


def test_without_a_broker_there_is_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "--work-dir", str(tmp_path), "--topic", "t"]) == 1
    assert capsys.readouterr().err.startswith("local_kafka: error: No broker runs in ")


def test_nothing_to_stop_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "--work-dir", str(tmp_path)]) == 0
    assert main(["status", "--work-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().out == "nothing was running\nnot running\n"


@pytest.mark.parametrize("same_start", [False, True])
def test_stop_spares_a_process_that_only_inherited_the_number(
    same_start: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that began at another time, and one that is no broker."""
    cluster = LocalKafka(tmp_path)
    cluster._assign_ports()
    cluster.nodes[1].pid = os.getpid()
    cluster.nodes[1].started = process_start(os.getpid()) if same_start else "0"
    cluster._save()
    assert main(["--work-dir", str(tmp_path), "stop"]) == 0  # and this process is still here to say so
    assert capsys.readouterr().out == "nothing was running\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["restart"])
    assert exit_.value.code == 2


def test_a_listener_that_is_no_broker_does_not_answer() -> None:
    with socket.create_server((HOST, 0)) as silent:
        assert not is_answering((HOST, silent.getsockname()[1]), timeout_s=0.1)


def test_three_brokers_vote_and_know_one_another(tmp_path: Path) -> None:
    cluster = LocalKafka(tmp_path, brokers=4, properties={"min.insync.replicas": "2"}, extra_listeners=["SSL", "MUTUAL:SSL"])
    cluster._assign_ports()
    ports = [port for node in cluster.nodes.values() for port in (node.port, node.controller_port, *node.extra_ports.values())]
    used = [port for port in ports if port is not None]
    assert len(used) == len(set(used)) == 4 + 3 + 8
    assert all(port in FREE_PORTS for port in used)
    first, fourth = (cluster._server_properties(cluster.nodes[node_id]) for node_id in (1, 4))
    assert first["process.roles"] == "broker,controller"
    assert fourth["process.roles"] == "broker"
    assert first["controller.quorum.voters"] == fourth["controller.quorum.voters"]
    assert first["controller.quorum.voters"].count("@127.0.0.1:") == 3
    assert first["min.insync.replicas"] == "2"
    assert "SSL://127.0.0.1:" in first["advertised.listeners"]
    assert "CONTROLLER" not in first["advertised.listeners"]
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL"
    assert first["listener.security.protocol.map"] == protocols
    assert cluster.bootstrap_servers_for("MUTUAL").count("127.0.0.1:") == 4


def test_topics_need_a_running_broker(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="start one before you create topics"):
        LocalKafka(tmp_path).create_topic("orders")


def test_a_cluster_id_never_looks_like_an_option() -> None:
    ids = [new_cluster_id() for _ in range(2_000)]
    assert not any(each.startswith("-") for each in ids)
    assert len(set(ids)) == 2_000


def test_delete_leaves_files_that_only_look_like_its_own(tmp_path: Path) -> None:
    """data-export.csv of a user was deleted."""
    mine = {"data-export.csv", "node-red.log", "node-1.properties.bak", "state.json.orig"}
    for name in {*mine, "node-1.log", "node-12.properties", "cluster.id", "state.json.new", "lock"}:
        (tmp_path / name).touch()
    LocalKafka(tmp_path)._save()
    (tmp_path / "data-1" / "orders-0").mkdir(parents=True)
    LocalKafka(tmp_path).delete()
    assert {path.name for path in tmp_path.iterdir()} == mine


def test_properties_are_written_with_the_escapes_that_java_reads(tmp_path: Path) -> None:
    """The data of a work_dir with é or a backslash went elsewhere, the next start failed, and `stop --delete` left the data."""
    file = tmp_path / "node-1.properties"
    write_properties(file, {"log.dirs": "/home/josé/a\\b", "pem": "one\ntwo", "jaas": 'p="1 = 1";'})
    assert file.read_bytes() == b'log.dirs=/home/jos\\u00e9/a\\\\b\npem=one\\ntwo\njaas=p=\\"1 = 1\\";\n'
    write_properties(file, {"größe": 7})  # type: ignore[dict-item]
    assert file.read_bytes() == b"gr\\u00f6\\u00dfe=7\n"


def test_properties_with_blanks_and_separators_are_read_as_they_were(tmp_path: Path) -> None:
    """A blank before a value was lost, and a key ended at its first blank or colon, although no escapes are to be written."""
    file = tmp_path / "node-1.properties"
    properties = {"a b:c=d": " \t two blanks  ", "#e": "#f!g", "!": "=:", " ": "", "\\:": "\\ "}
    write_properties(file, properties)
    assert parse_properties(file.read_text(encoding="ascii")) == properties
