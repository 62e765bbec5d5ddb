"""admin/request_client.py over a scripted network and a manual clock."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from spark_kafka_sink.admin.operation import ANY_BROKER, Ask, Broker, BrokerGoneError
from spark_kafka_sink.admin.question import Question
from spark_kafka_sink.admin.transaction_operations import ExpectedProducer, ListedTransaction, ListTransactions, TakeOver
from spark_kafka_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    KafkaError,
    KafkaTimeoutError,
    ProtocolError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    KeyType,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsResponse, ListTransactionsResponseState
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from spark_kafka_sink.protocol.schema import Message
from tests.admin.scripted_network import ENDING, ScriptedNetwork, answers, asks
from tests.fakes.network_config import metadata

KEPT = partial(CoordinatorKey, KeyType.TRANSACTION)
TIMEOUT_MS = 60_000


@pytest.fixture
def net() -> ScriptedNetwork:
    return ScriptedNetwork()


def ask(net: ScriptedNetwork, *ids: str, timeout_ms: int = TIMEOUT_MS) -> list[str | KafkaError]:
    return net.client.ask(asks(*ids, target=KEPT), timeout_ms)


def id_of(request: ClientRequest) -> str:
    assert isinstance(request.message, EndTxnRequest)
    return request.message.transactional_id


def ended(net: ScriptedNetwork) -> list[tuple[str, int]]:
    return [(id_of(request), request.node_id) for request in net.requests_of(ApiKey.END_TXN)]


def keys_asked_for(net: ScriptedNetwork) -> list[tuple[str, ...]]:
    messages = [request.message for request in net.requests_of(ApiKey.FIND_COORDINATOR)]
    return [message.coordinator_keys for message in messages if isinstance(message, FindCoordinatorRequest)]


# COORDINATORS


def test_each_ask_goes_to_its_coordinator_and_results_keep_the_order_of_the_asks(net: ScriptedNetwork) -> None:
    net.coordinators = {"a": 2, "b": 0, "c": 2}
    assert ask(net, "a", "b", "c") == ["a", "b", "c"]
    assert sorted(ended(net)) == [("a", 2), ("b", 0), ("c", 2)]


def test_each_ask_is_reported_once_when_it_has_its_outcome(net: ScriptedNetwork) -> None:
    positions: list[int] = []
    assert net.client.ask(asks("a", "b", "c", target=KEPT), TIMEOUT_MS, positions.append) == ["a", "b", "c"]
    assert sorted(positions) == [0, 1, 2]


def test_coordinators_of_many_keys_are_found_with_one_request_and_each_key_once(net: ScriptedNetwork) -> None:
    ask(net, "a", "b", "a", "c")
    assert keys_asked_for(net) == [("a", "b", "c")]


def test_older_brokers_are_asked_for_one_coordinator_at_a_time() -> None:
    net = ScriptedNetwork()
    for node_id in range(3):
        net.network.set_api_versions(node_id, {ApiKey.FIND_COORDINATOR: (0, 3)})
    net.coordinators = {"a": 2, "b": 0}
    assert ask(net, "a", "b") == ["a", "b"]
    assert sorted(keys_asked_for(net)) == [("a",), ("b",)]
    assert sorted(ended(net)) == [("a", 2), ("b", 0)]


def test_a_request_for_coordinators_has_no_more_keys_than_a_broker_likes(net: ScriptedNetwork) -> None:
    ids = [f"id-{number}" for number in range(450)]
    assert ask(net, *ids) == ids
    assert [len(keys) for keys in keys_asked_for(net)] == [200, 200, 50]


def test_a_coordinator_is_found_once_and_remembered(net: ScriptedNetwork) -> None:
    ask(net, "a")
    ask(net, "a", "b")
    assert keys_asked_for(net) == [("a",), ("b",)]


def test_a_coordinator_that_metadata_does_not_list_is_reached(net: ScriptedNetwork) -> None:
    net.coordinators = {"a": 77}
    assert ask(net, "a") == ["a"]
    assert ended(net) == [("a", 77)]


@pytest.mark.parametrize("error", [Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_has_moved_is_found_again(net: ScriptedNetwork, error: ErrorCode) -> None:
    def moved(_: ClientRequest) -> EndTxnResponse:
        net.coordinators = {"a": 2}
        net.script[ApiKey.END_TXN] = answers()
        return EndTxnResponse(error_code=error.number)

    net.script[ApiKey.END_TXN] = moved
    assert ask(net, "a") == ["a"]
    assert ended(net) == [("a", 1), ("a", 2)]
    assert keys_asked_for(net) == [("a",), ("a",)]


@pytest.mark.parametrize("error", [Errors.CONCURRENT_TRANSACTIONS, Errors.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_is_not_ready_is_asked_again_without_being_looked_for(net: ScriptedNetwork, error: ErrorCode) -> None:
    net.script[ApiKey.END_TXN] = answers(error, error)
    assert ask(net, "a") == ["a"]
    assert ended(net) == [("a", 1)] * 3
    assert keys_asked_for(net) == [("a",)]


def test_until_a_coordinator_exists_it_is_looked_for(net: ScriptedNetwork) -> None:
    missing = FindCoordinatorResponse(coordinators=(Coordinator(key="a", error_code=Errors.COORDINATOR_NOT_AVAILABLE.number),))
    answer = answers(missing, missing, last=FindCoordinatorResponse(coordinators=(net.coordinator("a"),)))
    net.script[ApiKey.FIND_COORDINATOR] = answer
    assert ask(net, "a") == ["a"]
    assert len(keys_asked_for(net)) == 3


def test_a_lost_answer_is_asked_for_again_of_the_coordinator_that_is_found_then(net: ScriptedNetwork) -> None:
    def lose(_: ClientRequest) -> None:
        net.coordinators = {"a": 0}
        net.script[ApiKey.END_TXN] = answers()
        net.network.disconnect(1, net.clock.now_ms())

    net.script[ApiKey.END_TXN] = lose
    assert ask(net, "a") == ["a"]
    assert ended(net) == [("a", 1), ("a", 0)]


def test_a_broker_that_does_not_answer_in_time_is_asked_again() -> None:
    net = ScriptedNetwork(request_timeout_ms=1000, delivery_timeout_ms=2000)
    net.script[ApiKey.END_TXN] = lambda _: None if len(net.requests_of(ApiKey.END_TXN)) == 1 else EndTxnResponse()
    assert ask(net, "a") == ["a"]
    assert len(ended(net)) == 2


def test_a_coordinator_that_is_not_reached_is_looked_for_again_and_delays_nobody(net: ScriptedNetwork) -> None:
    net.network.set_unreachable(1, 20_000)
    net.coordinators = {"a": 1, "b": 2}
    (first, second) = ask(net, "a", "b", timeout_ms=10_000)
    assert isinstance(first, KafkaTimeoutError)
    assert "EndTxn of a was not answered within 10000 ms; the last trouble: node 1 cannot be reached" in first.message
    assert second == "b"
    net.coordinators = {"a": 0}
    assert ask(net, "a") == ["a"]
    assert ended(net) == [("b", 2), ("a", 0)]


# IN PARALLEL, AND NOT TOO OFTEN


def test_several_requests_are_in_flight_per_connection_never_more_than_the_maximum() -> None:
    net = ScriptedNetwork(max_in_flight=4)
    net.coordinators = {f"id-{number}": number % 2 for number in range(40)}
    waiting: list[int] = []

    def answer_when_full(request: ClientRequest) -> EndTxnResponse | None:
        is_full = len(net.network.requests) == 8 or len(net.requests_of(ApiKey.END_TXN)) == 40
        waiting.append(len(net.network.requests))
        return EndTxnResponse() if is_full or request is not net.network.requests[0] else None

    net.script[ApiKey.END_TXN] = answer_when_full
    assert ask(net, *net.coordinators) == list(net.coordinators)
    assert net.network.most_in_flight == 4
    assert max(waiting) == 8


def test_a_caller_who_repeats_by_himself_backs_off_and_keeps_his_deadline() -> None:
    net = ScriptedNetwork(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    waited = []
    for failures, max_wait_ms in ((1, 60_000), (3, 60_000), (3, 50), (1, 0)):
        started_ms = net.clock.now_ms()
        net.client.back_off(failures, max_wait_ms)
        waited.append(net.clock.now_ms() - started_ms)
    assert 80 <= waited[0] <= 120
    assert 320 <= waited[1] <= 480
    assert waited[2:] == [50, 0]


def test_an_ask_is_repeated_after_a_back_off_that_doubles() -> None:
    net = ScriptedNetwork(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    times: list[int] = []

    def answer(_: ClientRequest) -> EndTxnResponse:
        times.append(net.clock.now_ms())
        return EndTxnResponse(error_code=Errors.CONCURRENT_TRANSACTIONS.number if len(times) < 7 else 0)

    net.script[ApiKey.END_TXN] = answer
    assert ask(net, "a") == ["a"]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    for pause, expected in zip(pauses, (100, 200, 400, 800, 1000, 1000), strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected


@pytest.mark.parametrize("case", ["no answer", "no connection", "always refused", "no coordinator", "throttled", "nobody there"])
def test_waiting_takes_no_more_turns_than_there_is_reason_for(case: str) -> None:
    net = ScriptedNetwork()
    if case == "no answer":
        net.script[ApiKey.END_TXN] = lambda _: None
    elif case == "no connection":
        net.network.set_unreachable(1, 10 * TIMEOUT_MS)
    elif case == "always refused":
        net.script[ApiKey.END_TXN] = lambda _: EndTxnResponse(error_code=Errors.CONCURRENT_TRANSACTIONS.number)
    elif case == "no coordinator":
        net.coordinator = lambda key: Coordinator(key=key, error_code=15)
    elif case == "throttled":
        net.network.node(1).connected = True
        net.network.throttle(1, 10 * TIMEOUT_MS)
    else:
        net = ScriptedNetwork(nodes=1)
        net.network.set_unreachable(0, 10 * TIMEOUT_MS)
    (outcome,) = ask(net, "a")
    assert isinstance(outcome, KafkaTimeoutError)
    # Once in a back-off of at most 1.2 s, for FindCoordinator and EndTxn; every 50 ms while no broker can be asked at all.
    assert len(net.network.poll_timeouts_ms) < (1_300 if case == "nobody there" else 400)


# THE END OF A CALL


def test_no_call_outlasts_its_deadline_and_its_error_names_the_last_trouble(net: ScriptedNetwork) -> None:
    began_ms = net.clock.now_ms()
    net.script[ApiKey.END_TXN] = lambda request: (
        EndTxnResponse(error_code=Errors.CONCURRENT_TRANSACTIONS.number) if id_of(request) == "b" else None
    )
    first, second = ask(net, "a", "b", timeout_ms=7_000)
    assert net.clock.now_ms() == began_ms + 7_000
    assert isinstance(first, KafkaTimeoutError)
    assert isinstance(second, KafkaTimeoutError)
    assert str(first) == (
        "[KAFKA_TIMEOUT] EndTxn of a was not answered within 7000 ms; the last trouble: node 1 has not answered"
    )
    assert second.message.endswith("node 1 answers CONCURRENT_TRANSACTIONS (51)")


def test_a_deadline_in_the_past_sends_nothing(net: ScriptedNetwork) -> None:
    (outcome,) = ask(net, "a", timeout_ms=0)
    assert isinstance(outcome, KafkaTimeoutError)
    assert net.network.sent_requests == []


def test_an_answer_that_comes_after_the_deadline_is_ignored(net: ScriptedNetwork) -> None:
    net.script[ApiKey.END_TXN] = lambda _: None
    ask(net, "a", timeout_ms=100)
    net.script[ApiKey.END_TXN] = answers(Errors.INVALID_TXN_STATE)
    assert ask(net, "b") == ["b"]
    assert ended(net) == [("a", 1), ("b", 1)]


def test_when_no_broker_answers_the_error_says_so(net: ScriptedNetwork) -> None:
    net.network._metadata_updates.clear()
    net.metadata.report_unreachable("boot1:9001", "Connection refused")
    (outcome,) = ask(net, "a", timeout_ms=500)
    assert isinstance(outcome, KafkaTimeoutError)
    assert outcome.condition == "KAFKA_BROKER_UNREACHABLE"
    assert "no broker answered: boot1:9001: Connection refused; check bootstrap.servers" in outcome.message
    with pytest.raises(KafkaTimeoutError, match="Connection refused") as raised:
        net.client.ask_every_broker(ListTransactions(()), "", 500)
    assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"


def test_what_waits_for_a_broker_that_refuses_the_login_fails_and_nothing_else(net: ScriptedNetwork) -> None:
    net.coordinators = {"a": 1, "b": 2}
    ask(net, "a")
    refusal = AuthenticationError("no")
    net.network.disconnect(1, net.clock.now_ms())
    net.network.node(1).authentication_error = refusal
    net.network.node(1).backing_off_until_ms = 1 << 60
    assert ask(net, "a", "b") == [refusal, "b"]


def test_when_no_broker_accepts_the_login_everything_fails_at_once(net: ScriptedNetwork) -> None:
    refusal = AuthenticationError("no")

    def refuse() -> None:
        net.network.before_poll = lambda: None
        net.metadata.report_error(refusal)

    net.network._metadata_updates.clear()
    net.network.before_poll = refuse
    began_ms = net.clock.now_ms()
    assert list(map(str, ask(net, "a", "b"))) == [str(refusal)] * 2
    assert net.clock.now_ms() < began_ms + 1000


def test_a_refused_login_of_an_earlier_call_does_not_fail_the_next_one(net: ScriptedNetwork) -> None:
    ask(net, "a")
    net.metadata.report_error(AuthenticationError("no"))
    assert ask(net, "a") == ["a"]


def test_all_are_answered_before_the_first_error_is_raised(net: ScriptedNetwork) -> None:
    net.script[ApiKey.END_TXN] = answers(Errors.INVALID_TXN_STATE, Errors.CONCURRENT_TRANSACTIONS)
    with pytest.raises(BrokerError, match="KAFKA_INVALID_TXN_STATE"):
        net.client.ask_all(asks("a", "b", "c", target=KEPT), TIMEOUT_MS)
    assert [name for name, _ in ended(net)] == ["a", "b", "c", "b"]


def test_questions_that_are_asked_together_have_an_answer_or_an_error_each(net: ScriptedNetwork) -> None:
    error = Errors.INVALID_TXN_STATE.number
    net.script[ApiKey.END_TXN] = lambda request: EndTxnResponse(error_code=error if id_of(request) == "b" else 0)
    first, second, nothing = net.client.ask_together(
        [
            Question(asks("a", "c", target=KEPT), ", ".join).then(str.upper),
            Question(asks("b", "d", target=KEPT), ", ".join),
            Question((), len),
        ],
        TIMEOUT_MS,
    )
    assert (first.read_answer(), nothing.read_answer()) == ("A, C", 0)
    with pytest.raises(BrokerError, match="KAFKA_INVALID_TXN_STATE"):
        second.read_answer()
    assert len(net.requests_of(ApiKey.END_TXN)) == 4


def test_what_was_not_answered_in_time_is_named_together(net: ScriptedNetwork) -> None:
    net.script[ApiKey.END_TXN] = lambda request: EndTxnResponse() if id_of(request) == "b" else None
    with pytest.raises(KafkaTimeoutError) as raised:
        net.client.ask_all(asks("a", "b", "c", target=KEPT), 1000)
    assert raised.value.message == (
        "2 of 3 requests were not answered within 1000 ms: EndTxn of a, EndTxn of c; the first of them: EndTxn of a was not"
        " answered within 1000 ms; the last trouble: node 1 has not answered"
    )


def test_an_ask_that_fails_and_then_gets_no_answer_names_both(net: ScriptedNetwork) -> None:
    """The time ran out while it was asked again, and the error named the silence alone: on a busy machine almost always."""
    loading = EndTxnResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS.number)
    net.script[ApiKey.END_TXN] = lambda _: loading if len(net.requests_of(ApiKey.END_TXN)) == 1 else None
    with pytest.raises(
        KafkaTimeoutError, match=r"node 1 has not answered; before that, node 1 answers .*COORDINATOR_LOAD_IN_PROGRESS"
    ):
        net.client.ask_all(asks("a", target=KEPT), 1000)


def test_a_broker_that_throttles_is_not_said_to_be_silent(net: ScriptedNetwork) -> None:
    net.script[ApiKey.END_TXN] = lambda _: None
    net.metadata.report_throttle(Node(1, "b", 2), 9_000, net.clock.now_ms())
    with pytest.raises(KafkaTimeoutError, match=r"node 1 at b:2 throttles this client, .* 9,000 ms, because of a quota"):
        net.client.ask_all(asks("a", target=KEPT), 1000)


# REFUSALS AND NONSENSE


def coordinator_response(*coordinators: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(coordinators=coordinators)


def test_a_key_that_may_not_be_looked_for_fails_alone_and_names_the_permission(net: ScriptedNetwork) -> None:
    denied = Coordinator(key="a", error_code=Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.number)
    net.script[ApiKey.FIND_COORDINATOR] = answers(coordinator_response(denied, net.coordinator("b")))
    first, second = ask(net, "a", "b")
    assert isinstance(first, AuthorizationError)
    assert "Grant the user WRITE on the transactional id 'a'" in first.message
    assert second == "b"


def test_a_group_that_may_not_be_looked_for_says_which_permission_is_missing(net: ScriptedNetwork) -> None:
    net.script[ApiKey.FIND_COORDINATOR] = answers(coordinator_response(Coordinator(key="g", error_code=30)))
    (outcome,) = net.client.ask(asks("g", target=partial(CoordinatorKey, KeyType.GROUP)), TIMEOUT_MS)
    assert isinstance(outcome, AuthorizationError)
    assert "FindCoordinator of group g" in outcome.message
    assert "Grant the user READ on the group 'g'" in outcome.message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (coordinator_response(), "does not mention it"),
        (coordinator_response(Coordinator(key="other", node_id=1, host="h", port=1)), "does not mention it"),
        (
            coordinator_response(Coordinator(key="a", node_id=-1, host="h", port=1)),
            "the broker names a coordinator with the id -1",
        ),
    ],
)
def test_an_answer_that_names_no_coordinator_is_an_error(net: ScriptedNetwork, answer: Message, message: str) -> None:
    net.script[ApiKey.FIND_COORDINATOR] = answers(answer)
    (outcome,) = ask(net, "a")
    assert isinstance(outcome, ProtocolError)
    assert message in outcome.message


def test_a_broker_that_is_too_old_is_an_error_of_what_is_asked_of_it(net: ScriptedNetwork) -> None:
    net.coordinators = {"a": 1, "b": 2}
    net.network.set_api_versions(1, {ApiKey.INIT_PRODUCER_ID: (0, 2)})
    net.script[ApiKey.INIT_PRODUCER_ID] = answers(InitProducerIdResponse(producer_id=7, producer_epoch=1))
    expected = [ExpectedProducer(name, ProducerIdentity(7, 0)) for name in "ab"]
    first, second = net.client.ask([Ask(KEPT(each.transactional_id), TakeOver(1), each) for each in expected], TIMEOUT_MS)
    assert isinstance(first, UnsupportedVersionError)
    assert "INIT_PRODUCER_ID is needed in version 3, but the newest that the broker supports is 2" in first.message
    assert second == ProducerIdentity(7, 1)
    assert [request.node_id for request in net.requests_of(ApiKey.INIT_PRODUCER_ID)] == [2]


def test_what_cannot_be_put_into_a_request_fails_alone(net: ScriptedNetwork) -> None:
    net.network.set_api_versions(1, {ApiKey.END_TXN: (0, 2)})  # strings of at most 32,767 bytes
    first, second = ask(net, "ok", "x" * 40_000)
    assert first == "ok"
    assert isinstance(second, ProtocolError)


# ANY BROKER, ONE BROKER, EVERY BROKER


def test_any_broker_is_one_that_can_be_reached(net: ScriptedNetwork) -> None:
    for node_id in (0, 1):
        net.network.set_unreachable(node_id, 10 * TIMEOUT_MS)
    assert net.client.ask([Ask(ANY_BROKER, ENDING, "a")], TIMEOUT_MS) == ["a"]
    assert ended(net) == [("a", 2)]


def test_a_broker_that_is_not_part_of_the_cluster_cannot_be_asked(net: ScriptedNetwork) -> None:
    first, second = net.client.ask([Ask(Broker(9), ENDING, "a"), Ask(Broker(2), ENDING, "b")], TIMEOUT_MS)
    assert isinstance(first, BrokerGoneError)
    assert second == "b"


def listing(node_id: int) -> ListTransactionsResponse:
    state = ListTransactionsResponseState(transactional_id=f"of-{node_id}", producer_id=1, transaction_state="Ongoing")
    return ListTransactionsResponse(transaction_states=(state,))


def test_every_broker_is_asked_once(net: ScriptedNetwork) -> None:
    net.script[ApiKey.LIST_TRANSACTIONS] = lambda request: listing(request.node_id)
    listings = net.client.ask_every_broker(ListTransactions(()), "", TIMEOUT_MS)
    assert listings == {node_id: [ListedTransaction(f"of-{node_id}", 1, "Ongoing")] for node_id in range(3)}
    assert sorted(request.node_id for request in net.requests_of(ApiKey.LIST_TRANSACTIONS)) == [0, 1, 2]


def test_brokers_that_joined_since_the_last_call_are_asked_too(net: ScriptedNetwork) -> None:
    net.script[ApiKey.LIST_TRANSACTIONS] = lambda request: listing(request.node_id)
    assert len(net.client.ask_every_broker(ListTransactions(()), "", TIMEOUT_MS)) == 3
    net.network.prepare_metadata_update(metadata(nodes=4))
    assert len(net.client.ask_every_broker(ListTransactions(()), "", TIMEOUT_MS)) == 4


def test_when_a_broker_goes_all_others_are_asked_again(net: ScriptedNetwork) -> None:
    """What it kept was taken over by brokers that may have answered before."""

    def answer(request: ClientRequest) -> Message | None:
        if request.node_id != 2:
            return listing(request.node_id)
        net.network.set_unreachable(2, 10 * TIMEOUT_MS)
        net.network.prepare_metadata_update(metadata(nodes=2))
        net.metadata.request_update("lost a connection")
        return None

    net.script[ApiKey.LIST_TRANSACTIONS] = answer
    listings = net.client.ask_every_broker(ListTransactions(()), "", TIMEOUT_MS)
    assert [each.transactional_id for answer in listings.values() for each in answer] == ["of-0", "of-1"]
    assert sorted(request.node_id for request in net.requests_of(ApiKey.LIST_TRANSACTIONS)) == [0, 0, 1, 1, 2]


def test_a_listed_broker_that_cannot_be_reached_is_an_error(net: ScriptedNetwork) -> None:
    net.script[ApiKey.LIST_TRANSACTIONS] = lambda request: listing(request.node_id)
    net.network.set_unreachable(2, 10 * TIMEOUT_MS)
    with pytest.raises(KafkaTimeoutError, match="ListTransactions"):
        net.client.ask_every_broker(ListTransactions(()), "", 5_000)
