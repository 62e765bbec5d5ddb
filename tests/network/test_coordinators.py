"""coordinators.py: the coordinator that was found last is kept, until it is lost."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.network import coordinators
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorDirectory, CoordinatorKey, keys_per_request, read_coordinator
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse, KeyType
from tests.fakes.clock import ManualClock
from tests.fakes.mock_client import MockClient

A, B, C = (CoordinatorKey(KeyType.TRANSACTION, name) for name in "abc")
NODE = Node(7, "broker7", 9092)


class RememberedNodes(MockClient):
    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.learnt: list[Node] = []

    def learn_node(self, node: Node) -> None:
        self.learnt.append(node)


def answer(*results: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(coordinators=results)


def test_the_client_can_connect_to_every_coordinator_that_the_directory_gives() -> None:
    client = RememberedNodes()
    directory = CoordinatorDirectory(client)
    assert directory.get(A) is None
    directory.remember(A, NODE)
    client.learnt.clear()
    assert directory.get(A) == NODE
    assert client.learnt == [NODE]


def test_a_coordinator_that_is_lost_is_forgotten_and_may_be_lost_again() -> None:
    directory = CoordinatorDirectory(RememberedNodes())
    directory.remember(A, NODE)
    directory.forget(A)
    directory.forget(A)
    assert directory.get(A) is None


def test_of_too_many_coordinators_the_one_found_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "MAX_COORDINATORS", 2)
    directory = CoordinatorDirectory(RememberedNodes())
    for key in (A, B, A, C):
        directory.remember(key, NODE)
    assert [directory.get(key) for key in (A, B, C)] == [NODE, None, NODE]


def test_an_answer_for_many_keys_is_read_for_each() -> None:
    answered = answer(
        Coordinator(key="a", node_id=7, host="broker7", port=9092),
        Coordinator(key="b", error_code=Errors.COORDINATOR_NOT_AVAILABLE.number),
    )
    assert read_coordinator(A, answered, 4) == NODE
    assert read_coordinator(B, answered, 4) == Errors.COORDINATOR_NOT_AVAILABLE


def test_old_brokers_answer_for_one_key_without_its_name() -> None:
    assert read_coordinator(A, FindCoordinatorResponse(node_id=7, host="broker7", port=9092), 3) == NODE
    assert keys_per_request(3) == 1
    assert keys_per_request(4) > 1


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (
            answer(Coordinator(key="b", node_id=7)),
            "FindCoordinator of transactional id a: the broker's answer does not mention it",
        ),
        (answer(Coordinator(key="a", node_id=-1)), "transactional id a: the broker names a coordinator with the id -1"),
    ],
)
def test_an_answer_that_names_no_coordinator_violates_the_protocol(answered: FindCoordinatorResponse, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_coordinator(A, answered, 4)


def test_a_key_says_whose_coordinator_it_is() -> None:
    assert str(A) == "transactional id 'a'"
    assert str(CoordinatorKey(KeyType.GROUP, "g")) == "group 'g'"
