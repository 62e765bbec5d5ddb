"""The table of next steps: what is done with a batch, for each error and each combination of facts that makes a difference."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spark_kafka_sink.producer.idempotence.sequencer import SequenceFacts
from spark_kafka_sink.producer.sender.retry import BatchFacts, NextStep, next_step
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, ErrorCode, Errors

COMPLETE, RETRY, NEW_EPOCH, SPLIT, FAIL, FATAL = NextStep
PLAIN = BatchFacts(record_count=10, may_retry=True)
IDEMPOTENT = PLAIN._replace(sequence=SequenceFacts(is_idempotent=True))

# (error, facts that differ from PLAIN, step)
TABLE: list[tuple[ErrorCode, dict[str, Any], NextStep]] = [
    (Errors.NONE, {}, COMPLETE),
    (Errors.NONE, {"may_retry": False}, COMPLETE),
    (Errors.NONE, {"has_failed": True, "may_retry": False}, COMPLETE),
    # written by an attempt before
    (Errors.DUPLICATE_SEQUENCE_NUMBER, {"is_idempotent": True}, COMPLETE),
    (Errors.DUPLICATE_SEQUENCE_NUMBER, {"is_idempotent": True, "may_retry": False}, COMPLETE),
    # retriable
    (Errors.NOT_LEADER_OR_FOLLOWER, {}, RETRY),
    (Errors.NOT_LEADER_OR_FOLLOWER, {"is_idempotent": True}, RETRY),
    (Errors.NOT_LEADER_OR_FOLLOWER, {"may_retry": False}, FAIL),
    (Errors.NETWORK_EXCEPTION, {}, RETRY),
    (Errors.REQUEST_TIMED_OUT, {}, RETRY),
    (Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, {}, RETRY),
    (Errors.UNKNOWN_TOPIC_OR_PARTITION, {}, RETRY),
    (Errors.UNKNOWN_TOPIC_ID, {}, RETRY),
    (Errors.CORRUPT_MESSAGE, {}, RETRY),
    (Errors.KAFKA_STORAGE_ERROR, {}, RETRY),
    (Errors.THROTTLING_QUOTA_EXCEEDED, {}, RETRY),
    # not retriable: this batch only
    (Errors.INVALID_RECORD, {}, FAIL),
    (Errors.TOPIC_AUTHORIZATION_FAILED, {"is_idempotent": True}, FAIL),
    (Errors.RECORD_LIST_TOO_LARGE, {}, FAIL),
    (Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, {"is_idempotent": True}, FAIL),
    (Errors.INVALID_PRODUCER_EPOCH, {"is_idempotent": True}, FAIL),
    (Errors.UNKNOWN_SERVER_ERROR, {}, FAIL),
    # too large: split, unless there is nothing to split or nobody waits for it
    (Errors.MESSAGE_TOO_LARGE, {}, SPLIT),
    (Errors.MESSAGE_TOO_LARGE, {"record_count": 2}, SPLIT),
    (Errors.MESSAGE_TOO_LARGE, {"may_retry": False}, SPLIT),  # does not use up a retry
    (Errors.MESSAGE_TOO_LARGE, {"record_count": 1}, FAIL),
    (Errors.MESSAGE_TOO_LARGE, {"has_failed": True}, FAIL),
    # fatal: no batch of this producer will fare better
    (Errors.CLUSTER_AUTHORIZATION_FAILED, {"is_idempotent": True}, FATAL),
    (Errors.PRODUCER_FENCED, {"is_idempotent": True}, FATAL),
    (Errors.INVALID_PRODUCER_ID_MAPPING, {"is_idempotent": True}, FATAL),
    (Errors.UNSUPPORTED_VERSION, {}, FATAL),
    (Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {"is_idempotent": True}, FATAL),
    # out of order: a gap before this batch
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {}, FAIL),  # nothing to be done without sequences
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_first": False, "is_next": False}, RETRY),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_first": False, "is_unresolved": True}, RETRY),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_next": True}, NEW_EPOCH),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_next": False}, RETRY),  # overtaken: a new epoch is no help
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_next": True, "sequence_has_been_reset": True}, RETRY),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_unresolved": True, "is_next": False}, NEW_EPOCH),
    (
        Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
        {"is_idempotent": True, "is_unresolved": True, "sequence_has_been_reset": True},
        NEW_EPOCH,
    ),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_next": True, "may_retry": False}, FAIL),
    (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, {"is_idempotent": True, "is_next": False, "may_retry": False}, FAIL),
    # the broker forgot this producer
    (Errors.UNKNOWN_PRODUCER_ID, {"log_start_offset": 5}, FAIL),
    (Errors.UNKNOWN_PRODUCER_ID, {"is_idempotent": True, "log_start_offset": -1}, RETRY),
    (Errors.UNKNOWN_PRODUCER_ID, {"is_idempotent": True, "log_start_offset": 5}, NEW_EPOCH),
    (Errors.UNKNOWN_PRODUCER_ID, {"is_idempotent": True, "log_start_offset": 5, "is_first": False}, RETRY),
    (Errors.UNKNOWN_PRODUCER_ID, {"is_idempotent": True, "log_start_offset": 5, "sequence_has_been_reset": True}, RETRY),
    (Errors.UNKNOWN_PRODUCER_ID, {"is_idempotent": True, "log_start_offset": 5, "may_retry": False}, FAIL),
]


@pytest.mark.parametrize(
    ("error", "facts", "step"),
    TABLE,
    ids=[f"{error.name}-{','.join(f'{name}={value}' for name, value in facts.items()) or 'plain'}" for error, facts, _ in TABLE],
)
def test_the_error_and_the_facts_decide_the_next_step_of_a_batch(error: ErrorCode, facts: dict[str, Any], step: NextStep) -> None:
    of_sequence = {name: facts[name] for name in facts if name in SequenceFacts._fields}
    others = {name: facts[name] for name in facts if name not in of_sequence}
    assert next_step(error, PLAIN._replace(sequence=SequenceFacts(**of_sequence), **others)) is step


RULED = {error for error, _, step in TABLE if step not in (RETRY, FAIL)} | {
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Errors.UNKNOWN_PRODUCER_ID,
}


@pytest.mark.parametrize("facts", [PLAIN, IDEMPOTENT], ids=["plain", "idempotent"])
@pytest.mark.parametrize("error", [code for code in ERROR_CODES.values() if code not in RULED], ids=lambda error: error.name)
def test_an_error_without_a_rule_follows_its_flag(error: ErrorCode, facts: BatchFacts) -> None:
    assert next_step(error, facts) is (RETRY if error.is_retriable else FAIL)


def test_an_error_newer_than_this_client_fails() -> None:
    assert next_step(Errors.for_code(30_000), IDEMPOTENT) is FAIL


def test_nothing_is_retried_that_may_not_be() -> None:
    """All errors with all facts: RETRY and RETRY_IN_NEW_EPOCH need may_retry, and a batch that has failed is never split."""
    for may_retry, has_failed, *values in itertools.product([False, True], repeat=2 + len(SequenceFacts._fields)):
        sequence = SequenceFacts(*values)
        facts = BatchFacts(2, may_retry, has_failed, sequence, log_start_offset=3)
        for error in ERROR_CODES.values():
            step = next_step(error, facts)
            assert may_retry or step not in (RETRY, NEW_EPOCH)
            assert not has_failed or step is not SPLIT
            assert sequence.is_idempotent or step is not NEW_EPOCH
            assert (step is COMPLETE) == (error in (Errors.NONE, Errors.DUPLICATE_SEQUENCE_NUMBER))
