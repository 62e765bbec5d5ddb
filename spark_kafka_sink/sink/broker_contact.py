"""Shortens the wait for brokers after an earlier task of the same stage, on the same executor, has found none.

Spark runs a failing task spark.task.maxFailures times. With a wrong address, each attempt would wait max.block.ms. Spark ends
the Python worker of a failed task, so the task leaves a marker file in the executor's own directory. Another executor may reach
the brokers, so its first task waits the full time. So does the next write, because it is another stage.
Law: the marker shortens a wait and changes nothing else. Rows are sent as soon as a broker answers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer import KafkaProducer

logger = logging.getLogger(__name__)

NOBODY_ANSWERED = "KAFKA_BROKER_UNREACHABLE"
SHORT_WAIT_MS = 1_000  # plus a twentieth of max.block.ms: enough for TLS, a login and metadata


class BrokerContact:
    """Of one task. `file` is the marker: it exists if an earlier task found no broker. None outside of a task."""

    def __init__(self, file: Path | None, options: Mapping[str, object]) -> None:
        self._file = file
        self._options = options  # of the producer

    @classmethod
    def of_this_task(cls, options: Mapping[str, object]) -> BrokerContact:
        context = TaskContext.get()
        if context is None:
            return cls(None, options)
        servers = hashlib.sha256(repr(options.get("bootstrap.servers")).encode()).hexdigest()[:16]
        return cls(Path(SparkFiles.getRootDirectory(), f".pykafka-sink-no-broker-{context.stageId()}-{servers}"), options)

    def when_answered(self, batches: Iterator[pa.RecordBatch], producer: KafkaProducer) -> Iterator[pa.RecordBatch]:
        """The batches, unchanged. If an earlier task found no broker, one must answer soon once there is a row to send.

        Raises KafkaTimeoutError if none does.
        """
        is_checked = False
        for batch in batches:
            if not is_checked and batch.num_rows:
                self.check(producer)
                is_checked = True
            yield batch

    def check(self, producer: KafkaProducer) -> None:
        """If an earlier task found no broker, one must answer soon. Raises KafkaTimeoutError if none does."""
        if self._file is None or not self._file.exists():
            return
        max_block_ms = ProducerConfig.from_mapping(self._options).max_block_ms
        try:
            producer.await_brokers(min(max_block_ms, SHORT_WAIT_MS + max_block_ms // 20))
        except KafkaTimeoutError as error:
            error.message += f"; an earlier task on this executor has already waited max.block.ms={max_block_ms}"
            raise

    def failed(self, error: KafkaError) -> None:
        """The task fails with this error: leave the marker if the reason is that no broker answered."""
        if self._file is None or error.condition != NOBODY_ANSWERED:
            return
        try:
            self._file.touch()
        except OSError as reason:  # without the marker, the next attempt only waits longer
            logger.debug("! %s cannot be written: %s", self._file, reason)
