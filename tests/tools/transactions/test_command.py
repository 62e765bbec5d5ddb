"""`transactions` against the fake broker: what it lists, what it aborts, what it leaves alone, and what it says."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AuthorizationError
from spark_kafka_sink.exactly_once.fencing import fence_all
from spark_kafka_sink.exactly_once.names import Names, TaskId
from spark_kafka_sink.exactly_once.version_commit import How, VersionCommit
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions import command as transactions
from spark_kafka_sink.tools.transactions.command import build_parser, client_options
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.output import duration, partitions_text
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.exactly_once.driving import Run
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State

QUICK = ["retry.backoff.ms=5", "retry.backoff.max.ms=20", "reconnect.backoff.ms=5", "reconnect.backoff.max.ms=20"]
CANARY = "canary7Qx2zzWq"
MINUTE = 60_000


class ScriptedConsole(Console):
    """Somebody at a terminal. `meanwhile` happens while the job waits, `while_asked` before the question is answered."""

    def __init__(self, broker: FakeBroker, *, answer: str | None = "y") -> None:
        super().__init__()
        self.broker = broker
        self.answer = answer
        self.meanwhile: Callable[[], object] = lambda: None
        self.while_asked: Callable[[], object] = lambda: None
        self.said: list[str] = []
        self.noted: list[str] = []
        self.questions: list[str] = []
        self.waited_ms = 0

    @property
    def is_terminal(self) -> bool:
        return self.answer is not None

    def say(self, *lines: str) -> None:
        self.said += lines

    def note(self, line: str) -> None:
        self.noted.append(line)

    def confirms(self, question: str) -> bool:
        self.questions.append(question)
        self.while_asked()
        return self.answer == "y"

    def wall_ms(self) -> int:
        return self.broker.clock.wall_ms()

    def let_pass(self, ms: int) -> None:
        self.waited_ms += ms
        self.broker.clock.advance(ms)
        self.meanwhile()

    @property
    def text(self) -> str:
        return "\n".join(self.said + self.noted)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={TOPIC: 6}) as broker:
        yield broker
        assert broker.violations == []


@pytest.fixture
def console(broker: FakeBroker) -> ScriptedConsole:
    return ScriptedConsole(broker)


def call(console: ScriptedConsole, command: str, *more: str, prefix: str = "P") -> int:
    properties = [word for each in QUICK for word in ("--command-property", each)]
    address = ["--bootstrap-servers", console.broker.bootstrap_servers]
    return transactions.main([command, "--prefix", prefix, *address, *properties, *more], console)


def name(owner: str = "q", task: int = 0, attempt: int = 0, prefix: str = "P") -> str:
    return Names(prefix).transactional_id(TaskId(owner, task, attempt))


def orphan(broker: FakeBroker, transactional_id: str, *, rows: int = 1, timeout_ms: int = 15 * MINUTE) -> Writer:
    """Its process wrote into as many partitions, and is gone."""
    writer = Writer(broker, transactional_id, timeout_ms=timeout_ms)
    for index in range(rows):
        assert not writer.write(b"row", partition=index)
    return writer


def state_of(broker: FakeBroker, transactional_id: str) -> State:
    return broker.transactions.transactions[transactional_id].state


def is_open(broker: FakeBroker, transactional_id: str) -> bool:
    return state_of(broker, transactional_id) is State.ONGOING


def decided(broker: FakeBroker, *partitions: list[str], owner: str = "q", version: int = 7) -> list[str]:
    """The driver wrote its decision, and died before it ended a transaction. The transactional ids."""
    with Run(broker.bootstrap_servers, TOPIC, "host", owner=owner) as life:
        reports = life.reports(version, *partitions)
        committing = life.committing(reports)
        committing._decide(None)
    return [name(owner, number) for number in range(len(partitions))]


# WAITING


def test_who_waits_is_told_what_brokers_were_asked_for_and_what_limits_it(
    broker: FakeBroker, console: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def at_once(say: Callable[[], object]) -> Iterator[None]:
        say()
        yield

    monkeypatch.setattr("spark_kafka_sink.tools.transactions.console.word_after", at_once)
    orphan(broker, name())
    looking = "brokers have been asked for transactions for 10 s; --timeout-ms limits each step"
    assert call(console, "list") == 0
    assert console.noted == [looking]
    console.noted.clear()
    assert call(console, "abort") == 0
    aborting = "brokers have been asked to abort transactions for 10 s; --timeout-ms limits each step"
    again = [each for each in console.noted if each.startswith("looking again")]
    assert console.noted == [looking, *again, looking, looking, aborting]


# LIST


def test_open_transactions_are_listed_oldest_first_and_those_that_ended_lately_last(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    orphan(broker, name("another", task=8)).end(commit=True)
    broker.clock.advance(20 * MINUTE)
    orphan(broker, name("another", task=9)).end(commit=True)
    orphan(broker, name(task=1), rows=3)
    broker.clock.advance(3 * MINUTE + 5_000)
    orphan(broker, name(task=2))
    Writer(broker, name(task=3))  # has begun, and written nothing
    broker.clock.advance(12_000)
    assert call(console, "list", "--recent-minutes", "15") == 0
    heading, form, *rows, another, last, empty, summary = console.said
    assert heading.split() == ["TASK", "ATTEMPT", "STATE", "AGE", "TIME-OUT", "IN", "VERSION", "LAST", "DECISION", "PARTITIONS"]
    assert (form, another) == ("P-q-TASK-ATTEMPT", "P-another-TASK-ATTEMPT")
    first, second, begun, ended_lately = ([cell.strip() for cell in row.split("  ") if cell.strip()] for row in (*rows, last))
    assert first == ["1", "0", "Ongoing", "3m 17s", "11m 43s", "?", "-", "t: 0-2"]
    assert second[:5] == ["2", "0", "Ongoing", "12s", "14m 48s"]
    assert begun[:5] == ["3", "0", "Empty", "-", "-"]
    assert ended_lately[:3] == ["9", "0", "CompleteCommit"]
    assert empty == ""
    counts = "2 open, 1 of a task without a row, 1 ended that began within 15 minutes; all others are complete"
    assert summary == f"Transactional ids of prefix P: {counts}."
    assert console.noted == []


def test_ids_that_begin_alike_and_are_of_another_prefix_are_left_out(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    for other in (name(prefix="P-2"), "P-free-text", "P-q-x-0", "P", "Px-q-0-0"):
        orphan(broker, other)
    assert call(console, "list", "--json") == 0
    assert [each["transactional_id"] for each in listed(console)] == [name()]
    assert console.noted[-1].endswith(": 1 open; all others are complete.")


def test_json_has_one_object_per_line_with_all_that_is_known(broker: FakeBroker, console: ScriptedConsole) -> None:
    writer = orphan(broker, name("3f2a%2D77", 4, 2), rows=2)
    writer.commit_offset("P-3f2a%2D77-4-marker", 1)
    broker.clock.advance(1_234)
    assert call(console, "list", "--json") == 0
    (found,) = listed(console)
    assert [each["topic"] for each in found.pop("partitions")] == ["__consumer_offsets", "t", "t"]
    assert found == {
        "transactional_id": "P-3f2a%2D77-4-2",
        "state": "Ongoing",
        "age_ms": 1_234,
        "time_left_ms": 15 * MINUTE - 1_234,
        "timeout_ms": 15 * MINUTE,
        "started": "2023-11-14T22:30:00.000+00:00",
        "owner": "3f2a-77",
        "version": None,
        "task": 4,
        "attempt": 2,
        "producer_id": writer.producer_id,
        "producer_epoch": writer.epoch,
        "last_decision": None,
        "last_decision_error": None,
    }


def listed(console: ScriptedConsole) -> list[dict[str, Any]]:
    """What `list --json` has said of transactions; the last line is of all of them."""
    return [json.loads(line) for line in console.said[:-1]]


def test_json_ends_with_a_line_even_if_there_is_nothing(broker: FakeBroker, console: ScriptedConsole) -> None:
    """It printed nothing at all."""
    orphan(broker, name(prefix="Q"))
    assert call(console, "list", "--json") == 0
    (line,) = console.said
    expected = {"prefix": "P", "transactions": 0, "known_prefixes": ["Q"]}
    assert json.loads(line) == expected


def test_a_prefix_without_ids_is_told_with_those_that_have_some(broker: FakeBroker, console: ScriptedConsole) -> None:
    """A mistyped prefix looked like one that had nothing open."""
    for other in (name(prefix="orders"), name(task=1, prefix="orders"), name(prefix="a-b"), "no-sink-wrote-this", "kafka"):
        orphan(broker, other)
    for command in ("list", "abort", "commit"):
        assert call(console, command) == 0
        assert console.said[-1].endswith("There is no transactional id of prefix P; known are a-b, orders.")
    for number in range(12):
        orphan(broker, name(prefix=f"p{number:02}"))
    call(console, "list")
    assert console.said[-1].endswith("; known are a-b, orders, p00, p01, p02, p03, p04, p05, p06, p07 and 4 more.")


def test_without_any_id_of_a_sink_no_prefix_is_known(console: ScriptedConsole) -> None:
    assert call(console, "list") == 0
    assert console.said == ["There is no transactional id of prefix P; the brokers know no other either."]


def test_lines_of_the_table_fit_into_a_shell(broker: FakeBroker, console: ScriptedConsole) -> None:
    """They had 200 characters: each named the owner twice."""
    owner = "8f0d2c1e6f3b4c669d6e0d6ad6a4b1f2"
    for task in (1, 2):
        orphan(broker, name(owner, task, prefix="flights-to-kafka"), rows=6)
    assert call(console, "list", prefix="flights-to-kafka") == 0
    assert max(map(len, console.said)) <= 100
    assert console.said[1] == f"flights-to-kafka-{owner}-TASK-ATTEMPT"


def test_the_version_is_told_where_a_decision_names_the_transaction(broker: FakeBroker, console: ScriptedConsole) -> None:
    mine, _ = decided(broker, ["a"], ["b"])
    other = orphan(broker, name(attempt=1)).transactional_id
    assert call(console, "list", "--json") == 0
    found = {each["transactional_id"]: each for each in listed(console)}
    assert found[mine]["version"] == 7
    assert found[other]["version"] is None
    assert found[other]["last_decision"] == {"version": 7, "state": "decided"}
    console.said.clear()
    assert call(console, "list") == 0
    mine_in_table = console.said.index("P-q-TASK-ATTEMPT") + 1
    assert "7        7 decided" in console.said[mine_in_table]


def test_a_decision_that_cannot_be_read_is_a_warning_and_the_list_is_there(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED)
    assert call(console, "list", "--json") == 0
    assert "KAFKA_GROUP_AUTHORIZATION_FAILED" in json.loads(console.said[0])["last_decision_error"]
    assert "Grant the user READ on the group 'P-q-decision' or on a prefix of it" in console.noted[0]
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.commit_offsets("P-q-decision", {partition(): (3, "something else")})
    console.noted.clear()
    assert call(console, "list") == 0
    assert "KAFKA_EXACTLY_ONCE_RECORD_UNREADABLE" in console.noted[0]


def test_an_empty_list_without_the_permission_to_list_is_an_error_that_names_it(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    """Brokers leave out what may not be described: "nothing is open" would be believed, while readers wait on."""
    denied = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    broker.fail_next(ApiKey.DESCRIBE_TRANSACTIONS, denied)
    assert call(console, "list") == 1
    assert "Grant the user WRITE on the transactional id 'P-' or on a prefix of it (DESCRIBE to read)" in console.noted[-1]
    orphan(broker, name())
    broker.fail_next(ApiKey.DESCRIBE_TRANSACTIONS, denied)
    console.noted.clear()
    assert call(console, "list") == 0
    assert "may not DESCRIBE are left out" in console.noted[0]


def test_what_is_at_rest_is_neither_listed_nor_described(broker: FakeBroker, console: ScriptedConsole) -> None:
    """Brokers keep an id for a week. A prefix with a hundred thousand of them was described in full at each look."""
    for task in range(40):
        orphan(broker, name(task=task)).end(commit=task % 2 == 0)
    orphan(broker, name("another"))
    assert call(console, "list") == 0
    asked = {each for request in broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS) for each in request.message.transactional_ids}  # type: ignore[attr-defined]
    assert asked == {name("another"), "P-"}  # and whether something is hidden
    filters = [set(request.message.state_filters) for request in broker.requests_of(ApiKey.LIST_TRANSACTIONS)]  # type: ignore[attr-defined]
    assert {"Empty", "Ongoing", "PrepareAbort", "PrepareCommit"} in filters
    assert {"CompleteCommit"} in filters  # has the owner without a decision committed?
    assert set() not in filters
    assert console.said[-1] == "Transactional ids of prefix P: 1 open; all others are complete."


def test_a_prefix_whose_ids_are_all_at_rest_is_not_taken_for_a_mistyped_one(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name()).end(commit=False)
    assert call(console, "list") == 0
    assert console.said == ["Transactional ids of prefix P: 0 open; all others are complete."]
    assert call(console, "abort") == 0
    assert console.said[-1] == "Nothing to abort: prefix P has no open transaction."


def test_where_ids_are_too_many_to_be_listed_what_is_open_is_told_all_the_same(
    broker: FakeBroker, console: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in range(9):
        orphan(broker, name(task=task)).end(commit=False)
    few = API_TABLE[ApiKey.LIST_TRANSACTIONS]._replace(max_response_bytes=100)
    monkeypatch.setitem(API_TABLE, ApiKey.LIST_TRANSACTIONS, few)
    assert call(console, "list") == 0
    assert console.said == ["Transactional ids of prefix P: 0 open; all others are complete."]
    assert call(console, "list", "--recent-minutes", "5") == 1
    assert "[KAFKA_RESPONSE_TOO_LARGE] node " in console.noted[-1]


def test_ids_with_other_parts_are_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    other = orphan(broker, "P-q-4-1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed-0").transactional_id
    opened = orphan(broker, name(task=4)).transactional_id
    assert call(console, "list", "--json") == 0
    assert [each["transactional_id"] for each in listed(console)] == [opened]
    console.said.clear()
    assert call(console, "abort") == 0
    assert console.said[1] == "P-q-TASK-ATTEMPT"
    assert console.said[-1] == "Aborted: 1 open transaction."
    assert (state_of(broker, opened), is_open(broker, other)) == (State.COMPLETE_ABORT, True)


def test_names_of_others_cannot_forge_lines(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, "P-q%0Ax%1B-0-0")
    assert call(console, "list") == 0
    assert not any("\n" in line or "\x1b" in line for line in console.said)


def test_brokers_that_cannot_list_are_told_as_such(console: ScriptedConsole) -> None:
    with FakeBroker(versions={ApiKey.LIST_TRANSACTIONS: (0, -1)}) as old:
        console.broker = old
        assert call(console, "list") == 1
    assert "KAFKA_UNSUPPORTED_VERSION" in console.noted[-1]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (59_999, "59s"), (185_000, "3m 05s"), (7_800_000, "2h 10m"), (6 * 86_400_000 + 3_600_000, "6d 01h")],
)
def test_durations_are_told_in_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_partitions_are_told_as_ranges() -> None:
    partitions = [TopicPartition("b", 1), *(TopicPartition("a", number) for number in (7, 0, 2, 1, 9))]
    assert partitions_text(partitions) == "a: 0-2, 7, 9; b: 1"
    assert partitions_text([]) == "-"


# ABORT


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
    assert {state_of(broker, each.transactional_id) for each in (dead, begun)} == {State.COMPLETE_ABORT}
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
    known = broker.transactions.transactions[transactional_id]
    other = copy.copy(writer)
    other.transactional_id, other.producer_id, other.epoch = transactional_id, known.producer_id, known.epoch
    return other


SIGNS = {
    a_row: "attempt 0, has new rows in t-0",
    a_row_in_another_partition: "attempt 0, has further partitions",
    a_new_task: "the transaction of task 1, attempt 0, has begun",
    a_task_on_a_fenced_id: "task 3, attempt 0, has begun",
    a_commit: "task 2, attempt 0, went from Ongoing to CompleteCommit",
    the_next_transaction: "task 2, attempt 0, has another producer",
}


def fence(broker: FakeBroker, *tasks: TaskId) -> None:
    """As a driver does it, or another operator."""
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        fence_all(client, Names("P"), tasks)


@pytest.mark.parametrize("happens", SIGNS, ids=lambda each: each.__name__)
def test_a_query_that_shows_a_sign_of_life_is_left_alone_with_all_its_transactions(
    broker: FakeBroker, console: ScriptedConsole, happens: Callable[[FakeBroker, Writer], None]
) -> None:
    writer = orphan(broker, name())
    orphan(broker, name(task=2))
    dead = orphan(broker, name("another"))
    fence(broker, TaskId("q", 3, 0))
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
        client.commit_offsets(Names("P").heartbeat_group(owner), {partition(): (time_ms, "")})


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

    def refuse(client: TransactionClient, groups: Any, *arguments: Any, **named: Any) -> Any:
        if any(group.endswith("-pulse") for group in groups):
            code = Errors.GROUP_AUTHORIZATION_FAILED.number
            raise AuthorizationError("Grant the user READ on the group 'P-q-pulse'", error_code=code)
        return fetched(client, groups, *arguments, **named)

    orphan(broker, name())
    monkeypatch.setattr(TransactionClient, "fetch_offsets", refuse)
    assert call(console, "abort", "--yes") == 1
    assert "Whether the query is alive cannot be seen: " in console.text
    assert "Grant the user READ on the group 'P-q-pulse'" in console.text
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
    with Run(broker.bootstrap_servers, TOPIC, "r1") as life:
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
    fence(broker, TaskId("q", 1, 0))


def is_fenced_before_its_first_row(broker: FakeBroker, writer: Writer) -> None:  # noqa: ARG001
    fence(broker, TaskId("q", 2, 0))


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
    with Run(broker.bootstrap_servers, TOPIC, "r2") as again:
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
    with Run(broker.bootstrap_servers, TOPIC, "r1") as life:
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
        client.fence([promised])
    orphan(broker, promised)
    assert call(console, "abort") == 0
    assert not is_open(broker, promised)


def test_where_decisions_may_not_be_read_open_transactions_are_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED, times=4)  # decisions and pulses, in two looks
    assert call(console, "abort", "--force") == 1
    assert "Whether its version is decided cannot be read: [KAFKA_GROUP_AUTHORIZATION_FAILED]" in console.text
    assert is_open(broker, name())
    broker.fail_next(ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED, times=6)  # and in the look before the deed
    assert call(console, "abort", "--even-decided", "--force") == 0


# COMMIT


def rows(broker: FakeBroker) -> list[bytes]:
    return sorted(filter(None, broker.committed_values(TOPIC)))


def test_what_a_dead_query_has_decided_is_committed_after_a_question(broker: FakeBroker, console: ScriptedConsole) -> None:
    promised = decided(broker, ["a"], ["b"])
    loser = orphan(broker, name(attempt=1)).transactional_id
    assert call(console, "commit") == 0
    assert console.questions == ["Commit 2 open transactions?"]
    assert console.said[-1] == "Committed: version 7 of owner q, 2 rows."
    assert rows(broker) == [b"a", b"b"]
    assert not any(is_open(broker, each) for each in promised)
    assert is_open(broker, loser)
    assert call(console, "commit") == 0
    assert console.said[-1] == "Nothing to commit: prefix P has no open transaction of a version that is decided."
    with Run(broker.bootstrap_servers, TOPIC, "r2") as again:
        assert again.write_version(7, ["a"], ["b"]).how is How.FOUND
        again.write_version(8, ["c"])
    assert rows(broker) == [b"a", b"b", b"c"]


def test_of_a_version_that_is_committed_in_part_the_rest_is_committed(broker: FakeBroker, console: ScriptedConsole) -> None:
    with Run(broker.bootstrap_servers, TOPIC, "r1") as life:
        decision = life.committing(life.reports(7, ["a"], ["b"]))._decide(None)
        life.client.end_transactions([decision.entries[0].prepared(life.names, "q")], commit=True)
    assert rows(broker) == [b"a"]
    assert call(console, "commit", "--yes") == 0
    assert console.questions == []
    assert rows(broker) == [b"a", b"b"]


def test_a_transaction_that_is_gone_is_told_and_the_next_run_writes_what_is_missing(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    gone, _ = decided(broker, ["a"], ["b"])
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.fence([gone])
    assert call(console, "commit") == 1
    assert "owner q: [KAFKA_EXACTLY_ONCE_COMMIT_FAILED] 1 of 2 transactions were gone" in console.noted[-1]
    assert rows(broker) == [b"b"]
    with Run(broker.bootstrap_servers, TOPIC, "r2") as again:
        again.write_version(7, ["a"], ["b"])
    assert rows(broker) == [b"a", b"b"]


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_what_a_live_query_has_decided_is_left_to_it(broker: FakeBroker, console: ScriptedConsole, flags: list[str]) -> None:
    """It goes on with its next version: the record of that decision would be overwritten."""
    promised = decided(broker, ["a"], ["b"])
    loser = orphan(broker, name(attempt=1))
    console.meanwhile = lambda: loser.write(b"next")
    assert call(console, "commit", *flags) == 1
    assert console.questions == []
    assert "The query is alive: the transaction of task 0, attempt 1, has new rows in" in console.text
    assert all(is_open(broker, each) for each in promised)


def test_without_a_yes_nothing_is_committed(broker: FakeBroker, console: ScriptedConsole) -> None:
    promised = decided(broker, ["a"])
    console.answer = "n"
    assert call(console, "commit") == 1
    assert console.said[-1] == "Nothing was committed."
    assert all(is_open(broker, each) for each in promised)


def test_what_shows_a_sign_of_life_while_the_question_to_commit_waits_is_left_alone(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    promised = decided(broker, ["a"])
    loser = orphan(broker, name(attempt=1))
    console.while_asked = lambda: loser.write(b"next")
    assert call(console, "commit") == 1
    assert all(is_open(broker, each) for each in promised)


def test_a_decision_with_a_word_of_another_version_is_told_and_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    writer = orphan(broker, name())
    metadata = "decided run=1b9d6bcd tasks=1 partitions=1 rows=1 fingerprint=07 entries="
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.commit_offsets(Names("P").decision_group("q"), {TopicPartition(TOPIC, 0): (7, metadata)})
    for command, code in (("list", 0), ("abort", 1), ("commit", 0)):
        console.noted.clear()
        assert call(console, command) == code
        assert "a later version of pykafka-sink has written it" in console.noted[0]
    assert is_open(broker, writer.transactional_id)


# WHILE THE QUESTION WAITS


def test_what_shows_a_sign_of_life_while_the_question_waits_is_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    writer, dead = orphan(broker, name()), orphan(broker, name("dead"))
    console.while_asked = lambda: writer.write(b"next")
    assert call(console, "abort") == 1
    assert console.questions == ["Abort 2 open transactions?"]
    assert is_open(broker, name())
    assert not is_open(broker, dead.transactional_id)
    assert console.said[-1] == "Aborted: 1 open transaction."


def test_what_is_decided_while_the_question_waits_is_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    with Run(broker.bootstrap_servers, TOPIC, "r1") as life:
        reports = life.reports(7, ["a"])
        console.while_asked = lambda: life.committing(reports)._decide(None)
        assert call(console, "abort", "--force") == 1
        assert "Decided: run the query again" in console.text
        assert is_open(broker, name())


def test_an_end_that_does_not_come_is_told(broker: FakeBroker, console: ScriptedConsole) -> None:
    broker.transactions.holds_markers = True
    orphan(broker, name()).end(commit=False)
    assert call(console, "abort") == 1
    assert "Brokers are ending it already, and have not come to an end" in console.text
    assert "partitions without a leader" in console.text
    console.meanwhile = broker.transactions.write_markers
    console.said.clear()
    assert call(console, "abort") == 0


def test_a_missing_permission_to_abort_is_named_and_what_is_left_is_shown(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name(task=0))
    orphan(broker, name(task=1), rows=2)
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert call(console, "abort", "--yes") == 1
    assert "Aborted: 1 open transaction." in console.said
    assert "error: 1 transactional id not ended: [KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED]" in console.noted[-1]
    assert "Grant the user WRITE on the transactional id 'P-q-" in console.noted[-1]
    assert "Ongoing" in console.said[-1]


def test_an_id_that_is_fenced_and_stays_empty_is_aborted(console: ScriptedConsole) -> None:
    """Brokers before Kafka 4.0 end it only for a user who may READ the group that its transaction is begun with."""
    with FakeBroker(topics={TOPIC: 6}, versions={ApiKey.END_TXN: (0, 4)}, transaction_version=1) as older:
        console.broker = older
        orphan(older, name())
        older.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.GROUP_AUTHORIZATION_FAILED)
        assert call(console, "abort", "--yes") == 0
        assert console.said[-1] == "Aborted: 1 open transaction."
        assert state_of(older, name()) is State.EMPTY
        assert call(console, "abort", "--yes") == 0
        assert state_of(older, name()) is State.COMPLETE_ABORT


def test_many_transactions_are_aborted_and_the_table_is_cut_off(broker: FakeBroker, console: ScriptedConsole) -> None:
    for number in range(130):
        orphan(broker, name(task=number))
    assert call(console, "abort", "--yes") == 0
    assert "and 30 more, which `list` shows" in console.said
    assert console.said[-1] == "Aborted: 130 open transactions."


def test_brokers_that_do_not_answer_are_told_in_time(console: ScriptedConsole) -> None:
    arguments = ["list", "--prefix", "P", "--bootstrap-servers", "127.0.0.1:1"]
    assert transactions.main([*arguments, "--timeout-ms", "300"], console) == 1
    assert "KAFKA_BROKER_UNREACHABLE" in console.noted[-1]
    assert console.noted[-1].endswith("; --timeout-ms allows for more time")
    assert transactions.build_parser().parse_args(arguments).timeout_ms == 10_000  # a wrong address took a minute


def test_ctrl_c_says_that_something_may_have_happened(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())

    def interrupt() -> None:
        raise KeyboardInterrupt

    console.while_asked = interrupt
    assert call(console, "abort") == 130
    assert "interrupted" in console.noted[-1]


# ARGUMENTS


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["list", "--bootstrap-servers", "b:1"],
        ["list", "--prefix", "", "--bootstrap-servers", "b:1"],
        ["list", "--prefix", "P", "--timeout-ms", "0"],
        ["abort", "--prefix", "P", "--watch-seconds", "-1"],
        ["abort", "--prefix", "P", "--json"],
        ["list", "--prefix", "P", "--yes"],
    ],
    ids=str,
)
def test_a_wrong_call_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        transactions.main(arguments)
    assert ended.value.code == 2
    assert "usage: pykafka-sink transactions" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["list", "abort", "commit"])
def test_options_before_the_command_are_told_with_their_place(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        transactions.main(["--command-property", "ssl.key.password=secret", "--prefix", "p", verb])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"the command comes before its options: pykafka-sink transactions {verb} --prefix" in printed
    assert "secret" not in printed


def test_an_empty_prefix_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        transactions.main(["list", "--prefix", ""])
    assert "--prefix: is empty: name the transactionalIdPrefix of one query or job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--prefix", "P"], "--bootstrap-servers is missing"),
        (["abort", "--prefix", "P", "--bootstrap-servers", "b:1", "--watch-seconds", "0"], "takes --force"),
        (["list", "--prefix", "P", "--command-config", "/absent"], "--command-config /absent cannot be read"),
        (["list", "--prefix", "P", "--bootstrap-servers", "nonsense"], "Invalid url in bootstrap.servers"),
    ],
)
def test_a_wrong_option_exits_with_2(broker: FakeBroker, arguments: list[str], message: str) -> None:
    console = ScriptedConsole(broker)
    assert transactions.main(arguments, console) == 2
    assert message in console.text


def test_the_files_of_the_other_jobs_will_do(tmp_path: Path) -> None:
    sink, secrets = tmp_path / "sink.properties", tmp_path / "secrets.properties"
    sink.write_text("topic=t\ntransactionalIdPrefix=P\nkafka.bootstrap.servers=a:1\nkafka.security.protocol=SSL\nacks=all\n")
    secrets.write_text("security.protocol=SASL_SSL\n")
    arguments = ["list", "--prefix", "P", "--command-config", str(sink), "--command-config", str(secrets)]
    arguments += ["--command-property", "kafka.request.timeout.ms=7", "--timeout-ms", "9"]
    assert client_options(build_parser().parse_args(arguments)) == {
        "client.id": "pykafka-sink-transactions",
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "acks": "all",
        "request.timeout.ms": "7",
        "max.block.ms": "9",
    }


@pytest.mark.parametrize("where", ["file", "argument", "malformed"])
def test_no_secret_is_shown(tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    caplog.set_level("DEBUG")
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{CANARY}";'
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    if where == "malformed":
        properties["sasl.jaas.config"] = f"{CANARY} nonsense"
    file = tmp_path / "secrets.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    given = ["--command-config", str(file)]
    if where == "argument":
        given = [word for pair in properties.items() for word in ("--command-property", "=".join(pair))]
    with FakeBroker(users={"me": "right"}) as broker:
        console = ScriptedConsole(broker)
        assert call(console, "list", *given) == (2 if where == "malformed" else 1)
    if where != "malformed":
        assert "KAFKA_SASL_AUTHENTICATION_FAILED" in console.text
    printed = capfd.readouterr()
    assert CANARY not in console.text + printed.out + printed.err + caplog.text


def test_a_property_without_a_value_does_not_show_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        transactions.main(["list", "--prefix", "P", "--command-property", CANARY])
    assert CANARY not in capsys.readouterr().err


# THE REAL CONSOLE


@pytest.mark.parametrize(("entered", "is_yes"), [("y", True), ("YES ", True), ("", False), ("n", False), ("yy", False)])
def test_only_a_yes_is_a_yes(monkeypatch: pytest.MonkeyPatch, entered: str, is_yes: bool) -> None:
    monkeypatch.setattr("builtins.input", lambda _: entered)
    assert Console().confirms("Abort?") is is_yes


def test_the_end_of_input_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    assert Console().confirms("Abort?") is False


def test_time_passes_for_as_long_as_it_is_asked_to() -> None:
    console, clock = Console(), ManualClock()
    console._clock = clock
    before_ms = clock.now_ms()
    console.let_pass(30)
    assert clock.now_ms() - before_ms == 30


def test_the_help_says_what_is_lost_and_what_the_exit_codes_are(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["list"], ["abort"]):
        with pytest.raises(SystemExit) as ended:
            transactions.main([*command, "--help"])
        assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 something was left alone, or failed" in text
    assert "The rows aborted here are missing until the same query or txnAppId runs again" in text
