"""Prepared transactions, and what closing the producer does to an open one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Lock, Thread

import pytest

from spark_kafka_sink.errors import AbortableTransactionError, KafkaError, TransactionAbortedError, TransactionTimeoutError
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod, TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.interrupts import Interrupted
from tests.producer.harness import TOPIC, all_good, partition_answer, produce_response
from tests.producer.transactions.transaction_stage import ID, TransactionStage, caller_side_of


@pytest.fixture
def stage(version: int) -> TransactionStage:
    """Within a transaction, one row of which is written."""
    made = TransactionStage(version, leaders={TOPIC: (0, 0)})
    made.begin()
    made.write(b"a")
    return made


# PREPARE


def test_a_prepared_transaction_is_whole_and_left_alone(stage: TransactionStage, version: int) -> None:
    delivery = stage.send(b"b")
    prepare = stage.post(CalledMethod.PREPARE)
    stage.run(3)
    assert not prepare.is_done
    stage.acknowledge()
    assert stage.settle(prepare) is None
    assert delivery.done()
    assert stage.manager.state is SequencerState.PREPARED
    assert stage.manager.prepared_transaction == (ID, *stage.manager.identity, version)
    assert not stage.manager.has_open_transaction  # closing the producer does not end it
    for kind in (CalledMethod.BEGIN, CalledMethod.SEND_OFFSETS, CalledMethod.PREPARE, CalledMethod.INIT):
        assert stage.settle(stage.post(kind)) is not None
    assert stage.ended == []
    stage.call(CalledMethod.ABORT)
    stage.begin()
    stage.write(b"next")
    stage.call(CalledMethod.COMMIT)
    assert stage.ended[-1] == "committed"


def test_a_transaction_with_a_failed_row_is_not_prepared(stage: TransactionStage) -> None:
    stage.send(b"b")
    prepare = stage.post(CalledMethod.PREPARE)
    stage.client.respond(produce_response(partition_answer(0, Errors.INVALID_RECORD)), request=stage.produced()[0])
    assert isinstance(stage.settle(prepare), AbortableTransactionError)
    stage.call(CalledMethod.ABORT)
    stage.begin()
    stage.write(b"next")
    stage.call(CalledMethod.COMMIT)
    assert stage.ended[-1] == "committed"


def test_prepare_waits_for_offsets_that_are_under_way(stage: TransactionStage) -> None:
    stage.holds = {ApiKey.TXN_OFFSET_COMMIT}
    offsets = stage.post_offsets()
    prepare = stage.post(CalledMethod.PREPARE)
    stage.run(3)
    assert not prepare.is_done
    stage.holds.clear()
    assert stage.settle(offsets) is None
    assert stage.settle(prepare) is None


# CLOSE


class Closing:
    """The Sender's thread, from close() to its end."""

    def __init__(self, stage: TransactionStage) -> None:
        self._stage = stage
        self._thread = Thread(target=stage.sender.run, daemon=True)

    def ends(self) -> None:
        self._thread.start()
        self._thread.join(30)
        assert not self._thread.is_alive()


def play_brokers(stage: TransactionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer whatever is asked, in each poll."""
    poll = stage.client.poll

    def answer_and_poll(timeout_ms: int, now_ms: int) -> object:
        stage.clock.advance(1)
        for request in stage.produced():
            stage.verify(request)
            stage.client.respond(all_good(request), request=request)
        for request in stage.in_flight:
            stage.answer(request)
        return poll(timeout_ms, now_ms)

    monkeypatch.setattr(stage.client, "poll", answer_and_poll)


def test_close_ends_the_rows_and_aborts_the_transaction(stage: TransactionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries = [stage.send(b"b"), stage.append(b"of a partition that is not added yet", partition=1)]
    stage.sender.initiate_close()
    play_brokers(stage, monkeypatch)
    Closing(stage).ends()
    assert [(delivery.done(), delivery.error) for delivery in deliveries] == [(True, None)] * 2
    assert stage.ended == ["aborted"]


def test_close_waits_for_a_commit_that_is_under_way(stage: TransactionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.send(b"b")
    commit = stage.post(CalledMethod.COMMIT)
    stage.sender.initiate_close()
    play_brokers(stage, monkeypatch)
    Closing(stage).ends()
    assert (commit.is_done, commit.error) == (True, None)
    assert stage.ended == ["committed"]


@pytest.mark.parametrize("kind", [CalledMethod.COMMIT, CalledMethod.PREPARE])
def test_close_ends_no_transaction_whose_end_was_asked_for_before(
    stage: TransactionStage, monkeypatch: pytest.MonkeyPatch, kind: CalledMethod
) -> None:
    """commit_transaction() in one thread, close() in another: before the Sender had heard of the commit, it aborted."""
    operation, waits = TransactionalCall(kind, stage.clock), Lock()
    with waits:
        operation.callers.add(waits)
        stage.manager.calls.post(operation)  # the Sender has not taken it
        stage.sender.initiate_close()
        play_brokers(stage, monkeypatch)
        Closing(stage).ends()
    assert (operation.is_done, operation.error) == (True, None)
    assert stage.ended == (["committed"] if kind is CalledMethod.COMMIT else [])


@pytest.mark.parametrize(("kind", "ended"), [(CalledMethod.COMMIT, "committed"), (CalledMethod.ABORT, "aborted")])
def test_close_carries_out_the_end_of_a_prepared_transaction_asked_for_before(
    stage: TransactionStage, monkeypatch: pytest.MonkeyPatch, kind: CalledMethod, ended: str
) -> None:
    """The call failed, and the transaction stayed open."""
    caller_side_of(stage, stage.run).prepare()
    operation = TransactionalCall(kind, stage.clock)
    stage.manager.calls.post(operation)  # the Sender has not taken it
    end_by_close(stage, monkeypatch)
    assert (operation.is_done, operation.error) == (True, None)
    assert stage.ended == [ended]


def end_by_close(stage: TransactionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.sender.initiate_close()
    play_brokers(stage, monkeypatch)
    Closing(stage).ends()


def test_close_aborts_a_transaction_whose_prepare_has_timed_out(stage: TransactionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had heard that it was prepared, so nobody could commit it: it stayed open until it timed out on the broker."""
    with pytest.raises(TransactionTimeoutError):
        caller_side_of(stage, lambda: None).prepare()
    end_by_close(stage, monkeypatch)
    assert stage.ended == ["aborted"]


def test_close_aborts_a_transaction_that_was_prepared_when_its_caller_had_gone(
    stage: TransactionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: it was left open where the Sender came to prepare it between the time-out and close()."""
    with pytest.raises(TransactionTimeoutError):
        caller_side_of(stage, lambda: None).prepare()
    stage.run()
    assert stage.manager.state is SequencerState.PREPARED
    end_by_close(stage, monkeypatch)
    assert stage.ended == ["aborted"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_close_aborts_a_transaction_wherever_its_prepare_was_interrupted(
    version: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted caller passed for one who still waited: the transaction was prepared for nobody, and stayed open."""
    at, happened = 0, True
    while happened:
        stage = TransactionStage(version, leaders={TOPIC: (0, 0)})
        stage.begin()
        stage.write(b"a")
        caller_side, interrupted = caller_side_of(stage, partial(stage.run, rounds)), Interrupted(at)
        with suppress(TransactionTimeoutError):  # the last one, where the Sender has not heard of it
            interrupted.run(caller_side.prepare)
        at, happened = at + 1, interrupted.happened
        end_by_close(stage, monkeypatch)
        assert stage.ended == (["aborted"] if happened or rounds == 0 else []), interrupted.where
    assert at > 30


def test_close_leaves_a_transaction_open_that_its_caller_knows_to_be_prepared(
    stage: TransactionStage, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller_side_of(stage, stage.run).prepare() == (ID, *stage.manager.identity, version)
    end_by_close(stage, monkeypatch)
    assert stage.ended == []


def test_a_close_that_comes_while_prepare_returns_never_aborts_what_it_returns(
    stage: TransactionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() of another thread, when the caller waits no longer and has not returned: it hears of the abort."""
    prepared = TransactionManager.prepared_transaction.fget

    def close_first(manager: TransactionManager) -> object:
        end_by_close(stage, monkeypatch)
        return prepared(manager)

    monkeypatch.setattr(TransactionManager, "prepared_transaction", property(close_first))
    with pytest.raises(TransactionAbortedError, match="closed before"):
        caller_side_of(stage, stage.run).prepare()
    assert stage.ended == ["aborted"]


def test_a_call_whose_caller_receives_it_while_it_is_withdrawn_stays_a_success(stage: TransactionStage) -> None:
    """Each saw the other: the caller heard that close() had aborted the transaction, and close() left it open."""
    call = TransactionalCall(CalledMethod.PREPARE, stage.clock)
    call.settle()

    class LockThatIsTaken:
        """Another thread receives the outcome meanwhile."""

        def __enter__(self) -> None:
            call.is_reported = True

        def __exit__(self, *_: object) -> None:
            pass

    call._lock = LockThatIsTaken()  # type: ignore[assignment]
    assert not call.withdraw(KafkaError("closed"))
    assert call.outcome() is None


def test_a_forced_close_aborts_nothing_and_tells_who_waits(stage: TransactionStage) -> None:
    stage.holds = {ApiKey.END_TXN}
    stage.send(b"b")
    commit = stage.post(CalledMethod.COMMIT)
    stage.sender.force_close()
    Closing(stage).ends()
    assert commit.error is not None
    assert "closed forcefully" in str(commit.error)
    assert stage.ended == []


def test_close_ends_at_once_after_a_fatal_error(stage: TransactionStage) -> None:
    stage.manager.become_fatal(KafkaError("ended"))
    stage.sender.initiate_close()
    Closing(stage).ends()
    assert stage.ended == []


def test_close_ends_at_once_where_the_brokers_are_those_of_another_cluster(stage: TransactionStage) -> None:
    """The abort could not be sent, and close() waited for it until its time was over."""
    stage.metadata.report_other_cluster("another")
    stage.sender.initiate_close()
    Closing(stage).ends()
    assert stage.ended == []


def test_a_call_after_the_end_of_the_sender_hears_of_it_at_once(stage: TransactionStage) -> None:
    """Its caller waited for max.block.ms."""
    stage.sender.force_close()
    Closing(stage).ends()
    late = TransactionalCall(CalledMethod.COMMIT, stage.clock)
    stage.manager.calls.post(late)
    assert late.is_done
    assert "closed forcefully" in str(late.error)
