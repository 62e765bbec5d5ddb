"""The coordinators of a cluster: which node coordinates which group or transactional id, and how it answers requests.

Has no sockets, so that any fake can use it. The fake holds the logs: it calls `batch_error` before it writes a transactional
batch, and writes the markers for which `write_marker` is called. FakeBroker does so over sockets. With MockClient a test writes

    request = client.requests[0]
    client.respond(coordinators.answer(request.message, client.version_of(request), request.node_id))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages import end_txn, produce, txn_offset_commit
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    ResourceType,
)
from spark_kafka_sink.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    KeyType,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from spark_kafka_sink.protocol.permissions import AUTHORIZED_OPERATIONS_OMITTED, AclOperation
from spark_kafka_sink.protocol.producer_identity import TRANSACTION_VERSION
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.error_responses import error_response
from tests.fakes.group_offsets import GroupOffsets
from tests.fakes.transaction_coordinator import (
    OFFSETS_TOPIC,
    TransactionCoordinator,
    WriteMarker,
    internal_partition,
    verification,
)

EVERYTHING = sum(1 << each for each in AclOperation)


class Coordinators:
    """All groups and transactional ids of a cluster.

    Args:
        nodes: the ids of the cluster's nodes.
        address: host and port of a node; None while the node is down.
        exists: whether a partition exists.
        write_marker: called for each partition of a topic when a transaction ends.
        transaction_version: the finalized feature transaction.version.
        settings: of every broker, besides those of coordinators.
        topic_settings: the settings of a topic; None: it does not exist.
        violations: where to note what is wrong in requests, though a broker accepts it.
    """

    def __init__(
        self,
        clock: Clock,
        nodes: Sequence[int],
        *,
        write_marker: WriteMarker,
        exists: Callable[[TopicPartition], bool] = lambda _: True,
        address: Callable[[int], tuple[str, int] | None] = lambda node_id: (f"node-{node_id}", 9092),
        transaction_version: int = 2,
        settings: Mapping[str, str] | None = None,
        topic_settings: Callable[[str], Mapping[str, str] | None] = lambda _: None,
        violations: list[str] | None = None,
    ) -> None:
        self.transactions = TransactionCoordinator(clock, write_marker=self._marker_due, transaction_version=transaction_version)
        self.offsets = GroupOffsets(self.transactions, exists=exists)
        self.violations: list[str] = [] if violations is None else violations
        self.settings: dict[str, str] = dict(settings or {})
        self.group_operations = EVERYTHING  # what the user may do with each group (KIP-430)
        self._topic_settings = topic_settings
        self._nodes = nodes
        self._write_marker = write_marker
        self._exists = exists
        self._address = address
        self._moved: dict[tuple[int, str], int] = {}  # (key type, key) -> node id

    def node_of(self, key_type: int, key: str) -> int:
        """The node that coordinates a group or transactional id."""
        return self._moved.get((key_type, key), self._nodes[internal_partition(key) % len(self._nodes)])

    def move(self, key_type: KeyType, key: str, node_id: int) -> None:
        """Make this node the coordinator of a group or transactional id. The old node answers NOT_COORDINATOR from now on."""
        self._moved[key_type, key] = node_id

    def batch_error(
        self, transactional_id: str | None, version: int, partition: TopicPartition, pid: int, epoch: int
    ) -> ErrorCode:
        """The coordinator's verdict on the first batch of a transaction in a partition (KIP-890).

        Args:
            version: of the Produce request with the batch.
        """
        if transactional_id is None:
            return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        last = produce.LAST_PRODUCE_VERSION_BEFORE_TV2
        self._expect_feature(version > last, f"Produce v{version} in a transaction")
        error = self.transactions.verify(transactional_id, pid, epoch, partition, verification(version, last))
        if error == Errors.CONCURRENT_TRANSACTIONS and version <= last:
            return Errors.NOT_ENOUGH_REPLICAS  # older clients retry this error
        return error

    def _expect_feature(self, is_v2: bool, what: str) -> None:
        """Note a violation if the client uses version 2 of the protocol without the feature.

        At level 1 a broker decides by the version of the request, and accepts it.
        """
        level = self.transactions.transaction_version
        if is_v2 and level < 2:
            self.violations.append(f"{what} although {TRANSACTION_VERSION} is {level}")

    def _marker_due(self, partition: TopicPartition, producer_id: int, epoch: int, committed: bool) -> None:
        if partition.topic == OFFSETS_TOPIC:
            self.offsets.end_transaction(partition, producer_id, committed)
        else:
            self._write_marker(partition, producer_id, epoch, committed)

    # REQUESTS

    def answer(self, message: Message, version: int, node_id: int) -> Message:
        """The answer of a node. Raises KeyError for requests that are not for coordinators."""
        if self._wanted_node(message, node_id) != node_id:
            return error_response(message, Errors.NOT_COORDINATOR)
        return self._HANDLERS[type(message)](self, message, version, node_id)

    def _wanted_node(self, message: Message, node_id: int) -> int:
        """The coordinator of the group or transactional id in the request; `node_id` if the request names none or several."""
        if isinstance(message, TxnOffsetCommitRequest | OffsetCommitRequest):
            return self.node_of(KeyType.GROUP, message.group_id)
        transactional_id: str | None = getattr(message, "transactional_id", None)
        return self.node_of(KeyType.TRANSACTION, transactional_id) if transactional_id else node_id

    def _find(self, message: FindCoordinatorRequest, _version: int, _node_id: int) -> FindCoordinatorResponse:
        if message.coordinator_keys:
            coordinators = (self._coordinator(message.key_type, key) for key in message.coordinator_keys)
            return FindCoordinatorResponse(coordinators=tuple(coordinators))
        one = self._coordinator(message.key_type, message.key)
        return FindCoordinatorResponse(error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port)

    def _coordinator(self, key_type: int, key: str) -> Coordinator:
        node_id = self.node_of(key_type, key)
        address = self._address(node_id)
        if address is None:
            return Coordinator(key=key, error_code=Errors.COORDINATOR_NOT_AVAILABLE.number)
        return Coordinator(key=key, node_id=node_id, host=address[0], port=address[1])

    def _init_producer_id(self, message: InitProducerIdRequest, version: int, _node_id: int) -> Message:
        return self.transactions.handle_init_producer_id(message, version)

    def _add_partitions(self, message: AddPartitionsToTxnRequest, version: int, _node_id: int) -> Message:
        partitions = (TopicPartition(topic.name, partition) for topic in message.topics for partition in topic.partitions)
        unknown = [partition for partition in partitions if not self._exists(partition)]
        return self.transactions.handle_add_partitions(message, version, unknown=unknown)

    def _add_offsets(self, message: AddOffsetsToTxnRequest, version: int, _node_id: int) -> Message:
        return self.transactions.handle_add_offsets(message, version)

    def _end(self, message: EndTxnRequest, version: int, _node_id: int) -> EndTxnResponse:
        self._expect_feature(version > end_txn.LAST_END_TXN_VERSION_BEFORE_TV2, f"EndTxn v{version}")
        return self.transactions.handle_end_txn(message, version)

    def _txn_offset_commit(self, message: TxnOffsetCommitRequest, version: int, _node_id: int) -> TxnOffsetCommitResponse:
        self._expect_feature(version > txn_offset_commit.LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2, f"TxnOffsetCommit v{version}")
        return self.offsets.handle_txn_commit(message, version)

    def _offset_commit(self, message: OffsetCommitRequest, _version: int, _node_id: int) -> Message:
        return self.offsets.handle_commit(message)

    def _offset_fetch(self, message: OffsetFetchRequest, version: int, node_id: int) -> Message:
        return self.offsets.handle_fetch(message, version, is_mine=lambda key: self.node_of(KeyType.GROUP, key) == node_id)

    def _list(self, message: ListTransactionsRequest, _version: int, node_id: int) -> Message:
        return self.transactions.handle_list(message, is_mine=lambda key: self.node_of(KeyType.TRANSACTION, key) == node_id)

    def _describe(self, message: DescribeTransactionsRequest, _version: int, node_id: int) -> Message:
        return self.transactions.handle_describe(message, is_mine=lambda key: self.node_of(KeyType.TRANSACTION, key) == node_id)

    def _describe_groups(self, message: DescribeGroupsRequest, _version: int, node_id: int) -> DescribeGroupsResponse:
        """None exists, for all that is told here."""
        operations = self.group_operations if message.include_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        return DescribeGroupsResponse(
            groups=tuple(
                DescribedGroup(group_id=group, group_state="Dead", authorized_operations=operations)
                if self.node_of(KeyType.GROUP, group) == node_id
                else DescribedGroup(group_id=group, error_code=Errors.NOT_COORDINATOR.number)
                for group in message.groups
            )
        )

    def _describe_configs(self, message: DescribeConfigsRequest, _version: int, node_id: int) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(results=tuple(self._describe_config(node_id, resource) for resource in message.resources))

    def _describe_config(self, node_id: int, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        """Of topics, and of the broker that gets the request; of these only `settings` and options of coordinators."""
        if resource.resource_type == ResourceType.TOPIC:
            return _topic_config(resource, self._topic_settings(resource.resource_name))
        values: dict[str, object] = {
            **self.settings,
            "transaction.max.timeout.ms": self.transactions.max_timeout_ms,
            "offset.metadata.max.bytes": self.offsets.max_metadata_bytes,
        }
        names = values if resource.configuration_keys is None else values.keys() & set(resource.configuration_keys)
        is_here = (resource.resource_type, resource.resource_name) == (ResourceType.BROKER, str(node_id))
        configs = (DescribeConfigsResourceResult(name=name, value=str(values[name])) for name in sorted(names) if is_here)
        return DescribeConfigsResult(
            error_code=0 if is_here else Errors.INVALID_REQUEST.number,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(configs),
        )

    _HANDLERS: dict[type[Message], Callable[[Coordinators, Any, int, int], Message]] = {  # noqa: RUF012 - a table, never changed
        FindCoordinatorRequest: _find,
        InitProducerIdRequest: _init_producer_id,
        AddPartitionsToTxnRequest: _add_partitions,
        AddOffsetsToTxnRequest: _add_offsets,
        EndTxnRequest: _end,
        TxnOffsetCommitRequest: _txn_offset_commit,
        OffsetCommitRequest: _offset_commit,
        OffsetFetchRequest: _offset_fetch,
        ListTransactionsRequest: _list,
        DescribeTransactionsRequest: _describe,
        DescribeConfigsRequest: _describe_configs,
        DescribeGroupsRequest: _describe_groups,
    }


def _topic_config(resource: DescribeConfigsResource, settings: Mapping[str, str] | None) -> DescribeConfigsResult:
    values = settings or {}
    names = values.keys() if resource.configuration_keys is None else values.keys() & set(resource.configuration_keys)
    return DescribeConfigsResult(
        error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION.number if settings is None else 0,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(DescribeConfigsResourceResult(name=name, value=values[name]) for name in sorted(names)),
    )
