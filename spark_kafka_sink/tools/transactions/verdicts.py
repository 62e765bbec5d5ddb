"""Which transactions of a prefix are to be ended, which are left alone, and why.

Judges from two looks; changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import KafkaError, printable_list
from spark_kafka_sink.exactly_once.settling import Fate
from spark_kafka_sink.tools.transactions.signs_of_life import NOTHING_SHOWN, Look, signs_of_life, unwatched_owners
from spark_kafka_sink.tools.transactions.survey import SurveyedTransaction

MAX_SIGNS = 3  # of an owner's signs of life


class Obstacle(Enum):
    """Why a transaction should not be ended, in the order in which judges look."""

    ALIVE = "the query is alive"
    UNWATCHED = "whether the query is alive cannot be seen"
    DECIDED = "decided: run the query again, it will be committed; or `commit` it now"
    REPEATED = "its commit is being repeated, as rows of it hang"
    UNREADABLE = "whether its version is decided cannot be read"
    UNPROVEN = "it cannot be told any more whether the rows that hang, or the marker, were committed"
    ENDING = "brokers are ending it already, and have not come to an end"


_FORCE_OVERRIDES, _DECIDED_OVERRIDES = {Obstacle.ALIVE, Obstacle.UNWATCHED}, {Obstacle.DECIDED, Obstacle.UNREADABLE}


def overridden_by_flags(*, force: bool, even_decided: bool) -> set[Obstacle]:
    """The obstacles that the flags --force and --even-decided override."""
    return (_FORCE_OVERRIDES if force else set()) | (_DECIDED_OVERRIDES if even_decided else set())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one transaction, and why.

    Args:
        obstacles: the obstacle that stands in the way, or all that were overridden; each with details, or "".
        is_left_alone: whether an obstacle stands in the way.
    """

    transaction: SurveyedTransaction
    obstacles: Mapping[Obstacle, str]
    is_left_alone: bool = False


def judge(before: Look, after: Look, overridden_obstacles: Collection[Obstacle]) -> list[Verdict]:
    """A verdict on aborting each transaction that is open, Empty or stuck in its end at the second look, in its order.

    Args:
        overridden_obstacles: those that flags override, so that they do not stand in the way.
    """
    signs, reasons_by_owner = signs_of_life(before, after), unwatched_owners(before, after)
    earlier_descriptions = {each.attempt_id: each.description for each in before.survey.transactions}
    verdicts = []
    for transaction in after.survey.unfinished_transactions:
        if transaction.is_ongoing or transaction.is_empty:
            obstacles = dict(_obstacles(transaction, signs, reasons_by_owner))
            standing_obstacle = next((obstacle for obstacle in obstacles if obstacle not in overridden_obstacles), None)
            shown_obstacles = obstacles if standing_obstacle is None else {standing_obstacle: obstacles[standing_obstacle]}
            verdicts.append(Verdict(transaction, shown_obstacles, is_left_alone=standing_obstacle is not None))
        elif earlier_descriptions.get(transaction.attempt_id) == transaction.description:  # its end has come no further
            verdicts.append(Verdict(transaction, {Obstacle.ENDING: ""}, is_left_alone=True))
    return verdicts


def judge_decided(before: Look, after: Look, overridden_obstacles: Collection[Obstacle]) -> list[Verdict]:
    """A verdict on committing each open transaction of a version that is decided."""
    passed_over = {*_DECIDED_OVERRIDES, Obstacle.REPEATED}  # what `commit` is for
    verdicts = judge(before, after, passed_over.union(overridden_obstacles))
    return [
        replace(verdict, obstacles={each: why for each, why in verdict.obstacles.items() if each not in passed_over})
        for verdict in verdicts
        if verdict.transaction.is_decided
    ]


def judge_hanging(before: Look, after: Look, overridden_obstacles: Collection[Obstacle], epoch_distance: int) -> list[Verdict]:
    """A verdict on repeating the decision about each transaction that hangs, may hang, or is decided and not carried out.

    Args:
        epoch_distance: how much higher the epoch of an id is than that of rows that hang, if these are of its last commit.
    """
    signs, reasons_by_owner = signs_of_life(before, after), unwatched_owners(before, after)
    verdicts = []
    for transaction in after.survey.transactions_to_repair:
        obstacles = dict(_obstacles_of_owner(transaction, signs, reasons_by_owner))
        if isinstance(transaction.decision, KafkaError):
            obstacles[Obstacle.UNREADABLE] = str(transaction.decision)
        elif not _is_proven(transaction, epoch_distance):
            obstacles[Obstacle.UNPROVEN] = ""
        standing_obstacle = next((each for each in obstacles if each not in overridden_obstacles), None)
        shown_obstacles = obstacles if standing_obstacle is None else {standing_obstacle: obstacles[standing_obstacle]}
        verdicts.append(Verdict(transaction, shown_obstacles, is_left_alone=standing_obstacle is not None))
    return verdicts


def _is_proven(transaction: SurveyedTransaction, epoch_distance: int) -> bool:
    """Whether it is known what was decided about the rows that hang: by a decision, or by the coordinator."""
    if transaction.fate is Fate.CUT_OFF:
        return False
    if transaction.known_version is not None or transaction.is_aborted:
        return True
    if transaction.state != TransactionState.COMPLETE_COMMIT or not transaction.open_rows:
        return False  # of a marker alone nobody knows the epoch
    epoch, row_epochs = transaction.description.producer_epoch, {each.producer_epoch for each in transaction.open_rows.values()}
    if transaction.decided_entry is not None and row_epochs == {transaction.decided_entry.producer_epoch}:
        return True
    return all(epoch - each == epoch_distance for each in row_epochs)


def _obstacles_of_owner(
    transaction: SurveyedTransaction, signs: Mapping[str, Sequence[str]], reasons_by_owner: Mapping[str, str]
) -> Iterator[tuple[Obstacle, str]]:
    owner = transaction.attempt_id.owner
    if owner in signs:
        yield Obstacle.ALIVE, printable_list(signs[owner], MAX_SIGNS)
    elif owner in reasons_by_owner:
        yield Obstacle.UNWATCHED, reasons_by_owner[owner]


def _obstacles(
    transaction: SurveyedTransaction, signs: Mapping[str, Sequence[str]], reasons_by_owner: Mapping[str, str]
) -> Iterator[tuple[Obstacle, str]]:
    yield from _obstacles_of_owner(transaction, signs, reasons_by_owner)
    if transaction.is_repetition:
        yield Obstacle.REPEATED, ""
    elif transaction.is_decided:
        yield Obstacle.DECIDED, ""
    elif transaction.hangs and (transaction.fate is Fate.CUT_OFF or not transaction.is_aborted):
        yield Obstacle.UNPROVEN, ""
    elif transaction.is_ongoing and isinstance(transaction.decision, KafkaError):
        yield Obstacle.UNREADABLE, str(transaction.decision)
    elif transaction.is_ongoing and transaction.decision is None and not transaction.description.partitions:
        yield Obstacle.UNREADABLE, NOTHING_SHOWN  # brokers hide decisions that name a topic that may not be described
