"""Messages declared once: a dataclass whose annotations are its wire format, compiled to an encoder and a decoder per version.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class InitProducerIdRequest(Request[InitProducerIdResponse]):  # the response says which API_KEY
        transactional_id: str | None                      # nullable string, compact where the version is flexible
        transaction_timeout_ms: Int32
        producer_id: Annotated[Int64, since(3)] = -1      # absent before version 3

Fields stand in wire order. `str`, `bool`, `bytes` and `UUID` are Kafka's types, `tuple[X, ...]` is an array, `X | None` is
nullable, another Message is a structure, Records is opaque bytes. `since`, `until` and `between` bound the versions (inclusive),
`tagged` moves a field to the tag section. A field that a version lacks reads as its default. Encoding another value raises
UnsupportedVersionError unless the field is IGNORABLE: such a field is left out, as in Kafka's message schemas. Unknown tags are
skipped.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from spark_kafka_sink.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer

Encode = Callable[[Writer, Any], None]
Decode = Callable[[Reader], Any]
T = TypeVar("T")


class FieldCodec(NamedTuple):
    """How values of one type are encoded and decoded."""

    encode: Encode
    decode: Decode
    min_bytes: int = 1  # the size of the smallest value


class FieldType(NamedTuple):
    """One primitive type: its encodings in old and in flexible versions."""

    plain: FieldCodec
    compact: FieldCodec


def _fixed_size_type(encode: Encode, decode: Decode, size: int) -> FieldType:
    return FieldType(FieldCodec(encode, decode, size), FieldCodec(encode, decode, size))


Int8 = Annotated[int, _fixed_size_type(Writer.int8, Reader.int8, 1)]
Int16 = Annotated[int, _fixed_size_type(Writer.int16, Reader.int16, 2)]
Int32 = Annotated[int, _fixed_size_type(Writer.int32, Reader.int32, 4)]
Int64 = Annotated[int, _fixed_size_type(Writer.int64, Reader.int64, 8)]
Records = Annotated[
    Sequence[Buffer],
    FieldType(FieldCodec(Writer.records, Reader.records, 4), FieldCodec(Writer.compact_records, Reader.compact_records)),
]

_FIELD_TYPES: dict[tuple[type, bool], FieldType] = {  # (python type, nullable)
    (bool, False): _fixed_size_type(Writer.boolean, Reader.boolean, 1),
    (UUID, False): _fixed_size_type(Writer.uuid, Reader.uuid, 16),
    (str, False): FieldType(
        FieldCodec(Writer.string, Reader.string, 2), FieldCodec(Writer.compact_string, Reader.compact_string)
    ),
    (str, True): FieldType(
        FieldCodec(Writer.nullable_string, Reader.nullable_string, 2),
        FieldCodec(Writer.compact_nullable_string, Reader.compact_nullable_string),
    ),
    (bytes, False): FieldType(FieldCodec(Writer.bytes, Reader.bytes, 4), FieldCodec(Writer.compact_bytes, Reader.compact_bytes)),
    (bytes, True): FieldType(
        FieldCodec(Writer.nullable_bytes, Reader.nullable_bytes, 4),
        FieldCodec(Writer.compact_nullable_bytes, Reader.compact_nullable_bytes),
    ),
}


@dataclasses.dataclass(frozen=True)
class _Versions:
    """The versions of a message that have a field, and the field's tag."""

    first: int = 0
    last: int = 0x7FFF
    tag: int | None = None


def since(version: int) -> _Versions:
    """The field is in `version` and later ones."""
    return _Versions(first=version)


def until(version: int) -> _Versions:
    """The field is in `version` and earlier ones."""
    return _Versions(last=version)


def between(first: int, last: int) -> _Versions:
    """The field is in the versions from `first` to `last`."""
    return _Versions(first=first, last=last)


def tagged(tag: int, *, since: int) -> _Versions:
    """An optional field in the tag section; written only when it differs from its default."""
    return _Versions(first=since, tag=tag)


IGNORABLE = "ignorable"


class Message:
    """Base of requests, responses and the structures in them. Responses set API_KEY."""

    __slots__ = ()
    API_KEY: ClassVar[ApiKey]

    def encode(self, version: int) -> list[Buffer]:
        """The body of this message, without its header.

        Raises:
            UnsupportedVersionError: this client does not support the version, or it cannot carry a field that is set.
            ProtocolError: a value does not fit its field.
        """
        writer = Writer()
        try:
            codec(type(self), version).encode(writer, self)
        except struct.error as error:
            raise ProtocolError(f"{type(self).__name__} v{version}: a number does not fit its field: {error}") from error
        return writer.buffers()

    @classmethod
    def decode(cls: type[M], version: int, data: Buffer) -> M:
        """The message in `data`. Raises ProtocolError if `data` is anything else, or has bytes after the message."""
        reader = Reader(data)
        message = cls.read(version, reader)
        with _name_message_in_errors(cls, version):
            reader.expect_end()
        return message

    @classmethod
    def read(cls: type[M], version: int, reader: Reader) -> M:
        """The message at the position of `reader`. Raises ProtocolError. Bytes after its last field stay unread, as in Java: some
        brokers send more than the version has."""
        with _name_message_in_errors(cls, version):
            message: M = codec(cls, version).decode(reader)
        return message


@contextmanager
def _name_message_in_errors(cls: type[Message], version: int) -> Iterator[None]:
    """Add the message's name to a ProtocolError."""
    try:
        yield
    except UnsupportedVersionError:
        raise
    except ProtocolError as error:
        raise type(error)(f"{cls.__name__} v{version} cannot be read: {error.message}") from error


M = TypeVar("M", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Request(Message, Generic[ResponseT]):
    """A message that a broker answers with a RESPONSE, the type argument. Both have the same API_KEY and version."""

    __slots__ = ()
    RESPONSE: ClassVar[type[Message]]

    def __init_subclass__(cls) -> None:
        (cls.RESPONSE,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        cls.API_KEY = cls.RESPONSE.API_KEY


_codecs: dict[tuple[type[Message], int], FieldCodec] = {}  # filled on first use; a race compiles twice and changes nothing


def codec(cls: type[Message], version: int) -> FieldCodec:
    """The compiled encoder and decoder of a request or response in one version."""
    compiled = _codecs.get((cls, version))
    if compiled is None:
        compiled = _codecs[cls, version] = _compile(cls, version)
    return compiled


def _compile(cls: type[Message], version: int) -> FieldCodec:
    api = API_TABLE[cls.API_KEY]
    if not api.min_version <= version <= api.max_version:
        raise UnsupportedVersionError(
            f"{cls.__name__} v{version}: this client supports versions {api.min_version} to {api.max_version} of {api.key.name}"
        )
    return _structure_codec(cls, version, is_flexible=version >= api.flexible_from)


class _Field(NamedTuple):
    """A field as its message declares it."""

    name: str
    default: Any  # dataclasses.MISSING where the field is required
    hint: Any
    versions: _Versions
    is_ignorable: bool

    def is_in(self, version: int) -> bool:
        return self.versions.first <= version <= self.versions.last


def _fields(cls: type[Message]) -> list[_Field]:
    hints = get_type_hints(cls, include_extras=True)
    fields = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hints[field.name]
        marks = getattr(hint, "__metadata__", ())
        versions = next((mark for mark in marks if isinstance(mark, _Versions)), _Versions())
        fields.append(_Field(field.name, field.default, hint, versions, IGNORABLE in marks))
    return fields


def _structure_codec(cls: type[Message], version: int, is_flexible: bool) -> FieldCodec:
    fields = _fields(cls)
    present_fields = [field for field in fields if field.is_in(version)]
    absent_fields = [field for field in fields if not field.is_in(version) and not field.is_ignorable]
    codecs = {field.name: _type_codec(field.hint, version, is_flexible) for field in present_fields}
    names = [field.name for field in present_fields if field.versions.tag is None]
    tagged_fields = {field.versions.tag: field for field in present_fields if field.versions.tag is not None}

    encoders: list[tuple[Callable[[Any], Any], Encode]] = [(attrgetter(name), codecs[name].encode) for name in names]
    if absent_fields:
        encoders.append((lambda value: value, _set_fields_refuser(cls, version, absent_fields)))
    if is_flexible:
        tags = [(tag, field, codecs[field.name].encode) for tag, field in sorted(tagged_fields.items())]
        encoders.append((lambda value: value, _tag_encoder(tags)))

    def encode(writer: Writer, value: Any) -> None:
        for get_value, encode_field in encoders:
            encode_field(writer, get_value(value))

    decoders = [(name, codecs[name].decode) for name in names]

    def decode(reader: Reader) -> Any:
        values = {name: decode_field(reader) for name, decode_field in decoders}
        if is_flexible:
            for tag, data in reader.tagged_fields(tagged_fields).items():
                name = tagged_fields[tag].name
                values[name] = reader.read_tag(data, codecs[name].decode)
        return cls(**values)

    tag_count_bytes = 1 if is_flexible else 0
    return FieldCodec(encode, decode, sum(codecs[name].min_bytes for name in names) + tag_count_bytes)


def _set_fields_refuser(cls: type[Message], version: int, fields: list[_Field]) -> Encode:
    checks = [(field.name, attrgetter(field.name), field.default) for field in fields]

    def refuse(_: Writer, value: Any) -> None:
        for name, get_value, default in checks:
            if get_value(value) != default:
                raise UnsupportedVersionError(f"{cls.__name__} v{version} cannot carry {name}={get_value(value)!r}")

    return refuse


def _tag_encoder(tags: list[tuple[int, _Field, Encode]]) -> Encode:
    if not tags:
        return _encode_no_tags

    def encode_tags(writer: Writer, value: Any) -> None:
        encoded_fields = []
        for tag, field, encode_field in tags:
            content = getattr(value, field.name)
            if content != field.default:
                value_writer = Writer()
                encode_field(value_writer, content)
                encoded_fields.append((tag, value_writer.buffers()))
        writer.tagged_fields(encoded_fields)

    return encode_tags


def _encode_no_tags(writer: Writer, _: Any) -> None:
    writer.boolean(False)  # a count of zero


def _type_codec(hint: Any, version: int, is_flexible: bool) -> FieldCodec:
    field_type = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, FieldType)), None)
    if field_type is None:
        hint, is_nullable = _without_none(hint.__origin__ if get_origin(hint) is Annotated else hint)
        if get_origin(hint) is tuple:
            return _array_codec(_type_codec(get_args(hint)[0], version, is_flexible), is_flexible, is_nullable)
        if issubclass(hint, Message):
            structure = _structure_codec(hint, version, is_flexible)
            return _nullable_codec(structure) if is_nullable else structure
        field_type = _FIELD_TYPES[hint, is_nullable]
    return field_type.compact if is_flexible else field_type.plain


def _nullable_codec(structure: FieldCodec) -> FieldCodec:
    """One byte tells whether the structure follows (1) or is null (-1), in plain and in flexible versions."""
    encode_structure, decode_structure = structure.encode, structure.decode

    def encode(writer: Writer, value: Any) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            encode_structure(writer, value)

    def decode(reader: Reader) -> Any:
        return None if reader.int8() < 0 else decode_structure(reader)

    return FieldCodec(encode, decode)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    (inner_hint,) = (part for part in get_args(hint) if part is not NoneType)
    return inner_hint, True


def _array_codec(element: FieldCodec, is_flexible: bool, is_nullable: bool) -> FieldCodec:
    write_length = Writer.compact_array_length if is_flexible else Writer.array_length
    read_length = Reader.compact_array_length if is_flexible else Reader.array_length
    encode_element, decode_element, min_bytes = element

    def encode(writer: Writer, value: Any) -> None:
        if value is None and is_nullable:
            write_length(writer, -1)
            return
        write_length(writer, len(value))
        for item in value:
            encode_element(writer, item)

    def decode(reader: Reader) -> Any:
        length = read_length(reader)
        if length == -1 and is_nullable:
            return None
        return reader.array(length, decode_element, min_bytes)

    return FieldCodec(encode, decode, 1 if is_flexible else 4)
