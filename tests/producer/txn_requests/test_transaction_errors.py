"""What each error of a coordinator means, for each API: the table as Kafka's TransactionManager handles it, row by row."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.txn_requests.transaction_errors import TXN_ERROR_RULES, ErrorEffect, effect_of
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors

ENDING = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
OF_COORDINATORS = (*ENDING, ApiKey.INIT_PRODUCER_ID)
ALL = (*OF_COORDINATORS, ApiKey.FIND_COORDINATOR)

EXPECTED: list[tuple[tuple[ApiKey, ...], ErrorCode, ErrorEffect]] = [
    (ALL, Errors.COORDINATOR_LOAD_IN_PROGRESS, ErrorEffect.RETRY),
    (OF_COORDINATORS, Errors.COORDINATOR_NOT_AVAILABLE, ErrorEffect.FIND_COORDINATOR),
    (OF_COORDINATORS, Errors.NOT_COORDINATOR, ErrorEffect.FIND_COORDINATOR),
    ((ApiKey.FIND_COORDINATOR,), Errors.COORDINATOR_NOT_AVAILABLE, ErrorEffect.RETRY),
    (OF_COORDINATORS, Errors.CONCURRENT_TRANSACTIONS, ErrorEffect.RETRY),
    (OF_COORDINATORS, Errors.PRODUCER_FENCED, ErrorEffect.FENCED),
    (OF_COORDINATORS, Errors.INVALID_PRODUCER_EPOCH, ErrorEffect.FENCED),
    (ALL, Errors.TRANSACTION_ABORTABLE, ErrorEffect.ABORTABLE),
    (ENDING, Errors.UNKNOWN_PRODUCER_ID, ErrorEffect.ABORTABLE_BY_BUMP),
    (OF_COORDINATORS, Errors.INVALID_PRODUCER_ID_MAPPING, ErrorEffect.FATAL),
    (OF_COORDINATORS, Errors.TRANSACTIONAL_ID_NOT_FOUND, ErrorEffect.FATAL),
    (ENDING, Errors.INVALID_TXN_STATE, ErrorEffect.FATAL),
    (ENDING, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorEffect.FATAL),
    ((ApiKey.FIND_COORDINATOR,), Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorEffect.FATAL),
    ((ApiKey.INIT_PRODUCER_ID,), Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorEffect.DENIED),
    ((ApiKey.INIT_PRODUCER_ID,), Errors.CLUSTER_AUTHORIZATION_FAILED, ErrorEffect.DENIED),
    ((ApiKey.INIT_PRODUCER_ID,), Errors.INVALID_TRANSACTION_TIMEOUT, ErrorEffect.FATAL),
    ((ApiKey.ADD_PARTITIONS_TO_TXN,), Errors.TOPIC_AUTHORIZATION_FAILED, ErrorEffect.ABORTABLE),
    ((ApiKey.ADD_PARTITIONS_TO_TXN,), Errors.OPERATION_NOT_ATTEMPTED, ErrorEffect.ABORTABLE),
    ((ApiKey.ADD_PARTITIONS_TO_TXN,), Errors.UNKNOWN_TOPIC_OR_PARTITION, ErrorEffect.RETRY),
    (
        (ApiKey.FIND_COORDINATOR, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT),
        Errors.GROUP_AUTHORIZATION_FAILED,
        ErrorEffect.ABORTABLE,
    ),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.REQUEST_TIMED_OUT, ErrorEffect.FIND_COORDINATOR),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.UNKNOWN_TOPIC_OR_PARTITION, ErrorEffect.RETRY),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.FENCED_INSTANCE_ID, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.UNKNOWN_MEMBER_ID, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.ILLEGAL_GENERATION, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.STALE_MEMBER_EPOCH, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.OFFSET_METADATA_TOO_LARGE, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorEffect.FATAL),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.GROUP_ID_NOT_FOUND, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.INVALID_COMMIT_OFFSET_SIZE, ErrorEffect.ABORTABLE),
    ((ApiKey.TXN_OFFSET_COMMIT,), Errors.TOPIC_AUTHORIZATION_FAILED, ErrorEffect.ABORTABLE),
    ((ApiKey.FIND_COORDINATOR,), Errors.NOT_COORDINATOR, ErrorEffect.RETRY),
    ((ApiKey.ADD_PARTITIONS_TO_TXN,), Errors.UNKNOWN_SERVER_ERROR, ErrorEffect.ABORTABLE),
    ((ApiKey.ADD_PARTITIONS_TO_TXN,), Errors.INVALID_TOPIC_EXCEPTION, ErrorEffect.ABORTABLE),
    (tuple(api for api in ALL if api is not ApiKey.ADD_PARTITIONS_TO_TXN), Errors.UNKNOWN_SERVER_ERROR, ErrorEffect.FATAL),
]
ROWS = [(api, error, effect) for apis, error, effect in EXPECTED for api in apis]


@pytest.mark.parametrize(("api", "error", "effect"), ROWS, ids=lambda part: getattr(part, "name", str(part)))
def test_an_error_means_what_it_means_to_the_java_client(api: ApiKey, error: ErrorCode, effect: ErrorEffect) -> None:
    assert effect_of(api, error) is effect


def test_every_rule_is_among_them() -> None:
    cases = {(api, error.number) for api, error, _ in ROWS}
    rules = {(api, error.number) for api, rules in TXN_ERROR_RULES.items() for error in rules}
    assert rules - cases == set()
