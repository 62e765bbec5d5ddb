"""The writers that Spark pickles for the tasks, and the steps of a task.

On the driver a writer is plain data: a WritePlan. In a task, write() takes a producer from the WorkerCache, hands chunk after
chunk of Spark's rows to a RowSender, waits, and returns the task's commit message. On the driver again, commit() passes the
messages on to commit_report.py. abort() logs them there, or with exactly-once ignores them and aborts the write.
Laws: write() accounts for every row that comes in, or raises. Only if the driver has aborted the write, it returns a message with
`found_abort`, and no commit accepts this message. On success the iterator has been read to its end. A producer returns to the
cache flushed and empty, or it is closed, because Spark ends its Python workers without warning.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import pickle
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.sink_options import FAIL_TASK
from spark_kafka_sink.errors import ConfigError, KafkaError, RecordTooLargeError
from spark_kafka_sink.exactly_once.writes import WriteAbortedError
from spark_kafka_sink.sink import commit_report
from spark_kafka_sink.sink.commit_message import KafkaCommitMessage, elapsed_s
from spark_kafka_sink.sink.shipped_files import with_shipped_files
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.write_plan import WritePlan

if TYPE_CHECKING:
    from spark_kafka_sink.sink.rows.row_encoder import RowEncoder

logger = logging.getLogger(__name__)

stderr_log.add_handler_in_spark_worker()  # here, as every Spark worker that plans, writes or commits imports this module first


@functools.cache
def freeze_loaded_modules() -> None:
    """Exempt what this process has loaded so far from garbage collection. Only in Spark's workers; only the first call counts.

    Spark's workers collect after every task, plan and commit. Each collection walks through all of pyspark, pyarrow and this
    package. That is 20 ms of CPU, several times what a small task costs. Modules live as long as the worker anyway.
    """
    main = sys.modules["__main__"].__spec__
    if "pyspark.daemon" in (main and main.name, *sys.modules):  # workers are forked from the daemon
        gc.freeze()


# THE STEPS OF A TASK


@dataclass(frozen=True)
class _KafkaWriter:
    """The base of both writers: `write` runs in tasks, `commit` and `abort` on the driver."""

    plan: WritePlan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Blocks until every row is acknowledged: at most delivery.timeout.ms after the last row was sent, and as
        long again each time that rows are sent again because a broker rejected others of their batch.

        Raises KafkaError, naming the Spark partition and attempt, when a row cannot be written; Spark then retries the task.
        """
        try:
            if self.plan.options.is_exactly_once:
                return self._write_exactly_once(iterator)
            return self._write_without_transaction(iterator)
        except WriteAbortedError as error:
            logger.info("= %s: %s", Task.current(), error)
            return _abort_message(Task.current())
        except KafkaError as error:
            from spark_kafka_sink.sink.broker_contact import remember_failure

            remember_failure(error, self.plan.options.producer)
            error.message = f"{error.message} ({Task.current()})"
            raise

    # The two methods below import what only a task needs: the driver, which plans every batch, does without it. What they import
    # is exempt from garbage collection, too.

    def _write_without_transaction(self, batches: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        from spark_kafka_sink.sink.broker_contact import await_brokers
        from spark_kafka_sink.sink.rows.dead_letters import make_larger_producer
        from spark_kafka_sink.sink.rows.gathering import SparkRows
        from spark_kafka_sink.sink.rows.row_sender import RowSender
        from spark_kafka_sink.sink.worker_cache import PRODUCERS

        freeze_loaded_modules()
        task, options = Task.current(), self.plan.options
        producer_options = with_shipped_files(options.producer.to_mapping())
        with PRODUCERS.lend(producer_options, options.producer_cache_timeout_ms) as producer:
            sender = RowSender(producer, options, partial(make_larger_producer, producer_options))
            with encoder_of(self.plan, sender.missing_topics, {}) as encoder:
                rows = SparkRows(batches, self.plan.mapping, partial(await_brokers, producer, options.producer), encoder)
                try:
                    for chunk in rows.chunks(sender.rate_limit, task.idle_timeout_s):
                        sender.send(chunk)
                        del chunk  # frees its memory before more is read
                    sender.finish()
                except BaseException:
                    sender.close_after_failure()
                    raise
                return sender.commit_message(task, rows.waited_s, rows.schemas())

    def _write_exactly_once(self, batches: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        from spark_kafka_sink.sink.exactly_once_task import content_to_compare, open_task
        from spark_kafka_sink.sink.rows.gathering import SparkRows
        from spark_kafka_sink.sink.rows.row_sender import RowSender

        freeze_loaded_modules()
        task = Task.current()
        with open_task(self.plan, task) as attempt:
            sender = RowSender(attempt.producer, self.plan.options, _no_larger_producer, is_transactional=True)
            schema_ids = attempt.schemas.by_part()
            with encoder_of(self.plan, sender.missing_topics, schema_ids, must_write=attempt.must_write) as encoder:
                rows = SparkRows(batches, self.plan.mapping, encoder=encoder)
                for chunk in rows.chunks(sender.rate_limit, task.idle_timeout_s):
                    attempt.add_rows(content_to_compare(chunk, attempt.write))
                    if attempt.must_write:
                        sender.send(chunk)
                    del chunk
            with contextlib.suppress(KafkaError):  # finish() of one of the two raises it again: a row's error says more
                attempt.send_marker()
            sender.finish()
            message = sender.commit_message(task, rows.waited_s, rows.schemas())
            return replace(message, exactly_once=attempt.finish(), seconds=elapsed_s(task.started_monotonic_s))

    # On the driver. Spark hands over what write() has returned; for a stream with its batch, which the messages name too.

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002
        """Check that no task's message is missing, commit the transactions of an exactly-once write, and report. May raise."""
        freeze_loaded_modules()
        started_s, options = time.monotonic(), self.plan.options
        task_messages = commit_report.require_all(messages)  # type: ignore[arg-type]
        version = None
        if options.is_exactly_once:
            from spark_kafka_sink.sink.exactly_once_commit import commit_version

            commit_report.require_not_aborted(task_messages)
            version = commit_version(self.plan, task_messages)
        commit_report.report_commit(task_messages, options.report_path, options.on_commit, version, elapsed_s(started_s))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002
        """Log what was written all the same; for an exactly-once write, record that it was aborted, and fence its tasks."""
        if not self.plan.options.is_exactly_once:
            commit_report.log_abort(messages)  # type: ignore[arg-type]
            return
        from spark_kafka_sink.sink.exactly_once_commit import abort_version

        abort_version(self.plan, messages)  # type: ignore[arg-type]


def _abort_message(task: Task) -> KafkaCommitMessage:
    """Report that the task ended without its rows, as the driver has aborted the write. A commit with such a report fails.

    query.stop() makes the driver abort, and Spark kills the tasks then, unless foreachBatch has set another job group. If the
    task failed instead, Spark would log stack traces and run it again for nothing.
    """
    return KafkaCommitMessage(task.partition, task.attempt, task.query_id, task.batch_id, found_abort=True)


@contextlib.contextmanager
def encoder_of(
    plan: WritePlan,
    missing_topics: Callable[[Sequence[str]], Collection[str]],
    schema_ids: Mapping[str, int],
    *,
    must_write: bool = True,
) -> Iterator[RowEncoder | None]:
    """What encodes the rows of a task; None if no key or value has a format. The other arguments: see RowEncoder."""
    if not plan.encoded_parts:
        yield None
        return
    from spark_kafka_sink.sink.registry_of_write import registry_of
    from spark_kafka_sink.sink.rows.row_encoder import RowEncoder

    with registry_of(plan.options) as registry:
        parts, keeps_all = plan.encoded_parts, plan.options.on_invalid_record != FAIL_TASK
        yield RowEncoder(
            parts, registry, schema_ids, missing_topics=missing_topics, keeps_all_refused_rows=keeps_all, must_write=must_write
        )


def _no_larger_producer() -> NoReturn:
    """A second producer would write outside of the transaction."""
    raise RecordTooLargeError("with the headers of a dead letter, the row is larger than any request may be")


# WHAT SPARK CALLS


class KafkaBatchWriter(_KafkaWriter, DataSourceArrowWriter):
    """Writes a `df.write`, foreachBatch included."""


class PlanningError(ConfigError, pickle.PicklingError):
    """A problem of the driver's environment. It is a PicklingError because Spark's serializer replaces all other errors."""


@dataclass(frozen=True)
class KafkaStreamWriter(_KafkaWriter, DataSourceStreamArrowWriter):
    """Writes a `df.writeStream`. Spark makes a new one to plan and another to commit each batch, so none keeps any state.

    Spark pickles only the one that plans a batch. The one that commits it must not raise for the driver's environment: the rows
    are in Kafka by then, and Spark would write them again. So `environment_problems` are raised when the writer is pickled.
    """

    environment_problems: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        if self.environment_problems:
            raise PlanningError(join_problems(self.environment_problems))
        return self.__dict__
