"""The transactional methods of KafkaProducer: the callers' side, any thread.

A call is posted to the Sender, and its caller waits at most max.block.ms. After a time-out the call continues, and the same call
made again waits for its end; until then any other call is rejected. After offsets that timed out, any call may follow (both as
in Java).
Rows are accepted only within a transaction (`write`). The end of a transaction first rejects new callers, then waits until all
callers who are handing rows over have finished, so that no row of one transaction is sent in the next. An abort does not wait
for them; the next transaction does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import IllegalStateError, KafkaError, KafkaTimeoutError, TransactionTimeoutError, fresh_copy
from spark_kafka_sink.interrupts import Inside, Waiters
from spark_kafka_sink.producer.transactions.group_offsets import checked_group, checked_offsets, checked_text
from spark_kafka_sink.producer.transactions.transactional_call import (
    ConsumerGroupMetadata,
    Method,
    OffsetAndMetadata,
    TransactionalCall,
)
from spark_kafka_sink.producer.transactions.transactions import Transactions
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class TransactionCalls:
    """Args:
    transactions: the state, which the Sender moves.
    encode_gathered: queues single records that were gathered, until a deadline (Clock.now_ms); false if some are left then.
    wake_sender: called after an operation was posted.
    clock, max_block_ms: for the bounded waits.
    took: called with method and nanoseconds of each call, for metrics.
    """

    def __init__(
        self,
        transactions: Transactions,
        encode_gathered: Callable[[int], bool],
        wake_sender: Callable[[], None],
        clock: Clock,
        max_block_ms: int,
        took: Callable[[Method, int], None],
    ) -> None:
        self._transactions = transactions
        self._encode_gathered = encode_gathered
        self._wake_sender = wake_sender
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._took = took
        self._lock = threading.Lock()  # guards those below
        self._waiters = Waiters(self._lock)  # woken when a writer has left
        self._is_open = False
        self._beginning = Inside()  # the call that waits in begin()
        self._writers = Inside()
        self._pending: TransactionalCall | None = None  # the last call; unless `is_told`, nobody has received its outcome

    def write(self, hand_over_rows: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call `hand_over_rows`. Raises IllegalStateError outside of a transaction, or a failed one's error."""
        call = threading.Lock()
        try:
            with call:
                with self._lock:
                    if not self._is_open:
                        self._transactions.check_usable()
                        raise IllegalStateError(
                            "A transactional producer accepts rows only within a transaction: call begin_transaction() first"
                        )
                    self._writers.add(call)
                return hand_over_rows(*args, **more)
        finally:
            with self._lock:
                self._waiters.wake_all_locked()

    def use_id(self, transactional_id: str) -> None:
        if not checked_text(transactional_id, "transactional.id"):
            raise ValueError("transactional.id must not be empty")
        self._call(Method.USE_ID, self._deadline_ms(), transactional_id=transactional_id)

    def init(self) -> None:
        self._call(Method.INIT, self._deadline_ms()).is_told = True

    def begin(self) -> None:
        deadline_ms = self._deadline_ms()
        call = threading.Lock()
        with call:
            with self._lock:
                self._unfinished_locked(Method.BEGIN)
                if self._beginning:
                    raise IllegalStateError("begin_transaction() is not possible now: another thread waits in it")
                self._beginning.add(call)
            # Of a transaction that was aborted while they wrote: what they leave behind fails here, not in this transaction.
            self._hand_over(Method.BEGIN, deadline_ms)
            operation = self._call(Method.BEGIN, deadline_ms)
            self._is_open = True
        operation.is_told = True  # until now no other call was possible

    def send_offsets(self, offsets: object, group: object) -> None:
        checked = checked_group(group)
        positions = checked_offsets(offsets)
        if positions:
            self._call(Method.SEND_OFFSETS, self._deadline_ms(), positions, checked)

    def commit(self) -> None:
        self._end(Method.COMMIT).is_told = True

    def prepare(self) -> PreparedTransaction:
        operation = self._end(Method.PREPARE)
        prepared = self._transactions.prepared
        operation.is_told = True
        return prepared

    def abort(self) -> None:
        deadline_ms = self._deadline_ms()
        with self._lock:
            if self._unfinished_locked(Method.ABORT) is None:
                self._is_open = False
        self._call(Method.ABORT, deadline_ms).is_told = True

    def finish_abort(self) -> None:
        """Wait for the end of an abort that has timed out, if there is one."""
        pending = self._pending
        if pending is not None and pending.method is Method.ABORT and not pending.is_told:
            self.abort()

    def _end(self, method: Method) -> TransactionalCall:
        """Queue all rows that were handed over so far, then end the transaction."""
        deadline_ms = self._deadline_ms()
        with self._lock:
            is_new = self._unfinished_locked(method) is None
            if is_new:
                self._is_open = False
        if is_new:
            self._hand_over(method, deadline_ms)
        return self._call(method, deadline_ms)

    def _hand_over(self, method: Method, deadline_ms: int) -> None:
        """Wait until whoever was let in has queued its rows, and queue those that were gathered."""
        self._await_writers(method, deadline_ms)
        if not self._encode_gathered(deadline_ms):
            raise self._timed_out(method, "another thread is still encoding records")

    def _deadline_ms(self) -> int:
        return self._clock.now_ms() + self._max_block_ms

    def _await_writers(self, method: Method, deadline_ms: int) -> None:
        if not self._waiters.wait_until(lambda: not self._writers, self._clock, deadline_ms):
            raise self._timed_out(method, "another thread is still handing rows over")

    def _call(
        self,
        method: Method,
        deadline_ms: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        group: ConsumerGroupMetadata | None = None,
        transactional_id: str = "",
    ) -> TransactionalCall:
        """The operation, which has succeeded. The caller's last step is to set `is_told`: until then, an interrupt may strike and
        the same call finds it again.
        """
        started_ns = self._clock.now_ns()
        operation = self._posted(method, offsets, group, transactional_id)
        self._wake_sender()
        try:
            if not operation.wait(max(0, deadline_ms - self._clock.now_ms())):
                raise self._timed_out(method, self._transactions.waiting_for())
        finally:
            self._took(method, self._clock.now_ns() - started_ns)
        if operation.error is not None:
            error = fresh_copy(operation.error)
            operation.is_told = True
            raise error
        return operation

    def _posted(
        self,
        method: Method,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        group: ConsumerGroupMetadata | None,
        transactional_id: str,
    ) -> TransactionalCall:
        """The operation to wait for: the one that timed out before, or a new one."""
        with self._lock:
            operation = self._unfinished_locked(method)
            if operation is None:
                operation = TransactionalCall(method, self._clock, offsets, group, transactional_id)
                if method not in (Method.SEND_OFFSETS, Method.USE_ID):  # these are made anew, with what they say then
                    self._pending = operation
            self._transactions.post(operation)  # also again: an interrupt may have come before it was posted
            return operation

    def _unfinished_locked(self, method: Method) -> TransactionalCall | None:
        """The same call that timed out before, if there was one. Raises why this call is not possible now."""
        pending = self._pending
        if pending is not None and pending.is_told:
            pending = None
        if pending is not None and pending.method is not method:
            if method is not Method.ABORT or not pending.is_done or pending.error is None:
                raise IllegalStateError(
                    f"{method.value}() is not possible now: {pending.method.value}() timed out before and is still in progress;"
                    f" call {pending.method.value}() again to wait for its end"
                )
            pending = None  # a commit that failed after its caller had gone
        if pending is None:
            self._transactions.check_allowed(method)
        return pending

    def log_failed_abort(self, error: KafkaError) -> None:
        logger.warning("! the transaction could not be aborted: %s", error)

    def _timed_out(self, method: Method, why: str) -> KafkaTimeoutError:
        remedy = f"Call {method.value}() again to continue waiting"
        if method is Method.SEND_OFFSETS:
            remedy = "Send them again, or abort the transaction"
        return TransactionTimeoutError(
            f"{method.value}() has not ended within max.block.ms={self._max_block_ms}: {why}. {remedy}"
        )
