"""The cases that the plan is tried in.

    QUICK       explored to the end within a second or two
    SOAK        explored to the end, which takes longer
    SAMPLED     too large for that: what is looked at is a part, and random walks. Not to find a violation there proves nothing

Only what was explored to the end is evidence: that the full plan holds, and that a plan breaks because of the step left out.
A zombie is a run that is still alive while a later one works.
"""

from __future__ import annotations

from typing import Final

from tests.exactly_once.model.world import Faults, ModelCase

ONE: Final = "ab"  # both rows in one partition, see SPLITS

# A coordinator skips the control record of a place.
SKIPS: Final = (
    ModelCase("skip", first=ONE, faults=Faults(skips=2)),
    ModelCase("skip, two versions", faults=Faults(skips=1), versions=(1, 2)),
    ModelCase("skip, a task dies", first="ab|", faults=Faults(skips=1, deaths=1, runs=1), may_be_cut_off=True),
    ModelCase("skip, a task dies, retry", first=ONE, faults=Faults(skips=1, deaths=1), attempts=2),
    ModelCase("skip, time-out", first=ONE, faults=Faults(skips=1, time_outs=1, runs=1)),
    ModelCase("skip, time-out, two versions", first=ONE, faults=Faults(skips=1, time_outs=1, runs=1), versions=(1, 2)),
    ModelCase("skip, commit() gives up", first=ONE, faults=Faults(skips=2, gives_up=1, runs=1)),
    ModelCase("skip, commit() gives up, two partitions", faults=Faults(skips=1, gives_up=1, runs=1)),
    ModelCase(
        "skip, commit() gives up, transaction version 1",
        first=ONE,
        faults=Faults(skips=2, gives_up=1, runs=1),
        transaction_version=1,
    ),
    ModelCase(
        "skip, a task dies, transaction version 1", first=ONE, faults=Faults(skips=1, deaths=1, runs=1), transaction_version=1
    ),
    ModelCase(
        "skip, a repetition times out",
        first=ONE,
        faults=Faults(skips=1, time_outs=1, runs=1),
        repeats_time_out=True,
        may_be_cut_off=True,
    ),
    ModelCase("skip, lost answer", first=ONE, faults=Faults(skips=1, lost_answers=1)),
    ModelCase("skip, apart", first=ONE, faults=Faults(skips=1, gives_up=1, runs=1), apart=True),
    ModelCase(
        "skip, foreachBatch, commit() gives up", kind="foreachBatch", first=ONE, faults=Faults(skips=1, gives_up=1, writes=1)
    ),
    ModelCase("skip, batch, commit() gives up", kind="batch", faults=Faults(skips=1, gives_up=1)),
    ModelCase("skip, speculation", first=ONE, faults=Faults(skips=1, copies=1), attempts=2),
    ModelCase("skip, skipped version", first=ONE, versions=(1, 2), skips=True, faults=Faults(skips=1, runs=1, gives_up=1)),
)
# A task that has stood still, or a second driver that is alive, meanwhile. Nobody overwrites a decision here: see KNOWN_LIMITS.
ZOMBIE_SKIPS: Final = (
    ModelCase(
        "skip, zombie, one partition",
        first=ONE,
        faults=Faults(skips=1, runs=1),
        zombies=True,
        overwrites=False,
        may_be_cut_off=True,
    ),
    ModelCase(
        "skip, zombie, one partition, two versions",
        first=ONE,
        faults=Faults(skips=1, runs=1),
        zombies=True,
        overwrites=False,
        may_be_cut_off=True,
        versions=(1, 2),
    ),
    ModelCase(
        "skip, zombie, commit() gives up",
        first=ONE,
        faults=Faults(skips=1, runs=1, gives_up=1),
        zombies=True,
        overwrites=False,
        may_be_cut_off=True,
    ),
    ModelCase(
        "skip, foreachBatch, commit() hangs",
        kind="foreachBatch",
        first=ONE,
        faults=Faults(skips=1, hangs=1, writes=1),
        overwrites=False,
        may_be_cut_off=True,
    ),
    ModelCase(
        "skip, stage submitted again", first=ONE, faults=Faults(skips=1, stages=1, runs=1), overwrites=False, may_be_cut_off=True
    ),
)

QUICK: Final = (
    *SKIPS,
    ModelCase("no faults"),
    ModelCase("no faults, two versions", versions=(1, 2)),
    ModelCase("two lost answers", faults=Faults(lost_answers=2)),
    ModelCase("two lost answers, transaction version 1", faults=Faults(lost_answers=2), transaction_version=1),
    ModelCase("time-out after the decision", faults=Faults(time_outs=1, lost_answers=1, runs=1), when="after the decision"),
    ModelCase("a task dies, lost answer", faults=Faults(deaths=1, lost_answers=1), attempts=2),
    ModelCase("speculation", faults=Faults(copies=1), attempts=2, healthy_from=0),
    ModelCase("commit() gives up", faults=Faults(gives_up=1, runs=1), healthy_from=1),
    ModelCase(
        "first restart after time-outs",
        faults=Faults(time_outs=2, gives_up=1, runs=1),
        when="before the first restart",
        healthy_from=1,
    ),
    ModelCase("replay with fewer partitions, time-out", replay=ONE, faults=Faults(time_outs=1, runs=1)),
    ModelCase("replay b|a, time-out, commit() gives up", replay="b|a", faults=Faults(time_outs=1, gives_up=1, runs=1)),
    # A batch write that has an owner of its own is not run again.
    ModelCase("batch, a task dies", kind="batch", faults=Faults(deaths=1)),
    ModelCase("batch, time-out", kind="batch", faults=Faults(time_outs=1, lost_answers=1)),
    ModelCase("batch, time-out while tasks run", kind="batch", faults=Faults(time_outs=1), when="while tasks run"),
    ModelCase("batch, commit() gives up", kind="batch", faults=Faults(gives_up=1)),
    ModelCase("batch, stage submitted again", kind="batch", first=ONE, faults=Faults(stages=1, lost_answers=1)),
    # The second write of a foreachBatch has the run, the owner, the version and the transactional ids of the first.
    ModelCase("foreachBatch, a task dies", kind="foreachBatch", first=ONE, faults=Faults(deaths=1, writes=1), healthy_from=1),
    ModelCase(
        "foreachBatch, commit() gives up", kind="foreachBatch", first=ONE, faults=Faults(gives_up=1, writes=1), healthy_from=1
    ),
    ModelCase("foreachBatch, commit() gives up, two partitions", kind="foreachBatch", faults=Faults(gives_up=1, writes=2)),
    ModelCase("foreachBatch, two DataFrames", kind="foreachBatch", frames=2),
    ModelCase(
        "foreachBatch, two DataFrames, commit() gives up",
        kind="foreachBatch",
        first=ONE,
        frames=2,
        faults=Faults(gives_up=1, writes=1, runs=1),
    ),
    # Attempts of two stage attempts have the same transactional id.
    ModelCase("stage submitted again, one partition", first=ONE, faults=Faults(stages=1)),
    # Decisions that are longer than one offset's metadata.
    ModelCase(
        "overflow, foreachBatch, commit() gives up", kind="foreachBatch", has_overflow=True, faults=Faults(gives_up=1, writes=1)
    ),
    ModelCase(
        "overflow, commit() gives up twice", has_overflow=True, first=ONE, versions=(1, 2), faults=Faults(gives_up=2, runs=1)
    ),
    ModelCase(
        "overflow, every other version, commit() gives up twice",
        has_overflow=True,
        first=ONE,
        versions=(1, 3),
        faults=Faults(gives_up=2, runs=1),
    ),
    # The schema has a newer version whenever a write is planned.
    ModelCase("newer schema, commit() gives up", evolves=True, faults=Faults(gives_up=1, runs=1), healthy_from=1),
    ModelCase(
        "newer schema, time-out after the decision", evolves=True, faults=Faults(time_outs=1, runs=1), when="after the decision"
    ),
    ModelCase(
        "newer schema, commit() gives up twice, two versions",
        evolves=True,
        first=ONE,
        versions=(1, 2),
        faults=Faults(gives_up=2, runs=2),
    ),
    ModelCase(
        "newer schema, first restart after a time-out",
        evolves=True,
        faults=Faults(time_outs=1, runs=1),
        when="before the first restart",
        healthy_from=1,
    ),
    # A job that counts its versions by itself goes on with the next one after a failure.
    ModelCase("skipped version, commit() gives up", versions=(1, 2), skips=True, faults=Faults(runs=1, gives_up=1)),
    ModelCase(
        "skipped version, foreachBatch swallows errors",
        kind="foreachBatch",
        first=ONE,
        versions=(1, 2),
        skips=True,
        faults=Faults(gives_up=1, runs=1),
    ),
)

ZOMBIES: Final = (
    ModelCase("zombie", faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, one partition, retry", first=ONE, faults=Faults(runs=1, deaths=1), zombies=True, attempts=2),
    ModelCase("zombie, one partition, two versions", first=ONE, faults=Faults(runs=1), zombies=True, versions=(1, 2)),
    ModelCase("zombie, one partition, time-out", first=ONE, faults=Faults(runs=1, time_outs=1, lost_answers=1), zombies=True),
    ModelCase(
        "zombie, one partition, transaction version 1",
        first=ONE,
        faults=Faults(runs=1, deaths=1),
        zombies=True,
        attempts=2,
        transaction_version=1,
    ),
    ModelCase("zombie, replay b|a", replay="b|a", faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, replay ab|", replay="ab|", faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, ab| then |ab", first="ab|", replay="|ab", faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, replay with fewer partitions", replay=ONE, faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, replay with more partitions", first=ONE, replay="a|b", faults=Faults(runs=1), zombies=True),
    ModelCase("zombie, overflow", has_overflow=True, faults=Faults(runs=1), zombies=True),
    ModelCase(
        "zombie, overflow, two versions", has_overflow=True, first=ONE, faults=Faults(runs=1), zombies=True, versions=(1, 2)
    ),
    ModelCase("zombie, two coordinators", coordinators=2, faults=Faults(runs=1), zombies=True),
    ModelCase(
        "zombie, two coordinators, two versions",
        coordinators=2,
        first=ONE,
        faults=Faults(runs=1),
        zombies=True,
        versions=(1, 2),
    ),
    ModelCase(
        "zombie, two coordinators, replay with fewer partitions",
        coordinators=2,
        replay=ONE,
        faults=Faults(runs=1),
        zombies=True,
    ),
    ModelCase("zombie, stage submitted again", first=ONE, faults=Faults(stages=1, runs=1), zombies=True),
    ModelCase(
        "zombie, foreachBatch, commit() hangs", kind="foreachBatch", first=ONE, faults=Faults(hangs=1, runs=1), zombies=True
    ),
    ModelCase(
        "zombie, one partition, two versions, time-out",
        first=ONE,
        faults=Faults(runs=1, time_outs=1),
        zombies=True,
        versions=(1, 2),
    ),
    ModelCase(
        "zombie, foreachBatch, two DataFrames",
        kind="foreachBatch",
        first=ONE,
        frames=2,
        faults=Faults(runs=1),
        zombies=True,
    ),
    ModelCase("newer schema, zombie", evolves=True, faults=Faults(runs=1), zombies=True),
    ModelCase(
        "newer schema, zombie, one partition, two versions",
        evolves=True,
        first=ONE,
        faults=Faults(runs=1),
        zombies=True,
        versions=(1, 2),
    ),
    ModelCase(
        "newer schema, zombie, one partition, time-out",
        evolves=True,
        first=ONE,
        faults=Faults(runs=1, time_outs=1),
        zombies=True,
    ),
    ModelCase(
        "zombie, skipped version, one partition", first=ONE, versions=(1, 2), skips=True, faults=Faults(runs=1), zombies=True
    ),
)

SOAK: Final = (
    *ZOMBIES,
    *ZOMBIE_SKIPS,
    ModelCase("time-out before the decision", faults=Faults(time_outs=1, runs=1), when="before the decision"),
    ModelCase(
        "time-out after the decision, transaction version 1",
        faults=Faults(time_outs=1, lost_answers=1, runs=1),
        when="after the decision",
        transaction_version=1,
    ),
    ModelCase("speculation, a copy dies", faults=Faults(copies=1, deaths=1), attempts=2),
    ModelCase("abort() while tasks run", faults=Faults(deaths=1, runs=1)),
    ModelCase("replay |ab, time-out", replay="|ab", faults=Faults(time_outs=1, runs=1)),
    ModelCase("replay |ab, time-out, commit() gives up", replay="|ab", faults=Faults(time_outs=1, gives_up=1, runs=1)),
    ModelCase("replay ab|, time-out, commit() gives up", replay="ab|", faults=Faults(time_outs=1, gives_up=1, runs=1)),
    ModelCase("stage submitted again", faults=Faults(stages=1)),
    ModelCase("stage submitted again, a task dies", first=ONE, faults=Faults(stages=1, deaths=1, runs=1), attempts=2),
    ModelCase(
        "stage submitted again, transaction version 1",
        first=ONE,
        faults=Faults(stages=1, deaths=1, lost_answers=1),
        attempts=2,
        transaction_version=1,
    ),
    ModelCase("foreachBatch, a task dies, two partitions", kind="foreachBatch", faults=Faults(deaths=1, writes=1)),
    ModelCase("foreachBatch, time-out, two partitions", kind="foreachBatch", faults=Faults(time_outs=1, writes=1)),
    ModelCase("foreachBatch, commit() hangs", kind="foreachBatch", first=ONE, faults=Faults(hangs=1, writes=1, lost_answers=1)),
    ModelCase(
        "overflow, foreachBatch, commit() hangs",
        kind="foreachBatch",
        has_overflow=True,
        first=ONE,
        faults=Faults(hangs=1, writes=1),
    ),
    ModelCase(
        "newer schema, foreachBatch, commit() hangs",
        kind="foreachBatch",
        evolves=True,
        first=ONE,
        faults=Faults(hangs=1, writes=1),
    ),
    ModelCase("foreachBatch, commit() hangs, two partitions", kind="foreachBatch", faults=Faults(hangs=1)),
    ModelCase(
        "newer schema, foreachBatch, commit() hangs, two partitions", kind="foreachBatch", evolves=True, faults=Faults(hangs=1)
    ),
    ModelCase(
        "skipped version, fewer partitions, time-out",
        versions=(1, 2, 3),
        replay=ONE,
        skips=True,
        faults=Faults(runs=1, time_outs=1, lost_answers=1),
    ),
)

PART: Final = 200_000  # states
SAMPLED: Final = (
    ModelCase("zombie, lost answer", faults=Faults(runs=1, lost_answers=1), zombies=True, limit=PART),
    ModelCase("zombie, commit() gives up", faults=Faults(runs=2, gives_up=1), zombies=True, limit=PART),
    ModelCase("zombie, one partition, two later runs", first=ONE, faults=Faults(runs=2), zombies=True, limit=PART),
)

# What the plan does not promise: see KNOWN_LIMITS in plans.py.
STAGE_AGAIN_AND_HEALTHY: Final = ModelCase(
    "stage submitted again, no write fails", first=ONE, faults=Faults(stages=1), healthy_from=0
)
SKIPPED_AND_ZOMBIE: Final = ModelCase(
    "zombie, skipped version, fewer partitions",
    replay=ONE,
    versions=(1, 2),
    skips=True,
    faults=Faults(runs=1),
    zombies=True,
)
OVERWRITTEN: Final = ModelCase(
    "skip, zombie, one partition, a decision is overwritten", first=ONE, faults=Faults(skips=1, runs=1), zombies=True
)
OVERWRITTEN_BY_WRITE: Final = ModelCase(
    "skip, foreachBatch, commit() hangs, a decision is overwritten",
    kind="foreachBatch",
    first=ONE,
    faults=Faults(skips=1, hangs=1, writes=1),
)
ZOMBIE_OF_VERSION_1: Final = ModelCase(
    "skip, zombie, one partition, transaction version 1",
    first=ONE,
    faults=Faults(skips=1, runs=1),
    zombies=True,
    transaction_version=1,
    overwrites=False,
)
CUT_OFF_OF_VERSION_1: Final = ModelCase(
    "skip, a repetition times out, transaction version 1",
    first=ONE,
    faults=Faults(skips=1, time_outs=1, runs=1),
    repeats_time_out=True,
    transaction_version=1,
)


EVIDENCE: Final = QUICK + SOAK
BY_NAME: Final = {case.name: case for case in EVIDENCE}
