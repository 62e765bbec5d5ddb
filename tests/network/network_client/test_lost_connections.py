"""network/network_client.py: what becomes of requests whose connection ends, or whose answer takes too long."""

from __future__ import annotations

import pytest

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import (
    ResponseTooLargeError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.network_config import metadata
from tests.network.network_client.harness import INIT_RESPONSE, Net


def test_a_lost_connection_cancels_everything_in_flight_in_order(net: Net) -> None:
    net.connect(0)
    for timeout_ms in (1000, 1001):
        net.send(request_timeout_ms=timeout_ms)
        net.poll()
    net.selector.lose(0)
    responses = net.poll()
    assert [response.request.request_timeout_ms for response in responses] == [1000, 1001]
    assert all(response.was_disconnected and not response.has_timed_out and response.message is None for response in responses)
    assert net.client.is_disconnected(0)
    assert not net.ready(0)


def test_an_answer_that_arrives_with_the_end_of_the_connection_counts(net: Net) -> None:
    net.connect(0)
    first = net.send()
    net.poll()
    net.send()
    net.selector.respond(first, INIT_RESPONSE)
    net.selector.lose(0)
    responses = net.poll()
    assert [response.was_disconnected for response in responses] == [False, True]


def test_an_answer_to_a_request_that_is_still_being_written_ends_the_connection(net: Net) -> None:
    """Correlation ids are easily guessed. Called back at once, the request's buffers went back to the pool, and the rest of it
    was written from memory that belonged to other rows by then; the completed write then found no request and ended the Sender.
    """
    net.connect(0)
    net.selector.holds_sends = True
    request = net.send(0)
    net.selector.respond(request, INIT_RESPONSE)
    (response,) = net.poll()
    assert response.was_disconnected
    assert net.selector.closed == [0]
    assert net.client.is_disconnected(0)
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
    assert not net.client.is_disconnected(0)


def test_a_response_larger_than_its_api_allows_ends_the_connection_with_an_error(net: Net) -> None:
    """What listens there may be no broker at all."""
    net.selector.answer = lambda _: None
    net.poll(2)
    node_id, _ = net.selector.attempts[0]
    net.selector.deliver(node_id, (1 << 20).to_bytes(4, "big"))
    net.poll()
    message = "announces a response of 1,048,576 bytes to API_VERSIONS, which is never larger than 262,144"
    assert message in str(net.metadata.last_connection_error())
    net.selector.answer = net.answer
    net.connect(0)
    net.send(0)
    net.selector.deliver(0, (100_000).to_bytes(4, "big"))
    net.poll()
    (response,) = net.responses
    assert response.was_disconnected
    assert isinstance(response.error, ResponseTooLargeError)
    message = "of 100,000 bytes to INIT_PRODUCER_ID, and this client takes at most 65,536"
    assert response.error.message.startswith("node 0 (")
    assert response.error.message.endswith(message)
    assert message in str(net.metadata.last_connection_error())


def test_on_a_connection_only_the_request_with_too_large_a_response_has_its_error(net: Net) -> None:
    net.connect(0)
    for _ in range(3):
        net.send(0)
        net.poll()
    net.selector.respond(net.selector.sent_of(ApiKey.INIT_PRODUCER_ID)[0], INIT_RESPONSE)
    net.selector.deliver(0, (100_000).to_bytes(4, "big"))
    net.poll()
    assert [response.was_disconnected for response in net.responses] == [False, True, True]
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
    assert response.was_disconnected
    assert "2,147,483,647 bytes" in (net.metadata.last_connection_error() or "")


def test_a_lost_metadata_request_is_repeated_after_back_off(net: Net) -> None:
    net.cluster = None
    net.poll(3)
    (request,) = net.selector.sent_of(ApiKey.METADATA)
    net.selector.lose(request.node_id)
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
    assert net.client.is_disconnected(1)
    assert "does this listener speak PLAINTEXT?" in caplog.text
    net.selector.answer = net.answer
    net.connect(1)


def test_a_connection_that_was_made_and_lost_in_the_same_moment_is_lost(net: Net) -> None:
    net.connect()
    net.ready(1)
    net.selector.lose(1)
    net.poll()
    assert net.client.is_disconnected(1)
    net.connect(1)


# TIME-OUTS


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
    assert [(response.was_disconnected, response.has_timed_out) for response in responses] == [(True, True)] * 2
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
    assert net.client.is_disconnected(1)
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
    assert not net.client.is_disconnected(1)
    net.clock.advance(1)
    net.poll(timeout_ms=0)
    assert net.client.is_disconnected(1)
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
    assert response.has_timed_out
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
    assert [response.has_timed_out for response in net.poll(timeout_ms=0)] == [True, True]
    assert net.client.is_disconnected(0)
