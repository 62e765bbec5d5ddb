"""Applies the user's rules to rows that cannot be written: skip them, or send them to the dead letter topic. Counts both.

Rows that must fail their task never come here: callers ask `fails_task` first.
"""

from __future__ import annotations

import logging
from collections import Counter

from spark_kafka_sink.config.sink_options import FAIL, SKIP
from spark_kafka_sink.sink.rows.chunk import Chunk, row_in_words
from spark_kafka_sink.sink.rows.dead_letters import DeadLetters
from spark_kafka_sink.sink.rows.refused_rows import Refusal
from spark_kafka_sink.sink.rows.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.row_rules import RowRules

logger = logging.getLogger(__name__)


class RowOutcomes:
    """Of one task. `dead_letters` is None when no rule asks for it."""

    def __init__(self, rules: RowRules, mapping: RowMapping, dead_letters: DeadLetters | None) -> None:
        self._rules = rules
        self._mapping = mapping
        self._dead_letters = dead_letters
        self._logged: set[str] = set()  # conditions; each is logged for its first row only
        self.skipped_by_reason: Counter[str] = Counter()  # condition -> rows

    @property
    def skipped(self) -> int:
        return self.skipped_by_reason.total()

    @property
    def dead_lettered(self) -> int:
        """Rows that are acknowledged in the dead letter topic."""
        return self.dead_lettered_by_reason.total()

    @property
    def dead_lettered_by_reason(self) -> Counter[str]:
        return Counter() if self._dead_letters is None else self._dead_letters.acknowledged_by_reason

    def fails_task(self, condition: str) -> bool:
        return self._rules.fate(condition) == FAIL

    def apply(self, chunk: Chunk, refusal: Refusal, partition: int | None = None) -> None:
        """Skip the refused rows of the chunk, or queue them for the dead letter topic. Blocks and raises as send_columns does.

        `partition`: the partition whose broker refused them; None: they were refused before sending.
        """
        skips = self._rules.fate(refusal.condition) == SKIP
        columns = self._mapping.unchecked_columns(chunk.take(refusal.rows).table)
        if refusal.condition not in self._logged:
            self._logged.add(refusal.condition)
            row = row_in_words(columns, 0, int(chunk.numbers[refusal.rows[0]]), partition, self._mapping.shows_keys)
            done = "skipped" if skips else f"goes to {self._rules.dead_letter_topic}"
            logger.warning("%s [%s] %s: %s. Further rows like it are only counted", row, refusal.condition, refusal.text, done)
        if skips:
            self.skipped_by_reason[refusal.condition] += len(refusal.rows)
        elif self._dead_letters is not None:
            self._dead_letters.send(columns, refusal.condition, refusal.text, partition)

    def raise_failure(self) -> None:
        """If a dead letter has failed, and not only because of other rows."""
        if self._dead_letters is not None:
            self._dead_letters.raise_failure()

    def finish(self) -> None:
        """Wait until every dead letter is acknowledged. Raises the first error."""
        if self._dead_letters is not None:
            self._dead_letters.finish()

    def close(self, timeout_ms: int | None) -> None:
        if self._dead_letters is not None:
            self._dead_letters.close(timeout_ms)
