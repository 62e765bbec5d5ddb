"""The request for a producer id, and what happens when no broker gives one."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.producer.harness import PRODUCER_ID, TOPIC, OpenAppend, Stage
from tests.producer.sender.stages import asks_for_id, idempotent, identities


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.send(b"a")
    assert [type(request.message) for request in stage.in_flight] == [InitProducerIdRequest]
    stage.client.respond(InitProducerIdResponse(producer_id=5, producer_epoch=3))
    stage.run(2)
    assert identities(stage) == [(5, 3, 0)]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (7, -1), (-1, -1)])
def test_an_answer_without_a_producer_id_is_asked_for_again(producer_id: int, epoch: int) -> None:
    """-1 stands for none. Taken for one, it was never asked for again, and no row was ever sent."""
    stage = Stage(enable_idempotence=True, has_producer_id=False)
    delivery = stage.send(b"a")
    (request,) = stage.in_flight
    stage.client.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch), request=request)
    stage.run()
    assert not stage.txn.has_producer_id
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_the_producer_id_is_asked_for_once() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run(5)
    assert len(stage.client.sent) == 1


def test_an_idempotent_producer_asks_for_an_id_without_transactional_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run()
    message = stage.client.sent[0].message
    assert isinstance(message, InitProducerIdRequest)
    assert message.transactional_id is None
    assert (message.producer_id, message.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("trouble", ["retriable", "disconnect"])
def test_an_id_that_cannot_be_had_now_is_asked_for_again_after_back_off(trouble: str) -> None:
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"a")
    if trouble == "disconnect":
        stage.disconnect()
    else:
        stage.client.respond(InitProducerIdResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS.number))
        stage.run()
    stage.run()
    assert len(stage.client.sent) == 1
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    assert not delivery.done()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_when_no_node_can_be_asked_the_sender_tries_again() -> None:
    stage = idempotent(has_producer_id=False)
    for node in range(5):
        stage.client.delay_ready(node, 50)
    stage.run()
    assert stage.client.sent == []
    stage.clock.advance(50)
    stage.run()
    assert len(stage.client.sent) == 1


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
    assert not stage.client.connection_failed(0)
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
    """It failed every row of the producer, also those that were in flight to other brokers: they were written nevertheless, and
    once more by the retried Spark task.
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
    assert stage.sent[-1].identity == (PRODUCER_ID, 0, 1)
    stage.client.fail_authentication(0, REFUSED)
    stage.run()  # the request is lost, and its batch queued again
    stage.back_off()
    stage.run()
    assert delivery.error is REFUSED
    stage.client.node(0).backing_off_until_ms = 0
    stage.send(b"b")
    stage.run_until(lambda: len(stage.sent) == 2)
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 0)  # in a new epoch: a broker that never saw 1 would not take 2


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


def test_a_refused_id_fails_what_waits_and_is_asked_for_again() -> None:
    """A permission granted meanwhile is enough; the producer need not be made anew."""
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"a")
    stage.client.respond(InitProducerIdResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED.number))
    stage.run()
    assert str(delivery.error).startswith("[KAFKA_CLUSTER_AUTHORIZATION_FAILED]")
    assert "IDEMPOTENT_WRITE" in str(delivery.error)
    assert stage.is_whole
    assert stage.txn.fatal_error is None
    again = stage.append(b"b")
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert again.acknowledged == 1


def test_without_a_row_a_refused_id_is_not_asked_for_again() -> None:
    """An idle producer without IDEMPOTENT_WRITE asked every retry.backoff.ms, for ever."""
    stage = idempotent(has_producer_id=False)
    stage.run()
    stage.client.respond(InitProducerIdResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED.number))
    stage.run()
    stage.client.sent.clear()
    stage.client.poll_timeouts_ms.clear()
    for _ in range(5):
        stage.back_off()
        stage.run()
    assert stage.client.sent == []
    assert min(stage.client.poll_timeouts_ms) > 10_000
    delivery = stage.append(b"a")
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_broker_that_gives_no_ids_fails_what_waits() -> None:
    stage = idempotent(has_producer_id=False)
    for node in range(5):
        stage.client.set_api_versions(node, {ApiKey.INIT_PRODUCER_ID: (90, 91)})
    delivery = stage.send(b"a")
    stage.run()
    assert isinstance(delivery.error, UnsupportedVersionError)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_with_one_request_in_flight_the_id_request_does_not_block_the_rows(is_idempotent: bool) -> None:
    stage = Stage(enable_idempotence=is_idempotent, has_producer_id=False, max_in_flight_requests_per_connection=1)
    stage.client.prepare_response(
        InitProducerIdResponse(producer_id=1, producer_epoch=0), matcher=asks_for_id
    ) if is_idempotent else None
    delivery = stage.append(b"a")
    stage.run(3)
    stage.succeed()
    assert delivery.acknowledged == 1
