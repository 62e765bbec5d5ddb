"""How the keys or the values of a write become bytes: a registered schema, its frame, and for Avro the encoder.

wanted_schema.py makes a PartEncoder from the registry's answer. Tasks get it by pickle. A task asks the registry itself for the
schema of a topic that only rows name, and for the schema of an earlier run.
Law: a null row stays null: a null value is a tombstone, and a null key means that the record has no key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config.format_options import SchemaUse
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.records.arrays import INT32_MAX, bytes_array
from spark_kafka_sink.records.columns import binary_column
from spark_kafka_sink.records.layouts import contiguous, have_same_values
from spark_kafka_sink.schemas.avro_encoder import AvroEncoder, EncodedColumn


@dataclass(frozen=True, slots=True)
class PartEncoder:
    """The schema, the frame and the encoder of one part, key or value. Plain data."""

    use: SchemaUse
    prefix: bytes  # stands before each payload
    avro: AvroEncoder | None = field(repr=False)  # None if the payloads are encoded already, and only get the prefix

    def encode(self, column: pa.Array | pa.ChunkedArray) -> EncodedColumn:
        """The bytes of each row. Never blocks.

        Raises:
            SchemaError: the column has other values than were planned, or, without Avro, is neither binary nor string.
        """
        if self.avro is None:
            return EncodedColumn(framed_column(column, self.prefix), [])
        if not have_same_values(self.avro.type, column.type):
            raise SchemaError(f"the {self.use.part} was planned as {self.avro.type} and arrives as {column.type}; cast it")
        return self.avro.encode(column, self.prefix)


def framed_column(column: pa.Array | pa.ChunkedArray, prefix: bytes) -> pa.Array:
    """Put `prefix` before each payload; a null row stays null.

    Raises:
        SchemaError: the column is neither binary nor string.
    """
    payloads = binary_column("value", column)
    if payloads is None:
        return pa.nulls(len(column), pa.binary())
    payloads = contiguous(payloads)
    size_bytes = payloads.nbytes + len(prefix) * len(payloads)
    kind = pa.large_binary() if size_bytes > INT32_MAX or pa.types.is_large_binary(payloads.type) else pa.binary()
    frame, separator = bytes_array([prefix, b""], kind)
    return pc.binary_join_element_wise(frame, payloads.cast(kind), separator)
