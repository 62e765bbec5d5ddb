"""What to do with a batch after an answer: a pure function of the error and of facts about the batch.

Some errors have a rule or a fixed step. The others follow their `is_retriable` flag in protocol/error_codes.py. BatchOutcomes
takes the step. Sources: Kafka's Sender.completeBatch and TransactionManager.canRetry; KIP-360 for the epoch bumps.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from spark_kafka_sink.producer.idempotence.sequencer import SequenceFacts
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors


class NextStep(enum.Enum):
    """What to do with a batch after an answer."""

    COMPLETE = "complete"
    RETRY = "retry"
    RETRY_IN_NEW_EPOCH = "retry in a new epoch"
    SPLIT = "split"
    FAIL = "fail"
    FATAL = "fail, and every other batch of this producer"


class BatchFacts(NamedTuple):
    """What `next_step` must know of a batch, besides the error."""

    record_count: int
    may_retry: bool  # attempts are left, delivery.timeout.ms has not run out, and the batch has not failed meanwhile
    has_failed: bool = False  # before the answer came, for instance because it expired in flight
    sequence: SequenceFacts = SequenceFacts()
    log_start_offset: int = -1


def next_step(error: ErrorCode, facts: BatchFacts) -> NextStep:
    """What to do with a batch that was answered with `error`."""
    default_step = NextStep.RETRY if error.is_retriable else NextStep.FAIL
    rule = _RULES.get(error)
    step = _STEPS.get(error, default_step) if rule is None else rule(facts)
    if step in (NextStep.RETRY, NextStep.RETRY_IN_NEW_EPOCH) and not facts.may_retry:
        return NextStep.FAIL
    if step is NextStep.RETRY_IN_NEW_EPOCH and facts.sequence.is_transactional:
        return NextStep.FAIL
    return step


def _too_large_step(facts: BatchFacts) -> NextStep:
    return NextStep.SPLIT if facts.record_count > 1 and not facts.has_failed else NextStep.FAIL


def _unknown_producer_step(facts: BatchFacts) -> NextStep:
    """The broker has no state of this producer, because its records were deleted. It accepts sequence 0 of a new epoch."""
    if not facts.sequence.is_idempotent:
        return NextStep.FAIL
    if facts.log_start_offset == -1 or facts.sequence.sequence_has_been_reset or not facts.sequence.is_first:
        return NextStep.RETRY  # the broker does not say why; or this batch was renumbered already; or it must follow another
    return NextStep.RETRY_IN_NEW_EPOCH


def _out_of_order_step(facts: BatchFacts) -> NextStep:
    """A gap before this batch: an earlier batch in flight is being retried too, or the gap is real.

    The gap is real before the first batch in flight, if a failed batch may be missing, or if this one follows the last
    acknowledged one and was not renumbered. Then the broker has no batch from this one on: all can be sent in a new epoch.
    """
    if not facts.sequence.is_idempotent:
        return NextStep.FAIL
    if not facts.sequence.is_first:
        return NextStep.RETRY
    if facts.sequence.is_unresolved or (facts.sequence.is_next and not facts.sequence.sequence_has_been_reset):
        return NextStep.RETRY_IN_NEW_EPOCH
    return NextStep.RETRY


_STEPS = {
    Errors.NONE: NextStep.COMPLETE,
    Errors.DUPLICATE_SEQUENCE_NUMBER: NextStep.COMPLETE,  # an earlier attempt wrote it; its offset is unknown
    Errors.CLUSTER_AUTHORIZATION_FAILED: NextStep.FATAL,  # no IDEMPOTENT_WRITE: every batch would fail
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NextStep.FATAL,
    Errors.PRODUCER_FENCED: NextStep.FATAL,
    Errors.INVALID_PRODUCER_ID_MAPPING: NextStep.FATAL,  # the leader has asked the coordinator: see transaction_errors.py
    Errors.UNSUPPORTED_VERSION: NextStep.FATAL,
}
_RULES: dict[ErrorCode, Callable[[BatchFacts], NextStep]] = {
    Errors.MESSAGE_TOO_LARGE: _too_large_step,
    Errors.UNKNOWN_PRODUCER_ID: _unknown_producer_step,
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER: _out_of_order_step,
}
