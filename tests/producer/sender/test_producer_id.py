"""The request for a producer id, and what happens when no broker gives one."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.producer.harness import Stage
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
    """-1 stands for no id. The producer took it for an id, never asked again, and never sent a row."""
    stage = Stage(enable_idempotence=True, has_producer_id=False)
    delivery = stage.send(b"a")
    (request,) = stage.in_flight
    stage.client.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch), request=request)
    stage.run()
    assert not stage.idempotent_sequencer.has_producer_id
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_the_producer_id_is_asked_for_once() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run(5)
    assert len(stage.client.sent_requests) == 1


def test_an_idempotent_producer_asks_for_an_id_without_transactional_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run()
    message = stage.client.sent_requests[0].message
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
    assert len(stage.client.sent_requests) == 1
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
    assert stage.client.sent_requests == []
    stage.clock.advance(50)
    stage.run()
    assert len(stage.client.sent_requests) == 1


def test_a_refused_id_fails_what_waits_and_is_asked_for_again() -> None:
    """A permission granted meanwhile is enough; the producer need not be made anew."""
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"a")
    stage.client.respond(InitProducerIdResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED.number))
    stage.run()
    assert str(delivery.error).startswith("[KAFKA_CLUSTER_AUTHORIZATION_FAILED]")
    assert "IDEMPOTENT_WRITE" in str(delivery.error)
    assert stage.is_whole
    assert stage.idempotent_sequencer.fatal_error is None
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
    stage.client.sent_requests.clear()
    stage.client.poll_timeouts_ms.clear()
    for _ in range(5):
        stage.back_off()
        stage.run()
    assert stage.client.sent_requests == []
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
