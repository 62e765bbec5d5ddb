"""admin/transaction_client.py against a real broker with ACLs: what each call takes, and what is told without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionEnd
from spark_kafka_sink.errors import AuthorizationError
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.integration.sasl_cluster import allow, client_options, sasl_cluster

pytestmark = pytest.mark.broker

HIDDEN, WRITABLE, READABLE = TopicPartition("hidden", 0), TopicPartition("writable", 0), TopicPartition("readable", 0)


@pytest.fixture(scope="module")
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001 - fetched first
    """Alice has ids and groups that begin with P-."""
    with sasl_cluster(tmp_path_factory.mktemp("permissions")) as cluster:
        allow(cluster, "alice", "WRITE", "P-", "TRANSACTIONAL_ID")
        allow(cluster, "alice", "READ", "P-", "GROUP")
        allow(cluster, "alice", "WRITE", "writable")
        allow(cluster, "alice", "READ", "readable")
        with TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}) as anybody:
            anybody.fence(["P-1", "Q-1"])
            for marker in (HIDDEN, WRITABLE, READABLE):
                cluster.create_topic(marker.topic, 1)
                anybody.commit_offsets("P-g", {marker: (3, marker.topic)})
        yield cluster


@pytest.fixture
def alice(cluster: LocalKafka) -> Iterator[TransactionClient]:
    config = {"bootstrap.servers": cluster.bootstrap_servers_for("SASL_PLAINTEXT")} | client_options("PLAIN")
    with TransactionClient(config) as client:
        yield client


def test_transactional_ids_take_write_on_them(alice: TransactionClient) -> None:
    mine = PreparedTransaction("P-1", *alice.fence(["P-1"])["P-1"], 2)
    assert alice.describe_transactions(["P-1"])["P-1"] is not None
    outcomes = alice.end_transactions([mine, mine._replace(transactional_id="Q-1")], False)
    assert [outcome.end for outcome in outcomes.values()] == [TransactionEnd.ENDED, TransactionEnd.FAILED]
    assert isinstance(outcomes["Q-1"].error, AuthorizationError)
    missing = r"KAFKA_TRANSACTIONAL_ID_AUTH.*Grant the user WRITE on the transactional id 'Q-1'"
    with pytest.raises(AuthorizationError, match=missing):
        alice.fence(["Q-1"])
    with pytest.raises(AuthorizationError, match=missing):
        alice.describe_transactions(["P-1", "Q-1"])


def test_ids_that_may_not_be_described_are_not_listed_and_nobody_says_so(alice: TransactionClient) -> None:
    assert [each.transactional_id for each in alice.list_transactions("")] == ["P-1"]


def test_offsets_of_a_group_need_read_on_the_group(alice: TransactionClient) -> None:
    missing = r"KAFKA_GROUP_AUTH.*Grant the user READ on the group 'Q-g'"
    with pytest.raises(AuthorizationError, match=missing):
        alice.fetch_offsets({"Q-g": None}, True)
    with pytest.raises(AuthorizationError, match=missing):
        alice.commit_offsets("Q-g", {READABLE: (4, "")})


def test_offsets_take_read_on_the_topic_and_any_permission_that_describes_it(alice: TransactionClient) -> None:
    both = {WRITABLE: CommittedOffset(3, "writable"), READABLE: CommittedOffset(3, "readable")}
    assert alice.fetch_offsets({"P-g": [WRITABLE, READABLE]}, True) == {"P-g": both}
    assert alice.fetch_offsets({"P-g": None}, True) == {"P-g": both}  # the third is left out without a word
    with pytest.raises(AuthorizationError, match=r"KAFKA_TOPIC_AUTH.*Grant the user READ on the topic 'hidden'"):
        alice.fetch_offsets({"P-g": [HIDDEN]}, True)
    with pytest.raises(AuthorizationError, match=r"KAFKA_TOPIC_AUTH.*Grant the user READ on the topic 'writable'"):
        alice.commit_offsets("P-g", {WRITABLE: (4, "")})
    alice.commit_offsets("P-g", {READABLE: (3, "readable")})


def test_settings_of_brokers_are_none_without_describe_configs(alice: TransactionClient) -> None:
    assert alice.broker_config("transaction.max.timeout.ms") is None
