"""admin/transaction_client.py over sockets, against the fake cluster of three brokers."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import EndOutcome, EndToRepeat, TransactionEnd
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    ProtocolError,
    UnsupportedVersionError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.admin.cluster_changes import when
from tests.admin.clusters import CALLS, NODES, QUICK, Cluster, client_of, count, state_of
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.fakes.transaction_coordinator import State

# ENDING TRANSACTIONS


@pytest.mark.parametrize("level", [1, 2])
def test_transactions_of_many_coordinators_are_committed_by_somebody_else(cluster: Cluster, level: int) -> None:
    broker = cluster(transaction_version=level)
    writers = [Writer(broker, f"P-{number}") for number in range(40)]
    for number, writer in enumerate(writers):
        writer.write(b"%d" % number, partition=number % 6)
    assert broker.committed_values(TOPIC) == []
    with client_of(broker) as client:
        outcomes = client.end_transactions([writer.prepared() for writer in writers], True)
    assert list(outcomes) == [f"P-{number}" for number in range(40)]
    assert {outcome.end for outcome in outcomes.values()} == {TransactionEnd.ENDED}
    assert sorted(broker.committed_values(TOPIC)) == sorted(b"%d" % number for number in range(40))
    requests = broker.requests_of(ApiKey.END_TXN)
    assert {request.node_id for request in requests} == {0, 1, 2}
    assert {request.header.api_version for request in requests} == {5 if level == 2 else 4}


def test_aborted_transactions_are_seen_by_nobody(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    writer.write(b"a")
    with client_of(broker) as client:
        assert client.end_transactions([writer.prepared()], False)["P"].end is TransactionEnd.ENDED
    assert state_of(broker, "P") is State.COMPLETE_ABORT
    assert broker.last_stable_offset(TOPIC, 0) == 2


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_lost_answer_is_asked_for_again(cluster: Cluster, level: int, is_carried_out: bool) -> None:
    broker = cluster(transaction_version=level)
    writers = [Writer(broker, f"P-{number}") for number in range(12)]
    for writer in writers:
        writer.write(b"x")
    broker.drop_next(ApiKey.END_TXN, times=5, after_append=is_carried_out)
    with client_of(broker) as client:
        outcomes = client.end_transactions([writer.prepared() for writer in writers], True)
    assert {outcome.end for outcome in outcomes.values()} == {TransactionEnd.ENDED}
    assert len(broker.committed_values(TOPIC)) == 12


@pytest.mark.parametrize("level", [1, 2])
def test_markers_that_are_being_written_are_waited_for(cluster: Cluster, level: int) -> None:
    """The answer to the first EndTxn got lost, and the second is answered CONCURRENT_TRANSACTIONS until the markers are there."""
    broker = cluster(transaction_version=level)
    broker.transactions.holds_markers = True
    writer = Writer(broker, "P")
    writer.write(b"x")
    broker.drop_next(ApiKey.END_TXN, after_append=True)
    request_count = 4  # after so many requests the markers are written
    with (
        client_of(broker) as client,
        when(broker, lambda: count(broker, ApiKey.END_TXN) == request_count, broker.transactions.write_markers),
    ):
        assert client.end_transactions([writer.prepared()], True)["P"].end is TransactionEnd.ENDED
    assert count(broker, ApiKey.END_TXN) > request_count
    assert broker.committed_values(TOPIC) == [b"x"]


@pytest.mark.parametrize("error", [Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR])
def test_a_coordinator_that_is_not_there_yet_is_waited_for(cluster: Cluster, error: ErrorCode) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    writer.write(b"x")
    broker.fail_next(ApiKey.FIND_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, times=2)
    broker.fail_next(ApiKey.END_TXN, error, times=3)
    with client_of(broker) as client:
        assert client.end_transactions([writer.prepared()], True)["P"].end is TransactionEnd.ENDED


def test_a_coordinator_that_moves_in_the_middle_is_followed(cluster: Cluster) -> None:
    broker = cluster()
    writers = [Writer(broker, f"P-{number}") for number in range(6)]
    for writer in writers:
        writer.write(b"x")
    with client_of(broker) as client:
        client.describe_transactions([writer.transactional_id for writer in writers])  # now it knows all coordinators
        for writer in writers:
            node_id = broker.coordinators.node_of(KeyType.TRANSACTION, writer.transactional_id)
            broker.move_coordinator(KeyType.TRANSACTION, writer.transactional_id, (node_id + 1) % NODES)
        outcomes = client.end_transactions([writer.prepared() for writer in writers], True)
    assert {outcome.end for outcome in outcomes.values()} == {TransactionEnd.ENDED}
    assert len(broker.committed_values(TOPIC)) == 6


def test_a_coordinator_whose_broker_stops_is_found_on_another(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "x")  # kept on broker 2
    writer.write(b"x")
    assert broker.coordinators.node_of(KeyType.TRANSACTION, "x") == 2
    with client_of(broker) as client:
        client.describe_transactions(["x"])
        broker.stop_node(2)
        with when(
            broker,
            lambda: count(broker, ApiKey.FIND_COORDINATOR) >= 3,
            lambda: broker.move_coordinator(KeyType.TRANSACTION, "x", 1),
        ):
            assert client.end_transactions([writer.prepared()], True)["x"].end is TransactionEnd.ENDED
    assert broker.committed_values(TOPIC) == [b"x"]


def timed_out(broker: FakeBroker) -> Writer:
    writer = Writer(broker, "P", timeout_ms=1000)
    writer.write(b"x")
    broker.clock.advance(2000)
    assert broker.transactions.abort_timed_out() == ["P"]
    return writer


def fenced(broker: FakeBroker) -> Writer:
    writer = Writer(broker, "P")
    writer.write(b"x")
    successor = Writer.__new__(Writer)
    successor.__dict__ |= vars(writer)
    while successor.init():
        continue
    return writer


def committed_and_followed(broker: FakeBroker) -> Writer:
    writer = Writer(broker, "P")
    writer.write(b"x")
    assert not writer.end(commit=True)
    successor = Writer(broker, "P")
    successor.write(b"y")
    return writer


def unknown_here(broker: FakeBroker) -> Writer:
    writer = Writer(broker, "P")
    del broker.transactions.transactions["P"]
    return writer


@pytest.mark.parametrize(
    ("level", "what_happened", "error"),
    [
        (2, timed_out, Errors.INVALID_TXN_STATE),
        (1, timed_out, Errors.PRODUCER_FENCED),
        (2, fenced, Errors.PRODUCER_FENCED),
        (1, fenced, Errors.PRODUCER_FENCED),
        (2, committed_and_followed, Errors.PRODUCER_FENCED),
        (2, unknown_here, Errors.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_transaction_that_is_not_open_any_more_is_named_in_its_outcome(
    cluster: Cluster, level: int, what_happened: Callable[[FakeBroker], Writer], error: ErrorCode
) -> None:
    broker = cluster(transaction_version=level)
    writer, other = what_happened(broker), Writer(broker, "other")
    other.write(b"other", partition=1)
    with client_of(broker) as client:
        outcomes = client.end_transactions([writer.prepared(), other.prepared()], True)
    assert outcomes["P"].end is TransactionEnd.NOT_OPEN
    assert isinstance(outcomes["P"].error, BrokerError)
    assert outcomes["P"].error.error_code == error.number
    assert "EndTxn (commit) of transactional id P" in str(outcomes["P"].error)
    assert outcomes["other"].end is TransactionEnd.ENDED
    assert outcomes["other"].error is None


def test_what_kafka_answers_to_a_commit_that_is_late_is_the_same_word_for_word(cluster: Cluster) -> None:
    broker = cluster()
    for error in (Errors.INVALID_TXN_STATE, Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH):
        broker.fail_next(ApiKey.END_TXN, error)
        with client_of(broker) as client:
            assert client.end_transactions([PreparedTransaction("P", 1, 0, 2)], True)["P"].end is TransactionEnd.NOT_OPEN


@pytest.mark.parametrize("error", [Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.UNKNOWN_SERVER_ERROR])
def test_the_outcome_of_a_refused_end_has_its_reason(cluster: Cluster, error: ErrorCode) -> None:
    broker = cluster()
    broker.fail_next(ApiKey.END_TXN, error)
    with client_of(broker) as client:
        outcome = client.end_transactions([PreparedTransaction("P", 1, 0, 2)], True)["P"]
    assert outcome.end is TransactionEnd.FAILED
    assert isinstance(outcome.error, AuthorizationError) == (error.number == 53)
    assert ("Grant the user WRITE on the transactional id 'P' or on a prefix of it" in str(outcome.error)) == (error.number == 53)


def test_what_is_not_answered_in_time_leaves_the_outcomes_of_the_others_known(cluster: Cluster) -> None:
    broker = cluster()
    writers = [Writer(broker, name) for name in ("x", "y")]  # on brokers 2 and 0
    for writer in writers:
        writer.write(writer.transactional_id.encode())
    broker.hold_next(ApiKey.END_TXN, node_id=2)
    with client_of(broker) as client:
        outcomes = client.end_transactions([writer.prepared() for writer in writers], True, timeout_ms=5_000)
    assert [outcome.end for outcome in outcomes.values()] == [TransactionEnd.FAILED, TransactionEnd.ENDED]
    assert isinstance(outcomes["x"].error, KafkaTimeoutError)
    assert "was not answered within 5000 ms; the last trouble: node 2 has not answered" in outcomes["x"].error.message


def test_two_transactions_of_one_id_are_a_mistake(cluster: Cluster) -> None:
    with client_of(cluster()) as client, pytest.raises(ValueError, match="'P' is named more than once"):
        client.end_transactions([PreparedTransaction("P", 1, 0, 2), PreparedTransaction("P", 1, 1, 2)], True)


def test_nothing_to_end_asks_nobody(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        assert client.end_transactions([], True) == {}
        assert client.fence([]) == {}
        assert client.end_again([], True) == {}
        assert client.describe_transactions([]) == {}
        assert client.fetch_offsets({}, True) == {}
        client.commit_offsets("g", {})
    assert broker.requests == []


def test_a_prepared_transaction_travels_from_the_task_to_the_driver() -> None:
    prepared = PreparedTransaction("P", 7, 1, 2)
    assert pickle.loads(pickle.dumps(prepared)) == prepared


# FENCING


@pytest.mark.parametrize("level", [1, 2])
def test_a_fenced_transaction_is_aborted_and_its_producer_shut_out(cluster: Cluster, level: int) -> None:
    broker = cluster(transaction_version=level)
    orphan, empty = Writer(broker, "P-1"), Writer(broker, "P-2")
    orphan.write(b"x")
    with client_of(broker) as client:
        identities = client.fence(["P-1", "P-2", "P-1", "P-3"])
        outcomes = client.end_transactions([orphan.prepared()], True)
    assert list(identities) == ["P-1", "P-2", "P-3"]
    assert identities["P-1"].producer_id == orphan.producer_id
    assert identities["P-1"].producer_epoch > orphan.epoch
    assert identities["P-2"] == (empty.producer_id, 1)
    assert identities["P-3"].producer_epoch == 0
    assert broker.committed_values(TOPIC) == []
    assert broker.last_stable_offset(TOPIC, 0) == 2
    assert outcomes["P-1"].end is TransactionEnd.NOT_OPEN
    for writer in (orphan, empty):
        assert writer.write(b"y") is Errors.INVALID_PRODUCER_EPOCH


def test_fencing_waits_for_the_markers_of_a_commit_that_is_under_way(cluster: Cluster) -> None:
    broker = cluster()
    broker.transactions.holds_markers = True
    writer = Writer(broker, "P")
    writer.write(b"x")
    assert not writer.end(commit=True)
    inits = count(broker, ApiKey.INIT_PRODUCER_ID)
    with (
        client_of(broker) as client,
        when(broker, lambda: count(broker, ApiKey.INIT_PRODUCER_ID) == inits + 3, broker.transactions.write_markers),
    ):
        identity = client.fence(["P"])["P"]
    assert identity.producer_epoch == 2
    assert broker.committed_values(TOPIC) == [b"x"]
    assert state_of(broker, "P") is State.EMPTY


def test_fencing_gives_up_in_time(cluster: Cluster) -> None:
    broker = cluster()
    broker.transactions.holds_markers = True
    writer = Writer(broker, "P")
    writer.write(b"x")
    trouble = r"\(51\)|node 0 has not answered"  # whichever the time-out meets
    with (
        client_of(broker) as client,
        pytest.raises(KafkaTimeoutError, match=rf"InitProducerId of transactional id P .*({trouble})"),
    ):
        client.fence(["P"], 2_000)
    assert state_of(broker, "P") is State.PREPARE_ABORT


def timeout_of(broker: FakeBroker, transactional_id: str) -> int:
    return broker.transactions.transactions[transactional_id].timeout_ms


def test_a_fenced_id_gets_the_longest_time_out_that_brokers_allow_up_to_30_s(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        client.fence(["P-1"])
    broker.transactions.max_timeout_ms = 1000
    with client_of(broker) as client:
        client.fence(["P-2"])
        client.fence(["P-3"])
    assert [timeout_of(broker, f"P-{number}") for number in (1, 2, 3)] == [30_000, 1000, 1000]
    assert count(broker, ApiKey.DESCRIBE_CONFIGS) == 2  # once by each client


def test_whoever_names_a_time_out_needs_no_limit_of_brokers(cluster: Cluster) -> None:
    broker = cluster()
    broker.transactions.max_timeout_ms = 1000
    with client_of(broker, transaction_timeout_ms=700) as client:
        client.fence(["P-1"])
    with client_of(broker) as client:
        client.fence(["P-2"], transaction_timeout_ms=900)
    assert [timeout_of(broker, f"P-{number}") for number in (1, 2)] == [700, 900]
    assert count(broker, ApiKey.DESCRIBE_CONFIGS) == 0


def test_a_time_out_above_a_limit_that_brokers_do_not_tell_raises(cluster: Cluster) -> None:
    broker = cluster()
    broker.transactions.max_timeout_ms = 1000
    broker.fail_next(ApiKey.DESCRIBE_CONFIGS, Errors.CLUSTER_AUTHORIZATION_FAILED)
    with client_of(broker) as client, pytest.raises(BrokerError, match="KAFKA_INVALID_TRANSACTION_TIMEOUT"):
        client.fence(["P"])


def test_a_missing_permission_is_raised_when_all_others_are_fenced(cluster: Cluster) -> None:
    broker = cluster()
    broker.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with client_of(broker) as client, pytest.raises(AuthorizationError, match="Grant the user WRITE on the transactional id 'P-"):
        client.fence(["P-1", "P-2", "P-3"])
    assert len(broker.transactions.transactions) == 2


OLDER = {"versions": {ApiKey.END_TXN: (0, 4)}, "transaction_version": 1}  # Kafka before 4.0
LEVELS: dict[str, Any] = {"v2": {}, "v1": {"transaction_version": 1}, "v0": {"transaction_version": 0}, "3.9": OLDER}
by_broker = pytest.mark.parametrize("options", LEVELS.values(), ids=LEVELS)


def rest(client: TransactionClient, identities: dict[str, ProducerIdentity]) -> dict[str, EndOutcome]:
    """Put ids to rest that have no transaction, by an empty commit."""
    repeats = [EndToRepeat(PreparedTransaction(name, *each, 0), frozenset(), "g") for name, each in identities.items()]
    return client.end_again(repeats, commit=True)


@by_broker
def test_an_empty_commit_of_fenced_ids_leaves_only_those_at_work_empty(cluster: Cluster, options: Any) -> None:
    broker = cluster(**options)
    orphan = Writer(broker, "P-1")
    orphan.write(b"x")
    at_work = Writer(broker, "P-3")
    for _ in range(2):  # they can be fenced again
        with client_of(broker) as client:
            outcomes = rest(client, client.fence(["P-1", "P-2"]))
        assert {name: outcome.end for name, outcome in outcomes.items()} == {
            "P-1": TransactionEnd.ENDED,
            "P-2": TransactionEnd.ENDED,
        }
        assert state_of(broker, "P-1") is state_of(broker, "P-2") is State.COMPLETE_COMMIT
    assert state_of(broker, "P-3") is State.EMPTY
    assert not at_work.write(b"y")
    assert orphan.write(b"late") is Errors.INVALID_PRODUCER_EPOCH
    assert count(broker, ApiKey.ADD_OFFSETS_TO_TXN) == 4
    assert broker.violations == []
    assert "g" not in broker.offsets.groups
    assert broker.committed_values(TOPIC) == []


@by_broker
def test_a_fenced_id_that_a_task_has_taken_meanwhile_is_left_to_it(cluster: Cluster, options: Any) -> None:
    broker = cluster(**options)
    with client_of(broker) as client:
        fenced = client.fence(["P"])
        task = Writer(broker, "P")
        outcome = rest(client, fenced)["P"]
    assert outcome.end is not TransactionEnd.ENDED
    assert state_of(broker, "P") is State.EMPTY
    assert not task.write(b"x")


def test_an_empty_id_is_not_wedged_where_the_coordinator_cannot_log_version_5(cluster: Cluster) -> None:
    """A cluster that came from 3.x has level 0 of transaction.version until its operator raises it. Fencing ended Empty ids by
    EndTxn v5, as these brokers list it; the coordinator kept a pending transition, and every later write with the prefix ended
    with CONCURRENT_TRANSACTIONS, until the coordinator restarted."""
    broker = cluster(transaction_version=0)
    for _ in range(2):
        with client_of(broker) as client:
            (outcome,) = rest(client, client.fence(["P"], 5_000)).values()
        assert outcome.end is TransactionEnd.ENDED
    assert not Writer(broker, "P").write(b"x")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("begun", "level", "version"), [(2, 0, 4), (2, 1, 4), (2, 2, 5), (1, 2, 4), (1, 0, 4), (0, 2, 4)])
def test_a_transaction_ends_by_the_level_of_now_and_of_its_beginning(
    cluster: Cluster, begun: int, level: int, version: int, commit: bool
) -> None:
    """A decision may be carried out by a later run, and operators raise and lower the level meanwhile. What was begun below level
    2 stays in its version: an EndTxn v5 that repeats a v4 is taken for one of another transaction."""
    broker = cluster(transaction_version=begun)
    writer = Writer(broker, "P")
    assert not writer.write(b"x")
    broker.set_transaction_version(level)
    for _ in range(2):  # an end that is repeated is recognized
        with client_of(broker) as client:
            assert client.end_transactions([writer.prepared()], commit)["P"].end is TransactionEnd.ENDED
    assert {request.header.api_version for request in broker.requests_of(ApiKey.END_TXN)} == {version}
    assert broker.committed_values(TOPIC) == ([b"x"] if commit else [])
    assert not Writer(broker, "P").init()


def test_a_commit_that_is_repeated_in_another_version_is_no_commit_of_anything_else(cluster: Cluster) -> None:
    """The level was lowered after the commit. Its repetition cannot be recognized any more: NOT_OPEN, and markers tell."""
    broker = cluster()
    writer = Writer(broker, "P")
    writer.write(b"x")
    with client_of(broker) as client:
        assert client.end_transactions([writer.prepared()], True)["P"].end is TransactionEnd.ENDED
    broker.set_transaction_version(0)
    with client_of(broker) as client:
        assert client.end_transactions([writer.prepared()], True)["P"].end is TransactionEnd.NOT_OPEN
    assert broker.committed_values(TOPIC) == [b"x"]
    assert not Writer(broker, "P").write(b"y")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (Errors.GROUP_AUTHORIZATION_FAILED, "Grant the user READ on the group 'g'"),
        (Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Grant the user WRITE on the transactional id 'P-"),
    ],
    ids=str,
)
def test_an_empty_commit_that_is_not_permitted_is_an_outcome_of_its_own(cluster: Cluster, error: ErrorCode, remedy: str) -> None:
    broker = cluster(**OLDER)
    broker.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, error)
    with client_of(broker) as client:
        outcomes = rest(client, client.fence(["P-1", "P-2"]))
    (failed,) = (outcome for outcome in outcomes.values() if outcome.end is TransactionEnd.FAILED)
    assert isinstance(failed.error, AuthorizationError)
    assert remedy in failed.error.message
    assert sorted(state_of(broker, name) for name in outcomes) == [State.COMPLETE_COMMIT, State.EMPTY]


# OFFSETS


@pytest.mark.parametrize("version", [2, 5, 6, 7, 8, 9])
def test_offsets_of_many_groups_are_fetched_from_their_coordinators(cluster: Cluster, version: int) -> None:
    broker = cluster(versions={ApiKey.OFFSET_FETCH: (2, version), ApiKey.FIND_COORDINATOR: (0, 3 if version < 8 else 5)})
    groups = [f"P-{number}" for number in range(9)]
    with client_of(broker) as client:
        for number, group in enumerate(groups):
            client.commit_offsets(group, {partition(0): (number, f"rows={number}"), partition(1): (100 + number, "")})
        named_offsets = client.fetch_offsets({group: [partition(0), partition(5)] for group in groups}, False)
        everything = client.fetch_offsets({"P-3": None, "nobody": None}, False)
    assert named_offsets == {
        group: {partition(0): CommittedOffset(number, f"rows={number}")} for number, group in enumerate(groups)
    }
    assert everything == {
        "P-3": {partition(0): CommittedOffset(3, "rows=3"), partition(1): CommittedOffset(103, "")},
        "nobody": {},
    }
    requests = broker.requests_of(ApiKey.OFFSET_FETCH)
    assert {request.node_id for request in requests} == {0, 1, 2}
    # One request for each group, from version 8 on one for each coordinator of a call.
    assert len(requests) == len(groups) + 2 if version < 8 else len(requests) <= NODES + 2


@pytest.mark.parametrize("version", [7, 9])
def test_a_group_that_does_not_exist_has_no_offsets(cluster: Cluster, version: int) -> None:
    """Apache's brokers answer with no offset. Others say GROUP_ID_NOT_FOUND, and the first exactly-once write of a prefix, which
    looks for a decision and for markers that nobody has written yet, failed there."""
    broker = cluster(versions={ApiKey.OFFSET_FETCH: (2, version), ApiKey.FIND_COORDINATOR: (0, 3 if version < 8 else 5)})
    broker.offsets.rejects_unknown = True
    with client_of(broker) as client:
        client.commit_offsets("g", {partition(): (7, "")})
        for partitions in ([partition()], None):
            offsets = client.fetch_offsets({"g": partitions, "nobody": partitions}, True)
            assert offsets == {"g": {partition(): CommittedOffset(7)}, "nobody": {}}


def test_offsets_of_an_open_transaction_are_waited_for_only_when_asked_to(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    assert not writer.commit_offset("g", 7, "rows=1")
    with client_of(broker) as client:
        assert client.fetch_offsets({"g": [partition()]}, False) == {"g": {}}
        fetches = count(broker, ApiKey.OFFSET_FETCH)
        with when(broker, lambda: count(broker, ApiKey.OFFSET_FETCH) == fetches + 3, lambda: writer.end(commit=True) and None):
            offsets = client.fetch_offsets({"g": [partition()], "other": [partition()]}, True)
    assert offsets == {"g": {partition(): CommittedOffset(7, "rows=1")}, "other": {}}


def test_offsets_that_stay_unstable_are_an_error_that_names_the_group(cluster: Cluster) -> None:
    broker = cluster()
    Writer(broker, "P").commit_offset("g", 7)
    with client_of(broker) as client, pytest.raises(KafkaTimeoutError, match=r"OffsetFetch of group g .*UNSTABLE_OFFSET_COMMIT"):
        client.fetch_offsets({"g": [partition()]}, True, timeout_ms=5_000)


def test_stable_offsets_need_a_broker_that_knows_them(cluster: Cluster) -> None:
    broker = cluster(versions={ApiKey.OFFSET_FETCH: (2, 6)})
    with client_of(broker) as client, pytest.raises(UnsupportedVersionError, match="OFFSET_FETCH is needed in version 7"):
        client.fetch_offsets({"g": [partition()]}, True)


def test_a_plain_commit_overrides_what_is_pending(cluster: Cluster) -> None:
    broker = cluster()
    writer = Writer(broker, "P")
    writer.commit_offset("g", 7)
    with client_of(broker) as client:
        client.commit_offsets("g", {partition(): (8, "later")})
        writer.end(commit=True)
        assert client.fetch_offsets({"g": None}, True) == {"g": {partition(): CommittedOffset(8, "later")}}


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (
            {partition(): (1, "x" * 4097)},
            r"KAFKA_OFFSET_METADATA_TOO_LARGE\] OffsetCommit of group g, partition t-0: .* 4,097 char.*offset\.metadata\.max",
        ),
        (
            {TopicPartition("absent", 0): (1, "")},
            r"KAFKA_UNKNOWN_TOPIC_OR_PARTITION\] .*partition absent-0: .*only for a partition that exists",
        ),
    ],
)
def test_an_offset_that_cannot_be_committed_says_why(cluster: Cluster, offsets: dict[Any, Any], message: str) -> None:
    broker = cluster()
    with client_of(broker) as client:
        client.commit_offsets("g", {partition(): (1, "x" * 4096)})
        with pytest.raises(BrokerError, match=message):
            client.commit_offsets("g", offsets)


@pytest.mark.parametrize(
    ("api_key", "error", "message"),
    [
        (ApiKey.OFFSET_COMMIT, Errors.GROUP_AUTHORIZATION_FAILED, "Grant the user READ on the group 'g' or on a prefix"),
        (ApiKey.OFFSET_COMMIT, Errors.TOPIC_AUTHORIZATION_FAILED, "Grant the user READ on the topic 't'"),
        (ApiKey.OFFSET_COMMIT, Errors.UNKNOWN_MEMBER_ID, "consumers use this group id"),
        (ApiKey.OFFSET_FETCH, Errors.GROUP_AUTHORIZATION_FAILED, "Grant the user READ on the group 'g' or on a prefix"),
    ],
)
def test_a_refused_offset_says_what_to_change(cluster: Cluster, api_key: ApiKey, error: ErrorCode, message: str) -> None:
    broker = cluster()
    broker.fail_next(api_key, error)
    with client_of(broker) as client, pytest.raises(BrokerError, match=f"KAFKA_{error.name}.*{message}"):
        CALLS[api_key](client)


def test_a_commit_goes_to_the_end_through_everything_that_passes(cluster: Cluster) -> None:
    broker = cluster()
    broker.drop_next(ApiKey.OFFSET_COMMIT, after_append=True)
    broker.fail_next(ApiKey.OFFSET_COMMIT, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    broker.fail_next(ApiKey.OFFSET_COMMIT, Errors.NOT_COORDINATOR)
    broker.fail_next(ApiKey.OFFSET_COMMIT, Errors.REQUEST_TIMED_OUT)
    with client_of(broker) as client:
        client.commit_offsets("g", {partition(): (1, "m")})
    assert broker.offsets.committed("g")[partition()].metadata == "m"


def emptied(response: Any) -> Any:
    return dataclasses.replace(response, groups=tuple(dataclasses.replace(group, topics=()) for group in response.groups))


@pytest.mark.parametrize(
    ("api_key", "reply"),
    [
        (ApiKey.OFFSET_FETCH, emptied),
        (ApiKey.OFFSET_FETCH, lambda response: dataclasses.replace(response, groups=())),
        (ApiKey.OFFSET_COMMIT, lambda response: dataclasses.replace(response, topics=())),
        (ApiKey.DESCRIBE_TRANSACTIONS, lambda response: dataclasses.replace(response, transaction_states=())),
        (ApiKey.DESCRIBE_CONFIGS, lambda response: dataclasses.replace(response, results=())),
    ],
)
def test_an_answer_that_leaves_something_out_is_not_taken_for_none(
    cluster: Cluster, api_key: ApiKey, reply: Callable[[Any], Any]
) -> None:
    """A marker that an answer does not mention would otherwise count as "not committed", and its rows be written twice."""
    broker = cluster()
    broker.inject(Fault(api_key, reply=reply))
    with client_of(broker) as client, pytest.raises(ProtocolError, match="does not mention it"):
        CALLS[api_key](client)


# SETTINGS


def test_a_setting_of_a_broker_is_text(cluster: Cluster) -> None:
    broker = cluster()
    broker.transactions.max_timeout_ms = 123_000
    with client_of(broker) as client:
        assert client.broker_config("transaction.max.timeout.ms") == "123000"
        assert client.broker_config("no.such.setting") is None


def test_a_setting_that_may_not_be_known_is_none(cluster: Cluster) -> None:
    broker = cluster()
    broker.fail_next(ApiKey.DESCRIBE_CONFIGS, Errors.CLUSTER_AUTHORIZATION_FAILED)
    with client_of(broker) as client:
        assert client.broker_config("transaction.max.timeout.ms") is None
    with client_of(cluster(versions={ApiKey.DESCRIBE_CONFIGS: (0, -1)})) as client:
        assert client.broker_config("transaction.max.timeout.ms") is None


# THE CLIENT


@pytest.mark.parametrize("version", [1, 2, 3])
def test_brokers_that_find_one_coordinator_at_a_time_will_do(cluster: Cluster, version: int) -> None:
    broker = cluster(versions={ApiKey.FIND_COORDINATOR: (0, version)})
    ids = [f"P-{number}" for number in range(20)]
    with client_of(broker) as client:
        assert len(client.fence(ids)) == 20
    messages = [request.message for request in broker.requests_of(ApiKey.FIND_COORDINATOR)]
    assert sorted(message.key for message in messages if isinstance(message, FindCoordinatorRequest)) == sorted(ids)


def test_several_requests_are_in_flight_on_one_connection(cluster: Cluster) -> None:
    broker = cluster(nodes=1)
    ids = [f"P-{number}" for number in range(30)]
    accesses: list[ClusterAccess] = []

    def make_requests(access: ClusterAccess) -> RequestClient:
        accesses.append(access)
        return RequestClient(access)

    with client_of(broker, make_requests, max_in_flight_requests_per_connection=5) as client:
        client.fence(ids)
        release = broker.hold_next(ApiKey.INIT_PRODUCER_ID)
        network = accesses[0].network
        in_flight: list[int] = []
        poll = network.poll

        def watch(timeout_ms: int, now_ms: int) -> Any:
            in_flight.append(network.in_flight_request_count(0))
            if in_flight[-1] == 5:
                release.set()
            return poll(timeout_ms, now_ms)

        network.poll = watch
        client.fence(ids)
    assert max(in_flight) == 5


def test_all_calls_use_the_same_connections(cluster: Cluster) -> None:
    broker = cluster()
    with client_of(broker) as client:
        for _ in range(3):
            client.fence([f"P-{number}" for number in range(6)])
            client.list_transactions("P")
    assert count(broker, ApiKey.API_VERSIONS) <= NODES + 1  # one is to the bootstrap server


def test_a_wrong_address_is_named_in_the_error_when_time_is_up() -> None:
    client = TransactionClient({"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 300} | QUICK)
    with client, pytest.raises(KafkaTimeoutError, match=r"no broker answered: 127\.0\.0\.1:1: .*refused") as raised:
        client.fence(["P"])
    assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"


def test_a_wrong_password_ends_every_call_long_before_its_time_is_up(cluster: Cluster) -> None:
    broker = cluster(users={"me": "secret"})
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="wrong";'
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    config = {"bootstrap.servers": broker.bootstrap_servers} | QUICK | options
    with TransactionClient(config) as client:
        for call in (client.fence, client.describe_transactions):
            with pytest.raises(KafkaError, match="KAFKA_SASL_AUTHENTICATION_FAILED"):
                call(["P"])
        with pytest.raises(KafkaError, match="KAFKA_SASL_AUTHENTICATION_FAILED"):
            client.list_transactions("P")
        outcome = client.end_transactions([PreparedTransaction("P", 1, 0, 2)], True)["P"]
        assert outcome.end is TransactionEnd.FAILED
        assert "KAFKA_SASL_AUTHENTICATION_FAILED" in str(outcome.error)


def test_a_mistake_in_the_configuration_raises_at_once() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        TransactionClient({})


def test_group_coordinators_are_asked_for_as_groups(cluster: Cluster) -> None:
    broker = cluster()
    broker.move_coordinator(KeyType.TRANSACTION, "same", 0)
    broker.move_coordinator(KeyType.GROUP, "same", 1)
    with client_of(broker) as client:
        client.fence(["same"])
        client.fetch_offsets({"same": None}, False)
    assert [request.node_id for request in broker.requests_of(ApiKey.INIT_PRODUCER_ID)] == [0]
    fetches = broker.requests_of(ApiKey.OFFSET_FETCH)
    assert [request.node_id for request in fetches] == [1]
    assert all(isinstance(request.message, OffsetFetchRequest) for request in fetches)
