"""AddPartitionsToTxn: partitions that a transaction is about to write to (AddPartitionsToTxnRequest.json).

Clients send it up to version 3, if transaction.version is below 2; from version 4 on it is for brokers (KIP-890).
Kafka's schema names these fields V3AndBelow….
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32
    partition_error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult(Message):
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse(Message):
    API_KEY: ClassVar = ApiKey.ADD_PARTITIONS_TO_TXN

    throttle_time_ms: Int32 = 0
    results_by_topic: tuple[AddPartitionsToTxnTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopic(Message):
    name: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[AddPartitionsToTxnTopic, ...]
