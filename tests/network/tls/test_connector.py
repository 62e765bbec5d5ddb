"""network/tls/connector.py through a Selector, against TLS servers on 127.0.0.1 that behave well, badly, or are none."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import AuthenticationError, ConfigError, KafkaTimeoutError
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.selector import ChannelState, Disconnect, Selector
from spark_kafka_sink.network.tls import connector as connector_module
from spark_kafka_sink.network.tls.connector import MAX_TLS_WRITE_BYTES, TlsConnector, TlsTransport
from spark_kafka_sink.network.transport import Address, first_bytes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.primitives import Buffer
from tests.fakes.certificates import Authority
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.fake_selector import framed
from tests.fakes.network_config import network_config
from tests.network.polling import poll_until
from tests.threads import no_new_threads

INIT = InitProducerIdRequest(transaction_timeout_ms=1)
WAIT_SECONDS = 10
BOTH_VERSIONS = pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
AUTHORITY, STRANGER = Authority("ca"), Authority("stranger")
BROKER = AUTHORITY.issue("broker")
CLIENT = AUTHORITY.issue("me", hosts=())


class Server:
    """Accepts one connection and runs `serve` with it on a thread; what it returns or raises is kept."""

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_SECONDS)
        self.address = Address(socket.AF_INET, self._listener.getsockname(), "localhost")
        self.result: object = None
        self._serve = serve
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(WAIT_SECONDS)
                self.result = self._serve(connection)
        except OSError as error:
            self.result = error
        finally:
            self._listener.close()

    def join(self) -> object:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self.result


def secured(connection: socket.socket, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    context = context or BROKER.server_context()
    return context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=False)


def receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def connector_of(**options: object) -> TlsConnector:
    settings = {"security_protocol": "SSL", "ssl_truststore_certificates": AUTHORITY.pem, "send_buffer_bytes": 65_536} | options
    return TlsConnector(network_config(**settings))


@contextlib.contextmanager
def selector_of(connector: TlsConnector | None = None) -> Iterator[Selector]:
    selector = Selector(Clock(), connections_max_idle_ms=-1, open_transport=connector or connector_of())
    try:
        yield selector
    finally:
        selector.close()


def connect(selector: Selector, server: Server, framing: Framing | None = None) -> Framing:
    framing = framing or Framing("test")
    selector.connect(1, server.address, framing)
    poll_until(selector, lambda: selector.is_established(1) or 1 in selector.disconnected)
    assert selector.is_established(1), selector.disconnected
    return framing


def failure(serve: Callable[[socket.socket], object], connector: TlsConnector | None = None, **options: object) -> Disconnect:
    """How a connection to such a server ends, be it when shaking hands or after our first request."""
    connector = connector or connector_of(**options)
    server = Server(serve)
    with selector_of(connector) as selector:
        framing = Framing("test")
        selector.connect(1, server.address, framing)
        poll_until(selector, lambda: selector.is_established(1) or 1 in selector.disconnected)
        if 1 not in selector.disconnected:
            selector.send(1, framing.send(INIT, 5))
            if 1 not in selector.disconnected:
                poll_until(selector, lambda: 1 in selector.disconnected)
        disconnect = selector.disconnected[1]
    server.join()
    return disconnect


def answer(correlation_id: int, producer_id: int = 7) -> bytes:
    header = RequestHeader(ApiKey.INIT_PRODUCER_ID, 5, correlation_id, None)
    return framed(header, InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


# BYTES


def echo_length(connection: socket.socket) -> bytes:
    """One frame, read whole, and an answer to it."""
    with secured(connection) as peer:
        frame = receive(peer, struct.unpack(">i", receive(peer, 4))[0])
        peer.sendall(answer(0))
        with contextlib.suppress(OSError):
            peer.recv(1)  # until the client leaves
        return frame


@BOTH_VERSIONS
def test_a_request_goes_out_and_its_answer_comes_back(version: str) -> None:
    server = Server(echo_length)
    with selector_of(connector_of(ssl_enabled_protocols=version)) as selector:
        framing = connect(selector, server)
        frame = framing.send(INIT, 5)
        selector.send(1, frame)
        poll_until(selector, lambda: bool(selector.completed_receives))
        assert selector.completed_receives[0][1].message == InitProducerIdResponse(producer_id=7, producer_epoch=0)
    assert server.join() == b"".join(frame)[4:]


def relay_single_bytes(left: socket.socket, right: socket.socket) -> None:
    """Both ways, one byte at a time, each in a segment of its own as far as the system lets us."""
    for each in (left, right):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with selectors.DefaultSelector() as both:
        both.register(left, selectors.EVENT_READ, right)
        both.register(right, selectors.EVENT_READ, left)
        while True:
            for key, _ in both.select(WAIT_SECONDS):
                byte = key.fileobj.recv(1)
                if not byte:
                    return
                key.data.sendall(byte)


@BOTH_VERSIONS
def test_a_connection_torn_into_single_bytes_works(version: str) -> None:
    server = Server(echo_length)

    def tear(connection: socket.socket) -> None:
        with socket.create_connection(server.address.socket_address) as onward, contextlib.suppress(OSError):
            relay_single_bytes(connection, onward)

    torn = Server(tear)
    with selector_of(connector_of(ssl_enabled_protocols=version)) as selector:
        framing = connect(selector, torn)
        selector.send(1, framing.send(INIT, 5))
        poll_until(selector, lambda: bool(selector.completed_receives), polls=20_000)
    torn.join()
    server.join()


def received_by_a_slow_reader(frame: list[Buffer]) -> bytes:
    size = sum(map(len, frame))

    def read(connection: socket.socket) -> bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        with secured(connection) as peer:
            return receive(peer, size)

    server = Server(read)
    with selector_of(connector_of(send_buffer_bytes=16_384)) as selector:
        connect(selector, server)
        selector.send(1, frame)
        # A reader that has all closes at once, which may be seen before the end of the send.
        poll_until(selector, lambda: selector.completed_sends == [1] or 1 in selector.disconnected, polls=100_000)
        result = server.join()
    assert isinstance(result, bytes), result
    return result


def test_a_large_request_is_written_in_parts_as_the_broker_reads_it() -> None:
    frame: list[Buffer] = [bytes([index % 251]) * 64_000 for index in range(100)]  # 6 MB
    assert received_by_a_slow_reader(list(frame)) == b"".join(frame)


def test_one_large_buffer_is_written_in_parts() -> None:
    memory = bytes(range(251)) * 20_000
    assert received_by_a_slow_reader([b"", memory[:7], memoryview(memory)[7:], b""]) == memory


def test_many_small_buffers_are_joined_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    frame: list[Buffer] = [b"%08d" % index for index in range(100_000)]  # 1,024 of them go to the transport at a time
    piece_sizes: list[int] = []

    def count(buffers: list[Buffer], size: int) -> memoryview:
        piece = first_bytes(buffers, size)
        piece_sizes.append(len(piece))
        return piece

    monkeypatch.setattr(connector_module, "first_bytes", count)
    expected = b"".join(frame)
    assert received_by_a_slow_reader(frame) == expected
    assert sum(piece_sizes) == len(expected)


def test_pieces_are_full_and_large_buffers_are_not_copied() -> None:
    small: list[Buffer] = [b"x" * 1000] * 500
    assert bytes(first_bytes(small, MAX_TLS_WRITE_BYTES)) == b"x" * MAX_TLS_WRITE_BYTES
    memory = bytearray(3 * MAX_TLS_WRITE_BYTES)
    piece = first_bytes([memoryview(memory), b"y"], MAX_TLS_WRITE_BYTES)
    assert (piece.obj, len(piece)) == (memory, MAX_TLS_WRITE_BYTES)
    assert bytes(first_bytes([b"a", memoryview(memory)], MAX_TLS_WRITE_BYTES)) == b"a" + bytes(MAX_TLS_WRITE_BYTES - 1)
    assert bytes(first_bytes([b"", b"a", b"bc"], MAX_TLS_WRITE_BYTES)) == b"abc"
    assert first_bytes([b"", b""], MAX_TLS_WRITE_BYTES) == b""


def test_many_answers_at_once_are_all_read() -> None:
    count = 20_000  # 0.6 MB: far more than one look at the socket brings
    answers = b"".join(answer(number, number) for number in range(count))

    def talk(connection: socket.socket) -> None:
        with secured(connection) as peer:
            peer.sendall(answers)
            peer.unwrap()

    server = Server(talk)
    framing = Framing("test")
    for _ in range(count):
        framing.send(INIT, 5)
    received: list[int] = []
    with selector_of() as selector:
        selector.connect(1, server.address, framing)
        for _ in range(5000):
            selector.poll(1000)
            received += [response.correlation_id for _, response in selector.completed_receives]
            if len(received) == count or selector.disconnected:
                break
    assert received == list(range(count))
    server.join()


# THE END OF A CONNECTION


def test_closing_tells_the_broker_that_no_more_will_come() -> None:
    def read_to_the_end(connection: socket.socket) -> bytes:
        with secured(connection) as peer:
            return peer.recv(100)  # raises SSLEOFError when the connection is merely cut

    server = Server(read_to_the_end)
    with selector_of() as selector:
        connect(selector, server)
        selector.close(1)
    assert server.join() == b""


@pytest.mark.parametrize("says_so", [True, False])
def test_a_broker_that_closes_is_reported(says_so: bool) -> None:
    def leave(connection: socket.socket) -> None:
        with secured(connection) as peer:
            if says_so:
                with contextlib.suppress(OSError):
                    peer.unwrap()
            else:
                peer.shutdown(socket.SHUT_RDWR)

    disconnect = failure(leave)
    assert disconnect == Disconnect(ChannelState.ESTABLISHED, "the broker closed the connection")


@pytest.mark.parametrize("first", [b"", struct.pack(">i", 8)], ids=["nothing came", "a part came"])
def test_a_broken_pipe_while_reading_is_the_brokers_end(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL 3.6 writes where it finds the end of the stream. The error was "[Errno 32] Broken pipe", of a read."""
    chunks = iter([first]) if first else iter([])

    def read(_: ssl.SSLSocket, buffer: memoryview) -> int:
        for chunk in chunks:
            buffer[: len(chunk)] = chunk
            return len(chunk)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(ssl.SSLSocket, "recv_into", read)

    def leave(connection: socket.socket) -> None:
        with secured(connection) as peer:
            peer.sendall(bytes(1000))  # so that there is something to read
            peer.recv(1)

    disconnect = failure(leave)
    assert disconnect == Disconnect(ChannelState.ESTABLISHED, "the broker closed the connection")


def test_closing_lets_go_of_what_was_not_written() -> None:
    done = threading.Event()

    def read_nothing(connection: socket.socket) -> None:
        with secured(connection):
            done.wait(WAIT_SECONDS)

    server = Server(read_nothing)
    with selector_of() as selector:
        connect(selector, server)
        memory = bytearray(50_000_000)
        selector.send(1, [memoryview(memory)])
        for _ in range(5):
            selector.poll(10)
        assert not selector.completed_sends
        selector.close(1)
        memory.extend(b"!")  # raises BufferError while anybody holds a view
    done.set()
    server.join()


@BOTH_VERSIONS
def test_a_broker_that_dies_while_shaking_hands_may_be_tried_again(version: str) -> None:
    def die(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with RST

    disconnect = failure(die, ssl_enabled_protocols=version)
    assert (disconnect.state, disconnect.error) == (ChannelState.NOT_CONNECTED, None)
    assert "closed the connection during the TLS handshake" in disconnect.reason


@pytest.mark.parametrize("with_reset", [True, False])
@pytest.mark.parametrize("after_bytes", [1, 4, 5, 6, 100, 130, 300, 700])
def test_wherever_a_handshake_is_cut_it_may_be_tried_again(after_bytes: int, with_reset: bool) -> None:
    """A broker that is restarted, or a network that fails, must not look like a broker that is not to be trusted."""

    def cut(connection: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        peer = BROKER.server_context().wrap_bio(incoming, outgoing, server_side=True)
        while outgoing.pending < after_bytes:
            incoming.write(connection.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                peer.do_handshake()
        if with_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(outgoing.read(after_bytes))

    disconnect = failure(cut)
    assert (disconnect.state, disconnect.error) == (ChannelState.NOT_CONNECTED, None)


def test_a_broker_that_says_nothing_is_waited_for_without_spinning() -> None:
    done = threading.Event()
    server = Server(lambda _: done.wait(WAIT_SECONDS))
    with selector_of() as selector:
        selector.connect(1, server.address, Framing("test"))
        polls = 0
        clock = Clock()
        until_ms = clock.now_ms() + 300
        while clock.now_ms() < until_ms:
            selector.poll(100)
            polls += 1
        assert polls < 20
        assert not selector.is_established(1)
    done.set()
    server.join()


class BrokenSocket:
    """An SSLSocket whose peer sent an alert when the handshake was over for us, encrypted as all that follows it."""

    def __init__(self, alert: str) -> None:
        self._error = ssl.SSLError(1, f"[SSL: {alert}]")
        self._error.reason = alert

    def fail(self, _: object) -> int:
        raise self._error

    send = recv_into = fail


@pytest.mark.parametrize(
    ("alert", "is_final"),
    [
        ("TLSV1_ALERT_INTERNAL_ERROR", False),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", True),
        ("TLSV1_ALERT_UNKNOWN_CA", True),
    ],
)
def test_an_alert_right_after_the_handshake_means_what_it_means_before(alert: str, is_final: bool) -> None:
    """A broker with troubles of its own (internal_error) was tried again when it said so in the handshake, and not after it: with
    TLS 1.3 the handshake is over for us before the broker has looked at our certificate.
    """
    address = Address(socket.AF_INET, ("127.0.0.1", 9))
    connector = TlsConnector(network_config(security_protocol="SSL", ssl_truststore_certificates=AUTHORITY.pem))
    for use in ("send", "receive"):
        transport = connector(address)
        transport._tls = cast(Any, BrokenSocket(alert))
        with pytest.raises((OSError, AuthenticationError)) as raised:
            transport.send([b"x"]) if use == "send" else transport.receive_into(memoryview(bytearray(100_000)))
        assert isinstance(raised.value, AuthenticationError) == is_final
        transport._tls = None
        transport.close()


# WHOM NOT TO TALK TO


def accept_with(context: ssl.SSLContext) -> Callable[[socket.socket], object]:
    def serve(connection: socket.socket) -> object:
        with secured(connection, context) as peer:
            return peer.recv(1000)

    return serve


def refused(disconnect: Disconnect) -> str:
    assert disconnect.state is ChannelState.AUTHENTICATION_FAILED
    assert disconnect.error is not None
    assert disconnect.error.condition == "KAFKA_SSL_AUTHENTICATION_FAILED"
    assert disconnect.error.message == disconnect.reason
    return disconnect.reason


@BOTH_VERSIONS
def test_a_certificate_of_an_unknown_authority_is_refused_with_the_remedy(version: str) -> None:
    message = refused(failure(accept_with(STRANGER.issue("broker").server_context()), ssl_enabled_protocols=version))
    assert "the broker's certificate was not accepted: unable to get local issuer certificate" in message
    assert "its issuer is not in ssl.truststore.certificates: add its certificate authority" in message


@BOTH_VERSIONS
def test_a_certificate_that_signs_itself_is_refused_with_the_remedy(version: str) -> None:
    message = refused(failure(accept_with(STRANGER.server_context()), ssl_enabled_protocols=version))
    assert "self-signed certificate" in message
    assert "add its certificate authority" in message


@BOTH_VERSIONS
def test_an_expired_certificate_is_refused(version: str) -> None:
    message = refused(failure(accept_with(AUTHORITY.issue("b", expired=True).server_context()), ssl_enabled_protocols=version))
    assert message == "the broker's certificate was not accepted: certificate has expired"


@BOTH_VERSIONS
def test_a_certificate_for_another_host_is_refused_unless_names_are_unchecked(version: str) -> None:
    elsewhere = AUTHORITY.issue("b", hosts=["elsewhere.example"]).server_context()
    message = refused(failure(accept_with(elsewhere), ssl_enabled_protocols=version))
    assert "certificate is not valid for 'localhost'" in message
    assert "connect to a name in the certificate instead of localhost" in message
    unchecked = failure(accept_with(elsewhere), ssl_enabled_protocols=version, ssl_endpoint_identification_algorithm="")
    assert unchecked.state is ChannelState.ESTABLISHED


def test_addresses_are_checked_too() -> None:
    def outcome_for(host: str, *names: str) -> Disconnect:
        server = Server(accept_with(AUTHORITY.issue("b", hosts=names).server_context()))
        with selector_of() as selector:
            selector.connect(1, server.address._replace(host=host), Framing("test"))
            poll_until(selector, lambda: selector.is_established(1) or 1 in selector.disconnected)
            disconnect = selector.disconnected.get(1, Disconnect(ChannelState.ESTABLISHED, ""))
        server.join()
        return disconnect

    assert "IP address mismatch" in refused(outcome_for("127.0.0.1", "localhost"))
    assert outcome_for("127.0.0.1", "127.0.0.1").state is ChannelState.ESTABLISHED
    assert outcome_for("", "127.0.0.1").state is ChannelState.ESTABLISHED  # no name is known: the address it is
    assert outcome_for("localhost.", "localhost").state is ChannelState.ESTABLISHED
    assert outcome_for("fe80::1%eth0", "fe80::1").state is ChannelState.ESTABLISHED
    impossible = outcome_for(".example", "example")
    assert (impossible.state, impossible.error) == (ChannelState.NOT_CONNECTED, None)
    assert "'.example' cannot be a name in a certificate" in impossible.reason


@BOTH_VERSIONS
def test_the_error_of_a_broker_that_demands_a_certificate_names_the_option(version: str) -> None:
    message = refused(failure(accept_with(BROKER.server_context(clients=AUTHORITY)), ssl_enabled_protocols=version))
    assert "the broker probably demands a client certificate: set ssl.keystore.location" in message


@BOTH_VERSIONS
def test_the_error_of_a_client_certificate_of_an_unknown_issuer_says_so(version: str) -> None:
    stranger = STRANGER.issue("me", hosts=())
    keystore = {"ssl_keystore_key": stranger.key_pem(), "ssl_keystore_certificate_chain": stranger.chain_pem}
    message = refused(failure(accept_with(BROKER.server_context(clients=AUTHORITY)), ssl_enabled_protocols=version, **keystore))
    assert "the broker rejects this client's certificate" in message
    assert "its issuer is not in the broker's truststore" in message


def test_the_error_of_an_expired_client_certificate_says_so() -> None:
    expired = AUTHORITY.issue("me", hosts=(), expired=True)
    keystore = {"ssl_keystore_key": expired.key_pem(), "ssl_keystore_certificate_chain": expired.chain_pem}
    message = refused(failure(accept_with(BROKER.server_context(clients=AUTHORITY)), **keystore))
    assert "the broker rejects this client's certificate (ssl.keystore.…): it has expired" in message


def test_the_error_of_no_version_in_common_names_the_option() -> None:
    newest = BROKER.server_context()
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    message = refused(failure(accept_with(newest), ssl_enabled_protocols="TLSv1.2"))
    assert "no TLS version in common: see ssl.enabled.protocols" in message


def test_a_broker_that_ends_the_handshake_at_once_did_not_ask_for_a_certificate() -> None:
    """A server that speaks TLS 1.1 alone was explained as one that demands a client certificate."""

    def refuse(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(b"\x15\x03\x02\x00\x02\x02\x28")  # a fatal alert, handshake_failure

    message = refused(failure(refuse))
    assert "no TLS version or cipher suite in common: this client speaks TLS 1.2 and 1.3" in message
    assert "certificate" not in message


def test_no_cipher_suite_in_common_fails_the_handshake() -> None:
    other = BROKER.server_context()
    other.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    message = refused(failure(accept_with(other), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"))
    assert "handshake failure" in message


def test_a_suite_that_may_not_be_used_is_refused_when_the_broker_chose_it() -> None:
    message = refused(failure(accept_with(BROKER.server_context()), ssl_cipher_suites="TLS_AES_128_CCM_SHA256"))
    assert "the broker chose the cipher suite TLS_AES_256_GCM_SHA384, which ssl.cipher.suites does not name" in message


def test_a_web_server_is_no_broker() -> None:
    def web_server(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    message = refused(failure(web_server))
    assert "does this listener speak TLS? Its answer is not TLS" in message


def plaintext_broker(connection: socket.socket) -> object:
    """What Kafka does: the first four bytes are a size; a request that is too large has the connection closed."""
    (size,) = struct.unpack(">i", receive(connection, 4))
    if size > 100_000_000:
        return "closed"
    request = receive(connection, size)
    with contextlib.suppress(OSError):  # the client hangs up as soon as it has seen enough
        for byte in struct.pack(">ii", 10, struct.unpack_from(">i", request, 4)[0]) + bytes(6):
            connection.sendall(bytes([byte]))
    return request


def test_a_listener_without_tls_is_found_out_at_the_second_attempt() -> None:
    connector = connector_of()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(socket.AF_INET, listener.getsockname(), "localhost")
        disconnects: list[Disconnect] = []
        with selector_of(connector) as selector:
            for _ in range(2):
                selector.connect(1, address, Framing("test"))
                connection, _ = listener.accept()
                thread = threading.Thread(target=lambda peer: (plaintext_broker(peer), peer.close()), args=(connection,))
                thread.start()
                poll_until(selector, lambda: 1 in selector.disconnected)
                thread.join(WAIT_SECONDS)
                disconnects.append(selector.disconnected[1])
    assert disconnects[0].state is ChannelState.NOT_CONNECTED
    assert "closed the connection during the TLS handshake" in disconnects[0].reason
    assert "this listener does not speak TLS" in refused(disconnects[1])


@pytest.mark.parametrize("says", [b"", b"\x15\x03\x03\x00\x02\x02\x28", struct.pack(">ii", 10, 2)])
def test_a_tls_listener_that_was_only_away_is_asked_in_tls_again(says: bytes) -> None:
    connector = connector_of()
    with socket.create_server(("127.0.0.1", 0)) as listener, selector_of(connector) as selector:
        address = Address(socket.AF_INET, listener.getsockname(), "localhost")
        for greeting in (b"", says):
            selector.connect(1, address, Framing("test"))
            connection, _ = listener.accept()
            with connection:
                connection.sendall(greeting) if greeting else None
                connection.shutdown(socket.SHUT_WR)
                poll_until(selector, lambda: 1 in selector.disconnected)
            assert (selector.disconnected[1].state, selector.disconnected[1].error) == (ChannelState.NOT_CONNECTED, None)
        selector.connect(1, address, Framing("test"))
        connection, _ = listener.accept()
        thread = threading.Thread(target=lambda: accept_with(BROKER.server_context())(connection))
        thread.start()
        poll_until(selector, lambda: selector.is_established(1))
        selector.close(1)
        thread.join(WAIT_SECONDS)


def test_trouble_behind_delivered_bytes_is_reported_next() -> None:
    disconnect = failure(garble)
    assert (disconnect.state, disconnect.error) == (ChannelState.ESTABLISHED, None)
    assert "the TLS connection broke: " in disconnect.reason


def garble(connection: socket.socket) -> None:
    """A good answer, and bytes right behind it that no key fits."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = BROKER.server_context().wrap_bio(incoming, outgoing, server_side=True)

    def advance(step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65_536))
            else:
                connection.sendall(outgoing.read())
                return result

    advance(peer.do_handshake)
    advance(lambda: peer.read(4))
    peer.write(answer(0))
    connection.sendall(outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))


def test_a_transport_is_used_as_a_plain_one_until_it_is_connected() -> None:
    transport = TlsTransport(Address(socket.AF_INET, ("127.0.0.1", 1), "localhost"), connector_of())
    assert transport.connect_events() == selectors.EVENT_WRITE
    assert transport.fileno() >= 0
    transport.close()
    transport.close()


# CERTIFICATES THAT ARE RENEWED


def number_seen_by_a_broker(connector: TlsConnector) -> int:
    """The serial number of the certificate that a new connection presents."""

    def serve(connection: socket.socket) -> str:
        with secured(connection, BROKER.server_context(clients=AUTHORITY)) as peer:
            receive(peer, 4)
            certificate = peer.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    server = Server(serve)
    with selector_of(connector) as selector:
        framing = connect(selector, server)
        selector.send(1, framing.send(INIT, 5))
        poll_until(selector, lambda: 1 in selector.disconnected)
    return int(str(server.join()), 16)


def test_certificates_that_are_renewed_in_place_serve_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificates live for months at most, and a producer of a stream lives longer: at first it took a restart to renew one."""
    file = tmp_path / "me.pem"
    first, second = AUTHORITY.issue("me", hosts=()), AUTHORITY.issue("me", hosts=())
    file.write_text(first.key_pem() + first.chain_pem)
    connector = connector_of(ssl_keystore_location=str(file))
    assert number_seen_by_a_broker(connector) == first.chain[0].serial_number
    file.write_text(second.key_pem())  # it is being written
    for _ in range(2):
        assert number_seen_by_a_broker(connector) == first.chain[0].serial_number
    assert (
        caplog.text.count("there is no certificate in it (-----BEGIN CERTIFICATE-----); the certificates read before stay") == 1
    )
    file.write_text(second.key_pem() + second.chain_pem)
    assert number_seen_by_a_broker(connector) == second.chain[0].serial_number
    file.unlink()
    assert number_seen_by_a_broker(connector) == second.chain[0].serial_number


def test_files_that_stay_as_they_are_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    connector = connector_of(ssl_truststore_certificates=None, ssl_truststore_location=str(tmp_path / "ca.pem"))
    monkeypatch.setattr(connector_module, "client_context", None)
    for _ in range(3):
        connector(Address(socket.AF_INET, ("127.0.0.1", 1), "localhost")).close()


# WHAT A CALLER OF THE PRODUCER SEES


@contextlib.contextmanager
def broker_with(context: ssl.SSLContext | None) -> Iterator[FakeBroker]:
    with FakeBroker(nodes=1, topics={"t": 2}) as broker:
        broker.nodes[0].tls = context
        yield broker


def producer_of(broker: FakeBroker, **options: object) -> KafkaProducer:
    properties = {"security.protocol": "ssl", "ssl.truststore.certificates": AUTHORITY.pem} | options
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **properties})


def values(rows: int) -> pa.Array:
    return pa.array([b"%d" % row for row in range(rows)], pa.binary())


def test_rows_are_written_over_tls_with_a_client_certificate() -> None:
    keystore = {"ssl.keystore.key": CLIENT.key_pem(), "ssl.keystore.certificate.chain": CLIENT.chain_pem}
    with broker_with(BROKER.server_context(clients=AUTHORITY)) as broker, producer_of(broker, **keystore) as producer:
        delivery = producer.send_columns("t", value=values(50_000))
        assert delivery.result(30_000).acknowledged == 50_000
        assert broker.violations == []


def assert_fails_at_once(broker: FakeBroker, message: str, **options: object) -> None:
    """Else it would wait for ten minutes, and a test has five."""
    with producer_of(broker, **{"max.block.ms": 600_000}, **options) as producer:
        with pytest.raises(AuthenticationError, match=message) as raised:
            producer.send_columns("t", value=values(1))
        assert "node -1 (127.0.0.1:" in raised.value.message
        producer.close(0)


def test_send_columns_fails_at_once_when_the_broker_is_not_trusted() -> None:
    with broker_with(STRANGER.issue("broker").server_context()) as broker:
        assert_fails_at_once(broker, "its issuer is not in ssl.truststore.certificates")


def test_send_columns_fails_at_once_when_the_broker_wants_a_certificate() -> None:
    with broker_with(BROKER.server_context(clients=AUTHORITY)) as broker:
        assert_fails_at_once(broker, "demands a client certificate")


def test_send_columns_fails_at_once_when_the_listener_speaks_no_tls() -> None:
    with broker_with(None) as broker:
        assert_fails_at_once(broker, "this listener does not speak TLS")


def test_send_columns_fails_at_once_without_tls_at_a_tls_listener() -> None:
    with broker_with(None) as broker:
        broker.nodes[0].greeting = b"\x15\x03\x03\x00\x02\x02\x46"  # as a TLS listener answers what is not encrypted
        assert_fails_at_once(broker, "set security.protocol to SSL or SASL_SSL", **{"security.protocol": "plaintext"})


def test_rows_that_wait_fail_when_a_known_broker_is_not_trusted_any_more() -> None:
    """Metadata is there, so nobody waits for it: the rows themselves have to learn of it, long before their time-out."""
    with broker_with(BROKER.server_context()) as broker, producer_of(broker) as producer:
        assert producer.send_columns("t", value=values(1)).result(30_000).acknowledged == 1
        broker.nodes[0].tls = STRANGER.issue("broker").server_context()
        broker.nodes[0].drop_connections()
        deliveries = [producer.send_columns("t", value=values(10))]
        producer.flush(20_000)
        with pytest.raises(AuthenticationError, match="its issuer is not in"):
            deliveries[0].result(0)
        broker.nodes[0].tls = BROKER.server_context()  # and when it is trusted again, later rows are written
        clock = Clock()
        until_ms = clock.now_ms() + WAIT_SECONDS * 1000  # reconnect.backoff.max.ms is a second
        while deliveries[-1].error is not None and clock.now_ms() < until_ms:
            with contextlib.suppress(AuthenticationError):
                deliveries.append(producer.send_columns("t", value=values(10)))
            producer.flush(20_000)
        assert deliveries[-1].result(0).acknowledged == 10


def test_a_handshake_that_never_ends_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = {
            "bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}",
            "security.protocol": "SSL",
            "ssl.truststore.certificates": AUTHORITY.pem,
            "socket.connection.setup.timeout.ms": "200",
            "max.block.ms": "5000",
        }
        with KafkaProducer(config) as producer:
            with pytest.raises(KafkaTimeoutError, match=r"no connection within \d+ ms \(socket.connection.setup.timeout.ms"):
                producer.send_columns("t", value=values(1))
            producer.close(0)


def test_a_configuration_that_cannot_work_starts_nothing() -> None:
    with no_new_threads(), pytest.raises(ConfigError, match=r"ssl.truststore.location=/nowhere/ca.pem: there is no such file"):
        KafkaProducer(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "security.protocol": "Ssl",
                "ssl.truststore.location": "/nowhere/ca.pem",
            }
        )
