"""`transactions abort` against a fake broker: what it ends, what it leaves alone, and which signs of life it sees."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AuthorizationError
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.version_commit import VersionCommit
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State
from tests.tools.transactions.scripted import (
    ScriptedConsole,
    attempt_id,
    call,
    decided,
    fence,
    is_open,
    name,
    orphan,
    state_of,
)


def test_what_a_dead_query_left_is_aborted_and_readers_go_on(broker: FakeBroker, console: ScriptedConsole) -> None:
    committed = orphan(broker, name("another", task=5))
    committed.end(commit=True)
    dead, begun = orphan(broker, name(task=0), rows=2), Writer(broker, name(task=1))
    foreign = orphan(broker, name(prefix="P-2"), rows=0)
    foreign.write(b"x", partition=4)
    stable = broker.last_stable_offset(TOPIC, 1)
    assert call(console, "abort") == 0
    assert console.questions == ["Abort 1 open transaction and 1 transactional id of a task without a row?"]
    assert console.waited_ms == 10_000
    assert console.said[-1] == "Aborted: 1 open transaction and 1 transactional id of a task without a row."
    assert broker.last_stable_offset(TOPIC, 1) > stable
    assert dead.write(b"late") == begun.write(b"late") == Errors.INVALID_PRODUCER_EPOCH
    assert is_open(broker, foreign.transactional_id)
    assert state_of(broker, committed.transactional_id) is State.COMPLETE_COMMIT
    assert {state_of(broker, each.transactional_id) for each in (dead, begun)} == {State.COMPLETE_COMMIT}  # at rest
    console.said.clear()
    assert call(console, "abort") == 0
    assert console.said == ["Nothing to abort: prefix P has no open transaction."]
    assert len(console.questions) == 1
    assert call(console, "list") == 0
    assert console.said[-1] == "Transactional ids of prefix P: 0 open; all others are complete."


@pytest.mark.parametrize("answer", ["n", ""])
def test_without_a_yes_nothing_is_aborted(broker: FakeBroker, console: ScriptedConsole, answer: str) -> None:
    orphan(broker, name())
    console.answer = answer
    assert call(console, "abort") == 1
    assert console.said[-1] == "Nothing was aborted."
    assert is_open(broker, name())


def test_without_a_terminal_it_takes_yes(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    console.answer = None
    before = len(broker.requests)
    assert call(console, "abort") == 2
    assert "pass --yes" in console.text
    assert len(broker.requests) == before
    assert call(console, "abort", "--yes") == 0
    assert console.questions == []
    assert not is_open(broker, name())


def a_row(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    writer.write(b"next")


def a_row_in_another_partition(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    writer.write(b"next", partition=3)


def a_new_task(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    Writer(broker, name(task=1))


def a_task_on_a_fenced_id(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    Writer(broker, name(task=3))


def a_commit(broker: FakeBroker, writer: Writer) -> None:
    assert not taken_over(broker, writer, name(task=2)).end(commit=True)


def the_next_transaction(broker: FakeBroker, writer: Writer) -> None:
    a_commit(broker, writer)
    orphan(broker, name(task=2))


def taken_over(broker: FakeBroker, writer: Writer, transactional_id: str) -> Writer:
    """Who ends the transaction that another process has written."""
    transaction = broker.transactions.transactions[transactional_id]
    other = copy.copy(writer)
    other.transactional_id, other.producer_id, other.epoch = transactional_id, transaction.producer_id, transaction.epoch
    return other


SIGNS = {
    a_row: "attempt 0, has new rows in t-0",
    a_row_in_another_partition: "attempt 0, has further partitions",
    a_new_task: "the transaction of task 1, attempt 0, has begun",
    a_task_on_a_fenced_id: "task 3, attempt 0, has another producer",
    a_commit: "task 2, attempt 0, went from Ongoing to CompleteCommit",
    the_next_transaction: "task 2, attempt 0, has another producer",
}


@pytest.mark.parametrize("happens", SIGNS, ids=lambda each: each.__name__)
def test_a_query_that_shows_a_sign_of_life_is_left_alone_with_all_its_transactions(
    broker: FakeBroker, console: ScriptedConsole, happens: Callable[[FakeBroker, Writer], None]
) -> None:
    writer = orphan(broker, name())
    orphan(broker, name(task=2))
    dead = orphan(broker, name("another"))
    fence(broker, attempt_id(task=3))
    console.meanwhile = lambda: happens(broker, writer)
    assert call(console, "abort") == 1
    assert is_open(broker, name())
    assert not is_open(broker, dead.transactional_id)  # the same prefix, another owner
    (left,) = (line for line in console.said if line.startswith("Left alone"))
    assert left.startswith("Left alone: owner q: ")
    assert "The query is alive: the transaction of task" in left
    assert SIGNS[happens] in left
    assert console.questions == ["Abort 1 open transaction?"]


def show_heartbeat(broker: FakeBroker, time_ms: int, owner: str = "q") -> None:
    """As a task that waits for rows does it."""
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.commit_offsets(PrefixNames("P").heartbeat_group(owner), {partition(): (time_ms, "")})


@pytest.mark.parametrize("earlier_ms", [None, 1_700_000_000_000])
def test_a_query_whose_tasks_wait_for_rows_and_show_a_heartbeat_is_left_alone(
    broker: FakeBroker, console: ScriptedConsole, earlier_ms: int | None
) -> None:
    """A user's slow function, or a batch before its first row: no id, state or row changes for longer than the job looks."""
    orphan(broker, name())
    Writer(broker, name(task=1))  # has begun, and written nothing
    dead = orphan(broker, name("dead"))
    for owner in ("q", "dead") if earlier_ms else ():
        show_heartbeat(broker, earlier_ms or 0, owner)
    console.meanwhile = lambda: show_heartbeat(broker, 1_700_000_004_000)
    assert call(console, "abort", "--yes") == 1
    assert is_open(broker, name())
    assert not is_open(broker, dead.transactional_id)  # its heartbeat, if it ever had one, stands still
    (left,) = (line for line in console.said if line.startswith("Left alone"))
    assert left.startswith("Left alone: owner q: 2 transactional ids. ")
    assert "The query is alive: a task has shown that it is at work" in left
    console.meanwhile = lambda: None
    assert call(console, "abort", "--yes") == 0
    assert not is_open(broker, name())


def test_a_heartbeat_that_cannot_be_read_is_not_taken_for_none(
    broker: FakeBroker, console: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = TransactionClient.fetch_offsets

    def refuse(client: TransactionClient, groups: Any, *arguments: Any, **keywords: Any) -> Any:
        if any(group.endswith("-heartbeat") for group in groups):
            code = Errors.GROUP_AUTHORIZATION_FAILED.number
            raise AuthorizationError("Grant the user READ on the group 'P-q-heartbeat'", error_code=code)
        return fetched(client, groups, *arguments, **keywords)

    orphan(broker, name())
    monkeypatch.setattr(TransactionClient, "fetch_offsets", refuse)
    assert call(console, "abort", "--yes") == 1
    assert "Whether the query is alive cannot be seen: " in console.text
    assert "Grant the user READ on the group 'P-q-heartbeat'" in console.text
    assert is_open(broker, name())
    assert call(console, "abort", "--yes", "--force") == 0
    assert not is_open(broker, name())


def test_a_live_query_is_aborted_by_force_and_the_question_says_that_it_is_alive(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    writer = orphan(broker, name())
    orphan(broker, name(task=1))
    console.meanwhile = lambda: writer.write(b"more")
    assert call(console, "abort", "--force") == 0
    assert not is_open(broker, name())
    assert re.search(r"To be aborted all the same: owner q: 2 transactional ids\. The query is alive: ", console.text)


def test_a_producer_that_keeps_its_epoch_is_seen_to_go_on(broker: FakeBroker, console: ScriptedConsole) -> None:
    """With transaction.version 1 epochs stay the same from one transaction to the next."""
    broker.set_transaction_version(1)
    writer = orphan(broker, name())

    def next_one() -> None:
        assert not writer.end(commit=True)
        writer.write(b"next")

    console.meanwhile = next_one
    assert call(console, "abort") == 1
    assert "attempt 0, has begun anew" in console.text
    console.meanwhile = lambda: None
    assert call(console, "abort") == 0
    assert broker.committed_values(TOPIC) == [b"row"]


def test_nothing_is_asked_when_all_is_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    writer = orphan(broker, name())
    console.meanwhile = lambda: writer.write(b"next")
    assert call(console, "abort") == 1
    assert console.questions == []


def test_a_driver_that_commits_is_a_sign_of_life_for_what_its_tasks_hold(
    broker: FakeBroker, console: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a task that lost the race is open, while its driver goes from version to version with the others."""
    with DriverRun(broker.bootstrap_servers, TOPIC, "r1") as life:
        life.write_version(1, ["a"])
        loser = orphan(broker, name(attempt=1))
        monkeypatch.setattr(VersionCommit, "_fence", lambda *_: None)  # it has not found it yet
        console.meanwhile = lambda: life.write_version(2, ["b"])
        assert call(console, "abort") == 1
    assert is_open(broker, loser.transactional_id)
    assert "version 2 is now carried-out" in console.text


def times_out(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    assert broker.transactions.abort_timed_out() == [name(task=1)]


def is_fenced_by_another(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    fence(broker, attempt_id(task=1))


def is_fenced_before_its_first_row(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    fence(broker, attempt_id(task=2))


@pytest.mark.parametrize(
    "happens", [times_out, is_fenced_by_another, is_fenced_before_its_first_row], ids=lambda each: each.__name__
)
def test_what_others_do_to_a_dead_query_is_no_sign_of_life(
    broker: FakeBroker, console: ScriptedConsole, happens: Callable[[FakeBroker, Writer], None]
) -> None:
    writer = orphan(broker, name())
    orphan(broker, name(task=1), timeout_ms=9_000)
    Writer(broker, name(task=2))
    console.meanwhile = lambda: happens(broker, writer)
    assert call(console, "abort") == 0
    assert not is_open(broker, name())


def test_transactions_that_end_while_they_are_watched_need_nothing(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name(), timeout_ms=9_000)
    console.meanwhile = broker.transactions.abort_timed_out
    assert call(console, "abort") == 0
    assert console.said[-1] == "Nothing to abort any more: all of them have ended by themselves."


def test_what_cannot_be_watched_is_left_alone_and_the_permission_is_named(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED)
    assert call(console, "abort") == 1
    assert "Whether the query is alive cannot be seen: [KAFKA_TOPIC_AUTHORIZATION_FAILED]" in console.text
    assert "Grant the user READ on the topic 't'" in console.text
    assert is_open(broker, name())
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED, times=2)
    assert call(console, "abort", "--force") == 0
    assert not is_open(broker, name())


def test_a_transaction_whose_partitions_are_hidden_is_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.transactions.transactions[name()].partitions.clear()
    for flags, fate in (([], "Whether the query is alive"), (["--force"], "Whether its version is decided")):
        console.said.clear()
        assert call(console, "abort", *flags) == 1
        assert f"{fate} cannot be" in console.text
        assert "grant the user READ on the topics that the query writes to" in console.text
        assert is_open(broker, name())
    assert call(console, "abort", "--force", "--even-decided") == 0


def test_a_deleted_topic_keeps_nothing_from_being_aborted(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.delete_topic(TOPIC)
    assert call(console, "abort") == 0
    assert not is_open(broker, name())


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_a_decided_version_is_left_alone_whatever_else_is_allowed(
    broker: FakeBroker, console: ScriptedConsole, flags: list[str]
) -> None:
    promised = decided(broker, ["a"], ["b"])
    loser = orphan(broker, name(attempt=1))
    assert call(console, "abort", *flags) == 1
    assert "2 transactional ids. Decided: run the query again, it will be committed" in console.text
    assert all(is_open(broker, each) for each in promised)
    assert not is_open(broker, loser.transactional_id)
    with DriverRun(broker.bootstrap_servers, TOPIC, "r2") as again:
        again.write_version(7, ["a"], ["b"])
    assert sorted(filter(None, broker.committed_values(TOPIC))) == [b"a", b"b"]


def test_a_decided_version_is_aborted_by_a_flag_that_tells_what_is_lost(broker: FakeBroker, console: ScriptedConsole) -> None:
    promised = decided(broker, ["a"], ["b"])
    assert call(console, "abort") == 1
    assert "--even-decided aborts them, but the driver has recorded" in console.text
    console.said.clear()
    console.while_asked = lambda: console.say("asked")
    assert call(console, "abort", "--even-decided") == 0
    position = console.text.index("The rows aborted here are missing until the same query or txnAppId runs again")
    assert position < console.text.index("asked")
    assert not any(is_open(broker, each) for each in promised)
    assert broker.committed_values(TOPIC) == []


def test_a_decision_that_must_be_there_and_is_not_shown_is_not_taken_for_none(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    """Brokers leave out offsets of topics that the user may not describe, without a word."""
    with DriverRun(broker.bootstrap_servers, TOPIC, "r1") as life:
        life.write_version(0, ["a"], ["b"])
    left_open = orphan(broker, name()).transactional_id
    del broker.offsets.groups["P-q-decision"]
    assert call(console, "abort", "--force") == 1
    assert "Whether its version is decided cannot be read: [KAFKA_EXACTLY_ONCE_RECORD_UNREADABLE]" in console.text
    assert "Grant the user READ on it (option markerTopic, or topic)" in console.text
    assert is_open(broker, left_open)


def test_an_epoch_that_the_decision_does_not_name_is_not_decided(broker: FakeBroker, console: ScriptedConsole) -> None:
    (promised,) = decided(broker, ["a"])
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        for _ in range(3):
            client.fence([promised])
    orphan(broker, promised)  # with an epoch that no repetition of the commit has
    assert call(console, "abort") == 0
    assert not is_open(broker, promised)


def test_where_decisions_may_not_be_read_open_transactions_are_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED, times=4)  # decisions and heartbeats, in two looks
    assert call(console, "abort", "--force") == 1
    assert "Whether its version is decided cannot be read: [KAFKA_GROUP_AUTHORIZATION_FAILED]" in console.text
    assert is_open(broker, name())
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED, times=6)  # and in the look before the deed
    assert call(console, "abort", "--even-decided", "--force") == 0
