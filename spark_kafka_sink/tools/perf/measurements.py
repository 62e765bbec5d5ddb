"""What `perf` counts and prints: rates, latencies and their percentiles, in the words of kafka-producer-perf-test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.metrics import NS_PER_MS

PERCENTILES = (0.5, 0.95, 0.99, 0.999)
LATENCY_NAMES = ("average", "p50", "p95", "p99", "p99.9", "highest")
BUCKET_NS = 100_000  # latencies are counted in tenths of a millisecond
BYTES_PER_MB = 1024 * 1024


class Window:
    """Counts acknowledged records and their latencies. Exact to a tenth of a millisecond for any number of records.
    Not thread-safe."""

    def __init__(self, started_ns: int, kind: str = "") -> None:
        self.records = 0
        self.bytes = 0
        self._kind = kind
        self._started_ns = started_ns
        self._last_ns = started_ns
        self._latency_sum_ns = 0
        self._counts: Counter[int] = Counter()  # records by latency in BUCKET_NS, rounded up

    def add(self, records: int, size_bytes: int, latency_ns: int, settled_ns: int) -> None:
        """Count records that were acknowledged at `settled_ns`, each after `latency_ns`. `size_bytes`: of all of them."""
        self.records += records
        self.bytes += size_bytes
        self._latency_sum_ns += latency_ns * records
        self._last_ns = max(self._last_ns, settled_ns)
        self._counts[-(-latency_ns // BUCKET_NS)] += records

    def percentiles_ms(self) -> list[float]:
        """Latencies that 50, 95, 99 and 99.9 % of the records did not exceed, by nearest rank over all records."""
        buckets = sorted(self._counts)
        ranks = np.cumsum([self._counts[bucket] for bucket in buckets])
        wanted_ranks = np.ceil(np.array(PERCENTILES) * self.records)
        positions = np.searchsorted(ranks, wanted_ranks)
        return [buckets[index] * BUCKET_NS / NS_PER_MS for index in positions.tolist()]

    def _highest_ms(self) -> float:
        """The highest latency, rounded up as percentiles are: none of them exceeds it."""
        return max(self._counts, default=0) * BUCKET_NS / NS_PER_MS

    def figures(self) -> dict[str, object]:
        """What total_line says, for programs. Latencies are null without a record."""
        seconds = max(1, self._last_ns - self._started_ns) / 1e9
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.records / seconds, 1),
            "mb_per_second": round(self.bytes / seconds / BYTES_PER_MB, 3),
            "latency_ms": self._latencies_ms(),
        }

    def _latencies_ms(self) -> dict[str, float | None]:
        if not self.records:
            return dict.fromkeys(LATENCY_NAMES)
        average_ms = self._latency_sum_ns / self.records / NS_PER_MS
        values = (average_ms, *self.percentiles_ms(), self._highest_ms())
        return {name: round(value, 1) for name, value in zip(LATENCY_NAMES, values, strict=True)}

    def line(self, until_ns: int | None = None) -> str:
        """Rates, from the start to the last acknowledgement or `until_ns`, and latencies."""
        seconds = max(1, (until_ns or self._last_ns) - self._started_ns) / 1e9
        average_ms = self._latency_sum_ns / max(1, self.records) / NS_PER_MS
        return (
            f"{self.records}{self._kind} records sent, {self.records / seconds:.1f} records/sec"
            f" ({self.bytes / seconds / BYTES_PER_MB:.2f} MB/sec), {average_ms:.1f} ms avg latency,"
            f" {self._highest_ms():.1f} ms max latency"
        )

    def total_line(self) -> str:
        """What `line` says, and percentiles of the latencies."""
        if not self.records:
            return f"0{self._kind} records sent."
        names = ("50th", "95th", "99th", "99.9th")
        parts = [f"{ms:.1f} ms {name}" for ms, name in zip(self.percentiles_ms(), names, strict=True)]
        return f"{self.line()}, {', '.join(parts)}."


class Measurements:
    """Prints a line each interval and the totals, and keeps the first failure. For columns, the caller's thread counts. For
    single records, the Sender's thread counts, and the caller's only notes an error that stops it."""

    def __init__(self, clock: Clock, interval_ms: int, warmup_records: int, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._interval_ns = interval_ms * NS_PER_MS
        self._warmup_records = warmup_records
        self._say = say
        self.steady_state: Window | None = None
        self.failure_count = 0
        self.error: KafkaError | None = None
        self.begin()

    def begin(self) -> None:
        """Start the time before the first record: what came before, such as init_transactions(), is no part of the rates."""
        self._window_started_ns = self._clock.now_ns()
        self._window = Window(self._window_started_ns)
        self.total = Window(self._window_started_ns)

    def begin_steady_state(self) -> None:
        """Start the steady state: the producer has all records of the warm-up."""
        self.steady_state = Window(self._clock.now_ns(), " steady state")

    def add_acknowledged(self, first: int, records: int, size_bytes: int, started_ns: int, settled_ns: int) -> None:
        """Count records. `first`: the number of the first one, from 0."""
        windows = [self.total, self._window]
        if self.steady_state is not None and first >= self._warmup_records:
            windows.append(self.steady_state)
        for window in windows:
            window.add(records, size_bytes, settled_ns - started_ns, settled_ns)
        self.say_progress()

    def add_failure(self, records: int, error: KafkaError) -> None:
        """Count records that failed, and keep the error if it is the first."""
        self.failure_count += records
        self.error = self.error or error

    def say_progress(self) -> None:
        """Print a line if the interval is over. The next line is about the time after it."""
        now_ns = self._clock.now_ns()
        if now_ns - self._window_started_ns >= self._interval_ns:
            self._say(f"{self._window.line(now_ns)}.")
            self._window_started_ns, self._window = now_ns, Window(now_ns)

    def until_next_line_ms(self) -> int:
        return max(1, (self._window_started_ns + self._interval_ns - self._clock.now_ns()) // NS_PER_MS)

    def figures(self) -> dict[str, object]:
        """The totals for programs: of all records, and of the steady state, which is null without --warmup-records."""
        steady_state = None if self.steady_state is None else self.steady_state.figures()
        error = None if self.error is None else str(self.error)
        return {**self.total.figures(), "steady_state": steady_state, "failed_records": self.failure_count, "error": error}

    def say_totals(self) -> None:
        """Print a line about all records, and one about the steady state if there was a warm-up."""
        self._say(self.total.total_line())
        if self.steady_state is not None:
            self._say(self.steady_state.total_line())
