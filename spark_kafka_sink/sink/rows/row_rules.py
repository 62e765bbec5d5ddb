"""The user's choices for rows: what a task does with those that cannot be written, and how fast it may send.

Plain data, made on the driver from SinkOptions. `row_outcomes.py` and `throttle.py` follow it in the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.config.sink_options import FAIL, SinkOptions

# Conditions of rows that are too large, for the client or for the broker. Rows with any other condition are invalid.
TOO_LARGE = frozenset({"KAFKA_RECORD_TOO_LARGE", "KAFKA_MESSAGE_TOO_LARGE", "KAFKA_RECORD_LIST_TOO_LARGE"})


@dataclass(frozen=True, slots=True)
class RowRules:
    """Fates are FAIL, SKIP or DEAD_LETTER. Rates are per task and second; None: no limit."""

    on_record_too_large: str = FAIL
    on_invalid_record: str = FAIL
    dead_letter_topic: str | None = None
    max_records_per_second: int | None = None
    max_bytes_per_second: int | None = None

    @classmethod
    def of(cls, options: SinkOptions) -> RowRules:
        return cls(
            options.on_record_too_large,
            options.on_invalid_record,
            options.dead_letter_topic,
            options.max_records_per_second,
            options.max_bytes_per_second,
        )

    def fate(self, condition: str) -> str:
        """The fate of a row that is refused with this condition."""
        return self.on_record_too_large if condition in TOO_LARGE else self.on_invalid_record

    @property
    def all_rows_must_be_written(self) -> bool:
        return self.on_record_too_large == FAIL and self.on_invalid_record == FAIL
