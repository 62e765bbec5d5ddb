"""How keys and values become bytes: the formats, and which schema of a registry each of them has.

SinkOptions inherits these options. `format_conflicts` checks what they require of each other and of the registry's options.
`part_options` returns the options of one part, key or value, in the form that schemas/ takes.
"""

# ruff: noqa: RUF009  (option() is dataclasses.field() with an Option attached)

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from spark_kafka_sink.config.option import BOOLEAN, STRING, InvalidValueError, Kind, option
from spark_kafka_sink.config.secret import HIDDEN, Secret, looks_like_a_secret
from spark_kafka_sink.errors import printable

if TYPE_CHECKING:
    from spark_kafka_sink.config.registry_config import RegistryConfig

BINARY, AVRO, FRAMED = FORMATS = ("binary", "avro", "framed")
KEY_PART, VALUE_PART = PARTS_WITH_FORMAT = ("key", "value")

LATEST, VERSION, ID, TEXT = "latest", "version", "id", "text"
_ID_PREFIX = "id:"
MAX_SCHEMA_ID = 2**31 - 1  # a frame has 4 bytes for it; versions have the same limit
_MAX_MESSAGE_DEPTH = 32


class SchemaReference(NamedTuple):
    """Which schema valueSchema or keySchema names.

    Args:
        kind: LATEST, VERSION, ID or TEXT.
        number: the version or the id.
        text: of the schema.
    """

    kind: str
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        words = {LATEST: LATEST, VERSION: str(self.number), ID: f"{_ID_PREFIX}{self.number}"}
        return words.get(self.kind, "the text of a schema")


_REFERENCE_RULE = f"it is {LATEST}, a version such as 3, an id such as {_ID_PREFIX}42, or the text of an Avro schema in JSON"


def read_reference(text: str) -> SchemaReference:
    """The schema that the text of an option names. Raises InvalidValueError."""
    if text.lower() == LATEST:
        return SchemaReference(LATEST)
    if re.fullmatch(r"0*[1-9][0-9]{0,9}", text):
        return SchemaReference(VERSION, _parse_id_or_version(text))
    id_match = re.fullmatch(rf"{_ID_PREFIX}([0-9]{{1,10}})", text, re.IGNORECASE)
    if id_match:
        return SchemaReference(ID, _parse_id_or_version(id_match[1]))
    schema_text = without_comments(text).strip()  # not every registry takes comments
    if schema_text[:1] not in ("{", "[", '"'):
        raise InvalidValueError(_REFERENCE_RULE, HIDDEN if looks_like_a_secret(text) else printable(text, 40))
    try:
        parse_schema_json(schema_text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"it is no JSON: {printable(error)}; {_REFERENCE_RULE}") from None
    return SchemaReference(TEXT, text=schema_text)


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)|/\*.*?(?:\*/|\Z)|//[^\n]*', re.DOTALL)


def without_comments(schema_text: str) -> str:
    """The text without comments as in Java, which Avro's own parser ignores in JSON."""
    if "/*" not in schema_text and "//" not in schema_text:
        return schema_text
    return _STRING_OR_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", schema_text)


def parse_schema_json(schema_text: str) -> Any:
    """The JSON of a schema, with comments or without, as Avro's own parser reads it.

    Raises:
        ValueError: it is no JSON; NaN and Infinity are none unless they stand in quotes.
        RecursionError: it is nested too deeply.
    """
    return json.loads(without_comments(schema_text), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _parse_id_or_version(digits: str) -> int:
    number = int(digits)
    if number > MAX_SCHEMA_ID:
        raise InvalidValueError(f"no id or version is larger than {MAX_SCHEMA_ID}; {_REFERENCE_RULE}", str(number))
    return number


def _parse_message_path(text: str) -> tuple[int, ...]:
    """The path to a message: the position in the file, then the position in each message that it is nested in."""
    positions = re.split(r"\s*,\s*", text)
    if len(positions) > _MAX_MESSAGE_DEPTH or not all(re.fullmatch(r"[0-9]{1,6}", each) for each in positions):
        raise InvalidValueError(
            "it is the message's position in its file, from 0, and after commas those of nested messages: 1,0"
        )
    return tuple(map(int, positions))


def _parse_schema_text(value: object) -> str:
    text = value.reveal() if isinstance(value, Secret) else value  # text of several lines looks like a secret
    if not isinstance(text, str | int) or isinstance(text, bool):
        raise InvalidValueError(f"Expected value to be a string, but it was a {type(value).__name__}")
    return str(text).strip()


SCHEMA = Kind("string", _parse_schema_text, may_hold_secret=True)


def require_subject_name(name: str) -> str:
    """The name, unchanged. Raises InvalidValueError for . and .., under which no registry can be asked."""
    if name in (".", ".."):
        raise InvalidValueError(f"no registry can be asked for a subject {name!r}: in an address it is a step to another path")
    return name


# Documentation that the options of the key and of the value share.
_FORMAT_DOC = (
    "binary: the {part} is bytes or a string, written as it is. avro: a struct, or any other type that Avro has, is encoded with"
    " a schema of the registry. framed: bytes or strings that are encoded already get the frame of a registered schema; they are"
    " not checked."
)
SCHEMA_DOC = "The {part}'s schema: latest, a version of the subject (3), an id (id:42), or the text of an Avro schema. Not set: "
_DERIVED_SCHEMA_DOC = f"{SCHEMA_DOC}derived from the DataFrame. framed needs it, and takes no text."
SUBJECT_DOC = "The {part}'s subject in the registry. Not set: as {part}.subject.name.strategy names it, topic-{part} by default."
RECORD_NAME_DOC = (
    "Name of the record in a schema derived from a {part} of type struct. Not set: topLevelRecord, as Spark's to_avro names it."
)
RECORD_NAMESPACE_DOC = "Namespace of the record in a schema derived from a {part} of type struct."
_MESSAGE_DOC = (
    "framed with a Protobuf schema: the position of the {part}'s message in its file, and after commas of messages nested in it,"
    " such as 1,0. Not set: the first message."
)


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)  # SinkOptions has its own; making them costs time
class FormatOptions:
    """The options about the formats and schemas of keys and values, checked. An attribute is named as the key."""

    # fmt: off
    value_format: str = option("valueFormat", STRING, default=BINARY, choices=FORMATS, ignore_case=True,
        doc=_FORMAT_DOC.format(part=VALUE_PART))
    key_format: str = option("keyFormat", STRING, default=BINARY, choices=FORMATS, ignore_case=True,
        doc=_FORMAT_DOC.format(part=KEY_PART))
    value_schema: SchemaReference | None = option("valueSchema", SCHEMA, default=None, non_empty=True, convert=read_reference,
        doc=_DERIVED_SCHEMA_DOC.format(part=VALUE_PART))
    key_schema: SchemaReference | None = option("keySchema", SCHEMA, default=None, non_empty=True, convert=read_reference,
        doc=_DERIVED_SCHEMA_DOC.format(part=KEY_PART))
    value_subject: str | None = option("valueSubject", STRING, default=None, non_empty=True, convert=require_subject_name,
        doc=SUBJECT_DOC.format(part=VALUE_PART))
    key_subject: str | None = option("keySubject", STRING, default=None, non_empty=True, convert=require_subject_name,
        doc=SUBJECT_DOC.format(part=KEY_PART))
    value_record_name: str | None = option("valueRecordName", STRING, default=None, non_empty=True,
        doc=RECORD_NAME_DOC.format(part=VALUE_PART))
    value_record_namespace: str | None = option("valueRecordNamespace", STRING, default=None, non_empty=True,
        doc=RECORD_NAMESPACE_DOC.format(part=VALUE_PART))
    key_record_name: str | None = option("keyRecordName", STRING, default=None, non_empty=True,
        doc=RECORD_NAME_DOC.format(part=KEY_PART))
    key_record_namespace: str | None = option("keyRecordNamespace", STRING, default=None, non_empty=True,
        doc=RECORD_NAMESPACE_DOC.format(part=KEY_PART))
    value_message: tuple[int, ...] | None = option("valueMessage", STRING, default=None, non_empty=True,
        convert=_parse_message_path, doc=_MESSAGE_DOC.format(part=VALUE_PART))
    key_message: tuple[int, ...] | None = option("keyMessage", STRING, default=None, non_empty=True,
        convert=_parse_message_path, doc=_MESSAGE_DOC.format(part=KEY_PART))
    truncate_timestamps: bool = option("truncateTimestamps", BOOLEAN, default=False,
        doc="avro: true cuts times to the unit of the schema, as to_avro does. false: a row with a finer time follows "
            "onInvalidRecord.")
    # fmt: on

    @property
    def has_format(self) -> bool:
        """Whether a part of the records is encoded or framed here."""
        return (self.value_format, self.key_format) != (BINARY, BINARY)


class PartOptions(NamedTuple):
    """The format options of one part of the record, key or value.

    Args:
        part: KEY_PART or VALUE_PART.
        format: AVRO or FRAMED.
        schema: None: it is derived from the column.
        subject: None: a strategy names it.
        record_name: of the record in a derived schema, as is record_namespace; None: Spark's name.
        message: the path to a Protobuf message; None: the first.
        truncates_timestamps: whether times that are finer than the schema's unit are cut off; else their rows are refused.
        is_of_producer: whether these are options of KafkaProducer, not of the sink.
    """

    part: str
    format: str
    schema: SchemaReference | None = None
    subject: str | None = None
    record_name: str | None = None
    record_namespace: str | None = None
    message: tuple[int, ...] | None = None
    truncates_timestamps: bool = False
    is_of_producer: bool = False

    def name_of(self, setting: str) -> str:
        """The option's name, for errors: `schema` is valueSchema of the sink, and value.schema of KafkaProducer."""
        if self.is_of_producer:
            return f"{self.part}.{'serializer' if setting == 'format' else setting}"
        return f"{self.part}{setting.capitalize()}"


def part_options(options: FormatOptions, registry: RegistryConfig | None, part: str) -> PartOptions | None:
    """The options of `part`, "key" or "value"; None if it is written as it is."""
    if getattr(options, f"{part}_format") == BINARY:
        return None
    schema = getattr(options, f"{part}_schema")
    if schema is None and registry is not None and registry.use_latest_version:
        schema = SchemaReference(LATEST)
    names = ("subject", "record_name", "record_namespace", "message")
    settings = {name: getattr(options, f"{part}_{name}") for name in names}
    format_name = getattr(options, f"{part}_format")
    return PartOptions(part, format_name, schema, truncates_timestamps=options.truncate_timestamps, **settings)


class SchemaUse(NamedTuple):
    """A schema that rows were written with, for a CommitSummary and for errors.

    Args:
        part: "key" or "value".
        subject: empty if options name the schema by its id, and no subject.
        id: in the registry.
        version: of the subject; None if the registry did not tell it.
    """

    part: str
    subject: str
    id: int
    version: int | None

    def __str__(self) -> str:
        return schema_label(self.subject, self.id, self.version)


def schema_label(subject: str | None, schema_id: int, version: int | None) -> str:
    """What errors, logs and reports call a registered schema."""
    if not subject:
        return f"schema {schema_id}"
    return f"{subject} id {schema_id}" if version is None else f"{subject} version {version} (id {schema_id})"


def all_uses(uses: Iterable[SchemaUse]) -> tuple[SchemaUse, ...]:
    """Each use once, in order of part, subject, id and version."""
    return tuple(sorted(set(uses), key=lambda use: (use.part, use.subject, use.id, use.version or 0)))


# CONFLICTS

_URL_KEY, _TOPIC_NAME = "schema.registry.url", "TopicNameStrategy"  # registry_config.py is imported only if its options are used
_FORMAT_SETTINGS = ("Schema", "Subject", "RecordName", "RecordNamespace", "Message")


def format_conflicts(values: Mapping[str, Any], own_keys: Container[str], registry: RegistryConfig | None) -> Iterator[str]:
    """How the options of formats and of the registry contradict each other, in sentences.

    Args:
        values: the checked options, by attribute.
        own_keys: the keys of the options that the user has set.
        registry: checked too; None if no option names one.
    """
    if any(f"{part}Format" in own_keys and f"{part}_format" not in values for part in PARTS_WITH_FORMAT):
        return  # an invalid format is a problem of its own
    format_of_part = {part: values.get(f"{part}_format", BINARY) for part in (VALUE_PART, KEY_PART)}
    for part, format_name in format_of_part.items():
        yield from _part_conflicts(part, format_name, values, own_keys, registry)
    formats = [f"{part}Format={name}" for part, name in format_of_part.items() if name != BINARY]
    if formats and (registry is None or not (registry.is_set or _URL_KEY in registry.given_keys)):
        yield f"{' and '.join(formats)} {'needs' if len(formats) == 1 else 'need'} {_URL_KEY}, the address of the schema registry"
    if not formats and registry is not None and registry.given_keys:
        yield f"{min(registry.given_keys)} has no effect: set valueFormat={AVRO}, keyFormat={AVRO}, or {FRAMED}"
    if AVRO not in format_of_part.values() and "truncateTimestamps" in own_keys:
        yield f"truncateTimestamps has no effect: set valueFormat={AVRO} or keyFormat={AVRO}"


def _part_conflicts(
    part: str, format_name: str, values: Mapping[str, Any], own_keys: Container[str], registry: RegistryConfig | None
) -> Iterator[str]:
    part_keys = {name: part + name for name in _FORMAT_SETTINGS if part + name in own_keys}
    schema: SchemaReference | None = values.get(f"{part}_schema")
    if format_name == BINARY:
        if part_keys:
            keys = " and ".join(part_keys.values())
            yield f"{keys} {'has' if len(part_keys) == 1 else 'have'} no effect: set {part}Format={AVRO} or {part}Format={FRAMED}"
        return
    uses_latest = registry is not None and registry.use_latest_version
    if schema is not None and schema.kind != LATEST and uses_latest:
        yield f"{part}Schema={schema} contradicts use.latest.version=true: remove one of the two"
    needs_name = registry is not None and getattr(registry, f"{part}_subject_name_strategy") != _TOPIC_NAME
    if format_name == FRAMED:
        yield from _framed_conflicts(part, part_keys, schema, uses_latest, needs_name)
    else:
        yield from _avro_conflicts(part, part_keys, schema, needs_name)


def _framed_conflicts(
    part: str, part_keys: Mapping[str, str], schema: SchemaReference | None, uses_latest: bool, needs_name: bool
) -> Iterator[str]:
    """`needs_name`: whether the strategy needs the record's name for the subject."""
    name_keys = [part_keys[name] for name in ("RecordName", "RecordNamespace") if name in part_keys]
    if name_keys:
        yield f"{' and '.join(name_keys)} cannot be used with {part}Format={FRAMED}, which derives no schema"
    if "Schema" not in part_keys and not uses_latest:
        yield f"{part}Format={FRAMED} needs {part}Schema: {LATEST}, a version such as 3, or an id such as {_ID_PREFIX}42"
    if schema is not None and schema.kind == TEXT:
        yield (
            f"{part}Schema is the text of a schema, which {part}Format={FRAMED} would have to register: name a registered one by"
            f" {LATEST}, a version such as 3, or an id such as {_ID_PREFIX}42"
        )
    needs_subject = schema is None or schema.kind in (LATEST, VERSION)
    if needs_subject and "Subject" not in part_keys and needs_name:
        yield f"{part}Format={FRAMED} knows no record's name, which {part}.subject.name.strategy needs: set {part}Subject"


def _avro_conflicts(part: str, part_keys: Mapping[str, str], schema: SchemaReference | None, needs_name: bool) -> Iterator[str]:
    if "Message" in part_keys:
        yield f"{part_keys['Message']} is for {part}Format={FRAMED} with a Protobuf schema"
    name_keys = [part_keys[name] for name in ("RecordName", "RecordNamespace") if name in part_keys]
    if name_keys and schema is not None and (schema.kind in (ID, TEXT) or not needs_name):
        yield f"{' and '.join(name_keys)} cannot be used with {part}Schema, which has a name: remove one of the two"
