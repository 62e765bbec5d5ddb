"""producer_perf: its statistics, throttle and payloads, then whole runs with a real broker."""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.perf import command as producer_perf
from spark_kafka_sink.tools.perf.command import build_parser, producer_options
from spark_kafka_sink.tools.perf.measurements import LATENCY_NAMES, NS_PER_MS, Measurements, Window
from spark_kafka_sink.tools.perf.payloads import POOL_BYTES, payloads
from spark_kafka_sink.tools.perf.sending import Sending, ThroughputThrottler, chunk_records, chunks
from spark_kafka_sink.tools.perf.transaction_pace import TransactionPace
from tests.fakes.clock import ManualClock
from tests.integration.reading import ReadTopic, Topic

NEEDED = ["--topic", "t", "--num-records", "100"]
S = 1000 * NS_PER_MS


# STATISTICS


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3000)), min_size=1, max_size=30))
def test_percentiles_count_every_record_of_a_chunk(waits: list[tuple[int, int]]) -> None:
    """As if each record were counted by itself: the smallest latency that so many records did not exceed."""
    measured = Window(0)
    for records, ms in waits:
        measured.add(records, records, ms * NS_PER_MS, S)
    single = sorted(ms for records, ms in waits for _ in range(records))
    for part, percentile in zip((0.5, 0.95, 0.99, 0.999), measured.percentiles_ms(), strict=True):
        assert percentile == next(ms for rank, ms in enumerate(single, 1) if rank >= part * len(single))


def test_average_and_maximum_are_of_records_and_rates_end_with_the_last_answer() -> None:
    measured = Window(5 * S)
    measured.add(3, 3 * 1024 * 1024, 10 * NS_PER_MS, 7 * S)
    measured.add(1, 1024 * 1024, 50 * NS_PER_MS, 6 * S)
    average = statistics.mean([10, 10, 10, 50])
    assert measured.line() == f"4 records sent, 2.0 records/sec (2.00 MB/sec), {average:.1f} ms avg latency, 50.0 ms max latency"
    assert measured.total_line().endswith(", 10.0 ms 50th, 50.0 ms 95th, 50.0 ms 99th, 50.0 ms 99.9th.")


def test_without_acknowledged_records_no_rates_are_printed() -> None:
    assert Window(0).total_line() == "0 records sent."


def test_a_latency_is_never_rounded_down() -> None:
    measured = Window(0)
    measured.add(1, 1, 1, 1)
    assert measured.percentiles_ms() == [0.1] * 4


def test_no_percentile_exceeds_the_highest_latency() -> None:
    """Percentiles were rounded up and the highest was not: p50 was 157.4 ms, and the highest 157.3."""
    measured = Window(0)
    measured.add(1, 1, 157_310_000, S)
    assert measured.figures()["latency_ms"] == {**dict.fromkeys(LATENCY_NAMES, 157.4), "average": 157.3}
    assert "157.4 ms max latency, 157.4 ms 50th" in measured.total_line()


def test_a_line_is_printed_each_interval_for_the_records_since_the_last() -> None:
    clock, said = ManualClock(), list[str]()
    report = Measurements(clock, 1000, 0, said.append)
    for number in range(4):
        now_ns = clock.now_ns()
        clock.advance(500)
        report.add_acknowledged(number, 10, 0, now_ns, clock.now_ns())
    assert said == ["20 records sent, 20.0 records/sec (0.00 MB/sec), 500.0 ms avg latency, 500.0 ms max latency."] * 2
    assert report.total.records == 40


def test_the_steady_state_leaves_the_warm_up_out_even_if_acknowledged_later() -> None:
    clock, said = ManualClock(), list[str]()
    report = Measurements(clock, 10_000, 10, said.append)
    clock.advance(5000)
    report.begin_steady_state()
    started_ns = clock.now_ns()
    clock.advance(1000)
    report.add_acknowledged(10, 20, 0, started_ns, clock.now_ns())
    report.add_acknowledged(0, 10, 0, started_ns - 5 * S, clock.now_ns())
    report.say_totals()
    assert said[0].startswith("30 records sent, 5.0 records/sec")
    assert said[1].startswith("20 steady state records sent, 20.0 records/sec (0.00 MB/sec), 1000.0 ms avg latency")


def test_the_first_failure_is_kept() -> None:
    report = Measurements(ManualClock(), 1000, 0, lambda _: None)
    report.add_failure(2, KafkaError("first"))
    report.add_failure(3, KafkaError("second"))
    assert (report.failure_count, str(report.error)) == (5, "[KAFKA_ERROR] first")


# RATE AND CHUNKS


def test_the_throttle_waits_until_the_rate_is_kept_and_catches_up_after_a_pause() -> None:
    clock = ManualClock()
    throttle = ThroughputThrottler(1000, clock)
    started_ms = clock.now_ms()
    throttle.wait(500)
    assert clock.now_ms() - started_ms == 500
    clock.advance(2000)
    assert throttle.early_ms(2000) <= 0
    assert throttle.early_ms(3000) == 500
    assert ThroughputThrottler(-1, clock).early_ms(10**9) == 0


@given(st.integers(1, 500), st.integers(1, 100), st.integers(0, 600))
def test_chunks_hold_every_record_once_and_the_warm_up_ends_one(records: int, size: int, warmup: int) -> None:
    parts = list(chunks(records, size, warmup))
    assert [number for first, count in parts for number in range(first, first + count)] == list(range(records))
    assert all(1 <= count <= size for _, count in parts)
    assert warmup >= records or warmup in {first for first, _ in parts}


@pytest.mark.parametrize(("throughput", "rows"), [("-1", 10_000), ("5000000", 10_000), ("5000", 50), ("20", 1)])
def test_a_throttled_chunk_is_what_ten_milliseconds_allow(throughput: str, rows: int) -> None:
    assert chunk_records(build_parser().parse_args([*NEEDED, "--record-size", "1", "--throughput", throughput])) == rows


# CTRL-C


def test_ctrl_c_prints_the_totals_so_far(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: Sending) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sending, "send_columns", interrupt)
    assert producer_perf.main([*NEEDED, "--record-size", "1", "--bootstrap-servers", "127.0.0.1:1"]) == 130
    shown = capsys.readouterr()
    assert shown.out == "0 records sent.\n"
    assert shown.err.endswith(": interrupted\n")


# PAYLOADS


def test_random_payloads_have_their_size_and_differ() -> None:
    take = payloads(build_parser().parse_args([*NEEDED, "--record-size", "100"]))
    values = take(0, 100).to_pylist()
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == 100
    assert all(re.fullmatch(rb"[A-Z]+", value) for value in values)
    assert take(90, 30).to_pylist() == values[90:] + values[:20]


def test_a_record_may_be_larger_than_the_pool() -> None:
    take = payloads(build_parser().parse_args(["--topic", "t", "--num-records", "3", "--record-size", "1000000"]))
    assert pc.binary_length(take(1, 2)).to_pylist() == [1_000_000] * 2


@pytest.mark.parametrize("size", [3_500, 200_000, POOL_BYTES + 1])
def test_large_payloads_take_no_more_memory_than_small_ones(size: int) -> None:
    """The pool had at least 10,000 records, and a chunk too: up to 2 GiB, and 10 GB with records of 1 MB."""
    arguments = build_parser().parse_args([*NEEDED, "--num-records", "20000", "--record-size", str(size)])
    take, count = payloads(arguments), chunk_records(arguments)
    values = [take(first, count) for first in (0, count, 5 * count)]
    assert {buffer.address for each in values for buffer in each.buffers() if buffer} == {
        buffer.address for buffer in values[0].buffers() if buffer
    }
    assert count * size <= max(size, POOL_BYTES)
    assert sum(buffer.size for buffer in values[0].buffers() if buffer) <= max(size, POOL_BYTES) + 4 * (count + 1)


def test_payloads_of_a_file_are_its_parts_without_empty_ones_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_text("eins\nzwei\n\n", encoding="utf-8")
    assert set(payloads(_parsed("--payload-file", str(file)))(0, 500).to_pylist()) == {"eins", "zwei"}
    file.write_text("a;b;ü", encoding="utf-8")
    take = payloads(_parsed("--payload-file", str(file), "--payload-delimiter", ";"))
    assert set(take(0, 500).to_pylist()) == {"a", "b", "ü"}


@pytest.mark.parametrize(
    ("delimiter", "parts"),
    [
        ("\\r\\n", {"a", "b\rc\nd"}),
        ("\r\n", {"a", "b\rc\nd"}),
        ("\\n", {"a\r", "b\rc", "d\r"}),
        ("\\r", {"a", "\nb", "c\nd", "\n"}),
    ],
)
def test_payloads_of_a_file_keep_its_line_ends(delimiter: str, parts: set[str], tmp_path: Path) -> None:
    """Python read each as one \\n: no payload ended at \\r\\n, and payloads with \\r were written with other bytes."""
    (tmp_path / "payloads").write_bytes(b"a\r\nb\rc\nd\r\n")
    take = payloads(_parsed("--payload-file", str(tmp_path / "payloads"), "--payload-delimiter", delimiter))
    assert set(take(0, 500).to_pylist()) == parts


def test_monotonic_payloads_count_up_from_the_first_record() -> None:
    assert payloads(_parsed("--payload-monotonic"))(8, 3).to_pylist() == ["8", "9", "10"]


def _parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args([*NEEDED, *arguments])


# ARGUMENTS


def test_an_address_overrides_properties_and_these_override_a_file(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("bootstrap.servers=file:1\nacks=1\nlinger.ms=7\n")
    for names in (["--command-config", "--command-property"], ["--producer.config", "--producer-props"]):
        arguments = [names[0], str(file), names[1], "acks=all", "bootstrap.servers=props:1", "--bootstrap-server", "named:1"]
        assert producer_options(_parsed("--payload-monotonic", *arguments)) == {
            "client.id": "perf-producer-client",
            "bootstrap.servers": "named:1",
            "acks": "all",
            "linger.ms": "7",
        }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record-size", "1"], "--bootstrap-servers is missing"),
        (["--payload-file", "/none", "--bootstrap-server", "b:1"], "--payload-file /none cannot be read"),
        (["--record-size", "1", "--command-config", "/none"], "--command-config /none cannot be read"),
    ],
)
def test_what_is_missing_is_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert producer_perf.main([*NEEDED, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"perf: error: {said}")
    assert error.count("\n") == 1


def test_an_empty_payload_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(UsageError, match="contains no payload"):
        payloads(_parsed("--payload-file", str(tmp_path / "empty")))


@pytest.mark.parametrize(
    "arguments", [[], ["--record-size", "1", "--payload-monotonic"], ["--record-size", "0"], ["--record-size", "1", "--nope"]]
)
def test_conflicting_and_unknown_arguments_end_with_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        producer_perf.main([*NEEDED, *arguments])
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    "arguments",
    [*(["--record-size", "1", "--throughput", text] for text in ("nan", "inf", "1e-320", "x")), ["--record-size", "3000000000"]],
)
def test_numbers_out_of_range_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args([*NEEDED, *arguments])
    assert exit_.value.code == 2
    assert f"'{arguments[-1]}' is " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-1", "0", "0.5", "50000"])
def test_any_other_number_is_a_throughput(text: str) -> None:
    assert build_parser().parse_args([*NEEDED, "--record-size", "1", "--throughput", text]).throughput == float(text)


def test_a_secret_among_the_properties_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        producer_perf.main([*NEEDED, "--record-size", "1", "--producer-props", "hunter2"])
    assert "hunter2" not in capsys.readouterr().err


def test_a_configuration_that_the_producer_refuses_ends_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--record-size", "1", "--bootstrap-server", "b:1", "--producer-props", "acks=7"]
    assert producer_perf.main([*NEEDED, *arguments]) == 2
    assert capsys.readouterr().err.startswith("perf: error: [KAFKA_INVALID_CONFIG] ")


# RUNS

TOTAL = (
    r"{records} records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency,"
    r" [\d.]+ ms 50th, [\d.]+ ms 95th, [\d.]+ ms 99th, [\d.]+ ms 99.9th\."
)


@pytest.mark.parametrize("mode", [[], ["--single"]], ids=["columns", "single"])
def test_every_record_is_in_the_topic_and_in_the_summaries(
    mode: list[str],
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(3)
    arguments = ["--topic", name, "--num-records", "25000", "--payload-monotonic", "--throughput", "-1", *mode]
    arguments += ["--bootstrap-server", broker.bootstrap_servers, "--warmup-records", "5000", "--reporting-interval", "1"]
    assert producer_perf.main([*arguments, "--print-metrics", "--producer-props", "compression.type=lz4"]) == 0
    assert sorted(int(record.value or b"") for record in read_topic(name)) == list(range(25_000))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert any(re.fullmatch(TOTAL.format(records=25_000), line) for line in lines)
    assert any(re.fullmatch(TOTAL.format(records="20000 steady state"), line) for line in lines)
    windows = [int(line.split()[0]) for line in lines if line.endswith("max latency.")]
    assert 0 < sum(windows) <= 25_000
    totals = dict(re.findall(r"^producer-metrics:record-(send|retry)-total +: (\d+)\.000$", out, re.MULTILINE))
    assert int(totals["send"]) == 25_000 + int(totals["retry"])
    assert any(line.startswith(f"producer-topic-metrics:byte-total:{{topic={name}}}") for line in lines)


def test_the_given_rate_is_kept(broker: LocalKafka, topic: Topic, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--topic", topic(), "--num-records", "600", "--record-size", "10", "--throughput", "1000"]
    assert producer_perf.main([*arguments, "--bootstrap-server", broker.bootstrap_servers]) == 0
    said = re.search(r"600 records sent, ([\d.]+) records/sec", capsys.readouterr().out)
    assert said is not None
    assert float(said[1]) <= 1020


@pytest.mark.parametrize("mode", [[], ["--single"]], ids=["columns", "single"])
def test_a_record_that_brokers_refuse_ends_the_run_with_exit_code_1(
    mode: list[str], broker: LocalKafka, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(config={"max.message.bytes": "1000"})
    arguments = ["--topic", name, "--num-records", "3", "--record-size", "2000", "--bootstrap-server", broker.bootstrap_servers]
    assert producer_perf.main([*arguments, *mode]) == 1
    printed = capsys.readouterr()
    assert printed.out == "0 records sent.\n"
    assert printed.err.startswith("perf: error: [KAFKA_")
    assert re.search(r"\([1-3] records failed\)" if mode else r"\(3 records failed\)", printed.err)


def test_single_records_are_not_sent_after_a_failure() -> None:
    """The rest of a chunk, up to 10,000 records, was sent before the failure was looked at."""
    sent_records: list[ProducerRecord] = []

    class Refusing:
        flush = staticmethod(lambda: None)

        def send(self, record: ProducerRecord, callback: Any) -> None:
            sent_records.append(record)
            callback(None, KafkaError("refused"))

    clock, producer = ManualClock(), cast(KafkaProducer, Refusing())
    arguments = build_parser("perf").parse_args([*NEEDED, "--record-size", "1", "--bootstrap-server", "b:1"])
    measurements = Measurements(clock, 1000, 0, lambda _: None)
    pace = TransactionPace(producer, None, clock)
    Sending(producer, arguments, payloads(arguments), measurements, pace, clock).send_single()
    assert (len(sent_records), measurements.failure_count) == (1, 1)
