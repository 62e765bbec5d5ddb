"""Answers with any values, as hypothesis makes them, and text that must not reach a log as it is."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.network_config import api_versions, metadata, topic

KIB, MIB = 1024, 1024 * 1024
int16s, int32s, int64s = (st.one_of(st.integers(-3, 5), st.integers(-(1 << bits), (1 << bits) - 1)) for bits in (15, 31, 63))
names = st.one_of(st.sampled_from(["orders", "", "other"]), st.text(max_size=5))
uuids = st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2)])


def several(elements: st.SearchStrategy[Any], at_most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=at_most).map(tuple)


nodes = st.integers(-2, 3)
partitions = st.builds(
    MetadataResponsePartition,
    error_code=int16s,
    partition_index=int32s,
    leader_id=nodes,
    leader_epoch=int32s,
    replica_nodes=several(nodes),
    isr_nodes=several(nodes),
)
topics = st.builds(
    MetadataResponseTopic, error_code=int16s, name=st.one_of(st.none(), names), topic_id=uuids, partitions=several(partitions)
)
answers: dict[ApiKey, st.SearchStrategy[Message]] = {
    ApiKey.API_VERSIONS: st.one_of(
        st.just(api_versions()),
        st.builds(
            ApiVersionsResponse,
            error_code=int16s,
            api_keys=several(st.builds(ApiVersion, api_key=int16s, min_version=int16s, max_version=int16s)),
            throttle_time_ms=int32s,
        ),
    ),
    ApiKey.METADATA: st.one_of(
        st.just(metadata(topic("orders", [0, 1]))),
        st.builds(
            MetadataResponse,
            brokers=several(st.builds(MetadataResponseBroker, node_id=nodes, host=names, port=int32s)),
            topics=several(topics),
            cluster_id=st.sampled_from([None, "c"]),  # another one would rightly be the end
            controller_id=int32s,
            throttle_time_ms=int32s,
            error_code=st.sampled_from([0, 0, 129, -1, 77]),
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: st.builds(
        InitProducerIdResponse, error_code=int16s, producer_id=int64s, producer_epoch=int16s, throttle_time_ms=int32s
    ),
    ApiKey.PRODUCE: st.builds(
        ProduceResponse,
        responses=several(
            st.builds(
                TopicProduceResponse,
                topic_id=uuids,
                partition_responses=several(
                    st.builds(
                        PartitionProduceResponse,
                        index=int32s,
                        error_code=int16s,
                        base_offset=int64s,
                        record_errors=several(st.builds(BatchIndexAndErrorMessage, batch_index=int32s)),
                        current_leader=st.builds(LeaderIdAndEpoch, leader_id=nodes, leader_epoch=int32s),
                    )
                ),
            )
        ),
        throttle_time_ms=int32s,
        node_endpoints=several(st.builds(NodeEndpoint, node_id=nodes, host=names, port=int32s)),
    ),
    ApiKey.SASL_HANDSHAKE: st.builds(SaslHandshakeResponse, error_code=int16s, mechanisms=several(names)),
    ApiKey.SASL_AUTHENTICATE: st.builds(
        SaslAuthenticateResponse,
        error_code=int16s,
        error_message=st.one_of(st.none(), names),
        auth_bytes=st.binary(max_size=10),
        session_lifetime_ms=int64s,
    ),
}
FORGED = "x\n2026-01-01 00:00:00 ERROR forged\u202e\x1b[31m" + "y" * 100_000


def assert_harmless(text: str) -> None:
    assert "forged" in text  # it is told
    assert text.isprintable(), text[:500]
    assert len(text) < 2_000
