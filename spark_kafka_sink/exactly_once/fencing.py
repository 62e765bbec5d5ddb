"""Transactional ids that earlier tasks have left unfinished, and how they are fenced.

An id is unfinished until its transaction is complete. A task that begins leaves its id Empty, and fencing an id leaves it Empty,
too. So a fenced id is brought to CompleteAbort at once. Ids that are Empty then belong to tasks at work, dead ones, and those
without rows. Nobody has to look at what is complete: a prefix lists few ids, however many it has.
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
_GUESSED_ATTEMPTS = 4  # spark.task.maxFailures


class UnfinishedId(NamedTuple):
    task: AttemptId
    state: str


def list_unfinished(client: TransactionClient, names: PrefixNames, *, at_once: bool = False) -> list[UnfinishedId] | None:
    """List the unfinished ids of this prefix. None: the brokers cannot list (before Kafka 3.0). `at_once`: see the client."""
    try:
        found = client.list_transactions(names.id_prefix, UNFINISHED, at_once=at_once)
    except UnsupportedVersionError as error:
        logger.warning("! transactions that earlier runs have left open cannot be looked for: %s", error)
        return None
    return _unfinished(names, found)


def list_unfinished_question(client: TransactionClient, names: PrefixNames) -> Question[list[UnfinishedId]]:
    """The answer is what `list_unfinished` with `at_once` returns."""
    return client.list_transactions_question(names.id_prefix, UNFINISHED).then(partial(_unfinished, names))


def whole_list_questions(client: TransactionClient, names: PrefixNames) -> WholeListQuestions[list[UnfinishedId]] | None:
    """The questions that replace a call of `list_unfinished`; see the client."""
    questions = client.whole_list_questions(names.id_prefix, UNFINISHED)
    if questions is None:
        return None
    return WholeListQuestions(questions.found.then(partial(_unfinished, names)), questions.is_whole)


def _unfinished(names: PrefixNames, found: Iterable[ListedTransaction]) -> list[UnfinishedId]:
    tasks = ((names.parse(each.transactional_id), each.state) for each in found)
    return [UnfinishedId(task, state) for task, state in tasks if task is not None]


def guessed(owner: str, partitions: Iterable[int]) -> list[UnfinishedId]:
    """Where nothing can be listed: the ids that an owner has probably used."""
    tasks = (AttemptId(owner, partition, attempt) for partition in partitions for attempt in range(_GUESSED_ATTEMPTS))
    return [UnfinishedId(task, TransactionState.ONGOING) for task in tasks]


def fence_all(client: TransactionClient, names: PrefixNames, tasks: Collection[AttemptId]) -> int:
    """Fence these ids, and return how many. Blocks until each is: what was open is aborted or committed."""
    if not tasks:
        return 0
    fenced = client.fence(map(names.transactional_id, tasks))
    for transactional_id in fenced:
        logger.info("= fenced transactional id %s", printable(transactional_id))
    # An id that cannot be completed now is listed again, and fenced by the next write.
    for transactional_id, outcome in client.abort_fenced(fenced, names.aborted_group).items():
        if outcome.error is not None:
            logger.debug("! transactional id %s stays Empty: %s", printable(transactional_id), outcome.error)
    return len(fenced)
