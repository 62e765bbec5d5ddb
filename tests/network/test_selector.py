"""network/selector.py and transport.py over real sockets on 127.0.0.1: the scenarios of Kafka's SelectorTest."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence

import pytest

from spark_kafka_sink.network import network_client
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.selector import MAX_POLL_MS, ChannelState, Disconnect, Selector
from spark_kafka_sink.network.transport import Address, Transport
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.primitives import Buffer
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import framed
from tests.fakes.network_config import network_config
from tests.network.polling import poll_until

INIT = InitProducerIdRequest(transaction_timeout_ms=1)
MAX_IDLE_MS = 60_000
WAIT_SECONDS = 10
ENDS_AT_ONCE = pytest.mark.timeout(WAIT_SECONDS)  # a poll that waits takes ten minutes


class Server:
    """A listener whose connections the test reads and writes itself."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_SECONDS)
        self.address = Address(socket.AF_INET, self.listener.getsockname())
        self.accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(WAIT_SECONDS)
        self.accepted.append(connection)
        return connection

    def close(self) -> None:
        self.listener.close()
        for connection in self.accepted:
            connection.close()


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        assert chunk, "the client closed the connection"
        data += chunk
    return data


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def selector(clock: ManualClock) -> Iterator[Selector]:
    selector = Selector(clock, connections_max_idle_ms=MAX_IDLE_MS, open_transport=Transport)
    yield selector
    selector.close()


def connect(selector: Selector, server: Server, node_id: int = 1) -> tuple[Framing, socket.socket]:
    framing = Framing("test")
    selector.connect(node_id, server.address, framing)
    peer = server.accept()
    poll_until(selector, lambda: node_id in selector.connected)
    assert selector.is_established(node_id)
    return framing, peer


def answer(correlation_id: int, producer_id: int = 7) -> bytes:
    header = RequestHeader(ApiKey.INIT_PRODUCER_ID, 5, correlation_id, None)
    return framed(header, InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


# SENDING AND RECEIVING


def test_a_request_goes_out_and_its_answer_comes_back(selector: Selector, server: Server) -> None:
    framing, peer = connect(selector, server)
    frame = framing.send(INIT, 5)
    assert selector.send(1, frame)
    assert receive(peer, sum(map(len, frame))) == b"".join(frame)
    peer.sendall(answer(0))
    poll_until(selector, lambda: bool(selector.completed_receives))
    ((node_id, response),) = selector.completed_receives
    assert (node_id, response.correlation_id) == (1, 0)
    selector.poll(0)
    assert not selector.completed_receives  # results are those of one poll


def test_many_answers_in_many_pieces_are_each_received_once(selector: Selector, server: Server) -> None:
    framing, peer = connect(selector, server)
    count = 200
    for _ in range(count):
        framing.send(INIT, 5)
    data = b"".join(answer(number, number) for number in range(count))
    received: list[int] = []
    generator = random.Random(1)
    start = 0
    while start < len(data):
        end = start + generator.randint(1, 700)
        peer.sendall(data[start:end])
        start = end
        selector.poll(10)
        received += [response.correlation_id for _, response in selector.completed_receives]
    while len(received) < count:
        selector.poll(100)
        received += [response.correlation_id for _, response in selector.completed_receives]
    assert received == list(range(count))


def test_a_request_larger_than_the_socket_buffers_is_written_in_parts(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    frame: list[Buffer] = [bytes([index % 251]) * 64_000 for index in range(500)]  # 32 MB
    expected = b"".join(frame)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(receive(peer, len(expected))))
    reader.start()
    assert not selector.send(1, frame)
    poll_until(selector, lambda: selector.completed_sends == [1], polls=10_000)
    reader.join(WAIT_SECONDS)
    assert received == [expected]


def test_more_buffers_than_the_kernel_takes_at_once_are_all_sent(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    frame: list[Buffer] = [*(b"%08d" % index for index in range(5000)), b"", memoryview(b"end")]
    expected = b"".join(frame)
    assert selector.send(1, frame)
    assert receive(peer, len(expected)) == expected


class DripTransport(Transport):
    """Writes a few bytes at a time, and now and then nothing."""

    generator = random.Random(7)

    def send(self, buffers: Sequence[Buffer]) -> int:
        size = self.generator.choice([0, 1, 3, 10, 100])
        return super().send([b"".join(buffers)[:size]]) if size else 0


def test_partial_writes_continue_where_they_stopped(server: Server, clock: ManualClock) -> None:
    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=DripTransport)
    _, peer = connect(selector, server)
    frame: list[Buffer] = [bytes([index]) * (index % 7) for index in range(200)]
    expected = b"".join(frame)
    assert not selector.send(1, frame)
    poll_until(selector, lambda: selector.completed_sends == [1], polls=2000)
    assert receive(peer, len(expected)) == expected
    selector.close()


def test_a_second_request_waits_for_the_first_to_be_written(selector: Selector, server: Server) -> None:
    connect(selector, server)
    selector.send(1, [b"x" * 50_000_000])
    with pytest.raises(RuntimeError, match="another request to node 1 is still being written"):
        selector.send(1, [b"y"])


def test_sending_without_a_connection_is_a_mistake(selector: Selector) -> None:
    with pytest.raises(KeyError):
        selector.send(1, [b"x"])


def test_what_happened_is_listed_until_the_next_poll(selector: Selector, server: Server) -> None:
    framing, peer = connect(selector, server)
    selector.send(1, framing.send(INIT, 5))
    peer.sendall(answer(0))
    poll_until(selector, lambda: bool(selector.completed_receives))
    peer.close()
    poll_until(selector, lambda: 1 in selector.disconnected)
    assert (selector.connected, selector.completed_sends, selector.completed_receives) == ([], [], [])
    selector.poll(0)
    assert selector.disconnected == {}


class EagerTransport(Transport):
    """Is connected at once, as a Unix socket or a local one on other systems."""

    def connect(self, address: Address) -> bool:
        self._socket.setblocking(True)
        self._socket.connect(address.socket_address)
        self._socket.setblocking(False)
        return True


def test_a_connection_made_at_once_is_listed_by_the_next_poll_which_does_not_wait(server: Server, clock: ManualClock) -> None:
    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=EagerTransport)
    selector.connect(1, server.address, Framing("test"))
    assert not selector.is_established(1)
    selector.poll(60_000)
    assert selector.connected == [1]
    selector.poll(0)
    assert selector.connected == []
    selector.connect(2, server.address, Framing("test"))
    selector.close(2)
    selector.poll(0)
    assert selector.connected == []
    selector.close()


def test_several_connections_are_served_at_once(selector: Selector, server: Server) -> None:
    peers = {node_id: connect(selector, server, node_id) for node_id in range(5)}
    for node_id, (framing, _) in peers.items():
        assert selector.send(node_id, framing.send(INIT, 5))
    received: dict[int, object] = {}
    for node_id, (_, peer) in peers.items():
        peer.sendall(answer(0, node_id))
    while len(received) < 5:
        selector.poll(1000)
        received |= {node_id: response.message for node_id, response in selector.completed_receives}
    assert received == {node_id: InitProducerIdResponse(producer_id=node_id, producer_epoch=0) for node_id in range(5)}


# CONNECTIONS THAT FAIL


def test_a_refused_connection_is_reported_with_the_systems_words(selector: Selector) -> None:
    selector.connect(1, Address(socket.AF_INET, ("127.0.0.1", closed_port())), Framing("test"))
    poll_until(selector, lambda: 1 in selector.disconnected)
    assert selector.disconnected[1].state is ChannelState.NOT_CONNECTED
    assert "Connection refused" in selector.disconnected[1].reason
    assert not selector.is_established(1)


def test_an_address_that_cannot_be_used_raises_at_once(selector: Selector) -> None:
    with pytest.raises(OSError, match="Errno"):
        selector.connect(1, Address(socket.AF_INET, ("255.255.255.255", 1)), Framing("test"))
    selector.poll(0)
    assert not selector.disconnected


def test_connecting_twice_is_a_mistake(selector: Selector, server: Server) -> None:
    connect(selector, server)
    with pytest.raises(RuntimeError, match="node 1 has a connection already"):
        selector.connect(1, server.address, Framing("test"))


def test_a_broker_that_closes_is_reported(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    peer.close()
    poll_until(selector, lambda: 1 in selector.disconnected)
    assert selector.disconnected[1] == Disconnect(ChannelState.ESTABLISHED, "the broker closed the connection")
    selector.connect(1, server.address, Framing("test"))  # and can be connected again


def test_answers_that_came_before_the_end_are_delivered_with_it(selector: Selector, server: Server) -> None:
    framing, peer = connect(selector, server)
    for _ in range(3):
        framing.send(INIT, 5)
    peer.sendall(answer(0) + answer(1) + answer(2)[:9])
    peer.close()
    received = []
    for _ in range(100):
        selector.poll(100)
        received += [response.correlation_id for _, response in selector.completed_receives]
        if selector.disconnected:
            break
    assert received == [0, 1]
    assert 1 in selector.disconnected


def test_half_an_answer_before_the_end_is_none(selector: Selector, server: Server) -> None:
    framing, peer = connect(selector, server)
    framing.send(INIT, 5)
    peer.sendall(answer(0)[:-1])
    peer.close()
    received = []
    for _ in range(100):
        selector.poll(100)
        received += selector.completed_receives
        if selector.disconnected:
            break
    assert received == []
    assert selector.disconnected[1].state is ChannelState.ESTABLISHED


class BrokenPipeTransport(Transport):
    def send(self, buffers: Sequence[Buffer]) -> int:
        raise OSError(errno.EPIPE, f"cannot write {len(buffers)} buffers")


def test_answers_that_came_before_a_write_failed_are_delivered(server: Server, clock: ManualClock) -> None:
    opened: list[BrokenPipeTransport] = []

    def open_transport(address: Address) -> BrokenPipeTransport:
        opened.append(BrokenPipeTransport(address))
        return opened[-1]

    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=open_transport)
    framing, peer = connect(selector, server)
    framing.send(INIT, 5)
    peer.sendall(answer(0))
    assert select.select(opened, [], [], WAIT_SECONDS)[0]  # they are here before the write fails
    assert not selector.send(1, [b"x"])
    assert [response.correlation_id for _, response in selector.completed_receives] == [0]
    assert selector.disconnected[1].state is ChannelState.ESTABLISHED
    selector.close()


def test_a_connection_that_a_send_has_ended_is_not_reported_after_it_was_closed(server: Server, clock: ManualClock) -> None:
    """The next connection to the node was taken for the one that ended."""
    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=BrokenPipeTransport)
    connect(selector, server)
    assert not selector.send(1, [b"x"])
    assert 1 in selector.disconnected
    selector.close(1)
    assert selector.disconnected == {}
    selector.close()


def test_a_reset_connection_is_reported(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    reset(peer)
    poll_until(selector, lambda: 1 in selector.disconnected)
    assert "reset" in selector.disconnected[1].reason.lower()


def test_bytes_that_are_no_response_end_the_connection(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    peer.sendall(b"\x7f\xff\xff\xff")
    poll_until(selector, lambda: 1 in selector.disconnected)
    assert "2,147,483,647 bytes" in selector.disconnected[1].reason
    assert peer.recv(1) == b""


def test_closing_a_connection_reports_nothing_and_lets_go_of_its_buffers(selector: Selector, server: Server) -> None:
    _, peer = connect(selector, server)
    memory = bytearray(50_000_000)
    selector.send(1, [memoryview(memory)])
    selector.poll(0)
    assert not selector.completed_sends
    selector.close(1)
    memory.extend(b"!")  # raises BufferError while anybody holds a view
    selector.poll(0)
    assert not selector.disconnected
    while peer.recv(1 << 20):
        continue
    selector.close(1)  # again: nothing to do


# WAITING


class StubbornTransport(Transport):
    def close(self) -> None:
        super().close()
        raise OSError(errno.EIO, "cannot be closed")


def test_closing_everything_closes_the_rest_when_one_cannot_be_closed(server: Server, clock: ManualClock) -> None:
    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=StubbornTransport)
    peers = [connect(selector, server, node_id)[1] for node_id in (1, 2, 3)]
    selector.close()
    assert [peer.recv(1) for peer in peers] == [b"", b"", b""]
    selector.wakeup()  # harmless


@ENDS_AT_ONCE
def test_wakeup_ends_a_poll_that_waits(selector: Selector, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_reading = threading.Event()  # the last thing that poll does before it waits is to look at the clock

    def now_ns() -> int:
        clock_reading.set()
        return 0

    def wake() -> None:
        assert clock_reading.wait(WAIT_SECONDS)
        for _ in range(100_000):  # more than its socket can hold
            selector.wakeup()

    monkeypatch.setattr(clock, "now_ns", now_ns)
    thread = threading.Thread(target=wake)
    thread.start()
    selector.poll(MAX_POLL_MS)
    thread.join(WAIT_SECONDS)


@ENDS_AT_ONCE
def test_wakeup_before_a_poll_keeps_it_from_waiting(selector: Selector) -> None:
    selector.wakeup()
    selector.poll(MAX_POLL_MS)


def test_wakeup_after_close_is_harmless(selector: Selector) -> None:
    selector.close()
    selector.wakeup()


# IDLE CONNECTIONS


def test_idle_connections_are_closed_oldest_first_one_per_poll(selector: Selector, server: Server, clock: ManualClock) -> None:
    connections = {}
    for node_id in (1, 2, 3):
        connections[node_id] = connect(selector, server, node_id)[0]
        clock.advance(1000)
    assert selector.send(1, connections[1].send(INIT, 5, expect_response=False))  # 1 is the youngest now
    clock.advance(MAX_IDLE_MS - 1000)
    expired = []
    for _ in range(3):
        selector.poll(0)
        expired += [(node_id, disconnect.state) for node_id, disconnect in selector.disconnected.items()]
    assert expired == [(2, ChannelState.EXPIRED)]  # 3 is idle for exactly as long as it may be
    clock.advance(1)
    selector.poll(0)
    assert list(selector.disconnected) == [3]
    selector.poll(0)
    assert selector.is_established(1)


def test_reading_keeps_a_connection_alive(selector: Selector, server: Server, clock: ManualClock) -> None:
    framing, peer = connect(selector, server)
    framing.send(INIT, 5)
    clock.advance(MAX_IDLE_MS)
    peer.sendall(answer(0))
    poll_until(selector, lambda: bool(selector.completed_receives))
    clock.advance(MAX_IDLE_MS)
    selector.poll(0)
    assert selector.is_established(1)


def test_a_connection_that_waits_for_an_answer_is_not_idle(selector: Selector, server: Server, clock: ManualClock) -> None:
    """With connections.max.idle.ms below request.timeout.ms a slow answer was cut off, and the batch sent again, for ever."""
    framing, peer = connect(selector, server, 1)
    connect(selector, server, 2)
    assert selector.send(1, framing.send(INIT, 5))
    clock.advance(MAX_IDLE_MS + 1)
    selector.poll(0)
    assert list(selector.disconnected) == [2]
    selector.poll(0)  # one per poll: now it would be its turn
    assert selector.is_established(1)
    peer.sendall(answer(0))
    poll_until(selector, lambda: bool(selector.completed_receives))
    clock.advance(MAX_IDLE_MS + 1)
    selector.poll(0)
    assert selector.disconnected[1].state is ChannelState.EXPIRED


def test_idle_connections_can_be_kept_for_ever(server: Server, clock: ManualClock) -> None:
    selector = Selector(clock, connections_max_idle_ms=-1, open_transport=Transport)
    connect(selector, server)
    clock.advance(10**9)
    selector.poll(0)
    assert selector.is_established(1)
    selector.close()


# TRANSPORT


def test_sockets_are_set_up_as_configured(server: Server) -> None:
    config = network_config(send_buffer_bytes=20_000, receive_buffer_bytes=30_000)
    transport = network_client.transport_factory(config)(server.address)
    with socket.socket(fileno=socket.dup(transport.fileno())) as view:
        assert view.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert view.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert view.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (20_000, 40_000)  # Linux doubles
        assert view.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (30_000, 60_000)
    transport.close()


def test_buffer_sizes_of_minus_one_are_the_systems() -> None:
    address = Address(socket.AF_INET, ("127.0.0.1", 1))
    with socket.socket() as untouched:
        usual = untouched.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    transport = Transport(address, send_buffer_bytes=-1, receive_buffer_bytes=-1)
    with socket.socket(fileno=socket.dup(transport.fileno())) as view:
        assert view.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == usual
    transport.close()


def test_an_address_is_written_as_users_write_it() -> None:
    assert str(Address(socket.AF_INET, ("127.0.0.1", 9092))) == "127.0.0.1:9092"
    assert str(Address(socket.AF_INET6, ("::1", 9092, 0, 0))) == "[::1]:9092"
