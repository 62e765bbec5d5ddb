"""Callers wait here for metadata: the first time that a topic or a partition is named, and only then.

Asks Metadata for an update and wakes the Sender, whose network client fetches it. Tells in words what is missing when it does
not come. KafkaProducer is the only user.
Law: no wait is longer than the caller allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.protocol.error_codes import Errors


class MetadataWait:
    """Any caller's thread."""

    def __init__(self, metadata: Metadata, wake_sender: Callable[[], None], metrics: ProducerMetrics, clock: Clock) -> None:
        self._metadata = metadata
        self._wake_sender = wake_sender
        self._metrics = metrics
        self._clock = clock

    def await_partition(self, topic: str, partition: int, max_block_ms: int) -> Cluster:
        """A cluster in which the topic has that partition; -1 asks for the topic alone. Blocks at most `max_block_ms`.

        Raises KafkaTimeoutError or InvalidRecordError when there is no such thing by then, and what brokers say of the topic.
        A name that no topic can have is refused at once: brokers, asked for one that is too long, hang up.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        if self._metadata.cluster().partition_count(topic) is None and not is_topic_name(topic):
            # Brokers would say the same, but some such names cannot even be put into a request.
            raise InvalidRecordError(
                f"no topic can have the name {topic[:300]!r}: {TOPIC_NAME_RULE}", condition="KAFKA_INVALID_TOPIC_EXCEPTION"
            )
        deadline_ms = self._clock.now_ms() + max_block_ms
        while True:
            now_ms = self._clock.now_ms()
            cluster = self._metadata.cluster()
            count = cluster.partition_count(topic)
            self._metadata.add_topic(topic, now_ms)  # also keeps a topic in use from being forgotten
            if count is not None and partition < count:
                return cluster
            self._metadata.raise_error_for_topic(topic)
            if now_ms >= deadline_ms:
                raise self.absent(topic, partition, count, max_block_ms)
            asked_ns = self._clock.now_ns()
            version = self._metadata.request_update_for_topic(topic)
            self._wake_sender()
            try:
                self._metadata.await_update(version, deadline_ms - now_ms)
            except KafkaTimeoutError as error:
                raise self.absent(topic, partition, count, max_block_ms) from error
            finally:
                self._metrics.waited_for_metadata(asked_ns)

    def await_brokers(self, timeout_ms: int) -> None:
        """Return as soon as a broker has told of the cluster, be it long ago. Blocks at most `timeout_ms`.

        Raises KafkaTimeoutError when none has by then, and fatal errors such as a refused login.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        while self._metadata.cluster().is_bootstrap:
            version = self._metadata.request_update("a caller waits for the first broker")
            self._wake_sender()
            try:
                self._metadata.await_update(version, max(0, deadline_ms - self._clock.now_ms()))
            except KafkaTimeoutError as error:
                raise KafkaTimeoutError(
                    f"{self._nobody_answered()} (within {timeout_ms} ms)", condition="KAFKA_BROKER_UNREACHABLE"
                ) from error

    def ask_for(self, topics: Iterable[str]) -> None:
        """Have what is not known yet fetched together, for several await_partition to come. Never blocks."""
        now_ms = self._clock.now_ms()
        for topic in filter(is_topic_name, topics):
            self._metadata.add_topic(topic, now_ms)

    def unknown_topics(self, topics: Iterable[str], max_age_ms: int, waited_ms: int) -> dict[str, str]:
        """Those of which the last answer said that there is no such topic, and that in words. Never blocks.

        None when that answer is older than `max_age_ms`: brokers that are away may know them now. The topics are asked for no
        more until they are named again.
        """
        if self._clock.now_ms() - self._metadata.last_answer_ms() > max_age_ms:
            return {}
        cluster = self._metadata.cluster()
        unknown = [topic for topic in topics if cluster.topic_error(topic) == Errors.UNKNOWN_TOPIC_OR_PARTITION]
        for topic in unknown:
            self._metadata.forget_topic(topic)
        return {topic: self.absent(topic, -1, None, waited_ms).message for topic in unknown}

    def absent(self, topic: str, partition: int, count: int | None, max_block_ms: int) -> KafkaError:
        """Why there is no such topic or partition."""
        if count is not None:
            return InvalidRecordError(
                f"Partition {partition} of topic {topic} with partition count {count} is not present in metadata"
                f" after {max_block_ms} ms. Rows may name partitions 0 to {count - 1}; add partitions to the topic, or leave the"
                " partition null",
                condition="KAFKA_UNKNOWN_PARTITION",
            )
        if self._metadata.cluster().is_bootstrap:
            reason, condition = self._nobody_answered(), "KAFKA_BROKER_UNREACHABLE"
        else:
            error = self._metadata.cluster().topic_error(topic)
            reason = (
                f"the brokers say {error or 'nothing of it'}; create the topic, or allow auto.create.topics.enable on the brokers"
            )
            condition = "KAFKA_UNKNOWN_TOPIC"
        return KafkaTimeoutError(
            f"Topic {topic} not present in metadata after {max_block_ms} ms. (max.block.ms): {reason}", condition=condition
        )

    def _nobody_answered(self) -> str:
        trouble = self._metadata.last_connection_error() or "no connection failed, and yet nothing came"
        return f"no broker answered: {trouble}; check kafka.bootstrap.servers and the network"
