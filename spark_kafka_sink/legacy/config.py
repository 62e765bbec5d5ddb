"""Options of the old Scala producer, how they translate to options of KafkaProducer, and the plug-ins that they name.

Declared and read as described in config/option.py.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from spark_kafka_sink.config.option import (
    CLASS,
    INT,
    LIST,
    LONG_MAX,
    STRING,
    InvalidValueError,
    Option,
    conceal,
    join_problems,
    nearest_key,
    option,
    options_of,
    read_all,
)
from spark_kafka_sink.config.producer_config import MIN_METADATA_AGE_MS, PRODUCER_KEYS, ProducerConfig, parse_addresses
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.legacy.partitioner import LegacyPartitioner, default_partition, find_legacy_partitioner
from spark_kafka_sink.producer.serializers import BUILT_IN, Serializer, find_serializer

logger = logging.getLogger(__name__)

LEGACY_BATCH_BYTES = 1_048_576  # twice MAX_PORTION_BYTES of event_handler.py: with any codec a portion is one batch
LEGACY_BUFFER_BYTES = 33_554_432
_CODECS = ("none", "gzip", "snappy", "lz4")  # the index is the codec's number
_CLIENT_ID = re.compile(r"[a-zA-Z0-9._-]*")


def _checked_brokers(servers: tuple[str, ...]) -> tuple[str, ...]:
    if not parse_addresses(servers):
        raise InvalidValueError("it names no broker")
    return servers


def _checked_client_id(name: str) -> str:
    if not _CLIENT_ID.fullmatch(name):
        raise InvalidValueError("it contains a character other than ASCII alphanumerics, '.', '_' and '-'")
    return name


def _checked_encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise InvalidValueError("it is not an encoding that Python knows") from None


@dataclass(frozen=True, slots=True)
class LegacyProducerConfig:
    """The options of the old Scala producer (Kafka 0.8 to 1.1), checked, with its keys and its defaults. Times are milliseconds.
    `producer` is the configuration of the KafkaProducer that it uses."""

    # fmt: off
    metadata_broker_list: tuple[str, ...] = option("metadata.broker.list", LIST, default=None, convert=_checked_brokers,
        doc="Brokers to contact first, as host:port[,host:port]; today's bootstrap.servers. Required.")
    producer_type: str = option("producer.type", STRING, default="sync", choices=("sync", "async"),
        doc="sync: send() returns when all messages are acknowledged; async: send() puts them into a queue, from which a thread "
            "sends them.")
    request_required_acks: int = option("request.required.acks", INT, default=0, at_least=-1, at_most=1,
        doc="Which replicas must acknowledge a message: all in-sync replicas (-1), the leader (1), none (0); today's acks.")
    request_timeout_ms: int = option("request.timeout.ms", INT, default=10_000, at_least=1,
        doc="Time-out of one attempt, and of the wait for metadata or memory before it.")
    client_id: str = option("client.id", STRING, default="", convert=_checked_client_id,
        doc="Name of this client in the logs and quotas of brokers.")
    send_buffer_bytes: int = option("send.buffer.bytes", INT, default=102_400, at_least=-1,
        doc="Size of the send buffer of sockets; -1: the operating system's default.")
    serializer_class: object = option("serializer.class", CLASS, default="kafka.serializer.DefaultEncoder",
        doc="Serializer of messages: kafka.serializer.DefaultEncoder (bytes), StringEncoder, IntegerEncoder, LongEncoder, "
            "NullEncoder, or a Python callable or its dotted name.")
    key_serializer_class: object = option("key.serializer.class", CLASS, default=None,
        doc="Serializer of keys; not set: serializer.class.")
    serializer_encoding: str = option("serializer.encoding", STRING, default="UTF8", convert=_checked_encoding,
        doc="Character set of StringEncoder.")
    partitioner_class: object = option("partitioner.class", CLASS, default="kafka.producer.DefaultPartitioner",
        doc="Chooses the partition of a message with a key: kafka.producer.DefaultPartitioner or ByteArrayPartitioner (Java's "
            "hashCode), or a Python callable (key, number of partitions) -> partition. Also a class with such a method "
            "`partition`, or a dotted name.")
    compression_codec: str = option(
        "compression.codec", STRING, default="none", choices=(*_CODECS, *map(str, range(len(_CODECS)))),
        convert=lambda codec: _CODECS[int(codec)] if codec.isdigit() else codec,
        doc="Codec that compresses batches, by name or by its old number; today's compression.type.")
    message_send_max_retries: int = option("message.send.max.retries", INT, default=3, at_least=0,
        doc="How often the messages of failed partitions are retried.")
    retry_backoff_ms: int = option("retry.backoff.ms", INT, default=100, at_least=0,
        doc="Wait before a retry; meanwhile metadata is refreshed if a connection was lost or a broker's response requires it.")
    topic_metadata_refresh_interval_ms: int = option("topic.metadata.refresh.interval.ms", INT, default=600_000, at_least=-1,
        doc="Age at which metadata is refreshed and messages without a key move to another partition; 0: with every dispatch; "
            "-1: only after a failure.")
    queue_buffering_max_ms: int = option("queue.buffering.max.ms", INT, default=5000, at_least=0,
        doc="async: how long a message waits until there are batch.num.messages.")
    queue_buffering_max_messages: int = option("queue.buffering.max.messages", INT, default=10_000, at_least=1,
        doc="async: capacity of the queue.")
    queue_enqueue_timeout_ms: int = option("queue.enqueue.timeout.ms", INT, default=-1, at_least=-1,
        doc="async: how long send() waits for room in the queue, for each message, before it raises KAFKA_QUEUE_FULL; 0: no "
            "wait; -1: ten minutes.")
    batch_num_messages: int = option("batch.num.messages", INT, default=200, at_least=1,
        doc="async: number of messages that are sent together; at most queue.buffering.max.messages.")
    # fmt: on
    producer: ProducerConfig = field(default_factory=ProducerConfig)

    @classmethod
    def read(cls, mapping: Mapping[str, object], problems: list[str]) -> LegacyProducerConfig:
        """Read a configuration by the old keys. Adds what is wrong to `problems`; unless it stays empty, do not use the result.

        Values may be str, int or list; None means not set. security.*, ssl.* and sasl.* keys, which the old client did not have,
        are passed to KafkaProducer. For an unknown key a warning is logged. Never blocks.
        """
        mapping = conceal_legacy(mapping)
        options = {key: value for key, value in mapping.items() if value is not None}
        passed_options = {key: value for key, value in options.items() if key.startswith(_PASSED_PREFIXES)}
        _warn_of_keys_without_effect(options.keys() - passed_options.keys())
        values: dict[str, Any] = {each.name: each.default for each in fields(cls) if "option" in each.metadata}
        values |= read_all(options_of(cls), options, problems)
        if "metadata.broker.list" not in options:
            problems.append("Option 'metadata.broker.list' is not set. Name at least one broker as host:port.")
        if values["batch_num_messages"] > values["queue_buffering_max_messages"]:
            problems.append(
                f"batch.num.messages={values['batch_num_messages']} must be at most"
                f" queue.buffering.max.messages={values['queue_buffering_max_messages']}; lower the first or raise the second"
            )
        if "request.required.acks" not in options:
            logger.warning(_NO_ACKS_WARNING)
        return cls(**values, producer=ProducerConfig.read(passed_options | _producer_options(values), problems))


def conceal_legacy(mapping: Mapping[str, object]) -> dict[str, object]:
    """Wrap the secrets (see `conceal`) under the old producer's keys and under those that it passes to KafkaProducer."""
    return conceal(mapping, _KEYS | PRODUCER_KEYS)


_KEYS: dict[str, Option] = {each.key: each for each in options_of(LegacyProducerConfig).values()}
_PASSED_PREFIXES = ("security.", "ssl.", "sasl.")
_NO_ACKS_WARNING = (
    "request.required.acks is not set: as with the old producer, brokers acknowledge nothing (0), and messages that they reject"
    " are lost without an error; set it to -1"
)
_NO_EFFECT = {"compressed.topics": "compression.codec applies to all topics"}


def _producer_options(values: Mapping[str, Any]) -> dict[str, object]:
    """The options of KafkaProducer. KafkaProducer does not retry: EventHandler retries by the old rules."""
    refresh_ms = values["topic_metadata_refresh_interval_ms"]
    backoff_ms = min(max(values["retry_backoff_ms"], 10), MIN_METADATA_AGE_MS)  # so that new metadata arrives during the wait
    return {
        "bootstrap.servers": values["metadata_broker_list"] or "localhost:9092",  # a missing one is reported already
        "acks": values["request_required_acks"],
        "compression.type": values["compression_codec"],
        "client.id": values["client_id"] or None,
        "send.buffer.bytes": values["send_buffer_bytes"],
        "request.timeout.ms": values["request_timeout_ms"],
        "delivery.timeout.ms": values["request_timeout_ms"],
        "max.block.ms": values["request_timeout_ms"],
        "metadata.max.age.ms": LONG_MAX if refresh_ms < 0 else max(refresh_ms, MIN_METADATA_AGE_MS),
        "retry.backoff.ms": backoff_ms,
        "retry.backoff.max.ms": backoff_ms,
        "retries": 0,
        "enable.idempotence": False,
        "linger.ms": 0,
        "batch.size": LEGACY_BATCH_BYTES,
        "buffer.memory": LEGACY_BUFFER_BYTES,
        "max.request.size": LEGACY_BUFFER_BYTES,  # the old client had no limit; brokers reject what is too large
    }


def _warn_of_keys_without_effect(keys: Set[str]) -> None:
    for key in sorted(keys - _KEYS.keys()):
        if key in _NO_EFFECT:
            logger.warning("Option '%s' has no effect: %s", key, _NO_EFFECT[key])
            continue
        nearest = nearest_key(key, list(_KEYS))
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        logger.warning("Option '%s' is not known to the old producer and has no effect%s", key, hint)


# PLUG-INS


class Plugins(NamedTuple):
    """The serializers and the partitioner that the options name, loaded."""

    serialize_key: Serializer
    serialize_message: Serializer
    partition: LegacyPartitioner


def read_config(mapping: Mapping[str, object]) -> tuple[LegacyProducerConfig, Plugins]:
    """The configuration and its plug-ins. Raises one ConfigError for all problems, plug-ins that cannot be loaded included."""
    problems: list[str] = []
    config = LegacyProducerConfig.read(mapping, problems)
    key_class = config.serializer_class if config.key_serializer_class is None else config.key_serializer_class
    plugins: list[Any] = []
    for find_plugin in (
        lambda: _find_encoder("key.serializer.class", key_class, config.serializer_encoding),
        lambda: _find_encoder("serializer.class", config.serializer_class, config.serializer_encoding),
        lambda: find_legacy_partitioner(config.partitioner_class),
    ):
        try:
            plugins.append(find_plugin())
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise ConfigError(join_problems(list(dict.fromkeys(problems))))
    serialize_key, serialize_message, partition = plugins
    if partition is default_partition and serialize_key is BUILT_IN["long"]:
        partition = partial(default_partition, are_ints_longs=True)
    return config, Plugins(serialize_key, serialize_message, partition)


def _find_encoder(option: str, option_value: object, encoding: str) -> Serializer:
    encoders: dict[str, object] = {
        "DefaultEncoder": "bytes",
        "StringEncoder": lambda text: _encode_as_java(text, encoding),
        "IntegerEncoder": "integer",
        "LongEncoder": "long",
        "NullEncoder": lambda _: None,
    }
    name = option_value.removeprefix("kafka.serializer.") if isinstance(option_value, str) else ""
    return find_serializer(option, encoders.get(name, option_value))


def _encode_as_java(text: str, encoding: str) -> bytes:
    """Java's UTF-16 and UTF-32 are big-endian. Only UTF-16 has a byte order mark, unless the text is empty."""
    if encoding == "utf-16":
        text = text and "\ufeff" + text
    return str.encode(text, f"{encoding}-be" if encoding in ("utf-16", "utf-32") else encoding)
