"""A clock whose hands only the test moves."""

from __future__ import annotations

from spark_kafka_sink.clock import Clock, Waitable


class ManualClock(Clock):
    """Starts at 1,000,000 ms. `auto_tick_ms` moves it at every look, for loops that would otherwise never end."""

    def __init__(self, now_ms: int = 1_000_000, auto_tick_ms: int = 0) -> None:
        self._now_ms = now_ms
        self.auto_tick_ms = auto_tick_ms

    def now_ms(self) -> int:
        self._now_ms += self.auto_tick_ms
        return self._now_ms

    def now_ns(self) -> int:
        return self._now_ms * 1_000_000

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms()

    def wall_s(self) -> float:
        return self.wall_ms() / 1000

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        """Let other threads run; when nobody notifies, the whole time-out passes at once."""
        notified = waitable.wait(0.001)
        if not notified:
            self._now_ms += timeout_ms
        return notified

    def advance(self, ms: int) -> None:
        self._now_ms += ms
