"""Loads what the old producer's options name: two serializers ("encoders") and a partitioner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_kafka_sink.config.option import config_error
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.legacy.config import LegacyProducerConfig
from spark_kafka_sink.legacy.partitioner import LegacyPartitioner, find_legacy_partitioner
from spark_kafka_sink.producer.serializers import Serializer, find_serializer


class Plugins(NamedTuple):
    """The serializers and the partitioner that the options name, loaded."""

    serialize_key: Serializer
    serialize_message: Serializer
    partition: LegacyPartitioner


def read_config(mapping: Mapping[str, object]) -> tuple[LegacyProducerConfig, Plugins]:
    """The configuration and its plug-ins. Raises one ConfigError for all problems, plug-ins that cannot be loaded included."""
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
