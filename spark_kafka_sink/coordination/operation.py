"""What can be asked of brokers: whom, with which message, and what an answer means.

An Operation is one API as it is used here. It computes only; RequestClient sends, waits and retries. Several items of one
operation that go to the same broker may share a request; each item is judged by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from spark_kafka_sink.errors import (
    AuthorizationError,
    KafkaError,
    NetworkError,
    ProtocolError,
    UnsupportedVersionError,
    printable,
)
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.schema import Request

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class AnyBroker(Enum):
    """Whichever broker has the least to do."""

    ANY_BROKER = "any broker"


ANY_BROKER = AnyBroker.ANY_BROKER


class Broker(NamedTuple):
    """This broker and no other. The ask fails with BrokerGoneError when metadata does not list it any more."""

    node_id: int


class CoordinatorOf(NamedTuple):
    """The broker that keeps this group or transactional id, be it found already or not."""

    key_type: KeyType
    key: str


Target = AnyBroker | Broker | CoordinatorOf


@dataclass(frozen=True, slots=True)
class Done(Generic[ResultT]):
    value: ResultT


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again after a back-off; if the error says so, after the coordinator was found again."""

    error: ErrorCode


class BrokerGoneError(NetworkError):
    """A broker that was asked for by its id is not part of the cluster any more."""


class Operation(ABC, Generic[ItemT, ResultT]):
    """One API, and how it is used here. Instances are immutable, and equal only if they mean the same."""

    api_key: ClassVar[ApiKey]

    @property
    def versions(self) -> tuple[int, int | None]:
        """The oldest and the newest version that will do; None: as new as possible."""
        return 0, None

    def usable_version(self, broker: NodeApiVersions) -> int:
        """The newest version that the broker, this client and this operation have in common.

        Raises:
            UnsupportedVersionError: there is none.
        """
        oldest, newest = self.versions
        version = broker.latest_usable_version(self.api_key, newest)
        if version < oldest:
            raise UnsupportedVersionError(f"{self.api_key.name} is needed in version {oldest}, the broker speaks {version}")
        return version

    def batch_size(self, version: int) -> int:  # noqa: ARG002
        """How many items a request of this version may carry."""
        return 1

    @abstractmethod
    def message(self, items: Sequence[ItemT], node_id: int, version: int) -> Request[Any]:
        """The request for these items to this node. Raises KafkaError when there can be none: all of them fail with it."""

    @abstractmethod
    def judge(self, item: ItemT, answer: Any, version: int) -> Done[ResultT] | Retry:
        """What the answer to a request says about one of its items. Raises KafkaError when the item has failed for good."""

    @abstractmethod
    def describe(self, item: ItemT) -> str:
        """For errors and logs: "EndTxn of transactional id x"."""


@dataclass(frozen=True, slots=True)
class Ask(Generic[ItemT, ResultT]):
    target: Target
    operation: Operation[ItemT, ResultT]
    item: ItemT


# ---- what operations have in common --------------------------------------------------------------------------------------------

# By error. WRITE and READ include DESCRIBE.
_TO_GRANT = {
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE on the transactional id {} or on a prefix of it (DESCRIBE to read)",
    Errors.GROUP_AUTHORIZATION_FAILED: "READ on the group {} or on a prefix of it",
    Errors.TOPIC_AUTHORIZATION_FAILED: "READ on the topic {}, which commits of its offsets and a look at its producers take",
    Errors.CLUSTER_AUTHORIZATION_FAILED: "DESCRIBE_CONFIGS on the cluster",
}


def failure(error: ErrorCode, where: str, resource: str) -> KafkaError:
    """The exception for an error that is final; where a permission is missing it says which one to grant.

    Args:
        error: what the broker answered.
        where: what was asked, as Operation.describe says it.
        resource: the name of the transactional id, group or topic.
    """
    found = error.error(where)
    if isinstance(found, AuthorizationError) and error in _TO_GRANT:
        found.message += f" Grant the user {_TO_GRANT[error].format(repr(printable(resource)))}."
    return found


def retry_or_raise(error: ErrorCode, where: str, resource: str) -> Retry:
    """For an answer that carries an error. Raises `failure` unless the error is retriable."""
    if error.retriable:
        return Retry(error)
    raise failure(error, where, resource)


def left_out(where: str) -> ProtocolError:
    return ProtocolError(f"{where}: the broker's answer says nothing about it")
