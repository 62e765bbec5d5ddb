"""Exactly-once writes of a user who lacks one permission: which step asks for it, what is told, and what is in Kafka then.

A real broker with an authorizer. Alice has what docs/exactly-once-operations.md lists, on names that begin with those of the
tests. Each test denies one operation on the names of its world, then looks at a task, at the driver's commit() or its abort().
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import DEFAULT_LONGEST_TRANSACTION_MS, TransactionClient
from spark_kafka_sink.errors import AuthorizationError, KafkaError
from spark_kafka_sink.exactly_once.decisions import carry_out_decision
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import DecisionState
from spark_kafka_sink.exactly_once.version_commit import Committed, HowCommitted
from spark_kafka_sink.exactly_once.writes import CommitFailedError
from tests.exactly_once.stepwise_writes import DriverRun
from tests.integration.exactly_once_world import FIRST, FORMATS, SECOND, BrokerWorld, rows_of
from tests.integration.sasl_cluster import allow, client_options, deny, sasl_cluster

pytestmark = [pytest.mark.slow, pytest.mark.broker]

IDS, GROUPS, TOPIC = "TRANSACTIONAL_ID", "GROUP", "TOPIC"
LONGEST_MS = 3_600_000


@pytest.fixture(scope="module", params=FORMATS)
def cluster(
    kafka_jars: Path,  # noqa: ARG001 - fetched before the start is timed
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[LocalKafka]:
    """Alice's permissions are those of the table in docs/exactly-once-operations.md, and no others."""
    properties = {"transaction.max.timeout.ms": str(LONGEST_MS)}
    with sasl_cluster(tmp_path_factory.mktemp("permissions"), properties, request.param) as cluster:
        allow(cluster, "alice", "WRITE", "prefix-exactly-once-", IDS)
        allow(cluster, "alice", "READ", "prefix-exactly-once-", GROUPS)
        allow(cluster, "alice", "WRITE", "topic-exactly-once-", TOPIC)
        allow(cluster, "alice", "READ", "topic-exactly-once-", TOPIC)
        allow(cluster, "bob", "DESCRIBE_CONFIGS", "kafka-cluster", "BROKER")
        yield cluster


def alices(world: BrokerWorld, name: str, **how: Any) -> DriverRun:
    address = world.cluster.bootstrap_servers_for("SASL_PLAINTEXT")
    return world.run(name, address, **client_options("PLAIN"), **how)


class Missing(NamedTuple):
    """A permission that is denied, and which one the error says to grant."""

    resource: str
    operation: str
    to_grant: str = ""

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource}"

    def deny(self, world: BrokerWorld) -> None:
        deny(world.cluster, "alice", self.operation, world.topic if self.resource == TOPIC else f"{world.prefix}-", self.resource)


NO_DESCRIBE_ON_IDS = Missing(IDS, "DESCRIBE", "WRITE on the transactional id '{prefix}-q-0-1000'")
NO_WRITE_ON_IDS = Missing(IDS, "WRITE", "WRITE on the transactional id '{prefix}-q-0-1000'")
NO_DESCRIBE_ON_GROUPS = Missing(GROUPS, "DESCRIBE", "READ on the group '{prefix}-q-decision'")
NO_READ_ON_GROUPS = Missing(GROUPS, "READ", "READ on the group '{prefix}-q-decision'")
NO_DESCRIBE_ON_TOPIC = Missing(TOPIC, "DESCRIBE", "READ on the topic '{topic}'")
NO_READ_ON_TOPIC = Missing(TOPIC, "READ", "READ on the topic '{topic}'")
NO_WRITE_ON_TOPIC = Missing(TOPIC, "WRITE", "WRITE on the topic '{topic}'")


def check_error(world: BrokerWorld, error: KafkaError, missing: Missing, to_grant: str = "") -> None:
    grant = (to_grant or missing.to_grant).format(prefix=world.prefix, topic=world.topic)
    assert f"Grant the user {grant}" in str(error)


# WHAT SUFFICES


def test_the_permissions_of_the_table_suffice_for_a_write_its_replay_and_its_end(world: BrokerWorld) -> None:
    """Two versions; what a dead run and a dead owner left; a version that was decided; a write that is given up."""
    alices(world, "dead").reports(0, *FIRST)
    alices(world, "dead", owner="another").reports(0, *FIRST)
    second = alices(world, "r2")
    fenced_count = second.write_version(0, *FIRST).fenced
    assert fenced_count == len(FIRST) + 2  # the other owner's, and those that the dead run left open; its empty one is taken
    second.decide(second.reports(1, *SECOND), second.ledger.fetch_decision())
    third = alices(world, "r3")
    assert third.write_version(1, *SECOND).how is HowCommitted.ROLLED_FORWARD
    third.reports(2, ["given up"])
    third.abort()
    world.audit(rows_of(FIRST, SECOND))


@pytest.mark.parametrize(("user", "expected_ms"), [("alice", DEFAULT_LONGEST_TRANSACTION_MS), ("bob", LONGEST_MS)])
def test_without_describe_configs_a_transaction_gets_kafkas_default_time(
    cluster: LocalKafka, user: str, expected_ms: int
) -> None:
    """Nothing fails: the fallback of a write that does not set kafka.transaction.timeout.ms."""
    address = cluster.bootstrap_servers_for("SASL_PLAINTEXT")
    with TransactionClient({"bootstrap.servers": address, **client_options("PLAIN", user)}) as client:
        assert client.longest_transaction_timeout_ms() == expected_ms


# A TASK


@pytest.mark.parametrize(
    ("missing", "to_grant"),
    [
        (NO_DESCRIBE_ON_IDS, ""),  # step 1, before its first request
        (NO_WRITE_ON_IDS, ""),  # step 1
        (NO_DESCRIBE_ON_GROUPS, ""),  # step 0
        (NO_DESCRIBE_ON_TOPIC, ""),  # step 0
        (NO_WRITE_ON_TOPIC, ""),  # step 5, its rows
        (NO_READ_ON_GROUPS, "READ on the group '{prefix}-q-0-marker'"),  # step 5, its marker
        (NO_READ_ON_TOPIC, ""),  # step 5, its marker
    ],
    ids=str,
)
def test_a_task_without_a_permission_fails_and_names_it(world: BrokerWorld, missing: Missing, to_grant: str) -> None:
    missing.deny(world)
    run = alices(world, "r1")
    with pytest.raises(KafkaError) as raised:  # FatalProducerError and others, which say what their producer can still do
        run.task(0, 0, *FIRST[0]).run()
    assert raised.value.condition == f"KAFKA_{missing.resource}_AUTHORIZATION_FAILED"
    check_error(world, raised.value, missing, to_grant)
    world.check()


# THE DRIVER


@pytest.mark.parametrize(
    ("missing", "to_grant"),
    [
        (NO_DESCRIBE_ON_GROUPS, ""),  # 6a
        (NO_DESCRIBE_ON_TOPIC, ""),  # 6a
        (NO_DESCRIBE_ON_IDS, ""),  # 6d: 6b sees no id of others
        (NO_READ_ON_GROUPS, "READ on the group '{prefix}-q-2-width'"),  # 6e
        (NO_READ_ON_TOPIC, ""),  # 6e
    ],
    ids=str,
)
def test_a_driver_without_a_permission_fails_before_it_decides(world: BrokerWorld, missing: Missing, to_grant: str) -> None:
    run = alices(world, "r1")
    reports = run.reports(0, *FIRST)
    missing.deny(world)
    with pytest.raises(AuthorizationError) as raised:
        run.commit(reports)
    check_error(world, raised.value, missing, to_grant)
    assert Ledger(world.client, run.names, "q", world.topic).fetch_decision() is None
    world.check()


def test_a_driver_that_may_not_write_to_ids_has_decided_and_the_next_run_commits(world: BrokerWorld) -> None:
    """Only EndTxn shows that it is missing."""
    run = alices(world, "r1")
    reports = run.reports(0, *FIRST)
    NO_WRITE_ON_IDS.deny(world)
    with pytest.raises(CommitFailedError, match="2 of 2 transactions of version 0 could not be committed") as raised:
        run.commit(reports)
    check_error(world, raised.value, NO_WRITE_ON_IDS)
    decision = Ledger(world.client, run.names, "q", world.topic).fetch_decision()
    assert decision is not None
    assert decision.state is DecisionState.DECIDED
    assert world.visible_counts().total() == 0
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.ROLLED_FORWARD


def test_a_driver_that_may_not_write_to_ids_left_open_fails_before_it_decides(world: BrokerWorld) -> None:
    """6b takes them over."""
    world.run("dead").reports(0, [], [], [], ["x"])
    run = alices(world, "r1")
    reports = run.reports(0, *FIRST)
    NO_WRITE_ON_IDS.deny(world)
    with pytest.raises(AuthorizationError) as raised:
        run.commit(reports)
    check_error(world, raised.value, NO_WRITE_ON_IDS, "WRITE on the transactional id '{prefix}-q-3-1000'")
    world.check()


def test_a_driver_needs_no_permission_to_write_to_the_topic(world: BrokerWorld) -> None:
    run = alices(world, "r1")
    reports = run.reports(0, *FIRST)
    NO_WRITE_ON_TOPIC.deny(world)
    assert run.commit(reports).how is HowCommitted.COMMITTED
    world.audit(rows_of(FIRST))


@pytest.mark.parametrize(
    ("missing", "to_grant"),
    [
        (NO_READ_ON_GROUPS, "READ on the group '{prefix}-aborted'"),
        (NO_READ_ON_TOPIC, ""),
        (NO_WRITE_ON_IDS, ""),
    ],
    ids=str,
)
def test_an_abort_without_a_permission_names_it_and_the_next_run_aborts(
    world: BrokerWorld, missing: Missing, to_grant: str
) -> None:
    run = alices(world, "r1")
    run.reports(0, *FIRST)
    missing.deny(world)
    with pytest.raises(AuthorizationError) as raised:
        run.abort()
    check_error(world, raised.value, missing, to_grant)
    world.check()


# WHO COMMITS FOR A DEAD QUERY


@pytest.mark.parametrize("missing", [NO_READ_ON_GROUPS, NO_READ_ON_TOPIC], ids=str)
def test_an_operator_who_may_not_record_a_commit_commits_rows_and_gets_an_error(world: BrokerWorld, missing: Missing) -> None:
    """By `jobs.transactions commit`. The next run finds the decision, and that there is nothing left to do."""
    run = alices(world, "r1")
    run.decide(run.reports(0, *FIRST))
    missing.deny(world)
    with pytest.raises(AuthorizationError) as raised:
        carry_out_decision(Ledger(run.client, run.names, "q", world.topic))
    check_error(world, raised.value, missing)
    world.audit(rows_of(FIRST))
    world.check()
