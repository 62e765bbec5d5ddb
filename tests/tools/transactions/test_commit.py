"""`transactions commit` against a fake broker; and what happens while the question waits."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.tools.transactions import command as transactions
from tests.admin.open_transactions import TOPIC
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State
from tests.tools.transactions.scripted import (
    ScriptedConsole,
    call,
    decided,
    is_open,
    name,
    orphan,
    state_of,
)

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
    with DriverRun(broker.bootstrap_servers, TOPIC, "r2") as again:
        assert again.write_version(7, ["a"], ["b"]).how is HowCommitted.FOUND
        again.write_version(8, ["c"])
    assert rows(broker) == [b"a", b"b", b"c"]


def test_of_a_version_that_is_committed_in_part_the_rest_is_committed(broker: FakeBroker, console: ScriptedConsole) -> None:
    with DriverRun(broker.bootstrap_servers, TOPIC, "r1") as life:
        decision = life.decide(life.reports(7, ["a"], ["b"]))
        life.client.end_transactions([decision.entries[0].prepared_transaction(life.names, "q")], commit=True)
    assert rows(broker) == [b"a"]
    assert call(console, "commit", "--yes") == 0
    assert console.questions == []
    assert rows(broker) == [b"a", b"b"]


def test_commit_reports_a_transaction_that_is_gone_and_the_next_run_writes_its_rows(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    gone, _ = decided(broker, ["a"], ["b"])
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.fence([gone])
    assert call(console, "commit") == 1
    assert "owner q: [KAFKA_EXACTLY_ONCE_COMMIT_FAILED] 1 of 2 transactions were gone" in console.noted[-1]
    assert rows(broker) == [b"b"]
    with DriverRun(broker.bootstrap_servers, TOPIC, "r2") as again:
        again.write_version(7, ["a"], ["b"])
    assert rows(broker) == [b"a", b"b"]


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_what_a_live_query_has_decided_is_left_to_it(broker: FakeBroker, console: ScriptedConsole, flags: list[str]) -> None:
    """A live query goes on with its next version: the record of that decision would be overwritten."""
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


def test_a_decision_with_a_word_of_another_version_is_reported_and_left_alone(
    broker: FakeBroker, console: ScriptedConsole
) -> None:
    writer = orphan(broker, name())
    metadata = "decided run=1b9d6bcd tasks=1 partitions=1 rows=1 fingerprint=07 entries="
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.commit_offsets(PrefixNames("P").decision_group("q"), {TopicPartition(TOPIC, 0): (7, metadata)})
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
    with DriverRun(broker.bootstrap_servers, TOPIC, "r1") as life:
        reports = life.reports(7, ["a"])
        console.while_asked = lambda: life.decide(reports)
        assert call(console, "abort", "--force") == 1
        assert "Decided: run the query again" in console.text
        assert is_open(broker, name())


def test_an_end_that_does_not_come_is_reported(broker: FakeBroker, console: ScriptedConsole) -> None:
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
    broker.fail_next(ApiKey.END_TXN, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert call(console, "abort", "--yes") == 1
    assert "Aborted: 1 open transaction." in console.said
    assert "error: 1 transactional id not ended: [KAFKA_TRANSACTIONAL_ID_AUTHORIZATION_FAILED]" in console.noted[-1]
    assert "Grant the user WRITE on the transactional id 'P-q-" in console.noted[-1]
    assert "Ongoing" in console.said[-2]  # above the note on unknown versions


def test_an_id_that_is_fenced_and_stays_empty_is_put_to_rest_later(console: ScriptedConsole) -> None:
    """That takes READ on the group which the empty transaction is begun with."""
    with FakeBroker(topics={TOPIC: 6}, versions={ApiKey.END_TXN: (0, 4)}, transaction_version=1) as older:
        console.broker = older
        orphan(older, name())
        older.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.GROUP_AUTHORIZATION_FAILED)
        assert call(console, "abort", "--yes") == 0
        assert console.said[-1] == "Aborted: 1 open transaction."
        assert state_of(older, name()) is State.EMPTY
        assert call(console, "abort", "--yes") == 0
        assert state_of(older, name()) is State.COMPLETE_COMMIT


def test_many_transactions_are_aborted_and_the_table_is_cut_off(broker: FakeBroker, console: ScriptedConsole) -> None:
    for number in range(130):
        orphan(broker, name(task=number))
    assert call(console, "abort", "--yes") == 0
    assert "and 30 more, which `list` shows" in console.said
    assert console.said[-1] == "Aborted: 130 open transactions."


def test_brokers_that_do_not_answer_are_reported_in_time(console: ScriptedConsole) -> None:
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
