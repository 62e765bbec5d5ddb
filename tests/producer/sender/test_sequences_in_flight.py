"""Sequence numbers of batches in flight: no row is lost, doubled or reordered when batches fail.

The test plays the brokers; simulated ones judge sequences in test_sender_recovery.py.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.accumulator.delivery import OffsetRange
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceRequest
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH
from tests.producer.harness import PRODUCER_ID, TOPIC, Stage, partition_answer, tp
from tests.producer.sender.stages import idempotent, identities, introduced_stage, values
from tests.producer.simulated_brokers import Fate, SimulatedBrokers

# SEQUENCES: SEVERAL IN FLIGHT


def test_sequences_count_records_per_partition() -> None:
    stage = introduced_stage(leaders={TOPIC: (0, 0)})
    stage.send(b"a", b"b", partition=0)
    stage.send(b"c", partition=1)
    stage.send(b"d", b"e", b"f", partition=0)
    stage.send(b"g", partition=0)
    assert [(sent_batch.topic_partition.partition, sent_batch.batch.base_sequence) for sent_batch in stage.sent_batches] == [
        (0, 1),
        (1, 1),
        (0, 3),
        (0, 6),
    ]
    assert {(sent_batch.batch.producer_id, sent_batch.batch.producer_epoch) for sent_batch in stage.sent_batches} == {
        (PRODUCER_ID, 0)
    }


def test_without_idempotence_batches_carry_no_identity() -> None:
    stage = Stage()
    stage.send(b"a")
    assert identities(stage) == [(-1, -1, -1)]


def test_several_batches_of_a_partition_are_in_flight_at_a_time() -> None:
    stage = introduced_stage()
    deliveries = [stage.send(b"%d" % row) for row in range(3)]
    assert len(stage.in_flight) == 3
    entry = stage.idempotent_sequencer.sequences[tp()]
    assert (entry.next_sequence, entry.last_acked_sequence) == (4, 0)
    for offset in range(3):
        stage.succeed(offset)
        assert entry.last_acked_sequence == 1 + offset
        assert deliveries[offset].acknowledged == 1
    assert entry.in_flight == []
    assert stage.is_whole


def test_after_a_failure_batches_in_flight_are_retried_one_at_a_time_and_in_order() -> None:
    """Only the lowest sequence may go: the broker would reject the others. A new batch waits behind them."""
    stage = introduced_stage()
    deliveries = [stage.send(b"%d" % row) for row in range(3)]
    requests = stage.in_flight
    stage.reject(Errors.LEADER_NOT_AVAILABLE, request=requests[0])
    for request in requests[1:]:
        stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    deliveries.append(stage.append(b"3"))
    stage.back_off()
    stage.run(3)
    assert values(stage)[3:] == [[b"0"]]
    stage.succeed(0)
    for row in (1, 2):
        stage.run()
        assert stage.sent_batches[-1].values == [b"%d" % row]
        assert stage.sent_batches[-1].batch.base_sequence == 1 + row
        if row == 1:
            stage.succeed(row)
    stage.run()  # with the last retry in flight, new batches may go again
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 4)
    stage.succeed(2)
    stage.succeed(3)
    assert [delivery.acknowledged for delivery in deliveries] == [1, 1, 1, 1]
    assert stage.is_whole


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_whatever_the_order_of_the_answers_batches_are_retried_in_sequence_order(order: tuple[int, ...]) -> None:
    stage = introduced_stage()
    for row in range(3):
        stage.send(b"%d" % row)
    requests = stage.in_flight
    for row in order:
        stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[row])
    for row in range(3):
        stage.back_off()
        stage.run(2)
        assert stage.sent_batches[-1].identity == (PRODUCER_ID, 0, 1 + row)
        stage.succeed(row)
    assert len(stage.sent_batches) == 6


def test_a_later_batch_may_succeed_while_an_earlier_one_is_retried() -> None:
    """The first landed although its answer was an error; its retry is then a duplicate."""
    stage = introduced_stage()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.succeed(1, request=requests[1])
    assert (first.done(), second.acknowledged) == (False, 1)
    assert stage.idempotent_sequencer.sequences[tp()].last_acked_sequence == 2
    stage.back_off()
    stage.run()
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 0, 1)
    stage.reject(Errors.DUPLICATE_SEQUENCE_NUMBER)
    assert first.result(0).offsets[tp()].first == -1
    assert stage.idempotent_sequencer.sequences[tp()].last_acked_sequence == 2  # does not go back
    assert stage.is_whole


def test_a_batch_behind_the_last_acknowledged_one_still_is_the_first_in_flight() -> None:
    """The batch was sorted behind those drained after it: each of the two then waited for the other until both expired."""
    stage = introduced_stage()
    stage.send(b"1")
    stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.succeed(1, request=requests[1])
    stage.back_off()
    stage.run()
    stage.send(b"3")
    assert values(stage) == [[b"1"], [b"2"], [b"1"], [b"3"]]
    stage.disconnect()
    for expected in (b"1", b"3"):
        stage.back_off()
        stage.run(2)
        assert stage.sent_batches[-1].values == [expected]
        stage.succeed()
    assert stage.is_whole


def test_a_duplicate_is_a_success_whose_offset_is_unknown() -> None:
    stage = idempotent()
    delivery = stage.send(b"a", b"b")
    stage.disconnect()
    stage.back_off()
    stage.run()
    duplicate = PartitionProduceResponse(index=0, error_code=Errors.DUPLICATE_SEQUENCE_NUMBER.number, base_offset=99)
    stage.respond(duplicate)  # whatever offset comes with the error is not to be trusted
    assert delivery.result(0).acknowledged == 2
    assert delivery.offsets[tp()] == OffsetRange(-1, -1, 2, delivery.offsets[tp()].bytes)
    stage.send(b"c")
    assert stage.sent_batches[-1].batch.base_sequence == 2


def test_answers_that_come_out_of_order_acknowledge_the_right_rows() -> None:
    """A connection lost and made anew can have the second request answered before the first one's retry."""
    stage = introduced_stage()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    assert stage.idempotent_sequencer.identity.producer_epoch == 0  # a gap is expected while the first one is out: no new epoch
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[0])
    stage.back_off()
    stage.run()
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 0, 1)
    stage.succeed(10)
    stage.run()
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 0, 2)
    stage.succeed(11)
    assert (first.offsets[tp()].first, second.offsets[tp()].first) == (10, 11)


def test_the_first_batch_of_a_partition_is_not_overtaken_by_the_second() -> None:
    """A broker that does not know the producer takes any first sequence: after the first batch was rejected it took the second,
    and the first could never follow.
    """
    stage = idempotent(batch_size=1)
    brokers = SimulatedBrokers(stage)
    first, second = stage.append(b"1"), stage.append(b"2")
    stage.run(2)
    brokers.answer(0, Fate.REJECT_BUSY)
    for _ in range(20):
        brokers.answer_all()
        stage.run()
        stage.back_off()
    assert brokers.logs[tp()].values == [b"1", b"2"]
    assert (first.acknowledged, second.acknowledged) == (1, 1)


def test_until_the_brokers_know_the_producer_a_partition_has_one_batch_in_flight() -> None:
    stage = idempotent(leaders={TOPIC: (0, 0)}, batch_size=1)
    stage.append(b"1", b"2", partition=0)
    stage.append(b"3", partition=1)
    stage.run(3)
    assert values(stage) == [[b"1"], [b"3"]]
    stage.respond(partition_answer(0), partition_answer(1))
    stage.append(b"4", partition=0)
    stage.run(3)
    assert values(stage) == [[b"1"], [b"3"], [b"2"], [b"4"]]


# EPOCH BUMPS


def test_after_a_fatal_failure_of_the_first_batch_those_behind_it_are_numbered_anew() -> None:
    stage = introduced_stage()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.INVALID_RECORD, request=requests[0])
    assert first.failed == 1
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    stage.back_off()
    stage.run()
    assert stage.sent_batches[-1].values == [b"2"]
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 0)
    stage.succeed(0)
    assert second.acknowledged == 1
    stage.send(b"3")
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 1)


def test_an_out_of_order_error_of_the_next_batch_starts_a_new_epoch() -> None:
    """Nothing before it is missing as far as we know: the broker has lost something, and a new epoch begins at 0."""
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(0)
    delivery = stage.send(b"2")
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(0)
    assert delivery.acknowledged == 1


def test_a_new_epoch_renumbers_all_in_flight_of_its_partition_in_order() -> None:
    stage = idempotent()
    stage.send(b"0")
    stage.succeed()
    for row in (1, 2, 3):
        stage.send(b"%d" % row, b"x")
    for request in stage.in_flight:
        stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    for row in (1, 2, 3):
        stage.back_off()
        stage.run(2)
        assert (stage.sent_batches[-1].values[0], stage.sent_batches[-1].identity) == (
            b"%d" % row,
            (PRODUCER_ID, 1, 2 * (row - 1)),
        )
        stage.succeed()
    stage.send(b"4")
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 6)
    assert len(stage.sent_batches) == 8


def test_other_partitions_keep_the_old_epoch_until_nothing_of_theirs_is_in_flight() -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    stage.send(b"a", partition=0)
    stage.succeed(partition=0)
    stage.send(b"healthy", partition=1)
    (healthy,) = stage.in_flight
    stage.send(b"b", partition=0)
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=stage.in_flight[1])
    stage.back_off()
    stage.run()
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 0)
    stage.send(b"waits", partition=1)
    assert stage.sent_batches[-1].values == [b"b"]  # an epoch's first batch must not overtake the old epoch's last
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=healthy, partition=1)
    stage.back_off()
    stage.run()
    assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"healthy"], (PRODUCER_ID, 0, 0))
    stage.succeed(partition=1, request=stage.in_flight[-1])
    stage.run()
    assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"waits"], (PRODUCER_ID, 1, 0))


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1")
    stage.succeed()
    delivery = stage.send(b"2")
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert stage.idempotent_sequencer.state is SequencerState.INITIALIZING
    assert len(stage.sent_batches) == 2  # nothing is sent without an id
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run(2)
    assert stage.sent_batches[-1].identity == (9, 0, 0)
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_batch_of_the_old_producer_id_is_retried_under_it() -> None:
    """Renumbering it would write it twice if its first attempt had landed."""
    stage = idempotent(leaders={TOPIC: (0, 1)}, has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"a", partition=0)
    stage.succeed(partition=0)
    stage.send(b"b", b"c", partition=[0, 1])
    of_b, of_c = stage.in_flight
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=of_b, partition=0)
    stage.back_off()
    stage.run()
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0), request=stage.in_flight[-1])
    stage.run()
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=of_c, partition=1)
    stage.back_off()
    stage.run(2)
    assert {(sent_batch.values[0], sent_batch.identity) for sent_batch in stage.sent_batches[3:]} == {
        (b"b", (9, 0, 0)),
        (b"c", (8, MAX_EPOCH, 0)),
    }


def test_queued_rows_are_sent_after_a_new_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    first = stage.send(b"1")
    second = stage.append(b"2")
    stage.reject(Errors.INVALID_RECORD)
    assert first.failed == 1
    requests = [request for request in stage.in_flight if isinstance(request.message, ProduceRequest)]
    for request in requests:
        stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    stage.back_off()
    stage.run()
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run(2)
    assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"2"], (9, 0, 0))
    stage.succeed()
    assert second.acknowledged == 1
    assert stage.is_whole


def test_out_of_order_again_in_the_new_epoch_is_retried_without_another_bump() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert identities(stage) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0), (PRODUCER_ID, 1, 0)]


def test_with_retries_exhausted_out_of_order_is_raised() -> None:
    stage = Stage(enable_idempotence=True, retries=1)
    delivery = stage.send(b"1")
    for _ in range(2):
        stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
        stage.back_off()
        stage.run()
    assert "KAFKA_OUT_OF_ORDER_SEQUENCE_NUMBER" in str(delivery.error)
    assert stage.is_whole


# UNKNOWN_PRODUCER_ID


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    """The producer's last records at the broker were deleted by retention."""
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    delivery = stage.send(b"2")
    stage.reject(Errors.UNKNOWN_PRODUCER_ID, log_start_offset=1010)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(1011)
    assert delivery.offsets[tp()].first == 1011


def test_a_broker_that_cannot_say_why_it_forgot_the_producer_is_asked_again() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    stage.send(b"2")
    stage.reject(Errors.UNKNOWN_PRODUCER_ID, log_start_offset=-1)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 1)


def test_batches_behind_a_forgotten_one_follow_it_into_the_new_epoch_in_order() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    stage.send(b"2")
    stage.send(b"3")
    second, third = stage.in_flight
    stage.reject(Errors.UNKNOWN_PRODUCER_ID, request=second, log_start_offset=1010)
    stage.run()
    stage.reject(Errors.UNKNOWN_PRODUCER_ID, request=third, log_start_offset=1010)
    for row, offset in ((2, 1011), (3, 1012)):
        stage.back_off()
        stage.run(2)
        assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"%d" % row], (PRODUCER_ID, 1, row - 2))
        stage.succeed(offset)
    assert stage.idempotent_sequencer.identity.producer_epoch == 1


# UNRESOLVED SEQUENCES


def test_rows_that_expire_without_having_been_sent_leave_no_gap() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.client.delay_ready(0, 1500)
    delivery = stage.append(b"1")
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    assert tp() not in stage.idempotent_sequencer.unresolved_partitions
    stage.clock.advance(1000)
    stage.send(b"2")
    assert identities(stage) == [(PRODUCER_ID, 0, 0)]


def test_an_expired_batch_leaves_no_gap_if_a_later_one_succeeds() -> None:
    stage = introduced_stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1")
    stage.clock.advance(600)
    second = stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.clock.advance(400)
    stage.run()
    assert first.failed == 1
    assert tp() in stage.idempotent_sequencer.unresolved_partitions
    stage.append(b"3")
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]  # nobody knows yet which number comes next
    stage.succeed(1, request=requests[1])
    assert second.acknowledged == 1
    stage.run()
    assert tp() not in stage.idempotent_sequencer.unresolved_partitions
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 3)


def test_an_expired_batch_and_a_rejected_one_behind_it_start_a_new_epoch() -> None:
    stage = introduced_stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.clock.advance(600)
    second = stage.send(b"2")
    requests = stage.in_flight
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[0])
    stage.clock.advance(400)
    stage.run()
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    stage.clock.advance(150)
    stage.run()
    assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"2"], (PRODUCER_ID, 1, 0))
    stage.succeed()
    assert second.acknowledged == 1
    assert tp() not in stage.idempotent_sequencer.unresolved_partitions


def test_when_all_batches_that_were_sent_expire_the_next_one_starts_a_new_epoch() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.clock.advance(1000)
    stage.run(2)
    assert stage.idempotent_sequencer.identity.producer_epoch == 1
    stage.send(b"2")
    assert (stage.sent_batches[-1].values, stage.sent_batches[-1].identity) == ([b"2"], (PRODUCER_ID, 1, 0))


def test_a_batch_that_expires_in_flight_leaves_a_gap_of_unknown_fate_too() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.clock.advance(1000)
    stage.run(2)
    stage.send(b"2")
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(0)  # of the first one, far too late: it says nothing about the new epoch
    assert stage.idempotent_sequencer.sequences[tp()].last_acked_sequence == -1
    stage.succeed(1)
    assert stage.idempotent_sequencer.sequences[tp()].last_acked_sequence == 0
    assert stage.is_whole
