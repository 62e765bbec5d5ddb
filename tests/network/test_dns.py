"""network/dns.py: what is looked up, what is not, and what is no name at all."""

from __future__ import annotations

import socket
import threading

import pytest

from spark_kafka_sink.network import dns
from spark_kafka_sink.network.dns import canonical_bootstrap_servers, canonical_servers, literal_addresses, resolve
from spark_kafka_sink.network.transport import Address


def test_a_name_resolves_to_every_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [("10.0.0.2", 9092), ("10.0.0.1", 9092), ("10.0.0.2", 9092)]
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert resolve("kafka", 9092) == [Address(socket.AF_INET, address, "kafka") for address in addresses[:2]]


def test_an_address_resolves_to_itself() -> None:
    addresses = resolve("127.0.0.1", 9092)
    assert addresses == [Address(socket.AF_INET, ("127.0.0.1", 9092), "127.0.0.1")]
    assert str(addresses[0]) == "127.0.0.1:9092"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_in_digits_needs_no_resolver(host: str) -> None:
    (address,) = literal_addresses(host, 9092)
    assert address == resolve(host, 9092)[0]


@pytest.mark.parametrize("host", ["localhost", "broker.example", ""])
def test_a_name_is_no_address_in_digits(host: str) -> None:
    assert literal_addresses(host, 9092) == []


def test_canonical_names_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [Address(socket.AF_INET, ("10.0.0.1", 9)), Address(socket.AF_INET, ("10.0.0.2", 9))]
    monkeypatch.setattr(dns, "resolve", lambda *_: addresses)
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: ("same.example", "9"))
    assert canonical_servers("alias.example", 9) == [("same.example", 9)]


@pytest.mark.parametrize("port", [-1, 0, 65_536, 99_999_999])
def test_a_number_that_cannot_be_a_port_is_an_os_error(port: int) -> None:
    """The system took the lower 16 bits: metadata with a wrong port led to whatever listened there."""
    with pytest.raises(OSError, match=f"{port} is not a port"):
        resolve("127.0.0.1", port)


def test_a_text_that_cannot_be_a_name_is_an_os_error() -> None:
    with pytest.raises(OSError, match="is not a host name"):
        resolve("x" * 70 + ".example", 9092)
    with pytest.raises(OSError, match="is not a host name"):
        literal_addresses("a\0b", 9092)


def test_a_resolver_of_canonical_names_that_hangs_is_not_waited_for_any_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(dns, "canonical_servers", lambda _host, _port: release.wait(30))
    assert canonical_bootstrap_servers([("boot1", 9001)], timeout_ms=10) == [("boot1", 9001)]
    release.set()
    assert "boot1:9001 cannot be resolved to canonical names: no answer of DNS within 10 ms" in caplog.text


def test_canonical_names_of_all_servers_are_looked_up_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server had the whole time, one after another. Here, each is found when the look-up of the other has begun."""
    begun = {"boot1": threading.Event(), "boot2": threading.Event()}

    def canonical(host: str, port: int) -> list[tuple[str, int]]:
        begun.pop(host).set()
        other = next(iter(begun.values()), None)
        if other is not None and not other.wait(2):
            raise OSError("the other server waits")
        return [(f"{host}.example", port)]

    monkeypatch.setattr(dns, "canonical_servers", canonical)
    servers = [("boot1", 9001), ("boot2", 9002)]
    assert canonical_bootstrap_servers(servers, timeout_ms=30_000) == [("boot1.example", 9001), ("boot2.example", 9002)]
