"""The brokers, as far as the protocol sees them: transactional ids, offsets of groups, and the rows that readers see.

Each method is one request. It returns the broker as it is afterwards, and the answer; the broker itself never changes, so that
states can be compared and kept. `complete` and `time_out` are what brokers do by themselves.

Answers follow TransactionCoordinator.scala of Kafka 4.3 (KIP-98, KIP-360, KIP-890). Rows and marker of a transaction appear
together; epochs never run out; nothing expires.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Rows = tuple[str, ...]


def encoded(rows: Rows, schema: int) -> Rows:
    """The content that rows have as records: another one with each schema that they are encoded with. Schema 0 adds nothing."""
    return tuple(f"{row}/{schema}" for row in rows) if schema else rows


def is_of_one_schema(content: Rows) -> bool:
    return len({row.partition("/")[2] for row in content}) <= 1


# States of a transactional id.
State = Literal["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
EMPTY: Final = "Empty"
ONGOING: Final = "Ongoing"
PREPARE_COMMIT: Final = "PrepareCommit"
PREPARE_ABORT: Final = "PrepareAbort"
COMPLETE_COMMIT: Final = "CompleteCommit"
COMPLETE_ABORT: Final = "CompleteAbort"
PREPARED: Final = (PREPARE_COMMIT, PREPARE_ABORT)
COMPLETE: Final = (COMPLETE_COMMIT, COMPLETE_ABORT)

# Error codes.
NONE: Final = 0
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
CONCURRENT_TRANSACTIONS: Final = 51
PRODUCER_FENCED: Final = 90

# States of a decision.
DecisionState = Literal["decided", "carried out", "incomplete"]
DECIDED: Final = "decided"
CARRIED_OUT: Final = "carried out"
INCOMPLETE: Final = "incomplete"


class TransactionalId(NamedTuple):
    partition: int  # Spark's
    stage: int  # Spark's stage attempt
    attempt: int

    def __repr__(self) -> str:
        return "-".join(map(str, self if self.stage else (self.partition, self.attempt)))

    def __str__(self) -> str:
        return repr(self)


class ModelMarker(NamedTuple):
    """What a task commits as the offset of its partition's group."""

    version: int
    content: Rows
    schema: int | None = 0  # with which the rows are encoded; None if it is not recorded


class ModelTransaction(NamedTuple):
    """A transactional id and its latest transaction."""

    id: TransactionalId
    epoch: int
    state: State
    rows: Rows = ()
    marker: ModelMarker | None = None


class Entry(NamedTuple):
    """A task's transaction, as a decision lists it."""

    partition: int
    id: TransactionalId
    epoch: int
    content: Rows


class Earlier(NamedTuple):
    """What a decision remembers of a version before."""

    version: int
    content: Rows
    schema: int | None = 0


class Decision(NamedTuple):
    """
    Args:
        slot: the overflow groups that hold the entries; `entries` then stands for their digest.
        earlier: the contents of versions before this one.
        schema: with which the rows of all tasks are encoded; None if it is not recorded.
    """

    version: int
    state: DecisionState
    content: Rows
    entries: tuple[Entry, ...] = ()
    slot: int | None = None
    earlier: tuple[Earlier, ...] = ()
    schema: int | None = 0

    def of(self, version: int) -> Earlier | None:
        """None if it is not known: the version was never decided, or only a part of it is in Kafka."""
        versions = (*self.earlier, Earlier(self.version, self.content, self.schema))
        return next((each for each in versions if each.version == version), None)

    def after(self, *, keeps_schema: bool) -> tuple[Earlier, ...]:
        """`earlier` of the decision that follows."""
        schema = self.schema if keeps_schema else None
        return self.earlier if self.state == INCOMPLETE else (*self.earlier, Earlier(self.version, self.content, schema))


class Broker(NamedTuple):
    transactions: tuple[ModelTransaction, ...] = ()
    visible: Rows = ()  # to read_committed readers
    markers: tuple[ModelMarker | None, ...] = (None, None)  # by partition
    decision: Decision | None = None
    overflow: tuple[tuple[int, tuple[Entry, ...]], ...] = ()
    aborted: int = 0  # the record that writes were aborted: those which were planned before this number
    width: int = 0  # the most partitions that any version has had; it only grows
    # What the invariants ask for, and the protocol does not: versions that were ever decided, and that were ever incomplete.
    ever_decided: tuple[int, ...] = ()
    ever_incomplete: tuple[int, ...] = ()

    # WHAT IS ASKED

    def transaction(self, id_: TransactionalId) -> ModelTransaction | None:
        for each in self.transactions:
            if each.id == id_:
                return each
        return None

    def has_pending_marker(self, partition: int) -> bool:
        """Whether OffsetFetch with require_stable would answer UNSTABLE_OFFSET_COMMIT."""
        return any(
            each.marker is not None and each.id.partition == partition and each.state in (ONGOING, *PREPARED)
            for each in self.transactions
        )

    def overflow_in(self, slot: int) -> tuple[Entry, ...] | None:
        return next((entries for each, entries in self.overflow if each == slot), None)

    # REQUESTS

    def init_producer_id(self, id_: TransactionalId) -> tuple[Broker, int | None]:
        """The new epoch; None for CONCURRENT_TRANSACTIONS: ask again."""
        transaction = self.transaction(id_)
        if transaction is None:
            return self._with(ModelTransaction(id_, 0, EMPTY)), 0
        if transaction.state in PREPARED:
            return self, None
        if transaction.state == ONGOING:
            return self._with(transaction._replace(epoch=transaction.epoch + 1, state=PREPARE_ABORT)), None
        epoch = transaction.epoch + 1
        return self._with(ModelTransaction(id_, epoch, EMPTY)), epoch

    def write(self, id_: TransactionalId, epoch: int, rows: Rows = (), marker: ModelMarker | None = None) -> tuple[Broker, int]:
        """Produce, or TxnOffsetCommit."""
        transaction = self.transaction(id_)
        if transaction is None:
            return self, INVALID_PRODUCER_ID_MAPPING
        if transaction.state in PREPARED:  # while markers are being written everybody is told to wait
            return self, CONCURRENT_TRANSACTIONS
        if transaction.epoch != epoch:
            return self, INVALID_PRODUCER_EPOCH
        if transaction.state != ONGOING:
            transaction = ModelTransaction(id_, epoch, ONGOING)
        rows = tuple(sorted({*transaction.rows, *rows}))  # a repeated batch is recognized by its sequence
        return self._with(transaction._replace(rows=rows, marker=marker or transaction.marker)), NONE

    def end(self, id_: TransactionalId, epoch: int, *, commit: bool, transaction_version: int) -> tuple[Broker, int]:
        """EndTxn. With transaction version 2 its epoch is one behind when it is repeated."""
        transaction = self.transaction(id_)
        if transaction is None:
            return self, INVALID_PRODUCER_ID_MAPPING
        bump = 1 if transaction_version == 2 else 0
        is_complete = transaction.state in COMPLETE
        if (is_complete or transaction.state in PREPARED) and transaction.epoch == epoch + bump:
            if transaction.state not in ((PREPARE_COMMIT, COMPLETE_COMMIT) if commit else (PREPARE_ABORT, COMPLETE_ABORT)):
                return self, INVALID_TXN_STATE
            return self, NONE if is_complete else CONCURRENT_TRANSACTIONS
        if transaction.epoch != epoch or transaction.state in PREPARED:
            return self, PRODUCER_FENCED
        if transaction.state != ONGOING and (commit or transaction_version == 1):
            return self, INVALID_TXN_STATE
        return self._with(transaction._replace(epoch=epoch + bump, state=PREPARE_COMMIT if commit else PREPARE_ABORT)), NONE

    def park(self, id_: TransactionalId, epoch: int, *, transaction_version: int) -> Broker:
        """EndTxn(abort) of an id that was fenced at this epoch: it is complete, and not listed again. An Empty one cannot be
        aborted in transaction version 1: AddOffsetsToTxn begins its transaction first. Nothing happens if somebody else has taken
        the id meanwhile.
        """
        transaction = self.transaction(id_)
        if transaction is None or (transaction.epoch, transaction.state) != (epoch, EMPTY):
            return self
        bump = 1 if transaction_version == 2 else 0
        return self._with(transaction._replace(epoch=epoch + bump, state=PREPARE_ABORT))

    def commit_marker(self, partition: int, marker: ModelMarker) -> Broker:
        """OffsetCommit, outside of any transaction."""
        markers = list(self.markers)
        markers[partition] = marker
        return self._replace(markers=tuple(markers))

    def commit_decision(self, decision: Decision) -> Broker:
        decided, incomplete = set(self.ever_decided), set(self.ever_incomplete)
        {DECIDED: decided, INCOMPLETE: incomplete}.get(decision.state, set()).add(decision.version)
        return self._replace(decision=decision, ever_decided=tuple(sorted(decided)), ever_incomplete=tuple(sorted(incomplete)))

    def entries_of(self, decision: Decision) -> tuple[Entry, ...] | None:
        """None if the overflow groups that hold them were overwritten."""
        if decision.slot is None or self.overflow_in(decision.slot) == decision.entries:
            return decision.entries
        return None

    def commit_overflow(self, slot: int, entries: tuple[Entry, ...]) -> Broker:
        return self._replace(overflow=tuple(sorted([(slot, entries), *(each for each in self.overflow if each[0] != slot)])))

    def commit_abort(self, planned: int) -> Broker:
        """What was planned before is aborted. It is a time, and drivers on one machine have one clock."""
        return self._replace(aborted=planned)

    def commit_width(self, partitions: int) -> Broker:
        """A group for each power of two, which is written once: together they are a maximum."""
        return self._replace(width=max(self.width, partitions))

    # WHAT BROKERS DO BY THEMSELVES

    def complete(self, id_: TransactionalId) -> Broker:
        """The end of a transaction reaches all its partitions."""
        transaction = self.transaction(id_)
        assert transaction is not None
        committed = transaction.state == PREPARE_COMMIT
        after = self._with(ModelTransaction(id_, transaction.epoch, COMPLETE_COMMIT if committed else COMPLETE_ABORT))
        if not committed:
            return after
        if transaction.marker is not None:
            after = after.commit_marker(id_.partition, transaction.marker)
        return after._replace(visible=tuple(sorted(self.visible + transaction.rows)))

    def time_out(self, id_: TransactionalId) -> Broker:
        """An open transaction is older than its transaction.timeout.ms."""
        transaction = self.transaction(id_)
        assert transaction is not None
        return self._with(transaction._replace(epoch=transaction.epoch + 1, state=PREPARE_ABORT))

    def _with(self, transaction: ModelTransaction) -> Broker:
        others = [each for each in self.transactions if each.id != transaction.id]
        return self._replace(transactions=tuple(sorted([*others, transaction], key=_id)))


def _id(transaction: ModelTransaction) -> TransactionalId:
    return transaction.id
