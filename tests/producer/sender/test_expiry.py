"""Batches expire after delivery.timeout.ms, queued or in flight, and their memory is given back once."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from tests.producer.harness import TOPIC, Stage, partition_answer, produce_response


def test_a_batch_in_flight_expires_and_its_rows_fail_at_once() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.run()
    assert isinstance(delivery.error, KafkaTimeoutError)
    assert str(delivery.error).startswith("[KAFKA_DELIVERY_TIMEOUT] Expiring 1 record(s) for orders-0, led by node 0 at ")
    assert ": 1500 ms have passed since batch creation" in str(delivery.error)
    assert "no answer from node 0" in str(delivery.error)
    assert not stage.accumulator.incomplete  # flush() need not wait


def test_memory_of_a_batch_that_expired_in_flight_is_kept_until_its_answer() -> None:
    """KAFKA-19012: rows of another topic went out under the expired batch's request."""
    stage = Stage(
        leaders={TOPIC: (0,), "other": (1,)},
        request_timeout_ms=2000,
        delivery_timeout_ms=2000,
        batch_size=1024,
        buffer_memory=2048,
    )
    stage.send(b"first" + bytes(900))
    (request,) = stage.in_flight
    assert isinstance(request.message, ProduceRequest)
    on_the_wire = request.message.topic_data[0].partition_data[0].records
    before = b"".join(on_the_wire)
    stage.clock.advance(2000)
    stage.run()
    assert not stage.is_whole
    stage.send(b"second" + bytes(900), topic="other")
    assert b"".join(on_the_wire) == before
    stage.succeed(request=request)
    stage.respond(partition_answer(), topic="other")
    assert stage.is_whole


@pytest.mark.parametrize("ending", ["success", "error", "disconnect"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_the_late_answer_of_an_expired_batch_frees_its_memory_and_nothing_else(ending: str, is_idempotent: bool) -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500, enable_idempotence=is_idempotent)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.run()
    error = delivery.error
    if ending == "disconnect":
        stage.disconnect()
    elif ending == "error":
        stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    else:
        stage.succeed()
    stage.back_off()
    stage.run(2)
    assert len(stage.sent_batches) == 1  # never retried
    assert delivery.error is error
    assert (delivery.acknowledged, delivery.failed) == (0, 1)
    assert stage.is_whole


def test_an_expired_batch_is_not_split_when_the_broker_finds_it_too_large() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a", b"b")
    stage.clock.advance(1500)
    stage.run()
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    stage.back_off()
    stage.run(2)
    assert len(stage.sent_batches) == 1
    assert delivery.failed == 2
    assert stage.is_whole


def test_an_answer_in_the_round_of_the_expiry_fails_and_frees_the_batch_once() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.client.respond(produce_response(partition_answer()))
    stage.run()  # expires it, then hears the answer
    assert (delivery.acknowledged, delivery.failed) == (0, 1)
    assert stage.is_whole


def test_a_retriable_answer_after_the_delivery_timeout_is_final() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    delivery = stage.send(b"a")
    stage.client.respond(produce_response(partition_answer(0, Errors.NOT_LEADER_OR_FOLLOWER)))
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    stage.back_off()
    stage.run(2)
    assert len(stage.sent_batches) == 1
    assert stage.is_whole


def test_batches_of_several_partitions_expire_each_at_its_own_time() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)}, request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1", partition=0)
    stage.clock.advance(300)
    second = stage.send(b"2", partition=1)
    stage.clock.advance(700)
    stage.run()
    assert (first.failed, second.failed) == (1, 0)
    assert stage.client.poll_timeouts_ms[-1] <= 300
    stage.clock.advance(300)
    stage.run()
    assert second.failed == 1


def test_the_sender_sleeps_until_the_oldest_batch_that_is_left_expires() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)}, request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1", partition=0)
    stage.clock.advance(300)
    left = stage.send(b"2", partition=1)
    stage.succeed()
    stage.clock.advance(700)  # the first one would expire now
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 300
    stage.clock.advance(300)
    stage.run()
    assert left.failed == 1


def test_a_queued_batch_expires_in_time_behind_a_younger_one() -> None:
    """Without idempotence a lost connection turns the order of its batches around. The older one waited for the younger one's
    time, and the Sender did not sleep meanwhile.
    """
    stage = Stage(request_timeout_ms=30_000, delivery_timeout_ms=120_000)
    older = stage.send(b"older")
    stage.clock.advance(20_000)
    younger = stage.send(b"younger")
    stage.client.set_unreachable(0, 1_000_000)
    stage.run()
    assert len(stage.queued()) == 2
    stage.clock.advance(100_000)
    stage.run(2)
    assert (older.failed, younger.failed) == (1, 0)
    assert stage.client.poll_timeouts_ms[-1] == 20_000
    stage.clock.advance(20_000)
    stage.run()
    assert younger.failed == 1
    assert stage.is_whole


def test_a_queued_batch_expires_without_ever_having_been_sent_and_says_why() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.metadata.report_unreachable("127.0.0.1:9092", "[Errno 111] Connection refused")
    stage.client.delay_ready(0, 100_000)
    delivery = stage.send(b"a")
    stage.clock.advance(1000)
    stage.run()
    assert "Connection refused" in str(delivery.error)
    assert stage.sent_batches == []
    assert stage.is_whole


def test_the_error_of_a_batch_that_expires_has_its_last_error() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    delivery = stage.send(b"a")
    stage.reject(Errors.NOT_ENOUGH_REPLICAS, error_message="1 of 2 replicas")
    stage.clock.advance(1000)
    stage.run()
    assert "last trouble: NOT_ENOUGH_REPLICAS (19): 1 of 2 replicas" in str(delivery.error)


@pytest.mark.parametrize("max_in_flight", [1, 5])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_batch_that_expires_when_its_node_becomes_ready_leaves_nothing_behind(is_idempotent: bool, max_in_flight: int) -> None:
    """The batch was drained and expired in one round, never sent, and so never answered: its memory was lost, and with one
    request in flight its partition was muted for good.
    """
    stage = Stage(
        request_timeout_ms=1000,
        delivery_timeout_ms=2000,
        enable_idempotence=is_idempotent,
        max_in_flight_requests_per_connection=max_in_flight,
    )
    stage.client.delay_ready(0, 2000)
    late = stage.append(b"late")
    stage.clock.advance(2000)
    stage.run(3)
    assert late.failed == 1
    assert stage.is_whole
    stage.send(b"next")
    assert stage.sent_batches[-1].values == [b"next"]


def test_rows_may_be_written_while_others_expire() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000, leaders={TOPIC: (None,)})
    stage.append(b"old")
    stage.clock.advance(1000)
    young = stage.append(b"young")  # joins the batch that is about to expire
    stage.run()
    assert young.failed == 1
    later = stage.append(b"later")
    stage.run()
    assert not later.done()
    assert [batch.record_count for batch in stage.queued()] == [1]
