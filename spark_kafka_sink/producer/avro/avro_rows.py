"""Python objects that become Avro: the Arrow type of a schema, and what is taken of each object when it is sent.

`send` gathers objects, and a bundle of them becomes one Arrow array, which AvroEncoder encodes. Until then the caller may change
its dicts and lists, so copies are gathered. With each copy comes a bound of its encoded size, for which buffer memory is charged.
Laws: a default is written only if a dict lacks the field; a field that the schema does not have is an error. A value is changed
only as its schema says: a float of 32 bits rounds, a datetime without a time zone is UTC. A union of several types has no Arrow
type, so `send` refuses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from math import isinf
from operator import index
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import SchemaError, printable, printable_list
from spark_kafka_sink.producer.serializers import copy_bytes
from spark_kafka_sink.schemas.avro.defaults import DefaultEncoder, unwritable_default
from spark_kafka_sink.schemas.avro.encoding import path_below
from spark_kafka_sink.schemas.avro_schema import (
    NULL,
    AvroArray,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroSchema,
    AvroUnion,
    LogicalType,
)

MAX_VARINT_BYTES = 10
MAX_BRANCH_BYTES = 5  # the number of a branch of a union
_BLOCK_OVERHEAD_BYTES = 2 * MAX_VARINT_BYTES  # of an array or map: the number of its entries, and its end mark

SizedCopy: TypeAlias = tuple[Any, int]  # a copy that may be kept, and a bound of its bytes as Avro
Take: TypeAlias = Callable[[Any], SizedCopy]
Check: TypeAlias = Callable[[Any], None]  # raises MisfitError for a value that Arrow would change; accepts each int


class MisfitError(TypeError):
    """An object does not have the form of its schema. The text names fields and types, and quotes no values."""


class PythonRows(NamedTuple):
    """How objects of one schema are taken and become an Arrow array.

    `take` raises MisfitError for an object that cannot have this schema, and anything for one whose own code fails. Some wrong
    numbers and texts fail only in pa.array.
    """

    type: pa.DataType  # of the array
    take: Take


class _Settings(NamedTuple):
    """What is the same for a whole schema."""

    defaults: DefaultEncoder
    truncates: bool  # times that are finer than the schema's unit are cut off; otherwise they are refused


def python_rows(schema: AvroSchema, path: str, *, truncates_timestamps: bool = False) -> PythonRows:
    """How objects of this schema are taken. `path`: where it stands, for errors. Raises SchemaError for a union of several types,
    a decimal of over 76 digits, or a default that cannot be written."""
    return _rows(schema, path, _Settings(DefaultEncoder(), truncates_timestamps))


class _PlainType(NamedTuple):
    """A type whose values need no copy and take at most `max_bytes` as Avro."""

    type: pa.DataType
    max_bytes: int
    check: Check | None = None


def _rows(schema: AvroSchema, path: str, settings: _Settings) -> PythonRows:
    match schema:
        case AvroRecord():
            return _record_rows(schema, path, settings)
        case AvroArray():
            return _array_rows(_rows(schema.items, f"{path}[*]", settings))
        case AvroMap():
            return _map_rows(_rows(schema.values, f"{path}[*]", settings))
        case AvroUnion():
            branch = _without_null(schema)
            if branch is schema:
                raise SchemaError(
                    f"{printable(path)} is a {schema} in the schema, and of an object it cannot be told which of them it is: send"
                    " it by send_columns or send_table, whose columns have a type"
                )
            return _nullable_rows(_rows(branch, path, settings))
    plain_type = _plain_type(schema, settings)
    if plain_type is not None:
        return PythonRows(plain_type.type, partial(_take_plain, plain_type))
    if isinstance(schema, AvroFixed):
        return PythonRows(pa.binary(), _take_octets)  # the encoder compares its size
    microsecond_type = _microsecond_type(schema, settings)
    if microsecond_type is not None:
        return PythonRows(microsecond_type.type, partial(_take_milliseconds, microsecond_type))
    return PythonRows(pa.binary() if getattr(schema, "type", "") == "bytes" else pa.string(), _take_text)


def _take_plain(plain_type: _PlainType, value: Any) -> SizedCopy:
    if plain_type.check is not None and value is not None:
        plain_type.check(value)
    return value, plain_type.max_bytes


def _take_milliseconds(microsecond_type: _PlainType, value: Any) -> SizedCopy:
    plain_value, size = _take_plain(microsecond_type, value)
    return index(value) * 1000 if hasattr(value, "__index__") else plain_value, size


def _take_octets(value: Any) -> SizedCopy:
    return _take_text(value.bytes if isinstance(value, UUID) else value)


def _take_text(value: Any) -> SizedCopy:
    if isinstance(value, str) and not value.isascii():
        return value, MAX_VARINT_BYTES + 4 * len(value)
    if isinstance(value, str | bytes):
        return value, MAX_VARINT_BYTES + len(value)
    if isinstance(value, UUID):
        return str(value), MAX_VARINT_BYTES + 36
    try:
        value_copy = copy_bytes(value)
    except TypeError:
        raise MisfitError(f"text or bytes are expected, not {type(value).__name__}") from None
    return value_copy, MAX_VARINT_BYTES + len(value_copy)


# WHAT ARROW WOULD CHANGE SILENTLY


def _check_whole(value: Any) -> None:
    """Refuse a fraction: Arrow would call __int__, which cuts it off. Arrow itself rejects objects without __int__."""
    _check_number(value)
    if not hasattr(value, "__int__"):
        return
    try:
        index(value)
    except TypeError:
        raise MisfitError(f"a whole number is expected, not {type(value).__name__}, whose fraction would be cut off") from None


def _check_number(value: Any) -> None:
    """Refuse a truth value, which Arrow takes for 0 or 1."""
    if isinstance(value, bool | np.bool_):
        raise MisfitError(f"a number is expected, not {type(value).__name__}")


def _check_double(value: Any) -> None:
    """Refuse a number of more digits, as numpy's longdouble may have."""
    _check_number(value)
    if isinstance(value, np.longdouble) and not (np.isnan(value) or np.longdouble(float(value)) == value):
        raise MisfitError(f"a number that a float of 64 bits can hold is expected, not this {type(value).__name__}")


def _check_float(value: Any) -> None:
    """Refuse a finite number that would become infinite. Rounding to 32 bits is what the schema says."""
    _check_double(value)
    if isinstance(value, float) and abs(value) >= _MIN_INFINITE_FLOAT and not isinf(value):
        raise MisfitError(f"a number that a float of 32 bits can hold is expected, at most {_MAX_FLOAT:.7g}")


_MAX_FLOAT = float(np.finfo(np.float32).max)
_MIN_INFINITE_FLOAT = 2.0**128 - 2.0**103  # this and larger numbers round to infinity


def _check_date(value: Any) -> None:
    if isinstance(value, datetime | np.datetime64):
        raise MisfitError(f"a date is expected, not {type(value).__name__}, whose time of day would be cut off")
    _check_instant(value)


def _check_instant(value: Any) -> None:
    if not isinstance(value, date | np.datetime64):
        _check_whole(value)


def _check_local(value: Any) -> None:
    """Refuse a time with a time zone: Arrow would convert it to UTC."""
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        raise MisfitError(
            f"the schema's time is local: a {type(value).__name__} without a time zone is expected, not one with {value.tzinfo}"
        )
    if not isinstance(value, date | time | np.datetime64):
        _check_whole(value)


def _check_time(value: Any) -> None:
    """Refuse moments: of numpy's, Arrow would take the number."""
    if isinstance(value, date | np.datetime64):
        raise MisfitError(f"a time of day is expected, not {type(value).__name__}")
    _check_local(value)


def _without_nanoseconds(check: Check) -> Check:
    """A check that also refuses the nanoseconds of a pandas.Timestamp, which Arrow cuts off."""

    def check_all(value: Any) -> None:
        check(value)
        if getattr(value, "nanosecond", 0) > 0:
            raise MisfitError(
                f"this {type(value).__name__} has nanoseconds, and the schema's unit is larger: round it, or set"
                " truncate.timestamps=true, which cuts them off"
            )

    return check_all


# WHAT IS WRONG


def reason_without_value(error: Exception) -> str:
    """What can be said of an error. Texts of other code may quote a value, which no log line contains."""
    if isinstance(error, MisfitError):
        return str(error)
    match = re.search(r".* with type ([\w.]+): tried to convert to (\w+)", str(error), re.DOTALL)  # the last: a value precedes it
    if isinstance(error, pa.ArrowException) and match:
        return f"{match[1]} cannot be converted to {match[2]}"
    if isinstance(error, pa.ArrowException | OverflowError):
        return f"it does not fit the schema ({type(error).__name__})"
    return f"the object's own code raises {type(error).__name__}"


def first_misfit(value: Any, data_type: pa.DataType, error: Exception, path: str = "") -> tuple[str, Exception]:
    """The place in an object that Arrow cannot convert, and Arrow's error there. `error`: the one for the whole object."""
    for part, part_type, part_path in _parts_of(value, data_type, path):
        try:
            pa.array([part], part_type)
        except Exception as part_error:  # noqa: BLE001 - code of the objects runs here
            return first_misfit(part, part_type, part_error, part_path)
    return path, error


def _parts_of(value: Any, data_type: pa.DataType, path: str) -> Iterator[tuple[Any, pa.DataType, str]]:
    """What `take` has copied: dicts for records, lists for arrays, lists of pairs for maps."""
    if value is None:
        return
    if pa.types.is_struct(data_type):
        yield from ((value.get(field.name), field.type, path_below(path, field.name)) for field in data_type)
    elif pa.types.is_list(data_type):
        yield from ((each, data_type.value_type, f"{path}[*]") for each in value)
    elif pa.types.is_map(data_type):
        for key, each in value:
            yield key, data_type.key_type, f"{path}.key"
            yield each, data_type.item_type, f"{path}[*]"


# NESTED OBJECTS


def _nullable_rows(rows: PythonRows) -> PythonRows:
    def take(value: Any) -> SizedCopy:
        if value is None:
            return None, MAX_BRANCH_BYTES
        value_copy, size = rows.take(value)
        return value_copy, size + MAX_BRANCH_BYTES

    return PythonRows(rows.type, take)


def _array_rows(items: PythonRows) -> PythonRows:
    def take(value: Any) -> SizedCopy:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            raise MisfitError(f"a list is expected, not {type(value).__name__}")
        pairs = [items.take(each) for each in value]
        return [each for each, _ in pairs], _BLOCK_OVERHEAD_BYTES + sum(size for _, size in pairs)

    return PythonRows(pa.list_(items.type), take)


def _map_rows(values: PythonRows) -> PythonRows:
    def take(value: Any) -> SizedCopy:
        if not isinstance(value, Mapping):
            raise MisfitError(f"a dict is expected, not {type(value).__name__}")
        keys = [_take_text(key) for key in value]
        pairs = [values.take(each) for each in value.values()]
        size = _BLOCK_OVERHEAD_BYTES + sum(size for _, size in keys) + sum(size for _, size in pairs)
        return [(key, each) for (key, _), (each, _) in zip(keys, pairs, strict=True)], size

    return PythonRows(pa.map_(pa.string(), values.type), take)


def _record_rows(schema: AvroRecord, path: str, settings: _Settings) -> PythonRows:
    fields = {field.name: _rows(field.schema, path_below(path, field.name), settings) for field in schema.fields}
    defaults = {
        field.name: _checked_default(field, fields[field.name], path_below(path, field.name), settings)
        for field in schema.fields
        if field.default is not None
    }
    names = frozenset(fields)
    fixed_bytes, checks, takes = _split(schema, fields, settings)

    def take(value: Any) -> SizedCopy:
        if not isinstance(value, Mapping):
            raise MisfitError(f"a dict is expected for {schema}, not {type(value).__name__}")
        row = {**defaults, **value}
        if len(row) > len(names) or not names.issuperset(row):
            raise MisfitError(_unknown_fields_text(schema, row, names))
        return row, fixed_bytes + _take_fields(row, checks, takes)

    return PythonRows(pa.struct([(name, rows.type) for name, rows in fields.items()]), take)


def _take_fields(row: dict[str, Any], checks: list[tuple[str, Check]], takes: list[tuple[str, Take]]) -> int:
    """Run `checks` on their fields, and replace the fields of `takes` by copies. Returns a bound of the bytes of the copies."""
    name, size = "", 0
    try:
        for name, check in checks:
            field = row.get(name)
            if type(field) is not int and field is not None:
                check(field)
        for name, take in takes:
            field = row.get(name)
            if field is not None:
                row[name], field_bytes = take(field)
                size += field_bytes
    except Exception as error:
        raise MisfitError(f"{printable(name)}: {reason_without_value(error)}") from error
    return size


def _split(
    schema: AvroRecord, fields: Mapping[str, PythonRows], settings: _Settings
) -> tuple[int, list[tuple[str, Check]], list[tuple[str, Take]]]:
    """A bound of the bytes of the fields that need no copy, the checks of these fields, and the `take` of each other field."""
    fixed_bytes, checks, takes = 0, [], []
    for field in schema.fields:
        plain_type = _plain_type(_without_null(field.schema), settings)
        fixed_bytes += MAX_BRANCH_BYTES if plain_type is None else MAX_BRANCH_BYTES + plain_type.max_bytes
        if plain_type is None:
            takes.append((field.name, fields[field.name].take))
        elif plain_type.check is not None:
            checks.append((field.name, plain_type.check))
    return fixed_bytes, checks, takes


def _without_null(schema: AvroSchema) -> AvroSchema:
    """Of a union of null and one type, that type; any other schema as it is."""
    branches = [branch for branch in schema.branches if branch != NULL] if isinstance(schema, AvroUnion) else [schema]
    return branches[0] if len(branches) == 1 else schema


def _unknown_fields_text(schema: AvroRecord, row: Mapping[object, object], names: frozenset[str]) -> str:
    unknown_names = [name for name in row if name not in names]
    return f"{printable_list(unknown_names)} is no field of {schema}, which has {printable_list(sorted(names))}"


# DEFAULTS


def _checked_default(field: AvroField, rows: PythonRows, path: str, settings: _Settings) -> Any:
    """The default as an object that could be sent. Raises SchemaError if it cannot be written, even if no row would need it."""
    try:
        settings.defaults.encode(field)
        default = _default(field)
        pa.array([rows.take(default)[0]], rows.type)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise SchemaError(unwritable_default(path, error)) from error
    return default


def _default(field: AvroField) -> Any:
    """The default as a Python object. JSON has bytes as text, and dates and times as numbers."""
    assert field.default is not None
    return _from_json(json.loads(field.default), field.schema)


def _from_json(value: Any, schema: AvroSchema) -> Any:
    match schema:
        case AvroUnion():  # the default is of the first branch
            return None if value is None else _from_json(value, _without_null(schema))
        case AvroRecord():
            return {
                field.name: _from_json(value[field.name], field.schema) if field.name in value else _default(field)
                for field in schema.fields
            }
        case AvroArray():
            return [_from_json(each, schema.items) for each in value]
        case AvroMap():
            return {name: _from_json(each, schema.values) for name, each in value.items()}
        case AvroFixed() | AvroPrimitive(type="bytes"):
            octets = value.encode("latin-1")
            logical = schema.logical
            return _decimal(octets, logical.scale) if logical is not None and logical.name == "decimal" else octets
        case AvroPrimitive(type="int" | "long"):
            return int(value)  # JSON may write 1 as 1.0
        case AvroPrimitive(type="float" | "double"):
            return float(value)
        case _:
            return value


def _decimal(octets: bytes, scale: int) -> Decimal:
    """The exact value: arithmetic would round to the digits of the thread's decimal context."""
    unscaled_value = int.from_bytes(octets, "big", signed=True)
    return Decimal((int(unscaled_value < 0), tuple(map(int, str(abs(unscaled_value)))), -scale))


# VALUES OF A BOUNDED SIZE

_PLAIN_TYPES = {
    "null": _PlainType(pa.null(), 0),
    "boolean": _PlainType(pa.bool_(), 1),
    "int": _PlainType(pa.int32(), MAX_VARINT_BYTES, _check_whole),
    "long": _PlainType(pa.int64(), MAX_VARINT_BYTES, _check_whole),
    "float": _PlainType(pa.float32(), 4, _check_float),
    "double": _PlainType(pa.float64(), 8, _check_double),
}
_TIME_TYPES = {
    "date": _PlainType(pa.date32(), MAX_VARINT_BYTES, _check_date),
    "time-micros": _PlainType(pa.time64("us"), MAX_VARINT_BYTES, _check_time),
    "timestamp-micros": _PlainType(pa.timestamp("us", "UTC"), MAX_VARINT_BYTES, _check_instant),
    "timestamp-nanos": _PlainType(pa.timestamp("ns", "UTC"), MAX_VARINT_BYTES, _check_instant),
    "local-timestamp-micros": _PlainType(pa.timestamp("us"), MAX_VARINT_BYTES, _check_local),
    "local-timestamp-nanos": _PlainType(pa.timestamp("ns"), MAX_VARINT_BYTES, _check_local),
}


def _time_type(name: str, settings: _Settings) -> _PlainType | None:
    time_type = _TIME_TYPES.get(name)
    if time_type is None or time_type.check is None or settings.truncates or not name.endswith("timestamp-micros"):
        return time_type
    return time_type._replace(check=_without_nanoseconds(time_type.check))


def _microsecond_type(schema: AvroSchema, settings: _Settings) -> _PlainType | None:
    """For a time in milliseconds, the type in microseconds: the encoder refuses or cuts off finer values, not Arrow."""
    match schema:
        case AvroPrimitive(logical=LogicalType(name)) if name.endswith("-millis"):
            return _time_type(name.replace("millis", "micros"), settings)
        case _:
            return None


def _plain_type(schema: AvroSchema, settings: _Settings) -> _PlainType | None:
    """The type of values that need no copy. None for texts, bytes (a bytearray may change), nested types and milliseconds."""
    match schema:
        case AvroFixed(logical=LogicalType("decimal", precision, scale)):
            return _PlainType(_decimal_type(precision, scale), schema.size)
        case AvroPrimitive(logical=LogicalType("decimal", precision, scale)):
            return _PlainType(_decimal_type(precision, scale), MAX_VARINT_BYTES + 32)
        case AvroPrimitive(logical=None):
            return _PLAIN_TYPES.get(schema.type)
        case AvroPrimitive(logical=LogicalType(name)):
            return _time_type(name, settings)
        case _:
            return None


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    if precision > 76:
        raise SchemaError(f"a decimal of {precision} digits is in the schema, and a column has at most 76")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
