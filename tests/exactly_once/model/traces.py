"""Traces as data: what a later test lets real tasks and drivers do, in the same order.

A recorded trace has two lists of steps. `steps` ends in the violation that the plan with a step left out has. `full_plan` is the
same schedule with nothing left out: whenever a process takes a step of the trace, it takes this step, and those before it that
it has not taken yet. Then every process goes on to its end, and if the version is not committed by then, everything dies and
Spark runs the query again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tests.exactly_once.model import driver as driver_steps
from tests.exactly_once.model import spark
from tests.exactly_once.model import task as task_steps
from tests.exactly_once.model.exploration import EVERYTHING, Violation, explore, moves, recover, violation_in
from tests.exactly_once.model.plans import LeftOut
from tests.exactly_once.model.world import (
    FULL_PLAN,
    LOST_ANSWER,
    Driver,
    ModelCase,
    ModelEvent,
    ModelMove,
    ModelTask,
    ModelWorld,
    Setting,
)

TASK_ORDER: Final = tuple(task_steps.STEPS)
DRIVER_ORDER: Final = tuple(driver_steps.STEPS)
FAULTS_IN_A_WALK: Final = 0.15  # of its steps
SPARKS_STEPS: Final = ("dies",)  # which happen to a task


class NotFollowedError(Exception):
    """A recorded step is not possible where the trace has it."""


def record(left_out: LeftOut) -> dict[str, Any]:
    """Explores, and returns the shortest trace."""
    events = explore(left_out.setting, left_out.violation).traces[left_out.violation]
    survived, world = follow(Setting(FULL_PLAN, left_out.case), events)
    return {
        "name": left_out.name,
        "left_out": list(left_out.fields),
        "violation": left_out.violation.value,
        **_of_case(left_out.case),
        "processes": _processes([*events, *survived]),
        "steps": [_step(event) for event in events],
        **_of_full_plan(survived, world),
    }


def walk(case: ModelCase, seed: int) -> dict[str, Any]:
    """A random schedule of the full plan, as a trace without a violation."""
    setting, chance = Setting(FULL_PLAN, case), random.Random(seed)
    world = spark.begin(setting)
    happened: list[ModelEvent] = []
    while following := list(moves(setting, world)):
        ordinary = [move for move in following if not move.is_fault]
        faults = [move for move in following if move.is_fault]
        move = chance.choice(faults if faults and (not ordinary or chance.random() < FAULTS_IN_A_WALK) else ordinary)
        happened.append(move.event)
        world = move.world
    name = {"name": f"{case.name}, seed {seed}"}
    return name | _of_case(case) | {"processes": _as_json(_processes(happened))} | _of_full_plan(happened, world)


def _of_case(case: ModelCase) -> dict[str, Any]:
    return {
        "case": case.name,
        "kind": case.kind,
        "transaction_version": case.transaction_version,
        "has_overflow": case.has_overflow,
    }


def _of_full_plan(happened: Iterable[ModelEvent], world: ModelWorld) -> dict[str, Any]:
    return {
        "full_plan": [_step(event) for event in happened],
        "full_plan_ends": world.latest.step + (f": {world.latest.reason}" if world.latest.reason else ""),
        "full_plan_visible": list(world.broker.visible),
    }


def _as_json(value: Any) -> Any:
    """As it is after a way through a file."""
    return json.loads(json.dumps(value))


def dump(traces: Iterable[dict[str, Any]]) -> str:
    """JSON with a line for each process and each step."""
    return "[\n" + ",\n".join(_object(trace) for trace in traces) + "\n]\n"


def violation_of(setting: Setting, steps: Sequence[dict[str, Any]]) -> Violation | None:
    """What a recorded trace leads to. Raises NotFollowedError if a step of it is not possible."""
    world = spark.begin(setting)
    for number, step in enumerate(steps):
        if step["process"] == EVERYTHING:
            recovery = recover(setting, world)
            if [_step(event) for event in recovery.events] != list(steps[number:]):
                raise NotFollowedError(step["words"])
            return recovery.violation
        following = [move for move in moves(setting, world) if _step(move.event) == step]
        if not following:
            raise NotFollowedError(f"{number}: {step['process']}: {step['words']}")
        world = following[0].world
    return _wrong(setting, world)


# THE SAME SCHEDULE, WITH NOTHING LEFT OUT


def follow(setting: Setting, events: Iterable[ModelEvent]) -> tuple[list[ModelEvent], ModelWorld]:
    """What happens, and the end, which has no violation. Raises NotFollowedError if it has one."""
    world = spark.begin(setting)
    happened: list[ModelEvent] = []
    for event in events:
        if event.process == EVERYTHING:
            break
        for move in _same(setting, world, event):
            happened.append(move.event)
            world = move.world
    while ordinary := [move for move in moves(setting, world) if not move.is_fault]:
        happened.append(ordinary[0].event)
        world = ordinary[0].world
    violation = _wrong(setting, world)
    if not violation and setting.case.kind != "batch" and world.log < setting.case.versions[-1]:
        violation, more, world = recover(setting, world)
        happened += more
    if violation:
        raise NotFollowedError(f"the full plan ends with {violation}")
    return happened, world


def _wrong(setting: Setting, world: ModelWorld) -> Violation | None:
    return violation_in(setting, world, rests=all(move.is_fault for move in moves(setting, world)))


def _same(setting: Setting, world: ModelWorld, event: ModelEvent) -> Iterator[ModelMove]:
    """The step of the event, and before it the process's steps that come first."""
    if isinstance(event.process, str) or event.step in SPARKS_STEPS:
        for move in moves(setting, world):
            if _step(move.event) == _step(event):
                yield move
                return
        return
    order = TASK_ORDER if isinstance(event.process, ModelTask) else DRIVER_ORDER
    if event.step not in order:
        return
    while True:
        process = _process(world, event.process)
        if process is None or process.step not in order or order.index(process.step) > order.index(event.step):
            return
        possible = [move for move in moves(setting, world) if move.event.process == process and move.event.step == process.step]
        if not possible:
            return  # it waits
        is_reached = process.step == event.step
        move = min(possible, key=lambda each: _distance(each, event)) if is_reached else possible[0]
        yield move
        world = move.world
        if is_reached:
            return


def _process(world: ModelWorld, process: ModelTask | Driver) -> ModelTask | Driver | None:
    processes: tuple[ModelTask | Driver, ...] = (*world.tasks, *world.drivers)
    return next((each for each in processes if str(each) == str(process)), None)


def _distance(move: ModelMove, event: ModelEvent) -> tuple[bool, bool]:
    return move.event.sentence != event.sentence, move.event.arguments != event.arguments


# JSON


def _step(event: ModelEvent) -> dict[str, Any]:
    return {
        "process": str(event.process),
        "step": event.step,
        "words": event.sentence.format(**event.arguments),
        "arguments": {name: _plain(value) for name, value in event.arguments.items()},
        "answer_is_lost": event.sentence.endswith(LOST_ANSWER),
    }


def _plain(value: Any) -> Any:
    """As it is after a way through JSON; a transactional id is a text."""
    if isinstance(value, tuple | list) and not hasattr(value, "attempt"):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int) else str(value)


def _processes(events: Iterable[ModelEvent]) -> dict[str, dict[str, Any]]:
    processes: dict[str, dict[str, Any]] = {}
    for event in events:
        match event.process:
            case ModelTask() as task:
                numbers = ("run", "write", "version", "stage", "partition", "attempt", "planned", "rows")
                processes[str(task)] = {"kind": "task"} | {name: getattr(task, name) for name in numbers}
            case Driver() as driver:
                numbers = ("run", "write", "version")
                processes[str(driver)] = {"kind": "driver"} | {name: getattr(driver, name) for name in numbers}
    return processes


def _object(trace: dict[str, Any]) -> str:
    lines = []
    for name, value in trace.items():
        match value:
            case dict():
                inner = ",\n".join(f"   {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items())
                text = f"{{\n{inner}\n  }}"
            case [dict(), *_]:
                inner = ",\n".join(f"   {json.dumps(each)}" for each in value)
                text = f"[\n{inner}\n  ]"
            case _:
                text = json.dumps(value)
        lines.append(f"  {json.dumps(name)}: {text}")
    return " {\n" + ",\n".join(lines) + "\n }"
