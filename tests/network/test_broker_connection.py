"""network/broker_connection.py and backoff.py: the scenarios of Kafka's ClusterConnectionStatesTest."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.broker_connection import ClusterConnectionStates, ConnectionState

NODE = 1
NOW = 1_000_000


class Names:
    """DNS, whose answers the test decides."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def look_up(self) -> Sequence[str]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return answer


def states() -> ClusterConnectionStates:
    return ClusterConnectionStates(
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1000,
        connection_setup_timeout_ms=10_000,
        connection_setup_timeout_max_ms=30_000,
        random=Random(0),
    )


def connect(table: ClusterConnectionStates, names: Names | None = None, host: str = "host") -> str:
    table.connecting(NODE, NOW, host, 9092)
    if table.current_address(NODE) is None:
        table.resolved(NODE, (names or Names(["a"])).look_up(), NOW)
    return str(table.current_address(NODE))


def is_about(actual: int, expected: int) -> bool:
    return expected * 0.8 - 1 <= actual <= expected * 1.2 + 1


def test_an_unknown_node_can_be_connected_at_once() -> None:
    table = states()
    assert table.can_connect(NODE, NOW)
    assert table.connection_delay_ms(NODE, NOW) == 0
    assert table.state(NODE) is None


def test_the_way_to_ready() -> None:
    table = states()
    connect(table)
    assert table.is_connecting(NODE)
    assert table.is_preparing_connection(NODE)
    assert not table.can_connect(NODE, NOW)
    table.checking_api_versions(NODE)
    assert not table.is_connecting(NODE)
    assert table.is_preparing_connection(NODE)
    assert table.is_connected(NODE)
    assert not table.is_ready(NODE, NOW)
    table.ready(NODE)
    assert table.is_ready(NODE, NOW)
    assert table.connection_delay_ms(NODE, NOW) == NEVER_MS


def test_a_step_that_is_not_in_the_table_is_an_error() -> None:
    table = states()
    connect(table)
    with pytest.raises(RuntimeError, match="cannot go from CONNECTING to READY"):
        table.ready(NODE)
    assert table.state(NODE) is ConnectionState.CONNECTING


def test_reconnect_back_off_doubles_until_its_limit_and_ends_with_ready() -> None:
    table = states()
    for expected in (50, 100, 200, 400, 800):
        connect(table)
        table.disconnected(NODE, NOW)
        assert is_about(table.connection_delay_ms(NODE, NOW), expected)
        assert not table.can_connect(NODE, NOW)
        assert table.can_connect(NODE, NOW + expected * 2)
    for _ in range(70):
        connect(table)
        table.disconnected(NODE, NOW)
    assert table.connection_delay_ms(NODE, NOW) <= 1000
    connect(table)
    table.checking_api_versions(NODE)
    table.ready(NODE)
    table.disconnected(NODE, NOW)
    assert is_about(table.connection_delay_ms(NODE, NOW), 50)


def test_back_off_counts_from_the_end_of_a_connection_not_from_its_beginning() -> None:
    table = states()
    connect(table)
    table.checking_api_versions(NODE)
    table.ready(NODE)
    table.disconnected(NODE, NOW + 60_000)
    assert not table.can_connect(NODE, NOW + 60_000)
    assert is_about(table.connection_delay_ms(NODE, NOW + 60_000), 50)
    table.connecting(NODE, NOW + 120_000, "host", 9092)
    table.disconnected(NODE, NOW + 130_000)
    table.authentication_failed(NODE, NOW + 140_000, AuthenticationError("no"))
    assert not table.can_connect(NODE, NOW + 140_000)


def test_set_up_time_out_doubles_with_each_attempt_and_ends_with_a_connection() -> None:
    table = states()
    for expected in (10_000, 20_000, 30_000):
        connect(table)
        assert is_about(table.setup_timeout_ms(NODE), expected)
        assert table.setup_timeout_ms(NODE) <= 30_000
        assert table.nodes_with_setup_timeout(NOW + table.setup_timeout_ms(NODE)) == []
        assert table.nodes_with_setup_timeout(NOW + table.setup_timeout_ms(NODE) + 1) == [NODE]
        table.disconnected(NODE, NOW)
    connect(table)
    table.checking_api_versions(NODE)
    assert is_about(table.setup_timeout_ms(NODE), 10_000)
    assert table.nodes_with_setup_timeout(NOW + 1_000_000) == []


def test_while_connecting_the_delay_is_the_set_up_time_out() -> None:
    table = states()
    connect(table)
    assert table.connection_delay_ms(NODE, NOW) == table.setup_timeout_ms(NODE)


def test_refused_authentication_is_remembered_until_the_node_accepts_us() -> None:
    table = states()
    error = AuthenticationError("no")
    connect(table)
    table.checking_api_versions(NODE)
    table.disconnected(NODE, NOW)
    table.authentication_failed(NODE, NOW, error)
    assert table.authentication_error(NODE) is error
    assert table.is_disconnected(NODE)
    assert not table.can_connect(NODE, NOW)
    assert table.can_connect(NODE, NOW + 1000)
    connect(table)
    assert table.authentication_error(NODE) is error
    table.checking_api_versions(NODE)
    table.ready(NODE)
    assert (table.refusals(NODE), table.is_shut_out(NODE)) == (1, False)
    table.accepted(NODE)
    assert table.authentication_error(NODE) is None
    assert table.refusals(NODE) == 0


def test_refusals_in_a_row_are_counted_whatever_fails_between_them() -> None:
    table = states()
    for expected in (1, 2):
        connect(table)
        table.disconnected(NODE, NOW)  # not reached at all: says nothing
        assert table.is_shut_out(NODE)
        connect(table)
        table.checking_api_versions(NODE)
        table.disconnected(NODE, NOW)
        table.authentication_failed(NODE, NOW, AuthenticationError("no"))
        assert table.refusals(NODE) == expected


def test_a_node_that_was_lost_is_not_shut_out_until_it_cannot_be_reached() -> None:
    table = states()
    assert not table.is_shut_out(NODE)
    connect(table)
    assert not table.is_shut_out(NODE)
    table.checking_api_versions(NODE)
    table.ready(NODE)
    table.accepted(NODE)
    table.disconnected(NODE, NOW)
    assert not table.is_shut_out(NODE)
    connect(table)
    table.disconnected(NODE, NOW)
    assert table.is_shut_out(NODE)


def test_a_throttled_node_is_not_ready_and_throttling_never_shrinks() -> None:
    table = states()
    connect(table)
    table.checking_api_versions(NODE)
    table.ready(NODE)
    table.throttle(NODE, NOW + 100)
    table.throttle(NODE, NOW + 50)
    assert not table.is_ready(NODE, NOW + 99)
    assert table.throttle_delay_ms(NODE, NOW + 40) == 60
    assert table.poll_delay_ms(NODE, NOW + 40) == 60
    assert table.is_ready(NODE, NOW + 100)
    assert table.poll_delay_ms(NODE, NOW + 100) == NEVER_MS


def test_a_disconnected_node_waits_for_back_off_though_it_was_throttled() -> None:
    table = states()
    connect(table)
    table.throttle(NODE, NOW + 10_000)
    table.disconnected(NODE, NOW)
    assert table.poll_delay_ms(NODE, NOW) <= 60


def test_every_address_is_tried_before_the_name_is_resolved_again() -> None:
    names = Names(["a", "b", "c"], ["d"])
    table = states()
    tried = []
    for _ in range(4):
        tried.append(connect(table, names))
        table.disconnected(NODE, NOW)
    assert tried == ["a", "b", "c", "d"]
    assert names.asked == 2


def test_a_single_address_is_resolved_again_for_each_attempt() -> None:
    names = Names(["a"])
    table = states()
    for _ in range(3):
        assert connect(table, names) == "a"
        table.disconnected(NODE, NOW)
    assert names.asked == 3


def test_after_a_lost_connection_the_name_is_resolved_to_another_address_first() -> None:
    names = Names(["a", "b"], ["a", "b"])
    table = states()
    assert connect(table, names) == "a"
    table.checking_api_versions(NODE)
    table.disconnected(NODE, NOW)
    assert connect(table, names) == "b"
    assert names.asked == 2


def test_a_name_that_does_not_resolve_can_be_tried_again() -> None:
    table = states()
    table.connecting(NODE, NOW, "host", 9092)
    assert table.current_address(NODE) is None
    table.disconnected(NODE, NOW)
    assert connect(table) == "a"


def test_resolving_is_limited_by_the_set_up_time_out_and_leaves_the_address_its_own() -> None:
    table = states()
    table.connecting(NODE, NOW, "host", 9092)
    limit_ms = table.setup_timeout_ms(NODE)
    assert table.next_setup_timeout_ms(NOW) == limit_ms + 1
    assert table.nodes_with_setup_timeout(NOW + limit_ms + 1) == [NODE]
    table.resolved(NODE, ["a"], NOW + limit_ms)
    assert table.nodes_with_setup_timeout(NOW + limit_ms + 1) == []
    assert table.next_setup_timeout_ms(NOW + limit_ms) == limit_ms + 1
    table.disconnected(NODE, NOW + limit_ms)
    assert table.next_setup_timeout_ms(NOW + limit_ms) == NEVER_MS


def test_a_node_that_moved_starts_without_the_failures_of_its_old_address() -> None:
    table = states()
    for _ in range(5):
        connect(table, Names(["a", "b"]))
        table.disconnected(NODE, NOW)
    connect(table, host="elsewhere")
    assert table.address_text(NODE) == "elsewhere:9092"
    assert is_about(table.setup_timeout_ms(NODE), 10_000)
    table.disconnected(NODE, NOW)
    assert is_about(table.connection_delay_ms(NODE, NOW), 50)


@given(initial=st.integers(0, 1000), extra=st.integers(0, 100_000), failures=st.integers(0, 1000), seed=st.integers(0, 100))
def test_back_off_stays_within_its_bounds(initial: int, extra: int, failures: int, seed: int) -> None:
    delay_ms = ExponentialBackoff(initial, initial + extra, Random(seed)).backoff_ms(failures)
    assert initial * 0.8 - 1 <= delay_ms <= initial + extra


def test_back_off_without_room_to_grow_is_constant() -> None:
    backoff = ExponentialBackoff(500, 100, Random(0))
    assert {backoff.backoff_ms(failures) for failures in range(10)} == {100}
