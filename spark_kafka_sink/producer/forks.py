"""Whether this process was forked off after a producer was made: then that producer is of no use here.

A fork has the parent's memory and its sockets, but none of its threads. There is no Sender that would settle rows, a lock that
another thread held stays locked for ever, and whatever is done with the sockets is done to the parent's connections.
KafkaProducer, and what it hands out, remember `generation` from when they were made, and ask here before they wait or lock.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from spark_kafka_sink.errors import KafkaError

_generation = 0  # how many forks lie between the first process of this interpreter and this one


class LeftBehind(Protocol):
    """Whose fast path does not ask whether this is a fork."""

    def leave_behind(self) -> None:
        """Called in the child, before anything else there, so that the next call takes the path that asks."""
        ...


_watched: WeakSet[LeftBehind] = WeakSet()


def watch(each: LeftBehind) -> None:
    _watched.add(each)


def generation() -> int:
    return _generation


def is_forked(since: int) -> bool:
    """Whether this is a child of the process in which `generation()` was `since`. Takes no lock."""
    return since != _generation


def check_not_forked(since: int, who: str) -> None:
    """Raises KafkaError in a child of that process. Takes no lock."""
    if since != _generation:
        raise KafkaError(
            f"{who} was made before this process was forked off, and its thread lives in the parent process only: nothing that"
            " is sent here would ever be written; make a KafkaProducer in the child process",
            condition="KAFKA_ILLEGAL_STATE",
        )


def _in_child() -> None:
    global _generation
    _generation += 1
    for each in list(_watched):
        each.leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
