"""Finds decisions and carries them out: for the driver, its next run, or an operator.

version_commit.py makes decisions. This file commits their transactions; to commit one twice does no harm. abort_prefix() records
that writes are aborted, then fences the ids of transactions that are not decided. Nobody deletes a decision: a newer record
replaces it, or brokers expire it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionEnd
from spark_kafka_sink.errors import KafkaError, UnsupportedVersionError, printable, printable_list
from spark_kafka_sink.exactly_once.fencing import describe, fence_all, list_unfinished
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState, LedgerError, is_in_kafka
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames, shown_owner
from spark_kafka_sink.exactly_once.settling import (
    NO_PLACES,
    Beside,
    CommitSettling,
    Fate,
    WrittenPlaces,
    cut_off_error,
    fate_of,
    may_skip,
    settle_left,
)
from spark_kafka_sink.exactly_once.writes import CommitFailedError, DriverTime, NotVisibleError, TaskTransaction

logger = logging.getLogger(__name__)

TIMEOUT_OPTION = "kafka.transaction.timeout.ms"
WHY_GONE = (
    f"they outlasted their time-out ({TIMEOUT_OPTION}, at most the brokers' transaction.max.timeout.ms), or another run with the"
    " same transactionalIdPrefix has fenced them: a prefix is for one query or job at a time"
)
LEFT_TO_THE_NEXT_RUN = f"The version is decided: the next run commits what is left. Run it before {TIMEOUT_OPTION} has passed"
WRITTEN_BY_THE_NEXT_RUN = "The next run of this version writes those that are missing, and nothing twice"


# FINDING


class OwnersDecision(NamedTuple):
    """The last decision of an owner, and where it is kept. `decision`: an error says why it is not known."""

    ledger: Ledger
    decision: Decision | KafkaError


def decisions_of(client: TransactionClient, names: PrefixNames, owners: Iterable[str]) -> dict[str, list[OwnersDecision]]:
    """Find the decisions of each owner; the one on the latest version is the last.

    A decision is kept under the topic of the markers, which its offset names. An owner has several only if the marker
    topic has changed. Raises KafkaError.
    """
    groups = {owner: names.decision_group(owner) for owner in owners}
    offsets = client.fetch_offsets(dict.fromkeys(groups.values()), require_stable=False) if groups else {}
    decisions: dict[str, list[OwnersDecision]] = {}
    for owner, group in groups.items():
        records = offsets[group]
        marker_partitions = sorted(records, key=lambda marker_partition: records[marker_partition].offset)
        ledgers = [Ledger(client, names, owner, marker_partition.topic) for marker_partition in marker_partitions]
        decisions[owner] = [OwnersDecision(ledger, _decision_in(ledger, records[ledger.marker_partition])) for ledger in ledgers]
    return decisions


def _decision_in(ledger: Ledger, record: CommittedOffset) -> Decision | KafkaError:
    try:
        return ledger.decode_decision(record)
    except KafkaError as error:
        return error


def find_protected_ids(client: TransactionClient, names: PrefixNames, attempt_ids: Sequence[AttemptId]) -> set[AttemptId]:
    """Find the ids that must not be fenced: a decision lists them that is not carried out, or it cannot be read. Raises
    KafkaError."""
    decided_ids: set[AttemptId] = set()
    unreadable_owners: set[str] = set()
    for owner, decisions in decisions_of(client, names, dict.fromkeys(each.owner for each in attempt_ids)).items():
        for _, decision in decisions:
            if isinstance(decision, LedgerError):
                logger.warning("! transactions of owner %s are left as they are: %s", printable(shown_owner(owner)), decision)
                unreadable_owners.add(owner)
            elif isinstance(decision, KafkaError):
                raise decision
            else:
                decided_ids |= {AttemptId(owner, entry.partition, entry.number) for entry in decision.entries}
    return {each for each in attempt_ids if each.owner in unreadable_owners or each in decided_ids}


def fence_unprotected(
    client: TransactionClient, names: PrefixNames, attempt_ids: Sequence[AttemptId]
) -> dict[AttemptId, TransactionDescription | None]:
    """Fence ids that no decision lists: first they are described, then the decisions are read, then exactly what was described is
    fenced. Returns what is left to be settled, see fence_all. Raises KafkaError."""
    descriptions = describe(client, names, attempt_ids)
    protected_ids = find_protected_ids(client, names, attempt_ids) if attempt_ids else set()
    return fence_all(client, names, [each for each in attempt_ids if each not in protected_ids], descriptions)


# CARRYING OUT


class Carrying(NamedTuple):
    """How a decision is carried out: where its rows are, what this run has open, and how errors end.

    A task that has written again what is decided has seen that no marker was pending. Now its own one is.
    """

    places: WrittenPlaces = NO_PLACES
    open_partitions: frozenset[int] = frozenset()  # Spark partitions where this run has an open transaction
    fate_text: str = LEFT_TO_THE_NEXT_RUN


def commit_entries(ledger: Ledger, decision: Decision, how: Carrying, beside: Beside[Any] | None = None) -> list[TaskTransaction]:
    """Commit the transactions that a decision lists, and record nothing. Blocks until what is committed is visible: settled.
    Returns the entries whose rows are lost. `beside`: see CommitSettling.settle.

    An entry is lost if its transaction was aborted, and by the markers its rows are not in Kafka.

    Raises:
        CommitFailedError: a transaction could not be committed, or nobody knows whether it was.
        NotVisibleError: not all is visible in time.
    """
    transactions = {entry: entry.prepared_transaction(ledger.names, ledger.owner) for entry in decision.entries}
    outcomes = ledger.client.end_transactions(list(transactions.values()), commit=True)
    errors: list[KafkaError | None] = []
    committed_entries: list[TaskTransaction] = []
    doubtful_entries: list[TaskTransaction] = []
    for entry, transaction in transactions.items():
        outcome = outcomes[transaction.transactional_id]
        if outcome.end is TransactionEnd.ENDED:
            committed_entries.append(entry)
        elif outcome.end is TransactionEnd.NOT_OPEN:
            doubtful_entries.append(entry)
        else:
            errors.append(outcome.error)
    if errors:
        raise CommitFailedError(
            f"{len(errors)} of {len(transactions)} transactions of version {decision.version} could not be committed. Readers see"
            f" the others. {how.fate_text.strip()}. The first failed with: {errors[0]}"
        )
    lost_entries: list[TaskTransaction] = []
    if doubtful_entries:
        more_committed, lost_entries = _judge(ledger, decision, doubtful_entries, how)
        committed_entries += more_committed
    CommitSettling(ledger, decision, committed_entries, how.places, how.fate_text).settle(beside)
    return lost_entries


def _judge(
    ledger: Ledger, decision: Decision, entries: Sequence[TaskTransaction], how: Carrying
) -> tuple[list[TaskTransaction], list[TaskTransaction]]:
    """Find out what has become of transactions that were not open: those that are committed, and those that are lost. The others
    are in Kafka by their markers. What was aborted is settled first: a marker that is pending may be another run's."""
    client, names = ledger.client, ledger.names
    ids = {AttemptId(ledger.owner, each.partition, each.number): each for each in entries}
    descriptions = describe(client, names, ids)
    fates = {entry: fate_of(descriptions.get(names.transactional_id(key)), entry) for key, entry in ids.items()}
    for entry, fate in fates.items():
        if fate is Fate.CUT_OFF and may_skip(client):
            raise cut_off_error(decision.version, entry)
    aborted_ids = {
        key: descriptions[names.transactional_id(key)]
        for key, entry in ids.items()
        if fates[entry] is Fate.ABORTED and entry.partition not in how.open_partitions
    }
    if aborted_ids and settle_left(client, names, ledger.marker_partition, aborted_ids, how.places):
        raise NotVisibleError(
            f"version {decision.version} is decided, but {len(aborted_ids)} of its transactions were aborted, and their rows"
            f" still hang in partitions. {how.fate_text.strip()}"
        )
    committed_entries = [entry for entry, fate in fates.items() if fate in (Fate.COMMITTED, Fate.OPEN)]
    others = [each for each in entries if each not in committed_entries]
    markers = ledger.fetch_markers(each.partition for each in others)
    missing_entries = [each for each in others if not is_in_kafka(markers.get(each.partition), decision.version, each)]
    doubtful_groups = {ledger.marker_group(each.partition): each for each in missing_entries}
    pending = _pending_groups(ledger, [key for key, each in doubtful_groups.items() if each.partition not in how.open_partitions])
    if pending:
        raise CommitFailedError(
            f"it is not known yet whether {len(pending)} transactions of version {decision.version} were committed: another"
            f" transaction of their Spark partitions is open ({printable_list(map(printable, pending))}). {how.fate_text.strip()}"
        )
    return committed_entries, missing_entries


def _pending_groups(ledger: Ledger, groups: Sequence[str]) -> set[str]:
    try:
        question = ledger.client.stable_offsets_question({group: [ledger.marker_partition] for group in groups})
        return {group for group, offsets in ledger.client.ask(question).items() if offsets is None}
    except UnsupportedVersionError:
        return set()


def fail_incomplete(
    ledger: Ledger, decision: Decision, lost_entries: Sequence[TaskTransaction], *, fate_text: str = WRITTEN_BY_THE_NEXT_RUN
) -> NoReturn:
    """Record a decision as INCOMPLETE: these transactions are gone. Raise CommitFailedError; its text ends with `fate_text`."""
    ledger.write_decision(decision.with_state(DecisionState.INCOMPLETE))
    raise CommitFailedError(
        f"{len(lost_entries)} of {len(decision.entries)} transactions were gone when version {decision.version} was committed"
        f" (Spark partitions {printable_list(each.partition for each in lost_entries)}): {WHY_GONE}. Readers see the rows of the"
        f" other partitions. {fate_text.strip()}"
    )


def carry_out_decision(ledger: Ledger, places: WrittenPlaces = NO_PLACES) -> Decision | None:
    """Carry out an owner's decision, as the next run of its query would. Returns the decision; None if nothing is left to do.

    No driver may work for this owner meanwhile, as this function could overwrite the driver's decision. Raises CommitFailedError
    and KafkaError as VersionCommit.run does.
    """
    decision = ledger.fetch_decision()
    if decision is None or decision.state is not DecisionState.DECIDED:
        return None
    if lost_entries := commit_entries(ledger, decision, Carrying(places)):
        fail_incomplete(ledger, decision, lost_entries)
    ledger.write_decision(decision.with_state(DecisionState.CARRIED_OUT))
    return decision


def abort_prefix(
    client: TransactionClient, names: PrefixNames, marker_topic: str, now: DriverTime, places: WrittenPlaces = NO_PLACES
) -> int:
    """Abort the writes of this prefix that were planned before `now` on its machine, and fence all unfinished ids of the prefix.

    No transaction of these writes can then be committed, unless its version is decided. Decided transactions are left alone, and
    also, with a warning, all of an owner whose decision cannot be read. What is fenced is settled, for at most max.block.ms.
    Brokers before Kafka 3.0 list no ids: none is fenced. Returns how many transactional ids were fenced.

    Args:
        places: where rows of the write are, as far as is known.
    """
    ledger = Ledger(client, names, "", marker_topic)
    ledger.record_abort(now)
    unfinished_ids = [each.attempt_id for each in list_unfinished(client, names) or ()]
    left = fence_unprotected(client, names, unfinished_ids)
    settle_left(client, names, ledger.marker_partition, left, places)
    return len(left)
