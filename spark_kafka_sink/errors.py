"""The errors that packages share, and most of those that users catch. Others are subclasses in the package that raises them.

Spark passes only the text of an exception from an executor to the driver, so the text contains everything: it begins with a
condition in brackets, `[KAFKA_RECORD_TOO_LARGE]`, and then names what happened, where, which limit applies, and what to do. The
class tells callers how they can react. Tests and users match on the condition.

All derive from KafkaError. The errors of this file that have subclasses in it:

    InvalidRecordError    RecordTooLargeError
    KafkaTimeoutError     TransactionTimeoutError
    FatalProducerError    ProducerFencedError
    NetworkError          AuthenticationError
    ProtocolError         ResponseTooLargeError, UnsupportedVersionError
    BrokerError           AuthorizationError
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar


def printable(text: object, limit: int = 300) -> str:
    """Text from a broker or another server in a form that is safe for a log line or an error: one line of limited length.

    Control characters, line separators, characters that are invisible or change the writing direction, and lone surrogates are
    escaped as in Python. Text beyond `limit` characters is replaced by the number of characters cut off.
    """
    try:
        text = str(text)
    except Exception as error:  # noqa: BLE001 - of an exception or another object that is not ours
        text = f"an object of type {type(text).__name__}, whose str() raises {type(error).__name__}"
    beginning = text[:limit]
    if not beginning.isprintable():
        beginning = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in beginning)
    return beginning if len(text) <= limit else f"{beginning}… ({len(text) - limit:,} more characters)"


def describe_error(error: object) -> str:
    """An exception in one line: "ValueError: its text"."""
    return f"{type(error).__name__}: {printable(error)}"


def printable_list(items: Iterable[object], limit: int = 20) -> str:
    """Several texts, each as `printable` returns it: the first `limit` and the number of the others, "a, b and 3 more"."""
    iterator = iter(items)
    listing = ", ".join(printable(item) for item in islice(iterator, limit))
    other_count = sum(1 for _ in iterator)
    return f"{listing} and {other_count:,} more" if other_count else listing


class KafkaError(Exception):
    """Base class of all errors of this package. `condition` is the stable code; `str()` is "[condition] message"."""

    condition = "KAFKA_ERROR"

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if condition is not None:
            self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message), self.__dict__.copy()


def _rebuild(cls: type[KafkaError], message: str) -> KafkaError:
    return cls.__new__(cls, message)


_Error = TypeVar("_Error", bound=Exception)


def fresh_copy(error: _Error) -> _Error:
    """A copy without traceback and context. Code that keeps an error and raises it several times raises such copies.

    Each raise of one instance adds frames to its traceback, and these keep the locals of every caller alive. For the same reason
    a cause that is a KafkaError is copied too. Any other cause is kept with its traceback, which explains the error.
    """
    copied_error, cause = copy.copy(error), error.__cause__
    copied_error.__cause__ = fresh_copy(cause) if isinstance(cause, KafkaError) else cause
    copied_error.__suppress_context__ = True
    return copied_error


def copy_to_keep(error: _Error) -> _Error:
    """The error itself if it has never been raised, otherwise a fresh copy."""
    return error if error.__traceback__ is None else fresh_copy(error)


class ConfigError(KafkaError):
    """An option is missing, malformed, or contradicts another."""

    condition = "KAFKA_INVALID_CONFIG"


class SchemaError(KafkaError):
    """A column is missing or has a type that cannot be written, or a schema of keys or values cannot be used."""

    condition = "KAFKA_INVALID_SCHEMA"


NOT_ENCODABLE = "KAFKA_ROW_NOT_ENCODABLE"  # the condition of an InvalidRecordError, if a key or value does not fit its schema


class InvalidRecordError(KafkaError):
    """One row cannot be sent as it is (null topic, partition out of range).

    `row`: the row's position among the rows of the call. None: no row is to blame, or it is not known which.
    """

    condition = "KAFKA_INVALID_RECORD"

    def __init__(self, message: str, *, row: int | None = None, condition: str | None = None) -> None:
        super().__init__(message, condition=condition)
        self.row = row


class RecordTooLargeError(InvalidRecordError):
    """A row is larger than a limit of the client or of the broker; the message names the limit."""

    condition = "KAFKA_RECORD_TOO_LARGE"


class KafkaTimeoutError(KafkaError):
    """A wait has reached its time limit. What the caller waited for may still happen."""

    condition = "KAFKA_TIMEOUT"


class ProducerClosedError(KafkaError):
    """The producer was used after close(), or was closed while rows were waiting to be sent."""

    condition = "KAFKA_PRODUCER_CLOSED"


def closed_error(ended_by: KafkaError | None, message: str) -> KafkaError:
    """The error for using a producer that has ended: a copy of the error that ended it, or `message` if it was closed."""
    return ProducerClosedError(message) if ended_by is None else fresh_copy(ended_by)


class IllegalStateError(KafkaError):
    """A call that is not possible in this state, thread or process. The call has changed nothing; the message says why."""

    condition = "KAFKA_ILLEGAL_STATE"


class AbortableTransactionError(KafkaError):
    """The transaction has failed: call abort_transaction(), then go on with the next one."""

    condition = "KAFKA_TRANSACTION_ABORTABLE"


class TransactionAbortedError(KafkaError):
    """The error of rows that had not been sent when their transaction was aborted (KIP-654)."""

    condition = "KAFKA_TRANSACTION_ABORTED"


class FatalProducerError(KafkaError):
    """The producer can no longer be used: close it."""

    condition = "KAFKA_FATAL"


class ProducerFencedError(FatalProducerError):
    """Another producer with the same transactional.id has taken over."""

    condition = "KAFKA_PRODUCER_FENCED"


class TransactionTimeoutError(KafkaTimeoutError):
    """A call of a transactional method timed out, but continues in the background. Make the same call again to wait for it."""

    condition = "KAFKA_TRANSACTION_TIMEOUT"


class NetworkError(KafkaError):
    """No broker answered, or a connection was lost. A later call may succeed."""

    condition = "KAFKA_NETWORK"


class AuthenticationError(NetworkError):
    """Client and broker do not accept each other's credentials or certificates, or only one of them uses TLS."""

    condition = "KAFKA_AUTHENTICATION_FAILED"


class ProtocolError(KafkaError):
    """The bytes of a response are malformed, for example because the server is not a Kafka broker."""

    condition = "KAFKA_PROTOCOL"


class ResponseTooLargeError(ProtocolError):
    """A broker's response is larger than this client accepts from that API. The same request would get it again."""

    condition = "KAFKA_RESPONSE_TOO_LARGE"


class UnsupportedVersionError(ProtocolError):
    """Client and broker have no version of a request in common, or the common version lacks a field that is needed."""

    condition = "KAFKA_UNSUPPORTED_VERSION"


class BrokerError(KafkaError):
    """A broker has answered with an error. `error_code` is Kafka's number of the error; the condition is KAFKA_ and its name."""

    condition = "KAFKA_BROKER_ERROR"

    def __init__(self, message: str, *, error_code: int, condition: str | None = None) -> None:
        super().__init__(message, condition=condition)
        self.error_code = error_code


class AuthorizationError(BrokerError):
    """The user has no permission for what the condition names, as in KAFKA_TOPIC_AUTHORIZATION_FAILED."""


class DeliveryError(KafkaError):
    """Rows of a write were not acknowledged; the message contains the first failure."""

    condition = "KAFKA_DELIVERY_FAILED"
