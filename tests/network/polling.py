"""Polls a Selector until something has happened."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.network.selector import Selector


def poll_until(selector: Selector, condition: Callable[[], bool], polls: int = 2000) -> None:
    for _ in range(polls):
        selector.poll(100)
        if condition():
            return
    raise AssertionError("it did not happen")
