"""Real brokers of which one is away while a transaction ends: what they tell about it, and how the end is repeated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from jobs.local_kafka import LocalKafka
from jobs.processes import wait_until
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndOutcome, EndToRepeat, TransactionEnd, TransactionState
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.integration.transaction_brokers import VERSION_1, transactional

LIMIT_S = 60
PARTITIONS = [TopicPartition("t", index) for index in range(4)]  # of one replica each, on both nodes
AWAY = 2  # the node that goes; the other one has the controller
REPLICATED = {"transaction.state.log.min.isr": "1"}
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED

Ends = dict[TopicPartition, int | KafkaError | None]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="transaction.version=2", marks=pytest.mark.slow),
        pytest.param({"format_options": VERSION_1}, id="transaction.version=1", marks=pytest.mark.slow),
        pytest.param({"version": "4.2.0"}, id="4.2", marks=pytest.mark.matrix),
        pytest.param({"version": "4.4.0"}, id="4.4", marks=pytest.mark.matrix),
    ],
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path_factory.mktemp("brokers"), brokers=2, properties=REPLICATED, **request.param) as cluster:
        cluster.create_topic("t", len(PARTITIONS), replication_factor=1)
        yield cluster


@pytest.fixture
def client(cluster: LocalKafka) -> Iterator[TransactionClient]:
    with TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}) as client:
        yield client


def becomes_true(condition: Callable[[], bool]) -> bool:
    return wait_until(condition, time.monotonic() + LIMIT_S)


def ends(client: TransactionClient, level: IsolationLevel = COMMITTED) -> Ends:
    return client.ask(client.end_offsets_question(PARTITIONS, level))


def ended_while_a_node_was_away(
    cluster: LocalKafka, client: TransactionClient, *, commit: bool
) -> tuple[PreparedTransaction, list[TopicPartition]]:
    """The transaction as its coordinator describes it then, and the partitions that had no leader."""
    with transactional(cluster.bootstrap_servers, f"P-{uuid.uuid4().hex}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for name in PARTITIONS:
            producer.send(name.topic, b"row", partition=name.partition)
        prepared = producer.prepare_transaction()
        cluster.terminate(AWAY)
        try:
            assert becomes_true(lambda: None in ends(client).values())
            leaderless = [name for name, end in ends(client).items() if end is None]
            outcomes = client.end_transactions([prepared], commit)
            assert outcomes == {prepared.transactional_id: EndOutcome(TransactionEnd.ENDED)}
        finally:
            cluster.restart(AWAY)
    assert becomes_true(lambda: all(isinstance(end, int) for end in ends(client).values()))
    (description,) = client.describe_transactions([prepared.transactional_id]).values()
    assert description is not None
    return PreparedTransaction(description.transactional_id, *description.identity, prepared.transaction_version), leaderless


def is_settled(client: TransactionClient) -> bool:
    return ends(client) == ends(client, UNCOMMITTED)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_without_a_leader_is_repeated_and_settled(cluster: LocalKafka, client: TransactionClient, commit: bool) -> None:
    skips = cluster.version != "4.2.0"
    assert client.brokers_that_may_skip_control_records() == ([1, AWAY] if skips else [])
    assert is_settled(client)
    before = ends(client)
    transaction, leaderless = ended_while_a_node_was_away(cluster, client, commit=commit)
    assert leaderless
    if not skips:
        assert becomes_true(partial(is_settled, client))
        return
    complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT

    def state() -> str:
        (description,) = client.describe_transactions([transaction.transactional_id]).values()
        assert description is not None
        return description.state

    assert becomes_true(lambda: state() == complete)
    assert {name: ends(client)[name] for name in leaderless} == {name: before[name] for name in leaderless}
    for name, producers in client.describe_producers(leaderless).items():
        assert isinstance(producers, dict)
        assert producers[transaction.producer_id].transaction_start_offset == before[name]
    repeat = EndToRepeat(transaction, frozenset(leaderless), "P-group")
    assert client.end_again([repeat], commit) == {transaction.transactional_id: EndOutcome(TransactionEnd.ENDED)}
    assert becomes_true(partial(is_settled, client))
    assert becomes_true(lambda: state() == complete)
    (description,) = client.describe_transactions([transaction.transactional_id]).values()
    assert description is not None
    new_identity = client.take_over({transaction.transactional_id: description.identity})[transaction.transactional_id]
    assert new_identity == (description.producer_id, description.producer_epoch + 1)
    assert client.ask(client.stable_offsets_question({"P-group": PARTITIONS})) == {"P-group": {}}
