"""The requests of a transaction: what each asks of which coordinator, and what its answer means.

A request makes its `message` and reads the `errors` of an answer, which transaction_errors.py judges; `succeed` tells the
TransactionState what an answer without errors means. coordinators.py queues, sends and retries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.producer.transactions.sequence_numbers import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_errors import Effect, effect_of
from spark_kafka_sink.producer.transactions.transactional_call import OffsetAndMetadata, TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.end_txn import LAST_VERSION_BEFORE_TRANSACTION_V2 as LAST_END_TXN
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import LAST_VERSION_BEFORE_TRANSACTION_V2 as LAST_OFFSET_COMMIT
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.permissions import READ, to_grant
from spark_kafka_sink.protocol.schema import Request
from spark_kafka_sink.protocol.topic_partition import TopicPartition

FIRST_BACKOFF_MS = 20  # the previous transaction's markers are being written: it takes milliseconds (KAFKA-5482)
MOST_ABORTS_AMID_MARKERS = 8  # with the default back-off 5 s


class CoordinatorKey(NamedTuple):
    """Whose coordinator: a transactional id's, or a consumer group's."""

    key_type: KeyType
    key: str

    def __str__(self) -> str:
        return f"{'transactional id' if self.key_type is KeyType.TRANSACTION else 'group'} {self.key!r}"


class Problem(NamedTuple):
    """The error of an answer that decides."""

    effect: Effect
    error: ErrorCode
    where: str
    broker_message: str | None = None
    to_grant: str = ""  # see protocol/permissions.py

    def exception(self) -> KafkaError:
        found = self.error.error(self.where, self.broker_message)
        found.message += self.to_grant
        return found


class TransactionState(Protocol):
    """What requests tell when they succeed; Transactions is the one."""

    def coordinator_found(self, key: CoordinatorKey, node: Node) -> None: ...

    def identity_received(self, identity: ProducerIdAndEpoch) -> None: ...

    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None: ...

    def offsets_added(self, request: AddOffsets) -> None: ...

    def transaction_ended(self, identity: ProducerIdAndEpoch | None) -> None: ...


class CoordinatorRequest(ABC):
    """Args:
    operation: the call that waits for this request; told when the request is done, or fails for good.
    begins_transaction: whether the coordinator learns of the transaction by this request.
    """

    PRIORITY: ClassVar[int]  # a smaller one goes first (Kafka's TxnRequestHandler.priority)
    API: ClassVar[ApiKey]
    completes_operation: ClassVar[bool] = True  # whether nothing follows this request
    max_version: int | None = None

    def __init__(self, operation: TransactionalCall | None = None, *, begins_transaction: bool = False) -> None:
        self.operation = operation
        self.begins_transaction = begins_transaction
        self.attempts = 0
        self.not_before_ms = 0

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorKey | None:
        """Who is asked; None: any broker."""

    @abstractmethod
    def message(self) -> Request[Any]: ...

    @abstractmethod
    def errors(self, response: Any, version: int) -> Iterator[Problem]:
        """Each error of an answer, judged, in the order in which it decides."""

    @abstractmethod
    def succeed(self, state: TransactionState, response: Any, version: int) -> None:
        """Tell what an answer without errors means."""

    @property
    def group(self) -> str | None:
        """The consumer group whose coordinator is asked, or asked for."""
        asked = self.coordinator
        return asked.key if asked is not None and asked.key_type is KeyType.GROUP else None

    def backoff_ms(self, error: ErrorCode) -> int | None:
        """The wait before the next attempt, where it is less than retry.backoff.ms."""
        return FIRST_BACKOFF_MS if self.begins_transaction and error == Errors.CONCURRENT_TRANSACTIONS else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(to {self.coordinator or 'any broker'})"

    def _problem(self, code: int, where: str, broker_message: str | None = None, **names: str) -> Iterator[Problem]:
        """`names`: what a permission may be missing on, see to_grant."""
        error = Errors.for_code(code)
        if error:
            yield Problem(effect_of(self.API, error), error, where, broker_message, to_grant(error, **names))


class FindCoordinator(CoordinatorRequest):
    PRIORITY = 0
    API = ApiKey.FIND_COORDINATOR

    def __init__(self, key: CoordinatorKey) -> None:
        super().__init__()
        self.key = key

    @property
    def coordinator(self) -> None:
        return None

    @property
    def group(self) -> str | None:
        return self.key.key if self.key.key_type is KeyType.GROUP else None

    def message(self) -> FindCoordinatorRequest:
        return FindCoordinatorRequest.for_keys(self.key.key_type, [self.key.key])

    def errors(self, response: Any, version: int) -> Iterator[Problem]:
        found = response.of(self.key.key, version)
        if found is None:
            yield from self._problem(Errors.COORDINATOR_NOT_AVAILABLE.number, f"the coordinator of {self.key}")
        else:
            names = {"transactional_id": self.key.key, "group": self.key.key}
            yield from self._problem(found.error_code, f"the coordinator of {self.key}", found.error_message, **names)

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:
        found = response.of(self.key.key, version)
        state.coordinator_found(self.key, Node(found.node_id, found.host, found.port))


class OfTransaction(CoordinatorRequest):
    """A request to the transactional id's own coordinator."""

    def __init__(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        operation: TransactionalCall | None = None,
        *,
        begins_transaction: bool = False,
    ) -> None:
        super().__init__(operation, begins_transaction=begins_transaction)
        self.transactional_id = transactional_id
        self.identity = identity

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(KeyType.TRANSACTION, self.transactional_id)

    @property
    def _where(self) -> str:
        return f"{type(self).__name__} for transactional id {self.transactional_id!r}"

    def errors(self, response: Any, version: int) -> Iterator[Problem]:  # noqa: ARG002 - some answers look different in old versions
        yield from self._problem(response.error_code, self._where, transactional_id=self.transactional_id)


class InitProducerId(OfTransaction):
    """Asks for producer id and epoch. With an identity it has the epoch raised (KIP-360), after everything else."""

    API = ApiKey.INIT_PRODUCER_ID

    def __init__(
        self, transactional_id: str, timeout_ms: int, identity: ProducerIdAndEpoch, operation: TransactionalCall | None = None
    ) -> None:
        super().__init__(transactional_id, identity, operation)
        self.timeout_ms = timeout_ms

    @property
    def PRIORITY(self) -> int:  # type: ignore[override]
        return 4 if self.identity.is_valid else 1

    def message(self) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
        )

    def errors(self, response: Any, version: int) -> Iterator[Problem]:  # noqa: ARG002
        is_too_long = response.error_code == Errors.INVALID_TRANSACTION_TIMEOUT.number
        where = f"{self._where} with transaction.timeout.ms={self.timeout_ms}" if is_too_long else self._where
        yield from self._problem(response.error_code, where, transactional_id=self.transactional_id)
        if not response.error_code and (response.producer_id < 0 or response.producer_epoch < 0):
            what = f"{self._where}: no valid producer id in the answer: {response.producer_id}, epoch {response.producer_epoch}"
            yield from self._problem(Errors.UNKNOWN_SERVER_ERROR.number, what)

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:  # noqa: ARG002
        state.identity_received(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))


class AddPartitions(OfTransaction):
    """Where transaction.version is below 2: before the first batch of each partition."""

    PRIORITY = 2
    API = ApiKey.ADD_PARTITIONS_TO_TXN

    def __init__(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        begins_transaction: bool,
    ) -> None:
        super().__init__(transactional_id, identity, begins_transaction=begins_transaction)
        self.partitions = sorted(partitions)

    def message(self) -> AddPartitionsToTxnRequest:
        topics = tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(each.partition for each in of_topic))
            for topic, of_topic in groupby(self.partitions, attrgetter("topic"))
        )
        return AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=topics,
        )

    def errors(self, response: Any, version: int) -> Iterator[Problem]:  # noqa: ARG002
        problems: list[Problem] = []
        for topic in response.results_by_topic:
            names = {"transactional_id": self.transactional_id, "topic": topic.name}
            for result in topic.results_by_partition:
                where = f"partition {topic.name}-{result.partition_index}"
                problems += self._problem(result.partition_error_code, where, **names)
        # A partition that was not tried tells nothing: another one is to blame.
        yield from sorted(problems, key=lambda problem: problem.error == Errors.OPERATION_NOT_ATTEMPTED)

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:  # noqa: ARG002
        state.partitions_added(self.partitions)


class AddOffsets(OfTransaction):
    """Where transaction.version is below 2: before CommitOffsets, which completes the operation."""

    PRIORITY = 2
    completes_operation = False
    API = ApiKey.ADD_OFFSETS_TO_TXN

    def __init__(
        self, transactional_id: str, identity: ProducerIdAndEpoch, operation: TransactionalCall, *, begins_transaction: bool
    ) -> None:
        super().__init__(transactional_id, identity, operation, begins_transaction=begins_transaction)
        assert operation.group is not None
        self.group_id = operation.group.group_id

    def message(self) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=self.group_id,
        )

    def errors(self, response: Any, version: int) -> Iterator[Problem]:  # noqa: ARG002
        names = {"transactional_id": self.transactional_id, "group": self.group_id}
        yield from self._problem(response.error_code, f"group {self.group_id!r}", **names)

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:  # noqa: ARG002
        state.offsets_added(self)


class CommitOffsets(OfTransaction):
    """TxnOffsetCommit, to the group's coordinator; partitions that are done are left out of a retry."""

    PRIORITY = 2
    API = ApiKey.TXN_OFFSET_COMMIT

    def __init__(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        operation: TransactionalCall,
        *,
        adds_group: bool,
        begins_transaction: bool = False,
    ) -> None:
        super().__init__(transactional_id, identity, operation, begins_transaction=begins_transaction)
        assert operation.group is not None
        self.member = operation.group
        self.pending: dict[TopicPartition, OffsetAndMetadata] = dict(sorted(operation.offsets.items()))
        self.max_version = None if adds_group else LAST_OFFSET_COMMIT

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(KeyType.GROUP, self.member.group_id)

    def message(self) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.member.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id=self.member.generation_id,
            member_id=self.member.member_id,
            group_instance_id=self.member.group_instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(map(self._partition, partitions)))
                for topic, partitions in groupby(self.pending, attrgetter("topic"))
            ),
        )

    def _partition(self, where: TopicPartition) -> TxnOffsetCommitRequestPartition:
        offset = self.pending[where]
        return TxnOffsetCommitRequestPartition(
            partition_index=where.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )

    def errors(self, response: Any, version: int) -> Iterator[Problem]:  # noqa: ARG002
        problems: list[Problem] = []
        names = {"transactional_id": self.transactional_id, "group": self.member.group_id, "on_topic": READ}
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if not each.error_code:
                    self.pending.pop(where, None)
                what = f"offset of {where} for group {self.member.group_id!r}"
                problems += self._problem(each.error_code, what, topic=topic.name, **names)
        retried = (Effect.RETRY, Effect.FIND_COORDINATOR)
        yield from sorted(problems, key=lambda problem: problem.effect in retried)  # what cannot be retried decides
        if self.pending and not problems:
            yield from self._problem(Errors.UNKNOWN_SERVER_ERROR.number, f"the answer says nothing of {next(iter(self.pending))}")

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:
        """Only the operation waits for it."""


class EndTransaction(OfTransaction):
    PRIORITY = 3
    API = ApiKey.END_TXN

    def __init__(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        operation: TransactionalCall | None,
        *,
        commits: bool,
        raises_epoch: bool,
    ) -> None:
        super().__init__(transactional_id, identity, operation)
        self.commits = commits
        self.max_version = None if raises_epoch else LAST_END_TXN

    def message(self) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=self.commits,
        )

    def succeed(self, state: TransactionState, response: Any, version: int) -> None:
        raised = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        state.transaction_ended(raised if version > LAST_END_TXN and raised.is_valid else None)
