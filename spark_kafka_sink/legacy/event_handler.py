"""What the old producer does with messages: bytes, partitions, one try, and again what failed. Scala: DefaultEventHandler.

Sits on KafkaProducer, which is told to try once and to number nothing (retries=0, enable.idempotence=false): who is sent again is
decided here, by partition. producer.py calls it, one thread at a time.
Law: a partition's messages are sent in portions of one batch each, the next when the one before is acknowledged. So a portion is
written or not as a whole, as one message set was, and a partition keeps its order through every retry.
Not promised, as then: a portion whose answer was lost, or that was written and not confirmed in time, is sent again and is there
twice; without a key perhaps in another partition. The same happens to part of a portion that a topic's smaller max.message.bytes
made KafkaProducer split.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import config_error
from spark_kafka_sink.errors import (
    ConfigError,
    FailedToSendMessageError,
    InvalidRecordError,
    KafkaError,
    ProducerClosedError,
    fresh_copy,
)
from spark_kafka_sink.legacy.config import LEGACY_BATCH_BYTES, LEGACY_BUFFER_BYTES, LegacyProducerConfig
from spark_kafka_sink.legacy.partitioner import LegacyPartitioner, StickyPartitions, find_legacy_partitioner
from spark_kafka_sink.network.cluster import PartitionInfo
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import whole_number
from spark_kafka_sink.producer.record_checks import RECORD_OVERHEAD
from spark_kafka_sink.producer.serializers import Serializer, find_serializer, serialize
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

PORTION_BYTES = LEGACY_BATCH_BYTES // 2
ROUND_BYTES = LEGACY_BUFFER_BYTES * 3 // 4  # what is under way at a time: a portion never waits for memory half way
_PORTION_OVERHEAD = 32 * 1024  # of the pool's memory: a portion's first and last block
_SETTLE_MARGIN_MS = 5_000
_CAUSES_NAMED = 5


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message for the old producer.

    Args:
        topic: where it goes.
        key: decides the partition and is stored; None: neither.
        message: what is stored; None is a tombstone. To be given, if need be by name: KeyedMessage("topic", message="text").
        part_key: decides the partition instead of the key, and is not stored.

    Raises:
        ValueError: the topic is None.
        TypeError: there is no message.
    """

    topic: str
    key: Any = None
    message: Any = MISSING
    part_key: Any = None

    def __post_init__(self) -> None:
        if self.topic is None:
            raise ValueError("Topic cannot be null.")
        if self.message is MISSING:
            raise TypeError('KeyedMessage has no message; write KeyedMessage("topic", message=…) where there is no key')

    @property
    def partition_key(self) -> Any:
        return self.key if self.part_key is None else self.part_key


@dataclass(frozen=True, slots=True)
class SerializedMessage:
    """A message and its bytes, with the time at which it was handed over."""

    original: KeyedMessage
    key: bytes | None
    value: bytes | None
    timestamp: int

    @property
    def size_bytes(self) -> int:
        return RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")


class Plugins(NamedTuple):
    """What the options name: loaded once, so that a name that cannot be loaded is told with all other problems."""

    serialize_key: Serializer
    serialize_message: Serializer
    partition: LegacyPartitioner


def read_config(mapping: Mapping[str, object]) -> tuple[LegacyProducerConfig, Plugins]:
    """The configuration and what it names. Raises one ConfigError for all problems."""
    problems: list[str] = []
    config = LegacyProducerConfig.check(mapping, problems)
    key_class = config.serializer_class if config.key_serializer_class is None else config.key_serializer_class
    found = [
        _found(problems, lambda: _find_encoder("key.serializer.class", key_class, config.serializer_encoding)),
        _found(problems, lambda: _find_encoder("serializer.class", config.serializer_class, config.serializer_encoding)),
        _found(problems, lambda: find_legacy_partitioner(config.partitioner_class)),
    ]
    if problems:
        raise config_error(list(dict.fromkeys(problems)))
    return config, Plugins(*found)


def _found(problems: list[str], find: Callable[[], Any]) -> Any:
    try:
        return find()
    except ConfigError as error:
        problems.append(error.message)


def _find_encoder(option: str, wanted: object, encoding: str) -> Serializer:
    encoders: dict[str, object] = {
        "DefaultEncoder": "bytes",
        "StringEncoder": lambda text: str.encode(text, encoding),
        "IntegerEncoder": "integer",
        "LongEncoder": "long",
        "NullEncoder": lambda _: None,
    }
    name = wanted.removeprefix("kafka.serializer.") if isinstance(wanted, str) else ""
    return find_serializer(option, encoders.get(name, wanted))


class _Failure(NamedTuple):
    where: str  # topic-partition; the topic where no partition could be chosen
    messages: Sequence[SerializedMessage]
    error: KafkaError


class EventHandler:
    """Args:
    config, plugins: as read_config returns them.
    producer: made of `config.producer`; not closed here.
    clock, random: for waits and ages; for partitions of messages without a key.
    """

    def __init__(
        self, config: LegacyProducerConfig, plugins: Plugins, producer: KafkaProducer, clock: Clock, random: Random
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._producer = producer
        self._clock = clock
        self._sticky = StickyPartitions(random)  # handling thread only, as the next
        self._refreshed_ms: int | None = None
        self._abandoned = threading.Event()
        self._back_off = threading.Condition()  # notified by abandon

    def serialize(self, messages: Iterable[KeyedMessage]) -> list[SerializedMessage]:
        """Any thread. Raises SerializationError for the first message that cannot be, TypeError for what is no KeyedMessage."""
        return [self._serialize(message) for message in messages]

    def _serialize(self, message: KeyedMessage) -> SerializedMessage:
        if not isinstance(message, KeyedMessage):
            raise TypeError(f"send takes KeyedMessages, as in send(*messages), not {type(message).__name__}")
        return SerializedMessage(
            message,
            serialize(self._plugins.serialize_key, message.key, "key"),
            serialize(self._plugins.serialize_message, message.message, "message"),
            self._clock.wall_ms(),
        )

    # TRIES

    def handle(self, messages: Sequence[SerializedMessage]) -> None:
        """Send, and send again what failed, up to message.send.max.retries times with retry.backoff.ms between.

        Whatever the failure was: the old client made no difference. KafkaProducer asks for new metadata by itself when a
        connection was lost, a partition has no leader, or an answer says that the leader has moved.

        Blocks until all is acknowledged or given up: a try takes at most request.timeout.ms for metadata of each new topic, and
        as much again for the answers to each portion of the partition that has most of them.

        Raises:
            FailedToSendMessageError: with the messages that are left, and why.
        """
        outstanding: Sequence[SerializedMessage] = messages
        for retries_left in range(self._config.message_send_max_retries, -1, -1):
            self._refresh_if_due()
            failures = self._dispatch(outstanding)
            if not failures:
                return
            self._sticky.forget()  # a failure calls for new metadata, and that for another partition
            if not retries_left or self._is_closed(failures):
                raise self._failed(failures)
            outstanding = [message for failure in failures for message in failure.messages]
            logger.warning("! %s; sending it again, %d retries left", _in_words(failures), retries_left)
            self._wait_before_retry()

    def abandon(self) -> None:
        """Any thread: try nothing again from now on."""
        self._abandoned.set()
        with self._back_off:
            self._back_off.notify_all()

    def _is_closed(self, failures: Sequence[_Failure]) -> bool:
        return self._abandoned.is_set() or any(isinstance(failure.error, ProducerClosedError) for failure in failures)

    def _wait_before_retry(self) -> None:
        until_ms = self._clock.now_ms() + self._config.retry_backoff_ms
        with self._back_off:
            while not self._abandoned.is_set() and (remaining_ms := until_ms - self._clock.now_ms()) > 0:
                self._clock.wait(self._back_off, remaining_ms)

    def _refresh_if_due(self) -> None:
        """KafkaProducer fetches metadata anew at that age (metadata.max.age.ms); here, partitions are drawn anew."""
        interval_ms, now_ms = self._config.topic_metadata_refresh_interval_ms, self._clock.now_ms()
        if self._refreshed_ms is None or 0 <= interval_ms <= now_ms - self._refreshed_ms:
            self._sticky.forget()
            self._refreshed_ms = now_ms

    def _failed(self, failures: Sequence[_Failure]) -> FailedToSendMessageError:
        error = FailedToSendMessageError(
            f"Failed to send messages after {self._config.message_send_max_retries} tries"
            f" (message.send.max.retries): {_in_words(failures)}",
            messages=[message.original for failure in failures for message in failure.messages],
            causes={failure.where: failure.error for failure in failures},
        )
        error.__cause__ = failures[0].error
        return error

    # ONE TRY

    def _dispatch(self, messages: Sequence[SerializedMessage]) -> list[_Failure]:
        failures: list[_Failure] = []
        waiting = self._by_partition(messages, failures)
        while waiting:
            sent = [(to, portion, self._send(to, portion)) for to, portion in _take_round(waiting)]
            for to, portion, delivery in sent:
                error = self._outcome(to, delivery)
                if error is not None:
                    failures.append(_Failure(str(to), [*portion, *waiting.pop(to)], error))
                elif not waiting[to]:
                    del waiting[to]
        return failures

    def _send(self, to: TopicPartition, portion: Sequence[SerializedMessage]) -> Delivery | KafkaError:
        try:
            return self._producer.send_columns(
                to.topic,
                value=pa.array([message.value for message in portion], pa.binary()),
                key=pa.array([message.key for message in portion], pa.binary()),
                partition=pa.array([to.partition] * len(portion), pa.int32()),
                timestamp=pa.array([message.timestamp for message in portion], pa.int64()),
            )
        except KafkaError as error:
            return error

    def _outcome(self, to: TopicPartition, delivery: Delivery | KafkaError) -> KafkaError | None:
        if isinstance(delivery, KafkaError):
            return delivery
        try:
            delivery.result(2 * self._config.request_timeout_ms + _SETTLE_MARGIN_MS)
        except KafkaError as error:
            if delivery.acknowledged:
                logger.warning(
                    "! %s: %d of %d messages were written and will be there twice", to, delivery.acknowledged, delivery.rows
                )
            return error
        return None

    # PARTITIONS

    def _by_partition(
        self, messages: Sequence[SerializedMessage], failures: list[_Failure]
    ) -> dict[TopicPartition, deque[SerializedMessage]]:
        """Messages by where they go, in their order; those for which there is no partition go to `failures`."""
        topics: dict[str, _TopicPartitions] = {}
        groups: dict[TopicPartition, deque[SerializedMessage]] = {}
        unplaced: dict[str, tuple[list[SerializedMessage], KafkaError]] = {}
        for message in messages:
            topic = message.original.topic
            if topic not in topics:
                topics[topic] = self._look_up(topic)
            try:
                partition = self._partition(message.original, topics[topic])
            except KafkaError as error:
                unplaced.setdefault(topic, ([], error))[0].append(message)
            else:
                groups.setdefault(TopicPartition(topic, partition), deque()).append(message)
        failures.extend(_Failure(topic, without, error) for topic, (without, error) in unplaced.items())
        return groups

    def _look_up(self, topic: str) -> _TopicPartitions:
        try:
            return _TopicPartitions(sorted(self._producer.partitions_for(topic), key=lambda each: each.partition), None)
        except KafkaError as error:
            return _TopicPartitions([], error)

    def _partition(self, message: KeyedMessage, known: _TopicPartitions) -> int:
        if known.error is not None:
            raise fresh_copy(known.error)
        if message.partition_key is None:
            chosen = self._sticky.partition(message.topic, known.available)
            if chosen is None:
                raise KafkaError(f"topic {message.topic}: no partition has a leader", condition="KAFKA_LEADER_NOT_AVAILABLE")
            return chosen
        index = self._ask_partitioner(message, len(known.partitions))
        return known.partitions[index].partition

    def _ask_partitioner(self, message: KeyedMessage, count: int) -> int:
        try:
            index = whole_number(self._plugins.partition(message.partition_key, count), "partition")
        except KafkaError:
            raise
        except Exception as error:
            raise InvalidRecordError(
                f"topic {message.topic}: the partitioner raised {error!r}", condition="KAFKA_INVALID_PARTITION"
            ) from error
        if not 0 <= index < count:
            raise InvalidRecordError(
                f"topic {message.topic}: the partitioner returned {index}, where 0 to {count - 1} are allowed",
                condition="KAFKA_INVALID_PARTITION",
            )
        return index


@dataclass(frozen=True)
class _TopicPartitions:
    """A topic in one try: metadata may change under way, what messages with one key are told may not."""

    partitions: Sequence[PartitionInfo]
    error: KafkaError | None

    @cached_property
    def available(self) -> Sequence[int]:
        return [each.partition for each in self.partitions if each.leader is not None]


def _take_round(
    waiting: dict[TopicPartition, deque[SerializedMessage]],
) -> list[tuple[TopicPartition, list[SerializedMessage]]]:
    """The next portion of each partition, as many as there is memory for; at least one."""
    taken: list[tuple[TopicPartition, list[SerializedMessage]]] = []
    room = ROUND_BYTES
    for to, messages in waiting.items():
        if taken and room < PORTION_BYTES + _PORTION_OVERHEAD + messages[0].size_bytes:
            break
        portion, size_bytes = _take_portion(messages)
        taken.append((to, portion))
        room -= size_bytes + _PORTION_OVERHEAD
    return taken


def _take_portion(messages: deque[SerializedMessage]) -> tuple[list[SerializedMessage], int]:
    """Messages that fit into one batch; a larger one alone."""
    portion = [messages.popleft()]
    size_bytes = portion[0].size_bytes
    while messages and size_bytes + messages[0].size_bytes <= PORTION_BYTES:
        size_bytes += messages[0].size_bytes
        portion.append(messages.popleft())
    return portion, size_bytes


def _in_words(failures: Sequence[_Failure]) -> str:
    named = [f"{len(failure.messages)} for {failure.where}: {failure.error}" for failure in failures[:_CAUSES_NAMED]]
    if len(failures) > _CAUSES_NAMED:
        named.append(f"and {len(failures) - _CAUSES_NAMED} more partitions")
    return "; ".join(named)
