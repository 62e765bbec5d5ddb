"""What a task attempt does in exactly-once mode, before and after its rows.

    begin()   0 describe the ids that this attempt may take; then take steps 2 and 3 once before step 1, and stop if there is
                nothing to write. An id is taken only if it is settled (settling.py), and no decision lists it
              1 take the first settled id, and compare the epoch with the described one: if somebody has had the id meanwhile, go
                on with a later one. It exists from here on, and drivers find it in the list of ids. Confirm it, with the
                task's time-out
              2 read the decision, the marker for step 4, and whether this write was aborted, all in one call. If the decision or
                the marker names schemas for this version, encode with these: the same rows then are the same content
              3 if this version is decided: is the transaction of this partition open or committed, or are its rows in Kafka? Then
                there is nothing to write. If the transaction has timed out, write its rows again
              4 look at the marker: if it has this version or a later one, the rows are only read
    then      5 write the rows and the marker in one transaction. add_rows() begins it before the first row, send_marker() sends
                the marker behind the rows, finish() waits until all is acknowledged, and leaves the transaction open

The driver ends what others have left open, in steps 6 (version_commit.py) and 7 (abort_prefix in decisions.py). The order counts:
tests/exactly_once/protocol_model.py finds a lost or doubled row for each step that is left out or moved.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.admin.transaction_client import FENCING_TRANSACTION_TIMEOUT_MS, TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import KafkaTimeoutError, UnsupportedVersionError, printable
from spark_kafka_sink.exactly_once.fencing import TAKING_TIMEOUT_MS, await_end, describe
from spark_kafka_sink.exactly_once.ledger import Ledger, LedgerView
from spark_kafka_sink.exactly_once.ledger_records import Marker, is_in_kafka, marker_text
from spark_kafka_sink.exactly_once.names import FIRST_SLOT, SLOT_SIZE, AttemptId, PrefixNames, id_number
from spark_kafka_sink.exactly_once.settling import Fate, fate_of
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
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, PreparedTransaction, ProducerIdentity

if TYPE_CHECKING:
    from spark_kafka_sink.producer.task_producer import TaskProducer

logger = logging.getLogger(__name__)


_SLOTS_AT_ONCE = 4
_NOBODY = ProducerIdentity(2**62, 0)  # no producer has it: only an id that does not exist yet can be taken as this one's


class _Candidate(NamedTuple):
    """An id that an attempt may take, and who has had it last; NO_PRODUCER if nobody has."""

    attempt_id: AttemptId
    identity: ProducerIdentity


class _Findings(NamedTuple):
    """What a task has found before its rows. `needs_no_rows`: the version is decided, and this task need not write."""

    needs_no_rows: bool
    marker: Marker | None
    schemas: SchemaIds
    decided_ids: frozenset[AttemptId]  # of a decision that is not carried out

    def must_write(self, version: int) -> bool:
        return not self.needs_no_rows and (self.marker is None or self.marker.version < version)


def _is_settled(description: TransactionDescription) -> bool:
    """Whether nothing hangs of an id: it is at rest, or a task has taken it, and written nothing."""
    if description.state == TransactionState.EMPTY:
        return description.timeout_ms not in (FENCING_TRANSACTION_TIMEOUT_MS, TAKING_TIMEOUT_MS)
    return description.state == TransactionState.COMPLETE_COMMIT


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
        self._id_number = id_number(self.attempt, FIRST_SLOT)
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
        """Take steps 0 to 4, before any row. Blocks for some requests.

        Args:
            schemas: of the plan. `self.schemas` are others if an earlier run has begun the version with others.

        Raises:
            WriteAbortedError: the driver has aborted this write.
            KafkaError: from the producer or the client.
        """
        candidates = self._settled_ids(FIRST_SLOT)  # step 0
        view = self._ledger.fetch_view(self.planned_at, self.partition)
        findings = self._judge(view, schemas)
        if findings.must_write(self.write.version):
            view = self._take_id([each for each in candidates if each.attempt_id not in findings.decided_ids])  # step 1
            findings = self._judge(view, schemas)  # steps 2 to 4
        self._needs_no_rows, self._marker, self.schemas = findings.needs_no_rows, findings.marker, findings.schemas
        self._content = Content(schemas=self.schemas)

    def _settled_ids(self, first_slot: int) -> list[_Candidate]:
        """Step 0: the ids of this attempt that are settled, from this slot on; at least one."""
        while True:
            ids = [
                AttemptId(self.write.owner, self.partition, id_number(self.attempt, slot))
                for slot in range(first_slot, first_slot + _SLOTS_AT_ONCE)
            ]
            descriptions = describe(self.client, self.names, ids)
            described = {each: descriptions.get(self.names.transactional_id(each)) for each in ids}
            candidates = [
                _Candidate(each, NO_PRODUCER if description is None else description.identity)
                for each, description in described.items()
                if description is None or _is_settled(description)
            ]
            if candidates:
                return candidates
            first_slot += _SLOTS_AT_ONCE

    def _take_id(self, candidates: Sequence[_Candidate]) -> LedgerView:
        """Step 1, and the look of step 2 beside its end. Whoever finds the id while it is being taken, or when this process has
        died, does not take it for settled: the time-out that the coordinator keeps tells.
        """
        last_slot = FIRST_SLOT
        while True:
            for candidate in candidates:
                last_slot = candidate.attempt_id.number // SLOT_SIZE
                transactional_id = self.names.transactional_id(candidate.attempt_id)
                expected = self._begin_to_take(transactional_id, candidate.identity)
                if expected is None:
                    logger.info("= transactional id %s is somebody else's: taking another one", printable(transactional_id))
                    continue
                identity, view = self._confirm(transactional_id, expected)
                if identity is not None:
                    self.producer.go_on_as(transactional_id, identity)
                    self._id_number = candidate.attempt_id.number
                    return view
            candidates = self._settled_ids(last_slot + 1)

    def _begin_to_take(self, transactional_id: str, before: ProducerIdentity) -> ProducerIdentity | None:
        """The identity to confirm; None if somebody else has had the id since it was described."""
        if not before.is_valid:
            return _NOBODY
        identity = self.client.fence([transactional_id], transaction_timeout_ms=TAKING_TIMEOUT_MS)[transactional_id]
        is_next = identity == before.next_epoch or identity.producer_id != before.producer_id  # another one: the epochs ran out
        return identity if is_next else None

    def _confirm(self, transactional_id: str, expected: ProducerIdentity) -> tuple[ProducerIdentity | None, LedgerView]:
        """Take the id with the task's time-out, and look at the ledger beside that. An id that is there already stays listed, and
        one that was created just now is not: then look again."""
        identity_reply, view_reply = self.client.ask_together(
            self.client.take_over_question({transactional_id: expected}, self.producer.transaction_timeout_ms),
            self._ledger.view_question(self.planned_at, self.partition),
        )
        identity = identity_reply.read_answer()[transactional_id]
        view = view_reply.read_answer()
        if identity is not None and expected == _NOBODY:
            view = self._ledger.fetch_view(self.planned_at, self.partition)
        return identity, view

    def _judge(self, view: LedgerView, schemas: SchemaIds) -> _Findings:
        """Take steps 2 and 3, and keep the marker for step 4. `schemas`: of the plan."""
        version = self.write.version
        decision, is_aborted, marker = view
        if is_aborted:
            raise WriteAbortedError("the driver has aborted this write: no more rows of it are written")
        needs_no_rows = decision is not None and decision.reaches(version)
        entry = None if decision is None else decision.entry_of(self.partition)
        if decision is not None and entry is not None and decision.version == version and not self._may_be_committed(entry):
            marker, is_pending = self._fetch_marker()  # the one before may be older than the transaction's end
            needs_no_rows = is_pending or is_in_kafka(marker, version, entry)
        first_content = None if decision is None else decision.content_of(version)  # of this version in an earlier run
        if not needs_no_rows and marker is not None and marker.version == version:
            first_content = marker.content
        return _Findings(
            needs_no_rows=needs_no_rows,
            marker=marker,
            schemas=schemas if first_content is None else first_content.schemas,
            decided_ids=frozenset(
                AttemptId(self.write.owner, each.partition, each.number) for each in (decision.entries if decision else ())
            ),
        )

    def _fetch_marker(self) -> tuple[Marker | None, bool]:
        """The marker of this partition, and whether one is pending, which may become visible: then the driver finds out."""
        group = self._ledger.marker_group(self.partition)
        try:
            offsets = self.client.ask(self.client.stable_offsets_question({group: [self._ledger.marker_partition]}))
        except UnsupportedVersionError:
            offsets = {}
        return self._ledger.fetch_marker(self.partition), any(each is None for each in offsets.values())

    def _may_be_committed(self, entry: TaskTransaction) -> bool:
        """Whether the transaction is open, or its coordinator says that it is committed. True also if brokers cannot tell. Blocks
        while it is being aborted: until then its marker is pending."""
        transactional_id = entry.prepared_transaction(self.names, self.write.owner).transactional_id
        try:
            description = self.client.describe_transactions([transactional_id])[transactional_id]
            if description is not None and description.state == TransactionState.PREPARE_ABORT:
                deadline_ms = self.client.clock.now_ms() + self.client.default_timeout_ms
                description = await_end(self.client, transactional_id, deadline_ms)
        except (UnsupportedVersionError, KafkaTimeoutError):
            return True  # the driver finds out, and the next run writes what is missing
        return fate_of(description, entry) in (Fate.OPEN, Fate.COMMITTED, Fate.CUT_OFF)

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
        entry = TaskTransaction(self.partition, self._id_number, producer_id, epoch, transaction_version, content)
        return TaskReport(self.write, result, entry)
