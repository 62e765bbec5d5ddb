"""Asks the brokers about topics, groups and transactional ids: all side by side, each with the time it took."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_kafka_sink.admin.brokers import DescribeBrokerConfig
from spark_kafka_sink.admin.operation import ANY_BROKER, Ask, Broker
from spark_kafka_sink.admin.permissions import GroupPermissions, MayWriteToId
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.topics import DescribeTopic, DescribeTopicConfigs
from spark_kafka_sink.admin.transaction_operations import DescribeTransactions, ListedTransaction, ListTransactions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.fencing import UNFINISHED
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.tools.check.exactly_once import BROKER_MAX_TIMEOUT
from spark_kafka_sink.tools.check.topics import AUTO_CREATE, TOPIC_SETTINGS

ID_ASK_NAME, WRITE_ASK_NAME, GROUP_ASK_NAME = "describe id", "may write to id", "group"


class TimedOutcome(NamedTuple):
    """The outcome of an ask, and how many milliseconds it took."""

    value: Any  # what the operation returns, or a KafkaError
    ms: int

    @property
    def error(self) -> KafkaError | None:
        return self.value if isinstance(self.value, KafkaError) else None


def asks_about_topics(topics: Iterable[str]) -> dict[Hashable, Ask[Any, Any]]:
    """The asks named ("topic", …) and ("settings", …) about each topic, and AUTO_CREATE: whether brokers create topics."""
    asks: dict[Hashable, Ask[Any, Any]] = {AUTO_CREATE: Ask(ANY_BROKER, DescribeBrokerConfig(), AUTO_CREATE)}
    for topic in topics:
        asks["topic", topic] = Ask(ANY_BROKER, DescribeTopic(), topic)
        asks["settings", topic] = Ask(ANY_BROKER, DescribeTopicConfigs(TOPIC_SETTINGS), topic)
    return asks


def asks_about_prefix(names: PrefixNames, nodes: Sequence[int]) -> dict[Hashable, Ask[Any, Any]]:
    """The asks about the names that begin with a transactionalIdPrefix.

    Args:
        nodes: the ids of the brokers that can be reached: each lists the transactional ids that it coordinates.
    """
    coordinator = CoordinatorKey(KeyType.TRANSACTION, names.check_id)
    listing = ListTransactions(tuple(sorted(map(str, UNFINISHED))))
    asks: dict[Hashable, Ask[Any, Any]] = {
        ID_ASK_NAME: Ask(coordinator, DescribeTransactions(), names.check_id),
        WRITE_ASK_NAME: Ask(coordinator, MayWriteToId(), names.check_id),
        GROUP_ASK_NAME: Ask(CoordinatorKey(KeyType.GROUP, names.aborted_group), GroupPermissions(), names.aborted_group),
        BROKER_MAX_TIMEOUT: Ask(ANY_BROKER, DescribeBrokerConfig(), BROKER_MAX_TIMEOUT),
    }
    return asks | {("listed", node): Ask(Broker(node), listing, names.id_prefix) for node in nodes}


def timed_outcomes(
    client: RequestClient, asks: Mapping[Hashable, Ask[Any, Any]], timeout_ms: int
) -> dict[Hashable, TimedOutcome]:
    """The outcome of each ask, by the name of the ask. Blocks until all asks have an outcome, `timeout_ms` at most."""
    start_ms = client.clock.now_ms()
    durations_ms = [0] * len(asks)

    def note_duration(position: int) -> None:
        durations_ms[position] = client.clock.now_ms() - start_ms

    outcomes: list[Any] = client.ask(list(asks.values()), timeout_ms, note_duration)
    return {name: TimedOutcome(outcome, ms) for name, outcome, ms in zip(asks, outcomes, durations_ms, strict=True)}


def listed_transactions(outcomes: Mapping[Hashable, TimedOutcome]) -> TimedOutcome:
    """The transactions that all brokers have listed, or the first error; with the longest time."""
    lists = [outcome for name, outcome in outcomes.items() if isinstance(name, tuple) and name[0] == "listed"]
    ms = max((each.ms for each in lists), default=0)
    error = next((each.error for each in lists if each.error is not None), None)
    if error is not None:
        return TimedOutcome(error, ms)
    transactions: list[ListedTransaction] = [transaction for each in lists for transaction in each.value]
    return TimedOutcome(transactions, ms)
