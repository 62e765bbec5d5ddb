"""Which column is written as which part of a schema: compares Arrow's type with Avro's, before any row is encoded.

Fields are found by name. Nothing is written that a reader would take for something else: numbers widen from int to long and from
float to double, times are converted to the schema's unit, and decimals keep their scale. A type that does not fit is a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_kafka_sink.errors import printable, printable_list
from spark_kafka_sink.records.layouts import is_binary, is_list, is_string, plain_type
from spark_kafka_sink.records.varint import encode_varint
from spark_kafka_sink.schemas.avro.decimals import DecimalEncoding, FixedDecimalEncoding
from spark_kafka_sink.schemas.avro.defaults import DefaultEncoder, unwritable_default
from spark_kafka_sink.schemas.avro.encoding import Encoding, path_below
from spark_kafka_sink.schemas.avro.nested import ArrayEncoding, BranchEncoding, NullableEncoding, RecordEncoding
from spark_kafka_sink.schemas.avro.values import (
    BooleanEncoding,
    BytesEncoding,
    ConstantEncoding,
    EnumEncoding,
    FixedEncoding,
    FloatEncoding,
    IntegerEncoding,
    StringEncoding,
    UuidEncoding,
)
from spark_kafka_sink.schemas.avro_encoder import AvroEncoder
from spark_kafka_sink.schemas.avro_schema import (
    NULL,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroSchema,
    AvroUnion,
    LogicalType,
)
from spark_kafka_sink.schemas.derivation import is_float, is_int

MAX_COLUMN_FIXED_BYTES = 2**24  # 16 times the default of max.request.size
MAX_DECIMAL_FIXED_BYTES = 256
MAX_PROBLEMS = 100


def resolve_column(
    data_type: pa.DataType, schema: AvroSchema, *, column_name: str, truncates_timestamps: bool
) -> tuple[AvroEncoder, list[str]]:
    """Find the encoder of a column by a schema, and problems: a sentence for each type, field or default that does not fit, at
    most MAX_PROBLEMS. If there are any, do not use the encoder. Never blocks.

    Args:
        data_type: of the column: a struct for a record, any other type for another schema.
        column_name: for problems.
        truncates_timestamps: True cuts a time that is finer than the schema's unit; False refuses its row.
    """
    resolution = _Resolution(column_name, truncates_timestamps, DefaultEncoder(), problems=[])
    encoder, problems = AvroEncoder(data_type, resolution.encoding("", data_type, schema)), resolution.problems
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{len(problems) - MAX_PROBLEMS:,} more problems of {column_name} and its schema"]
    return encoder, problems


@dataclass(frozen=True, slots=True)
class _Resolution:
    """One comparison of a column with a schema; adds what does not fit to `problems`."""

    column_name: str
    truncates_timestamps: bool
    defaults: DefaultEncoder
    problems: list[str]

    def encoding(self, path: str, data_type: pa.DataType, schema: AvroSchema) -> Encoding:
        """Find the encoding of the value at `path` below the column."""
        data_type = plain_type(data_type)
        match schema:
            case AvroUnion():
                return self._union(path, data_type, schema)
            case AvroRecord() if pa.types.is_struct(data_type):
                return self._record(path, data_type, schema)
            case AvroArray() if is_list(data_type):
                return ArrayEncoding(path, self.encoding(f"{path}[*]", data_type.value_type, schema.items))
            case AvroFixed() if schema.size > MAX_COLUMN_FIXED_BYTES:
                self.problems.append(
                    f"{self._column(path)} is {schema} in the schema; the limit is {MAX_COLUMN_FIXED_BYTES:,} bytes"
                )
                return ConstantEncoding(path, b"")
            case AvroMap() if pa.types.is_map(data_type) and is_string(plain_type(data_type.key_type)):
                return self._map(path, data_type, schema)
        encoding = _value_encoding(path, data_type, schema, self.truncates_timestamps)
        if encoding is None:
            self.problems.append(
                f"{self._column(path)} has type {printable(data_type)}, and the schema has {schema} there; {_remedy(schema)}"
            )
        return encoding or ConstantEncoding(path, b"")

    # RECORDS AND MAPS

    def _record(self, path: str, data_type: pa.StructType, schema: AvroRecord) -> Encoding:
        positions: dict[str, list[int]] = {}
        for position, column in enumerate(data_type):
            positions.setdefault(column.name, []).append(position)
        self._report_misfits(path, positions, schema)
        fields: list[tuple[int | None, Encoding]] = []
        missing_fields: list[AvroField] = []
        for field in schema.fields:
            field_path = path_below(path, field.name)
            if field.name in positions:
                position = positions[field.name][0]
                fields.append((position, self.encoding(field_path, data_type.field(position).type, field.schema)))
            elif field.default is not None:
                fields.append((None, self._default(field_path, field)))
            else:
                missing_fields.append(field)
        if missing_fields:
            self._report_missing(path, missing_fields, positions)
        return RecordEncoding(path, tuple(fields))

    def _report_misfits(self, path: str, positions: Mapping[str, list[int]], schema: AvroRecord) -> None:
        schema_names = dict.fromkeys(field.name for field in schema.fields)
        surplus_names = [name for name in positions if name not in schema_names]
        schema_names_text = printable_list(schema_names) if surplus_names else ""
        for name in surplus_names:
            self.problems.append(
                f"{self._column(path, name)} is no field of {schema}, which has {schema_names_text}; leave the column out, or"
                " add a field with a default to the schema"
            )
        for name in sorted(name for name, same_name in positions.items() if len(same_name) > 1):
            self.problems.append(f"{self._column(path, name)} is there several times; name the columns differently")

    def _report_missing(self, path: str, fields: Sequence[AvroField], columns: Collection[str]) -> None:
        """Say that these fields of a record have neither a column nor a default."""
        columns_text, columns_by_lower_name = printable_list(columns), {column.lower(): column for column in columns}
        for field in fields:
            self.problems.append(
                f"the schema's field {printable(path_below(path, field.name))} ({field.schema}) needs a column, as it has no"
                f" default; the columns are {columns_text}{_hint(field, columns_by_lower_name)}"
            )

    def _default(self, path: str, field: AvroField) -> Encoding:
        try:
            return ConstantEncoding(path, self.defaults.encode(field))
        except ValueError as error:
            self.problems.append(unwritable_default(path, error))
            return ConstantEncoding(path, b"")

    def _map(self, path: str, data_type: pa.MapType, schema: AvroMap) -> Encoding:
        key = StringEncoding(f"{path}.key")
        value = self.encoding(f"{path}[*]", data_type.item_type, schema.values)
        return ArrayEncoding(path, RecordEncoding(f"{path}[*]", ((0, key), (1, value))))

    # UNIONS

    def _union(self, path: str, data_type: pa.DataType, schema: AvroUnion) -> Encoding:
        null_branch = schema.branches.index(NULL) if NULL in schema.branches else None
        if null_branch is not None and pa.types.is_null(data_type):
            return ConstantEncoding(path, encode_varint(null_branch))
        branch, value = self._branch(path, data_type, schema)
        if null_branch is None:
            return BranchEncoding(path, branch, value)
        return NullableEncoding(path, branch, value, null_branch)

    def _branch(self, path: str, data_type: pa.DataType, schema: AvroUnion) -> tuple[int, Encoding]:
        """The one branch, besides null, that the type fits."""
        candidates = [number for number, branch in enumerate(schema.branches) if branch != NULL]
        if len(candidates) == 1:
            return candidates[0], self.encoding(path, data_type, schema.branches[candidates[0]])
        fitting: list[tuple[int, Encoding]] = []
        for number in candidates:
            attempt = replace(self, problems=[])
            encoding = attempt.encoding(path, data_type, schema.branches[number])
            if not attempt.problems:
                fitting.append((number, encoding))
        types = {number: _number_type(schema.branches[number]) for number, _ in fitting}
        fitting = [each for each in fitting if _NARROWER_TYPE.get(types[each[0]] or "", "") not in types.values()]
        if len(fitting) != 1:
            fits = printable_list(schema.branches[number] for number, _ in fitting) if fitting else "none"
            self.problems.append(
                f"{self._column(path)} has type {printable(data_type)}, which must fit exactly one branch of the schema's"
                f" {schema}; it fits {fits}"
            )
        return fitting[0] if fitting else (0, ConstantEncoding(path, b""))

    # PROBLEMS

    def _column(self, path: str, name: str = "") -> str:
        steps = [self.column_name, *([path] if path else []), *([name] if name else [])]
        return f"column {printable('.'.join(steps).replace('.[', '['))}"


_NARROWER_TYPE = {"long": "int", "double": "float"}  # of two branches that fit a column, the narrower one is taken


def _number_type(schema: AvroSchema) -> str | None:
    return schema.type if isinstance(schema, AvroPrimitive) and schema.logical is None else None


def _hint(field: AvroField, columns_by_lower_name: Mapping[str, str]) -> str:
    """The remedy for a field without a column: the column to rename, if one looks similar."""
    for name in (field.name.lower(), *map(str.lower, field.aliases)):
        if name in columns_by_lower_name:
            return f"; rename {printable(columns_by_lower_name[name])} to {printable(field.name)}, if it is meant"
    return "; add it, or give the field a default in the schema"


def _remedy(schema: AvroSchema) -> str:
    match schema:
        case AvroPrimitive(type="null"):
            return "leave the column out"
        case AvroPrimitive() | AvroFixed() if schema.logical is not None and schema.logical.name == "decimal":
            return f"cast the column to decimal({schema.logical.precision},{schema.logical.scale}), or change the schema"
        case AvroPrimitive():
            name = schema.type if schema.logical is None else schema.logical.name
            return f"cast the column to {_CASTS[name]}, or change the schema"
        case AvroFixed():
            return f"cast the column to binary, with {schema.size} bytes in each row"
        case AvroEnum():
            return "cast the column to string"
        case AvroMap():
            return "make the column a map with string keys"
        case _:
            return f"make the column {'a struct' if isinstance(schema, AvroRecord) else 'an array'}"


_CASTS = {
    **{kind: kind for kind in ("boolean", "int", "float", "double", "string", "date")},
    **{"long": "bigint", "bytes": "binary", "uuid": "string"},
    **{f"time-{unit}": "time" for unit in ("millis", "micros")},
    **{f"timestamp-{unit}": "timestamp" for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": "timestamp_ntz" for unit in ("millis", "micros", "nanos")},
}

# VALUES

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "millis": 10**3, "micros": 10**6, "nanos": 10**9}
_UNIT_NAMES = {"millis": "milliseconds", "micros": "microseconds", "nanos": "nanoseconds"}
_MILLISECONDS_PER_DAY = 86_400_000


def _value_encoding(path: str, data_type: pa.DataType, schema: AvroSchema, truncates: bool) -> Encoding | None:
    """The encoding of a single value; None if the type does not fit."""
    match schema:
        case AvroPrimitive(logical=LogicalType() as logical) if logical.name not in ("decimal", "uuid"):
            return _time_encoding(path, data_type, logical.name, truncates)
        case AvroPrimitive(type="bytes", logical=LogicalType() as logical):
            return DecimalEncoding(path, logical.precision) if _is_decimal_for(data_type, logical) else None
        case AvroPrimitive(type="string", logical=LogicalType()):
            return UuidEncoding(path) if is_string(data_type) else None
        case AvroPrimitive():
            return _primitive_encoding(path, data_type, schema.type)
        case AvroEnum() if is_string(data_type):
            return EnumEncoding(path, schema.symbols)
        case AvroFixed(logical=LogicalType(name="decimal") as logical):
            is_possible = _is_decimal_for(data_type, logical) and schema.size <= MAX_DECIMAL_FIXED_BYTES
            return FixedDecimalEncoding(path, logical.precision, schema.size) if is_possible else None
        case AvroFixed() if is_binary(data_type):
            has_other_size = pa.types.is_fixed_size_binary(data_type) and data_type.byte_width != schema.size
            return None if has_other_size else FixedEncoding(path, schema.size)
        case _:
            return None


def _primitive_encoding(path: str, data_type: pa.DataType, kind: str) -> Encoding | None:
    match kind:
        case "null" if pa.types.is_null(data_type):
            return ConstantEncoding(path, b"")
        case "boolean" if pa.types.is_boolean(data_type):
            return BooleanEncoding(path)
        case "int" if is_int(data_type):
            return IntegerEncoding(path)
        case "long" if pa.types.is_integer(data_type):
            return IntegerEncoding(path)
        case "float" if is_float(data_type):
            return FloatEncoding(path, 4)
        case "double" if pa.types.is_floating(data_type):
            return FloatEncoding(path, 8)
        case "bytes" if is_binary(data_type):
            return BytesEncoding(path)
        case "string" if is_string(data_type):
            return StringEncoding(path)
        case _:
            return None


def _time_encoding(path: str, data_type: pa.DataType, name: str, truncates: bool) -> Encoding | None:
    """Dates, times and timestamps. `name` is "date", or ends with the schema's unit."""
    if name == "date":
        if pa.types.is_date64(data_type):
            return IntegerEncoding(path, "days", divisor=_MILLISECONDS_PER_DAY, is_int=True)
        return IntegerEncoding(path) if pa.types.is_date32(data_type) else None
    kind, _, unit = name.rpartition("-")
    is_kind = {
        "time": pa.types.is_time(data_type),
        "timestamp": pa.types.is_timestamp(data_type) and data_type.tz is not None,
        "local-timestamp": pa.types.is_timestamp(data_type) and data_type.tz is None,
    }
    if not is_kind[kind]:
        return None
    column_units_per_s, schema_units_per_s = _UNITS_PER_SECOND[data_type.unit], _UNITS_PER_SECOND[unit]
    factor, divisor = max(1, schema_units_per_s // column_units_per_s), max(1, column_units_per_s // schema_units_per_s)
    return IntegerEncoding(path, _UNIT_NAMES[unit], factor, divisor, truncates, is_int=name == "time-millis")


def _is_decimal_for(data_type: pa.DataType, logical: LogicalType) -> bool:
    return bool(pa.types.is_decimal(data_type) and data_type.scale == logical.scale and data_type.precision <= logical.precision)
