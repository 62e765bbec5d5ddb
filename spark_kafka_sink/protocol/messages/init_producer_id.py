"""InitProducerId: the producer id and epoch by which brokers recognize a producer's retries (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request, since


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse(Message):
    API_KEY: ClassVar = ApiKey.INIT_PRODUCER_ID

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    transactional_id: str | None = None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, since(3)] = -1  # with the epoch: continue as this producer after an epoch error (KIP-360)
    producer_epoch: Annotated[Int16, since(3)] = -1
