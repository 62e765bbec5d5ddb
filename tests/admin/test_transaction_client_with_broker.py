"""admin/transaction_client.py against a real broker: what one process left open, another one looks at, ends, or fences."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionEnd, TransactionState
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.raw_client import RawClient
from tests.golden.transaction_scenarios import ScenarioProducer, Steps
from tests.integration.reading import ReadTopic, Topic


@pytest.fixture
def client(broker: LocalKafka) -> Iterator[TransactionClient]:
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        yield client


def never() -> None:
    raise AssertionError("no time passes in these tests")


class TransactionalProcess:
    """A process that writes in a transaction, tells who it was, and is gone."""

    def __init__(self, broker: LocalKafka, topic: str, prefix: str) -> None:
        self._address = broker.bootstrap_servers
        self._topic = topic
        self._prefix = prefix

    def leave_open(self, *partitions: int, group: str | None = None) -> tuple[PreparedTransaction, ScenarioProducer]:
        with RawClient(self._address) as connection:
            steps = self._steps(connection)
            producer = steps.new_producer()
            for partition in partitions:
                assert not steps.produce(producer, partition)
            if group is not None:
                assert not steps.commit_in_transaction(producer, group, 7, metadata="rows=2;fp=abc")
        return PreparedTransaction(producer.transactional_id, producer.producer_id, producer.epoch, 2), producer

    def write_on(self, producer: ScenarioProducer, partition: int) -> object:
        with RawClient(self._address) as connection:
            return self._steps(connection).produce(producer, partition)

    def _steps(self, connection: RawClient) -> Steps:
        steps = Steps(connection, f"{self._prefix}{uuid.uuid4().hex[:6]}", pass_time=never, v2=True)
        steps.topic = self._topic
        return steps


def test_what_a_task_left_open_is_committed_and_seen_and_an_orphan_is_fenced(
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    client: TransactionClient,
) -> None:
    name, prefix = topic(partitions=3), f"P.{uuid.uuid4().hex[:8]}|"  # with operators of RE2
    group, marker = f"{prefix}-group", TopicPartition(name, 0)
    task = TransactionalProcess(broker, name, prefix)
    # On a broker where nobody has asked for a coordinator yet, this has both internal topics created.
    assert client.describe_transactions([prefix]) == {prefix: None}
    assert client.fetch_offsets({group: [marker]}, True) == {group: {}}

    prepared, _ = task.leave_open(0, 1, group=group)
    (orphan, orphan_producer), (idle, _) = task.leave_open(2), task.leave_open()

    transactions = client.list_transactions(prefix)
    assert {each.transactional_id: each.state for each in transactions} == {
        prepared.transactional_id: TransactionState.ONGOING,
        orphan.transactional_id: TransactionState.ONGOING,
        idle.transactional_id: TransactionState.EMPTY,
    }
    open_ones = client.list_transactions(prefix, [TransactionState.ONGOING])
    assert len(open_ones) == 2
    described = client.describe_transactions([each.transactional_id for each in transactions] + [f"{prefix}never used"])
    busy = described[prepared.transactional_id]
    assert busy is not None
    assert (busy.state, busy.producer_id, busy.producer_epoch) == ("Ongoing", prepared.producer_id, prepared.producer_epoch)
    assert {TopicPartition(name, 0), TopicPartition(name, 1)} < busy.partitions
    assert busy.start_time_ms is not None
    assert described[f"{prefix}never used"] is None

    assert client.fetch_offsets({group: None}, False) == {group: {}}
    assert client.fetch_offsets({group: [marker]}, False) == {group: {}}
    with pytest.raises(KafkaTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        client.fetch_offsets({group: [marker]}, True, timeout_ms=500)

    for _ in range(3):  # a repetition is recognised, be the markers written or not
        assert client.end_transactions([prepared], True)[prepared.transactional_id].end is TransactionEnd.ENDED
    offsets = client.fetch_offsets({group: [marker], f"{prefix}-nobody": None}, True)
    assert offsets == {group: {marker: CommittedOffset(7, "rows=2;fp=abc")}, f"{prefix}-nobody": {}}

    fenced = client.fence([orphan.transactional_id, idle.transactional_id])
    assert fenced[orphan.transactional_id].producer_epoch > orphan.producer_epoch
    assert fenced[idle.transactional_id].producer_epoch > idle.producer_epoch
    outcomes = client.end_transactions([orphan, idle], True)
    assert {outcome.end for outcome in outcomes.values()} == {TransactionEnd.NOT_OPEN}
    assert task.write_on(orphan_producer, 2) == Errors.INVALID_PRODUCER_EPOCH
    assert client.list_transactions(prefix, [TransactionState.ONGOING]) == []
    rows = read_topic(name, isolation_level="read_committed")
    assert sorted(row.partition for row in rows) == [0, 1]


def test_offsets_are_kept_for_groups_without_members(topic: Topic, client: TransactionClient) -> None:
    name = topic(partitions=2)
    groups = [f"{name}-{number}" for number in range(60)]
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    for number, group in enumerate(groups):
        client.commit_offsets(group, {first: (number, "x" * 4096), second: (0, "ü" * number)})
    offsets = client.fetch_offsets(dict.fromkeys(groups), True)
    assert offsets == {
        group: {first: CommittedOffset(number, "x" * 4096), second: CommittedOffset(0, "ü" * number)}
        for number, group in enumerate(groups)
    }
    with pytest.raises(BrokerError, match=r"KAFKA_OFFSET_METADATA_TOO_LARGE.* 4,097 characters"):
        client.commit_offsets(groups[0], {first: (1, "x" * 4097)})
    with pytest.raises(BrokerError, match="KAFKA_UNKNOWN_TOPIC_OR_PARTITION"):
        client.commit_offsets(groups[0], {TopicPartition(name, 2): (1, "")})


def test_a_prefix_means_itself_whatever_characters_it_has(client: TransactionClient) -> None:
    prefix = f"a.b+(c)|[d]{{e}}^$*?\\_-{uuid.uuid4().hex[:6]}"
    ids = [prefix, f"{prefix}1", f"{prefix}\n2", f"{prefix}ü"]
    client.fence([*ids, prefix.replace(".", "X"), f"x{prefix}"])
    assert [each.transactional_id for each in client.list_transactions(prefix)] == sorted(ids)


def test_many_ids_are_fenced_in_a_moment(client: TransactionClient) -> None:
    prefix = uuid.uuid4().hex
    ids = [f"{prefix}-{number}" for number in range(300)]
    identities = client.fence(ids, 30_000)
    assert set(client.fence(ids, 30_000)) == set(ids) == set(identities)
    assert len(client.list_transactions(prefix)) == 300
    assert all(client.describe_transactions(ids).values())


def test_a_broker_tells_its_limit_of_time_outs(client: TransactionClient) -> None:
    assert client.broker_config("transaction.max.timeout.ms") == "900000"
    assert client.broker_config("no.such.setting") is None
    with pytest.raises(BrokerError, match="KAFKA_INVALID_TRANSACTION_TIMEOUT"):
        client.fence([uuid.uuid4().hex], transaction_timeout_ms=900_001)
