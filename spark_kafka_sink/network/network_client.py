"""Requests to many brokers: which node is ready, what is in flight, which responses came back.

Its caller asks `ready`, calls `send`, and lets `poll` do everything else: write, read, connect, keep metadata fresh, time
requests out, run the callbacks. Selector waits and owns the sockets; a BrokerConnection has what belongs to one broker;
ConnectionSetup makes connections ready.
Threads: one at a time; __init__.py says which. Any thread may call `wakeup` and `in_flight_request_count`.
Laws: every request has its callback run exactly once, unless `close` drops it. The callbacks of one node run in the order of its
requests, with two exceptions that run early: a request without an answer (acks=0), and one that no common version can carry.
When a callback runs, the network does not read the request's buffers any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import (
    AuthenticationError,
    ProducerClosedError,
    ResponseTooLargeError,
    UnsupportedVersionError,
    printable,
)
from spark_kafka_sink.network.background import BackgroundWorker, Outcome
from spark_kafka_sink.network.broker_connection import BrokerConnection
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.connection_failures import ConnectionFailures
from spark_kafka_sink.network.connection_setup import ConnectionSetup
from spark_kafka_sink.network.dns import Resolver, canonical_bootstrap_servers, resolve
from spark_kafka_sink.network.framing import Response
from spark_kafka_sink.network.handshake import DETECTION_ATTEMPT_COUNT, NodeApiVersions
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.selector import ChannelState, Disconnect, Selector
from spark_kafka_sink.network.tls.connector import TlsConnector
from spark_kafka_sink.network.transport import Address, Transport
from spark_kafka_sink.protocol.api_keys import API_TABLE
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

logger = logging.getLogger(__name__)

MAX_LEARNT_NODES = 1000  # nodes that answers have named and metadata does not list; more than a cluster has


class NetworkClient:
    """Connects to brokers, sends requests to them, and polls for their responses.

    With client.dns.lookup=resolve_canonical_bootstrap_servers_only, __init__ waits for DNS, at most
    socket.connection.setup.timeout.ms.

    Args:
        metadata: shared with callers; this client keeps it fresh, and closes it.
        metrics: where the Selector and this client count; without it the numbers go nowhere.
        selector, resolve_host, random, worker: for tests.

    Raises:
        ConfigError: certificates or keys cannot be read, or a package or function that the login needs is missing.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: Metadata,
        clock: Clock,
        *,
        metrics: NetworkMetrics | None = None,
        selector: Selector | None = None,
        resolve_host: Resolver = resolve,
        random: Random | None = None,
        worker: BackgroundWorker | None = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._random = random or Random()
        self._login = login_for(config, clock, self._random)  # None without SASL
        self._metrics = metrics or NetworkMetrics()
        self._selector = selector or _make_selector(config, clock, self._metrics)
        self._connections: dict[int, BrokerConnection] = {}  # of every node to which a connection was ever attempted
        self._learnt_nodes: dict[int, Node] = {}  # coordinators, which answers other than Metadata's have named; latest last
        self._setup = ConnectionSetup(
            self._connections,
            metadata,
            self._close_connection,
            login=self._login,
            worker=worker or BackgroundWorker(self._selector.wakeup),
            resolve_host=resolve_host,
            request_timeout_ms=config.request_timeout_ms,
        )
        self._failures = ConnectionFailures(self._connections, metadata, config.security_protocol)
        # Their callbacks run at the end of the present or next poll. `+=` adds to them, not `append`: Python looks for signals
        # after a call, and an interrupt would leave a request both here and in flight.
        self._responses: list[ClientResponse] = []
        self._updater = MetadataUpdater(metadata, self, config)
        self._features: tuple[int, Mapping[str, int]] = (-1, {})  # the newest that a broker reported: epoch, levels
        self._is_closed = False
        if config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
            timeout_ms = config.socket_connection_setup_timeout_ms
            metadata.bootstrap(canonical_bootstrap_servers(config.bootstrap_servers, timeout_ms))

    # WHICH NODES

    def ready(self, node_id: int, now_ms: int) -> bool:
        """Return whether a request can be sent now. If not, connect or log in again where that is allowed (Java's `ready`).

        A node that neither metadata nor `learn_node` has named is never ready. While a metadata update is due, no node is ready.
        """
        if not self._updater.is_update_due(now_ms) and self.can_send(node_id, now_ms):
            return True
        self.renew_session(node_id, now_ms)
        node = self._metadata.cluster().node(node_id) or self._learnt_nodes.get(node_id)
        if node is not None and self.can_connect(node_id, now_ms):
            self.initiate_connect(node, now_ms)
        return False

    def learn_node(self, node: Node) -> None:
        """Allow connections to a broker that only FindCoordinator has named.

        The MAX_LEARNT_NODES nodes that were learnt last are kept. An address in the metadata takes precedence.
        """
        self._learnt_nodes.pop(node.id, None)
        self._learnt_nodes[node.id] = node
        if len(self._learnt_nodes) > MAX_LEARNT_NODES:
            del self._learnt_nodes[next(iter(self._learnt_nodes))]

    def can_send(self, node_id: int, now_ms: int) -> bool:
        connection = self._connections.get(node_id)
        return connection is not None and connection.can_send(now_ms)

    def renew_session(self, node_id: int, now_ms: int) -> None:
        """Log in again if the session is about to end (KIP-368). Requests in flight are answered first; new ones wait.

        Called when there is something to send, so that an unused connection can become idle and be closed.
        """
        connection = self._connections.get(node_id)
        if connection is not None and connection.is_ready(now_ms) and connection.is_session_due(now_ms):
            self._setup.renew_session(connection, now_ms)

    def can_connect(self, node_id: int, now_ms: int) -> bool:
        connection = self._connections.get(node_id)
        return connection is None or connection.can_connect(now_ms)

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int:
        """Milliseconds to wait before calling ready() again; BrokerConnection.poll_delay_ms says how they are counted."""
        connection = self._connections.get(node_id)
        return 0 if connection is None else connection.poll_delay_ms(now_ms)

    def is_disconnected(self, node_id: int) -> bool:
        """Whether the last connection or attempt has ended, and no new attempt has begun (Java's `connectionFailed`)."""
        connection = self._connections.get(node_id)
        return connection is not None and connection.is_disconnected

    def login_rejection(self, node_id: int) -> AuthenticationError | None:
        """The error for requests to this node, if authentication failed twice or no broker accepts this client; else None."""
        return self._failures.login_rejection(node_id)

    def rejection_by_all(self) -> AuthenticationError | None:
        """The error for requests that any broker could answer, if no broker accepts this client; else None."""
        return self._failures.rejection_by_all()

    def finalized_features(self) -> tuple[int, Mapping[str, int]]:
        """The epoch and the levels of the cluster's finalized features (KIP-584), the newest that a broker reported.

        (-1, {}) before any connection is ready, and with brokers that report none.
        """
        for connection in self._connections.values():
            versions = connection.api_versions
            if versions is not None and versions.finalized_features_epoch > self._features[0]:
                self._features = versions.finalized_features_epoch, versions.finalized_features
        return self._features

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """The API versions that a node supports; None before the connection is ready."""
        connection = self._connections.get(node_id)
        return None if connection is None else connection.api_versions

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        """Count the requests in flight to one node, or to all, the client's own included. Any thread."""
        if node_id is None:
            return sum(len(each.in_flight) for each in self._connections.copy().values())  # a copy, as other threads call this
        connection = self._connections.get(node_id)
        return 0 if connection is None else len(connection.in_flight)

    def least_loaded_node(self, now_ms: int) -> int | None:
        """The node with the fewest requests in flight, or one to connect to; None if each is busy, throttled or backing off."""
        node, _ = self.find_least_loaded_node(now_ms)
        return None if node is None else node.id

    def find_least_loaded_node(self, now_ms: int) -> tuple[Node | None, bool]:
        """The node that least_loaded_node names; and whether any node is connected, even if it is busy or throttled.

        Prefers a node that can take a request now, then one that is being connected, then the one with the oldest last attempt.
        """
        nodes = list(self._metadata.cluster().nodes)
        self._random.shuffle(nodes)  # so that not every client chooses the first among equals
        connections = self._connections_of(nodes)
        is_any_connected = any(each.is_connected and each.is_established for each in connections)
        usable_connections = [each for each in connections if each.can_send(now_ms)]
        if usable_connections:
            return min(usable_connections, key=lambda each: len(each.in_flight)).node, is_any_connected
        preparing_connections = [each for each in connections if each.is_preparing or each.is_session_due(now_ms)]
        if preparing_connections:
            return preparing_connections[0].node, is_any_connected
        connectable_nodes = [node for node in nodes if self.can_connect(node.id, now_ms)]
        return min(connectable_nodes, key=self._last_attempt_ms, default=None), is_any_connected

    def _connections_of(self, nodes: Iterable[Node]) -> list[BrokerConnection]:
        return [self._connections[node.id] for node in nodes if node.id in self._connections]

    def _last_attempt_ms(self, node: Node) -> int:
        connection = self._connections.get(node.id)
        return 0 if connection is None else connection.last_attempt_ms

    def is_any_node_connecting(self) -> bool:
        return any(each.is_connecting for each in self._connections_of(self._metadata.cluster().nodes))

    def initiate_connect(self, node: Node, now_ms: int) -> None:
        """Start to connect. Does not wait for DNS: a name is looked up in the background, then poll() continues.

        A node whose address has changed starts without the failures of its old address.
        """
        connection = self._connections.get(node.id)
        if connection is None or (connection.node.host, connection.node.port) != (node.host, node.port):
            old_connection, connection = connection, BrokerConnection(node, self._config, self._selector, self._random)
            if old_connection is not None:
                logger.info("= node %d moved from %s to %s", node.id, old_connection.node.address, node.address)
                connection.last_warning_ms = old_connection.last_warning_ms
            self._connections[node.id] = connection
        self._setup.initiate(connection, now_ms)

    # SENDING

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Write a request to a node that is ready: at once what the socket takes, the rest in the next polls.

        If the broker and this client have no version in common that can carry the request, it is not sent, and the next poll
        calls back with an UnsupportedVersionError. Raises RuntimeError if the node is not ready, ProducerClosedError after close.
        """
        self._ensure_open()
        connection = self._connections.get(request.node_id)
        if connection is None or not connection.can_send(now_ms):
            raise RuntimeError(f"a request was sent to node {request.node_id}, which is not ready")
        try:
            connection.send(request, now_ms)
        except UnsupportedVersionError as error:
            logger.debug("! node %d: %s is not sent: %s", request.node_id, type(request.message).__name__, error)
            version = API_TABLE[request.message.API_KEY].max_version
            self._responses += [ClientResponse(request, None, version, now_ms, error=error)]
            return
        if connection.in_flight[-1].is_written:
            self._handle_written(connection, now_ms)

    def send_metadata_request(self, node_id: int, message: MetadataRequest, now_ms: int) -> None:
        """Send `message` to a node for which `can_send` is true. If no version is in common, a caller who waits gets an error."""
        try:
            self._connections[node_id].send_internal(message, now_ms)
        except UnsupportedVersionError as error:
            self._updater.handle_failed_request(message, now_ms, fatal_error=error)

    # THE LOOP

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]:
        """Send, receive, and handle time-outs; wait at most `timeout_ms` when there is nothing to do. Runs the callbacks.

        Returns the responses whose callbacks have run. Raises the first exception of a callback when all callbacks have run.
        After any exception, the callbacks of the responses taken before it have run, and the next poll handles the events that
        are left. The exception may lose one answer. In this case, the connection is closed when its next answer arrives, or when
        the request without an answer times out.
        """
        self._ensure_open()
        self._failures.begin_poll()
        try:
            # No wait if callbacks can run already: of requests that were not sent or need no answer.
            self._poll(0 if self._responses else timeout_ms, now_ms)
        finally:
            responses, self._responses = self._responses, []
            _call_back(responses)
        return responses

    def _poll(self, timeout_ms: int, now_ms: int) -> None:
        metadata_timeout_ms = self._updater.maybe_update(now_ms)
        is_work_finished = self._setup.handle_finished_work(now_ms)
        if not self._has_unhandled_events():
            self._selector.poll(0 if is_work_finished else min(timeout_ms, metadata_timeout_ms, self._next_timeout_ms(now_ms)))
        now_ms = self._clock.now_ms()
        # Answers come before disconnections: one that arrived together with the end of its connection counts.
        self._handle_completed_sends(now_ms)
        self._handle_completed_receives(now_ms)
        self._handle_disconnections(now_ms)
        self._handle_connections(now_ms)
        self._setup.send_requests(now_ms)
        self._handle_timeouts(now_ms)
        self._handle_rebootstrap(now_ms)

    def _has_unhandled_events(self) -> bool:
        """Whether the previous poll raised before it had handled all events of the Selector, which Selector.poll would clear."""
        selector = self._selector
        return bool(selector.completed_sends or selector.completed_receives or selector.disconnected or selector.connected)

    def _next_timeout_ms(self, now_ms: int) -> int:
        """How long until a request or an attempt to connect times out; request.timeout.ms at most."""
        at_ms = min((each.times_out_at_ms for each in self._connections.values()), default=NEVER_MS)
        return max(min(at_ms - now_ms, self._config.request_timeout_ms), 0)

    def wakeup(self) -> None:
        """End a poll that waits, or keep the next one from waiting. Any thread."""
        self._selector.wakeup()

    def _handle_completed_sends(self, now_ms: int) -> None:
        while self._selector.completed_sends:
            connection = self._connections[self._selector.completed_sends.pop(0)]
            connection.in_flight[-1].is_written = True  # one request is written at a time
            self._handle_written(connection, now_ms)

    def _handle_written(self, connection: BrokerConnection, now_ms: int) -> None:
        last_request = connection.in_flight[-1]
        if not last_request.request.expect_response:
            self._responses += [last_request.response(now_ms)]
            connection.in_flight.pop()
            logger.debug("< %s is written, which completes it (acks=0)", last_request)

    def _handle_completed_receives(self, now_ms: int) -> None:
        while self._selector.completed_receives:
            node_id, response = self._selector.completed_receives.pop(0)
            connection = self._connections[node_id]
            if not connection.in_flight:
                continue  # an earlier answer ended the connection
            if connection.in_flight[0].correlation_id != response.correlation_id:
                reason = "an answer before this one was lost in an exception: nobody knows any more what it said"
                self._close_connection(connection, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason))
                continue
            if not connection.in_flight[0].is_written:  # its callback would release buffers that are still being written
                reason = "the broker answered a request that it had not been sent completely"
                self._close_connection(connection, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason))
                continue
            self._handle_answer(connection, response, now_ms)

    def _handle_answer(self, connection: BrokerConnection, response: Response, now_ms: int) -> None:
        oldest_request = connection.in_flight[0]
        if not oldest_request.is_internal:
            self._responses += [oldest_request.response(now_ms, response.message)]
            connection.in_flight.popleft()
        _note_first_answer(connection)
        logger.debug("< %s is answered after %d ms", oldest_request, now_ms - oldest_request.sent_ms)
        self._maybe_throttle(connection, response, now_ms)
        if not oldest_request.is_internal:
            return
        if connection.is_step(oldest_request.request.message):
            self._setup.advance_handshake(connection, Outcome(response.message, None), now_ms)
        else:
            assert isinstance(response.message, MetadataResponse)
            self._updater.handle_response(oldest_request.request.message, response.message, response.version, now_ms)
        if connection.in_flight and connection.in_flight[0] is oldest_request:  # else the answer has ended the connection
            connection.in_flight.popleft()

    def _maybe_throttle(self, connection: BrokerConnection, response: Response, now_ms: int) -> None:
        """The broker has answered, and does not read from the connection for a while (KIP-219)."""
        throttle_ms: int = getattr(response.message, "throttle_time_ms", 0)
        self._metrics.throttle.record(throttle_ms)
        if throttle_ms > 0 and response.version >= API_TABLE[response.message.API_KEY].throttles_from:
            connection.throttle(throttle_ms, now_ms)
            self._metadata.report_throttle(connection.node, throttle_ms, now_ms)
            logger.debug("= node %d: throttles this client for %d ms", connection.node.id, throttle_ms)

    def _handle_disconnections(self, now_ms: int) -> None:
        while self._selector.disconnected:
            node_id = next(iter(self._selector.disconnected))
            disconnect = self._selector.disconnected.pop(node_id)
            connection = self._connections[node_id]
            if connection.is_disconnected:
                continue  # an answer in the same poll ended the connection
            if _too_large_error(connection) is not None:
                _note_first_answer(connection)
            error = connection.login_detection.detected_error() if disconnect.state is ChannelState.ESTABLISHED else None
            if error is None:
                self._process_disconnection(connection, now_ms, disconnect)
            else:
                disconnect = Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error)
                self._process_disconnection(connection, now_ms, disconnect, failure_count=DETECTION_ATTEMPT_COUNT)

    def _handle_connections(self, now_ms: int) -> None:
        while self._selector.connected:
            self._setup.handle_connected(self._connections[self._selector.connected.pop(0)], now_ms)

    def _handle_timeouts(self, now_ms: int) -> None:
        overdue_connections = [each for each in self._connections.values() if each.times_out_at_ms <= now_ms]
        for connection in overdue_connections:
            if connection.is_connecting:
                self._end_attempt(connection, now_ms)
            else:
                reason = "no answer to a request within its time-out (request.timeout.ms)"
                logger.info("- node %d: disconnecting: %s", connection.node.id, reason)
                disconnect = Disconnect(ChannelState.LOCAL_CLOSE, reason, has_timed_out=True)
                self._close_connection(connection, now_ms, disconnect)

    def _end_attempt(self, connection: BrokerConnection, now_ms: int) -> None:
        is_resolving = connection.is_resolving
        problem = f"no answer of DNS about {printable(connection.node.host)}" if is_resolving else "no connection"
        limit = f"{connection.setup_timeout_ms} ms (socket.connection.setup.timeout.ms, grows with each failure)"
        reason = f"{problem} within {limit}"
        logger.debug("- node %d: %s", connection.node.id, reason)
        self._close_connection(connection, now_ms, Disconnect(ChannelState.NOT_CONNECTED, reason, has_timed_out=True))

    def _handle_rebootstrap(self, now_ms: int) -> None:
        if not self._updater.needs_rebootstrap(now_ms):
            return
        for connection in self._connections_of(self._metadata.cluster().nodes):
            if not connection.is_disconnected:
                disconnect = Disconnect(ChannelState.LOCAL_CLOSE, "starting again from bootstrap.servers")
                self._close_connection(connection, now_ms, disconnect)
        self._updater.rebootstrap(now_ms)

    def _close_connection(self, connection: BrokerConnection, now_ms: int, disconnect: Disconnect) -> None:
        """Close a connection, if there is one, and fail the requests that are in flight on it."""
        self._selector.close(connection.node.id)
        self._process_disconnection(connection, now_ms, disconnect)

    def _process_disconnection(
        self, connection: BrokerConnection, now_ms: int, disconnect: Disconnect, *, failure_count: int = 1
    ) -> None:
        """After the Selector has closed a connection: back off, and fail the requests that were in flight on it."""
        node = connection.node
        too_large_error = _too_large_error(connection)
        self._failures.report(connection, disconnect, now_ms)
        if disconnect.state is ChannelState.ESTABLISHED:
            connection.login_detection.note_closed_by_broker()
        self._setup.forget(node.id)
        connection.note_disconnected(now_ms)
        self._cancel_in_flight(connection, now_ms, disconnect, too_large_error)
        self._updater.handle_disconnect(f"{node.id} ({node.address})", now_ms)
        if disconnect.error is not None:
            self._failures.handle_failed_login(connection, now_ms, disconnect.error, failure_count=failure_count)

    def _cancel_in_flight(
        self, connection: BrokerConnection, now_ms: int, disconnect: Disconnect, too_large_error: ResponseTooLargeError | None
    ) -> None:
        while connection.in_flight:
            oldest_request = connection.in_flight[0]
            logger.debug("! %s is cancelled after %d ms", oldest_request, now_ms - oldest_request.sent_ms)
            if not oldest_request.is_internal:
                response = oldest_request.response(
                    now_ms, was_disconnected=True, has_timed_out=disconnect.has_timed_out, error=too_large_error
                )
                self._responses += [response]
            elif isinstance(oldest_request.request.message, MetadataRequest):
                self._updater.handle_failed_request(oldest_request.request.message, now_ms)
            connection.in_flight.popleft()
            too_large_error = None  # only the oldest request has this error

    # CLOSING

    def close(self) -> None:
        """Close every connection and drop every request, without callbacks."""
        if not self._is_closed:
            self._is_closed = True
            self._selector.close()
            self._metadata.close()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ProducerClosedError("the network client is closed")


def _note_first_answer(connection: BrokerConnection) -> None:
    """The broker has answered, so its listener accepts this client, also without a login."""
    if connection.login_detection.awaits_first_answer:
        connection.login_detection.note_answered()
        connection.note_accepted()


def _too_large_error(connection: BrokerConnection) -> ResponseTooLargeError | None:
    """The error of the oldest request in flight, if its response has ended the connection."""
    error = None if connection.framing is None else connection.framing.error
    if not isinstance(error, ResponseTooLargeError):
        return None
    return ResponseTooLargeError(f"node {connection.node.id} ({connection.node.address}): {error.message}")


def _call_back(responses: list[ClientResponse]) -> None:
    """Run every callback in order, also after a callback has raised. The first error is raised at the end."""
    first_error: BaseException | None = None
    for response in responses:
        if response.request.callback is None:
            continue
        try:
            response.request.callback(response)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too
            logger.exception("! the callback of a %s failed", type(response.request.message).__name__)
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def login_for(config: ProducerConfig, clock: Clock, random: Random) -> Login | None:
    """The login of a configuration; None without SASL. Raises ConfigError as `login_of` does."""
    if not config.security_protocol.startswith("SASL_"):
        return None
    # Imported here: the modules of some mechanisms (http, json, email) take as long to import as the rest of the network.
    from spark_kafka_sink.network.sasl.factory import login_of

    return login_of(config, clock, random)


def _make_selector(config: ProducerConfig, clock: Clock, metrics: NetworkMetrics) -> Selector:
    return Selector(
        clock, connections_max_idle_ms=config.connections_max_idle_ms, open_transport=transport_factory(config), metrics=metrics
    )


def transport_factory(config: ProducerConfig) -> Callable[[Address], Transport]:
    """A function that opens a connection, with TLS if security.protocol says so. Raises ConfigError as TlsConnector does."""
    if config.security_protocol in ("SSL", "SASL_SSL"):
        return TlsConnector(config)
    return partial(Transport, send_buffer_bytes=config.send_buffer_bytes, receive_buffer_bytes=config.receive_buffer_bytes)
