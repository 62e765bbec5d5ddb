"""Sender: what a round waits for, in which order it sends, and how the thread ends.

The test plays the brokers through Stage. A round is ready → expire → drain → send → poll, so a request sent in one round is
in flight after it, and an answer given between two rounds is handled in the poll of the second, after its drain.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.sender.sender import MAX_SLEEP_MS, MIN_ROUND_MS
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH
from tests.producer.harness import (
    TOPIC,
    Stage,
    all_good,
    metadata_response,
    partition_answer,
    produce_response,
    tp,
)
from tests.producer.sender.stages import asks_for_id, idempotent, introduced_stage, values

# WAITING AND POLLING


def test_with_nothing_to_do_the_sender_sleeps() -> None:
    stage = Stage()
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == MAX_SLEEP_MS


def test_the_sender_sleeps_no_longer_than_a_batch_lingers() -> None:
    stage = Stage(linger_ms=500)
    stage.clock.advance(100)
    stage.append(b"a")
    stage.clock.advance(50)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 450


def test_the_sender_does_not_wait_right_after_it_has_sent() -> None:
    stage = Stage()
    stage.send(b"a")
    assert stage.client.poll_timeouts_ms[-1] == 0


def test_the_sender_sleeps_no_longer_than_a_batch_may_live() -> None:
    stage = Stage(leaders={TOPIC: (None,)}, request_timeout_ms=100, delivery_timeout_ms=700)
    stage.append(b"a")
    stage.clock.advance(200)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 500


def test_a_batch_in_flight_is_looked_at_when_it_expires() -> None:
    stage = Stage(request_timeout_ms=600, delivery_timeout_ms=700)
    stage.send(b"a")
    stage.clock.advance(200)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 500


def test_a_node_that_is_not_ready_gets_nothing_and_decides_how_long_to_sleep() -> None:
    stage = Stage()
    stage.client.delay_ready(0, 20)
    stage.send(b"a")
    assert stage.sent_batches == []
    assert stage.client.poll_timeouts_ms[-1] == 20
    stage.clock.advance(20)
    stage.run()
    assert values(stage) == [[b"a"]]


def test_a_throttled_node_gets_nothing_until_its_time_is_over() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.succeed()
    stage.client.throttle(0, 400)
    stage.send(b"b")
    assert values(stage) == [[b"a"]]
    assert stage.client.poll_timeouts_ms[-1] == 400
    stage.clock.advance(400)
    stage.run()
    assert values(stage) == [[b"a"], [b"b"]]


def test_no_more_requests_than_allowed_are_in_flight_to_a_node() -> None:
    stage = Stage(max_in_flight_requests_per_connection=3, batch_size=1)
    stage.append(*[b"%d" % row for row in range(5)])
    stage.run(10)
    assert len(stage.in_flight) == 3
    stage.succeed()
    stage.run()
    assert len(stage.in_flight) == 3
    assert len(stage.sent_batches) == 4


def test_large_batches_share_a_request_unless_the_user_limits_its_size() -> None:
    """A request for each one or two batches costs client and broker more."""
    rows = [b"x" * 190_000] * 6
    stage = Stage(leaders={TOPIC: (0,) * 6}, batch_size=200_000)
    stage.send(*rows, partition=range(6))
    assert [len(request.message.topic_data[0].partition_data) for request in stage.in_flight] == [6]
    stage = Stage(leaders={TOPIC: (0,) * 6}, batch_size=200_000, max_request_size=1_048_576)
    stage.send(*rows, partition=range(6))
    stage.run()
    assert [len(request.message.topic_data[0].partition_data) for request in stage.in_flight] == [5, 1]


def test_while_a_partition_waits_for_its_answer_the_sender_does_not_spin() -> None:
    """The partition's node is ready, and its batch is not: a poll of 0 ms would burn a processor until the answer comes."""
    stage = introduced_stage(batch_size=1)
    stage.send(b"1")
    stage.send(b"2")
    first, second = stage.in_flight
    stage.reject(Errors.NOT_ENOUGH_REPLICAS, request=second)
    stage.reject(Errors.NOT_ENOUGH_REPLICAS, request=first)
    stage.back_off()
    stage.run()  # sends the first again; the second has to wait for it
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] > 0


def test_a_topic_without_leader_has_metadata_asked_for_once_more() -> None:
    stage = Stage(leaders={TOPIC: (None,)})
    delivery = stage.append(b"a")
    stage.clock.advance(10_000)  # past any back-off
    stage.client.prepare_metadata_update(metadata_response({TOPIC: (1,)}))
    stage.run(2)
    assert [request.node_id for request in stage.in_flight] == [1]
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_topic_that_metadata_forgot_comes_back_when_rows_wait_for_it() -> None:
    stage = Stage(metadata_max_idle_ms=5000)
    stage.clock.advance(6000)
    stage.client.update_metadata(metadata_response(stage.leaders))
    assert stage.metadata.cluster().partition_count(TOPIC) is None
    stage.append(b"a")
    stage.run(3)
    assert stage.metadata.cluster().partition_count(TOPIC) is not None
    assert values(stage) == [[b"a"]]


# ORDER WITH ONE REQUEST IN FLIGHT


def test_with_one_request_in_flight_a_partition_waits_for_its_answer() -> None:
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.send(b"2")
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]


def test_with_one_request_in_flight_a_moving_leader_does_not_reorder() -> None:
    """The new leader's connection has no request in flight, yet the partition has."""
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.client.update_metadata(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.send(b"2")
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]
    assert stage.in_flight[0].node_id == 1


def test_with_one_request_in_flight_a_retried_batch_is_sent_before_those_behind_it() -> None:
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.send(b"2")
    stage.disconnect()
    stage.back_off()
    stage.run()
    assert values(stage) == [[b"1"], [b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"1"], [b"2"]]


def test_with_one_request_in_flight_an_expired_batch_mutes_until_its_answer() -> None:
    """The request is still out: a batch sent now could land before it."""
    stage = Stage(max_in_flight_requests_per_connection=1, request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1")
    stage.clock.advance(1000)
    second = stage.send(b"2")
    assert first.failed == 1
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]
    stage.succeed()
    assert second.acknowledged == 1
    assert stage.is_whole


# THE END


def run_thread(stage: Stage) -> None:
    """The thread's body, on this thread: it ends when nothing is left to do."""
    stage.sender.run()


def test_close_sends_what_is_queued_and_waits_for_its_answers() -> None:
    stage = Stage(linger_ms=60_000)
    delivery = stage.append(b"a")
    stage.client.prepare_response(produce_response(partition_answer(base_offset=3)))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.result(0).offsets[tp()].first == 3
    assert stage.client.is_closed
    assert stage.is_whole


def test_forced_close_fails_what_is_queued_and_in_flight() -> None:
    stage = Stage(leaders={TOPIC: (0, None)})
    in_flight, queued = stage.send(b"a", partition=0), stage.append(b"b", partition=1)
    stage.sender.force_close()
    run_thread(stage)
    for delivery in (in_flight, queued):
        with pytest.raises(ProducerClosedError, match="closed forcefully"):
            delivery.result(0)
    assert stage.is_whole


def test_rows_written_after_close_are_refused() -> None:
    stage = Stage()
    stage.sender.initiate_close()
    with pytest.raises(ProducerClosedError):
        stage.append(b"a")


def test_close_asks_for_a_new_producer_id_if_what_is_queued_needs_one() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1")
    stage.succeed()
    delivery = stage.send(b"2")
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.clock.auto_tick_ms = 50
    stage.client.prepare_response(InitProducerIdResponse(producer_id=9, producer_epoch=0), matcher=asks_for_id)
    stage.client.prepare_response(produce_response(partition_answer()))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.acknowledged == 1


def test_forced_close_while_a_new_producer_id_is_awaited_fails_the_rows() -> None:
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"1")
    stage.sender.force_close()
    run_thread(stage)
    assert isinstance(delivery.error, ProducerClosedError)
    assert stage.is_whole


def test_close_after_a_fatal_error_ends_at_once() -> None:
    stage = idempotent()
    delivery = stage.append(b"1")
    stage.idempotent_sequencer.become_fatal(KafkaError("fatal"))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.failed == 1


def test_rows_fail_even_if_the_connections_cannot_be_closed() -> None:
    stage = Stage(leaders={TOPIC: (None,)})
    delivery = stage.append(b"a")

    def breaks(*_: object) -> None:
        raise OSError("bad file descriptor")

    stage.client.close = breaks
    stage.sender.force_close()
    run_thread(stage)
    assert delivery.failed == 1


# SLEEP


def test_the_sender_sleeps_after_a_fatal_error_whatever_the_back_off_is() -> None:
    """With retry.backoff.ms=0 it made 16,600 rounds/s, until the producer was closed."""
    stage = idempotent(retry_backoff_ms=0, retry_backoff_max_ms=0)
    stage.idempotent_sequencer.become_fatal(KafkaError("fatal"))
    stage.client.poll_timeouts_ms.clear()
    stage.run(3)
    assert stage.client.poll_timeouts_ms == [MIN_ROUND_MS] * 3


def test_the_sender_sleeps_while_it_has_no_producer_id_whatever_the_back_off_is() -> None:
    stage = idempotent(has_producer_id=False, retry_backoff_ms=0, retry_backoff_max_ms=0)
    for node in range(5):
        stage.client.delay_ready(node, 10_000)
    stage.append(b"a")
    stage.client.poll_timeouts_ms.clear()
    stage.run(3)
    assert min(stage.client.poll_timeouts_ms) > 0


@pytest.mark.parametrize("linger_ms", [0, 1])
def test_a_batch_that_waits_for_the_answer_to_another_does_not_wake_the_sender(linger_ms: int) -> None:
    """The batch counted as ready, and the Sender looked at it every millisecond for as long as a broker took to answer."""
    stage = idempotent(linger_ms=linger_ms, leaders={TOPIC: (0, 0)})
    stage.append(b"1")
    stage.clock.advance(linger_ms)
    stage.run()
    second = stage.append(b"2")  # goes when the first is acknowledged: before that the broker does not know this producer
    stage.clock.advance(linger_ms)
    stage.run()
    assert len(stage.in_flight) == 1
    assert stage.client.poll_timeouts_ms[-1] >= MAX_SLEEP_MS - 1000
    stage.append(b"3", partition=1)  # another partition is not held up
    stage.clock.advance(linger_ms)
    stage.run()
    assert [sent_batch.values for sent_batch in stage.sent_batches][-1] == [b"3"]
    stage.succeed(request=stage.in_flight[0])  # which ends the poll
    stage.run()
    assert [sent_batch.values for sent_batch in stage.sent_batches][-1] == [b"2"]
    stage.succeed(1, request=stage.in_flight[-1])
    assert second.acknowledged == 1


def test_the_sender_looks_again_at_once_when_something_has_expired() -> None:
    """Other batches of the partition may have waited for the expired one."""
    stage = Stage(linger_ms=0, leaders={TOPIC: (None,)}, request_timeout_ms=100, delivery_timeout_ms=1000)
    delivery = stage.append(b"1")
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    assert stage.client.poll_timeouts_ms[-1] == 0
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] > 0


# SINGLE RECORDS


def test_the_sender_sleeps_no_longer_than_gathered_records_linger() -> None:
    stage = Stage(linger_ms=500)
    stage.gather(b"a")
    stage.clock.advance(100)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 400


def test_gathered_records_that_have_lingered_do_not_linger_a_second_time() -> None:
    stage = Stage(linger_ms=500)
    futures = [stage.gather(b"a"), stage.gather(b"b")]
    stage.clock.advance(500)
    stage.run()
    assert values(stage) == [[b"a", b"b"]]
    stage.succeed(7)
    assert [future.result(0).offset for future in futures] == [7, 8]
    assert stage.is_whole


def test_gathered_records_expire_counted_from_their_send() -> None:
    stage = Stage(leaders={TOPIC: (None,)}, linger_ms=500, request_timeout_ms=500, delivery_timeout_ms=1000)
    future = stage.gather(b"a")
    stage.clock.advance(500)
    stage.run()
    assert not future.done()
    stage.clock.advance(500)
    stage.run()
    assert future.exception(0).condition == "KAFKA_DELIVERY_TIMEOUT"


def test_the_sender_never_waits_for_memory_that_only_it_can_give_back() -> None:
    stage = Stage(linger_ms=500, batch_size=1024, buffer_memory=8 * 1024)
    future = stage.gather(bytes(900))
    stage.append(*[bytes(900)] * 7)  # the rest of the pool
    before_ms = stage.now_ms + 500
    stage.clock.advance(500)
    stage.run(10)
    assert (len(stage.in_flight), len(stage.queued())) == (5, 3)
    assert stage.now_ms == before_ms
    for offset in range(8):
        stage.succeed(offset)
    assert future.result(0).offset == 7
    assert stage.is_whole


@pytest.mark.parametrize(("partitions", "least"), [(1, 500), (4, 300), (40, 64)])
def test_records_sent_one_by_one_hold_only_buffer_memory_while_a_broker_is_silent(partitions: int, least: int) -> None:
    """With buffer.memory=1 MiB 11.6 MB were held, and it grew: for each bundle that had lingered, the Sender overdrew."""
    stage = Stage(leaders={TOPIC: [0] * partitions}, linger_ms=5, buffer_memory=1024 * 1024, max_block_ms=100)
    futures: list[RecordFuture] = []

    def send_until_it_raises() -> None:
        while True:
            futures.append(stage.gather(bytes(1000), partition=len(futures) * 7 % partitions))
            if len(futures) % 30 == 0:
                stage.clock.advance(5)
                stage.run()

    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        send_until_it_raises()
    held = {id(block): len(block) for batch in stage.accumulator.incomplete for block in batch.memory.blocks}
    segments = [
        len(segment) for batch in stage.accumulator.incomplete for segment in batch.segments if isinstance(segment, memoryview)
    ]
    gathered = sum(len(value or b"") for bundle in stage.gatherer.bundles.values() for value in bundle.values)
    assert len(futures) > least
    assert sum(held.values()) + sum(segments) + gathered <= 1024 * 1024
    while stage.in_flight:
        for request in stage.in_flight:
            stage.client.respond(all_good(request), request=request)
        stage.run(2)
    assert all(future.exception(0) is None for future in futures)
    assert stage.is_whole


def test_gathered_records_fail_with_a_fatal_error() -> None:
    stage = idempotent(linger_ms=60_000)
    future = stage.gather(b"a")
    error = KafkaError("fatal")
    stage.idempotent_sequencer.become_fatal(error)
    stage.run()
    assert future.exception(0) is error


def test_gathered_records_fail_when_the_sender_ends() -> None:
    stage = Stage(linger_ms=60_000)
    future = stage.gather(b"a")
    stage.sender.force_close()
    run_thread(stage)
    assert isinstance(future.exception(0), ProducerClosedError)
