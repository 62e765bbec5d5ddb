"""Finds decisions and carries them out: for the driver, its next run, or an operator.

version_commit.py makes decisions. This file commits their transactions; to commit one twice does no harm. abort_prefix() records
that writes are aborted, then fences the ids of transactions that are not decided. Nobody deletes a decision: a newer record
replaces it, or brokers expire it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionEnd
from spark_kafka_sink.errors import KafkaError, printable, printable_list
from spark_kafka_sink.exactly_once.fencing import fence_all, list_unfinished
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState, LedgerError, is_in_kafka
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames, shown_owner
from spark_kafka_sink.exactly_once.writes import CommitFailedError, DriverTime, TaskTransaction

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
    """Find the unfinished ids that must not be fenced: their owner has decided to commit the transaction, or the owner's decision
    cannot be read. Raises KafkaError."""
    entries: dict[AttemptId, list[TaskTransaction]] = {}
    unreadable_owners: set[str] = set()
    for owner, decisions in decisions_of(client, names, dict.fromkeys(each.owner for each in attempt_ids)).items():
        for _, decision in decisions:
            if isinstance(decision, LedgerError):
                logger.warning("! transactions of owner %s are left as they are: %s", printable(shown_owner(owner)), decision)
                unreadable_owners.add(owner)
            elif isinstance(decision, KafkaError):
                raise decision
            else:
                for entry in decision.entries:
                    entries.setdefault(AttemptId(owner, entry.partition, entry.attempt), []).append(entry)
    open_ids = _find_open_ids(client, names, {each: entries[each] for each in attempt_ids if each in entries})
    return {each for each in attempt_ids if each.owner in unreadable_owners or each in open_ids}


def _find_open_ids(
    client: TransactionClient, names: PrefixNames, entries: dict[AttemptId, list[TaskTransaction]]
) -> set[AttemptId]:
    """Find the ids whose open transaction is that of one of their entries."""
    ids = {names.transactional_id(attempt_id): attempt_id for attempt_id in entries}
    descriptions = client.describe_transactions(ids) if ids else {}
    pairs = [(attempt_id, descriptions[transactional_id]) for transactional_id, attempt_id in ids.items()]
    return {key for key, description in pairs if description and any(description.is_open(each.identity) for each in entries[key])}


# CARRYING OUT


def commit_entries(ledger: Ledger, decision: Decision, *, fate_text: str = LEFT_TO_THE_NEXT_RUN) -> list[TaskTransaction]:
    """Commit the transactions that a decision lists, and record nothing. Returns the entries that are lost: the transaction is
    gone, and by the markers its rows are not in Kafka.

    Raises CommitFailedError if a transaction could not be committed; its text says with `fate_text` what becomes of these.
    """
    transactions = {entry: entry.prepared_transaction(ledger.names, ledger.owner) for entry in decision.entries}
    outcomes = ledger.client.end_transactions(list(transactions.values()), commit=True)
    errors: list[KafkaError | None] = []
    gone_entries: list[TaskTransaction] = []
    for entry, transaction in transactions.items():
        outcome = outcomes[transaction.transactional_id]
        if outcome.end is TransactionEnd.NOT_OPEN:
            gone_entries.append(entry)
        elif outcome.end is TransactionEnd.FAILED:
            errors.append(outcome.error)
    if errors:
        raise CommitFailedError(
            f"{len(errors)} of {len(transactions)} transactions of version {decision.version} could not be committed. Readers see"
            f" the others. {fate_text.strip()}. The first failed with: {errors[0]}"
        )
    markers = ledger.fetch_markers(each.partition for each in gone_entries)
    return [each for each in gone_entries if not is_in_kafka(markers.get(each.partition), decision.version, each)]


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


def carry_out_decision(ledger: Ledger) -> Decision | None:
    """Carry out an owner's decision, as the next run of its query would. Returns the decision; None if nothing is left to do.

    No driver may work for this owner meanwhile, as this function could overwrite the driver's decision. Raises CommitFailedError
    and KafkaError as VersionCommit.run does.
    """
    decision = ledger.fetch_decision()
    if decision is None or decision.state is not DecisionState.DECIDED:
        return None
    if lost_entries := commit_entries(ledger, decision):
        fail_incomplete(ledger, decision, lost_entries)
    ledger.write_decision(decision.with_state(DecisionState.CARRIED_OUT))
    return decision


def abort_prefix(client: TransactionClient, names: PrefixNames, marker_topic: str, now: DriverTime) -> int:
    """Abort the writes of this prefix that were planned before `now` on its machine, and fence all unfinished ids of the prefix.

    No transaction of these writes can then be committed, unless its version is decided. Decided transactions are left alone, and
    also, with a warning, all of an owner whose decision cannot be read. Brokers before Kafka 3.0 list no ids: none is fenced.
    Returns how many transactional ids were fenced.
    """
    Ledger(client, names, "", marker_topic).record_abort(now)
    unfinished_ids = [each.attempt_id for each in list_unfinished(client, names) or ()]
    protected_ids = find_protected_ids(client, names, unfinished_ids)
    return fence_all(client, names, [each for each in unfinished_ids if each not in protected_ids])
