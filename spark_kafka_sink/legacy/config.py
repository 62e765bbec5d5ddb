"""Options of the old Scala producer, declared once each, and what they become for the KafkaProducer inside.

Stands on config/, whose rows, checks and laws hold here too. legacy/producer.py reads it.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Any

from spark_kafka_sink.config.option import (
    CLASS,
    INT,
    LIST,
    LONG_MAX,
    STRING,
    InvalidValueError,
    Option,
    conceal,
    nearest_key,
    option,
    read_all,
    rows_of,
)
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS, ProducerConfig, addresses

logger = logging.getLogger(__name__)

LEGACY_BATCH_BYTES = 1_048_576  # twice a portion of one partition, so that a portion is one batch whatever its codec
LEGACY_BUFFER_BYTES = 33_554_432
_MIN_REFRESH_MS = 100  # metadata is not asked for more often, also where the old client would have
_CODECS = ("none", "gzip", "snappy", "lz4")  # at the places of their numbers
_CLIENT_ID = re.compile(r"[a-zA-Z0-9._-]*")


def _brokers(servers: tuple[str, ...]) -> tuple[str, ...]:
    if not addresses(servers):
        raise InvalidValueError("it names no broker")
    return servers


def _client_id(name: str) -> str:
    if not _CLIENT_ID.fullmatch(name):
        raise InvalidValueError("it contains a character other than ASCII alphanumerics, '.', '_' and '-'")
    return name


def _encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise InvalidValueError("it is no encoding that Python knows") from None


@dataclass(frozen=True, slots=True)
class LegacyProducerConfig:
    """Options of the old Scala producer (Kafka 0.8 to 1.1) under their old keys, with its defaults, checked.

    Times are milliseconds. `producer` is what becomes of them for the KafkaProducer inside.
    """

    # fmt: off
    metadata_broker_list: tuple[str, ...] = option("metadata.broker.list", LIST, default=None, convert=_brokers,
        doc="Brokers to ask first, as host:port[,host:port]; today's bootstrap.servers. Required.")
    producer_type: str = option("producer.type", STRING, default="sync", choices=("sync", "async"),
        doc="sync: send() returns when all is acknowledged; async: a queue and a thread that sends.")
    request_required_acks: int = option("request.required.acks", INT, default=0, at_least=-1, at_most=1,
        doc="Who must have a message before it counts as written: all in-sync replicas (-1), the leader (1), nobody (0); "
            "today's acks.")
    request_timeout_ms: int = option("request.timeout.ms", INT, default=10_000, at_least=1,
        doc="How long one try may take, and the wait for metadata or memory before it.")
    client_id: str = option("client.id", STRING, default="", convert=_client_id,
        doc="Name that brokers see in logs and quotas.")
    send_buffer_bytes: int = option("send.buffer.bytes", INT, default=102_400, at_least=-1,
        doc="Size of the sockets' send buffers; -1: the system's.")
    serializer_class: object = option("serializer.class", CLASS, default="kafka.serializer.DefaultEncoder",
        doc="How a message becomes bytes: kafka.serializer.DefaultEncoder (bytes), StringEncoder, IntegerEncoder, LongEncoder, "
            "NullEncoder, or a Python callable or its dotted name.")
    key_serializer_class: object = option("key.serializer.class", CLASS, default=None,
        doc="The same for keys; not set: as serializer.class.")
    serializer_encoding: str = option("serializer.encoding", STRING, default="UTF8", convert=_encoding,
        doc="Character set of StringEncoder.")
    partitioner_class: object = option("partitioner.class", CLASS, default="kafka.producer.DefaultPartitioner",
        doc="Partition of a message with a key: kafka.producer.DefaultPartitioner or ByteArrayPartitioner (Java's hashCode), or "
            "a Python callable (key, number of partitions) -> partition, a class with such a method partition, or a dotted name.")
    compression_codec: str = option(
        "compression.codec", STRING, default="none", choices=(*_CODECS, *map(str, range(len(_CODECS)))),
        convert=lambda codec: _CODECS[int(codec)] if codec.isdigit() else codec,
        doc="Codec of whole batches, by name or by its old number; today's compression.type.")
    message_send_max_retries: int = option("message.send.max.retries", INT, default=3, at_least=0,
        doc="How often the partitions that failed are sent again.")
    retry_backoff_ms: int = option("retry.backoff.ms", INT, default=100, at_least=0,
        doc="Wait before that, in which metadata is fetched anew if a lost connection or a broker's answer puts it in doubt.")
    topic_metadata_refresh_interval_ms: int = option("topic.metadata.refresh.interval.ms", INT, default=600_000, at_least=-1,
        doc="Age at which metadata is fetched anew and messages without a key move to another partition; 0: with every dispatch; "
            "-1: only after a failure.")
    queue_buffering_max_ms: int = option("queue.buffering.max.ms", INT, default=5000, at_least=0,
        doc="async: how long a message waits for batch.num.messages to come together.")
    queue_buffering_max_messages: int = option("queue.buffering.max.messages", INT, default=10_000, at_least=1,
        doc="async: messages in the queue.")
    queue_enqueue_timeout_ms: int = option("queue.enqueue.timeout.ms", INT, default=-1, at_least=-1,
        doc="async: how long send() waits for room in the queue, for each message; 0: not at all; -1: as long as needed, at most "
            "ten minutes. Then it raises KAFKA_QUEUE_FULL.")
    batch_num_messages: int = option("batch.num.messages", INT, default=200, at_least=1,
        doc="async: messages that are sent together; at most queue.buffering.max.messages.")
    # fmt: on
    producer: ProducerConfig = field(default_factory=ProducerConfig)

    @classmethod
    def check(cls, mapping: Mapping[str, object], problems: list[str]) -> LegacyProducerConfig:
        """Read a configuration by the old keys; add what is wrong to `problems`, after which the result is not to be used.

        Values may be str, int or list, and None means not set. Today's security.*, ssl.* and sasl.* keys, which the old client
        had not, are handed on. An unknown key is a warning in the log. Never blocks.
        """
        mapping = conceal_legacy(mapping)
        given = {key: value for key, value in mapping.items() if value is not None}
        handed_on = {key: value for key, value in given.items() if key.startswith(_HANDED_ON)}
        _warn_of_keys_without_effect(given.keys() - handed_on.keys())
        values: dict[str, Any] = {each.name: each.default for each in fields(cls) if "option" in each.metadata}
        read = read_all(rows_of(cls), given, problems)
        values |= read
        if "metadata.broker.list" not in given:
            problems.append("Option 'metadata.broker.list' is not set. Name at least one broker as host:port.")
        if values["batch_num_messages"] > values["queue_buffering_max_messages"]:
            problems.append(
                f"batch.num.messages={values['batch_num_messages']} must be at most"
                f" queue.buffering.max.messages={values['queue_buffering_max_messages']}; lower the first or raise the second"
            )
        if "request.required.acks" not in given:
            logger.warning(_NOBODY_CONFIRMS)
        return cls(**values, producer=ProducerConfig.check(handed_on | _of_today(values), problems))


def conceal_legacy(mapping: Mapping[str, object]) -> dict[str, object]:
    """As `conceal`, for the old producer's keys and those of today that it hands on."""
    return conceal(mapping, _KEYS | PRODUCER_KEYS)


_KEYS: dict[str, Option] = {row.key: row for row in rows_of(LegacyProducerConfig).values()}
_HANDED_ON = ("security.", "ssl.", "sasl.")
_NOBODY_CONFIRMS = (
    "request.required.acks is not set: as with the old producer nobody confirms (0), and messages that a broker refuses are lost"
    " unnoticed; set it to -1"
)
_NO_EFFECT = {"compressed.topics": "compression.codec holds for all topics"}


def _of_today(values: Mapping[str, Any]) -> dict[str, object]:
    """The options of the KafkaProducer inside. It tries once: what is sent again, and when, the old rules decide."""
    refresh_ms = values["topic_metadata_refresh_interval_ms"]
    backoff_ms = min(max(values["retry_backoff_ms"], 10), _MIN_REFRESH_MS)  # so that metadata comes within the wait
    return {
        "bootstrap.servers": values["metadata_broker_list"] or "localhost:9092",  # none is a problem that has been told
        "acks": values["request_required_acks"],
        "compression.type": values["compression_codec"],
        "client.id": values["client_id"] or None,
        "send.buffer.bytes": values["send_buffer_bytes"],
        "request.timeout.ms": values["request_timeout_ms"],
        "delivery.timeout.ms": values["request_timeout_ms"],
        "max.block.ms": values["request_timeout_ms"],
        "metadata.max.age.ms": LONG_MAX if refresh_ms < 0 else max(refresh_ms, _MIN_REFRESH_MS),
        "retry.backoff.ms": backoff_ms,
        "retry.backoff.max.ms": backoff_ms,
        "retries": 0,
        "enable.idempotence": False,
        "linger.ms": 0,
        "batch.size": LEGACY_BATCH_BYTES,
        "buffer.memory": LEGACY_BUFFER_BYTES,
        "max.request.size": LEGACY_BUFFER_BYTES,  # the old client left it to the brokers to find a message too large
    }


def _warn_of_keys_without_effect(keys: Set[str]) -> None:
    for key in sorted(keys - _KEYS.keys()):
        if key in _NO_EFFECT:
            logger.warning("Option '%s' has no effect: %s", key, _NO_EFFECT[key])
            continue
        nearest = nearest_key(key, list(_KEYS))
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        logger.warning("Option '%s' is not known to the old producer and has no effect%s", key, hint)
