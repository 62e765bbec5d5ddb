"""The rows of one call, split by topic and cut into slices: columns in, columns out.

ColumnSender checks each TopicRows, then RecordAccumulator appends it slice by slice. Knows nothing of brokers, batches or memory.
Law: within a topic rows keep their order, and `positions` says where each is in the caller's columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.producer.producer_record import ProducerColumns, null_topic_error
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.arrays import nulls_of, numbers_of
from spark_kafka_sink.records.columns import RecordColumns, is_text, record_columns, texts
from spark_kafka_sink.records.layouts import contiguous, plain_column

# How many rows are encoded at a time: this bounds the scratch memory, some 250 B per row. With few partitions, columns of
# SLICE_ROWS stay in the CPU's cache. With many, most time goes into the work per partition and slice: slices are larger then, as
# long as they are small in bytes.
SLICE_ROWS = 32 * 1024
MAX_SLICE_ROWS = 80 * 1024
MAX_SLICE_BYTES = 8 * 1024 * 1024  # of records in a slice with more than SLICE_ROWS
TARGET_ROWS_PER_PARTITION = 256  # how many a slice should have on average, within the limits above


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows of one call that go to one topic."""

    topic: str
    columns: RecordColumns
    partitions: npt.NDArray[np.int32]  # partition, or NO_PARTITION
    positions: npt.NDArray[np.int32]  # of each row in the caller's columns

    def slices(self, partition_count: int = 1) -> Iterator[TopicRows]:
        """Parts of about the same number of rows, which share the memory of these rows. A part has at most SLICE_ROWS rows, or
        more for a topic with many partitions, within the limits above."""
        slice_count = -(-self.columns.row_count // SLICE_ROWS)
        target_rows = min(partition_count * TARGET_ROWS_PER_PARTITION, MAX_SLICE_ROWS)
        if slice_count > 1 and target_rows > SLICE_ROWS:
            min_slice_count = -(-int(self.columns.base_bytes.sum()) // MAX_SLICE_BYTES)
            slice_count = min(slice_count, max(min_slice_count, -(-self.columns.row_count // target_rows)))
        bounds = [self.columns.row_count * part // slice_count for part in range(slice_count + 1)] if slice_count else []
        for start, stop in itertools.pairwise(bounds):
            yield TopicRows(self.topic, self.columns.slice(start, stop), self.partitions[start:stop], self.positions[start:stop])

    def take(self, indices: npt.NDArray[np.integer]) -> TopicRows:
        """The rows at these indices, in that order."""
        return TopicRows(self.topic, self.columns.take(indices), self.partitions[indices], self.positions[indices])


def record_rows(columns: ProducerColumns, row_count: int, now_ms: int) -> RecordColumns:
    """The columns as records. A row without a timestamp gets `now_ms`."""
    timestamps: pa.Array | int = now_ms if columns.timestamp is None else columns.timestamp
    return record_columns(columns.value, columns.key, columns.headers, timestamps, now_ms, row_count=row_count)


def count_rows(columns: ProducerColumns) -> int:
    """The number of rows. Raises InvalidRecordError if there is no column."""
    if columns.rows is None:
        raise InvalidRecordError("send_columns needs at least one column, to know how many rows there are")
    return columns.rows


def explicit_partitions(partition: pa.Array | None, row_count: int) -> npt.NDArray[np.int32]:
    """The partition that each row names, or NO_PARTITION. Raises SchemaError and InvalidRecordError for a wrong column."""
    if partition is None:
        return np.full(row_count, NO_PARTITION, np.int32)
    if len(partition) != row_count:
        raise SchemaError(
            f"column partition has {len(partition)} rows where {row_count} are expected; pass columns of one length"
        )
    kind = partition.type.value_type if pa.types.is_dictionary(partition.type) else partition.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise SchemaError(f"column partition has type {partition.type}; it must be int32: cast it before sending")
    if pa.types.is_dictionary(partition.type):
        partition = plain_column(contiguous(partition))
    if partition.null_count == len(partition):
        return np.full(row_count, NO_PARTITION, np.int32)
    lowest, highest = pc.min_max(partition).as_py().values()
    if lowest < 0:
        raise InvalidRecordError(
            f"Invalid partition: {lowest}. Partition number should always be non-negative or null.",
            condition="KAFKA_INVALID_PARTITION",
        )
    if highest > 2**31 - 1:
        raise InvalidRecordError(f"Invalid partition: {highest} is not an int32", condition="KAFKA_INVALID_PARTITION")
    return numbers_of(partition.cast(pa.int32()), at_null=NO_PARTITION)


def split_by_topic(topic: str | pa.Array, columns: RecordColumns, partitions: npt.NDArray[np.int32]) -> list[TopicRows]:
    """The rows of each topic, in their order. An empty list if there are no rows."""
    if not columns.row_count:
        return []
    names, codes = ([topic], None) if isinstance(topic, str) else names_and_codes(topic)
    positions = np.arange(columns.row_count, dtype=np.int32)
    if len(names) == 1 or codes is None:
        return [TopicRows(names[0], columns, partitions, positions)]
    all_rows = TopicRows("", columns.in_one_piece(), partitions, positions)
    order = np.argsort(codes, kind="stable")
    stops = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
    topic_ranges = zip(names, [0, *stops], stops, strict=False)
    # A dictionary may name topics that no row uses.
    return [replace(all_rows.take(order[start:stop]), topic=name) for name, start, stop in topic_ranges if start < stop]


def check_topic_type(topic: str | pa.Array) -> None:
    """Raises SchemaError if a topic column is not of strings. A column of nulls passes: names_and_codes refuses it by its row."""
    if isinstance(topic, str):
        return
    kind = topic.type.value_type if pa.types.is_dictionary(topic.type) else topic.type
    if not is_text(kind) and not pa.types.is_null(kind):
        raise SchemaError(f"column topic has type {topic.type}; it must be string: cast it before sending")


def names_and_codes(topic: pa.Array) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The distinct names, and for each row the index of its topic among them. Raises InvalidRecordError for a null."""
    column = contiguous(topic)
    is_dictionary = pa.types.is_dictionary(column.type)  # its entries may repeat each other, and one may be null
    names = column.dictionary if is_dictionary else column
    distinct = (names if names.type in (pa.string(), pa.large_string()) else names.cast(pa.large_string())).dictionary_encode()
    codes = distinct.indices.take(column.indices) if is_dictionary else distinct.indices
    if codes.null_count:
        raise null_topic_error(int(np.argmax(nulls_of(codes))))
    return texts(distinct.dictionary), numbers_of(codes)
