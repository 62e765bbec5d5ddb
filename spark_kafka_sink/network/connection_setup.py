"""Makes connections ready for requests: looks names up, connects, shakes hands; and logs in again before a session ends.

Part of NetworkClient, which reports events of connections here and sends the requests of handshakes. The background worker does
what may block: DNS, a token endpoint, a Kerberos server. Sender thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Protocol

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError, KafkaError, printable
from spark_kafka_sink.network.background import Background, Outcome, Worker
from spark_kafka_sink.network.broker_connection import ClusterConnectionStates
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.dns import Resolver, literal_addresses, look_up
from spark_kafka_sink.network.handshake import HandshakeRequest, Session, Step, authenticate, handshake
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.node_connection import NodeConnection
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.selector import ChannelState, Disconnect, Selectable

logger = logging.getLogger(__name__)

_MAX_LOGGED_VERSIONS = 5_000  # characters; those of Kafka 4 take 1,600


class ConnectionOwner(Protocol):
    """What ConnectionSetup needs of NetworkClient."""

    def can_send_handshake_request(self, node_id: int) -> bool: ...
    def send_handshake_request(self, node_id: int, request: HandshakeRequest, now_ms: int) -> None: ...
    def close_connection(self, node_id: int, now_ms: int, disconnect: Disconnect, *, timed_out: bool = False) -> None: ...


class ConnectionSetup:
    """
    Args:
        owner: sends requests and closes connections.
        connections: of the owner, who has added the node before it calls a method here.
        login: None without SASL.
        request_timeout_ms: how long a login's work may take in the background.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        connections: Mapping[int, NodeConnection],
        states: ClusterConnectionStates,
        selector: Selectable,
        metadata: Metadata,
        *,
        login: Login | None,
        worker: Worker,
        resolve_host: Resolver,
        client_id: str,
        request_timeout_ms: int,
        random: Random,
    ) -> None:
        self._owner = owner
        self._connections = connections
        self._states = states
        self._selector = selector
        self._metadata = metadata
        self._login = login
        self._worker = worker
        self._resolve = resolve_host
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._random = random
        self._finished_work: list[tuple[int, Outcome]] = []  # taken from the worker and not handled yet

    # ---- from a node to a TCP connection ---------------------------------------------------------------------------------------

    def initiate(self, node: Node, now_ms: int) -> None:
        """Never waits for DNS: the worker looks names up, and handle_finished_work() connects when it has the addresses."""
        self._states.connecting(node.id, now_ms, node.host, node.port)
        try:
            if self._states.current_address(node.id) is None:
                addresses = literal_addresses(node.host, node.port)
                if not addresses:
                    self._look_up(node)
                    return
                self._states.resolved(node.id, addresses, now_ms)
            self._connect(node.id)
        except OSError as error:  # the name is not valid, or there is no route
            self._fail_to_connect(node.id, now_ms, str(error))

    def _look_up(self, node: Node) -> None:
        logger.debug("= node %d: looking up %s", node.id, printable(node.host))
        self._connections[node.id].is_resolving = True
        # No deadline: the connection set-up time-out ends it.
        work = partial(look_up, self._resolve, node.host, node.port)
        self._worker.start(node.id, work, NEVER_MS, key=(node.host, node.port))

    def _looked_up(self, node_id: int, outcome: Outcome, now_ms: int) -> None:
        self._connections[node_id].is_resolving = False
        if outcome.error is not None:
            self._fail_to_connect(node_id, now_ms, outcome.error.message)
            return
        self._states.resolved(node_id, outcome.result, now_ms)
        try:
            self._connect(node_id)
        except OSError as error:
            self._fail_to_connect(node_id, now_ms, str(error))

    def _connect(self, node_id: int) -> None:
        address = self._states.current_address(node_id)
        assert address is not None
        logger.debug("= node %d: connecting to %s at %s", node_id, self._states.address_text(node_id), address)
        protocol = Connection(self._client_id, peer=f"node {node_id}")
        self._selector.connect(node_id, address, protocol)
        self._connections[node_id].protocol = protocol

    def _fail_to_connect(self, node_id: int, now_ms: int, reason: str) -> None:
        self._owner.close_connection(node_id, now_ms, Disconnect(ChannelState.NOT_CONNECTED, reason))

    # ---- handshakes ------------------------------------------------------------------------------------------------------------

    def handle_connected(self, node_id: int, now_ms: int) -> None:
        """The TCP (and TLS) connection is established."""
        connection = self._connections[node_id]
        steps = handshake(self._login, self._states.host(node_id), asks_mechanisms=connection.sasl.take_suspicion())
        self._take_step(connection, connection.begin_handshake(steps), now_ms)

    def renew_session(self, node_id: int, now_ms: int) -> None:
        """Log in again on a connection that is ready (KIP-368)."""
        logger.debug("= node %d: the session is about to end, logging in again", node_id)
        connection = self._connections[node_id]
        assert self._login is not None
        assert connection.api_versions is not None
        self._states.reauthenticating(node_id)
        steps = authenticate(self._login, self._states.host(node_id), connection.api_versions)
        self._take_step(connection, connection.begin_handshake(steps), now_ms)
        self.send_requests(now_ms)  # now, if possible: no event would end the next poll's wait

    def _take_step(self, connection: NodeConnection, step: Step, now_ms: int) -> None:
        if isinstance(step, Background):
            self._worker.start(connection.node_id, step.work, now_ms + self._request_timeout_ms)
        else:
            connection.next_request = step

    def handle_finished_work(self, now_ms: int) -> bool:
        """Continue after the background worker's work. Returns whether any work has finished or timed out."""
        self._finished_work += self._worker.finished()
        overdue = self._worker.overdue(now_ms)
        is_any = bool(self._finished_work or overdue)
        while self._finished_work:
            node_id, outcome = self._finished_work.pop(0)
            if self._connections[node_id].is_resolving:
                self._looked_up(node_id, outcome, now_ms)
            else:
                self.advance_handshake(node_id, outcome, now_ms)
        self.send_requests(now_ms)
        for node_id in overdue:
            reason = "the login was not ready within request.timeout.ms: the token source or the Kerberos server does not answer"
            self._owner.close_connection(node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason), timed_out=True)
        return is_any

    def send_requests(self, now_ms: int) -> None:
        """The next request of every handshake whose connection can take it now."""
        for node_id, connection in self._connections.items():
            request = connection.next_request
            if request is not None and self._owner.can_send_handshake_request(node_id):
                connection.next_request = None
                if self._states.is_connecting(node_id):
                    self._states.checking_api_versions(node_id)
                self._owner.send_handshake_request(node_id, request, now_ms)

    def advance_handshake(self, node_id: int, outcome: Outcome, now_ms: int) -> None:
        """The broker has answered a request of the handshake, or the worker has finished its work."""
        connection = self._connections[node_id]
        try:
            step = connection.advance_handshake(outcome)
        except AuthenticationError as error:
            disconnect = Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error)
            self._owner.close_connection(node_id, now_ms, disconnect)
        except KafkaError as error:
            self._owner.close_connection(node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, str(error)))
        except Exception as error:  # a bug: with nothing in flight, no time-out would end this connection
            reason = f"the handshake failed with {type(error).__name__}"
            self._owner.close_connection(node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason))
            raise
        else:
            if isinstance(step, Session):
                self._become_ready(connection, step, now_ms)
            else:
                self._take_step(connection, step, now_ms)

    def _become_ready(self, connection: NodeConnection, session: Session, now_ms: int) -> None:
        node_id = connection.node_id
        connection.begin_session(session, now_ms, self._random)
        self._states.ready(node_id)
        if self._login is None:
            connection.sasl.connection_ready(session.mechanisms)  # accepted when the broker answers a request
        else:
            self._states.accepted(node_id)
        self._metadata.connection_ready(self._states.address_text(node_id))
        logger.debug("= node %d: ready: %s", node_id, printable(session.api_versions, _MAX_LOGGED_VERSIONS))

    def forget(self, node_id: int) -> None:
        """The connection has ended: drop its work."""
        self._worker.forget(node_id)
        self._finished_work = [(other, outcome) for other, outcome in self._finished_work if other != node_id]
