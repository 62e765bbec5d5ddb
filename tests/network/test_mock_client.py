"""tests/fakes/mock_client.py does what the Sender's tests rely on."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.fakes.clock import ManualClock
from tests.fakes.mock_client import MockClient
from tests.fakes.network_config import metadata, network_config, topic

INIT = InitProducerIdRequest(transaction_timeout_ms=1000)
ANSWER = InitProducerIdResponse(producer_id=7, producer_epoch=0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(clock: ManualClock) -> MockClient:
    return MockClient(clock, Metadata(network_config(), clock))


def send(client: MockClient, node_id: int = 0, **fields: object) -> tuple[ClientRequest, list[ClientResponse]]:
    answers: list[ClientResponse] = []
    values: dict[str, object] = {"expect_response": True, "request_timeout_ms": 1000, "callback": answers.append} | fields
    request = ClientRequest(node_id, INIT, client.clock.now_ms(), **values)
    assert client.ready(node_id, client.clock.now_ms())
    client.send(request, client.clock.now_ms())
    return request, answers


def poll(client: MockClient) -> list[ClientResponse]:
    return client.poll(0, client.clock.now_ms())


def test_mock_client_has_every_public_method_of_network_client() -> None:
    internal = {  # for MetadataUpdater and ConnectionSetup
        "can_send", "can_connect", "find_least_loaded_node", "is_any_node_connecting", "initiate_connect",
        "send_metadata_request", "renew_session", "can_send_handshake_request", "send_handshake_request", "close_connection",
    }  # fmt: skip
    methods = {name for name in vars(NetworkClient) if not name.startswith("_")}
    assert methods - internal <= set(vars(MockClient))


def test_a_prepared_response_answers_the_next_request(client: MockClient) -> None:
    client.prepare_response(ANSWER, matcher=lambda request: request.message is INIT)
    _, answers = send(client)
    assert answers == []
    poll(client)
    assert answers[0].message is ANSWER
    assert client.in_flight_request_count() == 0


def test_a_node_that_nobody_told_of_is_never_ready(client: MockClient) -> None:
    client.update_metadata(metadata())
    assert client.ready(1, client.clock.now_ms())
    assert not client.ready(7, client.clock.now_ms())
    client.learn_node(Node(7, "coordinator", 9))
    assert client.ready(7, client.clock.now_ms())


def test_features_are_those_that_the_test_says(client: MockClient) -> None:
    assert client.finalized_features() == (-1, {})
    client.set_features(3, transaction_version=2)
    assert client.finalized_features() == (3, {"transaction.version": 2})


def test_a_request_can_be_answered_later_and_out_of_order(client: MockClient) -> None:
    first, first_answers = send(client)
    second, second_answers = send(client)
    assert list(client.requests) == client.sent_requests == [first, second]
    client.respond(ANSWER, request=second)
    poll(client)
    assert (len(first_answers), len(second_answers)) == (0, 1)
    client.respond(was_disconnected=True)
    poll(client)
    assert first_answers[0].was_disconnected


def test_an_unexpected_request_fails_the_test(client: MockClient) -> None:
    client.prepare_response(ANSWER, matcher=lambda _: False)
    with pytest.raises(AssertionError, match="unexpected request"):
        send(client)


def test_responses_can_be_prepared_for_one_node(client: MockClient) -> None:
    client.prepare_response(ANSWER, node_id=1)
    send(client, 0)
    assert client.in_flight_request_count(0) == 1
    send(client, 1)
    assert client.in_flight_request_count(1) == 0


def test_disconnect_cancels_all_of_the_node(client: MockClient, clock: ManualClock) -> None:
    _, lost_answers = send(client, 0)
    _, other_answers = send(client, 1)
    client.disconnect(0, clock.now_ms())
    poll(client)
    assert lost_answers[0].was_disconnected
    assert other_answers == []


def test_requests_time_out(client: MockClient, clock: ManualClock) -> None:
    _, answers = send(client, request_timeout_ms=100)
    clock.advance(100)
    poll(client)
    assert answers == []
    clock.advance(1)
    poll(client)
    assert answers[0].has_timed_out


def test_nodes_can_be_unreachable_slow_or_throttled(client: MockClient, clock: ManualClock) -> None:
    client.set_unreachable(0, 100)
    assert not client.ready(0, clock.now_ms())
    assert client.is_disconnected(0)
    assert client.poll_delay_ms(0, clock.now_ms()) == 100
    clock.advance(100)
    assert client.ready(0, clock.now_ms())
    client.throttle(0, 50)
    assert not client.ready(0, clock.now_ms())
    assert client.poll_delay_ms(0, clock.now_ms()) == 50
    client.delay_ready(1, 10)
    assert not client.ready(1, clock.now_ms())
    client.back_off(2, 10)
    assert client.is_disconnected(2)


def test_no_more_than_the_maximum_are_in_flight(clock: ManualClock) -> None:
    client = MockClient(clock, max_in_flight=1)
    send(client)
    assert not client.ready(0, clock.now_ms())
    client.respond(ANSWER)
    assert client.ready(0, clock.now_ms())


def test_versions_are_negotiated(client: MockClient) -> None:
    request, _ = send(client, max_version=3)
    assert client.version_of(request) == 3
    client.set_api_versions(1, {ApiKey.INIT_PRODUCER_ID: (7, 9)})
    _, answers = send(client, 1)
    poll(client)
    assert isinstance(answers[0].error, UnsupportedVersionError)


def test_acks_0_is_answered_by_the_next_poll(client: MockClient) -> None:
    _, answers = send(client, expect_response=False)
    poll(client)
    assert not answers[0].was_disconnected
    assert answers[0].error is None
    assert answers[0].message is None


def test_metadata_is_updated_in_poll_when_it_is_asked_for(client: MockClient, clock: ManualClock) -> None:
    meta = client.metadata
    assert meta is not None
    meta.add_topic("orders", clock.now_ms())
    client.prepare_metadata_update(metadata(topic("orders", [0, 1])))
    poll(client)
    version = meta.request_update("test")
    assert meta.cluster().partition_count("orders") == 2
    meta.request_update("test")
    clock.advance(1000)
    poll(client)  # the same answer again
    assert meta.request_update("test") == version + 1
    assert client.least_loaded_node(clock.now_ms()) in (0, 1)


def test_authentication_can_fail(client: MockClient, clock: ManualClock) -> None:
    client.fail_authentication(0, AuthenticationError("no"))
    assert isinstance(client.login_rejection(0), AuthenticationError)
    assert not client.ready(0, clock.now_ms())
    assert client.metadata is not None
    with pytest.raises(AuthenticationError):
        client.metadata.await_update(client.metadata.request_update("test"), 1)
