"""What a broker has shown in a TLS handshake: its certificate with the issuers, and what both sides agreed upon. For display."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class PeerCertificate(NamedTuple):
    """A certificate that a broker has shown. Names are not escaped. Times are seconds since 1970; None: not known."""

    subject: str
    issuer: str
    hosts: tuple[str, ...]  # for which the certificate is valid
    not_before_s: float | None
    not_after_s: float | None


class TlsPeer(NamedTuple):
    """The result of a TLS handshake. `chain` begins with the broker's own certificate; empty if Python does not have it."""

    version: str
    cipher: str
    chain: tuple[PeerCertificate, ...]


def tls_peer(connection: ssl.SSLSocket) -> TlsPeer:
    """What the broker has shown. The handshake must have ended."""
    cipher = connection.cipher()
    chain = _chain(connection) or [connection.getpeercert() or {}]
    return TlsPeer(connection.version() or "", cipher[0] if cipher else "", tuple(certificate_of(each) for each in chain if each))


def _chain(connection: ssl.SSLSocket) -> list[Mapping[str, Any]]:
    """All certificates, each in the form of `getpeercert()`. Python before 3.13 has no public method for them."""
    ssl_object = getattr(connection, "_sslobj", None)
    context: ssl.SSLContext = connection.context
    name = "get_unverified_chain" if context.verify_mode == ssl.CERT_NONE else "get_verified_chain"
    get_chain: Callable[[], Sequence[Any] | None] = getattr(ssl_object, name, lambda: None)
    return [each.get_info() for each in get_chain() or () if hasattr(each, "get_info")]


def certificate_of(certificate_fields: Mapping[str, Any]) -> PeerCertificate:
    """Convert what `ssl.SSLSocket.getpeercert()` returns."""
    names = certificate_fields.get("subjectAltName", ())
    return PeerCertificate(
        subject=_common_name(certificate_fields.get("subject", ())),
        issuer=_common_name(certificate_fields.get("issuer", ())),
        hosts=tuple(name for kind, name in names if kind in ("DNS", "IP Address")),
        not_before_s=_seconds(certificate_fields.get("notBefore")),
        not_after_s=_seconds(certificate_fields.get("notAfter")),
    )


def _common_name(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The common name; without one, all parts of the name."""
    parts = [pair for pairs in name for pair in pairs]
    common = [value for key, value in parts if key == "commonName"]
    return common[-1] if common else ", ".join(f"{key}={value}" for key, value in parts)


def _seconds(text: object) -> float | None:
    try:
        return float(ssl.cert_time_to_seconds(text)) if isinstance(text, str) else None
    except ValueError:
        return None
