"""Every error that reaches a user of the producer or the sink.

Only an exception's text survives the way from a Spark executor to the driver, so the text carries all: it opens with a
condition in brackets, `[KAFKA_RECORD_TOO_LARGE]`, then says what happened, where, which limit, and what to do. The class
says how the caller may react; the condition is what tests and users match on.

    KafkaError
    ├── ConfigError                an option is missing, malformed or contradicts another
    ├── SchemaError                a column is missing or has a type that cannot be written
    ├── InvalidRecordError         one row cannot be sent as it is (null topic, partition out of range)
    │   └── RecordTooLargeError    a row exceeds a size limit of the client or of the broker
    ├── KafkaTimeoutError          a bounded wait ran out: metadata, memory, delivery, flush
    ├── ProducerClosedError        used after close(), or closed while rows were waiting
    ├── NetworkError               no broker answered, or a connection was lost
    │   └── AuthenticationError    one side does not accept the other: credentials, certificates, TLS or not
    ├── ProtocolError              a broker's bytes do not parse, or it speaks no version that we do
    │   └── UnsupportedVersionError
    ├── BrokerError                a broker answered with an error code (protocol/error_codes.py)
    │   └── AuthorizationError     the user lacks a permission: on a topic, the cluster, a transactional id; never retried
    ├── DeliveryError              rows of a write were not acknowledged; names the first failure
    │   └── FailedToSendMessageError   the old producer gave up on messages; names their partitions and why
    └── QueueFullError             the old producer's queue had no room in time
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

_MAX_PRINTED_CHARACTERS = 300
_MAX_PRINTED_ITEMS = 20


def printable(text: object, limit: int = _MAX_PRINTED_CHARACTERS) -> str:
    """What a broker or another server said, as it may stand in a log line or in an error: on one line and of bounded length.

    Control characters, line separators, those that change the direction of writing or show nothing, and lone surrogates are
    escaped as in Python; what goes beyond `limit` characters is cut off and counted.
    """
    text = str(text)
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit:,} more characters)"


def printable_list(items: Iterable[object], limit: int = _MAX_PRINTED_ITEMS) -> str:
    """The same for names: "a, b and 3 more"; the first `limit` of them."""
    items = iter(items)
    shown = ", ".join(printable(item) for item in islice(items, limit))
    left = sum(1 for _ in items)
    return f"{shown} and {left:,} more" if left else shown


class KafkaError(Exception):
    """Base of all errors here. `condition` is the stable code; `str()` is "[condition] message"."""

    condition = "KAFKA_ERROR"

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if condition is not None:
            self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[KafkaError], message: str, state: dict[str, Any]) -> KafkaError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


_Error = TypeVar("_Error", bound=Exception)


def fresh_copy(error: _Error) -> _Error:
    """The same error without traceback and context: what is raised of an error that is kept.

    Each raise of one instance adds frames to its traceback, and these keep the locals of every caller alive. The cause stays;
    one that was raised here, by a caller's wait, is copied too. A cause from elsewhere keeps the traceback that explains it.
    """
    found, cause = copy.copy(error), error.__cause__
    found.__cause__ = fresh_copy(cause) if isinstance(cause, KafkaError) else cause
    found.__suppress_context__ = True
    return found


def for_keeping(error: _Error) -> _Error:
    """The error itself if nobody has raised it yet, else a fresh copy."""
    return error if error.__traceback__ is None else fresh_copy(error)


class ConfigError(KafkaError):
    condition = "KAFKA_INVALID_CONFIG"


class SchemaError(KafkaError):
    condition = "KAFKA_INVALID_SCHEMA"


class InvalidRecordError(KafkaError):
    condition = "KAFKA_INVALID_RECORD"


class RecordTooLargeError(InvalidRecordError):
    condition = "KAFKA_RECORD_TOO_LARGE"


class KafkaTimeoutError(KafkaError):
    condition = "KAFKA_TIMEOUT"


class ProducerClosedError(KafkaError):
    condition = "KAFKA_PRODUCER_CLOSED"


def closed_error(ended_by: KafkaError | None, message: str) -> KafkaError:
    """For a use of a producer that has ended: what ended it, or `message` if it was closed. Made anew, to be raised once."""
    return ProducerClosedError(message) if ended_by is None else copy.copy(ended_by)


class IllegalStateError(KafkaError):
    """A call that does not fit the state of a transactional producer. Nothing has changed; the message says what to call."""

    condition = "KAFKA_ILLEGAL_STATE"


class AbortableTransactionError(KafkaError):
    """The transaction has failed: call abort_transaction(), then go on with the next one."""

    condition = "KAFKA_TRANSACTION_ABORTABLE"


class TransactionAbortedError(KafkaError):
    """What rows fail with that had not been sent when their transaction was aborted (KIP-654)."""

    condition = "KAFKA_TRANSACTION_ABORTED"


class FatalProducerError(KafkaError):
    """The producer can do nothing more: close it."""

    condition = "KAFKA_FATAL"


class ProducerFencedError(FatalProducerError):
    """Another producer with the same transactional.id has taken over."""

    condition = "KAFKA_PRODUCER_FENCED"


class TransactionTimeoutError(KafkaTimeoutError):
    """A call of a transactional method has not ended in time. It goes on: the same call, made again, waits for its end."""

    condition = "KAFKA_TRANSACTION_TIMEOUT"


class NetworkError(KafkaError):
    condition = "KAFKA_NETWORK"


class AuthenticationError(NetworkError):
    condition = "KAFKA_AUTHENTICATION_FAILED"


class ProtocolError(KafkaError):
    condition = "KAFKA_PROTOCOL"


class UnsupportedVersionError(ProtocolError):
    condition = "KAFKA_UNSUPPORTED_VERSION"


class BrokerError(KafkaError):
    """A broker's answer. `error_code` is Kafka's number; the condition is KAFKA_ + Kafka's name for it."""

    condition = "KAFKA_BROKER_ERROR"

    def __init__(self, message: str, *, error_code: int, condition: str | None = None) -> None:
        super().__init__(message, condition=condition)
        self.error_code = error_code


class AuthorizationError(BrokerError):
    """The condition says what the permission is on: KAFKA_TOPIC_AUTHORIZATION_FAILED, KAFKA_CLUSTER_AUTHORIZATION_FAILED …"""


class DeliveryError(KafkaError):
    condition = "KAFKA_DELIVERY_FAILED"


class FailedToSendMessageError(DeliveryError):
    """Messages that the old producer gave up on: `messages`, as they were sent, and `causes` by topic-partition (by topic
    where no partition could be chosen)."""

    condition = "KAFKA_FAILED_TO_SEND_MESSAGE"

    def __init__(self, message: str, *, messages: Sequence[Any], causes: Mapping[str, KafkaError]) -> None:
        super().__init__(message)
        self.messages = tuple(messages)
        self.causes = dict(causes)


class QueueFullError(KafkaError):
    """No room in the old producer's queue. `queued` messages of the same call, the first ones, are in the queue and are sent."""

    condition = "KAFKA_QUEUE_FULL"

    def __init__(self, message: str, *, queued: int) -> None:
        super().__init__(message)
        self.queued = queued
