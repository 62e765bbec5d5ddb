"""Spark, as far as the protocol sees it: what it starts, what it makes of a task's end, and its log of committed versions.

Facts: the first attempt of a task that returns wins, from whatever stage attempt; nobody tells the others. abort() is called
while tasks still run. A query that starts again repeats the version that its log lacks. Two drivers of one query cannot both
write a version into the log. foreachBatch may catch the error of a write and write again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.exactly_once.model.broker import DECIDED, ONGOING, Broker, ModelTransaction
from tests.exactly_once.model.world import (
    ABORT,
    COMMIT,
    DESCRIBE_IDS,
    DONE,
    ENDED,
    FAILED,
    NO_FAULTS,
    OTHER_ROWS,
    TASKS_RUN,
    Driver,
    Message,
    ModelEvent,
    ModelMove,
    ModelTask,
    ModelWorld,
    Setting,
    rows_of,
)


def first_step(setting: Setting) -> str:
    """Choose where a task attempt begins."""
    del setting
    return DESCRIBE_IDS


def begin(setting: Setting) -> ModelWorld:
    """The first run of the query."""
    broker = Broker(transaction_version=setting.case.transaction_version)
    return start(setting, ModelWorld(broker, faults=setting.case.faults))


def start(setting: Setting, world: ModelWorld) -> ModelWorld:
    """A new run of the query, or the write itself."""
    case = setting.case
    after, run = world.begun if case.skips else world.log, world.runs
    if run and case.when == "before the first restart":
        world = world._replace(faults=NO_FAULTS)
    version = next((each for each in case.versions if each > after), case.versions[-1])
    return begin_write(setting, world._replace(runs=run + 1), run, 0, version, case.split(run), 0)


def begin_write(setting: Setting, world: ModelWorld, run: int, write: int, version: int, split: str, frame: int) -> ModelWorld:
    rows = rows_of(version, split, frame)
    nothing: tuple[Message | None, ...] = (None,) * len(rows)
    planned = world.planned
    driver = Driver(run, write, version, split, frame, TASKS_RUN, planned, nothing, (1,) * len(rows))
    first = first_step(setting)
    schema = setting.case.schema(run, write)
    tasks = [
        ModelTask(run, write, version, 0, partition, 0, each, planned, first, schema=schema)
        for partition, each in enumerate(rows)
    ]
    drivers = [each for each in world.drivers if each.step not in ENDED]
    begun = max(world.begun, version)
    everybody = tuple(sorted([*world.tasks, *tasks]))
    return world._replace(begun=begun, planned=planned + 1, drivers=(*drivers, driver), tasks=everybody)


def attempt_again(setting: Setting, world: ModelWorld, driver: Driver, partition: int) -> ModelWorld:
    """Another attempt of a task, after a failed one or beside one that runs."""
    attempts = list(driver.attempts)
    number = attempts[partition]
    attempts[partition] += 1
    rows = rows_of(driver.version, driver.split, driver.frame)[partition]
    how = (driver.stage, partition, number, rows, driver.planned, first_step(setting))
    schema = setting.case.schema(driver.run, driver.write)
    new = ModelTask(driver.run, driver.write, driver.version, *how, schema=schema)
    after = world.with_driver(driver, attempts=tuple(attempts))
    return after._replace(tasks=tuple(sorted([*after.tasks, new])))


def returned(world: ModelWorld, ended: ModelTask, message: Message) -> ModelWorld:
    """A task attempt ends well. It counts unless another one was first, or nobody waits for it any more."""
    after = world.with_task(ended, None)
    driver = _waits(after, ended)
    if driver is None:
        return after
    messages = list(driver.messages)
    messages[ended.partition] = message
    return after.with_driver(driver, messages=tuple(messages), step=TASKS_RUN if None in messages else COMMIT)


def raised(setting: Setting, world: ModelWorld, ended: ModelTask, reason: str) -> ModelWorld:
    """A task attempt fails: Spark runs the task again, or gives up the write."""
    after = world.with_task(ended, None)
    driver = _waits(after, ended)
    if driver is None:
        return after
    is_alone = not any(each.partition == ended.partition and _waits(after, each) is driver for each in after.tasks)
    if reason != OTHER_ROWS:
        if not is_alone:
            return after
        if driver.attempts[ended.partition] < setting.case.attempts:
            return attempt_again(setting, after, driver, ended.partition)
    return after.with_driver(driver, step=ABORT, reason=reason)


def _waits(world: ModelWorld, for_: ModelTask) -> Driver | None:
    """The driver that takes the task's message."""
    for each in world.drivers:
        if (each.run, each.write, each.version, each.step) == (for_.run, for_.write, for_.version, TASKS_RUN):
            return each if each.messages[for_.partition] is None else None
    return None


# MOVES


def moves(setting: Setting, world: ModelWorld) -> Iterator[ModelMove]:
    """What Spark, its user and the brokers do by themselves."""
    for each in world.broker.transactions:
        if each.state in ("PrepareCommit", "PrepareAbort"):
            event = ModelEvent("brokers", "complete", "complete transaction {id} ({state})", {"id": each.id, "state": each.state})
            if not setting.case.apart or not each.places:
                yield ModelMove(event, world._replace(broker=world.broker.complete(each.id)))
            yield from _control_records(setting, world, each)
    latest = world.latest
    if latest.step == FAILED:
        yield from _write_again(setting, world)
        if world.faults.runs and world.log < setting.case.versions[-1]:
            event = ModelEvent("Spark", "new run", "starts run {run}, after the one before has failed", {"run": world.runs})
            yield ModelMove(event, start(setting, world.spend("runs")))
    yield from _faults(setting, world)


def _control_records(setting: Setting, world: ModelWorld, transaction: ModelTransaction) -> Iterator[ModelMove]:
    for place in transaction.places:
        arguments = {"id": transaction.id, "place": place}
        if setting.case.apart:
            event = ModelEvent("brokers", "control record", "the control record of {id} comes to {place}", arguments)
            yield ModelMove(event, world._replace(broker=world.broker.control(transaction.id, place)))
        if world.faults.skips:
            event = ModelEvent("brokers", "skip", "the control record of {id} never comes to {place}", arguments)
            broker = world.broker.control(transaction.id, place, is_skipped=True)
            yield ModelMove(event, world._replace(broker=broker).spend("skips"), is_fault=True)


def finish(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """The write has ended well. The version is committed in Spark's log, and the next one begins."""
    case, is_latest = setting.case, world.latest is driver
    if not is_latest and (
        driver.frame + 1 < case.frames or any(each.run == driver.run for each in world.drivers if each is not driver)
    ):
        yield ModelMove(ModelEvent(driver, "ends", "nobody waits for it any more", {}), world.with_driver(driver, step=DONE))
    elif driver.frame + 1 < case.frames:
        after = world.with_driver(driver, step=DONE)
        following = (driver.run, driver.write + 1, driver.version, driver.split, driver.frame + 1)
        event = ModelEvent(driver, "next write", "foreachBatch writes its second DataFrame", {})
        yield ModelMove(event, begin_write(setting, after, *following))
    elif world.log >= driver.version:
        event = ModelEvent(
            driver, "log", "Spark's log has version {version} already: the query dies", {"version": driver.version}
        )
        yield ModelMove(event, world.with_driver(driver, step=FAILED, reason="log"))
    else:
        event = ModelEvent(driver, "log", "Spark's log: version {version} is committed", {"version": driver.version})
        after = world.with_driver(driver, step=DONE)._replace(log=driver.version)
        if is_latest and driver.version < case.versions[-1]:
            version = next(each for each in case.versions if each > driver.version)
            after = begin_write(setting, after, driver.run, 0, version, case.split(driver.run), 0)
        yield ModelMove(event, after)


def _write_again(setting: Setting, world: ModelWorld) -> Iterator[ModelMove]:
    latest = world.latest
    if setting.case.kind == "foreachBatch" and world.faults.writes and latest.reason != "log":
        event = ModelEvent(
            "Spark", "write again", "foreachBatch catches the error of run {run}, and writes again", {"run": latest.run}
        )
        again = (latest.run, latest.write + 1, latest.version, latest.split, latest.frame)
        yield ModelMove(event, begin_write(setting, world.spend("writes"), *again))


def _faults(setting: Setting, world: ModelWorld) -> Iterator[ModelMove]:
    faults, latest, case = world.faults, world.latest, setting.case
    if faults.time_outs and _may_time_out(setting, world):
        for each in world.broker.transactions:
            if each.state == ONGOING and (each.rows or each.marker or case.repeats_time_out):
                event = ModelEvent(
                    "brokers", "time-out", "abort transaction {id}, which is older than its time-out", {"id": each.id}
                )
                after = world._replace(broker=world.broker.time_out(each.id)).spend("time_outs")
                yield ModelMove(event, after, is_fault=True)
    if faults.copies or faults.stages:
        yield from _more_attempts(setting, world)
    if faults.deaths:
        for each_task in world.tasks:
            event = ModelEvent(each_task, "dies", "the process dies", {})
            yield ModelMove(event, raised(setting, world.spend("deaths"), each_task, "task failed"), is_fault=True)
    if faults.runs and case.zombies and latest.step not in ENDED and world.log < case.versions[-1]:
        event = ModelEvent(
            "Spark", "new run", "starts run {run}, while run {old} is still alive", {"run": world.runs, "old": latest.run}
        )
        yield ModelMove(event, start(setting, world.spend("runs")), is_fault=True)
    if faults.hangs and latest.step not in (*ENDED, TASKS_RUN):
        event = ModelEvent(
            "Spark", "write again", "foreachBatch writes again, while commit() of run {run} still works", {"run": latest.run}
        )
        again = (latest.run, latest.write + 1, latest.version, latest.split, latest.frame)
        yield ModelMove(event, begin_write(setting, world.spend("hangs"), *again), is_fault=True)


def _may_time_out(setting: Setting, world: ModelWorld) -> bool:
    decision = world.broker.decision
    match setting.case.when:
        case "while tasks run":
            return world.latest.step in (TASKS_RUN, COMMIT)
        case "before the decision":
            return decision is None or decision.state != DECIDED
        case "after the decision":
            return decision is not None and decision.state == DECIDED
        case "before the first restart":
            return not world.tasks and decision is not None and decision.state == DECIDED
    return True


def _more_attempts(setting: Setting, world: ModelWorld) -> Iterator[ModelMove]:
    for driver in world.drivers:
        if driver.step != TASKS_RUN:
            continue
        missing = [partition for partition, message in enumerate(driver.messages) if message is None]
        if world.faults.copies:
            for partition in missing:
                if driver.attempts[partition] < setting.case.attempts:
                    event = ModelEvent("Spark", "copy", "starts a copy of {task}", {"task": f"{driver}, partition {partition}"})
                    after = attempt_again(setting, world.spend("copies"), driver, partition)
                    yield ModelMove(event, after, is_fault=True)
        if world.faults.stages:
            after = world.spend("stages").with_driver(driver, stage=driver.stage + 1, attempts=(0,) * len(driver.messages))
            for partition in missing:
                again = next(each for each in after.drivers if (each.run, each.write) == (driver.run, driver.write))
                after = attempt_again(setting, after, again, partition)
            event = ModelEvent(
                "Spark", "stage again", "submits the stage of {driver} again: rows of its input are gone", {"driver": str(driver)}
            )
            yield ModelMove(event, after, is_fault=True)
