"""TransactionClient: reads and changes transactions, group offsets and settings of a cluster, without a producer.

    with TransactionClient({"bootstrap.servers": "localhost:9092"}) as client:
        for transactional_id, outcome in client.end_transactions(prepared, commit=True).items():
            ...

Every method blocks the caller's thread for at most `timeout_ms` milliseconds in all, however much it is asked for; by default for
max.block.ms, as Java's commitTransaction. A call sends its requests in parallel: to all coordinators, with several requests in
flight on each connection. Each request is retried until it is answered or the time-out ends. Only one thread at a time may use a
client.

Methods that return an outcome for each item do not raise for an item. All others raise, besides the errors that they list:
    KafkaTimeoutError: the time-out ended; the text has the last problem. KAFKA_BROKER_UNREACHABLE if no broker answered at all.
    AuthenticationError: brokers reject the login.
    AuthorizationError: a permission is missing; the text names the one to grant.
    UnsupportedVersionError: a broker is too old.
    ProtocolError: an answer does not contain what was requested.
    BrokerError: a broker answered with any other error.
    NetworkError: bootstrap.servers lead to another cluster, or a broker has left the cluster (BrokerGoneError).
When a call raises, its other requests may have been carried out, and so may a request that timed out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from spark_kafka_sink.admin.brokers import DescribeBrokerConfig, FindCoordinator, SupportedFeature
from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.leaders import (
    ActiveProducer,
    DescribeProducers,
    FindLeaders,
    ListEndOffset,
    question_for_leaders,
    sorted_leaders,
)
from spark_kafka_sink.admin.offsets import (
    CommitOffsets,
    CommittedOffset,
    FetchOffsets,
    FetchStableOffsets,
    OffsetsToCommit,
    OffsetsToFetch,
)
from spark_kafka_sink.admin.operation import ANY_BROKER, Ask, Broker
from spark_kafka_sink.admin.question import Question, Reply
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.transaction_operations import (
    DescribeTransactions,
    EndOutcome,
    EndToRepeat,
    EndTransaction,
    ExpectedProducer,
    FenceProducer,
    ListedTransaction,
    ListTransactions,
    TakeOver,
    TransactionDescription,
    TransactionEnd,
    begin_again,
    transaction_key,
)
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthorizationError, BrokerError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.protocol.messages.find_coordinator import FIRST_VERSION_WITH_KEYS, KeyType
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity, speaks_transactions_v2
from spark_kafka_sink.protocol.topic_partition import TopicPartition

FENCING_TRANSACTION_TIMEOUT_MS = 30_000  # or less, where brokers take no more; see FenceProducer
DEFAULT_LONGEST_TRANSACTION_MS = 15 * 60 * 1000  # transaction.max.timeout.ms of brokers
METADATA_FEATURE = "metadata.version"
FIRST_METADATA_VERSION_WITH_SKIPS = 30  # of Kafka 4.3.0; 4.2.0 supports 29, and brokers before 3.3 do not know the feature
TRANSACTION_LOG = "__transaction_state"  # each partition's leader coordinates the transactional ids in it
# Suffixes of ids whose coordinators are looked up if the user may not see that topic's leaders. The ids need not exist. An id's
# partition is Java's hashCode of the id modulo transaction.state.log.num.partitions. These ids are in each of 50 partitions, the
# default, and in most of 100.
PROBE_SUFFIXES = range(100, 200)

T = TypeVar("T")


class WholeListQuestions(NamedTuple, Generic[T]):
    """Two questions that replace a call of `list_transactions`: ask `listing` beside other questions, and `is_whole` afterwards.

    The answer to `listing` is what the known brokers list. It misses no id if the answer to `is_whole` is true.
    Otherwise, or after an error of either, call `list_transactions`.
    """

    listing: Question[T]
    is_whole: Question[bool]


class TransactionClient:
    """Ends, fences and lists transactions of any producer, and reads and writes committed offsets.

    Args:
        config: a configuration of Kafka's producer, by Kafka's keys. Options about brokers, security, time-outs and back-off have
            an effect.
        clock, requests: only tests pass them; by default they are made from the config.

    Raises:
        ConfigError: with all problems of the configuration.
    """

    def __init__(
        self, config: Mapping[str, object], *, clock: Clock | None = None, requests: RequestClient | None = None
    ) -> None:
        config = ProducerConfig.conceal(config)  # a traceback with locals would show its secrets
        producer_config = ProducerConfig.from_mapping(config)
        self._default_timeout_ms = producer_config.max_block_ms
        self._requests = requests or RequestClient(ClusterAccess(producer_config, clock=clock))
        is_timeout_given = "transaction.timeout.ms" in producer_config.given_keys
        self._transaction_timeout_ms = producer_config.transaction_timeout_ms if is_timeout_given else None
        self._longest_transaction_timeout_ms: int | None = None  # of the brokers; None: not asked yet
        self._existing_topics: set[str] = set()
        self._last_coordinators: tuple[str | None, list[int] | None] = (None, None)  # a prefix, and its _coordinator_ids()
        self._may_see_leaders = True
        self._transaction_log_leaders: list[int] | None = None  # they coordinate all ids; None: not known

    def __enter__(self) -> TransactionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Never blocks."""
        self._requests.close()

    def _timeout_or_default(self, timeout_ms: int | None) -> int:
        return self._default_timeout_ms if timeout_ms is None else timeout_ms

    def pause(self, wait_ms: int) -> None:
        """Wait, and serve the connections meanwhile."""
        self._requests.pause(wait_ms)

    @property
    def clock(self) -> Clock:
        """The clock of all time-outs."""
        return self._requests.clock

    @property
    def default_timeout_ms(self) -> int:
        """max.block.ms of the configuration."""
        return self._default_timeout_ms

    def ask(self, question: Question[T], *, timeout_ms: int | None = None) -> T:
        """The answer to a question that a method of this client has made. Raises what that method says."""
        (reply,) = self.ask_together(question, timeout_ms=timeout_ms)
        answer: T = reply.read_answer()
        return answer

    def ask_together(self, *questions: Question[Any], timeout_ms: int | None = None) -> list[Reply[Any]]:
        """Ask several questions side by side, in no order. Each reply returns its own answer, or raises its own error."""
        return self._requests.ask_together(questions, self._timeout_or_default(timeout_ms))

    # TRANSACTIONS

    def end_transactions(
        self, prepared: Sequence[PreparedTransaction], commit: bool, *, timeout_ms: int | None = None
    ) -> dict[str, EndOutcome]:
        """Commit or abort transactions that other producers have left open (EndTxn, KIP-98, KIP-890).

        Waits while control records are being written, and while coordinators load, move or cannot be reached. If an answer is
        lost, the request is sent again; coordinators recognize the retry.

        Args:
            prepared: one for each transactional id.
            commit: true commits the transactions, false aborts them.

        Returns:
            The outcome of each transaction by transactional id. An error of a single transaction is not raised: its outcome is
            TransactionEnd.FAILED with the error. With a KafkaTimeoutError, the transaction may end nevertheless.

        Raises:
            ValueError: a transactional id occurs twice.
        """
        id_counts = Counter(each.transactional_id for each in prepared)
        if len(id_counts) < len(prepared):
            raise ValueError(f"transactional id {id_counts.most_common(1)[0][0]!r} is named more than once")
        operations = {is_v2: EndTransaction(commit, is_v2) for is_v2 in (False, True)}
        asks = [Ask(transaction_key(each.transactional_id), operations[each.is_v2], each) for each in prepared]
        return self._end(asks, timeout_ms)

    def _end(self, asks: Sequence[Ask[PreparedTransaction, EndOutcome]], timeout_ms: int | None) -> dict[str, EndOutcome]:
        outcomes = self._requests.ask(asks, self._timeout_or_default(timeout_ms))
        return {
            ask.item.transactional_id: EndOutcome(TransactionEnd.FAILED, outcome) if isinstance(outcome, KafkaError) else outcome
            for ask, outcome in zip(asks, outcomes, strict=True)
        }

    def end_again(
        self, transactions: Sequence[EndToRepeat], commit: bool, *, timeout_ms: int | None = None
    ) -> dict[str, EndOutcome]:
        """End transactions once more, so that partitions get control records that brokers have skipped (KAFKA-20734).

        Adds the partitions and groups to the transaction, which begins again at the same producer id and epoch, and sends EndTxn.
        The control record decides about everything that this producer id has open there. It is harmless where nothing is open.
        A call that was interrupted can be repeated with what the coordinator describes then.

        Args:
            transactions: one for each transactional id. With the identity that is in force, after the transaction has ended.
            commit: as the transactions were ended. The other decision would lose rows, or double them.

        Returns:
            As `end_transactions`. NOT_OPEN: the identity is not in force any more, or nothing was to be ended. Partitions that
            do not exist any more are left out, and are in `missing` of the outcome.

        Raises:
            ValueError: a transactional id occurs twice.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        failures, missing = begin_again(transactions, lambda asks: self._requests.ask(asks, self._left_ms(deadline_ms)))
        # Also after a failure: another request may have begun the transaction, and its time-out would end it in the other way.
        not_open_ids = {name for name, outcome in failures.items() if outcome.end is TransactionEnd.NOT_OPEN}
        to_end = [each.transaction for each in transactions if each.transaction.transactional_id not in not_open_ids]
        outcomes = self.end_transactions(to_end, commit, timeout_ms=self._left_ms(deadline_ms)) | failures
        return {name: replace(outcome, missing=missing.get(name, frozenset())) for name, outcome in outcomes.items()}

    def fence(
        self, transactional_ids: Iterable[str], timeout_ms: int | None = None, *, transaction_timeout_ms: int | None = None
    ) -> dict[str, ProducerIdentity]:
        """Abort the open transactions of these transactional ids, and fence their producers (InitProducerId).

        When this returns, no transaction of these ids is open. Open ones were aborted; a commit or abort that had begun was
        completed. Brokers then reject the producers that used the ids before. An id that nobody has used is created.

        Args:
            transactional_ids: each is fenced once.
            transaction_timeout_ms: the transaction time-out that the coordinator stores with the id until its next producer
                starts; above zero, and at most the brokers' transaction.max.timeout.ms. None: 30 s, or less where brokers or
                the option transaction.timeout.ms allow no more; without the option, the first call asks brokers for their limit.

        Returns:
            The new producer id and epoch of each transactional id.

        Raises:
            KafkaError: see the head of this file; other ids may have been fenced. KAFKA_INVALID_TRANSACTION_TIMEOUT if the
                transaction time-out is above a limit that brokers do not tell: set transaction.timeout.ms.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        ids = list(dict.fromkeys(transactional_ids))
        if not ids:
            return {}
        operation = FenceProducer(transaction_timeout_ms or self._fencing_timeout_ms(deadline_ms))
        asks = [Ask(transaction_key(each), operation, each) for each in ids]
        return dict(zip(ids, self._requests.ask_all(asks, self._left_ms(deadline_ms)), strict=True))

    def take_over(
        self,
        expected: Mapping[str, ProducerIdentity],
        *,
        transaction_timeout_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, ProducerIdentity | None]:
        """As `fence`, but each id only from the producer that is expected to have it (KIP-360; Kafka 2.5 and newer).

        Only for ids without an open transaction: of an open one a coordinator compares the producer id alone, and aborts it
        before it compares the epoch.

        Args:
            expected: what DescribeTransactions has said, by transactional id.
            transaction_timeout_ms: see `fence`.

        Returns:
            The new producer id and epoch of each transactional id; None if another producer has the id. A coordinator takes the
            last epoch before the present one for a repeated request, and answers with the present one: two callers that expect
            the same producer get the same new epoch, and so does a caller that expects what EndTxn version 5 has just ended.

        Raises:
            KafkaError: as `fence`.
        """
        if not expected:
            return {}
        deadline_ms = self._deadline_ms(timeout_ms)
        timeout_of_ids_ms = transaction_timeout_ms or self._fencing_timeout_ms(deadline_ms)
        return self.ask(self.take_over_question(expected, timeout_of_ids_ms), timeout_ms=self._left_ms(deadline_ms))

    def take_over_question(
        self, expected: Mapping[str, ProducerIdentity], transaction_timeout_ms: int
    ) -> Question[dict[str, ProducerIdentity | None]]:
        """A question that, when asked, does what `take_over` does; the answer is what that returns."""
        operation = TakeOver(transaction_timeout_ms)
        asks = [Ask(transaction_key(name), operation, ExpectedProducer(name, each)) for name, each in expected.items()]
        return Question(asks, lambda results: dict(zip(expected, results, strict=True)))

    def _fencing_timeout_ms(self, deadline_ms: int) -> int:
        """The transaction time-out that coordinators store with the ids that this client takes for itself."""
        longest_ms = self._transaction_timeout_ms or self.longest_transaction_timeout_ms(timeout_ms=self._left_ms(deadline_ms))
        return min(FENCING_TRANSACTION_TIMEOUT_MS, longest_ms)

    @property
    def bumps_epochs(self) -> bool:
        """Whether the end of a transaction raises its epoch: transaction.version is 2 or higher (KIP-890), as brokers say."""
        return speaks_transactions_v2(self._requests.finalized_features()[1])

    def list_transactions(
        self,
        prefix: str,
        states: Collection[str] = (),
        *,
        at_once: bool = False,
        probed: str | None = None,
        timeout_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids that begin with `prefix`, from every broker (ListTransactions, KIP-664; Kafka 3.0 and newer).

        Brokers from 4.1 on filter by the prefix (KIP-1152); answers of older ones are filtered here. An id is listed from its
        first InitProducerId until seven days after its last use (transactional.id.expiration.ms).

        Each broker lists the ids that it coordinates at that moment. So that no id is missed, all brokers are asked again if the
        brokers of the cluster, or the coordinators of ids with this prefix, have changed meanwhile. The method waits while a part
        of the ids has no coordinator. A change that a broker does not know yet is not noticed.

        Brokers leave out ids that the user has no permission to DESCRIBE, without an error: such an id may exist although it is
        not in the result. Without that permission on all ids with the prefix, coordinators are not compared either.

        Args:
            prefix: "" for all ids.
            states: names of TransactionState; empty for all states.
            at_once: ask the known brokers once, and look up no coordinators. An id whose coordinator moves or is missing at that
                moment may be left out.
            probed: prefix of the ids whose coordinators are compared; None: `prefix`. One value for many prefixes saves
                requests, as each call compares with the coordinators that the last call has found.

        Returns:
            Each id once, sorted.
        """
        operation = _list_operation(states)
        total_ms = self._timeout_or_default(timeout_ms)
        if at_once:
            return _sorted_transactions(self._requests.ask_known_brokers(operation, prefix, total_ms))
        deadline_ms = self._deadline_ms(total_ms)
        probed = prefix if probed is None else probed
        last_prefix, coordinators = self._last_coordinators
        if last_prefix != probed:
            coordinators = self._coordinator_ids(probed, deadline_ms)
        failure_count = 0
        while True:
            answers = self._requests.ask_every_broker(operation, prefix, self._left_ms(deadline_ms))
            coordinators, last_coordinators = self._coordinator_ids(probed, deadline_ms), coordinators
            self._last_coordinators = (probed, coordinators)
            if coordinators == last_coordinators and set(coordinators or ()) <= answers.keys():
                return _sorted_transactions(answers)
            if not self._left_ms(deadline_ms):
                raise KafkaTimeoutError(f"{operation.describe(prefix)}: coordinators kept moving for {total_ms} ms")
            failure_count += 1
            self._requests.back_off(failure_count, self._left_ms(deadline_ms))

    def list_transactions_question(self, prefix: str, states: Collection[str] = ()) -> Question[list[ListedTransaction]]:
        """A question whose answer is what `list_transactions` with `at_once` returns, or BrokerGoneError if a broker has left."""
        nodes = self._requests.known_brokers()
        if not nodes:
            return Question((), lambda _: self.list_transactions(prefix, states, at_once=True))
        operation = _list_operation(states)
        asks = [Ask(Broker(node_id), operation, prefix) for node_id in nodes]
        return Question(asks, lambda answers: _sorted_transactions(dict(zip(nodes, answers, strict=True))))

    def whole_list_questions(
        self, prefix: str, states: Collection[str] = ()
    ) -> WholeListQuestions[list[ListedTransaction]] | None:
        """Questions that replace `list_transactions` with these arguments. None if the leaders of the transaction log are not
        known: `list_transactions` finds them if the user may see them."""
        known_leaders, asked_brokers = self._transaction_log_leaders, set(self._requests.known_brokers())
        if known_leaders is None or not asked_brokers:
            return None

        def note_leaders(answers: list[dict[int, Node | None]]) -> bool:
            self._transaction_log_leaders = sorted_leaders(answers[0])
            return self._transaction_log_leaders == known_leaders and asked_brokers.issuperset(known_leaders)

        ask = Ask(ANY_BROKER, FindLeaders(), TRANSACTION_LOG)
        return WholeListQuestions(self.list_transactions_question(prefix, states), Question([ask], note_leaders))

    def _deadline_ms(self, timeout_ms: int | None) -> int:
        """The deadline of a call whose steps share one time-out."""
        return self._requests.clock.now_ms() + self._timeout_or_default(timeout_ms)

    def _left_ms(self, deadline_ms: int) -> int:
        return max(deadline_ms - self._requests.clock.now_ms(), 0)

    def _coordinator_ids(self, prefix: str, deadline_ms: int) -> list[int] | None:
        """Find the node ids of the coordinators of transactional ids. None: the user may not look them up.

        If the user may see the leaders of the transaction log, these are all coordinators, in one small answer. Otherwise the
        PROBE_SUFFIXES show the coordinators of most ids with this prefix. Waits for coordinators that are not available, as
        ListTransactions does not show that ids have no coordinator.
        """
        self._transaction_log_leaders = self._find_transaction_log_leaders(self._left_ms(deadline_ms))
        if self._transaction_log_leaders is not None:
            return self._transaction_log_leaders
        probes = [transaction_key(f"{prefix}{each}") for each in PROBE_SUFFIXES]
        operation = FindCoordinator(KeyType.TRANSACTION, FIRST_VERSION_WITH_KEYS)
        answers = self._requests.ask([Ask(ANY_BROKER, operation, each) for each in probes], self._left_ms(deadline_ms))
        errors = [each for each in answers if isinstance(each, KafkaError)]
        if any(isinstance(each, AuthorizationError) for each in errors):
            return None
        if errors:
            raise errors[0]  # the error of one probe stands for all
        return [node.id for node in answers if isinstance(node, Node)]

    def _find_transaction_log_leaders(self, timeout_ms: int) -> list[int] | None:
        """Ask for the leaders, in the order of their partitions. None: a leader is missing, or the user may not see them."""
        if not self._may_see_leaders:
            return None
        try:
            (answer,) = self._requests.ask_all([Ask(ANY_BROKER, FindLeaders(), TRANSACTION_LOG)], timeout_ms)
        except AuthorizationError:
            self._may_see_leaders = False  # seeing them takes DESCRIBE on the topic, which only administrators have
            return None
        except BrokerError:
            return None  # there is no such topic, or not yet
        leaders = sorted_leaders(answer)
        return None if min(leaders, default=-1) < 0 else leaders

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | None]:
        """State, producer, age and partitions of transactional ids (DescribeTransactions, KIP-664; Kafka 3.0 and newer).

        Returns:
            The description of each transactional id; None if its coordinator does not know it: never used, or expired.
        """
        return self.ask(self.describe_transactions_question(transactional_ids), timeout_ms=timeout_ms)

    def describe_transactions_question(
        self, transactional_ids: Iterable[str]
    ) -> Question[dict[str, TransactionDescription | None]]:
        """A question whose answer is what `describe_transactions` returns."""
        ids = list(dict.fromkeys(transactional_ids))
        asks = [Ask(transaction_key(each), DescribeTransactions(), each) for each in ids]
        return Question(asks, lambda results: dict(zip(ids, results, strict=True)))

    # PRODUCERS

    def describe_producers(
        self, partitions: Iterable[TopicPartition], producer_ids: Collection[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, dict[int, ActiveProducer] | KafkaError]:
        """The producers that have written to partitions lately, from their leaders (KIP-664; Kafka 2.8 and newer).

        Partitions keep a producer for a day after its last batch (producer.id.expiration.ms). A partition without a leader, or
        whose leader moves, is waited for.

        Args:
            producer_ids: return only these, as a partition may have very many producers. None: return all.

        Returns:
            By partition, its producers by producer id, or why they cannot be known; nothing is raised for a single partition.
            AuthorizationError: it takes READ on the topic. BrokerError: there is no such topic or partition.
        """
        return self.ask(self.describe_producers_question(partitions, producer_ids), timeout_ms=timeout_ms)

    def describe_producers_question(
        self, partitions: Iterable[TopicPartition], producer_ids: Collection[int] | None = None
    ) -> Question[dict[TopicPartition, dict[int, ActiveProducer] | KafkaError]]:
        """A question whose answer is what `describe_producers` returns."""
        return question_for_leaders(DescribeProducers(None if producer_ids is None else frozenset(producer_ids)), partitions)

    def end_offsets_question(
        self, partitions: Iterable[TopicPartition], isolation_level: IsolationLevel
    ) -> Question[dict[TopicPartition, int | KafkaError | None]]:
        """A question for the ends of partitions: READ_COMMITTED the last stable offset, else the high watermark (ListOffsets).

        Rows below the last stable offset are decided: their transactions are committed or aborted there. Leaders that this client
        has found before are asked at once, each with one request for all its partitions.

        The answer has, by partition, the offset after the last row that such readers see; None if the partition has no leader
        now; or the error why it cannot be known. Nothing is raised for a single partition. It takes DESCRIBE on the topic.
        """
        return question_for_leaders(ListEndOffset(isolation_level), partitions)

    def partitions_of(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> list[TopicPartition]:
        """All partitions of topics; none of a topic that does not exist, or that the user may not see."""
        asks = [Ask(ANY_BROKER, FindLeaders(), name) for name in dict.fromkeys(topics)]
        outcomes: list[dict[int, Node | None] | KafkaError] = self._requests.ask(asks, self._timeout_or_default(timeout_ms))
        found = ((ask.item, leaders) for ask, leaders in zip(asks, outcomes, strict=True) if not isinstance(leaders, KafkaError))
        return [TopicPartition(topic, index) for topic, leaders in found for index in sorted(leaders)]

    # TOPICS

    def require_topic(self, topic: str, *, timeout_ms: int | None = None) -> None:
        """Wait until the topic exists. Raises KafkaTimeoutError if it does not exist in time. Never creates it.

        A topic that this client has found before is not asked for again.
        """
        if topic not in self._existing_topics:
            self._requests.ask_all([Ask(ANY_BROKER, FindLeaders(awaits_topic=True), topic)], self._timeout_or_default(timeout_ms))
            self._existing_topics.add(topic)

    # OFFSETS

    def fetch_offsets(
        self, groups: Mapping[str, Collection[TopicPartition] | None], require_stable: bool, *, timeout_ms: int | None = None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Committed offsets of many groups, with their metadata (OffsetFetch).

        Args:
            groups: group id -> the partitions; None for all partitions with a committed offset.
            require_stable: wait until no open transaction holds an offset of these partitions (KIP-447; Kafka 2.5 and newer).
                Name the partitions in this case: "all" does not include, or wait for, a partition whose only offset is part of an
                open transaction.

        Returns:
            The offsets of each group, without partitions that have no committed offset.

        Raises:
            KafkaError: see the head of this file. The user needs DESCRIBE on the group and on the topics. READ includes DESCRIBE;
                on a topic, WRITE does too. If partitions are not named, brokers leave out topics that the user has no permission
                to describe, without an error.
        """
        return self.ask(self.fetch_offsets_question(groups, require_stable), timeout_ms=timeout_ms)

    def fetch_offsets_question(
        self, groups: Mapping[str, Collection[TopicPartition] | None], require_stable: bool
    ) -> Question[dict[str, dict[TopicPartition, CommittedOffset]]]:
        """A question whose answer is what `fetch_offsets` returns."""
        operation = FetchOffsets(require_stable)
        items = [OffsetsToFetch(name, None if partitions is None else tuple(partitions)) for name, partitions in groups.items()]
        asks = [Ask(CoordinatorKey(KeyType.GROUP, each.group_id), operation, each) for each in items]
        return Question(asks, lambda results: dict(zip(groups, results, strict=True)))

    def stable_offsets_question(
        self, groups: Mapping[str, Collection[TopicPartition]]
    ) -> Question[dict[str, dict[TopicPartition, CommittedOffset] | KafkaError | None]]:
        """As `fetch_offsets_question` with `require_stable`, without waiting for transactions, and without raising for a group.

        The answer has, by group, the committed offsets; None while an open transaction holds an offset of one of the partitions,
        be it one whose control record a broker has skipped; or the error why they cannot be known.
        """
        operation = FetchStableOffsets()
        items = [OffsetsToFetch(name, tuple(partitions)) for name, partitions in groups.items()]
        asks = [Ask(CoordinatorKey(KeyType.GROUP, each.group_id), operation, each) for each in items]
        return Question(asks, lambda outcomes: dict(zip(groups, outcomes, strict=True)), reads_errors=True)

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, str]], *, timeout_ms: int | None = None
    ) -> None:
        """Commit offsets with their metadata in one request, outside of any transaction (OffsetCommit).

        The group must have no members. The offsets override those that are pending in an open transaction, even if that
        transaction is committed later.

        Args:
            offsets: (offset, metadata) of each partition. Metadata have at most offset.metadata.max.bytes, by default 4096. If
                `offsets` is empty, nothing is sent.
            timeout_ms: after a time-out, the offsets may still be committed.

        Raises:
            BrokerError: KAFKA_UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist, KAFKA_OFFSET_METADATA_TOO_LARGE
                (offsets of other partitions are committed), KAFKA_UNKNOWN_MEMBER_ID for a group that consumers use.
            KafkaError: see the head of this file. The user needs READ on the group and on the topics; WRITE is not enough.
        """
        if offsets:
            self.ask(self.commit_offsets_question(group_id, offsets), timeout_ms=timeout_ms)

    def commit_offsets_question(self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> Question[None]:
        """A question that, when asked, commits as `commit_offsets` does; the answer is None."""
        item = OffsetsToCommit(group_id, {partition: CommittedOffset(*offset) for partition, offset in offsets.items()})
        return Question([Ask(CoordinatorKey(KeyType.GROUP, group_id), CommitOffsets(), item)], lambda _: None)

    # BROKERS

    def brokers_that_may_skip_control_records(self, *, timeout_ms: int | None = None) -> list[int]:
        """The node ids of brokers whose software may end a transaction without control records in all partitions (KAFKA-20734).

        These are brokers of Kafka 4.3.0 and newer, and those that do not answer in time. The brokers of the metadata are asked; a
        broker that is down is not among them.

        Raises:
            KafkaError: see the head of this file; only as long as this client does not know the brokers.
        """
        deadline_ms = self._deadline_ms(timeout_ms)
        ask = Ask(ANY_BROKER, SupportedFeature(), METADATA_FEATURE)
        if not self._requests.known_brokers():
            self._requests.ask_all([ask], self._left_ms(deadline_ms))
        nodes = self._requests.known_brokers()
        asks = [replace(ask, target=Broker(node_id)) for node_id in nodes]
        levels: list[int | KafkaError | None] = self._requests.ask(asks, self._left_ms(deadline_ms))
        return [
            node_id
            for node_id, level in zip(nodes, levels, strict=True)
            if isinstance(level, KafkaError) or (level is not None and level >= FIRST_METADATA_VERSION_WITH_SKIPS)
        ]

    def broker_config(self, name: str, *, timeout_ms: int | None = None) -> str | None:
        """A setting of any one broker, such as transaction.max.timeout.ms, as text (DescribeConfigs).

        Returns:
            The value, or None if it cannot be read: the user has no permission to DESCRIBE_CONFIGS on the cluster, or the broker
            does not support the request, has no such setting, or hides its value. Callers then use Kafka's default.
        """
        ask = Ask(ANY_BROKER, DescribeBrokerConfig(), name)
        try:
            return self._requests.ask_all([ask], self._timeout_or_default(timeout_ms))[0]
        except (AuthorizationError, UnsupportedVersionError):
            return None

    def longest_transaction_timeout_ms(self, *, timeout_ms: int | None = None) -> int:
        """The brokers' transaction.max.timeout.ms, or Kafka's default if they do not tell it. Only the first call asks."""
        if self._longest_transaction_timeout_ms is None:
            value = self.broker_config("transaction.max.timeout.ms", timeout_ms=timeout_ms)
            is_number = value is not None and value.isascii() and value.isdecimal()
            self._longest_transaction_timeout_ms = int(value) if value and is_number else DEFAULT_LONGEST_TRANSACTION_MS
        return self._longest_transaction_timeout_ms


def _list_operation(states: Collection[str]) -> ListTransactions:
    return ListTransactions(tuple(sorted(set(map(str, states)))))


def _sorted_transactions(answers: Mapping[int, list[ListedTransaction]]) -> list[ListedTransaction]:
    transactions_by_id = {transaction.transactional_id: transaction for answer in answers.values() for transaction in answer}
    return [transactions_by_id[transactional_id] for transactional_id in sorted(transactions_by_id)]
