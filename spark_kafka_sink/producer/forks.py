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


def call_in_children(function: Callable[[], None]) -> None:
    """Have `function` called in each child of this process, right after the fork. Does nothing on Windows, which has no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


_generation = 0  # how many times this process and its ancestors were forked


class HasFastPath(Protocol):
    """An object with a fast path that does not check for a fork."""

    def disable_fast_path(self) -> None:
        """Called in the child right after the fork: the next call must take the path that checks."""


_fast_path_owners: WeakSet[HasFastPath] = WeakSet()


def register_fast_path(owner: HasFastPath) -> None:
    """Have the fast path disabled in each child, as long as `owner` lives. Keeps no reference to it."""
    _fast_path_owners.add(owner)


def generation() -> int:
    """A number that changes in a child of this process; for `is_forked` and `check_not_forked`."""
    return _generation


def is_forked(object_generation: int) -> bool:
    """Whether this is a child of the process in which `generation()` was `object_generation`. Takes no lock."""
    return object_generation != _generation


def check_not_forked(object_generation: int, object_name: str) -> None:
    """Raises IllegalStateError if `is_forked(object_generation)`. `object_name`: for its text. Takes no lock."""
    if object_generation != _generation:
        raise IllegalStateError(
            f"{object_name} was made before this process was forked, and its thread runs in the parent process only: nothing that"
            " is sent here would be written; make a KafkaProducer in the child process"
        )


def _handle_fork() -> None:
    global _generation
    _generation += 1
    for each in list(_fast_path_owners):
        each.disable_fast_path()


call_in_children(_handle_fork)
