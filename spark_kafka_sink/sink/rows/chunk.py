"""Rows on their way to the producer, and the text that names one of them in an error.

A row's number is its position in the task's input. A row keeps its number when other rows of its chunk are left out, or when
it is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.records.columns import take_rows, texts
from spark_kafka_sink.sink.rows.payloads import header_entries
from spark_kafka_sink.sink.rows.row_mapping import RowMapping

KEY_PREFIX = 32  # bytes of a key that an error shows
NAME_PREFIX = 300  # characters of a topic's name that an error shows


@dataclass(slots=True)
class Chunk:
    """Rows as Spark delivered them, and their numbers."""

    table: pa.Table
    numbers: Sequence[int] | npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.int64]) -> Chunk:
        table = pa.Table.from_arrays([take_rows(each, rows) for each in self.table.columns], schema=self.table.schema)
        return Chunk(table, np.asarray(self.numbers)[rows])

    def drop(self, rows: npt.NDArray[np.int64]) -> Chunk:
        return self.take(np.setdiff1d(np.arange(self.table.num_rows), rows))

    def slice(self, start: int, stop: int) -> Chunk:
        return Chunk(self.table.slice(start, stop - start), self.numbers[start:stop])


def error_naming_row(
    error: KafkaError, text: str, mapping: RowMapping, chunk: Chunk, row: int, partition: int | None = None
) -> KafkaError:
    """A copy of the error whose message names the row, then says `text`.

    Args:
        row: position in the chunk.
        partition: the partition whose broker refused the row; None: the one in the partition column, if any.
    """
    columns = mapping.unchecked_columns(chunk.table)
    named = fresh_copy(error)
    named.message = f"{row_in_words(columns, row, int(chunk.numbers[row]), partition, mapping.shows_keys)}: {text}"
    return named


def row_in_words(columns: Mapping[str, Any], row: int, number: int, partition: int | None = None, shows_key: bool = True) -> str:
    """Number, topic, partition, start of the key, and sizes of one row among the arguments of send_columns."""
    topic = columns["topic"] if isinstance(columns["topic"], str) else texts(columns["topic"].slice(row, 1))[0]
    if partition is None and columns["partition"] is not None:
        partition = columns["partition"][row].as_py()
    parts = [f"topic {'null' if topic is None else topic[:NAME_PREFIX]}"]
    if partition is not None:
        parts.append(f"partition {partition}")
    parts += [_key_in_words(columns["key"], row, shows_key), f"value of {_size_in_words(columns['value'], row)}"]
    if columns["headers"] is not None:
        counts, _, _ = header_entries(columns["headers"].slice(row, 1))
        parts.append(f"{counts[0]} headers")
    return f"row {number} of this task: " + ", ".join(parts)


def _key_in_words(keys: pa.Array | None, row: int, shows_key: bool) -> str:
    octets = None if keys is None else keys.slice(row, 1).cast(pa.large_binary())[0].as_py()  # Spark's strings may be no UTF-8
    if octets is None:
        return "no key"
    if not shows_key:
        return f"key of {len(octets)} bytes"
    return f"key {octets[:KEY_PREFIX]!r}{'…' if len(octets) > KEY_PREFIX else ''} of {len(octets)} bytes"


def _size_in_words(column: pa.Array, row: int) -> str:
    size = pc.binary_length(column.slice(row, 1))[0].as_py()
    return "null" if size is None else f"{size} bytes"
