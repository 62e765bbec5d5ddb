"""What to do with a batch after an answer: a pure decision, by a rule or a fixed step for each error that has one.

Other errors follow their `retriable` flag in protocol/error_codes.py. BatchOutcomes applies the decision; nothing here has an
effect. Sources: Kafka's Sender.completeBatch and TransactionManager.canRetry; KIP-360 for the epoch bumps.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors


class NextStep(enum.Enum):
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
    has_failed: bool = False  # already, as it expired in flight
    idempotent: bool = False
    transactional: bool = False  # no epoch is bumped within a transaction: the transaction is aborted
    sequence_was_reset: bool = False
    is_first: bool = True  # no batch of the partition with a lower sequence is being sent or retried
    is_next: bool = True  # its sequence directly follows the last acknowledged one
    unresolved: bool = False  # a batch of the partition has failed: its sequences may be missing in the log
    log_start_offset: int = -1


def decide(error: ErrorCode, attempt: Attempt) -> NextStep:
    by_flag = NextStep.RETRY if error.retriable else NextStep.FAIL
    rule = _RULES.get(error)
    decision = _STEPS.get(error, by_flag) if rule is None else rule(attempt)
    if decision in (NextStep.RETRY, NextStep.RETRY_IN_NEW_EPOCH) and not attempt.may_retry:
        return NextStep.FAIL
    if decision is NextStep.RETRY_IN_NEW_EPOCH and attempt.transactional:
        return NextStep.FAIL
    return decision


def _too_large(attempt: Attempt) -> NextStep:
    return NextStep.SPLIT if attempt.record_count > 1 and not attempt.has_failed else NextStep.FAIL


def _unknown_producer(attempt: Attempt) -> NextStep:
    """The broker has no state of this producer, because its records were deleted. It accepts sequence 0 of a new epoch."""
    if not attempt.idempotent:
        return NextStep.FAIL
    if attempt.log_start_offset == -1 or attempt.sequence_was_reset or not attempt.is_first:
        return NextStep.RETRY  # the broker does not know why; or it was renumbered already; or the first batch decides
    return NextStep.RETRY_IN_NEW_EPOCH


def _out_of_order(attempt: Attempt) -> NextStep:
    """A gap before this batch: an earlier batch in flight is being retried too, or the gap is real.

    For the first batch in flight the gap is real. The broker has neither this batch nor any behind it, so all of them can be
    sent again in a new epoch.
    """
    if not attempt.idempotent:
        return NextStep.FAIL
    if not attempt.is_first:
        return NextStep.RETRY
    if attempt.unresolved or (attempt.is_next and not attempt.sequence_was_reset):
        return NextStep.RETRY_IN_NEW_EPOCH
    return NextStep.RETRY


_STEPS = {
    Errors.NONE: NextStep.COMPLETE,
    Errors.DUPLICATE_SEQUENCE_NUMBER: NextStep.COMPLETE,  # an earlier attempt wrote it; its offset is unknown
    Errors.CLUSTER_AUTHORIZATION_FAILED: NextStep.FATAL,  # no IDEMPOTENT_WRITE: every batch would fail
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NextStep.FATAL,
    Errors.PRODUCER_FENCED: NextStep.FATAL,
    Errors.UNSUPPORTED_VERSION: NextStep.FATAL,
}
_RULES: dict[ErrorCode, Callable[[Attempt], NextStep]] = {
    Errors.MESSAGE_TOO_LARGE: _too_large,
    Errors.UNKNOWN_PRODUCER_ID: _unknown_producer,
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER: _out_of_order,
}
