"""Makes connections ready for requests: looks names up, connects, does the handshake; logs in again before a session ends.

Part of NetworkClient, which reports events of connections here. The background worker does what may block: DNS, a token endpoint,
a Kerberos server. All else runs on NetworkClient's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError, KafkaError, printable
from spark_kafka_sink.network.background import BackgroundWork, BackgroundWorker, Outcome
from spark_kafka_sink.network.broker_connection import BrokerConnection
from spark_kafka_sink.network.dns import Resolver, literal_addresses, look_up
from spark_kafka_sink.network.handshake import Session, Step, authenticate, handshake
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.selector import ChannelState, Disconnect

logger = logging.getLogger(__name__)

_MAX_VERSIONS_TEXT_LENGTH = 5_000  # in the log; the versions of Kafka 4 take 1,600 characters


@dataclass(eq=False, repr=False)
class ConnectionSetup:
    """Opens connections to brokers and does their handshakes; logs in again where a session is about to end."""

    connections: Mapping[int, BrokerConnection]  # of the NetworkClient, by node id
    metadata: Metadata
    # Closes a connection at a time in ms, and fails what is in flight on it.
    close_connection: Callable[[BrokerConnection, int, Disconnect], None]
    login: Login | None  # None without SASL
    worker: BackgroundWorker
    resolve_host: Resolver
    request_timeout_ms: int  # how long a login's work may take in the background

    def __post_init__(self) -> None:
        self._finished_work: list[tuple[int, Outcome]] = []  # taken from the worker and not handled yet

    # FROM A NODE TO A TCP CONNECTION

    def initiate(self, connection: BrokerConnection, now_ms: int) -> None:
        """Start to connect. Does not wait for DNS: the worker looks names up, and handle_finished_work() connects then."""
        connection.begin_attempt(now_ms)
        if connection.needs_address:
            try:
                addresses = literal_addresses(connection.node.host, connection.node.port)
            except OSError as error:  # the name is not valid
                self._fail_to_connect(connection, now_ms, str(error))
                return
            if not addresses:
                self._look_up(connection)
                return
            connection.set_addresses(addresses, now_ms)
        self._connect(connection, now_ms)

    def _look_up(self, connection: BrokerConnection) -> None:
        node = connection.node
        logger.debug("= node %d: looking up %s", node.id, printable(node.host))
        connection.is_resolving = True
        # No deadline: the connection set-up time-out ends the wait.
        work = partial(look_up, self.resolve_host, node.host, node.port)
        self.worker.start(node.id, work, NEVER_MS, key=(node.host, node.port))

    def _handle_look_up(self, connection: BrokerConnection, outcome: Outcome, now_ms: int) -> None:
        connection.is_resolving = False
        if outcome.error is not None:
            self._fail_to_connect(connection, now_ms, outcome.error.message)
            return
        connection.set_addresses(outcome.result, now_ms)
        self._connect(connection, now_ms)

    def _connect(self, connection: BrokerConnection, now_ms: int) -> None:
        try:
            connection.open()
        except OSError as error:  # there is no route
            self._fail_to_connect(connection, now_ms, str(error))

    def _fail_to_connect(self, connection: BrokerConnection, now_ms: int, reason: str) -> None:
        self.close_connection(connection, now_ms, Disconnect(ChannelState.NOT_CONNECTED, reason))

    # HANDSHAKES

    def handle_connected(self, connection: BrokerConnection, now_ms: int) -> None:
        """Start the handshake: the TCP (and TLS) connection is established."""
        is_doubted = connection.login_detection.note_handshake()
        host = connection.node.host
        steps = handshake(self.login, host, must_ask_mechanisms=is_doubted, must_probe=is_doubted)
        self._take_step(connection, connection.begin_handshake(steps), now_ms)

    def renew_session(self, connection: BrokerConnection, now_ms: int) -> None:
        """Log in again on a connection that is ready (KIP-368)."""
        logger.debug("= node %d: the session is about to end, logging in again", connection.node.id)
        assert self.login is not None
        assert connection.api_versions is not None
        connection.begin_reauthentication()
        steps = authenticate(self.login, connection.node.host, connection.api_versions)
        self._take_step(connection, connection.begin_handshake(steps), now_ms)
        self.send_requests(now_ms)  # now, if possible: no event would end the next poll's wait

    def _take_step(self, connection: BrokerConnection, step: Step, now_ms: int) -> None:
        if isinstance(step, BackgroundWork):
            self.worker.start(connection.node.id, step.work, now_ms + self.request_timeout_ms)
        else:
            connection.next_request = step
            connection.login_detection.note_step(step)

    def handle_finished_work(self, now_ms: int) -> bool:
        """Continue where background work has finished, and close connections whose work is overdue. Returns whether any was."""
        self._finished_work += self.worker.take_finished()
        overdue_nodes = self.worker.overdue_nodes(now_ms)
        has_work = bool(self._finished_work or overdue_nodes)
        while self._finished_work:
            node_id, outcome = self._finished_work.pop(0)
            connection = self.connections[node_id]
            if connection.is_resolving:
                self._handle_look_up(connection, outcome, now_ms)
            else:
                self.advance_handshake(connection, outcome, now_ms)
        self.send_requests(now_ms)
        for node_id in overdue_nodes:
            reason = "the login was not ready within request.timeout.ms: the token source or the Kerberos server does not answer"
            disconnect = Disconnect(ChannelState.LOCAL_CLOSE, reason, has_timed_out=True)
            self.close_connection(self.connections[node_id], now_ms, disconnect)
        return has_work

    def send_requests(self, now_ms: int) -> None:
        """Send the next request of every handshake whose connection can take it now."""
        for connection in self.connections.values():
            try:
                connection.send_next_request(now_ms)
            except BaseException as error:
                self._fail_handshake(connection, now_ms, error)
                raise

    def _fail_handshake(self, connection: BrokerConnection, now_ms: int, error: BaseException) -> None:
        """Close the connection after a bug, an interrupt or a MemoryError: with nothing in flight, no time-out would close it."""
        reason = f"the handshake failed with {type(error).__name__}"
        self.close_connection(connection, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason))

    def advance_handshake(self, connection: BrokerConnection, outcome: Outcome, now_ms: int) -> None:
        """Continue a handshake whose request the broker has answered, or whose work the worker has finished."""
        try:
            step = connection.advance_handshake(outcome)
        except AuthenticationError as error:
            self.close_connection(connection, now_ms, Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error))
        except KafkaError as error:
            self.close_connection(connection, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, str(error)))
        except BaseException as error:
            self._fail_handshake(connection, now_ms, error)
            raise
        else:
            if isinstance(step, Session):
                self._become_ready(connection, step, now_ms)
            else:
                self._take_step(connection, step, now_ms)

    def _become_ready(self, connection: BrokerConnection, session: Session, now_ms: int) -> None:
        connection.become_ready(session, now_ms)
        if self.login is None:
            connection.login_detection.note_ready()  # note_accepted() follows with the first answer
        else:
            connection.note_accepted()
        self.metadata.report_reachable(connection.node.address)
        logger.debug("= node %d: ready: %s", connection.node.id, printable(session.api_versions, _MAX_VERSIONS_TEXT_LENGTH))

    def forget(self, node_id: int) -> None:
        """Drop the work of a connection that has ended."""
        self.worker.forget(node_id)
        self._finished_work = [(other_id, outcome) for other_id, outcome in self._finished_work if other_id != node_id]
