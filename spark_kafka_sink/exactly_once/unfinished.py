"""Transactional ids that earlier tasks have left, and how they are put to rest.

An id is at rest when its last transaction is complete, or when `fence` has taken it from its producer: whoever held it can write
nothing more under it. Fencing leaves the state Empty, which a task that begins has too; the time-out that an id is fenced with
tells them apart, so that ids at rest are not fenced again by every later write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from spark_kafka_sink.config.sink_options import RESERVED_TIMEOUT_MS
from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.coordination.transactions import TransactionState
from spark_kafka_sink.errors import AuthorizationError, UnsupportedVersionError, printable
from spark_kafka_sink.exactly_once.names import Names, TaskId

logger = logging.getLogger(__name__)

FENCED_TIMEOUT_MS = RESERVED_TIMEOUT_MS  # no task has it; FenceProducer says why it is not smaller
COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))
_GUESSED_ATTEMPTS = 4  # spark.task.maxFailures


class Found(NamedTuple):
    task: TaskId
    state: str


def listed(client: TransactionClient, names: Names, begin: str) -> list[Found] | None:
    """The ids of this prefix that begin with `begin`, in any state; None when the brokers cannot list (before Kafka 3.0)."""
    try:
        found = client.list_transactions(begin, probed=names.listed)
    except UnsupportedVersionError as error:
        logger.warning("! transactions that earlier runs have left open cannot be looked for: %s", error)
        return None
    tasks = ((names.parse(each.transactional_id), each.state) for each in found)
    return [Found(task, state) for task, state in tasks if task is not None]


def guessed(owner: str, run: str, partitions: Iterable[int]) -> list[Found]:
    """Where nothing can be listed: the ids that a run, known from its decision, has probably used."""
    tasks = (TaskId(owner, partition, run, attempt) for partition in partitions for attempt in range(_GUESSED_ATTEMPTS))
    return [Found(task, TransactionState.ONGOING) for task in tasks]


def put_to_rest(
    client: TransactionClient, names: Names, found: Iterable[Found], is_foreign: Callable[[TaskId], bool]
) -> list[TaskId]:
    """Fence the ids that are not at rest, and return them. Blocks until each is: what was open is aborted or committed."""
    unfinished = [each for each in found if each.state not in COMPLETE and is_foreign(each.task)]
    resting = _at_rest(client, names, [each.task for each in unfinished if each.state == TransactionState.EMPTY])
    tasks = [each.task for each in unfinished if each.task not in resting]
    client.fence(map(names.transactional_id, tasks), transaction_timeout_ms=FENCED_TIMEOUT_MS)
    for task in tasks:
        logger.info("= fenced transactional id %s", printable(names.transactional_id(task)))
    return tasks


def _at_rest(client: TransactionClient, names: Names, empty: Iterable[TaskId]) -> set[TaskId]:
    """Those that have been fenced and not used since."""
    ids = {names.transactional_id(task): task for task in empty}
    try:
        found = client.describe_transactions(ids)
    except (AuthorizationError, UnsupportedVersionError):
        return set()
    return {
        ids[transactional_id]
        for transactional_id, each in found.items()
        if each is not None and each.state == TransactionState.EMPTY and each.timeout_ms == FENCED_TIMEOUT_MS
    }
