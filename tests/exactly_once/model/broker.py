"""The brokers, as far as the protocol sees them: transactional ids, offsets of groups, and the rows that readers see.

Each method is one request. It returns the broker as it is afterwards, and the answer; the broker itself never changes, so that
states can be compared and kept. `complete` and `time_out` are what brokers do by themselves.

Answers follow TransactionCoordinator.scala of Kafka 4.3 (KIP-98, KIP-360, KIP-890). Epochs never run out; nothing expires.

A place is where a transaction has records: a partition with rows, or the group of its marker. When a transaction ends, each place
gets a control record, which decides about all open records of the transactional id there. A control record that never comes is
the fault KAFKA-20734: the coordinator says that the transaction is complete, and its records hang until the next control record.
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


# Whose time-out an id has: that tells who took it last.
TakenBy = Literal["task", "taker", "fencer"]
TASK: Final = "task"
TAKER: Final = "taker"  # a task that does not know yet whether somebody has had the id meanwhile
FENCER: Final = "fencer"

Place = str
MARKER_PLACE: Final = "marker"


def place_of(row: str) -> Place:
    """The partition in which a row is: rows with one letter are in one partition, whatever their version."""
    return row.partition("/")[0][-1]


class TransactionalId(NamedTuple):
    partition: int  # Spark's
    stage: int  # Spark's stage attempt
    attempt: int
    slot: int = 1

    def __repr__(self) -> str:
        numbers = (self.partition, self.stage, self.attempt) if self.stage else (self.partition, self.attempt)
        slot = f" slot {self.slot}" if self.slot > 1 else ""
        return "-".join(map(str, numbers)) + slot

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
    places: tuple[Place, ...] = ()  # of the transaction; while it ends, those that have no control record yet
    taken_by: TakenBy = TASK
    last_epoch: int = -1  # the one before: an InitProducerId that expects it counts as repeated, and gets the current one


class Hanging(NamedTuple):
    """Open records of a transactional id in a place whose control record was skipped."""

    id: TransactionalId
    place: Place
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
    hanging: tuple[Hanging, ...] = ()
    transaction_version: int = 2
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
        ) or any(each.marker is not None and each.id.partition == partition for each in self.hanging)

    def hanging_places(self, id_: TransactionalId) -> tuple[Place, ...]:
        """Where DescribeProducers, or OffsetFetch with require_stable, shows open records of an id that has none open."""
        return tuple(each.place for each in self.hanging if each.id == id_)

    def overflow_in(self, slot: int) -> tuple[Entry, ...] | None:
        return next((entries for each, entries in self.overflow if each == slot), None)

    # REQUESTS

    def init_producer_id(
        self, id_: TransactionalId, *, taken_by: TakenBy = TASK, expected: int | None = None
    ) -> tuple[Broker, int | None]:
        """The new epoch; None for CONCURRENT_TRANSACTIONS: ask again. `expected`: the epoch that the id is to have (KIP-360); the
        answer is -1 if it has another one. An open transaction is aborted whatever epoch is expected. An id that is expected to
        be unknown (-1) is left alone if it is known: the request has a producer id that nobody has."""
        transaction = self.transaction(id_)
        if expected == -1 and transaction is not None:
            return self, -1
        if transaction is None:
            return self._with(ModelTransaction(id_, 0, EMPTY, taken_by=taken_by)), 0
        if transaction.state in PREPARED:
            return self, None
        if transaction.state == ONGOING:
            return self.time_out(id_), None
        if expected not in (None, transaction.epoch, transaction.last_epoch):
            return self, -1
        epoch, last_epoch = transaction.epoch, transaction.last_epoch
        if expected is None or expected == transaction.epoch:
            epoch, last_epoch = epoch + 1, -1 if expected is None else expected
        return self._with(ModelTransaction(id_, epoch, EMPTY, taken_by=taken_by, last_epoch=last_epoch)), epoch

    def write(self, id_: TransactionalId, epoch: int, rows: Rows = (), marker: ModelMarker | None = None) -> tuple[Broker, int]:
        """Produce, or TxnOffsetCommit."""
        broker, error = self.add(id_, epoch, (*map(place_of, rows), *((MARKER_PLACE,) if marker else ())))
        transaction = broker.transaction(id_)
        if error or transaction is None:
            return self, error
        rows = tuple(sorted({*transaction.rows, *rows}))  # a repeated batch is recognized by its sequence
        return broker._with(transaction._replace(rows=rows, marker=marker or transaction.marker)), NONE

    def add(self, id_: TransactionalId, epoch: int, places: tuple[Place, ...]) -> tuple[Broker, int]:
        """AddPartitionsToTxn and AddOffsetsToTxn: begins the transaction if it is not open."""
        transaction = self.transaction(id_)
        if transaction is None:
            return self, INVALID_PRODUCER_ID_MAPPING
        if transaction.state in PREPARED:  # while control records are being written everybody is told to wait
            return self, CONCURRENT_TRANSACTIONS
        if transaction.epoch != epoch:
            return self, INVALID_PRODUCER_EPOCH
        if transaction.state != ONGOING:
            transaction = transaction._replace(state=ONGOING, rows=(), marker=None, places=())
        return self._with(transaction._replace(places=tuple(sorted({*transaction.places, *places})))), NONE

    def end(self, id_: TransactionalId, epoch: int, *, commit: bool) -> tuple[Broker, int]:
        """EndTxn. With transaction version 2 its epoch is one behind when it is repeated."""
        transaction = self.transaction(id_)
        if transaction is None:
            return self, INVALID_PRODUCER_ID_MAPPING
        bump = 1 if self.transaction_version == 2 else 0
        if transaction.state in PREPARED and (bump or transaction.epoch == epoch):  # of any epoch with 2
            return self, CONCURRENT_TRANSACTIONS
        if transaction.state in COMPLETE and transaction.epoch == epoch + bump:
            return self, NONE if transaction.state == (COMPLETE_COMMIT if commit else COMPLETE_ABORT) else INVALID_TXN_STATE
        if transaction.epoch != epoch:
            return self, PRODUCER_FENCED
        if transaction.state != ONGOING and (commit or self.transaction_version == 1):
            return self, INVALID_TXN_STATE
        state: State = PREPARE_COMMIT if commit else PREPARE_ABORT
        last_epoch = epoch if bump else transaction.last_epoch
        return self._with(transaction._replace(epoch=epoch + bump, state=state, last_epoch=last_epoch)), NONE

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
        """The control records come to all places that do not have theirs yet."""
        broker = self
        transaction = self.transaction(id_)
        assert transaction is not None
        for place in transaction.places:
            broker = broker.control(id_, place)
        return broker if transaction.places else broker._when_complete(id_)

    def control(self, id_: TransactionalId, place: Place, *, is_skipped: bool = False) -> Broker:
        """The control record comes to one place, and decides about all that is open there; or it is skipped, and never comes."""
        transaction = self.transaction(id_)
        assert transaction is not None
        own = Hanging(
            id_,
            place,
            tuple(row for row in transaction.rows if place_of(row) == place),
            transaction.marker if place == MARKER_PLACE else None,
        )
        before = [each for each in self.hanging if (each.id, each.place) == (id_, place)]
        rows = tuple(sorted(row for each in (*before, own) for row in each.rows))
        marker = next((each.marker for each in (own, *before) if each.marker is not None), None)
        others = tuple(each for each in self.hanging if each not in before)
        after = self._replace(hanging=others)
        if is_skipped:
            if rows or marker is not None:
                after = after._replace(hanging=tuple(sorted((*others, Hanging(id_, place, rows, marker)), key=_place)))
        elif transaction.state == PREPARE_COMMIT:
            if marker is not None:
                after = after.commit_marker(id_.partition, marker)
            after = after._replace(visible=tuple(sorted(after.visible + rows)))
        places = tuple(each for each in transaction.places if each != place)
        return after._with(transaction._replace(places=places))._when_complete(id_)

    def _when_complete(self, id_: TransactionalId) -> Broker:
        transaction = self.transaction(id_)
        assert transaction is not None
        if transaction.places:
            return self
        state: State = COMPLETE_COMMIT if transaction.state == PREPARE_COMMIT else COMPLETE_ABORT
        return self._with(transaction._replace(state=state, rows=(), marker=None))

    def time_out(self, id_: TransactionalId) -> Broker:
        """An open transaction is older than its transaction.timeout.ms, or is fenced. It gets an epoch that no producer has."""
        transaction = self.transaction(id_)
        assert transaction is not None
        last_epoch = transaction.epoch if self.transaction_version == 2 else -1
        return self._with(transaction._replace(epoch=transaction.epoch + 1, state=PREPARE_ABORT, last_epoch=last_epoch))

    def _with(self, transaction: ModelTransaction) -> Broker:
        others = [each for each in self.transactions if each.id != transaction.id]
        return self._replace(transactions=tuple(sorted([*others, transaction], key=_id)))


def _id(transaction: ModelTransaction) -> TransactionalId:
    return transaction.id


def _place(hanging: Hanging) -> tuple[TransactionalId, Place]:
    return hanging.id, hanging.place
