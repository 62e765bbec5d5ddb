"""Processes of an exactly-once write that are killed at each step, on a real broker: tasks, drivers in commit() and in abort().

After each: a fresh run finishes the version, readers of committed records see each row once, no transaction is open, and a later
version works. The steps: task_attempt.py, version_commit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.exactly_once.version_commit import Committed, How
from spark_kafka_sink.exactly_once.writes import TaskReport
from tests.exactly_once.driving import Run
from tests.exactly_once.stopping import (
    ABORT_STEPS,
    AFTER,
    AMID,
    COMMIT_STEPS,
    KILLED,
    TASK_STEPS,
    Stop,
    stops,
)
from tests.integration.exactly_once_world import FIRST, QUICK_TIMEOUTS, SECOND, World, rows_of, world_of

pytestmark = [pytest.mark.slow]

TV1 = ("--feature", "transaction.version=1")
TIMES = pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("4.3.1", ()), id="TV2"),
        pytest.param(("4.3.1", TV1), id="TV1", marks=pytest.mark.matrix),
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


@pytest.fixture
def world(cluster: LocalKafka) -> Iterator[World]:
    with world_of(cluster) as world:
        yield world


def leave_open(world: World) -> None:
    """A dead run's transactions: steps 3 and 6c have something to end, of partition 0 two."""
    dead = world.run("dead")
    dead.reports(0, *FIRST)
    dead.task(0, 0, *FIRST[0], attempt=1).run()


# --- TASKS ------------------------------------------------------------------------------------------------------------


@TIMES
@pytest.mark.parametrize("stop", stops(TASK_STEPS), ids=str)
def test_a_killed_task_is_retried_by_its_driver(world: World, stop: Stop, times: int) -> None:
    leave_open(world)
    run = world.run("r1")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    for attempt in range(times):
        assert world.processes.task("r1", 0, 0, FIRST[0], stop, attempt=attempt).outcome() is KILLED
    report = run.task(0, 0, *FIRST[0], attempt=times).run()
    assert run.commit([report, *others]).how is How.COMMITTED
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@TIMES
@pytest.mark.parametrize("stop", stops(TASK_STEPS), ids=str)
def test_a_task_killed_together_with_its_driver_leaves_nothing_behind(world: World, stop: Stop, times: int) -> None:
    leave_open(world)
    for number in range(times):
        run = f"r{number}"
        world.run(run).task(0, 1, *FIRST[1]).run()
        assert world.processes.task(run, 0, 0, FIRST[0], stop).outcome() is KILLED
    world.check()


# --- COMMIT -----------------------------------------------------------------------------------------------------------


def reports_of(run: Run) -> list[TaskReport]:
    """Of a run whose task 0 has a copy that nobody waits for."""
    reports = run.reports(0, *FIRST)
    run.task(0, 0, *FIRST[0], attempt=1).run()
    return reports


@TIMES
@pytest.mark.parametrize("stop", stops(COMMIT_STEPS), ids=str)
def test_a_driver_killed_in_commit_is_followed_by_one_that_finishes(world: World, stop: Stop, times: int) -> None:
    """The second time the driver finds what the first one has decided, and need not come to the same step."""
    leave_open(world)
    assert world.processes.commit("r0", reports_of(world.run("r0")), stop).outcome() is KILLED
    if times == 2:
        outcome = world.processes.commit("r1", reports_of(world.run("r1")), stop).outcome()
        assert outcome is KILLED or isinstance(outcome, Committed)
    world.check()


@pytest.mark.parametrize("stop", [Stop("6f", AFTER), Stop("6g", AMID)], ids=str)
def test_a_decision_in_many_records_is_carried_out_by_the_next_run(world: World, stop: Stop) -> None:
    """As of a write with thousands of tasks, whose decision is too long for one."""
    run = world.run("r0")
    assert world.processes.commit("r0", run.reports(0, *FIRST), stop, chunked=True).outcome() is KILLED
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is How.ROLLED_FORWARD


def test_a_run_that_is_killed_after_any_of_its_requests_loses_and_doubles_nothing(world: World) -> None:
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


# --- ABORT ------------------------------------------------------------------------------------------------------------


@TIMES
@pytest.mark.parametrize("stop", stops(ABORT_STEPS), ids=str)
def test_a_driver_killed_in_abort_leaves_nothing_behind(world: World, stop: Stop, times: int) -> None:
    for number in range(times):
        world.run(f"r{number}").reports(0, *FIRST)
        assert world.processes.abort(f"r{number}", 0, stop).outcome() is KILLED
    world.check()


@pytest.mark.parametrize("stop", stops(ABORT_STEPS), ids=str)
def test_an_abort_that_is_killed_leaves_what_was_decided_to_the_next_run(world: World, stop: Stop) -> None:
    """Between the commits of a version a request fails, say, and Spark calls abort(). What was decided is committed."""
    run = world.run("r0")
    assert world.processes.commit("r0", run.reports(0, *FIRST), Stop("6g", AMID)).outcome() is KILLED
    assert world.processes.abort("r0", 0, stop).outcome() is KILLED
    (committed,) = world.check()
    assert isinstance(committed, Committed)
    assert committed.how is How.ROLLED_FORWARD
