"""The transactional methods of KafkaProducer: the callers' side, any thread.

A call is posted to the Sender, and its caller waits at most max.block.ms. After a time-out the call continues, and the same call
made again waits for its end; until then any other call is rejected. After offsets that timed out, any call may follow (both as
in Java).
Rows are accepted only within a transaction (`writing`). The end of a transaction first rejects new callers, then waits until all
callers who are handing rows over have finished, so that no row of one transaction is sent in the next. An abort does not wait
for them; the next transaction does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import IllegalStateError, KafkaError, KafkaTimeoutError, TransactionTimeoutError, fresh_copy
from spark_kafka_sink.producer.group_offsets import checked_group, checked_offsets, checked_text
from spark_kafka_sink.producer.operations import ConsumerGroupMetadata, Kind, OffsetAndMetadata, Operation
from spark_kafka_sink.producer.sender.transactions import Transactions
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


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
        took: Callable[[Kind, int], None],
    ) -> None:
        self._transactions = transactions
        self._encode_gathered = encode_gathered
        self._wake_sender = wake_sender
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._took = took
        self._changed = threading.Condition()  # guards those below; notified when the last writer has left
        self._is_open = False
        self._ends = 0  # how many transactions have been ended, as far as callers are concerned
        self._is_beginning = False  # a thread waits in begin()
        self._writers = 0
        self._pending: Operation | None = None  # posted, and its caller has not received its outcome

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Rows are handed over in this context. Raises IllegalStateError outside of a transaction, or a failed one's error."""
        with self._changed:
            if not self._is_open:
                self._transactions.check_usable()
                raise IllegalStateError(
                    "A transactional producer accepts rows only within a transaction: call begin_transaction() first"
                )
            self._writers += 1
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                if not self._writers:
                    self._changed.notify_all()

    def use_id(self, transactional_id: str) -> None:
        if not checked_text(transactional_id, "transactional.id"):
            raise ValueError("transactional.id must not be empty")
        self._call(Kind.USE_ID, self._deadline_ms(), transactional_id=transactional_id)

    def init(self) -> None:
        self._call(Kind.INIT, self._deadline_ms())

    def begin(self) -> None:
        deadline_ms = self._deadline_ms()
        with self._changed:
            self._unfinished_locked(Kind.BEGIN)
            if self._is_beginning:
                raise IllegalStateError("begin_transaction() is not possible now: another thread waits in it")
            self._is_beginning = True
            ends = self._ends
        try:
            self._begin(deadline_ms)
        finally:
            with self._changed:
                self._is_beginning = False
        with self._changed:
            self._is_open = self._ends == ends  # otherwise another thread has ended it already

    def _begin(self, deadline_ms: int) -> None:
        # Of a transaction that was aborted while they wrote: what they leave behind fails here, not in this transaction.
        self._hand_over(Kind.BEGIN, deadline_ms)
        self._call(Kind.BEGIN, deadline_ms)

    def send_offsets(self, offsets: object, group: object) -> None:
        checked = checked_group(group)
        positions = checked_offsets(offsets)
        if positions:
            self._call(Kind.SEND_OFFSETS, self._deadline_ms(), positions, checked)

    def commit(self) -> None:
        self._end(Kind.COMMIT)

    def prepare(self) -> PreparedTransaction:
        self._end(Kind.PREPARE)
        return self._transactions.prepared

    def abort(self) -> None:
        deadline_ms = self._deadline_ms()
        with self._changed:
            if self._unfinished_locked(Kind.ABORT) is None:
                self._close_locked()
        self._call(Kind.ABORT, deadline_ms)

    def finish_abort(self) -> None:
        """Wait for the end of an abort that has timed out, if there is one."""
        with self._changed:
            is_due = self._pending is not None and self._pending.kind is Kind.ABORT
        if is_due:
            self.abort()

    def _end(self, kind: Kind) -> None:
        """Queue all rows that were handed over so far, then end the transaction."""
        deadline_ms = self._deadline_ms()
        with self._changed:
            is_new = self._unfinished_locked(kind) is None
            if is_new:
                self._close_locked()
        if is_new:
            self._hand_over(kind, deadline_ms)
        self._call(kind, deadline_ms)

    def _hand_over(self, kind: Kind, deadline_ms: int) -> None:
        """Wait until whoever was let in has queued its rows, and queue those that were gathered."""
        self._await_writers(kind, deadline_ms)
        if not self._encode_gathered(deadline_ms):
            raise self._timed_out(kind, "another thread is still encoding records")

    def _deadline_ms(self) -> int:
        return self._clock.now_ms() + self._max_block_ms

    def _close_locked(self) -> None:
        """No more rows are let in."""
        self._is_open = False
        self._ends += 1

    def _await_writers(self, kind: Kind, deadline_ms: int) -> None:
        with self._changed:
            while self._writers:
                remaining_ms = deadline_ms - self._clock.now_ms()
                if remaining_ms <= 0:
                    raise self._timed_out(kind, "another thread is still handing rows over")
                self._clock.wait(self._changed, remaining_ms)

    def _call(
        self,
        kind: Kind,
        deadline_ms: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        group: ConsumerGroupMetadata | None = None,
        transactional_id: str = "",
    ) -> None:
        started_ns = self._clock.now_ns()
        operation = self._posted(kind, offsets, group, transactional_id)
        self._wake_sender()
        try:
            if not operation.wait(max(0, deadline_ms - self._clock.now_ms())):
                raise self._timed_out(kind, self._transactions.waiting_for())
        finally:
            self._took(kind, self._clock.now_ns() - started_ns)
        with self._changed:
            if self._pending is operation:
                self._pending = None
        if operation.error is not None:
            raise fresh_copy(operation.error)

    def _posted(
        self,
        kind: Kind,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        group: ConsumerGroupMetadata | None,
        transactional_id: str,
    ) -> Operation:
        """The operation to wait for: the one that timed out before, or a new one."""
        with self._changed:
            operation = self._unfinished_locked(kind)
            if operation is None:
                operation = Operation(kind, self._clock, offsets, group, transactional_id)
                if kind not in (Kind.SEND_OFFSETS, Kind.USE_ID):  # these are made anew, with what they say then
                    self._pending = operation
                self._transactions.post(operation)
            return operation

    def _unfinished_locked(self, kind: Kind) -> Operation | None:
        """The same call that timed out before, if there was one. Raises why this call is not possible now."""
        pending = self._pending
        if pending is not None and pending.kind is not kind:
            if kind is not Kind.ABORT or not pending.is_done or pending.error is None:
                raise IllegalStateError(
                    f"{kind.value}() is not possible now: {pending.kind.value}() timed out before and is still in progress;"
                    f" call {pending.kind.value}() again to wait for its end"
                )
            self._pending = pending = None  # a commit that failed after its caller had gone
        if pending is None:
            self._transactions.check_allowed(kind)
        return pending

    def log_failed_abort(self, error: KafkaError) -> None:
        logger.warning("! the transaction could not be aborted: %s", error)

    def _timed_out(self, kind: Kind, why: str) -> KafkaTimeoutError:
        remedy = f"Call {kind.value}() again to continue waiting"
        if kind is Kind.SEND_OFFSETS:
            remedy = "Send them again, or abort the transaction"
        return TransactionTimeoutError(f"{kind.value}() has not ended within max.block.ms={self._max_block_ms}: {why}. {remedy}")
