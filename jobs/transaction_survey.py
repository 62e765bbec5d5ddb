"""What brokers and the ledger know of a prefix's transactional ids, at one moment.

Part of `transactions`. Reads only. Ids that begin alike but are of another prefix are left out, see exactly_once/names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.coordination.transactions import TransactionDescription, TransactionState
from spark_kafka_sink.errors import AuthorizationError, KafkaError, printable
from spark_kafka_sink.exactly_once.ledger import Decision, Ledger, LedgerError, State
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.unfinished import COMPLETE, FENCED_TIMEOUT_MS
from spark_kafka_sink.protocol.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"  # where markers go; a transaction's partitions of it say nothing about its rows

# The owner's decision: None, there is none; an error, why that is not known.
KnownDecision = Decision | KafkaError | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id. Times are milliseconds, by this machine's clock."""

    task: TaskId
    known: TransactionDescription
    seen_ms: int  # since 1970-01-01 UTC
    decision: KnownDecision = None  # the last one of its owner
    decided_version: int | None = None  # the version that it is a part of, if that is to be committed and has not been

    @property
    def transactional_id(self) -> str:
        return self.known.transactional_id

    @property
    def state(self) -> str:
        return self.known.state

    @property
    def owner(self) -> str:
        return unquote(self.task.owner)

    @property
    def run(self) -> str:
        return unquote(self.task.run)

    @property
    def is_decided(self) -> bool:
        return self.is_ongoing and self.decided_version is not None

    @property
    def was_fenced(self) -> bool:
        """By `abort` or a later run, which aborted what was open. When that was, brokers do not tell."""
        return self.is_empty and self.known.timeout_ms == FENCED_TIMEOUT_MS

    @property
    def is_complete(self) -> bool:
        """Or aborted or fenced: nothing is open, and whoever had the id can write nothing more under it."""
        return self.state in COMPLETE or self.was_fenced

    @property
    def is_empty(self) -> bool:
        """Its task has begun and written nothing yet, or has been fenced."""
        return self.state == TransactionState.EMPTY

    @property
    def is_ongoing(self) -> bool:
        return self.state == TransactionState.ONGOING

    @property
    def age_ms(self) -> int | None:
        """Since the transaction's first request. Clocks differ: it is never negative."""
        return None if self.known.start_time_ms is None else max(0, self.seen_ms - self.known.start_time_ms)

    @property
    def time_left_ms(self) -> int | None:
        """Until brokers abort it by themselves; below zero when that is due. None for one that is not ongoing."""
        return None if self.age_ms is None or not self.is_ongoing else self.known.timeout_ms - self.age_ms

    @property
    def written(self) -> list[TopicPartition]:
        """The partitions that have rows of it, in order."""
        return sorted(each for each in self.known.partitions if each.topic != OFFSETS_TOPIC)


@dataclass(frozen=True, slots=True)
class Survey:
    """
    Args:
        states: of every id of the prefix.
        transactions: all that are not complete, and the complete ones that began lately; oldest first, open ones before.
        seen_ms: since 1970-01-01 UTC.
        warning: what may be missing here, and why.
        fenced: how many ids were fenced; none of them is among `transactions`.
        known_prefixes: of other writes; looked for if there is no id of this prefix.
    """

    states: Mapping[TaskId, str]
    transactions: tuple[Transaction, ...]
    seen_ms: int
    warning: str = ""
    fenced: int = 0
    known_prefixes: tuple[str, ...] = ()

    @property
    def unfinished(self) -> list[Transaction]:
        return [each for each in self.transactions if not each.is_complete]

    @property
    def others(self) -> int:
        """How many ids are complete, and not among `transactions`."""
        return len(self.states) - len(self.transactions) - self.fenced


def survey(client: TransactionClient, names: Names, wall_ms: Callable[[], int], recent_ms: int = 0) -> Survey:
    """Look at all ids of the prefix. Blocks for some requests, max.block.ms for each kind of them.

    Args:
        wall_ms: the time since 1970-01-01 UTC.
        recent_ms: complete transactions are described if they began no longer ago than this; 0: none is.

    Raises:
        KafkaError: the brokers cannot be asked; AuthorizationError: nothing is listed, and listing takes a permission.
    """
    listed = {names.parse(each.transactional_id): each for each in client.list_transactions(names.listed)}
    states = {task: each.state for task, each in listed.items() if task is not None}
    warning = _what_is_hidden(client, names, has_found=bool(states))
    ids = {names.transactional_id(task): task for task, state in states.items() if recent_ms or state not in COMPLETE}
    described = client.describe_transactions(ids)
    seen_ms = wall_ms()
    found = []
    fenced = 0
    for transactional_id, known in described.items():
        if known is None:  # forgotten since it was listed
            del states[ids[transactional_id]]
            continue
        states[ids[transactional_id]] = known.state
        each = Transaction(ids[transactional_id], known, seen_ms)
        fenced += each.was_fenced
        if not each.is_complete or (each.age_ms is not None and each.age_ms <= recent_ms):
            found.append(each)
    have_committed = {task.owner for task, state in states.items() if state == TransactionState.COMPLETE_COMMIT}
    decisions = _decisions(client, names, {each.task.owner for each in found}, have_committed)
    found = _with_decisions(found, names, decisions)
    known_prefixes = () if states else _known_prefixes(client, names)
    return Survey(states, tuple(sorted(found, key=_order)), seen_ms, warning, fenced, known_prefixes)


def _known_prefixes(client: TransactionClient, names: Names) -> tuple[str, ...]:
    """Of all ids that look like those of a task, as far as the user may see them. Sorted."""
    ids = [each.transactional_id for each in client.list_transactions("", probed=names.listed)]
    begins = {each: each.rsplit("-", 4)[0] for each in ids}
    return tuple(sorted({begin for each, begin in begins.items() if Names(begin).parse(each) is not None}))


def _order(each: Transaction) -> tuple[bool, bool, int, TaskId]:
    return each.is_complete, each.is_empty, -(each.age_ms or 0), each.task


def _what_is_hidden(client: TransactionClient, names: Names, *, has_found: bool) -> str:
    """Brokers list without a word only what the user may describe. Raises AuthorizationError when that may be why nothing was."""
    try:
        client.describe_transactions([names.listed])
    except AuthorizationError as error:
        if not has_found:
            raise
        return f"transactional ids that the user may not DESCRIBE are left out: {error}"
    return ""


def _decisions(
    client: TransactionClient, names: Names, owners: Iterable[str], have_committed: Collection[str]
) -> dict[str, KnownDecision]:
    """By owner. Brokers hide offsets of topics that the user may not describe. An owner that has committed must have had a
    decision."""
    owners = list(owners)
    try:
        ledgers = ledgers_of(client, names, owners)
    except KafkaError as error:
        return dict.fromkeys(owners, error)
    found: dict[str, KnownDecision] = {}
    for owner, ledger in ledgers.items():
        found[owner] = None if ledger is None else _decision(ledger)
        if ledger is None and owner in have_committed:
            found[owner] = LedgerError(
                f"transactions of this owner were committed, and group {printable(names.decision_group(owner))} shows no"
                " decision: it has expired, or the user may not describe the topic of the markers. Grant the user READ on it"
                " (option markerTopic, or topic)"
            )
    return found


def ledgers_of(client: TransactionClient, names: Names, owners: Iterable[str]) -> dict[str, Ledger | None]:
    """By owner; None for one without a decision. It is kept under the topic of the markers, which its offset tells.

    Raises KafkaError.
    """
    groups = {owner: names.decision_group(owner) for owner in owners}
    offsets = client.fetch_offsets(dict.fromkeys(groups.values()), require_stable=False)
    found: dict[str, Ledger | None] = {}
    for owner, group in groups.items():
        places = sorted(offsets[group], key=lambda place: offsets[group][place].offset)
        found[owner] = Ledger(client, names, owner, places[-1].topic) if places else None
    return found


def _with_decisions(found: Iterable[Transaction], names: Names, decisions: Mapping[str, KnownDecision]) -> list[Transaction]:
    versions: dict[tuple[str, int, int], int] = {}  # transactional id, producer id, epoch
    for owner, decision in decisions.items():
        if isinstance(decision, Decision) and decision.state is State.DECIDED:
            prepared = (each.prepared(names, owner, decision.run) for each in decision.entries)
            versions.update(dict.fromkeys(((each[0], each[1], each[2]) for each in prepared), decision.version))
    return [
        replace(
            each,
            decision=decisions[each.task.owner],
            decided_version=versions.get((each.transactional_id, each.known.producer_id, each.known.producer_epoch)),
        )
        for each in found
    ]


def _decision(ledger: Ledger) -> KnownDecision:
    try:
        return ledger.decision()
    except KafkaError as error:
        return error
