"""Whether a query is alive: two looks at its transactions, some seconds apart, and what has changed between them.

A sign of life counts for all transactions of its owner, since those of a version end together. Signs are new ids, changed states,
new rows, decisions, and heartbeats of tasks at work (exactly_once/heartbeat.py). A query can be alive without a sign: if it has
open transactions and no task at work, if its process is stopped, or if the looks are closer together than heartbeats.
An abort is no sign: a failed task aborts, but so do brokers at a time-out, and every process that fences the id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from spark_kafka_sink.admin.leaders import ActiveProducer
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import BrokerError, KafkaError, printable
from spark_kafka_sink.exactly_once.fencing import COMPLETE, ENDING
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions.survey import Survey, SurveyedTransaction, survey

ABORTED = frozenset((TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT))
NOTHING_SHOWN = "brokers show none of its partitions: grant the user READ on the topics that the query writes to"

LastHeartbeat = Mapping[TopicPartition, CommittedOffset] | KafkaError


@dataclass(frozen=True, slots=True)
class Look:
    """What brokers know of a prefix at one moment.

    Args:
        survey: of the prefix.
        producers: what the partitions of ongoing transactions know of their producers, or why that cannot be known.
        heartbeats: the last heartbeat of each owner that has transactions in the survey, or why that cannot be known.
    """

    survey: Survey
    producers: Mapping[TopicPartition, Mapping[int, ActiveProducer] | KafkaError]
    heartbeats: Mapping[str, LastHeartbeat]


def look(
    client: TransactionClient,
    names: PrefixNames,
    wall_ms: Callable[[], int],
    before: Look | None = None,
    topics: Collection[str] = (),
) -> Look:
    """Look at the prefix, and again at the ids of the look before. Blocks and raises as `survey` does."""
    extra_ids: Collection[AttemptId] = () if before is None else before.survey.states.keys()
    new_survey = survey(client, names, wall_ms, extra_ids=extra_ids, topics=topics)
    ongoing = [each for each in new_survey.transactions if each.is_ongoing]
    partitions = {partition for each in ongoing for partition in each.written_partitions}
    producers = client.describe_producers(sorted(partitions), {each.description.producer_id for each in ongoing})
    owners = {each.attempt_id.owner for each in new_survey.transactions}
    return Look(new_survey, producers, _heartbeats(client, names, owners))


def _heartbeats(client: TransactionClient, names: PrefixNames, owners: Iterable[str]) -> Mapping[str, LastHeartbeat]:
    groups = {owner: names.heartbeat_group(owner) for owner in owners}
    try:
        offsets = client.fetch_offsets(dict.fromkeys(groups.values()), require_stable=False)
    except KafkaError as error:
        return dict.fromkeys(groups, error)
    return {owner: offsets[group] for owner, group in groups.items()}


def unwatched_owners(before: Look, after: Look) -> dict[str, str]:
    """Owner -> why brokers do not show whether its rows still arrive, or whether its tasks send heartbeats."""
    heartbeats = ((owner, heartbeat) for one_look in (before, after) for owner, heartbeat in one_look.heartbeats.items())
    reasons = {owner: str(heartbeat) for owner, heartbeat in heartbeats if isinstance(heartbeat, KafkaError)}
    for transaction in after.survey.transactions:
        if transaction.is_ongoing and not transaction.description.partitions:
            reasons[transaction.attempt_id.owner] = NOTHING_SHOWN
        for one_look in (before, after):
            for error in map(one_look.producers.get, transaction.written_partitions):
                if isinstance(error, KafkaError) and not _is_deleted(error):
                    reasons[transaction.attempt_id.owner] = str(error)
    return reasons


def _is_deleted(error: KafkaError) -> bool:
    """Whether the topic was deleted: no row arrives there, and nobody waits for any."""
    return isinstance(error, BrokerError) and error.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number


def signs_of_life(before: Look, after: Look) -> dict[str, list[str]]:
    """Owner -> what has changed, in sentences. Owners without a change are left out."""
    signs: dict[str, list[str]] = {}
    for find_signs in (_signs_of_transactions, _signs_of_decisions, _signs_of_heartbeats):
        for owner, sign in find_signs(before, after):
            signs.setdefault(owner, []).append(sign)
    return signs


def _signs_of_transactions(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    earlier = {each.attempt_id: each for each in before.survey.transactions}
    later = {each.attempt_id: each for each in after.survey.transactions}
    for attempt_id, state in after.survey.states.items():
        old_state = before.survey.states.get(attempt_id)
        signs: list[str] = []
        if old_state is None:
            signs = [] if state in COMPLETE else ["has begun"]  # a complete one is looked at because its rows hang
        elif old_state != state:
            transition = f"went from {printable(old_state)} to {printable(state)}"
            signs = [transition] if _is_done_by_query(old_state, state) else []
        elif attempt_id in earlier and attempt_id in later:
            signs = [*_signs_of_change(earlier[attempt_id], later[attempt_id]), *_signs_of_rows(later[attempt_id], before, after)]
        name = f"the transaction of task {attempt_id.partition}, attempt {attempt_id.attempt}"
        yield from ((attempt_id.owner, f"{name}, {each}") for each in signs)


def _is_done_by_query(old_state: str, new_state: str) -> bool:
    """Whether only the query can have made the change. Others can abort, and complete a commit or an abort that had begun."""
    return new_state not in ABORTED and not (old_state in ENDING and new_state in COMPLETE)


def _signs_of_change(earlier: SurveyedTransaction, later: SurveyedTransaction) -> list[str]:
    if earlier.identity != later.identity:
        return ["has another producer"]
    if earlier.description.start_time_ms != later.description.start_time_ms:
        return ["has begun anew"]
    if later.description.partitions - earlier.description.partitions:
        return ["has further partitions"]
    return []


def _signs_of_rows(transaction: SurveyedTransaction, before: Look, after: Look) -> list[str]:
    for partition in transaction.written_partitions:
        old, new = before.producers.get(partition), after.producers.get(partition)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            continue  # not known; unwatched_owners() says why
        if old.get(transaction.description.producer_id) != new.get(transaction.description.producer_id):
            return [f"has new rows in {printable(partition)}"]
    return []


def _signs_of_decisions(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    earlier = {each.attempt_id.owner: each.decision for each in before.survey.transactions}
    later = {each.attempt_id.owner: each.decision for each in after.survey.transactions}
    for owner, decision in later.items():
        earlier_decision = earlier.get(owner, decision)
        if isinstance(decision, Decision) and earlier_decision != decision and not isinstance(earlier_decision, KafkaError):
            yield owner, f"version {decision.version} is now {decision.state.value}"


def _signs_of_heartbeats(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    for owner, heartbeat in after.heartbeats.items():
        earlier = before.heartbeats.get(owner, heartbeat)
        if earlier != heartbeat and not isinstance(earlier, KafkaError) and not isinstance(heartbeat, KafkaError):
            yield owner, "a task has shown that it is at work"
