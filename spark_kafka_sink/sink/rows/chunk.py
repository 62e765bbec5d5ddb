"""Rows on their way to the producer, and the text that names one of them in an error.

A row's number is its position in the task's input. A row keeps its number when other rows of its chunk are left out, or when
it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.records.arrays import numbers_of
from spark_kafka_sink.records.columns import header_entries, texts
from spark_kafka_sink.records.layouts import take_rows

MAX_SHOWN_KEY_BYTES = 32  # bytes of a key that an error shows
MAX_SHOWN_CHARACTERS = 300  # characters of a topic's name that an error shows

PerRow = npt.NDArray[np.int64]  # one number for each row


@dataclass(slots=True)
class Chunk:
    """Rows as RowMapping has laid them out, and their numbers."""

    columns: Mapping[str, Any]  # the arguments of `KafkaProducer.send_columns`. A part of a record without a column is None
    numbers: Sequence[int] | PerRow
    size_bytes: int  # of memory; as Spark delivered the rows, columns that are not written count too
    unencoded_rows: tuple[UnencodedRows, ...] = ()  # rows that are not among `columns`, as they could not be encoded

    def take(self, rows: PerRow) -> Chunk:
        """The rows at these positions of the chunk, with their numbers. `drop` and `slice` keep numbers, too."""
        return self._with(lambda column: take_rows(column, rows), np.asarray(self.numbers)[rows])

    def drop(self, rows: PerRow) -> Chunk:
        return self.take(np.setdiff1d(np.arange(len(self.numbers)), rows))

    def slice(self, start: int, stop: int) -> Chunk:
        return self._with(lambda column: column.slice(start, stop - start), self.numbers[start:stop])

    def _with(self, part_of: Callable[[Any], Any], numbers: Sequence[int] | PerRow) -> Chunk:
        columns = {
            name: column if column is None or isinstance(column, str) else part_of(column)
            for name, column in self.columns.items()
        }
        return Chunk(columns, numbers, sum(getattr(column, "nbytes", 0) for column in columns.values()))

    def payload_bytes(self) -> PerRow:
        """Bytes of key, value and headers of each row."""
        sizes = np.zeros(len(self.numbers), np.int64)
        for name in ("key", "value"):
            if self.columns[name] is not None:
                sizes += _lengths(self.columns[name])
        if self.columns["headers"] is not None:
            counts, keys, values = header_entries(self.columns["headers"])
            sizes_before = np.concatenate([[0], np.cumsum(_lengths(keys) + _lengths(values))])
            ends = np.cumsum(counts)
            sizes += sizes_before[ends] - sizes_before[ends - counts]
        return sizes

    def row_in_words(self, row: int, *, partition: int | None = None, shows_key: bool = True) -> str:
        """Number, topic, partition, start of the key, and sizes of one row.

        Args:
            row: position in the chunk.
            partition: the partition whose broker rejected the row; None: the one in the partition column, if any.
        """
        columns = self.columns
        topic = columns["topic"] if isinstance(columns["topic"], str) else texts(columns["topic"].slice(row, 1))[0]
        if partition is None and columns["partition"] is not None:
            partition = columns["partition"][row].as_py()
        parts = [f"topic {'null' if topic is None else topic[:MAX_SHOWN_CHARACTERS]}"]
        if partition is not None:
            parts.append(f"partition {partition}")
        parts += [_key_in_words(columns["key"], row, shows_key), f"value of {_size_in_words(columns['value'], row)}"]
        if columns["headers"] is not None:
            counts, _, _ = header_entries(columns["headers"].slice(row, 1))
            parts.append(f"{counts[0]} headers")
        return f"row {int(self.numbers[row])} of this task: " + ", ".join(parts)


class UnencodedRows(NamedTuple):
    """Rows that cannot be encoded for the same reason."""

    chunk: Chunk  # a key or value that could not be encoded is JSON in it
    field: str  # with its part: value.address.zip
    reason: str  # of UnencodableRows


def _lengths(payload: pa.Array) -> PerRow:
    lengths: PerRow = numbers_of(pc.binary_length(payload), at_null=0).astype(np.int64)
    return lengths


def _key_in_words(keys: pa.Array | None, row: int, shows_key: bool) -> str:
    octets = None if keys is None else keys.slice(row, 1).cast(pa.large_binary())[0].as_py()  # Spark's strings may be no UTF-8
    if octets is None:
        return "no key"
    if not shows_key:
        return f"key of {len(octets)} bytes"
    return f"key {octets[:MAX_SHOWN_KEY_BYTES]!r}{'…' if len(octets) > MAX_SHOWN_KEY_BYTES else ''} of {len(octets)} bytes"


def _size_in_words(column: pa.Array, row: int) -> str:
    size = pc.binary_length(column.slice(row, 1))[0].as_py()
    return "null" if size is None else f"{size} bytes"
