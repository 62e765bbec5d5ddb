"""A callback, or the end of the connections, ends the Sender: everybody who waits hears of it, and nobody waits for ever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError, KafkaError
from spark_kafka_sink.producer.accumulator.delivery import BatchRows
from tests.producer.harness import TOPIC, Stage, partition_answer, produce_response
from tests.producer.sender.stages import gather


def leave(*_: object) -> None:
    sys.exit("enough")


class LeavingCallback:
    """Ends the thread when it is told of its rows."""

    def __init__(self) -> None:
        self.called_back = 0

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None:
        self.called_back += batch_rows.row_count
        leave(base_offset, log_append_time_ms)

    def fail(self, batch_rows: BatchRows, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        self.called_back += batch_rows.row_count
        leave(error, record_errors)

    fail_unbatched: Any = None


def test_rows_are_settled_although_the_callback_of_another_ends_the_thread() -> None:
    """sys.exit() in a callback passed `except Exception`. The batch was done but still counted as incomplete, so that the end of
    the Sender met it, raised, and left all other rows, and the records that were gathered, without an answer for ever."""
    stage = Stage(linger_ms=60_000, leaders={TOPIC: (0, 0, 1)}, batch_size=1024)
    called_back: list[bytes] = []
    records = [
        gather(stage, b"a", leave),
        gather(stage, b"b", lambda *_: called_back.append(b"b")),
        gather(stage, b"c", leave),
        gather(stage, b"d", lambda *_: called_back.append(b"d")),
    ]
    stage.gatherer.encode_all(0)
    callback = LeavingCallback()
    stage.append(b"e", callback=callback)
    same_batch, same_request = stage.append(b"f"), stage.append(b"g", partition=1)
    same_poll, queued = stage.append(b"h", partition=2), None
    stage.clock.advance(60_000)  # they have lingered
    stage.run()
    first, second = sorted(stage.in_flight, key=lambda request: request.node_id)
    queued, gathered = stage.append(b"i"), gather(stage, b"j", leave)
    stage.client.respond(produce_response(partition_answer(0), partition_answer(1)), request=first)
    stage.client.respond(produce_response(partition_answer(2)), request=second)
    stage.sender.run()
    assert all(record.exception(0) is None for record in records)
    assert called_back == [b"b", b"d"]
    assert callback.called_back == 1
    for delivery in (same_batch, same_request, same_poll):
        assert delivery.acknowledged == 1
    assert isinstance(stage.sender.failures.fatal, SystemExit)
    for error in (queued.error, gathered.exception(0)):
        assert str(error) == "[KAFKA_INTERNAL_ERROR] The producer's sender thread failed: SystemExit('enough')"
    assert not stage.accumulator.incomplete
    assert stage.is_whole


@pytest.mark.parametrize("ending", ["expired", "aborted", "fatal"])
def test_rows_fail_although_the_callback_of_another_ends_the_thread(ending: str) -> None:
    stage = Stage(enable_idempotence=True, leaders={TOPIC: (0, 0)}, request_timeout_ms=1000, delivery_timeout_ms=1000)
    callbacks = [LeavingCallback(), LeavingCallback()]
    for partition, callback in enumerate(callbacks):
        stage.append(b"a", partition=partition, callback=callback)
    others = [stage.append(b"b", partition=partition) for partition in (0, 1)]
    records = [gather(stage, b"c", leave), gather(stage, b"d", leave)]
    if ending == "expired":
        stage.client.set_unreachable(0, 10_000)
        stage.clock.advance(1000)
    elif ending == "aborted":
        stage.client.fail_authentication(0, AuthenticationError("who are you?"))
    else:
        stage.idempotent_sequencer.become_fatal(KafkaError("fatal"))
    stage.sender.run()
    assert [callback.called_back for callback in callbacks] == [1, 1]
    assert [delivery.failed for delivery in others] == [1, 1]
    assert all(record.exception(0) is not None for record in records)
    assert isinstance(stage.sender.failures.fatal, SystemExit)
    assert stage.is_whole


def test_later_writes_raise_what_ended_the_sender() -> None:
    stage = Stage()
    stage.send(b"a", callback=LeavingCallback())
    stage.client.respond(produce_response(partition_answer()))
    stage.sender.run()
    for write in (lambda: stage.append(b"b"), lambda: gather(stage, b"c", None), lambda: stage.pool.allocate(1, 0)):
        with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] .* SystemExit\('enough'\)"):
            write()
    version = stage.metadata.request_update("a caller waits")
    with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] .* SystemExit\('enough'\)"):
        stage.metadata.await_update(version or 10_000, 0)


def told_to_a_waiter(stage: Stage) -> list[str]:
    """What callers hear who wait for metadata, for memory, or to write."""
    version = stage.metadata.request_update("a caller waits") or 10_000
    waits: tuple[Callable[[], object], ...] = (
        lambda: stage.metadata.await_update(version, 0),
        lambda: stage.pool.allocate(1, 0),
        lambda: stage.append(b"b"),
        lambda: gather(stage, b"c", None),
    )
    heard = []
    for wait in waits:
        with pytest.raises(KafkaError) as raised:
            wait()
        heard.append(raised.value.condition)
    return heard


def test_a_failure_while_connections_are_closed_is_what_waiting_callers_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting callers heard KAFKA_PRODUCER_CLOSED: what to tell them had been decided before the connections were closed."""
    stage = Stage()
    monkeypatch.setattr(stage.client, "close", leave)
    stage.sender.force_close()
    stage.sender.run()
    assert told_to_a_waiter(stage) == ["KAFKA_INTERNAL_ERROR"] * 4


def test_a_close_that_has_not_heard_of_the_senders_failure_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look of close() for a failure and what it does then, the Sender fails: its error was overwritten with none."""
    stage = Stage()
    stage.send(b"a", callback=LeavingCallback())
    stage.client.respond(produce_response(partition_answer()))
    look = stage.sender.failures.error

    def look_and_fall_behind() -> KafkaError | None:
        error = look()
        monkeypatch.undo()
        stage.sender.run()
        return error

    monkeypatch.setattr(stage.sender.failures, "error", look_and_fall_behind)
    stage.sender.initiate_close()
    stage.gatherer.close()
    assert told_to_a_waiter(stage) == ["KAFKA_INTERNAL_ERROR"] * 4
