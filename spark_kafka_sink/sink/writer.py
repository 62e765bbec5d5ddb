"""The writers that travel to the tasks: plain data on the driver, one producer inside write().

write() hands each Arrow batch to a RowSender and returns only when every row is acknowledged, or has the fate that the user
chose for rows that cannot be written.
Laws: every row that comes in is accounted for, or it raises. On success the iterator has been read to its end. The producer
comes from the worker's ProducerCache and goes back flushed and empty, or is closed: a Python worker gets no other chance.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config import jaas
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.security_config import FILE_KEYS
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.sink import commit_protocol
from spark_kafka_sink.sink.commit_protocol import COUNTERS, KafkaCommitMessage
from spark_kafka_sink.sink.idle_timeout import check_rates, idle_timeout_s
from spark_kafka_sink.sink.row_mapping import RowMapping
from spark_kafka_sink.sink.row_rules import RowRules

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.sink.row_sender import RowSender

stderr_log.add_handler_in_spark_worker()  # here: each of Spark's workers that plans, writes or commits loads this file first

GATHERED_ROWS = 32 * 1024  # what the producer lays out at a time; Spark's Arrow batches have 10,000 rows, or fewer if asked to
GATHERED_BYTES = 8 * 1024 * 1024
_LOGIN = "sasl.jaas.config"  # may name a file inside


@dataclass(frozen=True, slots=True)
class Task:
    """Who writes: Spark's ids of this attempt, and of the stream's batch if there is one (foreachBatch included)."""

    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None
    idle_timeout_s: float | None = None  # after which Spark kills the worker

    @classmethod
    def current(cls) -> Task:
        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            context.getLocalProperty("sql.streaming.queryId"),
            None if batch_id is None else int(batch_id),
            idle_timeout_s(context.getLocalProperty),
        )

    def __str__(self) -> str:
        stream = "" if self.batch_id is None else f" of batch {self.batch_id}"
        return f"Spark partition {self.partition}{stream}, attempt {self.attempt}"


def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Neighbours, up to GATHERED_ROWS and GATHERED_BYTES, and larger batches alone; no empty ones.

    Work per partition is done once for what is gathered. A large batch is given out before the next is read, and nothing that
    was given out is held here: at 64 MB each, they are most of what a task needs.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > GATHERED_ROWS or size + batch.nbytes > GATHERED_BYTES):
            yield _emptied(waiting)
            rows = size = 0
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        del batch
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield _emptied(waiting)
            rows = size = 0
    if waiting:
        yield waiting


def _emptied(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    given_out = waiting.copy()
    waiting.clear()
    return given_out


def write_batches(
    batches: Iterator[pa.RecordBatch], sender: RowSender, producer: KafkaProducer, task: Task
) -> KafkaCommitMessage:
    """Send every row and wait until each is acknowledged, or has the fate that the user chose for rows like it.

    Raises KafkaError otherwise; rows may have been written then.
    """
    started = time.monotonic()
    for gathered in _groups(batches, sender, task):
        sender.send(pa.Table.from_batches(gathered))
        del gathered  # before more is read
    sender.finish()
    written = sender.written()
    metrics = producer.metrics(since_start=True)
    return KafkaCommitMessage(
        spark_partition=task.partition,
        attempt=task.attempt,
        query_id=task.query_id,
        batch_id=task.batch_id,
        rows=sender.acknowledged,
        bytes=sum(each.bytes for each in written),
        seconds=round(time.monotonic() - started, 3),
        counters=tuple(round(metrics.get(name, 0), 3) for name in COUNTERS),
        skipped=sender.skipped,
        dead_lettered=sender.dead_lettered,
        written=written,
    )


def _groups(batches: Iterator[pa.RecordBatch], sender: RowSender, task: Task) -> Iterator[list[pa.RecordBatch]]:
    """What is sent at a time. With rates each batch by itself, as Spark hears nothing of a task between its reads."""
    if not sender.has_rates:
        return gather(batches)
    if task.idle_timeout_s is not None:
        batches = check_rates(batches, lambda batch: sender.seconds(pa.Table.from_batches([batch])), task.idle_timeout_s)
    return ([batch] for batch in batches if batch.num_rows)


def with_shipped_files(options: Mapping[str, object]) -> dict[str, object]:
    """The options of a producer, in which a relative path that is not here names a file sent with --files or addFile.

    Raises ConfigError when it is not among those either.
    """
    found = dict(options)
    for key in FILE_KEYS:
        name = options.get(key)
        if isinstance(name, str) and name:
            found[key] = _shipped(key, name)
    login = options.get(_LOGIN)
    if isinstance(login, Secret):
        for name, path in jaas.files_named_in(login.reveal()).items():
            shipped = _shipped(f"{_LOGIN}: {name}", path)
            if shipped != path:
                login = Secret(jaas.with_option(login.reveal(), name, shipped))
        found[_LOGIN] = login
    return found


def _shipped(option: str, name: str) -> str:
    if os.path.isabs(name) or os.path.exists(name):
        return name
    shipped = SparkFiles.get(name)
    if not os.path.exists(shipped):
        raise ConfigError(
            f"{option}={name}: there is no such file here, neither in the working directory {os.getcwd()} nor among the files"
            f" sent with --files ({SparkFiles.getRootDirectory()}); send it along, or give a path that is on every executor"
        )
    return shipped


@functools.cache
def spare_collections() -> None:
    """Have the garbage collector pass over what this process has loaded so far; the first call counts, in Spark's workers only.

    They collect after every task, plan and commit, and walk through all of pyspark, pyarrow and this package each time: 20 ms of
    CPU, several times what a small task costs. Modules live as long as the worker; what little garbage their loading left too.
    """
    main = sys.modules["__main__"].__spec__
    if "pyspark.daemon" in (main and main.name, *sys.modules):  # a worker is forked from it
        gc.freeze()


@dataclass(frozen=True)
class _TaskWriter:
    """What both kinds of writers are made of: picklable, and without any life of its own."""

    mapping: RowMapping
    producer_options: Mapping[str, object] = field(repr=False)  # checked on the driver; secrets wrapped
    report_path: str | None = None
    producer_cache_timeout_ms: int = 0
    rules: RowRules = field(default_factory=RowRules)
    on_commit: str | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Blocks until every row is acknowledged, at most delivery.timeout.ms after the last was sent.

        Raises KafkaError, naming the Spark partition and attempt, when a row cannot be written; Spark then retries the task.
        """
        # Here: the driver, which plans every batch, does without.
        from spark_kafka_sink.producer.producer import KafkaProducer
        from spark_kafka_sink.sink.broker_contact import BrokerContact
        from spark_kafka_sink.sink.dead_letters import options_for_large_rows
        from spark_kafka_sink.sink.producer_cache import PRODUCERS
        from spark_kafka_sink.sink.row_sender import RowSender

        task = Task.current()
        spare_collections()
        contact = BrokerContact.of_this_task(self.producer_options)
        try:
            options = with_shipped_files(self.producer_options)
            with PRODUCERS.lend(options, self.producer_cache_timeout_ms) as producer:
                sender = RowSender(
                    producer, self.mapping, options, self.rules, lambda: KafkaProducer(options_for_large_rows(options))
                )
                finished = False
                try:
                    message = write_batches(contact.when_answered(iterator, producer), sender, producer, task)
                    finished = True
                    return message
                finally:
                    sender.close(None if finished else 0)  # after a failure, nothing more is sent
        except KafkaError as error:
            contact.failed(error)
            error.message = f"{error.message} ({task})"
            raise


class KafkaBatchWriter(_TaskWriter, DataSourceArrowWriter):
    """Of `df.write`, foreachBatch included."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        spare_collections()
        commit_protocol.commit(messages, self.report_path, self.on_commit)  # type: ignore[arg-type]  # Spark gives back what write() returned

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_protocol.abort(messages)  # type: ignore[arg-type]


class PlanningError(ConfigError, pickle.PicklingError):
    """What is wrong with the driver's environment. Spark's serializer replaces errors other than those of pickle by its own."""


@dataclass(frozen=True)
class KafkaStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Of `df.writeStream`. Spark makes a new one for every commit: nothing is kept from batch to batch.

    Spark pickles the one with which it plans a batch, for the tasks, and not the one with which it commits: there the rows are
    in Kafka, and an error would have them written again. So problems that a commit can live with are raised when pickling.
    """

    environment_problems: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        if self.environment_problems:
            raise PlanningError(join_problems(self.environment_problems))
        return self.__dict__

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's signature
        commit_protocol.commit(messages, self.report_path, self.on_commit)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        commit_protocol.abort(messages)  # type: ignore[arg-type]
