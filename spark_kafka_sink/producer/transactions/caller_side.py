"""The callers' side of transactions: admits rows, posts calls and waits for them.

TransactionalMethods has the public methods; TransactionManager carries out the calls. Rows are accepted only within a transaction
(`write`). A commit or preparation first refuses new rows, then waits until callers have handed their rows over. After an abort,
the next begin waits for these callers instead. So no row of one transaction is sent in the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError, TransactionTimeoutError, fresh_copy
from spark_kafka_sink.interrupts import LiveCalls, Waiters
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.txn_requests.group_offsets import checked_group, checked_offsets, checked_text
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod, TransactionalCall
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, PreparedTransaction, ProducerIdentity

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class CallerSide:
    """The callers' side of the transactional methods: posts calls and waits for their outcomes. Any thread may use it. Each
    method but `write` blocks at most `max_block_ms`. TransactionalMethods says what each promises and raises."""

    manager: TransactionManager  # the state, which the Sender moves
    encode_all: Callable[[int], bool]  # encodes gathered records, until a time of Clock.now_ms; false if some are left
    wake_sender: Callable[[], None]  # called after a call was posted
    clock: Clock
    max_block_ms: int  # how long each call may wait
    record_call_time: Callable[[CalledMethod, int], None]  # called with method and nanoseconds of each call, for metrics
    last_trouble: Callable[[int], str | None]  # why brokers have not answered since a time of Clock.now_ms

    def __post_init__(self) -> None:
        # Guards _is_open, _begin_calls, _writers and _pending. begin() opens without it: no other call is possible then.
        self._lock = threading.Lock()
        self._waiters = Waiters(self._lock)  # woken when a writer has left
        self._is_open = False
        self._begin_calls = LiveCalls()  # the call that waits in begin()
        self._writers = LiveCalls()
        self._pending: TransactionalCall | None = None  # the last call that is no send_offsets; over if `is_reported`

    def write(self, hand_over_rows: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `hand_over_rows`, and block as long as that takes. Raises IllegalStateError outside of a transaction, or the error
        of a transaction that failed."""
        liveness_lock = threading.Lock()
        try:
            with liveness_lock:
                with self._lock:
                    if not self._is_open:
                        raise self.manager.current_error() or IllegalStateError(
                            "A transactional producer accepts rows only within a transaction: call begin_transaction() first"
                        )
                    self._writers.add(liveness_lock)
                return hand_over_rows(*args, **kwargs)
        finally:
            with self._lock:
                self._waiters.wake_all_locked()

    def use_id(self, transactional_id: str) -> None:
        call = TransactionalCall(CalledMethod.USE_ID, self.clock, transactional_id=_checked_id(transactional_id))
        self._post_and_wait(call, self._deadline_ms()).is_reported = True

    def init(self, transactional_id: str | None = None, identity: ProducerIdentity = NO_PRODUCER) -> None:
        """`identity`: that another client has got for the id; no request is sent then."""
        new_id = "" if transactional_id is None else _checked_id(transactional_id)
        call = TransactionalCall(CalledMethod.INIT, self.clock, transactional_id=new_id, identity=identity)
        self._post_and_wait(call, self._deadline_ms()).is_reported = True

    def begin(self) -> None:
        deadline_ms = self._deadline_ms()
        liveness_lock = threading.Lock()
        with liveness_lock:
            with self._lock:
                self._check_call_locked(CalledMethod.BEGIN)
                if self._begin_calls:
                    raise IllegalStateError("begin_transaction() is not possible now: another thread waits in it")
                self._begin_calls.add(liveness_lock)
            # Records that threads gathered while the last transaction was aborted fail here, so the new one does not get them.
            self._queue_all_rows(CalledMethod.BEGIN, deadline_ms)
            call = self._post_and_wait(TransactionalCall(CalledMethod.BEGIN, self.clock), deadline_ms)
            self._is_open = True
        call.is_reported = True  # until now no other call was possible

    def send_offsets(self, offsets: object, group: object, *, wait: bool) -> None:
        member = checked_group(group)
        offsets_by_partition = checked_offsets(offsets)
        if not offsets_by_partition:
            return
        call = TransactionalCall(CalledMethod.SEND_OFFSETS, self.clock, offsets_by_partition, member, must_follow_rows=not wait)
        if wait:
            self._post_and_wait(call, self._deadline_ms())
        else:
            self._post(call)

    def commit(self) -> None:
        self._end(CalledMethod.COMMIT).is_reported = True

    def prepare(self) -> PreparedTransaction:
        call = self._end(CalledMethod.PREPARE)
        prepared_transaction = self.manager.prepared_transaction
        call.is_reported = True
        if call.error is not None and (error := call.outcome()) is not None:  # withdrawn, by close() in another thread
            raise fresh_copy(error)
        return prepared_transaction

    def abort(self) -> None:
        deadline_ms = self._deadline_ms()
        self._refuse_rows(CalledMethod.ABORT)
        self._post_and_wait(TransactionalCall(CalledMethod.ABORT, self.clock), deadline_ms).is_reported = True

    def finish_abort(self) -> None:
        """Wait for the end of an abort that has timed out, if there is one."""
        pending = self._pending  # without the lock: abort() looks again
        if pending is not None and pending.method is CalledMethod.ABORT and not pending.is_reported:
            self.abort()

    def _end(self, method: CalledMethod) -> TransactionalCall:
        """Queue all rows that were handed over so far, then end the transaction."""
        deadline_ms = self._deadline_ms()
        if self._refuse_rows(method):
            self._queue_all_rows(method, deadline_ms)
        return self._post_and_wait(TransactionalCall(method, self.clock), deadline_ms)

    def _refuse_rows(self, method: CalledMethod) -> bool:
        """Refuse rows from now on. Returns false if the same call did that before, and timed out."""
        with self._lock:
            is_new = self._check_call_locked(method) is None
            if is_new:
                self._is_open = False
            return is_new

    def _queue_all_rows(self, method: CalledMethod, deadline_ms: int) -> None:
        """Wait until every thread in `write` has queued its rows, then queue the gathered records."""
        if not self._waiters.wait_until(lambda: not self._writers, self.clock, deadline_ms):
            raise self._timeout_error(method, "another thread is still handing rows over")
        if not self.encode_all(deadline_ms):
            raise self._timeout_error(method, "another thread is still encoding records")

    def _deadline_ms(self) -> int:
        return self.clock.now_ms() + self.max_block_ms

    def _post_and_wait(self, new_call: TransactionalCall, deadline_ms: int) -> TransactionalCall:
        """Post `new_call` and wait for its success; if the same call timed out before, wait for that one. Returns the call.

        The public method sets `is_reported` as its last step. If an interrupt prevents that, its next call finds this one.
        """
        started_ns = self.clock.now_ns()
        liveness_lock = threading.Lock()
        with liveness_lock:
            call = self._post(new_call, liveness_lock)
            self.wake_sender()
            try:
                if not call.wait(max(0, deadline_ms - self.clock.now_ms())):
                    broker_trouble = self.last_trouble(deadline_ms - self.max_block_ms)
                    raise self._timeout_error(call.method, self.manager.delay_reason(call, broker_trouble))
            finally:
                self.record_call_time(call.method, self.clock.now_ns() - started_ns)
        if call.error is not None and (error := call.outcome()) is not None:
            error = fresh_copy(error)
            call.is_reported = True
            raise error
        return call

    def _post(self, new_call: TransactionalCall, liveness_lock: threading.Lock | None = None) -> TransactionalCall:
        """Post `new_call`, or again the same call that timed out before. Returns it. A waiting caller holds `liveness_lock`."""
        with self._lock:
            call = self._check_call_locked(new_call.method, new_call.state_method)
            if call is None:
                call = new_call
                if new_call.method is not CalledMethod.SEND_OFFSETS:  # a repeated one may have other offsets, so it is a new call
                    self._pending = call
            if call.transactional_id != new_call.transactional_id:
                raise IllegalStateError(
                    f"{new_call.method.value}() timed out before for transactional.id {call.transactional_id!r} and is still in"
                    " progress; call it with that one again to wait for its end"
                )
            if liveness_lock is not None:
                call.callers.add(liveness_lock)
            self.manager.calls.post(call)  # also again: an interrupt may have come before it was posted
            return call

    def _check_call_locked(self, method: CalledMethod, state_method: CalledMethod | None = None) -> TransactionalCall | None:
        """Raise the reason if this call is not possible now. Returns the same call if it timed out before and goes on."""
        pending = self._pending
        if pending is not None and pending.is_reported:
            pending = None
        if pending is not None and pending.method is not method:
            if not (method is CalledMethod.ABORT and pending.is_done and pending.error is not None):
                raise IllegalStateError(
                    f"{method.value}() is not possible now: {pending.method.value}() timed out before and is still in progress;"
                    f" call {pending.method.value}() again to wait for its end"
                )
            pending = None  # a call that failed after its caller had gone, so that the transaction can be aborted
        error = self.manager.refusal_of_call(state_method or method) if pending is None else None
        if error is not None:
            raise error
        return pending

    def _timeout_error(self, method: CalledMethod, why: str) -> KafkaTimeoutError:
        remedy = f"Call {method.value}() again to continue waiting"
        if method is CalledMethod.SEND_OFFSETS:
            remedy = "Send them again, or abort the transaction"
        return TransactionTimeoutError(f"{method.value}() has not ended within max.block.ms={self.max_block_ms}: {why}. {remedy}")


def _checked_id(transactional_id: str) -> str:
    if not checked_text(transactional_id, "transactional.id"):
        raise ValueError("transactional.id must not be empty")
    return transactional_id
