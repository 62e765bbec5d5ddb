"""The schema registry of a write, with what this process knows of it. Imported only when a part has a format.

It is asked on the driver, when schemas are planned, and in tasks. It connects with files that were sent to this machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.config.option import options_of
from spark_kafka_sink.schemas.known_schemas import KnownSchemas
from spark_kafka_sink.schemas.registry import SchemaRegistry
from spark_kafka_sink.sink.shipped_files import locate

if TYPE_CHECKING:
    from spark_kafka_sink.config.registry_config import RegistryConfig
    from spark_kafka_sink.config.sink_options import SinkOptions


def registry_of(options: SinkOptions) -> KnownSchemas:
    """The registry. Connects at the first question that it cannot answer itself; then raises ConfigError if a file is missing."""
    assert options.registry is not None, "a format needs one, and options are checked"
    return KnownSchemas(options.registry, _connect)


def _connect(config: RegistryConfig) -> SchemaRegistry:
    files = {name: (each.key, getattr(config, name)) for name, each in options_of(type(config)).items() if each.is_file}
    local_paths: dict[str, Any] = {name: locate(key, path) for name, (key, path) in files.items() if path}
    return SchemaRegistry(replace(config, **local_paths))
