"""config/producer_rules.py: what options of the producer require of each other."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from tests.config.configurations import SERVERS, problem, read


@pytest.mark.parametrize("weaker", [{"acks": "1"}, {"acks": "0"}, {"retries": "0"}])
def test_idempotence_gives_way_to_acks_and_retries_unless_it_was_asked_for(weaker: dict[str, object]) -> None:
    assert not ProducerConfig.from_mapping(SERVERS | weaker).enable_idempotence
    assert "Must set " in problem({**weaker, "enable.idempotence": "true"})


def test_idempotence_needs_at_most_five_requests_in_flight() -> None:
    assert "must be set to at most 5. Current value is 6." in problem({"max.in.flight.requests.per.connection": 6})
    assert read(max_in_flight_requests_per_connection=6, enable_idempotence=False).max_in_flight_requests_per_connection == 6


def test_a_transactional_id_contradicts_idempotence_switched_off() -> None:
    message = problem({"transactional.id": "t", "enable.idempotence": "false"})
    assert "Cannot set a transactional.id without also enabling idempotence." in message


def test_two_phase_commit_contradicts_a_transaction_timeout() -> None:
    message = problem({"transaction.two.phase.commit.enable": "true", "transaction.timeout.ms": "1"})
    assert "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true." in message


def test_an_explicit_delivery_timeout_below_linger_and_request_timeout_is_refused() -> None:
    message = problem({"delivery.timeout.ms": "30004"})
    assert message.startswith("delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms")
    assert read(delivery_timeout_ms=30_005).delivery_timeout_ms == 30_005


def test_an_implicit_delivery_timeout_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert read(request_timeout_ms=200_000).delivery_timeout_ms == 200_005
    assert "delivery.timeout.ms is raised from 120000 to 200005" in caplog.text
    assert read(linger_ms=2**31 - 1).delivery_timeout_ms == 2**31 - 1


def test_a_malformed_option_is_one_problem_and_no_rule_adds_another() -> None:
    assert problem({"delivery.timeout.ms": "5", "linger.ms": "x"}).count("\n") == 0


REFERENCE = "${file:/path:key}"  # an invalid value of each option
PEM_TEXTS = ("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates")
STORES = ("ssl.keystore.location", "ssl.keystore.password", "ssl.truststore.location", "ssl.truststore.password")
ENDPOINT: dict[str, object] = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://login/token"}
CLIENT = dict.fromkeys((f"sasl.oauthbearer.client.credentials.client.{each}" for each in ("id", "secret")), "x")
JWT_BEARER = {"sasl.oauthbearer.jwt.retriever.class": "JwtBearerJwtRetriever", "sasl.oauthbearer.assertion.file": "jwt"}


@pytest.mark.parametrize(
    "complete",
    [
        {"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "kafka"},
        {"security.protocol": "SASL_SSL", **ENDPOINT, **CLIENT},
        {"security.protocol": "SASL_SSL", **ENDPOINT, **JWT_BEARER},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "a.b"},
        {"security.protocol": "SSL", **dict.fromkeys(PEM_TEXTS, "x")},
        {"security.protocol": "SSL", **dict.fromkeys(STORES, "x")},
        {"socket.connection.setup.timeout.ms": "60000", "socket.connection.setup.timeout.max.ms": "60000"},
    ],
)
def test_no_rule_reads_a_default_for_an_invalid_value(
    complete: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid sasl.kerberos.service.name was said to be missing too, an invalid maximum to lower what is below it."""
    monkeypatch.setenv("PYKAFKA_SINK_OAUTHBEARER_ALLOWED_FILES", "jwt")
    ProducerConfig.from_mapping(SERVERS | complete)
    for key in complete:
        assert "\n" not in problem({**complete, key: REFERENCE})
    assert "is lowered" not in caplog.text


def test_reconnect_backoff_alone_is_constant() -> None:
    assert read(reconnect_backoff_ms=3000).reconnect_backoff_max_ms == 3000


def test_a_backoff_above_its_maximum_stays_at_the_maximum(caplog: pytest.LogCaptureFixture) -> None:
    cfg = read(retry_backoff_ms=5000)
    assert (cfg.retry_backoff_ms, cfg.retry_backoff_max_ms) == (1000, 1000)
    assert "retry.backoff.ms is greater than retry.backoff.max.ms" in caplog.text


def test_a_client_without_a_name_gets_one_of_its_own() -> None:
    first, second = read().client_id, read().client_id
    assert first.startswith("producer-")
    assert first != second
    assert read(client_id="orders").client_id == "orders"


@pytest.mark.parametrize("key", ["client.id", "transactional.id"])
def test_a_name_that_the_protocol_cannot_carry_is_refused(key: str) -> None:
    """Encoding the request failed, which ended the Sender, and callers got the error that the producer was closed."""
    message = problem({key: "x" * 40_000})
    assert "40,000 bytes in UTF-8, but a string of Kafka's protocol has 32,767 at most" in message
    assert len(message) < 1_000
    assert "32,768 bytes" in problem({key: "é" * 16_384})
    assert len(read(client_id="é" * 16_383 + "x").client_id) == 16_384


def test_a_transactional_id_that_leaves_no_room_in_the_client_id_is_refused() -> None:
    assert "transactional.id is too long to be part of a client.id" in problem({"transactional.id": "x" * 32_767})


def test_text_that_utf_8_cannot_carry_is_refused() -> None:
    assert "Invalid value a\\ud800 for configuration client.id: It holds half of a surrogate pair" in problem(
        {"client.id": "a\ud800"}
    )


def test_a_secret_that_utf_8_cannot_carry_is_refused_and_not_shown() -> None:
    """The encoder's error, which contains the whole text, would have ended the Sender."""
    message = problem({"security.protocol": "SSL", "ssl.keystore.password": "canary\ud800"})
    assert "Invalid value [hidden] for configuration ssl.keystore.password: It holds half of a surrogate pair" in message
    assert "canary" not in message


# NOT AVAILABLE


def test_what_is_not_built_is_refused_by_name_in_one_sentence() -> None:
    message = problem({"transaction.two.phase.commit.enable": "true"})
    assert message.lower().startswith("transaction.two.phase.commit.enable=true is not available in this version: ")
    assert "\n" not in message
