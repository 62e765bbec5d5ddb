"""What the driver does once all tasks have reported: check, decide, commit the tasks' transactions; or give the write up.

    commit()   a  read the decision again; one of this version is carried out instead of making another, one of an earlier
                  version before
               b  a task that found a decision which is gone: fail
               c  fence every id under the prefix that is not in the reports
               d  read the markers of all partitions: one with this version that its task has not seen means other rows
               e  are all transactions of the reports still open? Otherwise fail, before anything is visible
               f  write the decision
               g  commit each transaction
               h  note in the decision what has become of it; fence those who came too late. All is visible then: if one of
                  these fails, a warning is logged, and the write succeeds
    abort()       record that the write is aborted, then fence what is not decided, or what nobody will carry out

A driver decides only after it has ended every transaction of others and found that none of them was committed. Whoever registers
a transactional id later meets the decision, or is fenced. So at most one decision of a version is carried out, by whomever.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.coordination.transactions import End, TransactionState
from spark_kafka_sink.errors import KafkaError, UnsupportedVersionError, printable, printable_list
from spark_kafka_sink.exactly_once.content import total
from spark_kafka_sink.exactly_once.ledger import Decision, Ledger, LedgerError, State
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.unfinished import COMPLETE, Found, guessed, listed, put_to_rest
from spark_kafka_sink.exactly_once.writes import CommitFailedError, Entry, ReplayError, Result, TaskReport

logger = logging.getLogger(__name__)

_TIMEOUT = "kafka.transaction.timeout.ms"
_WHY_GONE = (
    f"they outlasted their time-out ({_TIMEOUT}, at most the brokers' transaction.max.timeout.ms), or another run with the same"
    " transactionalIdPrefix has fenced them: a prefix is for one query or job at a time"
)
_NOT_REPEATED = (
    "This batch write has no name: its repetition is another write, and writes these rows again. With txnAppId and txnVersion it"
    " would write only what is missing"
)


class How(enum.Enum):
    """How a version came to be committed."""

    COMMITTED = "committed"
    ROLLED_FORWARD = "an earlier run had decided on it; its transactions were committed now"
    FOUND = "it had been committed before; nothing was written"
    SUPERSEDED = "a later version had been committed before it; nothing was written"


@dataclass(frozen=True, slots=True)
class Committed:
    """
    Args:
        how: see there.
        skipped: Spark partitions whose rows an earlier run had written; for COMMITTED only.
        fenced: transactional ids that others had left, and that were put to rest.
    """

    how: How
    skipped: int = 0
    fenced: int = 0


class VersionCommit:
    """One commit(), on the driver. Blocks for max.block.ms at most in each of its steps.

    Args:
        reports: of all tasks; at least one, and all of one run.
        marker_topic: see Ledger.
        is_repeated: whether another run may have the same owner, see `abort`. Errors say what is to be done then.
    """

    def __init__(
        self,
        client: TransactionClient,
        names: Names,
        reports: Sequence[TaskReport],
        marker_topic: str,
        *,
        is_repeated: bool = True,
    ) -> None:
        self._client = client
        self._names = names
        self._reports = reports
        self._write = reports[0].write
        self._ledger = Ledger(client, names, self._write.owner, marker_topic)
        self._is_repeated = is_repeated
        self._reported = {each.task_id for each in reports if each.result in (Result.OPEN, Result.EMPTY)}
        self._fenced = 0

    def run(self) -> Committed:
        """
        Raises:
            ReplayError: a part of the version is in Kafka with other rows. Nothing was committed by this call.
            CommitFailedError: see its message; what is decided is carried out by the next run.
            KafkaError: a request failed for good. The next run finds out what was decided.
        """
        self._check_runs()
        version = self._write.version
        decision = self._ledger.decision()
        if decision is not None and decision.reaches(version):
            how = How.FOUND if decision.version == version else How.SUPERSEDED
            if decision.version == version and decision.state is State.DECIDED:
                self._carry_out(decision)
                how = How.ROLLED_FORWARD
            elif decision.version == version and decision.run != self._write.run:
                self._mark(decision)
            # What this run wrote is not needed; what a later version has decided is.
            keep = {TaskId(self._write.owner, each.partition, decision.run, each.attempt) for each in decision.entries}
            self._fence_others(self._listed(decision), keep)
            self._compare(decision)
            return Committed(how, fenced=self._fenced)
        if any(each.result is Result.DECIDED for each in self._reports):
            raise CommitFailedError(
                f"a task found that version {version} was decided, and the decision is gone: group"
                f" {self._names.decision_group(self._write.owner)} was reset or has expired. Nothing was committed; run the"
                " write again"
            )
        if decision is not None and decision.version < version:
            self._settle_earlier(decision)
        decision = self._decide(decision)
        self._carry_out(decision)
        self._fence_late(decision)
        skipped = sum(each.result is Result.SKIPPED for each in self._reports)
        return Committed(How.COMMITTED, skipped, self._fenced)

    def _settle_earlier(self, decision: Decision) -> None:
        """A version that its driver did not finish, and that was not repeated before this one."""
        if decision.state is State.DECIDED:
            self._carry_out(decision)
        elif decision.state is State.TAKEN_OUT:
            logger.warning(
                "! only a part of version %d is in Kafka; the rest of its %d rows is not written, as version %d follows",
                decision.version,
                decision.content.rows,
                self._write.version,
            )

    def _check_runs(self) -> None:
        others = {each.write for each in self._reports} - {self._write}
        if others:
            raise CommitFailedError(
                f"the tasks' reports are of different writes: {printable_list(map(str, [self._write, *others]))}. Nothing was"
                " committed"
            )

    # c-f: DECIDE

    def _decide(self, earlier: Decision | None) -> Decision:
        found = self._listed(earlier)
        self._fence_others(found, keep=self._reported)
        partitions = max(len(self._reports), 0 if earlier is None else earlier.partitions)
        # Ids that others have made may have any number: it stands for itself, and not for all below it.
        used = {each.task.partition for each in found if each.task.owner == self._write.owner}
        self._check_markers(used.union(range(partitions)))
        entries = tuple(each.entry for each in self._reports if each.result is Result.OPEN)
        self._check_open(entries)
        decision = Decision(
            version=self._write.version,
            run=self._write.run,
            state=State.DECIDED,
            tasks=len(self._reports),
            partitions=partitions,
            content=total(each.content for each in self._reports),
            entries=entries,
        )
        if entries:
            self._ledger.write_decision(decision)
        return decision

    def _listed(self, decision: Decision | None) -> list[Found]:
        found = listed(self._client, self._names, self._names.listed)
        if found is not None:
            return found
        runs = [self._write.run, *(() if decision is None else (decision.run,))]
        partitions = range(max(len(self._reports), 0 if decision is None else decision.partitions))
        return [each for run in dict.fromkeys(runs) for each in guessed(self._write.owner, run, partitions)]

    def _fence_others(self, found: Iterable[Found], keep: Collection[TaskId]) -> None:
        """Other owners under the prefix are dead: it belongs to one query or job at a time."""
        self._fenced += len(put_to_rest(self._client, self._names, found, lambda task: task not in keep))

    def _check_markers(self, partitions: Iterable[int]) -> None:
        contents = {each.entry.partition: each.content for each in self._reports}
        skipped = {each.entry.partition for each in self._reports if each.result is Result.SKIPPED}
        markers = self._ledger.markers(sorted(partitions))
        unseen = {
            partition: marker
            for partition, marker in markers.items()
            if marker.version >= self._write.version and partition not in skipped
        }
        what = f"version {self._write.version} is in Kafka already for the Spark partitions {printable_list(unseen)}"
        if any(marker != (self._write.version, contents.get(partition)) for partition, marker in unseen.items()):
            raise ReplayError(
                f"{what}, written by an earlier run; this one has {len(self._reports)} partitions, and its tasks had not seen"
                " that. Nothing of this run is committed. Run the write again with as many partitions and the same rows in each"
                " (spark.sql.shuffle.partitions, repartition, the same input splits), or begin anew with another"
                " transactionalIdPrefix"
            )
        if unseen:
            raise CommitFailedError(
                f"{what}, with the same rows: another run has committed them while this one wrote. End that one: a prefix is for"
                " one query or job at a time. Nothing of this run is committed; the write can be run again, and finds them"
            )

    def _check_open(self, entries: Sequence[Entry]) -> None:
        """So that a time-out is found out before anything is visible. The coordinator is asked, as it ends transactions.

        Raises AuthorizationError where DESCRIBE is missing: without it nobody finds the coordinator that ends them.
        """
        prepared = {entry.partition: entry.prepared(self._names, self._write.owner, self._write.run) for entry in entries}
        try:
            found = self._client.describe_transactions(each.transactional_id for each in prepared.values())
        except UnsupportedVersionError as error:
            logger.warning("! it cannot be checked whether the tasks' transactions are still open: %s", error)
            return
        gone = []
        for partition, each in prepared.items():
            state = found[each.transactional_id]
            identity = (each.producer_id, each.producer_epoch)
            if state is None or state.state != TransactionState.ONGOING or (state.producer_id, state.producer_epoch) != identity:
                gone.append(partition)
        if gone:
            raise CommitFailedError(
                f"the transactions of {len(gone)} of {len(entries)} tasks are not open any more (Spark partitions"
                f" {printable_list(gone)}):"
                f" {_WHY_GONE}. Nothing is visible; the write can be run again"
            )

    # g-h: CARRY OUT

    def _carry_out(self, decision: Decision) -> None:
        owner, is_repeated = self._write.owner, self._is_repeated
        commit_decided(self._client, self._names, self._ledger, owner, decision, is_repeated=is_repeated)
        self._mark(decision)

    def _mark(self, decision: Decision) -> None:
        """Carried out; and what this run had to write of the version, so that another write of this run is told from it."""
        if decision.version == self._write.version and decision.run != self._write.run:
            content = total(each.content for each in self._reports)
            decision = replace(decision, run=self._write.run, replay=None if content == decision.content else content)
        try:
            self._ledger.write_decision(decision.now(State.CARRIED_OUT))
        except KafkaError as error:
            logger.warning("! version %d is committed, but that could not be recorded: %s", decision.version, error)

    def _fence_late(self, decision: Decision) -> None:
        try:
            self._fence_others(self._listed(decision), keep=self._reported)
        except KafkaError as error:
            logger.warning(
                "! version %d is committed, but attempts of its tasks that came too late could not be ended: %s. The next write"
                " with this transactionalIdPrefix ends them, or brokers do after %s; until then readers with"
                " isolation.level=read_committed may wait for them",
                self._write.version,
                error,
                _TIMEOUT,
            )

    def _compare(self, decision: Decision) -> None:
        content = total(each.content for each in self._reports)
        if decision.version > self._write.version:
            logger.warning(
                "! version %d was not written: version %d of the same owner has been committed",
                self._write.version,
                decision.version,
            )
            return
        text = f"version {decision.version} is in Kafka with {decision.content}; this write of it has {content}"
        if decision.run == self._write.run and content != (decision.replay or decision.content):
            raise ReplayError(
                f"{text}. Both are of the same run: two writes of one micro-batch, as in foreachBatch, need a"
                " transactionalIdPrefix each; with txnVersion, each micro-batch needs a number of its own. None of the rows of"
                " this write is in Kafka"
            )
        if content != decision.content:
            logger.warning("! %s. Its rows were not written", text)


def commit_decided(
    client: TransactionClient, names: Names, ledger: Ledger, owner: str, decision: Decision, *, is_repeated: bool = True
) -> None:
    """Commit the transactions that a decision lists. Records nothing if all are committed, and TAKEN_OUT if one is gone.

    Raises CommitFailedError if one could not be committed, or is gone without a marker that says that its rows are in Kafka.
    """
    prepared = {entry: entry.prepared(names, owner, decision.run) for entry in decision.entries}
    outcomes = client.end_transactions(list(prepared.values()), commit=True)
    failed: list[tuple[Entry, KafkaError | None]] = []
    gone: list[Entry] = []
    for entry, each in prepared.items():
        outcome = outcomes[each.transactional_id]
        if outcome.end is End.NOT_OPEN:
            gone.append(entry)
        elif outcome.end is End.FAILED:
            failed.append((entry, outcome.error))
    if failed:
        rest = f"The version is decided: the next run commits what is left. Run it before {_TIMEOUT} has passed"
        raise CommitFailedError(
            f"{len(failed)} of {len(prepared)} transactions of version {decision.version} could not be committed. Readers see the"
            f" others. {rest if is_repeated else _NOT_REPEATED}. The first failed with: {failed[0][1]}"
        )
    lost = _not_in_kafka(ledger, decision, gone)
    if lost:
        ledger.write_decision(decision.now(State.TAKEN_OUT))
        partitions = printable_list(each.partition for each in lost)
        rest = "The next run of this version writes those that are missing, and nothing twice"
        raise CommitFailedError(
            f"{len(lost)} of {len(prepared)} transactions were gone when version {decision.version} was committed (Spark"
            f" partitions {partitions}): {_WHY_GONE}. Readers see the rows of the other partitions."
            f" {rest if is_repeated else _NOT_REPEATED}"
        )


def _not_in_kafka(ledger: Ledger, decision: Decision, gone: Collection[Entry]) -> list[Entry]:
    """Those whose marker does not say that the same rows are in Kafka, by this transaction or another's, or later rows."""
    markers = ledger.markers(each.partition for each in gone) if gone else {}

    def is_lost(entry: Entry) -> bool:
        marker = markers.get(entry.partition)
        return marker is None or (marker != (decision.version, entry.content) and marker.version <= decision.version)

    return [each for each in gone if is_lost(each)]


def roll_forward(client: TransactionClient, names: Names, ledger: Ledger, owner: str) -> Decision | None:
    """Carry out what is decided of an owner whose query never runs again, as its next run would.

    Nothing else may work for this owner meanwhile: a version that it decides could be overwritten here.

    Returns:
        The decision that was carried out; None if there is none to carry out.

    Raises:
        CommitFailedError, KafkaError: as VersionCommit.run.
    """
    decision = ledger.decision()
    if decision is None or decision.state is not State.DECIDED:
        return None
    commit_decided(client, names, ledger, owner, decision)
    ledger.write_decision(decision.now(State.CARRIED_OUT))
    return decision


def abort(
    client: TransactionClient,
    names: Names,
    marker_topic: str,
    owner: str | None,
    write: str | None,
    *,
    is_repeated: bool = True,
) -> int:
    """Give a write up: none of its transactions can be committed from here on, unless its version is decided.

    An owner whose decision cannot be read is left alone, with a warning: what it has left open may be decided.

    Args:
        owner: of the write; None when no task has reported it.
        write: what its tasks look for before they write; None when no task has reported it.
        is_repeated: whether another run may have the same owner. If not, nobody would carry out a decision of it: what it has
            left open is fenced as well, so that it does not hold readers back.

    Returns:
        How many transactional ids were fenced.
    """
    if write is not None:
        Ledger(client, names, owner or "", marker_topic).record_abort(write)
    found = listed(client, names, names.listed)
    if found is None:
        return 0
    decided: set[TaskId] = set()
    unreadable: set[str] = set()
    # A job's df.write leaves an owner each time: those whose transactions are complete are not looked at.
    owners = dict.fromkeys(task.task.owner for task in found if task.state not in COMPLETE)
    for each in owners:
        if each == owner and not is_repeated:
            continue
        try:
            decision = Ledger(client, names, each, marker_topic).decision()
        except LedgerError as error:
            logger.warning("! transactions of owner %s are left as they are: %s", printable(each), error)
            unreadable.add(each)
            continue
        if decision is not None:
            decided.update(TaskId(each, entry.partition, decision.run, entry.attempt) for entry in decision.entries)
    return len(put_to_rest(client, names, found, lambda task: task not in decided and task.owner not in unreadable))
