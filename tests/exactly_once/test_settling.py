"""Writes whose control records a coordinator skips (KAFKA-20734), on the fake broker: what readers see, when a write succeeds.

tests/integration/test_control_records.py has the stories with real brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_operations import EndToRepeat, TransactionDescription, TransactionState
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.settling import MAX_SUSPICIONS, Fate, fate_of
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import CommitFailedError, Content, NotVisibleError, TaskTransaction
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.cluster_changes import when
from tests.admin.open_transactions import Writer
from tests.exactly_once.runs import TOPIC, Runs, open_transactions, time_out, visible_rows
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State, offsets_partition

ROWS = TopicPartition(TOPIC, 0)
MARKER = offsets_partition("P-q-0-marker")
SETTLING = "spark_kafka_sink.exactly_once.settling"
NOBODY = -1  # leads a partition
SHORT_MS = {"max.block.ms": 1_500}


@pytest.fixture(autouse=True)
def _kafka_4_3(broker: FakeBroker) -> None:
    set_release(broker, 30)


def set_release(broker: FakeBroker, metadata_level: int) -> None:
    for levels in broker.supported_features.values():
        levels["metadata.version"] = metadata_level


@contextmanager
def skipping(broker: FakeBroker, *partitions: TopicPartition) -> Iterator[None]:
    """While the block runs, these partitions have no leader for coordinators."""
    broker.transactions.skipped.update(partitions)
    yield
    broker.transactions.skipped.clear()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What settling has logged."""
    return [record.getMessage() for record in caplog.records if record.name == SETTLING]


def repetitions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in told(caplog) if " is repeated: " in text]


def stands_still(broker: FakeBroker) -> bool:
    """Whether read_committed readers do not reach the end of the topic."""
    log = broker.topics[TOPIC].partitions[0]
    return log.transactions.last_stable_offset(log.next_offset) < log.next_offset


def is_pending(broker: FakeBroker) -> bool:
    return any(group.is_pending(ROWS) for group in broker.offsets.groups.values())


# COMMITS


@pytest.mark.parametrize("skipped", [(ROWS,), (MARKER,), (ROWS, MARKER)], ids=["rows", "marker", "both"])
def test_a_skipped_commit_is_repeated_before_the_write_succeeds(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, skipped: tuple[TopicPartition, ...]
) -> None:
    """commit() reported success, and nobody saw the rows. The next abort() took them away: they were lost for good."""
    first = run("r1")
    reports = first.reports(0, ["a"])
    end_again = first.client.end_again

    def heal_and_end_again(*args: object, **more: object) -> object:
        broker.transactions.skipped.clear()
        return end_again(*args, **more)

    first.client.end_again = heal_and_end_again
    with skipping(broker, *skipped):
        assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)
    assert not is_pending(broker)
    assert len(repetitions(caplog)) == 1
    failed = run("r2")
    failed.reports(1, ["b"])
    failed.abort()
    assert visible_rows(broker) == ["a"]
    assert run("r3").write_version(1, ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


@pytest.mark.parametrize("skipped", [(ROWS,), (MARKER,), (ROWS, MARKER)], ids=["rows", "marker", "both"])
def test_the_repetition_completes_what_a_driver_has_left_behind_its_commits(
    broker: FakeBroker, run: Runs, skipped: tuple[TopicPartition, ...]
) -> None:
    """With the marker skipped, the repetition took the rows for lost, and wrote them again: they were doubled."""
    first = run("r1")
    decision = first.decide(first.reports(0, ["a"]))
    with skipping(broker, *skipped):
        first.client.end_transactions([each.prepared_transaction(first.names, "q") for each in decision.entries], commit=True)
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)
    assert run("r3").write_version(1, ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


def test_a_write_that_is_not_visible_in_time_says_so_and_is_completed(broker: FakeBroker, run: Runs) -> None:
    first = run("r1", **SHORT_MS)
    reports = first.reports(0, ["a"])
    with skipping(broker, ROWS), pytest.raises(NotVisibleError) as caught:
        first.commit(reports)
    text = str(caught.value)
    assert "KAFKA_EXACTLY_ONCE_NOT_VISIBLE" in text
    assert "version 0 is decided and its transactions are committed" in text
    assert "t-0 at offset 0" in text
    assert "the next run commits what is left" in text
    first.abort()
    assert visible_rows(broker) == []
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)


def test_a_partition_without_a_leader_until_the_limit_fails_the_write_and_its_repetition_completes_it(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is repeated meanwhile: it would be skipped again."""
    first = run("r1", **SHORT_MS)
    reports = first.reports(0, ["a"])
    broker.move_leader(TOPIC, 0, NOBODY)
    with skipping(broker, ROWS), pytest.raises(NotVisibleError, match=r"Readers stand still in t-0\. .*the next run commits"):
        first.commit(reports)
    assert repetitions(caplog) == []
    broker.move_leader(TOPIC, 0, 0)
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)


def test_a_leader_that_comes_back_in_time_gets_the_control_record_within_the_write(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"])
    broker.move_leader(TOPIC, 0, NOBODY)
    looks = len(broker.requests_of(ApiKey.LIST_OFFSETS)) + len(broker.requests_of(ApiKey.METADATA)) + 5

    def come_back() -> None:
        broker.transactions.skipped.clear()
        broker.move_leader(TOPIC, 0, 0)

    def has_looked() -> bool:
        return len(broker.requests_of(ApiKey.LIST_OFFSETS)) + len(broker.requests_of(ApiKey.METADATA)) >= looks

    with skipping(broker, ROWS), when(broker, has_looked, come_back):
        assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert len(repetitions(caplog)) == 1


def test_a_repetition_that_is_skipped_as_well_is_repeated_once_more(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    first = run("r1")
    reports = first.reports(0, ["a"])
    end_again = first.client.end_again

    def heal_after_the_first(*args: Any, **more: Any) -> Any:
        if repetitions(caplog)[1:]:
            broker.transactions.skipped.clear()
        return end_again(*args, **more)

    first.client.end_again = heal_after_the_first
    with skipping(broker, ROWS):
        assert first.commit(reports).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert len(repetitions(caplog)) == 2


@pytest.mark.parametrize("skipped", [(ROWS,), (MARKER,), (ROWS, MARKER)], ids=["rows", "marker", "both"])
def test_the_next_version_settles_what_was_committed_before_it(
    broker: FakeBroker, run: Runs, skipped: tuple[TopicPartition, ...]
) -> None:
    first = run("r1")
    decision = first.decide(first.reports(0, ["a"], ["b"]))
    with skipping(broker, *skipped):
        first.client.end_transactions([each.prepared_transaction(first.names, "q") for each in decision.entries], commit=True)
    assert run("r2").write_version(1, ["c"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c"]
    assert not stands_still(broker)
    assert not is_pending(broker)


def begin_a_repetition(broker: FakeBroker, first: DriverRun) -> None:
    """Version 0 is committed, its rows hang, and its driver dies amid the repetition of the commit."""
    decision = first.decide(first.reports(0, ["a"]))
    transactions = [each.prepared_transaction(first.names, "q") for each in decision.entries]
    with skipping(broker, ROWS):
        first.client.end_transactions(transactions, commit=True)
    (transaction,) = transactions
    name = transaction.transactional_id
    description = first.client.describe_transactions([name])[name]
    assert description is not None
    broker.fail_next(ApiKey.END_TXN, Errors.UNKNOWN_SERVER_ERROR)
    first.client.end_again([EndToRepeat(PreparedTransaction(name, *description.identity, 0), frozenset({ROWS}))], commit=True)


def test_a_driver_that_dies_amid_a_repetition_leaves_it_to_the_next_one(broker: FakeBroker, run: Runs) -> None:
    """AddPartitionsToTxn has begun the transaction again, and EndTxn has not ended it."""
    begin_a_repetition(broker, run("r1"))
    assert len(open_transactions(broker)) == 1
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a"]
    assert open_transactions(broker) == []


@pytest.mark.parametrize("broker", [2], ids=["TV2"], indirect=True)
def test_a_repetition_that_times_out_is_an_error_and_not_a_success_without_its_rows(broker: FakeBroker, run: Runs) -> None:
    """By the epoch, which the commit has raised, and the abort once more. Below transaction.version 2 it does not."""
    begin_a_repetition(broker, run("r1"))
    time_out(broker, 0)
    with pytest.raises(CommitFailedError, match=r"Spark partition 0 a part may be lost.*pykafka-sink transactions list"):
        run("r2").write_version(0, ["a"])
    assert visible_rows(broker) == []


def test_a_run_that_settles_ends_where_another_has_gone_on(broker: FakeBroker, run: Runs) -> None:
    """A repetition of its commit would have decided about the rows of the next version, which has the same ids."""
    zombie, second = run("r1"), run("r2")
    reports = zombie.reports(0, ["a"])
    describe_producers = zombie.client.describe_producers

    def others_go_on(*args: Any, **more: Any) -> Any:
        answers = describe_producers(*args, **more)
        broker.transactions.skipped.clear()
        assert second.write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
        second.reports(1, ["b"])
        second.write_version(1, ["b"])
        return answers

    zombie.client.describe_producers = others_go_on
    with skipping(broker, ROWS), pytest.raises(CommitFailedError, match=r"another run has gone on to version 1 .*end this one"):
        zombie.commit(reports)
    assert visible_rows(broker) == ["a", "b"]


def test_a_topic_that_was_deleted_is_not_waited_for(broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture) -> None:
    broker.add_topic("markers", 1)
    first = run("r1", marker_topic="markers")
    first.write_version(0, ["a"])
    reports = first.reports(1, ["b"])
    broker.delete_topic(TOPIC)
    assert first.commit(reports).how is HowCommitted.COMMITTED
    assert repetitions(caplog) == []
    assert open_transactions(broker) == []


# WHAT IS NOT THE WRITE'S


@pytest.mark.parametrize("metadata_level", [29, 30])
def test_an_open_transaction_of_somebody_else_is_told_once_and_does_not_fail_the_write(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, metadata_level: int
) -> None:
    set_release(broker, metadata_level)
    Writer(broker, "somebody-else").write(b"x")
    assert run("r1").write_version(0, ["a"]).how is HowCommitted.COMMITTED
    assert told(caplog) == ["= version 0 is committed; somebody else's open transaction holds readers back in t-0"]


@pytest.mark.parametrize("metadata_level", [29, 30])
def test_without_the_right_to_see_producers_somebody_elses_transaction_is_told_in_the_end(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, metadata_level: int
) -> None:
    """The commit is repeated on suspicion, where brokers may skip control records, and not for ever."""
    set_release(broker, metadata_level)
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED, times=100)
    Writer(broker, "somebody-else").write(b"x")
    assert run("r1").write_version(0, ["a"]).how is HowCommitted.COMMITTED
    assert len(repetitions(caplog)) == (MAX_SUSPICIONS if metadata_level == 30 else 0)
    assert "holds readers back in t-0" in told(caplog)[-1]
    assert ("without READ on the topics it cannot be seen" in told(caplog)[-1]) == (metadata_level == 30)


def test_without_the_right_to_see_producers_it_is_repeated_on_suspicion(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED, times=100)
    first = run("r1")
    decision = first.decide(first.reports(0, ["a"]))
    with skipping(broker, ROWS):
        first.client.end_transactions([each.prepared_transaction(first.names, "q") for each in decision.entries], commit=True)
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.ROLLED_FORWARD
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)
    assert len(repetitions(caplog)) == 1


# ABORTS


@pytest.mark.parametrize("skipped", [(ROWS,), (MARKER,), (ROWS, MARKER)], ids=["rows", "marker", "both"])
def test_rows_whose_abort_was_skipped_are_not_seen_with_those_of_the_repetition(
    broker: FakeBroker, run: Runs, skipped: tuple[TopicPartition, ...]
) -> None:
    """The repetition had the id, and so the producer id, of the failed write: its commit decided about the rows of both."""
    failed = run("r1", **SHORT_MS)
    failed.reports(0, ["a"])
    with skipping(broker, *skipped):
        failed.abort()
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)
    assert not is_pending(broker)
    assert run("r3").write_version(1, ["b"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b"]


def test_rows_of_a_transaction_that_timed_out_unseen_are_not_seen_later(broker: FakeBroker, run: Runs) -> None:
    """Brokers abort what times out by themselves, and may skip the control record as well. No driver has noticed."""
    run("r1").reports(0, ["a"])
    with skipping(broker, ROWS):
        time_out(broker, 0)
    assert stands_still(broker)
    assert run("r2").write_version(0, ["a"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a"]
    assert not stands_still(broker)


def test_no_task_takes_an_id_that_is_not_settled_and_the_next_write_settles_it(broker: FakeBroker, run: Runs) -> None:
    failed = run("r1", **SHORT_MS)
    failed.reports(0, ["a"])
    with skipping(broker, ROWS):
        failed.abort()
    second = run("r2")
    report = second.task(0, 0, "a").run()
    assert report.attempt_id == AttemptId("q", 0, 2000)
    second.commit([report])
    transactions = broker.transactions.transactions
    assert {name: transactions[name].state for name in ("P-q-0-1000", "P-q-0-2000")} == {
        "P-q-0-1000": State.COMPLETE_COMMIT,
        "P-q-0-2000": State.COMPLETE_COMMIT,
    }
    assert run("r3").task(1, 0, "b").run().attempt_id == AttemptId("q", 0, 1000)


@pytest.mark.parametrize("how", ["open", "aborted", "committed", "empty"])
def test_ids_of_the_release_before_are_never_taken_and_fenced_where_open(broker: FakeBroker, run: Runs, how: str) -> None:
    """That release took ids whatever hung of them. Its ids have no slot."""
    earlier = Writer(broker, "P-q-0-0")
    if how != "empty":
        earlier.write(b"old")
    if how in ("aborted", "committed"):
        assert not earlier.end(commit=how == "committed")
    report = run("r1").task(0, 0, "a").run()
    assert report.attempt_id == AttemptId("q", 0, 1000)
    run("r2").commit([report])
    assert visible_rows(broker) == (["a", "old"] if how == "committed" else ["a"])
    assert open_transactions(broker) == []


# BROKERS WITHOUT THE FAULT


@pytest.mark.parametrize("metadata_level", [29, 30])
def test_where_no_control_record_is_skipped_nothing_is_repeated(
    broker: FakeBroker, run: Runs, caplog: pytest.LogCaptureFixture, metadata_level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    set_release(broker, metadata_level)
    run("r1").write_version(0, ["a"], [])
    failed = run("r2")
    failed.reports(1, ["b"], ["c"])
    failed.abort()
    run("r3").task(1, 0, "b").begin().send()
    fourth = run("r4")
    fourth.decide(fourth.reports(1, ["b"], ["c"]))
    assert run("r5").write_version(1, ["b"], ["c"]).how is HowCommitted.ROLLED_FORWARD
    assert run("r6").write_version(2, ["d"]).how is HowCommitted.COMMITTED
    assert visible_rows(broker) == ["a", "b", "c", "d"]
    assert repetitions(caplog) == []
    assert open_transactions(broker) == []


# WHAT HAS BECOME OF A TRANSACTION

ENTRY = TaskTransaction(0, 1000, 7, 5, 2, Content(1, 1))
TASK_MS, FENCER_MS, TAKER_MS = 900_000, 30_000, 30_001


@pytest.mark.parametrize(
    ("state", "epoch", "timeout_ms", "fate"),
    [
        (TransactionState.ONGOING, 5, TASK_MS, Fate.OPEN),
        (TransactionState.PREPARE_COMMIT, 6, TASK_MS, Fate.COMMITTED),
        (TransactionState.COMPLETE_COMMIT, 6, TASK_MS, Fate.COMMITTED),
        (TransactionState.COMPLETE_COMMIT, 5, TASK_MS, Fate.COMMITTED),  # below transaction.version 2
        (TransactionState.ONGOING, 6, TASK_MS, Fate.COMMITTED),  # its commit is being repeated
        (TransactionState.COMPLETE_COMMIT, 7, TASK_MS, Fate.UNKNOWN),
        (TransactionState.COMPLETE_ABORT, 6, TASK_MS, Fate.ABORTED),
        (TransactionState.COMPLETE_ABORT, 7, TASK_MS, Fate.CUT_OFF),  # its repetition timed out
        (TransactionState.COMPLETE_ABORT, 8, TASK_MS, Fate.UNKNOWN),
        (TransactionState.EMPTY, 7, FENCER_MS, Fate.ABORTED),
        (TransactionState.COMPLETE_COMMIT, 8, FENCER_MS, Fate.ABORTED),  # and put to rest
        (TransactionState.EMPTY, 7, TAKER_MS, Fate.UNKNOWN),
        (TransactionState.EMPTY, 8, TAKER_MS, Fate.CUT_OFF),
        (TransactionState.EMPTY, 4, TASK_MS, Fate.UNKNOWN),
    ],
)
def test_state_epoch_and_time_out_tell_what_has_become_of_a_transaction(
    state: TransactionState, epoch: int, timeout_ms: int, fate: Fate
) -> None:
    assert fate_of(TransactionDescription("P-q-0-1000", state, 7, epoch, timeout_ms, None, frozenset()), ENTRY) is fate


def test_an_id_that_is_gone_or_has_another_producer_id_tells_nothing() -> None:
    assert fate_of(None, ENTRY) is Fate.UNKNOWN
    other = TransactionDescription("P-q-0-1000", TransactionState.COMPLETE_COMMIT, 8, 6, TASK_MS, None, frozenset())
    assert fate_of(other, ENTRY) is Fate.UNKNOWN
