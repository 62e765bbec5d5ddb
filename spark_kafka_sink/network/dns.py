"""Host names to addresses. A look-up blocks as long as the system's resolver does, which can be long.

So threads of background.py look names up. IP addresses need no look-up. Nothing is cached here: that is left to the system.
Law: a host or port that the system would shorten raises OSError, so that no other host or port than the named one is used.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

from spark_kafka_sink.errors import NetworkError, printable
from spark_kafka_sink.network.background import Outcome, outcomes_within
from spark_kafka_sink.network.transport import Address

logger = logging.getLogger(__name__)

Resolver = Callable[[str, int], Sequence[Address]]  # blocks; raises OSError


def literal_addresses(host: str, port: int) -> list[Address]:
    """The address if `host` is an IP address, empty if it is a name. Does not use DNS. Raises OSError if it is neither."""
    try:
        return resolve(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def resolve(host: str, port: int, flags: int = 0) -> list[Address]:
    """Every address of a host, in the system's order of preference. Blocks for DNS; raises OSError."""
    if not 0 < port < 1 << 16:
        raise OSError(f"{port} is not a port")  # the system would use its lower 16 bits
    if "\0" in host:
        raise OSError(f"'{printable(host)}' is not a host name")  # the system would use the part before it
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # raised for names that are not valid in DNS, like one with a label of 64 characters
        raise OSError(f"'{printable(host)}' is not a host name: {printable(error)}") from error
    return list(dict.fromkeys(Address(family, socket_address, host) for family, _, _, _, socket_address in entries))


def canonical_servers(host: str, port: int) -> list[tuple[str, int]]:
    """The canonical name of every address of a host (client.dns.lookup=resolve_canonical_bootstrap_servers_only)."""
    names = [socket.getnameinfo(address.socket_address, socket.NI_NUMERICSERV)[0] for address in resolve(host, port)]
    return [(name, port) for name in dict.fromkeys(names)]


def look_up(resolve_host: Resolver, host: str, port: int) -> Sequence[Address]:
    """Call `resolve_host`; raises NetworkError if it fails or there is no address. For a background thread."""
    try:
        addresses = resolve_host(host, port)
    except OSError as error:
        raise NetworkError(str(error)) from error
    if not addresses:
        raise NetworkError(f"{printable(host)} has no address")
    return addresses


def canonical_bootstrap_servers(servers: Sequence[tuple[str, int]], timeout_ms: int) -> list[tuple[str, int]]:
    """The canonical names of all servers. Waits for DNS at most `timeout_ms`; a server without an answer keeps its name."""
    outcomes = outcomes_within([partial(_try_canonical_servers, host, port) for host, port in servers], timeout_ms)
    answers = zip(servers, outcomes, strict=True)
    return [server for (host, port), outcome in answers for server in _canonical_or_same(host, port, outcome, timeout_ms)]


def _canonical_or_same(host: str, port: int, outcome: Outcome | None, timeout_ms: int) -> list[tuple[str, int]]:
    if outcome is not None and outcome.error is None:
        servers: list[tuple[str, int]] = outcome.result
        return servers
    reason = f"no answer of DNS within {timeout_ms} ms" if outcome is None or outcome.error is None else outcome.error.message
    logger.warning("! bootstrap server %s:%d cannot be resolved to canonical names: %s", host, port, reason)
    return [(host, port)]


def _try_canonical_servers(host: str, port: int) -> list[tuple[str, int]]:
    try:
        return canonical_servers(host, port)
    except OSError as error:
        raise NetworkError(str(error)) from error
