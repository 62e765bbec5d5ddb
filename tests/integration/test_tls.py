"""Real brokers that speak TLS: every kind of store writes, and whoever is not to be trusted is told so at once, by name."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import AuthenticationError, KafkaError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.tools.properties import read_properties
from tests.broker_properties import QUICK_SESSIONS
from tests.fakes.certificates import Authority, Certificate, keytool_truststore
from tests.integration.reading import READERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = Path(__file__).resolve().parents[2] / "conf"
ROWS = 20_000
AUTHORITY, STRANGER = Authority("ca"), Authority("stranger")
BETWEEN = Authority("between", AUTHORITY)
CLIENT = AUTHORITY.issue("me", hosts=())
PASSWORD = "changeit"


class TlsKafka:
    """One broker with a listener for each kind of certificate, and one that asks for the clients'."""

    def __init__(self, cluster: LocalKafka, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def topic(self) -> str:
        name = f"tls-{uuid.uuid4().hex[:8]}"
        self.cluster.create_topic(name, 3)
        return name

    def options(self, listener: str, **more: object) -> dict[str, object]:
        options: dict[str, object] = {"security.protocol": "ssl", "ssl.truststore.certificates": AUTHORITY.pem, **more}
        address = self.cluster.bootstrap_servers if listener == "PLAINTEXT" else self.cluster.bootstrap_servers_for(listener)
        return {"bootstrap.servers": address} | {key: value for key, value in options.items() if value is not None}

    def values(self, topic: str) -> list[int]:
        return [int(record.value or b"-1") for record in READERS["confluent-kafka"](self.cluster.bootstrap_servers, topic)]


def pem_file(certificate: Certificate, file: Path) -> Path:
    file.write_text(certificate.key_pem() + certificate.chain_pem)
    return file


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsKafka]:  # noqa: ARG001 - fetched before
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ca.pem").write_text(AUTHORITY.pem)
    certificates = {
        "ssl": AUTHORITY.issue("broker"),
        "mutual": AUTHORITY.issue("broker"),
        "expired": AUTHORITY.issue("broker", expired=True),
        "elsewhere": AUTHORITY.issue("broker", hosts=["elsewhere.example"]),
        "chained": BETWEEN.issue("broker"),
    }
    properties = {f"listener.name.{name}.ssl.client.auth": "required" for name in ("mutual", "chained")} | QUICK_SESSIONS
    for name, certificate in certificates.items():
        properties |= {
            f"listener.name.{name}.ssl.keystore.type": "PEM",
            f"listener.name.{name}.ssl.keystore.location": str(pem_file(certificate, folder / f"{name}.pem")),
            f"listener.name.{name}.ssl.truststore.type": "PEM",
            f"listener.name.{name}.ssl.truststore.location": str(folder / "ca.pem"),
        }
    listeners = ["SSL", "MUTUAL:SSL", "EXPIRED:SSL", "ELSEWHERE:SSL", "CHAINED:SSL"]
    with LocalKafka(folder / "broker", properties=properties, extra_listeners=listeners) as cluster:
        yield TlsKafka(cluster, folder)


def write(options: dict[str, object], topic: str) -> None:
    values = pa.array([b"%d" % row for row in range(ROWS)], pa.binary())
    with KafkaProducer(options) as producer:
        delivery = producer.send_columns(topic, key=values, value=values)
        producer.flush()
        assert delivery.result(0).acknowledged == ROWS


def client_pem(_: Path) -> dict[str, object]:
    return {"ssl.keystore.key": CLIENT.key_pem("secret"), "ssl.keystore.certificate.chain": CLIENT.chain_pem,
            "ssl.key.password": "secret"}  # fmt: skip


def client_pkcs12(folder: Path) -> dict[str, object]:
    (folder / "me.p12").write_bytes(CLIENT.pkcs12(PASSWORD))
    trusted = keytool_truststore(AUTHORITY, folder / f"{uuid.uuid4().hex}.p12", PASSWORD)
    return {
        "ssl.keystore.location": str(folder / "me.p12"), "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": str(trusted), "ssl.truststore.password": PASSWORD, "ssl.truststore.certificates": None,
    }  # fmt: skip


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("bootstrap", ["127.0.0.1", "localhost"])
def test_rows_are_written_over_tls(kafka: TlsKafka, version: str, bootstrap: str) -> None:
    topic = kafka.topic()
    options = kafka.options("SSL", **{"ssl.enabled.protocols": version})
    write(options | {"bootstrap.servers": str(options["bootstrap.servers"]).replace("127.0.0.1", bootstrap)}, topic)
    assert sorted(kafka.values(topic)) == list(range(ROWS))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("stores", [client_pem, client_pkcs12])
def test_rows_are_written_with_a_client_certificate(kafka: TlsKafka, version: str, stores: Any) -> None:
    topic = kafka.topic()
    write(kafka.options("MUTUAL", **stores(kafka.folder), **{"ssl.enabled.protocols": version}), topic)
    assert sorted(kafka.values(topic)) == list(range(ROWS))


@pytest.mark.parametrize("trusted", [AUTHORITY, BETWEEN])
@pytest.mark.parametrize("with_store", [False, True])
def test_chains_with_intermediates_are_sent_and_checked(kafka: TlsKafka, trusted: Authority, with_store: bool) -> None:
    """Broker and client know each other's root alone; the client may as well trust the authority between, as in Java."""
    client = BETWEEN.issue("me", hosts=())
    if with_store:
        (kafka.folder / "between.p12").write_bytes(client.pkcs12(None))
        keystore = {"ssl.keystore.location": str(kafka.folder / "between.p12")}
    else:
        keystore = {"ssl.keystore.key": client.key_pem(), "ssl.keystore.certificate.chain": client.chain_pem}
    topic = kafka.topic()
    write(kafka.options("CHAINED", **keystore, **{"ssl.truststore.certificates": trusted.pem}), topic)
    assert sorted(kafka.values(topic)) == list(range(ROWS))


def error_at_once(options: dict[str, object]) -> str:
    """The error of send_columns, which names the node; it came at once, as a test has less than ten minutes."""
    with KafkaProducer({**options, "max.block.ms": 600_000}) as producer:
        with pytest.raises(AuthenticationError) as raised:
            producer.send_columns("t", value=pa.array([b"x"], pa.binary()))
        producer.close(0)
    assert raised.value.condition == "KAFKA_SSL_AUTHENTICATION_FAILED"
    assert re.match(r"node -1 \(127\.0\.0\.1:\d+\): ", raised.value.message)
    return raised.value.message


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_each_trouble_has_its_own_error(kafka: TlsKafka, version: str) -> None:
    of_version = {"ssl.enabled.protocols": version}
    message = error_at_once(kafka.options("SSL", **of_version, **{"ssl.truststore.certificates": STRANGER.pem}))
    assert "its issuer is not in ssl.truststore.certificates" in message
    assert "certificate has expired" in error_at_once(kafka.options("EXPIRED", **of_version))
    assert "is not valid for '127.0.0.1'" in error_at_once(kafka.options("ELSEWHERE", **of_version))
    assert "probably demands a client certificate" in error_at_once(kafka.options("MUTUAL", **of_version))
    foreign = STRANGER.issue("me", hosts=())
    keystore = {"ssl.keystore.key": foreign.key_pem(), "ssl.keystore.certificate.chain": foreign.chain_pem}
    assert "the broker rejects this client's certificate" in error_at_once(kafka.options("MUTUAL", **of_version, **keystore))


def test_a_listener_of_another_security_protocol_fails_at_once(kafka: TlsKafka) -> None:
    assert "this listener does not speak TLS" in error_at_once(kafka.options("PLAINTEXT"))
    plain = kafka.options("SSL", **{"security.protocol": "PLAINTEXT"})
    assert "this listener speaks TLS, and the client does not" in error_at_once(plain)


def test_host_names_need_not_be_checked(kafka: TlsKafka) -> None:
    topic = kafka.topic()
    write(kafka.options("ELSEWHERE", **{"ssl.endpoint.identification.algorithm": ""}), topic)
    assert sorted(kafka.values(topic)) == list(range(ROWS))


@pytest.mark.slow
def test_a_broker_that_is_restarted_loses_and_doubles_nothing(kafka: TlsKafka) -> None:
    """What breaks in the middle of a handshake, or meets a broker that is going down, is tried again."""
    topic = kafka.topic()
    deliveries: list[Delivery] = []
    rows_per_call = 1_000
    with KafkaProducer(kafka.options("SSL", **{"request.timeout.ms": 10_000, "linger.ms": 0})) as producer:
        stop = threading.Event()

        def write() -> None:
            first = len(deliveries) * rows_per_call
            values = pa.array([b"%d" % row for row in range(first, first + rows_per_call)], pa.binary())
            deliveries.append(producer.send_columns(topic, key=values, value=values))

        def write_on() -> None:
            while not stop.wait(0.01):  # the pace of the rows, not a way to wait for something
                write()

        write()
        deliveries[0].result(60_000)
        writer = threading.Thread(target=write_on)
        writer.start()
        try:
            for end in (kafka.cluster.terminate, kafka.cluster.kill):
                end(1)
                kafka.cluster.restart(1)
                deliveries[-1].result(60_000)
        finally:
            stop.set()
            writer.join()
        producer.flush()
        assert [delivery.result(0).acknowledged for delivery in deliveries] == [rows_per_call] * len(deliveries)
    assert sorted(kafka.values(topic)) == list(range(rows_per_call * len(deliveries)))


@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars")
def test_a_producer_lives_through_a_change_of_all_certificates(tmp_path: Path) -> None:
    """Authority, broker's and client's certificate are renewed in place; the old ones would not be accepted any more."""
    broker_file, client_file, trusted_file = (tmp_path / f"{name}.pem" for name in ("broker", "client", "ca"))

    def issue(authority: Authority) -> None:
        pem_file(authority.issue("broker"), broker_file)
        pem_file(authority.issue("me", hosts=()), client_file)
        trusted_file.write_text(authority.pem)

    issue(AUTHORITY)
    properties = {
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(broker_file),
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": str(trusted_file),
    }
    options = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(client_file),
        "ssl.truststore.location": str(trusted_file),
    }
    with LocalKafka(tmp_path / "kafka", properties=properties, extra_listeners=["SSL"]) as cluster:
        cluster.create_topic("t", 1)
        with KafkaProducer({"bootstrap.servers": cluster.bootstrap_servers_for("SSL"), **options}) as producer:
            producer.send_columns("t", value=pa.array(["before"])).result(30_000)
            cluster.terminate(1)
            issue(Authority("successor"))
            cluster.restart(1)
            producer.send_columns("t", value=pa.array(["after"])).result(30_000)
        written = READERS["confluent-kafka"](cluster.bootstrap_servers, "t")
    assert [record.value for record in written] == [b"before", b"after"]


# SPARK


def save(spark: SparkSession, topic: str, options: dict[str, object]) -> None:
    rows = spark.range(ROWS).selectExpr("string(id) AS value")
    writer = rows.write.format("pykafka-sink").mode("append").option("topic", topic)
    writer.options(**{f"kafka.{key}": str(value) for key, value in options.items()}).save()


def test_spark_writes_over_tls_with_files_that_are_sent_along(kafka: TlsKafka, spark: SparkSession) -> None:
    """With the sample configuration, and the files that it names; addFile is what --files does."""
    sample = read_properties(CONF / "tls.properties")
    (kafka.folder / "client.pem").write_text(CLIENT.key_pem(sample["ssl.key.password"]) + CLIENT.chain_pem)
    for name in ("ca.pem", "client.pem"):
        assert name in sample.values()
        spark.sparkContext.addFile(str(kafka.folder / name))
    topic = kafka.topic()
    save(spark, topic, kafka.options("MUTUAL", **sample, **{"ssl.truststore.certificates": None}))
    assert sorted(kafka.values(topic)) == list(range(ROWS))


def test_spark_tells_which_file_is_missing(kafka: TlsKafka, spark: SparkSession) -> None:
    options = kafka.options("SSL", **{"ssl.truststore.certificates": None, "ssl.truststore.location": "not-sent.pem"})
    with pytest.raises(Exception, match=r"ssl\.truststore\.location=not-sent\.pem: there is no such file") as raised:
        save(spark, kafka.topic(), options)
    assert not isinstance(raised.value, KafkaError)
    assert "KAFKA_INVALID_CONFIG" in str(raised.value)
    assert "sent with --files" in str(raised.value)
