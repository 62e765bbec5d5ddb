"""The writers that Spark pickles for the tasks, and the steps of a task.

On the driver a writer is plain data: a WritePlan. In a task, write() takes a producer from the worker's WorkerCache, hands
every Arrow batch to a RowSender, waits, and returns the task's commit message. On the driver again, commit() and abort() hand
the messages to commit.py.
Laws: every row that comes in is accounted for, or write() raises, unless the driver has given the write up: then nobody takes
what write() returns. On success the iterator has been read to its end. A producer returns to the cache flushed and empty, or it
is closed: Spark ends its Python workers without warning.
"""

from __future__ import annotations

import functools
import gc
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.sink_options import DEAD_LETTER
from spark_kafka_sink.errors import ConfigError, KafkaError, RecordTooLargeError
from spark_kafka_sink.exactly_once.writes import WriteAbortedError
from spark_kafka_sink.sink import commit
from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage
from spark_kafka_sink.sink.idle_timeout import check_rates
from spark_kafka_sink.sink.rows.gathering import gather
from spark_kafka_sink.sink.shipped_files import with_shipped_files
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.task_clock import TaskClock
from spark_kafka_sink.sink.write_plan import WritePlan

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.sink.broker_contact import BrokerContact
    from spark_kafka_sink.sink.exactly_once_plan import ExactlyOncePlan
    from spark_kafka_sink.sink.rows.row_sender import RowSender

logger = logging.getLogger(__name__)

stderr_log.add_handler_in_spark_worker()  # here, as every Spark worker that plans, writes or commits imports this module first


@functools.cache
def freeze_loaded_modules() -> None:
    """Exempt what this process has loaded so far from garbage collection. Only in Spark's workers; only the first call counts.

    Spark's workers collect after every task, plan and commit, and each collection walks through all of pyspark, pyarrow and
    this package: 20 ms of CPU, several times what a small task costs. Modules live as long as the worker anyway.
    """
    main = sys.modules["__main__"].__spec__
    if "pyspark.daemon" in (main and main.name, *sys.modules):  # workers are forked from the daemon
        gc.freeze()


# --- THE STEPS OF A TASK ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _KafkaWriter:
    """What both kinds of writers share."""

    plan: WritePlan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Blocks until every row is acknowledged, at most delivery.timeout.ms after the last one was sent.

        Raises KafkaError, naming the Spark partition and attempt, when a row cannot be written; Spark then retries the task.
        """
        # Imported here, because the driver plans every batch and needs none of these.
        from spark_kafka_sink.producer.producer import KafkaProducer
        from spark_kafka_sink.sink.broker_contact import BrokerContact
        from spark_kafka_sink.sink.rows.dead_letters import LARGEST_ROW, options_for_large_rows
        from spark_kafka_sink.sink.rows.row_sender import RowSender
        from spark_kafka_sink.sink.worker_cache import PRODUCERS

        plan, task, clock = self.plan, Task.current(), TaskClock()
        iterator = clock.rows(iterator)
        freeze_loaded_modules()
        contact = BrokerContact.of_this_task(plan.producer_options)
        try:
            options = with_shipped_files(plan.producer_options)
            if plan.exactly_once is not None:
                return self._write_exactly_once(plan.exactly_once, options, contact, iterator, task, clock)
            with PRODUCERS.lend(options, plan.producer_cache_timeout_ms) as producer:
                sender = RowSender(
                    producer,
                    plan.mapping,
                    options,
                    plan.rules,
                    lambda: KafkaProducer(options_for_large_rows(options), largest_record=LARGEST_ROW),
                )
                try:
                    message = write_batches(contact.when_answered(iterator, producer), sender, producer, task, clock)
                except BaseException:
                    sender.close(timeout_ms=0)  # after a failure, nothing more is sent
                    raise
                sender.close(timeout_ms=None)
                return message
        except WriteAbortedError as error:
            logger.info("= %s: %s", task, error)
            return _given_up(task, clock)
        except KafkaError as error:
            contact.failed(error)
            error.message = f"{error.message} ({task})"
            raise

    def _write_exactly_once(
        self,
        exactly_once: ExactlyOncePlan,
        options: dict[str, object],
        contact: BrokerContact,
        iterator: Iterator[pa.RecordBatch],
        task: Task,
        clock: TaskClock,
    ) -> KafkaCommitMessage:
        from spark_kafka_sink.sink.exactly_once_task import open_task
        from spark_kafka_sink.sink.rows.row_sender import RowSender

        plan = self.plan
        with open_task(
            exactly_once,
            task,
            plan.mapping,
            options,
            contact,
            plan.producer_cache_timeout_ms,
            takes_large_rows=plan.rules.on_record_too_large == DEAD_LETTER,
        ) as transaction:
            sender = RowSender(
                transaction.producer, plan.mapping, options, plan.rules, _no_larger_producer, is_transactional=True
            )
            message = write_batches(iterator, sender, transaction.producer, task, clock, transaction.rows)
            report = transaction.finish()
            return replace(message, exactly_once=report, seconds=round(clock.seconds(), 3))

    # On the driver. Spark hands over what write() has returned.

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        plan, clock = self.plan, TaskClock()
        reports = commit.complete(messages)  # type: ignore[arg-type]
        version = None
        if plan.exactly_once is not None:
            from spark_kafka_sink.sink.exactly_once_commit import commit_version

            commit.require_not_given_up(reports)
            options = with_shipped_files(plan.producer_options)
            tasks = [each.exactly_once for each in reports]
            version = commit_version(plan.exactly_once, options, tasks, plan.producer_cache_timeout_ms)
        commit.commit(reports, plan.report_path, plan.on_commit, version, clock.seconds())

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        plan = self.plan
        if plan.exactly_once is None:
            commit.abort(messages)  # type: ignore[arg-type]
            return
        from spark_kafka_sink.sink.exactly_once_commit import abort_version

        abort_version(plan.exactly_once, with_shipped_files(plan.producer_options))


def _given_up(task: Task, clock: TaskClock) -> KafkaCommitMessage:
    """Of a task that ended without its rows, as the driver had aborted the write, which query.stop() has it do. Fails a commit.

    An error would have no reader but the log: Spark tells it with stack traces, and runs the task again. That is where it does
    not kill the tasks of a query that is stopped, as foreachBatch has set another job group.
    """
    ids = (task.partition, task.attempt, task.query_id, task.batch_id)
    seconds, counters = round(clock.seconds(), 3), (0.0,) * len(COUNTERS)
    return KafkaCommitMessage(*ids, 0, 0, seconds, counters, 0, 0, (), is_given_up=True)


def _no_larger_producer() -> KafkaProducer:
    """A second producer would write outside of the transaction."""
    raise RecordTooLargeError("with the headers of a dead letter, the row is larger than any request may be")


def write_batches(
    batches: Iterator[pa.RecordBatch],
    sender: RowSender,
    producer: KafkaProducer,
    task: Task,
    clock: TaskClock | None = None,
    to_be_sent: Callable[[Iterator[pa.Table]], Iterator[pa.Table]] = iter,
) -> KafkaCommitMessage:
    """Send every row, and wait until each is acknowledged, skipped or dead-lettered.

    Args:
        clock: the task's; without it, the task begins now.
        to_be_sent: is given all rows, many at a time, and yields those that are to be sent.

    Raises KafkaError if a row must fail the task; some rows may have been written then.
    """
    clock = clock or TaskClock()
    for table in to_be_sent(_tables(batches, sender, task)):
        sender.send(table)
        del table  # frees its memory before more is read
    sender.finish()
    return _commit_message(task, sender, producer, clock)


def _tables(batches: Iterator[pa.RecordBatch], sender: RowSender, task: Task) -> Iterator[pa.Table]:
    """The rows that are sent together. With rates each batch is sent alone: Spark sees that a task is alive when it reads."""
    if not sender.has_rates:
        return map(pa.Table.from_batches, gather(batches))
    if task.idle_timeout_s is not None:
        batches = check_rates(batches, lambda batch: sender.seconds(pa.Table.from_batches([batch])), task.idle_timeout_s)
    return (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)


def _commit_message(task: Task, sender: RowSender, producer: KafkaProducer, clock: TaskClock) -> KafkaCommitMessage:
    written = sender.written()
    metrics = producer.metrics(since_start=True)
    return KafkaCommitMessage(
        spark_partition=task.partition,
        attempt=task.attempt,
        query_id=task.query_id,
        batch_id=task.batch_id,
        rows=sender.acknowledged,
        bytes=sum(each.bytes for each in written),
        seconds=round(clock.seconds(), 3),
        counters=tuple(round(metrics.get(name, 0), 3) for name in COUNTERS),
        skipped=sender.skipped,
        dead_lettered=sender.dead_lettered,
        written=written,
        times=clock.times(sender.held_back_seconds),
        skipped_by_reason=tuple(sender.skipped_by_reason.items()),
        dead_lettered_by_reason=tuple(sender.dead_lettered_by_reason.items()),
    )


# --- WHAT SPARK CALLS -------------------------------------------------------------------------------------------------


class KafkaBatchWriter(_KafkaWriter, DataSourceArrowWriter):
    """For `df.write`, foreachBatch included."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        freeze_loaded_modules()
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class PlanningError(ConfigError, pickle.PicklingError):
    """A problem of the driver's environment. It is a PicklingError because Spark's serializer replaces all other errors."""


@dataclass(frozen=True)
class KafkaStreamWriter(_KafkaWriter, DataSourceStreamArrowWriter):
    """For `df.writeStream`. Spark makes a new one to plan and another to commit each batch, so none keeps any state.

    Spark pickles only the one that plans a batch. The one that commits it must not raise for the driver's environment: the rows
    are in Kafka by then, and Spark would write them again. So `environment_problems` are raised when the writer is pickled.
    """

    environment_problems: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        if self.environment_problems:
            raise PlanningError(join_problems(self.environment_problems))
        return self.__dict__

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's signature
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        self._abort(messages)
