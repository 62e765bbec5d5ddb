"""A transaction coordinator as a pure state machine: it answers as Kafka's TransactionCoordinator, without its log and threads.

`handle_*` takes a request and returns the answer. What a broker does in the background happens when a test calls it:
`write_markers` writes the markers at the end of a transaction (by default handle_end_txn calls it; not with `holds_markers`), and
`abort_timed_out` aborts transactions that have timed out. Partitions that are `skipped` get no markers, although their
transactions complete (KAFKA-20734). Answers follow Kafka 4.3 (TransactionCoordinator.scala, KIP-98, KIP-360, KIP-588, KIP-890).

A request of version 2 at level 0 of transaction.version is answered with UNSUPPORTED_VERSION, since a coordinator cannot log its
transition there. The transition stays pending: until the coordinator restarts, it answers CONCURRENT_TRANSACTIONS to every later
request for that transactional id, whoever sends it.

    coordinator = TransactionCoordinator(ManualClock(), write_marker=print)
    coordinator.holds_markers = True
    ... the answer to EndTxn; a second EndTxn gets CONCURRENT_TRANSACTIONS ...
    coordinator.write_markers()

Left out: permissions, expiry of transactional ids, the coordinator's own epoch, two-phase commit (KIP-939).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import groupby

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseState,
    TopicData,
)
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2, EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseState,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_PARTITIONS = 50  # of __consumer_offsets and of __transaction_state
DEFAULT_MAX_TIMEOUT_MS = 900_000  # transaction.max.timeout.ms
LAST_EPOCH = 0x7FFF - 1  # the highest that producers get; the coordinator fences them with the one above

WriteMarker = Callable[[TopicPartition, int, int, bool], None]  # partition, producer id, epoch, committed


class State(StrEnum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = {State.PREPARE_COMMIT, State.PREPARE_ABORT}
COMPLETE = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class Verification(Enum):
    """What a leader wants of the coordinator before it writes; depends on the version of the request (KIP-890)."""

    INVALID_STATE = "verify that the partition is in the transaction; INVALID_TXN_STATE if it is not"
    ABORTABLE = "verify that the partition is in the transaction; TRANSACTION_ABORTABLE if it is not"
    ADD = "add the partition to the transaction"


@dataclass
class Transaction:
    """The coordinator's state of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int = -1
    last_epoch: int = -1  # the epoch before this one, while a retried request may still have it
    previous_producer_id: int = -1
    next_producer_id: int = -1  # replaces producer_id when the markers are written, because its epochs are exhausted
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    start_ms: int = -1
    unwritten: list[TopicPartition] = field(default_factory=list)  # partitions that do not have the marker yet
    is_pending: bool = False  # a transition could not be logged

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH

    @property
    def must_wait(self) -> bool:
        """Whether the coordinator has to end something before it begins anything else."""
        return self.is_pending or self.state in PREPARED


class TransactionCoordinator:
    """All transactional ids of a cluster. The fake that uses this decides which broker coordinates which id.

    Args:
        write_marker: called for each partition of a transaction that ends. For the offsets of a group this is a partition of
            __consumer_offsets, see `offsets_partition`.
        new_producer_id: returns an id that no producer of the cluster has.
        transaction_version: the finalized feature transaction.version.
        fences_twice: bump the epoch by two when a transaction of version 2 times out or is fenced, as Kafka 4.0.0 does.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        write_marker: WriteMarker,
        new_producer_id: Callable[[], int] | None = None,
        transaction_version: int = 2,
        max_timeout_ms: int = DEFAULT_MAX_TIMEOUT_MS,
        fences_twice: bool = False,
    ) -> None:
        self.clock = clock
        self.transaction_version = transaction_version
        self.max_timeout_ms = max_timeout_ms
        self.fences_twice = fences_twice
        self.holds_markers = False
        self.skipped: set[TopicPartition] = set()
        self.transactions: dict[str, Transaction] = {}
        self._write_marker = write_marker
        self._new_producer_id = new_producer_id or iter(range(1000, 1 << 62)).__next__

    # CALLED BY TESTS

    def write_markers(self, transactional_id: str | None = None, *, limit: int | None = None) -> None:
        """Write the markers that are due, of one transactional id or of all.

        Args:
            limit: maximum number of markers; more of them may stay due within a transaction.
        """
        for transaction in list(self.transactions.values()):
            if transactional_id in (None, transaction.transactional_id) and transaction.state in PREPARED:
                while transaction.unwritten and limit != 0:
                    committed = transaction.state is State.PREPARE_COMMIT
                    partition = transaction.unwritten.pop(0)
                    if partition not in self.skipped:
                        self._write_marker(partition, transaction.producer_id, transaction.epoch, committed)
                    limit = None if limit is None else limit - 1
                if not transaction.unwritten:
                    self._complete(transaction)

    def abort_timed_out(self) -> list[str]:
        """Abort the transactions that are open for longer than their time-out, as brokers do every 10 s. Returns their ids."""
        now_ms = self.clock.wall_ms()
        overdue = [
            transaction
            for transaction in self.transactions.values()
            if transaction.state is State.ONGOING
            and not transaction.is_pending
            and transaction.start_ms + transaction.timeout_ms < now_ms
        ]
        for transaction in overdue:
            self._fence(transaction)
        return [transaction.transactional_id for transaction in overdue]

    # REQUESTS

    def handle_init_producer_id(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=self._new_producer_id(), producer_epoch=0)
        error = self._init_error(request) or self._initialize(request)
        if error:
            return InitProducerIdResponse(error_code=_for_version(error, version, fenced_since=4).number)
        transaction = self.transactions[request.transactional_id]
        return InitProducerIdResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)

    def _init_error(self, request: InitProducerIdRequest) -> ErrorCode:
        if not request.transactional_id or (request.producer_id == -1) != (request.producer_epoch == -1):
            return Errors.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self.max_timeout_ms:
            return Errors.INVALID_TRANSACTION_TIMEOUT
        return Errors.NONE

    def _initialize(self, request: InitProducerIdRequest) -> ErrorCode:
        assert request.transactional_id is not None
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            transaction = Transaction(request.transactional_id, self._new_producer_id())
            self.transactions[request.transactional_id] = transaction
        expected_epoch = None if request.producer_id == -1 else request.producer_epoch
        if transaction.must_wait:
            return Errors.CONCURRENT_TRANSACTIONS
        if expected_epoch is not None and not _may_continue(transaction, request.producer_id, expected_epoch):
            return Errors.PRODUCER_FENCED
        if transaction.state is State.ONGOING:
            self._fence(transaction)
            return Errors.CONCURRENT_TRANSACTIONS
        return self._next_identity(transaction, expected_epoch, request.transaction_timeout_ms)

    def _next_identity(self, transaction: Transaction, expected_epoch: int | None, timeout_ms: int) -> ErrorCode:
        if transaction.is_exhausted and expected_epoch in (None, transaction.epoch):
            transaction.last_epoch = -1 if expected_epoch is None else transaction.epoch
            transaction.previous_producer_id, transaction.producer_id = transaction.producer_id, self._new_producer_id()
            transaction.epoch = 0
        elif expected_epoch is None:
            transaction.epoch, transaction.last_epoch = transaction.epoch + 1, -1
        elif transaction.epoch in (-1, expected_epoch):
            transaction.epoch, transaction.last_epoch = transaction.epoch + 1, transaction.epoch
        elif expected_epoch != transaction.last_epoch:  # an equal one is a retry of a request whose answer was lost
            return Errors.PRODUCER_FENCED
        transaction.state, transaction.start_ms = State.EMPTY, -1
        transaction.timeout_ms = timeout_ms
        return Errors.NONE

    def handle_add_partitions(
        self, request: AddPartitionsToTxnRequest, version: int, *, unknown: Collection[TopicPartition] = ()
    ) -> AddPartitionsToTxnResponse:
        """`unknown`: partitions that do not exist. If there are any, no partition is added."""
        partitions = [TopicPartition(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        errors = {
            partition: Errors.UNKNOWN_TOPIC_OR_PARTITION if partition in unknown else Errors.OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }
        if not unknown:
            error = self.add(request.transactional_id, request.producer_id, request.producer_epoch, partitions)
            errors = dict.fromkeys(partitions, _for_version(error, version, fenced_since=2))
        return AddPartitionsToTxnResponse(
            results_by_topic=tuple(
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=tuple(
                        AddPartitionsToTxnPartitionResult(
                            partition_index=partition,
                            partition_error_code=errors[TopicPartition(topic.name, partition)].number,
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def handle_add_offsets(self, request: AddOffsetsToTxnRequest, version: int) -> AddOffsetsToTxnResponse:
        partitions = [offsets_partition(request.group_id)]
        error = self.add(request.transactional_id, request.producer_id, request.producer_epoch, partitions)
        return AddOffsetsToTxnResponse(error_code=_for_version(error, version, fenced_since=2).number)

    def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], *, is_v2: bool = False
    ) -> ErrorCode:
        """Add partitions to the transaction, which begins with the first ones.

        While markers are being written everybody is told to wait: the producer id that follows is not in force yet.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.must_wait:
            return Errors.CONCURRENT_TRANSACTIONS
        error = self._writer_error(transactional_id, producer_id, epoch)
        if error or transaction is None:
            return error
        if is_v2 and self._cannot_log_v2(transaction):
            return Errors.UNSUPPORTED_VERSION
        if transaction.state is not State.ONGOING:
            transaction.state, transaction.start_ms = State.ONGOING, self.clock.wall_ms()
        transaction.partitions.update(partitions)
        return Errors.NONE

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition, verification: Verification
    ) -> ErrorCode:
        """The answer to a leader that is about to write the first batch of a transaction to a partition."""
        if verification is Verification.ADD:
            error = self.add(transactional_id, producer_id, epoch, [partition], is_v2=True)
        else:
            error = self._writer_error(transactional_id, producer_id, epoch)
            if not error and partition not in self.transactions[transactional_id].partitions:
                error = Errors.TRANSACTION_ABORTABLE
        if error == Errors.TRANSACTION_ABORTABLE and verification is Verification.INVALID_STATE:
            return Errors.INVALID_TXN_STATE
        # A Produce request of a fenced producer is answered with INVALID_PRODUCER_EPOCH (KIP-588).
        return Errors.INVALID_PRODUCER_EPOCH if error == Errors.PRODUCER_FENCED else error

    def _writer_error(self, transactional_id: str, producer_id: int, epoch: int) -> ErrorCode:
        if not transactional_id:
            return Errors.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if transaction.epoch != epoch:
            return Errors.PRODUCER_FENCED
        return Errors.CONCURRENT_TRANSACTIONS if transaction.must_wait else Errors.NONE

    def _cannot_log_v2(self, transaction: Transaction) -> bool:
        """Whether a transition of version 2 fails at this level; then it stays pending."""
        transaction.is_pending = self.transaction_version == 0
        return transaction.is_pending

    def restart(self) -> None:
        """What could not be logged is forgotten."""
        for transaction in self.transactions.values():
            transaction.is_pending = False

    # ENDTXN

    def handle_end_txn(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        transaction = self.transactions.get(request.transactional_id)
        if not request.transactional_id:
            return EndTxnResponse(error_code=Errors.INVALID_REQUEST.number)
        if transaction is None:
            return EndTxnResponse(error_code=Errors.INVALID_PRODUCER_ID_MAPPING.number)
        bumps = version > LAST_END_TXN_VERSION_BEFORE_TV2
        error, begins = (_end_v2 if bumps else _end_v1)(transaction, request)
        if begins and transaction.is_pending:
            error = Errors.CONCURRENT_TRANSACTIONS
        elif begins and bumps and self._cannot_log_v2(transaction):
            error = Errors.UNSUPPORTED_VERSION
        if error:
            return EndTxnResponse(error_code=_for_version(error, version, fenced_since=2).number)
        if begins:
            self._prepare(transaction, State.PREPARE_COMMIT if request.committed else State.PREPARE_ABORT, bumps=bumps)
        producer_id, epoch = transaction.producer_id, transaction.epoch
        if transaction.next_producer_id != -1:
            producer_id, epoch = transaction.next_producer_id, 0
        if begins and not self.holds_markers:
            self.write_markers(transaction.transactional_id)
        return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch) if bumps else EndTxnResponse()

    def _fence(self, transaction: Transaction) -> None:
        """Abort a transaction under a new epoch, which no producer gets."""
        if self.transaction_version < 2 or (self.fences_twice and not transaction.is_exhausted):
            transaction.epoch, transaction.last_epoch = transaction.epoch + 1, -1
        self._prepare(transaction, State.PREPARE_ABORT, bumps=self.transaction_version >= 2, rotates=False)
        if not self.holds_markers:
            self.write_markers(transaction.transactional_id)

    def _prepare(self, transaction: Transaction, state: State, *, bumps: bool, rotates: bool = True) -> None:
        """Record the decision to commit or abort. After this only the markers remain to be written."""
        if bumps:
            if transaction.is_exhausted and rotates:
                transaction.next_producer_id = self._new_producer_id()
            transaction.epoch, transaction.last_epoch = transaction.epoch + 1, transaction.epoch
        if transaction.state is not State.ONGOING:
            transaction.start_ms = self.clock.wall_ms()
        transaction.state = state
        transaction.unwritten = sorted(transaction.partitions)

    def _complete(self, transaction: Transaction) -> None:
        transaction.state = COMPLETE[transaction.state]
        transaction.partitions = set()
        if transaction.next_producer_id != -1:
            transaction.previous_producer_id, transaction.producer_id = transaction.producer_id, transaction.next_producer_id
            transaction.epoch, transaction.next_producer_id = 0, -1

    # LIST AND DESCRIBE

    def handle_list(
        self, request: ListTransactionsRequest, *, is_mine: Callable[[str], bool] = lambda _: True
    ) -> ListTransactionsResponse:
        """`is_mine`: whether the broker that got the request coordinates a transactional id."""
        pattern = re.compile(request.transactional_id_pattern or "(?s).*")
        now_ms = self.clock.wall_ms()
        matches = [
            transaction
            for transaction in self.transactions.values()
            if is_mine(transaction.transactional_id)
            and (not request.state_filters or transaction.state in request.state_filters)
            and (not request.producer_id_filters or transaction.producer_id in request.producer_id_filters)
            and (request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter)
            and pattern.fullmatch(transaction.transactional_id)
        ]
        return ListTransactionsResponse(
            unknown_state_filters=tuple(name for name in request.state_filters if name not in list(State)),
            transaction_states=tuple(
                ListTransactionsResponseState(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.value,
                )
                for transaction in matches
            ),
        )

    def handle_describe(
        self, request: DescribeTransactionsRequest, *, is_mine: Callable[[str], bool] = lambda _: True
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=tuple(
                self._described(name) if is_mine(name) else _undescribed(name, Errors.NOT_COORDINATOR)
                for name in request.transactional_ids
            )
        )

    def _described(self, transactional_id: str) -> DescribeTransactionsResponseState:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return _undescribed(
                transactional_id, Errors.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else Errors.INVALID_REQUEST
            )
        topics = groupby(sorted(transaction.partitions), key=lambda partition: partition.topic)
        return DescribeTransactionsResponseState(
            transactional_id=transactional_id,
            transaction_state=transaction.state.value,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            topics=tuple(TopicData(topic=name, partitions=tuple(each.partition for each in parts)) for name, parts in topics),
        )


def _undescribed(transactional_id: str, error: ErrorCode) -> DescribeTransactionsResponseState:
    return DescribeTransactionsResponseState(error_code=error.number, transactional_id=transactional_id)


def offsets_partition(group_id: str) -> TopicPartition:
    """The partition of __consumer_offsets that holds a group's offsets."""
    return TopicPartition(OFFSETS_TOPIC, internal_partition(group_id))


def internal_partition(key: str) -> int:
    """The partition of __consumer_offsets or __transaction_state for a group or transactional id, by Java's hashCode."""
    units = key.encode("utf-16-be")
    code = 0
    for index in range(0, len(units), 2):
        code = (code * 31 + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return abs(signed) % INTERNAL_PARTITIONS if signed != -(1 << 31) else 0


def verification(version: int, last_before_v2: int) -> Verification:
    """The verification for a request of `version`; requests above version `last_before_v2` add their partitions."""
    if version > last_before_v2:
        return Verification.ADD
    return Verification.ABORTABLE if version == last_before_v2 else Verification.INVALID_STATE


def _may_continue(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer with this id may continue the transactional id. The caller compares the epoch (KIP-360)."""
    return (
        transaction.epoch == -1
        or producer_id == transaction.producer_id
        or (producer_id == transaction.previous_producer_id and epoch >= LAST_EPOCH)
    )


def _end_v1(transaction: Transaction, request: EndTxnRequest) -> tuple[ErrorCode, bool]:
    """The error, and whether this request begins to end the transaction. A retry has the same epoch as the first request."""
    if transaction.producer_id != request.producer_id:
        return Errors.INVALID_PRODUCER_ID_MAPPING, False
    if transaction.epoch != request.producer_epoch:
        return Errors.PRODUCER_FENCED, False
    if transaction.state is State.ONGOING:
        return Errors.NONE, True
    if transaction.state in PREPARED:
        return Errors.CONCURRENT_TRANSACTIONS, False
    return (Errors.NONE if transaction.state is _complete_state_of(request) else Errors.INVALID_TXN_STATE), False


def _end_v2(transaction: Transaction, request: EndTxnRequest) -> tuple[ErrorCode, bool]:
    """As _end_v1, but a retry has the epoch before the current one (see the table above endTransaction in Kafka's source)."""
    repeats_last_epoch = (
        transaction.previous_producer_id == request.producer_id
        and request.producer_epoch == LAST_EPOCH
        and transaction.epoch == 0
    )
    repeats = repeats_last_epoch or transaction.epoch == request.producer_epoch + 1
    is_current = transaction.epoch == request.producer_epoch
    if transaction.producer_id != request.producer_id and not repeats_last_epoch:
        return Errors.INVALID_PRODUCER_ID_MAPPING, False
    if transaction.state in PREPARED:
        return Errors.CONCURRENT_TRANSACTIONS, False
    if transaction.state in (State.ONGOING, State.EMPTY):
        if not is_current:
            return Errors.PRODUCER_FENCED, False
        begins = transaction.state is State.ONGOING or not request.committed
        return (Errors.NONE if begins else Errors.INVALID_TXN_STATE), begins
    if repeats:
        return (Errors.NONE if transaction.state is _complete_state_of(request) else Errors.INVALID_TXN_STATE), False
    if not is_current:
        return Errors.PRODUCER_FENCED, False
    return (Errors.INVALID_TXN_STATE, False) if request.committed else (Errors.NONE, True)


def _complete_state_of(request: EndTxnRequest) -> State:
    return State.COMPLETE_COMMIT if request.committed else State.COMPLETE_ABORT


def _for_version(error: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """Older clients do not know PRODUCER_FENCED (KIP-588)."""
    return Errors.INVALID_PRODUCER_EPOCH if error == Errors.PRODUCER_FENCED and version < fenced_since else error
