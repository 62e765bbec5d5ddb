"""Which schema keys or values have: derived or named by an option, found in the registry or registered there.

`plan_schema` derives a schema without the registry. Then `WantedSchema.find_encoder` only reads from the registry, and once all
problems are known, `WantedSchema.register` registers. Both return the PartEncoder that encodes.
Law: a schema that has rules for writing, such as encryption, is not used: an error says so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from spark_kafka_sink.config.format_options import AVRO, FRAMED, ID, LATEST, TEXT, PartOptions, SchemaReference, SchemaUse
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import SchemaError, printable
from spark_kafka_sink.schemas import subjects
from spark_kafka_sink.schemas.avro_encoder import AvroEncoder
from spark_kafka_sink.schemas.avro_schema import AvroRecord, parse_schema
from spark_kafka_sink.schemas.derivation import TOP_LEVEL_RECORD, derive_schema
from spark_kafka_sink.schemas.frame import FIRST_MESSAGE, confluent_prefix
from spark_kafka_sink.schemas.part_encoder import PartEncoder
from spark_kafka_sink.schemas.registry import AVRO_TYPE, RegisteredSchema
from spark_kafka_sink.schemas.registry_errors import NOT_FOUND, VERSION_NOT_FOUND, RegistryError
from spark_kafka_sink.schemas.resolution import resolve_column

_PROTOBUF_TYPE = "PROTOBUF"  # as the registry calls it


class SchemaSource(Protocol):
    """The questions to a registry. SchemaRegistry and KnownSchemas answer them."""

    def latest(self, subject: str) -> RegisteredSchema: ...
    def version(self, subject: str, number: int) -> RegisteredSchema: ...
    def by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema: ...
    def lookup(self, subject: str, text: str) -> RegisteredSchema | None: ...
    def require_compatible(self, subject: str, text: str) -> None: ...
    def find_or_register(self, subject: str, text: str, schema_key: str) -> RegisteredSchema: ...


@dataclass(frozen=True, slots=True)
class WantedSchema:
    """The schema that the options ask for one part. Plain data. `plan_schema` makes it."""

    options: PartOptions
    type: pa.DataType  # of the column
    text: str | None  # of the schema; None if an option names a registered one
    record_name: str | None  # the full name of its record; None if it is no record, or not known
    config: RegistryConfig = field(repr=False)

    @property
    def part(self) -> str:
        return self.options.part

    @property
    def needs_topic(self) -> bool:
        """Whether the subject, and so the schema, depends on the topic."""
        return self._needs_subject and self.options.subject is None and subjects.has_subject_per_topic(self.config, self.part)

    @property
    def _needs_subject(self) -> bool:
        return self.options.schema is None or self.options.schema.kind != ID

    def subject_of(self, topic: str | None) -> str:
        """The subject for rows of a topic; empty if an id names the schema, and no option names the subject.

        Raises:
            ConfigError: the strategy needs a record's name, and there is none.
        """
        if self.options.subject is not None or not self._needs_subject:
            return self.options.subject or ""
        return subjects.subject_for(self.config, self.part, topic, self.record_name)

    # THE REGISTRY'S ANSWERS. Each method calls the registry: it blocks as the registry does, and raises the registry's errors.

    def find_encoder(self, registry: SchemaSource, topic: str | None, problems: list[str]) -> PartEncoder | None:
        """Find the encoder for a topic's rows; None if the schema is to be registered, or there are problems. Registers nothing.

        A column that does not fit is a problem if an option names a registered schema, and is added to `problems`. With a derived
        or given text it is a SchemaError: that text fits the column, and only the registry's form of the text does not.
        """
        subject = self.subject_of(topic)
        if self.text is not None:
            return self._find_by_text(registry, subject, self.text, problems)
        return self._resolve(self.ask_for_named(registry, subject), subject, problems)

    def _find_by_text(self, registry: SchemaSource, subject: str, text: str, problems: list[str]) -> PartEncoder | None:
        if not self.config.auto_register_schemas:
            return self._encoder_of_text(registry, subject, text)  # only finds it, as it may not register
        schema = registry.lookup(subject, text)
        if schema is not None:
            return self._encoder_of(schema, subject)
        try:
            parse_schema(text, checks_names=True)
        except SchemaError as error:
            problems.append(
                f"a schema cannot be registered whose names Avro forbids: {error.message} ({self.options.name_of('schema')})"
            )
            return None
        registry.require_compatible(subject, text)
        return None

    def ask_for_named(self, registry: SchemaSource, subject: str) -> RegisteredSchema:
        """The registered schema that an option names. If it is not there, the error says what to do."""
        reference = self.options.schema
        assert reference is not None
        try:
            if reference.kind == ID:
                return registry.by_id(reference.number, subject)
            return registry.latest(subject) if reference.kind == LATEST else registry.version(subject, reference.number)
        except RegistryError as error:
            if error.condition not in NOT_FOUND:
                raise
            text = f"{error.message.rstrip('.')}; {self._remedy_for_missing(reference, error)}"
            raise RegistryError(text, condition=error.condition, error_code=error.error_code) from error

    def _remedy_for_missing(self, reference: SchemaReference, error: RegistryError) -> str:
        """What to do if the registry does not have the schema that the options name."""
        schema_key, subject_key = self.options.name_of("schema"), self.options.name_of("subject")
        if reference.kind == ID:
            return f"correct {schema_key}. If the id is of a context, {subject_key} has to name it, as :.context:subject"
        if error.condition == VERSION_NOT_FOUND:
            return f"correct {schema_key}; {LATEST} is the newest version"
        remedy = f"register a schema there first, or name another subject with {subject_key}"
        if self.options.format == FRAMED or not self.config.auto_register_schemas:
            return remedy
        setting = "use.latest.version=true" if self.config.use_latest_version else f"{schema_key}={reference}"
        return f"{remedy}. Without {setting}, the schema is derived from the {self.part}'s column, and registered"

    def register(self, registry: SchemaSource, topic: str | None) -> PartEncoder:
        """Register the schema for good, unless another writer has, and return the encoder. Needed if `find_encoder` gave None."""
        assert self.text is not None
        subject = self.subject_of(topic)
        return self._encoder_of_text(registry, subject, self.text)

    def _encoder_of_text(self, registry: SchemaSource, subject: str, text: str) -> PartEncoder:
        return self._encoder_of(registry.find_or_register(subject, text, self.options.name_of("schema")), subject)

    def find_or_register(self, registry: SchemaSource, topic: str | None) -> PartEncoder:
        """Find the schema, or register it for good, and return the encoder. For callers that do not collect problems.

        Raises:
            SchemaError: the column and the schema contradict each other.
        """
        problems: list[str] = []
        encoder = self.find_encoder(registry, topic, problems)
        if problems:
            raise SchemaError("; ".join(problems))
        return self.register(registry, topic) if encoder is None else encoder

    def encoder_of_id(self, registry: SchemaSource, schema_id: int, subject: str) -> PartEncoder:
        """The encoder with the schema that an earlier run has used, whatever the subject's versions are by now. `schema_id` is
        one of the subject's context.

        Raises:
            SchemaError: the column does not fit that schema.
        """
        return self._encoder_of(registry.by_id(schema_id, subject), subject)

    # FROM AN ANSWER TO AN ENCODER

    def _encoder_of(self, schema: RegisteredSchema, subject: str) -> PartEncoder:
        """The encoder for the registry's text, which readers get for the id. It may differ from the text that was looked up."""
        problems: list[str] = []
        encoder = self._resolve(schema, subject, problems)
        if encoder is None:
            raise SchemaError("; ".join(problems))
        return encoder

    def _resolve(self, schema: RegisteredSchema, subject: str, problems: list[str]) -> PartEncoder | None:
        schema.require_writable()
        if self.options.format == FRAMED:
            if self.options.message is not None and schema.schema_type != _PROTOBUF_TYPE:
                message = self.options.name_of("message")
                problems.append(f"{message} is for Protobuf: {schema.label} is {printable(schema.schema_type)}")
                return None
            return self._part_encoder(schema, subject, encoder=None)
        if schema.schema_type != AVRO_TYPE:
            problems.append(self._not_avro(schema))
            return None
        references = tuple(schema.references.items())
        encoder, misfits = _avro_encoder(self.type, schema.text, references, self.part, self.options.truncates_timestamps)
        problems.extend(f"{problem} ({schema.label})" for problem in misfits)
        return None if encoder is None else self._part_encoder(schema, subject, encoder)

    def _not_avro(self, schema: RegisteredSchema) -> str:
        key, part = self.options.name_of("format"), self.part
        remedy = f"encode the {part} before the write, and set {key}={FRAMED}"
        if self.options.is_of_producer:  # KafkaProducer has no format framed
            remedy = f"encode and frame the {part} before it is sent, and remove {key}"
        return f"{key}={AVRO}, but {schema.label} is {printable(schema.schema_type)}: {remedy}"

    def _part_encoder(self, schema: RegisteredSchema, subject: str, encoder: AvroEncoder | None) -> PartEncoder:
        message = (self.options.message or FIRST_MESSAGE) if schema.schema_type == _PROTOBUF_TYPE else None
        use = SchemaUse(self.part, schema.subject or subject, schema.id, schema.version)
        return PartEncoder(use, confluent_prefix(schema.id, message), encoder)


@functools.lru_cache(maxsize=64)
def _avro_encoder(
    data_type: pa.DataType, text: str, references: tuple[tuple[str, str], ...], part: str, truncates_timestamps: bool
) -> tuple[AvroEncoder | None, tuple[str, ...]]:
    """The encoder, or the problems. Cached, as a stream resolves the same schema in each micro-batch."""
    try:
        schema = parse_schema(text, dict(references))
    except SchemaError as error:
        return None, (f"the schema of the {part} cannot be used: {error.message}",)
    encoder, problems = resolve_column(data_type, schema, column_name=part, truncates_timestamps=truncates_timestamps)
    return (None if problems else encoder), tuple(problems)


class PlannedPart(NamedTuple):
    """The keys or the values of a planned write. Plain data."""

    wanted_schema: WantedSchema
    encoder: PartEncoder | None  # None until the schema is registered, or if tasks ask for each topic's schema


# PLANNING


def plan_schema(options: PartOptions, data_type: pa.DataType, config: RegistryConfig, problems: list[str]) -> WantedSchema:
    """The schema to find or to register. Does not ask the registry.

    Args:
        options: of the part, checked.
        data_type: of its column.
        config: of the registry, checked.
        problems: gets what is wrong, for example a type without a schema; if it gets anything, do not use the result.
    """
    reference = options.schema
    if options.format == FRAMED:
        return WantedSchema(options, data_type, text=None, record_name=None, config=config)
    if reference is not None and reference.kind == TEXT:
        return _plan_with_text(options, data_type, config, problems)
    record_name, needs_name = None, options.subject is None and subjects.needs_record_name(config, options.part)
    text = _derive_text(options, data_type, problems) if reference is None else None
    if pa.types.is_struct(data_type):
        record_name = ".".join(filter(None, (options.record_namespace, options.record_name or TOP_LEVEL_RECORD)))
    elif needs_name and (reference is None or reference.kind != ID):
        problems.append(
            f"{options.part}.subject.name.strategy names the subject after a record, and the {options.part} is {data_type}: set"
            f" {options.name_of('subject')}, or write a struct"
        )
    return WantedSchema(options, data_type, text, record_name, config)


def _derive_text(options: PartOptions, data_type: pa.DataType, problems: list[str]) -> str:
    """The derived text. Checks that rows can be encoded with it, as it may be registered before any row is encoded."""
    name = options.record_name or TOP_LEVEL_RECORD
    text, misfits = derive_schema(data_type, name=name, namespace=options.record_namespace, column_name=options.part)
    problems.extend(misfits or _avro_encoder(data_type, text, (), options.part, options.truncates_timestamps)[1])
    return text


def _plan_with_text(options: PartOptions, data_type: pa.DataType, config: RegistryConfig, problems: list[str]) -> WantedSchema:
    assert options.schema is not None
    text = options.schema.text
    encoder, misfits = _avro_encoder(data_type, text, (), options.part, options.truncates_timestamps)
    problems.extend(f"{problem} ({options.name_of('schema')})" for problem in misfits)
    schema = parse_schema(text) if encoder is not None else None
    name = str(schema.name) if isinstance(schema, AvroRecord) else None
    if name is None and encoder is not None and options.subject is None and subjects.needs_record_name(config, options.part):
        problems.append(
            f"{options.part}.subject.name.strategy needs a record, and {options.name_of('schema')} is none: set"
            f" {options.name_of('subject')}"
        )
    return WantedSchema(options, data_type, text, name, config)
