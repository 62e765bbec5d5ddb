"""What comes of plans with one step left out, or one rule broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tests.exactly_once.model import cases
from tests.exactly_once.model.exploration import Violation
from tests.exactly_once.model.world import FULL_PLAN, ModelCase, Plan, Setting


@dataclass(frozen=True)
class LeftOut:
    """
    Args:
        name: says what the plan does instead.
        step: of the plan.
        fields: of Plan, that are turned around.
        violation: what comes of it in this case.
        is_quick: whether a second is enough to find it.
    """

    step: str
    name: str
    fields: tuple[str, ...]
    case: ModelCase
    violation: Violation
    is_quick: bool = True

    @property
    def setting(self) -> Setting:
        return Setting(turned(*self.fields), self.case)


def turned(*fields: str) -> Plan:
    """The full plan with these fields turned around."""
    return replace(FULL_PLAN, **{field: not getattr(FULL_PLAN, field) for field in fields})


def _left_out(step: str, name: str, fields: str, case: str, violation: Violation, *, is_quick: bool = True) -> LeftOut:
    return LeftOut(step, name, tuple(fields.split()), cases.BY_NAME[case], violation, is_quick)


# What there was before control records were settled.
SETTLING: Final = (
    "skips_before_it_takes_its_id takes_only_settled_ids leaves_decided_ids compares_epoch_of_id confirms_id"
    " state_tells_commit state_tells_abort awaits_pending_markers lists_aborted_ids reads_decision_after_list aborts_exactly"
    " rests_ids repeats_aborts reads_decision_beside_markers settles settles_markers reads_decision_before_repeat repeats_exactly"
)

LEFT_OUT: Final = (
    _left_out("1", "a task reads before it takes its id", "takes_own_id_first", "batch, a task dies", Violation.OPEN),
    _left_out("1", "ids without the attempt", "id_has_attempt", "speculation", Violation.UNHEALTHY),
    _left_out(
        "1-4",
        "empty tasks return at once",
        "empty_tasks_do_all_steps",
        "replay |ab, time-out",
        Violation.STALLED,
    ),
    _left_out("2", "incomplete counts as decided", "incomplete_is_not_decided", "time-out after the decision", Violation.STALLED),
    _left_out(
        "2, 6a",
        "an earlier version's decision is ignored",
        "carries_out_earlier",
        "skipped version, commit() gives up",
        Violation.ABANDONED,
    ),
    _left_out(
        "3",
        "what is decided is taken for committed",
        "looks_at_decided",
        "first restart after time-outs",
        Violation.UNHEALTHY,
    ),
    _left_out(
        "2", "the marker is read with require_stable", "reads_marker_at_once", "a task dies, lost answer", Violation.STALLED
    ),
    _left_out(
        "4",
        "a task does not look at the marker",
        "skips_by_marker",
        "time-out after the decision",
        Violation.STALLED,
        is_quick=False,
    ),
    _left_out("5", "marker outside of the transaction", "marker_is_in_transaction", "no faults", Violation.LOST),
    _left_out(
        "2, 4",
        "a repetition encodes with the newest schema",
        "encodes_as_recorded",
        "newer schema, first restart after a time-out",
        Violation.STALLED,
    ),
    _left_out(
        "5",
        "markers do not say with which schema",
        "marker_has_schema",
        "newer schema, foreachBatch, commit() hangs",
        Violation.REFUSED,
    ),
    _left_out(
        "6a",
        "the decision is not read again",
        "reads_decision_again",
        "skipped version, fewer partitions, time-out",
        Violation.ABANDONED,
    ),
    _left_out(
        "2, 6a",
        "an unreadable decision is an error",
        "unreadable_is_incomplete",
        "overflow, every other version, commit() gives up twice",
        Violation.REFUSED,
    ),
    _left_out(
        "6a",
        "an unreadable decision is an error in a foreachBatch",
        "unreadable_is_incomplete",
        "overflow, foreachBatch, commit() hangs",
        Violation.STALLED,
    ),
    _left_out("5", "a task reports before its rows are there", "waits_for_rows", "batch, a task dies", Violation.LOST),
    _left_out(
        "6a",
        "a driver fails although its tasks have written what was lost",
        "goes_on_without_lost",
        "first restart after time-outs",
        Violation.UNHEALTHY,
    ),
    _left_out("6b", "without 6b", "fences_all_others", "replay |ab, time-out, commit() gives up", Violation.DOUBLED),
    _left_out("6b-7", "Empty ids are not listed", "lists_empty_ids", "batch, a task dies", Violation.OPEN),
    _left_out(
        "6b",
        "the ids of empty tasks are fenced",
        "spares_empty_tasks",
        "replay |ab, time-out",
        Violation.STALLED,
    ),
    _left_out("6c", "without 6c", "reads_markers", "replay with fewer partitions, time-out", Violation.DOUBLED),
    _left_out(
        "6c",
        "only markers of the own partitions are read",
        "reads_all_markers",
        "replay with fewer partitions, time-out",
        Violation.DOUBLED,
    ),
    _left_out(
        "6c",
        "the markers are read beside the list of 6b",
        "reads_markers_after_fencing",
        "zombie, one partition, retry",
        Violation.DOUBLED,
        is_quick=False,
    ),
    _left_out(
        "6c",
        "what a task says to be decided is not looked for",
        "checks_decided_tasks",
        "zombie, one partition, two versions, time-out",
        Violation.LOST,
    ),
    _left_out(
        "6c",
        "every marker that was reached means other rows",
        "compares_content_of_reached",
        "zombie, one partition, two versions",
        Violation.REFUSED,
    ),
    _left_out(
        "6c",
        "tasks may have encoded with different schemas",
        "checks_schemas",
        "newer schema, foreachBatch, commit() hangs, two partitions",
        Violation.MIXED,
        is_quick=False,
    ),
    _left_out(
        "6c",
        "the next run does not learn the markers' schema",
        "records_schema_of_markers",
        "newer schema, foreachBatch, commit() hangs, two partitions",
        Violation.STALLED,
        is_quick=False,
    ),
    _left_out(
        "6c",
        "rows of another schema are other rows",
        "compares_schema_of_reached",
        "newer schema, zombie, one partition, two versions",
        Violation.REFUSED,
    ),
    _left_out("6d", "without 6d", "checks_transactions", "batch, time-out while tasks run", Violation.SHOWN),
    _left_out(
        "6d",
        "an empty task's id is spared whoever has it",
        "checks_empty_tasks",
        "zombie, ab| then |ab",
        Violation.DOUBLED,
        is_quick=False,
    ),
    _left_out("6e", "the decision follows the first EndTxn", "decides_before_it_ends", "no faults", Violation.UNDECIDED),
    _left_out(
        "6e",
        "nobody records how many partitions there were",
        "records_width",
        "replay with fewer partitions, time-out",
        Violation.DOUBLED,
    ),
    _left_out(
        "6e",
        "all versions write the same overflow groups",
        "overflow_has_parity unreadable_is_incomplete",
        "overflow, commit() gives up twice",
        Violation.REFUSED,
    ),
    _left_out(
        "6e",
        "the decision does not say with which schema",
        "decision_has_schema",
        "newer schema, commit() gives up",
        Violation.REFUSED,
    ),
    _left_out(
        "6g",
        "what is incomplete does not say with which schema",
        "incomplete_keeps_schema",
        "newer schema, first restart after a time-out",
        Violation.UNHEALTHY,
    ),
    _left_out(
        "6f",
        "what EndTxn does not find open is lost",
        "looks_at_marker_of_lost",
        "batch, stage submitted again",
        Violation.DENIED,
    ),
    _left_out(
        "6f",
        "any marker means that it is committed",
        "compares_content_of_lost",
        "zombie, replay with fewer partitions",
        Violation.LOST,
        is_quick=False,
    ),
    _left_out(
        "6g",
        "commit() fails without the mark",
        "only_warns_without_mark",
        "batch, commit() gives up",
        Violation.DENIED,
    ),
    _left_out("6g", "losers are not fenced", "fences_losers", "speculation", Violation.OPEN),
    _left_out(
        "6g",
        "an empty task's id is spared after the commit whoever has it",
        "spares_only_exact",
        "zombie, replay ab|",
        Violation.OPEN,
        is_quick=False,
    ),
    _left_out(
        "end",
        "what was committed is not compared",
        "compares_content",
        "foreachBatch, two DataFrames",
        Violation.LOST,
    ),
    _left_out("7", "no abort record", "records_abort", "batch, a task dies", Violation.OPEN),
    _left_out(
        "7",
        "abort() by EndTxn(abort)",
        "fences_by_init_producer_id",
        "zombie, one partition, transaction version 1",
        Violation.LOST,
        is_quick=False,
    ),
    # Skipped control records, see protocol_model.py.
    _left_out("0-7", "control records are taken for granted", SETTLING, "skip, two versions", Violation.LOST),
    _left_out("0-7", "rows of a failed write are taken for aborted", SETTLING, "skip, a task dies, retry", Violation.DOUBLED),
    _left_out("0", "a task takes an id that is not settled", "takes_only_settled_ids", "skip, time-out", Violation.DOUBLED),
    _left_out("0", "a task takes an id that is decided", "leaves_decided_ids", "skip, skipped version", Violation.ABANDONED),
    _left_out("1", "a task does not compare the epoch", "compares_epoch_of_id", "skip, a task dies", Violation.DOUBLED),
    _left_out(
        "1",
        "a task takes its id with the task's time-out at once",
        "confirms_id",
        "skip, stage submitted again",
        Violation.DOUBLED,
    ),
    _left_out(
        "3, 6f",
        "what has a pending marker is lost",
        "awaits_pending_markers",
        "skip, stage submitted again",
        Violation.DOUBLED,
    ),
    _left_out("3, 6f", "only the marker tells that rows are committed", "state_tells_commit", "skip", Violation.LOST),
    _left_out("6b-7", "aborted ids are not listed", "lists_aborted_ids", "skip, time-out", Violation.HANGING),
    _left_out(
        "6b-7",
        "the decision is not read after the list",
        "reads_decision_after_list",
        "skip, commit() gives up, two partitions",
        Violation.LOST,
    ),
    _left_out("6g", "nobody settles", "settles", "skip", Violation.LOST),
    _left_out("6g", "markers are not settled", "settles_markers", "skip, commit() gives up", Violation.HANGING),
    _left_out("6g", "a commit is repeated by a new producer", "repeats_exactly", "skip", Violation.STALLED),
    _left_out("6h", "aborts are not repeated", "repeats_aborts", "skip, time-out", Violation.DOUBLED),
)

_SKIPS = ("skip", "skip, commit() gives up", "skip, time-out, two versions", "skip, a task dies, retry")

# Steps that others cover for: without them, no case breaks a promise. They save a failed run, a request or a wait.
UNNEEDED: Final = {
    # what is decided and open is lost, and its rows are written again, if the repetition has the same ones
    "looks_before_it_takes_its_id": ("commit() gives up", "zombie, one partition, two versions"),
    "keeps_decided": ("commit() gives up", "zombie, one partition, two versions"),
    # a run fails that might have succeeded
    "compares_content_of_decided": ("replay b|a, time-out, commit() gives up", "zombie, one partition, two versions, time-out"),
    # it fails each time, and does not say that a repetition cannot help
    "refuses_later_markers": ("zombie, one partition, two versions", "zombie, skipped version, one partition"),
    # the two requests may be answered in any order
    "reads_marker_first": ("zombie, one partition, two versions", "time-out after the decision"),
    # the marker comes later: nobody reads it before the transaction is committed
    "marker_beside_rows": ("zombie, one partition, two versions", "time-out after the decision"),
    # the next run finds the transactions gone, and takes the version out then
    "records_before_it_goes_on": ("first restart after time-outs", "skipped version, fewer partitions, time-out"),
    # only a checkpoint that was restored repeats a version after a later one, which no case does
    "earlier_keep_schema": (
        "newer schema, zombie, one partition, two versions",
        "newer schema, commit() gives up twice, two versions",
    ),
    # settled ids are listed, and fenced, again and again
    "rests_ids": _SKIPS,
    # the task looks again when it has its id; it may find none that is settled
    "skips_before_it_takes_its_id": _SKIPS,
    # without a second driver, an entry that was aborted has no marker
    "state_tells_abort": _SKIPS,
    # with one driver nobody commits what is being fenced: InitProducerId hides that only there
    "aborts_exactly": _SKIPS,
    # with one driver nobody decides meanwhile
    "reads_decision_beside_markers": _SKIPS,
    "reads_decision_before_repeat": _SKIPS,
    # a run fails that would have succeeded
    "later_marker_counts": ("zombie, skipped version, one partition", "zombie, one partition, two versions"),
    # a run of the later version fails, and the next one writes what is missing
    "spares_later_decision": ("zombie, skipped version, one partition", "zombie, one partition, two versions"),
    # the next run fences it, or its time-out ends it
    "keeps_only_exact": ("zombie, one partition, two versions, time-out", "time-out after the decision"),
    # another attempt with the same id is fenced: see KNOWN_LIMITS
    "id_has_stage_attempt": ("stage submitted again", "stage submitted again, a task dies"),
}


class Limit(NamedTuple):
    """What the full plan does not promise, and what comes of it."""

    case: ModelCase
    violation: Violation


KNOWN_LIMITS: Final = (
    # Spark submits a stage again while tasks of it run. The numbers of attempts begin again, so that one attempt takes the id of
    # another: a write fails, and nothing is doubled. Tasks in Python do not see the number of the stage attempt.
    Limit(cases.STAGE_AGAIN_AND_HEALTHY, Violation.UNHEALTHY),
    # Two live drivers write different versions at the same time. The decision of the earlier one is overwritten after 6d, and no
    # plain OffsetCommit can prevent that: docs/exactly-once.md tells whose jobs may do so. Streams repeat a version first.
    Limit(cases.SKIPPED_AND_ZOMBIE, Violation.ABANDONED),
    # Two live drivers decide on one version, and the decision of one overwrites the other's: its control record is skipped, and
    # then everything dies, so that nobody knows any more whose rows hang. The marker says that they are in Kafka. What has to
    # happen: both drivers have passed 6c before either one decides, and a broker skips a control record just then.
    Limit(cases.OVERWRITTEN, Violation.LOST),
    Limit(cases.OVERWRITTEN_BY_WRITE, Violation.LOST),
    # With transaction version 1 a commit leaves the epoch: an aborted repetition looks as an aborted transaction does. It is
    # aborted by a task that has stood still and takes the id, or by its time-out, as its driver has died between two requests.
    Limit(cases.ZOMBIE_OF_VERSION_1, Violation.LOST),
    Limit(cases.CUT_OFF_OF_VERSION_1, Violation.LOST),
)
