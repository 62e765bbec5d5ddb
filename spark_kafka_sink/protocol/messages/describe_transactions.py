"""DescribeTransactions: producer, epoch, age and partitions of transactional ids, from their coordinator
(DescribeTransactionsRequest.json, KIP-664).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData(Message):
    topic: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponseState(Message):
    error_code: Int16 = 0
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0  # -1: no transaction has been started since InitProducerId
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: tuple[TopicData, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse(Message):
    API_KEY: ClassVar = ApiKey.DESCRIBE_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribeTransactionsResponseState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsRequest(Request[DescribeTransactionsResponse]):
    transactional_ids: tuple[str, ...]
