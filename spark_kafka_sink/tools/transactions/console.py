"""The terminal and the clock of `transactions`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.tools.patience import PATIENCE_S, say_if_slow


class Console:
    """Prints, asks and waits. Tests replace it."""

    def __init__(self, prog: str = "transactions") -> None:
        self._prog = prog
        self._clock = Clock()

    @property
    def is_terminal(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)

    def note(self, line: str) -> None:
        """Print to stderr what is not part of the result."""
        print(f"{self._prog}: {line}", file=sys.stderr, flush=True)

    @contextmanager
    def note_if_slow(self, what: str) -> Iterator[None]:
        """Print a note if the block, which asks brokers, takes long."""
        with say_if_slow(lambda: self.note(f"brokers have been asked {what} for {PATIENCE_S} s; --timeout-ms limits each step")):
            yield

    def confirms(self, question: str) -> bool:
        """Ask a question. Blocks until a line was entered; False at the end of the input."""
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def let_pass(self, ms: int) -> None:
        sleep(self._clock, ms)
