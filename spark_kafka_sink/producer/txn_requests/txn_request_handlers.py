"""The requests to coordinators: what each asks of whom, and what its answer means.

A handler makes its `message` and reads the `errors` of an answer, which transaction_errors.py judges. `succeed` passes on what an
answer without errors says. Classes are named as in Kafka's TransactionManager. txn_request_queue.py queues, sends and retries.
To add a request, write a class here with its RequestPriority, and rows in TXN_ERROR_RULES. TransactionManager queues requests,
and decides when one is of no use any more (`refusal_of_request`).
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from spark_kafka_sink.errors import KafkaError, ProtocolError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorDirectory, CoordinatorKey, read_coordinator
from spark_kafka_sink.producer.txn_requests.group_offsets import OffsetAndMetadata
from spark_kafka_sink.producer.txn_requests.transaction_errors import ErrorEffect, effect_of
from spark_kafka_sink.producer.txn_requests.transactional_call import TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2, EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.permissions import READ, to_grant
from spark_kafka_sink.protocol.producer_identity import LAST_USED_EPOCH, NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.schema import Request
from spark_kafka_sink.protocol.topic_partition import TopicPartition, partitions_by_topic

logger = logging.getLogger(__name__)

MAX_FIRST_BACKOFF_MS = 20  # the previous transaction's control records are being written: it takes milliseconds (KAFKA-5482)
MAX_ABORTS_AMID_CONTROL_RECORDS = 7  # with the default back-off at most 3.8 s, which close() waits for (CLOSE_MARGIN_MS)
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1  # what Java sends without transactions


class RequestPriority(enum.IntEnum):
    """Which request goes first: the smallest one (Kafka's TxnRequestHandler.Priority)."""

    FIND_COORDINATOR = 0  # the others wait for what it finds
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2  # rows wait for the partitions; the group of the offsets was added before
    CALL = 3  # offsets and the end of the transaction, in the order of the calls
    EPOCH_BUMP = 4  # InitProducerId between transactions, behind the end of the last one


class AnswerProblem(NamedTuple):
    """One error in an answer, and its effect. `where`: what it is about, for error texts."""

    effect: ErrorEffect
    error: ErrorCode
    where: str
    broker_message: str | None = None
    to_grant: str = ""  # see protocol/permissions.py

    def exception(self) -> KafkaError:
        exception = self.error.exception(self.where, self.broker_message)
        exception.message += self.to_grant
        return exception


class OpenTransaction:
    """What brokers know about the transaction: whether it has begun, and its partitions. TransactionManager makes one for each.
    In version 1 a partition is added by a request before its first batch is sent; in version 2 the batch itself adds it."""

    def __init__(self, transactional_id: str, identity: ProducerIdentity) -> None:
        self.transactional_id = transactional_id
        self.identity = identity  # of its producer, from its begin to its end
        self.has_begun = False  # its coordinator knows of it, or may learn of it from a leader
        self.may_have_begun = False  # a request that begins it was sent, and whether it was carried out is not known
        self.may_be_committed = False  # the answer to a commit was lost; or it is prepared, and another process may commit it
        self.has_acknowledged_batch = False
        self._partitions: set[TopicPartition] = set()  # that were added
        self.partitions_to_add: set[TopicPartition] = set()  # to be added, and in no request
        self._partitions_being_added: set[TopicPartition] = set()  # in a request

    @property
    def must_be_ended(self) -> bool:
        """Whether its coordinator may know of it; otherwise there is nothing to end."""
        return self.has_begun or self.may_have_begun

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    def ask_to_add(self, topic_partition: TopicPartition) -> None:
        """Ask for this partition to be added: a batch waits for it."""
        if topic_partition not in self._partitions_being_added:
            self.partitions_to_add.add(topic_partition)

    def take_partitions_to_add(self) -> tuple[set[TopicPartition], bool]:
        """The partitions for the next request, and whether that request begins the transaction."""
        begins_transaction = not self.has_begun and not self._partitions_being_added
        partitions_to_add, self.partitions_to_add = self.partitions_to_add, set()
        self._partitions_being_added |= partitions_to_add
        return partitions_to_add, begins_transaction

    def note_added(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the coordinator has added these partitions, so it knows of the transaction."""
        self._partitions_being_added.difference_update(partitions)
        self._partitions.update(partitions)
        self.has_begun = True

    def note_rejected(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the coordinator rejects these partitions. Batches of partitions that were added before may go on."""
        self._partitions_being_added.difference_update(partitions)


@dataclass(eq=False, repr=False, kw_only=True)
class TxnRequestHandler(ABC):
    """Base of the requests to coordinators: makes the message, and handles its answer."""

    API: ClassVar[ApiKey]
    NAME: ClassVar[str]  # in errors and logs: that of Kafka's API
    completes_call: ClassVar[bool] = True  # whether an answer without errors settles `call`

    priority: RequestPriority
    call: TransactionalCall | None = None  # who waits for this request; gets its outcome
    begins_transaction: bool = False  # the coordinator learns of the transaction by this request
    must_follow_rows: bool = False  # sent after all batches that wait now: on the same connection, or once they are settled
    max_version: int | None = None  # the newest version to use; None: the newest that the node knows
    number: int = field(default=-1, init=False)  # its place among those of its priority, which the queue gives it once
    attempt_count: int = field(default=0, init=False)
    not_before_ms: int = field(default=0, init=False)
    node_id: int = field(default=-1, init=False)  # that is asked
    version: int = field(default=-1, init=False)  # of its answer

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorKey | None:
        """Who is asked; None: any broker."""

    @abstractmethod
    def message(self) -> Request[Any]: ...

    @abstractmethod
    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        """Yield each error of an answer with its effect. The first one decides."""

    def succeed(self, answer: Any) -> None:  # noqa: B027 - the call may be all that waits for it
        """Handle an answer without errors."""

    def note_unknown_outcome(self) -> None:  # noqa: B027 - of some it does not matter
        """Note that an attempt may have been carried out, although no answer says so."""

    def settle(self, error: KafkaError | None = None) -> None:
        """Report the outcome to the call that waits."""
        if self.call is not None:
            self.call.settle(error)

    @property
    def group(self) -> str | None:
        """The consumer group whose coordinator is asked, or asked for."""
        coordinator = self.coordinator
        return coordinator.key if coordinator is not None and coordinator.key_type is KeyType.GROUP else None

    def max_backoff_ms(self, error: ErrorCode) -> int | None:
        """At most how many ms to wait before the next attempt; None: as retry.backoff.ms says."""
        return MAX_FIRST_BACKOFF_MS if self.begins_transaction and error == Errors.CONCURRENT_TRANSACTIONS else None

    def __repr__(self) -> str:
        return f"{self.NAME}(to {self.coordinator or 'any broker'})"

    def _problems_of(self, code: int, where: str, broker_message: str | None = None, **resources: str) -> Iterator[AnswerProblem]:
        """The problem, unless the code says that there is none. `resources`: where a permission may be missing, see to_grant."""
        error = Errors.for_code(code)
        if error:
            yield AnswerProblem(effect_of(self.API, error), error, where, broker_message, to_grant(error, **resources))


@dataclass(eq=False, repr=False, kw_only=True)
class FindCoordinatorHandler(TxnRequestHandler):
    """Asks which broker coordinates a transactional id or a consumer group."""

    API = ApiKey.FIND_COORDINATOR
    NAME = "FindCoordinator"

    key: CoordinatorKey
    directory: CoordinatorDirectory
    priority: RequestPriority = RequestPriority.FIND_COORDINATOR

    @property
    def coordinator(self) -> None:
        return None

    @property
    def group(self) -> str | None:
        return self.key.key if self.key.key_type is KeyType.GROUP else None

    def message(self) -> FindCoordinatorRequest:
        return FindCoordinatorRequest.for_keys(self.key.key_type, [self.key.key])

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        try:
            node_or_error = read_coordinator(self.key, answer, self.version)
        except ProtocolError:
            node_or_error = Errors.COORDINATOR_NOT_AVAILABLE
        if isinstance(node_or_error, ErrorCode):
            result = answer.answer_for(self.key.key, self.version)
            resources = {"transactional_id": self.key.key, "group": self.key.key}
            message = None if result is None else result.error_message
            yield from self._problems_of(node_or_error.number, f"the coordinator of {self.key}", message, **resources)

    def succeed(self, answer: Any) -> None:
        node = read_coordinator(self.key, answer, self.version)
        assert isinstance(node, Node)
        logger.debug("= the coordinator of %s is node %d at %s:%d", self.key, node.id, node.host, node.port)
        self.directory.remember(self.key, node)


@dataclass(eq=False, repr=False)
class InitProducerIdHandler(TxnRequestHandler):
    """Asks for producer id and epoch: the transactional id's coordinator, or any broker if there is no transactional id. If
    `identity` is given, the coordinator bumps its epoch (KIP-360)."""

    API = ApiKey.INIT_PRODUCER_ID
    NAME = "InitProducerId"

    transactional_id: str | None = None
    timeout_ms: int = NO_TRANSACTION_TIMEOUT_MS
    identity: ProducerIdentity = NO_PRODUCER
    on_received: Callable[[ProducerIdentity], None] = field(kw_only=True)
    begins_transaction: bool = field(default=False, init=False)  # it goes between transactions
    priority: RequestPriority = field(default=RequestPriority.INIT_PRODUCER_ID, kw_only=True)

    @property
    def coordinator(self) -> CoordinatorKey | None:
        return None if self.transactional_id is None else CoordinatorKey(KeyType.TRANSACTION, self.transactional_id)

    def message(self) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
        )

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        where, invalid_error = f"InitProducerId on node {self.node_id}", Errors.CORRUPT_MESSAGE  # retriable
        if self.transactional_id is not None:
            where, invalid_error = f"InitProducerId for transactional id {self.transactional_id!r}", Errors.UNKNOWN_SERVER_ERROR
        is_timeout_rejected = answer.error_code == Errors.INVALID_TRANSACTION_TIMEOUT.number
        limit = f" with transaction.timeout.ms={self.timeout_ms}" if is_timeout_rejected else ""
        yield from self._problems_of(answer.error_code, where + limit, transactional_id=self.transactional_id or "")
        if not answer.error_code and (answer.producer_id < 0 or answer.producer_epoch < 0):
            where = f"{where}: no valid producer id in the answer: {answer.producer_id}, epoch {answer.producer_epoch}"
            yield from self._problems_of(invalid_error.number, where)
        if not answer.error_code and self._was_forgotten(answer.producer_id):
            where = f"{where}: producer id {answer.producer_id} instead of {self.identity.producer_id}"
            yield from self._problems_of(Errors.INVALID_PRODUCER_ID_MAPPING.number, where)

    def _was_forgotten(self, producer_id: int) -> bool:
        """Whether the coordinator does not know the identity that was to be bumped, and has made a new one instead of an error:
        the transactional id has expired, and another producer may have had it before that."""
        if self.transactional_id is None or not self.identity.is_valid or self.identity.producer_epoch >= LAST_USED_EPOCH:
            return False
        return bool(producer_id != self.identity.producer_id)

    def succeed(self, answer: Any) -> None:
        self.on_received(ProducerIdentity(answer.producer_id, answer.producer_epoch))


@dataclass(eq=False, repr=False, kw_only=True)
class _TransactionRequest(TxnRequestHandler):
    """A request about a transaction: to the coordinator of its transactional id, except TxnOffsetCommit."""

    transaction: OpenTransaction  # learns what its coordinator knows

    @property
    def transactional_id(self) -> str:
        return self.transaction.transactional_id

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(KeyType.TRANSACTION, self.transactional_id)

    def note_unknown_outcome(self) -> None:
        self.transaction.may_have_begun = True

    @property
    def _common_fields(self) -> dict[str, Any]:
        """The fields that all of these requests have."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.transaction.identity.producer_id,
            "producer_epoch": self.transaction.identity.producer_epoch,
        }


@dataclass(eq=False, repr=False, kw_only=True)
class AddPartitionsToTxnHandler(_TransactionRequest):
    """Adds partitions before their first batches are sent, where transaction.version is below 2."""

    API = ApiKey.ADD_PARTITIONS_TO_TXN
    NAME = "AddPartitionsToTxn"

    partitions: Iterable[TopicPartition]
    priority: RequestPriority = RequestPriority.ADD_PARTITIONS_OR_OFFSETS

    def message(self) -> AddPartitionsToTxnRequest:
        topics = tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(each.partition for each in topic_partitions))
            for topic, topic_partitions in partitions_by_topic(self.partitions).items()
        )
        return AddPartitionsToTxnRequest(**self._common_fields, topics=topics)

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        problems: list[AnswerProblem] = []
        for topic in answer.results_by_topic:
            resources = {"transactional_id": self.transactional_id, "topic": topic.name}
            for result in topic.results_by_partition:
                where = f"partition {topic.name}-{result.partition_index}"
                problems += self._problems_of(result.partition_error_code, where, **resources)
        # A partition that was not tried is not to blame: another one is.
        yield from sorted(problems, key=lambda problem: problem.error == Errors.OPERATION_NOT_ATTEMPTED)

    def succeed(self, answer: Any) -> None:  # noqa: ARG002
        self.transaction.note_added(self.partitions)


@dataclass(eq=False, repr=False, kw_only=True)
class AddOffsetsToTxnHandler(_TransactionRequest):
    """Adds a consumer group, where transaction.version is below 2. TxnOffsetCommit follows and completes the call."""

    API = ApiKey.ADD_OFFSETS_TO_TXN
    NAME = "AddOffsetsToTxn"
    completes_call = False

    call: TransactionalCall
    on_added: Callable[[TransactionalCall], None]
    priority: RequestPriority = RequestPriority.CALL

    def message(self) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(**self._common_fields, group_id=self.call.group.group_id)

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        group_id = self.call.group.group_id
        resources = {"transactional_id": self.transactional_id, "group": group_id}
        yield from self._problems_of(answer.error_code, f"group {group_id!r}", **resources)

    def succeed(self, answer: Any) -> None:  # noqa: ARG002
        self.transaction.has_begun = True
        self.on_added(self.call)


@dataclass(eq=False, repr=False, kw_only=True)
class TxnOffsetCommitHandler(_TransactionRequest):
    """Sends the offsets of a consumer group to the group's coordinator. A retry leaves out partitions that are done."""

    API = ApiKey.TXN_OFFSET_COMMIT
    NAME = "TxnOffsetCommit"

    call: TransactionalCall
    priority: RequestPriority = RequestPriority.CALL
    pending_offsets: dict[TopicPartition, OffsetAndMetadata] = field(init=False)

    def __post_init__(self) -> None:
        self.member = self.call.group
        self.pending_offsets = dict(sorted(self.call.offsets.items()))

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(KeyType.GROUP, self.member.group_id)

    def message(self) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            **self._common_fields,
            group_id=self.member.group_id,
            generation_id=self.member.generation_id,
            member_id=self.member.member_id,
            group_instance_id=self.member.group_instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(map(self._request_partition, partitions)))
                for topic, partitions in groupby(self.pending_offsets, attrgetter("topic"))
            ),
        )

    def _request_partition(self, topic_partition: TopicPartition) -> TxnOffsetCommitRequestPartition:
        offset = self.pending_offsets[topic_partition]
        return TxnOffsetCommitRequestPartition(
            partition_index=topic_partition.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        problems: list[AnswerProblem] = []
        resources = {"transactional_id": self.transactional_id, "group": self.member.group_id, "on_topic": READ}
        for topic in answer.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if not partition.error_code:
                    self.pending_offsets.pop(topic_partition, None)
                where = f"offset of {topic_partition} for group {self.member.group_id!r}"
                problems += self._problems_of(partition.error_code, where, topic=topic.name, **resources)
        retried_effects = (ErrorEffect.RETRY, ErrorEffect.FIND_COORDINATOR)
        yield from sorted(problems, key=lambda problem: problem.effect in retried_effects)  # what cannot be retried decides
        if self.pending_offsets and not problems:
            where = f"the answer says nothing of {next(iter(self.pending_offsets))}"
            yield from self._problems_of(Errors.UNKNOWN_SERVER_ERROR.number, where)


@dataclass(eq=False, repr=False, kw_only=True)
class EndTxnHandler(_TransactionRequest):
    """Commits or aborts the transaction, after its last batch and every other request of it."""

    API = ApiKey.END_TXN
    NAME = "EndTxn"

    is_commit: bool
    on_ended: Callable[[ProducerIdentity | None], None]  # with the next epoch, where the broker raised it (version 2)
    priority: RequestPriority = RequestPriority.CALL

    def message(self) -> EndTxnRequest:
        return EndTxnRequest(**self._common_fields, committed=self.is_commit)

    def errors(self, answer: Any) -> Iterator[AnswerProblem]:
        where = f"EndTxn for transactional id {self.transactional_id!r}"
        yield from self._problems_of(answer.error_code, where, transactional_id=self.transactional_id)

    def succeed(self, answer: Any) -> None:
        next_identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.on_ended(next_identity if self.version > LAST_END_TXN_VERSION_BEFORE_TV2 and next_identity.is_valid else None)

    def note_unknown_outcome(self) -> None:
        self.transaction.may_be_committed |= self.is_commit
