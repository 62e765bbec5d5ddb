"""A task of an exactly-once write: which transaction its rows go to, and what it reports.

The steps that matter for exactly-once are TaskAttempt's; this file gives them a producer and a client, writer.py the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.config.sink_options import DEAD_LETTER
from spark_kafka_sink.errors import (
    AbortableTransactionError,
    FatalProducerError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortedError,
)
from spark_kafka_sink.exactly_once.fingerprint import content_of
from spark_kafka_sink.exactly_once.heartbeat import Heartbeat
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.writes import Content, SchemaIds, WriteId, sum_contents
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.sink.broker_contact import await_brokers
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.shipped_files import with_shipped_files
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.worker_cache import CLIENTS, TRANSACTIONAL, TRANSACTIONAL_FOR_LARGE_ROWS
from spark_kafka_sink.sink.write_plan import WritePlan, has_name

MARKER_TOPIC_TIMEOUT_MS = 10_000  # how long a task looks for the topic of the option markerTopic
# Reasons and remedies in Spark, which the producer does not know, by the condition of its error.
_TAKEN_OVER = (
    " In Spark: another write with the same transactionalIdPrefix has begun, which is for one query or job at a time; or somebody"
    " has aborted this one with `pykafka-sink transactions`; or it was open for longer than kafka.transaction.timeout.ms. Nothing"
    " of it is seen"
)
_HINTS = {
    Errors.INVALID_PRODUCER_EPOCH.condition: _TAKEN_OVER,
    Errors.PRODUCER_FENCED.condition: _TAKEN_OVER,
    Errors.INVALID_TRANSACTION_TIMEOUT.condition: (
        " In Spark: lower kafka.transaction.timeout.ms to the brokers' transaction.max.timeout.ms, or remove it, so that the task"
        " asks for that limit"
    ),
}
ABORT_TIMEOUT_MS = 5_000  # for a failed task to abort its transaction; if it cannot, the driver does


@contextmanager
def open_task(plan: WritePlan, task: Task) -> Iterator[TaskAttempt]:
    """A task of this write, after TaskAttempt.begin. Blocks and raises as that does; raises as WritePlan.write_id does, too."""
    write, options = plan.write_id(task), plan.options
    producer_options = with_shipped_files(options.producer.to_mapping())
    lend_client = partial(CLIENTS.lend, producer_options, options.producer_cache_timeout_ms)
    heartbeat = Heartbeat(lend_client, plan.names.heartbeat_group(write.owner), TopicPartition(plan.marker_topic, 0))
    with lend_client() as client, heartbeat.liveness_lock:
        if options.marker_topic not in (None, options.topic):
            _require_marker_topic(client, plan.marker_topic)
        task_options = dict(producer_options)
        if "transaction.timeout.ms" not in options.producer.given_keys:
            # A transaction is open from a task's first row until the driver commits.
            task_options["transaction.timeout.ms"] = client.longest_transaction_timeout_ms()
        producers = TRANSACTIONAL_FOR_LARGE_ROWS if options.on_record_too_large == DEAD_LETTER else TRANSACTIONAL
        heartbeat.start()
        # At the end of the block, the producer is lent again or closed, and the transaction stays open.
        with producers.lend(task_options, options.producer_cache_timeout_ms) as producer:
            try:
                yield _begin(plan, write, task, client, producer)
            except BaseException as error:
                if isinstance(error, KafkaError):
                    _add_hint(error)
                producer.close(timeout_ms=ABORT_TIMEOUT_MS)
                raise


def _begin(plan: WritePlan, write: WriteId, task: Task, client: TransactionClient, producer: TaskProducer) -> TaskAttempt:
    await_brokers(producer, plan.options.producer)
    attempt = TaskAttempt(
        client,
        producer,
        plan.names,
        write,
        plan.planned_at,
        partition=task.partition,
        attempt=task.attempt,
        marker_topic=plan.marker_topic,
    )
    # Without schemas of topics that only rows name: each run finds the same ones by their text, version or id.
    schema_ids = {each.wanted_schema.part: each.encoder.use.id for each in plan.encoded_parts if each.encoder is not None}
    attempt.begin(SchemaIds(**schema_ids))
    return attempt


def content_to_compare(chunk: Chunk, write: WriteId) -> Content:
    """The content of a chunk. The fingerprint costs most in this mode, so it is 0 in a write that no other run can repeat."""
    chunks = [chunk, *(each.chunk for each in chunk.unencoded_rows)]
    return sum_contents(content_of(each.columns) if has_name(write) else Content(len(each.numbers)) for each in chunks)


def _add_hint(error: KafkaError) -> None:
    """Name what can be done in Spark, in place of what callers of a producer can do."""
    cause = error.__cause__
    if isinstance(error, AbortableTransactionError | FatalProducerError | TransactionAbortedError) and isinstance(
        cause, KafkaError
    ):
        error.message = cause.message
        if isinstance(error, TransactionAbortedError):  # a row that was not sent, because of another failure
            error.condition = cause.condition
    error.message += _HINTS.get(error.condition, "")


def _require_marker_topic(client: TransactionClient, topic: str) -> None:
    """Fail before any row: without the topic, the marker would fail after all rows."""
    try:
        client.require_topic(topic, timeout_ms=MARKER_TOPIC_TIMEOUT_MS)
    except KafkaTimeoutError as error:
        raise KafkaTimeoutError(
            f"markerTopic={topic} was not found: {error.message}. Nothing was written. Create the topic (one partition is"
            " enough, and nothing is written to it), or name another",
            condition="KAFKA_UNKNOWN_TOPIC" if error.condition == KafkaTimeoutError.condition else error.condition,
        ) from error
    except KafkaError as error:
        raise KafkaError(f"markerTopic={topic} was not found: {error.message}", condition=error.condition) from error
