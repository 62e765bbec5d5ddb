"""PartitionQueue: where a batch is put back, which ones leave when they are too old or fail, and what the Sender hears of it."""

from __future__ import annotations

from collections import deque

import pytest

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator import partition_queue
from spark_kafka_sink.producer.accumulator.partition_queue import OldestBatch, PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.producer.harness import tp

TIMEOUT_MS = 100
FAILED = KafkaError("gone")


def batch_of(sequence: int | None = None, *, created_ms: int = 0, written_by: int = 0) -> ProducerBatch:
    """A batch that was drained before, if it has a sequence; callers may still write into it."""
    batch = ProducerBatch(tp(), created_ms, 10_000, base_timestamp=0, flush_id=1, block_size=256)
    if sequence is not None:
        batch.is_closed = True
        batch.set_producer_state(ProducerIdentity(1, 0), sequence)
    batch.reservation_count = written_by
    return batch


def queue_of(*batches: ProducerBatch) -> PartitionQueue:
    queue = PartitionQueue(tp(), 0, deque())
    with queue.lock:
        for batch in batches:
            queue.append_locked(batch)
    return queue


@pytest.mark.parametrize(
    ("queued", "inserted", "place"),
    [
        ([], 5, 0),
        ([10, 20], 5, 0),
        ([10, 20], 15, 1),
        ([10, 20], 25, 2),
        ([10, None, None], 15, 1),  # before all that was never drained
        ([10, 20, 30, None], 35, 3),
        ([10], MAX_SEQUENCE, 0),  # sequences wrap around
        ([MAX_SEQUENCE - 1, MAX_SEQUENCE], 3, 2),
        ([MAX_SEQUENCE, 3], 1, 1),
    ],
)
def test_a_batch_is_put_back_behind_those_with_lower_sequences(queued: list[int | None], inserted: int, place: int) -> None:
    queue, batch = queue_of(*map(batch_of, queued)), batch_of(inserted)
    assert not queue.holds(batch)
    queue.put_back(batch)
    assert list(queue.batches).index(batch) == place
    assert len(queue.batches) == len(queued) + 1
    assert queue.holds(batch)


def test_what_is_too_old_leaves_from_between_what_stays() -> None:
    young, old, also_young = batch_of(created_ms=51), batch_of(created_ms=50), batch_of(created_ms=60)
    queue, oldest = queue_of(young, old, also_young), OldestBatch()
    assert queue.take_expired(TIMEOUT_MS, 150, oldest) == [old]
    assert list(queue.batches) == [young, also_young]
    assert old.is_closed
    assert (oldest.created_ms, oldest.may_have_poisoned) == (51, False)


def test_a_batch_that_is_written_into_stays_and_its_caller_wakes_the_sender() -> None:
    for is_over in (False, True):
        batch, oldest = batch_of(written_by=1), OldestBatch()
        queue = queue_of(batch)
        assert queue.take_expired(TIMEOUT_MS, TIMEOUT_MS - (not is_over), oldest) == []
        assert (list(queue.batches), batch.must_wake_sender) == ([batch], is_over)
        assert queue.take_expired(TIMEOUT_MS, 0, oldest) == []  # whoever has to wake the Sender is not let off
        assert batch.must_wake_sender is is_over


def test_all_batches_are_taken_out_and_those_written_into_are_poisoned_once() -> None:
    drained, written, waiting = batch_of(7), batch_of(written_by=1), batch_of()
    queue, oldest = queue_of(drained, written, waiting), OldestBatch()
    assert queue.take_batches(FAILED) == [drained, waiting]
    assert queue.take_batches(KafkaError("a later error")) == []
    assert list(queue.batches) == [written]
    assert (written.poison, written.must_wake_sender, written.is_closed) == (FAILED, True, True)
    assert queue.take_expired(TIMEOUT_MS, 0, oldest) == []
    assert oldest.may_have_poisoned
    written.reservation_count = 0
    assert queue.take_expired(TIMEOUT_MS, 0, oldest) == [written]
    assert not queue.has_batches()


def test_batches_that_were_never_drained_can_be_taken_without_the_others() -> None:
    drained, waiting = batch_of(7), batch_of()
    queue = queue_of(drained, waiting)
    assert queue.take_batches(FAILED, undrained_only=True) == [waiting]
    assert list(queue.batches) == [drained]


def test_a_look_at_all_queues_forgets_what_was_heard_before() -> None:
    oldest = OldestBatch()
    oldest.note_queued(20)
    oldest.note_queued(30)
    oldest.note_poisoned()
    assert (oldest.created_ms, oldest.may_have_poisoned) == (20, True)
    oldest.reset_bounds()
    assert (oldest.created_ms, oldest.may_have_poisoned) == (NEVER_MS, False)


def test_each_batch_that_is_put_back_is_a_move_and_may_be_the_oldest() -> None:
    queues = PartitionQueues()
    for moves, created_ms in enumerate((30, 20), 1):
        queues.put_back(batch_of(created_ms, created_ms=created_ms))
        assert (queues.move_count, queues.oldest.created_ms) == (moves, created_ms)
    assert [batch.base_sequence for batch in queues[0].batches] == [20, 30]


def test_many_topics_are_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(partition_queue, "MAX_EXPECTED_TOPICS", 2)
    queues = PartitionQueues()
    for topic in ("a", "b", "b", "c"):
        queues.of_topic(topic)
    (record,) = caplog.records
    assert record.getMessage().startswith("! rows for 2 topics so far, the last is b: each topic costs time, and some 10 KB")


def test_each_partition_has_one_queue_in_the_order_in_which_they_were_made() -> None:
    queues = PartitionQueues()
    made = queues.of_partitions("orders", [3, 1])
    assert queues.of_partitions("orders", [1, 3, 2]) == [made[1], made[0], queues[2]]
    assert queues.of_partition(tp(1, "orders")) is made[1]
    assert [each.topic_partition for each in queues] == [tp(3, "orders"), tp(1, "orders"), tp(2, "orders")]


def test_a_queues_tail_is_open_until_it_is_closed_or_has_a_sequence() -> None:
    queue = queue_of()
    assert queue.open_batch() is None
    for batch in (batch_of(), batch_of()):
        with queue.lock:
            queue.append_locked(batch)
        assert queue.open_batch() is batch
    assert queue.has_batches()
    batch.set_producer_state(ProducerIdentity(1, 0), 0)
    assert queue.open_batch() is None
    with queue.lock:
        queue.append_locked(last := batch_of())
        queue.close_locked(last)
    assert queue.open_batch() is None


def test_the_sender_hears_once_of_a_queue_until_it_has_found_it_empty() -> None:
    queues = PartitionQueues()
    (queue,) = queues.of_partitions("orders", [0])
    assert not queues.filled_queues
    for _ in range(2):
        with queue.lock:
            queue.append_locked(batch_of())
    queue.put_back(batch_of(1))
    assert list(queues.filled_queues) == [queue]
    queues.filled_queues.clear()
    assert not queue.unwatch_if_empty()
    queue.clear()
    assert queue.unwatch_if_empty()
    queue.put_back(batch_of(1))
    assert list(queues.filled_queues) == [queue]
