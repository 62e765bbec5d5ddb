"""Makes the parts of a KafkaProducer from its configuration, and connects them.

Runs once, on the thread that creates the producer, before the Sender thread exists. KafkaProducer uses the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.column_sender import ColumnSender
from spark_kafka_sink.producer.hand_overs import HandOvers
from spark_kafka_sink.producer.idempotence.idempotent_sequencer import IdempotentSequencer
from spark_kafka_sink.producer.idempotence.sequencer import Sequencer
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.plugins.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.producer.sender.sender_failures import SenderFailures
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.size_limits import SizeLimits
from spark_kafka_sink.producer.tables.table_sender import TableSender
from spark_kafka_sink.producer.transactions.caller_side import CallerSide
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager

if TYPE_CHECKING:
    from spark_kafka_sink.producer.avro.avro_serializers import AvroSerializers


class ProducerParts:
    """The parts of one producer, connected. No thread runs yet. Raises ConfigError as NetworkClient and ProducerPlugins do.

    Args:
        cleanup: gets the `close` of each part that must be closed, as soon as the part exists.
        may_wait: as KafkaProducer._may_wait.
        largest_record: as in KafkaProducer.
        avro: encodes keys, values or both; None without Avro serializers.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        cleanup: ExitStack,
        may_wait: Callable[[], bool],
        largest_record: int,
        avro: AvroSerializers | None,
    ) -> None:
        metrics = self.metrics = ProducerMetrics(config, clock)
        metadata = self.metadata = Metadata(config, clock)
        client = self._client = NetworkClient(config, metadata, clock, metrics=metrics.network)
        cleanup.callback(client.close)
        sequencer = self.sequencer = sequencer_of(config, client, clock)
        accumulator = RecordAccumulator(config, clock, client.wakeup, sequencer, Random(), self.rows_unbatched)
        self.accumulator = accumulator
        size_limits = self.size_limits = SizeLimits(config, largest_record, accumulator.pool.total_memory)
        hand_overs = HandOvers(clock, self._handle_interrupt)
        metadata_wait = self.metadata_wait = MetadataWait(metadata, client.wakeup, metrics, clock, config.max_block_ms)
        metrics.add_gauges(accumulator.pool, metadata, client.in_flight_request_count)
        plugins = self.plugins = ProducerPlugins(config, avro)  # users' code runs last, when nothing else can fail
        cleanup.callback(plugins.close)
        columns = self.columns = ColumnSender(
            size_limits, clock, metadata_wait, accumulator, hand_overs, plugins, metrics, self._encode_topic
        )
        self.tables = TableSender(columns, plugins.interceptors, hand_overs, clock, sequencer.handle_failed_row)
        gatherer = self.gatherer = RecordGatherer(
            config, clock, accumulator, hand_overs, columns.send_gathered, may_wait, plugins.interceptors
        )
        failures = SenderFailures(config, hand_overs)
        parts = SenderParts(config, client, metadata, accumulator, sequencer, metrics, failures, clock)
        self.sender = Sender(parts, gatherer)
        self.caller_side: CallerSide | None = None
        if isinstance(sequencer, TransactionManager):
            for_errors = (metrics.transaction_called, metadata.last_trouble)
            self.caller_side = CallerSide(sequencer, gatherer.encode_all, client.wakeup, clock, config.max_block_ms, *for_errors)

    def rows_unbatched(self, topic: str, row_count: int, error: KafkaError) -> None:
        """Count rows that got into no batch. The transaction that they belong to, if any, cannot be committed any more."""
        self.metrics.records_failed(topic, row_count)
        self.sequencer.handle_failed_row(error)

    def _handle_interrupt(self) -> None:
        self.gatherer.disable_fast_path()
        self._client.wakeup()

    def _encode_topic(self, topic: str) -> None:
        self.gatherer.encode_topic(topic)


def sequencer_of(config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None = None) -> Sequencer:
    """Make the sequencer that the configuration needs."""
    if config.transactional_id is not None:
        return TransactionManager(config, client, clock, random)
    return IdempotentSequencer(config, client, clock, random) if config.enable_idempotence else Sequencer()
