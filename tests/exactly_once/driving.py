"""Tasks and drivers of exactly-once writes that a test moves by hand, a step at a time, in any order."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from types import TracebackType

import pyarrow as pa

from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.version_commit import Committed, VersionCommit, abort
from spark_kafka_sink.exactly_once.writes import TaskReport, WriteId
from spark_kafka_sink.producer.producer import KafkaProducer

QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "linger.ms": 0, "max.block.ms": 20_000}


def content_of(rows: Iterable[str]) -> Content:
    """Any function that does not depend on the order."""
    rows = list(rows)
    return Content(len(rows), sum(zlib.crc32(row.encode()) * 0x1_0000_0001 for row in rows) % 2**64)


class Task:
    """One attempt to write a Spark partition. After `die` it does nothing more, and its transaction stays as it is."""

    def __init__(
        self, run: Run, version: int, partition: int, rows: Sequence[str], attempt: int = 0, timeout_ms: int = 60_000
    ) -> None:
        self._topic = run.topic
        self.rows = rows
        self.write = run.write(version)
        task = TaskId(self.write.owner, partition, self.write.run, attempt)
        options = {**run.options, "transactional.id": run.names.transactional_id(task), "transaction.timeout.ms": timeout_ms}
        self.producer = KafkaProducer(options)
        self.attempt = TaskAttempt(run.client, self.producer, run.names, self.write, partition, attempt, run.topic)

    def begin(self) -> Task:
        self.attempt.begin()
        return self

    def send(self) -> Task:
        """Until its rows are acknowledged."""
        if self.attempt.writes and self.rows:
            self.attempt.open()
            self.producer.send_columns(self._topic, value=pa.array(self.rows, pa.string()))
            self.producer.flush()
        return self

    def finish(self) -> TaskReport:
        report = self.attempt.finish(content_of(self.rows))
        self.producer.close()
        return report

    def run(self) -> TaskReport:
        return self.begin().send().finish()

    def die(self) -> None:
        self.producer.close(timeout_ms=0)


class Run:
    """One life of a driver: a query's run, or one batch write.

    Args:
        address: bootstrap.servers.
        topic: that rows go to, and that markers name.
        run: its id; `owner` stays the same over the runs of a query.
        write: what abort() records; None: the run, as in a stream.
        is_repeated: whether another run may have the same owner: not that of a batch write without txnAppId.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        run: str,
        *,
        owner: str = "q",
        prefix: str = "P",
        write: str | None = None,
        is_repeated: bool = True,
        **options: object,
    ) -> None:
        self.topic = topic
        self.names = Names(prefix)
        self.options = {"bootstrap.servers": address, **QUICK, **options}
        self.client = TransactionClient(self.options)
        self._owner = owner
        self._run = run
        self._write = write or run
        self._is_repeated = is_repeated
        self._tasks: list[Task] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for task in self._tasks:
            task.die()
        self.client.close()

    def write(self, version: int) -> WriteId:
        return WriteId(self._owner, version, self._run, self._write)

    def task(self, version: int, partition: int, *rows: str, attempt: int = 0, timeout_ms: int = 60_000) -> Task:
        task = Task(self, version, partition, rows, attempt, timeout_ms)
        self._tasks.append(task)
        return task

    def reports(self, version: int, *partitions: Sequence[str]) -> list[TaskReport]:
        """Of one attempt for each partition, one after the other."""
        return [self.task(version, partition, *rows).run() for partition, rows in enumerate(partitions)]

    def committing(self, reports: Sequence[TaskReport]) -> VersionCommit:
        return VersionCommit(self.client, self.names, reports, self.topic)

    def commit(self, reports: Sequence[TaskReport]) -> Committed:
        return self.committing(reports).run()

    def write_version(self, version: int, *partitions: Sequence[str]) -> Committed:
        return self.commit(self.reports(version, *partitions))

    def abort(self, version: int = 0) -> int:
        write = self.write(version)
        return abort(self.client, self.names, self.topic, write.owner, write.write, is_repeated=self._is_repeated)
