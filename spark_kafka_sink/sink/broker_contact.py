"""Shortens the wait for brokers after an earlier task of the same stage, on the same executor, has found none.

Spark runs a failing task spark.task.maxFailures times. With a wrong address, each attempt would wait max.block.ms. Spark ends
the Python worker of a failed task, so the task leaves an empty file in the executor's own directory. Another executor may reach
the brokers, so its first task waits the full time. So does the next write, because it is another stage.
Law: the file only shortens a wait. If a broker answers in that time, rows are sent as without the file.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkFiles
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from spark_kafka_sink.producer.task_producer import TaskProducer

logger = logging.getLogger(__name__)

NOBODY_ANSWERED = "KAFKA_BROKER_UNREACHABLE"
SHORT_WAIT_MS = 1_000  # plus a twentieth of max.block.ms: enough for TLS, a login and metadata


def await_brokers(producer: TaskProducer, config: ProducerConfig) -> None:
    """If an earlier task found no broker, wait for one, at most SHORT_WAIT_MS + max.block.ms / 20. Raises KafkaTimeoutError."""
    file = _no_broker_file(config)
    if file is None or not file.exists():
        return
    try:
        producer.await_brokers(min(config.max_block_ms, SHORT_WAIT_MS + config.max_block_ms // 20))
    except KafkaTimeoutError as error:
        error.message += f"; an earlier task on this executor has already waited max.block.ms={config.max_block_ms}"
        raise


def remember_failure(error: KafkaError, config: ProducerConfig) -> None:
    """The task fails with this error: leave the file if the reason is that no broker answered."""
    file = _no_broker_file(config)
    if file is None or error.condition != NOBODY_ANSWERED:
        return
    try:
        file.touch()
    except OSError as reason:  # without the file, the next attempt only waits longer
        logger.debug("! %s cannot be written: %s", file, reason)


def _no_broker_file(config: ProducerConfig) -> Path | None:
    """The path of the file that exists if an earlier task found no broker. None outside of a task."""
    context = TaskContext.get()
    if context is None:
        return None
    servers_hash = hashlib.sha256(repr(config.bootstrap_servers).encode()).hexdigest()[:16]
    return Path(SparkFiles.getRootDirectory(), f".pykafka-sink-no-broker-{context.stageId()}-{servers_hash}")
