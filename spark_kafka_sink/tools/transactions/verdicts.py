"""Which transactions of a prefix are to be aborted, which are left alone, and why.

Part of `transactions`. Judges by two looks; changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from spark_kafka_sink.errors import KafkaError, printable_list
from spark_kafka_sink.tools.transactions.signs_of_life import NOTHING_SHOWN, Look, signs_of_life, unwatched
from spark_kafka_sink.tools.transactions.survey import Transaction

SHOWN_SIGNS = 3  # of an owner's signs of life


class Fate(Enum):
    ABORT = "to be aborted"
    COMMIT = "to be committed"
    ALIVE = "the query is alive"
    UNWATCHED = "whether the query is alive cannot be seen"
    DECIDED = "decided: run the query again, it will be committed; or `commit` it now"
    UNREADABLE = "whether its version is decided cannot be read"
    ENDING = "brokers are ending it already, and have not come to an end"


FORCE = frozenset((Fate.ALIVE, Fate.UNWATCHED))  # what --force goes over
EVEN_DECIDED = frozenset((Fate.DECIDED, Fate.UNREADABLE))


class Obstacle(NamedTuple):
    """Why a transaction should not be aborted. `reason` says more than the fate does, if there is more to say."""

    fate: Fate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Args:
        fate: what is to happen, or why nothing is.
        obstacles: for ABORT, what is gone over; otherwise the one that stands in the way.
    """

    transaction: Transaction
    fate: Fate
    obstacles: tuple[Obstacle, ...] = ()


def judge(before: Look, after: Look, allowed: Collection[Fate] = ()) -> list[Verdict]:
    """A verdict for each transaction that is open, or whose id is Empty, at the second look. Older ones first.

    Args:
        allowed: what is not to keep a transaction from being aborted.
    """
    signs, unseen = signs_of_life(before, after), unwatched(before, after)
    earlier = {each.task: each.known for each in before.survey.transactions}
    verdicts = []
    for each in after.survey.unfinished:
        if each.is_ongoing or each.is_empty:
            obstacles = tuple(_obstacles(each, signs, unseen))
            standing = next((obstacle for obstacle in obstacles if obstacle.fate not in allowed), None)
            if standing is None:
                verdicts.append(Verdict(each, Fate.ABORT, obstacles))
            else:
                verdicts.append(Verdict(each, standing.fate, (standing,)))
        elif earlier.get(each.task) == each.known:  # on the way to an end, and no further than before
            verdicts.append(Verdict(each, Fate.ENDING, (Obstacle(Fate.ENDING),)))
    return verdicts


def judge_decided(before: Look, after: Look, allowed: Collection[Fate] = ()) -> list[Verdict]:
    """A verdict for each open transaction of a version that is decided: Fate.COMMIT, or what stands in the way."""
    found = []
    for verdict in judge(before, after, EVEN_DECIDED.union(allowed)):
        if verdict.transaction.is_decided:
            obstacles = tuple(each for each in verdict.obstacles if each.fate not in EVEN_DECIDED)
            fate = Fate.COMMIT if verdict.fate is Fate.ABORT else verdict.fate
            found.append(Verdict(verdict.transaction, fate, obstacles))
    return found


def _obstacles(each: Transaction, signs: Mapping[str, Sequence[str]], unseen: Mapping[str, str]) -> Iterator[Obstacle]:
    owner = each.task.owner
    if owner in signs:
        yield Obstacle(Fate.ALIVE, printable_list(signs[owner], SHOWN_SIGNS))
    elif owner in unseen:
        yield Obstacle(Fate.UNWATCHED, unseen[owner])
    if each.is_decided:
        yield Obstacle(Fate.DECIDED)
    elif each.is_ongoing and isinstance(each.decision, KafkaError):
        yield Obstacle(Fate.UNREADABLE, str(each.decision))
    elif each.is_ongoing and each.decision is None and not each.known.partitions:
        yield Obstacle(Fate.UNREADABLE, NOTHING_SHOWN)  # brokers hide decisions that name a topic that may not be described
