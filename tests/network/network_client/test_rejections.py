"""network/network_client.py: brokers that do not let us in, and brokers that hang up instead of saying so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
)
from spark_kafka_sink.network import connection_setup
from spark_kafka_sink.network.handshake import Handshake, HandshakeRequest
from spark_kafka_sink.network.selector import ChannelState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.fake_selector import SentRequest
from tests.network.network_client.harness import INIT_RESPONSE, Net


def test_a_broker_that_refuses_the_handshake_is_disconnected(net: Net) -> None:
    net.connect()
    net.selector.answer = lambda _: ApiVersionsResponse(error_code=42)
    net.ready(1)
    net.poll(3)
    assert net.client.is_disconnected(1)
    assert "KAFKA_INVALID_REQUEST" in (net.metadata.last_connection_error() or "")


def test_a_refusal_that_comes_with_the_end_of_the_connection_is_one_failure(net: Net) -> None:
    net.connect()
    net.selector.answer = lambda _: ApiVersionsResponse(error_code=42)
    net.ready(1)
    net.poll()
    net.selector.lose(1)
    net.poll()
    assert 40 <= net.client.poll_delay_ms(1, net.clock.now_ms()) <= 60  # the back-off after a first failure
    assert "KAFKA_INVALID_REQUEST" in (net.metadata.last_connection_error() or "")


def test_refused_authentication_reaches_whoever_waits(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Handshake:
        yield HandshakeRequest(ApiVersionsRequest(), 0)
        raise AuthenticationError("user unknown")

    monkeypatch.setattr(connection_setup, "handshake", refused)
    net.poll(4)
    assert "user unknown" in (net.metadata.last_connection_error() or "")
    net.metadata.raise_error_for_topic("orders")  # the other one may accept us
    net.poll(20)
    assert {node_id for node_id, _ in net.selector.attempts[:2]} == {-1, -2}
    with pytest.raises(AuthenticationError, match="user unknown"):
        net.metadata.await_update(net.metadata.request_update("test"), 10)


REFUSED = AuthenticationError("certificate has expired", condition="KAFKA_SSL_AUTHENTICATION_FAILED")


def refuse(net: Net, node_id: int) -> None:
    net.ready(node_id)
    net.selector.refuse(node_id, REFUSED)
    net.poll()


def poll_until_refused(net: Net, message: str, before_each: Callable[[], None] = lambda: None) -> None:
    """Somebody waits for metadata, and gets the refusal."""

    def poll() -> None:
        for _ in range(100):
            net.metadata.raise_error_for_topic("orders")
            before_each()
            net.poll(timeout_ms=50)

    with pytest.raises(AuthenticationError, match=message):
        poll()


def test_one_refusal_gives_up_nothing_and_a_second_only_what_waits_for_that_broker(net: Net) -> None:
    """One refused login failed every row, also those in flight to other brokers; a Spark task then wrote them twice.

    A broker that has just been started may not have read all users, or its own certificate, yet.
    """
    net.connect(0)
    net.selector.holds_connects = True
    refuse(net, 1)
    assert "broker1:9011: certificate has expired" in (net.metadata.last_connection_error() or "")
    assert net.client.login_rejection(1) is None
    net.clock.advance(2000)
    refuse(net, 1)
    assert (
        str(net.client.login_rejection(1)) == "[KAFKA_SSL_AUTHENTICATION_FAILED] node 1 (broker1:9011): certificate has expired"
    )
    assert net.client.login_rejection(0) is None
    assert net.client.rejection_by_all() is None
    net.metadata.raise_error_for_topic("orders")  # whoever waits for metadata waits for node 0


def test_a_broker_that_accepts_us_at_the_second_try_starts_afresh(net: Net) -> None:
    net.connect(0)
    for _ in range(3):
        net.selector.holds_connects = True
        refuse(net, 1)
        assert net.client.login_rejection(1) is None
        net.selector.holds_connects = False
        net.clock.advance(2000)
        net.connect(1)
        net.selector.respond(net.send(1), INIT_RESPONSE)
        net.poll(2)
        net.selector.lose(1)
        net.poll()
        net.clock.advance(2000)


def test_there_is_no_refusal_while_the_next_attempt_is_under_way(net: Net) -> None:
    net.connect(0)
    net.selector.holds_connects = True
    for _ in range(2):
        refuse(net, 1)
        net.clock.advance(2000)
    assert net.client.login_rejection(1) is not None
    net.ready(1)
    net.poll()
    assert net.client.login_rejection(1) is None


def test_when_each_broker_refuses_us_nothing_waits_for_a_second_try(net: Net) -> None:
    net.connect(0)
    net.selector.refuse(0, REFUSED)
    net.poll()
    assert net.client.login_rejection(0) is None
    refuse(net, 1)
    assert net.client.login_rejection(0) is not None
    assert net.client.login_rejection(1) is not None
    assert net.client.rejection_by_all() is not None
    with pytest.raises(AuthenticationError, match="certificate has expired"):
        net.metadata.raise_error_for_topic("orders")


def test_a_refusal_is_raised_although_other_brokers_cannot_be_reached(net: Net) -> None:
    """One bootstrap server is away and the other refuses the login: nobody is left."""
    net.selector.refused = {9001: "no route to host"}
    poll_until_refused(net, "certificate has expired", before_each=lambda: net.selector.refuse(-2, REFUSED))
    assert len([node_id for node_id, _ in net.selector.attempts if node_id == -2]) == 2


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_broker_that_is_not_trusted_is_named_in_the_error_of_whoever_waits(
    net: Net, is_ready: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net.connect()  # with metadata, from which node 1 is known
    if is_ready:
        net.connect(1)
    else:
        net.selector.holds_connects = True
        net.ready(1)
    net.selector.refuse(1, REFUSED)
    net.poll()
    assert net.client.is_disconnected(1)
    assert [record.levelname for record in caplog.records if "certificate has expired" in record.message] == ["ERROR"]
    assert "broker1:9011: certificate has expired" in (net.metadata.last_connection_error() or "")
    net.selector.holds_connects = False
    net.clock.advance(2000)
    net.connect(1)  # after its back-off it may be tried again
    assert net.metadata.last_connection_error() is None


def reconnect(net: Net) -> None:
    net.selector.lose(1)
    net.poll()
    net.clock.advance(2000)
    net.connect(1)


def asked_for_logins(net: Net) -> int:
    return len(net.selector.sent_of(ApiKey.SASL_HANDSHAKE))


def test_a_broker_that_hung_up_unanswered_is_asked_once_which_logins_it_demands(net: Net) -> None:
    net.connect(1)
    assert asked_for_logins(net) == 0
    reconnect(net)
    assert asked_for_logins(net) == 1
    net.selector.respond(net.send(1), INIT_RESPONSE)
    net.poll(2)
    reconnect(net)  # it has answered: nobody doubts it any more
    assert asked_for_logins(net) == 1
    assert net.client.login_rejection(1) is None


def hang_up_on(net: Net, *kinds: type[Message]) -> None:
    """From now on brokers that name mechanisms close the connection instead of answering such a request."""
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))

    def hang_up(request: SentRequest) -> Message | None:
        if isinstance(request.message, kinds):
            net.selector.lose(request.node_id)
            return None
        return net.answer(request) or (INIT_RESPONSE if isinstance(request.message, InitProducerIdRequest) else None)

    net.selector.answer = hang_up


def test_a_broker_that_hangs_up_on_metadata_after_telling_its_logins_demands_one(net: Net) -> None:
    net.connect(1)
    hang_up_on(net, MetadataRequest)
    net.selector.lose(1)
    net.poll()
    net.clock.advance(2000)
    net.ready(1)
    net.poll(4)
    error = net.client.login_rejection(1)  # it has hung up twice
    assert error is not None
    assert error.message.startswith("node 1 (broker1:9011): this listener demands a login")
    assert error.message.endswith("one of those it offers: PLAIN")


def test_a_broker_that_hangs_up_on_one_request_demands_no_login(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    """Redpanda names mechanisms on any listener. One that closed the connection at Produce, twice, was said to demand a login,
    though it answered everything else: all rows failed, and the user looked for a login that is not needed."""
    net.connect(1)
    hang_up_on(net, ProduceRequest)
    for _ in range(4):
        net.clock.advance(2000)
        net.connect(1)
        net.send(1, ProduceRequest(acks=1, timeout_ms=1, topic_data=()))
        net.poll(3)
        assert net.client.is_disconnected(1)
        assert net.client.login_rejection(1) is None
    net.metadata.raise_error_for_topic("orders")
    assert asked_for_logins(net) >= 1
    last_warning = [record.getMessage() for record in caplog.records if "node 1" in record.getMessage()][-1]
    assert "(instead of answering Produce v" in last_warning
    assert "security.protocol" not in last_warning


def test_a_listener_that_gets_sasl_later_is_found_out_all_the_same(net: Net) -> None:
    net.connect(1)
    net.selector.respond(net.send(1), INIT_RESPONSE)
    net.poll(2)
    hang_up_on(net, MetadataRequest, InitProducerIdRequest)
    net.selector.lose(1)
    for _ in range(3):
        net.poll(4)
        net.clock.advance(2000)
        net.ready(1)
    assert "demands a login" in str(net.client.login_rejection(1))


def test_a_cluster_that_demands_a_login_raises_for_whoever_waits(net: Net) -> None:
    """No broker lets anybody in; each connection becomes ready, and is lost at the first request."""
    hang_up_on(net, MetadataRequest)
    poll_until_refused(net, "one of those it offers: PLAIN")
    assert len(net.selector.attempts) == 4


def test_a_connection_that_was_doubted_and_never_used_may_be_closed_as_idle(net: Net) -> None:
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.connect(1)
    reconnect(net)
    net.selector.lose(1, "idle", ChannelState.EXPIRED)
    net.poll()
    assert net.client.login_rejection(1) is None


def test_a_broker_that_names_its_logins_and_answers_is_no_longer_doubted(net: Net) -> None:
    """Redpanda does, on listeners that demand none; a restart of it must not end a write."""
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.connect(1)
    reconnect(net)
    net.selector.respond(net.send(1), INIT_RESPONSE)
    net.poll(2)
    for _ in range(2):
        reconnect(net)
        assert net.client.login_rejection(1) is None
        net.selector.respond(net.send(1), INIT_RESPONSE)
        net.poll(2)
