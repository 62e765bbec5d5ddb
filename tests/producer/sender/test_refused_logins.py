"""Rows for brokers that refuse the producer's login."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError
from tests.producer.harness import PRODUCER_ID, TOPIC, OpenAppend, Stage
from tests.producer.sender.stages import idempotent

REFUSED = AuthenticationError("node 0: who are you?")


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_rows_for_a_broker_that_refuses_us_fail_at_once_and_later_ones_ask_again(enable_idempotence: bool) -> None:
    stage = Stage(leaders={TOPIC: (0, 1)}, enable_idempotence=enable_idempotence)
    stage.client.fail_authentication(0, REFUSED)
    delivery = stage.append(b"a")
    stage.run()
    assert delivery.error is REFUSED
    assert stage.is_whole
    stage.client.node(0).backing_off_until_ms = 0
    again = stage.send(b"b")
    stage.succeed()
    assert again.acknowledged == 1


def test_a_refusal_counts_although_the_next_attempt_has_begun() -> None:
    """With reconnect.backoff.ms=0 the Sender never saw a refusal: rows were failed by delivery.timeout.ms, two minutes later."""
    stage = Stage()
    delivery = stage.append(b"a")
    stage.client.fail_authentication(0, REFUSED)
    stage.client.node(0).backing_off_until_ms = 0
    stage.client.delay_ready(0, 1000)
    assert not stage.client.is_disconnected(0)
    stage.run()
    assert delivery.error is REFUSED


def test_rows_for_other_brokers_are_written_while_one_refuses_us() -> None:
    stage = Stage(leaders={TOPIC: (0, 1)})
    stage.client.fail_authentication(0, REFUSED)
    delivery = stage.send(b"a", partition=1)
    stage.succeed(partition=1)
    assert delivery.acknowledged == 1


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_a_refusal_fails_what_waits_for_that_broker_and_nothing_else(enable_idempotence: bool) -> None:
    """A refusal failed every row of the producer, also those that were in flight to other brokers: they were written
    nevertheless, and once more by the retried Spark task.
    """
    stage = Stage(leaders={TOPIC: (0, 1, None)}, enable_idempotence=enable_idempotence)
    stage.metadata.add_topic(TOPIC, stage.now_ms)
    in_flight = stage.send(b"in flight", partition=1)
    request = stage.in_flight[-1]
    leaderless = stage.append(b"leaderless", partition=2)
    queued = stage.append(b"queued", partition=1)
    refused = [stage.append(b"refused", partition=0), stage.append(b"too", partition=0)]
    stage.client.fail_authentication(0, REFUSED)
    stage.run()
    assert [delivery.error for delivery in refused] == [REFUSED, REFUSED]
    assert [delivery.error for delivery in (in_flight, queued, leaderless)] == [None] * 3
    stage.succeed(partition=1, request=request)
    stage.run_until(lambda: bool(stage.in_flight) or queued.acknowledged == 1)
    for request in list(stage.in_flight):
        stage.succeed(1, partition=1, request=request)
    assert (in_flight.acknowledged, queued.acknowledged) == (1, 1)
    assert leaderless.error is None


def test_a_caller_that_still_writes_into_a_batch_gets_the_refusal_when_it_is_done() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)})
    writing = OpenAppend(stage, b"a")
    other = stage.append(b"b", partition=1)
    stage.client.fail_authentication(0, REFUSED)
    stage.run()
    assert other.error is REFUSED
    assert writing.delivery.error is None
    writing.fill()
    stage.run()
    assert writing.delivery.error is REFUSED
    assert stage.is_whole


def test_numbers_of_rows_that_were_sent_before_a_refusal_are_not_taken_for_written() -> None:
    stage = idempotent()
    stage.introduce()
    delivery = stage.send(b"a")
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 0, 1)
    stage.client.fail_authentication(0, REFUSED)
    stage.run()  # the request is lost, and its batch queued again
    stage.back_off()
    stage.run()
    assert delivery.error is REFUSED
    stage.client.node(0).backing_off_until_ms = 0
    stage.send(b"b")
    stage.run_until(lambda: len(stage.sent_batches) == 2)
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 0)  # in a new epoch: a broker that never saw 1 would not take 2


def test_rows_without_a_leader_fail_when_every_broker_refuses_us() -> None:
    stage = Stage(leaders={TOPIC: (None,), "other": (0, 1)})
    stage.run()
    first, *others = [node.id for node in stage.metadata.cluster().nodes]
    stage.client.fail_authentication(first, REFUSED)
    delivery = stage.send(b"a")
    assert others
    assert delivery.error is None  # another may know the leader
    for node in others:
        stage.client.fail_authentication(node, REFUSED)
    stage.run()
    assert delivery.error is REFUSED
