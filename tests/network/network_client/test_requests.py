"""network/network_client.py over a fake Selector: the scenarios of Kafka's NetworkClientTest."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    AuthenticationError,
    NetworkError,
    ProducerClosedError,
    ResponseTooLargeError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network import connection_setup, dns, network_client
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.dns import Resolver
from spark_kafka_sink.network.handshake import Handshake, HandshakeRequest
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.selector import ChannelState
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector, Sent
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.network_config import api_versions, metadata, network_config, topic

INIT = InitProducerIdRequest(transaction_timeout_ms=1000)
INIT_RESPONSE = InitProducerIdResponse(producer_id=7, producer_epoch=0)
PRODUCE = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=())


class Net:
    """A NetworkClient with brokers 0 and 1, which answer handshakes and metadata; the test answers all else."""

    def __init__(self, config: ProducerConfig | None = None, **options: object) -> None:
        self.clock = ManualClock()
        self.config = config or network_config(**options)
        self.metadata = Metadata(self.config, self.clock, random=Random(0))
        self.selector = FakeSelector(self.clock)
        self.worker = FakeWorker()
        self.names: Resolver = lambda host, port: [Address(2, (host, port))]
        self.client = NetworkClient(
            self.config,
            self.metadata,
            self.clock,
            selector=self.selector,
            resolve_host=self.resolve,
            random=Random(0),
            worker=self.worker,
        )
        self.ranges: dict[ApiKey, tuple[int, int]] = {}
        self.logins = SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE.number)
        self.cluster: MetadataResponse | None = metadata(topic("orders", [0, 1]))
        self.selector.answer = self.answer
        self.responses: list[ClientResponse] = []  # in the order of the callbacks

    def resolve(self, host: str, port: int) -> Sequence[Address]:
        return self.names(host, port)

    def answer(self, sent: Sent) -> Message | None:
        if isinstance(sent.message, ApiVersionsRequest):
            return api_versions(self.ranges)
        if isinstance(sent.message, MetadataRequest):
            return self.cluster
        if isinstance(sent.message, SaslHandshakeRequest):
            return self.logins
        return None

    def poll(self, times: int = 1, timeout_ms: int = 10) -> list[ClientResponse]:
        return [response for _ in range(times) for response in self.client.poll(timeout_ms, self.clock.now_ms())]

    def ready(self, node_id: int) -> bool:
        return self.client.ready(node_id, self.clock.now_ms())

    def connect(self, *node_ids: int) -> None:
        """Until metadata is known and all these nodes are ready."""
        for _ in range(30):
            missing = [node_id for node_id in node_ids if not self.ready(node_id)]
            if not missing and not self.metadata.cluster().is_bootstrap:
                return
            self.poll()
        raise AssertionError(f"{node_ids} are not ready")

    def request(self, node_id: int = 0, message: Any = INIT, **fields: Any) -> ClientRequest:
        values: dict[str, Any] = {"expect_response": True, "request_timeout_ms": 1000, "callback": self.responses.append}
        return ClientRequest(node_id, message, self.clock.now_ms(), **(values | fields))

    def send(self, node_id: int = 0, message: Any = INIT, **fields: Any) -> Sent:
        self.client.send(self.request(node_id, message, **fields), self.clock.now_ms())
        return self.selector.sent[-1]


@pytest.fixture
def net() -> Net:
    return Net()


# ---- requests and responses ------------------------------------------------------------------------------------------------


def test_a_request_is_answered(net: Net) -> None:
    net.connect(0)
    sent = net.send()
    assert net.client.in_flight_request_count(0) == 1
    assert net.poll() == []
    net.selector.respond(sent, INIT_RESPONSE)
    (response,) = net.poll()
    assert response.message == INIT_RESPONSE
    assert not response.disconnected
    assert response.version == 5
    assert response.received_ms == net.clock.now_ms()
    assert net.responses == [response]
    assert net.client.in_flight_request_count() == 0


def test_sending_to_a_node_that_is_not_ready_is_a_mistake(net: Net) -> None:
    with pytest.raises(RuntimeError, match="node 0, which is not ready"):
        net.send()


def test_an_unknown_node_is_never_ready(net: Net) -> None:
    net.connect()
    assert not net.ready(99)
    assert all(node_id != 99 for node_id, _ in net.selector.attempts)


def test_a_node_that_was_learnt_without_metadata_becomes_ready(net: Net) -> None:
    """FindCoordinator may name a broker that metadata does not list yet. ready() did nothing about it, ever, and
    connection_delay_ms said 0: a caller that waited for the node went round in circles.
    """
    net.connect()
    net.client.learn_node(Node(99, "coordinator", 9099))
    net.connect(99)
    address = next(address for node_id, address in net.selector.attempts if node_id == 99)
    assert address.socket_address == ("coordinator", 9099)
    net.selector.respond(net.send(99), INIT_RESPONSE)
    assert [response.message for response in net.poll()] == [INIT_RESPONSE]


def test_a_node_that_was_learnt_can_be_lost_and_reached_again_at_another_address(net: Net) -> None:
    net.connect()
    net.client.learn_node(Node(99, "coordinator", 9099))
    net.connect(99)
    net.selector.lose(99)
    net.poll()
    assert net.client.connection_failed(99)
    net.client.learn_node(Node(99, "moved", 9098))
    net.connect(99)
    assert net.selector.attempts[-1][1].socket_address == ("moved", 9098)


def test_metadata_takes_precedence_over_what_was_learnt(net: Net) -> None:
    net.connect(0)
    net.client.learn_node(Node(1, "elsewhere", 1))
    net.connect(1)
    assert [address.socket_address for node_id, address in net.selector.attempts if node_id == 1] == [("broker1", 9011)]


def test_no_more_nodes_are_remembered_than_a_cluster_has(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_client, "MAX_LEARNT_NODES", 2)
    net.connect()
    for node_id in (97, 98, 97, 99):
        net.client.learn_node(Node(node_id, f"broker{node_id}", 9000))
    for node_id in (97, 98, 99):
        net.ready(node_id)
    net.poll(2)
    assert {node_id for node_id, _ in net.selector.attempts if node_id > 90} == {97, 99}


def test_the_newest_features_that_a_broker_told_are_those_of_the_cluster(net: Net) -> None:
    """Brokers learn of a change one after the other; one that is behind, or tells nothing, takes nothing back."""

    def told(epoch: int, level: int) -> ApiVersionsResponse:
        feature = FinalizedFeatureKey(name="transaction.version", max_version_level=level, min_version_level=level)
        return dataclasses.replace(api_versions(), finalized_features_epoch=epoch, finalized_features=(feature,))

    assert net.client.finalized_features() == (-1, {})
    net.connect(0)
    assert net.client.finalized_features() == (-1, {})
    for answer, known in (
        (told(7, 1), (7, {"transaction.version": 1})),
        (told(8, 2), (8, {"transaction.version": 2})),
        (told(7, 1), (8, {"transaction.version": 2})),
        (api_versions(), (8, {"transaction.version": 2})),
    ):
        net.selector.lose(1)
        net.poll()
        net.selector.answer = lambda sent, answer=answer: (  # type: ignore[misc]
            answer if isinstance(sent.message, ApiVersionsRequest) else net.answer(sent)
        )
        net.connect(1)
        assert net.client.finalized_features() == known


def test_responses_call_back_in_the_order_of_the_requests(net: Net) -> None:
    net.connect(0)
    sent = []
    for _ in range(3):
        sent.append(net.send())
        net.poll()
    assert [one.header.correlation_id for one in sent] == sorted(one.header.correlation_id for one in sent)
    for number, one in enumerate(sent):
        net.selector.respond(one, InitProducerIdResponse(producer_id=number))
    net.poll()
    assert [response.message.producer_id for response in net.responses] == [0, 1, 2]


def test_no_more_than_the_maximum_are_in_flight() -> None:
    net = Net(max_in_flight_requests_per_connection=2)
    net.connect(0)
    first = net.send()
    assert not net.client.ready(0, net.clock.now_ms())  # one is written at a time
    net.poll()
    net.send()
    net.poll()
    assert not net.ready(0)
    net.selector.respond(first, INIT_RESPONSE)
    net.poll()
    assert net.ready(0)


def test_a_request_without_a_response_is_complete_when_it_is_written(net: Net) -> None:
    net.connect(0)
    net.selector.holds_sends = True
    net.send(message=ProduceRequest(acks=0, timeout_ms=1, topic_data=()), expect_response=False)
    assert net.poll() == []
    net.selector.holds_sends = False
    (response,) = net.poll()
    assert response.message is None
    assert not response.disconnected
    assert net.client.in_flight_request_count() == 0


def test_a_callback_that_raises_keeps_no_other_from_running(net: Net) -> None:
    def fail(_: ClientResponse) -> None:
        raise ValueError("a bug")

    net.connect(0)
    net.send(callback=fail)
    net.poll()
    net.send()
    net.poll()
    for sent in net.selector.sent_of(ApiKey.INIT_PRODUCER_ID):
        net.selector.respond(sent, INIT_RESPONSE)
    with pytest.raises(ValueError, match="a bug"):
        net.poll()
    assert len(net.responses) == 1


@pytest.fixture
def net_of_three() -> Net:
    net = Net()
    net.cluster = metadata(topic("orders", [0, 1]), nodes=3)
    net.connect(0, 1, 2)
    return net


def fail_on_metadata(net: Net, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """A bug: the next answer with metadata makes poll raise. Returns the request that waits for it, on a node that is idle."""

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ValueError("a bug")

    net.cluster = None
    net.metadata.request_update("test", at_once=True)
    net.clock.advance(500)
    net.poll()
    monkeypatch.setattr(net.metadata, "update", fail)
    net.cluster = metadata(nodes=3)
    return net.selector.sent_of(ApiKey.METADATA)[-1]


def test_answers_that_were_taken_before_a_poll_failed_are_called_back(net_of_three: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were lost: their rows expired, their memory stayed charged, and their partitions stayed muted."""
    net = net_of_three
    first = net.send(0)
    net.poll()
    asked = fail_on_metadata(net, monkeypatch)
    net.selector.respond(first, INIT_RESPONSE)
    net.selector.respond(asked, metadata(nodes=3))
    with pytest.raises(ValueError, match="a bug"):
        net.poll()
    assert [response.message for response in net.responses] == [INIT_RESPONSE]
    net.connect(0, 1)
    assert net.poll() == []
    assert len(net.responses) == 1


def test_what_a_poll_that_failed_has_not_handled_is_handled_by_the_next(
    net_of_three: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Selector's next poll cleared it: an answer went to the request after its own, and a node whose lost connection nobody
    had noticed was never connected to again.
    """
    net = net_of_three
    answered, lost = net.send(0), net.send(1)
    net.poll()
    asked = fail_on_metadata(net, monkeypatch)
    net.selector.respond(asked, metadata(nodes=3))
    net.selector.respond(answered, INIT_RESPONSE)
    net.selector.lose(1)
    with pytest.raises(ValueError, match="a bug"):
        net.poll()
    assert net.responses == []
    net.poll()
    assert [(response.request.node_id, response.disconnected) for response in net.responses] == [
        (answered.node_id, False),
        (lost.node_id, True),
    ]
    net.connect(0, 1)


def test_a_handshake_that_fails_by_a_bug_ends_its_connection(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing in flight no time-out ended it: the node was never ready, and never connected to again."""

    def fail(*_: object, **__: object) -> Handshake:
        yield HandshakeRequest(ApiVersionsRequest(), 0)
        raise ValueError("a bug")

    net.connect(0)
    with monkeypatch.context() as patch:
        patch.setattr(connection_setup, "handshake", fail)
        net.ready(1)
        with pytest.raises(ValueError, match="a bug"):
            net.poll(10)
    assert net.client.connection_failed(1)
    assert "the handshake failed with ValueError" in (net.metadata.last_connection_error() or "")
    net.connect(1)


def test_a_request_may_have_no_callback(net: Net) -> None:
    net.connect(0)
    net.selector.respond(net.send(callback=None), INIT_RESPONSE)
    assert len(net.poll()) == 1


# ---- versions --------------------------------------------------------------------------------------------------------------


def test_the_newest_common_version_is_sent(net: Net) -> None:
    net.ranges = {ApiKey.PRODUCE: (0, 9)}
    net.connect(0)
    assert net.send(message=PRODUCE).header.api_version == 9


def test_a_request_is_never_sent_in_a_newer_version_than_it_allows(net: Net) -> None:
    net.connect(0)
    assert net.send(message=PRODUCE, max_version=12).header.api_version == 12


def test_no_version_in_common_is_called_back_without_sending(net: Net) -> None:
    net.ranges = {ApiKey.INIT_PRODUCER_ID: (0, -1)}
    net.connect(0)
    net.client.send(net.request(), net.clock.now_ms())
    assert net.selector.sent_of(ApiKey.INIT_PRODUCER_ID) == []
    (response,) = net.poll()
    assert isinstance(response.error, UnsupportedVersionError)
    assert not response.disconnected
    assert net.responses == [response]
    assert net.ready(0)


def test_a_field_that_the_version_cannot_carry_is_called_back_without_sending(net: Net) -> None:
    net.ranges = {ApiKey.INIT_PRODUCER_ID: (0, 2)}
    net.connect(0)
    request = net.request(message=InitProducerIdRequest(transaction_timeout_ms=1, producer_id=5))
    net.client.send(request, net.clock.now_ms())
    (response,) = net.poll()
    assert "cannot carry producer_id=5" in str(response.error)
    assert net.client.in_flight_request_count() == 0


def test_a_broker_too_old_for_our_metadata_is_a_fatal_error(net: Net) -> None:
    net.ranges = {ApiKey.METADATA: (0, 3)}
    net.poll(6)
    with pytest.raises(UnsupportedVersionError, match="METADATA"):
        net.metadata.await_update(net.metadata.request_update("test"), 10)


def test_a_broker_that_refuses_our_api_versions_is_asked_in_version_0(net: Net) -> None:
    def answer(sent: Sent) -> Message | None:
        if isinstance(sent.message, ApiVersionsRequest) and sent.header.api_version > 0:
            return ApiVersionsResponse(error_code=35)
        return net.answer(sent)

    net.selector.answer = answer
    net.connect(0)
    assert [sent.header.api_version for sent in net.selector.sent_of(ApiKey.API_VERSIONS)][:2] == [4, 0]


def test_a_new_connection_goes_by_the_versions_of_its_own_handshake(net: Net) -> None:
    """The broker may have been upgraded."""
    net.ranges = {ApiKey.PRODUCE: (0, 9)}
    net.connect(0)
    net.selector.lose(0)
    net.poll()
    net.ranges = {ApiKey.PRODUCE: (0, 12)}
    net.connect(0)
    assert net.send(message=PRODUCE).header.api_version == 12


# ---- lost connections --------------------------------------------------------------------------------------------------------


def test_a_lost_connection_cancels_everything_in_flight_in_order(net: Net) -> None:
    net.connect(0)
    for timeout_ms in (1000, 1001):
        net.send(request_timeout_ms=timeout_ms)
        net.poll()
    net.selector.lose(0)
    responses = net.poll()
    assert [response.request.request_timeout_ms for response in responses] == [1000, 1001]
    assert all(response.disconnected and not response.timed_out and response.message is None for response in responses)
    assert net.client.connection_failed(0)
    assert not net.ready(0)


def test_an_answer_that_arrives_with_the_end_of_the_connection_counts(net: Net) -> None:
    net.connect(0)
    first = net.send()
    net.poll()
    net.send()
    net.selector.respond(first, INIT_RESPONSE)
    net.selector.lose(0)
    responses = net.poll()
    assert [response.disconnected for response in responses] == [False, True]


def test_an_answer_to_a_request_that_is_still_being_written_ends_the_connection(net: Net) -> None:
    """Correlation ids are easily guessed. Called back at once, the request's buffers went back to the pool, and the rest of it
    was written from memory that belonged to other rows by then; the completed write then found no request and ended the Sender.
    """
    net.connect(0)
    net.selector.holds_sends = True
    sent = net.send(0)
    net.selector.respond(sent, INIT_RESPONSE)
    (response,) = net.poll()
    assert response.disconnected
    assert net.selector.closed == [0]
    assert net.client.connection_failed(0)
    net.selector.holds_sends = False
    net.connect(0)


def test_an_answer_that_comes_while_the_next_request_is_still_being_written_is_one(net: Net) -> None:
    net.connect(0)
    first = net.send(0)
    net.poll()
    net.selector.holds_sends = True
    net.send(0)
    net.selector.respond(first, INIT_RESPONSE)
    (response,) = net.poll()
    assert response.message == INIT_RESPONSE
    assert net.client.in_flight_request_count(0) == 1
    assert not net.client.connection_failed(0)


def test_a_response_larger_than_its_api_allows_ends_the_connection_and_is_told(net: Net) -> None:
    """What listens there may be no broker at all."""
    net.selector.answer = lambda _: None
    net.poll(2)
    node_id, _ = net.selector.attempts[0]
    net.selector.deliver(node_id, (1 << 20).to_bytes(4, "big"))
    net.poll()
    told = "announces a response of 1,048,576 bytes to API_VERSIONS, which is never larger than 262,144"
    assert told in str(net.metadata.last_connection_error())
    net.selector.answer = net.answer
    net.connect(0)
    net.send(0)
    net.selector.deliver(0, (100_000).to_bytes(4, "big"))
    net.poll()
    (response,) = net.responses
    assert response.disconnected
    assert isinstance(response.error, ResponseTooLargeError)
    told = "of 100,000 bytes to INIT_PRODUCER_ID, and this client takes at most 65,536"
    assert response.error.message.startswith("node 0 (")
    assert response.error.message.endswith(told)
    assert told in str(net.metadata.last_connection_error())


def test_on_a_connection_only_the_request_with_too_large_a_response_has_its_error(net: Net) -> None:
    net.connect(0)
    for _ in range(3):
        net.send(0)
        net.poll()
    net.selector.respond(net.selector.sent_of(ApiKey.INIT_PRODUCER_ID)[0], INIT_RESPONSE)
    net.selector.deliver(0, (100_000).to_bytes(4, "big"))
    net.poll()
    assert [response.disconnected for response in net.responses] == [False, True, True]
    assert [response.error is None for response in net.responses] == [True, False, True]


def test_a_lost_connection_asks_for_metadata(net: Net) -> None:
    net.connect(0, 1)
    before = len(net.selector.sent_of(ApiKey.METADATA))
    net.selector.lose(0)
    net.poll(times=20)
    assert len(net.selector.sent_of(ApiKey.METADATA)) > before


def test_bytes_that_are_no_response_end_the_connection(net: Net) -> None:
    net.connect(0)
    net.send()
    net.selector.deliver(0, b"\x7f\xff\xff\xff")
    (response,) = net.poll()
    assert response.disconnected
    assert "2,147,483,647 bytes" in (net.metadata.last_connection_error() or "")


def test_a_lost_metadata_request_is_repeated_after_back_off(net: Net) -> None:
    net.cluster = None
    net.poll(3)
    (sent,) = net.selector.sent_of(ApiKey.METADATA)
    net.selector.lose(sent.node_id)
    assert net.poll() == []  # internal requests are nobody's business
    net.cluster = metadata()
    net.connect()


def test_a_connection_that_ends_during_its_handshake_is_tried_again(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.connect()
    net.selector.answer = lambda _: None
    net.ready(1)
    net.poll(2)
    net.selector.lose(1, "the broker closed the connection")
    net.poll()
    assert net.client.connection_failed(1)
    assert "does this listener speak PLAINTEXT?" in caplog.text
    net.selector.answer = net.answer
    net.connect(1)


def test_a_connection_that_was_made_and_lost_in_the_same_moment_is_lost(net: Net) -> None:
    net.connect()
    net.ready(1)
    net.selector.lose(1)
    net.poll()
    assert net.client.connection_failed(1)
    net.connect(1)


def test_a_broker_that_refuses_the_handshake_is_disconnected(net: Net) -> None:
    net.connect()
    net.selector.answer = lambda _: ApiVersionsResponse(error_code=42)
    net.ready(1)
    net.poll(3)
    assert net.client.connection_failed(1)
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


def poll_until_refused(net: Net, told: str, before_each: Callable[[], None] = lambda: None) -> None:
    """Somebody waits for metadata, and gets the refusal."""

    def poll() -> None:
        for _ in range(100):
            net.metadata.raise_error_for_topic("orders")
            before_each()
            net.poll(timeout_ms=50)

    with pytest.raises(AuthenticationError, match=told):
        poll()


def test_one_refusal_gives_up_nothing_and_a_second_only_what_waits_for_that_broker(net: Net) -> None:
    """One refused login failed every row, also those in flight to other brokers; a Spark task then wrote them twice.

    A broker that has just been started may not have read all users, or its own certificate, yet.
    """
    net.connect(0)
    net.selector.holds_connects = True
    refuse(net, 1)
    assert "broker1:9011: certificate has expired" in (net.metadata.last_connection_error() or "")
    assert net.client.refusal(1) is None
    net.clock.advance(2000)
    refuse(net, 1)
    assert str(net.client.refusal(1)) == "[KAFKA_SSL_AUTHENTICATION_FAILED] node 1 (broker1:9011): certificate has expired"
    assert net.client.refusal(0) is None
    assert net.client.refusal_by_all() is None
    net.metadata.raise_error_for_topic("orders")  # whoever waits for metadata waits for node 0


def test_a_broker_that_accepts_us_at_the_second_try_starts_afresh(net: Net) -> None:
    net.connect(0)
    for _ in range(3):
        net.selector.holds_connects = True
        refuse(net, 1)
        assert net.client.refusal(1) is None
        net.selector.holds_connects = False
        net.clock.advance(2000)
        net.connect(1)
        net.selector.respond(net.send(1), INIT_RESPONSE)
        net.poll(2)
        net.selector.lose(1)
        net.poll()
        net.clock.advance(2000)


def test_a_refusal_is_no_longer_told_while_the_next_attempt_is_under_way(net: Net) -> None:
    net.connect(0)
    net.selector.holds_connects = True
    for _ in range(2):
        refuse(net, 1)
        net.clock.advance(2000)
    assert net.client.refusal(1) is not None
    net.ready(1)
    net.poll()
    assert net.client.refusal(1) is None


def test_when_each_broker_refuses_us_nothing_waits_for_a_second_try(net: Net) -> None:
    net.connect(0)
    net.selector.refuse(0, REFUSED)
    net.poll()
    assert net.client.refusal(0) is None
    refuse(net, 1)
    assert net.client.refusal(0) is not None
    assert net.client.refusal(1) is not None
    assert net.client.refusal_by_all() is not None
    with pytest.raises(AuthenticationError, match="certificate has expired"):
        net.metadata.raise_error_for_topic("orders")


def test_brokers_that_cannot_be_reached_do_not_keep_a_refusal_from_being_told(net: Net) -> None:
    """One bootstrap server is away and the other refuses the login: nobody is left."""
    net.selector.refused = {9001: "no route to host"}
    poll_until_refused(net, "certificate has expired", before_each=lambda: net.selector.refuse(-2, REFUSED))
    assert len([node_id for node_id, _ in net.selector.attempts if node_id == -2]) == 2


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_broker_that_is_not_trusted_is_told_by_name_to_whoever_waits(
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
    assert net.client.connection_failed(1)
    assert [record.levelname for record in caplog.records if "certificate has expired" in record.message] == ["ERROR"]
    assert "broker1:9011: certificate has expired" in (net.metadata.last_connection_error() or "")
    net.selector.holds_connects = False
    net.clock.advance(2000)
    net.connect(1)  # after its back-off it may be tried again
    assert net.metadata.last_connection_error() is None


# ---- time-outs -----------------------------------------------------------------------------------------------------------------


def test_a_request_that_takes_too_long_ends_the_connection_and_all_in_flight(net: Net) -> None:
    net.connect(0)
    net.send(request_timeout_ms=1000)
    net.poll()
    net.clock.advance(500)
    net.send(request_timeout_ms=10_000)
    net.poll()
    net.clock.advance(400)
    assert net.poll() == []
    net.clock.advance(200)
    responses = net.poll()
    assert [(response.disconnected, response.timed_out) for response in responses] == [(True, True)] * 2
    assert net.selector.closed[-1] == 0
    assert "request.timeout.ms" in (net.metadata.last_connection_error() or "")


def test_a_handshake_that_is_never_answered_times_out() -> None:
    net = Net(request_timeout_ms=5000, delivery_timeout_ms=20_000)
    net.connect()
    net.selector.answer = lambda _: None
    net.ready(1)
    net.poll(2)
    net.clock.advance(5001)
    net.poll()
    assert net.client.connection_failed(1)
    net.selector.answer = net.answer
    net.connect(1)


def test_a_connection_that_takes_too_long_is_given_up_and_tried_again(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.connect()
    net.selector.holds_connects = True
    net.ready(1)
    net.poll(timeout_ms=0)
    timeout_ms = net.client.poll_delay_ms(1, net.clock.now_ms())
    assert 8000 <= timeout_ms <= 12_000
    net.clock.advance(timeout_ms)
    net.poll(timeout_ms=0)
    assert not net.client.connection_failed(1)
    net.clock.advance(1)
    net.poll(timeout_ms=0)
    assert net.client.connection_failed(1)
    assert "socket.connection.setup.timeout.ms" in caplog.text
    net.selector.holds_connects = False
    net.connect(1)


def test_a_poll_waits_no_longer_than_it_is_told(net: Net) -> None:
    net.connect(0)
    net.poll(timeout_ms=123)
    assert net.selector.poll_timeouts_ms[-1] == 123
    net.poll(timeout_ms=NEVER_MS)
    assert net.selector.poll_timeouts_ms[-1] <= net.config.request_timeout_ms


def test_a_poll_ends_when_a_request_times_out_whatever_ended_the_poll_before(net: Net) -> None:
    """A poll waited for request.timeout.ms from its own start: woken in between, it found a request late by as much again."""
    net.connect(0)
    sent_ms = net.clock.now_ms()
    net.send(request_timeout_ms=net.config.request_timeout_ms)
    net.poll()
    net.clock.advance(net.config.request_timeout_ms - 1000)  # a wake-up
    net.poll(2, timeout_ms=NEVER_MS)
    (response,) = net.responses
    assert response.timed_out
    assert net.clock.now_ms() - sent_ms == net.config.request_timeout_ms + 1


def test_the_oldest_of_several_requests_in_flight_decides_when_the_connection_ends(net: Net) -> None:
    net.connect(0)
    first = net.send(request_timeout_ms=1000)
    net.poll()
    net.clock.advance(600)
    net.send(request_timeout_ms=1000)
    net.poll(timeout_ms=0)
    net.selector.respond(first, INIT_RESPONSE)
    net.poll(timeout_ms=0)
    net.clock.advance(500)  # the first would be late by now, the second is not
    assert net.poll(timeout_ms=0) == []
    net.send(request_timeout_ms=1000)
    net.poll(timeout_ms=0)
    net.clock.advance(501)
    assert [response.timed_out for response in net.poll(timeout_ms=0)] == [True, True]
    assert net.client.connection_failed(0)


# ---- throttling ----------------------------------------------------------------------------------------------------------------


def throttled(net: Net) -> None:
    net.connect(0)
    net.selector.respond(net.send(message=PRODUCE), ProduceResponse(responses=(), throttle_time_ms=500))
    net.poll(timeout_ms=0)


def test_a_throttled_connection_is_left_alone_for_that_time(net: Net) -> None:
    throttled(net)
    assert not net.ready(0)
    assert net.client.poll_delay_ms(0, net.clock.now_ms()) == 500
    assert net.client.least_loaded_node(net.clock.now_ms()) != 0
    net.clock.advance(499)
    assert not net.ready(0)
    net.clock.advance(1)
    assert net.ready(0)


def test_an_old_broker_throttles_by_itself(net: Net) -> None:
    net.ranges = {ApiKey.PRODUCE: (3, 5)}
    throttled(net)
    assert net.ready(0)


def test_time_throttled_does_not_count_for_request_time_outs(net: Net) -> None:
    net.connect(0)
    first = net.send(message=PRODUCE)
    net.poll()
    net.send(message=PRODUCE, request_timeout_ms=1000)
    net.selector.respond(first, ProduceResponse(responses=(), throttle_time_ms=500))
    net.poll(timeout_ms=0)
    net.clock.advance(1400)
    assert net.poll(timeout_ms=0) == []
    net.clock.advance(200)
    assert net.poll(timeout_ms=0)[0].timed_out


# ---- metadata ------------------------------------------------------------------------------------------------------------------


def test_metadata_is_fetched_by_poll_alone(net: Net) -> None:
    net.metadata.add_topic("orders", net.clock.now_ms())
    net.poll(5)
    assert net.metadata.cluster().partition_count("orders") == 2
    (sent,) = net.selector.sent_of(ApiKey.METADATA)
    assert sent.node_id < 0
    assert isinstance(sent.message, MetadataRequest)
    assert [name.name for name in sent.message.topics or ()] == ["orders"]
    assert sent.message.allow_auto_topic_creation


def test_while_metadata_is_due_no_node_is_ready(net: Net) -> None:
    net.connect(0)
    net.metadata.add_topic("new", net.clock.now_ms())
    assert not net.client.ready(0, net.clock.now_ms())
    net.poll()
    assert net.ready(0)


def test_one_metadata_request_at_a_time(net: Net) -> None:
    net.connect(0)
    net.cluster = None
    before = len(net.selector.sent_of(ApiKey.METADATA))
    net.metadata.add_topic("a", net.clock.now_ms())
    net.poll(2)
    net.metadata.add_topic("b", net.clock.now_ms())
    net.poll(3)
    assert len(net.selector.sent_of(ApiKey.METADATA)) == before + 1
    net.selector.respond(net.selector.sent[-1], metadata(topic("a", [0])))
    net.cluster = metadata(topic("b", [0]))
    net.poll()
    net.clock.advance(200)
    net.poll(2)
    assert net.metadata.cluster().partition_count("b") == 1
    assert net.metadata.cluster().partition_count("a") == 1


def test_an_answer_without_brokers_is_not_believed(net: Net) -> None:
    net.cluster = metadata(nodes=0)
    net.poll(5)
    assert net.metadata.cluster().is_bootstrap
    net.cluster = metadata()
    net.connect()


def test_metadata_before_version_9_has_no_reliable_epochs(net: Net) -> None:
    net.ranges = {ApiKey.METADATA: (0, 8)}
    net.cluster = metadata(topic("orders", [0, 1], epoch=5))
    net.metadata.add_topic("orders", net.clock.now_ms())
    net.connect()
    assert [info.leader_epoch for info in net.metadata.cluster().partitions_for("orders")] == [None, None]


def test_topics_with_problems_are_warned_of(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.cluster = metadata(topic("orders", [], error_code=29))
    net.metadata.add_topic("orders", net.clock.now_ms())
    net.poll(5)
    assert "with topics: orders: TOPIC_AUTHORIZATION_FAILED (29)" in caplog.text


# ---- which node ----------------------------------------------------------------------------------------------------------------


def test_the_node_with_the_fewest_requests_in_flight_is_least_loaded(net: Net) -> None:
    net.connect(0, 1)
    net.send(0)
    net.poll()
    assert net.client.least_loaded_node(net.clock.now_ms()) == 1
    net.send(1)
    net.poll()
    net.send(1)
    net.poll()
    assert net.client.least_loaded_node(net.clock.now_ms()) == 0


def test_a_connected_node_is_preferred_then_one_that_is_being_connected(net: Net) -> None:
    net.connect()
    net.selector.holds_connects = True
    net.ready(1)
    assert net.client.least_loaded_node(net.clock.now_ms()) == 1
    net.selector.holds_connects = False
    net.connect(0)
    net.selector.lose(1)
    net.poll()
    assert net.client.least_loaded_node(net.clock.now_ms()) == 0


def test_a_throttled_node_is_not_least_loaded(net: Net) -> None:
    net.connect(0, 1)
    sent = net.send(0)
    net.selector.respond(sent, dataclasses.replace(INIT_RESPONSE, throttle_time_ms=100))
    net.selector.lose(1)
    net.poll(2, timeout_ms=0)
    assert net.client.least_loaded_node(net.clock.now_ms()) is None  # the other one is backing off
    net.clock.advance(100)
    assert net.client.least_loaded_node(net.clock.now_ms()) is not None


def test_while_a_node_is_connected_and_busy_nobody_bootstraps_again() -> None:
    """No node can be asked for metadata now, but the cluster is there: it only has to answer."""
    net = Net(max_in_flight_requests_per_connection=1)
    net.cluster = metadata(topic("orders", [0]), nodes=1)
    net.connect(0)
    net.send(0, request_timeout_ms=100_000)
    net.metadata.request_update("test")
    net.clock.advance(1000)
    assert net.client.find_least_loaded_node(net.clock.now_ms()) == (None, True)
    net.poll(3)
    assert not net.metadata.cluster().is_bootstrap


def test_while_every_node_is_throttled_nobody_starts_again_from_bootstrap_servers() -> None:
    """Quotas throttle a client on all brokers alike: when metadata was due then, all that was known of the cluster was forgotten,
    and the bootstrap servers were asked over connections that were not throttled.
    """
    net = Net()
    net.cluster = metadata(topic("orders", [0]), nodes=1)
    net.connect(0)
    net.selector.respond(net.send(0), dataclasses.replace(INIT_RESPONSE, throttle_time_ms=20_000))
    net.poll(timeout_ms=0)
    attempts = list(net.selector.attempts)
    net.metadata.request_update("test")
    net.clock.advance(1000)
    net.poll(50)
    assert not net.metadata.cluster().is_bootstrap
    assert net.selector.attempts == attempts
    asked = len(net.selector.sent_of(ApiKey.METADATA))
    net.clock.advance(20_000)
    net.poll()
    assert len(net.selector.sent_of(ApiKey.METADATA)) == asked + 1


def test_among_unconnected_nodes_the_one_tried_longest_ago_comes_first(net: Net) -> None:
    net.connect(0, 1)
    net.selector.lose(0)
    net.selector.lose(1)
    net.poll()
    net.clock.advance(2000)
    net.selector.refused = {9010: "refused"}
    net.ready(0)
    net.poll(timeout_ms=0)
    net.clock.advance(2000)
    assert net.client.least_loaded_node(net.clock.now_ms()) == 1


def test_no_node_while_all_are_backing_off(net: Net) -> None:
    net.connect(0, 1)
    net.selector.lose(0)
    net.selector.lose(1)
    net.poll()
    assert net.client.least_loaded_node(net.clock.now_ms()) is None


# ---- unreachable brokers -------------------------------------------------------------------------------------------------------


def test_one_warning_per_node_names_address_and_error_however_often_it_is_tried(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    net.selector.refused = {9001: "[Errno 111] Connection refused", 9002: "[Errno 111] Connection refused"}
    with caplog.at_level(logging.WARNING):
        net.poll(200)
    warnings = [record.getMessage() for record in caplog.records]
    assert "! node -1: connection to boot1:9001 could not be established: [Errno 111] Connection refused" in warnings
    assert len(net.selector.attempts) > 4
    assert len(warnings) == 2  # one a node; those after it wait for half a minute
    assert "boot1:9001: [Errno 111] Connection refused" in (net.metadata.last_connection_error() or "")
    net.selector.refused = {}
    net.clock.advance(2000)  # longer than any back-off by now
    net.connect()
    assert net.metadata.last_connection_error() is None


def test_after_a_failed_connection_metadata_backs_off_before_the_next_server(net: Net) -> None:
    net.selector.refused = {9001: "refused", 9002: "refused"}
    net.poll(2)
    assert len(net.selector.attempts) == 1
    before_ms = net.clock.now_ms()
    while len(net.selector.attempts) == 1:
        net.poll()
    assert 80 <= net.clock.now_ms() - before_ms <= 130


def test_one_server_is_tried_at_a_time(net: Net) -> None:
    net.selector.holds_connects = True
    net.poll(50, timeout_ms=10_000)
    assert len(net.selector.attempts) == 1
    assert max(net.selector.poll_timeouts_ms) <= net.config.reconnect_backoff_ms  # to look at its set-up time-out in time


def test_unreachable_bootstrap_servers_are_no_new_version_of_metadata(net: Net) -> None:
    net.selector.refused = {9001: "refused", 9002: "refused"}
    version = net.metadata.request_update("test")
    net.poll(3000)
    assert net.metadata.request_update("test") == version


def test_a_name_that_does_not_resolve_is_an_unreachable_broker(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    def unknown(host: str, port: int) -> Sequence[Address]:
        raise OSError(f"[Errno -2] {host}:{port}: Name or service not known")

    known, net.names = net.names, unknown
    with caplog.at_level(logging.DEBUG):
        net.poll(4)
    assert re.search(r"= node -(\d): looking up boot\1\n", caplog.text)
    assert "Name or service not known" in caplog.text
    assert "Name or service not known" in (net.metadata.last_connection_error() or "")
    assert net.selector.attempts == []
    net.names = known
    net.connect(0)


def test_a_resolver_that_is_silent_stalls_no_other_broker(net: Net) -> None:
    """Names were looked up on the Sender's thread: a resolver that took 30 s to fail kept rows from all brokers for 30 s."""
    net.connect(0)
    net.worker.silent_names = {"broker1"}
    assert not net.ready(1)
    for _ in range(100):
        sent = net.send(0)
        net.selector.respond(sent, INIT_RESPONSE)
        net.poll(timeout_ms=50)
        assert not net.ready(1)
    assert len(net.responses) == 100
    assert not any(response.disconnected for response in net.responses)
    assert [node_id for node_id, _ in net.selector.attempts if node_id == 1] == []
    assert not net.client.connection_failed(1)
    assert net.client.least_loaded_node(net.clock.now_ms()) == 0


def test_a_poll_does_not_wait_when_a_name_has_been_looked_up(net: Net) -> None:
    net.connect()
    net.worker.silent_names = {"broker1"}
    net.selector.holds_connects = True
    net.ready(1)
    net.poll(timeout_ms=500)
    assert net.selector.poll_timeouts_ms[-1] == 500
    net.worker.silent_names = set()
    net.poll(timeout_ms=500)
    assert net.selector.poll_timeouts_ms[-1] == 0
    assert net.selector.attempts[-1][0] == 1


def test_a_name_without_an_answer_from_dns_times_out_and_is_tried_again(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.connect()
    net.worker.silent_names = {"broker1"}
    net.ready(1)
    before_ms = net.clock.now_ms()
    while not net.client.connection_failed(1):
        net.poll(timeout_ms=NEVER_MS)
        assert net.clock.now_ms() - before_ms <= 12_001  # no poll outlasts the time-out: 10 s and its jitter
    assert "connection to broker1:9011 could not be established: no answer of DNS about broker1 within " in caplog.text
    assert "broker1:9011: no answer of DNS about broker1" in (net.metadata.last_connection_error() or "")
    assert net.worker.waiting == {}  # nobody waits any more
    net.worker.silent_names = set()
    net.connect(1)
    assert net.metadata.last_connection_error() is None


def test_while_dns_is_silent_about_one_bootstrap_server_the_next_is_tried_in_time(net: Net) -> None:
    net.worker.silent_names = {"boot1"}
    for _ in range(1000):
        net.poll(timeout_ms=1000)
        if not net.metadata.cluster().is_bootstrap:
            break
    assert not net.metadata.cluster().is_bootstrap
    assert net.clock.now_ms() - ManualClock().now_ms() <= 60_000  # max.block.ms


def test_an_address_in_digits_is_connected_to_without_looking_it_up(net: Net) -> None:
    net.connect()
    net.cluster = MetadataResponse(
        brokers=(
            MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9011),
            MetadataResponseBroker(node_id=2, host="::1", port=9012),
        ),
        cluster_id="c",
    )
    ask_for_metadata(net)
    for node_id, expected in ((1, "127.0.0.1:9011"), (2, "[::1]:9012")):
        net.ready(node_id)
        assert net.worker.waiting == {}
        assert str(net.selector.attempts[-1][1]) == expected


def test_a_resolver_that_finds_nothing_is_an_unreachable_broker(net: Net) -> None:
    known, net.names = net.names, lambda _host, _port: []
    net.poll(3)
    assert "boot1 has no address" in (net.metadata.last_connection_error() or "") or "boot2 has no address" in (
        net.metadata.last_connection_error() or ""
    )
    net.names = known
    net.connect(0)


def test_every_address_of_a_broker_is_tried(net: Net) -> None:
    net.connect()
    net.names = lambda host, port: [Address(2, (f"{host}-a", 1)), Address(2, (f"{host}-b", port))]
    net.selector.refused = {1: "refused"}
    net.connect(1)
    tried = [address.socket_address[0] for node_id, address in net.selector.attempts if node_id == 1]
    assert tried == ["broker1-a", "broker1-b"]


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
    assert net.client.refusal(1) is None


def test_a_broker_that_hangs_up_again_after_telling_its_logins_demands_one(net: Net) -> None:
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.connect(1)
    net.cluster = None  # not even metadata is answered
    reconnect(net)
    net.selector.lose(1)
    net.poll()
    error = net.client.refusal(1)  # it has hung up twice
    assert error is not None
    assert error.message.startswith("node 1 (broker1:9011): this listener demands a login")
    assert error.message.endswith("one of those it offers: PLAIN")


def test_a_cluster_that_demands_a_login_is_told_to_whoever_waits(net: Net) -> None:
    """No broker lets anybody in; each connection becomes ready, and is lost at the first request."""
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.cluster = None

    def hang_up(sent: Sent) -> Message | None:
        if isinstance(sent.message, MetadataRequest):
            net.selector.lose(sent.node_id)
        return net.answer(sent)

    net.selector.answer = hang_up
    poll_until_refused(net, "one of those it offers: PLAIN")
    assert len(net.selector.attempts) == 4


def test_a_connection_that_was_doubted_and_never_used_may_be_closed_as_idle(net: Net) -> None:
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.connect(1)
    net.cluster = None
    reconnect(net)
    net.selector.lose(1, "idle", ChannelState.EXPIRED)
    net.poll()
    assert net.client.refusal(1) is None


def test_a_broker_that_names_its_logins_and_answers_is_no_longer_doubted(net: Net) -> None:
    """Redpanda does, on listeners that demand none; a restart of it must not end a write."""
    net.logins = SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=("PLAIN",))
    net.connect(1)
    reconnect(net)
    net.selector.respond(net.send(1), INIT_RESPONSE)
    net.poll(2)
    for _ in range(2):
        reconnect(net)
        assert net.client.refusal(1) is None
        net.selector.respond(net.send(1), INIT_RESPONSE)
        net.poll(2)


def test_a_broker_that_moved_starts_without_the_failures_of_its_old_address(net: Net) -> None:
    net.connect(1)
    net.selector.lose(1)
    net.poll()
    net.selector.refused = {9011: "refused", 9999: "refused"}
    for _ in range(3):
        net.clock.advance(2000)
        net.ready(1)
        net.poll()
    moved = metadata()
    net.cluster = MetadataResponse(
        brokers=tuple(type(broker)(node_id=broker.node_id, host="new", port=9999) for broker in moved.brokers), cluster_id="c"
    )
    net.metadata.request_update("test")
    net.clock.advance(2000)
    net.poll(3)
    net.ready(1)
    net.poll()
    assert (1, Address(2, ("new", 9999))) in net.selector.attempts
    assert net.client.poll_delay_ms(1, net.clock.now_ms()) <= 60  # the first back-off


def test_reconnecting_waits_for_back_off(net: Net) -> None:
    net.connect(1)
    net.selector.lose(1)
    net.poll()
    attempts = len([node_id for node_id, _ in net.selector.attempts if node_id == 1])
    assert not net.ready(1)
    assert 0 < net.client.poll_delay_ms(1, net.clock.now_ms()) <= 60
    assert len([node_id for node_id, _ in net.selector.attempts if node_id == 1]) == attempts
    net.clock.advance(60)
    net.ready(1)
    net.poll(timeout_ms=0)
    assert len([node_id for node_id, _ in net.selector.attempts if node_id == 1]) == attempts + 1


# ---- starting again from bootstrap.servers -------------------------------------------------------------------------------------


def cluster_is_gone(net: Net) -> None:
    net.connect(0, 1)
    net.selector.refused = {9010: "refused", 9011: "refused"}
    net.selector.lose(0)
    net.selector.lose(1)
    for node_id, _ in list(net.selector.attempts):
        if node_id < 0:
            net.selector.lose(node_id)
    net.poll()


def test_when_no_known_broker_can_be_reached_the_bootstrap_servers_are_asked_again() -> None:
    net = Net()
    cluster_is_gone(net)
    net.cluster = metadata(nodes=1)
    net.selector.refused = {9010: "refused", 9011: "refused"}
    for _ in range(3000):  # until both brokers happen to be backing off when metadata is due
        net.poll()
        if net.selector.attempts[-1][0] < 0:
            break
    assert net.selector.attempts[-1][0] < 0


def test_without_rebootstrap_the_known_brokers_are_tried_for_ever() -> None:
    net = Net(metadata_recovery_strategy="none")
    cluster_is_gone(net)
    before = len(net.selector.attempts)
    net.poll(100)
    assert len(net.selector.attempts) > before
    assert all(node_id >= 0 for node_id, _ in net.selector.attempts[before:])


def test_metadata_that_fails_for_too_long_makes_the_client_start_again() -> None:
    net = Net(metadata_recovery_rebootstrap_trigger_ms=60_000)
    net.connect(0, 1)
    sent = net.send(0, request_timeout_ms=1_000_000)
    net.poll()
    net.cluster = None
    net.metadata.request_update("test")
    net.clock.advance(200)
    net.poll(2)
    assert net.client.in_flight_request_count(sent.node_id) >= 1
    for _ in range(70):
        net.clock.advance(1000)
        net.poll()
        if net.metadata.cluster().is_bootstrap:
            break
    assert net.metadata.cluster().is_bootstrap
    assert [response.disconnected for response in net.responses] == [True]
    net.cluster = metadata()
    net.connect(0)


def test_a_broker_can_ask_to_start_again(net: Net) -> None:
    net.connect(0, 1)
    net.cluster = metadata(error_code=129)
    net.metadata.request_update("test")
    net.clock.advance(200)
    net.poll(3)
    assert net.metadata.cluster().is_bootstrap
    assert {0, 1} <= set(net.selector.closed)
    net.cluster = metadata()
    net.connect(0)


def ask_for_metadata(net: Net, polls: int = 6) -> None:
    net.metadata.request_update("test", at_once=True)
    for _ in range(polls):
        net.clock.advance(1000)
        net.poll()


def test_metadata_of_another_cluster_are_not_believed_and_bootstrap_is_asked(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    """The address of a broker that is gone was given to a broker of another cluster: its picture must not replace ours."""
    net.connect(0, 1)
    asked: list[int] = []

    def answer(sent: Sent) -> Message | None:
        if not isinstance(sent.message, MetadataRequest):
            return net.answer(sent)
        asked.append(sent.node_id)
        return metadata(topic("orders", [0, 1]), cluster_id="c" if sent.node_id < 0 else "other")

    net.selector.answer = answer
    with caplog.at_level(logging.WARNING):
        ask_for_metadata(net)
    assert asked[0] >= 0
    assert asked[1] < 0
    assert net.metadata.cluster().cluster_id == "c"
    assert net.metadata.permanent_error() is None
    assert "ignoring metadata from a broker of another cluster, other;" in caplog.text


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_when_the_bootstrap_servers_are_of_another_cluster_nothing_goes_on(strategy: str) -> None:
    net = Net(metadata_recovery_strategy=strategy)
    net.connect(0, 1)
    net.cluster = metadata(topic("orders", [0, 1]), cluster_id="other")
    ask_for_metadata(net)
    error = net.metadata.permanent_error()
    assert isinstance(error, NetworkError)
    assert str(error).startswith("[KAFKA_CLUSTER_CHANGED] the brokers behind bootstrap.servers belong to cluster other now")
    for _ in range(2):  # not once: every caller gets it
        with pytest.raises(NetworkError, match="has written to cluster c"):
            net.metadata.await_update(10_000, 0)
        with pytest.raises(NetworkError, match="KAFKA_CLUSTER_CHANGED"):
            net.metadata.raise_error_for_topic("orders")
    assert net.metadata.cluster().cluster_id != "other"


def test_a_broker_that_does_not_tell_its_cluster_is_believed(net: Net) -> None:
    net.connect(0, 1)
    net.cluster = metadata(topic("orders", [1]), cluster_id=None)
    ask_for_metadata(net)
    net.cluster = metadata(topic("orders", [1]), cluster_id="c")
    ask_for_metadata(net)
    assert net.metadata.permanent_error() is None
    assert net.metadata.cluster().partition_count("orders") is None  # nobody asked for it; the answers were taken over
    assert net.metadata.cluster().cluster_id == "c"


# ---- life --------------------------------------------------------------------------------------------------------------------


def test_a_closed_client_does_nothing_more(net: Net) -> None:
    net.connect(0)
    net.send()
    net.client.close()
    net.client.close()
    assert net.selector.is_closed
    with pytest.raises(ProducerClosedError, match="network client is closed"):
        net.poll()
    with pytest.raises(ProducerClosedError, match="network client is closed"):
        net.client.send(net.request(), net.clock.now_ms())
    with pytest.raises(ProducerClosedError, match="while a caller waited for metadata"):
        net.metadata.await_update(net.metadata.request_update("test"), 10)
    assert net.responses == []


def test_wakeup_reaches_the_selector(net: Net) -> None:
    net.client.wakeup()
    assert net.selector.wakeups == 1


def test_an_idle_connection_that_expired_is_no_connection_error(net: Net) -> None:
    net.connect(0)
    net.selector.lose(0, "idle", ChannelState.EXPIRED)
    net.poll()
    assert net.metadata.last_connection_error() is None
    net.connect(0)


def test_bootstrap_servers_can_be_resolved_to_canonical_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def canonical(host: str, port: int) -> list[tuple[str, int]]:
        if host == "boot2":
            raise OSError("unknown")
        return [("a.example", port), ("b.example", port)]

    monkeypatch.setattr(dns, "canonical_servers", canonical)
    net = Net(client_dns_lookup="resolve_canonical_bootstrap_servers_only")
    assert [node.host for node in net.metadata.cluster().nodes] == ["a.example", "b.example", "boot2"]
