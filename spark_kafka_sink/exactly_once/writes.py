"""What identifies a write and its tasks, the content that they write, and what a task reports to the driver."""

from __future__ import annotations

import enum
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity

_MAX_HOST_CHARACTERS = 200
_FINGERPRINT_COUNT = 1 << 64


class SchemaIds(NamedTuple):
    """The registered schemas that keys and values are encoded with; None for a part that is not encoded by a registered one."""

    key: int | None = None
    value: int | None = None

    def by_part(self) -> dict[str, int]:
        """The ids that are not None, by `key` and `value`."""
        return {part: number for part, number in self._asdict().items() if number is not None}

    def __str__(self) -> str:
        return " and ".join(f"{part} schema {number}" for part, number in self.by_part().items()) or "no registered schema"


NO_SCHEMAS = SchemaIds()


class Content(NamedTuple):
    """What a task, or a whole write, has to write."""

    rows: int = 0
    fingerprint: int = 0  # the rows' hashes added up modulo 2**64, see fingerprint.py; 0 if no other run can repeat the write
    schemas: SchemaIds = NO_SCHEMAS  # that the rows are encoded with. The same rows with other schemas are another content

    def __str__(self) -> str:
        schemas_text = "" if self.schemas == NO_SCHEMAS else f", encoded with {self.schemas}"
        return f"{self.rows} rows with fingerprint {self.fingerprint:016x}{schemas_text}"


def sum_contents(contents: Iterable[Content]) -> Content:
    """The content of several partitions together, with the schemas of the first one. Does not check that all have the same."""
    contents = list(contents)
    schemas = contents[0].schemas if contents else NO_SCHEMAS
    return Content(sum(each.rows for each in contents), sum(each.fingerprint for each in contents) % _FINGERPRINT_COUNT, schemas)


class WriteId(NamedTuple):
    """What identifies a write: its owner and version. The repetition of a named write has the same WriteId."""

    owner: str  # escaped, see names.py
    version: int  # at least 0


class DriverTime(NamedTuple):
    """A time on the machine of a driver: of the planning of a write, or of abort_prefix(), which stops what was planned before.
    The processes of a driver that plan, commit and abort share nothing but the machine and its clock."""

    host: str  # of the driver
    time_ms: int  # since 1970-01-01 UTC

    @classmethod
    def now(cls) -> DriverTime:
        return cls(printable(socket.gethostname())[:_MAX_HOST_CHARACTERS] or "?", Clock().wall_ms())


class TaskTransaction(NamedTuple):
    """One task's transaction, as a decision lists it."""

    partition: int
    number: int  # of its transactional id, see AttemptId
    producer_id: int
    producer_epoch: int
    transaction_version: int
    content: Content

    def prepared_transaction(self, names: PrefixNames, owner: str) -> PreparedTransaction:
        transactional_id = names.transactional_id(AttemptId(owner, self.partition, self.number))
        return PreparedTransaction(transactional_id, self.producer_id, self.producer_epoch, self.transaction_version)

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


class AttemptResult(enum.Enum):
    """What a task attempt has done."""

    OPEN = "wrote its rows, and left its transaction open"
    EMPTY = "had no rows"
    SKIPPED = "found its rows in Kafka, written by an earlier run"
    DECIDED = "found that the version is decided, or carried out"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task attempt returns to the driver, beside the counts of the sink. `entry` identifies the task's transaction, in
    which an EMPTY attempt wrote nothing. SKIPPED and DECIDED: producer id -1."""

    write: WriteId
    result: AttemptResult
    entry: TaskTransaction

    @property
    def content(self) -> Content:
        return self.entry.content

    @property
    def attempt_id(self) -> AttemptId:
        return AttemptId(self.write.owner, self.entry.partition, self.entry.number)


WHY_OTHER_ROWS = "A source, a random or time function, or a changed query gives other rows each time"


class ReplayError(KafkaError):
    """A write was repeated with other rows, and the first rows are in Kafka already, all or a part of them."""

    condition = "KAFKA_NON_DETERMINISTIC_REPLAY"


class WriteAbortedError(KafkaError):
    """The driver has aborted the write: none of its tasks may write any longer."""

    condition = "KAFKA_WRITE_ABORTED"


class CommitFailedError(KafkaError):
    """The version could not be committed, or not as a whole. The message says what readers see and what to do."""

    condition = "KAFKA_EXACTLY_ONCE_COMMIT_FAILED"


class NotVisibleError(CommitFailedError):
    """The version is decided, and readers do not see all of its rows yet. A repetition completes it."""

    condition = "KAFKA_EXACTLY_ONCE_NOT_VISIBLE"
