"""network/network_client.py: brokers that cannot be connected to, and names that DNS does not know."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import pytest

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from tests.fakes.clock import ManualClock
from tests.fakes.network_config import metadata
from tests.network.network_client.harness import INIT_RESPONSE, Net


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

    names, net.names = net.names, unknown
    with caplog.at_level(logging.DEBUG):
        net.poll(4)
    assert re.search(r"= node -(\d): looking up boot\1\n", caplog.text)
    assert "Name or service not known" in caplog.text
    assert "Name or service not known" in (net.metadata.last_connection_error() or "")
    assert net.selector.attempts == []
    net.names = names
    net.connect(0)


def test_a_resolver_that_is_silent_stalls_no_other_broker(net: Net) -> None:
    """Names were looked up on the Sender's thread: a resolver that took 30 s to fail kept rows from all brokers for 30 s."""
    net.connect(0)
    net.worker.silent_names = {"broker1"}
    assert not net.ready(1)
    for _ in range(100):
        request = net.send(0)
        net.selector.respond(request, INIT_RESPONSE)
        net.poll(timeout_ms=50)
        assert not net.ready(1)
    assert len(net.responses) == 100
    assert not any(response.was_disconnected for response in net.responses)
    assert [node_id for node_id, _ in net.selector.attempts if node_id == 1] == []
    assert not net.client.is_disconnected(1)
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
    while not net.client.is_disconnected(1):
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
    net.ask_for_metadata()
    for node_id, expected in ((1, "127.0.0.1:9011"), (2, "[::1]:9012")):
        net.ready(node_id)
        assert net.worker.waiting == {}
        assert str(net.selector.attempts[-1][1]) == expected


def test_a_resolver_that_finds_nothing_is_an_unreachable_broker(net: Net) -> None:
    names, net.names = net.names, lambda _host, _port: []
    net.poll(3)
    assert "boot1 has no address" in (net.metadata.last_connection_error() or "") or "boot2 has no address" in (
        net.metadata.last_connection_error() or ""
    )
    net.names = names
    net.connect(0)


def test_every_address_of_a_broker_is_tried(net: Net) -> None:
    net.connect()
    net.names = lambda host, port: [Address(2, (f"{host}-a", 1)), Address(2, (f"{host}-b", port))]
    net.selector.refused = {1: "refused"}
    net.connect(1)
    tried = [address.socket_address[0] for node_id, address in net.selector.attempts if node_id == 1]
    assert tried == ["broker1-a", "broker1-b"]


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
