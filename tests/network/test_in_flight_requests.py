"""network/kafka_client.py: the scenarios of Kafka's InFlightRequestsTest."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network.kafka_client import ClientRequest, InFlightRequest, InFlightRequests
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest


def in_flight(node_id: int = 1, *, sent_ms: int = 0, timeout_ms: int = 100, is_written: bool = True) -> InFlightRequest:
    request = ClientRequest(node_id, InitProducerIdRequest(transaction_timeout_ms=1), 0, True, timeout_ms)
    return InFlightRequest(request, 5, False, sent_ms, is_written=is_written)


def test_answers_take_the_oldest_and_writes_the_newest() -> None:
    queue = InFlightRequests(5)
    requests = [in_flight() for _ in range(3)]
    for request in requests:
        queue.add(request)
    assert queue.oldest(1) is requests[0]
    assert queue.complete_next(1) is requests[0]
    assert queue.oldest(1) is requests[1]
    assert queue.oldest(2) is None
    assert queue.last_sent(1) is requests[2]
    assert queue.complete_last_sent(1) is requests[2]
    assert queue.count(1) == 1


def test_one_request_is_written_at_a_time() -> None:
    queue = InFlightRequests(5)
    assert queue.can_send_more(1)
    request = in_flight(is_written=False)
    queue.add(request)
    assert not queue.can_send_more(1)
    request.is_written = True
    assert queue.can_send_more(1)


def test_no_more_than_the_limit_are_in_flight_to_one_node() -> None:
    queue = InFlightRequests(2)
    queue.add(in_flight())
    queue.add(in_flight())
    assert not queue.can_send_more(1)
    assert queue.can_send_more(2)
    queue.complete_next(1)
    assert queue.can_send_more(1)


def test_counts_per_node_and_in_all() -> None:
    queue = InFlightRequests(5)
    for node_id in (1, 1, 2):
        queue.add(in_flight(node_id))
    assert (queue.count(), queue.count(1), queue.count(2), queue.count(3)) == (3, 2, 1, 0)
    assert len(queue.clear(1)) == 2
    assert queue.clear(1) == []
    assert queue.count() == 1
    with pytest.raises(KeyError):
        queue.complete_next(1)


def test_a_request_times_out_after_its_own_time_out() -> None:
    queue = InFlightRequests(5)
    queue.add(in_flight(1, sent_ms=0, timeout_ms=100))
    queue.add(in_flight(1, sent_ms=50, timeout_ms=10))
    queue.add(in_flight(2, sent_ms=50, timeout_ms=100))
    assert queue.nodes_with_timed_out_requests(60) == []
    assert queue.nodes_with_timed_out_requests(61) == [1]
    assert queue.nodes_with_timed_out_requests(151) == [1, 2]


def test_time_in_which_the_broker_throttles_does_not_count() -> None:
    queue = InFlightRequests(5)
    queue.add(in_flight(1, sent_ms=0, timeout_ms=100))
    queue.add_throttle_time(1, 50)
    assert queue.nodes_with_timed_out_requests(150) == []
    assert queue.nodes_with_timed_out_requests(151) == [1]
