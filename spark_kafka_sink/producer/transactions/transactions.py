"""The state of a transactional producer: Kafka's TransactionManager, its transactional half.

    UNINITIALIZED ─▶ INITIALIZING ─▶ READY ─▶ IN_TRANSACTION ─▶ COMMITTING / ABORTING ─▶ READY, or RAISING_EPOCH ─▶ READY
                                                 │    └▶ PREPARED: another process ends the transaction
                                                 └▶ ABORTABLE_ERROR ─▶ ABORTING      FATAL_ERROR is reachable from each

Callers post operations (`post`) and wait; the Sender takes them (`begin_round`) and alone moves the state. Whether the brokers
speak transactions of version 2 (KIP-890) is looked at between transactions:

    version 2   a partition joins the transaction by its first Produce, a group by its TxnOffsetCommit; each end raises the epoch
    version 1   AddPartitionsToTxn and AddOffsetsToTxn come first; the epoch is raised by InitProducerId, after an error only

Laws: a batch of one transaction is never sent in the next; a row that fails, or whose fate is not known, makes the transaction
abortable. The end of a transaction is told when its coordinator has decided it; only the next transaction waits for an epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    FatalProducerError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
    fresh_copy,
)
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.transactions.allowed_calls import ALLOWED_IN, illegal_state
from spark_kafka_sink.producer.transactions.caller_errors import abortable, aborted, fatal, fenced, maybe_committed
from spark_kafka_sink.producer.transactions.coordinators import Coordinators
from spark_kafka_sink.producer.transactions.open_transaction import OpenTransaction
from spark_kafka_sink.producer.transactions.posted_calls import PostedCalls
from spark_kafka_sink.producer.transactions.sequence_numbers import NO_PRODUCER, ProducerIdAndEpoch, SequenceNumbers
from spark_kafka_sink.producer.transactions.transaction_errors import Effect
from spark_kafka_sink.producer.transactions.transaction_manager import MAX_EPOCH, TransactionManager, TxnState
from spark_kafka_sink.producer.transactions.transaction_version import FeaturesClient, TransactionVersion
from spark_kafka_sink.producer.transactions.transactional_call import Method, TransactionalCall
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    FIRST_BACKOFF_MS,
    MOST_ABORTS_AMID_MARKERS,
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
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.produce import LAST_VERSION_BEFORE_TRANSACTION_V2 as LAST_PRODUCE
from spark_kafka_sink.protocol.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)


class Transactions(TransactionManager):
    """Args:
    transactional_id, timeout_ms: transactional.id and transaction.timeout.ms.
    """

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__()
        self.transactional_id: str = transactional_id
        self.last_error: KafkaError | None = None  # why the transaction has to be aborted
        self.coordinators: Coordinators  # set by `use`
        self._timeout_ms = timeout_ms
        self._calls = PostedCalls()
        self._version = TransactionVersion()
        self._must_raise_epoch = False  # by InitProducerId, when the transaction has ended
        self._denial: KafkaError | None = None  # of the epoch for the next transaction, after which init_transactions() is due
        self._open = OpenTransaction()
        self._known_by: set[TopicPartition] = set()  # where a batch of this producer id was ever acknowledged
        self._carry_out: dict[Method, Callable[[TransactionalCall], None]] = {
            Method.USE_ID: self._use_id,
            Method.INIT: self._initialize,
            Method.BEGIN: self._begin,
            Method.SEND_OFFSETS: self._send_offsets,
            Method.PREPARE: self._prepare,
            Method.COMMIT: self._commit,
            Method.ABORT: self._abort,
        }

    def use(self, client: FeaturesClient, coordinators: Coordinators) -> None:
        """Before the Sender begins: what this asks brokers with."""
        self._version.use(client)
        self.coordinators = coordinators

    # CALLERS

    def post(self, operation: TransactionalCall) -> None:
        """Hand a call over to the Sender; wake it afterwards. Any thread, never blocks."""
        self._calls.post(operation)

    def row_failed(self, error: KafkaError) -> None:
        """Posted like a call, so that it comes before the commit that its caller asks for next."""
        self._calls.row_failed(error)

    def check_usable(self) -> None:
        """Raise why no further row or operation is possible, if so. Any thread."""
        error = self.call_error()
        if error is not None:
            raise error

    def check_allowed(self, method: Method) -> None:
        """Raise why a method cannot be called now, if so. Any thread; the Sender checks again."""
        error = self._why_not(method)
        if error is not None:
            raise error

    def _why_not(self, method: Method) -> KafkaError | None:
        """Why a method cannot be called in this state."""
        error, state, denial = self.call_error(), self.state, self._denial
        if error is not None and (method is not Method.ABORT or self.fatal_error is not None):
            return error
        if state in ALLOWED_IN[method]:
            return None
        if denial is not None and method is Method.BEGIN:
            return fresh_copy(denial)
        return illegal_state(method, state)

    def waiting_for(self) -> str:
        """Why an operation has not ended yet, for the error of a caller who waited. Any thread."""
        return self.coordinators.waiting_for() or f"the producer is {self.state.value}, and batches are not acknowledged yet"

    def call_error(self) -> KafkaError | None:
        """What a call gets in this state, as a new exception each time; None when nothing is wrong. Any thread."""
        fatal, last = self.fatal_error, self.last_error
        if fatal is not None:
            return fresh_copy(fatal)
        if self.state is TxnState.ABORTABLE_ERROR and last is not None:
            return abortable(last)
        return None

    @property
    def prepared(self) -> PreparedTransaction:
        """Who has to end the transaction, in state PREPARED."""
        return PreparedTransaction(self.transactional_id, *self.producer, self._version.number)

    # OPERATIONS: Sender thread

    def begin_round(self) -> None:
        """Carry out what callers have posted, as far as that needs no answer of a broker."""
        while (operation := self._calls.first()) is not None:
            if (
                isinstance(operation, TransactionalCall)
                and operation.method is Method.BEGIN
                and self.state is TxnState.RAISING_EPOCH
            ):
                return  # it waits for the epoch
            self._calls.take_first()
            if isinstance(operation, KafkaError):
                if self.state is TxnState.IN_TRANSACTION:
                    self.become_abortable(operation)
                continue
            if operation.is_taken:
                continue  # posted twice: its caller was interrupted in between
            operation.is_taken = True
            error = self._why_not(operation.method)
            if error is not None:
                operation.fail(error)
            else:
                self._carry_out[operation.method](operation)

    def _use_id(self, operation: TransactionalCall) -> None:
        """Nothing is under way: what was written under the id before is somebody else's to end."""
        if self.state is not TxnState.UNINITIALIZED:
            self.transition_to(TxnState.UNINITIALIZED)
        self._adopt(NO_PRODUCER)
        self._open, self._denial = OpenTransaction(), None
        self.transactional_id = operation.transactional_id
        operation.succeed()

    def _initialize(self, operation: TransactionalCall) -> None:
        self._denial = None
        self.transition_to(TxnState.INITIALIZING)
        self.coordinators.enqueue(InitProducerId(self.transactional_id, self._timeout_ms, NO_PRODUCER, operation))

    def _begin(self, operation: TransactionalCall) -> None:
        self.transition_to(TxnState.IN_TRANSACTION)
        self._calls.begun.append(operation)

    def _send_offsets(self, operation: TransactionalCall) -> None:
        identity, begins = (self.transactional_id, self.producer), not self._open.has_begun
        if self._version.is_v2:
            self._open.has_begun = True
            self.coordinators.enqueue(CommitOffsets(*identity, operation, adds_group=True, begins_transaction=begins))
        else:
            self.coordinators.enqueue(AddOffsets(*identity, operation, begins_transaction=begins))

    def _prepare(self, operation: TransactionalCall) -> None:
        self._calls.preparing = operation

    def _commit(self, operation: TransactionalCall) -> None:
        self.transition_to(TxnState.COMMITTING)
        self._end(operation, commits=True)

    def _abort(self, operation: TransactionalCall | None) -> None:
        self.transition_to(TxnState.ABORTING)
        self._open.want_none()
        self._end(operation, commits=False)

    def abort_for_close(self) -> None:
        """The producer closes within a transaction."""
        self._abort(None)

    def _end(self, operation: TransactionalCall | None, *, commits: bool) -> None:
        self.coordinators.enqueue(
            EndTransaction(self.transactional_id, self.producer, operation, commits=commits, raises_epoch=self._version.is_v2)
        )

    def _prepare_if_settled(self, all_settled: bool) -> None:
        """Settle `prepare_transaction` once nothing is under way."""
        operation = self._calls.preparing
        if operation is None or not all_settled or self.coordinators.has_work or self._open.has_wanted:
            return
        self._calls.preparing = None
        self.transition_to(TxnState.PREPARED)
        self._open.may_be_committed = True
        operation.succeed()

    # ANSWERS OF COORDINATORS: Sender thread

    def refusal_of(self, request: CoordinatorRequest) -> KafkaError | None:
        """Why a request is not sent any more: the transaction has failed meanwhile."""
        if self.fatal_error is not None:
            return self.call_error()
        if isinstance(request, EndTransaction) and request.commits and self.state is TxnState.ABORTING:  # by close()
            return TransactionAbortedError("The transaction cannot be committed any more: it is being aborted")
        if self.state is TxnState.ABORTABLE_ERROR and not isinstance(request, FindCoordinator):
            return self.call_error()
        if self.state is TxnState.ABORTING and request.group is not None:
            return TransactionAbortedError(f"The transaction was aborted before offsets of group {request.group!r} were sent")
        return None

    def must_be_ended(self) -> bool:
        return self._open.must_be_ended

    def outcome_unknown(self, request: CoordinatorRequest) -> None:
        self._open.may_have_begun |= isinstance(request, AddPartitions | AddOffsets)
        self._open.may_be_committed |= isinstance(request, EndTransaction) and request.commits

    def coordinator_found(self, key: CoordinatorKey, node: Node) -> None:
        self.coordinators.coordinator_found(key, node)

    def identity_received(self, identity: ProducerIdAndEpoch) -> None:
        self._adopt(identity)
        self._version.look()
        self.last_error = None
        self.transition_to(TxnState.READY)
        logger.info("= transactional id %r: producer id is %d, epoch %d", self.transactional_id, *identity)

    def _adopt(self, identity: ProducerIdAndEpoch) -> None:
        if identity.producer_id != self.producer.producer_id:
            self._known_by.clear()
        self.producer = identity
        self.sequences = SequenceNumbers()
        self._unresolved.clear()
        self._must_raise_epoch = identity.epoch >= MAX_EPOCH  # no transaction can end after that one

    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self._open.added(partitions)

    def offsets_added(self, request: AddOffsets) -> None:
        self._open.has_begun = True
        assert request.operation is not None
        self.coordinators.enqueue(CommitOffsets(self.transactional_id, self.producer, request.operation, adds_group=False))

    def transaction_ended(self, identity: ProducerIdAndEpoch | None) -> None:
        """`identity` is the one to go on with, where the broker raised the epoch (version 2)."""
        if identity is not None:
            self._adopt(identity)
        self._open = OpenTransaction()
        self.last_error = None
        self._must_raise_epoch |= self._version.look()  # numbers of both versions must not mix in an epoch
        if self._must_raise_epoch:
            self._raise_epoch(None)
        else:
            self.transition_to(TxnState.READY)

    def _raise_epoch(self, operation: TransactionalCall | None) -> None:
        """begin_transaction() waits for the epoch; and `operation`, if there is one."""
        self.transition_to(TxnState.RAISING_EPOCH)
        self.coordinators.enqueue(InitProducerId(self.transactional_id, self._timeout_ms, self.producer, operation))

    def request_failed(self, request: CoordinatorRequest, problem: Problem) -> None:
        """A coordinator refuses for good."""
        if isinstance(request, EndTransaction) and self._had_nothing_to_end(request, problem):
            return
        if self._may_have_met_markers(request, problem):
            self.coordinators.retry(request)
            return
        if isinstance(request, AddPartitions):
            self._open.not_added(request.partitions)
        error, effect = problem.exception(), _effect_in(self.state, self._open, request, problem)
        if effect is Effect.FATAL and isinstance(request, EndTransaction) and self._open.may_be_committed:
            error = maybe_committed(error)
        if effect is Effect.ABORTABLE_BY_BUMP:
            self._become_abortable_by_bump(error)
        elif effect is Effect.ABORTABLE:
            self.become_abortable(error)
        elif effect is Effect.DENIED:
            self._denial = error if request.operation is None else None  # else the call tells it
            self.transition_to(TxnState.UNINITIALIZED)
        elif effect is Effect.FENCED:
            self.become_fatal(fenced(problem.where, self.transactional_id, self.producer, self._timeout_ms))
        else:
            self.become_fatal(error)
        if self.state is TxnState.ABORTING:
            self._go_on_aborting(request, effect, error)
        if request.operation is not None:
            request.operation.fail(self.call_error() or error)

    def _had_nothing_to_end(self, request: EndTransaction, problem: Problem) -> bool:
        """Whether an abort has ended because its transaction had not begun, which this producer could not tell."""
        if request.commits or self._open.has_begun or problem.error != Errors.INVALID_TXN_STATE:
            return False
        self.transaction_ended(None)
        if request.operation is not None:
            request.operation.succeed()
        return True

    def _may_have_met_markers(self, request: CoordinatorRequest, problem: Problem) -> bool:
        """Whether an abort is repeated that took its producer for fenced.

        A coordinator of version 2 answers so, too, until the markers of the transaction before are written, if nothing of this
        one has reached it. InitProducerId could tell, but must not be asked: it would end the transaction of a real successor.
        """
        is_abort = isinstance(request, EndTransaction) and not request.commits
        return (
            is_abort
            and problem.effect is Effect.FENCED
            and self._version.is_v2
            and not self._open.is_written
            and request.attempts < MOST_ABORTS_AMID_MARKERS
        )

    def _go_on_aborting(self, request: CoordinatorRequest, effect: Effect, error: KafkaError) -> None:
        """What makes a transaction abortable says nothing new while it is being aborted, unless it is the end that fails."""
        if isinstance(request, EndTransaction) and effect is Effect.ABORTABLE_BY_BUMP:
            # The coordinator has forgotten this producer: nothing is left to end. The abort tells who has the id now.
            operation, request.operation = request.operation, None
            self._open, self.last_error = OpenTransaction(), None
            self._raise_epoch(operation)
        elif isinstance(request, EndTransaction | FindCoordinator) and request.group is None:
            self.become_fatal(error)  # an abort that has to be aborted cannot end (KIP-1050)

    # STATE

    def become_fatal(self, error: KafkaError) -> None:
        if error.condition == ProducerFencedError.condition and not isinstance(error, ProducerFencedError):
            error = fenced(error.message, self.transactional_id, self.producer, self._timeout_ms)  # what a leader has answered
        super().become_fatal(error if isinstance(error, FatalProducerError) else fatal(error))

    def become_abortable(self, error: KafkaError) -> None:
        """The transaction can only be aborted. The first error is the one that callers get: others follow from it."""
        if self.state in (TxnState.ABORTABLE_ERROR, TxnState.ABORTING, TxnState.FATAL_ERROR):
            logger.debug("! transactional id %r, %s: %s", self.transactional_id, self.state.value, error)
            return
        logger.info("! transactional id %r: the transaction must be aborted: %s", self.transactional_id, error)
        self.last_error = error
        self.transition_to(TxnState.ABORTABLE_ERROR)
        self._calls.fail_preparing(self.call_error() or error)

    def _become_abortable_by_bump(self, error: KafkaError) -> None:
        """As become_abortable, where sequence numbers are in doubt: they are safe again with the next epoch.

        In version 2 the end of the transaction raises it.
        """
        coordinator = self.coordinators.node_of(CoordinatorKey(KeyType.TRANSACTION, self.transactional_id))
        if self._version.is_v2 or self._version.can_raise_epoch(coordinator):
            self._must_raise_epoch |= not self._version.is_v2
            self.become_abortable(error)
        else:
            self.become_fatal(error)

    @property
    def may_use_another_id(self) -> bool:
        """Whether nothing is under way under this transactional id. Any thread."""
        return self.state in ALLOWED_IN[Method.USE_ID]

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has to end a transaction that is under way; a prepared one is somebody else's to end."""
        return self.state in (
            TxnState.IN_TRANSACTION,
            TxnState.COMMITTING,
            TxnState.ABORTING,
            TxnState.ABORTABLE_ERROR,
        )

    @property
    def is_ending(self) -> bool:
        """Whether it is committed, aborted or prepared now."""
        return self.state in (TxnState.COMMITTING, TxnState.ABORTING) or self._calls.preparing is not None

    @property
    def wants_rows_at_once(self) -> bool:
        """Whether nothing lingers: somebody waits for the transaction's end."""
        return self.state is TxnState.COMMITTING or self._calls.preparing is not None

    def rows_are_lost(self) -> TransactionAbortedError | None:
        """What rows that were not sent yet fail with, where the transaction is being aborted."""
        if self.state not in (TxnState.ABORTABLE_ERROR, TxnState.ABORTING):
            return None
        return aborted(self.last_error)

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
        if not self._version.is_v2 and first.topic_partition not in self._open:
            if self.state in (TxnState.IN_TRANSACTION, TxnState.COMMITTING):
                self._open.want(first.topic_partition)
            return True
        return super().must_stop_draining(first)

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        """Several batches may be in flight from the beginning of an epoch then.

        With transactions of version 2, brokers from 4.1 on also refuse a producer that they do not know unless it begins at 0
        (KAFKA-18202). Those of 4.0 do not, so the rule of one first batch stays: once per partition and producer id.
        """
        return topic_partition in self._known_by

    def batch_completed(self, batch: ProducerBatch) -> None:
        super().batch_completed(batch)
        self._open.is_written = True
        self._known_by.add(batch.topic_partition)

    def retry_backoff_ms(self, error: ErrorCode) -> int | None:
        """The first batches of a transaction may meet the markers of the one before, as AddPartitions may in version 1.

        Batches behind them are out of order until then.
        """
        if not self._version.is_v2 or self._open.is_written:
            return None
        return FIRST_BACKOFF_MS if error in (Errors.CONCURRENT_TRANSACTIONS, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER) else None

    def assign_sequence(self, batch: ProducerBatch) -> None:
        self._open.has_begun |= self._version.is_v2
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
        return None if self._version.is_v2 else LAST_PRODUCE

    # EACH ROUND: Sender thread

    def step(self, now_ms: int, all_settled: bool) -> int:
        """Send what is due to coordinators; returns in how many ms to ask again."""
        self._calls.tell_begun()
        if self._open.has_wanted:
            wanted, begins = self._open.take_wanted()
            self.coordinators.enqueue(AddPartitions(self.transactional_id, self.producer, wanted, begins_transaction=begins))
        self._prepare_if_settled(all_settled)
        return self.coordinators.step(now_ms, all_settled)

    def settle_all(self, error: KafkaError) -> None:
        """The Sender ends, or the producer has failed for good: nobody is left waiting."""
        self.coordinators.drop_all(error)
        self._calls.fail_all(error)

    def sender_ended(self, error: KafkaError) -> None:
        self.coordinators.drop_all(error)
        self._calls.end(error)


def _effect_in(state: TxnState, transaction: OpenTransaction, request: CoordinatorRequest, problem: Problem) -> Effect:
    """What a refusal means here; mostly what transaction_errors.py says of the error."""
    effect = problem.effect
    if state in (TxnState.INITIALIZING, TxnState.RAISING_EPOCH) and effect in (
        Effect.ABORTABLE,
        Effect.ABORTABLE_BY_BUMP,
    ):
        return Effect.FATAL  # there is no transaction to abort
    if not isinstance(request, EndTransaction):
        return effect
    if transaction.may_be_committed and effect is Effect.ABORTABLE_BY_BUMP:
        return Effect.FATAL  # the coordinator cannot tell any more
    return effect


def identity_of(config: ProducerConfig) -> TransactionManager | None:
    """Who a producer is to brokers: nobody without idempotence."""
    if config.transactional_id is not None:
        return Transactions(config.transactional_id, config.transaction_timeout_ms)
    return TransactionManager() if config.enable_idempotence else None
