"""Which broker coordinates a group or a transactional id: the directory, and how an answer of FindCoordinator is read.

For producers and for admin clients. The caller decides when to look a coordinator up, and what an error means.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.errors import ProtocolError, printable
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.find_coordinator import FIRST_VERSION_WITH_KEYS, FindCoordinatorResponse, KeyType

MAX_KEYS_PER_REQUEST = 200
MAX_COORDINATORS = 10_000  # how many are remembered; the oldest are forgotten, and found again when needed


class CoordinatorKey(NamedTuple):
    """What a coordinator is looked up by: a transactional id, or a group."""

    key_type: KeyType
    key: str

    @property
    def kind(self) -> str:
        return "group" if self.key_type is KeyType.GROUP else "transactional id"

    def __str__(self) -> str:
        return f"{self.kind} {self.key!r}"


class CoordinatorDirectory:
    """Keeps the coordinator that was found last for each key. `client` can connect to every node that is returned."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._nodes: dict[CoordinatorKey, Node] = {}  # oldest first

    def get(self, key: CoordinatorKey) -> Node | None:
        """The coordinator of `key`; None if it must be looked up first."""
        node = self._nodes.get(key)
        if node is not None:
            self._client.learn_node(node)  # the client keeps only the nodes that it learnt last
        return node

    def remember(self, key: CoordinatorKey, node: Node) -> None:
        """Keep the coordinator that an answer has named. The client may connect to it from now on."""
        self._client.learn_node(node)
        self.forget(key)
        self._nodes[key] = node
        if len(self._nodes) > MAX_COORDINATORS:
            del self._nodes[next(iter(self._nodes))]

    def forget(self, key: CoordinatorKey) -> None:
        """Look the coordinator up next time: the broker says that it is not the coordinator, or cannot be reached."""
        self._nodes.pop(key, None)


def keys_per_request(version: int) -> int:
    """How many keys a FindCoordinator request of this version may carry (KIP-699)."""
    return MAX_KEYS_PER_REQUEST if version >= FIRST_VERSION_WITH_KEYS else 1


def read_coordinator(key: CoordinatorKey, answer: FindCoordinatorResponse, version: int) -> Node | ErrorCode:
    """The coordinator that an answer names for one of the requested keys, or the error for that key.

    Raises:
        ProtocolError: the answer does not mention the key, or names a node with an id below zero.
    """
    item_text = f"FindCoordinator of {key.kind} {printable(key.key)}"
    coordinator = answer.answer_for(key.key, version)
    if coordinator is None:
        raise ProtocolError(f"{item_text}: the broker's answer does not mention it")
    error = Errors.for_code(coordinator.error_code)
    if error:
        return error
    if coordinator.node_id < 0:
        raise ProtocolError(f"{item_text}: the broker names a coordinator with the id {coordinator.node_id}")
    return Node(coordinator.node_id, coordinator.host, coordinator.port)
