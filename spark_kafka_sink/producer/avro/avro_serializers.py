"""key.serializer and value.serializer `avro`: a producer's columns and objects as Avro, framed with ids of a schema registry.

The registry is asked when a topic's schema is needed for the first time: by a background thread, for which the thread that sends
waits at most max.block.ms. The Sender never asks. Answers are kept for the producer's life. Only producers with Avro import this.
Law: a call of `send_columns` with a row that cannot be encoded queues no row. Of gathered records, each fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from spark_kafka_sink.config.format_options import TEXT, PartOptions
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import (
    NOT_ENCODABLE,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    SchemaError,
    printable,
)
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.producer.avro.avro_rows import (
    MisfitError,
    PythonRows,
    SizedCopy,
    first_misfit,
    python_rows,
    reason_without_value,
)
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.producer.topic_rows import names_and_codes
from spark_kafka_sink.records.arrays import bytes_array, number_array
from spark_kafka_sink.records.layouts import in_one_piece, take_rows
from spark_kafka_sink.schemas.avro_encoder import EncodedColumn
from spark_kafka_sink.schemas.avro_schema import AvroSchema, parse_schema
from spark_kafka_sink.schemas.frame import FRAME_BYTES
from spark_kafka_sink.schemas.part_encoder import PartEncoder
from spark_kafka_sink.schemas.registry import SchemaRegistry
from spark_kafka_sink.schemas.wanted_schema import plan_schema

T = TypeVar("T")


class AlreadyEncoded(bytes):
    """A key or value that was encoded when it was sent, and is gathered among objects that are not encoded yet."""


class _ObjectFormat(NamedTuple):
    """How the objects of `send` are taken, and then encoded."""

    rows_format: PythonRows
    encoder: PartEncoder


@dataclass(eq=False, repr=False)
class AvroSerializers:
    """Encodes the keys and values of one producer as Avro. Any thread may call it, as KafkaProducer."""

    parts: Mapping[str, PartOptions]  # the options of "key", "value" or both
    registry_config: RegistryConfig
    max_block_ms: int  # how long a call may wait for the registry
    may_wait: Callable[[], bool]  # whether the calling thread may wait; the Sender's must not
    await_topic: Callable[[str], object]  # raises if the topic does not exist, so that no schema is registered for it

    def __post_init__(self) -> None:
        limit_ms = min(self.registry_config.schema_registry_default_api_timeout_ms, max(1, self.max_block_ms))
        self._config = replace(self.registry_config, schema_registry_default_api_timeout_ms=limit_ms)
        self._encoders: dict[tuple[str, pa.DataType, str], PartEncoder] = {}  # by part, type and topic; grows only
        self._object_formats: dict[tuple[str, str], _ObjectFormat] = {}  # by part and topic; grows only
        if any(part.schema is not None for part in self.parts.values()):
            pa.array([])  # imports pandas now: pa.array makes columns of the objects of `send`, perhaps in an exit handler

    def encodes(self, part: str) -> bool:
        return part in self.parts

    # COLUMNS: send_columns and send_table

    def encode_columns(self, columns: ProducerColumns) -> ProducerColumns:
        """Return the columns with keys and values as bytes.

        Blocks at most max.block.ms for each topic that is not known yet, and again for each schema.

        Raises:
            KafkaTimeoutError, InvalidRecordError, BrokerError: a topic does not exist, or brokers do not describe it.
            SchemaError: a column's type has no schema, or does not fit it.
            InvalidRecordError: a row cannot be encoded.
            RegistryError, KafkaTimeoutError: the registry rejects the request, or does not answer in time.
            IllegalStateError: a schema is not known, and the thread must not wait.
        """
        encoded_columns = {}
        for part in self.parts:
            column = getattr(columns, part)
            if column is not None and not pa.types.is_null(column.type):
                encoded_columns[part] = self._encode_column(part, columns.topic, column)
        return replace(columns, **encoded_columns)

    def _encode_column(self, part: str, topic: str | pa.Array, column: pa.Array) -> pa.Array:
        """Encode a column. The rows of each topic are encoded separately, as schemas may differ, then put in the old order."""
        if isinstance(topic, str):
            return _require_encoded(self._find_encoder(part, column.type, topic).encode(column), part)
        names, codes = names_and_codes(topic)
        if len(names) == 1:
            return self._encode_column(part, names[0], column)
        column, pieces, positions_by_topic = in_one_piece(column), [], []
        for number, name in enumerate(names):
            positions = np.flatnonzero(codes == number)
            if len(positions):
                result = self._find_encoder(part, column.type, name).encode(take_rows(column, positions))
                pieces.append(_require_encoded(result, part, positions).cast(pa.large_binary()))
                positions_by_topic.append(positions)
        return pa.concat_arrays(pieces).take(number_array(np.argsort(np.concatenate(positions_by_topic))))

    def _find_encoder(self, part: str, column_type: pa.DataType, topic: str) -> PartEncoder:
        key = (part, column_type, topic)
        encoder = self._encoders.get(key)
        if encoder is None:
            self._require_may_wait(topic)
            self.await_topic(topic)
            encoder = self._ask_registry(key, self._encoders, partial(self._call_with_registry, self._plan_encoder, *key))
        return encoder

    def _call_with_registry(self, plan: Callable[..., T], *key: Any) -> T:
        """Call `plan` with a registry client, then close its connections."""
        with closing(SchemaRegistry(self._config)) as registry:
            return plan(registry, *key)

    def _plan_encoder(self, registry: SchemaRegistry, part: str, column_type: pa.DataType, topic: str) -> PartEncoder:
        problems: list[str] = []
        schema_plan = plan_schema(self.parts[part], column_type, self._config, problems)
        if problems:
            raise SchemaError(join_problems(problems))
        return schema_plan.find_or_register(registry, topic)

    # OBJECTS: send

    def take(self, part: str, topic: str, value: object) -> SizedCopy:
        """A copy of an object of `send`, to be encoded with others of its bundle, and a bound of its bytes.

        Raises:
            SerializationError: it does not have the schema's form.
            SchemaError, RegistryError, KafkaTimeoutError, IllegalStateError: no schema is known.
        """
        rows_format = self._find_object_format(part, topic).rows_format
        try:
            object_copy, size = rows_format.take(value)
            return object_copy, FRAME_BYTES + size
        except Exception as error:  # noqa: BLE001 - code of the object runs here
            text = f"{part} of type {type(value).__name__} cannot be serialized as Avro: {reason_without_value(error)}"
            raise SerializationError(text) from _first_cause(error)

    def encode_object(self, part: str, topic: str, object_copy: object) -> Any:
        """Encode an object at once, where its size or its bytes must be known before it is gathered. Raises InvalidRecordError.
        A part that is not sent as Avro is bytes already, and is returned as it is."""
        if object_copy is None or part not in self.parts:
            return object_copy
        values, errors = self.encode_objects(part, topic, [object_copy])
        if errors:
            raise errors[0]
        return AlreadyEncoded(values[0].as_py())

    def encode_objects(self, part: str, topic: str, objects: Sequence[object]) -> tuple[pa.Array, dict[int, KafkaError]]:
        """A column of bytes, and the errors of objects that cannot be encoded, by row. Never blocks: the schema of what `take`
        returned is known, and nulls and rows that are encoded already need none."""
        encoded_by_row = {row: value for row, value in enumerate(objects) if type(value) is AlreadyEncoded}
        rows = [None if row in encoded_by_row else value for row, value in enumerate(objects)] if encoded_by_row else objects
        if all(value is None for value in rows):
            return bytes_array([encoded_by_row.get(row) for row in range(len(objects))]), {}
        rows_format, encoder = self._object_formats[part, topic]
        array, errors = _as_array(rows, rows_format.type, part)
        result = encoder.encode(array)
        for unencodable in result.refused_rows:
            for row in unencodable.rows.tolist():
                errors.setdefault(row, _not_encodable(f"the {part}", unencodable.field, unencodable.reason))
        values = result.values
        if encoded_by_row:
            values = bytes_array([encoded_by_row.get(row, value) for row, value in enumerate(values.to_pylist())], values.type)
        return values, errors

    def _find_object_format(self, part: str, topic: str) -> _ObjectFormat:
        key = (part, topic)
        return self._object_formats.get(key) or self._ask_registry(
            key, self._object_formats, partial(self._call_with_registry, self._plan_objects, *key)
        )

    def _plan_objects(self, registry: SchemaRegistry, part: str, topic: str) -> _ObjectFormat:
        schema = self._schema_of_objects(registry, part, topic)
        rows_format = python_rows(schema, part, truncates_timestamps=self.parts[part].truncates_timestamps)
        return _ObjectFormat(rows_format, self._plan_encoder(registry, part, rows_format.type, topic))

    def _schema_of_objects(self, registry: SchemaRegistry, part: str, topic: str) -> AvroSchema:
        options = self.parts[part]
        reference = options.schema
        if reference is None:
            raise SchemaError(
                f"send() needs the schema of its {part}s by name, as an object does not tell its types: set {part}.schema=latest,"
                " a version, an id or the text; send_columns and send_table derive it from their columns' types"
            )
        if reference.kind == TEXT:
            return parse_schema(reference.text)
        wanted_schema = plan_schema(options, pa.struct([]), self._config, [])
        schema = wanted_schema.ask_for_named(registry, wanted_schema.subject_of(topic))
        return parse_schema(schema.text, schema.references)

    # ASKING

    def _ask_registry(self, key: tuple[Any, ...], answers: dict[Any, Any], plan: Callable[[], Any]) -> Any:
        """The result of `plan`, which asks the registry. It is kept in `answers`; two threads at the same time may both ask."""
        self._require_may_wait(key[-1])
        outcome = outcome_within(plan, self.max_block_ms)
        if outcome is None:
            raise KafkaTimeoutError(
                f"the schema registry has not told the {key[0]}'s schema for topic {printable(key[-1])} within"
                f" max.block.ms={self.max_block_ms}"
            )
        if outcome.error is not None:
            raise outcome.error
        return answers.setdefault(key, outcome.result)

    def _require_may_wait(self, topic: str) -> None:
        if not self.may_wait():
            raise IllegalStateError(
                f"the schema of topic {printable(topic)} is not known yet, and a callback cannot ask the registry, as its own"
                " thread sends: send a record to the topic before, or send from another thread"
            )


def _require_encoded(encoded_column: EncodedColumn, part: str, positions: np.ndarray[Any, Any] | None = None) -> pa.Array:
    """The encoded column. Raises InvalidRecordError if a row cannot be encoded. `positions`: of the rows within the call."""
    if encoded_column.refused_rows:
        first_unencodable = min(encoded_column.refused_rows, key=lambda each: int(each.rows[0]))
        row = int(first_unencodable.rows[0]) if positions is None else int(positions[first_unencodable.rows[0]])
        refused_count = sum(len(each.rows) for each in encoded_column.refused_rows)
        more_note = f"; {refused_count - 1:,} more rows cannot be encoded" if refused_count > 1 else ""
        raise _not_encodable(f"row {row}: the {part}", first_unencodable.field, first_unencodable.reason, more_note, row)
    return encoded_column.values


def _not_encodable(subject: str, field: str, reason: str, more_note: str = "", row: int | None = None) -> InvalidRecordError:
    where = f", field {printable(field)}" if field else ""
    return InvalidRecordError(f"{subject} cannot be encoded{where}: {reason}{more_note}", row=row, condition=NOT_ENCODABLE)


def _first_cause(error: Exception) -> BaseException:
    """The error of the object's own code, or of the value that does not fit; those of the dicts around it only name fields."""
    cause: BaseException = error
    while isinstance(cause, MisfitError) and cause.__cause__ is not None:
        cause = cause.__cause__
    return cause


def _as_array(rows: Sequence[object], type: pa.DataType, part: str) -> tuple[pa.Array, dict[int, KafkaError]]:
    """The objects as an array, and errors by row. An object that does not fit the type is null in the array."""
    with suppress(Exception):  # any Exception: code of the objects runs here, of a tzinfo or a number
        return pa.array(rows, type), {}
    pieces, errors = [], dict[int, KafkaError]()
    for row, value in enumerate(rows):
        try:
            pieces.append(pa.array([value], type))
        except Exception as error:  # noqa: BLE001 - only this object fails
            pieces.append(pa.nulls(1, type))
            errors[row] = _misfit_error(value, type, error, part)
    return pa.concat_arrays(pieces), errors


def _misfit_error(value: object, type: pa.DataType, whole_error: Exception, part: str) -> SerializationError:
    path, error = first_misfit(value, type, whole_error)
    where = f", field {printable(path)}" if path else ""
    misfit = SerializationError(f"the {part} cannot be serialized as Avro{where}: {reason_without_value(error)}")
    misfit.__cause__ = error
    return misfit
