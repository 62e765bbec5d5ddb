"""From the Arrow type of a column to the text of an Avro schema.

Names and types are those of Spark's to_avro, so that a subject which to_avro filled stays compatible. A nested record is named as
its field, in a namespace of the records around it; a decimal is a type `fixed` in a namespace that ends with its field. Unlike
in to_avro, null comes first in a union and is the default, so that a column can be added to a topic that has readers.
Law: the same type gives the same text on every machine. parse_schema accepts the text, within its limits. A type that Avro lacks
is a problem that names the column and a remedy.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import printable
from spark_kafka_sink.records.layouts import is_any_of, is_binary, is_list, is_string, plain_type
from spark_kafka_sink.schemas.avro_schema import MAX_DEPTH, PRIMITIVES

Json = dict[str, Any] | list[Any] | str

TOP_LEVEL_RECORD = "topLevelRecord"  # Spark's
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DECIMAL_BYTES = 32


def derive_schema(
    data_type: pa.DataType,
    *,
    is_nullable: bool = False,
    name: str = TOP_LEVEL_RECORD,
    namespace: str | None = None,
    column_name: str,
) -> tuple[str, list[str]]:
    """The text of the schema for a column, and what is wrong with the column; if anything is, do not use the text.

    Args:
        data_type: of the column; the fields of a struct may carry a comment, as Spark writes it into a field's metadata.
        is_nullable: True makes the whole schema a union with null. False for keys and values, as a null is written without Avro.
        name, namespace: of the outermost record.
        column_name: for problems.
    """
    problems = _name_problems(name, namespace)
    schema = _Derivation(problems).schema_of(data_type, is_nullable, _NamedPlace(name, namespace or "", column_name))
    return json.dumps(schema, separators=(",", ":")), problems


def _name_problems(name: str, namespace: str | None) -> list[str]:
    problems = [] if _NAME.fullmatch(name) else [f"{name!r} cannot name an Avro record: {_RULE}"]
    if name in PRIMITIVES and not namespace:
        problems.append(f"{name!r} cannot name an Avro record without a namespace: it is a type of Avro")
    if namespace and not all(map(_NAME.fullmatch, namespace.split("."))):
        problems.append(f"{namespace!r} cannot be an Avro namespace: between its dots, {_RULE}")
    return problems


_RULE = "names have letters of ASCII, digits and _, and do not begin with a digit"


class _NamedPlace(NamedTuple):
    """Where in the column a type stands, and which name a record, or the fixed type of a decimal, gets there."""

    name: str
    namespace: str
    path: str
    depth: int = 0  # of the structs, arrays and maps around

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    def of_field(self, name: str) -> _NamedPlace:
        return _NamedPlace(name, self.full_name, f"{self.path}.{printable(name)}", self.depth + 1)

    def of_items(self) -> _NamedPlace:
        return _NamedPlace(self.name, self.namespace, f"{self.path}[*]", self.depth + 1)


class _Derivation:
    """One walk over a type; adds what is wrong to `problems`."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def schema_of(self, data_type: pa.DataType, nullable: bool, place: _NamedPlace) -> Json:
        schema = self._value_schema(data_type, place)
        return ["null", schema] if nullable else schema

    def _value_schema(self, data_type: pa.DataType, place: _NamedPlace) -> Json:
        data_type = plain_type(data_type)
        if place.depth > MAX_DEPTH:
            self._problems.append(
                f"{printable(place.path, 60)} is nested too deeply: structs, arrays and maps may be {MAX_DEPTH} deep. Write the"
                " inner ones as text, as with to_json"
            )
            return "null"
        if pa.types.is_struct(data_type):
            return self._record(data_type, place)
        if is_list(data_type):
            items = self.schema_of(data_type.value_type, data_type.value_field.nullable, place.of_items())
            return {"type": "array", "items": items}
        if pa.types.is_map(data_type):
            return self._map(data_type, place)
        if pa.types.is_decimal(data_type):
            return self._decimal(data_type, place)
        return self._scalar(data_type, place)

    def _record(self, data_type: pa.StructType, place: _NamedPlace) -> Json:
        fields = [data_type.field(position) for position in range(data_type.num_fields)]
        self._check_names([field.name for field in fields], place)
        schema: dict[str, Any] = {"type": "record", "name": place.name}
        if place.namespace:
            schema["namespace"] = place.namespace
        return schema | {"fields": [self._field(field, place.of_field(field.name)) for field in fields]}

    def _field(self, field: pa.Field, place: _NamedPlace) -> Json:
        metadata: Mapping[bytes, bytes] = field.metadata or {}
        json_field: dict[str, Any] = {"name": field.name}
        if is_variant(field):
            self._problems.append(f"{place.path} is a variant, which Avro lacks: cast it, as in to_json({place.path})")
            return json_field | {"type": "bytes"}
        json_field["type"] = self.schema_of(field.type, field.nullable, place)
        if field.nullable:
            json_field["default"] = None
        if b"comment" in metadata:
            json_field["doc"] = metadata[b"comment"].decode("utf-8", "replace")
        return json_field

    def _check_names(self, names: list[str], place: _NamedPlace) -> None:
        for name in names:
            if not _NAME.fullmatch(name):
                self._problems.append(
                    f"{place.path} has a field '{printable(name)}', which cannot be a name in Avro: {_RULE}. Rename it, as in"
                    f" `{printable(name)}` AS {printable(_allowed_name(name))}"
                )
        for name in sorted(name for name, count in Counter(names).items() if count > 1):
            self._problems.append(f"{place.path} has more than one field '{printable(name)}': rename all but one")

    def _map(self, data_type: pa.MapType, place: _NamedPlace) -> Json:
        key = plain_type(data_type.key_type)
        if not is_string(key):
            self._problems.append(
                f"{place.path} is a map with keys of type {key}, but the keys of an Avro map are strings: cast them, as in"
                f" map_from_arrays(transform(map_keys(m), k -> string(k)), map_values(m))"
            )
        return {"type": "map", "values": self.schema_of(data_type.item_type, data_type.item_field.nullable, place.of_items())}

    def _decimal(self, data_type: pa.DataType, place: _NamedPlace) -> Json:
        """A fixed type of the smallest size that takes the precision, named as in Spark."""
        precision, scale = data_type.precision, data_type.scale
        if not 0 <= scale <= precision:
            self._problems.append(
                f"{place.path} is {data_type}: Avro's decimals have a scale of 0 to their precision. Cast it, as in"
                f" CAST({place.path} AS DECIMAL({max(precision - min(scale, 0), scale)}, {max(scale, 0)}))"
            )
        size = next(size for size in range(1, _MAX_DECIMAL_BYTES + 1) if 2 ** (8 * size - 1) >= 10**precision)
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {"type": "fixed", "name": "fixed", "namespace": place.full_name, "size": size} | decimal

    def _scalar(self, data_type: pa.DataType, place: _NamedPlace) -> Json:
        for is_type, schema in _SCALARS:
            if is_type(data_type):
                return schema
        remedy = next((text for is_type, text in _REMEDIES if is_type(data_type)), "leave it out, or cast it to another type")
        self._problems.append(f"{place.path} has the type {data_type}, which Avro lacks: {remedy.format(place.path)}")
        return "null"


def is_variant(field: pa.Field) -> bool:
    """Whether a field is a variant, which Spark sends as a struct of two binary fields, one with a mark in its metadata."""
    data_type = field.type
    if not pa.types.is_struct(data_type):
        return False
    return any(b"variant" in (data_type.field(position).metadata or {}) for position in range(data_type.num_fields))


is_int = is_any_of(pa.types.is_int8, pa.types.is_int16, pa.types.is_int32, pa.types.is_uint8, pa.types.is_uint16)
_is_long = is_any_of(pa.types.is_int64, pa.types.is_uint32)
is_float = is_any_of(pa.types.is_float16, pa.types.is_float32)


_SCALARS: tuple[tuple[Any, Json], ...] = (
    (is_string, "string"),
    (is_binary, "bytes"),
    (pa.types.is_boolean, "boolean"),
    (is_int, "int"),
    (_is_long, "long"),
    (is_float, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (lambda each: pa.types.is_timestamp(each) and each.tz is not None, {"type": "long", "logicalType": "timestamp-micros"}),
    (pa.types.is_timestamp, {"type": "long", "logicalType": "local-timestamp-micros"}),
    (pa.types.is_time, {"type": "long", "logicalType": "time-micros"}),
)
_REMEDIES: tuple[tuple[Any, str], ...] = (
    (pa.types.is_null, "it is always null; leave it out, or give it a type, as in CAST({0} AS STRING)"),
    (pa.types.is_duration, "cast it, as in CAST({0} AS STRING), or write its microseconds as a number"),
    (pa.types.is_interval, "cast it, as in CAST({0} AS STRING)"),
    (pa.types.is_uint64, "cast it to int64, or to decimal128(20, 0) for values above its range"),
    (pa.types.is_run_end_encoded, "decode it, as in pyarrow.compute.run_end_decode"),
    (pa.types.is_union, "use a struct with a nullable field for each of its types"),
)


def _allowed_name(name: str) -> str:
    letters = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    return f"_{letters}" if letters[0].isdigit() else letters
