"""producer_perf in transactions: what its arguments mean, when it commits, and what a failure leaves behind."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.tools.perf import command as producer_perf
from spark_kafka_sink.tools.perf.command import build_parser, producer_options
from spark_kafka_sink.tools.perf.payloads import payloads
from spark_kafka_sink.tools.perf.transaction_pace import TransactionPace
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.integration.reading import ReadTopic, Topic

NEEDED = ["--topic", "t", "--num-records", "1000", "--payload-monotonic"]
GENERATED = r"performance-producer-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
by_mode = pytest.mark.parametrize("mode", [[], ["--single"]], ids=["columns", "single"])


# ARGUMENTS


@pytest.mark.parametrize(
    ("arguments", "transactional_id"),
    [
        ([], None),
        (["--transaction-duration-ms", "5"], GENERATED),
        (["--transactional-id", "named"], "named"),
        (["--transactional-id", "named", "--transaction-duration-ms", "5"], "named"),
        (["--producer-props", "transactional.id=property"], "property"),
        (["--producer-props", "transactional.id=property", "--transaction-duration-ms", "5"], "property"),
        (["--producer-props", "transactional.id=property", "--transactional-id", "named"], "named"),
    ],
)
def test_an_id_or_a_duration_makes_it_transactional_and_overrides_the_property(
    arguments: list[str], transactional_id: str | None
) -> None:
    options = producer_options(build_parser().parse_args([*NEEDED, "--bootstrap-server", "b:1", *arguments]))
    if transactional_id is None:
        assert "transactional.id" not in options
    else:
        assert re.fullmatch(transactional_id, options["transactional.id"])


def test_a_generated_id_is_a_new_one_each_time() -> None:
    """Two runs at the same time would fence each other."""
    arguments = build_parser().parse_args([*NEEDED, "--bootstrap-server", "b:1", "--transaction-duration-ms", "5"])
    assert producer_options(arguments)["transactional.id"] != producer_options(arguments)["transactional.id"]


@pytest.mark.parametrize("duration", ["0", "-1", "soon"])
def test_a_duration_that_is_none_ends_with_exit_code_2(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        producer_perf.main([*NEEDED, "--bootstrap-server", "b:1", "--transaction-duration-ms", duration])
    assert exit_.value.code == 2
    assert "argument --transaction-duration-ms: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--transactional-id", "a"], ["--transaction-duration-ms", "5"]], ids=["id", "duration"])
@pytest.mark.parametrize("contradicts", ["enable.idempotence=false", "acks=1"])
def test_properties_that_contradict_transactions_end_with_exit_code_2(
    arguments: list[str], contradicts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bootstrap-server", "b:1", *arguments, "--producer-props", contradicts]
    assert producer_perf.main([*NEEDED, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("perf: error: [KAFKA_INVALID_CONFIG] Cannot set a transactional.id without also enabling")


# PACE


class Calls:
    """A producer's transactional methods, written down."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def begin_transaction(self) -> None:
        self.made.append("begin")

    def commit_transaction(self) -> None:
        self.made.append("commit")


def test_a_transaction_is_committed_at_its_age_and_the_next_begins_with_new_records() -> None:
    calls, clock = Calls(), ManualClock()
    producer: Any = calls
    pace = TransactionPace(producer, 100, clock)
    steps = []
    for waited_ms, is_last in ((60, False), (39, False), (1, False), (99, False), (1, False), (0, True)):
        calls.made.clear()
        pace.begin_if_none()
        clock.advance(waited_ms)
        pace.commit_if_due(is_last=is_last)
        steps.append(calls.made[:])
        clock.advance(1000 if steps[-1][-1:] == ["commit"] else 0)  # time between two transactions does not count
    assert steps == [["begin"], [], ["commit"], ["begin"], ["commit"], ["begin", "commit"]]


# RUNS WITH A FAKE


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"t": 1}, transaction_version=2) as broker:
        yield broker
        assert broker.violations == []


def run(broker: FakeBroker, *more: str) -> int:
    """With a clock that is 1 ms later each time that it is asked for the age of a transaction."""
    options = ["--bootstrap-server", broker.bootstrap_servers, "--chunk-records", "100", *more]
    arguments = build_parser().parse_args([*NEEDED, *options, "--producer-props", "linger.ms=0", "retry.backoff.ms=5"])
    return producer_perf.run(arguments, producer_options(arguments), payloads(arguments), ManualClock(auto_tick_ms=1), "perf")


@pytest.mark.parametrize(
    ("mode", "duration_ms", "commits"), [([], 3, 4), ([], 1000, 1), (["--single"], 300, 4), (["--single"], 1000, 1)]
)
def test_all_records_are_committed_in_transactions_of_the_given_duration(
    fake: FakeBroker, mode: list[str], duration_ms: int, commits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, *mode, "--transaction-duration-ms", str(duration_ms)) == 0
    assert fake.committed_values("t") == [b"%d" % number for number in range(1000)]
    assert len(fake.requests_of(ApiKey.END_TXN)) == commits
    assert capsys.readouterr().out.startswith("1000 records sent, ")


@by_mode
def test_a_record_that_fails_ends_the_run_and_its_transaction_is_aborted(
    fake: FakeBroker, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The record's own error is told, not the commit's, which only says that the transaction has failed."""
    fake.fail_next(ApiKey.PRODUCE, Errors.TOPIC_AUTHORIZATION_FAILED)
    assert run(fake, *mode, "--transaction-duration-ms", "1000") == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("perf: error: [KAFKA_TOPIC_AUTHORIZATION_FAILED] ")
    assert "records failed)" in stderr
    assert fake.committed_values("t") == []
    assert not any(request.message.committed for request in fake.requests_of(ApiKey.END_TXN))


@by_mode
def test_another_producer_with_the_same_id_ends_the_run(
    fake: FakeBroker, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fail_next(ApiKey.END_TXN, Errors.PRODUCER_FENCED)
    assert run(fake, *mode, "--transactional-id", "perf", "--transaction-duration-ms", "1000") == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("perf: error: ")
    assert "another producer with transactional id 'perf'" in printed.err
    assert printed.out.startswith("1000 records sent, ")  # they were acknowledged, which is what the lines count


def test_an_id_that_may_not_be_used_ends_the_run_before_the_first_record(
    fake: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert run(fake, "--transactional-id", "perf") == 1
    assert capsys.readouterr().err.startswith("perf: error: [KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED] ")
    assert fake.values("t") == []


# FOR PROGRAMS, AND FOR WHO WAITS


def test_json_is_one_object_and_progress_goes_to_stderr(fake: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    slow = ["--reporting-interval", "1", "--throughput", "20000", "--chunk-records", "100", "--warmup-records", "100"]
    arguments = [*NEEDED, "--bootstrap-server", fake.bootstrap_servers, *slow]
    assert producer_perf.main([*arguments, "--json", "--print-metrics"]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out, parse_constant=pytest.fail)
    assert (figures["records"], figures["failed_records"], figures["error"]) == (1000, 0, None)
    assert figures["bytes"] == sum(len(b"%d" % number) for number in range(1000))
    assert figures["steady_state"]["records"] == 900
    assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["p99.9"]
    assert figures["metrics"]["producer-metrics:record-send-total"] == 1000
    assert " records sent, " in printed.err


def test_json_of_a_run_that_failed_has_the_error(fake: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    fake.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert run(fake, "--transactional-id", "perf", "--json") == 1
    figures = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert figures["error"].startswith("[KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED] ")
    assert (figures["records"], figures["latency_ms"]["p50"]) == (0, None)


def test_a_long_wait_for_the_first_acknowledgement_is_printed(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def both(say: Callable[[], object]) -> Iterator[None]:
        say()
        yield
        say()  # records have arrived: it has nothing to say

    monkeypatch.setattr(producer_perf, "say_if_slow", both)
    assert run(fake) == 0
    limits = "max.block.ms and delivery.timeout.ms limit the wait"
    assert capsys.readouterr().err == f"perf: no record has been acknowledged for 10 s; {limits}\n"


# RUNS WITH A BROKER


@by_mode
def test_readers_of_committed_records_see_all_of_a_run(
    mode: list[str],
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic()
    arguments = ["--topic", name, "--num-records", "25000", "--payload-monotonic", "--throughput", "100000", *mode]
    arguments += ["--bootstrap-server", broker.bootstrap_servers, "--transaction-duration-ms", "20", "--print-metrics"]
    assert producer_perf.main(arguments) == 0
    records = read_topic(name, isolation_level="read_committed")
    assert [record.value for record in records] == [b"%d" % number for number in range(25_000)]
    markers_before_the_last_record = records[-1].offset - (len(records) - 1)
    assert markers_before_the_last_record >= 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("25000 records sent, ") for line in lines)
    assert any(re.fullmatch(r"producer-metrics:txn-commit-time-ns-total +: [1-9]\d*\.\d+", line) for line in lines)
