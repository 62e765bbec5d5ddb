"""After a batch was given up: what follows it is written once and in order.

SimulatedBrokers keep the logs and check sequences as leaders do. What callbacks raise is in test_raising_callbacks.py, what the
Sender's own code raises in test_sender_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from tests.producer.harness import tp
from tests.producer.sender.scene import Scene
from tests.producer.simulated_brokers import Fate

# SEQUENCES AFTER A BATCH OF UNKNOWN OUTCOME


def exhausted_by_disconnects(scene: Scene, carried_out: bool) -> None:
    for _ in range(3):
        scene.brokers.answer(0, Fate.DISCONNECT_AFTER_ALL if carried_out else Fate.DISCONNECT_BEFORE)
        scene.stage.back_off()
        scene.stage.run(2)


def exhausted_by_time_outs(scene: Scene, carried_out: bool) -> None:
    for _ in range(3):
        if carried_out:
            scene.brokers.answer_to(scene.stage.in_flight[0], Fate.ANSWER)
        scene.stage.clock.advance(scene.stage.config.request_timeout_ms + 1)
        scene.stage.run()
        scene.stage.back_off()
        scene.stage.run(2)


def exhausted_by(error: ErrorCode) -> Callable[[Scene, bool], None]:
    def fail(scene: Scene, carried_out: bool) -> None:
        for _ in range(3):
            scene.fail_with(carried_out, error)
            scene.stage.back_off()
            scene.stage.run()

    fail.__name__ = f"exhausted_by_{error.name}"
    return fail


def rejected_at_once_by(error: ErrorCode) -> Callable[[Scene, bool], None]:
    def fail(scene: Scene, carried_out: bool) -> None:
        scene.fail_with(carried_out, error)

    fail.__name__ = f"rejected_at_once_by_{error.name}"
    return fail


def expired_in_the_queue_after_an_attempt(scene: Scene, carried_out: bool) -> None:
    scene.brokers.answer(0, Fate.DISCONNECT_AFTER_ALL if carried_out else Fate.DISCONNECT_BEFORE)
    scene.stage.client.node(0).unreachable_until_ms = scene.stage.now_ms + scene.stage.config.delivery_timeout_ms
    scene.stage.clock.advance(scene.stage.config.delivery_timeout_ms)
    scene.stage.run()


def expired_in_flight(scene: Scene, carried_out: bool) -> None:
    if carried_out:
        scene.brokers.answer_to(scene.stage.in_flight[0], Fate.ANSWER)
    scene.stage.client._sent_ms = dict.fromkeys(scene.stage.client._sent_ms, 1 << 60)  # the request itself never times out
    scene.stage.clock.advance(scene.stage.config.delivery_timeout_ms)
    scene.stage.run()
    scene.brokers.answer(0, Fate.DISCONNECT_BEFORE)


def answered_when_its_time_was_over(scene: Scene, carried_out: bool) -> None:
    """The connection is lost and delivery.timeout.ms passes in one and the same poll."""
    scene.stage.clock.advance(scene.stage.config.delivery_timeout_ms)
    scene.brokers.answer(0, Fate.DISCONNECT_AFTER_ALL if carried_out else Fate.DISCONNECT_BEFORE)


def aborted_by_a_refused_login(scene: Scene, carried_out: bool) -> None:
    if carried_out:
        scene.brokers.answer_to(scene.stage.in_flight[0], Fate.ANSWER)
    scene.stage.client.fail_authentication(0, AuthenticationError("node 0: who are you?"))
    scene.stage.run()
    scene.stage.back_off()
    scene.stage.run()
    scene.stage.client.node(0).backing_off_until_ms = 0


def not_mentioned_in_the_answer(scene: Scene, carried_out: bool) -> None:
    scene.fail_with(carried_out, Errors.NONE)


WAYS_TO_FAIL = [
    exhausted_by_disconnects,
    exhausted_by_time_outs,
    exhausted_by(Errors.REQUEST_TIMED_OUT),
    exhausted_by(Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    exhausted_by(Errors.NOT_LEADER_OR_FOLLOWER),
    exhausted_by(Errors.KAFKA_STORAGE_ERROR),
    rejected_at_once_by(Errors.UNKNOWN_SERVER_ERROR),
    not_mentioned_in_the_answer,
    expired_in_the_queue_after_an_attempt,
    expired_in_flight,
    answered_when_its_time_was_over,
    aborted_by_a_refused_login,
]


@pytest.mark.parametrize("carried_out", [False, True], ids=["not-written", "written"])
@pytest.mark.parametrize("way_to_fail", WAYS_TO_FAIL, ids=lambda way: way.__name__)
def test_rows_after_a_batch_of_unknown_outcome_are_written(way_to_fail: Callable[[Scene, bool], None], carried_out: bool) -> None:
    """With retries=2 a batch ran out of retries by disconnects: nothing marked its sequence numbers as unresolved, and the
    broker rejected every later batch of the partition as OUT_OF_ORDER_SEQUENCE_NUMBER: six of six, for ever."""
    scene = Scene(retries=2, request_timeout_ms=10_000, delivery_timeout_ms=60_000)
    delivery = scene.stage.send(b"lost")
    way_to_fail(scene, carried_out)
    assert delivery.failed == 1
    later = [b"row %d" % number for number in range(6)]
    for value in later:
        assert scene.write(value).error is None
    assert scene.log() == [b"introduction", *[b"lost"] * carried_out, *later]
    scene.settle()
    assert scene.stage.is_whole


@pytest.mark.parametrize("fate", [Fate.DISCONNECT_BEFORE, Fate.DISCONNECT_AFTER_ONE, Fate.DISCONNECT_AFTER_ALL])
@pytest.mark.parametrize("retries", [1, 2, 3])
def test_batches_behind_one_that_ran_out_of_retries_are_written_once(retries: int, fate: Fate) -> None:
    scene = Scene(retries=retries)
    first = scene.stage.send(b"1")
    others = [scene.stage.send(b"%d" % number) for number in (2, 3)]
    for _ in range(retries + 1):
        scene.brokers.answer(0, fate)
        scene.stage.back_off()
        scene.stage.run(2)
    scene.settle()
    later = scene.write(b"later")
    assert later.error is None
    log = scene.log()
    assert len(set(log)) == len(log)
    assert log == sorted(log, key=[b"introduction", b"1", b"2", b"3", b"later"].index)
    assert all(delivery.done() for delivery in (first, *others))
    for value, delivery in zip((b"1", b"2", b"3"), (first, *others), strict=True):
        assert value in log or delivery.failed


# WHAT IS KNOWN OF AN OUTCOME


@pytest.mark.parametrize("fate", [Fate.DISCONNECT_AFTER_ALL, Fate.DISCONNECT_AFTER_ONE, Fate.DISCONNECT_BEFORE])
def test_batches_that_may_have_been_written_are_not_numbered_anew(fate: Fate) -> None:
    """When the connection was lost in the poll in which delivery.timeout.ms ran out, the batch counted as rejected because
    `attempts` was below `retries`. The epoch was bumped, and younger batches, which the broker had written as well, were sent
    again as sequence 0 of the new epoch: they were in the log twice."""
    scene = Scene(request_timeout_ms=3000, delivery_timeout_ms=3000)
    first = scene.stage.send(b"1")
    scene.stage.clock.advance(2000)
    second = scene.stage.send(b"2")
    third = scene.stage.send(b"3")
    scene.stage.clock.advance(1000)
    scene.brokers.answer(0, fate)
    assert first.failed == 1
    assert not second.done()
    for _ in range(15):
        scene.stage.clock.advance(100)
        scene.stage.run()
        scene.brokers.answer_all()
    assert (second.acknowledged, third.acknowledged) == (1, 1)
    assert scene.log() == [b"introduction", *[b"1"] * (fate is not Fate.DISCONNECT_BEFORE), b"2", b"3"]


def test_a_rejection_does_not_undo_the_doubt_of_an_earlier_attempt() -> None:
    """The first attempt of a batch was written, its answer was lost. The last one was rejected for good: that says of the last
    attempt only that it is not in the log."""
    scene = Scene()
    first, second = scene.stage.send(b"1"), scene.stage.send(b"2")
    scene.brokers.answer(0, Fate.DISCONNECT_AFTER_ALL)
    scene.stage.back_off()
    scene.stage.run(2)
    scene.brokers.answer(0, Fate.REJECT_FOR_GOOD)
    assert first.failed == 1
    scene.settle()
    assert second.acknowledged == 1
    assert scene.log() == [b"introduction", b"1", b"2"]


def test_a_new_epoch_waits_for_the_answers_of_batches_in_flight() -> None:
    """The brokers had lost the producer's state, and accept whatever comes first: the batch behind the rejected one is written,
    and its answer is lost. Numbered anew at once it would be written twice."""
    scene = Scene()
    first, second = scene.stage.send(b"1"), scene.stage.send(b"2")
    scene.brokers.logs[tp()].producers.clear()
    of_first, of_second = scene.stage.in_flight
    scene.brokers.answer(0, Fate.REJECT_FOR_GOOD)
    assert first.failed == 1
    scene.stage.run(2)
    assert scene.stage.idempotent_sequencer.identity.producer_epoch == 0
    assert scene.stage.in_flight == [of_second]
    scene.brokers.answer(0, Fate.DISCONNECT_AFTER_ALL)
    scene.settle()
    assert of_first is not of_second
    assert second.acknowledged == 1
    assert scene.log() == [b"introduction", b"2"]
    assert scene.write(b"3").error is None
