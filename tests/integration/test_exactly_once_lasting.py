"""Exactly-once writes to brokers that live long: with thousands of transactional ids, hundreds of versions, the first and the
last version there can be, a short limit for transactions, and topics that are deleted or enlarged between versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_operations import EndToRepeat
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.ledger_records import MAX_NUMBER
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.stoppable_processes import AFTER, KILLED, Stop
from tests.integration.exactly_once_world import FIRST, SECOND, BrokerWorld, rows_of, world_of
from tests.integration.processes import until

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

pytestmark = [pytest.mark.slow]

LONGEST_MS = 6_000  # of a transaction; the time with which ids are fenced is 30 s elsewhere


def admin_of(world: BrokerWorld) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": world.cluster.bootstrap_servers})


# WHAT IS LEFT, AND WHAT IT COSTS


@contextmanager
def traffic() -> Iterator[Counter[str]]:
    """What clients of this process exchange with brokers: requests by API, and the bytes of all answers."""
    counted: Counter[str] = Counter()
    send, read = NetworkClient.send, NetworkMetrics.record_read

    def counted_send(self: NetworkClient, request: Any, now_ms: int) -> None:
        counted[type(request.message).__name__] += 1
        send(self, request, now_ms)

    def counted_read(self: NetworkMetrics, node_id: int, size_bytes: int, responses: int) -> None:
        counted["bytes"] += size_bytes
        read(self, node_id, size_bytes, responses)

    with mock.patch.object(NetworkClient, "send", counted_send), mock.patch.object(NetworkMetrics, "record_read", counted_read):
        yield counted


def cost_of_a_commit(world: BrokerWorld, version: int) -> Counter[str]:
    run = world.run(f"r{version}")
    reports = run.reports(version, *SECOND)
    with traffic() as counted:
        run.commit(reports)
    return counted


def test_a_commit_costs_the_same_beside_thousands_of_ids_of_other_applications(world: BrokerWorld) -> None:
    """Some are at rest, and some Empty, as those of producers that have just begun. A driver listed and described all of them."""
    cost_of_a_commit(world, 0)
    alone = cost_of_a_commit(world, 1)
    for number in range(4):
        fenced = world.client.fence((f"others-{world.prefix}-{number}-{each}" for each in range(500)), timeout_ms=120_000)
        if number % 2:
            transactions = (PreparedTransaction(name, *identity, 0) for name, identity in fenced.items())
            at_rest = [EndToRepeat(each, frozenset(), "others") for each in transactions]
            world.client.end_again(at_rest, commit=True, timeout_ms=120_000)
    assert len(world.client.list_transactions(f"others-{world.prefix}")) == 2_000
    beside = cost_of_a_commit(world, 2)
    assert beside["bytes"] <= alone["bytes"] * 1.1 + 500
    for each in (alone, beside):  # of what is asked for at one moment there is one request
        del each["bytes"], each["FindCoordinatorRequest"], each["OffsetFetchRequest"]
    assert beside == alone


def left(world: BrokerWorld) -> tuple[list[str], list[str]]:
    """The transactional ids and groups of this prefix that brokers know, whatever their state."""
    ids = [each.transactional_id for each in world.client.list_transactions(f"{world.prefix}-")]
    admin = admin_of(world)
    groups = admin.list_consumer_groups().result(30).valid
    return ids, sorted(each.group_id for each in groups if each.group_id.startswith(f"{world.prefix}-"))


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("owner", ["q", "%unnamed"])
def test_hundreds_of_versions_leave_as_many_ids_and_groups_as_the_first_few(world: BrokerWorld, owner: str) -> None:
    """Each by a driver of its own; every tenth dies amid its tasks or its commits. Each write left ids and groups with a name of
    its own, which brokers keep for seven days."""
    expected: list[str] = []
    first: tuple[list[str], list[str]] = ([], [])
    for version in range(300):
        rows = [[f"{version}-{partition}"] for partition in range(3 - version % 2)]
        with DriverRun(world.cluster.bootstrap_servers, world.topic, f"r{version}", prefix=world.prefix, owner=owner) as run:
            if version % 10 == 3:
                run.task(version, 0, "dies").begin().send()
                run.task(version, 1, "dies", attempt=1).run()
                run.abort()
            elif version % 10 == 7:
                run.decide(run.reports(version, *rows))
                expected += rows_of(rows)
                continue  # a later version commits it
            run.write_version(version, *rows)
        expected += rows_of(rows)
        if version == 9:
            first = left(world)
    world.audit(expected)
    assert left(world) == first
    assert len(first[0]) == 4  # of three partitions, and of the second attempt
    assert len(first[1]) <= 8


# LIMITS


def test_the_first_and_the_last_version_that_an_offset_holds_are_written_and_found(world: BrokerWorld) -> None:
    """txnVersion is an offset of Kafka's: at most 2**63 - 1."""
    assert world.run("r1").write_version(0, *FIRST).how is HowCommitted.COMMITTED
    assert world.run("r2").write_version(0, *FIRST).how is HowCommitted.FOUND
    assert world.run("r3").write_version(MAX_NUMBER, *SECOND).how is HowCommitted.COMMITTED
    assert world.run("r4").write_version(MAX_NUMBER, *SECOND).how is HowCommitted.FOUND
    assert world.run("r5").write_version(0, *FIRST).how is HowCommitted.SUPERSEDED
    world.audit(rows_of(FIRST, SECOND))


def test_the_last_version_is_carried_out_by_the_next_run(world: BrokerWorld) -> None:
    run = world.run("r1")
    assert world.processes.commit("r1", run.reports(MAX_NUMBER, *FIRST), Stop("6e", AFTER)).outcome() is KILLED
    assert world.run("r2").write_version(MAX_NUMBER, *FIRST).how is HowCommitted.ROLLED_FORWARD
    world.audit(rows_of(FIRST))


@pytest.mark.usefixtures("kafka_jars")
def test_a_dead_run_is_fenced_where_brokers_allow_transactions_of_some_seconds(tmp_path: Path) -> None:
    """Ids were fenced with a time-out of 30 s, which such brokers refuse: no write with that prefix could begin any more."""
    properties = {"transaction.max.timeout.ms": str(LONGEST_MS)}
    with LocalKafka(tmp_path, properties=properties) as cluster, world_of(cluster) as world:
        dead = world.run("dead")
        for attempt in range(2):
            dead.task(0, 0, "x", attempt=attempt, timeout_ms=LONGEST_MS).begin().send()
        run = world.run("r1")
        tasks = [run.task(0, partition, *rows, timeout_ms=LONGEST_MS) for partition, rows in enumerate(FIRST)]
        committed = run.commit([task.run() for task in tasks])
        assert (committed.how, committed.fenced) == (HowCommitted.COMMITTED, 1)
        given_up = world.run("r2")
        given_up.task(1, 0, "given up", timeout_ms=LONGEST_MS).run()
        assert given_up.abort() == 2  # its own, and the one of the task without rows
        world.audit(rows_of(FIRST))


# TOPICS THAT CHANGE


def delete_topic(world: BrokerWorld) -> None:
    admin = admin_of(world)
    admin.delete_topics([world.topic])[world.topic].result(30)
    until(lambda: world.topic not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")


@pytest.mark.parametrize("is_same_run", [True, False], ids=["in one run", "in another run"])
def test_a_topic_that_is_deleted_and_made_again_begins_anew(world: BrokerWorld, is_same_run: bool) -> None:
    """Brokers delete the markers and decisions together with the topic that they name, so that a version whose rows are gone is
    written again when it is repeated."""
    run = world.run("r1")
    run.write_version(0, *FIRST)
    run.task(1, 0, "open when the topic goes", attempt=1).run()
    delete_topic(world)
    world.cluster.create_topic(world.topic, 1)
    run = run if is_same_run else world.run("r2")
    assert _written(run, 1, *SECOND) is HowCommitted.COMMITTED
    world.audit(rows_of(SECOND))
    assert _written(run, 1, *SECOND) is HowCommitted.FOUND
    run.write_version(2, ["last"])
    world.audit([*rows_of(SECOND), "last"])


def _written(run: DriverRun, version: int, *rows: list[str]) -> HowCommitted:
    """As Spark repeats it: the first write after the topic was made again may find that its metadata is old."""
    try:
        return run.write_version(version, *rows).how
    except KafkaError:
        run.abort()
        return run.write_version(version, *rows).how


def test_what_is_decided_when_its_topic_is_deleted_is_written_to_the_new_one(world: BrokerWorld) -> None:
    run = world.run("r1")
    assert world.processes.commit("r1", run.reports(0, *FIRST), Stop("6e", AFTER)).outcome() is KILLED
    delete_topic(world)
    world.cluster.create_topic(world.topic, 2)
    world.check(runs=2)


def test_partitions_that_are_added_between_versions_are_written_to(world: BrokerWorld) -> None:
    from confluent_kafka.admin import NewPartitions

    run = world.run("r1")
    run.write_version(0, *FIRST)
    left_open = run.reports(1, *SECOND)
    admin = admin_of(world)
    admin.create_partitions([NewPartitions(world.topic, 8)])[world.topic].result(30)
    run.commit(left_open)
    assert world.run("r2").write_version(1, *SECOND).how is HowCommitted.FOUND
    many = [[f"{partition}-{row}" for row in range(50)] for partition in range(4)]
    world.run("r3").write_version(2, *many)
    world.audit([*rows_of(FIRST, SECOND), *rows_of(many)])
