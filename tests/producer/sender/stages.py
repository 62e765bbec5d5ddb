"""Short words for tests of the Sender: stages with a producer id, what they have sent, and records to be gathered."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.producer.producer_record import RecordDetails
from spark_kafka_sink.producer.single_records.record_bundle import GatheredRecord, RecordFuture
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.producer.harness import TOPIC, Stage


def values(stage: Stage) -> list[list[bytes | None]]:
    """What was sent, batch by batch."""
    return [sent_batch.values for sent_batch in stage.sent_batches]


def identities(stage: Stage) -> list[tuple[int, int, int]]:
    """(producer id, epoch, base sequence) of each batch sent."""
    return [sent_batch.identity for sent_batch in stage.sent_batches]


def idempotent(**options: object) -> Stage:
    return Stage(enable_idempotence=True, **options)


def introduced_stage(**options: object) -> Stage:
    """An idempotent Stage whose partitions the brokers know: sequences go on at 1."""
    stage = idempotent(**options)
    stage.introduce()
    return stage


def asks_for_id(request: ClientRequest) -> bool:
    return isinstance(request.message, InitProducerIdRequest)


def gather(stage: Stage, value: bytes, callback: Callable[..., None] | None, partition: int = 0) -> RecordFuture:
    details = RecordDetails(partition=partition, timestamp=0)
    return stage.gatherer.add(TOPIC, stage.metadata.cluster(), GatheredRecord(None, value, callback, len(value), details))
