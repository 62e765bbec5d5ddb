"""network/metadata_updater.py: what of the brokers' answers is told, and how loud."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.fakes.clock import ManualClock
from tests.fakes.network_config import metadata, network_config, topic


class Sender:
    """One node that is always there."""

    def __init__(self) -> None:
        self.requests: list[MetadataRequest] = []
        self.interrupts: list[BaseException] = []  # each comes when a request has been sent

    def find_least_loaded_node(self, now_ms: int) -> tuple[Node | None, bool]:  # noqa: ARG002
        return Node(0, "broker0", 9010, None), True

    def can_send(self, node_id: int, now_ms: int) -> bool:  # noqa: ARG002
        return True

    can_connect = can_send

    def is_any_node_connecting(self) -> bool:
        return False

    def initiate_connect(self, node: Node, now_ms: int) -> None: ...
    def renew_session(self, node_id: int, now_ms: int) -> None: ...

    def send_metadata_request(self, node_id: int, request: MetadataRequest, now_ms: int) -> None:  # noqa: ARG002
        self.requests.append(request)
        if self.interrupts:
            raise self.interrupts.pop()


class Cluster:
    """Answers what a test says, as often as the updater asks within the time that it lets pass."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        config = network_config()
        self.metadata = Metadata(config, self.clock)
        self.sender = Sender()
        self.updater = MetadataUpdater(self.metadata, self.sender, config)
        self.metadata.add_topic("orders", self.clock.now_ms())

    def answer(self, error: ErrorCode | None, *, after_ms: int = 0) -> None:
        self.clock.advance(after_ms)
        self.metadata.request_update("the test says so", is_urgent=True)
        self.clock.advance(200)  # past any back-off
        self.updater.maybe_update(self.clock.now_ms())
        response = metadata(topic("orders", [0] if error is None else [], error_code=0 if error is None else error.number))
        self.updater.handle_response(self.sender.requests[-1], response, 13, self.clock.now_ms())


@pytest.fixture
def cluster(caplog: pytest.LogCaptureFixture) -> Cluster:
    caplog.set_level(logging.DEBUG)
    return Cluster()


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if "problems with topics" in record.message]


UNKNOWN, LEADERLESS = Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.LEADER_NOT_AVAILABLE


def test_a_topic_that_brokers_are_creating_is_no_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Each topic that was created on first use came with a warning that it is unknown, though all went well."""
    cluster.answer(UNKNOWN)
    cluster.answer(LEADERLESS)
    cluster.answer(None)
    assert levels(caplog) == ["DEBUG", "DEBUG"]


def test_a_topic_that_stays_unknown_is_a_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.answer(UNKNOWN)
    cluster.answer(UNKNOWN, after_ms=1000)
    assert levels(caplog) == ["DEBUG", "WARNING"]
    assert "problems with topics: orders: UNKNOWN_TOPIC_OR_PARTITION" in caplog.text


def test_a_topic_that_was_there_meanwhile_is_quiet_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.answer(UNKNOWN)
    cluster.answer(None, after_ms=1000)
    cluster.answer(UNKNOWN, after_ms=1000)
    assert levels(caplog) == ["DEBUG", "DEBUG"]


@pytest.mark.parametrize("error", [Errors.TOPIC_AUTHORIZATION_FAILED, Errors.INVALID_TOPIC_EXCEPTION], ids=str)
def test_what_no_waiting_mends_is_a_warning_at_once(cluster: Cluster, caplog: pytest.LogCaptureFixture, error: ErrorCode) -> None:
    cluster.answer(error)
    assert levels(caplog) == ["WARNING"]


def test_the_first_warning_of_a_missing_topic_names_the_remedy_and_is_the_only_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing topic was warned of 124 times, without a remedy."""
    for _ in range(50):
        cluster.answer(UNKNOWN, after_ms=1000)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "! metadata reports problems with topics: orders: UNKNOWN_TOPIC_OR_PARTITION (3);"
        " create topics that are unknown, or correct their names"
    ]


def test_another_error_of_a_topic_and_the_same_one_after_recovery_warn_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (Errors.TOPIC_AUTHORIZATION_FAILED, Errors.INVALID_TOPIC_EXCEPTION, Errors.INVALID_TOPIC_EXCEPTION):
        cluster.answer(error)
    cluster.answer(None)
    cluster.answer(Errors.INVALID_TOPIC_EXCEPTION)
    assert levels(caplog) == ["WARNING", "WARNING", "DEBUG", "WARNING"]


@pytest.fixture
def interrupted_and_next(cluster: Cluster) -> tuple[MetadataRequest, MetadataRequest]:
    """A request about a new topic, whose send was interrupted, and the one that is in progress since."""
    cluster.answer(None)
    now_ms = cluster.clock.now_ms()
    cluster.metadata.add_topic("new", now_ms)
    cluster.sender.interrupts.append(MemoryError())
    with pytest.raises(MemoryError):
        cluster.updater.maybe_update(now_ms)
    cluster.metadata.request_update("the test says so", is_urgent=True)
    cluster.updater.maybe_update(now_ms)
    interrupted_request, next_request = cluster.sender.requests[-2:]
    return interrupted_request, next_request


def test_an_answer_to_an_interrupted_request_is_not_taken_for_the_next_ones(
    cluster: Cluster, interrupted_and_next: tuple[MetadataRequest, MetadataRequest]
) -> None:
    """The answer about a new topic was applied as one about all topics, and those that were known left the cluster."""
    interrupted_request, next_request = interrupted_and_next
    now_ms = cluster.clock.now_ms()
    cluster.updater.handle_response(interrupted_request, metadata(topic("new", [0])), 13, now_ms)
    assert set(cluster.metadata.cluster().topics) == {"orders"}
    cluster.updater.handle_response(next_request, metadata(topic("new", [0]), topic("orders", [0])), 13, now_ms)
    assert set(cluster.metadata.cluster().topics) == {"orders", "new"}


def test_the_loss_of_an_interrupted_request_does_not_end_the_next_one(
    cluster: Cluster, interrupted_and_next: tuple[MetadataRequest, MetadataRequest]
) -> None:
    """It did, and the next one's answer was not read: new topics waited for a third request, after a back-off."""
    interrupted_request, next_request = interrupted_and_next
    now_ms = cluster.clock.now_ms()
    cluster.updater.handle_failed_request(interrupted_request, now_ms)
    cluster.updater.handle_response(next_request, metadata(topic("new", [0]), topic("orders", [0])), 13, now_ms)
    assert set(cluster.metadata.cluster().topics) == {"orders", "new"}
