"""What the Sender asks of a sequencer that has more to do than number batches: here one that does just that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.idempotence.idempotent_sequencer import IdempotentSequencer
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from tests.producer.harness import Stage, tp


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each round says of `is_all_settled`."""
    made: list[bool] = []

    own = IdempotentSequencer.send_due_requests

    def send_due_requests(
        sequencer: IdempotentSequencer, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]
    ) -> int:
        made.append(is_all_settled)
        return own(sequencer, now_ms, is_all_settled, is_all_sent)

    monkeypatch.setattr(IdempotentSequencer, "send_due_requests", send_due_requests)
    return made


def test_each_round_steps_the_coordinators_and_says_whether_every_batch_is_settled(steps: list[bool]) -> None:
    stage = Stage(enable_idempotence=True)
    stage.run()
    assert steps[-1] is True
    stage.send(b"a")
    assert steps[-1] is False
    stage.succeed()
    stage.run()
    assert steps[-1] is True


def test_the_answer_of_a_batch_that_expired_in_flight_is_still_due(steps: list[bool]) -> None:
    stage = Stage(enable_idempotence=True, request_timeout_ms=2000, delivery_timeout_ms=2000)
    delivery = stage.send(b"a")
    stage.clock.advance(2000)
    stage.run()
    assert delivery.failed == 1
    assert not stage.accumulator.incomplete
    assert steps[-1] is False
    stage.succeed()
    stage.run()
    assert steps[-1] is True


def test_a_round_sleeps_no_longer_than_the_coordinators_say(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(enable_idempotence=True)
    slept: list[int] = []
    poll = stage.client.poll
    monkeypatch.setattr(stage.client, "poll", lambda timeout_ms, now_ms: slept.append(timeout_ms) or poll(timeout_ms, now_ms))
    monkeypatch.setattr(IdempotentSequencer, "send_due_requests", lambda *_: 123)
    stage.run()
    assert slept == [123]


def test_a_produce_request_names_the_transactional_id_and_keeps_below_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(enable_idempotence=True)
    monkeypatch.setattr(stage.idempotent_sequencer, "transactional_id", "till-1")
    monkeypatch.setattr(IdempotentSequencer, "max_produce_version", 11)
    stage.send(b"a")
    (request,) = stage.in_flight
    assert isinstance(request.message, ProduceRequest)
    assert (request.message.transactional_id, request.max_version) == ("till-1", 11)


def test_a_batch_that_failed_comes_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[tuple[ProducerBatch, KafkaError]] = []
    monkeypatch.setattr(IdempotentSequencer, "handle_failed_batch", lambda _, batch, error: failed.append((batch, error)))
    stage = Stage(enable_idempotence=True)
    delivery = stage.send(b"a")
    stage.reject(Errors.INVALID_RECORD)
    ((batch, error),) = failed
    assert batch.topic_partition == tp()
    assert delivery.error is not None
    assert error.message in delivery.error.message
