"""Produce: record batches to the leaders of their partitions, one batch per partition and request.

`records` is a list of buffers that together are one RecordBatch v2; they are sent without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar
from uuid import UUID

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Records, Request, since, tagged, until

# Up to this version a transaction can write only to partitions that AddPartitionsToTxn has added before (KIP-890).
LAST_PRODUCE_VERSION_BEFORE_TV2 = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndexAndErrorMessage(Message):
    batch_index: Int32  # of the record, within its batch
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


NO_LEADER = LeaderIdAndEpoch()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponse(Message):
    index: Int32
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = -1  # -1: the topic keeps the producer's timestamps
    log_start_offset: Annotated[Int64, since(5), IGNORABLE] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], since(8), IGNORABLE] = ()
    error_message: Annotated[str | None, since(8), IGNORABLE] = None
    current_leader: Annotated[LeaderIdAndEpoch, tagged(0, since=10), IGNORABLE] = NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse(Message):
    name: Annotated[str, until(12), IGNORABLE] = ""
    topic_id: Annotated[UUID, since(13), IGNORABLE] = ZERO_UUID
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint(Message):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(Message):
    API_KEY: ClassVar = ApiKey.PRODUCE

    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], tagged(0, since=10), IGNORABLE] = ()  # of the current_leaders (KIP-951)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceData(Message):
    index: Int32
    records: Records = field(repr=False)  # rows must not be logged


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData(Message):
    """A topic's batches. Has name and id; the version decides which one is sent."""

    name: Annotated[str, until(12), IGNORABLE] = ""
    topic_id: Annotated[UUID, since(13), IGNORABLE] = ZERO_UUID
    partition_data: tuple[PartitionProduceData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request[ProduceResponse]):
    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]
