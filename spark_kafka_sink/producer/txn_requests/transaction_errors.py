"""What an error of a coordinator means for the transaction, and the errors that callers get for it.

`TXN_ERROR_RULES` has a row for each API and error with a rule of its own. Errors without a row follow protocol/error_codes.py: a
retriable one is retried with back-off, any other is fatal, or abortable in an answer to AddPartitionsToTxn. TxnRequestQueue
retries, and a RequestSequencer acts on the other effects; nothing here has an effect. Source: the handlers of Kafka's
TransactionManager, KIP-360 (epoch bumps), KIP-588 (fencing), KIP-890 and KIP-1050 (TRANSACTION_ABORTABLE).

A coordinator forgets a transactional id that was not used for a week, and with it who had the id last. A producer that gets
INVALID_PRODUCER_ID_MAPPING may have been replaced before, and what it would write again may be committed (KAFKA-18019): it is
fatal. After UNKNOWN_PRODUCER_ID, which leaders answer, the abort or a new epoch shows who has the id. Softer than Java 4, as
librdkafka is: offsets rejected for their topic or size end only the transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    FatalProducerError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity

KafkaErrorT = TypeVar("KafkaErrorT", bound=KafkaError)


class ErrorEffect(enum.Enum):
    """What an error of a coordinator leads to."""

    RETRY = "retry with back-off"
    FIND_COORDINATOR = "find the coordinator again, then retry"
    ABORTABLE = "the transaction must be aborted"
    ABORTABLE_BY_BUMP = "the transaction must be aborted and the epoch bumped; fatal where brokers cannot bump it"
    DENIED = "the call fails; init_transactions() may be called once the permission is granted"
    FENCED = "fatal: another producer has taken over the transactional id"
    FATAL = "fatal: the producer must be closed"


_FIND_RULES = dict.fromkeys((Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR), ErrorEffect.FIND_COORDINATOR)

# INVALID_PRODUCER_EPOCH comes from coordinators older than PRODUCER_FENCED and means the same there.
_FENCED_RULES = dict.fromkeys((Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH), ErrorEffect.FENCED)

_COORDINATOR_RULES = _FIND_RULES | _FENCED_RULES | {Errors.TRANSACTION_ABORTABLE: ErrorEffect.ABORTABLE}

_OPEN_TRANSACTION_RULES = (
    _COORDINATOR_RULES
    | {Errors.UNKNOWN_PRODUCER_ID: ErrorEffect.ABORTABLE_BY_BUMP}
    | dict.fromkeys((Errors.INVALID_PRODUCER_ID_MAPPING, Errors.TRANSACTIONAL_ID_NOT_FOUND), ErrorEffect.FATAL)
)

TXN_ERROR_RULES: Mapping[ApiKey, Mapping[ErrorCode, ErrorEffect]] = {
    ApiKey.FIND_COORDINATOR: {
        Errors.COORDINATOR_NOT_AVAILABLE: ErrorEffect.RETRY,  # this request itself looks for it
        Errors.NOT_COORDINATOR: ErrorEffect.RETRY,
        Errors.GROUP_AUTHORIZATION_FAILED: ErrorEffect.ABORTABLE,
        Errors.TRANSACTION_ABORTABLE: ErrorEffect.ABORTABLE,
    },
    ApiKey.INIT_PRODUCER_ID: _COORDINATOR_RULES
    | dict.fromkeys((Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.CLUSTER_AUTHORIZATION_FAILED), ErrorEffect.DENIED),
    ApiKey.ADD_PARTITIONS_TO_TXN: _OPEN_TRANSACTION_RULES
    | dict.fromkeys((Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.INVALID_TXN_STATE), ErrorEffect.FATAL),
    ApiKey.ADD_OFFSETS_TO_TXN: _OPEN_TRANSACTION_RULES | {Errors.GROUP_AUTHORIZATION_FAILED: ErrorEffect.ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: _OPEN_TRANSACTION_RULES
    | {Errors.REQUEST_TIMED_OUT: ErrorEffect.FIND_COORDINATOR}
    | dict.fromkeys(
        (
            Errors.GROUP_AUTHORIZATION_FAILED,
            Errors.TOPIC_AUTHORIZATION_FAILED,
            Errors.FENCED_INSTANCE_ID,
            Errors.UNKNOWN_MEMBER_ID,
            Errors.ILLEGAL_GENERATION,
            Errors.STALE_MEMBER_EPOCH,
            Errors.GROUP_ID_NOT_FOUND,
            Errors.INVALID_COMMIT_OFFSET_SIZE,
            Errors.OFFSET_METADATA_TOO_LARGE,
        ),
        ErrorEffect.ABORTABLE,
    ),
    ApiKey.END_TXN: _OPEN_TRANSACTION_RULES,
}


def effect_of(api: ApiKey, error: ErrorCode) -> ErrorEffect:
    default_effect = ErrorEffect.ABORTABLE if api is ApiKey.ADD_PARTITIONS_TO_TXN else ErrorEffect.FATAL
    return TXN_ERROR_RULES[api].get(error) or (ErrorEffect.RETRY if error.is_retriable else default_effect)


# THE ERRORS THAT CALLERS GET, made from the error of a request or a row; `where`: what was rejected, for the text


def abortable_error(error: KafkaError) -> AbortableTransactionError:
    text = f"The transaction cannot be committed: {_sentence(error)} Call abort_transaction(), then go on with the next one."
    return _with_cause(AbortableTransactionError(text, condition=error.condition), error)


def fatal_error(error: KafkaError) -> FatalProducerError:
    text = f"{_sentence(error)} This producer can no longer be used: close it."
    return _with_cause(FatalProducerError(text, condition=error.condition), error)


def maybe_committed_error(error: KafkaError) -> KafkaError:
    """Make the error for an EndTxn that is rejected after a commit got no answer, or after the transaction was prepared."""
    text = (
        f"{_sentence(error)} An earlier attempt of the commit, or another process, may have committed the transaction: whether it"
        " is committed is not known."
    )
    return _with_cause(KafkaError(text, condition=error.condition), error)


def fenced_error(where: str, transactional_id: str, identity: ProducerIdentity, timeout_ms: int) -> ProducerFencedError:
    return ProducerFencedError(
        f"{where}: another producer with transactional id {transactional_id!r} has been started since and has taken over;"
        f" this one (producer id {identity.producer_id}, epoch {identity.producer_epoch}) can write nothing more. If both should"
        " live, give each its own transactional.id. Brokers say the same of a producer whose transaction they ended because it"
        f" was open for longer than transaction.timeout.ms={timeout_ms}."
    )


def aborted_error(cause: KafkaError | None) -> TransactionAbortedError:
    """The error of rows that were not sent before their transaction was aborted."""
    text = "The transaction was aborted before this row was sent"
    if cause is None:
        return TransactionAbortedError(text)
    return _with_cause(TransactionAbortedError(f"{text}, because of another failure: {cause.message}"), cause)


def idempotent_write_denied_error(where: str) -> KafkaError:
    return Errors.CLUSTER_AUTHORIZATION_FAILED.exception(
        f"{where}: idempotent writes are not allowed for this user; grant IDEMPOTENT_WRITE on the cluster"
        " (brokers from 2.8 on also accept WRITE on any topic), or set enable.idempotence=false"
    )


def _with_cause(error: KafkaErrorT, cause: KafkaError) -> KafkaErrorT:
    error.__cause__ = cause
    return error


def _sentence(error: KafkaError) -> str:
    return error.message if error.message.endswith((".", "!", "?")) else f"{error.message}."
