"""The transactions of `perf`: when they begin and end, and their transactional.id, as in kafka-producer-perf-test."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.producer.producer import KafkaProducer

TRANSACTIONAL_ID = "transactional.id"
DEFAULT_ID_PREFIX = "performance-producer-"
DEFAULT_DURATION_MS = 3000


def transactional_options(options: Mapping[str, str], transactional_id: str | None, duration_ms: int | None) -> dict[str, str]:
    """The options, with a transactional.id: the argument, else the option's, else a new one if a duration is given, else none."""
    if transactional_id is not None:
        return {**options, TRANSACTIONAL_ID: transactional_id}
    if duration_ms is not None and TRANSACTIONAL_ID not in options:
        return {**options, TRANSACTIONAL_ID: f"{DEFAULT_ID_PREFIX}{uuid.uuid4()}"}
    return dict(options)


class TransactionPace:
    """Begins a transaction with the first record after a commit, and commits it when it has reached its age.

    Each call may block for at most max.block.ms and raises what KafkaProducer's method raises.

    Args:
        duration_ms: the age at which it is committed; None for a run without transactions.
    """

    def __init__(self, producer: KafkaProducer, duration_ms: int | None, clock: Clock) -> None:
        self._producer = producer
        self._duration_ms = duration_ms
        self._clock = clock
        self._began_ms: int | None = None  # None: no transaction is open

    def begin_if_none(self) -> None:
        """Call this before records are sent."""
        if self._duration_ms is not None and self._began_ms is None:
            self._producer.begin_transaction()
            self._began_ms = self._clock.now_ms()

    def commit_if_due(self, *, is_last: bool) -> None:
        """Call this after records were sent. After the last records of the run, it commits at once."""
        if self._duration_ms is None or self._began_ms is None:
            return
        if is_last or self._clock.now_ms() - self._began_ms >= self._duration_ms:
            self._producer.commit_transaction()
            self._began_ms = None
