"""The columns of a table that `send_table` sends: their Arrow types are checked once, and each batch becomes ProducerColumns.

records/row_mapping.py says which column is which part of a record, for `send_table` and for the sink. This file says which types
fit and what users can do about others, and decodes layouts that the rest of the producer does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.errors import InvalidRecordError, SchemaError, printable_list
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.records.columns import is_headers, is_payload, is_text, nested_remedy
from spark_kafka_sink.records.layouts import contiguous, plain_column, plain_type
from spark_kafka_sink.records.row_mapping import RECORD_FIELDS, RowMapping, nearest_column

NO_TOPIC_TEXT = "no topic: pass its name as in send_table(name, table), or a table with the column topic"
NO_VALUE_TEXT = "there is no column value; nulls in it are tombstones, but it must be there"
ZONE_REMEDIES = "dt.tz_localize('UTC') in pandas, dt.replace_time_zone('UTC') in polars, AT TIME ZONE 'UTC' in SQL"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Where the parts of a record are in each batch, and which columns are decoded first."""

    mapping: RowMapping
    encoded_positions: list[int]

    @classmethod
    def find(cls, schema: pa.Schema, topic: str | None, encodes: Callable[[str], bool] = lambda _: False) -> TableColumns:
        """Find the columns of a table. Raises SchemaError, which names all problems.

        Args:
            topic: the topic of all rows; None: the column `topic` decides.
            encodes: whether a part of a record may have any type, because a serializer encodes it.
        """
        mapping = RowMapping.find(schema.names, topic, with_timestamp=True)
        positions = {name: getattr(mapping, name) for name in RECORD_FIELDS}
        columns = {name: schema.field(position).type for name, position in positions.items() if isinstance(position, int)}
        problems = [
            *_problems_of_names(mapping, schema.names),
            *_problems_of_types({name: kind for name, kind in columns.items() if not encodes(name)}),
        ]
        if problems:
            raise SchemaError(join_problems(problems))
        return cls(mapping, [positions[name] for name, kind in columns.items() if _is_decoded_first(name, kind)])

    def producer_columns(self, batch: pa.RecordBatch) -> ProducerColumns:
        """The rows of a batch; copies only what is decoded. Raises InvalidRecordError for a time that no record can have."""
        table = pa.Table.from_batches([batch])
        for position in self.encoded_positions:
            table = table.set_column(position, table.field(position).name, plain_column(contiguous(table.column(position))))
        try:
            return ProducerColumns(**self.mapping.columns(table))
        except pa.ArrowInvalid as error:
            raise InvalidRecordError(f"column timestamp: {error}; a record's timestamp is int64 milliseconds") from error


# NAMES


def _problems_of_names(mapping: RowMapping, columns: list[str]) -> Iterator[str]:
    """Problems: a required column is missing, or one is there twice or probably misspelt, whose values would be ignored."""
    problems_if_missing = {"topic": NO_TOPIC_TEXT, "value": NO_VALUE_TEXT}
    others = [column for column in columns if column not in RECORD_FIELDS]
    for name in RECORD_FIELDS:
        if isinstance(getattr(mapping, name), int) and columns.count(name) > 1:
            yield f"{columns.count(name)} columns are called {name}, of which one can be sent: leave the others out"
        if getattr(mapping, name) is not None:
            continue
        nearest = nearest_column(name, others)
        if name in problems_if_missing:
            hint = "" if nearest is None else f". Did you mean {nearest!r}? Rename it to {name}"
            yield f"{problems_if_missing[name]}. The table's columns are: {printable_list(columns) or 'none'}{hint}"
        elif (misspelt := _misspelt_column(name, others)) is not None:
            yield f"column {misspelt!r} is no part of a record; did you mean {name}? Rename it, or leave it out of the table"


def _misspelt_column(name: str, columns: list[str]) -> str | None:
    """A column whose name differs only by case, spaces, underscores, dashes or a plural s. Other names may mean anything."""
    return next((column for column in columns if _plain_name(column) == _plain_name(name)), None)


def _plain_name(column: str) -> str:
    return column.lower().translate({ord(each): None for each in " _-"}).removesuffix("s")


# TYPES


def _problems_of_types(columns: Mapping[str, pa.DataType]) -> Iterator[str]:
    for name, kind in columns.items():
        types, fits, remedy = COLUMN_RULES[name]
        value_type = plain_type(kind)
        if not pa.types.is_null(value_type) and not fits(value_type):
            yield f"column {name} has type {kind}; it must be {types}: {remedy(name, value_type)}"


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind)) or (bool(pa.types.is_timestamp(kind)) and kind.tz is not None)


def _payload_remedy(name: str, kind: pa.DataType) -> str:
    return nested_remedy(name) if pa.types.is_nested(kind) else "cast it to string before sending"


def _partition_remedy(_: str, kind: pa.DataType) -> str:
    nulls = ". In pandas, nulls make floats of integers: astype('Int32')" if pa.types.is_floating(kind) else ""
    return f"cast it to int32 before sending{nulls}"


def _timestamp_remedy(_: str, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"without a time zone it is no moment; name its zone: {ZONE_REMEDIES}"
    return "cast it before sending, or leave it out: the time of sending counts then"


def _headers_remedy(*_: object) -> str:
    return "a list of {'key': …, 'value': …} in each row; cast it before sending"


# For each column: the types that fit, in words and as a check, and what the error advises for another type.
COLUMN_RULES: dict[str, tuple[str, Callable[[pa.DataType], bool], Callable[[str, pa.DataType], str]]] = {
    "topic": ("string", is_text, lambda *_: "cast it to string before sending"),
    "value": ("string or binary", is_payload, _payload_remedy),
    "key": ("string or binary", is_payload, _payload_remedy),
    "partition": ("int32", pa.types.is_integer, _partition_remedy),
    "headers": ("list<struct<key: string, value: binary>> or map<string, binary>", is_headers, _headers_remedy),
    "timestamp": ("a timestamp with a time zone, or int64 milliseconds since 1970", _is_timestamp, _timestamp_remedy),
}


# LAYOUTS


def _is_decoded_first(name: str, kind: pa.DataType) -> bool:
    """Whether a column has a layout that `send_columns` does not take: an extension type, or a dictionary of times."""
    values = kind.value_type if pa.types.is_dictionary(kind) and name != "timestamp" else kind
    return bool(values != plain_type(values))
