"""pykafka-sink: writes Spark DataFrames and streams, or Arrow columns, to Apache Kafka.

    from spark_kafka_sink import KafkaDataSource     # with Spark: spark.dataSource.register(KafkaDataSource)
    from spark_kafka_sink import exactly_once_options  # for df.write, as in foreachBatch
    from spark_kafka_sink import KafkaProducer       # without Spark; also the types that it takes and returns, and every error

A name is imported when it is first accessed, so that the producer works without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_kafka_sink.config.sink_options import exactly_once_options as exactly_once_options
    from spark_kafka_sink.errors import AbortableTransactionError as AbortableTransactionError
    from spark_kafka_sink.errors import AuthenticationError as AuthenticationError
    from spark_kafka_sink.errors import AuthorizationError as AuthorizationError
    from spark_kafka_sink.errors import BrokerError as BrokerError
    from spark_kafka_sink.errors import ConfigError as ConfigError
    from spark_kafka_sink.errors import DeliveryError as DeliveryError
    from spark_kafka_sink.errors import FailedToSendMessageError as FailedToSendMessageError
    from spark_kafka_sink.errors import FatalProducerError as FatalProducerError
    from spark_kafka_sink.errors import IllegalStateError as IllegalStateError
    from spark_kafka_sink.errors import InvalidRecordError as InvalidRecordError
    from spark_kafka_sink.errors import KafkaError as KafkaError
    from spark_kafka_sink.errors import KafkaTimeoutError as KafkaTimeoutError
    from spark_kafka_sink.errors import NetworkError as NetworkError
    from spark_kafka_sink.errors import ProducerClosedError as ProducerClosedError
    from spark_kafka_sink.errors import ProducerFencedError as ProducerFencedError
    from spark_kafka_sink.errors import ProtocolError as ProtocolError
    from spark_kafka_sink.errors import QueueFullError as QueueFullError
    from spark_kafka_sink.errors import RecordTooLargeError as RecordTooLargeError
    from spark_kafka_sink.errors import ResponseTooLargeError as ResponseTooLargeError
    from spark_kafka_sink.errors import SchemaError as SchemaError
    from spark_kafka_sink.errors import TransactionAbortedError as TransactionAbortedError
    from spark_kafka_sink.errors import TransactionTimeoutError as TransactionTimeoutError
    from spark_kafka_sink.errors import UnsupportedVersionError as UnsupportedVersionError
    from spark_kafka_sink.producer.accumulator.delivery import Delivery as Delivery
    from spark_kafka_sink.producer.producer import KafkaProducer as KafkaProducer
    from spark_kafka_sink.producer.producer_record import ProducerRecord as ProducerRecord
    from spark_kafka_sink.producer.producer_record import RecordMetadata as RecordMetadata
    from spark_kafka_sink.producer.record_chunk import RecordFuture as RecordFuture
    from spark_kafka_sink.producer.serializers import SerializationError as SerializationError
    from spark_kafka_sink.producer.table_batches import ArrowTable as ArrowTable
    from spark_kafka_sink.producer.transactions.transactional_call import ConsumerGroupMetadata as ConsumerGroupMetadata
    from spark_kafka_sink.producer.transactions.transactional_call import OffsetAndMetadata as OffsetAndMetadata
    from spark_kafka_sink.protocol.topic_partition import TopicPartition as TopicPartition
    from spark_kafka_sink.sink.datasource import KafkaDataSource as KafkaDataSource

__version__ = "0.1.0"  # pyproject.toml reads it from here

__all__ = [
    "AbortableTransactionError",
    "ArrowTable",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "ConfigError",
    "ConsumerGroupMetadata",
    "Delivery",
    "DeliveryError",
    "FailedToSendMessageError",
    "FatalProducerError",
    "IllegalStateError",
    "InvalidRecordError",
    "KafkaDataSource",
    "KafkaError",
    "KafkaProducer",
    "KafkaTimeoutError",
    "NetworkError",
    "OffsetAndMetadata",
    "ProducerClosedError",
    "ProducerFencedError",
    "ProducerRecord",
    "ProtocolError",
    "QueueFullError",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "ResponseTooLargeError",
    "SchemaError",
    "SerializationError",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionTimeoutError",
    "UnsupportedVersionError",
    "__version__",
    "exactly_once_options",
]

_HOMES = dict.fromkeys(__all__, "spark_kafka_sink.errors") | {
    "ArrowTable": "spark_kafka_sink.producer.table_batches",
    "ConsumerGroupMetadata": "spark_kafka_sink.producer.transactions.transactional_call",
    "Delivery": "spark_kafka_sink.producer.accumulator.delivery",
    "KafkaDataSource": "spark_kafka_sink.sink.datasource",
    "KafkaProducer": "spark_kafka_sink.producer.producer",
    "OffsetAndMetadata": "spark_kafka_sink.producer.transactions.transactional_call",
    "ProducerRecord": "spark_kafka_sink.producer.producer_record",
    "RecordFuture": "spark_kafka_sink.producer.record_chunk",
    "RecordMetadata": "spark_kafka_sink.producer.producer_record",
    "SerializationError": "spark_kafka_sink.producer.serializers",
    "TopicPartition": "spark_kafka_sink.protocol.topic_partition",
    "exactly_once_options": "spark_kafka_sink.config.sink_options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
