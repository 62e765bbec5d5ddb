"""network/background.py: work beside the Sender's thread, and what of it comes back."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.background import BackgroundWorker, Outcome, outcome_of

LIMIT_S = 30


class Bench:
    def __init__(self) -> None:
        self.wakeups: queue.Queue[None] = queue.Queue()
        self.worker = BackgroundWorker(lambda: self.wakeups.put(None))

    def run(self, node_id: int, work: Callable[[], Any]) -> list[tuple[int, Outcome]]:
        self.worker.start(node_id, work, 1000)
        self.wakeups.get(timeout=LIMIT_S)
        return self.worker.finished()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_work_is_done_on_another_thread_and_its_result_comes_once(bench: Bench) -> None:
    ((node_id, outcome),) = bench.run(3, threading.current_thread)
    assert node_id == 3
    assert outcome.result is not threading.current_thread()
    assert outcome.result.daemon  # a callback that hangs must not keep the interpreter from ending
    assert bench.worker.finished() == []
    assert bench.worker.overdue(10**9) == []


def test_works_of_several_nodes_do_not_wait_for_each_other(bench: Bench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S), 1000)
    assert bench.run(2, lambda: "done") == [(2, Outcome("done", None))]
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.finished() == [(1, Outcome(True, None))]


def test_what_takes_too_long_is_overdue_until_it_is_forgotten(bench: Bench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S), 1000)
    assert bench.worker.overdue(999) == []
    assert bench.worker.overdue(1000) == [1]
    bench.worker.forget(1)
    assert bench.worker.overdue(1000) == []
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.finished() == []


def test_the_late_outcome_of_a_forgotten_work_is_not_taken_for_the_next_ones(bench: Bench) -> None:
    release = threading.Event()
    bench.worker.start(1, lambda: release.wait(LIMIT_S) and "old", 1000)
    bench.worker.forget(1)
    second = threading.Event()
    bench.worker.start(1, lambda: second.wait(LIMIT_S) and "new", 1000)
    release.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.finished() == []
    second.set()
    bench.wakeups.get(timeout=LIMIT_S)
    assert bench.worker.finished() == [(1, Outcome("new", None))]


def test_what_foreign_code_raises_is_an_authentication_error_without_its_frames() -> None:
    def fails() -> None:
        password = "canary-7Qx2"
        try:
            raise KeyError(password[:0])
        except KeyError:
            raise ValueError("no such tenant") from None

    error = outcome_of(fails).error
    assert isinstance(error, AuthenticationError)
    assert str(error) == "[KAFKA_LOGIN_FAILED] ValueError: no such tenant"
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "canary" not in shown
    assert error.__context__ is None


def test_our_own_errors_stay_what_they_are() -> None:
    def fails() -> None:
        raise ConfigError("wrong")

    error = outcome_of(fails).error
    assert isinstance(error, ConfigError)
    assert error.__traceback__ is None
