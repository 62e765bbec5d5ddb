"""A model of exactly-once writes: every order of steps, crashes, time-outs and lost answers, and what readers see after each.

    python -m tests.exactly_once.protocol_model             all cases and plans as a table; takes some minutes
    python -m tests.exactly_once.protocol_model zombie      those with this word in the name, and the traces of violations
    python -m tests.exactly_once.protocol_model --quick     those that the default test run explores
    python -m tests.exactly_once.protocol_model --crashes   what a crash after each step leaves, and what the next run does
    python -m tests.exactly_once.protocol_model --write     writes protocol_traces.json

A task attempt
    0   describe the ids that this attempt may take: one for each slot. Then as 2 and 3: and stop, without touching an id, where
        there is nothing to write, or the marker has the version. An id is taken only if it is settled (unknown, committed, or
        Empty with a task's time-out), and no decision lists it that is not carried out
    1   InitProducerId on the first of these ids, with a time-out that says so: whoever lists sees it from here on. An epoch that
        does not follow the described one means that somebody has had the id meanwhile: leave it, and take one of a later slot.
        Otherwise InitProducerId again, with this epoch and the task's time-out. An id that nobody has had is created in one step
    2   read the decision, and whether this write was aborted. Where the decision knows the version: encode with the schema that
        it names, and not with that of the own plan
    3   is the version decided? Then describe the transaction that is decided for this partition, and after that read the marker:
        open, committed, or in Kafka, or a marker is pending → nothing to write; otherwise it is lost, and written again
    4   read the marker: are the rows in Kafka already, encoded with the schema that it names?
    5   write the rows and beside them the marker, all in one transaction; leave it open and report it to the driver

The driver
    6a  read the decision again; carry it out if there is one, whose run and whose version it ever was. If a part of it is lost
        which the own tasks have written again, record it as incomplete, and go on with them
    6b  list what is not at rest and not in the tasks' messages: Empty, open, aborted, or being ended. Read the decision after
        that: what it lists is left alone. With transaction version 2, EndTxn(abort) of the others at exactly the epoch that was
        described; an id that a task is taking is taken from it first. With version 1: InitProducerId
    6c  read the decision, and the markers of all partitions that there ever were: another run must not have reached the version,
        or decided on it since 6a, and a task that has not written as its rows are decided needs a marker with the same rows. If
        the tasks have encoded with different schemas, record that of the markers, as a version that is incomplete, and fail: the
        next run encodes with this one
    6d  are all transactions open, and have the tasks without rows still their ids, all at the epoch of the message?
    6e  record how many partitions there are; record the decision; its overflow first, if it is too long for one offset
    6f  EndTxn(commit) for each transaction. Judge those that are not open, by the epoch and the time-out that the coordinator has
        and by their markers: committed, in Kafka, or lost; or cut off: committed, but the repetition of 6g was not ended, so that
        a part of it may be lost, which only a person can find out. Where rows of an aborted one hang, first as 6h
    6g  settle what is committed: every place, a partition with rows or the group of a marker, has its control record. Where one
        was skipped: read the decision again, then AddPartitionsToTxn, AddOffsetsToTxn and EndTxn(commit) at exactly the epoch
        that was described. Then record the version, and its schema, as carried out, or as incomplete if a transaction was gone;
        fence the losers
    6h  settle what was fenced, or aborted by brokers: where its rows hang, take the id with the time-out of who fences, and abort
        once more. Then put it to rest by an empty commit, so that it is not listed again
    7   abort(): record when, which stops every write that was planned before; then fence as 6b what is not decided, and 6h

Side by side, in any order: 6a and the list of 6b, which is of no use if a decision is found; 6c and 6d; after the own commit the
record and the list of 6g; the confirmation of step 1 and step 2. Not 6c and the list of 6b.

A transactional id names a partition, an attempt and a slot, and no run: the next run has the same ids. What protects a decided
transaction is that every task looks before it takes an id, and takes none that is listed; what keeps two runs apart is the epoch
in the message.

What must hold
    I1  no row is visible twice
    I2  what Spark's log has as committed is visible exactly once
    I3  a failed write shows nothing, unless its decision was recorded; and a batch write does not fail when all is visible
    I4  when nothing moves any more, no transaction is open that nobody has decided to commit; and nothing hangs when one more
        version has been written
    I5  no process waits for ever; a repetition with the same rows ends well; without a fault nothing fails
    I6  the rows of one version are encoded with one schema

A case is explored to the end, or it is too large; then what is not found proves nothing, and the table says so. What the plan
does not promise is in the table, too (KNOWN_LIMITS).

A crash is a process that never moves again. Besides, in every state everything dies and Spark runs the query again.

Skipped control records (KAFKA-20734): a coordinator may skip that of any place, of commits, aborts and repetitions, as often as
the case says (`skips`). The records there hang until the next control record of the same id, which decides about them. What is
covered: one driver with each other fault, one after the other (SKIPS, explored to the end); a stage that was submitted again,
with one skip (explored to the end). Two live drivers with one skip (the rest of ZOMBIE_SKIPS), as long as no driver overwrites
the decision of the other, were explored in part only. Where a task that has stood still takes an id amid a repetition, a write
may end in the error that asks a person to look. Cases without `skips` are of brokers that do not
skip: with these nobody calls a transaction cut off.

Not in the model: several coordinators (a list is one step here), several brokers and their failures but for what is skipped, what
cannot be seen without READ (a look at what hangs is exact and one step), a time limit of settling but for `gives_up`, epochs that
run out, expired ids and offsets, denied permissions, two owners with the same prefix.

Files, in model/
    broker.py       requests and their answers
    world.py        the plan, a case, and the state of everything
    task.py         steps 0 to 5
    driver.py       steps 6 and 7, settling among them
    spark.py        what Spark and its user do, and what goes wrong
    exploration.py  what must hold, and the search
    cases.py        what the plan is tried in
    plans.py        plans with one step left out, and what comes of them
    traces.py       traces as data, in protocol_traces.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.exactly_once.model import cases, spark, traces
from tests.exactly_once.model.exploration import Result, Violation, explore, moves, recover
from tests.exactly_once.model.plans import KNOWN_LIMITS, LEFT_OUT
from tests.exactly_once.model.world import FULL_PLAN, ModelCase, ModelEvent, Setting

TRACES_FILE: Final = Path(__file__).with_name("protocol_traces.json")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once.protocol_model")
    parser.add_argument("case", nargs="?", default="", help="part of the name of a case or of a plan")
    parser.add_argument("--quick", action="store_true", help="what the default test run explores")
    parser.add_argument("--crashes", action="store_true", help="a table of crash points")
    parser.add_argument("--write", action="store_true", help=f"write {TRACES_FILE.name}")
    options = parser.parse_args(arguments)
    if options.write:
        TRACES_FILE.write_text(recorded_traces(), encoding="utf-8")
    elif options.crashes:
        print("\n".join(crash_points()))
    else:
        for line in table(options.case, only_quick=options.quick):
            print(line, flush=True)


def recorded_traces() -> str:
    """What protocol_traces.json has to say. Takes a minute."""
    return traces.dump(map(traces.record, LEFT_OUT))


# THE TABLE


def table(word: str, *, only_quick: bool) -> Iterator[str]:
    yield f"{'plan':66} {'case':62} {'states':>8} {'s':>5}  result"
    rows: list[tuple[str, ModelCase, Setting, Violation | None]] = [
        ("the full plan", case, Setting(FULL_PLAN, case), None)
        for case in cases.QUICK + (() if only_quick else cases.SOAK + cases.SAMPLED)
    ]
    rows += [("what it does not promise", each.case, Setting(FULL_PLAN, each.case), each.violation) for each in KNOWN_LIMITS]
    rows += [
        (f"{each.name} [{each.step}]", each.case, each.setting, each.violation)
        for each in LEFT_OUT
        if each.is_quick or not only_quick
    ]
    for plan, case, setting, until in rows:
        if word.lower() in f"{plan} / {case.name}".lower():
            began = time.perf_counter()
            result = explore(setting, until)
            outcome = ", ".join(violation.value for violation in result.traces) or "ok"
            if not result.is_complete and not result.traces:
                outcome = "nothing found in a part of the states, nor by random walks: proves nothing"
            seconds = time.perf_counter() - began
            yield f"{plan:66} {case.name:62} {result.states:8} {seconds:5.1f}  {outcome}"
            yield from _details(result, with_traces=bool(word))


def _details(result: Result, *, with_traces: bool) -> Iterator[str]:
    for rows, decision in sorted(result.shown):
        yield f"    a failed write shows {' '.join(rows) or 'nothing'} ({decision})"
    if with_traces:
        for violation, events in result.traces.items():
            yield f"    {violation.value}, after {len(events)} steps:"
            yield from (f"      {event}" for event in events)


# CRASH POINTS


def crash_points() -> Iterator[str]:
    """One write of two tasks without faults, one step after the other; and what a crash of everything after each step leaves."""
    setting = Setting(FULL_PLAN, ModelCase("crash points"))
    yield f"{'everything dies after':112} {'readers see':12} the next run"
    world = spark.begin(setting)
    while following := list(moves(setting, world)):
        event, world, _ = following[0]
        _, events, _ = recover(setting, world)
        yield f"{str(event)[:111]:112} {' '.join(world.broker.visible):12} {', '.join(_summary(events))}"


def _summary(events: Sequence[ModelEvent]) -> Iterator[str]:
    """What the tasks of the next run return, and what its driver does."""
    if len(events) == 1:
        yield "has nothing to do"
    for event in events:
        if "fences" in event.sentence and "51" not in event.sentence:
            yield f"fences {event.arguments['id']}"
        elif event.step == "5 write marker":
            yield f"writes partition {event.process.partition}"
        elif "result" in event.arguments:
            yield str(event.arguments["result"])
        elif event.step.startswith("6a") and "run" in event.arguments:
            yield "carries the decision out"


if __name__ == "__main__":
    main(sys.argv[1:])
