"""Operations: each call of a transactional method is one.

The caller posts it and waits, the Sender carries it out and reports the result. Only the Sender changes the producer's state.
Law: every posted operation is settled exactly once, also when the Sender ends.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.interrupts import Waiters
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A position of a consumer group in one partition, as `send_offsets_to_transaction` takes it.

    Args:
        offset: of the next record to read.
        metadata: any text, at most the broker's offset.metadata.max.bytes long.
        leader_epoch: of the record before, or -1 if it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """A member of a consumer group (KIP-447). Without a member, generation and member id stay as they are here.

    With generation and member id, the broker rejects offsets of a consumer that has lost its partitions meanwhile.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Method(enum.Enum):
    """The method that was called."""

    USE_ID = "use_transactional_id"
    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


class TransactionalCall:
    """One call.

    Args:
        method: which method.
        clock: for the caller's bounded wait.
        offsets, group: of send_offsets_to_transaction.
        transactional_id: of use_transactional_id.
    """

    __slots__ = (
        "_clock",
        "_lock",
        "_waiters",
        "error",
        "group",
        "is_done",
        "is_taken",
        "is_told",
        "method",
        "offsets",
        "transactional_id",
    )

    def __init__(
        self,
        method: Method,
        clock: Clock,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        group: ConsumerGroupMetadata | None = None,
        transactional_id: str = "",
    ) -> None:
        self.method = method
        self.transactional_id = transactional_id
        self.offsets = dict(offsets or {})
        self.group = group
        self._clock = clock
        self.is_taken = False  # by the Sender: posted once more, it is not taken again
        self.is_told = False  # its caller has received the outcome
        self._lock = threading.Lock()  # guards the two below
        self._waiters = Waiters(self._lock)  # woken when the operation is settled
        self.is_done = False
        self.error: KafkaError | None = None

    def succeed(self) -> None:
        self._settle(None)

    def fail(self, error: KafkaError) -> None:
        self._settle(error)

    def _settle(self, error: KafkaError | None) -> None:
        with self._lock:
            if not self.is_done:
                self.is_done, self.error = True, error
                self._waiters.wake_all_locked()

    def wait(self, timeout_ms: int) -> bool:
        """Block until the operation is settled, at most `timeout_ms`; false when time ran out."""
        return self._waiters.wait_until(lambda: self.is_done, self._clock, self._clock.now_ms() + timeout_ms)
