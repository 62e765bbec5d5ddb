"""metrics.py: windows of values, and what is read of them. The scenarios of Kafka's MetricsTest, RateTest, AvgTest, MaxTest that
concern sampled values."""

from __future__ import annotations

import pytest

from spark_kafka_sink.metrics import (
    Samples,
    Stat,
    average_and_max,
    count_meter,
    gauge,
    markdown_rows,
    meter,
    snapshot,
    time_and_share,
    total,
)

START_MS = 1_000_000
WINDOW_MS = 1000


class StatInWindows:
    """One Stat with every reading there is, in two windows of a second; the test says when."""

    METRICS = (
        *meter("bytes", "stat", "Bytes."),
        *count_meter("calls", "stat", "Calls."),
        *average_and_max("size", "stat", "Size."),
        *time_and_share("busy", "stat", "Time."),
        *gauge("now", "Known elsewhere."),
    )

    def __init__(self, windows: int = 2) -> None:
        self.samples = Samples(WINDOW_MS, windows, START_MS)
        self.stat = self.samples.stat()

    def record(self, value: float, at_ms: int) -> None:
        self.samples.roll(START_MS + at_ms)
        self.stat.record(value)

    def read(self, at_ms: int, *, since_start: bool = False) -> dict[str, float]:
        return snapshot(self.samples, self.METRICS, self, START_MS + at_ms, since_start=since_start)


def test_nothing_recorded_reads_as_zero() -> None:
    assert set(StatInWindows().read(0).values()) == {0}
    assert set(StatInWindows().read(0, since_start=True).values()) == {0}


def test_a_gauge_is_left_to_whoever_knows_it() -> None:
    assert "now" not in StatInWindows().read(0)


def test_averages_and_maxima_are_of_the_last_windows() -> None:
    measured = StatInWindows()
    measured.record(100, 0)
    measured.record(10, 1000)
    measured.record(20, 2000)
    assert (measured.read(2000)["size-max"], measured.read(2000)["size-avg"]) == (100, 130 / 3)
    assert (measured.read(3000)["size-max"], measured.read(3000)["size-avg"]) == (20, 15)
    measured.record(30, 3500)
    assert (measured.read(3500)["size-max"], measured.read(3500)["size-avg"]) == (30, 20)
    assert measured.read(10_000)["size-max"] == measured.read(10_000)["size-avg"] == 0


def test_totals_and_the_whole_life_forget_nothing() -> None:
    measured = StatInWindows()
    for second, value in enumerate([100, 10, 20, 30, 40]):
        measured.record(value, 1000 * second)
    assert (measured.read(90_000)["bytes-total"], measured.read(90_000)["calls-total"]) == (200, 5)
    whole = measured.read(10_000, since_start=True)
    assert (whole["size-max"], whole["size-avg"], whole["bytes-rate"], whole["calls-rate"]) == (100, 40, 20, 0.5)


def test_a_rate_of_the_first_moment_counts_as_much_time_as_full_windows_would() -> None:
    measured = StatInWindows(windows=3)
    measured.record(600, 0)
    assert measured.read(0)["bytes-rate"] == 600 / 2
    assert measured.read(500)["bytes-rate"] == 600 / 2.5
    assert measured.read(1500)["bytes-rate"] == 600 / 2.5  # one window is full, one more is assumed
    assert measured.read(2500)["bytes-rate"] == 600 / 2.5


def test_an_even_flow_has_its_rate() -> None:
    measured = StatInWindows()
    for at_ms in range(0, 20_000, 100):
        measured.record(7, at_ms)
        if at_ms > 4000:
            assert measured.read(at_ms)["bytes-rate"] == pytest.approx(70, rel=0.05)
            assert measured.read(at_ms)["calls-rate"] == pytest.approx(10, rel=0.05)


def test_a_pause_ends_the_windows_before_it() -> None:
    measured = StatInWindows()
    measured.record(1000, 0)
    measured.record(6, 60_000)
    read = measured.read(60_500)
    assert (read["size-avg"], read["size-max"]) == (6, 6)
    assert read["bytes-rate"] == 6 / 1.5


def test_a_ratio_is_measured_time_over_the_time_of_the_windows() -> None:
    measured = StatInWindows()
    measured.record(750_000_000, 0)
    assert measured.read(500)["busy-ratio"] == 0.5
    assert measured.read(500)["busy-time-ns-total"] == 750_000_000


def test_several_values_may_be_added_at_once() -> None:
    measured = StatInWindows()
    measured.stat.add(10, 100, largest=30)
    measured.stat.add(10, 300, largest=20)
    assert (measured.read(0)["size-avg"], measured.read(0)["size-max"], measured.read(0)["calls-total"]) == (20, 30, 20)


def test_a_stat_that_is_watched_later_keeps_its_totals() -> None:
    samples = Samples(WINDOW_MS, 2, START_MS)
    stat = Stat()
    stat.record(5)
    samples.watch(stat)
    stat.record(7)
    assert samples.read(stat, START_MS, since_start=False).total == 7
    assert samples.read(stat, START_MS, since_start=True).total == 12


def test_after_a_restart_the_start_is_then_and_windows_go_on() -> None:
    measured = StatInWindows()
    measured.record(100, 0)
    measured.record(40, 400)
    measured.samples.restart(START_MS + 500)
    assert set(measured.read(500, since_start=True).values()) == {0}
    measured.record(20, 1500)
    measured.record(10, 2500)
    since = measured.read(2500, since_start=True)
    assert (since["bytes-total"], since["calls-total"], since["size-max"], since["size-avg"]) == (30, 2, 20, 15)
    assert since["calls-rate"] == 1
    assert (measured.read(1600)["size-max"], measured.read(2500)["bytes-total"]) == (100, 170)


def test_windows_do_not_pile_up() -> None:
    measured = StatInWindows()
    for second in range(50):
        measured.record(1, 1000 * second)
    assert len(measured.stat.marks) == 3


def test_neighbours_with_one_sentence_share_a_row() -> None:
    assert markdown_rows([*meter("a", "s", "Of a."), *total("b", "s", "Of b.")]) == [
        "| `a-total`, `a-rate` | Of a. |",
        "| `b` | Of b. |",
    ]
