"""Transactional ids that earlier tasks have left behind, and how they are fenced.

An id is at rest when its transaction is committed, and settled (settling.py). All others are listed: a task that takes an id
leaves it Empty, and what is aborted, by brokers or by who fences it, may hang. settle_left brings them to rest. So the list is
short, however many ids a prefix has, and nothing on it is forgotten when a driver dies.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from spark_kafka_sink.admin.question import Question
from spark_kafka_sink.admin.transaction_client import (
    FENCING_TRANSACTION_TIMEOUT_MS,
    TransactionClient,
    WholeListQuestions,
)
from spark_kafka_sink.admin.transaction_operations import (
    ListedTransaction,
    TransactionDescription,
    TransactionEnd,
    TransactionState,
)
from spark_kafka_sink.errors import KafkaTimeoutError, UnsupportedVersionError, printable
from spark_kafka_sink.exactly_once.names import FIRST_SLOT, AttemptId, PrefixNames, id_number
from spark_kafka_sink.protocol.producer_identity import FIRST_LEVEL_OF_V2, PreparedTransaction, ProducerIdentity

logger = logging.getLogger(__name__)

TAKING_TIMEOUT_MS = FENCING_TRANSACTION_TIMEOUT_MS + 1  # of a task that has not found out yet whether an id was somebody else's
ENDING = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))
UNFINISHED = (TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_ABORT, *sorted(ENDING))
_CAN_WRITE = (TransactionState.EMPTY, TransactionState.ONGOING)  # a task may still be at work
_GUESSED_ATTEMPTS = 4  # the default of spark.task.maxFailures
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 2, 100


class UnfinishedId(NamedTuple):
    """A transactional id that is not at rest: the task attempt that had the id, and the state."""

    attempt_id: AttemptId
    state: str


def list_unfinished(client: TransactionClient, names: PrefixNames, *, at_once: bool = False) -> list[UnfinishedId] | None:
    """List the ids of this prefix that are not at rest. None: brokers before Kafka 3.0 cannot list. `at_once`: see
    list_transactions."""
    try:
        transactions = client.list_transactions(names.id_prefix, UNFINISHED, at_once=at_once)
    except UnsupportedVersionError as error:
        logger.warning("! transactions that earlier runs have left open cannot be looked for: %s", error)
        return None
    return _parse_unfinished(names, transactions)


def list_unfinished_question(client: TransactionClient, names: PrefixNames) -> Question[list[UnfinishedId]]:
    """The answer is what `list_unfinished` with `at_once` returns."""
    return client.list_transactions_question(names.id_prefix, UNFINISHED).then(partial(_parse_unfinished, names))


def whole_list_questions(client: TransactionClient, names: PrefixNames) -> WholeListQuestions[list[UnfinishedId]] | None:
    """The questions that replace a call of `list_unfinished`; None if the client does not know yet whom to ask."""
    questions = client.whole_list_questions(names.id_prefix, UNFINISHED)
    if questions is None:
        return None
    return WholeListQuestions(questions.listing.then(partial(_parse_unfinished, names)), questions.is_whole)


def _parse_unfinished(names: PrefixNames, transactions: Iterable[ListedTransaction]) -> list[UnfinishedId]:
    pairs = ((names.parse(each.transactional_id), each.state) for each in transactions)
    return [UnfinishedId(attempt_id, state) for attempt_id, state in pairs if attempt_id is not None]


def guess_unfinished(owner: str, partitions: Iterable[int]) -> list[UnfinishedId]:
    """The ids that an owner has probably used, for brokers that cannot list."""
    numbers = [id_number(attempt, FIRST_SLOT) for attempt in range(_GUESSED_ATTEMPTS)]
    attempt_ids = (AttemptId(owner, partition, number) for partition in partitions for number in numbers)
    return [UnfinishedId(each, TransactionState.ONGOING) for each in attempt_ids]


def is_taken_by_fencer(description: TransactionDescription) -> bool:
    """Whether who fences has taken the id last: the coordinator keeps the time-out with which that was done."""
    return description.timeout_ms == FENCING_TRANSACTION_TIMEOUT_MS


Descriptions = Mapping[str, TransactionDescription | None]


def describe(client: TransactionClient, names: PrefixNames, attempt_ids: Collection[AttemptId]) -> Descriptions:
    """Describe these ids, by transactional id. Empty if brokers cannot."""
    try:
        return client.describe_transactions(map(names.transactional_id, attempt_ids)) if attempt_ids else {}
    except UnsupportedVersionError:
        return {}


def fence_all(
    client: TransactionClient, names: PrefixNames, attempt_ids: Collection[AttemptId], descriptions: Descriptions
) -> dict[AttemptId, TransactionDescription | None]:
    """Fence these ids: no transaction of them can be committed any more. Blocks until those that are being ended have ended.

    With transaction.version 2, EndTxn(abort) has exactly the producer id and epoch that were described: it fails if a driver has
    committed the transaction meanwhile, and such an id is left alone. One that a task is taking is taken from it before that: it
    would go on with the epoch that EndTxn gives, which a coordinator takes for that of a repeated request. Below 2, where an
    abort leaves the epoch, and with brokers that describe nothing, InitProducerId takes the id.

    Args:
        descriptions: of the ids; read before the decisions that protect others.

    Returns:
        The ids that are to be settled, and what their transactions were before they were aborted.
    """
    left: dict[AttemptId, TransactionDescription | None] = {}
    to_end: list[PreparedTransaction] = []
    taken_by_tasks: dict[str, ProducerIdentity] = {}
    to_take: list[str] = []
    ids = {names.transactional_id(each): each for each in attempt_ids}
    deadline_ms = client.clock.now_ms() + client.default_timeout_ms
    for transactional_id, attempt_id in ids.items():
        description = descriptions.get(transactional_id)
        if description is not None and description.state in ENDING:
            description = await_end(client, transactional_id, deadline_ms)
        if description is not None and description.state not in _CAN_WRITE:
            if description.state != TransactionState.COMPLETE_COMMIT:
                left[attempt_id] = description
        elif description is None or not client.bumps_epochs:
            to_take.append(transactional_id)
        elif description.timeout_ms == TAKING_TIMEOUT_MS:
            taken_by_tasks[transactional_id] = description.identity
        else:
            to_end.append(PreparedTransaction(transactional_id, *description.identity, FIRST_LEVEL_OF_V2))
    taken = client.take_over(taken_by_tasks)
    to_end += [PreparedTransaction(key, *each, FIRST_LEVEL_OF_V2) for key, each in taken.items() if each is not None]
    ended_ids = [*_end_exactly(client, to_end), *client.fence(to_take)]
    left |= {ids[each]: descriptions.get(each) for each in ended_ids}
    for attempt_id in left:
        logger.info("= fenced transactional id %s", printable(names.transactional_id(attempt_id)))
    return left


def _end_exactly(client: TransactionClient, transactions: Sequence[PreparedTransaction]) -> list[str]:
    """Abort transactions with these producer ids and epochs. Returns the ids that are aborted; others are not as they were."""
    ended_ids = []
    for transactional_id, outcome in client.end_transactions(transactions, commit=False).items():
        if outcome.end is TransactionEnd.FAILED and outcome.error is not None:
            raise outcome.error
        if outcome.end is TransactionEnd.ENDED:
            ended_ids.append(transactional_id)
        else:
            logger.debug("= transactional id %s is not as it was: %s", printable(transactional_id), outcome.error)
    return ended_ids


def await_end(client: TransactionClient, transactional_id: str, deadline_ms: int) -> TransactionDescription | None:
    """Describe an id when its coordinator has ended the transaction. Raises KafkaTimeoutError if that takes too long."""
    pause_ms = _FIRST_PAUSE_MS
    while True:
        description = client.describe_transactions([transactional_id])[transactional_id]
        if description is None or description.state not in ENDING:
            return description
        if client.clock.now_ms() >= deadline_ms:
            raise KafkaTimeoutError(
                f"transactional id {printable(transactional_id)} is still {description.state}: a partition of its transaction may"
                " have no leader"
            )
        client.pause(pause_ms)
        pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
