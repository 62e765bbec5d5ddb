"""patience.py: who waits hears a word, and only then."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from spark_kafka_sink.tools.patience import PATIENCE_S, say_if_slow

LIMIT_S = 60


def test_a_word_is_said_once_while_the_block_runs() -> None:
    said = threading.Event()
    words: list[str] = []

    def say() -> None:
        words.append("still at it")
        said.set()

    with say_if_slow(say, 0):
        assert said.wait(LIMIT_S)
    assert words == ["still at it"]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_after_the_block_nothing_is_said_and_no_thread_is_left(error: BaseException | None) -> None:
    words: list[str] = []
    before = set(threading.enumerate())
    try:
        with say_if_slow(lambda: words.append("late"), LIMIT_S):
            (timer,) = set(threading.enumerate()) - before
            if error is not None:
                raise error
    except KeyboardInterrupt:
        assert error is not None
    timer.join(LIMIT_S)
    assert not timer.is_alive()
    assert words == []


def test_the_word_comes_after_the_seconds_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Mock()
    monkeypatch.setattr(threading, "Timer", timer)
    with say_if_slow(lambda: None):
        pass
    ((after_s, _), _) = timer.call_args
    assert PATIENCE_S < after_s < PATIENCE_S + 1
