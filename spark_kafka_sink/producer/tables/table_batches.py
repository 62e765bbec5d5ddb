"""Reads a table of any library batch by batch, through Arrow's PyCapsule interface."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import pyarrow as pa

from spark_kafka_sink.errors import KafkaError, SchemaError, printable_list


class ArrowStreamExportable(Protocol):
    """A table that comes in batches: pyarrow's, a DataFrame of polars, pandas or datafusion, a relation of duckdb."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArrayExportable(Protocol):
    """A table in one piece, as a pyarrow.RecordBatch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowTable: TypeAlias = ArrowStreamExportable | ArrowArrayExportable


def open_table(table: object) -> pa.RecordBatchReader:
    """Make a reader of the table, without reading a stream yet. Raises SchemaError if `table` is not a table."""
    try:
        return _reader_of(table)
    except Exception as error:
        subject = f"table of the Python type {type(table).__name__}"
        raise SchemaError(f"{subject} cannot be read as columns of Arrow: {error}") from error


def _reader_of(table: object) -> pa.RecordBatchReader:
    if isinstance(table, pa.RecordBatchReader):
        return table  # after an export and import, an interrupt in it would come as the text of another error
    if isinstance(table, pa.Table):
        return table.to_reader()
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if hasattr(table, "__arrow_c_array__"):
        batch = pa.record_batch(table)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    raise TypeError(
        "it has neither __arrow_c_stream__ nor __arrow_c_array__; pass a table of pyarrow, polars, pandas (2.2 or newer), duckdb"
        " or datafusion, or pyarrow.table(…) of it; collect() a query that is lazy"
    )


def next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """The next batch; None after the last one. Blocks as long as the table's source does.

    Raises:
        KafkaError (KAFKA_TABLE_READ_FAILED): the source has failed, with its exception as the cause.
        SchemaError: the batch has other columns than the table, as can happen with a source written in Python.
    """
    try:
        batch = reader.read_next_batch()
    except StopIteration:
        return None
    except Exception as error:
        raise KafkaError(f"the table cannot be read: {error}", condition="KAFKA_TABLE_READ_FAILED") from error
    if _columns(batch.schema) != _columns(reader.schema):
        raise SchemaError(f"a batch has the columns {_types_text(batch.schema)}, and its table has {_types_text(reader.schema)}")
    return batch


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return list(zip(schema.names, schema.types, strict=True))


def _types_text(schema: pa.Schema) -> str:
    return printable_list(f"{name}: {kind}" for name, kind in _columns(schema)) or "none"
