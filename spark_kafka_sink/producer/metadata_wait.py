"""Callers wait here for metadata: when they name a topic or partition that the producer does not know yet.

Requests an update from Metadata and wakes the Sender, whose network client fetches it. When the update does not come in time,
the error says what is missing and why. Used by KafkaProducer, TaskProducer and ColumnSender.
Law: no wait is longer than the caller allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION


@dataclass(eq=False, repr=False)
class MetadataWait:
    """Waits for metadata, on the thread of the caller. `max_block_ms`: the limit of each wait for a topic."""

    metadata: Metadata
    wake_sender: Callable[[], None]
    metrics: ProducerMetrics
    clock: Clock
    max_block_ms: int

    def await_partition(self, topic: str, partition: int) -> Cluster:
        """Metadata with the topic and this partition; with NO_PARTITION the topic is enough. Blocks at most max.block.ms.

        Raises:
            KafkaTimeoutError, InvalidRecordError: the topic, or the partition, does not exist after max.block.ms.
            BrokerError: brokers report an error for the topic.
            InvalidRecordError, at once: no topic can have this name. TypeError: it is not a str.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        if self.metadata.cluster().partition_count(topic) is None and not is_topic_name(topic):
            # Brokers would reject the name too, but some names cannot be encoded in a request, or make brokers disconnect.
            raise InvalidRecordError(
                f"no topic can have the name {topic[:300]!r}: {TOPIC_NAME_RULE}", condition="KAFKA_INVALID_TOPIC_EXCEPTION"
            )
        deadline_ms = self.clock.now_ms() + self.max_block_ms
        while True:
            now_ms = self.clock.now_ms()
            cluster = self.metadata.cluster()
            partition_count = cluster.partition_count(topic)
            self.metadata.add_topic(topic, now_ms)  # metadata of a topic in use must not expire
            if partition_count is not None and partition < partition_count:
                return cluster
            self.metadata.raise_error_for_topic(topic)
            if now_ms >= deadline_ms:
                raise self.absence_error(topic, partition, partition_count, self.max_block_ms)
            started_ns = self.clock.now_ns()
            version = self.metadata.request_update_for_topic(topic)
            self.wake_sender()
            try:
                self.metadata.await_update(version, deadline_ms - now_ms)
            except KafkaTimeoutError as error:
                raise self.absence_error(topic, partition, partition_count, self.max_block_ms) from error
            finally:
                self.metrics.waited_for_metadata(started_ns)

    def await_brokers(self, timeout_ms: int) -> None:
        """Wait at most `timeout_ms` until a broker has described the cluster. Raises KafkaTimeoutError
        (KAFKA_BROKER_UNREACHABLE) after that, and fatal errors such as a rejected login."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        while self.metadata.cluster().is_bootstrap:
            version = self.metadata.request_update("a caller waits for the first broker")
            self.wake_sender()
            try:
                self.metadata.await_update(version, max(0, deadline_ms - self.clock.now_ms()))
            except KafkaTimeoutError as error:
                raise KafkaTimeoutError(
                    f"{self._silence_text(timeout_ms)} (within {timeout_ms} ms)", condition="KAFKA_BROKER_UNREACHABLE"
                ) from error

    def ask_for(self, topics: Iterable[str]) -> None:
        """Have the metadata of these topics fetched together, unless it is known, and do not let it expire. Never blocks."""
        now_ms = self.clock.now_ms()
        for topic in filter(is_topic_name, topics):
            self.metadata.add_topic(topic, now_ms)

    def unknown_topics(self, topics: Iterable[str], max_age_ms: int) -> dict[str, str]:
        """Which of these topics do not exist by the brokers' latest answer, with an error text each. Never blocks.

        Empty if it is older than `max_age_ms`. Metadata of the returned topics is requested again when a caller names them.
        """
        if self.clock.now_ms() - self.metadata.last_answer_ms > max_age_ms:
            return {}
        cluster = self.metadata.cluster()
        unknown = [topic for topic in topics if cluster.topic_error(topic) == Errors.UNKNOWN_TOPIC_OR_PARTITION]
        for topic in unknown:
            self.metadata.forget_topic(topic)
        return {topic: self.absence_error(topic, NO_PARTITION, None, self.max_block_ms).message for topic in unknown}

    def absence_error(self, topic: str, partition: int, partition_count: int | None, waited_ms: int) -> KafkaError:
        """The error for a topic, or a partition if `partition_count` is known, that does not exist after `waited_ms`."""
        if partition_count is not None:
            return InvalidRecordError(
                f"Partition {partition} of topic {topic} with partition count {partition_count} is not present in metadata"
                f" after {waited_ms} ms. Rows may name partitions 0 to {partition_count - 1}; add partitions to the topic, or"
                " leave the partition null",
                condition="KAFKA_UNKNOWN_PARTITION",
            )
        error = self.metadata.cluster().topic_error(topic)
        if error is None:
            reason, condition = self._silence_text(waited_ms), "KAFKA_BROKER_UNREACHABLE"
        else:
            reason = f"the brokers answer {error}; create the topic, or enable auto.create.topics.enable on the brokers"
            condition = "KAFKA_UNKNOWN_TOPIC"
        return KafkaTimeoutError(
            f"Topic {topic} not present in metadata after {waited_ms} ms. (max.block.ms): {reason}", condition=condition
        )

    def _silence_text(self, waited_ms: int) -> str:
        return self.metadata.silence_text(self.clock.now_ms() - waited_ms)
