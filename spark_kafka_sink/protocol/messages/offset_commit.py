"""OffsetCommit: offsets of a group, outside of any transaction (OffsetCommitRequest.json).

Without a member, as here, the generation is -1 and the member id empty; the coordinator accepts such a request while the group
has no members. All offsets of one request are written in one batch: they become visible together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Request, between, since


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic(Message):
    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(Message):
    API_KEY: ClassVar = ApiKey.OFFSET_COMMIT

    throttle_time_ms: Annotated[Int32, since(3), IGNORABLE] = 0
    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(6), IGNORABLE] = -1
    committed_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic(Message):
    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    group_id: str
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, since(7)] = None
    retention_time_ms: Annotated[Int64, between(2, 4), IGNORABLE] = -1  # -1: offsets.retention.minutes of the broker
    topics: tuple[OffsetCommitRequestTopic, ...]
