"""Serializes messages, chooses their partitions, sends them and retries what failed. In Scala: DefaultEventHandler.

A dispatch is one attempt to send a list of messages. It uses KafkaProducer without retries and without idempotence (retries=0,
enable.idempotence=false): this file decides, for each partition, what is retried. producer.py calls it, one thread at a time.
Law: the messages of a partition are sent in portions of one batch each, and a portion is sent when the previous one is
acknowledged. So a portion is written as a whole or not at all, as a message set was, and retries keep the order of a partition.
Duplicates are possible, as in the old producer: a portion is retried, and is then written twice, if its response is lost or
arrives too late. Messages without a key may then also be in another partition. The same happens to parts of a portion that
KafkaProducer had to split because the topic's max.message.bytes is smaller.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, fresh_copy
from spark_kafka_sink.interrupts import Signal
from spark_kafka_sink.legacy.config import LEGACY_BATCH_BYTES, LEGACY_BUFFER_BYTES, LegacyProducerConfig, Plugins
from spark_kafka_sink.legacy.errors import FailedToSendMessageError
from spark_kafka_sink.legacy.messages import KeyedMessage, SerializedMessage
from spark_kafka_sink.network.cluster import PartitionInfo
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import CLOSE_MARGIN_MS, KafkaProducer
from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.producer.serializers import serialize
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.arrays import bytes_array, int64_array

logger = logging.getLogger(__name__)

MAX_PORTION_BYTES = LEGACY_BATCH_BYTES // 2
MAX_ROUND_BYTES = LEGACY_BUFFER_BYTES * 3 // 4  # sent at a time; less than buffer.memory, so that no portion waits for memory
_PORTION_OVERHEAD_BYTES = 32 * 1024  # an upper bound of the pool's memory that a portion takes besides its messages
_MAX_NAMED_CAUSES = 5


class _PartitionFailure(NamedTuple):
    """Messages for one partition that were not sent, and why."""

    target_name: str  # topic-partition, or the topic if no partition could be chosen
    messages: list[SerializedMessage]
    error: KafkaError


@dataclass(eq=False, repr=False)
class EventHandler:
    """Serializes messages and dispatches them. It keeps the partition of messages without a key from call to call."""

    config: LegacyProducerConfig
    plugins: Plugins
    producer: KafkaProducer  # created with `config.producer`; legacy/producer.py closes it
    clock: Clock  # for waits and ages
    random: Random  # for the partitions of messages without a key

    def __post_init__(self) -> None:
        # The next two are used only by the thread that is in `handle`.
        self._sticky_partitions: dict[str, int] = {}  # topic -> partition of messages without a key
        self._refreshed_ms: int | None = None
        self._stop_signal = Signal()

    def serialize(self, messages: Iterable[KeyedMessage]) -> list[SerializedMessage]:
        """Serialize keys and values, on any thread. Raises SerializationError, or TypeError for what is no KeyedMessage."""
        return [self._serialize(message) for message in messages]

    def _serialize(self, message: KeyedMessage) -> SerializedMessage:
        if not isinstance(message, KeyedMessage):
            raise TypeError(f"send takes KeyedMessages, as in send(*messages), not {type(message).__name__}")
        return SerializedMessage(
            message,
            serialize(self.plugins.serialize_key, message.key, "key"),
            serialize(self.plugins.serialize_message, message.message, "message"),
            self.clock.wall_ms(),
        )

    # DISPATCHES AND RETRIES

    def handle(self, messages: Sequence[SerializedMessage]) -> None:
        """Send the messages. Retry failed ones up to message.send.max.retries times, each time after retry.backoff.ms.

        As in the old client, every failure is retried, unless the producer has ended. KafkaProducer refreshes metadata by itself
        if a connection was lost, a partition has no leader, or a response says that the leader has moved.

        Blocks until every message is acknowledged or has failed after the last retry. One dispatch may wait request.timeout.ms
        for the metadata of each new topic, and about twice as long for each round of portions.

        Raises:
            FailedToSendMessageError: has the messages that are not acknowledged, and the causes.
        """
        outstanding: Sequence[SerializedMessage] = messages
        for retries_left in range(self.config.message_send_max_retries, -1, -1):
            self._refresh_if_due()
            failures = self._dispatch(outstanding)
            if not failures:
                return
            self._sticky_partitions.clear()  # as in the old client, which refreshed metadata after a failure
            if not retries_left or self._has_ended():
                raise self._error_of(failures, self.config.message_send_max_retries - retries_left + 1)
            outstanding = [message for failure in failures for message in failure.messages]
            logger.warning("! %s; retrying, %d retries left", _failures_text(failures), retries_left)
            self._stop_signal.wait(self.clock, self.config.retry_backoff_ms)

    def stop_retrying(self) -> None:
        """Retry nothing from now on. Any thread may call this."""
        self._stop_signal.signal()

    def _has_ended(self) -> bool:
        """Whether KafkaProducer can no longer send: it is closed or being closed, was interrupted, or has failed for good."""
        try:
            self.producer.check_usable()
        except KafkaError:
            return True
        return self._stop_signal.is_signaled

    def _refresh_if_due(self) -> None:
        """Choose new partitions for messages without a key when metadata reaches topic.metadata.refresh.interval.ms. The producer
        itself refreshes the metadata at the same age (metadata.max.age.ms)."""
        interval_ms, now_ms = self.config.topic_metadata_refresh_interval_ms, self.clock.now_ms()
        if self._refreshed_ms is None or 0 <= interval_ms <= now_ms - self._refreshed_ms:
            self._sticky_partitions.clear()
            self._refreshed_ms = now_ms

    def _error_of(self, failures: Sequence[_PartitionFailure], try_count: int) -> FailedToSendMessageError:
        error = FailedToSendMessageError(
            f"Failed to send messages after {try_count} {'try' if try_count == 1 else 'tries'}"
            f" (message.send.max.retries={self.config.message_send_max_retries}): {_failures_text(failures)}",
            messages=[message.original for failure in failures for message in failure.messages],
            causes={failure.target_name: failure.error for failure in failures},
        )
        error.__cause__ = failures[0].error
        return error

    def _dispatch(self, messages: Sequence[SerializedMessage]) -> list[_PartitionFailure]:
        """Send the messages once, in rounds of one portion for each partition. A partition that fails drops out."""
        messages_left, failures = self._group_by_partition(messages)
        while messages_left:
            deliveries = [(target, portion, self._send(target, portion)) for target, portion in _take_round(messages_left)]
            for target, portion, delivery in deliveries:
                error = self._await_outcome(target, delivery)
                if error is not None:
                    failures.append(_PartitionFailure(str(target), [*portion, *messages_left.pop(target)], error))
                elif not messages_left[target]:
                    del messages_left[target]
        return failures

    def _send(self, target: TopicPartition, portion: Sequence[SerializedMessage]) -> Delivery | KafkaError:
        try:
            return self.producer.send_columns(
                target.topic,
                value=bytes_array([message.value for message in portion]),
                key=bytes_array([message.key for message in portion]),
                partition=int64_array([target.partition] * len(portion)),
                timestamp=int64_array([message.timestamp for message in portion]),
            )
        except KafkaError as error:
            return error

    def _await_outcome(self, target: TopicPartition, delivery: Delivery | KafkaError) -> KafkaError | None:
        """Wait until a portion is acknowledged or has failed. Returns its error; None: it is acknowledged."""
        if isinstance(delivery, KafkaError):
            return delivery
        try:
            delivery.result(2 * self.config.request_timeout_ms + CLOSE_MARGIN_MS)
        except KafkaError as error:
            if delivery.acknowledged:
                logger.warning(
                    "! %s: %d of %d messages were written; a retry will duplicate them",
                    target,
                    delivery.acknowledged,
                    delivery.rows,
                )
            return error
        return None

    # PARTITIONS

    def _group_by_partition(
        self, messages: Sequence[SerializedMessage]
    ) -> tuple[dict[TopicPartition, deque[SerializedMessage]], list[_PartitionFailure]]:
        """Messages by partition, in their order, and for each topic the messages for which no partition can be chosen."""
        partitions_by_topic: dict[str, Sequence[PartitionInfo] | KafkaError] = {}
        messages_by_partition: dict[TopicPartition, deque[SerializedMessage]] = {}
        failures_by_topic: dict[str, _PartitionFailure] = {}
        for message in messages:
            topic = message.original.topic
            if topic not in partitions_by_topic:
                partitions_by_topic[topic] = self._look_up_partitions(topic)
            try:
                partition = self._choose_partition(message.original, partitions_by_topic[topic])
            except KafkaError as error:
                failures_by_topic.setdefault(topic, _PartitionFailure(topic, [], error)).messages.append(message)
            else:
                messages_by_partition.setdefault(TopicPartition(topic, partition), deque()).append(message)
        return messages_by_partition, list(failures_by_topic.values())

    def _look_up_partitions(self, topic: str) -> Sequence[PartitionInfo] | KafkaError:
        """The topic's partitions, looked up once per dispatch: even if metadata changes, messages with one key stay together."""
        try:
            return sorted(self.producer.partitions_for(topic), key=lambda each: each.partition)
        except KafkaError as error:
            return error

    def _choose_partition(self, message: KeyedMessage, partitions: Sequence[PartitionInfo] | KafkaError) -> int:
        if isinstance(partitions, KafkaError):
            raise fresh_copy(partitions)
        if message.partition_key is None:
            return self._sticky_partition(message.topic, partitions)
        return partitions[self._ask_partitioner(message, len(partitions))].partition

    def _sticky_partition(self, topic: str, partitions: Sequence[PartitionInfo]) -> int:
        """The partition chosen before, even if it has no leader now; if none was chosen, a random partition with a leader."""
        if topic not in self._sticky_partitions:
            partitions_with_leader = [each.partition for each in partitions if each.leader is not None]
            if not partitions_with_leader:
                raise KafkaError(f"topic {topic}: no partition has a leader", condition="KAFKA_LEADER_NOT_AVAILABLE")
            self._sticky_partitions[topic] = self.random.choice(partitions_with_leader)
        return self._sticky_partitions[topic]

    def _ask_partitioner(self, message: KeyedMessage, partition_count: int) -> int:
        try:
            index = whole_number(self.plugins.partition(message.partition_key, partition_count), "partition")
        except KafkaError:
            raise
        except Exception as error:
            raise InvalidRecordError(
                f"topic {message.topic}: the partitioner raised {error!r}", condition="KAFKA_INVALID_PARTITION"
            ) from error
        if not 0 <= index < partition_count:
            raise InvalidRecordError(
                f"topic {message.topic}: the partitioner returned {index}, where 0 to {partition_count - 1} are allowed",
                condition="KAFKA_INVALID_PARTITION",
            )
        return index


def _take_round(queues: dict[TopicPartition, deque[SerializedMessage]]) -> list[tuple[TopicPartition, list[SerializedMessage]]]:
    """The next portion of each partition, for as many partitions as there is memory for, and at least one."""
    portions: list[tuple[TopicPartition, list[SerializedMessage]]] = []
    room_bytes = MAX_ROUND_BYTES
    for target, messages in queues.items():
        if portions and room_bytes < MAX_PORTION_BYTES + _PORTION_OVERHEAD_BYTES + messages[0].size_bytes:
            break
        portion, size_bytes = _take_portion(messages)
        portions.append((target, portion))
        room_bytes -= size_bytes + _PORTION_OVERHEAD_BYTES
    return portions


def _take_portion(messages: deque[SerializedMessage]) -> tuple[list[SerializedMessage], int]:
    """The next messages that fit into one batch; a message that is larger forms a portion alone."""
    portion = [messages.popleft()]
    size_bytes = portion[0].size_bytes
    while messages and size_bytes + messages[0].size_bytes <= MAX_PORTION_BYTES:
        size_bytes += messages[0].size_bytes
        portion.append(messages.popleft())
    return portion, size_bytes


def _failures_text(failures: Sequence[_PartitionFailure]) -> str:
    texts = [f"{len(failure.messages)} for {failure.target_name}: {failure.error}" for failure in failures[:_MAX_NAMED_CAUSES]]
    if len(failures) > _MAX_NAMED_CAUSES:
        texts.append(f"and {len(failures) - _MAX_NAMED_CAUSES} more partitions")
    return "; ".join(texts)
