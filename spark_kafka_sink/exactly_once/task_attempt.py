"""What a task attempt does in exactly-once mode, before and after its rows.

    begin()   0 in foreachBatch, where a write may be repeated in the same run: as 2, before the own id is taken, under which the
                write before may have left a decided transaction
              1 take the own transactional id; it exists from here on, and whoever lists sees it
              2 read the decision, and whether this write was aborted; commit what was decided in an earlier version
              3 end what earlier runs have left open for this partition; not needed when this run has carried out the version
                before, as its driver has done so then, nor for a write that has no other run
              4 read the marker
    finish()  5 write the marker into the transaction, wait until all is acknowledged, and leave it open

The order matters: protocol_model.py, beside the tests, finds a lost or doubled row for each step that is left out or moved.
"""

from __future__ import annotations

import logging
from typing import Protocol

from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.coordination.transactions import End
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.ledger import Decision, Ledger, Marker, State, marker_text
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.unfinished import guessed, listed, put_to_rest
from spark_kafka_sink.exactly_once.writes import Entry, ReplayError, Result, TaskReport, WriteAbortedError, WriteId
from spark_kafka_sink.producer.operations import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class Producer(Protocol):
    """What is needed of KafkaProducer."""

    def init_transactions(self) -> None: ...
    def begin_transaction(self) -> None: ...
    def prepare_transaction(self) -> PreparedTransaction: ...
    def send_offsets_to_transaction(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], group_metadata: ConsumerGroupMetadata
    ) -> None: ...


class TaskAttempt:
    """
    Args:
        client: for what is not the producer's.
        producer: with the transactional id of this attempt; the caller closes it after finish().
        write: which write it is.
        partition, attempt: Spark's numbers.
        marker_topic: see Ledger.
        can_be_repeated: whether another run may have the same owner.
    """

    def __init__(
        self,
        client: TransactionClient,
        producer: Producer,
        names: Names,
        write: WriteId,
        partition: int,
        attempt: int,
        marker_topic: str,
        *,
        can_be_repeated: bool = True,
    ) -> None:
        self._client = client
        self._producer = producer
        self._names = names
        self._write = write
        self._task = TaskId(write.owner, partition, write.run, attempt)
        self._ledger = Ledger(client, names, write.owner, marker_topic)
        self._marker: Marker | None = None
        self.can_be_repeated = can_be_repeated
        self._decided_by: str | None = None  # the run that has decided an earlier version
        self._is_decided = False
        self._has_fenced_earlier_runs = False  # by the driver of this run, in an earlier version
        self._is_open = False

    @property
    def writes(self) -> bool:
        """Whether the rows are to be written. Otherwise they are only to be read: finish() compares their content."""
        return not self._is_decided and (self._marker is None or self._marker.version < self._write.version)

    def begin(self) -> None:
        """Before any row. Blocks for some requests, and until what earlier runs have left open is ended.

        Raises:
            WriteAbortedError: the driver has given this write up.
            KafkaError: from the producer or the client.
        """
        if self._write.write != self._write.run and self._finds_decided():  # step 0
            return
        self._producer.init_transactions()
        if self._finds_decided():
            return
        if self.can_be_repeated and not self._has_fenced_earlier_runs:
            self._end_earlier_runs()
        self._marker = self._ledger.markers([self._task.partition]).get(self._task.partition)

    def _finds_decided(self) -> bool:
        """Whether the version is decided. What an earlier version decided for this partition is committed."""
        decision, is_aborted = self._ledger.reached_or_aborted({self._write.write})
        if is_aborted:
            raise WriteAbortedError("the driver has aborted this write: no more rows of it are written")
        self._is_decided = decision is not None and decision.reaches(self._write.version)
        self._has_fenced_earlier_runs = (
            decision is not None and decision.state is State.CARRIED_OUT and decision.run == self._write.run
        )
        if decision is not None and not self._is_decided:
            self._decided_by = decision.run
            self._commit_earlier_version(decision)
        return self._is_decided

    def _commit_earlier_version(self, decision: Decision) -> None:
        """Its driver died among its commits, and nobody repeated it: what it left open here is not to be fenced."""
        entries = [entry for entry in decision.entries if entry.partition == self._task.partition]
        prepared = [entry.prepared(self._names, self._task.owner, decision.run) for entry in entries]
        for outcome in self._client.end_transactions(prepared, commit=True).values():
            if outcome.end is End.FAILED and outcome.error is not None:
                raise outcome.error

    def _end_earlier_runs(self) -> None:
        """Not attempts of this run: a speculative copy must not fence its twin."""
        task = self._task
        found = listed(self._client, self._names, self._names.of_partition(task.owner, task.partition))
        if found is None:
            found = [] if self._decided_by is None else guessed(task.owner, self._decided_by, [task.partition])
        put_to_rest(
            self._client, self._names, found, lambda each: each.run != task.run and each[:2] == (task.owner, task.partition)
        )

    def open(self) -> None:
        """Begin the transaction, before the first row that is written."""
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True

    def finish(self, content: Content) -> TaskReport:
        """After the last row.

        Args:
            content: of all rows that were read.

        Raises:
            ReplayError: an earlier run has written other rows into this partition.
            KafkaError: a row or the marker is not acknowledged.
        """
        if self._is_decided:
            return self._report(Result.DECIDED, content)
        if not self.writes:
            return self._skipped(content)
        if not content.rows:
            return self._report(Result.EMPTY, content)
        self.open()  # rows that were skipped are rows of the version as well
        marker = OffsetAndMetadata(self._write.version, marker_text(content))
        group = ConsumerGroupMetadata(self._ledger.marker_group(self._task.partition))
        self._producer.send_offsets_to_transaction({self._ledger.place: marker}, group)
        return self._report(Result.OPEN, content, self._producer.prepare_transaction())

    def _skipped(self, content: Content) -> TaskReport:
        assert self._marker is not None
        if self._marker.version == self._write.version and self._marker.content != content:
            raise ReplayError(
                f"Spark partition {self._task.partition} of version {self._write.version} is in Kafka with"
                f" {self._marker.content}, and the"
                f" repetition has {content}. A source, a random or time function, or a changed query gives other rows each time;"
                " nothing was written now. Make the query repeatable, or begin anew with another transactionalIdPrefix and accept"
                " that rows of this version are there twice"
            )
        logger.info("= partition %d of version %d is in Kafka already", self._task.partition, self._write.version)
        return self._report(Result.SKIPPED, content)

    def _report(self, result: Result, content: Content, prepared: PreparedTransaction | None = None) -> TaskReport:
        _, producer_id, epoch, transaction_version = prepared or PreparedTransaction("", -1, -1, 0)
        entry = Entry(self._task.partition, self._task.attempt, producer_id, epoch, transaction_version, content)
        return TaskReport(self._write, result, entry)
