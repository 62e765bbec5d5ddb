"""network/network_client.py with SASL, over a fake Selector: logging in, logging in again, being refused, waiting for tokens.

The claims of Kafka's SaslAuthenticatorTest and NetworkClientTest that concern the client.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector, SentRequest
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.network_config import api_versions, metadata, network_config, topic
from tests.fakes.sasl_server import Refused, SaslServer

CANARY = "canary-7Qx2"
LIFETIME_MS = 100_000
INIT = InitProducerIdRequest(transaction_timeout_ms=1000)


class SaslNet:
    """Brokers 0 and 1, each of which lets alice in with her password for LIFETIME_MS."""

    def __init__(self, mechanism: str = "SCRAM-SHA-256", password: str = CANARY, seed: int = 0, **options: object) -> None:
        self.clock = ManualClock()
        module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        sasl: dict[str, object] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_jaas_config": f'{module} required username="alice" password="{password}";',
        }
        if mechanism == "OAUTHBEARER":
            sasl["sasl_jaas_config"] = f"OAuthBearerLoginModule required token={CANARY};"
            sasl["sasl_login_callback_handler_class"] = f"{__name__}.token"
        self.config = network_config(**(sasl | options))
        self.metadata = Metadata(self.config, self.clock, random=Random(0))
        self.selector = FakeSelector(self.clock)
        self.worker = FakeWorker()
        self.client = NetworkClient(
            self.config,
            self.metadata,
            self.clock,
            selector=self.selector,
            resolve_host=lambda host, port: [Address(2, (host, port))],
            random=Random(seed),
            worker=self.worker,
        )
        self.users = {"alice": CANARY}
        self.lifetime_ms = LIFETIME_MS
        self.servers: dict[int, SaslServer] = {}
        self.answers_logins = True
        self.selector.answer = self.answer

    def answer(self, request: SentRequest) -> Message | None:
        message = request.message
        if isinstance(message, ApiVersionsRequest):
            return api_versions()
        if isinstance(message, MetadataRequest):
            return metadata(topic("orders", [0, 1]))
        if isinstance(message, SaslHandshakeRequest) and self.answers_logins:
            self.servers[request.node_id] = SaslServer(message.mechanism, self.users)
            return SaslHandshakeResponse(mechanisms=(message.mechanism,))
        if isinstance(message, SaslAuthenticateRequest) and self.answers_logins:
            return self.authenticate(request.node_id, message.auth_bytes)
        return None

    def authenticate(self, node_id: int, message: bytes) -> SaslAuthenticateResponse:
        server = self.servers[node_id]
        try:
            challenge = server.evaluate(message)
        except Refused as refused:
            return SaslAuthenticateResponse(error_code=58, error_message=str(refused))
        return SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=self.lifetime_ms if server.complete else 0)

    def poll(self, times: int = 1, timeout_ms: int = 10) -> list[ClientResponse]:
        return [response for _ in range(times) for response in self.client.poll(timeout_ms, self.clock.now_ms())]

    def ready(self, node_id: int) -> bool:
        return self.client.ready(node_id, self.clock.now_ms())

    def connect(self, *node_ids: int) -> None:
        for _ in range(40):
            missing = [node_id for node_id in node_ids if not self.ready(node_id)]
            if not missing and not self.metadata.cluster().is_bootstrap:
                return
            self.poll()
        raise AssertionError(f"{node_ids} are not ready")

    def send(self, node_id: int = 0, **fields: Any) -> SentRequest:
        values: dict[str, Any] = {"expect_response": True, "request_timeout_ms": 10_000}
        self.client.send(ClientRequest(node_id, INIT, self.clock.now_ms(), **(values | fields)), self.clock.now_ms())
        return self.selector.sent_requests[-1]

    def logins(self, node_id: int) -> int:
        return len([request for request in self.selector.sent_of(ApiKey.SASL_HANDSHAKE) if request.node_id == node_id])

    def answer_login(self, request: SentRequest) -> None:
        """Late."""
        self.answers_logins = True
        answer = self.answer(request)
        assert answer is not None
        self.selector.respond(request, answer)

    def poll_and_raise(self) -> None:
        for _ in range(20):
            self.poll()
            self.metadata.raise_error_for_topic("")

    def fail_to_log_in(self) -> AuthenticationError:
        with pytest.raises(AuthenticationError) as raised:
            self.poll_and_raise()
        return raised.value


def token(options: dict[str, str]) -> str:
    if options["token"] != CANARY:
        raise LookupError("no token for you")
    return options["token"]


# LOGGING IN


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_connection_is_ready_when_it_has_logged_in(mechanism: str) -> None:
    net = SaslNet(mechanism)
    net.connect(0)
    assert net.servers[0].complete
    kinds = [
        (ApiKey(request.header.api_key), request.header.api_version)
        for request in net.selector.sent_requests
        if request.node_id == 0
    ]
    exchange = [(ApiKey.SASL_AUTHENTICATE, 2)] * (2 if mechanism.startswith("SCRAM") else 1)
    assert kinds[: 3 + len(exchange)] == [
        (ApiKey.API_VERSIONS, 0), (ApiKey.SASL_HANDSHAKE, 1), *exchange, (ApiKey.API_VERSIONS, 4),
    ]  # fmt: skip


def test_nothing_is_sent_before_the_login_is_complete() -> None:
    net = SaslNet()
    net.connect(0)
    net.answers_logins = False
    net.ready(1)
    net.poll(5)
    assert not net.ready(1)
    assert {ApiKey(request.header.api_key) for request in net.selector.sent_requests if request.node_id == 1} == {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
    }


def test_a_broker_that_never_answers_a_login_is_given_up_in_time() -> None:
    net = SaslNet(request_timeout_ms=1000)
    net.answers_logins = False
    net.poll(4)
    net.clock.advance(1001)
    net.poll()
    assert net.selector.closed
    assert "request.timeout.ms" in (net.metadata.last_connection_error() or "")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_refused_credentials_reach_whoever_waits_with_node_and_user(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    net = SaslNet(mechanism, password="wrong-" + CANARY)
    error = net.fail_to_log_in()
    assert error.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"
    assert error.message.startswith("node -")
    assert f": SASL {mechanism} for user 'alice': " in error.message
    assert CANARY not in str(error) + caplog.text
    failed = net.selector.closed[-1]
    assert len(net.selector.closed) == 2  # one attempt with each
    assert str(net.client.login_rejection(failed)) == str(error)
    assert net.client.is_disconnected(failed)


def test_an_impostor_is_not_told_anything_and_its_connection_is_closed() -> None:
    """A server that accepts any proof, but cannot sign for the password."""
    net = SaslNet()
    net.authenticate = lambda *_: SaslAuthenticateResponse(auth_bytes=b"v=AAAA")
    assert net.fail_to_log_in().condition == "KAFKA_ILLEGAL_SASL_CHALLENGE"
    assert net.selector.closed
    assert not net.selector.sent_of(ApiKey.METADATA)


def test_what_is_refused_is_tried_again_only_after_back_off() -> None:
    net = SaslNet(password="wrong")
    net.fail_to_log_in()
    failed = net.selector.closed[-1]
    assert 40 <= net.client.poll_delay_ms(failed, net.clock.now_ms()) <= 120


# LOGGING IN AGAIN (KIP-368)


def due(net: SaslNet, node_id: int = 0) -> None:
    """To the time when its session must have been renewed."""
    net.clock.advance(int(LIFETIME_MS * 0.95))
    assert not net.client.can_send(node_id, net.clock.now_ms())


def test_a_session_is_renewed_on_the_open_connection_before_it_ends() -> None:
    net = SaslNet()
    net.connect(0)
    attempts = len(net.selector.attempts)
    net.clock.advance(int(LIFETIME_MS * 0.85) - 100)
    assert net.ready(0)
    net.clock.advance(int(LIFETIME_MS * 0.1) + 100)
    assert not net.ready(0)
    net.connect(0)
    assert net.logins(0) == 2
    assert len(net.selector.attempts) == attempts
    assert net.selector.closed == []
    due(net)
    net.connect(0)
    assert net.logins(0) == 3


def test_the_first_step_is_sent_at_once() -> None:
    """The first step once waited for a poll to end, which nothing but the next row's linger did."""
    net = SaslNet()
    net.connect(0)
    due(net)
    net.ready(0)
    assert isinstance(net.selector.sent_requests[-1].message, SaslHandshakeRequest)


def test_requests_in_flight_are_answered_during_a_renewal_and_new_ones_wait() -> None:
    net = SaslNet()
    net.connect(0)
    first = net.send(request_timeout_ms=10 * LIFETIME_MS)
    net.poll()
    due(net)
    net.answers_logins = False
    assert not net.ready(0)
    net.selector.respond(first, InitProducerIdResponse(producer_id=7))
    net.answer_login(net.selector.sent_requests[-1])
    (response,) = net.poll(4)
    assert response.message.producer_id == 7
    net.connect(0)
    assert net.logins(0) == 2
    net.send()


def test_a_renewal_waits_for_a_free_place_in_flight() -> None:
    net = SaslNet(max_in_flight_requests_per_connection=1)
    net.connect(0)
    first = net.send(request_timeout_ms=10 * LIFETIME_MS)
    net.poll()
    due(net)
    net.ready(0)
    net.poll(3)
    assert net.logins(0) == 1
    net.selector.respond(first, InitProducerIdResponse(producer_id=7))
    net.connect(0)
    assert net.logins(0) == 2


def test_metadata_renews_a_session_too() -> None:
    net = SaslNet(metadata_max_age_ms=LIFETIME_MS // 2)
    net.connect(0)
    request_count = len(net.selector.sent_of(ApiKey.METADATA))
    due(net)
    net.poll(20)
    assert len(net.selector.sent_of(ApiKey.METADATA)) > request_count


def test_a_connection_that_nobody_uses_is_left_to_become_idle() -> None:
    net = SaslNet(metadata_max_age_ms=100 * LIFETIME_MS)
    net.connect(0)
    net.clock.advance(10 * LIFETIME_MS)
    net.poll(5)
    assert net.logins(0) == 1


def test_a_session_without_an_end_is_not_renewed() -> None:
    net = SaslNet(metadata_max_age_ms=100 * LIFETIME_MS)
    net.lifetime_ms = 0
    net.connect(0)
    net.clock.advance(10 * LIFETIME_MS)
    assert net.ready(0)
    assert net.logins(0) == 1


def test_a_session_that_ends_at_once_does_not_keep_anything_from_being_sent() -> None:
    """Such a session was due for renewal each time that somebody asked, and nothing was ever sent."""
    net = SaslNet()
    net.lifetime_ms = 1
    net.connect(0)
    net.clock.advance(900)
    assert net.ready(0)
    net.clock.advance(200)
    assert not net.ready(0)
    net.connect(0)
    assert net.logins(0) == 2


def test_not_all_sessions_are_renewed_at_the_same_time() -> None:
    moments = set()
    for seed in range(20):
        net = SaslNet(seed=seed)
        net.connect(0)
        due = (after_ms for after_ms in range(0, LIFETIME_MS, 50) if not net.client.can_send(0, net.clock.now_ms() + after_ms))
        moments.add(next(due))
    assert len(moments) > 15
    assert all(0.84 * LIFETIME_MS <= moment <= 0.95 * LIFETIME_MS + 50 for moment in moments)


def test_a_refused_renewal_closes_the_connection_and_reaches_whoever_waits() -> None:
    net = SaslNet()
    net.connect(0)
    net.users["alice"] = "changed"
    due(net)
    net.ready(0)
    net.poll(4)
    assert net.selector.closed == [0]
    assert "broker0:9010: SASL SCRAM-SHA-256 for user 'alice'" in (net.metadata.last_connection_error() or "")
    assert net.client.login_rejection(0) is None
    assert re.search(r"node 1 .*user 'alice'", str(net.fail_to_log_in()))  # the last one to refuse us
    assert net.selector.closed == [0, 1]
    assert re.search(r"node 0 .*user 'alice'", str(net.client.login_rejection(0)))


def test_a_connection_lost_while_logging_in_again_is_made_anew() -> None:
    net = SaslNet()
    net.connect(0)
    due(net)
    net.answers_logins = False
    net.ready(0)
    net.poll()
    net.selector.lose(0)
    net.poll()
    assert net.client.is_disconnected(0)
    net.answers_logins = True
    net.clock.advance(1000)
    net.connect(0)


def test_a_lost_connection_forgets_its_session() -> None:
    net = SaslNet()
    net.connect(0)
    net.selector.lose(0)
    net.poll()
    net.clock.advance(2 * LIFETIME_MS)
    net.connect(0)
    assert net.logins(0) == 2


# WAITING FOR A TOKEN


def test_other_connections_go_on_while_one_waits_for_its_token() -> None:
    net = SaslNet("OAUTHBEARER")
    net.connect(0)
    net.worker.holds_logins = True
    net.ready(1)
    net.poll(4)
    assert 1 in net.worker.waiting
    request = net.send(0)
    net.selector.respond(request, InitProducerIdResponse(producer_id=7))
    assert len(net.poll(2)) == 1
    net.worker.holds_logins = False
    net.connect(1)


def test_a_token_that_does_not_come_in_time_closes_the_connection() -> None:
    net = SaslNet("OAUTHBEARER", request_timeout_ms=1000)
    net.connect(0)
    net.worker.holds_logins = True
    net.ready(1)
    net.poll(4)
    net.clock.advance(1001)
    net.poll()
    assert 1 in net.selector.closed
    assert net.worker.waiting == {}
    assert "the token source or the Kerberos server does not answer" in (net.metadata.last_connection_error() or "")
    assert net.client.login_rejection(1) is None  # it may come the next time
    net.worker.holds_logins = False
    net.clock.advance(1000)
    net.connect(1)


def test_a_connection_lost_while_it_waits_for_its_token_is_forgotten() -> None:
    net = SaslNet("OAUTHBEARER")
    net.connect(0)
    net.worker.holds_logins = True
    net.ready(1)
    net.poll(4)
    net.selector.lose(1)
    net.poll()
    assert net.worker.waiting == {}


def test_what_a_token_callback_raises_is_named_in_the_error() -> None:
    net = SaslNet("OAUTHBEARER", sasl_jaas_config="OAuthBearerLoginModule required token=other;")
    error = net.fail_to_log_in()
    assert error.condition == "KAFKA_LOGIN_FAILED"
    assert "SASL OAUTHBEARER for the bearer of a token: LookupError: 'no token for you'" in error.message or (
        "LookupError: no token for you" in error.message
    )


# A LISTENER OF ANOTHER KIND


def test_the_error_after_a_broker_hangs_up_on_a_login_has_the_likely_cause() -> None:
    net = SaslNet()
    net.answers_logins = False
    net.poll(3)
    node_id, _ = net.selector.attempts[0]
    net.selector.lose(node_id, "the broker closed the connection")
    net.poll()
    assert "before it was ready; does this listener speak SASL_PLAINTEXT?" in (net.metadata.last_connection_error() or "")


def test_without_sasl_there_is_no_login_and_what_makes_one_is_not_imported() -> None:
    """Each Python worker of Spark would pay for http, json and email, which some mechanisms need."""
    code = (
        "import sys; from spark_kafka_sink import KafkaProducer; KafkaProducer({'bootstrap.servers': '127.0.0.1:9'}).close(0);"
        "sys.exit('spark_kafka_sink.network.sasl.factory' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
