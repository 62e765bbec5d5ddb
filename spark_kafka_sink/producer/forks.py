"""Detects that this process was forked after a producer was made: the child cannot use that producer.

A forked child has the parent's memory and sockets, but none of its threads. It has no Sender to settle rows; a lock that another
thread held stays locked forever; and using the sockets would disturb the parent's connections.
A producer, a Delivery and a RecordBundle store `generation()` when they are made, and check it here before they wait or lock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from spark_kafka_sink.errors import IllegalStateError


def call_in_children(run: Callable[[], None]) -> None:
    """Have `run` called in each child of this process, right after the fork. Does nothing on Windows, which has no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=run)


_generation = 0  # how many times this process and its ancestors were forked


class HasFastPath(Protocol):
    """An object with a fast path that does not check for a fork."""

    def disable_fast_path(self) -> None:
        """Called in the child right after the fork: the next call must take the path that checks."""
        ...


_watched: WeakSet[HasFastPath] = WeakSet()


def watch(owner: HasFastPath) -> None:
    _watched.add(owner)


def generation() -> int:
    return _generation


def is_forked(since: int) -> bool:
    """Whether this is a child of the process in which `generation()` was `since`. Takes no lock."""
    return since != _generation


def check_not_forked(since: int, who: str) -> None:
    """Raises IllegalStateError if `is_forked(since)`. `who` names the object in the error. Takes no lock."""
    if since != _generation:
        raise IllegalStateError(
            f"{who} was made before this process was forked, and its thread runs in the parent process only: nothing that is"
            " sent here would be written; make a KafkaProducer in the child process"
        )


def _in_child() -> None:
    global _generation
    _generation += 1
    for each in list(_watched):
        each.disable_fast_path()


call_in_children(_in_child)
