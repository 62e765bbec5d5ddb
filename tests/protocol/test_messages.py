"""protocol/messages/: bytes written out by hand from the protocol page, and the rules of single messages."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.errors import ProtocolError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import API_TABLE, NEVER
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    KeyType,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
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


def test_one_coordinator_can_be_asked_for_before_the_version_is_known() -> None:
    request = FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, ["ab"])
    assert encoded(request, 1) == "00026162" + "01"
    assert encoded(request, 3) == "036162" + "01" + "00"
    assert encoded(request, 5) == "01" + "02" + "036162" + "00"


def test_several_coordinators_are_never_cut_down_to_one() -> None:
    request = FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, ["a", "b"])
    assert encoded(request, 4) == "01" + "03" + "0261" + "0262" + "00"
    with pytest.raises(UnsupportedVersionError, match="FindCoordinatorRequest v3 cannot carry"):
        request.encode(3)
    with pytest.raises(UnsupportedVersionError, match="FindCoordinatorRequest v3 cannot carry"):
        FindCoordinatorRequest(coordinator_keys=("a",)).encode(3)
    with pytest.raises(UnsupportedVersionError, match="FindCoordinatorRequest v4 cannot carry"):
        FindCoordinatorRequest(key="a").encode(4)


def test_a_coordinator_is_read_from_either_form_of_the_answer() -> None:
    expected = Coordinator(key="k", node_id=1, host="h", port=9092)
    old = FindCoordinatorResponse.decode(3, bytes.fromhex("00000000" + "0000" + "00" + "00000001" + "0268" + "00002384" + "00"))
    assert old.answer_for("k", 3) == expected
    new = FindCoordinatorResponse.decode(
        4, bytes.fromhex("00000000" + "02" + "026b" + "00000001" + "0268" + "00002384" + "0000" + "00" + "00" + "00")
    )
    assert new.answer_for("k", 4) == expected
    assert new.answer_for("another", 4) is None


def test_the_offsets_of_one_group_can_be_asked_for_before_the_version_is_known() -> None:
    request = OffsetFetchRequest.for_groups({"g": None})
    assert encoded(request, 2) == "000167" + "ffffffff"
    assert encoded(request, 7) == "0267" + "00" + "00" + "00"
    assert encoded(request, 8) == "02" + "0267" + "00" + "00" + "00" + "00"
    assert encoded(request, 9) == "02" + "0267" + "00" + "ffffffff" + "00" + "00" + "00" + "00"


def test_the_offsets_of_several_groups_are_never_cut_down_to_one() -> None:
    topics = (OffsetFetchRequestTopic(name="t", partition_indexes=(0,)),)
    request = OffsetFetchRequest.for_groups({"g": None, "h": topics})
    assert request.groups == (
        OffsetFetchRequestGroup(group_id="g", topics=None),
        OffsetFetchRequestGroup(group_id="h", topics=topics),
    )
    assert encoded(request, 8).startswith("03" + "0267" + "00" + "00" + "0268" + "02" + "0274" + "02" + "00000000")
    for refused, version in (
        (request, 7),
        (OffsetFetchRequest(groups=request.groups[:1]), 7),
        (OffsetFetchRequest(group_id="g", topics=topics, groups=request.groups[:1]), 7),
        (OffsetFetchRequest(group_id="g", topics=None), 8),
    ):
        with pytest.raises(UnsupportedVersionError, match=f"OffsetFetchRequest v{version} cannot carry"):
            refused.encode(version)


def test_stable_offsets_cannot_be_required_of_an_old_broker() -> None:
    request = OffsetFetchRequest.for_groups({"g": None}, require_stable=True)
    with pytest.raises(UnsupportedVersionError, match="require_stable"):
        request.encode(6)
    assert encoded(request, 7) == "0267" + "00" + "01" + "00"


def test_offsets_are_read_from_either_form_of_the_answer() -> None:
    partition = OffsetFetchResponsePartition(partition_index=3, committed_offset=7, metadata="m")
    topics = (OffsetFetchResponseTopic(name="t", partitions=(partition,)),)
    expected = OffsetFetchResponseGroup(group_id="g", topics=topics)
    partition_bytes = "00000003" + "0000000000000007" + "ffffffff" + "026d" + "0000" + "00"
    old = OffsetFetchResponse.decode(7, bytes.fromhex("00000000" + "02" + "0274" + "02" + partition_bytes + "00" + "0000" + "00"))
    assert old.answer_for("g", 7) == expected
    new = OffsetFetchResponse.decode(
        8, bytes.fromhex("00000000" + "02" + "0267" + "02" + "0274" + "02" + partition_bytes + "00" + "0000" + "00" + "00")
    )
    assert new.answer_for("g", 8) == expected
    assert new.answer_for("another", 8) is None


def test_the_end_of_a_transaction_hands_out_the_next_epoch_from_version_5_on() -> None:
    request = EndTxnRequest(transactional_id="x", producer_id=5, producer_epoch=1, committed=True)
    assert encoded(request, 0) == "000178" + "0000000000000005" + "0001" + "01"
    assert encoded(request, 5) == "0278" + "0000000000000005" + "0001" + "01" + "00"
    response = EndTxnResponse(producer_id=5, producer_epoch=2)
    assert encoded(response, 4) == "00000000" + "0000" + "00"
    assert encoded(response, 5) == "00000000" + "0000" + "0000000000000005" + "0002" + "00"
    assert EndTxnResponse.decode(4, bytes.fromhex("00000000000000")).producer_epoch == -1


def test_produce_is_never_older_than_record_batch_v2() -> None:
    with pytest.raises(UnsupportedVersionError, match="3 to 13 of PRODUCE"):
        produce_request([b""]).encode(2)


def test_every_api_throttles_from_the_version_in_which_its_response_says_so() -> None:
    # shouldClientThrottle of the responses in the Java client.
    throttles = {key.name: api.throttles_from for key, api in API_TABLE.items() if api.throttles_from != NEVER}
    assert throttles == {
        "PRODUCE": 6, "LIST_OFFSETS": 3, "METADATA": 6, "OFFSET_COMMIT": 4, "OFFSET_FETCH": 4, "FIND_COORDINATOR": 2,
        "API_VERSIONS": 2, "INIT_PRODUCER_ID": 1, "ADD_PARTITIONS_TO_TXN": 1, "ADD_OFFSETS_TO_TXN": 1, "END_TXN": 1,
        "TXN_OFFSET_COMMIT": 1, "DESCRIBE_CONFIGS": 2, "DESCRIBE_GROUPS": 2,
    }  # fmt: skip


def test_every_api_becomes_flexible_within_its_range() -> None:
    for api in API_TABLE.values():
        assert api.min_version <= api.flexible_from <= api.max_version or api.flexible_from == NEVER
        assert api.min_version <= api.throttles_from <= api.max_version or api.throttles_from == NEVER
