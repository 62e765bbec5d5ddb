"""The old producer's modes over sockets against FakeBroker, its waits on a ManualClock, and once against a real broker.

Where Kafka's AsyncProducerTest and ProducerTest made these claims is told in tests/producer/__init__.py.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.clock import Clock, Waitable
from spark_kafka_sink.errors import (
    KafkaError,
    ProducerClosedError,
)
from spark_kafka_sink.legacy.errors import FailedToSendMessageError, QueueFullError
from spark_kafka_sink.legacy.event_handler import MAX_PORTION_BYTES, EventHandler
from spark_kafka_sink.legacy.messages import KeyedMessage, SerializedMessage
from spark_kafka_sink.legacy.partitioner import default_partition
from spark_kafka_sink.legacy.producer import MAX_DISPATCH_MS, Producer, ProducerSendThread, SendQueue, SyncDispatch
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.integration.reading import ReadTopic, Topic
from tests.interrupts import Interrupts
from tests.legacy.harness import WAIT_S, HandlerStage, asynchronous, keyless, legacy, legacy_options, tries, written
from tests.producer.harness import tp
from tests.producer.producers import await_answers
from tests.threads import assert_ended

# SYNC


def test_sync_send_returns_when_all_is_written(fake: FakeBroker) -> None:
    with legacy(fake, compression_codec="gzip") as producer:
        producer.send(*[KeyedMessage("orders", str(number % 4), str(number)) for number in range(40)])
        for partition in range(4):
            assert written(fake, partition) == [str(number) for number in range(partition, 40, 4)]
            assert [batch.codec for batch in fake.batches("orders", partition)] == ["gzip"]
        producer.send(KeyedMessage("single", None, None))
        assert fake.values("single") == [None]
        producer.send()


def test_acks_reach_the_brokers_and_nobody_answers_acks_0(fake: FakeBroker) -> None:
    for acks in (-1, 1, 0):
        with legacy(fake, request_required_acks=acks) as producer:
            producer.send(keyless(acks, "single"))
    fake.wait_until(lambda: len(fake.values("single")) == 3)
    requests = fake.requests_of(ApiKey.PRODUCE)
    assert [request.message.acks for request in requests] == [-1, 1, 0]


def test_encoders_are_the_old_ones(fake: FakeBroker) -> None:
    with legacy(
        fake, serializer_class="kafka.serializer.LongEncoder", key_serializer_class="kafka.serializer.IntegerEncoder"
    ) as producer:
        producer.send(KeyedMessage("single", 7, 2**40))
    with legacy(fake, serializer_encoding="ISO-8859-1") as producer:
        producer.send(KeyedMessage("single", message="é"))
    with legacy(
        fake, serializer_class="kafka.serializer.DefaultEncoder", key_serializer_class="kafka.serializer.NullEncoder"
    ) as producer:
        producer.send(KeyedMessage("single", "1", b"raw"))
    assert [(record.key, record.value) for record in fake.records("single")] == [
        (b"\0\0\0\7", b"\0\0\1\0\0\0\0\0"),
        (None, b"\xe9"),
        (None, b"raw"),
    ]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_cannot_be_serialized_raises_at_send_and_nothing_of_the_call_is_sent(fake: FakeBroker, mode: str) -> None:
    with legacy(fake, producer_type=mode) as producer:
        with pytest.raises(SerializationError, match="message of type int"):
            producer.send(keyless(1, "single"), KeyedMessage("single", message=2))
        with pytest.raises(TypeError, match=r"send\(\*messages\)"):
            producer.send([keyless(1, "single")])
    assert fake.values("single") == []


def test_only_the_partitions_that_failed_are_sent_again(fake: FakeBroker) -> None:
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2, topic_partition=tp(1, "orders"))
    with legacy(fake) as producer:
        producer.send(*[KeyedMessage("orders", str(number % 4), str(number)) for number in range(20)])
    assert tries(fake) == {0: 1, 1: 3, 2: 1, 3: 1}
    for partition in range(4):
        assert written(fake, partition) == [str(number) for number in range(partition, 20, 4)]


def test_a_partition_keeps_its_order_when_its_first_portion_fails(fake: FakeBroker) -> None:
    """Two batches under way at a time would change places: the second is written while the first waits for its retry."""
    large = MAX_PORTION_BYTES // 3
    texts = [f"{number}".ljust(large, "x") for number in range(8)]
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2, topic_partition=tp(0, "single"))
    with legacy(fake) as producer:
        producer.send(*[KeyedMessage("single", "0", text) for text in texts])
    assert written(fake, 0, "single") == texts
    assert len(fake.batches("single")) == 4


def test_more_than_the_memory_for_one_round_is_sent_all_the_same() -> None:
    with FakeBroker(topics={"wide": 60}) as fake:
        with legacy(fake) as producer:
            producer.send(*[KeyedMessage("wide", str(partition), "x" * 500_000) for partition in range(60)])
        assert [len(fake.values("wide", partition)) for partition in range(60)] == [1] * 60


def test_a_message_larger_than_a_portion_goes_alone(fake: FakeBroker) -> None:
    fake.add_topic("large", 1, max_message_bytes=10**7)
    with legacy(fake) as producer:
        producer.send(
            KeyedMessage("large", "0", "a"), KeyedMessage("large", "0", "b" * 3_000_000), KeyedMessage("large", "0", "c")
        )
    assert [len(value or b"") for value in fake.values("large")] == [1, 3_000_000, 1]
    assert len(fake.batches("large")) == 3


def test_after_the_last_retry_the_error_names_partitions_causes_and_messages(fake: FakeBroker) -> None:
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=3, topic_partition=tp(2, "orders"))
    with legacy(fake, message_send_max_retries=2) as producer:
        with pytest.raises(
            FailedToSendMessageError,
            match=r"after 3 tries \(message\.send\.max\.retries=2\): 3 for orders-2: .KAFKA_NOT_ENOUGH_REPLICAS",
        ) as raised:
            producer.send(*[KeyedMessage("orders", str(number % 4), str(number)) for number in range(12)])
        producer.send(KeyedMessage("orders", "2", "next"))
    assert raised.value.condition == "KAFKA_FAILED_TO_SEND_MESSAGE"
    assert [message.message for message in raised.value.messages] == ["2", "6", "10"]
    assert raised.value.causes.keys() == {"orders-2"}
    assert raised.value.__cause__ is raised.value.causes["orders-2"]
    assert tries(fake) == {0: 1, 1: 1, 2: 4, 3: 1}
    assert written(fake, 2) == ["next"]
    restored = pickle.loads(pickle.dumps(raised.value))
    assert (str(restored), restored.messages) == (str(raised.value), raised.value.messages)


def test_with_0_retries_nothing_is_sent_again(fake: FakeBroker) -> None:
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    with legacy(fake, message_send_max_retries=0) as producer, pytest.raises(FailedToSendMessageError, match="after 1 try "):
        producer.send(KeyedMessage("orders", "0", "a"))
    assert tries(fake) == {0: 1}


def test_retry_backoff_ms_passes_before_every_retry_and_not_after_the_last(fake: FakeBroker) -> None:
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=3)
    with HandlerStage(fake, retry_backoff_ms=700, message_send_max_retries=2) as stage:
        began_ms = stage.clock.now_ms()
        with pytest.raises(FailedToSendMessageError, match="after 3 tries"):
            stage.send(KeyedMessage("orders", "0", "a"))
        assert stage.clock.now_ms() - began_ms == 2 * 700


def test_when_the_producer_has_ended_nothing_is_tried_again(fake: FakeBroker) -> None:
    """A closed or interrupted producer was known by its error, but not one whose Sender had ended: each retry was in vain."""
    with HandlerStage(fake, message_send_max_retries=2) as stage:
        stage.producer._sender.failures.end(SystemExit())
        began_ms = stage.clock.now_ms()
        with pytest.raises(FailedToSendMessageError, match=r"after 1 try .*KAFKA_INTERNAL_ERROR"):
            stage.send(KeyedMessage("orders", "0", "a"))
        assert stage.clock.now_ms() == began_ms


def test_a_retry_finds_the_new_leader(fake: FakeBroker) -> None:
    with legacy(fake) as producer:
        producer.send(KeyedMessage("orders", "0", "a"))
        fake.move_leader("orders", 0, 1)
        producer.send(KeyedMessage("orders", "0", "b"))
    assert written(fake, 0) == ["a", "b"]
    assert [request.node_id for request in fake.requests_of(ApiKey.PRODUCE)] == [0, 0, 1]


def test_a_retry_finds_the_broker_that_took_over_from_a_dead_one(fake: FakeBroker) -> None:
    with legacy(fake, request_timeout_ms=5000) as producer:
        producer.send(KeyedMessage("orders", "0", "a"), KeyedMessage("orders", "1", "a"))
        fake.stop_node(0)
        fake.move_leader("orders", 0, 1)
        producer.send(KeyedMessage("orders", "0", "b"), KeyedMessage("orders", "1", "b"))
    assert [written(fake, partition) for partition in (0, 1)] == [["a", "b"], ["a", "b"]]


def test_what_was_written_but_not_confirmed_is_written_twice_and_in_order(fake: FakeBroker) -> None:
    with legacy(fake) as producer:
        fake.drop_next(ApiKey.PRODUCE, after_append=True)
        producer.send(KeyedMessage("single", "0", "a"), KeyedMessage("single", "0", "b"))
        producer.send(KeyedMessage("single", "0", "c"))
    assert written(fake, 0, "single") == ["a", "b", "a", "b", "c"]


def test_a_broker_that_is_back_in_time_gets_what_it_missed(fake: FakeBroker) -> None:
    with legacy(fake, request_timeout_ms=5000) as producer:
        producer.send(KeyedMessage("orders", "0", "a"))
        fake.stop_node(0)
        sending = threading.Thread(target=producer.send, args=[KeyedMessage("orders", str(n), "b") for n in range(2)])
        sending.start()
        fake.wait_until(lambda: written(fake, 1) == ["b"])
        fake.start_node(0)
        sending.join(WAIT_S)
    assert (written(fake, 0), written(fake, 1)) == (["a", "b"], ["b"])


def test_an_unknown_topic_fails_by_name_and_harms_no_other(fake: FakeBroker) -> None:
    unknown = pytest.raises(FailedToSendMessageError, match=r"1 for gone: .KAFKA_UNKNOWN_TOPIC")
    with legacy(fake, request_timeout_ms=5_000, message_send_max_retries=0) as producer:
        await_answers(producer._producer, "gone", "single")
        with unknown:
            producer.send(keyless(1, "gone"), keyless(2, "single"))
    assert written(fake, 0, "single") == ["2"]


def test_a_message_that_is_too_large_fails_by_name(fake: FakeBroker) -> None:
    with legacy(fake, message_send_max_retries=0) as producer:
        with pytest.raises(FailedToSendMessageError, match=r"single-0: .KAFKA_MESSAGE_TOO_LARGE"):
            producer.send(KeyedMessage("single", "0", "x" * 2_000_000))
        with pytest.raises(FailedToSendMessageError, match=r"single-0: .KAFKA_RECORD_TOO_LARGE"):
            producer.send(KeyedMessage("single", "0", "x" * 40_000_000))


def test_callers_take_turns_and_each_keeps_its_order(fake: FakeBroker) -> None:
    def work(name: str) -> None:
        for number in range(20):
            producer.send(KeyedMessage("single", "0", f"{name}{number}"))

    with legacy(fake) as producer:
        threads = [threading.Thread(target=work, args=[name]) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    texts = written(fake, 0, "single")
    for name in "abc":
        assert [text for text in texts if text[0] == name] == [f"{name}{number}" for number in range(20)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_use_after_close_raises_and_closing_twice_does_nothing(fake: FakeBroker, mode: str) -> None:
    producer = legacy(fake, producer_type=mode)
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send(keyless(1, "single"))
    assert fake.values("single") == []


def test_a_forced_close_fails_a_send_that_waits(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    producer = legacy(fake)
    release = fake.hold_next(ApiKey.PRODUCE)
    errors: list[KafkaError] = []

    def send() -> None:
        with pytest.raises(FailedToSendMessageError) as raised:
            producer.send(keyless(1, "single"))
        errors.append(raised.value)

    sending = threading.Thread(target=send)
    sending.start()
    fake.wait_until(lambda: bool(fake.requests_of(ApiKey.PRODUCE)))
    producer.close(0)
    sending.join(WAIT_S)
    release.set()
    assert [str(error) for error in errors if "KAFKA_PRODUCER_CLOSED" in str(error)] != []
    assert "retrying" not in caplog.text
    assert len(fake.requests_of(ApiKey.PRODUCE)) == 1


# THE QUEUE


def outgoing(number: int) -> SerializedMessage:
    return SerializedMessage(keyless(number), None, str(number).encode(), 0)


def numbers(messages: Sequence[SerializedMessage]) -> list[int]:
    return [int(message.value or b"") for message in messages]


def filled(queue: SendQueue, count: int) -> SendQueue:
    for number in range(count):
        assert queue.put(outgoing(number), 0)
    return queue


def test_a_full_batch_is_taken_at_once_and_in_order() -> None:
    clock = ManualClock()
    queue = filled(SendQueue(10, 4, 5000, clock), 9)
    began_ms = clock.now_ms()
    assert [numbers(queue.take()), numbers(queue.take())] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert clock.now_ms() == began_ms


def test_fewer_are_taken_when_the_oldest_has_waited_for_max_ms() -> None:
    clock = ManualClock()
    queue = SendQueue(10, 4, 5000, clock)
    queue.put(outgoing(0), 0)
    clock.advance(3000)
    queue.put(outgoing(1), 0)
    began_ms = clock.now_ms()
    assert numbers(queue.take()) == [0, 1]
    assert clock.now_ms() - began_ms == 2000


def test_a_closed_queue_gives_what_it_has_without_waiting_and_then_nothing() -> None:
    clock = ManualClock()
    queue = filled(SendQueue(10, 4, 5000, clock), 6)
    queue.close()
    began_ms = clock.now_ms()
    assert [numbers(queue.take()), numbers(queue.take()), queue.take()] == [[0, 1, 2, 3], [4, 5], []]
    assert clock.now_ms() == began_ms
    with pytest.raises(ProducerClosedError):
        queue.put(outgoing(6), 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that is being closed
def test_a_call_that_is_interrupted_anywhere_keeps_no_later_call_waiting() -> None:
    """A dispatch that Ctrl-C ended at the wrong moment was never over: each later call waited for ten minutes."""
    at, where = 0, ["somewhere"]
    while where:
        sent_batches: list[Sequence[SerializedMessage]] = []
        handler: Any = Mock(handle=sent_batches.append)
        clock = ManualClock()
        began_ms, dispatch = clock.now_ms(), SyncDispatch(handler, lambda: None, clock)
        interrupts = Interrupts(at)
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            dispatch.send([outgoing(0)])
        where = interrupts.where
        dispatch.send([outgoing(1)])
        assert numbers(sent_batches[-1]) == [1]
        assert dispatch.close(0)
        assert clock.now_ms() == began_ms, where
        at += 1
    assert at > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_message_put_while_an_interrupt_comes_is_in_the_queue_and_taken_or_not() -> None:
    at, where = 0, ["somewhere"]
    while where:
        queue = SendQueue(10, 2, 5000, ManualClock())
        interrupts = Interrupts(at)
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            queue.put(outgoing(0), 0)
        where = interrupts.where
        assert queue.put(outgoing(1), 0)
        queue.close()
        assert numbers(queue.take()) in ([0, 1], [1]), where
        at += 1
    assert at > 5


def unstarted(queue: SendQueue, enqueue_timeout_ms: int) -> ProducerSendThread:
    """A send thread that takes nothing."""
    handler: Any = None
    return ProducerSendThread(queue, handler, enqueue_timeout_ms, None, lambda: None, "me", ManualClock())


@pytest.mark.parametrize(("enqueue_timeout_ms", "waits_ms"), [(0, 0), (250, 250), (-1, MAX_DISPATCH_MS)])
def test_a_full_queue_is_waited_for_as_long_as_the_option_says(enqueue_timeout_ms: int, waits_ms: int) -> None:
    clock = ManualClock()
    queue = filled(SendQueue(5, 5, 5000, clock), 3)
    began_ms = clock.now_ms()
    with pytest.raises(QueueFullError, match="2 of the 4 messages of this call are queued") as raised:
        unstarted(queue, enqueue_timeout_ms).send([outgoing(number) for number in range(3, 7)])
    assert clock.now_ms() - began_ms == waits_ms
    assert (raised.value.condition, raised.value.queued) == ("KAFKA_QUEUE_FULL", 2)
    assert numbers(queue.take()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("enqueue_timeout_ms", [-1, 30_000])
def test_a_sender_that_waits_goes_on_when_there_is_room(enqueue_timeout_ms: int) -> None:
    queue = filled(SendQueue(4, 4, 5000, Clock()), 4)
    sending = threading.Thread(target=unstarted(queue, enqueue_timeout_ms).send, args=[[outgoing(4)]])
    sending.start()
    assert numbers(queue.take()) == [0, 1, 2, 3]
    sending.join(WAIT_S)
    assert not sending.is_alive()
    queue.close()
    assert numbers(queue.take()) == [4]


class NotedWait(Clock):
    """Tells when somebody waits."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        self.waits.set()
        return super().wait(waitable, timeout_ms)


def test_close_wakes_a_sender_that_waits_for_room() -> None:
    clock = NotedWait()
    queue = filled(SendQueue(4, 4, 5000, clock), 3)
    errors: list[str] = []

    def send() -> None:
        with pytest.raises(ProducerClosedError) as raised:
            unstarted(queue, -1).send([outgoing(3), outgoing(4)])
        errors.append(str(raised.value))

    sending = threading.Thread(target=send)
    sending.start()
    assert clock.waits.wait(WAIT_S)
    queue.close()
    sending.join(WAIT_S)
    assert len(errors) == 1
    assert "1 of 2 messages of this call are queued" in errors[0]


# ASYNC


def test_async_messages_are_sent_batch_num_messages_at_a_time_and_in_order(fake: FakeBroker) -> None:
    with asynchronous(fake, batch_num_messages=5, queue_buffering_max_ms=60_000) as producer:
        producer.send(*[keyless(number, "single") for number in range(12)])
        fake.wait_until(lambda: len(fake.values("single")) == 10)
    assert written(fake, 0, "single") == [str(number) for number in range(12)]
    assert [len(batch.records) for batch in fake.batches("single")] == [5, 5, 2]


def test_fewer_messages_are_sent_after_queue_buffering_max_ms(fake: FakeBroker) -> None:
    with asynchronous(fake, queue_buffering_max_ms=20) as producer:
        producer.send(keyless(1, "single"))
        fake.wait_until(lambda: written(fake, 0, "single") == ["1"])


def test_async_send_does_not_wait_for_the_brokers(fake: FakeBroker) -> None:
    release = fake.hold_next(ApiKey.PRODUCE)
    with asynchronous(fake) as producer:
        producer.send(keyless(1, "single"))
        fake.wait_until(lambda: bool(fake.requests_of(ApiKey.PRODUCE)))
        producer.send(keyless(2, "single"))
        assert fake.values("single") == []
        release.set()
    assert written(fake, 0, "single") == ["1", "2"]


def test_close_sends_what_is_queued_and_the_thread_ends(fake: FakeBroker) -> None:
    producer = asynchronous(fake, queue_buffering_max_ms=600_000, batch_num_messages=7, client_id="ends")
    assert "ProducerSendThread-ends" in {thread.name for thread in threading.enumerate()}
    producer.send(*[keyless(number, "single") for number in range(20)])
    producer.close()
    assert written(fake, 0, "single") == [str(number) for number in range(20)]
    assert_ended("ends")


def test_a_queue_that_is_full_and_does_not_wait_keeps_what_it_has(fake: FakeBroker) -> None:
    release = fake.hold_next(ApiKey.PRODUCE)
    options = {"queue_enqueue_timeout_ms": 0, "queue_buffering_max_messages": 3, "batch_num_messages": 1}
    with asynchronous(fake, **options) as producer:
        producer.send(keyless(0, "single"))
        fake.wait_until(lambda: bool(fake.requests_of(ApiKey.PRODUCE)))
        with pytest.raises(QueueFullError) as raised:
            producer.send(*[keyless(number, "single") for number in range(1, 9)])
        assert raised.value.queued == 3
        release.set()
    assert written(fake, 0, "single") == ["0", "1", "2", "3"]


def test_a_queue_that_waits_loses_nothing(fake: FakeBroker) -> None:
    with asynchronous(fake, queue_buffering_max_messages=10, batch_num_messages=5) as producer:
        for number in range(100):
            producer.send(keyless(number, "single"))
    assert written(fake, 0, "single") == [str(number) for number in range(100)]


def test_async_retries_only_what_failed_and_keeps_the_order(fake: FakeBroker) -> None:
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2, topic_partition=tp(3, "orders"))
    with asynchronous(fake, batch_num_messages=20) as producer:
        producer.send(*[KeyedMessage("orders", str(number % 4), str(number)) for number in range(60)])
    for partition in range(4):
        assert written(fake, partition) == [str(number) for number in range(partition, 60, 4)]


def test_what_async_gives_up_is_logged_and_handed_to_on_error(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    given_up: list[tuple[str, list[Any]]] = []

    def on_error(error: KafkaError, messages: Sequence[KeyedMessage]) -> None:
        given_up.append((error.condition, [message.message for message in messages]))
        raise RuntimeError("from on_error")

    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2, topic_partition=tp(1, "orders"))
    with asynchronous(fake, on_error, message_send_max_retries=1, batch_num_messages=8) as producer:
        producer.send(*[KeyedMessage("orders", str(number % 4), str(number)) for number in range(16)])
    assert given_up == [("KAFKA_FAILED_TO_SEND_MESSAGE", ["1", "5"])]
    assert written(fake, 1) == ["9", "13"]
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged[0].startswith("! 2 messages are given up: [KAFKA_FAILED_TO_SEND_MESSAGE]")
    assert logged[1:] == ["! on_error raised"]


def test_on_error_may_send_again_and_finds_a_full_queue_full(fake: FakeBroker) -> None:
    """Waiting there for room would be waiting for its own thread."""
    results: list[str] = []

    def again(_: KafkaError, messages: Sequence[KeyedMessage]) -> None:
        try:
            producer.send(*messages, keyless(2, "single"))
            results.append("sent")
        except QueueFullError as error:
            results.append(f"{error.queued} queued")

    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    options = {"message_send_max_retries": 0, "queue_buffering_max_messages": 1, "batch_num_messages": 1}
    with asynchronous(fake, again, **options) as producer:
        producer.send(keyless(1, "single"))
        fake.wait_until(lambda: written(fake, 0, "single") == ["1"])
    assert results == ["1 queued"]


def test_on_error_may_close(fake: FakeBroker) -> None:
    closed = threading.Event()

    def close(*_: object) -> None:
        producer.close()
        closed.set()

    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    producer = asynchronous(fake, close, message_send_max_retries=0, batch_num_messages=1, client_id="closing")
    producer.send(keyless(1, "single"), keyless(2, "single"))
    assert closed.wait(WAIT_S)
    producer.close()
    assert written(fake, 0, "single") == ["2"]
    assert_ended("closing")


def test_a_forced_close_tells_of_every_message_that_is_left(fake: FakeBroker) -> None:
    given_up: list[Any] = []
    release = fake.hold_next(ApiKey.PRODUCE)
    producer = asynchronous(
        fake,
        lambda _, messages: given_up.extend(message.message for message in messages),
        batch_num_messages=2,
        client_id="forced",
    )
    producer.send(*[keyless(number, "single") for number in range(7)])
    fake.wait_until(lambda: bool(fake.requests_of(ApiKey.PRODUCE)))
    producer.close(0)
    release.set()
    assert given_up == [str(number) for number in range(7)]
    assert_ended("forced")


def test_a_forced_close_ends_a_wait_before_a_retry(fake: FakeBroker) -> None:
    given_up: list[Any] = []
    fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    producer = asynchronous(
        fake, lambda _, messages: given_up.extend(messages), retry_backoff_ms=600_000, client_id="backing-off"
    )
    producer.send(keyless(1, "single"))
    fake.wait_until(lambda: bool(fake.requests_of(ApiKey.PRODUCE)))
    producer.close(50)
    assert len(given_up) == 1
    assert_ended("backing-off")


def test_a_failure_nobody_foresaw_reaches_on_error_and_the_thread_goes_on(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    handle, failing = EventHandler.handle, [True]

    def once_broken(self: EventHandler, messages: Sequence[SerializedMessage]) -> None:
        if failing.pop() if failing else False:
            raise ZeroDivisionError
        handle(self, messages)

    monkeypatch.setattr(EventHandler, "handle", once_broken)
    with asynchronous(
        fake, lambda _, messages: given_up.extend(each.message for each in messages), batch_num_messages=1
    ) as producer:
        producer.send(keyless(1, "single"), keyless(2, "single"))
    assert given_up == ["1"]
    assert written(fake, 0, "single") == ["2"]


@pytest.mark.parametrize("where", ["partitioner", "on_error"])
def test_sys_exit_on_the_send_thread_leaves_no_message_unreported(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The thread ended in silence: send went on to accept messages, and close returned as if they had been sent."""
    reports: list[list[Any]] = []

    def handle(messages: Sequence[SerializedMessage]) -> None:
        if where == "partitioner":
            raise SystemExit(1)
        raise FailedToSendMessageError("no", messages=[message.original for message in messages], causes={})

    def on_error(_: KafkaError, messages: Sequence[KeyedMessage]) -> None:
        reports.append([int(message.message) for message in messages])
        if where == "on_error":
            raise SystemExit(1)

    clock, at_end, handler = ManualClock(), Mock(), Mock(handle=handle)
    queue = filled(SendQueue(5, 2, 5000, clock), 5)
    send_thread = ProducerSendThread(queue, handler, 0, on_error, at_end, "me", clock)
    with contextlib.suppress(SystemExit):
        send_thread._run()
    assert reports == [[0, 1], [2, 3, 4]]
    with pytest.raises(ProducerClosedError):
        send_thread.send([outgoing(5)])
    assert send_thread.close(0)
    at_end.assert_called_once_with()
    assert any(record.exc_info and record.exc_info[0] is SystemExit for record in caplog.records)


def test_a_thread_that_cannot_start_leaves_no_producer_behind(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ProducerSendThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ProducerSendThread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asynchronous(fake, client_id="half-made")
    assert_ended("half-made")


def test_an_interrupt_while_the_thread_starts_leaves_no_thread_behind(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer below ran on, and so did the thread if it had started."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("ProducerSendThread"):
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asynchronous(fake, client_id="half-made")
    assert_ended("half-made")


# A REAL BROKER


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_real_broker_has_all_messages_in_order(broker: LocalKafka, topic: Topic, read_topic: ReadTopic, mode: str) -> None:
    name = topic(partitions=3)
    options = {"producer_type": mode, "compression_codec": "gzip", "partitioner_class": "kafka.producer.DefaultPartitioner"}
    with Producer(legacy_options(broker.bootstrap_servers, **options)) as producer:
        for start in range(0, 1000, 50):
            producer.send(*[KeyedMessage(name, f"key{n % 7}", str(n)) for n in range(start, start + 50)])
        producer.send(KeyedMessage(name, message="without a key"))
    records = read_topic(name)
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        if record.key is None:
            assert record.value == b"without a key"
            continue
        assert record.partition == default_partition(record.key.decode(), 3)
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert len(records) == 1001
    assert by_key == {f"key{key}".encode(): list(range(key, 1000, 7)) for key in range(7)}
