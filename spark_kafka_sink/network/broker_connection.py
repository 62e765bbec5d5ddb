"""One broker's connection: its state and back-off, addresses, requests in flight, handshake, API versions, session.

NetworkClient's thread only. An object outlives TCP connections; a broker at a new address gets a new object. NetworkClient and
ConnectionSetup report what happened, and ask what is allowed. The Selector owns the sockets, Framing knows the frames.
NEXT_CONNECTION_STATES lists the states that may follow each state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.clock import LONG_AGO_MS, NEVER_MS
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.background import Outcome
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.handshake import Handshake, LoginDetection, NodeApiVersions, RequestStep, Session, Step
from spark_kafka_sink.network.kafka_client import ClientRequest, InFlightRequest
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import Request

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

logger = logging.getLogger(__name__)

MIN_LOGIN_INTERVAL_MS = 1000  # brokers close connections that log in again sooner
RENEWAL_SHARE_RANGE = (0.85, 0.95)  # of a session's lifetime, when it is renewed; random as in Java, so that clients differ


class ConnectionState(Enum):
    """How far a broker's connection has come; it takes requests of callers only when it is READY."""

    CONNECTING = auto()
    CHECKING_API_VERSIONS = auto()
    READY = auto()
    REAUTHENTICATING = auto()  # logging in again; takes no other requests
    DISCONNECTED = auto()
    AUTHENTICATION_FAILED = auto()


_State = ConnectionState
_DISCONNECTED_STATES = frozenset({_State.DISCONNECTED, _State.AUTHENTICATION_FAILED})
_CONNECTED_STATES = frozenset({_State.CHECKING_API_VERSIONS, _State.READY, _State.REAUTHENTICATING})
_PREPARING_STATES = frozenset({_State.CONNECTING, _State.CHECKING_API_VERSIONS, _State.REAUTHENTICATING})
NEXT_CONNECTION_STATES: dict[ConnectionState, frozenset[ConnectionState]] = {
    _State.CONNECTING: frozenset({_State.CHECKING_API_VERSIONS, _State.DISCONNECTED}),
    _State.CHECKING_API_VERSIONS: frozenset({_State.READY, _State.DISCONNECTED}),
    _State.READY: frozenset({_State.REAUTHENTICATING, _State.DISCONNECTED}),
    _State.REAUTHENTICATING: frozenset({_State.READY, _State.DISCONNECTED}),
    _State.DISCONNECTED: frozenset({_State.CONNECTING, _State.AUTHENTICATION_FAILED}),  # the latter in note_failed_login()
    _State.AUTHENTICATION_FAILED: frozenset({_State.CONNECTING}),  # after its back-off
}


class BrokerConnection:
    """One broker's connection, over all its TCP connections.

    Args:
        node: the broker, with the address to connect to.
        config: client.id, back-off, time-outs, and how many requests may be in flight.
    """

    def __init__(self, node: Node, config: ProducerConfig, selector: Selector, random: Random) -> None:
        self.node = node
        self.state = ConnectionState.DISCONNECTED
        self.in_flight: deque[InFlightRequest] = deque()  # sent and not answered, oldest first; any thread may read its length
        self.last_attempt_ms = 0  # when the last attempt began, or the connection ended
        self.last_warning_ms = LONG_AGO_MS  # when a failure to connect was last logged as a warning
        # Since the node last accepted this client: authentications that failed on either side; attempts that ended before READY.
        self.failed_login_count = self._unready_attempt_count = 0
        self.authentication_error: AuthenticationError | None = None
        self.login_detection = LoginDetection()  # for a client without a login: whether the listener demands one
        self._config = config
        self._selector = selector
        self._random = random
        self._reconnect_backoff = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random)
        self._setup_timeout = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, random
        )
        self._reconnect_failure_count = 0  # makes the back-off longer: ends since the last READY; a failed login counts twice
        self._setup_failure_count = 0  # makes the set-up time-out longer: attempts in a row without a request of the handshake
        self._reconnect_backoff_ms = self._reconnect_backoff.backoff_ms(0)
        self.setup_timeout_ms = self._setup_timeout.backoff_ms(0)
        self._throttled_until_ms = 0
        self._addresses: Sequence[Address] = ()  # the present one, then those not tried yet; empty: look the name up
        self._last_address: Address | None = None
        self._forget_connection()

    def _forget_connection(self) -> None:
        """Forget what belongs to one TCP connection."""
        self.is_resolving = False  # the background worker looks up the node's name
        self.framing: Framing | None = None  # from the start of a TCP connection on
        self.next_request: RequestStep | None = None  # of the handshake, until it can be sent
        self._step_message: Request[Any] | None = None  # the last request of a handshake
        self.api_versions: NodeApiVersions | None = None  # from the end of the first handshake on
        self._handshake: Handshake | None = None  # while the connection is not ready, or its session is being renewed
        self._renew_session_at_ms = NEVER_MS
        self.login_detection.note_ended()

    def _transition_to(self, state: ConnectionState) -> None:
        if state not in NEXT_CONNECTION_STATES[self.state]:
            raise RuntimeError(f"connection to {self.node.address} cannot go from {self.state.name} to {state.name}")
        self.state = state

    # QUESTIONS

    @property
    def is_connecting(self) -> bool:
        return self.state is ConnectionState.CONNECTING

    @property
    def is_preparing(self) -> bool:
        return self.state in _PREPARING_STATES

    @property
    def is_connected(self) -> bool:
        return self.state in _CONNECTED_STATES

    @property
    def is_disconnected(self) -> bool:
        return self.state in _DISCONNECTED_STATES

    @property
    def is_established(self) -> bool:
        return self._selector.is_established(self.node.id)

    @property
    def is_shut_out(self) -> bool:
        """Whether attempts have failed since the node last accepted this client, and the connection is not READY now."""
        return self.state is not ConnectionState.READY and self.failed_login_count + self._unready_attempt_count > 0

    def can_connect(self, now_ms: int) -> bool:
        return self.state in _DISCONNECTED_STATES and now_ms - self.last_attempt_ms >= self._reconnect_backoff_ms

    def is_ready(self, now_ms: int) -> bool:
        return self.state is ConnectionState.READY and self._throttled_until_ms <= now_ms

    def is_session_due(self, now_ms: int) -> bool:
        """Whether the client must log in again before it sends requests (KIP-368)."""
        return self._renew_session_at_ms <= now_ms

    def can_send(self, now_ms: int) -> bool:
        return self.is_ready(now_ms) and self.can_write() and not self.is_session_due(now_ms)

    def can_write(self) -> bool:
        """Whether a request can be written: the last one is written, and fewer requests than the limit are in flight."""
        queue = self.in_flight
        has_room = not queue or (queue[-1].is_written and len(queue) < self._config.max_in_flight_requests_per_connection)
        return has_room and self.is_established

    def poll_delay_ms(self, now_ms: int) -> int:
        """Milliseconds until an attempt is allowed or a throttle ends; while connecting, the set-up time-out; else NEVER_MS."""
        if self.is_connected:
            return max(self._throttled_until_ms - now_ms, 0) or NEVER_MS
        if self.is_connecting:
            return self.setup_timeout_ms
        return max(self.last_attempt_ms + self._reconnect_backoff_ms - now_ms, 0)

    @property
    def times_out_at_ms(self) -> int:
        """When the attempt to connect, or the first of the requests in flight, times out; NEVER_MS if there is none."""
        if self.is_connecting:
            return self.last_attempt_ms + self.setup_timeout_ms + 1
        return min((request.times_out_at_ms for request in self.in_flight), default=NEVER_MS)

    # REQUESTS

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Write a request: at once what the socket takes, the rest in later polls.

        Raises:
            UnsupportedVersionError: no version that the broker and this client support can carry it. It is not sent.
        """
        self._transmit(request, self._usable_version(request), now_ms, is_internal=False)

    def send_internal(self, message: Request[Any], now_ms: int, version: int | None = None) -> None:
        """Write a request of the network itself (Metadata, handshake), in `version` or the negotiated one. Raises as `send`."""
        timeout_ms = self._config.request_timeout_ms
        request = ClientRequest(self.node.id, message, now_ms, expect_response=True, request_timeout_ms=timeout_ms)
        self._transmit(request, self._usable_version(request) if version is None else version, now_ms, is_internal=True)

    def _usable_version(self, request: ClientRequest) -> int:
        assert self.api_versions is not None
        return self.api_versions.latest_usable_version(request.message.API_KEY, request.max_version)

    def _transmit(self, request: ClientRequest, version: int, now_ms: int, *, is_internal: bool) -> None:
        assert self.framing is not None
        buffers = self.framing.send(request.message, version, expect_response=request.expect_response)
        in_flight = InFlightRequest(request, version, is_internal, now_ms, self.framing.last_correlation_id)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("> %s, %d bytes%s", in_flight, sum(map(len, buffers)), _partitions_text(request.message))
        self.in_flight.append(in_flight)
        in_flight.is_written = self._selector.send(self.node.id, buffers)

    def throttle(self, throttle_ms: int, now_ms: int) -> None:
        """Send nothing for `throttle_ms`: the broker does not read from the connection. An earlier throttle may last longer."""
        self._throttled_until_ms = max(self._throttled_until_ms, now_ms + throttle_ms)
        for request in self.in_flight:
            request.throttled_ms += throttle_ms  # a sum: the broker throttles again only after the last throttle has ended

    # FROM AN ATTEMPT TO A CONNECTION

    def begin_attempt(self, now_ms: int) -> None:
        """Begin an attempt to connect, with the next address."""
        self._transition_to(ConnectionState.CONNECTING)
        self._addresses = self._addresses[1:]
        self.last_attempt_ms = now_ms

    @property
    def needs_address(self) -> bool:
        """Whether all addresses have been tried, and the name has to be looked up."""
        return not self._addresses

    def set_addresses(self, addresses: Sequence[Address], now_ms: int) -> None:
        """Keep the addresses of the name, at least one. The attempt with the first one gets the whole set-up time-out."""
        # Do not begin with the address of the last attempt: its host may be broken.
        must_skip_first = len(addresses) > 1 and addresses[0] == self._last_address
        self._addresses = addresses[1:] if must_skip_first else addresses
        self.last_attempt_ms = now_ms

    def open(self) -> None:
        """Start the TCP connection. Raises OSError if that fails at once, for instance without a route to the address."""
        self._last_address = self._addresses[0]
        logger.debug("= node %d: connecting to %s at %s", self.node.id, self.node.address, self._last_address)
        framing = Framing(self._config.client_id, peer=f"node {self.node.id}")
        self._selector.connect(self.node.id, self._last_address, framing)
        self.framing = framing

    # HANDSHAKE AND SESSION

    def begin_handshake(self, steps: Handshake) -> Step:
        """Start a handshake. Returns its first step."""
        self._renew_session_at_ms = NEVER_MS
        self._handshake = steps
        return next(steps)

    def advance_handshake(self, outcome: Outcome) -> Step | Session:
        """Hand the outcome of the last step to the handshake. Returns its next step, or the session when it is complete.

        Raises:
            KafkaError: the handshake failed.
        """
        assert self._handshake is not None
        try:
            if outcome.error is not None:
                return self._handshake.throw(outcome.error)
            return self._handshake.send(outcome.result)
        except StopIteration as stop:
            self._handshake = None
            session: Session = stop.value
            return session

    def send_next_request(self, now_ms: int) -> None:
        """Send the next request of the handshake, if there is one and the connection can take it now."""
        request = self.next_request
        if request is not None and self.can_write():
            self.next_request, self._step_message = None, request.message
            if self.is_connecting:
                self._transition_to(ConnectionState.CHECKING_API_VERSIONS)
                self._reset_setup_timeout()
            self.send_internal(request.message, now_ms, request.version)

    def is_step(self, message: Request[Any]) -> bool:
        """Whether the handshake waits for the answer to this request."""
        return message is self._step_message

    def begin_reauthentication(self) -> None:
        """Take no requests of callers until `become_ready`. The connection must be READY."""
        self._transition_to(ConnectionState.REAUTHENTICATING)

    def become_ready(self, session: Session, now_ms: int) -> None:
        """The handshake is complete: take requests, and forget the back-offs. `session` says when to log in again."""
        self.api_versions = session.api_versions
        if session.lifetime_ms > 0:
            renew_after_ms = int(session.lifetime_ms * self._random.uniform(*RENEWAL_SHARE_RANGE))
            self._renew_session_at_ms = now_ms + max(renew_after_ms, MIN_LOGIN_INTERVAL_MS)
        self._transition_to(ConnectionState.READY)
        self._reconnect_failure_count = 0
        self._reconnect_backoff_ms = self._reconnect_backoff.backoff_ms(0)
        self._reset_setup_timeout()

    def note_accepted(self) -> None:
        """After READY: the login was accepted, or, without a login, the node has answered a request."""
        self.authentication_error = None
        self.failed_login_count = self._unready_attempt_count = 0

    # THE END

    def note_disconnected(self, now_ms: int) -> None:
        """The connection has ended, or could not be established. NetworkClient cancels what is in flight."""
        self._forget_connection()
        self.last_attempt_ms = now_ms
        self._back_off()
        if self.state is not ConnectionState.READY:
            self._unready_attempt_count += 1
        if self.is_connecting:
            self._setup_failure_count += 1
            self.setup_timeout_ms = self._setup_timeout.backoff_ms(self._setup_failure_count)
        else:
            self._reset_setup_timeout()
            self._addresses = ()  # the node was connected: its name may have other addresses now
        if not self.is_disconnected:
            self._transition_to(ConnectionState.DISCONNECTED)

    def note_failed_login(self, now_ms: int, error: AuthenticationError, *, failure_count: int = 1) -> None:
        """Keep the error, and back off once more. `failure_count`: how many failed attempts have shown that the login fails."""
        self.authentication_error = error
        self.failed_login_count += failure_count
        self.last_attempt_ms = now_ms
        self._transition_to(ConnectionState.AUTHENTICATION_FAILED)
        self._back_off()

    def _back_off(self) -> None:
        self._reconnect_backoff_ms = self._reconnect_backoff.backoff_ms(self._reconnect_failure_count)
        self._reconnect_failure_count += 1

    def _reset_setup_timeout(self) -> None:
        self._setup_failure_count = 0
        self.setup_timeout_ms = self._setup_timeout.backoff_ms(0)


def _partitions_text(message: Request[Any]) -> str:
    """What a Produce request writes to, for the log."""
    if not isinstance(message, ProduceRequest):
        return ""
    return ": " + ", ".join(f"{topic.name}-{data.index}" for topic in message.topic_data for data in topic.partition_data)
