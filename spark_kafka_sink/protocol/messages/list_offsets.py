"""ListOffsets: how far a partition's log goes, for readers of each isolation level (ListOffsetsRequest.json, KIP-98).

With timestamp END_OF_LOG a leader answers the last stable offset to READ_COMMITTED and the high watermark to READ_UNCOMMITTED:
the offset after the last record that these readers see.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import IGNORABLE, Int8, Int16, Int32, Int64, Message, Request, since

END_OF_LOG = -1  # in place of a timestamp
ANY_CONSUMER = -1  # in place of a replica's node id


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, since(4), IGNORABLE] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse(Message):
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Message):
    API_KEY: ClassVar = ApiKey.LIST_OFFSETS

    throttle_time_ms: Int32 = 0
    topics: tuple[ListOffsetsTopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition(Message):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, since(4), IGNORABLE] = -1
    timestamp: Int64 = END_OF_LOG


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic(Message):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    replica_id: Int32 = ANY_CONSUMER
    isolation_level: Int8
    topics: tuple[ListOffsetsTopic, ...]
