"""Applies the user's choice to rows that cannot be written: skip them, or send them to the dead letter topic. Names such rows.

Rows that must fail their task are never handed to `apply`: callers ask `fails_task` first.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from spark_kafka_sink.config.sink_options import FAIL_TASK, SKIP, SinkOptions
from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.sink.rows.chunk import Chunk, PerRow
from spark_kafka_sink.sink.rows.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

# Conditions of rows that are too large, for the client or for the broker. Rows with any other condition are invalid.
TOO_LARGE = frozenset({"KAFKA_RECORD_TOO_LARGE", "KAFKA_MESSAGE_TOO_LARGE", "KAFKA_RECORD_LIST_TOO_LARGE"})


@dataclass(frozen=True, slots=True)
class UnwritableRows:
    """Rows of a chunk that cannot be written for the same reason. `text` is true of every one of them."""

    condition: str
    text: str
    rows: PerRow  # their positions in the chunk
    field: str | None = None  # of the key or value, if that is what cannot be encoded


class RowOutcomes:
    """Applies the user's choice to the rows of one task. `dead_letters` is None if no option asks for it."""

    def __init__(self, options: SinkOptions, dead_letters: DeadLetters | None) -> None:
        self._options = options
        self._dead_letters = dead_letters
        self._logged_conditions: set[str] = set()  # each is logged for its first row only
        self.skipped_by_reason: Counter[str] = Counter()  # condition -> rows

    def fails_task(self, condition: str) -> bool:
        return self._choice(condition) == FAIL_TASK

    def _choice(self, condition: str) -> str:
        return self._options.on_record_too_large if condition in TOO_LARGE else self._options.on_invalid_record

    def apply(self, chunk: Chunk, unwritable: UnwritableRows, partition: int | None = None) -> None:
        """Skip rows of the chunk, or queue them for the dead letter topic. Blocks and raises as send_columns does.

        `partition`: the partition whose broker rejected them; None: the client refused them.
        """
        skips = self._choice(unwritable.condition) == SKIP
        rows = chunk.take(unwritable.rows)
        if unwritable.condition not in self._logged_conditions:
            self._logged_conditions.add(unwritable.condition)
            row = rows.row_in_words(0, partition=partition, shows_key=self._options.show_keys)
            outcome = "skipped" if skips else f"goes to {self._options.dead_letter_topic}"
            logger.warning(
                "%s [%s] %s: %s. Further rows like it are only counted", row, unwritable.condition, unwritable.text, outcome
            )
        if skips:
            self.skipped_by_reason[unwritable.condition] += len(rows.numbers)
        elif self._dead_letters is not None:
            self._dead_letters.send(rows.columns, unwritable.condition, unwritable.text, partition, unwritable.field)

    def error_naming_row(self, error: KafkaError, text: str, chunk: Chunk, row: int, partition: int | None = None) -> KafkaError:
        """A copy of the error whose message names the row, then says `text`. Arguments as those of `Chunk.row_in_words`."""
        row_error = fresh_copy(error)
        row_error.message = f"{chunk.row_in_words(row, partition=partition, shows_key=self._options.show_keys)}: {text}"
        return row_error
