"""Calls that hand rows over, and what becomes of the producer when one of them is interrupted.

While a call hands rows over, nobody else may know of some rows and some memory, and batches may be half filled. Nobody can finish
its work after an interrupt, so the producer ends, as it does when its Sender fails. Every row that is not settled fails with an
error that names the interrupt, later calls raise that error, and close() waits for no row. interrupts.py has the rule.
Used by RecordGatherer, ColumnSender and TableSender; the Sender looks at `failure` in each round, callers look before each call.

Law: a call was interrupted if it is over, and its hand-over has begun and not ended. A lock shows whether the call is over, and
Python releases it however the call ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.interrupts import Waiters

INTERRUPTED_CONDITION = "KAFKA_INTERRUPTED"  # the condition of the error that `failure` returns

P = ParamSpec("P")
T = TypeVar("T")

# A call that raises one of these has cleaned up: its rows that are in no batch have failed, and so does a batch that it could not
# fill. After any other exception, how far the call came is not known, and the producer ends.
CLEANED_UP_ERRORS = (KafkaError, pa.ArrowException, MemoryError, OverflowError)
UNKNOWN_PROGRESS_TEXT = "an error came while rows were handed over, and how far the call came is not known"  # cleaning up failed


class HandOver:
    """One call that hands rows over to the accumulator, and how far its hand-over has come."""

    __slots__ = ("_unfinished_hand_overs", "has_queued_rows", "liveness_lock", "thread_id")

    def __init__(self, unfinished_hand_overs: set[HandOver]) -> None:
        self._unfinished_hand_overs = unfinished_hand_overs  # they have begun and not ended
        self.liveness_lock = threading.Lock()  # held until the call is over
        self.thread_id = threading.get_ident()
        self.has_queued_rows = False  # some, perhaps not all: the call cannot be repeated

    def begin(self) -> None:
        """From here on an interrupt ends the producer. A second call does nothing."""
        self._unfinished_hand_overs.add(self)

    def end(self) -> None:
        """The call holds no rows or memory any more: from here on an interrupt does not end the producer."""
        self._unfinished_hand_overs.discard(self)

    def begin_wait(self) -> None:
        """The call holds no memory and begins to wait. An interrupt of the wait ends the producer only if rows are queued."""
        if not self.has_queued_rows:
            self.end()

    @property
    def was_interrupted(self) -> bool:
        # In this order: a call that ends normally leaves the set first.
        return not self.liveness_lock.locked() and self in self._unfinished_hand_overs


class HandOvers:
    """Runs calls that hand rows over, and remembers whether one was interrupted."""

    def __init__(self, clock: Clock, on_failure: Callable[[], None]) -> None:
        self._clock = clock
        self._on_failure = on_failure  # called when an interrupt has ended the producer: stops `send` and wakes the Sender
        self._unfinished_hand_overs: set[HandOver] = set()
        self._failure: KafkaError | None = None
        self._is_reported = False  # `on_failure` has been called
        self._lock = threading.Lock()  # guards what `wait_until` looks at
        self._waiters = Waiters(self._lock)  # woken whenever a call is over

    def failure(self) -> KafkaError | None:
        """Why the producer has ended, if a call was interrupted. Who finds that first calls `on_failure`. Any thread."""
        if self._failure is None and any(each.was_interrupted for each in tuple(self._unfinished_hand_overs)):
            self._failure = _interrupt_error("An interrupt")
        if self._failure is not None and not self._is_reported:
            self._on_failure()
            self._is_reported = True
        return self._failure

    def run(self, work: Callable[Concatenate[HandOver, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work`, which begins the hand-over. It ends when `work` ends it, returns, or raises one of CLEANED_UP_ERRORS."""
        hand_over = HandOver(self._unfinished_hand_overs)
        try:
            with hand_over.liveness_lock:
                try:
                    result = work(hand_over, *args, **kwargs)
                except CLEANED_UP_ERRORS:
                    hand_over.end()
                    raise
                hand_over.end()
                return result
        except BaseException as error:
            if hand_over.was_interrupted:
                self._failure = self._failure or _interrupt_error(repr(error))
                self.failure()
            raise
        finally:
            if self._waiters:
                with self._lock:
                    self._waiters.wake_all_locked()

    def wait_until(self, is_true: Callable[[], bool], deadline_ms: int) -> bool:
        """Wait until `is_true()`, which is called under a lock, each time a call is over. False after `deadline_ms`."""
        return self._waiters.wait_until(is_true, self._clock, deadline_ms)


def _interrupt_error(interrupt: str) -> KafkaError:
    return KafkaError(
        f"{interrupt} ended a call that was handing rows over, and the producer with it: rows that are not acknowledged may be"
        " written or not. Close this producer and make a new one",
        condition=INTERRUPTED_CONDITION,
    )
