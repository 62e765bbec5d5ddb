"""network/network_client.py over a fake Selector: requests and their answers, versions, throttling, metadata.

With the other files of this folder: the scenarios of Kafka's NetworkClientTest.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, SupportsIndex

import pytest

from spark_kafka_sink.errors import (
    ProducerClosedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network import connection_setup, dns, network_client
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.framing import Response
from spark_kafka_sink.network.handshake import Handshake, HandshakeRequest
from spark_kafka_sink.network.kafka_client import ClientResponse, InFlightRequest
from spark_kafka_sink.network.selector import ChannelState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.fake_selector import SentRequest
from tests.fakes.network_config import api_versions, metadata, topic
from tests.interrupts import MemoryErrors, places_of
from tests.network.network_client.harness import INIT_RESPONSE, PRODUCE, Net

# REQUESTS AND RESPONSES


def test_a_request_is_answered(net: Net) -> None:
    net.connect(0)
    request = net.send()
    assert net.client.in_flight_request_count(0) == 1
    assert net.poll() == []
    net.selector.respond(request, INIT_RESPONSE)
    (response,) = net.poll()
    assert response.message == INIT_RESPONSE
    assert not response.was_disconnected
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
    poll_delay_ms said 0: a caller that waited for the node went round in circles.
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
    assert net.client.is_disconnected(99)
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

    def answer_with(epoch: int, level: int) -> ApiVersionsResponse:
        feature = FinalizedFeatureKey(name="transaction.version", max_version_level=level, min_version_level=level)
        return dataclasses.replace(api_versions(), finalized_features_epoch=epoch, finalized_features=(feature,))

    assert net.client.finalized_features() == (-1, {})
    net.connect(0)
    assert net.client.finalized_features() == (-1, {})
    for answer, features in (
        (answer_with(7, 1), (7, {"transaction.version": 1})),
        (answer_with(8, 2), (8, {"transaction.version": 2})),
        (answer_with(7, 1), (8, {"transaction.version": 2})),
        (api_versions(), (8, {"transaction.version": 2})),
    ):
        net.selector.lose(1)
        net.poll()
        net.selector.answer = lambda request, answer=answer: (
            answer if isinstance(request.message, ApiVersionsRequest) else net.answer(request)
        )
        net.connect(1)
        assert net.client.finalized_features() == features


def test_responses_call_back_in_the_order_of_the_requests(net: Net) -> None:
    net.connect(0)
    requests = []
    for _ in range(3):
        requests.append(net.send())
        net.poll()
    assert [one.header.correlation_id for one in requests] == sorted(one.header.correlation_id for one in requests)
    for number, one in enumerate(requests):
        net.selector.respond(one, InitProducerIdResponse(producer_id=number))
    net.poll()
    assert [response.message.producer_id for response in net.responses] == [0, 1, 2]


def test_no_more_than_the_maximum_are_in_flight() -> None:
    net = Net(max_in_flight_requests_per_connection=2)
    net.connect(0)
    first = net.send()
    net.selector.holds_sends = True
    second = net.send()
    net.selector.respond(first, INIT_RESPONSE)
    net.poll()
    assert not net.client.ready(0, net.clock.now_ms())  # one is written at a time
    net.selector.holds_sends = False
    net.poll()
    net.send()
    assert not net.ready(0)
    net.selector.respond(second, INIT_RESPONSE)
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
    assert not response.was_disconnected
    assert net.client.in_flight_request_count() == 0


def test_requests_without_responses_keep_no_other_from_being_answered_or_timed_out(net: Net) -> None:
    """Each of them is complete in `send`, so that there is always something to call back: nothing else was looked at any more."""
    net.connect(0, 1)
    answered = net.send(1)
    net.send(1, request_timeout_ms=1_000)
    net.selector.respond(answered, INIT_RESPONSE)
    responses: list[ClientResponse] = []
    for _ in range(20):
        net.send(message=ProduceRequest(acks=0, timeout_ms=1, topic_data=()), expect_response=False)
        responses += net.poll()
        net.clock.advance(100)
    assert [each.was_disconnected for each in responses if each.request.node_id == 1] == [False, True]
    assert len(responses) == 22


def test_a_callback_that_raises_keeps_no_other_from_running(net: Net) -> None:
    def fail(_: ClientResponse) -> None:
        raise ValueError("a bug")

    net.connect(0)
    net.send(callback=fail)
    net.poll()
    net.send()
    net.poll()
    for request in net.selector.sent_of(ApiKey.INIT_PRODUCER_ID):
        net.selector.respond(request, INIT_RESPONSE)
    with pytest.raises(ValueError, match="a bug"):
        net.poll()
    assert len(net.responses) == 1


@pytest.fixture
def net_of_three() -> Net:
    net = Net()
    net.cluster = metadata(topic("orders", [0, 1]), nodes=3)
    net.connect(0, 1, 2)
    return net


def fail_on_metadata(net: Net, monkeypatch: pytest.MonkeyPatch) -> SentRequest:
    """A bug: the next answer with metadata makes poll raise. Returns the request that waits for it, on a node that is idle."""

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ValueError("a bug")

    net.cluster = None
    net.metadata.request_update("test", is_urgent=True)
    net.clock.advance(500)
    net.poll()
    monkeypatch.setattr(net.metadata, "update", fail)
    net.cluster = metadata(nodes=3)
    return net.selector.sent_of(ApiKey.METADATA)[-1]


def test_answers_that_were_taken_before_a_poll_failed_are_called_back(net_of_three: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such answers were lost: their rows expired, their memory stayed charged, and their partitions stayed muted."""
    net = net_of_three
    first = net.send(0)
    net.poll()
    metadata_request = fail_on_metadata(net, monkeypatch)
    net.selector.respond(first, INIT_RESPONSE)
    net.selector.respond(metadata_request, metadata(nodes=3))
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
    answered_request, lost_request = net.send(0), net.send(1)
    net.poll()
    metadata_request = fail_on_metadata(net, monkeypatch)
    net.selector.respond(metadata_request, metadata(nodes=3))
    net.selector.respond(answered_request, INIT_RESPONSE)
    net.selector.lose(1)
    with pytest.raises(ValueError, match="a bug"):
        net.poll()
    assert net.responses == []
    net.poll()
    assert [(response.request.node_id, response.was_disconnected) for response in net.responses] == [
        (answered_request.node_id, False),
        (lost_request.node_id, True),
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
    assert net.client.is_disconnected(1)
    assert "the handshake failed with ValueError" in (net.metadata.last_connection_error() or "")
    net.connect(1)


def out_of_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    """Raises MemoryError at its first call."""
    errors = [MemoryError()]

    def first_fails(*args: Any, **more: Any) -> Any:
        if errors:
            raise errors.pop()
        return method(*args, **more)

    return first_fails


@pytest.mark.parametrize(
    ("owner", "name"), [(InitProducerIdResponse, "read"), (InFlightRequest, "response")], ids=["decoding", "before its callback"]
)
def test_an_answer_that_is_lost_in_an_error_is_not_replaced_by_the_next(
    net: Net, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Each later answer of the connection went to the request before its own: rows that were refused counted as written."""
    net.connect(0)
    requests = [net.send() for _ in range(3)]
    monkeypatch.setattr(owner, name, out_of_memory(getattr(owner, name)))
    net.selector.respond(requests[0], INIT_RESPONSE)
    with pytest.raises(MemoryError):
        net.poll()
    assert net.responses == []
    net.selector.respond(requests[1], INIT_RESPONSE)
    net.poll()
    assert [(response.correlation_id, response.was_disconnected) for response in net.responses] == [
        (request.header.correlation_id, True) for request in requests
    ]
    assert net.client.in_flight_request_count() == 0
    net.connect(0)


class ListWithInterrupt(list[tuple[int, Response]]):
    """Ctrl-C comes when an item has been taken out."""

    def pop(self, index: SupportsIndex = -1) -> tuple[int, Response]:
        super().pop(index)
        raise KeyboardInterrupt


def test_an_answer_that_is_lost_in_an_interrupt_is_not_replaced_by_the_next(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin client that went on after Ctrl-C said of one transaction what was true of another."""
    poll = net.selector.poll

    def poll_before_an_interrupt(timeout_ms: int) -> None:
        monkeypatch.undo()
        poll(timeout_ms)
        net.selector.completed_receives = ListWithInterrupt(net.selector.completed_receives)

    net.connect(0)
    first, second = net.send(), net.send()
    monkeypatch.setattr(net.selector, "poll", poll_before_an_interrupt)
    net.selector.respond(first, INIT_RESPONSE)
    with pytest.raises(KeyboardInterrupt):
        net.poll()
    net.selector.respond(second, INIT_RESPONSE)
    net.poll()
    assert [response.was_disconnected for response in net.responses] == [True, True]


def test_requests_of_a_lost_connection_are_called_back_after_an_error_too(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests had left the list of those in flight before their responses were made: no callback ever ran."""
    net.connect(0)
    net.send()
    net.send()
    monkeypatch.setattr(InFlightRequest, "response", out_of_memory(InFlightRequest.response))
    net.selector.lose(0)
    with pytest.raises(MemoryError):
        net.poll()
    net.clock.advance(1_001)  # the time-out of the requests
    net.poll()
    assert [response.was_disconnected for response in net.responses] == [True, True]
    net.connect(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a generator that is being closed
def test_wherever_memory_ends_in_an_answer_with_metadata_it_is_asked_for_again() -> None:
    """Where it ended between the request and what was in its answer, no further request was ever sent."""

    def asked_again(memory_errors: MemoryErrors) -> int:
        net = Net()
        net.connect(0)
        net.metadata.request_update("test", is_urgent=True)
        poll_while(net, memory_errors)
        before = len(net.selector.sent_of(ApiKey.METADATA))
        for _ in range(20):
            net.clock.advance(3_000)
            net.metadata.request_update("again", is_urgent=True)
            net.poll()
        return len(net.selector.sent_of(ApiKey.METADATA)) - before

    passed = MemoryErrors()
    assert asked_again(passed) > 15
    for point in places_of(passed):
        assert asked_again(memory_errors := MemoryErrors(point)) > 5, memory_errors.where


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wherever_memory_ends_in_a_handshake_the_node_becomes_ready() -> None:
    """A connection in its handshake, with nothing in flight, was not ended by any time-out."""

    def becomes_ready(memory_errors: MemoryErrors) -> bool:
        net = Net()
        net.connect()
        net.ready(0)
        poll_while(net, memory_errors)
        for _ in range(60):
            net.clock.advance(1_000)
            net.poll()
            if net.ready(0):
                return True
        return False

    passed = MemoryErrors()
    assert becomes_ready(passed)
    for point in places_of(passed):
        assert becomes_ready(memory_errors := MemoryErrors(point)), memory_errors.where


def poll_while(net: Net, memory_errors: MemoryErrors) -> None:
    for _ in range(6):
        net.clock.advance(50)
        with contextlib.suppress(MemoryError), memory_errors:
            net.poll()


def test_a_request_may_have_no_callback(net: Net) -> None:
    net.connect(0)
    net.selector.respond(net.send(callback=None), INIT_RESPONSE)
    assert len(net.poll()) == 1


# VERSIONS


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
    assert not response.was_disconnected
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
    def answer(request: SentRequest) -> Message | None:
        if isinstance(request.message, ApiVersionsRequest) and request.header.api_version > 0:
            return ApiVersionsResponse(error_code=35)
        return net.answer(request)

    net.selector.answer = answer
    net.connect(0)
    assert [request.header.api_version for request in net.selector.sent_of(ApiKey.API_VERSIONS)][:2] == [4, 0]


def test_a_new_connection_goes_by_the_versions_of_its_own_handshake(net: Net) -> None:
    """The broker may have been upgraded."""
    net.ranges = {ApiKey.PRODUCE: (0, 9)}
    net.connect(0)
    net.selector.lose(0)
    net.poll()
    net.ranges = {ApiKey.PRODUCE: (0, 12)}
    net.connect(0)
    assert net.send(message=PRODUCE).header.api_version == 12


# THROTTLING


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
    assert net.poll(timeout_ms=0)[0].has_timed_out


# METADATA


def test_metadata_is_fetched_by_poll_alone(net: Net) -> None:
    net.metadata.add_topic("orders", net.clock.now_ms())
    net.poll(5)
    assert net.metadata.cluster().partition_count("orders") == 2
    (request,) = net.selector.sent_of(ApiKey.METADATA)
    assert request.node_id < 0
    assert isinstance(request.message, MetadataRequest)
    assert [name.name for name in request.message.topics or ()] == ["orders"]
    assert request.message.allow_auto_topic_creation


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
    net.selector.respond(net.selector.sent_requests[-1], metadata(topic("a", [0])))
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


# LIFE


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
