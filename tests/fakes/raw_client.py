"""One request at a time, in a version that the test names: over a socket to any broker, or handed to a fake one directly."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TypeVar

from spark_kafka_sink.protocol.headers import RequestHeader, read_response_header, write_request_header
from spark_kafka_sink.protocol.primitives import Reader, Writer
from spark_kafka_sink.protocol.schema import Message, Request
from tests.fakes.fake_broker import FakeBroker, ReceivedRequest

TIMEOUT_S = 30
AnswerT = TypeVar("AnswerT", bound=Message)


class RawClient:
    """A connection to one node. An answer that does not come within 30 s raises TimeoutError, a lost connection EOFError."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Request[AnswerT], version: int) -> AnswerT:
        self._correlation_id += 1
        writer = Writer()
        write_request_header(writer, RequestHeader(request.API_KEY, version, self._correlation_id, "raw"))
        writer.opaque(request.encode(version))
        frame = b"".join(map(bytes, writer.buffers()))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        reader = Reader(self._receive(struct.unpack(">i", self._receive(4))[0]))
        assert read_response_header(reader, request.API_KEY, version) == self._correlation_id
        answer = request.RESPONSE.decode(version, reader.take(reader.remaining_bytes()))
        return answer

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise EOFError("the broker closed the connection")
            data += chunk
        return data


class DirectClient:
    """Asks a node of a FakeBroker, which need not be started. Request and answer are written and read in their version."""

    def __init__(self, broker: FakeBroker, node_id: int = 0) -> None:
        self.broker = broker
        self.node_id = node_id

    def ask(self, request: Request[AnswerT], version: int) -> AnswerT:
        received = type(request).decode(version, b"".join(map(bytes, request.encode(version))))
        header = RequestHeader(request.API_KEY, version, 0, None)
        answer = self.broker.handle(ReceivedRequest(self.node_id, header, received), threading.Event())
        assert answer is not None
        return request.RESPONSE.decode(version, b"".join(map(bytes, answer.encode(version))))
