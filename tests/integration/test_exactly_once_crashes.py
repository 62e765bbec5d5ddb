"""Processes of an exactly-once write that are killed at each step, on a real broker: tasks, drivers in commit() and in abort().

After each: a fresh run finishes the version, readers of committed records see each row once, no transaction is open, and a later
version works. The steps: task_attempt.py, version_commit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import Committed, HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, TaskReport
from tests.broker_properties import QUICK_TIMEOUTS
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.stoppable_processes import (
    ABORT_STEPS,
    AFTER,
    AMID,
    BEFORE,
    COMMIT_STEPS,
    KILLED,
    PAUSE,
    TASK_STEPS,
    Stop,
    stops,
)
from tests.integration.exactly_once_world import FIRST, SECOND, BrokerWorld, rows_of
from tests.integration.transaction_brokers import VERSION_0, VERSION_1

pytestmark = [pytest.mark.slow]

TIMES = pytest.mark.parametrize("times", [pytest.param(1, id="once"), pytest.param(2, id="twice", marks=pytest.mark.matrix)])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("4.3.1", ()), id="TV2"),
        pytest.param(("4.3.1", VERSION_1), id="TV1", marks=pytest.mark.matrix),
        pytest.param(("4.3.1", VERSION_0), id="TV0", marks=pytest.mark.matrix),
        pytest.param(("3.9.1", ()), id="3.9", marks=pytest.mark.matrix),
    ],
)
def cluster(
    kafka_jars: Path,  # noqa: ARG001 - fetched before the start is timed
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[LocalKafka]:
    version, format_options = request.param
    directory = tmp_path_factory.mktemp("broker")
    with LocalKafka(directory, version=version, format_options=format_options, properties=QUICK_TIMEOUTS) as cluster:
        yield cluster


def deaths(stops: list[Stop]) -> list[Any]:
    """Of steps that follow each other. Who dies before a step leaves what it leaves after the one before: such deaths are marked
    `matrix`, but the first."""
    return [
        pytest.param(stop, marks=[pytest.mark.matrix] if number and stop.when == BEFORE else [])
        for number, stop in enumerate(stops)
    ]


BEGUN = [stop for stop in stops(TASK_STEPS) if not stop.step.startswith("3")]  # where the version is not decided


def leave_open(world: BrokerWorld) -> None:
    """A dead run's transactions: step 1 has something to end, and 6b too."""
    dead = world.run("dead")
    dead.reports(0, *FIRST)
    for attempt in (1, 2, 3):
        dead.task(0, 0, *FIRST[0], attempt=attempt).run()


def leave_decided(world: BrokerWorld, *, is_lost: bool) -> None:
    """A dead run has decided the version. `is_lost`: somebody has ended one of its transactions meanwhile."""
    dead = world.run("dead")
    assert world.processes.commit("dead", dead.reports(0, *FIRST), Stop("6e", AFTER)).outcome() is KILLED
    if is_lost:
        world.client.fence([dead.names.transactional_id(AttemptId("q", 0, 0))])


# TASKS


@TIMES
@pytest.mark.parametrize("stop", deaths(BEGUN), ids=str)
def test_a_killed_task_is_retried_by_its_driver(world: BrokerWorld, stop: Stop, times: int) -> None:
    leave_open(world)
    run = world.run("r1")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    for attempt in range(times):
        assert world.processes.task("r1", 0, 0, FIRST[0], stop, attempt=attempt).outcome() is KILLED
    report = run.task(0, 0, *FIRST[0], attempt=times).run()
    assert run.commit([report, *others]).how is HowCommitted.COMMITTED
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@TIMES
@pytest.mark.parametrize("stop", deaths(stops(TASK_STEPS)), ids=str)
def test_a_task_killed_while_it_writes_again_what_was_lost_is_retried(world: BrokerWorld, stop: Stop, times: int) -> None:
    """The version is decided, and one of its transactions is gone. Its task looks, takes its id, and writes the rows again."""
    leave_decided(world, is_lost=True)
    run = world.run("r1")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    assert [each.result for each in others] == [AttemptResult.DECIDED] * 2
    for attempt in range(times):
        assert world.processes.task("r1", 0, 0, FIRST[0], stop, attempt=attempt).outcome() is KILLED
    report = run.task(0, 0, *FIRST[0], attempt=times).run()
    assert report.result is AttemptResult.OPEN
    assert run.commit([report, *others]).how is HowCommitted.COMMITTED
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@pytest.mark.parametrize("stop", [stop for stop in stops(TASK_STEPS) if stop.step in ("0", "3")], ids=str)
def test_a_task_killed_while_it_looks_at_a_decision_leaves_it_to_be_carried_out(world: BrokerWorld, stop: Stop) -> None:
    leave_decided(world, is_lost=False)
    assert world.processes.task("r1", 0, 0, FIRST[0], stop).outcome() is KILLED
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.ROLLED_FORWARD


@TIMES
@pytest.mark.parametrize("stop", deaths(BEGUN), ids=str)
def test_a_task_killed_together_with_its_driver_leaves_nothing_behind(world: BrokerWorld, stop: Stop, times: int) -> None:
    leave_open(world)
    for number in range(times):
        run = f"r{number}"
        world.run(run).task(0, 1, *FIRST[1]).run()
        assert world.processes.task(run, 0, 0, FIRST[0], stop).outcome() is KILLED
    world.check()


# COMMIT


def reports_of(run: DriverRun) -> list[TaskReport]:
    """Of a run whose task 0 has a copy that nobody waits for."""
    reports = run.reports(0, *FIRST)
    run.task(0, 0, *FIRST[0], attempt=1).run()
    return reports


def outcome_of_commit(world: BrokerWorld, name: str, stop: Stop, *, has_listed: bool = False) -> object:
    """Of a driver that is to be killed at this step. A copy of a task takes its id and writes after step 6b: 6g has to end it."""
    run = world.run(name)
    stops = [Stop("6b complete", AFTER, PAUSE), stop]
    process = world.processes.commit(name, reports_of(run), stops, has_listed=has_listed)
    if process.pauses():
        run.task(0, 0, *FIRST[0], attempt=2).run()
        process.resume()
    return process.outcome()


@TIMES
@pytest.mark.parametrize("stop", deaths(stops(COMMIT_STEPS)), ids=str)
def test_a_driver_killed_in_commit_is_followed_by_one_that_finishes(world: BrokerWorld, stop: Stop, times: int) -> None:
    """The second time the driver finds what the first one has decided, and need not come to the same step."""
    leave_open(world)
    assert outcome_of_commit(world, "r0", stop) is KILLED
    if times == 2:
        outcome = outcome_of_commit(world, "r1", stop)
        assert outcome is KILLED or isinstance(outcome, Committed)
    world.check()


SIDE_BY_SIDE = [stop for stop in stops(COMMIT_STEPS) if stop.step in ("6a", "6b fence", "6b complete", "6c", "6g mark")]


@pytest.mark.parametrize("stop", SIDE_BY_SIDE, ids=str)
def test_a_driver_killed_in_a_later_commit_is_followed_by_one_that_finishes(world: BrokerWorld, stop: Stop) -> None:
    """Then the list of step 6b is asked for beside 6a."""
    leave_open(world)
    assert outcome_of_commit(world, "r0", stop, has_listed=True) is KILLED
    world.check()


@pytest.mark.parametrize("stop", deaths(stops(COMMIT_STEPS)), ids=str)
def test_a_driver_killed_while_it_commits_the_rest_is_followed_by_one_that_finishes(world: BrokerWorld, stop: Stop) -> None:
    """One of the decided transactions is gone, and its task has written its rows again."""
    leave_decided(world, is_lost=True)
    outcome = outcome_of_commit(world, "r1", stop)
    assert outcome is KILLED or isinstance(outcome, Committed)
    world.check()


@pytest.mark.parametrize("stop", [Stop("6e", AFTER), Stop("6f", AMID)], ids=str)
def test_a_decision_in_many_records_is_carried_out_by_the_next_run(world: BrokerWorld, stop: Stop) -> None:
    """As of a write with thousands of tasks, whose decision is too long for one."""
    run = world.run("r0")
    assert world.processes.commit("r0", run.reports(0, *FIRST), stop, has_overflow=True).outcome() is KILLED
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.ROLLED_FORWARD


def test_a_run_that_is_killed_after_any_of_its_requests_loses_and_doubles_nothing(world: BrokerWorld) -> None:
    """Tasks and driver in one process, which dies after its first request, its second one, and so on; each time in a version
    of its own, which a fresh run then finishes."""
    expected: list[str] = []
    number, outcome = 0, None
    while not isinstance(outcome, Committed):
        number += 1
        rows = [[f"{number}-{row}" for row in part] for part in FIRST]
        outcome = world.processes.write_all(f"killed{number}", number, rows, number).outcome()
        assert outcome is KILLED or isinstance(outcome, Committed), outcome
        world.recover(rows, version=number)
        expected += rows_of(rows)
    world.audit(expected)
    assert number > 30  # a task takes more than ten requests, and the commit more than that


# ABORT


@TIMES
@pytest.mark.parametrize("stop", deaths(stops(ABORT_STEPS)), ids=str)
def test_a_driver_killed_in_abort_leaves_nothing_behind(world: BrokerWorld, stop: Stop, times: int) -> None:
    for number in range(times):
        world.run(f"r{number}").reports(0, *FIRST)
        assert world.processes.abort(f"r{number}", stop).outcome() is KILLED
    world.check()


@pytest.mark.parametrize("stop", deaths(stops(ABORT_STEPS)), ids=str)
def test_an_abort_that_is_killed_leaves_what_was_decided_to_the_next_run(world: BrokerWorld, stop: Stop) -> None:
    """Between the commits of a version a request fails, say, and Spark calls abort(). What was decided is committed."""
    run = world.run("r0")
    assert world.processes.commit("r0", run.reports(0, *FIRST), Stop("6f", AMID)).outcome() is KILLED
    assert world.processes.abort("r0", stop).outcome() is KILLED
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.ROLLED_FORWARD
