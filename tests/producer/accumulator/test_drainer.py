"""Drainer: what becomes ready when, and what is drained in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError, RecordTooLargeError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.producer.accumulator.small_batches import BATCH, ONE_NODE, TWO_NODES, VALUE
from tests.producer.harness import TOPIC, Accumulation, cluster, payload, tp
from tests.steps import count_steps

# FULL


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
    assert stage.drain_one(ONE_NODE).size_bytes == BATCH


def test_one_slice_fills_batch_after_batch() -> None:
    stage = Accumulation(linger_ms=10_000, batch_size=BATCH)
    values = [b"%03d" % number + bytes(97) for number in range(100)]
    stage.append(*values)
    drained_values: list[bytes | None] = []
    while stage.ready(ONE_NODE):
        batch = stage.drain_one(ONE_NODE)
        assert batch.size_bytes <= BATCH
        drained_values += payload(batch)
    assert drained_values == values[: len(drained_values)]
    assert len(drained_values) > 80
    stage.clock.advance(10_000)
    assert drained_values + payload(stage.drain_one(ONE_NODE)) == values


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
    """A row kept the offset delta that it would have had behind the row before it: brokers reject that batch."""
    stage = Accumulation(batch_size=BATCH, linger_ms=0)
    large = [bytes([row]) * 3000 for row in range(4)]
    stage.append(*large, timestamps=timestamps)
    assert [payload(stage.drain_one(ONE_NODE)) for _ in large] == [[value] for value in large]


def test_a_row_larger_than_the_pool_is_refused_and_nothing_is_kept() -> None:
    stage = Accumulation(batch_size=BATCH, buffer_memory=4 * BATCH)
    with pytest.raises(RecordTooLargeError):
        stage.append(bytes(5 * BATCH))
    assert stage.is_whole
    assert not stage.accumulator.incomplete


def test_batch_size_zero_gives_every_row_its_own_batch() -> None:
    stage = Accumulation(batch_size=0)
    stage.append(b"1", b"2", b"3")
    drained = [payload(stage.drain_one(ONE_NODE)) for _ in range(3)]
    assert drained == [[b"1"], [b"2"], [b"3"]]


# LINGER AND DELAYS


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


def test_a_new_batch_and_a_full_one_alone_wake_the_sender() -> None:
    stage = Accumulation(linger_ms=1000, batch_size=BATCH)
    stage.append(VALUE)
    assert stage.wakeups == 1  # so that linger is measured
    stage.append(VALUE)
    assert stage.wakeups == 1
    stage.append(*[VALUE] * 10)
    assert stage.wakeups == 2


# DRAIN


def test_draining_takes_one_batch_of_each_partition_that_the_node_leads() -> None:
    stage = Accumulation(batch_size=BATCH)
    for partition in range(4):
        stage.append(*[VALUE] * 20, partition=partition)
    drained = stage.drain(TWO_NODES, 0, 1)
    assert {node: [batch.topic_partition.partition for batch in batches] for node, batches in drained.items()} == {
        0: [0, 1],
        1: [2, 3],
    }


def test_max_bytes_bounds_what_is_drained_for_a_node_but_one_batch_always_fits() -> None:
    stage = Accumulation(batch_size=BATCH)
    for partition in range(3):
        stage.append(bytes(500), partition=partition)
    size = 61 + 500 + 9
    assert len(stage.drain(ONE_NODE, 0, max_bytes=1)[0]) == 1
    assert len(stage.drain(ONE_NODE, 0, max_bytes=2 * size)[0]) == 2
    assert stage.drain(ONE_NODE, 0, max_bytes=2 * size)[0] == []


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd", "gzip"])
def test_batches_that_linger_share_a_request_that_has_room_for_them_compressed(codec: str) -> None:
    stage = Accumulation(batch_size=512 * 1024, compression_type=codec)
    _teach_ratio(stage)
    for partition in range(4):
        stage.append(*[bytes(1000)] * 1500, partition=partition)
    drained = stage.drain(ONE_NODE, 0, max_bytes=1024 * 1024)[0]
    assert [batch.record_count for batch in drained] == [1500] * 4
    assert sum(batch.size_bytes for batch in drained) < 1024 * 1024


def _teach_ratio(stage: Accumulation) -> None:
    """Enough batches for the accumulator to expect that the topic compresses to a tenth."""
    for _ in range(180):
        stage.append(bytes(10_000))
        stage.give_back(stage.drain_one(ONE_NODE))


def test_partitions_take_turns_when_the_request_is_too_small_for_all() -> None:
    """Always beginning at the same partition would starve the last ones for as long as the first have rows."""
    stage = Accumulation(batch_size=BATCH)
    for _ in range(3):
        for partition in range(4):
            stage.append(bytes(900), partition=partition)
    turns = [[batch.topic_partition.partition for batch in stage.drain(ONE_NODE, 0, max_bytes=2100)[0]] for _ in range(6)]
    assert turns == [[0, 1], [2, 3]] * 3


def test_each_node_has_a_turn_of_its_own() -> None:
    stage = Accumulation(batch_size=BATCH)
    for _ in range(2):
        for partition in range(4):
            stage.append(bytes(900), partition=partition)
    first = stage.drain(TWO_NODES, 0, max_bytes=1)[0]
    other = stage.drain(TWO_NODES, 1, max_bytes=1)[1]
    second = stage.drain(TWO_NODES, 0, max_bytes=1)[0]
    assert [batch.topic_partition.partition for batch in first + other + second] == [0, 2, 1]


class CountingLock:
    def __init__(self) -> None:
        self.acquisition_count = 0

    def __enter__(self) -> None:
        self.acquisition_count += 1

    def __exit__(self, *_: object) -> None:
        return


def test_a_batch_that_lingers_is_looked_at_once_until_its_time_is_over() -> None:
    """With a thousand partitions the Sender took a thousand locks in each round: 3 ms, to find that nothing had changed."""
    stage = Accumulation(linger_ms=10)
    stage.append(VALUE)
    lock: Any = CountingLock()
    stage.accumulator.queues.of_partitions(TOPIC, [0])[0].lock = lock
    for _ in range(10):
        assert stage.ready(ONE_NODE) == set()
        stage.clock.advance(1)
    assert lock.acquisition_count == 1
    assert stage.ready(ONE_NODE) == {0}


def test_the_delay_of_a_batch_that_lingers_shrinks_with_the_time() -> None:
    stage = Accumulation(linger_ms=10)
    stage.append(VALUE)
    for waited_ms in range(10):
        assert stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms == 10 - waited_ms
        stage.clock.advance(1)


def retry(stage: Accumulation) -> None:
    (batch,) = stage.accumulator.take_incomplete(KafkaError("taken out to be put back"))
    stage.accumulator.reenqueue(batch, stage.now_ms, max_backoff_ms=0)


ENDS_OF_LINGER: dict[str, Callable[[Accumulation], object]] = {
    "full": lambda stage: stage.append(bytes(927)),  # 936 bytes as a record
    "a second batch": lambda stage: stage.append(bytes(2 * BATCH)),
    "close()": lambda stage: stage.accumulator.close(),
    "retry": retry,
    "a transaction that waits for rows": lambda stage: setattr(stage.accumulator, "transaction_waits_for_rows", True),
}


@pytest.mark.parametrize("end", ENDS_OF_LINGER.values(), ids=ENDS_OF_LINGER)
def test_a_batch_that_was_seen_lingering_is_ready_once_it_need_not_linger(
    end: Callable[[Accumulation], object],
) -> None:
    stage = Accumulation(linger_ms=1000, batch_size=BATCH)
    stage.append(bytes(20))
    assert stage.ready(ONE_NODE) == set()
    end(stage)
    assert stage.ready(ONE_NODE) == {0}


def test_a_batch_that_follows_one_that_lingered_lingers_for_its_own_time() -> None:
    stage = Accumulation(linger_ms=10)
    stage.append(VALUE)
    assert stage.ready(ONE_NODE) == set()
    stage.accumulator.transaction_waits_for_rows = True
    stage.drain_one(ONE_NODE)
    stage.accumulator.transaction_waits_for_rows = False
    stage.clock.advance(5)
    stage.append(VALUE)
    assert stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms == 10


class CountingCluster(Cluster):
    """Counts how often a leader is asked for."""

    __slots__ = ("lookup_count",)

    def leader_for(self, topic_partition: TopicPartition) -> int | None:
        self.lookup_count = getattr(self, "lookup_count", 0) + 1
        return super().leader_for(topic_partition)


def test_however_many_nodes_are_drained_each_leader_is_looked_up_once() -> None:
    """All queues were walked for each node: 3,000 partitions on 30 nodes cost 20 ms a round, in which no caller could encode."""
    stage = Accumulation()
    leaders = [number % 5 for number in range(100)]
    where = CountingCluster(nodes=ONE_NODE.nodes, topics=cluster({TOPIC: leaders}).topics)
    stage.append(*[VALUE] * 100, partition=list(range(100)))
    drained = stage.drain(where, *range(5))
    assert where.lookup_count == 100
    assert [len(batches) for batches in drained.values()] == [20] * 5
    stage.append(*[VALUE] * 3, partition=[7, 8, 9])  # the other queues are empty now
    result = stage.accumulator.ready(where, stage.now_ms)
    assert result.indexes_by_leader == {2: [7], 3: [8], 4: [9]}
    drained = stage.accumulator.drainer.drain(where, result.ready_nodes, 1_000_000, stage.now_ms, result.indexes_by_leader)
    assert where.lookup_count == 100
    assert {
        node: [batch.topic_partition.partition for batch in batches] for node, batches in drained.items()
    } == result.indexes_by_leader


@pytest.mark.parametrize("linger_ms", [0, 10], ids=["ready", "lingering"])
def test_a_round_looks_at_partitions_with_batches_only(linger_ms: int) -> None:
    """Each round looked at every queue there was, and each new batch makes a round: 16,000 topics took 60 s, 4,000 took 3."""

    def steps_of_a_round(partitions: int) -> int:
        stage = Accumulation(linger_ms=linger_ms)
        where = cluster({TOPIC: [0] * partitions})
        stage.append(*[VALUE] * partitions, partition=list(range(partitions)))
        stage.clock.advance(linger_ms)
        assert len(stage.drain(where, 0)[0]) == partitions
        assert stage.ready(where) == set()
        stage.append(VALUE, partition=partitions - 1)
        return count_steps(lambda: stage.ready(where))

    assert steps_of_a_round(1_000) == steps_of_a_round(10)


def test_new_metadata_costs_nothing_for_partitions_without_batches() -> None:
    def lookups(partitions: int) -> int:
        stage = Accumulation()
        stage.append(*[VALUE] * partitions, partition=list(range(partitions)))
        stage.drain(cluster({TOPIC: [0] * partitions}), 0)
        stage.ready(ONE_NODE)
        where = CountingCluster(nodes=ONE_NODE.nodes, topics=cluster({TOPIC: [0] * partitions}).topics)
        stage.append(VALUE)
        stage.ready(where)
        return where.lookup_count

    assert lookups(1_000) == lookups(10) == 1


def test_batches_move_to_the_leader_that_new_metadata_names() -> None:
    stage = Accumulation()
    stage.append(*[VALUE] * 4, partition=[3, 0, 2, 1])
    for leaders in ((0, 0, 1, 1), (1, 0, None, 1), (0, 0, 0, 0)):
        result = stage.accumulator.ready(cluster({TOPIC: leaders}), stage.now_ms)
        by_leader = {node: [index for index in range(4) if leaders[_partition(stage, index)] == node] for node in (0, 1)}
        assert result.indexes_by_leader == {node: indexes for node, indexes in by_leader.items() if indexes}
        assert result.unknown_leader_topics == ({TOPIC} if None in leaders else set())


def _partition(stage: Accumulation, index: int) -> int:
    return stage.accumulator.queues[index].topic_partition.partition


def test_a_batch_that_arrives_while_the_sender_leaves_an_empty_queue_is_found() -> None:
    stage = Accumulation()
    stage.append(VALUE)
    stage.drain_one(ONE_NODE)
    queue = stage.accumulator.queues[0]

    class BusyLock:
        """A lock that a caller has first, who appends a batch."""

        def __enter__(self) -> None:
            queue.lock = lock
            stage.append(VALUE)

        def __exit__(self, *_: object) -> None:
            return

    lock, queue.lock = queue.lock, BusyLock()
    assert stage.ready(ONE_NODE) == set()
    assert stage.ready(ONE_NODE) == {0}


def test_no_partition_starves_behind_the_request_size_whichever_have_batches() -> None:
    """Two nodes, a request that holds one batch, and partitions that come and go: each waits for one turn of its node at most."""
    random = Random(5)
    stage = Accumulation(batch_size=BATCH)
    leaders = [number % 2 for number in range(12)]
    where = cluster({TOPIC: leaders})
    waited: Counter[int] = Counter()
    for _ in range(300):
        for partition in random.sample(range(12), 5):
            if not stage.accumulator.queues.of_partitions(TOPIC, [partition])[0].batches:
                stage.append(bytes(900), partition=partition)
        for batches in stage.drain(where, 0, 1, max_bytes=1).values():
            for batch in batches:
                waited[batch.topic_partition.partition] = 0
                stage.give_back(batch)
        for partition in range(12):
            if stage.accumulator.queues.of_partitions(TOPIC, [partition])[0].batches:
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
    stage.accumulator.queues.of_partition(tp(0)).is_muted = True
    assert stage.ready(ONE_NODE) == set()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    stage.accumulator.queues.of_partition(tp(0)).is_muted = False
    assert stage.ready(ONE_NODE) == {0}
    assert stage.drain_one(ONE_NODE).record_count == 1


def test_a_muted_partition_does_not_hold_up_another() -> None:
    stage = Accumulation()
    stage.append(VALUE, partition=0)
    stage.append(VALUE, partition=1)
    stage.accumulator.queues.of_partition(tp(0)).is_muted = True
    assert stage.ready(ONE_NODE) == {0}
    assert stage.drain_one(ONE_NODE).topic_partition == tp(1)


def test_a_drained_batch_takes_no_more_rows() -> None:
    stage = Accumulation(linger_ms=0, batch_size=BATCH)
    stage.append(b"1")
    first = stage.drain_one(ONE_NODE)
    stage.append(b"2")
    assert payload(first) == [b"1"]
    assert payload(stage.drain_one(ONE_NODE)) == [b"2"]


# RETRY


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


def test_back_off_is_the_delay_to_the_next_check() -> None:
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
    """Back-off depended on the batch's number: batches of many producers that were rejected together came back together."""
    delays = []
    for seed in range(3):
        stage = Accumulation(seed=seed, retry_backoff_ms=10_000, retry_backoff_max_ms=100_000)
        for doublings, delay_ms in enumerate(delays_of_retries(stage, 3)):
            delays.append(delay_ms / 2**doublings)
    assert len(set(delays)) == 9
    assert all(8_000 <= delay <= 12_000 for delay in delays)


def test_no_back_off_is_longer_than_retry_backoff_max_ms() -> None:
    """Back-off was longer by up to a fifth, and as long as retry.backoff.ms where that is more."""
    stage = Accumulation(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    assert 950 < max(delays_of_retries(stage, 20)) <= 1_000
    assert delays_of_retries(Accumulation(retry_backoff_ms=3_000, retry_backoff_max_ms=1_000), 3) == [1_000] * 3


def delays_of_retries(stage: Accumulation, retries: int) -> list[int]:
    """How long one batch waits for each of its attempts."""
    delays = []
    stage.append(b"1")
    batch = stage.drain_one(ONE_NODE)
    for _ in range(retries):
        stage.accumulator.reenqueue(batch, stage.now_ms)
        delays.append(stage.accumulator.ready(ONE_NODE, stage.now_ms).next_ready_check_delay_ms)
        stage.accumulator.queues.of_partitions(TOPIC, [0])[0].batches.clear()
    return delays


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
    assert stage.ready(new) == set()  # the new leader rejected it too: now it backs off
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


def test_a_retried_batch_is_sent_before_newer_ones() -> None:
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
