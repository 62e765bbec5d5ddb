"""TransactionClient.end_offsets_question over sockets, against the fake cluster of three brokers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AuthorizationError, BrokerError, KafkaError, KafkaTimeoutError, ProtocolError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.cluster_changes import when
from tests.admin.clusters import Cluster, client_of, count
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.fakes.fake_broker import Fault

PARTITIONS = [partition(index) for index in range(6)]
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
OnePartition = KafkaError | int | None


def ends(
    client: TransactionClient, *partitions: TopicPartition, level: IsolationLevel = COMMITTED, timeout_ms: int | None = None
) -> Mapping[TopicPartition, OnePartition]:
    return client.ask(client.end_offsets_question(partitions, level), timeout_ms=timeout_ms)


def test_rows_without_a_control_record_hold_back_the_last_stable_offset_alone(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    for index in range(6):
        writer.write(b"a", b"b", partition=index)
    broker.transactions.skipped = {partition(1), partition(4)}
    assert not writer.end(commit=True)
    with client_of(broker) as client:
        assert ends(client, *PARTITIONS, partition(1)) == dict(zip(PARTITIONS, [3, 0, 3, 3, 0, 3], strict=True))
        assert ends(client, *PARTITIONS, level=UNCOMMITTED) == dict(zip(PARTITIONS, [3, 2, 3, 3, 2, 3], strict=True))
    requests = broker.requests_of(ApiKey.LIST_OFFSETS)
    assert sorted(request.node_id for request in requests) == [0, 0, 1, 1, 2, 2]  # one to each leader, and one for each level
    assert {request.header.api_version for request in requests} == {6}


def test_leaders_that_are_known_are_asked_without_looking_them_up(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        ends(client, partition(0))
        look_ups = count(broker, ApiKey.METADATA)
        assert ends(client, *PARTITIONS) == dict.fromkeys(PARTITIONS, 0)
        assert count(broker, ApiKey.METADATA) == look_ups


def test_a_leader_that_has_moved_or_stopped_since_is_looked_up_again(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        ends(client, *PARTITIONS)
        broker.move_leader(TOPIC, 0, 1)
        broker.stop_node(2)
        for index in (2, 5):
            broker.move_leader(TOPIC, index, 0)
        assert ends(client, *PARTITIONS, timeout_ms=10_000) == dict.fromkeys(PARTITIONS, 0)


def test_a_partition_without_a_leader_is_said_at_once_beside_the_others(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        ends(client, *PARTITIONS)
        broker.stop_node(1)
        for index in (1, 4):
            broker.move_leader(TOPIC, index, -1)
        expected: dict[TopicPartition, int | None] = dict.fromkeys(PARTITIONS, 0) | dict.fromkeys(PARTITIONS[1::3])
        assert ends(client, *PARTITIONS, timeout_ms=3_600_000) == expected
        broker.move_leader(TOPIC, 1, 0)
        assert ends(client, partition(1)) == {partition(1): 0}


def test_a_leader_that_is_silent_is_the_error_of_its_partitions_alone(cluster: Cluster) -> None:
    broker = cluster()
    broker.hold_next(ApiKey.LIST_OFFSETS, node_id=1)
    with client_of(broker) as client:
        outcomes = ends(client, *PARTITIONS, timeout_ms=2_000)
    assert [isinstance(outcomes[each], KafkaTimeoutError) for each in PARTITIONS] == [False, True, False] * 2
    assert "ListOffsets of partition t-1 was not answered within 2000 ms; the last trouble: node 1 has not answered" in str(
        outcomes[partition(1)]
    )


def test_a_leader_that_is_down_is_waited_for_while_brokers_name_it(cluster: Cluster) -> None:
    """They do so until its session ends; then the partition has another leader, or none."""
    broker = cluster()

    def name_it(response: MetadataResponse) -> MetadataResponse:
        node = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.nodes[1].port)
        others = (each for each in response.brokers if each.node_id != 1)
        return dataclasses.replace(response, brokers=(*others, node))

    with client_of(broker) as client:
        ends(client, *PARTITIONS)
        broker.stop_node(1)
        broker.inject(Fault(ApiKey.METADATA, reply=name_it), times=1_000)
        look_ups = count(broker, ApiKey.METADATA)
        with when(broker, lambda: count(broker, ApiKey.METADATA) >= look_ups + 3, lambda: broker.start_node(1)):
            assert ends(client, *PARTITIONS, timeout_ms=10_000) == dict.fromkeys(PARTITIONS, 0)


def test_what_does_not_exist_or_may_not_be_described_is_the_error_of_one_partition(cluster: Cluster) -> None:
    broker = cluster()
    broker.add_topic("hidden", 1).error = Errors.TOPIC_AUTHORIZATION_FAILED
    absent, hidden = TopicPartition("absent", 0), TopicPartition("hidden", 0)
    with client_of(broker) as client:
        outcomes = ends(client, partition(0), partition(6), absent, hidden)
        assert outcomes[partition(0)] == 0
        for name in (partition(6), absent):
            assert isinstance(outcomes[name], BrokerError)
            assert outcomes[name].error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number
        assert isinstance(outcomes[hidden], AuthorizationError)
        broker.fail_next(ApiKey.LIST_OFFSETS, Errors.TOPIC_AUTHORIZATION_FAILED)
        error = ends(client, partition(0))[partition(0)]
    assert "Grant the user DESCRIBE on the topic 't', which WRITE and READ include." in str(error)


@pytest.mark.parametrize("api_key", [ApiKey.LIST_OFFSETS, ApiKey.METADATA])
def test_an_answer_that_leaves_a_partition_out_is_an_error(cluster: Cluster, api_key: ApiKey) -> None:
    broker = cluster()
    with client_of(broker) as client:
        client.describe_transactions(["P"])
        broker.inject(Fault(api_key, reply=lambda response: dataclasses.replace(response, topics=())))
        assert isinstance(ends(client, partition())[partition()], ProtocolError)


def test_lost_answers_and_a_leader_that_is_not_ready_are_asked_again(cluster: Cluster) -> None:
    broker = cluster()
    broker.drop_next(ApiKey.LIST_OFFSETS, times=2)
    broker.fail_next(ApiKey.LIST_OFFSETS, Errors.OFFSET_NOT_AVAILABLE, times=2)
    with client_of(broker) as client:
        assert ends(client, partition()) == {partition(): 0}


def test_ends_are_asked_for_beside_other_questions_and_of_nobody_for_no_partition(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        assert ends(client) == {}
        assert broker.requests == []
        replies = client.ask_together(
            client.end_offsets_question(PARTITIONS, COMMITTED),
            client.end_offsets_question([TopicPartition("absent", 0)], UNCOMMITTED).then(len),
            client.describe_producers_question(PARTITIONS),
            client.describe_transactions_question(["P"]),
        )
        answers = [reply.read_answer() for reply in replies]
    assert answers == [dict.fromkeys(PARTITIONS, 0), 1, {name: {} for name in PARTITIONS}, {"P": None}]
