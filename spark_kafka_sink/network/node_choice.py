"""Which node can take a request now, and which of them to ask if any broker will do.

Part of NetworkClient. Sender thread only. Reads the states of connections, and changes none. Keeps the nodes that other answers
than Metadata's have named: coordinators.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from spark_kafka_sink.network.broker_connection import ClusterConnectionStates
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.kafka_client import InFlightRequests
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.node_connection import NodeConnection
from spark_kafka_sink.network.selector import Selectable

MAX_LEARNT_NODES = 1000  # that metadata does not list; more than a cluster has


class NodeChoice:
    """Args: parts of NetworkClient; `connections` has every node that a connection was ever attempted to."""

    def __init__(
        self,
        metadata: Metadata,
        states: ClusterConnectionStates,
        connections: Mapping[int, NodeConnection],
        selector: Selectable,
        in_flight: InFlightRequests,
        random: Random,
    ) -> None:
        self._metadata = metadata
        self._states = states
        self._connections = connections
        self._selector = selector
        self._in_flight = in_flight
        self._random = random
        self._learnt: dict[int, Node] = {}  # latest last

    def node(self, node_id: int) -> Node | None:
        """The node with its address. Metadata takes precedence over other answers; None if neither has named it."""
        return self._metadata.cluster().node(node_id) or self._learnt.get(node_id)

    def learn(self, node: Node) -> None:
        """Remember a node that an answer has named. The last MAX_LEARNT_NODES are kept."""
        self._learnt.pop(node.id, None)
        self._learnt[node.id] = node
        if len(self._learnt) > MAX_LEARNT_NODES:
            del self._learnt[next(iter(self._learnt))]

    def can_send(self, node_id: int, now_ms: int) -> bool:
        return (
            self._states.is_ready(node_id, now_ms)
            and self._selector.is_channel_ready(node_id)
            and self._in_flight.can_send_more(node_id)
            and not self.is_session_due(node_id, now_ms)
        )

    def is_session_due(self, node_id: int, now_ms: int) -> bool:
        """Whether the client must log in to the node again before it sends requests (KIP-368)."""
        connection = self._connections.get(node_id)
        return connection is not None and connection.is_session_due(now_ms)

    def find_least_loaded(self, now_ms: int) -> tuple[Node | None, bool]:
        """The node with the fewest requests in flight; and whether any node is connected, even if it is busy or throttled.

        A connected node is preferred, then one that is being connected, then the one with the longest time since its last
        attempt. None when every node is busy, throttled or backing off.
        """
        nodes = list(self._metadata.cluster().nodes)
        self._random.shuffle(nodes)  # so that not every client chooses the first among equals
        usable = [node for node in nodes if self.can_send(node.id, now_ms)]
        preparing = [
            node for node in nodes if self._states.is_preparing_connection(node.id) or self.is_session_due(node.id, now_ms)
        ]
        connectable = [node for node in nodes if self._states.can_connect(node.id, now_ms)]
        is_any_connected = any(self._states.is_connected(node.id) and self._selector.is_channel_ready(node.id) for node in nodes)
        if usable:
            return min(usable, key=lambda node: self._in_flight.count(node.id)), is_any_connected
        if preparing:
            return preparing[0], is_any_connected
        return min(connectable, key=lambda node: self._states.last_attempt_ms(node.id), default=None), is_any_connected
