"""Encodes the keys and values of a task's chunks, if an option gives them a format. Later steps get bytes either way.

A row that cannot be encoded leaves the chunk. The chunk lists it beside the others, with the reason and as JSON, and RowSender
applies the user's choice to it. Schemas come with the plan. A task asks the registry in two cases: each topic has a schema of its
own, or an earlier run of this write has used another schema than the plan's.
Law: the registry is asked only for topics that exist, as it may register a schema for good. Rows for others fail when sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.format_options import SchemaUse, all_uses
from spark_kafka_sink.config.topic_names import is_topic_name
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.exactly_once.writes import ReplayError
from spark_kafka_sink.records.arrays import bool_array, number_array, numbers_of
from spark_kafka_sink.records.columns import texts
from spark_kafka_sink.records.layouts import contiguous, in_one_piece, take_rows
from spark_kafka_sink.schemas.avro_encoder import EncodedColumn, UnencodableRows, each_row_once
from spark_kafka_sink.sink.rows.chunk import Chunk, PerRow, UnencodedRows
from spark_kafka_sink.sink.rows.json_rows import json_texts

if TYPE_CHECKING:
    from spark_kafka_sink.schemas.known_schemas import KnownSchemas
    from spark_kafka_sink.schemas.part_encoder import PartEncoder
    from spark_kafka_sink.schemas.wanted_schema import PlannedPart


class RowEncoder:
    """Encodes the rows of one task. The constructor blocks where it has to ask for a schema of `schema_ids`.

    Args:
        parts: of the plan.
        registry: to be asked for the schemas of topics.
        schema_ids: by part, the id of the schema that an earlier run of this write has used: its rows are encoded with it again.
            A part in which each topic has its own schema is not among them.
        must_write: False if the earlier run's rows are in Kafka or decided, so that these are only compared with them. If the
            columns then do not fit that run's schema, they are encoded with the plan's, and the comparison finds them different.
        missing_topics: returns which of these valid names no topic has. It may block.
        keeps_all_refused_rows: False keeps only the first row of each chunk that cannot be encoded; it fails the task.

    Raises:
        ReplayError: the columns do not fit the schema that the earlier run has used, and the rows are to be written.
        RegistryError: the registry does not give that schema.
    """

    def __init__(
        self,
        parts: Sequence[PlannedPart],
        registry: KnownSchemas,
        schema_ids: Mapping[str, int],
        *,
        missing_topics: Callable[[Sequence[str]], Collection[str]],
        keeps_all_refused_rows: bool,
        must_write: bool = True,
    ) -> None:
        self._parts = [
            _TaskPartEncoder(each, registry, schema_ids.get(each.wanted_schema.part), missing_topics, must_write)
            for each in parts
        ]
        self._keeps_all_refused_rows = keeps_all_refused_rows

    def uses(self) -> tuple[SchemaUse, ...]:
        """The schemas that rows were encoded with so far."""
        return all_uses(use for part in self._parts for use in part.uses)

    def encode(self, chunk: Chunk) -> Chunk:
        """The chunk with bytes for keys and values. Blocks only to ask for a topic, and for its schema.

        Raises:
            KafkaError: brokers do not tell whether a topic exists.
            SchemaError: the columns do not fit the schema of a topic.
            RegistryError: the registry does not give that schema.
        """
        parts = {part.name: part.encode(chunk.columns[part.name], chunk.columns["topic"]) for part in self._parts}
        new_chunk = replace(chunk, columns={**chunk.columns, **{name: each.values for name, each in parts.items()}})
        refused_rows = list(each_row_once(each for part in parts.values() for each in part.refused_rows))
        if not refused_rows:
            return new_chunk
        encodable_chunk = new_chunk.drop(np.concatenate([each.rows for each in refused_rows]))
        if not self._keeps_all_refused_rows:
            first = min(refused_rows, key=lambda each: int(each.rows[0]))
            refused_rows = [first._replace(rows=first.rows[:1])]
        unencoded_rows = tuple(UnencodedRows(_as_json(chunk, new_chunk, parts, each.rows), *each[1:]) for each in refused_rows)
        return replace(encodable_chunk, unencoded_rows=unencoded_rows)


def _as_json(original: Chunk, encoded_chunk: Chunk, encoded_parts: Mapping[str, EncodedColumn], rows: PerRow) -> Chunk:
    """These rows: what could not be encoded of them is JSON, the rest as it would be written."""
    chunk = encoded_chunk.take(rows)
    columns = dict(chunk.columns)
    for name, part in encoded_parts.items():
        failed_rows = np.concatenate([np.zeros(0, np.int64), *(each.rows for each in part.refused_rows)])
        has_failed = np.isin(rows, failed_rows)
        if has_failed.any():
            json_column = json_texts(take_rows(original.columns[name], rows)).cast(columns[name].type)
            columns[name] = pc.if_else(bool_array(has_failed), json_column, contiguous(columns[name]))
    return replace(chunk, columns=columns)


@dataclass(eq=False, repr=False)
class _TaskPartEncoder:
    """Encodes the keys or the values of one task. The fields of refused rows begin with the part: value.address.zip."""

    planned_part: PlannedPart
    registry: KnownSchemas
    schema_id: int | None
    missing_topics: Callable[[Sequence[str]], Collection[str]]
    must_write: bool

    def __post_init__(self) -> None:
        self._wanted_schema = self.planned_part.wanted_schema
        self.name = self._wanted_schema.part
        encoder = self.planned_part.encoder
        self._encoder_for_all_topics = None if encoder is None else self._with_earlier_schema(encoder)
        self._encoders_by_topic: dict[str, PartEncoder] = {}
        self.uses: set[SchemaUse] = set()

    def encode(self, column: Any, topic: str | pa.Array) -> EncodedColumn:
        if self._encoder_for_all_topics is not None:
            return self._encode_with(self._encoder_for_all_topics, column)
        if isinstance(topic, str):
            return self._encode_with(self._encoder_of(topic), column)
        return self._encode_by_topic(in_one_piece(column), topic)

    def _encode_with(self, encoder: PartEncoder, column: Any) -> EncodedColumn:
        self.uses.add(encoder.use)
        values, refusals = encoder.encode(column)
        named_rows = [UnencodableRows(rows, self._path(field), f"{reason} ({encoder.use})") for rows, field, reason in refusals]
        return EncodedColumn(values, named_rows)

    def _path(self, field: str) -> str:
        return f"{self.name}.{field}" if field else self.name

    def _encode_by_topic(self, column: pa.Array | pa.ChunkedArray, topic: pa.Array) -> EncodedColumn:
        """Each topic's rows with its schema, in the order of the rows again."""
        columns: list[pa.Array] = []
        refused_rows: list[UnencodableRows] = []
        groups = list(_rows_of_topics(topic))
        new_topics = [name for name, _ in groups if name is not None and name not in self._encoders_by_topic]
        missing_topics = self.missing_topics(new_topics) if new_topics else ()
        for name, rows in groups:
            topic_column = column if len(groups) == 1 else take_rows(column, rows)
            if name is None or name in missing_topics:  # these rows are refused for their topic, which has no schema
                columns.append(json_texts(topic_column).cast(pa.binary()))
                continue
            encoded_rows = self._encode_with(self._encoder_of(name), topic_column)
            columns.append(encoded_rows.values)
            refused_rows += [each._replace(rows=rows[each.rows]) for each in encoded_rows.refused_rows]
        if len(groups) == 1:
            return EncodedColumn(columns[0], refused_rows)
        order = np.concatenate([rows for _, rows in groups])
        return EncodedColumn(_concatenate(columns).take(number_array(np.argsort(order, kind="stable"))), refused_rows)

    def _encoder_of(self, topic: str) -> PartEncoder:
        encoder = self._encoders_by_topic.get(topic)
        if encoder is None:
            encoder = self._encoders_by_topic[topic] = self._wanted_schema.find_or_register(self.registry, topic)
        return encoder

    def _with_earlier_schema(self, planned_encoder: PartEncoder) -> PartEncoder:
        if self.schema_id is None or self.schema_id == planned_encoder.use.id:
            return planned_encoder
        try:
            return self._wanted_schema.encoder_of_id(self.registry, self.schema_id, planned_encoder.use.subject)
        except SchemaError as error:
            if not self.must_write:
                return planned_encoder
            raise ReplayError(
                f"an earlier run has begun this version with {self.name} schema {self.schema_id}, and only a part of it is in"
                f" Kafka; the repetition cannot complete it, as its columns do not fit that schema: {error.message}. Repeat it"
                " with the columns that it had, or begin anew with another transactionalIdPrefix and accept that rows of this"
                " version are there twice"
            ) from error


def _rows_of_topics(topic: pa.Array) -> Iterator[tuple[str | None, PerRow]]:
    """Each topic with the positions of its rows; None for rows whose topic is null or no valid name."""
    topics = contiguous(topic).dictionary_encode()
    names: list[str | None] = [name if is_topic_name(name) else None for name in texts(topics.dictionary)]
    topic_numbers = numbers_of(topics.indices, at_null=len(names))
    order = np.argsort(topic_numbers, kind="stable")
    bounds = np.searchsorted(topic_numbers[order], np.arange(len(names) + 2))
    for number, name in enumerate([*names, None]):
        rows = order[bounds[number] : bounds[number + 1]]
        if len(rows):
            yield name, rows


def _concatenate(columns: list[pa.Array]) -> pa.Array:
    kind = pa.large_binary() if any(pa.types.is_large_binary(column.type) for column in columns) else pa.binary()
    return pa.concat_arrays([column.cast(kind) for column in columns])
