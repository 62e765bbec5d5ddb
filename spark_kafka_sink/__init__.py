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
    from spark_kafka_sink.admin.leaders import ActiveProducer as ActiveProducer
    from spark_kafka_sink.admin.offsets import CommittedOffset as CommittedOffset
    from spark_kafka_sink.admin.transaction_client import TransactionClient as TransactionClient
    from spark_kafka_sink.admin.transaction_operations import EndOutcome as EndOutcome
    from spark_kafka_sink.admin.transaction_operations import ListedTransaction as ListedTransaction
    from spark_kafka_sink.admin.transaction_operations import TransactionDescription as TransactionDescription
    from spark_kafka_sink.admin.transaction_operations import TransactionEnd as TransactionEnd
    from spark_kafka_sink.admin.transaction_operations import TransactionState as TransactionState
    from spark_kafka_sink.config.format_options import SchemaUse as SchemaUse
    from spark_kafka_sink.config.sink_options import exactly_once_options as exactly_once_options
    from spark_kafka_sink.errors import AbortableTransactionError as AbortableTransactionError
    from spark_kafka_sink.errors import AuthenticationError as AuthenticationError
    from spark_kafka_sink.errors import AuthorizationError as AuthorizationError
    from spark_kafka_sink.errors import BrokerError as BrokerError
    from spark_kafka_sink.errors import ConfigError as ConfigError
    from spark_kafka_sink.errors import DeliveryError as DeliveryError
    from spark_kafka_sink.errors import FatalProducerError as FatalProducerError
    from spark_kafka_sink.errors import IllegalStateError as IllegalStateError
    from spark_kafka_sink.errors import InvalidRecordError as InvalidRecordError
    from spark_kafka_sink.errors import KafkaError as KafkaError
    from spark_kafka_sink.errors import KafkaTimeoutError as KafkaTimeoutError
    from spark_kafka_sink.errors import NetworkError as NetworkError
    from spark_kafka_sink.errors import ProducerClosedError as ProducerClosedError
    from spark_kafka_sink.errors import ProducerFencedError as ProducerFencedError
    from spark_kafka_sink.errors import ProtocolError as ProtocolError
    from spark_kafka_sink.errors import RecordTooLargeError as RecordTooLargeError
    from spark_kafka_sink.errors import ResponseTooLargeError as ResponseTooLargeError
    from spark_kafka_sink.errors import SchemaError as SchemaError
    from spark_kafka_sink.errors import TransactionAbortedError as TransactionAbortedError
    from spark_kafka_sink.errors import TransactionTimeoutError as TransactionTimeoutError
    from spark_kafka_sink.errors import UnsupportedVersionError as UnsupportedVersionError
    from spark_kafka_sink.legacy.errors import FailedToSendMessageError as FailedToSendMessageError
    from spark_kafka_sink.legacy.errors import QueueFullError as QueueFullError
    from spark_kafka_sink.network.cluster import Cluster as Cluster
    from spark_kafka_sink.network.cluster import Node as Node
    from spark_kafka_sink.network.cluster import PartitionInfo as PartitionInfo
    from spark_kafka_sink.producer.accumulator.delivery import Delivery as Delivery
    from spark_kafka_sink.producer.accumulator.delivery import OffsetRange as OffsetRange
    from spark_kafka_sink.producer.accumulator.delivery import RowFailure as RowFailure
    from spark_kafka_sink.producer.plugins.interceptors import ProducerInterceptor as ProducerInterceptor
    from spark_kafka_sink.producer.plugins.interceptors import RecordInterceptor as RecordInterceptor
    from spark_kafka_sink.producer.plugins.partitioner import Partitioner as Partitioner
    from spark_kafka_sink.producer.plugins.partitioner import RecordPartitioner as RecordPartitioner
    from spark_kafka_sink.producer.producer import KafkaProducer as KafkaProducer
    from spark_kafka_sink.producer.producer_record import BatchMetadata as BatchMetadata
    from spark_kafka_sink.producer.producer_record import ProducerColumns as ProducerColumns
    from spark_kafka_sink.producer.producer_record import ProducerRecord as ProducerRecord
    from spark_kafka_sink.producer.producer_record import RecordMetadata as RecordMetadata
    from spark_kafka_sink.producer.serializers import SerializationError as SerializationError
    from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture as RecordFuture
    from spark_kafka_sink.producer.tables.table_batches import ArrowTable as ArrowTable
    from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata as ConsumerGroupMetadata
    from spark_kafka_sink.producer.txn_requests.group_offsets import OffsetAndMetadata as OffsetAndMetadata
    from spark_kafka_sink.protocol.producer_identity import PreparedTransaction as PreparedTransaction
    from spark_kafka_sink.protocol.producer_identity import ProducerIdentity as ProducerIdentity
    from spark_kafka_sink.protocol.topic_partition import TopicPartition as TopicPartition
    from spark_kafka_sink.records.murmur2 import partition_for_keys as partition_for_keys
    from spark_kafka_sink.sink.commit_message import WrittenRange as WrittenRange
    from spark_kafka_sink.sink.commit_summary import CommitSummary as CommitSummary
    from spark_kafka_sink.sink.commit_summary import VersionSummary as VersionSummary
    from spark_kafka_sink.sink.datasource import KafkaDataSource as KafkaDataSource

__version__ = "0.1.0"  # pyproject.toml reads it from here

__all__ = [
    "AbortableTransactionError",
    "ActiveProducer",
    "ArrowTable",
    "AuthenticationError",
    "AuthorizationError",
    "BatchMetadata",
    "BrokerError",
    "Cluster",
    "CommitSummary",
    "CommittedOffset",
    "ConfigError",
    "ConsumerGroupMetadata",
    "Delivery",
    "DeliveryError",
    "EndOutcome",
    "FailedToSendMessageError",
    "FatalProducerError",
    "IllegalStateError",
    "InvalidRecordError",
    "KafkaDataSource",
    "KafkaError",
    "KafkaProducer",
    "KafkaTimeoutError",
    "ListedTransaction",
    "NetworkError",
    "Node",
    "OffsetAndMetadata",
    "OffsetRange",
    "PartitionInfo",
    "Partitioner",
    "PreparedTransaction",
    "ProducerClosedError",
    "ProducerColumns",
    "ProducerFencedError",
    "ProducerIdentity",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProtocolError",
    "QueueFullError",
    "RecordFuture",
    "RecordInterceptor",
    "RecordMetadata",
    "RecordPartitioner",
    "RecordTooLargeError",
    "ResponseTooLargeError",
    "RowFailure",
    "SchemaError",
    "SchemaUse",
    "SerializationError",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionClient",
    "TransactionDescription",
    "TransactionEnd",
    "TransactionState",
    "TransactionTimeoutError",
    "UnsupportedVersionError",
    "VersionSummary",
    "WrittenRange",
    "__version__",
    "exactly_once_options",
    "partition_for_keys",
]

_HOMES = dict.fromkeys(__all__, "spark_kafka_sink.errors") | {
    "ActiveProducer": "spark_kafka_sink.admin.leaders",
    "ArrowTable": "spark_kafka_sink.producer.tables.table_batches",
    "BatchMetadata": "spark_kafka_sink.producer.producer_record",
    "Cluster": "spark_kafka_sink.network.cluster",
    "CommitSummary": "spark_kafka_sink.sink.commit_summary",
    "CommittedOffset": "spark_kafka_sink.admin.offsets",
    "ConsumerGroupMetadata": "spark_kafka_sink.producer.txn_requests.group_offsets",
    "Delivery": "spark_kafka_sink.producer.accumulator.delivery",
    "EndOutcome": "spark_kafka_sink.admin.transaction_operations",
    "FailedToSendMessageError": "spark_kafka_sink.legacy.errors",
    "KafkaDataSource": "spark_kafka_sink.sink.datasource",
    "KafkaProducer": "spark_kafka_sink.producer.producer",
    "ListedTransaction": "spark_kafka_sink.admin.transaction_operations",
    "Node": "spark_kafka_sink.network.cluster",
    "OffsetAndMetadata": "spark_kafka_sink.producer.txn_requests.group_offsets",
    "OffsetRange": "spark_kafka_sink.producer.accumulator.delivery",
    "PartitionInfo": "spark_kafka_sink.network.cluster",
    "Partitioner": "spark_kafka_sink.producer.plugins.partitioner",
    "PreparedTransaction": "spark_kafka_sink.protocol.producer_identity",
    "ProducerColumns": "spark_kafka_sink.producer.producer_record",
    "ProducerIdentity": "spark_kafka_sink.protocol.producer_identity",
    "ProducerInterceptor": "spark_kafka_sink.producer.plugins.interceptors",
    "ProducerRecord": "spark_kafka_sink.producer.producer_record",
    "QueueFullError": "spark_kafka_sink.legacy.errors",
    "RecordFuture": "spark_kafka_sink.producer.single_records.record_bundle",
    "RecordInterceptor": "spark_kafka_sink.producer.plugins.interceptors",
    "RecordMetadata": "spark_kafka_sink.producer.producer_record",
    "RecordPartitioner": "spark_kafka_sink.producer.plugins.partitioner",
    "RowFailure": "spark_kafka_sink.producer.accumulator.delivery",
    "SchemaUse": "spark_kafka_sink.config.format_options",
    "SerializationError": "spark_kafka_sink.producer.serializers",
    "TopicPartition": "spark_kafka_sink.protocol.topic_partition",
    "TransactionClient": "spark_kafka_sink.admin.transaction_client",
    "TransactionDescription": "spark_kafka_sink.admin.transaction_operations",
    "TransactionEnd": "spark_kafka_sink.admin.transaction_operations",
    "TransactionState": "spark_kafka_sink.admin.transaction_operations",
    "VersionSummary": "spark_kafka_sink.sink.commit_summary",
    "WrittenRange": "spark_kafka_sink.sink.commit_message",
    "exactly_once_options": "spark_kafka_sink.config.sink_options",
    "partition_for_keys": "spark_kafka_sink.records.murmur2",
}


if not TYPE_CHECKING:  # a type checker that saw it would accept misspelt names

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
