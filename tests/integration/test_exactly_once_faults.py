"""What goes wrong between an exactly-once write and its brokers, on real ones: time-outs, requests and answers that get lost,
coordinators that die, and repetitions of a write that bring other rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.brokers import FindCoordinator
from spark_kafka_sink.admin.operation import ANY_BROKER, Ask
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import Committed, HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, CommitFailedError, ReplayError, TaskReport
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from tests.broker_properties import QUICK_SESSIONS, QUICK_TIMEOUTS
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.stoppable_processes import AFTER, AMID, KILLED, PAUSE, Process, Stop
from tests.fakes.fault_proxy import ProxiedKafka, ProxyFault, Request
from tests.integration.exactly_once_world import FIRST, SECOND, BrokerWorld, Rows, rows_of, world_of
from tests.integration.processes import until

pytestmark = [pytest.mark.slow]

T = TypeVar("T")

# Time-outs of transactions, the next one where the machine was too slow for the one before; brokers look each half second.
TIMEOUTS_MS = (1_000, 4_000, 16_000, 64_000)
LONG_MS = 600_000  # of those that are not to time out
QUICK_REQUESTS = {"request.timeout.ms": 1_000, "delivery.timeout.ms": 20_000}


@pytest.fixture
def world(world: BrokerWorld, cluster: ProxiedKafka) -> Iterator[BrokerWorld]:
    yield world
    cluster.proxy.disarm()


# TIME-OUTS


def short_of(run: DriverRun, timeout_ms: int, *partitions: int) -> list[TaskReport]:
    """The reports of the first version; the transactions of these partitions time out soon."""
    return [
        run.task(0, partition, *rows, timeout_ms=timeout_ms if partition in partitions else LONG_MS).run()
        for partition, rows in enumerate(FIRST)
    ]


def before_time_outs(world: BrokerWorld, what: Callable[[DriverRun, int], T]) -> tuple[DriverRun, T]:
    """What a run has come to before the first time-out of its transactions, and the run.

    Where that was too late, the run gives up, and the next one has more time.

    Args:
        what: gets the run, and the time-out in milliseconds. Raises KafkaError when it was too late.
    """
    errors = []
    for number, timeout_ms in enumerate(TIMEOUTS_MS, 1):
        run = world.run(f"r{number}")
        try:
            return run, what(run, timeout_ms)
        except KafkaError as error:
            errors.append(error)
            run.abort()
    raise AssertionError(f"too late in each run: {errors}")


def await_time_out(world: BrokerWorld, run: DriverRun, *partitions: int) -> None:
    ids = [run.names.transactional_id(AttemptId("q", partition, 0)) for partition in partitions]

    def are_aborted() -> bool:
        descriptions = world.client.describe_transactions(ids).values()
        return {None if each is None else each.state for each in descriptions} == {TransactionState.COMPLETE_ABORT}

    until(are_aborted, 30 + TIMEOUTS_MS[-1] / 1000, "brokers abort what is too old")


def stopped_after_decision(world: BrokerWorld, late: Sequence[int], stop: Stop) -> tuple[DriverRun, Process]:
    """A driver that stands still or is dead at this step after its decision; these transactions time out soon."""

    def commit(run: DriverRun, timeout_ms: int) -> Process:
        process = world.processes.commit(run.name, short_of(run, timeout_ms, *late), stop)
        if stop.how is PAUSE and process.pauses():
            return process
        outcome = process.outcome()
        if outcome is not KILLED:
            raise KafkaError(f"too late: {outcome}")
        return process

    return before_time_outs(world, commit)


def test_a_time_out_before_the_decision_is_found_before_anything_is_seen(world: BrokerWorld) -> None:
    run, reports = before_time_outs(world, lambda run, timeout_ms: short_of(run, timeout_ms, 0))
    await_time_out(world, run, 0)
    with pytest.raises(CommitFailedError) as raised:
        run.commit(reports)
    message = str(raised.value)
    assert "the transactions of 1 of 3 tasks are not theirs any more (Spark partitions 0)" in message
    assert "they outlasted their time-out (kafka.transaction.timeout.ms" in message
    assert "Nothing is visible; the write can be run again" in message
    run.abort()
    world.audit([])
    world.check()


@pytest.mark.parametrize(("late", "seen_rows"), [([0], ["c"]), ([0, 1], [])], ids=["one", "all"])
def test_a_time_out_between_decision_and_commit_is_an_error_that_the_next_run_heals(
    world: BrokerWorld, late: list[int], seen_rows: list[str]
) -> None:
    run, commit = stopped_after_decision(world, late, Stop("6e", AFTER, PAUSE))
    await_time_out(world, run, *late)
    failed = commit.resume().outcome()
    assert failed.kind == CommitFailedError.__name__
    assert f"{len(late)} of 2 transactions were gone when version 0 was committed" in failed.message
    assert "The next run of this version writes those that are missing, and nothing twice" in failed.message
    run.abort()
    world.audit(seen_rows)
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.COMMITTED
    assert committed.skipped_partitions == 2 - len(late)


@pytest.mark.parametrize(
    ("late", "stop"), [([0, 1], Stop("6e", AFTER)), ([1], Stop("6f", AMID))], ids=["before its commits", "amid its commits"]
)
def test_the_first_restart_after_an_outage_writes_what_has_timed_out(world: BrokerWorld, late: list[int], stop: Stop) -> None:
    """The driver was killed, and nobody ran the query again for longer than transactions may be open."""
    run, _ = stopped_after_decision(world, late, stop)
    await_time_out(world, run, *late)
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.COMMITTED
    assert committed.skipped_partitions == len(FIRST) - len(late)


def test_a_time_out_after_the_restarted_tasks_have_looked_is_healed_by_the_next_run(world: BrokerWorld) -> None:
    """The restarted tasks found the transactions open, and wrote nothing. Their driver finds one gone, and has no rows for it."""
    run, _ = stopped_after_decision(world, [1], Stop("6e", AFTER))
    second = world.run("second")
    reports = second.reports(0, *FIRST)
    await_time_out(world, run, 1)
    if reports[1].result is AttemptResult.DECIDED:  # the machine was quick enough
        with pytest.raises(CommitFailedError, match="1 of 2 transactions were gone when version 0 was committed") as raised:
            second.commit(reports)
        assert "The next run of this version writes those that are missing, and nothing twice" in str(raised.value)
        second.abort()
        world.audit(FIRST[0])
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.COMMITTED


def test_the_error_of_a_task_that_outlasts_its_transaction_says_why(world: BrokerWorld) -> None:
    run = world.run("r1")
    task = run.task(0, 0, *FIRST[0], timeout_ms=TIMEOUTS_MS[0]).begin().send()
    await_time_out(world, run, 0)
    with pytest.raises(KafkaError, match=r"transaction\.timeout\.ms"):
        task.finish()
    run.abort()
    world.check()


# REPETITIONS


def half_committed(world: BrokerWorld, in_kafka: int = 0) -> None:
    """One of the partitions 0 and 1 is in Kafka; the transaction of the other was open too long."""

    def decide(run: DriverRun, timeout_ms: int) -> Decision:
        return run.decide(short_of(run, timeout_ms, 1 - in_kafka))

    run, _ = before_time_outs(world, decide)
    await_time_out(world, run, 1 - in_kafka)
    with pytest.raises(CommitFailedError):
        run.carry_out()
    run.abort()
    world.audit(FIRST[in_kafka])


def test_a_repetition_with_other_rows_is_refused_and_the_right_one_is_taken(world: BrokerWorld) -> None:
    half_committed(world)
    other = world.run("r2")
    task = other.task(0, 0, "a", "other").begin().send()
    with pytest.raises(ReplayError, match=r"Spark partition 0 of version 0 is in Kafka with 2 rows .*transactionalIdPrefix"):
        task.finish()
    other.task(0, 1, "other").run()
    other.abort()
    world.audit(FIRST[0])
    world.check()


OTHERWISE: dict[str, Rows] = {  # than in FIRST
    "together": (["a", "b", "c"],),
    "exchanged": (["c"], ["a", "b"]),
    "cut otherwise": (["a", "c"], ["b"], []),
    "moved on": ([], ["a", "b"], ["c"]),
}


@pytest.mark.parametrize("rows", OTHERWISE.values(), ids=OTHERWISE)
def test_a_task_with_other_rows_than_its_partition_has_in_kafka_refuses_them(world: BrokerWorld, rows: Rows) -> None:
    half_committed(world)
    other = world.run("r2")
    with pytest.raises(ReplayError, match="Spark partition 0 of version 0 is in Kafka with 2 rows"):
        other.reports(0, *rows)
    other.abort()
    world.audit(FIRST[0])
    world.check()


def test_a_driver_refuses_a_repetition_that_has_no_task_for_rows_in_kafka(world: BrokerWorld) -> None:
    half_committed(world, in_kafka=1)
    other = world.run("r2")
    reports = other.reports(0, rows_of(FIRST))
    with pytest.raises(ReplayError, match="in Kafka already for the Spark partitions 1, written"):
        other.commit(reports)
    other.abort()
    world.audit(FIRST[1])
    world.check()


@pytest.mark.parametrize("first", [["a", "b"], ["b", "a"]], ids=["in order", "shuffled"])
def test_a_repetition_that_moves_missing_rows_to_other_partitions_writes_each_once(world: BrokerWorld, first: list[str]) -> None:
    """What is in Kafka comes again in the partition that has it, in any order; the others are free."""
    half_committed(world)
    run = world.run("r2")
    reports = run.reports(0, first, [], FIRST[1])
    assert [each.result for each in reports] == [AttemptResult.SKIPPED, AttemptResult.EMPTY, AttemptResult.OPEN]
    run.commit(reports)
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@pytest.mark.parametrize("stop", [Stop("6e", AFTER), Stop("6f", AMID)], ids=str)
@pytest.mark.parametrize("follower", ["r1", "r2"], ids=["of the same run", "of another run"])
def test_a_later_version_commits_first_what_an_earlier_one_has_decided(world: BrokerWorld, follower: str, stop: Stop) -> None:
    """A driver died before or amid its commits, and a later version followed without a repetition of that one: so does a
    foreachBatch that swallows errors, and a df.write without a name. Its tasks have the same transactional ids. They took the
    open transactions for garbage, and readers never saw the rest of a version that had been decided."""
    run = world.run("r1")
    assert world.processes.commit("r1", run.reports(0, *FIRST), stop).outcome() is KILLED
    assert world.run(follower).write_version(1, *SECOND).how is HowCommitted.COMMITTED
    world.audit(rows_of(FIRST, SECOND))


def test_a_later_version_with_fewer_tasks_commits_all_that_an_earlier_one_decided(world: BrokerWorld) -> None:
    """Not only those of the partitions that it has itself."""
    run = world.run("r1")
    assert world.processes.commit("r1", run.reports(0, *SECOND), Stop("6e", AFTER)).outcome() is KILLED
    world.run("r2").write_version(1, ["x"])
    world.audit([*rows_of(SECOND), "x"])


# LOST REQUESTS AND ANSWERS

APIS = {
    ApiKey.INIT_PRODUCER_ID: "steps 1, 6b",
    ApiKey.OFFSET_FETCH: "steps 0, 2, 4, 6a, 6c",
    ApiKey.LIST_TRANSACTIONS: "steps 6b, 6g",
    ApiKey.PRODUCE: "step 5",
    ApiKey.TXN_OFFSET_COMMIT: "step 5",
    ApiKey.DESCRIBE_TRANSACTIONS: "steps 6d, 6g",
    ApiKey.OFFSET_COMMIT: "steps 6e, 6g",
    ApiKey.END_TXN: "steps 6b, 6f",
}


@pytest.mark.parametrize("leaves_ids", [False, True], ids=["", "6b fences"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "fault", [ProxyFault.DROP_BEFORE, ProxyFault.DROP_AFTER, ProxyFault.SWALLOW, ProxyFault.DELAY], ids=lambda fault: fault.name
)
@pytest.mark.parametrize(
    "api",
    [pytest.param(api, id=api.name, marks=[] if api is ApiKey.END_TXN else [pytest.mark.matrix]) for api in APIS],
)
def test_requests_and_answers_that_get_lost_are_asked_again(
    world: BrokerWorld, cluster: ProxiedKafka, api: ApiKey, fault: ProxyFault, times: int, leaves_ids: bool
) -> None:
    """SWALLOW: the answer never comes, though the connection lives; the request is asked again after request.timeout.ms."""
    dead = world.run("dead")
    dead.reports(0, *FIRST)
    if leaves_ids:
        dead.task(0, 0, *FIRST[0], attempt=1).run()
    run = world.run("r1", cluster.proxied_servers, **QUICK_REQUESTS)
    cluster.proxy.arm(fault, api, times=times)
    assert run.write_version(0, *FIRST).how is HowCommitted.COMMITTED
    assert cluster.proxy.count(fault) >= times
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@pytest.mark.parametrize("api", [ApiKey.OFFSET_COMMIT, ApiKey.END_TXN], ids=lambda api: api.name)
def test_a_commit_whose_answers_never_come_is_finished_by_the_next_run(
    world: BrokerWorld, cluster: ProxiedKafka, api: ApiKey
) -> None:
    """What was asked is carried out. The driver cannot know, fails, and calls abort(), which leaves alone what is decided."""
    run = world.run("r1", cluster.proxied_servers, **{**QUICK_REQUESTS, "max.block.ms": 3_000})
    reports = run.reports(0, *FIRST)  # by then every broker knows the topic
    Ledger(world.client, run.names, "q", world.topic).record_partition_count(len(FIRST))  # else this is not answered first
    cluster.proxy.arm(ProxyFault.SWALLOW, api, times=1_000)
    with pytest.raises(KafkaError) as raised:
        run.commit(reports)
    cluster.proxy.disarm()
    run.abort()
    if api is ApiKey.END_TXN:
        assert isinstance(raised.value, CommitFailedError)
        assert "2 of 2 transactions of version 0 could not be committed" in str(raised.value)
        assert "the next run commits what is left" in str(raised.value)
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.ROLLED_FORWARD


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(5))
def test_versions_written_through_a_bad_network_are_all_there_once(world: BrokerWorld, cluster: ProxiedKafka, seed: int) -> None:
    chance = random.Random(seed)
    faults = [ProxyFault.DROP_BEFORE, ProxyFault.DROP_AFTER, ProxyFault.DELAY, ProxyFault.TEAR]

    def decide(request: Request) -> ProxyFault | None:  # noqa: ARG001
        return chance.choice(faults) if chance.random() < 0.05 else None

    cluster.proxy.decide = decide
    expected: list[str] = []
    for version in range(20):
        rows = [[f"{version}-{row}" for row in part] for part in FIRST]
        run = world.run(f"r{version // 3}", cluster.proxied_servers, **QUICK_REQUESTS)
        for _ in range(3):
            try:
                run.write_version(version, *rows)
                break
            except KafkaError:
                run.abort()
                run = world.run(f"r{version}b", cluster.proxied_servers, **QUICK_REQUESTS)
        else:
            raise AssertionError(f"version {version} cannot be written")
        expected += rows_of(rows)
    cluster.proxy.disarm()
    world.audit(expected)


# COORDINATORS THAT DIE


def coordinator(run: DriverRun, key_type: KeyType, key: str) -> int:
    (node,) = run.client._requests.ask_all([Ask(ANY_BROKER, FindCoordinator(key_type), CoordinatorKey(key_type, key))], 30_000)
    return int(node.id)


BEFORE_COMMITS, AMID_COMMITS, AFTER_COMMITS = Stop("6e", AFTER, PAUSE), Stop("6f", AMID, PAUSE), Stop("6f", AFTER, PAUSE)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param([(KeyType.TRANSACTION, AMID_COMMITS), (KeyType.GROUP, BEFORE_COMMITS)], id="two"),
        pytest.param(
            [(key_type, stop) for key_type in KeyType for stop in (BEFORE_COMMITS, AMID_COMMITS, AFTER_COMMITS)],
            id="all",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_coordinators_that_die_amid_a_commit_delay_it_and_nothing_else(
    tmp_path: Path, deaths: list[tuple[KeyType, Stop]]
) -> None:
    """Three brokers. The one that coordinates a transaction, or the one that keeps the decision, dies between the decision and
    the commits, or among the commits. Each comes back."""
    with LocalKafka(tmp_path, brokers=3, properties={**QUICK_TIMEOUTS, **QUICK_SESSIONS}) as cluster, world_of(cluster) as world:
        expected: list[str] = []
        for version, (key_type, stop) in enumerate(deaths, 1):
            name = f"r{version}"
            run = world.run(name)
            rows = [[f"{version}-{partition}"] for partition in range(8)]
            commit = world.processes.commit(name, run.reports(version, *rows), stop)
            commit.await_pause()
            key = f"{world.prefix}-q-5-0" if key_type is KeyType.TRANSACTION else f"{world.prefix}-q-decision"
            killed = coordinator(run, key_type, key)
            cluster.kill(killed)
            committed = commit.resume().outcome(120)
            assert isinstance(committed, Committed), committed
            assert committed.how is HowCommitted.COMMITTED
            cluster.restart(killed)
            expected += rows_of(rows)
        world.run("later").write_version(len(deaths) + 1, *SECOND)
        world.audit([*expected, *rows_of(SECOND)])


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize("seed", range(3))
def test_brokers_that_die_while_versions_are_written_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Tasks and drivers each in a process, while one broker after the other is killed and comes back."""
    chance = random.Random(seed)
    with LocalKafka(tmp_path, brokers=3, properties={**QUICK_TIMEOUTS, **QUICK_SESSIONS}) as cluster, world_of(cluster) as world:
        expected: list[str] = []
        for version in range(12):
            name = f"r{version}"
            rows = [[f"{version}-{partition}"] for partition in range(4)]
            writing = world.processes.write_all(name, version, rows)
            killed = chance.randrange(1, 4)
            writing.is_done_within(chance.random() * 2)
            cluster.kill(killed)
            writing.is_done_within(chance.random() * 4)
            cluster.restart(killed)
            outcome = writing.outcome(120)
            if not isinstance(outcome, Committed):
                world.recover(rows, version=version, runs=2)
            expected += rows_of(rows)
        world.audit(expected)
