"""Avro's schema language: its text parsed into plain, immutable types. Knows neither Arrow nor Kafka.

Follows the specification of Avro 1.12. A name is replaced by its type, so that a schema is a tree: a type that contains itself is
refused, as no column can have such a type. Registries hold names that the specification forbids, so names are checked only if
the caller asks for it; letters beyond ASCII are always allowed, as in Java's parser. Unknown attributes are ignored, and so are
logical types that are unknown or do not fit their type.
Laws: any text gives a schema of limited size, or a SchemaError that says where and why. Time and memory grow with the length of
the text, so nothing is copied that a type inherits: neither its namespace nor a type that is used again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from spark_kafka_sink.config.format_options import parse_schema_json
from spark_kafka_sink.errors import SchemaError, printable, printable_list

MAX_TEXT_CHARACTERS = 4_000_000
MAX_DEPTH = 64  # of records, arrays and maps within each other; the encoder calls itself once per level
MAX_TYPES = 20_000  # with each named type counted wherever it stands
MAX_FIXED_BYTES = 2**31 - 1

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_MAX_SHOWN_STEPS = 8  # of the path to a problem, counted from its end
_NAME = re.compile(r"[^\W\d]\w*")
_ANY_NAME = re.compile(r"[^\ud800-\udfff]+", re.DOTALL)
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")

# TYPES


class AvroName(NamedTuple):
    """The full name of a type. The types of a namespace share its text, which may be long."""

    namespace: str  # empty: none
    simple_name: str

    @classmethod
    def of(cls, full_name: str) -> AvroName:
        namespace, _, simple_name = full_name.rpartition(".")
        return cls(namespace, simple_name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.simple_name}" if self.namespace else self.simple_name


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A logical type, such as date or decimal. `precision` and `scale` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True, slots=True)
class AvroPrimitive:
    """A type without parts, such as long or string, perhaps with a logical type."""

    type: str  # one of PRIMITIVES
    logical: LogicalType | None = None

    def __str__(self) -> str:
        return self.type if self.logical is None else f"{self.logical} ({self.type})"


@dataclass(frozen=True, slots=True)
class AvroFixed:
    """The type fixed: `size` bytes in each value."""

    name: AvroName
    size: int
    logical: LogicalType | None = None

    def __str__(self) -> str:
        inner = f"fixed {printable(self.name)} of {self.size} bytes"
        return inner if self.logical is None else f"{self.logical} ({inner})"


@dataclass(frozen=True, slots=True)
class AvroEnum:
    """The type enum: one of some symbols."""

    name: AvroName
    symbols: tuple[str, ...]
    default: str | None = None

    def __str__(self) -> str:
        return f"enum {printable(self.name)}"


@dataclass(frozen=True, slots=True)
class AvroArray:
    """The type array: any number of items."""

    items: AvroSchema

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True, slots=True)
class AvroMap:
    """The type map: any number of values, with strings as keys."""

    values: AvroSchema

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True)
class AvroUnion:
    """A union: a value of one of several types."""

    branches: tuple[AvroSchema, ...]

    def __str__(self) -> str:
        return f"union of {printable_list(self.branches)}"


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. `default` is JSON text; None if there is no default."""

    name: str
    schema: AvroSchema
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroRecord:
    """The type record: named fields."""

    name: AvroName
    fields: tuple[AvroField, ...]

    def __str__(self) -> str:
        return f"record {printable(self.name)}"


AvroSchema: TypeAlias = AvroPrimitive | AvroFixed | AvroEnum | AvroArray | AvroMap | AvroUnion | AvroRecord
_NamedType: TypeAlias = AvroFixed | AvroEnum | AvroRecord

NULL = AvroPrimitive("null")

# PARSING

_NO_REFERENCES: Mapping[str, str] = {}


def parse_schema(text: str, references: Mapping[str, str] = _NO_REFERENCES, *, checks_names: bool = False) -> AvroSchema:
    """The schema that `text` declares, in JSON. Never blocks.

    Args:
        text: for example '{"type": "record", …}' or '"string"'.
        references: the texts of further schemas, by the full name of a type that each declares.
        checks_names: True for a schema that is to be registered: a name with other characters than Avro allows is an error.

    Raises:
        SchemaError: the text is no Avro schema, a name is not declared, a type contains itself, or a limit above is exceeded.
    """
    return _Parser(references, checks_names).parse(text, "the schema")


class _DeclaredType(NamedTuple):
    """A named type, and what it adds to the schema wherever it stands."""

    type: _NamedType
    type_count: int  # of all types in it
    height: int  # how deep records, arrays and maps are nested in it


class _Parser:
    """Parses one schema with its references. `_path` is where the parser stands, for errors."""

    def __init__(self, references: Mapping[str, str], checks_names: bool) -> None:
        self._references = {AvroName.of(name): text for name, text in references.items()}  # those that are not parsed yet
        self._checks_names = checks_names
        self._types: dict[AvroName, _DeclaredType] = {}
        self._namespaces: dict[str, str] = {"": ""}  # equal ones become one object, so that names compare fast
        self._open_records: set[AvroName] = set()  # names of the records that are being parsed
        self._path: list[str] = []
        self._depth = 0  # of the records, arrays and maps around
        self._max_depth = 0  # that was reached so far
        self._type_count = 0

    def parse(self, text: str, step: str) -> AvroSchema:
        """Parse one text. `step`: what errors call it, as the first step of the path."""
        try:
            with self._at(step):
                return self._parse_type(self._parse_json(text), "")
        except RecursionError:
            self._fail("its JSON is nested too deeply")

    def _parse_json(self, text: str) -> Any:
        if len(text) > MAX_TEXT_CHARACTERS:
            self._fail(f"it has {len(text):,} characters; the limit is {MAX_TEXT_CHARACTERS:,}")
        try:
            return parse_schema_json(text)
        except ValueError as error:
            self._fail(f"it is not JSON: {printable(error)}; it begins with {printable(text[:60])!r}")

    def _parse_type(self, declaration: Any, namespace: str) -> AvroSchema:
        self._count_types(1)
        if isinstance(declaration, str):
            return AvroPrimitive(declaration) if declaration in PRIMITIVES else self._find_type(declaration, namespace)
        if isinstance(declaration, list):
            return self._parse_union(declaration, namespace)
        if not isinstance(declaration, dict):
            self._fail(f"a type is a name, a list or an object, not {_value_in_words(declaration)}")
        return self._parse_object(declaration, namespace)

    def _parse_object(self, declaration: dict[str, Any], namespace: str) -> AvroSchema:
        match declaration.get("type"):
            case "record" | "error":
                return self._parse_record(declaration, namespace)
            case "enum":
                return self._parse_enum(declaration, namespace)
            case "fixed":
                return self._parse_fixed(declaration, namespace)
            case "array":
                with self._deeper("items"):
                    return AvroArray(self._parse_type(self._require(declaration, "items"), namespace))
            case "map":
                with self._deeper("values"):
                    return AvroMap(self._parse_type(self._require(declaration, "values"), namespace))
            case str(name) if name in PRIMITIVES:
                return AvroPrimitive(name, _parse_logical_type(declaration, name))
            case str(name):
                return self._find_type(name, namespace)
            case other:
                self._fail(f'"type" must be a name here, not {_value_in_words(other)}')

    def _parse_union(self, declaration: list[Any], namespace: str) -> AvroUnion:
        branches = []
        for number, branch in enumerate(declaration):
            with self._at(f"branch {number}"):
                if isinstance(branch, list):
                    self._fail("a union may not contain a union")
                branches.append(self._parse_type(branch, namespace))
        if not branches:
            self._fail("the union has no branch")
        self._require_distinct([_kind_in_union(branch) for branch in branches], "branches of type")
        return AvroUnion(tuple(branches))

    # NAMED TYPES

    def _parse_record(self, declaration: dict[str, Any], namespace: str) -> _NamedType:
        name = self._parse_declared_name(declaration, namespace)
        count_before_record, max_depth_before_record = self._type_count, self._max_depth
        self._max_depth = self._depth
        self._open_records.add(name)
        fields = self._parse_fields(declaration, name.namespace)
        self._open_records.remove(name)
        height, self._max_depth = self._max_depth - self._depth, max(self._max_depth, max_depth_before_record)
        return self._add_type(AvroRecord(name, fields), 1 + self._type_count - count_before_record, height)

    def _parse_fields(self, declaration: dict[str, Any], namespace: str) -> tuple[AvroField, ...]:
        declarations = self._require(declaration, "fields")
        if not isinstance(declarations, list):
            self._fail(f'"fields" must be a list, not {_value_in_words(declarations)}')
        fields = tuple(self._parse_field(each, number, namespace) for number, each in enumerate(declarations))
        self._require_distinct([field.name for field in fields], "fields")
        return fields

    def _parse_field(self, declaration: Any, number: int, namespace: str) -> AvroField:
        if not isinstance(declaration, dict):
            self._fail(f"field {number} must be an object, not {_value_in_words(declaration)}")
        name = self._require_simple_name(declaration.get("name"), f"the name of field {number}")
        with self._deeper(f"field {printable(name)}"):
            schema = self._parse_type(self._require(declaration, "type"), namespace)
        default = json.dumps(_default_value(declaration["default"], schema)) if "default" in declaration else None
        return AvroField(name, schema, default, _aliases(declaration))

    def _parse_enum(self, declaration: dict[str, Any], namespace: str) -> _NamedType:
        name = self._parse_declared_name(declaration, namespace)
        symbols = self._require(declaration, "symbols")
        if not isinstance(symbols, list) or not symbols:
            self._fail(f'"symbols" must be a list of names, not {_value_in_words(symbols)}')
        names = tuple(self._require_simple_name(symbol, "a symbol") for symbol in symbols)
        self._require_distinct(names, "symbols")
        default = declaration.get("default")
        if default is not None and default not in names:
            self._fail(f"the default of enum {printable(name)} is none of its symbols: {_value_in_words(default)}")
        return self._add_type(AvroEnum(name, names, default))

    def _parse_fixed(self, declaration: dict[str, Any], namespace: str) -> _NamedType:
        name = self._parse_declared_name(declaration, namespace)
        size = self._require(declaration, "size")
        if not _is_int(size) or not 0 <= size <= MAX_FIXED_BYTES:
            self._fail(f'the "size" of fixed {printable(name)} must be a number of bytes, not {_value_in_words(size)}')
        return self._add_type(AvroFixed(name, size, _parse_logical_type(declaration, "fixed", size)))

    def _add_type(self, named_type: _NamedType, type_count: int = 1, height: int = 0) -> _NamedType:
        self._types[named_type.name] = _DeclaredType(named_type, type_count, height)
        return named_type

    # NAMES

    def _find_type(self, name: str, namespace: str) -> AvroSchema:
        """The type with this name: looked up in the namespace first, then without a namespace."""
        candidates = [AvroName.of(name)] if "." in name else [AvroName(namespace, name), AvroName("", name)]
        for full_name in candidates:
            if full_name in self._open_records:
                self._fail(f"record {printable(full_name)} contains itself, which a column cannot")
            if full_name in self._types or self._parse_references_until(full_name):
                return self._use(self._types[full_name])
        self._fail(f"type {printable(candidates[0])} is not declared before it is used")

    def _use(self, declared: _DeclaredType) -> _NamedType:
        """Count a type that is used again as if it were declared here."""
        self._count_types(declared.type_count - 1)
        self._require_depth(self._depth + declared.height)
        return declared.type

    def _parse_references_until(self, full_name: AvroName) -> bool:
        """Parse references, each once, until one declares the name. Returns whether one does."""
        while self._references and full_name not in self._types:
            key = full_name if full_name in self._references else next(iter(self._references))
            counts = self._max_depth, self._type_count
            self.parse(self._references.pop(key), f"reference {printable(key)}")
            self._max_depth, self._type_count = counts  # its types count where they are used
        return full_name in self._types

    def _parse_declared_name(self, declaration: dict[str, Any], enclosing_namespace: str) -> AvroName:
        """The full name of a type. Names inside it are in the same namespace."""
        name, namespace = self._require(declaration, "name"), declaration.get("namespace")
        if namespace is not None and not isinstance(namespace, str):
            self._fail(f'"namespace" must be a string, not {_value_in_words(namespace)}')
        if isinstance(name, str) and "." in name:
            namespace, name = AvroName.of(name)
        namespace = enclosing_namespace if namespace is None else self._checked_namespace(namespace)
        simple_name = self._require_simple_name(name, "the name of a type")
        if simple_name in PRIMITIVES and not namespace:  # as in Java; Spark gives such names to records, but in a namespace
            self._fail(f"{simple_name} is a type of Avro, and cannot be declared without a namespace")
        full_name = AvroName(namespace, simple_name)
        if full_name in self._types or full_name in self._open_records:
            self._fail(f"type {printable(full_name)} is declared more than once")
        return full_name

    def _checked_namespace(self, namespace: str) -> str:
        if namespace not in self._namespaces:
            for part in namespace.split(".") if self._checks_names else [namespace]:
                self._require_simple_name(part, f"namespace {printable(namespace)}")
            self._namespaces[namespace] = namespace
        return self._namespaces[namespace]

    def _require_simple_name(self, name: Any, subject: str) -> str:
        if not isinstance(name, str) or not (_NAME if self._checks_names else _ANY_NAME).fullmatch(name):
            rule = "consist of letters, digits and _, and not begin with a digit" if self._checks_names else "be a text"
            self._fail(f"{subject} must {rule}: {_value_in_words(name)}")
        return name

    # LIMITS AND ERRORS

    def _require_distinct(self, names: Sequence[str | AvroName], noun: str) -> None:
        distinct_names: set[str | AvroName] = set()
        for name in names:
            if name in distinct_names:
                self._fail(f"there are several {noun} {printable(name)}")
            distinct_names.add(name)

    def _require(self, declaration: dict[str, Any], key: str) -> Any:
        if key not in declaration:
            self._fail(f'"{key}" is missing')
        return declaration[key]

    def _count_types(self, types: int) -> None:
        self._type_count += types
        if self._type_count > MAX_TYPES:
            self._fail(f"the schema has more than {MAX_TYPES:,} types, with each named type counted wherever it stands")

    @contextmanager
    def _at(self, step: str) -> Iterator[None]:
        self._path.append(step)
        yield
        self._path.pop()

    @contextmanager
    def _deeper(self, step: str) -> Iterator[None]:
        with self._at(step):
            self._depth += 1
            self._require_depth(self._depth)
            yield
            self._depth -= 1

    def _require_depth(self, depth: int) -> None:
        self._max_depth = max(self._max_depth, depth)
        if depth > MAX_DEPTH:
            self._fail(f"records, arrays and maps are nested more than {MAX_DEPTH} deep, with each named type wherever it stands")

    def _fail(self, problem: str) -> NoReturn:
        steps = self._path if len(self._path) <= _MAX_SHOWN_STEPS else [self._path[0], "…", *self._path[-_MAX_SHOWN_STEPS:]]
        raise SchemaError(f"{', '.join(steps)}: {problem}")


def _kind_in_union(branch: AvroSchema) -> str | AvroName:
    """What no two branches of a union may have in common."""
    match branch:
        case AvroPrimitive():
            return branch.type
        case AvroRecord() | AvroEnum() | AvroFixed():
            return branch.name
        case _:
            return str(branch)  # array or map


def _default_value(value: Any, schema: AvroSchema) -> Any:
    """The default of a field. For a float or double, it may be a number in quotes, as NaN and Infinity have to be."""
    is_float = isinstance(schema, AvroPrimitive) and schema.type in ("float", "double")
    return float(value) if is_float and isinstance(value, str) and _FLOAT.fullmatch(value) else value


def _aliases(declaration: dict[str, Any]) -> tuple[str, ...]:
    """The aliases of a field. Malformed ones are ignored: only readers and a hint use them."""
    names = declaration.get("aliases")
    return tuple(alias for alias in names if isinstance(alias, str)) if isinstance(names, list) else ()


def _value_in_words(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            return printable(json.dumps(value, ensure_ascii=False), 60)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# LOGICAL TYPES

_LOGICAL_TYPES_OF = {
    "int": {"date", "time-millis"},
    "long": {
        *("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"),
        *("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
    },
    "string": {"uuid"},
    "bytes": {"decimal"},
    "fixed": {"decimal", "uuid"},
}
_UUID_BYTES = 16


def _parse_logical_type(declaration: dict[str, Any], kind: str, size: int | None = None) -> LogicalType | None:
    """The logical type; None if there is none, or it is unknown or does not fit this type. `size`: of a fixed, else None."""
    name = declaration.get("logicalType")
    if not isinstance(name, str) or name not in _LOGICAL_TYPES_OF.get(kind, ()):
        return None
    if name == "uuid" and size not in (None, _UUID_BYTES):
        return None
    if name != "decimal":
        return LogicalType(name)
    precision: Any = declaration.get("precision")
    scale: Any = declaration.get("scale", 0)
    if not _is_int(precision) or not _is_int(scale) or not 0 <= scale <= precision or precision < 1:
        return None
    if size is not None and precision > decimal_digits_in(size):
        return None
    return LogicalType(name, precision, scale)


def decimal_digits_in(size: int) -> int:
    """How many decimal digits always fit into `size` bytes in two's complement; at most 602 are counted."""
    bits = 8 * size - 1
    return max(0, len(str(2 ** min(bits, 2_000) - 1)) - 1) if size else 0
