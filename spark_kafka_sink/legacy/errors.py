"""The errors that only the old producer raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_kafka_sink.errors import DeliveryError, KafkaError


class FailedToSendMessageError(DeliveryError):
    """Some messages, `messages`, are not acknowledged after the last retry. `causes`: the error of each topic-partition, or of
    each topic for which no partition could be chosen."""

    condition = "KAFKA_FAILED_TO_SEND_MESSAGE"

    def __init__(self, message: str, *, messages: Sequence[Any], causes: Mapping[str, KafkaError]) -> None:
        super().__init__(message)
        self.messages = tuple(messages)
        self.causes = dict(causes)


class QueueFullError(KafkaError):
    """The old producer's queue is full. The first `queued` messages of the call are in the queue and will be sent."""

    condition = "KAFKA_QUEUE_FULL"

    def __init__(self, message: str, *, queued: int) -> None:
        super().__init__(message)
        self.queued = queued
