"""network/broker_connection.py and backoff.py: the scenarios of Kafka's ClusterConnectionStatesTest and InFlightRequestsTest."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.broker_connection import BrokerConnection, ConnectionState
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.handshake import HandshakeRequest, Session
from spark_kafka_sink.network.kafka_client import ClientRequest, InFlightRequest
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.primitives import Buffer
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector
from tests.fakes.mock_client import node_api_versions
from tests.fakes.network_config import network_config

NOW = 1_000_000


class Names:
    """DNS, whose answers the test decides."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.lookup_count = 0

    def look_up(self) -> Sequence[str]:
        answer = self.answers[min(self.lookup_count, len(self.answers) - 1)]
        self.lookup_count += 1
        return answer


class Sockets(FakeSelector):
    """Connects and sends at once, and answers nothing."""

    def __init__(self) -> None:
        super().__init__(ManualClock())

    def connect(self, node_id: int, address: Address, connection: Framing) -> None:  # noqa: ARG002
        self.attempts.append((node_id, address))

    def is_established(self, node_id: int) -> bool:  # noqa: ARG002
        return True

    def send(self, node_id: int, buffers: list[Buffer]) -> bool:  # noqa: ARG002
        return True


def broker(host: str = "host", *, max_in_flight: int = 5) -> BrokerConnection:
    config = network_config(
        reconnect_backoff_ms=50, reconnect_backoff_max_ms=1000, max_in_flight_requests_per_connection=max_in_flight
    )
    return BrokerConnection(Node(1, host, 9092), config, Sockets(), Random(0))


def address(host: str) -> Address:
    return Address(2, (host, 9092))


def connect(connection: BrokerConnection, names: Names | None = None) -> str:
    """Begin an attempt. Returns the address that is tried."""
    connection.begin_attempt(NOW)
    if connection.needs_address:
        connection.set_addresses([address(name) for name in (names or Names(["a"])).look_up()], NOW)
    connection.open()
    _, tried = connection._selector.attempts[-1]
    return str(tried.socket_address[0])


def check_versions(connection: BrokerConnection) -> None:
    connection.next_request = HandshakeRequest(ApiVersionsRequest(), 0)
    connection.send_next_request(NOW)
    connection.in_flight.clear()  # it is answered


def become_ready(connection: BrokerConnection) -> None:
    check_versions(connection)
    connection.become_ready(Session(node_api_versions()), NOW)


def in_flight(*, sent_ms: int = NOW, timeout_ms: int = 100, is_written: bool = True) -> InFlightRequest:
    request = ClientRequest(1, InitProducerIdRequest(transaction_timeout_ms=1), 0, True, timeout_ms)
    return InFlightRequest(request, 5, False, sent_ms, is_written=is_written)


def is_about(actual: int, expected: int) -> bool:
    return expected * 0.8 - 1 <= actual <= expected * 1.2 + 1


def test_a_new_broker_can_be_connected_at_once() -> None:
    connection = broker()
    assert connection.can_connect(NOW)
    assert connection.poll_delay_ms(NOW) == 0
    assert connection.is_disconnected


def test_a_connection_becomes_ready_step_by_step() -> None:
    connection = broker()
    connect(connection)
    assert connection.is_connecting
    assert connection.is_preparing
    assert not connection.can_connect(NOW)
    check_versions(connection)
    assert not connection.is_connecting
    assert connection.is_preparing
    assert connection.is_connected
    assert not connection.is_ready(NOW)
    connection.become_ready(Session(node_api_versions()), NOW)
    assert connection.is_ready(NOW)
    assert connection.poll_delay_ms(NOW) == NEVER_MS


def test_a_step_that_is_not_in_the_connection_is_an_error() -> None:
    connection = broker()
    connect(connection)
    with pytest.raises(RuntimeError, match="cannot go from CONNECTING to READY"):
        connection.become_ready(Session(node_api_versions()), NOW)
    assert connection.state is ConnectionState.CONNECTING


def test_reconnect_back_off_doubles_until_its_limit_and_ends_with_ready() -> None:
    connection = broker()
    for expected in (50, 100, 200, 400, 800):
        connect(connection)
        connection.note_disconnected(NOW)
        assert is_about(connection.poll_delay_ms(NOW), expected)
        assert not connection.can_connect(NOW)
        assert connection.can_connect(NOW + expected * 2)
    for _ in range(70):
        connect(connection)
        connection.note_disconnected(NOW)
    assert connection.poll_delay_ms(NOW) <= 1000
    connect(connection)
    become_ready(connection)
    connection.note_disconnected(NOW)
    assert is_about(connection.poll_delay_ms(NOW), 50)


def test_back_off_counts_from_the_end_of_a_connection_not_from_its_beginning() -> None:
    connection = broker()
    connect(connection)
    become_ready(connection)
    connection.note_disconnected(NOW + 60_000)
    assert not connection.can_connect(NOW + 60_000)
    assert is_about(connection.poll_delay_ms(NOW + 60_000), 50)
    connection.begin_attempt(NOW + 120_000)
    connection.note_disconnected(NOW + 130_000)
    connection.note_failed_login(NOW + 140_000, AuthenticationError("no"))
    assert not connection.can_connect(NOW + 140_000)


def test_set_up_time_out_doubles_with_each_attempt_and_ends_with_a_connection() -> None:
    connection = broker()
    for expected in (10_000, 20_000, 30_000):
        connect(connection)
        assert is_about(connection.setup_timeout_ms, expected)
        assert connection.setup_timeout_ms <= 30_000
        assert connection.times_out_at_ms > NOW + connection.setup_timeout_ms
        assert connection.times_out_at_ms <= NOW + connection.setup_timeout_ms + 1
        connection.note_disconnected(NOW)
    connect(connection)
    check_versions(connection)
    assert is_about(connection.setup_timeout_ms, 10_000)
    assert connection.times_out_at_ms > NOW + 1_000_000


def test_while_connecting_the_delay_is_the_set_up_time_out() -> None:
    connection = broker()
    connect(connection)
    assert connection.poll_delay_ms(NOW) == connection.setup_timeout_ms


def test_refused_authentication_is_remembered_until_the_node_accepts_us() -> None:
    connection = broker()
    error = AuthenticationError("no")
    connect(connection)
    check_versions(connection)
    connection.note_disconnected(NOW)
    connection.note_failed_login(NOW, error)
    assert connection.authentication_error is error
    assert connection.is_disconnected
    assert not connection.can_connect(NOW)
    assert connection.can_connect(NOW + 1000)
    connect(connection)
    assert connection.authentication_error is error
    become_ready(connection)
    assert (connection.failed_login_count, connection.is_shut_out) == (1, False)
    connection.note_accepted()
    assert connection.authentication_error is None
    assert connection.failed_login_count == 0


def test_refusals_in_a_row_are_counted_whatever_fails_between_them() -> None:
    connection = broker()
    for expected in (1, 2):
        connect(connection)
        connection.note_disconnected(NOW)  # not reached at all: says nothing
        assert connection.is_shut_out
        connect(connection)
        check_versions(connection)
        connection.note_disconnected(NOW)
        connection.note_failed_login(NOW, AuthenticationError("no"))
        assert connection.failed_login_count == expected


def test_a_node_that_was_lost_is_not_shut_out_until_it_cannot_be_reached() -> None:
    connection = broker()
    assert not connection.is_shut_out
    connect(connection)
    assert not connection.is_shut_out
    become_ready(connection)
    connection.note_accepted()
    connection.note_disconnected(NOW)
    assert not connection.is_shut_out
    connect(connection)
    connection.note_disconnected(NOW)
    assert connection.is_shut_out


def test_a_throttled_node_is_not_ready_and_throttling_never_shrinks() -> None:
    connection = broker()
    connect(connection)
    become_ready(connection)
    connection.throttle(100, NOW)
    connection.throttle(50, NOW)
    assert not connection.is_ready(NOW + 99)
    assert connection.poll_delay_ms(NOW + 40) == 60
    assert connection.poll_delay_ms(NOW + 40) == 60
    assert connection.is_ready(NOW + 100)
    assert connection.poll_delay_ms(NOW + 100) == NEVER_MS


def test_a_disconnected_node_waits_for_back_off_though_it_was_throttled() -> None:
    connection = broker()
    connect(connection)
    connection.throttle(10_000, NOW)
    connection.note_disconnected(NOW)
    assert connection.poll_delay_ms(NOW) <= 60


def test_every_address_is_tried_before_the_name_is_resolved_again() -> None:
    names = Names(["a", "b", "c"], ["d"])
    connection = broker()
    tried = []
    for _ in range(4):
        tried.append(connect(connection, names))
        connection.note_disconnected(NOW)
    assert tried == ["a", "b", "c", "d"]
    assert names.lookup_count == 2


def test_a_single_address_is_resolved_again_for_each_attempt() -> None:
    names = Names(["a"])
    connection = broker()
    for _ in range(3):
        assert connect(connection, names) == "a"
        connection.note_disconnected(NOW)
    assert names.lookup_count == 3


def test_after_a_lost_connection_the_name_is_resolved_to_another_address_first() -> None:
    names = Names(["a", "b"], ["a", "b"])
    connection = broker()
    assert connect(connection, names) == "a"
    check_versions(connection)
    connection.note_disconnected(NOW)
    assert connect(connection, names) == "b"
    assert names.lookup_count == 2


def test_a_name_that_does_not_resolve_can_be_tried_again() -> None:
    connection = broker()
    connection.begin_attempt(NOW)
    assert connection.needs_address
    connection.note_disconnected(NOW)
    assert connect(connection) == "a"


def test_resolving_is_limited_by_the_set_up_time_out_and_leaves_the_address_its_own() -> None:
    connection = broker()
    connection.begin_attempt(NOW)
    limit_ms = connection.setup_timeout_ms
    assert connection.times_out_at_ms == NOW + limit_ms + 1
    assert connection.times_out_at_ms <= NOW + limit_ms + 1
    connection.set_addresses([address("a")], NOW + limit_ms)
    assert connection.times_out_at_ms > NOW + limit_ms + 1
    assert connection.times_out_at_ms == NOW + limit_ms + limit_ms + 1
    connection.note_disconnected(NOW + limit_ms)
    assert connection.times_out_at_ms == NEVER_MS


# REQUESTS IN FLIGHT


def test_one_request_is_written_at_a_time() -> None:
    connection = broker()
    connect(connection)
    become_ready(connection)
    assert connection.can_send(NOW)
    connection.in_flight.append(request := in_flight(is_written=False))
    assert not connection.can_send(NOW)
    request.is_written = True
    assert connection.can_send(NOW)


def test_no_more_than_the_limit_are_in_flight() -> None:
    connection = broker(max_in_flight=2)
    connect(connection)
    become_ready(connection)
    connection.in_flight.extend([in_flight(), in_flight()])
    assert not connection.can_send(NOW)
    connection.in_flight.popleft()
    assert connection.can_send(NOW)


def test_a_request_times_out_after_its_own_time_out() -> None:
    connection = broker()
    connect(connection)
    become_ready(connection)
    assert connection.times_out_at_ms == NEVER_MS
    connection.in_flight.append(in_flight(timeout_ms=100))
    assert connection.times_out_at_ms == NOW + 101
    connection.in_flight.append(in_flight(sent_ms=NOW + 50, timeout_ms=10))
    assert connection.times_out_at_ms == NOW + 61


def test_time_in_which_the_broker_throttles_does_not_count() -> None:
    connection = broker()
    connect(connection)
    become_ready(connection)
    connection.in_flight.append(in_flight(timeout_ms=100))
    connection.throttle(50, NOW)
    assert connection.times_out_at_ms == NOW + 151
    connection.throttle(20, NOW)  # of the next answer, which was read in the same poll
    assert connection.times_out_at_ms == NOW + 171


# BACK-OFF


@given(initial=st.integers(0, 1000), extra=st.integers(0, 100_000), failures=st.integers(0, 1000), seed=st.integers(0, 100))
def test_back_off_stays_within_its_bounds(initial: int, extra: int, failures: int, seed: int) -> None:
    delay_ms = ExponentialBackoff(initial, initial + extra, Random(seed)).backoff_ms(failures)
    assert initial * 0.8 - 1 <= delay_ms <= initial + extra


def test_back_off_without_room_to_grow_is_constant() -> None:
    backoff = ExponentialBackoff(500, 100, Random(0))
    assert {backoff.backoff_ms(failures) for failures in range(10)} == {100}
