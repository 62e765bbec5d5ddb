"""What holds whatever happens: every row exactly once, in order per partition, and all memory back in the end.

Hypothesis writes the script (rows, rounds, answers, faults, moving leaders, callers that stop half way); SimulatedBrokers keep
the logs. After the script the brokers behave, and everything left has to be settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.producer.accumulator.batch_compressor import MAX_RAW_BATCH_BYTES
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.built_in_partitioner import StickyPartitioner
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from tests.producer.harness import TOPIC, Accumulation, OpenAppend, Stage, cluster, payload, tp
from tests.producer.simulated_brokers import FATES_OF_LOST_ROWS, Fate, SimulatedBrokers

NODES = 3
PARTITIONS = 4
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

LARGEST_BATCH_OF_ONE_ROW = 3100

few = settings(
    max_examples=60, deadline=None, derandomize=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)
)


# THE SCRIPT


@dataclass(frozen=True)
class Append:
    rows: Sequence[tuple[int, int]]  # (partition, size)


@dataclass(frozen=True)
class Round:
    advance_ms: int


@dataclass(frozen=True)
class Answer:
    node: int
    fate: Fate


@dataclass(frozen=True)
class Move:
    partition: int
    node: int


Step = Append | Round | Answer | Move

row_sizes = st.one_of(st.integers(0, 40), st.integers(0, 700), st.integers(1000, 3000))
appends = st.builds(Append, st.lists(st.tuples(st.integers(0, PARTITIONS - 1), row_sizes), min_size=1, max_size=12))
rounds = st.builds(Round, st.sampled_from([0, 1, 5, 100, 150, 300]))
moves = st.builds(Move, st.integers(0, PARTITIONS - 1), st.integers(0, NODES - 1))


def answers(*fates: Fate) -> st.SearchStrategy[Answer]:
    return st.builds(Answer, st.integers(0, NODES - 1), st.sampled_from(fates))


PASSING = [fate for fate in Fate if fate not in FATES_OF_LOST_ROWS]


def scripts(*fates: Fate) -> st.SearchStrategy[list[Step]]:
    """Long ones: trouble needs several batches in flight."""
    step = st.one_of(appends, appends, rounds, rounds, answers(*fates), answers(*fates), answers(Fate.ANSWER), moves)
    return st.lists(step, min_size=25, max_size=50)


options = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([0, 200, 1024, 5000]),
        "linger_ms": st.sampled_from([0, 5, 100]),
        "compression_type": st.sampled_from(CODECS),
        "buffer_memory": st.sampled_from([4096, 16_384, 1_000_000]),
        "max_in_flight_requests_per_connection": st.integers(1, 5),
        "max_request_size": st.sampled_from([1000, 1_048_576]),
        "max_message_bytes": st.sampled_from([LARGEST_BATCH_OF_ONE_ROW, 1_048_588]),  # small: larger batches are split
    }
)


class Play:
    """Runs a script and remembers what was written."""

    def __init__(self, *, max_message_bytes: int = 1_048_588, **options: Any) -> None:
        self.stage = Stage(leaders={TOPIC: [number % NODES for number in range(PARTITIONS)]}, **options)
        self.brokers = SimulatedBrokers(self.stage, max_message_bytes=max_message_bytes)
        self.deliveries: list[tuple[Delivery, dict[int, list[bytes]]]] = []
        self.written: dict[int, list[bytes]] = defaultdict(list)
        self._next_row = 0
        self.stage.clock.wait = self._wait

    def run(self, script: Sequence[Step]) -> None:
        for step in script:
            match step:
                case Append(rows):
                    self._append(rows)
                case Round(advance_ms):
                    self.stage.clock.advance(advance_ms)
                    self.stage.run()
                case Answer(node, fate):
                    self.brokers.answer(node, fate)
                case Move(partition, node):
                    self.brokers.move_leader(TOPIC, partition, node)
        self._finish()

    def _append(self, rows: Sequence[tuple[int, int]]) -> None:
        values = [b"%06d" % (self._next_row + index) + b"x" * size for index, (_, size) in enumerate(rows)]
        self._next_row += len(rows)
        of_partition: dict[int, list[bytes]] = defaultdict(list)
        for value, (partition, _) in zip(values, rows, strict=True):
            of_partition[partition].append(value)
            self.written[partition].append(value)
        delivery = self.stage.append(*values, partition=[partition for partition, _ in rows])
        self.deliveries.append((delivery, of_partition))
        self.stage.run()

    def _wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        """A caller waits for memory: meanwhile the Sender works and the brokers behave."""
        del waitable, timeout_ms
        self._good_round()
        return True

    def _good_round(self, advance_ms: int = 100) -> None:
        self.stage.clock.advance(advance_ms)
        self.stage.run()
        self.brokers.answer_all()

    def _finish(self, advance_ms: int = 100) -> None:
        for _ in range(500):
            if not self.stage.accumulator.incomplete and not self.stage.in_flight:
                break
            self._good_round(advance_ms)
        self.stage.run()

    def write_while_brokers_behave(self) -> list[Delivery]:
        """A row to each partition, one after the other."""
        self.brokers.tell_leaders()
        before = len(self.deliveries)
        for partition in range(PARTITIONS):
            self._append([(partition, 10)])
            self._finish(advance_ms=20)
        return [delivery for delivery, _ in self.deliveries[before:]]

    def log(self, partition: int) -> list[bytes | None]:
        return self.brokers.logs[tp(partition)].values


def assert_settled(play: Play) -> None:
    stage = play.stage
    assert not stage.accumulator.incomplete
    assert not stage.accumulator.has_queued_batches()
    assert stage.is_whole
    for delivery, _ in play.deliveries:
        assert delivery.done()
        assert delivery.acknowledged + delivery.failed == delivery.rows


def assert_offsets_tell_where_rows_are(play: Play) -> None:
    for delivery, of_partition in play.deliveries:
        assert {where.partition: offsets.rows for where, offsets in delivery.offsets.items()} == {
            partition: len(values) for partition, values in of_partition.items()
        }
        for where, offsets in delivery.offsets.items():
            log = play.log(where.partition)
            values = of_partition[where.partition]
            assert (log[offsets.first], log[offsets.last]) == (values[0], values[-1])


def first_occurrences(log: Sequence[bytes | None]) -> list[bytes | None]:
    return list(dict.fromkeys(log))


# THE SENDER


@few
@given(options, scripts(*PASSING))
def test_an_idempotent_producer_writes_every_row_once_and_in_order(options: dict[str, Any], script: list[Step]) -> None:
    play = Play(enable_idempotence=True, delivery_timeout_ms=2**31 - 1, max_block_ms=10_000_000, **options)
    play.run(script)
    for partition in range(PARTITIONS):
        assert play.log(partition) == play.written[partition]
    assert all(delivery.error is None for delivery, _ in play.deliveries)
    assert_settled(play)
    assert_offsets_tell_where_rows_are(play)


@few
@given(options, scripts(*PASSING))
def test_with_one_request_in_flight_rows_are_written_at_least_once_and_in_order(
    options: dict[str, Any], script: list[Step]
) -> None:
    options["max_in_flight_requests_per_connection"] = 1
    play = Play(acks="1", delivery_timeout_ms=2**31 - 1, max_block_ms=10_000_000, **options)
    play.run(script)
    for partition in range(PARTITIONS):
        assert first_occurrences(play.log(partition)) == play.written[partition]
        if play.brokers.appends_without_answer == 0:
            assert play.log(partition) == play.written[partition]
    assert all(delivery.error is None for delivery, _ in play.deliveries)
    assert_settled(play)


@few
@given(options, scripts(*Fate), st.booleans())
def test_rows_that_cannot_be_written_fail_and_the_others_are_written_in_order(
    options: dict[str, Any], script: list[Step], idempotent: bool
) -> None:
    """Refusals that no retry heals, and a delivery time-out that some batches reach."""
    if not idempotent:
        options["max_in_flight_requests_per_connection"] = 1
    play = Play(
        enable_idempotence=idempotent, request_timeout_ms=500, delivery_timeout_ms=700, max_block_ms=10_000_000, **options
    )
    play.run(script)
    assert_settled(play)
    for partition in range(PARTITIONS):
        log = first_occurrences(play.log(partition))
        assert log == [value for value in play.written[partition] if value in set(log)]
    for delivery, of_partition in play.deliveries:
        written = sum(value in play.log(partition) for partition, values in of_partition.items() for value in values)
        assert written >= delivery.acknowledged
        assert (delivery.error is None) == (delivery.failed == 0)


@settings(few, max_examples=150)
@given(
    options,
    scripts(*Fate),
    st.sampled_from([1, 2, 3, 2**31 - 1]),
    st.sampled_from([200, 500]),
    st.sampled_from([0, 300]),
)
def test_after_batches_of_unknown_outcome_rows_are_written_and_none_twice(
    options: dict[str, Any], script: list[Step], retries: int, request_timeout_ms: int, more_ms: int
) -> None:
    """Few retries, connections that are lost before or after the broker wrote, and delivery.timeout.ms at its least, so that it
    runs out in the poll that brings the answer."""
    play = Play(
        enable_idempotence=True,
        retries=retries,
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=options["linger_ms"] + request_timeout_ms + more_ms,
        max_block_ms=10_000_000,
        **options,
    )
    play.run(script)
    assert_settled(play)
    later = play.write_while_brokers_behave()
    assert [(delivery.error, delivery.acknowledged) for delivery in later] == [(None, 1)] * PARTITIONS
    assert_settled(play)
    acknowledged: dict[int, int] = defaultdict(int)
    for delivery, _ in play.deliveries:
        for where, offsets in delivery.offsets.items():
            acknowledged[where.partition] += offsets.rows
    for partition in range(PARTITIONS):
        log = play.log(partition)
        assert len(set(log)) == len(log)
        assert log == [value for value in play.written[partition] if value in set(log)]
        assert len(log) >= acknowledged[partition]


# THE ACCUMULATOR


@few
@given(
    batch_size=st.one_of(st.integers(0, 4000), st.sampled_from([20_000, 1_000_000])),
    codec=st.sampled_from(CODECS),
    chunks=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), row_sizes), min_size=1, max_size=60),
            st.booleans(),
            st.booleans(),
            st.integers(1, 30),
        ),
        max_size=8,
    ),
)
def test_rows_lie_in_order_in_batches_that_are_no_larger_than_allowed(
    batch_size: int, codec: str, chunks: list[tuple[list[tuple[int, int]], bool, bool, int]]
) -> None:
    stage = Accumulation(batch_size=batch_size, compression_type=codec)
    where = cluster({TOPIC: [0] * 6})
    expected: dict[int, list[bytes]] = defaultdict(list)
    drained_values: dict[int, list[bytes | None]] = defaultdict(list)

    def drain() -> None:
        for batch in stage.drain(where, 0)[0]:
            limit = batch_size if codec == "none" else MAX_RAW_BATCH_BYTES
            assert batch.record_count == 1 or batch.record_bytes + 61 <= max(limit, batch_size)
            assert sum(batch_rows.row_count for batch_rows in batch.rows_by_call) == batch.record_count
            assert sum(batch_rows.size_bytes for batch_rows in batch.rows_by_call) == batch.record_bytes
            assert [int(batch_rows.sizes.sum()) for batch_rows in batch.rows_by_call] == [
                batch_rows.size_bytes for batch_rows in batch.rows_by_call
            ]
            drained_values[batch.topic_partition.partition] += payload(batch)
            stage.give_back(batch)

    number = 0
    for distinct_rows, drains, one_timestamp, times in chunks:
        rows = distinct_rows * times  # deltas of two and three bytes need many rows in a batch
        values = [b"%06d" % (number + index) + b"y" * size for index, (_, size) in enumerate(rows)]
        number += len(rows)
        for value, (partition, _) in zip(values, rows, strict=True):
            expected[partition].append(value)
        # Timestamps fall as well as rise: their deltas change the size of each row.
        stamps = [1_000_000 + (number * 7919 + index * 104_729) % 50_000 for index in range(len(rows))]
        stage.append(*values, partition=[partition for partition, _ in rows], timestamps=1_000_000 if one_timestamp else stamps)
        if drains:
            drain()
    while stage.accumulator.has_queued_batches():
        drain()
    assert drained_values == expected
    assert stage.is_whole


@few
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.integers(0, 1), st.integers(1, 4), st.integers(0, 300)),
            st.tuples(st.just("fill"), st.integers(0, 9), st.just(0), st.just(0)),
            st.tuples(st.just("drain"), st.just(0), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_callers_that_write_at_the_same_time_do_not_overwrite_one_another(steps: list[tuple[str, int, int, int]]) -> None:
    """Reservations of several callers in one batch, filled in any order, with drains in between."""
    stage = Accumulation(batch_size=1024, linger_ms=0)
    where = cluster({TOPIC: (0, 0)})
    reserved: dict[int, list[bytes]] = defaultdict(list)
    drained_values: dict[int, list[bytes | None]] = defaultdict(list)
    writing: list[OpenAppend] = []
    number = 0

    def drain() -> None:
        for batch in stage.drain(where, 0)[0]:
            assert batch.reservation_count == 0
            drained_values[batch.topic_partition.partition] += payload(batch)
            stage.give_back(batch)

    for action, which, rows, size in steps:
        if action == "open":
            values = [b"%06d" % (number + index) + b"z" * size for index in range(rows)]
            number += rows
            reserved[which] += values
            writing.append(OpenAppend(stage, *values, partition=which))
        elif action == "fill" and writing:
            writing.pop(which % len(writing)).fill()
        elif action == "drain":
            drain()
    for caller in writing:
        caller.fill()
    while stage.accumulator.has_queued_batches():
        drain()
    assert drained_values == reserved
    assert stage.is_whole


# MEMORY


@few
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=60),
)
def test_blocks_are_never_lost_nor_handed_out_twice(steps: list[tuple[int, bool, bool]]) -> None:
    stage = Accumulation(batch_size=1024, buffer_memory=10 * 1024)
    pool = stage.pool
    held: list[PoolMemory] = []
    for count, gives_back, brings_its_own in steps:
        if gives_back and held:
            pool.deallocate(held.pop(count % len(held)))
        else:
            try:
                block_count = min(count, 10)
                held.append(pool.allocate(0, 1, charge_blocks=block_count) if brings_its_own else pool.allocate(block_count, 1))
            except KafkaTimeoutError:
                assert pool.available_memory < count * 1024
        blocks = [id(block) for group in held for block in group.blocks]
        assert len(set(blocks)) == len(blocks)
        assert pool.available_memory + sum(map(len, held)) * 1024 == pool.total_memory


# STICKY PARTITIONS


@few
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=200),
    pieces=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_a_sticky_stay_lasts_at_least_a_batch_and_at_most_two(sizes: list[int], pieces: int, seed: int) -> None:
    filled = {0: 0, 1: 900, 2: 5000}
    sticky = StickyPartitioner(1024, filled.__getitem__, Random(seed))
    partitions = np.concatenate([sticky.assign(piece, [0, 1, 2]) for piece in np.array_split(np.array(sizes, np.int64), pieces)])
    assert len(partitions) == len(sizes)
    starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(sizes)]
    for start, stop in pairwise(starts[:-1]):  # the last stay may not be over
        stay = sizes[start:stop]
        assert sum(stay) >= 1024
