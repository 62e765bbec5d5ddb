"""Versions that follow one that its driver has not finished, against the fake broker."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.exactly_once.runs import Runs, open_transactions, partly_committed, time_out, visible_rows
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker


def die_amid_commits(first: DriverRun, version: int = 0) -> Decision:
    """Partition 0 of 2 is committed."""
    decision = first.decide(first.reports(version, ["a"], ["b"]))
    first.client.end_transactions([decision.entries[0].prepared_transaction(first.names, "q")], commit=True)
    return decision


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_what_was_decided_is_committed_before_a_later_version(broker: FakeBroker, run: Runs, partitions: int) -> None:
    """txnVersion 0 died among its commits, and the job went on with txnVersion 1. Tasks and driver of that took the open
    transactions of version 0 for garbage: readers never saw the rest of it, and nobody was told."""
    die_amid_commits(run("r1"))
    later = run("r2")
    assert later.write_version(1, *[["c"], ["d"], ["e"]][:partitions]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c", "d", "e"][: 2 + partitions]
    assert open_transactions(broker) == []


def test_a_version_of_which_a_part_is_missing_is_logged_when_another_follows(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    partly_committed(run("r1"))
    with caplog.at_level(logging.WARNING):
        run("r2").write_version(1, ["c"])
    assert "only a part of version 0 is in Kafka; the rest of its 2 rows is not written, as version 1 follows" in caplog.text
    assert visible_rows(broker) == ["b", "c"]


def test_a_repetition_of_a_version_with_a_missing_part_does_not_warn(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    partly_committed(run("r1"))
    with caplog.at_level(logging.WARNING):
        run("r2").write_version(0, ["a"], ["b"])
    assert "only a part of version 0" not in caplog.text
    assert visible_rows(broker) == ["a", "b"]


def test_a_decision_of_long_ago_that_arrives_late_harms_no_later_version(broker: FakeBroker, run: Runs) -> None:
    """A driver stood still before it wrote its decision, until others had written that version and the next one."""
    zombie, alive = run("r1"), run("r2")
    decision = zombie.decide(zombie.reports(0, ["a"], ["b"]))
    alive.client.fence([entry.prepared_transaction(zombie.names, "q").transactional_id for entry in decision.entries])
    zombie.ledger.write_decision(decision.with_state(decision.state.INCOMPLETE))
    alive.write_version(0, ["a"], ["b"])
    alive.write_version(1, ["c"], ["d"])
    zombie.ledger.write_decision(decision)
    assert alive.write_version(2, ["e"], ["f"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c", "d", "e", "f"]
    assert open_transactions(broker) == []


def test_a_driver_of_an_earlier_version_leaves_alone_what_a_later_one_has_decided(broker: FakeBroker, run: Runs) -> None:
    """The driver wakes up, finds its version committed long ago, and ends what is open: the commits of the later version too."""
    zombie, alive = run("r1"), run("r2")
    reports = zombie.reports(0, ["x"], ["y"])
    alive.write_version(0, ["x"], ["y"])
    alive.decide(alive.reports(1, ["a"], ["b"]), alive.ledger.fetch_decision())
    assert zombie.commit(reports).how is HowCommitted.SUPERSEDED
    alive.carry_out()
    assert visible_rows(broker) == ["a", "b", "x", "y"]


def test_abort_asks_nothing_about_writes_that_were_done_long_ago(broker: FakeBroker, run: Runs) -> None:
    """A job that writes each minute leaves ten thousand owners in a week, and abort() read the decision of each."""
    for number in range(5):
        run(f"r{number}", owner=f"done{number}").write_version(0, ["a"])
    failed = run("r", owner="failed")
    failed.reports(0, ["b"])
    before = len(broker.requests_of(ApiKey.OFFSET_FETCH))
    failed.abort()
    groups = [group.group_id for request in broker.requests_of(ApiKey.OFFSET_FETCH)[before:] for group in request.message.groups]
    assert set(groups) == {"P-failed-decision", "P-failed-0-marker"}  # its decision, and whether a marker still hangs
    assert open_transactions(broker) == []


@pytest.mark.parametrize("step", ["rows", "marker"])
def test_the_error_of_a_task_that_outlasts_its_transaction_says_why(broker: FakeBroker, run: Runs, step: str) -> None:
    """The task was told that another producer had taken over, which sends a reader to look for one."""
    task = run("r1").task(0, 0, "a", timeout_ms=7_000).begin().send()
    time_out(broker, partition=0)
    if step == "rows":
        task.send()
    with pytest.raises(KafkaError, match=r"transaction timed out|longer than transaction\.timeout\.ms=7000"):
        task.finish()
