"""SerializerConfig: the options of the producer's Avro serializers, which say what schema keys and values have.

KafkaProducer reads them, and the options of the registry, if key.serializer or value.serializer is avro.
format_options.py has the sink's options for the same.
"""

# ruff: noqa: RUF009  (option() is dataclasses.field() with an Option attached)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.config.format_options import (
    AVRO,
    KEY_PART,
    LATEST,
    PARTS_WITH_FORMAT,
    RECORD_NAME_DOC,
    RECORD_NAMESPACE_DOC,
    SCHEMA,
    SCHEMA_DOC,
    SUBJECT_DOC,
    VALUE_PART,
    PartOptions,
    SchemaReference,
    read_reference,
    require_subject_name,
)
from spark_kafka_sink.config.option import BOOLEAN, STRING, Option, conceal, join_problems, option, options_of, read_all
from spark_kafka_sink.config.registry_config import URL_KEY, RegistryConfig
from spark_kafka_sink.errors import ConfigError

_DERIVED_SCHEMA_DOC = f"{SCHEMA_DOC}derived from the column's type, in send_columns and send_table; send needs it."


@dataclass(frozen=True, slots=True)
class SerializerConfig:
    """The options of Avro serializers, checked. An attribute is named as the key, with underscores for dots."""

    # fmt: off
    value_schema: SchemaReference | None = option("value.schema", SCHEMA, default=None, non_empty=True, convert=read_reference,
        doc=_DERIVED_SCHEMA_DOC.format(part=VALUE_PART))
    key_schema: SchemaReference | None = option("key.schema", SCHEMA, default=None, non_empty=True, convert=read_reference,
        doc=_DERIVED_SCHEMA_DOC.format(part=KEY_PART))
    value_subject: str | None = option("value.subject", STRING, default=None, non_empty=True, convert=require_subject_name,
        doc=SUBJECT_DOC.format(part=VALUE_PART))
    key_subject: str | None = option("key.subject", STRING, default=None, non_empty=True, convert=require_subject_name,
        doc=SUBJECT_DOC.format(part=KEY_PART))
    value_record_name: str | None = option("value.record.name", STRING, default=None, non_empty=True,
        doc=RECORD_NAME_DOC.format(part=VALUE_PART))
    value_record_namespace: str | None = option("value.record.namespace", STRING, default=None, non_empty=True,
        doc=RECORD_NAMESPACE_DOC.format(part=VALUE_PART))
    key_record_name: str | None = option("key.record.name", STRING, default=None, non_empty=True,
        doc=RECORD_NAME_DOC.format(part=KEY_PART))
    key_record_namespace: str | None = option("key.record.namespace", STRING, default=None, non_empty=True,
        doc=RECORD_NAMESPACE_DOC.format(part=KEY_PART))
    truncate_timestamps: bool = option("truncate.timestamps", BOOLEAN, default=False,
        doc="true cuts times to the unit of the schema; false: a row with a finer time is an error.")
    # fmt: on

    def part_options(self, part: str, registry: RegistryConfig) -> PartOptions:
        """The options of one part, "key" or "value", in the form that schemas/ takes."""
        schema = getattr(self, f"{part}_schema")
        if schema is None and registry.use_latest_version:
            schema = SchemaReference(LATEST)
        settings = {name: getattr(self, f"{part}_{name}") for name in ("subject", "record_name", "record_namespace")}
        return PartOptions(part, AVRO, schema, truncates_timestamps=self.truncate_timestamps, is_of_producer=True, **settings)


SERIALIZER_KEYS: dict[str, Option] = {each.key: each for each in options_of(SerializerConfig).values()}


def serializer_options(mapping: Mapping[str, object]) -> dict[str, object]:
    """Pick these options and the registry's from a producer's configuration, with every secret wrapped."""
    own_options = {key: value for key, value in mapping.items() if key in SERIALIZER_KEYS}
    return conceal(own_options, SERIALIZER_KEYS) | RegistryConfig.pick(mapping)


def read_serializer_options(options: Mapping[str, object], parts: Sequence[str]) -> tuple[dict[str, PartOptions], RegistryConfig]:
    """The options of each part that is Avro, and of the registry. Raises ConfigError with all problems.

    Args:
        options: the result of serializer_options().
        parts: the parts that are Avro, at least one.
    """
    problems: list[str] = []
    registry = RegistryConfig.read({key: value for key, value in options.items() if key not in SERIALIZER_KEYS}, problems)
    config = SerializerConfig(**read_all(options_of(SerializerConfig), options, problems))  # type: ignore[arg-type]
    if not registry.is_set and URL_KEY not in registry.given_keys:
        problems.append(f"{parts[-1]}.serializer=avro needs {URL_KEY}, the address of the schema registry")
    for part in PARTS_WITH_FORMAT:
        problems.extend(_conflicts(part, config, registry, options, is_used=part in parts))
    if problems:
        raise ConfigError(join_problems(problems))
    return {part: config.part_options(part, registry) for part in parts}, registry


def _conflicts(
    part: str, config: SerializerConfig, registry: RegistryConfig, given_options: Mapping[str, object], *, is_used: bool
) -> Iterator[str]:
    schema: SchemaReference | None = getattr(config, f"{part}_schema")
    given_keys = [key for key in SERIALIZER_KEYS if key.startswith(f"{part}.") and given_options.get(key) is not None]
    if given_keys and not is_used:
        yield f"{' and '.join(given_keys)} {'has' if len(given_keys) == 1 else 'have'} no effect: set {part}.serializer=avro"
    if is_used and schema is not None and schema.kind != LATEST and registry.use_latest_version:
        yield f"{part}.schema={schema} contradicts use.latest.version=true: remove one of the two"
