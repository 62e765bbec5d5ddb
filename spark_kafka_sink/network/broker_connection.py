"""The state of the connection to each node, and when the next attempt is allowed.

Sender thread only. Holds no sockets: NetworkClient reports what happened, and asks what is allowed.

    (no entry) ──connecting──> CONNECTING ──checking_api_versions──> CHECKING_API_VERSIONS ──ready──> READY
                                   └───────────────┴───── disconnected ────────┴──> DISCONNECTED ──connecting──> …
    READY ──reauthenticating──> REAUTHENTICATING ──ready──> READY   (or disconnected, as from any other)
    authentication_failed after disconnected: AUTHENTICATION_FAILED, from where connecting is allowed after back-off too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import address_text
from spark_kafka_sink.network.transport import Address

logger = logging.getLogger(__name__)


class ConnectionState(Enum):
    CONNECTING = auto()
    CHECKING_API_VERSIONS = auto()
    READY = auto()
    REAUTHENTICATING = auto()  # logging in again; takes no other requests
    DISCONNECTED = auto()
    AUTHENTICATION_FAILED = auto()


_C = ConnectionState
_DISCONNECTED = frozenset({_C.DISCONNECTED, _C.AUTHENTICATION_FAILED})
_CONNECTED = frozenset({_C.CHECKING_API_VERSIONS, _C.READY, _C.REAUTHENTICATING})
_PREPARING = frozenset({_C.CONNECTING, _C.CHECKING_API_VERSIONS, _C.REAUTHENTICATING})
NEXT: dict[ConnectionState, frozenset[ConnectionState]] = {
    _C.CONNECTING: frozenset({_C.CHECKING_API_VERSIONS, _C.DISCONNECTED}),
    _C.CHECKING_API_VERSIONS: frozenset({_C.CHECKING_API_VERSIONS, _C.READY, _C.DISCONNECTED}),  # itself: a second request
    _C.READY: frozenset({_C.REAUTHENTICATING, _C.DISCONNECTED}),
    _C.REAUTHENTICATING: frozenset({_C.READY, _C.DISCONNECTED}),
    _C.DISCONNECTED: frozenset({_C.CONNECTING, _C.AUTHENTICATION_FAILED}),
    _C.AUTHENTICATION_FAILED: frozenset({_C.CONNECTING}),
}


@dataclass
class _NodeState:
    host: str
    port: int
    reconnect_backoff_ms: int
    setup_timeout_ms: int
    state: ConnectionState = ConnectionState.DISCONNECTED
    last_attempt_ms: int = 0
    failed_attempts: int = 0  # disconnects since the last READY
    failed_connects: int = 0  # of these, attempts whose TCP connection was never established
    throttled_until_ms: int = 0
    attempts_in_vain: int = 0  # since the node last accepted us: attempts that ended before READY, for any reason
    refusals: int = 0  # since the node last accepted us: attempts in which authentication failed, on either side
    authentication_error: AuthenticationError | None = None
    addresses: Sequence[Address] = ()  # of the host name; looked up again when all have been tried
    address_index: int = 0
    last_address: Address | None = field(default=None)

    def transition_to(self, state: ConnectionState) -> None:
        if state not in NEXT[self.state]:
            where = address_text(self.host, self.port)
            raise RuntimeError(f"connection to {where} cannot go from {self.state.name} to {state.name}")
        self.state = state


class ClusterConnectionStates:
    def __init__(
        self,
        *,
        reconnect_backoff_ms: int,
        reconnect_backoff_max_ms: int,
        connection_setup_timeout_ms: int,
        connection_setup_timeout_max_ms: int,
        random: Random,
    ) -> None:
        self._reconnect_backoff = ExponentialBackoff(reconnect_backoff_ms, reconnect_backoff_max_ms, random)
        self._setup_timeout = ExponentialBackoff(connection_setup_timeout_ms, connection_setup_timeout_max_ms, random)
        self._nodes: dict[int, _NodeState] = {}

    # ---- questions -----------------------------------------------------------------------------------------------------------

    def state(self, node_id: int) -> ConnectionState | None:
        node = self._nodes.get(node_id)
        return None if node is None else node.state

    def can_connect(self, node_id: int, now_ms: int) -> bool:
        node = self._nodes.get(node_id)
        return node is None or (node.state in _DISCONNECTED and now_ms - node.last_attempt_ms >= node.reconnect_backoff_ms)

    def connection_delay_ms(self, node_id: int, now_ms: int) -> int:
        """How long until an attempt is allowed or times out; NEVER_MS once connected."""
        node = self._nodes.get(node_id)
        if node is None:
            return 0
        if node.state in _DISCONNECTED:
            return max(node.last_attempt_ms + node.reconnect_backoff_ms - now_ms, 0)
        return node.setup_timeout_ms if node.state is ConnectionState.CONNECTING else NEVER_MS

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int:
        throttle_ms = self.throttle_delay_ms(node_id, now_ms)
        return throttle_ms if throttle_ms and self.is_connected(node_id) else self.connection_delay_ms(node_id, now_ms)

    def throttle_delay_ms(self, node_id: int, now_ms: int) -> int:
        node = self._nodes.get(node_id)
        return 0 if node is None else max(node.throttled_until_ms - now_ms, 0)

    def is_connecting(self, node_id: int) -> bool:
        return self.state(node_id) is ConnectionState.CONNECTING

    def is_preparing_connection(self, node_id: int) -> bool:
        return self.state(node_id) in _PREPARING

    def is_connected(self, node_id: int) -> bool:
        return self.state(node_id) in _CONNECTED

    def is_disconnected(self, node_id: int) -> bool:
        return self.state(node_id) in _DISCONNECTED

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.state is ConnectionState.READY and node.throttled_until_ms <= now_ms

    def authentication_error(self, node_id: int) -> AuthenticationError | None:
        node = self._nodes.get(node_id)
        return None if node is None else node.authentication_error

    def refusals(self, node_id: int) -> int:
        """In how many attempts in a row authentication failed; 0 once the node has accepted us."""
        node = self._nodes.get(node_id)
        return 0 if node is None else node.refusals

    def is_shut_out(self, node_id: int) -> bool:
        """Whether the last attempt failed: authentication failed, or the node could not be reached."""
        node = self._nodes.get(node_id)
        return node is not None and node.state is not _C.READY and node.refusals + node.attempts_in_vain > 0

    def last_attempt_ms(self, node_id: int) -> int:
        node = self._nodes.get(node_id)
        return 0 if node is None else node.last_attempt_ms

    def setup_timeout_ms(self, node_id: int) -> int:
        return self._nodes[node_id].setup_timeout_ms

    def nodes_with_setup_timeout(self, now_ms: int) -> list[int]:
        return [
            node_id
            for node_id, node in self._nodes.items()
            if node.state is ConnectionState.CONNECTING and now_ms - node.last_attempt_ms > node.setup_timeout_ms
        ]

    def next_setup_timeout_ms(self, now_ms: int) -> int:
        """How long until nodes_with_setup_timeout() will not be empty."""
        connecting = [node for node in self._nodes.values() if node.state is ConnectionState.CONNECTING]
        delays = (node.last_attempt_ms + node.setup_timeout_ms + 1 - now_ms for node in connecting)
        return max(min(delays, default=NEVER_MS), 0)

    def host(self, node_id: int) -> str:
        return self._nodes[node_id].host

    def address_text(self, node_id: int) -> str:
        """host:port, as configured or as metadata names it, for logs and errors."""
        node = self._nodes[node_id]
        return address_text(node.host, node.port)

    # ---- events --------------------------------------------------------------------------------------------------------------

    def connecting(self, node_id: int, now_ms: int, host: str, port: int) -> None:
        """An attempt begins. A node whose address changed starts without the failures of its old address."""
        node = self._nodes.get(node_id)
        if node is None or (node.host, node.port) != (host, port):
            if node is not None:
                logger.info(
                    "= node %d moved from %s to %s", node_id, address_text(node.host, node.port), address_text(host, port)
                )
            node = _NodeState(host, port, self._reconnect_backoff.backoff_ms(0), self._setup_timeout.backoff_ms(0))
            self._nodes[node_id] = node
        elif node.addresses:
            _move_to_next_address(node)
        node.transition_to(ConnectionState.CONNECTING)
        node.last_attempt_ms = now_ms

    def current_address(self, node_id: int) -> Address | None:
        """The address to try now; None when no address is left and the name has to be looked up."""
        node = self._nodes[node_id]
        if not node.addresses:
            return None
        node.last_address = node.addresses[node.address_index]
        return node.last_address

    def resolved(self, node_id: int, addresses: Sequence[Address], now_ms: int) -> None:
        """The name has these addresses, at least one. The attempt with the first address gets the whole set-up time-out."""
        node = self._nodes[node_id]
        node.addresses = addresses
        # Do not retry the address that was just lost first: its host may be broken.
        node.address_index = 1 if len(addresses) > 1 and addresses[0] == node.last_address else 0
        node.last_attempt_ms = now_ms

    def disconnected(self, node_id: int, now_ms: int) -> None:
        node = self._nodes[node_id]
        node.last_attempt_ms = now_ms
        self._back_off(node)
        if node.state is not ConnectionState.READY:
            node.attempts_in_vain += 1
        if node.state is ConnectionState.CONNECTING:
            node.failed_connects += 1
            node.setup_timeout_ms = self._setup_timeout.backoff_ms(node.failed_connects)
        else:
            self._reset_setup_timeout(node)
            node.addresses = ()  # the node was connected: its name may have other addresses now
        if node.state not in _DISCONNECTED:
            node.transition_to(ConnectionState.DISCONNECTED)

    def _back_off(self, node: _NodeState) -> None:
        node.reconnect_backoff_ms = self._reconnect_backoff.backoff_ms(node.failed_attempts)
        node.failed_attempts += 1

    def _reset_setup_timeout(self, node: _NodeState) -> None:
        node.failed_connects = 0
        node.setup_timeout_ms = self._setup_timeout.backoff_ms(0)

    def authentication_failed(self, node_id: int, now_ms: int, error: AuthenticationError, *, attempts: int = 1) -> None:
        """Args: attempts, the number of attempts that ended with this result."""
        node = self._nodes[node_id]
        node.authentication_error = error
        node.refusals += attempts
        node.last_attempt_ms = now_ms
        node.transition_to(ConnectionState.AUTHENTICATION_FAILED)
        self._back_off(node)

    def checking_api_versions(self, node_id: int) -> None:
        node = self._nodes[node_id]
        node.transition_to(ConnectionState.CHECKING_API_VERSIONS)
        self._reset_setup_timeout(node)

    def reauthenticating(self, node_id: int) -> None:
        self._nodes[node_id].transition_to(ConnectionState.REAUTHENTICATING)

    def ready(self, node_id: int) -> None:
        node = self._nodes[node_id]
        node.transition_to(ConnectionState.READY)
        node.failed_attempts = 0
        node.reconnect_backoff_ms = self._reconnect_backoff.backoff_ms(0)
        self._reset_setup_timeout(node)

    def accepted(self, node_id: int) -> None:
        """After READY: the login was accepted, or the node has answered a request without a login."""
        node = self._nodes[node_id]
        node.authentication_error = None
        node.refusals = node.attempts_in_vain = 0

    def throttle(self, node_id: int, until_ms: int) -> None:
        """The broker does not read from the connection before `until_ms`. A longer throttle stays in force."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.throttled_until_ms = max(node.throttled_until_ms, until_ms)


def _move_to_next_address(node: _NodeState) -> None:
    node.address_index += 1
    if node.address_index >= len(node.addresses):
        node.addresses = ()
