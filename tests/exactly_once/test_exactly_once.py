"""What readers of committed records see, whatever dies: hand-driven tasks and drivers against the fake broker.

Versions that are written again are in test_replays.py, records of decisions and markers in test_recorded_decisions.py.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG
from spark_kafka_sink.admin.transaction_operations import EndToRepeat
from spark_kafka_sink.errors import KafkaTimeoutError, ProducerFencedError
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import AttemptResult, CommitFailedError, WriteAbortedError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from tests.exactly_once.runs import TOPIC, Runs, open_transactions, visible_rows
from tests.exactly_once.stepwise_writes import Task
from tests.fakes.fake_broker import FakeBroker

# ONE RUN


def test_rows_are_visible_once_the_version_is_committed_and_not_before(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"], [])
    assert [each.result for each in reports] == [AttemptResult.OPEN, AttemptResult.OPEN, AttemptResult.EMPTY]
    assert visible_rows(broker) == []
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_prefix_is_used_for_the_first_time_where_brokers_reject_unknown_groups(broker: FakeBroker, run: Runs) -> None:
    broker.offsets.rejects_unknown = True
    assert run("r1").write_version(0, ["a"], []).how is HowCommitted.COMMITTED
    assert run("r2").write_version(1, ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


def test_versions_of_a_run_follow_each_other_under_the_same_ids(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    for version in range(4):
        first.write_version(version, [f"{version}a"], [f"{version}b"])
    assert visible_rows(broker) == [f"{version}{row}" for version in range(4) for row in "ab"]
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


def test_what_a_dead_run_left_open_is_ended_and_its_rows_are_never_seen(broker: FakeBroker, run: Runs) -> None:
    run("r1").reports(0, ["a"], ["b"])
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_brokers_with_a_short_limit_for_transactions_can_be_fenced(broker: FakeBroker, run: Runs) -> None:
    """With transaction.max.timeout.ms below 29,929 every fencing was refused, for as long as anything was left under the
    prefix."""
    broker.transactions.max_timeout_ms = 6_000
    first = run("r1")
    first.task(0, 0, "a", timeout_ms=6_000).begin().send()
    assert run("r2").committing([first.task(0, 1, "b", timeout_ms=6_000).run()]).run().fenced == 1
    assert visible_rows(broker) == ["b"]


def test_an_answer_to_the_commit_that_got_lost_is_asked_for_again(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    broker.drop_next(ApiKey.END_TXN, after_append=True, times=2)
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


@pytest.mark.parametrize("is_listed", [True, False], ids=["fencing", "listing"])
def test_a_write_that_is_committed_does_not_fail_because_of_what_came_too_late(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, is_listed: bool
) -> None:
    """Its rows are in Kafka. A batch write without a name failed all the same, and its repetition wrote them twice."""
    first = run("r1")
    reports = first.reports(0, ["a"], ["b"])
    end_transactions = first.client.end_transactions
    late: list[Task] = []
    denied = (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID) if is_listed else (ApiKey.LIST_TRANSACTIONS,)

    def ending(*args: Any, **more: Any) -> Any:
        outcomes = end_transactions(*args, **more)
        if args[0] and not late:
            late.append(first.task(0, 0, "a", attempt=1))  # a copy that begins too late
            late[0].producer.init_transactions("P-q-0-1001")
            for each in denied:
                broker.fail_next(each, Errors.CLUSTER_AUTHORIZATION_FAILED, times=2)
        return outcomes

    first.client.end_transactions = ending
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]
    assert "version 0 is committed, but " in caplog.text
    assert "KAFKA_CLUSTER_AUTHORIZATION_FAILED" in caplog.text


# LISTS OF IDS


def test_what_is_at_rest_is_neither_listed_nor_described(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.write_version(0, ["a"], [], ["c"], ["d"])
    identities = first.client.fence(f"P-other-{number}-1000" for number in range(300))
    at_rest = [EndToRepeat(PreparedTransaction(name, *each, 2), frozenset(), "P-g") for name, each in identities.items()]
    first.client.end_again(at_rest, commit=True)
    before = len(broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS))
    assert first.write_version(1, ["e"], ["f"]).fenced == 0
    described = broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS)[before:]
    own_ids = {f"P-q-{partition}-{1000 * slot}" for partition in (0, 1) for slot in range(1, 5)}
    assert {each for request in described for each in request.message.transactional_ids} == own_ids


def test_a_commit_that_is_not_the_first_lists_beside_its_other_requests(broker: FakeBroker, run: Runs) -> None:
    """A later commit ends what it finds, as the first one does."""
    first = run("r1")
    first.write_version(0, ["a"])
    run("r2").task(2, 5, "left open").begin().send()
    before = len(broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    assert first.write_version(1, ["b"]).fenced == 1
    assert len(broker.requests_of(ApiKey.LIST_TRANSACTIONS)) == before + 2 * 2  # steps 6b and 6g, of two brokers
    assert visible_rows(broker) == ["a", "b"]
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
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_broker_that_does_not_answer_is_waited_for_once(broker: FakeBroker, run: Runs) -> None:
    first = run("r1", **{"max.block.ms": 5_000})
    first.write_version(0, ["a"])
    reports = first.reports(1, ["b"])
    before = len(broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    release = broker.hold_next(ApiKey.LIST_TRANSACTIONS)
    with pytest.raises(KafkaTimeoutError, match="ListTransactions"):
        first.commit(reports)
    release.set()
    assert len(broker.requests_of(ApiKey.LIST_TRANSACTIONS)) == before + 2  # of two brokers
    assert visible_rows(broker) == ["a"]


def test_what_is_listed_beside_an_earlier_decision_is_listed_again(broker: FakeBroker, run: Runs) -> None:
    """The list has the decision's transactions, which were still open when it was made."""
    first = run("r1")
    first.write_version(0, ["a"])
    first.decide(first.reports(1, ["b"], ["c"]), first.ledger.fetch_decision())  # and that driver dies
    assert first.write_version(2, ["d"]).fenced == 0
    assert visible_rows(broker) == ["a", "b", "c", "d"]
    assert open_transactions(broker) == []


def test_an_id_that_somebody_else_made_with_a_large_number_costs_no_marker(broker: FakeBroker, run: Runs) -> None:
    """P-orders-20261122-0 looks like an id of partition 20,261,122: commit() asked for as many markers, in this version and in
    all later ones, as it noted the number in its decision."""
    first = run("r1")
    first.client.fence([first.names.transactional_id(AttemptId("q", 20_000, 0))])
    for version in range(2):
        before = len(broker.requests_of(ApiKey.OFFSET_FETCH))
        assert first.write_version(version, ["a"]).how is HowCommitted.COMMITTED
        assert len(broker.requests_of(ApiKey.OFFSET_FETCH)) - before < 20


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
    assert second.write_version(0, ["a"]).fenced == 3
    assert second.write_version(1, ["b"]).fenced == 0


# COPIES OF TASKS


def test_a_speculative_copy_leaves_its_twin_alone_and_the_loser_is_fenced(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    slow = first.task(0, 0, "a").begin().send()
    copy = first.task(0, 0, "a", attempt=1).begin().send()
    report = slow.finish()
    copy.finish()  # nobody takes its report
    assert first.commit([report]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert open_transactions(broker) == []


def test_a_copy_that_comes_after_the_decision_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide([first.task(0, 0, "a").run()])
    late = first.task(0, 0, "a", attempt=1).run()
    assert late.result is AttemptResult.DECIDED
    first.carry_out()
    assert visible_rows(broker) == ["a"]


def test_an_empty_task_whose_id_another_has_taken_fails_the_write(broker: FakeBroker, run: Runs) -> None:
    """The other's driver could decide the rows of the empty task later, and they would be there twice."""
    first, other = run("r1"), run("r2")
    reports = first.reports(0, ["a", "b"], [])
    zombie = other.task(0, 1, "a", "b").begin().send()
    with pytest.raises(CommitFailedError, match=r"not theirs any more \(Spark partitions 1\)"):
        first.commit(reports)
    first.abort()
    assert visible_rows(broker) == []
    zombie.die()


# ABORT


def test_a_task_that_begins_after_abort_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.reports(0, ["a"])
    late = first.task(0, 0, "a", attempt=1)
    first.abort()
    with pytest.raises(WriteAbortedError):
        late.begin()
    assert visible_rows(broker) == []
    assert open_transactions(broker) == []


def test_a_task_that_takes_its_id_while_the_driver_aborts_writes_nothing(broker: FakeBroker, run: Runs) -> None:
    """A stream was stopped before any task had reported: abort() did not know its run, so that a task which was still starting
    found no record, and left its transaction open until it timed out."""
    first = run("r1")
    late = first.task(0, 0, "a")
    take_id = late.attempt._begin_to_take

    def aborted_meanwhile(*args: Any) -> Any:
        first.abort()
        return take_id(*args)

    late.attempt._begin_to_take = aborted_meanwhile
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
    assert visible_rows(broker) == ["a"]


def test_abort_leaves_a_decided_version_to_the_next_run(broker: FakeBroker, run: Runs) -> None:
    first = run("r1")
    first.decide(first.reports(0, ["a"], ["b"]))
    first.abort()
    assert run("r2").write_version(0, ["a"], ["b"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a", "b"]


def test_abort_finds_what_is_decided_under_another_topic(broker: FakeBroker, run: Runs) -> None:
    """abort() looked for the decisions of other owners at its own marker topic, found none, and aborted what was decided."""
    broker.add_topic("other", 1)
    other = run("r1", owner="other")
    other.topic = "other"
    other.decide(other.reports(0, ["x"]))
    first = run("r1")
    first.task(0, 0, "a").begin().send()
    assert first.abort() == 1
    assert open_transactions(broker) == ["P-other-0-1000"]


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
    assert open_transactions(broker) == ["P-other-0-1000"]
    assert "KAFKA_EXACTLY_ONCE_RECORD_UNREADABLE" in caplog.text


# ZOMBIES OF DRIVERS


def test_a_zombie_driver_whose_successor_is_done_finds_the_version_committed(broker: FakeBroker, run: Runs) -> None:
    zombie = run("r1")
    reports = zombie.reports(0, ["a"], ["b"])
    run("r2").write_version(0, ["a"], ["b"])
    assert zombie.commit(reports).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a", "b"]
    assert open_transactions(broker) == []


def test_a_zombie_driver_that_commits_while_its_successor_begins_is_found_by_it(broker: FakeBroker, run: Runs) -> None:
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    task = second.task(0, 0, "a", attempt=1)
    task.producer.init_transactions()
    assert zombie.commit(reports).fenced == 1
    task.producer.close(timeout_ms=0)
    assert second.write_version(0, ["a"]).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a"]
    assert open_transactions(broker) == []


def test_rows_that_another_run_commits_meanwhile_are_no_other_rows(run: Runs) -> None:
    """Both runs have the same rows. The error told the user to begin anew with another prefix, which would have doubled them."""
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    second.write_version(0, ["a"])
    with pytest.raises(CommitFailedError, match=r"another run has decided on version 0 .*run the write again"):
        zombie.committing(reports)._check(None)
    assert run("r3").write_version(0, ["a"]).how is HowCommitted.FOUND


def test_of_two_drivers_the_first_one_that_commits_ends_the_others_tasks(broker: FakeBroker, run: Runs) -> None:
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    task = second.task(0, 0, "a").begin().send()
    assert zombie.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    with pytest.raises(ProducerFencedError, match="has been started since"):  # by the zombie: a prefix is for one query
        second.commit([task.finish()])
    assert run("r3").write_version(0, ["a"]).how is HowCommitted.FOUND
    assert visible_rows(broker) == ["a"]
    assert open_transactions(broker) == []


# OTHER OWNERS


def test_what_another_owner_has_left_under_the_prefix_is_ended(broker: FakeBroker, run: Runs) -> None:
    run("r1", owner="dead").reports(0, ["x"])
    run("r2").write_version(0, ["a"])
    assert visible_rows(broker) == ["a"]
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
    assert visible_rows(broker) == ["a", "x", "y"]


def test_a_prefix_that_another_begins_with_is_left_alone(broker: FakeBroker, run: Runs) -> None:
    other = run("r1", prefix="P-2")
    reports = other.reports(0, ["x"])
    run("r2", prefix="P").write_version(0, ["a"])
    other.commit(reports)
    assert visible_rows(broker) == ["a", "x"]
