"""Requests to many brokers: who is ready, what is in flight, what came back.

The Sender asks `ready`, calls `send`, and lets `poll` do everything else: write, read, shake hands on new connections, keep
metadata fresh, time requests out, call back. Waiting and sockets are Selector's, one connection's protocol is Connection's.
Threads: the Sender only, except `wakeup`, which any thread may call.
Laws: every request gets exactly one callback, unless `close` threw it away; the callbacks of one node come in the order of
its requests; when a request is called back, no buffer of it is referred to any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import AuthenticationError, KafkaError, ProducerClosedError, UnsupportedVersionError, printable
from spark_kafka_sink.network.background import Background, BackgroundWorker, Outcome, Worker
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.connection import Connection, Response
from spark_kafka_sink.network.connection_states import ClusterConnectionStates
from spark_kafka_sink.network.handshake import (
    Handshake,
    HandshakeRequest,
    NodeApiVersions,
    Session,
    Step,
    authenticate,
    handshake,
    login_demanded,
)
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse, InFlightRequest, InFlightRequests
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.network.names import Resolver, canonical_bootstrap_servers, literal_addresses, look_up, resolve
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.selector import ChannelState, Disconnect, Selectable, Selector
from spark_kafka_sink.network.tls import TlsConnector
from spark_kafka_sink.network.transport import Address, PlaintextTransport, Transport
from spark_kafka_sink.protocol.api_keys import API_TABLE
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import Request

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

__all__ = ["ClientRequest", "ClientResponse", "NetworkClient"]

log = logging.getLogger(__name__)

_MAX_LOGGED_VERSIONS = 5_000  # characters; those of Kafka 4 take 1,600
WARN_EVERY_MS = 30_000  # per node, of connections that cannot be established
RENEW_AFTER_MS = 1000  # at least: brokers hang up on clients that log in again sooner, and something must be sent in between
RENEW_AT = (0.85, 0.95)  # part of a session's lifetime after which we log in again, as Java does; not all clients at once


class NetworkClient:
    """
    Args:
        config: the network's options, see the reads below.
        metadata: shared with callers; this client keeps it fresh.
        clock: for the time after a poll.
        client_id: instead of the config's, for brokers' logs and quotas.
        metrics: where the Selector and this count; nowhere, if not given.
        selector, resolve_host, random, worker: for tests.

    Raises:
        ConfigError: certificates and keys cannot be read, or a package or function that the login needs is missing.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: Metadata,
        clock: Clock,
        *,
        client_id: str | None = None,
        metrics: NetworkMetrics | None = None,
        selector: Selectable | None = None,
        resolve_host: Resolver = resolve,
        random: Random | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._random = random or Random()
        self._login = _login(config, clock, self._random)  # None without SASL
        self._security_protocol = config.security_protocol
        self._client_id = config.client_id if client_id is None else client_id
        self._request_timeout_ms = config.request_timeout_ms
        self._metrics = metrics or NetworkMetrics()
        self._selector: Selectable = selector or _selector(config, clock, self._metrics)
        self._worker: Worker = worker or BackgroundWorker(self._selector.wakeup)
        self._resolve = resolve_host
        self._resolving: set[int] = set()  # nodes that are connecting, and whose name the worker looks up
        self._states = ClusterConnectionStates(
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            connection_setup_timeout_ms=config.socket_connection_setup_timeout_ms,
            connection_setup_timeout_max_ms=config.socket_connection_setup_timeout_max_ms,
            random=self._random,
        )
        self._in_flight = InFlightRequests(config.max_in_flight_requests_per_connection)
        self._updater = MetadataUpdater(metadata, self, config)
        self._connections: dict[int, Connection] = {}
        self._handshakes: dict[int, Handshake] = {}  # connections that are not ready yet, or log in again
        self._handshake_requests: dict[int, HandshakeRequest] = {}  # their next request, until it can be sent
        self._api_versions: dict[int, NodeApiVersions] = {}
        self._unproven: set[int] = set()  # ready, and has answered nothing yet: a listener with SASL hangs up on us here
        self._doubted: set[int] = set()  # lost so: asked at the next connection for the logins that they may demand
        self._offers: dict[int, tuple[str, ...]] = {}  # unproven, and may demand one of these
        self._renew_session_ms: dict[int, int] = {}  # when to log in again, on connections whose session ends
        self._aborted: list[ClientResponse] = []  # for the next poll: never sent, or cancelled by disconnect()
        self._warned_ms: dict[int, int] = {}  # when a failure to connect was last told aloud; repeated attempts are many
        self._is_closed = False
        self._refused: set[int] = set()  # in the latest poll
        if config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
            timeout_ms = config.socket_connection_setup_timeout_ms
            metadata.bootstrap(canonical_bootstrap_servers(config.bootstrap_servers, timeout_ms))

    # ---- which nodes ---------------------------------------------------------------------------------------------------------

    def ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request can be sent now. If not, and if nothing speaks against it, start to connect."""
        if self.is_ready(node_id, now_ms):
            return True
        self.renew_session(node_id, now_ms)
        node = self._metadata.cluster().node(node_id)
        if node is not None and self._states.can_connect(node_id, now_ms):
            self.initiate_connect(node, now_ms)
        return False

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request can be sent now. When metadata is due that comes first, and no node is ready for others."""
        return not self._updater.is_update_due(now_ms) and self.can_send(node_id, now_ms)

    def can_send(self, node_id: int, now_ms: int) -> bool:
        return (
            self._states.is_ready(node_id, now_ms)
            and self._selector.is_channel_ready(node_id)
            and self._in_flight.can_send_more(node_id)
            and not self._is_session_due(node_id, now_ms)
        )

    def _is_session_due(self, node_id: int, now_ms: int) -> bool:
        return bool(self._renew_session_ms) and self._renew_session_ms.get(node_id, now_ms + 1) <= now_ms

    def renew_session(self, node_id: int, now_ms: int) -> None:
        """Log in again where the session is about to end (KIP-368). What is in flight is answered first; new sends wait.

        Done when somebody wants to send, so that a connection that nobody uses can become idle and be closed.
        """
        if self._login is not None and self._states.is_ready(node_id, now_ms) and self._is_session_due(node_id, now_ms):
            log.debug("= node %d: the session is about to end, logging in again", node_id)
            del self._renew_session_ms[node_id]
            self._states.reauthenticating(node_id)
            steps = authenticate(self._login, self._states.host(node_id), self._api_versions[node_id])
            self._begin_handshake(node_id, steps, now_ms)
            self._continue_handshakes(now_ms)  # at once, where it can be sent: nothing else would end the next poll's wait

    def can_connect(self, node_id: int, now_ms: int) -> bool:
        return self._states.can_connect(node_id, now_ms)

    def connection_delay_ms(self, node_id: int, now_ms: int) -> int:
        """How long to wait before asking ready() again: back-off, or set-up time-out. Forever once it is connected."""
        return self._states.connection_delay_ms(node_id, now_ms)

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int:
        """As connection_delay_ms, but for a throttled node as long as it is throttled."""
        return self._states.poll_delay_ms(node_id, now_ms)

    def throttle_delay_ms(self, node_id: int, now_ms: int) -> int:
        return self._states.throttle_delay_ms(node_id, now_ms)

    def connection_failed(self, node_id: int) -> bool:
        return self._states.is_disconnected(node_id)

    def authentication_error(self, node_id: int) -> AuthenticationError | None:
        """Why the node refused us; None when it did not, or has let us in since."""
        return self._states.authentication_error(node_id)

    def refusal(self, node_id: int) -> AuthenticationError | None:
        """Why what waits for this node is to be given up now, if so: it has refused us twice in a row, or no broker accepts us.

        A broker that starts may not know all users yet: after a single refusal it is tried again. Told of the latest poll, even
        if the next attempt is under way already (reconnect.backoff.ms=0), and until the next attempt begins.
        """
        if node_id not in self._refused and not self._states.is_disconnected(node_id):
            return None
        is_final = self._states.refusals(node_id) > 1 or self._no_broker_accepts()
        return self._states.authentication_error(node_id) if is_final else None

    def refusal_by_all(self) -> AuthenticationError | None:
        """The same for what any broker could do."""
        nodes = [node.id for node in self._metadata.cluster().nodes]
        if not self._no_broker_accepts() or not all(
            node_id in self._refused or self._states.is_disconnected(node_id) for node_id in nodes
        ):
            return None
        return next(filter(None, map(self.refusal, nodes)), None)

    def _no_broker_accepts(self) -> bool:
        """Every broker refused us, or could not be reached, when it was last tried; and there were two refusals at least."""
        nodes = [node.id for node in self._metadata.cluster().nodes]
        return sum(map(self._states.refusals, nodes)) > 1 and all(map(self._states.is_shut_out, nodes))

    def has_ready_nodes(self, now_ms: int) -> bool:
        return self._states.has_ready_nodes(now_ms)

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """None before the connection is ready."""
        return self._api_versions.get(node_id)

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        """Of one node, or of all. The client's own requests count."""
        return self._in_flight.count(node_id)

    def least_loaded_node(self, now_ms: int) -> int | None:
        """The node with the fewest requests in flight.

        A connected node is preferred, then one that is being connected, then the one whose last attempt is longest ago.
        None when every node is busy, throttled or backing off.
        """
        node, _ = self.find_least_loaded_node(now_ms)
        return None if node is None else node.id

    def find_least_loaded_node(self, now_ms: int) -> tuple[Node | None, bool]:
        """As least_loaded_node; and whether any connection stands, be it busy or throttled: the cluster is there."""
        nodes = list(self._metadata.cluster().nodes)
        self._random.shuffle(nodes)  # among equals, do not have every client choose the first
        usable = [node for node in nodes if self.can_send(node.id, now_ms)]
        preparing = [
            node for node in nodes if self._states.is_preparing_connection(node.id) or self._is_session_due(node.id, now_ms)
        ]
        connectable = [node for node in nodes if self._states.can_connect(node.id, now_ms)]
        is_any_connected = any(self._states.is_connected(node.id) and self._selector.is_channel_ready(node.id) for node in nodes)
        if usable:
            return min(usable, key=lambda node: self._in_flight.count(node.id)), is_any_connected
        if preparing:
            return preparing[0], is_any_connected
        return min(connectable, key=lambda node: self._states.last_attempt_ms(node.id), default=None), is_any_connected

    def is_any_node_connecting(self) -> bool:
        return any(self._states.is_connecting(node.id) for node in self._metadata.cluster().nodes)

    def initiate_connect(self, node: Node, now_ms: int) -> None:
        """Never waits for DNS: a name is looked up in the background, and poll() connects when its addresses are there."""
        self._states.connecting(node.id, now_ms, node.host, node.port)
        try:
            if self._states.current_address(node.id) is None:
                addresses = literal_addresses(node.host, node.port)
                if not addresses:
                    self._look_up(node)
                    return
                self._states.resolved(node.id, addresses, now_ms)
            self._connect(node.id)
        except OSError as error:  # such a name cannot be, or there is no route
            self._fail_to_connect(node.id, now_ms, str(error))

    def _look_up(self, node: Node) -> None:
        log.debug("= node %d: looking up %s", node.id, printable(node.host))
        self._resolving.add(node.id)
        # Given up with the attempt to connect, which has a time-out of its own.
        work = partial(look_up, self._resolve, node.host, node.port)
        self._worker.start(node.id, work, NEVER_MS, key=(node.host, node.port))

    def _looked_up(self, node_id: int, outcome: Outcome, now_ms: int) -> None:
        self._resolving.discard(node_id)
        if outcome.error is not None:
            self._fail_to_connect(node_id, now_ms, outcome.error.message)
            return
        self._states.resolved(node_id, outcome.result, now_ms)
        try:
            self._connect(node_id)
        except OSError as error:
            self._fail_to_connect(node_id, now_ms, str(error))

    def _connect(self, node_id: int) -> None:
        connection = Connection(self._client_id, peer=f"node {node_id}")
        address = self._states.current_address(node_id)
        assert address is not None
        log.debug("= node %d: connecting to %s at %s", node_id, self._states.address_text(node_id), address)
        self._selector.connect(node_id, address, connection)
        self._connections[node_id] = connection

    def _fail_to_connect(self, node_id: int, now_ms: int, reason: str) -> None:
        # No responses: nothing is in flight to a node that was never connected.
        self._process_disconnection([], node_id, now_ms, Disconnect(ChannelState.NOT_CONNECTED, reason))

    # ---- sending -------------------------------------------------------------------------------------------------------------

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Queue a request for a node that is ready; the next polls write it.

        When the node and we have no version in common that can carry it, it is not sent, and the next poll calls back with
        an UnsupportedVersionError.
        """
        self._ensure_open()
        if not self.can_send(request.node_id, now_ms):
            raise RuntimeError(f"a request was sent to node {request.node_id}, which is not ready")
        try:
            version = self._api_versions[request.node_id].latest_usable_version(request.message.API_KEY, request.max_version)
            self._transmit(request, version, now_ms, is_internal=False)
        except UnsupportedVersionError as error:
            log.debug("! node %d: %s is not sent: %s", request.node_id, type(request.message).__name__, error)
            version = API_TABLE[request.message.API_KEY].max_version
            self._aborted.append(ClientResponse(request, None, version, now_ms, error=error))

    def send_metadata_request(self, node_id: int, request: MetadataRequest, now_ms: int) -> None:
        try:
            version = self._api_versions[node_id].latest_usable_version(request.API_KEY)
            self._transmit(self._internal_request(node_id, request, now_ms), version, now_ms, is_internal=True)
        except UnsupportedVersionError as error:
            self._updater.handle_failed_request(now_ms, fatal_error=error)

    def _internal_request(self, node_id: int, message: Request[Any], now_ms: int) -> ClientRequest:
        return ClientRequest(node_id, message, now_ms, expect_response=True, request_timeout_ms=self._request_timeout_ms)

    def _transmit(self, request: ClientRequest, version: int, now_ms: int, *, is_internal: bool) -> None:
        connection = self._connections[request.node_id]
        buffers = connection.send(request.message, version, expect_response=request.expect_response)
        in_flight = InFlightRequest(request, version, is_internal, now_ms, connection.last_correlation_id)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("> %s, %d bytes%s", in_flight, sum(map(len, buffers)), _partitions(request.message))
        self._in_flight.add(in_flight)
        self._selector.send(request.node_id, buffers)

    # ---- the loop ------------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]:
        """Send, receive and keep house; wait at most `timeout_ms` when there is nothing to do. Runs the callbacks.

        Returns:
            The responses that were called back.
        """
        self._ensure_open()
        self._refused.clear()
        if self._aborted:
            responses, self._aborted = self._aborted, []
            return _call_back(responses)
        metadata_timeout_ms = self._updater.maybe_update(now_ms)
        responses = []
        is_news = self._handle_finished_work(responses, now_ms)
        self._selector.poll(0 if is_news else min(timeout_ms, metadata_timeout_ms, self._next_timeout_ms(now_ms)))

        now_ms = self._clock.now_ms()
        # This order matters: an answer that arrived together with the end of its connection is an answer.
        self._handle_completed_sends(responses, now_ms)
        self._handle_completed_receives(responses, now_ms)
        self._handle_disconnections(responses, now_ms)
        self._handle_connections(now_ms)
        self._continue_handshakes(now_ms)
        self._handle_timed_out_connections(responses, now_ms)
        self._handle_timed_out_requests(responses, now_ms)
        self._handle_rebootstrap(responses, now_ms)
        return _call_back(responses)

    def _next_timeout_ms(self, now_ms: int) -> int:
        """How long until a request or an attempt to connect times out. Else request.timeout.ms: look up now and then."""
        return min(self._in_flight.next_timeout_ms(now_ms), self._states.next_setup_timeout_ms(now_ms), self._request_timeout_ms)

    def wakeup(self) -> None:
        """End a poll that waits, or keep the next from waiting. Any thread."""
        self._selector.wakeup()

    def _handle_completed_sends(self, responses: list[ClientResponse], now_ms: int) -> None:
        for node_id in self._selector.completed_sends:
            sent = self._in_flight.last_sent(node_id)
            sent.is_written = True
            if not sent.request.expect_response:
                self._in_flight.complete_last_sent(node_id)
                log.debug("< %s is written, which is all that acks=0 asks for", sent)
                responses.append(ClientResponse(sent.request, None, sent.version, now_ms, correlation_id=sent.correlation_id))

    def _handle_completed_receives(self, responses: list[ClientResponse], now_ms: int) -> None:
        for node_id, response in self._selector.completed_receives:
            oldest = self._in_flight.oldest(node_id)
            if oldest is None:
                continue  # given up for what it answered just before
            if not oldest.is_written:  # called back now, its buffers would be given back while they are being written
                self._give_up(responses, node_id, now_ms, "the broker answered a request that it had not been sent completely")
                continue
            answered = self._in_flight.complete_next(node_id)
            if node_id in self._unproven:
                self._unproven.discard(node_id)
                self._states.accepted(node_id)
            log.debug("< %s is answered after %d ms", answered, now_ms - answered.sent_ms)
            self._maybe_throttle(node_id, answered, response, now_ms)
            if not answered.is_internal:
                responses.append(
                    ClientResponse(
                        answered.request, response.message, response.version, now_ms, correlation_id=answered.correlation_id
                    )
                )
            elif isinstance(response.message, MetadataResponse):
                self._updater.handle_response(response.message, response.version, now_ms)
            else:
                self._advance_handshake(responses, node_id, Outcome(response.message, None), now_ms)

    def _give_up(self, responses: list[ClientResponse], node_id: int, now_ms: int, reason: str) -> None:
        self._selector.close(node_id)
        self._process_disconnection(responses, node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason))

    def _maybe_throttle(self, node_id: int, answered: InFlightRequest, response: Response, now_ms: int) -> None:
        """The broker has answered, and reads nothing more for a while (KIP-219)."""
        throttle_ms: int = getattr(response.message, "throttle_time_ms", 0)
        self._metrics.throttle.record(throttle_ms)
        if throttle_ms > 0 and response.version >= API_TABLE[answered.request.message.API_KEY].throttles_from:
            self._in_flight.add_throttle_time(node_id, throttle_ms)
            self._states.throttle(node_id, now_ms + throttle_ms)
            log.debug("= node %d: throttles this client for %d ms", node_id, throttle_ms)

    def _handle_disconnections(self, responses: list[ClientResponse], now_ms: int) -> None:
        for node_id, disconnect in self._selector.disconnected.items():
            attempts = 1
            if not self._states.is_disconnected(node_id):  # else we have given it up already, for what it answered
                if disconnect.state is ChannelState.READY and node_id in self._unproven and node_id in self._offers:
                    error = login_demanded(self._offers[node_id])
                    disconnect = Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error)
                    attempts = 2  # one before it was doubted
                self._process_disconnection(responses, node_id, now_ms, disconnect)
                if disconnect.error is not None:
                    self._authentication_failed(node_id, now_ms, disconnect.error, attempts)

    def _authentication_failed(self, node_id: int, now_ms: int, cause: AuthenticationError, attempts: int = 1) -> None:
        """After its back-off the node may be tried again. Whoever waits for metadata gets the error when no broker accepts us."""
        where = f"node {node_id} ({self._states.address_text(node_id)})"
        error = AuthenticationError(f"{where}: {cause.message}", condition=cause.condition)
        self._refused.add(node_id)
        self._states.authentication_failed(node_id, now_ms, error, attempts=attempts)
        if self._no_broker_accepts():
            self._metadata.fatal_error(error)

    def _handle_timed_out_connections(self, responses: list[ClientResponse], now_ms: int) -> None:
        for node_id in self._states.nodes_with_setup_timeout(now_ms):
            timeout_ms = self._states.setup_timeout_ms(node_id)
            self._selector.close(node_id)
            host = printable(self._states.host(node_id))
            what = f"no answer of DNS about {host}" if node_id in self._resolving else "no connection"
            reason = f"{what} within {timeout_ms} ms (socket.connection.setup.timeout.ms, grows with each failure)"
            log.debug("- node %d: %s", node_id, reason)
            self._process_disconnection(
                responses, node_id, now_ms, Disconnect(ChannelState.NOT_CONNECTED, reason), timed_out=True
            )

    def _handle_timed_out_requests(self, responses: list[ClientResponse], now_ms: int) -> None:
        for node_id in self._in_flight.nodes_with_timed_out_requests(now_ms):
            self._selector.close(node_id)
            reason = "no answer to a request within its time-out (request.timeout.ms)"
            log.info("- node %d: disconnecting: %s", node_id, reason)
            self._process_disconnection(responses, node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason), timed_out=True)

    def _handle_rebootstrap(self, responses: list[ClientResponse], now_ms: int) -> None:
        if not self._updater.needs_rebootstrap(now_ms):
            return
        for node in self._metadata.cluster().nodes:
            self._selector.close(node.id)
            if self._states.is_connecting(node.id) or self._states.is_connected(node.id):
                disconnect = Disconnect(ChannelState.LOCAL_CLOSE, "starting again from bootstrap.servers")
                self._process_disconnection(responses, node.id, now_ms, disconnect)
        self._updater.rebootstrap(now_ms)

    def _process_disconnection(
        self, responses: list[ClientResponse], node_id: int, now_ms: int, disconnect: Disconnect, *, timed_out: bool = False
    ) -> None:
        """After the selector has let go of a connection: back off, and fail whatever was in flight on it."""
        address = self._states.address_text(node_id)
        reason = disconnect.reason
        if disconnect.state in (ChannelState.NOT_CONNECTED, ChannelState.AUTHENTICATION_FAILED):
            is_news = now_ms - self._warned_ms.get(node_id, -WARN_EVERY_MS) >= WARN_EVERY_MS
            loud = logging.WARNING if disconnect.error is None else logging.ERROR
            level = loud if is_news else logging.DEBUG
            log.log(level, "! node %d: connection to %s could not be established: %s", node_id, address, reason)
            if is_news:
                self._warned_ms[node_id] = now_ms
        elif disconnect.state is ChannelState.READY and self._states.is_preparing_connection(node_id):
            reason += f" (before it was ready; does this listener speak {self._security_protocol}?)"
            log.warning("! node %d: connection to %s was lost: %s", node_id, address, reason)
        elif disconnect.state is ChannelState.READY and node_id in self._unproven:
            reason += f" (before it answered; is security.protocol={self._security_protocol} right for this listener?)"
            log.warning("! node %d: connection to %s was lost: %s", node_id, address, reason)
            self._doubted.add(node_id)
        else:
            log.debug("= node %d: disconnected from %s: %s", node_id, address, reason)
        if disconnect.state is not ChannelState.EXPIRED:
            self._metadata.connection_failed(address, reason)
        self._forget_connection(node_id)
        self._states.disconnected(node_id, now_ms)
        self._cancel_in_flight(node_id, now_ms, responses, timed_out=timed_out)
        self._updater.handle_disconnect(f"{node_id} ({address})", now_ms)

    def _forget_connection(self, node_id: int) -> None:
        for table in (
            self._connections,
            self._api_versions,
            self._handshakes,
            self._handshake_requests,
            self._renew_session_ms,
            self._offers,
        ):
            table.pop(node_id, None)
        self._unproven.discard(node_id)
        self._resolving.discard(node_id)
        self._worker.forget(node_id)

    def _cancel_in_flight(self, node_id: int, now_ms: int, responses: list[ClientResponse] | None, *, timed_out: bool) -> None:
        for lost in self._in_flight.clear(node_id):
            log.debug("! %s is cancelled after %d ms", lost, now_ms - lost.sent_ms)
            if isinstance(lost.request.message, MetadataRequest) and lost.is_internal:
                self._updater.handle_failed_request(now_ms)
            elif not lost.is_internal and responses is not None:
                responses.append(
                    ClientResponse(
                        lost.request,
                        None,
                        lost.version,
                        now_ms,
                        disconnected=True,
                        timed_out=timed_out,
                        correlation_id=lost.correlation_id,
                    )
                )

    # ---- handshakes ------------------------------------------------------------------------------------------------------------

    def _handle_connections(self, now_ms: int) -> None:
        for node_id in self._selector.connected:
            steps = handshake(self._login, self._states.host(node_id), doubts=node_id in self._doubted)
            self._doubted.discard(node_id)
            self._begin_handshake(node_id, steps, now_ms)

    def _begin_handshake(self, node_id: int, steps: Handshake, now_ms: int) -> None:
        self._handshakes[node_id] = steps
        self._take_step(node_id, next(steps), now_ms)

    def _take_step(self, node_id: int, step: Step, now_ms: int) -> None:
        if isinstance(step, Background):
            self._worker.start(node_id, step.work, now_ms + self._request_timeout_ms)
        else:
            self._handshake_requests[node_id] = step

    def _handle_finished_work(self, responses: list[ClientResponse], now_ms: int) -> bool:
        """Whether there was any, or any was given up."""
        finished, overdue = self._worker.finished(), self._worker.overdue(now_ms)
        for node_id, outcome in finished:
            if node_id in self._resolving:
                self._looked_up(node_id, outcome, now_ms)
            else:
                self._advance_handshake(responses, node_id, outcome, now_ms)
        self._continue_handshakes(now_ms)
        for node_id in overdue:
            self._selector.close(node_id)
            reason = "the login was not ready within request.timeout.ms: the token source or the Kerberos server does not answer"
            self._process_disconnection(responses, node_id, now_ms, Disconnect(ChannelState.LOCAL_CLOSE, reason), timed_out=True)
        return bool(finished or overdue)

    def _continue_handshakes(self, now_ms: int) -> None:
        for node_id in [node_id for node_id in self._handshake_requests if self._can_shake_hands(node_id)]:
            message, version = self._handshake_requests.pop(node_id)
            if self._states.is_connecting(node_id):
                self._states.checking_api_versions(node_id)
            self._transmit(self._internal_request(node_id, message, now_ms), version, now_ms, is_internal=True)

    def _can_shake_hands(self, node_id: int) -> bool:
        return self._selector.is_channel_ready(node_id) and self._in_flight.can_send_more(node_id)

    def _advance_handshake(self, responses: list[ClientResponse], node_id: int, outcome: Outcome, now_ms: int) -> None:
        steps = self._handshakes[node_id]
        try:
            step = steps.send(outcome.result) if outcome.error is None else steps.throw(outcome.error)
            self._take_step(node_id, step, now_ms)
        except StopIteration as finished:
            del self._handshakes[node_id]
            self._become_ready(node_id, finished.value, now_ms)
        except AuthenticationError as error:
            self._selector.close(node_id)
            refusal = Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error)
            self._process_disconnection(responses, node_id, now_ms, refusal)
            self._authentication_failed(node_id, now_ms, error)
        except KafkaError as error:
            self._give_up(responses, node_id, now_ms, str(error))

    def _become_ready(self, node_id: int, session: Session, now_ms: int) -> None:
        self._api_versions[node_id] = session.api_versions
        if session.lifetime_ms > 0:
            until_ms = int(session.lifetime_ms * self._random.uniform(*RENEW_AT))
            self._renew_session_ms[node_id] = now_ms + max(until_ms, RENEW_AFTER_MS)
        elif self._login is None:
            self._unproven.add(node_id)
            if session.mechanisms:
                self._offers[node_id] = session.mechanisms
        self._states.ready(node_id)
        if node_id not in self._unproven:
            self._states.accepted(node_id)
        self._metadata.connection_ready(self._states.address_text(node_id))
        log.debug("= node %d: ready: %s", node_id, printable(session.api_versions, _MAX_LOGGED_VERSIONS))

    # ---- closing ---------------------------------------------------------------------------------------------------------------

    def disconnect(self, node_id: int, now_ms: int) -> None:
        """Close the connection to a node; the next poll calls back what was in flight, as disconnected."""
        if self._states.state(node_id) is None or self._states.is_disconnected(node_id):
            return
        self._selector.close(node_id)
        self._forget_connection(node_id)
        self._cancel_in_flight(node_id, now_ms, self._aborted, timed_out=False)
        self._states.disconnected(node_id, now_ms)

    def close(self, node_id: int | None = None) -> None:
        """Close the connection to a node and forget its requests and its back-off, without callbacks; or close everything."""
        if node_id is not None:
            self._selector.close(node_id)
            self._forget_connection(node_id)
            self._cancel_in_flight(node_id, self._clock.now_ms(), None, timed_out=False)
            self._states.remove(node_id)
        elif not self._is_closed:
            self._is_closed = True
            self._selector.close()
            self._metadata.close()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ProducerClosedError("the network client is closed")


def _partitions(message: Request[Any]) -> str:
    """What a Produce request writes to, for the log."""
    if not isinstance(message, ProduceRequest):
        return ""
    return ": " + ", ".join(f"{topic.name}-{data.index}" for topic in message.topic_data for data in topic.partition_data)


def _call_back(responses: list[ClientResponse]) -> list[ClientResponse]:
    """Run every callback in order. One that raises keeps no other from running; the first error is raised at the end."""
    first_error: Exception | None = None
    for response in responses:
        if response.request.callback is None:
            continue
        try:
            response.request.callback(response)
        except Exception as error:
            log.exception("! the callback of a %s failed", type(response.request.message).__name__)
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return responses


def _login(config: ProducerConfig, clock: Clock, random: Random) -> Login | None:
    if not config.security_protocol.startswith("SASL_"):
        return None
    # Here: what some mechanisms need (http, json, email) takes as long to import as all the rest of the network.
    from spark_kafka_sink.network.sasl.factory import login_of

    return login_of(config, clock, random)


def _selector(config: ProducerConfig, clock: Clock, metrics: NetworkMetrics) -> Selector:
    return Selector(
        clock,
        connections_max_idle_ms=config.connections_max_idle_ms,
        open_transport=_transport_factory(config),
        metrics=metrics,
    )


def _transport_factory(config: ProducerConfig) -> Callable[[Address], Transport]:
    if config.security_protocol in ("SSL", "SASL_SSL"):
        return TlsConnector(config)
    return partial(
        PlaintextTransport, send_buffer_bytes=config.send_buffer_bytes, receive_buffer_bytes=config.receive_buffer_bytes
    )
