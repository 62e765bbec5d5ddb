"""What a caller of a transactional method asks of the Sender, and how it waits for the outcome.

The caller posts a TransactionalCall and waits; the Sender carries it out and settles it. Only the Sender changes the producer's
state. Law: every posted call is settled, also when the Sender ends, and the first outcome counts. Only a success that no caller
has received may still become an error (`withdraw`).
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, copy_to_keep
from spark_kafka_sink.interrupts import LiveCalls, Waiters
from spark_kafka_sink.producer.txn_requests.group_offsets import NO_GROUP, ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class CalledMethod(enum.Enum):
    """The public method of TransactionalMethods that was called."""

    USE_ID = "use_transactional_id"
    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


@dataclass(eq=False, repr=False)
class TransactionalCall:
    """One call of a transactional method, and its outcome. Several callers may wait for it."""

    method: CalledMethod
    clock: Clock  # for the caller's bounded wait
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)  # of send_offsets_to_transaction
    group: ConsumerGroupMetadata = NO_GROUP  # of send_offsets_to_transaction
    must_follow_rows: bool = False  # of send_offsets_to_transaction(wait=False): earlier rows go first
    transactional_id: str = ""  # of use_transactional_id, and of init_transactions with another id
    identity: ProducerIdentity = NO_PRODUCER  # of TaskProducer.go_on_as
    is_taken: bool = field(default=False, init=False)  # by the Sender, which skips a call that is posted again
    is_reported: bool = field(default=False, init=False)  # its caller has received the outcome
    is_done: bool = field(default=False, init=False)
    error: KafkaError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # guards is_done and error
        self._waiters = Waiters(self._lock)  # woken when the call is settled
        self.callers = LiveCalls()  # callers that wait for the outcome now

    @property
    def state_method(self) -> CalledMethod:
        """The method whose allowed states apply: use_transactional_id, if this call brings another id."""
        return CalledMethod.USE_ID if self.transactional_id else self.method

    def settle(self, error: KafkaError | None = None) -> None:
        """End the call with success, or with this error. The first outcome counts."""
        with self._lock:
            if not self.is_done:
                self.is_done, self.error = True, error
                self._waiters.wake_all_locked()

    def withdraw(self, error: KafkaError) -> bool:
        """Turn a success into an error. Returns false if a caller has received the success or still waits: it stays a success.

        This thread sets `error`, then reads `is_reported`. A caller sets `is_reported`, then reads `error`, or `outcome` if it is
        set. So the thread that reads last sees what the other has set.
        """
        if self.is_reported or self.callers:
            return False
        with self._lock:
            self.error = error
            if self.is_reported:
                self.error = None
            return self.error is not None

    def outcome(self) -> KafkaError | None:
        """The final `error`: takes the lock, so that it does not see a `withdraw` halfway."""
        with self._lock:
            return self.error

    def wait(self, timeout_ms: int) -> bool:
        """Block until the call is settled, at most `timeout_ms`; false when time ran out."""
        return self._waiters.wait_until(lambda: self.is_done, self.clock, self.clock.now_ms() + timeout_ms)


class PostedCalls:
    """The calls that callers have posted, until the Sender carries them out or queues a request for them."""

    def __init__(self) -> None:
        self._queue: deque[TransactionalCall | KafkaError] = deque()  # calls and rows' errors: callers append, the Sender takes
        self._ended_by: KafkaError | None = None  # if set, the Sender takes no more calls
        # Sender thread:
        self.pending_prepare: TransactionalCall | None = None  # waits until everything is settled
        self.pending_begins: list[TransactionalCall] = []  # settled later in this round, when rows are accepted

    # CALLERS

    def post(self, call: TransactionalCall) -> None:
        """Hand a call to the Sender, which the caller then wakes. Never blocks. If the Sender has taken it, nothing happens."""
        self._queue.append(call)
        if self._ended_by is not None:  # read after the call was posted: if `fail_all` has not seen the call, it is settled here
            call.settle(self._ended_by)

    def handle_failed_row(self, error: KafkaError) -> None:
        self._queue.append(copy_to_keep(error))

    # SENDER

    def first(self) -> TransactionalCall | KafkaError | None:
        return self._queue[0] if self._queue else None

    def take_first(self) -> None:
        self._queue.popleft()

    def settle_begins(self, error: KafkaError | None = None) -> None:
        while self.pending_begins:
            self.pending_begins.pop().settle(error)

    def fail_prepare(self, error: KafkaError) -> None:
        """Fail the prepare_transaction() that waits, if there is one."""
        call, self.pending_prepare = self.pending_prepare, None
        if call is not None:
            call.settle(error)

    def fail_all(self, error: KafkaError) -> None:
        """Fail all calls, because the Sender has ended or can send nothing more. Later calls fail at once."""
        self._ended_by = error
        self.fail_prepare(error)
        self.settle_begins(error)
        while self._queue:
            entry = self._queue.popleft()
            if isinstance(entry, TransactionalCall):
                entry.settle(error)
