"""What callers of a transactional producer are told of a failure: the errors that they get, made of the error that came."""

from __future__ import annotations

from typing import TypeVar

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    FatalProducerError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.producer.transactions.sequence_numbers import ProducerIdAndEpoch

KafkaErrorT = TypeVar("KafkaErrorT", bound=KafkaError)


def abortable(error: KafkaError) -> AbortableTransactionError:
    text = f"The transaction cannot be committed: {_sentence(error)} Call abort_transaction(), then go on with the next one."
    return _caused(AbortableTransactionError(text, condition=error.condition), error)


def fatal(error: KafkaError) -> FatalProducerError:
    text = f"{_sentence(error)} This producer can no longer be used: close it."
    return _caused(FatalProducerError(text, condition=error.condition), error)


def maybe_committed(error: KafkaError) -> KafkaError:
    """Of a transaction whose end is refused after a commit that was not answered, or after it was prepared."""
    text = (
        f"{_sentence(error)} An earlier attempt of the commit, or another process, may have committed the transaction: whether it"
        " is committed is not known."
    )
    return _caused(KafkaError(text, condition=error.condition), error)


def fenced(where: str, transactional_id: str, identity: ProducerIdAndEpoch, timeout_ms: int) -> ProducerFencedError:
    return ProducerFencedError(
        f"{where}: another producer with transactional id {transactional_id!r} has been started since and has taken over;"
        f" this one (producer id {identity.producer_id}, epoch {identity.epoch}) can write nothing more. If both should live,"
        " give each its own transactional.id. Brokers say the same of a producer whose transaction they ended because it was open"
        f" for longer than transaction.timeout.ms={timeout_ms}."
    )


def aborted(cause: KafkaError | None) -> TransactionAbortedError:
    """What rows fail with that were not sent."""
    text = "The transaction was aborted before this row was sent"
    if cause is None:
        return TransactionAbortedError(text)
    return _caused(TransactionAbortedError(f"{text}, because of another failure: {cause.message}"), cause)


def _caused(error: KafkaErrorT, cause: KafkaError) -> KafkaErrorT:
    error.__cause__ = cause
    return error


def _sentence(error: KafkaError) -> str:
    return error.message if error.message.endswith((".", "!", "?")) else f"{error.message}."
