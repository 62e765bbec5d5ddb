"""A Kafka cluster in threads, over real sockets on 127.0.0.1, for tests that need more than scripted answers.

FakeBroker answers ApiVersions, Metadata and Produce itself, and checks batches as a broker does: format, checksum, size, leader,
epoch, sequence, duplicates of the last five. record_decoder.py decodes the batches, without any code of the package.
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

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.headers import RequestHeader
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
from spark_kafka_sink.protocol.messages.describe_producers import (
    ProducerState as DescribedProducer,
)
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    LAST_PRODUCE_BEFORE_V2,
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
from spark_kafka_sink.protocol.primitives import ZERO_UUID, Writer
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.coordinators import EVERYTHING, TRANSACTION_VERSION, Coordinators
from tests.fakes.error_responses import error_response
from tests.fakes.headers import write_response_header
from tests.fakes.partition_transactions import Marker, PartitionTransactions
from tests.fakes.record_decoder import Batch, InvalidBatch, Record, decode_batch
from tests.fakes.requests import REQUESTS, read_request
from tests.fakes.sasl_server import SaslGate

MAX_REQUEST_BYTES = 100 * 1024 * 1024  # socket.request.max.bytes: a larger request ends its connection
LOOK_AGAIN_SECONDS = 0.02
WAIT_SECONDS = 30  # no thread here waits longer for anything
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
DUPLICATES_REMEMBERED = 5


@dataclass
class ReceivedRequest:
    node_id: int
    header: RequestHeader
    message: Message


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
class ProducerState:
    epoch: int
    batches: deque[tuple[int, int, int]]  # (base sequence, last sequence, base offset), newest last


@dataclass
class Partition:
    leader: int
    leader_epoch: int = 0
    batches: list[Batch] = field(default_factory=list)
    next_offset: int = 0
    log_start_offset: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)
    replicas: tuple[int, ...] | None = None  # as Metadata tells; None: the leader alone
    in_sync: tuple[int, ...] | None = None  # as `replicas`


@dataclass
class Topic:
    topic_id: UUID
    partitions: list[Partition]
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    error: ErrorCode | None = None  # Metadata answers have this error instead of the partitions
    settings: dict[str, str] = field(default_factory=dict)  # besides max.message.bytes, for DescribeConfigs
    operations: int = EVERYTHING  # what the user may do with it (KIP-430)


class DropConnection(Exception):
    """Close the connection without an answer."""


class FakeBroker:
    """A cluster of `nodes` brokers with ids 0, 1, …

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
        self.features_epoch = 1  # grows when transaction.version changes
        self.coordinators = Coordinators(
            self.clock,
            range(nodes),
            write_marker=self._write_marker,
            exists=lambda partition: self._log(partition) is not None,
            address=self._address,
            transaction_version=transaction_version,
        )
        self.coordinators.violations = self.violations
        self.coordinators.settings["auto.create.topics.enable"] = str(auto_create_partitions is not None).lower()
        self.coordinators.topic_settings = self._topic_settings
        self.transactions = self.coordinators.transactions
        self.offsets = self.coordinators.offsets
        self._logins_to_refuse: list[int] = []  # node ids
        self.nodes = {node_id: _Node(self, node_id) for node_id in range(nodes)}
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
            logs = [Partition(leader=ids[index % len(ids)]) for index in range(partitions)]
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
            return [record for log in (logs if partition is None else [logs[partition]]) for record in _committed_records(log)]

    def committed_values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        return [record.value for record in self.committed_records(topic, partition)]

    def last_stable_offset(self, topic: str, partition: int) -> int:
        with self.lock:
            log = self.topics[topic].partitions[partition]
            return log.transactions.last_stable_offset(log.next_offset)

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
            return replace_fields(self._api_versions(error), throttle_time_ms=throttle_ms)
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
        return self.coordinators.answer(request.message, request.header.api_version, request.node_id)

    def _api_versions(self, error: ErrorCode) -> ApiVersionsResponse:
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
            supported_features=(SupportedFeatureKey(name=name, min_version=0, max_version=2),),
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

    def _topic_metadata(self, name: str, error: ErrorCode, asked: MetadataRequest) -> MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None:
            if asked.allow_auto_topic_creation and self.auto_create_partitions is not None:
                self.add_topic(name, self.auto_create_partitions)  # as in Kafka, only the next answer contains it
            return MetadataResponseTopic(error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION.number, name=name)
        error = error or topic.error or Errors.NONE
        if error:
            return MetadataResponseTopic(error_code=error.number, name=name, topic_id=topic.topic_id)
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
        operations = topic.operations if asked.include_topic_authorized_operations else AUTHORIZED_OPERATIONS_OMITTED
        return MetadataResponseTopic(
            name=name, topic_id=topic.topic_id, partitions=tuple(partitions), topic_authorized_operations=operations
        )

    # TRANSACTIONS

    def _log(self, partition: TopicPartition) -> Partition | None:
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
                        _describe_producers(index, self._log(TopicPartition(topic.name, index)), node_id)
                        for index in topic.partition_indexes
                    ),
                )
                for topic in message.topics
            )
        )

    def _write_marker(self, partition: TopicPartition, producer_id: int, epoch: int, committed: bool) -> None:
        log = self._log(partition)
        if log is None:
            return  # the topic was deleted
        log.transactions.end(Marker(log.next_offset, producer_id, epoch, committed))
        log.next_offset += 1
        state = log.producers.get(producer_id)
        if state is None or state.epoch < epoch:
            log.producers[producer_id] = ProducerState(epoch, deque(maxlen=DUPLICATES_REMEMBERED))

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
        return next((name for name, known in self.topics.items() if known.topic_id == topic.topic_id), None)

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
    ) -> tuple[int, Partition]:
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
        starts_at_zero = batch.is_transactional and request.header.api_version > LAST_PRODUCE_BEFORE_V2
        duplicate = _check_sequence(log, batch, starts_at_zero=starts_at_zero)
        if duplicate is not None:
            return duplicate, log
        return _write(log, batch), log

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


def _committed_records(log: Partition) -> list[Record]:
    return [
        record
        for batch in log.batches
        if log.transactions.is_visible(
            offset=batch.base_offset,
            producer_id=batch.producer_id,
            is_transactional=batch.is_transactional,
            end_offset=log.next_offset,
        )
        for record in batch.records
    ]


def _describe_producers(index: int, log: Partition | None, node_id: int) -> PartitionResponse:
    if log is None:
        return PartitionResponse(partition_index=index, error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION.number)
    if log.leader != node_id:
        return PartitionResponse(partition_index=index, error_code=Errors.NOT_LEADER_OR_FOLLOWER.number)
    timestamps = {batch.producer_id: batch.max_timestamp for batch in log.batches}
    producers = (
        DescribedProducer(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.batches[-1][1] if state.batches else -1,
            last_timestamp=timestamps.get(producer_id, -1),
            coordinator_epoch=0 if any(marker.producer_id == producer_id for marker in log.transactions.markers) else -1,
            current_txn_start_offset=log.transactions.first_offsets.get(producer_id, -1),
        )
        for producer_id, state in log.producers.items()
    )
    return PartitionResponse(partition_index=index, active_producers=tuple(producers))


def _check_sequence(log: Partition, batch: Batch, *, starts_at_zero: bool) -> int | None:
    """The base offset of the earlier batch if this one is a duplicate; None if the batch must be written."""
    if batch.producer_id < 0:
        return None
    state = log.producers.get(batch.producer_id)
    if state is None:
        if starts_at_zero and batch.base_sequence != 0:
            raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"an unknown producer starts at {batch.base_sequence}")
        return None  # a producer without state in the log may start with any sequence
    if batch.producer_epoch < state.epoch:
        raise InvalidBatch(Errors.INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch} is older than {state.epoch}")
    if batch.producer_epoch > state.epoch:
        if batch.base_sequence != 0:
            raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a new epoch starts at {batch.base_sequence}")
        return None
    for first, last, offset in state.batches:
        if (batch.base_sequence, batch.last_sequence) == (first, last):
            return offset
    expected = (state.batches[-1][1] + 1) % (1 << 31) if state.batches else 0  # no batches: only a marker had this epoch
    if batch.base_sequence != expected:
        raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {batch.base_sequence} instead of {expected}")
    return None


def _write(log: Partition, batch: Batch) -> int:
    base_offset = log.next_offset
    batch.base_offset = base_offset
    batch.records = [replace_fields(record, offset=base_offset + record.offset) for record in batch.records]
    log.batches.append(batch)
    log.next_offset += len(batch.records)
    if batch.producer_id >= 0:
        state = log.producers.get(batch.producer_id)
        if state is None or state.epoch != batch.producer_epoch:
            state = log.producers[batch.producer_id] = ProducerState(batch.producer_epoch, deque(maxlen=DUPLICATES_REMEMBERED))
        state.batches.append((batch.base_sequence, batch.last_sequence, base_offset))
    if batch.is_transactional:
        log.transactions.write(batch.producer_id, base_offset)
    return base_offset


def _wait_for(release: threading.Event, is_stopping: threading.Event) -> None:
    for _ in range(WAIT_SECONDS * 50):
        if release.wait(0.02) or is_stopping.is_set():
            return
    raise TimeoutError("a held request was never released")


class _Node:
    """One listener, and a thread for each connection."""

    def __init__(self, broker: FakeBroker, node_id: int) -> None:
        self.broker = broker
        self.node_id = node_id
        self.port = 0
        self.is_running = False
        self.tls: ssl.SSLContext | None = None  # set: every new connection uses TLS
        self.greeting = b""  # sent first on each connection, as servers of other protocols do
        self._listener: socket.socket | None = None
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()  # guards the two below
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._is_stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.is_running = True
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        self._is_stopping.set()
        self.is_running = False
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            listener.close()
        self.drop_connections()
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(WAIT_SECONDS)

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):  # the client has closed it already
                connection.shutdown(socket.SHUT_RDWR)

    def _spawn(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), name=f"fake-broker-{self.node_id}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed by stop()
            with self._lock:
                self._connections.add(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.tls is not None:
                connection = self._secured(connection, self.tls)
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(self.greeting)
                gate = SaslGate(self.broker.users, self.broker.session_ms)
                while not self._is_stopping.is_set() and self._serve_one(connection, gate):
                    continue
        except (OSError, DropConnection):
            return  # the client closed the connection, or a fault drops it
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _secured(self, connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """The TLS handshake. The connection replaces the plain socket, which cannot be used any more."""
        with self._lock:
            self._connections.discard(connection)
        secured = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections.add(secured)
        try:
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        return secured

    def _serve_one(self, connection: socket.socket, gate: SaslGate) -> bool:
        size = _receive(connection, 4)
        if size is None or struct.unpack(">i", size)[0] > MAX_REQUEST_BYTES:
            return False
        frame = _receive(connection, struct.unpack(">i", size)[0])
        if frame is None:
            return False
        api_key, api_version = struct.unpack_from(">hh", frame)
        if not self._speaks(api_key, api_version):
            if api_key != ApiKey.API_VERSIONS:
                return False
            self._refuse_version(connection, struct.unpack_from(">i", frame, 4)[0])
            return True
        try:
            header, message = read_request(frame)
        except ProtocolError as error:
            self.broker.violations.append(f"unreadable request: {error}")
            return False
        response = gate.answer(message)
        if response is not None:
            response = self.broker.judge_login(self.node_id, response)
        else:
            if not gate.lets_through(message):
                return False
            response = self.broker.handle(ReceivedRequest(self.node_id, header, message), self._is_stopping)
        if response is not None:
            self._respond(connection, header.api_key, header.api_version, header.correlation_id, response)
        return True

    def _speaks(self, api_key: int, api_version: int) -> bool:
        first, last = self.broker.versions.get(ApiKey(api_key), (0, -1)) if api_key in REQUESTS else (0, -1)
        return first <= api_version <= last

    def _refuse_version(self, connection: socket.socket, correlation_id: int) -> None:
        """Answer in version 0, with the versions of ApiVersions only (KIP-511)."""
        first, last = self.broker.versions[ApiKey.API_VERSIONS]
        keys = (ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last),)
        refusal = ApiVersionsResponse(error_code=Errors.UNSUPPORTED_VERSION.number, api_keys=keys)
        self._respond(connection, ApiKey.API_VERSIONS, 0, correlation_id, refusal)

    def _respond(self, connection: socket.socket, api_key: int, version: int, correlation_id: int, response: Message) -> None:
        writer = Writer()
        write_response_header(writer, ApiKey(api_key), version, correlation_id)
        writer.opaque(response.encode(version))
        frame = b"".join(bytes(buffer) for buffer in writer.buffers())
        connection.sendall(struct.pack(">i", len(frame)) + frame)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    chunks, missing = [], size
    while missing:
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
