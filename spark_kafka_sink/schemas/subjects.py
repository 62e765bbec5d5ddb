"""The subject under which the schema of a key or a value is registered: Confluent's three strategies, and contexts.

A context has subjects and ids of its own. A subject names it in front, as `:.staging:orders-value`; without one, it is in the
default context.
"""

from __future__ import annotations

import re

from spark_kafka_sink.config.registry_config import RECORD_NAME, TOPIC_NAME, RegistryConfig
from spark_kafka_sink.errors import ConfigError

_CONTEXT = re.compile(r":(\.[^:]{0,255}):")


def needs_record_name(config: RegistryConfig, part: str) -> bool:
    """Whether the strategy for `part` ("key" or "value") names subjects after records."""
    return _strategy(config, part) != TOPIC_NAME


def has_subject_per_topic(config: RegistryConfig, part: str) -> bool:
    """Whether each topic has a subject of its own for `part`."""
    return _strategy(config, part) != RECORD_NAME


def subject_for(config: RegistryConfig, part: str, topic: str | None, record_name: str | None) -> str:
    """The subject that the strategy of `part` names.

    Args:
        config: the strategies.
        part: "key" or "value".
        topic: None only if the strategy does not need it.
        record_name: the full name of the Avro record, with its namespace; None if the schema is no record or not known yet.

    Raises:
        ConfigError: the strategy needs a record's name, and there is none.
    """
    strategy = _strategy(config, part)
    if strategy == TOPIC_NAME:
        return f"{topic}-{part}"
    if record_name is None:
        raise ConfigError(
            f"{part}.subject.name.strategy={strategy} names the subject after a record, but the {part} has no record's name:"
            f" set {part}Subject, or use {TOPIC_NAME}"
        )
    return record_name if strategy == RECORD_NAME else f"{topic}-{record_name}"


def context_of(subject: str) -> str:
    """The context that a subject names, as `:.staging:`; empty for the default context."""
    match = _CONTEXT.match(subject)
    return "" if match is None or match[1] == "." else match[0]


def in_context_of(parent: str, subject: str) -> str:
    """The subject that a schema of the subject `parent` refers to: it is in the same context, unless it names one."""
    return subject if _CONTEXT.match(subject) else context_of(parent) + subject


def _strategy(config: RegistryConfig, part: str) -> str:
    return config.key_subject_name_strategy if part == "key" else config.value_subject_name_strategy
