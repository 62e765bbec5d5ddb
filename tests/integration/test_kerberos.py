"""GSSAPI on a real broker, with tickets of a real Kerberos server: keytab and ticket cache write, each mistake has its error."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import AuthenticationError, ConfigError, KafkaError
from tests.integration.clusters import free_port
from tests.integration.kerberos import REALM, REAUTH_MS, Realm, jaas, kerberos_broker, kerberos_server
from tests.integration.reading import READERS
from tests.integration.writing import FORMAT, conditions, error_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    import gssapi
except (ImportError, OSError) as missing:  # OSError: the package is there, the system's library is not
    pytest.skip(
        f"Kerberos is not tested: {missing} (apt install libkrb5-dev; pip install gssapi)",
        allow_module_level=True,
    )

SECONDS = 10  # "at once", on a busy machine
PATIENT = {"max.block.ms": "600000", "delivery.timeout.ms": "600000"}  # longer than a test may take: what fails, fails at once
CANARY = "canary-7Qx2"
TOPIC = "tickets"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with kerberos_server(tmp_path_factory.mktemp("kdc")) as running:
        yield running


@pytest.fixture(scope="module")
def kafka(realm: Realm, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001
    with kerberos_broker(realm, tmp_path_factory.mktemp("kerberos")) as cluster:
        cluster.create_topic(TOPIC, 2)
        yield cluster


@pytest.fixture(autouse=True)
def of_this_realm(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    realm.use(monkeypatch)


def options(kafka: LocalKafka, **login: str) -> dict[str, Any]:
    """Options of a producer with the login module's."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers_for("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": jaas(**login, debug=CANARY),
    }


def keytab(realm: Realm, name: str = "alice", file: Path | None = None) -> dict[str, str]:
    return {"useKeyTab": "true", "keyTab": str(file or realm.keytab(name)), "principal": f"{name}@{REALM}"}


@pytest.fixture
def copied(realm: Realm, tmp_path: Path) -> dict[str, str]:
    """Alice's keytab by another name, so that no tickets of other tests serve."""
    return keytab(realm, "alice", Path(shutil.copy(realm.keytab("alice"), tmp_path / "copied.keytab")))


def write(options: dict[str, Any], value: str) -> None:
    """One row, to the end."""
    with KafkaProducer(options) as producer:
        delivery = producer.send_columns(TOPIC, value=pa.array([value]))
        producer.flush()
        delivery.result()


def values(kafka: LocalKafka) -> list[str]:
    return [(record.value or b"").decode() for record in READERS["confluent-kafka"](kafka.bootstrap_servers, TOPIC)]


# WHAT WORKS


def test_rows_arrive_with_the_tickets_of_a_keytab(kafka: LocalKafka, realm: Realm) -> None:
    """The ticket cache of the environment is neither needed nor made."""
    write(options(kafka, **keytab(realm), storeKey="true", useTicketCache="false"), "with a keytab")
    assert "with a keytab" in values(kafka)
    assert not (realm.directory / "no-such-cache").exists()


def test_rows_arrive_with_the_tickets_of_a_cache(
    kafka: LocalKafka, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.kinit(gssapi, tmp_path / "cache")
    write(options(kafka, useTicketCache="true", ticketCache=str(tmp_path / "cache")), "of a named cache")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cache'}")
    write(options(kafka, useTicketCache="true"), "of the default cache")
    write(options(kafka, useTicketCache="true", principal=f"alice@{REALM}", renewTGT="true"), "of alice in the default cache")
    without_module = options(kafka)
    del without_module["sasl.jaas.config"]
    write(without_module, "without a login module")
    written = values(kafka)
    for value in ("of a named cache", "of the default cache", "of alice in the default cache", "without a login module"):
        assert value in written


def test_connections_log_in_again_also_when_their_tickets_have_run_out(
    kafka: LocalKafka,
    realm: Realm,
    copied: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each login of the later ones needs new tickets, which the keytab gives."""
    realm.use(monkeypatch, realm.krb5_conf("short", ticket_lifetime="2s"))
    caplog.set_level(logging.DEBUG, "spark_kafka_sink")
    pace = threading.Event()  # never set: rows are to be spread over more than two sessions
    with KafkaProducer(options(kafka, **copied)) as producer:
        deliveries = []
        end = time.monotonic() + 2.5 * REAUTH_MS / 1000
        while time.monotonic() < end:
            deliveries.append(producer.send_columns(TOPIC, value=pa.array(["again"])))
            pace.wait(0.05)
        producer.flush()
        assert all(delivery.result(0).acknowledged == 1 for delivery in deliveries)
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "logging in again" in message]) >= 2
    assert not [message for message in messages if "connection closed" in message or "cancelled" in message]
    assert CANARY not in "\n".join(messages)


# WHAT IS REFUSED


def refusal(options: dict[str, Any], kind: type[KafkaError] = AuthenticationError) -> KafkaError:
    """What a write ends with, at once, and without any of the login's options in the locals of a frame."""
    with pytest.raises(kind) as raised:
        write(PATIENT | options, "never")
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    ours = [frame for frame in shown.stack if "/spark_kafka_sink/" in frame.filename]
    assert ours
    assert CANARY not in str([frame.locals for frame in ours]) + str(raised.value)
    return raised.value


def refused_login(options: dict[str, Any]) -> str:
    error = refusal(options)
    assert error.condition == "KAFKA_LOGIN_FAILED"
    assert error.message.startswith("node -1 (127.0.0.1:")
    return error.message


def test_a_key_that_has_been_replaced_since_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    message = refused_login(options(kafka, **keytab(realm, "bob")))
    assert f"SASL GSSAPI for Kerberos principal 'bob@{REALM}': Kerberos: no ticket for kafka@127.0.0.1: " in message
    assert "the keytab holds a wrong or old key of the principal: export it again" in message


def test_a_principal_that_is_not_known_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    message = refused_login(options(kafka, **keytab(realm, "nobody")))
    assert "not found in Kerberos database; is the principal in sasl.jaas.config right, with its realm?" in message


def test_a_keytab_of_somebody_else_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    message = refused_login(options(kafka, **keytab(realm, "carol", realm.keytab("alice"))))
    assert "the keytab holds no key of the principal in sasl.jaas.config" in message


def test_a_keytab_that_is_not_there_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    error = refusal(options(kafka, **keytab(realm, "no-such")), ConfigError)
    assert f"keyTab={realm.keytab('no-such')} cannot be read: No such file or directory" in error.message


def test_a_service_that_brokers_do_not_have_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    message = refused_login(options(kafka, **keytab(realm)) | {"sasl.kerberos.service.name": "other"})
    assert "no ticket for other@127.0.0.1: Server" in message
    assert "is there a principal SERVICE/HOST for this broker, with sasl.kerberos.service.name" in message


def test_a_broker_that_has_another_name_in_kerberos_is_named_in_the_error(kafka: LocalKafka, realm: Realm) -> None:
    """Kerberos gives tickets for kafka/localhost, and this broker's own name is kafka/127.0.0.1."""
    elsewhere = options(kafka, **keytab(realm))
    error = refusal(elsewhere | {"bootstrap.servers": elsewhere["bootstrap.servers"].replace("127.0.0.1", "localhost")})
    assert error.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"
    assert f"SASL GSSAPI for Kerberos principal 'alice@{REALM}': " in error.message


def test_the_error_says_that_there_are_no_tickets(kafka: LocalKafka) -> None:
    message = refused_login(options(kafka, useTicketCache="true"))
    assert "for the owner of the Kerberos tickets" in message
    assert "get tickets (kinit), or give keyTab and principal in sasl.jaas.config" in message


def test_the_error_says_that_tickets_have_run_out(
    kafka: LocalKafka, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.use(monkeypatch, realm.krb5_conf("short", ticket_lifetime="1s"), tmp_path / "cache")
    tickets = realm.kinit(gssapi, tmp_path / "cache")
    deadline = time.monotonic() + SECONDS
    with contextlib.suppress(gssapi.exceptions.ExpiredCredentialsError):
        while tickets.lifetime > 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    message = refused_login(options(kafka, useTicketCache="true"))
    assert "renew the tickets (kinit), or give keyTab and principal in sasl.jaas.config" in message


def test_the_error_says_that_the_kerberos_server_is_away(
    kafka: LocalKafka, realm: Realm, copied: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.use(monkeypatch, realm.krb5_conf("away", port=free_port()))
    message = refused_login(options(kafka, **copied))
    assert "; is it up, and is krb5.conf (KRB5_CONFIG) right, on the driver and all executors?" in message


def test_a_kerberos_server_that_says_nothing_is_not_waited_for(
    kafka: LocalKafka, realm: Realm, copied: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        realm.use(monkeypatch, realm.krb5_conf("silent", port=silent.getsockname()[1]))
        hurried = {"request.timeout.ms": "2000", "delivery.timeout.ms": "5000", "max.block.ms": "5000"}
        error = refusal(options(kafka, **copied) | hurried, KafkaError)
    assert "the Kerberos server does not answer" in error.message


def test_the_error_says_that_a_broker_does_not_speak_kerberos(kafka: LocalKafka, realm: Realm) -> None:
    error = refusal(options(kafka, **keytab(realm)) | {"bootstrap.servers": kafka.bootstrap_servers})
    assert error.condition == "KAFKA_ILLEGAL_SASL_STATE"


# FROM SPARK


@pytest.fixture
def spark_of_this_realm(spark: SparkSession, realm: Realm) -> Iterator[SparkSession]:
    """What spark.executorEnv.KRB5_CONFIG does for a cluster's tasks; the data source takes it along when it is registered."""
    from spark_kafka_sink import KafkaDataSource

    environment: dict[str, str] = spark.sparkContext.environment
    environment["KRB5_CONFIG"] = str(realm.krb5_conf())
    spark.dataSource.register(KafkaDataSource)
    yield spark
    del environment["KRB5_CONFIG"]
    spark.dataSource.register(KafkaDataSource)


def test_spark_writes_with_a_keytab_that_is_sent_along(
    kafka: LocalKafka, realm: Realm, spark_of_this_realm: SparkSession
) -> None:
    spark = spark_of_this_realm
    spark.sparkContext.addFile(str(realm.keytab("alice")))  # what --files does
    login = options(kafka, **keytab(realm) | {"keyTab": "alice.keytab"})
    rows = spark.range(100).selectExpr("concat('by Spark ', id) AS value")
    writer = rows.write.format(FORMAT).mode("append").option("topic", TOPIC)
    writer.options(**{f"kafka.{name}": value for name, value in login.items()}).save()
    assert {f"by Spark {number}" for number in range(100)} <= set(values(kafka))


@pytest.mark.usefixtures("verbose_tracebacks")
def test_spark_tells_at_once_what_kerberos_refuses(kafka: LocalKafka, realm: Realm, spark_of_this_realm: SparkSession) -> None:
    login = PATIENT | options(kafka, **keytab(realm, "bob"))
    writer = spark_of_this_realm.range(3).selectExpr("string(id) AS value").write.format(FORMAT).mode("append")
    writer = writer.option("topic", TOPIC).options(**{f"kafka.{name}": value for name, value in login.items()})
    message = error_of(writer.save)
    assert "KAFKA_LOGIN_FAILED" in conditions(message)
    assert "export it again" in message
    assert CANARY not in message
