"""RecordAccumulator: memory that batches take, save and give back, also when they are split."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES, PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.accumulator.slice_layout import SliceLayout
from tests.producer.accumulator.small_batches import BATCH, ONE_NODE, VALUE, split
from tests.producer.harness import TOPIC, Accumulation, OpenAppend, payload

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
