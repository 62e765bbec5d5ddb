"""The driver of one write: commit(), steps 6a to 6h, and abort(), step 7. Each function is one step, and yields what may happen
when the driver takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.exactly_once.model import spark
from tests.exactly_once.model.broker import (
    CARRIED_OUT,
    CONCURRENT_TRANSACTIONS,
    DECIDED,
    ONGOING,
    TAKEN_OUT,
    Decision,
    Entry,
    TransactionalId,
)
from tests.exactly_once.model.task import abort_key
from tests.exactly_once.model.world import (
    ABORT,
    COMMIT,
    ERROR,
    FAILED,
    FINAL_REASONS,
    OTHER_ROWS,
    TWO_WRITES,
    UNREADABLE,
    Driver,
    Event,
    Move,
    Plan,
    Setting,
    World,
    answered,
    happened,
    listed,
)

READ_CHUNKS = "6a read chunks"
LIST_OTHERS = "6c list"
FENCE_OTHERS = "6c fence"
READ_MARKERS = "6d read markers"
DESCRIBE = "6e describe"
WRITE_CHUNKS = "6f write chunks"
DECIDE = "6f decide"
END = "6g end"
MARK = "6h mark carried out"
TAKE_OUT = "6h mark taken out"
LIST_LOSERS = "6h list"
FENCE_LOSERS = "6h fence"
REPORT = "commit() returns"
LIST_UNDECIDED = "7 list"
FENCE_UNDECIDED = "7 fence"


def step_6a_read_decision(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6a, b: read the decision again. Carried out → nothing is left to do. Decided → carry that one out, whose run it ever
    was; one of an earlier version before the own. DECIDED messages without a decision → fail.
    """
    plan, found = setting.plan, world.broker.decision
    results = [message.result for message in driver.messages if message is not None]
    if not plan.reads_decision_again and "DECIDED" not in results:
        found = None
    event = happened(driver, "commit() of {results}", results=results)
    if found is not None and (found.version > driver.version or (found.version == driver.version and found.state == CARRIED_OUT)):
        is_anothers = found.version == driver.version and found.run != driver.run
        step = MARK if is_anothers and plan.claims_what_it_finds else LIST_LOSERS
        yield Move(_more(event, ": the version was carried out already"), world.with_driver(driver, step=step, found=found))
    elif found is not None and found.state == DECIDED and found.version == driver.version:
        yield Move(_more(event, ": carries out the decision of run {run}", run=found.run), _carry_out(world, driver, found))
    elif "DECIDED" in results and plan.fails_without_decision:
        yield Move(_more(event, ": there is no decision to carry out, fails"), _fail(world, driver, "no decision"))
    elif "DECIDED" in results:
        yield Move(_more(event, ": takes DECIDED for committed"), world.with_driver(driver, step=LIST_LOSERS))
    elif found is not None and found.state == DECIDED and plan.settles_earlier_version:
        event = _more(event, ": first carries out the decision of version {version}", version=found.version)
        yield Move(event, _carry_out(world, driver, found))
    else:
        yield Move(_more(event, ": there is no decision"), world.with_driver(driver, step=LIST_OTHERS))


def step_6a_read_chunks(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6a: read the entries of a decision that was too long for one offset, and compare their digest. A decision whose
    chunks were overwritten cannot be carried out by anybody: it counts as taken out, and the next run goes by the markers.
    """
    found = driver.found
    assert found is not None
    if world.broker.entries_of(found) is not None:
        yield Move(happened(driver, "reads the chunks: the digest fits"), world.with_driver(driver, step=END))
    elif setting.plan.unreadable_is_taken_out:
        event = happened(driver, "reads the chunks: the digest does not fit, it cannot be carried out")
        yield Move(event, world.with_driver(driver, step=TAKE_OUT, to_end=(), reason="taken out"))
    else:
        event = happened(driver, "reads the chunks: the digest does not fit, fails")
        yield Move(event, _fail(world, driver, UNREADABLE))


def step_6c_list(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6c: list the owner's ids of all partitions, Empty ones too, but for those in the messages."""
    reported = driver.reported(setting.plan)
    found = listed(setting, world.broker, driver, reported) if setting.plan.fences_all_others else ()
    yield _listed(setting, world, driver, found, FENCE_OTHERS, READ_MARKERS)


def step_6c_fence(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6c: InitProducerId on each of these, until it is not answered 51."""
    yield from _fence(setting, world, driver, READ_MARKERS)


def step_6d_read_markers(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6d: read the markers of all partitions ever used. A partition that has reached the version must have been SKIPPED. If
    it has the same rows, then another run was committed meanwhile, and this one is to be run again.
    """
    plan, reached, differs = setting.plan, [], False
    for partition, marker in enumerate(world.broker.markers):
        message = driver.messages[partition] if partition < len(driver.messages) else None
        if not plan.reads_markers or (message is None and not plan.reads_all_markers):
            continue
        if marker is not None and marker.version >= driver.version and (message is None or message.result != "SKIPPED"):
            reached.append(partition)
            differs |= message is None or message.content != marker.content or not plan.compares_content_of_reached
    if differs:
        event = happened(
            driver, "partitions {reached} have other rows in Kafka: [KAFKA_NON_DETERMINISTIC_REPLAY]", reached=reached
        )
        yield Move(event, _fail(world, driver, OTHER_ROWS))
    elif reached:
        event = happened(driver, "partitions {reached} were committed meanwhile: fails", reached=reached)
        yield Move(event, _fail(world, driver, "committed meanwhile"))
    else:
        event = happened(driver, "no partition but the SKIPPED ones has reached the version")
        yield Move(event, world.with_driver(driver, step=DESCRIBE))


def step_6e_describe(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6e: is each own transaction open, at its epoch? Otherwise fail, before anything is visible."""
    plan, entries = setting.plan, driver.entries
    found = [world.broker.transaction(entry.id) for entry in entries]
    are_open = all(
        each is not None and (each.epoch, each.state) == (entry.epoch, ONGOING)
        for each, entry in zip(found, entries, strict=True)
    )
    if plan.checks_transactions and not are_open:
        yield Move(happened(driver, "a transaction is not open any more: fails"), _fail(world, driver, "transaction gone"))
        return
    if not entries:
        yield Move(happened(driver, "nothing is to be committed"), world.with_driver(driver, step=MARK))
        return
    step = (WRITE_CHUNKS if setting.case.chunked else DECIDE) if plan.decides_before_it_ends else END
    yield Move(happened(driver, "all transactions are open"), world.with_driver(driver, step=step, to_end=entries))


def step_6f_write_chunks(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6f: write the entries of a long decision into groups of this run that the latest decision does not use."""
    broker = world.broker.commit_chunk(_slot(setting, driver), driver.entries)
    event = happened(driver, "OffsetCommit of the chunks, slot {slot}", slot=_slot(setting, driver))
    yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, step=DECIDE), event)


def step_6f_decide(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6f: record the decision, with one plain OffsetCommit."""
    slot = _slot(setting, driver) if setting.case.chunked else None
    decision = Decision(driver.version, driver.run, DECIDED, driver.content, driver.entries, slot)
    broker = world.broker.commit_decision(decision)
    after = world._replace(broker=broker).with_driver(driver, step=END)
    event = happened(driver, "OffsetCommit of the decision: {entries}", entries=[tuple(entry) for entry in driver.entries])
    yield from answered(world, broker, after, event)
    if world.faults.gives_up:
        event = happened(driver, "OffsetCommit of the decision: no answer in time, and commit() raises")
        yield Move(event, _fail(world._replace(broker=broker), driver, "no answer").spend("gives_up"), is_fault=True)


def step_6g_end(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6g: EndTxn(commit) for each transaction of the decision, in any order. What is gone may be committed all the same,
    which its marker tells, by version and fingerprint.
    """
    plan, case = setting.plan, setting.case
    for entry in driver.to_end:
        broker, error = world.broker.end(entry.id, entry.epoch, commit=True, transaction_version=case.transaction_version)
        if error == CONCURRENT_TRANSACTIONS:
            continue
        is_lost = error != 0 and not _is_committed(plan, world, driver, entry)
        lost = (*driver.lost, entry) if is_lost else driver.lost
        rest = tuple(each for each in driver.to_end if each != entry)
        change = {"to_end": rest, "lost": lost, **_after_6g(rest, lost)}
        if not plan.decides_before_it_ends and world.broker.decision is None:
            change["step"] = DECIDE
        event = happened(driver, "EndTxn(commit) of {id} at epoch {epoch}: {error}", id=entry.id, epoch=entry.epoch, error=error)
        yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, **change), event)
    if not driver.to_end:  # decided after the last EndTxn
        yield Move(happened(driver, "all transactions are ended"), world.with_driver(driver, **_after_6g((), driver.lost)))
    elif world.faults.gives_up:
        event = happened(driver, "EndTxn is not answered in time, and commit() raises")
        yield Move(event, _fail(world, driver, "no answer").spend("gives_up"), is_fault=True)


def step_6h_mark_carried_out(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6h: all is visible: record the version as carried out, by this run, with what this run has written. A failure to do
    so is logged, and nothing else.
    """
    plan, found = setting.plan, driver.found
    decision = Decision(driver.version, driver.run, CARRIED_OUT, driver.content)
    if found is not None and (driver.carries_earlier or found.run == driver.run or not plan.claims_what_it_finds):
        decision = Decision(found.version, found.run, CARRIED_OUT, found.content)
    change: dict[str, Any] = {"step": LIST_LOSERS}
    if driver.carries_earlier:
        change = {"step": LIST_OTHERS, "found": None}
    yield from _record(world, driver, decision, change)
    if world.faults.gives_up:
        after = world.with_driver(driver, **change) if plan.only_warns_without_mark else _fail(world, driver, "mark")
        yield Move(happened(driver, "OffsetCommit: no answer in time"), after.spend("gives_up"), is_fault=True)


def step_6h_mark_taken_out(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6h: a transaction was gone: record the version as taken out, and fail. The next run writes what is missing."""
    del setting
    found = driver.found or Decision(driver.version, driver.run, TAKEN_OUT, driver.content)
    yield from _record(world, driver, Decision(found.version, found.run, TAKEN_OUT, found.content), {"step": ABORT})


def step_6h_list(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6h: list the losers: whatever of the owner is unfinished now, Empty ones too. What a later version has decided is no
    loser of this one.
    """
    found, spared = driver.found, driver.reported(setting.plan)
    if found is not None:
        spared = tuple(entry.id for entry in found.entries) if setting.plan.spares_later_decision else ()
    losers = listed(setting, world.broker, driver, spared) if setting.plan.fences_losers else ()
    yield _listed(setting, world, driver, losers, FENCE_LOSERS, REPORT)


def step_6h_fence(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 6h: InitProducerId on each loser, until it is not answered 51."""
    yield from _fence(setting, world, driver, REPORT)


def commit_returns(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """The version is visible. But was it this write, or another one of the same run, with other rows?"""
    found = driver.found
    is_own = found is not None and (found.run, found.version) == (driver.run, driver.version)
    if is_own and found is not None and found.content != driver.content and setting.plan.compares_own_content:
        event = happened(driver, "this run has written {rows} as the same version: fails", rows=found.content)
        yield Move(event, _fail(world, driver, TWO_WRITES))
    else:
        yield from spark.finish(setting, world, driver)


def step_7_record_abort(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 7: record first that the write was aborted: tasks that begin later stop by themselves. A stream's driver knows its run
    from a task's message only.
    """
    broker = world.broker
    knows_its_name = setting.case.kind != "stream" or any(driver.messages)
    if setting.plan.records_abort and knows_its_name:
        broker = broker.commit_abort(abort_key(setting, driver.run, driver.write))
    event = happened(driver, "abort(), because: {reason}", reason=driver.reason)
    yield Move(event, world._replace(broker=broker).with_driver(driver, step=LIST_UNDECIDED, to_fence=()))


def step_7_list(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 7: list what is unfinished, but for what a decision lists at its epoch. Nobody would ever carry out the decision of
    a batch write that has an owner of its own: its transactions are fenced, too.
    """
    plan, decision, spared = setting.plan, world.broker.decision, set[TransactionalId]()
    is_repeated = setting.case.kind != "batch" or not plan.frees_decided_of_batch
    if decision is not None and decision.state == DECIDED and plan.keeps_decided and is_repeated:
        spared = {entry.id for entry in decision.entries}
    found = listed(setting, world.broker, driver, tuple(spared))
    yield _listed(setting, world, driver, found, FENCE_UNDECIDED, _failed(driver))


def step_7_fence(setting: Setting, world: World, driver: Driver) -> Iterator[Move]:
    """Step 7: InitProducerId on each of these, never EndTxn(abort), which in transaction version 1 leaves the epoch."""
    if setting.plan.fences_by_init_producer_id:
        yield from _fence(setting, world, driver, _failed(driver))
        return
    id_, rest = driver.to_fence[0], driver.to_fence[1:]
    transaction = world.broker.transaction(id_)
    assert transaction is not None
    version = setting.case.transaction_version
    broker, error = world.broker.end(id_, transaction.epoch, commit=False, transaction_version=version)
    after = world._replace(broker=broker).with_driver(driver, step=FENCE_UNDECIDED if rest else _failed(driver), to_fence=rest)
    yield Move(happened(driver, "EndTxn(abort) of {id}: {error}", id=id_, error=error), after)


STEPS = {
    COMMIT: step_6a_read_decision,
    READ_CHUNKS: step_6a_read_chunks,
    LIST_OTHERS: step_6c_list,
    FENCE_OTHERS: step_6c_fence,
    READ_MARKERS: step_6d_read_markers,
    DESCRIBE: step_6e_describe,
    WRITE_CHUNKS: step_6f_write_chunks,
    DECIDE: step_6f_decide,
    END: step_6g_end,
    MARK: step_6h_mark_carried_out,
    TAKE_OUT: step_6h_mark_taken_out,
    LIST_LOSERS: step_6h_list,
    FENCE_LOSERS: step_6h_fence,
    REPORT: commit_returns,
    ABORT: step_7_record_abort,
    LIST_UNDECIDED: step_7_list,
    FENCE_UNDECIDED: step_7_fence,
}


def _carry_out(world: World, driver: Driver, found: Decision) -> World:
    step = END if found.slot is None else READ_CHUNKS
    return world.with_driver(driver, step=step, found=found, to_end=found.entries)


def _more(event: Event, sentence: str, **arguments: Any) -> Event:
    return event._replace(sentence=event.sentence + sentence, arguments=event.arguments | arguments)


def _slot(setting: Setting, driver: Driver) -> tuple[int, ...]:
    """Where the chunks of its decision lie."""
    plan = setting.plan
    return (driver.run if plan.chunks_have_run else 0, driver.version % 2 if plan.chunks_have_parity else 0)


def _is_committed(plan: Plan, world: World, driver: Driver, lost: Entry) -> bool:
    """Whether the rows of a transaction that is gone are visible all the same."""
    marker, version = world.broker.markers[lost.partition], driver.found.version if driver.found else driver.version
    if marker is None or not plan.looks_at_marker_of_lost:
        return False
    if marker.version != version:
        return marker.version > version and plan.later_marker_counts
    return marker.content == lost.content or not plan.compares_content_of_lost


def _after_6g(rest: tuple[Entry, ...], lost: tuple[Entry, ...]) -> dict[str, Any]:
    if rest:
        return {"step": END}
    return {"step": TAKE_OUT, "reason": "taken out"} if lost else {"step": MARK}


def _record(world: World, driver: Driver, decision: Decision, change: dict[str, Any]) -> Iterator[Move]:
    broker = world.broker.commit_decision(decision)
    event = happened(driver, "OffsetCommit: version {version} is {state}", version=decision.version, state=decision.state)
    yield from answered(world, broker, world._replace(broker=broker).with_driver(driver, **change), event)


def _listed(setting: Setting, world: World, driver: Driver, found: tuple[TransactionalId, ...], fence: str, after: str) -> Move:
    """One coordinator has answered."""
    event = happened(driver, "lists what is to be fenced: {ids}", ids=found)
    if driver.asked + 1 < setting.case.coordinators:
        return Move(event, world.with_driver(driver, asked=driver.asked + 1, to_fence=found))
    return Move(event, world.with_driver(driver, step=fence if found else after, asked=0, to_fence=found))


def _fence(setting: Setting, world: World, driver: Driver, after: str) -> Iterator[Move]:
    del setting
    id_, rest = driver.to_fence[0], driver.to_fence[1:]
    broker, epoch = world.broker.init_producer_id(id_, fences=True)
    if epoch is not None:
        then = world._replace(broker=broker).with_driver(driver, step=driver.step if rest else after, to_fence=rest)
        yield Move(happened(driver, "fences {id}", id=id_), then)
    elif broker is not world.broker:
        event = happened(driver, "fences {id}: 51, and aborts what was open", id=id_)
        yield Move(event, world._replace(broker=broker))


def _fail(world: World, driver: Driver, reason: str) -> World:
    return world.with_driver(driver, step=ABORT, reason=reason, to_end=(), to_fence=())


def _failed(driver: Driver) -> str:
    return ERROR if driver.reason in FINAL_REASONS else FAILED
