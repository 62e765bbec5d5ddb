"""Metadata: the brokers of the cluster, and the leader of each partition of the requested topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar
from uuid import UUID

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.permissions import AUTHORIZED_OPERATIONS_OMITTED
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Message, Request, between, since


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker(Message):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32  # -1: no leader
    leader_epoch: Annotated[Int32, since(7), IGNORABLE] = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: Annotated[tuple[Int32, ...], since(5), IGNORABLE] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: str | None
    topic_id: Annotated[UUID, since(10), IGNORABLE] = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: Annotated[Int32, since(8)] = AUTHORIZED_OPERATIONS_OMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(Message):
    API_KEY: ClassVar = ApiKey.METADATA

    throttle_time_ms: Int32 = 0
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: str | None = None
    controller_id: Int32 = -1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: Annotated[Int32, between(8, 10)] = AUTHORIZED_OPERATIONS_OMITTED
    error_code: Annotated[Int16, since(13), IGNORABLE] = 0  # REBOOTSTRAP_REQUIRED (KIP-1102)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic(Message):
    topic_id: Annotated[UUID, since(10), IGNORABLE] = ZERO_UUID
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Request[MetadataResponse]):
    topics: tuple[MetadataRequestTopic, ...] | None  # None: all topics; empty: the brokers only
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: Annotated[bool, between(8, 10)] = False
    include_topic_authorized_operations: Annotated[bool, since(8)] = False
