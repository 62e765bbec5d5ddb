"""Who runs `transactions`, and the time."""

from __future__ import annotations

import sys

from spark_kafka_sink.clock import Clock, sleep


class Console:
    """Tests have one of their own."""

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
        """To stderr: what is not part of the result."""
        print(f"{self._prog}: {line}", file=sys.stderr, flush=True)

    def confirms(self, question: str) -> bool:
        """Blocks until a line was entered."""
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def let_pass(self, ms: int) -> None:
        sleep(self._clock, ms)
