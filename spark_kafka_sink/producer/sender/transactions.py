"""The state of a transactional producer: Kafka's TransactionManager, its transactional half.

    UNINITIALIZED ─▶ INITIALIZING ─▶ READY ─▶ IN_TRANSACTION ─▶ COMMITTING / ABORTING ─▶ READY
                                                 │    └▶ PREPARED: another process ends the transaction
                                                 └▶ ABORTABLE_ERROR ─▶ ABORTING      FATAL_ERROR is reachable from each

Callers post operations (`post`) and wait; the Sender takes them (`take_posted`) and alone moves the state. Whether the brokers
speak transactions of version 2 (KIP-890) is looked at between transactions:

    version 2   a partition joins the transaction by its first Produce, a group by its TxnOffsetCommit; each end raises the epoch
    version 1   AddPartitionsToTxn and AddOffsetsToTxn come first; the epoch is raised by InitProducerId, after an error only

Laws: a batch of one transaction is never sent in the next; a batch whose fate is not known makes the transaction abortable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
    fresh_copy,
)
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.operations import Kind, Operation
from spark_kafka_sink.producer.sender.coordinator_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Problem,
)
from spark_kafka_sink.producer.sender.coordinators import Coordinators
from spark_kafka_sink.producer.sender.sequence_numbers import NO_PRODUCER, ProducerIdAndEpoch, SequenceNumbers
from spark_kafka_sink.producer.sender.transaction_errors import Effect
from spark_kafka_sink.producer.sender.transaction_manager import State, TransactionManager
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.produce import LAST_VERSION_BEFORE_TRANSACTION_V2 as LAST_PRODUCE
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)
KafkaErrorT = TypeVar("KafkaErrorT", bound=KafkaError)

TRANSACTION_V2 = 2  # of the finalized feature transaction.version
FIRST_INIT_WITH_IDENTITY = 3  # of InitProducerId


class FeaturesClient(Protocol):
    """What this needs of NetworkClient."""

    def finalized_features(self) -> tuple[int, Mapping[str, int]]: ...

    def api_versions(self, node_id: int) -> NodeApiVersions | None: ...


class Transactions(TransactionManager):
    """Args:
    transactional_id, timeout_ms: transactional.id and transaction.timeout.ms.
    """

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__()
        self.transactional_id: str = transactional_id
        self.last_error: KafkaError | None = None  # why the transaction has to be aborted
        self.coordinators: Coordinators  # set by `use`
        self._client: FeaturesClient  # the same
        self._timeout_ms = timeout_ms
        self._posted: deque[Operation] = deque()  # appended by callers, taken by the Sender
        self._uses_v2 = False
        self._features_epoch = -1
        self._must_raise_epoch = False  # by InitProducerId, when the transaction has ended
        self._has_started = False  # brokers know of the transaction: it must be ended
        self._partitions: set[TopicPartition] = set()  # that the transaction has
        self._new_partitions: set[TopicPartition] = set()  # to be added (version 1)
        self._adding: set[TopicPartition] = set()  # in a request
        self._preparing: Operation | None = None  # waits until everything is settled
        self._skips_end = False  # the coordinator does not know the producer id any more: there is nothing to end
        self._carry_out = {
            Kind.INIT: self._initialize,
            Kind.BEGIN: self._begin,
            Kind.SEND_OFFSETS: self._send_offsets,
            Kind.PREPARE: self._prepare,
            Kind.COMMIT: self._commit,
            Kind.ABORT: self._abort,
        }

    def use(self, client: FeaturesClient, coordinators: Coordinators) -> None:
        """Before the Sender begins: what this asks brokers with."""
        self._client = client
        self.coordinators = coordinators

    # CALLERS

    def post(self, operation: Operation) -> None:
        """Hand a call over to the Sender; wake it afterwards. Any thread, never blocks."""
        self._posted.append(operation)

    def check_usable(self) -> None:
        """Raise why no further row or operation is possible, if so. Any thread."""
        error = self.call_error()
        if error is not None:
            raise error

    def check_allowed(self, kind: Kind) -> None:
        """Raise why a method cannot be called now, if so. Any thread; the Sender checks again."""
        if kind is not Kind.ABORT or self.fatal_error is not None:
            self.check_usable()
        if self.state not in ALLOWED_IN[kind]:
            raise illegal_state(kind, self.state)

    def waiting_for(self) -> str:
        """Why an operation has not ended yet, for the error of a caller who waited. Any thread."""
        return self.coordinators.waiting_for() or f"the producer is {self.state.value}, and batches are not acknowledged yet"

    def call_error(self) -> KafkaError | None:
        """What a call gets in this state, as a new exception each time; None when nothing is wrong. Any thread."""
        fatal, last = self.fatal_error, self.last_error
        if fatal is not None:
            return fresh_copy(fatal)
        if self.state is State.ABORTABLE_ERROR and last is not None:
            text = f"The transaction cannot be committed: {last.message} Call abort_transaction(), then go on with the next one."
            return _caused(AbortableTransactionError(text, condition=last.condition), last)
        return None

    @property
    def prepared(self) -> PreparedTransaction:
        """Who has to end the transaction, in state PREPARED."""
        version = TRANSACTION_V2 if self._uses_v2 else 1
        return PreparedTransaction(self.transactional_id, *self.producer, version)

    # OPERATIONS: Sender thread

    def begin_round(self) -> None:
        """Carry out what callers have posted, as far as that needs no answer of a broker."""
        while self._posted:
            operation = self._posted.popleft()
            error = self.fatal_error or (self.last_error if operation.kind is not Kind.ABORT else None)
            if error is not None:
                operation.fail(self.call_error() or error)
            elif self.state not in ALLOWED_IN[operation.kind]:
                operation.fail(illegal_state(operation.kind, self.state))
            else:
                self._carry_out[operation.kind](operation)

    def _initialize(self, operation: Operation) -> None:
        self.transition_to(State.INITIALIZING)
        self.coordinators.enqueue(InitProducerId(self.transactional_id, self._timeout_ms, NO_PRODUCER, operation))

    def _begin(self, operation: Operation) -> None:
        self.transition_to(State.IN_TRANSACTION)
        operation.succeed()

    def _send_offsets(self, operation: Operation) -> None:
        if self._uses_v2:
            self._has_started = True
            self.coordinators.enqueue(CommitOffsets(self.transactional_id, self.producer, operation, adds_group=True))
        else:
            self.coordinators.enqueue(AddOffsets(self.transactional_id, self.producer, operation))

    def _prepare(self, operation: Operation) -> None:
        self._preparing = operation

    def _commit(self, operation: Operation) -> None:
        self.transition_to(State.COMMITTING)
        self._end(operation, commits=True)

    def _abort(self, operation: Operation | None) -> None:
        self.transition_to(State.ABORTING)
        self._new_partitions.clear()
        self._end(operation, commits=False)

    def abort_for_close(self) -> None:
        """The producer closes within a transaction."""
        self._abort(None)

    def _end(self, operation: Operation | None, *, commits: bool) -> None:
        """End the transaction and, where that is due, have the epoch raised then: the operation waits for the last of the two."""
        v2_before = self._uses_v2
        self._look_at_features()
        if self._uses_v2 and not v2_before:
            self._must_raise_epoch = True  # the brokers were upgraded: numbers of both versions must not mix in an epoch
        then_raises = self._must_raise_epoch and self._can_raise_epoch()
        self._must_raise_epoch = then_raises
        if not self._skips_end:
            end = EndTransaction(
                self.transactional_id,
                self.producer,
                None if then_raises else operation,
                commits=commits,
                raises_epoch=v2_before,
            )
            self.coordinators.enqueue(end)
        if then_raises or self._skips_end:
            self.coordinators.enqueue(InitProducerId(self.transactional_id, self._timeout_ms, self.producer, operation))
        if self._skips_end:
            self.transition_to(State.INITIALIZING)
            self._forget_transaction()

    def _look_at_features(self) -> None:
        epoch, levels = self._client.finalized_features()
        if epoch > self._features_epoch:
            self._features_epoch = epoch
            self._uses_v2 = levels.get("transaction.version", 0) >= TRANSACTION_V2

    def _can_raise_epoch(self) -> bool:
        """Whether the coordinator takes InitProducerId with an identity (KIP-360)."""
        node = self.coordinators.node_of(CoordinatorKey(KeyType.TRANSACTION, self.transactional_id))
        versions = None if node is None else self._client.api_versions(node)
        return versions is None or versions.max_version(ApiKey.INIT_PRODUCER_ID) >= FIRST_INIT_WITH_IDENTITY

    def _prepare_if_settled(self, all_settled: bool) -> None:
        """Settle `prepare_transaction` once nothing is under way."""
        if self._preparing is None or not all_settled or self.coordinators.has_work or self._new_partitions:
            return
        operation, self._preparing = self._preparing, None
        self.transition_to(State.PREPARED)
        operation.succeed()

    # ANSWERS OF COORDINATORS: Sender thread

    def refusal_of(self, request: CoordinatorRequest) -> KafkaError | None:
        """Why a request is not sent any more: the transaction has failed meanwhile."""
        if self.fatal_error is not None:
            return self.call_error()
        if self.state is State.ABORTABLE_ERROR and not isinstance(request, FindCoordinator):
            return self.call_error()
        return None

    def ends_nothing(self, request: EndTransaction) -> bool:  # noqa: ARG002
        """Whether brokers know of no transaction: then there is nothing to ask of them."""
        if self._has_started:
            return False
        logger.debug("= transactional id %r: nothing was written, no EndTxn is sent", self.transactional_id)
        self.transaction_ended(None)
        return True

    def coordinator_found(self, key: CoordinatorKey, node: Node) -> None:
        self.coordinators.coordinator_found(key, node)

    def identity_received(self, identity: ProducerIdAndEpoch) -> None:
        self.producer = identity
        self.sequences = SequenceNumbers()
        self._unresolved.clear()
        self._look_at_features()
        self._must_raise_epoch = self._skips_end = False
        self.last_error = None
        self.transition_to(State.READY)
        logger.info("= transactional id %r: producer id is %d, epoch %d", self.transactional_id, *identity)

    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self._adding.difference_update(partitions)
        self._partitions.update(partitions)
        self._has_started = True

    def offsets_added(self, request: AddOffsets) -> None:
        self._has_started = True
        assert request.operation is not None
        self.coordinators.enqueue(CommitOffsets(self.transactional_id, self.producer, request.operation, adds_group=False))

    def transaction_ended(self, identity: ProducerIdAndEpoch | None) -> None:
        """`identity` is the one to go on with, where the broker raised the epoch (version 2)."""
        if identity is not None:
            self.producer = identity
            self.sequences = SequenceNumbers()
            self._unresolved.clear()
            self._must_raise_epoch = False
        self._forget_transaction()
        self.last_error = None
        self.transition_to(State.INITIALIZING if self._must_raise_epoch else State.READY)

    def _forget_transaction(self) -> None:
        self._has_started = False
        self._partitions.clear()
        self._new_partitions.clear()
        self._adding.clear()

    def request_failed(self, request: CoordinatorRequest, problem: Problem) -> None:
        """A coordinator refuses for good."""
        if isinstance(request, AddPartitions):
            self._adding.difference_update(request.partitions)  # batches of those that were added before may go on
        error = problem.error.error(problem.where, problem.broker_message)
        effect = problem.effect
        if effect is Effect.ABORTABLE_BY_BUMP:
            self._skips_end |= problem.error == Errors.INVALID_PRODUCER_ID_MAPPING
            self._become_abortable_by_bump(error)
        elif effect is Effect.ABORTABLE:
            if self.state is State.ABORTING:
                self.become_fatal(error)  # an abort that has to be aborted cannot end (KIP-1050)
            else:
                self.become_abortable(error)
        elif effect is Effect.DENIED:
            self.last_error = None
            self.transition_to(State.UNINITIALIZED)
        elif effect is Effect.FENCED:
            self.become_fatal(self._fenced(problem))
        else:
            self.become_fatal(error)
        if request.operation is not None:
            request.operation.fail(self.call_error() or error)

    def _fenced(self, problem: Problem) -> ProducerFencedError:
        return ProducerFencedError(
            f"{problem.where}: another producer with transactional id {self.transactional_id!r} has been started since and has"
            f" taken over, or the transaction was open for longer than transaction.timeout.ms={self._timeout_ms}; this producer"
            f" (producer id {self.producer.producer_id}, epoch {self.producer.epoch}) can write nothing more. If both should"
            " live, give each its own transactional.id; if the transaction takes so long, raise the time-out."
        )

    # STATE

    def become_fatal(self, error: KafkaError) -> None:
        if not isinstance(error, FatalProducerError):
            text = f"{error.message} This producer can no longer be used: close it."
            error = _caused(FatalProducerError(text, condition=error.condition), error)
        super().become_fatal(error)

    def become_abortable(self, error: KafkaError) -> None:
        """The transaction can only be aborted."""
        if self.state in (State.ABORTING, State.FATAL_ERROR):
            logger.debug("! transactional id %r: while aborting: %s", self.transactional_id, error)
            return
        logger.info("! transactional id %r: the transaction must be aborted: %s", self.transactional_id, error)
        self.last_error = error
        self.transition_to(State.ABORTABLE_ERROR)
        if self._preparing is not None:
            operation, self._preparing = self._preparing, None
            operation.fail(self.call_error() or error)

    def _become_abortable_by_bump(self, error: KafkaError) -> None:
        """As become_abortable, where sequence numbers are in doubt: they are safe again with the next epoch.

        In version 2 the end of the transaction raises it.
        """
        if self._uses_v2 or self._can_raise_epoch():
            self._must_raise_epoch |= not self._uses_v2
            self.become_abortable(error)
        else:
            self.become_fatal(error)

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has to end a transaction that is under way; a prepared one is somebody else's to end."""
        return self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR)

    @property
    def is_ending(self) -> bool:
        return self.state in (State.COMMITTING, State.ABORTING)

    @property
    def wants_rows_at_once(self) -> bool:
        """Whether nothing lingers: somebody waits for the transaction's end."""
        return self.state is State.COMMITTING or self._preparing is not None

    def rows_are_lost(self) -> TransactionAbortedError | None:
        """What rows that were not sent yet fail with, where the transaction is being aborted."""
        if self.state not in (State.ABORTABLE_ERROR, State.ABORTING):
            return None
        error = TransactionAbortedError("The transaction was aborted before this row was sent")
        return error if self.last_error is None else _caused(error, self.last_error)

    # BATCHES: what TransactionManager says of an idempotent producer, for a transactional one

    @property
    def needs_producer_id(self) -> bool:
        return False  # init_transactions() asks for it

    def maybe_bump_epoch(self) -> None:
        """Within a transaction no epoch is bumped: the transaction is aborted."""

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        raise RuntimeError(f"{topic_partition}: the epoch cannot be bumped within a transaction")

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        if not self.producer.is_valid or not self.has_open_transaction:
            return True
        if not self._uses_v2 and first.topic_partition not in self._partitions:
            if first.topic_partition not in self._adding:
                self._new_partitions.add(first.topic_partition)
            return True
        return super().must_stop_draining(first)

    @property
    def first_sequence_is_checked(self) -> bool:
        """In version 2 a broker refuses a batch of a new epoch that does not begin at 0, also when it knows nothing of the
        producer (KIP-890): no batch needs to wait until the partition's first one is acknowledged."""
        return self._uses_v2

    def assign_sequence(self, batch: ProducerBatch) -> None:
        self._has_started |= self._uses_v2
        super().assign_sequence(batch)

    def batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        super().batch_failed(batch, error)
        if batch.has_sequence:
            self._become_abortable_by_bump(error)
        else:
            self.become_abortable(error)

    def maybe_resolve(self) -> None:
        """What is in doubt was made an abortable error when its batch failed; the next epoch begins at 0."""

    @property
    def produce_version_cap(self) -> int | None:  # type: ignore[override]
        return None if self._uses_v2 else LAST_PRODUCE

    # EACH ROUND: Sender thread

    def step(self, now_ms: int, all_settled: bool) -> int:
        """Send what is due to coordinators; returns in how many ms to ask again."""
        if self._new_partitions:
            is_first = not self._partitions and not self._adding
            self.coordinators.enqueue(AddPartitions(self.transactional_id, self.producer, sorted(self._new_partitions), is_first))
            self._adding |= self._new_partitions
            self._new_partitions = set()
        self._prepare_if_settled(all_settled)
        return self.coordinators.step(now_ms, all_settled)

    def settle_all(self, error: KafkaError) -> None:
        """The Sender ends, or the producer has failed for good: nobody is left waiting."""
        self.coordinators.drop_all(error)
        preparing, self._preparing = self._preparing, None
        for operation in [*self._posted, *filter(None, [preparing])]:
            operation.fail(error)
        self._posted.clear()


def illegal_state(kind: Kind, state: State) -> IllegalStateError:
    """A call that does not fit the state, told with what to do instead."""
    return IllegalStateError(f"{kind.value}() is not possible {_WHERE[state]}")


ALLOWED_IN = {
    Kind.INIT: {State.UNINITIALIZED},
    Kind.BEGIN: {State.READY},
    Kind.SEND_OFFSETS: {State.IN_TRANSACTION},
    Kind.PREPARE: {State.IN_TRANSACTION},
    Kind.COMMIT: {State.IN_TRANSACTION, State.PREPARED},
    Kind.ABORT: {State.IN_TRANSACTION, State.PREPARED, State.ABORTABLE_ERROR},
}

_WHERE = {
    State.UNINITIALIZED: "before init_transactions()",
    State.INITIALIZING: "while init_transactions() is under way",
    State.READY: "outside of a transaction: call begin_transaction() first; init_transactions() is called once",
    State.IN_TRANSACTION: "within a transaction: call commit_transaction() or abort_transaction() first",
    State.PREPARED: "in a prepared transaction: it can only be committed or aborted",
    State.COMMITTING: "while the transaction is being committed",
    State.ABORTING: "while the transaction is being aborted",
    State.ABORTABLE_ERROR: "after an error in the transaction: call abort_transaction() first",
    State.FATAL_ERROR: "after a fatal error: close the producer",
}


def _caused(error: KafkaErrorT, cause: KafkaError) -> KafkaErrorT:
    error.__cause__ = cause
    return error
