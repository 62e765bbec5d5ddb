"""Tasks and drivers of an exactly-once write that stand still, are taken for dead, and go on in the middle of their successors.

Real processes under SIGSTOP and SIGCONT, on a real broker. Whatever the one that woke up and its successor end with: a fresh run
finishes the version, and no row is lost or there twice. The full product of places is marked `matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import Committed, HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, CommitFailedError, TaskReport
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
    Failed,
    Process,
    Stop,
    stops,
)
from tests.integration.exactly_once_world import FIRST, FORMATS, MOST_RUNS, SECOND, BrokerWorld, rows_of

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", params=FORMATS)
def cluster(
    kafka_jars: Path,  # noqa: ARG001 - fetched before the start is timed
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path_factory.mktemp("broker"), format_options=request.param, properties=QUICK_TIMEOUTS) as cluster:
        yield cluster


# WHERE ONE STANDS STILL, AND WHERE ITS SUCCESSOR IS MEANWHILE


def pausing(stop: Stop) -> Stop:
    return stop._replace(how=PAUSE)


FENCING_LATE = ("6g fence", "6g complete")  # nothing comes late here
AT_COMMITS = [Stop("6e", BEFORE), Stop("6e", AFTER), Stop("6f", AMID), Stop("6f", AFTER)]
ANYWHERE = [
    stop for stop in [*stops(COMMIT_STEPS), *stops(ABORT_STEPS)] if stop not in AT_COMMITS and stop.step not in FENCING_LATE
]

TASKS_BEGUN, TASKS_DONE, DONE, LATER_DONE = "its tasks begun", "its tasks done", "done", "done with a later version"
Stage = str | Stop
SOME_STAGES: list[Stage] = [TASKS_BEGUN, Stop("6e", BEFORE), Stop("6f", AMID), DONE]
OTHER_STAGES: list[Stage] = [
    TASKS_DONE,
    LATER_DONE,
    *(Stop(step, BEFORE) for step in ("6b list", "6b fence", "6c", "6e width", "6f", "6g mark")),
    *(Stop(step, AFTER) for step in ("6e", "6f", "6g mark")),
]


def pairs(stops: list[Stop], stages: list[Stage], **how: Any) -> list[Any]:
    return [pytest.param(stop, stage, id=f"{stop}, {stage}", **how) for stop in stops for stage in stages]


SOME = pairs(AT_COMMITS, SOME_STAGES)
REST = [
    *pairs(AT_COMMITS, OTHER_STAGES, marks=pytest.mark.matrix),
    *pairs(ANYWHERE, SOME_STAGES, marks=pytest.mark.matrix),
]


class Successor:
    """The run that follows, up to some stage; `finish` goes on from there."""

    def __init__(self, world: BrokerWorld, stage: Stage) -> None:
        self._run = world.run("successor")
        self._rest: Callable[[], object]
        if stage == TASKS_BEGUN:
            tasks = [self._run.task(0, partition, *rows).begin() for partition, rows in enumerate(FIRST)]
            self._rest = lambda: self._run.commit([task.send().finish() for task in tasks])
        elif stage == TASKS_DONE:
            reports = self._run.reports(0, *FIRST)
            self._rest = lambda: self._run.commit(reports)
        elif isinstance(stage, Stop):
            process = world.processes.commit("successor", self._run.reports(0, *FIRST), pausing(stage))
            process.pauses()  # or it found what the zombie has decided, and has taken another way
            self._rest = lambda: process.resume().outcome()
        else:
            self._run.write_version(0, *FIRST)
            if stage == LATER_DONE:
                self._run.write_version(1, *SECOND)
            self._rest = lambda: None

    def finish(self) -> object:
        """What it ended with, once it has called abort() as Spark does after a failure."""
        try:
            outcome = self._rest()
        except KafkaError as error:
            outcome = error
        if isinstance(outcome, Failed | KafkaError):
            self._run.abort()
        return outcome


# DRIVERS


def zombie_driver(world: BrokerWorld, stop: Stop) -> Process:
    run = world.run("zombie")
    reports = run.reports(0, *FIRST)
    run.task(0, 0, *FIRST[0], attempt=1).run()  # so that 6b has something to fence
    if stop.step in ABORT_STEPS:
        process = world.processes.abort("zombie", pausing(stop))
    else:
        process = world.processes.commit("zombie", reports, pausing(stop))
    process.await_pause()
    return process


def end_of(world: BrokerWorld, process: Process) -> object:
    outcome = process.outcome()
    if isinstance(outcome, Failed):
        world.run("zombie").abort()
    return outcome


@pytest.mark.parametrize(("stop", "stage"), SOME + REST)
def test_a_driver_that_wakes_up_in_its_successor_loses_and_doubles_nothing(world: BrokerWorld, stop: Stop, stage: Stage) -> None:
    zombie = zombie_driver(world, stop)
    successor = Successor(world, stage)
    end_of(world, zombie.resume())
    successor.finish()
    if stage == LATER_DONE:
        world.audit(rows_of(FIRST, SECOND))
    else:
        world.check(runs=MOST_RUNS)


@pytest.mark.parametrize(
    ("stop", "stage"), [*pairs(AT_COMMITS, SOME_STAGES[1:3]), *pairs(AT_COMMITS, OTHER_STAGES[2:], marks=pytest.mark.matrix)]
)
def test_a_driver_that_wakes_up_beside_its_successor_loses_and_doubles_nothing(
    world: BrokerWorld, stop: Stop, stage: Stage
) -> None:
    """Both go on at the same time."""
    zombie = zombie_driver(world, stop)
    successor = Successor(world, stage)
    zombie.resume()
    successor.finish()
    end_of(world, zombie)
    world.check(runs=MOST_RUNS)


@pytest.mark.parametrize("stop", AT_COMMITS, ids=str)
def test_a_driver_that_wakes_up_after_its_successor_finds_the_version_committed(world: BrokerWorld, stop: Stop) -> None:
    """Such a driver succeeds or fails, as the case may be; its failure says that others have the prefix."""
    zombie = zombie_driver(world, stop)
    successor = world.run("successor")
    successor.write_version(0, *FIRST)
    outcome = end_of(world, zombie.resume())
    assert isinstance(outcome, Committed | Failed)
    if isinstance(outcome, Failed):
        assert outcome.kind == CommitFailedError.__name__
        assert "a prefix is for one query or job at a time" in outcome.message
    successor.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


# TASKS

LOOKING = [stop for stop in stops(TASK_STEPS) if stop.step in ("0", "3")]  # at what is decided, if anything is
TASK_STOPS = [
    stop for stop in stops(TASK_STEPS) if not stop.step.startswith("3") and (stop.when == AFTER or stop.step in ("1", "5 rows"))
]
TASK_STAGES: list[Stage] = [TASKS_BEGUN, Stop("6e", BEFORE), DONE]
OTHER_TASK_STAGES: list[Stage] = [TASKS_DONE, LATER_DONE, Stop("6b list", BEFORE), Stop("6c", BEFORE), Stop("6f", AMID)]


@pytest.mark.parametrize(
    ("stop", "stage"),
    [*pairs(TASK_STOPS, TASK_STAGES), *pairs(TASK_STOPS, OTHER_TASK_STAGES, marks=pytest.mark.matrix)],
)
def test_a_task_that_wakes_up_in_the_next_run_loses_and_doubles_nothing(world: BrokerWorld, stop: Stop, stage: Stage) -> None:
    """Its driver lives as well: if the task reports, it commits."""
    run = world.run("zombie")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    task = world.processes.task("zombie", 0, 0, FIRST[0], pausing(stop))
    task.await_pause()
    successor = Successor(world, stage)
    report = task.resume().outcome()
    if isinstance(report, TaskReport):
        end_of(world, world.processes.commit("zombie", [report, *others]))
    else:
        assert isinstance(report, Failed)
        run.abort()
    successor.finish()
    if stage == LATER_DONE:
        world.audit(rows_of(FIRST, SECOND))
    else:
        world.check(runs=MOST_RUNS)


def decided_by_a_dead_run(world: BrokerWorld) -> DriverRun:
    dead = world.run("dead")
    assert world.processes.commit("dead", dead.reports(0, *FIRST), Stop("6e", AFTER)).outcome() is KILLED
    return dead


@pytest.mark.parametrize(
    ("stop", "stage"),
    [
        *pairs(LOOKING, [TASKS_DONE, DONE]),
        *pairs(LOOKING, [LATER_DONE, Stop("6f", AMID), Stop("6f", AFTER)], marks=pytest.mark.matrix),
    ],
)
def test_a_task_that_stalls_while_it_looks_at_a_decision_loses_and_doubles_nothing(
    world: BrokerWorld, stop: Stop, stage: Stage
) -> None:
    """What it looks at is carried out meanwhile."""
    decided_by_a_dead_run(world)
    run = world.run("zombie")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    task = world.processes.task("zombie", 0, 0, FIRST[0], pausing(stop))
    task.await_pause()
    successor = Successor(world, stage)
    report = task.resume().outcome()
    assert isinstance(report, TaskReport)
    assert report.result is AttemptResult.DECIDED
    end_of(world, world.processes.commit("zombie", [report, *others]))
    successor.finish()
    if stage == LATER_DONE:
        world.audit(rows_of(FIRST, SECOND))
    else:
        world.check()


@pytest.mark.parametrize("stop", LOOKING, ids=str)
def test_a_task_that_stalls_while_a_decision_is_lost_loses_and_doubles_nothing(world: BrokerWorld, stop: Stop) -> None:
    """Two drivers repeat the write at the same time: one has seen the transaction open, the other writes its rows again."""
    dead = decided_by_a_dead_run(world)
    run = world.run("zombie")
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    task = world.processes.task("zombie", 0, 0, FIRST[0], pausing(stop))
    task.await_pause()
    world.client.fence([dead.names.transactional_id(AttemptId("q", 0, 0))])
    successor = Successor(world, TASKS_DONE)
    report = task.resume().outcome()
    if isinstance(report, TaskReport):
        end_of(world, world.processes.commit("zombie", [report, *others]))
    successor.finish()
    world.check(runs=MOST_RUNS)


SAME_RUN_STAGES = [Stop("6b list", AFTER), Stop("6e", BEFORE), Stop("6e", AFTER), Stop("6f", AFTER), Stop("6g mark", AFTER)]


@pytest.mark.parametrize("stop", TASK_STOPS, ids=str)
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(stage, id=str(stage), marks=[] if stage in SAME_RUN_STAGES[1::2] else [pytest.mark.matrix])
        for stage in SAME_RUN_STAGES
    ],
)
def test_a_task_whose_retry_won_leaves_nothing_open_when_it_wakes_amid_the_commit(
    world: BrokerWorld, stop: Stop, stage: Stop
) -> None:
    """Its executor was taken for lost. Of its rows none is seen, and its transaction does not hold readers back."""
    run = world.run("r1")
    lost_task = world.processes.task("r1", 0, 0, FIRST[0], pausing(stop))
    lost_task.await_pause()
    reports = [run.task(0, 0, *FIRST[0], attempt=1).run(), run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    commit = world.processes.commit("r1", reports, pausing(stage))
    commit.await_pause()
    woken = lost_task.resume().outcome()
    assert isinstance(woken, TaskReport | Failed)
    committed = commit.resume().outcome()
    assert isinstance(committed, Committed)
    assert committed.how is HowCommitted.COMMITTED
    world.audit(rows_of(FIRST))
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


@pytest.mark.parametrize("stop", TASK_STOPS, ids=str)
def test_a_task_that_wakes_up_after_the_commit_writes_nothing(world: BrokerWorld, stop: Stop) -> None:
    run = world.run("r1")
    lost_task = world.processes.task("r1", 0, 0, FIRST[0], pausing(stop))
    lost_task.await_pause()
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    run.commit([run.task(0, 0, *FIRST[0], attempt=1).run(), *others])
    woken = lost_task.resume().outcome()
    if isinstance(woken, TaskReport) and stop.step not in (
        "5 marker",
        "5 rows",
        "5 wait",
    ):  # else it need not ask anybody any more
        assert woken.result in (AttemptResult.DECIDED, AttemptResult.SKIPPED)
    world.audit(rows_of(FIRST))
    run.write_version(1, *SECOND)
    world.audit(rows_of(FIRST, SECOND))


def test_a_task_that_wakes_in_a_later_version_takes_its_id_back_and_it_is_rewritten(world: BrokerWorld) -> None:
    """Ids come back with each version of an owner. The version fails, which costs a restart; nothing is lost or doubled."""
    run = world.run("r1")
    lost_task = world.processes.task("r1", 0, 0, FIRST[0], pausing(Stop("1", BEFORE)))
    lost_task.await_pause()
    others = [run.task(0, 1, *FIRST[1]).run(), run.task(0, 2, *FIRST[2]).run()]
    run.commit([run.task(0, 0, *FIRST[0], attempt=1).run(), *others])
    reports = run.reports(1, *SECOND)
    woken = lost_task.resume().outcome()
    assert isinstance(woken, TaskReport)
    assert woken.result is AttemptResult.DECIDED
    with pytest.raises(CommitFailedError, match="1 of 3 tasks are not theirs any more"):
        run.commit(reports)
    run.abort()
    world.audit(rows_of(FIRST))
    world.recover(SECOND, version=1)
    world.audit(rows_of(FIRST, SECOND))
