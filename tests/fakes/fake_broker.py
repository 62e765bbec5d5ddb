"""A Kafka cluster in threads, over real sockets on 127.0.0.1, for tests that need more than scripted answers.

FakeBroker answers ApiVersions, Metadata and Produce itself, and checks batches as a broker does: format, checksum, size, leader,
epoch, sequence, duplicates of the last five. record_decoder.py decodes the batches, without any code of the package.
fake_node.py has the sockets, partition_log.py the logs.
coordinators.py answers all requests to coordinators: transaction_coordinator.py holds the transactions, group_offsets.py the
offsets. A test can read the state of both, and can delay the markers of transactions.
A test queues faults for the next requests, moves leaders and coordinators, stops nodes, and reads the logs afterwards.

    with FakeBroker(nodes=3, topics={"orders": 6}) as broker:
        broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2)
        ... produce to broker.bootstrap_servers ...
        assert broker.values("orders") == [...]
        assert broker.violations == []

With transactions, `committed_values` returns what read_committed readers see. The broker writes markers before it answers EndTxn,
unless the test sets `broker.transactions.holds_markers`. A transaction times out only when the test calls
`broker.clock.advance(…)` and then `broker.transactions.abort_timed_out()`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.list_offsets import (
    IsolationLevel,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    LAST_PRODUCE_VERSION_BEFORE_TV2,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.permissions import AUTHORIZED_OPERATIONS_OMITTED
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.producer_identity import TRANSACTION_VERSION
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.coordinators import EVERYTHING, Coordinators
from tests.fakes.error_responses import error_response
from tests.fakes.fake_node import WAIT_SECONDS, DropConnection, FakeNode, ReceivedRequest
from tests.fakes.partition_log import PartitionLog
from tests.fakes.record_decoder import Batch, InvalidBatch, Record, decode_batch

LOOK_AGAIN_SECONDS = 0.02
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


@dataclass
class Fault:
    """What happens to the next request that matches. Each fault is used once."""

    api_key: ApiKey
    node_id: int | None = None
    topic_partition: TopicPartition | None = None  # only requests that write to this partition match, and only it gets the error
    error: ErrorCode | None = None
    error_message: str | None = None
    drop_connection: bool = False
    after_append: bool = False  # the broker carries out the request, then sends the error or drops the connection
    throttle_ms: int = 0
    release: threading.Event | None = None  # the broker handles the request only when this is set
    reply: Callable[[Any], Message] | None = None  # gets the broker's response, returns the one to send


@dataclass
class Topic:
    topic_id: UUID
    partitions: list[PartitionLog]
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    error: ErrorCode | None = None  # Metadata answers have this error instead of the partitions
    settings: dict[str, str] = field(default_factory=dict)  # besides max.message.bytes, for DescribeConfigs
    operations: int = EVERYTHING  # what the user may do with it (KIP-430)


class FakeBroker:
    """A whole cluster, not one broker: `nodes` brokers with ids 0, 1, …

    Args:
        topics: name -> number of partitions; the nodes lead them in turn.
        auto_create_partitions: number of partitions with which a Metadata request creates an unknown topic; None: it does not.
        versions: api key -> (min, max), for APIs of which the broker supports fewer versions than the client; an API whose max is
            below its min is not supported.
        knows_topic_ids: false for brokers before Kafka 2.8.
        users: name -> password (or token) of the users who can log in with SASL; None: the listeners have no SASL.
        session_ms: how long a login is valid; 0: without limit.
        transaction_version: the finalized feature transaction.version. For clients 0 and 1 mean the same.
        clock: measures the time-outs of transactions.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        auto_create_partitions: int | None = None,
        versions: Mapping[ApiKey, tuple[int, int]] | None = None,
        knows_topic_ids: bool = True,
        users: Mapping[str, str] | None = None,
        session_ms: int = 0,
        transaction_version: int = 2,
        clock: ManualClock | None = None,
    ) -> None:
        self.cluster_id = "fake-cluster"
        self.auto_create_partitions = auto_create_partitions
        self.knows_topic_ids = knows_topic_ids
        self.users = users
        self.session_ms = session_ms
        self.versions = {key: (api.min_version, api.max_version) for key, api in API_TABLE.items()} | dict(versions or {})
        self.lock = threading.RLock()  # guards all below
        self.topics: dict[str, Topic] = {}
        self.requests: list[ReceivedRequest] = []
        self.refused_logins: list[int] = []  # node ids
        self.violations: list[str] = []  # what is wrong in requests, though a broker accepts it
        self._changed = threading.Condition(self.lock)  # notified on every request and append
        self._faults: list[Fault] = []
        self.clock = clock or ManualClock()
        self.supported_features = {node_id: {TRANSACTION_VERSION: 2, "metadata.version": 29} for node_id in range(nodes)}
        self.features_epoch = 1  # grows when transaction.version changes
        self.coordinators = Coordinators(
            self.clock,
            range(nodes),
            write_marker=self._write_marker,
            exists=lambda partition: self._log(partition) is not None,
            address=self._address,
            transaction_version=transaction_version,
            settings={"auto.create.topics.enable": str(auto_create_partitions is not None).lower()},
            topic_settings=self._topic_settings,
            violations=self.violations,
        )
        self.transactions = self.coordinators.transactions
        self.offsets = self.coordinators.offsets
        self._logins_to_refuse: list[int] = []  # node ids
        self.nodes = {node_id: FakeNode(self, node_id) for node_id in range(nodes)}
        self.hosts: dict[int, str] = {}  # node id -> the name that it is advertised under; else 127.0.0.1
        for name, partitions in (topics or {}).items():
            self.add_topic(name, partitions)

    # LIFE

    def __enter__(self) -> FakeBroker:
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self.lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            if fault.release is not None:
                fault.release.set()
        for node in self.nodes.values():
            node.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def stop_node(self, node_id: int) -> None:
        """Close the node's connections and reject new ones. It stays the leader of its partitions."""
        self.nodes[node_id].stop()

    def start_node(self, node_id: int) -> None:
        """Start a stopped node again, on the same port."""
        self.nodes[node_id].start()

    def drop_connections(self, node_id: int) -> None:
        self.nodes[node_id].drop_connections()

    # TOPICS

    def add_topic(self, name: str, partitions: int, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Topic:
        with self.lock:
            ids = list(self.nodes)
            topic_id = uuid4() if self.knows_topic_ids else ZERO_UUID
            logs = [PartitionLog(leader=ids[index % len(ids)]) for index in range(partitions)]
            self.topics[name] = Topic(topic_id, logs, max_message_bytes)
            return self.topics[name]

    def delete_topic(self, name: str) -> None:
        with self.lock:
            del self.topics[name]
            self.offsets.delete_topic(name)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        with self.lock:
            log = self.topics[topic].partitions[partition]
            log.leader = node_id
            log.leader_epoch += 1

    def batches(self, topic: str, partition: int | None = None) -> list[Batch]:
        """In log order; without a partition, those of partition 0, then of 1, and so on."""
        with self.lock:
            logs = self.topics[topic].partitions
            return [batch for log in (logs if partition is None else [logs[partition]]) for batch in log.batches]

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        return [record for batch in self.batches(topic, partition) for record in batch.records]

    def values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        return [record.value for record in self.records(topic, partition)]

    def committed_records(self, topic: str, partition: int | None = None) -> list[Record]:
        """What read_committed readers see, in log order."""
        with self.lock:
            logs = self.topics[topic].partitions
            return [record for log in (logs if partition is None else [logs[partition]]) for record in log.committed_records()]

    def committed_values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        return [record.value for record in self.committed_records(topic, partition)]

    def last_stable_offset(self, topic: str, partition: int) -> int:
        with self.lock:
            return self.topics[topic].partitions[partition].end_offset(IsolationLevel.READ_COMMITTED)

    def requests_of(self, api_key: ApiKey) -> list[ReceivedRequest]:
        with self.lock:
            return [request for request in self.requests if request.header.api_key == api_key]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, for at most WAIT_SECONDS.

        It is checked after each request and each append, and now and then, as it may be about the client.
        """
        deadline_s = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while not self._changed.wait_for(condition, LOOK_AGAIN_SECONDS):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the broker did not see what the test waits for")

    # COORDINATORS

    def set_transaction_version(self, level: int) -> None:
        with self.lock:
            self.transactions.transaction_version = level
            self.features_epoch += 1

    def move_coordinator(self, key_type: KeyType, key: str, node_id: int) -> None:
        """Make this node the coordinator of a group or transactional id. The old node answers NOT_COORDINATOR from now on."""
        with self.lock:
            self.coordinators.move(key_type, key, node_id)

    # FAULTS

    def inject(self, fault: Fault, *, times: int = 1) -> None:
        with self.lock:
            self._faults.extend(replace_fields(fault) for _ in range(times))

    def fail_next(
        self,
        api_key: ApiKey,
        error: ErrorCode,
        *,
        times: int = 1,
        after_append: bool = False,
        topic_partition: TopicPartition | None = None,
    ) -> None:
        """Answer with an error; with after_append, batches are written nevertheless."""
        self.inject(Fault(api_key, error=error, after_append=after_append, topic_partition=topic_partition), times=times)

    def drop_next(self, api_key: ApiKey, *, times: int = 1, after_append: bool = False, node_id: int | None = None) -> None:
        """Close the connection instead of answering; with after_append, batches are written nevertheless."""
        self.inject(Fault(api_key, drop_connection=True, after_append=after_append, node_id=node_id), times=times)

    def hold_next(self, api_key: ApiKey, *, times: int = 1, node_id: int | None = None) -> threading.Event:
        """Handle the next request only when the test sets the event that this returns."""
        release = threading.Event()
        self.inject(Fault(api_key, release=release, node_id=node_id), times=times)
        return release

    def refuse_next_login(self, node_id: int) -> None:
        """Reject the node's next login, as a broker does that has not loaded all users yet."""
        with self.lock:
            self._logins_to_refuse.append(node_id)

    def judge_login(self, node_id: int, response: Message) -> Message:
        """The response to send for a step of a login: `response`, or a rejection if the test asked for one."""
        with self._changed:
            if node_id in self._logins_to_refuse and isinstance(response, SaslAuthenticateResponse):
                self._logins_to_refuse.remove(node_id)
                response = SaslAuthenticateResponse(error_code=Errors.SASL_AUTHENTICATION_FAILED.number)
            if isinstance(response, SaslAuthenticateResponse) and response.error_code:
                self.refused_logins.append(node_id)
                self._changed.notify_all()
        return response

    def _take_fault(self, request: ReceivedRequest) -> Fault | None:
        with self.lock:
            for fault in self._faults:
                if (
                    fault.api_key == request.header.api_key
                    and fault.node_id in (None, request.node_id)
                    and (fault.topic_partition is None or fault.topic_partition in self._written_to(request))
                ):
                    self._faults.remove(fault)
                    return fault
        return None

    def _written_to(self, request: ReceivedRequest) -> set[TopicPartition]:
        assert isinstance(request.message, ProduceRequest)
        names = [(self._topic_name(request, topic), topic) for topic in request.message.topic_data]
        return {TopicPartition(name or "", data.index) for name, topic in names for data in topic.partition_data}

    # REQUESTS

    def handle(self, request: ReceivedRequest, is_stopping: threading.Event) -> Message | None:
        """The answer; None for acks=0. Raises DropConnection if there is to be no answer."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        fault = self._take_fault(request)
        if fault is not None and fault.release is not None:
            _wait_for(fault.release, is_stopping)
        if fault is not None and fault.drop_connection and not fault.after_append:
            raise DropConnection
        with self._changed:
            response = self._answer(request, fault)
            self._changed.notify_all()
        if fault is not None and fault.drop_connection:
            raise DropConnection
        if fault is not None and fault.reply is not None:
            return fault.reply(response)
        return response

    def _answer(self, request: ReceivedRequest, fault: Fault | None) -> Message | None:
        message = request.message
        if isinstance(message, ProduceRequest):
            return self._produce(request, message, fault)
        error = Errors.NONE if fault is None or fault.error is None else fault.error
        throttle_ms = 0 if fault is None else fault.throttle_ms
        if isinstance(message, ApiVersionsRequest):
            return replace_fields(self._api_versions(error, request.node_id), throttle_time_ms=throttle_ms)
        if isinstance(message, MetadataRequest):
            return replace_fields(self._metadata(message, error), throttle_time_ms=throttle_ms)
        response = None
        if not error or (fault is not None and fault.after_append):
            response = self._coordinate(request)
        if error:
            response = error_response(message, error)
        if not throttle_ms:
            return response
        fields: Any = response  # each of these responses has this field
        throttled: Message = replace_fields(fields, throttle_time_ms=throttle_ms)
        return throttled

    def _coordinate(self, request: ReceivedRequest) -> Message:
        if isinstance(request.message, DescribeProducersRequest):
            return self._describe_producers(request.message, request.node_id)
        if isinstance(request.message, ListOffsetsRequest):
            return self._list_offsets(request.message, request.node_id)
        return self.coordinators.answer(request.message, request.header.api_version, request.node_id)

    def _api_versions(self, error: ErrorCode, node_id: int) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in self.versions.items()
            if last >= first
        ]
        name, level = TRANSACTION_VERSION, self.transactions.transaction_version
        finalized = (FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level),) if level else ()
        return ApiVersionsResponse(
            error_code=error.number,
            api_keys=tuple(keys),
            supported_features=tuple(
                SupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in self.supported_features[node_id].items()
            ),
            finalized_features_epoch=self.features_epoch,
            finalized_features=finalized,
        )

    def _metadata(self, message: MetadataRequest, error: ErrorCode) -> MetadataResponse:
        names = list(self.topics) if message.topics is None else [topic.name or "" for topic in message.topics]
        brokers = [
            MetadataResponseBroker(node_id=node.node_id, host=self.hosts.get(node.node_id, "127.0.0.1"), port=node.port)
            for node in self.nodes.values()
            if node.is_running
        ]
        return MetadataResponse(
            brokers=tuple(brokers),
            cluster_id=self.cluster_id,
            controller_id=0,
            topics=tuple(self._topic_metadata(name, error, message) for name in names),
        )

    def _topic_settings(self, name: str) -> dict[str, str] | None:
        topic = self.topics.get(name)
        return None if topic is None else {"max.message.bytes": str(topic.max_message_bytes)} | topic.settings

    def _topic_metadata(self, name: str, error: ErrorCode, request: MetadataRequest) -> MetadataResponseTopic:
        topic = self.topics.get(name)
        if error:
            return MetadataResponseTopic(error_code=error.number, name=name)
        if topic is None:
            if request.allow_auto_topic_creation and self.auto_create_partitions is not None:
                self.add_topic(name, self.auto_create_partitions)  # as in Kafka, only the next answer contains it
            return MetadataResponseTopic(error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION.number, name=name)
        if topic.error:
            return MetadataResponseTopic(error_code=topic.error.number, name=name, topic_id=topic.topic_id)
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=log.leader,
                leader_epoch=log.leader_epoch,
                replica_nodes=log.replicas or (log.leader,),
                isr_nodes=log.in_sync or log.replicas or (log.leader,),
            )
            for index, log in enumerate(topic.partitions)
        ]
        operations = topic.operations if request.include_topic_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        return MetadataResponseTopic(
            name=name, topic_id=topic.topic_id, partitions=tuple(partitions), topic_authorized_operations=operations
        )

    # TRANSACTIONS

    def _log(self, partition: TopicPartition) -> PartitionLog | None:
        topic = self.topics.get(partition.topic)
        exists = topic is not None and 0 <= partition.partition < len(topic.partitions)
        return topic.partitions[partition.partition] if topic is not None and exists else None

    def _address(self, node_id: int) -> tuple[str, int] | None:
        node = self.nodes[node_id]
        return (self.hosts.get(node_id, "127.0.0.1"), node.port) if node.is_running else None

    def _describe_producers(self, message: DescribeProducersRequest, node_id: int) -> DescribeProducersResponse:
        """In Kafka other replicas answer too; here a partition is on its leader alone."""
        return DescribeProducersResponse(
            topics=tuple(
                TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        self._describe_partition(TopicPartition(topic.name, index), node_id) for index in topic.partition_indexes
                    ),
                )
                for topic in message.topics
            )
        )

    def _list_offsets(self, message: ListOffsetsRequest, node_id: int) -> ListOffsetsResponse:
        """Of the timestamp END_OF_LOG alone."""
        topics = []
        for topic in message.topics:
            parts = []
            for each in topic.partitions:
                log = self._log(TopicPartition(topic.name, each.partition_index))
                error = self._error_of_log(log, node_id)
                offset = -1 if log is None or error else log.end_offset(message.isolation_level)
                parts.append(
                    ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=error.number, offset=offset)
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(parts)))
        return ListOffsetsResponse(topics=tuple(topics))

    def _error_of_log(self, log: PartitionLog | None, node_id: int) -> ErrorCode:
        if log is None:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        return Errors.NONE if log.leader == node_id else Errors.NOT_LEADER_OR_FOLLOWER

    def _describe_partition(self, partition: TopicPartition, node_id: int) -> PartitionResponse:
        log = self._log(partition)
        error = self._error_of_log(log, node_id)
        producers = () if log is None or error else log.described_producers()
        return PartitionResponse(partition_index=partition.partition, error_code=error.number, active_producers=producers)

    def _write_marker(self, partition: TopicPartition, producer_id: int, epoch: int, committed: bool) -> None:
        log = self._log(partition)
        if log is not None:  # else the topic was deleted
            log.write_marker(producer_id, epoch, committed)

    # PRODUCE

    def _produce(self, request: ReceivedRequest, message: ProduceRequest, fault: Fault | None) -> ProduceResponse | None:
        responses = tuple(self._produce_topic(request, message, topic, fault) for topic in message.topic_data)
        has_failed = any(part.error_code for topic in responses for part in topic.partition_responses)
        if message.acks == 0:
            if has_failed:
                raise DropConnection  # with acks=0 there is no other sign of an error
            return None
        leaders = {part.current_leader.leader_id for topic in responses for part in topic.partition_responses} - {-1}
        return ProduceResponse(
            responses=responses,
            throttle_time_ms=0 if fault is None else fault.throttle_ms,
            node_endpoints=tuple(
                NodeEndpoint(node_id=leader, host="127.0.0.1", port=self.nodes[leader].port) for leader in sorted(leaders)
            ),
        )

    def _topic_name(self, request: ReceivedRequest, topic: TopicProduceData) -> str | None:
        if request.header.api_version < 13:
            return topic.name
        return next((name for name, broker_topic in self.topics.items() if broker_topic.topic_id == topic.topic_id), None)

    def _produce_topic(
        self, request: ReceivedRequest, message: ProduceRequest, topic: TopicProduceData, fault: Fault | None
    ) -> TopicProduceResponse:
        name = self._topic_name(request, topic)
        parts = []
        for data in topic.partition_data:
            is_hit = fault is not None and fault.topic_partition in (None, TopicPartition(name or "", data.index))
            parts.append(self._produce_partition(request, message, name, data, fault if is_hit else None))
        return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=tuple(parts))

    def _produce_partition(
        self,
        request: ReceivedRequest,
        message: ProduceRequest,
        name: str | None,
        data: PartitionProduceData,
        fault: Fault | None,
    ) -> PartitionProduceResponse:
        injected = Errors.NONE if fault is None or fault.error is None else fault.error
        if fault is not None and injected and not fault.after_append:
            return PartitionProduceResponse(index=data.index, error_code=injected.number, error_message=fault.error_message)
        try:
            base_offset, log = self._append(request, message, name, data)
        except InvalidBatch as refused:
            leader = LeaderIdAndEpoch()
            if refused.error == Errors.NOT_LEADER_OR_FOLLOWER and name is not None:
                moved = self.topics[name].partitions[data.index]
                leader = LeaderIdAndEpoch(leader_id=moved.leader, leader_epoch=moved.leader_epoch)
            return PartitionProduceResponse(
                index=data.index, error_code=refused.error.number, error_message=refused.message, current_leader=leader
            )
        if injected:
            return PartitionProduceResponse(index=data.index, error_code=injected.number)
        return PartitionProduceResponse(index=data.index, base_offset=base_offset, log_start_offset=log.log_start_offset)

    def _append(
        self, request: ReceivedRequest, message: ProduceRequest, name: str | None, data: PartitionProduceData
    ) -> tuple[int, PartitionLog]:
        if message.acks not in (-1, 0, 1):
            raise InvalidBatch(Errors.INVALID_REQUIRED_ACKS, f"acks {message.acks}")
        if name is None:
            raise InvalidBatch(Errors.UNKNOWN_TOPIC_ID, "no topic has this id")
        topic = self.topics.get(name)
        if topic is None or not 0 <= data.index < len(topic.partitions):
            raise InvalidBatch(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{data.index}")
        log = topic.partitions[data.index]
        if log.leader != request.node_id:
            raise InvalidBatch(Errors.NOT_LEADER_OR_FOLLOWER, f"led by {log.leader}")
        raw = b"".join(bytes(buffer) for buffer in data.records)
        if len(raw) > topic.max_message_bytes:
            raise InvalidBatch(Errors.MESSAGE_TOO_LARGE, f"{len(raw)} bytes exceed {topic.max_message_bytes}")
        batch = decode_batch(raw)
        if batch.codec == "zstd" and request.header.api_version < 7:
            raise InvalidBatch(Errors.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7")
        self.violations += [f"{name}-{data.index}: {violation}" for violation in batch.violations]
        if batch.is_transactional:
            self._check_transaction(request, message, TopicPartition(name, data.index), batch)
        elif log.transactions.is_open(batch.producer_id):
            raise InvalidBatch(Errors.INVALID_TXN_STATE, "the producer has an open transaction")
        starts_at_zero = batch.is_transactional and request.header.api_version > LAST_PRODUCE_VERSION_BEFORE_TV2
        return log.append(batch, starts_at_zero=starts_at_zero), log

    def _check_transaction(
        self, request: ReceivedRequest, message: ProduceRequest, partition: TopicPartition, batch: Batch
    ) -> None:
        """The leader verifies the first batch of a transaction with the coordinator (KIP-890)."""
        log = self.topics[partition.topic].partitions[partition.partition]
        state = log.producers.get(batch.producer_id)
        if log.transactions.is_open(batch.producer_id) and state is not None and state.epoch == batch.producer_epoch:
            return
        version = request.header.api_version
        error = self.coordinators.batch_error(
            message.transactional_id, version, partition, batch.producer_id, batch.producer_epoch
        )
        if error:
            raise InvalidBatch(error, f"{message.transactional_id}: {error}")


def _wait_for(release: threading.Event, is_stopping: threading.Event) -> None:
    for _ in range(WAIT_SECONDS * 50):
        if release.wait(0.02) or is_stopping.is_set():
            return
    raise TimeoutError("a held request was never released")
