"""The driver of one write: commit(), steps 6a to 6g, and abort(), step 7. Each function is one step, and yields what may happen
when the driver takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exactly_once.model import spark
from tests.exactly_once.model.broker import (
    CARRIED_OUT,
    COMPLETE_ABORT,
    CONCURRENT_TRANSACTIONS,
    DECIDED,
    EMPTY,
    FENCER,
    INCOMPLETE,
    MARKER_PLACE,
    ONGOING,
    PREPARED,
    TAKER,
    Decision,
    Entry,
    ModelMarker,
    TransactionalId,
)
from tests.exactly_once.model.world import (
    ABORT,
    COMMIT,
    CUT_OFF,
    ERROR,
    FAILED,
    FINAL_REASONS,
    MAX_REPEATS,
    OTHER_ROWS,
    UNKNOWN,
    UNREADABLE,
    Described,
    Driver,
    Message,
    ModelEvent,
    ModelMove,
    ModelWorld,
    Plan,
    Setting,
    answered,
    decided_ids,
    fate_of,
    happened,
    ids_to_fence,
)

READ_OVERFLOW = "6a read overflow"
LIST_OTHERS = "6b list"
PROTECT_OTHERS = "6b read decision"
FENCE_OTHERS = "6b fence"
READ_MARKERS = "6c read markers"
RECORD_SCHEMA = "6c record schema"
DESCRIBE = "6d describe"
WIDEN = "6e widen"
WRITE_OVERFLOW = "6e write overflow"
DECIDE = "6e decide"
END = "6f end"
JUDGE = "6f judge"
REPEAT_LOST = "6f repeat"
END_LOST = "6f end again"
SETTLE = "6g settle"
READ_AGAIN = "6g read decision"
REPEAT = "6g repeat"
END_AGAIN = "6g end again"
MARK = "6g mark carried out"
MARK_INCOMPLETE = "6g mark incomplete"
LIST_LOSERS = "6g list"
PROTECT_LOSERS = "6g protect"
FENCE_LOSERS = "6g fence"
SETTLE_LEFT = "6h settle"
REPEAT_ABORT = "6h repeat"
END_ABORT = "6h end again"
REST = "6h rest"
REPORT = "commit() returns"
LIST_UNDECIDED = "7 list"
PROTECT_UNDECIDED = "7 read decision"
FENCE_UNDECIDED = "7 fence"


def step_6a_read_decision(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6a: read the decision again. Carried out → nothing is left to do. Decided → carry that one out, whose run it ever was;
    one of an earlier version before the own. The list of 6b is asked for beside it, and is of use if there is no decision.
    """
    yield from _list_others_beside(setting, world, driver)
    plan, decision = setting.plan, world.broker.decision
    results = [message.result for message in driver.messages if message is not None]
    if not plan.reads_decision_again and "DECIDED" not in results:
        decision = None
    event = happened(driver, "commit() of {results}", results=results)
    keeps_schema = plan.earlier_keep_schema
    earlier = () if decision is None or decision.version >= driver.version else decision.after(keeps_schema=keeps_schema)
    driver_now = {"earlier": earlier if decision is None or decision.version != driver.version else decision.earlier}
    if decision is not None and (
        decision.version > driver.version or (decision.version == driver.version and decision.state == CARRIED_OUT)
    ):
        change = {"step": LIST_LOSERS, "found_decision": decision, **NOT_LISTED}
        yield ModelMove(_more(event, ": the version was carried out already"), world.with_driver(driver, **change))
    elif decision is not None and decision.state == DECIDED and decision.version == driver.version:
        yield ModelMove(_more(event, ": carries out what is decided"), _carry_out(world, driver, decision, **driver_now))
    elif decision is not None and decision.state == DECIDED and plan.carries_out_earlier:
        event = _more(event, ": first carries out the decision of version {version}", version=decision.version)
        yield ModelMove(event, _carry_out(world, driver, decision, **driver_now))
    else:
        if not plan.reads_markers_after_fencing:
            driver_now["markers"] = world.broker.markers
        change = _after_step_beside_list(setting, driver, LIST_OTHERS, PROTECT_OTHERS, READ_MARKERS) | driver_now
        yield ModelMove(_more(event, ": there is no decision"), world.with_driver(driver, **change))


def step_6a_read_overflow(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6a: read the entries of a decision that was too long for one offset, and compare their digest. A decision whose
    overflow groups were overwritten cannot be carried out by anybody: it counts as incomplete, and the next run goes by the
    markers.
    """
    decision = driver.found_decision
    assert decision is not None
    if world.broker.entries_of(decision) is not None:
        yield ModelMove(happened(driver, "reads the overflow groups: the digest fits"), world.with_driver(driver, step=END))
    elif setting.plan.unreadable_is_incomplete:
        event = happened(driver, "reads the overflow groups: the digest does not fit, it cannot be carried out")
        yield ModelMove(event, world.with_driver(driver, step=MARK_INCOMPLETE, to_end=(), reason="incomplete"))
    else:
        event = happened(driver, "reads the overflow groups: the digest does not fit, fails")
        yield ModelMove(event, _fail(world, driver, UNREADABLE))


def step_6b_list(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6b: list and describe the ids that are not at rest, Empty and aborted ones too, but for those in the messages."""
    yield _move_after_list(setting, world, driver, _others(setting, world, driver), PROTECT_OTHERS, READ_MARKERS)


def step_6b_read_decision(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6b: read the decision after the list: what it lists is not fenced, whoever has decided."""
    yield from _protect(setting, world, driver, FENCE_OTHERS, READ_MARKERS)


def step_6b_fence(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6b: EndTxn(abort) of each, at the epoch that was described: it fails if another driver has committed it. With
    transaction version 1, and for an Empty id: InitProducerId.
    """
    yield from _fence(setting, world, driver, READ_MARKERS)


def step_6c_read_markers(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6c: read the markers of all partitions that there ever were. A partition that has reached the version must have been
    SKIPPED, or DECIDED with the same rows. If it was neither and has the same rows, then another run was committed meanwhile, and
    this one is to be run again. What is said to be DECIDED must be there. Where a later version is there and no decision reaches
    this one, what was committed as this version is not known. Tasks that have read different decisions or markers may have
    encoded their rows with different schemas: then the write is to be run again, with the one that a marker has. The descriptions
    of 6d are asked for beside the markers.
    """
    yield from _describe_beside(setting, world, driver)
    plan, reached, missing, differs = setting.plan, [], [], False
    decision = world.broker.decision
    if plan.reads_decision_beside_markers and decision is not None and _is_decided_meanwhile(driver, decision):
        event = happened(driver, "another run has decided on version {version} meanwhile: fails", version=decision.version)
        yield ModelMove(event, _fail(world, driver, "decided meanwhile"))
        return
    if plan.checks_schemas and len(driver.schemas) > 1:
        yield _refuse_schemas(world, driver)
        return
    width = max(world.broker.width, len(driver.messages))
    for partition, marker in enumerate((driver.markers or world.broker.markers)[:width]):
        message = driver.messages[partition] if partition < len(driver.messages) else None
        if not plan.reads_markers or (message is None and not plan.reads_all_markers):
            continue
        if message is not None and message.result == "DECIDED" and plan.checks_decided_tasks:
            if marker is not None and marker.version == driver.version:
                differs |= marker.content != message.content
            elif message.content or (marker is not None and marker.version > driver.version):
                missing.append(partition)
        elif marker is not None and marker.version > driver.version and message is not None and message.result == "SKIPPED":
            reached.append(partition)  # what was committed as this version is not known
            differs |= plan.refuses_later_markers
        elif marker is not None and marker.version >= driver.version and (message is None or message.result != "SKIPPED"):
            reached.append(partition)
            differs |= _has_other_rows(plan, driver, message, marker)
    if differs:
        event = happened(
            driver, "partitions {partitions} have other rows in Kafka: [KAFKA_NON_DETERMINISTIC_REPLAY]", partitions=reached
        )
        yield ModelMove(event, _fail(world, driver, OTHER_ROWS))
    elif missing:
        event = happened(driver, "partitions {partitions} were decided, and are not in Kafka: fails", partitions=missing)
        yield ModelMove(event, _fail(world, driver, "no decision"))
    elif reached:
        event = happened(driver, "partitions {partitions} were committed meanwhile: fails", partitions=reached)
        yield ModelMove(event, _fail(world, driver, "committed meanwhile"))
    else:
        event = happened(driver, "no partition but those that say so has reached the version")
        change = {"step": DESCRIBE} if driver.is_untouched is None else _after_6d(setting, world, driver, driver.is_untouched)
        yield ModelMove(event, world.with_driver(driver, **change))


def step_6c_record_schema(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6c: only a part of the version is in Kafka, and no decision has its schema. Record it for the next run, as that of a
    version that is incomplete.
    """
    schemas = _schemas_in_kafka(world, driver) if setting.plan.records_schema_of_markers else set()
    if not schemas:
        yield ModelMove(happened(driver, "does not record the schema"), _fail(world, driver, "schemas"))
        return
    decision = Decision(driver.version, INCOMPLETE, driver.content, earlier=driver.earlier, schema=min(schemas))
    broker = world.broker.commit_decision(decision)
    event = happened(driver, "OffsetCommit: the version has schema {schema}", schema=decision.schema)
    yield from answered(world, broker, _fail(world._replace(broker=broker), driver, "schemas"), event)


def step_6d_describe(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6d: is each own transaction open, at its epoch? And does nobody else have the id of an empty task? Otherwise fail,
    before anything is visible.
    """
    is_untouched = _is_untouched(setting, world, driver)
    if not is_untouched:
        event = happened(driver, "a transaction is not open any more: fails")
    elif driver.entries:
        event = happened(driver, "all transactions are open")
    else:
        event = happened(driver, "nothing is to be committed")
    yield ModelMove(event, world.with_driver(driver, **_after_6d(setting, world, driver, is_untouched)))


def step_6e_widen(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6e: record how many partitions there are, before the decision. This record only grows, whoever writes it."""
    broker = world.broker.commit_width(len(driver.messages))
    after = world._replace(broker=broker).with_driver(driver, step=_after_width(setting))
    yield from answered(world, broker, after, happened(driver, "OffsetCommit of the number of partitions"))


def step_6e_write_overflow(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6e: write the entries of a long decision into groups that the decision before does not use."""
    broker = world.broker.commit_overflow(_slot(setting, driver), driver.entries)
    event = happened(driver, "OffsetCommit of the overflow groups, slot {slot}", slot=_slot(setting, driver))
    yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, step=DECIDE), event)


def step_6e_decide(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6e: record the decision, with one plain OffsetCommit."""
    found = world.broker.decision
    if not setting.case.overwrites and found is not None and _is_decided_meanwhile(driver, found):
        yield ModelMove(happened(driver, "another run has decided: fails"), _fail(world, driver, "decided meanwhile"))
        return
    slot = _slot(setting, driver) if setting.case.has_overflow else None
    schema = min(driver.schemas) if setting.plan.decision_has_schema else None
    decision = Decision(driver.version, DECIDED, driver.content, driver.entries, slot, driver.earlier, schema)
    broker = world.broker.commit_decision(decision)
    after = world._replace(broker=broker).with_driver(driver, step=END)
    event = happened(driver, "OffsetCommit of the decision: {entries}", entries=[tuple(entry) for entry in driver.entries])
    yield from answered(world, broker, after, event)
    if world.faults.gives_up:
        event = happened(driver, "OffsetCommit of the decision: no answer in time, and commit() raises")
        yield ModelMove(event, _fail(world._replace(broker=broker), driver, "no answer").spend("gives_up"), is_fault=True)


def step_6f_end(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6f: EndTxn(commit) for each transaction of the decision, in any order. What is gone may be committed all the same,
    which its marker tells, by version and fingerprint.
    """
    plan = setting.plan
    for entry in driver.to_end:
        broker, error = world.broker.end(entry.id, entry.epoch, commit=True)
        if error == CONCURRENT_TRANSACTIONS:
            continue
        doubtful_entries = driver.doubtful_entries if error == 0 else (*driver.doubtful_entries, entry)
        committed_ids = driver.committed_ids if error else (*driver.committed_ids, entry.id)
        rest = tuple(each for each in driver.to_end if each != entry)
        change = {"to_end": rest, "doubtful_entries": doubtful_entries, "committed_ids": committed_ids}
        change |= _after_6f(rest)
        if not plan.decides_before_it_ends and world.broker.decision is None:
            change["step"] = DECIDE
        event = happened(driver, "EndTxn(commit) of {id} at epoch {epoch}: {error}", id=entry.id, epoch=entry.epoch, error=error)
        yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, **change), event)
    if not driver.to_end:  # decided after the last EndTxn
        change = _after_6f(())
        yield ModelMove(happened(driver, "all transactions are ended"), world.with_driver(driver, **change))
    elif world.faults.gives_up:
        event = happened(driver, "EndTxn is not answered in time, and commit() raises")
        yield ModelMove(event, _fail(world, driver, "no answer").spend("gives_up"), is_fault=True)


def step_6f_judge(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6f: what has become of a transaction that EndTxn does not find open? Its coordinator and its marker tell. Where it was
    aborted and its records hang, the abort is repeated first: a pending marker may be another run's, and become visible.
    """
    if not driver.doubtful_entries:
        settles = driver.committed_ids and setting.plan.settles
        change = {"step": SETTLE} if settles else {"committed_ids": ()} | _after_settled(driver.lost_entries)
        yield ModelMove(happened(driver, "knows what is committed"), world.with_driver(driver, **change))
        return
    entry, rest = driver.doubtful_entries[0], driver.doubtful_entries[1:]
    fate = _fate(setting, world, driver, entry)
    event = happened(driver, "{id}: {fate}", id=entry.id, fate=fate)
    if fate == "wait":
        return
    if fate in ("cut off", "unknown"):
        yield ModelMove(event, _fail(world, driver, CUT_OFF if fate == "cut off" else UNKNOWN))
    elif fate == "hangs":
        transaction = world.broker.transaction(entry.id)
        assert transaction is not None
        places = world.broker.hanging_places(entry.id)
        if transaction.state in (EMPTY, ONGOING):
            held = Described(entry.id, EMPTY, transaction.epoch, places)
            yield ModelMove(event, world.with_driver(driver, step=REPEAT_LOST, held=held))
            return
        broker, epoch = world.broker.init_producer_id(entry.id, taken_by=FENCER, expected=transaction.epoch)
        assert epoch is not None
        held = Described(entry.id, EMPTY, epoch, places)
        after = world._replace(broker=broker).with_driver(driver, step=REPEAT_LOST, held=held)
        yield from answered(world, broker, after, event)
    else:
        more_ids = (entry.id,) if fate == "committed" else ()
        change = {
            "doubtful_entries": rest,
            "committed_ids": tuple(dict.fromkeys((*driver.committed_ids, *more_ids))),
            "lost_entries": (*driver.lost_entries, entry) if fate == "lost" else driver.lost_entries,
        }
        yield ModelMove(event, world.with_driver(driver, **change))


def step_6f_repeat(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6f: as 6h repeats an abort."""
    assert driver.held is not None
    yield from _add_again(world, driver, driver.held, END_LOST, JUDGE)


def step_6f_end_again(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6f: as 6h."""
    yield from _end_again(world, driver, JUDGE, commit=False)


def step_6g_settle(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: before anything is recorded: has each place of what was committed its control record? Wait while the coordinator
    still sends them. If a place hangs that is complete by its coordinator, the decision is to be repeated there.
    """
    entries = {entry.id: entry for entry in (driver.found_decision or driver).entries}
    is_waiting = False
    for id_ in driver.committed_ids:
        transaction, places = world.broker.transaction(id_), _hanging_places(setting.plan, world, id_)
        fate = fate_of(setting, transaction, entries[id_])
        if transaction is None or transaction.state in PREPARED:
            is_waiting = True
        elif not places and not driver.has_seen_hanging:
            continue
        elif fate == "cut off" or (places and fate not in ("committed", "open")):
            event = happened(
                driver, "rows hang in {places}, and the fate of {id} is {fate}: fails", id=id_, places=places, fate=fate
            )
            yield ModelMove(event, _fail(world, driver, CUT_OFF if fate == "cut off" else UNKNOWN))
            return
        elif places and transaction.epoch > entries[id_].epoch + MAX_REPEATS:
            event = happened(driver, "rows hang in {places}, and {id} was repeated too often: fails", id=id_, places=places)
            yield ModelMove(event, _fail(world, driver, "not visible"))
            return
        elif places:
            held = Described(id_, transaction.state, transaction.epoch, places)
            event = happened(driver, "{id} is committed, and rows hang in {places}", id=id_, places=places)
            yield ModelMove(event, world.with_driver(driver, step=READ_AGAIN, held=held, has_seen_hanging=True))
            is_waiting = True
            break
    if not is_waiting:
        event = happened(driver, "all places have their control records")
        change = {"committed_ids": (), "has_seen_hanging": False} | _after_settled(driver.lost_entries)
        yield ModelMove(event, world.with_driver(driver, **change))
    if world.faults.gives_up:
        event = happened(driver, "not all rows are visible in time, and commit() raises")
        yield ModelMove(event, _fail(world, driver, "not visible").spend("gives_up"), is_fault=True)


def step_6g_read_decision(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: read the decision after the description: while it lists the id, nobody but who carries it out has touched it."""
    assert driver.held is not None
    decision, version = world.broker.decision, (driver.found_decision or driver).version
    is_same = decision is not None and (decision.version, decision.state) == (version, DECIDED)
    if is_same or not setting.plan.reads_decision_before_repeat:
        event = happened(driver, "reads that {id} is still decided", id=driver.held.id)
        yield ModelMove(event, world.with_driver(driver, step=REPEAT))
    else:
        event = happened(driver, "reads that another run has gone on: fails")
        yield ModelMove(event, _fail(world, driver, "another run"))


def step_6g_repeat(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: AddPartitionsToTxn and AddOffsetsToTxn with the places that hang, at exactly the described epoch."""
    held = driver.held
    assert held is not None
    if not setting.plan.repeats_exactly and held.state != EMPTY:
        broker, epoch = world.broker.init_producer_id(held.id)
        if epoch is not None:
            now = held._replace(state=EMPTY, epoch=epoch)
            event = happened(driver, "InitProducerId of {id}", id=held.id)
            yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, held=now), event)
        return
    yield from _add_again(world, driver, held, END_AGAIN, SETTLE)


def step_6g_end_again(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6g: EndTxn(commit) once more, at the same epoch. Then look again."""
    yield from _end_again(world, driver, SETTLE, commit=True)


def step_6g_mark_carried_out(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: all is visible: record the version as carried out. A failure to do so is logged, and nothing else. After the own
    commit, the losers are listed beside it.
    """
    plan, found_decision = setting.plan, driver.found_decision
    if found_decision is None and driver.coordinators_asked < setting.case.coordinators:
        event = ModelEvent(driver, LIST_LOSERS, "lists the losers beside that", {})
        losers = _losers(setting, world, driver)
        yield ModelMove(event, world.with_driver(driver, coordinators_asked=driver.coordinators_asked + 1, to_fence=losers))
    schema = min(driver.schemas) if plan.decision_has_schema else None
    decision = Decision(driver.version, CARRIED_OUT, driver.content, earlier=driver.earlier, schema=schema)
    if found_decision is not None:
        decision = found_decision._replace(state=CARRIED_OUT, entries=(), slot=None)
    change = _after_step_beside_list(setting, driver, LIST_LOSERS, PROTECT_LOSERS, _after_fencing(driver, REPORT))
    if driver.carries_earlier:
        change = {"step": LIST_OTHERS, "found_decision": None}
    yield from _record(setting, world, driver, decision, change)
    if world.faults.gives_up:
        after = world.with_driver(driver, **change) if plan.only_warns_without_mark else _fail(world, driver, "mark")
        yield ModelMove(happened(driver, "OffsetCommit: no answer in time"), after.spend("gives_up"), is_fault=True)


def step_6g_mark_incomplete(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: a transaction was gone: record the version as incomplete. If the own tasks have written again what is lost, go on
    with theirs. Otherwise fail: the next run writes what is missing.
    """
    plan, decision = setting.plan, driver.found_decision
    was_read = decision is not None
    schema = min(driver.schemas) if plan.decision_has_schema else None
    decision = decision or Decision(driver.version, DECIDED, driver.content, earlier=driver.earlier, schema=schema)
    incomplete = decision._replace(state=INCOMPLETE, entries=(), slot=None)
    if not plan.incomplete_keeps_schema:
        incomplete = incomplete._replace(schema=None)
    change: dict[str, Any] = {"step": ABORT}
    if was_read and decision.version == driver.version and driver.has_written_again and plan.goes_on_without_lost:
        change = {"step": LIST_OTHERS, "found_decision": None, "lost_entries": (), "reason": ""}
        if not plan.records_before_it_goes_on:
            yield ModelMove(happened(driver, "goes on with its own transactions"), world.with_driver(driver, **change))
            return
    yield from _record(setting, world, driver, incomplete, change)


def step_6g_list(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: list the losers: whatever is not at rest now. What a later version has decided is no loser of this one. An own id
    that is listed is another's by now, but for those of empty tasks at their epoch.
    """
    after = _after_fencing(driver, REPORT)
    yield _move_after_list(setting, world, driver, _losers(setting, world, driver), PROTECT_LOSERS, after)


def step_6g_protect(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: as in 6b, what a decision lists is left alone."""
    yield from _protect(setting, world, driver, FENCE_LOSERS, _after_fencing(driver, REPORT))


def step_6g_fence(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6g: as 6b fences."""
    yield from _fence(setting, world, driver, SETTLE_LEFT)


def step_6h_settle(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 6h: has each place of what was fenced, or aborted by brokers, its control record? Where one hangs, the abort is
    repeated. What is settled is put to rest by an empty commit. Takes the id first, if it has the described epoch.
    """
    plan, after = setting.plan, _after_left(driver)
    id_, rest = driver.left[0], driver.left[1:]
    then = {"left": rest, "step": driver.step if rest else after}
    transaction = world.broker.transaction(id_)
    assert transaction is not None
    if transaction.state in PREPARED:
        return
    is_taken = transaction.state == EMPTY and transaction.taken_by == FENCER
    if not is_taken and transaction.state != COMPLETE_ABORT:
        yield ModelMove(happened(driver, "{id} is somebody else's", id=id_), world.with_driver(driver, **then))
        return
    places = _hanging_places(plan, world, id_) if plan.repeats_aborts else ()
    if not places and not plan.rests_ids:
        yield ModelMove(happened(driver, "leaves {id} as it is", id=id_), world.with_driver(driver, **then))
        return
    held = Described(id_, EMPTY, transaction.epoch, places)
    step = REPEAT_ABORT if places else REST
    if is_taken:
        event = happened(driver, "{id} has rows that hang in {places}", id=id_, places=places)
        yield ModelMove(event, world.with_driver(driver, step=step, held=held))
        return
    broker, epoch = world.broker.init_producer_id(id_, taken_by=FENCER, expected=transaction.epoch)
    assert epoch is not None
    event = happened(driver, "takes {id}, with rows that hang in {places}", id=id_, places=places)
    after_it = world._replace(broker=broker).with_driver(driver, step=step, held=held._replace(epoch=epoch))
    yield from answered(world, broker, after_it, event)


def step_6h_repeat(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6h: AddPartitionsToTxn and AddOffsetsToTxn with the places that hang."""
    assert driver.held is not None
    yield from _add_again(world, driver, driver.held, END_ABORT, SETTLE_LEFT)


def step_6h_end_again(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6h: EndTxn(abort) once more. Then look again."""
    yield from _end_again(world, driver, SETTLE_LEFT, commit=False)


def step_6h_rest(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:  # noqa: ARG001
    """Step 6h: AddOffsetsToTxn of a group without offsets, and EndTxn(commit): the id is settled, and not listed again."""
    held = driver.held
    assert held is not None
    broker, error = world.broker.add(held.id, held.epoch, ())
    if not error:
        broker, error = broker.end(held.id, held.epoch, commit=True)
    rest = driver.left[1:]
    step = SETTLE_LEFT if rest else _after_left(driver)
    event = happened(driver, "puts {id} to rest: {error}", id=held.id, error=error)
    yield ModelMove(event, world._replace(broker=broker).with_driver(driver, step=step, left=rest, held=None))


def commit_returns(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """The version is visible. But were these its rows? Of a version before the last, its successors remember the content."""
    decision = driver.found_decision
    record = None if decision is None else decision.of(driver.version)
    content = None if record is None else record.content
    if setting.plan.checks_schemas and record is not None and driver.schemas != {record.schema} and record.schema is not None:
        event = happened(driver, "tasks have encoded with schemas {schemas}, fails", schemas=sorted(driver.schemas))
        yield ModelMove(event, _fail(world, driver, "schemas"))
    elif decision is not None and content != driver.content and setting.plan.compares_content:
        event = happened(driver, "the version has {rows}: [KAFKA_NON_DETERMINISTIC_REPLAY]", rows=content)
        yield ModelMove(event, _fail(world, driver, OTHER_ROWS))
    else:
        yield from spark.finish(setting, world, driver)


def step_7_record_abort(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 7: record first that all writes are aborted that were planned up to now: tasks that begin later stop by themselves."""
    broker = world.broker
    if setting.plan.records_abort:
        broker = broker.commit_abort(world.planned)
    event = happened(driver, "abort(), because: {reason}", reason=driver.reason, planned=world.planned)
    yield ModelMove(event, world._replace(broker=broker).with_driver(driver, step=LIST_UNDECIDED, to_fence=()))


def step_7_list(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 7: list what is not at rest."""
    ids = ids_to_fence(setting, world.broker, driver)
    yield _move_after_list(setting, world, driver, ids, PROTECT_UNDECIDED, _after_fencing(driver, _failed(driver)))


def step_7_read_decision(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 7: as in 6b, what a decision lists is left alone."""
    yield from _protect(setting, world, driver, FENCE_UNDECIDED, _after_fencing(driver, _failed(driver)))


def step_7_fence(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Step 7: as 6b fences. With transaction version 1 never EndTxn(abort) first, which leaves the epoch."""
    yield from _fence(setting, world, driver, SETTLE_LEFT)


STEPS = {
    COMMIT: step_6a_read_decision,
    READ_OVERFLOW: step_6a_read_overflow,
    LIST_OTHERS: step_6b_list,
    PROTECT_OTHERS: step_6b_read_decision,
    FENCE_OTHERS: step_6b_fence,
    READ_MARKERS: step_6c_read_markers,
    RECORD_SCHEMA: step_6c_record_schema,
    DESCRIBE: step_6d_describe,
    WIDEN: step_6e_widen,
    WRITE_OVERFLOW: step_6e_write_overflow,
    DECIDE: step_6e_decide,
    END: step_6f_end,
    JUDGE: step_6f_judge,
    REPEAT_LOST: step_6f_repeat,
    END_LOST: step_6f_end_again,
    SETTLE: step_6g_settle,
    READ_AGAIN: step_6g_read_decision,
    REPEAT: step_6g_repeat,
    END_AGAIN: step_6g_end_again,
    MARK: step_6g_mark_carried_out,
    MARK_INCOMPLETE: step_6g_mark_incomplete,
    LIST_LOSERS: step_6g_list,
    PROTECT_LOSERS: step_6g_protect,
    FENCE_LOSERS: step_6g_fence,
    SETTLE_LEFT: step_6h_settle,
    REPEAT_ABORT: step_6h_repeat,
    END_ABORT: step_6h_end_again,
    REST: step_6h_rest,
    REPORT: commit_returns,
    ABORT: step_7_record_abort,
    LIST_UNDECIDED: step_7_list,
    PROTECT_UNDECIDED: step_7_read_decision,
    FENCE_UNDECIDED: step_7_fence,
}


def _refuse_schemas(world: ModelWorld, driver: Driver) -> ModelMove:
    event = happened(driver, "tasks have encoded with the schemas {schemas}", schemas=sorted(driver.schemas))
    if _schemas_in_kafka(world, driver):
        return ModelMove(event, world.with_driver(driver, step=RECORD_SCHEMA))
    return ModelMove(_more(event, ": fails"), _fail(world, driver, "schemas"))


def _has_other_rows(plan: Plan, driver: Driver, message: Message | None, marker: ModelMarker) -> bool:
    """Whether a marker that another run has written meanwhile is for certain of other rows than the message."""
    if marker.version == driver.version and marker.schema not in (None, *driver.schemas):
        return not plan.compares_schema_of_reached
    return message is None or message.content != marker.content or not plan.compares_content_of_reached


def _schemas_in_kafka(world: ModelWorld, driver: Driver) -> set[int]:
    """Those of the version's markers."""
    markers = [each for each in world.broker.markers if each is not None and each.version == driver.version]
    return {each.schema for each in markers if each.schema is not None}


def _carry_out(world: ModelWorld, driver: Driver, decision: Decision, **change: Any) -> ModelWorld:
    step = END if decision.slot is None else READ_OVERFLOW
    return world.with_driver(driver, step=step, found_decision=decision, to_end=decision.entries, **NOT_LISTED, **change)


# WHAT IS ASKED FOR SIDE BY SIDE

NOT_LISTED: dict[str, Any] = {"coordinators_asked": 0, "to_fence": ()}


def _list_others_beside(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Before the decision is read, one coordinator has answered."""
    if driver.coordinators_asked < setting.case.coordinators:
        event = ModelEvent(driver, LIST_OTHERS, "lists what is to be fenced beside that", {})
        others = _others(setting, world, driver)
        yield ModelMove(event, world.with_driver(driver, coordinators_asked=driver.coordinators_asked + 1, to_fence=others))


def _describe_beside(setting: Setting, world: ModelWorld, driver: Driver) -> Iterator[ModelMove]:
    """Before the markers are read, the own transactions are described."""
    if driver.is_untouched is None:
        event = ModelEvent(driver, DESCRIBE, "describes its transactions beside that", {})
        yield ModelMove(event, world.with_driver(driver, is_untouched=_is_untouched(setting, world, driver)))


def _after_step_beside_list(setting: Setting, driver: Driver, list_: str, fence: str, after: str) -> dict[str, Any]:
    """Where a driver goes on after the step beside which it lists: to the rest of the list, if it is not whole."""
    if driver.coordinators_asked < setting.case.coordinators:
        return {"step": list_}
    return {"step": fence if driver.to_fence else after, "coordinators_asked": 0}


def _others(setting: Setting, world: ModelWorld, driver: Driver) -> tuple[TransactionalId, ...]:
    reported = driver.reported(setting.plan)
    return ids_to_fence(setting, world.broker, driver, reported) if setting.plan.fences_all_others else ()


def _losers(setting: Setting, world: ModelWorld, driver: Driver) -> tuple[TransactionalId, ...]:
    plan, decision = setting.plan, driver.found_decision
    spared = driver.reported(plan)
    if plan.spares_only_exact:
        spared = tuple(each.id for each in driver.empty if _is(world, each.id, each.epoch, EMPTY))
    if decision is not None:
        spared = tuple(entry.id for entry in decision.entries) if plan.spares_later_decision else ()
    return ids_to_fence(setting, world.broker, driver, spared, ends=True) if plan.fences_losers else ()


def _is_untouched(setting: Setting, world: ModelWorld, driver: Driver) -> bool:
    """Whether the own transactions are open, and the ids of empty tasks still theirs."""
    expected = [(entry.id, entry.epoch, ONGOING) for entry in driver.entries] if setting.plan.checks_transactions else []
    if setting.plan.checks_empty_tasks:
        expected += [(message.id, message.epoch, EMPTY) for message in driver.empty]
    return all(_is(world, *each) for each in expected)


def _after_6d(setting: Setting, world: ModelWorld, driver: Driver, is_untouched: bool) -> dict[str, Any]:
    """When the markers are known, and what the descriptions say."""
    plan, change = setting.plan, {"is_untouched": None, "markers": None}  # of no use from here on
    if not is_untouched:
        return change | {"step": ABORT, "reason": "transaction gone", "to_end": (), **NOT_LISTED}
    if not driver.entries:
        return change | {"step": MARK}
    first = WIDEN if plan.records_width and len(driver.messages) > world.broker.width else _after_width(setting)
    return change | {"step": first if plan.decides_before_it_ends else END, "to_end": driver.entries}


def _more(event: ModelEvent, sentence: str, **arguments: Any) -> ModelEvent:
    return event._replace(sentence=event.sentence + sentence, arguments=event.arguments | arguments)


def _slot(setting: Setting, driver: Driver) -> int:
    """Where the overflow of its decision lies."""
    return driver.version % 2 if setting.plan.overflow_has_parity else 0


def _after_width(setting: Setting) -> str:
    return WRITE_OVERFLOW if setting.case.has_overflow else DECIDE


def _is(world: ModelWorld, id_: TransactionalId, epoch: int, state: str) -> bool:
    transaction = world.broker.transaction(id_)
    return transaction is not None and (transaction.epoch, transaction.state) == (epoch, state)


def _fate(setting: Setting, world: ModelWorld, driver: Driver, entry: Entry) -> str:
    """What has become of a transaction that cannot be committed: committed by its coordinator, "in Kafka" by its marker, lost,
    cut off, or unknown for now.
    """
    plan = setting.plan
    transaction = world.broker.transaction(entry.id)
    if transaction is not None and transaction.state in PREPARED:
        return "wait"
    fate = fate_of(setting, transaction, entry)
    if (fate == "cut off" and setting.case.may_skip) or (fate == "committed" and plan.state_tells_commit):
        return fate
    if fate == "aborted" and world.broker.hanging_places(entry.id):
        return "hangs"
    if _has_marker(plan, world, driver, entry):
        if not plan.state_tells_abort:
            return "committed"
        return "unknown" if fate == "unknown" and world.broker.hanging_places(entry.id) else "in Kafka"
    has_task_looked = driver.results[entry.partition] == "OPEN" if entry.partition < len(driver.results) else False
    is_pending = not has_task_looked and world.broker.has_pending_marker(entry.partition)
    return "unknown" if is_pending and plan.awaits_pending_markers else "lost"


def _has_marker(plan: Plan, world: ModelWorld, driver: Driver, entry: Entry) -> bool:
    marker = world.broker.markers[entry.partition]
    version = driver.found_decision.version if driver.found_decision else driver.version
    if marker is None or not plan.looks_at_marker_of_lost:
        return False
    if marker.version != version:
        return marker.version > version and plan.later_marker_counts
    return marker.content == entry.content or not plan.compares_content_of_lost


def _after_6f(rest: tuple[Entry, ...]) -> dict[str, Any]:
    if rest:
        return {"step": END}
    return {"step": JUDGE}


def _after_settled(lost_entries: tuple[Entry, ...]) -> dict[str, Any]:
    return {"step": MARK_INCOMPLETE, "reason": "incomplete"} if lost_entries else {"step": MARK}


def _hanging_places(plan: Plan, world: ModelWorld, id_: TransactionalId) -> tuple[str, ...]:
    places = world.broker.hanging_places(id_)
    return places if plan.settles_markers else tuple(each for each in places if each != MARKER_PLACE)


def _is_decided_meanwhile(driver: Driver, decision: Decision) -> bool:
    """Whether a decision is in the way of the own one, which there was not in 6a."""
    return decision.version > driver.version or (decision.version == driver.version and decision.state != INCOMPLETE)


def _add_again(world: ModelWorld, driver: Driver, held: Described, step: str, look: str) -> Iterator[ModelMove]:
    broker, error = world.broker.add(held.id, held.epoch, held.places)
    if error == CONCURRENT_TRANSACTIONS:
        yield ModelMove(happened(driver, "somebody else ends {id}", id=held.id), world.with_driver(driver, step=look, held=None))
        return
    after = world._replace(broker=broker).with_driver(driver, step=look if error else step, held=None if error else held)
    event = happened(driver, "adds {places} to {id} at epoch {epoch}: {error}", **_of(held), error=error)
    yield from answered(world, broker, after, event)


def _end_again(world: ModelWorld, driver: Driver, look: str, *, commit: bool) -> Iterator[ModelMove]:
    held = driver.held
    assert held is not None
    broker, error = world.broker.end(held.id, held.epoch, commit=commit)
    event = happened(driver, "EndTxn of {id} at epoch {epoch} again, for {places}: {error}", **_of(held), error=error)
    yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, step=look, held=None), event)


def _of(held: Described) -> dict[str, Any]:
    return {"id": held.id, "epoch": held.epoch, "places": held.places}


def _record(
    setting: Setting, world: ModelWorld, driver: Driver, decision: Decision, change: dict[str, Any]
) -> Iterator[ModelMove]:
    broker, found = world.broker, world.broker.decision
    is_anothers = found is not None and (
        (found.state == DECIDED and found.entries != (driver.found_decision or driver).entries)
        or (found.version, found.state == CARRIED_OUT) >= (decision.version, True)
    )
    if setting.case.overwrites or not is_anothers:
        broker = broker.commit_decision(decision)
    event = happened(driver, "OffsetCommit: version {version} is {state}", version=decision.version, state=decision.state)
    yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, **change), event)


def _move_after_list(
    setting: Setting, world: ModelWorld, driver: Driver, ids: tuple[Described, ...], protect: str, after: str
) -> ModelMove:
    """One coordinator has answered."""
    event = happened(driver, "lists what is not at rest: {ids}", ids=[each.id for each in ids])
    if driver.coordinators_asked + 1 < setting.case.coordinators:
        return ModelMove(event, world.with_driver(driver, coordinators_asked=driver.coordinators_asked + 1, to_fence=ids))
    return ModelMove(event, world.with_driver(driver, step=protect if ids else after, coordinators_asked=0, to_fence=ids))


def _protect(setting: Setting, world: ModelWorld, driver: Driver, fence: str, after: str) -> Iterator[ModelMove]:
    plan = setting.plan
    decided = decided_ids(world.broker.decision) if plan.reads_decision_after_list and plan.keeps_decided else set()
    ids = tuple(each for each in driver.to_fence if each.id not in decided)
    event = happened(driver, "fences {ids}", ids=[each.id for each in ids])
    yield ModelMove(event, world.with_driver(driver, step=fence if ids else after, to_fence=ids))


def _fence(setting: Setting, world: ModelWorld, driver: Driver, after: str) -> Iterator[ModelMove]:
    """What is aborted now, or was, is left to be settled. What is not as it was described is somebody else's by now: they have
    looked at the decision since, or have committed it."""
    id_, state, epoch, _, taken_by = driver.to_fence[0]
    rest = driver.to_fence[1:]
    transaction = world.broker.transaction(id_)
    assert transaction is not None
    end = _after_left(driver) if after == SETTLE_LEFT and not driver.left else after
    spared = {"step": driver.step if rest else end, "to_fence": rest}
    all_left = driver.left if id_ in driver.left else (*driver.left, id_)
    left = {"step": driver.step if rest else after, "to_fence": rest, "left": all_left}
    if transaction.state in PREPARED:
        return  # everybody is told to wait
    if state in PREPARED:
        change = left if transaction.state == COMPLETE_ABORT else spared
        yield ModelMove(happened(driver, "{id} has ended", id=id_), world.with_driver(driver, **change))
    elif state == COMPLETE_ABORT:
        yield ModelMove(happened(driver, "{id} was aborted", id=id_), world.with_driver(driver, **left))
    elif setting.plan.aborts_exactly and setting.case.transaction_version == 2 and taken_by == TAKER:
        yield from _take_from_taker(world, driver, spared)
    elif setting.plan.aborts_exactly and setting.case.transaction_version == 2:
        broker, error = world.broker.end(id_, epoch, commit=False)
        event = happened(driver, "EndTxn(abort) of {id} at epoch {epoch}: {error}", id=id_, epoch=epoch, error=error)
        change = spared if error else left
        yield ModelMove(event, world._replace(broker=broker).with_driver(driver, **change))
    else:
        broker, new_epoch = world.broker.init_producer_id(id_, taken_by=FENCER)
        now = world._replace(broker=broker)
        if new_epoch is None:
            yield ModelMove(happened(driver, "fences {id}: 51, and aborts what was open", id=id_), now)
        else:
            yield ModelMove(happened(driver, "fences {id}", id=id_), now.with_driver(driver, **left))


def _take_from_taker(world: ModelWorld, driver: Driver, spared: dict[str, Any]) -> Iterator[ModelMove]:
    """A task that is taking an id would go on with the epoch that EndTxn gives, as that of a repeated request. So it is taken
    from the task first, and ended then, whoever of the two has its epoch."""
    described, *rest = driver.to_fence
    id_ = described.id
    broker, epoch = world.broker.init_producer_id(id_, taken_by=FENCER, expected=described.epoch)
    now = world._replace(broker=broker)
    if epoch is None:
        yield ModelMove(happened(driver, "takes {id} from a task: 51, and aborts what was open", id=id_), now)
    elif epoch < 0:
        yield ModelMove(happened(driver, "{id} is somebody else's by now", id=id_), now.with_driver(driver, **spared))
    else:
        taken = Described(id_, EMPTY, epoch, taken_by=FENCER)
        event = happened(driver, "takes {id} from a task: epoch {epoch}", id=id_, epoch=epoch)
        yield from answered(world, broker, now.with_driver(driver, to_fence=(taken, *rest)), event)


def _after_fencing(driver: Driver, after: str) -> str:
    return SETTLE_LEFT if driver.left else after


def _after_left(driver: Driver) -> str:
    """In abort() a driver has a reason."""
    return _failed(driver) if driver.reason else REPORT


def _fail(world: ModelWorld, driver: Driver, reason: str) -> ModelWorld:
    return world.with_driver(
        driver,
        step=ABORT,
        reason=reason,
        to_end=(),
        committed_ids=(),
        doubtful_entries=(),
        held=None,
        has_seen_hanging=False,
        is_untouched=None,
        markers=None,
        **NOT_LISTED,
    )


def _failed(driver: Driver) -> str:
    return ERROR if driver.reason in FINAL_REASONS else FAILED
