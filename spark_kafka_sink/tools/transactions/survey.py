"""What brokers and the ledger know of a prefix's transactional ids, at one moment.

Reads only. Ids that begin alike but are of another prefix are left out (exactly_once/names.py parses them). Complete ids are
left out, too, unless they are asked for, or hang (hanging.py), or a decision lists them that is not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_kafka_sink.admin.leaders import ActiveProducer
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import AuthorizationError, KafkaError, ResponseTooLargeError, printable, printable_list
from spark_kafka_sink.exactly_once.decisions import decisions_of
from spark_kafka_sink.exactly_once.fencing import COMPLETE, TAKING_TIMEOUT_MS, UNFINISHED, is_taken_by_fencer
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState, LedgerError
from spark_kafka_sink.exactly_once.names import FIELDS_AFTER_PREFIX, AttemptId, PrefixNames, unescape_name
from spark_kafka_sink.exactly_once.settling import Fate, fate_of
from spark_kafka_sink.exactly_once.writes import TaskTransaction
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions.hanging import Hanging, HangingLook

OFFSETS_TOPIC = "__consumer_offsets"  # where markers go: its partitions say nothing about the rows of a transaction

OPEN = tuple(each for each in UNFINISHED if each not in COMPLETE)

# The decision of an owner. None: there is none. An error says why it is not known.
KnownDecision = Decision | KafkaError | None


@dataclass(frozen=True, slots=True)
class SurveyedTransaction:
    """One transactional id, its transaction and its owner's decision. Times are milliseconds, by this machine's clock."""

    attempt_id: AttemptId
    description: TransactionDescription
    surveyed_ms: int  # since 1970-01-01 UTC
    decision: KnownDecision = None  # the last one of its owner
    decided_version: int | None = None  # of the decision that lists the id, if it is not carried out
    decided_entry: TaskTransaction | None = None  # the transaction that this decision lists
    open_rows: Mapping[TopicPartition, ActiveProducer] = field(default_factory=dict)  # where rows hang
    is_marker_pending: bool = False  # nobody else's transaction is known that could hold the marker
    suspicious: frozenset[TopicPartition] = frozenset()  # where rows may hang: readers stand still, and nobody may see why

    @property
    def transactional_id(self) -> str:
        return self.description.transactional_id

    @property
    def state(self) -> str:
        return self.description.state

    @property
    def identity(self) -> ProducerIdentity:
        return self.description.identity

    @property
    def owner(self) -> str:
        return unescape_name(self.attempt_id.owner)

    @property
    def fate(self) -> Fate | None:
        """What has become of the transaction that a decision lists. None: no decision lists the id that is not carried out."""
        return None if self.decided_entry is None else fate_of(self.description, self.decided_entry)

    @property
    def known_version(self) -> int | None:
        """The version that the transaction is a part of, open or committed; None if no decision says so."""
        return self.decided_version if self.fate in (Fate.OPEN, Fate.COMMITTED) else None

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is open and decided; also if it is the repetition of a decided commit."""
        return self.is_ongoing and self.known_version is not None

    @property
    def is_repetition(self) -> bool:
        """Whether a commit is being repeated: rows of the decided transaction hang, and an abort would lose them."""
        return self.is_ongoing and self.fate is Fate.COMMITTED

    @property
    def hangs(self) -> bool:
        """Whether rows or a marker hang, although the coordinator says that nothing is open."""
        return bool(self.open_rows or self.is_marker_pending)

    @property
    def may_hang(self) -> bool:
        return self.hangs or bool(self.suspicious)

    @property
    def is_aborted(self) -> bool:
        """Whether the last transaction was aborted: by brokers, or by who has fenced the id, or is taking it."""
        is_taken = is_taken_by_fencer(self.description) or self.description.timeout_ms == TAKING_TIMEOUT_MS
        return self.state == TransactionState.COMPLETE_ABORT or (self.is_empty and is_taken)

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction of the id was committed or aborted, and none is open."""
        return self.state in COMPLETE

    @property
    def is_empty(self) -> bool:
        """Whether the task has written nothing yet (at work or dead), had no rows, or was fenced."""
        return self.state == TransactionState.EMPTY

    @property
    def is_ongoing(self) -> bool:
        return self.state == TransactionState.ONGOING

    @property
    def age_ms(self) -> int | None:
        """The time since the transaction's first request; 0 if the brokers' clocks are ahead."""
        return None if self.description.start_time_ms is None else max(0, self.surveyed_ms - self.description.start_time_ms)

    @property
    def time_left_ms(self) -> int | None:
        """The time until brokers abort the transaction; below zero when the abort is due. None if it is not ongoing."""
        return None if self.age_ms is None or not self.is_ongoing else self.description.timeout_ms - self.age_ms

    @property
    def written_partitions(self) -> list[TopicPartition]:
        """The partitions to which the transaction has written rows, or where its rows hang or may hang, in order."""
        partitions = self.open_rows.keys() or self.suspicious or self.description.partitions
        return sorted(each for each in partitions if each.topic != OFFSETS_TOPIC)


@dataclass(frozen=True, slots=True)
class Survey:
    """The transactional ids of a prefix, and their transactions.

    Args:
        states: of every id that was looked at.
        transactions: open ones, then Empty ones, then complete ones that began lately; the oldest of each first.
        surveyed_ms: since 1970-01-01 UTC.
        warnings: what may be missing here, and why.
        marker_partitions: under which the markers of an owner may be, as far as it was looked for; the likeliest is the last.
    """

    states: Mapping[AttemptId, str]
    transactions: tuple[SurveyedTransaction, ...]
    surveyed_ms: int
    warnings: tuple[str, ...] = ()
    marker_partitions: Mapping[str, Sequence[TopicPartition]] = field(default_factory=dict)

    @property
    def unfinished_transactions(self) -> list[SurveyedTransaction]:
        return [each for each in self.transactions if not each.is_complete]

    @property
    def transactions_to_repair(self) -> list[SurveyedTransaction]:
        """Those that hang or may hang, and all of a version that is decided and not carried out."""
        return [each for each in self.transactions if each.may_hang or each.known_version is not None]


def survey(
    client: TransactionClient,
    names: PrefixNames,
    wall_ms: Callable[[], int],
    recent_ms: int = 0,
    extra_ids: Iterable[AttemptId] = (),
    topics: Collection[str] = (),
) -> Survey:
    """Look at the ids of the prefix. Blocks for several calls of the client, for each at most max.block.ms.

    Args:
        wall_ms: returns the time since 1970-01-01 UTC.
        recent_ms: complete transactions are described if they began no longer ago than this; 0: none is.
        extra_ids: ids to look at, whatever their state is by now.
        topics: where rows of complete transactions may hang, besides the marker topics of decisions.

    Raises:
        AuthorizationError: no id is listed, and the user lacks DESCRIBE.
        KafkaError: as the client's methods, for any other problem.
    """
    attempt_ids = set(extra_ids) | _attempt_ids(client, names, () if recent_ms else OPEN)
    warning = _warning_of_hidden_ids(client, names, has_ids=bool(attempt_ids))
    look = HangingLook(client, names, topics)
    hanging = look.first()
    attempt_ids |= hanging.ids
    ids = {names.transactional_id(attempt_id): attempt_id for attempt_id in attempt_ids}
    descriptions = client.describe_transactions(ids)
    surveyed_ms = wall_ms()
    # An id that brokers do not know any more has expired since it was listed.
    visible = ((ids[each], description) for each, description in descriptions.items() if description is not None)
    all_transactions = [SurveyedTransaction(attempt_id, description, surveyed_ms) for attempt_id, description in visible]
    owners = {each.attempt_id.owner for each in all_transactions if not each.is_complete or recent_ms} | {
        each.owner for each in hanging.ids
    }
    with_decisions = _with_decisions(all_transactions, _decisions(client, names, owners))
    with_hanging = _with_hanging(with_decisions, look.again(hanging))
    transactions = [each for each in with_hanging if _is_shown(each, recent_ms)]
    states = {each.attempt_id: each.state for each in all_transactions}
    transactions.sort(key=lambda each: (each.is_complete, each.is_empty, -(each.age_ms or 0), each.attempt_id))
    warnings = (*([warning] if warning else ()), *hanging.notes, *_warnings_of_suspicion(transactions))
    return Survey(states, tuple(transactions), surveyed_ms, warnings, look.marker_partitions)


def _is_shown(transaction: SurveyedTransaction, recent_ms: int) -> bool:
    if not transaction.is_complete or transaction.may_hang or transaction.decided_version is not None:
        return True
    return bool(recent_ms) and transaction.age_ms is not None and transaction.age_ms <= recent_ms


def _with_hanging(transactions: Sequence[SurveyedTransaction], hanging: Hanging) -> list[SurveyedTransaction]:
    """Say of each transaction what hangs. An open one explains why its partitions stand still, and why its marker is pending."""
    open_transactions = [each for each in transactions if not each.is_complete and not each.is_empty]
    holders = {each.attempt_id[:2] for each in open_transactions}
    hidden = hanging.hidden.difference(*(each.description.partitions for each in open_transactions))
    others = [each for each in transactions if each.is_complete or each.is_empty]
    suspects = {each.attempt_id for each in others if each.is_aborted or each.fate is Fate.COMMITTED}
    likely_ids = suspects | {each.attempt_id for each in others if each.description.producer_id in hanging.open_rows}
    explained = {each[:2] for each in likely_ids}  # Spark partitions whose marker hangs with a transaction that is not settled

    def with_hanging(transaction: SurveyedTransaction) -> SurveyedTransaction:
        attempt_id, spark_partition = transaction.attempt_id, transaction.attempt_id[:2]
        may_have_marker = attempt_id in likely_ids or spark_partition not in explained
        return replace(
            transaction,
            open_rows=hanging.open_rows.get(transaction.description.producer_id, {}),
            is_marker_pending=may_have_marker and spark_partition in hanging.pending.difference(holders),
            suspicious=hidden if attempt_id in suspects else frozenset(),
        )

    return [*open_transactions, *map(with_hanging, others)]


def _warnings_of_suspicion(transactions: Iterable[SurveyedTransaction]) -> Iterator[str]:
    partitions = sorted({partition for each in transactions for partition in each.suspicious})
    if partitions:
        topics = printable_list(printable(each) for each in sorted({each.topic for each in partitions}))
        yield (
            f"readers stand still in {printable_list(map(printable, partitions))}: rows of complete transactions hang there, or"
            f" somebody else's transaction is open. To see which, grant the user READ on the topics {topics}"
        )


def _attempt_ids(client: TransactionClient, names: PrefixNames, states: Collection[str] = ()) -> set[AttemptId]:
    """The ids of this prefix in these states, or in any."""
    attempt_ids = (names.parse(each.transactional_id) for each in client.list_transactions(names.id_prefix, states))
    return {attempt_id for attempt_id in attempt_ids if attempt_id is not None}


def other_prefixes(client: TransactionClient, names: PrefixNames) -> tuple[str, ...] | None:
    """Find the prefixes of other writes, if this prefix has no id in any state. None: it has an id, or there are too many ids."""
    try:
        if any(names.parse(each.transactional_id) for each in client.list_transactions(names.id_prefix)):
            return None
        ids = [each.transactional_id for each in client.list_transactions("", probed=names.id_prefix)]
    except ResponseTooLargeError:
        return None
    candidates = ((each.rsplit("-", FIELDS_AFTER_PREFIX)[0], each) for each in ids)
    return tuple(sorted({prefix for prefix, each in candidates if PrefixNames(prefix).parse(each) is not None}))


def _warning_of_hidden_ids(client: TransactionClient, names: PrefixNames, *, has_ids: bool) -> str:
    """A warning if brokers omit ids that the user may not DESCRIBE, else "". Raises AuthorizationError if they listed none."""
    try:
        client.describe_transactions([names.id_prefix])
    except AuthorizationError as error:
        if not has_ids:
            raise
        return f"transactional ids that the user may not DESCRIBE are left out: {error}"
    return ""


def _decisions(client: TransactionClient, names: PrefixNames, owners: Iterable[str]) -> dict[str, KnownDecision]:
    """The last decision of each owner."""
    owners = list(owners)
    try:
        decisions_of_owners = decisions_of(client, names, owners)
    except KafkaError as error:
        return dict.fromkeys(owners, error)
    last_decisions = {owner: each[-1].decision if each else None for owner, each in decisions_of_owners.items()}
    return last_decisions | _hidden_decisions(client, names, [owner for owner, each in decisions_of_owners.items() if not each])


def _hidden_decisions(client: TransactionClient, names: PrefixNames, owners: Collection[str]) -> dict[str, KafkaError]:
    """An error for each owner that has committed, but shows no decision: brokers hide offsets that the user may not see."""
    if not owners:
        return {}
    try:
        owners_with_commits = {attempt_id.owner for attempt_id in _attempt_ids(client, names, [TransactionState.COMPLETE_COMMIT])}
    except KafkaError as error:
        return dict.fromkeys(owners, error)
    return {
        owner: LedgerError(
            f"transactions of this owner were committed, and group {printable(names.decision_group(owner))} shows no"
            " decision: it has expired, or the user may not describe the topic of the markers. Grant the user READ on it"
            " (option markerTopic, or topic)"
        )
        for owner in owners
        if owner in owners_with_commits
    }


def _with_decisions(
    transactions: Iterable[SurveyedTransaction], decisions: Mapping[str, KnownDecision]
) -> list[SurveyedTransaction]:
    """Add the decision of its owner to each transaction, and what the decision lists of its id if it is not carried out."""
    decided: dict[AttemptId, tuple[int, TaskTransaction]] = {}
    for owner, decision in decisions.items():
        if isinstance(decision, Decision) and decision.state is DecisionState.DECIDED:
            for entry in decision.entries:
                decided[AttemptId(owner, entry.partition, entry.number)] = (decision.version, entry)
    with_decisions = []
    for transaction in transactions:
        with_decision = replace(transaction, decision=decisions.get(transaction.attempt_id.owner))
        if version_and_entry := decided.get(transaction.attempt_id):
            with_decision = replace(with_decision, decided_version=version_and_entry[0], decided_entry=version_and_entry[1])
        with_decisions.append(with_decision)
    return with_decisions
