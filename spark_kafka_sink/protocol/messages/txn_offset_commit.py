"""TxnOffsetCommit: offsets of a group that take effect when the transaction commits (TxnOffsetCommitRequest.json).

Sent to the group's coordinator. Without a member, as here, the generation is -1 and the member id empty (from version 3 on;
earlier versions have no member). With version 5 the broker adds the group to the transaction (KIP-890): this version may be
sent only if the finalized feature transaction.version is 2 or higher. Older versions need AddOffsetsToTxn before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponseTopic
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Request, since

LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse(Message):
    API_KEY: ClassVar = ApiKey.TXN_OFFSET_COMMIT

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetCommitResponseTopic, ...]  # as in OffsetCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(2), IGNORABLE] = -1
    committed_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic(Message):
    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, since(3)] = -1
    member_id: Annotated[str, since(3)] = ""
    group_instance_id: Annotated[str | None, since(3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...]
