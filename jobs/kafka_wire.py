"""The two requests that local_kafka needs: ApiVersions, to see whether a broker answers, and CreateTopics.

A broker that answers ApiVersions has joined its cluster and serves clients. Does not use the project's own network layer, so
that a broker starts even while that layer is broken. Sockets block: `timeout_s` limits each step of a call, such as a read.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.tools.errors import ToolError

API_VERSIONS, CREATE_TOPICS = 18, 19
TOPIC_ALREADY_EXISTS = 36
MAX_RESPONSE_BYTES = 1 << 20


@dataclass(frozen=True)
class NewTopic:
    """A topic to create; `config` has Kafka's topic options, like retention.ms."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str] = field(default_factory=dict)


def is_answering(address: tuple[str, int], timeout_s: float) -> bool:
    """Whether a broker at the address answers ApiVersions. Each step may take `timeout_s` seconds."""
    try:
        response = _ask(address, API_VERSIONS, 0, b"", timeout_s)
    except (OSError, EOFError):
        return False
    return response[:2] == b"\0\0"  # error code


def create_topics(address: tuple[str, int], topics: list[NewTopic], timeout_s: float) -> set[str]:
    """Create `topics` through any broker; existing ones stay as they are. The broker may take `timeout_s` seconds.

    Returns the names of those that existed before. Raises ToolError if the broker rejects one, or does not answer.
    """
    body = struct.pack(">i", len(topics))
    for topic in topics:
        body += _string(topic.name) + struct.pack(">ihi", topic.partitions, topic.replication_factor, 0)  # 0: no assignment
        body += struct.pack(">i", len(topic.config))
        for key, value in topic.config.items():
            body += _string(key) + _string(value)
    body += struct.pack(">i?", int(timeout_s * 1000), False)
    try:
        response = _ask(address, CREATE_TOPICS, 4, body, timeout_s + 5)
    except (OSError, EOFError) as error:
        raise ToolError(f"The broker at {address[0]}:{address[1]} did not answer CreateTopics ({error}).") from error
    return _existing_topics(response)


def _existing_topics(response: bytes) -> set[str]:
    existing_topics: set[str] = set()
    _throttle_ms, count = struct.unpack_from(">ii", response)
    position = 8
    for _ in range(count):
        name, position = _read_string(response, position)
        (code,) = struct.unpack_from(">h", response, position)
        message, position = _read_string(response, position + 2)
        if code == TOPIC_ALREADY_EXISTS:
            existing_topics.add(name)
        elif code:
            raise ToolError(f"The broker did not create topic {name!r} (error {code}): {message or 'no reason given'}")
    return existing_topics


def _ask(address: tuple[str, int], api_key: int, version: int, body: bytes, timeout_s: float) -> bytes:
    """Send one request on a new connection. Returns the body of the response."""
    request = struct.pack(">hhi", api_key, version, 1) + _string("pykafka-sink-jobs") + body
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size_bytes,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size_bytes <= MAX_RESPONSE_BYTES:
            raise EOFError("not a Kafka broker")
        return _receive(connection, size_bytes)[4:]  # 4: correlation id


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        new_bytes = connection.recv(size_bytes - len(received))
        if not new_bytes:
            raise EOFError("connection closed")
        received += new_bytes
    return bytes(received)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (size_bytes,) = struct.unpack_from(">h", data, position)
    start = position + 2
    return ("", start) if size_bytes < 0 else (data[start : start + size_bytes].decode(), start + size_bytes)
