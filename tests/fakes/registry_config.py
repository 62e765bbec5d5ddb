"""A registry's configuration for tests: its options alone, and one error for all problems."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import ConfigError


def registry_config(mapping: Mapping[str, object]) -> RegistryConfig:
    """Read what concerns a registry; other keys are ignored. Raises ConfigError."""
    problems: list[str] = []
    config = RegistryConfig.read(RegistryConfig.pick(mapping), problems)
    if problems:
        raise ConfigError(join_problems(problems))
    return config
