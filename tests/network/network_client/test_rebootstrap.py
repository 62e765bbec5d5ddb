"""network/network_client.py: when the client starts again from bootstrap.servers, and clusters that are another one."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.errors import (
    NetworkError,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.fake_selector import SentRequest
from tests.fakes.network_config import metadata, topic
from tests.network.network_client.harness import Net


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
    request = net.send(0, request_timeout_ms=1_000_000)
    net.poll()
    net.cluster = None
    net.metadata.request_update("test")
    net.clock.advance(200)
    net.poll(2)
    assert net.client.in_flight_request_count(request.node_id) >= 1
    for _ in range(70):
        net.clock.advance(1000)
        net.poll()
        if net.metadata.cluster().is_bootstrap:
            break
    assert net.metadata.cluster().is_bootstrap
    assert [response.was_disconnected for response in net.responses] == [True]
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


def test_metadata_of_another_cluster_are_not_believed_and_bootstrap_is_asked(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    """The address of a broker that is gone was given to a broker of another cluster: its picture must not replace ours."""
    net.connect(0, 1)
    node_ids: list[int] = []

    def answer(request: SentRequest) -> Message | None:
        if not isinstance(request.message, MetadataRequest):
            return net.answer(request)
        node_ids.append(request.node_id)
        return metadata(topic("orders", [0, 1]), cluster_id="c" if request.node_id < 0 else "other")

    net.selector.answer = answer
    with caplog.at_level(logging.WARNING):
        net.ask_for_metadata()
    assert node_ids[0] >= 0
    assert node_ids[1] < 0
    assert net.metadata.cluster().cluster_id == "c"
    assert net.metadata.permanent_error() is None
    assert "ignoring metadata from a broker of another cluster, other;" in caplog.text


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_when_the_bootstrap_servers_are_of_another_cluster_nothing_goes_on(strategy: str) -> None:
    net = Net(metadata_recovery_strategy=strategy)
    net.connect(0, 1)
    net.cluster = metadata(topic("orders", [0, 1]), cluster_id="other")
    net.ask_for_metadata()
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
    net.ask_for_metadata()
    net.cluster = metadata(topic("orders", [1]), cluster_id="c")
    net.ask_for_metadata()
    assert net.metadata.permanent_error() is None
    assert net.metadata.cluster().partition_count("orders") is None  # nobody asked for it; the answers were taken over
    assert net.metadata.cluster().cluster_id == "c"
