"""`transactions list` and `repair` where brokers have skipped control records (KAFKA-20734), against a fake broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndToRepeat
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import Content, NotVisibleError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State, offsets_partition
from tests.tools.transactions.scripted import MINUTE, ScriptedConsole, call, decided, is_open, name, orphan, state_of

OLD_ID = name(slot=0)  # of a release that did not settle its ids


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={TOPIC: 6}) as broker:
        for node_id in range(2):
            broker.supported_features[node_id]["metadata.version"] = 30
        with DriverRun(broker.bootstrap_servers, TOPIC, "r0") as life:
            life.ledger.write_decision(Decision(1, DecisionState.CARRIED_OUT, 1, 1, Content()))
        yield broker
        assert broker.violations == []


def skipping(broker: FakeBroker, *indexes: int, group: str = "") -> None:
    """From now on, these partitions have no leader when transactions end, nor that of the group."""
    broker.transactions.skipped = {partition(each) for each in indexes} | ({offsets_partition(group)} if group else set())


def rows(broker: FakeBroker) -> list[bytes]:
    return sorted(filter(None, broker.committed_values(TOPIC)))


def hang(broker: FakeBroker, transactional_id: str, *, commit: bool) -> Writer:
    """Rows in t-0 and t-1; the control record of t-0 is skipped."""
    writer = orphan(broker, transactional_id, rows=2)
    skipping(broker, 0)
    assert not writer.end(commit=commit)
    skipping(broker)
    return writer


def readers_stand_still(broker: FakeBroker) -> bool:
    return any(broker.last_stable_offset(TOPIC, each) < broker.topics[TOPIC].partitions[each].end_offset(0) for each in range(6))


def listing(console: ScriptedConsole, *more: str) -> list[dict[str, object]]:
    console.said.clear()
    assert call(console, "list", "--json", *more) == 0
    return [json.loads(line) for line in console.said[:-1]]


def never_visible(broker: FakeBroker, more_repeats: int = 0) -> None:
    """A version was decided and committed, and its driver has not come to see all rows: control records were skipped again and
    again; also for so many runs after it."""
    skipping(broker, *range(6), group="P-q-0-marker")
    with DriverRun(broker.bootstrap_servers, TOPIC, "r1", **{"max.block.ms": 1_000}) as life, pytest.raises(NotVisibleError):
        life.write_version(7, ["a"], ["b"])
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        for _ in range(more_repeats):
            for transaction in broker.transactions.transactions.values():
                again = PreparedTransaction(transaction.transactional_id, transaction.producer_id, transaction.epoch, 0)
                client.end_again([EndToRepeat(again, frozenset({partition()}))], commit=True)
    skipping(broker)


# LIST


@pytest.mark.parametrize(("commit", "state"), [(True, "CompleteCommit"), (False, "CompleteAbort")])
@pytest.mark.parametrize("transactional_id", [OLD_ID, name()])
def test_an_id_whose_rows_hang_is_listed_with_the_partitions(
    broker: FakeBroker, console: ScriptedConsole, transactional_id: str, commit: bool, state: str
) -> None:
    """`list` said that all ids were complete, while readers stood still."""
    hang(broker, transactional_id, commit=commit)
    (transaction,) = listing(console, "--topic", TOPIC)
    assert transaction["transactional_id"] == transactional_id
    assert (transaction["state"], transaction["attempt"]) == (state, 0)
    assert transaction["hanging_partitions"] == [{"topic": TOPIC, "partition": 0}]
    console.said.clear()
    assert call(console, "list", "--topic", TOPIC) == 0
    _, form, row, _, summary = console.said
    assert form == "P-q-TASK-ATTEMPT"
    assert [cell.strip() for cell in row.split("  ") if cell.strip()][:3] == ["0", "0", f"{state}, hangs"]
    assert row.endswith("t: 0")
    assert summary.endswith("0 open, 1 complete, with rows or markers that hang or may hang; all others are complete.")


def test_the_marker_topic_of_a_decision_is_looked_at_without_being_named(broker: FakeBroker, console: ScriptedConsole) -> None:
    never_visible(broker)
    transactions = listing(console)
    assert [each["transactional_id"] for each in transactions] == [name(task=0), name(task=1)]
    assert [each["version"] for each in transactions] == [7, 7]
    assert [each["marker_hangs"] for each in transactions] == [True, False]
    assert all(each["hanging_partitions"] for each in transactions)


def test_an_open_transaction_explains_why_a_marker_is_pending(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name()).end(commit=True)
    orphan(broker, name(attempt=1)).commit_offset("P-q-0-marker", 1)
    assert [each["state"] for each in listing(console, "--topic", TOPIC)] == ["Ongoing"]


def test_without_a_topic_the_list_says_that_it_cannot_know_what_hangs(broker: FakeBroker, console: ScriptedConsole) -> None:
    orphan(broker, name("lost", prefix="Q")).end(commit=False)
    assert call(console, "list", prefix="Q") == 0
    assert "whether rows of complete transactions hang is not known: name the topics" in console.noted[0]
    assert call(console, "list", "--topic", "absent", prefix="Q") == 0
    assert "topic absent does not exist" in console.noted[-1]


def test_without_read_partitions_that_stand_still_are_named_as_suspicious(broker: FakeBroker, console: ScriptedConsole) -> None:
    hang(broker, name(), commit=False)
    foreign = orphan(broker, name(prefix="Q"), rows=0)
    foreign.write(b"x", partition=4)
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED, times=6)
    assert call(console, "list", "--topic", TOPIC) == 0
    assert "CompleteAbort, may hang" in console.text
    assert "readers stand still in t-0, t-4: rows of complete transactions hang there, or somebody else's" in console.noted[-1]
    assert console.noted[-1].endswith("grant the user READ on the topics t")


def test_where_no_broker_may_skip_control_records_nothing_more_is_asked(broker: FakeBroker, console: ScriptedConsole) -> None:
    for node_id in range(2):
        broker.supported_features[node_id]["metadata.version"] = 29
    orphan(broker, name()).end(commit=False)
    assert call(console, "list", "--topic", TOPIC) == 0
    assert not broker.requests_of(ApiKey.DESCRIBE_PRODUCERS)
    assert not broker.requests_of(ApiKey.LIST_OFFSETS)


# REPAIR


@pytest.mark.parametrize("version", [2, 1, 0])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("transactional_id", [OLD_ID, name()])
def test_repair_repeats_what_was_decided_about_rows_that_hang(
    broker: FakeBroker, console: ScriptedConsole, transactional_id: str, commit: bool, version: int
) -> None:
    broker.set_transaction_version(version)
    hang(broker, transactional_id, commit=commit)
    assert readers_stand_still(broker)
    assert call(console, "repair", "--topic", TOPIC) == 0
    assert console.questions == ["Repair 1 complete transaction?"]
    assert console.said[-1] == "Repaired: 1 transactional id."
    assert rows(broker) == ([b"row", b"row"] if commit else [])
    assert not readers_stand_still(broker)
    assert state_of(broker, transactional_id) is State.COMPLETE_COMMIT
    assert call(console, "repair", "--topic", TOPIC) == 0
    assert console.said[-1].startswith("Nothing to repair: prefix P has no transaction that hangs")


@pytest.mark.parametrize("more_repeats", [0, 1, 5])
def test_repair_completes_a_version_that_is_decided_and_not_visible(
    broker: FakeBroker, console: ScriptedConsole, more_repeats: int
) -> None:
    """However often drivers have repeated the commit."""
    never_visible(broker, more_repeats)
    assert call(console, "commit") == 0
    assert console.said[-1].startswith("Nothing to commit")
    assert call(console, "repair") == 0
    assert "Committed: version 7 of owner q, 2 rows." in console.said
    assert rows(broker) == [b"a", b"b"]
    with DriverRun(broker.bootstrap_servers, TOPIC, "r2") as again:
        assert again.write_version(7, ["a"], ["b"]).how is HowCommitted.FOUND
        again.write_version(8, ["c"])
    assert rows(broker) == [b"a", b"b", b"c"]


def test_repair_says_what_still_hangs_and_can_be_repeated(broker: FakeBroker, console: ScriptedConsole) -> None:
    hang(broker, name(), commit=True)
    skipping(broker, 0)
    assert call(console, "repair", "--topic", TOPIC) == 1
    assert "1 transactional id still hang: have all partitions leaders?" in console.noted[-1]
    skipping(broker)
    assert call(console, "repair", "--topic", TOPIC) == 0
    assert rows(broker) == [b"row", b"row"]


def test_rows_of_an_earlier_transaction_are_left_alone(broker: FakeBroker, console: ScriptedConsole) -> None:
    """The release before took the id again: its coordinator tells of the later transaction. To repeat that commit would show rows
    that were aborted."""
    hang(broker, OLD_ID, commit=False)
    later = Writer(broker, OLD_ID)
    later.write(b"later", partition=5)
    later.end(commit=True)
    for command in ("repair", "repair"):
        assert call(console, command, "--topic", TOPIC) == 1
        assert "Left alone: owner q: 1 transactional id. It cannot be told any more whether the rows that hang" in console.text
    assert console.questions == []
    assert rows(broker) == [b"later"]
    assert readers_stand_still(broker)


def test_rows_that_hang_of_an_id_that_is_taken_again_are_not_aborted(broker: FakeBroker, console: ScriptedConsole) -> None:
    """They were committed, and brokers say no more than Empty."""
    hang(broker, OLD_ID, commit=True)
    Writer(broker, OLD_ID, timeout_ms=15 * MINUTE)
    for command in ("abort", "repair"):
        assert call(console, command, "--topic", TOPIC) == 1
        assert "It cannot be told any more whether the rows that hang" in console.said[-2]
    assert readers_stand_still(broker)


def a_new_row(broker: FakeBroker) -> Callable[[], object]:
    writer = orphan(broker, name(task=3))
    return lambda: writer.write(b"more")


def test_a_live_query_is_not_repaired(broker: FakeBroker, console: ScriptedConsole) -> None:
    hang(broker, name(), commit=True)
    console.meanwhile = a_new_row(broker)
    assert call(console, "repair", "--topic", TOPIC, "--force") == 1
    assert "The query is alive: the transaction of task 3, attempt 0, has new rows" in console.text
    assert readers_stand_still(broker)


@pytest.mark.parametrize("answer", ["n", None])
def test_without_a_yes_nothing_is_repaired(broker: FakeBroker, console: ScriptedConsole, answer: str | None) -> None:
    hang(broker, name(), commit=True)
    console.answer = answer
    assert call(console, "repair", "--topic", TOPIC) == (2 if answer is None else 1)
    assert rows(broker) == [b"row"]


def test_on_suspicion_aborts_are_repeated_and_commits_need_read(broker: FakeBroker, console: ScriptedConsole) -> None:
    """A commit that is repeated without need shows nothing; one that is repeated for rows of an earlier transaction would."""
    hang(broker, name(task=0), commit=False)
    hang(broker, name(task=1), commit=True)
    broker.fail_next(ApiKey.DESCRIBE_PRODUCERS, Errors.TOPIC_AUTHORIZATION_FAILED, times=100)
    assert call(console, "repair", "--topic", TOPIC, "--yes") == 0
    assert rows(broker) == [b"row"]  # in the partition that had its control record
    assert state_of(broker, name(task=0)) is State.COMPLETE_COMMIT
    assert "grant the user READ on the topics t" in console.text


# ABORT AND COMMIT


def test_abort_settles_what_it_has_aborted(broker: FakeBroker, console: ScriptedConsole) -> None:
    """Rows of a failed write stayed in a partition that had no leader, and the next run made them visible."""
    orphan(broker, name(), rows=2)
    skipping(broker, 0)
    assert call(console, "abort", "--yes", "--timeout-ms", "1500") == 1
    assert "1 transactional id not settled" in console.noted[-1]
    assert readers_stand_still(broker)
    skipping(broker)
    assert call(console, "repair", "--topic", TOPIC, "--yes") == 0
    assert not readers_stand_still(broker)
    assert rows(broker) == []
    with DriverRun(broker.bootstrap_servers, TOPIC, "r2") as again:
        again.write_version(2, ["a"])
    assert rows(broker) == [b"a"]


def test_the_repetition_of_a_commit_is_never_aborted(broker: FakeBroker, console: ScriptedConsole) -> None:
    """Its driver died between the two requests of a repetition. An abort would take the committed rows away."""
    (promised,) = decided(broker, ["a"])
    skipping(broker, *range(6))
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        transaction = broker.transactions.transactions[promised]
        client.end_transactions([PreparedTransaction(promised, transaction.producer_id, transaction.epoch, 2)], commit=True)
    broker.transactions.add(promised, transaction.producer_id, transaction.epoch, map(partition, range(6)))
    skipping(broker)
    assert call(console, "abort", "--force", "--even-decided", "--topic", TOPIC) == 1
    assert "Its commit is being repeated, as rows of it hang" in console.text
    assert is_open(broker, promised)
    assert call(console, "repair", "--topic", TOPIC) == 0
    assert rows(broker) == [b"a"]


@pytest.mark.parametrize("version", [2, 1])
def test_aborted_rows_of_an_id_that_was_put_to_rest_are_not_committed(
    broker: FakeBroker, console: ScriptedConsole, version: int
) -> None:
    """The empty commit that puts an id to rest leaves the epoch: it looked like the repeated commit of the rows."""
    broker.set_transaction_version(version)
    hang(broker, name(), commit=False)
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        taken_over = PreparedTransaction(name(), *client.fence([name()])[name()], 0)
        client.end_again([EndToRepeat(taken_over, frozenset(), PrefixNames("P").aborted_group)], commit=True)
    assert state_of(broker, name()) is State.COMPLETE_COMMIT
    assert call(console, "repair", "--topic", TOPIC) == 1
    assert "It cannot be told any more whether the rows that hang" in console.text
    assert rows(broker) == []


def hang_marker(broker: FakeBroker, transactional_id: str, *, commit: bool) -> None:
    writer = orphan(broker, transactional_id)
    writer.commit_offset("P-q-0-marker", 1)
    skipping(broker, group="P-q-0-marker")
    assert not writer.end(commit=commit)
    skipping(broker)


def test_a_marker_that_hangs_of_an_aborted_attempt_is_aborted(broker: FakeBroker, console: ScriptedConsole) -> None:
    """The other attempt of the task is settled, and nothing is repeated for it."""
    orphan(broker, name()).end(commit=True)
    hang_marker(broker, name(attempt=1), commit=False)
    (transaction,) = listing(console)
    assert (transaction["attempt"], transaction["marker_hangs"]) == (1, True)
    assert call(console, "repair") == 0
    assert listing(console) == []
    assert rows(broker) == [b"row"]


def test_a_marker_that_hangs_alone_is_not_committed(broker: FakeBroker, console: ScriptedConsole) -> None:
    """Only rows have an epoch that tells whose they are: the marker may be of an abort, and would say that rows are in Kafka."""
    hang_marker(broker, name(), commit=True)
    assert [each["marker_hangs"] for each in listing(console)] == [True]
    assert call(console, "repair") == 1
    assert "It cannot be told any more whether the rows that hang" in console.text
