"""network/network_client.py: which node is the least loaded, and when there is none."""

from __future__ import annotations

import dataclasses

from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.network_config import metadata, topic
from tests.network.network_client.harness import INIT_RESPONSE, Net


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
    request = net.send(0)
    net.selector.respond(request, dataclasses.replace(INIT_RESPONSE, throttle_time_ms=100))
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
    request_count = len(net.selector.sent_of(ApiKey.METADATA))
    net.clock.advance(20_000)
    net.poll()
    assert len(net.selector.sent_of(ApiKey.METADATA)) == request_count + 1


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
