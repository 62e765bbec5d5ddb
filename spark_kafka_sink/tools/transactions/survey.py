"""What brokers and the ledger know of a prefix's transactional ids, at one moment.

Reads only. Ids that begin alike but are of another prefix are left out (exactly_once/names.py parses them). Complete ids are
left out, too, unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import AuthorizationError, KafkaError, ResponseTooLargeError, printable
from spark_kafka_sink.exactly_once.decisions import decisions_of
from spark_kafka_sink.exactly_once.fencing import COMPLETE, UNFINISHED
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState, LedgerError
from spark_kafka_sink.exactly_once.names import FIELDS_AFTER_PREFIX, AttemptId, PrefixNames, unescape_name
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"  # where markers go: its partitions say nothing about the rows of a transaction

# The decision of an owner. None: there is none. An error says why it is not known.
KnownDecision = Decision | KafkaError | None


@dataclass(frozen=True, slots=True)
class SurveyedTransaction:
    """One transactional id, its transaction and its owner's decision. Times are milliseconds, by this machine's clock."""

    attempt_id: AttemptId
    description: TransactionDescription
    surveyed_ms: int  # since 1970-01-01 UTC
    decision: KnownDecision = None  # the last one of its owner
    decided_version: int | None = None  # the version that it is a part of, if that is decided and not carried out

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
    def is_decided(self) -> bool:
        return self.is_ongoing and self.decided_version is not None

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
        """The partitions to which the transaction has written rows, in order."""
        return sorted(each for each in self.description.partitions if each.topic != OFFSETS_TOPIC)


@dataclass(frozen=True, slots=True)
class Survey:
    """The transactional ids of a prefix, and their transactions.

    Args:
        states: of every id that was looked at.
        transactions: open ones, then Empty ones, then complete ones that began lately; the oldest of each first.
        surveyed_ms: since 1970-01-01 UTC.
        warning: what may be missing here, and why.
    """

    states: Mapping[AttemptId, str]
    transactions: tuple[SurveyedTransaction, ...]
    surveyed_ms: int
    warning: str = ""

    @property
    def unfinished_transactions(self) -> list[SurveyedTransaction]:
        return [each for each in self.transactions if not each.is_complete]


def survey(
    client: TransactionClient,
    names: PrefixNames,
    wall_ms: Callable[[], int],
    recent_ms: int = 0,
    extra_ids: Iterable[AttemptId] = (),
) -> Survey:
    """Look at the ids of the prefix. Blocks for several calls of the client, for each at most max.block.ms.

    Args:
        wall_ms: returns the time since 1970-01-01 UTC.
        recent_ms: complete transactions are described if they began no longer ago than this; 0: none is.
        extra_ids: ids to look at, whatever their state is by now.

    Raises:
        AuthorizationError: no id is listed, and the user lacks DESCRIBE.
        KafkaError: as the client's methods, for any other problem.
    """
    attempt_ids = set(extra_ids) | _attempt_ids(client, names, () if recent_ms else UNFINISHED)
    warning = _warning_of_hidden_ids(client, names, has_ids=bool(attempt_ids))
    ids = {names.transactional_id(attempt_id): attempt_id for attempt_id in attempt_ids}
    descriptions = client.describe_transactions(ids)
    surveyed_ms = wall_ms()
    # An id that brokers do not know any more has expired since it was listed.
    visible = ((ids[each], description) for each, description in descriptions.items() if description is not None)
    all_transactions = [SurveyedTransaction(attempt_id, description, surveyed_ms) for attempt_id, description in visible]
    recent = [each for each in all_transactions if not each.is_complete or (each.age_ms is not None and each.age_ms <= recent_ms)]
    transactions = _with_decisions(recent, names, _decisions(client, names, {each.attempt_id.owner for each in recent}))
    states = {each.attempt_id: each.state for each in all_transactions}
    transactions.sort(key=lambda each: (each.is_complete, each.is_empty, -(each.age_ms or 0), each.attempt_id))
    return Survey(states, tuple(transactions), surveyed_ms, warning)


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
    transactions: Iterable[SurveyedTransaction], names: PrefixNames, decisions: Mapping[str, KnownDecision]
) -> list[SurveyedTransaction]:
    versions: dict[tuple[str, tuple[int, int]], int] = {}  # transactional id and producer -> version
    for owner, decision in decisions.items():
        if isinstance(decision, Decision) and decision.state is DecisionState.DECIDED:
            for entry in decision.entries:
                versions[entry.prepared_transaction(names, owner).transactional_id, entry.identity] = decision.version
    with_decisions = (replace(each, decision=decisions[each.attempt_id.owner]) for each in transactions)
    return [replace(each, decided_version=versions.get((each.transactional_id, each.identity))) for each in with_decisions]
