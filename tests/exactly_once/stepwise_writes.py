"""Tasks and drivers of exactly-once writes that a test moves by hand, a step at a time, in any order."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.decisions import abort_prefix, carry_out_decision
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.exactly_once.settling import WrittenPlaces
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.version_commit import Committed, VersionCommit
from spark_kafka_sink.exactly_once.writes import NO_SCHEMAS, Content, DriverTime, SchemaIds, TaskReport, WriteId
from spark_kafka_sink.producer.task_producer import TaskProducer

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "linger.ms": 0, "max.block.ms": 20_000}


def content_of(rows: Iterable[str], schemas: SchemaIds = NO_SCHEMAS) -> Content:
    """A content that does not depend on the order of the rows, but on the schemas."""
    encoded = [row if schemas == NO_SCHEMAS else f"{row} with {schemas}" for row in rows]
    return Content(len(encoded), sum(zlib.crc32(row.encode()) * 0x1_0000_0001 for row in encoded) % 2**64, schemas)


class Task:
    """One attempt to write a Spark partition. After `die` it does nothing more, and its transaction stays as it is."""

    def __init__(
        self,
        run: DriverRun,
        version: int,
        partition: int,
        rows: Sequence[str],
        attempt: int = 0,
        timeout_ms: int = 60_000,
        planned_at: DriverTime | None = None,
        schemas: SchemaIds | None = None,
    ) -> None:
        self._schemas = run.schemas if schemas is None else schemas
        self._topic = run.topic
        self.rows = rows
        self._are_read = False
        self.write = run.write(version)
        transactional_id = run.names.transactional_id(AttemptId(self.write.owner, partition, attempt))
        options = {**run.options, "transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self.producer = TaskProducer(options)
        place = (planned_at or run.planned_at(version), partition, attempt, run.marker_topic)
        self.attempt = TaskAttempt(run.client, self.producer, run.names, self.write, *place)

    def begin(self) -> Task:
        self.attempt.begin(self._schemas)
        return self

    def send(self) -> Task:
        """Send the rows, and block until they are acknowledged."""
        self._hand_over()
        self.producer.flush()
        return self

    def _hand_over(self) -> None:
        self._are_read = True
        if not self.rows:
            return
        self.attempt.add_rows(self._content())
        if self.attempt.must_write:
            self.producer.send_columns(self._topic, value=pa.array(self.rows, pa.string()))

    def finish(self) -> TaskReport:
        if self.rows and not self._are_read:
            self.attempt.add_rows(self._content())
        report = self.attempt.finish()
        self.producer.close()
        return report

    def _content(self) -> Content:
        return content_of(self.rows, self.attempt.schemas)

    def run(self) -> TaskReport:
        """Do as a task of the sink does, which sends the marker behind its rows before it waits."""
        self.begin()
        self._hand_over()
        self.attempt.send_marker()
        self.producer.flush()
        return self.finish()

    def die(self) -> None:
        self.producer.close(timeout_ms=0)


class DriverRun:
    """One life of a driver: a query's run, or one batch write.

    Args:
        address: bootstrap.servers.
        topic: that rows go to.
        marker_topic: that markers name; by default `topic`.
        name: of the host that it runs on. abort() stops only what this one has planned.
        owner: stays the same over the runs of a query.
        keeps_first: see VersionCommit.
        schemas: that its plans have.
        has_listed: the client knows the coordinators from an earlier commit, so that requests of this one go side by side.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        name: str,
        *,
        marker_topic: str = "",
        owner: str = "q",
        prefix: str = "P",
        keeps_first: bool = False,
        schemas: SchemaIds = NO_SCHEMAS,
        has_listed: bool = False,
        **options: object,
    ) -> None:
        self.schemas = schemas
        self.topic = topic
        self.places = WrittenPlaces(topics=frozenset({topic}))
        self.marker_topic = marker_topic or topic
        self.names = PrefixNames(prefix)
        self.options = {"bootstrap.servers": address, **QUICK, **options}
        self.client = TransactionClient(self.options)
        self.name = name
        self._owner = owner
        self._keeps_first = keeps_first
        self._planned: dict[int, DriverTime] = {}  # by version
        self._tasks: list[Task] = []
        self.ledger = Ledger(self.client, self.names, owner, self.marker_topic)
        if has_listed:
            self.client.list_transactions(self.names.id_prefix)

    def __enter__(self) -> DriverRun:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for task in self._tasks:
            task.die()
        self.client.close()

    def write(self, version: int) -> WriteId:
        return WriteId(self._owner, version)

    def planned_at(self, version: int) -> DriverTime:
        """When the version was planned; the first call plans it."""
        return self._planned.setdefault(version, self._now())

    def _now(self) -> DriverTime:
        """Finer than milliseconds: in a test there may be several writes within one."""
        return DriverTime(self.name, time.time_ns())

    def task(self, version: int, partition: int, *rows: str, **how: Any) -> Task:
        """`how`: attempt, timeout_ms, planned_at and schemas, see Task."""
        task = Task(self, version, partition, rows, **how)
        self._tasks.append(task)
        return task

    def reports(self, version: int, *partitions: Sequence[str]) -> list[TaskReport]:
        """Run one attempt for each partition, one after the other."""
        return [self.task(version, partition, *rows).run() for partition, rows in enumerate(partitions)]

    def committing(self, reports: Sequence[TaskReport]) -> VersionCommit:
        return VersionCommit(
            self.client, self.names, reports, self.marker_topic, keeps_first=self._keeps_first, places=self.places
        )

    def commit(self, reports: Sequence[TaskReport]) -> Committed:
        return self.committing(reports).run()

    def decide(self, reports: Sequence[TaskReport], old_decision: Decision | None = None) -> Decision:
        """Do as a driver that dies, or stands still, once it has written its decision."""
        return self.committing(reports)._decide(old_decision)

    def carry_out(self) -> None:
        """Do as a driver that goes on after `decide`."""
        assert carry_out_decision(self.ledger, self.places) is not None

    def write_version(self, version: int, *partitions: Sequence[str]) -> Committed:
        return self.commit(self.reports(version, *partitions))

    def abort(self) -> int:
        """Abort what this run has planned so far."""
        self._planned.clear()
        return abort_prefix(self.client, self.names, self.marker_topic, self._now(), self.places)
