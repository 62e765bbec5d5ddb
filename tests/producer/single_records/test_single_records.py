"""KafkaProducer.send: single records, their order, futures, callbacks and batches."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    IllegalStateError,
    KafkaError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.accumulator.built_in_partitioner import BuiltInPartitioner
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord, RecordMetadata
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, WAIT_S, binary, fill_memory
from tests.producer.producers import await_answers, give_up_soon, producer_of


def test_a_single_record_arrives_with_everything(broker: FakeBroker, producer: KafkaProducer) -> None:
    future = producer.send(
        ProducerRecord("single", "value", key="key", headers=[("h", b"1"), ("h", None)], timestamp=1_600_000_000_000)
    )
    producer.flush(WAIT_MS)
    assert future.result(0) == RecordMetadata("single", 0, 0, 1_600_000_000_000, 3, 5)
    (record,) = broker.records("single")
    assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1_600_000_000_000)
    assert record.headers == (("h", b"1"), ("h", None))


def test_single_records_are_sent_after_linger_without_flush(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=20) as producer:
        assert producer.send(ProducerRecord("single", b"a")).result(WAIT_S).offset == 0


def test_many_single_records_keep_their_order_and_share_batches(broker: FakeBroker) -> None:
    heard: list[int] = []

    def hear(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        heard.append(-1 if metadata is None or error is not None else metadata.offset)

    with producer_of(broker, linger_ms=50) as producer:
        futures = [producer.send(ProducerRecord("single", b"%05d" % number), hear) for number in range(2000)]
        producer.flush(WAIT_MS)
        assert [future.result(0).offset for future in futures] == list(range(2000))
    assert broker.values("single") == [b"%05d" % number for number in range(2000)]
    assert heard == list(range(2000))
    assert len(broker.batches("single")) < 50


def test_single_records_and_columns_keep_their_common_order(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=100) as producer:
        producer.send(ProducerRecord("single", b"1"))
        producer.send_columns("single", value=binary(b"2", b"3"))
        producer.send(ProducerRecord("single", b"4"))
        producer.send_columns("single", value=binary(b"5"))
        producer.flush(WAIT_MS)
    assert broker.values("single") == [b"1", b"2", b"3", b"4", b"5"]


def test_close_sends_single_records_that_still_linger(broker: FakeBroker) -> None:
    producer = producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000)
    future = producer.send(ProducerRecord("single", b"a"))
    producer.close()
    assert future.result(0).offset == 0


def test_a_forced_close_fails_single_records_that_still_linger(broker: FakeBroker) -> None:
    producer = producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000)
    future = producer.send(ProducerRecord("single", b"a"))
    producer.close(0)
    assert isinstance(future.exception(WAIT_S), ProducerClosedError)


def test_a_fatal_error_fails_single_records_that_still_linger(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        future = producer.send(ProducerRecord("other", b"a"))
        broker.fail_next(ApiKey.PRODUCE, Errors.CLUSTER_AUTHORIZATION_FAILED)
        delivery = producer.send_columns("single", value=binary(*[bytes(20_000)] * 2))
        with pytest.raises(AuthorizationError, match="idempotent writes are not allowed"):
            delivery.result(WAIT_MS)
        assert isinstance(future.exception(2.0), BrokerError)


@pytest.mark.parametrize("timestamp", [-5, 2**63])
def test_a_bad_timestamp_is_refused_at_send_and_harms_no_other_record(broker: FakeBroker, timestamp: int) -> None:
    with producer_of(broker, linger_ms=100) as producer:
        good = producer.send(ProducerRecord("single", b"good"))
        with pytest.raises(ValueError, match="Invalid timestamp"):
            producer.send(ProducerRecord("single", b"bad", timestamp=timestamp))
        producer.flush(WAIT_MS)
        assert good.result(0).offset == 0


def test_the_error_of_a_record_reaches_its_future_and_its_callback(broker: FakeBroker) -> None:
    heard: list[KafkaError | None] = []
    with producer_of(broker, max_request_size=1000) as producer:
        await_answers(producer, "gone", "single")
        give_up_soon(producer)
        unknown = producer.send(ProducerRecord("gone", b"a"), lambda _, error: heard.append(error))
        large = producer.send(ProducerRecord("single", bytes(1000)), lambda _, error: heard.append(error))
        nowhere = producer.send(ProducerRecord("single", b"a", partition=7), lambda _, error: heard.append(error))
    conditions = ["KAFKA_UNKNOWN_TOPIC", "KAFKA_RECORD_TOO_LARGE", "KAFKA_UNKNOWN_PARTITION"]
    assert [each.exception(0).condition for each in (unknown, large, nowhere)] == conditions
    assert [error and error.condition for error in heard] == conditions


def test_records_above_max_request_size_are_alone_in_their_requests(broker: FakeBroker) -> None:
    """Where `largest_record` allows them: they do not make the other requests larger."""
    limits = {"max.request.size": 10_000, "batch.size": 4_000, "linger.ms": 60_000}
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **limits}, largest_record=50_000) as producer:
        values = [bytes(3_900)] * 12 + [bytes(40_000), bytes(30_000)]
        partitions = pa.array([*range(4)] * 3 + [0, 2], pa.int32())
        delivery = producer.send_columns("orders", value=binary(*values), partition=partitions)
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size=50000"):
            producer.send_columns("orders", value=binary(bytes(50_000)))
        producer.flush(WAIT_MS)
        assert delivery.acknowledged == 14
    sizes = [batch_sizes(request.message) for request in broker.requests_of(ApiKey.PRODUCE)]
    above = sorted(sum(each) for each in sizes if sum(each) > 10_000)
    assert above == [pytest.approx(30_000, rel=0.01), pytest.approx(40_000, rel=0.01)]
    assert all(sum(each) <= 10_000 or len(each) == 1 for each in sizes)
    assert any(len(each) > 1 for each in sizes)


def batch_sizes(request: Any) -> list[int]:
    return [sum(map(len, partition.records)) for topic in request.topic_data for partition in topic.partition_data]


def test_a_record_waits_for_memory_up_to_max_block_ms_and_its_future_says_so(broker: FakeBroker) -> None:
    heard: list[str | None] = []
    with producer_of(broker, buffer_memory=65_536) as producer:
        producer.partitions_for("single")
        held = fill_memory(producer)
        give_up_soon(producer)
        future = producer.send(ProducerRecord("single", b"a"), lambda _, error: heard.append(error and error.condition))
        assert heard == ["KAFKA_BUFFER_EXHAUSTED"]
        assert future.exception(0).condition == "KAFKA_BUFFER_EXHAUSTED"
        producer._pool.deallocate(held)
        assert producer.send(ProducerRecord("single", b"b")).result(WAIT_S).offset == 0
        assert producer.metrics()["record-error-total"] == 1


def test_an_error_while_gathered_records_are_encoded_fails_them_whatever_it_is(broker: FakeBroker) -> None:
    """Ctrl-C in flush(), say: the records were gathered no longer and queued not yet, and nobody heard of them again."""
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BuiltInPartitioner, "choose", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                producer.flush(WAIT_MS)
        with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\] KeyboardInterrupt"):
            future.result(WAIT_S)
        with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERRUPTED\] KeyboardInterrupt"):
            producer.send(ProducerRecord("single", b"b"))
        producer.close(0)
        assert producer._pool.available_memory == producer._pool.total_memory


def test_a_negative_partition_of_a_single_record_is_refused(producer: KafkaProducer) -> None:
    with pytest.raises(ValueError, match="Invalid partition: -1"):
        producer.send(ProducerRecord("single", b"a", partition=-1))


def test_what_cannot_be_serialized_is_refused(broker: FakeBroker) -> None:
    with producer_of(broker, value_serializer="long") as producer, pytest.raises(SerializationError, match="value of type str"):
        producer.send(ProducerRecord("single", "one"))


def test_a_record_rejected_by_the_broker_raises_from_its_future(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    future = producer.send(ProducerRecord("single", b"a"))
    producer.flush(WAIT_MS)
    with pytest.raises(BrokerError, match="KAFKA_INVALID_RECORD"):
        future.result(0)


def test_a_callback_may_send_more(broker: FakeBroker) -> None:
    futures: list[Any] = []
    done = threading.Event()
    with producer_of(broker) as producer:

        def again(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
            del metadata, error
            futures.append(producer.send(ProducerRecord("single", b"second")))
            done.set()

        producer.send(ProducerRecord("single", b"first"), again)
        assert done.wait(WAIT_S)
        assert futures[0].result(WAIT_S).offset == 1


def test_a_callback_may_not_flush(broker: FakeBroker) -> None:
    """KIP-1118: it would wait for its own thread."""
    errors: list[str] = []
    with producer_of(broker) as producer:

        def flush(*_: object) -> None:
            try:
                producer.flush()
            except IllegalStateError as error:
                errors.append(error.condition)

        producer.send(ProducerRecord("single", b"a"), flush)
        producer.flush(WAIT_MS)
    assert errors == ["KAFKA_ILLEGAL_STATE"]


def test_a_callback_may_close(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    closed = threading.Event()

    def close(*_: object) -> None:
        producer.close()
        closed.set()

    producer.send(ProducerRecord("single", b"a"), close)
    assert closed.wait(WAIT_S)
    producer.close()
    assert broker.values("single") == [b"a"]
