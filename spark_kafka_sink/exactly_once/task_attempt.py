"""What a task attempt does in exactly-once mode, before and after its rows.

    begin()   0 take steps 2 and 3 once before step 1, and stop if there is nothing to write. For step 1 aborts a transaction
                that is open under this attempt's id, and an earlier run may have left a decided one there
              1 take this attempt's transactional id; it exists from here on, and drivers find it in the list of ids
              2 read the decision, the marker for step 4, and whether this write was aborted, all in one call. Commit what was
                decided in an earlier version. If the decision or the marker names schemas for this version, encode with these:
                the same rows then are the same content
              3 if this version is decided: is the transaction of this partition still open, or are its rows in Kafka? Then there
                is nothing to write. If the transaction has timed out, write its rows again
              4 look at the marker: if it has this version or a later one, the rows are only read
    then      5 write the rows and the marker in one transaction. add_rows() begins it before the first row, send_marker() sends
                the marker behind the rows, finish() waits until all is acknowledged, and leaves the transaction open

The driver ends what others have left open, in steps 6 (version_commit.py) and 7 (abort_prefix in decisions.py). The order counts:
tests/exactly_once/protocol_model.py finds a lost or doubled row for each step that is left out or moved.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionEnd, TransactionState
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Marker, is_in_kafka, marker_text
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.exactly_once.writes import (
    NO_SCHEMAS,
    WHY_OTHER_ROWS,
    AttemptResult,
    Content,
    DriverTime,
    ReplayError,
    SchemaIds,
    TaskReport,
    TaskTransaction,
    WriteAbortedError,
    WriteId,
    sum_contents,
)
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction

if TYPE_CHECKING:
    from spark_kafka_sink.producer.task_producer import TaskProducer

logger = logging.getLogger(__name__)


class _Findings(NamedTuple):
    """What a task has found before its rows. `needs_no_rows`: the version is decided, and this task need not write."""

    needs_no_rows: bool
    marker: Marker | None
    schemas: SchemaIds


@dataclass(eq=False, repr=False)
class TaskAttempt:
    """One attempt of a Spark task: finds out whether its rows are to be written, and keeps them in one open transaction."""

    client: TransactionClient  # for all requests that the producer does not send
    producer: TaskProducer  # takes the transactional id of this attempt; the caller keeps it open until finish() returns
    names: PrefixNames
    write: WriteId
    planned_at: DriverTime
    partition: int  # Spark's numbers: this and the next one
    attempt: int
    marker_topic: str  # see Ledger

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.client, self.names, self.write.owner, self.marker_topic)
        self._marker: Marker | None = None
        self._needs_no_rows = False
        self._is_open = False
        self._is_marked = False
        self._content = Content()  # of all rows that were read
        self.schemas = NO_SCHEMAS  # to encode the rows with, after begin(): of the plan, or of the run that began this version

    @property
    def must_write(self) -> bool:
        """Whether the rows have to be written. If not, they are only read: finish() or the driver compares their content."""
        return not self._needs_no_rows and (self._marker is None or self._marker.version < self.write.version)

    def begin(self, schemas: SchemaIds = NO_SCHEMAS) -> None:
        """Take steps 0 to 4, before any row. Blocks for some requests, and until the id's earlier transaction has ended.

        Args:
            schemas: of the plan. `self.schemas` are others if an earlier run has begun the version with others.

        Raises:
            WriteAbortedError: the driver has aborted this write.
            KafkaError: from the producer or the client.
        """
        findings = self._look_and_commit(schemas)  # step 0
        if not findings.needs_no_rows:
            task = AttemptId(self.write.owner, self.partition, self.attempt)
            self.producer.init_transactions(self.names.transactional_id(task))  # step 1
            findings = self._look_and_commit(schemas)  # steps 2 to 4
        self._needs_no_rows, self._marker, self.schemas = findings
        self._content = Content(schemas=self.schemas)

    def _look_and_commit(self, schemas: SchemaIds) -> _Findings:
        """Take steps 2 and 3, and read the marker for step 4. `schemas`: of the plan."""
        version = self.write.version
        decision, is_aborted, marker = self._ledger.fetch_view(self.planned_at, self.partition)
        if is_aborted:
            raise WriteAbortedError("the driver has aborted this write: no more rows of it are written")
        needs_no_rows = decision is not None and decision.reaches(version)
        entry = None if decision is None else decision.entry_of(self.partition)
        if decision is not None and entry is not None:
            if decision.version < version:  # its driver died while it committed, and nobody repeated the version
                self._commit_earlier(entry)
            elif decision.version == version and not self._may_be_open(entry):
                marker = self._ledger.fetch_marker(self.partition)  # the one before may be older than the transaction's end
                needs_no_rows = is_in_kafka(marker, version, entry)
        first_content = None if decision is None else decision.content_of(version)  # of this version in an earlier run
        if not needs_no_rows and marker is not None and marker.version == version:
            first_content = marker.content
        return _Findings(needs_no_rows, marker, schemas if first_content is None else first_content.schemas)

    def _commit_earlier(self, entry: TaskTransaction) -> None:
        transaction = entry.prepared_transaction(self.names, self.write.owner)
        (outcome,) = self.client.end_transactions([transaction], commit=True).values()
        if outcome.end is TransactionEnd.FAILED and outcome.error is not None:
            raise outcome.error

    def _may_be_open(self, entry: TaskTransaction) -> bool:
        """Whether the transaction is open or being committed. True also if brokers cannot tell."""
        transactional_id = entry.prepared_transaction(self.names, self.write.owner).transactional_id
        try:
            description = self.client.describe_transactions([transactional_id])[transactional_id]
        except UnsupportedVersionError:
            return True  # the driver finds out, and the next run writes what is missing
        if description is None:
            return False
        return description.state == TransactionState.PREPARE_COMMIT or description.is_open(entry.identity)

    def add_rows(self, content: Content) -> None:
        """Add rows that were read to the content. If they are written (`must_write`), the first call begins the transaction."""
        self._content = sum_contents([self._content, content])
        if self.must_write:
            self._begin_once()

    def _begin_once(self) -> None:
        if not self._is_open:
            self.producer.begin_transaction()
            self._is_open = True

    def send_marker(self) -> None:
        """Send the marker after the last row, without waiting for either. Blocks as begin_transaction() does.

        If nobody calls it, finish() does. The transaction of a task without rows is begun, and gets no marker.
        """
        if self._is_marked or not self.must_write:
            return
        self._begin_once()
        if self._content.rows:  # rows that were skipped (onInvalidRecord) count as well
            marker = OffsetAndMetadata(self.write.version, marker_text(self._content))
            group = ConsumerGroupMetadata(self._ledger.marker_group(self.partition))
            self.producer.send_offsets_to_transaction({self._ledger.marker_partition: marker}, group, wait=False)
        self._is_marked = True

    def finish(self) -> TaskReport:
        """Report the transaction, when every row is acknowledged. Blocks until the marker is acknowledged.

        Raises:
            ReplayError: an earlier run has written other rows into this partition.
            KafkaError: a row or the marker is not acknowledged.
        """
        content = self._content
        if self._needs_no_rows:
            return self._report(AttemptResult.DECIDED, content)
        if not self.must_write:
            return self._report_skipped(content)
        self.send_marker()
        return self._report(
            AttemptResult.OPEN if content.rows else AttemptResult.EMPTY, content, self.producer.prepare_transaction()
        )

    def _report_skipped(self, content: Content) -> TaskReport:
        assert self._marker is not None
        if self._marker.version == self.write.version and self._marker.content != content:
            raise ReplayError(
                f"Spark partition {self.partition} of version {self.write.version} is in Kafka with"
                f" {self._marker.content}, and the repetition has {content}. {WHY_OTHER_ROWS}; nothing was written now. Only"
                " a part of the version is in Kafka, and other rows cannot complete it. Make the query repeatable, or begin"
                " anew with another transactionalIdPrefix and accept that rows of this version are there twice"
            )
        logger.info("= partition %d of version %d is in Kafka already", self.partition, self.write.version)
        return self._report(AttemptResult.SKIPPED, content)

    def _report(self, result: AttemptResult, content: Content, transaction: PreparedTransaction | None = None) -> TaskReport:
        _, producer_id, epoch, transaction_version = transaction or PreparedTransaction("", -1, -1, 0)
        entry = TaskTransaction(self.partition, self.attempt, producer_id, epoch, transaction_version, content)
        return TaskReport(self.write, result, entry)
