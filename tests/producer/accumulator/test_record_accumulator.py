"""RecordAccumulator: what becomes ready when, what is drained in which order, and where memory is at each moment."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.network.cluster import Cluster, Node
from spark_kafka_sink.producer.accumulator import producer_batch, slice_layout
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.producer.harness import TOPIC, Accumulation, OpenAppend, cluster, payload, tp

ONE_NODE = cluster({TOPIC: (0, 0, 0, 0)})
TWO_NODES = cluster({TOPIC: (0, 0, 1, 1)})
VALUE = bytes(100)  # 109 bytes as a record
BATCH = 1024


# ---- FULL


def test_a_batch_is_ready_when_the_next_row_does_not_fit() -> None:
    stage = Accumulation(linger_ms=10_000, batch_size=BATCH)
    fitting = (BATCH - 61) // 109
    for _ in range(fitting):
        stage.append(VALUE)
        assert stage.ready(ONE_NODE) == set()
    stage.append(VALUE)
    assert stage.ready(ONE_NODE) == {0}
    batch = stage.drain_one(ONE_NODE)
    assert payload(batch) == [VALUE] * fitting
    assert stage.ready(ONE_NODE) == set()  # the row that began the second batch lingers


def test_a_batch_that_is_filled_to_the_last_byte_is_ready_without_a_next_row() -> None:
    stage = Accumulation(linger_ms=10_000, batch_size=BATCH)
    stage.append(bytes(BATCH - 61 - 9))  # length 2, attributes 1, deltas 2, key 1, value length 2, headers 1
    assert stage.ready(ONE_NODE) == {0}
    assert stage.drain_one(ONE_NODE).size_in_bytes == BATCH


def test_one_slice_fills_batch_after_batch() -> None:
    stage = Accumulation(linger_ms=10_000, batch_size=BATCH)
    values = [b"%03d" % number + bytes(97) for number in range(100)]
    stage.append(*values)
    seen: list[bytes | None] = []
    while stage.ready(ONE_NODE):
        batch = stage.drain_one(ONE_NODE)
        assert batch.size_in_bytes <= BATCH
        seen += payload(batch)
    assert seen == values[: len(seen)]
    assert len(seen) > 80
    stage.clock.advance(10_000)
    assert seen + payload(stage.drain_one(ONE_NODE)) == values


def test_rows_go_on_filling_the_batch_of_the_call_before() -> None:
    stage = Accumulation(linger_ms=10, batch_size=BATCH)
    stage.append(b"1", b"2", timestamps=[50, 60])
    stage.append(b"3", timestamps=40)
    stage.append(b"4", b"5", timestamps=[70, 30])
    stage.clock.advance(10)
    batch = stage.drain_one(ONE_NODE)
    assert payload(batch) == [b"1", b"2", b"3", b"4", b"5"]
    assert (batch.base_timestamp, batch.max_timestamp) == (50, 70)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_row_larger_than_batch_size_is_a_batch_of_its_own_and_ready_at_once(codec: str) -> None:
    stage = Accumulation(linger_ms=10_000, batch_size=BATCH, compression_type=codec)
    large = Random(1).randbytes(2 * BATCH)
    stage.append(b"before")
    stage.append(large)
    stage.append(b"behind")
    drained = []
    while stage.ready(ONE_NODE):
        drained.append(payload(stage.drain_one(ONE_NODE)))
    assert drained == [[b"before"], [large]]
    stage.clock.advance(10_000)
    assert payload(stage.drain_one(ONE_NODE)) == [b"behind"]


@pytest.mark.parametrize("timestamps", [7, [7, 5, 9, 7]], ids=["one timestamp", "several"])
def test_oversized_rows_in_a_row_each_begin_at_offset_delta_0(timestamps: object) -> None:
    """One kept the offset delta that it would have had behind the row before it: a batch that brokers refuse."""
    stage = Accumulation(batch_size=BATCH, linger_ms=0)
    large = [bytes([row]) * 3000 for row in range(4)]
    stage.append(*large, timestamps=timestamps)
    assert [payload(stage.drain_one(ONE_NODE)) for _ in large] == [[value] for value in large]


def test_a_row_larger_than_the_pool_is_refused_and_nothing_is_kept() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=4 * BATCH)
    with pytest.raises(RecordTooLargeError):
        stage.append(bytes(5 * BATCH))
    assert stage.is_whole
    assert not stage.accumulator.has_incomplete()


def test_batch_size_zero_gives_every_row_its_own_batch() -> None:
    stage = Accumulation(batch_size=0)
    stage.append(b"1", b"2", b"3")
    drained = [payload(stage.drain_one(ONE_NODE)) for _ in range(3)]
    assert drained == [[b"1"], [b"2"], [b"3"]]


# ---- LINGER AND DELAYS


def test_a_batch_lingers_and_is_then_ready() -> None:
    stage = Accumulation(linger_ms=10)
    stage.append(VALUE)
    assert stage.ready(ONE_NODE) == set()
    stage.clock.advance(9)
    assert stage.ready(ONE_NODE) == set()
    stage.clock.advance(1)
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [VALUE]


def test_the_next_check_is_due_when_the_first_batch_has_lingered() -> None:
    stage = Accumulation(linger_ms=100, batch_size=BATCH)
    stage.append(VALUE, partition=0)
    stage.clock.advance(50)
    stage.append(VALUE, partition=2)
    result = stage.accumulator.ready(TWO_NODES, stage.now_ms)
    assert result.ready_nodes == set()
    assert result.next_ready_check_delay_ms == 50


def test_a_batch_without_leader_does_not_hurry_the_next_check() -> None:
    stage = Accumulation(linger_ms=100)
    stage.append(VALUE, partition=2)
    result = stage.accumulator.ready(cluster({TOPIC: (0, 0, None)}), stage.now_ms)
    assert result.next_ready_check_delay_ms == NEVER_MS
    assert result.unknown_leader_topics == {TOPIC}


def test_an_empty_queue_without_leader_asks_for_no_metadata() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    stage.drain_one(ONE_NODE)
    result = stage.accumulator.ready(cluster({TOPIC: (None,)}), stage.now_ms)
    assert result.unknown_leader_topics == set()


def test_a_leader_without_address_counts_as_none() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    result = stage.accumulator.ready(cluster({TOPIC: (17,)}), stage.now_ms)
    assert result.ready_nodes == set()
    assert result.unknown_leader_topics == {TOPIC}


def test_the_sender_is_told_of_a_new_batch_and_of_a_full_one_only() -> None:
    stage = Accumulation(linger_ms=1000, batch_size=BATCH)
    stage.append(VALUE)
    assert stage.wakeups == 1  # so that linger is measured
    stage.append(VALUE)
    assert stage.wakeups == 1
    stage.append(*[VALUE] * 10)
    assert stage.wakeups == 2


# ---- DRAIN


def test_draining_takes_one_batch_of_each_partition_that_the_node_leads() -> None:
    stage = Accumulation(batch_size=BATCH)
    for partition in range(4):
        stage.append(*[VALUE] * 20, partition=partition)
    drained = stage.drain(TWO_NODES, 0, 1)
    assert {node: [batch.topic_partition.partition for batch in batches] for node, batches in drained.items()} == {
        0: [0, 1],
        1: [2, 3],
    }


def test_max_size_bounds_what_is_drained_for_a_node_but_one_batch_always_fits() -> None:
    stage = Accumulation(batch_size=BATCH)
    for partition in range(3):
        stage.append(bytes(500), partition=partition)
    size = 61 + 500 + 9
    assert len(stage.drain(ONE_NODE, 0, max_size=1)[0]) == 1
    assert len(stage.drain(ONE_NODE, 0, max_size=2 * size)[0]) == 2
    assert stage.drain(ONE_NODE, 0, max_size=2 * size)[0] == []


def test_partitions_take_turns_when_the_request_is_too_small_for_all() -> None:
    """Always beginning at the same partition would starve the last ones for as long as the first have rows."""
    stage = Accumulation(batch_size=BATCH)
    for _ in range(3):
        for partition in range(4):
            stage.append(bytes(900), partition=partition)
    turns = [[batch.topic_partition.partition for batch in stage.drain(ONE_NODE, 0, max_size=2100)[0]] for _ in range(6)]
    assert turns == [[0, 1], [2, 3]] * 3


def test_each_node_has_a_turn_of_its_own() -> None:
    stage = Accumulation(batch_size=BATCH)
    for _ in range(2):
        for partition in range(4):
            stage.append(bytes(900), partition=partition)
    first = stage.drain(TWO_NODES, 0, max_size=1)[0]
    other = stage.drain(TWO_NODES, 1, max_size=1)[1]
    second = stage.drain(TWO_NODES, 0, max_size=1)[0]
    assert [batch.topic_partition.partition for batch in first + other + second] == [0, 2, 1]


class CountingCluster(Cluster):
    """Counts how often a leader is asked for."""

    __slots__ = ("asked",)

    def leader_for(self, topic_partition: TopicPartition) -> int | None:
        self.asked = getattr(self, "asked", 0) + 1
        return super().leader_for(topic_partition)


def test_however_many_nodes_are_drained_each_queue_with_batches_is_looked_at_once() -> None:
    """All queues were walked for each node: 3,000 partitions on 30 nodes cost 20 ms a round, in which no caller could encode."""
    stage = Accumulation()
    leaders = [number % 5 for number in range(100)]
    where = CountingCluster(nodes=ONE_NODE.nodes, topics=cluster({TOPIC: leaders}).topics)
    stage.append(*[VALUE] * 100, partition=list(range(100)))
    drained = stage.drain(where, *range(5))
    assert where.asked == 100
    assert [len(batches) for batches in drained.values()] == [20] * 5
    stage.append(*[VALUE] * 3, partition=[7, 8, 9])  # the other queues are empty now
    result = stage.accumulator.ready(where, stage.now_ms)
    assert result.occupied == {2: [7], 3: [8], 4: [9]}
    assert where.asked == 103
    drained = stage.accumulator.drain(where, result.ready_nodes, 1_000_000, stage.now_ms, result.occupied)
    assert where.asked == 103
    assert {node: [batch.topic_partition.partition for batch in batches] for node, batches in drained.items()} == result.occupied


@pytest.mark.parametrize("after_ready", [False, True])
def test_no_partition_starves_behind_the_request_size_whichever_have_batches(after_ready: bool) -> None:
    """Two nodes, a request that holds one batch, and partitions that come and go: each waits for one turn of its node at most."""
    random = Random(5)
    stage = Accumulation(batch_size=BATCH)
    leaders = [number % 2 for number in range(12)]
    where = cluster({TOPIC: leaders})
    waited: Counter[int] = Counter()
    for _ in range(300):
        for partition in random.sample(range(12), 5):
            if not stage.accumulator.queues_for(TOPIC, [partition])[0].batches:
                stage.append(bytes(900), partition=partition)
        occupied = stage.accumulator.ready(where, stage.now_ms).occupied if after_ready else None
        for batches in stage.accumulator.drain(where, (0, 1), 1, stage.now_ms, occupied).values():
            for batch in batches:
                waited[batch.topic_partition.partition] = 0
                stage.give_back(batch)
        for partition in range(12):
            if stage.accumulator.queues_for(TOPIC, [partition])[0].batches:
                waited[partition] += 1
        assert max(waited.values()) <= 6


def test_a_node_that_leads_nothing_is_drained_of_nothing() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    assert stage.drain(ONE_NODE, 3) == {3: []}
    assert stage.drain_one(ONE_NODE).record_count == 1


def test_a_muted_partition_is_neither_ready_nor_drained() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    stage.accumulator.mute_partition(tp(0))
    assert stage.ready(ONE_NODE) == set()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    stage.accumulator.unmute_partition(tp(0))
    assert stage.ready(ONE_NODE) == {0}
    assert stage.drain_one(ONE_NODE).record_count == 1


def test_a_muted_partition_does_not_hold_up_another() -> None:
    stage = Accumulation()
    stage.append(VALUE, partition=0)
    stage.append(VALUE, partition=1)
    stage.accumulator.mute_partition(tp(0))
    assert stage.ready(ONE_NODE) == {0}
    assert stage.drain_one(ONE_NODE).topic_partition == tp(1)


def test_a_drained_batch_takes_no_more_rows() -> None:
    stage = Accumulation(linger_ms=0, batch_size=BATCH)
    stage.append(b"1")
    first = stage.drain_one(ONE_NODE)
    stage.append(b"2")
    assert payload(first) == [b"1"]
    assert payload(stage.drain_one(ONE_NODE)) == [b"2"]


# ---- RESERVATIONS


def test_a_batch_that_is_being_written_is_not_drained() -> None:
    """Its bytes would go out half written."""
    stage = Accumulation(linger_ms=0)
    writing = OpenAppend(stage, b"1")
    assert stage.ready(ONE_NODE) == set()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    writing.fill()
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]


def test_a_batch_that_is_being_written_does_not_expire() -> None:
    """Its memory would be handed out again while a caller writes into it."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    writing = OpenAppend(stage, b"1")
    stage.clock.advance(10_000)
    assert stage.accumulator.expired_batches(stage.now_ms) == []
    writing.fill()
    assert len(stage.accumulator.expired_batches(stage.now_ms)) == 1


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


def test_whoever_releases_a_new_batch_last_wakes_the_sender() -> None:
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
        patch.setattr(slice_layout, "RecordRows", fail)
        with pytest.raises(MemoryError):
            stage.append(b"1")
    assert stage.drain(ONE_NODE, 0) == {0: []}
    (spoilt,) = stage.accumulator.expired_batches(stage.now_ms)
    assert spoilt.poison is not None
    spoilt.fail(spoilt.poison)
    stage.accumulator.deallocate(spoilt)
    assert before.failed == 1
    assert stage.is_whole
    assert not stage.accumulator.has_incomplete()


def test_when_compression_fails_every_reservation_ends_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation left behind keeps its batch from being sent and from expiring: its rows would never be settled."""
    stage = Accumulation(compression_type="lz4", batch_size=BATCH)

    def fail(*_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(producer_batch, "compress", fail)
        with pytest.raises(MemoryError):
            stage.append(*[bytes(500)] * 10, partition=[0] * 5 + [1] * 5)
    batches = [batch for queue in stage.accumulator.queues_for(TOPIC, [0, 1]) for batch in queue.batches]
    assert batches
    assert [batch.reservations for batch in batches] == [0] * len(batches)


def test_rows_that_had_room_when_the_producer_was_closed_are_sent_and_the_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """close() beside another thread's send_columns: places that were taken before the check raised stayed reserved for ever.

    Their rows were neither acknowledged nor failed, and close() waited for them until its time was over.
    """
    stage = Accumulation(batch_size=BATCH)
    owner = Delivery(3, stage.clock)
    new_batch = stage.accumulator.new_batch

    def closed_after_the_second(*given: Any) -> ProducerBatch:
        if given[0].topic_partition.partition == 1:
            stage.accumulator.close()
        return new_batch(*given)

    monkeypatch.setattr(stage.accumulator, "new_batch", closed_after_the_second)
    with pytest.raises(ProducerClosedError):
        stage.append(VALUE, VALUE, VALUE, partition=[0, 1, 2], owner=owner)
    drained = stage.drain(ONE_NODE, 0)[0]
    assert [batch.topic_partition.partition for batch in drained] == [0, 1]
    for batch in drained:
        stage.give_back(batch)
    assert (owner.acknowledged, owner.failed) == (2, 1)
    assert not stage.accumulator.has_undrained()
    assert stage.is_whole


# ---- MEMORY


def test_memory_comes_back_when_batches_are_done() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=32 * BATCH)
    stage.append(*[VALUE] * 40, partition=[number % 4 for number in range(40)])
    assert not stage.is_whole
    while stage.accumulator.has_undrained():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            stage.give_back(batch)
    assert stage.is_whole


def test_small_batches_in_many_partitions_take_a_block_each() -> None:
    stage = Accumulation(batch_size=1024 * 1024, buffer_memory=300 * 16 * 1024)
    stage.append(*[VALUE] * 300, partition=list(range(300)))
    assert stage.pool.available_memory == 0
    assert len(stage.accumulator._incomplete) == 300


def test_memory_that_compression_saves_comes_back_at_once() -> None:
    stage = Accumulation(batch_size=16 * BATCH, compression_type="gzip", linger_ms=10_000)
    stage.append(*[bytes(1000)] * 20)  # the first batch is full and compressed by the caller
    held = stage.pool.total_memory - stage.pool.available_memory
    first = next(iter(stage.accumulator.queues_for(TOPIC, [0])[0].batches))
    assert first.codec == "gzip"
    last = stage.accumulator.queues_for(TOPIC, [0])[0].batches[-1]
    assert held == (len(first.memory) + len(last.memory)) * stage.pool.block_size
    assert first.memory == PoolMemory([], 1)
    while stage.accumulator.has_undrained():
        stage.give_back(stage.drain_one(ONE_NODE))
    assert stage.is_whole


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("shrinks", [True, False])
def test_large_parts_are_sent_as_they_were_encoded_and_their_charge_ends(codec: str, shrinks: bool) -> None:
    stage = Accumulation(batch_size=2**20, compression_type=codec, linger_ms=0)
    random = Random(1)
    values = [b"%06d" % row + (bytes(1200) if shrinks else random.randbytes(1200)) for row in range(1500)]
    partitions = [0 if row < 40 else row % 2 for row in range(1500)]
    stage.append(*values, partition=partitions)
    stage.append(b"small", partition=0)
    landed: dict[int, list[bytes | None]] = {0: [], 1: []}
    while stage.accumulator.has_undrained():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            assert batch.codec == codec or not shrinks
            landed[batch.topic_partition.partition] += payload(batch)
            stage.give_back(batch)
    assert landed[1] == [value for value, partition in zip(values, partitions, strict=True) if partition == 1]
    assert landed[0] == [*(value for value, partition in zip(values, partitions, strict=True) if partition == 0), b"small"]
    assert stage.is_whole


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_what_shrinks_while_it_is_written_is_charged_for_as_it_is(codec: str) -> None:
    """Its batch stays open for more, and would otherwise hold twenty times the memory that it needs."""
    stage = Accumulation(batch_size=2**20, compression_type=codec, linger_ms=10_000)
    stage.append(*[bytes(1000)] * 500)
    batch = stage.accumulator.queues_for(TOPIC, [0])[0].batches[0]
    assert not batch.closed
    held = stage.pool.total_memory - stage.pool.available_memory
    assert held == batch.memory.charged * stage.pool.block_size
    assert held < 100_000


def test_waiting_for_memory_makes_everything_ready_at_once() -> None:
    """Otherwise batches that linger would keep the memory that the caller waits for."""
    stage = Accumulation(linger_ms=60_000, batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=500)
    stage.append(VALUE, partition=0)
    stage.append(VALUE, partition=1)
    seen: list[set[int]] = []
    stage.on_wake = lambda: seen.append(stage.ready(ONE_NODE))
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        stage.append(VALUE, partition=2)
    # The Sender was once woken before the caller stood in line, found nobody waiting, and slept on for linger.ms.
    assert seen == [{0}]
    assert stage.ready(ONE_NODE) == set()  # nobody waits any more


def test_a_slice_larger_than_the_pool_goes_through_as_memory_comes_back() -> None:
    """max.block.ms bounds each wait, not the call: a slow broker slows a write and does not fail it."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=3 * BATCH, max_block_ms=5, linger_ms=60_000)
    values = [b"%04d" % number + bytes(200) for number in range(100)]
    seen: list[bytes | None] = []

    def drain_while_it_waits(condition: threading.Condition, timeout_ms: int) -> bool:
        del timeout_ms
        condition.release()
        try:
            stage.clock.advance(4)
            batch = stage.drain_one(ONE_NODE)
            seen.extend(payload(batch))
            stage.give_back(batch)
        finally:
            condition.acquire()
        return True

    stage.clock.wait = drain_while_it_waits
    delivery = stage.append(*values)
    while stage.accumulator.has_undrained():
        batch = stage.drain_one(ONE_NODE)
        seen.extend(payload(batch))
        stage.give_back(batch)
    assert seen == values
    assert delivery.acknowledged == 100
    assert stage.is_whole


def test_rows_laid_out_before_memory_ran_out_are_sent_nevertheless() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=5)
    owner = Delivery(100, stage.clock)
    with pytest.raises(KafkaTimeoutError):
        stage.append(*[bytes(500)] * 100, owner=owner)
    while stage.accumulator.has_undrained():
        stage.give_back(stage.drain_one(ONE_NODE))
    assert 0 < owner.acknowledged < 100
    assert stage.is_whole


def test_nobody_waits_for_memory_while_holding_a_reservation() -> None:
    """A batch with a reservation is not drained: the memory waited for could never come back."""
    stage = Accumulation(batch_size=BATCH, buffer_memory=2 * BATCH, max_block_ms=5)

    def nothing_is_reserved(condition: threading.Condition, timeout_ms: int) -> bool:
        del condition
        assert all(batch.reservations == 0 for batch in stage.accumulator._incomplete)
        stage.clock.advance(timeout_ms)
        return False

    stage.clock.wait = nothing_is_reserved
    with pytest.raises(KafkaTimeoutError):
        stage.append(*[bytes(300)] * 30, partition=[number % 3 for number in range(30)])


def test_memory_of_a_batch_in_flight_cannot_be_given_back() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    batch = stage.drain_one(ONE_NODE)
    batch.in_flight = True
    with pytest.raises(RuntimeError, match="in flight"):
        stage.accumulator.deallocate(batch)
    batch.in_flight = False
    stage.accumulator.deallocate(batch)
    assert stage.is_whole


# ---- RETRY


def test_a_retried_batch_waits_for_its_back_off_while_others_of_its_node_do_not() -> None:
    stage = Accumulation(retry_backoff_ms=100)
    stage.append(b"1", partition=0)
    batch = stage.drain_one(ONE_NODE)
    stage.clock.advance(1)
    stage.accumulator.reenqueue(batch, stage.now_ms)
    stage.append(b"2", partition=1)
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"2"]
    assert stage.ready(ONE_NODE) == set()
    stage.clock.advance(120)
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]


def test_back_off_is_told_as_the_delay_to_the_next_check() -> None:
    stage = Accumulation(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    stage.append(b"1")
    stage.accumulator.reenqueue(stage.drain_one(ONE_NODE), stage.now_ms)
    assert 80 <= stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms <= 120


def test_back_off_doubles_with_each_attempt_up_to_its_maximum() -> None:
    stage = Accumulation(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    stage.append(b"1")
    for expected in (100, 200, 400, 800, 1000, 1000):
        stage.accumulator.reenqueue(stage.drain_one(ONE_NODE), stage.now_ms)
        stage.clock.advance(int(expected * 0.8) - 1)
        assert stage.ready(ONE_NODE) == set()
        stage.clock.advance(int(expected * 0.4) + 2)
        assert stage.ready(ONE_NODE) == {0}


def test_back_off_is_drawn_for_each_attempt_of_each_batch_of_each_producer() -> None:
    """It followed from the batch's number: batches of many producers, refused together, came back together."""
    delays = []
    for seed in range(3):
        stage = Accumulation(seed=seed, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
        stage.append(b"1")
        batch = stage.drain_one(ONE_NODE)
        for _ in range(3):
            stage.accumulator.reenqueue(batch, stage.now_ms)
            delays.append(stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms)
            stage.accumulator.queues_for(TOPIC, [0])[0].batches.clear()
    assert len(set(delays)) == 9
    assert all(8_000 <= delay <= 12_000 for delay in delays)


def test_back_off_of_one_batch_is_the_same_at_each_look() -> None:
    """A new draw at each look would end the wait at the first short one."""
    stage = Accumulation(retry_backoff_ms=1000)
    stage.append(b"1")
    stage.accumulator.reenqueue(stage.drain_one(ONE_NODE), stage.now_ms)
    assert len({stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms for _ in range(20)}) == 1


def test_no_back_off_after_the_leader_has_changed() -> None:
    stage = Accumulation(retry_backoff_ms=1000)
    old, new = cluster({TOPIC: (0,)}, {tp(): 4}), cluster({TOPIC: (1,)}, {tp(): 5})
    stage.append(b"1")
    assert stage.ready(old) == {0}
    stage.accumulator.reenqueue(stage.drain_one(old), stage.now_ms)
    assert stage.ready(old) == set()
    assert stage.ready(new) == {1}
    batch = stage.drain_one(new, 1)
    stage.accumulator.reenqueue(batch, stage.now_ms)
    assert stage.ready(new) == set()  # the new leader refused it as well: now it backs off
    stage.clock.advance(2400)
    assert stage.ready(new) == {1}


def test_no_back_off_after_the_leaders_of_several_partitions_have_changed() -> None:
    """Only the partition that made the node ready went out; the others of the node waited."""
    stage = Accumulation(retry_backoff_ms=1000)
    old, new = cluster({TOPIC: (0, 0)}, {tp(0): 4, tp(1): 4}), cluster({TOPIC: (1, 1)}, {tp(0): 5, tp(1): 5})
    stage.append(b"1", b"2", partition=[0, 1])
    stage.clock.advance(1)
    stage.ready(old)
    for batch in stage.drain(old, 0)[0]:
        stage.accumulator.reenqueue(batch, stage.now_ms)
    assert stage.ready(new) == {1}
    assert len(stage.drain(new, 1)[1]) == 2


def test_a_retried_batch_goes_before_newer_ones() -> None:
    stage = Accumulation(retry_backoff_ms=0, batch_size=BATCH)
    stage.append(b"1")
    first = stage.drain_one(ONE_NODE)
    stage.append(b"2")
    stage.accumulator.reenqueue(first, stage.now_ms)
    assert [payload(stage.drain_one(ONE_NODE)) for _ in range(2)] == [[b"1"], [b"2"]]


def test_a_retried_batch_takes_no_more_rows_and_does_not_linger() -> None:
    stage = Accumulation(retry_backoff_ms=0, linger_ms=60_000)
    stage.append(b"1")
    stage.clock.advance(60_000)
    first = stage.drain_one(ONE_NODE)
    stage.accumulator.reenqueue(first, stage.now_ms)
    stage.append(b"2")
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]
    assert stage.ready(ONE_NODE) == set()


# ---- SPLITTING


def split(stage: Accumulation, batch: ProducerBatch) -> list[ProducerBatch]:
    """As the Sender does."""
    children = stage.accumulator.split_and_reenqueue(batch)
    for child in reversed(children):
        stage.accumulator.insert(child)
    return children


def test_a_split_batch_is_sent_in_pieces_before_newer_rows() -> None:
    stage = Accumulation(batch_size=16 * BATCH)
    stage.append(*[b"%d" % row + bytes(1000) for row in range(8)])
    big = stage.drain_one(ONE_NODE)
    newer = stage.append(b"newer")
    split(stage, big)
    pieces = [stage.drain_one(ONE_NODE) for _ in range(3)]
    assert [[value[:1] for value in payload(piece) if value] for piece in pieces[:2]] == [
        [b"0", b"1", b"2", b"3"],
        [b"4", b"5", b"6", b"7"],
    ]
    assert payload(pieces[2]) == [b"newer"]
    for piece in pieces:
        stage.give_back(piece)
    assert newer.acknowledged == 1
    assert stage.is_whole


def test_splitting_a_batch_gives_the_pools_memory_back_and_no_other() -> None:
    """The children's memory is their own: given to the pool it would hand out blocks of the wrong size."""
    stage = Accumulation(batch_size=16 * BATCH, buffer_memory=64 * BATCH)
    stage.append(*[bytes(1000)] * 8)
    split(stage, stage.drain_one(ONE_NODE))
    assert stage.is_whole
    for _ in range(2):
        stage.give_back(stage.drain_one(ONE_NODE))
    assert stage.is_whole
    assert {len(block) for block in stage.pool.allocate(stage.pool.total_blocks, 0).blocks} == {stage.pool.block_size}


def test_flush_waits_for_the_pieces_of_a_batch() -> None:
    stage = Accumulation(batch_size=16 * BATCH)
    stage.append(bytes(1000), bytes(1000))
    split(stage, stage.drain_one(ONE_NODE))

    def send() -> None:
        stage.give_back(stage.drain_one(ONE_NODE))

    assert stage.accumulator.flush(10, send) is False
    assert stage.accumulator.flush(10, send) is True


def test_splitting_ends_at_single_records() -> None:
    """Each split halves at least, wherever the broker's limit lies (KAFKA-8350)."""
    stage = Accumulation(batch_size=64 * BATCH)
    stage.append(*[bytes(700)] * 40)
    todo, singles = [stage.drain_one(ONE_NODE)], 0
    while todo:
        batch = todo.pop()
        if batch.record_count > 1:
            children = stage.accumulator.split_and_reenqueue(batch)
            assert len(children) > 1
            for child in children:
                stage.accumulator.finish(child)
            todo += children
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
        while stage.accumulator.has_undrained():
            batch = stage.drain_one(ONE_NODE)
            batches += 1
            if batch.size_in_bytes > BATCH:
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
    learned = stage.accumulator.raw_limit(TOPIC)
    assert learned > BATCH
    stage.append(bytes(200), bytes(200))
    pieces: list[ProducerBatch] = []
    while stage.accumulator.has_undrained():
        batch = stage.drain_one(ONE_NODE)
        if batch.record_count > 1 and batch not in pieces:
            pieces += split(stage, batch)
            assert stage.accumulator.raw_limit(TOPIC) < learned
            assert stage.accumulator.raw_limit(TOPIC) <= BATCH
        else:
            stage.give_back(batch)


# ---- EXPIRY


@pytest.mark.parametrize("muted", [False, True])
@pytest.mark.parametrize("linger_ms", [0, 300])
def test_a_batch_expires_after_delivery_timeout_ms_even_if_muted(linger_ms: int, muted: bool) -> None:
    stage = Accumulation(linger_ms=linger_ms, request_timeout_ms=700, delivery_timeout_ms=1000)
    stage.append(b"1")
    if muted:
        stage.accumulator.mute_partition(tp())
    stage.clock.advance(999)
    assert stage.accumulator.expired_batches(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 1
    stage.clock.advance(1)
    (batch,) = stage.accumulator.expired_batches(stage.now_ms)
    assert batch.closed
    assert not stage.accumulator.has_undrained()


def test_the_largest_delivery_timeout_never_expires() -> None:
    stage = Accumulation(delivery_timeout_ms=2**31 - 1)
    stage.append(b"1")
    stage.clock.advance(2**31 - 2)
    assert stage.accumulator.expired_batches(stage.now_ms) == []


def test_batches_expire_oldest_first_and_the_rest_stay() -> None:
    stage = Accumulation(batch_size=BATCH, request_timeout_ms=100, delivery_timeout_ms=1000)
    stage.append(bytes(900))
    stage.clock.advance(300)
    stage.append(bytes(901))
    stage.clock.advance(300)
    stage.append(bytes(902))
    stage.clock.advance(700)
    assert [len(payload_of(batch)) for batch in stage.accumulator.expired_batches(stage.now_ms)] == [900, 901]
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 300


def payload_of(batch: ProducerBatch) -> bytes:
    """The only value of a batch that was never drained."""
    batch.body = batch._raw_views()
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
    assert stage.accumulator.expired_batches(stage.now_ms) == []
    stage.clock.advance(100)
    assert stage.accumulator.expired_batches(stage.now_ms) == [batch]


# ---- FLUSH, CLOSE, ABORT


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

    assert stage.accumulator.flush(1000, send) is True
    assert ready == [{0, 1}]
    stage.append(VALUE)
    assert stage.ready(TWO_NODES) == set()  # the flush is over


def test_flush_does_not_wait_for_rows_that_come_later() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")

    def send() -> None:
        stage.give_back(stage.drain_one(ONE_NODE))
        stage.append(b"2")

    assert stage.accumulator.flush(1000, send) is True
    assert stage.accumulator.has_incomplete()


def test_flush_of_nothing_is_done_at_once() -> None:
    stage = Accumulation()
    assert stage.accumulator.flush(0, stage.wake) is True


def test_flush_gives_up_after_its_time_and_is_over_then() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")
    before = stage.now_ms
    assert stage.accumulator.flush(250, stage.wake) is False
    assert stage.now_ms - before == 250
    assert stage.ready(ONE_NODE) == set()


def test_flush_that_is_interrupted_is_over() -> None:
    stage = Accumulation(linger_ms=60_000)
    stage.append(b"1")

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    stage.clock.wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.accumulator.flush(250, stage.wake)
    assert stage.ready(ONE_NODE) == set()


def test_flush_ends_when_a_batch_fails_while_its_request_is_still_out() -> None:
    stage = Accumulation()
    stage.append(b"1")
    batch = stage.drain_one(ONE_NODE)
    batch.in_flight = True
    batch.fail(KafkaError("expired"), final_state=FinalState.ABORTED)
    stage.accumulator.remove_incomplete(batch)
    assert stage.accumulator.flush(0, stage.wake) is True


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
    stage.accumulator._closed = True  # between the caller's memory and its reservation
    with pytest.raises(ProducerClosedError):
        stage.append(b"1")
    assert stage.is_whole


def test_what_is_queued_and_what_is_in_flight_can_be_withdrawn_oldest_first() -> None:
    stage = Accumulation(batch_size=BATCH)
    for _ in range(3):
        stage.append(bytes(900))
    in_flight = stage.drain_one(ONE_NODE)
    in_flight.in_flight = True
    error = ProducerClosedError("The producer was closed forcefully")
    withdrawn = stage.accumulator.withdraw_batches(error)
    assert withdrawn[0] is in_flight
    assert [batch.flush_id for batch in withdrawn] == [1, 2, 3]
    assert not stage.accumulator.has_undrained()


def test_a_withdrawn_batch_that_is_being_written_stays_until_its_caller_is_done() -> None:
    stage = Accumulation()
    writing = OpenAppend(stage, b"1")
    error = KafkaError("fatal")
    assert len(stage.accumulator.withdraw_batches(error)) == 1
    writing.fill()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    (spoilt,) = stage.accumulator.expired_batches(stage.now_ms)
    assert spoilt.poison is error
    stage.accumulator.deallocate(spoilt)
    assert stage.is_whole


# ---- STICKY PARTITIONS


def assign(stage: Accumulation, rows: int, where: object = ONE_NODE, size: int = 100) -> list[int]:
    partitions = np.full(rows, -1, np.int32)
    stage.accumulator.assign_partitions(TOPIC, np.full(rows, size, np.int64), np.ones(rows, np.bool_), partitions, where)  # type: ignore[arg-type]
    chosen: list[int] = partitions.tolist()
    return chosen


def test_rows_without_a_key_stay_with_one_partition_for_a_batch() -> None:
    stage = Accumulation(batch_size=BATCH)
    chosen = assign(stage, 1000)
    switches = [index for index in range(1, 1000) if chosen[index] != chosen[index - 1]]
    assert set(chosen) == {0, 1, 2, 3}
    assert all(later - earlier >= 10 for earlier, later in pairwise(switches))


def test_only_the_rows_asked_for_are_assigned() -> None:
    stage = Accumulation(batch_size=BATCH)
    partitions = np.array([7, -1, 7, -1], np.int32)
    stage.accumulator.assign_partitions(TOPIC, np.full(4, 10, np.int64), partitions == -1, partitions, cluster({TOPIC: (0,)}))
    assert partitions.tolist() == [7, 0, 7, 0]


def test_leaderless_partitions_are_left_out_while_others_have_a_leader() -> None:
    stage = Accumulation(batch_size=BATCH)
    assert set(assign(stage, 500, cluster({TOPIC: (0, None, 1, None)}))) == {0, 2}


def test_when_no_partition_has_a_leader_all_are_drawn_from() -> None:
    stage = Accumulation(batch_size=BATCH)
    assert set(assign(stage, 500, cluster({TOPIC: (None, None)}))) == {0, 1}


def test_partitions_with_longer_queues_are_drawn_less_often() -> None:
    """KIP-794: frequency = longest queue + 1 - own."""
    stage = Accumulation(batch_size=BATCH, seed=3)
    where = cluster({TOPIC: (0, 0, 0)})
    for partition, length in enumerate((0, 3, 1)):
        for _ in range(length):
            stage.append(bytes(900), partition=partition)
    stage.accumulator.queues_for(TOPIC, [0, 1, 2])
    assign(stage, 1, where)  # whoever never sends rows without a key needs no queue lengths
    stage.ready(where)
    drawn = Counter(assign(stage, 1, where, size=2 * BATCH)[0] for _ in range(7000))
    assert 3300 < drawn[0] < 3700  # weights 4, 1 and 3
    assert 775 < drawn[1] < 975
    assert 2425 < drawn[2] < 2825


def test_queue_lengths_are_counted_only_when_one_may_have_changed() -> None:
    """With 1,000 partitions counting took 0.6 ms in every round of the Sender, also when nothing had happened."""
    stage = Accumulation(batch_size=BATCH)
    assign(stage, 1)
    sticky = stage.accumulator.topic_queues(TOPIC).sticky
    counts: list[list[int]] = []
    sticky.update_load = lambda lengths, *_, **__: counts.append(list(lengths))  # type: ignore[method-assign]

    def rounds(where: Cluster = ONE_NODE) -> list[list[int]]:
        counts.clear()
        for _ in range(3):
            stage.ready(where)
        return counts[:]

    stage.append(*[VALUE] * 4, partition=[0, 1, 2, 3])
    assert rounds() == [[1, 1, 1, 1]]
    assert rounds() == []
    stage.append(bytes(1000), partition=2)
    assert rounds() == [[1, 1, 2, 1]]
    batch = stage.drain(ONE_NODE, 0, max_size=1)[0][0]
    assert rounds() == [[0, 1, 2, 1]]
    stage.accumulator.reenqueue(batch, stage.now_ms)
    assert rounds() == [[1, 1, 2, 1]]
    assert rounds(cluster({TOPIC: (0, 0, None, 0)})) == [[1, 1, 1]]
    stage.clock.advance(1_000_000)
    stage.accumulator.expired_batches(stage.now_ms)
    assert rounds() == [[0, 0, 0, 0]]


def test_without_adaptive_partitioning_queue_lengths_do_not_matter() -> None:
    stage = Accumulation(batch_size=BATCH, seed=3, partitioner_adaptive_partitioning_enable=False)
    where = cluster({TOPIC: (0, 0)})
    for _ in range(9):
        stage.append(bytes(900), partition=1)
    stage.accumulator.queues_for(TOPIC, [0, 1])
    assign(stage, 1, where)
    stage.ready(where)
    drawn = Counter(assign(stage, 1, where, size=2 * BATCH)[0] for _ in range(2000))
    assert 850 < drawn[1] < 1150


def test_a_partition_never_written_to_is_drawn_too() -> None:
    stage = Accumulation(batch_size=BATCH, seed=3)
    for _ in range(3):
        stage.append(bytes(900), partition=1)
    assign(stage, 1)
    stage.ready(ONE_NODE)
    assert set(assign(stage, 2000, size=2 * BATCH)) == {0, 1, 2, 3}


RACKS = Cluster(
    nodes=[Node(0, "127.0.0.1", 9092, "here"), Node(1, "127.0.0.1", 9093, "there")],
    topics=cluster({TOPIC: (0, 0, 1, 1)}).topics,
)


def test_rack_aware_rows_stay_in_their_rack() -> None:
    stage = Accumulation(batch_size=BATCH, partitioner_rack_aware=True, client_rack="here")
    assert set(assign(stage, 500, RACKS)) == {0, 1}


def test_rack_aware_rows_go_anywhere_when_their_rack_leads_nothing() -> None:
    stage = Accumulation(batch_size=BATCH, partitioner_rack_aware=True, client_rack="elsewhere")
    assert set(assign(stage, 500, RACKS)) == {0, 1, 2, 3}


def test_rack_aware_rows_stay_in_their_rack_when_its_queues_are_the_longer_ones() -> None:
    """KIP-1123: queue lengths choose among the partitions of the rack, not among all."""
    stage = Accumulation(batch_size=BATCH, partitioner_rack_aware=True, client_rack="here")
    for partition, length in enumerate((6, 3, 1, 1)):
        for _ in range(length):
            stage.append(bytes(900), partition=partition)
    assign(stage, 1, RACKS)
    stage.ready(RACKS)
    drawn = Counter(assign(stage, 700, RACKS, size=2 * BATCH))
    assert set(drawn) == {0, 1}
    assert drawn[1] > 2 * drawn[0]


TWO_NODES = cluster({TOPIC: (0, 0, 1, 1)})


def drawn_with_a_slow_node(stage: Accumulation) -> set[int]:
    """Node 1 has been ready for 300 ms without taking anything; then 500 stays are drawn."""
    for partition in range(4):
        stage.append(b"x", partition=partition)
    for node in (0, 1):
        stage.accumulator.node_looked_at(node, stage.now_ms, takes_batches=True)
    stage.clock.advance(300)
    stage.accumulator.node_looked_at(0, stage.now_ms, takes_batches=True)
    stage.accumulator.node_looked_at(1, stage.now_ms, takes_batches=False)
    assign(stage, 1, TWO_NODES)
    stage.ready(TWO_NODES)
    return set(assign(stage, 500, TWO_NODES, size=2 * BATCH)[1:])


def test_a_node_that_takes_nothing_for_too_long_gets_no_rows_without_a_key() -> None:
    assert drawn_with_a_slow_node(Accumulation(batch_size=BATCH, partitioner_availability_timeout_ms=200)) == {0, 1}
    assert drawn_with_a_slow_node(Accumulation(batch_size=BATCH, partitioner_availability_timeout_ms=400)) == {0, 1, 2, 3}
    assert drawn_with_a_slow_node(Accumulation(batch_size=BATCH)) == {0, 1, 2, 3}


def test_round_robin_takes_turns_whatever_the_sizes() -> None:
    stage = Accumulation(partitioner_class="org.apache.kafka.clients.producer.RoundRobinPartitioner")
    assert sorted(assign(stage, 8, cluster({TOPIC: (0, None, 0, 1)}), size=100_000)) == [0, 0, 0, 2, 2, 2, 3, 3]


# ---- ALL AT ONCE


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
    seen: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    while any(thread.is_alive() for thread in threads) or stage.accumulator.has_undrained():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            seen[batch.topic_partition.partition] += [value or b"" for value in payload(batch)]
            stage.give_back(batch)
    assert failures == []
    ids = [(partition, value[0] - ord("0"), int(value[2:6])) for partition, values in seen.items() for value in values]
    assert sorted((caller, row) for _, caller, row in ids) == [(caller, row) for caller in range(5) for row in range(400)]
    for partition in range(4):
        for caller in range(5):
            rows = [row for where, who, row in ids if (where, who) == (partition, caller)]
            assert rows == sorted(rows)
    assert sum(delivery.acknowledged for delivery in deliveries) == 2000
    assert stage.is_whole
