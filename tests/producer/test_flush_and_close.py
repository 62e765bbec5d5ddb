"""How a KafkaProducer flushes and ends, over real sockets against FakeBroker."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.hand_overs import HandOver
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.producer.calling import WAIT_MS, WAIT_S, binary, fill_memory
from tests.producer.harness import tp
from tests.producer.producers import producer_of, task_producer_of
from tests.threads import assert_ended, no_new_threads

# FLUSH


def test_flush_does_not_wait_for_linger(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
        assert not delivery.done()
        producer.flush(WAIT_MS)
        assert delivery.acknowledged == 1


def test_flush_may_wait_for_the_rows_of_one_call_alone(broker: FakeBroker) -> None:
    """Nothing lingers meanwhile, and rows that are settled later are not waited for."""
    answer = threading.Event()
    broker.inject(Fault(ApiKey.PRODUCE, topic_partition=tp(0, "single"), release=answer))
    with producer_of(broker, linger_ms=60_000, metadata_max_age_ms=300_000) as producer:
        earlier = producer.send_columns("orders", value=binary(b"a"), partition=pa.array([1], pa.int32()))  # of another leader
        later = producer.send_columns("single", value=binary(b"b"))
        try:
            producer.flush(WAIT_MS, until=earlier)
            assert (earlier.done(), later.done()) == (True, False)
        finally:
            answer.set()
        producer.flush(WAIT_MS, until=later)
        assert later.done()
        producer.flush(WAIT_MS, until=later)  # at once


def test_flush_gives_up_after_its_time(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
        producer.flush(50)
    release.set()
    producer.close()
    assert delivery.acknowledged == 1


def test_a_flush_that_runs_out_of_time_fails_no_record(broker: FakeBroker) -> None:
    """Its time was taken for max.block.ms: flush(100) failed a record that had been sent, with KAFKA_BUFFER_EXHAUSTED."""
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000, buffer_memory=65_536) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        fill_memory(producer)
        release = broker.hold_next(ApiKey.PRODUCE)
        with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
            producer.flush(100)
        assert not future.done()
        release.set()
        producer.flush(WAIT_MS)
        assert future.result(0).offset == 0


def test_a_flush_says_that_records_are_left_that_another_thread_is_queueing(broker: FakeBroker) -> None:
    """flush() returned normally, and a record that this thread had sent was still gathered."""
    is_held, let_go = threading.Event(), threading.Event()

    def encode(hand_over: HandOver) -> None:
        assert producer._gatherer._encodings["single"].admit_locked(hand_over)
        is_held.set()
        assert let_go.wait(WAIT_S)

    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        other = threading.Thread(target=lambda: producer._gatherer.hand_overs.run(encode), daemon=True)
        other.start()
        assert is_held.wait(WAIT_S)
        with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
            producer.flush(50)
        assert not future.done()
        let_go.set()
        producer.flush(WAIT_MS)
        assert future.result(0).offset == 0
        other.join(WAIT_S)


def test_flush_does_not_raise_for_rows_that_failed(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.flush(WAIT_MS)
    assert delivery.failed == 1


# CLOSE


def test_close_sends_what_is_queued_and_may_be_called_again(broker: FakeBroker) -> None:
    producer = producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.close()
    producer.close()
    assert delivery.result(0).acknowledged == 1
    assert broker.values("single") == [b"a"]


def test_close_without_time_fails_what_is_left(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 1)
    producer.close(0)
    release.set()
    with pytest.raises(ProducerClosedError, match="it may have been written"):
        delivery.result(0)


def test_close_with_some_time_ends_when_it_is_over(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.close(50)
    release.set()
    assert isinstance(delivery.error, ProducerClosedError)


def test_the_sender_thread_ends_with_the_producer(broker: FakeBroker) -> None:
    producer = producer_of(broker, client_id="ends")
    assert [thread.daemon for thread in threading.enumerate() if thread.name.endswith("| ends")] == [True]
    producer.close()
    assert_ended("| ends")


def test_a_closed_producer_refuses_everything(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(ProducerClosedError):
        producer.send(ProducerRecord("single", b"a"))
    with pytest.raises(ProducerClosedError):
        producer.partitions_for("single")


def test_after_a_callback_ended_the_sender_every_call_says_so(broker: FakeBroker) -> None:
    """Later calls said that the producer was closed, which nobody had done."""
    producer = task_producer_of(broker, linger_ms=0)
    future = producer.send(ProducerRecord("single", b"a"), lambda *_: sys.exit("enough"))
    assert future.result(WAIT_S).offset == 0
    producer._thread.join(WAIT_S)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(ProducerRecord("single", b"b")),
        lambda: producer.send_columns("single", value=binary(b"b")),
        lambda: producer.partitions_for("single"),
        producer.flush,
    ]
    for call in calls:
        with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] The producer's sender thread failed: SystemExit"):
            call()
    assert not producer.is_at_rest()
    producer.close()


def test_a_flush_that_the_senders_end_interrupts_says_so(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of(broker, linger_ms=0)
    release = broker.hold_next(ApiKey.PRODUCE)
    producer.send(ProducerRecord("single", b"a"), lambda *_: sys.exit("enough"))
    broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 1)
    producer.send(ProducerRecord("single", b"b"))  # settled behind the first, so that the flush ends after it
    flush = producer._accumulator.flush

    def flush_and_release(*args: Any) -> bool:
        release.set()
        return flush(*args)

    monkeypatch.setattr(producer._accumulator, "flush", flush_and_release)
    with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] The producer's sender thread failed: SystemExit"):
        producer.flush(WAIT_MS)
    producer.close()


def test_a_with_block_closes(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
    assert delivery.acknowledged == 1


def test_a_wrong_configuration_starts_nothing() -> None:
    with no_new_threads(), pytest.raises(ConfigError, match="2 things are wrong"):
        KafkaProducer({"bootstrap.servers": "127.0.0.1:1", "batch.size": "many", "acks": "some"})


@pytest.mark.timeout(30, func_only=True)  # and not request.timeout.ms
@pytest.mark.parametrize("options", [{}, {"transactional.id": "t"}], ids=["", "transactional"])
def test_close_waits_for_no_broker_when_no_row_is_queued(options: dict[str, str]) -> None:
    """close() waited request.timeout.ms, 30 s, for the answer to a request for metadata or for a producer id."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        times = {"max.block.ms": 300, "request.timeout.ms": 600_000, "delivery.timeout.ms": 900_000}
        producer = KafkaProducer({"bootstrap.servers": address, **times, **options})
        with pytest.raises(KafkaTimeoutError):
            producer.init_transactions() if options else producer.partitions_for("t")
        producer.close()
        producer._thread.join(WAIT_S)  # it may be about to end
        assert not producer._thread.is_alive()
