"""TransactionClient.describe_producers over sockets, against the fake cluster of three brokers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from spark_kafka_sink.admin.leaders import ActiveProducer
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AuthorizationError, BrokerError, KafkaError, KafkaTimeoutError, ProtocolError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.cluster_changes import when
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.fakes.fake_broker import FakeBroker, Fault

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=3, topics={TOPIC: 6}) as broker:
        yield broker
        assert broker.violations == []


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[TransactionClient]:
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers} | QUICK) as client:
        yield client


def producers(outcome: dict[int, ActiveProducer] | KafkaError) -> dict[int, ActiveProducer]:
    assert not isinstance(outcome, KafkaError)
    return outcome


def test_each_leader_tells_the_producers_of_its_partitions(broker: FakeBroker, client: TransactionClient) -> None:
    writer, other = Writer(broker, "P"), Writer(broker, "other")
    for index in range(6):
        writer.write(b"a", b"b", partition=index)
    other.write(b"c", partition=3)
    other.end(commit=True)
    outcomes = client.describe_producers([*map(partition, range(6)), partition(0)])
    assert list(outcomes) == list(map(partition, range(6)))
    mine = ActiveProducer(writer.epoch, 1, 0)
    assert {index: producers(outcomes[partition(index)])[writer.producer_id] for index in range(6)} == dict.fromkeys(
        range(6), mine
    )
    ended = producers(outcomes[partition(3)])[other.producer_id]
    assert (ended.producer_epoch, ended.last_sequence, ended.transaction_start_offset) == (other.epoch + 1, -1, None)
    requests = broker.requests_of(ApiKey.DESCRIBE_PRODUCERS)
    assert sorted(request.node_id for request in requests) == [0, 0, 1, 1, 2, 2]


def test_a_row_that_arrives_changes_what_describe_producers_returns(broker: FakeBroker, client: TransactionClient) -> None:
    writer = Writer(broker, "P")
    writer.write(b"a")
    before = client.describe_producers([partition()])
    assert client.describe_producers([partition()]) == before
    writer.write(b"b")
    assert client.describe_producers([partition()]) != before


def test_a_leader_that_moves_meanwhile_is_followed(broker: FakeBroker, client: TransactionClient) -> None:
    writer = Writer(broker, "P")
    writer.write(b"a", partition=1)

    def old_leader(response: MetadataResponse) -> MetadataResponse:
        topics = [
            dataclasses.replace(topic, partitions=tuple(dataclasses.replace(part, leader_id=1) for part in topic.partitions))
            for topic in response.topics
        ]
        return dataclasses.replace(response, topics=tuple(topics))

    client.describe_transactions(["P"])  # its own metadata is there
    broker.move_leader(TOPIC, 1, 2)
    broker.inject(Fault(ApiKey.METADATA, reply=old_leader))
    outcomes = client.describe_producers([partition(1)])
    assert writer.producer_id in producers(outcomes[partition(1)])
    assert [request.node_id for request in broker.requests_of(ApiKey.DESCRIBE_PRODUCERS)] == [1, 2]


def test_a_replica_that_led_before_is_not_asked(broker: FakeBroker, client: TransactionClient) -> None:
    """Followers answer too, with what they know: one that lags behind does not know that a transaction is open."""
    client.describe_producers([partition(1)])
    broker.move_leader(TOPIC, 1, 2)
    client.describe_producers([partition(1)])
    assert [request.node_id for request in broker.requests_of(ApiKey.DESCRIBE_PRODUCERS)] == [1, 2]


def test_a_leader_that_has_joined_the_cluster_since_is_found(broker: FakeBroker, client: TransactionClient) -> None:
    broker.stop_node(2)
    for transactional_id in ("P-0", "P-1"):
        broker.move_coordinator(KeyType.TRANSACTION, transactional_id, 0)
    client.describe_transactions(["P-0", "P-1"])  # metadata without it is there
    broker.start_node(2)
    assert client.describe_producers([partition(2)], timeout_ms=10_000) == {partition(2): {}}


def test_a_partition_without_a_leader_is_waited_for(broker: FakeBroker, client: TransactionClient) -> None:
    writer = Writer(broker, "P")
    writer.write(b"a", partition=1)
    client.describe_transactions(["P"])
    broker.move_leader(TOPIC, 1, -1)
    with when(broker, lambda: len(broker.requests_of(ApiKey.METADATA)) >= 6, lambda: broker.move_leader(TOPIC, 1, 0)):
        outcomes = client.describe_producers([partition(0), partition(1)])
    assert producers(outcomes[partition(0)]) == {}
    assert writer.producer_id in producers(outcomes[partition(1)])
    assert len(broker.requests_of(ApiKey.DESCRIBE_PRODUCERS)) == 2  # what is known is not asked again


def test_a_partition_that_never_gets_a_leader_is_an_error_in_time_beside_the_others(
    broker: FakeBroker, client: TransactionClient
) -> None:
    broker.move_leader(TOPIC, 1, -1)
    outcomes = client.describe_producers([partition(0), partition(1)], timeout_ms=5_000)
    assert producers(outcomes[partition(0)]) == {}
    assert isinstance(outcomes[partition(1)], KafkaTimeoutError)
    assert "DescribeProducers of partition t-1 was not answered within 5000 ms; the last trouble: it has no leader" in str(
        outcomes[partition(1)]
    )


def test_topics_and_partitions_that_do_not_exist_are_errors_at_once(broker: FakeBroker, client: TransactionClient) -> None:
    outcomes = client.describe_producers([partition(0), partition(6), TopicPartition("absent", 0)], timeout_ms=3_600_000)
    assert producers(outcomes[partition(0)]) == {}
    for name in (partition(6), TopicPartition("absent", 0)):
        error = outcomes[name]
        assert isinstance(error, BrokerError)
        assert error.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number
    assert "t-6" in str(outcomes[partition(6)])
    assert all(
        not request.message.allow_auto_topic_creation
        for request in broker.requests_of(ApiKey.METADATA)
        if isinstance(request.message, MetadataRequest) and request.message.topics
    )


def test_a_missing_permission_is_the_error_of_its_topic_alone(broker: FakeBroker, client: TransactionClient) -> None:
    for topic in ("hidden", "invisible"):
        broker.add_topic(topic, 1)
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED)
    outcomes = client.describe_producers([TopicPartition("hidden", 0)])
    error = outcomes[TopicPartition("hidden", 0)]
    assert isinstance(error, AuthorizationError)
    assert "Grant the user READ on the topic 'hidden'" in str(error)
    broker.topics["invisible"].error = Errors.TOPIC_AUTHORIZATION_FAILED
    outcomes = client.describe_producers([TopicPartition("invisible", 0), partition()])
    assert isinstance(outcomes[TopicPartition("invisible", 0)], AuthorizationError)
    assert producers(outcomes[partition()]) == {}


def test_lost_answers_are_asked_for_again(broker: FakeBroker, client: TransactionClient) -> None:
    broker.drop_next(ApiKey.DESCRIBE_PRODUCERS, times=2)
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.REQUEST_TIMED_OUT)
    assert client.describe_producers([partition()]) == {partition(): {}}


@pytest.mark.parametrize("api_key", [ApiKey.DESCRIBE_PRODUCERS, ApiKey.METADATA])
def test_an_answer_that_leaves_a_partition_out_is_not_taken_for_no_producers(
    broker: FakeBroker, client: TransactionClient, api_key: ApiKey
) -> None:
    client.describe_transactions(["P"])
    broker.inject(Fault(api_key, reply=lambda response: dataclasses.replace(response, topics=())))
    assert isinstance(client.describe_producers([partition()])[partition()], ProtocolError)


def test_other_producers_are_left_out_on_demand(broker: FakeBroker, client: TransactionClient) -> None:
    writers = [Writer(broker, f"P-{number}") for number in range(3)]
    for writer in writers:
        writer.write(b"a")
    outcomes = client.describe_producers([partition()], [writers[1].producer_id, 77])
    assert list(producers(outcomes[partition()])) == [writers[1].producer_id]


def test_many_partitions_are_described(broker: FakeBroker, client: TransactionClient) -> None:
    broker.add_topic("wide", 90)
    names = [TopicPartition("wide", index) for index in range(90)]
    assert client.describe_producers(names) == {name: {} for name in names}
    assert client.describe_producers([]) == {}
