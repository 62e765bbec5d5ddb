"""A task that has found no broker leaves word for those of its stage that follow on the same executor: they wait a moment only.

Spark runs a failed task again, spark.task.maxFailures times in all. With a wrong address each attempt would wait max.block.ms
for brokers that the one before has not found. A Python worker whose task has failed is ended, so the word is a file, in the
executor's own directory. Another executor may reach the brokers: it waits for itself. So does the next write, a stage of its own.
Law: what is said here shortens a wait and decides nothing else. Rows are sent as soon as a broker answers.
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
MOMENT_MS = 1_000  # and a twentieth of max.block.ms: enough for TLS, a login and metadata


class BrokerContact:
    """Of one task. `file` tells that an earlier task of the stage has waited in vain here; None where nothing can be kept."""

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
        """The batches as they come. If an earlier task has waited in vain, a broker must answer within a moment.

        Raises KafkaTimeoutError if none does.
        """
        is_answered = self._file is None or not self._file.exists()
        for batch in batches:
            if not is_answered and batch.num_rows:
                self._await_brokers(producer)
                is_answered = True
            yield batch

    def _await_brokers(self, producer: KafkaProducer) -> None:
        max_block_ms = ProducerConfig.from_mapping(self._options).max_block_ms
        try:
            producer.await_brokers(min(max_block_ms, MOMENT_MS + max_block_ms // 20))
        except KafkaTimeoutError as error:
            error.message += f"; a task before this one has waited max.block.ms={max_block_ms} on this executor, in vain"
            raise

    def failed(self, error: KafkaError) -> None:
        """The task fails with this error: leave word if it is that no broker answered."""
        if self._file is None or error.condition != NOBODY_ANSWERED:
            return
        try:
            self._file.touch()
        except OSError as reason:  # the next attempt waits longer, which is all that is lost
            logger.debug("! %s cannot be written: %s", self._file, reason)
