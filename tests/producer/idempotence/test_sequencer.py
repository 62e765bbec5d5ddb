"""IdempotentSequencer: whose batches these are, when the epoch is bumped, and which batch must wait for which.

The Sender's side of each story is in test_sequences_in_flight.py; here the decisions are made one by one.
"""

from __future__ import annotations

import itertools

import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.idempotence.idempotent_sequencer import IdempotentSequencer
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.transactions.transaction_states import NEXT_TXN_STATES
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.mock_client import MockClient
from tests.producer.harness import config, tp

LOST = KafkaError("lost")


def without_id() -> IdempotentSequencer:
    clock = ManualClock()
    return IdempotentSequencer(config(enable_idempotence=True), MockClient(clock), clock)


def sequencer(epoch: int = 0) -> IdempotentSequencer:
    """One that has its id, 7."""
    idempotent_sequencer = without_id()
    idempotent_sequencer.transition_to(SequencerState.INITIALIZING)
    idempotent_sequencer.handle_identity(ProducerIdentity(7, epoch))
    return idempotent_sequencer


def batch_of(where: TopicPartition | None = None, records: int = 1) -> ProducerBatch:
    batch = ProducerBatch(where or tp(), 0, 1000, 0, 1, 1024)
    batch.record_count = records
    return batch


def drained(txn: IdempotentSequencer, where: TopicPartition | None = None, records: int = 1) -> ProducerBatch:
    batch = batch_of(where, records)
    assert not txn.must_stop_draining(batch)
    txn.assign_sequence(batch)
    return batch


def settled(txn: IdempotentSequencer, where: TopicPartition | None = None, records: int = 1) -> ProducerBatch:
    """Drained and acknowledged: the brokers know this producer."""
    batch = drained(txn, where, records)
    txn.handle_completed_batch(batch)
    return batch


def identity(batch: ProducerBatch) -> tuple[int, int, int]:
    return *batch.identity, batch.base_sequence


# STATES

LEGAL = [
    (SequencerState.UNINITIALIZED, SequencerState.INITIALIZING),
    (SequencerState.INITIALIZING, SequencerState.READY),
    (SequencerState.INITIALIZING, SequencerState.UNINITIALIZED),
    (SequencerState.READY, SequencerState.UNINITIALIZED),
]
LEGAL_IN_TRANSACTIONS = [*LEGAL, (SequencerState.READY, SequencerState.IN_TRANSACTION)]
LEGAL_IN_TRANSACTIONS += [
    (SequencerState.IN_TRANSACTION, target)
    for target in (SequencerState.PREPARED, SequencerState.COMMITTING, SequencerState.ABORTING, SequencerState.ABORTABLE_ERROR)
]
LEGAL_IN_TRANSACTIONS += [
    (SequencerState.PREPARED, target)
    for target in (SequencerState.COMMITTING, SequencerState.ABORTING, SequencerState.UNINITIALIZED)
]
LEGAL_IN_TRANSACTIONS += [
    (SequencerState.COMMITTING, target)
    for target in (SequencerState.READY, SequencerState.BUMPING_EPOCH, SequencerState.ABORTABLE_ERROR)
]
LEGAL_IN_TRANSACTIONS += [(SequencerState.ABORTING, target) for target in (SequencerState.READY, SequencerState.BUMPING_EPOCH)]
LEGAL_IN_TRANSACTIONS += [
    (SequencerState.BUMPING_EPOCH, target) for target in (SequencerState.READY, SequencerState.UNINITIALIZED)
]
LEGAL_IN_TRANSACTIONS += [(SequencerState.ABORTABLE_ERROR, SequencerState.ABORTING)]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(IdempotentSequencer.next_states, SequencerState)))
def test_states_change_as_the_table_says_and_an_illegal_move_changes_nothing(
    source: SequencerState, target: SequencerState
) -> None:
    txn = without_id()
    txn.state = source
    if (source, target) in LEGAL or target is SequencerState.FATAL_ERROR:
        txn.transition_to(target)
        assert txn.state is target
    else:
        with pytest.raises(RuntimeError, match=f"a producer that is {source.value} cannot become {target.value}"):
            txn.transition_to(target)
        assert txn.state is source


@pytest.mark.parametrize(("source", "target"), list(itertools.product(SequencerState, SequencerState)))
def test_an_illegal_move_ends_a_transactional_producer(source: SequencerState, target: SequencerState) -> None:
    """What its transaction contains is not known any more (KAFKA-14831)."""
    clock = ManualClock()
    manager = TransactionManager(config(enable_idempotence=True, transactional_id="orders-1"), MockClient(clock), clock)
    manager.state = source
    if (source, target) in LEGAL_IN_TRANSACTIONS or target is SequencerState.FATAL_ERROR:
        manager.transition_to(target)
        assert manager.state is target
    else:
        with pytest.raises(RuntimeError, match=f"a producer that is {source.value} cannot become {target.value}"):
            manager.transition_to(target)
        assert manager.state is SequencerState.FATAL_ERROR
        assert f"cannot become {target.value}" in str(manager.fatal_error)


def test_every_state_is_in_the_table() -> None:
    assert set(NEXT_TXN_STATES) == set(SequencerState)


def test_the_sequencer_has_a_producer_id_when_one_was_received() -> None:
    txn = without_id()
    txn.transition_to(SequencerState.INITIALIZING)
    assert not txn.has_producer_id
    txn.handle_identity(ProducerIdentity(7, 2))
    assert txn.has_producer_id
    assert txn.identity == (7, 2)


def test_producer_id_0_is_an_id() -> None:
    txn = without_id()
    txn.transition_to(SequencerState.INITIALIZING)
    txn.handle_identity(ProducerIdentity(0, 0))
    assert txn.has_producer_id


def test_the_first_fatal_error_is_the_one_that_counts() -> None:
    txn = sequencer()
    first = KafkaError("first")
    txn.become_fatal(first)
    txn.become_fatal(KafkaError("second"))
    assert txn.fatal_error is first
    assert txn.state is SequencerState.FATAL_ERROR


# DRAIN


def test_nothing_is_drained_without_an_id() -> None:
    assert without_id().must_stop_draining(batch_of())


def test_a_batch_keeps_the_number_of_its_first_drain() -> None:
    txn = sequencer()
    batch = drained(txn, records=3)
    txn.assign_sequence(batch)
    assert identity(batch) == (7, 0, 0)
    assert txn.sequences[tp()].next_sequence == 3


def test_a_retried_batch_waits_unless_it_is_the_lowest_in_flight() -> None:
    txn = sequencer()
    settled(txn)
    first, second = drained(txn), drained(txn)
    assert not txn.must_stop_draining(first)
    assert txn.must_stop_draining(second)
    txn.handle_completed_batch(first)
    assert not txn.must_stop_draining(second)


def test_a_retried_batch_of_another_partition_does_not_wait() -> None:
    txn = sequencer()
    drained(txn, tp(0))
    assert not txn.must_stop_draining(drained(txn, tp(1)))


def test_new_batches_wait_while_older_ones_are_in_flight_under_another_epoch() -> None:
    txn = sequencer()
    settled(txn)
    old = drained(txn)
    other = drained(txn, tp(1))
    txn.request_epoch_bump(tp(1))
    txn.prepare_drain()
    assert txn.must_stop_draining(batch_of())
    assert not txn.must_stop_draining(old)  # it is retried under its own epoch
    txn.handle_completed_batch(old)
    assert identity(drained(txn)) == (7, 1, 0)
    assert identity(other) == (7, 1, 0)


# COMPLETION


def test_acknowledgements_are_remembered() -> None:
    txn = sequencer()
    batch = drained(txn, records=5)
    txn.handle_completed_batch(batch)
    entry = txn.sequences[tp()]
    assert (entry.last_acked_sequence, entry.in_flight) == (4, [])


def test_an_acknowledgement_of_an_epoch_gone_by_says_nothing_of_this_one() -> None:
    txn = sequencer()
    batch = drained(txn)
    txn.handle_failed_batch(batch, LOST)
    next_round(txn)
    txn.handle_completed_batch(batch)
    assert txn.sequences[tp()].last_acked_sequence == -1


# FAILURE


def next_round(txn: IdempotentSequencer) -> None:
    """As the Sender begins one."""
    txn.prepare_drain()


def test_a_batch_that_was_given_up_starts_an_epoch_for_those_not_in_the_log() -> None:
    txn = sequencer()
    settled(txn)
    failed, behind = drained(txn), drained(txn, records=2)
    txn.handle_failed_batch(failed, LOST)
    assert txn.identity.producer_epoch == 0  # at the Sender's next round, not in the middle of an answer
    next_round(txn)
    assert txn.identity == (7, 1)
    assert identity(behind) == (7, 1, 0)
    assert behind.sequence_has_been_reset
    assert txn.sequences[tp()].next_sequence == 2


@pytest.mark.parametrize("fact", ["is_in_flight", "is_in_doubt"])
def test_a_batch_that_may_have_been_written_keeps_its_number(fact: str) -> None:
    txn = sequencer()
    settled(txn)
    failed, behind, last = drained(txn), drained(txn), drained(txn)
    setattr(behind, fact, True)
    txn.handle_failed_batch(failed, LOST)
    next_round(txn)
    assert txn.identity == (7, 0)
    assert (behind.base_sequence, last.base_sequence) == (2, 3)
    assert not txn.must_stop_draining(behind)  # it goes again under its own number
    assert txn.must_stop_draining(last)
    setattr(behind, fact, False)
    next_round(txn)
    assert (identity(behind), identity(last)) == ((7, 1, 0), (7, 1, 1))


def test_a_batch_that_never_had_a_number_changes_nothing() -> None:
    txn = sequencer()
    txn.handle_failed_batch(batch_of(), LOST)
    next_round(txn)
    assert txn.identity == (7, 0)


def test_in_the_fatal_state_no_epoch_is_bumped() -> None:
    txn = sequencer()
    batch = drained(txn)
    txn.become_fatal(KafkaError("fatal"))
    txn.handle_failed_batch(batch, LOST)
    next_round(txn)
    assert txn.identity == (7, 0)
    assert txn.sequences[tp()].in_flight == []


def test_several_failures_before_the_next_round_are_one_bump() -> None:
    txn = sequencer()
    for partition in (0, 1):
        txn.handle_failed_batch(drained(txn, tp(partition)), LOST)
    next_round(txn)
    next_round(txn)
    assert txn.identity == (7, 1)


def test_a_new_epoch_waits_until_no_request_with_a_batch_of_its_partition_is_out() -> None:
    txn = sequencer()
    settled(txn)
    refused, behind = drained(txn), drained(txn)
    refused.is_in_doubt = behind.is_in_flight = True
    txn.request_epoch_bump(tp())  # the broker said that it has none of them
    next_round(txn)
    assert (identity(refused), identity(behind)) == ((7, 0, 1), (7, 0, 2))
    assert txn.must_stop_draining(refused)
    assert txn.must_stop_draining(batch_of())
    behind.is_in_flight, behind.is_in_doubt = False, True
    next_round(txn)
    assert (identity(refused), identity(behind)) == ((7, 1, 0), (7, 1, 1))
    assert not behind.is_in_doubt


def test_a_partition_that_waited_joins_an_epoch_that_began_meanwhile() -> None:
    txn = sequencer()
    waits, other = drained(txn, tp(0)), drained(txn, tp(1))
    waits.is_in_flight = True
    for partition in (0, 1):
        txn.request_epoch_bump(tp(partition))
    next_round(txn)
    assert (identity(waits), identity(other)) == ((7, 0, 0), (7, 1, 0))
    waits.is_in_flight = False
    next_round(txn)
    assert txn.identity == (7, 1)
    assert identity(waits) == (7, 1, 0)


def test_the_epoch_is_not_bumped_before_there_is_one() -> None:
    txn = sequencer(MAX_EPOCH)
    drained(txn)
    txn.request_epoch_bump(tp())
    txn.prepare_drain()
    assert txn.state is SequencerState.UNINITIALIZED
    txn.request_epoch_bump(tp(1))
    txn.prepare_drain()
    txn.transition_to(SequencerState.INITIALIZING)
    txn.prepare_drain()
    assert txn.has_producer_id is False


def test_after_the_last_epoch_a_new_id_renumbers_what_asked_for_it() -> None:
    txn = sequencer(MAX_EPOCH)
    settled(txn)
    batch = drained(txn)
    txn.request_epoch_bump(tp())
    txn.prepare_drain()
    assert not txn.has_producer_id
    assert txn.must_stop_draining(batch)
    txn.transition_to(SequencerState.INITIALIZING)
    txn.handle_identity(ProducerIdentity(8, 0))
    assert identity(batch) == (8, 0, 0)
    assert not txn.must_stop_draining(batch)


# UNRESOLVED SEQUENCES


def in_flight_behind_a_lost_batch(txn: IdempotentSequencer) -> ProducerBatch:
    """The second of two batches, a round after the first was given up."""
    first, second = drained(txn), drained(txn)
    second.is_in_flight = True
    txn.handle_failed_batch(first, LOST)
    next_round(txn)
    return second


def test_after_a_batch_that_was_given_up_no_new_batch_is_drained() -> None:
    txn = sequencer()
    settled(txn)
    in_flight_behind_a_lost_batch(txn)
    assert txn.must_stop_draining(batch_of())
    assert not txn.must_stop_draining(batch_of(tp(1)))


def test_the_first_batch_in_flight_is_known() -> None:
    txn = sequencer()
    settled(txn)
    first, second, third = drained(txn, records=3), drained(txn), drained(txn)
    assert txn.sequence_facts(first).is_first
    txn.handle_failed_batch(first, LOST)
    assert not txn.sequence_facts(first).is_first
    assert txn.sequence_facts(second).is_first
    assert not txn.sequence_facts(third).is_first


def test_a_gap_is_resolved_when_a_later_batch_was_accepted() -> None:
    txn = sequencer()
    settled(txn)
    second = in_flight_behind_a_lost_batch(txn)
    assert tp() in txn.unresolved_partitions  # the second one is still out
    txn.handle_completed_batch(second)
    next_round(txn)
    assert tp() not in txn.unresolved_partitions
    assert txn.identity == (7, 0)
    assert identity(drained(txn)) == (7, 0, 3)


def test_a_gap_that_nothing_resolves_starts_a_new_epoch() -> None:
    txn = sequencer()
    settled(txn)
    txn.handle_failed_batch(drained(txn), LOST)
    next_round(txn)
    assert tp() not in txn.unresolved_partitions
    assert identity(drained(txn)) == (7, 1, 0)


def test_when_the_last_batch_in_flight_fails_too_a_new_epoch_begins() -> None:
    txn = sequencer()
    settled(txn)
    first, second = drained(txn), drained(txn)
    second.is_in_doubt = True
    txn.handle_failed_batch(first, LOST)
    next_round(txn)
    txn.handle_failed_batch(second, LOST)
    next_round(txn)
    assert identity(drained(txn)) == (7, 1, 0)


def test_renumbering_a_partition_resolves_its_gap() -> None:
    txn = sequencer()
    settled(txn)
    first, second = drained(txn), drained(txn)
    txn.handle_failed_batch(first, LOST)
    txn.request_epoch_bump(tp())
    txn.prepare_drain()
    assert tp() not in txn.unresolved_partitions
    assert identity(second) == (7, 1, 0)


def test_a_healthy_partition_goes_on_while_another_waits_for_its_new_epoch() -> None:
    txn = sequencer()
    settled(txn, tp(0))
    settled(txn, tp(1))
    healthy = drained(txn, tp(1))
    broken = drained(txn, tp(0))
    txn.request_epoch_bump(tp(0))
    txn.prepare_drain()
    assert identity(broken) == (7, 1, 0)
    assert identity(healthy) == (7, 0, 1)
    assert not txn.must_stop_draining(healthy)
    txn.handle_completed_batch(healthy)
    assert txn.sequences[tp(1)].last_acked_sequence == 1
