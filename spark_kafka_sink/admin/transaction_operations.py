"""EndTxn, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, ListTransactions and DescribeTransactions, without a producer.

A coordinator compares transactional id, producer id and epoch of an EndTxn with its state, not the connection. A process that
knows these three can therefore end a transaction that another process has written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from spark_kafka_sink.admin.operation import Ask, Operation, RetryNeeded, failure, missing_answer_error
from spark_kafka_sink.errors import BrokerError, KafkaError, UnsupportedVersionError, printable, printable_list
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2, EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.permissions import WRITE
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition, partitions_by_topic

LATEST_START_MS = 253_402_300_799_999  # the last millisecond of the year 9999: Python has no later dates
MAX_IDS_PER_REQUEST = 200  # of DescribeTransactions, whose answer lists each transaction's partitions
FIRST_VERSION_WITH_EXPECTED_PRODUCER = 3  # of InitProducerId (KIP-360); Kafka 2.5
FIRST_VERSION_WITH_PATTERN = 2  # of ListTransactions (KIP-1152)
_RE2_OPERATORS = frozenset(r"\.+*?()|[]{}^$")


def transaction_key(transactional_id: str) -> CoordinatorKey:
    return CoordinatorKey(KeyType.TRANSACTION, transactional_id)


class TransactionEnd(Enum):
    """The result of an EndTxn."""

    ENDED = "committed or aborted as requested, by this request or an earlier one"
    NOT_OPEN = "the producer has no open transaction: it timed out, was fenced or has ended, perhaps in the way requested"
    FAILED = "the state of the transaction is not known; the error says why"


@dataclass(frozen=True, slots=True)
class EndOutcome:
    """The result of one EndTxn, and the error that explains it. `error` is None for ENDED only."""

    end: TransactionEnd
    error: KafkaError | None = None
    missing: frozenset[TopicPartition] = frozenset()  # of `end_again`: partitions that do not exist, and were left out


class EndToRepeat(NamedTuple):
    """An item of `end_again`: the identity that the coordinator has described, and the places that lack the control record."""

    transaction: PreparedTransaction
    partitions: frozenset[TopicPartition]
    group_id: str | None = None  # its partition of __consumer_offsets lacks the control record too


# Another producer has the transactional id, or had it last. To version 3 of InitProducerId brokers answer INVALID_PRODUCER_EPOCH
# instead of PRODUCER_FENCED (KIP-588).
_OTHER_PRODUCER_ERRORS = frozenset({Errors.INVALID_PRODUCER_EPOCH, Errors.INVALID_PRODUCER_ID_MAPPING, Errors.PRODUCER_FENCED})
# Kafka up to 4.3.1 answers INVALID_TXN_STATE to the commit of a transaction that has timed out, later versions PRODUCER_FENCED.
# To version 1 of EndTxn and older ones, brokers answer INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED (KIP-588).
_NOT_OPEN_ERRORS = _OTHER_PRODUCER_ERRORS | {Errors.INVALID_TXN_STATE}


def failed_outcome(error: KafkaError) -> EndOutcome:
    """The outcome of a transaction that a request could not bring to its end."""
    is_not_open = isinstance(error, BrokerError) and Errors.for_code(error.error_code) in _NOT_OPEN_ERRORS
    return EndOutcome(TransactionEnd.NOT_OPEN if is_not_open else TransactionEnd.FAILED, error)


@dataclass(frozen=True)
class EndTransaction(Operation[PreparedTransaction, EndOutcome]):
    """Commits or aborts a transaction by EndTxn. Brokers answer CONCURRENT_TRANSACTIONS until they have written the control
    records; until then the request is retried.

    A transaction of version 1 always ends in its version, so that a repeated request is recognized after brokers were upgraded.
    One of version 2 ends in version 1 where NodeApiVersions does not allow version 5 any more.
    """

    commit: bool
    is_v2: bool  # the transaction was written with transaction.version 2 or higher
    is_empty: bool = False  # there may be no transaction, which EndTxn ends in version 5 only

    api_key = ApiKey.END_TXN

    @property
    def versions(self) -> tuple[int, int | None]:
        last_before_v2 = LAST_END_TXN_VERSION_BEFORE_TV2
        return last_before_v2 + 1 if self.is_empty else 0, None if self.is_v2 else last_before_v2

    def message(self, items: Sequence[PreparedTransaction], node_id: int, version: int) -> EndTxnRequest:  # noqa: ARG002
        (item,) = items
        return EndTxnRequest(
            transactional_id=item.transactional_id,
            producer_id=item.producer_id,
            producer_epoch=item.producer_epoch,
            committed=self.commit,
        )

    def judge(self, item: PreparedTransaction, answer: EndTxnResponse, version: int) -> EndOutcome:  # noqa: ARG002
        error = Errors.for_code(answer.error_code)
        if not error:
            return EndOutcome(TransactionEnd.ENDED)
        if error.is_retriable:
            raise RetryNeeded(error)
        end = TransactionEnd.NOT_OPEN if error in _NOT_OPEN_ERRORS else TransactionEnd.FAILED
        return EndOutcome(end, failure(error, self.describe(item), item.transactional_id))

    def describe(self, item: PreparedTransaction) -> str:
        verb = "commit" if self.commit else "abort"
        return f"EndTxn ({verb}) of transactional id {printable(item.transactional_id)}"


@dataclass(frozen=True)
class FenceProducer(Operation[str, ProducerIdentity]):
    """Fences a producer: InitProducerId without a producer id or epoch. The first request aborts an open transaction. The
    coordinator answers CONCURRENT_TRANSACTIONS until the control records are written, and then with a new epoch.

    The coordinator stores the time-out with the transactional id. Its write to the transaction log has the same time-out, so a
    few milliseconds would be too short.
    """

    transaction_timeout_ms: int

    api_key = ApiKey.INIT_PRODUCER_ID

    def message(self, items: Sequence[str], node_id: int, version: int) -> InitProducerIdRequest:  # noqa: ARG002
        (item,) = items
        return InitProducerIdRequest(transactional_id=item, transaction_timeout_ms=self.transaction_timeout_ms)

    def judge(self, item: str, answer: InitProducerIdResponse, version: int) -> ProducerIdentity:  # noqa: ARG002
        self.check(Errors.for_code(answer.error_code), item, item)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def describe(self, item: str) -> str:
        return f"InitProducerId of transactional id {printable(item)}"


class ExpectedProducer(NamedTuple):
    """An item of TakeOver: a transactional id, and the producer that has it, as its coordinator has described it."""

    transactional_id: str
    identity: ProducerIdentity


@dataclass(frozen=True)
class TakeOver(Operation[ExpectedProducer, ProducerIdentity | None]):
    """Takes a transactional id over from the expected producer alone: InitProducerId with its producer id and epoch (KIP-360).
    None: another one has it. A coordinator answers a repeated request as it answered the first one, without a new epoch.
    """

    transaction_timeout_ms: int

    api_key = ApiKey.INIT_PRODUCER_ID

    @property
    def versions(self) -> tuple[int, int | None]:
        return FIRST_VERSION_WITH_EXPECTED_PRODUCER, None

    def message(self, items: Sequence[ExpectedProducer], node_id: int, version: int) -> InitProducerIdRequest:  # noqa: ARG002
        (item,) = items
        return InitProducerIdRequest(
            transactional_id=item.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            producer_id=item.identity.producer_id,
            producer_epoch=item.identity.producer_epoch,
        )

    def judge(self, item: ExpectedProducer, answer: InitProducerIdResponse, version: int) -> ProducerIdentity | None:  # noqa: ARG002
        error = Errors.for_code(answer.error_code)
        if error in _OTHER_PRODUCER_ERRORS:
            return None
        self.check(error, item, item.transactional_id)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def describe(self, item: ExpectedProducer) -> str:
        return f"InitProducerId of transactional id {printable(item.transactional_id)}"


class AddedGroup(NamedTuple):
    """An item of AddGroup."""

    transaction: PreparedTransaction
    group_id: str


@dataclass(frozen=True)
class AddGroup(Operation[AddedGroup, None]):
    """Adds a group's partition of __consumer_offsets to a transaction, which begins with the first partition (AddOffsetsToTxn).
    No offset changes. EndTxn of any version can end it."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN

    def message(self, items: Sequence[AddedGroup], node_id: int, version: int) -> AddOffsetsToTxnRequest:  # noqa: ARG002
        (item,) = items
        return AddOffsetsToTxnRequest(
            transactional_id=item.transaction.transactional_id,
            producer_id=item.transaction.producer_id,
            producer_epoch=item.transaction.producer_epoch,
            group_id=item.group_id,
        )

    def judge(self, item: AddedGroup, answer: AddOffsetsToTxnResponse, version: int) -> None:  # noqa: ARG002
        error = Errors.for_code(answer.error_code)
        is_about_group = error == Errors.GROUP_AUTHORIZATION_FAILED
        self.check(error, item, item.group_id if is_about_group else item.transaction.transactional_id)

    def describe(self, item: AddedGroup) -> str:
        return f"AddOffsetsToTxn of transactional id {printable(item.transaction.transactional_id)}"


class AddedPartitions(NamedTuple):
    """An item of AddPartitions."""

    transaction: PreparedTransaction
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class AddPartitions(Operation[AddedPartitions, frozenset[TopicPartition]]):
    """Adds partitions to a transaction, which begins with the first one. The result is those that do not exist; if there are any,
    none is added."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    on_topic = WRITE

    def message(self, items: Sequence[AddedPartitions], node_id: int, version: int) -> AddPartitionsToTxnRequest:  # noqa: ARG002
        (item,) = items
        return AddPartitionsToTxnRequest(
            transactional_id=item.transaction.transactional_id,
            producer_id=item.transaction.producer_id,
            producer_epoch=item.transaction.producer_epoch,
            topics=tuple(
                AddPartitionsToTxnTopic(name=topic, partitions=tuple(each.partition for each in partitions))
                for topic, partitions in partitions_by_topic(item.partitions).items()
            ),
        )

    def judge(self, item: AddedPartitions, answer: AddPartitionsToTxnResponse, version: int) -> frozenset[TopicPartition]:  # noqa: ARG002
        errors = {
            TopicPartition(topic.name, partition.partition_index): Errors.for_code(partition.partition_error_code)
            for topic in answer.results_by_topic
            for partition in topic.results_by_partition
        }
        for partition in item.partitions - errors.keys():
            raise missing_answer_error(f"{self.describe(item)}, partition {printable(partition)}")
        missing = frozenset(each for each, error in errors.items() if error == Errors.UNKNOWN_TOPIC_OR_PARTITION)
        for partition, error in errors.items():
            if error == Errors.TOPIC_AUTHORIZATION_FAILED:
                self.check(error, item, partition.topic)
            # OPERATION_NOT_ATTEMPTED says that another partition has an error, which is the one to tell.
            if partition not in missing and error != Errors.OPERATION_NOT_ATTEMPTED:
                self.check(error, item, item.transaction.transactional_id)
        if not missing and any(errors.values()):
            raise failure(Errors.OPERATION_NOT_ATTEMPTED, self.describe(item), "")
        return missing

    def describe(self, item: AddedPartitions) -> str:
        return f"AddPartitionsToTxn of transactional id {printable(item.transaction.transactional_id)}"


def begin_again(
    transactions: Iterable[EndToRepeat], ask: Callable[[list[Ask[Any, Any]]], list[Any]]
) -> tuple[dict[str, EndOutcome], dict[str, frozenset[TopicPartition]]]:
    """Add the places to the transactions, without partitions that do not exist. `ask` returns the outcome of each ask.

    Returns:
        What has failed, and the partitions that do not exist, by transactional id.
    """
    failures: dict[str, EndOutcome] = {}
    missing: dict[str, frozenset[TopicPartition]] = {}
    asks: list[Ask[Any, Any]] = []
    for transaction, partitions, group_id in transactions:
        key = transaction_key(transaction.transactional_id)
        if partitions:
            asks.append(Ask(key, AddPartitions(), AddedPartitions(transaction, partitions)))
        if group_id is not None:
            asks.append(Ask(key, AddGroup(), AddedGroup(transaction, group_id)))
    while asks:
        outcomes = zip(asks, ask(asks), strict=True)
        asks = []
        for each, outcome in outcomes:
            name = each.item.transaction.transactional_id
            if isinstance(outcome, KafkaError):
                failures.setdefault(name, failed_outcome(outcome))
            elif outcome:
                missing[name] = missing.get(name, frozenset()) | outcome
                if partitions := each.item.partitions - outcome:
                    asks.append(Ask(each.target, each.operation, each.item._replace(partitions=partitions)))
    return failures, missing


class TransactionState(StrEnum):
    """The states of transactions that this client knows, by Kafka's names. Brokers have others, such as PrepareEpochFence."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class ListedTransaction(NamedTuple):
    """A transactional id that a coordinator lists: the producer that has it, and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str  # a TransactionState, if it is one that this client knows


@dataclass(frozen=True)
class ListTransactions(Operation[str, list[ListedTransaction]]):
    """Asks a broker for the transactional ids with a prefix (the item) whose coordinator it is."""

    states: tuple[str, ...]

    api_key = ApiKey.LIST_TRANSACTIONS

    def message(self, items: Sequence[str], node_id: int, version: int) -> ListTransactionsRequest:  # noqa: ARG002
        (prefix,) = items
        pattern = prefix_pattern(prefix) if prefix and version >= FIRST_VERSION_WITH_PATTERN else None
        return ListTransactionsRequest(state_filters=self.states, transactional_id_pattern=pattern)

    def judge(self, item: str, answer: ListTransactionsResponse, version: int) -> list[ListedTransaction]:  # noqa: ARG002
        self.check(Errors.for_code(answer.error_code), item, item)
        if answer.unknown_state_filters:
            unknown_states = printable_list(answer.unknown_state_filters)
            raise UnsupportedVersionError(f"{self.describe(item)}: the broker does not know the states {unknown_states}")
        return [
            ListedTransaction(transaction.transactional_id, transaction.producer_id, transaction.transaction_state)
            for transaction in answer.transaction_states
            if transaction.transactional_id.startswith(item)
        ]

    def describe(self, item: str) -> str:
        return f"ListTransactions of transactional ids that begin with {printable(item)!r}"


def prefix_pattern(prefix: str) -> str:
    """A regular expression of RE2 that matches every text that begins with `prefix`."""
    return "(?s)" + "".join(f"\\{each}" if each in _RE2_OPERATORS else each for each in prefix) + ".*"


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A coordinator's state of a transactional id. Times are milliseconds."""

    transactional_id: str
    state: str  # a TransactionState, if it is one that this client knows
    producer_id: int
    producer_epoch: int
    timeout_ms: int  # transaction.timeout.ms of its producer
    start_time_ms: int | None  # since 1970-01-01 UTC, by the coordinator's clock; None: no transaction since InitProducerId
    partitions: frozenset[TopicPartition]  # of the open transaction, without topics that the user has no permission to describe

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    def is_open(self, identity: ProducerIdentity) -> bool:
        """Whether the producer with this id and epoch has an open transaction, and not a later one of the transactional id."""
        return self.state == TransactionState.ONGOING and self.identity == identity


@dataclass(frozen=True)
class DescribeTransactions(Operation[str, TransactionDescription | None]):
    """Asks for the description of a transactional id; None if its coordinator does not know it."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS

    def batch_size(self, version: int) -> int:  # noqa: ARG002
        return MAX_IDS_PER_REQUEST

    def message(self, items: Sequence[str], node_id: int, version: int) -> DescribeTransactionsRequest:  # noqa: ARG002
        return DescribeTransactionsRequest(transactional_ids=tuple(items))

    def judge(self, item: str, answer: DescribeTransactionsResponse, version: int) -> TransactionDescription | None:  # noqa: ARG002
        answer_state = self.require_answer(item, (each for each in answer.transaction_states if each.transactional_id == item))
        error = Errors.for_code(answer_state.error_code)
        if error == Errors.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        self.check(error, item, item)
        partitions = (TopicPartition(topic.topic, index) for topic in answer_state.topics for index in topic.partitions)
        start_ms = answer_state.transaction_start_time_ms
        return TransactionDescription(
            transactional_id=item,
            state=answer_state.transaction_state,
            producer_id=answer_state.producer_id,
            producer_epoch=answer_state.producer_epoch,
            timeout_ms=answer_state.transaction_timeout_ms,
            start_time_ms=start_ms if 0 <= start_ms <= LATEST_START_MS else None,
            partitions=frozenset(partitions),
        )

    def describe(self, item: str) -> str:
        return f"DescribeTransactions of transactional id {printable(item)}"
