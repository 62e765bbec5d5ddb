"""Queues the rows of a whole table, batch by batch, as `send_columns` would queue each batch, with one Delivery for all.

table_batches.py reads the table, table_columns.py knows its columns, ColumnSender queues the rows of a batch.
Laws: a batch is read only after the previous one is queued, so that a stream is never in memory as a whole. The call is one
hand-over from its first queued row to its last (hand_overs.py). A transaction with only a part of a table cannot commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, SchemaError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.column_sender import ColumnSender
from spark_kafka_sink.producer.hand_overs import CLEANED_UP_ERRORS, HandOver, HandOvers
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.tables.table_batches import next_batch, open_table
from spark_kafka_sink.producer.tables.table_columns import TableColumns


@dataclass(eq=False, repr=False)
class TableSender:
    """Carries out `KafkaProducer.send_table`."""

    columns: ColumnSender  # queues the rows of a batch
    interceptors: Interceptors | None  # see the columns of each batch first
    hand_overs: HandOvers  # runs the call, and notices an interrupt
    clock: Clock  # of the Delivery
    on_partly_queued: Callable[[KafkaError], None]  # gets the error if only the first rows of a table are queued

    def send(self, topic: str | None, table: object, check_usable: Callable[[], None]) -> Delivery:
        """Queue all rows of a table. `check_usable`: called before each batch; raises when no further rows can be sent."""
        if not (topic is None or isinstance(topic, str)):
            raise SchemaError(f"topic has the Python type {type(topic).__name__}; pass a str, or None for the column topic")
        reader = open_table(table)
        columns = TableColumns.find(reader.schema, topic, self.columns.encodes)
        return self.hand_overs.run(self._send_all, reader, columns, check_usable)

    def _send_all(
        self, hand_over: HandOver, reader: pa.RecordBatchReader, columns: TableColumns, check_usable: Callable[[], None]
    ) -> Delivery:
        delivery = Delivery(0, self.clock, whole_name="table")
        first_row = 0  # of the batch that is read and queued
        try:
            while (batch := next_batch(reader)) is not None:
                if batch.num_rows:
                    check_usable()
                    self._send_batch(hand_over, columns.producer_columns(batch), delivery)
                    first_row = delivery.rows
                del batch  # before the next one is read
        except KafkaError as error:
            if isinstance(error, InvalidRecordError):
                _name_row_of_table(error, first_row)
            if first_row:
                error.message = _partly_queued_text(error.message, first_row)
                self.on_partly_queued(error)
            raise
        except CLEANED_UP_ERRORS as error:
            if not first_row:
                raise
            self.on_partly_queued(KafkaError(_partly_queued_text(repr(error), first_row)))
            # One of numpy's MemoryErrors takes other arguments.
            kind = MemoryError if isinstance(error, MemoryError) else type(error)
            raise kind(_partly_queued_text(str(error) or "out of memory", first_row)) from error
        return delivery

    def _send_batch(self, hand_over: HandOver, columns: ProducerColumns, delivery: Delivery) -> None:
        columns.require_topics()
        queue = partial(self.columns.queue, hand_over, delivery)
        if self.interceptors is None:
            queue(columns)
        else:
            self.interceptors.send_columns(columns, queue)


def _name_row_of_table(error: InvalidRecordError, first_row: int) -> None:
    """Number the row as in the whole table: ColumnSender numbers rows within their batch, which it calls a chunk."""
    if error.row is None:
        return
    chunk_text = f"row {error.row} of this chunk"
    old_text = chunk_text if chunk_text in error.message else f"row {error.row}"
    error.row += first_row
    error.message = error.message.replace(old_text, f"row {error.row} of this table", 1)


def _partly_queued_text(text: str, first_row: int) -> str:
    """The text of an error, and in which batch it happened. All rows before that batch are queued."""
    where = f"in the table's batch that begins at row {first_row:,}; the rows before it are queued, and are not taken back"
    return f"{text.removesuffix('.')} ({where})"
