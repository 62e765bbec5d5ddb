"""What readers of committed records see, whatever dies: hand-driven tasks and drivers against the fake broker."""

from __future__ import annotations

import hashlib
import logging
import struct
import tracemalloc
import zlib
from base64 import b85encode
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG
from spark_kafka_sink.errors import KafkaTimeoutError, ProducerFencedError
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_EARLIER_VERSIONS,
    Decision,
    DecisionState,
    EarlierVersion,
    LedgerError,
)
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import (
    AttemptResult,
    CommitFailedError,
    Content,
    DriverTime,
    ReplayError,
    TaskTransaction,
    WriteAbortedError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.exactly_once.runs import TOPIC, Runs, open_transactions, partly_committed, time_out, visible
from tests.fakes.fake_broker import FakeBroker


def test_rows_are_visible_once_the_version_is_committed_and_not_before(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"], [])
    assert [each.result for each in reports] == [AttemptResult.OPEN, AttemptResult.OPEN, AttemptResult.EMPTY]
    assert visible(broker) == []
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_versions_of_a_run_follow_each_other_under_the_same_ids(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    for version in range(4):
        first.write_version(version, [f"{version}a"], [f"{version}b"])
    assert visible(broker) == [f"{version}{row}" for version in range(4) for row in "ab"]
    assert len(broker.transactions.transactions) == 2


def test_what_an_owner_leaves_does_not_grow_with_its_runs_and_versions(broker: FakeBroker, run: Runs) -> None:
    """Each restart, and each df.write, left ids and groups of its own, which brokers keep for seven days. A job that wrote 200
    partitions each minute had 330,000 ids within a day, and no driver could list them any more."""

    def left() -> tuple[int, int]:
        return len(broker.transactions.transactions), len(broker.offsets.groups)

    for version in range(12):
        writer = run(f"r{version}")
        writer.task(version, 0, f"{version} dies").begin().send()
        writer.task(version, 1, f"{version} dies", attempt=1).begin().send()
        writer.abort()
        again = run(f"r{version} again")
        again.write_version(version, [f"{version}a"], [f"{version}b"], [])
        if version == 0:
            first = left()
    assert left() == first


def test_what_is_complete_is_neither_listed_nor_described(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.write_version(0, ["a"], [], ["c"], ["d"])
    first.client.abort_fenced(first.client.fence(f"P-other-{number}-0" for number in range(300)), "P-group")
    before = len(broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS))
    assert first.write_version(1, ["e"], ["f"]).fenced == 0
    described = broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS)[before:]
    assert {each for request in described for each in request.message.transactional_ids} == {"P-q-0-0", "P-q-1-0"}


def test_a_commit_that_is_not_the_first_lists_beside_its_other_requests(broker: FakeBroker, run: Runs) -> None:
    """A later commit ends what it finds, as the first one does."""
    first = run("r1")
    first.write_version(0, ["a"])
    run("r2").task(2, 5, "left open").begin().send()
    before = len(broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    assert first.write_version(1, ["b"]).fenced == 1
    assert len(broker.requests_of(ApiKey.LIST_TRANSACTIONS)) == before + 2 * 2  # steps 6b and 6g, of two brokers
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


@pytest.mark.parametrize("is_refused", [False, True], ids=["coordinators move", "the list is refused"])
def test_a_list_that_may_lack_an_id_is_made_again(broker: FakeBroker, run: Runs, is_refused: bool) -> None:
    first = run("r1")
    first.write_version(0, ["a"])
    run("r2").task(2, 5, "left open").begin().send()
    if is_refused:
        broker.fail_next(ApiKey.LIST_TRANSACTIONS, Errors.UNKNOWN_SERVER_ERROR)
    else:
        broker.move_leader(TRANSACTION_LOG, 0, 1)
    before = len(broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    assert first.write_version(1, ["b"]).how is HowCommitted.COMMITTED
    assert len(broker.requests_of(ApiKey.LIST_TRANSACTIONS)) >= before + 3 * 2
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_broker_that_does_not_answer_is_waited_for_once(broker: FakeBroker, run: Runs) -> None:
    first = run("r1", **{"max.block.ms": 1_000})
    first.write_version(0, ["a"])
    reports = first.reports(1, ["b"])
    before = len(broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    release = broker.hold_next(ApiKey.LIST_TRANSACTIONS)
    with pytest.raises(KafkaTimeoutError, match="ListTransactions"):
        first.commit(reports)
    release.set()
    assert len(broker.requests_of(ApiKey.LIST_TRANSACTIONS)) == before + 2  # of two brokers
    assert visible(broker) == ["a"]


def test_what_is_listed_beside_an_earlier_decision_is_listed_again(broker: FakeBroker, run: Runs) -> None:
    """The list has the decision's transactions, which were still open when it was made."""
    first = run("r1")
    first.write_version(0, ["a"])
    first.decide(first.reports(1, ["b"], ["c"]), first.ledger.fetch_decision())  # and that driver dies
    assert first.write_version(2, ["d"]).fenced == 0
    assert visible(broker) == ["a", "b", "c", "d"]
    assert open_transactions(broker) == []


def test_what_a_dead_run_left_open_is_ended_and_its_rows_are_never_seen(broker: FakeBroker, run: Runs) -> None:
    run("r1").reports(0, ["a"], ["b"])
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_committed_version_is_found_and_not_written_again(broker: FakeBroker, run: Runs) -> None:
    run("r1").write_version(0, ["a"], ["b"])
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    assert {each.result for each in reports} == {AttemptResult.DECIDED}
    assert second.commit(reports).how is HowCommitted.FOUND
    assert visible(broker) == ["a", "b"]
    assert second.write_version(1, ["c"]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b", "c"]


def test_a_decided_version_is_carried_out_by_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))  # and the driver dies
    second = run("r2")
    again = second.reports(0, ["a"], ["b"])
    assert {each.result for each in again} == {AttemptResult.DECIDED}
    assert second.commit(again).how is HowCommitted.ROLLED_FORWARD
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_driver_that_died_among_its_commits_is_followed_by_one_that_finishes_them(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    decision = first.decide(reports)
    first.client.end_transactions([decision.entries[0].prepared_transaction(first.names, "q")], commit=True)
    assert visible(broker) == ["a"]
    second = run("r2")
    assert second.write_version(0, ["a"], ["b"]).how is HowCommitted.ROLLED_FORWARD
    assert visible(broker) == ["a", "b"]


def test_a_transaction_that_timed_out_before_the_decision_fails_the_version_unseen(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    time_out(broker, partition=0)
    with pytest.raises(CommitFailedError, match=r"not theirs any more .*transaction\.timeout\.ms.*Nothing is visible"):
        first.commit(reports)
    first.abort()
    assert visible(broker) == []
    assert open_transactions(broker) == []
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]


def test_a_transaction_that_timed_out_after_the_decision_is_written_by_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    time_out(broker, partition=0)
    with pytest.raises(CommitFailedError, match=r"1 of 2 transactions were gone .*\(Spark partitions 0\)"):
        first.carry_out()
    assert visible(broker) == ["b"]
    second = run("r2")
    reports = second.reports(0, ["a"], ["b"])
    assert [each.result for each in reports] == [AttemptResult.OPEN, AttemptResult.SKIPPED]
    assert second.commit(reports).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]


def test_a_replay_with_other_rows_is_refused_by_the_task_that_finds_them_written(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1"))
    second = run("r2")
    second.task(0, 0, "b").run()
    task = second.task(0, 1, "a").begin().send()
    with pytest.raises(ReplayError, match="partition 1 of version 0 is in Kafka with 1 rows"):
        task.finish()
    second.abort()
    assert visible(broker) == ["b"]
    assert open_transactions(broker) == []


def test_a_replay_with_fewer_partitions_is_refused_by_the_driver(broker: FakeBroker, run: Runs) -> None:
    partly_committed(run("r1"))
    second = run("r2")
    reports = second.reports(0, ["a", "b"])
    with pytest.raises(ReplayError, match=r"for the Spark partitions 1, .*this one has 1 partitions"):
        second.commit(reports)
    second.abort()
    assert visible(broker) == ["b"]
    assert open_transactions(broker) == []


def test_a_speculative_copy_leaves_its_twin_alone_and_the_loser_is_fenced(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    slow = first.task(0, 0, "a").begin().send()
    copy = first.task(0, 0, "a", attempt=1).begin().send()
    report = slow.finish()
    copy.finish()  # nobody takes its report
    assert first.commit([report]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a"]
    assert open_transactions(broker) == []


def test_a_copy_that_comes_after_the_decision_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide([first.task(0, 0, "a").run()])
    late = first.task(0, 0, "a", attempt=1).run()
    assert late.result is AttemptResult.DECIDED
    first.carry_out()
    assert visible(broker) == ["a"]


def test_a_task_that_begins_after_abort_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.reports(0, ["a"])
    late = first.task(0, 0, "a", attempt=1)
    first.abort()
    with pytest.raises(WriteAbortedError):
        late.begin()
    assert visible(broker) == []
    assert open_transactions(broker) == []


def test_a_task_that_takes_its_id_while_the_driver_aborts_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    """A stream was stopped before any task had reported: abort() did not know its run, so that a task which was still starting
    found no record, and left its transaction open until it timed out."""
    first = run("r1")
    late = first.task(0, 0, "a")
    take_id = late.producer.init_transactions

    def aborted_meanwhile(transactional_id: str | None = None) -> None:
        first.abort()
        take_id(transactional_id)

    late.producer.init_transactions = aborted_meanwhile
    with pytest.raises(WriteAbortedError):
        late.begin()
    assert open_transactions(broker) == []


def test_what_is_planned_after_an_abort_or_on_another_machine_is_written(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    elsewhere = run("another host").task(1, 0, "b")
    first.task(0, 0, "a")
    first.abort()
    first.write_version(0, ["a"])
    elsewhere.run()
    assert visible(broker) == ["a"]


def test_abort_leaves_a_decided_version_to_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    first.abort()
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.ROLLED_FORWARD
    assert visible(broker) == ["a", "b"]


def test_a_zombie_driver_whose_successor_is_done_finds_the_version_committed(broker: FakeBroker, run: Runs) -> None:
    zombie = run("r1")
    reports = zombie.reports(0, ["a"], ["b"])
    run("r2").write_version(0, ["a"], ["b"])
    assert zombie.commit(reports).how is HowCommitted.FOUND
    assert visible(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_zombie_driver_that_commits_while_its_successor_begins_is_found_by_it(broker: FakeBroker, run: Runs) -> None:
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    task = second.task(0, 0, "a", attempt=1)
    task.producer.init_transactions()
    assert zombie.commit(reports).fenced == 1
    task.producer.close(timeout_ms=0)
    assert second.write_version(0, ["a"]).how is HowCommitted.FOUND
    assert visible(broker) == ["a"]
    assert open_transactions(broker) == []


def test_rows_that_another_run_commits_meanwhile_are_no_other_rows(run: Runs) -> None:
    """Both runs have the same rows. The error told the user to begin anew with another prefix, which would have doubled them."""
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    second.write_version(0, ["a"])
    with pytest.raises(CommitFailedError, match=r"Spark partitions 0, with the same rows: another run .*can be run again"):
        zombie.committing(reports)._check(None)
    assert run("r3").write_version(0, ["a"]).how is HowCommitted.FOUND


def test_a_zombie_driver_whose_tasks_its_successor_has_fenced_commits_nothing(broker: FakeBroker, run: Runs) -> None:
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    task = second.task(0, 0, "a").begin().send()
    with pytest.raises(CommitFailedError, match="not theirs any more"):
        zombie.commit(reports)
    zombie.abort()
    assert visible(broker) == []
    with pytest.raises(ProducerFencedError, match="has been started since"):  # by the zombie: a prefix is for one query
        second.commit([task.finish()])
    assert run("r3").write_version(0, ["a"]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a"]
    assert open_transactions(broker) == []


def test_what_another_owner_has_left_under_the_prefix_is_ended(broker: FakeBroker, run: Runs) -> None:
    run("r1", owner="dead").reports(0, ["x"])
    run("r2").write_version(0, ["a"])
    assert visible(broker) == ["a"]
    assert open_transactions(broker) == []


@pytest.mark.parametrize("is_found", [True, False], ids=["found", "committed"])
def test_what_another_owner_has_decided_is_left_to_its_repetition(broker: FakeBroker, run: Runs, is_found: bool) -> None:
    """A foreachBatch wrote two DataFrames under one prefix, with a name each, and died amid the commits of the second one. The
    repetition of the first one aborted what was decided: a part of the second one's rows was never seen."""
    first, second = run("r1"), run("r1", owner="second")
    if is_found:
        first.write_version(0, ["a"])
    decision = second.decide(second.reports(0, ["x"], ["y"]))
    second.client.end_transactions([decision.entries[0].prepared_transaction(second.names, "second")], commit=True)
    again = run("r2")
    assert again.write_version(0, ["a"]).how is (HowCommitted.FOUND if is_found else HowCommitted.COMMITTED)
    assert len(open_transactions(broker)) == 1
    assert run("r2", owner="second").write_version(0, ["x"], ["y"]).how is HowCommitted.ROLLED_FORWARD
    assert visible(broker) == ["a", "x", "y"]


def test_abort_finds_what_is_decided_under_another_topic(broker: FakeBroker, run: Runs) -> None:
    """abort() looked for the decisions of other owners at its own marker topic, found none, and aborted what was decided."""
    broker.add_topic("other", 1)
    other = run("r1", owner="other")
    other.topic = "other"
    other.decide(other.reports(0, ["x"]))
    first = run("r1")
    first.task(0, 0, "a").begin().send()
    assert first.abort() == 1
    assert open_transactions(broker) == ["P-other-0-0"]


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
    assert visible(broker) == list("abcdefgh")


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


def test_a_decision_that_lists_a_partition_twice_cannot_be_read(run: Runs) -> None:
    """Such a decision ended in a ValueError, which no abort() and no tool expected."""
    ledger = Ledger(run("r1").client, run("r1").names, "q", TOPIC)
    entry = TaskTransaction(0, 0, 1, 0, 2, Content(1, 0))
    ledger.write_decision(Decision(0, DecisionState.DECIDED, 2, 2, Content(2, 0), (entry, entry)))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


def test_a_prefix_that_another_begins_with_is_left_alone(broker: FakeBroker, run: Runs) -> None:
    other = run("r1", prefix="P-2")
    reports = other.reports(0, ["x"])
    run("r2", prefix="P").write_version(0, ["a"])
    other.commit(reports)
    assert visible(broker) == ["a", "x"]


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
    assert visible(broker) == ["a"]


def test_other_rows_under_a_decided_version_are_refused_after_it_is_committed(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    with pytest.raises(ReplayError, match="version 0 is in Kafka with 2 rows"):
        run("r2").write_version(0, ["x"], ["y"])
    assert visible(broker) == ["a", "b"]
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
    assert visible(broker) == ["a"]


def test_a_checkpoint_that_was_restored_brings_other_rows_under_known_versions(broker: FakeBroker, run: Runs) -> None:
    """30 rows were in Kafka instead of 50, and the query stayed healthy: contents of superseded versions were not compared."""
    first = run("r1")
    for version in range(5):
        first.write_version(version, [f"{version}"])
    restored = run("r2")
    assert restored.write_version(2, ["2"]).how is HowCommitted.SUPERSEDED
    with pytest.raises(ReplayError, match=r"version 3 is in Kafka with 1 rows .*, and this write of version 3 has 1 rows"):
        restored.write_version(3, ["new"])
    assert visible(broker) == ["0", "1", "2", "3", "4"]


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
    assert visible(broker) == ["b", "c"]


def test_a_version_that_nobody_repeats_is_carried_out_by_the_next_one(broker: FakeBroker, run: Runs) -> None:
    """Nobody repeats a df.write without a name: each has another version of one owner."""
    first = run("r1")
    first.decide(first.reports(1_700_000_000_000, ["a"], ["b"]))
    first.abort()
    assert run("r2").write_version(1_700_000_000_777, ["c"]).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b", "c"]
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
    assert visible(broker) == ["b", "c"]


def test_abort_leaves_alone_only_the_owner_whose_decision_cannot_be_read(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """abort() ended nothing at all: what the write had left open held readers back until it timed out."""
    other, first = run("r0", owner="other"), run("r1")
    other.reports(0, ["x"])
    first.reports(0, ["a"], ["b"])
    place = Ledger(first.client, first.names, "other", TOPIC).marker_partition
    first.client.commit_offsets(first.names.decision_group("other"), {place: (0, "of a later release")})
    assert first.abort() == 2
    assert open_transactions(broker) == ["P-other-0-0"]
    assert "KAFKA_EXACTLY_ONCE_RECORD_UNREADABLE" in caplog.text


def test_a_decision_too_long_for_one_record_is_read_back_whole(run: Runs) -> None:
    first = run("r1")
    entries = tuple(TaskTransaction(each, 0, each * 7, 3, 2, Content(each, 2**64 - 1 - each)) for each in range(1000))
    earlier = tuple(EarlierVersion(each, Content(each, 2**64 - 1)) for each in range(MAX_EARLIER_VERSIONS))
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    for version in range(3):
        decision = Decision(version, DecisionState.DECIDED, 1000, 1024, Content(5, 6), entries[version:], earlier)
        ledger.write_decision(decision)
        assert ledger.fetch_decision() == decision


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "decided",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 overflow=x digest=0",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 overflow=99999999999 digest=0",
        "decided tasks=1 partitions=1 rows=1 fingerprint=00 entries=abc",
        "postponed tasks=1 partitions=1 rows=1 fingerprint=00 entries=0",
        "decided tasks=1 partitions=1 rows=many fingerprint=00 entries=0",
    ],
)
def test_a_decision_that_cannot_be_read_is_an_error_and_never_none(run: Runs, metadata: str) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


DECIDED = "decided tasks=1 partitions=1 rows=1 fingerprint=00"
CARRIED_OUT = DECIDED.replace("decided", "carried-out")


@pytest.mark.parametrize("number", ["-7", "9" * 19, "9" * 4000, "1_0", "+1", "\u0661"])
@pytest.mark.parametrize("word", ["tasks={}", "partitions={}", "rows={}"])
def test_a_number_of_a_decision_beyond_its_limit_is_an_error(run: Runs, word: str, number: str) -> None:
    """`partitions=1000000000000` was accepted, and commit() made a set of as many numbers; so were -7 and 4,000 digits."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    metadata = f"{CARRIED_OUT} {word.format(number)}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


@pytest.mark.parametrize("metadata", ["rows=-7 fingerprint=00", "rows=1 fingerprint=-1", "rows=1 fingerprint=" + "f" * 17])
def test_a_number_of_a_marker_beyond_its_limit_is_an_error(run: Runs, metadata: str) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    first.client.commit_offsets(first.names.marker_group("q", 0), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_markers([0])


def test_a_negative_version_is_an_error(run: Runs) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    for group, metadata in [
        (first.names.decision_group("q"), CARRIED_OUT),
        (first.names.marker_group("q", 0), "rows=1 fingerprint=00"),
    ]:
        first.client.commit_offsets(group, {ledger.marker_partition: (-7, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_markers([0])


@pytest.mark.parametrize(("rows", "follows"), [(1, 1), (0, 1), (1, 50_000_000), (2, 0), (2**32 - 1, 0)])
def test_entries_inflate_to_their_size_and_to_no_more_than_the_tasks_of_the_write(run: Runs, rows: int, follows: int) -> None:
    """5 MB in a decision's overflow groups inflated to 4 GB: the driver used 8 GB of memory for a minute, and accepted them."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    size = 35 * min(rows, 2) + follows
    packed = b85encode(struct.pack("<I", rows) + zlib.compress(bytes(size), 9)).decode()
    digest = hashlib.sha256(packed.encode()).hexdigest()[:16]
    chunks = [packed[start : start + 4000] for start in range(0, len(packed), 4000)]
    for number, chunk in enumerate(chunks):
        first.client.commit_offsets(first.names.overflow_group("q", 2 * number), {ledger.marker_partition: (0, chunk)})
    metadata = f"{DECIDED} overflow={len(chunks)} digest={digest}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    tracemalloc.start()
    try:
        with pytest.raises(LedgerError, match="metadata that cannot be read"):
            ledger.fetch_decision()
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "entry", [TaskTransaction(0, 0, -1, 0, 2, Content(1, 0)), TaskTransaction(0, 0, 1, -1, 2, Content(1, 0))]
)
def test_a_negative_number_of_an_entry_is_an_error(run: Runs, entry: TaskTransaction) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    ledger.write_decision(Decision(0, DecisionState.DECIDED, 1, 1, Content(1, 0), (entry,)))
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


@pytest.mark.parametrize("word", ["run=1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed", "run=", "unknown"])
def test_a_decision_with_a_word_that_this_package_does_not_know_is_an_error(run: Runs, word: str) -> None:
    """The word may say which transactions are meant."""
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    metadata = f"{CARRIED_OUT} {word}"
    first.client.commit_offsets(first.names.decision_group("q"), {ledger.marker_partition: (0, metadata)})
    with pytest.raises(LedgerError, match="metadata that cannot be read"):
        ledger.fetch_decision()


def test_a_decision_that_nobody_could_read_is_not_written(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    with pytest.raises(CommitFailedError, match=r"at most 1,000,000 Spark partitions, and this one has 1,000,001"):
        ledger.write_decision(Decision(0, DecisionState.DECIDED, 1_000_001, 1, Content(1, 0)))
    assert not broker.requests_of(ApiKey.OFFSET_COMMIT)


def test_a_decision_whose_overflow_was_overwritten_counts_as_not_carried_out(run: Runs) -> None:
    """A later version overwrote it: its driver died before its own decision. To fail here was to fail for ever."""
    first = run("r1")
    entries = tuple(TaskTransaction(each, 0, each * 7, 3, 2, Content(each, 2**64 - 1 - each)) for each in range(1000))
    ledger = Ledger(first.client, first.names, "q", TOPIC)
    ledger.write_decision(Decision(2, DecisionState.DECIDED, 1000, 1000, Content(5, 6), entries))
    first.client.commit_offsets(first.names.overflow_group("q", 0), {ledger.marker_partition: (4, "of version 4")})
    decision = ledger.fetch_decision()
    assert decision is not None
    assert (decision.version, decision.state, decision.entries) == (2, DecisionState.INCOMPLETE, ())
    assert ledger.fetch_view(DriverTime("host", 0), 0) == (decision, False, None)


def test_a_repetition_does_not_touch_what_the_write_before_has_decided(broker: FakeBroker, run: Runs) -> None:
    """The repetition has the ids of the write before. Its tasks took these ids, and what was decided had to be written again."""
    first = run("r1")
    decision = first.decide(first.reports(0, ["a"], ["b"]))
    first.abort()
    again = run("r2")
    reports = again.reports(0, ["a"], ["b"])
    transactions = again.client.describe_transactions(["P-q-0-0", "P-q-1-0"])
    for entry in decision.entries:
        each = transactions[f"P-q-{entry.partition}-0"]
        assert each is not None
        assert each.is_open(entry.identity)
    assert again.commit(reports).how is HowCommitted.ROLLED_FORWARD
    assert visible(broker) == ["a", "b"]


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
    assert visible(broker) == ["a", "b"]
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
    assert visible(broker) == ["b"]
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
    assert visible(broker) == ["a", "b"]


def test_an_id_that_somebody_else_made_with_a_large_number_costs_no_marker(broker: FakeBroker, run: Runs) -> None:
    """P-orders-20261122-0 looks like an id of partition 20,261,122: commit() asked for as many markers, in this version and in
    all later ones, as it noted the number in its decision."""
    first = run("r1")
    first.client.fence([first.names.transactional_id(AttemptId("q", 20_000, 0))])
    for version in range(2):
        before = len(broker.requests_of(ApiKey.OFFSET_FETCH))
        assert first.write_version(version, ["a"]).how is HowCommitted.COMMITTED
        assert len(broker.requests_of(ApiKey.OFFSET_FETCH)) - before < 20


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
    assert visible(broker) == ["a", "b", "c"]


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 64, 65])
def test_as_many_partitions_are_on_record_as_there_were_and_never_fewer(run: Runs, partitions: int) -> None:
    ledger = Ledger(run("r1").client, run("r1").names, "q", TOPIC)
    ledger.record_partition_count(partitions)
    ledger.record_partition_count(1)
    _, recorded = ledger.client.ask(ledger.all_markers_question(1))
    assert partitions <= recorded < 2 * partitions or partitions == recorded == 1


def test_an_id_that_somebody_else_made_is_logged_escaped(run: Runs, caplog: pytest.LogCaptureFixture) -> None:
    """A line end in it began a log line of its own, and an escape sequence reached the terminal."""
    first = run("r1")
    first.client.fence(["P-o\x1b[2J\nforged-0-0"])
    with caplog.at_level(logging.INFO):
        assert first.write_version(0, ["a"]).fenced == 1
    assert r"P-o\x1b[2J\nforged-0-0" in caplog.text


def test_ids_that_were_fenced_are_not_fenced_again(run: Runs) -> None:
    run("r1").reports(0, ["a"], [], [])
    second = run("r2")
    assert second.write_version(0, ["a"]).fenced == 2
    assert second.write_version(1, ["b"]).fenced == 0


def test_an_empty_task_whose_id_another_has_taken_fails_the_write(broker: FakeBroker, run: Runs) -> None:
    """The other's driver could decide the rows of the empty task later, and they would be there twice."""
    first, other = run("r1"), run("r2")
    reports = first.reports(0, ["a", "b"], [])
    zombie = other.task(0, 1, "a", "b").begin().send()
    with pytest.raises(CommitFailedError, match=r"not theirs any more \(Spark partitions 1\)"):
        first.commit(reports)
    first.abort()
    assert visible(broker) == []
    zombie.die()


def test_brokers_with_a_short_limit_for_transactions_can_be_fenced(broker: FakeBroker, run: Runs) -> None:
    """With transaction.max.timeout.ms below 29,929 every fencing was refused, for as long as anything was left under the
    prefix."""
    broker.transactions.max_timeout_ms = 6_000
    first = run("r1")
    first.task(0, 0, "a", timeout_ms=6_000).begin().send()
    assert run("r2").committing([first.task(0, 1, "b", timeout_ms=6_000).run()]).run().fenced == 1
    assert visible(broker) == ["b"]


def test_an_answer_to_the_commit_that_got_lost_is_asked_for_again(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    broker.drop_next(ApiKey.END_TXN, after_append=True, times=2)
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]


@pytest.mark.parametrize("is_listed", [True, False], ids=["fencing", "listing"])
def test_a_write_that_is_committed_does_not_fail_because_of_what_came_too_late(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, is_listed: bool
) -> None:
    """Its rows are in Kafka. A batch write without a name failed all the same, and its repetition wrote them twice."""
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    end_transactions = first.client.end_transactions

    def ending(*args: Any, **more: Any) -> Any:
        outcomes = end_transactions(*args, **more)
        first.task(0, 0, "a", attempt=1).producer.init_transactions()  # a copy that begins too late
        denied = ApiKey.INIT_PRODUCER_ID if is_listed else ApiKey.LIST_TRANSACTIONS
        broker.fail_next(denied, Errors.CLUSTER_AUTHORIZATION_FAILED, times=2)
        return outcomes

    first.client.end_transactions = ending
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible(broker) == ["a", "b"]
    assert "version 0 is committed, but " in caplog.text
    assert "KAFKA_CLUSTER_AUTHORIZATION_FAILED" in caplog.text
