"""RecordAccumulator: reservations, memory, splitting, expiry, flush, close and transactions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import NEVER_MS, Clock, Waitable
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.accumulator import batch_records, sorted_slice
from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.producer.accumulator.slice_layout import SliceLayout
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from tests.producer.harness import TOPIC, Accumulation, OpenAppend, cluster, payload, tp
from tests.records.reference import decode_batch

ONE_NODE = cluster({TOPIC: (0, 0, 0, 0)})
TWO_NODES = cluster({TOPIC: (0, 0, 1, 1)})
VALUE = bytes(100)  # 109 bytes as a record
BATCH = 1024


# RESERVATIONS


def test_a_batch_that_is_being_written_is_not_drained() -> None:
    """The batch would go out half written."""
    stage = Accumulation(linger_ms=0)
    writing = OpenAppend(stage, b"1")
    assert stage.ready(ONE_NODE) == set()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    writing.fill()
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]


def test_a_batch_that_is_being_written_does_not_expire() -> None:
    """The batch's memory would be handed out again while a caller writes into it."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    writing = OpenAppend(stage, b"1")
    stage.clock.advance(10_000)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    writing.fill()
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1


def test_queues_are_searched_for_expired_batches_only_when_one_may_be_there() -> None:
    """With a thousand partitions the Sender looked into a thousand queues in each round, to find nothing for two minutes."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    stage.append(b"1")
    searched: list[int] = []
    queue = stage.accumulator.queues.of_partitions(TOPIC, [0])[0]
    queue.batches = Searched(queue.batches, searched)
    stage.clock.advance(150)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 50
    assert searched == []
    stage.clock.advance(50)
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS


class Searched(deque[ProducerBatch]):
    def __init__(self, batches: Iterable[ProducerBatch], searched: list[int]) -> None:
        super().__init__(batches)
        self._searched = searched

    def __bool__(self) -> bool:
        self._searched.append(1)
        return len(self) > 0


def test_a_batch_that_is_put_back_expires_with_its_own_age() -> None:
    """The batch left its queue, younger ones came, and the search for expired ones had forgotten it."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    stage.append(b"1")
    old = stage.drain_one(ONE_NODE)
    stage.clock.advance(200)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS
    stage.append(b"2")
    stage.accumulator.queues.put_back(old)
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 0
    assert stage.accumulator.take_expired(stage.now_ms) == [old]
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 200


def test_a_poisoned_batch_behind_others_is_removed_when_it_is_the_first() -> None:
    stage = Accumulation(linger_ms=1000, batch_size=BATCH)
    stage.append(bytes(BATCH))
    writing = OpenAppend(stage, b"1")
    stage.accumulator.take_undrained(KafkaError("the transaction is aborted"))
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.take_expired(stage.now_ms) == []
    writing.fill()
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1
    assert stage.accumulator.take_expired(stage.now_ms) == []


def test_the_sender_that_found_a_batch_being_written_is_woken_when_it_is_done() -> None:
    stage = Accumulation(linger_ms=0)
    stage.append(b"1")
    stage.wakeups = 0
    writing = OpenAppend(stage, b"2")
    stage.ready(ONE_NODE)
    writing.fill()
    assert stage.wakeups == 1


def test_two_callers_may_write_into_one_batch_and_end_in_any_order() -> None:
    stage = Accumulation(linger_ms=0)
    first, second = OpenAppend(stage, b"1", b"22"), OpenAppend(stage, b"333", b"4444")
    second.fill()
    assert stage.ready(ONE_NODE) == set()
    first.fill()
    assert payload(stage.drain_one(ONE_NODE)) == [b"1", b"22", b"333", b"4444"]


def test_the_caller_that_releases_a_new_batch_last_wakes_the_sender() -> None:
    """The first row's caller was done while another still wrote, and the other's rows were no news: the batch lingered
    unknown to the Sender until it looked by itself, a minute later.
    """
    stage = Accumulation(linger_ms=1000)
    first, second = OpenAppend(stage, b"1"), OpenAppend(stage, b"2")
    first.fill()
    second.fill()
    assert stage.wakeups == 1


def test_a_sender_that_waits_for_two_callers_is_woken_by_the_later_one() -> None:
    """The earlier one cleared the note that the Sender waits."""
    stage = Accumulation(linger_ms=0)
    stage.append(b"0")
    stage.wakeups = 0
    first, second = OpenAppend(stage, b"1"), OpenAppend(stage, b"2")
    stage.ready(ONE_NODE)
    first.fill()
    assert stage.wakeups == 0
    second.fill()
    assert stage.wakeups == 1


def test_a_batch_in_which_writing_failed_is_never_sent_and_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Accumulation(linger_ms=0)
    before = stage.append(b"earlier row of the same batch")

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sorted_slice, "RecordRows", fail)
        with pytest.raises(MemoryError):
            stage.append(b"1")
    assert stage.drain(ONE_NODE, 0) == {0: []}
    (poisoned,) = stage.accumulator.take_expired(stage.now_ms)
    assert poisoned.poison is not None
    poisoned.fail(poisoned.poison)
    stage.accumulator.deallocate(poisoned)
    assert before.failed == 1
    assert stage.is_whole
    assert not stage.accumulator.incomplete


def test_when_compression_fails_every_reservation_ends_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation left behind keeps its batch from being sent and from expiring: its rows would never be settled."""
    stage = Accumulation(compression_type="lz4", batch_size=BATCH)

    def fail(*_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(batch_records, "compress", fail)
        with pytest.raises(MemoryError):
            stage.append(*[bytes(500)] * 10, partition=[0] * 5 + [1] * 5)
    batches = [batch for queue in stage.accumulator.queues.of_partitions(TOPIC, [0, 1]) for batch in queue.batches]
    assert batches
    assert [batch.reservation_count for batch in batches] == [0] * len(batches)


def test_rows_that_had_room_at_the_close_are_sent_and_the_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """close() beside another thread's send_columns: places that were taken before the check raised stayed reserved for ever.

    Their rows were neither acknowledged nor failed, and close() waited for them until its time was over.
    """
    stage = Accumulation(batch_size=BATCH)
    callback = Delivery(3, stage.clock)
    new_batch = stage.accumulator.new_batch

    def closed_after_the_second(*args: Any) -> ProducerBatch:
        if args[0].topic_partition.partition == 1:
            stage.accumulator.close()
        return new_batch(*args)

    monkeypatch.setattr(stage.accumulator, "new_batch", closed_after_the_second)
    with pytest.raises(ProducerClosedError):
        stage.append(VALUE, VALUE, VALUE, partition=[0, 1, 2], callback=callback)
    drained = stage.drain(ONE_NODE, 0)[0]
    assert [batch.topic_partition.partition for batch in drained] == [0, 1]
    for batch in drained:
        stage.give_back(batch)
    assert (callback.acknowledged, callback.failed) == (2, 1)
    assert not stage.accumulator.has_queued_batches()
    assert stage.is_whole


# MEMORY


def test_memory_comes_back_when_batches_are_done() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=32 * BATCH)
    stage.append(*[VALUE] * 40, partition=[number % 4 for number in range(40)])
    assert not stage.is_whole
    while stage.accumulator.has_queued_batches():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            stage.give_back(batch)
    assert stage.is_whole


def test_small_batches_in_many_partitions_take_a_block_each() -> None:
    stage = Accumulation(batch_size=1024 * 1024, buffer_memory=300 * MAX_POOL_BLOCK_BYTES)
    stage.append(*[VALUE] * 300, partition=list(range(300)))
    assert stage.pool.available_memory == 0
    assert len(stage.accumulator.incomplete) == 300


def test_memory_that_compression_saves_comes_back_at_once() -> None:
    stage = Accumulation(batch_size=16 * BATCH, compression_type="gzip", linger_ms=10_000)
    stage.append(*[bytes(1000)] * 20)  # the first batch is full and compressed by the caller
    held = stage.pool.total_memory - stage.pool.available_memory
    first = next(iter(stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches))
    assert first.codec == "gzip"
    last = stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches[-1]
    assert held == (len(first.memory) + len(last.memory)) * stage.pool.block_size
    assert first.memory == PoolMemory([], 1)
    while stage.accumulator.has_queued_batches():
        stage.give_back(stage.drain_one(ONE_NODE))
    assert stage.is_whole


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("shrinks", [True, False])
def test_large_segments_are_sent_as_they_were_encoded_and_their_charge_ends(codec: str, shrinks: bool) -> None:
    stage = Accumulation(batch_size=2**20, compression_type=codec, linger_ms=0)
    random = Random(1)
    values = [b"%06d" % row + (bytes(1200) if shrinks else random.randbytes(1200)) for row in range(1500)]
    partitions = [0 if row < 40 else row % 2 for row in range(1500)]
    stage.append(*values, partition=partitions)
    stage.append(b"small", partition=0)
    landed: dict[int, list[bytes | None]] = {0: [], 1: []}
    while stage.accumulator.has_queued_batches():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            assert batch.codec == codec or not shrinks
            landed[batch.topic_partition.partition] += payload(batch)
            stage.give_back(batch)
    assert landed[1] == [value for value, partition in zip(values, partitions, strict=True) if partition == 1]
    assert landed[0] == [*(value for value, partition in zip(values, partitions, strict=True) if partition == 0), b"small"]
    assert stage.is_whole


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_what_shrinks_while_it_is_written_is_charged_for_as_it_is(codec: str) -> None:
    """The batch stays open for more rows, and would otherwise hold twenty times the memory that it needs."""
    stage = Accumulation(batch_size=2**20, compression_type=codec, linger_ms=10_000)
    stage.append(*[bytes(1000)] * 500)
    batch = stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches[0]
    assert not batch.is_closed
    held = stage.pool.total_memory - stage.pool.available_memory
    assert held == batch.memory.charge_blocks * stage.pool.block_size
    assert held < 100_000


def test_waiting_for_memory_makes_everything_ready_at_once() -> None:
    """Otherwise batches that linger would keep the memory that the caller waits for."""
    stage = Accumulation(linger_ms=60_000, batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=500)
    stage.append(VALUE, partition=0)
    stage.append(VALUE, partition=1)
    ready_nodes: list[set[int]] = []
    stage.on_wake = lambda: ready_nodes.append(stage.ready(ONE_NODE))
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        stage.append(VALUE, partition=2)
    # The Sender was once woken before the caller stood in line, found nobody waiting, and slept on for linger.ms.
    assert ready_nodes == [{0}]
    assert stage.ready(ONE_NODE) == set()  # nobody waits any more


def test_a_slice_larger_than_the_pool_goes_through_as_memory_comes_back() -> None:
    """max.block.ms bounds each wait, not the call: a slow broker slows a write and does not fail it."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=3 * BATCH, max_block_ms=5, linger_ms=60_000)
    values = [b"%04d" % number + bytes(200) for number in range(100)]
    drained_values: list[bytes | None] = []

    def drain_while_it_waits(waitable: Waitable, timeout_ms: int) -> bool:
        del waitable, timeout_ms
        stage.clock.advance(4)
        batch = stage.drain_one(ONE_NODE)
        drained_values.extend(payload(batch))
        stage.give_back(batch)
        return True

    stage.clock.wait = drain_while_it_waits
    delivery = stage.append(*values)
    while stage.accumulator.has_queued_batches():
        batch = stage.drain_one(ONE_NODE)
        drained_values.extend(payload(batch))
        stage.give_back(batch)
    assert drained_values == values
    assert delivery.acknowledged == 100
    assert stage.is_whole


def test_rows_laid_out_before_memory_ran_out_are_sent_nevertheless() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=5)
    callback = Delivery(100, stage.clock)
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        stage.append(*[bytes(500)] * 100, callback=callback)
    while stage.accumulator.has_queued_batches():
        stage.give_back(stage.drain_one(ONE_NODE))
    assert 0 < callback.acknowledged < 100
    assert stage.is_whole


def test_nobody_waits_for_memory_while_holding_a_reservation() -> None:
    """A batch with a reservation is not drained: the memory waited for could never come back."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=5)

    def nothing_is_reserved(waitable: Waitable, timeout_ms: int) -> bool:
        del waitable
        assert all(batch.reservation_count == 0 for batch in stage.accumulator.incomplete)
        stage.clock.advance(timeout_ms)
        return False

    stage.clock.wait = nothing_is_reserved
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        stage.append(*[bytes(300)] * 30, partition=[number % 3 for number in range(30)])


def test_an_interrupt_between_two_rounds_of_an_append_ends_no_reservation_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the first round were written once more, and a batch that another caller was writing into was sent."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=BATCH)
    reserve, others = SliceLayout.reserve, list[OpenAppend]()

    def first_round(*args: Any) -> Any:
        monkeypatch.setattr(SliceLayout, "reserve", interrupted)
        return reserve(*args)

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        others.append(OpenAppend(stage, b"of another caller"))
        raise KeyboardInterrupt

    monkeypatch.setattr(SliceLayout, "reserve", first_round)
    with pytest.raises(KeyboardInterrupt):
        stage.append(b"has room", b"has none", partition=[0, 1])
    stage.accumulator.close()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    others[0].fill()
    assert payload(stage.drain_one(ONE_NODE)) == [b"has room", b"of another caller"]


def test_memory_of_a_batch_in_flight_cannot_be_given_back() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    batch = stage.drain_one(ONE_NODE)
    batch.is_in_flight = True
    with pytest.raises(RuntimeError, match="in flight"):
        stage.accumulator.deallocate(batch)
    batch.is_in_flight = False
    stage.accumulator.deallocate(batch)
    assert stage.is_whole


# SPLITTING


def split(stage: Accumulation, batch: ProducerBatch) -> list[ProducerBatch]:
    """Split a batch and queue the smaller ones, as the Sender does."""
    smaller = stage.accumulator.split(batch)
    for each in reversed(smaller):
        stage.accumulator.queues.put_back(each)
    return smaller


def test_smaller_batches_of_a_split_are_sent_before_newer_rows() -> None:
    stage = Accumulation(batch_size=16 * BATCH)
    stage.append(*[b"%d" % row + bytes(1000) for row in range(8)])
    big = stage.drain_one(ONE_NODE)
    newer = stage.append(b"newer")
    split(stage, big)
    batches = [stage.drain_one(ONE_NODE) for _ in range(3)]
    assert [[value[:1] for value in payload(each) if value] for each in batches[:2]] == [
        [b"0", b"1", b"2", b"3"],
        [b"4", b"5", b"6", b"7"],
    ]
    assert payload(batches[2]) == [b"newer"]
    for each in batches:
        stage.give_back(each)
    assert newer.acknowledged == 1
    assert stage.is_whole


def test_splitting_a_batch_gives_the_pools_memory_back_and_no_other() -> None:
    """The memory of the smaller batches is their own. The pool would hand it out as blocks of the wrong size."""
    stage = Accumulation(batch_size=16 * BATCH, buffer_memory=64 * BATCH)
    stage.append(*[bytes(1000)] * 8)
    split(stage, stage.drain_one(ONE_NODE))
    assert stage.is_whole
    for _ in range(2):
        stage.give_back(stage.drain_one(ONE_NODE))
    assert stage.is_whole
    assert {len(block) for block in stage.pool.allocate(stage.pool.total_blocks, 0).blocks} == {stage.pool.block_size}


def test_flush_waits_for_the_smaller_batches_of_a_split() -> None:
    stage = Accumulation(batch_size=16 * BATCH)
    stage.append(bytes(1000), bytes(1000))
    split(stage, stage.drain_one(ONE_NODE))

    def send() -> None:
        stage.give_back(stage.drain_one(ONE_NODE))

    stage.on_wake = send
    assert stage.accumulator.flush(10) is False
    assert stage.accumulator.flush(10) is True


def test_splitting_ends_at_single_records() -> None:
    """Each split halves a batch at least, wherever the broker's limit lies (KAFKA-8350)."""
    stage = Accumulation(batch_size=64 * BATCH)
    stage.append(*[bytes(700)] * 40)
    todo, singles = [stage.drain_one(ONE_NODE)], 0
    while todo:
        batch = todo.pop()
        if batch.record_count > 1:
            smaller = stage.accumulator.split(batch)
            assert len(smaller) > 1
            for each in smaller:
                stage.accumulator.drainer.compressor.finish(each)
            todo += smaller
        else:
            singles += 1
            stage.give_back(batch)
    assert singles == 40
    assert stage.is_whole


def test_batches_are_rarely_too_large_though_compressibility_varies() -> None:
    """The estimated ratio follows worse ones at once and better ones slowly: fewer than one batch in ten is split."""
    random = Random(4)
    stage = Accumulation(batch_size=BATCH, compression_type="gzip", linger_ms=0, buffer_memory=4_000_000)
    batches = too_large = 0
    for _ in range(60):
        good, bad = random.random(), 100
        rows = [bytes(bad) if random.random() < good else random.randbytes(bad) for _ in range(100)]
        stage.append(*rows)
        while stage.accumulator.has_queued_batches():
            batch = stage.drain_one(ONE_NODE)
            batches += 1
            if batch.size_bytes > BATCH:
                too_large += 1
                split(stage, batch)
            else:
                stage.give_back(batch)
    assert batches > 200
    assert too_large < batches / 10
    assert stage.is_whole


def test_after_a_split_the_topics_ratio_starts_at_1_again() -> None:
    stage = Accumulation(batch_size=BATCH, compression_type="gzip", linger_ms=0)
    for _ in range(60):
        stage.append(*[bytes(200)] * 10)
        for batch in stage.drain(ONE_NODE, 0)[0]:
            stage.give_back(batch)
    learned = stage.accumulator.max_raw_bytes(TOPIC)
    assert learned > BATCH
    stage.append(bytes(200), bytes(200))
    smaller: list[ProducerBatch] = []
    while stage.accumulator.has_queued_batches():
        batch = stage.drain_one(ONE_NODE)
        if batch.record_count > 1 and batch not in smaller:
            smaller += split(stage, batch)
            assert stage.accumulator.max_raw_bytes(TOPIC) < learned
            assert stage.accumulator.max_raw_bytes(TOPIC) <= BATCH
        else:
            stage.give_back(batch)


# EXPIRY


@pytest.mark.parametrize("muted", [False, True])
@pytest.mark.parametrize("linger_ms", [0, 300])
def test_a_batch_expires_after_delivery_timeout_ms_even_if_muted(linger_ms: int, muted: bool) -> None:
    stage = Accumulation(linger_ms=linger_ms, request_timeout_ms=700, delivery_timeout_ms=1000)
    stage.append(b"1")
    if muted:
        stage.accumulator.queues.of_partition(tp()).is_muted = True
    stage.clock.advance(999)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 1
    stage.clock.advance(1)
    (batch,) = stage.accumulator.take_expired(stage.now_ms)
    assert batch.is_closed
    assert not stage.accumulator.has_queued_batches()


def test_the_largest_delivery_timeout_never_expires() -> None:
    stage = Accumulation(delivery_timeout_ms=2**31 - 1)
    stage.append(b"1")
    stage.clock.advance(2**31 - 2)
    assert stage.accumulator.take_expired(stage.now_ms) == []


def test_batches_expire_oldest_first_and_the_rest_stay() -> None:
    stage = Accumulation(batch_size=BATCH, request_timeout_ms=100, delivery_timeout_ms=1000)
    stage.append(bytes(900))
    stage.clock.advance(300)
    stage.append(bytes(901))
    stage.clock.advance(300)
    stage.append(bytes(902))
    stage.clock.advance(700)
    assert [len(payload_of(batch)) for batch in stage.accumulator.take_expired(stage.now_ms)] == [900, 901]
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 300


def payload_of(batch: ProducerBatch) -> bytes:
    """The only value of a batch that was never drained."""
    batch.body = batch.uncompressed_records()
    (value,) = payload(batch)
    assert value is not None
    return value


def test_nothing_queued_never_expires() -> None:
    stage = Accumulation()
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS


def test_a_retried_batch_expires_counted_from_its_creation() -> None:
    stage = Accumulation(request_timeout_ms=100, delivery_timeout_ms=1000)
    stage.append(b"1")
    batch = stage.drain_one(ONE_NODE)
    stage.clock.advance(900)
    stage.accumulator.reenqueue(batch, stage.now_ms)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    stage.clock.advance(100)
    assert stage.accumulator.take_expired(stage.now_ms) == [batch]


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


# ALL AT ONCE


def test_five_callers_at_a_time_lose_nothing_and_keep_their_order() -> None:
    stage = Accumulation(clock=Clock(), batch_size=BATCH, buffer_memory=64 * BATCH, linger_ms=0, max_block_ms=60_000)
    deliveries: list[Delivery] = []
    failures: list[BaseException] = []

    def work(caller: int) -> None:
        random = Random(caller)
        try:
            for first in range(0, 400, 40):
                values = [b"%d:%04d:" % (caller, first + row) + bytes(random.randrange(300)) for row in range(40)]
                deliveries.append(stage.append(*values, partition=[random.randrange(4) for _ in values]))
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=work, args=[caller], daemon=True) for caller in range(5)]
    for thread in threads:
        thread.start()
    values_by_partition: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    while any(thread.is_alive() for thread in threads) or stage.accumulator.has_queued_batches():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            values_by_partition[batch.topic_partition.partition] += [value or b"" for value in payload(batch)]
            stage.give_back(batch)
    assert failures == []
    ids = [
        (partition, value[0] - ord("0"), int(value[2:6])) for partition, values in values_by_partition.items() for value in values
    ]
    assert sorted((caller, row) for _, caller, row in ids) == [(caller, row) for caller in range(5) for row in range(400)]
    for partition in range(4):
        for caller in range(5):
            rows = [row for where, who, row in ids if (where, who) == (partition, caller)]
            assert rows == sorted(rows)
    assert sum(delivery.acknowledged for delivery in deliveries) == 2000
    assert stage.is_whole
