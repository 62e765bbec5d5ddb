"""The starter against real brokers: a broker is up when start returns, and gone when stop returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from jobs import local_kafka
from jobs.kafka_wire import is_answering
from jobs.local_kafka import HOST, LocalKafka, main
from spark_kafka_sink.tools.errors import ToolError
from tests.broker_properties import QUICK_SESSIONS
from tests.integration.reading import READERS, ReadTopic, Topic, read_with_confluent

pytestmark = pytest.mark.broker


def test_start_status_and_stop_work_from_different_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> int:
        command = [sys.executable, "-m", "jobs.local_kafka", "--work-dir", str(tmp_path), *arguments]
        return subprocess.run(command, timeout=120, check=False).returncode

    try:
        assert run("start", "--port", "0", "--topic", "orders:3:retention.ms=60000", "--set", "num.partitions=7") == 0
        cluster = LocalKafka.load(tmp_path)
        assert cluster is not None
        assert cluster.running() == [1]
        assert f"runs at {cluster.bootstrap_servers}" in capfd.readouterr().out
        assert run("status") == 0
        assert run("start", "--port", "0") == 0, "a second start finds the first"
        assert "already running" in capfd.readouterr().out
    finally:
        stopped = run("stop")
    assert stopped == 0
    assert run("status") == 3
    assert not is_answering((HOST, cluster.nodes[1].port), timeout_s=1)


@pytest.mark.slow
def test_data_survives_a_stop_and_delete_removes_only_what_the_starter_made(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with LocalKafka(tmp_path) as cluster:
        assert cluster.create_topic("kept", 2)
        assert not cluster.create_topic("kept", 3)  # it exists, and stays as it is
        _produce(cluster, "kept", [b"a", b"b"])
    with LocalKafka(tmp_path) as cluster:
        assert len(read_with_confluent(cluster.bootstrap_servers, "kept")) == 2
        with pytest.raises(ToolError, match="already runs in"):
            LocalKafka(tmp_path).start()
        with pytest.raises(ToolError, match="stop it before deleting"):
            cluster.delete()
    cluster.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("client", sorted(READERS))
def test_what_was_written_is_read_back_by_each_reader(
    client: str, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(partitions=3)
    _produce(broker, name, [b"x"] * 30, headers=[("h", b"1")])
    records = read_topic(name, client=client)
    assert len(records) == 30
    assert {record.headers[0] for record in records} == {("h", b"1")}
    assert [(r.partition, r.offset) for r in records] == sorted((r.partition, r.offset) for r in records)


def test_a_refused_topic_is_named_with_the_brokers_reason(broker: LocalKafka) -> None:
    with pytest.raises(ToolError, match=r"did not create topic 'bad/name' .*nvalid"):
        broker.create_topic("bad/name")


@pytest.mark.slow
def test_single_nodes_of_a_cluster_are_killed_and_restarted(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, brokers=3, heap="384m", properties=QUICK_SESSIONS) as cluster:
        cluster.create_topic("replicated", 3)
        _produce(cluster, "replicated", [b"1"] * 10)
        cluster.kill(2)
        assert cluster.running() == [1, 3]
        _produce(cluster, "replicated", [b"2"] * 10)
        cluster.restart(2)
        assert cluster.running() == [1, 2, 3]
        assert len(read_with_confluent(cluster.bootstrap_servers, "replicated")) == 20
    assert cluster.running() == []


def test_a_broker_that_dies_at_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"Kafka could not format .*process.roles|ended during its start.*process.roles"):
        LocalKafka(tmp_path, properties={"process.roles": "captain"}).start()
    cluster = LocalKafka.load(tmp_path)
    assert cluster is None or cluster.running() == []


def test_a_broker_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"did not answer at 127.0.0.1:\d+ within|took more than"):
        LocalKafka(tmp_path).start(timeout_s=0.01)
    cluster = LocalKafka.load(tmp_path)
    assert cluster is None or cluster.running() == []


def test_kafka_finds_the_data_directory_whatever_its_name(tmp_path: Path) -> None:
    """Java read the backslash as an escape, and Kafka formatted another directory."""
    cluster = LocalKafka(tmp_path / "a\\b")
    cluster.work_dir.mkdir()
    cluster._assign_ports()
    cluster._format(timeout_s=60)
    assert (cluster.work_dir / "data-1" / "meta.properties").exists()


def test_kafka_tools_find_the_offsets(broker: LocalKafka, kafka_jars: Path, topic: Topic) -> None:
    name = topic(partitions=1)
    _produce(broker, name, [b"x"] * 5)
    main_class = "org.apache.kafka.tools.GetOffsetShell"
    command = ["java", "-cp", f"{kafka_jars}/*", main_class, "--bootstrap-server", broker.bootstrap_servers, "--topic", name]
    assert f"{name}:0:5" in subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_topic_can_be_looked_at_from_a_shell(broker: LocalKafka, topic: Topic, capfd: pytest.CaptureFixture[str]) -> None:
    name = topic(partitions=1)
    _produce(broker, name, [b"one", b"two", b"three"])
    assert main(["read", "--work-dir", str(broker.work_dir), "--topic", name, "--max-records", "2"]) == 0
    assert capfd.readouterr().out.splitlines() == ["Partition:0\tnull\tone", "Partition:0\tnull\ttwo"]


@pytest.mark.slow
def test_a_look_at_a_topic_that_is_not_there_does_not_create_it(
    broker: LocalKafka, topic: Topic, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped name created a topic, and the next look at it found nothing wrong."""
    name = topic(partitions=1)
    monkeypatch.setattr(local_kafka, "READ_IDLE_MS", 1000)
    assert main(["read", "--work-dir", str(broker.work_dir), "--topic", f"{name}-mistyped"]) == 0
    assert capfd.readouterr().out == ""
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert [each for each in topics if each.startswith(name)] == [name]


def _produce(cluster: LocalKafka, topic: str, values: list[bytes], headers: list[tuple[str, bytes]] | None = None) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all")
    try:
        futures = [producer.send(topic, value, headers=headers) for value in values]
        for future in futures:
            future.get(timeout=30)
    finally:
        producer.close()
