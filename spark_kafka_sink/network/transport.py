"""Bytes over one non-blocking socket. Selector is the only user; TlsTransport (tls.py) can take this one's place.

No method waits. An Address comes from names.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from spark_kafka_sink.protocol.primitives import Buffer

# More buffers than this in one call are refused by the kernel (IOV_MAX).
MAX_BUFFERS = 1024
_CONNECT_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class Address(NamedTuple):
    family: int
    socket_address: tuple[Any, ...]
    host: str = ""  # the name that it was found under: what a broker's certificate must carry

    def __str__(self) -> str:
        host, port, *_ = self.socket_address
        return f"[{host}]:{port}" if self.family == socket.AF_INET6 else f"{host}:{port}"


class Transport(Protocol):
    """Errors of the network are raised as OSError; a peer that is not to be talked to, as AuthenticationError."""

    def fileno(self) -> int: ...

    def connect(self, address: Address) -> bool:
        """Start to connect; true when that is done already. Otherwise call finish_connect when the socket is writable."""
        ...

    def finish_connect(self) -> bool:
        """True when bytes can be sent. Otherwise call again when the socket is as `connect_events` says."""
        ...

    def connect_events(self) -> int:
        """What an unfinished connect waits for: selectors.EVENT_READ or EVENT_WRITE."""
        ...

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Write what fits from the start of `buffers`, at most MAX_BUFFERS of them; 0 when nothing fits now."""
        ...

    def receive_into(self, buffer: memoryview) -> int | None:
        """Bytes read; 0 at the end of the stream; None when there is nothing now."""
        ...

    def close(self) -> None: ...


class PlaintextTransport:
    """A TCP socket. Buffer sizes of -1 leave the system's own."""

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
        error = self._socket.connect_ex(address.socket_address)
        if error not in _CONNECT_IN_PROGRESS:
            raise OSError(error, os.strerror(error))
        return error == 0

    def finish_connect(self) -> bool:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        return True

    def connect_events(self) -> int:
        return selectors.EVENT_WRITE

    def send(self, buffers: Sequence[Buffer]) -> int:
        try:
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def receive_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the peer may be gone already; either way it is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
