"""DescribeProducers: the producers that a partition's leader knows, and where their open transactions begin
(DescribeProducersRequest.json, KIP-664). It shows the producer id of a transaction that blocks read_committed consumers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState(Message):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1  # -1: no transaction is open


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse(Message):
    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse(Message):
    API_KEY: ClassVar = ApiKey.DESCRIBE_PRODUCERS

    throttle_time_ms: Int32 = 0
    topics: tuple[TopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest(Message):
    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest(Request[DescribeProducersResponse]):
    topics: tuple[TopicRequest, ...]
