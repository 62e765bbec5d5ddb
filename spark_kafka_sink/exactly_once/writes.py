"""Which write it is, which task of it, and what a task reports to the driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction


class WriteId(NamedTuple):
    """
    Args:
        owner, run: escaped, see names.py.
        version: of the write, at least 0.
        write: what abort() records. A stream's run, as no batch of it follows an aborted one; for every other write an id
            of its own, as foreachBatch may catch an error and write again in the same run.
    """

    owner: str
    version: int
    run: str
    write: str


class Entry(NamedTuple):
    """One task's transaction, as a decision lists it."""

    partition: int
    attempt: int
    producer_id: int
    producer_epoch: int
    transaction_version: int
    content: Content

    def prepared(self, names: Names, owner: str, run: str) -> PreparedTransaction:
        transactional_id = names.transactional_id(TaskId(owner, self.partition, run, self.attempt))
        return PreparedTransaction(transactional_id, self.producer_id, self.producer_epoch, self.transaction_version)


class Result(enum.Enum):
    """What a task attempt has done."""

    OPEN = "wrote its rows, and left its transaction open"
    EMPTY = "had no rows"
    SKIPPED = "found its rows in Kafka, written by an earlier run"
    DECIDED = "found that the version is decided, or carried out"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task attempt returns to the driver, beside the counts of the sink.

    `entry` holds what it takes to commit its transaction; the epoch of an empty task is that of its id at rest.
    """

    write: WriteId
    result: Result
    entry: Entry

    @property
    def content(self) -> Content:
        return self.entry.content

    @property
    def task_id(self) -> TaskId:
        return TaskId(self.write.owner, self.entry.partition, self.write.run, self.entry.attempt)


class ReplayError(KafkaError):
    """A write was repeated with other rows than the first time, of which a part is in Kafka already."""

    condition = "KAFKA_NON_DETERMINISTIC_REPLAY"


class WriteAbortedError(KafkaError):
    """The driver has given the write up, so that none of its tasks may write any more."""

    condition = "KAFKA_WRITE_ABORTED"


class CommitFailedError(KafkaError):
    """The version could not be committed, or not as a whole. The message says what readers see and what to do."""

    condition = "KAFKA_EXACTLY_ONCE_COMMIT_FAILED"
