"""What an answer means: every error code of the protocol, for every operation of admin/."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import pytest

from spark_kafka_sink import admin
from spark_kafka_sink.admin.brokers import DescribeBrokerConfig, FindCoordinator, SupportedFeature
from spark_kafka_sink.admin.leaders import DescribeProducers, FindLeaders, ListEndOffset
from spark_kafka_sink.admin.offsets import (
    CommitOffsets,
    CommittedOffset,
    FetchOffsets,
    FetchStableOffsets,
    OffsetsToCommit,
    OffsetsToFetch,
)
from spark_kafka_sink.admin.operation import Operation, RetryNeeded
from spark_kafka_sink.admin.permissions import GroupPermissions, MayWriteToId
from spark_kafka_sink.admin.topics import DescribeTopic, DescribeTopicConfigs
from spark_kafka_sink.admin.transaction_operations import (
    AddedGroup,
    AddedPartitions,
    AddGroup,
    AddPartitions,
    DescribeTransactions,
    EndOutcome,
    EndTransaction,
    ExpectedProducer,
    FenceProducer,
    ListTransactions,
    TakeOver,
    TransactionEnd,
    prefix_pattern,
)
from spark_kafka_sink.errors import AuthorizationError, KafkaError
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.protocol.api_keys import API_TABLE
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.error_responses import error_response

PREPARED = PreparedTransaction("P", 7, 0, 2)
PARTITION = TopicPartition("t", 0)
OPERATIONS: list[tuple[Operation[Any, Any], Any]] = [
    (FindCoordinator(KeyType.GROUP), CoordinatorKey(KeyType.GROUP, "g")),
    (FindCoordinator(KeyType.TRANSACTION), CoordinatorKey(KeyType.TRANSACTION, "P")),
    (DescribeBrokerConfig(), "transaction.max.timeout.ms"),
    (SupportedFeature(), "metadata.version"),
    (EndTransaction(commit=True, is_v2=True), PREPARED),
    (EndTransaction(commit=False, is_v2=False), PREPARED),
    (FenceProducer(30_000), "P"),
    (TakeOver(30_000), ExpectedProducer("P", ProducerIdentity(7, 0))),
    (AddGroup(), AddedGroup(PREPARED, "g")),
    (AddPartitions(), AddedPartitions(PREPARED, frozenset({PARTITION}))),
    (ListTransactions(("Ongoing",)), "P-"),
    (DescribeTransactions(), "P"),
    (FetchOffsets(require_stable=True), OffsetsToFetch("g", (PARTITION,))),
    (FetchOffsets(require_stable=False), OffsetsToFetch("g", None)),
    (FetchStableOffsets(), OffsetsToFetch("g", (PARTITION,))),
    (CommitOffsets(), OffsetsToCommit("g", {PARTITION: CommittedOffset(1, "m")})),
    (FindLeaders(), "t"),
    (DescribeProducers(), PARTITION),
    (ListEndOffset(IsolationLevel.READ_COMMITTED), PARTITION),
    (DescribeTopic(), "t"),
    (DescribeTopicConfigs(("max.message.bytes",)), "t"),
    (GroupPermissions(), "g"),
    (MayWriteToId(), "P"),
]
UNKNOWN_TOPIC = Errors.UNKNOWN_TOPIC_OR_PARTITION
OTHER_PRODUCER = (Errors.INVALID_PRODUCER_EPOCH, Errors.INVALID_PRODUCER_ID_MAPPING, Errors.PRODUCER_FENCED)
# What is no failure of the item: an id that nobody has used, or that another producer has; no such partition or group.
KNOWN_ANSWERS = {
    *((TakeOver, error) for error in OTHER_PRODUCER),
    (DescribeTransactions, Errors.TRANSACTIONAL_ID_NOT_FOUND),
    (FetchStableOffsets, Errors.UNSTABLE_OFFSET_COMMIT),
    (DescribeTopic, UNKNOWN_TOPIC),
    (MayWriteToId, Errors.INVALID_PRODUCER_ID_MAPPING),
    (AddPartitions, UNKNOWN_TOPIC),
    *((operation, Errors.GROUP_ID_NOT_FOUND) for operation in (FetchOffsets, FetchStableOffsets, GroupPermissions)),
}
RESULTS: dict[tuple[type, ErrorCode], object] = {  # of these; None of the others
    (MayWriteToId, Errors.INVALID_PRODUCER_ID_MAPPING): True,
    (AddPartitions, UNKNOWN_TOPIC): frozenset({PARTITION}),
    (FetchOffsets, Errors.GROUP_ID_NOT_FOUND): {},
    (FetchStableOffsets, Errors.GROUP_ID_NOT_FOUND): {},
}
FINAL_THOUGH_RETRIABLE = {(each, UNKNOWN_TOPIC) for each in (CommitOffsets, FindLeaders, DescribeTopicConfigs)}
UNKNOWN = Errors.for_code(999)


def verdict(operation: Operation[Any, Any], item: Any, error: ErrorCode) -> Any:
    """What is raised for an answer with this error, or the result."""
    oldest, newest = operation.versions
    limits = API_TABLE[operation.api_key]
    version = limits.max_version if newest is None else newest
    assert max(oldest, limits.min_version) <= version <= limits.max_version
    request = operation.message([item], 1, version)
    assert request.encode(version)
    answer = request.RESPONSE.decode(version, b"".join(map(bytes, error_response(request, error).encode(version))))
    try:
        return operation.judge(item, answer, version)
    except (RetryNeeded, KafkaError) as raised:
        return raised


def test_operations_of_the_package_are_all_tested() -> None:
    for module in pkgutil.iter_modules(admin.__path__, f"{admin.__name__}."):
        import_module(module.name)
    operation_types = {each for each in Operation.__subclasses__() if each.__module__.startswith(f"{admin.__name__}.")}
    assert {type(operation) for operation, _ in OPERATIONS} == operation_types


@pytest.mark.parametrize(("operation", "item"), OPERATIONS, ids=lambda value: type(value).__name__)
def test_every_error_is_retried_or_is_named(operation: Operation[Any, Any], item: Any) -> None:
    for error in [*filter(None, ERROR_CODES.values()), UNKNOWN]:
        result = verdict(operation, item, error)
        if isinstance(result, EndOutcome):
            assert result.end is not TransactionEnd.ENDED
            result = result.error
        if isinstance(result, RetryNeeded):
            assert error.is_retriable
            assert result.error == error
        elif not isinstance(result, KafkaError):
            assert result == RESULTS.get((type(operation), error))
            assert (type(operation), error) in KNOWN_ANSWERS
        else:
            assert not error.is_retriable or (type(operation), error) in FINAL_THOUGH_RETRIABLE
            assert result.condition == f"KAFKA_{error.name}"
            assert operation.describe(item) in str(result)


@pytest.mark.parametrize(("operation", "item"), OPERATIONS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    ("error", "permission"),
    [
        (Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "WRITE on the transactional id '"),
        (Errors.GROUP_AUTHORIZATION_FAILED, "READ on the group '"),
        (Errors.CLUSTER_AUTHORIZATION_FAILED, "DESCRIBE_CONFIGS on the cluster"),
    ],
    ids=str,
)
def test_a_missing_permission_is_named(operation: Operation[Any, Any], item: Any, error: ErrorCode, permission: str) -> None:
    result = verdict(operation, item, error)
    if isinstance(result, EndOutcome):
        result = result.error
    assert isinstance(result, AuthorizationError)
    assert f"Grant the user {permission}" in result.message


def test_names_of_others_are_printed_on_one_line() -> None:
    error = verdict(FenceProducer(1), "P\n2026 ERROR forged", Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert len(str(error).splitlines()) == 1


def test_a_prefix_is_quoted_for_re2() -> None:
    assert prefix_pattern("a.b-ü_1") == r"(?s)a\.b-ü_1.*"
    assert prefix_pattern("\\.+*?()|[]{}^$") == r"(?s)\\\.\+\*\?\(\)\|\[\]\{\}\^\$.*"
