"""Every order in which the steps of a case can happen, breadth first, and what must hold in each state.

The first trace that is found to a violation is a shortest one. A process that dies never moves again. Besides, in every state
`recover` lets everything die, and runs the query again: that is a crash at any point.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from tests.exactly_once.model import driver as driver_steps
from tests.exactly_once.model import spark
from tests.exactly_once.model import task as task_steps
from tests.exactly_once.model.broker import (
    FENCER,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    Broker,
    Rows,
    is_of_one_schema,
    place_of,
)
from tests.exactly_once.model.world import (
    CUT_OFF,
    ENDED,
    ERROR,
    FAILED,
    NO_FAULTS,
    OTHER_ROWS,
    UNKNOWN,
    ModelEvent,
    ModelMove,
    ModelWorld,
    Setting,
    decided_ids,
    rows_of,
)

EVERYTHING = "everything"  # the process of the event that all drivers and tasks die
RECOVERY_RUNS = 6
FAULT_SHARE = 0.08  # of the steps of a random walk


class Violation(Enum):
    DOUBLED = "I1: a row is visible twice"
    LOST = "I2: Spark's log says that a version is committed, and its rows are not visible exactly once"
    ABANDONED = "I2: a later version is committed, only a part of an earlier one is visible, and nobody was told"
    UNDECIDED = "I3: rows of a version are visible that nobody has decided to commit"
    SHOWN = "I3: transactions were gone before commit() began, and the failed write shows rows all the same"
    DENIED = "I3: commit() fails although all is visible"
    OPEN = "I4: nothing moves any more, and a transaction is still open that nobody has decided to commit"
    HANGING = "I4: a later write has succeeded, and rows still hang, so that readers stand still"
    STALLED = "I5: nothing moves any more, and the write has neither succeeded nor failed; or repetitions fail without end"
    REFUSED = "I5: the repetition with the same rows ends in an error that a repetition does not mend"
    MIXED = "I6: one version has rows that are encoded with different schemas"
    UNHEALTHY = "I5: a write fails although nothing has gone wrong"


UNSAFE = {
    *(Violation.DOUBLED, Violation.LOST, Violation.ABANDONED, Violation.UNDECIDED, Violation.SHOWN, Violation.DENIED),
    Violation.MIXED,
}
Finding = tuple[Violation, list[ModelEvent]]


class Result(NamedTuple):
    """
    Args:
        states: how many were looked at.
        is_complete: whether those are all.
        traces: what happened before each violation.
        shown: by failed writes, and what the decision says then.
    """

    states: int
    is_complete: bool
    traces: dict[Violation, list[ModelEvent]]
    shown: set[tuple[Rows, str]]


def moves(setting: Setting, world: ModelWorld) -> Iterator[ModelMove]:
    yield from spark.moves(setting, world)
    for driver in world.drivers:
        if driver.step in driver_steps.STEPS:
            yield from driver_steps.STEPS[driver.step](setting, world, driver)
    for task in world.tasks:
        yield from task_steps.STEPS[task.step](setting, world, task)


# WHAT MUST HOLD


def unsafe(setting: Setting, world: ModelWorld) -> Violation | None:
    """What is wrong in this state, whatever happens next."""
    case, visible = setting.case, _visible(world.broker)
    if len(set(visible)) < len(visible):
        return Violation.DOUBLED
    for version in case.versions:
        in_kafka = [each.content for each in world.broker.markers if each is not None and each.version == version]
        if not is_of_one_schema(tuple(row for content in in_kafka for row in content)):
            return Violation.MIXED
        rows = [row for frame in range(case.frames) for part in rows_of(version, case.first, frame) for row in part]
        is_whole, is_begun = all(row in visible for row in rows), any(row in visible for row in rows)
        if version <= world.log and not all(row in world.broker.visible for row in rows):
            if not case.skips:
                return Violation.LOST
            if is_begun and version not in world.broker.ever_incomplete:
                return Violation.ABANDONED
        if version not in world.broker.ever_decided and is_begun:
            return Violation.UNDECIDED
        if case.kind == "batch" and world.latest.reason in ("mark", "incomplete") and is_whole:
            return Violation.DENIED
    return None


def _visible(broker: Broker) -> Rows:
    """Rows that readers see, or will see as soon as the brokers have completed what is prepared."""
    rows = broker.visible
    for each in broker.transactions:
        if each.state == PREPARE_COMMIT:
            rows += tuple(row for row in each.rows if place_of(row) in each.places)
    return rows


def _refused(setting: Setting, world: ModelWorld) -> Violation | None:
    """Whether the latest run has ended in an error that its user cannot understand."""
    case, latest = setting.case, world.latest
    is_expected = (
        case.frames > 1
        or (latest.reason == OTHER_ROWS and case.replay is not None)
        or (latest.reason == CUT_OFF and case.may_be_cut_off)
    )
    return Violation.REFUSED if latest.step == ERROR and not is_expected else None


def violation_in(setting: Setting, world: ModelWorld, *, rests: bool) -> Violation | None:
    """What is wrong in this state. `rests`: nothing moves any more but by another fault."""
    case, latest = setting.case, world.latest
    violation = unsafe(setting, world) or (_at_rest(setting, world) if rests else None) or _refused(setting, world)
    if violation is None and case.healthy_from is not None and latest.run + latest.write >= case.healthy_from:
        return Violation.UNHEALTHY if latest.step == FAILED else None
    return violation


def _at_rest(setting: Setting, world: ModelWorld) -> Violation | None:
    case, latest = setting.case, world.latest
    if latest.step not in ENDED:
        return Violation.STALLED
    if case.kind == "batch" and latest.step == FAILED and world.broker.visible and case.when == "while tasks run":
        return Violation.SHOWN
    if all(driver.step in ENDED for driver in world.drivers) and _is_open(world.broker):
        return Violation.OPEN
    return None


def _is_open(broker: Broker) -> bool:
    """Whether a transaction is open that nobody has decided to commit. One that is open to repeat an abort times out soon."""
    decided = decided_ids(broker.decision)
    return any(each.state == ONGOING and each.taken_by != FENCER and each.id not in decided for each in broker.transactions)


class Recovery(NamedTuple):
    violation: Violation | None
    events: list[ModelEvent]
    world: ModelWorld


def recover(setting: Setting, world: ModelWorld) -> Recovery:
    """Everything dies and the brokers complete what is prepared; then Spark runs the query until it is done."""
    case, events = setting.case, [ModelEvent(EVERYTHING, "dies", "all drivers and tasks die at once", {})]
    broker = world.broker
    for each in broker.transactions:
        if each.state in PREPARED:
            broker = broker.complete(each.id)
    world = world._replace(broker=broker, drivers=(), tasks=(), faults=NO_FAULTS)
    for _ in range(RECOVERY_RUNS):
        if world.log >= case.versions[-1]:
            if _is_open(world.broker):
                return Recovery(Violation.OPEN, events, world)
            return _write_another(setting, world, events)
        events.append(ModelEvent("Spark", "new run", "starts run {run}", {"run": world.runs}))
        world = spark.start(setting, world)
        while move := next(moves(setting, world), None):
            events.append(move.event)
            world = move.world
            if violation := unsafe(setting, world):
                return Recovery(violation, events, world)
        if world.latest.step == ERROR:
            return Recovery(_refused(setting, world), events, world)
        if world.latest.step not in ENDED:
            return Recovery(Violation.STALLED, events, world)
        if world.latest.reason == UNKNOWN:
            world = _time_out(world, events)
    is_expected = world.log >= case.versions[-1] or (world.latest.reason == UNKNOWN and case.may_be_cut_off)
    return Recovery(None if is_expected else Violation.STALLED, events, world)


def _time_out(world: ModelWorld, events: list[ModelEvent]) -> ModelWorld:
    """Brokers abort what is open, as no process lives that could go on with it."""
    broker = world.broker
    for each in broker.transactions:
        if each.state == ONGOING:
            event = ModelEvent("brokers", "time-out", "abort transaction {id}, which is older than its time-out", {"id": each.id})
            events.append(event)
            broker = broker.time_out(each.id).complete(each.id)
    return world._replace(broker=broker)


def _write_another(setting: Setting, world: ModelWorld, events: list[ModelEvent]) -> Recovery:
    """Where rows hang when all is committed, a version follows, and ends them."""
    if not world.broker.hanging:
        return Recovery(None, events, world)
    version = setting.case.versions[-1] + 1
    later = Setting(setting.plan, replace(setting.case, versions=(*setting.case.versions, version), skips=False))
    world = spark.start(later, world)
    while move := next(moves(later, world), None):
        events.append(move.event)
        world = move.world
        if violation := unsafe(later, world):
            return Recovery(violation, events, world)
    if world.log < version and not (later.case.may_be_cut_off and world.latest.reason in (UNKNOWN, CUT_OFF)):
        return Recovery(Violation.STALLED, events, world)
    return Recovery(Violation.HANGING if world.broker.hanging else None, events, world)


# EXPLORATION


class _Explorer:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.start = spark.begin(setting)
        self.came_from: dict[ModelWorld, ModelWorld | None] = {self.start: None}
        self.recoveries: dict[tuple[Broker, int, int, int], Finding | None] = {}
        self.traces: dict[Violation, list[ModelEvent]] = {}
        self.shown: set[tuple[Rows, str]] = set()

    def judge(self, world: ModelWorld, rests: bool) -> Finding | None:
        """The violation, and what happens after this state before it shows."""
        setting, case, latest = self.setting, self.setting.case, world.latest
        if rests and case.kind == "batch" and latest.step == FAILED:
            decision = world.broker.decision
            self.shown.add((world.broker.visible, decision.state if decision else "no decision"))
        if violation := violation_in(setting, world, rests=rests):
            return violation, []
        if case.kind == "batch":
            return None  # nobody runs it again
        key = (world.broker, world.log, world.begun if case.skips else 0, world.runs if case.evolves else 0)
        if key not in self.recoveries:
            violation, events, _ = recover(setting, world)
            self.recoveries[key] = (violation, events) if violation else None
        return self.recoveries[key]

    def breadth_first(self, until: Violation | None) -> tuple[int, bool]:
        waiting, states = deque([self.start]), 0
        while waiting and states < self.setting.case.limit:
            world = waiting.popleft()
            states += 1
            following = list(moves(self.setting, world))
            finding = self.judge(world, all(move.is_fault for move in following))
            if finding:
                violation, more = finding
                if violation not in self.traces:
                    self.traces[violation] = [*self.trace(world), *more]
                if violation == until or (until is None and violation in UNSAFE):
                    return states, False
                if violation in UNSAFE:
                    continue  # what comes of it is of no interest
            for move in following:
                if move.world not in self.came_from:
                    self.came_from[move.world] = world
                    waiting.append(move.world)
        return states, not waiting

    def trace(self, world: ModelWorld) -> list[ModelEvent]:
        """What happened until then."""
        events = []
        while (before := self.came_from[world]) is not None:
            events.append(next(move.event for move in moves(self.setting, before) if move.world == world))
            world = before
        return events[::-1]

    def walk(self, chance: random.Random) -> None:
        """One random way from the beginning to the end."""
        world, events = self.start, list[ModelEvent]()
        while not self.traces:
            following = list(moves(self.setting, world))
            ordinary = [move for move in following if not move.is_fault]
            faults = [move for move in following if move.is_fault]
            finding = self.judge(world, not ordinary)
            if finding:
                self.traces[finding[0]] = [*events, *finding[1]]
            if not following:
                return
            move = chance.choice(faults if faults and (not ordinary or chance.random() < FAULT_SHARE) else ordinary)
            events.append(move.event)
            world = move.world


def explore(setting: Setting, until: Violation | None = None) -> Result:
    """
    Args:
        until: the violation to look for; None stops at the first that is unsafe.
    """
    explorer = _Explorer(setting)
    states, is_complete = explorer.breadth_first(until)
    if not is_complete and not explorer.traces:
        chance = random.Random(7)
        for _ in range(setting.case.walks):
            explorer.walk(chance)
    return Result(states, is_complete, explorer.traces, explorer.shown)
