"""NetworkClient, Selector and Metadata together, over real sockets, against the fake broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.network_config import network_config
from tests.fakes.record_encoder import encode_batch

POLLS = 500
INIT = InitProducerIdRequest(transaction_timeout_ms=1000)


class SocketClient:
    """A NetworkClient over sockets, polled by the test."""

    def __init__(self, broker: FakeBroker, **options: object) -> None:
        self.clock = Clock()
        config = network_config(bootstrap_servers=broker.bootstrap_servers, **options)
        self.metadata = Metadata(config, self.clock)
        self.network = NetworkClient(config, self.metadata, self.clock)
        self.responses: list[ClientResponse] = []

    def poll_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(POLLS):
            if condition():
                return
            self.network.poll(50, self.clock.now_ms())
        raise AssertionError("it did not happen")

    def connect(self, node_id: int) -> None:
        self.poll_until(lambda: self.network.ready(node_id, self.clock.now_ms()))

    def know(self, topic: str) -> None:
        self.metadata.add_topic(topic, self.clock.now_ms())
        self.poll_until(lambda: self.metadata.cluster().partition_count(topic) is not None)

    def call(
        self, node_id: int, message: ProduceRequest | InitProducerIdRequest, *, max_version: int | None = None
    ) -> ClientResponse:
        self.connect(node_id)
        before = len(self.responses)
        acks = getattr(message, "acks", -1)
        request = ClientRequest(node_id, message, self.clock.now_ms(), acks != 0, 10_000, self.responses.append, max_version)
        self.network.send(request, self.clock.now_ms())
        self.poll_until(lambda: len(self.responses) > before)
        return self.responses[-1]

    def produce(
        self, topic: str, values: list[bytes | None], *, acks: int = -1, max_version: int | None = None
    ) -> ClientResponse:
        cluster = self.metadata.cluster()
        leader = cluster.leader_for(TopicPartition(topic, 0))
        assert leader is not None
        data = PartitionProduceData(index=0, records=[encode_batch(values)])
        topic_id = cluster.topic_id(topic)
        topic_data = TopicProduceData(name=topic, partition_data=(data,), **({"topic_id": topic_id} if topic_id else {}))
        return self.call(leader, ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(topic_data,)), max_version=max_version)


@contextmanager
def client_of(broker: FakeBroker, **options: object) -> Iterator[SocketClient]:
    client = SocketClient(broker, **options)
    try:
        yield client
    finally:
        client.network.close()


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_is_written_and_answered(version: int) -> None:
    with FakeBroker(topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        response = client.produce("t", [b"a", None], max_version=version)
        assert response.version == version
        (topic,) = response.message.responses
        assert (topic.partition_responses[0].error_code, topic.partition_responses[0].base_offset) == (0, 0)
        assert broker.values("t") == [b"a", None]
        assert broker.violations == []


@pytest.mark.parametrize("version", range(API_TABLE[ApiKey.METADATA].min_version, API_TABLE[ApiKey.METADATA].max_version + 1))
def test_every_version_of_metadata_is_understood(version: int) -> None:
    with FakeBroker(nodes=2, topics={"t": 3}, versions={ApiKey.METADATA: (0, version)}) as broker, client_of(broker) as client:
        client.know("t")
        cluster = client.metadata.cluster()
        assert [info.leader for info in cluster.partitions_for("t")] == [0, 1, 0]
        assert (cluster.topic_id("t") is not None) == (version >= 10)


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_init_producer_id_is_answered(version: int) -> None:
    with FakeBroker() as broker, client_of(broker) as client:
        response = client.call(0, INIT, max_version=version)
        assert isinstance(response.message, InitProducerIdResponse)
        assert (response.version, response.message.producer_id, response.message.producer_epoch) == (version, 1000, 0)


@pytest.mark.parametrize("newest", range(5))
def test_a_broker_with_any_version_of_api_versions_is_understood(newest: int) -> None:
    with FakeBroker(versions={ApiKey.API_VERSIONS: (0, newest)}) as broker, client_of(broker) as client:
        client.connect(0)
        versions = [request.header.api_version for request in broker.requests_of(ApiKey.API_VERSIONS) if request.node_id == 0]
        assert set(versions) == {newest}  # what was refused is not counted


def test_acks_0_is_complete_without_an_answer() -> None:
    with FakeBroker(topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        response = client.produce("t", [b"a"], acks=0)
        assert not response.was_disconnected
        assert response.message is None
        broker.wait_until(lambda: broker.values("t") == [b"a"])


def test_a_dropped_connection_is_reported_and_made_again() -> None:
    with FakeBroker(topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        broker.drop_next(ApiKey.PRODUCE)
        assert client.produce("t", [b"a"]).was_disconnected
        broker.drop_next(ApiKey.PRODUCE, after_append=True)
        assert client.produce("t", [b"b"]).was_disconnected
        assert not client.produce("t", [b"c"]).was_disconnected
        assert broker.values("t") == [b"b", b"c"]


def test_a_broker_that_stops_and_comes_back_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker(nodes=1, topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        broker.stop_node(0)
        client.poll_until(lambda: "Connection refused" in (client.metadata.last_connection_error() or ""))
        assert "Connection refused" in caplog.text
        broker.start_node(0)
        client.connect(0)
        assert client.metadata.last_connection_error() is None
        assert not client.produce("t", [b"a"]).was_disconnected


def test_a_moved_leader_is_found_through_metadata() -> None:
    with FakeBroker(nodes=2, topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        broker.move_leader("t", 0, 1)
        (topic,) = client.produce("t", [b"a"]).message.responses
        assert topic.partition_responses[0].error_code == Errors.NOT_LEADER_OR_FOLLOWER.number
        assert topic.partition_responses[0].current_leader.leader_id == 1
        client.metadata.request_update("the test asks")
        client.poll_until(lambda: client.metadata.cluster().leader_for(TopicPartition("t", 0)) == 1)
        assert not client.produce("t", [b"a"]).was_disconnected


def test_several_requests_are_in_flight_and_answered_in_order() -> None:
    with FakeBroker() as broker, client_of(broker, max_in_flight_requests_per_connection=3) as client:
        client.connect(0)
        release = broker.hold_next(ApiKey.INIT_PRODUCER_ID)
        for _ in range(3):
            client.poll_until(lambda: client.network.ready(0, client.clock.now_ms()))
            request = ClientRequest(0, INIT, client.clock.now_ms(), True, 10_000, client.responses.append)
            client.network.send(request, client.clock.now_ms())
        client.network.poll(0, client.clock.now_ms())
        assert client.network.in_flight_request_count(0) == 3
        assert not client.network.ready(0, client.clock.now_ms())
        release.set()
        client.poll_until(lambda: len(client.responses) == 3)
        assert [response.message.producer_id for response in client.responses] == [1000, 1001, 1002]


def test_a_broker_that_does_not_answer_is_given_up() -> None:
    with FakeBroker() as broker, client_of(broker, request_timeout_ms=200, delivery_timeout_ms=1000) as client:
        client.connect(0)
        release = broker.hold_next(ApiKey.INIT_PRODUCER_ID)
        request = ClientRequest(0, INIT, client.clock.now_ms(), True, 200, client.responses.append)
        client.network.send(request, client.clock.now_ms())
        client.poll_until(lambda: bool(client.responses))
        assert client.responses[0].has_timed_out
        release.set()


@pytest.mark.timeout(20)
def test_wakeup_from_another_thread_ends_a_poll() -> None:
    with FakeBroker() as broker, client_of(broker) as client:
        client.connect(0)
        thread = threading.Thread(target=client.network.wakeup)
        thread.start()
        client.network.poll(600_000, client.clock.now_ms())
        thread.join()


def test_a_port_that_speaks_something_else_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker() as broker:
        broker.nodes[0].greeting = b"SSH-2.0-OpenSSH_9.2\r\n"
        with client_of(broker) as client:
            client.poll_until(lambda: client.metadata.last_connection_error() is not None)
    assert "is this a Kafka listener with the security protocol of this client?" in caplog.text


def test_waiting_callers_get_metadata_from_the_thread_that_polls() -> None:
    with FakeBroker(auto_create_partitions=2) as broker, client_of(broker) as client:
        counts: list[int | None] = []

        def wait() -> None:
            client.metadata.add_topic("new", client.clock.now_ms())
            while client.metadata.cluster().partition_count("new") is None:
                version = client.metadata.request_update_for_topic("new")
                client.network.wakeup()
                client.metadata.await_update(version, 10_000)
            counts.append(client.metadata.cluster().partition_count("new"))

        thread = threading.Thread(target=wait)
        thread.start()
        client.poll_until(lambda: bool(counts))
        thread.join(10)
        assert counts == [2]


def test_a_produce_response_carries_record_errors() -> None:
    with FakeBroker(topics={"t": 1}) as broker, client_of(broker) as client:
        client.know("t")
        response = client.produce("t", [])
        assert isinstance(response.message, ProduceResponse)
        part = response.message.responses[0].partition_responses[0]
        assert part.error_code == Errors.INVALID_RECORD.number
        assert part.error_message == "0 records"
