"""tests/fakes/fake_broker.py and record_decoder.py judge batches as a broker does, without the network between."""

from __future__ import annotations

import gzip
import struct
import threading

import crc32c
import lz4.frame
import pyarrow as pa
import pytest

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.fake_broker import DropConnection, FakeBroker, Fault, ReceivedRequest
from tests.fakes.record_decoder import InvalidBatch, decode_batch
from tests.fakes.record_encoder import encode_batch

STOPPING = threading.Event()


def patched(batch: bytes, position: int, data: bytes) -> bytes:
    """With a checksum that is right again."""
    changed = batch[:position] + data + batch[position + len(data) :]
    return changed[:17] + struct.pack(">I", crc32c.crc32c(changed[21:])) + changed[21:]


def compressed(batch: bytes, codec: int, records: bytes) -> bytes:
    batch = batch[:61] + records
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return patched(batch, 21, struct.pack(">h", codec))


def xerial(data: bytes) -> bytes:
    block = bytes(pa.Codec("snappy").compress(data))
    return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block


def produce(
    broker: FakeBroker, batch: bytes, *, node_id: int = 0, topic: str = "t", version: int = 12, acks: int = -1
) -> PartitionProduceResponse | None:
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=[batch]),))
    request = ProduceRequest(acks=acks, timeout_ms=1, topic_data=(data,))
    response = broker.handle(ReceivedRequest(node_id, RequestHeader(ApiKey.PRODUCE, version, 0, None), request), STOPPING)
    if response is None:
        return None
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0]


def error_of(response: PartitionProduceResponse | None) -> ErrorCode:
    assert response is not None
    return Errors.for_code(response.error_code)


def sequenced(*numbers: int, first: int, epoch: int = 0, producer_id: int = 1) -> bytes:
    values: list[bytes | None] = [b"%d" % number for number in numbers]
    return encode_batch(values, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(nodes=2, topics={"t": 1})


# BATCHES


def test_records_are_read_as_they_were_written() -> None:
    batch = decode_batch(encode_batch([b"a", None, b""], keys=[b"k", None, b""], timestamp=1000))
    assert [(record.key, record.value, record.timestamp) for record in batch.records] == [
        (b"k", b"a", 1000),
        (None, None, 1001),
        (b"", b"", 1002),
    ]
    assert batch.violations == []


@pytest.mark.parametrize(
    ("codec", "name", "compress"),
    [
        (1, "gzip", gzip.compress),
        (2, "snappy", lambda data: bytes(pa.Codec("snappy").compress(data))),
        (2, "snappy", xerial),
        (3, "lz4", lz4.frame.compress),
        (4, "zstd", lambda data: bytes(pa.Codec("zstd").compress(data))),
    ],
)
def test_every_codec_is_decompressed(codec: int, name: str, compress: object) -> None:
    plain = encode_batch([b"value %d" % number for number in range(100)])
    batch = decode_batch(compressed(plain, codec, compress(plain[61:])))
    assert batch.codec == name
    assert [record.value for record in batch.records] == [b"value %d" % number for number in range(100)]


GOOD = encode_batch([b"a", b"b"])


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (b"", Errors.CORRUPT_MESSAGE),
        (GOOD[:-1] + b"x", Errors.CORRUPT_MESSAGE),
        (GOOD + GOOD, Errors.INVALID_RECORD),
        (GOOD[:-1], Errors.INVALID_RECORD),
        (patched(GOOD, 16, b"\x01"), Errors.INVALID_RECORD),
        (struct.pack(">q", 5) + GOOD[8:], Errors.INVALID_RECORD),
        (patched(GOOD, 23, struct.pack(">i", 5)), Errors.INVALID_RECORD),
        (patched(GOOD, 57, struct.pack(">i", 3)), Errors.INVALID_RECORD),
        (patched(patched(GOOD, 57, struct.pack(">i", 3)), 23, struct.pack(">i", 2)), Errors.INVALID_RECORD),
        (patched(patched(GOOD, 57, struct.pack(">i", 1)), 23, struct.pack(">i", 0)), Errors.INVALID_RECORD),
        (patched(GOOD, 22, b"\x20"), Errors.INVALID_RECORD),
        (patched(GOOD, 22, b"\x08"), Errors.INVALID_TIMESTAMP),
        (patched(GOOD, 22, b"\x07"), Errors.INVALID_RECORD),
        (patched(GOOD, 22, b"\x03"), Errors.CORRUPT_MESSAGE),
        (patched(GOOD, 43, struct.pack(">q", 7)), Errors.INVALID_RECORD),
        (patched(GOOD, 64, b"\x02"), Errors.INVALID_RECORD),  # the first record's offset delta
        (patched(GOOD, 61, b"\x7e"), Errors.INVALID_RECORD),  # the first record's length
        (encode_batch([]), Errors.INVALID_RECORD),
    ],
)
def test_what_a_broker_refuses_is_refused(batch: bytes, error: ErrorCode) -> None:
    with pytest.raises(InvalidBatch) as refused:
        decode_batch(batch)
    assert refused.value.error == error, refused.value


@pytest.mark.parametrize(
    ("batch", "violation"),
    [
        (patched(GOOD, 35, struct.pack(">q", 5)), "max timestamp"),
        (patched(GOOD, 21, b"\x01"), "unknown attributes"),
    ],
)
def test_what_a_broker_lets_pass_is_a_violation(broker: FakeBroker, batch: bytes, violation: str) -> None:
    assert not error_of(produce(broker, batch))
    assert violation in broker.violations[0]


# THE LOG


def test_offsets_continue_from_batch_to_batch(broker: FakeBroker) -> None:
    offsets = [response.base_offset for _ in range(3) if (response := produce(broker, GOOD)) is not None]
    assert offsets == [0, 2, 4]
    assert [record.offset for record in broker.records("t")] == [0, 1, 2, 3, 4, 5]


def test_a_batch_for_another_leader_is_refused_with_a_hint(broker: FakeBroker) -> None:
    broker.move_leader("t", 0, 1)
    response = produce(broker, GOOD)
    assert error_of(response) is Errors.NOT_LEADER_OR_FOLLOWER
    assert response is not None
    assert (response.current_leader.leader_id, response.current_leader.leader_epoch) == (1, 1)
    assert not error_of(produce(broker, GOOD, node_id=1))


def test_a_batch_that_is_too_large_is_refused(broker: FakeBroker) -> None:
    broker.topics["t"].max_message_bytes = len(GOOD)
    assert not error_of(produce(broker, GOOD))
    broker.topics["t"].max_message_bytes -= 1
    assert error_of(produce(broker, GOOD)) is Errors.MESSAGE_TOO_LARGE


def test_a_broker_rejects_unknown_topics_bad_acks_and_old_versions_of_zstd(broker: FakeBroker) -> None:
    assert error_of(produce(broker, GOOD, topic="nowhere")) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(produce(broker, GOOD, version=13)) is Errors.UNKNOWN_TOPIC_ID
    assert error_of(produce(broker, GOOD, acks=2)) is Errors.INVALID_REQUIRED_ACKS
    zstd = compressed(GOOD, 4, bytes(pa.Codec("zstd").compress(GOOD[61:])))
    assert error_of(produce(broker, zstd, version=6)) is Errors.UNSUPPORTED_COMPRESSION_TYPE
    assert not error_of(produce(broker, zstd, version=7))


def test_acks_0_gets_no_answer_and_on_an_error_no_connection(broker: FakeBroker) -> None:
    assert produce(broker, GOOD, acks=0) is None
    with pytest.raises(DropConnection):
        produce(broker, GOOD, acks=0, topic="nowhere")
    assert broker.values("t") == [b"a", b"b"]


# PRODUCERS


def test_sequences_must_follow_one_another(broker: FakeBroker) -> None:
    assert not error_of(produce(broker, sequenced(0, 1, first=0)))
    assert not error_of(produce(broker, sequenced(2, first=2)))
    assert error_of(produce(broker, sequenced(4, first=4))) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not error_of(produce(broker, sequenced(9, first=0, producer_id=2)))
    assert broker.values("t") == [b"0", b"1", b"2", b"9"]


def test_the_last_five_batches_are_recognised_and_not_written_again(broker: FakeBroker) -> None:
    for number in range(7):
        produce(broker, sequenced(number, first=number))
    response = produce(broker, sequenced(2, first=2))
    assert response is not None
    assert (response.error_code, response.base_offset) == (0, 2)
    assert error_of(produce(broker, sequenced(1, first=1))) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(broker.records("t")) == 7


def test_an_unknown_producer_may_start_anywhere(broker: FakeBroker) -> None:
    assert not error_of(produce(broker, sequenced(0, first=77)))


def test_sequences_wrap(broker: FakeBroker) -> None:
    assert not error_of(produce(broker, sequenced(0, 1, 2, first=(1 << 31) - 2)))
    assert not error_of(produce(broker, sequenced(3, first=1)))


def test_a_new_epoch_starts_at_zero_and_an_old_one_is_fenced(broker: FakeBroker) -> None:
    produce(broker, sequenced(0, first=0, epoch=0))
    assert error_of(produce(broker, sequenced(1, first=1, epoch=1))) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not error_of(produce(broker, sequenced(1, first=0, epoch=1)))
    assert error_of(produce(broker, sequenced(1, first=1, epoch=0))) is Errors.INVALID_PRODUCER_EPOCH


def init_producer_id(broker: FakeBroker, transactional_id: str | None) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
    response = broker.handle(ReceivedRequest(0, RequestHeader(ApiKey.INIT_PRODUCER_ID, 5, 0, None), request), STOPPING)
    assert isinstance(response, InitProducerIdResponse)
    return response


def test_producer_ids_are_new_and_epochs_of_a_transactional_id_grow(broker: FakeBroker) -> None:
    assert [init_producer_id(broker, None).producer_id for _ in range(2)] == [1000, 1001]
    first, second = init_producer_id(broker, "x"), init_producer_id(broker, "x")
    assert (first.producer_id, second.producer_id) == (1002, 1002)
    assert (first.producer_epoch, second.producer_epoch) == (0, 1)


# FAULTS AND METADATA


def test_errors_are_given_before_or_after_the_append(broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    broker.fail_next(ApiKey.PRODUCE, Errors.REQUEST_TIMED_OUT, after_append=True)
    assert error_of(produce(broker, GOOD)) is Errors.NOT_ENOUGH_REPLICAS
    assert broker.values("t") == []
    assert error_of(produce(broker, GOOD)) is Errors.REQUEST_TIMED_OUT
    assert broker.values("t") == [b"a", b"b"]
    assert not error_of(produce(broker, GOOD))


def test_a_fault_for_one_partition_spares_the_others(broker: FakeBroker) -> None:
    broker.add_topic("u", 1)
    broker.fail_next(ApiKey.PRODUCE, Errors.CORRUPT_MESSAGE, topic_partition=TopicPartition("u", 0))
    assert not error_of(produce(broker, GOOD))
    assert error_of(produce(broker, GOOD, topic="u")) is Errors.CORRUPT_MESSAGE


def test_connections_are_dropped_before_or_after_the_append(broker: FakeBroker) -> None:
    broker.drop_next(ApiKey.PRODUCE)
    broker.drop_next(ApiKey.PRODUCE, after_append=True)
    with pytest.raises(DropConnection):
        produce(broker, GOOD)
    assert broker.values("t") == []
    with pytest.raises(DropConnection):
        produce(broker, GOOD)
    assert broker.values("t") == [b"a", b"b"]


def test_a_held_request_waits_for_its_release(broker: FakeBroker) -> None:
    release = broker.hold_next(ApiKey.PRODUCE)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(produce(broker, GOOD)))
    thread.start()
    broker.wait_until(lambda: len(broker.requests) == 1)
    assert broker.values("t") == []
    release.set()
    thread.join(10)
    assert len(answers) == 1
    assert broker.values("t") == [b"a", b"b"]


def test_a_test_can_throttle_and_give_a_reply_of_its_own(broker: FakeBroker) -> None:
    broker.inject(Fault(ApiKey.INIT_PRODUCER_ID, throttle_ms=50))
    broker.inject(Fault(ApiKey.INIT_PRODUCER_ID, reply=lambda _: InitProducerIdResponse(producer_id=5)))
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.CLUSTER_AUTHORIZATION_FAILED)
    assert init_producer_id(broker, None).throttle_time_ms == 50
    assert init_producer_id(broker, None).producer_id == 5
    assert init_producer_id(broker, None).error_code == 31


def ask_metadata(broker: FakeBroker, name: str) -> MetadataResponse:
    request = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
    response = broker.handle(ReceivedRequest(0, RequestHeader(ApiKey.METADATA, 12, 0, None), request), STOPPING)
    assert isinstance(response, MetadataResponse)
    return response


def test_an_unknown_topic_is_created_when_that_is_allowed(broker: FakeBroker) -> None:
    assert ask_metadata(broker, "new").topics[0].error_code == 3
    assert ask_metadata(broker, "new").topics[0].error_code == 3
    broker.auto_create_partitions = 4
    assert ask_metadata(broker, "new").topics[0].error_code == 3  # a moment later it exists
    assert len(ask_metadata(broker, "new").topics[0].partitions) == 4


def test_a_topic_can_have_an_error_and_can_be_created_again(broker: FakeBroker) -> None:
    first_id = ask_metadata(broker, "t").topics[0].topic_id
    broker.topics["t"].error = Errors.TOPIC_AUTHORIZATION_FAILED
    assert ask_metadata(broker, "t").topics[0].error_code == 29
    broker.delete_topic("t")
    assert ask_metadata(broker, "t").topics[0].error_code == 3
    broker.add_topic("t", 1)
    assert ask_metadata(broker, "t").topics[0].topic_id != first_id
