"""Finds ports on this machine for servers that listen on 127.0.0.1."""

from __future__ import annotations

import random
import socket

from spark_kafka_sink.tools.errors import ToolError

HOST = "127.0.0.1"
# Below the range from which the kernel takes ports for outgoing connections, so that a node's port stays free while it is down.
FREE_PORTS = range(15_000, 32_000)


def free_port(taken_ports: set[int]) -> int:
    """A free port that was not in `taken_ports`, to which it is added. Raises ToolError if none is found."""
    for port in random.sample(FREE_PORTS, 200):
        if port not in taken_ports and _can_bind(port):
            taken_ports.add(port)
            return port
    raise ToolError(
        f"200 ports between {FREE_PORTS.start} and {FREE_PORTS.stop - 1} were tried, none is free: stop servers on some."
    )


def claim_port(port: int, taken_ports: set[int]) -> int:
    """The given port, added to `taken_ports`. Raises ToolError when it is in use."""
    if not _can_bind(port):
        raise ToolError(f"Port {port} on {HOST} is in use: stop the server there, or pass another --port (0: a free one).")
    taken_ports.add(port)
    return port


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does: ports in TIME_WAIT are free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
