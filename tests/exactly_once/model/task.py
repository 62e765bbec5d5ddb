"""A task attempt: steps 0 to 5. Each function is one step, and yields what may happen when the task takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exactly_once.model import spark
from tests.exactly_once.model.broker import (
    CONCURRENT_TRANSACTIONS,
    DECIDED,
    INCOMPLETE,
    ONGOING,
    PREPARE_COMMIT,
    Broker,
    Earlier,
    ModelMarker,
    TransactionalId,
    encoded,
)
from tests.exactly_once.model.world import (
    LOOK,
    OTHER_ROWS,
    READ_DECISION,
    TAKE_ID,
    Message,
    ModelMove,
    ModelTask,
    ModelWorld,
    Plan,
    Setting,
    answered,
    happened,
)

READ_MARKER = "2 read marker"
LOOK_AT_MARKER = "4 look at marker"
COMMIT_EARLIER_FIRST = "0 commit earlier"
DESCRIBE_FIRST = "0 describe"
COMPARE_FIRST = "0 read marker"
COMMIT_EARLIER = "2 commit earlier"
DESCRIBE = "3 describe"
COMPARE = "3 read marker"
WRITE_ROWS = "5 write rows"
WRITE_MARKER = "5 write marker"
WRITE_ROWS_LAST = "5 write rows behind the marker"


def own_id(plan: Plan, task: ModelTask) -> TransactionalId:
    return TransactionalId(
        task.partition,
        task.stage if plan.id_has_stage_attempt else 0,
        task.attempt if plan.id_has_attempt else 0,
    )


def step_0_look(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: the same as step 2. If there is nothing to write, then the own id is not touched: an earlier attempt has used it,
    and its transaction may be decided.
    """
    yield from _read_decision(setting, world, task, COMMIT_EARLIER_FIRST, DESCRIBE_FIRST, _after_0(setting.plan))


def step_0_commit_earlier(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: as in step 2, before the own id is taken, which may be the decided one."""
    yield from _commit_earlier(setting, world, task, _after_0(setting.plan))


def step_0_describe(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: as in step 3."""
    yield from _describe(setting, world, task, COMPARE_FIRST)


def step_0_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 0: as in step 3."""
    yield from _compare(setting, world, task, _after_0(setting.plan))


def step_1_take_own_id(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 1: InitProducerId on the own id, until it is not answered 51. Whoever lists sees the id from here on."""
    if not task.rows and not setting.plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once", task.schema)
        return
    own = own_id(setting.plan, task)
    broker, epoch = world.broker.init_producer_id(own)
    if epoch is not None:
        after = _first_of_2(setting.plan) if setting.plan.takes_own_id_first else LOOK_AT_MARKER
        event = happened(task, "InitProducerId on its own id {id}: epoch {epoch}", id=own, epoch=epoch)
        yield from answered(world, broker, _go(world._replace(broker=broker), task, step=after, epoch=epoch), event)
    elif broker is not world.broker:
        event = happened(task, "InitProducerId on its own id {id}: 51, and aborts what was open", id=own)
        yield ModelMove(event, world._replace(broker=broker))


def step_2_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 2: read the partition's marker, for step 4. This request and the next one are sent together."""
    plan = setting.plan
    if not plan.reads_marker_at_once and world.broker.has_pending_marker(task.partition):
        return
    marker = world.broker.markers[task.partition]
    event = happened(task, "reads the marker: {marker}", marker=None if marker is None else tuple(marker))
    yield ModelMove(event, _go(world, task, step=READ_DECISION if plan.reads_marker_first else LOOK_AT_MARKER, marker=marker))


def step_2_read_decision(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 2: read the owner's decision and the record of an aborted write. A version that is incomplete is not decided."""
    yield from _read_decision(setting, world, task, COMMIT_EARLIER, DESCRIBE, _after_2(setting.plan))


def step_2_commit_earlier(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 2: EndTxn(commit) of what an earlier version, which nobody has repeated, decided for this partition."""
    yield from _commit_earlier(setting, world, task, _after_2(setting.plan))


def step_3_describe(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 3: is the transaction that is decided for this partition still there? Then there is nothing to write."""
    yield from _describe(setting, world, task, COMPARE)


def step_3_read_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 3: the decided transaction is gone. Are its rows in Kafka? If not, they are written again, as if incomplete."""
    yield from _compare(setting, world, task, LOOK_AT_MARKER if setting.plan.takes_own_id_first else TAKE_ID)


def step_4_look_at_marker(setting: Setting, world: ModelWorld, task: ModelTask) -> Iterator[ModelMove]:
    """Step 4: are the rows in Kafka already, and are they the same rows, encoded as those? This is no request."""
    marker = task.marker
    if marker is not None and marker.version >= task.version and setting.plan.skips_by_marker:
        schema = _recorded(setting, task, marker) if marker.version == task.version else task.schema
        if marker.version == task.version and marker.content != encoded(task.rows, schema):
            event = happened(task, "the marker says {rows}: [KAFKA_NON_DETERMINISTIC_REPLAY]", rows=marker.content)
            yield ModelMove(event, spark.raised(setting, world, task, OTHER_ROWS))
        else:
            yield from _return(setting, world, task, "SKIPPED", "the marker says that its rows are in Kafka", schema)
    elif not task.rows:
        yield from _return(setting, world, task, "EMPTY", "has no rows", task.schema)
    else:
        yield ModelMove(happened(task, "there is no marker of this version"), _go(world, task, step=WRITE_ROWS, marker=None))


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
    LOOK: step_0_look,
    COMMIT_EARLIER_FIRST: step_0_commit_earlier,
    DESCRIBE_FIRST: step_0_describe,
    COMPARE_FIRST: step_0_read_marker,
    TAKE_ID: step_1_take_own_id,
    READ_MARKER: step_2_read_marker,
    READ_DECISION: step_2_read_decision,
    COMMIT_EARLIER: step_2_commit_earlier,
    DESCRIBE: step_3_describe,
    COMPARE: step_3_read_marker,
    LOOK_AT_MARKER: step_4_look_at_marker,
    WRITE_ROWS: step_5_write_rows,
    WRITE_MARKER: step_5_write_marker,
    WRITE_ROWS_LAST: step_5_write_rows_last,
}


def _read_decision(
    setting: Setting, world: ModelWorld, task: ModelTask, earlier: str, look: str, after: str
) -> Iterator[ModelMove]:
    """`earlier`, `look`: where to go on when an earlier version, or this one, is decided; `after`: when none is."""
    plan, decision = setting.plan, world.broker.decision
    schema = _recorded(setting, task, None if decision is None else decision.of(task.version))
    if not task.rows and not plan.empty_tasks_do_all_steps:
        yield from _return(setting, world, task, "EMPTY", "is empty, and returns at once", task.schema)
    elif task.planned < world.broker.aborted:
        yield ModelMove(happened(task, "reads that its write was aborted: stops"), _fail(setting, world, task))
    elif decision is None:
        yield ModelMove(happened(task, "reads no decision"), _go(world, task, step=after, schema=schema))
    elif decision.version == task.version and decision.state == DECIDED and plan.looks_at_decided:
        yield from _read_entries(setting, world, task, look, None, schema)
    elif decision.version > task.version or (
        decision.version == task.version and (decision.state != INCOMPLETE or not plan.incomplete_is_not_decided)
    ):
        yield from _return(setting, world, task, "DECIDED", "reads that the version is {state}", schema, state=decision.state)
    elif decision.state == DECIDED and plan.settles_earlier_version:
        yield from _read_entries(setting, world, task, earlier, after, schema)
    else:
        event = happened(task, "reads that version {version} is {state}", version=decision.version, state=decision.state)
        yield ModelMove(event, _go(world, task, step=after, schema=schema))


def _recorded(setting: Setting, task: ModelTask, record: ModelMarker | Earlier | None) -> int:
    """The schema with which the version's rows were encoded; the own one if nothing is known of it."""
    own = setting.case.schema(task.run, task.write)
    if record is None or record.schema is None or not setting.plan.encodes_as_recorded:
        return own
    return record.schema


def _read_entries(
    setting: Setting, world: ModelWorld, task: ModelTask, step: str, after: str | None, schema: int
) -> Iterator[ModelMove]:
    """`step`: with what is decided for this partition; `after`: if that is nothing; None to return DECIDED then."""
    decision = world.broker.decision
    assert decision is not None
    entries = world.broker.entries_of(decision)
    if entries is None and not setting.plan.unreadable_is_incomplete:
        yield ModelMove(happened(task, "cannot read the decision"), _fail(setting, world, task))
        return
    mine = tuple(entry for entry in entries or () if entry.partition == task.partition)
    if after is None and entries is None:  # it cannot be carried out: as if incomplete
        after = _after_0(setting.plan) if task.step == LOOK else _after_2(setting.plan)
    event = happened(task, "reads that version {version} is decided", version=decision.version)
    if not mine and after is None:
        yield from _return(setting, world, task, "DECIDED", "reads that the version is decided, without its partition", schema)
    else:
        yield ModelMove(event, _go(world, task, step=step if mine else after, decided=mine, schema=schema))


def _commit_earlier(setting: Setting, world: ModelWorld, task: ModelTask, after: str) -> Iterator[ModelMove]:
    entry = task.decided[0]
    version = setting.case.transaction_version
    broker, error = world.broker.end(entry.id, entry.epoch, commit=True, transaction_version=version)
    if error != CONCURRENT_TRANSACTIONS:
        event = happened(task, "EndTxn(commit) of {id} at epoch {epoch}: {error}", id=entry.id, epoch=entry.epoch, error=error)
        then = _go(world._replace(broker=broker), task, step=after, decided=())
        yield from answered(world, broker, then, event)


def _describe(setting: Setting, world: ModelWorld, task: ModelTask, compare: str) -> Iterator[ModelMove]:
    entry = task.decided[0]
    transaction = world.broker.transaction(entry.id)
    is_open = transaction is not None and (
        transaction.state == PREPARE_COMMIT or (transaction.state, transaction.epoch) == (ONGOING, entry.epoch)
    )
    if is_open:
        yield from _return(setting, world, task, "DECIDED", "the decided transaction {id} is open", task.schema, id=entry.id)
    else:
        yield ModelMove(happened(task, "the decided transaction {id} is not open", id=entry.id), _go(world, task, step=compare))


def _compare(setting: Setting, world: ModelWorld, task: ModelTask, after: str) -> Iterator[ModelMove]:
    entry, marker, plan = task.decided[0], world.broker.markers[task.partition], setting.plan
    is_there = marker is not None and (
        marker.version > task.version
        or (marker.version == task.version and (marker.content == entry.content or not plan.compares_content_of_decided))
    )
    if is_there:
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
