"""A version that is written again after a driver died: it is found, carried out or completed, and other rows are refused."""

from __future__ import annotations

import pytest

from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import MAX_EARLIER_VERSIONS, DecisionState
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, CommitFailedError, ReplayError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.exactly_once.runs import TOPIC, Runs, open_transactions, partly_committed, time_out, visible_rows
from tests.fakes.fake_broker import FakeBroker

# THE SAME ROWS


def test_a_committed_version_is_found_and_not_written_again(broker: FakeBroker, run: Runs) -> None:
    run("r1").write_version(0, ["a"], ["b"])
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    assert {each.result for each in reports} == {AttemptResult.DECIDED}
    assert second.commit(reports).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a", "b"]
    assert second.write_version(1, ["c"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c"]


def test_a_version_that_is_found_does_not_fail_because_of_what_came_too_late(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are in Kafka."""
    run("r1").write_version(0, ["a"])
    second = run("r2")
    reports = second.reports(0, ["a"])
    broker.fail_next(ApiKey.LIST_TRANSACTIONS, Errors.CLUSTER_AUTHORIZATION_FAILED, times=2)
    assert second.commit(reports).how is HowCommitted.FOUND
    assert "attempts of its tasks that came too late could not be ended" in caplog.text


def test_a_decided_version_is_carried_out_by_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))  # and the driver dies
    second = run("r2")
    again = second.reports(0, ["a"], ["b"])
    assert {each.result for each in again} == {AttemptResult.DECIDED}
    assert second.commit(again).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_driver_that_died_among_its_commits_is_followed_by_one_that_finishes_them(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    decision = first.decide(reports)
    first.client.end_transactions([decision.entries[0].prepared_transaction(first.names, "q")], commit=True)
    assert visible_rows(broker) == ["a"]
    second = run("r2")
    assert second.write_version(0, ["a"], ["b"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a", "b"]


def test_a_repetition_does_not_touch_what_the_write_before_has_decided(broker: FakeBroker, run: Runs) -> None:
    """The repetition has the ids of the write before. Its tasks took these ids, and what was decided had to be written again."""
    first = run("r1")
    decision = first.decide(first.reports(0, ["a"], ["b"]))
    first.abort()
    again = run("r2")
    reports = again.reports(0, ["a"], ["b"])
    transactions = again.client.describe_transactions(["P-q-0-1000", "P-q-1-1000"])
    for entry in decision.entries:
        each = transactions[f"P-q-{entry.partition}-1000"]
        assert each is not None
        assert each.is_open(entry.identity)
    assert again.commit(reports).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a", "b"]


def test_a_version_that_nobody_repeats_is_carried_out_by_the_next_one(broker: FakeBroker, run: Runs) -> None:
    """Nobody repeats a df.write without a name: each has another version of one owner."""
    first = run("r1")
    first.decide(first.reports(1_700_000_000_000, ["a"], ["b"]))
    first.abort()
    assert run("r2").write_version(1_700_000_000_777, ["c"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c"]
    assert open_transactions(broker) == []


def test_a_version_that_finds_an_earlier_one_lost_says_that_it_committed_nothing(broker: FakeBroker, run: Runs) -> None:
    """The error said only of the earlier one what readers see, and what its repetition writes. That reads as if it were said of
    the write that failed, of which nothing is seen, and which is to be run again."""
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    time_out(broker, 0)
    second = run("r2")
    with pytest.raises(CommitFailedError, match="1 of 2 transactions were gone when version 0 was committed") as raised:
        second.write_version(1, ["c"])
    assert "An earlier write has left them so. Nothing of this one, version 1, was committed: run it again" in str(raised.value)
    assert "next run of this version" not in str(raised.value)
    second.abort()
    assert run("r3").write_version(1, ["c"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["b", "c"]


# TRANSACTIONS THAT TIMED OUT


def test_a_transaction_that_timed_out_before_the_decision_fails_the_version_unseen(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    time_out(broker, partition=0)
    with pytest.raises(CommitFailedError, match=r"not theirs any more .*transaction\.timeout\.ms.*Nothing is visible"):
        first.commit(reports)
    first.abort()
    assert visible_rows(broker) == []
    assert open_transactions(broker) == []
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


def test_a_transaction_that_timed_out_after_the_decision_is_written_by_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    time_out(broker, partition=0)
    with pytest.raises(CommitFailedError, match=r"1 of 2 transactions were gone .*\(Spark partitions 0\)"):
        first.carry_out()
    assert visible_rows(broker) == ["b"]
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    assert [each.result for each in reports] == [AttemptResult.OPEN, AttemptResult.SKIPPED]
    assert second.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


@pytest.mark.parametrize("lost_partitions", [[0], [0, 1]], ids=["a part", "all"])
def test_the_first_restart_after_an_outage_writes_what_has_timed_out(
    broker: FakeBroker, run: Runs, lost_partitions: list[int]
) -> None:
    """The first restart failed, and the second wrote what was missing: tasks went by the decision, a part of which was gone."""
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"], []))
    for partition in lost_partitions:
        time_out(broker, partition)
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"], [])
    expected = [AttemptResult.OPEN if partition in lost_partitions else AttemptResult.DECIDED for partition in (0, 1)]
    assert [each.result for each in reports[:2]] == expected
    assert second.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_restart_after_an_outage_that_brings_other_rows_is_refused(broker: FakeBroker, run: Runs) -> None:
    """Partition 1 is committed with the first rows: the other rows of partition 0 do not complete them."""
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    time_out(broker, partition=0)
    second = run("r2")
    with pytest.raises(ReplayError, match="written by an earlier run"):
        second.commit(second.reports(0, ["b"], ["a"]))
    second.abort()
    assert visible_rows(broker) == ["b"]
    assert open_transactions(broker) == []


def test_what_times_out_after_the_restarted_tasks_have_looked_fails_the_write(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    time_out(broker, partition=0)
    with pytest.raises(CommitFailedError, match="1 of 2 transactions were gone"):
        second.commit(reports)
    second.abort()
    assert run("r3").write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


# OTHER ROWS


def test_a_replay_with_other_rows_is_refused_by_the_task_that_finds_them_written(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1"))
    second = run("r2")
    second.task(0, 0, "b").run()
    task = second.task(0, 1, "a").begin().send()
    with pytest.raises(ReplayError, match="partition 1 of version 0 is in Kafka with 1 rows"):
        task.finish()
    second.abort()
    assert visible_rows(broker) == ["b"]
    assert open_transactions(broker) == []


def test_a_replay_with_fewer_partitions_is_refused_by_the_driver(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1"))
    second = run("r2")
    reports = second.reports(0, ["a", "b"])
    with pytest.raises(ReplayError, match=r"for the Spark partitions 1, .*this one has 1 partitions"):
        second.commit(reports)
    second.abort()
    assert visible_rows(broker) == ["b"]
    assert open_transactions(broker) == []


@pytest.mark.parametrize("is_decided", [True, False], ids=["decided", "carried out"])
def test_two_writes_of_one_version_are_told_apart_by_their_rows(broker: FakeBroker, run: Runs, is_decided: bool) -> None:
    """A foreachBatch with two DataFrames under one prefix does so. They were told apart by the run, which was the job group: with
    a job group of the user's, or after a restart, the rows of the second one were dropped with a warning."""
    first = run("r1")
    if is_decided:
        first.decide(first.reports(0, ["a"]))
    else:
        first.write_version(0, ["a"])
    assert run("r2").write_version(0, ["a"]).how is (HowCommitted.ROLLED_FORWARD if is_decided else HowCommitted.FOUND)
    with pytest.raises(ReplayError, match=r"in Kafka with 1 rows .* has 1 rows .*transactionalIdPrefix of their own"):
        run("r2").write_version(0, ["another table"])
    assert run("r3").write_version(0, ["a"]).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a"]


def test_other_rows_under_a_decided_version_are_refused_after_it_is_committed(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    with pytest.raises(ReplayError, match="version 0 is in Kafka with 2 rows"):
        run("r2").write_version(0, ["x"], ["y"])
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_other_rows_are_left_out_where_the_user_has_chosen_so(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """The first repetition with other rows does not change what is known of the rows in Kafka."""
    run("r1").write_version(0, ["a"])
    results = []
    for number, rows in enumerate([["other"], ["a"], ["other", "rows"]], start=2):
        caplog.clear()
        committed = run(f"r{number}", keeps_first=True).write_version(0, rows)
        assert committed.how is HowCommitted.FOUND
        results.append((committed.other_rows, "Its rows were not written" in caplog.text))
    assert results == [(1, True), (0, False), (2, True)]
    assert visible_rows(broker) == ["a"]


def test_a_checkpoint_that_was_restored_brings_other_rows_under_known_versions(broker: FakeBroker, run: Runs) -> None:
    """30 rows were in Kafka instead of 50, and the query stayed healthy: contents of superseded versions were not compared."""
    first = run("r1")
    for version in range(5):
        first.write_version(version, [f"{version}"])
    restored = run("r2")
    assert restored.write_version(2, ["2"]).how is HowCommitted.SUPERSEDED
    with pytest.raises(ReplayError, match=r"version 3 is in Kafka with 1 rows .*, and this write of version 3 has 1 rows"):
        restored.write_version(3, ["new"])
    assert visible_rows(broker) == ["0", "1", "2", "3", "4"]


def test_a_version_whose_content_is_not_known_any_more_is_refused(run: Runs) -> None:
    """Such a version never was committed, or too many versions have followed."""
    first = run("r1")
    for version in range(3, 20):
        first.write_version(version, ["a"])
    for version in (2, 3):
        with pytest.raises(ReplayError, match=f"What was committed as version {version} is not known: .*; look whether"):
            run("r2").write_version(version, ["a"])
    assert run("r3").write_version(19 - MAX_EARLIER_VERSIONS, ["a"]).how is HowCommitted.SUPERSEDED
    assert run("r4", keeps_first=True).write_version(2, ["a"]).other_rows == 1


def test_a_version_that_is_partly_in_kafka_is_not_taken_for_committed_later(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1"))
    run("r2").write_version(1, ["c"])
    with pytest.raises(ReplayError, match="What was committed as version 0 is not known"):
        run("r3").write_version(0, ["a"], ["b"])
    assert visible_rows(broker) == ["b", "c"]


def test_rows_are_not_dropped_where_markers_are_ahead_of_the_decision(broker: FakeBroker, run: Runs) -> None:
    """A driver stood still before it noted that its version was carried out, until others had written later ones. Other rows
    under a version between were dropped without a word, as the markers said that later rows were in Kafka."""
    zombie, alive = run("r1"), run("r2")
    decision = zombie.decide(zombie.reports(5, ["a"], ["b"]))
    alive.write_version(5, ["a"], ["b"])
    alive.write_version(6, ["c"], ["d"])
    alive.write_version(7, ["e"], ["f"])
    Ledger(zombie.client, zombie.names, "q", TOPIC).write_decision(decision.with_state(DecisionState.CARRIED_OUT))
    with pytest.raises(ReplayError, match=r"a later version, 7, is in Kafka .* What was committed as version 6 .*: look whether"):
        run("r3").write_version(6, ["new"], ["rows"])
    assert run("r4").write_version(8, ["g"], ["h"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == list("abcdefgh")


def test_markers_of_all_partitions_that_there_ever_were_are_read(broker: FakeBroker, run: Runs) -> None:
    """The decision has expired, or was reset; what is complete is not listed."""
    first = run("r1")
    first.write_version(0, ["a"], ["b"], ["c"])
    del broker.offsets.groups[first.names.decision_group("q")]
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    assert {each.result for each in reports} == {AttemptResult.SKIPPED}
    with pytest.raises(ReplayError, match="for the Spark partitions 2, written by an earlier run"):
        second.commit(reports)
    assert visible_rows(broker) == ["a", "b", "c"]
