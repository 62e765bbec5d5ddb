"""Waits for many connections at once: the only place in the package that waits for brokers' sockets.

NetworkClient connects and sends. `send` writes what the socket takes, `poll` moves all other bytes. What happened is listed in
`connected`, `completed_sends`, `completed_receives` and `disconnected`, from which NetworkClient takes it; the next poll clears
what is left there. Bytes that arrive go through the channel's Framing.
NetworkClient's thread only; any thread may call `wakeup`.
Law: the Selector releases buffers that were passed to `send` when they are written or their connection is closed, never later.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.metrics import NS_PER_MS
from spark_kafka_sink.network.framing import Framing, Response
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.transport import MAX_BUFFERS, Address, Transport
from spark_kafka_sink.protocol.primitives import Buffer

logger = logging.getLogger(__name__)

MAX_POLL_MS = 600_000  # the longest wait
_READ_BUFFER_BYTES = 64 * 1024  # one for all connections; a Produce response to 300 partitions takes about 10 KiB
_MAX_READS_PER_POLL = 16  # of one connection, so that a busy broker cannot starve the others


class ChannelState(Enum):
    """The state of a connection when it ended."""

    NOT_CONNECTED = auto()  # it was never established
    ESTABLISHED = auto()  # the broker closed it or violated the protocol, or it was lost
    AUTHENTICATION_FAILED = auto()  # one side does not accept the other: see the error
    EXPIRED = auto()  # the client closed it: idle for connections.max.idle.ms
    LOCAL_CLOSE = auto()  # the client closed it for another reason


class Disconnect(NamedTuple):
    """How and why a connection ended."""

    state: ChannelState
    reason: str
    error: AuthenticationError | None = None  # with AUTHENTICATION_FAILED
    has_timed_out: bool = False  # the client closed the connection because an answer did not come in time


class _OutgoingFrame:
    """A frame that is being written."""

    __slots__ = ("_buffers", "_index", "written_bytes")

    def __init__(self, buffers: list[Buffer]) -> None:
        self._buffers = buffers
        self._index = 0  # of the first buffer that is not completely written
        self.written_bytes = 0

    def next_buffers(self) -> list[Buffer]:
        return self._buffers[self._index : self._index + MAX_BUFFERS]

    def advance(self, byte_count: int) -> bool:
        """Count `byte_count` more bytes as written. Returns whether the frame is complete."""
        self.written_bytes += byte_count
        buffers, index = self._buffers, self._index
        while index < len(buffers) and byte_count >= len(buffers[index]):
            byte_count -= len(buffers[index])
            index += 1
        if byte_count:
            buffers[index] = memoryview(buffers[index])[byte_count:]
        self._index = index
        return index == len(buffers)


@dataclass(slots=True)
class _Channel:
    """A socket of the Selector, with the Framing of its bytes."""

    node_id: int
    transport: Transport
    framing: Framing
    is_connected: bool = False
    interest: int = 0  # the events it is registered for
    outgoing: _OutgoingFrame | None = None


class Selector:
    """Owns the sockets of one client: opens and closes them, writes and reads whole messages.

    Args:
        connections_max_idle_ms: negative for no limit.
        open_transport: makes a transport for an address.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        connections_max_idle_ms: int,
        open_transport: Callable[[Address], Transport],
        metrics: NetworkMetrics | None = None,
    ) -> None:
        self._clock = clock
        self._metrics = metrics or NetworkMetrics()
        self._max_idle_ms = connections_max_idle_ms
        self._open_transport = open_transport
        self._channels: dict[int, _Channel] = {}
        self._last_active_ms: dict[int, int] = {}  # node id -> time, least recently active first
        self._immediate_channels: list[_Channel] = []
        self._buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        self._selector = selectors.DefaultSelector()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ, None)
        self._clear()

    def _clear(self) -> None:
        self.connected: list[int] = []
        self.completed_sends: list[int] = []
        self.completed_receives: list[tuple[int, Response]] = []
        self.disconnected: dict[int, Disconnect] = {}

    # CONNECTIONS

    def connect(self, node_id: int, address: Address, framing: Framing) -> None:
        """Start to connect; a later poll reports the outcome. Raises OSError if it fails at once; then there is no connection."""
        if node_id in self._channels:
            raise RuntimeError(f"node {node_id} has a connection already")
        transport = self._open_transport(address)
        channel = _Channel(node_id, transport, framing)
        try:
            if transport.connect(address):
                self._immediate_channels.append(channel)
            self._selector.register(transport, selectors.EVENT_WRITE, channel)
        except OSError:
            transport.close()
            raise
        channel.interest = selectors.EVENT_WRITE
        self._channels[node_id] = channel
        self._metrics.connection_count = len(self._channels)
        self._note_activity(channel)

    def is_established(self, node_id: int) -> bool:
        channel = self._channels.get(node_id)
        return channel is not None and channel.is_connected

    def send(self, node_id: int, buffers: list[Buffer]) -> bool:
        """Write a frame: at once what the socket takes, the rest during the next polls. The frame before it must be complete.

        Returns:
            Whether it is written. If not, a later poll reports that in `completed_sends`, or the connection has ended:
            `disconnected` reports that at once, and has to be read before the next poll.
        """
        channel = self._channels[node_id]
        if channel.outgoing is not None:
            raise RuntimeError(f"another request to node {node_id} is still being written")
        channel.outgoing = _OutgoingFrame(buffers)
        return self._write(channel)

    def close(self, node_id: int | None = None) -> None:
        """Close one connection without reporting it in `disconnected`; without a node, close everything."""
        if node_id is not None:
            self.disconnected.pop(node_id, None)  # of a failed send: it would be taken for the end of the next connection
            channel = self._channels.get(node_id)
            if channel is not None:
                self._forget(channel)
            return
        for channel in list(self._channels.values()):
            self._forget(channel)
        self._selector.close()
        self._wakeup_reader.close()
        self._wakeup_writer.close()

    def wakeup(self) -> None:
        """End a poll that waits, or keep the next one from waiting. Any thread."""
        # An OSError means that the socket is full (a wake-up is pending) or closed (no poll waits).
        with contextlib.suppress(OSError):
            self._wakeup_writer.send(b"\0")

    def _forget(self, channel: _Channel) -> None:
        self._selector.unregister(channel.transport)
        with contextlib.suppress(OSError):  # this connection has ended anyway; the others must not fail
            channel.transport.close()
        channel.is_connected = False
        channel.outgoing = None
        del self._channels[channel.node_id]
        self._metrics.connection_count = len(self._channels)
        self._metrics.closures.record(1)
        del self._last_active_ms[channel.node_id]

    def _disconnect(self, channel: _Channel, state: ChannelState, reason: str, error: AuthenticationError | None = None) -> None:
        logger.debug("= node %d: connection closed (%s): %s", channel.node_id, state.name, reason)
        self._forget(channel)
        self.disconnected[channel.node_id] = Disconnect(state, reason, error)

    def _fail(self, channel: _Channel, error: OSError | AuthenticationError) -> None:
        if isinstance(error, AuthenticationError):
            self._disconnect(channel, ChannelState.AUTHENTICATION_FAILED, error.message, error)
            return
        state = ChannelState.ESTABLISHED if channel.is_connected else ChannelState.NOT_CONNECTED
        self._disconnect(channel, state, str(error) or type(error).__name__)

    def _note_activity(self, channel: _Channel) -> None:
        self._last_active_ms.pop(channel.node_id, None)
        self._last_active_ms[channel.node_id] = self._clock.now_ms()

    # POLL

    def poll(self, timeout_ms: int) -> None:
        """Read and write what is possible; wait up to `timeout_ms`. Failures of connections are reported, not raised."""
        self._clear()
        self._finish_immediate_connects()
        if self.connected or self.disconnected:
            timeout_ms = 0
        started_ns = self._clock.now_ns()
        ready = self._selector.select(min(max(timeout_ms, 0), MAX_POLL_MS) / 1000)
        ready_ns = self._clock.now_ns()
        self._metrics.samples.roll(ready_ns // NS_PER_MS)
        self._metrics.waits.record(ready_ns - started_ns)
        for key, events in ready:
            channel: _Channel | None = key.data
            if channel is None:
                self._drain_wakeups()
            elif self._is_open(channel):
                self._handle(channel, events)
        self._metrics.io.record(self._clock.now_ns() - ready_ns)
        self._close_oldest_idle_connection()

    def _finish_immediate_connects(self) -> None:
        channels, self._immediate_channels = self._immediate_channels, []
        for channel in channels:
            if self._is_open(channel):
                self._finish_connect(channel)

    def _is_open(self, channel: _Channel) -> bool:
        return self._channels.get(channel.node_id) is channel

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_reader.recv(4096):
                continue

    def _handle(self, channel: _Channel, events: int) -> None:
        self._note_activity(channel)
        if not channel.is_connected:
            self._finish_connect(channel)
            return
        if events & selectors.EVENT_READ:
            self._read(channel)
        if events & selectors.EVENT_WRITE and self._is_open(channel) and channel.outgoing is not None and self._write(channel):
            self.completed_sends.append(channel.node_id)

    def _finish_connect(self, channel: _Channel) -> None:
        try:
            if not channel.transport.finish_connect():
                self._set_interest(channel, channel.transport.connect_events())
                return
        except (OSError, AuthenticationError) as error:
            self._fail(channel, error)
            return
        channel.is_connected = True
        self._metrics.creations.record(1)
        self._set_interest(channel, selectors.EVENT_READ)
        self.connected.append(channel.node_id)

    def _set_interest(self, channel: _Channel, interest: int) -> None:
        if channel.interest != interest:
            self._selector.modify(channel.transport, interest, channel)
            channel.interest = interest

    def _write(self, channel: _Channel) -> bool:
        """Write what the socket takes. Returns whether the frame is complete."""
        outgoing = channel.outgoing
        assert outgoing is not None
        try:
            while True:
                byte_count = channel.transport.send(outgoing.next_buffers())
                if byte_count:
                    self._metrics.record_write(channel.node_id, byte_count)
                if outgoing.advance(byte_count):
                    break
                if byte_count == 0:
                    self._set_interest(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    return False
        except (OSError, AuthenticationError) as error:
            self._read(channel)  # answers that arrived before the connection broke still count
            if self._is_open(channel):
                self._fail(channel, error)
            return False
        channel.outgoing = None
        self._metrics.record_request(channel.node_id, outgoing.written_bytes)
        self._note_activity(channel)
        self._set_interest(channel, selectors.EVENT_READ)
        return True

    def _read(self, channel: _Channel) -> None:
        for _ in range(_MAX_READS_PER_POLL):
            try:
                byte_count = channel.transport.receive_into(self._buffer)
            except (OSError, AuthenticationError) as transport_error:
                self._fail(channel, transport_error)
                return
            if byte_count is None:
                return
            if byte_count == 0:
                self._disconnect(channel, ChannelState.ESTABLISHED, "the broker closed the connection")
                return
            responses = channel.framing.receive_data(self._buffer[:byte_count])
            self._metrics.record_read(channel.node_id, byte_count, len(responses))
            self.completed_receives.extend((channel.node_id, response) for response in responses)
            error = channel.framing.error
            if isinstance(error, AuthenticationError):
                self._fail(channel, error)
                return
            if error is not None:
                self._disconnect(channel, ChannelState.ESTABLISHED, error.message)
                return
            if byte_count < len(self._buffer):
                return

    def _close_oldest_idle_connection(self) -> None:
        """Close the connection that was idle for longest, if connections.max.idle.ms is over; at most one per poll.

        A connection that waits for an answer, or is being written to, is not idle, however long that takes: request.timeout.ms
        limits the wait.
        """
        if self._max_idle_ms < 0:
            return
        active_before_ms = self._clock.now_ms() - self._max_idle_ms
        for node_id, active_ms in self._last_active_ms.items():
            if active_ms >= active_before_ms:
                return
            channel = self._channels[node_id]
            if channel.outgoing is None and not channel.framing.is_waiting:
                reason = f"idle for more than connections.max.idle.ms={self._max_idle_ms}"
                self._disconnect(channel, ChannelState.EXPIRED, reason)
                return
