"""Handles rows whose batch a broker rejected: which rows are to blame, and which rows can be sent again.

If a broker finds a batch too large, the producer splits it, down to single records: only rows that are too large fail. For other
reasons a broker rejects the whole batch. If it names the records to blame (KIP-467), the other rows are sent again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.row_outcomes import RowOutcomes, UnwritableRows

if TYPE_CHECKING:
    from spark_kafka_sink.producer.accumulator.delivery import Delivery, RowFailure

logger = logging.getLogger(__name__)


def error_of_delivery(delivery: Delivery, error: KafkaError, chunk: Chunk | None, outcomes: RowOutcomes) -> KafkaError:
    """A copy of the delivery's error. It names the row that the broker blames, if that is known and the chunk is kept."""
    failure = next((each for each in delivery.failures if each.error is error), None)
    if failure is None or not failure.blamed or chunk is None:
        return fresh_copy(error)
    row, blamed_error = next(iter(failure.blamed.items()))
    return outcomes.error_naming_row(blamed_error, blamed_error.message, chunk, row, _partition(failure))


def handle_failure(chunk: Chunk | None, failure: RowFailure, outcomes: RowOutcomes) -> Chunk | None:
    """Apply the user's choice to the rows that the broker blames. Returns the others of their batch, which must be sent again.

    Raises when a blamed row must fail the task. Raises the failure's error if no rows are named, or the chunk is not kept.
    """
    if chunk is None or not failure.rows_are_named:
        raise fresh_copy(failure.error)
    by_reason: dict[tuple[str, str], list[int]] = {}
    for row, error in failure.blamed.items():
        if outcomes.fails_task(error.condition):
            raise outcomes.error_naming_row(error, error.message, chunk, row, _partition(failure))
        by_reason.setdefault((error.condition, error.message), []).append(row)
    for (condition, text), rows in by_reason.items():
        outcomes.apply(chunk, UnwritableRows(condition, text, np.array(rows, np.int64)), _partition(failure))
    others = np.setdiff1d(failure.rows, np.array(list(failure.blamed), np.int64))
    if not len(others):
        return None
    logger.info("sending %d rows again: the broker rejected their batch because of other rows", len(others))
    return chunk.take(others)


def _partition(failure: RowFailure) -> int | None:
    return None if failure.topic_partition is None else failure.topic_partition.partition
