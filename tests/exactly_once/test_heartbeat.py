"""exactly_once/heartbeat.py: a task that is at work shows it every few seconds, and is never harmed by that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from spark_kafka_sink.clock import Clock, Waitable
from spark_kafka_sink.errors import AuthorizationError
from spark_kafka_sink.exactly_once.heartbeat import INTERVAL_MS, Heartbeat
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions.command import build_parser
from tests.fakes.clock import ManualClock
from tests.interrupts import Interrupted

GROUP, PLACE = "P-q-heartbeat", TopicPartition("t", 0)
LIMIT_S = 30


class FakeClient:
    """Keeps what is committed. `answers` is called for each commit, after it was kept."""

    def __init__(self, clock: ManualClock, answers: Callable[[], object] = lambda: None) -> None:
        self._clock = clock
        self._answers = answers
        self._changed = threading.Condition()
        self.commits: list[tuple[str, dict[TopicPartition, tuple[int, str]], int]] = []
        self.threads: list[threading.Thread] = []
        self.lent = self.returned = 0

    @contextmanager
    def lend(self) -> Iterator[Any]:
        self.lent += 1
        self.threads.append(threading.current_thread())
        yield self
        self.returned += 1

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, tuple[int, str]], *, timeout_ms: int | None = None
    ) -> None:
        assert timeout_ms is not None
        with self._changed:
            self.commits.append((group_id, dict(offsets), timeout_ms))
            self._changed.notify_all()
        self._answers()

    def wait_for(self, commits: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.commits) >= commits, LIMIT_S)

    def wait_for_the_end(self) -> None:
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


class StandingClock(ManualClock):
    """No time passes: `wait` waits for the end of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_ms: list[int] = []
        self.is_waiting = threading.Event()

    def wait(self, condition: Waitable, timeout_ms: int) -> bool:
        self.asked_ms.append(timeout_ms)
        self.is_waiting.set()
        return condition.wait(LIMIT_S)


@contextmanager
def task_at_work(lend: Callable[[], Any], clock: Clock | None = None) -> Iterator[None]:
    heartbeat = Heartbeat(lend, GROUP, PLACE, clock or Clock())
    with heartbeat.liveness_lock:
        heartbeat.start()
        yield


def heartbeat_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "kafka-exactly-once-heartbeat"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_task_at_work_commits_the_time_every_few_seconds_through_one_client() -> None:
    clock = ManualClock()
    client = FakeClient(clock)
    began_ms = clock.wall_ms()
    with task_at_work(client.lend, clock):
        client.wait_for(3)
    client.wait_for_the_end()
    assert [(group, timeout_ms) for group, _, timeout_ms in client.commits[:3]] == [(GROUP, INTERVAL_MS)] * 3
    offsets = [offsets for _, offsets, _ in client.commits[:3]]
    assert offsets == [{PLACE: (began_ms + number * INTERVAL_MS, "")} for number in (1, 2, 3)]
    assert (client.lent, client.returned) == (1, 1)


@pytest.mark.parametrize("verb", ["abort", "commit"])
def test_a_heartbeat_with_a_slow_answer_is_within_the_default_of_watch_seconds(verb: str) -> None:
    arguments = build_parser().parse_args([verb, "--prefix", "orders", "--bootstrap-servers", "localhost:9092"])
    assert 1000 * arguments.watch_seconds > INTERVAL_MS + INTERVAL_MS  # its wait, and its time-out


def test_a_task_that_ends_before_the_first_heartbeat_takes_no_client() -> None:
    clock = StandingClock()
    client = FakeClient(clock)
    with task_at_work(client.lend, clock):
        assert clock.is_waiting.wait(LIMIT_S)
        (thread,) = heartbeat_threads()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert clock.asked_ms == [INTERVAL_MS]
    assert client.lent == 0


def test_a_heartbeat_that_fails_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        code = Errors.GROUP_AUTHORIZATION_FAILED.number
        raise AuthorizationError("Grant the user READ on the group 'P-q-r1-heartbeat'", error_code=code)

    clock = ManualClock()
    client = FakeClient(clock, refuse)
    with task_at_work(client.lend, clock):
        client.wait_for(3)
    client.wait_for_the_end()
    (warning,) = warnings(caplog)
    assert "`transactions abort` may take its query for dead" in warning
    assert "Grant the user READ on the group 'P-q-r1-heartbeat'" in warning


@pytest.mark.parametrize("error", [OSError("too many open files"), ValueError("a\nforged line")], ids=["OSError", "ValueError"])
def test_whatever_befalls_the_heartbeat_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    has_failed = threading.Event()

    def lend() -> Any:
        has_failed.set()
        raise error

    with task_at_work(lend, ManualClock()):
        assert has_failed.wait(LIMIT_S)
        for thread in heartbeat_threads():
            thread.join(LIMIT_S)
    (warning,) = warnings(caplog)
    assert type(error).__name__ in warning
    assert "\n" not in warning


def test_a_thread_that_cannot_start_fails_no_task(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    client = FakeClient(ManualClock())
    with task_at_work(client.lend):
        pass
    assert "can't start new thread" in warnings(caplog)[0]


def test_the_end_of_the_task_does_not_wait_for_an_answer() -> None:
    answered = threading.Event()
    clock = ManualClock()
    client = FakeClient(clock, lambda: answered.wait(LIMIT_S))
    try:
        with task_at_work(client.lend, clock):
            client.wait_for(1)
        assert client.threads[0].is_alive()
        assert client.threads[0].daemon
    finally:
        answered.set()
    client.wait_for_the_end()
    assert len(client.commits) == 1
    assert client.returned == 1


def test_a_task_that_fails_shows_no_heartbeat_any_more() -> None:
    clock = ManualClock()
    client = FakeClient(clock)
    with pytest.raises(KeyError), task_at_work(client.lend, clock):  # noqa: PT012
        client.wait_for(1)
        raise KeyError
    client.wait_for_the_end()


def test_wherever_a_task_is_interrupted_its_heartbeat_ends() -> None:
    """Where its `__exit__` began, or in its `__enter__`, an interrupt left the thread at work for ever."""

    def work() -> None:
        clock = ManualClock()
        client = FakeClient(clock)
        with task_at_work(client.lend, clock):
            client.wait_for(1)

    at, happened = 0, True
    while happened:
        interrupted = Interrupted(at)
        interrupted.run(work)
        for thread in heartbeat_threads():
            thread.join(LIMIT_S)
            assert not thread.is_alive(), interrupted.where
        at, happened = at + 1, interrupted.happened
    assert at > 1  # Python 3.13 looks for signals at fewer places


def test_the_group_of_the_heartbeat_is_the_owners_and_of_no_other_kind() -> None:
    names = PrefixNames("P")
    assert names.heartbeat_group("q") == GROUP
    assert GROUP.startswith(names.id_prefix)
    others = {names.marker_group("q", 0), names.decision_group("q"), names.overflow_group("q", 0), names.width_group("q", 0)}
    assert GROUP not in {*others, names.aborted_group}
    assert names.parse(GROUP) is None
