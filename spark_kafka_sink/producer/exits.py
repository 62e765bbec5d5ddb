"""Closes producers that are still open when the program ends: their threads are daemons, and would leave queued rows unsent.

The thread of each producer closes it. The main thread, in an exit handler, asks all of them to do so, and waits EXIT_LIMIT_MS for
all together. If rows are left, it says on stderr how many, and what the program should have called.
Laws: nothing here starts a thread, since Python refuses that by then. The main thread takes no lock without a limit, as an
interrupt may have left one locked. No producer is kept alive, and a forked child leaves its parent's producers alone.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import weakref
from typing import NamedTuple, Protocol

from spark_kafka_sink.clock import Clock, wait_seconds
from spark_kafka_sink.producer import forks

EXIT_LIMIT_MS = 1_000  # for all producers together
_FAILING_MS = 100  # of these: how long the threads may take to fail the rows that are left, which calls callbacks


class ClosesAtExit(Protocol):
    """A producer's part that sends what is queued, on a thread of its own."""

    def close_within(self, timeout_ms: int) -> None:
        """Have the thread send what is queued, for at most `timeout_ms`, and end. Does not wait, and takes no lock for long."""

    def count_lost_rows(self) -> int:
        """How many rows were queued when `close_within` was called and are not acknowledged. Takes no lock."""


class _Registration(NamedTuple):
    producer_name: str
    thread: threading.Thread
    generation: int


_registrations: dict[weakref.ref[ClosesAtExit], _Registration] = {}


def close_at_exit(part: ClosesAtExit, producer_name: str, thread: threading.Thread) -> None:
    """Have the producer closed when the program ends, if it is still open. `thread`: runs until it is closed, and has started."""
    _registrations[weakref.ref(part, _forget)] = _Registration(producer_name, thread, forks.generation())


def _forget(reference: weakref.ref[ClosesAtExit]) -> None:
    _registrations.pop(reference, None)


@atexit.register
def _close_all() -> None:
    clock = Clock()
    deadline_ms = clock.now_ms() + EXIT_LIMIT_MS
    open_parts: list[tuple[ClosesAtExit, _Registration]] = []
    for reference, registration in tuple(_registrations.items()):
        part = reference()
        if part is not None and registration.thread.is_alive() and not forks.is_forked(registration.generation):
            open_parts.append((part, registration))
            part.close_within(EXIT_LIMIT_MS - _FAILING_MS)
    rows_by_producer: dict[str, int] = {}
    for part, registration in open_parts:
        registration.thread.join(wait_seconds(deadline_ms - clock.now_ms()))
        if row_count := part.count_lost_rows():
            rows_by_producer[registration.producer_name] = row_count
    if rows_by_producer:
        _report(rows_by_producer)


def _report(rows_by_producer: dict[str, int]) -> None:
    row_count = sum(rows_by_producer.values())
    names = ", ".join(f"{rows:,} of {name}" for name, rows in rows_by_producer.items())
    with contextlib.suppress(Exception):  # there may be no stderr any more
        sys.stderr.write(
            f"pykafka-sink: the program ends, and {row_count:,} row{'s' * (row_count != 1)} that it sent"
            f" {'are' if row_count != 1 else 'is'} lost, as no broker has acknowledged them ({names}); some may be written."
            " Call flush() or close() of the producer before the end, or make it by `with`\n"
        )
        sys.stderr.flush()
