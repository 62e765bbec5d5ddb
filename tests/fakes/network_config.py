"""A producer's configuration for tests of the network, and the brokers' answers that most of them need."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def network_config(**options: object) -> ProducerConfig:
    """Options like `retry_backoff_ms=100`; two bootstrap servers by default."""
    mapping: dict[str, object] = {"bootstrap.servers": "boot1:9001,boot2:9002", "client.id": "test"}
    mapping |= {name.replace("_", "."): value for name, value in options.items()}
    return ProducerConfig.from_mapping(mapping)


def api_versions(ranges: Mapping[ApiKey, tuple[int, int]] | None = None) -> ApiVersionsResponse:
    """A broker with all versions that this client supports, except for `ranges`."""
    table = {key: (api.min_version, api.max_version) for key, api in API_TABLE.items()} | dict(ranges or {})
    keys = tuple(ApiVersion(api_key=key, min_version=first, max_version=last) for key, (first, last) in table.items())
    return ApiVersionsResponse(api_keys=keys)


def topic(name: str, leaders: list[int], *, epoch: int = 0, error_code: int = 0, **fields: object) -> MetadataResponseTopic:
    """One partition per leader; -1 for a partition without one."""
    partitions = tuple(
        MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch, error_code=0 if leader >= 0 else 5)
        for index, leader in enumerate(leaders)
    )
    return MetadataResponseTopic(name=name, partitions=partitions, error_code=error_code, **fields)


def metadata(*topics: MetadataResponseTopic, nodes: int = 2, **fields: object) -> MetadataResponse:
    """Brokers 0, 1, … are broker0:9010, broker1:9011, …"""
    brokers = tuple(MetadataResponseBroker(node_id=node, host=f"broker{node}", port=9010 + node) for node in range(nodes))
    return MetadataResponse(brokers=brokers, topics=topics, **({"cluster_id": "c"} | fields))
