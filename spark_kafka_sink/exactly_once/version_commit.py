"""What the driver does once all tasks have reported: check, decide, commit the tasks' transactions.

    commit()   a  read the decision again; one of this version is carried out instead of making another, one of an earlier
                  version before. If a part of what is decided was lost and the own tasks have written it again, go on with theirs
               c  fence every unfinished id under the prefix that is not in the reports
               d  read the markers of all partitions that there ever were: one with this version that its task has not seen means
                  other rows, or another run; a task that has not written because its rows are decided needs one. Tasks that
                  have encoded with different schemas, by what each has found: record the markers' for the next run, and fail
               e  are all transactions of the reports still open, and do empty tasks still have their ids? Otherwise fail, before
                  anything is visible
               f  record how many partitions there are, then the decision
               g  commit each transaction
               h  note in the decision what has become of it; fence those who came too late. All is visible then: if one of
                  these fails, a warning is logged, and the write succeeds

Side by side go: a and the list of c, where the client has listed before; d and e; the two requests of h. Whether that list
misses an id is asked beside d and e; if so, c to e are done again. The list of c comes before d: between the two, others commit.

There is no step b. What carries out a decision, and abort(), are in decisions.py, as others do that as well.
A driver decides only after it has ended every transaction of others and found that none of them was committed. Whoever registers
a transactional id later meets the decision, or is fenced. So at most one decision of a version is carried out, by whomever.
An id names no run of a driver: it is a run's own transaction only with the producer id and epoch that its task has reported.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from spark_kafka_sink.admin.operation import BrokerGoneError
from spark_kafka_sink.admin.question import Question, Reply
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, UnsupportedVersionError, printable_list
from spark_kafka_sink.exactly_once.decisions import (
    LEFT_TO_THE_NEXT_RUN,
    TIMEOUT_OPTION,
    WHY_GONE,
    WRITTEN_BY_THE_NEXT_RUN,
    commit_decided,
    decided_of,
    fail_incomplete,
)
from spark_kafka_sink.exactly_once.fencing import (
    ENDING,
    UnfinishedId,
    fence_all,
    guessed,
    list_unfinished,
    list_unfinished_question,
    whole_list_questions,
)
from spark_kafka_sink.exactly_once.ledger import (
    EARLIER_VERSIONS,
    Decision,
    Ledger,
    Marker,
    State,
)
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.writes import (
    WHY_OTHER_ROWS,
    CommitFailedError,
    Content,
    ReplayError,
    Result,
    TaskReport,
    TaskTransaction,
    total,
)

logger = logging.getLogger(__name__)

_NOT_NAMED = (
    " This write has no name: its repetition is another write, and writes these rows again. With txnAppId and txnVersion it would"
    " write only what is missing"
)


class HowCommitted(enum.Enum):
    """How a version came to be committed."""

    COMMITTED = "committed"
    ROLLED_FORWARD = "an earlier run had decided on it; its transactions were committed now"
    FOUND = "it had been committed before; nothing was written"
    SUPERSEDED = "it had been committed before, and a later one since; nothing was written"


@dataclass(frozen=True, slots=True)
class Committed:
    """
    Args:
        how: by this run, or by another before.
        skipped: Spark partitions whose rows an earlier run had written; for COMMITTED only.
        fenced: transactional ids that others had left, and that were fenced.
        other_rows: rows of this write that were not written, as the version is in Kafka with other ones; not for COMMITTED.
    """

    how: HowCommitted
    skipped: int = 0
    fenced: int = 0
    other_rows: int = 0


class _ListBesideDecision(NamedTuple):
    """What step c has to fence, as it was listed beside step a. `is_whole`: to be asked when it is fenced."""

    found: Reply[list[UnfinishedId]]
    is_whole: Question[bool]

    def unfinished(self) -> list[UnfinishedId]:
        try:
            return self.found.answer()
        except KafkaTimeoutError:
            raise  # listing again would take as long again
        except KafkaError as error:
            raise _NotWholeError(str(error)) from error


class _NotWholeError(Exception):
    """An unfinished id may be missing in the list: coordinators have moved meanwhile, or a broker has not answered."""


class VersionCommit:
    """One commit(), on the driver. Blocks for max.block.ms at most in each of its steps.

    Args:
        reports: of all tasks; at least one, and all of one write.
        marker_topic: see Ledger.
        has_name: whether a repetition of the write has the same owner and version. Errors say what is to be done then.
        keeps_first: whether a version that is in Kafka already may be repeated with other rows, which are not written.
    """

    def __init__(
        self,
        client: TransactionClient,
        names: Names,
        reports: Sequence[TaskReport],
        marker_topic: str,
        *,
        has_name: bool = True,
        keeps_first: bool = False,
    ) -> None:
        self._client = client
        self._names = names
        self._reports = reports
        self._write = reports[0].write
        self._ledger = Ledger(client, names, self._write.owner, marker_topic)
        self._has_name = has_name
        self._keeps_first = keeps_first
        self._open = {each.task_id: each.entry for each in reports if each.result is Result.OPEN}
        self._empty = {each.task_id: each.entry for each in reports if each.result is Result.EMPTY}
        self._content = total(each.content for each in reports)
        self._fenced = 0
        self._early_list: _ListBesideDecision | None = None

    def run(self) -> Committed:
        """
        Raises:
            ReplayError: the version, or a part of it, is in Kafka with other rows. Nothing of this write was committed.
            CommitFailedError: see its message; what is decided is carried out by the next run.
            KafkaError: a request failed for good. The next run finds out what was decided.
        """
        self._check_writes()
        decision = self._read_decision()
        if decision is None or not decision.reaches(self._write.version):
            return self._commit_own(decision)
        how = HowCommitted.FOUND if decision.version == self._write.version else HowCommitted.SUPERSEDED
        if decision.version == self._write.version and decision.state is State.DECIDED:
            if lost := self._end_decided(decision):
                return self._commit_rest(decision, lost)
            self._record_outcome(decision.now(State.CARRIED_OUT))
            how = HowCommitted.ROLLED_FORWARD
        elif not self._has_name and decision.state is State.DECIDED:  # by a driver whose clock is ahead: nobody repeats it
            self._carry_out(decision)
        # What this run wrote is not needed; what a later version has decided is.
        kept = {TaskId(self._write.owner, each.partition, each.attempt) for each in decision.entries}
        self._fence_late(decision, kept)
        return Committed(how, fenced=self._fenced, other_rows=self._compare(decision))

    def _commit_own(self, before: Decision | None) -> Committed:
        """`before`: the decision that this one follows."""
        if before is not None and before.version < self._write.version:
            before = self._settle_earlier(before)
        decision = self._decide(before)
        self._commit_all(decision)
        self._record_and_fence_late(decision.now(State.CARRIED_OUT))
        skipped = sum(each.result in (Result.SKIPPED, Result.DECIDED) for each in self._reports)
        return Committed(HowCommitted.COMMITTED, skipped, self._fenced)

    def _commit_rest(self, decision: Decision, lost: Sequence[TaskTransaction]) -> Committed:
        """Of what was decided a part has timed out. Tasks that have seen it have written their rows again."""
        results = {each.entry.partition: each.result for each in self._reports}
        if any(results.get(entry.partition, Result.DECIDED) is Result.DECIDED for entry in lost):
            self._fail_incomplete(decision, lost)
        incomplete = decision.now(State.INCOMPLETE)
        self._ledger.write_decision(incomplete)
        return self._commit_own(incomplete)

    def _settle_earlier(self, decision: Decision) -> Decision:
        """A version that its driver did not finish, and that was not repeated before this one. What has become of it."""
        if decision.state is State.DECIDED:
            lost = self._end_decided(decision)
            if lost and self._has_name:  # its user can repeat it, before this one follows
                self._fail_incomplete(decision, lost)
            decision = decision.now(State.INCOMPLETE if lost else State.CARRIED_OUT)
            if lost:
                self._ledger.write_decision(decision)
            else:
                self._record_outcome(decision)
        if decision.state is State.INCOMPLETE:
            logger.warning(
                "! only a part of version %d is in Kafka; the rest of its %d rows is not written, as version %d follows",
                decision.version,
                decision.content.rows,
                self._write.version,
            )
        return decision

    def _check_writes(self) -> None:
        others = {each.write for each in self._reports} - {self._write}
        if others:
            raise CommitFailedError(
                f"the tasks' reports are of different writes: {printable_list(map(str, [self._write, *others]))}. Nothing was"
                " committed"
            )

    # a-f: DECIDE

    def _read_decision(self) -> Decision | None:
        """Step a, and beside it the list of step c, if that can be had so."""
        questions = whole_list_questions(self._client, self._names)
        if questions is None:
            return self._ledger.decision()
        decision, found = self._client.ask_together(self._ledger.decision_question(), questions.found)
        self._early_list = _ListBesideDecision(found, questions.is_whole)
        read: Decision | None = decision.answer()
        return read

    def _decide(self, before: Decision | None) -> Decision:
        recorded = self._fence_and_check(before)
        decision = self._new_decision(before, self._content, recorded)
        if self._open:
            if recorded < len(self._reports):
                self._ledger.record_width(len(self._reports))
            self._ledger.write_decision(decision)
        return decision

    def _new_decision(self, before: Decision | None, content: Content, recorded: int = 0) -> Decision:
        return Decision(
            version=self._write.version,
            state=State.DECIDED,
            tasks=len(self._reports),
            partitions=max(recorded, self._partitions(before)),
            content=content,
            entries=tuple(self._open.values()),
            earlier=() if before is None else before.before(self._write.version),
        )

    def _fence_and_check(self, before: Decision | None) -> int:
        """Steps c to e. Returns how many partitions are on record."""
        early_list, self._early_list = self._early_list, None
        if early_list is not None:
            try:
                self._fence(early_list.unfinished(), set(self._open | self._empty))
                return self._check(before, early_list.is_whole)
            except _NotWholeError as error:
                logger.debug("= listing again: %s", error)
        self._fence_others(before)
        return self._check(before)

    def _check(self, before: Decision | None, list_is_whole: Question[bool] | None = None) -> int:
        """Steps d and e, side by side, when all others are fenced. Returns how many partitions are on record.

        Raises _NotWholeError if `list_is_whole` is answered in the negative.
        """
        others = () if list_is_whole is None else (list_is_whole,)
        ids = map(self._names.transactional_id, self._open | self._empty)
        markers, described, *is_whole = self._client.ask_together(
            self._ledger.all_markers_question(self._partitions(before)),
            self._client.describe_transactions_question(ids),
            *others,
        )
        if not all(_is_so(reply) for reply in is_whole):
            raise _NotWholeError("coordinators have moved")
        found: dict[int, Marker]
        recorded: int
        found, recorded = markers.answer()
        self._check_schemas(before, [each for each in found.values() if each.version == self._write.version])
        self._check_markers(found)
        self._check_untouched(described)
        return recorded

    def _fence(self, found: Iterable[UnfinishedId], kept: Collection[TaskId]) -> None:
        """Other owners under the prefix are dead, as it belongs to one query or job at a time; what they have decided is kept."""
        tasks = [each.task for each in found if each.task not in kept]
        others = [task for task in tasks if task.owner != self._write.owner]
        decided = decided_of(self._client, self._names, others)
        self._fenced += fence_all(self._client, self._names, [task for task in tasks if task not in decided])

    def _fence_others(self, before: Decision | None) -> None:
        """All but what the tasks have reported. Whether these ids are still theirs is checked afterwards, where that can be."""
        found = list_unfinished(self._client, self._names)
        kept = set(self._open | self._empty)
        if found is None:
            found, kept = self._guessed(before), set(self._open)
        self._fence(found, kept)

    def _guessed(self, before: Decision | None) -> list[UnfinishedId]:
        return guessed(self._write.owner, range(self._partitions(before)))

    def _partitions(self, before: Decision | None) -> int:
        return max(len(self._reports), 0 if before is None else before.partitions)

    def _check_markers(self, markers: Mapping[int, Marker]) -> None:
        """In an order: what no repetition mends comes first."""
        reports = {each.entry.partition: each for each in self._reports}
        unseen = {
            partition: marker
            for partition, marker in markers.items()
            if marker.version >= self._write.version and not _has_seen(reports.get(partition), marker)
        }
        comparable = {number: each for number, each in unseen.items() if not self._is_encoded_otherwise(each)}
        self._check_later(markers, reports)
        self._check_contents(comparable, unseen, reports)
        self._check_missing(markers)
        if unseen:
            raise CommitFailedError(
                f"{self._in_kafka(unseen)}, with {'the same rows' if comparable else 'other schemas'}: another run has committed"
                " them while this one wrote. End that one: a prefix is for"
                " one query or job at a time. Nothing of this run is committed; the write can be run again, and finds them"
            )

    def _check_later(self, markers: Mapping[int, Marker], reports: Mapping[int, TaskReport]) -> None:
        later = {number: each for number, each in markers.items() if self._is_later(reports.get(number), each)}
        if later:
            self._refuse_other_rows(
                f"a later version, {max(each.version for each in later.values())}, is in Kafka for the Spark partitions"
                f" {printable_list(later)}, and no decision says so: it was reset or has expired, or another run works with this"
                f" transactionalIdPrefix. What was committed as version {self._write.version} is not known"
            )

    def _check_contents(
        self, comparable: Mapping[int, Marker], unseen: Mapping[int, Marker], reports: Mapping[int, TaskReport]
    ) -> None:
        """Of markers that no task has seen."""
        if any(marker != (self._write.version, _content_of(reports.get(partition))) for partition, marker in comparable.items()):
            raise ReplayError(
                f"{self._in_kafka(unseen)}, written by an earlier run; this one has {len(self._reports)} partitions, and its"
                " tasks had not seen that. Nothing of this run is committed. Run the write again with as many partitions and the"
                " same rows in each (spark.sql.shuffle.partitions, repartition, the same input splits), or begin anew with"
                " another transactionalIdPrefix"
            )

    def _check_missing(self, markers: Mapping[int, Marker]) -> None:
        missing = [each.entry.partition for each in self._reports if self._is_missing(each, markers.get(each.entry.partition))]
        if missing:
            raise CommitFailedError(
                f"tasks found that version {self._write.version} was decided, and the decision is gone: group"
                f" {self._names.decision_group(self._write.owner)} was reset or has expired, or another run works with this"
                f" transactionalIdPrefix. The rows of the Spark partitions {printable_list(missing)} are not in Kafka. Nothing"
                " was committed; run the write again"
            )

    def _in_kafka(self, unseen: Iterable[int]) -> str:
        return f"version {self._write.version} is in Kafka already for the Spark partitions {printable_list(unseen)}"

    def _check_schemas(self, before: Decision | None, markers: Sequence[Marker]) -> None:
        """`markers`: of this version."""
        found = {each.content.schemas for each in self._reports}
        if len(found) == 1:
            return
        if markers:
            content = self._content._replace(schemas=markers[0].content.schemas)
            self._ledger.write_decision(self._new_decision(before, content).now(State.INCOMPLETE))
        raise CommitFailedError(
            f"the tasks of version {self._write.version} have encoded their rows with different schemas"
            f" ({'; '.join(sorted(map(str, found)))}). {_OTHER_SCHEMAS}"
        )

    def _is_encoded_otherwise(self, marker: Marker) -> bool:
        return marker.version == self._write.version and marker.content.schemas != self._content.schemas

    def _is_later(self, report: TaskReport | None, marker: Marker) -> bool:
        """Whether the task wrote nothing because later rows than its own are in Kafka."""
        return report is not None and report.result is Result.SKIPPED and marker.version > self._write.version

    def _is_missing(self, report: TaskReport, marker: Marker | None) -> bool:
        """Whether the task wrote nothing because the version was decided, but its rows are not in Kafka."""
        if report.result is not Result.DECIDED:
            return False
        if marker is None or marker.version < self._write.version:
            return bool(report.content.rows)
        return marker.version > self._write.version

    def _check_untouched(self, described: Reply[dict[str, TransactionDescription | None]]) -> None:
        """So that a time-out is found out before anything is visible. The coordinator is asked, as it ends transactions.

        Raises AuthorizationError where DESCRIBE is missing: without it nobody finds the coordinator that ends them.
        """
        entries = {self._names.transactional_id(task): entry for task, entry in (self._open | self._empty).items()}
        try:
            found = described.answer()
        except UnsupportedVersionError as error:
            logger.warning("! it cannot be checked whether the tasks' transactions are still open: %s", error)
            return
        empty = {self._names.transactional_id(task) for task in self._empty}
        gone = [
            entry.partition
            for transactional_id, entry in entries.items()
            if not _is_untouched(found[transactional_id], entry, is_empty=transactional_id in empty)
        ]
        if gone:
            raise CommitFailedError(
                f"the transactions of {len(gone)} of {len(entries)} tasks are not theirs any more (Spark partitions"
                f" {printable_list(gone)}):"
                f" {WHY_GONE}. Nothing is visible; the write can be run again"
            )

    # g-h: CARRY OUT

    def _carry_out(self, decision: Decision) -> None:
        self._commit_all(decision)
        self._record_outcome(decision.now(State.CARRIED_OUT))

    def _commit_all(self, decision: Decision) -> None:
        if lost := self._end_decided(decision):
            self._fail_incomplete(decision, lost)

    def _end_decided(self, decision: Decision) -> list[TaskTransaction]:
        self._early_list = None  # the list contains the transactions that end now, so it is out of date
        return commit_decided(self._ledger, decision, rest=self._rest(decision, LEFT_TO_THE_NEXT_RUN, _LEFT_TO_THE_NEXT_WRITE))

    def _fail_incomplete(self, decision: Decision, lost: Sequence[TaskTransaction]) -> NoReturn:
        fail_incomplete(self._ledger, decision, lost, rest=self._rest(decision, WRITTEN_BY_THE_NEXT_RUN))

    def _rest(self, decision: Decision, of_named: str, of_unnamed: str = "") -> str:
        if decision.version != self._write.version:
            return (
                f"An earlier write has left them so. Nothing of this one, version {self._write.version}, was committed: run it"
                " again"
            )
        return of_named if self._has_name else of_unnamed + _NOT_NAMED

    def _record_outcome(self, decision: Decision) -> None:
        (recorded,) = self._ask_record(decision)
        self._warn_of_record(decision, recorded)

    def _ask_record(self, decision: Decision, *others: Question[Any]) -> list[Reply[Any]]:
        """Record what has become of a version, and ask others beside it."""
        return self._client.ask_together(self._ledger.write_decision_question(decision), *others)

    def _warn_of_record(self, decision: Decision, recorded: Reply[None]) -> None:
        try:
            recorded.answer()
        except KafkaError as error:
            logger.warning("! version %d is committed, but that could not be recorded: %s", decision.version, error)

    def _record_and_fence_late(self, decision: Decision) -> None:
        """Step h after the own commit: its two requests side by side."""
        recorded, late = self._ask_record(decision, list_unfinished_question(self._client, self._names))
        self._warn_of_record(decision, recorded)
        self._fence_late(decision, late=late)

    def _fence_late(
        self, decision: Decision, kept: Collection[TaskId] | None = None, late: Reply[list[UnfinishedId]] | None = None
    ) -> None:
        """Fence every id that is open now, except those in `kept` and those that brokers are ending.

        `kept` is None after the own commit. An own id that is open again belongs to another run then; an empty task's id at its
        own epoch does not. `late`: what is open, if that was asked for.
        """
        own = set(self._open | self._empty)
        try:
            found = self._late_list(late, at_once=kept is None)
            if found is None:
                found = [*self._guessed(decision), *(UnfinishedId(task, TransactionState.ONGOING) for task in own)]
                kept = own if kept is None else kept
            elif kept is None:
                kept = self._still_empty()
            self._fence((each for each in found if each.state not in ENDING), kept)
        except KafkaError as error:
            logger.warning(
                "! version %d is committed, but attempts of its tasks that came too late could not be ended: %s. The next write"
                " with this transactionalIdPrefix ends them, or brokers do after %s; until then readers with"
                " isolation.level=read_committed may wait for them",
                self._write.version,
                error,
                TIMEOUT_OPTION,
            )

    def _late_list(self, late: Reply[list[UnfinishedId]] | None, *, at_once: bool) -> list[UnfinishedId] | None:
        if late is not None:
            try:
                return late.answer()
            except (BrokerGoneError, UnsupportedVersionError) as error:
                logger.debug("= listing again: %s", error)
        return list_unfinished(self._client, self._names, at_once=at_once)

    def _still_empty(self) -> set[TaskId]:
        ids = {self._names.transactional_id(task): task for task in self._empty}
        try:
            known = self._client.describe_transactions(ids)
        except UnsupportedVersionError:
            return set()
        return {task for each, task in ids.items() if _is_untouched(known[each], self._empty[task], is_empty=True)}

    # WHAT WAS WRITTEN BEFORE

    def _compare(self, decision: Decision) -> int:
        """How many rows of this write are others than those that were committed as its version. Raises ReplayError."""
        version, first = self._write.version, decision.content_of(self._write.version)
        if not self._has_name:
            raise CommitFailedError(
                f"this unnamed write was planned at {version} ms by its driver's clock, and one with the same"
                f" transactionalIdPrefix that was planned later, at {decision.version} ms, was committed before: write one after"
                " the other, by clocks that agree. Nothing was written"
            )
        if first is not None and any(each.content.schemas != first.schemas for each in self._reports):
            raise CommitFailedError(
                f"version {version} is in Kafka with {first}, and tasks that had not seen that have encoded their rows otherwise."
                f" {_OTHER_SCHEMAS}"
            )
        if first == self._content:
            return 0
        what = f"this write of version {version} has {self._content}"
        if first is None:
            text = (
                f"{what}, and version {decision.version} of the same owner has been committed. What was committed as version"
                f" {version} is not known: it never was as a whole, or more than {EARLIER_VERSIONS} versions have followed"
            )
        else:
            text = f"version {version} is in Kafka with {first}, and {what}. {WHY_OTHER_ROWS}"
        self._refuse_other_rows(text)
        return self._content.rows

    def _refuse_other_rows(self, text: str) -> None:
        if not self._keeps_first:
            raise ReplayError(f"{text}. {_WHAT_TO_DO}")
        logger.warning("! %s. Its rows were not written (onNonDeterministicReplay=keepFirst)", text)


_WHAT_TO_DO = (
    "None of the rows of this write is in Kafka. If they are other rows, as after a checkpoint that was restored or shared, or in"
    " a second write of one micro-batch: give them a txnVersion or transactionalIdPrefix of their own. If they are the same rows"
    " and their values change with each run: make the query repeatable, or set onNonDeterministicReplay=keepFirst, which keeps"
    " what is in Kafka"
)
_OTHER_SCHEMAS = (
    "Another run has begun this version with other ones while this one wrote. Nothing of this run is committed; run the write"
    " again: its tasks encode with the schemas of what is in Kafka"
)
_LEFT_TO_THE_NEXT_WRITE = (
    "They are decided: the next unnamed write with this transactionalIdPrefix commits them, if it comes before"
    f" {TIMEOUT_OPTION} has passed."
)


def _is_so(reply: Reply[bool]) -> bool:
    try:
        return reply.answer()
    except KafkaError:
        return False


def _has_seen(report: TaskReport | None, marker: Marker) -> bool:
    """Whether the task knows that its rows are in Kafka."""
    if report is None:
        return False
    is_its_own = marker.version > report.write.version or marker.content == report.content
    return report.result is Result.SKIPPED or (report.result is Result.DECIDED and is_its_own)


def _content_of(report: TaskReport | None) -> Content | None:
    """None for a task that was not to write this content: then any content is another."""
    return None if report is None or report.result is Result.DECIDED else report.content


def _is_untouched(found: TransactionDescription | None, entry: TaskTransaction, *, is_empty: bool) -> bool:
    state = TransactionState.EMPTY if is_empty else TransactionState.ONGOING
    return found is not None and found.state == state and found.is_of(entry.identity)
