"""Sequence numbers per partition: given out once, kept in order, wrapped at 2^31."""

from __future__ import annotations

from collections import defaultdict

import pytest

from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, ProducerBatch
from spark_kafka_sink.producer.idempotence.numbering import PartitionSequences
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from tests.producer.harness import tp


def entry_at(next_sequence: int = 0) -> PartitionSequences:
    entry = PartitionSequences()
    entry.identity = ProducerIdentity(1, 0)
    entry.next_sequence = next_sequence
    return entry


def batch_of(record_count: int = 1) -> ProducerBatch:
    batch = ProducerBatch(tp(), 0, 1000, 0, 1, 1024)
    batch.record_count = record_count
    return batch


def batch_in_flight(entry: PartitionSequences, record_count: int = 1) -> ProducerBatch:
    """A batch that was given its number and is in flight."""
    batch = batch_of(record_count)
    batch.set_producer_state(entry.identity, entry.take_sequence(record_count))
    entry.add_in_flight(batch)
    return batch


def test_a_partition_begins_at_0_with_nothing_acknowledged() -> None:
    entry = PartitionSequences()
    assert (entry.next_sequence, entry.last_acked_sequence, entry.in_flight, entry.identity) == (0, -1, [], NO_PRODUCER)


def test_partitions_count_each_for_itself() -> None:
    numbers = defaultdict(PartitionSequences)
    assert numbers[tp(0)].take_sequence(5) == 0
    assert numbers[tp(0)].take_sequence(1) == 5
    assert numbers[tp(1)].take_sequence(1) == 0


def test_numbers_wrap_to_0_after_the_largest() -> None:
    entry = entry_at(MAX_SEQUENCE)
    assert entry.take_sequence(1) == MAX_SEQUENCE
    assert entry.take_sequence(1) == 0
    entry = entry_at(MAX_SEQUENCE - 4)
    assert entry.take_sequence(10) == MAX_SEQUENCE - 4
    assert entry.next_sequence == 5


def test_what_follows_the_last_acknowledged_number_is_next() -> None:
    entry = entry_at()
    assert entry.is_next(0)
    assert not entry.is_next(1)
    entry.acknowledge(4)
    assert entry.is_next(5)
    assert not entry.is_next(4)
    assert not entry.is_next(6)


def test_after_the_largest_number_0_is_next() -> None:
    entry = entry_at()
    entry.acknowledge(MAX_SEQUENCE)
    assert entry.is_next(0)
    assert not entry.is_next(1)


def test_the_last_acknowledged_number_never_goes_back() -> None:
    """A retried batch may be acknowledged after those behind it."""
    entry = entry_at()
    entry.acknowledge(9)
    entry.acknowledge(4)
    assert entry.last_acked_sequence == 9


def test_the_last_acknowledged_number_goes_on_beyond_the_wrap() -> None:
    entry = entry_at()
    entry.acknowledge(MAX_SEQUENCE - 1)
    entry.acknowledge(3)
    assert entry.last_acked_sequence == 3
    entry.acknowledge(MAX_SEQUENCE)
    assert entry.last_acked_sequence == 3


# IN FLIGHT


@pytest.mark.parametrize("start", [0, 1000, MAX_SEQUENCE - 1, MAX_SEQUENCE])
def test_in_flight_batches_stand_in_the_order_in_which_they_were_numbered(start: int) -> None:
    entry = entry_at(start)
    batches = [batch_in_flight(entry) for _ in range(5)]
    assert entry.in_flight == batches


@pytest.mark.parametrize("start", [0, MAX_SEQUENCE - 2])
@pytest.mark.parametrize("acknowledged", [[], [0], [1], [1, 2], [3]])
def test_a_batch_that_comes_back_takes_its_old_place(start: int, acknowledged: list[int]) -> None:
    """As the smaller batches of a split do. Numbers behind the last acknowledged one still are the first."""
    entry = entry_at(start)
    batches = [batch_in_flight(entry) for _ in range(5)]
    for index in acknowledged:
        entry.acknowledge(batches[index].last_sequence)
        entry.remove_in_flight(batches[index])
    left = list(entry.in_flight)
    for batch in left[::-1]:
        entry.remove_in_flight(batch)
        entry.add_in_flight(batch)
    assert entry.in_flight == left


def test_removing_what_is_not_in_flight_changes_nothing() -> None:
    entry = entry_at()
    batch = batch_in_flight(entry)
    entry.remove_in_flight(batch_of())
    entry.remove_in_flight(batch)
    entry.remove_in_flight(batch)
    assert entry.in_flight == []


def test_a_new_epoch_numbers_everything_in_flight_from_0_in_its_order() -> None:
    entry = entry_at(MAX_SEQUENCE - 2)
    batches = [batch_in_flight(entry, count) for count in (2, 3, 4)]
    entry.acknowledge(MAX_SEQUENCE - 3)
    entry.start_at_beginning(ProducerIdentity(1, 1))
    assert [(batch.identity.producer_epoch, batch.base_sequence) for batch in batches] == [(1, 0), (1, 2), (1, 5)]
    assert all(batch.sequence_has_been_reset for batch in batches)
    assert (entry.next_sequence, entry.last_acked_sequence) == (9, -1)
    assert entry.is_next(0)


@pytest.mark.parametrize("acked", [[0], [MAX_SEQUENCE], [1 << 30, (1 << 30) + 1], [4, 5], [MAX_SEQUENCE, 0]])
def test_the_last_acknowledged_number_is_the_first_one_or_any_that_follows_it(acked: list[int]) -> None:
    entry = entry_at()
    for number in acked:
        entry.acknowledge(number)
        assert entry.last_acked_sequence == number


def test_smaller_batches_come_before_what_was_sent_after_the_split_one() -> None:
    entry = entry_at(MAX_SEQUENCE // 2)
    before, large, after = (batch_in_flight(entry, 2) for _ in range(3))
    entry.remove_in_flight(large)
    smaller = [batch_of(), batch_of()]
    for number, each in enumerate(smaller):
        each.set_producer_state(entry.identity, large.base_sequence + number)
        entry.add_in_flight(each)
    assert entry.in_flight == [before, *smaller, after]


def test_a_new_epoch_renumbers_what_is_in_flight_in_its_order() -> None:
    entry = entry_at(7)
    batches = [batch_in_flight(entry, 3), batch_in_flight(entry, 2)]
    entry.start_at_beginning(ProducerIdentity(5, 6))
    assert entry.identity == (5, 6)
    assert [(*each.identity, each.base_sequence) for each in batches] == [(5, 6, 0), (5, 6, 3)]
