"""protocol/messages/: bytes written out by hand from the protocol page, and the rules of single messages."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import API_TABLE, NEVER
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.primitives import Buffer
from spark_kafka_sink.protocol.schema import Message

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def produce_request(records: list[Buffer]) -> ProduceRequest:
    data = PartitionProduceData(index=3, records=records)
    topic = TopicProduceData(name="ab", topic_id=TOPIC_ID, partition_data=(data,))
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(topic,))


def encoded(message: Message, version: int) -> str:
    return b"".join(message.encode(version)).hex()


def test_produce_request_v3_names_topics_with_plain_lengths() -> None:
    expected = "ffffffff000003e80000000100026162000000010000000300000004deadbeef"
    assert encoded(produce_request([b"\xde\xad", b"\xbe\xef"]), 3) == expected


def test_produce_request_v12_is_compact() -> None:
    expected = "00ffff000003e802036162020000000305deadbeef000000"
    assert encoded(produce_request([b"\xde\xad", b"\xbe\xef"]), 12) == expected


def test_produce_request_v13_names_topics_by_id() -> None:
    expected = "00ffff000003e802" + TOPIC_ID.hex + "020000000305deadbeef000000"
    assert encoded(produce_request([b"\xde\xad", b"\xbe\xef"]), 13) == expected


def test_record_batches_are_not_copied() -> None:
    records: list[Buffer] = [memoryview(b"first"), memoryview(b"second")]
    buffers = produce_request(records).encode(12)
    assert [buffer for buffer in buffers if buffer is records[0] or buffer is records[1]] == records


def test_rows_are_not_part_of_a_repr() -> None:
    assert "secret" not in repr(produce_request([b"secret"]))


def test_produce_response_carries_leader_hints_and_record_errors() -> None:
    part = PartitionProduceResponse(
        index=3,
        error_code=87,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=0,
        record_errors=(BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no"),),
        error_message="bad",
        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=7),
    )
    response = ProduceResponse(
        responses=(TopicProduceResponse(name="ab", partition_responses=(part,)),),
        throttle_time_ms=5,
        node_endpoints=(NodeEndpoint(node_id=1, host="h", port=9092),),
    )
    expected = (
        "02" "03" "6162" "02"
        "00000003" "0057" "ffffffffffffffff" "ffffffffffffffff" "0000000000000000"
        "02" "00000002" "03" "6e6f" "00"
        "04" "626164"
        "01" "00" "09" "00000001" "00000007" "00"
        "00"
        "00000005"
        "01" "00" "0d" "02" "00000001" "02" "68" "00002384" "00" "00"
    )  # fmt: skip
    assert encoded(response, 10) == expected
    assert ProduceResponse.decode(10, bytes.fromhex(expected)) == response


def test_metadata_request_tells_all_topics_from_no_topics() -> None:
    assert encoded(MetadataRequest(topics=None), 4) == "ffffffff01"
    assert encoded(MetadataRequest(topics=()), 4) == "0000000001"
    assert encoded(MetadataRequest(topics=(MetadataRequestTopic(name="a"),), allow_auto_topic_creation=False), 12) == (
        "02" + "00" * 16 + "026100000000"
    )


def test_init_producer_id_cannot_resume_an_epoch_on_an_old_broker() -> None:
    request = InitProducerIdRequest(transaction_timeout_ms=1, producer_id=5, producer_epoch=1)
    with pytest.raises(UnsupportedVersionError, match="producer_id"):
        request.encode(2)
    assert encoded(request, 3) == "00000000010000000000000005000100"


def test_api_versions_request_introduces_us_from_version_3() -> None:
    request = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    assert encoded(request, 0) == ""
    assert encoded(request, 3) == "026e023100"


def test_a_refusal_of_our_version_names_the_brokers() -> None:
    """Kafka's own: in version 0."""
    expected = (ApiVersion(api_key=18, min_version=0, max_version=3),)
    body = bytes.fromhex("002300000001001200000003")
    assert ApiVersionsResponse.decode(4, body) == ApiVersionsResponse(error_code=35, api_keys=expected)


@pytest.mark.parametrize(
    "body",
    [
        "0023010012000000020000000000",  # librdkafka's mock broker: in no version at all
        "0023",
    ],
)
def test_a_refusal_of_our_version_is_understood_whatever_follows_it(body: str) -> None:
    assert ApiVersionsResponse.decode(4, bytes.fromhex(body)) == ApiVersionsResponse(error_code=35)


def test_an_answer_in_version_0_is_read_in_full() -> None:
    body = bytes.fromhex("000000000001001200000003")
    expected = ApiVersionsResponse(api_keys=(ApiVersion(api_key=18, min_version=0, max_version=3),))
    assert ApiVersionsResponse.decode(0, body) == expected


def test_an_empty_answer_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        ApiVersionsResponse.decode(4, b"")


def test_produce_is_never_older_than_record_batch_v2() -> None:
    with pytest.raises(UnsupportedVersionError, match="3 to 13 of PRODUCE"):
        produce_request([b""]).encode(2)


def test_every_api_becomes_flexible_within_its_range() -> None:
    for api in API_TABLE.values():
        assert api.min_version < api.flexible_from <= api.max_version or api.flexible_from == NEVER
        assert api.min_version < api.throttles_from <= api.max_version or api.throttles_from == NEVER
