"""RecordAccumulator: flush, close and abort, and rows of transactions."""

from __future__ import annotations

import pytest

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.errors import KafkaError, ProducerClosedError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.producer.accumulator.small_batches import BATCH, ONE_NODE, TWO_NODES, VALUE, split
from tests.producer.harness import Accumulation, OpenAppend, payload
from tests.records.reference import decode_batch

# FLUSH, CLOSE, ABORT


def test_while_somebody_flushes_everything_is_ready() -> None:
    stage = Accumulation(linger_ms=60_000, batch_size=BATCH)
    stage.append(VALUE, VALUE, VALUE, partition=[0, 1, 2])
    assert stage.ready(TWO_NODES) == set()
    ready: list[set[int]] = []

    def send() -> None:
        ready.append(stage.ready(TWO_NODES))
        for batches in stage.drain(TWO_NODES, 0, 1).values():
            for batch in batches:
                stage.give_back(batch)

    stage.on_wake = send
    assert stage.accumulator.flush(1000) is True
    assert ready == [{0, 1}]
    stage.append(VALUE)
    assert stage.ready(TWO_NODES) == set()  # the flush is over


def test_flush_does_not_wait_for_rows_that_come_later() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")

    def send() -> None:
        stage.on_wake = lambda: None
        stage.give_back(stage.drain_one(ONE_NODE))
        stage.append(b"2")

    stage.on_wake = send
    assert stage.accumulator.flush(1000) is True
    assert stage.accumulator.incomplete


def test_flush_may_end_before_all_rows_have_an_outcome() -> None:
    stage = Accumulation(linger_ms=60_000)
    first = stage.append(b"1", b"2", partition=[0, 1])

    def send() -> None:
        stage.give_back(stage.drain(ONE_NODE, 0)[0][0])

    stage.on_wake = send
    assert stage.accumulator.flush(1000, lambda: first.acknowledged == 1) is True
    assert stage.accumulator.incomplete
    stage.on_wake = lambda: None
    assert stage.accumulator.flush(1000, first.done) is False


def test_flush_of_nothing_is_done_at_once() -> None:
    stage = Accumulation()
    assert stage.accumulator.flush(0) is True


def test_flush_gives_up_after_its_time_and_is_over_then() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")
    before = stage.now_ms
    assert stage.accumulator.flush(250) is False
    assert stage.now_ms - before == 250
    assert stage.ready(ONE_NODE) == set()


def test_flush_that_is_interrupted_is_over() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    stage.clock.wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.accumulator.flush(250)
    assert stage.ready(ONE_NODE) == set()


def test_flush_ends_when_a_batch_fails_while_its_request_is_still_out() -> None:
    stage = Accumulation()
    stage.append(b"1")
    batch = stage.drain_one(ONE_NODE)
    batch.is_in_flight = True
    batch.fail(KafkaError("expired"), final_state=FinalState.ABORTED)
    stage.accumulator.incomplete.remove(batch)
    assert stage.accumulator.flush(0) is True


def test_a_closed_accumulator_refuses_rows_and_has_everything_sent() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")
    stage.accumulator.close()
    with pytest.raises(ProducerClosedError):
        stage.append(b"2")
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]


def test_rows_refused_by_a_closed_accumulator_take_no_memory() -> None:
    stage = Accumulation()
    stage.pool.try_allocate(0)
    stage.accumulator.is_closed = True  # between the caller's memory and its reservation
    with pytest.raises(ProducerClosedError):
        stage.append(b"1")
    assert stage.is_whole


def test_what_is_queued_and_what_is_in_flight_can_be_taken_oldest_first() -> None:
    stage = Accumulation(batch_size=BATCH)
    for _ in range(3):
        stage.append(bytes(900))
    in_flight = stage.drain_one(ONE_NODE)
    in_flight.is_in_flight = True
    error = ProducerClosedError("The producer was closed forcefully")
    batches = stage.accumulator.take_incomplete(error)
    assert batches[0] is in_flight
    assert [batch.flush_id for batch in batches] == [1, 2, 3]
    assert not stage.accumulator.has_queued_batches()


def test_a_taken_batch_that_is_being_written_stays_until_its_caller_is_done() -> None:
    stage = Accumulation()
    writing = OpenAppend(stage, b"1")
    error = KafkaError("fatal")
    assert len(stage.accumulator.take_incomplete(error)) == 1
    writing.fill()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    (poisoned,) = stage.accumulator.take_expired(stage.now_ms)
    assert poisoned.poison is error
    stage.accumulator.deallocate(poisoned)
    assert stage.is_whole


# TRANSACTIONS


def test_a_batch_and_its_smaller_ones_say_that_they_belong_to_a_transaction() -> None:
    stage = Accumulation(batch_size=16 * BATCH, enable_idempotence=True, transactional_id="t")
    stage.append(bytes(1000), bytes(1000))
    whole = stage.drain_one(ONE_NODE)
    assert decode_batch(b"".join(whole.wire_buffers())).transactional
    split(stage, whole)
    smaller = [stage.drain_one(ONE_NODE) for _ in range(2)]
    assert [decode_batch(b"".join(each.wire_buffers())).transactional for each in smaller] == [True, True]


def test_batches_of_no_transaction_say_so() -> None:
    stage = Accumulation()
    stage.append(b"1")
    assert not decode_batch(b"".join(stage.drain_one(ONE_NODE).wire_buffers())).transactional


def test_while_a_transaction_waits_for_its_rows_nothing_lingers() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")
    assert stage.ready(ONE_NODE) == set()
    stage.accumulator.transaction_waits_for_rows = True
    assert stage.accumulator.must_hurry()
    assert stage.ready(ONE_NODE) == {0}
    stage.accumulator.transaction_waits_for_rows = False
    assert stage.ready(ONE_NODE) == set()


def test_all_is_settled_when_the_last_batch_queued_or_in_flight_is_done() -> None:
    stage = Accumulation()
    assert not stage.accumulator.incomplete
    stage.append(b"1", b"2", partition=[0, 1])
    assert stage.accumulator.incomplete
    first, second = stage.drain(ONE_NODE, 0)[0]
    assert not stage.accumulator.has_queued_batches()
    stage.give_back(first)
    assert stage.accumulator.incomplete
    stage.give_back(second)
    assert not stage.accumulator.incomplete


ABORT = KafkaError("the transaction is being aborted")


class Numbers:
    """A sequencer that numbers every batch at its first drain."""

    has_producer_id = True

    def must_stop_draining(self, first: ProducerBatch) -> bool:
        del first
        return False

    def assign_sequence(self, batch: ProducerBatch) -> None:
        if not batch.has_sequence:
            batch.set_producer_state(ProducerIdentity(7, 0), batch.flush_id)


def test_aborting_removes_what_was_never_drained_oldest_first() -> None:
    stage = Accumulation(batch_size=BATCH, sequencer=Numbers())
    for partition in (1, 0, 1):
        stage.append(bytes(900), partition=partition)
    aborted = stage.accumulator.take_undrained(ABORT)
    assert [(batch.topic_partition.partition, batch.is_closed) for batch in aborted] == [(1, True), (0, True), (1, True)]
    assert not stage.accumulator.has_queued_batches()
    assert stage.accumulator.incomplete  # until the Sender has failed them
    for batch in aborted:
        batch.fail(ABORT)
        stage.accumulator.deallocate(batch)
    assert not stage.accumulator.incomplete
    assert stage.is_whole


@pytest.mark.parametrize("sequencer", [Numbers(), None], ids=["with sequences", "without"])
def test_aborting_leaves_batches_in_flight_and_in_retry_alone(sequencer: Numbers | None) -> None:
    """The broker may have written these batches: the transaction cannot end before the broker has answered."""
    stage = Accumulation(batch_size=BATCH, sequencer=sequencer, retry_backoff_ms=0)
    for _ in range(3):
        stage.append(bytes(900))
    retried, in_flight = stage.drain_one(ONE_NODE), stage.drain_one(ONE_NODE)
    in_flight.is_in_flight = True
    stage.accumulator.reenqueue(retried, stage.now_ms)
    (aborted,) = stage.accumulator.take_undrained(ABORT)
    assert aborted.flush_id == 3
    assert retried.poison is None
    assert stage.drain_one(ONE_NODE) is retried
    assert stage.accumulator.take_undrained(ABORT) == []


def test_an_aborted_batch_that_is_being_written_stays_until_its_caller_is_done() -> None:
    stage = Accumulation()
    writing = OpenAppend(stage, b"1")
    assert stage.accumulator.take_undrained(ABORT) == []
    assert stage.drain(ONE_NODE, 0) == {0: []}
    assert stage.accumulator.take_expired(stage.now_ms) == []
    stage.wakeups = 0
    writing.fill()
    assert stage.wakeups == 1
    (aborted,) = stage.accumulator.take_expired(stage.now_ms)
    assert aborted.poison is ABORT
    stage.accumulator.deallocate(aborted)
    assert not stage.accumulator.incomplete
    assert stage.is_whole


def test_rows_are_refused_with_a_fresh_copy_of_the_error_until_it_is_taken_back() -> None:
    stage = Accumulation()
    stage.accumulator.refuse_rows(ABORT)
    callback = Delivery(1, stage.clock)
    with pytest.raises(KafkaError, match="is being aborted") as raised:
        stage.append(b"1", callback=callback)
    assert raised.value is not ABORT
    assert ABORT.__traceback__ is None
    assert callback.failed == 1
    assert not stage.accumulator.incomplete
    assert stage.is_whole
    stage.accumulator.refuse_rows(None)
    stage.append(b"2")
    assert payload(stage.drain_one(ONE_NODE)) == [b"2"]


def test_an_append_that_waits_for_memory_during_its_abort_puts_no_more_rows_in() -> None:
    """The append's later rows would otherwise be in the next transaction."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH, linger_ms=60_000, sequencer=Numbers())

    def abort(waitable: Waitable, timeout_ms: int) -> bool:
        del waitable, timeout_ms
        stage.accumulator.refuse_rows(ABORT)
        for batch in stage.accumulator.take_undrained(ABORT):
            batch.fail(ABORT)
            stage.accumulator.deallocate(batch)
        return True

    stage.clock.wait = abort
    callback = Delivery(10, stage.clock)
    with pytest.raises(KafkaError, match="is being aborted"):
        stage.append(*[bytes(500)] * 10, callback=callback)
    assert callback.failed == 10
    assert not stage.accumulator.incomplete
    assert stage.is_whole
