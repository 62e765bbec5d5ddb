"""Host names to addresses. What asks DNS blocks as long as the system's resolver does, which can be long.

NetworkClient therefore has it done beside the Sender's thread (background.py), except for addresses in digits, which need no
resolver. Nothing is kept: the system has a cache where its administrator wants one.
Law: no name and no port that a broker may tell makes the system look up, or connect to, something else than it says.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from spark_kafka_sink.errors import NetworkError, printable
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.network.transport import Address

log = logging.getLogger(__name__)

Resolver = Callable[[str, int], Sequence[Address]]  # blocks; raises OSError


def resolve(host: str, port: int) -> list[Address]:
    """Every address of a host, in the order of the system's preference. Blocks for DNS; raises OSError."""
    return _look_up(host, port)


def literal_addresses(host: str, port: int) -> list[Address]:
    """The address that `host` is in digits; nothing when it is a name. Asks nobody. OSError when it is neither."""
    try:
        return _look_up(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def _look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    if not 0 < port < 1 << 16:
        raise OSError(f"{port} is not a port")  # the system would take the lower 16 bits of it
    if "\0" in host:
        raise OSError(f"'{printable(host)}' is not a host name")  # the system would take what stands before it
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # raised for names that DNS cannot hold, like one with a label of 64 characters
        raise OSError(f"'{printable(host)}' is not a host name: {printable(error)}") from error
    return list(dict.fromkeys(Address(family, socket_address, host) for family, _, _, _, socket_address in found))


def canonical_servers(host: str, port: int) -> list[tuple[str, int]]:
    """The canonical name of every address of a host (client.dns.lookup=resolve_canonical_bootstrap_servers_only)."""
    names = [socket.getnameinfo(address.socket_address, socket.NI_NUMERICSERV)[0] for address in resolve(host, port)]
    return [(name, port) for name in dict.fromkeys(names)]


def look_up(resolve_host: Resolver, host: str, port: int) -> Sequence[Address]:
    """As `resolve_host`; raises NetworkError when there is no address. For the background."""
    try:
        addresses = resolve_host(host, port)
    except OSError as error:
        raise NetworkError(str(error)) from error
    if not addresses:
        raise NetworkError(f"{printable(host)} has no address")
    return addresses


def canonical_bootstrap_servers(servers: Iterable[tuple[str, int]], timeout_ms: int) -> list[tuple[str, int]]:
    """The canonical names of all servers. Waits for DNS, for each at most `timeout_ms`; one it does not know stays as it is."""
    return [found for host, port in servers for found in _canonical_within(host, port, timeout_ms)]


def _canonical_within(host: str, port: int, timeout_ms: int) -> list[tuple[str, int]]:
    outcome = outcome_within(partial(_try_canonical_servers, host, port), timeout_ms)
    if outcome is not None and outcome.error is None:
        servers: list[tuple[str, int]] = outcome.result
        return servers
    reason = f"no answer of DNS within {timeout_ms} ms" if outcome is None or outcome.error is None else outcome.error.message
    log.warning("! bootstrap server %s:%d cannot be resolved to canonical names: %s", host, port, reason)
    return [(host, port)]


def _try_canonical_servers(host: str, port: int) -> list[tuple[str, int]]:
    try:
        return canonical_servers(host, port)
    except OSError as error:
        raise NetworkError(str(error)) from error
