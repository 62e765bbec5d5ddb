"""The response to any request when all that it asks for fails with one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from spark_kafka_sink.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseState,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from spark_kafka_sink.protocol.schema import Message


def error_response(request: Message, error: ErrorCode) -> Message:
    """Fits every version of the request. KeyError for a request that is not in the table."""
    return _ANSWERS[type(request)](request, error.number)


def _find_coordinator(request: FindCoordinatorRequest, code: int) -> FindCoordinatorResponse:
    if request.coordinator_keys:
        return FindCoordinatorResponse(
            coordinators=tuple(Coordinator(key=key, error_code=code) for key in request.coordinator_keys),
        )
    return FindCoordinatorResponse(error_code=code)


def _add_partitions(request: AddPartitionsToTxnRequest, code: int) -> AddPartitionsToTxnResponse:
    topics = []
    for topic in request.topics:
        parts = (AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=code) for each in topic.partitions)
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=tuple(parts)))
    return AddPartitionsToTxnResponse(results_by_topic=tuple(topics))


def _txn_offset_commit(request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    topics = []
    for topic in request.topics:
        parts = (
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code) for each in topic.partitions
        )
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(parts)))
    return TxnOffsetCommitResponse(topics=tuple(topics))


def _offset_commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    topics = []
    for topic in request.topics:
        parts = (
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code) for each in topic.partitions
        )
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(parts)))
    return OffsetCommitResponse(topics=tuple(topics))


def _offset_fetch(request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    if request.groups:
        groups = tuple(OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups)
        return OffsetFetchResponse(groups=groups)
    return OffsetFetchResponse(error_code=code)


def _describe_configs(request: DescribeConfigsRequest, code: int) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=tuple(
            DescribeConfigsResult(error_code=code, resource_type=each.resource_type, resource_name=each.resource_name)
            for each in request.resources
        )
    )


def _describe_groups(request: DescribeGroupsRequest, code: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=tuple(DescribedGroup(error_code=code, group_id=name) for name in request.groups))


def _describe_transactions(request: DescribeTransactionsRequest, code: int) -> DescribeTransactionsResponse:
    states = (DescribeTransactionsResponseState(error_code=code, transactional_id=name) for name in request.transactional_ids)
    return DescribeTransactionsResponse(transaction_states=tuple(states))


def _describe_producers(request: DescribeProducersRequest, code: int) -> DescribeProducersResponse:
    topics = []
    for topic in request.topics:
        parts = (PartitionResponse(partition_index=index, error_code=code) for index in topic.partition_indexes)
        topics.append(TopicResponse(name=topic.name, partitions=tuple(parts)))
    return DescribeProducersResponse(topics=tuple(topics))


def _list_offsets(request: ListOffsetsRequest, code: int) -> ListOffsetsResponse:
    topics = []
    for topic in request.topics:
        parts = (ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=code) for each in topic.partitions)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(parts)))
    return ListOffsetsResponse(topics=tuple(topics))


def _metadata(request: MetadataRequest, code: int) -> MetadataResponse:
    topics = (MetadataResponseTopic(error_code=code, name=topic.name) for topic in request.topics or ())
    return MetadataResponse(topics=tuple(topics))


_ANSWERS: dict[type[Message], Callable[[Any, int], Message]] = {
    ApiVersionsRequest: lambda _, code: ApiVersionsResponse(error_code=code),
    FindCoordinatorRequest: _find_coordinator,
    InitProducerIdRequest: lambda _, code: InitProducerIdResponse(error_code=code),
    AddPartitionsToTxnRequest: _add_partitions,
    AddOffsetsToTxnRequest: lambda _, code: AddOffsetsToTxnResponse(error_code=code),
    EndTxnRequest: lambda _, code: EndTxnResponse(error_code=code),
    TxnOffsetCommitRequest: _txn_offset_commit,
    OffsetCommitRequest: _offset_commit,
    OffsetFetchRequest: _offset_fetch,
    ListTransactionsRequest: lambda _, code: ListTransactionsResponse(error_code=code),
    DescribeTransactionsRequest: _describe_transactions,
    DescribeConfigsRequest: _describe_configs,
    DescribeGroupsRequest: _describe_groups,
    DescribeProducersRequest: _describe_producers,
    ListOffsetsRequest: _list_offsets,
    MetadataRequest: _metadata,
}
