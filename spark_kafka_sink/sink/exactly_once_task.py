"""A task of an exactly-once write: which transaction its rows go to, and what it reports.

The steps that matter for exactly-once are TaskAttempt's; this gives them a producer, a client and the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AbortableTransactionError, FatalProducerError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once.content import Content, total
from spark_kafka_sink.exactly_once.fingerprint import Fingerprint
from spark_kafka_sink.exactly_once.heartbeat import Heartbeat
from spark_kafka_sink.exactly_once.names import TaskId
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.sink.broker_contact import BrokerContact
from spark_kafka_sink.sink.exactly_once_plan import ExactlyOncePlan, has_name
from spark_kafka_sink.sink.rows.row_mapping import RowMapping
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.worker_cache import CLIENTS, TRANSACTIONAL, TRANSACTIONAL_FOR_LARGE_ROWS

MARKER_TOPIC_MS = 10_000  # for the option markerTopic to be found
# What the producer cannot know of the reasons, by the condition of an error.
_TAKEN_OVER = (
    " In Spark: another write with the same transactionalIdPrefix has begun, which is for one query or job at a time; or somebody"
    " has aborted this one with jobs.transactions; or it was open for longer than kafka.transaction.timeout.ms. Nothing of it is"
    " seen"
)
_HINTS = {
    Errors.INVALID_PRODUCER_EPOCH.condition: _TAKEN_OVER,
    Errors.PRODUCER_FENCED.condition: _TAKEN_OVER,
    Errors.INVALID_TRANSACTION_TIMEOUT.condition: (
        " In Spark: lower kafka.transaction.timeout.ms to the brokers' transaction.max.timeout.ms, or remove it, so that the task"
        " asks for that limit"
    ),
}
ABORT_MS = 5_000  # for a failed task to abort its transaction; if it cannot, the driver does


class ExactlyOnceTask:
    """Args: see `open_task`, which makes it."""

    def __init__(self, producer: KafkaProducer, attempt: TaskAttempt, mapping: RowMapping, *, has_name: bool) -> None:
        self.producer = producer
        self._attempt = attempt
        self._mapping = mapping
        self._has_name = has_name
        self._content = Content()

    def rows(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows to be written, after a look at each. Reads all and hands on none when they are in Kafka already."""
        writes = self._attempt.writes
        for table in tables:
            self._content = total([self._content, self._content_of(table)])
            if writes:
                self._attempt.open()
                yield table
            del table  # frees its memory before more is read

    def _content_of(self, table: pa.Table) -> Content:
        """The fingerprint is what costs most in this mode: it is taken only where another run can compare it."""
        if not self._has_name:
            return Content(table.num_rows)
        fingerprint = Fingerprint()
        fingerprint.add(self._mapping.unchecked_columns(table))
        return fingerprint.content

    def finish(self) -> TaskReport:
        """When every row is acknowledged. Raises as TaskAttempt.finish does."""
        return self._attempt.finish(self._content)


@contextmanager
def open_task(
    plan: ExactlyOncePlan,
    task: Task,
    mapping: RowMapping,
    options: Mapping[str, object],
    contact: BrokerContact,
    cache_timeout_ms: int,
    *,
    takes_large_rows: bool,
) -> Iterator[ExactlyOnceTask]:
    """A task of this write, ready to write its rows. Blocks for some requests to brokers; raises as TaskAttempt.begin does.

    Args:
        options: the producer's.
        cache_timeout_ms: how long client and producer may then be idle.
        takes_large_rows: whether the producer takes rows above max.request.size, as dead letters.
    """
    write = plan.write_id(task)
    names = plan.names
    transactional_id = names.transactional_id(TaskId(write.owner, task.partition, task.attempt))
    place = TopicPartition(plan.marker_topic, 0)
    heartbeat = Heartbeat(lambda: CLIENTS.lend(options, cache_timeout_ms), names.heartbeat_group(write.owner), place)
    with CLIENTS.lend(options, cache_timeout_ms) as client:
        if plan.is_marker_topic_given:
            _require_marker_topic(client, plan.marker_topic)
        own = dict(options)
        if not plan.has_timeout:  # a transaction is open from a task's first row until the driver commits
            own["transaction.timeout.ms"] = client.longest_transaction_timeout_ms()
        producers = TRANSACTIONAL_FOR_LARGE_ROWS if takes_large_rows else TRANSACTIONAL
        with heartbeat, producers.lend(own, cache_timeout_ms) as producer:  # in the end it leaves the transaction open
            try:
                producer.use_transactional_id(transactional_id)
                contact.check(producer)
                which = (task.partition, task.attempt, plan.marker_topic)
                attempt = TaskAttempt(client, producer, names, write, plan.planned, *which)
                attempt.begin()
                yield ExactlyOnceTask(producer, attempt, mapping, has_name=has_name(write))
            except BaseException as error:
                if isinstance(error, KafkaError):
                    _tell_in_spark(error)
                producer.close(timeout_ms=ABORT_MS)
                raise


def _tell_in_spark(error: KafkaError) -> None:
    """Name what can be done in Spark, in place of what callers of a producer are told to do."""
    cause = error.__cause__
    if isinstance(error, AbortableTransactionError | FatalProducerError) and isinstance(cause, KafkaError):
        error.message = cause.message
    error.message += _HINTS.get(error.condition, "")


def _require_marker_topic(client: TransactionClient, topic: str) -> None:
    """Before any row: without it, the marker would fail after all rows."""
    try:
        client.require_topic(topic, timeout_ms=MARKER_TOPIC_MS)
    except KafkaTimeoutError as error:
        raise KafkaTimeoutError(
            f"markerTopic={topic} was not found: {error.message}. Nothing was written. Create the topic (one partition is"
            " enough, and nothing is written to it), or name another",
            condition="KAFKA_UNKNOWN_TOPIC" if error.condition == KafkaTimeoutError.condition else error.condition,
        ) from error
    except KafkaError as error:
        raise KafkaError(f"markerTopic={topic} was not found: {error.message}", condition=error.condition) from error
