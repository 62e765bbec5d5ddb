"""Whether a query is alive: two looks at its transactions, some seconds apart, and what has changed between them.

A sign of life counts for all transactions of its owner, since those of a version end together. Signs are new ids, changed states,
new rows, decisions, and heartbeats of tasks at work (exactly_once/heartbeat.py). A query can be alive without a sign: if it has
open transactions and no task at work, if its process is stopped, or if the looks are closer together than heartbeats.
An abort is no sign: a failed task aborts, but so do brokers at a time-out, and every process that fences the id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.producers import ActiveProducer
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import BrokerError, KafkaError, printable
from spark_kafka_sink.exactly_once.fencing import COMPLETE, ENDING
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import PrefixNames
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
        heartbeats: the last heartbeat of each owner that has unfinished transactions, or why that cannot be known.
    """

    survey: Survey
    producers: Mapping[TopicPartition, Mapping[int, ActiveProducer] | KafkaError]
    heartbeats: Mapping[str, LastHeartbeat]


def look(client: TransactionClient, names: PrefixNames, wall_ms: Callable[[], int], before: Look | None = None) -> Look:
    """Look at the prefix, and again at the ids of the look before. Blocks and raises as `survey` does."""
    found = survey(client, names, wall_ms, also=() if before is None else before.survey.states)
    ongoing = [each for each in found.transactions if each.is_ongoing]
    written = {partition for each in ongoing for partition in each.written}
    producers = client.describe_producers(sorted(written), {each.known.producer_id for each in ongoing})
    return Look(found, producers, _heartbeats(client, names, {each.task.owner for each in found.unfinished}))


def _heartbeats(client: TransactionClient, names: PrefixNames, owners: Iterable[str]) -> Mapping[str, LastHeartbeat]:
    groups = {owner: names.heartbeat_group(owner) for owner in owners}
    try:
        found = client.fetch_offsets(dict.fromkeys(groups.values()), require_stable=False)
    except KafkaError as error:
        return dict.fromkeys(groups, error)
    return {owner: found[group] for owner, group in groups.items()}


def unwatched(before: Look, after: Look) -> dict[str, str]:
    """Owner -> why brokers do not show whether its rows still arrive, or whether its tasks send heartbeats."""
    heartbeats = ((owner, heartbeat) for seen in (before, after) for owner, heartbeat in seen.heartbeats.items())
    reasons = {owner: str(heartbeat) for owner, heartbeat in heartbeats if isinstance(heartbeat, KafkaError)}
    for transaction in after.survey.transactions:
        if transaction.is_ongoing and not transaction.known.partitions:
            reasons[transaction.task.owner] = NOTHING_SHOWN
        for seen in (before, after):
            for trouble in map(seen.producers.get, transaction.written):
                if isinstance(trouble, KafkaError) and not _is_gone(trouble):
                    reasons[transaction.task.owner] = str(trouble)
    return reasons


def _is_gone(trouble: KafkaError) -> bool:
    """Whether the topic was deleted: no row arrives there, and nobody waits for any."""
    return isinstance(trouble, BrokerError) and trouble.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number


def signs_of_life(before: Look, after: Look) -> dict[str, list[str]]:
    """Owner -> what has changed, in sentences. Owners without a change are left out."""
    signs: dict[str, list[str]] = {}
    for owner, sign in chain(_of_transactions(before, after), _of_decisions(before, after), _of_heartbeats(before, after)):
        signs.setdefault(owner, []).append(sign)
    return signs


def _of_transactions(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    earlier = {each.task: each for each in before.survey.transactions}
    later = {each.task: each for each in after.survey.transactions}
    for task, state in after.survey.states.items():
        was = before.survey.states.get(task)
        signs: list[str] = []
        if was is None:
            signs = ["has begun"]
        elif was != state:
            signs = [f"went from {printable(was)} to {printable(state)}"] if _is_its_own_doing(was, state) else []
        elif task in earlier and task in later:
            signs = [*_changes(earlier[task], later[task]), *_arrivals(later[task], before, after)]
        yield from ((task.owner, f"the transaction of task {task.partition}, attempt {task.attempt}, {each}") for each in signs)


def _is_its_own_doing(was: str, state: str) -> bool:
    """Whether the change counts as the query's own: it is no abort, and not the end of a commit that had begun."""
    return state not in ABORTED and not (was in ENDING and state in COMPLETE)


def _changes(was: SurveyedTransaction, now: SurveyedTransaction) -> list[str]:
    if was.identity != now.identity:
        return ["has another producer"]
    if was.known.start_time_ms != now.known.start_time_ms:
        return ["has begun anew"]
    if now.known.partitions - was.known.partitions:
        return ["has further partitions"]
    return []


def _arrivals(now: SurveyedTransaction, before: Look, after: Look) -> list[str]:
    for partition in now.written:
        old, new = before.producers.get(partition), after.producers.get(partition)
        if old is None or new is None or isinstance(old, KafkaError) or isinstance(new, KafkaError):
            continue  # see `unwatched`
        if old.get(now.known.producer_id) != new.get(now.known.producer_id):
            return [f"has new rows in {printable(partition)}"]
    return []


def _of_decisions(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    old, new = ({each.task.owner: each.decision for each in seen.survey.transactions} for seen in (before, after))
    for owner, decision in new.items():
        was = old.get(owner, decision)
        if isinstance(decision, Decision) and was != decision and not isinstance(was, KafkaError):
            yield owner, f"version {decision.version} is now {decision.state.value}"


def _of_heartbeats(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    for owner, heartbeat in after.heartbeats.items():
        was = before.heartbeats.get(owner, heartbeat)
        if was != heartbeat and not isinstance(was, KafkaError) and not isinstance(heartbeat, KafkaError):
            yield owner, "a task has shown that it is at work"
