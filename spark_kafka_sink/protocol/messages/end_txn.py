"""EndTxn: commits or aborts a transaction (EndTxnRequest.json).

Version 5 means that the client uses transaction version 2 (KIP-890). The coordinator bumps the epoch at the end of each
transaction and answers with the producer id and epoch to use next. Version 5 may be sent only if the finalized feature
transaction.version is 2 or higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Request, since

LAST_END_TXN_VERSION_BEFORE_TV2 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResponse(Message):
    API_KEY: ClassVar = ApiKey.END_TXN

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, since(5), IGNORABLE] = -1  # a new id when the epochs of the old one are exhausted
    producer_epoch: Annotated[Int16, since(5), IGNORABLE] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest(Request[EndTxnResponse]):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool  # false: abort
