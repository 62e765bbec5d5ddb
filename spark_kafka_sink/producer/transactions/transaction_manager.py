"""Carries out the transactional calls, and decides what answers and failures mean for the transaction.

The transactional half of Kafka's TransactionManager. Callers post calls (PostedCalls) and wait; the Sender takes them
(`begin_round`) and alone moves the state. Between transactions it looks whether the brokers speak version 2 (KIP-890):

    version 2   a partition joins the transaction by its first Produce, a group by its TxnOffsetCommit; each end bumps the epoch
    version 1   AddPartitionsToTxn and AddOffsetsToTxn come first; InitProducerId bumps the epoch, usually after errors only

Laws: a batch of one transaction is never sent in the next. A row that fails or has no known outcome makes the transaction
abortable, or is fatal. A transaction's end is reported when its coordinator has decided it; only the next one waits for an epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
    fresh_copy,
)
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.idempotence.numbering import NumberingSequencer, SequencerState
from spark_kafka_sink.producer.idempotence.sequencer import SequenceFacts
from spark_kafka_sink.producer.transactions.transaction_states import ALLOWED_STATES, NEXT_TXN_STATES, STATE_TEXTS
from spark_kafka_sink.producer.txn_requests.transaction_errors import (
    ErrorEffect,
    abortable_error,
    aborted_error,
    fatal_error,
    fenced_error,
    maybe_committed_error,
)
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod, PostedCalls, TransactionalCall
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import (
    MAX_ABORTS_AMID_CONTROL_RECORDS,
    MAX_FIRST_BACKOFF_MS,
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    AnswerProblem,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    OpenTransaction,
    RequestPriority,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.produce import LAST_PRODUCE_VERSION_BEFORE_TV2
from spark_kafka_sink.protocol.messages.txn_offset_commit import LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2
from spark_kafka_sink.protocol.producer_identity import (
    MAX_EPOCH,
    NO_PRODUCER,
    PreparedTransaction,
    ProducerIdentity,
    speaks_transactions_v2,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

FIRST_INIT_VERSION_WITH_IDENTITY = 3  # of InitProducerId


class TransactionVersion:
    """The brokers' version of transactions, read between transactions: each keeps its version. Any thread may read `is_v2`.

    It is 2 if the newest levels say so that any broker has told, and the coordinator itself: it may not know yet of a level that
    was raised, and cannot log what leaders then ask of it.
    """

    def __init__(self, client: KafkaClient) -> None:
        self.is_v2 = False
        self._client = client

    def refresh(self, coordinator: Node | None) -> bool:
        """Read the version again. Returns whether it has changed."""
        was_v2 = self.is_v2
        _, levels = self._client.finalized_features()
        versions = None if coordinator is None else self._client.api_versions(coordinator.id)
        self.is_v2 = speaks_transactions_v2(levels) and (versions is None or versions.has_transactions_v2)
        return self.is_v2 is not was_v2

    def can_bump_epoch(self, coordinator: Node | None) -> bool:
        """Whether this node takes InitProducerId with an identity (KIP-360). True if the node is not connected."""
        versions = None if coordinator is None else self._client.api_versions(coordinator.id)
        return versions is None or versions.max_version(ApiKey.INIT_PRODUCER_ID) >= FIRST_INIT_VERSION_WITH_IDENTITY


class TransactionManager(NumberingSequencer):
    """The sequencer of a transactional producer, which also carries out its callers' calls. Arguments as NumberingSequencer.

    Within a transaction no epoch is bumped and no gap closed: a batch that failed has made the transaction abortable, and the
    next epoch begins at 0.
    """

    transactional_id: str
    next_states = NEXT_TXN_STATES

    def __init__(self, config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None = None) -> None:
        super().__init__(config, client, clock, random)
        self.transactional_id = config.transactional_id or ""
        self.last_error: KafkaError | None = None  # why the transaction has to be aborted
        self._timeout_ms = config.transaction_timeout_ms
        self.calls = PostedCalls()
        self._version = TransactionVersion(client)
        self._must_bump_epoch = False  # by InitProducerId, when the transaction has ended
        self._begin_error: KafkaError | None = None  # the epoch for the next transaction was denied: init_transactions() is due
        self._txn = OpenTransaction(self.transactional_id, self.identity)
        self._last_prepare: TransactionalCall | None = None  # the last call of prepare_transaction
        self._acknowledged_partitions: set[TopicPartition] = set()  # where a batch of this producer id was acknowledged
        self._call_handlers: dict[CalledMethod, Callable[[TransactionalCall], None]] = {
            CalledMethod.USE_ID: self._use_id,
            CalledMethod.INIT: self._initialize,
            CalledMethod.BEGIN: self._begin,
            CalledMethod.SEND_OFFSETS: self._send_offsets,
            CalledMethod.PREPARE: self._prepare,
            CalledMethod.COMMIT: self._commit,
            CalledMethod.ABORT: self._abort,
        }

    # CALLERS: any thread

    def handle_failed_row(self, error: KafkaError) -> None:
        """Post the error like a call, so that the Sender takes it before the commit of the same caller."""
        self.calls.handle_failed_row(error)

    def current_error(self) -> KafkaError | None:
        error, last_error = super().current_error(), self.last_error
        if error is None and last_error is not None and self.state is SequencerState.ABORTABLE_ERROR:
            return abortable_error(last_error)
        return error

    def refusal_of_call(self, method: CalledMethod) -> KafkaError | None:
        """Why a method cannot be called in this state; None: it can. Callers ask first, then the Sender decides."""
        error, state, begin_error = self.current_error(), self.state, self._begin_error
        if error is not None and (method is not CalledMethod.ABORT or self.fatal_error is not None):
            return error
        if state in ALLOWED_STATES[method]:
            return None
        if begin_error is not None and method is CalledMethod.BEGIN:
            return fresh_copy(begin_error)
        return IllegalStateError(f"{method.value}() is not possible {STATE_TEXTS[state]}")

    @property
    def is_at_rest(self) -> bool:
        return self.state in ALLOWED_STATES[CalledMethod.USE_ID]

    def delay_reason(self, call: TransactionalCall, broker_trouble: str | None = None) -> str:
        """Why the call has not ended yet, for the error of a caller who waited. `broker_trouble`: what Metadata knows of it."""
        request, troubles = self.requests.delay_reason(), [broker_trouble]
        if request:
            troubles.insert(0, self.requests.last_trouble)
        elif call.is_taken:
            request = f"the producer is {self.state.value}, and batches are not acknowledged yet"
        else:
            request = "the producer's thread has not come to it yet"
        trouble = "; ".join(filter(None, troubles))
        return f"{request}; last trouble: {trouble}" if trouble else request

    @property
    def prepared_transaction(self) -> PreparedTransaction:
        """What another process needs to end the transaction; valid in state PREPARED."""
        return PreparedTransaction(self.transactional_id, *self.identity, 2 if self._version.is_v2 else 1)

    # CALLS ARE CARRIED OUT: Sender thread

    def begin_round(self) -> None:
        """Carry out what callers have posted, as far as that needs no answer of a broker."""
        while (entry := self.calls.first()) is not None:
            if isinstance(entry, KafkaError):
                self.calls.take_first()
                if self.state is SequencerState.IN_TRANSACTION:
                    self.become_abortable(entry)
                continue
            if entry.method is CalledMethod.BEGIN and self.state is SequencerState.BUMPING_EPOCH:
                return  # it waits for the epoch
            self.calls.take_first()
            if entry.is_taken:
                continue  # posted twice: its caller was interrupted in between
            entry.is_taken = True
            error = self.refusal_of_call(entry.state_method)
            if error is not None:
                entry.settle(error)
            else:
                self._call_handlers[entry.method](entry)

    def _use_id(self, call: TransactionalCall) -> None:
        self._switch_to_id(call.transactional_id)
        call.settle()

    def _switch_to_id(self, transactional_id: str) -> None:
        """Go on under another id. Nothing is under way: another process ends what was prepared under the old id."""
        if self.state is not SequencerState.UNINITIALIZED:
            self.transition_to(SequencerState.UNINITIALIZED)
        self.transactional_id = transactional_id
        self._adopt(NO_PRODUCER)
        self._begin_error = None

    def _initialize(self, call: TransactionalCall) -> None:
        if call.transactional_id:
            self._switch_to_id(call.transactional_id)
        self._begin_error = None
        self.transition_to(SequencerState.INITIALIZING)
        if call.identity.is_valid:
            self.handle_identity(call.identity)
            call.settle()
            return
        self._ask_for_identity(call, NO_PRODUCER, RequestPriority.INIT_PRODUCER_ID)

    def _ask_for_identity(self, call: TransactionalCall | None, identity: ProducerIdentity, priority: RequestPriority) -> None:
        request = InitProducerIdHandler(
            self.transactional_id, self._timeout_ms, identity, on_received=self.handle_identity, call=call, priority=priority
        )
        self.requests.enqueue(request)

    def _begin(self, call: TransactionalCall) -> None:
        self.transition_to(SequencerState.IN_TRANSACTION)
        self.calls.pending_begins.append(call)

    def _send_offsets(self, call: TransactionalCall) -> None:
        """Queue the offsets of a call, behind those of earlier calls, and behind AddPartitionsToTxn, for which rows wait."""
        begins_transaction = not self._txn.has_begun
        request: AddOffsetsToTxnHandler | TxnOffsetCommitHandler
        if self._version.is_v2:
            self._txn.has_begun = True
            request = TxnOffsetCommitHandler(
                transaction=self._txn, call=call, begins_transaction=begins_transaction, must_follow_rows=call.must_follow_rows
            )
        else:
            request = AddOffsetsToTxnHandler(
                transaction=self._txn,
                call=call,
                begins_transaction=begins_transaction,
                must_follow_rows=call.must_follow_rows,
                on_added=self._handle_added_offsets,
            )
        self.requests.enqueue(request)

    def _handle_added_offsets(self, call: TransactionalCall) -> None:
        """Queue TxnOffsetCommit, before an EndTxn that is queued. AddOffsetsToTxn has waited for rows if that was necessary."""
        priority, max_version = RequestPriority.ADD_PARTITIONS_OR_OFFSETS, LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2
        request = TxnOffsetCommitHandler(transaction=self._txn, call=call, priority=priority, max_version=max_version)
        self.requests.enqueue(request)

    def _prepare(self, call: TransactionalCall) -> None:
        self.calls.pending_prepare = self._last_prepare = call

    def _commit(self, call: TransactionalCall) -> None:
        self.transition_to(SequencerState.COMMITTING)
        self._end(call, is_commit=True)

    def _abort(self, call: TransactionalCall | None = None) -> None:
        self.transition_to(SequencerState.ABORTING)
        self._txn.partitions_to_add.clear()
        self._end(call, is_commit=False)

    def _end(self, call: TransactionalCall | None, *, is_commit: bool) -> None:
        max_version = None if self._version.is_v2 else LAST_END_TXN_VERSION_BEFORE_TV2
        on_ended = self.handle_transaction_end
        request = EndTxnHandler(transaction=self._txn, call=call, is_commit=is_commit, on_ended=on_ended, max_version=max_version)
        self.requests.enqueue(request)

    def abort_for_close(self) -> bool:
        if self.has_open_transaction or self.state is SequencerState.PREPARED:
            self.begin_round()  # a commit may be posted that the Sender has not taken yet
        if self._take_over_from_caller():
            logger.info("! closing within a transaction, which is aborted")
            self.calls.fail_prepare(_closed_early_error())
            self._abort()
        return self.has_open_transaction

    def _take_over_from_caller(self) -> bool:
        """Whether close() must end the transaction. Withdraws the success of a prepare_transaction that no caller received."""
        if self.state is SequencerState.PREPARED:
            return self._last_prepare is not None and self._last_prepare.withdraw(_closed_early_error())
        if self.calls.pending_prepare is not None and self.calls.pending_prepare.callers:
            return False
        return self.state in (SequencerState.IN_TRANSACTION, SequencerState.ABORTABLE_ERROR)

    def _prepare_if_settled(self, is_all_settled: bool) -> None:
        """Settle `prepare_transaction` once nothing is under way."""
        call = self.calls.pending_prepare
        if call is None or not is_all_settled or self.requests.has_work or self._txn.partitions_to_add:
            return
        self.calls.pending_prepare = None
        self.transition_to(SequencerState.PREPARED)
        self._txn.may_be_committed = True
        call.settle()

    # ANSWERS OF COORDINATORS: Sender thread

    def refusal_of_request(self, request: TxnRequestHandler) -> KafkaError | None:
        """Why a request must not be sent any more, after the transaction failed or its abort began; None: it is sent."""
        if self.fatal_error is not None:
            return self.current_error()
        if isinstance(request, EndTxnHandler) and request.is_commit and self.state is SequencerState.ABORTING:  # by close()
            return TransactionAbortedError("The transaction cannot be committed any more: it is being aborted")
        if self.state is SequencerState.ABORTABLE_ERROR and not isinstance(request, FindCoordinatorHandler):
            return self.current_error()
        if self.state is SequencerState.ABORTING and request.group is not None:
            return TransactionAbortedError(f"The transaction was aborted before offsets of group {request.group!r} were sent")
        return None

    def handle_identity(self, identity: ProducerIdentity) -> None:
        self._adopt(identity)
        self._version.refresh(self._coordinator)
        self.last_error = None
        self.transition_to(SequencerState.READY)
        logger.info("= transactional id %r: producer id is %d, epoch %d", self.transactional_id, *identity)

    def _adopt(self, identity: ProducerIdentity) -> None:
        if identity.producer_id != self.identity.producer_id:
            self._acknowledged_partitions.clear()
        self.identity = identity
        self._txn = OpenTransaction(self.transactional_id, identity)
        self.sequences.clear()
        self.unresolved_partitions.clear()
        self._must_bump_epoch = identity.producer_epoch >= MAX_EPOCH  # no transaction can end after that one

    def handle_transaction_end(self, identity: ProducerIdentity | None = None) -> None:
        """Get ready for the next transaction. `identity`: the one to go on with, if the broker raised the epoch (version 2)."""
        if identity is not None:
            self._adopt(identity)
        self._txn = OpenTransaction(self.transactional_id, self.identity)
        self.last_error = None
        self._must_bump_epoch |= self._version.refresh(self._coordinator)  # numbers of both versions must not mix in an epoch
        if self._must_bump_epoch:
            self._bump_epoch()
        else:
            self.transition_to(SequencerState.READY)

    def _bump_epoch(self, call: TransactionalCall | None = None) -> None:
        """Ask for the next epoch, behind all other requests. begin_transaction() waits for it, and `call` if there is one."""
        self.transition_to(SequencerState.BUMPING_EPOCH)
        self._ask_for_identity(call, self.identity, RequestPriority.EPOCH_BUMP)

    def handle_broken_request(self, request: TxnRequestHandler, error: KafkaError) -> None:
        self.become_fatal(error)
        request.settle(self.current_error() or error)

    def handle_rejected_request(self, request: TxnRequestHandler, problem: AnswerProblem) -> None:
        """Act on an error of an answer that is final: the transaction, the producer or the call alone has failed."""
        if isinstance(request, EndTxnHandler) and self._had_nothing_to_end(request, problem):
            self._end_unbegun_transaction(request)
            return
        if self._may_have_met_control_records(request, problem):
            self.requests.retry(request)
            return
        if isinstance(request, AddPartitionsToTxnHandler):
            self._txn.note_rejected(request.partitions)
        error, effect = problem.exception(), _effect_in(self.state, request, problem)
        if effect is ErrorEffect.FATAL and isinstance(request, EndTxnHandler) and self._txn.may_be_committed:
            error = maybe_committed_error(error)
        self._apply_effect(effect, error, request, problem.where)
        if self.state is SequencerState.ABORTING:
            self._go_on_aborting(request, effect, error)
        request.settle(self.current_error() or error)

    def _apply_effect(self, effect: ErrorEffect, error: KafkaError, request: TxnRequestHandler, where: str) -> None:
        if effect is ErrorEffect.ABORTABLE_BY_BUMP:
            self._become_abortable_by_bump(error)
        elif effect is ErrorEffect.ABORTABLE:
            self.become_abortable(error)
        elif effect is ErrorEffect.DENIED:
            self._begin_error = error if request.call is None else None  # else the call gets it
            self.transition_to(SequencerState.UNINITIALIZED)
        elif effect is ErrorEffect.FENCED:
            self.become_fatal(self._fenced_error(where))
        else:
            self.become_fatal(error)

    def _had_nothing_to_end(self, request: EndTxnHandler, problem: AnswerProblem) -> bool:
        """Whether an abort was rejected because its transaction had not begun, which this producer could not know."""
        return not request.is_commit and not self._txn.has_begun and problem.error == Errors.INVALID_TXN_STATE

    def _end_unbegun_transaction(self, request: EndTxnHandler) -> None:
        """End a transaction that had not begun. In version 1 the next epoch makes brokers reject a late request of this one."""
        self._must_bump_epoch |= not self._version.is_v2 and self._can_bump_epoch()
        self.handle_transaction_end()
        request.settle()

    def _may_have_met_control_records(self, request: TxnRequestHandler, problem: AnswerProblem) -> bool:
        """Whether to repeat an abort whose answer says that the producer is fenced.

        A version-2 coordinator also answers PRODUCER_FENCED while it still writes the control records of the previous
        transaction, as long as this transaction has sent it nothing. InitProducerId would show whether the producer is
        fenced, but must not be sent: it would end the transaction of a real successor.
        """
        is_abort = isinstance(request, EndTxnHandler) and not request.is_commit
        is_ambiguous = problem.effect is ErrorEffect.FENCED and self._version.is_v2 and not self._txn.has_acknowledged_batch
        return is_abort and is_ambiguous and request.attempt_count + 1 < MAX_ABORTS_AMID_CONTROL_RECORDS

    def _go_on_aborting(self, request: TxnRequestHandler, effect: ErrorEffect, error: KafkaError) -> None:
        """Handle an error during an abort. The abort goes on, unless EndTxn or the search for its coordinator has failed."""
        if isinstance(request, EndTxnHandler) and effect is ErrorEffect.ABORTABLE_BY_BUMP:
            # The coordinator has forgotten this producer: nothing is left to end. InitProducerId finds out who has the id now.
            call, request.call = request.call, None
            self._txn, self.last_error = OpenTransaction(self.transactional_id, self.identity), None
            self._bump_epoch(call)
        elif isinstance(request, EndTxnHandler | FindCoordinatorHandler) and request.group is None:
            self.become_fatal(error)  # an abort that has to be aborted cannot end (KIP-1050)

    # STATE

    def transition_to(self, target: SequencerState) -> None:
        try:
            super().transition_to(target)
        except RuntimeError as error:  # what the transaction contains is not known any more (KAFKA-14831)
            self.become_fatal(KafkaError(str(error), condition="KAFKA_INTERNAL_ERROR"))
            raise

    def become_fatal(self, error: KafkaError) -> None:
        if error.condition == ProducerFencedError.condition and not isinstance(error, ProducerFencedError):
            error = self._fenced_error(error.message)  # what a leader has answered
        super().become_fatal(error if isinstance(error, FatalProducerError) else fatal_error(error))

    def _fenced_error(self, where: str) -> ProducerFencedError:
        return fenced_error(where, self.transactional_id, self.identity, self._timeout_ms)

    def become_abortable(self, error: KafkaError) -> None:
        """From now on the transaction can only be aborted. Callers get the first error, because later ones follow from it."""
        if self.state in (SequencerState.ABORTABLE_ERROR, SequencerState.ABORTING, SequencerState.FATAL_ERROR):
            logger.debug("! transactional id %r, %s: %s", self.transactional_id, self.state.value, error)
            return
        logger.info("! transactional id %r: the transaction must be aborted: %s", self.transactional_id, error)
        self.last_error = error
        self.transition_to(SequencerState.ABORTABLE_ERROR)
        self.calls.fail_prepare(self.current_error() or error)

    def _become_abortable_by_bump(self, error: KafkaError) -> None:
        """As become_abortable, for an error that leaves sequence numbers in doubt. With the next epoch they are safe again.

        In version 2 the end of the transaction bumps the epoch. If brokers cannot raise it, the error is fatal.
        """
        if self._version.is_v2 or self._can_bump_epoch():
            self._must_bump_epoch |= not self._version.is_v2
            self.become_abortable(error)
        else:
            self.become_fatal(error)

    def _can_bump_epoch(self) -> bool:
        return self._version.can_bump_epoch(self._coordinator)

    @property
    def _coordinator(self) -> Node | None:
        return self.requests.coordinators.get(CoordinatorKey(KeyType.TRANSACTION, self.transactional_id))

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has a transaction to end. False for a prepared one, which another process may end."""
        return self.state in (
            SequencerState.IN_TRANSACTION,
            SequencerState.COMMITTING,
            SequencerState.ABORTING,
            SequencerState.ABORTABLE_ERROR,
        )

    @property
    def transaction_waits_for_rows(self) -> bool:
        is_ending = self.state is SequencerState.COMMITTING or self.calls.pending_prepare is not None
        return is_ending or self.requests.waits_for_rows

    def error_of_lost_rows(self) -> TransactionAbortedError | None:
        are_lost = self.state in (SequencerState.ABORTABLE_ERROR, SequencerState.ABORTING)
        return aborted_error(self.last_error) if are_lost else None

    # BATCHES

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        if not self.identity.is_valid or not self.has_open_transaction:
            return True
        if not self._version.is_v2 and first.topic_partition not in self._txn:
            if self.state in (SequencerState.IN_TRANSACTION, SequencerState.COMMITTING):
                self._txn.ask_to_add(first.topic_partition)
            return True
        return super().must_stop_draining(first)

    def sequence_facts(self, batch: ProducerBatch) -> SequenceFacts:
        return super().sequence_facts(batch)._replace(is_transactional=True)

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        """Whether a batch of this producer id was acknowledged there: then an epoch may begin with several batches in flight.

        With transactions of version 2, brokers from 4.1 on also reject an unknown producer's first batch unless it begins at 0
        (KAFKA-18202). Brokers of 4.0 do not, so one first batch must be acknowledged for each partition and producer id.
        """
        return topic_partition in self._acknowledged_partitions

    def handle_completed_batch(self, batch: ProducerBatch) -> None:
        super().handle_completed_batch(batch)
        self._txn.has_acknowledged_batch = True
        self._acknowledged_partitions.add(batch.topic_partition)

    def max_backoff_ms(self, error: ErrorCode) -> int | None:
        """Short for the first batches of a transaction: brokers may still write the previous transaction's control records.

        Batches behind a rejected one are out of order meanwhile. For version 1 see TxnRequestHandler.max_backoff_ms.
        """
        if not self._version.is_v2 or self._txn.has_acknowledged_batch:
            return None
        return MAX_FIRST_BACKOFF_MS if error in (Errors.CONCURRENT_TRANSACTIONS, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER) else None

    def assign_sequence(self, batch: ProducerBatch) -> None:
        self._txn.has_begun |= self._version.is_v2
        super().assign_sequence(batch)

    def handle_failed_batch(self, batch: ProducerBatch, error: KafkaError) -> None:
        super().handle_failed_batch(batch, error)
        if batch.has_sequence:
            self._become_abortable_by_bump(error)
        else:
            self.become_abortable(error)

    @property
    def max_produce_version(self) -> int | None:
        return None if self._version.is_v2 else LAST_PRODUCE_VERSION_BEFORE_TV2

    # EACH ROUND

    def send_due_requests(self, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]) -> int:
        self.calls.settle_begins()
        if self._txn.partitions_to_add:
            partitions, is_first = self._txn.take_partitions_to_add()
            request = AddPartitionsToTxnHandler(transaction=self._txn, partitions=partitions, begins_transaction=is_first)
            self.requests.enqueue(request)
        self._prepare_if_settled(is_all_settled)
        return self.requests.send_due_requests(now_ms, is_all_settled, is_all_sent)

    def fail_all_calls(self, error: KafkaError) -> None:
        super().fail_all_calls(error)
        self.calls.fail_all(error)


def _closed_early_error() -> TransactionAbortedError:
    return TransactionAbortedError("The producer was closed before its caller heard that the transaction was prepared")


def _effect_in(state: SequencerState, request: TxnRequestHandler, problem: AnswerProblem) -> ErrorEffect:
    """What an error means in this state: what transaction_errors.py says, except in two cases."""
    effect = problem.effect
    is_abortable = effect in (ErrorEffect.ABORTABLE, ErrorEffect.ABORTABLE_BY_BUMP)
    if is_abortable and state in (SequencerState.INITIALIZING, SequencerState.BUMPING_EPOCH):
        return ErrorEffect.FATAL  # there is no transaction to abort
    if isinstance(request, EndTxnHandler) and request.transaction.may_be_committed and effect is ErrorEffect.ABORTABLE_BY_BUMP:
        return ErrorEffect.FATAL  # the coordinator no longer knows whether it was committed
    return effect
