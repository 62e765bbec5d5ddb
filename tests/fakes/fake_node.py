"""A node of FakeBroker: one listener, and a thread for each connection. Reads requests, and writes what the broker answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
)
from spark_kafka_sink.protocol.primitives import Writer
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.headers import write_response_header
from tests.fakes.requests import REQUESTS, read_request
from tests.fakes.sasl_server import SaslGate

if TYPE_CHECKING:
    from tests.fakes.fake_broker import FakeBroker

MAX_REQUEST_BYTES = 100 * 1024 * 1024  # socket.request.max.bytes: a larger request ends its connection
WAIT_SECONDS = 30  # no thread waits longer for anything


@dataclass
class ReceivedRequest:
    node_id: int
    header: RequestHeader
    message: Message


class DropConnection(Exception):
    """Close the connection without an answer."""


class FakeNode:
    def __init__(self, broker: FakeBroker, node_id: int) -> None:
        self.broker = broker
        self.node_id = node_id
        self.port = 0
        self.is_running = False
        self.tls: ssl.SSLContext | None = None  # set: every new connection uses TLS
        self.greeting = b""  # sent first on each connection, as servers of other protocols do
        self._listener: socket.socket | None = None
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()  # guards the two below
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._is_stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.is_running = True
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        self._is_stopping.set()
        self.is_running = False
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            listener.close()
        self.drop_connections()
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(WAIT_SECONDS)

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):  # the client has closed it already
                connection.shutdown(socket.SHUT_RDWR)

    def _spawn(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), name=f"fake-broker-{self.node_id}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed by stop()
            with self._lock:
                self._connections.add(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.tls is not None:
                connection = self._secured(connection, self.tls)
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(self.greeting)
                gate = SaslGate(self.broker.users, self.broker.session_ms)
                while not self._is_stopping.is_set() and self._serve_one(connection, gate):
                    continue
        except (OSError, DropConnection):
            return  # the client closed the connection, or a fault drops it
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _secured(self, connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """The TLS handshake. The connection replaces the plain socket, which cannot be used any more."""
        with self._lock:
            self._connections.discard(connection)
        secured = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections.add(secured)
        try:
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        return secured

    def _serve_one(self, connection: socket.socket, gate: SaslGate) -> bool:
        size = _receive(connection, 4)
        if size is None or struct.unpack(">i", size)[0] > MAX_REQUEST_BYTES:
            return False
        frame = _receive(connection, struct.unpack(">i", size)[0])
        if frame is None:
            return False
        api_key, api_version = struct.unpack_from(">hh", frame)
        if not self._speaks(api_key, api_version):
            if api_key != ApiKey.API_VERSIONS:
                return False
            self._refuse_version(connection, struct.unpack_from(">i", frame, 4)[0])
            return True
        try:
            header, message = read_request(frame)
        except ProtocolError as error:
            self.broker.violations.append(f"unreadable request: {error}")
            return False
        response = gate.answer(message)
        if response is not None:
            response = self.broker.judge_login(self.node_id, response)
        else:
            if not gate.lets_through(message):
                return False
            response = self.broker.handle(ReceivedRequest(self.node_id, header, message), self._is_stopping)
        if response is not None:
            self._respond(connection, header.api_key, header.api_version, header.correlation_id, response)
        return True

    def _speaks(self, api_key: int, api_version: int) -> bool:
        first, last = self.broker.versions.get(ApiKey(api_key), (0, -1)) if api_key in REQUESTS else (0, -1)
        return first <= api_version <= last

    def _refuse_version(self, connection: socket.socket, correlation_id: int) -> None:
        """Answer in version 0, with the versions of ApiVersions only (KIP-511)."""
        first, last = self.broker.versions[ApiKey.API_VERSIONS]
        keys = (ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last),)
        refusal = ApiVersionsResponse(error_code=Errors.UNSUPPORTED_VERSION.number, api_keys=keys)
        self._respond(connection, ApiKey.API_VERSIONS, 0, correlation_id, refusal)

    def _respond(self, connection: socket.socket, api_key: int, version: int, correlation_id: int, response: Message) -> None:
        writer = Writer()
        write_response_header(writer, ApiKey(api_key), version, correlation_id)
        writer.opaque(response.encode(version))
        frame = b"".join(bytes(buffer) for buffer in writer.buffers())
        connection.sendall(struct.pack(">i", len(frame)) + frame)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    chunks, missing = [], size
    while missing:
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
