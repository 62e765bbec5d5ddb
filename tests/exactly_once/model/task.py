"""A task attempt: steps 0 to 5. Each function is one step, and yields what may happen when the task takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exactly_once.model import spark
from tests.exactly_once.model.broker import (
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    DECIDED,
    EMPTY,
    INCOMPLETE,
    PREPARE_ABORT,
    TAKER,
    TASK,
    Broker,
    Earlier,
    ModelMarker,
    TakenBy,
    TransactionalId,
    encoded,
)
from tests.exactly_once.model.world import (
    DESCRIBE_IDS,
    LOOK,
    OTHER_ROWS,
    READ_DECISION,
    TAKE_ID,
    Message,
    ModelEvent,
    ModelMove,
    ModelTask,
    ModelWorld,
    Plan,
    Setting,
    answered,
    decided_ids,
    fate_of,
    happened,
)

READ_MARKER = "2 read marker"
LOOK_AT_MARKER = "4 look at marker"
DESCRIBE_FIRST = "0 describe"
COMPARE_FIRST = "0 read marker"
DESCRIBE = "3 describe"
COMPARE = "3 read marker"
CONFIRM_ID = "1 confirm id"
WRITE_ROWS = "5 write rows"
WRITE_MARKER = "5 write marker"
WRITE_ROWS_LAST = "5 write rows behind the marker"


SLOTS = range(1, 7)


def own_id(plan: Plan, task: ModelTask, slot: int = 1) -> TransactionalId:
    return task.id or TransactionalId(
        task.partition,
        task.stage if plan.id_has_stage_attempt else 0,
        task.attempt if plan.id_has_attempt else 0,
        slot,
    )


def step_0_describe_ids(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: which of the ids that this attempt may take are settled? Unknown ones, those that have committed, and Empty ones
    that a task has taken. What an aborted transaction has written may hang.
    """
    plan, candidates = setting.plan, []
    for slot in SLOTS[task.first_slot - 1 :]:
        id_ = own_id(plan, task._replace(id=None), slot)
        transaction = world.broker.transaction(id_)
        is_settled = (
            transaction is None
            or transaction.state == COMPLETE_COMMIT
            or (transaction.state == EMPTY and transaction.taken_by == TASK)
        )
        if is_settled or not plan.takes_only_settled_ids:
            candidates.append((id_, -1 if transaction is None else transaction.epoch))
        if transaction is None:
            break
    event = happened(task, "describes its ids: {ids} are settled", ids=[id_ for id_, _ in candidates])
    after = LOOK if plan.looks_before_it_takes_its_id else _after_0(plan)
    yield ModelMove(event, _go(world, task, step=after, id=None, candidates=tuple(candidates)))


def step_0_look(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: the same as step 2. If there is nothing to write, then no id is touched. What a decision lists that is not carried
    out is no id for this attempt.
    """
    decided = decided_ids(world.broker.decision) if setting.plan.leaves_decided_ids else set()
    candidates = tuple(each for each in task.candidates if each[0] not in decided)
    marker, plan = world.broker.markers[task.partition], setting.plan
    if marker is not None and plan.skips_before_it_takes_its_id and not _is_stopped(task, world):
        decision = world.broker.decision
        if marker.version >= task.version and not (
            decision is not None and decision.version >= task.version and decision.state != INCOMPLETE
        ):
            yield from _skip(setting, world, task, marker)
            return
    now, looking = _go(world, task, candidates=candidates), task._replace(candidates=candidates)
    for move in _read_decision(setting, now, looking, DESCRIBE_FIRST, _after_0(setting.plan)):
        yield move._replace(event=move.event._replace(process=task))


def step_0_describe(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: as in step 3."""
    yield from _describe(setting, world, task, COMPARE_FIRST)


def step_0_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: as in step 3."""
    yield from _compare(setting, world, task, _after_0(setting.plan))


def step_1_take_own_id(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 1: InitProducerId on the first settled id, with a time-out of its own, until it is not answered 51. Whoever lists sees
    the id from here on. An epoch that does not follow the one that was described: somebody has had the id meanwhile, and what
    they have written may hang. So it is left as it is, which is not settled, for a later slot.
    """
    plan = setting.plan
    if not task.rows and not plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once", task.schema)
        return
    if not task.candidates:
        yield ModelMove(happened(task, "finds no settled id: fails"), _fail(setting, world, task))
        return
    own, epoch_before = task.candidates[0]
    is_new = epoch_before == -1 and plan.compares_epoch_of_id
    taken_by: TakenBy = TAKER if plan.confirms_id and not is_new else TASK
    broker, epoch = world.broker.init_producer_id(own, taken_by=taken_by, expected=-1 if is_new else None)
    if epoch is not None:
        change: dict[str, Any] = {"step": _first_of_2(plan) if plan.takes_own_id_first else LOOK_AT_MARKER, "id": own}
        if plan.compares_epoch_of_id and epoch != epoch_before + 1:
            change = {"step": DESCRIBE_IDS, "first_slot": own.slot + 1}
        event = happened(task, "InitProducerId on its own id {id}: epoch {epoch}", id=own, epoch=epoch)
        change |= {"epoch": epoch, "candidates": (), "is_confirmed": taken_by == TASK}
        yield from answered(world, broker, _go(world._replace(broker=broker), task, **change), event)
    elif broker is not world.broker:
        event = happened(task, "InitProducerId on its own id {id}: 51, and aborts what was open", id=own)
        yield ModelMove(event, world._replace(broker=broker))


def step_1_confirm_id(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 1: InitProducerId again, with the task's time-out, if the id still has the epoch. It is sent beside step 2."""
    yield from _confirm(setting, world, task, {"step": LOOK_AT_MARKER})


def _confirm(setting: Setting, world: ModelWorld, task: ModelTask, change: dict[str, Any]) -> Iterator[ModelMove]:
    assert task.id is not None
    broker, epoch = world.broker.init_producer_id(task.id, expected=task.epoch)
    if epoch is None:
        return
    event = ModelEvent(task, CONFIRM_ID, "InitProducerId on {id} again: epoch {epoch}", {"id": task.id, "epoch": epoch})
    if epoch < 0:
        yield ModelMove(event, _fail(setting, world, task))
        return
    after = _go(world._replace(broker=broker), task, epoch=epoch, is_confirmed=True, **change)
    yield from answered(world, broker, after, event)


def step_2_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 2: read the partition's marker, for step 4. This request and the next one are sent together."""
    if task.id is not None and not task.is_confirmed:
        yield from _confirm(setting, world, task, {})
    plan = setting.plan
    if not plan.reads_marker_at_once and world.broker.has_pending_marker(task.partition):
        return
    marker = world.broker.markers[task.partition]
    event = happened(task, "reads the marker: {marker}", marker=None if marker is None else tuple(marker))
    yield ModelMove(event, _go(world, task, step=READ_DECISION if plan.reads_marker_first else LOOK_AT_MARKER, marker=marker))


def step_2_read_decision(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 2: read the owner's decision and the record of an aborted write. A version that is incomplete is not decided."""
    yield from _read_decision(setting, world, task, DESCRIBE, _after_2(setting.plan))


def step_3_describe(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 3: is the transaction that is decided for this partition still there? Then there is nothing to write."""
    yield from _describe(setting, world, task, COMPARE)


def step_3_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 3: the decided transaction is gone. Are its rows in Kafka? If not, they are written again, as if incomplete."""
    yield from _compare(setting, world, task, LOOK_AT_MARKER if setting.plan.takes_own_id_first else TAKE_ID)


def step_4_look_at_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 4: are the rows in Kafka already, and are they the same rows, encoded as those? This is no request."""
    marker = task.marker
    if task.id is not None and not task.is_confirmed:
        yield from _confirm(setting, world, task, {})
    elif marker is not None and marker.version >= task.version and setting.plan.skips_by_marker:
        yield from _skip(setting, world, task, marker)
    elif not task.rows:
        yield from _return(setting, world, task, "EMPTY", "has no rows", task.schema)
    else:
        yield ModelMove(happened(task, "there is no marker of this version"), _go(world, task, step=WRITE_ROWS, marker=None))


def _skip(setting: Setting, world: ModelWorld, task: ModelTask, marker: ModelMarker) -> Iterator[ModelMove]:
    schema = _recorded(setting, task, marker) if marker.version == task.version else task.schema
    if marker.version == task.version and marker.content != encoded(task.rows, schema):
        event = happened(task, "the marker says {rows}: [KAFKA_NON_DETERMINISTIC_REPLAY]", rows=marker.content)
        yield ModelMove(event, spark.raised(setting, world, task, OTHER_ROWS))
    else:
        yield from _return(setting, world, task, "SKIPPED", "the marker says that its rows are in Kafka", schema)


def _is_stopped(task: ModelTask, world: ModelWorld) -> bool:
    return task.planned < world.broker.aborted


def step_5_write_rows(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 5: write all rows in the transaction, encoded as the version's first run has done it. The marker is sent beside them:
    in any order.
    """
    yield from _write_rows(setting, world, task, WRITE_MARKER)
    if setting.plan.marker_beside_rows and setting.plan.marker_is_in_transaction:
        yield from _write_marker(setting, world, task, WRITE_ROWS_LAST if setting.plan.waits_for_rows else None)


def step_5_write_rows_last(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 5: write all rows, where the marker was written before; leave the transaction open, and return its id and epoch."""
    yield from _write_rows(setting, world, task, None)


def step_5_write_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 5: add the marker to the transaction, leave it open, and return its id and epoch."""
    yield from _write_marker(setting, world, task, None)


def _write_rows(setting: Setting, world: ModelWorld, task: ModelTask, after: str | None) -> Iterator[ModelMove]:
    broker, error = world.broker.write(own_id(setting.plan, task), task.epoch, rows=task.rows)
    yield from _written(setting, world, task, broker, error, after, "Produce", " {rows}", rows=task.rows)


def _write_marker(setting: Setting, world: ModelWorld, task: ModelTask, after: str | None) -> Iterator[ModelMove]:
    marker = ModelMarker(task.version, task.content, task.schema if setting.plan.marker_has_schema else None)
    if setting.plan.marker_is_in_transaction:
        broker, error = world.broker.write(own_id(setting.plan, task), task.epoch, marker=marker)
    else:
        broker, error = world.broker.commit_marker(task.partition, marker), 0
    yield from _written(setting, world, task, broker, error, after, "TxnOffsetCommit", " of the marker")


def _written(
    setting: Setting,
    world: ModelWorld,
    task: ModelTask,
    broker: Broker,
    error: int,
    after: str | None,
    request: str,
    what: str,
    **arguments: Any,
) -> Iterator[ModelMove]:
    """`after`: the next step; None: the transaction stays open, and the task returns."""
    if error == CONCURRENT_TRANSACTIONS:
        return
    now = world._replace(broker=broker)
    if error:
        yield ModelMove(happened(task, request + ": error {error}", error=error), _fail(setting, world, task))
    elif after is not None:
        yield from answered(world, broker, _go(now, task, step=after), happened(task, request + what, **arguments))
    else:
        message = Message("OPEN", own_id(setting.plan, task), task.epoch, task.content, task.schema)
        event = happened(
            task, request + what + "; returns id {id} and epoch {epoch}", **arguments, id=message.id, epoch=task.epoch
        )
        yield from answered(world, broker, spark.returned(now, task, message), event)


STEPS = {
    DESCRIBE_IDS: step_0_describe_ids,
    LOOK: step_0_look,
    DESCRIBE_FIRST: step_0_describe,
    COMPARE_FIRST: step_0_read_marker,
    TAKE_ID: step_1_take_own_id,
    CONFIRM_ID: step_1_confirm_id,
    READ_MARKER: step_2_read_marker,
    READ_DECISION: step_2_read_decision,
    DESCRIBE: step_3_describe,
    COMPARE: step_3_read_marker,
    LOOK_AT_MARKER: step_4_look_at_marker,
    WRITE_ROWS: step_5_write_rows,
    WRITE_MARKER: step_5_write_marker,
    WRITE_ROWS_LAST: step_5_write_rows_last,
}


def _read_decision(setting: Setting, world: ModelWorld, task: ModelTask, look: str, after: str) -> Iterator[ModelMove]:
    """`look`: where to go on when this version is decided; `after`: when it is not."""
    plan, decision = setting.plan, world.broker.decision
    schema = _recorded(setting, task, None if decision is None else decision.of(task.version))
    if not task.rows and not plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once", task.schema)
    elif task.planned < world.broker.aborted:
        yield ModelMove(happened(task, "reads that its write was aborted: stops"), _fail(setting, world, task))
    elif decision is None:
        yield ModelMove(happened(task, "reads no decision"), _go(world, task, step=after, schema=schema))
    elif decision.version == task.version and decision.state == DECIDED and plan.looks_at_decided:
        yield from _read_entries(setting, world, task, look, schema)
    elif decision.version > task.version or (
        decision.version == task.version and (decision.state != INCOMPLETE or not plan.incomplete_is_not_decided)
    ):
        yield from _return(setting, world, task, "DECIDED", "reads that the version is {state}", schema, state=decision.state)
    else:
        event = happened(task, "reads that version {version} is {state}", version=decision.version, state=decision.state)
        yield ModelMove(event, _go(world, task, step=after, schema=schema))


def _recorded(setting: Setting, task: ModelTask, record: ModelMarker | Earlier | None) -> int:
    """The schema with which the version's rows were encoded; the own one if nothing is known of it."""
    own = setting.case.schema(task.run, task.write)
    if record is None or record.schema is None or not setting.plan.encodes_as_recorded:
        return own
    return record.schema


def _read_entries(setting: Setting, world: ModelWorld, task: ModelTask, step: str, schema: int) -> Iterator[ModelMove]:
    """`step`: with what is decided for this partition. If that is nothing, returns DECIDED."""
    decision = world.broker.decision
    assert decision is not None
    entries = world.broker.entries_of(decision)
    if entries is None and not setting.plan.unreadable_is_incomplete:
        yield ModelMove(happened(task, "cannot read the decision"), _fail(setting, world, task))
        return
    mine = tuple(entry for entry in entries or () if entry.partition == task.partition)
    event = happened(task, "reads that version {version} is decided", version=decision.version)
    if entries is None:  # it cannot be carried out: as if incomplete
        after = _after_0(setting.plan) if task.step == LOOK else _after_2(setting.plan)
        yield ModelMove(event, _go(world, task, step=after, schema=schema))
    elif not mine:
        yield from _return(setting, world, task, "DECIDED", "reads that the version is decided, without its partition", schema)
    else:
        yield ModelMove(event, _go(world, task, step=step, decided=mine, schema=schema))


def _describe(setting: Setting, world: ModelWorld, task: ModelTask, compare: str) -> Iterator[ModelMove]:
    entry = task.decided[0]
    transaction = world.broker.transaction(entry.id)
    fate = fate_of(setting, transaction, entry)
    if fate == "aborted" and transaction is not None and transaction.state == PREPARE_ABORT:
        return  # until it has ended: so far its marker is pending
    if fate in ("open", "cut off") or (fate == "committed" and setting.plan.state_tells_commit):
        yield from _return(setting, world, task, "DECIDED", "the decided transaction {id} is open", task.schema, id=entry.id)
    else:
        yield ModelMove(happened(task, "the decided transaction {id} is not open", id=entry.id), _go(world, task, step=compare))


def _compare(setting: Setting, world: ModelWorld, task: ModelTask, after: str) -> Iterator[ModelMove]:
    entry, marker, plan = task.decided[0], world.broker.markers[task.partition], setting.plan
    is_there = marker is not None and (
        marker.version > task.version
        or (marker.version == task.version and (marker.content == entry.content or not plan.compares_content_of_decided))
    )
    if not is_there and world.broker.has_pending_marker(task.partition) and plan.awaits_pending_markers:
        yield from _return(setting, world, task, "DECIDED", "a marker may still become visible", task.schema)
    elif is_there:
        yield from _return(setting, world, task, "DECIDED", "the marker says that the decided rows are in Kafka", task.schema)
    else:
        event = happened(task, "the marker says that the decided rows are lost")
        yield ModelMove(event, _go(world, task, step=after, decided=(), marker=marker))


def _after_0(plan: Plan) -> str:
    return TAKE_ID if plan.takes_own_id_first else _first_of_2(plan)


def _first_of_2(plan: Plan) -> str:
    return READ_MARKER if plan.reads_marker_first else READ_DECISION


def _after_2(plan: Plan) -> str:
    if not plan.takes_own_id_first:
        return TAKE_ID
    return LOOK_AT_MARKER if plan.reads_marker_first else READ_MARKER


def _go(world: ModelWorld, task: ModelTask, **change: Any) -> ModelWorld:
    return world.with_task(task, task._replace(**change))


def _fail(setting: Setting, world: ModelWorld, task: ModelTask) -> ModelWorld:
    return spark.raised(setting, world, task, "task failed")


def _return(
    setting: Setting, world: ModelWorld, task: ModelTask, result: Any, sentence: str, schema: int, **arguments: Any
) -> Iterator[ModelMove]:
    message = Message(result, own_id(setting.plan, task), task.epoch, encoded(task.rows, schema), schema)
    event = happened(task, sentence + ": returns {result}", result=result, **arguments)
    yield ModelMove(event, spark.returned(world, task, message))
