"""What the driver does once all tasks have reported: check, decide, commit the tasks' transactions. Steps 0 to 5 are the tasks'
(task_attempt.py).

    commit()  6a  read the owner's decision again. One on an earlier version is carried out first. One on this version is carried
                  out instead of a new one; but if a part of its rows was lost, and this run's tasks have written that part again,
                  this run's transactions are committed instead
              6b  fence every unfinished id under the prefix that is not in the reports
              6c  read the markers of all partitions that there ever were. Fail in each of three cases. A partition has a
                  marker of this version that its task has not seen: other rows, or another run's. A task found its rows decided,
                  and they have no marker. Tasks have encoded with different schemas: the markers' are recorded for the next run
              6d  fail unless all transactions of the reports are still open, and empty tasks still have their ids. If 6c or 6d
                  fails, nothing of this run is visible
              6e  record how many partitions there are, then the decision
              6f  commit each transaction
              6g  record the decision's new state, and fence attempts that came too late. All rows are visible by then: if one of
                  the two fails, a warning is logged, and the write succeeds

Requests that are sent together:
    6a, and the list of 6b, if the client has listed before
    6c, 6d, and whether the list of 6b missed an id; if it did, 6b to 6d are done again
    the two requests of 6g
The list of 6b is read before the markers of 6c: what another run commits between the two shows in the markers.

decisions.py carries out decisions and has abort_prefix(), because not only a commit needs them.
Before a driver decides, it fences all unfinished ids of others, except decided ones of other owners, and checks all markers. (If
brokers cannot list ids, it fences those that it guesses.) A task that takes an id later finds the decision, or is fenced. So only
one decision of a version is carried out as a whole. If a part of it was lost, a second decision commits only that part.
Two runs may use the same ids: a transaction is a run's own only with the producer id and epoch that the run's task reported.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from spark_kafka_sink.admin.operation import BrokerGoneError
from spark_kafka_sink.admin.question import Question, Reply
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, UnsupportedVersionError
from spark_kafka_sink.exactly_once.decisions import (
    LEFT_TO_THE_NEXT_RUN,
    TIMEOUT_OPTION,
    WRITTEN_BY_THE_NEXT_RUN,
    Carrying,
    commit_entries,
    fail_incomplete,
    fence_unprotected,
)
from spark_kafka_sink.exactly_once.fencing import (
    ENDING,
    UnfinishedId,
    guess_unfinished,
    list_unfinished,
    list_unfinished_question,
    whole_list_questions,
)
from spark_kafka_sink.exactly_once.ledger import AllMarkers, Ledger
from spark_kafka_sink.exactly_once.ledger_records import MAX_EARLIER_VERSIONS, Decision, DecisionState, Marker
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.exactly_once.settling import NO_PLACES, Beside, WrittenPlaces, settle_left
from spark_kafka_sink.exactly_once.version_checks import (
    LOOK_FIRST,
    OTHER_SCHEMAS,
    check_markers,
    check_untouched,
    check_writes,
    is_untouched,
    refuse_other_rows,
)
from spark_kafka_sink.exactly_once.writes import (
    WHY_OTHER_ROWS,
    AttemptResult,
    CommitFailedError,
    Content,
    TaskReport,
    TaskTransaction,
    sum_contents,
)

logger = logging.getLogger(__name__)

_SETTLE_LEFT_MS = 10_000  # a committed write waits so long for what others have left; else the next one settles it
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
    """How a commit() ended, and what it found on its way."""

    how: HowCommitted
    skipped_partitions: int = 0  # how many Spark partitions' rows an earlier run had written; for COMMITTED only
    fenced: int = 0  # how many transactional ids, which others had left, were fenced
    other_rows: int = 0  # rows that were not written, as the version is in Kafka with other rows; not for COMMITTED


class _UnfinishedIdsReply(NamedTuple):
    """The reply to the list of step 6b, sent with step 6a. `is_whole`: asks, when these ids are fenced, if the list was whole."""

    reply: Reply[list[UnfinishedId]]
    is_whole: Question[bool]

    def read_answer(self) -> list[UnfinishedId]:
        """The ids that were listed. Raises _NotWholeError if they should be listed again, KafkaTimeoutError if time is up."""
        try:
            return self.reply.read_answer()
        except KafkaTimeoutError:
            raise  # listing again would take as long again
        except KafkaError as error:
            raise _NotWholeError(str(error)) from error


class _NotWholeError(Exception):
    """An unfinished id may be missing in the list: coordinators have moved meanwhile, or a broker has not answered."""


@dataclass(eq=False, repr=False)
class VersionCommit:
    """One commit() of a version, on the driver. Each of its requests blocks for max.block.ms at most; a step may need several."""

    client: TransactionClient
    names: PrefixNames
    reports: Sequence[TaskReport]  # of all tasks; at least one, and all of one write
    marker_topic: str  # see Ledger
    is_named: bool = True  # a repetition of the write has the same owner and version; errors advise accordingly
    keeps_first: bool = False  # if a version in Kafka is repeated with other rows, do not write them; False: ReplayError
    places: WrittenPlaces = NO_PLACES  # where the rows of the tasks are

    def __post_init__(self) -> None:
        self._write = self.reports[0].write
        self._ledger = Ledger(self.client, self.names, self._write.owner, self.marker_topic)
        self._open_entries = {each.attempt_id: each.entry for each in self.reports if each.result is AttemptResult.OPEN}
        self._empty_entries = {each.attempt_id: each.entry for each in self.reports if each.result is AttemptResult.EMPTY}
        self._own_entries = self._open_entries | self._empty_entries  # by ids that nobody else may hold
        self._content = sum_contents(each.content for each in self.reports)
        self._left: dict[AttemptId, TransactionDescription | None] = {}  # what was fenced, and is to be settled
        results = {each.entry.partition: each.result for each in self.reports}
        self._open_partitions = frozenset(key for key, result in results.items() if result is AttemptResult.OPEN)

    def run(self) -> Committed:
        """Take steps 6a to 6g. Returns how the version came to be committed.

        Raises:
            ReplayError: the version, or a part of it, is in Kafka with other rows. Nothing of this write was committed.
            CommitFailedError: see its message; what is decided is carried out by the next run.
            KafkaError: a request failed for good. The next run finds out what was decided.
        """
        check_writes(self.reports)
        decision, ids_reply = self._read_decision()
        if decision is None or not decision.reaches(self._write.version):
            return self._commit_own(decision, ids_reply)
        if decision.version > self._write.version:
            how = HowCommitted.SUPERSEDED
            if decision.state is DecisionState.DECIDED and not self.is_named:  # its driver's clock is ahead; nobody repeats it
                self._commit_or_fail(decision)
                self._record_outcome(decision.with_state(DecisionState.CARRIED_OUT))
        elif decision.state is DecisionState.DECIDED:
            how = HowCommitted.ROLLED_FORWARD
            if lost_entries := self._commit_entries(decision):
                return self._commit_replacements(decision, lost_entries)
            self._record_outcome(decision.with_state(DecisionState.CARRIED_OUT))
        else:
            how = HowCommitted.FOUND
        self._fence_all_but_decided(decision)
        return Committed(how, fenced=len(self._left), other_rows=self._count_other_rows(decision))

    def _commit_own(self, old_decision: Decision | None, ids_reply: _UnfinishedIdsReply | None = None) -> Committed:
        """Decide on this run's transactions, and commit them. `old_decision`: the decision that the new one replaces."""
        if old_decision is not None and old_decision.version < self._write.version:
            if old_decision.state is DecisionState.DECIDED:
                ids_reply = None  # out of date: it has the transactions that are committed now
            old_decision = self._carry_out_earlier(old_decision)
        decision = self._decide(old_decision, ids_reply)
        list_question = list_unfinished_question(self.client, self.names)
        self._commit_or_fail(decision, Beside(list_question, lambda reply: self._fence_late(decision, reply)))
        self._record_outcome(decision.with_state(DecisionState.CARRIED_OUT))
        self._settle_left()
        skipped_count = sum(each.result in (AttemptResult.SKIPPED, AttemptResult.DECIDED) for each in self.reports)
        return Committed(HowCommitted.COMMITTED, skipped_count, len(self._left))

    def _commit_replacements(self, decision: Decision, lost_entries: Sequence[TaskTransaction]) -> Committed:
        """Commit this run's transactions: some of the decided ones have timed out, and tasks have written their rows again."""
        results = {each.entry.partition: each.result for each in self.reports}
        if any(results.get(entry.partition, AttemptResult.DECIDED) is AttemptResult.DECIDED for entry in lost_entries):
            self._fail_incomplete(decision, lost_entries)
        incomplete = decision.with_state(DecisionState.INCOMPLETE)
        self._ledger.write_decision(incomplete)
        return self._commit_own(incomplete)

    def _carry_out_earlier(self, decision: Decision) -> Decision:
        """Carry out an earlier version that was left unfinished and not repeated. Returns the decision with its new state."""
        if decision.state is DecisionState.DECIDED:
            lost_entries = self._commit_entries(decision)
            if lost_entries and self.is_named:  # its user can repeat it before this version is written
                self._fail_incomplete(decision, lost_entries)
            decision = decision.with_state(DecisionState.INCOMPLETE if lost_entries else DecisionState.CARRIED_OUT)
            if lost_entries:
                self._ledger.write_decision(decision)
            else:
                self._record_outcome(decision)
        if decision.state is DecisionState.INCOMPLETE:
            logger.warning(
                "! only a part of version %d is in Kafka; the rest of its %d rows is not written, as version %d follows",
                decision.version,
                decision.content.rows,
                self._write.version,
            )
        return decision

    # DECIDE: steps 6a-6e

    def _read_decision(self) -> tuple[Decision | None, _UnfinishedIdsReply | None]:
        """Step 6a, and in the same request round the list of step 6b, if the client already knows the coordinators."""
        questions = whole_list_questions(self.client, self.names)
        if questions is None:
            return self._ledger.fetch_decision(), None
        decision_reply, list_reply = self.client.ask_together(self._ledger.decision_question(), questions.listing)
        return decision_reply.read_answer(), _UnfinishedIdsReply(list_reply, questions.is_whole)

    def _decide(self, old_decision: Decision | None, ids_reply: _UnfinishedIdsReply | None = None) -> Decision:
        """Take steps 6b to 6e. Returns the decision, which is written only if it lists a transaction."""
        recorded_partition_count = self._fence_and_check(old_decision, ids_reply).recorded_partition_count
        decision = self._new_decision(old_decision, self._content, recorded_partition_count)
        if self._open_entries:
            if recorded_partition_count < len(self.reports):
                self._ledger.record_partition_count(len(self.reports))
            self._ledger.write_decision(decision)
        return decision

    def _new_decision(self, old_decision: Decision | None, content: Content, recorded_partition_count: int = 0) -> Decision:
        return Decision(
            version=self._write.version,
            state=DecisionState.DECIDED,
            task_count=len(self.reports),
            max_partition_count=max(recorded_partition_count, self._max_partition_count(old_decision)),
            content=content,
            entries=tuple(self._open_entries.values()),
            earlier=() if old_decision is None else old_decision.earlier_for(self._write.version),
        )

    def _fence_and_check(self, old_decision: Decision | None, ids_reply: _UnfinishedIdsReply | None) -> AllMarkers:
        """Take steps 6b to 6d."""
        if ids_reply is not None:
            try:
                self._fence(ids_reply.read_answer(), set(self._own_entries))
                return self._check(old_decision, ids_reply.is_whole)
            except _NotWholeError as error:
                logger.debug("= listing again: %s", error)
        self._fence_others(old_decision)
        return self._check(old_decision)

    def _check(self, old_decision: Decision | None, list_is_whole: Question[bool] | None = None) -> AllMarkers:
        """Take steps 6c and 6d, side by side, when all others are fenced.

        Raises _NotWholeError if the answer to `list_is_whole` is false.
        """
        extra_questions = () if list_is_whole is None else (list_is_whole,)
        ids = map(self.names.transactional_id, self._own_entries)
        markers_reply, descriptions_reply, decision_reply, *is_whole_replies = self.client.ask_together(
            self._ledger.all_markers_question(self._max_partition_count(old_decision)),
            self.client.describe_transactions_question(ids),
            self._ledger.decision_question(),
            *extra_questions,
        )
        if not all(_is_confirmed(reply) for reply in is_whole_replies):
            raise _NotWholeError("coordinators have moved")
        self._require_no_decision(decision_reply.read_answer())
        markers: AllMarkers = markers_reply.read_answer()
        self._check_schemas(old_decision, [each for each in markers.by_partition.values() if each.version == self._write.version])
        group = self.names.decision_group(self._write.owner)
        check_markers(self.reports, markers.by_partition, group, keeps_first=self.keeps_first)
        self._check_untouched(descriptions_reply)
        return markers

    def _require_no_decision(self, decision: Decision | None) -> None:
        """Fail if another run has decided since step 6a: its markers may not be visible yet."""
        if decision is not None and decision.reaches(self._write.version):
            raise CommitFailedError(
                f"another run has decided on version {decision.version} while this one wrote version {self._write.version}. End"
                " that one: a prefix is for one query or job at a time. Nothing of this run is committed; run the write again"
            )

    def _fence(self, unfinished_ids: Iterable[UnfinishedId], kept_ids: Collection[AttemptId]) -> None:
        """Fence these ids, except those in `kept_ids` and those that a decision protects."""
        attempt_ids = [each.attempt_id for each in unfinished_ids if each.attempt_id not in kept_ids]
        for attempt_id, description in fence_unprotected(self.client, self.names, attempt_ids).items():
            earlier = self._left.get(attempt_id)  # an id that was fenced before says no more where its rows are
            self._left[attempt_id] = description if earlier is None or not earlier.partitions else earlier

    def _fence_others(self, old_decision: Decision | None) -> None:
        """Fence all ids but the reported ones. Step 6d checks whether their tasks still have them, if brokers can tell."""
        unfinished_ids = list_unfinished(self.client, self.names)
        kept_ids = set(self._own_entries)
        if unfinished_ids is None:
            unfinished_ids, kept_ids = self._guess_ids(old_decision), set(self._open_entries)
        self._fence(unfinished_ids, kept_ids)

    def _guess_ids(self, old_decision: Decision | None) -> list[UnfinishedId]:
        return guess_unfinished(self._write.owner, range(self._max_partition_count(old_decision)))

    def _max_partition_count(self, old_decision: Decision | None) -> int:
        """The most Spark partitions of this version and of those before, as far as `old_decision` knows them."""
        return max(len(self.reports), 0 if old_decision is None else old_decision.max_partition_count)

    def _check_schemas(self, old_decision: Decision | None, markers: Sequence[Marker]) -> None:
        """Fail if tasks have encoded with different schemas. `markers`: of this version."""
        schemas = sorted({str(each.content.schemas) for each in self.reports})
        if len(schemas) == 1:
            return
        if markers:
            content = self._content._replace(schemas=markers[0].content.schemas)
            self._ledger.write_decision(self._new_decision(old_decision, content).with_state(DecisionState.INCOMPLETE))
        raise CommitFailedError(
            f"the tasks of version {self._write.version} have encoded their rows with different schemas"
            f" ({'; '.join(schemas)}). {OTHER_SCHEMAS}"
        )

    def _check_untouched(self, reply: Reply[dict[str, TransactionDescription | None]]) -> None:
        """Check the answer of step 6d. Raises AuthorizationError without DESCRIBE, as commits need it to find coordinators."""
        try:
            descriptions = reply.read_answer()
        except UnsupportedVersionError as error:
            logger.warning("! it cannot be checked whether the tasks' transactions are still open: %s", error)
            return
        entries = {self.names.transactional_id(attempt_id): entry for attempt_id, entry in self._own_entries.items()}
        check_untouched(descriptions, entries, map(self.names.transactional_id, self._empty_entries))

    # CARRY OUT: steps 6f-6g

    def _commit_or_fail(self, decision: Decision, beside: Beside[Any] | None = None) -> None:
        """Commit the decided transactions, and wait until they are visible. If rows of them are lost, record that and raise
        CommitFailedError."""
        if lost_entries := self._commit_entries(decision, beside):
            self._fail_incomplete(decision, lost_entries)

    def _commit_entries(self, decision: Decision, beside: Beside[Any] | None = None) -> list[TaskTransaction]:
        """Commit the decided transactions, and wait until they are visible, see decisions.py. Returns what is lost."""
        fate_text = self._fate_text(decision, LEFT_TO_THE_NEXT_RUN, _LEFT_TO_THE_NEXT_WRITE)
        how = Carrying(self._places_of(decision), self._open_partitions, fate_text)
        return commit_entries(self._ledger, decision, how, beside)

    def _places_of(self, decision: Decision) -> WrittenPlaces:
        """Where the rows of a decision are. Of another run's, the ends are not known."""
        is_own = decision.entries == tuple(self._open_entries.values())
        return self.places if is_own else WrittenPlaces(topics=self.places.all_topics)

    def _fail_incomplete(self, decision: Decision, lost_entries: Sequence[TaskTransaction]) -> NoReturn:
        fate_text = self._fate_text(decision, WRITTEN_BY_THE_NEXT_RUN)
        fail_incomplete(self._ledger, decision, lost_entries, fate_text=fate_text)

    def _fate_text(self, decision: Decision, fate_if_named: str, fate_if_unnamed: str = "") -> str:
        """The end of an error's text: what becomes of transactions of the decision that are not committed."""
        if decision.version != self._write.version:
            return (
                "An earlier write has left them so."
                f" Nothing of this one, version {self._write.version}, was committed: run it again"
            )
        return fate_if_named if self.is_named else fate_if_unnamed + _NOT_NAMED

    def _record_outcome(self, decision: Decision) -> None:
        """Record what has become of a version. If that fails, log it: its rows are in Kafka, and the next run finds that out."""
        try:
            self.client.ask(self._ledger.write_decision_question(decision))
        except KafkaError as error:
            logger.warning("! version %d is committed, but that could not be recorded: %s", decision.version, error)

    def _fence_late(self, decision: Decision, list_reply: Reply[list[UnfinishedId]]) -> None:
        """Fence attempts that came too late: their open transactions hold readers back."""
        with self._log_fencing_errors():
            unfinished_ids = self._answer_or_list_again(list_reply)
            if unfinished_ids is None:
                self._fence(self._guess_ids(decision), set(self._own_entries))
            else:
                # Its own transactions are decided, and left alone. An empty task's id with another epoch is another run's.
                self._fence_if_not_ending(unfinished_ids, self._find_still_empty_ids())

    def _settle_left(self) -> None:
        """Take step 6h: settle all that was fenced. The version is committed, whatever comes of it."""
        with self._log_fencing_errors():
            timeout_ms = min(self.client.default_timeout_ms, _SETTLE_LEFT_MS)
            settle_left(self.client, self.names, self._ledger.marker_partition, self._left, self.places, timeout_ms=timeout_ms)

    def _fence_all_but_decided(self, decision: Decision) -> None:
        """The decision of another run holds: fence every open id, also this run's own, except those that the decision lists."""
        kept_ids = {AttemptId(self._write.owner, each.partition, each.number) for each in decision.entries}
        with self._log_fencing_errors():
            unfinished_ids = list_unfinished(self.client, self.names)
            if unfinished_ids is None:
                own_ids = (UnfinishedId(each, TransactionState.ONGOING) for each in self._own_entries)
                unfinished_ids = [*self._guess_ids(decision), *own_ids]
            self._fence_if_not_ending(unfinished_ids, kept_ids)
        self._settle_left()

    def _fence_if_not_ending(self, unfinished_ids: Iterable[UnfinishedId], kept_ids: Collection[AttemptId]) -> None:
        self._fence((each for each in unfinished_ids if each.state not in ENDING), kept_ids)

    @contextlib.contextmanager
    def _log_fencing_errors(self) -> Iterator[None]:
        """Log a KafkaError of the block, which fences, and do not raise it: the version is committed, so the write succeeds."""
        try:
            yield
        except KafkaError as error:
            logger.warning(
                "! version %d is committed, but attempts of its tasks that came too late could not be ended: %s. The next write"
                " with this transactionalIdPrefix ends them, or brokers do after %s; until then readers with"
                " isolation.level=read_committed may wait for them",
                self._write.version,
                error,
                TIMEOUT_OPTION,
            )

    def _answer_or_list_again(self, reply: Reply[list[UnfinishedId]]) -> list[UnfinishedId] | None:
        """Return the ids of the reply, or of a new list if a broker was gone; None if brokers cannot list."""
        try:
            return reply.read_answer()
        except (BrokerGoneError, UnsupportedVersionError) as error:
            logger.debug("= listing again: %s", error)
            return list_unfinished(self.client, self.names, at_once=True)

    def _find_still_empty_ids(self) -> set[AttemptId]:
        """Find the ids of this run's empty tasks that nobody has used since; none if brokers cannot tell."""
        ids = {self.names.transactional_id(each): each for each in self._empty_entries}
        try:
            descriptions = self.client.describe_transactions(ids)
        except UnsupportedVersionError:
            return set()
        entries = {transactional_id: self._empty_entries[attempt_id] for transactional_id, attempt_id in ids.items()}
        return {ids[each] for each, entry in entries.items() if is_untouched(descriptions[each], entry, is_empty=True)}

    # WHAT WAS WRITTEN BEFORE

    def _count_other_rows(self, decision: Decision) -> int:
        """Count the rows that are not in Kafka as the version's: 0 or all. Raises ReplayError and CommitFailedError."""
        version, first_content = self._write.version, decision.content_of(self._write.version)
        if not self.is_named:
            raise CommitFailedError(
                f"this unnamed write was planned at {version} ms by its driver's clock, and one with the same"
                f" transactionalIdPrefix that was planned later, at {decision.version} ms, was committed before: write one after"
                " the other, by clocks that agree. Nothing was written"
            )
        if first_content is not None and any(each.content.schemas != first_content.schemas for each in self.reports):
            raise CommitFailedError(
                f"version {version} is in Kafka with {first_content}, and tasks that had not seen that have encoded their rows"
                f" otherwise. {OTHER_SCHEMAS}"
            )
        if first_content == self._content:
            return 0
        own_text = f"this write of version {version} has {self._content}"
        if first_content is None:
            text = (
                f"{own_text}, and version {decision.version} of the same owner has been committed. What was committed as version"
                f" {version} is not known: it never was as a whole, or more than {MAX_EARLIER_VERSIONS} versions have followed;"
                f" {LOOK_FIRST}"
            )
        else:
            text = f"version {version} is in Kafka with {first_content}, and {own_text}. {WHY_OTHER_ROWS}"
        refuse_other_rows(text, keeps_first=self.keeps_first)
        return self._content.rows


_LEFT_TO_THE_NEXT_WRITE = (
    "They are decided: the next unnamed write with this transactionalIdPrefix commits them, if it comes before"
    f" {TIMEOUT_OPTION} has passed."
)


def _is_confirmed(reply: Reply[bool]) -> bool:
    """Whether the answer is true; False also if the request has failed."""
    try:
        return reply.read_answer()
    except KafkaError:
        return False
