"""`check` with a real broker: what the fake one cannot claim about topics, permissions, and what is left behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.tools.check import command
from tests.integration.reading import ReadTopic, Topic
from tests.integration.sasl_cluster import AUTHORITY, PASSWORD, allow, client_options, deny, sasl_cluster

pytestmark = pytest.mark.broker

IDS, GROUPS, TOPIC = "TRANSACTIONAL_ID", "GROUP", "TOPIC"


def run(capfd: pytest.CaptureFixture[str], servers: str, topic: str, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the last result of each check."""
    capfd.readouterr()
    code = command.main(["--bootstrap-servers", servers, "--topic", topic, "--json", *more])
    _, *results, _ = map(json.loads, capfd.readouterr().out.splitlines())
    return code, {each["check"]: each for each in results}


def test_a_check_of_a_cluster_in_order_is_green_and_writes_nothing(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, capfd: pytest.CaptureFixture[str]
) -> None:
    name, prefix = topic(2), f"well-{uuid.uuid4().hex}"
    code, results = run(capfd, broker.bootstrap_servers, name, "--exactly-once", prefix)
    assert (code, {each["result"] for each in results.values()}) == (0, {"green"})
    assert results["version"]["found"].startswith(f"Kafka {'.'.join(broker.version.split('.')[:2])}, ")
    assert results["replicas"]["found"] == "1 of 1 replica in sync; min.insync.replicas=1"
    assert read_topic(name) == []
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        assert client.list_transactions(prefix) == []


def test_a_record_in_a_transaction_is_never_visible(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, capfd: pytest.CaptureFixture[str]
) -> None:
    name, prefix = topic(), f"write-{uuid.uuid4().hex}"
    code, results = run(capfd, broker.bootstrap_servers, name, "--exactly-once", prefix, "--write")
    assert (code, results["write"]["result"]) == (0, "green")
    assert read_topic(name, isolation_level="read_committed") == []
    assert len(read_topic(name, isolation_level="read_uncommitted")) == 1
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        ((transactional_id, _, state),) = client.list_transactions(prefix)
    assert (transactional_id, state) == (f"{prefix}-check", "CompleteAbort")


def test_a_topic_with_too_few_replicas_is_red(broker: LocalKafka, topic: Topic, capfd: pytest.CaptureFixture[str]) -> None:
    name = topic(2, {"min.insync.replicas": "2", "max.message.bytes": "1000", "compression.type": "gzip"})
    code, results = run(capfd, broker.bootstrap_servers, name)
    assert (code, results["replicas"]["result"]) == (1, "red")
    assert "too few for 2 partitions: 0, 1" in results["replicas"]["found"]
    assert results["size"]["result"] == results["compression"]["result"] == "yellow"


@pytest.fixture(scope="module")
def cluster(
    kafka_jars: Path,  # noqa: ARG001 - fetched before the start is timed
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalKafka]:
    with sasl_cluster(tmp_path_factory.mktemp("check"), {"auto.create.topics.enable": "false"}) as cluster:
        allow(cluster, "alice", "WRITE", "orders", TOPIC)
        allow(cluster, "alice", "READ", "orders", TOPIC)
        cluster.create_topic("orders", 2)
        yield cluster


def alice(tmp_path: Path, protocol: str = "SASL_PLAINTEXT", password: str = PASSWORD) -> list[str]:
    options = client_options("SCRAM-SHA-256", "alice", password, protocol)
    options.pop("ssl.truststore.certificates", None)
    authority, config = tmp_path / "ca.pem", tmp_path / "alice.properties"
    authority.write_text(AUTHORITY.pem)
    trust = {"ssl.truststore.location": str(authority)} if protocol == "SASL_SSL" else {}
    config.write_text("".join(f"{name}={value}\n" for name, value in (options | trust).items()))
    return ["--config", str(config)]


@pytest.mark.slow
def test_missing_permissions_are_red_until_they_are_granted(
    cluster: LocalKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = [cluster.bootstrap_servers_for("SASL_PLAINTEXT"), "orders", *alice(tmp_path), "--exactly-once", "job"]
    code, results = run(capfd, *where)
    assert code == 1
    assert (results["transactional ids"]["result"], results["groups"]["result"]) == ("red", "red")
    assert results["transactional ids"]["remedy"].endswith("the transactional ids that begin with 'job-'")
    allow(cluster, "alice", "WRITE", "job-", IDS)
    allow(cluster, "alice", "READ", "job-", GROUPS)
    code, results = run(capfd, *where)
    assert code == 0
    assert {name for name, each in results.items() if each["result"] != "green"} == {"settings", "transaction time"}
    deny(cluster, "alice", "WRITE", "job-", IDS)
    deny(cluster, "alice", "READ", "job-", GROUPS)
    deny(cluster, "alice", "WRITE", "orders", TOPIC)
    code, results = run(capfd, *where)
    assert code == 1
    assert "no WRITE" in results["transactional ids"]["found"]
    assert "no READ" in results["groups"]["found"]


@pytest.mark.slow
def test_tls_and_logins_are_shown(cluster: LocalKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    servers = cluster.bootstrap_servers_for("SASL_SSL")
    _, results = run(capfd, servers, "orders", *alice(tmp_path, "SASL_SSL"))
    assert "broker < ca for localhost" in results["TLS"]["found"]
    assert results["login"]["found"] == "user 'alice', SCRAM-SHA-256"
    code, results = run(capfd, servers, "orders", *alice(tmp_path, "SASL_SSL", "wrong"))
    assert (code, results["login"]["result"]) == (1, "red")
    code, results = run(capfd, servers, "orders")
    assert (code, results["TLS"]["result"]) == (1, "red")
    code, results = run(capfd, cluster.bootstrap_servers_for("SASL_PLAINTEXT"), "orders")
    assert "demands a login" in results["login"]["found"]


@pytest.mark.slow
def test_an_expired_certificate_is_shown_with_its_day(
    kafka_jars: Path,  # noqa: ARG001 - as above
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    expired, keystore, authority = AUTHORITY.issue("broker-1", expired=True), tmp_path / "broker.pem", tmp_path / "ca.pem"
    keystore.write_text(expired.key_pem() + expired.chain_pem)
    authority.write_text(AUTHORITY.pem)
    prefix = "listener.name.ssl.ssl.keystore"
    properties = {f"{prefix}.type": "PEM", f"{prefix}.location": str(keystore)}
    trust = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority)}
    options = [word for name, value in trust.items() for word in ("--option", f"kafka.{name}={value}")]
    with LocalKafka(tmp_path / "kafka", extra_listeners=["SSL"], properties=properties) as cluster:
        code, results = run(capfd, cluster.bootstrap_servers_for("SSL"), "orders", *options)
    assert (code, results["TLS"]["result"], results["TLS"]["remedy"]) == (1, "red", "renew the certificate")
    assert "It shows the certificate broker-1 < ca for localhost" in results["TLS"]["found"]
    assert ", expired on " in results["TLS"]["found"]
