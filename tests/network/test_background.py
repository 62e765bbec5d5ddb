"""network/background.py: work beside NetworkClient's thread, and what of it comes back."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.errors import ConfigError, KafkaError, NetworkError
from spark_kafka_sink.network.background import (
    MIN_HANG_MS,
    BackgroundWorker,
    Outcome,
    outcome_of,
    outcome_within,
    outcomes_within,
)
from tests.fakes.clock import ManualClock

LIMIT_S = 30


class WorkerBench:
    """A BackgroundWorker, and what it wakes up."""

    def __init__(self) -> None:
        self.wakeups: queue.Queue[None] = queue.Queue()
        self.worker = BackgroundWorker(lambda: self.wakeups.put(None))

    def run(self, node_id: int, work: Callable[[], Any]) -> list[tuple[int, Outcome]]:
        self.worker.start(node_id, work, 1000)
        self.wakeups.get(timeout=LIMIT_S)
        return self.worker.take_finished()


@pytest.fixture
def bench() -> WorkerBench:
    return WorkerBench()


def test_work_is_done_on_another_thread_and_its_result_comes_once(bench: WorkerBench) -> None:
    ((node_id, outcome),) = bench.run(3, threading.current_thread)
    assert node_id == 3
    assert outcome.result is not threading.current_thread()
    assert outcome.result.daemon  # a callback that hangs must not keep the interpreter from ending
    assert bench.worker.take_finished() == []
    assert bench.worker.overdue_nodes(10**9) == []


def test_works_of_several_nodes_do_not_wait_for_each_other(bench: WorkerBench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S), 1000)
    assert bench.run(2, lambda: "done") == [(2, Outcome("done", None))]
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == [(1, Outcome(True, None))]


def test_what_takes_too_long_is_overdue_until_it_is_forgotten(bench: WorkerBench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S), 1000)
    assert bench.worker.overdue_nodes(999) == []
    assert bench.worker.overdue_nodes(1000) == [1]
    bench.worker.forget(1)
    assert bench.worker.overdue_nodes(1000) == []
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == []


def test_the_late_outcome_of_a_forgotten_work_is_not_taken_for_the_next_ones(bench: WorkerBench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S) and "old", 1000)
    bench.worker.forget(1)
    second = threading.Event()
    bench.worker.start(1, lambda: second.wait(LIMIT_S) and "new", 1000)
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == []
    second.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == [(1, Outcome("new", None))]


def test_work_that_hangs_and_is_asked_for_again_takes_one_thread(bench: WorkerBench) -> None:
    """A resolver that never answers would have taken another thread with each attempt to connect."""
    release = threading.Event()
    started: list[str] = []

    def look_up(name: str) -> str:
        started.append(name)
        release.wait(LIMIT_S)
        return name

    for _ in range(5):
        bench.worker.start(1, lambda: look_up("a"), 1000, key="a")
        bench.worker.forget(1)
    bench.worker.start(1, lambda: look_up("a"), 1000, key="a")
    bench.worker.start(2, lambda: look_up("a"), 1000, key="a")
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == [(1, Outcome("a", None)), (2, Outcome("a", None))]
    assert started == ["a"]
    bench.worker.start(1, lambda: look_up("a"), 1000, key="a")  # done: asked for anew
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.take_finished() == [(1, Outcome("a", None))]
    assert started == ["a", "a"]


def test_work_that_hangs_for_minutes_is_given_up_and_done_anew() -> None:
    """A name server that lets its answer over TCP drip holds the resolver without end: no connection to that host was tried
    again, although the name server had long been mended."""
    clock = ManualClock()
    wakeups: queue.Queue[None] = queue.Queue()
    worker = BackgroundWorker(lambda: wakeups.put(None), clock)
    release = threading.Event()
    worker.start(1, lambda: release.wait(LIMIT_S) and "late", 1000, key="a")
    clock.advance(MIN_HANG_MS)
    second = threading.Event()
    worker.start(1, lambda: second.wait(LIMIT_S) and "new", 1000, key="a")
    release.set()
    wakeups.get(timeout=LIMIT_S)
    assert worker.take_finished() == []
    worker.start(2, lambda: "not asked for", 1000, key="a")  # the second work is still the one to wait for
    second.set()
    wakeups.get(timeout=LIMIT_S)
    assert worker.take_finished() == [(1, Outcome("new", None)), (2, Outcome("new", None))]


def test_a_thread_that_cannot_be_started_is_a_failure_of_the_work(bench: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers limit threads. Raised into the Sender, that would have ended it, and failed all rows."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ((node_id, outcome),) = bench.run(1, lambda: "never")
    assert node_id == 1
    assert isinstance(outcome.error, NetworkError)
    assert "can't start new thread" in outcome.error.message


def test_work_fails_if_no_thread_can_be_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    (outcome,) = outcomes_within([lambda: 5], LIMIT_S * 1000)
    assert outcome is not None
    assert isinstance(outcome.error, NetworkError)


def test_waiting_for_an_outcome_has_a_limit() -> None:
    release = threading.Event()
    assert outcome_within(lambda: release.wait(LIMIT_S), 10) is None
    release.set()
    assert outcome_within(lambda: 5, LIMIT_S * 1000) == Outcome(5, None)


def test_what_is_no_error_of_ours_is_a_defect_without_its_frames() -> None:
    """A defect was called a login that failed, whatever the work was."""

    def fails() -> None:
        password = "canary-7Qx2"
        try:
            raise KeyError(password[:0])
        except KeyError:
            raise ValueError("no such tenant") from None

    error = outcome_of(fails).error
    assert type(error) is KafkaError
    assert str(error) == "[KAFKA_INTERNAL_ERROR] ValueError: no such tenant"
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.__traceback__ is None
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "canary" not in shown
    assert error.__context__ is error.__cause__.__context__ is None


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_work_that_wants_to_end_the_program_has_failed(bench: WorkerBench, end: type[BaseException]) -> None:
    """Its thread ended without an outcome: the node waited for its deadline, and the key was taken for minutes."""

    def ends() -> None:
        raise end(1)

    [(_, outcome)] = bench.run(0, ends)
    assert str(outcome.error) == f"[KAFKA_INTERNAL_ERROR] {end.__name__}: 1"
    assert outcome_within(ends, LIMIT_S * 1000) is not None


def test_our_own_errors_stay_what_they_are() -> None:
    def fails() -> None:
        raise ConfigError("wrong")

    error = outcome_of(fails).error
    assert isinstance(error, ConfigError)
    assert error.__traceback__ is None


def test_works_run_side_by_side_and_those_that_hang_are_left() -> None:
    """Each of the first two ends when the other has begun."""
    first, second, release = threading.Event(), threading.Event(), threading.Event()

    def meets(mine: threading.Event, other: threading.Event) -> bool:
        mine.set()
        return other.wait(LIMIT_S)

    works: list[Callable[[], Any]] = [lambda: meets(first, second), lambda: meets(second, first), lambda: release.wait(LIMIT_S)]
    assert outcomes_within(works, 2_000) == [Outcome(True, None), Outcome(True, None), None]
    release.set()
    assert outcomes_within([], 10) == []


def test_a_work_that_fails_leaves_the_others() -> None:
    failed, done = outcomes_within([lambda: 1 // 0, lambda: 5], LIMIT_S * 1000)
    assert failed is not None
    assert "ZeroDivisionError" in str(failed.error)
    assert done == Outcome(5, None)
