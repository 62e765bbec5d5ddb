"""A task attempt: steps 1 to 5. Each function is one step, and yields what may happen when the task takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exactly_once.model import spark
from tests.exactly_once.model.broker import CARRIED_OUT, CONCURRENT_TRANSACTIONS, DECIDED, TAKEN_OUT, Marker, TransactionalId
from tests.exactly_once.model.world import (
    LOOK,
    OTHER_ROWS,
    READ_DECISION,
    TAKE_ID,
    Message,
    Move,
    Plan,
    Setting,
    Task,
    World,
    answered,
    happened,
    listed,
)

LIST = "3 list"
FENCE = "3 fence"
READ_MARKER = "4 read marker"
COMMIT_EARLIER_FIRST = "0 commit earlier"
COMMIT_EARLIER = "2 commit earlier"
WRITE_ROWS = "5 write rows"
WRITE_MARKER = "5 write marker"


def own_id(plan: Plan, task: Task) -> TransactionalId:
    return TransactionalId(
        task.partition,
        task.run if plan.id_has_run else 0,
        task.stage if plan.id_has_stage_attempt else 0,
        task.attempt if plan.id_has_attempt else 0,
    )


def abort_key(setting: Setting, run: int, write: int) -> tuple[int, ...]:
    """Of the record that a write was aborted: no batch of a stream follows an aborted one in the same run."""
    is_of_write = setting.case.kind == "foreachBatch" and setting.plan.abort_record_is_of_write
    return (run, write) if is_of_write else (run,)


def step_0_look(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 0, in a foreachBatch only: the same as step 2. If there is nothing to write, then the own id is not touched: the write
    before has used it, and its transaction may be decided.
    """
    after = TAKE_ID if setting.plan.takes_own_id_first else READ_DECISION
    yield from _read_decision(setting, world, task, COMMIT_EARLIER_FIRST, after)


def step_0_commit_earlier(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 0, in a foreachBatch only: as in step 2, before the own id is taken, which may be the decided one."""
    yield from _commit_earlier(setting, world, task, TAKE_ID if setting.plan.takes_own_id_first else READ_DECISION)


def step_1_take_own_id(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 1: InitProducerId on the own id, until it is not answered 51. Whoever lists sees the id from here on."""
    if not task.rows and not setting.plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once")
        return
    own = own_id(setting.plan, task)
    broker, epoch = world.broker.init_producer_id(own)
    if epoch is not None:
        after = READ_DECISION if setting.plan.takes_own_id_first else READ_MARKER
        event = happened(task, "InitProducerId on its own id {id}: epoch {epoch}", id=own, epoch=epoch)
        yield from answered(world, broker, _go(world._replace(broker=broker), task, step=after, epoch=epoch), event)
    elif broker is not world.broker:
        event = happened(task, "InitProducerId on its own id {id}: 51, and aborts what was open", id=own)
        yield Move(event, world._replace(broker=broker))


def step_2_read_decision(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 2: read the owner's decision and the record of an aborted write. A version that was taken out is not decided. If this
    run has carried out the version before, it has fenced what earlier runs had left: step 3 is not needed.
    """
    decision = world.broker.decision
    has_fenced = decision is not None and decision.state == CARRIED_OUT and decision.run == task.run
    after = _after_3(setting.plan) if has_fenced and setting.plan.lists_in_first_version_only else LIST
    yield from _read_decision(setting, world, task, COMMIT_EARLIER, after)


def step_2_commit_earlier(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 2: EndTxn(commit) of what an earlier version, which nobody has repeated, decided for this partition."""
    yield from _commit_earlier(setting, world, task, LIST)


def step_3_list(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 3: list the partition's ids that earlier runs have left unfinished. A copy in the own run is spared."""
    plan, own = setting.plan, own_id(setting.plan, task)
    found = listed(setting, world.broker, task, (own,)) if plan.fences_earlier_runs else ()
    found = tuple(
        each for each in found if each.partition == own.partition and (each.run != own.run or not plan.spares_its_own_run)
    )
    event = happened(task, "lists what earlier runs left: {ids}", ids=found)
    if task.asked + 1 < setting.case.coordinators:
        yield Move(event, _go(world, task, asked=task.asked + 1, to_fence=found))
    else:
        yield Move(event, _go(world, task, step=FENCE if found else _after_3(plan), asked=0, to_fence=found))


def step_3_fence(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 3: InitProducerId on each listed id, until it is not answered 51."""
    id_, rest = task.to_fence[0], task.to_fence[1:]
    broker, epoch = world.broker.init_producer_id(id_, fences=True)
    if epoch is not None:
        after = _go(world._replace(broker=broker), task, step=FENCE if rest else _after_3(setting.plan), to_fence=rest)
        yield from answered(world, broker, after, happened(task, "fences {id}", id=id_))
    elif broker is not world.broker:
        yield Move(happened(task, "fences {id}: 51, and aborts what was open", id=id_), world._replace(broker=broker))


def step_4_read_marker(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 4: read the partition's marker. Are its rows in Kafka already, and are they the same rows?"""
    plan = setting.plan
    if not plan.reads_marker_at_once and world.broker.has_pending_marker(task.partition):
        return
    marker = world.broker.markers[task.partition]
    if marker is not None and marker.version >= task.version and plan.skips_by_marker:
        if marker.version == task.version and marker.content != task.rows:
            event = happened(task, "the marker says {rows}: [KAFKA_NON_DETERMINISTIC_REPLAY]", rows=marker.content)
            yield Move(event, spark.raised(setting, world, task, OTHER_ROWS))
        else:
            yield from _return(setting, world, task, "SKIPPED", "the marker says that its rows are in Kafka")
    elif not task.rows:
        yield from _return(setting, world, task, "EMPTY", "has no rows")
    else:
        yield Move(happened(task, "there is no marker of this version"), _go(world, task, step=WRITE_ROWS))


def step_5_write_rows(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 5: write all rows in the transaction."""
    broker, error = world.broker.write(own_id(setting.plan, task), task.epoch, rows=task.rows)
    if error == CONCURRENT_TRANSACTIONS:
        return
    if error:
        yield Move(happened(task, "Produce: error {error}", error=error), _fail(setting, world, task))
        return
    event = happened(task, "Produce {rows}", rows=task.rows)
    yield from answered(world, broker, _go(world._replace(broker=broker), task, step=WRITE_MARKER), event)


def step_5_write_marker(setting: Setting, world: World, task: Task) -> Iterator[Move]:
    """Step 5: add the marker to the transaction, leave it open, and return its id and epoch."""
    marker = Marker(task.version, task.rows)
    if setting.plan.marker_is_in_transaction:
        broker, error = world.broker.write(own_id(setting.plan, task), task.epoch, marker=marker)
    else:
        broker, error = world.broker.commit_marker(task.partition, marker), 0
    if error == CONCURRENT_TRANSACTIONS:
        return
    if error:
        yield Move(happened(task, "TxnOffsetCommit: error {error}", error=error), _fail(setting, world, task))
        return
    message = Message("OPEN", own_id(setting.plan, task), task.epoch, task.rows)
    event = happened(task, "TxnOffsetCommit of the marker; returns id {id} and epoch {epoch}", id=message.id, epoch=task.epoch)
    yield from answered(world, broker, spark.returned(world._replace(broker=broker), task, message), event)


STEPS = {
    LOOK: step_0_look,
    COMMIT_EARLIER_FIRST: step_0_commit_earlier,
    TAKE_ID: step_1_take_own_id,
    READ_DECISION: step_2_read_decision,
    COMMIT_EARLIER: step_2_commit_earlier,
    LIST: step_3_list,
    FENCE: step_3_fence,
    READ_MARKER: step_4_read_marker,
    WRITE_ROWS: step_5_write_rows,
    WRITE_MARKER: step_5_write_marker,
}


def _read_decision(setting: Setting, world: World, task: Task, earlier: str, after: str) -> Iterator[Move]:
    plan, decision = setting.plan, world.broker.decision
    if not task.rows and not plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once")
    elif abort_key(setting, task.run, task.write) in world.broker.aborted:
        yield Move(happened(task, "reads that its write was aborted: stops"), _fail(setting, world, task))
    elif decision is None:
        yield Move(happened(task, "reads no decision"), _go(world, task, step=after))
    elif decision.version > task.version or (
        decision.version == task.version and (decision.state != TAKEN_OUT or not plan.taken_out_is_not_decided)
    ):
        yield from _return(setting, world, task, "DECIDED", "reads that the version is {state}", state=decision.state)
    elif decision.state == DECIDED and plan.settles_earlier_version:
        yield from _read_entries(setting, world, task, earlier, after)
    else:
        event = happened(task, "reads that version {version} is {state}", version=decision.version, state=decision.state)
        yield Move(event, _go(world, task, step=after))


def _read_entries(setting: Setting, world: World, task: Task, earlier: str, after: str) -> Iterator[Move]:
    decision = world.broker.decision
    assert decision is not None
    entries = world.broker.entries_of(decision)
    if entries is None and not setting.plan.unreadable_is_taken_out:
        yield Move(happened(task, "cannot read the decision of an earlier version"), _fail(setting, world, task))
        return
    mine = tuple(entry for entry in entries or () if entry.partition == task.partition)
    event = happened(task, "reads that version {version} is decided", version=decision.version)
    yield Move(event, _go(world, task, step=earlier if mine else after, to_end=mine))


def _commit_earlier(setting: Setting, world: World, task: Task, after: str) -> Iterator[Move]:
    entry = task.to_end[0]
    version = setting.case.transaction_version
    broker, error = world.broker.end(entry.id, entry.epoch, commit=True, transaction_version=version)
    if error != CONCURRENT_TRANSACTIONS:
        event = happened(task, "EndTxn(commit) of {id} at epoch {epoch}: {error}", id=entry.id, epoch=entry.epoch, error=error)
        then = _go(world._replace(broker=broker), task, step=after, to_end=())
        yield from answered(world, broker, then, event)


def _after_3(plan: Plan) -> str:
    return READ_MARKER if plan.takes_own_id_first else TAKE_ID


def _go(world: World, task: Task, **change: Any) -> World:
    return world.with_task(task, task._replace(**change))


def _fail(setting: Setting, world: World, task: Task) -> World:
    return spark.raised(setting, world, task, "task failed")


def _return(setting: Setting, world: World, task: Task, result: Any, sentence: str, **arguments: Any) -> Iterator[Move]:
    message = Message(result, own_id(setting.plan, task), task.epoch, task.rows)
    event = happened(task, sentence + ": returns {result}", result=result, **arguments)
    yield Move(event, spark.returned(world, task, message))
