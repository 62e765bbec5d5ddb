"""Interrupts, and errors for want of memory, at points that a test names.

Python looks for signals where a function begins, where a call of a C function has returned, and where a loop goes back.
Interrupts counts these points in one thread, in frames of the package and of the standard library's helpers that it uses, and
raises KeyboardInterrupt at those that the test names.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

WHERE = ("spark_kafka_sink", "contextlib.py", "threading.py")


def may_be_interrupted(event: str, called: object) -> bool:
    """Whether Python looks for signals at this event of a profiler: where a function begins, or a C function has returned.

    Where `__enter__` of a C class returns to its `with` is a point in Python 3.14 only (python/cpython#148874). Nothing can be
    promised there, and it is left out.
    """
    return event == "call" or (event == "c_return" and getattr(called, "__name__", "") != "__enter__")


class Interrupted:
    """Runs a function and raises KeyboardInterrupt in it once, where Python looks for signals: at its n-th call or return."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.happened = False
        self.where = ""

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        if not may_be_interrupted(event, called) or "spark_kafka_sink" not in frame.f_code.co_filename:
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.happened = True
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt

    def run(self, function: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            function()
        except KeyboardInterrupt:
            assert self.happened
        finally:
            sys.setprofile(before)


class Interrupts:
    """Raises KeyboardInterrupt at each of these points, counted from 0, while it is the context.

    Python 3.12 traces the loops of a function from its second call on: a test that needs all points counts those of a second run.
    """

    raises: type[BaseException] = KeyboardInterrupt

    def __init__(self, *at: int) -> None:
        self._at = sorted(at, reverse=True)
        self._is_on = False
        self.points = 0
        self.places: dict[str, list[int]] = {}  # each place in the sources -> its points
        self.where: list[str] = []  # they came

    def __enter__(self) -> Interrupts:
        self._is_on = True
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False
        sys.settrace(None)
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, called: object) -> None:
        self._go_on()
        if may_be_interrupted(event, called):
            self._point(frame, event)

    def _go_on(self) -> None:
        """Python removes a profiler that has raised, or a tracer: the other one sets it again, for the points that are left."""
        if self._at and self._is_on:
            if sys.getprofile() is None:
                sys.setprofile(self._profile)
            if sys.gettrace() is None:
                sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        """For loops."""
        self._go_on()
        jumps = _jumps_back(frame.f_code) if _is_ours(frame.f_code.co_filename) else frozenset[int]()
        if not jumps:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in jumps:
            self._point(frame, "loop")
        return self._trace

    def _point(self, frame: FrameType, event: str) -> None:
        if not _is_ours(frame.f_code.co_filename):
            return
        point, self.points = self.points, self.points + 1
        place = f"{frame.f_code.co_filename.rpartition('spark_kafka_sink/')[2]}:{frame.f_lineno} {event}"
        self.places.setdefault(place, []).append(point)
        if self._at and point >= self._at[-1]:
            self._at.pop()
            self.where.append(place)
            if not self._at:
                sys.setprofile(None)
                sys.settrace(None)
            raise self.raises


class MemoryErrors(Interrupts):
    """Raises MemoryError instead, where functions begin: there is no memory for their frames."""

    raises = MemoryError

    def _point(self, frame: FrameType, event: str) -> None:
        if event == "call":
            super()._point(frame, event)


def places_of(interrupts: Interrupts) -> list[int]:
    """Points: the first and the last time that each place in the sources was passed."""
    return sorted({point for points in interrupts.places.values() for point in (points[0], points[-1])})


@cache
def _jumps_back(code: CodeType) -> frozenset[int]:
    """Where in the code Python looks for signals before it goes back."""
    return frozenset(
        each.offset for each in dis.get_instructions(code) if "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname
    )


@cache
def _is_ours(file: str) -> bool:
    return any(each in file for each in WHERE)
