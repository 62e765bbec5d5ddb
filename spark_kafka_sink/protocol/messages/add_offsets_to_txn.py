"""AddOffsetsToTxn: a group whose offsets a transaction is about to commit (AddOffsetsToTxnRequest.json).

Sent to the transaction's coordinator if transaction.version is below 2; TxnOffsetCommit follows, to the group's coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnResponse(Message):
    API_KEY: ClassVar = ApiKey.ADD_OFFSETS_TO_TXN

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str
