"""Bytes over one non-blocking socket. Only Selector sends and receives; TlsTransport (tls/) adds encryption.

No method waits. dns.py makes Addresses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from spark_kafka_sink.protocol.primitives import Buffer

# The kernel rejects more buffers in one call (IOV_MAX).
MAX_BUFFERS = 1024
MAX_JOINED_BYTES = 128 * 1024  # of small buffers that are joined on Windows, which has no sendmsg
_CONNECT_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class Address(NamedTuple):
    """A socket address that a host name was resolved to."""

    family: int
    socket_address: tuple[Any, ...]
    host: str = ""  # the name that was looked up, which the broker's certificate must contain

    def __str__(self) -> str:
        host, port, *_ = self.socket_address
        return f"[{host}]:{port}" if self.family == socket.AF_INET6 else f"{host}:{port}"


class Transport:
    """A TCP socket. A buffer size of -1 keeps the system's default. Methods raise OSError for errors of the network, and with TLS
    AuthenticationError if one side does not accept the other."""

    def __init__(self, address: Address, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> None:
        self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # requests are written whole
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if send_buffer_bytes >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)

    def fileno(self) -> int:
        return self._socket.fileno()

    def connect(self, address: Address) -> bool:
        """Start to connect. True if it is connected already; otherwise call finish_connect when the socket is writable."""
        error = self._socket.connect_ex(address.socket_address)
        if error not in _CONNECT_IN_PROGRESS:
            raise OSError(error, os.strerror(error))
        return error == 0

    def finish_connect(self) -> bool:
        """True when bytes can be sent. Otherwise call again when one of `connect_events` has happened."""
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        return True

    def connect_events(self) -> int:
        """The events that an unfinished connect waits for: selectors.EVENT_READ or EVENT_WRITE."""
        return selectors.EVENT_WRITE

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Write as much of `buffers` (at most MAX_BUFFERS) as possible. Returns the number of bytes, 0 if none can be written."""
        try:
            if sys.platform == "win32":
                return self._socket.send(first_bytes(buffers, MAX_JOINED_BYTES))
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def receive_into(self, buffer: memoryview) -> int | None:
        """The number of bytes read; 0 at the end of the stream; None if there is nothing to read now."""
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the peer may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def first_bytes(buffers: Sequence[Buffer], max_bytes: int) -> memoryview:
    """The first bytes of `buffers`, at most `max_bytes`; joined, unless they are in one buffer."""
    if len(buffers[0]) >= max_bytes or len(buffers) == 1:
        return memoryview(buffers[0])[:max_bytes]
    parts: list[Buffer] = []
    bytes_left = max_bytes
    for buffer in buffers:
        parts.append(buffer if len(buffer) <= bytes_left else memoryview(buffer)[:bytes_left])
        bytes_left -= len(parts[-1])
        if bytes_left == 0:
            break
    return memoryview(b"".join(parts))
