"""Counts what a call does, for tests that compare the work of two calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(function: Callable[[], object]) -> int:
    """How many lines of the package a call runs, each as often as it is run: work that can be compared, unlike time.

    Not instructions: Python 3.12 and later tell of them at times and at times not.
    """
    steps = 0

    def look(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if "spark_kafka_sink" not in frame.f_code.co_filename:
            return None
        steps += event == "line"
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps
