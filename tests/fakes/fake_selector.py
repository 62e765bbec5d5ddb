"""A Selector without sockets: it decodes what NetworkClient sends for the test, and delivers the test's answers in the next poll.

    network = FakeSelector(clock)
    network.answer = lambda request: ApiVersionsResponse(...) if ... else None   # None: no answer yet
    network.respond(request, message)                                            # later, by hand

A poll without any event advances the test's clock by its whole time-out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.framing import Framing, Response
from spark_kafka_sink.network.selector import ChannelState, Disconnect
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.primitives import Buffer, Writer
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.headers import write_response_header
from tests.fakes.requests import read_request


@dataclass
class SentRequest:
    node_id: int
    header: RequestHeader
    message: Message


class FakeSelector:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.answer: Callable[[SentRequest], Message | None] = lambda _: None
        self.refused: dict[int, str] = {}  # ports that refuse connections, and why
        self.holds_connects = False  # connections neither succeed nor fail
        self.holds_sends = False  # requests stay unwritten
        self.attempts: list[tuple[int, Address]] = []
        self.sent_requests: list[SentRequest] = []
        self.closed: list[int] = []
        self.wakeups = 0
        self.is_closed = False
        self.poll_timeouts_ms: list[int] = []
        self._framings: dict[int, Framing] = {}
        self._connecting: list[int] = []
        self._writing: list[int] = []
        self._incoming: list[tuple[int, bytes]] = []
        self._disconnects: dict[int, Disconnect] = {}
        self._clear()

    def _clear(self) -> None:
        self.connected: list[int] = []
        self.completed_sends: list[int] = []
        self.completed_receives: list[tuple[int, Response]] = []
        self.disconnected: dict[int, Disconnect] = {}

    # FOR THE TEST

    def respond(self, request: SentRequest, message: Message) -> None:
        """Arrives with the next poll."""
        self._incoming.append((request.node_id, framed(request.header, message)))

    def deliver(self, node_id: int, data: bytes) -> None:
        self._incoming.append((node_id, data))

    def lose(self, node_id: int, reason: str = "connection reset", state: ChannelState = ChannelState.ESTABLISHED) -> None:
        """The next poll finds the connection closed."""
        self._disconnects[node_id] = Disconnect(state, reason)

    def refuse(self, node_id: int, error: AuthenticationError) -> None:
        """The next poll finds that one side does not accept the other."""
        self._disconnects[node_id] = Disconnect(ChannelState.AUTHENTICATION_FAILED, error.message, error)

    def sent_of(self, api_key: ApiKey) -> list[SentRequest]:
        return [request for request in self.sent_requests if request.header.api_key == api_key]

    # SELECTOR'S INTERFACE

    def connect(self, node_id: int, address: Address, framing: Framing) -> None:
        assert node_id not in self._framings
        self.attempts.append((node_id, address))
        self._framings[node_id] = framing
        self._connecting.append(node_id)

    def is_established(self, node_id: int) -> bool:
        return node_id in self._framings and node_id not in self._connecting

    def send(self, node_id: int, buffers: list[Buffer]) -> bool:
        assert node_id not in self._writing, "one request at a time"
        request = SentRequest(node_id, *read_request(b"".join(buffers)[4:]))
        self.sent_requests.append(request)
        if self.holds_sends:
            self._writing.append(node_id)
        answer = self.answer(request)
        if answer is not None:
            self.respond(request, answer)
        return not self.holds_sends

    def poll(self, timeout_ms: int) -> None:
        self.poll_timeouts_ms.append(timeout_ms)
        self._clear()
        self._connect_all()
        if not self.holds_sends:
            self.completed_sends, self._writing = self._writing, []
        incoming, self._incoming = self._incoming, []
        for node_id, data in incoming:
            self._receive(node_id, data)
        for node_id, disconnect in self._disconnects.items():
            if node_id in self._framings:
                self._forget(node_id)
                self.disconnected[node_id] = disconnect
        self._disconnects = {}
        if not (self.connected or self.completed_sends or self.completed_receives or self.disconnected):
            self.clock.advance(timeout_ms)

    def _connect_all(self) -> None:
        if self.holds_connects:
            return
        connecting, self._connecting = self._connecting, []
        ports = {node_id: address.socket_address[1] for node_id, address in self.attempts}
        for node_id in connecting:
            if ports[node_id] in self.refused:
                self._forget(node_id)
                self.disconnected[node_id] = Disconnect(ChannelState.NOT_CONNECTED, self.refused[ports[node_id]])
            else:
                self.connected.append(node_id)

    def _receive(self, node_id: int, data: bytes) -> None:
        framing = self._framings.get(node_id)
        if framing is None:
            return
        self.completed_receives += [(node_id, response) for response in framing.receive_data(data)]
        if framing.error is not None:
            self._forget(node_id)
            self.disconnected[node_id] = Disconnect(ChannelState.ESTABLISHED, framing.error.message)

    def _forget(self, node_id: int) -> None:
        self._framings.pop(node_id, None)
        self._connecting = [other for other in self._connecting if other != node_id]
        self._writing = [other for other in self._writing if other != node_id]

    def wakeup(self) -> None:
        self.wakeups += 1

    def close(self, node_id: int | None = None) -> None:
        if node_id is None:
            self.is_closed = True
            return
        self.disconnected.pop(node_id, None)
        if node_id in self._framings:
            self.closed.append(node_id)
            self._forget(node_id)


def framed(header: RequestHeader, message: Message) -> bytes:
    """A response as a broker would send it."""
    writer = Writer()
    write_response_header(writer, ApiKey(header.api_key), header.api_version, header.correlation_id)
    writer.opaque(message.encode(header.api_version))
    body = b"".join(writer.buffers())
    return struct.pack(">i", len(body)) + body
