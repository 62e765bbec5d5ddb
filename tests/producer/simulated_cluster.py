"""A cluster for transactional producers: leaders with logs, coordinators, and connections that break when a test says so.

Nothing happens by itself. A test answers the oldest request of a connection (`answer`), with a ClusterFate; moves leaders and
coordinators; stops a node; has markers written, or transactions that are too old aborted. Coordinators and the rules of logs are
the fakes' (tests/fakes/coordinators.py, simulated_brokers.py), so they answer as Apache Kafka 4.x does.
Requests of one producer to one node are carried out in the order in which they were sent, as on one connection. Only a request
that was lost with its connection can arrive late, behind others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2, EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    LAST_PRODUCE_VERSION_BEFORE_TV2,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.coordinators import Coordinators
from tests.fakes.error_responses import error_response
from tests.fakes.transaction_coordinator import State, Transaction
from tests.producer.harness import DecodingClient, SentBatch, partition_answer
from tests.producer.simulated_brokers import TransactionalLog


class ClusterFate(Enum):
    """What becomes of a request. A fate that does not fit the request is ANSWER."""

    ANSWER = "carried out and answered"
    LOSE_REQUESTS = "the connection breaks before any of its requests is carried out"
    LOSE_ALL_BUT_ONE = "the oldest of its requests is carried out, then the connection breaks"
    LOSE_ANSWERS = "all requests are carried out, then the connection breaks"
    DELAY = "the connection breaks; the request arrives later, see `arrive`"
    # With an error of a table below:
    PASSING_ERROR = "not carried out, answered with an error that passes"
    PASSING_ERROR_AFTER = "carried out, answered with an error that passes"
    ABORTABLE_ERROR = "refused: the transaction must be aborted"
    BREAK_AFTER = "carried out, answered with an error that says nothing of it: the transaction must be aborted"
    FATAL_ERROR = "refused: the producer has to be closed, or may have to be"

    def __repr__(self) -> str:
        return str(self)


PASSING_FATES = [
    ClusterFate.LOSE_REQUESTS,
    ClusterFate.LOSE_ALL_BUT_ONE,
    ClusterFate.LOSE_ANSWERS,
    ClusterFate.DELAY,
    ClusterFate.PASSING_ERROR,
    ClusterFate.PASSING_ERROR_AFTER,
]

_LOADING = (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR)
_MOVING = (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE)  # it wrote its log and lost it before it answered
_FORGOTTEN = (Errors.INVALID_PRODUCER_ID_MAPPING, Errors.UNKNOWN_PRODUCER_ID)  # after the second one a new epoch helps
_DENIED = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_OF_TRANSACTION = (*_LOADING, Errors.CONCURRENT_TRANSACTIONS)

ERRORS: Mapping[ClusterFate, Mapping[ApiKey, Sequence[ErrorCode]]] = {
    ClusterFate.PASSING_ERROR: {
        ApiKey.FIND_COORDINATOR: (Errors.COORDINATOR_NOT_AVAILABLE, Errors.COORDINATOR_LOAD_IN_PROGRESS),
        ApiKey.INIT_PRODUCER_ID: _OF_TRANSACTION,
        ApiKey.ADD_PARTITIONS_TO_TXN: (*_OF_TRANSACTION, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ApiKey.ADD_OFFSETS_TO_TXN: _OF_TRANSACTION,
        ApiKey.TXN_OFFSET_COMMIT: (*_LOADING, Errors.REQUEST_TIMED_OUT, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ApiKey.END_TXN: _OF_TRANSACTION,
        ApiKey.PRODUCE: (
            Errors.NOT_ENOUGH_REPLICAS,
            Errors.NOT_LEADER_OR_FOLLOWER,
            Errors.CORRUPT_MESSAGE,
            Errors.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    },
    ClusterFate.PASSING_ERROR_AFTER: {
        ApiKey.INIT_PRODUCER_ID: _MOVING,
        ApiKey.ADD_PARTITIONS_TO_TXN: _MOVING,
        ApiKey.ADD_OFFSETS_TO_TXN: _MOVING,
        ApiKey.TXN_OFFSET_COMMIT: (Errors.REQUEST_TIMED_OUT, *_MOVING),
        ApiKey.END_TXN: _MOVING,
        ApiKey.PRODUCE: (
            Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            Errors.REQUEST_TIMED_OUT,
            Errors.NOT_LEADER_OR_FOLLOWER,
        ),
    },
    ClusterFate.ABORTABLE_ERROR: {
        ApiKey.FIND_COORDINATOR: (Errors.GROUP_AUTHORIZATION_FAILED,),  # for a group only
        ApiKey.ADD_PARTITIONS_TO_TXN: (Errors.TOPIC_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE),
        ApiKey.ADD_OFFSETS_TO_TXN: (Errors.GROUP_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE),
        ApiKey.TXN_OFFSET_COMMIT: (
            Errors.GROUP_AUTHORIZATION_FAILED,
            Errors.ILLEGAL_GENERATION,
            Errors.FENCED_INSTANCE_ID,
            Errors.TRANSACTION_ABORTABLE,
        ),
        ApiKey.END_TXN: (Errors.TRANSACTION_ABORTABLE,),  # to a commit only
        ApiKey.PRODUCE: (
            Errors.INVALID_RECORD,
            Errors.TOPIC_AUTHORIZATION_FAILED,
            Errors.TRANSACTION_ABORTABLE,
            Errors.INVALID_TXN_STATE,
            Errors.UNKNOWN_SERVER_ERROR,
        ),
    },
    ClusterFate.BREAK_AFTER: {ApiKey.PRODUCE: (Errors.UNKNOWN_SERVER_ERROR,)},
    ClusterFate.FATAL_ERROR: {
        ApiKey.FIND_COORDINATOR: (_DENIED,),  # for a transactional id only
        ApiKey.INIT_PRODUCER_ID: (
            Errors.PRODUCER_FENCED,
            _DENIED,
            Errors.UNKNOWN_SERVER_ERROR,
            Errors.TRANSACTION_ABORTABLE,  # there is nothing to abort
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: (Errors.PRODUCER_FENCED, _DENIED, *_FORGOTTEN, Errors.INVALID_TXN_STATE),
        ApiKey.ADD_OFFSETS_TO_TXN: (Errors.PRODUCER_FENCED, _DENIED, *_FORGOTTEN, Errors.INVALID_TXN_STATE),
        ApiKey.TXN_OFFSET_COMMIT: (Errors.INVALID_PRODUCER_EPOCH, _DENIED, Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ApiKey.END_TXN: (
            Errors.PRODUCER_FENCED,
            _DENIED,
            *_FORGOTTEN,
            Errors.INVALID_TXN_STATE,
            Errors.UNKNOWN_SERVER_ERROR,
        ),
        ApiKey.PRODUCE: (_DENIED, Errors.CLUSTER_AUTHORIZATION_FAILED),
    },
}

# Late requests that harm nobody, by the level of transaction.version. Of others Kafka itself does not know that they are late: a
# late EndTxn ends the next transaction of version 1, a late InitProducerId fences whoever has the id, offsets have no sequence.
_MAY_BE_LATE = {
    1: {ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR},
    2: {ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR, ApiKey.END_TXN},
}


class SimulatedClient(DecodingClient):
    """Tells when its poll would end by itself, and asks the cluster for metadata."""

    def __init__(self, cluster: SimulatedCluster, metadata: Metadata, clock: ManualClock, max_in_flight: int) -> None:
        super().__init__(clock, metadata, max_in_flight=max_in_flight)
        self.cluster = cluster
        cluster.clients.append(self)
        for node in cluster.nodes:
            self.set_api_versions(node, {})
        self.learn_features()

    def learn_features(self) -> None:
        self.set_features(self.cluster.features_epoch, transaction_version=self.cluster.transaction_version)

    def has_news(self) -> bool:
        """Whether a poll that sleeps would end now: an answer is there, a request has timed out, or metadata is due."""
        return bool(self._responses) or self.next_event_ms() <= self.clock.now_ms()

    def next_event_ms(self) -> int:
        assert self.metadata is not None
        now_ms = self.clock.now_ms()
        times_out = (self._sent_ms[id(request)] + request.request_timeout_ms + 1 for request in self.requests)
        return min(now_ms + self.metadata.time_to_next_update_ms(now_ms), *times_out, 1 << 62)

    def oldest(self, node: int) -> list[ClientRequest]:
        return [request for request in self.requests if request.node_id == node]

    def _update_metadata(self, now_ms: int) -> None:
        assert self.metadata is not None
        if self.metadata.time_to_next_update_ms(now_ms) <= 0:
            self.metadata.update(self.cluster.metadata(), now_ms)

    def batches_of(self, request: ClientRequest) -> list[SentBatch]:
        return [sent_batch for sent_batch in self.batches if sent_batch.request is request]


class SimulatedCluster:
    """Args:
    topics: name -> number of partitions.
    transaction_version: the finalized feature transaction.version.
    fences_twice: see TransactionCoordinator.
    max_message_bytes: of each topic.
    """

    def __init__(
        self,
        clock: ManualClock,
        topics: Mapping[str, int],
        *,
        nodes: int = 3,
        transaction_version: int = 2,
        fences_twice: bool = False,
        max_message_bytes: int = 1_048_588,
    ) -> None:
        self.clock = clock
        self.nodes = range(nodes)
        self.max_message_bytes = max_message_bytes
        self.features_epoch = 1
        self.clients: list[SimulatedClient] = []
        self.logs: dict[TopicPartition, TransactionalLog] = {
            TopicPartition(topic, partition): TransactionalLog() for topic, count in topics.items() for partition in range(count)
        }
        self.leaders = {where: number % nodes for number, where in enumerate(self.logs)}
        self.coordinators = Coordinators(
            clock,
            self.nodes,
            write_marker=self._write_marker,
            address=self._address,
            transaction_version=transaction_version,
        )
        self.transactions = self.coordinators.transactions
        self.transactions.holds_markers = True
        self.transactions.fences_twice = fences_twice
        self.timed_out: list[str] = []  # ids whose transactions were aborted because they were too old
        self.injected: list[tuple[ClusterFate, ApiKey]] = []  # errors of the tables above that were answered
        self._topics = topics
        self._leader_epochs = dict.fromkeys(self.logs, 0)
        self._down_until_ms: dict[int, int] = {}
        self._late: list[tuple[SimulatedClient, ClientRequest]] = []
        self._prepared: dict[ApiKey, deque[tuple[ClusterFate, int]]] = {}

    # WHAT A TEST SAYS

    def answer(self, place: int, fate: ClusterFate = ClusterFate.ANSWER, which: int = 0) -> None:
        """Settle the oldest request of a connection; nothing happens if no request is in flight.

        `place` chooses among the connections with requests in flight, `which` the error and the partitions that it hits.
        """
        connections = [(client, node) for client in self.clients for node in self.nodes if client.oldest(node)]
        if connections:
            client, node = connections[place % len(connections)]
            self._settle(client, client.oldest(node)[0], fate, which)

    def answer_all(self) -> None:
        """Each request as `prepare` says, or well."""
        for client in self.clients:
            for request in list(client.requests):
                if any(request is each for each in client.requests):  # else its connection was lost meanwhile
                    self._settle(client, request, ClusterFate.ANSWER, 0)

    def prepare(self, api: ApiKey, fate: ClusterFate, which: int = 0) -> None:
        """What becomes of the next request of an API, and with a second call of the one after it."""
        self._prepared.setdefault(api, deque()).append((fate, which))

    def behave(self) -> None:
        """Nothing goes wrong any more."""
        self._prepared.clear()

    def forget(self, client: SimulatedClient) -> None:
        """Its process has ended. What is on its way may still arrive, but no InitProducerId: it would fence others."""
        self.clients.remove(client)
        self._late += [(client, request) for request in client.requests if request.message.API_KEY != ApiKey.INIT_PRODUCER_ID]

    def arrive(self) -> None:
        """The oldest of the late requests arrives. Nobody hears the answer."""
        if self._late:
            self._carry_out(*self._late.pop(0))

    def move_leader(self, where: TopicPartition, node: int) -> None:
        """The old leader refuses from here on; a producer learns of the new one when it asks next."""
        if self.leaders[where] != node:
            self.leaders[where] = node
            self._leader_epochs[where] += 1

    def stop(self, node: int, duration_ms: int) -> None:
        """The node is gone for a while, and with it its connections, before any of its requests is carried out."""
        self._down_until_ms[node] = self.clock.now_ms() + duration_ms
        for client in self.clients:
            client.set_unreachable(node, duration_ms)

    def abort_timed_out(self) -> None:
        self.timed_out += self.transactions.abort_timed_out()

    def upgrade(self) -> None:
        """To transaction.version 2; producers learn of it as with their next connection."""
        if self.transaction_version < 2:
            self.transactions.transaction_version = 2
            self.features_epoch += 1
            for client in self.clients:
                client.learn_features()

    def end_from_outside(self, prepared: PreparedTransaction, commits: bool) -> ErrorCode:
        """Another client ends a transaction; returns the coordinator's answer."""
        version = LAST_END_TXN_VERSION_BEFORE_TV2 + (prepared.transaction_version >= 2)
        request = EndTxnRequest(
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch,
            committed=commits,
        )
        return Errors.for_code(self.transactions.handle_end_txn(request, version).error_code)

    def use_epochs_up(self, transactional_id: str, epoch: int) -> None:
        """As if the id had been used so often; before its first producer."""
        self.transactions.transactions[transactional_id] = Transaction(transactional_id, producer_id=999, epoch=epoch)

    # WHAT A TEST LOOKS AT

    @property
    def transaction_version(self) -> int:
        return self.transactions.transaction_version

    @property
    def has_markers_to_write(self) -> bool:
        return any(
            transaction.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
            for transaction in self.transactions.transactions.values()
        )

    @property
    def has_late_requests(self) -> bool:
        return bool(self._late)

    def committed_values(self, where: TopicPartition) -> list[bytes]:
        return self.logs[where].committed_values()

    def is_open(self, transactional_id: str) -> bool:
        transaction = self.transactions.transactions.get(transactional_id)
        return transaction is not None and transaction.state is State.ONGOING

    # BROKERS

    def _settle(self, client: SimulatedClient, request: ClientRequest, fate: ClusterFate, which: int) -> None:
        prepared = self._prepared.get(request.message.API_KEY)
        if prepared:
            fate, which = prepared.popleft()
        node = request.node_id
        if fate in (ClusterFate.LOSE_REQUESTS, ClusterFate.LOSE_ALL_BUT_ONE, ClusterFate.LOSE_ANSWERS):
            requests = client.oldest(node)
            carried_out = {ClusterFate.LOSE_REQUESTS: 0, ClusterFate.LOSE_ALL_BUT_ONE: 1}.get(fate, len(requests))
            for each in requests[:carried_out]:
                self._carry_out(client, each)
            client.disconnect(node, self.clock.now_ms())
        elif fate is ClusterFate.DELAY:
            if request.message.API_KEY in _MAY_BE_LATE[self.transaction_version]:
                self._late.append((client, request))
            client.disconnect(node, self.clock.now_ms())
        else:
            client.respond(self._answer_with(client, request, fate, which), request=request)

    def metadata(self) -> MetadataResponse:
        return MetadataResponse(
            brokers=tuple(MetadataResponseBroker(node_id=node, host=f"node-{node}", port=9092) for node in self.nodes),
            cluster_id="cluster",
            topics=tuple(
                MetadataResponseTopic(
                    name=topic,
                    partitions=tuple(self._partition_metadata(TopicPartition(topic, number)) for number in range(count)),
                )
                for topic, count in self._topics.items()
            ),
        )

    def _partition_metadata(self, where: TopicPartition) -> MetadataResponsePartition:
        return MetadataResponsePartition(
            partition_index=where.partition, leader_id=self.leaders[where], leader_epoch=self._leader_epochs[where]
        )

    def _address(self, node: int) -> tuple[str, int] | None:
        return None if self.clock.now_ms() < self._down_until_ms.get(node, 0) else (f"node-{node}", 9092)

    def _write_marker(self, where: TopicPartition, producer_id: int, epoch: int, committed: bool) -> None:
        self.logs[where].write_marker(producer_id, epoch, committed)

    def _carry_out(self, client: SimulatedClient, request: ClientRequest) -> Message:
        if not isinstance(request.message, ProduceRequest):
            return self.coordinators.answer(request.message, client.version_of(request), request.node_id)
        return _produce_response(
            {sent_batch.topic_partition: self._append(client, request, sent_batch) for sent_batch in client.batches_of(request)}
        )

    def _answer_with(self, client: SimulatedClient, request: ClientRequest, fate: ClusterFate, which: int) -> Message:
        errors = ERRORS.get(fate, {}).get(request.message.API_KEY, ())
        if not errors or not _fits(request.message, fate):
            return self._carry_out(client, request)
        self.injected.append((fate, request.message.API_KEY))
        error = errors[which % len(errors)]
        is_carried_out = fate in (ClusterFate.PASSING_ERROR_AFTER, ClusterFate.BREAK_AFTER)
        if isinstance(request.message, ProduceRequest):
            return self._produce_answer_with(client, request, error, which, is_carried_out)
        if is_carried_out:
            self._carry_out(client, request)
        if isinstance(request.message, AddPartitionsToTxnRequest) and error == Errors.TOPIC_AUTHORIZATION_FAILED:
            return _first_is_denied(request.message, error)
        return error_response(request.message, error)

    def _produce_answer_with(
        self, client: SimulatedClient, request: ClientRequest, error: ErrorCode, which: int, is_carried_out: bool
    ) -> ProduceResponse:
        """The error hits all partitions of the request, or the first one only, or all but the first."""
        answers: dict[TopicPartition, PartitionProduceResponse] = {}
        for number, sent_batch in enumerate(client.batches_of(request)):
            is_hit = (True, number == 0, number > 0)[which % 3]
            if not is_hit or is_carried_out:
                answers[sent_batch.topic_partition] = self._append(client, request, sent_batch)
            if is_hit and not (is_carried_out and answers[sent_batch.topic_partition].error_code):
                answers[sent_batch.topic_partition] = partition_answer(sent_batch.topic_partition.partition, error)
        return _produce_response(answers)

    def _append(self, client: SimulatedClient, request: ClientRequest, sent_batch: SentBatch) -> PartitionProduceResponse:
        error, offset = self._judge(client, request, sent_batch)
        return partition_answer(sent_batch.topic_partition.partition, error, base_offset=offset)

    def _judge(self, client: SimulatedClient, request: ClientRequest, sent_batch: SentBatch) -> tuple[ErrorCode, int]:
        where, batch = sent_batch.topic_partition, sent_batch.batch
        message: Any = request.message
        assert batch.transactional
        if self.leaders[where] != request.node_id:
            return Errors.NOT_LEADER_OR_FOLLOWER, -1
        version = client.version_of(request)
        log = self.logs[where]
        if not log.has_ongoing(batch.producer_id, batch.producer_epoch):
            error = self.coordinators.batch_error(
                message.transactional_id, version, where, batch.producer_id, batch.producer_epoch
            )
            if error:
                return error, -1
        if sent_batch.size_bytes > self.max_message_bytes:
            return Errors.MESSAGE_TOO_LARGE, -1
        return log.append(batch, starts_at_zero=version > LAST_PRODUCE_VERSION_BEFORE_TV2)


def _fits(message: Message, fate: ClusterFate) -> bool:
    if isinstance(message, FindCoordinatorRequest):
        key_types = {ClusterFate.ABORTABLE_ERROR: KeyType.GROUP, ClusterFate.FATAL_ERROR: KeyType.TRANSACTION}
        return message.key_type == key_types.get(fate, message.key_type)
    if isinstance(message, EndTxnRequest) and fate is ClusterFate.ABORTABLE_ERROR:
        return message.committed
    return True


def _first_is_denied(message: AddPartitionsToTxnRequest, error: ErrorCode) -> AddPartitionsToTxnResponse:
    """None is added then."""
    first = (message.topics[0].name, message.topics[0].partitions[0])
    return AddPartitionsToTxnResponse(
        results_by_topic=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=partition,
                        partition_error_code=(
                            error if (topic.name, partition) == first else Errors.OPERATION_NOT_ATTEMPTED
                        ).number,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in message.topics
        )
    )


def _produce_response(answers: Mapping[TopicPartition, PartitionProduceResponse]) -> ProduceResponse:
    by_topic: dict[str, list[PartitionProduceResponse]] = {}
    for where, answer in answers.items():
        by_topic.setdefault(where.topic, []).append(answer)
    return ProduceResponse(
        responses=tuple(TopicProduceResponse(name=name, partition_responses=tuple(each)) for name, each in by_topic.items())
    )
