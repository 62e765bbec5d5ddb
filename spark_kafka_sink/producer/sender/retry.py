"""What to do with a batch after an answer: one pure table, with a row for each error that has its own rule.

Other errors follow their `retriable` flag in protocol/error_codes.py. BatchFates applies the decision; nothing here has an
effect. Sources: Kafka's Sender.completeBatch and TransactionManager.canRetry; KIP-360 for the epoch bumps.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors


class Decision(enum.Enum):
    COMPLETE = "complete"
    RETRY = "retry"
    RETRY_IN_NEW_EPOCH = "retry in a new epoch"
    SPLIT = "split"
    FAIL = "fail"
    FATAL = "fail, and every other batch of this producer"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The facts that decide. Those about sequences are of an idempotent producer; the defaults fit any other."""

    record_count: int
    may_retry: bool  # attempts are left, delivery.timeout.ms has not run out, and the batch has not failed meanwhile
    done: bool = False  # it has failed already, as it expired in flight
    idempotent: bool = False
    transactional: bool = False  # no epoch is bumped within a transaction: the transaction is aborted
    sequence_was_reset: bool = False
    is_first: bool = True  # no batch of the partition with a lower sequence is being sent or retried
    is_next: bool = True  # its sequence directly follows the last acknowledged one
    unresolved: bool = False  # a batch of the partition has failed: its sequences may be missing in the log
    log_start_offset: int = -1


def decide(error: ErrorCode, attempt: Attempt) -> Decision:
    rule = _RULES.get(error)
    decision = _by_flag(error) if rule is None else rule(attempt)
    if decision in (Decision.RETRY, Decision.RETRY_IN_NEW_EPOCH) and not attempt.may_retry:
        return Decision.FAIL
    if decision is Decision.RETRY_IN_NEW_EPOCH and attempt.transactional:
        return Decision.FAIL
    return decision


def _by_flag(error: ErrorCode) -> Decision:
    return Decision.RETRY if error.retriable else Decision.FAIL


def _too_large(attempt: Attempt) -> Decision:
    return Decision.SPLIT if attempt.record_count > 1 and not attempt.done else Decision.FAIL


def _unknown_producer(attempt: Attempt) -> Decision:
    """The broker has no state of this producer, because its records were deleted. It accepts sequence 0 of a new epoch."""
    if not attempt.idempotent:
        return Decision.FAIL
    if attempt.log_start_offset == -1 or attempt.sequence_was_reset or not attempt.is_first:
        return Decision.RETRY  # the broker does not know why; or it was renumbered already; or the first batch decides
    return Decision.RETRY_IN_NEW_EPOCH


def _out_of_order(attempt: Attempt) -> Decision:
    """A gap before this batch: an earlier batch in flight is being retried too, or the gap is real.

    For the first batch in flight the gap is real. The broker has neither this batch nor any behind it, so all of them can be
    sent again in a new epoch.
    """
    if not attempt.idempotent:
        return Decision.FAIL
    if not attempt.is_first:
        return Decision.RETRY
    if attempt.unresolved or (attempt.is_next and not attempt.sequence_was_reset):
        return Decision.RETRY_IN_NEW_EPOCH
    return Decision.RETRY


def _always(decision: Decision) -> Callable[[Attempt], Decision]:
    return lambda _: decision


_RULES: dict[ErrorCode, Callable[[Attempt], Decision]] = {
    Errors.NONE: _always(Decision.COMPLETE),
    Errors.DUPLICATE_SEQUENCE_NUMBER: _always(Decision.COMPLETE),  # an earlier attempt wrote it; its offset is unknown
    Errors.MESSAGE_TOO_LARGE: _too_large,
    Errors.UNKNOWN_PRODUCER_ID: _unknown_producer,
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER: _out_of_order,
    Errors.CLUSTER_AUTHORIZATION_FAILED: _always(Decision.FATAL),  # no IDEMPOTENT_WRITE: every batch would fail
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _always(Decision.FATAL),
    Errors.PRODUCER_FENCED: _always(Decision.FATAL),
    Errors.UNSUPPORTED_VERSION: _always(Decision.FATAL),
}
