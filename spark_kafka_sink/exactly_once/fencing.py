"""Transactional ids that earlier tasks have left unfinished, and how they are fenced.

An id is unfinished until its transaction is complete. A task that takes an id leaves it Empty, which is unfinished, and so does
fencing. Therefore fence_all brings each id that it has fenced on to CompleteAbort. Ids that stay Empty belong to tasks that work,
have died or had no rows. Only unfinished ids are listed: they are few, however many ids a prefix has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from spark_kafka_sink.admin.question import Question
from spark_kafka_sink.admin.transaction_client import TransactionClient, WholeListQuestions
from spark_kafka_sink.admin.transaction_operations import ListedTransaction, TransactionState
from spark_kafka_sink.errors import UnsupportedVersionError, printable
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames

logger = logging.getLogger(__name__)

COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))
ENDING = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
UNFINISHED = (TransactionState.EMPTY, TransactionState.ONGOING, *sorted(ENDING))
_GUESSED_ATTEMPTS = 4  # the default of spark.task.maxFailures


class UnfinishedId(NamedTuple):
    """A transactional id whose transaction is not complete: the task attempt that had the id, and the state."""

    attempt_id: AttemptId
    state: str


def list_unfinished(client: TransactionClient, names: PrefixNames, *, at_once: bool = False) -> list[UnfinishedId] | None:
    """List the unfinished ids of this prefix. None: brokers before Kafka 3.0 cannot list. `at_once`: see list_transactions."""
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
    attempt_ids = (AttemptId(owner, partition, attempt) for partition in partitions for attempt in range(_GUESSED_ATTEMPTS))
    return [UnfinishedId(each, TransactionState.ONGOING) for each in attempt_ids]


def fence_all(client: TransactionClient, names: PrefixNames, attempt_ids: Collection[AttemptId]) -> int:
    """Fence these ids, and return how many. Blocks until their transactions are aborted, or committed if that had begun."""
    if not attempt_ids:
        return 0
    fenced_ids = client.fence(map(names.transactional_id, attempt_ids))
    for transactional_id in fenced_ids:
        logger.info("= fenced transactional id %s", printable(transactional_id))
    # An id that cannot be completed now is listed again, and fenced by the next write.
    for transactional_id, outcome in client.abort_fenced(fenced_ids, names.aborted_group).items():
        if outcome.error is not None:
            logger.debug("! transactional id %s stays Empty: %s", printable(transactional_id), outcome.error)
    return len(fenced_ids)
