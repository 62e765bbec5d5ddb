"""What happens when code raises on the Sender thread.

An Exception in one step is logged, and the next step follows (`guard_step`). After an Exception in a round the Sender backs off
and runs the next round, until no round has worked for delivery.timeout.ms. Other exceptions (SystemExit of a callback that calls
sys.exit(), KeyboardInterrupt) end the thread. Sender thread only, except `fatal` and `error`, which callers read too.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from random import Random
from types import TracebackType

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.producer.hand_overs import HandOvers

logger = logging.getLogger(__name__)

MIN_BACKOFF_MS = 50  # however small retry.backoff.ms is: each round that fails logs a traceback


class SenderFailures:
    """Keeps the exceptions of the Sender thread, and decides whether they end it."""

    def __init__(self, config: ProducerConfig, hand_overs: HandOvers) -> None:
        self._config = config
        self._hand_overs = hand_overs
        least_ms, most_ms = max(MIN_BACKOFF_MS, config.retry_backoff_ms), max(MIN_BACKOFF_MS, config.retry_backoff_max_ms)
        self._backoff = ExponentialBackoff(least_ms, most_ms, Random())
        self._ended_by: BaseException | None = None
        self.last_round_error: Exception | None = None  # from the latest round; None if that round worked
        self._failing_since_ms: int | None = None  # when the first of the latest failed rounds failed
        self._failed_round_count = 0  # since then

    def guard_step(self, step: object) -> AbstractContextManager[None]:
        """Contain what a step raises, so that the next one runs. An Exception is logged; others end the thread after it."""
        return _StepGuard(self, step)

    def end(self, error: BaseException) -> None:
        """End the thread after this round, with this exception as the cause. A later call keeps the first one."""
        self._ended_by = self._ended_by or error

    def note_round_success(self) -> None:
        self._failing_since_ms, self._failed_round_count, self.last_round_error = None, 0, None

    def note_round_failure(self, error: Exception, now_ms: int) -> int:
        """Returns the back-off in ms before the next round. After delivery.timeout.ms of failed rounds, calls `end` instead."""
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if now_ms - self._failing_since_ms >= self._config.delivery_timeout_ms:
            self.end(error)
            return 0
        backoff_ms = self._backoff.backoff_ms(self._failed_round_count)
        self._failed_round_count += 1
        self.last_round_error = error
        return backoff_ms

    @property
    def fatal(self) -> BaseException | None:
        """What ended the thread before close(), or will end it after this round: an exception, or an interrupted call's error."""
        return self._ended_by or self._hand_overs.failure()

    def error(self) -> KafkaError | None:
        """`fatal` for callers, as a new exception each time. Any thread."""
        if self._ended_by is None:
            interrupt_error = self._hand_overs.failure()
            return None if interrupt_error is None else fresh_copy(interrupt_error)
        error = KafkaError(f"The producer's sender thread failed: {self._ended_by!r}", condition="KAFKA_INTERNAL_ERROR")
        error.__cause__ = self._ended_by
        return error


class _StepGuard(AbstractContextManager[None]):
    """What `guard_step` returns. A class, because a generator takes several times as long, and each batch is a step."""

    __slots__ = ("_failures", "_step")

    def __init__(self, failures: SenderFailures, step: object) -> None:
        self._failures = failures
        self._step = step

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            return False
        if isinstance(error, Exception):
            logger.exception("! %s: failed; the sender goes on", self._step)
        else:
            logger.exception("! %s: ends the sender", self._step)
            self._failures.end(error)
        return True
