"""What an error of a coordinator means for the transaction: one row for each API and error that has a rule of its own.

Errors without a row follow protocol/error_codes.py: a retriable one is retried with back-off, any other is fatal, or abortable
where it is a partition's. Transactions applies the effect; nothing here has one. Source: the handlers of Kafka's
TransactionManager, KIP-360 (epoch bumps), KIP-588 (fencing), KIP-890 and KIP-1050 (TRANSACTION_ABORTABLE).

Softer than Java 4, as librdkafka is: INVALID_PRODUCER_ID_MAPPING ends the transaction, not the producer, because the abort asks
for a new epoch, and a producer that was replaced is fenced then; and so do offsets that are refused for their topic or size.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors


class Effect(enum.Enum):
    NONE = "no error"
    RETRY = "retry with back-off"
    FIND_COORDINATOR = "find the coordinator again, then retry"
    ABORTABLE = "the transaction must be aborted"
    ABORTABLE_BY_BUMP = "the transaction must be aborted and the epoch bumped; fatal where brokers cannot bump it"
    DENIED = "the call fails; init_transactions() may be called once the permission is granted"
    FENCED = "fatal: another producer has taken over the transactional id"
    FATAL = "fatal: the producer must be closed"


_FIND = dict.fromkeys((Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR), Effect.FIND_COORDINATOR)

# INVALID_PRODUCER_EPOCH comes from coordinators older than PRODUCER_FENCED and means the same there.
_FENCED = dict.fromkeys((Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH), Effect.FENCED)

_OF_EVERY_COORDINATOR = _FIND | _FENCED | {Errors.TRANSACTION_ABORTABLE: Effect.ABORTABLE}

_OF_AN_OPEN_TRANSACTION = _OF_EVERY_COORDINATOR | dict.fromkeys(
    (Errors.UNKNOWN_PRODUCER_ID, Errors.INVALID_PRODUCER_ID_MAPPING), Effect.ABORTABLE_BY_BUMP
)

RULES: Mapping[ApiKey, Mapping[ErrorCode, Effect]] = {
    ApiKey.FIND_COORDINATOR: {
        Errors.COORDINATOR_NOT_AVAILABLE: Effect.RETRY,  # it is this request that finds it
        Errors.NOT_COORDINATOR: Effect.RETRY,
        Errors.GROUP_AUTHORIZATION_FAILED: Effect.ABORTABLE,
        Errors.TRANSACTION_ABORTABLE: Effect.ABORTABLE,
    },
    ApiKey.INIT_PRODUCER_ID: _OF_EVERY_COORDINATOR
    | dict.fromkeys((Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.CLUSTER_AUTHORIZATION_FAILED), Effect.DENIED),
    ApiKey.ADD_PARTITIONS_TO_TXN: _OF_AN_OPEN_TRANSACTION
    | dict.fromkeys((Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.INVALID_TXN_STATE), Effect.FATAL),
    ApiKey.ADD_OFFSETS_TO_TXN: _OF_AN_OPEN_TRANSACTION | {Errors.GROUP_AUTHORIZATION_FAILED: Effect.ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: _OF_AN_OPEN_TRANSACTION
    | {Errors.REQUEST_TIMED_OUT: Effect.FIND_COORDINATOR}
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
        Effect.ABORTABLE,
    ),
    ApiKey.END_TXN: _OF_AN_OPEN_TRANSACTION,
}


def effect_of(api: ApiKey, error: ErrorCode) -> Effect:
    if not error:
        return Effect.NONE
    others = Effect.ABORTABLE if api is ApiKey.ADD_PARTITIONS_TO_TXN else Effect.FATAL
    return RULES[api].get(error) or (Effect.RETRY if error.retriable else others)
