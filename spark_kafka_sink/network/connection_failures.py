"""Connections that fail: what is logged and kept about them, and when a failed authentication is final.

Part of NetworkClient, on its thread. A broker that starts may not know all users yet, or may not have read its certificate. So
callers get the error only after two failures with one broker, or two in all while no broker accepts this client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.broker_connection import BrokerConnection
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.selector import ChannelState, Disconnect

logger = logging.getLogger(__name__)

MIN_WARNING_INTERVAL_MS = 30_000  # per node, about connections that cannot be established


class ConnectionFailures:
    """Logs failed connections of one client, and passes an authentication error on to callers once it is final."""

    def __init__(self, connections: Mapping[int, BrokerConnection], metadata: Metadata, security_protocol: str) -> None:
        self._connections = connections
        self._metadata = metadata
        self._security_protocol = security_protocol
        self._failed_in_this_poll: set[int] = set()  # nodes whose authentication has failed since begin_poll()

    def begin_poll(self) -> None:
        """Forget which logins failed in the previous poll."""
        self._failed_in_this_poll.clear()

    def report(self, connection: BrokerConnection, disconnect: Disconnect, now_ms: int) -> None:
        """Log why a connection ended, and keep the reason for errors about missing metadata."""
        node_id, address, reason = connection.node.id, connection.node.address, disconnect.reason
        if disconnect.state in (ChannelState.NOT_CONNECTED, ChannelState.AUTHENTICATION_FAILED):
            level = logging.WARNING if disconnect.error is None else logging.ERROR
            if now_ms - connection.last_warning_ms >= MIN_WARNING_INTERVAL_MS:
                connection.last_warning_ms = now_ms
            else:
                level = logging.DEBUG  # failures repeat with every attempt
            logger.log(level, "! node %d: connection to %s could not be established: %s", node_id, address, reason)
        elif disconnect.state is ChannelState.ESTABLISHED and connection.is_preparing:
            reason += f" (before it was ready; does this listener speak {self._security_protocol}?)"
            logger.warning("! node %d: connection to %s was lost: %s", node_id, address, reason)
        elif disconnect.state is ChannelState.ESTABLISHED and connection.login_detection.awaits_first_answer:
            if connection.login_detection.has_answered:
                reason += f" (instead of answering {_request_text(connection)})"
            else:
                reason += f" (before it answered; is security.protocol={self._security_protocol} right for this listener?)"
            logger.warning("! node %d: connection to %s was lost: %s", node_id, address, reason)
        else:
            logger.debug("= node %d: disconnected from %s: %s", node_id, address, reason)
        if disconnect.state is not ChannelState.EXPIRED:
            self._metadata.report_unreachable(address, reason)

    def handle_failed_login(
        self, connection: BrokerConnection, now_ms: int, cause: AuthenticationError, *, failure_count: int
    ) -> None:
        """Keep the error. If no broker accepts this client, a caller that waits for metadata gets it.

        The client may connect to the node again after its back-off.

        Args:
            failure_count: how many failed attempts have shown that this login fails.
        """
        node_text = f"node {connection.node.id} ({connection.node.address})"
        error = AuthenticationError(f"{node_text}: {cause.message}", condition=cause.condition)
        self._failed_in_this_poll.add(connection.node.id)
        connection.note_failed_login(now_ms, error, failure_count=failure_count)
        if self._no_broker_accepts():
            self._metadata.report_error(error)

    def login_rejection(self, node_id: int) -> AuthenticationError | None:
        """The error with which every request to this node fails; None if none has to fail.

        The error is returned until the next attempt to connect begins, and at least until the next poll: with
        reconnect.backoff.ms=0 the next attempt begins within the same poll.
        """
        connection = self._connections.get(node_id)
        if connection is None or not self._has_failed_or_disconnected(connection):
            return None
        return connection.authentication_error if connection.failed_login_count > 1 or self._no_broker_accepts() else None

    def rejection_by_all(self) -> AuthenticationError | None:
        """The error with which every request that any broker could answer fails; None if none has to fail."""
        connections = self._cluster_connections()
        if not self._no_broker_accepts() or not all(each and self._has_failed_or_disconnected(each) for each in connections):
            return None
        return next((each.authentication_error for each in connections if each and each.authentication_error), None)

    def _has_failed_or_disconnected(self, connection: BrokerConnection) -> bool:
        return connection.node.id in self._failed_in_this_poll or connection.is_disconnected

    def _no_broker_accepts(self) -> bool:
        """Whether each broker is shut out, and authentication has failed in at least two attempts."""
        connections = self._cluster_connections()
        failed_login_count = sum(each.failed_login_count for each in connections if each)
        return failed_login_count > 1 and all(each and each.is_shut_out for each in connections)

    def _cluster_connections(self) -> list[BrokerConnection | None]:
        """A connection for each broker of the cluster; None before the first attempt to connect."""
        return [self._connections.get(node.id) for node in self._metadata.cluster().nodes]


def _request_text(connection: BrokerConnection) -> str:
    """The request that the broker would have answered next."""
    name = type(connection.in_flight[0].request.message).__name__.removesuffix("Request") if connection.in_flight else ""
    return f"{name} v{connection.in_flight[0].version}" if name else "a request"
