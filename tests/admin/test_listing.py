"""TransactionClient: transactions are listed and described, whatever brokers leave out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.transaction_client import PROBE_SUFFIXES, TRANSACTION_LOG
from spark_kafka_sink.admin.transaction_operations import ListedTransaction, TransactionState, prefix_pattern
from spark_kafka_sink.errors import (
    AuthorizationError,
    KafkaTimeoutError,
    ResponseTooLargeError,
    UnsupportedVersionError,
)
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from tests.admin.cluster_changes import when
from tests.admin.clusters import NODES, Cluster, client_of, count
from tests.admin.open_transactions import TOPIC, Writer, partition
from tests.fakes.fake_broker import Fault
from tests.fakes.transaction_coordinator import internal_partition


def test_a_list_that_is_too_large_is_named_in_the_error_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client connected and asked again until max.block.ms, and then doubted security.protocol."""
    broker = cluster()
    for number in range(9):
        Writer(broker, f"P-{number}")
    limited = API_TABLE[ApiKey.LIST_TRANSACTIONS]._replace(max_response_bytes=50)
    monkeypatch.setitem(API_TABLE, ApiKey.LIST_TRANSACTIONS, limited)
    with client_of(broker, max_block_ms=5_000) as client, pytest.raises(ResponseTooLargeError) as raised:
        client.list_transactions("P-")
    assert raised.value.message.startswith("node ")
    assert f":{broker.bootstrap_servers.split(':')[1][:2]}" in raised.value.message
    assert "bytes to LIST_TRANSACTIONS, and this client takes at most 50" in raised.value.message
    assert 1 <= count(broker, ApiKey.LIST_TRANSACTIONS) <= NODES


PREFIXED = "a.b+(c)|[d]{e}^$*?\\"  # each of RE2's operators


@pytest.mark.parametrize("version", [0, 1, 2])
def test_ids_with_a_prefix_are_listed_from_all_brokers(cluster: Cluster, version: int) -> None:
    broker = cluster(versions={ApiKey.LIST_TRANSACTIONS: (0, version)})
    names = [*(f"{PREFIXED}-{number}" for number in range(9)), f"{PREFIXED}\nnext line"]
    other_names = ["aXb+(c)|[d]{e}^$*?\\-1", f"x{PREFIXED}", "a"]
    for name in names + other_names:
        Writer(broker, name)
    with client_of(broker) as client:
        transactions = client.list_transactions(PREFIXED)
        assert len(client.list_transactions("")) == len(names + other_names)
    assert [each.transactional_id for each in transactions] == sorted(names)
    assert {each.state for each in transactions} == {TransactionState.EMPTY}
    requests = broker.requests_of(ApiKey.LIST_TRANSACTIONS)
    assert {request.node_id for request in requests} == {0, 1, 2}
    patterns = {request.message.transactional_id_pattern for request in requests[:3]}
    assert patterns == ({prefix_pattern(PREFIXED)} if version == 2 else {None})


def test_only_ids_in_the_states_that_are_asked_for_are_listed(cluster: Cluster) -> None:
    broker = cluster()
    empty, open_, aborted = Writer(broker, "P-empty"), Writer(broker, "P-open"), Writer(broker, "P-aborted")
    open_.write(b"x")
    aborted.write(b"y")
    aborted.end(commit=False)
    with client_of(broker) as client:
        transactions = client.list_transactions("P-", {TransactionState.ONGOING, TransactionState.EMPTY})
        assert transactions == [
            ListedTransaction("P-empty", empty.producer_id, "Empty"),
            ListedTransaction("P-open", open_.producer_id, "Ongoing"),
        ]
        with pytest.raises(UnsupportedVersionError, match="does not know the states Sleeping"):
            client.list_transactions("P-", ["Sleeping"])


def test_brokers_that_load_their_transactions_are_asked_again(cluster: Cluster) -> None:
    broker = cluster()
    Writer(broker, "P")
    failure_count = 5
    broker.fail_next(ApiKey.LIST_TRANSACTIONS, Errors.COORDINATOR_LOAD_IN_PROGRESS, times=failure_count)
    broker.drop_next(ApiKey.LIST_TRANSACTIONS)
    with client_of(broker) as client:
        assert [each.transactional_id for each in client.list_transactions("P")] == ["P"]
    assert all(isinstance(request.message, ListTransactionsRequest) for request in broker.requests_of(ApiKey.LIST_TRANSACTIONS))
    assert (
        count(broker, ApiKey.LIST_TRANSACTIONS) >= failure_count + 1 + NODES
    )  # one request is dropped, one of each node answered


def test_an_id_that_moves_between_two_answers_is_listed_once(cluster: Cluster) -> None:
    broker = cluster()
    Writer(broker, "x")

    def move(response: Any) -> Any:
        broker.move_coordinator(KeyType.TRANSACTION, "x", 0)
        return response

    broker.inject(Fault(ApiKey.LIST_TRANSACTIONS, node_id=2, reply=move))
    release = broker.hold_next(ApiKey.LIST_TRANSACTIONS, node_id=0)
    with (
        client_of(broker) as client,
        when(broker, lambda: broker.coordinators.node_of(KeyType.TRANSACTION, "x") == 0, release.set),
    ):
        assert [each.transactional_id for each in client.list_transactions("x")] == ["x"]


def test_a_prefix_of_any_kind_is_probed_in_all_partitions_of_the_transaction_log() -> None:
    for prefix in ("", "P", "orders-2024-é-", "x" * 200, "polygenelubricants", *(f"stream-{number}-" for number in range(300))):
        assert {internal_partition(f"{prefix}{each}") for each in PROBE_SUFFIXES} == set(range(50))


def test_brokers_are_asked_again_when_coordinators_have_moved_meanwhile(cluster: Cluster) -> None:
    """One broker answered before it took the id over, the other after it gave the id away: nobody listed it."""
    broker = cluster()
    Writer(broker, "P-x")
    broker.move_coordinator(KeyType.TRANSACTION, "P-x", 2)
    broker.move_coordinator(KeyType.TRANSACTION, "P-111", 2)  # in the same partition, let us say

    def move(response: Any) -> Any:
        broker.move_coordinator(KeyType.TRANSACTION, "P-x", 0)
        broker.move_coordinator(KeyType.TRANSACTION, "P-111", 0)
        return response

    broker.inject(Fault(ApiKey.LIST_TRANSACTIONS, node_id=0, reply=move))
    release = broker.hold_next(ApiKey.LIST_TRANSACTIONS, node_id=2)
    with (
        client_of(broker) as client,
        when(broker, lambda: broker.coordinators.node_of(KeyType.TRANSACTION, "P-x") == 0, release.set),
    ):
        assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]
    assert count(broker, ApiKey.LIST_TRANSACTIONS) == 2 * NODES  # all are asked before the move and after it


WITH_LEADERS = {TOPIC: 6, TRANSACTION_LOG: 50}


def test_coordinators_are_compared_by_leaders_where_those_can_be_seen(cluster: Cluster) -> None:
    """One request has them all. Brokers answer a hundred look-ups four times as slowly, most of a micro-batch's commit."""
    broker = cluster(topics=WITH_LEADERS)
    Writer(broker, "P-x")
    with client_of(broker) as client:
        for _ in range(2):
            assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]
    assert count(broker, ApiKey.FIND_COORDINATOR) == 0


def test_brokers_are_asked_again_when_leaders_have_moved_meanwhile(cluster: Cluster) -> None:
    """One broker answered before it took the id over, the other after it gave the id away: nobody listed it."""
    broker = cluster(topics=WITH_LEADERS)
    Writer(broker, "P-x")
    place = internal_partition("P-x")
    broker.move_coordinator(KeyType.TRANSACTION, "P-x", 2)
    broker.move_leader(TRANSACTION_LOG, place, 2)

    def move(response: Any) -> Any:
        broker.move_coordinator(KeyType.TRANSACTION, "P-x", 0)
        broker.move_leader(TRANSACTION_LOG, place, 0)
        return response

    broker.inject(Fault(ApiKey.LIST_TRANSACTIONS, node_id=0, reply=move))
    release = broker.hold_next(ApiKey.LIST_TRANSACTIONS, node_id=2)
    with (
        client_of(broker) as client,
        when(broker, lambda: broker.coordinators.node_of(KeyType.TRANSACTION, "P-x") == 0, release.set),
    ):
        assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]
    assert count(broker, ApiKey.LIST_TRANSACTIONS) == 2 * NODES  # all are asked before the move and after it


@pytest.mark.parametrize("error", [Errors.TOPIC_AUTHORIZATION_FAILED, Errors.UNKNOWN_TOPIC_OR_PARTITION])
def test_where_leaders_cannot_be_seen_coordinators_are_looked_up(cluster: Cluster, error: ErrorCode) -> None:
    """Only administrators may DESCRIBE the topic."""
    broker = cluster(topics=WITH_LEADERS)
    broker.topics[TRANSACTION_LOG].error = error
    Writer(broker, "P-x")
    with client_of(broker) as client:
        assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]
        assert client.whole_list_questions("P-") is None
    assert count(broker, ApiKey.FIND_COORDINATOR) == 2  # before all are asked and afterwards


def test_a_coordinator_without_a_leader_is_waited_for(cluster: Cluster) -> None:
    broker = cluster(topics=WITH_LEADERS)
    Writer(broker, "P-x")
    broker.move_leader(TRANSACTION_LOG, 3, -1)
    with client_of(broker) as client:
        assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]
        assert client.whole_list_questions("P-") is None
    assert count(broker, ApiKey.FIND_COORDINATOR) == 2  # before all are asked and afterwards


def test_a_list_by_questions_is_whole_as_long_as_no_leader_moves(cluster: Cluster) -> None:
    broker = cluster(topics=WITH_LEADERS)
    Writer(broker, "P-x")
    with client_of(broker) as client:
        assert client.whole_list_questions("P-") is None, "who coordinates is not known yet"
        client.list_transactions("P-")
        for node_id, is_whole in ((0, True), (1, False), (1, True)):
            quick = client.whole_list_questions("P-", [TransactionState.EMPTY])
            assert quick is not None
            listing, nothing = client.ask_together(quick.listing, client.fetch_offsets_question({}, require_stable=False))
            broker.move_leader(TRANSACTION_LOG, 0, node_id)
            assert [each.transactional_id for each in listing.read_answer()] == ["P-x"]
            assert nothing.read_answer() == {}
            assert client.ask(quick.is_whole) is is_whole


def test_a_list_by_questions_is_not_whole_when_another_broker_coordinates(cluster: Cluster) -> None:
    class ForgetfulRequests(RequestClient):
        has_forgotten = False

        def known_brokers(self) -> list[int]:
            return super().known_brokers()[:-1] if self.has_forgotten else super().known_brokers()

    broker = cluster(topics=WITH_LEADERS)
    with client_of(broker, ForgetfulRequests) as client:
        client.list_transactions("P-")
        ForgetfulRequests.has_forgotten = True
        quick = client.whole_list_questions("P-")
        assert quick is not None
        assert client.ask(quick.is_whole) is False


def test_a_second_listing_does_not_wait_because_metadata_has_just_been_fetched(cluster: Cluster) -> None:
    """The second listing waited for retry.backoff.ms: most of a micro-batch's commit."""
    broker = cluster()
    Writer(broker, "P-x")
    with client_of(broker, retry_backoff_ms=30_000, retry_backoff_max_ms=30_000, max_block_ms=20_000) as client:
        for _ in range(3):
            assert [each.transactional_id for each in client.list_transactions("P-")] == ["P-x"]


def test_a_listing_at_once_asks_each_broker_once_and_looks_up_nothing(cluster: Cluster) -> None:
    """A listing at once is a second look: what it misses, the next commit ends. With look-ups it took longer than the first."""
    broker = cluster()
    for number in range(10):
        Writer(broker, f"P-{number}")
    with client_of(broker) as client:
        client.list_transactions("P-")
        apis = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_TRANSACTIONS)
        before = [count(broker, api) for api in apis]
        assert len(client.list_transactions("P-", at_once=True)) == 10
        assert [count(broker, api) for api in apis] == [before[0], before[1], before[2] + NODES]


def test_a_listing_at_once_is_complete_when_it_is_a_clients_first_call(cluster: Cluster) -> None:
    broker = cluster()
    for number in range(10):
        Writer(broker, f"P-{number}")
    with client_of(broker) as client:
        assert len(client.list_transactions("P-", at_once=True)) == 10


def test_ids_that_have_no_coordinator_are_not_taken_for_absent(cluster: Cluster) -> None:
    """While a broker was down, and nobody had taken over what it keeps, the ids there were missing in the list."""
    broker = cluster()
    for number in range(30):
        Writer(broker, f"P-{number}")
    with client_of(broker) as client:
        broker.stop_node(2)
        with pytest.raises(KafkaTimeoutError, match=r"FindCoordinator of transactional id P-.*COORDINATOR_NOT_AVAILABLE"):
            client.list_transactions("P-", timeout_ms=5_000)
        broker.start_node(2)
        assert len(client.list_transactions("P-")) == 30


def test_a_coordinator_that_was_away_only_while_all_were_asked_is_asked_after_all(cluster: Cluster) -> None:
    """Its broker was not among those of the cluster then, and kept the same ids before and afterwards."""
    answering = itertools.chain([{0, 1, 2}, {0, 1}], itertools.repeat({0, 1, 2}))  # nodes, for each time that all are asked

    class PartialRequests(RequestClient):
        def ask_every_broker(self, *arguments: Any) -> Any:
            nodes = next(answering)
            return {node_id: answer for node_id, answer in super().ask_every_broker(*arguments).items() if node_id in nodes}

    broker = cluster()
    Writer(broker, "x")  # kept on broker 2
    with client_of(broker, PartialRequests) as client:
        assert len(client.list_transactions("x")) == 1
        assert [each.transactional_id for each in client.list_transactions("x")] == ["x"]


def test_coordinators_that_never_rest_end_a_listing_in_time(cluster: Cluster) -> None:
    broker = cluster()
    nodes = itertools.cycle(range(NODES))

    def move(response: Any) -> Any:
        broker.move_coordinator(KeyType.TRANSACTION, "P-111", next(nodes))
        return response

    broker.inject(Fault(ApiKey.LIST_TRANSACTIONS, node_id=0, reply=move), times=5_000)
    with client_of(broker) as client, pytest.raises(KafkaTimeoutError):
        client.list_transactions("P-", timeout_ms=300)


def test_without_permission_to_look_for_coordinators_the_describable_are_listed(cluster: Cluster) -> None:
    broker = cluster()
    Writer(broker, "P-x")
    broker.fail_next(ApiKey.FIND_COORDINATOR, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, times=2)
    with client_of(broker) as client:
        assert len(client.list_transactions("")) == 1


def test_transactions_are_described_by_their_coordinators(cluster: Cluster) -> None:
    broker = cluster()
    writers = [Writer(broker, f"P-{number}", timeout_ms=5000) for number in range(7)]
    writers[0].write(b"x", partition=1)
    writers[0].write(b"x", partition=3)
    with client_of(broker) as client:
        described = client.describe_transactions([*(writer.transactional_id for writer in writers), "never used", "P-0"])
    assert len(described) == 8
    assert described["never used"] is None
    busy, idle = described["P-0"], described["P-1"]
    assert busy is not None
    assert (busy.state, busy.producer_id, busy.producer_epoch) == (TransactionState.ONGOING, writers[0].producer_id, 0)
    assert (busy.timeout_ms, busy.start_time_ms) == (5000, broker.clock.wall_ms())
    assert busy.partitions == {partition(1), partition(3)}
    assert idle is not None
    assert (idle.state, idle.start_time_ms, idle.partitions) == (TransactionState.EMPTY, None, frozenset())
    assert count(broker, ApiKey.DESCRIBE_TRANSACTIONS) <= NODES


@pytest.mark.parametrize("start_ms", [2**63 - 1, 253_402_300_800_000, -2])
def test_a_start_that_no_date_can_show_is_none(cluster: Cluster, start_ms: int) -> None:
    """Such a start ended `python -m jobs.transactions list --json` in a traceback."""
    broker = cluster()
    writer = Writer(broker, "P-0")
    writer.write(b"x")
    broker.transactions.transactions["P-0"].start_ms = start_ms
    with client_of(broker) as client:
        described = client.describe_transactions(["P-0"])["P-0"]
    assert described is not None
    assert described.start_time_ms is None


def test_an_id_that_may_not_be_described_is_an_error_with_the_permission_to_grant(cluster: Cluster) -> None:
    broker = cluster()
    broker.fail_next(ApiKey.DESCRIBE_TRANSACTIONS, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with client_of(broker) as client, pytest.raises(AuthorizationError, match=r"on the transactional id 'P' .*DESCRIBE"):
        client.describe_transactions(["P"])
