"""SASL on a real broker: each mechanism writes, each mistake has its own clear error within seconds, and no password shows."""

from __future__ import annotations

import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, AuthorizationError, KafkaError
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.idempotence.sequencer import SequenceFacts
from spark_kafka_sink.producer.sender.retry import BatchFacts, NextStep, next_step
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.schema import Request
from tests.documents import code_block
from tests.integration.reading import READERS
from tests.integration.sasl_cluster import (
    AUTHORITY,
    JAAS,
    MECHANISMS,
    PASSWORD,
    REAUTH_MS,
    add_scram_user,
    allow,
    client_options,
    jaas,
    sasl_cluster,
)
from tests.integration.writing import FORMAT, conditions, error_of

SECONDS = 10  # "within seconds", on a busy machine
PATIENT = {"max.block.ms": "600000", "delivery.timeout.ms": "600000"}  # longer than a test may take: what fails, fails at once


@pytest.fixture(scope="module")
def sasl_broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001
    with sasl_cluster(tmp_path_factory.mktemp("sasl")) as cluster:
        allow(cluster, "alice", "WRITE", "alice-")  # WRITE implies DESCRIBE
        allow(cluster, "alice", "DESCRIBE", "readonly-")
        allow(cluster, "bob", "DESCRIBE", "alice-")
        allow(cluster, "alice", "WRITE", "alice-", "TRANSACTIONAL_ID")
        for name in ("alice-rows", "alice-spark", "readonly-rows", "other-rows"):
            cluster.create_topic(name, 2)
        yield cluster


def options_for(broker: LocalKafka, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the broker's listener for their security.protocol, unless they name another."""
    if "bootstrap.servers" in options:
        return dict(options)
    listener = options.get("security.protocol", "SASL_PLAINTEXT").upper()
    return {"bootstrap.servers": broker.bootstrap_servers_for(listener), **options}


def write(broker: LocalKafka, options: Mapping[str, Any], topic: str = "alice-rows", value: str = "v") -> None:
    """One row, to the end."""
    with KafkaProducer(options_for(broker, options)) as producer:
        delivery = producer.send_columns(topic, value=pa.array([value]))
        producer.flush()
        delivery.result()


def refusal(broker: LocalKafka, options: Mapping[str, Any], topic: str = "alice-rows") -> KafkaError:
    """What a write ends with, at once, without any secret: not in its text, and not in the locals of any frame."""
    with pytest.raises(KafkaError) as raised:
        write(broker, PATIENT | options, topic)
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    ours = [frame for frame in shown.stack if "/spark_kafka_sink/" in frame.filename]
    assert ours
    assert PASSWORD not in str([frame.locals for frame in ours])
    return raised.value


def values(broker: LocalKafka, topic: str) -> list[str]:
    records = READERS["confluent-kafka"](broker.bootstrap_servers, topic)
    return [(record.value or b"").decode() for record in records]


# WHAT WORKS


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_arrive_with_each_mechanism(sasl_broker: LocalKafka, mechanism: str, protocol: str) -> None:
    write(sasl_broker, client_options(mechanism, protocol=protocol), value=f"by {mechanism} over {protocol}")
    assert f"by {mechanism} over {protocol}" in values(sasl_broker, "alice-rows")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_names_and_passwords_may_have_any_characters(sasl_broker: LocalKafka, mechanism: str) -> None:
    """With characters that SASLprep would change: Kafka does not apply it, so a client that did could not log in.

    Names are limited to ASCII by Kafka's own parser of SCRAM messages.
    """
    user, password = "zoe,=$ x", "pa\u00a0ss\u2168 wörd\u00aa"
    add_scram_user(sasl_broker, user, password)
    allow(sasl_broker, user, "WRITE", "alice-")
    write(sasl_broker, client_options(mechanism, user, password), value=f"by zoe, {mechanism}")
    assert f"by zoe, {mechanism}" in values(sasl_broker, "alice-rows")


@pytest.mark.parametrize("iterations", [4096, 16_384])
def test_brokers_may_ask_for_as_few_and_as_many_iterations_as_they_can(sasl_broker: LocalKafka, iterations: int) -> None:
    user = f"i{iterations}"
    add_scram_user(sasl_broker, user, PASSWORD, iterations)
    allow(sasl_broker, user, "WRITE", "alice-")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        write(sasl_broker, client_options(mechanism, user), value=f"{mechanism} of {iterations}")
        assert f"{mechanism} of {iterations}" in values(sasl_broker, "alice-rows")


@pytest.mark.parametrize(
    "login",
    [
        r"""{module} required username="quo" password="q\"u\\o't;e= //x";""",
        r"""{module} required username='quo' password='q\"u\\o\'t;e= //x';""",
        r"""/* by {module} */ org.example.shaded.{module} REQUIRED
                password = "q\042u\134o\47t;e= //x" // octal
                serviceName=none username = quo
            ;""",
    ],
)
def test_quotes_escapes_and_comments_of_a_login_are_those_of_java(sasl_broker: LocalKafka, login: str) -> None:
    add_scram_user(sasl_broker, "quo", "q\"u\\o't;e= //x")
    allow(sasl_broker, "quo", "WRITE", "alice-")
    options = client_options("SCRAM-SHA-256") | {"sasl.jaas.config": login.replace("{module}", JAAS["SCRAM-SHA-256"])}
    write(sasl_broker, options | {"security.protocol": "Sasl_PlainText"}, value="quoted")
    assert "quoted" in values(sasl_broker, "alice-rows")


def token(options: Mapping[str, str]) -> str:
    """A token callback, named in a test below."""
    return options["extension_token"]


def test_shaded_login_modules_are_known(sasl_broker: LocalKafka) -> None:
    shaded = client_options("SCRAM-SHA-512") | {"sasl.jaas.config": "kafkashaded." + jaas("SCRAM-SHA-512")}
    write(sasl_broker, shaded, value="shaded")
    assert "shaded" in values(sasl_broker, "alice-rows")


def test_connections_log_in_again_before_their_session_ends(sasl_broker: LocalKafka, caplog: pytest.LogCaptureFixture) -> None:
    """The broker closes connections that send anything but a login after connections.max.reauth.ms."""
    caplog.set_level(logging.DEBUG, "spark_kafka_sink")
    pace = threading.Event()  # never set: rows are to be spread over more than two sessions
    with KafkaProducer(options_for(sasl_broker, client_options("PLAIN"))) as producer:
        deliveries = []
        end = time.monotonic() + 2.5 * REAUTH_MS / 1000
        while time.monotonic() < end:
            deliveries.append(producer.send_columns("alice-rows", value=pa.array(["again"])))
            pace.wait(0.05)
        producer.flush()
        assert all(delivery.result() is None or delivery.error is None for delivery in deliveries)
    messages = [record.getMessage() for record in caplog.records]
    leaders = [message for message in messages if "logging in again" in message]
    assert len(leaders) >= 2
    assert not [message for message in messages if "connection closed" in message or "cancelled" in message]
    assert PASSWORD not in "\n".join(messages)


# WHAT IS REFUSED


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_fails_at_once_with_node_and_user(
    sasl_broker: LocalKafka, mechanism: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = refusal(sasl_broker, client_options(mechanism, password=PASSWORD + "-wrong", protocol=protocol))
    assert error.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"
    address = sasl_broker.bootstrap_servers_for(protocol)
    assert f"node -1 ({address}): SASL {mechanism} for user 'alice'" in error.message
    assert PASSWORD not in str(error) + caplog.text


def test_a_token_that_the_broker_refuses_fails_at_once(sasl_broker: LocalKafka) -> None:
    options = client_options("OAUTHBEARER") | {
        "sasl.login.callback.handler.class": f"{__name__}.token",
        "sasl.jaas.config": f'OAuthBearerLoginModule required extension_token="{PASSWORD}";',
    }
    error = refusal(sasl_broker, options)
    assert error.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"
    assert "SASL OAUTHBEARER for the bearer of a token" in error.message
    assert PASSWORD not in str(error)


def test_the_error_of_a_mechanism_that_the_broker_lacks_names_those_it_has(sasl_broker: LocalKafka) -> None:
    options = client_options("PLAIN") | {"bootstrap.servers": sasl_broker.bootstrap_servers_for("SCRAM")}
    error = refusal(sasl_broker, options)
    assert error.condition == "KAFKA_UNSUPPORTED_SASL_MECHANISM"
    assert "SASL PLAIN for user 'alice'" in error.message
    assert "It offers SCRAM-SHA-256; set sasl.mechanism to one of them." in error.message


def test_sasl_on_a_listener_without_it_fails_at_once(sasl_broker: LocalKafka) -> None:
    options = client_options("PLAIN") | {"bootstrap.servers": sasl_broker.bootstrap_servers}
    error = refusal(sasl_broker, options)
    assert error.condition == "KAFKA_ILLEGAL_SASL_STATE"
    assert "This listener does not seem to use SASL" in error.message


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_no_sasl_on_a_listener_with_it_fails_at_once(sasl_broker: LocalKafka, protocol: str) -> None:
    """Brokers hang up on whoever does not log in, as they do when they go down: it took max.block.ms, a minute, to be told."""
    listener = {"PLAINTEXT": "SASL_PLAINTEXT", "SSL": "SASL_SSL"}[protocol]
    options = {"security.protocol": protocol, "bootstrap.servers": sasl_broker.bootstrap_servers_for(listener)}
    if protocol == "SSL":
        options["ssl.truststore.certificates"] = AUTHORITY.pem
    error = refusal(sasl_broker, options)
    assert isinstance(error, AuthenticationError)
    assert error.condition == "KAFKA_AUTHENTICATION_FAILED"
    assert f"node -1 ({options['bootstrap.servers']}): this listener demands a login" in error.message
    for mechanism in MECHANISMS:
        assert mechanism in error.message


def test_the_error_of_a_listener_that_hangs_up_has_the_likely_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,), daemon=True)
        thread.start()
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        options = client_options("PLAIN") | {"bootstrap.servers": servers, "max.block.ms": "1000"}
        with KafkaProducer(options) as producer, pytest.raises(KafkaError, match="does this listener speak SASL_PLAIN") as raised:
            producer.send_columns("t", value=pa.array(["v"]))
    assert PASSWORD not in str(raised.value)


def hang_up(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.recv(100)
        connection.close()


@pytest.mark.parametrize(
    ("user", "topic", "condition", "remedy"),
    [
        (
            "alice",
            "other-rows",
            "KAFKA_TOPIC_AUTHORIZATION_FAILED",
            "Grant the user WRITE on the topic 'other-rows'.",
        ),  # not even DESCRIBE
        ("alice", "readonly-rows", "KAFKA_TOPIC_AUTHORIZATION_FAILED", "WRITE on the topic 'readonly-rows'"),
        ("bob", "alice-rows", "KAFKA_CLUSTER_AUTHORIZATION_FAILED", "grant IDEMPOTENT_WRITE on the cluster"),
    ],
)
def test_a_missing_permission_fails_at_once(sasl_broker: LocalKafka, user: str, topic: str, condition: str, remedy: str) -> None:
    error = refusal(sasl_broker, client_options("PLAIN", user), topic)
    assert error.condition == condition
    assert remedy in error.message


def test_without_idempotence_the_missing_permission_is_that_on_the_topic(sasl_broker: LocalKafka) -> None:
    error = refusal(sasl_broker, client_options("PLAIN", "bob") | {"enable.idempotence": "false"})
    assert error.condition == "KAFKA_TOPIC_AUTHORIZATION_FAILED"


class Requests:
    """Sends single requests to a broker, as a producer's Sender would."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._clock = Clock()
        config = ProducerConfig.from_mapping(options)
        self._metadata = Metadata(config, self._clock)
        self._network = NetworkClient(config, self._metadata, self._clock)

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        self._network.close()

    def ask(self, message: Request[Any]) -> Any:
        """The answer of any node."""
        answers: list[ClientResponse] = []
        until_ms = self._clock.now_ms() + SECONDS * 1000
        while not answers:
            now_ms = self._clock.now_ms()
            assert now_ms < until_ms, "no answer"
            node = self._network.least_loaded_node(now_ms)
            if node is not None and self._network.in_flight_request_count() == 0 and self._network.ready(node, now_ms):
                self._network.send(ClientRequest(node, message, now_ms, True, 5000, answers.append, None), now_ms)
            self._network.poll(100, now_ms)
        return answers[0].message


def test_a_missing_permission_on_a_transactional_id_is_a_fatal_error_of_its_own(sasl_broker: LocalKafka) -> None:
    """Brokers look at the permission before anything else, so that any of them answers."""

    def asked_for(name: str) -> ErrorCode:
        message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
        return Errors.for_code(client.ask(message).error_code)

    with Requests(options_for(sasl_broker, client_options("SCRAM-SHA-512"))) as client:
        allowed, refused = asked_for("alice-transactions"), asked_for("other-transactions")
    assert not allowed or allowed.is_retriable  # its coordinator may still be loading
    error = refused.exception("InitProducerId for other-transactions on node 1")
    assert isinstance(error, AuthorizationError)
    assert str(error) == (
        "[KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED] InitProducerId for other-transactions on node 1: This user needs the WRITE"
        " permission on the transactional id."
    )
    assert not refused.is_retriable
    assert next_step(refused, BatchFacts(1, may_retry=True, sequence=SequenceFacts(is_idempotent=True))) is NextStep.FATAL


# FROM SPARK


def spark_options(broker: LocalKafka, options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options_for(broker, options).items()}


@pytest.mark.parametrize(("protocol", "mechanism"), [("SASL_PLAINTEXT", "SCRAM-SHA-512"), ("SASL_SSL", "PLAIN")])
def test_the_options_of_sparks_own_sink_work_unchanged(
    spark: SparkSession, sasl_broker: LocalKafka, protocol: str, mechanism: str
) -> None:
    options = spark_options(sasl_broker, client_options(mechanism, protocol=protocol)) | {"topic": "alice-spark"}
    written = {f"{sink} {mechanism} {i}" for sink in ("kafka", FORMAT) for i in range(3)}
    for sink in ("kafka", FORMAT):
        df = spark.range(3).selectExpr(f"concat('{sink} {mechanism} ', id) AS value")
        df.write.format(sink).mode("append").options(**options).save()
    assert written <= set(values(sasl_broker, "alice-spark"))


def test_the_write_that_the_security_page_shows_arrives(
    spark: SparkSession, sasl_broker: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the option for the truststore to save(): users put it together from two fragments before."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    code = code_block("# SASL over TLS").replace("broker1.example.com:9093", sasl_broker.bootstrap_servers_for("SASL_SSL"))
    code = code.replace("/etc/kafka/ca.pem", str(tmp_path / "ca.pem")).replace('"orders"', '"alice-spark"')
    df = spark.sql("SELECT 'as the page shows' AS value")
    exec(compile(code, "docs/security.md", "exec"), {"df": df})
    assert "as the page shows" in values(sasl_broker, "alice-spark")


@pytest.mark.usefixtures("verbose_tracebacks")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_task_that_is_refused_is_so_at_once_and_shows_no_password(
    spark: SparkSession, sasl_broker: LocalKafka, mechanism: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = spark_options(sasl_broker, PATIENT | client_options(mechanism, password=PASSWORD + "-wrong")) | {
        "topic": "alice-spark"
    }
    df = spark.range(3).selectExpr("cast(id as string) AS value")
    save: Callable[[], object] = df.write.format(FORMAT).mode("append").options(**options).save
    message = error_of(save)
    output = capfd.readouterr()
    assert "KAFKA_SASL_AUTHENTICATION_FAILED" in conditions(message)
    assert "user 'alice'" in message
    assert PASSWORD not in message + output.out + output.err
