"""`transactions` against the fake broker: what it lists, what it aborts, what it leaves alone, and what it says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions import command as transactions
from spark_kafka_sink.tools.transactions.command import build_parser, client_options
from spark_kafka_sink.tools.transactions.console import Console
from spark_kafka_sink.tools.transactions.output import duration, partitions_text
from tests.admin.open_transactions import Writer, partition
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State
from tests.tools.transactions.scripted import (
    CANARY,
    MINUTE,
    ScriptedConsole,
    call,
    decided,
    is_open,
    name,
    orphan,
    state_of,
)

# WAITING


def test_a_long_wait_prints_what_brokers_were_asked_for_and_what_limits_it(
    broker: FakeBroker, console: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def at_once(say: Callable[[], object]) -> Iterator[None]:
        say()
        yield

    monkeypatch.setattr("spark_kafka_sink.tools.transactions.console.say_if_slow", at_once)
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
    heading, form, *rows, another, last, _, empty, summary = console.said
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
    assert [each["transactional_id"] for each in listing(console)] == [name()]
    assert console.noted[-1].endswith(": 1 open; all others are complete.")


def test_json_has_one_object_per_line_with_all_that_is_known(broker: FakeBroker, console: ScriptedConsole) -> None:
    writer = orphan(broker, name("3f2a%2D77", 4, 2), rows=2)
    writer.commit_offset("P-3f2a%2D77-4-marker", 1)
    broker.clock.advance(1_234)
    assert call(console, "list", "--json") == 0
    (transaction,) = listing(console)
    assert [each["topic"] for each in transaction.pop("partitions")] == ["__consumer_offsets", "t", "t"]
    assert transaction == {
        "transactional_id": "P-3f2a%2D77-4-1002",
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
        "hanging_partitions": [],
        "marker_hangs": False,
        "suspicious_partitions": [],
        "last_decision": None,
        "last_decision_error": None,
    }


def listing(console: ScriptedConsole) -> list[dict[str, Any]]:
    """What `list --json` has said of transactions; the last line is of all of them."""
    return [json.loads(line) for line in console.said[:-1]]


def test_json_ends_with_a_line_even_if_there_is_nothing(broker: FakeBroker, console: ScriptedConsole) -> None:
    """`list --json` printed nothing at all."""
    orphan(broker, name(prefix="Q"))
    assert call(console, "list", "--json") == 0
    (line,) = console.said
    expected = {"prefix": "P", "transactions": 0, "known_prefixes": ["Q"]}
    assert json.loads(line) == expected


def test_list_names_prefixes_with_ids_if_the_given_one_has_none(broker: FakeBroker, console: ScriptedConsole) -> None:
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
    """Lines had 200 characters: each named the owner twice."""
    owner = "8f0d2c1e6f3b4c669d6e0d6ad6a4b1f2"
    for task in (1, 2):
        orphan(broker, name(owner, task, prefix="flights-to-kafka"), rows=6)
    assert call(console, "list", prefix="flights-to-kafka") == 0
    assert max(map(len, console.said)) <= 100
    assert console.said[1:3] == [
        f"flights-to-kafka-{owner}-TASK-ATTEMPT",
        "(of query 8f0d2c1e-6f3b-4c66-9d6e-0d6ad6a4b1f2)",
    ]


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("orders%2Dto%2Dkafka", ["(of orders-to-kafka)"]),
        ("%unnamed", ["(of writes without a name)"]),
        ("8f0d2c1e6f3b4c669d6e0d6ad6a4b1f2", ["(of query 8f0d2c1e-6f3b-4c66-9d6e-0d6ad6a4b1f2)"]),
        ("orders", []),
    ],
)
def test_the_list_says_whose_an_id_is(owner: str, shown: list[str], broker: FakeBroker, console: ScriptedConsole) -> None:
    """%2D for the dashes of txnAppId was not explained, and a query's id had lost its dashes: nobody found it in Spark's log."""
    orphan(broker, name(owner))
    assert call(console, "list") == 0
    first_row = next(index for index, line in enumerate(console.said) if line.startswith("0 "))
    assert console.said[1:first_row] == [f"P-{owner}-TASK-ATTEMPT", *shown]


def test_a_version_that_is_not_known_is_explained(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name())
    assert call(console, "list") == 0
    note = "VERSION ?: no decision names the transaction; its task is at work, or its write ended before one"
    assert console.said[-3:-1] == [note, ""]


def test_the_version_is_shown_where_a_decision_names_the_transaction(broker: FakeBroker, console: ScriptedConsole) -> None:
    mine, _ = decided(broker, ["a"], ["b"])
    other = orphan(broker, name(attempt=1)).transactional_id
    assert call(console, "list", "--json") == 0
    transaction_by_id = {each["transactional_id"]: each for each in listing(console)}
    assert transaction_by_id[mine]["version"] == 7
    assert transaction_by_id[other]["version"] is None
    assert transaction_by_id[other]["last_decision"] == {"version": 7, "state": "decided"}
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
    described_ids = {
        each for request in broker.requests_of(ApiKey.DESCRIBE_TRANSACTIONS) for each in request.message.transactional_ids
    }
    assert described_ids == {name("another"), "P-"}  # and whether something is hidden
    filters = [set(request.message.state_filters) for request in broker.requests_of(ApiKey.LIST_TRANSACTIONS)]
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


def test_where_ids_are_too_many_to_be_listed_what_is_open_is_listed_all_the_same(
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
    assert [each["transactional_id"] for each in listing(console)] == [opened]
    console.said.clear()
    assert call(console, "abort") == 0
    assert console.said[1] == "P-q-TASK-ATTEMPT"
    assert console.said[-1] == "Aborted: 1 open transaction."
    assert (state_of(broker, opened), is_open(broker, other)) == (State.COMPLETE_COMMIT, True)


def test_names_of_others_cannot_forge_lines(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, "P-q%0Ax%1B-0-0")
    assert call(console, "list") == 0
    assert not any("\n" in line or "\x1b" in line for line in console.said)


def test_the_error_says_that_brokers_cannot_list(console: ScriptedConsole) -> None:
    with FakeBroker(versions={ApiKey.LIST_TRANSACTIONS: (0, -1)}) as old:
        console.broker = old
        assert call(console, "list") == 1
    assert "KAFKA_UNSUPPORTED_VERSION" in console.noted[-1]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (59_999, "59s"), (185_000, "3m 05s"), (7_800_000, "2h 10m"), (6 * 86_400_000 + 3_600_000, "6d 01h")],
)
def test_durations_have_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_partitions_are_shown_as_ranges() -> None:
    partitions = [TopicPartition("b", 1), *(TopicPartition("a", number) for number in (7, 0, 2, 1, 9))]
    assert partitions_text(partitions) == "a: 0-2, 7, 9; b: 1"
    assert partitions_text([]) == "-"


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


@pytest.mark.parametrize("verb", ["list", "abort", "commit", "repair"])
def test_the_error_of_options_before_the_command_shows_their_place(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    options = ["--command-config", str(file)]
    if where == "argument":
        options = [word for pair in properties.items() for word in ("--command-property", "=".join(pair))]
    with FakeBroker(users={"me": "right"}) as broker:
        console = ScriptedConsole(broker)
        assert call(console, "list", *options) == (2 if where == "malformed" else 1)
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
