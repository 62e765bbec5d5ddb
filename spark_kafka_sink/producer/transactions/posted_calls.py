"""The calls of transactional methods that the Sender has been handed, until they are carried out or wait for a coordinator.

Callers append, the Sender takes. Law: every call is settled, also when the Sender ends.
"""

from __future__ import annotations

from collections import deque

from spark_kafka_sink.errors import KafkaError, for_keeping
from spark_kafka_sink.producer.transactions.transactional_call import TransactionalCall


class PostedCalls:
    def __init__(self) -> None:
        self._posted: deque[TransactionalCall | KafkaError] = (
            deque()
        )  # calls, and rows' errors: appended by callers, taken by the Sender
        self._ended_by: KafkaError | None = None  # the Sender takes no more of them
        # Sender thread:
        self.preparing: TransactionalCall | None = None  # waits until everything is settled
        self.begun: list[TransactionalCall] = []  # told in this round, when rows are accepted

    # CALLERS

    def post(self, operation: TransactionalCall) -> None:
        """A second time does nothing, if the Sender has taken it."""
        self._posted.append(operation)
        if self._ended_by is not None:  # looked at after it was posted: one of the two threads sees the other
            operation.fail(self._ended_by)

    def row_failed(self, error: KafkaError) -> None:
        self._posted.append(for_keeping(error))

    # SENDER

    def first(self) -> TransactionalCall | KafkaError | None:
        return self._posted[0] if self._posted else None

    def take_first(self) -> None:
        self._posted.popleft()

    def tell_begun(self) -> None:
        while self.begun:
            self.begun.pop().succeed()

    def fail_preparing(self, error: KafkaError) -> None:
        operation, self.preparing = self.preparing, None
        if operation is not None:
            operation.fail(error)

    def fail_all(self, error: KafkaError) -> None:
        self.fail_preparing(error)
        while self.begun:
            self.begun.pop().fail(error)
        while self._posted:
            posted = self._posted.popleft()
            if isinstance(posted, TransactionalCall):
                posted.fail(error)

    def end(self, error: KafkaError) -> None:
        self._ended_by = error
        self.fail_all(error)
