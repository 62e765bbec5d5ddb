"""Exceptions of the Sender's own code: it logs them and goes on, or ends, and no row is lost or left without an outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any
from unittest.mock import Mock

import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.partition_queue import PartitionQueue
from spark_kafka_sink.producer.hand_overs import HandOvers
from spark_kafka_sink.producer.sender.sender_failures import MIN_BACKOFF_MS, SenderFailures
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.fakes.clock import ManualClock
from tests.producer.harness import TOPIC, Stage, config, tp
from tests.producer.sender.scene import Scene
from tests.producer.sender.stages import gather
from tests.producer.simulated_brokers import Fate, SimulatedBrokers


class Trouble:
    """Takes the place of a method: works `after` times, raises so many times, then does what the method does."""

    def __init__(self, method: Callable[..., Any], error: BaseException, times: int, after: int) -> None:
        self._method = method
        self._error = error
        self._after = after
        self.left = times

    def __call__(self, *args: Any, **more: Any) -> Any:
        if self._after:
            self._after -= 1
        elif self.left:
            self.left -= 1
            raise self._error
        return self._method(*args, **more)


def let_fail(holder: object, method: str, error: BaseException, times: int = 1, after: int = 0) -> Trouble:
    trouble = Trouble(getattr(holder, method), error, times, after)
    setattr(holder, method, trouble)
    return trouble


BUG = ZeroDivisionError("a bug")


def behaving(stage: Stage) -> SimulatedBrokers:
    """Brokers that answer in every poll, so that the Sender's own loop can run."""
    brokers = SimulatedBrokers(stage)
    poll = stage.client.poll

    def answering(timeout_ms: int, now_ms: int) -> Any:
        for request in stage.in_flight:
            stage.client.respond(brokers.answer_to(request, Fate.ANSWER), request=request)
        stage.clock.advance(10)
        return poll(timeout_ms, now_ms)

    stage.client.poll = answering
    return brokers


def run_to_the_end(stage: Stage) -> None:
    stage.sender.initiate_close()
    stage.sender.run()


@pytest.mark.parametrize("error", [BUG, MemoryError(), KafkaError("of our own")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("client", "poll"),
        ("client", "send"),
        ("client", "ready"),
        ("accumulator", "ready"),
        ("accumulator.drainer", "drain"),
        ("accumulator", "take_expired"),
        ("metadata", "cluster"),
        ("metrics", "request_sent"),
        ("idempotent_sequencer", "prepare_drain"),
        ("sender._produce_requests", "_make_request"),
    ],
)
def test_a_round_that_fails_is_followed_by_one_that_works(
    part: str, method: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Any exception ended the Sender: all rows failed, and the producer was of no use any more. Java logs it and goes on."""
    stage = Stage(enable_idempotence=True)
    brokers = behaving(stage)
    deliveries = [stage.append(b"%d" % number) for number in range(3)]
    trouble = let_fail(attrgetter(part)(stage), method, error)
    run_to_the_end(stage)
    assert trouble.left == 0
    assert stage.sender.failures.fatal is None
    assert [delivery.error for delivery in deliveries] == [None] * 3
    assert brokers.logs[tp()].values == [b"0", b"1", b"2"]
    assert stage.is_whole
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.exc_info is not None
    assert logged.exc_info[1] is error


class FullOnce(dict[Any, Any]):
    """Takes its first item at the second attempt."""

    is_full = True

    def __setitem__(self, key: object, value: object) -> None:
        if self.is_full:
            self.is_full = False
            raise MemoryError
        super().__setitem__(key, value)

    def setdefault(self, key: object, value: object = None) -> Any:
        if key not in self:
            self[key] = value
        return self[key]


def test_batches_are_queued_again_when_memory_ends_before_they_count_as_in_flight() -> None:
    """A batch that was only marked as in flight could not be taken back: the batches after it were lost."""
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 0)})
    brokers = behaving(stage)
    stage.sender._outcomes.in_flight._batches = FullOnce()
    deliveries = [stage.append(b"%d" % partition, partition=partition) for partition in (0, 1)]
    run_to_the_end(stage)
    assert [delivery.error for delivery in deliveries] == [None, None]
    assert [brokers.logs[tp(partition)].values for partition in (0, 1)] == [[b"0"], [b"1"]]
    assert stage.is_whole


def test_a_batch_is_put_back_when_memory_ends_before_it_is_drained() -> None:
    """The batch was in no queue and in no request: flush() waited for it until the producer ended."""
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 0)})
    brokers = behaving(stage)
    stage.accumulator.drainer._last_drained_indexes = FullOnce()
    deliveries = [stage.append(b"%d" % partition, partition=partition) for partition in (0, 1)]
    run_to_the_end(stage)
    assert [delivery.error for delivery in deliveries] == [None, None]
    assert [brokers.logs[tp(partition)].values for partition in (0, 1)] == [[b"0"], [b"1"]]
    assert stage.is_whole


@pytest.mark.parametrize(("takes", "each"), [("take_expired", "take_expired"), ("take_undrained", "take_batches")])
def test_batches_are_put_back_when_memory_ends_at_another_queue(takes: str, each: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches of the first queue were in no queue any more, and their error was lost."""
    stage = Stage(leaders={TOPIC: (0, 0)})
    deliveries = [stage.append(b"a", partition=partition) for partition in (0, 1)]
    stage.clock.advance(stage.config.delivery_timeout_ms)
    error = KafkaError("the transaction is aborted")
    take = partial(getattr(stage.accumulator, takes), stage.now_ms if takes == "take_expired" else error)
    of_queue = getattr(PartitionQueue, each)

    def fails_at_the_second(queue: PartitionQueue, *args: Any, **options: Any) -> Any:
        if queue.topic_partition == tp(1):
            raise MemoryError
        return of_queue(queue, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionQueue, each, fails_at_the_second)
        with pytest.raises(MemoryError):
            take()
    batches = take()
    assert [batch.topic_partition for batch in batches] == [tp(0), tp(1)]
    for batch in batches:
        stage.sender._outcomes.abort(batch, error)
    assert [delivery.failed for delivery in deliveries] == [1, 1]
    assert stage.is_whole


@pytest.mark.parametrize("poisoned", [False, True])
def test_batches_expire_after_a_look_that_failed_at_the_first_queue(poisoned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look had forgotten the oldest batch before it: nothing expired until a newer batch did."""
    stage = Stage(leaders={TOPIC: (None, None)})
    deliveries = [stage.append(b"a", partition=partition) for partition in (0, 1)]
    if poisoned:
        for queue in stage.accumulator.queues:
            queue.batches[0].poison = KafkaError("no longer wanted")
        stage.accumulator.queues.oldest.note_poisoned()
    else:
        stage.clock.advance(stage.config.delivery_timeout_ms)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionQueue, "take_expired", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            stage.accumulator.take_expired(stage.now_ms)
    stage.run()
    assert [delivery.failed for delivery in deliveries] == [1, 1]


def test_a_batch_that_has_not_left_its_queue_is_not_put_back_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the batch was sent once more: the row was in Kafka twice."""
    stage = Stage(enable_idempotence=False)
    brokers = behaving(stage)
    delivery = stage.append(b"once")
    with monkeypatch.context() as patched:
        patched.setattr(PartitionQueue, "take_first_locked", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            stage.sender.run_once()
    run_to_the_end(stage)
    assert delivery.error is None
    assert brokers.logs[tp()].values == [b"once"]
    assert stage.is_whole


def test_batches_that_are_put_back_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(batch_size=200, leaders={TOPIC: (None, None)})
    for value in (b"a", b"b", b"c"):
        stage.append(value * 150, partition=0)
    stage.append(b"x", partition=1)
    queue = stage.accumulator.queues.of_partition(tp(0))
    before = list(queue.batches)
    take = PartitionQueue.take_batches

    def fails_at_the_second(taken_from: PartitionQueue, *args: Any, **options: Any) -> Any:
        if taken_from is not queue:
            raise MemoryError
        return take(taken_from, *args, **options)

    monkeypatch.setattr(PartitionQueue, "take_batches", fails_at_the_second)
    with pytest.raises(MemoryError):
        stage.accumulator.take_undrained(KafkaError("aborted"))
    assert list(queue.batches) == before


def test_a_request_for_the_producer_id_that_fails_is_made_again() -> None:
    stage = Stage(enable_idempotence=True, has_producer_id=False)
    trouble = let_fail(stage.client, "send", BUG)
    delivery = stage.send(b"a")
    assert trouble.left == 0
    assert not delivery.done()
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_producer_id_that_has_come_is_not_asked_for_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer id was asked for without end, and each answer changed the id of batches that were in flight."""
    stage = Stage(enable_idempotence=True, has_producer_id=False)
    received = stage.idempotent_sequencer.handle_identity

    def fails_behind(identity: ProducerIdentity) -> None:
        received(identity)
        raise MemoryError

    monkeypatch.setattr(stage.idempotent_sequencer, "handle_identity", fails_behind)
    delivery = stage.send(b"a")
    stage.client.respond(InitProducerIdResponse(producer_id=5, producer_epoch=0))
    for _ in range(3):
        stage.run()
        stage.back_off()
    assert [type(request.message) for request in stage.in_flight] == [ProduceRequest]
    stage.succeed()
    assert delivery.acknowledged == 1


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("sender._produce_requests", "_learn_leaders"),
        ("sender._outcomes", "_take_step"),
        ("sender._outcomes", "_succeed"),
        ("idempotent_sequencer", "handle_completed_batch"),
        ("metrics", "request_answered"),
    ],
)
def test_an_answer_that_cannot_be_handled_fails_its_batch_alone(part: str, method: str) -> None:
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 1)}, max_in_flight_requests_per_connection=1)
    stage.introduce()
    behaving(stage)
    deliveries = [stage.append(b"a", partition=0), stage.append(b"b", partition=1)]
    let_fail(attrgetter(part)(stage), method, BUG)
    stage.sender._is_running = False  # as initiate_close, but rows may be appended
    stage.sender.run()
    assert sorted(delivery.failed for delivery in deliveries) == [0, 1]
    assert sorted(delivery.acknowledged for delivery in deliveries) == [0, 1]
    assert stage.sender.failures.fatal is None
    assert stage.is_whole


def test_an_error_that_cannot_be_judged_fails_its_batch() -> None:
    """The look at what the error means stood outside of the guard: the rows stayed in no queue, and were never settled."""
    scene = Scene()
    delivery = scene.stage.send(b"a")
    let_fail(scene.stage.sender._outcomes, "_facts", BUG)
    scene.fail_with(False, Errors.REQUEST_TIMED_OUT)
    assert (delivery.failed, delivery.acknowledged) == (1, 0)
    assert isinstance(delivery.error, KafkaError)
    assert delivery.error.condition == "KAFKA_INTERNAL_ERROR"
    assert scene.write(b"later").error is None
    scene.settle()
    assert scene.stage.is_whole


def test_a_late_error_that_cannot_be_judged_frees_the_memory_of_its_batch() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.run()  # expires it in flight
    let_fail(stage.sender._outcomes, "_facts", BUG)
    stage.reject(Errors.REQUEST_TIMED_OUT)
    assert delivery.failed == 1
    assert stage.is_whole


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("idempotent_sequencer", "must_stop_draining"),
        ("idempotent_sequencer", "assign_sequence"),
        ("sender._outcomes", "_mute"),
        ("sender._outcomes", "note_drained"),
        ("sender._expiry", "next_delay_ms"),
    ],
)
def test_batches_that_were_taken_out_of_their_queues_are_sent_whatever_fails_then(part: str, method: str, call: int) -> None:
    """Such batches were in no queue and in no request: their rows had no outcome before close(), and flush() waited in vain."""
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 1, 0)}, max_in_flight_requests_per_connection=1)
    brokers = behaving(stage)
    stage.sender.run_once()
    stage.sender.run_once()  # the producer has its id
    deliveries = [stage.append(b"%d" % partition, partition=partition) for partition in range(3)]
    let_fail(attrgetter(part)(stage), method, BUG, after=call)
    run_to_the_end(stage)
    assert [delivery.error for delivery in deliveries] == [None] * 3
    assert [brokers.logs[tp(partition)].values for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert stage.is_whole


@pytest.mark.parametrize(
    ("part", "method", "call"),
    [
        ("idempotent_sequencer", "replace_in_flight", 0),
        ("accumulator.queues", "put_back", 0),
        ("accumulator.queues", "put_back", 1),
    ],
)
def test_smaller_batches_that_cannot_be_queued_fail(part: str, method: str, call: int) -> None:
    """The batch counted as done, and the smaller ones were in no queue: nobody settled the rows, and flush() waited in vain."""
    scene = Scene()
    delivery = scene.stage.send(b"a", b"b", b"c", b"d")
    let_fail(attrgetter(part)(scene.stage), method, BUG, after=call)
    scene.fail_with(False, Errors.MESSAGE_TOO_LARGE)
    scene.settle()
    assert delivery.failed + delivery.acknowledged == 4
    assert isinstance(delivery.error, KafkaError)
    assert delivery.error.condition == "KAFKA_INTERNAL_ERROR"
    assert scene.write(b"later").error is None
    assert scene.log() == [b"introduction", *([b"c", b"d"] if call else []), b"later"]
    assert scene.stage.is_whole


def test_a_batch_that_cannot_be_compressed_fails_alone() -> None:
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 0)}, compression_type="lz4")
    behaving(stage)
    deliveries = [stage.append(b"a", partition=0), stage.append(b"b", partition=1)]
    let_fail(stage.accumulator.drainer.compressor, "finish", MemoryError("no more"))
    run_to_the_end(stage)
    assert [delivery.failed for delivery in deliveries] == [1, 0]
    assert str(deliveries[0].error).startswith(
        "[KAFKA_INTERNAL_ERROR] orders-0: 1 record(s) cannot be compressed with lz4: MemoryError('no more')"
    )
    assert deliveries[1].acknowledged == 1
    assert stage.is_whole


def test_while_rounds_fail_the_sender_backs_off_and_rows_expire() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=5000)
    delivery = stage.append(b"a")
    stage.clock.advance(3000)
    trouble = let_fail(stage.client, "poll", BUG, times=6)
    began_ms = stage.now_ms
    stage.client.set_unreachable(0, 60_000)
    stage.sender._is_running = False
    stage.sender.run()
    assert trouble.left == 0
    assert 0.8 <= (stage.now_ms - began_ms) / (100 + 200 + 400 + 800 + 1000 + 1000) <= 1.2
    assert isinstance(delivery.error, KafkaError)
    assert delivery.error.condition == "KAFKA_DELIVERY_TIMEOUT"
    assert "ZeroDivisionError('a bug')" in str(delivery.error)
    assert stage.sender.failures.fatal is None


def test_rounds_that_fail_wait_longer_each_time_even_with_no_retry_backoff() -> None:
    """Each failed round logs a traceback: there were 20 a second until the Sender ended."""
    failures = SenderFailures(config(retry_backoff_ms=0), HandOvers(ManualClock(), lambda: None))
    waits_ms = [failures.note_round_failure(BUG, 0) for _ in range(8)]
    assert waits_ms[0] >= 0.8 * MIN_BACKOFF_MS
    assert all(0.8 * 1_000 <= each <= 1_000 for each in waits_ms[5:])


def test_a_sender_that_fails_for_a_delivery_timeout_ends_and_says_why() -> None:
    """Nobody may wait for ever: records that are only gathered do not expire while no round comes so far as to queue them."""
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=5000, linger_ms=0)
    trouble = let_fail(stage.metadata, "cluster", BUG, times=1_000_000)
    stage.clock.advance(1)
    record = gather_with(stage, trouble)
    stage.sender.run()
    assert stage.sender.failures.fatal is BUG
    assert str(record.exception(0)) == "[KAFKA_INTERNAL_ERROR] The producer's sender thread failed: ZeroDivisionError('a bug')"
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        stage.append(b"b")


def gather_with(stage: Stage, trouble: Trouble) -> RecordFuture:
    """A record that is gathered while the trouble rests."""
    left, trouble.left = trouble.left, 0
    record = gather(stage, b"a", None)
    trouble.left = left
    return record


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_what_is_no_exception_ends_the_sender_at_once(error: BaseException) -> None:
    stage = Stage()
    delivery = stage.append(b"a")
    let_fail(stage.client, "poll", error, times=1_000_000)
    stage.sender.run()
    assert stage.sender.failures.fatal is error
    assert delivery.failed == 1
    assert stage.is_whole


def test_closing_by_force_ends_the_back_off_of_a_sender_that_fails() -> None:
    stage = Stage()
    delivery = stage.append(b"a")
    let_fail(stage.client, "poll", BUG, times=1_000_000)
    wait, stage.clock.wait = stage.clock.wait, lambda *_: stage.sender.force_close()
    stage.sender.run()
    stage.clock.wait = wait
    assert delivery.failed == 1
    assert stage.sender.failures.fatal is None
