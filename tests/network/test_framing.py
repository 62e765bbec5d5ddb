"""network/framing.py: frames out and in, in pieces of any size, from brokers that err."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import AuthenticationError, ResponseTooLargeError, UnsupportedVersionError
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.protocol import primitives
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafka_sink.protocol.primitives import Buffer
from spark_kafka_sink.protocol.schema import Request
from tests.fakes.fake_selector import framed
from tests.fakes.network_config import metadata, topic

INIT = InitProducerIdRequest(transaction_timeout_ms=1000)
METADATA = MetadataRequest(topics=None)


def header(correlation_id: int, api_key: ApiKey = ApiKey.INIT_PRODUCER_ID, version: int = 5) -> RequestHeader:
    return RequestHeader(api_key, version, correlation_id, None)


def init_response(correlation_id: int, producer_id: int = 7) -> bytes:
    return framed(header(correlation_id), InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


def test_a_request_is_framed_with_its_header() -> None:
    frame = b"".join(Framing("me").send(INIT, 0))
    assert frame.hex() == "00000012" + "001600000000000000026d65" + "ffff000003e8"


def test_correlation_ids_count_up() -> None:
    framing = Framing("me")
    ids = [struct.unpack_from(">i", b"".join(framing.send(INIT, 5)), 8)[0] for _ in range(3)]
    assert ids == [0, 1, 2]


def test_the_frame_counts_opaque_buffers_and_holds_them_by_reference() -> None:
    records: list[Buffer] = [memoryview(b"12345"), memoryview(b"678")]
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=(TopicProduceData(name="t", partition_data=(data,)),))
    frame = Framing("me").send(request, 12)
    (size,) = struct.unpack(">i", bytes(frame[0][:4]))
    assert size == sum(map(len, frame)) - 4
    assert all(any(buffer is record for buffer in frame) for record in records)


def test_a_request_that_cannot_be_encoded_leaves_no_trace() -> None:
    framing = Framing("me")
    with pytest.raises(UnsupportedVersionError):
        framing.send(INIT, 6)
    framing.send(INIT, 5)
    (response,) = framing.receive_data(init_response(0))
    assert response.correlation_id == 0


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_responses_are_read_in_order_whatever_the_pieces(cuts: list[int]) -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    framing.send(METADATA, 12)
    framing.send(INIT, 0)
    answer = metadata(topic("orders", [0, 1]))
    data = (
        init_response(0, 1)
        + framed(header(1, ApiKey.METADATA, 12), answer)
        + framed(header(2, ApiKey.INIT_PRODUCER_ID, 0), InitProducerIdResponse(producer_id=2))
    )
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    responses = [
        response for start, end in itertools.pairwise(edges) for response in framing.receive_data(memoryview(data)[start:end])
    ]
    assert [response.correlation_id for response in responses] == [0, 1, 2]
    assert [response.version for response in responses] == [5, 12, 0]
    assert responses[1].message == answer
    assert framing.error is None


@given(data=st.binary(max_size=200), sends=st.integers(0, 3), size=st.integers(1, 64))
def test_random_bytes_never_raise_and_stop_at_the_first_violation(data: bytes, sends: int, size: int) -> None:
    framing = Framing("me")
    for _ in range(sends):
        framing.send(INIT, 5)
    for start in range(0, len(data), size):
        framing.receive_data(data[start : start + size])
    if framing.error is not None:
        error = framing.error
        assert framing.receive_data(init_response(0)) == []
        assert framing.error is error


@given(position=st.integers(0, 1000), bit=st.integers(0, 7))
def test_one_flipped_bit_never_raises(position: int, bit: int) -> None:
    framing = Framing("me")
    framing.send(METADATA, 12)
    data = bytearray(framed(header(0, ApiKey.METADATA, 12), metadata(topic("orders", [0, 1]))))
    data[position % len(data)] ^= 1 << bit
    assert len(framing.receive_data(data)) <= 1


@pytest.mark.parametrize(
    ("request_", "version", "limit"),
    [
        (INIT, 5, 64 << 10),
        (ApiVersionsRequest(), 4, 256 << 10),
        (METADATA, 12, 32 << 20),
        (ProduceRequest(acks=-1, timeout_ms=1, topic_data=()), 9, 16 << 20),
        (FindCoordinatorRequest.for_keys(KeyType.GROUP, ["g"]), 5, 4 << 20),
        (OffsetFetchRequest.for_groups({"g": None}), 9, 32 << 20),
        (ListTransactionsRequest(), 2, 32 << 20),
        (DescribeTransactionsRequest(transactional_ids=("t",)), 0, 32 << 20),
    ],
    ids=lambda value: str(getattr(value, "API_KEY", "")),
)
def test_a_response_that_is_too_large_for_its_api_is_refused_by_its_size_alone(
    request_: Request[Any], version: int, limit: int
) -> None:
    """100 MiB were allowed for every API, and would have been read, kept and decoded, be it a producer id of 16 bytes."""
    framing = Framing("me")
    framing.send(request_, version)
    framing.receive_data(struct.pack(">i", limit))
    assert framing.error is None
    framing = Framing("me")
    framing.send(request_, version)
    assert framing.receive_data(struct.pack(">i", limit + 1)) == []
    assert framing.error is not None
    assert f" {limit + 1:,} bytes to {request_.API_KEY.name}, which is never larger than {limit:,}" in framing.error.message


def test_a_kafka_broker_whose_response_is_too_large_is_not_suspected_of_being_none() -> None:
    """A list of 300,000 transactional ids was told as a wrong security.protocol, on a connection that had just answered."""
    framing = Framing("me")
    framing.send(INIT, 5)
    assert framing.receive_data(init_response(0))
    framing.send(ListTransactionsRequest(), 2)
    framing.receive_data(struct.pack(">i", (32 << 20) + 1))
    assert isinstance(framing.error, ResponseTooLargeError)
    assert str(framing.error) == (
        "[KAFKA_RESPONSE_TOO_LARGE] the broker announces a response of 33,554,433 bytes to LIST_TRANSACTIONS, and this client"
        " takes at most 33,554,432"
    )


def test_a_response_with_too_many_elements_is_too_large_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "MAX_ELEMENTS", 2)
    framing = Framing("me")
    framing.send(METADATA, 12)
    framing.receive_data(framed(header(0, ApiKey.METADATA, 12), metadata(topic("t", [0, 1, 0]))))
    assert isinstance(framing.error, ResponseTooLargeError)
    assert framing.error.message.startswith("MetadataResponse v12 cannot be read: more than 2 elements before offset ")


def test_every_api_has_a_limit() -> None:
    assert all(api.max_response_bytes <= 32 << 20 for api in API_TABLE.values())


def test_each_response_is_compared_with_the_limit_of_its_own_request() -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    framing.send(METADATA, 12)
    framing.send(INIT, 5)
    large = metadata(topic("orders", [0] * 5000))
    responses = framing.receive_data(init_response(0) + framed(header(1, ApiKey.METADATA, 12), large))
    assert [type(response.message) for response in responses] == [InitProducerIdResponse, MetadataResponse]
    framing.receive_data(struct.pack(">i", 100_000))
    assert "to INIT_PRODUCER_ID" in str(framing.error)


def test_a_negative_size_is_refused() -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    framing.receive_data(b"\xff\xff\xff\xff")
    assert framing.error is not None
    assert "announces a response of -1 bytes" in framing.error.message


def test_the_alert_of_a_tls_listener_is_explained() -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    framing.receive_data(bytes.fromhex("15030300020246"))
    assert isinstance(framing.error, AuthenticationError)
    assert "this listener speaks TLS, and the client does not; set security.protocol to SSL" in str(framing.error)


def test_an_answer_to_another_request_is_refused() -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    assert framing.receive_data(init_response(1)) == []
    assert "answered request 1, but the oldest unanswered one is 0" in str(framing.error)


@pytest.mark.parametrize("sent_count", [0, 1])
def test_an_answer_that_nobody_waits_for_is_refused(sent_count: int) -> None:
    framing = Framing("me")
    for _ in range(sent_count):
        framing.send(INIT, 5)
    answers = b"".join(map(init_response, range(sent_count + 1)))
    assert [each.correlation_id for each in framing.receive_data(answers)] == list(range(sent_count))
    assert "no request waits" in str(framing.error)


# ANSWERS TO REQUESTS THAT ASK FOR NONE

PRODUCE = ProduceRequest(acks=0, timeout_ms=1, topic_data=())


@given(st.lists(st.booleans(), max_size=12), st.data())
def test_an_answer_to_acks_0_is_dropped_whatever_it_says(asks: list[bool], data: st.DataObject) -> None:
    """Some brokers answer Produce with acks=0 all the same. The client took that for a violation and closed the connection: rows
    that were on their way were lost, and the answers to other requests too."""
    framing = Framing("me")
    start_id = data.draw(st.sampled_from([0, 2**31 - 5]))  # ids begin anew after 2**31 - 1
    framing._next_correlation_id = framing._next_answered_id = start_id
    ids = [(start_id + number) % 2**31 for number in range(len(asks))]
    answers = b""
    for correlation_id, asks_for_answer in zip(ids, asks, strict=True):
        framing.send(INIT if asks_for_answer else PRODUCE, 5, expect_response=asks_for_answer)
        if asks_for_answer:
            answers += init_response(correlation_id)
        elif data.draw(st.booleans()):  # brokers that answer may leave some out
            rest = data.draw(st.binary(max_size=30))
            answers += struct.pack(">ii", 4 + len(rest), correlation_id) + rest
    responses = []
    while answers:
        size = data.draw(st.integers(1, len(answers)))
        responses += framing.receive_data(answers[:size])
        answers = answers[size:]
    assert framing.error is None
    assert [each.correlation_id for each in responses] == list(itertools.compress(ids, asks))


@pytest.mark.parametrize("correlation_id", [1, -1, 2**31 - 1])
def test_an_answer_to_a_request_that_was_not_sent_is_refused(correlation_id: int) -> None:
    framing = Framing("me")
    framing.send(PRODUCE, 5, expect_response=False)
    framing.receive_data(struct.pack(">ii", 4, correlation_id))
    assert "no request waits" in str(framing.error)


def test_an_answer_to_acks_0_may_not_come_after_a_later_answer() -> None:
    framing = Framing("me")
    framing.send(PRODUCE, 5, expect_response=False)
    framing.send(INIT, 5)
    framing.send(INIT, 5)
    assert len(framing.receive_data(init_response(1) + init_response(0))) == 1
    assert "answered request 0, but the oldest unanswered one is 2" in str(framing.error)


def test_an_answer_to_acks_0_is_not_read_into_memory_without_a_limit() -> None:
    framing = Framing("me")
    framing.send(PRODUCE, 5, expect_response=False)
    framing.receive_data(struct.pack(">ii", 2**31 - 1, 0))
    assert "to PRODUCE, which is never larger than" in str(framing.error)


@pytest.mark.parametrize("size_bytes", [-1, 0, 3])
def test_a_frame_without_room_for_an_id_is_refused(size_bytes: int) -> None:
    framing = Framing("me")
    framing.send(PRODUCE, 5, expect_response=False)
    framing.receive_data(struct.pack(">i", size_bytes))
    assert "no request waits" in str(framing.error)


def with_surplus(frame: bytes, surplus: bytes) -> bytes:
    return struct.pack(">i", len(frame) - 4 + len(surplus)) + frame[4:] + surplus


def test_bytes_after_the_last_field_are_ignored_and_logged_once_for_each_api(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka's mock cluster ends its Metadata with one tag byte too many: it was refused, and nothing could be written there.

    The Java client and librdkafka read past such bytes.
    """
    caplog.set_level("DEBUG", "spark_kafka_sink.network.framing")
    framing = Framing("me", peer="node 3")
    for request, version in ((INIT, 5), (INIT, 5), (METADATA, 12)):
        framing.send(request, version)
    answer = metadata(topic("orders", [0, 1]))
    responses = framing.receive_data(
        with_surplus(init_response(0, 1), b"\0")
        + with_surplus(init_response(1, 2), b"\xff" * 9)
        + with_surplus(framed(header(2, ApiKey.METADATA, 12), answer), b"\0")
    )
    assert framing.error is None
    assert [response.message for response in responses[:2]] == [
        InitProducerIdResponse(producer_id=producer_id, producer_epoch=0) for producer_id in (1, 2)
    ]
    assert responses[2].message == answer
    assert [record.getMessage() for record in caplog.records] == [
        "! node 3: ignoring 1 bytes after the last field of InitProducerIdResponse v5 (logged once per connection)",
        "! node 3: ignoring 1 bytes after the last field of MetadataResponse v12 (logged once per connection)",
    ]


def test_answers_before_a_violation_count() -> None:
    framing = Framing("me")
    framing.send(INIT, 5)
    framing.send(INIT, 5)
    responses = framing.receive_data(init_response(0) + init_response(9))
    assert [response.correlation_id for response in responses] == [0]
    assert framing.error is not None
