"""What RequestClient can ask of brokers: the target, the message, and the meaning of an answer.

An Operation is one API as it is used here. It only computes; RequestClient sends, waits and retries. Several items of one
operation for the same broker may share a request; the answer to each item is judged separately.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from spark_kafka_sink.errors import KafkaError, NetworkError, ProtocolError, UnsupportedVersionError
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.permissions import READ, to_grant
from spark_kafka_sink.protocol.schema import Request
from spark_kafka_sink.protocol.topic_partition import TopicPartition

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")


class AnyBroker(Enum):
    """A target: the broker with the fewest requests in flight."""

    ANY_BROKER = "any broker"


ANY_BROKER = AnyBroker.ANY_BROKER


class Broker(NamedTuple):
    """A target: the broker with this id. The ask fails with BrokerGoneError if the cluster's metadata no longer contains it."""

    node_id: int


class Leader(NamedTuple):
    """A target: the leader of this partition."""

    partition: TopicPartition


Target = AnyBroker | Broker | CoordinatorKey | Leader  # RequestClient looks up coordinators and leaders that it does not know


class RetryNeeded(Exception):
    """Raised by `judge`: ask again after a back-off. If the error says so, coordinator or leader is looked up again first."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(str(error))
        self.error = error


class BrokerGoneError(NetworkError):
    """A broker that an ask named by id is not part of the cluster any more."""


class Operation(ABC, Generic[ItemT, ResultT]):
    """One API of Kafka, and how it is used here. Instances are immutable. Asks with equal operations may share a request."""

    api_key: ClassVar[ApiKey]
    awaits_leader: ClassVar[bool] = True  # an ask for a Leader waits while there is none; if false, its result is None then
    is_for_leader_alone: ClassVar[bool] = True  # other replicas refuse it; if false, each call looks the leaders up
    on_topic: ClassVar[str] = READ  # the permission on a topic that it takes, as in protocol/permissions.py

    @property
    def versions(self) -> tuple[int, int | None]:
        """The oldest and the newest version that can be used; None: no limit."""
        return 0, None

    def usable_version(self, broker: NodeApiVersions) -> int:
        """The newest version that the broker, this client and this operation have in common.

        Raises:
            UnsupportedVersionError: there is none.
        """
        oldest_version, newest_version = self.versions
        version = broker.latest_usable_version(self.api_key, newest_version)
        if version < oldest_version:
            raise UnsupportedVersionError(
                f"{self.api_key.name} is needed in version {oldest_version}, but the newest that the broker supports is {version}"
            )
        return version

    def batch_size(self, version: int) -> int:  # noqa: ARG002
        """How many items a request of this version may carry."""
        return 1

    @abstractmethod
    def message(self, items: Sequence[ItemT], node_id: int, version: int) -> Request[Any]:
        """The request for these items to this node. If it raises KafkaError, all of the items fail with that error."""

    @abstractmethod
    def judge(self, item: ItemT, answer: Any, version: int) -> ResultT:
        """The result of one item of a request. Raises RetryNeeded, or KafkaError if the item has failed for good."""

    @abstractmethod
    def describe(self, item: ItemT) -> str:
        """The item in words, for errors and logs: "EndTxn of transactional id x"."""

    def require_answer(self, item: ItemT, answers: Iterable[AnswerT]) -> AnswerT:
        """The first of `answers`, the broker's answers to the item. Raises ProtocolError if there are none."""
        for answer in answers:
            return answer
        raise missing_answer_error(self.describe(item))

    def check(self, error: ErrorCode, item: ItemT, resource: str) -> None:
        """Raise RetryNeeded or a KafkaError if `error` is not NONE. `resource`: see `failure`."""
        if error:
            raise retry_or_failure(error, self.describe(item), resource, self.on_topic)


@dataclass(frozen=True, slots=True)
class Ask(Generic[ItemT, ResultT]):
    """What one broker is asked about one item: an operation, the item, and which broker. A Question consists of asks."""

    target: Target
    operation: Operation[ItemT, ResultT]
    item: ItemT


# WHAT OPERATIONS HAVE IN COMMON


def retry_or_failure(error: ErrorCode, item_text: str, resource: str, on_topic: str = READ) -> RetryNeeded | KafkaError:
    """The exception for an error in an answer, with the arguments of `failure`."""
    return RetryNeeded(error) if error.is_retriable else failure(error, item_text, resource, on_topic)


def failure(error: ErrorCode, item_text: str, resource: str, on_topic: str = READ) -> KafkaError:
    """The exception for an error that is not retried. If a permission is missing, the text names the one to grant.

    Args:
        error: the error in the broker's answer.
        item_text: the item as Operation.describe returns it.
        resource: the name of the transactional id, group or topic.
        on_topic: the permission on a topic that the request takes.
    """
    exception = error.exception(item_text)
    exception.message += to_grant(error, transactional_id=resource, group=resource, topic=resource, on_topic=on_topic)
    if error == Errors.CLUSTER_AUTHORIZATION_FAILED:
        exception.message += " Grant the user DESCRIBE_CONFIGS on the cluster."
    return exception


def missing_answer_error(item_text: str) -> ProtocolError:
    return ProtocolError(f"{item_text}: the broker's answer does not mention it")
