"""BuiltInPartitioner: which partitions rows without a key may go to, and how queue lengths and racks decide."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.network.cluster import Cluster, Node, Topic
from spark_kafka_sink.producer.accumulator.built_in_partitioner import BuiltInPartitioner
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from tests.producer.accumulator.small_batches import BATCH, ONE_NODE, TWO_NODES, VALUE
from tests.producer.harness import TOPIC, Accumulation, cluster, columns
from tests.steps import count_steps

# STICKY PARTITIONS


def rows_of(partitions: list[int], size: int = 100, topic: str = TOPIC) -> TopicRows:
    values = columns([bytes(size - 5)] * len(partitions))
    return TopicRows(topic, values, np.array(partitions, np.int32), np.arange(len(partitions), dtype=np.int32))


def assign(stage: Accumulation, row_count: int, where: Cluster = ONE_NODE, size: int = 100) -> list[int]:
    partitions: list[int] = stage.accumulator.built_in_partitioner.choose(
        rows_of([NO_PARTITION] * row_count, size), where
    ).tolist()
    return partitions


def test_rows_without_a_key_stay_with_one_partition_for_a_batch() -> None:
    stage = Accumulation(batch_size=BATCH)
    partitions = assign(stage, 1000)
    switches = [index for index in range(1, 1000) if partitions[index] != partitions[index - 1]]
    assert set(partitions) == {0, 1, 2, 3}
    assert all(later - earlier >= 10 for earlier, later in pairwise(switches))


def test_only_the_rows_asked_for_are_assigned() -> None:
    stage = Accumulation(batch_size=BATCH)
    partitions = stage.accumulator.built_in_partitioner.choose(rows_of([7, -1, 7, -1]), cluster({TOPIC: (0,)}))
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
    stage.accumulator.queues.of_partitions(TOPIC, [0, 1, 2])
    assign(stage, 1, where)  # queue lengths are only counted once there are rows without a key
    stage.ready(where)
    drawn = Counter(assign(stage, 1, where, size=2 * BATCH)[0] for _ in range(7000))
    assert 3300 < drawn[0] < 3700  # weights 4, 1 and 3
    assert 775 < drawn[1] < 975
    assert 2425 < drawn[2] < 2825


def test_queue_lengths_are_counted_only_when_one_may_have_changed() -> None:
    """With 1,000 partitions counting took 0.6 ms in every round of the Sender, also when nothing had happened."""
    stage = Accumulation(batch_size=BATCH)
    assign(stage, 1)
    sticky = stage.accumulator.built_in_partitioner.of_topic(TOPIC).sticky
    counts: list[list[int]] = []
    sticky.update_queue_lengths = lambda lengths, *_, **__: counts.append(list(lengths))

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
    batch = stage.drain(ONE_NODE, 0, max_bytes=1)[0][0]
    assert rounds() == [[0, 1, 2, 1]]
    stage.accumulator.reenqueue(batch, stage.now_ms)
    assert rounds() == [[1, 1, 2, 1]]
    assert rounds(cluster({TOPIC: (0, 0, None, 0)})) == [[1, 1, 1]]
    stage.clock.advance(1_000_000)
    stage.accumulator.take_expired(stage.now_ms)
    assert rounds() == [[0, 0, 0, 0], []]  # without batches there is nothing to weigh


def test_queue_lengths_are_not_counted_while_a_partition_has_no_queue() -> None:
    """Metadata named partition 0 and later only 32, one partition again: each round of the Sender ended in a KeyError."""
    stage = Accumulation(batch_size=BATCH)
    stage.append(VALUE, partition=0)
    assign(stage, 1, cluster({TOPIC: (0,)}))
    stage.ready(cluster({TOPIC: (0,)}))
    whole = cluster({TOPIC: (0,) * 33})
    only_the_last = Cluster(nodes=whole.nodes, topics={TOPIC: Topic(None, {32: whole.topics[TOPIC].partitions[32]})})
    stage.ready(only_the_last)
    assert set(assign(stage, 100, only_the_last, size=BATCH)) == {32}


def test_a_queue_that_a_caller_adds_while_lengths_are_counted_does_no_harm() -> None:
    """The Sender went through the topic's queues as they grew: RuntimeError, and the round was lost."""
    stage = Accumulation(batch_size=BATCH)
    queues = stage.accumulator.queues

    class Growing:
        @property
        def batches(self) -> list[object]:
            queues.of_partitions(TOPIC, [3])
            return []

    queues.of_topic(TOPIC)[0] = Growing()
    assign(stage, 1)
    stage.ready(ONE_NODE)
    assert len(queues.of_topic(TOPIC)) == 2


def test_the_queue_of_a_topics_only_partition_is_not_weighed() -> None:
    """One partition leaves nothing to choose, and a column may have thousands of such topics: each round looked at them all."""
    stage = Accumulation(batch_size=BATCH)
    one = cluster({TOPIC: (0,)})
    assign(stage, 1, one)
    stage.append(VALUE)
    weighed = count_steps(lambda: stage.accumulator.built_in_partitioner.update_queue_lengths(one, 1))
    assign(stage, 1, ONE_NODE)
    assert weighed < count_steps(lambda: stage.accumulator.built_in_partitioner.update_queue_lengths(ONE_NODE, 1))


def test_without_adaptive_partitioning_queue_lengths_do_not_matter() -> None:
    stage = Accumulation(batch_size=BATCH, seed=3, partitioner_adaptive_partitioning_enable=False)
    where = cluster({TOPIC: (0, 0)})
    for _ in range(9):
        stage.append(bytes(900), partition=1)
    stage.accumulator.queues.of_partitions(TOPIC, [0, 1])
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


def drawn_with_a_slow_node(stage: Accumulation) -> set[int]:
    """Node 1 has been ready for 300 ms without taking a batch; then 500 stays are drawn."""
    for partition in range(4):
        stage.append(b"x", partition=partition)
    for node in (0, 1):
        stage.accumulator.built_in_partitioner.update_node_wait(node, stage.now_ms, can_drain=True)
    stage.clock.advance(300)
    stage.accumulator.built_in_partitioner.update_node_wait(0, stage.now_ms, can_drain=True)
    stage.accumulator.built_in_partitioner.update_node_wait(1, stage.now_ms, can_drain=False)
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


def test_only_topics_with_rows_under_way_are_looked_at_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round looked at every topic that was ever written to: 10,000 topics took 26 s, and 20,000 took 66 s."""
    names = [f"t{number}" for number in range(50)]
    where = cluster(dict.fromkeys(names, (0, 0)))
    stage = Accumulation(batch_size=BATCH)
    looked_at: list[str] = []
    update = BuiltInPartitioner._update_lengths_of

    def counting(chooser: BuiltInPartitioner, topic: str, *rest: Any) -> None:
        looked_at.append(topic)
        update(chooser, topic, *rest)

    monkeypatch.setattr(BuiltInPartitioner, "_update_lengths_of", counting)
    for name in names:
        stage.accumulator.built_in_partitioner.choose(rows_of([NO_PARTITION], topic=name), where)
        stage.ready(where)
    assert looked_at == names
