"""What the Sender's loop, its requests, the outcomes of batches and their expiry all work with."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.idempotence.sequencer import Sequencer
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.sender.sender_failures import SenderFailures


class SenderParts(NamedTuple):
    """The parts of one producer that the classes of the Sender share."""

    config: ProducerConfig
    client: KafkaClient
    metadata: Metadata
    accumulator: RecordAccumulator
    sequencer: Sequencer
    metrics: ProducerMetrics
    failures: SenderFailures
    clock: Clock
